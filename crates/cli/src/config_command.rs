//! `filch config`: check, show and describe configuration files. Only reads; never writes a file.

use std::fmt::Write as _;
use std::io::Read as _;
use std::process::ExitCode;

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use filch_core::Config;
use filch_core::config::{self, ConfigErrors, Loaded, Problem, Profile};
use serde_json::{Value, json};

use crate::output;

/// Check, show and describe configuration files.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch config check filch.yaml              find mistakes
  filch config show filch.yaml               every setting and where it came from
  filch config show > filch.yaml             start a file from the defaults
  filch config schema > filch.schema.json    completion and checks in editors")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(CheckArgs),
    Show(ShowArgs),
    /// Print the JSON schema of configuration files.
    Schema,
    /// Print the reference of all settings as Markdown.
    Reference,
}

/// Find the mistakes in configuration files.
///
/// Prints every mistake with its line and column to standard error and exits with 2 if there is any.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch config check filch.yaml
  filch config check --json conf/*.yaml
  generate-config | filch config check -")]
struct CheckArgs {
    /// The files; `-` reads standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Print an array of {file, line, column, message, help} to standard output instead.
    #[arg(long)]
    json: bool,
}

/// Print every setting with where its value came from.
///
/// The output is a configuration file itself: YAML with a comment per value. Without a file it shows the defaults.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch config show
  filch config show filch.yaml --profile low_latency
  filch config show filch.yaml --json")]
struct ShowArgs {
    /// The file; `-` reads standard input.
    #[arg(value_name = "FILE")]
    file: Option<String>,
    /// Use this profile, whatever the file says.
    #[arg(long, value_name = "NAME", value_parser = profile_parser())]
    profile: Option<Profile>,
    /// Print an array of {key, value, origin} instead.
    #[arg(long)]
    json: bool,
}

fn profile_parser() -> impl clap::builder::TypedValueParser<Value = Profile> {
    PossibleValuesParser::new(Profile::ALL.map(Profile::name)).try_map(|name| Profile::from_name(&name))
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Check(args) => check(&args),
        Command::Show(args) => show(&args),
        Command::Schema => {
            output::print(&pretty(&config::schema())?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Reference => {
            output::print(&config::reference())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Why a file gave no configuration.
pub(crate) enum Failure {
    Unreadable { file: String, message: String, help: &'static str },
    Wrong(ConfigErrors),
}

fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    if args.files.iter().filter(|file| *file == "-").count() > 1 {
        output::error("standard input (`-`) is named twice, but can be read only once", None);
        return Ok(ExitCode::from(2));
    }
    let mut failures = Vec::new();
    let mut sound = String::new();
    for file in &args.files {
        match load(file, None) {
            Ok(_) => writeln!(sound, "{}: ok", config::printable(label(file)))?,
            Err(failure) => failures.push(failure),
        }
    }
    if args.json {
        let problems: Vec<Value> = failures.iter().flat_map(Failure::to_json).collect();
        output::print(&pretty(&Value::Array(problems))?)?;
    } else {
        failures.iter().for_each(Failure::complain);
        output::print(&sound)?;
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let loaded = match &args.file {
        Some(file) => load(file, args.profile),
        None => Config::from_yaml_with_profile("", "defaults", args.profile).map_err(Failure::Wrong),
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(failure) => {
            failure.complain();
            return Ok(ExitCode::from(2));
        }
    };
    let text = if args.json { pretty(&settings_json(&loaded))? } else { loaded.to_yaml() };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn settings_json(loaded: &Loaded) -> Value {
    let entry = |setting: config::Setting| json!({ "key": setting.key, "value": setting.value, "origin": setting.origin.to_string() });
    loaded.settings().into_iter().map(entry).collect()
}

pub(crate) fn load(file: &str, profile: Option<Profile>) -> Result<Loaded, Failure> {
    let bytes = read(file)?;
    let text = config::decode(&bytes, label(file)).map_err(Failure::Wrong)?;
    Config::from_yaml_with_profile(text, label(file), profile).map_err(Failure::Wrong)
}

/// How messages call a file.
fn label(file: &str) -> &str {
    if file == "-" { "<stdin>" } else { file }
}

fn read(file: &str) -> Result<Vec<u8>, Failure> {
    // One byte more than allowed is enough to know that it is too long, however long it is.
    let limit = config::MAX_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().take(limit).read_to_end(&mut bytes),
        path => std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)),
    };
    read.map(|_| bytes).map_err(|error| Failure::Unreadable {
        file: label(file).to_owned(),
        message: format!("cannot read `{}`: {error}", label(file)),
        help: match error.kind() {
            std::io::ErrorKind::NotFound => "check the path, or start a new file with `filch config show > FILE`",
            std::io::ErrorKind::IsADirectory => "name a file inside that directory",
            _ => "check that you may read it",
        },
    })
}

impl Failure {
    pub(crate) fn complain(&self) {
        match self {
            Failure::Unreadable { message, help, .. } => output::error(message, Some(help)),
            Failure::Wrong(errors) => output::config_errors(errors),
        }
    }

    fn to_json(&self) -> Vec<Value> {
        match self {
            Failure::Unreadable { file, message, help } => {
                vec![json!({ "file": file, "line": null, "column": null, "message": message, "help": help })]
            }
            Failure::Wrong(errors) => {
                errors.problems().iter().map(|problem| problem_json(errors.label(), problem)).collect()
            }
        }
    }
}

fn problem_json(file: &str, problem: &Problem) -> Value {
    let place = problem.place.as_ref();
    json!({
        "file": file,
        "line": place.map(|place| place.line),
        "column": place.map(|place| place.column),
        "message": problem.message,
        "help": problem.help,
    })
}

fn pretty(value: &Value) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(|text| text + "\n")
}
