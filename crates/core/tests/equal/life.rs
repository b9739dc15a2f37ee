//! The life of a task in the naive scheduler: let in, queued, handed out, ended, settled.

use filch_core::config::Hopeless;
use filch_core::policy;
use filch_core::steal;
use filch_core::tracker::Estimator;
use filch_core::{
    Action, Amount, Cause, Event, GraphTask, JobId, KindId, ParentFailure, ResourceId, Rng, Span, Status, TaskId,
    TaskSpec, Time, Vector, WorkerId, WorkerState,
};

use crate::arrays::Rest;
use crate::model::{COMMON, Ghost, Job, Model, Task, Timer, Where};

/// The event was refused.
pub(crate) struct No;

impl Model {
    /// One event, after whatever is due; what happened is in `out`.
    pub(crate) fn step(&mut self, now: Time, event: &Event, core: &[Action]) {
        self.now = now;
        self.hints = core.iter().copied().collect();
        self.out.clear();
        self.fire();
        if let Some(&(key, _)) = self.in_force.iter().min() {
            self.follow_limit(key);
        }
        let result = match event.clone() {
            Event::Tick => Ok(()),
            Event::Join(spec) => self.join(spec),
            Event::Change { worker, change } => self.change(worker, change),
            Event::Report { worker, .. } => self.report(worker),
            Event::Leave { worker, remaining } => self.leave(worker, remaining),
            Event::Silent { worker } => self.silent(worker),
            Event::Submit(spec) => self.submit(&spec),
            Event::SubmitMany(specs) => {
                let graph = specs.into_iter().map(|spec| GraphTask { spec, ..GraphTask::default() });
                self.submit_graph(&graph.collect::<Vec<_>>())
            }
            Event::SubmitGraph(graph) => self.submit_graph(&graph),
            Event::OpenJob { weight } => {
                self.open(weight);
                Ok(())
            }
            Event::CloseJob { job } => self.close(job),
            Event::Pull { worker, wait } => self.pull(worker, wait),
            Event::Withdraw { worker } => self.withdraw(worker),
            Event::Start { task, attempt } => self.start(task, attempt),
            Event::Finish { task, attempt } => self.finish(task, attempt),
            Event::Fail { task, attempt, retry } => self.fail(task, attempt, retry),
            Event::GiveBack { task, attempt } => self.give_back(task, attempt),
            Event::Cancel { task } => self.cancel(task),
            Event::CancelJob { job } => self.cancel_job(job),
            Event::Steal { thief } => self.steal(thief),
            Event::Rebalance => {
                self.rebalance();
                Ok(())
            }
            Event::SetKeyLimit { key, limit } => {
                self.limits.push((key, limit));
                self.follow_limit(key);
                Ok(())
            }
            Event::SetPolicy { task_type, policy } => {
                let policy = policy::create(&policy, &self.config).expect("the policy exists");
                self.set_policy(task_type, policy);
                Ok(())
            }
            Event::UsePolicy { task_type, policy } => {
                self.set_policy(task_type, Box::new(policy));
                Ok(())
            }
            Event::SubmitArray { template, count } => self.submit_array(&template, count),
            Event::CancelElement { job, index } => self.cancel_element(job, index),
            Event::Succeeds { .. }
            | Event::Want { .. }
            | Event::Began { .. }
            | Event::Ended { .. }
            | Event::Moved { .. }
            | Event::Missing { .. }
            | Event::Reattached { .. } => {
                unreachable!("the model's workers have no queues of their own")
            }
        };
        self.end_step();
        if result.is_err() {
            self.out.push(Action::Refused);
        }
    }

    // ---- submission ----

    pub(crate) fn check(&self, spec: &TaskSpec) -> Result<(), No> {
        if let Some(pin) = spec.pin
            && !(self.knows(pin) && self.can_ever(spec, self.worker(pin)))
        {
            return Err(No);
        }
        if spec.timeout == Some(Span::ZERO) || spec.parent.is_some_and(|parent| self.find(parent).is_none()) {
            return Err(No);
        }
        let gpus = Vector::new(spec.demand.amounts().iter().copied()).get(ResourceId::GPUS).0;
        if gpus > Amount::SCALE && !gpus.is_multiple_of(Amount::SCALE) {
            return Err(No);
        }
        let known = |id: &TaskId| self.find(*id).is_some() || self.settled.iter().any(|entry| entry.0 == *id);
        if spec.after.iter().all(known) { Ok(()) } else { Err(No) }
    }

