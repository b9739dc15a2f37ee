//! Placeholders in commands: `{}` is an element's input, `{n}` its number, `{i}` its index, `{field}` and `{field.sub}`
//! parts of a JSON input. `{{` and `}}` stand for braces. `{.}`, `{/}`, `{//}` and `{/.}` are what an input is as a path: without
//! its extension, its last part, its directory, and its last part without extension; `{#}` is `{n}`, as in GNU parallel.
//!
//! Braces around anything else than a single word, and those of a shell's `${…}`, are left alone, so scripts keep theirs. A word that
//! stands for nothing is an error and never left standing. Never runs anything.

use std::borrow::Cow;

use bytes::Bytes;
use filch_core::wire::talk::{InputSort, Program, Words, Work, number_of};
use serde_json::Value;

/// What placeholders stand for.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// The number of the element.
    pub number: i64,
    /// Its position.
    pub index: u32,
    /// Its input, as text; without one, its number stands there.
    pub input: Option<&'a [u8]>,
    /// The same as JSON, if it is that.
    pub json: Option<&'a Value>,
}

/// A placeholder stands for nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{{{word}}}` stands for nothing here: there are {known}. Write `{{{{{word}}}}}` if it is none")]
pub struct TemplateError {
    word: String,
    known: String,
}

/// Who reads what a placeholder is replaced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A program: it gets the value as it is.
    Program,
    /// A shell: the value is quoted, so that it stays one word.
    Shell,
}

/// A text with its placeholders filled in.
///
/// ```
/// use filch_node::template::{Reader, Values, fill};
/// let values = Values { number: 7, index: 6, input: Some(b"a b.txt"), json: None };
/// assert_eq!(fill(b"wc {} > {n}.out", &values, Reader::Shell).unwrap(), b"wc 'a b.txt' > 7.out");
/// ```
///
/// # Errors
/// If a placeholder stands for nothing.
pub fn fill(text: &[u8], values: &Values<'_>, reader: Reader) -> Result<Vec<u8>, TemplateError> {
    let mut filled = Vec::with_capacity(text.len() + 32);
    scan(text, |piece| {
        match piece {
            Piece::Text(text) => filled.extend_from_slice(text),
            Piece::Word(word) => {
                let value = values.get(word).ok_or_else(|| values.unknown(word))?;
                match reader {
                    Reader::Program => filled.extend_from_slice(&value),
                    Reader::Shell => quote(&value, &mut filled),
                }
            }
        }
        Ok(())
    })?;
    Ok(filled)
}

/// The program of a work as the element at a place runs it. Functions have nothing that could be filled in.
///
/// # Errors
/// If a placeholder stands for nothing.
pub fn program(work: &Work, place: u32, input: Option<&[u8]>) -> Result<Option<Program>, TemplateError> {
    let number = number_of(work.first, work.step, place);
    let input = input.filter(|_| work.input() != InputSort::Bytes);
    let json = input.filter(|_| work.placeholders && work.input() == InputSort::Json);
    let json = json.and_then(|text| serde_json::from_slice::<Value>(text).ok());
    let values = Values { number, index: place, input, json: json.as_ref() };
    let filled = |text: &Bytes, reader| match work.placeholders {
        true => fill(text, &values, reader).map(Bytes::from),
        false => Ok(text.clone()),
    };
    Ok(match &work.program {
        Some(Program::Shell(script)) => Some(Program::Shell(filled(script, Reader::Shell)?)),
        Some(Program::Argv(Words { words })) => {
            let words: Result<Vec<Bytes>, _> = words.iter().map(|word| filled(word, Reader::Program)).collect();
            Some(Program::Argv(Words { words: words? }))
        }
        other => other.clone(),
    })
}

