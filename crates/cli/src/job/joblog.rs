//! The log of a job as GNU parallel writes it: a line for each task that ended, with tabs between its columns.
//!
//! Lines are appended and handed to the system as tasks end, so a log is whole up to its last line whatever happens to
//! whoever writes it; a last line without its end is left out when the log is read again.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::Usage;
use super::plan::Tasks;
use crate::output;

const HEADER: &str = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";

/// A log that is written.
#[derive(Debug)]
pub(crate) struct JobLog {
    file: File,
    path: PathBuf,
}

/// A task that ended.
#[derive(Clone, Debug)]
pub(crate) struct Line<'a> {
    /// What people call it: its number.
    pub(crate) seq: i64,
    /// Who ran it.
    pub(crate) host: &'a str,
    /// When it began, in seconds since 1970.
    pub(crate) start_s: f64,
    pub(crate) runtime_s: f64,
    /// Bytes it read.
    pub(crate) send: u64,
    /// Bytes it wrote.
    pub(crate) receive: u64,
    /// -1 if it has none.
    pub(crate) exit_code: i32,
    /// 0 if there was none.
    pub(crate) signal: i32,
    pub(crate) command: &'a str,
}

/// What a log says is done, by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done(Vec<bool>);

impl Done {
    pub(crate) fn contains(&self, position: u32) -> bool {
        self.0.get(position as usize).copied().unwrap_or_default()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().filter(|done| **done).count()
    }
}

impl JobLog {
    /// Begins a log; what was in the file is gone.
    pub(crate) fn create(path: &Path) -> Result<JobLog, Usage> {
        let begin = || {
            let mut file = File::create(path)?;
            file.write_all(HEADER.as_bytes())?;
            Ok(JobLog { file, path: path.to_owned() })
        };
        begin().map_err(|error: io::Error| unusable(path, &error))
    }

    /// Goes on with a log of the same job, and tells what is done: what ended with exit code 0.
    pub(crate) fn resume(path: &Path, tasks: &Tasks) -> Result<(JobLog, Done), Usage> {
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            // The first time nothing is done.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((JobLog::create(path)?, Done::default()));
            }
            Err(error) => return Err(unusable(path, &error)),
        };
        let (done, end) = read(&file, path, tasks)?;
        let mut log = JobLog { file, path: path.to_owned() };
        let go_on = |log: &mut JobLog| {
            // What follows is a line that was not finished.
            log.file.set_len(end)?;
            log.file.seek(SeekFrom::Start(end))?;
            if end == 0 { log.file.write_all(HEADER.as_bytes()) } else { Ok(()) }
        };
        go_on(&mut log).map_err(|error| unusable(path, &error))?;
        Ok((log, done))
    }

    /// Adds a task that ended.
    pub(crate) fn append(&mut self, line: &Line<'_>) -> io::Result<()> {
        let Line { seq, host, start_s, runtime_s, send, receive, exit_code, signal, command } = line;
        let text = format!(
            "{seq}\t{host}\t{start_s:.3}\t{runtime_s:10.3}\t{send}\t{receive}\t{exit_code}\t{signal}\t{command}\n"
        );
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|error| output::unwritten(&format!("the log `{}`", self.path.display()), &error))
    }
}

fn unusable(path: &Path, error: &io::Error) -> Usage {
    Usage::new(format!("cannot write the log `{}`: {error}", path.display()))
        .help("--joblog names a file in a directory that exists and that you may write to")
}

/// What is done, and how many bytes of the log are whole lines.
fn read(file: &File, path: &Path, tasks: &Tasks) -> Result<(Done, u64), Usage> {
    let mut reader = BufReader::new(file);
    let mut done = Done(vec![false; tasks.all() as usize]);
    let (mut text, mut end, mut number) = (Vec::new(), 0u64, 0usize);
    loop {
        text.clear();
        let length = reader.read_until(b'\n', &mut text).map_err(|error| unusable(path, &error))?;
        if length == 0 || !text.ends_with(b"\n") {
            return Ok((done, end));
        }
        number += 1;
        let line = String::from_utf8_lossy(&text);
        if number == 1 {
            check_header(&line, path)?;
        } else {
            let about = check_line(line.trim_end_matches('\n'), tasks)
                .map_err(|why| refused(format!("line {number} of `{}` {why}", path.display())))?;
            if let Some((position, succeeded)) = about {
                done.0[position as usize] = succeeded;
            }
        }
        end += length as u64;
    }
}

