//! What clients ask: submissions, withdrawals, and how things go.

use std::sync::Arc;

use bytes::Bytes;
use filch_core::coordinator::{Input, Output};
use filch_core::names::NameError;
use filch_core::wire::talk::{
    Array, Ask, Graph, JobCard, Name, Part, Parts, Places, Refused, Request, Said, Submit, Submitted, Terms, Watch,
    Work,
};
use filch_core::{Action, Event, GraphTask, JobId, Refusal, Span, TaskId, TaskSpec, WorkerId};
use prost::Message as _;

use super::bodies::Elements;
use super::catch_up::Latecomer;
use super::desk::{Desk, Watched};
use super::history::Item as Past;
use crate::store::{BlobChange, BlobId};

/// The most that one task may carry.
const LARGEST_BODY: usize = 1 << 20;
/// Bytes that may wait for the store before submissions are refused.
const MOST_PENDING: usize = 256 << 20;

/// Why something is refused.
pub(super) enum No {
    Because(String),
    Full(String, Span),
}

impl From<NameError> for No {
    fn from(error: NameError) -> No {
        No::Because(error.to_string())
    }
}

impl From<Refusal> for No {
    fn from(refusal: Refusal) -> No {
        match refusal {
            Refusal::QueueFull { retry_after, .. } => No::Full(refusal.to_string(), retry_after),
            _ => No::Because(refusal.to_string()),
        }
    }
}

impl No {
    pub(super) fn because(why: impl Into<String>) -> No {
        No::Because(why.into())
    }

    fn said(self) -> Said {
        let (why, retry_after) = match self {
            No::Because(why) => (why, None),
            No::Full(why, after) => (why, Some(after)),
        };
        Said::Refused(Refused { why, retry_after_nanos: retry_after.map(|after| after.0) })
    }
}

/// Something is refused for good.
pub(super) fn refused(why: impl Into<String>) -> Said {
    No::because(why).said()
}

impl Desk {
    pub(super) fn asked(&mut self, connection: u64, request: Request) {
        let id = request.id;
        let outcome = match request.ask {
            None => Err(No::because("this coordinator does not know that question; is it older than the client?")),
            Some(Ask::Submit(submit)) => self.submitted(connection, id, *submit),
            Some(Ask::Cancel(name)) => self.cancel(&name).map(|()| {
                self.reply_when_durable(connection, id, Said::Done(true));
            }),
            Some(Ask::Watch(watch)) => self.watch(connection, id, &watch),
            Some(Ask::Query(text)) => self.query(connection, id, &text),
            Some(Ask::Drain(name)) => self.drain_by_name(&name).map(|()| {
                self.reply(connection, id, Said::Done(true));
            }),
            Some(Ask::Logs(logs)) => self.logs(connection, id, &logs),
            Some(Ask::Retry(retry)) => self.retry(connection, id, retry),
            Some(Ask::Stop(other)) => {
                self.stop_watching(connection, other);
                Ok(())
            }
        };
        if let Err(no) = outcome {
            self.reply(connection, id, no.said());
        }
    }

    pub(super) fn resubmit(&mut self, connection: u64, id: u64, submit: Submit) {
        if let Err(no) = self.submitted(connection, id, submit) {
            self.reply(connection, id, no.said());
        }
    }

    fn submitted(&mut self, connection: u64, id: u64, submit: Submit) -> Result<(), No> {
        let (watch, heard) = (submit.watch, submit.heard.clone());
        if let Some((first, handle)) = self.keys.get(&submit.key) {
            self.reply_when_durable(connection, id, Said::Submitted(first));
            if watch {
                self.follow_again(connection, id, first, handle, heard);
            }
            return Ok(());
        }
        if self.store.pending_bytes() > MOST_PENDING {
            return Err(No::Full("the store cannot keep up".to_owned(), Span::from_millis(200)));
        }
        let key = submit.key.clone();
        let answer = self.submit(submit)?;
        self.note_key(key, answer);
        if watch {
            self.follow(connection, id, answer);
        }
        self.reply_when_durable(connection, id, Said::Submitted(answer));
        Ok(())
    }

    /// A submitter that was cut off wants to hear the rest.
    fn follow_again(&mut self, connection: u64, id: u64, first: Submitted, handle: u64, heard: Vec<u32>) {
        if first.job == 0 {
            match self.jobs.note(TaskId::from_bits(first.task)) {
                Some(_) => self.follow(connection, id, first),
                None => self.past_end(connection, id, first.task, handle),
            }
            return;
        }
        if self.jobs.get(first.job).is_some_and(|job| job.done_at.is_none()) {
            self.follow(connection, id, first);
        }
        self.catch_up(Latecomer::new(connection, id, first.job, heard));
    }

