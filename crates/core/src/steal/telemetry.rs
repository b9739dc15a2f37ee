//! Counts and latencies of steals, per peer and in total, with the report people know.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;

use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use crate::ids::WorkerId;
use crate::metrics::rate;
use crate::time::Span;

/// How a steal attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StealOutcome {
    /// Something was taken.
    Success,
    /// No answer in time.
    Timeout,
    /// The peer could not be reached.
    NetworkError,
    /// The peer had nothing to give, or nothing that may be taken.
    Rejection,
}

/// Upper bounds of the latency buckets, with their names; the last is open.
const BUCKETS: [(u64, &str); 9] = [
    (100_000, "<100us"),
    (500_000, "<500us"),
    (1_000_000, "<1ms"),
    (5_000_000, "<5ms"),
    (10_000_000, "<10ms"),
    (50_000_000, "<50ms"),
    (100_000_000, "<100ms"),
    (500_000_000, "<500ms"),
    (1_000_000_000, "<1s"),
];

/// Statistics of one peer, or of all. In JSON latencies are seconds, and the rate and the average come along.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerStats {
    /// Attempts.
    pub attempts: u64,
    /// Attempts that took something.
    pub successes: u64,
    /// Attempts without an answer in time.
    pub timeouts: u64,
    /// Attempts that did not reach the peer.
    pub network_errors: u64,
    /// Attempts the peer refused.
    pub rejections: u64,
    /// Attempts whose latency is known.
    pub timed: u64,
    /// Sum of the known latencies.
    pub latency_total: Span,
    /// Shortest.
    pub latency_min: Span,
    /// Longest.
    pub latency_max: Span,
    /// Attempts per latency bucket: below 100 µs, 500 µs, 1, 5, 10, 50, 100, 500 ms, 1 s, and above.
    pub histogram: [u64; 10],
    /// Attempts by latency in eighths of an octave, from 1 µs on; as long as the longest needs.
    pub fine: Vec<u32>,
}

/// Parts of an octave that latencies are counted by.
const PARTS: u32 = 8;

/// The part of the fine histogram that a latency belongs to.
fn fine_part(latency: Span) -> usize {
    let micros = (latency.0 / 1000).max(1);
    let octave = micros.ilog2();
    // The next three bits below the highest say which eighth it is.
    let eighth = (u128::from(latency.0.max(1000)) * u128::from(PARTS) / (1000_u128 << octave)) as u32 - PARTS;
    (octave * PARTS + eighth) as usize
}

/// Where a part begins.
fn fine_begin(part: usize) -> Span {
    let (octave, eighth) = (part as u32 / PARTS, part as u64 % u64::from(PARTS));
    Span((1000_u64 << octave.min(50)) / u64::from(PARTS) * (u64::from(PARTS) + eighth))
}

/// Statistics of all steals.
pub type StealStats = PeerStats;

