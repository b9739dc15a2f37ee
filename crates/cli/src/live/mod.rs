//! A job as it is seen while it runs and when it is over: a bar, the outputs of its tasks, a log, a summary.
//!
//! Fed with what the coordinator says. Takes no decisions and keeps, for a million tasks, no more than for ten.

mod bar;
mod screen;
mod sink;
mod summary;
mod tally;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use filch_core::wire::talk::{Ended, Ending, Said};
use serde_json::json;

pub(crate) use screen::Screen;
pub(crate) use sink::{Sink, Streams};
pub(crate) use summary::duration;
use tally::Tally;

use crate::interrupt::Wish;
use crate::job::joblog::{Done, JobLog, Line};
use crate::job::{Plan, Tasks, Usage};
use crate::output;
use bar::Bar;

/// Prints the commands of a job.
fn dry_run(plan: &Plan, as_json: bool) -> anyhow::Result<ExitCode> {
    let tasks = &plan.tasks;
    let mut text = String::new();
    for index in 0..tasks.len() {
        let position = tasks.position(index);
        let (name, command, after) = (tasks.name(position), tasks.command(position), tasks.after(position));
        if as_json {
            let object = json!({"number": tasks.number(position), "name": name, "command": command, "after": after});
            text += &format!("{object}\n");
        } else {
            match name {
                Some(name) if after.is_empty() => text += &format!("{name}: {command}\n"),
                Some(name) => text += &format!("{name} (after {}): {command}\n", after.join(", ")),
                None => text += &format!("{command}\n"),
            }
        }
        if text.len() > 1 << 16 {
            output::print(&text)?;
            text.clear();
        }
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// How a job is followed.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LiveArgs {
    /// Write the outputs of each task to DIR/NUMBER.out and DIR/NUMBER.err instead of showing them; of each no more than --keep
    /// says.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, help_heading = "What is shown")]
    out: Option<PathBuf>,
    /// Write a line for each task that ended, as GNU parallel does; Exitval is -1 for one that was not run.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "What is shown")]
    joblog: Option<PathBuf>,
    /// Skip the tasks that the log says ended well, and go on with it.
    #[arg(long, alias = "resume-failed", requires = "joblog", help_heading = "What is shown")]
    resume: bool,
    /// Show the outputs, or the objects of --json, in the order of the tasks, whoever ended first.
    #[arg(long, short = 'k', conflicts_with = "out", help_heading = "What is shown")]
    keep_order: bool,
    /// Print a JSON object for each task that ended, and one with a summary at the end.
    #[arg(long, help_heading = "What is shown")]
    pub(crate) json: bool,
    /// Show how the job goes, even if nobody looks on at a terminal.
    #[arg(long, overrides_with = "no_progress", help_heading = "What is shown")]
    pub(crate) progress: bool,
    /// Do not show how the job goes.
    #[arg(long, overrides_with = "progress", help_heading = "What is shown")]
    no_progress: bool,
}

impl LiveArgs {
    /// Whether anything is to be shown of every task.
    pub(crate) fn want_tasks_shown(&self) -> bool {
        self.out.is_some() || self.joblog.is_some() || self.keep_order
    }

    /// Opens the log, and leaves out of the plan what it says is done.
    fn open_log(&self, plan: &mut Plan) -> Result<Option<JobLog>, Usage> {
        let Some(path) = &self.joblog else { return Ok(None) };
        if !self.resume {
            return JobLog::create(path).map(Some);
        }
        let (log, done): (JobLog, Done) = JobLog::resume(path, &plan.tasks)?;
        if done.count() > 0 {
            plan.leave_out(|position| done.contains(position));
        }
        Ok(Some(log))
    }

    /// What comes before a job is submitted: on a dry run it is only shown, and what the log says is done is left out. An exit
    /// code if there is nothing more to do.
    pub(crate) fn begin(&self, plan: &mut Plan, is_dry: bool) -> anyhow::Result<Result<Option<JobLog>, ExitCode>> {
        if is_dry {
            return dry_run(plan, self.json).map(Err);
        }
        let log = match self.open_log(plan) {
            Ok(log) => log,
            Err(usage) => return Ok(Err(usage.complain())),
        };
        if plan.tasks.len() == 0 {
            output::note("all tasks of this job are done already");
            return Ok(Err(ExitCode::SUCCESS));
        }
        Ok(Ok(log))
    }

    fn sink(&self) -> Result<Sink, Usage> {
        match &self.out {
            Some(directory) => Sink::files(directory),
            None if self.keep_order => Ok(Sink::in_order()),
            None if self.json => Ok(Sink::Nowhere),
            None => Ok(Sink::Streams),
        }
    }
}

/// A job that is followed.
pub(crate) struct Live {
    plan: Arc<Plan>,
    log: Option<JobLog>,
    sink: Sink,
    json: bool,
    bar: Bar,
    tally: Tally,
    began: Instant,
    /// Tasks that run at once, if it is known.
    slots: u32,
    /// Nobody reads the output any more.
    reader_gone: bool,
}

/// How a job ended, as far as it was followed; what counts more comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finish {
    /// All of its tasks ended.
    Whole,
    /// It was stopped, or left alone, because nobody reads its output any more.
    ReaderGone,
    /// Somebody at the keyboard stopped it.
    Interrupted,
    /// Somebody asked this process to end.
    Terminated,
    /// Its terminal was closed.
    HungUp,
}

