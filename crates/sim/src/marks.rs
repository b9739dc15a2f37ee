//! What happened in a world, for people: the text trace, pictures and reports are made from it.

use filch_core::{Cause, Span, Status, Time};

/// Something that happened. Tasks and workers are named by their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Mark {
    /// A task arrived.
    Submitted { task: u32 },
    /// A task arrived that another one spawned, which a worker ran.
    Spawned { task: u32, node: u32 },
    /// A worker began a task, and so many were left in its queue.
    Began { task: u32, node: u32, queued: u32 },
    /// A run came to its end.
    Ended { task: u32, node: u32, failed: bool },
    /// A run ended with its worker.
    Lost { task: u32, node: u32 },
    /// A task was settled.
    Settled { task: u32, status: Status, cause: Cause },
    /// A queued task changed hands.
    Moved { task: u32, from: u32, to: u32 },
    /// A worker joined.
    Joined { node: u32 },
    /// A worker died.
    Died { node: u32 },
    /// A worker stands still.
    Paused { node: u32 },
    /// A worker is back.
    Back { node: u32 },
    /// The coordinator died.
    CoordinatorDied,
    /// Another coordinator took over.
    TookOver,
}

/// How much waits in the workers' queues at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub at: Time,
    /// Tasks in all of them.
    pub queued: u64,
    /// Tasks in the longest.
    pub longest: u32,
}

/// All of it, in order.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    list: Vec<(Time, Mark)>,
    samples: Vec<Sample>,
    /// From one sample to the next.
    every: Span,
    next_sample: Time,
}

/// Samples kept at most; with more, about every second is dropped and from then on only half as many are taken.
const SAMPLES: usize = 1024;

impl Marks {
    pub(crate) fn push(&mut self, at: Time, mark: Mark) {
        self.list.push((at, mark));
    }

    /// What happened, and when.
    pub fn iter(&self) -> impl Iterator<Item = (Time, Mark)> + '_ {
        self.list.iter().copied()
    }

    /// How much happened.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What waited at the workers, now and then.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Whether it is time to look again.
    pub(crate) fn wants_sample(&self, now: Time) -> bool {
        now >= self.next_sample
    }

    pub(crate) fn sample(&mut self, sample: Sample) {
        self.samples.push(sample);
        self.every = self.every.max(Span::from_micros(100));
        if self.samples.len() >= SAMPLES {
            // What happens may be further apart than samples were meant to be.
            let first = self.samples.first().map_or(sample.at, |first| first.at);
            self.every = (self.every + self.every).max(Span(sample.at.since(first).0 / (SAMPLES as u64 / 2)));
            let (every, mut next) = (self.every, Time::ZERO);
            self.samples.retain(|sample| {
                let kept = sample.at >= next;
                next = if kept { sample.at + every } else { next };
                kept
            });
        }
        self.next_sample = sample.at + self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_long_it_goes_on_there_are_neither_few_nor_many_samples_at_even_distances() {
        let mut marks = Marks::default();
        for step in 0..1_000_000 {
            let at = Time::ZERO + Span::from_millis(7 * step);
            if marks.wants_sample(at) {
                marks.sample(Sample { at, queued: 0, longest: 0 });
            }
        }
        let count = marks.samples().len();
        assert!((SAMPLES / 4..SAMPLES).contains(&count), "{count}");
        let gaps: Vec<f64> =
            marks.samples().windows(2).map(|pair| pair[1].at.since(pair[0].at).as_secs_f64()).collect();
        let (least, most) = (gaps.iter().copied().fold(f64::MAX, f64::min), gaps.iter().copied().fold(0.0, f64::max));
        assert!(least > 0.0 && most < 4.0 * least, "{least} {most}");
    }
}
