//! Spawned tasks as the queues see them: a pointer to a header that knows how to run or discard what it heads.
//!
//! A task is run or discarded exactly once by whoever took it out of a queue. It never says where it is queued.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::blocks;
use crate::registry::Registry;
use crate::scope::Core;
use crate::worker::Worker;

/// What to do with a task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Run,
    /// Drop it without running it, because the pool ends.
    Discard,
}

/// The head of every spawned task.
#[repr(C)]
pub(crate) struct Task {
    /// Consumes the task. True if a spawned task ended by it, false if nothing ran or it was never counted as spawned.
    pub(crate) run: unsafe fn(*mut Task, &Worker, Fate) -> bool,
    /// The scope that waits for it, or null. The scope is alive as long as the task is.
    pub(crate) scope: *const Core,
}

/// Which queue a task waits in; lower ones are served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Somebody waits for it: the body of an `install`, a broadcast, a task of a scope.
    Awaited,
    High,
    Normal,
    Low,
}

pub(crate) const LANES: [Lane; 4] = [Lane::Awaited, Lane::High, Lane::Normal, Lane::Low];

/// How urgent a spawned task is.
///
/// A worker takes high before normal before low, except that now and then (once in 64 tasks) it looks at the lowest
/// first, so that low ones never starve. Once in 1,024 it looks for them at the other workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// When there is nothing else to do, or once in a while.
    Low,
    /// The usual.
    #[default]
    Normal,
    /// Before the others.
    High,
}

impl Priority {
    pub(crate) fn lane(self) -> Lane {
        match self {
            Self::Low => Lane::Low,
            Self::Normal => Lane::Normal,
            Self::High => Lane::High,
        }
    }
}

/// A task nobody waits for.
#[repr(C)]
pub(crate) struct Detached<F> {
    task: Task,
    body: F,
}

impl<F: FnOnce(&Registry) + Send + 'static> Detached<F> {
    /// Puts the body into a block. It is called with the registry of the worker that runs it.
    #[inline]
    pub(crate) fn queued(body: F) -> *mut Task {
        let task = Task { run: Self::run, scope: ptr::null() };
        blocks::put(Self { task, body }).cast()
    }

    unsafe fn run(task: *mut Task, worker: &Worker, fate: Fate) -> bool {
        // SAFETY: made by `queued`, with the header first, and consumed here once.
        let body = unsafe { blocks::take_out(task.cast::<Self>()) }.body;
        let ended = catch_unwind(AssertUnwindSafe(|| match fate {
            Fate::Run => body(worker.registry()),
            Fate::Discard => drop(body),
        }));
        if let Err(payload) = ended {
            worker.registry().report_panic(payload);
        }
        true
    }
}
