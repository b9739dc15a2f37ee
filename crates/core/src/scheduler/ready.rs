//! The central queue: levels, in each the jobs by the work they have received, in each job a lane per signature.
//!
//! A worker that asks looks at lanes, not at tasks: all tasks of a lane ask alike, so if the first does not fit, none
//! does. Never knows workers; whether a lane fits is the caller's answer.

use std::collections::BTreeSet;

use super::line::Line;
use super::tasks::OrderKey;
use crate::map::Map;

/// Levels of the queue, 1 to 5.
pub(crate) const LEVELS: usize = 5;

/// Lanes looked at before a search is cut off.
pub(crate) const LANE_LOOKS: usize = 4096;

/// What is first in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A task, by slot.
    Task(u32),
    /// The next element of the job's array.
    Element,
}

/// Tasks of one job and level that ask alike.
#[derive(Debug, Default)]
struct Lane {
    tasks: Line,
    array: Option<OrderKey>,
}

impl Lane {
    fn head(&self) -> Option<(OrderKey, Head)> {
        match (self.tasks.first(), self.array) {
            (Some((order, slot)), Some(array)) if order <= array => Some((order, Head::Task(slot))),
            (_, Some(array)) => Some((array, Head::Element)),
            (Some((order, slot)), None) => Some((order, Head::Task(slot))),
            (None, None) => None,
        }
    }
}

/// The lanes of one job in one level.
#[derive(Debug, Default)]
struct JobLanes {
    lanes: Map<u32, Lane>,
    /// Lanes by what is first in them.
    order: BTreeSet<(OrderKey, u32)>,
    /// The job's key among the jobs of the level.
    received: u64,
}

#[derive(Debug, Default)]
struct Level {
    jobs: Map<u32, JobLanes>,
    /// Jobs by the work they have received; the least served first.
    turns: BTreeSet<(u64, u32)>,
}

/// Where something was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) level: u8,
    pub(crate) job: u32,
    pub(crate) signature: u32,
    pub(crate) order: OrderKey,
}

/// Where a search that looked at too many lanes goes on next time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    level: u8,
    turn: (u64, u32),
    lane: (OrderKey, u32),
}

/// What a search came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    pub(crate) found: Option<Found>,
    /// Set if there were more lanes than one search may look at.
    pub(crate) cut_off: Option<Cursor>,
}

/// The central queue.
#[derive(Debug)]
pub(crate) struct Ready {
    levels: [Level; LEVELS],
    /// Jobs take turns by the work they have received; otherwise by who came first.
    fair: bool,
}

impl Ready {
    pub(crate) fn new(fair: bool) -> Ready {
        Ready { levels: Default::default(), fair }
    }

    fn level(&mut self, level: u8) -> &mut Level {
        &mut self.levels[usize::from(level) - 1]
    }

    /// The work received by the least served job of a level; a job that comes back starts there at the least.
    pub(crate) fn floor(&self, level: u8) -> u64 {
        self.levels[usize::from(level) - 1].turns.first().map_or(0, |turn| turn.0)
    }

    /// Changes a lane and keeps the orders above it right.
    fn edit(&mut self, level: u8, job: u32, signature: u32, received: u64, edit: impl FnOnce(&mut Lane)) {
        let fair = self.fair;
        let level = self.level(level);
        let lanes = match level.jobs.entry(job) {
            hashbrown::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hashbrown::hash_map::Entry::Vacant(entry) => {
                level.turns.insert((received, job));
                entry.insert(JobLanes { received, ..JobLanes::default() })
            }
        };
        let lane = lanes.lanes.entry(signature).or_default();
        let before = lane.head().map(|head| head.0);
        edit(lane);
        let after = lane.head().map(|head| head.0);
        if before == after {
            return;
        }
        if let Some(order) = before {
            lanes.order.remove(&(order, signature));
        }
        match after {
            Some(order) => {
                lanes.order.insert((order, signature));
            }
            None => {
                lanes.lanes.remove(&signature);
                if lanes.lanes.is_empty() {
                    let received = lanes.received;
                    level.turns.remove(&(received, job));
                    level.jobs.remove(&job);
                    return;
                }
            }
        }
        if !fair && let Some(first) = lanes.order.first().map(|&((_, _, sequence), _)| sequence) {
            level.turns.remove(&(lanes.received, job));
            level.turns.insert((first, job));
            lanes.received = first;
        }
    }

    pub(crate) fn push(&mut self, level: u8, job: u32, signature: u32, received: u64, order: OrderKey, slot: u32) {
        self.edit(level, job, signature, received, |lane| {
            lane.tasks.insert((order, slot));
        });
    }

    pub(crate) fn remove(&mut self, level: u8, job: u32, signature: u32, order: OrderKey, slot: u32) {
        self.edit(level, job, signature, 0, |lane| {
            let removed = lane.tasks.remove((order, slot));
            debug_assert!(removed, "a central task is found in its lane");
        });
    }

    pub(crate) fn set_array(&mut self, level: u8, job: u32, signature: u32, received: u64, order: Option<OrderKey>) {
        self.edit(level, job, signature, received, |lane| lane.array = order);
    }

