//! A YAML or JSON document as a tree that remembers where each key and value stood.
//!
//! YAML itself is read by `serde-saphyr`, with a budget that keeps hostile input (deep nesting, alias bombs) cheap.
//! The tree knows nothing of settings; [`super::check`] compares it with the schema.

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Error, NonFiniteFloatPolicy, Spanned};

use super::load::Limits;
use super::syntax::{SyntaxError, describe, mark_of, unknown_tags};

/// A configuration has far fewer levels than this.
const MAX_DEPTH: usize = 32;
/// Aliases that a document of any size may have.
const ALIASES: usize = 50_000;

/// Where something stands: line and column from 1, length in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) length: usize,
}

/// A value and, if it came from text, where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) mark: Option<Mark>,
    pub(super) value: Value,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

/// Reads YAML. A key given twice and a tag nobody knows do not stop it: the first key counts, the tag does not, and the mistakes
/// come back beside the tree.
///
/// # Errors
/// The first place where the text is not YAML, or exceeds the budget.
pub(super) fn from_yaml(text: &str, limits: Limits) -> Result<(Node, Vec<SyntaxError>), SyntaxError> {
    let mut mistakes = Vec::new();
    let node = match read(text, limits, DuplicateKeyPolicy::Error) {
        Err(error) if matches!(error.without_snippet(), Error::DuplicateMappingKey { .. }) => {
            mistakes.push(describe(&error, text));
            read(text, limits, DuplicateKeyPolicy::FirstWins)
        }
        read => read,
    };
    let node = node.map_err(|error| describe(&error, text))?;
    mistakes.extend(unknown_tags(text));
    Ok((node, mistakes))
}

fn read(text: &str, limits: Limits, duplicate_keys: DuplicateKeyPolicy) -> Result<Node, Error> {
    let Limits { nodes, .. } = limits;
    let aliases = nodes.max(ALIASES);
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_events: nodes,
            max_nodes: nodes,
            max_documents: 2,
            max_aliases: aliases,
            max_anchors: aliases,
            max_merge_keys: aliases,
            // What aliases repeat is counted.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: nodes,
            max_replay_stack_depth: MAX_DEPTH,
        },
        duplicate_keys: duplicate_keys,
        strict_booleans: true,
        // Handed on so that the check can say which setting must be finite.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<Spanned<Value>>(text, options).map(Node::from)
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Node {
        Node { mark: mark_of(spanned.referenced), value: spanned.value }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }
    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Int(value))
    }
    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(Value::Int(i128::try_from(value).unwrap_or(i128::MAX)))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }
    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Spanned<Value>>()? {
            items.push(Node::from(item));
        }
        Ok(Value::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = access.next_entry::<Spanned<Value>, Spanned<Value>>()? {
            entries.push((Node::from(key), Node::from(value)));
        }
        Ok(Value::Map(entries))
    }
}

/// The tree of settings that were built in code. JSON has no way to write NaN or infinity and says `null` instead;
/// as no setting that is written out can be null, every `null` here stands for one of those.
pub(super) fn from_json(json: &serde_json::Value) -> Node {
    use serde_json::Value as Json;
    let value = match json {
        Json::Null => Value::Float(f64::NAN),
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(whole), _) => Value::Int(whole),
            (None, float) => Value::Float(float.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(from_json).collect()),
        Json::Object(entries) => Value::Map(entries.iter().map(|(key, value)| (text(key), from_json(value))).collect()),
    };
    Node { mark: None, value }
}

fn text(key: &str) -> Node {
    Node { mark: None, value: Value::Text(key.to_owned()) }
}
