//! The invariants of the scheduler, in full and in part.
//!
//! [`Scheduler::check`] recomputes everything from the tasks and compares; tests call it after every step on small
//! states. [`Scheduler::check_part`] looks at a few tasks and workers and the sums, for large states.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::event::Held;
use crate::ids::{NONE, TaskId};
use crate::map::Map;
use crate::resources::Vector;
use crate::scheduler::{
    ArrayPlace, COMMON_JOB, Devices, Flags, LEVELS, Scheduler, State, Timer, queue_key, wanted_devices,
};
use crate::time::{Span, Time, Work};
use crate::wire::fingerprint;
use crate::worker::WorkerState;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(Violation(format!($($message)+)));
        }
    };
}

impl Scheduler {
    /// Checks every invariant. Costs time proportional to everything there is.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        self.check_sums()?;
        self.ready.verify(&self.tasks, &self.signatures).map_err(Violation)?;
        for slot in self.tasks.slots() {
            self.check_task(slot)?;
        }
        for (slot, _) in self.workers.iter() {
            self.check_worker(slot)?;
        }
        self.check_counts()?;
        self.check_aging()?;
        self.check_keys()?;
        self.verify_hosts().map_err(Violation)?;
        self.check_work_conserved()
    }

    /// Checks the sums, and the tasks and workers whose turn it is by `round`. Costs the same whatever there is.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_part(&self, round: u64) -> Result<(), Violation> {
        self.check_sums()?;
        let span = u64::from(self.tasks.span());
        for turn in 0..4 {
            if span > 0 {
                let slot = ((round * 4 + turn) % span) as u32;
                if self.tasks.is_live(slot) {
                    self.check_task(slot)?;
                }
            }
        }
        let workers = self.workers.len() as u64;
        if workers > 0
            && let slot = (round % workers) as u32
            && self.workers.get(slot).is_some()
        {
            self.check_worker(slot)?;
        }
        Ok(())
    }

    /// Nothing is lost: what was submitted is settled or still here.
    fn check_sums(&self) -> Result<(), Violation> {
        let counters = &self.counters;
        let here = self.tasks.live() + counters.pending_elements;
        ensure!(
            counters.submitted == counters.all_settled() + here,
            "{} submitted, {} settled and {here} here",
            counters.submitted,
            counters.all_settled()
        );
        ensure!(
            counters.queued + counters.running <= here,
            "{} queued and {} running of {here}",
            counters.queued,
            counters.running
        );
        Ok(())
    }

    fn check_task(&self, slot: u32) -> Result<(), Violation> {
        let task = self.tasks.at(slot);
        let id = self.tasks.id(slot);
        ensure!((1..=LEVELS as u8).contains(&task.level), "{id} is in level {}", task.level);
        let signature = self.signatures.get(task.signature);
        ensure!(signature.is_some_and(|signature| signature.users > 0), "{id} has no signature");
        ensure!(self.jobs.get(task.job).is_some(), "{id} has no job");
        ensure!(
            task.job == COMMON_JOB || self.jobs[task.job].members.contains(task.member, slot),
            "{id} is not a member of its job"
        );
        let array = self.jobs[task.job].array.as_ref();
        let loose = array.is_some_and(|array| array.loose.get(&task.index) == Some(&slot));
        ensure!(
            task.flags.has(Flags::LOOSE) == loose,
            "{id} waits by itself, and its array does not know, or so it says"
        );
        ensure!(!loose || !task.state.is_held(), "{id} was handed out and still waits by itself");
        let place = queue_key(task.level, task.order(), slot);
        let keyed = task.key != NONE;
        match task.state {
            State::Vacant => {}
            State::Blocked => {
                ensure!(task.blockers > 0, "{id} waits for nobody and is nowhere");
                let parents = self.tasks.extra(slot).into_iter().flat_map(|extra| &extra.parents);
                let living = parents.filter(|parent| self.tasks.find(**parent).is_some()).count();
                ensure!(
                    task.blockers as usize == living,
                    "{id} is blocked {} times by {living} living parents",
                    task.blockers
                );
            }
            State::Central => {
                ensure!(!keyed || self.keys.is_offered(task.key, place), "{id} queues without being offered its key");
                ensure!(
                    task.flags.has(Flags::RESERVED) == (task.worker != NONE),
                    "{id} is central, reserved or not, with worker {}",
                    task.worker
                );
                if task.flags.has(Flags::RESERVED) {
                    ensure!(self.reserved_for(task.worker) == Some(slot), "{id} has a reservation nobody keeps");
                }
            }
            State::KeyWaiting => ensure!(self.keys.is_waiting(task.key, place), "{id} does not wait for its key"),
            State::AtWorker => {
                let worker = self.workers.get(task.worker);
                ensure!(
                    worker.is_some_and(|worker| worker.queue.contains(&place, self.stays(slot))),
                    "{id} is not in its worker's queue"
                );
                ensure!(!keyed || task.flags.has(Flags::PINNED), "{id} has a key and left the central queue");
                ensure!(!keyed || self.keys.is_offered(task.key, place), "{id} queues without being offered its key");
            }
            State::Backoff => ensure!(self.timers.contains(task.since, Timer::Retry(id)), "{id} has no retry timer"),
            State::Parked => {
                ensure!(self.timers.contains(task.since, Timer::Park(id)), "{id} has no requeue timer");
                let parked = self.parked.get(&task.signature).is_some_and(|slots| slots.contains(&slot));
                ensure!(parked, "{id} is not among the parked");
            }
            State::Assigned | State::Running => {
                let worker = self.workers.get(task.worker);
                let there = worker.is_some_and(|worker| worker.running.contains(&slot));
                ensure!(there, "{id} is not in its worker's slots");
                ensure!(task.flags.has(Flags::TOKEN) == keyed, "{id} runs without a token of its key");
                ensure!(task.blockers == 0, "{id} runs before what it depends on has ended");
            }
        }
        ensure!(
            task.deadline == Time::NEVER
                || task.deadline <= self.now
                || task.flags.has(Flags::ELEMENT)
                || self.timers.contains(task.deadline, Timer::Deadline(id)),
            "{id} has no timer for its deadline"
        );
        Ok(())
    }

    fn check_worker(&self, slot: u32) -> Result<(), Violation> {
        let worker = &self.workers[slot];
        let id = self.worker_id(slot);
        let class = &self.classes[worker.class];
        let (mut reserved, mut running_work, mut queued_work) = (Vector::default(), Work::default(), Work::default());
        let mut devices = Devices::default();
        let mut hold = |signature: u32, given: &[u16]| {
            if let Some(needs) = wanted_devices(&self.signatures[signature].demand) {
                devices.hold(given, needs);
            }
        };
        for &slot in &worker.running {
            hold(self.tasks.at(slot).signature, self.tasks.extra(slot).map_or(&[], |extra| &extra.devices));
        }
        for ghost in worker.ghosts() {
            hold(ghost.signature, &ghost.devices);
        }
        ensure!(
            worker.devices.agrees(&devices) && !devices.is_overfull(),
            "{id}: devices are counted wrong or overfull"
        );
        for &task in &worker.running {
            let task = self.tasks.at(task);
            ensure!(task.worker == slot && task.state.is_held(), "{id} runs a task that is elsewhere");
            reserved.add(&self.signatures[task.signature].demand);
            running_work += task.planned;
        }
        for ghost in worker.ghosts() {
            reserved.add(&self.signatures[ghost.signature].demand);
            ensure!(self.ghosts.get(&(ghost.task, ghost.attempt)) == Some(&slot), "{id} has an unknown ghost");
        }
        for (_, _, task) in worker.queue.iter() {
            queued_work += self.tasks.at(task).planned;
        }
        for (resource, amount) in reserved.iter() {
            let noted = worker.reserved.get(resource);
            ensure!(noted == amount, "{id} has reserved {noted} of {resource:?} for tasks that need {amount}");
        }
        for (resource, amount) in worker.reserved.iter() {
            ensure!(reserved.get(resource) == amount, "{id} still reserves {amount} of {resource:?}");
        }
        if let Some(reservation) = worker.reservation() {
            ensure!(self.reserved_for(slot).is_some(), "{id} is kept for a task that does not need it");
            // Its moment may have passed without the worker asking for anything.
            let watched = self.timers.contains(reservation.again, Timer::Reserved(id));
            ensure!(watched || reservation.again <= self.now, "{id} is kept for a task without end");
        }
        let handed: Vec<Held> = self.holdings(id).collect();
        let fingerprint = handed.iter().fold(0u64, |sum, held| sum.wrapping_add(fingerprint(held)));
        ensure!(
            (handed.len() as u32, fingerprint) == (worker.holds, worker.fingerprint),
            "{id}: what it holds is counted wrong"
        );
        ensure!(worker.running_work == running_work, "{id}: planned running time is off");
        ensure!(worker.queued_work == queued_work, "{id}: planned queued time is off");
        let depth = worker.queue.len() as u32;
        ensure!((worker.loaded_at != NONE) == (depth > 0), "{id} is among the loaded, or not, with {depth} queued");
        ensure!(worker.loaded_at == NONE || self.loaded[worker.loaded_at as usize] == slot, "{id} is misfiled");
        let push = self.config.scheduling.bind == crate::config::Bind::Push;
        let up = worker.state == WorkerState::Up;
        ensure!(self.by_depth.contains(&(depth, slot)) == (push && up), "{id} is misfiled by depth");
        let wanted = self.belongs_in_directories(worker);
        ensure!(worker.listed == wanted, "{id} is listed: {}, should be: {wanted}", worker.listed);
        for (at, directory) in self.directories.iter().enumerate() {
            if worker.listed && directory.covers(slot) {
                let key = self.directory_key(slot, self.orders[at]);
                ensure!(worker.keys[at] == key, "{id} is listed under {} instead of {key}", worker.keys[at]);
                ensure!(directory.contains(worker.class, key, slot), "{id} is not in the directory");
            }
        }
        ensure!(class.members.get(worker.class_at as usize) == Some(&slot), "{id} is not a member of its class");
        Ok(())
    }

    /// Central tasks that nobody waits beside with the same signature.
    fn without_lane(&self) -> impl Iterator<Item = u32> + '_ {
        self.signatures.iter().filter_map(|(_, signature)| signature.waiting.sole())
    }

    fn check_counts(&self) -> Result<(), Violation> {
        let states = || self.tasks.slots().map(|slot| self.tasks.at(slot));
        let in_lanes = self.ready.tasks().count() + self.without_lane().count();
        let central = states().filter(|task| task.state == State::Central).count();
        ensure!(in_lanes == central, "{in_lanes} tasks in lanes, {central} central");
        for (level, job, signature, order, slot) in self.ready.tasks() {
            let task = self.tasks.at(slot);
            let right = (task.level, task.job, task.signature, task.order()) == (level, job, signature, order);
            ensure!(right && task.state == State::Central, "{} is in a wrong lane", self.tasks.id(slot));
        }
        for slot in self.without_lane() {
            ensure!(self.tasks.at(slot).state == State::Central, "{} waits without a lane", self.tasks.id(slot));
        }
        let mut waiting = states().filter(|task| task.state.is_queued()).count() as u64;
        let mut parked = states().filter(|task| task.state == State::Parked).count() as u64;
        let mut pending = 0;
        for (slot, job) in self.jobs.iter() {
            let elements = job.array.as_ref().map_or(0, |array| u64::from(array.pending()));
            pending += elements;
            if job.array.as_ref().is_some_and(|array| array.place != ArrayPlace::Parked) {
                waiting += elements;
            } else {
                parked += elements;
            }
            let loose = states().filter(|task| task.job == slot && task.flags.has(Flags::LOOSE)).count();
            let known = job.array.as_ref().map_or(0, |array| array.loose.len());
            ensure!(loose == known, "job {slot}: {loose} elements wait by themselves, {known} are known");
            let mine = states().filter(|task| task.job == slot).count() as u64;
            ensure!(job.open == mine + elements, "job {slot}: {} open, {mine} tasks, {elements} elements", job.open);
            let members = job.members.len();
            ensure!(slot == COMMON_JOB || members == mine, "job {slot}: {members} members, {mine} tasks");
        }
        ensure!(self.counters.queued == waiting, "{} counted as queued, {waiting} wait", self.counters.queued);
        ensure!(self.counters.pending_elements == pending, "{} pending elements", self.counters.pending_elements);
        ensure!(self.counters.parked == parked, "{} counted as parked, {parked} are", self.counters.parked);
        let retrying = states().filter(|task| task.state == State::Backoff).count() as u64;
        ensure!(self.counters.retrying == retrying, "{} counted as retrying, {retrying} are", self.counters.retrying);
        let running = states().filter(|task| task.state.is_held()).count() as u64;
        ensure!(self.counters.running == running, "{} counted as running, {running} are", self.counters.running);
        let mut users: Map<u32, u32> = Map::default();
        for task in states() {
            *users.entry(task.signature).or_default() += 1;
        }
        for (_, worker) in self.workers.iter() {
            for ghost in worker.ghosts() {
                *users.entry(ghost.signature).or_default() += 1;
            }
        }
        for (_, job) in self.jobs.iter() {
            if let Some(array) = job.array.as_ref().filter(|array| array.place != ArrayPlace::Empty) {
                *users.entry(array.template.signature).or_default() += 1;
            }
        }
        for (slot, signature) in self.signatures.iter() {
            let counted = users.get(&slot).copied().unwrap_or(0);
            ensure!(signature.users == counted, "signature {slot}: {} users, {counted} counted", signature.users);
        }
        let needs: BTreeSet<_> = self.signatures.iter().map(|(_, signature)| Arc::as_ptr(&signature.needs)).collect();
        ensure!(self.needs.len() == needs.len(), "{} needs shared, {} in use", self.needs.len(), needs.len());
        let depths = self.workers.iter().map(|(_, worker)| worker.queue.len() as u64);
        let (sum, squares) = depths.fold((0, 0), |(sum, squares), depth| (sum + depth, squares + depth * depth));
        ensure!(self.counters.depths() == (sum, squares), "queue lengths are counted wrong");
        for directory in &self.directories {
            let here = |entry: &(u32, &super::scheduler::Worker)| entry.1.listed && directory.covers(entry.0);
            let listed = self.workers.iter().filter(here).count();
            ensure!(directory.len() == listed, "{} in a directory, {listed} listed", directory.len());
        }
        let unused = self.workers.iter().filter(|(_, worker)| worker.used_slots() == 0).count() as u64;
        ensure!(self.counters.unused == unused, "{} workers counted as unused, {unused} are", self.counters.unused);
        let ghosts: usize = self.workers.iter().map(|(_, worker)| worker.ghosts().len()).sum();
        ensure!(ghosts == self.ghosts.len(), "{ghosts} ghosts at workers, {} known", self.ghosts.len());
        for (_, worker) in self.workers.iter() {
            let found = self.classes.get(worker.class).is_some();
            ensure!(found, "a worker's class is gone");
        }
        Ok(())
    }

    fn check_aging(&self) -> Result<(), Violation> {
        if self.config.scheduling.aging_interval == Span::ZERO {
            return Ok(());
        }
        for level in 1..LEVELS as u8 {
            let (mut at, mut before, mut listed) = (self.aging[usize::from(level) - 1].oldest, NONE, 0);
            let mut since = Time::ZERO;
            while at != NONE {
                let task = self.tasks.at(at);
                let id = self.tasks.id(at);
                ensure!(task.state.is_queued() && task.level == level, "{id} ages in level {level} but is not there");
                ensure!(task.older == before, "the list by age is broken at {id}");
                ensure!(task.since >= since, "{id} is older than the one before it");
                since = task.since;
                before = at;
                at = task.newer;
                listed += 1;
            }
            ensure!(self.aging[usize::from(level) - 1].newest == before, "level {level} has a wrong newest task");
            let waiting = self.tasks.slots().map(|slot| self.tasks.at(slot));
            let waiting = waiting.filter(|task| task.state.is_queued() && task.level == level).count();
            ensure!(listed == waiting, "level {level}: {listed} listed by age, {waiting} wait");
        }
        Ok(())
    }

    /// Keys are never exceeded, and every token is held by somebody.
    fn check_keys(&self) -> Result<(), Violation> {
        let mut holders: Map<u32, u32> = Map::default();
        for slot in self.tasks.slots() {
            let task = self.tasks.at(slot);
            if task.flags.has(Flags::TOKEN) {
                *holders.entry(task.key).or_default() += 1;
            }
        }
        for (_, worker) in self.workers.iter() {
            for ghost in worker.ghosts().iter().filter(|ghost| ghost.key != NONE) {
                *holders.entry(ghost.key).or_default() += 1;
            }
        }
        for (key, limit, held, offered, waiting) in self.keys.all() {
            let holding = holders.get(&key).copied().unwrap_or(0);
            ensure!(held == holding, "key {key}: {held} tokens held, {holding} holders");
            let idle = limit.saturating_sub(held).saturating_sub(offered as u32);
            let promised = held as usize + offered;
            ensure!(offered == 0 || promised <= limit as usize, "key {key}: {promised} tokens promised of {limit}");
            ensure!(waiting == 0 || idle == 0, "key {key}: {waiting} wait while {idle} tokens are free");
        }
        Ok(())
    }

    /// No worker that asks and has nothing sits beside a central task it could run now.
    fn check_work_conserved(&self) -> Result<(), Violation> {
        for (at, worker) in self.workers.iter() {
            if !self.takes_tasks(worker) || worker.used_slots() > 0 || worker.state != WorkerState::Up {
                continue;
            }
            let central = self.ready.tasks().map(|entry| entry.4).chain(self.without_lane());
            let runnable = |slot: &u32| {
                let signature = &self.signatures[self.tasks.at(*slot).signature];
                self.classes[worker.class].can_ever(signature).is_ok() && self.fits_now(*slot, at).is_ok()
            };
            let passed_over: Option<TaskId> = central.filter(runnable).map(|slot| self.tasks.id(slot)).next();
            ensure!(
                passed_over.is_none() || worker.reservation().is_some(),
                "{} asks and has nothing, but {passed_over:?} waits",
                self.worker_id(at)
            );
        }
        Ok(())
    }
}
