//! Explanations with names instead of numbers: as text for people, as JSON for programs. Adds nothing to what the machine
//! says. Whoever knows the names lends them.

use std::fmt;

use serde::Serialize;

use crate::action::Lack;
use crate::explain::{self, COUNTED, CandidateFate, Refusals};
use crate::ids::{KeyId, ResourceId, TaskId, WorkerId};
use crate::task::{Cause, Status};
use crate::time::Time;

/// What people call things.
pub trait Labels {
    /// A worker.
    fn worker(&self, id: WorkerId) -> String;

    /// A task.
    fn task(&self, id: TaskId) -> String;

    /// What a worker lacks, in words.
    fn lack(&self, lack: Lack) -> String;

    /// A concurrency key.
    fn key(&self, id: KeyId) -> String;

    /// A resource.
    fn resource(&self, id: ResourceId) -> String;
}

/// Why a task waits, or why it was placed where it is. Displays as readable text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The task, by name where it has one.
    pub task: String,
    /// Where it stands.
    pub status: &'static str,
    /// Why it came to that, where there is more than one way.
    pub cause: Option<&'static str>,
    /// What the last failed attempt said; if it failed because nobody can run it and `refused_by` is no longer known, what
    /// each class of workers lacked.
    pub error: Option<String>,
    /// Seconds it has been ready to run.
    pub waiting_s: f64,
    /// Why it waits; empty if it does not.
    pub reasons: Vec<Reason>,
    /// Its deadline, if it cannot meet it.
    pub hopeless: Option<Hopeless>,
    /// Tasks it depends on that did not end well, if it was settled for that and as far as they are remembered.
    pub failed_parents: Vec<Parent>,
    /// One worker of each class that can never run it.
    pub refused_by: Vec<Refused>,
    /// Why it was placed where it is, while that is remembered.
    pub decision: Option<Choice>,
    /// Workers where earlier attempts ended badly, and why.
    pub failures: Vec<Refused>,
}

/// A deadline that cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Hopeless {
    /// Seconds until the deadline; 0 if it has passed.
    pub deadline_in_s: f64,
    /// Seconds until the task could end at the earliest.
    pub earliest_in_s: f64,
}

/// A task that another depends on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parent {
    /// Which, by name where it has one.
    pub task: String,
    /// Where it stands.
    pub status: &'static str,
}

/// One reason why a task waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// It depends on a task that has not ended.
    Dependency {
        /// On which.
        parent: String,
        /// Where that one stands.
        status: &'static str,
    },
    /// Its concurrency key is in use.
    Key {
        /// Which.
        key: String,
        /// Tasks that run with it.
        held: u32,
        /// Tasks that may.
        limit: u32,
        /// Tasks of the key that come before it, counted up to 1,000.
        ahead: u32,
    },
    /// It failed and waits for its next attempt.
    Backoff {
        /// For so many more seconds.
        seconds_left: f64,
        /// Retries so far.
        retries: u32,
        /// Retries allowed.
        most: u32,
    },
    /// Its holders gave it back again and again, so it pauses.
    GivenBack {
        /// For so many more seconds.
        seconds_left: f64,
        /// How often it was given back.
        times: u32,
    },
    /// It must never run twice at once, and its last holder may still be at it.
    Lease {
        /// For so many more seconds.
        seconds_left: f64,
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
    /// Workers that can run it cannot take it right now.
    NoRoom {
        /// The best of them and why not.
        candidates: Vec<Refused>,
    },
    /// Others come first.
    Behind {
        /// How many, counted up to 1,000.
        tasks: u64,
        /// Its level in the queue.
        level: u8,
    },
    /// It waits in a worker's own queue.
    AtWorker {
        /// Whose.
        worker: String,
        /// Tasks before it there, counted up to 1,000.
        ahead: u64,
        /// Whether that worker gets work.
        state: &'static str,
    },
    /// A worker is kept free for it.
    Reserved {
        /// Which.
        worker: String,
        /// Seconds until it should fit.
        in_s: f64,
    },
}

/// A worker and why it does not, or did not, run the task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refused {
    /// Who.
    pub worker: String,
    /// Why.
    pub why: String,
}

/// A placement, as it was decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// When, in seconds of the balancer's clock.
    pub at_s: f64,
    /// Who got it.
    pub worker: String,
    /// The policy that scored; empty if the worker asked and this was the first task it could run.
    pub policy: String,
    /// The best of those who were looked at, the winner among them, in the order of looking.
    pub candidates: Vec<Candidate>,
    /// How many were looked at.
    pub scored: u32,
}

/// A candidate of a placement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Who.
    pub worker: String,
    /// Its score, highest wins; none if the policy refused it.
    pub score: Option<f64>,
    /// The terms of the score, what counts against the worker negative. They add up to the score unless the policy
    /// computes it in another way; then they are the figures it used.
    pub terms: Vec<(&'static str, f64)>,
}

