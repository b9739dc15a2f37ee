//! What goes wrong in a world, and when.

use filch_core::{Rng, Span, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::network::exponential;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// What.
    pub what: Happens,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Happens {
    /// A worker dies with everything it runs, and comes back after a while as a new process.
    Crash {
        /// Which.
        node: u32,
        /// How long it is away; for ever if never.
        back_after: Option<Span>,
    },
    /// A worker becomes slower by a factor, or as fast as before with 1.
    Slow {
        /// Which.
        node: u32,
        /// Durations are multiplied by this.
        factor: f64,
    },
    /// A worker stands still: what comes meanwhile waits.
    Pause {
        /// Which.
        node: u32,
        /// How long.
        span: Span,
    },
    /// Some workers cannot be reached by the others and the coordinator, and reach only each other.
    Partition {
        /// The first of them.
        first: u32,
        /// How many.
        count: u32,
        /// How long.
        span: Span,
    },
    /// Nobody hears some workers, which hear everybody.
    Mute {
        /// The first of them.
        first: u32,
        /// How many.
        count: u32,
        /// How long.
        span: Span,
    },
    /// Some workers hear nobody, and everybody hears them.
    Deafen {
        /// The first of them.
        first: u32,
        /// How many.
        count: u32,
        /// How long.
        span: Span,
    },
    /// A worker's clock is set wrong.
    Skew {
        /// Which.
        node: u32,
        /// How far it is ahead from now on.
        ahead: Span,
        /// Parts in a million that it goes too fast.
        fast_ppm: u32,
    },
    /// The coordinator dies, and another begins with what was durable.
    CoordinatorCrash {
        /// After how long.
        back_after: Span,
    },
    /// The coordinator is cut off from its disk, with some workers, and another takes over at once.
    Takeover {
        /// The first of the workers that stay with the old one.
        first: u32,
        /// How many they are.
        count: u32,
        /// How long they are cut off.
        span: Span,
    },
    /// A worker is told to finish what it runs and give back the rest.
    Drain {
        /// Which.
        node: u32,
    },
}

impl Happens {
    /// The worker it is about, if it is about one.
    pub(crate) fn node(self) -> Option<u32> {
        match self {
            Happens::Crash { node, .. }
            | Happens::Slow { node, .. }
            | Happens::Pause { node, .. }
            | Happens::Skew { node, .. }
            | Happens::Drain { node } => Some(node),
            Happens::Partition { first, .. } | Happens::Mute { first, .. } | Happens::Deafen { first, .. } => {
                Some(first)
            }
            Happens::CoordinatorCrash { .. } | Happens::Takeover { .. } => None,
        }
    }

    /// Whether another coordinator follows.
    #[must_use]
    pub fn is_takeover(self) -> bool {
        matches!(self, Happens::CoordinatorCrash { .. } | Happens::Takeover { .. })
    }
}

/// How often things go wrong, drawn from the seed: events for each worker and hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Deaths.
    #[schemars(range(min = 0, max = 36_000))]
    pub crashes: f64,
    /// How long a dead worker is away, on average.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub back_after: Span,
    /// Times a worker becomes slow, by a factor from 2 to 10, for as long as a dead one is away.
    #[schemars(range(min = 0, max = 36_000))]
    pub slow: f64,
    /// Pauses, up to 10 seconds each.
    #[schemars(range(min = 0, max = 36_000))]
    pub pauses: f64,
    /// Partitions that cut off some workers for up to a minute.
    #[schemars(range(min = 0, max = 36_000))]
    pub partitions: f64,
    /// Faults are drawn up to this moment.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub until: Span,
}

impl Default for Rates {
    fn default() -> Self {
        Rates {
            crashes: 0.0,
            back_after: Span::from_secs(30),
            slow: 0.0,
            pauses: 0.0,
            partitions: 0.0,
            until: Span::from_secs(3600),
        }
    }
}

/// A schedule of faults for so many workers.
#[must_use]
pub fn draw(rates: &Rates, nodes: u32, seed: u64) -> Vec<Fault> {
    let mut rng = Rng::new(seed ^ 0xfa_17);
    let mut faults = Vec::new();
    let kinds = [rates.crashes, rates.slow, rates.pauses, rates.partitions];
    for (kind, per_hour) in kinds.into_iter().enumerate().filter(|(_, rate)| *rate > 0.0) {
        let mean_s = 3600.0 / (per_hour * f64::from(nodes.max(1)));
        let mut at_s = exponential(&mut rng, mean_s);
        while at_s < rates.until.as_secs_f64() {
            let at = Time::ZERO + Span::from_secs_f64(at_s);
            let node = rng.below(nodes as usize) as u32;
            let away = Span::from_secs_f64(exponential(&mut rng, rates.back_after.as_secs_f64()));
            let what = match kind {
                0 => Happens::Crash { node, back_after: Some(away) },
                1 => {
                    let back = Fault { at: at + away, what: Happens::Slow { node, factor: 1.0 } };
                    faults.push(back);
                    Happens::Slow { node, factor: 2.0 + 8.0 * rng.unit() }
                }
                2 => Happens::Pause { node, span: Span::from_secs_f64(10.0 * rng.unit()) },
                _ => {
                    let count = 1 + rng.below((nodes as usize / 2).max(1)) as u32;
                    Happens::Partition { first: node, count, span: Span::from_secs_f64(60.0 * rng.unit()) }
                }
            };
            faults.push(Fault { at, what });
            at_s += exponential(&mut rng, mean_s);
        }
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}