fn check_header(line: &str, path: &Path) -> Result<(), Usage> {
    if line == HEADER { Ok(()) } else { Err(refused(format!("`{}` is no log of a job", path.display()))) }
}

fn refused(message: String) -> Usage {
    Usage::new(message)
        .help("--resume goes on with a log of the very same job; name another file, or run without --resume")
}

/// The position of the task that a line is about, and whether it ended well; none if it is one of another part of the array.
fn check_line(line: &str, tasks: &Tasks) -> Result<Option<(u32, bool)>, String> {
    let columns: Vec<&str> = line.splitn(9, '\t').collect();
    let [seq, _, _, _, _, _, exit, signal, command] = columns.as_slice() else {
        return Err("does not have nine columns".to_owned());
    };
    let number: i64 = seq.parse().map_err(|_| "does not begin with a number")?;
    let Some(position) = tasks.position_of(number) else {
        // The numbers of an array mean the same whichever of them are asked for; those of a list only count it.
        return if tasks.are_an_array() {
            Ok(None)
        } else {
            Err(format!("is about task {seq}, and this job has {}", tasks.all()))
        };
    };
    let expected = tasks.command(position);
    if *command != expected {
        return Err(format!("is about another command:\n  there {command}\n  here  {expected}"));
    }
    Ok(Some((position, *exit == "0" && *signal == "0")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::job::{JobArgs, Plan, Surroundings};

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        job: JobArgs,
    }

    fn plan(words: &[&str]) -> Plan {
        Args::try_parse_from([&["run"], words].concat()).unwrap().job.plan(&Surroundings::default()).unwrap()
    }

    fn line<'a>(seq: i64, exit_code: i32, command: &'a str) -> Line<'a> {
        Line {
            seq,
            host: "w1",
            start_s: 1_700_000_000.5,
            runtime_s: 0.25,
            send: 0,
            receive: 7,
            exit_code,
            signal: 0,
            command,
        }
    }

    #[test]
    fn what_ended_well_is_done_and_a_torn_line_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let plan = plan(&["--array", "1-4", "--", "echo", "{n}"]);
        let (mut log, done) = JobLog::resume(&path, &plan.tasks).unwrap();
        assert_eq!(done.count(), 0);
        for (seq, code, command) in [(2, 0, "echo 2"), (1, 3, "echo 1"), (3, 1, "echo 3"), (3, 0, "echo 3")] {
            log.append(&line(seq, code, command)).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = format!("{HEADER}2\tw1\t1700000000.500\t     0.250\t0\t7\t0\t0\techo 2\n");
        assert!(text.starts_with(&expected), "{text}");
        // Whoever wrote it died in the middle of a line.
        std::fs::write(&path, format!("{text}4\tw1\t17")).unwrap();
        let (mut log, done) = JobLog::resume(&path, &plan.tasks).unwrap();
        assert_eq!((0..4).map(|position| done.contains(position)).collect::<Vec<_>>(), [false, true, true, false]);
        log.append(&line(4, 0, "echo 4")).unwrap();
        let again = std::fs::read_to_string(&path).unwrap();
        assert_eq!(again.lines().count(), 6, "{again}");
        assert_eq!(JobLog::resume(&path, &plan.tasks).unwrap().1.count(), 3);
    }

    #[test]
    fn logs_of_other_jobs_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = JobLog::create(&path).unwrap();
        log.append(&line(2, 0, "echo 2")).unwrap();
        let other = plan(&["--array", "1-4", "--", "cat", "{n}"]);
        let wrong = JobLog::resume(&path, &other.tasks).unwrap_err().to_string();
        assert!(wrong.contains("line 2 of") && wrong.contains("there echo 2\n  here  cat 2"), "{wrong}");
        let short = plan(&["echo", ":::", "2"]);
        let wrong = JobLog::resume(&path, &short.tasks).unwrap_err().to_string();
        assert!(wrong.contains("is about task 2, and this job has 1"), "{wrong}");
        std::fs::write(&path, "something else\n").unwrap();
        let wrong = JobLog::resume(&path, &short.tasks).unwrap_err().to_string();
        assert!(wrong.contains("is no log of a job"), "{wrong}");
    }
}
