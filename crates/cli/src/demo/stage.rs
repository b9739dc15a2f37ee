//! The stage of a demonstration: a balancer, worker threads that pull from it, and what was seen.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use filch::config::{Bind, Config, Strategy, VictimStrategy};
use filch::{Balancer, Status, Task, Worker};
use filch_core::Rng;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::report::{Check, Report};

/// How long a demonstration may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a task of a demonstration does: nothing, for a while, as if it waited for a disk or another machine.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) takes: Duration,
}

/// Who executed what, and how often.
pub(crate) type Executed = BTreeMap<String, String>;

/// A thread that pulls tasks for one worker until it is told to stop or its worker is gone.
struct Hand {
    name: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The stage.
pub(crate) struct Stage {
    pub(crate) balancer: Balancer<Work>,
    pub(crate) rng: Rng,
    hands: Vec<Hand>,
    name: &'static str,
    shows: &'static str,
    seed: u64,
    bar: ProgressBar,
    started: Instant,
    next_task: u64,
    submitted: u64,
    executed: Arc<Mutex<Executed>>,
    doubles: Arc<AtomicU64>,
    before: Vec<(String, u32)>,
    half_way: Vec<(String, u32)>,
    checks: Vec<Check>,
    notes: Vec<String>,
    /// Figures of workers that have left.
    gone: Vec<filch::WorkerInfo>,
}

/// Settings of the demonstrations: queues at the workers and quick reactions, so that stealing can be watched.
pub(crate) fn pushed(seed: u64) -> Config {
    let mut config = Config { seed, ..Config::default() };
    config.scheduling.bind = Bind::Push;
    config.load_balancing.strategy = Strategy::Hybrid;
    config.load_balancing.thresholds.rebalance_interval_sec = 0.05;
    config.stealing.strategy = VictimStrategy::MostLoaded;
    config.stealing.min_local_queue = 0;
    config.load_balancing.thresholds.busy_threshold = 3;
    config.limits.sample_interval = filch::Span::from_millis(20);
    config
}

/// The default: tasks wait centrally until a worker has room.
pub(crate) fn late(seed: u64) -> Config {
    let mut config = Config { seed, ..Config::default() };
    config.limits.sample_interval = filch::Span::from_millis(20);
    config
}

impl Stage {
    pub(crate) fn new(name: &'static str, shows: &'static str, seed: u64, config: Config) -> anyhow::Result<Stage> {
        let balancer = Balancer::builder().config(config).build()?;
        balancer.start();
        let executed = Arc::new(Mutex::new(Executed::new()));
        let doubles = Arc::new(AtomicU64::new(0));
        let bar = progress(name, ProgressDrawTarget::stderr());
        let (done, twice, progress) = (Arc::clone(&executed), Arc::clone(&doubles), bar.clone());
        balancer.on_status(move |change| {
            if change.status == Status::Completed {
                let worker = change.worker.as_deref().unwrap_or("?").to_owned();
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                if done.insert(change.label(), worker).is_some() {
                    twice.fetch_add(1, Ordering::Relaxed);
                }
            }
            if change.status.is_settled() {
                progress.inc(1);
            }
        });
        Ok(Stage {
            balancer,
            rng: Rng::new(seed),
            hands: Vec::new(),
            name,
            shows,
            seed,
            bar,
            started: Instant::now(),
            next_task: 0,
            submitted: 0,
            executed,
            doubles,
            before: Vec::new(),
            half_way: Vec::new(),
            checks: Vec::new(),
            notes: Vec::new(),
            gone: Vec::new(),
        })
    }

    /// Registers a worker that does not pull yet, so that its queue can fill.
    pub(crate) fn register(&mut self, worker: Worker) -> anyhow::Result<String> {
        let name = worker.id().to_owned();
        self.balancer.register_worker(worker)?;
        Ok(name)
    }

    /// Lets a registered worker pull and execute, one thread per slot.
    pub(crate) fn employ(&mut self, name: &str, slots: u32) {
        self.employ_slow(name, slots, 1);
    }

    /// The same for a worker that takes some times as long as others.
    pub(crate) fn employ_slow(&mut self, name: &str, slots: u32, slowness: u32) {
        for _ in 0..slots {
            let stop = Arc::new(AtomicBool::new(false));
            let (balancer, told, who) = (self.balancer.clone(), Arc::clone(&stop), name.to_owned());
            let thread = std::thread::spawn(move || work(&balancer, &who, slowness, &told));
            self.hands.push(Hand { name: name.to_owned(), stop, thread });
        }
    }

    /// Registers workers and lets them pull at once.
    pub(crate) fn hire(&mut self, worker: Worker, slots: u32) -> anyhow::Result<()> {
        let name = self.register(worker.slots(slots))?;
        self.employ(&name, slots);
        Ok(())
    }

    /// Milliseconds drawn from a range.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.rng.below((to - from + 1) as usize) as u64)
    }

    /// A task with a name of its own that takes that long.
    pub(crate) fn task(&mut self, takes: Duration) -> Task<Work> {
        self.next_task += 1;
        Task::named(format!("task-{}", self.next_task)).payload(Work { takes })
    }

    /// Submits a task; its name.
    pub(crate) fn submit(&mut self, task: Task<Work>) -> anyhow::Result<String> {
        let name = task.id().unwrap_or_default().to_owned();
        self.balancer.submit(task)?;
        self.submitted += 1;
        self.bar.set_length(self.submitted);
        Ok(name)
    }

