//! Somebody who sees only events and actions, and judges by them: is anything handed out twice, before what it depends on,
//! beyond a key or a worker's means, or moved although it must not be? It knows nothing of the scheduler's insides.

use std::collections::{BTreeMap, BTreeSet};

use filch_core::{
    Action, Amount, Config, Event, KeyId, ParentFailure, ResourceId, Span, Status, TaskId, TaskSpec, Time, Vector,
    WorkerId,
};

/// What is known of a worker: what it has and the attempts it may be at.
#[derive(Debug)]
struct Host {
    slots: u32,
    capacity: Vector,
    declares_cores: bool,
    attempts: BTreeMap<(TaskId, u32), u64>,
    silent_since: Option<Time>,
}

pub(crate) struct Witness {
    /// Tasks as submitted, by payload, with the payloads of the tasks of the same graph they wait for.
    specs: BTreeMap<u64, (TaskSpec, Vec<u64>)>,
    payloads: BTreeMap<TaskId, u64>,
    ids: BTreeMap<u64, TaskId>,
    hosts: BTreeMap<WorkerId, Host>,
    held: BTreeMap<TaskId, (WorkerId, u32)>,
    settled: BTreeMap<TaskId, Status>,
    revoked: BTreeMap<(TaskId, u32), Time>,
    limits: BTreeMap<u32, u32>,
    lease: Span,
    now: Time,
    default_limit: u32,
    protected_from: u8,
    pub(crate) assigned: u64,
    pub(crate) moved: u64,
}

fn with_cores(mut capacity: Vector, declares_cores: bool, slots: u32) -> Vector {
    if !declares_cores {
        let cores = (ResourceId::CPUS, Amount::from_units(u64::from(slots)));
        capacity = Vector::new(capacity.iter().filter(|entry| entry.0 != ResourceId::CPUS).chain([cores]));
    }
    capacity
}

impl Witness {
    pub(crate) fn new(config: &Config) -> Witness {
        let priority = &config.load_balancing.priority;
        Witness {
            specs: BTreeMap::new(),
            payloads: BTreeMap::new(),
            ids: BTreeMap::new(),
            hosts: BTreeMap::new(),
            held: BTreeMap::new(),
            settled: BTreeMap::new(),
            revoked: BTreeMap::new(),
            limits: BTreeMap::new(),
            lease: config.limits.lease,
            now: Time::ZERO,
            default_limit: config.limits.key_limit,
            protected_from: if priority.preserve_high_priority { priority.high_priority_threshold } else { u8::MAX },
            assigned: 0,
            moved: 0,
        }
    }

    /// Attempts that workers may still be at.
    pub(crate) fn outstanding(&self) -> Vec<(TaskId, u32)> {
        self.hosts.values().flat_map(|host| host.attempts.keys().copied()).collect()
    }

    /// Notes what an event says before the scheduler acts on it.
    pub(crate) fn hear(&mut self, now: Time, event: &Event) {
        self.now = now;
        match event {
            Event::Submit(spec) => self.note(spec, Vec::new()),
            Event::SubmitMany(specs) => specs.iter().for_each(|spec| self.note(spec, Vec::new())),
            Event::SubmitArray { template, .. } => self.note(template, Vec::new()),
            Event::SubmitGraph(graph) => {
                for task in graph {
                    let parents = task.parents.iter().filter_map(|&at| graph.get(at as usize));
                    self.note(&task.spec, parents.map(|parent| parent.spec.payload).collect());
                }
            }
            Event::Finish { task, attempt } | Event::Fail { task, attempt, .. } | Event::GiveBack { task, attempt } => {
                for host in self.hosts.values_mut() {
                    host.attempts.remove(&(*task, *attempt));
                }
            }
            Event::Leave { worker, .. } => {
                self.hosts.remove(worker);
                self.held.retain(|_, holder| holder.0 != *worker);
            }
            Event::Change { worker, change } => {
                if let Some(host) = self.hosts.get_mut(worker) {
                    if let Some(resources) = &change.resources {
                        host.declares_cores = resources.get(ResourceId::CPUS) > Amount(0);
                        host.capacity = resources.clone();
                    }
                    host.slots = change.slots.unwrap_or(host.slots);
                    host.capacity = with_cores(host.capacity.clone(), host.declares_cores, host.slots);
                }
            }
            Event::Silent { worker } => {
                if let Some(host) = self.hosts.get_mut(worker) {
                    host.silent_since = host.silent_since.or(Some(now));
                }
            }
            Event::Report { worker, .. } => {
                if let Some(host) = self.hosts.get_mut(worker) {
                    host.silent_since = None;
                }
            }
            Event::SetKeyLimit { key, limit } => {
                self.limits.insert(key.0, *limit);
            }
            _ => {}
        }
    }

    fn note(&mut self, spec: &TaskSpec, parents: Vec<u64>) {
        self.specs.insert(spec.payload, (spec.clone(), parents));
    }

