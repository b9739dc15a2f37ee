//! What happens because time passes: retries, requeues, timeouts, aging, samples, rebalancing. And arrays, whose rest
//! ages, parks and is fed as one.

use super::ready::Head;
use super::tasks::OrderKey;
use super::{ArrayPlace, Flags, LEVELS, Scheduler, State, Timer, queue_key};
use crate::action::Action;
use crate::ids::NONE;
use crate::metrics::Sample;
use crate::task::{Cause, Status};
use crate::time::Span;
use crate::worker::WorkerState;

/// Promotions in one step; more wait for the next, at the same moment.
const PROMOTIONS_PER_STEP: usize = 256;

/// Timers fired in one step; if more are due the next step, at the same moment, goes on.
const TIMERS_PER_STEP: usize = 4096;

/// Lanes without a known host that one step looks into, and the pause before the next step.
const SUSPECTS_PER_STEP: usize = 256;
const ORPHANS_PAUSE: Span = Span::from_millis(1);

/// Workers whose queues are listed one by one in a sample.
const WORKERS_SAMPLED: usize = 256;

impl Scheduler {
    /// Sets the timers that run from the start.
    pub(super) fn arm_upkeep(&mut self) {
        if self.push_bound() && self.config.load_balancing.strategy.pushes() {
            let at = self.now + self.config.load_balancing.thresholds.rebalance_interval();
            self.timers.set(at, Timer::Rebalance);
        }
        if self.config.limits.sample_interval > Span::ZERO && self.config.limits.samples_kept > 0 {
            self.timers.set(self.now + self.config.limits.sample_interval, Timer::Sample);
        }
    }

    /// Fires everything that is due.
    pub(super) fn fire_timers(&mut self, actions: &mut Vec<Action>) {
        for _ in 0..TIMERS_PER_STEP {
            let Some((at, timer)) = self.timers.pop(self.now) else { return };
            match timer {
                Timer::Rebalance => {
                    self.rebalance(actions);
                    let next = self.now + self.config.load_balancing.thresholds.rebalance_interval();
                    self.timers.set(next, Timer::Rebalance);
                }
                Timer::Sample => {
                    self.take_sample();
                    self.timers.set(self.now + self.config.limits.sample_interval, Timer::Sample);
                }
                Timer::Aging => {
                    if self.promote_aged() {
                        return;
                    }
                }
                Timer::Retry(id) => {
                    if let Some(slot) = self.tasks.find(id) {
                        debug_assert_eq!(self.tasks.at(slot).state, State::Backoff);
                        self.tasks.at_mut(slot).state = State::Blocked;
                        self.counters.retrying -= 1;
                        self.enqueue(slot, Cause::None, actions);
                    }
                }
                Timer::Park(id) => {
                    if let Some(slot) = self.tasks.find(id) {
                        self.requeue_parked(slot, actions);
                    }
                }
                Timer::Timeout(id, attempt) => {
                    if let Some(slot) = self.tasks.find(id)
                        && self.tasks.at(slot).attempt == attempt
                        && self.tasks.at(slot).state.is_held()
                    {
                        self.time_out(slot, actions);
                    }
                }
                Timer::Deadline(id) => {
                    if let Some(slot) = self.tasks.find(id) {
                        self.counters.deadlines_missed += 1;
                        let status = self.tasks.at(slot).status();
                        self.notify(slot, status, Cause::DeadlineMissed, actions);
                    }
                }
                Timer::ParkArray(job) => {
                    if let Ok(slot) = self.job_slot(job) {
                        self.requeue_array(slot, actions);
                    }
                }
                Timer::ArrayAging(job) => {
                    if let Ok(slot) = self.job_slot(job) {
                        self.age_array(slot);
                    }
                }
                Timer::Orphans => self.park_orphans(actions),
                Timer::Look(worker) => {
                    if let Ok(slot) = self.worker_slot(worker) {
                        self.serve(slot, actions);
                    }
                }
                Timer::Reserved(worker) => self.reservation_due(worker, actions),
                Timer::Lease(worker) => self.lease_ended(worker, actions),
                Timer::Quarantine(worker) => {
                    if let Ok(slot) = self.worker_slot(worker)
                        && self.workers[slot].state == WorkerState::Quarantined(at)
                    {
                        self.set_state(slot, WorkerState::Up);
                        self.up_again(slot);
                        self.serve(slot, actions);
                    }
                }
            }
        }
    }

