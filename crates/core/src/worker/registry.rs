//! What a worker knows of its peers. Comes from the coordinator's digests and from what peers answer; never complete, and
//! soon out of date.

use smallvec::SmallVec;

use crate::ids::WorkerId;
use crate::steal::{Peer, Peers};
use crate::time::{Span, Time};
use crate::wire::PeerDigest;

/// Peers remembered at the most. So few that looking through all of them is the quickest way to find one.
const MOST: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Known {
    peer: Peer,
    heard: Time,
    /// When a digest last named it.
    named: Time,
}

/// The peers a worker has heard of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    /// Those with something queued first, otherwise in no particular order.
    known: Vec<Known>,
    /// How many have something queued.
    loaded: usize,
}

impl Registry {
    /// Nobody has anything queued.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
        self.loaded = 0;
    }

    /// News of some peers. Those not heard of for `stale_after` are forgotten, and the oldest if there are too many.
    pub(crate) fn merge(&mut self, digest: &[PeerDigest], own: Option<WorkerId>, now: Time, stale_after: Span) {
        if self.known.is_empty() {
            self.known.reserve(digest.len());
        }
        for news in digest.iter().filter(|news| Some(news.worker) != own) {
            self.set(Peer { worker: news.worker, depth: news.depth, load: news.load }, now, now);
        }
        let mut at = 0;
        while let Some(known) = self.known.get(at) {
            if known.heard + stale_after < now {
                self.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// A peer has told how long its queue is.
    pub(crate) fn set_depth(&mut self, worker: WorkerId, depth: u32, now: Time) {
        let known = self.find(worker).map(|at| self.known[at]);
        let load = known.map_or(1.0, |known| known.peer.load);
        self.set(Peer { worker, depth, load }, now, known.map_or(Time::ZERO, |known| known.named));
    }

    /// A peer refused and has told how long its queue is. If a digest said more less than `on_the_way` ago, what the coordinator
    /// gave it may not have reached it yet, and it is worth another question.
    pub(crate) fn refused(&mut self, worker: WorkerId, depth: u32, now: Time, on_the_way: Span) {
        let more = self.find(worker).map(|at| self.known[at]).is_some_and(|known| {
            known.peer.depth > depth && known.named > Time::ZERO && now.since(known.named) < on_the_way
        });
        if !more {
            self.set_depth(worker, depth, now);
        }
    }

    fn find(&self, worker: WorkerId) -> Option<usize> {
        self.known.iter().position(|known| known.peer.worker == worker)
    }

    fn set(&mut self, peer: Peer, now: Time, named: Time) {
        match self.find(peer.worker) {
            Some(at) => self.remove(at),
            None if self.known.len() >= MOST => {
                // The one that was heard longest ago, and of those the first by id.
                let oldest =
                    (0..self.known.len()).min_by_key(|at| (self.known[*at].heard, self.known[*at].peer.worker));
                oldest.into_iter().for_each(|at| self.remove(at));
            }
            None => {}
        }
        self.known.push(Known { peer, heard: now, named });
        if peer.depth > 0 {
            let last = self.known.len() - 1;
            self.known.swap(self.loaded, last);
            self.loaded += 1;
        }
    }

    /// A peer did not answer. It may be slow, or its answer was lost, so it stays; but it counts for half of what it was said to
    /// have, so that others are asked first and somebody who is gone not for long.
    pub(crate) fn doubt(&mut self, worker: WorkerId) {
        let Some(at) = self.find(worker) else { return };
        let depth = &mut self.known[at].peer.depth;
        *depth /= 2;
        if *depth == 0 {
            self.remove(at);
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        if let Some(at) = self.find(worker) {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: usize) {
        let mut gap = at;
        if at < self.loaded {
            // The last of the loaded takes its place, so that they stay together.
            self.loaded -= 1;
            self.known.swap(at, self.loaded);
            gap = self.loaded;
        }
        self.known.swap_remove(gap);
    }

    fn by_depth(&self) -> SmallVec<[Peer; MOST]> {
        let mut peers: SmallVec<[Peer; MOST]> = self.known[..self.loaded].iter().map(|known| known.peer).collect();
        peers.sort_unstable_by_key(|peer| (peer.depth, peer.worker));
        peers
    }
}

impl Peers for Registry {
    fn len(&self) -> usize {
        self.loaded
    }
    fn get(&self, position: usize) -> Option<Peer> {
        self.known[..self.loaded].get(position).map(|known| known.peer)
    }
    fn longest(&self) -> impl Iterator<Item = Peer> {
        self.by_depth().into_iter().rev()
    }
    fn shortest(&self, depth: u32) -> impl Iterator<Item = Peer> {
        self.by_depth().into_iter().filter(move |peer| peer.depth >= depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(worker: u64, depth: u32) -> PeerDigest {
        PeerDigest { worker: WorkerId::from_bits(worker), depth, backlog: Span::ZERO, load: 1.0 }
    }

    fn depth(registry: &Registry, worker: u64) -> u32 {
        registry.find(WorkerId::from_bits(worker)).map_or(0, |at| registry.known[at].peer.depth)
    }

    #[test]
    fn news_replace_what_was_known_and_old_peers_are_forgotten() {
        let mut registry = Registry::default();
        let second = Span::from_secs(1);
        registry.merge(&[news(1, 5), news(2, 0), news(3, 9)], Some(WorkerId::from_bits(3)), Time(0), second);
        assert_eq!((registry.len(), depth(&registry, 3)), (1, 0));
        registry.set_depth(WorkerId::from_bits(1), 7, Time(5));
        registry.merge(&[news(4, 2)], None, Time(9), second);
        let longest: Vec<u32> = registry.longest().map(|peer| peer.depth).collect();
        assert_eq!(longest, [7, 2]);
        assert_eq!(registry.shortest(3).map(|peer| peer.depth).collect::<Vec<_>>(), [7]);
        registry.doubt(WorkerId::from_bits(1));
        assert_eq!(depth(&registry, 1), 3);
        registry.doubt(WorkerId::from_bits(1));
        registry.doubt(WorkerId::from_bits(1));
        assert_eq!((registry.len(), depth(&registry, 1)), (1, 0));
        registry.set_depth(WorkerId::from_bits(1), 7, Time(9));
        registry.merge(&[news(5, 1)], None, Time(2_000_000_000), second);
        assert_eq!((registry.len(), registry.known.len()), (1, 1));
        let many: Vec<PeerDigest> = (10..200).map(|worker| news(worker, 1)).collect();
        registry.merge(&many, None, Time(2_000_000_001), second);
        assert_eq!((registry.len(), registry.known.len()), (MOST, MOST));
        assert!((0..MOST).all(|at| registry.get(at).is_some()));
        registry.clear();
        assert_eq!((registry.len(), registry.known.len()), (0, 0));
    }
}
