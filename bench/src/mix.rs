//! The mixes: which workers there are, which tasks come, and how they are bound.

use clap::ValueEnum;
use filch_core::config::{Bind, PolicySpec};
use filch_core::{
    Amount, CapabilityId, CapabilitySet, Config, Demand, KindId, ResourceId, TaskSpec, Vector, WorkerSpec,
};

/// A mix of workers and tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Mix {
    /// All workers alike, all tasks alike.
    Homogeneous,
    /// 64 classes of workers, 32 signatures of tasks; each signature runs on two classes of three.
    Mixed,
    /// Worst case: every worker is a class of its own; 32 signatures.
    OwnClass,
    /// Worst case: every task has a signature of its own; every worker can run all of them.
    OwnSignature,
    /// Worst case: both; a task needs up to all the memory of the largest worker, so not everybody can run it.
    OwnBoth,
    /// Worst case: 4000 signatures that nobody who asks can run stand at the head of the queue.
    Blocked,
    /// The elements of arrays.
    Array,
    /// Nothing queued, half of the slots waiting for a task: every submission scores candidates.
    Sparse,
    /// Worst case of that: every worker is a class of its own.
    SparseOwnClass,
    /// Tasks are bound to a worker when they are submitted.
    Push,
    /// Worst case of that: every worker is a class of its own.
    PushOwnClass,
    /// Bound at submission, in turns, to workers of which half never ask: the others steal.
    Steal,
}

/// Signatures that stand before everything else in `blocked`.
pub const BLOCKED: u64 = 4000;

const CLASSES: u64 = 64;
const SIGNATURES: u64 = 32;
/// Capabilities in use; a class lacks two of them, a signature asks for two of them.
const CAPABILITIES: u64 = 12;
/// The capability that only the worker that never asks has.
const RARE: u64 = CAPABILITIES;
const GIB: u64 = 1 << 30;

impl Mix {
    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mix::Homogeneous => "homogeneous",
            Mix::Mixed => "mixed",
            Mix::OwnClass => "own_class",
            Mix::OwnSignature => "own_signature",
            Mix::OwnBoth => "own_both",
            Mix::Blocked => "blocked",
            Mix::Array => "array",
            Mix::Sparse => "sparse",
            Mix::SparseOwnClass => "sparse_own_class",
            Mix::Push => "push",
            Mix::PushOwnClass => "push_own_class",
            Mix::Steal => "steal",
        }
    }

    /// Whether the queue stays empty because workers wait.
    #[must_use]
    pub fn is_sparse(self) -> bool {
        matches!(self, Mix::Sparse | Mix::SparseOwnClass)
    }

    /// Whether a queue of that length stays as it is: bound to workers, a task behind an idle slot would not wait.
    #[must_use]
    pub fn stays(self, workers: u64, queued: u64) -> bool {
        let bound = self.config().scheduling.bind == Bind::Push;
        !bound || queued >= workers * u64::from(self.slots())
    }

    /// Whether it is there to show how bad it can get.
    #[must_use]
    pub fn is_worst_case(self) -> bool {
        match self {
            Mix::OwnClass
            | Mix::OwnSignature
            | Mix::OwnBoth
            | Mix::Blocked
            | Mix::SparseOwnClass
            | Mix::PushOwnClass => true,
            Mix::Homogeneous | Mix::Mixed | Mix::Array | Mix::Sparse | Mix::Push | Mix::Steal => false,
        }
    }

    /// The configuration: the default one but for what the mix is about.
    #[must_use]
    pub fn config(self) -> Config {
        let mut config = Config::default();
        if matches!(self, Mix::Push | Mix::PushOwnClass | Mix::Steal) {
            config.scheduling.bind = Bind::Push;
        }
        if self == Mix::Steal {
            config.scheduling.policy = PolicySpec::Name("round_robin".to_owned());
        }
        config
    }

    /// Slots of every worker. One where memory is what tasks compete for, so that nothing waits for a neighbour.
    #[must_use]
    pub fn slots(self) -> u32 {
        if self == Mix::OwnBoth { 1 } else { 4 }
    }

    /// Whether the worker joins before the queue is filled and then never asks for anything.
    #[must_use]
    pub fn never_asks(self, worker: u64) -> bool {
        match self {
            Mix::Steal => worker.is_multiple_of(2),
            Mix::Blocked => worker == 0,
            _ => false,
        }
    }

    /// The worker with that number.
    #[must_use]
    pub fn worker(self, number: u64) -> WorkerSpec {
        let mut spec = WorkerSpec { tag: number, slots: self.slots(), ..WorkerSpec::default() };
        let memory = match self {
            Mix::Homogeneous | Mix::Array | Mix::Sparse | Mix::Push | Mix::Steal => return spec,
            Mix::Mixed => {
                spec.capabilities = all_but(class_pair(number));
                spec.speed = [1.0, 0.8, 1.5, 2.0][(number % 4) as usize];
                64 * GIB
            }
            Mix::OwnClass | Mix::SparseOwnClass | Mix::PushOwnClass => {
                spec.capabilities = all_but(class_pair(number));
                64 * GIB + number
            }
            Mix::OwnSignature => {
                spec.capabilities = (0..CAPABILITIES).map(capability).collect();
                4096 * GIB
            }
            // From half of the largest to all of it, no two alike.
            Mix::OwnBoth => 64 * GIB - scatter(number, 32 * GIB),
            Mix::Blocked => {
                spec.capabilities =
                    if number == 0 { [capability(RARE)].into_iter().collect() } else { CapabilitySet::default() };
                4096 * GIB
            }
        };
        spec.resources = Vector::new([
            (ResourceId::CPUS, Amount::from_units(u64::from(spec.slots))),
            (ResourceId::MEMORY, Amount::from_units(memory)),
        ]);
        spec
    }

    /// The task with that number.
    #[must_use]
    pub fn task(self, number: u64) -> TaskSpec {
        let mut spec = TaskSpec { payload: number, kind: KindId(1), ..TaskSpec::default() };
        match self {
            Mix::Homogeneous | Mix::Array | Mix::Sparse | Mix::Push | Mix::Steal => {}
            Mix::Mixed | Mix::OwnClass | Mix::SparseOwnClass | Mix::PushOwnClass => {
                let which = scatter(number, SIGNATURES);
                let (required, skill) = pair(which * 2);
                spec.kind = KindId(1 + which as u32);
                spec.requires = [capability(required)].into_iter().collect();
                spec.skills = [capability(skill)].into_iter().collect();
                spec.demand = demand(1 + which % 8, GIB);
            }
            Mix::OwnSignature => {
                let (first, second) = pair(number % CLASSES);
                spec.requires = [capability(first), capability(second)].into_iter().collect();
                spec.demand = demand(1, GIB + number);
            }
            Mix::OwnBoth => spec.demand = demand(1, 1 + scatter(number, 64 * GIB)),
            Mix::Blocked if number < BLOCKED => {
                spec.requires = [capability(RARE)].into_iter().collect();
                spec.demand = demand(1, GIB + number);
            }
            Mix::Blocked => spec.demand = demand(1, GIB),
        }
        spec
    }
}

