//! Telling people about status changes: outside the lock, in order, and whatever their code does.

use std::sync::Arc;

use filch_core::{Cause, JobId, Status, TaskId};

use super::entries::Entry;
use super::{Balancer, Shared};
use crate::calm::calmly;

/// What changed its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// One task.
    Task(TaskId),
    /// Elements of an array that were never handed out, all alike.
    Elements {
        /// The array.
        job: JobId,
        /// How many.
        count: u32,
    },
}

/// A change of status, as [`Balancer::on_status`] tells it.
#[derive(Debug)]
pub struct StatusChange<R = ()> {
    /// What changed.
    pub subject: Subject,
    /// The name its submitter gave it.
    pub name: Option<Arc<str>>,
    /// Where it stands now.
    pub status: Status,
    /// Why, where there is more than one way.
    pub cause: Cause,
    /// The id of the worker it is or was with.
    pub worker: Option<Arc<str>>,
    /// What the last failed attempt said; for elements that nobody can run, what each class of workers lacks.
    pub error: Option<Arc<str>>,
    /// What the last attempt brought.
    pub result: Option<Arc<R>>,
}

impl<R> Clone for StatusChange<R> {
    fn clone(&self) -> Self {
        StatusChange {
            subject: self.subject,
            name: self.name.clone(),
            status: self.status,
            cause: self.cause,
            worker: self.worker.clone(),
            error: self.error.clone(),
            result: self.result.clone(),
        }
    }
}

impl<R> StatusChange<R> {
    pub(super) fn of_task<T>(
        task: TaskId,
        entry: Option<&Entry<T, R>>,
        status: Status,
        cause: Cause,
        worker: Option<Arc<str>>,
    ) -> Self {
        StatusChange {
            subject: Subject::Task(task),
            name: entry.and_then(Entry::name).cloned(),
            status,
            cause,
            worker,
            error: entry.and_then(|entry| entry.error.clone()),
            result: entry.and_then(|entry| entry.result.clone()),
        }
    }

    pub(super) fn of_elements(subject: Subject, status: Status, cause: Cause, error: Option<Arc<str>>) -> Self {
        StatusChange { subject, name: None, status, cause, worker: None, error, result: None }
    }

    /// The task, if it is one.
    #[must_use]
    pub fn task(&self) -> Option<TaskId> {
        match self.subject {
            Subject::Task(task) => Some(task),
            Subject::Elements { .. } => None,
        }
    }

    /// The name of the task where it has one, else its number.
    #[must_use]
    pub fn label(&self) -> String {
        match (&self.name, self.subject) {
            (Some(name), _) => name.to_string(),
            (None, Subject::Task(task)) => task.to_string(),
            (None, Subject::Elements { job, count }) => format!("{count} elements of {job}"),
        }
    }
}

type Callback<R> = dyn Fn(&StatusChange<R>) + Send + Sync;

/// Everybody who wants to be told, in the order they said so.
pub(crate) struct Callbacks<R> {
    list: Arc<Vec<(CallbackId, Arc<Callback<R>>)>>,
    next: u64,
}

impl<R> Default for Callbacks<R> {
    fn default() -> Self {
        Callbacks { list: Arc::new(Vec::new()), next: 0 }
    }
}

impl<R> Callbacks<R> {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Names a callback, so that it can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackId(u64);

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// Calls `callback` with every status change from now on, in the order they happen, one at a time.
    ///
    /// It is called without any lock held, on the thread of whichever operation caused a change or, while another
    /// thread is calling back already, on that one. So it may use the balancer (keep a
    /// [weak handle](Balancer::downgrade) in it, or the balancer never goes away), and an operation may return before
    /// its own changes were told. If it panics nothing happens, except that it may have missed a change.
    pub fn on_status(&self, callback: impl Fn(&StatusChange<R>) + Send + Sync + 'static) -> CallbackId {
        let mut state = self.shared.state.lock();
        state.callbacks.next += 1;
        let id = CallbackId(state.callbacks.next);
        let mut list = state.callbacks.list.to_vec();
        list.push((id, Arc::new(callback)));
        state.callbacks.list = Arc::new(list);
        id
    }

    /// No longer calls that callback; one call may still be under way. Whether there was such a callback.
    pub fn remove_callback(&self, id: CallbackId) -> bool {
        // The old list is dropped, and with it perhaps the callback, when the lock is free.
        let (_old, removed) = {
            let mut state = self.shared.state.lock();
            let old = Arc::clone(&state.callbacks.list);
            let list: Vec<_> = old.iter().filter(|entry| entry.0 != id).cloned().collect();
            let removed = list.len() < old.len();
            state.callbacks.list = Arc::new(list);
            (old, removed)
        };
        removed
    }
}

impl<T, R> Shared<T, R> {
    /// Calls back until nothing is left to tell. Only one thread at a time does this; `delivering` says so.
    pub(super) fn deliver(&self) {
        let mut batch = Vec::new();
        loop {
            let callbacks = {
                let mut state = self.state.lock();
                if state.outbox.is_empty() {
                    state.delivering = false;
                    return;
                }
                std::mem::swap(&mut batch, &mut state.outbox);
                Arc::clone(&state.callbacks.list)
            };
            for change in batch.drain(..) {
                for (_, callback) in callbacks.iter() {
                    // Whoever panics, the others go on.
                    calmly(|| callback(&change));
                }
                // So may a result that nobody else holds.
                calmly(|| drop(change));
            }
            calmly(|| drop(callbacks));
        }
    }
}
