//! The bar at the bottom of a terminal while a job runs; lines now and then where there is no terminal and it is wished.

use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use filch_core::wire::talk::Progress;
use indicatif::{HumanDuration, HumanFloatCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::tally::Tally;
use crate::output;

/// How often a line is written where there is no terminal.
const EVERY: Duration = Duration::from_secs(5);

/// How a job goes, for those who look on.
pub(super) struct Bar {
    bar: ProgressBar,
    /// Whether standard output goes to a terminal, as the bar does.
    out_is_terminal: bool,
    /// Lines instead, and when the last was written.
    lines: Option<Instant>,
    total: u64,
    /// What the coordinator counted last.
    told: Progress,
}

impl Bar {
    pub(super) fn new(total: u64, wished: bool, unwished: bool) -> Bar {
        let terminal = console::Term::stderr().is_term();
        let bar = if terminal && !unwished {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(style());
            bar.set_message(counts(&Progress::default()));
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        } else {
            ProgressBar::hidden()
        };
        let lines = (wished && !unwished && !terminal).then(Instant::now);
        let out_is_terminal = console::Term::stdout().is_term();
        Bar { bar, out_is_terminal, lines, total, told: Progress::default() }
    }

    pub(super) fn show(&mut self, progress: &Progress) {
        if progress.total > self.total {
            // Running tasks may have asked for more.
            self.total = progress.total;
            self.bar.set_length(self.total);
        }
        self.told = progress.clone();
        self.draw(ended_of(progress));
    }

    /// A task ended; the coordinator's own count may come later.
    pub(super) fn ended(&mut self, tally: &Tally) {
        let (done, failed) = (tally.completed, tally.failed);
        if done > self.told.completed || failed > self.told.failed {
            self.told.completed = done.max(self.told.completed);
            self.told.failed = failed.max(self.told.failed);
            self.told.stolen = self.told.stolen.max(tally.stolen);
            let ended = ended_of(&self.told);
            // What has ended does not run, whatever was told before.
            self.told.running = self.told.running.min(self.total.saturating_sub(ended));
            self.draw(ended);
        }
    }

    fn draw(&mut self, ended: u64) {
        self.bar.set_position(ended.min(self.total));
        if !self.bar.is_hidden() {
            self.bar.set_message(counts(&self.told));
        }
        if let Some(last) = &mut self.lines
            && last.elapsed() >= EVERY
        {
            *last = Instant::now();
            output::note(&format!("{ended} of {}: {}", self.total, counts(&self.told)));
        }
    }

    /// Standard output and error, beside the bar. Only a terminal is shared with it: whoever waits for the reader of a pipe must
    /// keep neither the bar nor standard error from others meanwhile.
    pub(super) fn streams(&self) -> (Beside<'_, io::Stdout>, Beside<'_, io::Stderr>) {
        let bar = (!self.bar.is_hidden()).then_some(&self.bar);
        let out = Beside { bar: bar.filter(|_| self.out_is_terminal), to: io::stdout() };
        (out, Beside { bar, to: io::stderr() })
    }

    /// What can speak beside it.
    pub(super) fn herald(&self) -> Herald {
        Herald(self.bar.clone())
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Writes whole pieces to a terminal that has a bar.
pub(super) struct Beside<'a, W> {
    bar: Option<&'a ProgressBar>,
    to: W,
}

impl<W: Write> Beside<'_, W> {
    fn paused<T>(&mut self, write: impl FnOnce(&mut W) -> T) -> T {
        let to = &mut self.to;
        match self.bar {
            Some(bar) => bar.suspend(|| write(to)),
            None => write(to),
        }
    }
}

impl<W: Write> Write for Beside<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.paused(|to| to.write(bytes))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        // What is still in a buffer would come out when the bar is back.
        self.paused(|to| to.write_all(bytes).and_then(|()| to.flush()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Speaks to those who look on, without disturbing the bar.
pub(super) struct Herald(ProgressBar);

impl Herald {
    /// Whether somebody looks at the bar.
    pub(super) fn has_onlooker(&self) -> bool {
        !self.0.is_hidden()
    }

    pub(super) fn say(&self, text: &str) {
        if self.0.is_hidden() { output::note(text) } else { self.0.suspend(|| output::note(text)) }
    }
}

fn style() -> ProgressStyle {
    let template = "[{elapsed_precise}] {bar:24.cyan/blue} {pos}/{len} {msg}{pace}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("█▉░").with_key("pace", |state: &ProgressState, to: &mut dyn fmt::Write| {
        // It goes to memory, which does not fail.
        let _ = to.write_str(&pace(state.pos(), state.per_sec(), state.eta()));
    })
}

/// How fast it goes and how long it will take: nobody knows before something has ended.
fn pace(ended: u64, per_second: f64, left: Duration) -> String {
    if ended == 0 {
        return String::new();
    }
    format!(" · {}/s, {:#} left", HumanFloatCount(per_second), HumanDuration(left))
}

fn ended_of(progress: &Progress) -> u64 {
    progress.completed + progress.failed + progress.cancelled + progress.skipped
}

/// The counts in words; what is 0 and seldom is left out.
fn counts(progress: &Progress) -> String {
    let mut text = format!("running {} · done {} · failed {}", progress.running, progress.completed, progress.failed);
    for (count, word) in [(progress.cancelled, "cancelled"), (progress.skipped, "skipped")] {
        if count > 0 {
            text += &format!(" · {word} {count}");
        }
    }
    text + &format!(" · stolen {}", progress.stolen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_once_something_has_ended() {
        assert_eq!(pace(0, 0.0, Duration::ZERO), "");
        assert_eq!(pace(3, 0.5, Duration::from_secs(8)), " · 0.5/s, 8s left");
    }

    #[test]
    fn what_has_ended_does_not_run() {
        let mut bar = Bar::new(3, false, true);
        bar.show(&Progress { total: 3, running: 2, ..Progress::default() });
        let mut tally = Tally::new();
        tally.completed = 2;
        bar.ended(&tally);
        assert_eq!(counts(&bar.told), "running 1 · done 2 · failed 0 · stolen 0");
    }

    #[test]
    fn counts_are_told_in_words() {
        let progress = Progress { running: 2, completed: 5, failed: 1, stolen: 3, ..Progress::default() };
        assert_eq!(counts(&progress), "running 2 · done 5 · failed 1 · stolen 3");
        let progress = Progress { skipped: 4, ..progress };
        assert_eq!(counts(&progress), "running 2 · done 5 · failed 1 · skipped 4 · stolen 3");
        assert_eq!(ended_of(&progress), 10);
    }
}
