//! The outcome of one simulation, for people.

use std::fmt::Write as _;

use comfy_table::Table;
use filch_core::config::printable;
use filch_sim::{Outcome, World};

/// Workers shown at the most, one line each.
const SHOWN: usize = 20;
/// Cells of a full bar.
const BAR: f64 = 30.0;

/// What became of it: the figures, and how busy everybody was.
pub(crate) fn summary(outcome: &Outcome, world: &World) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let tasks = &outcome.tasks;
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("scenario", format!("{}, seed {}, {} workers", printable(&outcome.name), outcome.seed, outcome.workers));
    row(
        "tasks",
        format!(
            "{} submitted, {} completed, {} failed, {} lost",
            tasks.submitted, tasks.completed, tasks.failed, tasks.lost
        ),
    );
    row(
        "makespan",
        format!("{:.3} s (no schedule is shorter than {:.3} s)", outcome.makespan_s, outcome.lower_bound_s),
    );
    row("efficiency", format!("{:.1}%, speedup {:.2}", 100.0 * outcome.efficiency, outcome.speedup));
    let wait = &outcome.wait_s;
    row("wait", format!("p50 {:.3} s, p95 {:.3} s, p99 {:.3} s", wait.p50, wait.p95, wait.p99));
    let steals = &outcome.steals;
    row(
        "steals",
        format!(
            "{} of {} attempts won, {} refused, {} timed out, {} unreachable; {} tasks moved",
            steals.successes, steals.attempts, steals.rejections, steals.timeouts, steals.network_errors, steals.moved
        ),
    );
    row(
        "events",
        format!("{} and {} messages in {:.3} s of real time", outcome.events, outcome.messages, outcome.wall_s),
    );
    row("digest", outcome.digest.clone());
    for note in &outcome.notes {
        row("note", note.clone());
    }
    let mut text = format!("{table}\n");
    let busy: Vec<_> = world.busy().collect();
    if outcome.makespan_s > 0.0 {
        let _ = writeln!(text, "\nworker  busy");
        for (at, (class, span)) in busy.iter().enumerate().take(SHOWN) {
            let class = &world.setting().cluster[*class as usize];
            let share = span.as_secs_f64() / outcome.makespan_s / f64::from(class.slots());
            let cells = "█".repeat((share.min(1.0) * BAR + 0.5) as usize);
            let _ = writeln!(text, "{at:>6}  {cells:30} {:>5.1}%  {}", 100.0 * share, printable(&class.name));
        }
        if busy.len() > SHOWN {
            let _ = writeln!(text, "        and {} more", busy.len() - SHOWN);
        }
    }
    text
}