/// Why the elements of an array wait that were never handed out. Displays as readable text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RestExplanation {
    /// How many there are.
    pub rest: u32,
    /// Where the rest stands: queued, or unschedulable; none if there is no rest.
    pub rest_status: Option<&'static str>,
    /// Seconds the rest has been ready to run.
    pub waiting_s: f64,
    /// Why the rest waits; empty if there is none.
    pub reasons: Vec<Reason>,
    /// The deadline of the rest, if it cannot be met.
    pub hopeless: Option<Hopeless>,
    /// One worker of each class that can never run such an element.
    pub refused_by: Vec<Refused>,
    /// Elements that wait by themselves, for the key of the array or for a worker that is kept free: the first few.
    pub loose: Vec<String>,
}

/// Turns numbers into names.
struct Translator<'a> {
    labels: &'a dyn Labels,
    now: Time,
}

impl Explanation {
    /// An explanation with names. `error` is what the last failed attempt said.
    #[must_use]
    pub fn told(labels: &dyn Labels, now: Time, explanation: explain::Explanation, error: Option<&str>) -> Explanation {
        let translator = Translator { labels, now };
        let worker = |id: WorkerId| labels.worker(id);
        // What each class lacks is said once.
        let is_said = explanation.cause == Cause::NoWorker && !explanation.refusals.classes.is_empty();
        Explanation {
            task: labels.task(explanation.task),
            status: explanation.status.name(),
            cause: explanation.cause.words(),
            error: error.filter(|_| !is_said).map(str::to_owned),
            waiting_s: explanation.waiting.as_secs_f64(),
            reasons: translator.reasons(explanation.reasons),
            hopeless: translator.hopeless(explanation.hopeless),
            failed_parents: explanation
                .failed_parents
                .into_iter()
                .map(|(parent, status)| Parent { task: labels.task(parent), status: status.name() })
                .collect(),
            refused_by: translator.refused_by(explanation.refusals),
            decision: explanation.decision.map(|decision| Choice {
                at_s: decision.at.as_secs_f64(),
                worker: worker(decision.worker),
                policy: decision.policy,
                candidates: decision
                    .candidates
                    .into_iter()
                    .map(|one| Candidate { worker: worker(one.worker), score: one.score, terms: one.terms })
                    .collect(),
                scored: decision.scored,
            }),
            failures: explanation
                .failures
                .into_iter()
                .map(|(id, cause)| Refused { worker: worker(id), why: cause.words().unwrap_or("it failed").to_owned() })
                .collect(),
        }
    }
}

impl RestExplanation {
    /// An explanation with names.
    #[must_use]
    pub fn told(labels: &dyn Labels, now: Time, explanation: explain::JobExplanation) -> RestExplanation {
        let translator = Translator { labels, now };
        RestExplanation {
            rest: explanation.rest,
            rest_status: (explanation.rest > 0).then(|| explanation.status.name()),
            waiting_s: explanation.waiting.as_secs_f64(),
            reasons: translator.reasons(explanation.reasons),
            hopeless: translator.hopeless(explanation.hopeless),
            refused_by: translator.refused_by(explanation.refusals),
            loose: explanation.loose.into_iter().map(|element| labels.task(element)).collect(),
        }
    }
}

