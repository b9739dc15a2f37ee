//! Reservations in time in the naive scheduler: what a worker that asks is given while a wide task waits for it.
//!
//! The rule, as `docs/scheduling.md` tells it, in its plainest form. Every question is answered by writing down all that
//! a worker holds with the moment each of it should be over, and trying those moments one after another. That a search
//! stops after 256 tasks is said here too, but these scenarios are too small to come to it.

use std::borrow::Cow;

use filch_core::{Cause, Demand, ResourceId, Span, Status, TaskId, TaskSpec, Time, WorkerId, WorkerState};

use crate::model::{Head, Model, Place, Timer, Worker};

/// How far ahead the moment of a reservation is at the least, and how long its task may be late at the least.
const LEAST: Span = Span::from_millis(1);

/// A worker that is kept free for a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) worker: WorkerId,
    pub(crate) task: TaskId,
    /// When the task should fit.
    pub(crate) from: Time,
    /// When that was thought.
    made: Time,
}

/// Something that occupies a worker, and when that should be over.
struct Held<'a> {
    end: Time,
    demand: &'a Demand,
    devices: Cow<'a, [usize]>,
}

/// The order between a worker's own queue and the central one; who waits in both has no say in it.
fn before(a: Place, b: Place) -> bool {
    (a.0, a.1, a.2, a.3) < (b.0, b.1, b.2, b.3)
}

impl Model {
    // ---- room, now and later ----

    /// What a worker holds, with the ends as they are expected at a moment.
    fn held<'a>(&'a self, worker: &'a Worker, moment: Time) -> Vec<Held<'a>> {
        // What should be over and is not needs as long again as it has taken.
        let end = |since: Time, planned: Span| {
            if since + planned > moment { since + planned } else { moment + moment.since(since) }
        };
        let running = worker.running.iter().map(|&id| self.task(id)).map(|task| Held {
            end: end(task.since, task.planned),
            demand: &task.spec.demand,
            devices: Cow::Borrowed(&task.devices),
        });
        let ghosts = worker.ghosts.iter().map(|ghost| Held {
            end: end(ghost.since, ghost.planned),
            demand: &ghost.demand,
            devices: Cow::Borrowed(&ghost.devices),
        });
        running.chain(ghosts).collect()
    }

