//! What is counted while a job runs: how many tasks ended how, how long they waited, the slowest and the first failures.
//!
//! Takes the same little room for a million tasks as for ten.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use filch_core::wire::talk::{Ended, Progress};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// As many of the slowest are kept.
const SLOWEST: usize = 5;
/// As many failures are shown with what they said.
const FAILURES: usize = 5;
/// As many lines of it.
const LINES: usize = 10;
/// And so many bytes.
const TAIL: usize = 4 << 10;
/// The longest wait that is told apart from longer ones: a month, in microseconds.
const LONGEST_US: u64 = 30 * 86_400 * 1_000_000;

/// What is known of a task that ended badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) why: String,
    /// The end of what it wrote to standard error.
    pub(crate) said: String,
}

/// Counts of a job.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) skipped: u64,
    pub(crate) retried: u64,
    pub(crate) stolen: u64,
    /// Tasks that wrote more than is kept of it, and how many bytes were left out of all.
    pub(crate) cut_short: (u64, u64),
    busy: Duration,
    waits: Histogram<u64>,
    /// The least on top, so that it makes room.
    slowest: BinaryHeap<Reverse<(u64, String)>>,
    failures: Vec<Failure>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        // Two digits, up to the bound: the arguments are within what the histogram allows.
        let waits = Histogram::new_with_bounds(1, LONGEST_US, 2).or_else(|_| Histogram::new(2));
        Tally {
            completed: 0,
            failed: 0,
            cancelled: 0,
            skipped: 0,
            retried: 0,
            stolen: 0,
            cut_short: (0, 0),
            busy: Duration::ZERO,
            waits: waits.unwrap_or_else(|_| unreachable!("two digits are allowed")),
            slowest: BinaryHeap::new(),
            failures: Vec::new(),
        }
    }

    /// A task ended; `what` tells which, for people, and is asked only where it is shown.
    pub(crate) fn ended(&mut self, ended: &Ended, what: impl Fn() -> String) {
        match ended.status.as_str() {
            "completed" => self.completed += 1,
            "cancelled" => self.cancelled += 1,
            "skipped" => self.skipped += 1,
            _ => self.failed += 1,
        }
        self.retried += u64::from(ended.attempts.saturating_sub(1));
        self.stolen += u64::from(ended.hops > 0);
        let left_out = ended.ending.as_ref().map_or(0, |ending| ending.stdout_left_out + ending.stderr_left_out);
        if left_out > 0 {
            self.cut_short = (self.cut_short.0 + 1, self.cut_short.1 + left_out);
        }
        // What was handed to a worker and never began has nothing to tell.
        if ended.attempts > 0 && ended.ran_nanos > 0 {
            self.busy += Duration::from_nanos(ended.ran_nanos);
            self.waits.saturating_record((ended.waited_nanos / 1000).clamp(1, LONGEST_US));
            self.note_slow(ended.ran_nanos, &what);
        }
        if is_failure(ended) && self.failures.len() < FAILURES {
            let said = ended.ending.as_ref().map_or_else(String::new, |ending| tail(&ending.stderr));
            self.failures.push(Failure { what: what(), why: why(ended), said });
        }
    }

    /// What the coordinator counts is taken where it counts more: tasks that ended while nobody was listening.
    pub(crate) fn agree(&mut self, progress: &Progress) {
        self.completed = self.completed.max(progress.completed);
        self.failed = self.failed.max(progress.failed);
        self.cancelled = self.cancelled.max(progress.cancelled);
        self.skipped = self.skipped.max(progress.skipped);
        self.stolen = self.stolen.max(progress.stolen);
    }

    fn note_slow(&mut self, nanos: u64, what: &impl Fn() -> String) {
        if self.slowest.len() == SLOWEST {
            if self.slowest.peek().is_some_and(|least| least.0.0 >= nanos) {
                return;
            }
            self.slowest.pop();
        }
        self.slowest.push(Reverse((nanos, what())));
    }

    /// The wait that this part of the tasks did not exceed.
    pub(crate) fn wait(&self, part: f64) -> Option<Duration> {
        (!self.waits.is_empty()).then(|| Duration::from_micros(self.waits.value_at_quantile(part)))
    }

    /// The slowest, slowest first.
    pub(crate) fn slowest(&self) -> Vec<(Duration, &str)> {
        let mut slowest: Vec<_> = self.slowest.iter().map(|Reverse((nanos, what))| (*nanos, what.as_str())).collect();
        slowest.sort_by(|left, right| right.0.cmp(&left.0).then(left.1.cmp(right.1)));
        slowest.into_iter().map(|(nanos, what)| (Duration::from_nanos(nanos), what)).collect()
    }

    pub(crate) fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// The part of the time of all slots that tasks ran.
    pub(crate) fn efficiency(&self, wall: Duration, slots: u32) -> Option<f64> {
        let offered = wall.as_secs_f64() * f64::from(slots);
        (slots > 0 && offered > 0.0).then(|| self.busy.as_secs_f64() / offered)
    }

    /// Whether every task ended well.
    pub(crate) fn all_well(&self) -> bool {
        self.failed + self.cancelled + self.skipped == 0
    }

    /// For programs.
    pub(crate) fn to_json(&self, wall: Duration, slots: u32, skipped_as_done: u64) -> Value {
        let seconds = |duration: Duration| duration.as_secs_f64();
        json!({
            "summary": {
                "completed": self.completed,
                "failed": self.failed,
                "cancelled": self.cancelled,
                "skipped": self.skipped,
                "done_before": skipped_as_done,
                "retried": self.retried,
                "stolen": self.stolen,
                "cut_short": self.cut_short.0,
                "left_out_bytes": self.cut_short.1,
                "wall_s": seconds(wall),
                "busy_s": seconds(self.busy),
                "efficiency": self.efficiency(wall, slots),
                "wait_p50_s": self.wait(0.5).map(seconds),
                "wait_p95_s": self.wait(0.95).map(seconds),
                "slowest": self.slowest().into_iter().map(|(took, what)| json!({"task": what, "ran_s": seconds(took)})).collect::<Vec<_>>(),
            }
        })
    }
}

