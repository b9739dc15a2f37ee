//! Submission: everything is checked before anything is changed, so a refused submission leaves no trace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::devices::is_divisible;
use super::needs::Needs;
use super::restore::next_of;
use super::state::{Array, ArrayTemplate};
use super::tasks::Extra;
use super::{ArrayPlace, COMMON_JOB, Flags, Job, Scheduler, Signature, State, wanted_devices};
use crate::action::{Action, ParentName, Record, Refusal};
use crate::capabilities::matching_for;
use crate::config::{Hopeless, Matching};
use crate::ids::{JobId, KindId, NONE, TaskId};
use crate::map::short_hash;
use crate::resources::Demand;
use crate::task::{Cause, GraphTask, ParentFailure, RetryTerms, Status, TaskSpec};
use crate::time::{Span, Time};

/// A rank that sorts the greatest first: the bits of a non-negative float order like the float.
fn rank_key(seconds: f64) -> u32 {
    !(seconds.max(0.0) as f32).to_bits()
}

/// The rank of tasks that have none: after all that have one, in the order they came.
pub(super) const NO_RANK: u32 = u32::MAX;

/// Whom a new task waits for, and those that have already ended badly.
#[derive(Default)]
struct Parents {
    waits_for: SmallVec<[u32; 2]>,
    failed: SmallVec<[TaskId; 2]>,
}

impl Scheduler {
    pub(super) fn submit(&mut self, spec: &TaskSpec, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        self.check_room(1)?;
        self.check_spec(spec, 0)?;
        let parents = if spec.after.is_empty() { Parents::default() } else { self.check_parents(spec, 0)? };
        let hopeless = self.check_deadline(spec, 0, Span::ZERO)?;
        let job = match spec.job {
            Some(id) => {
                let slot = self.job_slot(id)?;
                if self.jobs[slot].closed {
                    return Err(Refusal::Invalid(format!("job {id} is closed; nothing can be added to it")));
                }
                slot
            }
            None => COMMON_JOB,
        };
        let slot = self.create(spec, job, 0, NO_RANK, parents.waits_for.len() as u32, actions);
        self.link(slot, &parents.waits_for);
        self.admit(slot, &parents.failed, hopeless, actions);
        Ok(())
    }

    pub(super) fn submit_many(&mut self, specs: Vec<TaskSpec>, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let graph = specs.into_iter().map(|spec| GraphTask { spec, parents: SmallVec::new() }).collect();
        self.submit_graph(graph, actions)
    }