    pub(crate) fn check_room(&self, more: usize) -> Result<(), No> {
        let rests = self.rests.iter().map(|rest| rest.pending() as usize).sum::<usize>();
        let waiting = self.tasks.iter().filter(|task| !task.state.is_held()).count() + rests;
        if (waiting + more) as u64 > self.config.limits.max_queued { Err(No) } else { Ok(()) }
    }

    fn expected(&self, spec: &TaskSpec) -> Span {
        let unknown = spec.estimate.is_none() && !self.tracker.knows(spec.kind);
        if unknown { Span::ZERO } else { self.tracker.anywhere(spec.kind, spec.estimate) }
    }

    pub(crate) fn hopeless(&self, spec: &TaskSpec, after: Span) -> Result<bool, No> {
        let end = self.now + after + self.expected(spec);
        let late = spec.deadline.is_some_and(|deadline| end > deadline || self.now >= deadline);
        if late && self.config.scheduling.hopeless_deadlines == Hopeless::Refuse { Err(No) } else { Ok(late) }
    }

    fn submit(&mut self, spec: &TaskSpec) -> Result<(), No> {
        self.check_room(1)?;
        self.check(spec)?;
        let hopeless = self.hopeless(spec, Span::ZERO)?;
        let job = spec.job.unwrap_or(COMMON);
        if !self.jobs.iter().any(|known| known.id == job && !known.closed) {
            return Err(No);
        }
        let waits_for = spec.after.iter().copied().filter(|&id| self.find(id).is_some()).collect();
        let id = self.create(spec, job, 0, u32::MAX, waits_for);
        self.admit(id, hopeless);
        Ok(())
    }

    fn submit_graph(&mut self, graph: &[GraphTask]) -> Result<(), No> {
        self.check_room(graph.len())?;
        for task in graph {
            self.check(&task.spec)?;
            if task.spec.job.is_some() || task.parents.iter().any(|&parent| parent as usize >= graph.len()) {
                return Err(No);
            }
        }
        // A way longer than there are tasks passes one of them twice.
        if (0..graph.len()).any(|at| self.longest(graph, at, graph.len()).is_none()) {
            return Err(No);
        }
        let mut hopeless = Vec::new();
        for at in 0..graph.len() {
            let before = self.longest(graph, at, graph.len()).unwrap_or_default() - self.expected(&graph[at].spec);
            hopeless.push(self.hopeless(&graph[at].spec, before)?);
        }
        let ranked = graph.iter().any(|task| !task.parents.is_empty() || task.spec.estimate.is_some());
        let ranks: Vec<u32> = (0..graph.len())
            .map(|at| if ranked { !(self.way_to_end(graph, at) as f32).to_bits() } else { u32::MAX })
            .collect();
        let job = self.open(1.0);
        let mut ids: Vec<TaskId> = Vec::new();
        for (at, task) in graph.iter().enumerate() {
            let outside = task.spec.after.iter().copied().filter(|&id| self.find(id).is_some()).collect();
            ids.push(self.create(&task.spec, job, at as u32, ranks[at], outside));
        }
        for (at, task) in graph.iter().enumerate() {
            let inside: Vec<TaskId> = task.parents.iter().map(|&parent| ids[parent as usize]).collect();
            self.task_mut(ids[at]).waits_for.extend(inside);
        }
        let mut entries: Vec<(TaskId, bool)> = ids.into_iter().zip(hopeless).collect();
        entries.sort_by_key(|entry| self.task(entry.0).place());
        for (id, hopeless) in entries {
            if self.find(id).is_some_and(|task| task.state == Where::Nowhere) {
                self.admit(id, hopeless);
            }
        }
        self.job_mut(job).closed = true;
        self.done(job);
        Ok(())
    }

