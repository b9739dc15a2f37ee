//! Worlds that come to no end: nothing is left that could change anything, and yet tasks wait.

use filch_core::{CandidateFate, Explanation, Lack, Reason, Span, Status, TaskId, Time, WorkerId};

use super::{Happening, World};
use crate::workload::NONE;

/// Tasks told one by one.
const TOLD: usize = 3;

/// What a world has come to; as long as it changes, it goes on.
pub(super) type Progress = (u64, u64, u64, u64);

impl World {
    pub(super) fn progress(&self) -> Progress {
        (self.settled, self.counts.runs, self.counts.submitted, self.counts.deaths)
    }

    /// How long nothing may happen before somebody asks whether anything will: longer than every timer of the machines.
    pub(super) fn patience(&self) -> Span {
        let config = &self.setting.config;
        let timers =
            [config.limits.lease, config.limits.quarantine, config.retry.backoff_max, config.limits.requeue_interval];
        let longest = timers.into_iter().max().unwrap_or(Span::ZERO);
        Span(longest.0.saturating_mul(40)).max(Span::from_secs(1800))
    }

    /// When the next thing happens that is no mere timer or message, if anything will.
    pub(super) fn awaited(&self) -> Option<Time> {
        let matters = |what: &Happening| match what {
            Happening::RunEnds { run, generation, .. } => {
                let run = &self.runs[*run as usize];
                run.live && run.generation == *generation
            }
            Happening::Deliver(_)
            | Happening::Refused(_)
            | Happening::Timer(_)
            | Happening::CoordinatorTimer(_)
            | Happening::Synced { .. }
            | Happening::Connect(_)
            | Happening::Cancel(_)
            | Happening::Resubmit(_) => false,
            _ => true,
        };
        self.calendar.iter().filter(|(_, what)| matters(what)).map(|(at, _)| at).min()
    }

    /// Why tasks have no outcome although nothing goes on; nothing if all have one.
    #[must_use]
    pub fn stuck(&self) -> Option<String> {
        if self.is_done() {
            return None;
        }
        let open = || self.fates.iter().enumerate().filter(|(_, fate)| fate.status.is_none());
        let told: Vec<String> = open().take(TOLD).map(|(index, _)| self.tell_why(index as u32)).collect();
        let (count, alive) = (open().count(), self.nodes.iter().filter(|node| node.alive).count());
        let more = if count > told.len() { format!("\n  and {} more", count - told.len()) } else { String::new() };
        Some(format!(
            "nothing happens any more at {}, and {count} of {} tasks have no outcome; {alive} of {} workers are alive\n  {}{more}",
            Span(self.now.0),
            self.fates.len(),
            self.nodes.len(),
            told.join("\n  "),
        ))
    }

    /// Why tasks failed because nobody could ever run them; nothing if none did.
    #[must_use]
    pub fn hopeless(&self) -> Option<String> {
        let first = self.first_hopeless?;
        let count = self.hopeless;
        Some(format!("{count} of {} tasks could never run\n  {}", self.fates.len(), self.tell_why(first)))
    }

    fn tell_why(&self, index: u32) -> String {
        let label = self.workload.label(index);
        if self.fates[index as usize].arrived == Time::NEVER {
            let spawner = self.workload.tasks[index as usize].spawned_by;
            return if spawner == NONE {
                format!("{label} has not arrived")
            } else {
                format!("{label} is not there before {} runs", self.workload.label(spawner))
            };
        }
        match self.leader().coordinator.scheduler().explain(self.ids[index as usize]) {
            Some(explanation) => format!("{label} is {}", self.words(&explanation)),
            None => format!("{label} is not known to the coordinator"),
        }
    }

    fn words(&self, explanation: &Explanation) -> String {
        let mut words: Vec<String> = explanation.reasons.iter().map(|reason| self.reason(reason)).collect();
        let classes: Vec<String> = explanation
            .refusals
            .classes
            .iter()
            .map(|(worker, lack)| format!("{} {}", self.who(*worker), self.lack(lack)))
            .collect();
        if !classes.is_empty() {
            words.push(classes.join(", "));
        }
        if words.is_empty() && matches!(explanation.status, Status::Assigned | Status::Running) {
            words.push("its worker has it and does not go on".to_owned());
        }
        format!("{}: {}", explanation.status.name(), words.join("; "))
    }

    fn who(&self, worker: WorkerId) -> String {
        let known = self.leader().place_of(worker);
        known.map_or_else(|| "a worker that left".to_owned(), |place| format!("worker {}", place.node))
    }

    fn task(&self, task: TaskId) -> String {
        let index = self.index_of.get(task.index()).copied().filter(|index| *index != NONE);
        index.map_or_else(|| "a task".to_owned(), |index| self.workload.label(index))
    }

    fn reason(&self, reason: &Reason) -> String {
        match reason {
            Reason::Dependency { parent, status } => {
                format!("waits for {}, which is {}", self.task(*parent), status.name())
            }
            Reason::Key { held, limit, ahead, .. } => {
                format!("{held} of {limit} tokens of its key are taken, and {ahead} tasks wait before it")
            }
            Reason::Backoff { until, .. } | Reason::GivenBack { until, .. } => format!("waits until {until}"),
            Reason::Lease { until } => format!("its last holder may be at it until {until}"),
            Reason::NobodyCan { .. } => "no worker can ever run it".to_owned(),
            Reason::NoWorkers => "no worker is left".to_owned(),
            Reason::NoRoom { candidates } => {
                let shorts: Vec<String> = candidates
                    .iter()
                    .take(TOLD)
                    .map(|(worker, fate)| format!("{} {}", self.who(*worker), self.fate(fate)))
                    .collect();
                format!("no worker has room: {}", shorts.join(", "))
            }
            Reason::Behind { tasks, .. } => format!("{tasks} tasks come first"),
            Reason::AtWorker { worker, ahead, state } => {
                format!("in the queue of {}, which is {}, behind {ahead} others", self.who(*worker), state.name())
            }
            Reason::Reserved { worker, from } => format!("{} is kept free for it from {from} on", self.who(*worker)),
        }
    }

    fn fate(&self, fate: &CandidateFate) -> String {
        match fate {
            CandidateFate::Never(lack) => self.lack(lack),
            CandidateFate::NotUp(state) => format!("is {}", state.name()),
            CandidateFate::SetAside { until, .. } => format!("is set aside until {until}"),
            CandidateFate::SlotsTaken { used, slots } => format!("uses {used} of {slots} slots"),
            CandidateFate::Short { resource, needs, free } => {
                format!("has {free} of the {needs} {} left", self.workload.names.resources.name(resource.0))
            }
            CandidateFate::KeptFor(task, _) => format!("is kept free for {}", self.task(*task)),
            CandidateFate::NotAsking => "has not asked".to_owned(),
            CandidateFate::Ready => "could begin at once".to_owned(),
        }
    }

    fn lack(&self, lack: &Lack) -> String {
        let names = &self.workload.names;
        match lack {
            Lack::Pinned => "is another than the one it is pinned to".to_owned(),
            Lack::Capability(id) | Lack::Skill(id) => format!("lacks {}", names.capabilities.name(id.0)),
            Lack::FewerSkills { shared, best } => format!("shares {shared} of its skills, others {best}"),
            Lack::Resource { resource, needs, has } => {
                format!("has {has} of the {needs} {}", names.resources.name(resource.0))
            }
        }
    }
}
