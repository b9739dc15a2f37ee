//! Arrays in the naive scheduler: what was never handed out waits as one, elements become tasks of their own.

use filch_core::{Action, Cause, JobId, Span, Status, TaskId, TaskSpec, Time, WorkerState};

use crate::life::No;
use crate::model::{Model, Place, Task, Timer};

/// Where the rest of an array waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestAt {
    Lane,
    Fed,
    Parked,
    Nowhere,
}

/// The elements of an array that were never handed out.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) job: JobId,
    pub(crate) spec: TaskSpec,
    pub(crate) at: RestAt,
    pub(crate) level: u8,
    sequence: u64,
    /// Indices, first first.
    left: Vec<u32>,
    requeues: u32,
    since: Time,
    pub(crate) ready_at: Time,
}

impl Rest {
    pub(crate) fn place(&self) -> Place {
        let deadline = self.spec.deadline.unwrap_or(Time::NEVER);
        (u8::MAX - self.level, deadline.0, u32::MAX, self.sequence, usize::MAX)
    }

    pub(crate) fn pending(&self) -> u64 {
        self.left.len() as u64
    }

    pub(crate) fn waits_in(&self, level: u8) -> bool {
        self.at == RestAt::Lane && self.level == level
    }
}

impl Model {
    pub(crate) fn rest(&self, job: JobId) -> Option<&Rest> {
        self.rests.iter().find(|rest| rest.job == job)
    }

    fn rest_mut(&mut self, job: JobId) -> &mut Rest {
        self.rests.iter_mut().find(|rest| rest.job == job).expect("the array is there")
    }

    pub(crate) fn submit_array(&mut self, spec: &TaskSpec, count: u32) -> Result<(), No> {
        self.check_room(count as usize)?;
        self.check(spec)?;
        if !spec.after.is_empty() || spec.pin.is_some() || spec.job.is_some() {
            return Err(No);
        }
        let hopeless = self.hopeless(spec, Span::ZERO)?;
        let job = self.open(1.0);
        self.sequence += 1;
        self.counts.submitted += u64::from(count);
        self.counts.hopeless += if hopeless { u64::from(count) } else { 0 };
        self.rests.push(Rest {
            job,
            spec: spec.clone(),
            at: RestAt::Nowhere,
            level: spec.priority.get(),
            sequence: self.sequence,
            left: (0..count).collect(),
            requeues: 0,
            since: self.now,
            ready_at: self.now,
        });
        if count > 0 {
            self.queue_rest(job);
        }
        self.job_mut(job).closed = true;
        self.done(job);
        Ok(())
    }

    /// Puts the rest of an array where it waits.
    pub(crate) fn queue_rest(&mut self, job: JobId) {
        let now = self.now;
        let spec = self.rest(job).expect("the array is there").spec.clone();
        self.rest_mut(job).since = now;
        if !self.workers.is_empty() && !self.has_host(&spec) {
            self.park_rest(job);
        } else if spec.key.is_some() {
            self.rest_mut(job).at = RestAt::Fed;
            self.feed(job);
        } else {
            // It is not among those who wait in the level when it comes there.
            self.rest_mut(job).at = RestAt::Nowhere;
            let level = self.rest(job).expect("the array is there").level;
            self.join_level(level, job);
            self.rest_mut(job).at = RestAt::Lane;
            self.rest_ages(job);
            self.serve_waiting(job);
        }
    }

    fn park_rest(&mut self, job: JobId) {
        let now = self.now;
        self.rest_mut(job).at = RestAt::Parked;
        self.rest_mut(job).since = now;
        self.set_timer(now + self.config.limits.requeue_interval, Timer::ParkArray(job));
    }

    fn rest_ages(&mut self, job: JobId) {
        let interval = self.config.scheduling.aging_interval;
        if interval > Span::ZERO && self.rest(job).is_some_and(|rest| rest.level < 5) {
            self.set_timer(self.now + interval, Timer::ArrayAging(job));
        }
    }

    /// The next element becomes a task of its own, nowhere yet.
    pub(crate) fn materialise(&mut self, job: JobId) -> TaskId {
        let now = self.now;
        let rest = self.rest_mut(job);
        let index = rest.left.remove(0);
        rest.since = now;
        if rest.left.is_empty() {
            rest.at = RestAt::Nowhere;
        }
        let rest = rest.clone();
        let element = |action: &Action| match *action {
            Action::Element { job: whose, index: which, task, .. } if (whose, which) == (job, index) => Some(task),
            _ => None,
        };
        let id = self.hint(element).expect("the model takes an element, the scheduler does not");
        self.out.push(Action::Element { job, index, task: id, payload: rest.spec.payload });
        if let Some(deadline) = rest.spec.deadline {
            self.set_timer(deadline, Timer::Deadline(id));
        }
        let task = Task {
            rank: u32::MAX,
            sequence: rest.sequence,
            level: rest.level,
            since: rest.ready_at,
            ready_at: rest.ready_at,
            ..Task::new(id, &rest.spec, job, index)
        };
        self.tasks.push(task);
        id
    }

