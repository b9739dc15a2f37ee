//! The pool people hold: built, entered, asked, ended.
//!
//! It owns the threads. All scheduling is in the worker.

use std::cell::UnsafeCell;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

use crate::builder::Builder;
use crate::context::Ctx;
use crate::handle::{CancelToken, JoinHandle, handled};
use crate::latch::Latch;
use crate::pin;
use crate::registry::{Payload, Registry};
use crate::scope::Scope;
use crate::stats::Stats;
use crate::sync::{Arc, Ordering, Thread, current, park, spin, thread, yield_now};
use crate::task::{Detached, Fate, Lane, Priority, Task};
use crate::worker::{self, Worker};

/// A set of worker threads that share work by stealing.
///
/// ```
/// let pool = filch_pool::Pool::builder().threads(2).build().unwrap();
/// let sum = pool.install(|| {
///     let (a, b) = filch_pool::join(|| (1..50).sum::<u32>(), || (50..=100).sum::<u32>());
///     a + b
/// });
/// assert_eq!(sum, 5050);
/// ```
///
/// Dropping it runs everything that was spawned to its end and joins the threads. A worker that drops its own pool cannot wait
/// for that, and one of another pool waits only until all that still runs in this one waits for something itself, which may be
/// that very worker; the threads go on and end by themselves then.
pub struct Pool {
    pub(crate) registry: Arc<Registry>,
    pub(crate) threads: Vec<thread::JoinHandle<()>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

/// The pool that is used where no other is meant, with as many workers as the machine runs at once. It never ends.
///
/// # Panics
/// If the system refuses to start its threads.
pub fn global() -> &'static Pool {
    static GLOBAL: OnceLock<Pool> = OnceLock::new();
    GLOBAL.get_or_init(|| match Pool::builder().build() {
        Ok(pool) => pool,
        Err(error) => panic!("the global pool cannot start its threads: {error}"),
    })
}

/// The index of the worker this thread is, in whatever pool.
pub fn current_worker() -> Option<usize> {
    worker::current().map(Worker::index)
}

/// A closure that a thread outside waits for; it lies on that thread's stack.
#[repr(C)]
struct Entry<F, R> {
    task: Task,
    body: UnsafeCell<Option<F>>,
    result: UnsafeCell<MaybeUninit<Result<R, Payload>>>,
    latch: Latch,
    waiter: Waiter,
    /// The processor the waiter was on.
    from: Option<usize>,
}

/// Who waits for an entry.
#[derive(Clone)]
enum Waiter {
    /// A thread that is no worker.
    Thread(Thread),
    /// A worker, of this pool or of another.
    Worker(Arc<Registry>, usize),
}

impl Waiter {
    fn here() -> Self {
        match worker::current() {
            Some(worker) => Self::Worker(Arc::clone(worker.registry()), worker.index()),
            None => Self::Thread(current()),
        }
    }

    fn wake(&self) {
        match self {
            Self::Thread(thread) => thread.unpark(),
            Self::Worker(registry, index) => registry.rouse(*index),
        }
    }
}

impl<F, R> Entry<F, R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    fn new(body: F) -> Self {
        Self {
            task: Task { run: Self::run, scope: std::ptr::null() },
            body: UnsafeCell::new(Some(body)),
            result: UnsafeCell::new(MaybeUninit::uninit()),
            latch: Latch::new(),
            waiter: Waiter::here(),
            from: pin::here(),
        }
    }

    unsafe fn run(task: *mut Task, worker: &Worker, _: Fate) -> bool {
        // SAFETY: the waiter keeps the entry alive until the latch is set, and it was queued once.
        let this = unsafe { &*task.cast::<Self>() };
        // This is no task, and may take long: if the last one has just ended, say so.
        worker.registry().nudge_idle_waiters();
        // SAFETY: only the one who took it from the queue comes here.
        let body = unsafe { (*this.body.get()).take() };
        if let Some(body) = body {
            // Workers that wait may run it on top of a scope it has nothing to do with.
            let outer = worker.enter_scope(std::ptr::null());
            let result = catch_unwind(AssertUnwindSafe(body));
            worker.close_scope(outer);
            // SAFETY: the waiter looks only after the latch is set.
            unsafe { (*this.result.get()).write(result) };
        }
        // Cloned first: the entry may be gone as soon as the latch is set.
        let (waiter, from) = (this.waiter.clone(), this.from);
        // SAFETY: alive until here, set once.
        let parked = unsafe { Latch::set(&this.latch) };
        if parked {
            waiter.wake();
        }
        worker.served(from.filter(|_| !parked));
        false
    }

    fn queued(&self) -> *mut Task {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Waits for a short while without sleeping.
    fn look(&self, registry: &Registry) {
        const ROUNDS: u32 = 32;
        const SPIN_ROUNDS: u32 = 6;
        const MOST_ROUNDS: u32 = 512;
        for round in 0..MOST_ROUNDS {
            if self.latch.is_done() || (round >= ROUNDS && !registry.moving.load(Ordering::Relaxed)) {
                break;
            }
            // The worker may be waiting for this very core.
            if round < SPIN_ROUNDS { spin(8) } else { yield_now() }
        }
    }

    /// Waits until the body has run, at first without sleeping if the registry is given.
    ///
    /// # Safety
    /// It was queued exactly once, and this is called once.
    unsafe fn wait(&self, spinning: Option<&Registry>) -> Result<R, Payload> {
        if let Some(registry) = spinning {
            self.look(registry);
        }
        while !self.latch.is_done() {
            if self.latch.announce_sleep() {
                park();
            }
        }
        // SAFETY: the latch is set, so the result is there.
        unsafe { (*self.result.get()).assume_init_read() }
    }
}

