//! Code of users that runs where nobody waits for it: drops of results and payloads nobody wants, wakers. Should it panic,
//! nobody is there to hear it, and the panic must not pass through frames that other threads still use.

use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls something of a user's whose panic nobody could be told of.
pub(crate) fn call(body: impl FnOnce()) {
    /// How often the payload of a panic may panic when it is dropped, and that one's, and so on.
    const MOST: usize = 8;
    let mut result = catch_unwind(AssertUnwindSafe(body));
    for _ in 0..MOST {
        let Err(payload) = result else { return };
        result = catch_unwind(AssertUnwindSafe(|| drop(payload)));
    }
    // There may be no end to it; a little memory is the better loss.
    mem::forget(result);
}

/// Drops something of a user's.
pub(crate) fn discard<T>(value: T) {
    call(|| drop(value));
}

/// Something of a user's that whoever holds it may be the last to have: its drop is nobody's either.
pub(crate) struct Unheard<T>(ManuallyDrop<T>);

impl<T> Unheard<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Unheard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Unheard<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken here only, and nobody sees it after its drop.
        discard(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

/// Ends the process if a panic passes: whoever runs a task must have caught it. Forget it when the task has ended.
pub(crate) struct NoPanicPasses;

impl Drop for NoPanicPasses {
    fn drop(&mut self) {
        // Frames below hold what other threads point to; going on would be worse than ending.
        std::process::abort();
    }
}
