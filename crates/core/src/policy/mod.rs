//! Placement policies: which of the candidate workers a task goes to.
//!
//! A policy is a pure function of a read-only view: it may refuse a worker, else it gives a score, and the highest
//! score wins; ties go to the fewest spare capabilities, then to the lowest worker id. Policies never see
//! workers that could not run the task, and never change anything.
//!
//! ```
//! use filch_core::policy::{Policy, TaskView, Terms, WorkerView};
//!
//! /// Prefers workers whose id is even.
//! struct Even;
//! impl Policy for Even {
//!     fn name(&self) -> &str {
//!         "even"
//!     }
//!     fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
//!         Some(terms.add("even", if worker.id.index() % 2 == 0 { 1.0 } else { 0.0 }))
//!     }
//! }
//! ```

mod formulas;

pub use formulas::{
    Adaptive, Affinity, Batch, BestFit, Composite, Cost, Deadline, ExpectedCompletion, Fifo, LoadBalancing,
    Performance, PriorityBased, RoundRobin, WeightedRoundRobin, WorkStealing,
};
pub(crate) use formulas::{Prospect, Stakes, fragmentation};

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::{Config, PolicyOptions, PolicySpec};
use crate::ids::{KindId, WorkerId};
use crate::resources::{Demand, Vector};
use crate::time::{Span, Time};
use crate::tracker::{Estimate, MovingAverage};

/// A task as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct TaskView<'a> {
    /// The present.
    pub now: Time,
    /// What it is.
    pub kind: KindId,
    /// The priority it was submitted with.
    pub priority: u8,
    /// The duration its submitter expects.
    pub estimate: Option<Span>,
    /// When it should have ended; never, if it has no deadline.
    pub deadline: Time,
    /// What it asks for.
    pub demand: &'a Demand,
    /// The pause before a failed attempt is tried again.
    pub retry_pause: Span,
    /// The worker that runs the task which spawned it.
    pub parent_worker: Option<WorkerId>,
}

/// A candidate as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct WorkerView<'a> {
    /// Who.
    pub id: WorkerId,
    /// Joined as the n-th.
    pub joined: u64,
    /// Tasks it runs at once.
    pub slots: u32,
    /// Tasks handed to its slots.
    pub running: u32,
    /// Tasks in its queue.
    pub queued: u32,
    /// Accelerators it has.
    pub gpus: f64,
    /// When a slot is free for this task, as far as is known: work queued and running, per slot.
    pub backlog: Span,
    /// matched / asked skills.
    pub skill_match: f64,
    /// Capabilities the task has no use for.
    pub spare: u32,
    /// Share of its attempts that ended well; 1 before the first.
    pub success_rate: f64,
    /// Moving averages of whatever it ran.
    pub average: MovingAverage,
    /// What to expect of this kind here.
    pub estimate: Estimate,
    /// Cost of one second of its time.
    pub cost_rate: f64,
    /// Share of the turns in `weighted_round_robin`.
    pub weight: f64,
    /// Tasks given to it so far.
    pub assigned: u64,
    /// When it was last given one, as a running number; 0 if never.
    pub last_assigned: u64,
    /// Time lost here because what the task has affinity to is not warm.
    pub cold: Span,
    /// Whether anything the task has affinity to is warm here.
    pub warm: bool,
    /// How much it has.
    pub capacity: &'a Vector,
    /// How much of it is reserved.
    pub reserved: &'a Vector,
}

impl WorkerView<'_> {
    /// Whether it has a free slot and nothing queued.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running < self.slots && self.queued == 0
    }

    /// Tasks it holds, running or queued.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.running + self.queued
    }

    /// What counts as its size: accelerators, or slots where it has none.
    #[must_use]
    pub fn size(&self) -> f64 {
        if self.gpus > 0.0 { self.gpus } else { f64::from(self.slots) }
    }

    /// running / size + queued.
    #[must_use]
    pub fn load(&self) -> f64 {
        f64::from(self.running) / self.size() + f64::from(self.queued)
    }
}

/// Collects the terms of a score while it is computed, so that an explanation shows the very numbers that decided.
///
/// Terms are meant to add up to the score, so what counts against a worker is negative; an explanation then shows an
/// equation. Where a score is no sum, note the figures it is made of: they are shown as a list.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    keep: bool,
    list: Vec<(&'static str, f64)>,
}