    fn requeue_parked(&mut self, slot: u32, actions: &mut Vec<Action>) {
        self.unpark(slot);
        let (signature, pinned) = (self.tasks.at(slot).signature, self.tasks.at(slot).flags.has(Flags::PINNED));
        // With nobody registered at all nobody has refused it either.
        if self.workers.len() > 0 && !self.may_stay(slot) {
            let task = self.tasks.at_mut(slot);
            if u32::from(task.requeues) >= self.config.limits.max_requeue_attempts {
                let refusals = self.refusals(signature, pinned);
                self.tasks.extra_mut(slot).refusals = Some(Box::new(refusals));
                self.settle(slot, Status::Failed, Cause::NoWorker, actions);
                return;
            }
            task.requeues = task.requeues.saturating_add(1);
            // Lower each time, so that tasks nobody can run do not stand before those somebody can.
            task.level = (task.level - 1).max(1);
            self.counters.requeues += 1;
        }
        self.enqueue(slot, Cause::NoWorker, actions);
    }

    /// Sets queued tasks aside whose last possible worker has gone. A while after a class has disappeared or the first
    /// worker has come, it goes through the lanes, a bounded number at a time.
    fn park_orphans(&mut self, actions: &mut Vec<Action>) {
        if self.workers.len() == 0 {
            // Nobody has refused them; the first worker to come makes us look again.
            self.orphans_from = None;
            return;
        }
        let mut suspects = Vec::new();
        let search = self.ready.find(1, self.orphans_from.as_ref(), |found| {
            let signature = &self.signatures[found.signature];
            let host = self.classes.get(signature.host);
            if host.is_none_or(|class| class.can_ever(signature).is_err()) {
                suspects.push(*found);
            }
            suspects.len() == SUSPECTS_PER_STEP
        });
        self.orphans_from = search.cut_off;
        let mut more = search.found.is_some() || search.cut_off.is_some();
        let mut left = PROMOTIONS_PER_STEP;
        let mut looks = 2 * super::CLASS_LOOKS;
        for lane in suspects {
            // A worker may still be found: then this only notes whose class it is. A search that takes longer goes on by
            // itself, and comes back here if it finds nobody.
            if self.has_host_within(lane.signature, &mut looks) {
                continue;
            }
            while let Some(head) = self.head(&lane) {
                if left == 0 {
                    more = true;
                    break;
                }
                left -= 1;
                match head {
                    Head::Task(slot) => {
                        self.leave_queue(slot, actions);
                        self.park(slot, actions);
                    }
                    Head::Element => {
                        self.set_array_place(lane.level, lane.job, lane.signature, 0, None);
                        self.queue_array(lane.job, actions);
                    }
                }
            }
        }
        if more {
            self.timers.set(self.now + ORPHANS_PAUSE, Timer::Orphans);
        }
    }

    /// Looks for orphans a while from now.
    pub(super) fn expect_orphans(&mut self) {
        let at = self.now + self.config.limits.requeue_interval;
        self.timers.set(at, Timer::Orphans);
    }

    // ---- aging ----

    /// Whether tasks of that level are listed by age: there must be somewhere to rise to.
    fn ages(&self, level: u8) -> bool {
        self.config.scheduling.aging_interval > Span::ZERO && usize::from(level) < LEVELS
    }

    /// Enters a queued task at the young end of its level's list.
    #[inline]
    pub(super) fn age_enter(&mut self, slot: u32) {
        let now = self.now;
        let task = self.tasks.at_mut(slot);
        task.since = now;
        let level = task.level;
        if !self.ages(level) {
            return;
        }
        let list = &mut self.aging[usize::from(level) - 1];
        let before = std::mem::replace(&mut list.newest, slot);
        if before == NONE {
            list.oldest = slot;
        }
        let task = self.tasks.at_mut(slot);
        task.older = before;
        task.newer = NONE;
        if before != NONE {
            self.tasks.at_mut(before).newer = slot;
        }
        if self.aging_at.is_none() {
            let at = now + self.config.scheduling.aging_interval;
            self.aging_at = Some(at);
            self.timers.set(at, Timer::Aging);
        }
    }

