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

/// The files whose protocols have loom models, and the models they take part in.
const FILES: &[(&str, &str)] = &[
    ("deque.rs", "every_forked_job two_thieves_share a_full_deque"),
    ("latch.rs", "a_latch every_forked_job two_thieves_share"),
    ("listen.rs", "news_is_not what_is_meant_for_one"),
    ("live.rs", "a_chunk"),
    ("ring.rs", "every_spawned_task two_thieves_and"),
    ("tally.rs", "a_scope_ends a_scope_sees"),
    ("sleep.rs", "no_task_is_slept_over an_active_worker mail_is_not the_end_wakes"),
];

/// A model that runs longer under a mutant than this gives no answer.
const LIMIT: Duration = Duration::from_secs(4 * 60);

/// Building the copy for the first time takes long on a busy machine.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// What the copy gets, so that one build serves for all mutants: the variable names a place and its new ordering.
const SWITCH: &str = r#"
fn mutant() -> &'static (usize, String) {
    static MUTANT: std::sync::OnceLock<(usize, String)> = std::sync::OnceLock::new();
    MUTANT.get_or_init(|| {
        let text = std::env::var("MUTANT").unwrap_or_default();
        let (place, change) = text.split_once(':').unwrap_or(("0", ""));
        (place.parse().expect("a number"), change.to_owned())
    })
}

pub(crate) fn at(place: usize, ordering: Ordering) -> Ordering {
    match mutant() {
        (mutated, change) if *mutated == place => match change.as_str() {
            "Relaxed" => Ordering::Relaxed,
            "Acquire" => Ordering::Acquire,
            "Release" => Ordering::Release,
            other => panic!("no ordering is called {other}"),
        },
        _ => ordering,
    }
}

pub(crate) fn fence_at(place: usize) {
    if mutant().0 != place {
        fence(Ordering::SeqCst);
    }
}
"#;

