//! Transfers that share links: who gets how much of a link at each moment.
//!
//! The shares are max-min fair: nobody gets more by taking from somebody who has less. They are found by progressive filling:
//! all transfers grow together; when a link is full those on it stop growing. A transfer that begins or ends
//! concerns only those it is connected to through links that can become full, so the cost is that of their number
//! and not of all transfers: O(transfers × full links) for each change among them.

use std::collections::BTreeSet;

use filch_core::{Span, Time};

/// One transfer over two links.
#[derive(Clone, Copy, Debug)]
struct Flow {
    links: [u32; 2],
    /// Bytes left at `since`.
    left: f64,
    /// Bytes a second.
    rate: f64,
    since: Time,
    /// Raised with every change of the rate, and when the place is used again.
    generation: u32,
    live: bool,
}

#[derive(Clone, Debug, Default)]
struct Link {
    /// Bytes a second.
    capacity: f64,
    flows: BTreeSet<u32>,
    /// The most that its transfers could use of it, by their other links.
    wanted: f64,
}

impl Link {
    /// Whether its transfers could fill it. If not, they know nothing of each other.
    fn can_be_full(&self) -> bool {
        self.wanted > self.capacity
    }
}

/// When a transfer ends, if nothing changes until then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ends {
    pub(crate) flow: u32,
    pub(crate) generation: u32,
    pub(crate) at: Time,
}

/// All transfers under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flows {
    links: Vec<Link>,
    flows: Vec<Flow>,
    free: Vec<u32>,
}

impl Flows {
    /// Links with so many bytes a second.
    pub(crate) fn new(capacities: impl IntoIterator<Item = f64>) -> Flows {
        let link = |capacity| Link { capacity, ..Link::default() };
        Flows { links: capacities.into_iter().map(link).collect(), ..Flows::default() }
    }

