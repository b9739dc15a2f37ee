//! Tasks somebody waits for: the handle blocks, or is polled as a future; a token cancels what has not started.
//!
//! A worker that waits for a task nobody started yet runs it itself; if somebody did, it helps with that one's forks.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::listen::News;
use crate::quiet::{self, Unheard};
use crate::registry::{Payload, Registry};
use crate::sync::{Arc as Shared, AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, lock};
use crate::task::{Fate, Task};
use crate::wait::Awaited;
use crate::worker::{self, Worker};

/// The task was cancelled, or its pool ended before it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the task was cancelled before it started")
    }
}

impl std::error::Error for Cancelled {}

/// Cancels tasks that have not started. Clones are the same token.
///
/// ```
/// use filch_pool::{CancelToken, Cancelled, Pool};
///
/// let pool = Pool::builder().threads(1).build().unwrap();
/// let token = CancelToken::new();
/// token.cancel();
/// assert_eq!(pool.task().token(&token).spawn(|| 1).join(), Err(Cancelled));
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that cancels nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Skips every task with this token that has not started.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was cancelled; long tasks may ask.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

enum Outcome<R> {
    Waiting(Option<Waker>),
    Ended(Result<R, Payload>),
    Cancelled,
    Taken,
}

/// Where the result of a task arrives.
struct Packet<R> {
    outcome: Mutex<Outcome<R>>,
    arrived: Condvar,
    /// Set with the outcome, so that asking needs no lock.
    ready: AtomicBool,
}

impl<R> Packet<R> {
    /// The outcome, once it is there.
    fn take(&self) -> Outcome<R> {
        std::mem::replace(&mut *lock(&self.outcome), Outcome::Taken)
    }

    /// Has the end wake this one, and no other; false if it was before. A waker is a user's code, also when it is dropped: the
    /// lock is not held then.
    fn wake_by(&self, waker: Waker) -> bool {
        let before = match &mut *lock(&self.outcome) {
            Outcome::Waiting(place) => Ok(place.replace(waker)),
            Outcome::Ended(_) | Outcome::Cancelled | Outcome::Taken => Err(waker),
        };
        before.is_ok()
    }

    fn settle(&self, outcome: Outcome<R>) {
        let before = {
            let mut place = lock(&self.outcome);
            self.ready.store(true, Ordering::Release);
            std::mem::replace(&mut *place, outcome)
        };
        self.arrived.notify_all();
        if let Outcome::Waiting(Some(waker)) = before {
            quiet::call(|| waker.wake());
        }
    }
}

const QUEUED: u32 = 0;
const STARTED: u32 = 1;

const NOBODY_YET: u64 = u64::MAX;

/// A task with a handle: in a queue and in its handle's hands at the same time; whoever claims it first runs it.
#[repr(C)]
struct Handled<F, R> {
    task: Task,
    claim: AtomicU32,
    /// The worker that runs it and its tail at the start, or `NOBODY_YET`.
    runner: AtomicU64,
    body: UnsafeCell<Option<F>>,
    token: Option<CancelToken>,
    packet: Packet<R>,
}

// SAFETY: the body is touched only by whoever won the claim, and is Send; the packet is behind a lock.
unsafe impl<F: Send, R: Send> Sync for Handled<F, R> {}
// SAFETY: the raw pointer in the header is null, and all else is Send.
unsafe impl<F: Send, R: Send> Send for Handled<F, R> {}

trait Joinable<R>: Send + Sync {
    fn packet(&self) -> &Packet<R>;
    /// Runs the task here unless somebody started it; true if it ran.
    fn claim_and_run(&self, registry: &Registry, fate: Fate) -> bool;
    /// Whether somebody claimed it.
    fn started(&self) -> bool;
    /// The worker that runs it, and the first slot there that can hold a fork of it; a hint.
    fn runner(&self) -> Option<(u32, u32)>;
    /// The task for one more queue: whoever comes first runs it, the others find it claimed.
    fn queued_again(self: Arc<Self>) -> *mut Task;
}