/// Whether it is worth telling: what was withdrawn was withdrawn by somebody who knows.
fn is_failure(ended: &Ended) -> bool {
    !matches!(ended.status.as_str(), "completed" | "cancelled" | "skipped")
}

/// How a task ended badly, in words.
pub(crate) fn why(ended: &Ended) -> String {
    let ending = ended.ending.as_deref();
    let said = ending.map(|ending| ending.error.as_str()).filter(|error| !error.is_empty());
    let code = ending.and_then(|ending| match (ending.signal, ending.exit_code) {
        (Some(signal), _) => Some(format!("signal {signal}")),
        (None, Some(code)) if code != 0 => Some(format!("exit code {code}")),
        _ => None,
    });
    let mut words = match (said, code) {
        (Some(said), Some(code)) => format!("{said} ({code})"),
        (Some(said), None) => said.to_owned(),
        (None, Some(code)) => code,
        (None, None) if ended.cause.is_empty() => ended.status.clone(),
        (None, None) => ended.cause.clone(),
    };
    if ended.attempts > 1 {
        words += &format!(", after {} attempts", ended.attempts);
    }
    words
}

/// The last lines of what was said.
fn tail(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(TAIL);
    let text = String::from_utf8_lossy(&bytes[from..]);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use filch_core::wire::talk::Ending;

    use super::*;

    fn ended(status: &str, ran_ms: u64, ending: Ending) -> Ended {
        Ended {
            status: status.to_owned(),
            attempts: 1,
            ran_nanos: ran_ms * 1_000_000,
            waited_nanos: ran_ms * 1_000_000,
            ending: Some(Box::new(ending)),
            ..Ended::default()
        }
    }

    #[test]
    fn a_million_tasks_take_the_room_of_ten() {
        let mut tally = Tally::new();
        for at in 0..1_000_000u64 {
            tally.ended(&ended("completed", at % 1000 + 1, Ending::default()), || format!("task {at}"));
        }
        assert_eq!(tally.completed, 1_000_000);
        let slowest = tally.slowest();
        assert_eq!((slowest.len(), slowest[0].0, slowest[4].0), (5, Duration::from_secs(1), Duration::from_secs(1)));
        let p50 = tally.wait(0.5).unwrap().as_secs_f64();
        assert!((0.49..0.51).contains(&p50), "{p50}");
        assert!(tally.waits.len() == 1_000_000 && tally.waits.distinct_values() < 10_000);
        let efficiency = tally.efficiency(Duration::from_secs(500_500), 1).unwrap();
        assert!((efficiency - 1.0).abs() < 1e-9, "{efficiency}");
    }

    #[test]
    fn failures_are_told_with_the_end_of_what_they_said() {
        let mut tally = Tally::new();
        let stderr = (0..100).map(|line| format!("line {line}\n")).collect::<String>();
        for code in 1..=9 {
            let ending = Ending { exit_code: Some(code), stderr: stderr.clone().into(), ..Ending::default() };
            tally.ended(&ended("failed", 1, ending), || "task".to_owned());
        }
        assert_eq!((tally.failed, tally.failures().len()), (9, 5));
        let first = &tally.failures()[0];
        assert_eq!(first.why, "exit code 1");
        assert!(first.said.starts_with("line 90\n") && first.said.ends_with("line 99"), "{}", first.said);
        assert!(!tally.all_well());
    }

    #[test]
    fn the_reason_is_the_clearest_that_is_known() {
        let killed = Ended { attempts: 3, ..ended("failed", 1, Ending { signal: Some(9), ..Ending::default() }) };
        assert_eq!(why(&killed), "signal 9, after 3 attempts");
        let missing = Ending { error: "cannot start nope: no such file".to_owned(), ..Ending::default() };
        assert_eq!(why(&ended("failed", 1, missing)), "cannot start nope: no such file");
        let late =
            Ended { cause: "an attempt ran longer than it may".to_owned(), ..ended("failed", 1, Ending::default()) };
        assert_eq!(why(&late), "an attempt ran longer than it may");
    }
}
