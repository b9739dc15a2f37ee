//! `cargo xtask bench core`: what one cycle through the scheduler machine costs, and what a queued task weighs.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its terminal")]

use std::io::Write;

use anyhow::{Context, Result};
use cap::Cap;
use clap::{Parser, ValueEnum};
use filch_bench::clock;
use filch_bench::mix::Mix;
use filch_bench::report::{Row, targets};
use filch_bench::world::{Slowest, Unwatched, World};
use indicatif::{ProgressBar, ProgressStyle};
use mimalloc::MiMalloc;

// The allocator of the `filch` binary. Counting costs a few nanoseconds for every allocation; they are part of what is
// shown.
#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

const WORKERS: [u64; 3] = [10, 1_000, 100_000];
const QUEUED: [u64; 3] = [10_000, 1_000_000, 10_000_000];

/// Cost of one cycle (submit, assign, start, finish) and bytes per queued task.
#[derive(Parser)]
#[command(name = "core")]
struct Arguments {
    /// Print an array of objects instead of tables.
    #[arg(long)]
    json: bool,
    /// Shorter queues (at most a million) and fewer, shorter batches.
    #[arg(long)]
    quick: bool,
    /// Only cases whose name, like `mixed/1000/10000` (mix, workers, queued), contains this; may be given again.
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// Leave out cases expected to need more memory than this.
    #[arg(long, value_name = "GIB", default_value_t = 6.0)]
    memory: f64,
}

/// How long to measure.
#[derive(Clone, Copy)]
struct Effort {
    batches: usize,
    batch_ns: u64,
    /// Cycles of which every single step is timed.
    watched: u64,
}

#[derive(Clone, Copy)]
struct Case {
    mix: Mix,
    workers: u64,
    queued: u64,
}

impl Case {
    fn name(self) -> String {
        format!("{}/{}/{}", self.mix.name(), self.workers, self.queued)
    }
}

fn cases(arguments: &Arguments) -> Vec<Case> {
    let longest = if arguments.quick { 1_000_000 } else { u64::MAX };
    let mut cases = Vec::new();
    for &mix in Mix::value_variants() {
        for workers in WORKERS {
            let lengths: &[u64] = if mix.is_sparse() { &[0] } else { &QUEUED };
            for &queued in lengths.iter().filter(|&&queued| queued <= longest && mix.stays(workers, queued)) {
                cases.push(Case { mix, workers, queued });
            }
        }
    }
    let filter = &arguments.filter;
    cases.retain(|case| filter.is_empty() || filter.iter().any(|text| case.name().contains(text)));
    cases
}

fn allocated() -> u64 {
    ALLOCATOR.allocated() as u64
}

/// A world that is filled and warm, and what is known of it so far.
struct Ready {
    case: Case,
    world: World,
    bytes_per_task: f64,
    filling: Slowest,
    /// Cycles of a batch.
    batch: u64,
    /// Nanoseconds a cycle took, by batch.
    batches: Vec<f64>,
}

fn prepare(case: Case, effort: Effort) -> Result<Ready> {
    let mut world = World::new(case.mix, case.workers, case.queued)?;
    let before = allocated();
    let mut filling = Slowest::default();
    world.fill(&mut filling)?;
    let bytes_per_task =
        if case.mix.is_sparse() { 0.0 } else { allocated().saturating_sub(before) as f64 / case.queued as f64 };
    world.start()?;

    // Twice round every slot, so that what is learned per worker is there, then as long as it takes to know the pace.
    let mut warm_up = (2 * world.running()).max(20_000);
    world.run(warm_up, &mut Unwatched)?;
    let mut spent = 0;
    while spent < effort.batch_ns / 4 {
        let start = clock::thread_ns();
        world.run(warm_up, &mut Unwatched)?;
        spent = clock::thread_ns() - start;
        if spent < effort.batch_ns / 4 {
            warm_up *= 2;
        }
    }
    let batch = (effort.batch_ns * warm_up / spent.max(1)).max(1000);
    Ok(Ready { case, world, bytes_per_task, filling, batch, batches: Vec::with_capacity(effort.batches) })
}

