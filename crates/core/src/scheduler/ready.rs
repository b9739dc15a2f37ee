//! The central queue: levels, in each the jobs by the work they have received, in each job a lane per signature.
//!
//! A worker that asks looks at lanes, not at tasks: all tasks of a lane ask alike, so if the first does not fit, none
//! does. A task whose signature nobody else waits with is a lane by itself, of which nothing is kept but its place among
//! the lanes: there may be one for every task. Never knows workers; whether a lane fits is the caller's answer.

use super::COMMON_JOB;
use super::line::Line;
use super::slab::{Interner, Slab};
use super::sorted::Sorted;
use super::state::Signature;
use super::tasks::{OrderKey, Tasks};
use crate::ids::NONE;
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

/// How the tasks of one signature wait in the central queue, all jobs and levels together. Four bytes, since there may be
/// a signature for every task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting(u32);

impl Waiting {
    /// No task waits, or has waited beside another since the signature is known.
    pub(crate) const NOBODY: Waiting = Waiting(NONE);
    /// They stand in lanes. It stays so while the signature is known: where two were, there will be two again.
    const LANES: Waiting = Waiting(NONE - 1);

    /// The slot of the only task that waits, which has no lane.
    pub(crate) fn sole(self) -> Option<u32> {
        (self != Waiting::NOBODY && self != Waiting::LANES).then_some(self.0)
    }
}

/// Tasks of one job and level that ask alike, and the rest of an array.
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
    /// Lanes by what is first in them, each as its signature; none is empty.
    order: Sorted<(OrderKey, u32)>,
    /// The job's key among the jobs of the level.
    received: u64,
}

/// The jobs of one level. The common one, which most tasks belong to, stands apart: it is found without hashing, and keeps
/// its memory while nobody waits in it.
#[derive(Debug, Default)]
struct Jobs {
    common: JobLanes,
    /// Somebody waits in the common one.
    common_waits: bool,
    others: Steady<u32, JobLanes>,
}

impl Jobs {
    #[inline]
    fn get(&self, job: u32) -> Option<&JobLanes> {
        if job == COMMON_JOB { self.common_waits.then_some(&self.common) } else { self.other(job) }
    }

    #[inline]
    fn get_mut(&mut self, job: u32) -> Option<&mut JobLanes> {
        if job == COMMON_JOB { self.common_waits.then_some(&mut self.common) } else { self.other_mut(job) }
    }

    // Apart, so that what asks for the common job stays small.
    #[inline(never)]
    fn other(&self, job: u32) -> Option<&JobLanes> {
        self.others.get(&job)
    }

    #[inline(never)]
    fn other_mut(&mut self, job: u32) -> Option<&mut JobLanes> {
        self.others.get_mut(&job)
    }

    /// Enters a job that nobody waits in yet.
    fn insert_new(&mut self, job: u32, received: u64) {
        if job == COMMON_JOB {
            self.common.received = received;
            self.common_waits = true;
        } else {
            self.others.insert_new(job, JobLanes { received, ..JobLanes::default() });
        }
    }

    /// Nobody waits in a job any more.
    fn remove(&mut self, job: u32) {
        if job == COMMON_JOB {
            self.common_waits = false;
        } else {
            self.others.remove(&job);
        }
    }

    fn len(&self) -> usize {
        usize::from(self.common_waits) + self.others.len()
    }
}

/// Some of the levels, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LevelSet(u8);

impl LevelSet {
    fn set(&mut self, at: usize, on: bool) {
        self.0 = if on { self.0 | 1 << at } else { self.0 & !(1 << at) };
    }

    #[inline]
    fn has(self, at: usize) -> bool {
        self.0 & 1 << at != 0
    }

    #[inline]
    fn highest(self) -> Option<usize> {
        self.0.checked_ilog2().map(|at| at as usize)
    }
}

#[derive(Debug, Default)]
struct Level {
    jobs: Jobs,
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
    /// A task of the lane that is to be taken instead of the first.
    pub(crate) picked: Option<u32>,
}

/// Where a search that looked at too many lanes goes on next time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    level: u8,
    turn: (u64, u32),
    lane: OrderKey,
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
    /// The levels in which anybody waits, and those in which more than one job does.
    occupied: LevelSet,
    shared: LevelSet,
    lanes: Slab<Lane>,
    by_place: Interner,
    /// In each level the lane changed last, which is likely to be asked for next.
    recent: [u32; LEVELS],
    /// Jobs take turns by the work they have received; otherwise by who came first.
    fair: bool,
}

