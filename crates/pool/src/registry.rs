//! What the workers of one pool share: their queues, the queue from outside, the sleepers, the end.
//!
//! It hands work out; running it is the worker's business.

use std::any::Any;
use std::collections::VecDeque;
use std::ptr;
use std::sync::OnceLock;

use crate::deque::{Deque, Header};
use crate::listen::{Listeners, News};
use crate::quiet;
use crate::ring::Ring;
use crate::scope::Core;
use crate::sleep::Sleep;
use crate::stats::{Counters, Stats};
use crate::sync::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Condvar, Duration, Mutex, Ordering, Padded, Thread, fence, lock,
};
use crate::task::{Fate, LANES, Lane, Task};
use crate::topology::Victims;
use crate::watch::TaskHooks;
use crate::worker::{self, Work};

/// What a panic carries.
pub(crate) type Payload = Box<dyn Any + Send + 'static>;
pub(crate) type PanicHandler = Box<dyn Fn(Payload) + Send + Sync>;
/// Called with a worker's index.
pub(crate) type Hook = Box<dyn Fn(usize) + Send + Sync>;

/// Beyond this many waiting tasks a worker counts as overloaded: others may take what was meant for it.
const OVERLOADED: usize = 64;

const RUNNING: u32 = 0;
const DRAINING: u32 = 1;
const DISCARDING: u32 = 2;

/// A task in a queue.
struct Queued(*mut Task);
// SAFETY: a task is built from parts that are Send, and whoever takes it out of the queue owns it.
unsafe impl Send for Queued {}

/// Something for whoever is free first.
enum Passed {
    /// A forked job that a helper took by mistake, with the worker that forked it.
    Job(*const Header, u32),
    /// What a worker of another pool entered this one with. Also those who wait for another pool may run it.
    Entry(*mut Task),
}
// SAFETY: the job was published, so it may be run by any worker, and its owner waits until it is done; as for `Queued`.
unsafe impl Send for Passed {}

impl Passed {
    fn work(self) -> Work {
        match self {
            Self::Job(job, owner) => Work::Job(job, owner),
            Self::Entry(task) => Work::Task(task),
        }
    }
}

/// A queue behind a lock, whose length can be read without it.
struct Queue<T> {
    len: AtomicUsize,
    items: Mutex<VecDeque<T>>,
}

impl<T> Queue<T> {
    fn new() -> Self {
        Self { len: AtomicUsize::new(0), items: Mutex::new(VecDeque::new()) }
    }

    fn with<R>(&self, change: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        let mut items = lock(&self.items);
        let result = change(&mut items);
        self.len.store(items.len(), Ordering::Release);
        result
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }
}

/// A task that should run on one worker. In a mailbox the urgent ones come first, then the older ones.
struct Mail {
    task: Queued,
    lane: Lane,
}

impl Queue<Mail> {
    /// Takes the first, if it is at least so urgent.
    fn take_first(&self, lane: Lane) -> Option<*mut Task> {
        if self.len() == 0 {
            return None;
        }
        self.with(|mails| if mails.front()?.lane <= lane { mails.pop_front() } else { None }).map(|mail| mail.task.0)
    }

    /// Takes the last, if it is at most so urgent.
    fn take_last(&self, lane: Lane) -> Option<*mut Task> {
        if self.len() == 0 {
            return None;
        }
        self.with(|mails| if mails.back()?.lane >= lane { mails.pop_back() } else { None }).map(|mail| mail.task.0)
    }
}

impl Queue<Queued> {
    #[inline]
    fn take_first(&self) -> Option<*mut Task> {
        if self.len() == 0 {
            return None;
        }
        self.with(VecDeque::pop_front).map(|queued| queued.0)
    }
}

/// The part of a worker that others may touch.
pub(crate) struct Seat {
    pub(crate) deque: Deque,
    pub(crate) rings: [Ring<Task>; LANES.len()],
    /// Tasks that should run here.
    mailbox: Queue<Mail>,
    /// Tasks that must run here.
    orders: Queue<Queued>,
    pub(crate) counters: Padded<Counters>,
    /// Set by the worker's thread before it does anything else.
    pub(crate) thread: OnceLock<Thread>,
}

