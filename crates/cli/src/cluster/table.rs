//! Tables for people: columns without lines, short numbers, times as ages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::Table;
use filch_core::config::printable;

use crate::live::{duration, shortened};

/// The longest text in a column.
const WIDEST: usize = 60;

/// A table with these columns.
pub(super) fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(columns.iter().copied());
    table
}

/// Text of others, fit for a column.
pub(super) fn text(text: &str) -> String {
    printable(&shortened(text, WIDEST))
}

/// What may be missing.
pub(super) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Seconds as people read them.
pub(super) fn seconds(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// How long ago a time was that is given in seconds since 1970.
pub(super) fn ago(then_s: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    format!("{} ago", seconds((now - then_s).max(0.0)))
}

/// Bytes as people read them.
pub(super) fn bytes(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Names and values, one a line.
pub(super) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    facts.iter().map(|(name, value)| format!("{name:width$}  {}\n", printable(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        assert_eq!(
            (bytes(512).as_str(), bytes(1536).as_str(), bytes(3 << 30).as_str()),
            ("512 B", "1.5 KiB", "3.0 GiB")
        );
        assert_eq!(facts(&[("a", "1".to_owned()), ("long", "x\u{1b}".to_owned())]), "a     1\nlong  x\u{fffd}\n");
        assert_eq!(text(&"x".repeat(99)).chars().count(), WIDEST);
    }
}
