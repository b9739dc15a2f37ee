//! `cargo xtask mutants`: weakens one memory ordering of the pool after the other and lets the loom models judge.
//!
//! It works on a copy below `target/`, never on the sources. A model that is worth something fails for every mutant;
//! those that survive are listed, to be explained or to be relaxed for good.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::process;

/// The files whose protocols have loom models.
const FILES: &[&str] = &["deque.rs", "latch.rs", "ring.rs", "sleep.rs"];

/// A model that runs longer under a mutant than this gives no answer.
const LIMIT: Duration = Duration::from_secs(4 * 60);

const LOOM: &str = "RUSTFLAGS='--cfg loom -C debug-assertions=on' cargo test --lib --release -- --test-threads=1";

/// One change to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mutant {
    file: &'static str,
    /// The function the change is in, and the line as it was.
    function: String,
    line: usize,
    was: String,
    change: String,
    text: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// These models failed.
    Caught(Vec<String>),
    Survived,
    NoAnswer(String),
}

/// Judges every mutant, or those of one file, and prints a table.
pub(crate) fn run(only: Option<&str>) -> Result<()> {
    let root = process::root();
    let scratch = root.join("target/mutants");
    let sources = root.join("crates/pool/src");
    copy(&root.join("crates/pool"), &scratch)?;
    let clean = judge(&scratch)?;
    ensure!(clean == Verdict::Survived, "the models fail without any change: {clean:?}");
    let mut table = String::from("| where | change | caught by |\n|---|---|---|\n");
    for file in FILES.iter().copied().filter(|file| only.is_none_or(|only| *file == only)) {
        let text = fs::read_to_string(sources.join(file)).with_context(|| format!("cannot read {file}"))?;
        let place = scratch.join("src").join(file);
        for mutant in mutants(file, &text) {
            fs::write(&place, &mutant.text)?;
            let verdict = judge(&scratch)?;
            eprintln!("{}:{} {}: {}: {verdict:?}", mutant.file, mutant.line, mutant.was, mutant.change);
            row(&mut table, &mutant, &verdict);
        }
        fs::write(&place, &text)?;
    }
    println!("{table}");
    Ok(())
}

/// Makes a workspace of its own out of the pool, so that nothing else is built.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.join("src"))?;
    for entry in fs::read_dir(from.join("src"))? {
        let entry = entry?;
        fs::copy(entry.path(), to.join("src").join(entry.file_name()))?;
    }
    let manifest = fs::read_to_string(from.join("Cargo.toml"))?;
    fs::write(to.join("Cargo.toml"), standalone(&manifest))?;
    fs::copy(from.join("README.md"), to.join("README.md")).context("cannot copy the README")?;
    Ok(())
}

/// The manifest without what it inherits, as the root of its own workspace.
fn standalone(manifest: &str) -> String {
    let own = manifest.lines().filter(|line| !line.contains(".workspace = true"));
    let mut text: String = own.map(|line| format!("{line}\n")).collect();
    text = text.replacen("[package]\n", "[package]\nversion = \"0.0.0\"\nedition = \"2024\"\n", 1);
    text.push_str("\n[workspace]\n");
    text
}

/// Every way to weaken one ordering or to leave out one fence.
fn mutants(file: &'static str, text: &str) -> Vec<Mutant> {
    let lines: Vec<&str> = text.lines().collect();
    let mut function = String::new();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some((_, rest)) = line.split_once("fn ") {
            function = rest.split(['(', '<']).next().unwrap_or_default().to_owned();
        }
        if line.trim_start().starts_with("//") {
            continue;
        }
        for (new, change) in weaker(line) {
            let mut changed = lines.clone();
            changed[at] = &new;
            let was = line.trim().to_owned();
            let text = changed.join("\n") + "\n";
            found.push(Mutant { file, function: function.clone(), line: at + 1, was, change, text });
        }
    }
    found
}

