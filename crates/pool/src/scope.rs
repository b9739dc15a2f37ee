//! Scopes: tasks that may borrow what outlives the scope, because the scope waits for them.
//!
//! The waiting worker runs tasks of its own scope and no others.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use crate::latch::Latch;
use crate::registry::{Payload, Registry};
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, lock};
use crate::task::{Detached, Lane};
use crate::worker;

/// Spawns tasks that end before the scope does. See [`scope`].
pub struct Scope<'scope> {
    registry: Arc<Registry>,
    /// The worker that waits.
    owner: usize,
    /// Tasks not yet ended, and one for the body.
    pending: AtomicUsize,
    latch: Latch,
    panic: Mutex<Option<Payload>>,
    /// Invariant in `'scope`, as anything is that takes closures of that lifetime.
    #[expect(clippy::type_complexity)]
    marker: PhantomData<Box<dyn FnOnce(&Scope<'scope>) + Send + Sync + 'scope>>,
}

/// A scope's address on its way to another thread.
struct Pointer<'scope>(*const Scope<'scope>);
// SAFETY: a scope is Sync, and it outlives its tasks.
unsafe impl Send for Pointer<'_> {}

impl<'scope> Pointer<'scope> {
    /// Takes the whole value, so that a closure captures it and not the bare pointer inside.
    fn get(self) -> *const Scope<'scope> {
        self.0
    }
}

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
/// ```compile_fail
/// filch_pool::scope(|scope| {
///     let short = String::from("gone too soon");
///     scope.spawn(|_| assert_eq!(short.len(), 13));
/// });
/// ```
///
/// and the scope itself cannot be smuggled out:
///
/// ```compile_fail
/// let mut kept = None;
/// filch_pool::scope(|scope| kept = Some(scope));
/// ```
///
/// If the body or a task panics, the rest still ends first; then the panic goes on from here.
pub fn scope<'scope, R: Send>(body: impl FnOnce(&Scope<'scope>) -> R + Send) -> R {
    let Some(worker) = worker::current() else {
        return crate::global().scope(body);
    };
    let scope = Scope {
        registry: Arc::clone(worker.registry()),
        owner: worker.index(),
        pending: AtomicUsize::new(1),
        latch: Latch::new(),
        panic: Mutex::new(None),
        marker: PhantomData,
    };
    let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    // SAFETY: the scope is alive; the body's share is given back once.
    unsafe { Scope::end_one(&scope, &scope.registry) };
    worker.wait_for_scope(&scope.latch, ptr::from_ref(&scope).cast());
    let panic = lock(&scope.panic).take();
    match (result, panic) {
        (Ok(result), None) => result,
        (Err(payload), _) | (Ok(_), Some(payload)) => resume_unwind(payload),
    }
}

impl<'scope> Scope<'scope> {
    /// Queues a task. It gets the scope, to spawn more.
    pub fn spawn(&self, body: impl FnOnce(&Scope<'scope>) + Send + 'scope) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        let pointer = Pointer(self);
        let run = move |registry: &Registry| {
            let pointer = pointer.get();
            // SAFETY: the scope waits for this task, so it is alive until `end_one` below.
            let scope = unsafe { &*pointer };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| {
                let _watch = registry.watch();
                body(scope);
            })) {
                lock(&scope.panic).get_or_insert(payload);
            }
            // The registry is kept alive by the worker that runs this; the scope may be gone before the wake-up.
            // SAFETY: alive until the count drops, and this task's share is given back once.
            unsafe { Scope::end_one(pointer, registry) };
        };
        self.registry.spawn(Detached::boxed(run, ptr::from_ref(self).cast()), Lane::Awaited);
    }

    /// # Safety
    /// `this` is alive, and the caller held one of the pending shares. It may be gone afterwards. `registry` is the
    /// scope's own, kept alive by the caller.
    unsafe fn end_one(this: *const Self, registry: &Registry) {
        // SAFETY: alive, because our share is still counted.
        let (pending, owner, latch) = unsafe { (&(*this).pending, (*this).owner, &raw const (*this).latch) };
        // AcqRel: what every task did is visible to whoever sees the latch set.
        if pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the waiter leaves only after the latch is set, so it is still alive.
            let sleeping = unsafe { Latch::set(latch) };
            if let (true, Some(thread)) = (sleeping, registry.seats[owner].thread.get()) {
                thread.unpark();
            }
        }
    }
}
