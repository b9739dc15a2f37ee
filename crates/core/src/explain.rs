//! Why a task or the rest of an array waits, or why a task was placed where it was. Never has logic of its own: it asks the predicates and reads
//! the scores that decided.

use crate::action::Lack;
use crate::ids::{JobId, KeyId, NONE, ResourceId, TaskId, WorkerId};
use crate::resources::Amount;
use crate::scheduler::{Array, ArrayPlace, COMMON_JOB, Flags, QueueKey, Scheduler, Shortage, State, Wish, queue_key};
use crate::task::{Cause, Status};
use crate::time::{Span, Time};
use crate::worker::WorkerState;

/// A placement, as it was decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Which task.
    pub task: TaskId,
    /// When.
    pub at: Time,
    /// Who got it.
    pub worker: WorkerId,
    /// The policy that scored the candidates; empty if the worker asked and the task was the first it could run.
    pub policy: String,
    /// The best of those who were looked at, the winner among them, in the order of looking.
    pub candidates: Vec<DecisionCandidate>,
    /// How many were looked at.
    pub scored: u32,
}

/// A decision as the scheduler remembers it. There is one for every task handed out, most of them for a worker that
/// asked, of which there is little to remember.
#[derive(Clone, Debug)]
pub(crate) enum Remembered {
    /// A worker asked, and the task was the first in order that it could run.
    Asked { task: TaskId, worker: WorkerId, at: Time },
    /// Candidates were scored.
    Scored(Box<Decision>),
}

impl Remembered {
    /// The task it was about.
    pub(crate) fn task(&self) -> TaskId {
        match self {
            Remembered::Asked { task, .. } => *task,
            Remembered::Scored(decision) => decision.task,
        }
    }

    fn decision(&self) -> Decision {
        match self {
            &Remembered::Asked { task, worker, at } => {
                Decision { task, at, worker, policy: String::new(), candidates: Vec::new(), scored: 0 }
            }
            Remembered::Scored(decision) => (**decision).clone(),
        }
    }
}

/// A candidate of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionCandidate {
    /// Who.
    pub worker: WorkerId,
    /// Its score; none if the policy refused it.
    pub score: Option<f64>,
    /// The terms of the score, in the policy's own words. Those of filch's own policies add up to it, but for
    /// `performance_based` and `adaptive`, whose scores are products.
    pub terms: Vec<(&'static str, f64)>,
}

/// One reason why a task waits, with the numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// It depends on a task that has not ended.
    Dependency {
        /// On which.
        parent: TaskId,
        /// Where that one stands.
        status: Status,
    },
    /// All tokens of its concurrency key are taken or promised to tasks before it.
    Key {
        /// Which key.
        key: KeyId,
        /// Tokens held by running tasks.
        held: u32,
        /// Tokens there are.
        limit: u32,
        /// Tasks of the key that wait before it, counted up to 1,000.
        ahead: u32,
    },
    /// It failed and waits for its next attempt.
    Backoff {
        /// Until when.
        until: Time,
        /// Retries so far.
        retries: u32,
        /// Retries allowed.
        most: u32,
    },
    /// Its holders gave it back again and again, so it pauses.
    GivenBack {
        /// Until when.
        until: Time,
        /// How often.
        times: u32,
    },
    /// It must never run twice at once, and its last holder may still be at it.
    Lease {
        /// Until when at the latest.
        until: Time,
    },
    /// No registered worker can ever run it.
    NobodyCan {
        /// Times it was tried again so far.
        requeues: u32,
        /// Times allowed.
        most: u32,
    },
    /// Nobody is registered.
    NoWorkers,
    /// Workers that can run it are short of something right now.
    NoRoom {
        /// The best of them and what each is short of.
        candidates: Vec<(WorkerId, CandidateFate)>,
    },
    /// Others come first.
    Behind {
        /// How many tasks, counted up to 1,000.
        tasks: u64,
        /// Its level in the queue.
        level: u8,
    },
    /// It waits in a worker's own queue.
    AtWorker {
        /// Whose.
        worker: WorkerId,
        /// Tasks before it there, counted up to 1,000.
        ahead: u64,
        /// Whether that worker gets work at all.
        state: WorkerState,
    },
    /// A worker is kept free for it.
    Reserved {
        /// Which.
        worker: WorkerId,
        /// From when it should fit.
        from: Time,
    },
}

