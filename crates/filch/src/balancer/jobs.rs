//! How many tasks of each job stand where. Counts, never lists: an array of a million elements costs what a job of one does.
//!
//! The machine knows what of a job is not settled and how much of an array was never handed out; what is counted here is
//! what it does not keep: where the tasks stand, as its status changes tell, and how they ended. Never decides anything.

use std::collections::VecDeque;
use std::sync::Arc;

use filch_core::map::Map;
use filch_core::{JobFigures, JobId, Status};

use super::{Balancer, State};
use crate::error::Error;
use crate::info::JobStatus;

/// Kinds of status there are.
const STATUSES: usize = Status::Returned as usize + 1;

/// Jobs looked at while the lock is held once.
const JOBS: u32 = 256;

/// A job that is not done.
struct Record {
    id: JobId,
    /// Tasks and elements it has or had.
    total: u64,
    /// Tasks by where they stand, and elements that were settled without ever being handed out.
    counts: [u64; STATUSES],
    cancel_requested: bool,
    /// What each class of workers lacks for the elements that failed for want of a worker.
    error: Option<Arc<str>>,
}

impl Record {
    /// What there is to say of it; without figures of the machine it is done.
    fn status(&self, figures: Option<JobFigures>) -> JobStatus {
        let mut counts = self.counts;
        let rest = figures.map_or(0, |figures| u64::from(figures.rest));
        if let Some(figures) = figures {
            counts[figures.rest_status as usize] += rest;
        }
        let count = |status: Status| counts[status as usize];
        JobStatus {
            id: self.id,
            total: self.total,
            rest,
            blocked: count(Status::Blocked),
            queued: count(Status::Queued),
            retrying: count(Status::Retrying),
            unschedulable: count(Status::Unschedulable),
            assigned: count(Status::Assigned),
            running: count(Status::Running),
            completed: count(Status::Completed),
            failed: count(Status::Failed),
            cancelled: count(Status::Cancelled),
            skipped: count(Status::Skipped),
            returned: count(Status::Returned),
            closed: figures.is_none_or(|figures| figures.closed),
            done: figures.is_none(),
            cancel_requested: self.cancel_requested,
            error: self.error.as_deref().map(str::to_owned),
        }
    }
}

/// All jobs that are not done, and the latest of those that are.
pub(super) struct Jobs {
    /// By the index of the job.
    going: Vec<Option<Record>>,
    /// How many those are.
    count: usize,
    done: Map<JobId, JobStatus>,
    /// Those that are done, the first first, and how many of them are remembered.
    order: VecDeque<JobId>,
    kept: usize,
}

impl Jobs {
    pub(super) fn new(kept: usize) -> Jobs {
        Jobs { going: Vec::new(), count: 0, done: Map::default(), order: VecDeque::new(), kept }
    }

    pub(super) fn open(&mut self, job: JobId, total: u32) {
        if job.index() >= self.going.len() {
            self.going.resize_with(job.index() + 1, || None);
        }
        self.count += 1;
        let (total, counts) = (u64::from(total), [0; STATUSES]);
        self.going[job.index()] = Some(Record { id: job, total, counts, cancel_requested: false, error: None });
    }

    /// Whether no job is going.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn record(&self, job: JobId) -> Option<&Record> {
        self.going.get(job.index())?.as_ref().filter(|record| record.id == job)
    }

    fn record_mut(&mut self, job: JobId) -> Option<&mut Record> {
        self.going.get_mut(job.index())?.as_mut().filter(|record| record.id == job)
    }

    /// One more task belongs to the job.
    pub(super) fn add(&mut self, job: JobId) {
        if let Some(record) = self.record_mut(job) {
            record.total += 1;
        }
    }

    /// A task of the job stands elsewhere than before.
    pub(super) fn move_task(&mut self, job: JobId, before: Option<Status>, status: Status) {
        if let Some(record) = self.record_mut(job) {
            if let Some(before) = before {
                record.counts[before as usize] -= 1;
            }
            record.counts[status as usize] += 1;
        }
    }

    /// Elements that were never handed out are settled.
    pub(super) fn settle_elements(&mut self, job: JobId, count: u32, status: Status, error: Option<&Arc<str>>) {
        if let Some(record) = self.record_mut(job) {
            record.counts[status as usize] += u64::from(count);
            record.error = error.cloned().or(record.error.take());
        }
    }

    /// Somebody wants all of it withdrawn.
    pub(super) fn request_cancel(&mut self, job: JobId) {
        if let Some(record) = self.record_mut(job) {
            record.cancel_requested = true;
        }
    }

    /// All of it is settled: how it ended. Those done longest ago are forgotten where there are too many.
    pub(super) fn finish(&mut self, job: JobId) -> Option<JobStatus> {
        self.record(job)?;
        let status = self.going[job.index()].take()?.status(None);
        self.count -= 1;
        self.done.insert(job, status.clone());
        self.order.push_back(job);
        while self.order.len() > self.kept
            && let Some(oldest) = self.order.pop_front()
        {
            self.done.remove(&oldest);
        }
        Some(status)
    }
}