    /// The earliest end of a task of a graph, or none if it waits for itself.
    fn longest(&self, graph: &[GraphTask], at: usize, depth: usize) -> Option<Span> {
        let mut before = Span::ZERO;
        for &parent in &graph[at].parents {
            let depth = depth.checked_sub(1)?;
            before = before.max(self.longest(graph, parent as usize, depth)?);
        }
        Some(before + self.expected(&graph[at].spec))
    }

    /// Seconds along the longest way from the start of a task to an end of the graph.
    fn way_to_end(&self, graph: &[GraphTask], at: usize) -> f64 {
        let children = (0..graph.len()).filter(|&child| graph[child].parents.contains(&(at as u32)));
        let longest = children.map(|child| self.way_to_end(graph, child)).fold(0.0, f64::max);
        longest + self.expected(&graph[at].spec).as_secs_f64()
    }

    fn create(&mut self, spec: &TaskSpec, job: JobId, index: u32, rank: u32, waits_for: Vec<TaskId>) -> TaskId {
        let accepted = |action: &Action| match *action {
            Action::Accepted { task, payload } => Some((task, payload)),
            _ => None,
        };
        let (id, payload) = self.hint(accepted).expect("the model accepts a task, the scheduler does not");
        self.out.push(Action::Accepted { task: id, payload: spec.payload });
        assert_eq!(payload, spec.payload, "tasks are accepted in order");
        self.sequence += 1;
        self.counts.submitted += 1;
        if let Some(deadline) = spec.deadline {
            self.set_timer(deadline, Timer::Deadline(id));
        }
        let task = Task {
            rank,
            sequence: self.sequence,
            waits_for,
            since: self.now,
            ready_at: self.now,
            ..Task::new(id, spec, job, index)
        };
        self.tasks.push(task);
        id
    }

    fn admit(&mut self, id: TaskId, hopeless: bool) {
        self.counts.hopeless += u64::from(hopeless);
        let cause = if hopeless { Cause::Hopeless } else { Cause::None };
        let spec = &self.task(id).spec;
        let badly = |id: &TaskId| self.settled.iter().any(|entry| entry.0 == *id && entry.1 != Status::Completed);
        let parent_failed = spec.after.iter().any(badly);
        match spec.on_parent_failure {
            ParentFailure::Skip if parent_failed => self.settle(id, None, Status::Skipped, Cause::ParentFailed),
            ParentFailure::Fail if parent_failed => self.settle(id, None, Status::Failed, Cause::ParentFailed),
            _ if self.task(id).waits_for.is_empty() => self.enqueue(id, cause),
            _ => self.notify(id, Status::Blocked, cause),
        }
    }

    pub(crate) fn open(&mut self, weight: f64) -> JobId {
        let opened = |action: &Action| match *action {
            Action::Opened { job } => Some(job),
            _ => None,
        };
        let id = self.hint(opened).expect("the model opens a job, the scheduler does not");
        self.out.push(Action::Opened { job: id });
        self.jobs.push(Job { id, weight, received: 0, closed: false });
        id
    }

    fn close(&mut self, job: JobId) -> Result<(), No> {
        if job == COMMON || !self.jobs.iter().any(|known| known.id == job) {
            return Err(No);
        }
        self.job_mut(job).closed = true;
        self.done(job);
        Ok(())
    }

    pub(crate) fn done(&mut self, job: JobId) {
        let pending = self.rest(job).map_or(0, Rest::pending);
        if job != COMMON && self.job(job).closed && pending == 0 && !self.tasks.iter().any(|task| task.job == job) {
            self.out.push(Action::JobDone { job });
            self.rests.retain(|rest| rest.job != job);
            self.jobs.retain(|known| known.id != job);
        }
    }

    // ---- queues ----

    pub(crate) fn enqueue(&mut self, id: TaskId, cause: Cause) {
        self.task_mut(id).ready_at = self.now;
        self.enqueue_again(id, cause);
    }

