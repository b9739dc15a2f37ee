//! Time as the machines see it: integer nanoseconds handed in by whoever drives them.
//!
//! Never reads a clock. A [`Time`] counts from a moment the driver chose (its start, usually), a [`Span`] is a
//! length of time; both saturate instead of wrapping, so that "never" stays never.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A moment, in nanoseconds since the driver's epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A length of time, in nanoseconds.
///
/// ```
/// use filch_core::Span;
/// assert_eq!(Span::from_millis(1500).as_secs_f64(), 1.5);
/// assert_eq!(Span::from_secs_f64(-1.0), Span::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Time {
    /// The driver's epoch.
    pub const ZERO: Time = Time(0);
    /// Later than every real moment; stands for "no deadline".
    pub const NEVER: Time = Time(u64::MAX);

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// Seconds since the epoch.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);
    /// Longer than anything real.
    pub const MAX: Span = Span(u64::MAX);

    /// A span of whole nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Span {
        Span(nanos)
    }

    /// A span of whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Span {
        Span(micros.saturating_mul(1_000))
    }

    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Span {
        Span(millis.saturating_mul(1_000_000))
    }

    /// A span of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Span {
        Span(secs.saturating_mul(1_000_000_000))
    }

    /// A span of that many seconds; negative and undefined values count as zero, huge ones as [`Span::MAX`].
    #[must_use]
    pub fn from_secs_f64(secs: f64) -> Span {
        // A float cast saturates and maps NaN to zero, which is what is promised above.
        Span((secs * 1e9) as u64)
    }

    /// The span in seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span in microseconds, rounded down.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// This span times a non-negative factor.
    #[must_use]
    pub fn mul_f64(self, factor: f64) -> Span {
        Span((self.0 as f64 * factor) as u64)
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Time {
    type Output = Time;
    fn sub(self, span: Span) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl Sub for Span {
    type Output = Span;
    fn sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Span) {
        *self = *self + other;
    }
}

impl SubAssign for Span {
    fn sub_assign(&mut self, other: Span) {
        *self = *self - other;
    }
}

/// Planned time of many tasks. A sum that no number of them exceeds, so that what was added can be taken away again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work(u128);

impl Work {
    #[inline]
    pub(crate) fn span(self) -> Span {
        Span(u64::try_from(self.0).unwrap_or(u64::MAX))
    }

    /// The share of each slot.
    #[inline]
    pub(crate) fn per(self, slots: u32) -> Span {
        // Only what is beyond all bounds needs the long division.
        let whole = self.span();
        if slots <= 1 {
            whole
        } else if whole < Span::MAX {
            Span(whole.0 / u64::from(slots))
        } else {
            Work(self.0 / u128::from(slots)).span()
        }
    }
}

impl Add for Work {
    type Output = Work;
    #[inline]
    fn add(self, other: Work) -> Work {
        Work(self.0 + other.0)
    }
}

impl AddAssign<Span> for Work {
    #[inline]
    fn add_assign(&mut self, planned: Span) {
        self.0 += u128::from(planned.0);
    }
}

impl SubAssign<Span> for Work {
    #[inline]
    fn sub_assign(&mut self, planned: Span) {
        self.0 = self.0.saturating_sub(u128::from(planned.0));
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Time::NEVER { f.write_str("never") } else { Span(self.0).fmt(f) }
    }
}

impl fmt::Display for Span {
    /// The shortest exact form a person would write: `1.5s`, `20ms`, `300us`, `7ns`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = match self.0 {
            0 => return f.write_str("0s"),
            n if n >= 1_000_000_000 => ("s", 1_000_000_000),
            n if n >= 1_000_000 => ("ms", 1_000_000),
            n if n >= 1_000 => ("us", 1_000),
            _ => ("ns", 1),
        };
        let (whole, rest) = (self.0 / size, self.0 % size);
        if rest == 0 {
            return write!(f, "{whole}{unit}");
        }
        let digits = size.ilog10() as usize;
        let fraction = format!("{rest:0digits$}");
        write!(f, "{whole}.{}{unit}", fraction.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_print_as_people_write_them() {
        let cases = [
            (Span::ZERO, "0s"),
            (Span::from_millis(1500), "1.5s"),
            (Span::from_millis(20), "20ms"),
            (Span::from_nanos(1_050_000), "1.05ms"),
            (Span::from_micros(300), "300us"),
            (Span::from_nanos(7), "7ns"),
        ];
        for (span, text) in cases {
            assert_eq!(span.to_string(), text);
        }
    }

    #[test]
    fn time_saturates_instead_of_wrapping() {
        assert_eq!(Time::NEVER + Span::from_secs(1), Time::NEVER);
        assert_eq!(Time::ZERO - Span::from_secs(1), Time::ZERO);
        assert_eq!(Span::from_secs_f64(f64::NAN), Span::ZERO);
        assert_eq!(Span::from_secs_f64(1e30), Span::MAX);
    }
}