impl PeerStats {
    /// Attempts that took nothing.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.timeouts + self.network_errors + self.rejections
    }

    /// Successes per attempt; 0 before the first.
    #[must_use]
    pub fn success_rate(&self) -> f64 {
        rate(self.successes, self.attempts)
    }

    /// Mean of the known latencies.
    #[must_use]
    pub fn latency_average(&self) -> Span {
        Span(self.latency_total.0.checked_div(self.timed).unwrap_or(0))
    }

    /// The median of the known latencies, within an eighth; 0 if none is known. Those of one part count as spread over it evenly.
    #[must_use]
    pub fn latency_median(&self) -> Span {
        let known: u64 = self.fine.iter().map(|&count| u64::from(count)).sum();
        let mut left = known.div_ceil(2);
        for (part, &count) in self.fine.iter().enumerate() {
            let count = u64::from(count);
            if left <= count && known > 0 {
                let (begin, end) = (fine_begin(part), fine_begin(part + 1));
                let share = (left as f64 - 0.5) / count as f64;
                return begin + Span(end.0 - begin.0).mul_f64(share);
            }
            left -= count;
        }
        Span(0)
    }

    /// Adds what somebody else counted.
    pub fn add(&mut self, other: &PeerStats) {
        if other.timed > 0 {
            let shortest = if self.timed == 0 { other.latency_min } else { self.latency_min.min(other.latency_min) };
            self.latency_min = shortest;
            self.latency_max = self.latency_max.max(other.latency_max);
        }
        self.attempts += other.attempts;
        self.successes += other.successes;
        self.timeouts += other.timeouts;
        self.network_errors += other.network_errors;
        self.rejections += other.rejections;
        self.timed += other.timed;
        self.latency_total += other.latency_total;
        for (count, more) in self.histogram.iter_mut().zip(other.histogram) {
            *count += more;
        }
        if self.fine.len() < other.fine.len() {
            self.fine.resize(other.fine.len(), 0);
        }
        for (count, &more) in self.fine.iter_mut().zip(&other.fine) {
            *count = count.saturating_add(more);
        }
    }

    /// Adds an attempt; one without an answer has no latency.
    pub(crate) fn record(&mut self, latency: Option<Span>, outcome: StealOutcome) {
        self.attempts += 1;
        match outcome {
            StealOutcome::Success => self.successes += 1,
            StealOutcome::Timeout => self.timeouts += 1,
            StealOutcome::NetworkError => self.network_errors += 1,
            StealOutcome::Rejection => self.rejections += 1,
        }
        if let Some(latency) = latency {
            self.latency_min = if self.timed == 0 { latency } else { self.latency_min.min(latency) };
            self.latency_max = self.latency_max.max(latency);
            self.latency_total += latency;
            self.timed += 1;
            let bucket = BUCKETS.iter().position(|&(bound, _)| latency.0 < bound).unwrap_or(BUCKETS.len());
            self.histogram[bucket] += 1;
            let part = fine_part(latency);
            if self.fine.len() <= part {
                self.fine.resize(part + 1, 0);
            }
            self.fine[part] = self.fine[part].saturating_add(1);
        }
    }
}

impl Serialize for PeerStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("PeerStats", 12)?;
        fields.serialize_field("attempts", &self.attempts)?;
        fields.serialize_field("successes", &self.successes)?;
        fields.serialize_field("success_rate", &self.success_rate())?;
        fields.serialize_field("timeouts", &self.timeouts)?;
        fields.serialize_field("network_errors", &self.network_errors)?;
        fields.serialize_field("rejections", &self.rejections)?;
        fields.serialize_field("timed", &self.timed)?;
        fields.serialize_field("latency_avg_s", &self.latency_average().as_secs_f64())?;
        fields.serialize_field("latency_p50_s", &self.latency_median().as_secs_f64())?;
        fields.serialize_field("latency_min_s", &self.latency_min.as_secs_f64())?;
        fields.serialize_field("latency_max_s", &self.latency_max.as_secs_f64())?;
        fields.serialize_field("histogram", &self.histogram)?;
        fields.end()
    }
}

impl fmt::Display for PeerStats {
    /// The report: counts, latencies, and the buckets that hold anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |span: Span| span.as_secs_f64() * 1e3;
        writeln!(f, "Steal Statistics:")?;
        writeln!(f, "  Attempts:    {}", self.attempts)?;
        writeln!(f, "  Successes:   {} ({:.1}%)", self.successes, self.success_rate() * 100.0)?;
        writeln!(f, "  Failures:    {}", self.failures())?;
        writeln!(f, "    Timeouts:  {}", self.timeouts)?;
        writeln!(f, "    NetErrors: {}", self.network_errors)?;
        writeln!(f, "    Rejections:{}", self.rejections)?;
        if self.timed == 0 {
            return Ok(());
        }
        writeln!(f, "  Latency:")?;
        writeln!(f, "    Avg: {:.2} ms", millis(self.latency_average()))?;
        writeln!(f, "    Min: {:.2} ms", millis(self.latency_min))?;
        writeln!(f, "    Max: {:.2} ms", millis(self.latency_max))?;
        writeln!(f, "  Latency Distribution:")?;
        let names = BUCKETS.iter().map(|bucket| bucket.1).chain([">=1s"]);
        for (name, &count) in names.zip(&self.histogram).filter(|(_, count)| **count > 0) {
            let share = count as f64 * 100.0 / self.timed as f64;
            writeln!(f, "    {:<7} {count:>5} ({share:.1}%)", format!("{name}:"))?;
        }
        Ok(())
    }
}

