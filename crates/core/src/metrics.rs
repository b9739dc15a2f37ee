//! Counters, metrics by the names users know, samples of utilisation, and what they say about health.

use std::fmt;

use serde::Serialize;

use crate::config::Thresholds;
use crate::ids::WorkerId;
use crate::steal::StealStats;
use crate::task::Status;
use crate::time::{Span, Time};

/// What the scheduler counts while it works; every update is O(1).
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) events: u64,
    pub(crate) submitted: u64,
    pub(crate) queued: u64,
    pub(crate) pending_elements: u64,
    /// Tasks that nobody can run, elements of arrays included.
    pub(crate) parked: u64,
    /// Tasks that wait for their next attempt.
    pub(crate) retrying: u64,
    pub(crate) joined: u64,
    pub(crate) steal_attempts: u64,
    pub(crate) steal_successes: u64,
    pub(crate) tasks_migrated: u64,
    pub(crate) rebalance_cycles: u64,
    pub(crate) retries: u64,
    pub(crate) given_back: u64,
    pub(crate) requeues: u64,
    pub(crate) timeouts: u64,
    pub(crate) promotions: u64,
    pub(crate) reservations: u64,
    pub(crate) quarantines: u64,
    /// Workers set aside right now.
    pub(crate) quarantined: u64,
    pub(crate) stale_reports: u64,
    pub(crate) hopeless: u64,
    pub(crate) deadlines_missed: u64,
    pub(crate) busy: u64,
    pub(crate) idle: u64,
    pub(crate) fully_used: u64,
    pub(crate) unused: u64,
    pub(crate) running: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    skipped: u64,
    returned: u64,
    assignments: u64,
    waited: Span,
    longest_wait: Span,
    depth_sum: u64,
    depth_squares: u64,
    last_end: Option<Time>,
    /// Moving average of the time between two ends, in nanoseconds.
    end_gap: f64,
}

impl Counters {
    pub(crate) fn assigned(&mut self, waited: Span) {
        self.assignments += 1;
        self.running += 1;
        self.waited += waited;
        self.longest_wait = self.longest_wait.max(waited);
    }

    /// The use of a worker's slots has changed: used and all, before and now.
    pub(crate) fn use_changed(&mut self, before: (u32, u32), now: (u32, u32)) {
        self.fully_used += u64::from(now.0 >= now.1);
        self.fully_used -= u64::from(before.0 >= before.1);
        self.unused += u64::from(now.0 == 0);
        self.unused -= u64::from(before.0 == 0);
    }

    /// A task ended well at that moment.
    pub(crate) fn drained(&mut self, now: Time) {
        if let Some(last) = self.last_end {
            let gap = now.since(last).0 as f64;
            self.end_gap = if self.end_gap == 0.0 { gap } else { 0.99 * self.end_gap + 0.01 * gap };
        }
        self.last_end = Some(now);
    }

    /// How long it should take until that many tasks have gone: between 10 ms and a minute.
    pub(crate) fn time_to_drain(&self, tasks: u64) -> Span {
        let known = Span((self.end_gap * tasks as f64) as u64);
        let guess = if self.last_end.is_some() { known } else { Span::from_secs(1) };
        guess.max(Span::from_millis(10)).min(Span::from_secs(60))
    }

    pub(crate) fn settled(&mut self, status: Status, count: u64) {
        let counter = match status {
            Status::Completed => &mut self.completed,
            Status::Cancelled => &mut self.cancelled,
            Status::Skipped => &mut self.skipped,
            Status::Returned => &mut self.returned,
            _ => &mut self.failed,
        };
        *counter += count;
    }

    pub(crate) fn all_settled(&self) -> u64 {
        self.completed + self.failed + self.cancelled + self.skipped + self.returned
    }

    pub(crate) fn worker_came(&mut self, thresholds: &Thresholds) {
        self.idle += u64::from(0 < thresholds.idle_threshold);
        self.unused += 1;
    }

    /// A worker with nothing queued or running has gone.
    pub(crate) fn worker_went(&mut self, thresholds: &Thresholds) {
        self.idle -= u64::from(0 < thresholds.idle_threshold);
        self.unused -= 1;
    }

    pub(crate) fn depth_changed(&mut self, before: u32, now: u32, thresholds: &Thresholds) {
        let square = |depth: u32| u64::from(depth) * u64::from(depth);
        self.depth_sum = self.depth_sum + u64::from(now) - u64::from(before);
        self.depth_squares = self.depth_squares + square(now) - square(before);
        self.busy += u64::from(now > thresholds.busy_threshold);
        self.busy -= u64::from(before > thresholds.busy_threshold);
        self.idle += u64::from(now < thresholds.idle_threshold);
        self.idle -= u64::from(before < thresholds.idle_threshold);
    }

    /// Sum and sum of squares of all queue lengths, for checks.
    pub(crate) fn depths(&self) -> (u64, u64) {
        (self.depth_sum, self.depth_squares)
    }

