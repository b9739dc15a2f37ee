//! Answers to questions about the state: from memory where it is there, from history where it is not. Changes nothing.

mod listing;
mod task;
mod why;

use std::sync::Arc;

use bytes::Bytes;
use filch_core::steal::StealStats;
use filch_core::told::Labels;
use filch_core::wire::talk::{Chunk, Ending, JobCard, Numbers, Progress, Reply, Said};
use filch_core::{KeyId, Lack, ResourceId, Status, TaskId, Time, WorkerId};
use prost::Message as _;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::catch_up::ended;
use super::desk::{Desk, Seat};
use super::endings::{before_the_end, kept_of, nothing_of};
use super::history::{History, Item as Past, Outcome};
use super::jobs::Job;
use super::looks::Seen;
use super::requests::{No, refused, unknown_job, unknown_task};
use super::{Inbox, Later};
use crate::store::{BlobId, Shard, Store};
use crate::view::{JobView, PeerView, Query, StatsView, TaskView, WorkerView};

impl Desk {
    pub(super) fn query(&mut self, connection: u64, id: u64, text: &str) -> Result<(), No> {
        let query: Query = serde_json::from_str(text).map_err(|error| {
            No::Because(format!("this coordinator does not know that question: {error}; is it older than the client?"))
        })?;
        let json = match query {
            Query::Jobs { limit } => return self.jobs_query(connection, id, limit),
            Query::Job { job } => match self.jobs.get(job) {
                Some(job) => json(&JobView { places: job.card.places.clone(), ..view_of(job) }),
                None => return self.past_job(connection, id, job),
            },
            Query::Tasks { job, status, limit } => return self.tasks_query(connection, id, job, status, limit),
            Query::Task { job, index } => return self.task_query(connection, id, job, index),
            Query::Workers => {
                let busy = self.jobs.by_worker();
                let seats = self.seats.iter().flatten();
                let mut views: Vec<WorkerView> = seats.map(|seat| self.worker_view(seat, &busy)).collect();
                views.sort_by(|one, other| one.worker.cmp(&other.worker));
                json(&views)
            }
            Query::Worker { name } => {
                let seat = self.worker_names.get(name.as_str()).and_then(|worker| self.seat(*worker));
                let missing = || No::Because(format!("there is no worker `{name}`; `filch worker list` shows them"));
                json(&self.worker_view(seat.ok_or_else(missing)?, &self.jobs.by_worker()))
            }
            Query::Stats => json(&self.stats()),
            Query::Why { job, index } => return self.why_query(connection, id, job, index),
            Query::Trace { job } => return self.trace_query(connection, id, job),
        };
        self.reply(connection, id, Said::Json(json));
        Ok(())
    }

    pub(super) fn answered(&mut self, connection: u64, id: u64, answer: Later) {
        match answer {
            Later::Json(json) => self.reply(connection, id, Said::Json(json)),
            Later::Said(said) => self.reply(connection, id, *said),
            Later::Resubmit(submit) => self.resubmit(connection, id, *submit),
            Later::Rest(chunks) => {
                for chunk in chunks {
                    self.output(connection, id, chunk);
                }
                self.reply(connection, id, Said::Done(true));
            }
            Later::Past(said) => self.push_at_once(connection, Reply { id, said: Some(*said) }),
            Later::CaughtUp(done) => self.caught_up(connection, id, done),
            Later::Refused(why) => {
                self.held.remove(&(connection, id));
                self.reply(connection, id, refused(why));
            }
            Later::Output(ending) => {
                let Ending { stdout, stderr, stdout_left_out, stderr_left_out, attempt, .. } = *ending;
                for (stderr, bytes, left_out) in [(false, stdout, stdout_left_out), (true, stderr, stderr_left_out)] {
                    if left_out > 0 {
                        let notice = format!("[filch: {left_out} bytes before this were left out]\n");
                        let bytes = Bytes::from(notice);
                        self.output(connection, id, Chunk { stderr: true, bytes, ..Chunk::default() });
                    }
                    self.output(connection, id, Chunk { task: 0, stderr, bytes, offset: 0, attempt });
                }
                self.reply(connection, id, Said::Done(true));
            }
        }
    }

    fn output(&mut self, connection: u64, id: u64, chunk: Chunk) {
        if !chunk.bytes.is_empty() {
            self.reply(connection, id, Said::Output(chunk));
        }
    }

    /// Asks history; the answer comes in a later turn.
    pub(super) fn ask_history(
        &self,
        connection: u64,
        id: u64,
        ask: impl FnOnce(&mut History) -> Result<Later, crate::store::Error> + Send + 'static,
    ) {
        let promise = Promise::new(&self.inbox, connection, id);
        self.history.tell(Past::Ask(Box::new(move |history| {
            promise.keep(ask(history).unwrap_or_else(|error| Later::Refused(error.to_string())));
        })));
    }

