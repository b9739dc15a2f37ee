//! The central queue: levels, in each the jobs by the work they have received, in each job a lane per signature.
//!
//! A worker that asks looks at lanes, not at tasks: all tasks of a lane ask alike, so if the first does not fit, none
//! does. Never knows workers; whether a lane fits is the caller's answer.

use super::line::Line;
use super::slab::{Interner, Slab};
use super::sorted::Sorted;
use super::tasks::OrderKey;
use crate::map::{Steady, short_hash};

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

/// Tasks of one job and level that ask alike. Kept small: there may be one for every task.
#[derive(Debug)]
struct Lane {
    level: u8,
    job: u32,
    signature: u32,
    tasks: Line,
    array: Option<Box<OrderKey>>,
}

impl Lane {
    #[inline]
    fn head(&self) -> Option<(OrderKey, Head)> {
        match (self.tasks.first(), self.array.as_deref()) {
            (Some((order, slot)), Some(array)) if order <= *array => Some((order, Head::Task(slot))),
            (_, Some(array)) => Some((*array, Head::Element)),
            (Some((order, slot)), None) => Some((order, Head::Task(slot))),
            (None, None) => None,
        }
    }

    fn is(&self, level: u8, job: u32, signature: u32) -> bool {
        self.signature == signature && self.job == job && self.level == level
    }
}

/// The lanes of one job in one level.
#[derive(Debug, Default)]
struct JobLanes {
    /// Lanes by what is first in them; none is empty.
    order: Sorted<(OrderKey, u32)>,
    /// The job's key among the jobs of the level.
    received: u64,
}

#[derive(Debug, Default)]
struct Level {
    jobs: Steady<u32, JobLanes>,
    /// Jobs by the work they have received; the least served first.
    turns: Sorted<(u64, u32)>,
}

/// Where something was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) level: u8,
    pub(crate) job: u32,
    pub(crate) signature: u32,
    pub(crate) order: OrderKey,
    lane: u32,
    /// A task of the lane that is to be taken instead of the first.
    pub(crate) picked: Option<u32>,
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
    lanes: Slab<Lane>,
    by_place: Interner,
    /// Jobs take turns by the work they have received; otherwise by who came first.
    fair: bool,
}

impl Ready {
    pub(crate) fn new(fair: bool) -> Ready {
        Ready { levels: Default::default(), lanes: Slab::default(), by_place: Interner::default(), fair }
    }

    /// The work received by the least served job of a level; a job that comes back starts there at the least.
    pub(crate) fn floor(&self, level: u8) -> u64 {
        self.levels[usize::from(level) - 1].turns.first().map_or(0, |turn| turn.0)
    }

    /// Changes a lane and keeps the orders above it right. What is first in it then.
    #[inline]
    fn edit(
        &mut self,
        level: u8,
        job: u32,
        signature: u32,
        received: u64,
        edit: impl FnOnce(&mut Lane),
    ) -> Option<Head> {
        let hash = short_hash(&(level, job, signature));
        let at = match self.by_place.find(hash, |at| self.lanes[at].is(level, job, signature)) {
            Some(at) => at,
            None => {
                let lane = Lane { level, job, signature, tasks: Line::default(), array: None };
                let at = self.lanes.insert(lane);
                self.by_place.insert(hash, at);
                at
            }
        };
        let lane = &mut self.lanes[at];
        let before = lane.head().map(|head| head.0);
        edit(lane);
        let (after, first) = lane.head().unzip();
        if before != after {
            self.refile(at, received, before, after);
        }
        first
    }

    /// Files a lane under its new head.
    fn refile(&mut self, at: u32, received: u64, before: Option<OrderKey>, after: Option<OrderKey>) {
        let &Lane { level, job, signature, .. } = &self.lanes[at];
        let fair = self.fair;
        let queue = &mut self.levels[usize::from(level) - 1];
        if queue.jobs.get(&job).is_none() {
            queue.turns.insert((received, job));
            queue.jobs.insert_new(job, JobLanes { received, ..JobLanes::default() });
        }
        let Some(lanes) = queue.jobs.get_mut(&job) else { return };
        if let Some(order) = before {
            lanes.order.remove(&(order, at));
        }
        if let Some(order) = after {
            lanes.order.insert((order, at));
        } else {
            self.by_place.remove(short_hash(&(level, job, signature)), at);
            self.lanes.remove(at);
        }
        match lanes.order.first() {
            None => {
                let received = lanes.received;
                queue.turns.remove(&(received, job));
                queue.jobs.remove(&job);
            }
            Some(&(first, _)) if !fair => {
                let first = first.sequence;
                queue.turns.remove(&(lanes.received, job));
                queue.turns.insert((first, job));
                lanes.received = first;
            }
            Some(_) => {}
        }
    }

