//! Workers, time and balance in the naive scheduler.

use filch_core::config::{Matching, RebalanceBy, VictimStrategy};
use filch_core::steal::{self, Haul, Loot, StealOutcome, VictimChooser};
use filch_core::tracker::{Estimator, MovingAverage};
use filch_core::{
    Action, Amount, Cause, JobId, Remaining, ResourceId, Span, Status, TaskId, TaskSpec, Time, TypeId, Vector,
    WorkerChange, WorkerId, WorkerSpec, WorkerState,
};

use crate::arrays::RestAt;
use crate::life::No;
use crate::model::{Head, Model, Place, Timer, Where, Worker};

/// A worker that declares no cores has as many as slots.
fn with_cores(mut spec: WorkerSpec) -> WorkerSpec {
    if spec.resources.get(ResourceId::CPUS) == Amount(0) {
        let cores = (ResourceId::CPUS, Amount::from_units(u64::from(spec.slots)));
        spec.resources = Vector::new(spec.resources.iter().chain([cores]));
    }
    spec
}

impl Model {
    // ---- workers ----

    pub(crate) fn join(&mut self, spec: WorkerSpec) -> Result<(), No> {
        let joined = |action: &Action| match *action {
            Action::Joined { worker, .. } => Some(worker),
            _ => None,
        };
        let id = self.hint(joined).expect("the model lets a worker in, the scheduler does not");
        self.out.push(Action::Joined { tag: spec.tag, worker: id });
        let first = self.workers.is_empty();
        self.joined += 1;
        self.workers.push(Worker {
            id,
            coreless: spec.resources.get(ResourceId::CPUS) == Amount(0),
            spec: with_cores(spec),
            state: WorkerState::Up,
            before: WorkerState::Up,
            silent_since: self.now,
            credit: 0,
            running: Vec::new(),
            ghosts: Vec::new(),
            joined: self.joined,
            average: MovingAverage::default(),
            completed: 0,
            failed: 0,
            in_a_row: 0,
            quarantines: 0,
            assigned: 0,
            last_assigned: 0,
            stolen: 0,
            lost: 0,
        });
        if first && self.queued() > 0 {
            self.expect_orphans();
        }
        self.revisit_parked(id);
        Ok(())
    }

    fn expect_orphans(&mut self) {
        self.set_timer(self.now + self.config.limits.requeue_interval, Timer::Orphans);
    }

    /// Parked tasks that a worker can run are queued, first in order first.
    fn revisit_parked(&mut self, id: WorkerId) {
        let mut arrays: Vec<JobId> =
            self.rests.iter().filter(|rest| rest.at == RestAt::Parked).map(|rest| rest.job).collect();
        arrays.sort_by_key(|job| job.index());
        for job in arrays {
            let able = self.rest(job).is_some_and(|rest| self.can_ever(&rest.spec, self.worker(id)));
            if able {
                self.queue_rest(job);
            }
        }
        let worker = self.worker(id);
        let able = self.tasks.iter().filter(|task| self.can_ever(&task.spec, worker));
        let parked = able.filter(|task| task.state == Where::Parked);
        let mut parked: Vec<(Place, TaskId)> = parked.map(|task| (task.place(), task.id)).collect();
        parked.sort_unstable();
        for (_, id) in parked {
            self.unpark(id);
            self.enqueue(id, Cause::None);
        }
    }

    /// Whether nobody else is like this worker.
    fn last_of_its_class(&self, id: WorkerId) -> bool {
        let spec = WorkerSpec { tag: 0, ..self.worker(id).spec.clone() };
        let mut others = self.workers.iter().filter(|worker| worker.id != id);
        !others.any(|other| WorkerSpec { tag: 0, ..other.spec.clone() } == spec)
    }

