//! What the lock protects: the machine, and beside it the names, payloads and results it knows nothing of.
//!
//! [`State::step`] is the only way to the machine; it carries out the actions that come back. Whatever may run code of
//! other people (waking, calling back, dropping payloads) is put into [`After`] and done once the lock is free.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;

use filch_core::map::Map;
use filch_core::steal::{StealOutcome, StealTelemetry};
use filch_core::{Action, Cause, Event, JobId, Lack, Refusal, Scheduler, Status, TaskId, Time, WorkerId};
use smallvec::SmallVec;

use super::after::After;
use super::ends::Ends;
use super::entries::{Entries, Entry, Origin, element_label};
use super::jobs::Jobs;
use super::left::LeftWorkers;
use super::notify::{Callbacks, Post, StatusChange};
use super::task_names::TaskNames;
use crate::error::Error;
use crate::names::NameBook;
use crate::task::{Details, TaskName};
use crate::worker::WorkerName;

/// Marks the payload handle of an array; the rest of the number says which.
const ARRAY: u64 = 1 << 63;

/// A task on its way to whoever asked for one.
pub(crate) struct Delivery<T> {
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    pub(crate) worker: WorkerId,
    pub(crate) job: Option<JobId>,
    pub(crate) index: u32,
    pub(crate) payload: Arc<T>,
}

/// A payload with what its submitter said, before the task has an id.
pub(crate) struct Staged<T> {
    pub(crate) payload: Arc<T>,
    pub(crate) details: Option<Arc<Details>>,
}

impl<T> Staged<T> {
    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.details.as_ref()?.name.as_ref()
    }
}

/// A registered worker beside the machine.
pub(crate) struct WorkerRecord {
    pub(crate) id: WorkerId,
    pub(crate) name: Arc<str>,
    pub(crate) capabilities: Vec<String>,
    /// Those who wait for a task for it, longest first. Each of them has a wish standing in the machine.
    /// Keys only grow, so the first of them is the longest; and whoever gives up is found among many.
    waiting: BTreeSet<u64>,
}

/// How to wake somebody.
pub(crate) enum Wake {
    /// They have been woken.
    Done,
    Thread(Thread),
    Task(Waker),
}

impl Wake {
    pub(crate) fn wake(self) {
        match self {
            Wake::Done => {}
            Wake::Thread(thread) => thread.unpark(),
            Wake::Task(waker) => waker.wake(),
        }
    }

    pub(super) fn take(&mut self) -> Wake {
        std::mem::replace(self, Wake::Done)
    }
}

/// Somebody who waits for a task.
struct Waiter<T> {
    worker: WorkerId,
    wake: Wake,
    news: News<T>,
}

/// What somebody who waits for a task finds when looking.
pub(crate) enum News<T> {
    /// Nothing yet.
    Waiting,
    /// A task.
    Ready(Delivery<T>),
    /// There will be none.
    Failed(Error),
    /// The time is up.
    TimedOut,
}

/// What a report of an attempt brings along.
pub(crate) enum Report<R> {
    /// It ended well, with this result where there is one.
    Result(Option<Arc<R>>),
    /// It ended badly, for this reason, and perhaps with a result all the same.
    Error(Arc<str>, Option<Arc<R>>),
}

/// A steal that was tried: from whom, where one could be chosen, and how it went.
pub(crate) type Stole = (Option<WorkerId>, StealOutcome);

/// A task that left with its worker.
pub(crate) struct HandedBack<T> {
    pub(crate) task: TaskId,
    pub(crate) job: Option<JobId>,
    pub(crate) index: u32,
    pub(crate) staged: Staged<T>,
}

/// What operations want to know of the actions of their steps.
pub(crate) struct Answers<T> {
    pub(crate) joined: Option<WorkerId>,
    pub(crate) opened: Option<JobId>,
    pub(crate) accepted: Vec<TaskId>,
    pub(crate) moved: Vec<(TaskId, WorkerId)>,
    pub(crate) handed_back: Vec<HandedBack<T>>,
}

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Answers { joined: None, opened: None, accepted: Vec::new(), moved: Vec::new(), handed_back: Vec::new() }
    }
}

