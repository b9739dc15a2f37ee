//! Descriptors that tasks wait for.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor to wait for. Must be called within a runtime.
// Deprecated because not every type keeps its descriptor open; this one does. The new name for it is unsafe to call.
#[allow(deprecated, reason = "an owned descriptor stays open and the same")]
pub(crate) fn watched(descriptor: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    AsyncFd::with_interest(descriptor, interest)
}