impl<F, R> Joinable<R> for Handled<F, R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    fn packet(&self) -> &Packet<R> {
        &self.packet
    }

    fn claim_and_run(&self, registry: &Registry, fate: Fate) -> bool {
        if self.claim.swap(STARTED, Ordering::AcqRel) != QUEUED {
            return false;
        }
        if let Some(worker) = worker::current_of(registry) {
            let place = u64::from(worker.deque().index(worker.deque().tail())) << 32 | worker.index() as u64;
            // Release: as for `deque::Shared::set_runner`.
            self.runner.store(place, Ordering::Release);
        }
        // SAFETY: the claim was won, once and for all.
        let body = unsafe { (*self.body.get()).take() };
        let skip = fate == Fate::Discard || self.token.as_ref().is_some_and(CancelToken::is_cancelled);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if skip {
                drop(body);
                None
            } else {
                let _watch = registry.watch();
                body.map(|body| body())
            }
        }));
        self.packet.settle(match outcome {
            Ok(Some(result)) => Outcome::Ended(Ok(result)),
            Ok(None) => Outcome::Cancelled,
            Err(payload) => Outcome::Ended(Err(payload)),
        });
        true
    }

    fn started(&self) -> bool {
        self.claim.load(Ordering::Relaxed) == STARTED
    }

    fn runner(&self) -> Option<(u32, u32)> {
        let place = self.runner.load(Ordering::Acquire);
        (place != NOBODY_YET).then_some((place as u32, (place >> 32) as u32))
    }

    fn queued_again(self: Arc<Self>) -> *mut Task {
        Arc::into_raw(self).cast_mut().cast()
    }
}

impl<F, R> Handled<F, R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    unsafe fn run(task: *mut Task, worker: &Worker, fate: Fate) -> bool {
        // SAFETY: the queue held one count of an Arc of this type, whose first field is the header.
        let this = unsafe { Arc::from_raw(task.cast::<Self>().cast_const()) };
        let ran = this.claim_and_run(worker.registry(), fate);
        // The result goes with it if nobody has the handle any more.
        quiet::discard(this);
        ran
    }
}

/// Waits for a spawned task: blocking with [`JoinHandle::join`], or as a future.
///
/// Dropping it does not cancel the task. A panic of the task goes on in whoever asks for the result; if nobody does, nobody
/// hears of it, nor of one in the drop of a result nobody asked for.
///
/// As a future it may be awaited anywhere. Polled on a worker of its own pool it runs the task right there if nobody began it,
/// so waiting for it cannot take the pool's only worker away from it. What it cannot do, and `join` can: while an executor of
/// yours parks that thread, nothing else runs on it, neither forks of the task nor whoever enters the pool from another one.
#[must_use = "a task whose result nobody wants is better spawned with `detach`"]
pub struct JoinHandle<R> {
    /// The result may go with it.
    shared: Unheard<Arc<dyn Joinable<R>>>,
    registry: Shared<Registry>,
    /// Whether a worker of another pool has entered the task's pool with it.
    entered: bool,
}

impl<R> fmt::Debug for JoinHandle<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

/// Makes the task and its handle.
pub(crate) fn handled<F, R>(
    body: F,
    token: Option<CancelToken>,
    registry: &Shared<Registry>,
) -> (*mut Task, JoinHandle<R>)
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let packet =
        Packet { outcome: Mutex::new(Outcome::Waiting(None)), arrived: Condvar::new(), ready: AtomicBool::new(false) };
    let shared = Arc::new(Handled {
        task: Task { run: Handled::<F, R>::run, scope: std::ptr::null() },
        claim: AtomicU32::new(QUEUED),
        runner: AtomicU64::new(NOBODY_YET),
        body: UnsafeCell::new(Some(body)),
        token,
        packet,
    });
    let task = Arc::clone(&shared).queued_again();
    (task, JoinHandle { shared: Unheard::new(shared), registry: Shared::clone(registry), entered: false })
}

impl<R> JoinHandle<R> {
    /// Whether the result has arrived.
    pub fn is_finished(&self) -> bool {
        self.shared.packet().ready.load(Ordering::Acquire)
    }

    /// Blocks until the task has ended. On a worker of the same pool a task that has not started is run right here.
    ///
    /// # Errors
    /// If the task was cancelled before it started.
    ///
    /// # Panics
    /// Goes on with the task's panic.
    pub fn join(mut self) -> Result<R, Cancelled> {
        if !self.is_finished() {
            match worker::current() {
                Some(worker) => self.wait_on(worker),
                None => block(self.shared.packet()),
            }
        }
        self.withdraw();
        finish(self.shared.packet().take())
    }

