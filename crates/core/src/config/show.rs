//! The effective settings, each with where it came from, as a list and as YAML that loads again.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json};

use super::key_path;
use super::load::{Loaded, Origin, Origins, leaves, to_json};

/// The column at which the comments of the YAML begin, unless a line is longer.
const COMMENT_COLUMN: usize = 44;

/// One effective setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its path, such as `stealing.steal_timeout`.
    pub key: String,
    /// Its value.
    pub value: Json,
    /// Where the value came from.
    pub origin: Origin,
}

impl Loaded {
    /// Every setting, in the order of the reference.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let with_origin = |(key, value): (String, Json)| Setting { origin: self.origins.of(&key), key, value };
        leaves(&to_json(&self.config), "").into_iter().map(with_origin).collect()
    }

    /// Every setting as YAML, with a comment that says where it came from. Loading it gives the same configuration.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut yaml = Yaml { loaded: self, out: String::new() };
        if let Json::Object(entries) = to_json(&self.config) {
            yaml.entries(&entries, "", 0, "");
        }
        yaml.out
    }
}

impl crate::Config {
    /// Every setting as YAML. Loading it gives the same configuration.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        Loaded { config: self.clone(), origins: Origins::default() }.to_yaml()
    }
}

struct Yaml<'a> {
    loaded: &'a Loaded,
    out: String,
}

impl Yaml<'_> {
    /// Writes the entries of a map; the first one after `lead`, which is `- ` in a list.
    fn entries(&mut self, entries: &Map<String, Json>, path: &str, indent: usize, lead: &str) {
        for (index, (key, value)) in entries.iter().enumerate() {
            let place = key_path(path, key);
            let lead = if index == 0 { lead } else { "" };
            let margin = " ".repeat(indent - lead.len());
            let head = format!("{margin}{lead}{}:", scalar(&Json::from(key.as_str())));
            match value {
                Json::Object(inner) if !inner.is_empty() => {
                    self.line(&head, None);
                    self.entries(inner, &place, indent + 2, "");
                }
                Json::Array(items) if !items.is_empty() => {
                    self.line(&head, None);
                    self.items(items, &place, indent + 2);
                }
                leaf => self.line(&format!("{head} {}", scalar(leaf)), Some(self.loaded.origins.of(&place))),
            }
        }
    }

    fn items(&mut self, items: &[Json], path: &str, indent: usize) {
        for (index, item) in items.iter().enumerate() {
            let place = format!("{path}[{index}]");
            match item {
                Json::Object(entries) => self.entries(entries, &place, indent + 2, "- "),
                leaf => {
                    let origin = self.loaded.origins.of(&place);
                    self.line(&format!("{:indent$}- {}", "", scalar(leaf)), Some(origin));
                }
            }
        }
    }

    fn line(&mut self, text: &str, origin: Option<Origin>) {
        // Writing to a string cannot fail.
        let _ = match origin {
            Some(origin) => writeln!(self.out, "{text:<COMMENT_COLUMN$}  # {origin}"),
            None => writeln!(self.out, "{text}"),
        };
    }
}

/// A value on one line. Words that YAML would read as something else are quoted; JSON's quoting is YAML's too.
fn scalar(value: &Json) -> String {
    match value {
        Json::String(text) if is_plain(text) => text.clone(),
        Json::String(_) => escape(&value.to_string()),
        other => other.to_string(),
    }
}

/// JSON lets some characters stand for themselves that YAML takes for line ends or refuses.
fn escape(quoted: &str) -> String {
    let mut out = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        let code = u32::from(c);
        let strange = c.is_control() || matches!(code, 0x2028 | 0x2029 | 0xfeff) || code & 0xfffe == 0xfffe;
        let _ = if strange { write!(out, "\\U{code:08x}") } else { write!(out, "{c}") };
    }
    out
}

fn is_plain(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_ascii_lowercase());
    let duration = super::span::parse(text).is_ok() && text.ends_with(|c: char| c.is_ascii_lowercase());
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"].contains(&text);
    let simple = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    simple && !reserved && (starts_well || duration)
}
