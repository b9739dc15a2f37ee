//! What a run came to: how long it took, how well that was, and what it cost.

use filch_core::{Span, Status, Time};
use serde::Serialize;

use crate::bound::lower_bound;
use crate::world::World;

/// The figures of one run, as `filch sim run --json` prints them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// What was run.
    pub name: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Workers of the cluster.
    pub workers: u64,
    /// What became of the tasks.
    pub tasks: Tasks,
    /// What is known of the work and played no part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// From the first arrival to the last end.
    pub makespan_s: f64,
    /// No schedule could be shorter than this.
    pub lower_bound_s: f64,
    /// Lower bound by makespan.
    pub efficiency: f64,
    /// Time the work would take one slot, by makespan.
    pub speedup: f64,
    /// From when a task could have begun until it did.
    pub wait_s: Quantiles,
    /// What all thieves counted.
    pub steals: Steals,
    /// Messages sent.
    pub messages: u64,
    /// Steps of the machines plus message deliveries, heartbeats not counted.
    pub events: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// Workers that died.
    pub deaths: u64,
    /// Runs that began; more than tasks where some were tried again.
    pub runs: u64,
    /// Real time it took to play; whoever plays it measures.
    pub wall_s: f64,
    /// Events a second of real time.
    pub events_per_s: f64,
    /// A number made from everything that happened, in order, in hexadecimal digits.
    pub digest: String,
}

/// What became of the tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tasks {
    /// Those that arrived.
    pub submitted: u64,
    /// Those that ended well.
    pub completed: u64,
    /// Those that did not.
    pub failed: u64,
    /// Those that have no outcome.
    pub lost: u64,
}

/// Quantiles in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half are below.
    pub p50: f64,
    /// 95 of 100 are below.
    pub p95: f64,
    /// 99 of 100 are below.
    pub p99: f64,
}

/// What all thieves counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Steals {
    /// Requests.
    pub attempts: u64,
    /// Requests that brought something.
    pub successes: u64,
    /// Requests without an answer in time.
    pub timeouts: u64,
    /// Requests that did not reach the victim.
    pub network_errors: u64,
    /// Requests that were refused.
    pub rejections: u64,
    /// Tasks that changed hands.
    pub moved: u64,
}

impl Quantiles {
    /// Of these spans.
    #[must_use]
    pub fn of(mut spans: Vec<Span>) -> Quantiles {
        spans.sort_unstable();
        let at = |share: f64| {
            let place = (spans.len() as f64 * share) as usize;
            spans.get(place.min(spans.len().saturating_sub(1))).map_or(0.0, |span| span.as_secs_f64())
        };
        Quantiles { p50: at(0.50), p95: at(0.95), p99: at(0.99) }
    }
}

impl Outcome {
    /// The figures of a world that has run; `wall_s` is the real time that took.
    #[must_use]
    pub fn of(world: &World, wall_s: f64) -> Outcome {
        let (fates, counts, workload) = (world.fates(), world.counts(), world.workload());
        let completed = fates.iter().filter(|fate| fate.status == Some(Status::Completed)).count() as u64;
        let arrived = fates.iter().map(|fate| fate.arrived).filter(|at| *at < Time::NEVER);
        let first = arrived.min().unwrap_or(Time::ZERO);
        let makespan = world.last_end().since(first);
        let settled = fates.iter().filter(|fate| fate.status.is_some() && fate.arrived < Time::NEVER).count() as u64;
        let bound = lower_bound(workload, &world.setting().cluster);
        let mut work_s = 0.0;
        let waits = fates.iter().enumerate().filter(|(_, fate)| fate.begun < Time::NEVER).map(|(index, fate)| {
            work_s += workload.shortest(index as u32, &world.setting().cluster).as_secs_f64();
            let parents = workload.parents_of(index as u32).iter().map(|parent| fates[parent.task as usize].ended);
            fate.begun.since(parents.max().unwrap_or(Time::ZERO).max(fate.arrived))
        });
        let wait_s = Quantiles::of(waits.collect());
        let makespan_s = makespan.as_secs_f64();
        let by_makespan = |seconds: f64| if makespan_s > 0.0 { seconds / makespan_s } else { 1.0 };
        let steals = world.steals();
        Outcome {
            name: workload.name.clone(),
            seed: world.setting().seed,
            workers: world.setting().cluster.iter().map(|class| u64::from(class.count)).sum(),
            tasks: Tasks {
                submitted: counts.submitted,
                completed,
                failed: settled - completed,
                lost: counts.submitted - settled,
            },
            notes: workload.notes.clone(),
            makespan_s,
            lower_bound_s: bound,
            efficiency: by_makespan(bound),
            speedup: by_makespan(work_s),
            wait_s,
            steals: Steals {
                attempts: steals.attempts,
                successes: steals.successes,
                timeouts: steals.timeouts,
                network_errors: steals.network_errors,
                rejections: steals.rejections,
                moved: counts.moved,
            },
            messages: counts.messages,
            events: counts.events,
            heartbeats: counts.heartbeats,
            deaths: counts.deaths,
            runs: counts.runs,
            wall_s,
            events_per_s: if wall_s > 0.0 { counts.events as f64 / wall_s } else { 0.0 },
            digest: format!("{:016x}", world.digest()),
        }
    }
}
