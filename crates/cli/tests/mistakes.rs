//! What is wrong with a file is told alike by all commands that read one: exit code 2, the file, the place where that is known,
//! and what to do.

mod common;

use std::path::Path;

/// Files that no command can use, and where their mistake is.
const FILES: [(&str, &[u8]); 8] = [
    ("unknown.yaml", b"limits: { leese: 3 }\n"),
    ("garbled.yaml", b"limits: [\n"),
    ("scenario.yaml", b"cluster: [{ count: 1 }]\nworkrs: 3\n"),
    ("job.yaml", b"tasks: [{ name: a, comand: x }]\n"),
    ("access.json", b"{\"version\": 1,\n \"addresses\": [oops"),
    ("newer.json", b"{\"version\": 9}"),
    ("trace.jsonl", b"{\"filch_trace\":1}\n{\"id\": oops}\n"),
    ("bytes", b"\x00\xff\xfe\n"),
];

#[test]
fn a_bad_file_is_wrong_usage_everywhere() {
    let place = tempfile::tempdir().expect("a directory");
    for (name, bytes) in FILES {
        std::fs::write(place.path().join(name), bytes).expect("written");
    }
    std::fs::create_dir(place.path().join("folder")).expect("a directory");
    let mut wrong = Vec::new();
    let mut check = |words: &[&str], file: &str, expected: &str| {
        let (status, said) = run(place.path(), &[words, &[file]].concat());
        let hints = said.contains("help:") || said.contains("; ");
        if status != Some(2) || !said.contains(file) || !said.contains(expected) || !hints {
            wrong.push(format!("{words:?} {file}: {status:?}, wanted `{expected}`\n{said}"));
        }
    };
    let unreadable = [("missing.yaml", "No such file"), ("folder", "Is a directory")];
    let config = [("unknown.yaml", "unknown.yaml:1:11:"), ("garbled.yaml", "garbled.yaml:1:9:"), ("bytes", "bytes:1:")];
    for (file, expected) in config.iter().chain(&unreadable) {
        let serve = ["serve", "--dir", "own", "--listen", "127.0.0.1:0", "--config"];
        let commands: [&[&str]; 6] = [
            &["run", "-j", "1", "true", "--config"],
            &serve,
            &["worker", "--config"],
            &["worker", "--detect", "--config"],
            &["config", "check"],
            &["config", "show"],
        ];
        for words in &commands[1..] {
            check(words, file, expected);
        }
        let (status, said) = run(place.path(), &["run", "--config", file, "--", "true"]);
        assert!(status == Some(2) && said.contains(expected), "{said}");
    }
    let jobs = [("job.yaml", "job.yaml:1:20:"), ("garbled.yaml", "garbled.yaml:1:9:"), ("bytes", "bytes:1:")];
    for (file, expected) in jobs.iter().chain(&unreadable) {
        check(&["run", "--file"], file, expected);
        check(&["submit", "--file"], file, expected);
    }
    let access = [
        ("access.json", "access.json:2:16:"),
        ("newer.json", "version 9"),
        ("bytes", "bytes:1:1:"),
        ("missing.json", "`filch serve` writes one"),
        ("folder", "Is a directory"),
    ];
    for (file, expected) in access {
        let commands: [&[&str]; 7] = [
            &["worker", "--access"],
            &["worker", "list", "--access"],
            &["job", "list", "--access"],
            &["task", "show", "1", "--access"],
            &["trace", "export", "1", "--access"],
            &["stats", "--access"],
            &["submit", "--array", "1-2", "--access"],
        ];
        for words in &commands[..6] {
            check(words, file, expected);
        }
        let (status, said) = run(place.path(), &[commands[6], &[file, "--", "true"]].concat());
        assert!(status == Some(2) && said.contains(expected), "{file}: {said}");
    }
    let worlds = [
        ("trace.jsonl", "trace.jsonl:2:8:"),
        ("scenario.yaml", "scenario.yaml:2:1:"),
        ("garbled.yaml", "garbled.yaml:1:9:"),
        ("bytes", "there is no scenario"),
        ("missing.jsonl", "No such file"),
        ("./folder", "Is a directory"),
    ];
    for (file, expected) in worlds {
        if file != "bytes" {
            check(&["sim", "run"], file, expected);
            check(&["sim", "compare"], file, expected);
        }
    }
    // Whoever waits for a result does not want to hear then that there is no place for it.
    check(&["sim", "run", "basic", "--gantt"], "no/such/folder.svg", "cannot write");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!place.path().join("own").join("filch.db").exists());
}

/// The exit code, and what is said on standard error.
fn run(place: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut command = common::filch(words);
    let output = command
        .current_dir(place)
        .env("FILCH_DIR", place.join("own"))
        .env_remove("FILCH_ACCESS")
        .output()
        .expect("the binary runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}
