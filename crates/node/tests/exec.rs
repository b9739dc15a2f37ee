//! Real processes: what they say, how they end, and that nothing of them is left.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::fs;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use filch_node::exec::{Command, End, Error, Executor, Outcome, Running, Stopped, Stream, without_large_pages};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGXCPU: i32 = 24;

/// A command in an executor of its own, and where its outcome will be.
struct Started {
    running: Running,
    told: mpsc::Receiver<Result<Outcome, Error>>,
    lines: mpsc::Receiver<String>,
    _executor: Executor,
}

fn start(command: Command) -> Started {
    let executor = Executor::new(1);
    let (tell, told) = mpsc::channel();
    let (show, lines) = mpsc::channel();
    let watch = Box::new(move |_, bytes: &[u8]| {
        String::from_utf8_lossy(bytes).lines().for_each(|line| drop(show.send(line.to_owned())));
    });
    let running = executor.start(command, Some(watch), Box::new(move |outcome| tell.send(outcome).unwrap()));
    Started { running, told, lines, _executor: executor }
}

impl Started {
    fn outcome(&self) -> Result<Outcome, Error> {
        self.told.recv_timeout(Duration::from_secs(60)).expect("an outcome")
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(60)).expect("a line")
    }
}

fn run(command: Command) -> Outcome {
    start(command).outcome().unwrap()
}

fn text(outcome: &Outcome, stream: Stream) -> String {
    let captured = if stream == Stream::Out { &outcome.stdout } else { &outcome.stderr };
    String::from_utf8(captured.clone().into_bytes()).unwrap()
}

fn out(outcome: &Outcome) -> String {
    text(outcome, Stream::Out)
}

/// Waits until a process is gone or waits to be buried by whoever inherited it.
fn until_gone(pid: &str) {
    let start = Instant::now();
    let alive = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    while alive() {
        assert!(start.elapsed() < Duration::from_secs(60), "process {pid} lives");
        std::thread::yield_now();
    }
}

#[test]
fn arguments_input_environment_and_directory_reach_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().canonicalize().unwrap();
    let mut command =
        Command::argv("/bin/sh", ["-c", "cat; echo \"$1 $NAME\"; pwd; echo oops >&2; exit 7", "sh", "a b"]);
    command.stdin = b"from the input\n".to_vec();
    command.env = vec![("NAME".into(), "of mine".into())];
    command.cwd = Some(here.clone());
    let outcome = run(command);
    assert_eq!(outcome.end, End::Exited(7));
    assert!(!outcome.succeeded());
    assert_eq!(out(&outcome), format!("from the input\na b of mine\n{}\n", here.display()));
    assert_eq!(text(&outcome, Stream::Err), "oops\n");
    let mut command = Command::argv("/usr/bin/env", [""; 0]);
    command.env_clear = true;
    command.env = vec![("ONLY".into(), "this".into())];
    assert_eq!(out(&run(command)), "ONLY=this\n");
    assert_eq!(out(&run(Command::shell("read line; echo got=$line"))), "got=\n", "no input is an empty one");
}

#[test]
fn input_of_any_length_is_given_and_may_be_left_unread() {
    let mut command = Command::argv("wc", ["-c"]);
    command.stdin = vec![b'x'; 3 << 20];
    assert_eq!(out(&run(command.clone())).trim(), (3 << 20).to_string());
    command.program = Command::shell("exit 3").program;
    assert_eq!(run(command).end, End::Exited(3));
    // Both directions at once: more than the pipes hold.
    let mut command = Command::argv("cat", [""; 0]);
    command.stdin = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    command.keep = 2 << 20;
    let stdin = command.stdin.clone();
    assert_eq!(run(command).stdout.into_bytes(), stdin);
}

#[test]
fn too_much_output_is_kept_at_both_ends_with_a_notice() {
    let mut command = Command::shell("seq 1 200000; seq 1 9 >&2");
    command.keep = 100;
    let outcome = run(command);
    let kept = out(&outcome);
    assert!(kept.starts_with("1\n2\n3\n"), "{kept}");
    assert!(kept.ends_with("199999\n200000\n"), "{kept}");
    let notice = format!("[filch: {} bytes left out]\n", outcome.stdout.left_out());
    assert!(kept.contains(&notice), "{kept}");
    assert_eq!(kept.len(), 100 + notice.len() + usize::from(!kept[..50].ends_with('\n')));
    assert_eq!(outcome.stdout.total(), 1_288_895);
    assert_eq!(text(&outcome, Stream::Err).lines().count(), 9, "the other stream has room of its own");
}

#[test]
fn output_is_shown_while_the_command_runs() {
    let started = start(Command::shell("echo ready; read line; echo never"));
    assert_eq!(started.line(), "ready");
    started.running.kill();
    // `read` finds its input empty, so the command may just have ended by itself.
    let outcome = started.outcome().unwrap();
    assert!(out(&outcome).starts_with("ready\n"));
}