/// Everything one pool's threads have in common.
pub(crate) struct Registry {
    pub(crate) seats: Box<[Seat]>,
    pub(crate) sleep: Sleep,
    /// Workers that sleep while they wait for something.
    pub(crate) listeners: Listeners,
    /// Workers whose threads have not ended.
    alive: AtomicUsize,
    /// Whom each worker robs first.
    pub(crate) victims: Victims,
    /// Apart from each other: workers look at some lanes for every task while others are being filled.
    injector: [Padded<Queue<Queued>>; LANES.len()],
    passed: Padded<Queue<Passed>>,
    /// Tasks spawned and ended by threads that are no workers of this pool.
    outside_spawned: AtomicU64,
    /// Whether anybody forked since this was last asked: the next region probably will too.
    forked: AtomicBool,
    /// Whether a worker is on its way to another processor: whoever waits for it should not sleep, because it would be
    /// woken on that very processor.
    pub(crate) moving: AtomicBool,
    stop: AtomicU32,
    idle_waiters: AtomicUsize,
    idle: (Mutex<()>, Condvar),
    pub(crate) panic_handler: Option<PanicHandler>,
    pub(crate) start_hook: Option<Hook>,
    pub(crate) exit_hook: Option<Hook>,
    pub(crate) task_hooks: Option<Box<TaskHooks>>,
    /// Whether workers that wait run whatever there is.
    pub(crate) helps_anyone: bool,
}

/// How long whoever waits for the end of all tasks looks away at first, and at most. Workers tell when they run out of tasks;
/// this is for those that go on with a fork somebody passed on.
const SHORT_LOOK: Duration = Duration::from_micros(100);
const LONG_LOOK: Duration = Duration::from_millis(20);

impl Registry {
    pub(crate) fn new(threads: usize, stack_size: usize) -> Self {
        let seat = |_| Seat {
            deque: Deque::for_stack(stack_size),
            rings: std::array::from_fn(|_| Ring::new(threads > 1)),
            mailbox: Queue::new(),
            orders: Queue::new(),
            counters: Padded(Counters::new()),
            thread: OnceLock::new(),
        };
        Self {
            seats: (0..threads).map(seat).collect(),
            sleep: Sleep::new(),
            listeners: Listeners::new(threads),
            alive: AtomicUsize::new(0),
            victims: Victims::flat(threads),
            injector: std::array::from_fn(|_| Padded(Queue::new())),
            passed: Padded(Queue::new()),
            outside_spawned: AtomicU64::new(0),
            forked: AtomicBool::new(false),
            moving: AtomicBool::new(false),
            stop: AtomicU32::new(RUNNING),
            idle_waiters: AtomicUsize::new(0),
            idle: (Mutex::new(()), Condvar::new()),
            panic_handler: None,
            start_hook: None,
            exit_hook: None,
            task_hooks: None,
            helps_anyone: false,
        }
    }

    /// Tells the pool's owner about a panic nobody waits for.
    pub(crate) fn report_panic(&self, payload: Payload) {
        match &self.panic_handler {
            // A handler that panics must not take the worker with it.
            Some(handler) => quiet::call(|| handler(payload)),
            None => quiet::discard(payload),
        }
    }

    /// Puts a task from anywhere into the shared queue; true if a sleeper was woken for it.
    pub(crate) fn inject(&self, task: *mut Task, lane: Lane) -> bool {
        self.injector[lane as usize].with(|queue| queue.push_back(Queued(task)));
        self.sleep.notify()
    }

    /// Queues a task that was spawned: with the current worker if it is one of ours, else with everybody.
    pub(crate) fn spawn(&self, task: *mut Task, lane: Lane) {
        match worker::current_of(self) {
            Some(worker) => worker.push(task, lane),
            None => self.spawn_outside(task, lane),
        }
    }

    /// Queues a task spawned by a thread that is no worker of this pool.
    pub(crate) fn spawn_outside(&self, task: *mut Task, lane: Lane) {
        self.outside_spawned.fetch_add(1, Ordering::Relaxed);
        self.inject(task, lane);
    }

    /// Queues a task for one worker, unless that worker is overloaded.
    pub(crate) fn spawn_on(&self, index: usize, task: *mut Task, lane: Lane) {
        let seat = &self.seats[index % self.seats.len()];
        if seat.mailbox.len() >= OVERLOADED {
            return self.spawn(task, lane);
        }
        match worker::current_of(self) {
            Some(worker) => worker.seat().counters.spawned.add(1),
            None => _ = self.outside_spawned.fetch_add(1, Ordering::Relaxed),
        }
        let waiting = seat.mailbox.with(|mails| {
            let place = mails.partition_point(|mail| mail.lane <= lane);
            mails.insert(place, Mail { task: Queued(task), lane });
            mails.len()
        });
        self.sleep.wake(index % self.seats.len());
        if waiting == OVERLOADED {
            self.sleep.notify();
        }
    }