/// What several workers lack, as one text; nothing if there is nothing to say.
fn in_one_line(lacks: &[String]) -> Option<Arc<str>> {
    (!lacks.is_empty()).then(|| lacks.join("; ").into())
}

/// Lists longer than this are not kept for the next operation.
const LONG_LIST: usize = 4096;

/// Everything under the lock.
pub(crate) struct State<T, R> {
    pub(crate) scheduler: Scheduler,
    actions: Vec<Action>,
    pub(super) entries: Entries<T, R>,
    /// Settled tasks that have an entry, oldest first, and how many there may be.
    settled: VecDeque<TaskId>,
    settled_max: usize,
    staged: Vec<Option<Staged<T>>>,
    arrays: Map<u64, Staged<T>>,
    pub(super) array_of_job: Map<JobId, u64>,
    /// The array being submitted and how many elements it has, until it has a job.
    staged_array: Option<(u64, u32)>,
    pub(super) jobs: Jobs,
    next_array: u64,
    pub(super) tasks_by_name: TaskNames,
    workers_by_name: Map<Arc<str>, WorkerId>,
    /// By the index of the worker.
    workers: Vec<Option<WorkerRecord>>,
    left: LeftWorkers,
    waiters: Map<u64, Waiter<T>>,
    next_waiter: u64,
    /// The worker whose `next` is being served, and what it got.
    caller: Option<WorkerId>,
    caught: Option<Delivery<T>>,
    /// Assignments nobody waits for (any more); they are given back at once.
    unclaimed: Vec<Delivery<T>>,
    report: Option<(TaskId, Report<R>)>,
    /// What each class lacks for an array that is about to fail.
    lacks: Vec<String>,
    names: Arc<NameBook>,
    pub(crate) answers: Answers<T>,
    pub(crate) callbacks: Callbacks<R>,
    pub(crate) post: Post<R>,
    /// Those who wait for the end of a job or of everything.
    pub(super) ends: Ends,
    stole: Vec<Stole>,
    pub(crate) telemetry: StealTelemetry,
    pub(crate) stopped: bool,
}

impl<T, R> State<T, R> {
    pub(crate) fn new(scheduler: Scheduler, names: Arc<NameBook>) -> Self {
        State {
            settled_max: scheduler.config().limits.settled_max as usize,
            jobs: Jobs::new(scheduler.config().limits.settled_max as usize),
            scheduler,
            actions: Vec::new(),
            entries: Entries::default(),
            settled: VecDeque::new(),
            staged: Vec::new(),
            arrays: Map::default(),
            array_of_job: Map::default(),
            staged_array: None,
            next_array: 0,
            tasks_by_name: TaskNames::default(),
            workers_by_name: Map::default(),
            workers: Vec::new(),
            left: LeftWorkers::default(),
            waiters: Map::default(),
            next_waiter: 0,
            caller: None,
            caught: None,
            unclaimed: Vec::new(),
            report: None,
            lacks: Vec::new(),
            names,
            answers: Answers::default(),
            callbacks: Callbacks::default(),
            post: Post::default(),
            ends: Ends::default(),
            stole: Vec::new(),
            telemetry: StealTelemetry::default(),
            stopped: false,
        }
    }

    /// Tells the machine what happened and carries out what it wants done. Inlined, so that the event, which is large, is made
    /// where the machine reads it.
    #[inline(always)]
    pub(crate) fn step(&mut self, now: Time, event: Event, after: &mut After<T, R>) -> Result<(), Refusal> {
        self.actions.clear();
        self.scheduler.step(now, event, &mut self.actions);
        self.carry_out(now, after)
    }

