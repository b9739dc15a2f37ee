//! What tasks read before they run: over links of their own, or shared with others.
//!
//! A run that waits for its input holds its slot. A network that is cut does not stop a transfer that is under way.

use filch_core::Span;

use super::{Happening, World};
use crate::flows::Ends;
use crate::workload::NONE;

impl World {
    /// How long the input of a task takes over links that it has for itself.
    pub(super) fn fetch_alone(&self) -> Span {
        if self.workload.input == 0.0 {
            return Span::ZERO;
        }
        self.setting.network.latency + self.setting.network.transfer(self.workload.input)
    }

    /// A run begins to read its input over shared links.
    pub(super) fn fetch(&mut self, run: u32) {
        let Some(flows) = &mut self.flows else { return };
        let mut ends = Vec::new();
        let links = [0, self.runs[run as usize].node + 1];
        let flow = flows.begin(self.now, links, self.workload.input, &mut ends);
        self.runs[run as usize].flow = flow;
        if flow as usize >= self.flow_runs.len() {
            self.flow_runs.resize(flow as usize + 1, NONE);
        }
        self.flow_runs[flow as usize] = run;
        self.expect(&ends);
    }

    fn expect(&mut self, ends: &[Ends]) {
        for &Ends { flow, generation, at } in ends {
            self.calendar.push(at, Happening::Fetched { flow, generation });
        }
    }

    /// A run has read its input, unless its share has changed meanwhile.
    pub(super) fn fetched(&mut self, flow: u32, generation: u32) {
        if !self.flows.as_ref().is_some_and(|flows| flows.is_due(flow, generation)) {
            return;
        }
        let run = self.flow_runs[flow as usize];
        self.note(21, u64::from(run));
        let node = &mut self.nodes[self.runs[run as usize].node as usize];
        if node.paused_until > self.now {
            node.missed.push(Happening::Fetched { flow, generation });
            return;
        }
        self.stop_fetching(run);
        let running = &mut self.runs[run as usize];
        running.until = self.now + self.setting.network.latency + running.takes;
        let (node, until, generation) = (running.node, running.until, running.generation);
        self.calendar.push(until, Happening::RunEnds { node, run, generation });
    }

    /// A run does not read any more; others may be faster then.
    pub(super) fn stop_fetching(&mut self, run: u32) {
        let flow = std::mem::replace(&mut self.runs[run as usize].flow, NONE);
        if flow != NONE
            && let Some(flows) = &mut self.flows
        {
            let mut ends = Vec::new();
            flows.end(self.now, flow, &mut ends);
            self.expect(&ends);
        }
    }
}