    /// The same for a task that has been ready for a while.
    pub(crate) fn enqueue_again(&mut self, id: TaskId, cause: Cause) {
        let spec = self.task(id).spec.clone();
        if spec.pin.is_none() && !self.workers.is_empty() && !self.has_host(&spec) {
            self.park(id);
            return;
        }
        let mut may_queue = true;
        if let Some(key) = spec.key {
            let last = self.offered(key).last().copied();
            if self.tokens_free(key) > 0 {
                self.task_mut(id).offered = true;
            } else if let Some(last) = last.filter(|&last| self.task(id).place() < self.task(last).place()) {
                // It comes before one that was offered the key and has not started.
                self.step_back(last);
                self.task_mut(id).offered = true;
            } else {
                self.task_mut(id).state = Where::ForKey;
                self.ages(id);
                may_queue = false;
            }
        }
        if may_queue {
            self.offer(id, Some(cause));
        } else {
            self.notify(id, Status::Queued, cause);
        }
    }

    /// A task leaves its worker's queue for another; it goes on waiting and aging.
    pub(crate) fn queue_elsewhere(&mut self, id: TaskId, cause: Cause) {
        self.let_go(id);
        self.task_mut(id).worker = None;
        if self.workers.is_empty() || self.has_host(&self.task(id).spec) {
            self.offer(id, Some(cause));
        } else {
            self.park(id);
        }
    }

    /// A task that was offered its key waits for it again.
    pub(crate) fn step_back(&mut self, id: TaskId) {
        self.let_go(id);
        let task = self.task_mut(id);
        task.offered = false;
        task.state = Where::ForKey;
        task.worker = None;
    }

    fn tell_queued(&mut self, id: TaskId, news: Option<Cause>) {
        if let Some(cause) = news {
            self.notify(id, Status::Queued, cause);
        }
    }

    pub(crate) fn offer(&mut self, id: TaskId, news: Option<Cause>) {
        let spec = self.task(id).spec.clone();
        if spec.pin.is_some() {
            self.offer_to_pinned(id, news);
            return;
        }
        if self.push()
            && spec.key.is_none()
            && !spec.exclusive
            && let Some(worker) = self.whose_queue(id)
        {
            self.put_at_worker(id, worker);
            self.tell_queued(id, news);
            self.serve(worker);
            return;
        }
        if let Some(worker) = self.who_has_room(id) {
            self.tell_queued(id, news);
            self.assign(id, worker);
            return;
        }
        self.put_central(id);
        self.tell_queued(id, news);
    }

    /// A pinned task goes to its worker or has no home; then the next of its key has its chance.
    fn offer_to_pinned(&mut self, id: TaskId, news: Option<Cause>) {
        let spec = self.task(id).spec.clone();
        if let Some(pin) = spec.pin.filter(|pin| self.knows(*pin)) {
            self.put_at_worker(id, pin);
            self.tell_queued(id, news);
            self.serve(pin);
            return;
        }
        self.tell_queued(id, news);
        self.task_mut(id).offered = false;
        self.task_mut(id).state = Where::Nowhere;
        match spec.key.and_then(|key| self.let_next_in(key)) {
            Some(next) => {
                self.offer_first(next, self.portion, vec![id]);
            }
            None => self.settle(id, None, Status::Failed, Cause::NoWorker),
        }
    }

    pub(crate) fn put_central(&mut self, id: TaskId) {
        self.join_level(self.task(id).level, self.task(id).job);
        let task = self.task_mut(id);
        let waited = task.state.is_queued();
        task.state = Where::Central;
        task.worker = None;
        if !waited {
            self.ages(id);
        }
    }

    /// A job that comes to a level has received no less than the least served there.
    pub(crate) fn join_level(&mut self, level: u8, job: JobId) {
        let tasks = self.tasks.iter().filter(|task| task.state == Where::Central && task.level == level);
        let rests = self.rests.iter().filter(|rest| rest.waits_in(level));
        let others = tasks.map(|task| task.job).chain(rests.map(|rest| rest.job));
        let least = others.map(|other| self.job(other).received).min().unwrap_or(0);
        let job = self.job_mut(job);
        job.received = job.received.max(least);
    }

