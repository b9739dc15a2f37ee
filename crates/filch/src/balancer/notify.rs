//! Telling people about status changes: outside the lock, in order, and whatever their code does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

use filch_core::{Cause, JobId, Status, TaskId};

use super::entries::{Entry, Origin, element_label};
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
    /// The job it belongs to.
    pub job: Option<JobId>,
    /// Its position in its array, or among the tasks it was submitted with.
    pub index: Option<u32>,
    /// Where it stands now.
    pub status: Status,
    /// Why, where there is more than one way.
    pub cause: Cause,
    /// The id of the worker it is or was with.
    pub worker: Option<Arc<str>>,
    /// What the last failed attempt said; if nobody can run it, what each class of workers lacks.
    pub error: Option<Arc<str>>,
    /// What the last attempt brought.
    pub result: Option<Arc<R>>,
    /// It is an element of an array.
    element: bool,
}

impl<R> Clone for StatusChange<R> {
    fn clone(&self) -> Self {
        StatusChange {
            subject: self.subject,
            name: self.name.clone(),
            job: self.job,
            index: self.index,
            element: self.element,
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
        let origin = entry.map_or(Origin::Alone, |entry| entry.origin);
        StatusChange {
            subject: Subject::Task(task),
            name: entry.and_then(Entry::name).cloned(),
            job: origin.job(),
            index: origin.index(),
            element: matches!(origin, Origin::Element(..)),
            status,
            cause,
            worker,
            error: entry.and_then(|entry| entry.error.clone()),
            result: entry.and_then(|entry| entry.result.clone()),
        }
    }

    pub(super) fn of_elements(job: JobId, count: u32, status: Status, cause: Cause, error: Option<Arc<str>>) -> Self {
        StatusChange {
            subject: Subject::Elements { job, count },
            name: None,
            job: Some(job),
            index: None,
            element: true,
            status,
            cause,
            worker: None,
            error,
            result: None,
        }
    }

    /// The task, if it is one.
    #[must_use]
    pub fn task(&self) -> Option<TaskId> {
        match self.subject {
            Subject::Task(task) => Some(task),
            Subject::Elements { .. } => None,
        }
    }

    /// The name of the task where it has one; of an element of an array its job and index, as in `j3[17]`; else its number.
    #[must_use]
    pub fn label(&self) -> String {
        match (&self.name, self.subject, self.job, self.index) {
            (Some(name), ..) => name.to_string(),
            (None, Subject::Task(_), Some(job), Some(index)) if self.element => element_label(job, index),
            (None, Subject::Task(task), ..) => task.to_string(),
            (None, Subject::Elements { job, count: 1 }, ..) => format!("1 element of {job}"),
            (None, Subject::Elements { job, count }, ..) => format!("{count} elements of {job}"),
        }
    }
}

type Callback<R> = dyn Fn(&StatusChange<R>) + Send + Sync;

/// Somebody who wants to be told.
struct Registered<R> {
    id: CallbackId,
    /// The number of the first change to tell.
    since: u64,
    removed: AtomicBool,
    callback: Box<Callback<R>>,
}

/// Everybody who wants to be told, in the order they said so.
pub(crate) struct Callbacks<R> {
    list: Arc<Vec<Arc<Registered<R>>>>,
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
    ///
    /// What a timer causes is told on the background thread. A callback that takes long there delays timers (retries,
    /// timeouts, rebalancing) until the next operation of somebody else or its end; one that waits with a method of the
    /// balancer does not, since another thread takes over meanwhile.
    pub fn on_status(&self, callback: impl Fn(&StatusChange<R>) + Send + Sync + 'static) -> CallbackId {
        let callback = Box::new(callback);
        let mut state = self.shared.state.lock();
        state.callbacks.next += 1;
        let id = CallbackId(state.callbacks.next);
        let mut list = state.callbacks.list.to_vec();
        let since = state.post.written();
        list.push(Arc::new(Registered { id, since, removed: AtomicBool::new(false), callback }));
        state.callbacks.list = Arc::new(list);
        id
    }

