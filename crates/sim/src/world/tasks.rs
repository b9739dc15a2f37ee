//! Tasks in the world: they arrive, run as long as they take, and end.

use std::hint::black_box;

use filch_core::wire::Order;
use filch_core::worker;
use filch_core::{Cause, End, Held, Span, Status, Time};
use smallvec::SmallVec;

use super::{Fate, Happening, Running, World};
use crate::marks::Mark;
use crate::workload::NONE;

impl World {
    /// The workload begins to arrive.
    pub(super) fn open(&mut self) {
        if self.opened == Time::NEVER {
            self.opened = self.now;
            self.set_next_arrival();
        }
    }

    /// Hands in everything that arrives now. Tasks with parents go in together with those they wait for.
    pub(super) fn arrive(&mut self) {
        let start = self.next_arrival;
        let mut end = start;
        let mut linked = false;
        while let Some(task) = self.workload.tasks.get(end as usize)
            && (self.opened + Span(task.at.0) <= self.now || task.spawned_by != NONE)
        {
            linked |= task.parents.1 > 0 && task.spawned_by == NONE;
            end += 1;
        }
        self.next_arrival = end;
        let arriving = (start..end).filter(|at| self.workload.tasks[*at as usize].spawned_by == NONE);
        let arriving: SmallVec<[u32; 8]> = arriving.collect();
        if linked {
            self.submit(&arriving);
        } else {
            for index in arriving {
                self.submit(&[index]);
            }
        }
        self.set_next_arrival();
    }

    pub(super) fn arrived(&mut self, index: u32) {
        self.counts.submitted += 1;
        self.fates[index as usize].arrived = self.now;
        let spawner = self.workload.tasks[index as usize].spawned_by;
        let node = if spawner == NONE { NONE } else { self.fates[spawner as usize].node };
        self.mark(|| if node == NONE { Mark::Submitted { task: index } } else { Mark::Spawned { task: index, node } });
        if let Some(after) = self.workload.cancelled_after(index) {
            self.calendar.push(self.now + after, Happening::Cancel(index));
        }
    }

    /// A task is not taken in, and what it would have spawned does not exist.
    pub(super) fn refuse(&mut self, index: u32) {
        self.counts.refused += 1;
        self.fates[index as usize].status = Some(Status::Failed);
        self.forget_unspawned(index);
    }

    /// What a running task spawns has reached the coordinator.
    pub(super) fn submit_spawned(&mut self, index: u32) {
        if self.is_unspawned(index) {
            self.submit(&[index]);
        }
    }

    /// Whether a task may still be spawned. Its key is known if an earlier attempt of its spawner has submitted it; and once its
    /// spawner was settled without having ended well, nothing is added to that any more.
    fn is_unspawned(&self, index: u32) -> bool {
        let Fate { arrived, status, .. } = self.fates[index as usize];
        arrived == Time::NEVER && status.is_none()
    }

    /// A run will spawn what no earlier attempt has, in proportion as fast as it goes.
    fn expect_spawns(&mut self, run: u32, index: u32, pace: f64) {
        let Running { takes, generation, .. } = self.runs[run as usize];
        for child in self.children.of(index) {
            if self.is_unspawned(child) {
                let after = Span(self.workload.tasks[child as usize].at.0);
                let after = if pace == 1.0 { after } else { after.mul_f64(pace) };
                // Before its end, which is put in later and so comes later.
                self.calendar.push(self.now + after.min(takes), Happening::Spawn { child, run, generation });
            }
        }
    }

    /// A run spawns a task, unless it was stopped or its worker has died.
    pub(super) fn spawn(&mut self, child: u32, run: u32, generation: u32) {
        let Running { live, generation: current, node, stopping, .. } = self.runs[run as usize];
        if !live || current != generation || stopping.is_some() {
            return;
        }
        let found = &mut self.nodes[node as usize];
        if found.paused_until > self.now {
            found.missed.push(Happening::Spawn { child, run, generation });
            return;
        }
        let latency = self.setting.network.delay(&mut self.rng);
        self.calendar.push(self.now + latency, Happening::Spawned(child));
    }

