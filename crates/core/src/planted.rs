//! Mistakes planted on purpose, one at a time, so that tests can show that the simulator finds each of them. Without the
//! feature `planted` none can be made, and the questions cost nothing. Nothing but tests may turn the feature on.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A report counts whatever attempt it is about.
    SkipAttemptFence,
    /// The coordinator does not note that a task changed hands.
    ForgetMoved,
    /// A thief that has found work meanwhile accepts an offer and forgets it.
    LoseGrant,
    /// After a restart nobody looks at what workers hold from before.
    RestartUnreconciled,
    /// An attempt that no longer counts gives the token of its key back twice.
    ReleaseKeyTwice,
    /// Messages that wait for the store do not.
    AcknowledgeBeforeSync,
    /// The disk accepts what a coordinator writes that was replaced.
    AcceptOldEpoch,
    /// A coordinator answers whether the store is its own or not.
    AnswerWithoutStore,
    /// What a worker says it holds is not compared.
    DropHoldingsCheck,
    /// Exclusive work begins and goes on when the worker is cut off.
    BeginBeyondLease,
    /// After a restart tasks with a key do not hold its token.
    RestoreWithoutToken,
    /// Outcomes are left out when records are replayed.
    ForgetOutcome,
}

impl Mistake {
    /// All of them.
    pub const ALL: &[Mistake] = &[
        Mistake::SkipAttemptFence,
        Mistake::ForgetMoved,
        Mistake::LoseGrant,
        Mistake::RestartUnreconciled,
        Mistake::ReleaseKeyTwice,
        Mistake::AcknowledgeBeforeSync,
        Mistake::AcceptOldEpoch,
        Mistake::AnswerWithoutStore,
        Mistake::DropHoldingsCheck,
        Mistake::BeginBeyondLease,
        Mistake::RestoreWithoutToken,
        Mistake::ForgetOutcome,
    ];
}

#[cfg(feature = "planted")]
mod active {
    use std::cell::Cell;

    use super::Mistake;

    thread_local! {
        static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    /// Makes one mistake from now on, or none, in all machines of this thread.
    pub fn plant(mistake: Option<Mistake>) {
        PLANTED.set(mistake);
    }

    /// Whether a mistake is to be made.
    #[must_use]
    pub fn makes(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }
}

#[cfg(feature = "planted")]
pub use active::{makes, plant};

/// Whether a mistake is to be made: never, in a build without planted mistakes.
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn makes(_: Mistake) -> bool {
    false
}
