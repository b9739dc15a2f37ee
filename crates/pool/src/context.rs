//! Fork and join: the context that carries the deque's tail, and the thread-local way to the same thing.
//!
//! A fork is a store and a predicted branch; a join that was not stolen is another. The forked closure lies on the stack.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use crate::deque::{Deque, Header, Slot};
use crate::quiet;
use crate::registry::Payload;
use crate::worker::{self, Worker};

/// A place to fork from: proof that the code runs on a worker, and where its next fork goes.
///
/// It is passed by value and belongs to one closure: a fork hands each arm a fresh one.
///
/// ```
/// use filch_pool::{Ctx, Pool};
///
/// fn fib(mut ctx: Ctx<'_>, n: u64) -> u64 {
///     if n < 2 {
///         return n;
///     }
///     let (a, b) = ctx.join(move |ctx| fib(ctx, n - 1), move |ctx| fib(ctx, n - 2));
///     a + b
/// }
///
/// let pool = Pool::builder().threads(2).build().unwrap();
/// assert_eq!(pool.run(|ctx| fib(ctx, 15)), 610);
/// ```
///
/// It cannot be taken to another thread, nor used inside an arm of its own fork:
///
/// ```compile_fail,E0277
/// # use filch_pool::Ctx;
/// fn twice(mut ctx: Ctx<'_>) {
///     ctx.join(|_| { ctx.join(|_| (), |_| ()); }, |_| ());
/// }
/// ```
pub struct Ctx<'worker> {
    deque: &'worker Deque,
    tail: *const Slot,
    /// Neither Send nor Sync: it stands for a place on this thread's stack.
    here: PhantomData<*mut ()>,
}

/// A forked closure, waiting on the stack of the worker that forked it. The header comes first: the deque knows only it.
#[repr(C)]
struct StackJob<B, R> {
    header: Header,
    body: UnsafeCell<ManuallyDrop<B>>,
    result: UnsafeCell<MaybeUninit<Result<R, Payload>>>,
}

