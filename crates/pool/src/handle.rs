//! Tasks somebody waits for: the handle blocks, or is polled as a future; a token cancels what has not started.
//!
//! A worker that blocks on a task that nobody started yet runs it itself, and nothing else.

use std::cell::UnsafeCell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::registry::{Payload, Registry};
use crate::sync::{Arc as Shared, AtomicBool, AtomicU32, Condvar, Mutex, Ordering, lock};
use crate::task::{Fate, Task};
use crate::worker;

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
    fn settle(&self, outcome: Outcome<R>) {
        let before = {
            let mut place = lock(&self.outcome);
            self.ready.store(true, Ordering::Release);
            std::mem::replace(&mut *place, outcome)
        };
        self.arrived.notify_all();
        if let Outcome::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

const QUEUED: u32 = 0;
const STARTED: u32 = 1;

/// A task with a handle: in a queue and in its handle's hands at the same time; whoever claims it first runs it.
#[repr(C)]
struct Handled<F, R> {
    task: Task,
    claim: AtomicU32,
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
    fn claim_and_run(&self, fate: Fate) -> bool;
    /// Whether somebody claimed it.
    fn started(&self) -> bool;
}

impl<F, R> Joinable<R> for Handled<F, R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    fn packet(&self) -> &Packet<R> {
        &self.packet
    }

    fn claim_and_run(&self, fate: Fate) -> bool {
        if self.claim.swap(STARTED, Ordering::AcqRel) != QUEUED {
            return false;
        }
        // SAFETY: the claim was won, once and for all.
        let body = unsafe { (*self.body.get()).take() };
        let skip = fate == Fate::Discard || self.token.as_ref().is_some_and(CancelToken::is_cancelled);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if skip {
                drop(body);
                None
            } else {
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
}

impl<F, R> Handled<F, R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    unsafe fn run(task: *mut Task, _: &Registry, fate: Fate) -> bool {
        // SAFETY: the queue held one count of an Arc of this type, whose first field is the header.
        let this = unsafe { Arc::from_raw(task.cast::<Self>().cast_const()) };
        this.claim_and_run(fate)
    }
}

/// Waits for a spawned task: blocking with [`JoinHandle::join`], or as a future.
///
/// Dropping it does not cancel the task. A panic of the task goes on in whoever asks for the result.
#[must_use = "a task whose result nobody wants is better spawned with `detach`"]
pub struct JoinHandle<R> {
    shared: Arc<dyn Joinable<R>>,
    registry: Shared<Registry>,
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
        body: UnsafeCell::new(Some(body)),
        token,
        packet,
    });
    let task = Arc::into_raw(Arc::clone(&shared)).cast_mut().cast();
    (task, JoinHandle { shared, registry: Shared::clone(registry) })
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
    pub fn join(self) -> Result<R, Cancelled> {
        if !self.is_finished() {
            if let Some(worker) = worker::current_of(&self.registry)
                && !self.shared.started()
                && self.shared.claim_and_run(self.registry.fate())
            {
                worker.count_executed();
            }
            if !self.is_finished() {
                block(self.shared.packet());
            }
        }
        let outcome = std::mem::replace(&mut *lock(&self.shared.packet().outcome), Outcome::Taken);
        finish(outcome)
    }
}

/// Blocks the thread; a worker lets others take its forks before.
fn block<R>(packet: &Packet<R>) {
    if let Some(worker) = worker::current() {
        worker.before_blocking();
    }
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

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = {
            let mut place = lock(&self.shared.packet().outcome);
            if let Outcome::Waiting(waker) = &mut *place {
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            std::mem::replace(&mut *place, Outcome::Taken)
        };
        Poll::Ready(finish(outcome))
    }
}
