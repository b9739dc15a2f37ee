//! A task that is a program: its command with placeholders and environment, its output for those who look on, and how it
//! ended.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use filch_core::attempt_in_life;
use filch_core::wire::Order;
use filch_core::wire::talk::{Chunk, Ending, InputSort, Program, Work, number_of};

use super::bodies::Element;
use super::devices;
use crate::detect::Gpu;
use crate::exec::{self, Command, Limits, Stream};
use crate::template::{self, TemplateError};

/// Bytes of output that are kept for those who begin to look on later.
const KEPT: usize = 64 << 10;
/// Bytes of output that may be on their way to those who look on.
const ON_THE_WAY: usize = 1 << 20;

/// The number of the element at a place, as its submitter counts.
pub(super) fn number(work: &Work, place: u32) -> i64 {
    number_of(work.first, work.step, place)
}

/// What every task of a worker is told of it.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) worker: String,
    /// Where the access file is, so that tasks can submit tasks.
    pub(super) access: Option<PathBuf>,
    /// By what its guard knows them.
    pub(super) life: Option<String>,
    /// Its accelerators, and which of NVIDIA's this process was told of.
    pub(super) gpus: Vec<Gpu>,
    pub(super) cuda: Option<String>,
}

/// The command of a task that has these accelerators.
pub(super) fn command(
    work: &Work,
    order: &Order,
    element: &Element,
    gpus: &[u16],
    around: &Surroundings,
) -> Result<Command, TemplateError> {
    let (place, number) = (element.place, number(work, element.place));
    let text = element.input.as_ref().filter(|_| work.input() != InputSort::Bytes);
    let word = |bytes: &Bytes| OsString::from_vec(bytes.to_vec());
    let mut command = match template::program(work, place, text.map(|text| &**text))? {
        Some(Program::Shell(script)) => Command::shell(word(&script)),
        Some(Program::Argv(words)) => {
            let mut words = words.words.iter().map(word);
            let program = words.next().unwrap_or_default();
            Command::argv(program, words.collect::<Vec<_>>())
        }
        Some(Program::Call(_)) | None => Command::argv("false", [] as [OsString; 0]),
    };
    command.stdin = work.stdin.to_vec();
    command.env_clear = work.env_clear;
    command.env = environment(work, order, (place, number), text, gpus, around);
    command.cwd = work.cwd.as_ref().map(|cwd| Path::new(std::ffi::OsStr::from_bytes(cwd)).to_path_buf());
    command.limits = Limits { memory: work.memory_limit, cpu_time: work.cpu_limit_nanos.map(Duration::from_nanos) };
    if let Some(grace) = work.grace_nanos {
        command.grace = Duration::from_nanos(grace);
    }
    if let Some(keep) = work.keep {
        command.keep = usize::try_from(keep).unwrap_or(usize::MAX / 2);
    }
    Ok(command)
}

fn environment(
    work: &Work,
    order: &Order,
    (place, number): (u32, i64),
    input: Option<&Bytes>,
    gpus: &[u16],
    around: &Surroundings,
) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = Vec::with_capacity(work.env.len() + 8);
    let mut set = |name: &str, value: String| env.push((name.into(), value.into()));
    set("FILCH_TASK", number.to_string());
    set("FILCH_INDEX", place.to_string());
    set("FILCH_JOB", work.job.to_string());
    set("FILCH_ATTEMPT", attempt_in_life(order.held.attempt).to_string());
    set("FILCH_TASK_ID", order.held.task.to_bits().to_string());
    set("FILCH_WORKER", around.worker.clone());
    // Set in any case: the one of this process, or the usual place, is that of another cluster.
    env.push(("FILCH_ACCESS".into(), around.access.clone().unwrap_or_default().into()));
    if let Some(life) = &around.life {
        env.push((exec::MARK.into(), life.into()));
    }
    if let Some(input) = input {
        env.push(("FILCH_INPUT".into(), OsString::from_vec(input.to_vec())));
    }
    if !gpus.is_empty() {
        let named = devices::variables(&around.gpus, around.cuda.as_deref(), gpus);
        env.extend(named.into_iter().map(|(name, value)| (name.into(), value.into())));
    }
    // What the submitter says last, so that it counts.
    let os = |bytes: &Bytes| OsString::from_vec(bytes.to_vec());
    env.extend(work.env.iter().map(|variable| (os(&variable.name), os(&variable.value))));
    env
}