    /// Runs a change of the workers; central tasks that more may run than before are offered again, lane by lane.
    fn with_classes_changed(&mut self, gone: bool, change: impl FnOnce(&mut Model)) {
        let mut specs: Vec<TaskSpec> = self.tasks.iter().map(|task| task.spec.clone()).collect();
        specs.extend(self.rests.iter().map(|rest| rest.spec.clone()));
        let before: Vec<usize> = specs.iter().map(|spec| self.best_shared(spec)).collect();
        change(self);
        if !gone {
            return;
        }
        let fallback = |spec: &TaskSpec| self.matching(spec) == Matching::Fallback && !spec.skills.is_empty();
        let now_more = |(spec, before): &(TaskSpec, usize)| {
            let best = self.best_shared(spec);
            fallback(spec) && best > 0 && best < *before
        };
        let widened: Vec<_> = specs.into_iter().zip(before).filter(now_more).map(|entry| entry.0).collect();
        for lane in self.lanes() {
            let alike = self.head_spec(lane[0]).clone();
            if !widened.iter().any(|spec| self.ask_alike(spec, &alike)) {
                continue;
            }
            for head in lane {
                match head {
                    Head::Task(id) => {
                        let Some(worker) = self.who_has_room(id) else { break };
                        self.assign(id, worker);
                    }
                    Head::Rest(job) => {
                        self.serve_waiting(job);
                        break;
                    }
                }
            }
        }
        if self.queued() > 0 {
            self.expect_orphans();
        }
    }

    /// Whether two tasks have the same signature.
    fn ask_alike(&self, a: &TaskSpec, b: &TaskSpec) -> bool {
        let same = (&a.requires, &a.skills, &a.demand, a.task_type) == (&b.requires, &b.skills, &b.demand, b.task_type);
        same && (a.skills.is_empty() || self.matching(a) == self.matching(b))
    }

    /// What waits centrally and asks alike, by level and job; lanes in the order in which a worker would look at them.
    pub(crate) fn lanes(&self) -> Vec<Vec<Head>> {
        let key = |head: Head| {
            let job = match head {
                Head::Task(id) => self.task(id).job,
                Head::Rest(job) => job,
            };
            (self.head_place(head).0, job)
        };
        let mut lanes: Vec<Vec<Head>> = Vec::new();
        // All of it comes in order, so a lane comes where its first does.
        for head in self.central() {
            let alike = |lane: &&mut Vec<Head>| {
                key(lane[0]) == key(head) && self.ask_alike(self.head_spec(lane[0]), self.head_spec(head))
            };
            match lanes.iter_mut().find(alike) {
                Some(lane) => lane.push(head),
                None => lanes.push(vec![head]),
            }
        }
        lanes
    }

    pub(crate) fn change(&mut self, id: WorkerId, change: WorkerChange) -> Result<(), No> {
        if !self.knows(id) {
            return Err(No);
        }
        let old = self.worker(id).spec.clone();
        let declared = old.resources.iter().filter(|entry| entry.0 != ResourceId::CPUS || !self.worker(id).coreless);
        let declared = change.resources.unwrap_or_else(|| Vector::new(declared));
        self.worker_mut(id).coreless = declared.get(ResourceId::CPUS) == Amount(0);
        let spec = with_cores(WorkerSpec {
            capabilities: change.capabilities.unwrap_or_else(|| old.capabilities.clone()),
            resources: declared,
            slots: change.slots.unwrap_or(old.slots),
            speed: change.speed.unwrap_or(old.speed),
            cost_rate: change.cost_rate.unwrap_or(old.cost_rate),
            weight: change.weight.unwrap_or(old.weight),
            ..old
        });
        let changed = spec != old;
        let gone = changed && self.last_of_its_class(id);
        // While it changes it is not up for anything.
        let state = self.worker(id).state;
        self.aside = Some(id);
        self.unlisted = Some(id);
        self.with_classes_changed(gone, |model| model.worker_mut(id).spec = spec);
        self.unlisted = None;
        match (change.draining, state) {
            (Some(true), WorkerState::Up | WorkerState::Quarantined(_)) => {
                self.worker_mut(id).state = WorkerState::Draining;
                self.keep_no_longer(id);
                self.requeue_queue(id, Cause::WorkerLeft);
            }
            (Some(false), WorkerState::Draining) => self.worker_mut(id).state = WorkerState::Up,
            (Some(true), WorkerState::Silent) => self.worker_mut(id).before = WorkerState::Draining,
            (Some(false), WorkerState::Silent) => self.worker_mut(id).before = WorkerState::Up,
            _ => {}
        }
        // One that stays as it is keeps what it has, even if somebody better has come meanwhile.
        let unfit = if changed { self.queue(id) } else { Vec::new() };
        for task in unfit {
            let waits = self.find(task).is_some_and(|found| found.state == Where::AtWorker && found.worker == Some(id));
            if !waits || self.can_ever(&self.task(task).spec, self.worker(id)) {
                continue;
            }
            let pinned = self.task(task).spec.pin.is_some();
            if pinned {
                self.leave_queue(task);
                self.settle(task, None, Status::Failed, Cause::NoWorker);
            } else {
                self.queue_elsewhere(task, Cause::Moved);
            }
        }
        self.keep_no_longer(id);
        self.revisit_parked(id);
        self.aside = None;
        self.serve(id);
        Ok(())
    }