#[test]
fn a_timeout_asks_first_and_insists_when_the_grace_is_over() {
    let mut command = Command::shell("trap 'echo asked; exit 5' TERM; echo up; while :; do sleep 0.01; done");
    command.timeout = Some(Duration::from_millis(300));
    command.grace = Duration::from_secs(60);
    let outcome = run(command.clone());
    assert_eq!((outcome.end, outcome.stopped), (End::Exited(5), Some(Stopped::Timeout)));
    assert_eq!(out(&outcome), "up\nasked\n");
    assert!(outcome.wall >= Duration::from_millis(300) && outcome.wall < Duration::from_secs(50), "{:?}", outcome.wall);
    command.program = Command::shell("trap '' TERM; while :; do sleep 0.01; done").program;
    command.grace = Duration::from_millis(200);
    let outcome = run(command);
    assert_eq!((outcome.end, outcome.stopped), (End::Signalled(SIGKILL), Some(Stopped::Timeout)));
    assert!(outcome.wall >= Duration::from_millis(500));
    let mut command = Command::shell("exit 0");
    command.timeout = Some(Duration::from_secs(60));
    assert!(run(command).succeeded());
}

#[test]
fn stopping_reaches_the_whole_group_and_lets_it_say_goodbye() {
    // The first process dies of the signal at once; its child needs a moment.
    let child = "trap 'sleep 0.2; echo goodbye; exit' TERM; echo child; while :; do sleep 0.01; done";
    let started = start(Command::shell(format!("sh -c \"{child}\" & echo $!; wait")));
    let (one, two) = (started.line(), started.line());
    let pid = if one == "child" { two } else { one };
    started.running.stop();
    let outcome = started.outcome().unwrap();
    assert_eq!((outcome.end, outcome.stopped), (End::Signalled(SIGTERM), Some(Stopped::Cancelled)));
    assert!(out(&outcome).ends_with("goodbye\n"), "{}", out(&outcome));
    until_gone(&pid);
}

#[test]
fn nothing_of_a_group_is_left_when_it_is_killed_dropped_or_over() {
    let script = "trap '' TERM; sleep 1000 & echo $!; wait";
    let started = start(Command::shell(script));
    let pid = started.line();
    started.running.kill();
    assert_eq!(started.outcome().unwrap().end, End::Signalled(SIGKILL));
    until_gone(&pid);

    let Started { running, told, lines, _executor } = start(Command::shell(script));
    let pid = lines.recv().unwrap();
    drop(running);
    assert_eq!(told.recv().unwrap().unwrap().end, End::Signalled(SIGKILL));
    until_gone(&pid);

    let Started { running, told, lines, _executor } = start(Command::shell(script));
    let pid = lines.recv().unwrap();
    running.detach();
    drop(_executor);
    assert_eq!(told.recv().unwrap().unwrap().stopped, Some(Stopped::Cancelled));
    until_gone(&pid);

    let started = start(Command::shell("sleep 1000 & echo $!"));
    let pid = started.line();
    let outcome = started.outcome().unwrap();
    assert!(outcome.succeeded(), "the end of the first process is the end");
    until_gone(&pid);
}

#[test]
fn somebody_who_left_the_group_and_keeps_the_pipes_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("left").display().to_string();
    let script = "setsid sh -c 'echo $$; touch LEFT; exec sleep 1000' & until [ -e LEFT ]; do sleep 0.01; done; exit 4";
    let started = start(Command::shell(script.replace("LEFT", &left)));
    let pid = started.line();
    assert_eq!(started.outcome().unwrap().end, End::Exited(4));
    let killed = std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
    assert!(killed.success(), "it had left, so it lives");
    // The same when it is stopped: the grace is waited for, and no longer.
    let mut command = Command::shell("setsid sh -c 'echo $$; exec sleep 1000' & sleep 1000");
    command.grace = Duration::from_millis(100);
    let started = start(command);
    let pid = started.line();
    started.running.stop();
    assert_eq!(started.outcome().unwrap().stopped, Some(Stopped::Cancelled));
    std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
}