    pub(super) fn submit_graph(&mut self, graph: Vec<GraphTask>, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        self.check_room(graph.len() as u64)?;
        let mut outside = Vec::with_capacity(graph.len());
        for (task, index) in graph.iter().zip(0..) {
            self.check_spec(&task.spec, index)?;
            if task.spec.job.is_some() {
                return Err(Refusal::InvalidTask {
                    index,
                    what: "names a job, but the submission makes its own".to_owned(),
                });
            }
            outside.push(self.check_parents(&task.spec, index)?);
        }
        let order = topological_order(&graph)?;
        let durations: Vec<Span> = graph.iter().map(|task| self.expected(&task.spec)).collect();
        // Earliest ends, parents first; ranks (the longest way to an end), children first.
        let (mut earliest, mut ranks) = (durations.clone(), vec![0.0f64; graph.len()]);
        for &at in &order {
            let before = graph[at].parents.iter().map(|&parent| earliest[parent as usize]).max().unwrap_or_default();
            earliest[at] += before;
        }
        for &at in order.iter().rev() {
            ranks[at] += durations[at].as_secs_f64();
            for &parent in &graph[at].parents {
                ranks[parent as usize] = ranks[parent as usize].max(ranks[at]);
            }
        }
        let mut hopeless = Vec::with_capacity(graph.len());
        for (at, task) in graph.iter().enumerate() {
            hopeless.push(self.check_deadline(&task.spec, at as u32, earliest[at] - durations[at])?);
        }

        let ranked = graph.iter().any(|task| !task.parents.is_empty() || task.spec.estimate.is_some());
        let job = self.new_job(1.0, actions);
        let mut slots = vec![NONE; graph.len()];
        let mut inside = Vec::with_capacity(graph.len());
        for (at, task) in graph.into_iter().enumerate() {
            let blockers = outside[at].waits_for.len() + task.parents.len();
            let rank = if ranked { rank_key(ranks[at]) } else { NO_RANK };
            slots[at] = self.create(&task.spec, job, at as u32, rank, blockers as u32, actions);
            inside.push(task.parents);
        }
        for (at, parents) in inside.iter().enumerate() {
            let own = parents.iter().map(|&parent| slots[parent as usize]);
            let all: SmallVec<[u32; 4]> = outside[at].waits_for.iter().copied().chain(own).collect();
            self.link(slots[at], &all);
            let task = self.tasks.id(slots[at]);
            for &parent in parents {
                let parent = self.tasks.id(slots[parent as usize]);
                self.persist(Record::After { task, parent }, actions);
            }
        }
        // In the order of the queue, so that whoever waits for work gets the first in order and not the first named.
        // Ids before anything is settled: a task that fails at once may take others with it.
        let mut entries: Vec<(usize, TaskId)> = slots.iter().map(|&slot| self.tasks.id(slot)).enumerate().collect();
        entries.sort_by_key(|(_, id)| self.queue_place(id.slot));
        for (at, id) in entries {
            // One that runs whatever became of its parents may have been let in by a parent that failed at once.
            if self.tasks.find(id).is_some_and(|slot| self.tasks.at(slot).state == State::Blocked) {
                self.admit(id.slot, &outside[at].failed, hopeless[at], actions);
            }
        }
        self.seal_job(job, actions);
        Ok(())
    }

    pub(super) fn submit_array(
        &mut self,
        template: &TaskSpec,
        count: u32,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        self.check_room(u64::from(count))?;
        self.check_spec(template, 0)?;
        if !template.after.is_empty() {
            return Err(Refusal::Invalid(
                "an array cannot depend on other tasks; submit it when they have ended, or submit a graph".to_owned(),
            ));
        }
        if template.pin.is_some() || template.seeded.is_some() || template.job.is_some() {
            return Err(Refusal::Invalid("an array can neither be sent to a worker nor join a job".to_owned()));
        }
        let hopeless = self.check_deadline(template, 0, Span::ZERO)?;
        let job = self.new_job(1.0, actions);
        let id = self.job_id(job);
        self.enter_array(job, template, count, 0, BTreeSet::new());
        if hopeless {
            self.counters.hopeless += u64::from(count);
        }
        self.persist(Record::ArraySubmitted { job: id, count, payload: template.payload, at: self.now }, actions);
        if count > 0 {
            self.queue_array(job, actions);
        }
        self.seal_job(job, actions);
        Ok(())
    }

    /// Gives a job its array, whose elements before `next` and those in `skipped` are no longer its own. It waits nowhere
    /// yet.
    pub(super) fn enter_array(&mut self, job: u32, template: &TaskSpec, count: u32, next: u32, skipped: BTreeSet<u32>) {
        let signature = self.intern_signature(template);
        let sequence = self.next_sequence();
        let priority = template.priority.get();
        let array = Array {
            next,
            count,
            skipped,
            level: priority,
            place: ArrayPlace::Empty,
            requeues: 0,
            since: self.now,
            loose: BTreeMap::new(),
            template: ArrayTemplate {
                payload: template.payload,
                signature,
                kind: template.kind,
                priority,
                key: template.key.map_or(NONE, |key| key.0),
                exclusive: template.exclusive,
                idempotent: template.idempotent,
                estimate: template.estimate.unwrap_or_default(),
                deadline: template.deadline.unwrap_or(Time::NEVER),
                sequence,
                rank: NO_RANK,
                extra: extra_of(template).map(Box::new),
                ready_at: self.now,
            },
        };
        let pending = u64::from(array.pending());
        self.jobs[job].open += pending;
        self.jobs[job].array = Some(array);
        self.counters.submitted += pending;
        self.counters.pending_elements += pending;
        self.counters.queued += pending;
        if pending == 0 {
            self.release_signature(signature);
        }
    }