impl From<Wish> for Finish {
    fn from(wish: Wish) -> Finish {
        match wish {
            Wish::Interrupt => Finish::Interrupted,
            Wish::Terminate => Finish::Terminated,
            Wish::HangUp => Finish::HungUp,
        }
    }
}

impl Finish {
    /// As a shell tells that a signal ended a program: 1 for a terminal that is closed, 2 for Ctrl-C, 13 for a pipe without a
    /// reader, 15 for a request to end.
    pub(crate) fn status(self, all_well: bool) -> u8 {
        match self {
            Finish::Whole => u8::from(!all_well),
            Finish::Interrupted => Wish::Interrupt.status(),
            Finish::Terminated => Wish::Terminate.status(),
            Finish::HungUp => Wish::HangUp.status(),
            Finish::ReaderGone => 141,
        }
    }
}

impl Live {
    pub(crate) fn new(args: &LiveArgs, plan: &Arc<Plan>, log: Option<JobLog>, slots: u32) -> Result<Live, Usage> {
        let bar = Bar::new(u64::from(plan.tasks.len()), args.progress, args.no_progress);
        Ok(Live {
            plan: Arc::clone(plan),
            log,
            sink: args.sink()?,
            json: args.json,
            bar,
            tally: Tally::new(),
            began: Instant::now(),
            slots,
            reader_gone: false,
        })
    }

    /// Takes in what the coordinator says.
    fn said(&mut self, said: Said) -> io::Result<()> {
        match said {
            Said::Progress(progress) => self.bar.show(&progress),
            Said::Ended(ended) => self.ended(&ended)?,
            Said::JobDone(progress) => {
                self.tally.agree(&progress);
                self.bar.show(&progress);
            }
            _ => {}
        }
        Ok(())
    }

    fn ended(&mut self, ended: &Ended) -> io::Result<()> {
        let plan = Arc::clone(&self.plan);
        let tasks = &plan.tasks;
        let position = tasks.position(ended.index);
        let number = tasks.number(position);
        self.tally.ended(ended, || what(tasks, position));
        self.bar.ended(&self.tally);
        if let Some(log) = &mut self.log {
            log.append(&line(ended, number, &tasks.command(position)))?;
        }
        let none = Ending::default();
        let ending = ended.ending.as_deref().unwrap_or(&none);
        let mut outputs = (ending.stdout.clone(), ending.stderr.clone());
        if self.json {
            let object = task_json(ended, position, tasks, matches!(self.sink, Sink::Files(_)));
            let record = format!("{object}\n");
            if matches!(self.sink, Sink::InOrder(_)) {
                // It waits for its turn in the place of the outputs that it tells of.
                outputs = (Bytes::from(record), Bytes::new());
            } else {
                let outcome = self.bar.streams().0.write_all(record.as_bytes());
                self.shown(outcome.map_err(|error| output::unwritten("to standard output", &error)))?;
            }
        }
        let silent = outputs.0.is_empty() && outputs.1.is_empty() && matches!(self.sink, Sink::Streams);
        if silent {
            return Ok(());
        }
        let (mut out, mut err) = self.bar.streams();
        let to = &mut Streams { out: &mut out, err: &mut err };
        let outcome = self.sink.task(ended.index, number, outputs, to);
        self.shown(outcome)
    }

    /// Whether nobody reads the output any more.
    fn has_lost_its_reader(&self) -> bool {
        self.reader_gone
    }

