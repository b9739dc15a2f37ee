//! Pictures of runs: well formed, free of what names might smuggle in, and small however large the run.
#![allow(clippy::unwrap_used, reason = "a test")]

use filch_core::{Span, Time};
use filch_sim::{Outcome, Scenario, World, picture, trace};
use serde_json::Value as Json;

const HOSTILE: &str = "<script>alert(1)</script>";

fn play(scenario: &Scenario) -> (World, Outcome) {
    let (mut setting, workload) = scenario.make(1);
    setting.keep_marks = true;
    let mut world = World::new(setting, workload).unwrap();
    world.run(Time::NEVER).unwrap();
    let outcome = Outcome::of(&world, 1.0);
    (world, outcome)
}

fn builtin(name: &str, workers: u32) -> (World, Outcome) {
    let mut scenario = Scenario::builtin(name).unwrap();
    scenario.set_workers(workers);
    play(&scenario)
}

fn perfetto(world: &World, outcome: &Outcome) -> Json {
    let mut bytes = Vec::new();
    picture::perfetto(world, outcome, &mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn count(trace: &Json, phase: &str) -> usize {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).count()
}

/// Every element that is opened is closed, in order.
fn assert_balanced(text: &str) {
    const EMPTY: [&str; 3] = ["meta", "!doctype", "br"];
    let (mut open, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        let name: String =
            tag.trim_start_matches('/').chars().take_while(|c| !c.is_whitespace() && *c != '/').collect();
        rest = &rest[end + 1..];
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name.as_str()), "{tag}");
        } else if name == "style" || name == "script" {
            let close = format!("</{name}>");
            rest = &rest[rest.find(&close).unwrap() + close.len()..];
        } else if !tag.ends_with('/') && !EMPTY.contains(&name.as_str()) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn every_run_and_every_steal_is_shown() {
    let (world, outcome) = builtin("hot-spot", 4);
    let trace = perfetto(&world, &outcome);
    assert_eq!(count(&trace, "X") as u64, world.counts().runs);
    assert_eq!(count(&trace, "i") as u64, outcome.steals.moved);
    // An arrow from each victim to what was stolen, and counters of what runs and waits.
    assert_eq!((count(&trace, "s"), count(&trace, "f")), (299, 299));
    assert!(count(&trace, "C") > 100);
    let gantt = picture::gantt(&world, &outcome);
    assert_balanced(&gantt);
    assert_eq!(gantt.matches("class=\"stolen\"").count(), 300, "299 and the legend");
    assert_eq!(gantt.matches("<circle").count(), 150);
    assert!(gantt.contains("arrows for 150 of 299 steals") && gantt.contains("worker 3"), "{}", &gantt[..2000]);
    let report = picture::report(&world, &outcome);
    assert_balanced(&report);
    for part in ["How busy", "What waited", "Who stole from whom", "given away", "prefers-color-scheme"] {
        assert!(report.contains(part), "{part}");
    }
    // Nothing is fetched.
    let links = ["src=", "href=", "url(", "@import"];
    assert!(links.iter().all(|link| !report.contains(link)));
    assert_eq!(
        report.matches("http").count(),
        report.matches("http://www.w3.org/2000/svg").count() + 1,
        "and the meta tag"
    );
}

#[test]
fn deaths_and_losses_are_shown() {
    let (world, outcome) = builtin("worker-churn", 20);
    assert!(outcome.deaths > 0);
    let gantt = picture::gantt(&world, &outcome);
    assert_balanced(&gantt);
    assert!(gantt.contains("class=\"dead\"") && gantt.contains("lost with its worker"));
}

#[test]
fn names_of_files_stay_names() {
    let text = format!(
        "{{\"filch_trace\":1,\"name\":\"{HOSTILE}\",\"cluster\":[{{\"class\":\"{HOSTILE}\",\"count\":2}}]}}\n\
         {{\"id\":\"{HOSTILE}\",\"kind\":\"{HOSTILE}\",\"run\":100}}\n{{\"id\":\"]]>&\\u0000\\\"'\",\"run\":90}}\n"
    );
    let open = || Ok(Box::new(text.as_bytes()) as Box<dyn std::io::Read>);
    let imported = trace::read(&open, "x").unwrap();
    let (world, outcome) = play(&Scenario::of_trace("x", None, imported).unwrap());
    for picture in [picture::gantt(&world, &outcome), picture::report(&world, &outcome)] {
        assert_balanced(&picture);
        assert!(!picture.contains("<script>alert") && picture.contains("&lt;script&gt;alert"), "{picture}");
        assert!(!picture.contains('\0'));
    }
    perfetto(&world, &outcome);
}

#[test]
fn a_large_run_makes_no_large_file_and_says_what_it_leaves_out() {
    let (world, outcome) = builtin("scaling", 1000);
    assert_eq!(outcome.tasks.completed, 100_000);
    let (gantt, report) = (picture::gantt(&world, &outcome), picture::report(&world, &outcome));
    assert_balanced(&gantt);
    assert!(gantt.len() < 4_000_000 && report.len() < 5_000_000, "{} {}", gantt.len(), report.len());
    assert!(gantt.contains("a row shows 5 workers") && gantt.contains("arrows for "));
    assert!(report.contains("A row is 42 workers."));
}

#[test]
fn a_run_without_an_end_says_what_waits_and_why() {
    let text =
        "cluster: [{ count: 3 }]\nworkload: { tasks: 30, typical: 10s }\nevents: [{ at: 5s, what: crash, count: 3 }]\n";
    let (world, _) = play(&Scenario::from_yaml(text, "dead").unwrap());
    let stuck = world.stuck().unwrap();
    assert!(stuck.contains("30 of 30 tasks have no outcome; 0 of 3 workers are alive"), "{stuck}");
    assert!(stuck.contains("T0 is ") && stuck.contains("and 27 more"), "{stuck}");
    // Long pauses are no end: the last task arrives after ten hours, the worker is back after five.
    let text = "cluster: [{ count: 1 }]\nworkload: { tasks: 3, arrival: bursts, burst: 1, every: 5h, typical: 1s }\n\
                events: [{ at: 1s, what: crash, span: 5h }]\n";
    let (world, outcome) = play(&Scenario::from_yaml(text, "slow").unwrap());
    assert!(world.stuck().is_none() && outcome.tasks.completed == 3, "{:?}", world.stuck());
    assert!(world.now() > Time::ZERO + Span::from_secs(36_000));
    // Nobody can ever do what is asked.
    let text = "cluster: [{ count: 2 }]\nworkload: { tasks: 5, requiring: 1, requires: [fpga] }\n";
    let (world, _) = play(&Scenario::from_yaml(text, "lacking").unwrap());
    let hopeless = world.stuck().or_else(|| world.hopeless()).unwrap();
    assert!(hopeless.contains("5 of 5 tasks could never run") && hopeless.contains("lacks fpga"), "{hopeless}");
}