/// How a program ended, for the coordinator.
pub(super) fn ending(order_task: u64, attempt: u32, outcome: exec::Outcome) -> Ending {
    let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let (exit_code, signal) = match outcome.end {
        exec::End::Exited(code) => (Some(code), None),
        exec::End::Signalled(signal) => (None, Some(signal)),
    };
    Ending {
        task: order_task,
        attempt,
        exit_code,
        signal,
        stdout_left_out: outcome.stdout.left_out(),
        stderr_left_out: outcome.stderr.left_out(),
        stdout: outcome.stdout.into_bytes().into(),
        stderr: outcome.stderr.into_bytes().into(),
        wall_nanos: nanos(outcome.wall),
        cpu_user_nanos: nanos(outcome.cpu_user),
        cpu_system_nanos: nanos(outcome.cpu_system),
        peak_memory: outcome.peak_memory,
        peak_memory_bound: !outcome.peak_memory_exact,
        ..Ending::default()
    }
}

/// The output of one running program: what came lately is kept, and shown to whoever looks on.
pub(super) struct Tap {
    task: u64,
    attempt: u32,
    state: Mutex<TapState>,
    on_the_way: Arc<AtomicUsize>,
    show: Box<dyn Fn(Shown) + Send + Sync>,
}

#[derive(Default)]
struct TapState {
    looked_at: bool,
    /// What was written last.
    kept: VecDeque<Piece>,
    bytes: usize,
    /// All that was written to standard output and to standard error.
    written: [u64; 2],
}

/// A part of the output, and how much of the same stream was before it.
#[derive(Clone)]
struct Piece {
    stderr: bool,
    offset: u64,
    bytes: Bytes,
}

/// Output on its way to those who look on.
pub(super) struct Shown {
    chunk: Chunk,
    length: usize,
    on_the_way: Arc<AtomicUsize>,
}

impl Shown {
    /// The output; there is room for more from now on.
    pub(super) fn take(mut self) -> Chunk {
        std::mem::take(&mut self.chunk)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.on_the_way.fetch_sub(self.length, Ordering::Relaxed);
    }
}

impl Tap {
    pub(super) fn new(task: u64, attempt: u32, show: impl Fn(Shown) + Send + Sync + 'static) -> Arc<Tap> {
        Arc::new(Tap { task, attempt, state: Mutex::default(), on_the_way: Arc::default(), show: Box::new(show) })
    }

    pub(super) fn watch(self: &Arc<Tap>) -> exec::Watch {
        let tap = Arc::clone(self);
        Box::new(move |stream, bytes| tap.push(stream == Stream::Err, bytes))
    }

    fn push(&self, stderr: bool, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let written = &mut state.written[usize::from(stderr)];
        let piece = Piece { stderr, offset: *written, bytes: Bytes::copy_from_slice(bytes) };
        *written += bytes.len() as u64;
        if state.looked_at {
            self.pass_on(piece.clone());
        }
        state.bytes += bytes.len();
        state.kept.push_back(piece);
        while state.bytes > KEPT
            && state.kept.len() > 1
            && let Some(gone) = state.kept.pop_front()
        {
            state.bytes -= gone.bytes.len();
        }
    }

    fn pass_on(&self, piece: Piece) {
        let length = piece.bytes.len();
        if self.on_the_way.load(Ordering::Relaxed) + length > ON_THE_WAY {
            // Whoever looks on too slowly misses something; the program does not wait for it.
            return;
        }
        let Piece { stderr, offset, bytes } = piece;
        self.on_the_way.fetch_add(length, Ordering::Relaxed);
        let chunk = Chunk { task: self.task, stderr, bytes, offset, attempt: self.attempt };
        (self.show)(Shown { chunk, length, on_the_way: Arc::clone(&self.on_the_way) });
    }

    /// Whether something that somebody wants to see has not been taken yet.
    pub(super) fn is_on_the_way(&self) -> bool {
        self.on_the_way.load(Ordering::Relaxed) > 0
    }

    /// Somebody looks on from now, or nobody any more.
    pub(super) fn look(&self, looked_at: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.looked_at = looked_at;
        if looked_at {
            // Again to those who have seen it: only the coordinator knows who has.
            state.kept.iter().cloned().for_each(|piece| self.pass_on(piece));
        }
    }
}