    fn carry_out(&mut self, now: Time, after: &mut After<T, R>) -> Result<(), Refusal> {
        let actions = std::mem::take(&mut self.actions);
        let mut refused = false;
        for action in &actions {
            match *action {
                Action::Notify { task, status, worker, cause } => self.notify(now, task, status, worker, cause, after),
                Action::Assign { worker, task, attempt, index, .. } => {
                    if let Some(entry) = self.entry(task)
                        && let Some(payload) = entry.payload.clone()
                    {
                        let job = entry.origin.job();
                        self.hand_over(Delivery { task, attempt, worker, job, index, payload }, after);
                    }
                }
                Action::Accepted { task, payload } => self.accept(task, payload, after),
                Action::Timer { at } => after.timer = Some(at),
                Action::Refused => refused = true,
                ref other => self.carry_out_rare(other, after),
            }
        }
        if actions.capacity() <= LONG_LIST {
            self.actions = actions;
        } else {
            after.drop_actions(actions);
        }
        if !self.unclaimed.is_empty() || refused {
            return self.carry_on(now, refused, after);
        }
        Ok(())
    }

    /// Carries out what most steps do not ask for; apart, so that they do not pay for it.
    #[inline(never)]
    fn carry_out_rare(&mut self, action: &Action, after: &mut After<T, R>) {
        match *action {
            Action::Stole { victim, outcome, .. } => self.stole.push((victim, outcome)),
            Action::Move { task, to, .. } => self.answers.moved.push((task, to)),
            Action::Joined { worker, .. } => self.answers.joined = Some(worker),
            Action::Opened { job } => self.opened(job),
            Action::JobDone { job } => self.job_done(job, after),
            Action::HandedBack { task, index, .. } => self.hand_back(task, index),
            Action::Element { job, task, payload, index } => self.enter_element(job, task, payload, index, after),
            Action::ElementsRefused { worker, lack, .. } => {
                self.lacks.push(self.lack_words(worker, lack));
            }
            Action::ElementsSettled { job, count, status, cause } => {
                self.elements_settled(job, count, status, cause);
            }
            // A revoked attempt is noticed when its holder asks or reports; records are not kept.
            Action::Revoke { .. } | Action::Hand { .. } | Action::Persist(_) => {}
            Action::Notify { .. }
            | Action::Assign { .. }
            | Action::Accepted { .. }
            | Action::Timer { .. }
            | Action::Refused => unreachable!("carried out already"),
        }
    }

    /// Ends a step that was refused, or that assigned what nobody waits for (any more).
    #[inline(never)]
    fn carry_on(&mut self, now: Time, refused: bool, after: &mut After<T, R>) -> Result<(), Refusal> {
        let result = match refused {
            false => Ok(()),
            true => Err(self.scheduler.take_refusal().unwrap_or(Refusal::Invalid("refused".to_owned()))),
        };
        while let Some(Delivery { task, attempt, payload, .. }) = self.unclaimed.pop() {
            after.drop_payload(payload);
            // Should it be refused, the task is where it should be already.
            let _ = self.step(now, Event::GiveBack { task, attempt }, after);
        }
        result
    }

    /// The last thing before the lock is freed.
    #[inline(always)]
    pub(crate) fn conclude(&mut self, after: &mut After<T, R>) {
        if self.ends.anybody_waits() || !self.stole.is_empty() || !self.answers.moved.is_empty() {
            self.conclude_rare(after);
        }
        after.deliver = self.post.needs_delivery();
    }

    #[inline(never)]
    fn conclude_rare(&mut self, after: &mut After<T, R>) {
        self.answers.moved.clear();
        if self.ends.wait_for_all() && self.scheduler.unsettled() == 0 {
            self.ends.all_done(self.post.written());
        }
        if self.ends.some_come() {
            self.ends_to_wake().into_iter().for_each(|wake| after.wake(wake));
        }
        if !self.stole.is_empty() {
            after.record_steals(std::mem::take(&mut self.stole));
        }
    }

    // ---- tasks ----

    /// What the next submission consists of; the machine names the parts by their position.
    pub(crate) fn stage(&mut self, parts: impl IntoIterator<Item = Staged<T>>) {
        self.answers.accepted.clear();
        self.answers.opened = None;
        for part in parts {
            self.staged.push(Some(part));
        }
    }