    /// Queues a task for one worker and no other; it is not counted as spawned.
    pub(crate) fn mail(&self, index: usize, task: *mut Task) {
        self.seats[index].orders.with(|queue| queue.push_back(Queued(task)));
        self.sleep.wake(index);
        self.tell(index);
    }

    /// The next task meant for this worker, if it is at least so urgent.
    #[inline]
    pub(crate) fn take_mail(&self, index: usize, lane: Lane) -> Option<*mut Task> {
        self.seats[index].mailbox.take_first(lane)
    }

    /// The task meant for this worker that would be its last, if it is at most so urgent.
    pub(crate) fn take_last_mail(&self, index: usize, lane: Lane) -> Option<*mut Task> {
        self.seats[index].mailbox.take_last(lane)
    }

    /// Something this worker must do.
    #[inline]
    pub(crate) fn take_order(&self, index: usize) -> Option<*mut Task> {
        self.seats[index].orders.take_first()
    }

    /// Whether there is something this worker must do.
    pub(crate) fn has_order(&self, index: usize) -> bool {
        self.seats[index].orders.len() > 0
    }

    /// Something meant for another worker that has too much of it.
    #[inline]
    pub(crate) fn take_surplus_mail(&self, index: usize) -> Option<*mut Task> {
        if !self.has_surplus_mail(index) {
            return None;
        }
        self.seats[index].mailbox.take_first(Lane::Low)
    }

    fn has_surplus_mail(&self, index: usize) -> bool {
        // When the pool ends, the worker it was meant for may be gone already.
        let enough = if self.is_stopping() { 1 } else { OVERLOADED };
        self.seats[index].mailbox.len() >= enough
    }

    /// A task in the shared queue that the given scope waits for. If it is not the first there, `keep` gets all others that the
    /// scope waits for: who searches for one after the other would look at those before them again and again.
    pub(crate) fn take_of_scope(&self, scope: &Core, mut keep: impl FnMut(*mut Task)) -> Option<*mut Task> {
        let queue = &self.injector[Lane::Awaited as usize];
        if queue.len() == 0 {
            return None;
        }
        queue.with(|items| {
            // SAFETY: whatever is in the queue is alive until somebody takes it out, and we hold the lock. Its scope is
            // alive as long as it is.
            let ours =
                |queued: &Queued| unsafe { (*queued.0).scope.as_ref() }.is_some_and(|found| found.descends_from(scope));
            if items.front().is_some_and(ours) {
                return items.pop_front().map(|queued| queued.0);
            }
            let mut first = None;
            items.retain(|queued| {
                if !ours(queued) {
                    return true;
                }
                if first.is_none() {
                    first = Some(queued.0);
                } else {
                    keep(queued.0);
                }
                false
            });
            first
        })
    }

    /// How many tasks wait in one lane of the shared queue.
    #[inline]
    pub(crate) fn injected(&self, lane: Lane) -> usize {
        self.injector[lane as usize].len()
    }

    /// Whether there is nothing that would go before a worker's own tasks of normal urgency. It does not look at the rest of
    /// the shared queue: that would stop those who fill it.
    #[inline]
    pub(crate) fn is_undisturbed(&self, index: usize) -> bool {
        let seat = &self.seats[index];
        let urgent = self.injected(Lane::Awaited) | self.injected(Lane::High);
        self.passed.len() | seat.orders.len() | seat.mailbox.len() | urgent == 0
    }

    /// Takes a fair share of the shared queue: the first task, and more of them for `keep`, last first.
    pub(crate) fn take_share(&self, lane: Lane, mut keep: impl FnMut(*mut Task)) -> Option<*mut Task> {
        const BATCH: usize = 256;
        self.injector[lane as usize].with(|items| {
            let first = items.pop_front()?;
            if lane != Lane::Awaited {
                let more = (items.len() / self.seats.len()).min(BATCH);
                items.drain(..more).rev().for_each(|queued| keep(queued.0));
            }
            Some(first.0)
        })
    }

    /// Passes a forked job on to whoever is free, or to its owner if that one waits for it.
    pub(crate) fn pass_on(&self, job: *const Header, owner: u32) {
        self.passed.with(|queue| queue.push_back(Passed::Job(job, owner)));
        self.sleep.notify();
        self.rouse(owner as usize);
    }

    /// A worker of another pool enters this one; true if a sleeper was woken for it.
    pub(crate) fn enter(&self, task: *mut Task) -> bool {
        self.passed.with(|queue| queue.push_back(Passed::Entry(task)));
        let woken = self.sleep.notify();
        self.listeners.tell_all(News::Entries, |index| self.unpark(index));
        woken
    }

