//! Stealing between queues the scheduler owns, and rebalancing. The rules are in [`crate::steal`].

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::tasks::Task;
use super::{Flags, Scheduler, Slab, Worker};
use crate::action::{Action, Refusal};
use crate::config::{RebalanceBy, Take};
use crate::ids::WorkerId;
use crate::steal::{self, Choice, Haul, Kept, Loot, NEAR, Peer, Peers, StealOutcome};
use crate::task::{Cause, Status};
use crate::time::Span;
use crate::worker::WorkerState;

/// Idle workers looked at for one busy one, and busy ones in one cycle.
const LOOKS: usize = 64;

/// How many tasks of each busy worker a cycle has looked at already.
type Looks = SmallVec<[(u32, usize); 8]>;

/// The workers with something queued, as a thief sees them.
struct Loaded<'a> {
    workers: &'a Slab<Worker>,
    loaded: &'a [u32],
    by_depth: &'a BTreeSet<(u32, u32)>,
}

impl Loaded<'_> {
    fn peer(&self, slot: u32) -> Peer {
        let worker = &self.workers[slot];
        Peer {
            worker: WorkerId { slot, generation: worker.generation },
            depth: worker.queue.len() as u32,
            load: f64::from(worker.used_slots()) / f64::from(worker.slots),
        }
    }
}

impl Peers for Loaded<'_> {
    fn len(&self) -> usize {
        self.loaded.len()
    }
    fn get(&self, position: usize) -> Option<Peer> {
        // Who gets no work gives none either: what it has queued is about to be queued elsewhere, or pinned.
        let slot = *self.loaded.get(position)?;
        (self.workers[slot].state == WorkerState::Up).then(|| self.peer(slot))
    }
    fn longest(&self) -> impl Iterator<Item = Peer> {
        self.by_depth.iter().rev().map(|&(_, slot)| self.peer(slot))
    }
    fn shortest(&self, depth: u32) -> impl Iterator<Item = Peer> {
        self.by_depth.range((depth, 0)..).map(|&(_, slot)| self.peer(slot))
    }
}

pub(super) fn is_bound(task: &Task) -> bool {
    task.waits_centrally() || task.flags.has(Flags::PINNED)
}

impl Scheduler {
    pub(super) fn steal(&mut self, thief: WorkerId, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = self.worker_slot(thief)?;
        let before = self.counters.steal_attempts;
        self.steal_for(slot, actions);
        if self.counters.steal_attempts == before {
            // Nobody was worth asking; who asked for a steal by hand wants to see that too.
            self.count_steal(slot, None, StealOutcome::Rejection, 0, actions);
        }
        self.serve(slot, actions);
        Ok(())
    }

    /// Whether a worker that found nothing should look at others' queues.
    pub(super) fn may_steal(&self, thief: u32) -> bool {
        let worker = &self.workers[thief];
        let depth = worker.queue.len() as u32;
        self.push_bound()
            && !self.remote
            && self.config.load_balancing.strategy.pulls()
            && !self.loaded.is_empty()
            && depth < self.config.load_balancing.thresholds.idle_threshold
            && f64::from(depth) < self.config.stealing.steal_threshold * f64::from(worker.slots)
    }

    /// Takes tasks from other workers' queues into the thief's. How many. What the default policy or the configuration
    /// says of victims goes for all tasks but those whose own policy has a say.
    pub(super) fn steal_for(&mut self, thief: u32, actions: &mut Vec<Action>) -> usize {
        let mut taken = self.steal_by(0, thief, actions);
        for rule in 1..self.placements.len() {
            if taken == 0 && self.placements[rule].chooser.is_some() {
                taken = self.steal_by(rule, thief, actions);
            }
        }
        taken
    }

    /// The placement whose rule about victims goes for a task.
    fn rule_of(&self, slot: u32) -> usize {
        let at = self.placement_at(self.signatures[self.tasks.at(slot).signature].needs.task_type);
        if self.placements[at].chooser.is_some() { at } else { 0 }
    }

