//! Files of other types than [`Config`], read as carefully: every mistake with its line, its column and the nearest known key.
//!
//! Whoever has such a type derives its schema, and hands it in. A section of the file may be a whole configuration.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::check::Findings;
use super::load::{Limits, Loaded, place, refuse_large, syntax};
use super::node::{self, Node, Value};
use super::problem::{ConfigErrors, Problem, lines};
use super::schema;

/// The schema of a type, as [`Document::read`] wants it. Takes a while to make: keep it.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Json {
    let settings = SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    let mut made = serde_json::to_value(settings.into_generator().into_root_schema_for::<T>()).unwrap_or_default();
    schema::complete(&mut made);
    made
}

/// A text that is being read.
#[derive(Debug)]
pub struct Document {
    label: String,
    text: String,
    tree: Node,
    findings: Findings,
}

impl Document {
    /// Reads the text of a file; `label` names it in errors.
    ///
    /// # Errors
    /// That it is too large, or is no YAML.
    pub fn parse(text: &str, label: &str) -> Result<Document, ConfigErrors> {
        Document::parse_within(text, label, Limits::CONFIG)
    }

    /// The same for a file that may be larger, or must be smaller, than a configuration.
    ///
    /// # Errors
    /// That it is too large, or is no YAML.
    pub fn parse_within(text: &str, label: &str, limits: Limits) -> Result<Document, ConfigErrors> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        refuse_large(text.as_bytes(), label, limits)?;
        let fail = |error| {
            let (problem, mark) = syntax(error);
            ConfigErrors::new(label, vec![place(problem, mark, &lines(text))])
        };
        let (tree, mistakes) = node::from_yaml(text, limits).map_err(fail)?;
        let mut findings = Findings::default();
        findings.problems.extend(mistakes.into_iter().map(syntax));
        Ok(Document { label: label.to_owned(), text: text.to_owned(), tree, findings })
    }

    /// Takes out a section of the file and reads it as a configuration; the defaults if there is none.
    pub fn config(&mut self, name: &str) -> Option<Loaded> {
        let section = match &mut self.tree.value {
            Value::Map(entries) => {
                let found = entries.iter().position(|(key, _)| matches!(&key.value, Value::Text(text) if text == name));
                found.map(|at| entries.remove(at).1)
            }
            _ => None,
        };
        let tree = section.unwrap_or(Node { value: Value::Map(Vec::new()), mark: None });
        match super::load::read(&tree, Vec::new(), None) {
            Ok(loaded) => Some(loaded),
            Err(problems) => {
                let inside = |problem: Problem| Problem { key: super::key_path(name, &problem.key), ..problem };
                self.findings.problems.extend(problems.into_iter().map(|(problem, mark)| (inside(problem), mark)));
                None
            }
        }
    }

    /// Reads what is left as a type with that schema.
    pub fn read<T: DeserializeOwned>(&mut self, schema: &'static Json) -> Option<T> {
        let json = match self.tree.value {
            Value::Null => Some(Json::Object(Map::new())),
            _ => self.findings.value(&self.tree, schema, ""),
        };
        match serde_json::from_value(json.unwrap_or_else(|| Json::Object(Map::new()))) {
            Ok(read) => Some(read),
            Err(error) => {
                if self.findings.problems.is_empty() {
                    self.findings.problems.push((Problem::new("", format!("cannot be read: {error}")), None));
                }
                None
            }
        }
    }

    /// Refuses the value at a path for a reason that no schema can state.
    pub fn refuse(&mut self, path: &str, message: &str, help: Option<&str>) {
        let marks = self.findings.marks.get(path).copied().unwrap_or_default();
        let problem = Problem::new(path, message.to_owned()).with_help(help.map(str::to_owned));
        self.findings.problems.push((problem, marks.value.or(marks.key)));
    }

    /// What was read, if nothing was wrong.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its line and column.
    pub fn finish<T>(self, read: Option<T>) -> Result<T, ConfigErrors> {
        match read {
            Some(read) if self.findings.problems.is_empty() => Ok(read),
            _ => {
                let lines = lines(&self.text);
                let placed = self.findings.problems.into_iter().map(|(problem, mark)| place(problem, mark, &lines));
                Err(ConfigErrors::new(&self.label, placed.collect()))
            }
        }
    }
}
