//! A cluster of real processes, through the commands that people use.
#![allow(dead_code, reason = "not every test uses all of it")]

pub(crate) mod apart;

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The binary, with pipes on all sides. What the surroundings say about colour must not decide what the tests see.
pub(crate) fn filch(arguments: &[&str]) -> Command {
    let mut command = filch_by(&[]);
    command.args(arguments);
    command
}

fn filch_by(starter: &[&str]) -> Command {
    let words = [starter, &[env!("CARGO_BIN_EXE_filch")]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A coordinator in a directory of its own. Everything that was started for it ends with it.
pub(crate) struct Cluster {
    pub(crate) place: tempfile::TempDir,
    pub(crate) processes: Vec<Child>,
    pub(crate) coordinator: u32,
}

impl Cluster {
    pub(crate) fn start(options: &[&str]) -> Cluster {
        Cluster::start_with("", options)
    }

    /// A coordinator with a configuration.
    pub(crate) fn start_with(config: &str, options: &[&str]) -> Cluster {
        Cluster::start_at(config, &[&["--listen", "127.0.0.1:0"], options].concat())
    }

    /// A coordinator with a configuration that listens where the options say.
    pub(crate) fn start_at(config: &str, options: &[&str]) -> Cluster {
        let mut cluster = Cluster::prepare(config);
        cluster.serve_at(options);
        wait_for("the access file is there", || cluster.place.path().join("access.json").exists());
        cluster
    }

    /// A directory with a configuration and nothing else.
    pub(crate) fn prepare(config: &str) -> Cluster {
        let place = tempfile::tempdir().expect("a directory");
        std::fs::write(place.path().join("filch.yaml"), config).expect("written");
        Cluster { place, processes: Vec::new(), coordinator: 0 }
    }

    /// Starts the coordinator, for the first time or again.
    pub(crate) fn serve(&mut self, options: &[&str]) {
        self.serve_at(&[&["--listen", "127.0.0.1:0"], options].concat());
    }

    fn serve_at(&mut self, options: &[&str]) {
        self.coordinator = self.spawn(&[&["serve", "--config", "filch.yaml"], options].concat());
    }

    /// Kills a process and waits until it is gone.
    pub(crate) fn kill(&mut self, id: u32) {
        let mut child = self.take(id);
        child.kill().expect("killed");
        child.wait().expect("gone");
    }

    /// Kills the coordinator and starts it again without its history, which it gets back from the journal. A job that it knows
    /// tells when it is back.
    pub(crate) fn begin_anew_from_the_journal(&mut self, job: &str) {
        self.kill(self.coordinator);
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(self.place.path().join(format!("history.db{end}")));
        }
        self.serve(&[]);
        wait_for("it is back", || self.run(&["job", "show", job]).status.success());
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.at_home(filch(arguments))
    }

    /// The binary, started by another program.
    pub(crate) fn command_by(&self, starter: &[&str], arguments: &[&str]) -> Command {
        let mut command = filch_by(starter);
        command.args(arguments);
        self.at_home(command)
    }

    fn at_home(&self, mut command: Command) -> Command {
        command.env_remove("FILCH_ACCESS").env("FILCH_DIR", self.place.path()).current_dir(self.place.path());
        command
    }

    pub(crate) fn spawn(&mut self, arguments: &[&str]) -> u32 {
        let command = self.command(arguments);
        self.spawn_command(command)
    }

    pub(crate) fn spawn_command(&mut self, mut command: Command) -> u32 {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let id = child.id();
        self.processes.push(child);
        id
    }

    pub(crate) fn worker(&mut self, name: &str, options: &[&str]) -> u32 {
        let id = self.spawn(&[&["worker", "--listen", "127.0.0.1:0", "--name", name], options].concat());
        wait_for("the worker is there", || self.run(&["worker", "show", name]).status.success());
        id
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// What a command that succeeds prints.
    pub(crate) fn told(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.told(arguments)).expect("JSON")
    }

    pub(crate) fn take(&mut self, id: u32) -> Child {
        let at = self.processes.iter().position(|child| child.id() == id).expect("it was started");
        self.processes.remove(at)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what} in a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn ends(mut child: Child) -> Option<i32> {
    let mut status = None;
    wait_for("it ends", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    status.and_then(|status| status.code())
}

/// Sends a signal, such as `INT`, to a process.
pub(crate) fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), process.to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// Whether a process executes something; one that is over and was not waited for does not.
pub(crate) fn runs(process: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    !matches!(stat.rsplit_once(')'), Some((_, rest)) if rest.trim_start().starts_with(['Z', 'X']))
}
