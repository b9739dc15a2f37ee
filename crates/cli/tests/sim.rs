//! The simulator as a user runs it: with the real binary.

use std::process::{Command, Output};

use serde_json::Value;

fn filch(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_filch")).args(args).env_remove("CLICOLOR_FORCE").output().expect("the binary runs")
}

fn json(args: &[&str]) -> Value {
    let output = filch(args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).expect("standard output is JSON")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_run_gives_every_figure_and_the_same_digest_again() {
    let args = ["sim", "run", "hot-spot", "--seed", "5", "--json"];
    let (first, second) = (json(&args), json(&args));
    assert_eq!(first["digest"], second["digest"]);
    assert_ne!(first["digest"], json(&["sim", "run", "hot-spot", "--seed", "6", "--json"])["digest"]);
    for path in [
        "/seed",
        "/tasks/submitted",
        "/tasks/completed",
        "/tasks/failed",
        "/tasks/lost",
        "/makespan_s",
        "/lower_bound_s",
        "/efficiency",
        "/speedup",
        "/wait_s/p50",
        "/wait_s/p95",
        "/wait_s/p99",
        "/steals/attempts",
        "/steals/successes",
        "/steals/timeouts",
        "/steals/network_errors",
        "/steals/rejections",
        "/steals/moved",
        "/messages",
        "/events",
        "/wall_s",
        "/events_per_s",
    ] {
        assert!(first.pointer(path).is_some_and(Value::is_number), "{path} in {first}");
    }
    assert_eq!(first["tasks"]["completed"], 1000);
    assert!(first["steals"]["moved"].as_u64().is_some_and(|moved| moved > 500));
}

#[test]
fn the_log_tells_who_stole_what_from_whom() {
    let output = filch(&["sim", "run", "hot-spot", "--log"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let stolen = text.lines().filter(|line| line.contains(": Stole T") && line.contains(" from Worker 0"));
    assert!(stolen.count() > 500, "{}", text.lines().take(20).collect::<Vec<_>>().join("\n"));
    assert_eq!(text.lines().filter(|line| line.ends_with(" is completed")).count(), 1000);
}

#[test]
fn comparing_and_sweeping_show_a_row_each() {
    let args = ["sim", "compare", "hot-spot", "--victims", "random,most-loaded", "--seeds", "2", "--json"];
    let rows = json(&args);
    let names: Vec<_> = rows.as_array().expect("an array").iter().map(|row| row["name"].as_str()).collect();
    assert_eq!(names, [Some("random"), Some("most-loaded")]);
    let rows =
        json(&["sim", "sweep", "hot-spot", "--vary", "latency=1ms..1s", "--steps", "3", "--seeds", "2", "--json"]);
    let efficiencies: Vec<f64> =
        rows.as_array().expect("an array").iter().filter_map(|row| row["efficiency"].as_f64()).collect();
    assert!(efficiencies.len() == 3 && efficiencies[0] > efficiencies[2], "{rows}");
}

#[test]
fn fuzzing_counts_what_it_saw() {
    let report = json(&["sim", "fuzz", "--seeds", "30", "--json"]);
    assert_eq!(report["seeds"], 30);
    assert!(report["broken"].is_null() && report["deaths"].as_u64().is_some_and(|deaths| deaths > 5), "{report}");
}

#[test]
fn wrong_input_is_refused_with_what_to_do() {
    let folder = std::env::temp_dir().join(format!("filch-sim-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("wrong.yaml");
    std::fs::write(&file, "cluster: [{ count: 3 }]\nworkload:\n  duration: unifrom\n").expect("a file");
    let path = file.to_string_lossy().into_owned();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["sim", "run", "hotspot"], 2, "did you mean `hot-spot`?"),
        (&["sim", "run", &path], 1, "wrong.yaml:3:13"),
        (&["sim", "run", "no/such.yaml"], 1, "cannot read `no/such.yaml`"),
        (&["sim", "run", "basic", "--policy", "fastest"], 2, "scheduling.policy"),
        (&["sim", "run", "basic", "--latency", "soon"], 2, "a duration"),
        (&["sim", "sweep", "basic", "--vary", "network.lag=1,2"], 2, "there is no `network.lag`"),
        (&["sim", "sweep", "basic", "--vary", "latency"], 2, "--vary needs"),
    ];
    for (args, status, part) in cases {
        let output = filch(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(part), "{args:?}: {}", said(&output));
    }
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}