    pub(crate) fn report(&mut self, id: WorkerId) -> Result<(), No> {
        if !self.knows(id) {
            return Err(No);
        }
        if self.worker(id).state == WorkerState::Silent {
            let over = matches!(self.worker(id).before, WorkerState::Quarantined(until) if until <= self.now);
            let state = if over { WorkerState::Up } else { self.worker(id).before };
            self.worker_mut(id).state = state;
            self.serve(id);
        }
        Ok(())
    }

    pub(crate) fn silent(&mut self, id: WorkerId) -> Result<(), No> {
        if !self.knows(id) {
            return Err(No);
        }
        if self.worker(id).state == WorkerState::Silent {
            return Ok(());
        }
        self.worker_mut(id).before = self.worker(id).state;
        self.worker_mut(id).silent_since = self.now;
        self.worker_mut(id).state = WorkerState::Silent;
        self.worker_mut(id).credit = 0;
        self.keep_no_longer(id);
        self.take_away(id, false);
        if !self.worker(id).running.is_empty() {
            self.set_timer(self.now + self.config.limits.lease, Timer::Lease(id));
        }
        self.requeue_queue(id, Cause::WorkerLost);
        Ok(())
    }

    fn take_away(&mut self, id: WorkerId, exclusive_too: bool) {
        for task in self.worker(id).running.clone() {
            if exclusive_too || !self.task(task).spec.exclusive {
                self.abandon(task, Cause::WorkerLost);
                self.enqueue(task, Cause::WorkerLost);
            }
        }
    }

    pub(crate) fn requeue_queue(&mut self, id: WorkerId, cause: Cause) {
        for task in self.queue(id) {
            let found = self.task(task);
            let still_there = found.state == Where::AtWorker && found.worker == Some(id);
            if still_there && found.spec.pin.is_none() {
                self.queue_elsewhere(task, cause);
            }
        }
    }

    pub(crate) fn leave(&mut self, id: WorkerId, remaining: Remaining) -> Result<(), No> {
        if !self.knows(id) {
            return Err(No);
        }
        self.worker_mut(id).state = WorkerState::Draining;
        self.worker_mut(id).credit = 0;
        self.keep_no_longer(id);
        let mut left = self.worker(id).running.clone();
        left.sort_by_key(|&task| (self.task(task).since, self.task(task).sequence));
        for &task in &left {
            self.end_attempt(task);
            self.task_mut(task).ready_at = self.now;
        }
        while !self.worker(id).ghosts.is_empty() {
            let ghost = self.worker_mut(id).ghosts.remove(0);
            if let Some(key) = ghost.key {
                self.offer_next(key);
            }
        }
        while let Some(&task) = self.queue(id).first() {
            self.leave_queue(task);
            left.push(task);
        }
        let gone = self.last_of_its_class(id);
        self.with_classes_changed(gone, |model| model.workers.retain(|worker| worker.id != id));
        self.tracker.forget(id.index());
        for task in left {
            let Some(found) = self.find(task) else { continue };
            let (payload, index) = (found.spec.payload, found.index);
            match remaining {
                Remaining::Requeue => self.enqueue_again(task, Cause::WorkerLeft),
                Remaining::Return => {
                    self.out.push(Action::HandedBack { task, payload, index });
                    self.settle(task, None, Status::Returned, Cause::WorkerLeft);
                }
            }
        }
        Ok(())
    }

