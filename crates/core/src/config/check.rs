//! Compares a tree with the schema: unknown keys, wrong types, unknown words, numbers out of bounds.
//!
//! Goes on after a mistake, so that all of them are reported; what is wrong is left out of the result.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::nearest::{choice_names, misspelt, nearest};
use super::node::{Mark, Node, Value};
use super::problem::Problem;
use super::schema::{self, Bounds, Shape};
use super::{key_path, span};
use crate::time::Span;

/// A text longer than this is shortened where it is quoted.
const QUOTED: usize = 40;

/// As many names fit into a message.
const FEW_NAMES: usize = 6;

/// Where a setting stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub(super) key: Option<Mark>,
    pub(super) value: Option<Mark>,
}

/// What a comparison found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// The problems, each with its mark.
    pub(super) problems: Vec<(Problem, Option<Mark>)>,
    /// The place of every known key, by its path.
    pub(super) marks: BTreeMap<String, Marks>,
    /// Paths that were left out of the result.
    pub(super) broken: Vec<String>,
}

/// The sound part of `node` as JSON, and everything that is wrong with it.
pub(super) fn check(node: &Node) -> (Json, Findings) {
    let mut findings = Findings::default();
    // An empty file, or one with nothing but comments, sets nothing.
    let json = match node.value {
        Value::Null => None,
        _ => findings.value(node, schema::root(), ""),
    };
    (json.unwrap_or_else(|| Json::Object(Map::new())), findings)
}

impl Findings {
    fn report(&mut self, key: &str, mark: Option<Mark>, message: String, help: Option<String>) {
        self.problems.push((Problem::new(key, message).with_help(help), mark));
        self.broken.push(key.to_owned());
    }

    /// Reports that something else was expected.
    fn expected<T>(&mut self, node: &Node, path: &str, expected: &str, help: Option<String>) -> Option<T> {
        self.report(path, node.mark, format!("{} {expected}, found {}", subject(path), found(node)), help);
        None
    }

    pub(super) fn value(&mut self, node: &Node, schema: &'static Json, path: &str) -> Option<Json> {
        match schema::shape(schema) {
            Shape::Section(fields) => match &node.value {
                Value::Map(entries) => self.section(node, entries, fields, schema, path),
                // A section with all its lines commented out.
                Value::Null if schema::is_optional(schema) => Some(Json::Object(Map::new())),
                _ => self.expected(node, path, "expects keys with values", Some(keys_here(fields))),
            },
            Shape::ChoiceOrSection(words, fields) => match &node.value {
                Value::Map(entries) => self.section(node, entries, fields, schema, path),
                _ => self.choice(node, words, path),
            },
            Shape::Table(values) => self.table(node, values, path),
            Shape::List(items) => self.list(node, items, path),
            Shape::Choice(words) => self.choice(node, words, path),
            Shape::Integer(schema) => self.integer(node, schema, path),
            Shape::Number(schema) => self.number(node, schema, path),
            Shape::Span(schema) => self.span(node, schema, path),
            Shape::Bool => match &node.value {
                Value::Bool(value) => Some(Json::Bool(*value)),
                _ => self.expected(node, path, "expects true or false", bool_help(node)),
            },
            Shape::Text => self.text(node, "expects text", path),
            Shape::TextOrInteger => match &node.value {
                Value::Int(value) => Some(Json::from(value.to_string())),
                _ => self.text(node, "expects text or a whole number", path),
            },
            Shape::TextOrList(items) => match &node.value {
                Value::List(_) => self.list(node, items, path),
                _ => self.text(node, "expects text or a list", path),
            },
            Shape::Free => None,
        }
    }

    fn section(
        &mut self,
        node: &Node,
        entries: &[(Node, Node)],
        fields: &'static Map<String, Json>,
        schema: &'static Json,
        path: &str,
    ) -> Option<Json> {
        let mut result = Map::new();
        for (key, value) in entries {
            let Some((name, place)) = self.key(key, value, path) else { continue };
            let Some(field) = fields.get(name) else {
                let here = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
                let message = format!("unknown key `{}`{here}", quote(name));
                let help = known_key(name, fields, self.problems.len() < PROBLEMS_THOUGHT_ABOUT);
                self.report(&place, key.mark, message, Some(help));
                continue;
            };
            if matches!(value.value, Value::Null) && schema::is_optional(field) {
                continue;
            }
            if let Some(json) = self.value(value, field, &place) {
                result.insert(name.to_owned(), json);
            }
        }
        let present =
            |name: &str| entries.iter().any(|(key, _)| matches!(&key.value, Value::Text(text) if text == name));
        let missing: Vec<&str> = schema::required(schema).filter(|name| !present(name)).collect();
        for name in &missing {
            let message = format!("{} needs the key `{name}`", subject(path));
            let help = fields.get(*name).map(schema::description).filter(|text| !text.is_empty());
            self.report(path, node.mark, message, help.map(|text| format!("`{name}`: {text}")));
        }
        // Without its required keys a section cannot be read at all.
        let whole = schema::required(schema).all(|name| result.contains_key(name));
        if !whole && missing.is_empty() {
            self.broken.push(path.to_owned());
        }
        whole.then_some(Json::Object(result))
    }