    fn steal_by(&mut self, rule: usize, thief: u32, actions: &mut Vec<Action>) -> usize {
        let thief_id = self.worker_id(thief);
        let mut tried: SmallVec<[WorkerId; 8]> = SmallVec::new();
        for _ in 0..self.config.stealing.max_retries.max(1) {
            let peers = Loaded { workers: &self.workers, loaded: &self.loaded, by_depth: &self.by_depth };
            let chooser = self.placements[rule].chooser.as_ref().unwrap_or(&self.chooser);
            let victim = match chooser.choose(&mut self.rng, &peers, thief_id, &tried) {
                Some(Choice::Victim(victim)) => victim,
                Some(Choice::Refused(peer)) => {
                    self.count_steal(thief, Some(peer.worker), StealOutcome::Rejection, 0, actions);
                    break;
                }
                None => break,
            };
            let stealing = &self.config.stealing;
            let source = &self.workers[victim.worker.slot];
            let haul =
                steal::haul(stealing.take, victim.depth, source.queued_work.span(), stealing.min_local_queue, NEAR);
            let taken = self.pick_loot(victim.worker.slot, thief, haul, Some(rule), &mut { steal::QUEUE_LOOKS });
            let outcome = if taken.is_empty() { StealOutcome::Rejection } else { StealOutcome::Success };
            self.count_steal(thief, Some(victim.worker), outcome, taken.len() as u32, actions);
            if !taken.is_empty() {
                for &slot in &taken {
                    self.move_queued(slot, thief, actions);
                }
                return taken.len();
            }
            tried.push(victim.worker);
        }
        0
    }

    fn count_steal(
        &mut self,
        thief: u32,
        victim: Option<WorkerId>,
        outcome: StealOutcome,
        tasks: u32,
        actions: &mut Vec<Action>,
    ) {
        let success = outcome == StealOutcome::Success;
        self.chooser.learn(success);
        self.counters.steal_attempts += 1;
        self.counters.steal_successes += u64::from(success);
        actions.push(Action::Stole { thief: self.worker_id(thief), victim, outcome, tasks });
    }

    /// The tasks of a victim's queue that a thief may take, newest or oldest first; only those a rule goes for, if one is
    /// given. `looks` falls by those looked at.
    fn pick_loot(&self, victim: u32, thief: u32, haul: Haul, rule: Option<usize>, looks: &mut usize) -> Vec<u32> {
        let source = &self.workers[victim];
        let queue = source.queue.movable().map(|key| (key.2, self.tasks.at(key.2).planned));
        let rule = rule.filter(|_| !self.placement_by_type.is_empty());
        let most = *looks;
        let check = |slot: u32| {
            *looks -= 1;
            if rule.is_some_and(|rule| self.rule_of(slot) != rule) {
                return Err(Kept::OtherRule);
            }
            self.may_take(slot, thief)
        };
        let mut taken = Vec::new();
        if self.config.load_balancing.work_stealing.prefer_recent_tasks {
            steal::pick(queue.rev().take(most), haul, check, &mut taken);
        } else {
            steal::pick(queue.take(most), haul, check, &mut taken);
        }
        taken
    }

    /// Whether a task may never be moved from one worker's queue to another's, whoever asks.
    pub(crate) fn stays(&self, slot: u32) -> bool {
        let task = self.tasks.at(slot);
        self.guard.keeps(task.priority, is_bound(task)).is_some()
    }

    /// Whether a worker may take a task that another one has.
    fn may_take(&self, slot: u32, thief: u32) -> Result<(), Kept> {
        let loot = self.loot(slot, thief);
        let victim = &self.workers[self.tasks.at(slot).worker];
        self.guard.check(&loot, victim.backlog_besides(loot.duration_at_victim))
    }

    /// A task that another worker has as a thief sees it.
    fn loot(&self, slot: u32, thief: u32) -> Loot {
        let task = self.tasks.at(slot);
        let class = &self.classes[self.workers[thief].class];
        Loot {
            priority: task.priority,
            bound: is_bound(task),
            thief_can_run: class.can_ever(&self.signatures[task.signature]).is_ok(),
            transfer: if task.flags.has(Flags::EXTRA) { self.warmth(slot, thief).0 } else { Span::ZERO },
            duration_at_thief: self.planned_for(slot, self.workers[thief].class),
            duration_at_victim: task.planned,
        }
    }

    pub(super) fn move_queued(&mut self, slot: u32, to: u32, actions: &mut Vec<Action>) {
        let from = self.tasks.at(slot).worker;
        self.leave_worker_queue(slot);
        self.put_at_worker(slot, to);
        self.count_move(slot, from, to, actions);
    }

    fn count_move(&mut self, slot: u32, from: u32, to: u32, actions: &mut Vec<Action>) {
        self.workers[from].lost += 1;
        self.workers[to].stolen += 1;
        self.counters.tasks_migrated += 1;
        actions.push(Action::Move { task: self.tasks.id(slot), from: self.worker_id(from), to: self.worker_id(to) });
        self.notify(slot, Status::Queued, Cause::Moved, actions);
    }