    /// A transfer begins. Appends when it and those it affects end.
    pub(crate) fn begin(&mut self, now: Time, links: [u32; 2], bytes: f64, ends: &mut Vec<Ends>) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            let unused = Flow { links, left: 0.0, rate: 0.0, since: now, generation: 0, live: false };
            self.flows.push(unused);
            self.flows.len() as u32 - 1
        });
        let generation = self.flows[at as usize].generation;
        self.flows[at as usize] = Flow { links, left: bytes, rate: 0.0, since: now, generation, live: true };
        for (own, other) in [(links[0], links[1]), (links[1], links[0])] {
            let most = self.links[other as usize].capacity;
            self.links[own as usize].flows.insert(at);
            self.links[own as usize].wanted += most;
        }
        self.share(now, at, ends);
        at
    }

    /// A transfer ends, whole or not. Appends when those it affects end.
    pub(crate) fn end(&mut self, now: Time, at: u32, ends: &mut Vec<Ends>) {
        let Flow { links, live, .. } = self.flows[at as usize];
        if !live {
            return;
        }
        let affected = self.connected(at);
        for (own, other) in [(links[0], links[1]), (links[1], links[0])] {
            let most = self.links[other as usize].capacity;
            let link = &mut self.links[own as usize];
            link.flows.remove(&at);
            link.wanted = if link.flows.is_empty() { 0.0 } else { link.wanted - most };
        }
        let flow = &mut self.flows[at as usize];
        flow.live = false;
        flow.generation += 1;
        self.free.push(at);
        let rest: Vec<u32> = affected.into_iter().filter(|other| *other != at).collect();
        self.fill(now, &rest, ends);
    }

    /// Whether that is the end of a transfer under way.
    pub(crate) fn is_due(&self, flow: u32, generation: u32) -> bool {
        self.flows.get(flow as usize).is_some_and(|known| known.live && known.generation == generation)
    }

    fn share(&mut self, now: Time, at: u32, ends: &mut Vec<Ends>) {
        let affected: Vec<u32> = self.connected(at).into_iter().collect();
        self.fill(now, &affected, ends);
    }

    /// A transfer and all it is connected to through links that can become full.
    fn connected(&self, at: u32) -> BTreeSet<u32> {
        let (mut found, mut open) = (BTreeSet::from([at]), vec![at]);
        let mut seen = BTreeSet::new();
        while let Some(flow) = open.pop() {
            for link in self.flows[flow as usize].links {
                if self.links[link as usize].can_be_full() && seen.insert(link) {
                    open.extend(self.links[link as usize].flows.iter().filter(|other| found.insert(**other)));
                }
            }
        }
        found
    }

    /// Gives transfers their fair rates. Their links have no others, or cannot become full.
    fn fill(&mut self, now: Time, flows: &[u32], ends: &mut Vec<Ends>) {
        let mut open: BTreeSet<u32> = flows.iter().copied().collect();
        let mut rates: Vec<(u32, f64)> = Vec::with_capacity(flows.len());
        let mut level = 0.0;
        // What is left of each link, and how many still grow on it.
        let mut links: Vec<(u32, f64, usize)> = Vec::new();
        let touched: BTreeSet<u32> = flows.iter().flat_map(|flow| self.flows[*flow as usize].links).collect();
        for link in touched {
            let growing = self.links[link as usize].flows.iter().filter(|flow| open.contains(flow)).count();
            links.push((link, self.links[link as usize].capacity, growing));
        }
        while !open.is_empty() {
            // A link that cannot become full holds nobody back: whoever is alone on it is held by its capacity all the same.
            let room = |&(_, left, growing): &(u32, f64, usize)| (growing > 0).then(|| left / growing as f64);
            let Some(step) = links.iter().filter_map(room).min_by(f64::total_cmp) else { break };
            level += step;
            let mut full = BTreeSet::new();
            for (link, left, growing) in &mut links {
                if *growing > 0 {
                    *left -= step * *growing as f64;
                    if *left <= self.links[*link as usize].capacity * 1e-9 {
                        full.insert(*link);
                    }
                }
            }
            let stopped: Vec<u32> = open
                .iter()
                .copied()
                .filter(|flow| self.flows[*flow as usize].links.iter().any(|link| full.contains(link)))
                .collect();
            for flow in stopped {
                open.remove(&flow);
                rates.push((flow, level));
                for link in self.flows[flow as usize].links {
                    if let Some(entry) = links.iter_mut().find(|entry| entry.0 == link) {
                        entry.2 -= 1;
                    }
                }
            }
        }
        for (at, rate) in rates {
            let flow = &mut self.flows[at as usize];
            if flow.rate == rate {
                continue;
            }
            flow.left = (flow.left - flow.rate * now.since(flow.since).as_secs_f64()).max(0.0);
            flow.since = now;
            flow.rate = rate;
            flow.generation += 1;
            let end = now + Span::from_secs_f64(flow.left / rate);
            ends.push(Ends { flow: at, generation: flow.generation, at: end });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(flows: &Flows) -> Vec<f64> {
        flows.flows.iter().map(|flow| if flow.live { flow.rate } else { 0.0 }).collect()
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    #[test]
    fn what_the_slow_cannot_use_the_others_share() {
        // Link 0 is the coordinator's; the workers' have 30, 100 and 100.
        let mut flows = Flows::new([100.0, 30.0, 100.0, 100.0]);
        let mut ends = Vec::new();
        flows.begin(at(0), [0, 2], 1000.0, &mut ends);
        assert_eq!(rates(&flows), [100.0]);
        assert_eq!(ends, [Ends { flow: 0, generation: 1, at: at(10) }]);
        flows.begin(at(2), [0, 1], 300.0, &mut ends);
        assert_eq!(rates(&flows), [70.0, 30.0]);
        flows.begin(at(2), [0, 3], 1000.0, &mut ends);
        assert_eq!(rates(&flows), [35.0, 30.0, 35.0]);
        // The second is whole after ten seconds; the first has 800 − 350 left then, and half of the link.
        assert!(flows.is_due(1, ends.iter().rfind(|end| end.flow == 1).unwrap().generation));
        flows.end(at(12), 1, &mut ends);
        assert_eq!(rates(&flows), [50.0, 0.0, 50.0]);
        let first = ends.iter().rfind(|end| end.flow == 0).unwrap();
        assert_eq!(first.at, at(21));
        assert!(flows.is_due(0, first.generation) && !flows.is_due(0, first.generation - 1));
    }

    #[test]
    fn links_that_are_never_full_connect_nobody() {
        let mut flows = Flows::new([1000.0, 30.0, 50.0]);
        let mut ends = Vec::new();
        flows.begin(at(0), [0, 1], 300.0, &mut ends);
        flows.begin(at(0), [0, 2], 300.0, &mut ends);
        assert_eq!((rates(&flows), ends.len()), (vec![30.0, 50.0], 2));
        assert_eq!(flows.connected(0), BTreeSet::from([0]));
        // Two to the same worker share its link and leave the other alone.
        flows.begin(at(1), [0, 1], 300.0, &mut ends);
        assert_eq!(rates(&flows), [15.0, 50.0, 15.0]);
        assert_eq!(flows.connected(0), BTreeSet::from([0, 2]));
    }
}