impl Ready {
    pub(crate) fn new(fair: bool) -> Ready {
        Ready {
            levels: Default::default(),
            occupied: LevelSet::default(),
            shared: LevelSet::default(),
            lanes: Slab::default(),
            by_place: Interner::default(),
            recent: [NONE; LEVELS],
            fair,
        }
    }

    /// The work received by the least served job of a level; a job that comes back starts there at the least.
    pub(crate) fn floor(&self, level: u8) -> u64 {
        self.levels[usize::from(level) - 1].turns.first().map_or(0, |turn| turn.0)
    }

    #[inline]
    fn lane(&self, level: u8, job: u32, signature: u32) -> Option<u32> {
        let recent = self.recent[usize::from(level) - 1];
        if self.lanes.get(recent).is_some_and(|lane| lane.is(level, job, signature)) {
            return Some(recent);
        }
        self.lane_by_place(level, job, signature)
    }

    #[inline(never)]
    fn lane_by_place(&self, level: u8, job: u32, signature: u32) -> Option<u32> {
        let hash = short_hash(&(level, job, signature));
        self.by_place.find(hash, |at| self.lanes[at].is(level, job, signature))
    }

    #[inline(never)]
    fn new_lane(&mut self, level: u8, job: u32, signature: u32) -> u32 {
        let at = self.lanes.insert(Lane { level, job, signature, tasks: Line::default(), array: None });
        self.by_place.insert(short_hash(&(level, job, signature)), at);
        at
    }

    /// Gives the only task of a signature a lane, if there is one: others are coming. Its place among the lanes stays.
    fn use_lanes(&mut self, waiting: &mut Waiting, tasks: &Tasks) {
        if let Some(slot) = std::mem::replace(waiting, Waiting::LANES).sole() {
            let task = tasks.at(slot);
            let at = self.new_lane(task.level, task.job, task.signature);
            self.lanes[at].tasks.insert((task.order(), slot));
        }
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
        let known = self.lane(level, job, signature);
        let at = known.unwrap_or_else(|| self.new_lane(level, job, signature));
        self.recent[usize::from(level) - 1] = at;
        let lane = &mut self.lanes[at];
        let before = lane.head().map(|head| head.0);
        edit(lane);
        let (after, first) = lane.head().unzip();
        if before != after {
            self.refile(level, job, signature, received, before, after);
        }
        if after.is_none() {
            self.drop_lane(level, job, signature, at);
        }
        first
    }

    #[inline(never)]
    fn drop_lane(&mut self, level: u8, job: u32, signature: u32, at: u32) {
        self.by_place.remove(short_hash(&(level, job, signature)), at);
        self.lanes.remove(at);
    }

    /// Files a lane under its new head.
    fn refile(
        &mut self,
        level: u8,
        job: u32,
        signature: u32,
        received: u64,
        before: Option<OrderKey>,
        after: Option<OrderKey>,
    ) {
        let queue = &mut self.levels[usize::from(level) - 1];
        if before.is_none() && queue.jobs.get(job).is_none() {
            queue.turns.insert((received, job));
            queue.jobs.insert_new(job, received);
            self.count_turns(level);
        }
        let queue = &mut self.levels[usize::from(level) - 1];
        let Some(lanes) = queue.jobs.get_mut(job) else { return };
        match (before, after) {
            (Some(before), Some(after)) => lanes.order.replace(&(before, signature), (after, signature)),
            (Some(before), None) => {
                lanes.order.remove(&(before, signature));
            }
            (None, Some(after)) => {
                lanes.order.insert((after, signature));
            }
            (None, None) => {}
        }
        match lanes.order.first() {
            None => {
                let received = lanes.received;
                queue.turns.remove(&(received, job));
                queue.jobs.remove(job);
                self.count_turns(level);
            }
            Some(&(first, _)) if !self.fair => {
                let first = first.sequence;
                queue.turns.remove(&(lanes.received, job));
                queue.turns.insert((first, job));
                lanes.received = first;
            }
            Some(_) => {}
        }
    }

    /// The number of jobs in a level has changed.
    fn count_turns(&mut self, level: u8) {
        let at = usize::from(level) - 1;
        let jobs = self.levels[at].turns.len();
        self.occupied.set(at, jobs > 0);
        self.shared.set(at, jobs > 1);
    }

