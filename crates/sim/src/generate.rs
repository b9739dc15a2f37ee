//! Made-up workloads: durations from a distribution, arrivals in a pattern, pushed anywhere or to a few workers, alone or in
//! trees of tasks that spawn others.

use filch_core::{Amount, CapabilitySet, Demand, Priority, ResourceId, Rng, Span, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::network::{exponential, normal};
use crate::workload::{NONE, Run, Shape, Task, Workload};

/// How a workload is made up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Generator {
    /// How many tasks arrive, spawned ones not counted.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub tasks: Option<u32>,
    /// How many tasks arrive for every worker, unless `tasks` says how many in all.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub per_worker: u32,
    /// All the work together, cut into tasks of the `typical` duration, unless `tasks` says how many; 0 leaves it to `per_worker`.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub work: Span,
    /// The distribution of durations.
    pub duration: Duration,
    /// The duration, for `constant`; the mean, for `exponential`; the median, for `log_normal`.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::positive_schema")]
    pub typical: Span,
    /// The shortest, for `uniform` and `pareto`.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub least: Span,
    /// The longest, for `uniform`; cuts off the tail of the others if it is not 0.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub most: Span,
    /// The deviation of the logarithm, for `log_normal`.
    #[schemars(range(min = 0, max = 10))]
    pub sigma: f64,
    /// The exponent, for `pareto`: the smaller the longer the tail.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub alpha: f64,
    /// When tasks arrive.
    pub arrival: Arrival,
    /// Tasks a second, for `poisson`, and on average for `waves`.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub rate: f64,
    /// Tasks of one burst.
    #[schemars(range(min = 1))]
    pub burst: u32,
    /// From one burst, or one wave, to the next.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::positive_schema")]
    pub every: Span,
    /// Bytes that every task reads before it runs, from where the coordinator is.
    #[schemars(range(min = 0))]
    pub input: f64,
    /// Share of the workers that all tasks are pushed to; 0 lets the scheduler decide.
    #[schemars(range(min = 0, max = 1))]
    pub pushed_to: f64,
    /// Tasks that every task spawns while it runs.
    #[schemars(range(min = 0, max = 1000))]
    pub children: u32,
    /// How many generations are spawned.
    #[schemars(range(min = 0, max = 30))]
    pub depth: u32,
    /// Durations of children, by that of their spawner.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub child_share: f64,
    /// Different kinds of tasks; each takes its own share of the typical duration.
    #[schemars(range(min = 1, max = 10_000))]
    pub kinds: u32,
    /// Whether the submitter knows how long a task takes.
    pub estimates: bool,
    /// Cores a task needs; tasks that need several are drawn up to this.
    #[schemars(range(min = 1, max = 4096))]
    pub cpus: u32,
    /// Share of the tasks that need several cores.
    #[schemars(range(min = 0, max = 1))]
    pub wide: f64,
    /// Share of the tasks with high priority (5 of 5); the others have 3.
    #[schemars(range(min = 0, max = 1))]
    pub urgent: f64,
    /// Share of the attempts that fail.
    #[schemars(range(min = 0, max = 1))]
    pub fails: f64,
    /// Share of the tasks that require each of these capabilities.
    #[schemars(range(min = 0, max = 1))]
    pub requiring: f64,
    /// Capabilities that tasks require, each of those tasks one.
    pub requires: Vec<String>,
    /// Share of the tasks that must never run twice at once.
    #[schemars(range(min = 0, max = 1))]
    pub exclusive: f64,
    /// Share of the tasks with one of `keys` keys.
    #[schemars(range(min = 0, max = 1))]
    pub keyed: f64,
    /// How many keys there are.
    #[schemars(range(min = 1))]
    pub keys: u32,
    /// Share of the tasks that wait for an earlier one.
    #[schemars(range(min = 0, max = 1))]
    pub linked: f64,
    /// How long one attempt may run; 0 is without end.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub timeout: Span,
    /// Share of the tasks that run at one worker and no other, each at the next one in turn; of those that ask for more than a
    /// core or for a capability, none.
    #[schemars(range(min = 0, max = 1))]
    pub pinned: f64,
    /// Share of the tasks that somebody cancels, at a moment up to twice as long after their arrival as they take.
    #[schemars(range(min = 0, max = 1))]
    pub cancelled: f64,
}

