//! Workers that sleep while they wait for something, and what they want to be told of meanwhile.
//!
//! The end of what they wait for wakes them by itself; this is about what they could do until then. It decides whom a piece
//! of news concerns; it never wakes anybody itself. The rule is that of the sleepers: whoever has news makes it visible,
//! fences, and looks for listeners; whoever waits starts to listen and then looks once more.

use crate::sync::{AtomicU32, Crowd, Ordering, Padded, fence};

/// What a waiting worker wants to hear of, apart from what is addressed to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing.
    Nothing,
    /// Somebody of another pool enters this one.
    Entries,
    /// A fork was published, by whomever.
    AnyFork,
    /// A fork was published by this worker.
    ForkOf(u32),
}

const AWAKE: u32 = 0;
const FIRST_WORKER: u32 = 4;

impl News {
    fn code(self) -> u32 {
        match self {
            Self::Nothing => 1,
            Self::Entries => 2,
            Self::AnyFork => 3,
            Self::ForkOf(worker) => FIRST_WORKER + worker,
        }
    }
}

/// The waiting workers of one pool that sleep.
pub(crate) struct Listeners {
    /// How many there are.
    crowd: Padded<Crowd>,
    /// What each worker wants to hear of, or `AWAKE`.
    wants: Box<[AtomicU32]>,
}

impl Listeners {
    pub(crate) fn new(workers: usize) -> Self {
        Self { crowd: Padded(Crowd::new()), wants: (0..workers).map(|_| AtomicU32::new(AWAKE)).collect() }
    }

    /// How many workers sleep while they wait.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.crowd.count()
    }

    /// The same, to see whether anybody comes or goes.
    pub(crate) fn crowd(&self) -> &Crowd {
        &self.crowd
    }

    /// A worker is about to sleep. It must look once more for what it wants to hear of, and call `stop` when it is awake.
    pub(crate) fn start(&self, index: usize, news: News) {
        // Counted first: whoever takes it off the list counts it down.
        self.crowd.come(1);
        self.wants[index].store(news.code(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The worker is awake, or will be woken by the caller; true if it was not before.
    pub(crate) fn stop(&self, index: usize) -> bool {
        let wants = &self.wants[index];
        let listened = wants.load(Ordering::Relaxed) != AWAKE && wants.swap(AWAKE, Ordering::SeqCst) != AWAKE;
        if listened {
            self.crowd.go();
        }
        listened
    }

    /// Whether nobody woke the worker since it started to listen. Only that one asks.
    pub(crate) fn is_listening(&self, index: usize) -> bool {
        self.wants[index].load(Ordering::Relaxed) != AWAKE
    }

    /// Something was made visible that only this worker can do; true if it has to be woken.
    pub(crate) fn tell(&self, index: usize) -> bool {
        fence(Ordering::SeqCst);
        self.stop(index)
    }

    /// Something was made visible: the workers that have to be woken for it.
    #[inline]
    pub(crate) fn tell_all(&self, news: News, wake: impl FnMut(usize)) {
        fence(Ordering::SeqCst);
        if self.count() > 0 {
            self.find(news, wake);
        }
    }

    #[cold]
    fn find(&self, news: News, mut wake: impl FnMut(usize)) {
        let also = if matches!(news, News::ForkOf(_)) { News::AnyFork } else { news };
        let asked = |wants: &AtomicU32| [news.code(), also.code()].contains(&wants.load(Ordering::Relaxed));
        for index in (0..self.wants.len()).filter(|index| asked(&self.wants[*index])) {
            if self.stop(index) {
                wake(index);
            }
        }
    }
}
