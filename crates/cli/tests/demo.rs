//! The demonstrations as a user runs them: with the real binary and real threads.

use std::process::{Command, Output};

use serde_json::Value;

fn filch(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_filch"));
    command.args(args).env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
    command.output().expect("the binary runs")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("standard output is JSON")
}

#[test]
fn every_demonstration_shows_what_it_claims() {
    let listed = json(&filch(&["demo", "--list", "--json"]));
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    let expected = [
        "basic",
        "hot-spot",
        "uniform",
        "bursty",
        "cascading-failure",
        "priority-protection",
        "churn",
        "resource-contention",
        "spike-and-recovery",
        "metrics",
    ];
    assert_eq!(names, expected);
    let output = filch(&["demo", "--json", "--seed", "5"]);
    let reports = json(&output);
    for report in reports.as_array().unwrap() {
        assert_eq!(report["ok"], true, "{report:#}");
        assert_eq!(report["seed"], 5);
        assert!(!report["checks"].as_array().unwrap().is_empty());
    }
    assert_eq!(reports.as_array().unwrap().len(), names.len());
    assert!(output.status.success());
}

#[test]
fn one_demonstration_prints_tables_bars_and_the_steal_report() {
    let output = filch(&["demo", "hot_spot"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for part in ["queues before", "overloaded ████", "executed", "utilisation", "Steal Statistics:", "Attempts:"]
    {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "no colours where nobody sees them");
}

#[test]
fn an_unknown_demonstration_is_refused_with_what_there_is() {
    let output = filch(&["demo", "hot-sport"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("no demonstration named `hot-sport`") && text.contains("hot-spot"), "{text}");
}