impl Terms {
    /// A collector that keeps what it is given.
    #[must_use]
    pub fn kept() -> Terms {
        Terms { keep: true, list: Vec::with_capacity(8) }
    }

    /// Notes a term and gives its value back.
    #[inline]
    pub fn add(&mut self, name: &'static str, value: f64) -> f64 {
        if self.keep {
            self.list.push((name, value));
        }
        value
    }

    /// The terms so far.
    #[must_use]
    pub fn take(&mut self) -> Vec<(&'static str, f64)> {
        std::mem::take(&mut self.list)
    }
}

/// The task-independent order in which a class offers its workers as candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// Least work per slot first.
    #[default]
    Load,
    /// First joined first, as long as a slot is free.
    Joined,
    /// Longest without a new task first.
    Recency,
    /// Fewest tasks for its weight first.
    Weighted,
    /// Those with fewer than so many tasks first, then the fewest.
    Batch(u32),
}

/// A placement policy. Implement it for your own and hand it to the scheduler by name.
pub trait Policy: Send + Sync {
    /// The name it is configured and reported by.
    fn name(&self) -> &str;

    /// How good `worker` is for `task`; the highest wins, `None` refuses it.
    fn score(&self, task: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64>;

    /// Scores all candidates at once; only a policy whose score depends on the other candidates needs its own.
    fn score_all(&self, task: &TaskView<'_>, workers: &[WorkerView<'_>], scores: &mut Vec<Option<f64>>) {
        let mut terms = Terms::default();
        scores.extend(workers.iter().map(|worker| self.score(task, worker, &mut terms)));
    }

    /// The terms of the scores of some candidates, given by their positions, for explanations; only a policy with a
    /// `score_all` of its own needs its own.
    fn terms_of(&self, task: &TaskView<'_>, workers: &[WorkerView<'_>], shown: &[usize]) -> Vec<Terms> {
        let terms = |&at: &usize| {
            let mut terms = Terms::kept();
            self.score(task, &workers[at], &mut terms);
            terms
        };
        shown.iter().map(terms).collect()
    }

    /// The order in which classes offer their workers to this policy.
    fn order(&self) -> Order {
        Order::Load
    }

    /// If the policy has a say in stealing: its tasks are stolen from the longest queue above this many, whatever
    /// `stealing.strategy` says.
    fn steals_above(&self) -> Option<u32> {
        None
    }

    /// Weight of the newest observation in the moving averages this policy is shown, if it cares.
    fn alpha(&self) -> Option<f64> {
        None
    }

    /// The formula it scores by, if that is the one of `expected_completion`: the scheduler knows then what it looks at, and
    /// shows it nothing else.
    #[doc(hidden)]
    fn expected_completion(&self) -> Option<&ExpectedCompletion> {
        None
    }
}

/// A policy of somebody's own, as an event carries it: shared, since events can be cloned.
#[derive(Clone)]
pub struct OwnPolicy(pub Arc<dyn Policy>);

impl fmt::Debug for OwnPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnPolicy").field(&self.name()).finish()
    }
}

impl Policy for OwnPolicy {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn score(&self, task: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        self.0.score(task, worker, terms)
    }

    fn score_all(&self, task: &TaskView<'_>, workers: &[WorkerView<'_>], scores: &mut Vec<Option<f64>>) {
        self.0.score_all(task, workers, scores);
    }

    fn terms_of(&self, task: &TaskView<'_>, workers: &[WorkerView<'_>], shown: &[usize]) -> Vec<Terms> {
        self.0.terms_of(task, workers, shown)
    }

    fn order(&self) -> Order {
        self.0.order()
    }

    fn steals_above(&self) -> Option<u32> {
        self.0.steals_above()
    }

    fn alpha(&self) -> Option<f64> {
        self.0.alpha()
    }
}

/// Why a policy could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(pub String);

/// Makes a policy from its name and options.
///
/// ```
/// use filch_core::{Config, config::PolicySpec, policy};
/// let policy = policy::create(&PolicySpec::Name("best_fit".to_owned()), &Config::default()).unwrap();
/// assert_eq!(policy.name(), "best_fit");
/// assert!(policy::create(&PolicySpec::Name("best_fitt".to_owned()), &Config::default()).is_err());
/// ```
///
/// # Errors
/// If the name is not known, or a composite is empty or weighs nothing.
pub fn create(spec: &PolicySpec, config: &Config) -> Result<Box<dyn Policy>, PolicyError> {
    let (_, options) = spec.parts();
    from_options(&options, config)
}