    /// Takes a task out of its level's list.
    #[inline]
    pub(super) fn age_leave(&mut self, slot: u32) {
        let task = self.tasks.at_mut(slot);
        let level = task.level;
        let (older, newer) = (std::mem::replace(&mut task.older, NONE), std::mem::replace(&mut task.newer, NONE));
        if !self.ages(level) {
            return;
        }
        let list = &mut self.aging[usize::from(level) - 1];
        if older == NONE {
            list.oldest = newer;
        } else {
            self.tasks.at_mut(older).newer = newer;
        }
        let list = &mut self.aging[usize::from(level) - 1];
        if newer == NONE {
            list.newest = older;
        } else {
            self.tasks.at_mut(newer).older = older;
        }
    }

    /// Raises tasks that waited too long in their level. Whether some are left for another step.
    fn promote_aged(&mut self) -> bool {
        let interval = self.config.scheduling.aging_interval;
        let (mut promoted, mut next) = (0, None::<crate::time::Time>);
        // From the top down, so that nobody rises twice at one moment.
        for level in (1..LEVELS as u8).rev() {
            loop {
                let slot = self.aging[usize::from(level) - 1].oldest;
                if slot == NONE {
                    break;
                }
                let due = self.tasks.at(slot).since + interval;
                if due > self.now {
                    next = Some(next.map_or(due, |next| next.min(due)));
                    // The one after it will be looked at when this one rises: by then it has come from memory. Nothing
                    // is changed, and nobody waits for a write.
                    let after = self.tasks.at(slot).newer;
                    if promoted > 0 && after != NONE {
                        self.tasks.at_mut(after).older = slot;
                    }
                    break;
                }
                if promoted == PROMOTIONS_PER_STEP {
                    self.aging_at = Some(self.now);
                    self.timers.set(self.now, Timer::Aging);
                    return true;
                }
                self.promote(slot);
                promoted += 1;
            }
        }
        // Whoever has risen is due one interval from now at the earliest.
        if promoted > 0 {
            let due = self.now + interval;
            next = Some(next.map_or(due, |next| next.min(due)));
        }
        // Only now: while tasks rose, the timer that fired stood for the next one, so there is never a second.
        self.aging_at = next;
        if let Some(at) = next {
            self.timers.set(at, Timer::Aging);
        }
        false
    }

    fn promote(&mut self, slot: u32) {
        self.age_leave(slot);
        let task = self.tasks.at(slot);
        let (key, before) = (task.key, queue_key(task.level, task.order(), slot));
        let (state, job, signature) = (task.state, task.job, task.signature);
        let (level, worker) = (task.level, task.worker);
        let after = queue_key(level + 1, task.order(), slot);
        if state == State::Central {
            self.ready.remove(&mut self.signatures[signature].waiting, &self.tasks, slot);
        }
        self.tasks.at_mut(slot).level = level + 1;
        self.counters.promotions += 1;
        if key != NONE {
            self.keys.rename(key, before, after);
        }
        match state {
            State::Central => {
                let received = self.join_level(level + 1, job);
                self.ready.push(&mut self.signatures[signature].waiting, &self.tasks, slot, received);
            }
            State::AtWorker => {
                self.workers[worker].queue.rename(&before, after);
            }
            _ => {}
        }
        self.age_enter(slot);
    }

    // ---- arrays ----

    /// Puts the rest of an array where it waits: a lane, its key, or aside if nobody can run it.
    pub(super) fn queue_array(&mut self, job: u32, actions: &mut Vec<Action>) {
        let id = self.job_id(job);
        let Some(array) = self.jobs[job].array.as_ref() else { return };
        let (signature, keyed, level, order) =
            (array.template.signature, array.template.key != NONE, array.level, array.order());
        if !self.has_host(signature) && self.workers.len() > 0 {
            self.park_array(job);
            return;
        }
        if keyed {
            self.place_array(job, ArrayPlace::Fed);
            self.feed(job, actions);
            return;
        }
        self.place_array(job, ArrayPlace::Lane);
        let received = self.join_level(level, job);
        self.set_array_place(level, job, signature, received, Some(order));
        if self.ages(level) {
            self.timers.set(self.now + self.config.scheduling.aging_interval, Timer::ArrayAging(id));
        }
        self.serve_waiting_workers(job, actions);
    }

