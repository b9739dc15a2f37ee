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
    // Both play the same tasks, and nobody is faster than who loses no time.
    for row in rows.as_array().expect("an array") {
        let blind = row["blind_ratio"].as_f64().expect("tasks that come at once and ask for nothing");
        assert!(blind >= 1.0 && (blind - rows[0]["blind_ratio"].as_f64().unwrap()).abs() < 1e-9, "{rows}");
    }
    let text = filch(&["sim", "compare", "hot-spot", "--seeds", "1"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("with no latency, and no durations known: 1."), "{text:?}");
    let rows =
        json(&["sim", "sweep", "hot-spot", "--vary", "latency=1ms..1s", "--steps", "3", "--seeds", "2", "--json"]);
    let efficiencies: Vec<f64> =
        rows.as_array().expect("an array").iter().filter_map(|row| row["efficiency"].as_f64()).collect();
    assert!(efficiencies.len() == 3 && efficiencies[0] > efficiencies[2], "{rows}");
    // Settings of the machines: whole numbers stay whole, and a value that is not played differently would be a lie.
    let varied = |vary: &str| json(&["sim", "sweep", "hot-spot", "--vary", vary, "--seeds", "1", "--json"]);
    let names = |rows: &Value| -> Vec<String> {
        rows.as_array().expect("an array").iter().filter_map(|row| row["name"].as_str().map(str::to_owned)).collect()
    };
    let takes = varied("config.stealing.take=one,half");
    assert_eq!(names(&takes), ["one", "half"]);
    assert_ne!(takes[0]["messages_per_task"], takes[1]["messages_per_task"], "{takes}");
    assert_eq!(names(&varied("config.limits.lease=2s..18s")).len(), 5);
    assert_eq!(names(&varied("config.stealing.min_local_queue=1..4")), ["1", "2", "3", "4"]);
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
    let cases: [(&[&str], i32, &str); 10] = [
        (&["sim", "run", "hotspot"], 2, "did you mean `hot-spot`?"),
        (&["sim", "run", &path], 2, "wrong.yaml:3:13"),
        (&["sim", "run", "no/such.yaml"], 2, "cannot read `no/such.yaml`"),
        (&["sim", "run", "basic", "--policy", "fastest"], 2, "scheduling.policy"),
        (&["sim", "run", "basic", "--latency", "soon"], 2, "a duration"),
        (&["sim", "sweep", "basic", "--vary", "network.lag=1,2"], 2, "there is no `network.lag`"),
        (&["sim", "sweep", "basic", "--vary", "latency"], 2, "--vary needs"),
        (&["sim", "sweep", "basic", "--vary", "config.stealing.tak=one"], 2, "did you mean `config.stealing.take`?"),
        (&["sim", "sweep", "basic", "--vary", "config.profile=cpu_bound"], 2, "would hide it"),
        (&["sim", "run", "takeover", "--latency", "1s"], 2, "above 4s"),
    ];
    for (args, status, part) in cases {
        let output = filch(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(part), "{args:?}: {}", said(&output));
    }
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

const TRACE: &str = "{\"filch_trace\":1,\"name\":\"few\",\"cluster\":[{\"class\":\"cpu\",\"count\":2}],\
    \"other_clusters\":{\"wide\":[{\"class\":\"cpu\",\"count\":8}]}}\n\
    {\"id\":\"a\",\"kind\":\"k\",\"at\":0,\"run\":2}\n{\"id\":\"b\",\"kind\":\"k\",\"at\":0,\"run\":2,\"deps\":[\"a\"]}\n";

/// A folder that goes when the test has ended.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("filch-sim-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    fn put(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).expect("a file");
        self.path(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).expect("a file")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn recorded_workloads_are_played_on_the_cluster_they_suggest_or_another() {
    let folder = Folder::new("recorded");
    let trace = folder.put("few.jsonl", TRACE);
    let own = json(&["sim", "run", &trace, "--json"]);
    assert_eq!((&own["workers"], &own["tasks"]["completed"], &own["name"]), (&2.into(), &2.into(), &"few".into()));
    assert!(own["makespan_s"].as_f64().is_some_and(|makespan| (4.0..4.1).contains(&makespan)), "{own}");
    assert_eq!(json(&["sim", "run", &trace, "--json", "--cluster", "wide"])["workers"], 8);
    assert_eq!(json(&["sim", "run", &trace, "--json", "--workers", "5"])["workers"], 5);
    let scenario = folder.put("s.yaml", "cluster: [{ name: cpu, count: 3 }]\ntrace: { file: few.jsonl, repeat: 4 }\n");
    let run = json(&["sim", "run", &scenario, "--json"]);
    assert_eq!((&run["workers"], &run["tasks"]["completed"]), (&3.into(), &8.into()));
    let rows = json(&["sim", "sweep", &scenario, "--vary", "repeat=1,2", "--seeds", "1", "--json"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(2));
    // Names cannot command the terminal.
    let hostile =
        folder.put("hostile.jsonl", &TRACE.replace("\"few\"", "\"\\u001b[2J\"").replace("\"a\"", "\"\\u001b[2J\""));
    let output = filch(&["sim", "run", &hostile, "--log"]);
    assert!(output.status.success() && !output.stdout.contains(&0x1b), "{}", String::from_utf8_lossy(&output.stdout));
    // Written, packed and read again it is the same.
    let packed = folder.path("again.jsonl.gz");
    let first = json(&["sim", "run", &trace, "--json", "--export", &packed]);
    assert_eq!(first["digest"], json(&["sim", "run", &packed, "--json"])["digest"]);
}

#[test]
fn pictures_are_written_and_change_nothing() {
    let folder = Folder::new("pictures");
    let paths = ["t.json", "g.svg", "r.html"].map(|name| folder.path(name));
    std::fs::write(&paths[1], "x".repeat(1_000_000)).expect("an older, longer file");
    let args = [
        "sim",
        "run",
        "hot-spot",
        "--workers",
        "5",
        "--json",
        "--trace",
        &paths[0],
        "--gantt",
        &paths[1],
        "--report",
        &paths[2],
    ];
    assert_eq!(json(&args)["digest"], json(&["sim", "run", "hot-spot", "--workers", "5", "--json"])["digest"]);
    let trace: Value = serde_json::from_str(&folder.read("t.json")).expect("JSON");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 500));
    assert!(folder.read("g.svg").starts_with("<svg ") && folder.read("g.svg").ends_with("</svg>\n"));
    assert!(folder.read("r.html").starts_with("<!doctype html>"));
    let output = filch(&["sim", "run", "basic", "--gantt", "-"]);
    assert!(output.status.success() && output.stdout.starts_with(b"<svg ") && output.stdout.ends_with(b"</svg>\n"));
}

