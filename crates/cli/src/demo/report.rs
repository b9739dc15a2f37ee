//! What a demonstration reports: tables and bars for people, JSON for programs.

use std::fmt::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use filch::{Health, Metrics, Sample, StealReport, WorkerInfo};
use serde_json::json;

const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const TITLE: Style = Style::new().bold();

/// A claim of a demonstration and what was seen.
pub(crate) struct Check {
    pub(crate) claim: String,
    pub(crate) holds: bool,
    pub(crate) seen: String,
}

/// Everything a demonstration reports.
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) shows: &'static str,
    pub(crate) seed: u64,
    pub(crate) elapsed: Duration,
    pub(crate) metrics: Metrics,
    pub(crate) workers: Vec<WorkerInfo>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) steals: StealReport,
    pub(crate) health: Health,
    pub(crate) before: Vec<(String, u32)>,
    pub(crate) half_way: Vec<(String, u32)>,
    pub(crate) after: Vec<(String, u32)>,
    pub(crate) checks: Vec<Check>,
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// Whether every claim holds.
    pub(crate) fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }

    /// The report for people, on a terminal of that width or on paper of any.
    pub(crate) fn render(&self, width: Option<u16>) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{TITLE}{}{TITLE:#}: {}", self.name, self.shows);
        if self.before.iter().any(|queue| queue.1 > 0) {
            text.push_str("\nqueues before\n");
            text.push_str(&bars(&self.before, width));
            if !self.half_way.is_empty() {
                text.push_str("queues half way\n");
                text.push_str(&bars(&self.half_way, width));
            }
            if self.after.iter().any(|queue| queue.1 > 0) {
                text.push_str("queues after\n");
                text.push_str(&bars(&self.after, width));
            } else {
                text.push_str("queues after: all empty\n");
            }
        }
        let _ = writeln!(text, "\n{}", self.table(width));
        if self.metrics.total_steals > 0 {
            let _ = write!(text, "\n{}", self.steals.total);
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text.push('\n');
        for concern in &self.health.concerns {
            let _ = writeln!(text, "  health: {concern}");
        }
        for check in &self.checks {
            let (style, word) = if check.holds { (GOOD, "ok") } else { (BAD, "NOT SO") };
            let _ = writeln!(text, "  {style}{word}{style:#}  {}: {}", check.claim, check.seen);
        }
        let _ = writeln!(
            text,
            "  {} tasks in {:.2} s, waiting {:.1} ms on average\n",
            self.metrics.completed,
            self.elapsed.as_secs_f64(),
            self.metrics.avg_task_wait_time * 1e3
        );
        text
    }

    fn table(&self, width: Option<u16>) -> String {
        let row = |worker: &WorkerInfo| {
            [
                worker.id.clone(),
                worker.total_completed.to_string(),
                worker.stolen.to_string(),
                worker.lost.to_string(),
                format!("{:.1}", average_wait(worker) * 1e3),
                format!("{:.0}%", worker.utilisation * 100.0),
            ]
        };
        table(&self.workers.iter().map(row).collect::<Vec<_>>(), width)
    }

    /// The report for programs.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let workers: Vec<_> = self
            .workers
            .iter()
            .map(|worker| {
                json!({
                    "name": worker.id,
                    "executed": worker.total_completed,
                    "stolen": worker.stolen,
                    "lost": worker.lost,
                    "avg_wait_s": average_wait(worker),
                    "utilisation": worker.utilisation,
                })
            })
            .collect();
        let checks: Vec<_> = self
            .checks
            .iter()
            .map(|check| json!({"claim": check.claim, "holds": check.holds, "seen": check.seen}))
            .collect();
        let queues = |list: &[(String, u32)]| {
            list.iter().map(|(name, length)| (name.clone(), json!(length))).collect::<serde_json::Map<_, _>>()
        };
        json!({
            "name": self.name,
            "shows": self.shows,
            "seed": self.seed,
            "ok": self.holds(),
            "checks": checks,
            "wall_s": self.elapsed.as_secs_f64(),
            "workers": workers,
            "queues": {"before": queues(&self.before), "half_way": queues(&self.half_way), "after": queues(&self.after)},
            "steals": self.steals,
            "metrics": self.metrics,
            "samples": self.samples.iter().map(|sample| json!({
                "at_s": sample.at_s, "queued": sample.queued, "running": sample.running,
            })).collect::<Vec<_>>(),
            "health": self.health.concerns.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }
}

fn average_wait(worker: &WorkerInfo) -> f64 {
    let attempts = worker.total_completed + worker.total_failed;
    if attempts == 0 { 0.0 } else { worker.wait_s / attempts as f64 }
}

const COLUMNS: [&str; 6] = ["worker", "executed", "stolen", "lost", "avg wait ms", "utilisation"];

/// The figures of all workers as a table; one below the other where a line has no room for its words.
fn table(rows: &[[String; 6]], width: Option<u16>) -> String {
    let cells = |column: usize| rows.iter().map(move |row| row[column].as_str()).chain([COLUMNS[column]]);
    let word = |column: usize| cells(column).flat_map(str::split_whitespace).map(console::measure_text_width).max();
    // Around each cell stand two spaces and a line, and one more line at the end.
    let needed: Vec<usize> = (0..COLUMNS.len()).map(|column| word(column).unwrap_or(0) + 2).collect();
    if width.is_some_and(|width| usize::from(width) < needed.iter().sum::<usize>() + COLUMNS.len() + 1) {
        return list(rows);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table.set_header(COLUMNS).add_rows(rows);
    for (column, needed) in table.column_iter_mut().zip(&needed) {
        let least = u16::try_from(*needed).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::LowerBoundary(comfy_table::Width::Fixed(least)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn list(rows: &[[String; 6]]) -> String {
    let label = COLUMNS.iter().map(|name| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for [worker, figures @ ..] in rows {
        let _ = writeln!(text, "{worker}");
        for (name, figure) in COLUMNS[1..].iter().zip(figures) {
            let _ = writeln!(text, "  {name:<label$} {figure:>6}");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// Queue lengths as bars, fifty characters long at the most and fewer where a line has no room for them.
fn bars(queues: &[(String, u32)], width: Option<u16>) -> String {
    let most = queues.iter().map(|queue| queue.1).max().unwrap_or(0).max(1);
    let label = queues.iter().map(|queue| queue.0.chars().count()).max().unwrap_or(0);
    // Beside the bar stand two spaces, the name, a space, and a space and the number.
    let beside = 4 + label + most.to_string().len();
    let room = width.map_or(50, |width| usize::from(width).saturating_sub(beside).clamp(1, 50)) as u64;
    let mut text = String::new();
    for (name, length) in queues {
        let width = if *length == 0 { 0 } else { (u64::from(*length) * room / u64::from(most).max(room)).max(1) };
        let gap = if width > 0 { " " } else { "" };
        let _ = writeln!(text, "  {name:<label$} {}{gap}{length}", "█".repeat(width as usize));
    }
    text
}

/// A line of figures as a small curve.
pub(crate) fn sparkline(values: &[f64]) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    values.iter().map(|value| STEPS[((value / most * 7.0).round() as usize).min(7)]).collect()
}

/// One line for each demonstration.
pub(crate) fn summary(reports: &[Report]) -> String {
    let held = reports.iter().filter(|report| report.holds()).count();
    let mut text = String::new();
    for report in reports {
        let (style, word) = if report.holds() { (GOOD, "ok    ") } else { (BAD, "NOT SO") };
        let _ = writeln!(text, "{style}{word}{style:#} {:<20} {}", report.name, report.shows);
    }
    let _ = writeln!(text, "\n{held} of {} demonstrations showed what they claim", reports.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_the_length_of_the_queue_up_to_the_width() {
        let text = bars(&[("a".to_owned(), 3), ("long".to_owned(), 0)], None);
        assert_eq!(text, "  a    ███ 3\n  long 0\n");
        let text = bars(&[("a".to_owned(), 100), ("b".to_owned(), 1)], None);
        assert_eq!(text.matches('█').count(), 51);
        let narrow = bars(&[("a".to_owned(), 100), ("b".to_owned(), 1)], Some(20));
        assert!(narrow.lines().all(|line| line.chars().count() <= 20), "{narrow}");
        assert_eq!(bars(&[("a".to_owned(), 9)], Some(0)).matches('█').count(), 1);
    }

    #[test]
    fn tables_keep_their_words_at_every_width() {
        let row = |cells: [&str; 6]| cells.map(str::to_owned);
        let rows =
            [row(["fast-1", "120", "7", "0", "12.5", "100%"]), row(["worker-10", "3", "0", "44", "1234.5", "8%"])];
        for width in [24, 30, 50, 56, 64, 80, 200] {
            let text = table(&rows, Some(width));
            assert!(
                text.lines().all(|line| console::measure_text_width(line) <= usize::from(width)),
                "{width}:\n{text}"
            );
            for word in ["worker-10", "executed", "stolen", "lost", "avg", "wait", "utilisation", "1234.5", "100%"] {
                assert!(text.contains(word), "{word} at {width}:\n{text}");
            }
        }
        let narrow = "\
fast-1
  executed       120
  stolen           7
  lost             0
  avg wait ms   12.5
  utilisation   100%
worker-10
  executed         3
  stolen           0
  lost            44
  avg wait ms 1234.5
  utilisation     8%";
        assert_eq!(table(&rows, Some(30)), narrow);
        assert!(table(&rows, Some(80)).starts_with('┌') && table(&rows, None).starts_with('┌'));
    }

    #[test]
    fn curves_rise_and_fall_with_the_figures() {
        assert_eq!(sparkline(&[0.0, 7.0, 3.5, 0.0]), "▁█▅▁");
        assert_eq!(sparkline(&[]), "");
        assert_eq!(sparkline(&[0.0, 0.0]), "▁▁");
    }
}