    /// Evens out queues if they are severely uneven, within the limit of one cycle.
    pub(super) fn rebalance(&mut self, actions: &mut Vec<Action>) {
        if self.remote || !self.is_uneven() {
            return;
        }
        self.counters.rebalance_cycles += 1;
        let limit = self.config.load_balancing.work_stealing.max_steal_per_cycle;
        let mut targets: SmallVec<[u32; 8]> = SmallVec::new();
        let mut looks = Looks::new();
        for _ in 0..limit {
            let Some(target) = self.rebalance_one(&mut looks, actions) else { break };
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        for target in targets {
            self.serve(target, actions);
        }
    }

    /// Whether the longest and the shortest queue differ so much that the scheduler steps in.
    pub(crate) fn is_uneven(&self) -> bool {
        let (Some(&(shortest, idle)), Some(&(longest, busy))) = (self.by_depth.first(), self.by_depth.last()) else {
            return false;
        };
        let thresholds = &self.config.load_balancing.thresholds;
        let ratio = thresholds.severe_imbalance_ratio;
        match thresholds.rebalance_by {
            RebalanceBy::Count => steal::severely_uneven(f64::from(longest), f64::from(shortest), 1.0, ratio),
            RebalanceBy::Backlog => {
                let unit = self.config.scheduling.default_estimate.as_secs_f64();
                let seconds = |slot: u32| self.workers[slot].backlog().as_secs_f64();
                steal::severely_uneven(seconds(busy), seconds(idle), unit, ratio)
            }
        }
    }

    /// Moves one task from a busy worker to an idle one that can run it. To whom. In one cycle no more than
    /// [`steal::CYCLE_LOOKS`] tasks of a busy worker are looked at, whoever they are looked at for.
    fn rebalance_one(&mut self, looks: &mut Looks, actions: &mut Vec<Action>) -> Option<u32> {
        let thresholds = &self.config.load_balancing.thresholds;
        let busy = self.by_depth.iter().rev().take_while(|entry| entry.0 > thresholds.busy_threshold);
        let busy: SmallVec<[u32; 8]> = busy.take(LOOKS).map(|entry| entry.1).collect();
        let idle = self.by_depth.iter().take_while(|entry| entry.0 < thresholds.idle_threshold);
        let idle: SmallVec<[u32; 8]> = idle.take(LOOKS).map(|entry| entry.1).collect();
        let by_backlog = thresholds.rebalance_by == RebalanceBy::Backlog;
        let one = steal::haul(Take::One, u32::MAX, Span::MAX, 0, NEAR);
        for &from in &busy {
            let noted = looks.iter().position(|entry| entry.0 == from).unwrap_or_else(|| {
                looks.push((from, steal::CYCLE_LOOKS));
                looks.len() - 1
            });
            let left = &mut looks[noted].1;
            for &to in &idle {
                if *left == 0 {
                    break;
                }
                if by_backlog && self.workers[to].backlog() >= self.workers[from].backlog() {
                    continue;
                }
                let before = *left;
                let found = self.pick_loot(from, to, one, None, left).first().copied();
                self.looked_at += (before - *left) as u64;
                if let Some(slot) = found {
                    self.move_queued(slot, to, actions);
                    return Some(to);
                }
                if self.config.load_balancing.work_stealing.allow_task_migration
                    && let Some(slot) = self.pick_running(from, to, left)
                {
                    self.abandon(slot, Cause::Moved, actions);
                    self.counters.queued += 1;
                    self.tasks.at_mut(slot).ready_at = self.now;
                    self.put_at_worker(slot, to);
                    self.count_move(slot, from, to, actions);
                    return Some(to);
                }
            }
        }
        None
    }

    /// A running task that may be stopped and started again on a worker with a free slot.
    fn pick_running(&self, from: u32, to: u32, looks: &mut usize) -> Option<u32> {
        if !self.workers[to].has_free_slot() || !self.workers[to].queue.is_empty() {
            return None;
        }
        let most = *looks;
        let may_move = |slot: &u32| {
            *looks -= 1;
            let idempotent = self.tasks.at(*slot).flags.has(Flags::IDEMPOTENT);
            idempotent && self.may_take(*slot, to).is_ok()
        };
        self.workers[from].running.iter().copied().take(most).find(may_move)
    }
}