#[test]
fn a_run_without_an_end_fails_with_what_waits() {
    let folder = Folder::new("stuck");
    let file = folder.put("dead.yaml", "cluster: [{ count: 2 }]\nevents: [{ at: 9s, what: crash, count: 2 }]\n");
    let output = filch(&["sim", "run", &file, "--json"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{}", said(&output));
    assert!(said(&output).contains("have no outcome; 0 of 2 workers are alive"), "{}", said(&output));
    let output = filch(&["sim", "compare", &file, "--seeds", "1"]);
    assert!(output.status.code() == Some(1) && said(&output).contains("have no outcome"), "{}", said(&output));
}

#[test]
fn wrong_traces_and_files_that_cannot_be_written_are_refused_first() {
    let folder = Folder::new("refused");
    let trace = folder.put("few.jsonl", TRACE);
    let cycle = folder.put("cycle.jsonl", &TRACE.replace("\"run\":2}", "\"run\":2,\"deps\":[\"b\"]}"));
    let lacking = folder.put("lacking.yaml", "cluster: [{ cores: 1 }]\ntrace: { file: wide.jsonl }\n");
    let wide =
        TRACE.replace("\"run\":2}", "\"run\":2,\"needs\":{\"cpus\":4}}").replace("count\":", "cores\":4,\"count\":");
    folder.put("wide.jsonl", &wide);
    let both = folder.put("both.yaml", "workload: { tasks: 3 }\ntrace: { file: few.jsonl }\n");
    let nowhere = folder.path("no/such/folder.svg");
    let cases: [(&[&str], i32, &str); 10] = [
        (&["sim", "run", &cycle], 2, "cycle.jsonl:2:45: error: these tasks wait for each other: a → b → a"),
        (&["sim", "run", &trace, "--cluster", "wid"], 2, "did you mean `wide`?"),
        (&["sim", "run", "basic", "--cluster", "wide"], 2, "--cluster chooses"),
        (&["sim", "run", &lacking], 2, "no worker of the cluster can ever run `a`"),
        (&["sim", "run", &both], 2, "both.yaml:1:"),
        (&["sim", "run", "gone.jsonl.gz"], 2, "cannot read `gone.jsonl.gz`"),
        (&["sim", "sweep", &trace, "--vary", "sigma=1,2"], 2, "the work comes from a trace"),
        (&["sim", "run", "scaling", "--workers", "100000", "--gantt", &nowhere], 2, "cannot write"),
        (&["sim", "run", "basic", "--gantt", "-", "--json"], 2, "only one thing"),
        (&["sim", "run", "basic", "--gantt", "x", "--report", "x"], 2, "two things cannot be written to `x`"),
    ];
    for (args, status, part) in cases {
        let output = filch(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(part) && output.stdout.is_empty(), "{args:?}: {}", said(&output));
    }
}

#[test]
fn the_trace_of_a_run_is_in_plain_words() {
    let output = filch(&["sim", "run", "spawning", "--log"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let has = |part: &str| assert!(text.lines().any(|line| line.starts_with('[') && line.contains(part)), "{part}");
    ["] Submitted T0", ": Executing T0 (queue size: ", ": Completed T0", ": Spawned T4"].into_iter().for_each(has);
    let stolen = filch(&["sim", "run", "hot-spot", "--workers", "4", "--log"]);
    let text = String::from_utf8_lossy(&stolen.stdout).into_owned();
    assert!(text.lines().any(|line| line.contains(": Stole T") && line.contains(" from Worker ")));
}

#[test]
fn the_same_work_cut_finer_or_coarser_is_a_table() {
    let rows = json(&["sim", "sweep", "granularity", "--vary", "typical=1s,60s", "--seeds", "2", "--json"]);
    let of = |row: usize, key: &str| rows[row][key].as_f64().expect("a number");
    // An hour of work on 32 workers: cut into seconds it is shared well, cut into minutes the last ones are waited for.
    assert!(of(0, "efficiency") > of(1, "efficiency") && of(0, "speedup") > of(1, "speedup"), "{rows:#}");
    assert!(of(0, "speedup") > 25.0 && of(0, "speedup") <= 32.0, "{rows:#}");
    assert!((0.0..=1.0).contains(&of(0, "steal_rate")), "{rows:#}");
}

#[test]
fn what_would_take_all_memory_or_shows_nothing_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("many.yaml");
    std::fs::write(&path, "cluster: [{ count: 2 }]\nworkload: { tasks: 1, children: 100, depth: 30 }\n")
        .expect("written");
    let path = path.to_str().expect("text");
    for (args, part) in [
        (&["sim", "run", path][..], "more than 50000000 tasks"),
        (&["sim", "run", "/dev/zero"], "is a device"),
        (&["sim", "fuzz", "--seeds", "0"], "--seeds"),
        (&["sim", "fuzz", "--minutes", "nan"], "--minutes"),
        (&["sim", "fuzz", "--minutes", "0"], "--minutes"),
        (&["sim", "fuzz", "--seed", "18446744073709551615", "--seeds", "5"], "no so many seeds"),
    ] {
        let output = filch(args);
        assert!(!output.status.success(), "{args:?}");
        assert!(said(&output).contains(part), "{args:?}: {}", said(&output));
    }
}