    // ---- jobs ----

    fn jobs_query(&mut self, connection: u64, id: u64, limit: usize) -> Result<(), No> {
        let known: FxHashMap<u64, JobView> =
            self.jobs.iter().rev().take(limit).map(|job| (job.card.number, view_of(job))).collect();
        self.ask_history(connection, id, move |history| {
            let mut views = known;
            for (card, done_at, progress) in history.jobs(limit)? {
                views.entry(card.number).or_insert_with(|| job_view(&card, &progress.unwrap_or_default(), done_at));
            }
            let mut views: Vec<JobView> = views.into_values().collect();
            views.sort_by_key(|view| view.job);
            let surplus = views.len().saturating_sub(limit);
            Ok(Later::Json(json(&views[surplus..])))
        });
        Ok(())
    }

    fn past_job(&self, connection: u64, id: u64, number: u64) -> Result<(), No> {
        self.ask_history(connection, id, move |history| {
            Ok(match history.job(number)? {
                Some((card, done_at, progress)) => {
                    let view = job_view(&card, &progress.unwrap_or_default(), done_at);
                    Later::Json(json(&JobView { places: card.places, ..view }))
                }
                None => Later::Refused(unknown_job(number)),
            })
        });
        Ok(())
    }

    // ---- tasks ----

    /// A task that is not settled and is more than an element of an array, and where the ending of its latest attempt is
    /// kept if it waits for another; 0 if there is none.
    fn task_view(&self, job: &Job, index: u32, task: TaskId) -> (TaskView, u64) {
        let mut view = blank_view(&job.card, &job.numbers, index, Status::Queued.name());
        let scheduler = self.machine.scheduler();
        if let Some(status) = scheduler.status(task) {
            status.name().clone_into(&mut view.status);
        }
        let (tried, live) = (self.jobs.tried(task), self.jobs.live(task));
        view.attempts = self.attempts(task);
        if let Some(live) = live {
            view.worker = Some(self.worker_name(live.worker));
            if live.runs {
                view.began_s = Some(seconds(live.began.0));
                view.ran_s = Some(seconds(self.now.0.saturating_sub(live.began.0)));
            }
            return (view, 0);
        }
        view.worker = tried.and_then(|tried| tried.worker).map(|worker| self.worker_name(worker));
        (view, tried.map_or(0, |tried| tried.ending))
    }

    /// How many attempts were made of a task that is not settled.
    pub(super) fn attempts(&self, task: TaskId) -> u32 {
        let current = self.machine.scheduler().current(task).map(|held| held.attempt);
        let attempt = current.or_else(|| self.jobs.tried(task).map(|tried| tried.attempt));
        attempt.map_or(0, filch_core::attempt_in_life)
    }

    /// How a single task ended that is over.
    pub(super) fn past_end(&self, connection: u64, id: u64, task: u64, handle: u64) {
        let (store, shard) = (Arc::clone(&self.store), self.shard);
        self.ask_history(connection, id, move |history| {
            let Some(outcome) = history.task(0, handle)? else {
                return Ok(Later::Refused("the task is over, and nothing is kept of it any more".to_owned()));
            };
            let mut ended = ended(&outcome, outcome.worker_name(&history.workers()?));
            (ended.task, ended.index) = (task, 0);
            ended.ending = ending(&*store, shard, outcome.ending)?.map(Box::new);
            Ok(Later::Said(Box::new(Said::Ended(Box::new(ended)))))
        });
    }

    /// What an attempt wrote that is kept there.
    pub(super) fn kept_output(&self, connection: u64, id: u64, kept: u64) {
        let (store, shard) = (Arc::clone(&self.store), self.shard);
        self.ask_history(connection, id, move |_| {
            Ok(Later::Output(Box::new(ending(&*store, shard, kept)?.unwrap_or_default())))
        });
    }

    /// What a task that has ended wrote; in one of its earlier attempts, if only that is wanted.
    pub(super) fn past_output(&self, connection: u64, id: u64, (number, index): (u64, u32), seen: Seen, only: u32) {
        let (store, shard) = (Arc::clone(&self.store), self.shard);
        let waits = self.jobs.get(number).is_some_and(|job| job.done_at.is_none());
        self.ask_history(connection, id, move |history| {
            let Some(outcome) = history.task(number, u64::from(index))? else {
                let why = if waits { "the task has not begun".to_owned() } else { unknown_task(number, index) };
                return Ok(Later::Refused(why));
            };
            let mut last = ending(&*store, shard, outcome.ending)?;
            if only > 0 {
                let kept = last.as_ref().and_then(|last| kept_of(&last.earlier, only));
                if let Some(kept) = kept {
                    last = ending(&*store, shard, kept)?;
                }
                let is_latest = only == outcome.attempts;
                if !is_latest && (kept.is_none() || last.is_none()) {
                    return Ok(Later::Refused(nothing_of(only, outcome.attempts)));
                }
            }
            Ok(match last {
                Some(ending) if seen == Seen::default() => Later::Output(Box::new(ending)),
                Some(ending) => Later::Rest(seen.rest(&ending)),
                // It ended well and had nothing to say, or nothing is kept of it any more.
                None => Later::Output(Box::default()),
            })
        });
    }

