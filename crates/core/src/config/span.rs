//! Spans in configuration: `250ms`, `1.5s`, `2m`, or a bare number of seconds.

use serde::{Deserializer, Serializer, de};

use crate::time::Span;

/// Reads a span as people write it.
///
/// # Errors
/// Says what was expected when `text` is not a non-negative number with one of the known units.
pub(crate) fn parse(text: &str) -> Result<Span, String> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let factor = match unit.trim() {
        "" | "s" => 1.0,
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(format!("`{text}` is no duration: expected a number and ns, us, ms, s, m, h or d")),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(Span::from_secs_f64(value * factor)),
        _ => Err(format!("`{text}` is no duration: expected a non-negative number and a unit, such as `250ms`")),
    }
}

pub(crate) fn serialize<S: Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(span)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
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
            Ok(Span::from_secs(secs))
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
