//! Scopes: tasks that may borrow what outlives the scope, because the scope waits for them.
//!
//! The waiting worker runs tasks of its own scope and no others.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use crate::blocks;
use crate::quiet;
use crate::registry::{Payload, Registry};
use crate::sync::{AtomicPtr, Ordering};
use crate::tally::Tally;
use crate::task::{Fate, Lane, Task};
use crate::worker::{self, Worker};

/// Spawns tasks that end before the scope does. See [`scope`].
#[repr(transparent)]
pub struct Scope<'scope> {
    core: Core,
    /// Invariant in `'scope`, as anything is that takes closures of that lifetime.
    #[expect(clippy::type_complexity)]
    marker: PhantomData<Box<dyn FnOnce(&Scope<'scope>) + Send + Sync + 'scope>>,
}

/// What a scope is, whatever its lifetime. It lies on the stack of the worker that waits for it.
///
/// Its worker takes part in the counting of tasks apart from the others: see `tally.rs`.
pub(crate) struct Core {
    /// The worker that waits. Compared by other threads, followed by its own.
    worker: *const Worker,
    /// That worker's index.
    owner: usize,
    /// The pool, which the owner keeps alive.
    registry: *const Registry,
    /// The scope in whose task or body this one was opened, or null. It cannot end before this one.
    parent: *const Core,
    tally: Tally,
    /// The first panic of a task, boxed.
    panic: AtomicPtr<Payload>,
}

// SAFETY: the pointers are compared or followed as the fields say, whichever thread looks at them; the rest is Sync.
unsafe impl Sync for Core {}
// SAFETY: as above; the pointers are what the fields say whichever thread looks at them.
unsafe impl Send for Core {}

/// Runs `body`, waits for every task spawned in it, directly or by other tasks, and returns what `body` returned.
///
/// Tasks may borrow whatever outlives the call:
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// let sum = AtomicU32::new(0);
/// filch_pool::scope(|scope| {
///     for part in 1..=10 {
///         let sum = &sum;
///         scope.spawn(move |_| _ = sum.fetch_add(part, Ordering::Relaxed));
///     }
/// });
/// assert_eq!(sum.into_inner(), 55);
/// ```
///
/// but nothing that ends with the body:
///
/// ```compile_fail,E0373
/// filch_pool::scope(|scope| {
///     let short = String::from("gone too soon");
///     scope.spawn(|_| assert_eq!(short.len(), 13));
/// });
/// ```
///
/// and the scope itself cannot be smuggled out:
///
/// ```compile_fail,E0521
/// let mut kept = None;
/// filch_pool::scope(|scope| kept = Some(scope));
/// ```
///
/// If the body or a task panics, the rest still ends first; then the panic goes on from here.
pub fn scope<'scope, R: Send>(body: impl FnOnce(&Scope<'scope>) -> R + Send) -> R {
    let Some(worker) = worker::current() else {
        return crate::global().scope(body);
    };
    let scope = Scope { core: Core::new(worker), marker: PhantomData };
    let core = &scope.core;
    let mark = worker.open_scope(core);
    let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    worker.wait_for_scope(core, mark);
    worker.close_scope(core.parent);
    match (result, core.take_panic()) {
        (Ok(result), None) => result,
        (Err(payload), _) | (Ok(_), Some(payload)) => resume_unwind(payload),
    }
}

