//! What stands in braces in a command, filled in for one task: `{}` and its like. Pure; whoever runs a task and whoever
//! only shows what would be run ask the same functions.
//!
//! | written | becomes |
//! |---|---|
//! | `{}` | the input, or the number of the task if it has none |
//! | `{n}` or `{#}` | its number, as its submitter counts |
//! | `{i}` | its position in the job, from 0 |
//! | `{field}`, `{a.b}` | that field of an input that is JSON |
//! | `{.}` `{/}` `{//}` `{/.}` | the input as a path: without its extension, its last part, its directory, its last part without extension |
//!
//! Anything else in braces stays as it is, and so does `${…}`, which is the shell's.

use std::borrow::Cow;

use filch_core::wire::talk::InputSort;
use serde_json::Value;

/// One task, as far as its command can speak of it.
#[derive(Clone, Debug)]
pub struct Filling<'a> {
    /// Its number, as its submitter counts.
    pub number: i64,
    /// Its position in the job, from 0.
    pub index: u32,
    /// What it gets.
    pub input: Option<Cow<'a, [u8]>>,
    /// The fields of what it gets.
    fields: Option<Value>,
}

/// A piece of a word.
enum Piece<'a> {
    Text(&'a [u8]),
    /// What stands between braces.
    Braces(&'a [u8]),
}

impl<'a> Filling<'a> {
    /// A task with an input of some sort, or without one.
    #[must_use]
    pub fn new(number: i64, index: u32, sort: InputSort, input: Option<&'a [u8]>) -> Filling<'a> {
        let (input, fields) = match (sort, input) {
            (InputSort::Json, Some(bytes)) => match serde_json::from_slice(bytes) {
                // A text goes in without its quotes.
                Ok(Value::String(text)) => (Some(Cow::Owned(text.into_bytes())), None),
                Ok(value) => (Some(Cow::Borrowed(bytes)), Some(value)),
                Err(_) => (Some(Cow::Borrowed(bytes)), None),
            },
            (_, input) => (input.map(Cow::Borrowed), None),
        };
        Filling { number, index, input, fields }
    }

    /// A word of a command with everything filled in.
    #[must_use]
    pub fn word<'w>(&self, word: &'w [u8]) -> Cow<'w, [u8]> {
        self.fill(word, |bytes| bytes)
    }

    /// A script for the shell with everything filled in, quoted so that the shell takes it as one word.
    #[must_use]
    pub fn script<'w>(&self, script: &'w [u8]) -> Cow<'w, [u8]> {
        self.fill(script, quoted)
    }

    fn fill<'w>(&self, word: &'w [u8], quote: impl Fn(Cow<'_, [u8]>) -> Cow<'_, [u8]>) -> Cow<'w, [u8]> {
        if !word.contains(&b'{') {
            return Cow::Borrowed(word);
        }
        let mut filled = Vec::with_capacity(word.len() + 16);
        each_piece(word, |piece| match piece {
            Piece::Text(text) => filled.extend_from_slice(text),
            Piece::Braces(name) => match self.meaning(name) {
                Some(bytes) => filled.extend_from_slice(&quote(bytes)),
                None => {
                    filled.push(b'{');
                    filled.extend_from_slice(name);
                    filled.push(b'}');
                }
            },
        });
        Cow::Owned(filled)
    }

    fn meaning(&self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        let own = |text: String| Some(Cow::Owned(text.into_bytes()));
        let whole =
            || self.input.as_deref().map_or_else(|| Cow::Owned(self.number.to_string().into_bytes()), Cow::Borrowed);
        let path = |part: fn(&[u8]) -> &[u8]| Some(Cow::Owned(part(&whole()).to_vec()));
        match name {
            b"" => Some(whole()),
            b"n" | b"#" => own(self.number.to_string()),
            b"i" => own(self.index.to_string()),
            b"." => path(without_extension),
            b"/" => path(last_part),
            b"//" => path(directory),
            b"/." => path(|path| without_extension(last_part(path))),
            _ => match field(self.fields.as_ref()?, std::str::from_utf8(name).ok()?)? {
                Value::String(text) => Some(Cow::Borrowed(text.as_bytes())),
                value => own(value.to_string()),
            },
        }
    }
}

/// Whether anything in a word stands for something, given what the inputs are.
#[must_use]
pub fn has_placeholder(word: &[u8], sort: InputSort) -> bool {
    let mut found = false;
    each_piece(word, |piece| {
        if let Piece::Braces(name) = piece {
            let known = matches!(name, b"" | b"n" | b"#" | b"i" | b"." | b"/" | b"//" | b"/.");
            found |= known || (sort == InputSort::Json && is_field(name));
        }
    });
    found
}

/// The fields of JSON inputs that a word names.
#[must_use]
pub fn fields(word: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    each_piece(word, |piece| {
        if let Piece::Braces(name) = piece
            && is_field(name)
            && !matches!(name, b"n" | b"i")
        {
            names.push(String::from_utf8_lossy(name).into_owned());
        }
    });
    names
}

