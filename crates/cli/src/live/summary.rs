//! What people read when a job is over.

use std::fmt::Write as _;
use std::time::Duration;

use filch_core::Span;
use filch_core::config::printable;

use super::tally::Tally;

/// The summary of a job; `before` tasks were done in an earlier run.
pub(super) fn text(tally: &Tally, wall: Duration, slots: u32, before: u64) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(tally, wall, slots, before, &mut text);
    text
}

fn write(tally: &Tally, wall: Duration, slots: u32, before: u64, text: &mut String) -> std::fmt::Result {
    let mut counts = format!("{} done", tally.completed);
    let more = [
        (tally.failed, "failed"),
        (tally.cancelled, "cancelled"),
        (tally.skipped, "skipped"),
        (tally.retried, "retries"),
        (before, "done before"),
    ];
    for (count, word) in more {
        if count > 0 {
            counts += &format!(", {count} {word}");
        }
    }
    writeln!(text, "{counts} in {}", duration(wall))?;
    let mut figures = Vec::new();
    if let Some(efficiency) = tally.efficiency(wall, slots) {
        let slots = if slots == 1 { "1 slot".to_owned() } else { format!("{slots} slots") };
        figures.push(format!("efficiency {:.1}% of {slots}", 100.0 * efficiency));
    }
    if let (Some(p50), Some(p95)) = (tally.wait(0.5), tally.wait(0.95)) {
        figures.push(format!("wait p50 {}, p95 {}", duration(p50), duration(p95)));
    }
    figures.push(format!("{} stolen", tally.stolen));
    writeln!(text, "{}", figures.join(" · "))?;
    if let (tasks @ 1.., bytes) = tally.cut_short {
        let tasks = if tasks == 1 { "1 task".to_owned() } else { format!("{tasks} tasks") };
        writeln!(text, "output of {tasks} was cut short, {bytes} bytes left out: --keep says how much is kept")?;
    }
    let slowest = tally.slowest();
    if slowest.len() > 1 {
        writeln!(text, "slowest:")?;
        for (took, what) in slowest {
            writeln!(text, "  {:>8}  {}", duration(took), printable(what))?;
        }
    }
    let failures = tally.failures();
    if !failures.is_empty() {
        let shown = failures.len() as u64;
        let rest =
            if tally.failed > shown { format!(" (the first {shown} of {})", tally.failed) } else { String::new() };
        writeln!(text, "failures{rest}:")?;
        for failure in failures {
            writeln!(text, "  {}\n    {}", printable(&failure.what), printable(&failure.why))?;
            for line in failure.said.lines() {
                writeln!(text, "    | {}", printable(line))?;
            }
        }
    }
    Ok(())
}

/// Three digits are enough for people.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        s if s >= 3600.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 100.0 => format!("{:.1} min", s / 60.0),
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.001 => format!("{:.1} ms", s * 1e3),
        s if s > 0.0 => format!("{:.0} us", s * 1e6),
        _ => Span::ZERO.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use filch_core::wire::talk::{Ended, Ending};

    use super::*;

    #[test]
    fn the_summary_has_what_people_look_for() {
        let mut tally = Tally::new();
        for number in 1..=4u32 {
            let failed = number == 3;
            let ending = Ending {
                exit_code: failed.then_some(7),
                stderr: "oh\nno \u{1b}[31m\n".into(),
                stdout_left_out: u64::from(number / 3 * 50),
                ..Ending::default()
            };
            let ended = Ended {
                status: if failed { "failed" } else { "completed" }.to_owned(),
                attempts: 1,
                hops: number % 2,
                ran_nanos: u64::from(number) * 1_000_000_000,
                waited_nanos: 2_000_000,
                ending: Some(Box::new(ending)),
                ..Ended::default()
            };
            tally.ended(&ended, || format!("task {number}: work {number}"));
        }
        let text = text(&tally, Duration::from_secs(5), 2, 6);
        let expected = "3 done, 1 failed, 6 done before in 5.00 s\n\
            efficiency 100.0% of 2 slots · wait p50 2.0 ms, p95 2.0 ms · 2 stolen\n\
            output of 2 tasks was cut short, 100 bytes left out: --keep says how much is kept\n\
            slowest:\n    4.00 s  task 4: work 4\n    3.00 s  task 3: work 3\n    2.00 s  task 2: work 2\n    1.00 s  task 1: work 1\n\
            failures:\n  task 3: work 3\n    exit code 7\n    | oh\n    | no \u{fffd}[31m\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn durations_have_three_digits() {
        let cases = [
            (0, "0s"),
            (1_500, "2 us"),
            (2_500_000, "2.5 ms"),
            (1_234_000_000, "1.23 s"),
            (12_340_000_000, "12.3 s"),
            (120_000_000_000, "2.0 min"),
        ];
        for (nanos, expected) in cases {
            assert_eq!(duration(Duration::from_nanos(nanos)), expected);
        }
    }
}
