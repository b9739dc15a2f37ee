//! Who is awake, who searches, who sleeps: so that work is never left lying while a worker sleeps over it.
//!
//! It decides who is woken; it knows nothing of queues. The rule the callers keep: make work visible first, then notify;
//! enlist as a sleeper first, then look for work once more.

use crate::listen::Listeners;
use crate::sync::{AtomicBool, AtomicUsize, Crowd, Mutex, Ordering, Padded, Thread, fence, lock};

/// The sleepers of one pool.
pub(crate) struct Sleep {
    /// Workers that look for work right now. One is enough to find what is new.
    searching: Padded<Crowd>,
    /// How many workers are on the list.
    sleeping: AtomicUsize,
    /// Workers that run something.
    active: AtomicUsize,
    /// Whether one of the sleepers only naps and looks around now and then.
    sentinel: AtomicBool,
    list: Mutex<Vec<(usize, Thread)>>,
}

impl Sleep {
    pub(crate) fn new() -> Self {
        Self {
            searching: Padded(Crowd::new()),
            sleeping: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            sentinel: AtomicBool::new(false),
            list: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn start_search(&self) {
        self.searching.come(1);
    }

    pub(crate) fn stop_search(&self) {
        self.searching.go();
    }

    /// A searcher found something and runs it. If there is more, it must say so by `wake_another` after this: producers
    /// that saw it search have woken nobody.
    pub(crate) fn start_active(&self) {
        self.active.fetch_add(1, Ordering::SeqCst);
        self.stop_search();
        fence(Ordering::SeqCst);
    }

    /// Wakes one more sleeper, to look around while the worker runs that the caller just woke. The caller is about to park
    /// and leaves its core to it; woken by that worker at its first fork, it would often start on the worker's own core.
    pub(crate) fn wake_companion(&self) {
        if self.sleeping.load(Ordering::Relaxed) > 0 && !self.sentinel.load(Ordering::Relaxed) {
            self.wake_one();
        }
    }

    /// A running worker forked, or took something from one that forks: if nobody is left to look around, somebody is
    /// woken for that.
    pub(crate) fn wake_sentinel(&self) {
        if self.sleeping.load(Ordering::Relaxed) == 0 {
            return;
        }
        fence(Ordering::SeqCst);
        if !self.sentinel.load(Ordering::Relaxed) {
            self.wake_another();
        }
    }

    pub(crate) fn stop_active(&self) {
        self.active.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether no worker runs anything.
    pub(crate) fn none_active(&self) -> bool {
        self.active.load(Ordering::SeqCst) == 0
    }

    /// Whether nobody looks for work, at most so many workers run something, and there is nothing to do, all at one moment. A
    /// worker that found something counts as running before it stops searching; and who begins to search while this looks
    /// around may have taken what it does not find any more.
    pub(crate) fn is_still(&self, running: usize, has_work: impl FnOnce() -> bool) -> bool {
        let searching = self.searching.look();
        Crowd::count_of(searching) == 0
            && self.active.load(Ordering::SeqCst) <= running
            && !has_work()
            && self.searching.look() == searching
    }

    /// Whether all workers that run something sleep while they wait, so that nobody goes on by itself.
    ///
    /// Whoever ends a wait counts the sleeper out before it stops running itself: as long as the same ones sleep, they are all
    /// that run anything.
    pub(crate) fn is_stuck(&self, listeners: &Listeners, has_work: impl FnOnce(usize) -> bool) -> bool {
        let sleepers = listeners.crowd().look();
        let waiting = Crowd::count_of(sleepers);
        waiting > 0 && self.is_still(waiting, || has_work(waiting)) && listeners.crowd().look() == sleepers
    }

    /// Work was made visible by a thread outside the pool, or for a worker that must not be kept waiting. True if a
    /// sleeper was woken for it.
    pub(crate) fn notify(&self) -> bool {
        // Pairs with the fence in `enlist`: either the sleeper sees the work or we see the sleeper.
        fence(Ordering::SeqCst);
        self.wake_another()
    }

    /// Work was made visible by a running worker. Without a fence: if the race with a worker that is falling asleep is
    /// lost, the sentinel, which cannot sleep for good while the caller is active, finds the work at its next look.
    #[inline]
    pub(crate) fn notify_relaxed(&self) {
        if self.sleeping.load(Ordering::Relaxed) > 0 {
            self.wake_another();
        }
    }

    /// Wakes a sleeper unless somebody searches already; true if it did.
    pub(crate) fn wake_another(&self) -> bool {
        self.searching.count() == 0 && self.sleeping.load(Ordering::Relaxed) > 0 && self.wake_one()
    }

    #[cold]
    fn wake_one(&self) -> bool {
        let woken = {
            let mut list = lock(&self.list);
            let last = list.pop();
            if last.is_some() {
                // On the woken worker's behalf, so that nobody wakes a second one before it runs.
                self.sleeping.fetch_sub(1, Ordering::SeqCst);
                self.start_search();
            }
            last
        };
        woken.is_some_and(|(_, thread)| {
            thread.unpark();
            true
        })
    }

    /// Wakes one certain worker if it sleeps.
    pub(crate) fn wake(&self, index: usize) {
        fence(Ordering::SeqCst);
        let woken = {
            let mut list = lock(&self.list);
            list.iter().position(|(sleeper, _)| *sleeper == index).map(|at| {
                self.sleeping.fetch_sub(1, Ordering::SeqCst);
                self.start_search();
                list.swap_remove(at)
            })
        };
        if let Some((_, thread)) = woken {
            thread.unpark();
        }
    }

    /// Wakes everybody, to let them see that the pool ends.
    pub(crate) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        let everybody = {
            let mut list = lock(&self.list);
            self.sleeping.fetch_sub(list.len(), Ordering::SeqCst);
            self.searching.come(list.len());
            std::mem::take(&mut *list)
        };
        for (_, thread) in everybody {
            thread.unpark();
        }
    }

    /// Puts a worker that stopped searching on the list. It must look for work once more before it parks.
    pub(crate) fn enlist(&self, index: usize, thread: Thread) {
        {
            let mut list = lock(&self.list);
            list.push((index, thread));
            self.sleeping.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Takes a worker off the list; false if it was woken, and so is off already. It counts as searching from here on.
    pub(crate) fn delist(&self, index: usize) -> bool {
        let mut list = lock(&self.list);
        let place = list.iter().position(|(sleeper, _)| *sleeper == index);
        if let Some(at) = place {
            list.swap_remove(at);
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
            self.start_search();
        }
        place.is_some()
    }

    /// Whether one of the sleepers looks around now and then.
    pub(crate) fn has_sentinel(&self) -> bool {
        self.sentinel.load(Ordering::SeqCst)
    }

    /// Tries to become the one sleeper that looks around now and then.
    pub(crate) fn claim_sentinel(&self) -> bool {
        !self.sentinel.swap(true, Ordering::SeqCst)
    }

    /// Stops being the sentinel. A worker that wants to sleep for good must then check `none_active` once more.
    pub(crate) fn release_sentinel(&self) {
        self.sentinel.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}