    pub(crate) fn put_at_worker(&mut self, id: TaskId, worker: WorkerId) {
        self.let_go(id);
        let planned = self.planned_for(id, worker);
        let task = self.task_mut(id);
        let waited = task.state.is_queued();
        task.state = Where::AtWorker;
        task.worker = Some(worker);
        task.planned = planned;
        self.turn += 1;
        self.worker_mut(worker).last_assigned = self.turn;
        if !waited {
            self.ages(id);
        }
    }

    /// Waiting in a level begins.
    pub(crate) fn ages(&mut self, id: TaskId) {
        self.entered += 1;
        let (now, entered, interval) = (self.now, self.entered, self.config.scheduling.aging_interval);
        let task = self.task_mut(id);
        task.since = now;
        task.entered = entered;
        if task.level < 5 && interval > Span::ZERO && self.aging_at.is_none() {
            self.aging_at = Some(now + interval);
            self.set_timer(now + interval, Timer::Aging);
        }
    }

    pub(crate) fn park(&mut self, id: TaskId) {
        self.task_mut(id).state = Where::Parked;
        self.set_timer(self.now + self.config.limits.requeue_interval, Timer::Park(id));
        self.notify(id, Status::Unschedulable, Cause::NoWorker);
    }

    pub(crate) fn unpark(&mut self, id: TaskId) {
        self.task_mut(id).state = Where::Nowhere;
        self.cancel_timer(Timer::Park(id));
    }

    /// Takes a queued task out of its queue, not to be handed out.
    pub(crate) fn leave_queue(&mut self, id: TaskId) {
        self.let_go(id);
        let task = self.task_mut(id);
        task.state = Where::Nowhere;
        task.worker = None;
        task.offered = false;
        if let Some(key) = task.spec.key {
            self.offer_next(key);
        }
    }

    // ---- the worker's side ----

    fn pull(&mut self, worker: WorkerId, wait: bool) -> Result<(), No> {
        if !self.knows(worker) {
            return Err(No);
        }
        let before = self.worker(worker).credit;
        self.worker_mut(worker).credit += 1;
        self.serve(worker);
        if !wait && self.worker(worker).credit > before {
            self.worker_mut(worker).credit = before;
        }
        Ok(())
    }

    fn withdraw(&mut self, worker: WorkerId) -> Result<(), No> {
        if !self.knows(worker) {
            return Err(No);
        }
        let worker = self.worker_mut(worker);
        worker.credit = worker.credit.saturating_sub(1);
        Ok(())
    }

    pub(crate) fn serve(&mut self, at: WorkerId) {
        if self.aside == Some(at) {
            return;
        }
        loop {
            let worker = self.worker(at);
            if worker.credit == 0 || worker.state != WorkerState::Up || !worker.has_free_slot() {
                return;
            }
            let Some(next) = self.choose_for(at) else { return };
            self.task_mut(next).worker = None;
            self.assign(next, at);
        }
    }

    pub(crate) fn assign(&mut self, id: TaskId, at: WorkerId) {
        self.let_go(id);
        let (now, planned) = (self.now, self.planned_for(id, at));
        let waited = now.since(self.task(id).ready_at);
        self.turn += 1;
        let turn = self.turn;
        let devices = self.devices_now(&self.task(id).spec.demand, self.worker(at)).expect("it fits");
        self.task_mut(id).devices = devices;
        let worker = self.worker_mut(at);
        worker.running.push(id);
        worker.credit = worker.credit.saturating_sub(1);
        worker.assigned += 1;
        worker.last_assigned = turn;
        let task = self.task_mut(id);
        task.state = Where::Assigned;
        task.worker = Some(at);
        task.planned = planned;
        task.since = now;
        task.attempt += 1;
        task.offered = false;
        let (attempt, index, job, spec) = (task.attempt, task.index, task.job, task.spec.clone());
        if let Some(timeout) = spec.timeout {
            self.set_timer(now + timeout, Timer::Timeout(id, attempt));
        }
        for (key, _) in &spec.affinity {
            let mut workers = self.warm_workers(*key);
            workers.retain(|known| *known != at && self.knows(*known));
            workers.insert(0, at);
            workers.truncate(4);
            self.warm.retain(|entry| entry.0 != *key);
            self.warm.push((*key, workers));
        }
        let job = self.job_mut(job);
        job.received += if job.weight == 1.0 { planned.0 } else { planned.mul_f64(1.0 / job.weight).0 }.max(1);
        self.counts.assignments += 1;
        self.counts.waited += waited;
        self.counts.longest_wait = self.counts.longest_wait.max(waited);
        self.out.push(Action::Assign { worker: at, task: id, attempt, payload: spec.payload, index });
        self.notify(id, Status::Assigned, Cause::None);
        self.element_left(id);
    }

