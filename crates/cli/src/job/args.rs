//! The options that describe a job, and the job that they describe.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use filch_core::wire::talk::{self, InputSort, Work};

use super::amounts::{Resource, Variable};
use super::command::{self, Command};
use super::inputs::{self, Inputs, Range};
use super::plan::{Alike, Plan};
use super::terms::TermArgs;
use super::{Refusal, Usage, file};

/// The most that one task may carry; the coordinator refuses more.
const LARGEST_WORK: usize = 1 << 20;

/// What is to be done, for whom, and on what terms.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct JobArgs {
    /// The command that a task runs. Put `--` before it.
    ///
    /// In its words, {} stands for the input of a task (its number if it has none), {n} for its number, {i} for its position
    /// from 0, {field} for a field of its JSON input; {.} {/} {//} {/.} are parts of an input that is a path. If there are
    /// inputs and none of these, the input is the last argument. A word `:::` begins a list of inputs, as in GNU parallel.
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
    /// One task for each number from A to B.
    #[arg(
        long,
        short = 'a',
        value_name = "A-B[:STEP]",
        allow_hyphen_values = true,
        help_heading = "What is run",
        group = "each"
    )]
    array: Option<Range>,
    /// One task for each line of a file; `-` reads standard input.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "What is run", group = "each")]
    each_line: Option<PathBuf>,
    /// One task for each value of a JSON array, or of a file with one value a line; `-` reads standard input.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "What is run", group = "each")]
    each_json: Option<PathBuf>,
    /// The command is a script for the shell; what is filled in is quoted.
    #[arg(long, help_heading = "What is run")]
    shell: bool,
    /// A graph of tasks from a job file (docs/jobs.md) instead of a command.
    #[arg(long, short = 'f', value_name = "JOB.yaml", value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["each", "command", "shell", "stdin"], help_heading = "What is run")]
    file: Option<PathBuf>,
    /// A variable of the environment; without a value it is taken from here. Can be repeated.
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "What is run")]
    env: Vec<Variable>,
    /// The directory to run in.
    #[arg(long, visible_alias = "wd", value_name = "DIR", value_hint = clap::ValueHint::DirPath, help_heading = "What is run")]
    cwd: Option<PathBuf>,
    /// A file that every task reads from its standard input; `-` passes on ours.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "What is run")]
    stdin: Option<PathBuf>,
    /// What the job is called; the name of its program if nothing is said.
    #[arg(long, value_name = "NAME", help_heading = "What it is")]
    name: Option<String>,
    /// An amount of a named resource that a task takes; can be repeated.
    #[arg(long = "resource", value_name = "NAME=N", help_heading = "What a task needs")]
    resources: Vec<Resource>,
    #[command(flatten)]
    pub(crate) terms: TermArgs,
}

/// What a job gets from where it is submitted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// Where tasks run that do not say it; where their worker runs, without.
    pub(crate) cwd: Option<PathBuf>,
    /// Terms that nobody set.
    pub(crate) terms: TermArgs,
}

/// What all tasks of a job share beside their terms.
pub(super) struct Shared {
    pub(super) env: Vec<talk::Variable>,
    pub(super) cwd: Option<Bytes>,
    pub(super) resources: Vec<(String, f64)>,
}

pub(super) fn variable(name: &str, value: impl AsRef<[u8]>) -> talk::Variable {
    talk::Variable { name: Bytes::copy_from_slice(name.as_bytes()), value: Bytes::copy_from_slice(value.as_ref()) }
}

impl JobArgs {
    /// The job that these options describe.
    pub(crate) fn plan(&self, around: &Surroundings) -> Result<Plan, Refusal> {
        let terms = self.terms.clone().or(&around.terms);
        if let Some((option, why)) = terms.wrong().into_iter().next() {
            return Err(Usage::new(format!("--{}: {why}", option.replace('_', "-"))).into());
        }
        let shared = self.shared(around)?;
        let plan = match &self.file {
            Some(path) => file::plan(path, &terms, &shared, self.name.as_deref())?,
            None => self.alike(&terms, &shared)?,
        };
        plan.check_weight()?;
        Ok(plan)
    }

    fn shared(&self, around: &Surroundings) -> Result<Shared, Usage> {
        let cwd = match (&self.cwd, &around.cwd) {
            (Some(given), Some(base)) => Some(base.join(given)),
            (Some(given), None) if given.is_relative() => {
                let here = std::env::current_dir()
                    .map_err(|error| Usage::new(format!("cannot tell where this is: {error}")))?;
                Some(here.join(given))
            }
            (given, base) => given.clone().or_else(|| base.clone()),
        };
        Ok(Shared {
            env: self.env.iter().map(|one| variable(&one.name, &one.value)).collect(),
            cwd: cwd.map(|cwd| Bytes::copy_from_slice(cwd.as_os_str().as_bytes())),
            resources: self.resources.iter().map(|one| (one.name.clone(), one.amount)).collect(),
        })
    }