    /// The submission is over; what was refused goes.
    pub(crate) fn unstage(&mut self, after: &mut After<T, R>) {
        if self.staged.len() > LONG_LIST {
            after.drop_staged(std::mem::take(&mut self.staged));
            return;
        }
        while let Some(part) = self.staged.pop() {
            if let Some(staged) = part {
                after.drop_payload(staged.payload);
            }
        }
    }

    /// A handle for the payload of an array.
    pub(crate) fn stage_array(&mut self, part: Staged<T>, count: u32) -> u64 {
        self.answers.opened = None;
        self.next_array += 1;
        let handle = self.next_array | ARRAY;
        self.arrays.insert(handle, part);
        self.staged_array = Some((handle, count));
        handle
    }

    /// The submission of an array is over; if it was refused, its payload goes.
    pub(crate) fn unstage_array(&mut self, after: &mut After<T, R>) {
        if let Some((handle, _)) = self.staged_array.take() {
            self.drop_array(handle, after);
        }
    }

    fn opened(&mut self, job: JobId) {
        self.answers.opened = Some(job);
        let array = self.staged_array.take();
        self.jobs.open(job, array.map_or(0, |array| array.1));
        if let Some((handle, _)) = array {
            self.array_of_job.insert(job, handle);
        }
    }

    fn job_done(&mut self, job: JobId, after: &mut After<T, R>) {
        if let Some(status) = self.jobs.finish(job) {
            self.ends.job_done(job, &status, self.post.written());
        }
        if let Some(handle) = self.array_of_job.remove(&job) {
            self.drop_array(handle, after);
        }
    }

    fn drop_array(&mut self, handle: u64, after: &mut After<T, R>) {
        if let Some(staged) = self.arrays.remove(&handle) {
            after.drop_payload(staged.payload);
        }
    }

    fn accept(&mut self, task: TaskId, position: u64, after: &mut After<T, R>) {
        self.answers.accepted.push(task);
        if let Some(staged) = self.staged.get_mut(position as usize).and_then(Option::take) {
            let joined = staged.details.as_ref().and_then(|details| details.job);
            let origin = match (self.answers.opened, joined) {
                (Some(job), _) => Origin::Position(job, position as u32),
                (None, Some(job)) => Origin::Job(job),
                (None, None) => Origin::Alone,
            };
            if let Some(job) = origin.job() {
                self.jobs.add(job);
            }
            self.enter(task, staged, origin, after);
        }
    }

    /// An element of an array has become a task: from now on it can be asked for by its id.
    fn enter_element(&mut self, job: JobId, task: TaskId, array: u64, index: u32, after: &mut After<T, R>) {
        if let Some(array) = self.arrays.get(&array) {
            let staged = Staged { payload: Arc::clone(&array.payload), details: array.details.clone() };
            self.enter(task, staged, Origin::Element(job, index), after);
        }
    }

    fn elements_settled(&mut self, job: JobId, count: u32, status: Status, cause: Cause) {
        let lacks = std::mem::take(&mut self.lacks);
        let error = in_one_line(&lacks);
        self.jobs.settle_elements(job, count, status, error.as_ref());
        if !self.callbacks.is_empty() {
            self.post.push(StatusChange::of_elements(job, count, status, cause, error));
        }
    }

    fn lack_words(&self, worker: WorkerId, lack: Lack) -> String {
        format!("{}: {}", self.worker_label(worker), self.names.lack(lack))
    }

    /// What each class of workers lacks for a task that has just failed for want of a worker.
    fn lacks_for(&self, task: TaskId) -> Option<Arc<str>> {
        let refusals = self.scheduler.explain(task)?.refusals;
        let classes = refusals.classes.into_iter();
        let mut lacks: Vec<String> = classes.map(|(worker, lack)| self.lack_words(worker, lack)).collect();
        if refusals.more > 0 {
            lacks.push(format!("and {} more classes", refusals.more));
        }
        in_one_line(&lacks)
    }

