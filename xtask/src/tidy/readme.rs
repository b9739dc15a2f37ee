//! The README's commands: every line that begins with `$ ` in a `console` or `sh` block runs here, so the README cannot
//! promise what does not work.
//!
//! Never runs `cargo xtask test` or `cargo xtask tidy`: the first calls the second, and the second is this.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::text::lines;
use super::{Finding, Tree};
use crate::process;

const README: &str = "README.md";
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// What would call this very check again.
const CALLS_US: &[&str] = &["cargo xtask test", "cargo xtask tidy"];

/// A command shown to the reader.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    line: usize,
    command: String,
}

/// Commands that a reader would type but that this check would not see.
pub(super) fn misplaced(tree: &Tree) -> Vec<Finding> {
    let Some(readme) = tree.text(README) else { return vec![Finding::new(README, 0, "is missing")] };
    let mut findings = Vec::new();
    let mut continues = false;
    for (number, fence, line) in lines(readme) {
        let is_command = line.starts_with("$ ");
        match fence {
            Some("sh") if !is_command && !continues && !line.trim().is_empty() && !line.starts_with('#') => {
                let message = "a `sh` block shows a command without `$ `; put output into a `console` block";
                findings.push(Finding::new(README, number, message));
            }
            Some("sh" | "console") => {}
            Some(_) if is_command => {
                findings.push(Finding::new(
                    README,
                    number,
                    "a command outside of a `console` or `sh` block is never run",
                ));
            }
            _ => {}
        }
        continues = (is_command || continues) && line.ends_with('\\');
    }
    findings
}

fn shown(readme: &str) -> Vec<Shown> {
    let mut commands: Vec<Shown> = Vec::new();
    let in_blocks = lines(readme).filter(|(_, fence, _)| matches!(fence, Some("console" | "sh")));
    let mut continues = false;
    for (number, _, line) in in_blocks {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push(Shown { line: number, command: command.to_owned() });
        } else if let Some(last) = commands.last_mut().filter(|_| continues) {
            last.command = format!("{}\n{line}", last.command);
        } else {
            continue;
        }
        continues = line.ends_with('\\');
    }
    commands
}

fn calls_us(command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    CALLS_US.iter().any(|ours| words.starts_with(&ours.split_whitespace().collect::<Vec<_>>()))
}

/// Runs each command the README shows; returns those that failed.
pub(super) fn run_commands(tree: &Tree) -> Result<Vec<Finding>> {
    let to_run = shown(tree.text(README).unwrap_or_default()).into_iter().filter(|shown| !calls_us(&shown.command));
    let mut findings = Vec::new();
    for shown in to_run {
        println!("tidy: {README}:{}: $ {}", shown.line, shown.command);
        let start = Instant::now();
        match run(&shown.command, LIMIT)? {
            None => println!("tidy: exits well in {}", process::duration(start.elapsed())),
            Some(problem) => findings.push(Finding::new(README, shown.line, problem)),
        }
    }
    Ok(findings)
}

/// What is wrong with a command, if anything, with the end of its output.
fn run(command: &str, limit: Duration) -> Result<Option<String>> {
    let finished = process::shell(command, limit)?;
    Ok(finished.problem.as_ref().map(|problem| format!("`{command}` failed: {problem}\n{}", finished.tail(40))))
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    const SAMPLE: &str = "# a\n```console\n$ echo one\none\n$ echo two \\\n    three\ntwo three\n```\n\n\
                          $ not in a block\n```sh\n$ cargo xtask test --only fmt\n```\n";

    fn commands(readme: &str) -> Vec<(usize, String)> {
        shown(readme).into_iter().map(|shown| (shown.line, shown.command)).collect()
    }

    #[test]
    fn commands_are_read_with_their_continuation() {
        let expected = [
            (3, "echo one".to_owned()),
            (5, "echo two \\\n    three".to_owned()),
            (12, "cargo xtask test --only fmt".to_owned()),
        ];
        assert_eq!(commands(SAMPLE), expected);
        assert_eq!(misplaced(&tree(&[(README, SAMPLE)])), []);
    }

    #[test]
    fn a_command_that_would_not_run_is_found() {
        for bad in ["```sh\ncargo run\n```\n", "```text\n$ cargo run\n```\n", "```\n$ cargo run\n```\n"] {
            let findings = misplaced(&tree(&[(README, bad)]));
            assert_eq!(findings.len(), 1, "{bad}");
            assert_eq!(findings[0].line, 2);
        }
        assert!(misplaced(&tree(&[]))[0].message.contains("is missing"));
    }

    #[test]
    fn the_check_does_not_call_itself() {
        assert!(calls_us("cargo xtask test"));
        assert!(calls_us("cargo  xtask tidy --fix"));
        assert!(!calls_us("cargo xtask bench"));
        assert!(!calls_us("cargo run --release -- demo"));
    }

    #[test]
    fn failing_commands_are_found_and_all_are_run() {
        let readme =
            "```console\n$ true\n$ echo said this; exit 7\n$ test -f Cargo.toml\n$ no-such-program-at-all\n```\n";
        let findings = run_commands(&tree(&[(README, readme)])).unwrap();
        let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [3, 5]);
        assert!(findings[0].message.contains("exit status: 7"), "{}", findings[0].message);
        assert!(findings[0].message.ends_with("said this"), "{}", findings[0].message);
    }

    #[test]
    fn a_command_that_hangs_is_found() {
        let problem = run("echo before; sleep 60", Duration::from_millis(200)).unwrap().unwrap();
        assert!(problem.contains("still running after 0.2 s"), "{problem}");
        assert!(problem.ends_with("before"), "{problem}");
    }
}