/// A program in words, as a shell would take it.
#[must_use]
pub fn in_words(program: &Program) -> String {
    match program {
        Program::Argv(Words { words }) => {
            let mut line = Vec::new();
            for word in words {
                if !line.is_empty() {
                    line.push(b' ');
                }
                quote(word, &mut line);
            }
            String::from_utf8_lossy(&line).into_owned()
        }
        Program::Shell(script) => String::from_utf8_lossy(script).into_owned(),
        Program::Call(function) => function.clone(),
    }
}

/// Whether the placeholders of a work can stand for something, as far as that can be known before there are inputs.
///
/// # Errors
/// If one cannot.
pub fn check(work: &Work) -> Result<(), TemplateError> {
    if !work.placeholders {
        return Ok(());
    }
    let fields = work.input() == InputSort::Json;
    let values = Values { number: 0, index: 0, input: None, json: None };
    let check = |text: &[u8]| {
        scan(text, |piece| match piece {
            Piece::Word(word) if !fields && values.get(word).is_none() => Err(values.unknown(word)),
            _ => Ok(()),
        })
    };
    match &work.program {
        Some(Program::Argv(words)) => words.words.iter().try_for_each(|word| check(word)),
        Some(Program::Shell(script)) => check(script),
        Some(Program::Call(_)) | None => Ok(()),
    }
}

/// Whether a text has a placeholder at all.
#[must_use]
pub fn has_placeholder(text: &[u8]) -> bool {
    let mut found = false;
    // What sees nothing wrong has nothing to say.
    let _ = scan(text, |piece| {
        found |= matches!(piece, Piece::Word(_));
        Ok(())
    });
    found
}

impl Values<'_> {
    fn get(&self, word: &str) -> Option<Cow<'_, [u8]>> {
        let own = |text: String| Some(Cow::Owned(text.into_bytes()));
        match word {
            "" => self.input.map(Cow::Borrowed).or_else(|| own(self.number.to_string())),
            "n" | "#" => own(self.number.to_string()),
            "i" => own(self.index.to_string()),
            "." | "/" | "//" | "/." => {
                let number = self.number.to_string();
                let path = self.input.unwrap_or(number.as_bytes());
                Some(Cow::Owned(match word {
                    "." => without_extension(path).to_vec(),
                    "/" => last_part(path).to_vec(),
                    "//" => directory(path).to_vec(),
                    _ => without_extension(last_part(path)).to_vec(),
                }))
            }
            path => {
                let step = |value: &'_ Value, part: &str| -> Option<Value> {
                    match value {
                        Value::Array(entries) => entries.get(part.parse::<usize>().ok()?).cloned(),
                        other => other.get(part).cloned(),
                    }
                };
                let found = path.split('.').try_fold(self.json?.clone(), |value, part| step(&value, part))?;
                own(match found {
                    Value::String(text) => text,
                    Value::Null => String::new(),
                    other => other.to_string(),
                })
            }
        }
    }

    fn unknown(&self, word: &str) -> TemplateError {
        let mut known = "{}, {n} and {i}".to_owned();
        if let Some(Value::Object(fields)) = self.json {
            let names: Vec<String> = fields.keys().map(|name| format!("{{{name}}}")).collect();
            known = format!("{{}}, {{n}}, {{i}} and the fields {}", names.join(", "));
        }
        TemplateError { word: word.to_owned(), known }
    }
}

