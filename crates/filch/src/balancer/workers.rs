//! Workers come, change, report, fall silent and leave.

use filch_core::{Event, JobId, LoadReport, Remaining, TaskId, WorkerId};

use super::Balancer;
use crate::error::Error;
use crate::task::Task;
use crate::worker::{Worker, WorkerName, WorkerUpdate};

/// A task that left the balancer with its worker, ready to be submitted again or to be run by other means.
#[derive(Debug)]
pub struct ReturnedTask<T = ()> {
    /// The id it had.
    pub id: TaskId,
    /// The job it belonged to.
    pub job: Option<JobId>,
    /// Its position in its array or other job; 0 for a single task.
    pub index: u32,
    /// The task itself, under its old name. What it waited for is over, so it waits for nothing; it belongs to no job and
    /// is pinned to no worker.
    pub task: Task<T>,
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// Registers a worker; its number is a quicker name for it than its id.
    ///
    /// # Errors
    /// If its id is taken, a value makes no sense, or the balancer is stopped.
    pub fn register_worker(&self, worker: Worker) -> Result<WorkerId, Error> {
        let shared = &self.shared;
        shared.run_in_background();
        let spec = worker.spec(&shared.names)?;
        shared.with(|state, now, after| {
            if state.stopped {
                return Err(Error::Stopped);
            }
            if state.knows_worker(&worker.name) {
                return Err(Error::DuplicateWorker(worker.name.to_string()));
            }
            state.answers.joined = None;
            let joined = state.step(now, Event::Join(spec), after);
            joined.map_err(|refusal| shared.error(state, now, refusal, |_| String::new()))?;
            let id = state.answers.joined.ok_or(Error::Stopped)?;
            state.add_worker(id, worker.name, worker.capabilities);
            Ok(id)
        })
    }

    /// Unregisters a worker and returns the tasks it leaves, those it was running first. They are no longer the
    /// balancer's; whoever still runs one of them finds its assignment revoked.
    ///
    /// # Errors
    /// If there is no such worker.
    pub fn unregister_worker(&self, worker: impl Into<WorkerName>) -> Result<Vec<ReturnedTask<T>>, Error> {
        self.leave(&worker.into(), Remaining::Return)
    }

    /// Unregisters a worker and queues the tasks it leaves again.
    ///
    /// # Errors
    /// If there is no such worker.
    pub fn unregister_and_requeue(&self, worker: impl Into<WorkerName>) -> Result<(), Error> {
        self.leave(&worker.into(), Remaining::Requeue).map(|_| ())
    }

    fn leave(&self, worker: &WorkerName, remaining: Remaining) -> Result<Vec<ReturnedTask<T>>, Error> {
        self.shared.with(|state, now, after| {
            let worker = state.find_worker(worker)?;
            state.answers.handed_back.clear();
            let left = state.step(now, Event::Leave { worker, remaining }, after);
            left.map_err(|refusal| self.shared.error(state, now, refusal, |_| String::new()))?;
            state.remove_worker(worker, after);
            let returned = std::mem::take(&mut state.answers.handed_back).into_iter();
            let task = |staged: super::state::Staged<T>| Task { payload: staged.payload, details: staged.details };
            let returned = returned.map(|left| {
                let task = task(left.staged).returned();
                ReturnedTask { id: left.task, job: left.job, index: left.index, task }
            });
            Ok(returned.collect())
        })
    }

    /// Changes what a worker can do and has, how fast, dear and heavy it is, and whether it gets new tasks.
    ///
    /// # Errors
    /// If there is no such worker, or a value makes no sense.
    pub fn update_worker(&self, worker: impl Into<WorkerName>, update: WorkerUpdate) -> Result<(), Error> {
        let change = update.change(&self.shared.names)?;
        let worker = worker.into();
        self.shared.with(|state, now, after| {
            let worker = state.find_worker(&worker)?;
            let changed = state.step(now, Event::Change { worker, change }, after);
            changed.map_err(|refusal| self.shared.error(state, now, refusal, |_| String::new()))?;
            if let (Some(record), Some(capabilities)) = (state.worker_mut(worker), update.capabilities) {
                record.capabilities = capabilities;
            }
            Ok(())
        })
    }

    /// Notes what a worker says of its own load. A silent worker that reports gets work again.
    ///
    /// # Errors
    /// If there is no such worker, or a share is not between 0 and 1.
    pub fn report_load(&self, worker: impl Into<WorkerName>, load: LoadReport) -> Result<(), Error> {
        let worker = worker.into();
        self.shared.with(|state, now, after| {
            let worker = state.find_worker(&worker)?;
            let reported = state.step(now, Event::Report { worker, load }, after);
            reported.map_err(|refusal| self.shared.error(state, now, refusal, |_| String::new()))
        })
    }

    /// A worker was not heard of for too long: it gets nothing new, and others get what it had.
    ///
    /// # Errors
    /// If there is no such worker.
    pub fn worker_silent(&self, worker: impl Into<WorkerName>) -> Result<(), Error> {
        let worker = worker.into();
        self.shared.with(|state, now, after| {
            let worker = state.find_worker(&worker)?;
            let silent = state.step(now, Event::Silent { worker }, after);
            silent.map_err(|refusal| self.shared.error(state, now, refusal, |_| String::new()))?;
            state.wish_again(worker, now, after);
            Ok(())
        })
    }
}
