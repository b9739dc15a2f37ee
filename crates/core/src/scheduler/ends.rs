//! How tasks of a kind ended lately and with whom, as far as it shows whether a failure is its worker's fault: what nobody else
//! could do either says nothing against the worker. Never says how long anything takes.

use crate::ids::{KindId, WorkerId};

/// The latest end with the worker that had one last, and the latest with any other.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    newest: Option<(WorkerId, bool)>,
    other: Option<(WorkerId, bool)>,
}

/// The latest ends of each kind.
#[derive(Debug, Default)]
pub(crate) struct LatestEnds(Vec<Latest>);

impl LatestEnds {
    pub(crate) fn note(&mut self, kind: KindId, worker: WorkerId, success: bool) {
        let at = kind.0 as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, Latest::default());
        }
        let latest = &mut self.0[at];
        if latest.newest.is_some_and(|(by, _)| by != worker) {
            latest.other = latest.newest;
        }
        latest.newest = Some((worker, success));
    }

    /// Whether the latest end of the kind with another worker than this was a good one.
    pub(crate) fn others_can(&self, kind: KindId, worker: WorkerId) -> bool {
        let Some(latest) = self.0.get(kind.0 as usize) else { return false };
        let elsewhere = latest.newest.filter(|(by, _)| *by != worker).or(latest.other);
        elsewhere.is_some_and(|(_, success)| success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_end_with_another_worker_counts() {
        let (kind, workers) = (KindId(3), [1, 2, 3].map(WorkerId::from_bits));
        let mut ends = LatestEnds::default();
        let said = |ends: &LatestEnds| workers.map(|worker| ends.others_can(kind, worker));
        assert_eq!(said(&ends), [false; 3]);
        ends.note(kind, workers[0], true);
        assert_eq!(said(&ends), [false, true, true]);
        for _ in 0..3 {
            ends.note(kind, workers[1], false);
            assert_eq!(said(&ends), [false, true, false]);
        }
        ends.note(kind, workers[2], true);
        assert_eq!(said(&ends), [true, true, false]);
        assert!(!ends.others_can(KindId(2), workers[0]), "of another kind nothing is known");
    }
}