    fn enter(&mut self, task: TaskId, staged: Staged<T>, origin: Origin, after: &mut After<T, R>) {
        if let Some(name) = staged.name() {
            self.tasks_by_name.insert(Arc::clone(name), task);
        }
        let Staged { payload, details } = staged;
        let payload = Some(payload);
        let entry = Entry { id: task, payload, details, origin, told: None, result: None, error: None, outcome: None };
        if let Some(old) = self.entries.insert(entry) {
            self.forget(old, after);
        }
    }

    /// What is known of a task beside the machine.
    pub(crate) fn entry(&self, task: TaskId) -> Option<&Entry<T, R>> {
        self.entries.get(task)
    }

    /// Where a task stands, while anything is remembered of it.
    pub(crate) fn status(&self, task: TaskId) -> Option<Status> {
        match self.entry(task)?.outcome {
            Some((status, ..)) => Some(status),
            None => self.scheduler.status(task),
        }
    }

    /// How a task is called by people: by its name, else as an element of its array or by its id, and so that none of these
    /// is taken for the other.
    pub(crate) fn task_label(&self, task: TaskId) -> String {
        let entry = self.entry(task);
        if let Some(name) = entry.and_then(Entry::name) {
            return name.to_string();
        }
        let (label, how) = match entry.map(|entry| entry.origin) {
            Some(Origin::Element(job, index)) => (element_label(job, index), "element"),
            _ => (task.to_string(), "id"),
        };
        match self.tasks_by_name.get(label.as_str()).is_some() {
            true => format!("{label} (by its {how})"),
            false => label,
        }
    }

    /// The task that a caller means, as far as names are concerned.
    pub(crate) fn find_task(&self, name: &TaskName) -> Result<TaskId, Error> {
        match name {
            TaskName::Id(id) => Ok(*id),
            TaskName::Name(text) => self.tasks_by_name.get(text).ok_or_else(|| Error::UnknownTask(text.to_string())),
        }
    }

    /// How and how long ago a task was settled, if it is and that is remembered.
    pub(crate) fn settled(&self, task: TaskId, now: Time) -> Option<(Status, Duration)> {
        let (status, _, at) = self.entry(task)?.outcome?;
        Some((status, crate::duration(now.since(at))))
    }

    /// Refuses a name that a task which is not settled has already.
    pub(crate) fn check_name(&self, name: Option<&Arc<str>>) -> Result<(), Error> {
        let Some(name) = name else { return Ok(()) };
        match self.tasks_by_name.get(name).and_then(|id| self.scheduler.status(id)) {
            Some(status) if !status.is_settled() => Err(Error::DuplicateTask(name.to_string())),
            _ => Ok(()),
        }
    }

    /// What comes with the report that is about to be made.
    #[inline]
    pub(crate) fn set_report(&mut self, task: TaskId, report: Report<R>) {
        self.report = Some((task, report));
    }

    /// The report is made; what was not used of it goes.
    #[inline]
    pub(crate) fn clear_report(&mut self, after: &mut After<T, R>) {
        if let Some((_, Report::Result(result) | Report::Error(_, result))) = self.report.take()
            && let Some(result) = result
        {
            after.drop_result(result);
        }
    }

    #[inline(always)]
    fn notify(
        &mut self,
        now: Time,
        task: TaskId,
        status: Status,
        worker: Option<WorkerId>,
        cause: Cause,
        after: &mut After<T, R>,
    ) {
        let (is_told, is_settled) = (!self.callbacks.is_empty(), status.is_settled());
        if is_told || is_settled || self.report.is_some() || !self.jobs.is_empty() {
            self.note(now, task, status, worker, cause, after);
        }
    }

