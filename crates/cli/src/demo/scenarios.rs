//! The demonstrations themselves. Each sets its stage, lets it run, and checks what it claims.

use std::time::Duration;

use filch::{Task, Worker};

use super::report::{Report, sparkline};
use super::stage::{Stage, Work, late, pushed};

/// One demonstration.
pub(crate) struct Scenario {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// What it shows, in a sentence.
    pub(crate) shows: &'static str,
    act: fn(&mut Stage) -> anyhow::Result<()>,
    settings: fn(u64) -> filch::Config,
}

impl Scenario {
    pub(crate) fn run(&self, seed: u64) -> anyhow::Result<Report> {
        let mut stage = Stage::new(self.name, self.shows, seed, (self.settings)(seed))?;
        (self.act)(&mut stage)?;
        Ok(stage.report())
    }
}

/// All demonstrations, in the order they are run.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "basic",
        shows: "tasks go to workers that have the skills, and idle workers take what others have queued",
        act: basic,
        settings: pushed,
    },
    Scenario {
        name: "hot-spot",
        shows: "one worker has everything; those who join pull it over",
        act: hot_spot,
        settings: pushed,
    },
    Scenario {
        name: "uniform",
        shows: "equal tasks for equal workers: an even share for each and little to steal",
        act: uniform,
        settings: pushed,
    },
    Scenario {
        name: "bursty",
        shows: "bursts with pauses: queues fill and drain each time",
        act: bursty,
        settings: pushed,
    },
    Scenario {
        name: "cascading-failure",
        shows: "workers die one after the other; their tasks come back and are done by those who live",
        act: cascading_failure,
        settings: pushed,
    },
    Scenario {
        name: "priority-protection",
        shows: "high-priority tasks are never stolen, all others may be",
        act: priority_protection,
        settings: pushed,
    },
    Scenario {
        name: "churn",
        shows: "workers come and go all the time, and nothing is lost",
        act: churn,
        settings: pushed,
    },
    Scenario {
        name: "resource-contention",
        shows: "memory and GPUs are reserved before a task starts and never oversubscribed; wide tasks do not starve",
        act: resource_contention,
        settings: late,
    },
    Scenario {
        name: "spike-and-recovery",
        shows: "a steady load, ten times as much at once, and back to normal",
        act: spike_and_recovery,
        settings: late,
    },
    Scenario {
        name: "metrics",
        shows: "everything that is counted while a mixed load runs",
        act: metrics,
        settings: pushed,
    },
];

fn basic(stage: &mut Stage) -> anyhow::Result<()> {
    for (name, skills) in [
        ("python-worker", ["python", "testing"]),
        ("data-worker", ["python", "data_analysis"]),
        ("docs-worker", ["writing", "python"]),
    ] {
        stage.register(Worker::new(name).capabilities(skills))?;
    }
    let mut data_tasks = Vec::new();
    for at in 0..60 {
        let takes = stage.millis(5, 30);
        let task = stage.task(takes);
        if at % 6 == 0 {
            data_tasks.push(stage.submit(task.skills(["data_analysis"]))?);
        } else {
            stage.submit(task.skills(["python"]))?;
        }
    }
    stage.picture_before();
    stage.employ_slow("python-worker", 1, 3);
    stage.employ("data-worker", 1);
    stage.employ("docs-worker", 1);
    stage.finish()?;
    let executed = stage.executed();
    let rightly = data_tasks.iter().filter(|task| executed.get(*task).is_some_and(|who| who == "data-worker")).count();
    stage.check(
        "only the worker with the skill did the data tasks",
        rightly == data_tasks.len(),
        format!("{rightly} of {}", data_tasks.len()),
    );
    let moved = stage.balancer.metrics().tasks_migrated;
    stage.check("whoever was done first helped the slow one", moved > 0, format!("{moved} tasks moved"));
    Ok(())
}

fn hot_spot(stage: &mut Stage) -> anyhow::Result<()> {
    stage.register(Worker::new("overloaded"))?;
    for _ in 0..80 {
        let takes = stage.millis(10, 40);
        let task = stage.task(takes);
        stage.submit(task)?;
    }
    for at in 1..4 {
        stage.register(Worker::new(format!("idle-{at}")))?;
    }
    stage.picture_before();
    for name in ["overloaded", "idle-1", "idle-2", "idle-3"] {
        stage.employ(name, 1);
    }
    stage.finish()?;
    let moved = stage.balancer.metrics().tasks_migrated;
    stage.check("the idle took over most of the work", moved >= 40, format!("{moved} of 80 tasks moved"));
    let most = stage.balancer.workers().iter().map(|worker| worker.total_completed).max().unwrap_or(0);
    stage.check("nobody did more than half", most <= 40, format!("the busiest did {most}"));
    Ok(())
}