    /// The text of a key and the path of its value.
    fn key<'a>(&mut self, key: &'a Node, value: &Node, path: &str) -> Option<(&'a str, String)> {
        let Value::Text(name) = &key.value else {
            let message = format!("a key must be text, found {}", found(key));
            let help = "write the key as a word, or put it in quotes".to_owned();
            self.report(path, key.mark, message, Some(help));
            return None;
        };
        let place = key_path(path, name);
        self.marks.insert(place.clone(), Marks { key: key.mark, value: value.mark });
        Some((name, place))
    }

    fn text(&mut self, node: &Node, expected: &str, path: &str) -> Option<Json> {
        match &node.value {
            Value::Text(text) => Some(Json::from(text.as_str())),
            _ => self.expected(node, path, expected, Some("put it in quotes".to_owned())),
        }
    }

    fn table(&mut self, node: &Node, values: &'static Json, path: &str) -> Option<Json> {
        let Value::Map(entries) = &node.value else {
            return match node.value {
                Value::Null => Some(Json::Object(Map::new())),
                _ => self.expected(node, path, "expects names with values", None),
            };
        };
        let mut result = Map::new();
        for (key, value) in entries {
            let Some((name, place)) = self.key(key, value, path) else { continue };
            if name.is_empty() {
                let message = format!("a name in `{path}` must not be empty");
                self.report(&place, key.mark, message, Some("write a name, or remove the line".to_owned()));
                continue;
            }
            if let Some(json) = self.value(value, values, &place) {
                result.insert(name.to_owned(), json);
            }
        }
        Some(Json::Object(result))
    }

    fn list(&mut self, node: &Node, items: &'static Json, path: &str) -> Option<Json> {
        let Value::List(nodes) = &node.value else {
            return self.expected(node, path, "expects a list", Some("begin each part with `- `".to_owned()));
        };
        let mut result = Vec::new();
        for (index, item) in nodes.iter().enumerate() {
            let place = format!("{path}[{index}]");
            self.marks.insert(place.clone(), Marks { key: item.mark, value: item.mark });
            result.extend(self.value(item, items, &place));
        }
        // Leaving one part out would change the meaning of the others.
        if result.len() == nodes.len() {
            return Some(Json::Array(result));
        }
        self.broken.push(path.to_owned());
        None
    }

    fn choice(&mut self, node: &Node, words: &'static Json, path: &str) -> Option<Json> {
        let names: Vec<&str> = schema::choices(words).into_iter().map(|(name, _)| name).collect();
        match &node.value {
            Value::Text(text) if names.contains(&text.as_str()) => Some(Json::String(text.clone())),
            Value::Text(text) => {
                // The names of policies do not fit the message; the help has the nearest one or all.
                let many = names.len() > FEW_NAMES;
                let expected = if many {
                    "expects a known policy".to_owned()
                } else {
                    format!("expects {}", alternatives(&names))
                };
                let help = (many || nearest(text, &names).is_some()).then(|| choice_names(text, &names));
                self.expected(node, path, &expected, help)
            }
            _ => self.expected(node, path, "expects a name", Some(format!("it is one of {}", names.join(", ")))),
        }
    }

    fn integer(&mut self, node: &Node, schema: &'static Json, path: &str) -> Option<Json> {
        let bounds = Bounds::of(schema);
        match node.value {
            Value::Int(value) => match u64::try_from(value) {
                Ok(whole) if bounds.contain(whole as f64) => Some(Json::from(whole)),
                _ => self.out_of_bounds(node, bounds, path),
            },
            // To JSON, and so to the schema, 2.0 and 2e0 are whole numbers.
            Value::Float(value) if value.fract() == 0.0 && bounds.contain(value) && value < u64::MAX as f64 => {
                Some(Json::from(value as u64))
            }
            // YAML readers hand whole numbers beyond 64 bits over as floats.
            Value::Float(value) if !value.is_finite() || value >= u64::MAX as f64 => {
                self.out_of_bounds(node, bounds, path)
            }
            _ => self.expected(node, path, "expects a whole number", number_help(node)),
        }
    }

    fn number(&mut self, node: &Node, schema: &'static Json, path: &str) -> Option<Json> {
        let bounds = Bounds::of(schema);
        let number = match node.value {
            Value::Int(value) => value as f64,
            Value::Float(value) => value,
            _ => return self.expected(node, path, "expects a number", number_help(node)),
        };
        if bounds.contain(number) { Some(Json::from(number)) } else { self.out_of_bounds(node, bounds, path) }
    }

    fn out_of_bounds<T>(&mut self, node: &Node, bounds: Bounds, path: &str) -> Option<T> {
        let expected = match node.value {
            Value::Float(value) if !value.is_finite() => "must be a finite number".to_owned(),
            _ => format!("must be {}", bounds.words(true)),
        };
        self.expected(node, path, &expected, None)
    }

    fn span(&mut self, node: &Node, schema: &'static Json, path: &str) -> Option<Json> {
        let text = match &node.value {
            Value::Text(text) => text.clone(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) if value.is_finite() => value.to_string(),
            _ => {
                let help = "write a number and a unit, such as `250ms`, or a number of seconds".to_owned();
                return self.expected(node, path, "expects a duration", Some(help));
            }
        };
        match span::parse(&text) {
            Err(help) => self.expected(node, path, "expects a duration", Some(help)),
            Ok(span) if span > Span::ZERO || schema.get("exclusiveMinimum").is_none() => {
                Some(Json::String(span.to_string()))
            }
            Ok(_) => self.expected(node, path, "must be longer than 0s", None),
        }
    }
}

