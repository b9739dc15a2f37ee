//! What is to be done: tasks with the moment they arrive and the time they truly take, which the machines only learn when
//! a task has ended.

use filch_core::{AffinityId, CapabilitySet, Demand, KeyId, KindId, Names, Priority, Span, TaskSpec, Time};
use smallvec::SmallVec;

use crate::cluster::Class;

/// No index: of a task without a spawner, or a workload without a table.
pub(crate) const NONE: u32 = u32::MAX;

/// How long a task truly takes on a worker of speed 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// The same everywhere.
    Same(Span),
    /// By class of worker: so many entries of [`Workload::by_class`], from this one on.
    ByClass(u32, u32),
}

/// One task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Task {
    /// When it arrives; of a spawned task, how long after its spawner began.
    pub at: Time,
    /// How long it takes.
    pub run: Run,
    /// What its submitter guessed; zero if nothing.
    pub estimate: Span,
    /// What it asks for: an index into [`Workload::shapes`].
    pub shape: u32,
    /// Where its parents begin in [`Workload::parents`], and how many they are.
    pub parents: (u32, u32),
    /// The task that spawns it while running, or [`u32::MAX`].
    pub spawned_by: u32,
}

/// What many tasks have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// History is learned per kind.
    pub kind: KindId,
    /// 1 to 5.
    pub priority: Priority,
    /// Capabilities a worker must have.
    pub requires: CapabilitySet,
    /// Resources reserved while it runs.
    pub demand: Demand,
    /// Never more than the key's limit at once.
    pub key: Option<KeyId>,
    /// Never twice at once.
    pub exclusive: bool,
    /// How long after its arrival it should have ended.
    pub deadline: Option<Span>,
    /// How long one attempt may run.
    pub timeout: Option<Span>,
    /// Share of its attempts that fail.
    pub fails: f64,
    /// Whether it runs at one worker and no other: which, its position in the workload says.
    pub pinned: bool,
}

/// One edge of the graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parent {
    /// The task that must end first.
    pub task: u32,
    /// Bytes received from it; 0 if unknown or none.
    pub bytes: u64,
}

/// A capability that workers have because of what they are: of one of these classes, or with GPUs of one of these models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What it is called.
    pub capability: String,
    /// Classes that have it.
    pub classes: Vec<String>,
    /// Models of GPUs that bring it.
    pub models: Vec<String>,
}

/// What makes tasks cheaper where a worker still has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Warmth {
    /// Where the things of each task begin in `list`, and one more; empty if no task has any.
    pub starts: Vec<u32>,
    /// The things of all tasks, in the order they are used.
    pub list: Vec<AffinityId>,
    /// Saved for each of the first things of a task that the worker has, up to the first it does not have.
    pub saved: Span,
    /// How many things a worker keeps; those not used for longest go first.
    pub kept: u32,
}

impl Warmth {
    /// The things of a task.
    #[must_use]
    pub fn of(&self, task: u32) -> &[AffinityId] {
        match (self.starts.get(task as usize), self.starts.get(task as usize + 1)) {
            (Some(&start), Some(&end)) => &self.list[start as usize..end as usize],
            _ => &[],
        }
    }
}

/// A whole workload. Parents stand before their children, spawners before what they spawn.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// What it is called.
    pub name: String,
    /// The tasks; those that are not spawned by others are in the order of arrival.
    pub tasks: Vec<Task>,
    /// What they ask for.
    pub shapes: Vec<Shape>,
    /// The parents of all tasks, one after the other.
    pub parents: Vec<Parent>,
    /// Durations by class, for tasks that take another time on every class: a class and how long it takes there.
    pub by_class: Vec<(u32, Span)>,
    /// The names of those classes.
    pub classes: Vec<String>,
    /// Capabilities that follow from what a worker is.
    pub groups: Vec<Group>,
    /// What makes tasks cheaper.
    pub warmth: Warmth,
    /// Bytes that each task reads and writes; empty if nobody knows.
    pub data: Vec<(u64, u64)>,
    /// What is known of it and plays no part in a simulation.
    pub notes: Vec<String>,
    /// Names behind the numbers.
    pub names: Names,
    /// Tasks by name, where they have one.
    pub ids: Vec<String>,
    /// Bytes that every task reads before it runs.
    pub input: f64,
    /// Whether every task goes to the queue of one of the first workers at submission: how many of them.
    pub seeded_to: Option<u32>,
    /// Tasks that somebody cancels, by their position, and how long after their arrival.
    pub cancels: Vec<(u32, Span)>,
}

impl Workload {
    /// An empty one.
    #[must_use]
    pub fn new(name: &str) -> Workload {
        Workload { name: name.to_owned(), ..Workload::default() }
    }