/// How a class or worker stands to a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CandidateFate {
    /// It could never run it.
    Never(Lack),
    /// It gets no work: draining or silent.
    NotUp(WorkerState),
    /// It was set aside after failures.
    SetAside {
        /// Until when.
        until: Time,
        /// Failures in a row that it takes.
        failures: u32,
        /// How often it was set aside since it last did well, this time included.
        times: u32,
    },
    /// Every slot is taken.
    SlotsTaken {
        /// Slots in use.
        used: u32,
        /// Slots it has.
        slots: u32,
    },
    /// It has too little of a resource left.
    Short {
        /// Of what.
        resource: ResourceId,
        /// What the task needs.
        needs: Amount,
        /// What is free.
        free: Amount,
    },
    /// It is kept free for a wider task.
    KeptFor(TaskId, Time),
    /// It has room but has not asked for a task.
    NotAsking,
    /// It could start at once.
    Ready,
}

/// Classes of workers that can never run a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Refusals {
    /// One member of each class, and what it lacks first.
    pub classes: Vec<(WorkerId, Lack)>,
    /// How many more classes there are, too many to be listed or even to be looked at.
    pub more: u32,
}

/// Everything there is to say about where a task is and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Which task.
    pub task: TaskId,
    /// Where it stands.
    pub status: Status,
    /// Why it came to a settled status.
    pub cause: Cause,
    /// How long it has been ready to run.
    pub waiting: Span,
    /// Why it waits; empty if it does not.
    pub reasons: Vec<Reason>,
    /// Its deadline and the earliest moment it could end, if that is too late.
    pub hopeless: Option<(Time, Time)>,
    /// The tasks it depends on that did not end well, as far as they are remembered, if it was settled for that.
    pub failed_parents: Vec<(TaskId, Status)>,
    /// Who can never run it.
    pub refusals: Refusals,
    /// Why it was placed where it is, while that is remembered.
    pub decision: Option<Decision>,
    /// Where earlier attempts ended badly.
    pub failures: Vec<(WorkerId, Cause)>,
}

/// Why the elements of an array wait that were never handed out. They are all alike, so what keeps one keeps them all.
#[derive(Clone, Debug, PartialEq)]
pub struct JobExplanation {
    /// Which job.
    pub job: JobId,
    /// How many elements were never handed out and are no tasks yet; 0 if the job has no array.
    pub rest: u32,
    /// Where they stand: queued, or unschedulable.
    pub status: Status,
    /// How long they have been ready to run.
    pub waiting: Span,
    /// Why they wait; empty if there are none.
    pub reasons: Vec<Reason>,
    /// Their deadline and the earliest moment the next of them could end, if that is too late.
    pub hopeless: Option<(Time, Time)>,
    /// Who can never run them.
    pub refusals: Refusals,
    /// Elements that wait by themselves, for the key of the array or for a worker that is kept free: tasks that can be
    /// asked about. The first few.
    pub loose: Vec<TaskId>,
}

/// Candidates listed at most.
const LISTED: usize = 8;
/// Classes listed at most that can never run a task.
const REFUSALS: usize = 64;
/// Classes, and members of each, looked at for an explanation.
const CLASSES: usize = 256;
const MEMBERS: usize = 64;
/// Where the counting of tasks that come first ends: as many, or more.
pub const COUNTED: u64 = 1000;

impl Scheduler {
    /// Why a task waits, or why it was placed where it is.
    #[must_use]
    pub fn explain(&self, task: TaskId) -> Option<Explanation> {
        self.explain_at(task, self.now)
    }

    /// The same as it is at a moment after the last step: nothing has happened since, but it has waited for longer.
    #[must_use]
    pub fn explain_at(&self, task: TaskId, now: Time) -> Option<Explanation> {
        let now = now.max(self.now);
        let slot = match self.tasks.find(task) {
            Some(slot) => slot,
            None => {
                let (status, cause) = self.tasks.outcome(task)?;
                let mut settled = self.bare_explanation(task, status, cause);
                if cause == Cause::NoWorker {
                    let refusals = self.tasks.extra(task.slot).and_then(|extra| extra.refusals.as_deref());
                    settled.refusals = refusals.cloned().unwrap_or_default();
                }
                if cause == Cause::ParentFailed {
                    let parents = self.tasks.extra(task.slot).into_iter().flat_map(|extra| &extra.parents);
                    let ended = parents.filter_map(|&parent| Some((parent, self.tasks.outcome(parent)?.0)));
                    settled.failed_parents = ended.filter(|(_, status)| *status != Status::Completed).collect();
                }
                settled.failures = self.failures_of(task.slot);
                return Some(settled);
            }
        };
        let found = self.tasks.at(slot);
        let mut explanation = self.bare_explanation(task, found.status(), Cause::None);
        if !found.state.is_held() {
            explanation.waiting = now.since(found.ready_at);
        }
        explanation.failures = self.failures_of(slot);
        self.explain_waiting(slot, &mut explanation);
        let earliest = if found.state.is_held() { found.since } else { now } + self.expected_of(slot);
        if earliest > found.deadline {
            explanation.hopeless = Some((found.deadline, earliest));
        }
        Some(explanation)
    }