fn uniform(stage: &mut Stage) -> anyhow::Result<()> {
    for at in 1..=4 {
        stage.register(Worker::new(format!("worker-{at}")))?;
    }
    for _ in 0..120 {
        let task = stage.task(Duration::from_millis(20)).estimate(Duration::from_millis(20));
        stage.submit(task)?;
    }
    stage.picture_before();
    for at in 1..=4 {
        stage.employ(&format!("worker-{at}"), 1);
    }
    stage.finish()?;
    let shares: Vec<u64> = stage.balancer.workers().iter().map(|worker| worker.total_completed).collect();
    let even = shares.iter().all(|&share| (20..=40).contains(&share));
    stage.check("everybody did about a quarter", even, format!("{shares:?}"));
    let moved = stage.balancer.metrics().tasks_migrated;
    stage.check("little had to move", moved <= 24, format!("{moved} of 120 tasks moved"));
    Ok(())
}

fn bursty(stage: &mut Stage) -> anyhow::Result<()> {
    for at in 1..=4 {
        stage.hire(Worker::new(format!("worker-{at}")), 1)?;
    }
    for _ in 0..5 {
        for _ in 0..40 {
            let takes = stage.millis(5, 15);
            let task = stage.task(takes);
            stage.submit(task)?;
        }
        if stage.queues().iter().map(|queue| queue.1).sum::<u32>() > 0 {
            stage.picture_before();
        }
        std::thread::sleep(Duration::from_millis(150));
    }
    stage.finish()?;
    let lengths: Vec<f64> = stage.balancer.samples().iter().map(|sample| sample.queued as f64).collect();
    stage.note(format!("queued over time: {}", sparkline(&lengths)));
    let drained = lengths.last().is_none_or(|&last| last < 40.0);
    stage.check(
        "the queues drained between the bursts",
        drained,
        format!("{:.0} queued at the last sample", lengths.last().unwrap_or(&0.0)),
    );
    Ok(())
}

fn cascading_failure(stage: &mut Stage) -> anyhow::Result<()> {
    for at in 1..=4 {
        stage.register(Worker::new(format!("worker-{at}")))?;
    }
    for _ in 0..100 {
        let takes = stage.millis(10, 30);
        let task = stage.task(takes);
        stage.submit(task)?;
    }
    stage.picture_before();
    for at in 1..=4 {
        stage.employ(&format!("worker-{at}"), 1);
    }
    let mut returned = 0;
    for name in ["worker-1", "worker-2"] {
        std::thread::sleep(Duration::from_millis(120));
        returned += stage.kill(name)?;
    }
    stage.finish()?;
    stage.check("the dead had unfinished work", returned > 0, format!("{returned} tasks came back"));
    let metrics = stage.balancer.metrics();
    stage.check(
        "every task was done in the end",
        metrics.completed == 100,
        format!("{} done, {} of them submitted again", metrics.completed, metrics.returned),
    );
    Ok(())
}

fn priority_protection(stage: &mut Stage) -> anyhow::Result<()> {
    stage.register(Worker::new("owner"))?;
    let (mut high, mut low) = (Vec::new(), Vec::new());
    for at in 0..60 {
        let takes = stage.millis(10, 30);
        let task = stage.task(takes);
        if at % 3 == 0 {
            high.push(stage.submit(task.priority(5u8))?);
        } else {
            low.push(stage.submit(task.priority(2u8))?);
        }
    }
    stage.register(Worker::new("thief-1"))?;
    stage.register(Worker::new("thief-2"))?;
    stage.picture_before();
    for name in ["owner", "thief-1", "thief-2"] {
        stage.employ(name, 1);
    }
    stage.finish()?;
    let executed = stage.executed();
    let by_owner =
        |tasks: &[String]| tasks.iter().filter(|task| executed.get(*task).is_some_and(|who| who == "owner")).count();
    let (kept, low_kept) = (by_owner(&high), by_owner(&low));
    stage.check("no high-priority task was stolen", kept == high.len(), format!("{kept} of {} stayed", high.len()));
    stage.check(
        "low-priority tasks were",
        low_kept < low.len(),
        format!("{} of {} moved", low.len() - low_kept, low.len()),
    );
    Ok(())
}

fn churn(stage: &mut Stage) -> anyhow::Result<()> {
    let mut present = Vec::new();
    let mut next = 0;
    let mut changes = 0;
    for _ in 0..3 {
        next += 1;
        stage.hire(Worker::new(format!("worker-{next}")), 1)?;
        present.push(format!("worker-{next}"));
    }
    for round in 0..20 {
        for _ in 0..15 {
            let takes = stage.millis(1, 6);
            let task = stage.task(takes);
            stage.submit(task)?;
        }
        if round == 10 {
            stage.picture_before();
        }
        if present.len() > 1 && stage.rng.below(2) == 0 {
            let at = stage.rng.below(present.len());
            let name = present.swap_remove(at);
            stage.dismiss(&name)?;
            changes += 1;
        } else {
            next += 1;
            stage.hire(Worker::new(format!("worker-{next}")), 1)?;
            present.push(format!("worker-{next}"));
            changes += 1;
        }
        std::thread::sleep(Duration::from_millis(15));
    }
    stage.finish()?;
    let completed = stage.balancer.metrics().completed;
    stage.check("every task was done", completed == 300, format!("{completed} of 300, {changes} workers came or went"));
    Ok(())
}

