//! The JSON schema of the configuration, made from the settings' types and completed by what the types cannot say; and a
//! reading of it that the checks use.
//!
//! The schema and the checks accept the same documents, as a test shows, up to what JSON schema cannot say: rules that
//! compare settings with each other, and sums. These are in [`super::rules`] alone.

use std::sync::LazyLock;

use serde_json::{Map, Value as Json, json};

use super::{Config, policies};

/// The schema is the same in every call and takes a while to make.
static SCHEMA: LazyLock<Json> = LazyLock::new(|| {
    let mut schema = serde_json::to_value(schemars::schema_for!(Config)).unwrap_or_default();
    complete(&mut schema);
    schema["$comment"] = Json::from(
        "Rules between several settings, such as idle_threshold below busy_threshold, are checked by `filch config check` only.",
    );
    schema
});

/// The JSON schema of a configuration file, with descriptions, defaults, bounds and the names of all policies.
#[must_use]
pub fn schema() -> Json {
    SCHEMA.clone()
}

/// The schema of the whole file.
pub(super) fn root() -> &'static Json {
    &SCHEMA
}

/// Adds to a schema and all inside it what the types of the settings do not say.
pub(super) fn complete(schema: &mut Json) {
    match schema {
        Json::Object(entries) => {
            entries.values_mut().for_each(complete);
            complete_one(entries);
        }
        Json::Array(items) => items.iter_mut().for_each(complete),
        _ => {}
    }
}

fn complete_one(schema: &mut Map<String, Json>) {
    // A number's format is a remark to validators, its bounds are not.
    if let Some(most) = schema.get("format").and_then(Json::as_str).and_then(format_most) {
        schema.entry("maximum").or_insert(Json::from(most));
    }
    if schema.get("type").and_then(Json::as_str) != Some("object") {
        return;
    }
    if let Some(Json::Object(_)) = schema.get("additionalProperties") {
        schema.insert("propertyNames".to_owned(), json!({ "minLength": 1 }));
    }
    if schema.get("properties").is_some_and(|fields| fields.get("algorithms").is_some()) {
        schema.insert("allOf".to_owned(), policies::option_rules());
    }
    // A section with all its lines commented out sets nothing.
    if schema.get("required").is_none() {
        schema.insert("type".to_owned(), json!(["object", "null"]));
    }
}

/// The largest number of an integer format.
fn format_most(format: &str) -> Option<u64> {
    match format {
        "uint64" => Some(u64::MAX),
        "uint32" => Some(u32::MAX.into()),
        "uint8" => Some(u8::MAX.into()),
        _ => None,
    }
}

