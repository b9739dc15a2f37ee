//! `filch sim`: whole clusters in virtual time. Arguments and output only; the worlds are those of `filch-sim`.

mod chart;
mod files;
mod source;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::Subcommand;
use comfy_table::Table;
use filch_core::Time;
use filch_sim::fuzz::{self, Verdict};
use filch_sim::scenario::Unset;
use filch_sim::{Outcome, World};
use serde_json::json;

use crate::output;
use files::FileArgs;
use source::{Source, SourceArgs};

/// Simulate clusters with the very code that runs them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch sim list                                        the scenarios there are
  filch sim run hot-spot                                run one of them
  filch sim run scaling --workers 1000 --json           the figures, for programs
  filch sim run my-scenario.yaml --seed 7 --log         a scenario of your own, event by event
  filch sim run jobs.jsonl.gz --report jobs.html        a recorded workload, with a page about it
  filch sim compare quality --victims random,power_of_two --seeds 10
  filch sim sweep hot-spot --vary network.latency=1ms..100ms
  filch sim sweep hot-spot --vary config.stealing.take=one,half,enough
  filch sim fuzz --seeds 1000                           random clusters, work and faults; every invariant checked")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(RunArgs),
    Compare(CompareArgs),
    Sweep(SweepArgs),
    Fuzz(FuzzArgs),
    List(ListArgs),
}

/// Play one scenario or a recorded workload, and say how it went.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch sim run hot-spot --gantt hot-spot.svg             who ran what, as a picture
  filch sim run worker-churn --report churn.html          a page with everything
  filch sim run spawning --trace spawning.json            for ui.perfetto.dev or chrome://tracing
  filch sim run jobs.jsonl.gz --workers 32 --json         a recorded workload on another cluster
  filch sim run log.swf.gz --export log.jsonl.gz          the same workload as filch trace v1")]
struct RunArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Print what happens, line by line.
    #[arg(long, conflicts_with = "json")]
    log: bool,
    #[command(flatten)]
    files: FileArgs,
}

/// Play the same scenarios under several policies or victim strategies, over several seeds.
#[derive(Debug, clap::Args)]
struct CompareArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Placement policies to compare.
    #[arg(long, value_delimiter = ',', value_name = "A,B,…")]
    policies: Vec<String>,
    /// Victim strategies to compare.
    #[arg(long, value_delimiter = ',', value_name = "A,B,…")]
    victims: Vec<String>,
    /// How many seeds each is played with.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Play a scenario with different values of one setting.
#[derive(Debug, clap::Args)]
struct SweepArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// What varies, and its values: `network.latency=1ms..100ms`, `workload.sigma=0.5,1,2` or, of the settings of the
    /// machines, `config.stealing.take=one,half`.
    #[arg(long, value_name = "PATH=VALUES", required = true)]
    vary: String,
    /// Values between the ends of a range, both included.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    steps: u32,
    /// How many seeds each is played with.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Play random clusters, workloads and faults, and check every invariant after every event.
#[derive(Debug, clap::Args)]
struct FuzzArgs {
    /// How many seeds.
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Stop after so many minutes.
    #[arg(long, value_name = "M", value_parser = some_minutes)]
    minutes: Option<f64>,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// List the scenarios that come with filch.
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print an array of {name, about, workers} instead.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Run(args) => play(args),
        Command::Compare(args) => compare(args),
        Command::Sweep(args) => sweep(args),
        Command::Fuzz(args) => run_fuzz(args),
        Command::List(args) => list(args),
    }
}

/// Plays one world to its end.
fn play_world(source: &Source, seed: u64, keep_marks: bool) -> anyhow::Result<(World, Outcome)> {
    let (mut setting, workload) = source.make(seed);
    setting.keep_marks = keep_marks;
    let start = Instant::now();
    let mut world = World::new(setting, workload).context("this policy cannot be made")?;
    world.run(Time::NEVER).map_err(|broken| anyhow::anyhow!("an invariant was broken {broken}"))?;
    let outcome = Outcome::of(&world, start.elapsed().as_secs_f64());
    Ok((world, outcome))
}

