//! What is worth saying, but not each time: somebody who is turned away again and again would fill the disk with it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long the first few are counted together.
const WINDOW: Duration = Duration::from_secs(10);
/// How many of them are said.
const FIRST: u32 = 10;

/// Counts what is said of one matter.
#[derive(Default)]
pub(crate) struct Seldom(Mutex<Option<Said>>);

struct Said {
    since: Instant,
    said: u32,
    unsaid: u64,
}

impl Seldom {
    /// Whether to say it: if so, how many times it was not said before.
    pub(crate) fn says(&self) -> Option<u64> {
        self.says_at(Instant::now())
    }

    fn says_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = Said { since: now, said: 0, unsaid: 0 };
        let said = state.get_or_insert(fresh);
        if now.saturating_duration_since(said.since) >= WINDOW {
            (said.since, said.said) = (now, 0);
        }
        if said.said >= FIRST {
            said.unsaid += 1;
            return None;
        }
        said.said += 1;
        Some(std::mem::take(&mut said.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_few_of_each_while_are_said_and_the_others_counted() {
        let (seldom, now) = (Seldom::default(), Instant::now());
        let said = |at: Instant| (0..100).filter_map(|_| seldom.says_at(at)).collect::<Vec<u64>>();
        assert_eq!(said(now), vec![0; FIRST as usize]);
        assert_eq!(said(now + WINDOW / 2), vec![0; 0]);
        let later = said(now + WINDOW);
        assert_eq!((later.len(), later[0], later[1]), (FIRST as usize, 190, 0));
    }
}