    fn bare_explanation(&self, task: TaskId, status: Status, cause: Cause) -> Explanation {
        Explanation {
            task,
            status,
            cause,
            waiting: Span::ZERO,
            reasons: Vec::new(),
            hopeless: None,
            failed_parents: Vec::new(),
            refusals: Refusals::default(),
            decision: self.decisions.iter().rev().find(|known| known.task() == task).map(Remembered::decision),
            failures: Vec::new(),
        }
    }

    fn failures_of(&self, slot: u32) -> Vec<(WorkerId, Cause)> {
        self.tasks.extra(slot).map(|extra| extra.failures.clone()).unwrap_or_default()
    }

    fn explain_waiting(&self, slot: u32, explanation: &mut Explanation) {
        let task = self.tasks.at(slot);
        let reasons = &mut explanation.reasons;
        match task.state {
            State::Vacant => {}
            State::Assigned | State::Running => {
                let holder = &self.workers[task.worker];
                if holder.state == WorkerState::Silent {
                    reasons.push(Reason::Lease { until: holder.silent_since + self.config.limits.lease });
                }
            }
            State::Blocked => {
                for &parent in self.tasks.extra(slot).iter().flat_map(|extra| &extra.parents) {
                    if let Some(at) = self.tasks.find(parent) {
                        reasons.push(Reason::Dependency { parent, status: self.tasks.at(at).status() });
                    }
                }
                reasons.extend(self.key_short(slot));
                self.explain_later(slot, reasons);
            }
            State::Backoff => {
                let until = task.since;
                reasons.push(match task.cause {
                    Cause::GivenBack => Reason::GivenBack { until, times: u32::from(task.given_back) },
                    _ => Reason::Backoff {
                        until,
                        retries: u32::from(task.retries),
                        most: self.retry_terms(slot).max_retries,
                    },
                });
                if self.may_still_run(slot) {
                    reasons.push(Reason::Lease { until });
                }
                reasons.extend(self.key_short(slot));
                self.explain_later(slot, reasons);
            }
            State::Parked => reasons.push(self.nobody_can(u32::from(task.requeues))),
            State::KeyWaiting => {
                reasons.push(self.key_taken(task.key, queue_key(task.level, task.order(), slot)));
                self.explain_later(slot, reasons);
            }
            State::AtWorker => {
                let worker = &self.workers[task.worker];
                let place = queue_key(task.level, task.order(), slot);
                let ahead = worker.queue.ahead_of(place, COUNTED as usize) as u64;
                let id = self.worker_id(task.worker);
                reasons.push(Reason::AtWorker { worker: id, ahead, state: worker.state });
                reasons.extend(self.kept_for(slot));
                let mut candidates = Vec::new();
                self.fates(&self.wish_of(slot), task.worker, &mut candidates);
                reasons.push(Reason::NoRoom { candidates });
            }
            State::Central => {
                let tasks = self.ready.ahead_of(task.level, task.job, task.order(), COUNTED);
                let behind = (tasks > 0).then_some(Reason::Behind { tasks, level: task.level });
                let before = behind.into_iter().chain(self.kept_for(slot));
                self.explain_candidates(&self.wish_of(slot), u32::from(task.requeues), before, reasons);
            }
        }
        if !task.state.is_held() && task.state != State::AtWorker {
            let homeless = task.flags.has(Flags::PINNED) && self.home_of(slot).is_none();
            explanation.refusals = self.refusals(task.signature, homeless);
        }
        if let Some(&(_, cause)) = explanation.failures.last() {
            explanation.cause = cause;
        }
        debug_assert!(task.worker == NONE || self.workers.get(task.worker).is_some());
    }