impl Default for Generator {
    fn default() -> Self {
        Generator {
            tasks: None,
            per_worker: 100,
            work: Span::ZERO,
            duration: Duration::Constant,
            typical: Span::from_secs(1),
            least: Span::from_millis(500),
            most: Span::ZERO,
            sigma: 1.0,
            alpha: 1.5,
            arrival: Arrival::AtOnce,
            rate: 1.0,
            burst: 100,
            every: Span::from_secs(10),
            input: 0.0,
            pushed_to: 0.0,
            children: 0,
            depth: 0,
            child_share: 1.0,
            kinds: 1,
            estimates: false,
            cpus: 1,
            wide: 0.0,
            urgent: 0.0,
            fails: 0.0,
            requiring: 0.0,
            requires: Vec::new(),
            exclusive: 0.0,
            keyed: 0.0,
            keys: 1,
            linked: 0.0,
            timeout: Span::ZERO,
            pinned: 0.0,
            cancelled: 0.0,
        }
    }
}

/// Distributions of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Duration {
    /// All alike.
    #[default]
    Constant,
    /// Anything from the shortest to the longest.
    Uniform,
    /// Without memory, as in queueing theory.
    Exponential,
    /// Mostly near the median, some far above.
    LogNormal,
    /// Mostly short, a few very long.
    Pareto,
}

/// Patterns of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// All at the start.
    #[default]
    AtOnce,
    /// One by one at random.
    Poisson,
    /// Many at once, again and again.
    Bursts,
    /// At random, now more and now fewer.
    Waves,
}

impl Generator {
    /// The workload for a cluster of so many workers.
    #[must_use]
    pub fn make(&self, name: &str, workers: u32, seed: u64) -> Workload {
        let mut rng = Rng::new(seed ^ 0x6e_65_72_67);
        let mut workload = Workload::new(name);
        workload.input = self.input;
        let count = self.count(workers);
        workload.tasks.reserve(count as usize);
        if self.pushed_to > 0.0 {
            workload.seeded_to = Some(((f64::from(workers) * self.pushed_to + 0.5) as u32).max(1));
        }
        let mut at = Time::ZERO;
        for index in 0..count {
            at = self.arrives(&mut rng, at, index);
            let kind = rng.below(self.kinds as usize) as u32;
            let shape = self.shape(&mut workload, &mut rng, kind);
            let run = self.lasts(&mut rng, kind);
            let estimate = if self.estimates { run } else { Span::ZERO };
            let mut parents = (0, 0);
            if self.linked > 0.0 && index > 0 && rng.unit() < self.linked {
                parents = (workload.parents.len() as u32, 1);
                let task = rng.below(index as usize) as u32;
                workload.parents.push(crate::workload::Parent { task, bytes: 0 });
            }
            workload.tasks.push(Task { at, run: Run::Same(run), estimate, shape, parents, spawned_by: NONE });
        }
        self.spawn(&mut workload, &mut rng);
        self.cancel(&mut workload, &mut rng);
        workload
    }

    fn arrives(&self, rng: &mut Rng, last: Time, index: u32) -> Time {
        match self.arrival {
            Arrival::AtOnce => Time::ZERO,
            Arrival::Poisson => last + Span::from_secs_f64(exponential(rng, 1.0 / self.rate)),
            Arrival::Bursts => Time((u64::from(index / self.burst)).saturating_mul(self.every.0)),
            Arrival::Waves => {
                // The rate swings between nothing and twice the average; what a full rate would bring is thinned out.
                let mut at = last;
                loop {
                    at = at + Span::from_secs_f64(exponential(rng, 0.5 / self.rate));
                    let turn = at.as_secs_f64() / self.every.as_secs_f64();
                    if rng.unit() < 0.5 + 0.5 * libm::sin(2.0 * std::f64::consts::PI * turn) {
                        return at;
                    }
                }
            }
        }
    }

