//! What a worker runs: programs by the executor, functions as tasks of their own, and what is so short or so idle that it
//! needs neither.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use bytes::Bytes;
use filch_core::wire::Order;
use filch_core::wire::talk::Ending;
use filch_core::{Cause, End, Held, Span, TaskId, Time, attempt_in_life};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::task::AbortHandle;

use super::super::bodies::{Action, Element, Prepared};
use super::super::call::{Call, CallFailure, call};
use super::super::inbox::Inbox;
use super::super::process::{Surroundings, Tap, command, ending, number};
use crate::exec::{self, Executor, Running};
use crate::worker::{Event, WorkerOptions};

/// The longest sleep that makes sense, in seconds.
const LONGEST_SLEEP: f64 = 1e9;

/// Something that ran has ended.
pub(in crate::worker) struct Finished {
    task: TaskId,
    /// Tells apart runs of the same attempt in different lives of the coordinator.
    serial: u64,
    how: How,
}

enum How {
    Process(Result<exec::Outcome, exec::Error>),
    Call(Result<Bytes, CallFailure>),
    /// It was stopped.
    Vanished,
}

/// What came of beginning something.
pub(super) enum Started {
    /// It runs.
    Runs,
    /// It is done already, with this result.
    Done(Bytes),
    /// It cannot be done; whether trying again makes sense.
    Failed(String, bool),
}

enum What {
    Process { running: Running, tap: Arc<Tap> },
    Call(Abort),
    Sleep,
}

