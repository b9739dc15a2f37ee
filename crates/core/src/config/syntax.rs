//! What is wrong with a text as YAML, in words for people and with the place where the mistake begins.
//!
//! The reader says where it gave up; for a quote or a tab that is somewhere behind the mistake, so the tokens up to there are
//! looked at again. Knows nothing of settings.

use serde_saphyr::granit_parser::{ErrorKind, Marker, Scanner, StrInput, Token, TokenType};
use serde_saphyr::{Error, Location, MessageFormatter, UserMessageFormatter};

use super::node::Mark;
use super::problem::lines;

/// Why a text is not a usable document.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub(super) mark: Option<Mark>,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

/// What YAML itself knows how to tag.
const CORE_TAGS: [&str; 7] = ["str", "int", "float", "bool", "null", "map", "seq"];

const NO_TABS: &str = "indent with spaces: YAML allows no tabs there";
/// Where no better advice is known.
const LOOK_THERE: &str =
    "look for a bracket, a quote, a colon or an indentation that is not as it should be, there or just before";

/// Why the reader gave up on `text`.
pub(super) fn describe(error: &Error, text: &str) -> SyntaxError {
    let mark = error.location().and_then(mark_of);
    let (cause, in_alias) = cause(error);
    let (message, help) = match cause {
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or("?");
            (format!("the key `{key}` is given twice"), Some("keep one of the two"))
        }
        Error::MultipleDocuments { .. } => {
            ("expected one document, found another one".to_owned(), Some("remove what follows `---` or `...`"))
        }
        Error::UnknownAnchor { .. } => {
            ("this alias names an anchor that does not exist".to_owned(), Some("define it above with `&name`"))
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            ("this alias stands inside of what it names".to_owned(), Some("write out what is meant"))
        }
        Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => too_many_aliases(),
        Error::Budget { .. } if in_alias => too_many_aliases(),
        Error::Budget { .. } => {
            ("too long or too deeply nested, aliases included".to_owned(), Some("such a file needs far less"))
        }
        other => return token_error(text).unwrap_or_else(|| not_yaml(other, mark, text)),
    };
    SyntaxError { mark, message, help: help.map(str::to_owned) }
}

fn too_many_aliases() -> (String, Option<&'static str>) {
    let help = "an alias repeats all that its anchor holds, aliases included; write out the few values that are meant";
    ("with this alias the file becomes too large".to_owned(), Some(help))
}

fn not_yaml(error: &Error, mark: Option<Mark>, text: &str) -> SyntaxError {
    let message = format!("not valid YAML: {}", UserMessageFormatter.format_message(error));
    let line = mark.and_then(|mark| lines(text).get(mark.line.saturating_sub(1)).copied()).unwrap_or_default();
    let indented_with_tabs = line.chars().take_while(|c| c.is_whitespace()).any(|c| c == '\t');
    let help = if indented_with_tabs { NO_TABS } else { LOOK_THERE };
    SyntaxError { mark, message, help: Some(help.to_owned()) }
}

/// The error at the bottom, and whether it happened while an alias was followed.
fn cause(error: &Error) -> (&Error, bool) {
    let (mut error, mut in_alias) = (error, false);
    loop {
        match error {
            Error::WithSnippet { error: inner, .. } => error = inner,
            Error::AliasError { error: inner, .. } => (error, in_alias) = (inner, true),
            other => return (other, in_alias),
        }
    }
}

/// The place of something in the text it was read from.
pub(super) fn mark_of(location: Location) -> Option<Mark> {
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    (location != Location::UNKNOWN).then(|| Mark {
        line: number(location.line()),
        column: number(location.column()),
        length: number(location.span().len()),
    })
}

/// Tags that neither YAML nor filch gives a meaning, so that whoever wrote them expected something that will not happen.
pub(super) fn unknown_tags(text: &str) -> Vec<SyntaxError> {
    if !text.contains('!') {
        return Vec::new();
    }
    let tokens = Scanner::new(StrInput::new(text)).map_while(Result::ok);
    let unknown = |token: Token<'_>| match token.token_type() {
        TokenType::Tag(handle, name) if !has_meaning(handle, name) => {
            let span = token.span();
            let length = span.end.index() - span.start.index();
            let from = span.start.byte_offset().unwrap_or_default();
            let written: String = text.get(from..).unwrap_or_default().chars().take(length).collect();
            Some(SyntaxError {
                mark: Some(Mark { length, ..mark_at(span.start) }),
                message: format!("unknown tag `{}`", written.trim_end()),
                help: Some("remove it: no setting needs a tag".to_owned()),
            })
        }
        _ => None,
    };
    tokens.filter_map(unknown).collect()
}

fn has_meaning(handle: &str, name: &str) -> bool {
    // A lone `!` says that a value is text.
    (handle == "!!" && CORE_TAGS.contains(&name)) || (handle.is_empty() && name == "!")
}

