//! What a worker knows of its peers. Comes from the coordinator's digests and from what peers answer; never complete, and
//! soon out of date.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::WorkerId;
use crate::steal::{Peer, Peers};
use crate::time::{Span, Time};
use crate::wire::PeerDigest;

/// Peers remembered at the most.
const MOST: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Known {
    peer: Peer,
    heard: Time,
    /// Its position in the list of those with something queued.
    at: usize,
}

/// The peers a worker has heard of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    known: BTreeMap<WorkerId, Known>,
    /// Those with something queued, in no particular order.
    loaded: Vec<WorkerId>,
    by_depth: BTreeSet<(u32, WorkerId)>,
}

impl Registry {
    /// News of some peers. Those not heard of for `stale_after` are forgotten, and the oldest if there are too many.
    pub(crate) fn merge(&mut self, digest: &[PeerDigest], own: Option<WorkerId>, now: Time, stale_after: Span) {
        for news in digest.iter().filter(|news| Some(news.worker) != own) {
            self.set(Peer { worker: news.worker, depth: news.depth, load: news.load }, now);
        }
        let stale = |known: &Known| known.heard + stale_after < now;
        let gone: Vec<WorkerId> =
            self.known.iter().filter(|(_, known)| stale(known)).map(|(worker, _)| *worker).collect();
        for worker in gone {
            self.forget(worker);
        }
        while self.known.len() > MOST {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.heard).map(|(worker, _)| *worker);
            match oldest {
                Some(worker) => self.forget(worker),
                None => break,
            }
        }
    }

    /// A peer has told how long its queue is.
    pub(crate) fn set_depth(&mut self, worker: WorkerId, depth: u32, now: Time) {
        let load = self.known.get(&worker).map_or(1.0, |known| known.peer.load);
        self.set(Peer { worker, depth, load }, now);
    }

    pub(crate) fn depth(&self, worker: WorkerId) -> u32 {
        self.known.get(&worker).map_or(0, |known| known.peer.depth)
    }

    fn set(&mut self, peer: Peer, now: Time) {
        self.forget(peer.worker);
        let at = self.loaded.len();
        if peer.depth > 0 {
            self.loaded.push(peer.worker);
            self.by_depth.insert((peer.depth, peer.worker));
        }
        self.known.insert(peer.worker, Known { peer, heard: now, at });
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        let Some(known) = self.known.remove(&worker) else { return };
        if known.peer.depth == 0 {
            return;
        }
        self.by_depth.remove(&(known.peer.depth, worker));
        self.loaded.swap_remove(known.at);
        if let Some(moved) = self.loaded.get(known.at)
            && let Some(entry) = self.known.get_mut(moved)
        {
            entry.at = known.at;
        }
    }

    fn peer(&self, worker: WorkerId) -> Option<Peer> {
        self.known.get(&worker).map(|known| known.peer)
    }
}

impl Peers for Registry {
    fn len(&self) -> usize {
        self.loaded.len()
    }
    fn get(&self, position: usize) -> Option<Peer> {
        self.peer(*self.loaded.get(position)?)
    }
    fn longest(&self) -> impl Iterator<Item = Peer> {
        self.by_depth.iter().rev().filter_map(|entry| self.peer(entry.1))
    }
    fn shortest(&self, depth: u32) -> impl Iterator<Item = Peer> {
        self.by_depth.range((depth, WorkerId::from_bits(0))..).filter_map(|entry| self.peer(entry.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(worker: u64, depth: u32) -> PeerDigest {
        PeerDigest { worker: WorkerId::from_bits(worker), depth, backlog: Span::ZERO, load: 1.0 }
    }

    #[test]
    fn news_replace_what_was_known_and_old_peers_are_forgotten() {
        let mut registry = Registry::default();
        let second = Span::from_secs(1);
        registry.merge(&[news(1, 5), news(2, 0), news(3, 9)], Some(WorkerId::from_bits(3)), Time(0), second);
        assert_eq!((registry.len(), registry.depth(WorkerId::from_bits(3))), (1, 0));
        registry.set_depth(WorkerId::from_bits(1), 7, Time(5));
        registry.merge(&[news(4, 2)], None, Time(9), second);
        let longest: Vec<u32> = registry.longest().map(|peer| peer.depth).collect();
        assert_eq!(longest, [7, 2]);
        assert_eq!(registry.shortest(3).map(|peer| peer.depth).collect::<Vec<_>>(), [7]);
        registry.merge(&[news(5, 1)], None, Time(2_000_000_000), second);
        assert_eq!((registry.len(), registry.known.len()), (1, 1));
        let many: Vec<PeerDigest> = (10..200).map(|worker| news(worker, 1)).collect();
        registry.merge(&many, None, Time(2_000_000_001), second);
        assert_eq!((registry.len(), registry.known.len(), registry.by_depth.len()), (MOST, MOST, MOST));
        assert!((0..MOST).all(|at| registry.get(at).is_some()));
    }
}