    /// Waits on a worker: of the same pool it runs the task if nobody does, else helps whoever runs it.
    fn wait_on(&mut self, worker: &Worker) {
        if self.run_on(worker) {
            return;
        }
        // Others may take its forks meanwhile.
        worker.before_blocking();
        worker.wait(&mut TaskOf { handle: self, inside: worker.is_of(&self.registry), announced: Cell::new(false) });
    }

    /// Takes the task out of the queue it was entered with, if it is still there: it has ended, and the pool may have, too.
    fn withdraw(&mut self) {
        let task = Arc::as_ptr(&self.shared);
        if std::mem::take(&mut self.entered) && self.registry.withdraw(task.cast_mut().cast()) {
            // SAFETY: the count that `queued_again` left with the queue, and nobody else has taken it.
            unsafe { Arc::decrement_strong_count(task) };
        }
    }

    /// Runs the task on this worker if it is of the same pool and nobody began it; true if there is nothing left to wait for.
    ///
    /// A worker of another pool enters that one with it: all workers there may be waiting for this very one, and then they
    /// run only what workers of other pools enter with.
    fn run_on(&mut self, worker: &Worker) -> bool {
        if self.shared.started() {
            return self.is_finished();
        }
        if !worker.is_of(&self.registry) {
            if !std::mem::replace(&mut self.entered, true) {
                self.registry.enter(Arc::clone(&self.shared).queued_again());
            }
        } else if self.shared.claim_and_run(&self.registry, self.registry.fate()) {
            worker.count_executed();
        }
        self.is_finished()
    }
}

/// A task that a worker waits for.
struct TaskOf<'a, R> {
    handle: &'a JoinHandle<R>,
    /// Whether the worker is of the same pool.
    inside: bool,
    /// Whether it is the worker that will be woken. Before, that may be whoever polled the handle.
    announced: Cell<bool>,
}

/// Wakes a worker that waits for a task.
struct Rouse(Shared<Registry>, usize);

impl Wake for Rouse {
    fn wake(self: Arc<Self>) {
        self.0.rouse(self.1);
    }
}

impl<R> Awaited for TaskOf<'_, R> {
    fn is_done(&self) -> bool {
        self.handle.is_finished()
    }

    fn announce_sleep(&self) -> bool {
        if self.announced.get() {
            return !self.is_done();
        }
        let Some(worker) = worker::current() else { return false };
        self.announced.set(true);
        let rouse = Waker::from(Arc::new(Rouse(Shared::clone(worker.registry()), worker.index())));
        self.handle.shared.packet().wake_by(rouse)
    }

    fn help(&mut self, worker: &Worker) -> bool {
        if self.inside {
            worker.help_with_task(self.handle.shared.runner(), || self.is_done())
        } else {
            worker.run_entry()
        }
    }

    fn news(&self) -> News {
        match self.handle.shared.runner() {
            _ if !self.inside => News::Entries,
            Some((runner, _)) => News::ForkOf(runner),
            None => News::AnyFork,
        }
    }

    fn has_news(&self, worker: &Worker) -> bool {
        match self.handle.shared.runner() {
            _ if !self.inside => worker.registry().has_passed(),
            Some((runner, _)) => worker.registry().seats[runner as usize].deque.has_public(),
            None => true,
        }
    }
}

/// Blocks the thread until the outcome is there.
fn block<R>(packet: &Packet<R>) {
    let mut place = match packet.outcome.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    };
    while matches!(*place, Outcome::Waiting(_)) {
        place = match packet.arrived.wait(place) {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
    }
}

fn finish<R>(outcome: Outcome<R>) -> Result<R, Cancelled> {
    match outcome {
        Outcome::Ended(Ok(result)) => Ok(result),
        Outcome::Ended(Err(payload)) => resume_unwind(payload),
        Outcome::Cancelled => Err(Cancelled),
        Outcome::Waiting(_) | Outcome::Taken => panic!("a JoinHandle was polled after it was done"),
    }
}

impl<R> Future for JoinHandle<R> {
    type Output = Result<R, Cancelled>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(worker) = worker::current()
            && !self.run_on(worker)
        {
            // Whoever polls will probably park the thread.
            worker.before_blocking();
        }
        if !self.is_finished() && self.shared.packet().wake_by(context.waker().clone()) {
            return Poll::Pending;
        }
        self.withdraw();
        Poll::Ready(finish(self.shared.packet().take()))
    }
}
