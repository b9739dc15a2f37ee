//! Stealing: whom to ask, what may be taken, and how much. The one place for these rules.
//!
//! The scheduler calls this for queues it owns itself; a worker machine calls the same code for its peers. Never
//! moves anything and knows no queue of its own: callers show what they have through [`Peers`] and iterators.

mod telemetry;

pub use telemetry::{PeerStats, StealOutcome, StealStats, StealTelemetry};

use crate::config::{Config, Stealing, Take, VictimStrategy};
use crate::ids::WorkerId;
use crate::rng::Rng;
use crate::time::Span;

/// A worker as a thief sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peer {
    /// Who.
    pub worker: WorkerId,
    /// Tasks in its queue.
    pub depth: u32,
    /// Running tasks per slot.
    pub load: f64,
}

/// How much a peer looks worth stealing from, for `power_of_two`.
#[must_use]
pub fn steal_score(peer: &Peer) -> f64 {
    f64::from(peer.depth) * 10.0 - peer.load * 5.0
}

/// The workers a thief can choose from. Every call must be cheap, whatever the number of workers.
pub trait Peers {
    /// How many have something queued.
    fn len(&self) -> usize;
    /// Whether nobody has anything queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// One of them, by position.
    fn get(&self, position: usize) -> Option<Peer>;
    /// From the longest queue downwards.
    fn longest(&self) -> impl Iterator<Item = Peer>;
    /// From the shortest queue of at least `depth` upwards.
    fn shortest(&self, depth: u32) -> impl Iterator<Item = Peer>;
}

/// What a search for a victim came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Somebody worth asking.
    Victim(Peer),
    /// Everybody drawn had too little queued; the last of them.
    Refused(Peer),
}

/// Chooses victims and, where the strategy adapts, learns from how steals end.
#[derive(Clone, Debug)]
pub struct VictimChooser {
    strategy: VictimStrategy,
    /// A victim of the busiest-first kind has more queued than this.
    busy_threshold: u32,
    min_victim_queue: u32,
    min_local_queue: u32,
    adaptive: Adaptive,
}

#[derive(Clone, Copy, Debug, Default)]
struct Adaptive {
    aggressive: bool,
    attempts: u32,
    successes: u32,
}

impl Adaptive {
    /// Attempts between two judgements.
    const WINDOW: u32 = 100;
    /// Below this share of successes the most loaded is asked.
    const LOW_SUCCESS: f64 = 0.3;
}

impl VictimChooser {
    /// A chooser for `strategy`; `busy_threshold` is the queue length a victim must exceed under `most_loaded`.
    #[must_use]
    pub fn new(stealing: &Stealing, busy_threshold: u32) -> VictimChooser {
        VictimChooser {
            strategy: stealing.strategy,
            busy_threshold,
            min_victim_queue: stealing.min_victim_queue,
            min_local_queue: stealing.min_local_queue,
            adaptive: Adaptive::default(),
        }
    }

    /// A chooser that asks the longest queue above `threshold`, as a policy may want it.
    #[must_use]
    pub fn longest_above(stealing: &Stealing, threshold: u32) -> VictimChooser {
        VictimChooser { strategy: VictimStrategy::MostLoaded, ..VictimChooser::new(stealing, threshold) }
    }

    /// What is asked now: `adaptive` is resolved to what it has settled on.
    #[must_use]
    pub fn current(&self) -> VictimStrategy {
        match self.strategy {
            VictimStrategy::Adaptive if self.adaptive.aggressive => VictimStrategy::MostLoaded,
            VictimStrategy::Adaptive => VictimStrategy::PowerOfTwo,
            fixed => fixed,
        }
    }

    /// The shortest queue a victim may have.
    #[must_use]
    pub fn least_depth(&self) -> u32 {
        // A victim keeps `min_local_queue`, so anything shorter has nothing to give.
        let gives = self.min_local_queue.saturating_add(1);
        match self.current() {
            VictimStrategy::MostLoaded if self.strategy == VictimStrategy::MostLoaded => {
                gives.max(self.busy_threshold.saturating_add(1))
            }
            VictimStrategy::PowerOfTwo => gives.max(self.min_victim_queue),
            _ => gives,
        }
    }