    /// Sets the place of the rest of an array in the central queue, or takes it out.
    pub(super) fn set_array_place(
        &mut self,
        level: u8,
        job: u32,
        signature: u32,
        received: u64,
        order: Option<OrderKey>,
    ) {
        let waiting = &mut self.signatures[signature].waiting;
        self.ready.set_array(waiting, &self.tasks, (level, job, signature), received, order);
    }

    fn place_array(&mut self, job: u32, place: ArrayPlace) {
        let now = self.now;
        let Some(array) = self.jobs[job].array.as_mut() else { return };
        let (before, pending) = (std::mem::replace(&mut array.place, place), u64::from(array.pending()));
        array.since = now;
        if place == ArrayPlace::Parked {
            self.parked_arrays.insert(job);
        } else {
            self.parked_arrays.remove(&job);
        }
        match (before, place) {
            (ArrayPlace::Parked, ArrayPlace::Parked) => {}
            (ArrayPlace::Parked, _) => {
                self.counters.parked -= pending;
                self.counters.queued += pending;
            }
            (_, ArrayPlace::Parked) => {
                self.counters.queued -= pending;
                self.counters.parked += pending;
            }
            _ => {}
        }
    }

    /// Workers that wait for a task get elements, as the policy chooses.
    pub(super) fn serve_waiting_workers(&mut self, job: u32, actions: &mut Vec<Action>) {
        while self.directories.iter().any(|directory| !directory.is_empty()) {
            let Some(array) = self.jobs.get(job).and_then(|job| job.array.as_ref()) else { return };
            if array.place != ArrayPlace::Lane || array.pending() == 0 {
                return;
            }
            let Some(slot) = self.materialise(job, actions) else { return };
            let Some(worker) = self.who_has_room(slot) else {
                self.wait_loose(slot, actions);
                return;
            };
            self.give(slot, worker, Some(Cause::None), actions);
        }
    }

    /// Keeps as many elements of a keyed array waiting for its key as may run at once, but no more than one portion: they
    /// are all alike, so more of them would not find a worker either. If nobody can run them any more the rest is set
    /// aside as a whole.
    fn feed(&mut self, job: u32, actions: &mut Vec<Action>) {
        loop {
            let Some(array) = self.jobs.get(job).and_then(|job| job.array.as_ref()) else { return };
            let (signature, limit) =
                (array.template.signature, self.keys.figures(array.template.key).0.min(self.portion as u32));
            if array.place != ArrayPlace::Fed || array.loose.len() >= limit as usize || array.pending() == 0 {
                return;
            }
            if !self.has_host(signature) && self.workers.len() > 0 {
                self.park_array(job);
                return;
            }
            let Some(slot) = self.materialise(job, actions) else { return };
            self.set_loose(slot);
            // The element was counted as queued already; `enqueue` counts it again.
            self.counters.queued -= 1;
            self.enqueue(slot, Cause::None, actions);
        }
    }

    /// An element that was materialised and finds no room waits in the lane of its array by itself.
    pub(super) fn wait_loose(&mut self, slot: u32, actions: &mut Vec<Action>) {
        self.set_loose(slot);
        self.put_in_lane(slot);
        self.notify(slot, Status::Queued, Cause::None, actions);
    }

    fn set_loose(&mut self, slot: u32) {
        let task = self.tasks.at_mut(slot);
        task.flags.set(Flags::LOOSE, true);
        let (job, index) = (task.job, task.index);
        if let Some(array) = self.jobs[job].array.as_mut() {
            array.loose.insert(index, slot);
        }
    }

