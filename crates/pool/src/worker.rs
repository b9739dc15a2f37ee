//! One worker: what it runs next, how it steals, when it sleeps. How it waits for something is in `wait`.

use std::cell::Cell;
use std::time::Instant;
use std::{mem, ptr};

use crate::deque::{Deque, Header, Slot, Steal};
use crate::latch::Latch;
use crate::pin;
use crate::quiet::NoPanicPasses;
use crate::registry::{Registry, Seat};
use crate::ring::Take;
use crate::scope::Core;
use crate::sync::{
    Arc, Duration, Ordering, current as current_thread, park, park_timeout, spin, thread_local, yield_now,
};
use crate::task::{Fate, LANES, Lane, Task};

/// How often an idle worker looks everywhere before it sleeps, with growing pauses.
#[cfg(not(shuttle))]
pub(crate) const SEARCH_ROUNDS: u32 = 16;
#[cfg(shuttle)]
pub(crate) const SEARCH_ROUNDS: u32 = 2;

/// How many of these pauses are busy waits; after that the worker yields.
const SPIN_ROUNDS: u32 = 6;

const SHORT_NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_micros(500);

/// After so many naps in which nobody ran anything, the sentinel sleeps for good too.
const QUIET_NAPS: u32 = 4;

/// Once in so many tasks a worker looks at the lowest lane and the shared queue first.
const FAIRNESS: u32 = 64;

/// Once in so many tasks a worker looks at the others' tasks first, the lowest lane before all: who queued them may be busy
/// with one task for ever.
const CHARITY: u32 = 16 * FAIRNESS;

/// The most spawned tasks that are stolen at once.
const STEAL_LIMIT: usize = 32;

#[cfg(not(shuttle))]
thread_local! {
    static CURRENT: Cell<*const Worker> = const { Cell::new(ptr::null()) };
    /// The current worker's deque: the thread-local join needs nothing else.
    static DEQUE: Cell<*const Deque> = const { Cell::new(ptr::null()) };
}
#[cfg(shuttle)]
thread_local! {
    static CURRENT: Cell<*const Worker> = Cell::new(ptr::null());
    static DEQUE: Cell<*const Deque> = Cell::new(ptr::null());
}

/// Something to run.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// A stolen job and the worker that forked it.
    Job(*const Header, u32),
    Task(*mut Task),
}

/// The state of a worker's thread. It lives on that thread's stack and is reached from there only.
pub(crate) struct Worker {
    /// This worker's seat, which lives as long as the registry.
    seat: *const Seat,
    registry: Arc<Registry>,
    index: u32,
    /// Whether there are others who may steal.
    shared: bool,
    tick: Cell<u32>,
    random: Cell<u64>,
    /// The last victim that had something.
    sticky: Cell<usize>,
    /// The scope whose task or body this worker is in, or null.
    scope: Cell<*const Core>,
    /// How long to look away from the shared queue before the next look, in turns of a busy wait; then how long it was
    /// the last time.
    linger: Cell<u32>,
    linger_before: Cell<u32>,
    /// How many regions in a row were entered and waited for without sleep from the very processor this worker runs on; and
    /// when it last moved away because of that.
    crowded: Cell<u32>,
    moved: Cell<Option<Instant>>,
}

/// After so many regions entered from the worker's own processor it moves to another one, but not more often than so. The
/// thread that enters and the worker would go on taking turns there: each only yields, and the system sees no reason to
/// part them for many milliseconds.
const CROWDED: u32 = 4;
const STAY: Duration = Duration::from_millis(2);

/// A worker that finds fewer tasks than this in the shared queue is faster than those who spawn them: it looks away for a
/// while, because every look stops them for longer than one task takes.
const FEW: usize = 16;
const LONGEST_LINGER: u32 = 64;

/// The worker whose thread this is. The reference must not leave the thread, which every use in this crate respects.
#[inline]
pub(crate) fn current<'a>() -> Option<&'a Worker> {
    let worker = CURRENT.with(Cell::get);
    // SAFETY: set for exactly as long as the worker lives on this thread's stack, beneath everything the thread runs.
    unsafe { worker.as_ref() }
}