    /// Why the elements of an array wait that were never handed out. None if there is no such job, or no longer.
    #[must_use]
    pub fn explain_job(&self, job: JobId) -> Option<JobExplanation> {
        self.explain_job_at(job, self.now)
    }

    /// The same as it is at a moment after the last step: nothing has happened since, but they have waited for longer.
    #[must_use]
    pub fn explain_job_at(&self, job: JobId, now: Time) -> Option<JobExplanation> {
        let slot = self.job_slot(job).ok().filter(|&slot| slot != COMMON_JOB)?;
        let mut explanation = JobExplanation {
            job,
            rest: 0,
            status: Status::Queued,
            waiting: Span::ZERO,
            reasons: Vec::new(),
            hopeless: None,
            refusals: Refusals::default(),
            loose: Vec::new(),
        };
        if let Some(array) = &self.jobs[slot].array {
            explanation.loose = array.loose.values().take(LISTED).map(|&element| self.tasks.id(element)).collect();
            if array.pending() > 0 {
                self.explain_rest(slot, array, now.max(self.now), &mut explanation);
            }
        }
        Some(explanation)
    }

    fn explain_rest(&self, job: u32, array: &Array, now: Time, explanation: &mut JobExplanation) {
        let (template, reasons) = (&array.template, &mut explanation.reasons);
        explanation.rest = array.pending();
        explanation.status = array.status();
        explanation.waiting = now.since(template.ready_at);
        match array.place {
            ArrayPlace::Empty => {}
            ArrayPlace::Parked => reasons.push(self.nobody_can(array.requeues)),
            // Elements that wait by themselves have the same order and come first, here and in the lane.
            ArrayPlace::Fed => {
                let key = self.key_taken(template.key, queue_key(array.level, array.order(), NONE));
                self.explain_candidates(&array.wish(), array.requeues, [key], reasons);
            }
            ArrayPlace::Lane => {
                let mut next = array.order();
                next.sequence += 1;
                let tasks = self.ready.ahead_of(array.level, job, next, COUNTED);
                let behind = (tasks > 0).then_some(Reason::Behind { tasks, level: array.level });
                self.explain_candidates(&array.wish(), array.requeues, behind, reasons);
            }
        }
        explanation.refusals = self.refusals(template.signature, false);
        let earliest = now + self.expected_by(template.kind, template.declared());
        if earliest > template.deadline {
            explanation.hopeless = Some((template.deadline, earliest));
        }
    }

    fn nobody_can(&self, requeues: u32) -> Reason {
        Reason::NobodyCan { requeues, most: self.config.limits.max_requeue_attempts }
    }

    /// Why something waits for a key at that place.
    fn key_taken(&self, key: u32, place: QueueKey) -> Reason {
        let (limit, held, _, _) = self.keys.figures(key);
        let ahead = self.keys.ahead_of(key, place, COUNTED as usize) as u32;
        Reason::Key { key: KeyId(key), held, limit, ahead }
    }

    /// The key of a task that has not come to wait for it yet, if no token of it is left.
    fn key_short(&self, slot: u32) -> Option<Reason> {
        let task = self.tasks.at(slot);
        if task.key == NONE {
            return None;
        }
        let (limit, held, offered, _) = self.keys.figures(task.key);
        let short = held as usize + offered >= limit as usize;
        short.then(|| self.key_taken(task.key, queue_key(task.level, task.order(), slot)))
    }

    /// What will keep a task once nothing else does: nobody can run it, or none of those who can has room right now.
    fn explain_later(&self, slot: u32, reasons: &mut Vec<Reason>) {
        let wish = self.wish_of(slot);
        let pinned = self.tasks.at(slot).flags.has(Flags::PINNED);
        let candidates = match self.home_of(slot) {
            Some(at) => {
                let mut candidates = Vec::new();
                self.fates(&wish, at, &mut candidates);
                candidates
            }
            None if pinned => Vec::new(),
            None => self.candidate_fates(&wish),
        };
        let has_room = |fate: &CandidateFate| matches!(fate, CandidateFate::Ready | CandidateFate::NotAsking);
        if self.workers.len() == 0 {
            reasons.push(Reason::NoWorkers);
        } else if candidates.is_empty() && (pinned || self.classes.len() <= CLASSES) {
            reasons.push(self.nobody_can(u32::from(self.tasks.at(slot).requeues)));
        } else if !candidates.is_empty() && !candidates.iter().any(|(_, fate)| has_room(fate)) {
            reasons.push(Reason::NoRoom { candidates });
        }
    }

