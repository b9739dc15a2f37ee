//! One command from its start to its end, followed by the thread that calls.
//!
//! The pid is valid until the process is waited for, which is the last thing done, so no signal ever reaches a stranger.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use wait4::Wait4;

use super::executor::Order;
use super::{Captured, Command, End, Error, Outcome, Program, Stopped, Stream, Watch, memory, pages};

/// What is read at once, which is also what a pipe holds.
const READ: usize = 64 << 10;
/// What is still read of a stream when the command is over: somebody who left the group may go on writing for ever.
const LAST_READ: usize = 1 << 20;

/// What commands read that are given nothing. Opened once: that takes longer than to copy it.
static NOTHING: OnceLock<File> = OnceLock::new();

/// What a thread needs to follow commands, used again for the next one.
///
/// Every new program is given a copy of each descriptor that this process has, and has to close it, and each slot adds to them. So
/// threads share what they can, and what only a start needs is closed after it.
pub(super) struct Follower {
    buffer: Vec<u8>,
    /// Readable when an order may have changed.
    wake: Arc<OwnedFd>,
}

/// A stream that is captured.
struct Tap {
    pipe: Option<PipeReader>,
    captured: Captured,
}

/// A command that runs.
struct Life<'a> {
    command: &'a Command,
    child: Child,
    group: Pid,
    stdin: Option<ChildStdin>,
    fed: usize,
    taps: [Tap; 2],
    /// Has the ends of the pipes that are written to. While they are open here too, the end of the process is one event and
    /// not first that of its pipes and then its own, which would wake this thread twice.
    ends: Option<std::process::Command>,
    watch: Option<Watch>,
    stopped: Option<Stopped>,
    /// When something must be done if nothing happens: SIGTERM, or after that SIGKILL.
    deadline: Option<Instant>,
}

impl Follower {
    pub(super) fn new(wake: Arc<OwnedFd>) -> Follower {
        Follower { buffer: vec![0; READ], wake }
    }

    /// Runs a command to its end.
    pub(super) fn run(&mut self, command: &Command, watch: Option<Watch>, order: &Order) -> Result<Outcome, Error> {
        let start = Instant::now();
        let stdin = stdin(command).map_err(|source| Error::Start { program: name(command), source })?;
        let mut life = Life::start(command, stdin, watch, start)?;
        let followed = self.follow(&mut life, order);
        // Before the process is waited for: until then the group's number is its own.
        life.signal(Signal::KILL);
        if !matches!(followed, Ok(Last::Silent)) {
            life.last_words(&mut self.buffer);
        }
        let Life { child, taps: [stdout, stderr], stopped, .. } = life;
        let lost = |source| Error::Lost { program: name(command), source };
        let ended = child.wait4().map_err(lost)?;
        followed.map_err(lost)?;
        let end = match (ended.status.code(), ended.status.signal()) {
            (Some(code), _) => End::Exited(code),
            (None, signal) => End::Signalled(signal.unwrap_or(0)),
        };
        Ok(Outcome {
            end,
            stopped,
            stdout: stdout.finish(),
            stderr: stderr.finish(),
            wall: start.elapsed(),
            cpu_user: ended.rusage.utime,
            cpu_system: ended.rusage.stime,
            peak_memory: ended.rusage.maxrss,
            peak_memory_exact: memory::is_exact(ended.rusage.maxrss),
        })
    }

    /// Until the first process has ended and, if it was stopped, the others had their time too.
    fn follow(&mut self, life: &mut Life<'_>, order: &Order) -> io::Result<Last> {
        let pidfd = pidfd_open(life.group, PidfdFlags::empty())?;
        let mut ended = false;
        let mut last = Last::Unknown;
        loop {
            life.obey(order);
            if ended && !life.is_parting() {
                return Ok(last);
            }
            let ready = life.wait(&pidfd, self.wake.as_fd(), ended)?;
            if ready.wake {
                // Empties it; who it was meant for is looked up in the order.
                rustix::io::read(&self.wake, &mut [0; 8])?;
            }
            if ready.stdin {
                life.feed();
            }
            for (tap, readable) in [Stream::Out, Stream::Err].into_iter().zip(ready.taps) {
                if readable {
                    life.read(tap, &mut self.buffer);
                }
            }
            // The streams are looked at after the end, so what the first process wrote before it would be there.
            last = if ready.ended && !ready.taps.contains(&true) { Last::Silent } else { Last::Unknown };
            ended |= ready.ended;
            if life.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                life.insist();
            }
        }
    }
}