    pub(super) fn open_job(&mut self, weight: f64, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        if !weight.is_finite() || weight <= 0.0 {
            return Err(Refusal::Invalid(format!("the weight of a job must be above 0, not {weight}")));
        }
        self.new_job(weight, actions);
        Ok(())
    }

    pub(super) fn close_job(&mut self, job: JobId, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = self.job_slot(job)?;
        if slot == COMMON_JOB {
            return Err(Refusal::UnknownJob(job));
        }
        self.seal_job(slot, actions);
        Ok(())
    }

    /// Nothing will be added to a job. Only now can it be done: while it is filled, its first tasks may already end.
    fn seal_job(&mut self, slot: u32, actions: &mut Vec<Action>) {
        self.jobs[slot].closed = true;
        self.persist(Record::Closed { job: self.job_id(slot) }, actions);
        self.job_may_be_done(slot, actions);
    }

    fn new_job(&mut self, weight: f64, actions: &mut Vec<Action>) -> u32 {
        let own = self.own_generations();
        let (slot, generation) = next_of(own, &mut self.jobs, &mut self.job_generations);
        self.jobs.insert(Job::new(generation, weight));
        let job = self.job_id(slot);
        actions.push(Action::Opened { job });
        self.persist(Record::Opened { job, weight }, actions);
        slot
    }

    pub(super) fn job_may_be_done(&mut self, slot: u32, actions: &mut Vec<Action>) {
        let job = &self.jobs[slot];
        if slot != COMMON_JOB && job.closed && job.open == 0 {
            actions.push(Action::JobDone { job: self.job_id(slot) });
            self.jobs.remove(slot);
        }
    }

    fn check_room(&self, more: u64) -> Result<(), Refusal> {
        // Whatever waits counts, also for others, for a retry or for somebody who can run it.
        let (queued, limit) = (self.unsettled() - self.counters.running, self.config.limits.max_queued);
        if more > limit {
            return Err(Refusal::Invalid(format!(
                "{more} tasks at once never fit into a queue of {limit}: submit fewer, or raise `limits.max_queued`"
            )));
        }
        if queued + more <= limit {
            return Ok(());
        }
        let retry_after = self.counters.time_to_drain((queued + more - limit).min(limit));
        Err(Refusal::QueueFull { queued, limit, retry_after })
    }

    #[inline(always)]
    fn check_spec(&self, spec: &TaskSpec, index: u32) -> Result<(), Refusal> {
        if let Some(worker) = spec.pin {
            let slot = self.worker_slot(worker)?;
            let probe = self.probe(spec);
            if let Err(lack) = self.classes[self.workers[slot].class].can_ever(&probe) {
                return Err(Refusal::PinnedElsewhere { worker, lack });
            }
        }
        self.check_demand(spec, index)?;
        if spec.timeout == Some(Span::ZERO) {
            return Err(Refusal::InvalidTask { index, what: "has a timeout of zero".to_owned() });
        }
        if let Some(parent) = spec.parent
            && self.tasks.find(parent).is_none()
        {
            return Err(Refusal::UnknownParent { index, parent: ParentName::Task(parent) });
        }
        Ok(())
    }

    /// Whether what a task asks for can be given out at all.
    pub(super) fn check_demand(&self, spec: &TaskSpec, index: u32) -> Result<(), Refusal> {
        if let Some(needs) = wanted_devices(&spec.demand)
            && !is_divisible(needs)
        {
            let what = format!("asks for {needs} GPUs: a share must be below 1, more than one must be whole");
            return Err(Refusal::InvalidTask { index, what });
        }
        Ok(())
    }