    // ---- workers and figures ----

    fn worker_view(&self, seat: &Seat, busy: &FxHashMap<WorkerId, (u32, u32)>) -> WorkerView {
        let (running, queued) = busy.get(&seat.id).copied().unwrap_or_default();
        let status = self.machine.scheduler().worker(seat.id);
        let card = &seat.card;
        WorkerView {
            worker: seat.name.to_string(),
            id: seat.id.to_string(),
            state: status.as_ref().map_or("gone", |status| status.state.name()).to_owned(),
            connected: seat.connection.is_some(),
            slots: status.as_ref().map_or(card.slots, |status| status.slots),
            running,
            queued,
            completed: status.as_ref().map_or(0, |status| status.total_completed),
            failed: status.as_ref().map_or(0, |status| status.total_failed),
            stolen: status.as_ref().map_or(0, |status| status.stolen),
            lost: status.as_ref().map_or(0, |status| status.lost),
            cpu: status.as_ref().map_or(0.0, |status| status.report.cpu),
            memory: status.as_ref().map_or(0.0, |status| status.report.memory),
            capabilities: card.capabilities.clone(),
            resources: card.resources.iter().map(|one| (one.name.clone(), one.amount)).collect(),
            address: card.address.clone(),
            steals: seat.steals_by_peer.iter().map(|(peer, stats)| self.peer_view(*peer, stats)).collect(),
        }
    }

    fn peer_view(&self, peer: WorkerId, stats: &StealStats) -> PeerView {
        PeerView {
            peer: self.worker_name(peer),
            attempts: stats.attempts,
            successes: stats.successes,
            timeouts: stats.timeouts,
            network_errors: stats.network_errors,
            rejections: stats.rejections,
            latency_avg_ms: 1e3 * stats.latency_average().as_secs_f64(),
        }
    }

    pub(super) fn stats(&self) -> StatsView {
        let mut steals = self.steals_gone.clone();
        let mut relayed = 0;
        for seat in self.seats.iter().flatten() {
            steals.add(&seat.steals);
            relayed += seat.relayed;
        }
        let scheduler = self.machine.scheduler();
        let mut metrics = scheduler.metrics();
        metrics.add_steals(&steals);
        StatsView {
            epoch: self.machine.epoch(),
            uptime_s: seconds(self.now.0.saturating_sub(self.since.0)),
            workers: self.seats.iter().flatten().filter(|seat| seat.connection.is_some()).count(),
            queued: scheduler.queued(),
            unsettled: scheduler.unsettled(),
            settled: self.settled,
            found_missing: self.machine.found_missing(),
            metrics: serde_json::to_value(metrics).unwrap_or_default(),
            steals: serde_json::to_value(&steals).unwrap_or_default(),
            steal_report: steals.to_string(),
            relayed,
            store_pending_bytes: self.store.pending_bytes() as u64,
        }
    }
}

/// The names that a coordinator knows.
impl Labels for Desk {
    fn worker(&self, id: WorkerId) -> String {
        self.worker_name(id)
    }

    fn task(&self, id: TaskId) -> String {
        match self.jobs.note(id) {
            Some(note) if note.job > 0 => {
                let number = self.jobs.get(u64::from(note.job)).map(|job| job.numbers.number(note.index));
                format!("{}.{}", note.job, number.unwrap_or_default())
            }
            _ => id.to_string(),
        }
    }

    fn lack(&self, lack: Lack) -> String {
        self.names.lack(lack)
    }

    fn key(&self, id: KeyId) -> String {
        self.names.keys.name(id.0).to_owned()
    }

    fn resource(&self, id: ResourceId) -> String {
        self.names.resources.name(id.0).to_owned()
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("\"{error}\""))
}

#[allow(clippy::cast_precision_loss)]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn view_of(job: &Job) -> JobView {
    job_view(&job.card, &job.progress, job.done_at.map(|at: Time| at.0))
}

