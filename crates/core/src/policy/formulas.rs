//! The policies filch comes with. Formulas taken from the documents filch grew out of are exact under their names.

use super::{Order, Policy, PolicyError, TaskView, Terms, WorkerView};
use crate::config::AdaptiveModel;
use crate::resources::{Amount, Demand, Vector};
use crate::time::{Span, Time};
use crate::tracker::Estimate;

/// `fifo`: the first idle worker, in the order they joined.
#[derive(Clone, Copy, Debug)]
pub struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &str {
        "fifo"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        worker.is_idle().then(|| terms.add("joined", -(worker.joined as f64)))
    }
    fn order(&self) -> Order {
        Order::Joined
    }
}

/// `round_robin`: whoever has gone longest without a new task.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin;

impl Policy for RoundRobin {
    fn name(&self) -> &str {
        "round_robin"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        Some(terms.add("last_assigned", -(worker.last_assigned as f64)))
    }
    fn order(&self) -> Order {
        Order::Recency
    }
}

/// `weighted_round_robin`: whoever has the fewest tasks so far for its weight.
#[derive(Clone, Copy, Debug)]
pub struct WeightedRoundRobin;

impl Policy for WeightedRoundRobin {
    fn name(&self) -> &str {
        "weighted_round_robin"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        Some(terms.add("turns_per_weight", -((worker.assigned + 1) as f64 / worker.weight)))
    }
    fn order(&self) -> Order {
        Order::Weighted
    }
}

/// `priority_based`: the idle worker with the fewest tasks. (The order of the tasks is the queue's business.)
#[derive(Clone, Copy, Debug)]
pub struct PriorityBased;

impl Policy for PriorityBased {
    fn name(&self) -> &str {
        "priority_based"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        worker.is_idle().then(|| terms.add("tasks", -f64::from(worker.held())))
    }
}

/// `load_balancing`: least running / size + queued.
#[derive(Clone, Copy, Debug)]
pub struct LoadBalancing;

impl Policy for LoadBalancing {
    fn name(&self) -> &str {
        "load_balancing"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        let running = terms.add("running_per_size", -(f64::from(worker.running) / worker.size()));
        Some(running + terms.add("queued", -f64::from(worker.queued)))
    }
}

/// `work_stealing`: a child stays with the worker that spawned it, everything else goes to the shortest queue;
/// idle workers steal from queues longer than the policy's threshold.
#[derive(Clone, Copy, Debug)]
pub struct WorkStealing {
    /// A victim has more queued tasks than this.
    pub threshold: u32,
}

impl Policy for WorkStealing {
    fn name(&self) -> &str {
        "work_stealing"
    }
    fn score(&self, task: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        let home = if task.parent_worker == Some(worker.id) { 1e9 } else { 0.0 };
        Some(terms.add("home", home) + terms.add("tasks", -f64::from(worker.held())))
    }
    fn steals_above(&self) -> Option<u32> {
        Some(self.threshold)
    }
}

/// `best_fit`: skill match − queued / 10 + success rate · history weight.
#[derive(Clone, Copy, Debug)]
pub struct BestFit {
    /// How much history counts.
    pub history_weight: f64,
}

impl Policy for BestFit {
    fn name(&self) -> &str {
        "best_fit"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        let skills = terms.add("skill_match", worker.skill_match);
        let queue = terms.add("queue", -(f64::from(worker.queued) / 10.0));
        Some(skills + queue + terms.add("history", worker.success_rate * self.history_weight))
    }
}

/// `performance_based`: success per expected second of this kind here, shared by what the worker already holds.
#[derive(Clone, Copy, Debug)]
pub struct Performance;

impl Policy for Performance {
    fn name(&self) -> &str {
        "performance_based"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        let speed = terms.add("speed", 1.0 / (worker.estimate.duration.as_secs_f64() + 1e-6));
        let success = terms.add("success", worker.estimate.success);
        Some(speed * success / (1.0 + terms.add("load", worker.load())))
    }
}

/// `affinity_based`: 1 where what the task needs is warm, ½ where its kind has run, less load / 10.
#[derive(Clone, Copy, Debug)]
pub struct Affinity;

impl Policy for Affinity {
    fn name(&self) -> &str {
        "affinity_based"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        let warmth = if worker.warm {
            1.0
        } else if worker.estimate.samples > 0 {
            0.5
        } else {
            0.0
        };
        Some(terms.add("warmth", warmth) + terms.add("load", -(worker.load() / 10.0)))
    }
}