    /// Notes a change of status that matters to somebody.
    #[inline(never)]
    fn note(
        &mut self,
        now: Time,
        task: TaskId,
        status: Status,
        worker: Option<WorkerId>,
        cause: Cause,
        after: &mut After<T, R>,
    ) {
        let (is_told, is_settled) = (!self.callbacks.is_empty(), status.is_settled());
        let worker = worker.filter(|_| is_told).and_then(|worker| self.worker(worker));
        let worker = worker.map(|record| Arc::clone(&record.name));
        let lacks = (is_settled && cause == Cause::NoWorker).then(|| self.lacks_for(task)).flatten();
        let mut entry = self.entries.get_mut(task);
        if let Some(entry) = &mut entry {
            entry.error = lacks.or(entry.error.take());
            if let Some(job) = entry.origin.job() {
                let before = entry.told.replace(status);
                self.jobs.move_task(job, before, status);
            }
            if (status == Status::Completed || cause == Cause::Reported)
                && let Some((_, report)) = self.report.take_if(|(reported, _)| *reported == task)
            {
                let result = match report {
                    Report::Result(result) => result,
                    Report::Error(error, result) => {
                        entry.error = Some(error);
                        result
                    }
                };
                if let Some(earlier) = std::mem::replace(&mut entry.result, result) {
                    after.drop_result(earlier);
                }
            }
        }
        if is_told {
            self.post.push(StatusChange::of_task(task, entry.as_deref(), status, cause, worker));
        }
        if is_settled && let Some(entry) = entry {
            entry.outcome = Some((status, cause, now));
            if let Some(payload) = entry.payload.take() {
                after.drop_payload(payload);
            }
            self.bound_settled(task, after);
        }
    }

    /// One more task is settled: those settled longest ago are forgotten where there are too many.
    fn bound_settled(&mut self, task: TaskId, after: &mut After<T, R>) {
        // Places are mostly used again in the order they were vacated, so what others have replaced stands in front.
        while self.settled.front().is_some_and(|&oldest| self.entries.get(oldest).is_none()) {
            self.settled.pop_front();
        }
        self.settled.push_back(task);
        while self.settled.len() > self.settled_max
            && let Some(oldest) = self.settled.pop_front()
        {
            if let Some(entry) = self.entries.remove(oldest) {
                self.forget(entry, after);
            }
        }
    }

    /// An entry is gone, and with it the name of its task.
    fn forget(&mut self, entry: Entry<T, R>, after: &mut After<T, R>) {
        if let Some(name) = entry.name()
            && self.tasks_by_name.get(name) == Some(entry.id)
        {
            self.tasks_by_name.remove(name);
        }
        let Entry { payload, details, result, .. } = entry;
        if let Some(payload) = payload {
            after.drop_payload(payload);
        }
        if let Some(result) = result {
            after.drop_result(result);
        }
        if let Some(details) = details {
            after.drop_details(details);
        }
    }

    fn hand_back(&mut self, task: TaskId, index: u32) {
        if let Some(entry) = self.entry(task)
            && let Some(payload) = entry.payload.clone()
        {
            let (job, details) = (entry.origin.job(), entry.details.clone());
            let staged = Staged { payload, details };
            self.answers.handed_back.push(HandedBack { task, job, index, staged });
        }
    }

    // ---- workers ----

    pub(crate) fn worker(&self, id: WorkerId) -> Option<&WorkerRecord> {
        self.workers.get(id.index())?.as_ref().filter(|record| record.id == id)
    }

    pub(crate) fn worker_mut(&mut self, id: WorkerId) -> Option<&mut WorkerRecord> {
        self.workers.get_mut(id.index())?.as_mut().filter(|record| record.id == id)
    }

    /// How a worker is called by people, also when it has gone.
    pub(crate) fn worker_label(&self, id: WorkerId) -> String {
        match self.worker_name(id) {
            Some(name) => name.to_string(),
            // Not the bare number: somebody may be registered under a name that looks like it.
            None => format!("a worker that has left ({id})"),
        }
    }

    /// The name a worker has, or had when it left.
    fn worker_name(&self, id: WorkerId) -> Option<&Arc<str>> {
        self.worker(id).map(|record| &record.name).or_else(|| self.left.name(id))
    }

    /// The registered worker that a caller means.
    #[inline]
    pub(crate) fn find_worker(&self, name: &WorkerName) -> Result<WorkerId, Error> {
        let id = match name {
            WorkerName::Id(id) => self.worker(*id).map(|record| record.id),
            WorkerName::Name(text) => self.workers_by_name.get(text).copied(),
        };
        id.ok_or_else(|| match name {
            WorkerName::Id(id) => Error::UnknownWorker(self.worker_label(*id)),
            WorkerName::Name(text) => Error::UnknownWorker(text.to_string()),
        })
    }