    /// The index of a shape, entered if it is new.
    pub fn shape(&mut self, shape: Shape) -> u32 {
        // Recent ones first: tasks of one shape come in rows.
        match self.shapes.iter().rposition(|known| *known == shape) {
            Some(at) => at as u32,
            None => {
                self.shapes.push(shape);
                self.shapes.len() as u32 - 1
            }
        }
    }

    /// Adds a task without parents.
    pub fn push(&mut self, at: Time, run: Span, shape: u32) {
        let task = Task { at, run: Run::Same(run), estimate: Span::ZERO, shape, parents: (0, 0), spawned_by: NONE };
        self.tasks.push(task);
    }

    /// What a task asks for.
    #[must_use]
    pub fn shape_of(&self, task: u32) -> &Shape {
        &self.shapes[self.tasks[task as usize].shape as usize]
    }

    /// The parents of a task.
    #[must_use]
    pub fn parents_of(&self, task: u32) -> &[Parent] {
        let (start, count) = self.tasks[task as usize].parents;
        &self.parents[start as usize..(start + count) as usize]
    }

    /// How long after its arrival a task is cancelled, if it is.
    #[must_use]
    pub fn cancelled_after(&self, task: u32) -> Option<Span> {
        let at = self.cancels.binary_search_by_key(&task, |cancel| cancel.0).ok()?;
        Some(self.cancels[at].1)
    }

    /// How long a task takes on a worker of a class, at speed 1.
    #[must_use]
    pub fn duration(&self, task: u32, class: &str) -> Option<Span> {
        match self.tasks[task as usize].run {
            Run::Same(span) => Some(span),
            Run::ByClass(start, count) => {
                let class = self.classes.iter().position(|known| known == class)? as u32;
                let times = &self.by_class[start as usize..(start + count) as usize];
                times.iter().find(|entry| entry.0 == class).map(|entry| entry.1)
            }
        }
    }

    /// What workers of a class can do because of what they are.
    #[must_use]
    pub fn capabilities_of(&self, class: &Class) -> Vec<String> {
        let model = class.gpu_model.as_ref().filter(|_| class.gpus > 0);
        let has = |group: &&Group| {
            group.classes.contains(&class.name) || model.is_some_and(|model| group.models.contains(model))
        };
        self.groups.iter().filter(has).map(|group| group.capability.clone()).collect()
    }

    /// What a task is called.
    #[must_use]
    pub fn label(&self, task: u32) -> String {
        self.ids.get(task as usize).cloned().unwrap_or_else(|| format!("T{task}"))
    }

    /// A task as it is submitted.
    #[must_use]
    pub fn spec(&self, index: u32) -> TaskSpec {
        let task = &self.tasks[index as usize];
        let shape = self.shape_of(index);
        TaskSpec {
            payload: u64::from(index),
            kind: shape.kind,
            priority: shape.priority,
            requires: shape.requires.clone(),
            demand: shape.demand.clone(),
            key: shape.key,
            exclusive: shape.exclusive,
            idempotent: !shape.exclusive,
            estimate: (task.estimate > Span::ZERO).then_some(task.estimate),
            deadline: shape.deadline.map(|span| task.at + span),
            timeout: shape.timeout,
            affinity: self.warmth.of(index).iter().map(|thing| (*thing, self.warmth.saved)).collect(),
            ..TaskSpec::default()
        }
    }

    /// For every task, those it spawns, as ranges of a list.
    pub(crate) fn children(&self) -> Children {
        let mut starts = vec![0u32; self.tasks.len() + 1];
        for task in self.tasks.iter().filter(|task| task.spawned_by != NONE) {
            starts[task.spawned_by as usize + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let mut list = vec![0u32; starts.last().map_or(0, |last| *last as usize)];
        for (index, task) in self.tasks.iter().enumerate().filter(|(_, task)| task.spawned_by != NONE) {
            list[next[task.spawned_by as usize] as usize] = index as u32;
            next[task.spawned_by as usize] += 1;
        }
        if list.is_empty() { Children::default() } else { Children { starts, list } }
    }
}

/// Who spawns whom.
#[derive(Clone, Debug, Default)]
pub(crate) struct Children {
    starts: Vec<u32>,
    list: Vec<u32>,
}

impl Children {
    /// What a task spawns.
    pub(crate) fn of(&self, task: u32) -> SmallVec<[u32; 8]> {
        if self.list.is_empty() {
            return SmallVec::new();
        }
        let (start, end) = (self.starts[task as usize], self.starts[task as usize + 1]);
        SmallVec::from_slice(&self.list[start as usize..end as usize])
    }
}