/// `cost_based`: least expected cost: rate · expected seconds / success; at equal cost the lesser load.
#[derive(Clone, Copy, Debug)]
pub struct Cost;

impl Policy for Cost {
    fn name(&self) -> &str {
        "cost_based"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        let seconds = worker.estimate.duration.as_secs_f64() / worker.estimate.success;
        let cost = terms.add("cost", -(worker.cost_rate * seconds));
        Some(cost + terms.add("load", -(worker.load() * 1e-6)))
    }
}

/// `expected_completion`: least expected completion time, with cost, lateness and fragmentation as further terms.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedCompletion {
    /// Standard deviations added to the expected duration.
    pub beta: f64,
    /// Seconds one unit of cost is worth.
    pub lambda_cost: f64,
    /// Weight of the seconds a deadline would be missed by.
    pub lambda_deadline: f64,
    /// Weight of the fragmentation a placement causes.
    pub lambda_fragmentation: f64,
}

impl Default for ExpectedCompletion {
    fn default() -> Self {
        ExpectedCompletion { beta: 0.5, lambda_cost: 0.0, lambda_deadline: 10.0, lambda_fragmentation: 0.01 }
    }
}

/// What of a task decides when it has ended, and what that is worth.
#[derive(Clone, Copy)]
pub(crate) struct Stakes {
    /// Seconds until its deadline, if it has one.
    left_s: Option<f64>,
    retry_pause_s: f64,
}

impl Stakes {
    pub(crate) fn new(now: Time, deadline: Time, retry_pause: Span) -> Stakes {
        let left_s = (deadline != Time::NEVER).then(|| deadline.as_secs_f64() - now.as_secs_f64());
        Stakes { left_s, retry_pause_s: retry_pause.as_secs_f64() }
    }

    fn of(task: &TaskView<'_>) -> Stakes {
        Stakes::new(task.now, task.deadline, task.retry_pause)
    }
}

/// What of a worker decides when a task has ended there: all that `expected_completion` looks at but for what is reserved.
#[derive(Clone, Copy)]
pub(crate) struct Prospect {
    /// Seconds until it can begin; none where the worker is idle.
    pub(crate) wait_s: f64,
    pub(crate) cold_s: f64,
    pub(crate) cost_rate: f64,
    pub(crate) estimate: Estimate,
}

impl Prospect {
    #[inline(always)]
    fn of(worker: &WorkerView<'_>) -> Prospect {
        let &WorkerView { backlog, cold, cost_rate, estimate, .. } = worker;
        let wait_s = if worker.is_idle() { 0.0 } else { backlog.as_secs_f64() };
        Prospect { wait_s, cold_s: cold.as_secs_f64(), cost_rate, estimate }
    }
}

