//! Faults as they strike the world.

use filch_core::worker::{self, WorkerMachine};
use filch_core::{Span, Time};

use super::{Clock, Happening, Node, Running, World};
use crate::fault::Happens;
use crate::marks::Mark;

impl World {
    pub(super) fn go_wrong(&mut self, at: u32) {
        let what = self.setting.faults[at as usize].what;
        self.note(11, u64::from(at));
        match what {
            Happens::Crash { node, back_after } => self.crash(node, back_after),
            Happens::Slow { node, factor } => {
                if let Some(node) = self.nodes.get_mut(node as usize) {
                    node.slowness = factor;
                }
            }
            Happens::Pause { node, span } => self.pause(node, span),
            Happens::Partition { first, count, span } => self.cut(at + 1, first, count, span),
            Happens::Mute { first, count, span } => {
                self.cut_one_way(at + 1, (first, count), span, |node| &mut node.mute);
            }
            Happens::Deafen { first, count, span } => {
                self.cut_one_way(at + 1, (first, count), span, |node| &mut node.deaf);
            }
            Happens::Skew { node, ahead, fast_ppm } => {
                let Some(found) = self.nodes.get_mut(node as usize) else { return };
                // No machine sees its clock go backwards.
                let clock = Clock { ahead, fast_ppm };
                if clock.shows(self.now) >= found.clock.shows(self.now) {
                    found.clock = clock;
                    found.timer = Time::NEVER;
                    self.set_timer(node);
                }
            }
            Happens::CoordinatorCrash { back_after } => self.crash_coordinator(back_after),
            Happens::Takeover { first, count, span } => self.cut_coordinator(at + 1, first, count, span),
            Happens::Drain { node } => {
                if (node as usize) < self.nodes.len() {
                    self.count_step(12, u64::from(node));
                    self.input(node, worker::Input::Drain);
                }
            }
        }
    }

    fn crash(&mut self, node: u32, back_after: Option<Span>) {
        let Some(found) = self.nodes.get(node as usize).filter(|node| node.alive) else { return };
        self.counts.deaths += 1;
        self.steals.add(found.machine.steal_stats());
        self.drop_runs(node);
        let found = &mut self.nodes[node as usize];
        found.alive = false;
        found.life += 1;
        self.lines[node as usize].life = found.life;
        found.timer = Time::NEVER;
        found.paused_until = Time::ZERO;
        for missed in std::mem::take(&mut found.missed) {
            // Messages to a process that is gone are gone with it.
            if let Happening::Deliver(at) | Happening::Refused(at) = missed {
                self.frames[at as usize].messages.clear();
                self.free_frames.push(at);
            }
        }
        self.mark(|| Mark::Died { node });
        if let Some(span) = back_after {
            self.calendar.push(self.now + span, Happening::Back(node));
        }
    }

    fn pause(&mut self, node: u32, span: Span) {
        let now = self.now;
        let Some(found) = self.nodes.get_mut(node as usize).filter(|node| node.alive) else { return };
        if found.paused_until <= now {
            found.paused_at = now;
        }
        found.paused_until = found.paused_until.max(now + span);
        let until = found.paused_until;
        for run in found.runs.clone() {
            self.halt(run);
        }
        self.mark(|| Mark::Paused { node });
        self.calendar.push(until, Happening::Back(node));
    }

    pub(super) fn cut(&mut self, part: u32, first: u32, count: u32, span: Span) {
        let all = self.nodes.len() as u32;
        for step in 0..count.min(all) {
            let node = (first + step) % all;
            self.nodes[node as usize].part = part;
        }
        self.calendar.push(self.now + span, Happening::Whole(part));
    }

    /// Nothing that some workers say, or that is said to them, arrives.
    fn cut_one_way(&mut self, cut: u32, workers: (u32, u32), span: Span, way: fn(&mut Node) -> &mut u32) {
        let (all, (first, count)) = (self.nodes.len() as u32, workers);
        for step in 0..count.min(all) {
            *way(&mut self.nodes[((first + step) % all) as usize]) = cut;
        }
        self.calendar.push(self.now + span, Happening::Whole(cut));
    }

    /// A worker is back: a new process if it had died, the old one if it stood still.
    pub(super) fn come_back(&mut self, node: u32) {
        let at = node as usize;
        self.note(13, u64::from(node));
        if !self.nodes[at].alive {
            let seed = self.rng.next_u64();
            let machine = WorkerMachine::new(&self.setting.config, self.nodes[at].spec.clone(), seed);
            let leader = self.leader_at();
            let found = &mut self.nodes[at];
            found.machine = machine;
            found.seat = leader;
            found.alive = true;
            found.latest = (Time::ZERO, Time::ZERO);
            self.mark(|| Mark::Back { node });
            self.count_step(14, u64::from(node));
            self.input(node, worker::Input::Connected);
        } else if self.nodes[at].paused_until <= self.now {
            self.mark(|| Mark::Back { node });
            let (missed, paused_at) = (std::mem::take(&mut self.nodes[at].missed), self.nodes[at].paused_at);
            // The first it sees is its clock. What it must not do any more it does not go on with.
            let runs = self.nodes[at].runs.clone();
            self.count_step(16, u64::from(node));
            self.input(node, worker::Input::Tick);
            for run in runs {
                let Running { live, stopping, .. } = self.runs[run as usize];
                if live && stopping.is_none() {
                    self.execute(run);
                }
            }
            for missed in missed {
                let due = match missed {
                    // It has not run meanwhile.
                    Happening::RunEnds { run, .. } => self.now + self.runs[run as usize].until.since(paused_at),
                    _ => self.now,
                };
                self.calendar.push(due, missed);
            }
        }
    }

    pub(super) fn make_whole(&mut self, part: u32) {
        self.note(15, u64::from(part));
        for node in &mut self.nodes {
            for cut in [&mut node.part, &mut node.mute, &mut node.deaf] {
                if *cut == part {
                    *cut = 0;
                }
            }
        }
        if self.disk.is_some() {
            self.reach_disk(part);
        }
    }
}
