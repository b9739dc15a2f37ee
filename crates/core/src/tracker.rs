//! What is known of durations and success per kind and worker.
//!
//! The scheduler asks through [`Estimator`], so that better learning can take the place of the simple [`Tracker`]
//! without anything else noticing. Never decides anything.

use smallvec::SmallVec;

use crate::ids::KindId;
use crate::map::Map;
use crate::time::{Span, Time};

/// What to expect of a task of some kind on some worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Expected duration.
    pub duration: Span,
    /// Standard deviation of it.
    pub spread: Span,
    /// Probability that an attempt ends well, above 0 and at most 1.
    pub success: f64,
    /// Observations of this kind on this worker.
    pub samples: u64,
}

/// What to expect on each of the candidates for a task.
pub type Estimates = SmallVec<[Estimate; 8]>;

/// A source of estimates that learns from what happened.
pub trait Estimator: Send {
    /// What to expect of `kind` on the worker in slot `worker`, if its submitter said `declared`.
    fn estimate(&self, kind: KindId, worker: usize, declared: Option<Span>) -> Estimate;
    /// The same for several workers, in their order: what they have in common is to be found out only once.
    fn estimate_each(&self, kind: KindId, workers: &[u32], declared: Option<Span>, estimates: &mut Estimates) {
        estimates.extend(workers.iter().map(|&worker| self.estimate(kind, worker as usize, declared)));
    }
    /// What to expect of `kind` wherever it runs.
    fn anywhere(&self, kind: KindId, declared: Option<Span>) -> Span;
    /// Whether anything was learned of `kind`.
    fn knows(&self, kind: KindId) -> bool;
    /// An attempt of `kind` took `duration` on `worker`.
    fn record(&mut self, kind: KindId, worker: usize, duration: Span, success: bool);
    /// Something will be recorded about this worker: a chance to read it from memory while others wait for theirs too.
    fn load_ahead(&self, _worker: usize) {}
    /// The slot will belong to another worker.
    fn forget(&mut self, worker: usize);
}

/// When something that runs since `since` and was planned to take `planned` should end. What runs longer than planned is
/// expected to need as long again as it has run.
#[must_use]
pub fn expected_end(now: Time, since: Time, planned: Span) -> Time {
    let end = since + planned;
    if end > now { end } else { now + now.since(since) }
}

/// Mean, variance and successes of a stream of observations. Only successes are timed.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    ends: u64,
    successes: u64,
    mean_s: f64,
    /// Sum of squared differences from the mean.
    squares: f64,
}

impl Cell {
    fn add(&mut self, seconds: f64, success: bool) {
        self.ends += 1;
        if success {
            self.successes += 1;
            let before = seconds - self.mean_s;
            self.mean_s += before / as_float(self.successes);
            self.squares += before * (seconds - self.mean_s);
        }
    }

    /// The standard deviation, if there is one.
    fn spread(&self) -> Option<Span> {
        let variance = || self.squares / as_float(self.successes - 1);
        (self.successes >= 2).then(|| Span::from_secs_f64(libm::sqrt(variance())))
    }
}

/// What is known of a kind on one worker.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    cell: Cell,
    /// Its standard deviation, kept because candidates are asked for it more often than it changes.
    spread: Span,
}

impl Known {
    fn add(&mut self, seconds: f64, success: bool) {
        self.cell.add(seconds, success);
        self.spread = self.cell.spread().unwrap_or_default();
    }

    fn spread(&self) -> Option<Span> {
        (self.cell.successes >= 2).then_some(self.spread)
    }
}

/// A count as a float. None is beyond what a signed number holds, and processors convert only those at once.
#[inline]
pub(crate) fn as_float(count: u64) -> f64 {
    count.cast_signed() as f64
}

/// What is known of a kind, wherever it ran.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    cell: Cell,
    /// Probability that an attempt ends well where nothing is known of the worker.
    success: f64,
}

impl Kind {
    fn add(&mut self, seconds: f64, success: bool) {
        self.cell.add(seconds, success);
        self.success = (as_float(self.cell.successes) + 1.0) / (as_float(self.cell.ends) + 1.0);
    }
}

/// What is known of one worker, by kind: a short list while there are few kinds, which one look into memory finds.
#[derive(Clone, Debug)]
#[repr(align(64))]
enum Cells {
    Few(SmallVec<[(u32, Known); 1]>),
    Many(Map<u32, Known>),
}

impl Default for Cells {
    fn default() -> Self {
        Cells::Few(SmallVec::new())
    }
}

impl Cells {
    /// Kinds in the list before it becomes a table.
    const FEW: usize = 16;