/// The deque of the worker whose thread this is. The reference must not leave the thread either.
#[inline(always)]
pub(crate) fn current_deque<'a>() -> Option<&'a Deque> {
    let deque = DEQUE.with(Cell::get);
    // SAFETY: set for exactly as long as `CURRENT`, and the worker keeps it alive.
    unsafe { deque.as_ref() }
}

/// The worker whose thread this is, if it belongs to this pool.
#[inline]
pub(crate) fn current_of<'a>(registry: &Registry) -> Option<&'a Worker> {
    current().filter(|worker| worker.is_of(registry))
}

/// Runs a worker until its pool ends.
pub(crate) fn run(registry: Arc<Registry>, index: usize) {
    let worker = Worker {
        seat: &raw const registry.seats[index],
        index: index as u32,
        shared: registry.seats.len() > 1,
        tick: Cell::new(0),
        random: Cell::new(0x9E37_79B9_7F4A_7C15 ^ (index as u64 + 1) << 17),
        sticky: Cell::new(registry.victims.nearest(index)),
        scope: Cell::new(ptr::null()),
        linger: Cell::new(0),
        linger_before: Cell::new(0),
        crowded: Cell::new(0),
        moved: Cell::new(None),
        registry,
    };
    let _ = worker.seat().thread.set(current_thread());
    CURRENT.with(|slot| slot.set(&worker));
    DEQUE.with(|slot| slot.set(worker.deque()));
    worker.call_hook(worker.registry.start_hook.as_ref());
    worker.main_loop();
    worker.call_hook(worker.registry.exit_hook.as_ref());
    DEQUE.with(|slot| slot.set(ptr::null()));
    CURRENT.with(|slot| slot.set(ptr::null()));
    worker.registry.count_ended();
}

impl Worker {
    #[inline]
    pub(crate) fn seat(&self) -> &Seat {
        // SAFETY: it is part of the registry, which this worker keeps alive.
        unsafe { &*self.seat }
    }

