//! Ctrl-C and the polite request to end, as events.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Tells when somebody wants this process to end. As long as it is there, the process does not end by itself.
pub(crate) struct Interrupts {
    keyboard: Signal,
    request: Signal,
}

impl Interrupts {
    pub(crate) fn new() -> std::io::Result<Interrupts> {
        Ok(Interrupts { keyboard: signal(SignalKind::interrupt())?, request: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.keyboard.recv() => {}
            _ = self.request.recv() => {}
        }
    }
}
