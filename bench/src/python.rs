//! Rivals that are written in Python, each with its packages in a folder of its own below the build's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// A Python that can import something, for which packages are installed if they are not there.
///
/// # Errors
/// If they cannot be installed.
pub fn with(name: &str, packages: &[&str], imports: &str) -> Result<PathBuf> {
    let folder = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let folder = folder.join(name);
    let python = folder.join("bin/python");
    let has_it = || {
        let tried = Command::new(&python).args(["-c", &format!("import {imports}")]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    if has_it() {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run(Command::new(&python).args(install).args(packages))?;
    if !has_it() {
        bail!("Python cannot import {imports} although it was installed");
    }
    Ok(python)
}

/// Runs a script of this folder; what it says as JSON.
///
/// # Errors
/// If it fails or says something else.
pub fn ask(python: &Path, script: &str, arguments: &[String]) -> Result<serde_json::Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new(python).arg(&script).args(arguments).output().context("cannot start Python")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {}", script.display(), said.trim());
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