    /// The next victim for `thief`, other than those in `tried`.
    pub fn choose(&self, rng: &mut Rng, peers: &impl Peers, thief: WorkerId, tried: &[WorkerId]) -> Option<Choice> {
        let least = self.least_depth();
        let other = |peer: &Peer| peer.worker != thief && !tried.contains(&peer.worker);
        let fits = |peer: &Peer| peer.depth >= least && other(peer);
        let victim = match self.current() {
            VictimStrategy::MostLoaded => {
                peers.longest().take_while(|peer| peer.depth >= least).take(LOOKS + tried.len()).find(fits)
            }
            VictimStrategy::LeastLoaded => peers.shortest(least).take(LOOKS + tried.len()).find(fits),
            VictimStrategy::Random => {
                (0..LOOKS).filter_map(|_| peers.get(rng.below(peers.len()))).find(|peer| fits(peer))
            }
            VictimStrategy::PowerOfTwo | VictimStrategy::Adaptive => {
                let mut refused = None;
                if peers.is_empty() {
                    // What is drawn leads nowhere; whatever is drawn after it stays the same.
                    rng.skip(2 * LOOKS as u64);
                    return None;
                }
                for _ in 0..LOOKS {
                    let first = peers.get(rng.below(peers.len())).filter(|peer| peer.worker != thief);
                    let second = peers.get(rng.below(peers.len())).filter(|peer| peer.worker != thief);
                    let better = match (first, second) {
                        (Some(a), Some(b)) if steal_score(&b) > steal_score(&a) => Some(b),
                        (None, second) => second,
                        (first, _) => first,
                    };
                    match better.filter(other) {
                        Some(peer) if peer.depth >= least => return Some(Choice::Victim(peer)),
                        short => refused = short.or(refused),
                    }
                }
                return refused.map(Choice::Refused);
            }
        };
        victim.map(Choice::Victim)
    }

    /// Learns how a steal ended.
    pub fn learn(&mut self, success: bool) {
        self.adaptive.attempts += 1;
        self.adaptive.successes += u32::from(success);
        if self.adaptive.attempts == Adaptive::WINDOW {
            let rate = f64::from(self.adaptive.successes) / f64::from(Adaptive::WINDOW);
            self.adaptive = Adaptive { aggressive: rate < Adaptive::LOW_SUCCESS, ..Adaptive::default() };
        }
    }
}

/// Peers looked at before a search gives up.
const LOOKS: usize = 8;

/// Queued tasks looked at in one victim's queue before the search gives up.
pub const QUEUE_LOOKS: usize = 64;

/// Tasks of one busy worker looked at in one rebalancing cycle, each time anew for every idle worker that might get it.
pub const CYCLE_LOOKS: usize = 256;

/// What must be known of a queued task to decide whether it may be taken.
#[derive(Clone, Copy, Debug)]
pub struct Loot {
    /// The priority it was submitted with.
    pub priority: u8,
    /// Pinned, keyed or exclusive: stays where it is.
    pub bound: bool,
    /// Whether the thief can ever run it.
    pub thief_can_run: bool,
    /// Round trip to the victim and the time its data would take to follow, or warmth that would be lost.
    pub transfer: Span,
    /// How long it would take at the thief.
    pub duration_at_thief: Span,
    /// How long it would take where it is.
    pub duration_at_victim: Span,
}

/// Why a queued task may not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// High priority is protected.
    Protected,
    /// It is pinned, keyed or exclusive.
    Bound,
    /// The thief cannot run it.
    Unfit,
    /// It would be done sooner where it is.
    NotWorthIt,
    /// Its own policy says whom it is stolen from.
    OtherRule,
}

/// The rules about which tasks may move, from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// Tasks submitted with this priority or a higher one stay; above 5 none does.
    pub protected_from: u8,
}

impl Guard {
    /// The guard a configuration asks for.
    #[must_use]
    pub fn new(config: &Config) -> Guard {
        let rules = &config.load_balancing.priority;
        Guard { protected_from: if rules.preserve_high_priority { rules.high_priority_threshold } else { u8::MAX } }
    }

    /// Why a task stays, whoever the thief is; `bound` is one that is pinned, keyed or exclusive.
    #[must_use]
    pub fn keeps(self, priority: u8, bound: bool) -> Option<Kept> {
        if priority >= self.protected_from {
            Some(Kept::Protected)
        } else if bound {
            Some(Kept::Bound)
        } else {
            None
        }
    }