    // ---- running ----

    /// A worker runs a task. It ends after the time it truly takes there.
    pub(super) fn begin(&mut self, node: u32, order: &Order) {
        let index = order.payload as u32;
        let Held { task, attempt, .. } = order.held;
        let class = self.nodes[node as usize].class as usize;
        let name = &self.setting.cluster[class].name;
        // Only workers that can run it are given it.
        let takes = self.workload.duration(index, name).unwrap_or(Span::ZERO);
        let takes = takes - self.saved(node, index);
        let speed = self.setting.cluster[class].speed;
        let slowness = self.nodes[node as usize].slowness;
        let pace = slowness / speed;
        let takes = if pace == 1.0 { takes } else { takes.mul_f64(pace) };
        self.counts.runs += 1;
        self.note(4, u64::from(index) << 32 | u64::from(node));
        let run = match self.free_runs.pop() {
            Some(run) => run,
            None => {
                self.runs.push(Running::UNUSED);
                self.runs.len() as u32 - 1
            }
        };
        let generation = self.runs[run as usize].generation;
        let fetch = self.workload.input > 0.0 && self.flows.is_some();
        let alone = if fetch { Span::ZERO } else { self.fetch_alone() };
        let (since, until) = (self.now, if fetch { Time::NEVER } else { self.now + alone + takes });
        self.runs[run as usize] = Running {
            node,
            task,
            attempt,
            index,
            generation,
            since,
            until,
            live: true,
            executes: false,
            stopping: None,
            flow: NONE,
            takes,
        };
        self.nodes[node as usize].runs.push(run);
        let fate = &mut self.fates[index as usize];
        fate.runs = fate.runs.saturating_add(1);
        fate.node = node;
        if fate.runs == 1 {
            fate.begun = self.now;
        }
        self.expect_spawns(run, index, pace);
        if fetch {
            self.fetch(run);
        } else {
            self.calendar.push(until, Happening::RunEnds { node, run, generation });
        }
        let queued = self.nodes[node as usize].machine.depth();
        self.mark(|| Mark::Began { task: index, node, queued });
        if let Some(watch) = &mut self.watch {
            watch.may_begin(&self.workload, &self.fates, order, node, &self.nodes[node as usize].spec);
            let (pin, id) = (self.pins.get(&index).copied().flatten(), self.nodes[node as usize].machine.id());
            if pin.is_some() && pin != id {
                watch.says(format!("{} began on worker {node}, and is pinned to another", self.workload.label(index)));
            }
        }
        self.execute(run);
    }

    /// What a task saves on a worker that still has things it uses.
    fn saved(&mut self, node: u32, index: u32) -> Span {
        let Some(cache) = self.caches.get_mut(node as usize) else { return Span::ZERO };
        let warmth = &self.workload.warmth;
        let there = cache.take(self.lines[node as usize].life, warmth.of(index), warmth.kept);
        Span(warmth.saved.0.saturating_mul(there))
    }

    /// A run really executes from now on.
    pub(super) fn execute(&mut self, run: u32) {
        let running = &mut self.runs[run as usize];
        if std::mem::replace(&mut running.executes, true) {
            return;
        }
        if let Some(watch) = &mut self.watch {
            let node = running.node;
            watch.begins(&self.workload, running.index, node, &self.nodes[node as usize].spec);
        }
    }

    /// A run does not execute any more.
    pub(super) fn halt(&mut self, run: u32) {
        let running = &mut self.runs[run as usize];
        if std::mem::replace(&mut running.executes, false)
            && let Some(watch) = &mut self.watch
        {
            watch.ends(&self.workload, running.index, running.node);
        }
    }