    /// Whether there is something for whoever is free first.
    pub(crate) fn has_passed(&self) -> bool {
        self.passed.len() > 0
    }

    /// Takes whatever was passed first.
    #[inline]
    pub(crate) fn take_passed(&self) -> Option<Work> {
        self.find_passed(|_| true).map(Passed::work)
    }

    /// Takes a certain job.
    pub(crate) fn take_passed_job(&self, wanted: *const Header) -> Option<(*const Header, u32)> {
        let wanted = |passed: &Passed| matches!(passed, Passed::Job(job, _) if ptr::eq(*job, wanted));
        match self.find_passed(wanted)? {
            Passed::Job(job, owner) => Some((job, owner)),
            Passed::Entry(_) => None,
        }
    }

    /// Takes what a worker of another pool waits for.
    pub(crate) fn take_passed_entry(&self) -> Option<*mut Task> {
        match self.find_passed(|passed| matches!(passed, Passed::Entry(_)))? {
            Passed::Entry(task) => Some(task),
            Passed::Job(..) => None,
        }
    }

    /// Takes an entry back; false if somebody took it before.
    pub(crate) fn withdraw(&self, entry: *mut Task) -> bool {
        self.find_passed(|passed| matches!(passed, Passed::Entry(task) if ptr::eq(*task, entry))).is_some()
    }

    #[inline]
    fn find_passed(&self, wanted: impl Fn(&Passed) -> bool) -> Option<Passed> {
        if self.passed.len() == 0 { None } else { self.search_passed(wanted) }
    }

    #[cold]
    fn search_passed(&self, wanted: impl Fn(&Passed) -> bool) -> Option<Passed> {
        self.passed.with(|queue| queue.iter().position(wanted).and_then(|at| queue.remove(at)))
    }

    fn unpark(&self, index: usize) {
        if let Some(thread) = self.seats[index].thread.get() {
            thread.unpark();
        }
    }

    /// Wakes a worker: what it waits for has ended, or is there for it to run.
    pub(crate) fn rouse(&self, index: usize) {
        self.listeners.stop(index);
        self.unpark(index);
    }

    /// Wakes a worker if it sleeps while it waits: there is something that only it can run, or that it could help with.
    pub(crate) fn tell(&self, index: usize) {
        if self.listeners.tell(index) {
            self.unpark(index);
        }
    }

    /// Wakes those who wait for something this worker runs: it has published a fork.
    pub(crate) fn tell_of_forks(&self, publisher: usize) {
        self.listeners.tell_all(News::ForkOf(publisher as u32), |index| self.unpark(index));
    }

    /// Gives a task of a scope that somebody took by mistake to whoever is free, or to its scope's owner.
    #[cold]
    pub(crate) fn give_back(&self, task: *mut Task) {
        // Looked up first: once it is in the queue, it may be run and its scope gone.
        // SAFETY: the caller took it out of a queue, so it and its scope are alive.
        let owner = unsafe { (*task).scope.as_ref() }.map(Core::owner);
        self.inject(task, Lane::Awaited);
        if let Some(owner) = owner {
            self.tell(owner);
        }
    }

    /// A worker has just shared a fork: somebody shall be awake to take it.
    pub(crate) fn shared_fork(&self, publisher: usize) {
        if !self.forked.load(Ordering::Relaxed) {
            self.forked.store(true, Ordering::Relaxed);
        }
        self.sleep.wake_sentinel();
        self.tell_of_forks(publisher);
    }