    /// Workers that wait for a task get elements, as the policy chooses.
    pub(crate) fn serve_waiting(&mut self, job: JobId) {
        while self.workers.iter().any(|worker| {
            let asks = worker.credit > 0 && worker.has_free_slot();
            worker.state == WorkerState::Up && Some(worker.id) != self.unlisted && (self.push() || asks)
        }) {
            if self.rest(job).is_none_or(|rest| rest.at != RestAt::Lane) {
                return;
            }
            let id = self.materialise(job);
            let worker = self.who_has_room(id);
            if worker.is_none() {
                self.task_mut(id).loose = true;
                self.put_central(id);
            }
            self.notify(id, Status::Queued, Cause::None);
            let Some(worker) = worker else { return };
            self.assign(id, worker);
        }
    }

    /// As many elements of a keyed array wait for its key as may run at once.
    fn feed(&mut self, job: JobId) {
        loop {
            let Some(rest) = self.rest(job).filter(|rest| rest.at == RestAt::Fed) else { return };
            let (spec, key) = (rest.spec.clone(), rest.spec.key.expect("it is fed for its key"));
            let loose = self.tasks.iter().filter(|task| task.job == job && task.loose).count();
            if loose >= (self.limit(key) as usize).min(self.portion) {
                return;
            }
            if !self.workers.is_empty() && !self.has_host(&spec) {
                self.park_rest(job);
                return;
            }
            let id = self.materialise(job);
            self.task_mut(id).loose = true;
            self.enqueue(id, Cause::None);
        }
    }

    /// An element that waited by itself is handed out or settled.
    pub(crate) fn element_left(&mut self, id: TaskId) {
        let task = self.task_mut(id);
        if std::mem::take(&mut task.loose) && task.spec.key.is_some() {
            let job = task.job;
            self.hungry.push(job);
        }
    }

    pub(crate) fn feed_hungry(&mut self) {
        while let Some(job) = self.hungry.pop() {
            self.feed(job);
        }
    }

    pub(crate) fn requeue_rest(&mut self, job: JobId) {
        let Some(rest) = self.rest(job).filter(|rest| rest.at == RestAt::Parked).cloned() else { return };
        if !self.workers.is_empty() && !self.has_host(&rest.spec) {
            if rest.requeues >= self.config.limits.max_requeue_attempts {
                // Why each class refuses it is not modelled.
                while let Some(refused) = self.hint(|action| {
                    matches!(action, Action::ElementsRefused { job: whose, .. } if *whose == job).then_some(*action)
                }) {
                    self.out.push(refused);
                }
                self.drop_rest(job, Status::Failed, Cause::NoWorker);
                self.done(job);
                return;
            }
            self.rest_mut(job).requeues += 1;
            self.rest_mut(job).level = (rest.level - 1).max(1);
            self.counts.requeues += 1;
        }
        self.queue_rest(job);
    }

    pub(crate) fn age_rest(&mut self, job: JobId) {
        let Some(rest) = self.rest(job).filter(|rest| rest.at == RestAt::Lane && rest.level < 5).cloned() else {
            return;
        };
        let due = rest.since + self.config.scheduling.aging_interval;
        if due > self.now {
            self.set_timer(due, Timer::ArrayAging(job));
            return;
        }
        self.counts.promotions += 1;
        let now = self.now;
        let aged = self.rest_mut(job);
        (aged.level, aged.since, aged.at) = (rest.level + 1, now, RestAt::Nowhere);
        self.join_level(rest.level + 1, job);
        self.rest_mut(job).at = RestAt::Lane;
        self.rest_ages(job);
    }

    /// Settles what was never handed out.
    pub(crate) fn drop_rest(&mut self, job: JobId, status: Status, cause: Cause) {
        let Some(count) = self.rest(job).map(|rest| rest.left.len() as u32).filter(|count| *count > 0) else { return };
        self.rest_mut(job).left.clear();
        self.rest_mut(job).at = RestAt::Nowhere;
        self.settle_elements(job, count, status, cause);
    }

    fn settle_elements(&mut self, job: JobId, count: u32, status: Status, cause: Cause) {
        match status {
            Status::Cancelled => self.counts.cancelled += u64::from(count),
            _ => self.counts.failed += u64::from(count),
        }
        self.out.push(Action::ElementsSettled { job, count, status, cause });
    }

    pub(crate) fn cancel_element(&mut self, job: JobId, index: u32) -> Result<(), No> {
        let loose = self.tasks.iter().find(|task| task.job == job && task.loose && task.index == index);
        if let Some(id) = loose.map(|task| task.id) {
            return self.cancel(id);
        }
        let place = self.rest(job).and_then(|rest| rest.left.iter().position(|left| *left == index)).ok_or(No)?;
        let rest = self.rest_mut(job);
        rest.left.remove(place);
        if rest.left.is_empty() {
            rest.at = RestAt::Nowhere;
        }
        self.settle_elements(job, 1, Status::Cancelled, Cause::Requested);
        self.done(job);
        Ok(())
    }
}