    pub(crate) fn push(&mut self, level: u8, job: u32, signature: u32, received: u64, order: OrderKey, slot: u32) {
        self.edit(level, job, signature, received, |lane| {
            lane.tasks.insert((order, slot));
        });
    }

    /// Takes a task out of its lane. What is first in it then.
    pub(crate) fn remove(&mut self, level: u8, job: u32, signature: u32, order: OrderKey, slot: u32) -> Option<Head> {
        self.edit(level, job, signature, 0, |lane| {
            let removed = lane.tasks.remove((order, slot));
            debug_assert!(removed, "a central task is found in its lane");
        })
    }

    pub(crate) fn set_array(&mut self, level: u8, job: u32, signature: u32, received: u64, order: Option<OrderKey>) {
        self.edit(level, job, signature, received, |lane| lane.array = order.map(Box::new));
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
            for &(received, job) in queue.turns.from(first_turn) {
                let Some(lanes) = queue.jobs.get(&job) else { continue };
                let resumed = resumed.filter(|cursor| cursor.turn == (received, job));
                let first_lane = resumed.map_or((OrderKey::default(), 0), |cursor| cursor.lane);
                for &(order, lane) in lanes.order.from(first_lane) {
                    if looks == LANE_LOOKS {
                        let cursor = Cursor { level, turn: (received, job), lane: (order, lane) };
                        return Search { found: None, cut_off: Some(cursor) };
                    }
                    looks += 1;
                    let found = Found { level, job, signature: self.lanes[lane].signature, order, lane, picked: None };
                    if fits(&found) {
                        return Search { found: Some(found), cut_off: None };
                    }
                }
            }
        }
        Search { found: None, cut_off: None }
    }

    /// What is first in the lane that was found, if it is still there.
    #[inline]
    pub(crate) fn head(&self, found: &Found) -> Option<Head> {
        let lane = self.lanes.get(found.lane)?;
        if !lane.is(found.level, found.job, found.signature) {
            return None;
        }
        lane.head().map(|head| head.1)
    }

    /// The tasks of the lane that was found, the first in order first.
    pub(crate) fn in_order(&self, found: &Found) -> impl Iterator<Item = u32> + '_ {
        self.lanes.get(found.lane).into_iter().flat_map(|lane| lane.tasks.in_order())
    }

    /// Every lane's tasks, for checks: level, job, signature, order and slot.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (u8, u32, u32, OrderKey, u32)> + '_ {
        self.lanes.iter().flat_map(|(_, lane)| {
            lane.tasks.iter().map(|(order, slot)| (lane.level, lane.job, lane.signature, order, slot))
        })
    }

    /// Tasks in higher levels, and of the same job before a place in its level, for explanations; counting stops at
    /// `most`.
    pub(crate) fn ahead_of(&self, level: u8, job: u32, order: OrderKey, most: u64) -> u64 {
        let mut ahead = 0;
        for queue in &self.levels[usize::from(level)..] {
            let jobs = queue.turns.iter().filter_map(|turn| queue.jobs.get(&turn.1));
            for &(_, lane) in jobs.flat_map(|lanes| &lanes.order).take(most as usize) {
                let lane = &self.lanes[lane];
                ahead += lane.tasks.len() as u64 + u64::from(lane.array.is_some());
            }
        }
        let own = self.levels[usize::from(level) - 1].jobs.get(&job);
        for &(_, lane) in own.into_iter().flat_map(|lanes| &lanes.order).take(most as usize) {
            ahead += self.lanes[lane].tasks.before(order, most as usize) as u64;
        }
        ahead.min(most)
    }

    /// Whether the orders agree with the lanes, for checks.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let mut filed = 0;
        for (queue, level) in self.levels.iter().zip(1u8..) {
            if queue.turns.len() != queue.jobs.len() {
                return Err(format!("level {level}: {} turns for {} jobs", queue.turns.len(), queue.jobs.len()));
            }
            for &(received, job) in &queue.turns {
                let Some(lanes) = queue.jobs.get(&job) else { return Err(format!("level {level}: no job {job}")) };
                if lanes.received != received || lanes.order.is_empty() {
                    return Err(format!("level {level}, job {job}: the turns disagree with the lanes"));
                }
                filed += lanes.order.len();
                for &(order, at) in &lanes.order {
                    let lane = self.lanes.get(at);
                    if lane.and_then(Lane::head).map(|head| head.0) != Some(order)
                        || lane.is_none_or(|lane| (lane.level, lane.job) != (level, job))
                    {
                        return Err(format!("level {level}, job {job}: lane {at} is filed under a wrong head"));
                    }
                }
            }
        }
        if filed != self.lanes.len() {
            return Err(format!("{} lanes, but {filed} in the orders", self.lanes.len()));
        }
        Ok(())
    }
}
