//! Job files: a graph of tasks in YAML. Every mistake is told with its line, its column and the nearest known key.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use filch_core::config::{self, Document, Limits};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value as Json;

use super::args::Shared;
use super::graph::{self, Entry};
use super::inputs;
use super::plan::Plan;
use super::terms::TermArgs;
use super::{Refusal, Usage};

/// As much as is read of one. While it is read, 100,000 tasks with five keys each take 600 MB; nodes bound that, whatever the bytes are.
const LARGEST: Limits = Limits { bytes: 64 << 20, nodes: 4_000_000 };

/// A job file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct JobFile {
    /// What the job is called; the name of the file if nothing is said.
    name: Option<String>,
    /// What it is for. For people.
    #[allow(dead_code, reason = "for people who read the file")]
    about: Option<String>,
    /// What holds for every task that does not say otherwise.
    pub(super) defaults: Usual,
    /// The tasks, in any order.
    pub(super) tasks: Vec<TaskEntry>,
}

/// What holds for every task that does not say otherwise.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Usual {
    /// Variables of the environment.
    pub(super) env: BTreeMap<String, String>,
    /// The directory to run in.
    pub(super) cwd: Option<String>,
    /// Amounts of named resources that a task takes.
    pub(super) resources: BTreeMap<String, f64>,
    #[serde(flatten)]
    pub(super) terms: TermArgs,
}

/// A task, or an array of them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct TaskEntry {
    /// What it is called; others name it in `after`.
    pub(super) name: String,
    /// What it runs: text is a script for the shell, a list is a program and its arguments.
    pub(super) command: TextOrList,
    /// The tasks that must end well before it begins: one name, or a list of them.
    #[serde(default)]
    pub(super) after: Option<TextOrList>,
    /// Many of it, one for each number: FIRST-LAST or FIRST-LAST:STEP. Those that come after it wait for all of them.
    #[serde(default)]
    pub(super) array: Option<String>,
    /// What happens if a task that it comes after does not end well.
    #[serde(default)]
    pub(super) on_parent_failure: OnParentFailure,
    /// A file that it reads from its standard input.
    #[serde(default)]
    pub(super) stdin: Option<String>,
    #[serde(flatten)]
    pub(super) usual: Usual,
}

/// What happens if a task that another comes after does not end well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OnParentFailure {
    /// It fails too.
    #[default]
    Fail,
    /// It is skipped.
    Skip,
    /// It runs all the same.
    Run,
}

/// One text, or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TextOrList {
    Text(String),
    List(Vec<String>),
}

impl JsonSchema for TextOrList {
    fn schema_name() -> Cow<'static, str> {
        "TextOrList".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "array"], "items": { "type": "string" } })
    }
}

impl TextOrList {
    /// All of them, each with what follows the path of the whole to name it.
    pub(super) fn each(&self) -> Vec<(String, &str)> {
        match self {
            TextOrList::Text(text) => vec![(String::new(), text)],
            TextOrList::List(list) => {
                list.iter().enumerate().map(|(at, text)| (format!("[{at}]"), text.as_str())).collect()
            }
        }
    }
}

static SCHEMA: LazyLock<Json> = LazyLock::new(config::schema_of::<JobFile>);

/// The job of a file. `given` and `shared` come from the command line and stand above the file's own defaults.
pub(super) fn plan(path: &Path, given: &TermArgs, shared: &Shared, name: Option<&str>) -> Result<Plan, Refusal> {
    let bytes = inputs::read(path, "--file", LARGEST.bytes)?;
    let label = if path.as_os_str() == "-" { "<stdin>".to_owned() } else { path.display().to_string() };
    if bytes.len() > LARGEST.bytes {
        let most = LARGEST.bytes >> 20;
        let message = format!("{label} has more than {most} MiB, and a job file has at most that");
        let help = "an `array` stands for many tasks in one entry; --each-line and --each-json take inputs from files of any size";
        return Err(Usage::new(message).help(help).into());
    }
    let text = config::decode_within(&bytes, &label, LARGEST).map_err(Refusal::File)?;
    let (file, entries) = read(text, &label, given, shared).map_err(Refusal::File)?;
    let stem = path.file_stem().map_or_else(|| "job".into(), |stem| stem.to_string_lossy());
    let name = name.map_or_else(|| file.name.clone().unwrap_or_else(|| stem.into_owned()), str::to_owned);
    let nodes = graph::nodes(entries)
        .map_err(|(task, usage): (String, Usage)| Usage::new(format!("task `{task}`: {usage}")))?;
    Ok(Plan::graph(name, nodes))
}

