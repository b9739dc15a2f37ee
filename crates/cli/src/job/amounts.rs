//! Amounts as people write them: sizes, durations, named resources, keys with a limit. Reads text, decides nothing.

use std::borrow::Cow;
use std::str::FromStr;

use filch_core::Span;
use filch_core::config::span;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

/// How long something takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lasting(pub(crate) Span);

impl FromStr for Lasting {
    type Err = String;

    fn from_str(text: &str) -> Result<Lasting, String> {
        span::parse(text).map(Lasting)
    }
}

/// A duration that is longer than nothing.
pub(super) fn positive(text: &str) -> Result<Lasting, String> {
    let lasting: Lasting = text.parse()?;
    if lasting.0 == Span::ZERO { Err("it must be longer than 0".to_owned()) } else { Ok(lasting) }
}

impl<'de> Deserialize<'de> for Lasting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lasting, D::Error> {
        span::deserialize(deserializer).map(Lasting)
    }
}

impl JsonSchema for Lasting {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        span::positive_schema(generator)
    }
}

/// A number of bytes as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Size(String);

impl Size {
    /// How many bytes.
    pub(crate) fn bytes(&self) -> Result<u64, String> {
        bytes(&self.0)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        bytes(text).map(|_| Size(text.to_owned()))
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"] })
    }
}

/// `512`, `64K`, `2G`, `1.5GiB`: powers of 1024, as programs that speak of memory mean it.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("a size is a number and K, M, G or T, such as `2G` or `512M`, not `{text}`");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| c.is_alphabetic()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let exponent = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return Err(wrong()),
    };
    let number = number.trim();
    let plain = number.starts_with(|c: char| c.is_ascii_digit())
        && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value: f64 = number.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
    let bytes = value * 1024f64.powi(exponent);
    if bytes < 1e15 { Ok(bytes as u64) } else { Err(format!("`{text}` is more memory than any machine has")) }
}

/// `NAME=AMOUNT`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resource {
    pub(crate) name: String,
    pub(crate) amount: f64,
}

impl FromStr for Resource {
    type Err = String;

    fn from_str(text: &str) -> Result<Resource, String> {
        let wrong = || format!("a resource is a name and an amount, such as `licence=1`, not `{text}`");
        let (name, amount) = text.split_once('=').ok_or_else(wrong)?;
        let amount: f64 =
            amount.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0).ok_or_else(wrong)?;
        if name.is_empty() {
            return Err(wrong());
        }
        Ok(Resource { name: name.to_owned(), amount })
    }
}

/// `NAME` or `NAME=LIMIT`: tasks with the same key run one at a time, or so many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) limit: Option<u32>,
}

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Key, String> {
        let (name, limit) = match text.split_once('=') {
            None => (text, None),
            Some((name, limit)) => {
                let wrong = || format!("the limit of a key is a whole number from 1, such as `db=4`, not `{limit}`");
                (name, Some(limit.parse().ok().filter(|limit| *limit > 0).ok_or_else(wrong)?))
            }
        };
        if name.is_empty() {
            return Err("a key has a name, such as `db` or `db=4`".to_owned());
        }
        Ok(Key { name: name.to_owned(), limit })
    }
}

/// `NAME` or `NAME=VALUE` of an environment; the value of this process's own without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for Variable {
    type Err = String;

    fn from_str(text: &str) -> Result<Variable, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let value = std::env::var(text)
                    .map_err(|_| format!("`{text}` is not set here; give it a value with `{text}=VALUE`"))?;
                (text, value)
            }
        };
        if name.is_empty() {
            return Err(format!("a variable has a name, such as `MODE=fast`, not `{text}`"));
        }
        Ok(Variable { name: name.to_owned(), value })
    }
}

/// From 1 to 5.
pub(super) fn priority(text: &str) -> Result<i64, String> {
    let level = text.parse().ok().filter(|level| (1..=5).contains(level));
    level.ok_or_else(|| "a priority is a number from 1 (least) to 5".to_owned())
}

/// A number that is not negative.
pub(super) fn amount(text: &str) -> Result<f64, String> {
    let amount = text.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0);
    amount.ok_or_else(|| "an amount is a number from 0, such as `2` or `0.5`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases =
            [("0", 0), ("512", 512), ("64K", 64 << 10), ("2G", 2 << 30), ("1.5MiB", 3 << 19), ("1 tb", 1 << 40)];
        for (text, expected) in cases {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "G", "-1G", "1e3", "two", "1Q", "nan", "9999999T", "1.2.3G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_with_amounts_are_read() {
        assert_eq!("licence=1".parse(), Ok(Resource { name: "licence".to_owned(), amount: 1.0 }));
        assert_eq!("db".parse(), Ok(Key { name: "db".to_owned(), limit: None }));
        assert_eq!("db=4".parse(), Ok(Key { name: "db".to_owned(), limit: Some(4) }));
        for text in ["licence", "=1", "a=x", "a=-1", "a=inf"] {
            assert!(text.parse::<Resource>().is_err(), "{text}");
        }
        for text in ["", "=1", "db=0", "db=x"] {
            assert!(text.parse::<Key>().is_err(), "{text}");
        }
        assert_eq!("A=b=c".parse(), Ok(Variable { name: "A".to_owned(), value: "b=c".to_owned() }));
        assert!("NO_SUCH_VARIABLE_HERE".parse::<Variable>().unwrap_err().contains("NO_SUCH_VARIABLE_HERE=VALUE"));
    }
}