    /// Tasks that are all alike.
    fn alike(&self, terms: &TermArgs, shared: &Shared) -> Result<Plan, Usage> {
        let (words, listed) = self.words()?;
        let inputs = self.inputs(listed)?;
        let sort = inputs.as_ref().map_or(InputSort::Bytes, |inputs| inputs.sort);
        let many = inputs.is_some() || self.array.is_some();
        let mut command = Command::new(words, self.shell);
        if inputs.is_some() && !command.has_placeholder() {
            command.append_input();
        }
        if many {
            command::check(&command, inputs.as_ref())?;
        }
        let Range { first, step, count } = self.range(inputs.as_ref())?;
        let mut work = Work {
            program: Some(command.program()),
            env: shared.env.clone(),
            cwd: shared.cwd.clone(),
            stdin: self.stdin()?,
            placeholders: many,
            input: sort as i32,
            first,
            step,
            ..Work::default()
        };
        terms.limit(&mut work);
        let name = self.name.clone().unwrap_or_else(|| command.kind());
        let alike = Alike { command, work, terms: terms.terms("", &shared.resources), first, step, count, inputs };
        Ok(Plan::alike(name, alike))
    }

    /// The words of the command, and the inputs that follow `:::`.
    fn words(&self) -> Result<(Vec<Bytes>, Option<Inputs>), Usage> {
        let usage = "put the command after `--`, such as `filch run --array 1-10 -- echo {}`";
        let mut parts = self.command.split(|word| word == ":::");
        let words = parts.next().unwrap_or_default();
        let inputs = parts.next();
        if parts.next().is_some() {
            return Err(Usage::new("`:::` stands twice in the command")
                .help("combinations of several lists are not made; give one list"));
        }
        let bytes = |words: &[OsString]| words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        match words {
            [] => return Err(Usage::new("there is no command to run").help(usage)),
            [first, ..] if first.is_empty() => return Err(Usage::new("the name of the program is empty").help(usage)),
            _ => {}
        }
        let inputs: Option<Vec<Bytes>> = inputs.map(bytes);
        if inputs.as_ref().is_some_and(Vec::is_empty) {
            return Err(Usage::new("no inputs follow `:::`: there is nothing to run"));
        }
        Ok((bytes(words), inputs.map(|each| Inputs { sort: InputSort::Line, each })))
    }

    fn inputs(&self, listed: Option<Inputs>) -> Result<Option<Inputs>, Usage> {
        if listed.is_some() && (self.array.is_some() || self.each_line.is_some() || self.each_json.is_some()) {
            return Err(Usage::new("inputs follow `:::`, and an option gives others").help("take one of the two out"));
        }
        let both = [&self.each_line, &self.each_json, &self.stdin]
            .into_iter()
            .flatten()
            .filter(|path| path.as_os_str() == "-");
        if both.count() > 1 {
            return Err(Usage::new("standard input (`-`) is named twice, but can be read only once"));
        }
        match (&self.each_line, &self.each_json) {
            (Some(path), _) => inputs::lines(path).map(Some),
            (_, Some(path)) => inputs::json(path).map(Some),
            _ => Ok(listed),
        }
    }

    /// The numbers of the tasks.
    fn range(&self, inputs: Option<&Inputs>) -> Result<Range, Usage> {
        let counted = match inputs {
            None => return Ok(self.array.unwrap_or(Range { first: 1, step: 1, count: 1 })),
            Some(inputs) => inputs.each.len(),
        };
        let count = u32::try_from(counted).map_err(|_| Usage::new(format!("a job has at most {} tasks", u32::MAX)))?;
        Ok(Range { first: 1, step: 1, count })
    }

    fn stdin(&self) -> Result<Bytes, Usage> {
        self.stdin.as_ref().map_or_else(|| Ok(Bytes::new()), |path| read_stdin(path, "--stdin"))
    }
}

/// What a task reads, from a file; less than all that it may carry.
pub(super) fn read_stdin(path: &Path, option: &str) -> Result<Bytes, Usage> {
    let most = LARGEST_WORK - (64 << 10);
    let bytes = inputs::read(path, option, most)?;
    if bytes.len() > most {
        let message = format!("{} has more than {} KiB, and a task carries no more", inputs::label(path), most >> 10);
        return Err(
            Usage::new(message).help("let the command read the file itself, such as with `--shell 'command < file'`")
        );
    }
    Ok(Bytes::from(bytes))
}