    fn get(&self, kind: u32) -> Option<&Known> {
        match self {
            Cells::Few(list) => list.iter().find(|entry| entry.0 == kind).map(|entry| &entry.1),
            Cells::Many(table) => table.get(&kind),
        }
    }

    fn add(&mut self, kind: u32, seconds: f64, success: bool) {
        if let Cells::Few(list) = self
            && let Some(entry) = list.iter_mut().find(|entry| entry.0 == kind)
        {
            entry.1.add(seconds, success);
        } else {
            self.add_elsewhere(kind, seconds, success);
        }
    }

    /// The same for a kind that is not in the list.
    #[inline(never)]
    fn add_elsewhere(&mut self, kind: u32, seconds: f64, success: bool) {
        if let Cells::Few(list) = self {
            if list.len() < Self::FEW {
                let mut known = Known::default();
                known.add(seconds, success);
                list.push((kind, known));
                return;
            }
            *self = Cells::Many(list.iter().copied().collect());
        }
        if let Cells::Many(table) = self {
            table.entry(kind).or_default().add(seconds, success);
        }
    }
}

/// How many observations of the kind as a whole weigh as much as one look at the worker.
const PRIOR_WEIGHT: f64 = 2.0;

/// Mean, spread and success per kind and worker, started from the declared estimate. Only attempts that ended well
/// count for durations: a task that failed at once says nothing about how long its work takes.
#[derive(Clone, Debug)]
pub struct Tracker {
    default_s: f64,
    kinds: Vec<Kind>,
    workers: Vec<Cells>,
}

impl Tracker {
    /// A tracker that assumes `default` for kinds nobody has an estimate for.
    #[must_use]
    pub fn new(default: Span) -> Tracker {
        Tracker { default_s: default.as_secs_f64(), kinds: Vec::new(), workers: Vec::new() }
    }

    #[cold]
    fn make_room(&mut self, kind: usize, worker: usize) {
        self.kinds.resize(self.kinds.len().max(kind + 1), Kind::default());
        self.workers.resize(self.workers.len().max(worker + 1), Cells::default());
    }

    fn kind(&self, kind: KindId) -> Option<&Kind> {
        self.kinds.get(kind.0 as usize).filter(|kind| kind.cell.ends > 0)
    }

    fn outlook(&self, kind: KindId, declared: Option<Span>) -> Outlook<'_> {
        let whole = self.kind(kind);
        // Tasks that name no kind have nothing in common: what one took says nothing of another that has an estimate.
        let unnamed = kind == KindId(0) && declared.is_some();
        Outlook {
            kind: kind.0,
            whole,
            prior_s: self.prior_s(whole, declared),
            success: whole.map_or(1.0, |kind| kind.success),
            workers: if unnamed { &[] } else { &self.workers },
        }
    }

    fn prior_s(&self, kind: Option<&Kind>, declared: Option<Span>) -> f64 {
        // A declared estimate is about this very task, so it is worth more than the mean of its kind.
        match (declared, kind) {
            (Some(declared), _) => declared.as_secs_f64(),
            (None, Some(kind)) if kind.cell.successes > 0 => kind.cell.mean_s,
            _ => self.default_s,
        }
    }
}

/// What is known of a kind before it is known on which worker it runs.
struct Outlook<'a> {
    kind: u32,
    whole: Option<&'a Kind>,
    prior_s: f64,
    /// Probability that an attempt ends well where nothing is known of the worker.
    success: f64,
    workers: &'a [Cells],
}

impl Outlook<'_> {
    /// What to expect on one of them.
    #[inline(always)]
    fn at(&self, worker: usize) -> Estimate {
        let nothing = Known::default();
        let known = self.workers.get(worker).and_then(|cells| cells.get(self.kind)).unwrap_or(&nothing);
        let cell = &known.cell;
        let successes = as_float(cell.successes);
        let duration_s = (successes * cell.mean_s + PRIOR_WEIGHT * self.prior_s) / (successes + PRIOR_WEIGHT);
        Estimate {
            duration: Span::from_secs_f64(duration_s),
            spread: known.spread().or_else(|| self.whole.and_then(|kind| kind.cell.spread())).unwrap_or_default(),
            success: (successes + self.success) / (as_float(cell.ends) + 1.0),
            samples: cell.ends,
        }
    }
}

impl Estimator for Tracker {
    fn estimate(&self, kind: KindId, worker: usize, declared: Option<Span>) -> Estimate {
        self.outlook(kind, declared).at(worker)
    }

