//! Tests in namespaces of their own: with networks that can be cut, and file systems that are full.
//!
//! The test is run a second time, as the first process of new namespaces; everything that it makes ends with it. Where that
//! is not permitted the test says so and is skipped.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Set for the second run.
const INSIDE: &str = "FILCH_TEST_APART";

/// Whether the caller is inside, and is to do its work. Outside, this runs the test `name` inside and fails if it fails.
/// `namespaces` are options of unshare; `probe` is a shell line that succeeds where the test can be run.
pub(crate) fn inside(name: &str, namespaces: &[&str], probe: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("this test is a program");
    let Some(user) = permitted(namespaces, probe) else {
        // Not by a macro: what those print is hidden if the test succeeds.
        let _ = writeln!(std::io::stderr(), "skipped: {name}: namespaces are not permitted here, or a tool is missing");
        return false;
    };
    let mut again = unshare(user, namespaces);
    let output = again.arg(own).args([name, "--exact", "--nocapture"]).env(INSIDE, "1").output().expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "in namespaces of its own:\n{out}\n{err}");
    assert!(out.contains("1 passed"), "there is no test {name}: {out}");
    false
}

/// Which user one must be: root as one is, or root of a namespace.
fn permitted(namespaces: &[&str], probe: &str) -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    ways.into_iter().find(|way| {
        let mut command = unshare(way, namespaces);
        command.args(["sh", "-c", probe]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

fn unshare(user: &[&str], namespaces: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(user).args(namespaces).args(["--pid", "--fork", "--kill-child", "--mount-proc"]).stdin(Stdio::null());
    command
}

/// Runs a shell line that must succeed.
pub(crate) fn shell(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().expect("a shell");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}
