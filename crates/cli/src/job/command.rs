//! The command of a task: its words or its script, what is filled in, and how it is shown.

use bytes::Bytes;
use filch_core::wire::talk::{InputSort, Program, Words};
use filch_node::template::{self, Reader, TemplateError, Values};
use serde_json::Value;

use super::Usage;
use super::inputs::Inputs;

/// What a command is filled in with.
pub(super) struct Filling<'a> {
    number: i64,
    index: u32,
    input: Option<&'a [u8]>,
    json: Option<Value>,
}

impl<'a> Filling<'a> {
    pub(super) fn new(number: i64, index: u32, sort: InputSort, input: Option<&'a [u8]>) -> Filling<'a> {
        let json = input.filter(|_| sort == InputSort::Json).and_then(|input| serde_json::from_slice(input).ok());
        Filling { number, index, input, json }
    }

    fn values(&self) -> Values<'_> {
        Values { number: self.number, index: self.index, input: self.input, json: self.json.as_ref() }
    }
}

/// A command with gaps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    Words(Vec<Bytes>),
    Script(Bytes),
}

impl Command {
    /// Of the words of a command line. A script may be given in several words, which are joined.
    pub(super) fn new(words: Vec<Bytes>, shell: bool) -> Command {
        if shell { Command::Script(Bytes::from(words.join(&b' '))) } else { Command::Words(words) }
    }

    fn parts(&self) -> &[Bytes] {
        match self {
            Command::Words(words) => words,
            Command::Script(script) => std::slice::from_ref(script),
        }
    }

    pub(super) fn has_placeholder(&self) -> bool {
        self.parts().iter().any(|part| template::has_placeholder(part))
    }

    /// The input becomes the last argument.
    pub(super) fn append_input(&mut self) {
        match self {
            Command::Words(words) => words.push(Bytes::from_static(b"{}")),
            Command::Script(script) => *script = Bytes::from([script, &b" {}"[..]].concat()),
        }
    }

    pub(super) fn program(&self) -> Program {
        match self {
            Command::Words(words) => Program::Argv(Words { words: words.clone() }),
            Command::Script(script) => Program::Shell(script.clone()),
        }
    }

    /// The command of one task.
    pub(super) fn filled(&self, filling: &Filling<'_>) -> Result<Command, TemplateError> {
        let values = filling.values();
        Ok(match self {
            Command::Words(words) => {
                let words = words.iter().map(|word| template::fill(word, &values, Reader::Program).map(Bytes::from));
                Command::Words(words.collect::<Result<_, _>>()?)
            }
            Command::Script(script) => Command::Script(template::fill(script, &values, Reader::Shell)?.into()),
        })
    }

    /// The name of its program, without its directory.
    pub(super) fn kind(&self) -> String {
        let first = match self {
            Command::Words(words) => words.first().map_or(&b""[..], |word| word),
            Command::Script(script) => {
                script.split(u8::is_ascii_whitespace).find(|word| !word.is_empty()).unwrap_or_default()
            }
        };
        let base = first.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.+".contains(byte) || *byte >= 0x80;
        if base.is_empty() || !base.iter().all(plain) {
            "sh".to_owned()
        } else {
            String::from_utf8_lossy(base).into_owned()
        }
    }

    /// The command on one line, as a shell would take it.
    pub(crate) fn show(&self) -> String {
        let text = match self {
            Command::Words(words) => {
                let words: Vec<_> = words.iter().map(|word| shown(word)).collect();
                words.join(&b' ')
            }
            Command::Script(script) => script.to_vec(),
        };
        one_line(&String::from_utf8_lossy(&text))
    }
}

/// A word in quotes where a shell needs them; gaps need none.
fn shown(word: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:,+=@%^{}#".contains(byte);
    let mut shown = Vec::new();
    if !word.is_empty() && word.iter().all(plain) {
        shown.extend_from_slice(word);
    } else {
        template::quote(word, &mut shown);
    }
    shown
}

/// The text with characters that would begin a new line or column written as people write them.
pub(crate) fn one_line(text: &str) -> String {
    if !text.contains(['\n', '\t', '\r']) {
        return text.to_owned();
    }
    text.replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
}

/// Refuses a command with a gap that nothing fills, such as a field that an input lacks.
pub(super) fn check(command: &Command, inputs: Option<&Inputs>) -> Result<(), Usage> {
    let Some(inputs) = inputs else { return fits(command, &Filling::new(0, 0, InputSort::Bytes, None), "") };
    // Lines differ in nothing that matters here.
    let looked_at = if inputs.sort == InputSort::Json { inputs.each.len() } else { 1 };
    for (at, input) in inputs.each.iter().take(looked_at).enumerate() {
        let which = if inputs.sort == InputSort::Json { format!("input {}: ", at + 1) } else { String::new() };
        fits(command, &Filling::new(0, 0, inputs.sort, Some(input)), &which)?;
    }
    Ok(())
}

fn fits(command: &Command, filling: &Filling<'_>, which: &str) -> Result<(), Usage> {
    let filled = command.filled(filling);
    filled.map(|_| ()).map_err(|error| Usage::new(format!("{which}{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Command {
        Command::new(words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect(), false)
    }

    #[test]
    fn the_kind_is_the_name_of_the_program() {
        assert_eq!(words(&["/usr/bin/gzip", "-9"]).kind(), "gzip");
        assert_eq!(Command::Script(Bytes::from_static(b" gzip -9 {}")).kind(), "gzip");
        assert_eq!(Command::Script(Bytes::from_static(b"(cd x; make)")).kind(), "sh");
        assert_eq!(words(&["{}"]).kind(), "sh");
    }

    #[test]
    fn commands_are_shown_as_a_shell_takes_them() {
        assert_eq!(words(&["sh", "-c", "echo $A\tb", "{}"]).show(), "sh -c 'echo $A\\tb' {}");
        assert_eq!(words(&["echo", "", "it's"]).show(), r"echo '' 'it'\''s'");
    }
}
