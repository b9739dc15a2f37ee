//! `docs/troubleshooting.md` tells the truth: everything it quotes is said by a balancer, every setting it names exists.

use std::time::Duration;

use filch::{Balancer, Config, Task, Worker, WorkerUpdate};

use crate::{push_bound, still, take, with_workers};

const PAGE: &str = include_str!("../../../../docs/troubleshooting.md");
const SECOND: Duration = Duration::from_secs(1);

/// All explanations of some tasks, line by line.
fn lines(balancer: &Balancer, tasks: &[&str]) -> Vec<String> {
    let text = |task: &&str| balancer.explain(*task).unwrap().to_string();
    tasks.iter().flat_map(|task| text(task).lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()).collect()
}

fn busy_workers() -> Vec<String> {
    let balancer = with_workers(&["w"]);
    balancer.update_worker("w", WorkerUpdate::new().slots(2).resources([("cpus", 4.0)])).unwrap();
    balancer.submit_many([Task::named("a").key("k"), Task::named("b").resource("cpus", 2.0)]).unwrap();
    let _held = (take(&balancer, "w"), take(&balancer, "w"));
    balancer.submit(Task::named("keyed").key("k")).unwrap();
    balancer.submit(Task::named("child").after(["a"])).unwrap();
    balancer.submit(Task::named("impossible").requires("magic")).unwrap();
    let waiting = ["first", "second", "third"].map(|id| Task::named(id).resource("cpus", 4.0));
    balancer.submit_many(waiting).unwrap();
    lines(&balancer, &["keyed", "child", "impossible", "first", "third"])
}

fn scarce_resources() -> Vec<String> {
    let (balancer, _) = still(Config::default());
    balancer.register_worker(Worker::new("w").slots(4).resource("cpus", 4.0)).unwrap();
    balancer.submit(Task::named("runs").resource("cpus", 3.0).estimate(10 * SECOND)).unwrap();
    let _held = take(&balancer, "w");
    balancer.submit(Task::named("wide").resource("cpus", 4.0)).unwrap();
    balancer.submit(Task::named("long").resource("cpus", 1.0).estimate(100 * SECOND)).unwrap();
    assert!(balancer.next("w").unwrap().is_none(), "what is free is kept for the wide one");
    lines(&balancer, &["wide", "long"])
}

fn workers_that_do_not_ask() -> Vec<String> {
    let (balancer, clock) = still(Config::default());
    balancer.submit(Task::named("alone")).unwrap();
    let mut said = lines(&balancer, &["alone"]);
    for id in ["ready", "drains", "quiet", "bad"] {
        balancer.register_worker(Worker::new(id)).unwrap();
    }
    balancer.update_worker("drains", WorkerUpdate::new().draining(true)).unwrap();
    balancer.cancel("alone").unwrap();
    balancer.submit(Task::new()).unwrap();
    take(&balancer, "ready").succeed(()).unwrap();
    for _ in 0..Config::default().limits.quarantine_after {
        balancer.submit(Task::new()).unwrap();
        take(&balancer, "bad").fail("broken").unwrap();
    }
    balancer.submit(Task::named("once").exclusive(true)).unwrap();
    let _held = take(&balancer, "quiet");
    balancer.worker_silent("quiet").unwrap();
    balancer.submit(Task::named("again").retries(2).backoff(SECOND, SECOND)).unwrap();
    take(&balancer, "ready").fail("broken").unwrap();
    balancer.submit(Task::named("hot")).unwrap();
    for _ in 0..4 {
        drop(take(&balancer, "ready"));
    }
    said.extend(lines(&balancer, &["once", "again", "hot"]));
    clock.advance(SECOND / 10);
    balancer.tick();
    balancer.submit(Task::named("free")).unwrap();
    said.extend(lines(&balancer, &["free"]));
    said
}

fn own_queues() -> Vec<String> {
    let (balancer, _) = still(push_bound());
    balancer.register_worker(Worker::new("w")).unwrap();
    balancer.submit_many([Task::named("a"), Task::named("b"), Task::named("c")]).unwrap();
    lines(&balancer, &["c"])
}

/// Whether a line has the parts of a quoted message in their order, with something in place of each `…`, `n` and `m`.
fn is_said(message: &str, line: &str) -> bool {
    let open = |word: &str| if matches!(word, "n" | "m") { "…".to_owned() } else { word.to_owned() };
    let pattern = message.split(' ').map(open).collect::<Vec<_>>().join(" ").replace(" m)", " …)");
    let mut rest = Some(line);
    for part in pattern.split('…').filter(|part| !part.trim().is_empty()) {
        rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, after)| after);
    }
    rest.is_some()
}

#[test]
fn every_message_of_the_page_is_really_said() {
    let said = [busy_workers(), scarce_resources(), workers_that_do_not_ask(), own_queues()].concat();
    let rows: Vec<Vec<&str>> = PAGE
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| it says"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 17, "the table is no longer found");
    for row in &rows {
        assert_eq!(row.len(), 3, "{row:?}");
        assert!(said.iter().any(|line| is_said(row[0], line)), "nobody says `{}`:\n{}", row[0], said.join("\n"));
    }
    assert!(!is_said("retry n of m in … s", "retry soon") && !is_said("it is silent", "it is draining"));
}

#[test]
fn the_concerns_of_the_page_are_those_of_the_balancer() {
    let (balancer, _) = still(push_bound());
    balancer.register_worker(Worker::new("full")).unwrap();
    balancer.submit_many((0..200).map(|_| Task::new())).unwrap();
    let busy = balancer.health().to_string();
    balancer.register_worker(Worker::new("empty")).unwrap();
    let uneven = balancer.health().to_string();
    for (concern, health) in [("All workers are busy", busy), ("Queue lengths vary a lot", uneven)] {
        assert!(PAGE.contains(&format!("*{concern}*")), "{concern}");
        assert!(health.to_lowercase().contains(&concern.to_lowercase()), "{concern}:\n{health}");
    }
}

#[test]
fn every_setting_of_the_page_exists() {
    let settings = Config::from_yaml("", "defaults").unwrap().settings();
    let is_setting =
        |name: &str| settings.iter().any(|setting| setting.key == name || setting.key.ends_with(&format!(".{name}")));
    let words = PAGE.split('`').skip(1).step_by(2).map(|word| word.split(':').next().unwrap_or_default());
    let named: Vec<&str> = words.filter(|word| word.contains('_') && !word.contains(['(', ' '])).collect();
    assert!(named.len() > 6, "{named:?}");
    for name in named.into_iter().filter(|name| *name != "load_balancing") {
        assert!(is_setting(name), "`{name}`");
    }
}