fn play(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let source = match args.source.read()? {
        Ok(source) => source,
        Err(status) => return Ok(status),
    };
    if args.files.use_stdout() && (args.json || args.log) {
        output::error("only one thing can be written to standard output", Some("give the others a file"));
        return Ok(ExitCode::from(2));
    }
    // Before the work: whoever waited for it does not want to hear then that a folder is missing.
    let files = match args.files.open()? {
        Ok(files) => files,
        Err(status) => return Ok(status),
    };
    let (world, outcome) = play_world(&source, args.seed, args.log || files.show_what_happened())?;
    if args.log {
        output::print(&filch_sim::log::text(&world))?;
    }
    files.write(&world, &outcome)?;
    // What has no end has no result.
    if let Some(stuck) = world.stuck().or_else(|| world.hopeless()) {
        let help = "more workers, other faults or less demanding tasks would let it go on; --log shows what happened";
        output::error_lines(&stuck, Some(help));
        return Ok(ExitCode::FAILURE);
    }
    if args.json {
        output::print(&format!("{:#}\n", json!(outcome)))?;
    } else if !args.files.use_stdout() {
        output::print(&chart::summary(&outcome, &world))?;
    }
    let all_well = outcome.tasks.lost == 0;
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The figures of several seeds.
struct Row {
    name: String,
    outcomes: Vec<Outcome>,
    /// What a scheduler that knows no durations and loses no time needs, by the lower bound; the mean of all seeds.
    blind_ratio: Option<f64>,
}

impl Row {
    fn play(name: String, source: &Source, seeds: u64) -> anyhow::Result<Row> {
        let mut blind_ratios = Vec::new();
        let played = (1..=seeds).map(|seed| {
            let (world, outcome) = play_world(source, seed, false)?;
            let blind = filch_sim::blind_makespan(world.workload(), &world.setting().cluster);
            blind_ratios.extend(blind.filter(|_| outcome.lower_bound_s > 0.0).map(|s| s / outcome.lower_bound_s));
            match world.stuck().or_else(|| world.hopeless()) {
                Some(stuck) => anyhow::bail!("{name}, seed {seed}: {}", stuck.replace('\n', " ")),
                None => Ok(outcome),
            }
        });
        let outcomes = played.collect::<anyhow::Result<Vec<_>>>()?;
        let known = !outcomes.is_empty() && blind_ratios.len() == outcomes.len();
        let blind_ratio = known.then(|| blind_ratios.iter().sum::<f64>() / blind_ratios.len() as f64);
        Ok(Row { name, outcomes, blind_ratio })
    }

    fn median(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        let mut values: Vec<f64> = self.outcomes.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let middle = |at: usize| values.get(at).copied().unwrap_or(0.0);
        (middle(values.len().saturating_sub(1) / 2) + middle(values.len() / 2)) / 2.0
    }

    fn mean(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        self.outcomes.iter().map(of).sum::<f64>() / self.outcomes.len().max(1) as f64
    }

    /// Half the width of the interval that holds the true mean with 95%, by Student's distribution.
    /// Nothing is known of it from one value.
    fn uncertainty(&self, of: impl Fn(&Outcome) -> f64 + Copy) -> Option<f64> {
        let count = self.outcomes.len() as f64;
        if count < 2.0 {
            return None;
        }
        let mean = self.mean(of);
        let spread = self.outcomes.iter().map(|outcome| (of(outcome) - mean) * (of(outcome) - mean)).sum::<f64>();
        // Student's quantiles for few, and close to them for more.
        const FEW: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
        let freedom = self.outcomes.len() - 1;
        let factor = FEW.get(freedom - 1).copied().unwrap_or(1.96 + 2.6 / freedom as f64);
        Some(factor * (spread / (count - 1.0) / count).sqrt())
    }

    fn to_json(&self) -> serde_json::Value {
        let ratio = |outcome: &Outcome| ratio(outcome);
        json!({
            "name": self.name,
            "seeds": self.outcomes.len(),
            "makespan_s": self.median(|outcome| outcome.makespan_s),
            "ratio": self.mean(ratio),
            "ratio_uncertainty": self.uncertainty(ratio),
            "blind_ratio": self.blind_ratio,
            "efficiency": self.mean(|outcome| outcome.efficiency),
            "speedup": self.mean(|outcome| outcome.speedup),
            "steal_rate": self.mean(steal_rate),
            "wait_p95_s": self.median(|outcome| outcome.wait_s.p95),
            "steal_success": self.mean(steal_success),
            "messages_per_task": self.mean(messages_per_task),
            "lost": self.outcomes.iter().map(|outcome| outcome.tasks.lost).sum::<u64>(),
        })
    }
}

fn ratio(outcome: &Outcome) -> f64 {
    if outcome.lower_bound_s > 0.0 { outcome.makespan_s / outcome.lower_bound_s } else { 1.0 }
}

fn steal_success(outcome: &Outcome) -> f64 {
    outcome.steals.successes as f64 / outcome.steals.attempts.max(1) as f64
}

/// How many of the tasks that ran had been stolen, each steal counted.
fn steal_rate(outcome: &Outcome) -> f64 {
    outcome.steals.moved as f64 / outcome.runs.max(1) as f64
}

fn messages_per_task(outcome: &Outcome) -> f64 {
    outcome.messages as f64 / outcome.tasks.submitted.max(1) as f64
}

fn print_rows(what: &str, rows: &[Row], as_json: bool) -> anyhow::Result<ExitCode> {
    if as_json {
        let all: Vec<_> = rows.iter().map(Row::to_json).collect();
        output::print(&format!("{:#}\n", json!(all)))?;
    } else {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header([
            what,
            "makespan",
            "× lower bound",
            "efficiency",
            "speedup",
            "wait p95",
            "steals won",
            "steal rate",
            "messages/task",
        ]);
        for row in rows {
            table.add_row([
                row.name.clone(),
                format!("{:.2} s", row.median(|outcome| outcome.makespan_s)),
                match row.uncertainty(ratio) {
                    Some(uncertainty) => format!("{:.3} ± {uncertainty:.3}", row.mean(ratio)),
                    None => format!("{:.3}", row.mean(ratio)),
                },
                format!("{:.1}%", 100.0 * row.mean(|outcome| outcome.efficiency)),
                format!("{:.1}x", row.mean(|outcome| outcome.speedup)),
                format!("{:.2} s", row.median(|outcome| outcome.wait_s.p95)),
                format!("{:.0}%", 100.0 * row.mean(steal_success)),
                format!("{:.1}%", 100.0 * row.mean(steal_rate)),
                format!("{:.1}", row.mean(messages_per_task)),
            ]);
        }
        let seeds = rows.first().map_or(0, |row| row.outcomes.len());
        output::print(&format!(
            "{table}\n\nmakespan and wait are medians of {seeds} seeds, the rest means; ± is the 95% interval of the mean\n"
        ))?;
        output::print(&blind_note(rows))?;
    }
    let lost = rows.iter().flat_map(|row| &row.outcomes).any(|outcome| outcome.tasks.lost > 0);
    Ok(if lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What could have been reached at best without knowing durations, where that can be said. Rows that play the same work
/// have it in common.
fn blind_note(rows: &[Row]) -> String {
    let mut ratios: Vec<f64> = rows.iter().filter_map(|row| row.blind_ratio).collect();
    ratios.sort_by(f64::total_cmp);
    match ratios.as_slice() {
        [least, .., most] if most - least > 0.0005 => {
            format!("with no latency, and no durations known: {least:.3} to {most:.3} × lower bound\n")
        }
        [least, ..] => format!("with no latency, and no durations known: {least:.3} × lower bound\n"),
        [] => String::new(),
    }
}

fn compare(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    let choices: Vec<(Option<&String>, Option<&String>)> = match (args.policies.as_slice(), args.victims.as_slice()) {
        ([], []) => vec![(None, None)],
        (policies, []) => policies.iter().map(|policy| (Some(policy), None)).collect(),
        ([], victims) => victims.iter().map(|victim| (None, Some(victim))).collect(),
        (policies, victims) => {
            policies.iter().flat_map(|policy| victims.iter().map(move |victim| (Some(policy), Some(victim)))).collect()
        }
    };
    for (policy, victim) in choices {
        let mut chosen = args.source.clone();
        chosen.policy = policy.cloned().or(chosen.policy);
        chosen.victim = victim.cloned().or(chosen.victim);
        let source = match chosen.read()? {
            Ok(source) => source,
            Err(status) => return Ok(status),
        };
        let name = [policy, victim].into_iter().flatten().cloned().collect::<Vec<_>>().join(" · ");
        let name = if name.is_empty() { source.name().to_owned() } else { name };
        rows.push(Row::play(name, &source, args.seeds)?);
    }
    print_rows("policy", &rows, args.json)
}

fn sweep(args: &SweepArgs) -> anyhow::Result<ExitCode> {
    let Some((path, values)) = args.vary.split_once('=') else {
        output::error("--vary needs a path and values", Some("such as --vary network.latency=1ms..100ms"));
        return Ok(ExitCode::from(2));
    };
    let path = source::full_path(path.trim());
    let source = match args.source.read()? {
        Ok(source) => source,
        Err(status) => return Ok(status),
    };
    let values = match source::values(values, args.steps) {
        Ok(values) if source.is_counted(&path) => source::whole(values),
        Ok(values) => values,
        Err(problem) => {
            output::error(&problem, Some("a range such as 1ms..100ms, or a list such as 1,2,4"));
            return Ok(ExitCode::from(2));
        }
    };
    let mut rows = Vec::new();
    for value in values {
        let mut varied = source.clone();
        if let Err(Unset { message, help }) = varied.set(&path, &value) {
            let keys = "docs/simulation.md names the keys of a scenario, docs/config-reference.md those below `config`";
            output::error(&message, help.as_deref().or(Some(keys)));
            return Ok(ExitCode::from(2));
        }
        rows.push(Row::play(value, &varied, args.seeds)?);
    }
    print_rows(&path, &rows, args.json)
}

fn some_minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse::<f64>().ok().filter(|minutes| minutes.is_finite() && *minutes > 0.0);
    minutes.ok_or_else(|| "a number above 0 is needed, such as 1.5".to_owned())
}

fn run_fuzz(args: &FuzzArgs) -> anyhow::Result<ExitCode> {
    if args.seed.checked_add(args.seeds).is_none() {
        output::error("there are no so many seeds after that one", Some("begin with a smaller --seed"));
        return Ok(ExitCode::from(2));
    }
    let start = Instant::now();
    let enough = |_: &u64| args.minutes.is_none_or(|minutes| start.elapsed().as_secs_f64() < minutes * 60.0);
    let (mut seeds, mut tasks, mut events, mut deaths) = (0u64, 0u64, 0u64, 0u64);
    for seed in (args.seed..args.seed + args.seeds).take_while(enough) {
        match fuzz::try_seed(seed) {
            Verdict::Sound { counts } => {
                seeds += 1;
                tasks += counts.submitted;
                events += counts.events;
                deaths += counts.deaths;
            }
            Verdict::Broken { what, smallest } => {
                let replay = format!("filch sim fuzz --seed {seed} --seeds 1");
                if args.json {
                    let report = json!({"seed": seed, "broken": what, "smallest": smallest, "replay": replay});
                    output::print(&format!("{report:#}\n"))?;
                } else {
                    output::error(&format!("seed {seed}: {what}"), Some(&format!("replay it with `{replay}`")));
                    output::print(&format!("the smallest case found that breaks it:\n{smallest}\n"))?;
                }
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    if args.json {
        let report = json!({"seeds": seeds, "tasks": tasks, "events": events, "deaths": deaths, "broken": null});
        output::print(&format!("{report:#}\n"))?;
    } else {
        let took = start.elapsed().as_secs_f64();
        output::print(&format!(
            "{seeds} seeds hold: {tasks} tasks, {events} events, {deaths} deaths of workers, in {took:.1} s\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let all = filch_sim::scenario::BUILTINS.iter().filter_map(|builtin| filch_sim::Scenario::builtin(builtin.name));
    if args.json {
        let rows: Vec<_> = all
            .map(|scenario| json!({"name": scenario.name, "about": scenario.about, "workers": scenario.workers()}))
            .collect();
        output::print(&format!("{:#}\n", json!(rows)))?;
    } else {
        for scenario in all {
            output::print(&format!("{:20} {}\n", scenario.name, scenario.about))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
