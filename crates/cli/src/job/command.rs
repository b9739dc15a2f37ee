//! The command of a task: its words or its script, what is filled in, and how it is shown.

use std::borrow::Cow;

use bytes::Bytes;
use filch_core::wire::talk::{InputSort, Program, Words};
use filch_node::fill::{self, Filling};
use serde_json::Value;

use super::Usage;
use super::inputs::Inputs;

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

    pub(super) fn has_placeholder(&self, sort: InputSort) -> bool {
        self.parts().iter().any(|part| fill::has_placeholder(part, sort))
    }

    /// Whether something in it speaks of the position of a task.
    pub(super) fn speaks_of_position(&self) -> bool {
        self.parts().iter().any(|part| part.windows(3).any(|three| three == b"{i}"))
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
    pub(super) fn filled(&self, filling: &Filling<'_>) -> Command {
        let owned = |filled: Cow<'_, [u8]>| Bytes::from(filled.into_owned());
        match self {
            Command::Words(words) => Command::Words(words.iter().map(|word| owned(filling.word(word))).collect()),
            Command::Script(script) => Command::Script(owned(filling.script(script))),
        }
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
    if !word.is_empty() && word.iter().all(plain) {
        word.to_vec()
    } else {
        fill::quoted(Cow::Borrowed(word)).into_owned()
    }
}

/// The text with characters that would begin a new line or column written as people write them.
fn one_line(text: &str) -> String {
    if !text.contains(['\n', '\t', '\r']) {
        return text.to_owned();
    }
    text.replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
}

/// Refuses a command that names a field that some input lacks.
pub(super) fn check_fields(command: &Command, inputs: &Inputs) -> Result<(), Usage> {
    if inputs.sort != InputSort::Json {
        return Ok(());
    }
    let fields: Vec<String> = command.parts().iter().flat_map(|part| fill::fields(part)).collect();
    if fields.is_empty() {
        return Ok(());
    }
    for (at, input) in inputs.each.iter().enumerate() {
        let value: Value = serde_json::from_slice(input).unwrap_or_default();
        if let Some(missing) = fields.iter().find(|name| fill::field(&value, name).is_none()) {
            let message = format!("input {} has no field `{missing}`, which the command names", at + 1);
            return Err(Usage::new(message).help(known_fields(&value)));
        }
    }
    Ok(())
}

fn known_fields(value: &Value) -> String {
    match value.as_object() {
        Some(fields) if !fields.is_empty() => {
            format!("it has {}", fields.keys().map(|name| format!("{{{name}}}")).collect::<Vec<_>>().join(", "))
        }
        _ => "fields are there for inputs that are JSON objects; {} stands for the whole input".to_owned(),
    }
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