/// What is known of the streams when a command is over.
enum Last {
    /// Nothing was left in them when the first process had ended.
    Silent,
    Unknown,
}

/// What can be done without waiting.
#[derive(Default)]
struct Ready {
    ended: bool,
    wake: bool,
    stdin: bool,
    taps: [bool; 2],
}

impl Life<'_> {
    fn start(command: &Command, stdin: Stdio, watch: Option<Watch>, now: Instant) -> Result<Life<'_>, Error> {
        let failed = |source| Error::Start { program: name(command), source };
        let mut prepared = prepare(command);
        let (out, out_end) = io::pipe().map_err(failed)?;
        let (err, err_end) = io::pipe().map_err(failed)?;
        prepared.stdin(stdin).stdout(out_end).stderr(err_end);
        let mut child = pages::as_given(|| prepared.spawn()).map_err(|source| match &command.cwd {
            // The system says "not found" for either; a directory that can be entered is not to blame.
            Some(cwd) if !cwd.is_dir() => Error::Directory { cwd: cwd.clone(), source },
            _ => failed(source),
        })?;
        // It has its own.
        prepared.stdin(Stdio::inherit());
        let stdin = child.stdin.take();
        let set = stdin.as_ref().map_or(Ok(()), |stdin| rustix::io::ioctl_fionbio(stdin, true));
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let Some(group) = group.filter(|_| set.is_ok()) else {
            let unusable = || io::Error::other("its standard input cannot be used");
            drop(child.kill());
            drop(child.wait());
            return Err(failed(set.err().map_or_else(unusable, io::Error::from)));
        };
        let tap = |pipe| Tap { pipe: Some(pipe), captured: Captured::with_limit(command.keep) };
        let deadline = command.timeout.and_then(|timeout| now.checked_add(timeout));
        let taps = [tap(out), tap(err)];
        let ends = Some(prepared);
        Ok(Life { command, child, group, stdin, fed: 0, taps, ends, watch, stopped: None, deadline })
    }

    /// Does what was ordered, once.
    fn obey(&mut self, order: &Order) {
        if order.is_kill() {
            self.stopped.get_or_insert(Stopped::Cancelled);
            self.deadline = None;
            self.ends = None;
            self.signal(Signal::KILL);
        } else if order.is_stop() && self.stopped.is_none() {
            self.stop(Stopped::Cancelled);
        }
    }

    fn stop(&mut self, why: Stopped) {
        self.stopped = Some(why);
        // From now on it matters who else has the pipes.
        self.ends = None;
        self.deadline = Instant::now().checked_add(self.command.grace);
        self.signal(Signal::TERM);
    }

    /// The time is over: asks first, and insists the second time.
    fn insist(&mut self) {
        if self.stopped.is_none() {
            self.stop(Stopped::Timeout);
        } else {
            self.deadline = None;
            self.signal(Signal::KILL);
        }
    }

    /// Whether those who were asked to end still have time, and may be saying goodbye through the pipes they were given.
    fn is_parting(&self) -> bool {
        self.stopped.is_some() && self.deadline.is_some() && self.taps.iter().any(Tap::is_open)
    }

    fn signal(&self, signal: Signal) {
        // The only failure is that nobody is left, which is what a signal is for.
        let _ = kill_process_group(self.group, signal);
    }

    fn wait(&self, pidfd: &OwnedFd, wake: BorrowedFd<'_>, ended: bool) -> io::Result<Ready> {
        let timeout = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|left| timespec(left.saturating_add(Duration::from_millis(1))));
        let mut fds = Vec::with_capacity(5);
        let wake = add(&mut fds, Some(wake), PollFlags::IN);
        let end = add(&mut fds, (!ended).then(|| pidfd.as_fd()), PollFlags::IN);
        let taps = self.taps.each_ref().map(|tap| add(&mut fds, tap.pipe.as_ref().map(AsFd::as_fd), PollFlags::IN));
        let stdin = add(&mut fds, self.stdin.as_ref().map(AsFd::as_fd), PollFlags::OUT);
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let is_ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        Ok(Ready { ended: is_ready(end), wake: is_ready(wake), stdin: is_ready(stdin), taps: taps.map(is_ready) })
    }

    /// Writes to standard input what fits, and closes it after the last byte or when nobody reads it any more.
    fn feed(&mut self) {
        let Some(stdin) = &mut self.stdin else { return };
        match stdin.write(&self.command.stdin[self.fed..]) {
            Ok(written) if self.fed + written < self.command.stdin.len() => self.fed += written,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Ok(_) | Err(_) => self.stdin = None,
        }
    }

    /// Reads once from a stream that has something to say or is at its end.
    fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> usize {
        let tap = &mut self.taps[usize::from(stream == Stream::Err)];
        let Some(pipe) = &mut tap.pipe else { return 0 };
        match pipe.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 1,
            Ok(0) | Err(_) => {
                tap.pipe = None;
                0
            }
            Ok(length) => {
                tap.captured.push(&buffer[..length]);
                if let Some(watch) = &mut self.watch {
                    watch(stream, &buffer[..length]);
                }
                length
            }
        }
    }

    /// What is left in the pipes.
    fn last_words(&mut self, buffer: &mut [u8]) {
        self.ends = None;
        let mut length = 0;
        while length < LAST_READ {
            let mut fds = Vec::with_capacity(2);
            let at = self.taps.each_ref().map(|tap| add(&mut fds, tap.pipe.as_ref().map(AsFd::as_fd), PollFlags::IN));
            if fds.is_empty() || poll(&mut fds, Some(&timespec(Duration::ZERO))).is_err() {
                return;
            }
            let has_more = at.map(|at| at.is_some_and(|at| fds[at].revents().contains(PollFlags::IN)));
            if !has_more.contains(&true) {
                return;
            }
            for (stream, has_more) in [Stream::Out, Stream::Err].into_iter().zip(has_more) {
                if has_more {
                    length += self.read(stream, buffer);
                }
            }
        }
    }
}