fn resource_contention(stage: &mut Stage) -> anyhow::Result<()> {
    let machine =
        |name: &str, memory: f64, gpus: f64| Worker::new(name).resource("memory", memory).resource("gpus", gpus);
    stage.hire(machine("big", 16.0, 2.0), 4)?;
    stage.hire(machine("small-1", 8.0, 1.0), 4)?;
    stage.hire(machine("small-2", 8.0, 0.0), 4)?;
    let mut wide = Vec::new();
    for at in 0..90 {
        let takes = stage.millis(15, 40);
        let task: Task<Work> = stage.task(takes).estimate(takes);
        let task = match at % 9 {
            0 => task.resource("memory", 12.0),
            1 | 2 => task.resource("gpus", 0.5).resource("memory", 2.0),
            3 => task.resource("gpus", 1.0),
            _ => task.resource("memory", 3.0),
        };
        let name = stage.submit(task)?;
        if at % 9 == 0 {
            wide.push(name);
        }
    }
    let mut oversubscribed = 0;
    let mut looks = 0;
    while !stage.balancer.wait_idle(Duration::from_millis(2)) {
        for worker in stage.balancer.workers() {
            looks += 1;
            let over = |(name, used): (&String, &f64)| *used > worker.resources.get(name).copied().unwrap_or(0.0);
            oversubscribed += usize::from(worker.reserved.iter().any(over));
        }
    }
    stage.check("nothing was oversubscribed", oversubscribed == 0, format!("{looks} looks while it ran"));
    let done = stage.executed();
    let done = wide.iter().filter(|task| done.get(*task).is_some_and(|who| who == "big")).count();
    stage.check("the wide tasks ran, where they fit", done == wide.len(), format!("{done} of {} on `big`", wide.len()));
    let kept_free = stage.balancer.metrics().reservations;
    stage.note(format!("workers were kept free for wide tasks {kept_free} times"));
    Ok(())
}

fn spike_and_recovery(stage: &mut Stage) -> anyhow::Result<()> {
    for at in 1..=4 {
        stage.hire(Worker::new(format!("worker-{at}")), 2)?;
    }
    for round in 0..30 {
        let count = if round == 10 { 150 } else { 8 };
        for _ in 0..count {
            let takes = stage.millis(2, 8);
            let task = stage.task(takes);
            stage.submit(task)?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    stage.finish()?;
    let lengths: Vec<f64> = stage.balancer.samples().iter().map(|sample| sample.queued as f64).collect();
    let peak = lengths.iter().copied().fold(0.0, f64::max);
    let last = lengths.last().copied().unwrap_or(0.0);
    stage.note(format!("queued over time: {}", sparkline(&lengths)));
    stage.check("the spike was seen", peak >= 50.0, format!("{peak:.0} tasks queued at the most"));
    stage.check("and it passed", last <= peak / 4.0, format!("{last:.0} queued at the last sample"));
    Ok(())
}

fn metrics(stage: &mut Stage) -> anyhow::Result<()> {
    stage.register(Worker::new("gpu-worker").capabilities(["cuda", "python"]).resource("gpus", 1.0))?;
    for at in 1..=3 {
        stage.register(Worker::new(format!("worker-{at}")).capability("python"))?;
    }
    for at in 0..100u8 {
        let takes = stage.millis(5, 30);
        let task = stage.task(takes).priority(1 + at % 5).kind(["build", "test", "report"][usize::from(at) % 3]);
        let task = match at % 10 {
            0 => task.requires("cuda").resource("gpus", 1.0),
            1 => task.key("database"),
            _ => task,
        };
        stage.submit(task)?;
    }
    stage.picture_before();
    let cancelled = stage.task(Duration::from_millis(5));
    let cancelled = stage.submit(cancelled)?;
    stage.balancer.cancel(cancelled.as_str())?;
    for name in ["gpu-worker", "worker-1", "worker-2", "worker-3"] {
        stage.employ(name, 1);
    }
    stage.finish()?;
    let all = serde_json::to_value(stage.balancer.metrics())?;
    for (name, value) in all.as_object().into_iter().flatten() {
        stage.note(format!("{name:<22} {value}"));
    }
    let metrics = stage.balancer.metrics();
    stage.check(
        "the figures add up",
        metrics.submitted == metrics.completed + metrics.cancelled && metrics.cancelled == 1,
        format!("{} = {} + {}", metrics.submitted, metrics.completed, metrics.cancelled),
    );
    Ok(())
}
