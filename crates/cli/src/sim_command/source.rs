//! Where a simulation comes from: a scenario that comes with filch or a file, with what the command line changes in it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::process::ExitCode;

use filch_core::config::{self, nearest};
use filch_sim::scenario::{BUILTINS, Unset};
use filch_sim::trace::{self, Imported};
use filch_sim::workload::Workload;
use filch_sim::{Scenario, Setting};

use crate::job::Usage;
use crate::output;

/// What to simulate.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SourceArgs {
    /// A scenario (`filch sim list`), a scenario file, or a recorded workload: filch trace v1, WfCommons or SWF, plain or
    /// gzipped.
    #[arg(value_name = "NAME|FILE.yaml|TRACE", value_hint = clap::ValueHint::FilePath)]
    what: String,
    /// One of the further clusters that a trace names; without it, the one that the trace suggests.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Placement policy.
    #[arg(long, value_name = "P")]
    pub(crate) policy: Option<String>,
    /// Whom thieves ask.
    #[arg(long, value_name = "V")]
    pub(crate) victim: Option<String>,
    /// How many workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    workers: Option<u32>,
    /// How long a message takes one way, such as 20ms.
    #[arg(long, value_name = "D")]
    latency: Option<String>,
}

/// What only whole numbers can be said of, although a scenario may say nothing of it.
const COUNTED: [&str; 3] = ["workers", "workload.tasks", "workload.per_worker"];

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    scenario: Scenario,
}

impl Source {
    pub(crate) fn name(&self) -> &str {
        &self.scenario.name
    }

    pub(crate) fn make(&self, seed: u64) -> (Setting, Workload) {
        self.scenario.make(seed)
    }

    pub(crate) fn set(&mut self, path: &str, value: &str) -> Result<(), Unset> {
        let refuse = |message: String| Unset { message, help: None };
        if self.scenario.is_recorded() && (path.starts_with("workload.") || path == "trace.file") {
            return Err(refuse(format!("`{path}` changes nothing: the work comes from a trace")));
        }
        if path == "workers" {
            let count = value.parse().map_err(|_| refuse(format!("`{value}` is no number of workers")))?;
            self.scenario.set_workers(count);
            return Ok(());
        }
        self.scenario.set(path, value)
    }

    /// Whether the value at a path can only be a whole number.
    pub(crate) fn is_counted(&self, path: &str) -> bool {
        COUNTED.contains(&path) || self.scenario.is_counted(path)
    }
}

impl SourceArgs {
    /// Reads it. The status to exit with if it is wrong, after saying so.
    pub(crate) fn read(&self) -> anyhow::Result<Result<Source, ExitCode>> {
        let mut scenario = match self.find()? {
            Ok(scenario) => scenario,
            Err(status) => return Ok(Err(status)),
        };
        if let Some(workers) = self.workers {
            scenario.set_workers(workers);
        }
        let word = |option: &Option<String>| option.as_ref().map(|text| text.replace('-', "_"));
        let settings = [("scheduling", "policy", word(&self.policy)), ("stealing", "strategy", word(&self.victim))];
        for (section, key, value) in settings {
            let Some(value) = value else { continue };
            if let Err(errors) = scenario.override_setting(section, key, &value) {
                output::config_errors(&errors);
                return Ok(Err(ExitCode::from(2)));
            }
        }
        let mut source = Source { scenario };
        if let Some(latency) = &self.latency
            && let Err(Unset { message, help }) = source.set("network.latency", latency)
        {
            output::error(&message, help.as_deref().or(Some("a duration such as 500us, 20ms or 1s")));
            return Ok(Err(ExitCode::from(2)));
        }
        Ok(Ok(source))
    }
}

impl SourceArgs {
    fn find(&self) -> anyhow::Result<Result<Scenario, ExitCode>> {
        if let Some(scenario) = Scenario::builtin(&self.what) {
            return Ok(self.only_for_traces().map_or(Ok(scenario), Err));
        }
        let path = Path::new(&self.what);
        if !names_a_file(&self.what) && !path.is_file() {
            let known: Vec<_> = BUILTINS.iter().map(|builtin| builtin.name).collect();
            let help = match nearest(&self.what, &known) {
                Some(near) => format!("did you mean `{near}`? `filch sim list` shows all"),
                None => "`filch sim list` shows them; a file ends with .yaml, .jsonl, .json or .swf".to_owned(),
            };
            output::error(&format!("there is no scenario named `{}`", self.what), Some(&help));
            return Ok(Err(ExitCode::from(2)));
        }
        let mut start = Vec::new();
        let cannot = |error: std::io::Error| {
            let help = "check the path; `filch sim list` shows the scenarios that come with filch";
            Usage::new(format!("cannot read `{}`: {error}", self.what)).help(help)
        };
        let kind = std::fs::metadata(path).map_err(cannot)?.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            // Some of them have no end.
            output::error(&format!("`{}` is a device and no file", self.what), None);
            return Ok(Err(ExitCode::from(2)));
        }
        File::open(path).and_then(|file| file.take(64).read_to_end(&mut start)).map_err(cannot)?;
        if trace::is_trace(&self.what, &start) {
            return Ok(self.find_trace(path));
        }
        let bytes = std::fs::read(path).map_err(cannot)?;
        let read = config::decode(&bytes, &self.what).and_then(|text| Scenario::from_yaml(text, &self.what));
        let mut scenario = match read {
            Ok(scenario) => scenario,
            Err(errors) => {
                output::config_errors(&errors);
                return Ok(Err(ExitCode::from(2)));
            }
        };
        let Some(recording) = &mut scenario.trace else {
            return Ok(self.only_for_traces().map_or(Ok(scenario), Err));
        };
        if self.cluster.is_some() {
            recording.cluster.clone_from(&self.cluster);
            scenario.cluster.clear();
        }
        let file = path.parent().unwrap_or(Path::new("")).join(&recording.file);
        let imported = match read_trace(&file) {
            Ok(imported) => imported,
            Err(status) => return Ok(Err(status)),
        };
        if let Err(problem) = scenario.adopt(imported) {
            output::error(&format!("{}: {problem}", self.what), None);
            return Ok(Err(ExitCode::from(2)));
        }
        Ok(Ok(scenario))
    }

    fn find_trace(&self, path: &Path) -> Result<Scenario, ExitCode> {
        let imported = read_trace(path)?;
        Scenario::of_trace(&self.what, self.cluster.as_deref(), imported).map_err(|problem| {
            output::error(&format!("{}: {problem}", self.what), None);
            ExitCode::from(2)
        })
    }

    /// The status to exit with if an option is there that says nothing about a scenario.
    fn only_for_traces(&self) -> Option<ExitCode> {
        self.cluster.as_ref().map(|_| {
            output::error(
                "--cluster chooses one of the clusters of a trace",
                Some("--workers changes how many there are"),
            );
            ExitCode::from(2)
        })
    }
}

