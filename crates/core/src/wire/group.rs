//! Records as bytes: those of one commit together. Records of one sort become columns, so that the outcome of a task takes
//! a few bytes, also where those of many tasks come by turns.
//!
//! What is read comes to the same as what was written: records about one task keep their order, and one that is about more
//! than tasks keeps its place among all others. Tasks that are settled are read before those that entered meanwhile.

use prost::Message as _;

use super::WireError;
use super::columns::{condense, spread, sums, take_differences, whole};
use super::proto::{self, RecordSort};
use super::shapes::{
    CAUSES, narrow, number_of, read_capabilities, read_demand, read_worker, value_of, write_capabilities, write_demand,
    write_worker,
};
use crate::action::Record;
use crate::ids::{AffinityId, JobId, KeyId, KindId, TaskId, TypeId, WorkerId};
use crate::journal::Detail;
use crate::task::{ParentFailure, Priority, RetryTerms, Status, TaskSpec};
use crate::time::{Span, Time};

const STATUSES: &[Status] = &Status::ALL;
const PARENT_FAILURES: [ParentFailure; 3] = [ParentFailure::Fail, ParentFailure::Skip, ParentFailure::Run];

/// Descriptions of tasks take so many parts at the most, all of one group together: alike ones are stored once, so a few
/// bytes could otherwise unfold into any amount of memory.
const MOST_PARTS: usize = 1 << 26;

/// The records of one commit, while they are gathered.
///
/// ```
/// use filch_core::journal::{Detail, Journal};
/// use filch_core::wire::Group;
/// use filch_core::{Record, WorkerId};
/// let mut group = Group::default();
/// group.push(&Record::Left { worker: WorkerId::from_bits(7) }, Detail::None);
/// let bytes = group.encode();
/// let mut journal = Journal::default();
/// Group::replay(&bytes, |record, detail| journal.apply(record, detail)).unwrap();
/// ```
#[derive(Debug, Default)]
pub struct Group {
    /// Whatever is complete.
    batches: Vec<proto::RecordBatch>,
    /// Records that came by turns, by [`Lane`].
    open: [Option<RecordSort>; LANES],
    /// The last of the open lanes that has something of a task, plus one; by its slot, several of which share a place.
    touched: Vec<u8>,
    /// The description that was stored last in the last batch.
    latest: Option<TaskSpec>,
    records: usize,
}

/// Records of these sorts are written in this order, where that comes to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Settled,
    /// Submitted, or an element; never both, since it counts who came first.
    Entered,
    Member,
    After,
    Assigned,
}

const LANES: usize = Lane::Assigned as usize + 1;
/// Places of [`Group::touched`].
const PLACES: usize = 4096;