impl Tap {
    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    fn finish(mut self) -> Captured {
        self.captured.trim();
        self.captured
    }
}

/// Waits for this too, if it is there; where its answer will be.
fn add<'a>(fds: &mut Vec<PollFd<'a>>, fd: Option<BorrowedFd<'a>>, flags: PollFlags) -> Option<usize> {
    fds.push(PollFd::from_borrowed_fd(fd?, flags));
    Some(fds.len() - 1)
}

fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(span.subsec_nanos()) }
}

fn stdin(command: &Command) -> io::Result<Stdio> {
    if !command.stdin.is_empty() {
        return Ok(Stdio::piped());
    }
    let nothing = match NOTHING.get() {
        Some(nothing) => nothing,
        None => {
            let opened = File::open("/dev/null")?;
            NOTHING.get_or_init(|| opened)
        }
    };
    Ok(nothing.try_clone()?.into())
}

/// What the command is called in errors.
fn name(command: &Command) -> OsString {
    match &command.program {
        Program::Argv { program, .. } => program.clone(),
        Program::Shell(_) => "/bin/sh".into(),
    }
}

fn prepare(command: &Command) -> std::process::Command {
    let limits = ulimits(command);
    let mut prepared = match (&command.program, limits) {
        (Program::Argv { program, arguments }, None) => {
            let mut prepared = std::process::Command::new(program);
            prepared.args(arguments);
            prepared
        }
        (Program::Argv { program, arguments }, Some(limits)) => {
            let mut prepared = std::process::Command::new("/bin/sh");
            prepared.arg("-c").arg(format!("{limits} exec \"$@\"")).arg("sh").arg(program).args(arguments);
            prepared
        }
        (Program::Shell(script), limits) => {
            let mut whole = OsString::from(limits.unwrap_or_default());
            whole.push(script);
            let mut prepared = std::process::Command::new("/bin/sh");
            prepared.arg("-c").arg(whole);
            prepared
        }
    };
    prepared.process_group(0);
    if command.env_clear {
        prepared.env_clear();
    }
    prepared.envs(command.env.iter().map(|(name, value)| (name, value)));
    if let Some(cwd) = &command.cwd {
        prepared.current_dir(cwd);
    }
    prepared
}

/// What a shell does first so that limits hold; 125 is its exit code where the system does not allow them.
fn ulimits(command: &Command) -> Option<String> {
    let memory = command.limits.memory.map(|bytes| format!("ulimit -d {} || exit 125; ", bytes.div_ceil(1024)));
    let cpu_time = command.limits.cpu_time.map(|span| {
        let soft = (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1);
        format!("ulimit -S -t {soft} && ulimit -H -t {} || exit 125; ", soft + 1)
    });
    (memory.is_some() || cpu_time.is_some()).then(|| memory.unwrap_or_default() + &cpu_time.unwrap_or_default())
}
