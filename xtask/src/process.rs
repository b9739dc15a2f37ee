//! Running other programs from the repository root: always without standard input, optionally with a time limit.
//!
//! Never leaves a process behind that ran past its limit.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The root of the repository this program was started for.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable at run time too; a checkout that was moved after the build is still found.
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    manifest.parent().map_or_else(|| manifest.clone(), Path::to_path_buf)
}

/// A command that runs in the root and reads nothing.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Whether the program starts and exits well; what it prints is dropped.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let status = command(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// How a shell line ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Why it did not end well, if so.
    pub(crate) problem: Option<String>,
    /// What it printed, to both outputs.
    pub(crate) output: String,
}

impl Finished {
    /// The last lines of the output.
    pub(crate) fn tail(&self, count: usize) -> String {
        let lines: Vec<&str> = self.output.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

/// Runs a shell line, and ends it with all its children when `limit` has passed.
pub(crate) fn shell(line: &str, limit: Duration) -> Result<Finished> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    // A file rather than a pipe: nobody has to drain it, and a grandchild that keeps it open blocks nobody.
    let log = std::env::temp_dir().join(format!("filch-xtask-{}-{run}.log", std::process::id()));
    let problem = shell_into(line, &log, limit)?;
    let output = fs::read(&log).context("cannot read back the output")?;
    fs::remove_file(&log).context("cannot remove the output")?;
    Ok(Finished { problem, output: String::from_utf8_lossy(&output).into_owned() })
}

fn shell_into(line: &str, log: &Path, limit: Duration) -> Result<Option<String>> {
    let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let errors = output.try_clone().context("cannot share the log")?;
    let mut shell = command("sh");
    shell.args(["-c", line]).stdout(output).stderr(errors).process_group(0);
    let mut child = shell.spawn().context("cannot start sh")?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for sh")? {
            return Ok((!status.success()).then(|| status.to_string()));
        }
        if start.elapsed() >= limit {
            // The child leads its own group, so this reaches what it started and nothing else.
            // The shell's own `kill`, since small systems have no other.
            succeeds("sh", &["-c", &format!("kill -s KILL -- -{}", child.id())]);
            child.wait().context("cannot wait for sh")?;
            return Ok(Some(format!("still running after {}", duration(limit))));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A duration for people: `0.4 s`, `12.3 s`, `4 min 05 s`.
pub(crate) fn duration(span: Duration) -> String {
    let seconds = span.as_secs();
    if seconds < 60 {
        format!("{:.1} s", span.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("xtask/Cargo.toml").is_file());
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn status_and_output_are_kept() {
        let finished = shell("echo out; echo err >&2; exit 3", LONG).unwrap();
        assert_eq!(finished.problem.as_deref(), Some("exit status: 3"));
        assert_eq!(finished.output, "out\nerr\n");
        assert_eq!(shell("true", LONG).unwrap().problem, None);
    }

    #[test]
    fn standard_input_is_empty() {
        let finished = shell("cat", LONG).unwrap();
        assert_eq!((finished.problem, finished.output.as_str()), (None, ""));
    }

    #[test]
    fn the_limit_ends_the_whole_group() {
        let start = Instant::now();
        let finished = shell("sleep 300 & echo $!; wait", Duration::from_millis(500)).unwrap();
        assert!(start.elapsed() < LONG);
        assert_eq!(finished.problem.as_deref(), Some("still running after 0.5 s"));
        let grandchild = finished.output.trim();
        assert!(grandchild.parse::<u32>().is_ok(), "not a process: {grandchild:?}");
        // A killed process may stay as a zombie until somebody reaps it, so look at its state, not its existence.
        let state = format!("case \"$(ps -o stat= -p {grandchild})\" in ''|Z*) true;; *) false;; esac");
        let gone = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(20));
            succeeds("sh", &["-c", &state])
        });
        assert!(gone, "the grandchild {grandchild} outlived the limit");
    }

    #[test]
    fn only_the_end_of_long_output_is_shown() {
        let finished = |output: &str| Finished { problem: None, output: output.to_owned() };
        assert_eq!(finished("a\nb\nc\n").tail(2), "b\nc");
        assert_eq!(finished("").tail(2), "");
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(Duration::from_millis(440)), "0.4 s");
        assert_eq!(duration(Duration::from_secs(245)), "4 min 05 s");
    }
}
