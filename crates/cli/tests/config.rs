//! `filch config` and `filch completions` as users run them.

mod common;

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Output, Stdio};

use common::filch;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/config/load-balancing-config.yaml");

fn run(arguments: &[&str]) -> Output {
    filch(arguments).output().expect("the binary runs")
}

fn run_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = filch(arguments).stdin(Stdio::piped()).spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // The binary stops reading an input that is too long.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("the binary ends")
}

fn file(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("a writable directory");
    path.to_str().expect("a readable path").to_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn json(output: &Output) -> Vec<serde_json::Value> {
    serde_json::from_slice(&output.stdout).expect("an array")
}

#[test]
fn a_sound_file_is_ok() {
    let output = run(&["config", "check", EXAMPLE]);
    assert_eq!(out(&output), format!("{EXAMPLE}: ok\n"));
    assert_eq!((err(&output).as_str(), output.status.code()), ("", Some(0)));
    let output = run(&["config", "check", "--json", EXAMPLE]);
    assert_eq!((out(&output).as_str(), output.status.code()), ("[]\n", Some(0)));
}

#[test]
fn mistakes_go_to_standard_error_with_their_place() {
    let path = file("mistakes.yaml", "seed: 1\nstealing:\n  strategy: randm\n  take: two\n");
    let output = run(&["config", "check", EXAMPLE, &path]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(out(&output), format!("{EXAMPLE}: ok\n"));
    let expected = format!(
        "{path}:3:13: error: `stealing.strategy` expects random, least_loaded, most_loaded, power_of_two or adaptive, found `randm`\n    \
         3 |   strategy: randm\n      |             ^^^^^\n      help: did you mean `random`?\n\
         {path}:4:9: error: `stealing.take` expects one, half or enough, found `two`\n    \
         4 |   take: two\n      |         ^^^\n"
    );
    assert_eq!(err(&output), expected);
}

#[test]
fn mistakes_as_json() {
    let output = run_with_input(&["config", "check", "--json", "-"], b"sed: 1\nretry: { jitter: 2 }\n");
    assert_eq!(output.status.code(), Some(2));
    let problems = json(&output);
    assert_eq!(
        problems,
        [
            serde_json::json!({
                "file": "<stdin>", "line": 1, "column": 1, "message": "unknown key `sed`", "help": "did you mean `seed`?"
            }),
            serde_json::json!({
                "file": "<stdin>", "line": 2, "column": 18, "message": "`retry.jitter` must be from 0 to 1, found `2`", "help": null
            }),
        ]
    );
}

#[test]
fn a_missing_file_is_answered_with_the_next_step() {
    for arguments in [["config", "check", "no-such.yaml"], ["config", "show", "no-such.yaml"]] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2));
        let message = err(&output);
        assert!(message.starts_with("error: cannot read `no-such.yaml`: "), "{message}");
        assert!(
            message.contains("help: check the path, or start a new file with `filch config show > FILE`"),
            "{message}"
        );
    }
    let problems = json(&run(&["config", "check", "--json", "no-such.yaml"]));
    assert_eq!((problems.len(), &problems[0]["line"]), (1, &serde_json::Value::Null));
}

#[test]
fn inputs_that_are_no_text_or_too_long_are_refused() {
    let output = run_with_input(&["config", "check", "-"], b"seed: \xff");
    assert!(err(&output).starts_with("<stdin>:1:7: error: not UTF-8 text"), "{}", err(&output));
    let output = run_with_input(&["config", "check", "-"], &vec![b'#'; 4 << 20]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("at most 1048576 bytes"), "{}", err(&output));
}

#[test]
fn standard_input_is_read_once() {
    let output = run_with_input(&["config", "check", "-", "-"], b"seed: 1\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("standard input (`-`) is named twice"), "{}", err(&output));
}

#[test]
fn what_is_shown_can_be_loaded_and_says_where_it_came_from() {
    let shown = out(&run(&["config", "show", EXAMPLE, "--profile", "low_latency"]));
    let line = |key: &str| shown.lines().find(|line| line.trim_start().starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("busy_threshold:").ends_with("# line 8"), "{shown}");
    assert!(line("bind: push").ends_with("# implied by `load_balancing` (line 4)"), "{shown}");
    assert!(line("steal_timeout: 50ms").ends_with("# profile low_latency"), "{shown}");
    assert!(line("take: enough").ends_with("# default"), "{shown}");
    let output = run_with_input(&["config", "check", "-"], shown.as_bytes());
    assert_eq!((out(&output).as_str(), output.status.code()), ("<stdin>: ok\n", Some(0)));
}

#[test]
fn settings_as_json() {
    let settings = json(&run(&["config", "show", "--json", "--profile", "cpu_bound"]));
    let of = |key: &str| settings.iter().find(|setting| setting["key"] == key).cloned().unwrap_or_default();
    assert_eq!(
        of("stealing.steal_threshold"),
        serde_json::json!({ "key": "stealing.steal_threshold", "value": 0.3, "origin": "profile cpu_bound" })
    );
    assert_eq!(of("seed")["origin"], "default");
    assert_eq!(of("profile")["origin"], "given when loading");
}

#[test]
fn a_wrong_file_is_not_shown() {
    let path = file("wrong.yaml", "limits: { key_limit: 0 }\n");
    let output = run(&["config", "show", &path]);
    assert_eq!((out(&output).as_str(), output.status.code()), ("", Some(2)));
    assert!(err(&output).starts_with(&format!("{path}:1:22: error: `limits.key_limit` must be")), "{}", err(&output));
}

#[test]
fn the_schema_is_json_and_the_reference_markdown() {
    let schema: serde_json::Value = serde_json::from_slice(&run(&["config", "schema"]).stdout).expect("JSON");
    assert_eq!(schema["title"], "Config");
    assert!(out(&run(&["config", "reference"])).contains("# Configuration reference"));
}

#[test]
fn colour_is_for_terminals_or_on_request() {
    let plain = run_with_input(&["config", "check", "-"], b"sed: 1");
    assert!(!err(&plain).contains('\u{1b}'));
    let path = file("colour.yaml", "sed: 1");
    let coloured = filch(&["config", "check", &path]).env("CLICOLOR_FORCE", "1").output().expect("the binary runs");
    assert!(err(&coloured).contains("\u{1b}["));
}

#[test]
fn usage_mistakes_exit_with_2_and_help_has_examples() {
    assert_eq!(run(&["config", "check"]).status.code(), Some(2));
    assert_eq!(run(&["config", "show", "--profile", "warp"]).status.code(), Some(2));
    for arguments in [
        &["config", "--help"][..],
        &["config", "check", "--help"],
        &["config", "show", "--help"],
        &["completions", "--help"],
    ] {
        let output = run(arguments);
        assert!(out(&output).contains("Examples:\n  "), "{}", out(&output));
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && out(&output).contains("filch"), "{shell}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    // The schema is longer than one byte and the pipe is closed after it; whether the write fails at once or later,
    // there is no panic and no complaint.
    for arguments in [&["config", "schema"][..], &["config", "show"], &["completions", "bash"]] {
        let mut child = filch(arguments).spawn().expect("the binary runs");
        let mut stdout = child.stdout.take().expect("a pipe");
        let mut first = [0];
        if arguments[1] != "show" {
            stdout.read_exact(&mut first).expect("output");
        }
        drop(stdout);
        let output = child.wait_with_output().expect("the binary ends");
        assert_eq!((err(&output).as_str(), output.status.code()), ("", Some(0)), "{arguments:?}");
    }
}
