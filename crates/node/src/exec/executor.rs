//! The threads that follow commands, and the handles with which those are stopped.
//!
//! A thread that is done with a command takes the next at once if one waits, also one that was started by the callback it
//! has just called: no other thread is woken for it. Never runs more commands at once than it has slots.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

use super::process::Follower;
use super::{Command, Done, Error, Watch};

// Kinds of orders, weak to strong; 0 is none.
const STOP: u8 = 1;
const KILL: u8 = 2;

/// What is wanted of a command, and whom to wake when that changes.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Only ever grows.
    wanted: AtomicU8,
    /// The thread that follows the command, while it does.
    follower: Mutex<Option<Arc<OwnedFd>>>,
}

impl Order {
    pub(super) fn is_stop(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) >= STOP
    }

    pub(super) fn is_kill(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) >= KILL
    }

    fn want(&self, wanted: u8) {
        if self.wanted.fetch_max(wanted, Ordering::SeqCst) >= wanted {
            return;
        }
        let follower = self.follower.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wake) = follower.as_ref() {
            // It fails only when the counter is full, and then it is readable anyway.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    fn follow(&self, wake: Option<Arc<OwnedFd>>) {
        *self.follower.lock().unwrap_or_else(PoisonError::into_inner) = wake;
    }
}

/// A command that was started. Dropping this kills it with all of its group.
#[derive(Debug)]
#[must_use = "dropping it kills the command"]
pub struct Running {
    order: Arc<Order>,
}

impl Running {
    /// Asks the command to end: SIGTERM now, SIGKILL when the grace is over.
    pub fn stop(&self) {
        self.order.want(STOP);
    }

    /// Ends it now.
    pub fn kill(&self) {
        self.order.want(KILL);
    }

    /// Lets it run to its end with nobody to stop it but the [`Executor`].
    pub fn detach(self) {
        let mut detached = self;
        detached.order = Arc::default();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command that waits for a thread.
struct Job {
    command: Command,
    watch: Option<Watch>,
    done: Done,
    order: Arc<Order>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: Vec<Arc<Order>>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    slots: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs commands, so many at once. Dropping it kills those that run and forgets those that wait; all are told.
pub struct Executor {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Executor").field("slots", &self.shared.slots).finish_non_exhaustive()
    }
}

impl Executor {
    /// An executor with so many slots, at least one. Has no threads yet.
    #[must_use]
    pub fn new(slots: usize) -> Executor {
        let shared = Shared { state: Mutex::default(), changed: Condvar::new(), slots: slots.max(1) };
        Executor { shared: Arc::new(shared) }
    }

    /// Starts a command, or queues it until a slot is free, and returns at once. May be called by `done` itself.
    pub fn start(&self, command: Command, watch: Option<Watch>, done: Done) -> Running {
        let order = Arc::<Order>::default();
        let job = Job { command, watch, done, order: Arc::clone(&order) };
        let mut state = self.shared.lock();
        state.waiting.push_back(job);
        if state.idle >= state.waiting.len() {
            drop(state);
            self.shared.changed.notify_one();
        } else if state.threads.len() < self.shared.slots {
            match spawn(Arc::clone(&self.shared)) {
                Ok(thread) => state.threads.push(thread),
                Err(source) if state.threads.is_empty() => {
                    let Some(job) = state.waiting.pop_back() else { return Running { order } };
                    drop(state);
                    (job.done)(Err(Error::Start { program: "a thread".into(), source }));
                }
                // Those that there are will come to it.
                Err(_) => {}
            }
        }
        Running { order }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        for order in &state.running {
            order.want(KILL);
        }
        for job in &state.waiting {
            job.order.want(KILL);
        }
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.changed.notify_all();
        for thread in threads {
            // A callback may hold the last of the executor, and a thread cannot wait for itself.
            if thread.thread().id() != thread::current().id() {
                // Whoever panicked there was a callback, and has said so.
                drop(thread.join());
            }
        }
    }
}

fn spawn(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let follower = Follower::new(Arc::clone(&wake));
    thread::Builder::new().name("filch-exec".to_owned()).spawn(move || serve(&shared, &wake, follower))
}

/// Runs one command after the other until the executor is gone.
fn serve(shared: &Shared, wake: &Arc<OwnedFd>, mut follower: Follower) {
    let mut state = shared.lock();
    loop {
        let Some(job) = state.waiting.pop_front() else {
            if state.closed {
                return;
            }
            state.idle += 1;
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            continue;
        };
        let Job { command, watch, done, order } = job;
        state.running.push(Arc::clone(&order));
        drop(state);
        order.follow(Some(Arc::clone(wake)));
        let outcome = if order.is_stop() { Err(Error::Cancelled) } else { follower.run(&command, watch, &order) };
        order.follow(None);
        let mut after = shared.lock();
        after.running.retain(|running| !Arc::ptr_eq(running, &order));
        drop(after);
        done(outcome);
        state = shared.lock();
    }
}