fn mark_at(marker: Marker) -> Mark {
    Mark { line: marker.line(), column: marker.col() + 1, length: 1 }
}

/// The first mistake in the tokens of the text, if it is one that the reader places somewhere behind its beginning.
fn token_error(text: &str) -> Option<SyntaxError> {
    let mut read_up_to = 0;
    let mut scanner = Scanner::new(StrInput::new(text));
    let error = scanner.find_map(|token| match token {
        Ok(token) => {
            read_up_to = token.span().end.index();
            None
        }
        Err(error) => Some(error),
    })?;
    let gave_up = error.marker();
    match error.kind() {
        ErrorKind::UnclosedQuotedScalar => unclosed(text, read_up_to, None),
        ErrorKind::InvalidQuotedScalarIndent | ErrorKind::DocumentIndicatorInQuotedScalar => {
            unclosed(text, read_up_to, Some(gave_up))
        }
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar => Some(SyntaxError {
            mark: Some(tab(text, gave_up, matches!(error.kind(), ErrorKind::TabInPlainScalar))),
            message: format!("not valid YAML: {}", error.kind()),
            help: Some(NO_TABS.to_owned()),
        }),
        _ => None,
    }
}

/// The quote that is open where the reader gave up, or at the end.
fn unclosed(text: &str, from: usize, gave_up: Option<&Marker>) -> Option<SyntaxError> {
    let text: Vec<char> = text.chars().collect();
    let to = gave_up.map_or(text.len(), Marker::index).min(text.len());
    let (at, quote) = open_quote(&text, from, to)?;
    let (until, help) = match gave_up {
        Some(marker) if text[to..].iter().any(|c| !c.is_whitespace()) => (
            format!("is not closed before line {}", marker.line()),
            ", or indent all lines of the text deeper than its key",
        ),
        _ => ("is never closed".to_owned(), ""),
    };
    Some(SyntaxError {
        mark: Some(mark_of_index(&text, at)),
        message: format!("not valid YAML: the quote that opens here {until}"),
        help: Some(format!("close it with `{quote}`{help}")),
    })
}

/// The quote between two places that is still open at the second one.
fn open_quote(text: &[char], from: usize, to: usize) -> Option<(usize, char)> {
    let mut at = from;
    while at < to.min(text.len()) {
        match text[at] {
            '#' if at == 0 || text[at - 1].is_whitespace() => {
                while at < text.len() && text[at] != '\n' {
                    at += 1;
                }
            }
            quote @ ('"' | '\'') => match closed(text, at, to) {
                Some(end) => at = end,
                None => return Some((at, quote)),
            },
            _ => {}
        }
        at += 1;
    }
    None
}

/// Where the quote at a place is closed again, if it is before `to`.
fn closed(text: &[char], open: usize, to: usize) -> Option<usize> {
    let (quote, mut at) = (text[open], open + 1);
    while at < to.min(text.len()) {
        match text[at] {
            '\\' if quote == '"' => at += 1,
            c if c == quote && quote == '\'' && text.get(at + 1) == Some(&quote) => at += 1,
            c if c == quote => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

fn mark_of_index(text: &[char], index: usize) -> Mark {
    // Lines end as YAML says: `\n`, `\r\n` or a lone `\r`.
    let ends = |at: &usize| text[*at] == '\n' || text[*at] == '\r' && text.get(*at + 1) != Some(&'\n');
    let starts = (0..index).filter(ends).map(|at| at + 1);
    let (line, start) = starts.fold((1, 0), |(line, _), start| (line + 1, start));
    Mark { line, column: index - start + 1, length: 1 }
}

/// The tab that the reader stumbled over: in the indentation of the line where it gave up, before that place, or in the
/// indentation of a following line. A reader of a plain text gives up at its beginning, so that what stands before is sound.
fn tab(text: &str, gave_up: &Marker, plain: bool) -> Mark {
    let lines = lines(text);
    let indentation = |line: &&str| line.chars().take_while(|c| matches!(c, ' ' | '\t')).position(|c| c == '\t');
    let from = gave_up.line().saturating_sub(1);
    let here = lines.get(from).copied().unwrap_or_default();
    let before: Vec<char> = here.chars().take(gave_up.col() + 1).collect();
    let at = |line: usize, column: usize| Mark { line: line + 1, column: column + 1, length: 1 };
    let in_this =
        || indentation(&here).or_else(|| before.iter().rposition(|c| *c == '\t')).map(|column| at(from, column));
    let mut later = (from + 1..lines.len()).filter_map(|line| indentation(&lines[line]).map(|column| at(line, column)));
    let found = if plain { later.next().or_else(in_this) } else { in_this().or_else(|| later.next()) };
    found.unwrap_or_else(|| mark_at(*gave_up))
}