#[test]
fn what_cannot_be_started_says_why() {
    let missing = start(Command::argv("/no/such/program", [""; 0])).outcome().unwrap_err();
    assert!(missing.to_string().starts_with("cannot start /no/such/program: No such file"), "{missing}");
    let mut command = Command::shell("true");
    command.cwd = Some("/no/such/place".into());
    let nowhere = start(command).outcome().unwrap_err();
    assert!(matches!(nowhere, Error::Directory { .. }), "{nowhere}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = start(Command::argv(file.path(), [""; 0])).outcome().unwrap_err();
    assert!(refused.to_string().contains("ermission denied"), "{refused}");
}

#[test]
fn memory_and_processor_time_are_limited_and_recorded() {
    let mut command = Command::argv("dd", ["if=/dev/zero", "of=/dev/null", "bs=300M", "count=1"]);
    let outcome = run(command.clone());
    assert!(outcome.succeeded(), "{}", text(&outcome, Stream::Err));
    assert!(outcome.peak_memory > 300 << 20 && outcome.peak_memory_exact, "{}", outcome.peak_memory);
    command.limits.memory = Some(100 << 20);
    let outcome = run(command);
    assert_eq!(outcome.end, End::Exited(1));
    assert!(text(&outcome, Stream::Err).contains("memory exhausted"), "{}", text(&outcome, Stream::Err));
    for program in [Command::shell("while :; do :; done"), Command::argv("sh", ["-c", "while :; do :; done"])] {
        let mut command = program;
        command.limits.cpu_time = Some(Duration::from_millis(500));
        let outcome = run(command);
        assert_eq!(outcome.end, End::Signalled(SIGXCPU), "rounded up to a second");
        let cpu = outcome.cpu_user + outcome.cpu_system;
        assert!(cpu >= Duration::from_millis(500) && cpu < Duration::from_secs(2), "{cpu:?}");
    }
}

#[test]
fn a_small_commands_memory_is_not_taken_for_ours() {
    let ours = vec![1_u8; 200 << 20];
    let outcome = run(Command::argv("/bin/true", [""; 0]));
    assert!(!outcome.peak_memory_exact || outcome.peak_memory < 100 << 20, "{}", outcome.peak_memory);
    assert_eq!(ours[ours.len() - 1], 1);
}

#[test]
fn no_more_run_at_once_than_there_are_slots_and_cancelled_ones_never_start() {
    let executor = Executor::new(2);
    let dir = tempfile::tempdir().unwrap();
    let script =
        |name: usize| format!("mkdir {0}/{name}; ls {0} | wc -l; sleep 0.05; rmdir {0}/{name}", dir.path().display());
    let (tell, told) = mpsc::channel();
    let mut running = Vec::new();
    for name in 0..20 {
        let tell = tell.clone();
        let done = Box::new(move |outcome: Result<Outcome, Error>| tell.send((name, outcome)).unwrap());
        running.push(executor.start(Command::shell(script(name)), None, done));
    }
    running[19].stop();
    let mut most = 0;
    for (name, outcome) in told.iter().take(20) {
        match outcome {
            Ok(outcome) => most = most.max(out(&outcome).trim().parse::<u32>().unwrap()),
            Err(error) => assert!(name == 19 && matches!(error, Error::Cancelled), "{name}: {error}"),
        }
    }
    assert_eq!(most, 2);
}

#[test]
fn a_callback_may_start_the_next_command() {
    let executor = Arc::new(Executor::new(1));
    let (tell, told) = mpsc::channel();
    fn next(executor: &Arc<Executor>, left: u32, tell: mpsc::Sender<u32>) {
        let again = Arc::clone(executor);
        let done = Box::new(move |outcome: Result<Outcome, Error>| {
            assert!(outcome.unwrap().succeeded());
            tell.send(left).unwrap();
            if left > 0 {
                next(&again, left - 1, tell);
            }
        });
        executor.start(Command::argv("/bin/true", [""; 0]), None, done).detach();
    }
    next(&executor, 50, tell);
    assert_eq!(told.iter().count(), 51);
}

#[test]
fn file_descriptors_are_given_back() {
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let executor = Executor::new(2);
    let mut counts = Vec::new();
    for _ in 0..3 {
        let (tell, told) = mpsc::channel();
        for _ in 0..50 {
            let mut command = Command::argv("cat", [""; 0]);
            command.stdin = b"x".to_vec();
            let tell = tell.clone();
            executor.start(command, None, Box::new(move |outcome| tell.send(outcome).unwrap())).detach();
        }
        drop(tell);
        assert!(told.iter().all(|outcome| outcome.unwrap().succeeded()));
        counts.push(open());
    }
    // Other tests of this program open files too; a leak would be a hundred and more each time.
    assert!(counts[2] < counts[0] + 100, "{counts:?}");
}

/// Whether a process may have large pages, as the system says in its status; none where it does not say.
fn large_pages(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).map(str::trim)
}

#[test]
fn who_goes_without_large_pages_starts_programs_that_have_them() {
    let own = || fs::read_to_string("/proc/self/status").unwrap_or_default();
    if large_pages(&own()) != Some("1") {
        println!("skipped: this system does not say who has large pages, or they are off");
        return;
    }
    without_large_pages();
    let executor = Executor::new(4);
    let (tell, told) = mpsc::channel();
    for _ in 0..40 {
        let tell = tell.clone();
        let done = Box::new(move |outcome: Result<Outcome, Error>| tell.send(outcome).unwrap());
        executor.start(Command::argv("cat", ["/proc/self/status"]), None, done).detach();
    }
    for _ in 0..40 {
        let outcome = told.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(large_pages(&out(&outcome)), Some("1"));
    }
    // Other tests start programs too, and while they do it is taken back.
    let start = Instant::now();
    while large_pages(&own()) != Some("0") {
        assert!(start.elapsed() < Duration::from_secs(60), "this process still has large pages");
        std::thread::yield_now();
    }
}