    // ---- attempts ----

    fn is_held(&self, id: TaskId, attempt: u32) -> bool {
        self.find(id).is_some_and(|task| task.state.is_held() && task.attempt == attempt)
    }

    fn start(&mut self, id: TaskId, attempt: u32) -> Result<(), No> {
        if !self.is_held(id, attempt) {
            return Err(No);
        }
        if self.task(id).state == Where::Running {
            return Ok(());
        }
        let now = self.now;
        let task = self.task_mut(id);
        task.state = Where::Running;
        task.since = now;
        if let Some(timeout) = task.spec.timeout {
            self.cancel_timer(Timer::Timeout(id, attempt));
            self.set_timer(now + timeout, Timer::Timeout(id, attempt));
        }
        self.notify(id, Status::Running, Cause::None);
        Ok(())
    }

    /// The worker of an attempt that counts. The report of another frees what that still occupied.
    fn ends(&mut self, id: TaskId, attempt: u32) -> Result<WorkerId, No> {
        if self.is_held(id, attempt) {
            return self.task(id).worker.ok_or(No);
        }
        let is_it = |ghost: &Ghost| ghost.task == id && ghost.attempt == attempt;
        let haunted = self.workers.iter().find(|worker| worker.ghosts.iter().any(is_it)).map(|worker| worker.id);
        if let Some(at) = haunted {
            self.counts.stale_reports += 1;
            let worker = self.worker_mut(at);
            let place = worker.ghosts.iter().position(is_it).ok_or(No)?;
            if let Some(key) = worker.ghosts.swap_remove(place).key {
                self.aside = Some(at);
                self.offer_next(key);
                self.aside = None;
            }
            self.serve(at);
        }
        Err(No)
    }

    fn learn(&mut self, id: TaskId, success: bool) {
        let task = self.task(id);
        let (kind, at, took) = (task.spec.kind, task.worker.expect("it is held"), self.now.since(task.since));
        self.tracker.record(kind, at.index(), took, success);
        self.ends.push((kind, at, success));
        let alpha = self.policy.alpha().unwrap_or(0.1);
        let worker = self.worker_mut(at);
        worker.average.update(alpha, took.as_secs_f64(), success);
        if success {
            worker.completed += 1;
            worker.in_a_row = 0;
            worker.quarantines = 0;
        } else {
            worker.failed += 1;
            worker.in_a_row += 1;
        }
    }

    /// Takes a held task out of its slot.
    fn vacate(&mut self, id: TaskId) -> WorkerId {
        let (attempt, at) = (self.task(id).attempt, self.task(id).worker.expect("it is held"));
        self.cancel_timer(Timer::Timeout(id, attempt));
        let worker = self.worker_mut(at);
        let place = worker.running.iter().position(|&running| running == id).expect("it runs there");
        worker.running.swap_remove(place);
        let task = self.task_mut(id);
        task.state = Where::Nowhere;
        task.worker = None;
        at
    }

    pub(crate) fn end_attempt(&mut self, id: TaskId) {
        self.vacate(id);
        if let Some(key) = self.task(id).spec.key {
            self.offer_next(key);
        }
    }

