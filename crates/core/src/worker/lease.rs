//! What follows from the length of a lease for a worker: how often it says that it lives, when it stops what must never run twice,
//! and how long a round trip may take for that to work. Whoever judges a lease asks here.

use crate::time::Span;

/// How long after it was last heard a worker stops what must never run twice: early enough that it has stopped before
/// anybody else may begin it.
#[must_use]
pub fn fence_after(lease: Span) -> Span {
    Span(lease.0 / 4 * 3)
}

/// How long after a beat the next one follows.
pub(super) fn beat_every(lease: Span) -> Span {
    Span(lease.0 / 4)
}

/// Round trips must stay below this: then the answer to each beat comes before a worker would have to stop, for want of it, what
/// must never run twice. Where they do not, every such task that takes longer is stopped again and again and never ends.
///
/// ```
/// use filch_core::Span;
/// use filch_core::worker::longest_round_trip;
/// assert_eq!(longest_round_trip(Span::from_secs(4)), Span::from_secs(2));
/// ```
#[must_use]
pub fn longest_round_trip(lease: Span) -> Span {
    fence_after(lease) - beat_every(lease)
}