    /// Adds a task. `waiting` is its signature's.
    pub(crate) fn push(&mut self, waiting: &mut Waiting, tasks: &Tasks, slot: u32, received: u64) {
        let task = tasks.at(slot);
        let (level, job, signature, order) = (task.level, task.job, task.signature, task.order());
        if *waiting == Waiting::NOBODY {
            *waiting = Waiting(slot);
            self.refile(level, job, signature, received, None, Some(order));
            return;
        }
        if *waiting != Waiting::LANES {
            self.use_lanes(waiting, tasks);
        }
        self.edit(level, job, signature, received, |lane| lane.tasks.insert((order, slot)));
    }

    /// Takes a task out of its lane. What is first in it then.
    pub(crate) fn remove(&mut self, waiting: &mut Waiting, tasks: &Tasks, slot: u32) -> Option<Head> {
        let task = tasks.at(slot);
        let (level, job, signature, order) = (task.level, task.job, task.signature, task.order());
        if *waiting == Waiting(slot) {
            *waiting = Waiting::NOBODY;
            self.refile(level, job, signature, 0, Some(order), None);
            return None;
        }
        self.edit(level, job, signature, 0, |lane| {
            let removed = lane.tasks.remove((order, slot));
            debug_assert!(removed, "a central task is found in its lane");
        })
    }

    /// Takes the first task out of a lane that was found. That task, and what is first in the lane then; nothing if an element
    /// of an array comes first, or nobody is there.
    #[inline]
    pub(crate) fn take_first(
        &mut self,
        waiting: &mut Waiting,
        tasks: &Tasks,
        found: &Found,
    ) -> Option<(u32, Option<Head>)> {
        let &Found { level, job, signature, order, .. } = found;
        if let Some(slot) = waiting.sole() {
            if !is_at(tasks, slot, level, job) {
                return None;
            }
            *waiting = Waiting::NOBODY;
            self.refile(level, job, signature, 0, Some(order), None);
            return Some((slot, None));
        }
        let at = self.lane(level, job, signature)?;
        let lane = &mut self.lanes[at];
        let (before, Head::Task(slot)) = lane.head()? else { return None };
        debug_assert_eq!(before, order, "a lane is found under its head");
        lane.tasks.pop_first();
        let (after, first) = lane.head().unzip();
        self.recent[usize::from(level) - 1] = at;
        self.refile(level, job, signature, 0, Some(before), after);
        if after.is_none() {
            self.drop_lane(level, job, signature, at);
        }
        Some((slot, first))
    }

    /// Sets the place of the rest of a job's array. `waiting` is its signature's.
    pub(crate) fn set_array(
        &mut self,
        waiting: &mut Waiting,
        tasks: &Tasks,
        (level, job, signature): (u8, u32, u32),
        received: u64,
        order: Option<OrderKey>,
    ) {
        self.use_lanes(waiting, tasks);
        self.edit(level, job, signature, received, |lane| lane.array = order.map(Box::new));
    }

    /// The job has received work: its turn comes later in every level where others wait too. Where it is alone its
    /// key may fall behind; `only_job` and `refresh` mend that before somebody else joins.
    #[inline]
    pub(crate) fn charge(&mut self, job: u32, received: u64) {
        if self.shared != LevelSet::default() {
            self.rekey(job, received, self.shared);
        }
    }

    /// Brings a job's key up to date in every level.
    pub(crate) fn refresh(&mut self, job: u32, received: u64) {
        self.rekey(job, received, self.occupied);
    }

    fn rekey(&mut self, job: u32, received: u64, levels: LevelSet) {
        if !self.fair {
            return;
        }
        for (at, level) in self.levels.iter_mut().enumerate() {
            if levels.has(at)
                && let Some(lanes) = level.jobs.get_mut(job)
                && lanes.received != received
            {
                level.turns.remove(&(lanes.received, job));
                level.turns.insert((received, job));
                lanes.received = received;
            }
        }
    }

