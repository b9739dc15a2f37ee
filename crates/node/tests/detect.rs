//! What is found on the machine that runs the tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::process::Command;

use filch_node::detect::{Machine, Probe, Settings, detect};

fn probe(capability: &str, command: &[&str], pattern: &str) -> Probe {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    Probe { capability: capability.to_owned(), command, pattern: pattern.to_owned() }
}

#[test]
fn this_machine_has_what_every_machine_has_and_goes_through_json() {
    let machine = detect(&Settings::default()).unwrap();
    assert!(!machine.hostname.is_empty() && !machine.os.kernel.is_empty(), "{machine:?}");
    assert!(machine.cpu.usable >= 1 && machine.cpu.threads >= machine.cpu.usable, "{machine:?}");
    assert!(machine.cpu.cores >= 1 && machine.cpu.cores <= machine.cpu.threads, "{machine:?}");
    assert!(machine.memory.usable > 16 << 20 && machine.memory.usable <= machine.memory.total, "{machine:?}");
    assert!(machine.disks[0].total >= machine.disks[0].free && machine.disks[0].total > 0, "{machine:?}");
    let json = serde_json::to_string(&machine).unwrap();
    assert_eq!(serde_json::from_str::<Machine>(&json).unwrap(), machine);
}

#[test]
fn probes_find_software_with_its_version_and_say_why_not() {
    let probes = vec![
        probe("tool-$1", &["sh", "-c", "echo tool 3.14.2 >&2"], r"tool (\d+\.\d+)"),
        probe("shell", &["sh", "-c", "exit 0"], ""),
        probe("other", &["echo", "something else"], "tool"),
        probe("broken", &["sh", "-c", "echo tool; exit 3"], "tool"),
        probe("absent", &["/no/such/program"], ""),
        probe("empty", &[], ""),
    ];
    let machine = detect(&Settings { probes, ..Settings::default() }).unwrap();
    assert_eq!(machine.software, ["tool-3.14", "shell"]);
    let why: Vec<(&str, &str)> =
        machine.missing.iter().map(|missing| (missing.capability.as_str(), missing.why.as_str())).collect();
    assert_eq!(why[0], ("other", "what it says does not match"));
    assert_eq!(why[1], ("broken", "it ended with Exited(3)"));
    assert!(why[2].0 == "absent" && why[2].1.starts_with("cannot start /no/such/program"), "{why:?}");
    assert_eq!(why[3], ("empty", "it has no command"));
    let wrong = Settings { probes: vec![probe("x", &["true"], "(")], ..Settings::default() };
    let error = detect(&wrong).unwrap_err();
    assert!(error.to_string().starts_with("the probe for x has a wrong pattern"), "{error}");
}

#[test]
#[ignore = "runs on one processor for another test"]
fn child_counts_processors() {
    println!("usable={}", detect(&Settings::default()).unwrap().cpu.usable);
}

#[test]
fn only_processors_that_may_be_used_count() {
    let this = std::env::current_exe().unwrap();
    let arguments = ["--exact", "child_counts_processors", "--ignored", "--nocapture"];
    match Command::new("taskset").arg("--cpu-list").arg("0").arg(this).args(arguments).output() {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(said.contains("usable=1\n"), "{said}");
        }
        _ => println!("skipped: no taskset here, or it may not use processor 0"),
    }
}