    fn check_parents(&self, spec: &TaskSpec, index: u32) -> Result<Parents, Refusal> {
        let mut parents = Parents::default();
        for &id in &spec.after {
            if let Some(slot) = self.tasks.find(id) {
                parents.waits_for.push(slot);
            } else if let Some((status, _)) = self.tasks.outcome(id) {
                if status != Status::Completed {
                    parents.failed.push(id);
                }
            } else {
                return Err(Refusal::UnknownParent { index, parent: ParentName::Task(id) });
            }
        }
        Ok(parents)
    }

    /// Whether the deadline is hopeless even if the task starts as soon as what it waits for could have ended.
    #[inline]
    fn check_deadline(&self, spec: &TaskSpec, index: u32, after: Span) -> Result<bool, Refusal> {
        let Some(deadline) = spec.deadline else { return Ok(false) };
        let earliest = self.now + after + self.expected(spec);
        // Even what takes no time at all cannot end before it has begun.
        if earliest <= deadline && self.now < deadline {
            return Ok(false);
        }
        match self.config.scheduling.hopeless_deadlines {
            Hopeless::Refuse => Err(Refusal::Hopeless { index, deadline, earliest }),
            Hopeless::Flag => Ok(true),
        }
    }

    /// The expected duration of a task that is not there yet; zero if nothing at all is known.
    fn expected(&self, spec: &TaskSpec) -> Span {
        self.expected_by(spec.kind, spec.estimate)
    }

    /// The same for one that is.
    pub(crate) fn expected_of(&self, slot: u32) -> Span {
        let task = self.tasks.at(slot);
        self.expected_by(task.kind, task.declared())
    }

    pub(crate) fn expected_by(&self, kind: KindId, declared: Option<Span>) -> Span {
        let unknown = declared.is_none() && !self.estimator.knows(kind);
        if unknown { Span::ZERO } else { self.estimator.anywhere(kind, declared) }
    }

    /// What a task asks of a worker besides resources, not yet shared with others.
    fn needs_of(&self, spec: &TaskSpec) -> Needs {
        let rules = &self.config.load_balancing;
        let matching = matching_for(
            rules.capabilities.matching_strategy,
            spec.priority.get(),
            rules.priority.high_priority_threshold,
        );
        Needs {
            requires: spec.requires.clone(),
            skills: spec.skills.clone(),
            matching: if spec.skills.is_empty() { Matching::Exact } else { matching },
            task_type: spec.task_type,
        }
    }

    /// The same for a question about a worker: with the best match there is.
    pub(super) fn probe(&self, spec: &TaskSpec) -> Signature {
        let mut probe = Signature::new(Arc::new(self.needs_of(spec)), spec.demand.clone());
        if probe.is_fallback() {
            let known = self.known_signature(&probe.needs, &probe.demand);
            probe.best_shared = known.map_or_else(|| self.best_shared(&probe), |at| self.signatures[at].best_shared);
        }
        probe
    }

    fn known_signature(&self, needs: &Needs, demand: &Demand) -> Option<u32> {
        let hash = signature_hash(needs, demand);
        self.signature_table.find(hash, |at| self.signatures[at].asks_for(needs, demand))
    }

    #[inline(always)]
    pub(super) fn intern_signature(&mut self, spec: &TaskSpec) -> u32 {
        if let Some(last) = self.signatures.get_mut(self.last_signature)
            && last.needs.requires == spec.requires
            && last.needs.skills == spec.skills
            && last.demand == spec.demand
            && last.needs.task_type == spec.task_type
            && spec.skills.is_empty()
        {
            last.users += 1;
            return self.last_signature;
        }
        self.intern_another(spec)
    }

    /// The signature of a task that asks for something else than the one before it.
    #[inline(never)]
    fn intern_another(&mut self, spec: &TaskSpec) -> u32 {
        let (needs, demand) = (self.needs_of(spec), &spec.demand);
        let known = self.known_signature(&needs, demand);
        let at = known.unwrap_or_else(|| {
            let hash = signature_hash(&needs, demand);
            let signature = Signature::new(self.needs.share(needs), demand.clone());
            let by_skills = signature.is_fallback();
            let at = self.signatures.insert(signature);
            self.signature_table.insert(hash, at);
            if by_skills {
                self.watch_skills(at);
            }
            at
        });
        self.signatures[at].users += 1;
        let before = std::mem::replace(&mut self.last_signature, at);
        if before != at && self.signatures.get(before).is_some_and(|signature| signature.users == 0) {
            self.forget_signature(before);
        }
        at
    }

