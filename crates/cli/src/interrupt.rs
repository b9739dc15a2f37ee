//! Ctrl-C, the polite request to end and the end of the terminal, as events.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What somebody wants of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// That it ends: somebody pressed Ctrl-C.
    Interrupt,
    /// The same, by `kill` or whoever supervises it.
    Terminate,
    /// The same, and nobody is there any more: the terminal was closed.
    HangUp,
}

impl Wish {
    /// What to exit with where the wish is followed at once, as a shell tells of the signal.
    pub(crate) fn status(self) -> u8 {
        match self {
            Wish::Interrupt => 130,
            Wish::Terminate => 143,
            Wish::HangUp => 129,
        }
    }

    /// What whoever wishes it can do to wish it again.
    pub(crate) fn again(self) -> &'static str {
        match self {
            Wish::Interrupt => "Ctrl-C again",
            Wish::Terminate => "a second SIGTERM",
            Wish::HangUp => "a second SIGHUP",
        }
    }
}

/// Tells when somebody wants this process to end. As long as it is there, the process does not end by itself.
pub(crate) struct Interrupts {
    keyboard: Signal,
    request: Signal,
    /// None if this process was started to live on without its terminal.
    hang_up: Option<Signal>,
}

impl Interrupts {
    pub(crate) fn new() -> std::io::Result<Interrupts> {
        let hang_up = SignalKind::hangup();
        Ok(Interrupts {
            keyboard: signal(SignalKind::interrupt())?,
            request: signal(SignalKind::terminate())?,
            hang_up: if is_ignored(hang_up) { None } else { Some(signal(hang_up)?) },
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Wish {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.keyboard.recv() => Wish::Interrupt,
            _ = self.request.recv() => Wish::Terminate,
            _ = hang_up => Wish::HangUp,
        }
    }

    /// What was wanted already, if anything.
    pub(crate) async fn pending(&mut self) -> Option<Wish> {
        tokio::select! {
            biased;
            wish = self.next() => Some(wish),
            () = std::future::ready(()) => None,
        }
    }
}

/// Whether this process was started to ignore a signal, as `nohup` does. Where the system has no /proc it cannot be told, and
/// the signal is heard.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}
