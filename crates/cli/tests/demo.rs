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
fn an_unknown_demonstration_is_refused_with_what_was_meant() {
    for args in [&["demo", "hot-sport"][..], &["demo", "--list", "hot-sport"]] {
        let output = filch(args);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            text.contains("no demonstration named `hot-sport`") && text.contains("did you mean `hot-spot`?"),
            "{text}"
        );
    }
    let text = String::from_utf8(filch(&["demo", "bas"]).stderr).unwrap();
    assert!(text.contains("did you mean `basic`?"), "{text}");
    let text = String::from_utf8(filch(&["demo", "zzz"]).stderr).unwrap();
    assert!(text.contains("one of basic, hot-spot, "), "{text}");
}

#[test]
fn names_that_are_echoed_cannot_command_the_terminal() {
    let output = filch(&["demo", "a\u{1b}[31m\u{7}b\nc"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("error: there is no demonstration named `a\u{fffd}[31m\u{fffd}b\u{fffd}c`\n"), "{text:?}");
    let output = filch(&["config", "check", "no\u{1b}[2Jfile"]);
    assert!(!output.stderr.contains(&0x1b), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn one_demonstration_can_be_listed() {
    let listed = json(&filch(&["demo", "--list", "churn", "--json"]));
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["name"], "churn");
}

#[test]
fn a_seed_that_is_none_is_refused_with_what_one_is() {
    for seed in ["-1", "1.5", "x", "18446744073709551616"] {
        let output = filch(&["demo", "--list", "--seed", seed]);
        assert_eq!(output.status.code(), Some(2), "{seed}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("a seed is a whole number from 0 to 18446744073709551615"), "{text}");
        assert!(!text.contains("tip:"), "{text}");
    }
}

#[test]
fn the_whole_steal_report_is_in_the_json() {
    let report = json(&filch(&["demo", "hot-spot", "--json"]));
    assert!(report["steals"]["total"]["attempts"].is_number(), "{report:#}");
    assert!(report["steals"]["total"]["success_rate"].is_number());
    assert!(!report["steals"]["by_victim"].as_object().unwrap().is_empty());
}