    fn estimate_each(&self, kind: KindId, workers: &[u32], declared: Option<Span>, estimates: &mut Estimates) {
        let outlook = self.outlook(kind, declared);
        // One after the other: as an iterator it would not become part of this loop.
        for &worker in workers {
            estimates.push(outlook.at(worker as usize));
        }
    }

    fn anywhere(&self, kind: KindId, declared: Option<Span>) -> Span {
        Span::from_secs_f64(self.prior_s(self.kind(kind), declared))
    }

    fn knows(&self, kind: KindId) -> bool {
        self.kind(kind).is_some_and(|kind| kind.cell.successes > 0)
    }

    fn record(&mut self, kind: KindId, worker: usize, duration: Span, success: bool) {
        let at = kind.0 as usize;
        if at >= self.kinds.len() || worker >= self.workers.len() {
            self.make_room(at, worker);
        }
        let seconds = duration.as_secs_f64();
        self.kinds[at].add(seconds, success);
        self.workers[worker].add(kind.0, seconds, success);
    }

    fn load_ahead(&self, worker: usize) {
        if let Some(cells) = self.workers.get(worker) {
            std::hint::black_box(matches!(cells, Cells::Few(_)));
        }
    }

    fn forget(&mut self, worker: usize) {
        if let Some(cells) = self.workers.get_mut(worker) {
            *cells = Cells::default();
        }
    }
}

/// A worker's moving averages: speed and success of whatever it ran, newest first in weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MovingAverage {
    /// Average completion time in seconds; starts at 0, as the formula it comes from does.
    pub completion_s: f64,
    /// Average success; starts at 1.
    pub success: f64,
    /// Observations.
    pub total: u64,
}

impl Default for MovingAverage {
    fn default() -> Self {
        MovingAverage { completion_s: 0.0, success: 1.0, total: 0 }
    }
}

impl MovingAverage {
    /// Adds an observation with weight `alpha`.
    pub fn update(&mut self, alpha: f64, duration_s: f64, success: bool) {
        self.total += 1;
        self.completion_s = alpha * duration_s + (1.0 - alpha) * self.completion_s;
        self.success = alpha * f64::from(u8::from(success)) + (1.0 - alpha) * self.success;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_from_the_declared_estimate_and_moves_to_what_was_seen() {
        let mut tracker = Tracker::new(Span::from_secs(1));
        let kind = KindId(3);
        assert_eq!(tracker.estimate(kind, 0, Some(Span::from_secs(8))).duration, Span::from_secs(8));
        assert_eq!(tracker.estimate(kind, 0, None).duration, Span::from_secs(1));
        for _ in 0..100 {
            tracker.record(kind, 0, Span::from_secs(2), true);
            tracker.record(kind, 1, Span::from_secs(4), true);
        }
        let (fast, slow) = (tracker.estimate(kind, 0, None), tracker.estimate(kind, 1, None));
        assert!((fast.duration.as_secs_f64() - 2.0).abs() < 0.05, "{fast:?}");
        assert!((slow.duration.as_secs_f64() - 4.0).abs() < 0.05, "{slow:?}");
        assert_eq!(tracker.anywhere(kind, None), Span::from_secs(3));
        assert_eq!(fast.success, 1.0);
        tracker.forget(0);
        assert_eq!(tracker.estimate(kind, 0, None).duration, Span::from_secs(3));
    }

    #[test]
    fn very_many_kinds_are_told_apart_on_one_worker() {
        let mut tracker = Tracker::new(Span::from_secs(1));
        for kind in 0..100 {
            for _ in 0..1000 {
                tracker.record(KindId(kind), 3, Span::from_secs(u64::from(kind)), true);
            }
        }
        for kind in 1..100 {
            assert_eq!(tracker.estimate(KindId(kind), 3, None).duration, Span::from_secs(u64::from(kind)));
        }
    }

    #[test]
    fn failures_lower_success_but_teach_no_duration() {
        let mut tracker = Tracker::new(Span::from_secs(1));
        for _ in 0..9 {
            tracker.record(KindId(0), 0, Span::ZERO, false);
        }
        let estimate = tracker.estimate(KindId(0), 0, None);
        assert!(estimate.success < 0.1 && estimate.success > 0.0, "{estimate:?}");
        assert_eq!(estimate.duration, Span::from_secs(1));
    }

    #[test]
    fn the_moving_average_follows_the_published_formula() {
        let mut average = MovingAverage::default();
        average.update(0.1, 10.0, true);
        assert!((average.completion_s - 1.0).abs() < 1e-12);
        assert_eq!(average.success, 1.0);
        average.update(0.1, 10.0, false);
        assert!((average.completion_s - 1.9).abs() < 1e-12);
        assert!((average.success - 0.9).abs() < 1e-12);
    }
}
