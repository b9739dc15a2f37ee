//! What happened, put together from the marks: who ran what from when to when, who stole, who was away, how much waited.

use filch_core::map::Map;
use filch_core::{Span, Time};

use crate::marks::Mark;
use crate::world::World;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Well.
    Well,
    /// The task failed.
    Failed,
    /// The worker died.
    Lost,
}

/// One run of a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bar {
    pub(super) node: u32,
    /// Which of its runs at the same time.
    pub(super) lane: u32,
    pub(super) task: u32,
    pub(super) from: Time,
    pub(super) to: Time,
    pub(super) ending: Ending,
    /// Whom the task was stolen from, and when.
    pub(super) stolen: Option<(u32, Time)>,
}

/// A worker that was away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    pub(super) node: u32,
    pub(super) from: Time,
    pub(super) to: Time,
    pub(super) dead: bool,
}

/// What one worker did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deeds {
    pub(super) runs: u64,
    pub(super) busy: Span,
    pub(super) stole: u64,
    pub(super) gave: u64,
    pub(super) failed: u64,
    pub(super) lost: u64,
    pub(super) deaths: u64,
    /// The most it ran at the same time.
    pub(super) lanes: u32,
}

/// How many tasks waited and ran from a moment on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) at: Time,
    pub(super) waiting: i64,
    pub(super) running: i64,
}

/// All of it.
pub(super) struct Story<'w> {
    pub(super) world: &'w World,
    /// When the first task arrived, and when the last was settled.
    pub(super) start: Time,
    pub(super) end: Time,
    pub(super) bars: Vec<Bar>,
    pub(super) aways: Vec<Away>,
    /// (when, task, from, to)
    pub(super) moves: Vec<(Time, u32, u32, u32)>,
    pub(super) deeds: Vec<Deeds>,
    /// At most a few thousand.
    pub(super) load: Vec<Load>,
}

/// Points of the load that are kept.
const POINTS: u64 = 2000;

/// Who runs what right now.
#[derive(Default)]
struct Open {
    /// The bar of a run.
    runs: Map<(u32, u32), usize>,
    /// Lanes in use, by worker.
    lanes: Vec<Vec<bool>>,
    away: Map<u32, (Time, bool)>,
    /// Who a task was stolen from and by whom, until it begins.
    moved: Map<u32, (u32, u32, Time)>,
    /// The latest run of each task.
    latest: Map<u32, usize>,
}