    /// Whether anybody forked since the last call.
    pub(crate) fn take_forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed) && self.forked.swap(false, Ordering::Relaxed)
    }

    /// Whether a worker that is about to park should look again. While the pool ends, anybody may do what is meant for one.
    pub(crate) fn has_work(&self, index: usize) -> bool {
        let public = |seat: &Seat| seat.deque.has_public() || seat.rings.iter().any(|ring| ring.len() > 0);
        self.injector.iter().any(|queue| queue.len() > 0)
            || self.passed.len() > 0
            || self.seats[index].mailbox.len() > 0
            || self.seats[index].orders.len() > 0
            || self.seats.iter().any(public)
            || (0..self.seats.len()).any(|seat| self.has_surplus_mail(seat))
    }

    /// A worker's thread starts.
    pub(crate) fn count_alive(&self) {
        self.alive.fetch_add(1, Ordering::SeqCst);
    }

    /// A worker's thread ends.
    pub(crate) fn count_ended(&self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether all its threads have ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.alive.load(Ordering::SeqCst) == 0
    }

    /// Whether the pool was told to stop and nobody has anything to do any more, nor runs what could make more.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_stopping() && self.sleep.is_still(0, || self.has_work(0))
    }

    /// Whether a pool that was told to stop does not get on by itself: all its threads have ended, or those that run something
    /// sleep until others do something, perhaps the very thread that asks.
    pub(crate) fn is_ended_or_stuck(&self) -> bool {
        // If all wait, nobody can do what there is.
        let has_work = |waiting| waiting < self.seats.len() && self.has_work(0);
        self.is_ended() || self.sleep.is_stuck(&self.listeners, has_work)
    }

    pub(crate) fn stop(&self, discard: bool) {
        self.stop.store(if discard { DISCARDING } else { DRAINING }, Ordering::SeqCst);
        self.sleep.wake_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst) != RUNNING
    }

    #[inline]
    pub(crate) fn fate(&self) -> Fate {
        if self.stop.load(Ordering::Relaxed) == DISCARDING { Fate::Discard } else { Fate::Run }
    }

    /// Whether every task that was spawned has ended.
    pub(crate) fn is_idle(&self) -> bool {
        // Executed first: every task counted there had its own spawns counted before, so if the sums agree, there was a
        // moment at which nothing was left. See "Termination" in the README.
        let executed: u64 = self.seats.iter().map(|seat| seat.counters.executed.get()).sum();
        fence(Ordering::SeqCst);
        let inside: u64 = self.seats.iter().map(|seat| seat.counters.spawned.get()).sum();
        executed == inside + self.outside_spawned.load(Ordering::Acquire)
    }

    /// Blocks until `is_idle`.
    pub(crate) fn wait_idle(&self) {
        self.idle_waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let (mutex, condition) = &self.idle;
        {
            let mut guard = match mutex.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            };
            let mut nap = SHORT_LOOK;
            while !self.is_idle() {
                guard = match condition.wait_timeout(guard, nap) {
                    Ok((guard, _)) => guard,
                    Err(poisoned) => poisoned.into_inner().0,
                };
                nap = (nap * 2).min(LONG_LOOK);
            }
        }
        self.idle_waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// A worker ran out of tasks: those who wait for the end may look again.
    pub(crate) fn nudge_idle_waiters(&self) {
        fence(Ordering::SeqCst);
        if self.idle_waiters.load(Ordering::Relaxed) > 0 {
            let _guard = lock(&self.idle.0);
            self.idle.1.notify_all();
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut total = Stats::default();
        for seat in &self.seats {
            total.add(&seat.counters.read());
        }
        total.spawned += self.outside_spawned.load(Ordering::Acquire);
        total
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread::yield_now;

    use super::*;
    use crate::Pool;

    /// The only worker goes on from the last task to something long that is no task. Whoever waits for the end of all tasks
    /// also looks by itself now and then; here it does not, so it has to be told before the long thing ends.
    #[test]
    fn the_end_of_all_tasks_is_told_before_an_entry_is_run() {
        const LIMIT: Duration = Duration::from_secs(20);
        // A worker tells at every 64th turn in any case; that may be this one, but not each of three.
        for _ in 0..3 {
            let pool = Pool::builder().threads(1).build().unwrap();
            let registry = &pool.registry;
            let gate = Arc::new(AtomicBool::new(false));
            let ((began, begun), (tell, told)) = (mpsc::channel(), mpsc::channel());
            let opened = Arc::clone(&gate);
            pool.detach(move || {
                began.send(()).unwrap();
                while !opened.load(Ordering::SeqCst) {
                    yield_now();
                }
            });
            begun.recv().unwrap();
            registry.idle_waiters.fetch_add(1, Ordering::SeqCst);
            std::thread::scope(|threads| {
                let entered = threads.spawn(|| pool.install(move || told.recv_timeout(LIMIT).is_ok()));
                while registry.injected(Lane::Awaited) == 0 {
                    yield_now();
                }
                // Nobody can tell before it waits: that takes the lock.
                let guard = registry.idle.0.lock().unwrap();
                gate.store(true, Ordering::SeqCst);
                let (guard, wait) = registry.idle.1.wait_timeout(guard, LIMIT).unwrap();
                drop(guard);
                if !wait.timed_out() {
                    assert!(registry.is_idle());
                    tell.send(()).unwrap();
                }
                assert!(entered.join().unwrap(), "the end of the last task was told after the entry");
            });
            registry.idle_waiters.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