    fn lasts(&self, rng: &mut Rng, kind: u32) -> Span {
        let drawn = match self.duration {
            Duration::Constant => self.typical,
            Duration::Uniform => self.least + Span::from_secs_f64((self.most - self.least).as_secs_f64() * rng.unit()),
            Duration::Exponential => Span::from_secs_f64(exponential(rng, self.typical.as_secs_f64())),
            Duration::LogNormal => self.typical.mul_f64(libm::exp(self.sigma * normal(rng))),
            Duration::Pareto => self.least.mul_f64(libm::pow(1.0 - rng.unit(), -1.0 / self.alpha)),
        };
        let drawn = if self.most > Span::ZERO { drawn.min(self.most) } else { drawn };
        if self.kinds > 1 { drawn.mul_f64(2.0 * f64::from(kind + 1) / f64::from(self.kinds + 1)) } else { drawn }
    }

    fn shape(&self, workload: &mut Workload, rng: &mut Rng, kind: u32) -> u32 {
        let mut drawn = |share: f64| share > 0.0 && rng.unit() < share;
        let (urgent, wide, requiring) = (drawn(self.urgent), drawn(self.wide), drawn(self.requiring));
        let (exclusive, keyed) = (drawn(self.exclusive), drawn(self.keyed));
        let pinned = drawn(self.pinned) && !wide && !requiring;
        let cpus = if wide && self.cpus > 1 { 2 + rng.below(self.cpus as usize - 1) as u64 } else { 1 };
        let mut requires = CapabilitySet::default();
        if requiring && !self.requires.is_empty() {
            let name = &self.requires[rng.below(self.requires.len())];
            requires = [workload.names.capability(name)].into_iter().collect();
        }
        let key = keyed.then(|| {
            let number = rng.below(self.keys as usize);
            workload.names.key(&format!("key {number}"))
        });
        let kind = if self.kinds > 1 { workload.names.kind(&format!("kind {kind}")) } else { Default::default() };
        workload.shape(Shape {
            kind,
            priority: if urgent { Priority::MAX } else { Priority::default() },
            requires,
            demand: Demand::new([(ResourceId::CPUS, Amount::from_units(cpus))]),
            key,
            exclusive,
            deadline: None,
            timeout: (self.timeout > Span::ZERO).then_some(self.timeout),
            fails: self.fails,
            pinned,
        })
    }

    /// Says which tasks are cancelled, and when.
    fn cancel(&self, workload: &mut Workload, rng: &mut Rng) {
        if self.cancelled == 0.0 {
            return;
        }
        for (index, task) in workload.tasks.iter().enumerate() {
            if rng.unit() < self.cancelled
                && let Run::Same(run) = task.run
            {
                workload.cancels.push((index as u32, run.mul_f64(2.0 * rng.unit())));
            }
        }
    }

    /// How many tasks arrive for so many workers.
    fn count(&self, workers: u32) -> u32 {
        let cut = |work: Span| u32::try_from(work.0 / self.typical.0.max(1)).unwrap_or(u32::MAX).max(1);
        match self.tasks {
            Some(tasks) => tasks,
            None if self.work > Span::ZERO => cut(self.work),
            None => self.per_worker.saturating_mul(workers),
        }
    }

    /// How many tasks it makes for so many workers, with all that they spawn.
    pub(crate) fn total(&self, workers: u32) -> u64 {
        let first = u64::from(self.count(workers));
        let (mut generation, mut total) = (first, first);
        for _ in 0..self.depth {
            generation = generation.saturating_mul(u64::from(self.children));
            total = total.saturating_add(generation);
            if generation == 0 || total > u64::from(u32::MAX) {
                break;
            }
        }
        total
    }

    /// Adds the tasks that others spawn, generation by generation.
    fn spawn(&self, workload: &mut Workload, rng: &mut Rng) {
        let mut start = 0;
        for _ in 0..self.depth {
            let end = workload.tasks.len();
            for spawner in start..end {
                for _ in 0..self.children {
                    let Task { run, shape, .. } = workload.tasks[spawner];
                    let Run::Same(whole) = run else { continue };
                    let run = whole.mul_f64(self.child_share);
                    let at = Time((whole.0 as f64 * rng.unit()) as u64);
                    let estimate = if self.estimates { run } else { Span::ZERO };
                    workload.tasks.push(Task {
                        at,
                        run: Run::Same(run),
                        estimate,
                        shape,
                        parents: (0, 0),
                        spawned_by: spawner as u32,
                    });
                }
            }
            start = end;
        }
    }
}