impl Translator<'_> {
    fn reasons(&self, reasons: Vec<explain::Reason>) -> Vec<Reason> {
        reasons.into_iter().map(|reason| self.reason(reason)).collect()
    }

    fn hopeless(&self, hopeless: Option<(Time, Time)>) -> Option<Hopeless> {
        let (deadline, earliest) = hopeless?;
        Some(Hopeless { deadline_in_s: self.seconds_until(deadline), earliest_in_s: self.seconds_until(earliest) })
    }

    fn refused_by(&self, refusals: Refusals) -> Vec<Refused> {
        let refused = refusals.classes.into_iter();
        let refused = refused.map(|(id, lack)| Refused { worker: self.labels.worker(id), why: self.labels.lack(lack) });
        let more = (refusals.more > 0).then(|| Refused {
            worker: format!("{} more classes", refusals.more),
            why: "they are too many to be listed".to_owned(),
        });
        refused.chain(more).collect()
    }

    fn seconds_until(&self, at: Time) -> f64 {
        at.since(self.now).as_secs_f64()
    }

    fn reason(&self, reason: explain::Reason) -> Reason {
        let worker = |id: WorkerId| self.labels.worker(id);
        match reason {
            explain::Reason::Dependency { parent, status } => {
                Reason::Dependency { parent: self.labels.task(parent), status: Status::name(status) }
            }
            explain::Reason::Key { key, held, limit, ahead } => {
                Reason::Key { key: self.labels.key(key), held, limit, ahead }
            }
            explain::Reason::Backoff { until, retries, most } => {
                Reason::Backoff { seconds_left: self.seconds_until(until), retries, most }
            }
            explain::Reason::GivenBack { until, times } => {
                Reason::GivenBack { seconds_left: self.seconds_until(until), times }
            }
            explain::Reason::Lease { until } => Reason::Lease { seconds_left: self.seconds_until(until) },
            explain::Reason::NobodyCan { requeues, most } => Reason::NobodyCan { requeues, most },
            explain::Reason::NoWorkers => Reason::NoWorkers,
            explain::Reason::NoRoom { candidates } => Reason::NoRoom {
                candidates: candidates
                    .into_iter()
                    .map(|(id, fate)| Refused { worker: worker(id), why: self.fate(fate) })
                    .collect(),
            },
            explain::Reason::Behind { tasks, level } => Reason::Behind { tasks, level },
            explain::Reason::AtWorker { worker: id, ahead, state } => {
                Reason::AtWorker { worker: worker(id), ahead, state: state.name() }
            }
            explain::Reason::Reserved { worker: id, from } => {
                Reason::Reserved { worker: worker(id), in_s: self.seconds_until(from) }
            }
        }
    }

    fn fate(&self, fate: CandidateFate) -> String {
        match fate {
            CandidateFate::Never(lack) => self.labels.lack(lack),
            CandidateFate::NotUp(state) => format!("it is {}", state.name()),
            CandidateFate::SetAside { until, failures, times } => format!(
                "it is set aside for {:.1} s more, after {} in a row{}",
                self.seconds_until(until),
                count(u64::from(failures), "failure"),
                if times > 1 { format!(", and that {times} times") } else { String::new() },
            ),
            CandidateFate::SlotsTaken { used, slots } => {
                format!(
                    "{used} of its {} {} taken",
                    count(u64::from(slots), "slot"),
                    if used == 1 { "is" } else { "are" }
                )
            }
            CandidateFate::Short { resource, needs, free } => {
                format!("it has {free} {} free, the task needs {needs}", self.labels.resource(resource))
            }
            CandidateFate::KeptFor(task, from) => {
                format!("it is kept for {} in {:.1} s", self.labels.task(task), self.seconds_until(from))
            }
            CandidateFate::NotAsking => "it has room but has not asked for a task".to_owned(),
            CandidateFate::Ready => "it could start at once".to_owned(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.task, self.status)?;
        if let Some(cause) = self.cause {
            write!(f, ": {cause}")?;
        }
        if !self.reasons.is_empty() {
            write!(f, " (waiting for {:.1} s)", self.waiting_s)?;
        }
        writeln!(f)?;
        if let Some(error) = &self.error {
            writeln!(f, "  last error: {error}")?;
        }
        reasons(f, &self.reasons, self.hopeless)?;
        for Parent { task, status } in &self.failed_parents {
            writeln!(f, "  depends on {task}, which is {status}")?;
        }
        refusals(f, &self.refused_by)?;
        if !self.failures.is_empty() {
            writeln!(f, "  failed before on:")?;
            list(f, &self.failures)?;
        }
        match &self.decision {
            Some(decision) => write!(f, "{decision}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for RestExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.rest_status {
            let (elements, are) = (count(u64::from(self.rest), "element"), if self.rest == 1 { "is" } else { "are" });
            writeln!(f, "{elements} never handed out {are} {name} (waiting for {:.1} s)", self.waiting_s)?;
        }
        reasons(f, &self.reasons, self.hopeless)?;
        refusals(f, &self.refused_by)?;
        if !self.loose.is_empty() {
            writeln!(f, "  waiting by themselves: {}", self.loose.join(", "))?;
        }
        Ok(())
    }
}

/// Why something waits, and that it waits too long.
fn reasons(f: &mut fmt::Formatter<'_>, reasons: &[Reason], hopeless: Option<Hopeless>) -> fmt::Result {
    reasons.iter().try_for_each(|reason| write!(f, "{reason}"))?;
    let Some(Hopeless { deadline_in_s, earliest_in_s }) = hopeless else { return Ok(()) };
    if deadline_in_s > 0.0 {
        write!(f, "  cannot meet its deadline in {deadline_in_s:.1} s")?;
    } else {
        write!(f, "  its deadline has passed")?;
    }
    writeln!(f, ": it could end in {earliest_in_s:.1} s at the earliest")
}

fn refusals(f: &mut fmt::Formatter<'_>, refused_by: &[Refused]) -> fmt::Result {
    if refused_by.is_empty() {
        return Ok(());
    }
    writeln!(f, "  can never run on:")?;
    list(f, refused_by)
}

/// So many of something, in words.
fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// How many are ahead, and that it may be more where the count ended.
fn counted(ahead: u64) -> String {
    if ahead >= COUNTED { format!("{COUNTED} or more") } else { ahead.to_string() }
}

fn counted_tasks(ahead: u64) -> String {
    format!("{} task{}", counted(ahead), if ahead == 1 { "" } else { "s" })
}

fn list(f: &mut fmt::Formatter<'_>, entries: &[Refused]) -> fmt::Result {
    entries.iter().try_for_each(|entry| writeln!(f, "    {}: {}", entry.worker, entry.why))
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Dependency { parent, status } => writeln!(f, "  depends on {parent}, which is {status}"),
            Reason::Key { key, held, limit, ahead } => {
                let come = if *ahead == 1 { "comes" } else { "come" };
                let ahead = counted(u64::from(*ahead));
                writeln!(f, "  key `{key}`: {held} of {limit} run with it, {ahead} {come} first")
            }
            Reason::Backoff { seconds_left, retries, most } => {
                writeln!(f, "  retry {retries} of {most} in {seconds_left:.1} s")
            }
            Reason::GivenBack { seconds_left, times } => {
                writeln!(
                    f,
                    "  given back {}; handed out again in {seconds_left:.1} s",
                    count(u64::from(*times), "time")
                )
            }
            Reason::Lease { seconds_left } => {
                writeln!(f, "  exclusive, and its last holder may still be at it: waits {seconds_left:.1} s for it")
            }
            Reason::NobodyCan { requeues, most } => {
                writeln!(f, "  no registered worker can ever run it; tried again {requeues} of {most} times")
            }
            Reason::NoWorkers => writeln!(f, "  no worker is registered"),
            Reason::NoRoom { candidates } => {
                writeln!(f, "  workers that can run it:")?;
                list(f, candidates)
            }
            Reason::Behind { tasks, level } => {
                let come = if *tasks == 1 { "comes" } else { "come" };
                writeln!(f, "  {} {come} first (level {level})", counted_tasks(*tasks))
            }
            Reason::AtWorker { worker, ahead, state } => {
                writeln!(f, "  in the queue of {worker} ({state}), {} before it", counted_tasks(*ahead))
            }
            Reason::Reserved { worker, in_s } => writeln!(f, "  {worker} is kept for it, expected in {in_s:.1} s"),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.policy.is_empty() {
            return writeln!(f, "  given to {}, which asked and could run it first", self.worker);
        }
        writeln!(f, "  given to {} by {}:", self.worker, self.policy)?;
        for candidate in &self.candidates {
            match candidate.score {
                None => writeln!(f, "    {}: refused", candidate.worker)?,
                Some(score) => {
                    writeln!(f, "    {}: {}{}", candidate.worker, number(score), equation(score, &candidate.terms))?;
                }
            }
        }
        match (self.scored as usize).saturating_sub(self.candidates.len()) {
            0 => {}
            more => writeln!(f, "    and {more} that came after them")?,
        }
        Ok(())
    }
}

