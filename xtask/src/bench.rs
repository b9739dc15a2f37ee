//! `cargo xtask bench`: finds and runs the benchmarks, which are the binaries of the package `filch-bench`.
//!
//! Never measures anything itself, and writes nothing to standard output when it runs one, so `--json` stays clean.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process;

const PACKAGE: &str = "filch-bench";

/// Runs the benchmark called `name`, or lists all of them.
pub(crate) fn run(name: Option<&str>, arguments: &[String]) -> Result<()> {
    let known = binaries(&metadata()?, PACKAGE);
    let Some(name) = name else {
        println!("{}", listing(known.as_deref()));
        return Ok(());
    };
    if !known.as_deref().unwrap_or_default().iter().any(|binary| binary == name) {
        bail!("no benchmark is called {name}\n{}", listing(known.as_deref()));
    }
    if name == "cluster" {
        // It runs the command line too.
        let built = process::command("cargo").args(["build", "--release", "--package", "filch-cli"]).status();
        if !built.context("cannot start cargo")?.success() {
            bail!("the filch binary cannot be built");
        }
    }
    let status = process::command("cargo")
        .args([
            "run",
            "--profile",
            profile(name),
            "--package",
            PACKAGE,
            "--features",
            features(name),
            "--bin",
            name,
            "--",
        ])
        .args(arguments)
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("the benchmark {name} failed ({status})");
    }
    Ok(())
}

/// How a benchmark is built. That of the pool compares single nanoseconds with other libraries: what all of them cost must not
/// hang on how the compiler happened to divide the program.
fn profile(name: &str) -> &'static str {
    if name == "pool" { "fat" } else { "release" }
}

/// What a benchmark needs that the others need not build.
fn features(name: &str) -> &'static str {
    if name == "cluster" { "cluster" } else { "" }
}

fn metadata() -> Result<Value> {
    let output = process::command("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata printed something that is not JSON")
}

/// The names of a package's binaries, sorted; none if the workspace has no such package.
fn binaries(metadata: &Value, package: &str) -> Option<Vec<String>> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let package = list(metadata, "packages").into_iter().find(|candidate| candidate["name"] == package)?;
    let mut names: Vec<String> = list(&package, "targets")
        .iter()
        .filter(|target| list(target, "kind").iter().any(|kind| kind == "bin"))
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    Some(names)
}

fn listing(known: Option<&[String]>) -> String {
    match known {
        None => format!("The workspace has no benchmarks: there is no package {PACKAGE} (it belongs in bench/)."),
        Some([]) => format!("The package {PACKAGE} has no benchmarks: add a binary in bench/src/bin/."),
        Some(names) => {
            let lines: Vec<String> = names.iter().map(|name| format!("  cargo xtask bench {name}")).collect();
            format!("Benchmarks:\n{}", lines.join("\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn binaries_come_from_the_package_alone() {
        let metadata = json!({ "packages": [
            { "name": "other", "targets": [{ "name": "tool", "kind": ["bin"] }] },
            { "name": "filch-bench", "targets": [
                { "name": "pool", "kind": ["bin"] },
                { "name": "core", "kind": ["bin"] },
                { "name": "filch_bench", "kind": ["lib"] },
            ] },
        ] });
        assert_eq!(binaries(&metadata, PACKAGE), Some(vec!["core".to_owned(), "pool".to_owned()]));
        assert_eq!(binaries(&metadata, "missing"), None);
    }

    #[test]
    fn the_listing_says_what_is_missing() {
        assert!(listing(None).contains("no package filch-bench"));
        assert!(listing(Some(&[])).contains("bench/src/bin/"));
        assert_eq!(listing(Some(&["core".to_owned()])), "Benchmarks:\n  cargo xtask bench core");
    }

    #[test]
    fn an_unknown_benchmark_is_refused() {
        let error = run(Some("no-such-benchmark"), &[]).unwrap_err();
        assert!(error.to_string().contains("no benchmark is called no-such-benchmark"), "{error}");
    }
}
