//! `filch run` as people run it: real processes, real files.

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::filch;

fn run(arguments: &[&str]) -> Output {
    filch(arguments).output().expect("the binary runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what} in a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_first_command_of_the_readme_runs_the_job() {
    let script = "sleep 0.0$((FILCH_TASK % 9)); echo task $FILCH_TASK";
    let output = run(&["run", "--array", "1-60", "--workers", "4", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let mut expected: Vec<String> = (1..=60).map(|number| format!("task {number}")).collect();
    expected.sort();
    assert_eq!(sorted(&out(&output)), expected);
    let summary = err(&output);
    for part in ["60 done in ", "efficiency ", " of 4 slots", "wait p50 ", "p95 ", " stolen", "slowest:"] {
        assert!(summary.contains(part), "{part} in {summary}");
    }
}

#[test]
fn outputs_are_in_order_if_wished_and_inputs_come_from_everywhere() {
    let command =
        ["run", "-k", "--workers", "2", "sh", "-c", "sleep 0.$1; echo $1 $2", "x", "{}", "{n}", ":::", "3", "1", "2"];
    assert_eq!(out(&run(&command)), "3 1\n1 2\n2 3\n");
    let mut child =
        filch(&["run", "-k", "--each-line", "-", "--", "echo"]).stdin(Stdio::piped()).spawn().expect("runs");
    child.stdin.take().expect("a pipe").write_all(b"a b\nc; d\n").expect("written");
    assert_eq!(out(&child.wait_with_output().expect("ends")), "a b\nc; d\n");
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("cases.json");
    std::fs::write(&path, r#"[{"name":"x","size":{"y":1}},{"name":"it's","size":{"y":2}}]"#).expect("written");
    let path = path.to_str().expect("text");
    let output = run(&["run", "-k", "--shell", "--each-json", path, "--", "echo {name} {size.y}"]);
    assert_eq!(out(&output), "x 1\nit's 2\n", "{}", err(&output));
}

#[test]
fn what_nobody_can_run_fails_at_once_since_nobody_can_join() {
    let began = Instant::now();
    for options in [&["--requires", "x"], &["--resource", "licence=1"], &["--cpus", "100000"]] {
        let output = run(&[&["run"], &options[..], &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(1), "{}", err(&output));
        assert!(err(&output).contains("w1: "), "{}", err(&output));
    }
    assert!(began.elapsed() < Duration::from_secs(12), "each took the time of several tries");
}

#[test]
fn an_empty_list_is_no_mistake() {
    for option in ["--each-line", "--each-json"] {
        let output = filch(&["run", option, "-", "--", "false"]).stdin(Stdio::null()).output().expect("runs");
        assert_eq!((output.status.code(), out(&output)), (Some(0), String::new()));
        assert!(err(&output).contains("standard input is empty: there is nothing to run"), "{}", err(&output));
    }
}

#[test]
fn workers_of_a_run_have_what_the_machine_has_and_what_is_said() {
    // Two licences for three slots: never three at once, whoever runs them.
    let place = tempfile::tempdir().expect("a directory");
    let script = "touch at.$1; ls at.* | wc -l; sleep 0.1; rm at.$1";
    let command =
        ["run", "--slots", "3", "--worker-resource", "licence=2", "--resource", "licence=1", "--array", "1-6"];
    let output = filch(&command).args(["--", "sh", "-c", script, "x", "{}"]).current_dir(place.path()).output();
    let output = output.expect("the binary runs");
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).lines().all(|at_once| at_once == "1" || at_once == "2"), "{}", out(&output));
    assert!(out(&output).contains('2'), "both are used: {}", out(&output));

    let architecture = std::env::consts::ARCH;
    for (said, asked) in [(None, architecture), (Some("fish"), "fish")] {
        let more = said.map(|said| ["--worker-capability", said]);
        let output =
            filch(&["run"]).args(more.into_iter().flatten()).args(["--requires", asked, "--", "true"]).output();
        assert_eq!(output.expect("runs").status.code(), Some(0), "{asked}");
    }
}

#[test]
fn probes_of_the_configuration_find_software() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("filch.yaml");
    let probes = "detection:\n  probes:\n    - { capability: 'shell-$1', command: [sh, -c, echo version 7.2], pattern: 'version (\\d+)' }\n\
                  \x20   - { capability: ghost, command: [filch-ghost, --version] }\n";
    std::fs::write(&file, probes).expect("written");
    let file = file.to_str().expect("a path");
    assert_eq!(run(&["run", "--config", file, "--requires", "shell-7", "--", "true"]).status.code(), Some(0));
    assert_eq!(run(&["run", "--config", file, "--requires", "ghost", "--", "true"]).status.code(), Some(1));
    let shown = out(&run(&["worker", "--detect", "--config", file]));
    assert!(shown.contains("shell-7") && shown.contains("ghost: "), "{shown}");
    let json: serde_json::Value =
        serde_json::from_slice(&run(&["worker", "--detect", "--json", "--config", file]).stdout).expect("JSON");
    assert_eq!((&json["software"][0], &json["missing"][0]["capability"]), (&"shell-7".into(), &"ghost".into()));

    std::fs::write(file, "detection:\n  probes:\n    - { capability: x, command: [x], pattern: '(' }\n")
        .expect("written");
    let output = run(&["worker", "--detect", "--config", file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains(":3:47: error: `detection.probes[0].pattern` is no regular expression"),
        "{}",
        err(&output)
    );
}

#[test]
fn failures_are_told_with_the_end_of_what_they_said() {
    let script = "echo fine; echo trouble >&2; exit $((FILCH_TASK % 2 * 7))";
    let output = run(&["run", "--array", "1-4", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(1));
    let said = err(&output);
    for part in ["2 done, 2 failed in ", "failures:", "exit code 7", "    | trouble"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let output = run(&["run", "--", "no-such-program-anywhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("cannot start no-such-program-anywhere"), "{}", err(&output));
}

#[test]
fn programs_get_json() {
    let output = run(&["run", "--json", "--array", "5-6", "--", "sh", "-c", "echo out; exit $((FILCH_TASK - 5))"]);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<serde_json::Value> =
        out(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3);
    let of = |number: i64| lines.iter().find(|line| line["number"] == number).expect("the task").clone();
    assert_eq!((of(5)["status"].as_str(), of(5)["stdout"].as_str()), (Some("completed"), Some("out\n")));
    assert_eq!((of(6)["status"].as_str(), of(6)["exit_code"].as_i64()), (Some("failed"), Some(1)));
    // A shell that only says something is smaller than whoever starts it.
    assert_eq!((of(5)["peak_memory"].is_u64(), of(5)["peak_memory_is_bound"].as_bool()), (true, Some(true)));
    assert_eq!((lines[2]["summary"]["completed"].as_u64(), lines[2]["summary"]["failed"].as_u64()), (Some(1), Some(1)));
}

#[test]
fn a_job_goes_on_where_its_log_ends() {
    let place = tempfile::tempdir().expect("a directory");
    let in_place = |arguments: &[&str]| filch(arguments).current_dir(place.path()).output().expect("the binary runs");
    let job =
        ["run", "--joblog", "log", "--array", "1-6", "--", "sh", "-c", "echo x >> ran-{n}; test -e go -o {n} -gt 3"];
    assert_eq!(in_place(&job).status.code(), Some(1));
    let log = std::fs::read_to_string(place.path().join("log")).expect("a log");
    assert_eq!(log.lines().count(), 7, "{log}");
    std::fs::write(place.path().join("go"), "").expect("written");
    let resumed = [&["run", "--resume"], &job[1..]].concat();
    let output = in_place(&resumed);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(err(&output).contains("3 done, 3 done before in "), "{}", err(&output));
    let ran = |number: u32| std::fs::read_to_string(place.path().join(format!("ran-{number}"))).expect("it ran").len();
    assert_eq!((1..=6).map(ran).collect::<Vec<_>>(), [4, 4, 4, 2, 2, 2]);
    let output = in_place(&resumed);
    assert!(output.status.success() && err(&output).contains("all tasks of this job are done already"));
    let output = in_place(&["run", "--resume", "--joblog", "log", "--array", "1-6", "--", "echo", "other"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("is about another command"), "{}", err(&output));
}

#[test]
fn outputs_go_to_files_of_their_own() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("results");
    let output = run(&[
        "run",
        "--out",
        path.to_str().expect("text"),
        "--array",
        "3-4",
        "--",
        "sh",
        "-c",
        "echo o{n}; echo e{n} >&2",
    ]);
    assert_eq!((out(&output).as_str(), output.status.code()), ("", Some(0)));
    let read = |name: &str| std::fs::read_to_string(path.join(name)).expect("a file");
    assert_eq!((read("3.out"), read("4.err")), ("o3\n".to_owned(), "e4\n".to_owned()));
}

#[test]
fn the_example_of_a_job_file_runs_and_mistakes_are_told_with_their_place() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/jobs/pipeline.yaml");
    let output = run(&["run", "--file", example]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
    assert!(at("20\n") < at("400\n") && at("400\n") < at("all shards are done") && at("all shards") < at("tidied up"));
    let listed = out(&run(&["run", "--dry-run", "--file", example]));
    assert!(
        listed.contains("report (after shard[1], shard[2], shard[3], shard[4]): echo 'all shards are done'"),
        "{listed}"
    );
    let shown = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/jobs.md")).expect("docs");
    let text = std::fs::read_to_string(example).expect("an example");
    let begins = text.find("name: ").expect("a name");
    assert!(shown.contains(&text[begins..]), "docs/jobs.md shows {example} as it is");
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("bad.yaml");
    let others = "  - { name: b, command: x }\n  - { name: c, command: x }\n";
    std::fs::write(&path, format!("tasks:\n  - name: a\n    comand: x\n{others}")).expect("written");
    let output = run(&["run", "--file", path.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!err(&output).contains("at least one task"), "{}", err(&output));
    assert!(
        err(&output).contains("bad.yaml:3:5: error: unknown key `comand`")
            && err(&output).contains("did you mean `command`?"),
        "{}",
        err(&output)
    );
}

#[test]
fn a_job_file_that_is_too_large_is_refused_as_one() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("large.yaml");
    let padded = |bytes: usize| format!("tasks: [{{ name: a, command: 'true' }}]\n#{}\n", "x".repeat(bytes));
    std::fs::write(&path, padded(64 << 20)).expect("written");
    let large = path.to_str().expect("text");
    let output = run(&["run", "--file", large]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains("has more than 64 MiB, and a job file has at most that")
            && err(&output).contains("--each-line"),
        "{}",
        err(&output)
    );
    std::fs::write(&path, padded(60 << 20)).expect("written");
    assert_eq!(out(&run(&["run", "--dry-run", "--file", large])), "a: true\n");
}

#[test]
fn what_has_no_end_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("job.yaml");
    std::fs::write(&path, "tasks: [{ name: a, command: cat, stdin: /dev/zero }]").expect("written");
    for options in [["--stdin", "/dev/zero", "--", "cat"].as_slice(), &["--file", path.to_str().expect("text")]] {
        let output = run(&[&["run"], options].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(err(&output).contains("`/dev/zero` has more than 960 KiB"), "{}", err(&output));
    }
    let output = run(&["run", "--file", "/dev/zero"]);
    assert!(output.status.code() == Some(2) && err(&output).contains("/dev/zero has more than 64 MiB"), "{output:?}");
}

/// Far more tasks than a configuration has settings, each after another, by aliases too; and mistakes in all of them.
#[test]
fn a_job_file_may_have_very_many_tasks() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("many.yaml");
    let write = |of: &dyn Fn(u32) -> String| {
        let tasks: String = (0..60_000).map(|at| format!("  - {{ name: t{at}, {} }}\n", of(at))).collect();
        std::fs::write(&path, format!("defaults: {{ env: &env {{ A: x }} }}\ntasks:\n{tasks}")).expect("written");
        run(&["run", "--dry-run", "--file", path.to_str().expect("text")])
    };
    let output = write(&|at| format!("command: 'echo {at}', env: *env, after: [{}]", if at == 0 { "" } else { "t0" }));
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(
        (out(&output).lines().count(), out(&output).lines().last()),
        (60_000, Some("t59999 (after t0): echo 59999"))
    );
    let output = write(&|at| format!("command: 'true', after: [t{}]", (at + 1) % 60_000));
    assert!(err(&output).contains("wait for each other: t0 after t1 after ") && err(&output).contains(" … after t0"));
    let output = write(&|at| format!("command: 'true', after: [u{at}]"));
    assert!(err(&output).contains("there is no task `u59999`"));
}

#[test]
fn nothing_is_run_in_a_dry_run() {
    let output = run(&["run", "--dry-run", "--array", "1-3", "--", "touch", "never-{n}", "a b"]);
    assert_eq!(out(&output), "touch never-1 'a b'\ntouch never-2 'a b'\ntouch never-3 'a b'\n");
    assert!(!Path::new("never-1").exists());
}

#[test]
fn wrong_usage_exits_with_2_and_the_next_step() {
    let cases: [(&[&str], &str); 11] = [
        (&["run", "--array", "1-3", "--timeout", "0s", "--", "echo"], "longer than 0"),
        (&["run", "--deadline", "0s", "--", "echo"], "longer than 0"),
        (&["run", "--to", "nobody", "--", "echo"], "there is no worker `nobody`"),
        (&["run", "--pin", "w3", "--workers", "2", "--", "echo"], "they are called w1 to w2"),
        (&["run", "--pin", "w2", "--", "echo"], "the only one is called w1"),
        (&["run"], "put the command after `--`"),
        (&["run", "--array", "9-1", "--", "x"], "write `1-9`"),
        (&["run", "--each-line", "no-such-file", "--", "x"], "cannot read `no-such-file`"),
        (&["run", "--policy", "randm", "--", "x"], "--policy: "),
        (&["run", "--resume", "--", "x"], "--joblog"),
        (&["run", "--array", "1-2", "--", "echo", "{nope}"], "`{nope}` stands for nothing here"),
    ];
    for (arguments, expected) in cases {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(expected), "{arguments:?}: {}", err(&output));
    }
}

#[test]
fn every_command_has_help_with_examples_and_a_manual_page() {
    for command in ["run", "serve", "worker", "submit", "job", "task", "stats", "trace", "spawn", "man"] {
        let output = run(&[command, "--help"]);
        assert!(output.status.success() && out(&output).contains("Examples:\n  "), "{command}: {}", out(&output));
    }
    let place = tempfile::tempdir().expect("a directory");
    assert!(run(&["man", place.path().to_str().expect("text")]).status.success());
    for page in ["filch.1", "filch-run.1", "filch-job-list.1"] {
        assert!(place.path().join(page).exists(), "{page}");
    }
    // Placeholders stand there as they are written, and no more backslashes than are meant.
    let examples =
        [("run", "convert {n}.png {n}.jpg && rm {n}.png"), ("submit", "./shard {n}"), ("spawn", "./shard {n}")];
    for (command, example) in examples {
        let page = std::fs::read_to_string(place.path().join(format!("filch-{command}.1"))).expect("a page");
        let page = page.replace("\\-", "-");
        for text in [out(&run(&[command, "--help"])), page] {
            assert!(text.contains(example) && text.contains("{n} for its"), "{command}: {text}");
            assert!(!text.contains("\\\""), "{command}: {text}");
        }
    }
    assert!(out(&run(&["run", "-h"])).contains("convert {n}.png"));
}

fn interrupt(child: &Child) {
    common::signal(child.id(), "INT");
}

/// Interrupts it and waits until it says that it has heard; what it says from there on.
fn interrupt_and_hear(child: &mut Child) -> BufReader<ChildStderr> {
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    interrupt(child);
    let mut line = String::new();
    while !line.starts_with("stopping: ") {
        line.clear();
        assert!(said.read_line(&mut line).expect("readable") > 0, "it says that it stops");
    }
    said
}

fn rest(mut said: BufReader<ChildStderr>) -> String {
    let mut text = String::new();
    said.read_to_string(&mut text).expect("readable");
    text
}

fn begun(place: &Path, count: usize) -> bool {
    std::fs::read_dir(place)
        .expect("a directory")
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "pid"))
        .count()
        >= count
}

fn pids(place: &Path) -> Vec<u32> {
    let files = std::fs::read_dir(place).expect("a directory").filter_map(Result::ok).map(|entry| entry.path());
    let pids = files.filter(|path| path.extension().is_some_and(|end| end == "pid"));
    let numbers = pids.map(|path| std::fs::read_to_string(path).expect("a file").trim().to_owned());
    // Whoever was killed before it had written it is gone.
    numbers.filter(|number| !number.is_empty()).map(|number| number.parse().expect("a number")).collect()
}

#[test]
fn the_first_interrupt_lets_what_runs_finish() {
    let place = tempfile::tempdir().expect("a directory");
    let script = "echo $$ > {n}.pid; while ! test -e go; do sleep 0.05; done; echo ended {n}";
    let mut command = filch(&["run", "--joblog", "log", "--slots", "2", "--array", "1-50", "--shell", "--", script]);
    let mut child = command.current_dir(place.path()).spawn().expect("the binary runs");
    wait_for("two tasks run", || begun(place.path(), 2));
    let said = interrupt_and_hear(&mut child);
    // What runs is let go only then.
    std::fs::write(place.path().join("go"), "").expect("written");
    let output = child.wait_with_output().expect("it ends");
    let said = rest(said);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(sorted(&out(&output)).starts_with(&["ended 1".to_owned(), "ended 2".to_owned()]), "{}", out(&output));
    assert!(said.contains(" cancelled in "), "{said}");
    let log = std::fs::read_to_string(place.path().join("log")).expect("a log");
    assert_eq!(log.lines().count(), 51, "what was withdrawn has ended too: {log}");
    assert!(pids(place.path()).len() < 50);
}

#[test]
fn the_second_interrupt_kills_with_all_children() {
    let place = tempfile::tempdir().expect("a directory");
    let script = "trap '' TERM; sleep 600 & echo $! > child-{n}.pid; echo $$ > {n}.pid; wait; sleep 600";
    let mut command = filch(&["run", "--slots", "2", "--array", "1-9", "--shell", "--", script]);
    let mut child = command.current_dir(place.path()).spawn().expect("the binary runs");
    wait_for("two tasks run", || begun(place.path(), 4));
    let said = interrupt_and_hear(&mut child);
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", rest(said));
    wait_for("no process is left", || !pids(place.path()).into_iter().any(common::runs));
}

#[test]
fn a_reader_that_goes_away_ends_the_job_and_its_processes() {
    let place = tempfile::tempdir().expect("a directory");
    let script = "echo $$ > {n}.pid; echo line {n}; test {n} -gt 4 || exit 0; sleep 600";
    let mut command = filch(&["run", "--slots", "2", "--array", "1-8", "--shell", "--", script]);
    let mut child = command.current_dir(place.path()).spawn().expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(141), "{}", err(&output));
    assert!(err(&output).contains("nobody reads the output any more; "), "{}", err(&output));
    wait_for("no process is left", || !pids(place.path()).into_iter().any(common::runs));
}

#[test]
fn a_reader_that_goes_away_when_all_is_done_harms_nobody() {
    for options in [&[][..], &["--json"], &["-k"]] {
        let words = [&["run", "--slots", "1", "--array", "1-1"], options, &["--", "echo"]].concat();
        let mut child = filch(&words).spawn().expect("the binary runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{options:?}: {}", err(&output));
        assert!(err(&output).contains("1 done in "), "{options:?}: {}", err(&output));
    }
}

#[test]
fn interrupts_are_heard_while_nobody_reads_the_output() {
    for bytes in [10_000, 200_000] {
        let place = tempfile::tempdir().expect("a directory");
        // Much more than a pipe holds, and once more than may wait to be shown.
        let script = format!("echo $$ > {{n}}.pid; head -c {bytes} /dev/zero; test {{n}} -lt 100 || sleep 600");
        let mut command = filch(&["run", "--slots", "2", "--array", "1-300", "--shell", "--", &script]);
        let mut child = command.current_dir(place.path()).spawn().expect("the binary runs");
        wait_for("two tasks do not end", || begun(place.path(), 101));
        let said = interrupt_and_hear(&mut child);
        interrupt(&child);
        let unread = child.stdout.take();
        assert_eq!(common::ends(child), Some(130), "{}", rest(said));
        wait_for("no process is left", || !pids(place.path()).into_iter().any(common::runs));
        drop(unread);
    }
}

#[test]
fn a_closed_terminal_ends_the_job_its_processes_and_its_store() {
    let place = tempfile::tempdir().expect("a directory");
    let script = "trap '' TERM HUP; sleep 600 & echo $! > child-{n}.pid; echo $$ > {n}.pid; wait; sleep 600";
    let mut command = filch(&["run", "--slots", "2", "--array", "1-9", "--shell", "--", script]);
    let stores = place.path().join("stores");
    std::fs::create_dir(&stores).expect("made");
    let child = command.current_dir(place.path()).env("TMPDIR", &stores).spawn().expect("the binary runs");
    wait_for("two tasks run", || begun(place.path(), 4));
    assert_eq!(std::fs::read_dir(&stores).expect("a directory").count(), 1);
    common::signal(child.id(), "HUP");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(129), "{}", err(&output));
    wait_for("no process is left", || !pids(place.path()).into_iter().any(common::runs));
    assert_eq!(std::fs::read_dir(&stores).expect("a directory").count(), 0);
}

#[test]
fn what_was_told_to_live_on_without_its_terminal_does() {
    let place = tempfile::tempdir().expect("a directory");
    let script = "echo $$ > {n}.pid; while ! test -e go; do sleep 0.05; done; echo ended";
    let words = ["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_filch"), "run", "--shell", "--", script];
    let mut command = Command::new("sh");
    command.args(words).current_dir(place.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the binary runs");
    wait_for("it runs", || begun(place.path(), 1));
    common::signal(child.id(), "HUP");
    std::fs::write(place.path().join("go"), "").expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((out(&output).as_str(), output.status.code()), ("ended\n", Some(0)), "{}", err(&output));
}

#[test]
fn a_log_goes_by_the_numbers_of_the_tasks() {
    let place = tempfile::tempdir().expect("a directory");
    let run_in = |options: &[&str], words: &[&str]| {
        let words = [&["run", "-k", "--joblog", "log"], options, words].concat();
        let output = filch(&words).current_dir(place.path()).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", err(&output));
        out(&output)
    };
    let words = ["--", "sh", "-c", "echo $FILCH_TASK"];
    let cases = [
        ("1-3", "2-6", "4\n5\n6\n"),
        ("2-6", "1-3", "1\n"),
        ("0-2", "0-4", "3\n4\n"),
        ("1-9:4", "1-9:2", "3\n7\n"),
        ("-2-0", "-1-1", "1\n"),
    ];
    for (first, second, expected) in cases {
        run_in(&["--array", first], &words);
        assert_eq!(run_in(&["--resume", "--array", second], &words), expected, "{first}, then {second}");
    }
    // Inputs are numbered from 1.
    run_in(&[], &["echo", ":::", "a", "b"]);
    assert_eq!(run_in(&["--resume"], &["echo", ":::", "a", "b", "c"]), "c\n");
    std::fs::write(place.path().join("lines"), "a\nb\nc\nd\n").expect("written");
    assert_eq!(run_in(&["--resume", "--each-line", "lines"], &["--", "echo"]), "d\n");
    let log = std::fs::read_to_string(place.path().join("log")).expect("a log");
    let mut numbers: Vec<&str> = log.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, ["1", "2", "3", "4"]);
}