    /// No longer calls that callback, not even with changes from before that it was not told of yet; one call may still be
    /// under way on another thread. Whether there was such a callback.
    pub fn remove_callback(&self, id: CallbackId) -> bool {
        // The old list is dropped, and with it perhaps the callback, when the lock is free.
        let (_old, removed) = {
            let mut state = self.shared.state.lock();
            let old = Arc::clone(&state.callbacks.list);
            let (gone, list): (Vec<_>, Vec<_>) = old.iter().cloned().partition(|entry| entry.id == id);
            gone.iter().for_each(|entry| entry.removed.store(true, Ordering::SeqCst));
            state.callbacks.list = Arc::new(list);
            (old, !gone.is_empty())
        };
        removed
    }
}

/// Status changes on their way to the callbacks. They are numbered in the order they happen, so that it can be said which
/// of them somebody is to be told of or waits for.
pub(crate) struct Post<R> {
    /// Those nobody was told of yet.
    outbox: Vec<StatusChange<R>>,
    /// How many were taken out of there, ever.
    taken: u64,
    /// How many of those everybody has been told of.
    told: u64,
    /// Somebody is calling back; whatever comes meanwhile is left to them, so that the order holds.
    delivering: bool,
    /// Who that is.
    deliverer: Option<ThreadId>,
}

impl<R> Default for Post<R> {
    fn default() -> Self {
        Post { outbox: Vec::new(), taken: 0, told: 0, delivering: false, deliverer: None }
    }
}

impl<R> Post<R> {
    pub(super) fn push(&mut self, change: StatusChange<R>) {
        self.outbox.push(change);
    }

    /// The number of changes so far.
    pub(super) fn written(&self) -> u64 {
        self.taken + self.outbox.len() as u64
    }

    /// The number of changes that everybody has been told of.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// Whether there is something to tell and nobody is at it; then whoever asks is to do it.
    #[inline]
    pub(super) fn needs_delivery(&mut self) -> bool {
        if self.outbox.is_empty() || self.delivering {
            return false;
        }
        self.delivering = true;
        true
    }

    /// Whether that thread is calling back, so that it would wait for itself.
    pub(super) fn is_delivered_by(&self, thread: ThreadId) -> bool {
        self.deliverer == Some(thread)
    }

    /// Everything of the last batch was told. Gives the next one with the number of its first change, or ends the
    /// delivery.
    fn next_batch(&mut self, batch: &mut Vec<StatusChange<R>>, thread: ThreadId) -> Option<u64> {
        self.told = self.taken;
        self.delivering = !self.outbox.is_empty();
        self.deliverer = self.delivering.then_some(thread);
        let first = self.delivering.then_some(self.taken);
        std::mem::swap(batch, &mut self.outbox);
        self.taken += batch.len() as u64;
        first
    }
}

impl<T, R> Shared<T, R> {
    /// Calls back until nothing is left to tell. Only one thread at a time does this; `delivering` says so.
    pub(super) fn deliver(&self) {
        let (mut batch, thread) = (Vec::new(), std::thread::current().id());
        loop {
            let (first, wakes, callbacks) = {
                let mut state = self.state.lock();
                let first = state.post.next_batch(&mut batch, thread);
                (first, state.ends_to_wake(), Arc::clone(&state.callbacks.list))
            };
            for wake in wakes {
                calmly(|| wake.wake());
            }
            let Some(first) = first else { return };
            for (number, change) in (first..).zip(batch.drain(..)) {
                for entry in callbacks.iter() {
                    if number >= entry.since && !entry.removed.load(Ordering::SeqCst) {
                        // Whoever panics, the others go on.
                        calmly(|| (entry.callback)(&change));
                    }
                }
                // So may a result that nobody else holds.
                calmly(|| drop(change));
            }
            calmly(|| drop(callbacks));
        }
    }
}