    pub(crate) fn abandon(&mut self, id: TaskId, cause: Cause) {
        let at = self.vacate(id);
        let task = self.task(id);
        let attempt = task.attempt;
        let ghost = Ghost {
            task: id,
            attempt,
            demand: task.spec.demand.clone(),
            key: task.spec.key,
            devices: task.devices.clone(),
            since: task.since,
            planned: task.planned,
        };
        self.worker_mut(at).ghosts.push(ghost);
        self.out.push(Action::Revoke { worker: at, task: id, attempt, cause });
    }

    fn finish(&mut self, id: TaskId, attempt: u32) -> Result<(), No> {
        let at = self.ends(id, attempt)?;
        self.learn(id, true);
        self.aside = Some(at);
        self.end_attempt(id);
        self.settle(id, Some(at), Status::Completed, Cause::None);
        self.aside = None;
        self.serve(at);
        Ok(())
    }

    fn fail(&mut self, id: TaskId, attempt: u32, retry: bool) -> Result<(), No> {
        let at = self.ends(id, attempt)?;
        let kind = self.task(id).spec.kind;
        self.learn(id, false);
        self.aside = Some(at);
        self.end_attempt(id);
        self.failed_attempt(id, at, retry, Cause::Reported);
        self.watch(at, kind);
        self.aside = None;
        self.serve(at);
        Ok(())
    }

    fn give_back(&mut self, id: TaskId, attempt: u32) -> Result<(), No> {
        let at = self.ends(id, attempt)?;
        self.aside = Some(at);
        self.end_attempt(id);
        self.sequence += 1;
        let sequence = self.sequence;
        let task = self.task_mut(id);
        task.sequence = sequence;
        task.given_back += 1;
        if task.given_back <= 3 {
            self.enqueue(id, Cause::GivenBack);
        } else {
            let tries = task.given_back - 4;
            let terms = task.spec.retry;
            let base = terms.map_or(self.config.retry.backoff, |terms| terms.backoff);
            let cap = terms.map_or(self.config.retry.backoff_max, |terms| terms.backoff_max);
            let pause = steal::backoff(&mut Rng::new(0), base, cap, 0.0, tries);
            self.task_mut(id).state = Where::Backoff;
            self.set_timer(self.now + pause, Timer::Retry(id));
            self.notify(id, Status::Retrying, Cause::GivenBack);
        }
        self.aside = None;
        self.serve(at);
        Ok(())
    }

    pub(crate) fn time_out(&mut self, id: TaskId) {
        let (at, kind) = (self.task(id).worker.expect("it is held"), self.task(id).spec.kind);
        self.learn(id, false);
        self.counts.timeouts += 1;
        self.abandon(id, Cause::TimedOut);
        self.failed_attempt(id, at, true, Cause::TimedOut);
        self.watch(at, kind);
    }

    fn failed_attempt(&mut self, id: TaskId, at: WorkerId, retry: bool, cause: Cause) {
        let (tries, terms) = (self.task(id).retries, self.task(id).spec.retry);
        let most = terms.map_or(self.config.retry.max_retries, |terms| terms.max_retries);
        if !retry || tries >= most {
            self.settle(id, Some(at), Status::Failed, cause);
            return;
        }
        let base = terms.map_or(self.config.retry.backoff, |terms| terms.backoff);
        let cap = terms.map_or(self.config.retry.backoff_max, |terms| terms.backoff_max);
        // Without jitter the numbers drawn do not matter.
        let mut pause = steal::backoff(&mut Rng::new(0), base, cap, 0.0, tries);
        if cause == Cause::TimedOut && self.task(id).spec.exclusive {
            pause = pause.max(self.config.limits.lease);
        }
        self.task_mut(id).retries += 1;
        self.task_mut(id).state = Where::Backoff;
        self.counts.retries += 1;
        self.set_timer(self.now + pause, Timer::Retry(id));
        self.notify(id, Status::Retrying, cause);
    }