    // ---- time ----

    /// Everything that is due, in order.
    pub(crate) fn fire(&mut self) {
        while let Some(&(at, timer)) = self.timers.iter().filter(|entry| entry.0 <= self.now).min() {
            self.timers.retain(|entry| *entry != (at, timer));
            self.due(at, timer);
        }
    }

    fn due(&mut self, at: Time, timer: Timer) {
        match timer {
            Timer::Rebalance => {
                self.rebalance();
                let interval = self.config.load_balancing.thresholds.rebalance_interval();
                self.set_timer(self.now + interval, Timer::Rebalance);
            }
            Timer::Aging => self.promote(),
            Timer::Orphans => self.park_orphans(),
            Timer::Retry(id) => {
                self.task_mut(id).state = Where::Nowhere;
                self.enqueue(id, Cause::None);
            }
            Timer::Park(id) => self.requeue(id),
            Timer::Timeout(id, _) => self.time_out(id),
            Timer::Deadline(id) => {
                self.counts.missed += 1;
                self.notify(id, self.task(id).state.status(), Cause::DeadlineMissed);
            }
            Timer::ParkArray(job) => self.requeue_rest(job),
            Timer::ArrayAging(job) => self.age_rest(job),
            Timer::Reserved(worker) => self.reservation_due(worker),
            Timer::Lease(worker) => {
                let over = |worker: &Worker| worker.silent_since + self.config.limits.lease <= self.now;
                if self.knows(worker) && self.worker(worker).state == WorkerState::Silent && over(self.worker(worker)) {
                    self.take_away(worker, true);
                }
            }
            Timer::Quarantine(worker) => {
                if self.knows(worker) && self.worker(worker).state == WorkerState::Quarantined(at) {
                    self.worker_mut(worker).state = WorkerState::Up;
                    self.serve(worker);
                }
            }
        }
    }

    fn requeue(&mut self, id: TaskId) {
        self.unpark(id);
        if !self.workers.is_empty() && !self.has_host(&self.task(id).spec) {
            let most = self.config.limits.max_requeue_attempts;
            let task = self.task_mut(id);
            if task.requeues >= most {
                self.settle(id, None, Status::Failed, Cause::NoWorker);
                return;
            }
            task.requeues += 1;
            task.level = (task.level - 1).max(1);
            self.counts.requeues += 1;
        }
        self.enqueue(id, Cause::NoWorker);
    }

    fn park_orphans(&mut self) {
        for head in self.lanes().into_iter().flatten() {
            let waits = match head {
                Head::Task(id) => self.find(id).is_some_and(|task| task.state == Where::Central),
                Head::Rest(job) => self.rest(job).is_some_and(|rest| rest.at == RestAt::Lane),
            };
            if !waits || self.workers.is_empty() || self.has_host(self.head_spec(head)) {
                continue;
            }
            match head {
                Head::Task(id) => {
                    self.leave_queue(id);
                    self.park(id);
                }
                Head::Rest(job) => self.queue_rest(job),
            }
        }
    }