impl ExpectedCompletion {
    /// Seconds from now until the task is expected to have ended here, repeats of failed attempts included. The terms
    /// are noted as what they take from the score.
    // Where the terms are not kept, as for all candidates at once, nothing of them is left once it is part of its caller.
    #[must_use]
    #[inline(always)]
    pub fn seconds(&self, task: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> f64 {
        self.seconds_until(&Stakes::of(task), &Prospect::of(worker), terms)
    }

    #[inline(always)]
    fn seconds_until(&self, task: &Stakes, worker: &Prospect, terms: &mut Terms) -> f64 {
        let estimate = &worker.estimate;
        let (duration, success) = (estimate.duration.as_secs_f64(), estimate.success);
        let run = (duration + self.beta * estimate.spread.as_secs_f64()) / success;
        let pauses = if success < 1.0 { (1.0 / success - 1.0) * task.retry_pause_s } else { 0.0 };
        -(terms.add("wait", -worker.wait_s)
            + terms.add("cold", -worker.cold_s)
            + terms.add("run", -run)
            + terms.add("retry", -pauses))
    }

    /// The score: the sum of all terms, each counted against the worker.
    #[inline(always)]
    pub(crate) fn sum(&self, task: &Stakes, worker: &Prospect, fragmentation: Option<f64>, terms: &mut Terms) -> f64 {
        let seconds = self.seconds_until(task, worker, terms);
        let mut score = -seconds;
        if self.lambda_cost > 0.0 {
            let busy = worker.estimate.duration.as_secs_f64() / worker.estimate.success;
            score += terms.add("cost", -(self.lambda_cost * worker.cost_rate * busy));
        }
        score += terms.add("late", -(self.lambda_deadline * Self::lateness(task, worker, seconds)));
        if let Some(fragmentation) = fragmentation {
            score += terms.add("fragmentation", -(self.lambda_fragmentation * fragmentation));
        }
        score
    }

    /// Seconds the deadline would be missed by, one standard deviation on the safe side.
    #[inline]
    fn lateness(task: &Stakes, worker: &Prospect, seconds: f64) -> f64 {
        let Some(left) = task.left_s else { return 0.0 };
        (seconds + worker.estimate.spread.as_secs_f64() - left).max(0.0)
    }
}

/// How uneven the worker's resources are used with the demand added: the gap between the most and the least used. None
/// if nothing is asked for.
pub(crate) fn fragmentation(demand: &Demand, capacity: &Vector, reserved: &Vector) -> Option<f64> {
    if demand.is_empty() {
        return None;
    }
    // The most and the least used, without the task and with it.
    let (mut before, mut after) = ((0.0f64, 1.0f64), (0.0f64, 1.0f64));
    for (resource, capacity) in capacity.iter() {
        let asked = demand.amounts().iter().find(|entry| entry.0 == resource).map_or(Amount(0), |e| e.1);
        let (reserved, capacity) = (reserved.get(resource), capacity.as_f64());
        let share = reserved.as_f64() / capacity;
        before = (before.0.max(share), before.1.min(share));
        let share = if asked == Amount(0) { share } else { (reserved + asked).as_f64() / capacity };
        after = (after.0.max(share), after.1.min(share));
    }
    Some((after.0 - after.1).max(0.0) - (before.0 - before.1).max(0.0))
}

impl Policy for ExpectedCompletion {
    fn name(&self) -> &str {
        "expected_completion"
    }
    fn score(&self, task: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        let fragmentation = fragmentation(task.demand, worker.capacity, worker.reserved);
        Some(self.sum(&Stakes::of(task), &Prospect::of(worker), fragmentation, terms))
    }

    fn expected_completion(&self) -> Option<&ExpectedCompletion> {
        Some(self)
    }

    fn score_all(&self, task: &TaskView<'_>, workers: &[WorkerView<'_>], scores: &mut Vec<Option<f64>>) {
        let mut terms = Terms::default();
        let mut known: Option<(&WorkerView<'_>, Option<f64>)> = None;
        for worker in workers {
            // Most candidates are equal and hold the same, so that a task fragments all of them alike.
            let alike = known.filter(|(other, _)| {
                std::ptr::eq(other.capacity, worker.capacity) && other.reserved == worker.reserved
            });
            let fragmentation = alike.map_or_else(
                || fragmentation(task.demand, worker.capacity, worker.reserved),
                |(_, fragmentation)| fragmentation,
            );
            known = Some((worker, fragmentation));
            scores.push(Some(self.sum(&Stakes::of(task), &Prospect::of(worker), fragmentation, &mut terms)));
        }
    }
}

/// `deadline`: least lateness; among workers that are in time, the earliest end.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// How completion is expected.
    pub expected: ExpectedCompletion,
}

impl Policy for Deadline {
    fn name(&self) -> &str {
        "deadline"
    }
    fn score(&self, task: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        let seconds = self.expected.seconds(task, worker, terms);
        let late =
            terms.add("late", -(ExpectedCompletion::lateness(&Stakes::of(task), &Prospect::of(worker), seconds) * 1e6));
        Some(late - seconds)
    }
}

/// `batch`: fills the biggest worker up to the batch size, then the next; once all are full, one each in turn.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Tasks given to one worker before the next.
    pub size: u32,
}

impl Policy for Batch {
    fn name(&self) -> &str {
        "batch"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        if worker.held() < self.size {
            return Some(terms.add("size", worker.size()));
        }
        // Below all that are not full; the size decides only among equals.
        let size = worker.size() / (worker.size() + 1.0);
        Some(terms.add("full", -f64::from(worker.held())) + terms.add("size", size))
    }
    fn order(&self) -> Order {
        Order::Batch(self.size)
    }
}

/// `adaptive`: speed · success of the idle workers, 1 for a new one.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    /// What it learns from.
    pub model: AdaptiveModel,
    /// Weight of the newest observation, with `ewma`.
    pub alpha: Option<f64>,
}

