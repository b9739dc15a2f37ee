//! `filch stats`: how a cluster does as a whole.

use std::process::ExitCode;

use filch_core::config::printable;
use filch_node::view::{Query, StatsView};
use serde_json::{Value, json};

use super::Reach;
use super::table::{bytes, facts, seconds};
use crate::{output, runtime};

/// Show the figures of the coordinator and how its workers steal.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch stats
  filch stats --json | jq .steals")]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    /// Print an object instead.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    runtime::ask(async {
        let client = args.reach.client().await?;
        let stats: StatsView = client.query(&Query::Stats).await?;
        let text = if args.json { format!("{:#}\n", json!(stats)) } else { shown(&stats) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn shown(stats: &StatsView) -> String {
    let mut text = facts(&[
        ("life of the coordinator", stats.epoch.to_string()),
        ("up for", seconds(stats.uptime_s)),
        ("workers connected", stats.workers.to_string()),
        ("tasks queued", stats.queued.to_string()),
        ("tasks not over", stats.unsettled.to_string()),
        ("tasks over in this life", stats.settled.to_string()),
        ("tasks found missing", stats.found_missing.to_string()),
        ("waiting for the store", bytes(stats.store_pending_bytes)),
    ]);
    if let Some(figures) = stats.metrics.as_object() {
        text += "\nscheduler\n";
        let figures: Vec<(&str, String)> = figures.iter().map(|(name, value)| (name.as_str(), figure(value))).collect();
        text += &indented(&facts(&figures));
    }
    text += "\nsteals between workers\n";
    text += &indented(&stats.steal_report.lines().map(|line| format!("{}\n", printable(line))).collect::<String>());
    if let Some(median) = stats.steals["latency_p50_s"].as_f64().filter(|median| *median > 0.0) {
        text += &format!("  Half of the answers came within {:.1} us\n", median * 1e6);
    }
    if stats.relayed > 0 {
        text += &format!(
            "\n{} messages between workers went through the coordinator: some cannot reach each other; set --advertise where they listen\n",
            stats.relayed
        );
    }
    text
}

fn figure(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or_default()),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