impl Group {
    /// Adds the next record, and what is to be stored beside it.
    pub fn push(&mut self, record: &Record, detail: Detail<'_>) {
        self.records += 1;
        match *record {
            Record::Joined { worker, tag } => {
                let spec = match detail {
                    Detail::Worker(spec) => Some(write_worker(spec)),
                    _ => None,
                };
                self.alone(RecordSort::Joined(proto::Joined { worker: worker.to_bits(), tag, spec }));
            }
            Record::Left { worker } => self.alone(RecordSort::Left(proto::Left { worker: worker.to_bits() })),
            Record::Opened { job, weight } => {
                self.alone(RecordSort::Opened(proto::Opened { job: job.to_bits(), weight }));
            }
            Record::Closed { job } => self.alone(RecordSort::Closed(proto::Closed { job: job.to_bits() })),
            Record::Submitted { task, payload, at } => self.submitted(task, payload, at, detail),
            Record::Member { task, job, index, rank } => {
                let new = || RecordSort::Member(proto::Member::default());
                let RecordSort::Member(columns) = self.columns(Lane::Member, &[task], new) else { return };
                columns.task_steps.push(task.to_bits() as i64);
                columns.jobs.push(job.to_bits());
                columns.index_steps.push(i64::from(index));
                columns.ranks.push(rank);
            }
            Record::After { task, parent } => {
                let new = || RecordSort::After(proto::After::default());
                let RecordSort::After(columns) = self.columns(Lane::After, &[task, parent], new) else { return };
                columns.task_steps.push(task.to_bits() as i64);
                columns.parent_steps.push(parent.to_bits() as i64);
            }
            Record::ArraySubmitted { job, count, payload, at } => {
                let spec = match detail {
                    Detail::Task(spec) => Some(write_task(spec)),
                    _ => None,
                };
                let (job, at_nanos) = (job.to_bits(), at.0);
                let array = proto::ArraySubmitted { job, count, payload, at_nanos, spec };
                self.alone(RecordSort::ArraySubmitted(Box::new(array)));
            }
            Record::Element { task, job, index } => {
                if matches!(self.open[Lane::Entered as usize], Some(RecordSort::Submitted(_))) {
                    self.close();
                }
                let new = || RecordSort::Element(proto::Element::default());
                let RecordSort::Element(columns) = self.columns(Lane::Entered, &[task], new) else { return };
                columns.task_steps.push(task.to_bits() as i64);
                columns.jobs.push(job.to_bits());
                columns.index_steps.push(i64::from(index));
            }
            Record::ElementsSettled { job, from, to, status, cause, at } => {
                let (status, cause) = (number_of(STATUSES, &status), number_of(CAUSES, &cause));
                let (job, at_nanos) = (job.to_bits(), at.0);
                let settled = proto::ElementsSettled { job, from, to, status, cause, at_nanos };
                self.alone(RecordSort::ElementsSettled(settled));
            }
            Record::KeyLimit { key, limit } => {
                self.alone(RecordSort::KeyLimit(proto::KeyLimit { key: key.0, limit }));
            }
            Record::Assigned { task, attempt, worker, at } => {
                let new = || RecordSort::Assigned(proto::Assigned::default());
                let RecordSort::Assigned(columns) = self.columns(Lane::Assigned, &[task], new) else { return };
                columns.task_steps.push(task.to_bits() as i64);
                columns.attempts.push(attempt);
                columns.workers.push(worker.to_bits());
                columns.at_steps.push(at.0 as i64);
            }
            Record::Retrying { task, attempt, retries, until } => self.retrying(task, attempt, retries, until),
            Record::Settled { task, attempt, status, cause, at } => {
                if self.open[Lane::Member as usize].is_some() {
                    // Its job must not seem to be done before the new members are known.
                    self.close();
                }
                let new = || RecordSort::Settled(proto::Settled::default());
                let RecordSort::Settled(columns) = self.columns(Lane::Settled, &[task], new) else { return };
                columns.task_steps.push(task.to_bits() as i64);
                columns.attempts.push(attempt);
                columns.statuses.push(number_of(STATUSES, &status));
                columns.causes.push(number_of(CAUSES, &cause));
                columns.at_steps.push(at.0 as i64);
            }
        }
    }

    /// A record that keeps its place among all others.
    fn alone(&mut self, sort: RecordSort) {
        self.close();
        self.batches.push(proto::RecordBatch { sort: Some(sort) });
    }

    /// What was open is complete.
    fn close(&mut self) {
        self.latest = None;
        let mut any = false;
        for sort in self.open.iter_mut().filter_map(Option::take) {
            any = true;
            self.batches.push(proto::RecordBatch { sort: Some(sort) });
        }
        if any {
            self.touched.fill(0);
        }
    }

    /// The columns for a record about some tasks. Those of a later lane that are about one of them must stay before it.
    fn columns(&mut self, lane: Lane, tasks: &[TaskId], new: fn() -> RecordSort) -> &mut RecordSort {
        self.touched.resize(PLACES, 0);
        let own = lane as u8 + 1;
        if tasks.iter().any(|task| self.touched[task.index() % PLACES] > own) {
            self.close();
        }
        for task in tasks {
            self.touched[task.index() % PLACES] = own;
        }
        self.open[lane as usize].get_or_insert_with(new)
    }

    fn retrying(&mut self, task: TaskId, attempt: u32, retries: u16, until: Time) {
        self.close();
        let last = self.batches.last().and_then(|batch| batch.sort.as_ref());
        if !matches!(last, Some(RecordSort::Retrying(_))) {
            self.alone(RecordSort::Retrying(proto::Retrying::default()));
        }
        let last = self.batches.last_mut().and_then(|batch| batch.sort.as_mut());
        let Some(RecordSort::Retrying(columns)) = last else { return };
        columns.task_steps.push(task.to_bits() as i64);
        columns.attempts.push(attempt);
        columns.retries.push(u32::from(retries));
        columns.until_steps.push(until.0 as i64);
    }

