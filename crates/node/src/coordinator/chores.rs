//! What is done now and then, beside everything else: the journal is folded into a snapshot when it has grown, and blobs
//! whose time is over are removed. On a thread of its own; never looks at the living machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use filch_core::{Span, Time};

use super::history::Item as Past;
use super::recover::{Folded, Unreadable};
use crate::store::{Epoch, Error, Place, Shard, Store, Until};

/// How often blobs are looked at.
const SWEEP: Span = Span::from_secs(60);
/// Blobs that are removed at once.
const AT_ONCE: usize = 1000;

/// What is to be done and what is under way.
pub(super) struct Chores {
    /// Bytes of the journal that are worth a snapshot, and those that no snapshot has.
    worth: usize,
    written: usize,
    swept: Time,
    busy: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Chores {
    /// Chores of a journal that has so many bytes already.
    pub(super) fn new(worth: usize, written: usize) -> Chores {
        Chores { worth, written, swept: Time::ZERO, busy: Arc::default(), thread: None }
    }

    /// So many bytes went to the journal.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
    }

    /// Begins what is due, unless something is under way.
    pub(super) fn look(
        &mut self,
        now: Time,
        store: &Arc<dyn Store>,
        (shard, epoch): (Shard, Epoch),
        history: impl FnOnce() -> Option<mpsc::Sender<Past>>,
    ) {
        let (fold, sweep) = (self.written >= self.worth, self.swept + SWEEP <= now);
        if !fold && !sweep || self.busy.swap(true, Ordering::Acquire) {
            return;
        }
        self.swept = now;
        let history = if fold { history() } else { None };
        if fold {
            self.written = 0;
        }
        let (store, busy) = (Arc::clone(store), Arc::clone(&self.busy));
        let work = move || {
            if let Some(history) = history
                && let Err(error) = snapshot(&*store, shard, epoch, &history)
            {
                tracing::warn!(%error, "the journal could not be folded; it goes on growing");
            }
            let until = Until(now.0 / 1_000_000);
            while sweep && matches!(store.sweep(until, AT_ONCE), Ok(AT_ONCE)) {}
            busy.store(false, Ordering::Release);
        };
        match std::thread::Builder::new().name("filch-chores".to_owned()).spawn(work) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "no thread for chores");
                self.busy.store(false, Ordering::Release);
            }
        }
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Folds everything that history has on disk.
pub(super) fn snapshot(
    store: &dyn Store,
    shard: Shard,
    epoch: Epoch,
    history: &mpsc::Sender<Past>,
) -> Result<Place, Unreadable> {
    let (tell, told) = mpsc::sync_channel(1);
    history.send(Past::Flush(tell)).map_err(|_| Unreadable::Store(Error::Closed))?;
    let place = Place(told.recv().map_err(|_| Unreadable::Store(Error::Closed))?);
    if store.snapshot(shard)?.is_some_and(|known| known.up_to >= place) || place == Place(0) {
        return Ok(place);
    }
    let folded = Folded::read(store, shard, Some(place), u64::MAX, drop)?;
    let up_to = folded.place;
    store.write_snapshot(shard, epoch, up_to, &mut folded.into_pages().into_iter())?;
    Ok(up_to)
}