    /// The job has received work: its turn comes later in every level where others wait too. Where it is alone its
    /// key may fall behind; `only_job` and `refresh` mend that before somebody else joins.
    pub(crate) fn charge(&mut self, job: u32, received: u64) {
        self.rekey(job, received, 2);
    }

    /// Brings a job's key up to date in every level.
    pub(crate) fn refresh(&mut self, job: u32, received: u64) {
        self.rekey(job, received, 1);
    }

    fn rekey(&mut self, job: u32, received: u64, least_turns: usize) {
        if !self.fair {
            return;
        }
        for level in &mut self.levels {
            if level.turns.len() >= least_turns
                && let Some(lanes) = level.jobs.get_mut(&job)
                && lanes.received != received
            {
                level.turns.remove(&(lanes.received, job));
                level.turns.insert((received, job));
                lanes.received = received;
            }
        }
    }

    /// The only job waiting in a level, if there is just one.
    pub(crate) fn only_job(&self, level: u8) -> Option<u32> {
        let turns = &self.levels[usize::from(level) - 1].turns;
        if turns.len() == 1 { turns.first().map(|turn| turn.1) } else { None }
    }

    /// The first lane, in the order of levels, turns and heads, that `fits`: from `start` on, if a search was cut off
    /// there, and not below `floor_level`.
    pub(crate) fn find(&self, floor_level: u8, start: Option<&Cursor>, mut fits: impl FnMut(&Found) -> bool) -> Search {
        let mut looks = 0;
        let top = start.map_or(LEVELS as u8, |cursor| cursor.level);
        for level in (floor_level.max(1)..=top).rev() {
            let queue = &self.levels[usize::from(level) - 1];
            if queue.turns.is_empty() {
                continue;
            }
            let resumed = start.filter(|cursor| cursor.level == level);
            let first_turn = resumed.map_or((0, 0), |cursor| cursor.turn);
            for &(received, job) in queue.turns.range(first_turn..) {
                let lanes = &queue.jobs[&job];
                let resumed = resumed.filter(|cursor| cursor.turn == (received, job));
                let first_lane = resumed.map_or(((0, 0, 0), 0), |cursor| cursor.lane);
                for &(order, signature) in lanes.order.range(first_lane..) {
                    if looks == LANE_LOOKS {
                        let cursor = Cursor { level, turn: (received, job), lane: (order, signature) };
                        return Search { found: None, cut_off: Some(cursor) };
                    }
                    looks += 1;
                    let found = Found { level, job, signature, order };
                    if fits(&found) {
                        return Search { found: Some(found), cut_off: None };
                    }
                }
            }
        }
        Search { found: None, cut_off: None }
    }

    /// What is first in the lane that was found.
    pub(crate) fn head(&self, found: &Found) -> Option<Head> {
        let lanes = self.levels[usize::from(found.level) - 1].jobs.get(&found.job)?;
        lanes.lanes.get(&found.signature)?.head().map(|head| head.1)
    }

    /// Every lane's tasks, for checks: level, job, signature, order and slot.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (u8, u32, u32, OrderKey, u32)> + '_ {
        self.levels.iter().zip(1u8..).flat_map(|(queue, level)| {
            queue.jobs.iter().flat_map(move |(&job, lanes)| {
                lanes.lanes.iter().flat_map(move |(&signature, lane)| {
                    lane.tasks.iter().map(move |(order, slot)| (level, job, signature, order, slot))
                })
            })
        })
    }

    /// Tasks in higher levels, and of the same job before a place in its level, for explanations; counting stops at
    /// `most`.
    pub(crate) fn ahead_of(&self, level: u8, job: u32, order: OrderKey, most: u64) -> u64 {
        let mut ahead = 0;
        for queue in &self.levels[usize::from(level)..] {
            let lanes = queue.turns.iter().flat_map(|turn| queue.jobs[&turn.1].lanes.values());
            for lane in lanes.take(most as usize) {
                ahead += lane.tasks.len() as u64 + u64::from(lane.array.is_some());
            }
        }
        let own = self.levels[usize::from(level) - 1].jobs.get(&job);
        for lane in own.into_iter().flat_map(|lanes| lanes.lanes.values()).take(most as usize) {
            ahead += lane.tasks.before(order, most as usize) as u64;
        }
        ahead.min(most)
    }

    /// Whether the orders agree with the lanes, for checks.
    pub(crate) fn verify(&self) -> Result<(), String> {
        for (queue, level) in self.levels.iter().zip(1u8..) {
            if queue.turns.len() != queue.jobs.len() {
                return Err(format!("level {level}: {} turns for {} jobs", queue.turns.len(), queue.jobs.len()));
            }
            for &(received, job) in &queue.turns {
                let Some(lanes) = queue.jobs.get(&job) else { return Err(format!("level {level}: no job {job}")) };
                if lanes.received != received || lanes.order.len() != lanes.lanes.len() || lanes.lanes.is_empty() {
                    return Err(format!("level {level}, job {job}: the orders disagree with the lanes"));
                }
                for &(order, signature) in &lanes.order {
                    if lanes.lanes.get(&signature).and_then(Lane::head).map(|head| head.0) != Some(order) {
                        return Err(format!("level {level}, job {job}: lane {signature} is filed under a wrong head"));
                    }
                }
            }
        }
        Ok(())
    }
}