/// What a value must look like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Exactly these keys.
    Section(&'static Map<String, Json>),
    /// Any keys; values of this schema.
    Table(&'static Json),
    List(&'static Json),
    /// Its schema has the bounds.
    Integer(&'static Json),
    Number(&'static Json),
    Span(&'static Json),
    Bool,
    /// Any text.
    Text,
    /// Text, or a whole number that stands for its digits.
    TextOrInteger,
    /// Text, or a list of parts of this schema.
    TextOrList(&'static Json),
    /// One of the words of [`choices`].
    Choice(&'static Json),
    /// A word, or a section that begins with that word.
    ChoiceOrSection(&'static Json, &'static Map<String, Json>),
    /// Anything; no setting has it.
    Free,
}

/// The shape a schema describes. Whether it may be null is asked of [`is_optional`].
pub(super) fn shape(schema: &'static Json) -> Shape {
    let schema = resolve(schema);
    if schema.get("oneOf").is_some() || schema.get("enum").is_some() {
        return Shape::Choice(schema);
    }
    if let Some(branches) = schema.get("anyOf").and_then(Json::as_array) {
        let mut shapes = branches.iter().filter(|branch| !is_null(branch)).map(shape);
        return match (shapes.next(), shapes.next()) {
            (Some(Shape::Choice(words)), Some(Shape::Section(fields))) => Shape::ChoiceOrSection(words, fields),
            (Some(only), None) => only,
            _ => Shape::Free,
        };
    }
    let types: Vec<&str> = types(schema).filter(|name| *name != "null").collect();
    match types.as_slice() {
        ["string", "number"] => Shape::Span(schema),
        ["string", "integer"] => Shape::TextOrInteger,
        ["string", "array"] => schema.get("items").map_or(Shape::Free, Shape::TextOrList),
        ["integer"] => Shape::Integer(schema),
        ["number"] => Shape::Number(schema),
        ["boolean"] => Shape::Bool,
        ["string"] => Shape::Text,
        ["array"] => schema.get("items").map_or(Shape::Free, Shape::List),
        ["object"] => match (schema.get("properties"), schema.get("additionalProperties")) {
            (Some(Json::Object(fields)), _) => Shape::Section(fields),
            (_, Some(values @ Json::Object(_))) => Shape::Table(values),
            _ => Shape::Free,
        },
        _ => Shape::Free,
    }
}

/// Follows `$ref`.
pub(super) fn resolve(schema: &'static Json) -> &'static Json {
    let mut schema = schema;
    while let Some(name) = schema.get("$ref").and_then(Json::as_str).and_then(|r| r.strip_prefix("#/$defs/")) {
        match root().get("$defs").and_then(|definitions| definitions.get(name)) {
            Some(definition) => schema = definition,
            None => break,
        }
    }
    schema
}

/// The keys a section of that schema must have.
pub(super) fn required(schema: &'static Json) -> impl Iterator<Item = &'static str> {
    let schema = resolve(schema);
    let branches = schema.get("anyOf").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let section = branches.iter().map(resolve).find(|branch| branch.get("properties").is_some()).unwrap_or(schema);
    section.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str)
}

/// Whether nothing (`null`) may stand for "not set".
pub(super) fn is_optional(schema: &'static Json) -> bool {
    let schema = resolve(schema);
    types(schema).any(|name| name == "null")
        || schema.get("anyOf").and_then(Json::as_array).is_some_and(|branches| branches.iter().any(is_null))
}

fn is_null(schema: &Json) -> bool {
    schema.get("type").and_then(Json::as_str) == Some("null")
}

fn types(schema: &'static Json) -> impl Iterator<Item = &'static str> {
    let (one, many) = match schema.get("type") {
        Some(Json::String(name)) => (Some(name.as_str()), &[][..]),
        Some(Json::Array(names)) => (None, names.as_slice()),
        _ => (None, &[][..]),
    };
    one.into_iter().chain(many.iter().filter_map(Json::as_str))
}

/// The words a choice allows, each with its meaning where it has one.
pub(super) fn choices(schema: &'static Json) -> Vec<(&'static str, &'static str)> {
    let described = schema.get("oneOf").and_then(Json::as_array).into_iter().flatten();
    let plain = schema.get("enum").and_then(Json::as_array).into_iter().flatten();
    described
        .filter_map(|branch| Some((branch.get("const")?.as_str()?, description(branch))))
        .chain(plain.filter_map(|word| Some((word.as_str()?, ""))))
        .collect()
}

/// The description of a setting.
pub(super) fn description(schema: &'static Json) -> &'static str {
    schema.get("description").and_then(Json::as_str).unwrap_or_default()
}

/// The bounds of a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    least: Option<f64>,
    above: Option<f64>,
    most: Option<f64>,
}

impl Bounds {
    /// The bounds a schema states.
    pub(super) fn of(schema: &Json) -> Bounds {
        let number = |name: &str| schema.get(name).and_then(Json::as_f64);
        let above = number("exclusiveMinimum");
        Bounds {
            // "above" already says all that "at least" would.
            least: if above.is_some() { None } else { number("minimum") },
            above,
            most: number("maximum"),
        }
    }

    pub(super) fn contain(&self, number: f64) -> bool {
        number.is_finite()
            && self.least.is_none_or(|least| number >= least)
            && self.above.is_none_or(|above| number > above)
            && self.most.is_none_or(|most| number <= most)
    }

    /// "from 0 to 1", "above 0", "at least 1"; empty without bounds. Format limits are left out unless `all`.
    pub(super) fn words(&self, all: bool) -> String {
        let most = self.most.filter(|most| all || *most < 255.0);
        // A float cannot hold the largest 64-bit number; its nearest one would be a wrong answer.
        let most = most.map(|most| if most >= u64::MAX as f64 { u64::MAX.to_string() } else { most.to_string() });
        match (self.least, self.above, most) {
            (Some(least), _, Some(most)) => format!("from {least} to {most}"),
            (None, Some(above), Some(most)) => format!("above {above} and at most {most}"),
            (Some(least), _, None) => format!("at least {least}"),
            (None, Some(above), None) => format!("above {above}"),
            (None, None, Some(most)) => format!("at most {most}"),
            (None, None, None) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(path: &str) -> &'static Json {
        path.split('.').fold(root(), |schema, name| match shape(schema) {
            Shape::Section(fields) => &fields[name],
            other => panic!("{name} in {other:?}"),
        })
    }

    /// Every part of the schema has a shape the checks understand; a new kind of setting must be taught first.
    #[test]
    fn no_setting_is_left_unchecked() {
        fn visit(schema: &'static Json, path: &str, depth: usize) {
            let children: Vec<(String, &'static Json)> = match shape(schema) {
                Shape::Free => panic!("`{path}` has a shape nobody checks"),
                Shape::Section(fields) | Shape::ChoiceOrSection(_, fields) => {
                    fields.iter().map(|(name, schema)| (format!("{path}.{name}"), schema)).collect()
                }
                Shape::Table(item) | Shape::List(item) => vec![(format!("{path}[]"), item)],
                _ => Vec::new(),
            };
            // Policies nest without end.
            for (path, child) in children.into_iter().filter(|_| depth < 8) {
                visit(child, &path, depth + 1);
            }
        }
        visit(root(), "", 0);
    }

    #[test]
    fn the_schema_has_descriptions_defaults_bounds_and_policy_names() {
        let weight = field("load_balancing.capabilities.history_weight");
        assert_eq!((weight["minimum"].as_f64(), weight["maximum"].as_f64()), (Some(0.0), Some(1.0)));
        assert_eq!(weight["default"], 0.3);
        let ratio = field("load_balancing.thresholds.severe_imbalance_ratio");
        assert_eq!(ratio["exclusiveMinimum"], 1);
        let timeout = field("stealing.steal_timeout");
        assert_eq!((timeout["exclusiveMinimum"].as_f64(), &timeout["default"]), (Some(0.0), &Json::from("100ms")));
        assert!(!description(timeout).is_empty());
        let Shape::ChoiceOrSection(words, _) = shape(field("scheduling.policy")) else { panic!("a policy") };
        let names: Vec<&str> = choices(words).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, policies::names());
    }

    #[test]
    fn bounds_are_put_into_words() {
        assert_eq!(Bounds::of(field("load_balancing.priority.high_priority_threshold")).words(true), "from 1 to 6");
        assert_eq!(Bounds::of(field("limits.max_queued")).words(true), "from 1 to 18446744073709551615");
        assert_eq!(Bounds::of(field("stealing.steal_timeout")).words(false), "above 0");
        let max = Bounds::of(field("retry.max_retries"));
        assert_eq!((max.words(false).as_str(), max.words(true).as_str()), ("at least 0", "from 0 to 4294967295"));
        assert!(!max.contain(f64::NAN) && !max.contain(-1.0) && max.contain(0.0) && !max.contain(5e9));
    }
}
