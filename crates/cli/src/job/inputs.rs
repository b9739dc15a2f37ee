//! What a job is made for: numbers of an array, lines of a file, JSON values. Reads them whole and checks them.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use bytes::Bytes;
use filch_core::wire::talk::InputSort;
use filch_node::client::LARGEST_REQUEST;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Usage;

/// The most that is read of a file with JSON, which may have more blanks than anything else.
const LARGEST_JSON: usize = 4 * LARGEST_REQUEST;

/// `A-B` or `A-B:STEP`: numbers, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: i64,
    pub(crate) step: i64,
    pub(crate) count: u32,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Range, String> {
        let wrong = || format!("an array is `FIRST-LAST` or `FIRST-LAST:STEP`, such as `1-200`, not `{text}`");
        let (ends, step) = match text.split_once(':') {
            Some((ends, step)) => (ends, step.parse().ok().filter(|step| *step > 0).ok_or_else(wrong)?),
            None => (text, 1),
        };
        // A leading minus belongs to the number.
        let (first, last) = match ends.char_indices().skip(1).find(|(_, c)| *c == '-') {
            Some((at, _)) => (&ends[..at], &ends[at + 1..]),
            None => (ends, ends),
        };
        let (first, last): (i64, i64) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        if last < first {
            return Err(format!("the array `{text}` ends before it begins; write `{last}-{first}`"));
        }
        let count = (i128::from(last) - i128::from(first)) / i128::from(step) + 1;
        let count = u32::try_from(count).map_err(|_| format!("an array has at most {} tasks", u32::MAX))?;
        Ok(Range { first, step, count })
    }
}

/// What the tasks of a job get.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inputs {
    pub(crate) sort: InputSort,
    pub(crate) each: Vec<Bytes>,
}

/// The lines of a file; `-` is standard input. The last may lack its end.
pub(crate) fn lines(path: &Path) -> Result<Inputs, Usage> {
    let text = Bytes::from(read_inputs(path, "--each-line", LARGEST_REQUEST)?);
    let mut each = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let mut line = rest.split_to(end);
        if !rest.is_empty() {
            let _ = rest.split_to(1);
        }
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        if line.contains(&0) {
            return Err(Usage::new(format!(
                "line {} of {} has a zero byte, which no argument can have",
                each.len() + 1,
                label(path)
            )));
        }
        each.push(line);
    }
    whole(Inputs { sort: InputSort::Line, each }, path)
}

/// The values of a file with a JSON array, or with one value after the other, such as one a line; `-` is standard input.
pub(crate) fn json(path: &Path) -> Result<Inputs, Usage> {
    let bytes = read_inputs(path, "--each-json", LARGEST_JSON)?;
    let values = if bytes.trim_ascii_start().starts_with(b"[") { array(&bytes) } else { sequence(&bytes) };
    let values = values.map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Usage::new(format!("{}:{line}:{column}: no JSON: {error}", label(path)))
            .help("--each-json expects an array, or one value after the other, such as one a line")
    })?;
    whole(texts(values), path)
}

/// Values that are all texts are taken without their quotes, as lines are.
fn texts(values: Vec<Bytes>) -> Inputs {
    let read = |value: &Bytes| serde_json::from_slice::<String>(value).map(Bytes::from);
    if !values.iter().all(|value| value.starts_with(b"\"")) {
        return Inputs { sort: InputSort::Json, each: values };
    }
    match values.iter().map(read).collect() {
        Ok(each) => Inputs { sort: InputSort::Line, each },
        Err(_) => Inputs { sort: InputSort::Json, each: values },
    }
}

fn array(bytes: &[u8]) -> serde_json::Result<Vec<Bytes>> {
    let values: Vec<&RawValue> = match serde_json::from_slice(bytes) {
        Ok(values) => values,
        // One array after the other.
        Err(error) if error.is_syntax() && error.to_string().starts_with("trailing characters") => {
            return sequence(bytes);
        }
        Err(error) => return Err(error),
    };
    values.into_iter().map(|value| compact(value.get())).collect()
}

fn sequence(bytes: &[u8]) -> serde_json::Result<Vec<Bytes>> {
    let values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    values.map(|value| value.map(|value| Bytes::from(value.to_string()))).collect()
}

fn compact(text: &str) -> serde_json::Result<Bytes> {
    serde_json::from_str::<Value>(text).map(|value| Bytes::from(value.to_string()))
}

