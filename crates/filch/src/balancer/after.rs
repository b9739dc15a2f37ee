//! What an operation leaves to be done once the lock is free: waking, timers, calling back, dropping.
//!
//! Everything here may be other people's code, or takes a while. Most operations leave nothing, or a payload and a result;
//! whatever else there may be stands apart, so that they do not pay for it. Never touches what the lock protects.

use std::sync::Arc;

use filch_core::{Action, Time};

use super::state::{Staged, Stole, Wake};
use crate::calm::calmly;
use crate::task::Details;

/// What is left to do once the lock is free.
pub(crate) struct After<T, R> {
    /// The machine's next timer has changed to this.
    pub(super) timer: Option<Time>,
    /// Status changes wait, and it is on us to call back.
    pub(super) deliver: bool,
    /// Dropped outside the lock, since that may run anybody's code; so is the rest.
    payload: Option<Arc<T>>,
    result: Option<Arc<R>>,
    rest: Option<Box<Rest<T, R>>>,
}

/// What few operations leave.
pub(super) struct Rest<T, R> {
    wakes: Vec<Wake>,
    /// Steals that were tried, for whoever knows how long they took.
    steals: Vec<Stole>,
    retired: Vec<Wake>,
    payloads: Vec<Arc<T>>,
    results: Vec<Arc<R>>,
    details: Vec<Arc<Details>>,
    /// Memory that a burst has left behind. Giving it back to the system takes a while.
    staged: Vec<Option<Staged<T>>>,
    actions: Vec<Action>,
}

impl<T, R> Default for After<T, R> {
    #[inline]
    fn default() -> Self {
        After { timer: None, deliver: false, payload: None, result: None, rest: None }
    }
}

impl<T, R> Default for Rest<T, R> {
    fn default() -> Self {
        Rest {
            wakes: Vec::new(),
            steals: Vec::new(),
            retired: Vec::new(),
            payloads: Vec::new(),
            results: Vec::new(),
            details: Vec::new(),
            staged: Vec::new(),
            actions: Vec::new(),
        }
    }
}

impl<T, R> After<T, R> {
    #[inline(never)]
    fn rest(&mut self) -> &mut Rest<T, R> {
        self.rest.get_or_insert_default()
    }

    #[inline]
    pub(super) fn take_rest(&mut self) -> Option<Box<Rest<T, R>>> {
        self.rest.take()
    }

    /// Wakes somebody once the lock is free.
    pub(super) fn wake(&mut self, wake: Wake) {
        self.rest().wakes.push(wake);
    }

    pub(super) fn record_steals(&mut self, steals: Vec<Stole>) {
        self.rest().steals = steals;
    }

    /// Drops a way to wake somebody once the lock is free.
    pub(super) fn retire(&mut self, wake: Wake) {
        self.rest().retired.push(wake);
    }

    #[inline]
    pub(super) fn drop_payload(&mut self, payload: Arc<T>) {
        match self.payload {
            None => self.payload = Some(payload),
            Some(_) => self.rest().payloads.push(payload),
        }
    }

    #[inline]
    pub(super) fn drop_result(&mut self, result: Arc<R>) {
        match self.result {
            None => self.result = Some(result),
            Some(_) => self.rest().results.push(result),
        }
    }

    pub(super) fn drop_details(&mut self, details: Arc<Details>) {
        self.rest().details.push(details);
    }

    /// Gives the memory of a long list back.
    pub(super) fn drop_staged(&mut self, staged: Vec<Option<Staged<T>>>) {
        self.rest().staged = staged;
    }

    /// The same.
    pub(super) fn drop_actions(&mut self, actions: Vec<Action>) {
        self.rest().actions = actions;
    }

    /// Drops what most operations leave. A payload that panics when dropped must take with it neither the others, nor what
    /// the operation returns, nor the thread, which may be the timer's.
    #[inline]
    pub(super) fn drop_calmly(self) {
        if let Some(payload) = self.payload {
            drop_shared(payload);
        }
        if let Some(result) = self.result {
            drop_shared(result);
        }
    }
}

impl<T, R> Rest<T, R> {
    pub(super) fn take_steals(&mut self) -> Vec<Stole> {
        std::mem::take(&mut self.steals)
    }

    pub(super) fn take_wakes(&mut self) -> Vec<Wake> {
        std::mem::take(&mut self.wakes)
    }

    /// Drops all of it, as [`After::drop_calmly`] does.
    pub(super) fn drop_calmly(self) {
        self.payloads.into_iter().for_each(drop_shared);
        self.results.into_iter().for_each(drop_shared);
        for wake in self.retired {
            calmly(|| drop(wake));
        }
        for staged in self.staged {
            calmly(|| drop(staged));
        }
    }
}

/// Lets go of something that others may hold too; whatever its drop does, it ends here.
#[inline]
fn drop_shared<E>(shared: Arc<E>) {
    if std::mem::needs_drop::<E>() {
        calmly(|| drop(shared));
    }
}