    /// Remembers the queues as they are now, for the picture.
    pub(crate) fn picture_before(&mut self) {
        self.before = self.queues();
    }

    pub(crate) fn queues(&self) -> Vec<(String, u32)> {
        self.balancer.workers().into_iter().map(|worker| (worker.id, worker.queue_length)).collect()
    }

    /// Waits until every task is settled, and looks at the queues once half of those that wait now are.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        let queued = |stage: &Stage| stage.balancer.metrics().total_queued;
        let (half, started) = (queued(self) / 2, Instant::now());
        while !self.balancer.wait_idle(Duration::from_millis(5)) {
            if self.half_way.is_empty() && queued(self) <= half {
                self.half_way = self.queues();
            }
            anyhow::ensure!(started.elapsed() < PATIENCE, "not everything was settled within a minute");
        }
        // The last changes may still be on their way to our callback.
        while (self.executed().len() as u64) < self.balancer.metrics().completed {
            anyhow::ensure!(started.elapsed() < PATIENCE, "not every completion was told within a minute");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// The worker's threads end as if its machine had died; its unfinished tasks come back and are submitted again.
    pub(crate) fn kill(&mut self, name: &str) -> anyhow::Result<usize> {
        for hand in self.hands.iter().filter(|hand| hand.name == name) {
            hand.stop.store(true, Ordering::Relaxed);
        }
        self.remember_gone(name);
        let returned = self.balancer.unregister_worker(name)?;
        let count = returned.len();
        for returned in returned {
            self.submit(returned.task)?;
        }
        Ok(count)
    }

    /// The worker leaves in an orderly way: what it holds is queued again.
    pub(crate) fn dismiss(&mut self, name: &str) -> anyhow::Result<()> {
        for hand in self.hands.iter().filter(|hand| hand.name == name) {
            hand.stop.store(true, Ordering::Relaxed);
        }
        self.remember_gone(name);
        self.balancer.unregister_and_requeue(name)?;
        Ok(())
    }

    fn remember_gone(&mut self, name: &str) {
        self.gone.extend(self.balancer.workers().into_iter().filter(|worker| worker.id == name));
    }

    /// Who executed which task, by the task's name.
    pub(crate) fn executed(&self) -> Executed {
        self.executed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes whether something that the demonstration shows was seen.
    pub(crate) fn check(&mut self, claim: &str, holds: bool, seen: impl Into<String>) {
        self.checks.push(Check { claim: claim.to_owned(), holds, seen: seen.into() });
    }

    /// A line for the report.
    pub(crate) fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// Ends the demonstration: the claim that holds for all of them, and the figures.
    pub(crate) fn report(mut self) -> Report {
        let elapsed = self.started.elapsed();
        let metrics = self.balancer.metrics();
        let settled = metrics.completed + metrics.failed + metrics.cancelled + metrics.skipped + metrics.returned;
        self.check(
            "nothing lost, nothing done twice",
            metrics.submitted == settled && self.doubles.load(Ordering::Relaxed) == 0,
            format!(
                "{} submitted, {} completed, {} handed back",
                metrics.submitted, metrics.completed, metrics.returned
            ),
        );
        let after = self.queues();
        let mut workers = self.balancer.workers();
        let samples = self.balancer.samples();
        let steals = self.balancer.steal_report();
        let health = self.balancer.health();
        workers.splice(0..0, std::mem::take(&mut self.gone));
        for hand in &self.hands {
            hand.stop.store(true, Ordering::Relaxed);
        }
        self.balancer.stop();
        for hand in self.hands.drain(..) {
            // A worker thread does nothing that panics; if one did, the checks above have shown it.
            let _ = hand.thread.join();
        }
        self.bar.finish_and_clear();
        Report {
            name: self.name,
            shows: self.shows,
            seed: self.seed,
            elapsed,
            metrics,
            workers,
            samples,
            steals,
            health,
            before: self.before,
            half_way: self.half_way,
            after,
            checks: self.checks,
            notes: self.notes,
        }
    }
}

/// The bar of a demonstration. It has no length before the first task: nothing of nothing would be drawn as all done.
fn progress(name: &'static str, target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) = ProgressStyle::with_template("{prefix:>20} {bar:40} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.set_prefix(name);
    bar
}

/// The loop of a worker's thread.
fn work(balancer: &Balancer<Work>, name: &str, slowness: u32, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let assignment = match balancer.next_timeout(name, Duration::from_millis(20)) {
            Ok(Some(assignment)) => assignment,
            Ok(None) => continue,
            Err(_) => return,
        };
        if assignment.start().is_err() {
            continue;
        }
        std::thread::sleep(assignment.payload().takes * slowness);
        // Refused if the task was taken away meanwhile; somebody else does it then.
        let _ = assignment.succeed(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_empty_until_something_is_done() {
        let bar = progress("test", ProgressDrawTarget::hidden());
        let fraction = || {
            let mut drawn = f32::NAN;
            bar.update(|state| drawn = state.fraction());
            drawn
        };
        assert_eq!(fraction(), 0.0);
        bar.set_length(2);
        assert_eq!(fraction(), 0.0);
        bar.inc(1);
        assert_eq!(fraction(), 0.5);
    }
}