    /// Variance of the queue lengths.
    pub(crate) fn queue_variance(&self, workers: u64) -> f64 {
        if workers == 0 {
            return 0.0;
        }
        let mean = self.depth_sum as f64 / workers as f64;
        (self.depth_squares as f64 / workers as f64 - mean * mean).max(0.0)
    }

    pub(crate) fn metrics(&self, workers: u64, busy: u64, idle: u64, unsettled: u64) -> Metrics {
        Metrics {
            total_steals: self.steal_attempts,
            successful_steals: self.steal_successes,
            failed_steals: self.steal_attempts - self.steal_successes,
            success_rate: rate(self.steal_successes, self.steal_attempts),
            tasks_migrated: self.tasks_migrated,
            rebalance_cycles: self.rebalance_cycles,
            avg_task_wait_time: if self.assignments == 0 {
                0.0
            } else {
                self.waited.as_secs_f64() / self.assignments as f64
            },
            max_task_wait_time: self.longest_wait.as_secs_f64(),
            agent_count: workers,
            total_queued: self.queued,
            busy_agents: busy,
            idle_agents: idle,
            running: self.running,
            // Whatever is not settled and nowhere else waits for others.
            blocked: unsettled - self.queued - self.running - self.parked - self.retrying,
            unschedulable: self.parked,
            retrying: self.retrying,
            submitted: self.submitted,
            completed: self.completed,
            failed: self.failed,
            cancelled: self.cancelled,
            skipped: self.skipped,
            returned: self.returned,
            retries: self.retries,
            given_back: self.given_back,
            requeues: self.requeues,
            timeouts: self.timeouts,
            promotions: self.promotions,
            reservations: self.reservations,
            quarantines: self.quarantines,
            stale_reports: self.stale_reports,
            hopeless_deadlines: self.hopeless,
            missed_deadlines: self.deadlines_missed,
            events: self.events,
        }
    }
}

/// A part of a whole; 0 of nothing.
pub(crate) fn rate(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The figures of the whole scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Metrics {
    /// Steal attempts.
    pub total_steals: u64,
    /// Attempts that took something.
    pub successful_steals: u64,
    /// Attempts that took nothing.
    pub failed_steals: u64,
    /// Successes per attempt; 0 before the first.
    pub success_rate: f64,
    /// Tasks moved between workers, by stealing and rebalancing.
    pub tasks_migrated: u64,
    /// Times the scheduler stepped in because queues were severely uneven.
    pub rebalance_cycles: u64,
    /// Mean seconds from ready to handed out.
    pub avg_task_wait_time: f64,
    /// Longest seconds from ready to handed out.
    pub max_task_wait_time: f64,
    /// Registered workers.
    pub agent_count: u64,
    /// Tasks waiting in any queue.
    pub total_queued: u64,
    /// Workers above the busy threshold.
    pub busy_agents: u64,
    /// Workers below the idle threshold.
    pub idle_agents: u64,
    /// Tasks handed to slots.
    pub running: u64,
    /// Tasks that wait for others to end.
    pub blocked: u64,
    /// Tasks that no registered worker can ever run; they are tried again a few times.
    pub unschedulable: u64,
    /// Tasks that pause before their next attempt.
    pub retrying: u64,
    /// Tasks accepted. All that are not settled are queued, running, blocked, unschedulable or retrying.
    pub submitted: u64,
    /// Tasks that ended well.
    pub completed: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks withdrawn.
    pub cancelled: u64,
    /// Tasks not run because a parent did not end well.
    pub skipped: u64,
    /// Tasks handed back when their worker was unregistered.
    pub returned: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Times a task was given back unfinished.
    pub given_back: u64,
    /// Times a task that nobody could run was tried again.
    pub requeues: u64,
    /// Attempts that ran too long.
    pub timeouts: u64,
    /// Times a task rose a level because it had waited.
    pub promotions: u64,
    /// Times a worker was kept free for a wide task.
    pub reservations: u64,
    /// Times a worker was set aside.
    pub quarantines: u64,
    /// Reports of attempts that no longer counted.
    pub stale_reports: u64,
    /// Tasks accepted although their deadline could not be met.
    pub hopeless_deadlines: u64,
    /// Deadlines that passed before the task was settled.
    pub missed_deadlines: u64,
    /// Events handled.
    pub events: u64,
}

impl Metrics {
    /// Adds what workers with queues of their own counted of their steals.
    pub fn add_steals(&mut self, steals: &StealStats) {
        self.total_steals += steals.attempts;
        self.successful_steals += steals.successes;
        self.failed_steals += steals.failures();
        self.success_rate = rate(self.successful_steals, self.total_steals);
    }
}

/// Utilisation at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Time,
    /// Tasks waiting in any queue.
    pub queued: u64,
    /// Tasks handed to slots.
    pub running: u64,
    /// Workers above the busy threshold.
    pub busy: u64,
    /// Workers below the idle threshold.
    pub idle: u64,
    /// Queue lengths by worker; left out when there are more than 256 workers.
    pub queue_lengths: Vec<(WorkerId, u32)>,
}