    pub(super) fn release_signature(&mut self, at: u32) {
        let signature = &mut self.signatures[at];
        signature.users -= 1;
        // The latest one is kept: the next task is likely to ask for the same.
        if signature.users == 0 && at != self.last_signature {
            self.forget_signature(at);
        }
    }

    #[inline(never)]
    fn forget_signature(&mut self, at: u32) {
        let Some(signature) = self.signatures.remove(at) else { return };
        self.signature_table.remove(signature_hash(&signature.needs, &signature.demand), at);
        self.hosts.forget_signature(at, signature.host);
        self.needs.release(signature.needs);
    }

    fn create(
        &mut self,
        spec: &TaskSpec,
        job: u32,
        index: u32,
        rank: u32,
        blockers: u32,
        actions: &mut Vec<Action>,
    ) -> u32 {
        let slot = self.tasks.allocate();
        self.describe(slot, spec, job, index, rank, blockers);
        let (id, now) = (self.tasks.id(slot), self.now);
        actions.push(Action::Accepted { task: id, payload: spec.payload });
        self.persist(Record::Submitted { task: id, payload: spec.payload, at: now }, actions);
        if job != COMMON_JOB {
            self.persist(Record::Member { task: id, job: self.job_id(job), index, rank }, actions);
        }
        slot
    }

    /// Fills in what a submitted task is like; it is nowhere then.
    #[inline]
    pub(super) fn describe(&mut self, slot: u32, spec: &TaskSpec, job: u32, index: u32, rank: u32, blockers: u32) {
        let signature = self.intern_signature(spec);
        let (sequence, now) = (self.next_sequence(), self.now);
        let task = self.tasks.at_mut(slot);
        task.state = State::Blocked;
        task.priority = spec.priority.get();
        task.level = task.priority;
        task.flags.set(Flags::EXCLUSIVE, spec.exclusive);
        task.flags.set(Flags::IDEMPOTENT, spec.idempotent);
        task.flags.set(Flags::PINNED, spec.pin.is_some());
        task.rank = rank;
        task.signature = signature;
        task.kind = spec.kind;
        task.job = job;
        task.key = spec.key.map_or(NONE, |key| key.0);
        task.blockers = blockers;
        task.index = index;
        task.payload = spec.payload;
        task.sequence = sequence;
        task.since = now;
        task.ready_at = now;
        task.deadline = spec.deadline.unwrap_or(Time::NEVER);
        task.estimate = spec.estimate.unwrap_or_default();
        if !is_plain(spec)
            && let Some(extra) = extra_of(spec)
        {
            *self.tasks.extra_mut(slot) = extra;
        }
        let owner = &mut self.jobs[job];
        owner.open += 1;
        if job != COMMON_JOB {
            self.tasks.at_mut(slot).member = owner.members.insert(slot);
        }
        self.counters.submitted += 1;
        if let Some(deadline) = spec.deadline {
            self.timers.set(deadline, super::Timer::Deadline(self.tasks.id(slot)));
        }
    }

    /// Enters a task with those it waits for.
    #[inline]
    pub(super) fn link(&mut self, slot: u32, parents: &[u32]) {
        if !parents.is_empty() {
            self.link_to(slot, parents);
        }
    }

    #[inline(never)]
    fn link_to(&mut self, slot: u32, parents: &[u32]) {
        let child = self.tasks.id(slot);
        let ids: SmallVec<[TaskId; 2]> = parents.iter().map(|&parent| self.tasks.id(parent)).collect();
        for &parent in parents {
            self.tasks.extra_mut(parent).dependents.push(child);
        }
        self.tasks.extra_mut(slot).parents = ids;
    }