    fn submitted(&mut self, task: TaskId, payload: u64, at: Time, detail: Detail<'_>) {
        let described = match detail {
            Detail::Task(spec) => Some(spec),
            _ => None,
        };
        // In one batch all have a description or none has.
        let goes_on = match &self.open[Lane::Entered as usize] {
            None => true,
            Some(RecordSort::Submitted(columns)) => columns.specs_used.is_empty() == described.is_none(),
            Some(_) => false,
        };
        if !goes_on {
            self.close();
        }
        let mut latest = self.latest.take();
        let new = || RecordSort::Submitted(proto::Submitted::default());
        let RecordSort::Submitted(columns) = self.columns(Lane::Entered, &[task], new) else { return };
        columns.task_steps.push(task.to_bits() as i64);
        columns.payload_steps.push(payload as i64);
        columns.at_steps.push(at.0 as i64);
        if let Some(spec) = described {
            let same = latest.as_mut().filter(|_| !columns.specs.is_empty()).is_some_and(|latest| {
                latest.payload = spec.payload;
                latest == spec
            });
            if !same {
                columns.specs.push(write_task(spec));
                latest = Some(spec.clone());
            }
            columns.specs_used.push(columns.specs.len() as u32 - 1);
        }
        self.latest = latest;
    }

    /// How many records it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The records as bytes; there are none in it afterwards.
    #[must_use]
    pub fn encode(&mut self) -> Vec<u8> {
        self.close();
        self.records = 0;
        let mut batches = std::mem::take(&mut self.batches);
        for sort in batches.iter_mut().filter_map(|batch| batch.sort.as_mut()) {
            pack(sort);
        }
        proto::Group { batches }.encode_to_vec()
    }