/// Something that looks wrong, with the numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "concern", rename_all = "snake_case")]
pub enum Concern {
    /// Much is queued and nobody is idle.
    AllBusy {
        /// Tasks waiting.
        queued: u64,
    },
    /// Few steals succeed.
    LowStealEfficiency {
        /// Successes per attempt.
        efficiency: f64,
    },
    /// Queue lengths differ a lot.
    HighQueueVariance {
        /// Their variance.
        variance: f64,
    },
    /// There are tasks but no workers.
    NoWorkers {
        /// Tasks waiting.
        queued: u64,
    },
    /// Nobody can run some of the tasks.
    Unschedulable {
        /// How many.
        tasks: u64,
    },
    /// Workers are set aside because they failed too often.
    Quarantined {
        /// How many.
        workers: u64,
    },
}

impl fmt::Display for Concern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Concern::AllBusy { queued } => {
                write!(f, "all workers are busy and {queued} tasks wait: consider more workers")
            }
            Concern::LowStealEfficiency { efficiency } => write!(
                f,
                "only {:.1}% of steals succeed: workers may lack each other's capabilities, or too much is protected",
                efficiency * 100.0
            ),
            Concern::HighQueueVariance { variance } => write!(
                f,
                "queue lengths vary a lot ({variance:.1}): rebalance more often, move more per cycle, or widen capabilities"
            ),
            Concern::NoWorkers { queued } => write!(f, "{queued} tasks wait and no worker is registered"),
            Concern::Unschedulable { tasks } => {
                write!(f, "no registered worker can run {tasks} of the tasks: register one that can, or correct them")
            }
            Concern::Quarantined { workers } => write!(f, "{workers} workers are set aside after repeated failures"),
        }
    }
}

/// The answer to "is all well?". Displays as one line for each concern.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Health {
    /// What looks wrong; nothing if all is well.
    pub concerns: Vec<Concern>,
}

impl Health {
    /// Queued tasks above which nobody idle is a concern.
    const MANY_QUEUED: u64 = 100;
    /// Steal efficiency below which it is a concern.
    const LOW_EFFICIENCY: f64 = 0.5;
    /// Queue variance above which it is a concern.
    const HIGH_VARIANCE: f64 = 10.0;

    pub(crate) fn new(metrics: &Metrics, queue_variance: f64, quarantined: u64) -> Health {
        let mut concerns = Vec::new();
        let queued = metrics.total_queued;
        if metrics.agent_count == 0 && queued > 0 {
            concerns.push(Concern::NoWorkers { queued });
        } else if queued > Self::MANY_QUEUED && metrics.idle_agents == 0 {
            concerns.push(Concern::AllBusy { queued });
        }
        if metrics.total_steals > 0 && metrics.success_rate < Self::LOW_EFFICIENCY {
            concerns.push(Concern::LowStealEfficiency { efficiency: metrics.success_rate });
        }
        if queue_variance > Self::HIGH_VARIANCE {
            concerns.push(Concern::HighQueueVariance { variance: queue_variance });
        }
        if metrics.unschedulable > 0 {
            concerns.push(Concern::Unschedulable { tasks: metrics.unschedulable });
        }
        if quarantined > 0 {
            concerns.push(Concern::Quarantined { workers: quarantined });
        }
        Health { concerns }
    }

    /// Whether nothing looks wrong.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.concerns.is_empty()
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_good() {
            return f.write_str("nothing looks wrong");
        }
        for (at, concern) in self.concerns.iter().enumerate() {
            write!(f, "{}{concern}", if at > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(queued: u64, idle: u64, steals: u64, successes: u64) -> Metrics {
        Metrics {
            agent_count: 3,
            total_queued: queued,
            idle_agents: idle,
            total_steals: steals,
            successful_steals: successes,
            success_rate: rate(successes, steals),
            ..Metrics::default()
        }
    }

    #[test]
    fn health_raises_the_documented_concerns_at_the_documented_limits() {
        assert!(Health::new(&metrics(100, 0, 2, 1), 10.0, 0).is_good());
        let bad = Health::new(&metrics(101, 0, 10, 4), 10.1, 0);
        let expected = [
            Concern::AllBusy { queued: 101 },
            Concern::LowStealEfficiency { efficiency: 0.4 },
            Concern::HighQueueVariance { variance: 10.1 },
        ];
        assert_eq!(bad.concerns, expected);
        assert!(Health::new(&metrics(101, 1, 0, 0), 0.0, 0).is_good());
    }

    #[test]
    fn variance_follows_the_queue_lengths() {
        let (mut counters, thresholds) = (Counters::default(), Thresholds::default());
        counters.worker_came(&thresholds);
        counters.worker_came(&thresholds);
        for depth in 0..8 {
            counters.depth_changed(depth, depth + 1, &thresholds);
        }
        assert_eq!(counters.queue_variance(2), 16.0);
        assert_eq!((counters.busy, counters.idle), (1, 1));
    }
}