impl Pool {
    /// Starts describing a pool.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// How many workers it has.
    pub fn threads(&self) -> usize {
        self.registry.seats.len()
    }

    /// Runs `body` on a worker of this pool and waits for it. On such a worker it just calls it.
    ///
    /// Pools may enter each other, also in a circle: a worker of another pool that waits here runs what workers of other pools
    /// enter its own pool with meanwhile. So do not hold a lock while you enter another pool if those want it too.
    pub fn install<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        if worker::current_of(&self.registry).is_some() {
            return body();
        }
        let entry = Entry::new(body);
        let result = if let Some(foreign) = worker::current() {
            self.registry.enter(entry.queued());
            foreign.wait_across(&entry.latch);
            // SAFETY: queued once, just above.
            unsafe { entry.wait(None) }
        } else {
            let woken = self.registry.inject(entry.queued(), Lane::Awaited);
            if woken && self.registry.take_forked() {
                self.registry.sleep.wake_companion();
            }
            // A worker that was awake takes it at once. One that was just woken often starts on this very core: make room.
            // SAFETY: queued once, just above.
            unsafe { entry.wait((!woken).then_some(&*self.registry)) }
        };
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }

    /// Runs `body` on a worker of this pool with a context to fork from.
    pub fn run<R: Send>(&self, body: impl FnOnce(Ctx<'_>) -> R + Send) -> R {
        self.install(|| crate::context::run(body))
    }

    /// [`scope`](crate::scope()) on this pool.
    pub fn scope<'scope, R: Send>(&self, body: impl FnOnce(&Scope<'scope>) -> R + Send) -> R {
        self.install(|| crate::scope::scope(body))
    }

    /// Runs `body` once on every worker, given its index, and returns the results in that order.
    ///
    /// A worker runs its part between two tasks, or while it waits for something: `body` must not lock what a task may
    /// hold meanwhile. A worker that calls it runs its own part at once.
    ///
    /// # Panics
    /// With the first panic of a part, after all have ended.
    pub fn broadcast<R: Send>(&self, body: impl Fn(usize) -> R + Sync) -> Vec<R> {
        let body = &body;
        let here = worker::current_of(&self.registry);
        if let Some(waiting) = here {
            waiting.before_blocking();
        }
        let entries: Vec<_> = (0..self.threads()).map(|index| Entry::new(move || body(index))).collect();
        for (index, entry) in entries.iter().enumerate().filter(|(index, _)| Some(*index) != here.map(Worker::index)) {
            self.registry.mail(index, entry.queued());
        }
        if let Some(worker) = here {
            let entry = &entries[worker.index()];
            // SAFETY: it was not queued, and it runs here once.
            unsafe { (entry.task.run)(entry.queued(), worker, Fate::Run) };
            // Other workers may broadcast at the same time: do our part of theirs while they do theirs of ours.
            entries.iter().for_each(|entry| worker.wait_for_part(&entry.latch));
        } else if let Some(foreign) = worker::current() {
            entries.iter().for_each(|entry| foreign.wait_across(&entry.latch));
        }
        // SAFETY: each was queued or run exactly once.
        let results: Vec<_> = entries.iter().map(|entry| unsafe { entry.wait(None) }).collect();
        results.into_iter().map(|result| result.unwrap_or_else(|payload| resume_unwind(payload))).collect()
    }

    /// Describes a task before it is spawned: its priority, where it should run, what cancels it.
    pub fn task(&self) -> TaskBuilder<'_> {
        TaskBuilder { pool: self, priority: Priority::Normal, worker: None, token: None }
    }

    /// Spawns a task; the handle brings its result.
    pub fn spawn<R: Send + 'static>(&self, body: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        self.task().spawn(body)
    }

    /// Spawns a task nobody waits for.
    #[inline]
    pub fn detach(&self, body: impl FnOnce() + Send + 'static) {
        self.registry.spawn(detached(body), Lane::Normal);
    }

    /// Spawns a task on the worker that got the same key before, so that what it left in the cache is still there; unless that
    /// one is overloaded, as for [`Pool::spawn_on`].
    pub fn spawn_near<R: Send + 'static>(
        &self,
        key: impl Hash,
        body: impl FnOnce() -> R + Send + 'static,
    ) -> JoinHandle<R> {
        self.task().near(key).spawn(body)
    }

    /// Spawns a task on one worker, by index (modulo the number of workers), unless that one is overloaded: as soon as 64 tasks
    /// sent to it wait, others may take them, and further ones are spawned like any other.
    pub fn spawn_on<R: Send + 'static>(
        &self,
        worker: usize,
        body: impl FnOnce() -> R + Send + 'static,
    ) -> JoinHandle<R> {
        self.task().on(worker).spawn(body)
    }

    /// Blocks until every spawned task has ended, those spawned meanwhile included.
    ///
    /// A worker of another pool may call it too, but not from within something that a worker of this pool waits for: that one
    /// could not run them, and what it does may be one of them.
    ///
    /// # Panics
    /// On a worker of this pool: the task that calls it could not end.
    pub fn wait_idle(&self) {
        assert!(worker::current_of(&self.registry).is_none(), "wait_idle on a worker would wait for itself");
        match worker::current() {
            Some(foreign) => foreign.look_across(|| self.registry.is_idle()),
            None => self.registry.wait_idle(),
        }
    }

    /// What the workers did so far, together.
    pub fn stats(&self) -> Stats {
        self.registry.stats()
    }

    /// What each worker did so far.
    pub fn worker_stats(&self) -> Vec<Stats> {
        self.registry.seats.iter().map(|seat| seat.counters.read()).collect()
    }

    /// Runs everything that was spawned to its end, then ends the threads. Dropping the pool does the same.
    pub fn shutdown(self) {
        drop(self);
    }

    /// Ends the threads once what runs has ended; tasks that have not started are cancelled.
    pub fn shutdown_now(mut self) {
        self.end(true);
    }

    fn end(&mut self, discard: bool) {
        self.registry.stop(discard);
        let wait = match worker::current() {
            None => true,
            Some(worker) if worker.is_of(&self.registry) => false,
            Some(foreign) => {
                foreign.look_across(|| self.registry.is_ended_or_stuck());
                self.registry.is_ended()
            }
        };
        for thread in self.threads.drain(..).filter(|_| wait) {
            // A worker catches every panic; there is nothing to learn from the result.
            let _ = thread.join();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.end(false);
        }
    }
}