    /// A submitter hears of everything that becomes of its submission.
    fn follow(&mut self, connection: u64, id: u64, answer: Submitted) {
        let watched = if answer.job == 0 {
            let task = TaskId::from_bits(answer.task);
            self.watched_tasks.entry(task).or_default().push((connection, id));
            Watched::Task(task)
        } else {
            if let Some(job) = self.jobs.get_mut(answer.job) {
                job.watchers.push((connection, id, true));
            }
            Watched::Job(answer.job)
        };
        if let Some(found) = self.connections.get_mut(&connection) {
            found.watches.insert(id, watched);
        }
    }

    fn submit(&mut self, submit: Submit) -> Result<Submitted, No> {
        let kept = match &submit.parts {
            Some(Parts::Graph(_) | Parts::Array(_)) => submit.encode_to_vec(),
            _ => Vec::new(),
        };
        let Submit { name, parts, parent, summary, .. } = submit;
        let parent = parent.map(TaskId::from_bits);
        let mut card = JobCard { name, summary, at: self.now.0, step: 1, ..JobCard::default() };
        if !kept.is_empty() {
            card.submission = self.new_blob();
            self.blobs.push(BlobChange::Put { id: BlobId(card.submission), bytes: kept, until: None });
        }
        let submission = card.submission;
        let answer = match parts.ok_or_else(|| No::because("the submission has no tasks"))? {
            Parts::Single(part) => self.submit_single(part, parent),
            Parts::Graph(graph) => self.submit_graph(graph, card, parent),
            Parts::Array(array) => self.submit_array(array, card, parent),
        };
        if answer.is_err() && submission > 0 {
            self.blobs.push(BlobChange::Remove { id: BlobId(submission) });
        }
        answer
    }

    /// The description of a task, which has a body of its own unless a handle is given.
    fn describe(&mut self, terms: Option<&Terms>, parent: Option<TaskId>) -> Result<TaskSpec, No> {
        let default = Terms::default();
        let terms = terms.unwrap_or(&default);
        let retry = self.config.retry.clone();
        let now = self.now;
        let mut spec = terms.spec(now, &retry, |sort, name| self.number(sort, name))?;
        spec.parent = parent;
        if let Some(name) = &terms.pin {
            spec.pin = Some(self.worker_by_name(name)?);
        }
        if let [name] = terms.to.as_slice() {
            spec.seeded = Some(self.worker_by_name(name)?);
        }
        if let (Some(limit), Some(key)) = (terms.key_limit, spec.key) {
            self.put_event(Event::SetKeyLimit { key, limit })?;
        }
        Ok(spec)
    }

    fn worker_by_name(&self, name: &str) -> Result<WorkerId, No> {
        self.worker_names
            .get(name)
            .copied()
            .ok_or_else(|| No::Because(format!("there is no worker `{name}`; `filch worker list` shows them")))
    }

    fn check_body(work: &Bytes) -> Result<(), No> {
        if work.len() > LARGEST_BODY {
            let text = format!("a task carries {} bytes, and at most {LARGEST_BODY} are taken", work.len());
            return Err(No::Because(text));
        }
        Ok(())
    }

    fn submit_single(&mut self, part: Part, parent: Option<TaskId>) -> Result<Submitted, No> {
        Self::check_body(&part.work)?;
        let mut spec = self.describe(part.terms.as_ref(), parent)?;
        let handle = self.keep_body(part.work);
        spec.payload = handle;
        self.specs.push_back(spec.clone());
        let accepted = self.put_submission(Event::Submit(Box::new(spec)), |desk, task, _| {
            desk.jobs.enter(task, 0, 0, handle);
        });
        match accepted {
            Ok(accepted) => Ok(Submitted { job: 0, task: accepted.last_task }),
            Err(no) => {
                self.forget_body(handle);
                Err(no)
            }
        }
    }

