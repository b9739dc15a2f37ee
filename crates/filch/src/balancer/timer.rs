//! The background thread: fires timers (rebalancing, retries, timeouts, samples) and ends waits whose time is up.
//!
//! It takes the lock for one step at a time and never while it sleeps, so it never keeps anybody from submitting. It
//! holds the balancer only while it works, so it never keeps one alive. There is one at a time; when other people's code
//! waits on it, another takes over.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use filch_core::{Event, Time};
use parking_lot::{Condvar, Mutex};

use super::Shared;
use crate::clock::Timepiece;
use crate::duration;

/// What the thread waits for; shared with those who give it something to wait for.
pub(super) struct Alarm {
    clock: Arc<Timepiece>,
    plan: Mutex<Plan>,
    changed: Condvar,
    /// `Plan::timer`, so that operations see without a lock that there is nothing to tell.
    timer: AtomicU64,
}

#[derive(Default)]
struct Plan {
    /// When the machine wants to be called, by the balancer's clock.
    timer: Time,
    /// Waits that end then.
    waits: BTreeSet<(Instant, u64)>,
    /// Grows whenever a thread is told to stop or another takes over; a thread belongs to one.
    generation: u64,
    thread: Option<JoinHandle<()>>,
    /// No thread is started until it is allowed again.
    stopped: bool,
}

impl Plan {
    /// Whether there is a thread, and a panic (of a bug, say) has not ended it.
    fn runs(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Whether the caller is that thread.
    fn is_here(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id())
    }
}

impl Alarm {
    pub(super) fn new(clock: Arc<Timepiece>) -> Alarm {
        let plan = Plan { timer: Time::NEVER, ..Plan::default() };
        Alarm { clock, plan: Mutex::new(plan), changed: Condvar::new(), timer: AtomicU64::new(u64::MAX) }
    }

    /// The machine's next timer is due then. Only an earlier one disturbs the thread; a later one it finds by itself.
    #[inline]
    pub(super) fn set_timer(&self, at: Time) {
        if at.0 < self.timer.load(Ordering::SeqCst) {
            let mut plan = self.plan.lock();
            if at < plan.timer {
                self.store_timer(&mut plan, at);
                self.changed.notify_one();
            }
        }
    }

    fn store_timer(&self, plan: &mut Plan, at: Time) {
        plan.timer = at;
        self.timer.store(at.0, Ordering::SeqCst);
    }

    pub(super) fn add_wait(&self, until: Instant, key: u64) {
        let mut plan = self.plan.lock();
        let first = plan.waits.first().copied();
        plan.waits.insert((until, key));
        if first.is_none_or(|first| (until, key) < first) {
            self.changed.notify_one();
        }
    }

    pub(super) fn remove_wait(&self, until: Instant, key: u64) {
        self.plan.lock().waits.remove(&(until, key));
    }

    /// Threads may be started again after a stop.
    pub(super) fn allow(&self) {
        self.plan.lock().stopped = false;
    }

    pub(super) fn is_running(&self) -> bool {
        self.plan.lock().runs()
    }

    /// Ends the thread and waits for its end, unless this is that very thread.
    pub(super) fn stop(&self) {
        let thread = {
            let mut plan = self.plan.lock();
            plan.generation += 1;
            plan.stopped = true;
            self.changed.notify_one();
            plan.thread.take()
        };
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Shared<T, R> {
    /// Starts the thread unless it runs or the balancer is stopped. If the system has no thread to give, timers fire with the next operation.
    pub(super) fn start_thread(self: &Arc<Self>) {
        let mut plan = self.alarm.plan.lock();
        if plan.runs() || plan.stopped {
            return;
        }
        plan.thread = self.spawn_thread(&mut plan);
    }

    /// Whoever is about to wait calls this. On the timer thread that is the code of a callback, a waker or a payload: it would
    /// wait for timers that nobody fires, so another thread takes over, and this one ends when that code is done. If the
    /// system has no thread to give, the wait lasts until its own time is up.
    pub(super) fn leave_timer_thread(self: &Arc<Self>) {
        let mut plan = self.alarm.plan.lock();
        if !plan.is_here() {
            return;
        }
        plan.generation += 1;
        match self.spawn_thread(&mut plan) {
            Some(thread) => plan.thread = Some(thread),
            None => plan.generation -= 1,
        }
    }

    fn spawn_thread(self: &Arc<Self>, plan: &mut Plan) -> Option<JoinHandle<()>> {
        // Look at once: whatever was set before nobody has looked at.
        self.alarm.store_timer(plan, Time::ZERO);
        let (weak, alarm, generation) = (Arc::downgrade(self), Arc::clone(&self.alarm), plan.generation);
        let thread = std::thread::Builder::new().name("filch-timer".to_owned());
        thread.spawn(move || run(&weak, &alarm, generation)).ok()
    }
}

fn run<T, R>(weak: &Weak<Shared<T, R>>, alarm: &Alarm, generation: u64) {
    while let Some((timer_is_due, wait)) = alarm.sleep(generation) {
        let Some(shared) = weak.upgrade() else { return };
        if let Some(key) = wait {
            shared.with(|state, now, after| state.time_out(now, key, after));
        }
        if timer_is_due {
            let next = shared.with(|state, now, after| {
                // A tick is never refused.
                let _ = state.step(now, Event::Tick, after);
                state.scheduler.next_timer()
            });
            if let Some(at) = next {
                alarm.set_timer(at);
            }
        }
    }
}

impl Alarm {
    /// Sleeps until something is due: whether the machine's timer is, and a wait that ends. None once stopped.
    ///
    /// One wait at a time: what this thread has taken nobody else can see to, should it be held up by a callback.
    fn sleep(&self, generation: u64) -> Option<(bool, Option<u64>)> {
        let runs_by_itself = self.clock.runs_by_itself();
        loop {
            // The clock may be somebody else's, so it is not asked under the lock; what passes until then is slept less.
            let (now, here) = (runs_by_itself.then(|| self.clock.now()), Instant::now());
            let mut plan = self.plan.lock();
            if plan.generation != generation {
                return None;
            }
            let until_timer = now.filter(|_| plan.timer != Time::NEVER).map(|now| duration(plan.timer.since(now)));
            let timer_is_due = until_timer == Some(Duration::ZERO);
            if timer_is_due {
                self.store_timer(&mut plan, Time::NEVER);
            }
            let until_wait = plan.waits.first().map(|wait| wait.0.saturating_duration_since(here));
            let wait = if until_wait == Some(Duration::ZERO) { plan.waits.pop_first() } else { None };
            if timer_is_due || wait.is_some() {
                return Some((timer_is_due, wait.map(|wait| wait.1)));
            }
            match until_timer.into_iter().chain(until_wait).min().and_then(|rest| here.checked_add(rest)) {
                Some(until) => {
                    self.changed.wait_until(&mut plan, until);
                }
                None => self.changed.wait(&mut plan),
            }
        }
    }
}