/// Whether an argument is meant as a file, whether it is there or not.
fn names_a_file(what: &str) -> bool {
    let lower = what.to_ascii_lowercase();
    let ends = [".yaml", ".yml", ".jsonl", ".json", ".swf", ".gz"];
    what.contains('/') || ends.iter().any(|end| lower.ends_with(end))
}

fn read_trace(path: &Path) -> Result<Imported, ExitCode> {
    let label = path.to_string_lossy();
    let open = || File::open(path).map(|file| Box::new(file) as Box<dyn Read>);
    trace::read(&open, &label).map_err(|errors| {
        output::config_errors(&errors);
        ExitCode::from(2)
    })
}

/// The whole path of a value that has a short name on the command line.
pub(crate) fn full_path(path: &str) -> String {
    match path {
        "latency" | "loss" | "duplication" => format!("network.{path}"),
        "arrivals" | "repeat" => format!("trace.{path}"),
        "tasks" | "per_worker" | "work" | "typical" | "sigma" | "pushed_to" | "rate" => format!("workload.{path}"),
        _ => path.to_owned(),
    }
}

/// The values of `a,b,c`, or so many from `a` to `b` of `a..b`, each by the same factor larger than the one before.
pub(crate) fn values(text: &str, steps: u32) -> Result<Vec<String>, String> {
    let Some((first, last)) = text.split_once("..") else {
        let listed: Vec<String> = text.split(',').map(|value| value.trim().to_owned()).collect();
        return if listed.iter().any(String::is_empty) { Err(format!("`{text}` has no value")) } else { Ok(listed) };
    };
    let split = |text: &str| {
        let text = text.trim();
        let at = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
        (text[..at].parse::<f64>().ok().filter(|number| number.is_finite()), text[at..].to_owned())
    };
    let ((Some(from), unit), (Some(to), last_unit)) = (split(first), split(last)) else {
        return Err(format!("`{text}` is no range"));
    };
    if unit != last_unit {
        // Spans of different units: through seconds.
        let seconds = |text: &str| config::span::parse(text.trim()).map(|span| span.as_secs_f64());
        let (from, to) = (seconds(first)?, seconds(last)?);
        return Ok(between(from, to, steps).into_iter().map(|value| format!("{value}s")).collect());
    }
    Ok(between(from, to, steps).into_iter().map(|value| format!("{value}{unit}")).collect())
}

/// The values of a range of what is counted: whole numbers, each once.
pub(crate) fn whole(values: Vec<String>) -> Vec<String> {
    let rounded = |text: String| text.parse::<f64>().map_or(text, |number| number.round().to_string());
    let mut values: Vec<String> = values.into_iter().map(rounded).collect();
    values.dedup();
    values
}

fn between(from: f64, to: f64, steps: u32) -> Vec<f64> {
    let last = f64::from(steps.max(2) - 1);
    // To six digits, however small it is.
    let round = |value: f64| format!("{value:.5e}").parse::<f64>().unwrap_or(value);
    (0..steps.max(2))
        .map(|step| {
            let share = f64::from(step) / last;
            let value =
                if from > 0.0 && to > 0.0 { from * (to / from).powf(share) } else { from + (to - from) * share };
            round(value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_lists_are_read() {
        assert_eq!(values("1,2, 4", 9).unwrap(), ["1", "2", "4"]);
        assert_eq!(values("1ms..100ms", 3).unwrap(), ["1ms", "10ms", "100ms"]);
        assert_eq!(values("100ms..10s", 3).unwrap(), ["0.1s", "1s", "10s"]);
        assert_eq!(values("0..1", 3).unwrap(), ["0", "0.5", "1"]);
        assert_eq!(values("10us..1s", 2).unwrap(), ["0.00001s", "1s"]);
        assert_eq!(whole(values("10..100", 3).unwrap()), ["10", "32", "100"]);
        assert_eq!(whole(values("1..2", 5).unwrap()), ["1", "2"]);
        for wrong in ["", "1,,2", "a..b", "1..", "1ms..2parsec"] {
            assert!(values(wrong, 3).is_err(), "{wrong}");
        }
    }
}