    /// Whether nobody waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.occupied == LevelSet::default()
    }

    /// The only job waiting in a level, if there is just one.
    pub(crate) fn only_job(&self, level: u8) -> Option<u32> {
        let turns = &self.levels[usize::from(level) - 1].turns;
        if turns.len() == 1 { turns.first().map(|turn| turn.1) } else { None }
    }

    /// The first lane, in the order of levels, turns and heads, that `fits`: from `start` on, if a search was cut off
    /// there, and not below `floor_level`.
    #[inline(always)]
    pub(crate) fn find(&self, floor_level: u8, start: Option<&Cursor>, mut fits: impl FnMut(&Found) -> bool) -> Search {
        // Most searches end with the very first.
        let first = if start.is_none() { self.first(floor_level) } else { None };
        if let Some(first) = &first
            && fits(first)
        {
            return Search { found: Some(*first), cut_off: None };
        }
        if self.is_empty() {
            return Search { found: None, cut_off: None };
        }
        let mut seen_first = first.is_none();
        let mut looks = usize::from(first.is_some());
        let top = start.map_or(LEVELS as u8, |cursor| cursor.level);
        for level in (floor_level.max(1)..=top).rev() {
            let queue = &self.levels[usize::from(level) - 1];
            if queue.turns.is_empty() {
                continue;
            }
            let resumed = start.filter(|cursor| cursor.level == level);
            let first_turn = resumed.map_or((0, 0), |cursor| cursor.turn);
            for &(received, job) in queue.turns.from(first_turn) {
                let Some(lanes) = queue.jobs.get(job) else { continue };
                let resumed = resumed.filter(|cursor| cursor.turn == (received, job));
                let first_lane = resumed.map_or_else(OrderKey::default, |cursor| cursor.lane);
                for &(order, signature) in lanes.order.from((first_lane, 0)) {
                    if !std::mem::replace(&mut seen_first, true) {
                        continue;
                    }
                    if looks == LANE_LOOKS {
                        let cursor = Cursor { level, turn: (received, job), lane: order };
                        return Search { found: None, cut_off: Some(cursor) };
                    }
                    looks += 1;
                    let found = Found { level, job, signature, order, picked: None };
                    if fits(&found) {
                        return Search { found: Some(found), cut_off: None };
                    }
                }
            }
        }
        Search { found: None, cut_off: None }
    }

    /// The first lane of all, not below a level.
    #[inline(always)]
    pub(crate) fn first(&self, floor_level: u8) -> Option<Found> {
        let at = self.occupied.highest()?;
        let (queue, level) = (&self.levels[at], at as u8 + 1);
        let job = queue.turns.first()?.1;
        let &(order, signature) = queue.jobs.get(job)?.order.first()?;
        (level >= floor_level).then_some(Found { level, job, signature, order, picked: None })
    }

    /// What is first in the lane that was found, if it is still there. `waiting` is its signature's.
    #[inline(always)]
    pub(crate) fn head(&self, waiting: Waiting, tasks: &Tasks, found: &Found) -> Option<Head> {
        let &Found { level, job, signature, .. } = found;
        match waiting.sole() {
            Some(slot) => is_at(tasks, slot, level, job).then_some(Head::Task(slot)),
            None => self.lanes[self.lane(level, job, signature)?].head().map(|head| head.1),
        }
    }

    /// The tasks of the lane that was found, the first in order first. `waiting` is its signature's.
    pub(crate) fn in_order(&self, waiting: Waiting, tasks: &Tasks, found: &Found) -> impl Iterator<Item = u32> + '_ {
        let &Found { level, job, signature, .. } = found;
        let sole = waiting.sole().filter(|&slot| is_at(tasks, slot, level, job));
        let lane = self.lane(level, job, signature);
        sole.into_iter().chain(lane.into_iter().flat_map(|at| self.lanes[at].tasks.in_order()))
    }

    /// The tasks of every lane, for checks: level, job, signature, order and slot. Those without a lane are not among
    /// them.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (u8, u32, u32, OrderKey, u32)> + '_ {
        self.lanes.iter().flat_map(|(_, lane)| {
            lane.tasks.iter().map(|(order, slot)| (lane.level, lane.job, lane.signature, order, slot))
        })
    }

    /// Tasks in higher levels, and of the same job before a place in its level, for explanations; counting stops at
    /// `most`.
    pub(crate) fn ahead_of(&self, level: u8, job: u32, order: OrderKey, most: u64) -> u64 {
        let mut ahead = 0;
        for (queue, level) in self.levels.iter().zip(1u8..).skip(usize::from(level)) {
            let jobs = queue.turns.iter().filter_map(|turn| queue.jobs.get(turn.1).map(|lanes| (turn.1, lanes)));
            let lanes = jobs.flat_map(|(job, lanes)| lanes.order.iter().map(move |lane| (job, lane.1)));
            for (job, signature) in lanes.take(most as usize) {
                ahead += self.lane(level, job, signature).map_or(1, |at| {
                    let lane = &self.lanes[at];
                    lane.tasks.len() as u64 + u64::from(lane.array.is_some())
                });
            }
        }
        let own = self.levels[usize::from(level) - 1].jobs.get(job);
        for &(first, signature) in own.into_iter().flat_map(|lanes| &lanes.order).take(most as usize) {
            ahead += match self.lane(level, job, signature) {
                Some(at) => self.lanes[at].tasks.before(order, most as usize) as u64,
                None => u64::from(first < order),
            };
        }
        ahead.min(most)
    }

    /// Whether the orders agree with the lanes and with the tasks that have none, for checks.
    pub(crate) fn verify(&self, tasks: &Tasks, signatures: &Slab<Signature>) -> Result<(), String> {
        let (mut filed, mut soles) = (0, 0);
        for (queue, level) in self.levels.iter().zip(1u8..) {
            let (at, jobs) = (usize::from(level) - 1, queue.turns.len());
            if (self.occupied.has(at), self.shared.has(at)) != (jobs > 0, jobs > 1) {
                return Err(format!("level {level}: the sets of levels disagree with {jobs} jobs"));
            }
            if queue.turns.len() != queue.jobs.len() {
                return Err(format!("level {level}: {} turns for {} jobs", queue.turns.len(), queue.jobs.len()));
            }
            for &(received, job) in &queue.turns {
                let Some(lanes) = queue.jobs.get(job) else { return Err(format!("level {level}: no job {job}")) };
                if lanes.received != received || lanes.order.is_empty() {
                    return Err(format!("level {level}, job {job}: the turns disagree with the lanes"));
                }
                filed += lanes.order.len();
                for &(order, signature) in &lanes.order {
                    let sole = signatures.get(signature).and_then(|signature| signature.waiting.sole());
                    soles += usize::from(sole.is_some());
                    let head = match (sole, self.lane(level, job, signature)) {
                        (Some(slot), None) => is_at(tasks, slot, level, job).then(|| tasks.at(slot).order()),
                        (None, Some(at)) => self.lanes[at].head().map(|head| head.0),
                        _ => None,
                    };
                    if head != Some(order) {
                        return Err(format!("level {level}, job {job}: signature {signature} has a wrong head"));
                    }
                }
            }
        }
        if filed != self.lanes.len() + soles {
            return Err(format!("{} lanes and {soles} tasks alone, but {filed} in the orders", self.lanes.len()));
        }
        Ok(())
    }
}

