//! The rows of the benchmark `pool`, and whether they keep what was promised.

use serde::Serialize;

use crate::report::Target;

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The name of the work.
    pub work: &'static str,
    /// How many threads the system has.
    pub threads: usize,
    /// The name of the system.
    pub system: &'static str,
    /// Median over the rounds.
    pub ns_per_op: f64,
    /// Processor time of a round.
    pub cpu_s: f64,
    /// The fastest round.
    #[serde(skip)]
    pub best: f64,
}

/// Code that does not fork: a measure for the others, not one of the systems that are compared.
pub const SERIAL: &str = "serial";

/// The fork-join works that are judged. Left out are the shuffled tree, which shows memory more than forks, and the second form
/// of fib.
const FORKS: [&str; 6] = ["fib", "tree_small", "tree_large", "queens", "uts_t1", "uts_t3"];

/// The same work with the same threads on another system.
#[must_use]
pub fn find<'a>(rows: &'a [Row], of: &Row, system: &str) -> Option<&'a Row> {
    rows.iter().find(|row| (row.work, row.threads, row.system) == (of.work, of.threads, system))
}

/// The fork-join works of one system and a rival together.
#[derive(Clone, Debug)]
pub struct Together {
    /// The geometric mean of the ratios.
    pub mean: f64,
    /// The worst ratio and the work it was found in.
    pub worst: (f64, &'static str),
    /// The worst ratio of what both take beyond the work itself, shared perfectly; and the work it was found in.
    pub overhead: (f64, &'static str),
}

/// The fork-join works of one system and a rival together, if there are any.
#[must_use]
pub fn together(rows: &[Row], system: &str, rival: &str, threads: usize) -> Option<Together> {
    let ours = rows.iter().filter(|row| row.system == system && row.threads == threads && FORKS.contains(&row.work));
    let pairs: Vec<_> = ours.filter_map(|row| Some((row, find(rows, row, rival)?))).collect();
    let ratio = |(row, rival): &(&Row, &Row)| row.ns_per_op / rival.ns_per_op;
    let overhead = |(row, rival): &(&Row, &Row)| {
        let serial = find(rows, row, SERIAL).map_or(0.0, |serial| serial.ns_per_op) / threads as f64;
        (row.ns_per_op - serial) / (rival.ns_per_op - serial)
    };
    let worst = |of: &dyn Fn(&(&Row, &Row)) -> f64| {
        pairs.iter().map(|pair| (of(pair), pair.0.work)).max_by(|a, b| a.0.total_cmp(&b.0))
    };
    Some(Together {
        mean: (pairs.iter().map(|pair| ratio(pair).ln()).sum::<f64>() / pairs.len() as f64).exp(),
        worst: worst(&ratio)?,
        overhead: worst(&overhead)?,
    })
}

/// Every promise that the rows say something about.
#[must_use]
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let mut targets = Vec::new();
    for threads in [1, 2] {
        targets.extend(forks(rows, threads));
        targets.extend(spawns(rows, threads));
        targets.extend(entering(rows, threads));
    }
    targets.extend(time(rows, "chain_400", "a 400-deep chain of leaves of 50 µs", 2, 12e6));
    targets.extend(time(rows, "two_sleeps", "join of two sleeps of 50 ms", 2, 60e6));
    targets
}

fn with(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

fn below(promise: &str, found: f64, limit: f64, place: &str) -> Target {
    let place = if place.is_empty() { String::new() } else { format!(" in {place}") };
    Target { promise: format!("{promise} ≤ {limit:.2}"), found: format!("{found:.2}{place}"), holds: found <= limit }
}

fn forks(rows: &[Row], threads: usize) -> Vec<Target> {
    let mut targets = Vec::new();
    let with = with(threads);
    if let Some(rayon) = together(rows, "filch_ctx", "rayon", threads) {
        targets.push(below(&format!("ctx.join / rayon, geometric mean, {with}"), rayon.mean, 0.36, ""));
        let (overhead, work) = rayon.overhead;
        targets.push(below(&format!("ctx.join / rayon, overhead, worst work, {with}"), overhead, 0.30, work));
    }
    if let Some(chili) = together(rows, "filch_ctx", "chili", threads) {
        let limit = if threads == 1 { 0.75 } else { 0.60 };
        targets.push(below(&format!("ctx.join / chili, geometric mean, {with}"), chili.mean, limit, ""));
        targets.push(below(&format!("ctx.join / chili, worst work, {with}"), chili.worst.0, 1.10, chili.worst.1));
    }
    if let Some(join) = together(rows, "filch_join", "rayon", threads) {
        targets.push(below(&format!("join / rayon, geometric mean, {with}"), join.mean, 0.5, ""));
    }
    targets
}

/// What one row takes by what another does.
fn ratio(rows: &[Row], (work, system, rival): (&str, &str, &str), threads: usize, of: fn(&Row) -> f64) -> Option<f64> {
    let ours = rows.iter().find(|row| (row.work, row.threads, row.system) == (work, threads, system))?;
    Some(of(ours) / of(find(rows, ours, rival)?))
}

fn spawns(rows: &[Row], threads: usize) -> Vec<Target> {
    let works = ["storm_inside", "storm_outside", "storm_scope", "skynet"];
    let pairs = works.into_iter().flat_map(|work| [(work, "rayon", 0.4), (work, "tokio", 0.12)]);
    let target = |(work, rival, limit)| {
        let found = ratio(rows, (work, "filch_spawn", rival), threads, |row| row.ns_per_op)?;
        Some(below(&format!("{work} / {rival}, {}", with(threads)), found, limit, ""))
    };
    let mut targets: Vec<Target> = pairs.filter_map(target).collect();
    if let Some(found) = ratio(rows, ("parallel_for", "filch_join", "rayon"), threads, |row| row.ns_per_op) {
        targets.push(below(&format!("parallel_for / rayon, {}", with(threads)), found, 1.0, ""));
    }
    targets
}

fn entering(rows: &[Row], threads: usize) -> Vec<Target> {
    let mut targets = Vec::new();
    let limits = [("wake_up", "rayon", 0.6), ("wake_up", "tokio", 1.0), ("round_trip", "rayon", 1.0)];
    // The wake-up is promised for two threads only.
    for (work, rival, limit) in limits.into_iter().filter(|(work, ..)| threads == 2 || *work != "wake_up") {
        if let Some(found) = ratio(rows, (work, "filch_join", rival), threads, |row| row.ns_per_op) {
            targets.push(below(&format!("{work} / {rival}, {}", with(threads)), found, limit, ""));
        }
    }
    targets.extend(time(rows, "round_trip", "entering a region back to back", threads, 1e3));
    if let Some(found) = ratio(rows, ("bursts", "filch_ctx", "rayon"), threads, |row| row.cpu_s) {
        targets.push(below(&format!("bursts with gaps, processor time / rayon, {}", with(threads)), found, 1.0, ""));
    }
    targets
}

/// A time that must not be longer.
fn time(rows: &[Row], work: &str, name: &str, threads: usize, limit_ns: f64) -> Option<Target> {
    let ours = |row: &&Row| row.work == work && row.threads == threads && row.system.starts_with("filch");
    let found = rows.iter().find(ours)?.ns_per_op;
    let unit = |ns: f64| if ns < 1e6 { format!("{:.2} µs", ns / 1e3) } else { format!("{:.1} ms", ns / 1e6) };
    Some(Target {
        promise: format!("{name}, {} ≤ {}", with(threads), unit(limit_ns)),
        found: unit(found),
        holds: found <= limit_ns,
    })
}

/// What an idle pool may take of a core.
#[must_use]
pub fn idle(threads: usize, share: f64) -> Target {
    Target {
        promise: format!("an idle pool over 10 s, {} < 0.5 % of a core", with(threads)),
        found: format!("{:.4} %", 100.0 * share),
        holds: share < 0.005,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(work: &'static str, threads: usize, system: &'static str, ns_per_op: f64) -> Row {
        Row { work, threads, system, ns_per_op, cpu_s: ns_per_op, best: ns_per_op }
    }

    fn verdict(rows: &[Row], promise: &str) -> (String, bool) {
        let found: Vec<Target> = targets(rows).into_iter().filter(|target| target.promise.contains(promise)).collect();
        assert_eq!(found.len(), 1, "{promise}: {found:?}");
        (found[0].found.clone(), found[0].holds)
    }

    #[test]
    fn forks_are_judged_by_means_worst_works_and_overheads() {
        let mut rows = Vec::new();
        // The mean of 0.2 and 0.45 is 0.3; against chili the second is 1.125.
        for (work, ours) in [("fib", 2.0), ("queens", 4.5), ("plain_fib", 100.0)] {
            rows.push(row(work, 1, "filch_ctx", ours));
            rows.push(row(work, 1, "rayon", 10.0));
            rows.push(row(work, 1, "chili", 4.0));
            rows.push(row(work, 1, SERIAL, 1.0));
        }
        assert_eq!(verdict(&rows, "ctx.join / rayon, geometric mean"), ("0.30".to_owned(), true));
        assert_eq!(verdict(&rows, "ctx.join / rayon, overhead"), ("0.39 in queens".to_owned(), false));
        assert_eq!(verdict(&rows, "ctx.join / chili, geometric mean"), ("0.75".to_owned(), true));
        assert_eq!(verdict(&rows, "ctx.join / chili, worst"), ("1.12 in queens".to_owned(), false));
        assert_eq!(targets(&rows).len(), 4, "nothing is said of what was not measured");
    }

    #[test]
    fn two_threads_have_limits_of_their_own_and_overheads_share_the_work() {
        let rows = [
            row("fib", 2, "filch_ctx", 6.5),
            row("fib", 2, "chili", 10.0),
            row("fib", 2, "rayon", 15.0),
            row("fib", 2, SERIAL, 10.0),
        ];
        assert_eq!(verdict(&rows, "ctx.join / chili, geometric mean, 2 threads ≤ 0.60"), ("0.65".to_owned(), false));
        assert_eq!(verdict(&rows, "overhead"), ("0.15 in fib".to_owned(), true));
    }

    #[test]
    fn times_and_ratios_of_the_rest() {
        let rows = [
            row("storm_inside", 1, "filch_spawn", 20.0),
            row("storm_inside", 1, "rayon", 50.0),
            row("storm_inside", 1, "tokio", 100.0),
            row("wake_up", 1, "filch_join", 5.0),
            row("wake_up", 1, "rayon", 5.0),
            row("wake_up", 2, "filch_join", 5.0),
            row("wake_up", 2, "rayon", 5.0),
            row("wake_up", 2, "tokio", 5.0),
            row("round_trip", 2, "filch_join", 1001.0),
            row("chain_400", 2, "filch_ctx", 11.9e6),
            row("bursts", 2, "filch_ctx", 1.0),
            row("bursts", 2, "rayon", 2.0),
        ];
        assert_eq!(verdict(&rows, "storm_inside / rayon"), ("0.40".to_owned(), true));
        assert_eq!(verdict(&rows, "storm_inside / tokio"), ("0.20".to_owned(), false));
        assert_eq!(verdict(&rows, "wake_up / rayon"), ("1.00".to_owned(), false));
        assert_eq!(verdict(&rows, "wake_up / tokio"), ("1.00".to_owned(), true));
        assert_eq!(verdict(&rows, "back to back"), ("1.00 µs".to_owned(), false));
        assert_eq!(verdict(&rows, "chain"), ("11.9 ms".to_owned(), true));
        assert_eq!(verdict(&rows, "bursts"), ("0.50".to_owned(), true));
        assert!(idle(2, 0.004).holds && !idle(2, 0.005).holds);
    }

    #[test]
    fn a_row_has_the_documented_keys() {
        let text = serde_json::to_string(&row("fib", 1, "rayon", 2.0)).unwrap();
        assert_eq!(text, r#"{"work":"fib","threads":1,"system":"rayon","ns_per_op":2.0,"cpu_s":2.0}"#);
    }
}
