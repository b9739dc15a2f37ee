//! Probes: a command is run, and if what it says matches a pattern, the machine has a capability.

use std::ffi::OsStr;
use std::sync::mpsc;
use std::time::Duration;

use filch_core::config::Probe;
use regex_lite::Regex;
use serde::{Deserialize, Serialize};

use crate::exec::{Command, Executor, Outcome, Stopped};

/// How long a probe may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many run at once.
const AT_ONCE: usize = 4;

/// A capability that was not found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Which, as the probe calls it.
    pub capability: String,
    /// Why not.
    pub why: String,
}

/// A probe with a pattern that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the probe for {capability} has a wrong pattern: {what}")]
pub struct PatternError {
    /// Which probe.
    pub capability: String,
    /// What is wrong with it.
    pub what: String,
}

/// The output of a command, and its errors after it, if it ends with exit code 0; otherwise why not.
pub(super) fn output<'a>(program: &OsStr, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<String, String> {
    let executor = Executor::new(1);
    let (tell, told) = mpsc::channel();
    ask(&executor, Command::argv(program, arguments), move |said| drop(tell.send(said)));
    told.recv().unwrap_or_else(|_| Err("it was not run".to_owned()))
}

fn ask(executor: &Executor, mut command: Command, tell: impl FnOnce(Result<String, String>) + Send + 'static) {
    command.timeout = Some(TIMEOUT);
    command.grace = Duration::from_secs(1);
    let done = move |outcome: Result<Outcome, crate::exec::Error>| {
        tell(match outcome {
            Ok(outcome) if outcome.succeeded() => {
                let mut said = outcome.stdout.into_bytes();
                said.extend(outcome.stderr.into_bytes());
                Ok(String::from_utf8_lossy(&said).into_owned())
            }
            Ok(outcome) if outcome.stopped == Some(Stopped::Timeout) => Err(format!("it took more than {TIMEOUT:?}")),
            Ok(outcome) => Err(format!("it ended with {:?}", outcome.end)),
            Err(error) => Err(error.to_string()),
        });
    };
    executor.start(command, None, Box::new(done)).detach();
}

/// The capabilities that are there, and those that are not, both in the order of the probes.
pub(super) fn run(probes: &[Probe]) -> Result<(Vec<String>, Vec<Missing>), PatternError> {
    let wrong = |probe: &Probe, error: regex_lite::Error| PatternError {
        capability: probe.capability.clone(),
        what: error.to_string(),
    };
    let patterns: Vec<Regex> = probes
        .iter()
        .map(|probe| Regex::new(&probe.pattern).map_err(|error| wrong(probe, error)))
        .collect::<Result<_, _>>()?;
    let executor = Executor::new(AT_ONCE);
    let (tell, told) = mpsc::channel();
    for (number, probe) in probes.iter().enumerate() {
        let tell = tell.clone();
        let Some((program, arguments)) = probe.command.split_first() else {
            drop(tell.send((number, Err("it has no command".to_owned()))));
            continue;
        };
        ask(&executor, Command::argv(program, arguments), move |said| drop(tell.send((number, said))));
    }
    drop(tell);
    let mut answers: Vec<(usize, Result<String, String>)> = told.iter().collect();
    answers.sort_by_key(|(number, _)| *number);
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (number, said) in answers {
        let (probe, pattern) = (&probes[number], &patterns[number]);
        let proved = said.and_then(|said| {
            let groups = pattern.captures(&said).ok_or("what it says does not match")?;
            let mut capability = String::new();
            groups.expand(&probe.capability, &mut capability);
            Ok(capability)
        });
        match proved {
            Ok(capability) => found.push(capability),
            Err(why) => missing.push(Missing { capability: probe.capability.clone(), why }),
        }
    }
    Ok((found, missing))
}
