//! Small pieces of drawings: escaped text, axes with round numbers, times as people say them.

use std::fmt::Write as _;

/// Text that nothing in a drawing or a page mistakes for anything else.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in filch_core::config::printable(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Characters that no XML document may have.
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// The same, cut to so many characters.
pub(super) fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return escape(text);
    }
    let cut: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", escape(&cut))
}

/// A number without needless digits.
pub(super) fn tidy(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A coordinate.
pub(super) fn n(value: f64) -> String {
    tidy(value, 2)
}

/// A large number with its thousands apart.
pub(super) fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// The unit that suits spans up to this: how many seconds it has, and its name.
pub(super) fn unit(span_s: f64) -> (f64, &'static str) {
    match span_s {
        s if s < 2e-3 => (1e-6, "µs"),
        s if s < 2.0 => (1e-3, "ms"),
        s if s < 600.0 => (1.0, "s"),
        s if s < 4.0 * 3600.0 => (60.0, "min"),
        s if s < 96.0 * 3600.0 => (3600.0, "h"),
        _ => (86_400.0, "d"),
    }
}

/// A span as a person would say it.
pub(super) fn span(seconds: f64) -> String {
    // Half as far as an axis goes with a unit, so that a second is a second.
    let (size, name) = if seconds < 2.0 { unit(seconds * 2.0) } else { unit(seconds) };
    let value = seconds / size;
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{} {name}", tidy(value, digits))
}

/// Round numbers from 0 up to `most`, about so many.
pub(super) fn ticks(most: f64, about: f64) -> Vec<f64> {
    if !(most > 0.0 && most.is_finite()) {
        return vec![0.0];
    }
    let rough = most / about;
    let size = libm::pow(10.0, libm::floor(libm::log10(rough)));
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * size).find(|step| *step >= rough).unwrap_or(rough);
    (0..=(most / step + 1e-9) as usize).map(|at| at as f64 * step).collect()
}

/// Where the times of a run stand in a drawing.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) left: f64,
    pub(super) width: f64,
    pub(super) span_s: f64,
}

impl Scale {
    pub(super) fn x(&self, seconds: f64) -> f64 {
        self.left + (seconds / self.span_s).clamp(0.0, 1.0) * self.width
    }

    /// Lines and numbers of the time, over a drawing that reaches from one height to another.
    pub(super) fn axis(&self, out: &mut String, top: f64, bottom: f64) {
        let (size, name) = unit(self.span_s);
        for value in ticks(self.span_s / size, (self.width / 110.0).clamp(3.0, 12.0)) {
            let x = self.x(value * size);
            let (x, top, bottom, text) = (n(x), n(top), n(bottom), n(bottom + 16.0));
            let value = tidy(value, 6);
            let _ = write!(out, "<path class=\"grid\" d=\"M{x} {top}V{bottom}\"/>");
            let _ =
                write!(out, "<text class=\"tick\" x=\"{x}\" y=\"{text}\" text-anchor=\"middle\">{value} {name}</text>");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_text() {
        assert_eq!(
            escape("<script>alert('1')</script>\u{1b}"),
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;\u{fffd}"
        );
        assert_eq!(short("abcdef", 4), "abc…");
    }

    #[test]
    fn numbers_are_round_and_times_are_said_as_people_do() {
        assert_eq!(ticks(10.0, 5.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.0, 5.0), [0.0]);
        assert!(ticks(f64::INFINITY, 5.0).len() == 1 && ticks(1e-9, 7.0).len() < 12);
        let said = [0.000_5, 0.001, 0.25, 31.25, 5400.0, 200_000.0, 1e7].map(span);
        assert_eq!(said, ["500 µs", "1 ms", "250 ms", "31.2 s", "90 min", "55.6 h", "116 d"]);
        assert_eq!(thousands(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