    pub(crate) fn index(&self) -> usize {
        self.index as usize
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Whether it is a worker of this pool.
    #[inline]
    pub(crate) fn is_of(&self, registry: &Registry) -> bool {
        ptr::eq(&raw const *self.registry, registry)
    }

    pub(crate) fn current_scope(&self) -> *const Core {
        self.scope.get()
    }

    /// A task of this scope begins here; returns the scope to go back to.
    #[inline]
    pub(crate) fn enter_scope(&self, scope: *const Core) -> *const Core {
        self.scope.replace(scope)
    }

    /// Goes back to an outer scope.
    #[inline]
    pub(crate) fn close_scope(&self, outer: *const Core) {
        self.scope.set(outer);
    }

    /// A scope begins here; returns where its tasks begin in the ring.
    pub(crate) fn open_scope(&self, scope: &Core) -> i64 {
        self.scope.set(scope);
        self.seat().rings[Lane::Awaited as usize].bottom()
    }

    pub(crate) fn call_hook(&self, hook: Option<&crate::registry::Hook>) {
        let Some(hook) = hook else { return };
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hook(self.index())));
        if let Err(payload) = called {
            self.registry.report_panic(payload);
        }
    }

    #[inline(always)]
    pub(crate) fn deque(&self) -> &Deque {
        &self.seat().deque
    }

    /// A region ended that a thread on processor `from` entered and waits for awake, or one that sleeps (none).
    pub(crate) fn served(&self, from: Option<usize>) {
        if from.is_none() || from != pin::here() {
            self.crowded.set(0);
            return;
        }
        self.crowded.set(self.crowded.get() + 1);
        if self.crowded.get() < CROWDED || self.moved.get().is_some_and(|moved| moved.elapsed() < STAY) {
            return;
        }
        self.crowded.set(0);
        self.moved.set(Some(Instant::now()));
        self.registry.moving.store(true, Ordering::Relaxed);
        // If it must stay, all goes on as before, only slower.
        let _ = from.map(pin::leave);
        self.registry.moving.store(false, Ordering::Relaxed);
    }

    /// Queues a spawned task here.
    #[inline]
    pub(crate) fn push(&self, task: *mut Task, lane: Lane) {
        let seat = self.seat();
        seat.counters.spawned.add(1);
        // SAFETY: this is the owner's thread.
        unsafe { seat.rings[lane as usize].push(task) };
        self.registry.sleep.notify_relaxed();
    }

    fn main_loop(&self) {
        let sleep = &self.registry.sleep;
        sleep.start_search();
        sleep.start_active();
        loop {
            self.work();
            sleep.stop_active();
            if self.registry.is_stopping() {
                // It may have been the last: those who stayed because of it can go.
                sleep.wake_all();
            }
            self.registry.nudge_idle_waiters();
            let Some(work) = self.idle() else { break };
            sleep.start_active();
            if self.registry.has_work(self.index()) {
                sleep.wake_another();
            } else if matches!(work, Work::Job(..)) {
                sleep.wake_sentinel();
            }
            self.run_work(work);
        }
    }

    /// Runs what there is without stealing.
    fn work(&self) {
        loop {
            if let Some(task) = self.next_own() {
                // SAFETY: just taken out of its queue.
                unsafe { self.run_task(task) };
            } else if let Some(work) = self.next_of_all() {
                self.run_work(work);
            } else {
                return;
            }
        }
    }

    /// The next thing to run that needs no stealing.
    pub(crate) fn next(&self) -> Option<Work> {
        self.next_own().map(Work::Task).or_else(|| self.next_of_all())
    }

    /// The next of this worker's own tasks, unless there is something that goes before it; now and then what would come
    /// last of all.
    #[inline]
    fn next_own(&self) -> Option<*mut Task> {
        let tick = self.tick.get().wrapping_add(1);
        self.tick.set(tick);
        if tick.is_multiple_of(FAIRNESS)
            && let Some(task) = self.next_neglected()
        {
            return Some(task);
        }
        if !self.registry.is_undisturbed(self.index()) {
            return None;
        }
        self.pop(Lane::Awaited).or_else(|| self.pop(Lane::High)).or_else(|| self.pop(Lane::Normal))
    }

    /// The next thing to run if it may be anything that needs no stealing.
    fn next_of_all(&self) -> Option<Work> {
        if let Some(passed) = self.registry.take_passed() {
            return Some(passed);
        }
        if let Some(task) = self.registry.take_order(self.index()) {
            return Some(Work::Task(task));
        }
        if self.linger.get() > 0 && self.seat().rings.iter().all(|ring| ring.len() == 0) {
            spin(self.linger.take());
        }
        let next = |lane| {
            let mail = self.registry.take_mail(self.index(), lane);
            mail.or_else(|| self.pop(lane)).or_else(|| self.take_injected(lane))
        };
        LANES.into_iter().find_map(next).map(Work::Task)
    }

    /// The task that would otherwise come last, and a look at who waits for the end of all.
    #[cold]
    fn next_neglected(&self) -> Option<*mut Task> {
        self.registry.nudge_idle_waiters();
        let others = if self.tick.get().is_multiple_of(CHARITY) { self.take_neglected_by_others() } else { None };
        others.or_else(|| LANES.into_iter().rev().find_map(|lane| self.take_neglected(lane)))
    }

    /// The oldest task of the lowest lane of another worker, of any that has one.
    fn take_neglected_by_others(&self) -> Option<*mut Task> {
        let others = self.registry.victims.around(self.index(), self.next_random());
        let lowest = |victim: usize| {
            let lanes = LANES.into_iter().rev().filter(|lane| *lane != Lane::Awaited);
            lanes.into_iter().find_map(|lane| steal_one(&self.registry.seats[victim], lane))
        };
        others.into_iter().find_map(lowest)
    }

    /// The task of a lane that would otherwise come last: newer ones may come for ever.
    fn take_neglected(&self, lane: Lane) -> Option<*mut Task> {
        let shared = self.take_injected(lane).or_else(|| self.registry.take_last_mail(self.index(), lane));
        // As a thief of its own: those get the oldest.
        shared.or_else(|| steal_one(self.seat(), lane))
    }

    #[inline]
    fn pop(&self, lane: Lane) -> Option<*mut Task> {
        // SAFETY: this is the owner's thread.
        unsafe { self.seat().rings[lane as usize].pop() }
    }

    #[inline]
    fn take_injected(&self, lane: Lane) -> Option<*mut Task> {
        if self.registry.injected(lane) == 0 { None } else { self.take_share(lane) }
    }

    #[cold]
    fn take_share(&self, lane: Lane) -> Option<*mut Task> {
        let ring = &self.seat().rings[lane as usize];
        let mut kept = 0;
        let first = self.registry.take_share(lane, |task| {
            kept += 1;
            // SAFETY: this is the owner's thread.
            unsafe { ring.push(task) }
        });
        // Whoever waits for a task shall not wait longer for this.
        if lane != Lane::Awaited {
            let linger = if kept < FEW { (self.linger_before.get() * 2).clamp(4, LONGEST_LINGER) } else { 0 };
            self.linger_before.set(linger);
            self.linger.set(linger);
        }
        first
    }

    fn run_work(&self, work: Work) {
        match work {
            // SAFETY: whoever builds `Work` has taken it out of its queue.
            Work::Job(job, owner) => unsafe { self.run_job(job, owner, self.deque().slot(0)) },
            // SAFETY: as above.
            Work::Task(task) => unsafe { self.run_task(task) },
        }
    }

    /// # Safety
    /// The caller took the task out of a queue.
    pub(crate) unsafe fn run_task(&self, task: *mut Task) {
        // SAFETY: tasks in queues are alive and consumed once.
        unsafe {
            // A scope waits for its tasks, so they run even if the pool throws the others away.
            let fate = if (*task).scope.is_null() { self.registry.fate() } else { Fate::Run };
            self.consume(task, fate);
        }
    }

    /// # Safety
    /// As for `consume`; a scope waits for the task.
    #[inline]
    pub(crate) unsafe fn run_scoped(&self, task: *mut Task) {
        // SAFETY: the caller's promise.
        unsafe { self.consume(task, Fate::Run) };
    }

    /// # Safety
    /// The caller took the task out of a queue.
    #[inline]
    unsafe fn consume(&self, task: *mut Task, fate: Fate) {
        if self.shared {
            self.deque().arm();
        }
        let guard = NoPanicPasses;
        // SAFETY: tasks in queues are alive and consumed once.
        let ran = unsafe { ((*task).run)(task, self, fate) };
        mem::forget(guard);
        if ran {
            self.count_executed();
        }
    }

    pub(crate) fn count_executed(&self) {
        self.seat().counters.executed.add(1);
    }

    /// # Safety
    /// The caller stole the job from `owner`, and `tail` is this worker's true tail.
    pub(crate) unsafe fn run_job(&self, job: *const Header, owner: u32, tail: *const Slot) {
        self.seat().counters.jobs_stolen.add(1);
        self.deque().arm();
        // Which scope the job belongs to is not known here.
        let outer = self.enter_scope(ptr::null());
        let guard = NoPanicPasses;
        // SAFETY: a stolen job stays alive until its latch is set, and its shared part was written when published.
        let latch = unsafe {
            let shared = (*job).shared();
            shared.set_runner(self.index, self.deque().index(tail));
            ((*job).run)(job, ptr::from_ref(self).cast(), tail);
            &raw const shared.latch
        };
        mem::forget(guard);
        self.close_scope(outer);
        // SAFETY: still alive; set once, by the one thief.
        if unsafe { Latch::set(latch) } {
            self.registry.rouse(owner as usize);
        }
    }

    /// Looks everywhere once, at the last good victim first, then nearest first; asks everybody for work if there is none.
    pub(crate) fn steal(&self) -> Option<Work> {
        let count = self.registry.seats.len();
        if count == 1 {
            return None;
        }
        let sticky = self.sticky.get();
        let others = self.registry.victims.around(self.index(), self.next_random());
        for victim in std::iter::once(sticky).chain(others.filter(|victim| *victim != sticky)) {
            self.seat().counters.steals_tried.add(1);
            if let Some(work) = self.steal_from(victim) {
                self.seat().counters.steals_won.add(1);
                self.sticky.set(victim);
                return Some(work);
            }
        }
        for (_, seat) in self.registry.seats.iter().enumerate().filter(|(index, _)| *index != self.index()) {
            seat.deque.request();
        }
        None
    }

    fn steal_from(&self, victim: usize) -> Option<Work> {
        let seat = &self.registry.seats[victim];
        loop {
            match seat.deque.steal(0) {
                Steal::Job(job) => return Some(Work::Job(job, victim as u32)),
                Steal::Empty => break,
                Steal::Retry => spin(1),
            }
        }
        let task = LANES.into_iter().find_map(|lane| self.steal_tasks(seat, lane));
        task.or_else(|| self.registry.take_surplus_mail(victim)).map(Work::Task)
    }

    /// Takes half of a ring, but one task only where somebody waits for them: that one can run the rest itself.
    fn steal_tasks(&self, seat: &Seat, lane: Lane) -> Option<*mut Task> {
        let ring = &seat.rings[lane as usize];
        let more = if lane == Lane::Awaited { 0 } else { (ring.len() / 2).min(STEAL_LIMIT) };
        let first = steal_one(seat, lane)?;
        for _ in 0..more {
            let Take::One(task) = ring.steal() else { break };
            // SAFETY: this is the owner's thread.
            unsafe { self.seat().rings[lane as usize].push(task) };
        }
        Some(first)
    }

    fn next_random(&self) -> u64 {
        let mut state = self.random.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.random.set(state);
        state
    }

    /// Searches, naps and parks until there is something to run; `None` when the pool ends.
    fn idle(&self) -> Option<Work> {
        let (registry, sleep, index) = (&self.registry, &self.registry.sleep, self.index());
        sleep.start_search();
        let mut began = Instant::now();
        let (mut rounds, mut nap, mut quiet) = (SEARCH_ROUNDS, SHORT_NAP, 0);
        loop {
            for round in 0..rounds {
                if let Some(work) = self.next() {
                    return Some(work);
                }
                if let Some(work) = self.steal() {
                    self.seat().counters.searched(began.elapsed());
                    return Some(work);
                }
                // Whoever would bring work may be waiting for this very core: after a while, let it have a go.
                if round >= SPIN_ROUNDS {
                    yield_now();
                } else if rounds > 1 {
                    spin(1 << round);
                }
            }
            sleep.stop_search();
            if registry.is_drained() {
                // Others may have seen this one search, and stayed because of it.
                sleep.wake_all();
                return None;
            }
            sleep.enlist(index, current_thread());
            let mut sentinel = sleep.claim_sentinel();
            if sentinel && sleep.none_active() {
                quiet += 1;
                if quiet > QUIET_NAPS {
                    sleep.release_sentinel();
                    sentinel = false;
                    // Somebody may have become active just before: then one of us has to stay sentinel.
                    if !sleep.none_active() {
                        quiet = 0;
                    }
                }
            } else {
                quiet = 0;
            }
            let may_park = sentinel || quiet > QUIET_NAPS || sleep.has_sentinel() || sleep.none_active();
            if may_park && !registry.has_work(index) && !registry.is_drained() {
                self.park(|| if sentinel { park_timeout(nap) } else { park() });
                // Whoever enters now wakes this worker and makes room for it.
                self.crowded.set(0);
            }
            let timed_out = sleep.delist(index);
            if sentinel {
                sleep.release_sentinel();
            }
            if timed_out {
                (rounds, nap) = (1, (nap * 2).min(LONG_NAP));
            } else {
                // What it was woken for usually lies in the shared queue.
                if let Some(work) = self.next() {
                    return Some(work);
                }
                // A freshly woken thread often lands on the core of the worker it is to steal from: let that one go on.
                yield_now();
                (rounds, nap) = (SEARCH_ROUNDS, SHORT_NAP);
            }
            began = Instant::now();
        }
    }

    pub(crate) fn park(&self, park: impl FnOnce()) {
        let counters = &self.seat().counters;
        counters.sleep();
        park();
        counters.wake();
    }
}

pub(crate) fn steal_one(seat: &Seat, lane: Lane) -> Option<*mut Task> {
    loop {
        match seat.rings[lane as usize].steal() {
            Take::One(task) => return Some(task),
            Take::Empty => return None,
            Take::Retry => spin(1),
        }
    }
}