/// A number as people write it: up to six decimals, and no more than it needs.
fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// The terms of a score: as its sum if they are, as a list if the score comes about in another way.
fn equation(score: f64, terms: &[(&'static str, f64)]) -> String {
    let sum: f64 = terms.iter().map(|term| term.1).sum();
    if terms.is_empty() {
        return String::new();
    }
    if (sum - score).abs() > 1e-9 * score.abs().max(1.0) {
        let list: Vec<_> = terms.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
        return format!(" from {}", list.join(", "));
    }
    let mut text = " =".to_owned();
    for (at, &(name, value)) in terms.iter().enumerate() {
        let sign = match (at, value < 0.0) {
            (0, false) => " ",
            (0, true) => " -",
            (_, false) => " + ",
            (_, true) => " - ",
        };
        text += &format!("{sign}{name} {}", number(value.abs()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_shown_as_the_sum_it_is_or_with_the_figures_it_comes_from() {
        assert_eq!(
            equation(-1.5, &[("wait", -2.0), ("warmth", 0.5), ("cold", 0.0)]),
            " = -wait 2 + warmth 0.5 + cold 0"
        );
        assert_eq!(equation(1.0, &[("skills", 1.25), ("queue", -0.25)]), " = skills 1.25 - queue 0.25");
        assert_eq!(equation(6.0, &[("speed", 2.0), ("success", 3.0)]), " from speed 2, success 3");
        assert_eq!(equation(6.0, &[]), "");
        assert_eq!(
            (number(-0.0), number(1.0 / 3.0), number(1e9)),
            ("0".into(), "0.333333".into(), "1000000000".into())
        );
    }
}