    /// Tasks that waited long enough in their level rise by one, from the top down and the longest waiting first.
    fn promote(&mut self) {
        self.aging_at = None;
        let (interval, before) = (self.config.scheduling.aging_interval, self.counts.promotions);
        for level in (1..5).rev() {
            let waiting = self.tasks.iter().filter(|task| task.state.is_queued() && task.level == level);
            let due = waiting.filter(|task| task.since + interval <= self.now);
            let mut due: Vec<(u64, TaskId)> = due.map(|task| (task.entered, task.id)).collect();
            due.sort_unstable();
            for (_, id) in due {
                self.counts.promotions += 1;
                let central = self.task(id).state == Where::Central;
                self.task_mut(id).level += 1;
                if central {
                    // It is not among those who wait in the new level when it comes there.
                    self.task_mut(id).state = Where::Nowhere;
                    self.join_level(level + 1, self.task(id).job);
                    self.task_mut(id).state = Where::Central;
                }
                self.entered += 1;
                let (now, entered) = (self.now, self.entered);
                let task = self.task_mut(id);
                (task.since, task.entered) = (now, entered);
            }
        }
        // After a promotion it looks again one interval later, even if whoever rose has nowhere further to go.
        let again = (self.counts.promotions > before).then_some(self.now + interval);
        let waiting = self.tasks.iter().filter(|task| task.state.is_queued() && task.level < 5);
        if let Some(next) = waiting.map(|task| task.since + interval).chain(again).min() {
            self.aging_at = Some(next);
            self.set_timer(next, Timer::Aging);
        }
    }

    // ---- balance ----

    pub(crate) fn steal(&mut self, thief: WorkerId) -> Result<(), No> {
        if !self.knows(thief) {
            return Err(No);
        }
        let tried = self.counts.steals;
        if self.steal_for(thief) == 0 && self.counts.steals == tried {
            self.count_steal(thief, None, 0);
        }
        self.serve(thief);
        Ok(())
    }

    pub(crate) fn may_steal(&self, thief: WorkerId) -> bool {
        let depth = self.depth(thief);
        let anybody = self.workers.iter().any(|worker| self.depth(worker.id) > 0);
        self.push()
            && self.config.load_balancing.strategy.pulls()
            && anybody
            && depth < self.config.load_balancing.thresholds.idle_threshold
            && f64::from(depth) < self.config.stealing.steal_threshold * f64::from(self.worker(thief).spec.slots)
    }

    fn count_steal(&mut self, thief: WorkerId, victim: Option<WorkerId>, tasks: u32) {
        self.chooser.learn(tasks > 0);
        if victim.is_none() {
            self.hint(|action| matches!(action, Action::Stole { victim: None, .. }).then_some(()));
        }
        self.counts.steals += 1;
        self.counts.stolen += u64::from(tasks > 0);
        let outcome = if tasks > 0 { StealOutcome::Success } else { StealOutcome::Rejection };
        self.out.push(Action::Stole { thief, victim, outcome, tasks });
    }

    /// The queue length above which a task's own policy has it stolen, and the type that policy is for: none if it is
    /// the default's, or the configuration's, to say.
    fn rule_of(&self, spec: &TaskSpec) -> Option<TypeId> {
        let own = self.policies.iter().find(|entry| entry.0 == spec.task_type);
        own.filter(|entry| entry.1.steals_above().is_some()).map(|entry| entry.0)
    }

