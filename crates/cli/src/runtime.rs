//! The runtime of the commands that talk to others.

use std::future::Future;
use std::process::ExitCode;

/// Runs something to its end on a thread for every two processors, up to a few. The others are for those who write to the
/// store and for what runs beside: a thread that finds nothing to do is woken all the same whenever there is something.
pub(crate) fn run(what: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let threads = (processors / 2).clamp(1, 4);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let outcome = runtime.block_on(what);
    // What still waits, such as a read of a terminal, is not waited for.
    runtime.shutdown_background();
    outcome
}

/// The same on this thread alone: for one question and its answer.
pub(crate) fn ask(what: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    alone(what)
}

/// Runs something to its end on this thread alone: where one task does nearly everything, others would only be woken to find
/// nothing to do.
pub(crate) fn alone(what: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(what);
    runtime.shutdown_background();
    outcome
}