/// The field of a value by its path, such as `a.b`.
#[must_use]
pub fn field<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    // A key with a dot in it is meant literally, if there is one.
    value.get(path).or_else(|| path.split('.').try_fold(value, |value, part| value.get(part)))
}

fn is_field(name: &[u8]) -> bool {
    !name.is_empty()
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') || *byte >= 0x80)
        && name.iter().any(|byte| *byte != b'.')
}

fn each_piece<'w>(word: &'w [u8], mut each: impl FnMut(Piece<'w>)) {
    let (mut rest, mut from) = (word, 0);
    while let Some(open) = rest[from..].iter().position(|byte| *byte == b'{').map(|at| at + from) {
        let close = rest[open..].iter().position(|byte| *byte == b'}').map(|at| at + open);
        let shells = open > 0 && rest[open - 1] == b'$';
        match close {
            Some(close) if !shells && !rest[open + 1..close].contains(&b'{') => {
                each(Piece::Text(&rest[..open]));
                each(Piece::Braces(&rest[open + 1..close]));
                (rest, from) = (&rest[close + 1..], 0);
            }
            Some(_) => from = open + 1,
            None => break,
        }
    }
    each(Piece::Text(rest));
}

/// The bytes as one word of a shell command.
#[must_use]
pub fn quoted(bytes: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:,+=@%^".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return bytes;
    }
    let mut quoted = Vec::with_capacity(bytes.len() + 2);
    quoted.push(b'\'');
    for byte in bytes.iter() {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    Cow::Owned(quoted)
}

fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

fn directory(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => b"/",
        Some(at) => &path[..at],
        None => b".",
    }
}

fn without_extension(path: &[u8]) -> &[u8] {
    match last_part(path).iter().rposition(|byte| *byte == b'.') {
        Some(dot) if dot > 0 => &path[..path.len() - last_part(path).len() + dot],
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(filling: &Filling<'_>, word: &str) -> String {
        String::from_utf8(filling.word(word.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn numbers_and_lines_are_filled_in() {
        let number = Filling::new(7, 2, InputSort::Bytes, None);
        assert_eq!(fill(&number, "a{}b{n}c{i}d{#}"), "a7b7c2d7");
        let line = Filling::new(7, 2, InputSort::Line, Some(b"dir.d/file.tar.gz"));
        assert_eq!(fill(&line, "{}"), "dir.d/file.tar.gz");
        assert_eq!(fill(&line, "{.} {/} {//} {/.}"), "dir.d/file.tar file.tar.gz dir.d file.tar");
        let odd = Filling::new(1, 0, InputSort::Line, Some(b"/.bashrc"));
        assert_eq!(fill(&odd, "{.} {/} {//} {/.}"), "/.bashrc .bashrc / .bashrc");
    }

    #[test]
    fn what_is_nothing_stays() {
        let line = Filling::new(7, 2, InputSort::Line, Some(b"x"));
        for word in ["{name}", "${n}", "{", "}", "a{b", "{print $1}", "{n", "${}", "plain"] {
            assert_eq!(fill(&line, word), word);
            assert!(!has_placeholder(word.as_bytes(), InputSort::Line), "{word}");
        }
        assert_eq!(fill(&line, "awk '{print {n}}' {{}}"), "awk '{print 7}' {x}");
    }

    #[test]
    fn fields_of_json_are_filled_in() {
        let json = br#"{"name":"a b","size":{"x":3},"list":[1,2],"n":99}"#;
        let filling = Filling::new(7, 2, InputSort::Json, Some(json));
        assert_eq!(fill(&filling, "{name}-{size.x}-{list}-{n}-{none}"), "a b-3-[1,2]-7-{none}");
        assert_eq!(fill(&filling, "{}"), String::from_utf8_lossy(json));
        let text = Filling::new(7, 2, InputSort::Json, Some(br#""plain""#));
        assert_eq!(fill(&text, "{}"), "plain");
        assert_eq!(fields(b"{name} {} {n} {size.x} ${shell} {..}"), ["name", "size.x"]);
        assert!(has_placeholder(b"{name}", InputSort::Json) && !has_placeholder(b"{name}", InputSort::Line));
    }

    #[test]
    fn the_shell_takes_an_input_as_one_word() {
        let nasty = Filling::new(1, 0, InputSort::Line, Some(b"a; rm -rf 'x' $HOME"));
        let script = String::from_utf8(nasty.script(b"echo {} {n}").into_owned()).unwrap();
        assert_eq!(script, r"echo 'a; rm -rf '\''x'\'' $HOME' 1");
        let output = std::process::Command::new("sh").arg("-c").arg(&script).output().unwrap();
        assert_eq!(output.stdout, b"a; rm -rf 'x' $HOME 1\n");
        let empty = Filling::new(1, 0, InputSort::Line, Some(b""));
        assert_eq!(&*empty.script(b"echo {}"), b"echo ''");
    }
}
