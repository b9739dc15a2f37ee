//! What was measured, as a table and as JSON.

use comfy_table::{Table, presets};
use serde::Serialize;

/// What one case gave. What does not apply is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    /// Its name.
    pub case: String,
    /// Tasks per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_per_s: Option<f64>,
    /// Processor time of coordinator and workers together, for each task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_task: Option<f64>,
    /// The median of what was timed one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// The most memory that the coordinator had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    /// Busy time of all slots against what they could have had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<f64>,
    /// Against what it is to be compared with, and what that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// What the ratio means, or anything else worth saying.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Whether what must hold does not. Only of cases whose figures do not hang on how fast the machine is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub missed: bool,
}

impl Figure {
    /// Nothing measured yet.
    #[must_use]
    pub fn new(case: impl Into<String>) -> Figure {
        Figure { case: case.into(), ..Figure::default() }
    }
}

/// Fails if something is missed that must hold on every machine.
pub(super) fn check(figures: &[Figure]) -> anyhow::Result<()> {
    let missed: Vec<&str> = figures.iter().filter(|figure| figure.missed).map(|figure| figure.case.as_str()).collect();
    anyhow::ensure!(missed.is_empty(), "missed: {}", missed.join(", "));
    Ok(())
}

#[allow(clippy::print_stdout)]
pub(super) fn print(figures: &[Figure], json: bool) {
    if json {
        println!("{}", serde_json::to_string_pretty(figures).unwrap_or_default());
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["case", "tasks/s", "cpu µs/task", "p50 µs", "memory MB", "efficiency", "ratio", ""]);
    let number =
        |value: Option<f64>, digits: usize| value.map_or_else(String::new, |value| format!("{value:.digits$}"));
    for figure in figures {
        #[allow(clippy::cast_precision_loss)]
        let memory = figure.rss_bytes.map(|bytes| bytes as f64 / 1e6);
        table.add_row([
            figure.case.clone(),
            number(figure.tasks_per_s, 0),
            number(figure.cpu_us_per_task, 2),
            number(figure.p50_us, 1),
            number(memory, 1),
            number(figure.efficiency, 3),
            number(figure.ratio, 2),
            if figure.missed { format!("missed: {}", figure.note) } else { figure.note.clone() },
        ]);
    }
    println!("{table}");
}