/// Measures cases that will be compared with each other in turn, batch by batch, so that whatever else happens on the
/// machine meets all of them.
fn measure(cases: &[Case], effort: Effort) -> Result<Vec<Row>> {
    let prepared = |case: &Case| prepare(*case, effort).with_context(|| case.name());
    let mut worlds = cases.iter().map(prepared).collect::<Result<Vec<Ready>>>()?;
    for _ in 0..effort.batches {
        for ready in &mut worlds {
            // The caches are full of the one before.
            ready.world.run(ready.batch / 8, &mut Unwatched)?;
            let start = clock::thread_ns();
            ready.world.run(ready.batch, &mut Unwatched)?;
            ready.batches.push((clock::thread_ns() - start) as f64 / ready.batch as f64);
        }
    }
    worlds.into_iter().map(|ready| finish(ready, effort)).collect()
}

fn finish(ready: Ready, effort: Effort) -> Result<Row> {
    let Ready { case, mut world, bytes_per_task, filling, batch, mut batches } = ready;
    batches.sort_by(f64::total_cmp);
    let mut slowest = Slowest::default();
    world.run(effort.watched, &mut slowest)?;
    Ok(Row {
        workers: case.workers,
        queued: case.queued,
        mix: case.mix.name(),
        ns_per_cycle: batches[batches.len() / 2],
        bytes_per_task,
        best_ns_per_cycle: batches[0],
        cycles: batch * effort.batches as u64,
        max_step_ns: slowest.ns,
        max_step: slowest.event,
        max_fill_step_ns: filling.ns,
        which: case.mix,
    })
}