#[test]
fn records_for_programs_are_in_order_too_if_wished() {
    let output =
        run(&["run", "-k", "--json", "-j", "3", "sh", "-c", "sleep 0.$1; echo $1", "x", "{}", ":::", "5", "1", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let lines: Vec<serde_json::Value> =
        out(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: Vec<Option<&str>> = lines.iter().map(|line| line["stdout"].as_str()).collect();
    assert_eq!(told, [Some("5\n"), Some("1\n"), Some("3\n"), None]);
    assert_eq!((lines[3]["summary"]["completed"].as_u64(), err(&output).as_str()), (Some(3), ""));
}

#[test]
fn the_log_has_what_never_ran_and_it_is_run_when_the_job_goes_on() {
    let place = tempfile::tempdir().expect("a directory");
    let in_place = |arguments: &[&str]| filch(arguments).current_dir(place.path()).output().expect("the binary runs");
    let endings = |log: &str| -> Vec<String> {
        let log = std::fs::read_to_string(place.path().join(log)).expect("a log");
        let lines = log.lines().skip(1).map(|line| line.split('\t').collect::<Vec<_>>());
        sorted(&lines.map(|of| format!("{} {} {} {}\n", of[0], of[1], of[6], of[7])).collect::<String>())
    };
    let job = "tasks:\n  - { name: a, command: 'test -e go || exit 3' }\n  - { name: b, command: 'echo b', after: a }\n\
               \x20 - { name: c, command: 'echo c', after: b, on_parent_failure: skip }\n";
    std::fs::write(place.path().join("job.yaml"), job).expect("written");
    let words = ["run", "-k", "--joblog", "log", "--resume", "--file", "job.yaml"];
    assert_eq!(in_place(&words).status.code(), Some(1));
    assert_eq!(endings("log"), ["1 w1 3 0", "2 - -1 0", "3 - -1 0"]);
    std::fs::write(place.path().join("go"), "").expect("written");
    assert_eq!(out(&in_place(&words)), "b\nc\n");
    // Nobody can run it.
    assert_eq!(in_place(&["run", "--joblog", "other", "--requires", "x", "--", "echo"]).status.code(), Some(1));
    assert_eq!(endings("other"), ["1 - -1 0"]);
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_looks_on_sees_what_runs_before_anything_has_ended() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("there is no `script` here, which lends a terminal");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let job = "run --slots 2 --array 1-4 --shell -- 'while ! test -e go; do sleep 0.05; done'";
    let mut command = Command::new("script");
    command.args(["-qec", &format!("{} {job}", env!("CARGO_BIN_EXE_filch")), "/dev/null"]);
    command.current_dir(place.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut shown = child.stdout.take().expect("a pipe");
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    let until = Instant::now() + Duration::from_secs(20);
    let is_seen = |text: &str| text.contains("0/4 running 2 · done 0 · failed 0 · stolen 0");
    while !is_seen(&text) && Instant::now() < until {
        let length = shown.read(&mut bytes).expect("readable");
        text += &String::from_utf8_lossy(&bytes[..length]);
    }
    // Whatever was seen, nothing is left behind.
    std::fs::write(place.path().join("go"), "").expect("written");
    let mut rest = String::new();
    shown.read_to_string(&mut rest).expect("readable");
    assert!(child.wait().expect("it ends").success() && rest.contains("4 done in "), "{rest}");
    assert!(is_seen(&text) && !text.contains("left"), "{text}");
}

#[test]
fn a_request_to_end_is_no_interrupt() {
    let place = tempfile::tempdir().expect("a directory");
    let script = "echo $$ > {n}.pid; while ! test -e go; do sleep 0.05; done; echo ended {n}";
    let mut command = filch(&["run", "--slots", "2", "--array", "1-50", "--shell", "--", script]);
    let mut child = command.current_dir(place.path()).spawn().expect("the binary runs");
    wait_for("two tasks run", || begun(place.path(), 2));
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    common::signal(child.id(), "TERM");
    let mut line = String::new();
    said.read_line(&mut line).expect("readable");
    assert_eq!(line, "stopping: what runs may finish; a second SIGTERM kills it\n");
    std::fs::write(place.path().join("go"), "").expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(143), "{}", rest(said));
    assert!(out(&output).contains("ended 1\n"), "{}", out(&output));
}

// Other systems have no device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_named() {
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("a device");
    for options in [&[][..], &["-k"], &["--json"], &["--dry-run"]] {
        let words = [&["run"], options, &["--", "echo", "x"]].concat();
        let output = filch(&words).stdout(full()).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(1), "{options:?}: {}", err(&output));
        assert!(
            err(&output).contains("cannot write to standard output: No space left"),
            "{options:?}: {}",
            err(&output)
        );
    }
    let output = run(&["run", "--joblog", "/dev/full", "--", "true"]);
    assert!(err(&output).contains("cannot write the log `/dev/full`: No space left"), "{}", err(&output));
    let place = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(place.path().join("1.out")).expect("made");
    let place = place.path().to_str().expect("text");
    let output = run(&["run", "--out", place, "--", "echo"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains(&format!("cannot write `{place}/1.out`: Is a directory")), "{}", err(&output));
    for words in [&["job", "show"][..], &["job", "wait"], &["job", "retry"], &["task", "list"], &["trace", "export"]] {
        let output = run(&[words, &["abc"]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains("a job has a number, such as 12"), "{words:?}: {}", err(&output));
    }
}

#[test]
fn no_jobs_at_all_cannot_be_asked_for() {
    let output = run(&["job", "list", "--limit", "0"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("'--limit <N>'"), "{}", err(&output));
}

#[test]
fn help_says_how_much_of_an_output_is_kept() {
    for command in ["run", "submit"] {
        let help = out(&run(&[command, "--help"])).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            help.contains("1M for `filch run`, 64K for `filch submit` if nothing is said, and at most 16M"),
            "{help}"
        );
        assert!(help.contains("of each no more than --keep says"), "{help}");
    }
}

#[test]
fn tasks_that_run_together_are_told_of_different_accelerators() {
    let directory = tempfile::tempdir().expect("a directory");
    // It fails if somebody else is at it; and whoever asked for none is told of none.
    let script = "mkdir at-$CUDA_VISIBLE_DEVICES && sleep 0.1 && rmdir at-$FILCH_GPUS && echo $FILCH_GPUS";
    let command =
        ["run", "--slots", "4", "--worker-resource", "gpus=2", "--gpus", "1", "--array", "1-6", "--", "sh", "-c"];
    let output = filch(&[&command[..], &[script]].concat()).current_dir(directory.path()).output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let lines = sorted(&out(&output));
    assert!(lines.len() == 6 && lines.first().is_some_and(|first| first == "0"), "{lines:?}");
    assert!(lines.last().is_some_and(|last| last == "1"), "{lines:?}");
    let none = ["run", "--worker-resource", "gpus=2", "--", "sh", "-c", "echo [$FILCH_GPUS]"];
    assert_eq!(out(&run(&none)), "[]\n");
}

/// Whether a worker is to blame shows with others: where nobody can do it, nobody is set aside for it.
#[test]
fn what_fails_everywhere_fails_soon() {
    let began = Instant::now();
    let output = filch(&["run", "--array", "1-200", "--workers", "3", "--", "false"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("200 failed"), "{}", err(&output));
    assert!(began.elapsed() < Duration::from_secs(9), "it took {:?}", began.elapsed());
}
