//! Whoever waits for a job hears if nothing happens because nobody can run what waits, and what to do: once for each reason,
//! which is the coordinator's own. Says nothing of a job that only takes its time.

use std::time::Duration;

use filch_node::client::Client;
use filch_node::view::{JobView, Query, StatsView};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

/// How long nothing happens before the coordinator is asked for the first time.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// The longest pause between two questions.
const SELDOM: Duration = Duration::from_secs(10);

/// Looks on while somebody waits for a job.
pub(super) struct Stall {
    client: Client,
    job: u64,
    ask_at: Instant,
    pause: Duration,
    told: Option<String>,
}

impl Stall {
    pub(super) fn new(client: &Client, job: u64) -> Stall {
        Stall { client: client.clone(), job, ask_at: Instant::now() + QUIET, pause: QUIET, told: None }
    }

    /// Something has happened.
    pub(super) fn progressed(&mut self) {
        self.pause = QUIET;
        self.ask_at = Instant::now() + QUIET;
    }

    /// Waits until there is something to say that was not said yet. May be given up at any time.
    pub(super) async fn news(&mut self) -> String {
        loop {
            sleep_until(self.ask_at).await;
            let why = self.ask().await;
            self.pause = (2 * self.pause).min(SELDOM);
            self.ask_at = Instant::now() + self.pause;
            if let Some(why) = why
                && self.told.as_ref() != Some(&why)
            {
                let text = format!(
                    "job {job} waits: {why}. `filch worker` starts one that can, `filch task why {job}` says more, `filch job cancel \
                     {job}` gives it up",
                    job = self.job
                );
                self.told = Some(why);
                return text;
            }
        }
    }

    /// Why nobody runs what waits, if that is so. Whoever follows the job hears why nothing can be asked.
    async fn ask(&self) -> Option<String> {
        let stats: StatsView = self.client.query(&Query::Stats).await.ok()?;
        if stats.workers == 0 {
            return reason(&Value::Null, 0);
        }
        // While others run there is mostly nothing that nobody can run, and no need to look through the job for it: what nobody can run
        // is set aside after a while.
        if stats.metrics["unschedulable"] == 0 && stats.metrics["running"] != 0 {
            return None;
        }
        let job: JobView = self.client.query(&Query::Job { job: self.job }).await.ok()?;
        if job.running > 0 {
            return None;
        }
        let told: Value = self.client.query(&Query::Why { job: self.job, index: None }).await.ok()?;
        reason(&told, stats.workers)
    }
}

/// The reason in an explanation of a job, without what changes while time passes.
fn reason(told: &Value, workers: usize) -> Option<String> {
    let entries = |of: &'_ Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    // The elements that were never handed out, or the only task, and the first task of each kind.
    let parts: Vec<Value> = [told.clone()].into_iter().chain(entries(told, "first")).collect();
    let has = |part: &Value, reason: &str| entries(part, "reasons").iter().any(|one| one["reason"] == reason);
    if workers == 0 || parts.iter().any(|part| has(part, "no_workers")) {
        return Some("no worker is connected".to_owned());
    }
    let hopeless: Vec<&Value> = parts.iter().filter(|part| has(part, "nobody_can")).collect();
    if hopeless.is_empty() {
        return None;
    }
    let word = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let refused = hopeless.into_iter().flat_map(|part| entries(part, "refused_by"));
    let mut lacks: Vec<String> =
        refused.map(|one| format!("{}: {}", word(&one, "worker"), word(&one, "why"))).collect();
    lacks.sort_unstable();
    lacks.dedup();
    let which = if lacks.is_empty() { String::new() } else { format!("; {}", lacks.join("; ")) };
    Some(format!("no worker can run it{which}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_nobody_can_run_is_told_and_nothing_that_changes_with_time() {
        let behind = json!({"reasons": [{"reason": "behind", "tasks": 7}], "refused_by": [{"worker": "a", "why": "it lacks x"}]});
        assert_eq!(reason(&behind, 1), None);
        assert_eq!(reason(&behind, 0).as_deref(), Some("no worker is connected"));
        assert_eq!(reason(&json!({"reasons": [{"reason": "no_workers"}]}), 1), reason(&behind, 0));
        let lacking = |requeues: u32| {
            let first = json!({
                "reasons": [{"reason": "key"}, {"reason": "nobody_can", "requeues": requeues, "most": 5}],
                "refused_by": [{"worker": "b", "why": "it lacks y"}, {"worker": "a", "why": "it lacks y"}],
            });
            reason(&json!({"reasons": [], "waiting_s": requeues, "first": [first, behind.clone()]}), 2)
        };
        assert_eq!(lacking(0).as_deref(), Some("no worker can run it; a: it lacks y; b: it lacks y"));
        assert_eq!(lacking(0), lacking(3));
        assert_eq!(reason(&json!(null), 1), None);
    }
}