    /// A worker is told to stop a run: it ends at once.
    pub(super) fn stop(&mut self, node: u32, held: Held, cause: Cause) {
        let found = self.nodes[node as usize].runs.iter().find(|run| {
            let run = &self.runs[**run as usize];
            run.task == held.task && run.attempt == held.attempt
        });
        if let Some(&run) = found {
            self.halt(run);
            self.runs[run as usize].stopping = Some(cause);
            let generation = self.runs[run as usize].generation;
            self.calendar.push(self.now, Happening::RunEnds { node, run, generation });
        }
    }

    /// Takes a run off its worker; what it was.
    fn end_run(&mut self, run: u32) -> Running {
        self.halt(run);
        self.stop_fetching(run);
        let ended = self.runs[run as usize];
        self.runs[run as usize] = Running { live: false, generation: ended.generation.wrapping_add(1), ..ended };
        self.free_runs.push(run);
        let node = &mut self.nodes[ended.node as usize];
        if let Some(at) = node.runs.iter().position(|known| *known == run) {
            node.runs.swap_remove(at);
        }
        node.busy += self.now.since(ended.since);
        ended
    }

    pub(super) fn run_ends(&mut self, node: u32, run: u32, generation: u32) {
        // Both come from memory together, since neither has to be read to find the other.
        let (running, found) = (self.runs[run as usize], &mut self.nodes[node as usize]);
        let paused = black_box(found.paused_until > self.now);
        if !running.live || running.generation != generation {
            return;
        }
        if paused {
            found.missed.push(Happening::RunEnds { node, run, generation });
            return;
        }
        let paused_since = found.paused_at >= running.since;
        let Running { node, task, attempt, index, stopping, .. } = self.end_run(run);
        let fails = self.workload.shape_of(index).fails;
        let end = match stopping {
            Some(Cause::TimedOut) => End::TimedOut,
            Some(_) => End::GivenBack,
            None if fails > 0.0 && self.rng.unit() < fails => End::Failed { retry: true },
            None => End::Done,
        };
        self.fates[index as usize].finished |= end == End::Done;
        if let Some(watch) = &mut self.watch {
            // Who stands still does not look at the clock meanwhile.
            let ran = if paused_since { Span::ZERO } else { self.now.since(running.since) };
            watch.attempt_ended(&self.workload, index, end, ran);
        }
        self.note(5, u64::from(index));
        self.mark(|| Mark::Ended { task: index, node, failed: end != End::Done });
        self.count_step(6, u64::from(node));
        self.input(node, worker::Input::Ended { task, attempt, end });
    }

    /// Everything a worker ran has gone with it.
    pub(super) fn drop_runs(&mut self, node: u32) {
        for run in self.nodes[node as usize].runs.clone() {
            let ended = self.end_run(run);
            self.mark(|| Mark::Lost { task: ended.index, node });
        }
    }

    /// The outcome of a task is durable.
    pub(super) fn settle(&mut self, index: u32, status: Status, cause: Cause) {
        let fate = &mut self.fates[index as usize];
        if let Some(watch) = &mut self.watch {
            let label = self.workload.label(index);
            if let Some(before) = fate.status {
                watch.says(format!("{label} was settled as {} and again as {}", before.name(), status.name()));
            }
            if status == Status::Completed && !fate.finished {
                watch.says(format!("{label} is said to be completed, and no run of it came to its end"));
            }
            watch.may_end_so(&self.workload, index, status, cause);
        }
        fate.status = Some(status);
        fate.ended = self.now;
        self.settled += 1;
        self.last_end = self.now;
        if cause == Cause::NoWorker {
            self.hopeless += 1;
            self.first_hopeless.get_or_insert(index);
        }
        self.note(7, u64::from(index) << 8 | status as u64);
        self.mark(|| Mark::Settled { task: index, status, cause });
        if status != Status::Completed {
            self.forget_unspawned(index);
        }
    }

    /// No attempt of a task is left: what none of them has spawned does not exist.
    fn forget_unspawned(&mut self, index: u32) {
        for child in self.children.of(index) {
            if self.is_unspawned(child) {
                self.refuse(child);
            }
        }
    }
}
