//! Fork and join: the context that carries the deque's tail, and the thread-local way to the same thing.
//!
//! A fork is a store and a predicted branch; a join that was not stolen is another. The forked closure lies on the stack.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit, forget};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use crate::deque::{Deque, Header};
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
/// ```compile_fail
/// # use filch_pool::Ctx;
/// fn twice(mut ctx: Ctx<'_>) {
///     ctx.join(|_| { ctx.join(|_| (), |_| ()); }, |_| ());
/// }
/// ```
pub struct Ctx<'worker> {
    deque: &'worker Deque,
    tail: u32,
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
    #[inline]
    fn new(body: B) -> Self {
        Self {
            header: Header::new(Self::run),
            body: UnsafeCell::new(ManuallyDrop::new(body)),
            result: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    #[inline]
    fn header(&self) -> *const Header {
        ptr::from_ref(self).cast()
    }

    /// # Safety
    /// Nobody else runs or drops the body, now or later.
    #[inline]
    unsafe fn take_body(&self) -> B {
        // SAFETY: the caller's promise.
        unsafe { ManuallyDrop::take(&mut *self.body.get()) }
    }

    /// # Safety
    /// The job was stolen and its latch is set; called once.
    unsafe fn take_result(&self) -> Result<R, Payload> {
        // SAFETY: the thief wrote the result before it set the latch.
        unsafe { (*self.result.get()).assume_init_read() }
    }

    /// What a thief calls.
    unsafe fn run(job: *const Header, worker: *const (), tail: u32) {
        // SAFETY: the header is the first field of a live `StackJob<B, R>`, and the thief alone may run it.
        let this = unsafe { &*job.cast::<Self>() };
        // SAFETY: `run_job` passes itself, and it outlives the call.
        let worker = unsafe { &*worker.cast::<Worker>() };
        // SAFETY: stealing made the body the thief's.
        let body = unsafe { this.take_body() };
        let result = catch_unwind(AssertUnwindSafe(|| body(Ctx::new(worker, tail))));
        // SAFETY: the owner looks at the result only after the latch is set, which happens after this.
        unsafe { (*this.result.get()).write(result) };
    }
}

/// Takes a fork back when its first arm panics.
struct Abandon<'a, B, R>
where
    B: FnOnce(Ctx<'_>) -> R + Send,
    R: Send,
{
    deque: &'a Deque,
    index: u32,
    job: &'a StackJob<B, R>,
}

impl<B, R> Drop for Abandon<'_, B, R>
where
    B: FnOnce(Ctx<'_>) -> R + Send,
    R: Send,
{
    // Inlined, so that the three fields stay in registers as long as nothing unwinds.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: we are on the owner's thread, unwinding out of the first arm, so the fork is the newest.
        unsafe { abandon(self.deque, self.index, self.job) };
    }
}

/// # Safety
/// Only the owner calls it, and the job is the newest fork, in slot `index`.
#[cold]
#[inline(never)]
unsafe fn abandon<B, R>(deque: &Deque, index: u32, job: &StackJob<B, R>)
where
    B: FnOnce(Ctx<'_>) -> R + Send,
    R: Send,
{
    // SAFETY: the caller's promise; a job that was popped is ours to drop.
    unsafe {
        if deque.pop(index) {
            drop(job.take_body());
        } else {
            // The first panic wins; the second arm's outcome is dropped with whatever it carries.
            drop(wait_for_stolen(deque, index, job));
        }
    }
}

/// # Safety
/// `deque.pop(index)` returned false for this very job.
#[cold]
#[inline(never)]
unsafe fn wait_for_stolen<B, R>(deque: &Deque, index: u32, job: &StackJob<B, R>) -> Result<R, Payload>
where
    B: FnOnce(Ctx<'_>) -> R + Send,
    R: Send,
{
    // A context exists only on a worker's thread; nothing else can be here.
    let Some(worker) = worker::current() else { std::process::abort() };
    // SAFETY: the caller's promise; after the wait the latch is set.
    unsafe {
        worker.wait_for_job(job.header(), index + 1);
        deque.reset(index);
        job.take_result()
    }
}

impl<'worker> Ctx<'worker> {
    #[inline]
    pub(crate) fn new(worker: &'worker Worker, tail: u32) -> Self {
        Self::at(&worker.seat().deque, tail)
    }

    #[inline]
    fn at(deque: &'worker Deque, tail: u32) -> Self {
        Self { deque, tail, here: PhantomData }
    }

    /// Runs both closures, perhaps in parallel: `a` here, `b` here too unless an idle worker takes it.
    ///
    /// If one panics, the panic goes on from here once both have ended; if both do, `a`'s.
    #[inline]
    pub fn join<A, B, RA, RB>(&mut self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce(Ctx<'_>) -> RA + Send,
        B: FnOnce(Ctx<'_>) -> RB + Send,
        RA: Send,
        RB: Send,
    {
        let (deque, index) = (self.deque, self.tail);
        let job = StackJob::new(b);
        // SAFETY: a context is used on its worker's thread only and its tail is the true one: it is borrowed here, so no
        // older one can fork before this returns. Every way out below takes the job back first.
        if !unsafe { deque.push(index, job.header()) } {
            // SAFETY: the job never became visible.
            let b = unsafe { job.take_body() };
            let first = a(Ctx::at(deque, index));
            return (first, b(Ctx::at(deque, index)));
        }
        let abandon = Abandon { deque, index, job: &job };
        let first = a(Ctx::at(deque, index + 1));
        forget(abandon);
        // SAFETY: the fork is the newest again, and after a successful pop its body is ours.
        if unsafe { deque.pop(index) } {
            // SAFETY: as above.
            let body = unsafe { job.take_body() };
            return (first, body(Ctx::at(deque, index)));
        }
        // SAFETY: `pop` just said that it was stolen.
        match unsafe { wait_for_stolen(deque, index, &job) } {
            Ok(second) => (first, second),
            Err(payload) => {
                drop(first);
                resume_unwind(payload)
            }
        }
    }

    /// Whether an idle worker asked this one for work.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.deque.is_wanted()
    }
}

/// Runs both closures, perhaps in parallel, and returns both results.
///
/// On a worker it forks there; elsewhere it enters the global pool. [`Ctx::join`] is the faster way for tiny bodies.
///
/// ```
/// let (a, b) = filch_pool::join(|| 1 + 1, || 2 + 2);
/// assert_eq!((a, b), (2, 4));
/// ```
#[inline]
pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA + Send,
    B: FnOnce() -> RB + Send,
    RA: Send,
    RB: Send,
{
    run(move |mut ctx| ctx.join(|_| a(), |_| b()))
}

/// Calls `body` with a context: right here on a worker, else on one of the global pool.
#[inline]
pub fn run<R: Send>(body: impl FnOnce(Ctx<'_>) -> R + Send) -> R {
    match worker::current() {
        Some(worker) => worker.with_tail(|tail| body(Ctx::new(worker, tail))),
        None => crate::global().run(body),
    }
}