    pub(crate) fn knows_worker(&self, name: &str) -> bool {
        self.workers_by_name.contains_key(name)
    }

    pub(crate) fn add_worker(&mut self, id: WorkerId, name: Arc<str>, capabilities: Vec<String>) {
        if id.index() >= self.workers.len() {
            self.workers.resize_with(id.index() + 1, || None);
        }
        self.workers_by_name.insert(Arc::clone(&name), id);
        self.workers[id.index()] = Some(WorkerRecord { id, name, capabilities, waiting: BTreeSet::new() });
    }

    /// A worker has left: those who wait for a task for it wait in vain.
    pub(crate) fn remove_worker(&mut self, id: WorkerId, after: &mut After<T, R>) {
        self.fail_waiters(id, after, |name| Error::UnknownWorker(name.to_owned()));
        self.telemetry.forget(id);
        if self.worker(id).is_some()
            && let Some(record) = self.workers[id.index()].take()
        {
            self.workers_by_name.remove(&record.name);
            self.left.add(id, record.name);
        }
    }

    fn fail_waiters(&mut self, id: WorkerId, after: &mut After<T, R>, why: impl Fn(&str) -> Error) {
        let Some(record) = self.worker_mut(id) else { return };
        let (waiting, name) = (std::mem::take(&mut record.waiting), Arc::clone(&record.name));
        for key in waiting {
            if let Some(waiter) = self.waiters.get_mut(&key) {
                waiter.news = News::Failed(why(&name));
                after.wake(waiter.wake.take());
            }
        }
    }

    /// Nobody gets anything any more: those who wait are told.
    pub(crate) fn stop(&mut self, now: Time, after: &mut After<T, R>) {
        self.stopped = true;
        self.ends.stop();
        self.end_waits(now, after);
    }