fn whole(inputs: Inputs, path: &Path) -> Result<Inputs, Usage> {
    if inputs.each.is_empty() {
        return Err(Usage::nothing(format!("{} is empty: there is nothing to run", label(path))));
    }
    Ok(inputs)
}

/// The bytes of a file with inputs, which must not be more than can be submitted.
fn read_inputs(path: &Path, option: &str, most: usize) -> Result<Vec<u8>, Usage> {
    let bytes = read(path, option, most)?;
    if bytes.len() > most {
        let message = format!("{} has more than {} MiB, which is more than a job can have", label(path), most >> 20);
        return Err(Usage::new(message)
            .help("split it into several, or give the tasks names of files instead of what is in them"));
    }
    Ok(bytes)
}

/// How messages call a file.
pub(super) fn label(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".to_owned() } else { format!("`{}`", path.display()) }
}

/// The bytes of a file, or of standard input for `-`. Of one that has more than `most`, one byte more than that: there may be no end
/// to it.
pub(super) fn read(path: &Path, option: &str, most: usize) -> Result<Vec<u8>, Usage> {
    let mut bytes = Vec::new();
    let limit = most as u64 + 1;
    let outcome = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    outcome.map(|_| bytes).map_err(|error| {
        Usage::new(format!("cannot read {}: {error}", label(path)))
            .help(format!("{option} names a file that you may read, or `-` for standard input"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Result<(i64, i64, u32), String> {
        text.parse().map(|Range { first, step, count }| (first, step, count))
    }

    #[test]
    fn ranges_include_both_ends() {
        assert_eq!(range("1-200"), Ok((1, 1, 200)));
        assert_eq!(range("0-10:5"), Ok((0, 5, 3)));
        assert_eq!(range("0-9:5"), Ok((0, 5, 2)));
        assert_eq!(range("-3--1"), Ok((-3, 1, 3)));
        assert_eq!(range("-3-1"), Ok((-3, 1, 5)));
        assert_eq!(range("7"), Ok((7, 1, 1)));
        assert!(range("9-1").unwrap_err().contains("write `1-9`"));
        for text in ["", "a-b", "1-", "1-5:0", "1-5:-1", "1..5", "0-9999999999"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    fn file(name: &str, text: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::Builder::new().suffix(name).tempfile().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn shown(inputs: &Inputs) -> Vec<String> {
        inputs.each.iter().map(|one| String::from_utf8(one.to_vec()).unwrap()).collect()
    }

    #[test]
    fn lines_may_end_as_they_like() {
        assert_eq!(shown(&lines(file("a", b"one\ntwo\r\n\nfour").path()).unwrap()), ["one", "two", "", "four"]);
        assert!(lines(file("b", b"").path()).unwrap_err().to_string().contains("nothing to run"));
        assert!(lines(file("c", b"a\0b\n").path()).unwrap_err().to_string().contains("line 1"));
    }

    #[test]
    fn json_is_an_array_or_a_sequence() {
        let expected = [r#"{"a":1}"#, r#""x""#, "[2]"];
        assert_eq!(shown(&json(file("a", br#" [ {"a": 1}, "x", [2] ]"#).path()).unwrap()), expected);
        assert_eq!(shown(&json(file("b", b"{\"a\": 1}\n\"x\"\n[2]\n").path()).unwrap()), expected);
        assert_eq!(shown(&json(file("c", b"[1]\n[2]\n").path()).unwrap()), ["[1]", "[2]"]);
        assert_eq!(shown(&json(file("e", br#"["a b", "c"]"#).path()).unwrap()), ["a b", "c"]);
        let wrong = json(file("d", b"{\"a\": 1}\n{oh}\n").path()).unwrap_err().to_string();
        assert!(wrong.contains(":2:2: no JSON"), "{wrong}");
    }

    #[test]
    fn a_file_without_end_is_not_read_to_it() {
        for wrong in [lines(Path::new("/dev/zero")), json(Path::new("/dev/zero"))] {
            let wrong = wrong.unwrap_err().to_string();
            assert!(wrong.contains("`/dev/zero` has more than "), "{wrong}");
        }
    }

    #[test]
    fn a_missing_file_is_told_with_the_next_step() {
        let wrong = lines(Path::new("no-such-file")).unwrap_err();
        assert!(wrong.to_string().starts_with("cannot read `no-such-file`"), "{wrong}");
    }
}