fn capability(number: u64) -> CapabilityId {
    CapabilityId(number as u32)
}

fn demand(times: u64, memory: u64) -> Demand {
    Demand::new([(ResourceId::CPUS, Amount::from_units(1)), (ResourceId::MEMORY, Amount::from_units(times * memory))])
}

/// The pair of capabilities with that number, of the 66 there are.
fn pair(number: u64) -> (u64, u64) {
    let mut left = number % (CAPABILITIES * (CAPABILITIES - 1) / 2);
    for first in 0..CAPABILITIES {
        let more = CAPABILITIES - 1 - first;
        if left < more {
            return (first, first + 1 + left);
        }
        left -= more;
    }
    (0, 1)
}

/// The capabilities that the class of a worker lacks: far apart for neighbours, so that a few workers have all.
fn class_pair(worker: u64) -> (u64, u64) {
    pair(worker % CLASSES * 25)
}

fn all_but((first, second): (u64, u64)) -> CapabilitySet {
    (0..CAPABILITIES).filter(|&at| at != first && at != second).map(capability).collect()
}

/// A number below `bound` that looks random but is always the same; no two of the first 2^32 are alike for bounds of
/// at least 2^32.
fn scatter(number: u64, bound: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_class_and_signature_of_the_mix_is_there() {
        let workers: BTreeSet<String> =
            (0..1000).map(|at| format!("{:?}", WorkerSpec { tag: 0, ..Mix::Mixed.worker(at) })).collect();
        assert_eq!(workers.len() as u64, CLASSES);
        let tasks: BTreeSet<String> =
            (0..10_000).map(|at| format!("{:?}", TaskSpec { payload: 0, ..Mix::Mixed.task(at) })).collect();
        assert_eq!(tasks.len() as u64, SIGNATURES);
    }

    #[test]
    fn own_means_own() {
        let memory = |mix: Mix, at| mix.worker(at).resources.get(ResourceId::MEMORY);
        for mix in [Mix::OwnClass, Mix::OwnBoth] {
            assert_eq!((0..100_000).map(|at| memory(mix, at)).collect::<BTreeSet<_>>().len(), 100_000, "{mix:?}");
        }
        for mix in [Mix::OwnSignature, Mix::OwnBoth] {
            let demands: BTreeSet<_> = (0..100_000).map(|at| mix.task(at).demand.amounts().to_vec()).collect();
            assert_eq!(demands.len(), 100_000, "{mix:?}");
        }
    }

    #[test]
    fn each_signature_runs_on_many_classes() {
        for task in (0..1000).map(|at| Mix::Mixed.task(at)) {
            let asked: Vec<CapabilityId> = task.requires.ids().iter().chain(task.skills.ids()).copied().collect();
            let able = (0..CLASSES).filter(|&at| {
                let worker = Mix::Mixed.worker(at);
                asked.iter().all(|id| worker.capabilities.ids().contains(id))
            });
            let able: Vec<u64> = able.collect();
            assert!(able.len() > 30);
            assert!(able[0] < 10, "ten workers are enough to run everything");
        }
    }
}