impl<'w> Story<'w> {
    pub(super) fn of(world: &'w World) -> Story<'w> {
        let nodes: u32 = world.setting().cluster.iter().map(|class| class.count).sum();
        let mut story = Story {
            world,
            start: Time::NEVER,
            end: world.last_end(),
            bars: Vec::new(),
            aways: Vec::new(),
            moves: Vec::new(),
            deeds: vec![Deeds::default(); nodes as usize],
            load: Vec::new(),
        };
        let mut open = Open { lanes: vec![Vec::new(); nodes as usize], ..Open::default() };
        for (at, mark) in world.marks().into_iter().flat_map(crate::marks::Marks::iter) {
            story.tell(&mut open, at, mark);
        }
        // What was still going on when the world ended.
        let end = story.end.max(story.load.last().map_or(Time::ZERO, |load| load.at));
        story.end = end;
        story.start = story.start.min(end);
        for bar in open.runs.into_values() {
            story.bars[bar].to = end;
        }
        let mut rest: Vec<Away> =
            open.away.into_iter().map(|(node, (from, dead))| Away { node, from, to: end, dead }).collect();
        rest.sort_by_key(|away| away.node);
        story.aways.extend(rest);
        for bar in &story.bars {
            let deeds = &mut story.deeds[bar.node as usize];
            deeds.busy += bar.to.since(bar.from);
        }
        story
    }

    fn tell(&mut self, open: &mut Open, at: Time, mark: Mark) {
        match mark {
            Mark::Submitted { .. } | Mark::Spawned { .. } => {
                self.start = self.start.min(at);
                self.count(at, 1, 0);
            }
            Mark::Began { task, node, .. } => self.begin(open, at, task, node),
            Mark::Ended { task, node, failed } => {
                let ending = if failed { Ending::Failed } else { Ending::Well };
                self.finish(open, at, (task, node), ending);
                if failed {
                    self.deeds[node as usize].failed += 1;
                }
            }
            Mark::Lost { task, node } => {
                self.finish(open, at, (task, node), Ending::Lost);
                self.deeds[node as usize].lost += 1;
            }
            Mark::Moved { task, from, to } => {
                self.moves.push((at, task, from, to));
                // A thief begins at once what it was given; that it was stolen becomes known later.
                let latest = open.latest.get(&task).map(|bar| &mut self.bars[*bar]);
                match latest.filter(|bar| bar.node == to && bar.stolen.is_none()) {
                    Some(bar) => bar.stolen = Some((from, bar.from)),
                    None => {
                        open.moved.insert(task, (from, to, at));
                    }
                }
                self.deeds[from as usize].gave += 1;
                self.deeds[to as usize].stole += 1;
            }
            Mark::Died { node } => {
                self.deeds[node as usize].deaths += 1;
                open.away.insert(node, (at, true));
            }
            Mark::Paused { node } => {
                open.away.entry(node).or_insert((at, false));
            }
            Mark::Back { node } => {
                if let Some((from, dead)) = open.away.remove(&node) {
                    self.aways.push(Away { node, from, to: at, dead });
                }
            }
            Mark::Settled { task, .. }
                // One that never ran does not wait any more.
                if self.world.fates()[task as usize].runs == 0 => {
                    self.count(at, -1, 0);
                }
            _ => {}
        }
    }

    fn begin(&mut self, open: &mut Open, at: Time, task: u32, node: u32) {
        let lanes = &mut open.lanes[node as usize];
        let lane = lanes.iter().position(|used| !used).unwrap_or_else(|| {
            lanes.push(false);
            lanes.len() - 1
        });
        lanes[lane] = true;
        let moved = open.moved.remove(&task).filter(|moved| moved.1 == node);
        let deeds = &mut self.deeds[node as usize];
        deeds.runs += 1;
        deeds.lanes = deeds.lanes.max(lanes.len() as u32);
        open.runs.insert((task, node), self.bars.len());
        open.latest.insert(task, self.bars.len());
        self.bars.push(Bar {
            node,
            lane: lane as u32,
            task,
            from: at,
            to: at,
            ending: Ending::Well,
            stolen: moved.map(|moved| (moved.0, moved.2)),
        });
        self.count(at, -1, 1);
    }

    fn finish(&mut self, open: &mut Open, at: Time, run: (u32, u32), ending: Ending) {
        let Some(found) = open.runs.remove(&run) else { return };
        let bar = &mut self.bars[found];
        bar.to = at;
        bar.ending = ending;
        let lane = bar.lane as usize;
        open.lanes[run.1 as usize][lane] = false;
        let again = ending != Ending::Well && self.world.fates()[run.0 as usize].ended > at;
        self.count(at, i64::from(again), -1);
    }

    fn count(&mut self, at: Time, waiting: i64, running: i64) {
        let last = self.load.last().copied().unwrap_or_default();
        let next = Load { at, waiting: last.waiting + waiting, running: last.running + running };
        let least = Span(self.world.last_end().since(self.start).0 / POINTS);
        match self.load.last_mut() {
            // Within a point only the last counts.
            Some(last) if at.since(last.at) < least => (last.waiting, last.running) = (next.waiting, next.running),
            Some(last) if last.at == at => *last = next,
            _ => self.load.push(next),
        }
    }

    /// Seconds from the first arrival to the last end.
    pub(super) fn span_s(&self) -> f64 {
        self.end.since(self.start).as_secs_f64().max(1e-9)
    }

    /// Seconds since the first arrival.
    pub(super) fn seconds(&self, at: Time) -> f64 {
        at.since(self.start).as_secs_f64()
    }

    /// The class of a worker.
    pub(super) fn class_of(&self, node: u32) -> usize {
        let mut first = 0;
        for (at, class) in self.world.setting().cluster.iter().enumerate() {
            first += class.count;
            if node < first {
                return at;
            }
        }
        0
    }

    /// The share of time in each of so many parts of the run, for each of some groups of workers, that was spent on work:
    /// busy seconds, to be divided by slots and the length of a part.
    pub(super) fn busy(&self, parts: usize, groups: usize, group_of: impl Fn(u32) -> usize) -> Vec<Vec<f64>> {
        let part_s = self.span_s() / parts as f64;
        // What begins or ends inside a part counts by its share; between them a run fills every part.
        let mut whole = vec![vec![0.0; parts + 1]; groups];
        let mut shares = vec![vec![0.0; parts + 1]; groups];
        for bar in &self.bars {
            let (from, to) = (self.seconds(bar.from) / part_s, self.seconds(bar.to) / part_s);
            let (first, last) = ((from as usize).min(parts - 1), (to as usize).min(parts - 1));
            let group = group_of(bar.node);
            if first == last {
                shares[group][first] += to - from;
            } else {
                shares[group][first] += (first + 1) as f64 - from;
                shares[group][last] += to - last as f64;
                whole[group][first + 1] += 1.0;
                whole[group][last] -= 1.0;
            }
        }
        for (whole, shares) in whole.iter().zip(&mut shares) {
            let mut running = 0.0;
            for (part, share) in shares.iter_mut().enumerate() {
                running += whole[part];
                *share = (*share + running) * part_s;
            }
            shares.truncate(parts);
        }
        shares
    }
}