    /// The victim: computed where the strategy is fixed, checked where lots are drawn.
    fn victim(&mut self, thief: WorkerId, rule: Option<TypeId>, tried: &[WorkerId]) -> Option<WorkerId> {
        let policy = self.policies.iter().find(|entry| Some(entry.0) == rule).map_or(&self.policy, |entry| &entry.1);
        let chooser = match policy.steals_above() {
            Some(threshold) => VictimChooser::longest_above(&self.config.stealing, threshold),
            None => self.chooser.clone(),
        };
        let least = chooser.least_depth();
        let fits = |&&(depth, id): &&(u32, WorkerId)| depth >= least && id != thief && !tried.contains(&id);
        let by_depth = self.by_depth();
        match chooser.current() {
            VictimStrategy::MostLoaded => by_depth.iter().rev().find(fits).map(|entry| entry.1),
            VictimStrategy::LeastLoaded => by_depth.iter().find(fits).map(|entry| entry.1),
            _ => {
                // One that was tried already begins the next search; this one drew nobody.
                let next = self.hints.iter().find(|action| matches!(action, Action::Stole { .. }));
                let drawn = |action: &Action| match *action {
                    Action::Stole { thief: who, victim: Some(victim), .. } if who == thief => Some(victim),
                    _ => None,
                };
                next.and_then(drawn).filter(|victim| !tried.contains(victim))?;
                let victim = self.hint(drawn)?;
                let depth = self.depth(victim);
                if chooser.current() == VictimStrategy::PowerOfTwo && depth < least && depth > 0 {
                    // All that were drawn had too little; that ends the search.
                    assert!(victim != thief && self.worker(victim).state == WorkerState::Up, "{victim} was refused");
                    self.count_steal(thief, Some(victim), 0);
                    return None;
                }
                assert!(fits(&&(depth, victim)), "{victim} with {depth} queued was drawn as a victim for {thief}");
                Some(victim)
            }
        }
    }

    /// First by the common rule about victims, then by those of single types, each for its own tasks.
    pub(crate) fn steal_for(&mut self, thief: WorkerId) -> usize {
        let own = self.policies.iter().filter(|entry| entry.1.steals_above().is_some()).map(|entry| Some(entry.0));
        let rules: Vec<Option<TypeId>> = [None].into_iter().chain(own).collect();
        rules.into_iter().map(|rule| self.steal_by(rule, thief)).find(|taken| *taken > 0).unwrap_or(0)
    }

    fn steal_by(&mut self, rule: Option<TypeId>, thief: WorkerId) -> usize {
        let mut tried = Vec::new();
        for _ in 0..self.config.stealing.max_retries.max(1) {
            let Some(victim) = self.victim(thief, rule, &tried) else { break };
            let stealing = &self.config.stealing;
            let haul = steal::haul(
                stealing.take,
                self.depth(victim),
                self.queued_work(victim),
                stealing.min_local_queue,
                steal::NEAR,
            );
            let taken = self.loot(victim, thief, haul, Some(rule), &mut { steal::QUEUE_LOOKS });
            self.count_steal(thief, Some(victim), taken.len() as u32);
            if !taken.is_empty() {
                for &id in &taken {
                    self.put_at_worker(id, thief);
                    self.count_move(id, victim, thief);
                }
                return taken.len();
            }
            tried.push(victim);
        }
        0
    }

    fn may_take(&self, id: TaskId, from: WorkerId, to: WorkerId) -> bool {
        let spec = &self.task(id).spec;
        let loot = Loot {
            priority: spec.priority.get(),
            bound: spec.key.is_some() || spec.pin.is_some() || spec.exclusive,
            thief_can_run: self.can_ever(spec, self.worker(to)),
            transfer: self.cold(id, to).0,
            duration_at_thief: self.planned_for(id, to),
            duration_at_victim: self.task(id).planned,
        };
        self.guard.check(&loot, self.backlog_besides(id, from)).is_ok()
    }

    /// What may be taken, of those that a rule goes for if there is one.
    fn loot(
        &self,
        from: WorkerId,
        to: WorkerId,
        haul: Haul,
        rule: Option<Option<TypeId>>,
        looks: &mut usize,
    ) -> Vec<TaskId> {
        let mut queue = self.queue(from);
        // What must stay is not even looked at.
        queue.retain(|&id| {
            let spec = &self.task(id).spec;
            let bound = spec.key.is_some() || spec.pin.is_some() || spec.exclusive;
            self.guard.keeps(spec.priority.get(), bound).is_none()
        });
        if self.config.load_balancing.work_stealing.prefer_recent_tasks {
            queue.reverse();
        }
        let (mut taken, mut left) = (Vec::new(), haul.backlog);
        for id in queue.into_iter().take(steal::QUEUE_LOOKS) {
            if taken.len() == haul.tasks as usize || left == Span::ZERO || *looks == 0 {
                break;
            }
            *looks -= 1;
            let concerned = rule.is_none_or(|rule| self.rule_of(&self.task(id).spec) == rule);
            if concerned && self.may_take(id, from, to) {
                left -= self.task(id).planned;
                taken.push(id);
            }
        }
        taken
    }