/// How a message names the setting at a path.
pub(super) fn subject(path: &str) -> String {
    if path.is_empty() { "the file".to_owned() } else { format!("`{path}`") }
}

fn found(node: &Node) -> String {
    match &node.value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("`{value}`"),
        Value::Int(value) => format!("`{value}`"),
        Value::Float(value) if value.is_nan() => "not a number".to_owned(),
        Value::Float(value) if value.is_infinite() => "infinity".to_owned(),
        Value::Float(value) => format!("`{value:?}`"),
        Value::Text(text) => format!("`{}`", quote(text)),
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a section".to_owned(),
    }
}

/// "a, b or c".
fn alternatives(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

fn quote(text: &str) -> String {
    if text.chars().count() <= QUOTED {
        return text.to_owned();
    }
    let start: String = text.chars().take(QUOTED - 1).collect();
    format!("{start}…")
}

fn number_help(node: &Node) -> Option<String> {
    match &node.value {
        Value::Text(text) if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => {
            Some(format!("without quotes: {}", text.trim()))
        }
        _ => None,
    }
}

fn bool_help(node: &Node) -> Option<String> {
    let word = match &node.value {
        Value::Text(text) => text.trim().to_lowercase(),
        Value::Int(value) => value.to_string(),
        _ => return None,
    };
    match word.as_str() {
        "yes" | "on" | "y" | "1" | "true" => Some("write true".to_owned()),
        "no" | "off" | "n" | "0" | "false" => Some("write false".to_owned()),
        _ => None,
    }
}

fn keys_here(fields: &'static Map<String, Json>) -> String {
    let names: Vec<&str> = fields.keys().map(String::as_str).collect();
    format!("known keys: {}", names.join(", "))
}

/// Beyond so many problems nothing is looked for in other sections: a file of nothing but unknown keys is answered quickly.
const PROBLEMS_THOUGHT_ABOUT: usize = 100;

/// The help for an unknown key: the one here that it is a misspelling of, else the section it belongs to, else one here or,
/// if `everywhere`, in another section that it comes near to, else all that are known here.
fn known_key(name: &str, fields: &'static Map<String, Json>, everywhere: bool) -> String {
    let names: Vec<&str> = fields.keys().map(String::as_str).collect();
    if let Some(known) = misspelt(name, &names) {
        return format!("did you mean `{known}`?");
    }
    match owner(name, schema::root(), "") {
        Some(section) if section.is_empty() => return format!("`{name}` belongs to the top level of the file"),
        Some(section) => return format!("`{name}` belongs to `{section}`"),
        None => {}
    }
    if let Some(known) = nearest(name, &names) {
        return format!("did you mean `{known}`?");
    }
    if everywhere {
        let mut all = Vec::new();
        keys_below(schema::root(), &mut all);
        if let Some(known) = nearest(name, &all) {
            return match owner(known, schema::root(), "") {
                Some(section) if !section.is_empty() => format!("did you mean `{known}` of `{section}`?"),
                _ => format!("did you mean `{known}` at the top level of the file?"),
            };
        }
    }
    keys_here(fields)
}

/// The section that has a key of that name.
fn owner(name: &str, schema: &'static Json, path: &str) -> Option<String> {
    let Shape::Section(fields) = schema::shape(schema) else { return None };
    if fields.contains_key(name) {
        return Some(path.to_owned());
    }
    fields.iter().find_map(|(field, schema)| owner(name, schema, &key_path(path, field)))
}

/// Every key of a section and of those inside it.
fn keys_below(schema: &'static Json, keys: &mut Vec<&'static str>) {
    let Shape::Section(fields) = schema::shape(schema) else { return };
    keys.extend(fields.keys().map(String::as_str));
    for schema in fields.values() {
        keys_below(schema, keys);
    }
}
