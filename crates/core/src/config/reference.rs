//! The reference of all settings as Markdown, made from the schema, so that it cannot go stale.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json};

use super::load::to_json;
use super::schema::{self, Bounds, Shape};
use super::{Config, POLICIES, Profile, key_path};

/// The Markdown reference of every setting: key, type, default, meaning; then policies and profiles.
#[must_use]
pub fn reference() -> String {
    let mut out = String::from(INTRODUCTION);
    if let Shape::Section(fields) = schema::shape(schema::root()) {
        section(fields, &to_json(&Config::default()), "", &mut out);
    }
    policies(&mut out);
    profiles(&mut out);
    out
}

const INTRODUCTION: &str = "\
<!-- Made by `filch config reference`; edit the doc comments of the settings instead. -->
# Configuration reference

A configuration is a YAML file. Every key has a default, so a file holds only what differs; an empty file is fine.
Values are taken from, in this order: the file, the profile, what a `load_balancing` section implies, the defaults.
`filch config show FILE` prints all of them with where each came from, `filch config check FILE` finds mistakes,
`filch config schema` prints the JSON schema for editors.

A duration is a number and a unit (`ns`, `us`, `ms`, `s`, `m`, `h`, `d`), such as `250ms`; a bare number counts seconds.

A file with a `load_balancing` section binds tasks at submission (`scheduling.bind: push`), places them by
`scheduling.policy: best_fit` and lets thieves ask the busiest worker (`stealing.strategy: most_loaded`),
each unless the file sets that key itself.
";

fn section(fields: &'static Map<String, Json>, defaults: &Json, path: &str, out: &mut String) {
    let (sections, leaves): (Vec<_>, Vec<_>) =
        fields.iter().partition(|(_, schema)| matches!(schema::shape(schema), Shape::Section(_)));
    if !leaves.is_empty() {
        let title = if path.is_empty() { "Top level".to_owned() } else { format!("`{path}`") };
        let _ = writeln!(out, "\n## {title}\n");
        let _ = writeln!(out, "| key | type | default | meaning |\n|---|---|---|---|");
    }
    for (name, schema) in leaves {
        let default = defaults.get(name).unwrap_or(&Json::Null);
        let _ = writeln!(
            out,
            "| `{name}` | {} | {} | {} |",
            cell(&type_words(schema)),
            default_words(default),
            cell(&meaning(schema))
        );
    }
    for (name, schema) in sections {
        if let Shape::Section(inner) = schema::shape(schema) {
            section(inner, defaults.get(name).unwrap_or(&Json::Null), &key_path(path, name), out);
        }
    }
}

fn type_words(schema: &'static Json) -> String {
    let bounded = |words: &str, schema| match Bounds::of(schema).words(false) {
        bounds if bounds.is_empty() || bounds == "at least 0" => words.to_owned(),
        bounds => format!("{words} {bounds}"),
    };
    match schema::shape(schema) {
        Shape::Integer(schema) => bounded("whole number", schema),
        Shape::Number(schema) => bounded("number", schema),
        Shape::Span(schema) => bounded("duration", schema),
        Shape::Bool => "true or false".to_owned(),
        Shape::Choice(_) => "name".to_owned(),
        Shape::ChoiceOrSection(..) => "policy".to_owned(),
        Shape::Table(_) => "names with a policy each".to_owned(),
        Shape::List(_) | Shape::TextOrList(_) => "list".to_owned(),
        Shape::Text | Shape::TextOrInteger => "text".to_owned(),
        Shape::Section(_) | Shape::Free => "section".to_owned(),
    }
}

fn default_words(default: &Json) -> String {
    match default {
        Json::Null => "none".to_owned(),
        Json::Object(entries) if entries.is_empty() => "none".to_owned(),
        Json::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

fn meaning(schema: &'static Json) -> String {
    let mut text = schema::description(schema).replace('\n', " ");
    if let Shape::Choice(words) = schema::shape(schema) {
        for (word, description) in schema::choices(words) {
            let _ = write!(text, "<br>`{word}`: {}", description.replace('\n', " "));
        }
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn policies(out: &mut String) {
    out.push_str(POLICY_INTRODUCTION);
    for entry in POLICIES {
        let options: Vec<String> = entry.options.iter().map(|option| format!("`{option}`")).collect();
        let options = if options.is_empty() { "none".to_owned() } else { options.join(", ") };
        let _ = writeln!(out, "| `{}` | {options} | {} |", entry.name, cell(entry.summary));
    }
    let _ = writeln!(out, "\n| option | type | meaning |\n|---|---|---|");
    let fields = schema::root().pointer("/$defs/WeightedPolicy/properties").and_then(Json::as_object);
    for (name, schema) in fields.into_iter().flatten().filter(|(name, _)| *name != "type") {
        let _ = writeln!(out, "| `{name}` | {} | {} |", cell(&type_words(schema)), cell(&meaning(schema)));
    }
}

const POLICY_INTRODUCTION: &str = "
## Policies

A policy is written as a name, or as a section with the name under `type` and its options beside it:

```yaml
scheduling:
  policy:
    type: composite
    algorithms:
      - { type: performance_based, weight: 0.6 }
      - { type: priority_based, weight: 0.3 }
      - { type: affinity_based, weight: 0.1 }
  per_type:
    critical: priority_based
    training: { type: batch, batch_size: 8 }
```

| policy | options | prefers |
|---|---|---|
";

fn profiles(out: &mut String) {
    out.push_str(
        "\n## Profiles\n\nA profile sets some `stealing` keys; the file's own `stealing` keys win over it.\n\n",
    );
    out.push_str("| profile | sets |\n|---|---|\n");
    for profile in Profile::ALL {
        let settings: Vec<String> = profile
            .settings()
            .iter()
            .map(|(key, value)| format!("`{key}: {}`", value.to_string().trim_matches('"')))
            .collect();
        let _ = writeln!(out, "| `{}` | {} |", profile.name(), settings.join(", "));
    }
}