    /// Whether somebody waits for a task or has not looked at the news yet.
    pub(crate) fn anybody_waits(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Tells those who wait for a task that none will come, as far as this balancer is concerned.
    pub(crate) fn end_waits(&mut self, now: Time, after: &mut After<T, R>) {
        let ids: Vec<WorkerId> = self.workers.iter().flatten().map(|record| record.id).collect();
        for id in ids {
            let waiting = self.worker(id).map_or(0, |record| record.waiting.len());
            self.fail_waiters(id, after, |_| Error::Stopped);
            for _ in 0..waiting {
                let _ = self.step(now, Event::Withdraw { worker: id }, after);
            }
        }
    }

    /// The machine has forgotten the wishes of a worker that fell silent; those who wait still have them.
    pub(crate) fn wish_again(&mut self, id: WorkerId, now: Time, after: &mut After<T, R>) {
        let waiting = self.worker(id).map_or(0, |record| record.waiting.len());
        for _ in 0..waiting {
            let _ = self.step(now, Event::Pull { worker: id, wait: true }, after);
        }
    }

    // ---- those who ask for tasks ----

    /// Asks for a task for a worker. If there is none and `wake` is given, the wish stands and the answer is a key to
    /// look for news under. Unless the wish stands `wake` is left where it is, to be dropped outside the lock.
    pub(crate) fn pull(
        &mut self,
        now: Time,
        worker: WorkerId,
        wake: &mut Option<Wake>,
        after: &mut After<T, R>,
    ) -> Result<Result<Delivery<T>, Option<u64>>, Error> {
        if self.stopped {
            return Err(Error::Stopped);
        }
        // Whoever asked before is served before, so a wish that does not last must stand behind theirs for a moment.
        let others = self.worker(worker).is_some_and(|record| !record.waiting.is_empty());
        let wait = others || wake.is_some();
        self.caller = Some(worker);
        let asked = self.step(now, Event::Pull { worker, wait }, after);
        self.caller = None;
        if asked.is_err() {
            return Err(Error::UnknownWorker(self.worker_label(worker)));
        }
        if let Some(delivery) = self.caught.take() {
            return Ok(Ok(delivery));
        }
        let Some(wake) = wake.take() else {
            if wait {
                let _ = self.step(now, Event::Withdraw { worker }, after);
            }
            return Ok(Err(None));
        };
        let key = self.next_key();
        self.waiters.insert(key, Waiter { worker, wake, news: News::Waiting });
        if let Some(record) = self.worker_mut(worker) {
            record.waiting.insert(key);
        }
        Ok(Err(Some(key)))
    }

    /// A new key for somebody who waits.
    pub(super) fn next_key(&mut self) -> u64 {
        self.next_waiter += 1;
        self.next_waiter
    }

    /// Gives an assignment to whoever has waited longest for one for that worker.
    fn hand_over(&mut self, delivery: Delivery<T>, after: &mut After<T, R>) {
        let worker = delivery.worker;
        if let Some(key) = self.worker_mut(worker).and_then(|record| record.waiting.pop_first())
            && let Some(waiter) = self.waiters.get_mut(&key)
        {
            waiter.news = News::Ready(delivery);
            after.wake(waiter.wake.take());
        } else if self.caller == Some(worker) && self.caught.is_none() {
            self.caught = Some(delivery);
        } else {
            self.unclaimed.push(delivery);
        }
    }

    /// What there is for somebody who waits. Anything but `Waiting` ends the waiting; with `last_look` that does too,
    /// and the wish is withdrawn.
    pub(crate) fn look(&mut self, now: Time, key: u64, last_look: bool, after: &mut After<T, R>) -> News<T> {
        match self.waiters.get(&key) {
            None => return News::TimedOut,
            Some(Waiter { news: News::Waiting, .. }) if !last_look => return News::Waiting,
            Some(_) => {}
        }
        let Some(waiter) = self.waiters.remove(&key) else { return News::TimedOut };
        after.retire(waiter.wake);
        if matches!(waiter.news, News::Waiting) {
            self.withdraw(now, waiter.worker, key, after);
            return News::TimedOut;
        }
        waiter.news
    }

    fn withdraw(&mut self, now: Time, worker: WorkerId, key: u64, after: &mut After<T, R>) {
        if let Some(record) = self.worker_mut(worker) {
            record.waiting.remove(&key);
            let _ = self.step(now, Event::Withdraw { worker }, after);
        }
    }

    /// Somebody no longer waits. A task that was on its way to them is given back, so that another gets it.
    pub(crate) fn abandon(&mut self, now: Time, key: u64, after: &mut After<T, R>) {
        if let News::Ready(Delivery { task, attempt, payload, .. }) = self.look(now, key, true, after) {
            after.drop_payload(payload);
            let _ = self.step(now, Event::GiveBack { task, attempt }, after);
        }
    }

    /// The time of somebody who waits is up; they are told unless there is news already.
    pub(crate) fn time_out(&mut self, now: Time, key: u64, after: &mut After<T, R>) {
        if self.end_wait_timed_out(key, after) {
            return;
        }
        let Some(waiter) = self.waiters.get_mut(&key) else { return };
        if matches!(waiter.news, News::Waiting) {
            waiter.news = News::TimedOut;
            let worker = waiter.worker;
            after.wake(waiter.wake.take());
            self.withdraw(now, worker, key, after);
        }
    }

    /// Wakes somebody else from now on. What is not needed is dropped outside the lock.
    pub(crate) fn set_waker(&mut self, key: u64, waker: Waker, after: &mut After<T, R>) {
        let unused = match self.waiters.get_mut(&key) {
            Some(Waiter { wake: Wake::Task(known), .. }) if known.will_wake(&waker) => Wake::Task(waker),
            Some(waiter) => std::mem::replace(&mut waiter.wake, Wake::Task(waker)),
            None => Wake::Task(waker),
        };
        after.retire(unused);
    }

    /// Those who wait for an end that has come and has been told of.
    pub(super) fn ends_to_wake(&mut self) -> SmallVec<[Wake; 1]> {
        self.ends.take_told(self.post.told())
    }
}
