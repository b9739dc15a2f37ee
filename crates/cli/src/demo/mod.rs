//! `filch demo`: the scenarios of a load balancer's life, in this process, with real worker threads.
//!
//! Every scenario checks what it claims to show; a claim that does not hold makes the command fail.

mod report;
mod scenarios;
mod stage;

use std::process::ExitCode;

use anyhow::Context as _;
use filch_core::config::nearest;
use serde_json::json;

use crate::output;
use report::Report;
use scenarios::{SCENARIOS, Scenario};

/// Runs demonstrations: real worker threads, stealing, failures, priorities, resources.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch demo                     all demonstrations, one after the other
  filch demo hot-spot            one of them
  filch demo --list              what there is
  filch demo churn --seed 7      other random choices
  filch demo hot-spot --json     the figures, for programs")]
pub(crate) struct Args {
    /// The demonstration to run; all of them if none is named.
    name: Option<String>,
    /// Lists the demonstrations, or the one named.
    #[arg(long)]
    list: bool,
    /// Prints JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Seed of the random choices: durations, priorities, who leaves when.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    seed: u64,
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a seed is a whole number from 0 to {}", u64::MAX))
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let chosen: Vec<_> = match &args.name {
        None => SCENARIOS.iter().collect(),
        Some(name) => match SCENARIOS.iter().find(|scenario| scenario.name == name.replace('_', "-")) {
            Some(scenario) => vec![scenario],
            None => {
                output::error(&format!("there is no demonstration named `{name}`"), Some(&meant(name)));
                return Ok(ExitCode::from(2));
            }
        },
    };
    if args.list {
        list(&chosen, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut reports = Vec::new();
    for scenario in chosen {
        let report = scenario.run(args.seed).with_context(|| format!("the demonstration `{}` broke", scenario.name))?;
        if !args.json {
            output::print(&report.render(output::width()))?;
        }
        reports.push(report);
    }
    if args.json {
        let all: Vec<_> = reports.iter().map(Report::to_json).collect();
        let value = if args.name.is_some() { all.into_iter().next().unwrap_or_default() } else { json!(all) };
        output::print(&format!("{value:#}\n"))?;
    } else if reports.len() > 1 {
        output::print(&report::summary(&reports))?;
    }
    let all_hold = reports.iter().all(Report::holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What somebody who wrote that name may have meant.
fn meant(name: &str) -> String {
    let known: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
    match nearest(name, &known) {
        Some(near) => format!("did you mean `{near}`? `filch demo --list` shows all"),
        None => format!("one of {}; see `filch demo --list`", known.join(", ")),
    }
}

fn list(chosen: &[&Scenario], as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let all: Vec<_> =
            chosen.iter().map(|scenario| json!({"name": scenario.name, "shows": scenario.shows})).collect();
        output::print(&format!("{:#}\n", json!(all)))?;
        return Ok(());
    }
    let width = chosen.iter().map(|scenario| scenario.name.len()).max().unwrap_or(0);
    for scenario in chosen {
        output::print(&format!("{:width$}  {}\n", scenario.name, scenario.shows))?;
    }
    Ok(())
}
