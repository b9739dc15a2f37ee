//! A scheduler with workers and a queue that stays as long as it is, and the cycle that is measured.
//!
//! One cycle submits a task, assigns one, starts it and finishes one, each by its own `step`. Every slot is in use: the
//! cycle ends a task on a slot chosen at random, which then asks for its next. So neither the worker nor the task it
//! ends are in a cache because they were just used.

use std::hint::black_box;

use anyhow::{Result, bail};
use filch_core::{Action, Event, Rng, Scheduler, Span, TaskId, Time, WorkerId};

use crate::clock;
use crate::mix::Mix;

/// Virtual time between two cycles: a scheduler that handles 100,000 tasks a second. Tasks take as long as it takes
/// until the cycles come round to their slot: with four slots each 0.4 ms at 10 workers, 40 ms at 1000, 4 s at 100,000.
const PACE: Span = Span::from_micros(10);

/// Elements of the arrays that keep the queue of `array` as long as it is.
const ARRAY: u32 = 1000;

/// Slots asked before a cycle gives up finding one that gets a task.
const ASKS: usize = 32;

/// Who watches the steps.
pub trait Watch {
    /// Runs one step.
    fn step(&mut self, scheduler: &mut Scheduler, now: Time, event: Event, actions: &mut Vec<Action>);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    #[inline]
    fn step(&mut self, scheduler: &mut Scheduler, now: Time, event: Event, actions: &mut Vec<Action>) {
        scheduler.step(now, event, actions);
    }
}

/// Remembers the slowest step. Watches one run without a break: a step is taken to begin where the last one ended,
/// since asking for the time of a thread costs as much as a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slowest {
    /// How long it took.
    pub ns: u64,
    /// The event it handled.
    pub event: &'static str,
    /// When the last step ended.
    last: Option<u64>,
}

impl Watch for Slowest {
    fn step(&mut self, scheduler: &mut Scheduler, now: Time, event: Event, actions: &mut Vec<Action>) {
        let name = match event {
            Event::Submit(_) => "submit",
            Event::SubmitArray { .. } => "array",
            Event::Pull { .. } => "pull",
            Event::Start { .. } => "start",
            Event::Finish { .. } => "finish",
            _ => "other",
        };
        let start = self.last.unwrap_or_else(clock::thread_ns);
        scheduler.step(now, event, actions);
        let end = clock::thread_ns();
        self.last = Some(end);
        if end - start > self.ns {
            (self.ns, self.event) = (end - start, name);
        }
    }
}

/// A slot of a worker that runs something.
#[derive(Clone, Copy, Debug)]
struct Held {
    worker: WorkerId,
    task: TaskId,
    attempt: u32,
}

/// A scheduler at work.
pub struct World {
    mix: Mix,
    scheduler: Scheduler,
    now: Time,
    rng: Rng,
    actions: Vec<Action>,
    workers: u64,
    /// Tasks that should be queued between two cycles.
    queued: u64,
    submitted: u64,
    held: Vec<Held>,
    /// Which of them the next cycle ends.
    next: usize,
    /// Those who ask.
    askers: Vec<WorkerId>,
    /// Slots that found nothing to do, by their worker.
    free: Vec<u32>,
}

impl World {
    /// Registers the workers; nothing is queued yet.
    ///
    /// # Errors
    /// If the scheduler refuses what it should not.
    pub fn new(mix: Mix, workers: u64, queued: u64) -> Result<World> {
        let mut world = World {
            mix,
            scheduler: Scheduler::new(&mix.config())?,
            now: Time::ZERO,
            rng: Rng::new(1),
            actions: Vec::new(),
            workers,
            queued,
            submitted: 0,
            held: Vec::new(),
            next: 0,
            askers: Vec::new(),
            free: Vec::new(),
        };
        // All that the driver needs, so that nothing of it is counted as the scheduler's later.
        world.held.reserve((workers * u64::from(mix.slots())) as usize);
        world.askers.reserve(workers as usize);
        world.free.resize(workers as usize, 0);
        for number in 0..workers {
            // Those who steal come later, to a queue that others have.
            if mix != Mix::Steal || mix.never_asks(number) {
                world.join(number)?;
            }
        }
        Ok(world)
    }