/// What a line can become, each with one ordering weakened by one kind of edge.
fn weaker(line: &str) -> Vec<(String, String)> {
    if line.trim() == "fence(Ordering::SeqCst);" {
        return vec![(String::new(), "no fence".to_owned())];
    }
    let changes: &[(&str, &[&str])] = &[
        // loom takes these for AcqRel, so less than all of it would show nothing more.
        ("SeqCst", &["Relaxed"]),
        ("AcqRel", &["Acquire", "Release"]),
        ("Acquire", &["Relaxed"]),
        ("Release", &["Relaxed"]),
    ];
    let mut found = Vec::new();
    for (strong, weak) in changes {
        let word = format!("Ordering::{strong}");
        for (at, _) in line.match_indices(&word) {
            for weak in *weak {
                let new = format!("{}Ordering::{weak}{}", &line[..at], &line[at + word.len()..]);
                found.push((new, format!("{strong} → {weak}")));
            }
        }
    }
    found
}

/// Runs the models on what lies in the copy.
fn judge(scratch: &Path) -> Result<Verdict> {
    let line = format!("cd '{}' && {LOOM}", scratch.display());
    let finished = process::shell(&line, LIMIT)?;
    if finished.problem.is_none() {
        return Ok(Verdict::Survived);
    }
    let failed = failures(&finished.output);
    let late = finished.problem.as_deref().is_some_and(|problem| problem.starts_with("still running"));
    if failed.is_empty() || (late && failed.len() == 1) {
        return Ok(Verdict::NoAnswer(finished.tail(3)));
    }
    Ok(Verdict::Caught(failed))
}

/// The tests that did not end well, by name: also the one during which everything broke down.
fn failures(output: &str) -> Vec<String> {
    let tests = output.lines().filter_map(|line| line.strip_prefix("test models::"));
    let failed = tests.filter_map(|line| line.split_once(" ... ")).filter(|(_, outcome)| *outcome != "ok");
    failed.map(|(name, _)| name.to_owned()).collect()
}

fn row(table: &mut String, mutant: &Mutant, verdict: &Verdict) {
    let caught = match verdict {
        Verdict::Caught(models) => models.join(", "),
        Verdict::Survived => "**nobody**".to_owned(),
        Verdict::NoAnswer(_) => format!("no answer within {}", process::duration(LIMIT)),
    };
    let place = format!("`{}` `{}`", mutant.file.trim_end_matches(".rs"), mutant.function);
    // Writing to a string cannot fail.
    let _ = writeln!(table, "| {place} | `{}`: {} | {caught} |", mutant.was, mutant.change);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ordering_is_weakened_alone() {
        let text = "fn steal(&self) {\n    // Ordering::SeqCst\n    a.load(Ordering::Acquire);\n    fence(Ordering::SeqCst);\n    \
                    b.swap(1, Ordering::AcqRel);\n    c.load(Ordering::Relaxed);\n}\n";
        let found = mutants("ring.rs", text);
        let changes: Vec<&str> = found.iter().map(|mutant| mutant.change.as_str()).collect();
        assert_eq!(changes, ["Acquire → Relaxed", "no fence", "AcqRel → Acquire", "AcqRel → Release"]);
        assert!(found.iter().all(|mutant| mutant.function == "steal" && mutant.text != text));
        assert!(found[0].text.contains("a.load(Ordering::Relaxed)"));
        assert!(!found[1].text.contains("fence"));
    }

    #[test]
    fn two_orderings_in_a_line_are_two_mutants() {
        let found = weaker("x.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)");
        let changes: Vec<&str> = found.iter().map(|(_, change)| change.as_str()).collect();
        assert_eq!(changes, ["AcqRel → Acquire", "AcqRel → Release", "Acquire → Relaxed"]);
        assert_eq!(found[2].0, "x.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)");
    }

    #[test]
    fn the_copy_stands_alone() {
        let text = standalone("[package]\nname = \"p\"\nversion.workspace = true\n");
        assert_eq!(text, "[package]\nversion = \"0.0.0\"\nedition = \"2024\"\nname = \"p\"\n\n[workspace]\n");
    }

    #[test]
    fn failed_models_are_found_in_the_output() {
        let output = "test models::a_b ... FAILED\ntest models::b ... ok\ntest models::c ... \nthread panicked twice\n";
        assert_eq!(failures(output), ["a_b", "c"]);
    }
}