/// Cases of the same mix and length, which differ in their workers only, as far as memory allows them at once.
fn groups(cases: Vec<Case>, rows: &[Row], memory_gib: f64) -> (Vec<Vec<Case>>, Vec<String>) {
    let mut groups: Vec<Vec<Case>> = Vec::new();
    let mut left_out = Vec::new();
    for case in cases {
        // What a shorter queue of the same mix needed for each task tells what this one will need.
        let known = rows.iter().filter(|row| row.which == case.mix).map(|row| row.bytes_per_task).reduce(f64::max);
        let expected_gib = known.unwrap_or(0.0) * case.queued as f64 / f64::from(1 << 30);
        if expected_gib > memory_gib {
            left_out.push(format!("{} is left out: it would need about {expected_gib:.0} GiB", case.name()));
            continue;
        }
        match groups.last_mut() {
            Some(group) if (group.len() + 1) as f64 * expected_gib <= memory_gib => group.push(case),
            _ => groups.push(vec![case]),
        }
    }
    (groups, left_out)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let effort = if arguments.quick {
        Effort { batches: 5, batch_ns: 50_000_000, watched: 50_000 }
    } else {
        Effort { batches: 7, batch_ns: 200_000_000, watched: 200_000 }
    };
    let mut cases = cases(&arguments);
    let mut rows: Vec<Row> = Vec::new();
    let mut left_out = Vec::new();
    // Drawn on a terminal only.
    let progress = ProgressBar::new(cases.len() as u64).with_style(ProgressStyle::with_template("{pos}/{len} {msg}")?);
    let mut out = std::io::stdout().lock();
    if !arguments.json {
        writeln!(out, "{}", line(&HEADINGS))?;
    }
    while let Some(&Case { mix, queued, .. }) = cases.first() {
        let (alike, rest) = cases.into_iter().partition(|case: &Case| case.mix == mix && case.queued == queued);
        cases = rest;
        let (groups, too_large) = groups(alike, &rows, arguments.memory);
        progress.inc(too_large.len() as u64);
        left_out.extend(too_large);
        for group in groups {
            progress.set_message(format!("{}, {queued} queued", mix.name()));
            for row in measure(&group, effort)? {
                if !arguments.json {
                    progress.suspend(|| writeln!(out, "{}", line(&cells(&row))))?;
                }
                rows.push(row);
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        for line in left_out {
            eprintln!("{line}");
        }
        return Ok(());
    }
    writeln!(out)?;
    for line in left_out {
        writeln!(out, "{line}")?;
    }
    for target in targets(&rows) {
        let word = if target.holds { "holds " } else { "MISSED" };
        writeln!(out, "{word}  {}: {}", target.promise, target.found)?;
    }
    Ok(())
}

const HEADINGS: [&str; 10] = [
    "mix",
    "workers",
    "queued",
    "ns/cycle",
    "best",
    "cycles/s",
    "bytes/task",
    "slowest step µs",
    "in",
    "while filling µs",
];

fn cells(row: &Row) -> [String; 10] {
    [
        row.mix.to_owned(),
        row.workers.to_string(),
        row.queued.to_string(),
        format!("{:.0}", row.ns_per_cycle),
        format!("{:.0}", row.best_ns_per_cycle),
        format!("{:.0}", 1e9 / row.ns_per_cycle),
        format!("{:.1}", row.bytes_per_task),
        format!("{:.1}", row.max_step_ns as f64 / 1e3),
        row.max_step.to_owned(),
        format!("{:.1}", row.max_fill_step_ns as f64 / 1e3),
    ]
}

/// One line of the table. Its widths are fixed, since a line is printed as soon as it is known.
fn line(cells: &[impl AsRef<str>; 10]) -> String {
    let [mix, workers, queued, ns, best, rate, bytes, slowest, event, filling] = cells.each_ref().map(AsRef::as_ref);
    format!(
        "{mix:<16}  {workers:>7}  {queued:>8}  {ns:>8}  {best:>8}  {rate:>8}  {bytes:>10}  {slowest:>15}  {event:<6}  {filling:>16}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_well_formed() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn growing_and_shrinking_is_counted_once() {
        // Other tests run at the same time, but need little.
        const MIB: usize = 1 << 20;
        let before = allocated();
        let counted = |list: &Vec<u8>| (allocated() as usize).saturating_sub(before as usize).abs_diff(list.capacity());
        let mut list: Vec<u8> = Vec::with_capacity(64 * MIB);
        assert!(counted(&list) < 16 * MIB);
        list.reserve_exact(192 * MIB);
        assert!(counted(&list) < 16 * MIB);
        list.shrink_to(32 * MIB);
        assert!(counted(&list) < 16 * MIB);
        drop(list);
        assert!(counted(&Vec::new()) < 16 * MIB);
    }

    #[test]
    fn every_cell_stands_under_its_heading() {
        let case = Case { mix: Mix::SparseOwnClass, workers: 10, queued: 0 };
        let row = measure(&[case], Effort { batches: 1, batch_ns: 1_000_000, watched: 10 }).unwrap().remove(0);
        let (heading, text) = (line(&HEADINGS), line(&cells(&row)));
        assert_eq!(heading.chars().count(), text.chars().count(), "{heading}\n{text}");
    }

    #[test]
    fn cases_run_together_as_far_as_memory_allows() {
        let case = |workers| Case { mix: Mix::Homogeneous, workers, queued: 10_000_000 };
        let mut row =
            measure(&[Case { queued: 2000, ..case(10) }], Effort { batches: 1, batch_ns: 1, watched: 1 }).unwrap();
        row[0].bytes_per_task = 160.0;
        let sizes = |gib| {
            let (groups, left_out) = groups(WORKERS.map(case).to_vec(), &row, gib);
            (groups.iter().map(Vec::len).collect::<Vec<_>>(), left_out.len())
        };
        assert_eq!(sizes(6.0), (vec![3], 0));
        assert_eq!(sizes(4.0), (vec![2, 1], 0));
        assert_eq!(sizes(1.0), (vec![], 3));
    }

    #[test]
    fn filters_choose_cases() {
        let all = cases(&Arguments::parse_from(["core"]));
        assert!(all.len() > 80);
        let some = cases(&Arguments::parse_from(["core", "--filter", "mixed/1000/", "--filter", "array/10/10000000"]));
        let names: Vec<String> = some.into_iter().map(Case::name).collect();
        assert_eq!(names, ["mixed/1000/10000", "mixed/1000/1000000", "mixed/1000/10000000", "array/10/10000000"]);
        assert!(cases(&Arguments::parse_from(["core", "--quick"])).iter().all(|case| case.queued <= 1_000_000));
    }

    #[test]
    fn small_cases_are_measured_in_turn() {
        let case = Case { mix: Mix::Mixed, workers: 10, queued: 5000 };
        let other = Case { workers: 20, ..case };
        let rows = measure(&[case, other], Effort { batches: 3, batch_ns: 1_000_000, watched: 100 }).unwrap();
        assert_eq!([rows[0].workers, rows[1].workers], [10, 20]);
        let row = &rows[0];
        assert!(row.ns_per_cycle > 0.0 && row.best_ns_per_cycle <= row.ns_per_cycle);
        assert!(row.bytes_per_task > 50.0 && row.max_step_ns > 0 && row.max_fill_step_ns > 0, "{row:?}");
    }
}