    fn join(&mut self, number: u64) -> Result<()> {
        self.step(Event::Join(self.mix.worker(number)), &mut Unwatched);
        let Some(&Action::Joined { worker, .. }) = self.actions.first() else {
            bail!("worker {number} could not join: {:?}", self.scheduler.take_refusal())
        };
        if !self.mix.never_asks(number) {
            self.askers.push(worker);
            self.free[worker.index()] = self.mix.slots();
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self, event: Event, watch: &mut impl Watch) {
        self.actions.clear();
        watch.step(&mut self.scheduler, self.now, event, &mut self.actions);
    }

    #[inline]
    fn submit(&mut self, watch: &mut impl Watch) {
        let spec = self.mix.task(self.submitted);
        self.submitted += 1;
        self.step(Event::Submit(Box::new(spec)), watch);
    }

    fn submit_array(&mut self, count: u32, watch: &mut impl Watch) {
        let template = Box::new(self.mix.task(self.submitted));
        self.submitted += u64::from(count);
        self.step(Event::SubmitArray { template, count }, watch);
    }

    /// Queues as many tasks as the world should have, one by one, at the pace at which they come later.
    ///
    /// # Errors
    /// If not all of them were accepted.
    pub fn fill(&mut self, watch: &mut impl Watch) -> Result<()> {
        if self.mix.is_sparse() {
            return Ok(());
        }
        if self.mix == Mix::Array {
            self.submit_array(u32::try_from(self.queued)?, watch);
        } else {
            for _ in 0..self.queued {
                self.now = self.now + PACE;
                self.submit(watch);
            }
        }
        if self.scheduler.queued() != self.queued {
            bail!("{} tasks are queued instead of {}", self.scheduler.queued(), self.queued);
        }
        Ok(())
    }

    /// Puts the slots to work, and brings the queue to its length again.
    ///
    /// # Errors
    /// If a slot gets nothing although it should.
    pub fn start(&mut self) -> Result<()> {
        if self.mix == Mix::Steal {
            for number in 0..self.workers {
                if !self.mix.never_asks(number) {
                    self.join(number)?;
                }
            }
        }
        let slots: Vec<WorkerId> =
            self.askers.iter().flat_map(|&worker| (0..self.mix.slots()).map(move |_| worker)).collect();
        if self.mix.is_sparse() {
            for &worker in &slots {
                self.step(Event::Pull { worker, wait: true }, &mut Unwatched);
            }
            for _ in 0..slots.len() / 2 {
                self.place_one(&mut Unwatched)?;
            }
            return Ok(());
        }
        for worker in slots {
            self.now = self.now + PACE;
            if self.mix == Mix::Array {
                if self.scheduler.queued() <= self.queued {
                    self.submit_array(ARRAY, &mut Unwatched);
                }
            } else if self.scheduler.queued() <= self.queued {
                self.submit(&mut Unwatched);
            }
            if let Some(held) = self.pull(worker, &mut Unwatched) {
                self.free[worker.index()] -= 1;
                self.held.push(held);
            }
        }
        if self.held.is_empty() {
            bail!("nobody got anything from a queue of {}", self.scheduler.queued());
        }
        Ok(())
    }

    /// Runs cycles.
    ///
    /// # Errors
    /// If a cycle finds nobody to run a task.
    pub fn run(&mut self, cycles: u64, watch: &mut impl Watch) -> Result<()> {
        for _ in 0..cycles {
            self.now = self.now + PACE;
            if self.mix.is_sparse() {
                self.place_one(watch)?;
                let worker = self.finish_one(watch)?;
                self.step(Event::Pull { worker, wait: true }, watch);
                continue;
            }
            let worker = self.finish_one(watch)?;
            let held = self.next(worker, watch)?;
            self.held.push(held);
            if self.mix != Mix::Array {
                self.submit(watch);
            } else if self.scheduler.queued() + u64::from(ARRAY) <= self.queued {
                self.submit_array(ARRAY, watch);
            }
        }
        Ok(())
    }

    /// Ends a task on a slot chosen at random. Whose slot it is.
    ///
    /// The slot was chosen a cycle before, and its line of this list read then: what is measured is how long the scheduler
    /// waits for memory, not how long this list does.
    #[inline]
    fn finish_one(&mut self, watch: &mut impl Watch) -> Result<WorkerId> {
        let slots = self.held.len();
        if slots == 0 {
            bail!("nothing runs");
        }
        let at = if self.next < slots { self.next } else { self.rng.below(slots) };
        let Held { worker, task, attempt } = self.held.swap_remove(at);
        // By the next cycle there will be as many again.
        self.next = self.rng.below(slots);
        black_box(self.held.get(self.next).map(|held| held.attempt));
        self.step(Event::Finish { task, attempt }, watch);
        Ok(worker)
    }

    /// The next task for a slot, started; or for another if there is none for it.
    #[inline]
    fn next(&mut self, worker: WorkerId, watch: &mut impl Watch) -> Result<Held> {
        if let Some(held) = self.pull(worker, watch) {
            return Ok(held);
        }
        self.free[worker.index()] += 1;
        for _ in 0..ASKS {
            let other = self.askers[self.rng.below(self.askers.len())];
            if self.free[other.index()] > 0
                && let Some(held) = self.pull(other, watch)
            {
                self.free[other.index()] -= 1;
                return Ok(held);
            }
        }
        bail!("{} tasks are queued and nobody gets one", self.scheduler.queued())
    }

    #[inline]
    fn pull(&mut self, worker: WorkerId, watch: &mut impl Watch) -> Option<Held> {
        self.step(Event::Pull { worker, wait: false }, watch);
        let held = self.assigned()?;
        self.step(Event::Start { task: held.task, attempt: held.attempt }, watch);
        Some(held)
    }

    /// Submits a task that a waiting worker gets at once.
    #[inline]
    fn place_one(&mut self, watch: &mut impl Watch) -> Result<()> {
        self.submit(watch);
        let Some(held) = self.assigned() else { bail!("a task was queued although workers wait") };
        self.step(Event::Start { task: held.task, attempt: held.attempt }, watch);
        self.held.push(held);
        Ok(())
    }

    #[inline]
    fn assigned(&self) -> Option<Held> {
        self.actions.iter().find_map(|action| match *action {
            Action::Assign { worker, task, attempt, .. } => Some(Held { worker, task, attempt }),
            _ => None,
        })
    }

    /// What the scheduler counted.
    #[must_use]
    pub fn metrics(&self) -> filch_core::Metrics {
        self.scheduler.metrics()
    }

    /// Slots in use, all workers together.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.held.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    /// A world after some cycles.
    fn after(mix: Mix, cycles: u64) -> World {
        let mut world = World::new(mix, 10, 5000).unwrap();
        world.fill(&mut Slowest::default()).unwrap();
        world.start().unwrap();
        world.run(cycles, &mut Unwatched).unwrap();
        world
    }

    #[test]
    fn every_cycle_submits_one_and_finishes_one() {
        for &mix in Mix::value_variants() {
            let (before, after) = (after(mix, 1000).metrics(), after(mix, 3000).metrics());
            assert_eq!(after.completed - before.completed, 2000, "{mix:?}");
            assert_eq!(after.submitted - before.submitted, 2000, "{mix:?}");
            assert_eq!((after.failed, after.reservations), (0, 0), "{mix:?}");
            let queued = if mix.is_sparse() { 0 } else { 5000 };
            assert!(after.total_queued.abs_diff(queued) <= u64::from(ARRAY), "{mix:?}: {}", after.total_queued);
        }
    }

    #[test]
    fn every_slot_that_asks_is_in_use() {
        for (mix, running) in [(Mix::Homogeneous, 40), (Mix::Steal, 20), (Mix::Sparse, 20), (Mix::OwnBoth, 10)] {
            assert_eq!(after(mix, 100).running(), running, "{mix:?}");
        }
    }

    #[test]
    fn more_workers_than_queued_tasks_are_no_problem() {
        for &mix in Mix::value_variants() {
            let queued = match mix {
                // Enough for what must stand at the head of the queue, and for one array.
                Mix::Blocked => 4100,
                Mix::Array => 1500,
                _ => 300,
            };
            if !mix.stays(2000, queued) {
                continue;
            }
            let mut world = World::new(mix, 2000, queued).unwrap();
            world.fill(&mut Unwatched).unwrap();
            world.start().unwrap();
            world.run(3000, &mut Unwatched).unwrap_or_else(|error| panic!("{mix:?}: {error}"));
        }
    }

    #[test]
    fn the_mix_that_steals_does() {
        let metrics = after(Mix::Steal, 3000).metrics();
        assert!(metrics.tasks_migrated > 500, "{metrics:?}");
        assert_eq!(after(Mix::Homogeneous, 3000).metrics().tasks_migrated, 0);
    }
}
