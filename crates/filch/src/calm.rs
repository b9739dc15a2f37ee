//! Running code of somebody else (callbacks, wakers, policies, drops) so that its panics end here. Never hides one: the
//! panic hook has reported it.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the code returns, or nothing if it panics.
#[inline]
pub(crate) fn calmly<O>(code: impl FnOnce() -> O) -> Option<O> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(output) => Some(output),
        Err(panic) => {
            // What it panicked with is theirs too, and may panic when dropped. What that panics with is not dropped, or
            // this would never end.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(again);
            }
            None
        }
    }
}