enum Piece<'a> {
    Text(&'a [u8]),
    Word(&'a str),
}

/// Shows a text piece by piece.
fn scan<'a>(text: &'a [u8], mut see: impl FnMut(Piece<'a>) -> Result<(), TemplateError>) -> Result<(), TemplateError> {
    let (mut at, mut shown) = (0, 0);
    while at < text.len() {
        let doubled = text.get(at + 1) == Some(&text[at]);
        let shells = at > 0 && text[at - 1] == b'$';
        match text[at] {
            b'{' | b'}' if doubled => {
                // One of the two is left.
                see(Piece::Text(&text[shown..=at]))?;
                at += 2;
                shown = at;
            }
            b'{' if !shells && let Some(word) = word_at(&text[at + 1..]) => {
                see(Piece::Text(&text[shown..at]))?;
                see(Piece::Word(word))?;
                at += word.len() + 2;
                shown = at;
            }
            b'{' if shells => {
                // To its end, so that a shell's own braces stay as they are.
                at += text[at..].iter().position(|byte| *byte == b'}').map_or(1, |length| length + 1);
            }
            _ => at += 1,
        }
    }
    see(Piece::Text(&text[shown..]))
}

/// The word of a placeholder, if what follows a brace is one.
fn word_at(text: &[u8]) -> Option<&str> {
    let length = text.iter().position(|byte| *byte == b'}')?;
    let word = std::str::from_utf8(&text[..length]).ok()?;
    let is_word =
        |part: &str| !part.is_empty() && part.chars().all(|each| each.is_alphanumeric() || "_-".contains(each));
    let of_path = matches!(word, "#" | "." | "/" | "//" | "/.");
    (word.is_empty() || of_path || word.split('.').all(is_word)).then_some(word)
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
    let last = last_part(path);
    match last.iter().rposition(|byte| *byte == b'.') {
        Some(dot) if dot > 0 => &path[..path.len() - last.len() + dot],
        _ => path,
    }
}

/// Adds a value so that a shell takes it as one word.
pub fn quote(value: &[u8], to: &mut Vec<u8>) {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(byte);
    if !value.is_empty() && value.iter().all(plain) {
        to.extend_from_slice(value);
        return;
    }
    to.push(b'\'');
    for &byte in value {
        match byte {
            b'\'' => to.extend_from_slice(b"'\\''"),
            _ => to.push(byte),
        }
    }
    to.push(b'\'');
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use filch_core::wire::talk::Words;

    use super::*;

    fn line(text: &str, reader: Reader) -> String {
        let values = Values { number: 12, index: 2, input: Some(b"it's here"), json: None };
        match fill(text.as_bytes(), &values, reader) {
            Ok(filled) => String::from_utf8(filled).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    fn json(text: &str, input: &str) -> String {
        let value: Value = serde_json::from_str(input).unwrap();
        let values = Values { number: 1, index: 0, input: Some(input.as_bytes()), json: Some(&value) };
        match fill(text.as_bytes(), &values, Reader::Program) {
            Ok(filled) => String::from_utf8(filled).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn words_are_filled_in() {
        assert_eq!(line("--file={} -n {n}:{i}", Reader::Program), "--file=it's here -n 12:2");
        assert_eq!(line("{}{}", Reader::Program), "it's hereit's here");
        let number = Values { number: -3, index: 0, input: None, json: None };
        assert_eq!(fill(b"<{}>", &number, Reader::Program).unwrap(), b"<-3>");
        assert_eq!(fill(b"", &number, Reader::Program).unwrap(), b"");
    }

    #[test]
    fn parts_of_paths() {
        let of = |path: &str| {
            let values = Values { number: 7, index: 0, input: Some(path.as_bytes()), json: None };
            String::from_utf8(fill(b"{.} {/} {//} {/.} {#}", &values, Reader::Program).unwrap()).unwrap()
        };
        assert_eq!(of("dir.d/file.tar.gz"), "dir.d/file.tar file.tar.gz dir.d file.tar 7");
        assert_eq!(of("/.bashrc"), "/.bashrc .bashrc / .bashrc 7");
        assert_eq!(of("plain"), "plain plain . plain 7");
        assert!(has_placeholder(b"a{/}") && has_placeholder(b"{x}") && !has_placeholder(b"${x} {{n}} {a b}"));
    }

    #[test]
    fn a_shell_gets_one_word() {
        assert_eq!(line("cat {} | head -{n}", Reader::Shell), "cat 'it'\\''s here' | head -12");
        let empty = Values { number: 1, index: 0, input: Some(b""), json: None };
        assert_eq!(fill(b"echo {}", &empty, Reader::Shell).unwrap(), b"echo ''");
        let nasty = Values { input: Some(b"$(rm -rf /);`x`\n"), ..empty };
        assert_eq!(fill(b"echo {}", &nasty, Reader::Shell).unwrap(), b"echo '$(rm -rf /);`x`\n'");
    }

    #[test]
    fn other_braces_stay() {
        for text in ["awk {print $1}", "a{1,2}b", "{1..5}", "${HOME} ${x:-{}} {", "}", "f() { :; }", "\u{1f980}{"] {
            assert_eq!(line(text, Reader::Shell), text);
        }
        assert_eq!(line("{{}} {{n}} {{{n}}}", Reader::Program), "{} {n} {12}");
    }

    #[test]
    fn fields_of_json() {
        let input = "{\"name\": \"a b\", \"size\": {\"x\": 1.50, \"y\": [true, null]}, \"n\": 5}";
        assert_eq!(json("{name} {size.x} {size.y} {size.y.0}{size.y.1}|{n}", input), "a b 1.5 [true,null] true|1");
        assert_eq!(json("{}", "[1, 2]"), "[1, 2]");
        assert_eq!(json("{0}{1}", "[1, 2]"), "12");
        let error = json("{nmae}", input);
        assert!(
            error.starts_with("`{nmae}` stands for nothing here: there are {}, {n}, {i} and the fields {name}, {size}")
        );
        assert!(json("{size.z}", input).contains("`{size.z}`"));
    }

    #[test]
    fn unknown_words_are_told() {
        let error = line("x{file}", Reader::Program);
        assert_eq!(
            error,
            "`{file}` stands for nothing here: there are {}, {n} and {i}. Write `{{file}}` if it is none"
        );
    }

    #[test]
    fn a_program_is_told_as_its_element_runs_it() {
        let words = |words: &[&'static str]| {
            Some(Program::Argv(Words { words: words.iter().map(|word| Bytes::from_static(word.as_bytes())).collect() }))
        };
        let work = |program, input: InputSort| Work {
            program,
            placeholders: true,
            input: input as i32,
            first: 10,
            step: 5,
            ..Work::default()
        };
        let told = |work: &Work, input: Option<&[u8]>| program(work, 2, input).map(|told| in_words(&told.unwrap()));
        let lines = work(words(&["echo", "{}", "{n}", ""]), InputSort::Line);
        assert_eq!(told(&lines, Some(b"it's")).unwrap(), r"echo 'it'\''s' 20 ''");
        assert_eq!(told(&lines, None).unwrap(), "echo 20 20 ''");
        let json = work(Some(Program::Shell("wc {name}".into())), InputSort::Json);
        assert_eq!(told(&json, Some(br#"{"name": "a b"}"#)).unwrap(), "wc 'a b'");
        assert!(told(&json, None).is_err());
        let plain = Work { placeholders: false, ..lines };
        assert_eq!(told(&plain, Some(b"x")).unwrap(), "echo '{}' '{n}' ''");
        assert_eq!(in_words(&Program::Call("paint".to_owned())), "paint");
    }

    #[test]
    fn what_can_be_known_is_checked_ahead() {
        let argv = |word: &'static str, input: InputSort, placeholders| Work {
            program: Some(Program::Argv(Words { words: vec![Bytes::from_static(b"echo"), word.into()] })),
            placeholders,
            input: input as i32,
            ..Work::default()
        };
        assert_eq!(check(&argv("{} {n}", InputSort::Line, true)), Ok(()));
        assert_eq!(check(&argv("{file}", InputSort::Json, true)), Ok(()));
        assert_eq!(check(&argv("{file}", InputSort::Line, false)), Ok(()));
        assert!(check(&argv("{file}", InputSort::Line, true)).is_err());
        let shell = Work { program: Some(Program::Shell("ls {x}".into())), placeholders: true, ..Work::default() };
        assert!(check(&shell).is_err());
    }
}