impl<B, R> StackJob<B, R>
where
    B: FnOnce(Ctx<'_>) -> R + Send,
    R: Send,
{
    #[inline(always)]
    fn new(body: B) -> Self {
        Self {
            header: Header::new(Self::run),
            body: UnsafeCell::new(ManuallyDrop::new(body)),
            result: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    #[inline(always)]
    fn header(&self) -> *const Header {
        ptr::from_ref(self).cast()
    }

    /// # Safety
    /// Nobody else runs or drops the body, now or later.
    #[inline(always)]
    unsafe fn take_body(&self) -> B {
        // SAFETY: the caller's promise.
        unsafe { ManuallyDrop::take(&mut *self.body.get()) }
    }

    /// What a thief calls.
    unsafe fn run(job: *const Header, worker: *const (), tail: *const Slot) {
        // SAFETY: the header is the first field of a live `StackJob<B, R>`, and the thief alone may run it.
        let this = unsafe { &*job.cast::<Self>() };
        // SAFETY: `run_job` passes itself, and it outlives the call.
        let worker = unsafe { &*worker.cast::<Worker>() };
        // SAFETY: stealing made the body the thief's.
        let body = unsafe { this.take_body() };
        let result = catch_unwind(AssertUnwindSafe(|| body(Ctx::at(worker.deque(), tail))));
        // SAFETY: the owner looks at the result only after the latch is set, which happens after this.
        unsafe { (*this.result.get()).write(result) };
    }

    /// What the owner does when the fast way to take the job back is closed: takes it back all the same, or waits for
    /// the thief. `None` if the job is still to be run, by the caller.
    ///
    /// # Safety
    /// Only the owner calls it. The job is the newest fork, in `slot`.
    #[cold]
    #[inline(never)]
    unsafe fn take_back(&self, deque: &Deque, slot: *const Slot) -> Option<Result<R, Payload>> {
        // SAFETY: the caller's promise; after the wait the latch is set, and the thief wrote the result before.
        unsafe {
            // A context exists only on a worker's thread; nothing else can be here.
            let Some(worker) = worker::current() else { std::process::abort() };
            if deque.pop_slow(slot) {
                if deque.has_public() {
                    worker.registry().shared_fork(worker.index());
                }
                return None;
            }
            worker.wait_for_job(self.header(), slot.wrapping_add(1));
            deque.reset(slot);
            Some((*self.result.get()).assume_init_read())
        }
    }

    /// The result of the second arm after the fast way to take it back was closed.
    ///
    /// # Safety
    /// As for `take_back`.
    #[cold]
    #[inline(never)]
    unsafe fn finish(&self, deque: &Deque, slot: *const Slot) -> R {
        // SAFETY: the caller's promise; without a result the body is ours to run.
        match unsafe { self.take_back(deque, slot) } {
            // SAFETY: as above.
            None => (unsafe { self.take_body() })(Ctx::at(deque, slot)),
            Some(Ok(second)) => second,
            Some(Err(payload)) => resume_unwind(payload),
        }
    }

    /// Ends the fork after its first arm panicked, and lets the panic go on. It never returns: the result type says
    /// only that the compiler is not to know (see `Ctx::join`).
    ///
    /// # Safety
    /// As for `take_back`.
    #[cold]
    #[inline(never)]
    unsafe fn abandon<RA>(&self, deque: &Deque, slot: *const Slot, payload: Payload) -> RA {
        // SAFETY: the caller's promise.
        unsafe {
            if deque.pop_private(slot) {
                quiet::discard(self.take_body());
            } else {
                match self.take_back(deque, slot) {
                    None => quiet::discard(self.take_body()),
                    // The first panic wins; the second arm's outcome is dropped with whatever it carries.
                    Some(outcome) => quiet::discard(outcome),
                }
            }
        }
        resume_unwind(payload)
    }
}

impl<'worker> Ctx<'worker> {
    #[inline(always)]
    pub(crate) fn at(deque: &'worker Deque, tail: *const Slot) -> Self {
        Self { deque, tail, here: PhantomData }
    }

    /// Runs both closures, perhaps in parallel: `a` here, `b` here too unless an idle worker takes it.
    ///
    /// If one panics, the panic goes on from here once nobody runs the other; if both do, `a`'s. If `a` panics before anybody has
    /// taken `b`, `b` is not run.
    #[inline(always)]
    pub fn join<A, B, RA, RB>(&mut self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce(Ctx<'_>) -> RA + Send,
        B: FnOnce(Ctx<'_>) -> RB + Send,
        RA: Send,
        RB: Send,
    {
        // SAFETY: a context is used on its worker's thread only and its tail is the true one: it is borrowed here, so no
        // older one can fork before this returns.
        unsafe { fork::<false, _, _, _, _>(self.deque, self.tail, a, b) }
    }

    /// A context for a call that takes one, so that there is still one afterwards.
    ///
    /// ```
    /// # use filch_pool::{Ctx, Pool};
    /// # fn sum(_: Ctx<'_>, numbers: &[u64]) -> u64 { numbers.iter().sum() }
    /// fn sums(mut ctx: Ctx<'_>, lists: &[Vec<u64>]) -> Vec<u64> {
    ///     lists.iter().map(|list| sum(ctx.reborrow(), list)).collect()
    /// }
    /// # let pool = Pool::builder().threads(1).build().unwrap();
    /// assert_eq!(pool.run(|ctx| sums(ctx, &[vec![1, 2], vec![3]])), [3, 3]);
    /// ```
    #[inline(always)]
    pub fn reborrow(&mut self) -> Ctx<'_> {
        // The tail stays the true one: this context is borrowed for as long as the new one lives.
        Ctx::at(self.deque, self.tail)
    }

    /// Whether an idle worker asked this one for work.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.deque.is_wanted()
    }
}

/// Forks `b` off, runs `a` with the tail above it, and takes `b` back or waits for it.
///
/// With `HINT` it keeps the deque's hint of the tail where the next one to search will find it.
///
/// # Safety
/// Only the deque's owner calls it, with the true tail.
#[inline(always)]
unsafe fn fork<const HINT: bool, A, B, RA, RB>(deque: &Deque, tail: *const Slot, a: A, b: B) -> (RA, RB)
where
    A: FnOnce(Ctx<'_>) -> RA,
    B: FnOnce(Ctx<'_>) -> RB + Send,
    RB: Send,
{
    let kept = MaybeUninit::new(b);
    // The job is made before it is known whether the fork is an easy one, in the only place where it will lie. A second way
    // that takes the closures along would have them in memory before the job, and copied from there.
    // SAFETY: just written. Of the two copies `both` uses one.
    let job = StackJob::new(unsafe { kept.assume_init_read() });
    // SAFETY: the caller's promise; `both` takes the job back before it goes away.
    unsafe {
        let next = if deque.may_push(tail) {
            deque.push(tail, job.header());
            tail.wrapping_add(1)
        } else {
            push_slow(deque, tail, job.header())
        };
        both::<HINT, _, _, _, _>(deque, tail, next, a, kept, &job)
    }
}

/// Forks when somebody wants work or there is no room; returns the tail for the first arm.
///
/// Without room that is the tail as it was. Nobody sees the job then: it will be taken back from the slot behind the last,
/// which is always empty.
///
/// # Safety
/// As for `fork`; the job stays where it is as `Deque::push` wants it.
#[cold]
#[inline(never)]
unsafe fn push_slow(deque: &Deque, tail: *const Slot, job: *const Header) -> *const Slot {
    // SAFETY: the caller's promise.
    let fits = unsafe { deque.push_slow(tail, job) };
    // Without room for this one, others may have been put out all the same.
    if (fits || deque.has_public())
        && let Some(worker) = worker::current()
    {
        worker.registry().shared_fork(worker.index());
    }
    tail.wrapping_add(usize::from(fits))
}

/// The most bytes of a closure that the owner reads back from the job.
const READ_BACK: usize = 16;

/// The two arms of a fork, the second in `slot`; `next` is the tail for the first. `kept` is a copy of the job's body: the
/// owner runs one of them, and neither if somebody else ran the job.
///
/// # Safety
/// As for `fork`; the job is in the slot, the newest, or nobody sees it.
#[inline(always)]
unsafe fn both<const HINT: bool, A, B, RA, RB>(
    deque: &Deque,
    slot: *const Slot,
    next: *const Slot,
    a: A,
    kept: MaybeUninit<B>,
    job: &StackJob<B, RB>,
) -> (RA, RB)
where
    A: FnOnce(Ctx<'_>) -> RA,
    B: FnOnce(Ctx<'_>) -> RB + Send,
    RB: Send,
{
    if HINT {
        deque.set_hint(next);
    }
    // The panic of the first arm is caught and goes on from `abandon`, which the compiler must take for a function that
    // returns. Code that only unwinds or never returns would keep it from saving registers as late as it can, and every
    // leaf of the recursion would pay for that: a quarter of all instructions in a tree of small forks.
    let first = match catch_unwind(AssertUnwindSafe(|| a(Ctx::at(deque, next)))) {
        Ok(first) => first,
        // SAFETY: the fork is the newest again.
        Err(payload) => unsafe { black_box(StackJob::abandon as Abandon<B, RB, RA>)(job, deque, slot, payload) },
    };
    if HINT {
        deque.set_hint(slot);
    }
    // SAFETY: the fork is the newest again, and once it is taken back its body is ours.
    unsafe {
        if deque.pop_private(slot) {
            // A large closure is copied out of the job in words larger than those it was written in. A processor waits with
            // such a load until the stores are done, which costs more than all the rest; the other copy may be in registers.
            let b = if size_of::<B>() > READ_BACK { kept.assume_init() } else { job.take_body() };
            (first, b(Ctx::at(deque, slot)))
        } else {
            (first, job.finish(deque, slot))
        }
    }
}

type Abandon<B, RB, RA> = unsafe fn(&StackJob<B, RB>, &Deque, *const Slot, Payload) -> RA;

/// Runs both closures, perhaps in parallel, and returns both results.
///
/// On a worker it forks there; elsewhere it enters the global pool. [`Ctx::join`] is the faster way for tiny bodies.
///
/// ```
/// let (a, b) = filch_pool::join(|| 1 + 1, || 2 + 2);
/// assert_eq!((a, b), (2, 4));
/// ```
#[inline(always)]
pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA + Send,
    B: FnOnce() -> RB + Send,
    RA: Send,
    RB: Send,
{
    // Both in one value, which is put together only then: as two they would be in memory from the beginning.
    let Some(deque) = worker::current_deque() else { return join_outside((a, b)) };
    // SAFETY: this is the owner's thread, and the tail is the true one.
    unsafe { fork::<true, _, _, _, _>(deque, deque.tail(), move |_| a(), move |_| b()) }
}

#[cold]
#[inline(never)]
fn join_outside<A, B, RA, RB>((a, b): (A, B)) -> (RA, RB)
where
    A: FnOnce() -> RA + Send,
    B: FnOnce() -> RB + Send,
    RA: Send,
    RB: Send,
{
    crate::global().run(move |mut ctx| ctx.join(|_| a(), |_| b()))
}

/// Calls `body` with a context: right here on a worker, else on one of the global pool.
#[inline]
pub fn run<R: Send>(body: impl FnOnce(Ctx<'_>) -> R + Send) -> R {
    match worker::current_deque() {
        Some(deque) => {
            let tail = deque.tail();
            // Contexts do not say how deep they are. Who comes here again and again searches only once.
            deque.set_hint(tail);
            body(Ctx::at(deque, tail))
        }
        None => crate::global().run(body),
    }
}