impl Policy for Adaptive {
    fn name(&self) -> &str {
        "adaptive"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        if !worker.is_idle() {
            return None;
        }
        let (seconds, success, samples) = match self.model {
            AdaptiveModel::Ewma => (worker.average.completion_s, worker.average.success, worker.average.total),
            AdaptiveModel::Learned => {
                let estimate = &worker.estimate;
                (estimate.duration.as_secs_f64(), estimate.success, estimate.samples)
            }
        };
        if samples == 0 {
            return Some(terms.add("new", 1.0));
        }
        Some(terms.add("speed", 1.0 / (seconds + 1e-6)) * terms.add("success", success))
    }
    fn alpha(&self) -> Option<f64> {
        self.alpha.filter(|_| self.model == AdaptiveModel::Ewma)
    }
}

/// `composite`: the weighted sum of its parts, each scaled to 0..1 over the candidates. A worker that a part refuses
/// is refused.
pub struct Composite {
    parts: Vec<(f64, Box<dyn Policy>)>,
}

impl Composite {
    /// A composite of weighted parts.
    ///
    /// # Errors
    /// If there are no parts, a weight is negative or not finite, or they sum to 0.
    pub fn new(parts: Vec<(f64, Box<dyn Policy>)>) -> Result<Composite, PolicyError> {
        if parts.is_empty() {
            return Err(PolicyError("a composite needs at least one algorithm".to_owned()));
        }
        if parts.iter().any(|part| !part.0.is_finite() || part.0 < 0.0) {
            return Err(PolicyError("the weights of a composite must be finite and not negative".to_owned()));
        }
        if parts.iter().map(|part| part.0).sum::<f64>() <= 0.0 {
            return Err(PolicyError("the weights of a composite sum to 0".to_owned()));
        }
        Ok(Composite { parts })
    }

    /// What the heaviest part says that says anything.
    fn heaviest<T>(&self, says: impl Fn(&dyn Policy) -> Option<T>) -> Option<T> {
        let said = self.parts.iter().filter_map(|(weight, part)| Some((*weight, says(&**part)?)));
        said.max_by(|a, b| a.0.total_cmp(&b.0)).map(|entry| entry.1)
    }
}

impl Composite {
    /// What a part says of the candidates, scaled to 0..1 over them and weighted.
    fn scaled(weight: f64, part: &dyn Policy, task: &TaskView<'_>, workers: &[WorkerView<'_>]) -> Vec<Option<f64>> {
        let mut scores = Vec::with_capacity(workers.len());
        part.score_all(task, workers, &mut scores);
        let known = scores.iter().flatten();
        let (low, high) = known.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &s| (low.min(s), high.max(s)));
        for score in scores.iter_mut().flatten() {
            *score = weight * if high > low { (*score - low) / (high - low) } else { 1.0 };
        }
        scores
    }
}

impl Policy for Composite {
    fn name(&self) -> &str {
        "composite"
    }

    /// One candidate by itself: every part scales to 1, so what remains is who refuses. `score_all` decides.
    fn score(&self, task: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        let mut total = 0.0;
        for (weight, part) in &self.parts {
            part.score(task, worker, &mut Terms::default())?;
            total += terms.add(known_name(&**part), *weight);
        }
        Some(total)
    }

    fn score_all(&self, task: &TaskView<'_>, workers: &[WorkerView<'_>], scores: &mut Vec<Option<f64>>) {
        let start = scores.len();
        scores.extend(workers.iter().map(|_| Some(0.0)));
        for (weight, part) in &self.parts {
            let scaled = Self::scaled(*weight, &**part, task, workers);
            for (total, score) in scores[start..].iter_mut().zip(scaled) {
                *total = total.zip(score).map(|(total, score)| total + score);
            }
        }
    }

    fn terms_of(&self, task: &TaskView<'_>, workers: &[WorkerView<'_>], shown: &[usize]) -> Vec<Terms> {
        let mut all = vec![Terms::kept(); shown.len()];
        for (weight, part) in &self.parts {
            let scaled = Self::scaled(*weight, &**part, task, workers);
            for (terms, &at) in all.iter_mut().zip(shown) {
                terms.add(known_name(&**part), scaled[at].unwrap_or(0.0));
            }
        }
        all
    }

    fn order(&self) -> Order {
        // The heaviest part knows best which workers are worth a look.
        self.heaviest(|part| Some(part.order())).unwrap_or_default()
    }

    fn steals_above(&self) -> Option<u32> {
        self.heaviest(|part| part.steals_above())
    }

    fn alpha(&self) -> Option<f64> {
        self.heaviest(|part| part.alpha())
    }
}

/// The name of a policy that filch comes with.
fn known_name(policy: &dyn Policy) -> &'static str {
    crate::config::policy(policy.name()).map_or("part", |entry| entry.name)
}