    fn submit_graph(&mut self, graph: Graph, mut card: JobCard, parent: Option<TaskId>) -> Result<Submitted, No> {
        // People count from 1.
        card.first = 1;
        let mut tasks = Vec::with_capacity(graph.parts.len());
        for part in &graph.parts {
            Self::check_body(&part.work)?;
            let spec = self.describe(part.terms.as_ref(), parent)?;
            tasks.push(GraphTask { spec, parents: part.after.iter().copied().collect() });
        }
        card.total = graph.parts.len() as u64;
        if graph.parts.iter().any(|part| !part.name.is_empty()) {
            card.task_names = graph.parts.iter().map(|part| part.name.clone()).collect();
        }
        let number = self.jobs.last() + 1;
        for (task, part) in tasks.iter_mut().zip(graph.parts) {
            task.spec.payload = self.keep_body(of_job(&part.work, number));
        }
        self.specs.extend(tasks.iter().map(|task| task.spec.clone()));
        let bodies: Vec<u64> = tasks.iter().map(|task| task.spec.payload).collect();
        let answer = self.open_job(Event::SubmitGraph(tasks), card, Vec::new());
        if answer.is_err() {
            bodies.into_iter().for_each(|body| self.forget_body(body));
        }
        answer
    }

    fn submit_array(&mut self, array: Array, mut card: JobCard, parent: Option<TaskId>) -> Result<Submitted, No> {
        let Array { part, count, inputs, first, step, places } = array;
        let part = part.ok_or_else(|| No::because("the array has no task"))?;
        if !places.is_empty() && Places::read(&places).is_none_or(|places| places.count() != count) {
            return Err(No::because("the array does not say which elements of a larger one it has"));
        }
        if !inputs.is_empty() && inputs.len() != count as usize {
            return Err(No::Because(format!("the array has {count} elements and {} inputs", inputs.len())));
        }
        Self::check_body(&part.work)?;
        let to = part.terms.as_ref().map_or(&[][..], |terms| &terms.to);
        let pinned = part.terms.as_ref().is_some_and(|terms| terms.pin.is_some());
        let mut seeds = Vec::with_capacity(to.len());
        for name in to {
            seeds.push(self.worker_by_name(name)?);
        }
        let mut spec = self.describe(part.terms.as_ref(), parent)?;
        let handle = self.keep_body(of_job(&part.work, self.jobs.last() + 1));
        spec.payload = handle;
        (card.handle, card.total, card.has_inputs) = (handle, u64::from(count), !inputs.is_empty());
        (card.first, card.step, card.places) = (first, if step == 0 { 1 } else { step }, places);
        card.lazy = seeds.is_empty() && !pinned;
        let event = if !card.lazy {
            // Those that go to certain workers are tasks of their own: elements of an array are all alike.
            let seed = |at: u32| seeds.get(at as usize % seeds.len().max(1)).copied();
            let each = |at: u32| TaskSpec { seeded: seed(at), ..spec.clone() };
            let tasks: Vec<TaskSpec> = (0..count).map(each).collect();
            self.specs.extend(tasks.iter().cloned());
            Event::SubmitMany(tasks)
        } else {
            self.specs.push_back(spec.clone());
            Event::SubmitArray { template: Box::new(spec), count }
        };
        self.open_job(event, card, inputs)
    }

    fn open_job(&mut self, event: Event, mut card: JobCard, inputs: Vec<Bytes>) -> Result<Submitted, No> {
        let number = self.jobs.next_number();
        card.number = number;
        let (handle, submission) = (card.handle, card.submission);
        if handle > 0 {
            self.shared.insert(handle, Vec::new());
        }
        let numbers = Arc::new(card.numbers());
        self.bodies.keep_elements(handle, Elements::new(submission, (!inputs.is_empty()).then_some(inputs), &numbers));
        let mut position = 0;
        let mut card = Some(card);
        let accepted = self.put_submission_with(event, |desk, action| match *action {
            Action::Opened { job } => {
                if let Some(mut card) = card.take() {
                    card.job = job.to_bits();
                    desk.jobs.open(card.clone(), Arc::clone(&numbers));
                    desk.remember(Past::Job(Box::new(card.clone())));
                    desk.page.jobs.push(card);
                }
            }
            Action::Accepted { task, payload } => {
                desk.jobs.enter(task, number, position, payload);
                position += 1;
            }
            _ => {}
        });
        if let Err(no) = accepted {
            if handle > 0 {
                self.forget_body(handle);
            }
            return Err(no);
        }
        Ok(Submitted { job: number, task: 0 })
    }

    fn put_submission(&mut self, event: Event, mut each: impl FnMut(&mut Desk, TaskId, u64)) -> Result<Accepted, No> {
        self.put_submission_with(event, |desk, action| {
            if let Action::Accepted { task, payload } = *action {
                each(desk, task, payload);
            }
        })
    }