    /// Whether a thief may take `loot` from a victim where it would wait so long: for all the rest there, which the
    /// victim's slots share. The task itself they do not share.
    ///
    /// # Errors
    /// The reason why it stays.
    pub fn check(self, loot: &Loot, wait_at_victim: Span) -> Result<(), Kept> {
        if let Some(kept) = self.keeps(loot.priority, loot.bound) {
            Err(kept)
        } else if !loot.thief_can_run {
            Err(Kept::Unfit)
        } else if loot.transfer + loot.duration_at_thief >= wait_at_victim + loot.duration_at_victim {
            Err(Kept::NotWorthIt)
        } else {
            Ok(())
        }
    }
}

/// How much one steal may take from a queue of that length and backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Haul {
    /// Most tasks.
    pub tasks: u32,
    /// Stop once this much work is taken,
    pub backlog: Span,
    /// but not before so many tasks are.
    pub at_least: u32,
}

/// Who wants how much, and how far away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hunger {
    /// Tasks the thief could begin at once, at least 1.
    pub tasks: u32,
    /// There and back.
    pub round_trip: Span,
}

/// A thief of the same process: nothing lies between.
pub const NEAR: Hunger = Hunger { tasks: 1, round_trip: Span::ZERO };

/// Round trips that the work of one steal should cover, where that much can be had.
const COVERED: u64 = 64;

/// The haul that `take` allows; the victim keeps `min_local_queue` tasks.
#[must_use]
pub fn haul(take: Take, depth: u32, queued_backlog: Span, min_local_queue: u32, hunger: Hunger) -> Haul {
    let spare = depth.saturating_sub(min_local_queue);
    let half = Span(queued_backlog.0 / 2);
    match take {
        Take::One => Haul { tasks: spare.min(1), backlog: Span::MAX, at_least: 1 },
        Take::Half => Haul { tasks: spare, backlog: half, at_least: 0 },
        Take::Enough => {
            let covered = Span(hunger.round_trip.0.saturating_mul(COVERED * u64::from(hunger.tasks)));
            let at_least = hunger.tasks.clamp(1, depth.div_ceil(2).max(1));
            Haul { tasks: spare, backlog: half.min(covered), at_least }
        }
    }
}

/// Picks tasks from a victim's queue, in the order of `queue`, until the haul is full.
///
/// `queue` yields each task with its planned time; `check` says whether it may go. Returns the reason the first
/// refused task was kept, for the report, if nothing was taken.
pub fn pick<T: Copy>(
    queue: impl Iterator<Item = (T, Span)>,
    haul: Haul,
    mut check: impl FnMut(T) -> Result<(), Kept>,
    taken: &mut Vec<T>,
) -> Option<Kept> {
    let (mut left, mut first_kept) = (haul.backlog, None);
    for (task, planned) in queue.take(QUEUE_LOOKS) {
        let count = taken.len();
        if count >= haul.tasks as usize || left == Span::ZERO && count >= haul.at_least as usize {
            break;
        }
        match check(task) {
            Ok(()) => {
                taken.push(task);
                left -= planned;
            }
            Err(kept) => first_kept = first_kept.or(Some(kept)),
        }
    }
    first_kept
}

/// Whether queues are so uneven that the scheduler steps in: longest / max(shortest, 1) above `ratio`.
#[must_use]
pub fn severely_uneven(longest: f64, shortest: f64, unit: f64, ratio: f64) -> bool {
    longest / shortest.max(unit) > ratio
}

/// How long a thief waits for an answer: as long as is configured, or longer where the network is slow.
#[must_use]
pub fn patience(timeout: Span, round_trip: Span) -> Span {
    timeout.max(round_trip.mul_f64(2.0))
}

/// The pause after `failures` failed searches in a row: base doubled each time, jittered, and never above the cap. At the
/// cap it is still jittered, or all who failed together would come back together.
pub fn backoff(rng: &mut Rng, base: Span, cap: Span, jitter: f64, failures: u32) -> Span {
    let doubled = Span(base.0.saturating_mul(1u64.checked_shl(failures).unwrap_or(u64::MAX)));
    let most = cap.mul_f64(1.0 / (1.0 + jitter));
    doubled.min(most).mul_f64(rng.jitter(jitter)).min(cap)
}

#[cfg(test)]
mod tests;