/// A task about to be spawned. See [`Pool::task`].
///
/// ```
/// use filch_pool::{Pool, Priority};
///
/// let pool = Pool::builder().threads(2).build().unwrap();
/// let handle = pool.task().priority(Priority::High).near("row 7").spawn(|| 6 * 7);
/// assert_eq!(handle.join(), Ok(42));
/// ```
#[derive(Debug)]
#[must_use = "nothing happens before `spawn` or `detach`"]
pub struct TaskBuilder<'pool> {
    pool: &'pool Pool,
    priority: Priority,
    worker: Option<usize>,
    token: Option<CancelToken>,
}

impl TaskBuilder<'_> {
    /// How urgent it is.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Prefers the worker that got the same key before, as [`Pool::spawn_near`].
    pub fn near(mut self, key: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        self.worker = Some((hasher.finish() % self.pool.threads() as u64) as usize);
        self
    }

    /// Prefers one worker, as [`Pool::spawn_on`].
    pub fn on(mut self, worker: usize) -> Self {
        self.worker = Some(worker);
        self
    }

    /// Skips the task if the token is cancelled before it starts.
    pub fn token(mut self, token: &CancelToken) -> Self {
        self.token = Some(token.clone());
        self
    }

    /// Spawns it; the handle brings its result.
    pub fn spawn<R: Send + 'static>(self, body: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        let (task, handle) = handled(body, self.token, &self.pool.registry);
        queue(self.pool, task, self.priority, self.worker);
        handle
    }

    /// Spawns it without a handle.
    pub fn detach(self, body: impl FnOnce() + Send + 'static) {
        let task = match self.token {
            None => detached(body),
            Some(token) => Detached::queued(move |registry: &Registry| {
                if !token.is_cancelled() {
                    let _watch = registry.watch();
                    body();
                }
            }),
        };
        queue(self.pool, task, self.priority, self.worker);
    }
}

#[inline]
fn detached(body: impl FnOnce() + Send + 'static) -> *mut Task {
    Detached::queued(move |registry: &Registry| {
        let _watch = registry.watch();
        body();
    })
}

fn queue(pool: &Pool, task: *mut Task, priority: Priority, worker: Option<usize>) {
    match worker {
        Some(worker) => pool.registry.spawn_on(worker, task, priority.lane()),
        None => pool.registry.spawn(task, priority.lane()),
    }
}
