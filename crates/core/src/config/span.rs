//! Spans in configuration: `250ms`, `1.5s`, `2m`, or a bare number of seconds.
//!
//! Read exactly, digit by digit: a detour through floating point would turn `15us` into 14,999 ns.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserializer, Serializer, de};

use crate::time::Span;

/// What a span looks like as text; kept beside [`parse`], which decides.
const PATTERN: &str = r"^[ \t]*[0-9]+(\.[0-9]+)?[ \t]*(ns|us|µs|ms|s|m|min|h|d)?[ \t]*$";

/// The same with a digit that is not 0.
const POSITIVE: &str = r"^[ \t]*(0*[1-9][0-9]*(\.[0-9]+)?|0+\.0*[1-9][0-9]*)[ \t]*(ns|us|µs|ms|s|m|min|h|d)?[ \t]*$";

/// The longest span in seconds.
const MOST: f64 = u64::MAX as f64 / 1e9;

/// The schema of a span. Numbers are seconds, so a bound such as `exclusiveMinimum` speaks of seconds too.
#[must_use]
pub fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "number"], "pattern": PATTERN, "minimum": 0, "maximum": MOST })
}

/// The schema of a span that is not 0.
#[must_use]
pub fn positive_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "number"], "pattern": POSITIVE, "exclusiveMinimum": 0, "maximum": MOST })
}

/// Reads a span as people write it.
///
/// # Errors
/// Says what was expected when `text` is not a non-negative number with one of the known units.
pub fn parse(text: &str) -> Result<Span, String> {
    let trimmed = text.trim_matches([' ', '\t']);
    let split = trimmed.find(|c: char| c.is_alphabetic()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let nanos_per_unit: u128 = match unit {
        "" | "s" => 1_000_000_000,
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return Err("a duration is a number and ns, us, ms, s, m, h or d, such as `250ms`".to_owned()),
    };
    let nanos = decimal(number.trim_matches([' ', '\t']), nanos_per_unit)
        .ok_or_else(|| "a duration is a non-negative number and a unit, such as `250ms`".to_owned())?;
    u64::try_from(nanos).map(Span::from_nanos).map_err(|_| "a duration is shorter than 500 years".to_owned())
}

/// A decimal number times `unit`, rounded down; `None` if it is not one. Saturates.
fn decimal(text: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (text, ""),
    };
    if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut total: u128 = 0;
    for digit in whole.bytes() {
        total = total.saturating_mul(10).saturating_add(u128::from(digit - b'0'));
    }
    total = total.saturating_mul(unit);
    // Eighteen digits reach below a nanosecond even of a day, and keep the arithmetic far from overflow.
    let (mut part, mut scale): (u128, u128) = (0, 1);
    for digit in fraction.bytes().take(18) {
        part = part * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    Some(total.saturating_add(part * unit / scale))
}

/// Writes a span as people read it.
///
/// # Errors
/// Whatever the serializer finds.
pub fn serialize<S: Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(span)
}

/// Reads a span from text, or from a number of seconds.
///
/// # Errors
/// Says what was expected.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = Span;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a duration such as `250ms` or a number of seconds")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
            parse(text).map_err(E::custom)
        }
        fn visit_u64<E: de::Error>(self, secs: u64) -> Result<Span, E> {
            parse(&secs.to_string()).map_err(E::custom)
        }
        fn visit_i64<E: de::Error>(self, secs: i64) -> Result<Span, E> {
            parse(&secs.to_string()).map_err(E::custom)
        }
        fn visit_f64<E: de::Error>(self, secs: f64) -> Result<Span, E> {
            parse(&secs.to_string()).map_err(E::custom)
        }
    }
    deserializer.deserialize_any(Visitor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn people_s_notations_are_read() {
        let cases = [
            ("250ms", Span::from_millis(250)),
            ("1.5s", Span::from_millis(1500)),
            (" 2 m ", Span::from_secs(120)),
            ("2min", Span::from_secs(120)),
            ("1h", Span::from_secs(3600)),
            ("0.5d", Span::from_secs(43200)),
            ("15us", Span::from_micros(15)),
            ("300us", Span::from_micros(300)),
            ("300µs", Span::from_micros(300)),
            ("7ns", Span::from_nanos(7)),
            ("1.05ms", Span::from_nanos(1_050_000)),
            ("3", Span::from_secs(3)),
            ("0", Span::ZERO),
        ];
        for (text, span) in cases {
            assert_eq!(parse(text), Ok(span), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "s",
            "-1s",
            "1 fortnight",
            "nan",
            "inf",
            "1e3s",
            "1.",
            ".5s",
            "1.2.3s",
            "+1s",
            "1,5s",
            "9999999999999d",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(nanos in any::<u64>()) {
            let span = Span::from_nanos(nanos);
            prop_assert_eq!(parse(&span.to_string()), Ok(span));
        }
    }
}