    /// Judges what the scheduler did.
    pub(crate) fn see(&mut self, event: &Event, actions: &[Action]) -> Result<(), String> {
        for action in actions {
            match *action {
                Action::Joined { worker, .. } => {
                    let Event::Join(spec) = event else { return Err(format!("{worker} joined by itself")) };
                    let declares_cores = spec.resources.get(ResourceId::CPUS) > Amount(0);
                    let capacity = with_cores(spec.resources.clone(), declares_cores, spec.slots);
                    let host = Host {
                        slots: spec.slots,
                        capacity,
                        declares_cores,
                        attempts: BTreeMap::new(),
                        silent_since: None,
                    };
                    self.hosts.insert(worker, host);
                }
                Action::Accepted { task, payload } => {
                    self.payloads.insert(task, payload);
                    self.ids.insert(payload, task);
                }
                Action::Assign { worker, task, attempt, payload, .. } => self.assign(worker, task, attempt, payload)?,
                Action::Revoke { worker, task, attempt, .. } => {
                    // Whoever fell silent stops by itself within its lease.
                    let silent_since = self.hosts.get(&worker).and_then(|host| host.silent_since);
                    self.revoked.insert((task, attempt), silent_since.unwrap_or(self.now));
                    if self.held.remove(&task).is_none() {
                        return Err(format!("{task} was revoked and nobody held it"));
                    }
                }
                Action::Move { task, from, to } => self.moves(task, from, to)?,
                Action::Notify { status: Status::Assigned | Status::Running, .. } => {}
                Action::Notify { task, status, .. } => {
                    self.held.remove(&task);
                    if !status.is_settled() {
                        continue;
                    }
                    if self.settled.insert(task, status).is_some() {
                        return Err(format!("{task} was settled twice"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn assign(&mut self, worker: WorkerId, task: TaskId, attempt: u32, payload: u64) -> Result<(), String> {
        self.assigned += 1;
        self.payloads.insert(task, payload);
        if let Some(status) = self.settled.get(&task) {
            return Err(format!("{task} was assigned after it was {}", status.name()));
        }
        if let Some(holder) = self.held.insert(task, (worker, attempt)) {
            return Err(format!("{task} was assigned to {worker} while {holder:?} held it"));
        }
        let (spec, parents) = self.specs.get(&payload).ok_or_else(|| format!("{task} was never submitted"))?;
        let inside = parents.iter().filter_map(|payload| self.ids.get(payload));
        for parent in spec.after.iter().chain(inside) {
            let well = self.settled.get(parent).map(|status| *status == Status::Completed);
            if well.is_none_or(|well| !well && spec.on_parent_failure != ParentFailure::Run) {
                return Err(format!("{task} was assigned before {parent}, which it depends on, had ended well"));
            }
        }
        if let Some(key) = spec.key {
            let running = self.running_with(key) + 1;
            let limit = self.limits.get(&key.0).copied().unwrap_or(self.default_limit);
            if running > limit {
                return Err(format!("{task}: {running} run with key {key:?}, of which {limit} may"));
            }
        }
        if spec.exclusive {
            self.check_alone(task)?;
        }
        let spec = spec.clone();
        let host = self.hosts.get(&worker).ok_or_else(|| format!("{task} was assigned to {worker}, which is gone"))?;
        if host.attempts.len() >= host.slots as usize {
            return Err(format!("{task} was assigned to {worker}, whose {} slots are taken", host.slots));
        }
        for &(resource, needs) in spec.demand.amounts() {
            let used = host.attempts.values().map(|payload| self.needs(*payload, resource)).sum::<u64>();
            let has = host.capacity.get(resource).0;
            if used + needs.0 > has {
                return Err(format!(
                    "{task} needs {needs} of {resource:?} at {worker}, {used} of {has} parts are used"
                ));
            }
        }
        if spec.pin.is_some_and(|pin| pin != worker) {
            return Err(format!("{task} is pinned elsewhere than {worker}"));
        }
        if let Some(host) = self.hosts.get_mut(&worker) {
            host.attempts.insert((task, attempt), payload);
        }
        Ok(())
    }

    /// An exclusive task runs nowhere else, unless whoever had it was told to stop, or fell silent, a lease ago.
    fn check_alone(&self, task: TaskId) -> Result<(), String> {
        for (worker, host) in &self.hosts {
            for attempt in host.attempts.keys().filter(|attempt| attempt.0 == task) {
                if self.revoked.get(attempt).is_none_or(|since| *since + self.lease > self.now) {
                    return Err(format!("{task} is exclusive and {worker} may still be at it"));
                }
            }
        }
        Ok(())
    }

    fn needs(&self, payload: u64, resource: ResourceId) -> u64 {
        let amounts = self.specs[&payload].0.demand.amounts();
        amounts.iter().find(|entry| entry.0 == resource).map_or(0, |entry| entry.1.0)
    }

    fn running_with(&self, key: KeyId) -> u32 {
        let all = self.hosts.values().flat_map(|host| host.attempts.values());
        all.filter(|payload| self.specs[payload].0.key == Some(key)).count() as u32
    }

    fn moves(&mut self, task: TaskId, from: WorkerId, to: WorkerId) -> Result<(), String> {
        self.moved += 1;
        // An element of an array that was never handed out has no name yet.
        let Some(payload) = self.payloads.get(&task) else { return Ok(()) };
        let spec = &self.specs[payload].0;
        if spec.priority.get() >= self.protected_from {
            return Err(format!("{task} of priority {} was taken from {from} to {to}", spec.priority.get()));
        }
        if spec.key.is_some() || spec.exclusive || spec.pin.is_some() {
            return Err(format!("{task} is bound but went from {from} to {to}"));
        }
        Ok(())
    }

    /// Judges the end: everything submitted is settled, and once.
    pub(crate) fn end(&self) -> Result<(), String> {
        let accepted: BTreeSet<TaskId> = self.payloads.keys().copied().collect();
        match accepted.iter().find(|task| !self.settled.contains_key(task)) {
            Some(task) => Err(format!("{task} was lost")),
            None => Ok(()),
        }
    }
}