    /// Whether a demand fits a worker beside what is still held at a moment: a slot, the sums, and devices.
    fn fits_beside(demand: &Demand, worker: &Worker, held: &[Held<'_>], moment: Time) -> bool {
        let still: Vec<&Held<'_>> = held.iter().filter(|held| held.end > moment).collect();
        let amount = |of: &Demand, what: ResourceId| of.amounts().iter().find(|e| e.0 == what).map_or(0, |e| e.1.0);
        let fits = |&(what, needs): &(ResourceId, filch_core::Amount)| {
            let used: u64 = still.iter().map(|held| amount(held.demand, what)).sum();
            used + needs.0 <= worker.spec.resources.get(what).0
        };
        let devices = still.iter().map(|held| (held.demand, &held.devices[..]));
        still.len() < worker.spec.slots as usize
            && demand.amounts().iter().all(fits)
            && Self::pick_devices(demand, worker, devices).is_some()
    }

    /// The first moment at which a demand should fit.
    fn fits_from(&self, demand: &Demand, worker: &Worker, held: &[Held<'_>]) -> Time {
        let mut moments: Vec<Time> = held.iter().map(|held| held.end).chain([self.now]).collect();
        moments.sort_unstable();
        let first = moments.into_iter().find(|&moment| Self::fits_beside(demand, worker, held, moment));
        first.expect("it fits when all the others have ended")
    }

    /// Whether there is room right now, whoever the worker is kept for.
    pub(crate) fn has_room(&self, spec: &TaskSpec, worker: &Worker) -> bool {
        worker.state == WorkerState::Up
            && worker.has_free_slot()
            && (spec.demand.amounts().is_empty()
                || Self::fits_beside(&spec.demand, worker, &self.held(worker, self.now), self.now))
    }

    /// The devices a demand would get now.
    pub(crate) fn devices_now(&self, demand: &Demand, worker: &Worker) -> Option<Vec<usize>> {
        let held = self.held(worker, self.now);
        Self::pick_devices(demand, worker, held.iter().map(|held| (held.demand, &held.devices[..])))
    }

    /// Whether something may use a worker right now: there is room, and the task the worker is kept for should still fit
    /// at its moment, as far as was known when that was set.
    pub(crate) fn fits_now(&self, head: Head, worker: &Worker) -> bool {
        let spec = self.head_spec(head);
        if !self.has_room(spec, worker) {
            return false;
        }
        let Some(kept) = self.kept_at(worker.id).filter(|kept| head != Head::Task(kept.task)) else { return true };
        let wide = &self.task(kept.task).spec.demand;
        let mut held = self.held(worker, kept.made);
        let end = self.now + self.planned(spec, worker);
        let devices = self.devices_now(&spec.demand, worker).expect("there is room").into();
        held.push(Held { end, demand: &spec.demand, devices });
        // Ending before its moment is enough, even if others have begun later than was thought.
        end <= kept.from || Self::fits_beside(wide, worker, &held, kept.from)
    }

    // ---- who is kept for whom ----

    pub(crate) fn kept_at(&self, worker: WorkerId) -> Option<Kept> {
        self.kept.iter().copied().find(|kept| kept.worker == worker)
    }

    /// Keeps a worker free for something that waits, if that has waited long enough and nobody else is kept for it.
    fn keep_for(&mut self, wide: Head, at: WorkerId) -> bool {
        let ready_at = match wide {
            Head::Task(id) => self.task(id).ready_at,
            Head::Rest(job) => self.rest(job).expect("the array is there").ready_at,
        };
        let has_one = self.kept.iter().any(|kept| wide == Head::Task(kept.task));
        if has_one || self.now.since(ready_at) < self.config.scheduling.reserve_after {
            return false;
        }
        let task = match wide {
            Head::Task(id) => id,
            Head::Rest(job) => {
                let id = self.materialise(job);
                self.task_mut(id).loose = true;
                self.put_central(id);
                self.notify(id, Status::Queued, Cause::None);
                id
            }
        };
        self.counts.reservations += 1;
        self.promise(task, at);
        true
    }

    /// The moment from which the task should fit; a while after it, if it still does not, there will be another.
    fn promise(&mut self, task: TaskId, at: WorkerId) {
        let worker = self.worker(at);
        let fits = self.fits_from(&self.task(task).spec.demand, worker, &self.held(worker, self.now));
        let from = fits.max(self.now + LEAST);
        let late = Span(from.since(self.now).0 / 16).max(LEAST);
        self.kept.retain(|kept| kept.worker != at);
        self.kept.push(Kept { worker: at, task, from, made: self.now });
        self.cancel_timer(Timer::Reserved(at));
        self.set_timer(from + late, Timer::Reserved(at));
    }

    pub(crate) fn reservation_due(&mut self, at: WorkerId) {
        let kept = self.kept_at(at).expect("its timer goes with it");
        if !self.has_room(&self.task(kept.task).spec, self.worker(at)) {
            self.counts.put_off += 1;
            self.promise(kept.task, at);
        }
        self.serve(at);
    }

    /// The task leaves its queue: whoever was kept for it gets other work when the step ends.
    pub(crate) fn let_go(&mut self, task: TaskId) {
        if let Some(kept) = self.kept.iter().copied().find(|kept| kept.task == task) {
            self.kept.retain(|kept| kept.task != task);
            self.cancel_timer(Timer::Reserved(kept.worker));
            self.released.push(kept.worker);
        }
    }

    /// The worker is kept for nobody any more.
    pub(crate) fn keep_no_longer(&mut self, at: WorkerId) {
        if let Some(kept) = self.kept_at(at) {
            self.let_go(kept.task);
        }
    }

    /// What one event leaves for the end of its step: elements follow others, and workers that were released are served.
    pub(crate) fn end_step(&mut self) {
        self.feed_hungry();
        while let Some(worker) = self.released.pop() {
            if self.knows(worker) {
                self.serve(worker);
                self.feed_hungry();
            }
        }
    }

    // ---- what a worker gets ----

    /// The task that a worker with a free slot gets next.
    pub(crate) fn choose_for(&mut self, at: WorkerId) -> Option<TaskId> {
        if let Some(kept) = self.kept_at(at)
            && self.has_room(&self.task(kept.task).spec, self.worker(at))
        {
            return Some(kept.task);
        }
        let mut next = self.next_for(at);
        if next.is_none() && self.may_steal(at) && self.steal_for(at) > 0 {
            next = self.next_for(at);
        }
        let next = next?;
        self.counts.let_past += u64::from(self.kept_at(at).is_some());
        Some(self.take(next))
    }

    /// What comes next; a wide one that would come before it gets its reservation first, and then it may be another.
    fn next_for(&mut self, at: WorkerId) -> Option<Head> {
        let (next, wide) = self.look(at);
        match wide {
            Some(wide) if self.keep_for(wide, at) => self.look(at).0,
            _ => next,
        }
    }

    /// The first that fits, and the first before it that the worker could run and has no room for.
    fn look(&self, at: WorkerId) -> (Option<Head>, Option<Head>) {
        let worker = self.worker(at);
        let queue: Vec<Head> = self.queue(at).into_iter().map(Head::Task).collect();
        let own = queue.iter().copied().take(64).find(|&head| self.fits_now(head, worker));
        // Central tasks of a lower level than its own are not looked at.
        let floor = own.map_or(u8::MAX, |own| self.head_place(own).0);
        let (central, wide) =
            if self.kept_at(at).is_none() { self.first_central(worker, floor) } else { self.backfill(worker, floor) };
        let earlier = |a: Option<Head>, b: Option<Head>| match (a, b) {
            (Some(a), Some(b)) => Some(if before(self.head_place(b), self.head_place(a)) { b } else { a }),
            (a, b) => a.or(b),
        };
        let next = earlier(own, central);
        if self.kept_at(at).is_some() {
            return (next, None);
        }
        let comes_before = |head: &Head, other: Option<Head>| {
            other.is_none_or(|other| before(self.head_place(*head), self.head_place(other)))
        };
        // Of its own queue only the very first counts.
        let own_wide = queue.first().copied().filter(|first| own != Some(*first) && comes_before(first, central));
        (next, earlier(own_wide, wide.filter(|wide| comes_before(wide, own))))
    }

    /// With nobody to be kept for: the first that has room, and the first before it that has not.
    fn first_central(&self, worker: &Worker, floor: u8) -> (Option<Head>, Option<Head>) {
        let mut wide = None;
        for head in self.central() {
            if self.head_place(head).0 <= floor && self.can_ever(self.head_spec(head), worker) {
                if self.has_room(self.head_spec(head), worker) {
                    return (Some(head), wide);
                }
                wide = wide.or(Some(head));
            }
        }
        (None, wide)
    }

    /// With somebody to be kept for: lane by lane the first that may pass. Tasks of a lane differ in their length.
    fn backfill(&self, worker: &Worker, floor: u8) -> (Option<Head>, Option<Head>) {
        let mut looks = 256;
        for lane in self.lanes() {
            let spec = self.head_spec(lane[0]);
            if self.head_place(lane[0]).0 > floor || !self.can_ever(spec, worker) || !self.has_room(spec, worker) {
                continue;
            }
            // Elements of an array are all alike.
            let is_task = |head: &&Head| matches!(head, Head::Task(_));
            let tasks = if is_task(&&lane[0]) { lane.iter().filter(is_task).count().min(looks) } else { 1 };
            looks -= if is_task(&&lane[0]) { tasks } else { 0 };
            if let Some(&head) = lane[..tasks].iter().find(|&&head| self.fits_now(head, worker)) {
                return (Some(head), None);
            }
        }
        (None, None)
    }

    /// What is handed out: an element of an array becomes a task.
    fn take(&mut self, head: Head) -> TaskId {
        match head {
            Head::Task(id) => id,
            Head::Rest(job) => {
                let id = self.materialise(job);
                self.notify(id, Status::Queued, Cause::None);
                id
            }
        }
    }
}