    /// Puts a submission to the machine; `each` sees what it answers before any of it is carried out.
    fn put_submission_with(&mut self, event: Event, mut each: impl FnMut(&mut Desk, &Action)) -> Result<Accepted, No> {
        let mut outputs = Vec::new();
        self.machine.step(self.now, Input::Event(event), &mut outputs);
        let mut accepted = Accepted::default();
        for output in &outputs {
            if let Output::Action(action) = output {
                each(self, action);
                if let Action::Accepted { task, .. } = action {
                    accepted.last_task = task.to_bits();
                }
            }
        }
        self.carry_out(&mut outputs);
        self.specs.clear();
        match self.machine.take_refusal() {
            Some(refusal) => Err(refusal.into()),
            None => Ok(accepted),
        }
    }

    pub(super) fn put_event(&mut self, event: Event) -> Result<(), No> {
        self.put(Input::Event(event));
        self.machine.take_refusal().map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    // ---- withdrawing ----

    fn cancel(&mut self, name: &Name) -> Result<(), No> {
        if let Some(task) = name.task {
            return self.put_event(Event::Cancel { task: TaskId::from_bits(task) });
        }
        let job = self.jobs.get(name.job).ok_or_else(|| No::Because(unknown_job(name.job)))?;
        if job.done_at.is_some() {
            return Ok(());
        }
        let id = JobId::from_bits(job.card.job);
        match name.index {
            None => self.put_event(Event::CancelJob { job: id }),
            Some(index) => match self.jobs.at(name.job, index) {
                Some(task) => self.put_event(Event::Cancel { task }),
                None => self.put_event(Event::CancelElement { job: id, index }),
            },
        }
    }

    fn drain_by_name(&mut self, name: &str) -> Result<(), No> {
        let worker = self.worker_by_name(name)?;
        self.drain(worker);
        self.tell_to_drain(worker);
        Ok(())
    }

    /// It gives back what waits there, finishes what runs and leaves.
    pub(super) fn tell_to_drain(&mut self, worker: WorkerId) {
        let connection = self.seat(worker).and_then(|seat| seat.connection);
        if let Some(packet) = connection.and_then(|connection| self.parcel(connection)) {
            packet.drain = true;
        }
    }

    // ---- looking on ----

    fn watch(&mut self, connection: u64, id: u64, watch: &Watch) -> Result<(), No> {
        let job = self.jobs.get_mut(watch.job).ok_or_else(|| No::Because(unknown_job(watch.job)))?;
        let (is_done, progress) = (job.done_at.is_some(), job.progress.clone());
        if !is_done {
            job.watchers.push((connection, id, watch.each));
            if let Some(found) = self.connections.get_mut(&connection) {
                found.watches.insert(id, Watched::Job(watch.job));
            }
            self.reply(connection, id, Said::Progress(progress));
        } else if !watch.each {
            self.reply_when_durable(connection, id, Said::JobDone(progress));
        }
        if watch.each {
            self.catch_up(Latecomer::new(connection, id, watch.job, watch.heard.clone()));
        }
        Ok(())
    }

    fn stop_watching(&mut self, connection: u64, id: u64) {
        let Some(found) = self.connections.get_mut(&connection) else { return };
        let away: Vec<TaskId> =
            found.looks.extract_if(.., |looker| looker.request == id).map(|looker| looker.task).collect();
        let watched = found.watches.remove(&id);
        for task in away {
            self.look_away(task, connection);
        }
        self.held.remove(&(connection, id));
        if let Some(watched) = watched {
            self.unwatch(watched, |entry| entry == (connection, id));
        }
    }

    /// Tells those who look on how things go.
    pub(super) fn tell_progress(&mut self) {
        let mut tell = Vec::new();
        for number in self.jobs.take_changed() {
            if let Some(job) = self.jobs.get(number) {
                let progress = &job.progress;
                tell.extend(job.watchers.iter().map(|&(connection, id, _)| (connection, id, progress.clone())));
            }
        }
        for (connection, id, progress) in tell {
            self.reply(connection, id, Said::Progress(progress));
        }
    }
}

/// What is to be done, for tasks of a job that has a number now: what is written after a message belongs to it.
fn of_job(work: &Bytes, job: u64) -> Bytes {
    let number = Work { job, ..Work::default() };
    [work.as_ref(), &number.encode_to_vec()].concat().into()
}

/// What came of a submission.
#[derive(Default)]
pub(super) struct Accepted {
    last_task: u64,
}

pub(super) fn unknown_job(number: u64) -> String {
    format!("there is no job {number}; `filch job list` shows them")
}

pub(super) fn unknown_task(number: u64, index: u32) -> String {
    format!("job {number} has no task at position {index}; `filch task list {number}` shows them")
}