    /// Lets a new task in: queued if it waits for nobody, settled if one it depends on has ended badly.
    #[inline(always)]
    pub(super) fn admit(&mut self, slot: u32, failed: &[TaskId], hopeless: bool, actions: &mut Vec<Action>) {
        self.counters.hopeless += u64::from(hopeless);
        let cause = if hopeless { Cause::Hopeless } else { Cause::None };
        if !failed.is_empty() {
            let choice = self.tasks.extra(slot).map_or(ParentFailure::Fail, |extra| extra.on_parent_failure);
            if choice != ParentFailure::Run {
                self.tasks.extra_mut(slot).parents.extend_from_slice(failed);
                let status = if choice == ParentFailure::Skip { Status::Skipped } else { Status::Failed };
                self.settle(slot, status, Cause::ParentFailed, actions);
                return;
            }
        }
        if self.tasks.at(slot).blockers == 0 {
            self.enqueue(slot, cause, actions);
        } else {
            self.notify(slot, Status::Blocked, cause, actions);
        }
    }
}

fn signature_hash(needs: &Needs, demand: &Demand) -> u32 {
    short_hash(&(needs, demand))
}

/// Whether a task has nothing of what few tasks have.
#[inline]
fn is_plain(spec: &TaskSpec) -> bool {
    spec.affinity.is_empty()
        && spec.pin.is_none()
        && spec.seeded.is_none()
        && spec.parent.is_none()
        && spec.timeout.is_none()
        && spec.retry.is_none()
        && spec.on_parent_failure == ParentFailure::Fail
}

/// What few tasks have, if this one has any of it.
#[inline(never)]
fn extra_of(spec: &TaskSpec) -> Option<Extra> {
    let retry: Option<RetryTerms> = spec.retry;
    (!is_plain(spec)).then(|| Extra {
        affinity: spec.affinity.clone(),
        pin: spec.pin,
        seeded: spec.seeded,
        spawned_by: spec.parent,
        timeout: spec.timeout,
        retry,
        on_parent_failure: spec.on_parent_failure,
        ..Extra::default()
    })
}

/// The tasks of a graph, parents first.
fn topological_order(graph: &[GraphTask]) -> Result<Vec<usize>, Refusal> {
    let mut left = vec![0u32; graph.len()];
    let mut children = vec![Vec::new(); graph.len()];
    for (at, task) in graph.iter().enumerate() {
        for &parent in &task.parents {
            if parent as usize >= graph.len() {
                return Err(Refusal::UnknownParent { index: at as u32, parent: ParentName::Position(parent) });
            }
            left[at] += 1;
            children[parent as usize].push(at);
        }
    }
    let mut order: Vec<usize> = (0..graph.len()).filter(|&at| left[at] == 0).collect();
    let mut done = 0;
    while let Some(&at) = order.get(done) {
        done += 1;
        for &child in &children[at] {
            left[child] -= 1;
            if left[child] == 0 {
                order.push(child);
            }
        }
    }
    if order.len() == graph.len() { Ok(order) } else { Err(Refusal::Cycle(find_cycle(graph, &left))) }
}

/// A cycle among the tasks that could not be ordered; each waits for the one after it.
fn find_cycle(graph: &[GraphTask], left: &[u32]) -> Vec<u32> {
    let Some(start) = left.iter().position(|&count| count > 0) else { return Vec::new() };
    let (mut path, mut at) = (Vec::new(), start as u32);
    let mut seen_at = vec![usize::MAX; graph.len()];
    // Every unordered task has an unordered parent, so walking up must meet itself.
    loop {
        if seen_at[at as usize] != usize::MAX {
            path.drain(..seen_at[at as usize]);
            return path;
        }
        seen_at[at as usize] = path.len();
        path.push(at);
        match graph[at as usize].parents.iter().find(|&&parent| left[parent as usize] > 0) {
            Some(&parent) => at = parent,
            None => return path,
        }
    }
}