/// One place that could be weaker.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    number: usize,
    /// The function it is in, and the line as it is.
    function: String,
    line: usize,
    text: String,
    /// What it is, and what it could be.
    ordering: &'static str,
    weaker: &'static [&'static str],
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
    let pool = process::root().join("crates/pool");
    let scratch = process::root().join("target/mutants");
    copy(&pool, &scratch)?;
    let mut places = Vec::new();
    for (file, models) in FILES {
        let source = fs::read_to_string(pool.join("src").join(file)).with_context(|| format!("cannot read {file}"))?;
        let (text, found) = switchable(&source, places.len() + 1);
        fs::write(scratch.join("src").join(file), text)?;
        places.extend(found.into_iter().map(|place| (*file, *models, place)));
    }
    let built = process::shell(&line(&scratch, "", "--no-run"), BUILD_LIMIT)?;
    ensure!(built.problem.is_none(), "the models cannot be built:\n{}", built.tail(20));
    let wanted = |file: &str| only.is_none_or(|only| file == only);
    for (file, models) in FILES.iter().filter(|(file, _)| wanted(file)) {
        let clean = judge(&scratch, "", models)?;
        ensure!(clean == Verdict::Survived, "the models of {file} fail without any change: {clean:?}");
    }
    let mut table = String::from("| where | line | change | caught by |\n|---|---|---|---|\n");
    for (file, models, place) in places.iter().filter(|(file, ..)| wanted(file)) {
        for weak in place.weaker {
            let verdict = judge(&scratch, &format!("{}:{weak}", place.number), models)?;
            eprintln!("{file}:{} {} → {weak}: {verdict:?}", place.line, place.ordering);
            row(&mut table, file, place, weak, &verdict);
        }
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
    let shim = fs::read_to_string(from.join("src/sync.rs")).context("cannot read the shim")?;
    fs::write(to.join("src/sync.rs"), shim + SWITCH)?;
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

const FENCE: &str = "fence(Ordering::SeqCst)";

/// Orderings that could be weaker. loom takes a SeqCst access for AcqRel, so less than all of it would show nothing more.
const ORDERINGS: &[(&str, &[&str])] = &[
    ("SeqCst", &["Relaxed"]),
    ("AcqRel", &["Acquire", "Release"]),
    ("Acquire", &["Relaxed"]),
    ("Release", &["Relaxed"]),
];

/// The source with every ordering and every fence behind the switch, and what there is to switch.
fn switchable(source: &str, first: usize) -> (String, Vec<Place>) {
    let (mut text, mut places, mut function) = (String::new(), Vec::new(), String::new());
    for (at, line) in source.lines().enumerate() {
        if let Some((_, rest)) = line.split_once("fn ") {
            function = rest.split(['(', '<']).next().unwrap_or_default().to_owned();
        }
        let mut rest = if line.trim_start().starts_with("//") { "" } else { line };
        let mut new = line[..line.len() - rest.len()].to_owned();
        while let Some((start, found, ordering, weaker)) = next_place(rest) {
            let number = first + places.len();
            let switch = match ordering {
                "fence" => format!("crate::sync::fence_at({number})"),
                ordering => format!("crate::sync::at({number}, Ordering::{ordering})"),
            };
            new.push_str(&rest[..start]);
            new.push_str(&switch);
            rest = &rest[start + found..];
            let (function, text) = (function.clone(), line.trim().to_owned());
            places.push(Place { number, function, line: at + 1, text, ordering, weaker });
        }
        let _ = writeln!(text, "{new}{rest}");
    }
    (text, places)
}

/// The first place in a line: where it starts, how long it is, what it is and what it could be.
fn next_place(line: &str) -> Option<(usize, usize, &'static str, &'static [&'static str])> {
    let fence = line.find(FENCE).map(|start| (start, FENCE.len(), "fence", &["none"][..]));
    let orderings = ORDERINGS.iter().filter_map(|(strong, weaker)| {
        let word = format!("Ordering::{strong}");
        line.find(&word).map(|start| (start, word.len(), *strong, *weaker))
    });
    fence.into_iter().chain(orderings).min_by_key(|(start, ..)| *start)
}

/// The shell line that builds the models and, unless told otherwise, runs them.
fn line(scratch: &Path, mutant: &str, arguments: &str) -> String {
    let scratch = scratch.display();
    format!(
        "cd '{scratch}' && MUTANT={mutant} RUSTFLAGS='--cfg loom -C debug-assertions=on' \
         cargo test --lib --release {arguments}"
    )
}

/// Runs the models with one place changed.
fn judge(scratch: &Path, mutant: &str, models: &str) -> Result<Verdict> {
    let finished = process::shell(&line(scratch, mutant, &format!("-- --test-threads=1 {models}")), LIMIT)?;
    let ran = finished.output.contains("\ntest models::");
    let failed = failures(&finished.output);
    let late = finished.problem.as_deref().is_some_and(|problem| problem.starts_with("still running"));
    Ok(match finished.problem {
        None if ran => Verdict::Survived,
        Some(_) if !failed.is_empty() && !late => Verdict::Caught(failed),
        _ => Verdict::NoAnswer(finished.tail(5)),
    })
}

/// The tests that did not end well, by name: also the one during which everything broke down.
fn failures(output: &str) -> Vec<String> {
    let tests = output.lines().filter_map(|line| line.strip_prefix("test models::"));
    let failed = tests.filter_map(|line| line.split_once(" ... ")).filter(|(_, outcome)| *outcome != "ok");
    failed.map(|(name, _)| name.to_owned()).collect()
}

fn row(table: &mut String, file: &str, place: &Place, weak: &str, verdict: &Verdict) {
    let caught = match verdict {
        Verdict::Caught(models) => models.join(", "),
        Verdict::Survived => "**nobody**".to_owned(),
        Verdict::NoAnswer(_) => "no answer".to_owned(),
    };
    let (file, Place { function, text, ordering, .. }) = (file.trim_end_matches(".rs"), place);
    // Writing to a string cannot fail.
    let _ = writeln!(table, "| {file}: `{function}` | `{text}` | {ordering} → {weak} | {caught} |");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ordering_and_every_fence_gets_its_switch() {
        let source = "fn steal<T>(&self) {\n    // Ordering::SeqCst\n    a.load(Ordering::Acquire);\n    \
                      fence(Ordering::SeqCst);\n    c.load(Ordering::Relaxed);\n    \
                      b.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)\n}\n";
        let (text, places) = switchable(source, 7);
        let expected = "fn steal<T>(&self) {\n    // Ordering::SeqCst\n    \
                        a.load(crate::sync::at(7, Ordering::Acquire));\n    crate::sync::fence_at(8);\n    \
                        c.load(Ordering::Relaxed);\n    b.compare_exchange(0, 1, \
                        crate::sync::at(9, Ordering::AcqRel), crate::sync::at(10, Ordering::Acquire))\n}\n";
        assert_eq!(text, expected);
        assert!(places.iter().all(|place| place.function == "steal"));
        let orderings: Vec<_> = places.iter().map(|place| (place.line, place.ordering, place.weaker)).collect();
        let both: &[&str] = &["Acquire", "Release"];
        let relaxed: &[&str] = &["Relaxed"];
        let expected = [(3, "Acquire", relaxed), (4, "fence", &["none"]), (6, "AcqRel", both), (6, "Acquire", relaxed)];
        assert_eq!(orderings, expected);
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
