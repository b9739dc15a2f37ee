//! Those who submit. Whoever is not told that a submission is durable submits it again under the same key, until it is.
//!
//! Whoever cancels a task does so again until it has an outcome that is durable.
//!
//! The key of a task is its position in the workload. A coordinator that knows the key, or finds it on the disk, does not
//! enter the task again. Without a disk whatever is submitted is durable at once.

use filch_core::coordinator::Input;
use filch_core::map::Map;
use filch_core::{Event, GraphTask, Span, Status, TaskSpec, WorkerId};

use super::{Happening, World};
use crate::workload::NONE;

/// How long somebody who submitted waits for an answer.
const PATIENCE: Span = Span::from_secs(2);

/// Tasks that were submitted together.
pub(super) struct Submission {
    tasks: Vec<u32>,
    /// The coordinator that has it, unless that refused it.
    seat: Option<u32>,
}

impl World {
    /// Somebody submits tasks, one alone or several as a graph.
    pub(super) fn submit(&mut self, tasks: &[u32]) {
        for &index in tasks {
            self.arrived(index);
        }
        if self.disk.is_none() {
            self.hand_in(tasks);
            return;
        }
        let at = self.submissions.len() as u32;
        self.submissions.push(Submission { tasks: tasks.to_vec(), seat: None });
        self.resubmit(at);
    }

    /// Submits what is not durable, unless the coordinator has it and there is hope.
    pub(super) fn resubmit(&mut self, at: u32) {
        let (leader, alive) = (self.leader_at(), self.leader().alive);
        let Submission { tasks, seat } = &self.submissions[at as usize];
        let missing = tasks.iter().filter(|index| !self.stored[**index as usize]).count();
        if missing == 0 {
            return;
        }
        if missing < tasks.len()
            && let Some(watch) = &mut self.watch
        {
            watch.says(format!("{missing} of {} tasks that were submitted together are lost", tasks.len()));
        }
        self.calendar.push(self.now + PATIENCE, Happening::Resubmit(at));
        // Nobody names a task that nobody has acknowledged.
        if !alive || *seat == Some(leader) || !tasks.iter().all(|index| self.may_be_named(*index, tasks)) {
            return;
        }
        let tasks = tasks.clone();
        if self.hand_in(&tasks) {
            self.submissions[at as usize].seat = Some(leader);
        } else {
            self.submissions[at as usize].tasks.clear();
        }
    }

    /// Whether all that a task refers to, but for what is submitted with it, is durable.
    fn may_be_named(&self, index: u32, together: &[u32]) -> bool {
        let spawner = self.workload.tasks[index as usize].spawned_by;
        let parents = self.workload.parents_of(index).iter().map(|parent| parent.task);
        let mut named = parents.chain((spawner != NONE).then_some(spawner));
        named.all(|parent| {
            let refused = self.fates[parent as usize].status.is_some();
            refused || self.stored[parent as usize] || together.contains(&parent)
        })
    }

    /// Hands tasks to the coordinator. Whether it took them.
    fn hand_in(&mut self, tasks: &[u32]) -> bool {
        let leader = self.leader_at();
        let event = match *tasks {
            [index] if self.workload.parents_of(index).is_empty() => {
                self.count_step(2, u64::from(index));
                let mut spec = self.spec(index);
                spec.deadline = self.workload.shape_of(index).deadline.map(|span| self.now + span);
                self.keep_spec(index, &spec);
                Event::Submit(Box::new(spec))
            }
            _ => {
                self.count_step(3, tasks.len() as u64);
                Event::SubmitGraph(self.graph(tasks))
            }
        };
        self.tell(leader, Input::Event(event));
        let refused = self.seats[leader as usize].coordinator.take_refusal().is_some();
        if refused {
            for &index in tasks {
                self.refuse(index);
            }
        }
        !refused
    }

    fn spec(&mut self, index: u32) -> TaskSpec {
        let mut spec = self.workload.spec(index);
        spec.pin = self.pin(index);
        spec.seeded = self.seeded(index).filter(|_| spec.pin.is_none());
        let spawner = self.workload.tasks[index as usize].spawned_by;
        if spawner != NONE {
            let (scheduler, id) = (self.leader().coordinator.scheduler(), self.ids[spawner as usize]);
            spec.parent = scheduler.status(id).is_some_and(|status| !status.is_settled()).then_some(id);
        }
        spec
    }

    /// What goes to the disk beside the record.
    fn keep_spec(&mut self, index: u32, spec: &TaskSpec) {
        if self.disk.is_some() {
            self.specs.insert(index, spec.clone());
        }
    }

    fn graph(&mut self, tasks: &[u32]) -> Vec<GraphTask> {
        let mut position = Map::default();
        let mut graph = Vec::with_capacity(tasks.len());
        for &index in tasks {
            let mut task = GraphTask { spec: self.spec(index), ..GraphTask::default() };
            for parent in self.workload.parents_of(index) {
                match position.get(&parent.task) {
                    Some(&at) => task.parents.push(at),
                    None if self.fates[parent.task as usize].status != Some(Status::Completed) => {
                        task.spec.after.push(self.ids[parent.task as usize]);
                    }
                    None => {}
                }
            }
            self.keep_spec(index, &task.spec);
            position.insert(index, graph.len() as u32);
            graph.push(task);
        }
        graph
    }

    /// The worker a task is pinned to, if it is: the same whenever it is submitted, whether that is still there or not.
    fn pin(&mut self, index: u32) -> Option<WorkerId> {
        if !self.workload.shape_of(index).pinned {
            return None;
        }
        if let Some(pin) = self.pins.get(&index) {
            return *pin;
        }
        // Nobody pins anything to a worker that has no name yet, nor later what was submitted without.
        let pin = self.nodes.get(index as usize % self.nodes.len()).and_then(|node| node.machine.id());
        self.pins.insert(index, pin);
        pin
    }

    /// Somebody cancels a task, and looks later whether that has become of it.
    pub(super) fn cancel(&mut self, index: u32) {
        if self.fates[index as usize].status.is_some() {
            return;
        }
        let (leader, task) = (self.leader_at(), self.ids[index as usize]);
        let is_known = self.disk.is_none() || self.stored[index as usize];
        // Nobody names a task that nobody has acknowledged.
        if self.leader().alive && is_known {
            self.count_step(22, u64::from(index));
            self.tell(leader, Input::Event(Event::Cancel { task }));
            let coordinator = &mut self.seats[leader as usize].coordinator;
            // Refused if it was settled already, and that is not durable yet.
            coordinator.take_refusal();
            if let Some(watch) = &mut self.watch
                && coordinator.scheduler().status(task).is_some_and(|status| !status.is_settled())
            {
                watch.says(format!("{} was cancelled and goes on", self.workload.label(index)));
            }
        }
        if self.fates[index as usize].status.is_none() {
            self.calendar.push(self.now + PATIENCE, Happening::Cancel(index));
        }
    }

    /// The worker whose queue a task goes to at submission, if the workload says so.
    fn seeded(&self, index: u32) -> Option<WorkerId> {
        let count = self.workload.seeded_to?;
        self.nodes.get((index % count.max(1)) as usize)?.machine.id()
    }

    /// A submitted task is durable.
    pub(super) fn accepted(&mut self, index: u32) {
        if let Some(stored) = self.stored.get_mut(index as usize)
            && std::mem::replace(stored, true)
            && let Some(watch) = &mut self.watch
        {
            watch.says(format!("{} was accepted twice", self.workload.label(index)));
        }
    }
}