type Read = (JobFile, Vec<Entry>);

fn read(text: &str, label: &str, given: &TermArgs, shared: &Shared) -> Result<Read, config::ConfigErrors> {
    let mut document = Document::parse_within(text, label, LARGEST)?;
    let Some(file) = document.read::<JobFile>(&SCHEMA) else { return document.finish(None) };
    for (option, why) in file.defaults.terms.wrong() {
        document.refuse(&format!("defaults.{option}"), &why, None);
    }
    if file.tasks.is_empty() {
        return without_tasks(document, text, label);
    }
    let entries = graph::entries(&file, &mut document, given, shared);
    document.finish(Some((file, entries)))
}

/// What is wrong with a file of which no task was read: that there is none, or else what kept them from being read, and that
/// alone.
fn without_tasks(read: Document, text: &str, label: &str) -> Result<Read, config::ConfigErrors> {
    read.finish(Some(()))?;
    let mut document = Document::parse_within(text, label, LARGEST)?;
    // Again for the places of its keys.
    let _ = document.read::<JobFile>(&SCHEMA);
    let help = "such as `tasks: [{ name: hello, command: echo hello }]`";
    document.refuse("tasks", "a job needs at least one task", Some(help));
    document.finish(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        let shared = Shared { env: Vec::new(), cwd: None, resources: Vec::new() };
        read(text, "x.yaml", &TermArgs::default(), &shared).map(|(file, _)| file).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_are_told_with_their_place_and_the_nearest_key() {
        let said = wrong(
            "tasks:\n  - name: a\n    command: x\n    retires: 3\n    priority: 9\n  - nme: b\n    command: [x, 1]\n",
        );
        for part in [
            "x.yaml:4:5: error: unknown key `retires` in `tasks[0]`",
            "did you mean `retries`?",
            "x.yaml:5:15: error: `tasks[0].priority` must be from 1 to 5",
            "x.yaml:6:5",
            "did you mean `name`?",
            "x.yaml:7:18: error: `tasks[1].command[1]` expects text, found `1`",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(
            wrong("tasks: []\n").contains("x.yaml:1:8: error: a job needs at least one task"),
            "{}",
            wrong("tasks: []\n")
        );
        let said =
            wrong("tasks:\n  - { name: a, command: x }\n  - { name: b, comand: x }\n  - { name: c, command: x }\n");
        assert!(said.contains("unknown key `comand`") && !said.contains("a job needs at least one task"), "{said}");
        assert!(wrong("name: x\n").contains("a job needs at least one task"), "{}", wrong("name: x\n"));
        let said = wrong("defaults: { memory: lots }\ntasks:\n  - { name: a, command: x, key: db=0, array: 3-1 }\n");
        for part in
            ["x.yaml:1:21", "a size is a number", "x.yaml:3:33", "the limit of a key", "x.yaml:3:46", "write `1-3`"]
        {
            assert!(said.contains(part), "{part} in {said}");
        }
    }

    #[test]
    fn names_must_be_known_and_different_and_form_no_circle() {
        let said = wrong(
            "tasks:\n  - { name: fetch, command: x, after: [build, fetsh] }\n  - { name: build, command: x, after: fetch }\n  - { name: build, command: x }\n",
        );
        for part in [
            "x.yaml:2:47: error: there is no task `fetsh`",
            "did you mean `fetch`?",
            "x.yaml:4:13: error: another task is called `build` already",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let said = wrong(
            "tasks:\n  - { name: a, command: x, after: c }\n  - { name: b, command: x, after: [a] }\n  - { name: c, command: x, after: [b] }\n",
        );
        assert!(
            said.contains("x.yaml:2:35: error: these tasks wait for each other: a after c after b after a"),
            "{said}"
        );
        let said = wrong("tasks:\n  - { name: a, command: x, after: a }\n");
        assert!(said.contains("x.yaml:2:35: error: the task `a` waits for itself"), "{said}");
    }
}