fn job_view(card: &JobCard, progress: &Progress, done_at: Option<u64>) -> JobView {
    let ended = progress.completed + progress.failed + progress.cancelled + progress.skipped;
    let state = match done_at {
        None if progress.running > 0 || ended > 0 => "running",
        None => "waiting",
        Some(_) if progress.failed + progress.skipped > 0 => "failed",
        Some(_) if progress.cancelled > 0 => "cancelled",
        Some(_) => "completed",
    };
    JobView {
        job: card.number,
        name: card.name.clone(),
        command: card.summary.clone(),
        state: state.to_owned(),
        tasks: card.total,
        waiting: card.total.saturating_sub(ended + progress.running),
        running: progress.running,
        completed: progress.completed,
        failed: progress.failed,
        cancelled: progress.cancelled,
        skipped: progress.skipped,
        stolen: progress.stolen,
        submitted_s: seconds(card.at),
        ended_s: done_at.map(seconds),
        first: card.first,
        step: card.step,
        // Only whoever asks for one job hears of them: there may be many.
        places: Vec::new(),
    }
}

fn blank_view(card: &JobCard, numbers: &Numbers, index: u32, status: &str) -> TaskView {
    TaskView {
        job: card.number,
        index,
        number: numbers.number(index),
        name: card.task_names.get(index as usize).filter(|name| !name.is_empty()).cloned(),
        command: None,
        cwd: None,
        status: status.to_owned(),
        cause: None,
        attempts: 0,
        worker: None,
        began_s: None,
        ended_s: None,
        ran_s: None,
        exit_code: None,
        signal: None,
        error: None,
        cpu_s: None,
        peak_memory: None,
        peak_memory_is_bound: false,
    }
}

fn past_view(
    (card, numbers): (&JobCard, &Numbers),
    outcome: &Outcome,
    workers: &FxHashMap<u64, String>,
    ending: Option<&Ending>,
) -> TaskView {
    let mut view = blank_view(card, numbers, outcome.index as u32, outcome.status.name());
    view.cause = outcome.cause.words().map(str::to_owned);
    view.attempts = outcome.attempts;
    view.worker = outcome.worker_name(workers).cloned();
    if outcome.attempts > 0 {
        view.began_s = Some(seconds(outcome.began));
        view.ran_s = Some(seconds(outcome.ran));
    }
    view.ended_s = Some(seconds(outcome.ended));
    // Of whoever ended well and had nothing to say nothing is kept.
    view.exit_code = (outcome.status == Status::Completed).then_some(0);
    if let Some(ending) = ending {
        ended_with(&mut view, ending);
    }
    view
}

/// Adds what an attempt left.
fn ended_with(view: &mut TaskView, ending: &Ending) {
    view.exit_code = ending.exit_code;
    view.signal = ending.signal;
    view.error = Some(ending.error.clone()).filter(|error| !error.is_empty());
    // Of what was no program nothing was measured.
    let measured = ending.wall_nanos > 0;
    view.cpu_s = measured.then(|| seconds(ending.cpu_user_nanos + ending.cpu_system_nanos));
    view.peak_memory = Some(ending.peak_memory).filter(|peak| *peak > 0);
    view.peak_memory_is_bound = ending.peak_memory_bound && ending.peak_memory > 0;
}

/// Somebody is to hear an answer: if whoever has promised it is gone, that there is none.
pub(super) struct Promise {
    inbox: Inbox,
    connection: u64,
    id: u64,
    kept: bool,
}

impl Promise {
    pub(super) fn new(inbox: &Inbox, connection: u64, id: u64) -> Promise {
        Promise { inbox: inbox.clone(), connection, id, kept: false }
    }

    /// Nobody waits for it any more.
    pub(super) fn drop_it(mut self) {
        self.kept = true;
    }

    pub(super) fn keep(mut self, answer: Later) {
        self.kept = true;
        self.inbox.answered(self.connection, self.id, answer);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.kept {
            let why =
                "what became of tasks cannot be read; the log of the coordinator says why, and after a restart it can";
            self.inbox.answered(self.connection, self.id, Later::Refused(why.to_owned()));
        }
    }
}

/// What an attempt left, if that is still kept.
pub(super) fn ending(store: &dyn Store, shard: Shard, blob: u64) -> Result<Option<Ending>, crate::store::Error> {
    if blob == 0 {
        return Ok(None);
    }
    let read = |blob: u64| -> Result<Option<Ending>, crate::store::Error> {
        Ok(store.blob(shard, BlobId(blob))?.and_then(|bytes| Ending::decode(&*bytes).ok()))
    };
    let Some(found) = read(blob)? else { return Ok(None) };
    // A task that was over while it waited for its next attempt left what the latest one did.
    let Some(latest) = before_the_end(&found) else { return Ok(Some(found)) };
    let Some(latest) = read(latest)? else { return Ok(Some(found)) };
    Ok(Some(Ending { earlier: found.earlier, ..latest }))
}