/// Collects how steals end, per peer and in total.
///
/// ```
/// use filch_core::steal::{StealOutcome, StealTelemetry};
/// use filch_core::{Span, WorkerId};
///
/// let mut telemetry = StealTelemetry::default();
/// let victim = WorkerId::from_bits(1);
/// telemetry.record(Some(victim), Some(Span::from_micros(80)), StealOutcome::Success);
/// telemetry.record(Some(victim), None, StealOutcome::Rejection);
/// assert_eq!(telemetry.total().success_rate(), 0.5);
/// ```
#[derive(Clone, Debug, Default)]
pub struct StealTelemetry {
    total: StealStats,
    peers: BTreeMap<WorkerId, PeerStats>,
    /// How many peers are kept apart, if not all; those asked last are, and stand here with the latest last.
    most: Option<usize>,
    recent: VecDeque<WorkerId>,
}

impl StealTelemetry {
    /// One that keeps only so many peers apart, those that were asked last. The total counts all.
    #[must_use]
    pub fn of_recent(most: usize) -> StealTelemetry {
        StealTelemetry { most: Some(most.max(1)), ..StealTelemetry::default() }
    }

    /// Adds an attempt. A search that found nobody to ask has no victim, an attempt without an answer no latency.
    pub fn record(&mut self, victim: Option<WorkerId>, latency: Option<Span>, outcome: StealOutcome) {
        self.total.record(latency, outcome);
        let Some(victim) = victim else { return };
        self.peers.entry(victim).or_default().record(latency, outcome);
        let Some(most) = self.most else { return };
        self.recent.retain(|known| *known != victim);
        self.recent.push_back(victim);
        if self.recent.len() > most
            && let Some(oldest) = self.recent.pop_front()
        {
            self.peers.remove(&oldest);
        }
    }

    /// All attempts together.
    #[must_use]
    pub fn total(&self) -> &StealStats {
        &self.total
    }

    /// The attempts against one peer.
    #[must_use]
    pub fn peer(&self, worker: WorkerId) -> Option<&PeerStats> {
        self.peers.get(&worker)
    }

    /// The attempts by peer.
    pub fn peers(&self) -> impl Iterator<Item = (WorkerId, &PeerStats)> {
        self.peers.iter().map(|(id, stats)| (*id, stats))
    }

    /// The attempts by peer, those after a peer; for drivers that list them a few at a time.
    pub fn peers_after(&self, after: Option<WorkerId>) -> impl Iterator<Item = (WorkerId, &PeerStats)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.peers.range((from, Bound::Unbounded)).map(|(id, stats)| (*id, stats))
    }

    /// Forgets a peer that left; the total stays.
    pub fn forget(&mut self, worker: WorkerId) {
        self.recent.retain(|known| *known != worker);
        self.peers.remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_known_within_an_eighth_and_mostly_better() {
        for latency in [1_000, 1_999, 2_000, 15_000, 30_500, 100_000, 5_000_000, 3_000_000_000_u64] {
            let mut stats = PeerStats::default();
            for other in [latency / 10, latency, latency, latency, latency * 10] {
                stats.record(Some(Span(other)), StealOutcome::Success);
            }
            let found = stats.latency_median().0;
            assert!(found.abs_diff(latency) <= latency / 8, "{found} for {latency}");
            let mut sum = PeerStats::default();
            sum.add(&stats);
            assert_eq!(sum, stats);
        }
        assert_eq!(PeerStats::default().latency_median(), Span(0));
        let mut even = PeerStats::default();
        for nanos in (18_000..25_000).step_by(10) {
            even.record(Some(Span(nanos)), StealOutcome::Success);
        }
        let found = even.latency_median().0;
        assert!(found.abs_diff(21_495) < 20, "{found}");
    }
}
