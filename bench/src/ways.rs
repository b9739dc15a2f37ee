//! The ways of forking that are compared, behind one trait: a work is written once and runs in all of them.
//!
//! Every way runs the first arm first. chili begins with its second, so it is given the arms in the other order.

use std::hint::black_box;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use filch_pool::Ctx;

/// The systems with one number of threads.
#[derive(Clone)]
pub struct Systems {
    /// How many threads each of them has.
    pub threads: usize,
    /// The pool this is all about.
    pub filch: Arc<filch_pool::Pool>,
    /// The usual choice.
    pub rayon: Arc<rayon::ThreadPool>,
    /// The one with the cheapest forks.
    pub chili: Arc<chili::ThreadPool>,
    /// An async runtime.
    pub tokio: Arc<tokio::runtime::Runtime>,
    /// Another one.
    pub smol: Arc<async_executor::Executor<'static>>,
}

impl Systems {
    /// Starts all of them. chili counts the calling thread as one of its own.
    ///
    /// # Errors
    /// If one refuses to start.
    pub fn new(threads: usize) -> Result<Self> {
        const STACK: usize = 64 << 20;
        let smol = Arc::new(async_executor::Executor::new());
        for _ in 0..threads {
            let smol = Arc::clone(&smol);
            thread::spawn(move || futures_lite::future::block_on(smol.run(std::future::pending::<()>())));
        }
        let chili = chili::Config { thread_count: NonZero::new(threads), ..chili::Config::default() };
        Ok(Self {
            threads,
            filch: Arc::new(filch_pool::Pool::builder().threads(threads).stack_size(STACK).build()?),
            rayon: Arc::new(rayon::ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build()?),
            chili: Arc::new(chili::ThreadPool::with_config(chili)),
            tokio: Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build()?),
            smol,
        })
    }
}

/// A way of forking.
pub trait Way: 'static {
    /// What the system is called in the results.
    const NAME: &'static str;
    /// What a fork needs to be handed down.
    type Place<'a, 'b: 'a>;

    /// Runs both arms, perhaps in parallel, the first one first.
    fn join<A: Send, B: Send>(
        place: &mut Self::Place<'_, '_>,
        a: impl FnOnce(Self::Place<'_, '_>) -> A + Send,
        b: impl FnOnce(Self::Place<'_, '_>) -> B + Send,
    ) -> (A, B);

    /// The same place for a call, so that it is still there afterwards.
    fn again<'a, 'b: 'a>(place: &'a mut Self::Place<'_, 'b>) -> Self::Place<'a, 'b>;

    /// Does the work several times, after entering the system once.
    fn run(systems: &Systems, work: impl Work, times: usize) -> u64;
}

/// One arm after the other, nothing else.
pub struct Serial;
/// filch with the context.
pub struct FilchCtx;
/// filch, thread-local.
pub struct FilchJoin;
/// rayon.
pub struct Rayon;
/// chili.
pub struct Chili;

impl Way for Serial {
    const NAME: &'static str = "serial";
    type Place<'a, 'b: 'a> = ();

    #[inline(always)]
    fn join<A, B>(_: &mut (), a: impl FnOnce(()) -> A, b: impl FnOnce(()) -> B) -> (A, B) {
        (a(()), b(()))
    }

    #[inline(always)]
    fn again<'a, 'b: 'a>((): &'a mut ()) {}

    fn run(_: &Systems, work: impl Work, times: usize) -> u64 {
        repeat::<Self, _>((), work, times)
    }
}

impl Way for FilchCtx {
    const NAME: &'static str = "filch_ctx";
    type Place<'a, 'b: 'a> = Ctx<'a>;

    #[inline(always)]
    fn join<A: Send, B: Send>(
        place: &mut Ctx<'_>,
        a: impl FnOnce(Ctx<'_>) -> A + Send,
        b: impl FnOnce(Ctx<'_>) -> B + Send,
    ) -> (A, B) {
        place.join(a, b)
    }

    #[inline(always)]
    fn again<'a, 'b: 'a>(place: &'a mut Ctx<'_>) -> Ctx<'a> {
        place.reborrow()
    }

    fn run(systems: &Systems, work: impl Work, times: usize) -> u64 {
        systems.filch.run(|place| repeat::<Self, _>(place, work, times))
    }
}

impl Way for FilchJoin {
    const NAME: &'static str = "filch_join";
    type Place<'a, 'b: 'a> = ();

    #[inline(always)]
    fn join<A: Send, B: Send>(_: &mut (), a: impl FnOnce(()) -> A + Send, b: impl FnOnce(()) -> B + Send) -> (A, B) {
        filch_pool::join(|| a(()), || b(()))
    }

    #[inline(always)]
    fn again<'a, 'b: 'a>((): &'a mut ()) {}

    fn run(systems: &Systems, work: impl Work, times: usize) -> u64 {
        systems.filch.install(|| repeat::<Self, _>((), work, times))
    }
}

impl Way for Rayon {
    const NAME: &'static str = "rayon";
    type Place<'a, 'b: 'a> = ();

    #[inline(always)]
    fn join<A: Send, B: Send>(_: &mut (), a: impl FnOnce(()) -> A + Send, b: impl FnOnce(()) -> B + Send) -> (A, B) {
        rayon::join(|| a(()), || b(()))
    }

    #[inline(always)]
    fn again<'a, 'b: 'a>((): &'a mut ()) {}

    fn run(systems: &Systems, work: impl Work, times: usize) -> u64 {
        systems.rayon.install(|| repeat::<Self, _>((), work, times))
    }
}

impl Way for Chili {
    const NAME: &'static str = "chili";
    type Place<'a, 'b: 'a> = &'a mut chili::Scope<'b>;

    #[inline(always)]
    fn join<A: Send, B: Send>(
        place: &mut &mut chili::Scope<'_>,
        a: impl FnOnce(&mut chili::Scope<'_>) -> A + Send,
        b: impl FnOnce(&mut chili::Scope<'_>) -> B + Send,
    ) -> (A, B) {
        let (b, a) = place.join(b, a);
        (a, b)
    }

    #[inline(always)]
    fn again<'a, 'b: 'a>(place: &'a mut &mut chili::Scope<'b>) -> &'a mut chili::Scope<'b> {
        place
    }

    fn run(systems: &Systems, work: impl Work, times: usize) -> u64 {
        repeat::<Self, _>(&mut systems.chili.scope(), work, times)
    }
}

/// Something to do by forking, in whatever way.
pub trait Work: Copy + Send + Sync + 'static {
    /// Does it and returns a number that proves it.
    fn work<W: Way>(self, place: W::Place<'_, '_>) -> u64;
}

/// Does the work several times; returns the sum of what came out.
fn repeat<W: Way, K: Work>(mut place: W::Place<'_, '_>, work: K, times: usize) -> u64 {
    // Each time it must look like another work, or the compiler does it once.
    (0..times).map(|_| black_box(work).work::<W>(W::again(&mut place))).sum()
}