/// Whether a task waits in a level, for a job.
#[inline]
fn is_at(tasks: &Tasks, slot: u32, level: u8, job: u32) -> bool {
    let task = tasks.at(slot);
    task.level == level && task.job == job
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::time::Time;

    /// A few tasks of few signatures, jobs and levels, and whatever waits for them.
    #[test]
    fn with_and_without_lanes_the_order_is_the_same() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (mut ready, mut tasks) = (Ready::new(true), Tasks::new(0));
            // The second kind of signature never lets a task wait without a lane.
            let mut waiting = [[Waiting::NOBODY; 4], [Waiting::LANES; 4]];
            let mut laned = Ready::new(true);
            let mut queued: Vec<u32> = Vec::new();
            for _ in 0..2000 {
                if rng.below(5) < 3 && queued.len() < 12 {
                    let slot = tasks.allocate();
                    let task = tasks.at_mut(slot);
                    task.deadline = Time(rng.below(3) as u64);
                    task.sequence = u64::from(slot);
                    task.level = 1 + rng.below(2) as u8;
                    (task.job, task.signature) = (rng.below(2) as u32, rng.below(4) as u32);
                    let signature = task.signature as usize;
                    ready.push(&mut waiting[0][signature], &tasks, slot, 0);
                    laned.push(&mut waiting[1][signature], &tasks, slot, 0);
                    queued.push(slot);
                } else if !queued.is_empty() {
                    let slot = queued.swap_remove(rng.below(queued.len()));
                    let signature = tasks.at(slot).signature as usize;
                    let next = ready.remove(&mut waiting[0][signature], &tasks, slot);
                    assert_eq!(next, laned.remove(&mut waiting[1][signature], &tasks, slot));
                }
                let all = |ready: &Ready, waiting: &[Waiting; 4]| {
                    let mut all = Vec::new();
                    ready.find(1, None, |found| {
                        let waiting = waiting[found.signature as usize];
                        let in_order: Vec<u32> = ready.in_order(waiting, &tasks, found).collect();
                        let head = ready.head(waiting, &tasks, found);
                        assert_eq!(head, in_order.first().map(|slot| Head::Task(*slot)));
                        let ahead = ready.ahead_of(found.level, found.job, found.order, 100);
                        all.push((found.level, found.job, found.signature, found.order, ahead, in_order));
                        false
                    });
                    all
                };
                let found = all(&ready, &waiting[0]);
                assert_eq!(found, all(&laned, &waiting[1]));
                let slots = found.iter().flat_map(|lane| &lane.5);
                assert_eq!(slots.count(), queued.len());
            }
        }
    }
}