    fn count_move(&mut self, id: TaskId, from: WorkerId, to: WorkerId) {
        self.worker_mut(from).lost += 1;
        self.worker_mut(to).stolen += 1;
        self.counts.migrated += 1;
        self.out.push(Action::Move { task: id, from, to });
        self.notify(id, Status::Queued, Cause::Moved);
    }

    fn is_uneven(&self) -> bool {
        let by_depth = self.by_depth();
        let (Some(&(shortest, idle)), Some(&(longest, busy))) = (by_depth.first(), by_depth.last()) else {
            return false;
        };
        let thresholds = &self.config.load_balancing.thresholds;
        let ratio = thresholds.severe_imbalance_ratio;
        match thresholds.rebalance_by {
            RebalanceBy::Count => f64::from(longest) / f64::from(shortest.max(1)) > ratio,
            RebalanceBy::Backlog => {
                let unit = self.config.scheduling.default_estimate.as_secs_f64();
                let (busy, idle) = (self.backlog(busy).as_secs_f64(), self.backlog(idle).as_secs_f64());
                busy / idle.max(unit) > ratio
            }
        }
    }

    pub(crate) fn rebalance(&mut self) {
        if !self.is_uneven() {
            return;
        }
        self.counts.cycles += 1;
        let (mut targets, mut looks) = (Vec::new(), Vec::new());
        for _ in 0..self.config.load_balancing.work_stealing.max_steal_per_cycle {
            let Some(target) = self.rebalance_one(&mut looks) else { break };
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        for target in targets {
            self.serve(target);
        }
    }

    fn rebalance_one(&mut self, looks: &mut Vec<(WorkerId, usize)>) -> Option<WorkerId> {
        let thresholds = self.config.load_balancing.thresholds.clone();
        let by_depth = self.by_depth();
        let busy = by_depth.iter().rev().filter(|entry| entry.0 > thresholds.busy_threshold).take(64);
        let idle = by_depth.iter().filter(|entry| entry.0 < thresholds.idle_threshold).take(64);
        let one = Haul { tasks: 1, backlog: Span::MAX, at_least: 1 };
        for &(_, from) in busy {
            if !looks.iter().any(|entry| entry.0 == from) {
                looks.push((from, steal::CYCLE_LOOKS));
            }
            let left = looks.iter_mut().find(|entry| entry.0 == from).map(|entry| &mut entry.1).expect("it is noted");
            for &(_, to) in idle.clone() {
                if *left == 0 {
                    break;
                }
                if thresholds.rebalance_by == RebalanceBy::Backlog && self.backlog(to) >= self.backlog(from) {
                    continue;
                }
                if let Some(&id) = self.loot(from, to, one, None, left).first() {
                    self.put_at_worker(id, to);
                    self.count_move(id, from, to);
                    return Some(to);
                }
                if !self.config.load_balancing.work_stealing.allow_task_migration
                    || !self.worker(to).has_free_slot()
                    || self.depth(to) > 0
                {
                    continue;
                }
                let running = self.worker(from).running.clone();
                let most = *left;
                let movable = |&id: &TaskId| {
                    *left -= 1;
                    self.task(id).spec.idempotent && self.may_take(id, from, to)
                };
                if let Some(id) = running.into_iter().take(most).find(movable) {
                    self.abandon(id, Cause::Moved);
                    self.task_mut(id).ready_at = self.now;
                    self.put_at_worker(id, to);
                    self.count_move(id, from, to);
                    return Some(to);
                }
            }
        }
        None
    }
}
