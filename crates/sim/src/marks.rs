//! What happened in a world, for people: the text trace, pictures and reports are made from it.

use filch_core::{Cause, Status, Time};

/// Something that happened. Tasks and workers are named by their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Mark {
    /// A task arrived.
    Submitted { task: u32 },
    /// A worker began a task.
    Began { task: u32, node: u32 },
    /// A run came to its end.
    Ended { task: u32, node: u32, failed: bool },
    /// A run ended with its worker.
    Lost { task: u32, node: u32 },
    /// A task was settled.
    Settled { task: u32, status: Status, cause: Cause },
    /// A queued task changed hands.
    Moved { task: u32, from: u32, to: u32 },
    /// A worker joined.
    Joined { node: u32 },
    /// A worker died.
    Died { node: u32 },
    /// A worker stands still.
    Paused { node: u32 },
    /// A worker is back.
    Back { node: u32 },
    /// The coordinator died.
    CoordinatorDied,
    /// Another coordinator took over.
    TookOver,
}

/// All of it, in order.
#[derive(Clone, Debug, Default)]
pub struct Marks(Vec<(Time, Mark)>);

impl Marks {
    pub(crate) fn push(&mut self, at: Time, mark: Mark) {
        self.0.push((at, mark));
    }

    /// What happened, and when.
    pub fn iter(&self) -> impl Iterator<Item = (Time, Mark)> + '_ {
        self.0.iter().copied()
    }

    /// How much happened.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