    /// Reads records in their order, each with what was stored beside it.
    ///
    /// # Errors
    ///
    /// If the bytes are no group; those read until then were handed on already.
    pub fn replay(bytes: &[u8], mut each: impl FnMut(&Record, Detail<'_>)) -> Result<(), WireError> {
        let read = proto::Group::decode(bytes).map_err(|error| WireError::Garbled(error.to_string()))?;
        let mut parts = MOST_PARTS;
        for batch in read.batches {
            let sort = batch.sort.ok_or(WireError::Missing("a record that this version knows"))?;
            unpack(&sort, &mut parts, &mut each)?;
        }
        Ok(())
    }
}

/// Numbers that grow become differences, columns that are all alike one entry.
fn pack(sort: &mut RecordSort) {
    match sort {
        RecordSort::Submitted(columns) => {
            take_differences(&mut columns.task_steps);
            take_differences(&mut columns.payload_steps);
            take_differences(&mut columns.at_steps);
            condense(&mut columns.specs_used);
        }
        RecordSort::Member(columns) => {
            take_differences(&mut columns.task_steps);
            take_differences(&mut columns.index_steps);
            condense(&mut columns.jobs);
            condense(&mut columns.ranks);
        }
        RecordSort::Element(columns) => {
            take_differences(&mut columns.task_steps);
            take_differences(&mut columns.index_steps);
            condense(&mut columns.jobs);
        }
        RecordSort::After(columns) => {
            take_differences(&mut columns.task_steps);
            take_differences(&mut columns.parent_steps);
        }
        RecordSort::Assigned(columns) => {
            take_differences(&mut columns.task_steps);
            take_differences(&mut columns.at_steps);
            condense(&mut columns.attempts);
            condense(&mut columns.workers);
        }
        RecordSort::Retrying(columns) => {
            take_differences(&mut columns.task_steps);
            take_differences(&mut columns.until_steps);
            condense(&mut columns.attempts);
            condense(&mut columns.retries);
        }
        RecordSort::Settled(columns) => {
            take_differences(&mut columns.task_steps);
            take_differences(&mut columns.at_steps);
            condense(&mut columns.attempts);
            condense(&mut columns.statuses);
            condense(&mut columns.causes);
        }
        RecordSort::Joined(_)
        | RecordSort::Left(_)
        | RecordSort::Opened(_)
        | RecordSort::Closed(_)
        | RecordSort::ArraySubmitted(_)
        | RecordSort::ElementsSettled(_)
        | RecordSort::KeyLimit(_) => {}
    }
}

fn unpack(sort: &RecordSort, parts: &mut usize, each: &mut impl FnMut(&Record, Detail<'_>)) -> Result<(), WireError> {
    match sort {
        RecordSort::Joined(joined) => {
            let record = Record::Joined { worker: WorkerId::from_bits(joined.worker), tag: joined.tag };
            match &joined.spec {
                Some(spec) => each(&record, Detail::Worker(&read_worker(Some(spec))?)),
                None => each(&record, Detail::None),
            }
        }
        RecordSort::Left(left) => each(&Record::Left { worker: WorkerId::from_bits(left.worker) }, Detail::None),
        RecordSort::Opened(opened) => {
            each(&Record::Opened { job: JobId::from_bits(opened.job), weight: opened.weight }, Detail::None);
        }
        RecordSort::Closed(closed) => each(&Record::Closed { job: JobId::from_bits(closed.job) }, Detail::None),
        RecordSort::Submitted(columns) => unpack_submitted(columns, parts, each)?,
        RecordSort::Member(columns) => {
            let count = columns.task_steps.len();
            let indexes = sums(whole(&columns.index_steps, count)?);
            let rest = spread(&columns.jobs, count)?.zip(spread(&columns.ranks, count)?);
            for ((task, index), (job, rank)) in sums(&columns.task_steps).zip(indexes).zip(rest) {
                let (task, job) = (TaskId::from_bits(task), JobId::from_bits(job));
                each(&Record::Member { task, job, index: narrow(index, "index")?, rank }, Detail::None);
            }
        }
        RecordSort::After(columns) => {
            let parents = sums(whole(&columns.parent_steps, columns.task_steps.len())?);
            for (task, parent) in sums(&columns.task_steps).zip(parents) {
                let record = Record::After { task: TaskId::from_bits(task), parent: TaskId::from_bits(parent) };
                each(&record, Detail::None);
            }
        }
        RecordSort::ArraySubmitted(array) => {
            let (job, at) = (JobId::from_bits(array.job), Time(array.at_nanos));
            let record = Record::ArraySubmitted { job, count: array.count, payload: array.payload, at };
            match &array.spec {
                Some(spec) => each(&record, Detail::Task(&read_task(spec, array.payload)?)),
                None => each(&record, Detail::None),
            }
        }
        RecordSort::Element(columns) => {
            let count = columns.task_steps.len();
            let indexes = sums(whole(&columns.index_steps, count)?);
            for ((task, index), job) in sums(&columns.task_steps).zip(indexes).zip(spread(&columns.jobs, count)?) {
                let (task, job) = (TaskId::from_bits(task), JobId::from_bits(job));
                each(&Record::Element { task, job, index: narrow(index, "index")? }, Detail::None);
            }
        }
        &RecordSort::ElementsSettled(proto::ElementsSettled { job, from, to, status, cause, at_nanos }) => {
            let (status, cause) = (value_of(STATUSES, status, "status")?, value_of(CAUSES, cause, "cause")?);
            let (job, at) = (JobId::from_bits(job), Time(at_nanos));
            each(&Record::ElementsSettled { job, from, to, status, cause, at }, Detail::None);
        }
        &RecordSort::KeyLimit(proto::KeyLimit { key, limit }) => {
            each(&Record::KeyLimit { key: KeyId(key), limit }, Detail::None);
        }
        RecordSort::Assigned(columns) => {
            let count = columns.task_steps.len();
            let ats = sums(whole(&columns.at_steps, count)?);
            let rest = spread(&columns.attempts, count)?.zip(spread(&columns.workers, count)?);
            for ((task, at), (attempt, worker)) in sums(&columns.task_steps).zip(ats).zip(rest) {
                let (task, worker) = (TaskId::from_bits(task), WorkerId::from_bits(worker));
                each(&Record::Assigned { task, attempt, worker, at: Time(at) }, Detail::None);
            }
        }
        RecordSort::Retrying(columns) => {
            let count = columns.task_steps.len();
            let untils = sums(whole(&columns.until_steps, count)?);
            let rest = spread(&columns.attempts, count)?.zip(spread(&columns.retries, count)?);
            for ((task, until), (attempt, retries)) in sums(&columns.task_steps).zip(untils).zip(rest) {
                let retries = narrow(u64::from(retries), "number of retries")?;
                let task = TaskId::from_bits(task);
                each(&Record::Retrying { task, attempt, retries, until: Time(until) }, Detail::None);
            }
        }
        RecordSort::Settled(columns) => {
            let count = columns.task_steps.len();
            let ats = sums(whole(&columns.at_steps, count)?);
            let codes = spread(&columns.statuses, count)?.zip(spread(&columns.causes, count)?);
            let rest = spread(&columns.attempts, count)?.zip(codes);
            for ((task, at), (attempt, (status, cause))) in sums(&columns.task_steps).zip(ats).zip(rest) {
                let status = value_of(STATUSES, status, "status")?;
                let cause = value_of(CAUSES, cause, "cause")?;
                let (task, at) = (TaskId::from_bits(task), Time(at));
                each(&Record::Settled { task, attempt, status, cause, at }, Detail::None);
            }
        }
    }
    Ok(())
}

fn unpack_submitted(
    columns: &proto::Submitted,
    parts: &mut usize,
    each: &mut impl FnMut(&Record, Detail<'_>),
) -> Result<(), WireError> {
    let count = columns.task_steps.len();
    let payloads = sums(whole(&columns.payload_steps, count)?);
    let ats = sums(whole(&columns.at_steps, count)?);
    let entries = sums(&columns.task_steps).zip(payloads.zip(ats)).map(|(task, (payload, at))| Record::Submitted {
        task: TaskId::from_bits(task),
        payload,
        at: Time(at),
    });
    if columns.specs_used.is_empty() {
        entries.for_each(|record| each(&record, Detail::None));
        return Ok(());
    }
    let mut specs = Vec::with_capacity(columns.specs.len());
    for spec in &columns.specs {
        specs.push(read_task(spec, 0)?);
    }
    for (record, used) in entries.zip(spread(&columns.specs_used, count)?) {
        let spec = specs.get_mut(used as usize).ok_or(WireError::Missing("the description of a task"))?;
        let size = spec.requires.len() + spec.skills.len() + spec.affinity.len() + spec.after.len() + 1;
        *parts = parts.checked_sub(size).ok_or(WireError::TooMuch("descriptions of tasks"))?;
        if let Record::Submitted { payload, .. } = record {
            spec.payload = payload;
        }
        each(&record, Detail::Task(spec));
    }
    Ok(())
}

fn write_task(spec: &TaskSpec) -> proto::Task {
    proto::Task {
        kind: spec.kind.0,
        task_type: spec.task_type.0,
        priority: u32::from(spec.priority.get()),
        requires: write_capabilities(&spec.requires),
        skills: write_capabilities(&spec.skills),
        demand: write_demand(&spec.demand),
        key: spec.key.map(|key| key.0),
        exclusive: spec.exclusive,
        idempotent: spec.idempotent,
        estimate_nanos: spec.estimate.map(|estimate| estimate.0),
        deadline_nanos: spec.deadline.map(|deadline| deadline.0),
        timeout_nanos: spec.timeout.map(|timeout| timeout.0),
        retry: spec.retry.map(|terms| proto::Retry {
            max_retries: terms.max_retries,
            backoff_nanos: terms.backoff.0,
            backoff_max_nanos: terms.backoff_max.0,
        }),
        affinities: spec.affinity.iter().map(|entry| entry.0.0).collect(),
        saved_nanos: spec.affinity.iter().map(|entry| entry.1.0).collect(),
        pin: spec.pin.map(WorkerId::to_bits),
        seeded: spec.seeded.map(WorkerId::to_bits),
        parent: spec.parent.map(TaskId::to_bits),
        after: spec.after.iter().map(|task| task.to_bits()).collect(),
        on_parent_failure: number_of(&PARENT_FAILURES, &spec.on_parent_failure),
        job: spec.job.map(JobId::to_bits),
    }
}

fn read_task(task: &proto::Task, payload: u64) -> Result<TaskSpec, WireError> {
    let saved = whole(&task.saved_nanos, task.affinities.len())?;
    let priority = narrow(u64::from(task.priority), "priority").map(Priority::new)?;
    Ok(TaskSpec {
        payload,
        kind: KindId(task.kind),
        task_type: TypeId(task.task_type),
        priority: priority.ok_or(WireError::Unknown { what: "priority", number: u64::from(task.priority) })?,
        requires: read_capabilities(&task.requires)?,
        skills: read_capabilities(&task.skills)?,
        demand: read_demand(task.demand.as_ref())?,
        key: task.key.map(KeyId),
        exclusive: task.exclusive,
        idempotent: task.idempotent,
        estimate: task.estimate_nanos.map(Span),
        deadline: task.deadline_nanos.map(Time),
        timeout: task.timeout_nanos.map(Span),
        retry: task.retry.as_ref().map(|terms| RetryTerms {
            max_retries: terms.max_retries,
            backoff: Span(terms.backoff_nanos),
            backoff_max: Span(terms.backoff_max_nanos),
        }),
        affinity: task.affinities.iter().zip(saved).map(|(&id, &nanos)| (AffinityId(id), Span(nanos))).collect(),
        pin: task.pin.map(WorkerId::from_bits),
        seeded: task.seeded.map(WorkerId::from_bits),
        parent: task.parent.map(TaskId::from_bits),
        after: task.after.iter().map(|&task| TaskId::from_bits(task)).collect(),
        on_parent_failure: value_of(&PARENT_FAILURES, task.on_parent_failure, "choice on a failed parent")?,
        job: task.job.map(JobId::from_bits),
    })
}
