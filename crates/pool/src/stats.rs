//! Counters of what the workers did. Each worker writes its own; reading them disturbs nobody.
//!
//! Forks that stay private are not counted: that would cost more than the fork. The rest is always counted: a spawned task
//! costs two plain additions, which waiting for an idle pool needs anyway, and all else is counted by workers that have
//! nothing to do.

use std::time::Instant;

use crate::sync::{AtomicU64, Duration, Ordering, yield_now};

/// Steps of the steal-latency histogram: powers of two, in nanoseconds.
pub const LATENCY_STEPS: usize = 32;

/// What one worker did, or all together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Spawned tasks that ran to their end, panicked or were discarded.
    pub executed: u64,
    /// Tasks spawned. In a worker's own figures: by that worker.
    pub spawned: u64,
    /// Forked jobs run by another worker than the one that forked them.
    pub jobs_stolen: u64,
    /// Looks at another worker's queues, by idle workers and by those that help while they wait.
    pub steals_tried: u64,
    /// Looks that brought something.
    pub steals_won: u64,
    /// How long the worker was parked, the sleep it is in included.
    pub parked: Duration,
    /// How often it parked.
    pub parks: u64,
    /// How long idle workers searched, since they ran out of work or were woken, until they had stolen something: entry
    /// `i` counts those below 2^(i+1) ns. What waiting workers steal is not in it.
    pub steal_latency: [u64; LATENCY_STEPS],
}

impl Stats {
    /// Looks that brought nothing.
    pub fn steals_failed(&self) -> u64 {
        self.steals_tried - self.steals_won
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.executed += other.executed;
        self.spawned += other.spawned;
        self.jobs_stolen += other.jobs_stolen;
        self.steals_tried += other.steals_tried;
        self.steals_won += other.steals_won;
        self.parked += other.parked;
        self.parks += other.parks;
        for (sum, more) in self.steal_latency.iter_mut().zip(other.steal_latency) {
            *sum += more;
        }
    }
}

/// No sleep, and one that is just being added to the sum.
const NONE: u64 = 0;
const ENDING: u64 = u64::MAX;

/// The counters behind [`Stats`]; only the owning worker writes.
pub(crate) struct Counters {
    pub(crate) executed: Counter,
    pub(crate) spawned: Counter,
    pub(crate) jobs_stolen: Counter,
    pub(crate) steals_tried: Counter,
    pub(crate) steals_won: Counter,
    parked_ns: Counter,
    /// When the current sleep began, in nanoseconds after `epoch`, or `NONE`, or `ENDING`.
    parked_since: AtomicU64,
    epoch: Instant,
    parks: Counter,
    steal_latency: [Counter; LATENCY_STEPS],
}

/// A number with one writer.
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds without a read-modify-write. Only the owner calls it. Release, so that whoever sees a task counted as
    /// executed also sees what it spawned counted.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Release);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            executed: Counter::new(),
            spawned: Counter::new(),
            jobs_stolen: Counter::new(),
            steals_tried: Counter::new(),
            steals_won: Counter::new(),
            parked_ns: Counter::new(),
            parked_since: AtomicU64::new(NONE),
            epoch: Instant::now(),
            parks: Counter::new(),
            steal_latency: std::array::from_fn(|_| Counter::new()),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// A sleep begins. Only the owner calls it, and `wake` when it ends.
    pub(crate) fn sleep(&self) {
        self.parks.add(1);
        self.parked_since.store(self.now(), Ordering::Release);
    }

    pub(crate) fn wake(&self) {
        // Before the clock is read: whoever still sees the sleep going on has read it earlier.
        let since = self.parked_since.swap(ENDING, Ordering::SeqCst);
        let slept = self.now() - since;
        // Release: who sees the sleep in the sum sees that it is ending, too.
        self.parked_ns.add(slept);
        self.parked_since.store(NONE, Ordering::Release);
    }

    /// How long the worker slept, the current sleep included.
    fn parked(&self) -> Duration {
        loop {
            let since = self.parked_since.load(Ordering::Acquire);
            let (before, now) = (self.parked_ns.get(), self.now());
            // The same sleep, which has not been added meanwhile; or still none.
            if since != ENDING && self.parked_since.load(Ordering::SeqCst) == since {
                let current = if since == NONE { 0 } else { now.saturating_sub(since) };
                return Duration::from_nanos(before + current);
            }
            yield_now();
        }
    }

    pub(crate) fn searched(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.steal_latency[(ns.ilog2() as usize).min(LATENCY_STEPS - 1)].add(1);
    }

    pub(crate) fn read(&self) -> Stats {
        // Won before tried: the difference never goes below zero.
        let steals_won = self.steals_won.get();
        Stats {
            executed: self.executed.get(),
            spawned: self.spawned.get(),
            jobs_stolen: self.jobs_stolen.get(),
            steals_tried: self.steals_tried.get(),
            steals_won,
            parked: self.parked(),
            parks: self.parks.get(),
            steal_latency: std::array::from_fn(|step| self.steal_latency[step].get()),
        }
    }
}