impl Core {
    fn new(worker: &Worker) -> Self {
        Self {
            worker,
            owner: worker.index(),
            registry: &raw const **worker.registry(),
            parent: worker.current_scope(),
            tally: Tally::new(),
            panic: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Whether this worker's thread is the owner's.
    #[inline]
    fn is_owned_by(&self, worker: Option<&Worker>) -> bool {
        worker.is_some_and(|worker| ptr::eq(worker, self.worker))
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The worker that waits.
    pub(crate) fn owner(&self) -> usize {
        self.owner
    }

    /// Wakes those who wait for this scope and the ones around it: there is a new task they can run.
    #[cold]
    fn tell_owners(&self, registry: &Registry) {
        let mut scope = ptr::from_ref(self);
        while !scope.is_null() {
            // SAFETY: the caller keeps this scope from ending, and its ancestors live longer.
            let (owner, parent) = unsafe { ((*scope).owner, (*scope).parent) };
            registry.tell(owner);
            scope = parent;
        }
    }

    /// Whether this scope is `other` or was opened, at whatever depth, by a task of it.
    pub(crate) fn descends_from(&self, other: *const Self) -> bool {
        let mut scope = ptr::from_ref(self);
        while !scope.is_null() && scope != other {
            // SAFETY: a scope's ancestors live longer than the scope.
            scope = unsafe { (*scope).parent };
        }
        !scope.is_null()
    }

    fn keep_panic(&self, payload: Payload) {
        let boxed = Box::into_raw(Box::new(payload));
        let kept = self.panic.compare_exchange(ptr::null_mut(), boxed, Ordering::AcqRel, Ordering::Relaxed);
        if kept.is_err() {
            // SAFETY: made just above, and nobody else saw it.
            quiet::discard(unsafe { Box::from_raw(boxed) });
        }
    }

    fn take_panic(&self) -> Option<Payload> {
        let boxed = self.panic.load(Ordering::Acquire);
        // SAFETY: made by `keep_panic`; all tasks have ended, so this is the only look at it.
        (!boxed.is_null()).then(|| *unsafe { Box::from_raw(boxed) })
    }

    /// # Safety
    /// `this` is alive, and the caller ended one of its tasks. It may be gone afterwards.
    #[inline]
    unsafe fn end_one(this: *const Self, worker: &Worker) {
        // SAFETY: alive, because our task is still counted.
        unsafe {
            let (owner, ours) = ((*this).owner, (*this).is_owned_by(Some(worker)));
            if Tally::end(&raw const (*this).tally, ours) {
                worker.registry().rouse(owner);
            }
        }
    }
}

/// A task of a scope.
#[repr(C)]
struct Scoped<F> {
    task: Task,
    body: F,
}

impl<'scope> Scope<'scope> {
    /// Queues a task. It gets the scope, to spawn more.
    #[inline]
    pub fn spawn<F: FnOnce(&Scope<'scope>) + Send + 'scope>(&self, body: F) {
        let core = &self.core;
        let worker = worker::current();
        let task = Task { run: Self::run::<F>, scope: core };
        let task: *mut Task = blocks::put(Scoped { task, body }).cast();
        let ours = core.is_owned_by(worker);
        // SAFETY: the worker is this thread's.
        unsafe { core.tally.add(ours) };
        // SAFETY: whoever can reach the scope keeps it from ending, and the scope's worker keeps the registry.
        let registry = unsafe { &*core.registry };
        match worker.filter(|worker| ours || worker.is_of(registry)) {
            Some(worker) => worker.push(task, Lane::Awaited),
            None => registry.spawn_outside(task, Lane::Awaited),
        }
        if registry.listeners.count() > 0 {
            core.tell_owners(registry);
        }
    }

    unsafe fn run<F: FnOnce(&Scope<'scope>) + Send + 'scope>(task: *mut Task, worker: &Worker, _: Fate) -> bool {
        // SAFETY: made by `spawn`, with the header first, and consumed here once.
        let Scoped { task, body } = unsafe { blocks::take_out(task.cast::<Scoped<F>>()) };
        // SAFETY: a scope is its core. It waits for this task, so it is alive until `end_one` below.
        let scope = unsafe { &*task.scope.cast::<Self>() };
        let outer = worker.enter_scope(task.scope);
        let watched = || {
            let _watch = worker.registry().watch();
            body(scope);
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(watched)) {
            scope.core.keep_panic(payload);
        }
        worker.close_scope(outer);
        // SAFETY: alive until the count drops, and this task ended.
        unsafe { Core::end_one(task.scope, worker) };
        true
    }
}