    /// From where nobody reads the output any more, nothing is shown; tasks are still counted and logged.
    fn shown(&mut self, outcome: io::Result<()>) -> io::Result<()> {
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.reader_gone = true;
                self.json = false;
                if !matches!(self.sink, Sink::Files(_)) {
                    self.sink = Sink::Nowhere;
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Shows what is left and the summary, and tells what to exit with.
    fn finish(mut self, how: Finish) -> io::Result<ExitCode> {
        let wall = self.began.elapsed();
        self.bar.clear();
        let (mut out, mut err) = self.bar.streams();
        let outcome = self.sink.finish(&mut Streams { out: &mut out, err: &mut err });
        self.shown(outcome)?;
        let before = u64::from(self.plan.tasks.all() - self.plan.tasks.len());
        if self.json {
            let outcome = output::print(&format!("{}\n", self.tally.to_json(wall, self.slots, before)));
            self.shown(outcome)?;
        } else {
            output::report(&summary::text(&self.tally, wall, self.slots, before));
        }
        let (done, all) = (self.tally.completed, u64::from(self.plan.tasks.len()));
        // Whoever goes away when everything has ended misses nothing that would be done.
        let is_whole = self.tally.cancelled == 0 && done + self.tally.failed + self.tally.skipped >= all;
        let how = if how == Finish::ReaderGone && is_whole { Finish::Whole } else { how };
        if how == Finish::ReaderGone {
            output::error(&format!("nobody reads the output any more; {done} of {all} tasks were done by then"), None);
        }
        Ok(ExitCode::from(how.status(self.tally.all_well())))
    }
}

/// What people call a task: its name or its number, and its command.
fn what(tasks: &Tasks, position: u32) -> String {
    let name = tasks.name(position).map_or_else(|| format!("task {}", tasks.number(position)), str::to_owned);
    format!("{name}: {}", shortened(&tasks.command(position), 80))
}

/// The beginning of a text that is too long.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let start: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{start}…")
}

fn line<'a>(ended: &'a Ended, number: i64, command: &'a str) -> Line<'a> {
    let ending = ended.ending.as_deref();
    let succeeded = ended.status == "completed";
    let unknown = if succeeded { 0 } else { -1 };
    let signal = ending.and_then(|ending| ending.signal).unwrap_or(0);
    let exit_code = ending.and_then(|ending| ending.exit_code).unwrap_or(if signal != 0 { 0 } else { unknown });
    let received = |ending: &Ending| ending.stdout.len() as u64 + ending.stdout_left_out;
    Line {
        seq: number,
        host: if ended.worker.is_empty() { "-" } else { &ended.worker },
        start_s: ended.began_nanos as f64 / 1e9,
        runtime_s: ended.ran_nanos as f64 / 1e9,
        send: 0,
        receive: ending.map_or(0, received),
        // A task that ended badly without a code of its own, such as one that took too long, is no success.
        exit_code: if exit_code == 0 && signal == 0 { unknown } else { exit_code },
        signal,
        command,
    }
}

/// A task that ended, for programs.
fn task_json(ended: &Ended, position: u32, tasks: &Tasks, in_files: bool) -> serde_json::Value {
    let ending = ended.ending.as_deref();
    let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
    let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let text =
        |bytes: Option<&Bytes>| bytes.filter(|_| !in_files).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    json!({
        "job": ended.job,
        "index": position,
        "number": tasks.number(position),
        "name": tasks.name(position),
        "command": tasks.command(position),
        "status": ended.status,
        "cause": filled(&ended.cause),
        "exit_code": ending.and_then(|ending| ending.exit_code).or((ended.status == "completed").then_some(0)),
        "signal": ending.and_then(|ending| ending.signal),
        "error": ending.and_then(|ending| filled(&ending.error)),
        "worker": filled(&ended.worker),
        "attempts": ended.attempts,
        "hops": ended.hops,
        "began_s": ended.began_nanos as f64 / 1e9,
        "waited_s": seconds(ended.waited_nanos),
        "ran_s": seconds(ended.ran_nanos),
        "cpu_s": ending.map(|ending| seconds(ending.cpu_user_nanos + ending.cpu_system_nanos)),
        "peak_memory": ending.map(|ending| ending.peak_memory).filter(|peak| *peak > 0),
        "peak_memory_is_bound": ending.is_some_and(|ending| ending.peak_memory_bound && ending.peak_memory > 0),
        "stdout": text(ending.map(|ending| &ending.stdout)),
        "stderr": text(ending.map(|ending| &ending.stderr)),
    })
}