impl<T, R> State<T, R> {
    /// Where a job stands, while anything is remembered of it.
    pub(super) fn job_status(&self, job: JobId) -> Result<JobStatus, Error> {
        let going = self.jobs.record(job).map(|record| record.status(self.scheduler.job(job)));
        going.or_else(|| self.jobs.done.get(&job).cloned()).ok_or_else(|| self.no_such_job(job))
    }

    /// Why nothing can be done about a job that the machine does not know.
    pub(super) fn no_such_job(&self, job: JobId) -> Error {
        let done = self.jobs.done.contains_key(&job);
        if done { Error::JobDone(job.to_string()) } else { Error::UnknownJob(job.to_string()) }
    }

    /// Why nothing can be done about an element that is not waiting.
    pub(super) fn no_such_element(&self, job: JobId, index: u32) -> Error {
        let array = self.jobs.record(job).filter(|_| self.array_of_job.contains_key(&job));
        let exists = array.is_some_and(|array| u64::from(index) < array.total);
        let job = job.to_string();
        if exists { Error::NotWaiting { job, index } } else { Error::UnknownElement { job, index } }
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// Where a job stands: how many of its tasks wait, run and ended how. Costs the same however many there are.
    ///
    /// Jobs that are done are remembered like settled tasks, as many and no more (see [`Balancer`]).
    ///
    /// ```
    /// use filch::{Balancer, Task, Worker};
    /// let balancer: Balancer = Balancer::builder().build()?;
    /// balancer.register_worker(Worker::new("w"))?;
    /// let job = balancer.submit_array(Task::new(), 1_000_000)?;
    /// balancer.next("w")?.expect("the first element").succeed(())?;
    /// let status = balancer.job_status(job)?;
    /// assert_eq!((status.total, status.completed, status.queued, status.done), (1_000_000, 1, 999_999, false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such job, or it was done so long ago that nothing is known of it.
    pub fn job_status(&self, job: JobId) -> Result<JobStatus, Error> {
        self.shared.state.lock().job_status(job)
    }

    /// All jobs that are not done, in the order of their numbers: [`iter_jobs`](Balancer::iter_jobs) as a list.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobStatus> {
        self.iter_jobs().collect()
    }

    /// All jobs that are not done, a few hundred at a time, as [`iter_workers`](Balancer::iter_workers) lists workers and
    /// just as consistent.
    pub fn iter_jobs(&self) -> impl Iterator<Item = JobStatus> + use<T, R> {
        self.clone().portions(JOBS, |balancer, places| {
            let state = balancer.shared.state.lock();
            let going = places.filter_map(|place| state.jobs.going.get(place as usize)?.as_ref());
            let list = going.map(|record| record.status(state.scheduler.job(record.id))).collect();
            (list, state.jobs.going.len() as u32)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Balancer, ManualClock, Task, Worker};

    #[test]
    fn an_array_costs_no_memory_for_its_elements_and_jobs_use_their_places_again() {
        let builder = Balancer::builder().clock(ManualClock::default()).settled_max(50);
        let balancer: Balancer = builder.build().unwrap();
        balancer.register_worker(Worker::new("w")).unwrap();
        for _ in 0..200 {
            let job = balancer.submit_array(Task::new(), 100).unwrap();
            while let Some(assignment) = balancer.next("w").unwrap() {
                assert_eq!(balancer.job_status(job).unwrap().assigned, 1);
                assignment.succeed(()).unwrap();
            }
            assert!(balancer.job_status(job).unwrap().done);
        }
        let state = balancer.shared.state.lock();
        assert_eq!((state.jobs.done.len(), state.jobs.order.len()), (50, 50));
        assert!(state.jobs.going.len() <= 2, "{}", state.jobs.going.len());
        assert!(state.entries.room() <= 8 * 1024, "{}", state.entries.room());
    }
}