/// Ends a function when it is dropped.
struct Abort(AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Run {
    attempt: u32,
    serial: u64,
    timeout: Option<Span>,
    stopping: Option<Cause>,
    what: What,
}

/// Everything that runs.
pub(super) struct Runs {
    inbox: Inbox,
    around: Surroundings,
    slots: usize,
    largest_result: usize,
    /// Has no threads before there is a program to run.
    executor: Option<Executor>,
    runs: FxHashMap<TaskId, Run>,
    sleeps: BinaryHeap<Reverse<(Time, u64, TaskId)>>,
    looked_at: FxHashSet<u64>,
    serials: u64,
}

impl Runs {
    pub(super) fn new(options: &WorkerOptions, inbox: Inbox) -> Runs {
        Runs {
            inbox,
            around: Surroundings {
                worker: options.name.clone(),
                access: options.access_file.clone(),
                life: options.life.clone(),
                gpus: options.gpus.clone(),
                cuda: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            },
            slots: options.slots.max(1) as usize,
            largest_result: options.largest_result,
            executor: None,
            runs: FxHashMap::default(),
            sleeps: BinaryHeap::new(),
            looked_at: FxHashSet::default(),
            serials: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Begins to do what an order says, with these accelerators.
    pub(super) fn start(
        &mut self,
        order: &Order,
        prepared: &Prepared,
        element: Element,
        gpus: &[u16],
        now: Time,
    ) -> Started {
        match &prepared.action {
            Action::Noop => Started::Done(Bytes::new()),
            Action::Echo => self.limited(element.read(&prepared.work)),
            Action::Sleep => self.sleep(order, &element.read(&prepared.work), now),
            Action::Call(handler) => {
                let serial = self.serial();
                let call_of = Call {
                    number: number(&prepared.work, element.place),
                    index: element.place,
                    input: element.read(&prepared.work),
                    job: prepared.work.job,
                    task: order.held.task.to_bits(),
                    attempt: attempt_in_life(order.held.attempt),
                    gpus: gpus.to_vec(),
                };
                let report = Report { inbox: self.inbox.clone(), task: order.held.task, serial, how: How::Vanished };
                let answer = call(Arc::clone(handler), call_of);
                let task = tokio::spawn(async move { report.told(answer.await) });
                self.enter(order, serial, What::Call(Abort(task.abort_handle())));
                Started::Runs
            }
            Action::Process => self.process(order, prepared, &element, gpus),
            Action::Impossible(why, retry) => Started::Failed(why.clone(), *retry),
        }
    }

    fn serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }

    fn enter(&mut self, order: &Order, serial: u64, what: What) {
        let Held { task, attempt, .. } = order.held;
        self.runs.insert(task, Run { attempt, serial, timeout: order.timeout, stopping: None, what });
    }

    fn limited(&self, result: Bytes) -> Started {
        if result.len() <= self.largest_result {
            return Started::Done(result);
        }
        Started::Failed(too_large(result.len(), self.largest_result), false)
    }

    fn sleep(&mut self, order: &Order, input: &[u8], now: Time) -> Started {
        let text = String::from_utf8_lossy(input);
        let seconds = text.trim().parse::<f64>().ok().filter(|seconds| (0.0..=LONGEST_SLEEP).contains(seconds));
        let Some(seconds) = seconds else {
            let why = format!("`sleep` wants a number of seconds, not `{}`", text.chars().take(40).collect::<String>());
            return Started::Failed(why, false);
        };
        let until = now + Span::from_secs_f64(seconds);
        if until <= now {
            return Started::Done(Bytes::new());
        }
        let serial = self.serial();
        self.sleeps.push(Reverse((until, serial, order.held.task)));
        self.enter(order, serial, What::Sleep);
        Started::Runs
    }

    /// When the next sleeper wakes.
    pub(super) fn next_wake(&self) -> Option<Time> {
        self.sleeps.peek().map(|next| next.0.0)
    }

    /// A sleeper whose time is over, if there is one.
    pub(super) fn wake(&mut self, now: Time) -> Option<(TaskId, u32)> {
        while let Some(&Reverse((at, serial, task))) = self.sleeps.peek()
            && at <= now
        {
            self.sleeps.pop();
            if let Some(run) = self.take(task, serial) {
                return Some((task, run.attempt));
            }
        }
        None
    }

    fn take(&mut self, task: TaskId, serial: u64) -> Option<Run> {
        if self.runs.get(&task)?.serial != serial {
            return None;
        }
        self.runs.remove(&task)
    }

    fn process(&mut self, order: &Order, prepared: &Prepared, element: &Element, gpus: &[u16]) -> Started {
        let command = match command(&prepared.work, order, element, gpus, &self.around) {
            Ok(command) => command,
            Err(error) => return Started::Failed(error.to_string(), false),
        };
        let (task, serial) = (order.held.task, self.serial());
        let inbox = self.inbox.clone();
        let tap = Tap::new(task.to_bits(), order.held.attempt, move |shown| {
            // Nobody wants to see it if the worker has ended.
            let _ = inbox.send(Event::Wrote(Box::new(shown)));
        });
        if self.looked_at.contains(&task.to_bits()) {
            tap.look(true);
        }
        let (inbox, wrote) = (self.inbox.clone(), Arc::clone(&tap));
        let done = Box::new(move |outcome| {
            let finished = Finished { task, serial, how: How::Process(outcome) };
            report(finished, &inbox, wrote.is_on_the_way());
        });
        let executor = self.executor.get_or_insert_with(|| Executor::new(self.slots));
        let running = executor.start(command, Some(tap.watch()), done);
        self.enter(order, serial, What::Process { running, tap });
        Started::Runs
    }

    /// Somebody wants to see what a task writes, or no longer.
    pub(super) fn look(&mut self, task: u64, looks: bool) {
        if looks {
            self.looked_at.insert(task);
        } else {
            self.looked_at.remove(&task);
        }
        if let Some(Run { what: What::Process { tap, .. }, .. }) = self.runs.get(&TaskId::from_bits(task)) {
            tap.look(looks);
        }
    }

    /// Stops something. If it stops at once, how it ended and what there is to say about it.
    pub(super) fn stop(&mut self, held: Held, cause: Cause) -> Option<(End, Option<Ending>)> {
        let run = self.runs.get_mut(&held.task).filter(|run| run.attempt == held.attempt)?;
        run.stopping = Some(cause);
        match &run.what {
            What::Process { running, .. } => running.stop(),
            What::Call(abort) => abort.0.abort(),
            What::Sleep => {
                let about = Ending { task: held.task.to_bits(), attempt: held.attempt, ..Ending::default() };
                return self.runs.remove(&held.task).map(|run| stopped(&run, about));
            }
        }
        None
    }

    /// Ends everything now; each of them is still told of.
    pub(super) fn kill_all(&mut self) {
        for (task, run) in &mut self.runs {
            run.stopping.get_or_insert(Cause::WorkerLeft);
            match &run.what {
                What::Process { running, .. } => running.kill(),
                What::Call(abort) => abort.0.abort(),
                What::Sleep => {
                    let finished = Finished { task: *task, serial: run.serial, how: How::Vanished };
                    let _ = self.inbox.send(Event::Ended(Box::new(finished)));
                }
            }
        }
    }

    /// Ends everything now, and nobody hears of it.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.sleeps.clear();
        self.looked_at.clear();
    }

    /// How something ended, and what there is to say about it.
    pub(super) fn finished(&mut self, finished: Finished) -> Option<(TaskId, u32, End, Option<Ending>)> {
        let Finished { task, serial, how } = finished;
        let run = self.take(task, serial)?;
        self.looked_at.remove(&task.to_bits());
        let about = Ending { task: task.to_bits(), attempt: run.attempt, ..Ending::default() };
        let (end, ending) = match how {
            How::Process(outcome) => end_of_process(outcome, &run, about),
            How::Vanished => stopped(&run, about),
            How::Call(_) if run.stopping.is_some() => stopped(&run, about),
            How::Call(Ok(result)) if result.is_empty() => (End::Done, None),
            How::Call(Ok(result)) if result.len() > self.largest_result => {
                let error = too_large(result.len(), self.largest_result);
                (End::Failed { retry: false }, Some(Ending { error, ..about }))
            }
            How::Call(Ok(result)) => (End::Done, Some(Ending { result, ..about })),
            How::Call(Err(CallFailure { error, retry })) => (End::Failed { retry }, Some(Ending { error, ..about })),
        };
        Some((task, run.attempt, end, ending))
    }
}

/// A program has ended. What it wrote comes before its end, so that is not overtaken if it is still on the way.
fn report(finished: Finished, inbox: &Inbox, wrote: bool) {
    let ended = Event::Ended(Box::new(finished));
    // Nobody listens any more if the worker has ended.
    let _ = if wrote { inbox.send(ended) } else { inbox.hand_over(ended) };
}

/// Tells the worker how a function ended, whatever becomes of it.
struct Report {
    inbox: Inbox,
    task: TaskId,
    serial: u64,
    how: How,
}

impl Report {
    fn told(mut self, outcome: Result<Bytes, CallFailure>) {
        self.how = How::Call(outcome);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let how = std::mem::replace(&mut self.how, How::Vanished);
        let finished = Finished { task: self.task, serial: self.serial, how };
        let _ = self.inbox.send(Event::Ended(Box::new(finished)));
    }
}

fn too_large(length: usize, limit: usize) -> String {
    format!("its result has {length} bytes, and at most {limit} are passed on: write it to a file and return its name")
}

fn end_of_stopped(cause: Cause) -> End {
    match cause {
        Cause::TimedOut => End::TimedOut,
        _ => End::GivenBack,
    }
}

fn stopped(run: &Run, about: Ending) -> (End, Option<Ending>) {
    let cause = run.stopping.unwrap_or(Cause::WorkerLeft);
    let error = match (cause, run.timeout) {
        (Cause::TimedOut, Some(timeout)) => format!("stopped: it ran longer than {timeout}"),
        _ => return (end_of_stopped(cause), None),
    };
    (end_of_stopped(cause), Some(Ending { error, ..about }))
}

fn end_of_process(outcome: Result<exec::Outcome, exec::Error>, run: &Run, about: Ending) -> (End, Option<Ending>) {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(exec::Error::Cancelled) => return stopped(run, about),
        Err(error) => {
            return (End::Failed { retry: true }, Some(Ending { error: error.to_string(), ..about }));
        }
    };
    let (succeeded, was_stopped) = (outcome.succeeded(), outcome.stopped.is_some());
    let mut said = ending(about.task, about.attempt, outcome);
    if was_stopped {
        let (end, why) = stopped(run, about);
        said.error = why.map_or_else(String::new, |why| why.error);
        return (end, Some(said));
    }
    (if succeeded { End::Done } else { End::Failed { retry: true } }, Some(said))
}