    /// The worker that is kept free for a task, if one is.
    fn kept_for(&self, slot: u32) -> Option<Reason> {
        let task = self.tasks.at(slot);
        let worker = task.flags.has(Flags::RESERVED).then_some(task.worker)?;
        let from = self.workers[worker].reservation()?.from;
        Some(Reason::Reserved { worker: self.worker_id(worker), from })
    }

    /// Why something waits that anybody may run: what comes before it, and who could run it and does not.
    fn explain_candidates(
        &self,
        wish: &Wish,
        requeues: u32,
        before: impl IntoIterator<Item = Reason>,
        reasons: &mut Vec<Reason>,
    ) {
        if self.workers.len() == 0 {
            reasons.push(Reason::NoWorkers);
        }
        reasons.extend(before);
        let candidates = self.candidate_fates(wish);
        if !candidates.is_empty() {
            reasons.push(Reason::NoRoom { candidates });
        } else if self.workers.len() > 0 && self.classes.len() <= CLASSES {
            // The last who could has gone; it will be set aside at the next look through the queue.
            reasons.push(self.nobody_can(requeues));
        }
    }

    /// How the least loaded workers that can run it stand to it, as far as a bounded look finds them.
    fn candidate_fates(&self, wish: &Wish) -> Vec<(WorkerId, CandidateFate)> {
        let signature = &self.signatures[wish.signature];
        let able = self.classes.iter().take(CLASSES).filter(|(_, class)| class.can_ever(signature).is_ok());
        let able = able.flat_map(|(_, class)| class.members.iter().take(MEMBERS));
        let mut able: Vec<(u64, u32)> = able.map(|&at| (self.workers[at].backlog().0, at)).collect();
        able.sort_unstable();
        let mut fates = Vec::new();
        for (_, at) in able.into_iter().take(LISTED) {
            self.fates(wish, at, &mut fates);
        }
        fates
    }

    /// How one worker stands to it, by the predicates that placement uses: whatever it is short of, or one word if that
    /// is not what keeps it.
    fn fates(&self, wish: &Wish, at: u32, fates: &mut Vec<(WorkerId, CandidateFate)>) {
        let (worker, id) = (&self.workers[at], self.worker_id(at));
        let (class, signature) = (&self.classes[worker.class], &self.signatures[wish.signature]);
        if let Err(lack) = class.can_ever(signature) {
            fates.push((id, CandidateFate::Never(lack)));
            return;
        }
        let fate = |shortage: Shortage| match shortage {
            Shortage::NotUp => match worker.state {
                WorkerState::Quarantined(until) => CandidateFate::SetAside {
                    until,
                    failures: self.config.limits.quarantine_after,
                    times: worker.quarantines,
                },
                state => CandidateFate::NotUp(state),
            },
            Shortage::Slots => CandidateFate::SlotsTaken { used: worker.used_slots(), slots: worker.slots },
            Shortage::Resource { resource, needs, free } => CandidateFate::Short { resource, needs, free },
            Shortage::Reserved { task, from } => CandidateFate::KeptFor(task, from),
        };
        let first = match self.wish_fits(wish, at) {
            Ok(()) if !self.takes_tasks(worker) => CandidateFate::NotAsking,
            Ok(()) => CandidateFate::Ready,
            Err(shortage) => fate(shortage),
        };
        fates.push((id, first));
        if matches!(first, CandidateFate::SlotsTaken { .. } | CandidateFate::Short { .. }) {
            let others = worker.shortages(class, signature).map(fate).filter(|other| *other != first);
            fates.extend(others.map(|other| (id, other)));
        }
    }

    /// One worker of each class that can never run such a task, and what it lacks.
    pub(crate) fn refusals(&self, signature: u32, homeless: bool) -> Refusals {
        let signature = &self.signatures[signature];
        let refused = self.classes.iter().take(CLASSES).filter_map(|(_, class)| {
            let lack = class.can_ever(signature).err().or(homeless.then_some(Lack::Pinned))?;
            Some((self.worker_id(*class.members.first()?), lack))
        });
        let mut classes: Vec<(WorkerId, Lack)> = refused.collect();
        let unseen = self.classes.len().saturating_sub(CLASSES);
        let more = (classes.len().saturating_sub(REFUSALS) + unseen) as u32;
        classes.truncate(REFUSALS);
        Refusals { classes, more }
    }
}