    /// An element that waited by itself is handed out or settled. If it waited for the key of its array the next may, at
    /// the end of this step.
    pub(super) fn element_left(&mut self, slot: u32) {
        let task = self.tasks.at_mut(slot);
        if !task.flags.has(Flags::LOOSE) {
            return;
        }
        task.flags.set(Flags::LOOSE, false);
        let (job, index, keyed) = (task.job, task.index, task.key != NONE);
        if let Some(array) = self.jobs[job].array.as_mut() {
            array.loose.remove(&index);
            if keyed {
                self.hungry.push(job);
            }
        }
    }

    /// Lets elements follow those that left; not at once when they leave, since that could go as deep as the array is long.
    pub(super) fn feed_hungry(&mut self, actions: &mut Vec<Action>) {
        while let Some(job) = self.hungry.pop() {
            self.feed(job, actions);
        }
    }

    /// Sets the rest of an array aside that nobody can run.
    fn park_array(&mut self, job: u32) {
        let due = self.now + self.config.limits.requeue_interval;
        self.place_array(job, ArrayPlace::Parked);
        self.timers.set(due, Timer::ParkArray(self.job_id(job)));
    }

    /// Takes the rest of an array out of wherever it waits.
    pub(super) fn withdraw_array(&mut self, job: u32) {
        let Some(array) = self.jobs[job].array.as_ref() else { return };
        if array.place == ArrayPlace::Lane {
            let (level, signature) = (array.level, array.template.signature);
            self.set_array_place(level, job, signature, 0, None);
        }
        self.empty_array(job);
    }

    fn requeue_array(&mut self, job: u32, actions: &mut Vec<Action>) {
        let Some(array) = self.jobs[job].array.as_mut() else { return };
        if array.place != ArrayPlace::Parked {
            return;
        }
        let (requeues, signature) = (array.requeues, array.template.signature);
        if self.workers.len() > 0 && !self.has_host(signature) {
            if requeues >= self.config.limits.max_requeue_attempts {
                let id = self.job_id(job);
                let refused = self.refusals(signature, false).classes.into_iter();
                actions.extend(refused.map(|(worker, lack)| Action::ElementsRefused { job: id, worker, lack }));
                self.drop_elements(job, Status::Failed, Cause::NoWorker, actions);
                self.job_may_be_done(job, actions);
                return;
            }
            if let Some(array) = self.jobs[job].array.as_mut() {
                array.requeues += 1;
                array.level = (array.level - 1).max(1);
            }
            self.counters.requeues += 1;
        }
        self.queue_array(job, actions);
    }

    /// Raises the rest of an array that has been passed over for too long.
    fn age_array(&mut self, job: u32) {
        let (id, now, interval) = (self.job_id(job), self.now, self.config.scheduling.aging_interval);
        let Some(array) = self.jobs[job].array.as_mut() else { return };
        // An array that was parked and came back may have two of these timers.
        if array.place != ArrayPlace::Lane || usize::from(array.level) >= LEVELS {
            return;
        }
        let due = array.since + interval;
        if due > now {
            self.timers.set(due, Timer::ArrayAging(id));
            return;
        }
        let (level, signature, order) = (array.level, array.template.signature, array.order());
        array.level = level + 1;
        array.since = now;
        self.counters.promotions += 1;
        self.set_array_place(level, job, signature, 0, None);
        let received = self.join_level(level + 1, job);
        self.set_array_place(level + 1, job, signature, received, Some(order));
        if self.ages(level + 1) {
            self.timers.set(now + interval, Timer::ArrayAging(id));
        }
    }

    // ---- samples ----

    fn take_sample(&mut self) {
        let kept = self.config.limits.samples_kept as usize;
        while self.samples.len() >= kept {
            self.samples.pop_front();
        }
        // Where very many have gone, finding the few that are left would be long.
        let few = self.workers.len() <= WORKERS_SAMPLED && self.worker_generations.len() <= 16 * WORKERS_SAMPLED;
        let queue_lengths = if few {
            self.workers.iter().map(|(slot, worker)| (self.worker_id(slot), worker.queue.len() as u32)).collect()
        } else {
            Vec::new()
        };
        let (busy, idle) = self.busy_and_idle();
        let running = self.counters.running;
        self.samples.push_back(Sample {
            at: self.now,
            queued: self.counters.queued,
            running,
            busy,
            idle,
            queue_lengths,
        });
    }
}
