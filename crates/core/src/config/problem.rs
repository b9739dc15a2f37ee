//! What is wrong with a configuration, and how it is shown: like a compiler does.

use std::fmt::{self, Write as _};
use std::ops::Range;

use unicode_width::UnicodeWidthStr as _;

use super::node::Mark;

/// Characters of a source line shown around a mistake.
const SHOWN: usize = 100;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The setting it is about, such as `stealing.steal_timeout`; empty when it is about the whole text.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// Where it stands; nowhere for a configuration that was built in code.
    pub place: Option<Place>,
}

/// A place in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Characters concerned, at least 1.
    pub length: usize,
    /// The line itself.
    pub text: String,
}

/// Everything that is wrong with a configuration, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    label: String,
    problems: Vec<Problem>,
}

/// What to write before and after the parts of a rendered problem, so that a terminal can show them in colour.
#[derive(Clone, Copy, Debug, Default)]
pub struct Palette<'a> {
    /// Before `error:` and the carets.
    pub error: &'a str,
    /// Before file, line and column.
    pub place: &'a str,
    /// Before line numbers and `help:`.
    pub margin: &'a str,
    /// After each of them.
    pub reset: &'a str,
}

impl Problem {
    pub(super) fn new(key: &str, message: String) -> Problem {
        Problem { key: key.to_owned(), message, help: None, place: None }
    }

    pub(super) fn with_help(mut self, help: Option<String>) -> Problem {
        self.help = help;
        self
    }

    fn render(&self, label: &str, palette: &Palette<'_>, out: &mut String) -> fmt::Result {
        let Palette { error, place: bold, margin, reset } = palette;
        match &self.place {
            Some(place) => write!(out, "{bold}{label}:{}:{}:{reset} ", place.line, place.column)?,
            None if label.is_empty() => {}
            None => write!(out, "{bold}{label}:{reset} ")?,
        }
        writeln!(out, "{error}error:{reset} {}", printable(&self.message))?;
        if let Some(place) = &self.place {
            let number = place.line.to_string();
            let (text, before, length) = place.excerpt();
            writeln!(out, "{margin}{number:>5} |{reset} {text}")?;
            writeln!(out, "{margin}      |{reset} {:before$}{error}{}{reset}", "", "^".repeat(length))?;
        }
        if let Some(help) = &self.help {
            writeln!(out, "{margin}      help:{reset} {}", printable(help))?;
        }
        Ok(())
    }
}

impl Place {
    /// The place of a mark in a text of these lines, moved to the nearest existing one should it lie outside.
    pub(super) fn locate(lines: &[&str], mark: Mark) -> Place {
        let line = mark.line.clamp(1, lines.len());
        let content = lines[line - 1];
        let length = content.chars().count();
        let column = if mark.line > lines.len() { length + 1 } else { mark.column.clamp(1, length + 1) };
        let room = (length + 1).saturating_sub(column).max(1);
        Place { line, column, length: mark.length.clamp(1, room), text: content.to_owned() }
    }

    /// The part of the line worth showing, the terminal columns before the carets and the number of carets.
    fn excerpt(&self) -> (String, usize, usize) {
        let characters: Vec<char> = printable(&self.text).chars().collect();
        let at = self.column - 1;
        let start =
            if characters.len() <= SHOWN { 0 } else { at.saturating_sub(SHOWN / 2).min(characters.len() - SHOWN) };
        let end = characters.len().min(start + SHOWN);
        let marked_end = (at + self.length).clamp(at.min(end), end);
        let text = |range: Range<usize>| characters[range].iter().collect::<String>();
        let shown = text(start..end).trim_end().to_owned();
        (shown, text(start..at.min(end)).width(), text(at.min(end)..marked_end).width().max(1))
    }
}

/// The lines of a text as YAML counts them: they end with `\n`, `\r\n` or a lone `\r`. There is always one.
pub(super) fn lines(text: &str) -> Vec<&str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r')).collect()
}

/// The text with one harmless character for each that would move the cursor or command the terminal.
///
/// ```
/// assert_eq!(filch_core::config::printable("a\u{1b}[31m\tb"), "a\u{fffd}[31m b");
/// ```
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' | '\u{2028}' | '\u{2029}' => ' ',
            // Controls, and marks that reorder what stands around them.
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}') =>
            {
                '\u{fffd}'
            }
            c => c,
        })
        .collect()
}

impl ConfigErrors {
    /// Problems of the text called `label`. Sorts them by place.
    #[must_use]
    pub fn new(label: &str, mut problems: Vec<Problem>) -> ConfigErrors {
        problems.sort_by_key(|problem| problem.place.as_ref().map(|place| (place.line, place.column)));
        ConfigErrors { label: label.to_owned(), problems }
    }

    /// The name of the text, usually its file.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The problems, at least one, in the order of the text.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// All problems for a person to read. The default [`Palette`] gives plain text.
    #[must_use]
    pub fn render(&self, palette: &Palette<'_>) -> String {
        let mut out = String::new();
        let label = printable(&self.label);
        for problem in &self.problems {
            // Writing to a string cannot fail.
            let _ = problem.render(&label, palette, &mut out);
        }
        out
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(&Palette::default()).trim_end())
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for Problem {
    /// One line: the key, what is wrong, what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.message))?;
        match &self.help {
            Some(help) => write!(f, " ({})", printable(help)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, line: usize, column: usize) -> (usize, usize, String) {
        let place = Place::locate(&lines(text), Mark { line, column, length: 1 });
        (place.line, place.column, place.text)
    }

    #[test]
    fn lines_are_counted_as_yaml_counts_them() {
        let text = "a\r\nbc\rd\n";
        assert_eq!(at(text, 1, 1), (1, 1, "a".to_owned()));
        assert_eq!(at(text, 2, 2), (2, 2, "bc".to_owned()));
        assert_eq!(at(text, 3, 1), (3, 1, "d".to_owned()));
        assert_eq!(at(text, 4, 1), (4, 1, String::new()));
    }

    #[test]
    fn places_outside_the_text_are_moved_into_it() {
        assert_eq!(at("abc", 9, 9), (1, 4, "abc".to_owned()));
        assert_eq!(at("abc", 0, 0), (1, 1, "abc".to_owned()));
        assert_eq!(at("", 1, 5), (1, 1, String::new()));
    }

    #[test]
    fn long_lines_are_cropped_around_the_mistake() {
        let text = format!("{}X{}", "a".repeat(300), "b".repeat(300));
        let place = Place::locate(&lines(&text), Mark { line: 1, column: 301, length: 1 });
        let (shown, before, length) = place.excerpt();
        assert_eq!(shown.chars().count(), SHOWN);
        assert_eq!(shown.chars().nth(before), Some('X'));
        assert_eq!(length, 1);
    }

    #[test]
    fn nothing_in_a_file_can_command_the_terminal() {
        let place = Place::locate(&["a\u{1b}[31mb"], Mark { line: 1, column: 1, length: 1 });
        let problem = Problem { place: Some(place), ..Problem::new("", "bad \u{7}".to_owned()) };
        let rendered = ConfigErrors::new("x\u{1b}.yaml", vec![problem]).to_string();
        assert!(!rendered.contains(['\u{1b}', '\u{7}']), "{rendered:?}");
    }
}