    /// Sets a worker aside that fails too often in a row at what others can do.
    fn watch(&mut self, at: WorkerId, kind: KindId) {
        let limits = self.config.limits.clone();
        let elsewhere = self.ends.iter().rev().find(|(of, by, _)| *of == kind && *by != at);
        let others_can = elsewhere.is_some_and(|(_, _, success)| *success);
        let now = self.now;
        let worker = self.worker_mut(at);
        let too_many = limits.quarantine_after > 0 && worker.in_a_row >= limits.quarantine_after;
        if !too_many || worker.state != WorkerState::Up || !others_can {
            return;
        }
        let until = now + Span(limits.quarantine.0 << worker.quarantines.min(10));
        worker.quarantines += 1;
        worker.in_a_row = 0;
        worker.state = WorkerState::Quarantined(until);
        self.counts.quarantines += 1;
        self.keep_no_longer(at);
        self.set_timer(until, Timer::Quarantine(at));
        self.requeue_queue(at, Cause::WorkerLost);
    }

    // ---- the end ----

    /// Settles a task that is nowhere; those it takes with it follow, those it lets in come last.
    pub(crate) fn settle(&mut self, id: TaskId, at: Option<WorkerId>, status: Status, cause: Cause) {
        let mut left = vec![(id, at, status, cause)];
        let mut released = Vec::new();
        while let Some((id, at, status, cause)) = left.pop() {
            let job = self.task(id).job;
            self.element_left(id);
            self.cancel_timer(Timer::Deadline(id));
            self.tasks.retain(|task| task.id != id);
            self.settled.push((id, status));
            self.out.push(Action::Notify { task: id, status, worker: at, cause });
            match status {
                Status::Completed => self.counts.completed += 1,
                Status::Cancelled => self.counts.cancelled += 1,
                Status::Skipped => self.counts.skipped += 1,
                Status::Returned => self.counts.returned += 1,
                _ => self.counts.failed += 1,
            }
            self.done(job);
            let mut doomed = Vec::new();
            for task in &mut self.tasks {
                if !task.waits_for.contains(&id) {
                    continue;
                }
                if status == Status::Completed || task.spec.on_parent_failure == ParentFailure::Run {
                    task.waits_for.retain(|parent| *parent != id);
                    if task.waits_for.is_empty() {
                        released.push(task.id);
                    }
                } else {
                    task.waits_for.clear();
                    let skip = task.spec.on_parent_failure == ParentFailure::Skip;
                    let status = if skip { Status::Skipped } else { Status::Failed };
                    doomed.push((task.id, None, status, Cause::ParentFailed));
                }
            }
            left.extend(doomed);
        }
        released.sort_by_key(|&id| self.task(id).place());
        self.freed.extend(released.into_iter().rev());
        if self.freeing {
            return;
        }
        self.freeing = true;
        while let Some(id) = self.freed.pop() {
            if self.find(id).is_some() {
                self.enqueue(id, Cause::None);
            }
        }
        self.freeing = false;
    }

    pub(crate) fn cancel(&mut self, id: TaskId) -> Result<(), No> {
        let task = self.find(id).ok_or(No)?;
        let (state, worker) = (task.state, task.worker);
        match state {
            Where::Nowhere => {}
            Where::Central | Where::ForKey | Where::AtWorker => self.leave_queue(id),
            Where::Backoff => {
                self.cancel_timer(Timer::Retry(id));
                self.task_mut(id).state = Where::Nowhere;
            }
            Where::Parked => self.unpark(id),
            Where::Assigned | Where::Running => self.abandon(id, Cause::Requested),
        }
        let at = worker.filter(|_| state.is_held());
        self.settle(id, at, Status::Cancelled, Cause::Requested);
        Ok(())
    }

    fn cancel_job(&mut self, job: JobId) -> Result<(), No> {
        if job == COMMON || !self.jobs.iter().any(|known| known.id == job) {
            return Err(No);
        }
        self.job_mut(job).closed = true;
        self.drop_rest(job, Status::Cancelled, Cause::Requested);
        let mut members: Vec<TaskId> = self.tasks.iter().filter(|task| task.job == job).map(|task| task.id).collect();
        members.sort_by_key(|id| id.index());
        if members.is_empty() {
            self.done(job);
        }
        for &id in &members {
            self.task_mut(id).waits_for.clear();
        }
        for id in members {
            if self.find(id).is_some() {
                let _ = self.cancel(id);
            }
        }
        Ok(())
    }
}
