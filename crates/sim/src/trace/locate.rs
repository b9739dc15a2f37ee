//! Where a value stands in a JSON text, for pointing at it. Only looks at texts that were read before, so it forgives
//! everything and never fails louder than by finding nothing.

use std::ops::Range;

/// One step into a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// The value of a key.
    Key(&'a str),
    /// An element of an array.
    At(usize),
}

/// The bytes of the value that the steps lead to; the whole text if they lead nowhere.
pub(super) fn locate(text: &str, steps: &[Step<'_>]) -> Range<usize> {
    let mut at = space(text.as_bytes(), 0);
    for step in steps {
        match into(text, at, *step) {
            Some(found) => at = found,
            None => break,
        }
    }
    at..value(text.as_bytes(), at).max(at)
}

fn into(text: &str, at: usize, step: Step<'_>) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = space(bytes, at + 1);
    let mut number = 0;
    while !matches!(bytes.get(at)?, b'}' | b']') {
        let found = match step {
            Step::Key(key) => {
                let end = value(bytes, at);
                let found = text.get(at..end).and_then(|quoted| serde_json::from_str::<String>(quoted).ok());
                // Past the colon.
                at = space(bytes, space(bytes, end) + 1);
                found.is_some_and(|found| found == key)
            }
            Step::At(wanted) => number == wanted,
        };
        if found {
            return Some(at);
        }
        number += 1;
        at = space(bytes, value(bytes, at));
        if *bytes.get(at)? == b',' {
            at = space(bytes, at + 1);
        }
    }
    None
}

fn space(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The end of the value that begins at a place.
fn value(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth, mut quoted) = (start, 0usize, false);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'\\' if quoted => at += 1,
            b'"' => {
                quoted = !quoted;
                if !quoted && depth == 0 {
                    break;
                }
            }
            _ if quoted => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                if depth <= 1 {
                    // The end of this one, or of the one it stands in.
                    return if depth == 0 { at - 1 } else { at };
                }
                depth -= 1;
            }
            b',' | b':' if depth == 0 => return at - 1,
            byte if depth == 0 && byte.is_ascii_whitespace() => return at - 1,
            _ => {}
        }
    }
    at.min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_wherever_they_stand() {
        let text = r#" {"a" : [1, {"b":"x,]\"}"}, -2.5e3], "needs":{"cpus": 7},"é":[]}"#;
        let found = |steps: &[Step<'_>]| &text[locate(text, steps)];
        assert_eq!(found(&[Step::Key("a"), Step::At(2)]), "-2.5e3");
        assert_eq!(found(&[Step::Key("a"), Step::At(1), Step::Key("b")]), r#""x,]\"}""#);
        assert_eq!(found(&[Step::Key("needs"), Step::Key("cpus")]), "7");
        assert_eq!(found(&[Step::Key("needs")]), r#"{"cpus": 7}"#);
        assert_eq!(found(&[Step::Key("é")]), "[]");
        assert_eq!(found(&[Step::Key("needs"), Step::Key("gpus")]), r#"{"cpus": 7}"#);
        for wrong in ["", "{", "[1", "{\"a", "{\"a\":", "]"] {
            locate(wrong, &[Step::Key("a"), Step::At(3)]);
        }
    }
}