fn from_options(options: &PolicyOptions, config: &Config) -> Result<Box<dyn Policy>, PolicyError> {
    let capabilities = &config.load_balancing.capabilities;
    let history_weight = if capabilities.consider_history { capabilities.history_weight } else { 0.0 };
    let expected = || ExpectedCompletion {
        beta: options.beta.unwrap_or(ExpectedCompletion::default().beta),
        lambda_cost: options.lambda_cost.unwrap_or(ExpectedCompletion::default().lambda_cost),
        lambda_deadline: options.lambda_deadline.unwrap_or(ExpectedCompletion::default().lambda_deadline),
        lambda_fragmentation: options
            .lambda_fragmentation
            .unwrap_or(ExpectedCompletion::default().lambda_fragmentation),
    };
    Ok(match options.kind.as_str() {
        "fifo" => Box::new(Fifo),
        "round_robin" => Box::new(RoundRobin),
        "weighted_round_robin" => Box::new(WeightedRoundRobin),
        "priority_based" => Box::new(PriorityBased),
        "load_balancing" => Box::new(LoadBalancing),
        "work_stealing" => Box::new(WorkStealing { threshold: options.steal_threshold.unwrap_or(2) }),
        "best_fit" => Box::new(BestFit { history_weight: options.history_weight.unwrap_or(history_weight) }),
        "performance_based" => Box::new(Performance),
        "affinity_based" => Box::new(Affinity),
        "cost_based" => Box::new(Cost),
        "deadline" => Box::new(Deadline { expected: expected() }),
        "batch" => Box::new(Batch { size: options.batch_size.unwrap_or(4) }),
        "adaptive" => Box::new(Adaptive { model: options.model.unwrap_or_default(), alpha: options.alpha }),
        "expected_completion" => Box::new(expected()),
        "composite" => {
            let mut parts = Vec::new();
            for part in &options.algorithms {
                parts.push((part.weight, from_options(&part.policy, config)?));
            }
            Box::new(Composite::new(parts)?)
        }
        other => {
            let hint = crate::config::policy_hint(other);
            return Err(PolicyError(format!("there is no policy named `{other}`; {hint}")));
        }
    })
}

/// The position of the winner among scored candidates: highest score, then fewest spare, then lowest id.
#[must_use]
pub fn best(workers: &[WorkerView<'_>], scores: &[Option<f64>]) -> Option<usize> {
    let mut winner: Option<(usize, Rank)> = None;
    for (at, (worker, score)) in workers.iter().zip(scores).enumerate() {
        let Some(rank) = score.and_then(|score| Rank::new(score, worker.spare, worker.id)) else { continue };
        if winner.is_none_or(|(_, best)| rank.beats(best)) {
            winner = Some((at, rank));
        }
    }
    winner.map(|(at, _)| at)
}

/// How a candidate stands among the others.
#[derive(Clone, Copy)]
pub(crate) struct Rank {
    score: f64,
    spare: u32,
    id: WorkerId,
}

impl Rank {
    /// Nobody wins by a score that is no number.
    #[inline]
    pub(crate) fn new(score: f64, spare: u32, id: WorkerId) -> Option<Rank> {
        (!score.is_nan()).then_some(Rank { score, spare, id })
    }

    /// Whether it comes before another: highest score, then fewest spare, then lowest id.
    #[inline]
    pub(crate) fn beats(self, other: Rank) -> bool {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then_with(|| other.spare.cmp(&self.spare)).then_with(|| other.id.cmp(&self.id)).is_gt()
    }
}

/// The positions of the winner and of those that came next, at most `most` in all, in the order of looking. Those that
/// were refused come last.
pub(crate) fn leaders(scores: &[Option<f64>], winner: usize, most: usize) -> SmallVec<[usize; 8]> {
    let mut leaders: SmallVec<[usize; 8]> = (0..scores.len()).collect();
    if leaders.len() > most {
        let score = |at: usize| scores[at].filter(|score| !score.is_nan()).unwrap_or(f64::NEG_INFINITY);
        let worse = |a: &usize, b: &usize| {
            let won = (*b == winner).cmp(&(*a == winner));
            won.then_with(|| score(*b).total_cmp(&score(*a))).then_with(|| a.cmp(b))
        };
        leaders.select_nth_unstable_by(most, worse);
        leaders.truncate(most);
        leaders.sort_unstable();
    }
    leaders
}

#[cfg(test)]
mod tests;
