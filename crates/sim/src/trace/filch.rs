//! `filch trace v1`: JSON Lines with a header and a task on every further line.

use std::borrow::Cow;
use std::fmt;

use filch_core::Span;
use filch_core::config::{ConfigErrors, nearest};
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::Imported;
use super::draft::{self, Draft, Entry, Field, MOST_BYTES, MOST_CPUS, MOST_GPUS, Takes, Wrong};
use super::lines::{Lines, Source};
use super::locate::{Step, locate};
use crate::cluster::Class;

/// The version that is read and written.
pub(super) const VERSION: u64 = 1;
/// Workers of one class at most.
const MOST_WORKERS: f64 = 1e6;

/// A name inside a line, without a copy where none is needed.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        from.deserialize_str(Names)
    }
}

/// Seconds everywhere, or by class.
enum RunLine<'a> {
    Same(f64),
    On(Vec<(Name<'a>, f64)>),
}

impl<'de: 'a, 'a> Deserialize<'de> for RunLine<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Runs;
        impl<'de> Visitor<'de> for Runs {
            type Value = RunLine<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("seconds, or seconds by class such as {\"cpu\": 2.5}")
            }
            fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
                Ok(RunLine::Same(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                Ok(RunLine::Same(value as f64))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(RunLine::Same(value as f64))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut times = Vec::new();
                while let Some(entry) = map.next_entry::<Name<'de>, f64>()? {
                    times.push(entry);
                }
                Ok(RunLine::On(times))
            }
        }
        from.deserialize_any(Runs)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskLine<'a> {
    #[serde(borrow)]
    id: Name<'a>,
    #[serde(borrow, default)]
    kind: Option<Name<'a>>,
    #[serde(default)]
    at: f64,
    #[serde(borrow)]
    run: RunLine<'a>,
    #[serde(borrow, default)]
    deps: Vec<Name<'a>>,
    dep_bytes: Option<Vec<f64>>,
    #[serde(borrow, default)]
    needs: Needs<'a>,
    #[serde(default)]
    r#in: f64,
    #[serde(default)]
    out: f64,
    #[serde(default)]
    estimate: f64,
    #[serde(borrow, default)]
    affinity: Vec<Name<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Needs<'a> {
    cpus: Option<f64>,
    #[serde(default)]
    memory: f64,
    #[serde(default)]
    gpus: f64,
    #[serde(borrow)]
    gpu_model: Option<Vec<Name<'a>>>,
}

/// A class of workers as a header lists it.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClassLine {
    pub(super) class: String,
    pub(super) count: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cores: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpus: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpu_model: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    #[serde(rename = "filch_trace")]
    _version: IgnoredAny,
    name: Option<String>,
    #[serde(rename = "source")]
    _source: Option<String>,
    #[serde(rename = "note")]
    _note: Option<String>,
    cluster: Option<Vec<ClassLine>>,
    other_clusters: Option<Clusters>,
    #[serde(rename = "environments")]
    _environments: Option<IgnoredAny>,
    #[serde(rename = "units")]
    _units: Option<IgnoredAny>,
    #[serde(default)]
    model: Model,
    #[serde(rename = "published")]
    _published: Option<IgnoredAny>,
}

/// Clusters by name, in the order of the file.
struct Clusters(Vec<(String, Vec<ClassLine>)>);

impl<'de> Deserialize<'de> for Clusters {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Clusters;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("clusters by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all: Vec<(String, Vec<ClassLine>)> = Vec::new();
                while let Some((name, classes)) = map.next_entry::<String, Vec<ClassLine>>()? {
                    if all.iter().any(|known| known.0 == name) {
                        return Err(A::Error::custom(format!("the cluster `{name}` is there twice")));
                    }
                    all.push((name, classes));
                }
                Ok(Clusters(all))
            }
        }
        from.deserialize_map(All)
    }
}

/// The constants of a cost model that a simulation goes by; others explain how `run` came about.
#[derive(Default, Deserialize)]
struct Model {
    saved_s_per_cached_prefix_block: Option<f64>,
    cache_blocks_per_worker: Option<f64>,
}

/// Whether a first line is that of such a trace.
pub(super) fn is_header(line: &str) -> bool {
    #[derive(Deserialize)]
    struct Version<'a> {
        #[serde(borrow)]
        filch_trace: Option<&'a RawValue>,
    }
    match serde_json::from_str::<Version<'_>>(line) {
        Ok(version) => version.filch_trace.is_some(),
        // Cut off or damaged, but meant to be one.
        Err(_) => line.contains("\"filch_trace\""),
    }
}

/// Reads the rest of a file whose first line is a header.
pub(super) fn read(source: Source<'_>, lines: &mut Lines<'_>, header: &str) -> Result<Imported, ConfigErrors> {
    let first = (lines.number, header);
    check_version(source, first)?;
    let header: Header = serde_json::from_str(header).map_err(|error| syntax(source, first, &error))?;
    let own = clusters(source, first, header.cluster, header.other_clusters)?;
    let mut draft = Draft::new(header.name.as_deref().unwrap_or(source.label));
    let saves = model(source, first, &header.model, &mut draft)?;
    let (mut data, mut affine, mut sizes) = (false, false, false);
    while let Some(line) = lines.next()? {
        let task: TaskLine<'_> = serde_json::from_str(line.1).map_err(|error| syntax(source, line, &error))?;
        data |= task.r#in > 0.0 || task.out > 0.0;
        affine |= !task.affinity.is_empty();
        sizes |= task.dep_bytes.is_some();
        add(&mut draft, line.0, &task, saves).map_err(|wrong| place(source, line, &task, wrong))?;
    }
    if draft.len() == 0 {
        return Err(source.wrong("there is no task in it".to_owned(), Some("every line after the first is a task")));
    }
    let least_cpus = draft.least_cpus;
    let mut workload = draft.finish().map_err(|(number, wrong)| {
        let text = source.line(number);
        match serde_json::from_str::<TaskLine<'_>>(&text) {
            Ok(task) => place(source, (number, &text), &task, wrong),
            Err(_) => source.wrong(wrong.message, wrong.help.as_deref()),
        }
    })?;
    if sizes {
        workload.notes.push("`dep_bytes` is read, but moving data between workers takes no time".to_owned());
    }
    if data {
        workload.notes.push("`in` and `out` are read, but reading and writing take no time beyond `run`".to_owned());
    }
    if affine && !saves {
        let told = "`affinity` changes nothing: no `saved_s_per_cached_prefix_block` in the header's `model`";
        workload.notes.push(told.to_owned());
    }
    let mut imported = Imported { workload, ..own };
    imported.make_slots(least_cpus);
    Ok(imported)
}

fn check_version(source: Source<'_>, line: (u32, &str)) -> Result<(), ConfigErrors> {
    let place = locate(line.1, &[Step::Key("filch_trace")]);
    let version: Json = serde_json::from_str(line.1).map_err(|error| syntax(source, line, &error))?;
    match &version["filch_trace"] {
        version if version.as_u64() == Some(VERSION) => Ok(()),
        version => {
            let newer = version.as_u64().is_some_and(|version| version > VERSION);
            let message = format!("version {version} of the format is not known");
            let help = if newer {
                "this filch reads version 1; a newer one may read this file"
            } else {
                "the first line says \"filch_trace\":1"
            };
            Err(source.wrong_at(line, place, message, Some(help)))
        }
    }
}

fn add(draft: &mut Draft, line: u32, task: &TaskLine<'_>, saves: bool) -> Result<(), Wrong> {
    let sizes = task.dep_bytes.as_deref().unwrap_or_default();
    if task.dep_bytes.is_some() && sizes.len() != task.deps.len() {
        let message = format!("{} sizes for {} parents", sizes.len(), task.deps.len());
        return Err(Wrong::new(Field::DepBytes(usize::MAX), message, "`dep_bytes` has a number for each of `deps`"));
    }
    if task.needs.gpu_model.as_ref().is_some_and(Vec::is_empty) {
        return Err(Wrong::new(Field::Model, "no model is acceptable", "leave `gpu_model` out if any will do"));
    }
    let names = |names: &'_ [Name<'_>]| -> Vec<String> { names.iter().map(|name| name.0.to_string()).collect() };
    let models = task.needs.gpu_model.as_deref().map(names).unwrap_or_default();
    let entry = Entry {
        id: &task.id.0,
        kind: task.kind.as_ref().map_or("", |kind| &kind.0),
        at: task.at,
        run: match &task.run {
            RunLine::Same(value) => Takes::Same(*value),
            RunLine::On(times) => Takes::On(times.iter().map(|(class, value)| (&*class.0, *value)).collect()),
        },
        estimate: task.estimate,
        cpus: task.needs.cpus.unwrap_or(1.0),
        memory: task.needs.memory,
        gpus: task.needs.gpus,
        models: models.iter().map(String::as_str).collect(),
        read: task.r#in,
        written: task.out,
        affinity: if saves { task.affinity.iter().map(|thing| &*thing.0).collect() } else { Vec::new() },
        ..Entry::new(line)
    };
    let deps = task.deps.iter().enumerate();
    draft.add(&entry, deps.map(|(at, dep)| (&*dep.0, sizes.get(at).copied().unwrap_or(0.0))))
}

fn model(source: Source<'_>, line: (u32, &str), model: &Model, draft: &mut Draft) -> Result<bool, ConfigErrors> {
    let Some(saved) = model.saved_s_per_cached_prefix_block else { return Ok(false) };
    let kept = model.cache_blocks_per_worker.unwrap_or(f64::from(u32::MAX));
    let fail = |key: &str, wrong: Wrong| {
        let place = locate(line.1, &[Step::Key("model"), Step::Key(key)]);
        source.wrong_at(line, place, wrong.message, wrong.help.as_deref())
    };
    let saved: Span =
        draft::seconds(saved, Field::Run).map_err(|wrong| fail("saved_s_per_cached_prefix_block", wrong))?;
    let kept =
        draft::number(kept, f64::from(u32::MAX), Field::Run).map_err(|wrong| fail("cache_blocks_per_worker", wrong))?;
    draft.warmth(saved, kept as u32);
    Ok(true)
}

// ---- clusters ----

fn clusters(
    source: Source<'_>,
    line: (u32, &str),
    own: Option<Vec<ClassLine>>,
    others: Option<Clusters>,
) -> Result<Imported, ConfigErrors> {
    let read = |steps: &[Step<'_>], classes: Vec<ClassLine>| -> Result<Vec<Class>, ConfigErrors> {
        let made = classes.into_iter().enumerate().map(|(at, class)| {
            self::class(class).map_err(|(key, wrong)| {
                let steps: Vec<Step<'_>> = steps.iter().copied().chain([Step::At(at), Step::Key(key)]).collect();
                source.wrong_at(line, locate(line.1, &steps), wrong.message, wrong.help.as_deref())
            })
        });
        let made = made.collect::<Result<Vec<Class>, ConfigErrors>>()?;
        let workers: f64 = made.iter().map(|class| f64::from(class.count)).sum();
        if made.is_empty() || workers > MOST_WORKERS {
            let message = if made.is_empty() { "this cluster has no workers" } else { "these are too many workers" };
            let help = Some("a cluster has from 1 to 1,000,000 workers");
            return Err(source.wrong_at(line, locate(line.1, steps), message.to_owned(), help));
        }
        Ok(made)
    };
    let mut imported = Imported::default();
    if let Some(own) = own {
        imported.cluster = read(&[Step::Key("cluster")], own)?;
    }
    for (name, classes) in others.map(|all| all.0).unwrap_or_default() {
        let steps = [Step::Key("other_clusters"), Step::Key(&name)];
        let classes = read(&steps, classes)?;
        imported.other_clusters.push((name, classes));
    }
    Ok(imported)
}

fn class(line: ClassLine) -> Result<Class, (&'static str, Wrong)> {
    let number = |key: &'static str, value: Option<f64>, most: f64| {
        value.map(|value| draft::number(value, most, Field::Run)).transpose().map_err(|wrong| (key, wrong))
    };
    let whole = |key: &'static str, value: f64| {
        let wrong = || (key, Wrong::new(Field::Run, format!("{value} is not a whole number"), ""));
        if value % 1.0 == 0.0 { Ok(value as u32) } else { Err(wrong()) }
    };
    let count = number("count", Some(line.count), MOST_WORKERS)?.unwrap_or(1.0);
    let cores = number("cores", line.cores, MOST_CPUS)?;
    let memory = number("memory", line.memory, MOST_BYTES)?;
    let gpus = number("gpus", line.gpus, MOST_GPUS)?.unwrap_or(0.0);
    if count < 1.0 {
        return Err(("count", Wrong::new(Field::Run, "there are none", "leave the class out, or count at least 1")));
    }
    if cores == Some(0.0) {
        return Err(("cores", Wrong::new(Field::Run, "a worker without cores runs nothing", "")));
    }
    Ok(Class {
        name: line.class,
        count: whole("count", count)?,
        cores,
        memory,
        gpus: whole("gpus", gpus)?,
        gpu_model: line.gpu_model,
        ..Class::default()
    })
}

// ---- what is wrong ----

const TASK_KEYS: [&str; 11] =
    ["id", "kind", "at", "run", "deps", "dep_bytes", "needs", "in", "out", "estimate", "affinity"];
const OTHER_KEYS: [&str; 19] = [
    "cpus",
    "memory",
    "gpus",
    "gpu_model",
    "class",
    "count",
    "cores",
    "name",
    "source",
    "note",
    "cluster",
    "other_clusters",
    "environments",
    "units",
    "model",
    "published",
    "filch_trace",
    "saved_s_per_cached_prefix_block",
    "cache_blocks_per_worker",
];

/// A line that cannot be read.
fn syntax(source: Source<'_>, line: (u32, &str), error: &serde_json::Error) -> ConfigErrors {
    let (message, help) = json_words(error);
    let end = column(line.1, error.column());
    source.wrong_at(line, end..end, message, help.as_deref())
}

/// The byte of a column that serde_json counts: of the last byte it looked at, from 1.
pub(super) fn column(text: &str, column: usize) -> usize {
    let mut at = column.saturating_sub(1).min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// What a JSON reader says, without the place, and what to do about it.
pub(super) fn json_words(error: &serde_json::Error) -> (String, Option<String>) {
    let told = error.to_string();
    let message = told.rsplit_once(" at line ").map_or(told.as_str(), |parts| parts.0);
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let help = if let Some(unknown) = unknown {
        let known: Vec<&str> = TASK_KEYS.iter().chain(&OTHER_KEYS).copied().collect();
        nearest(unknown, &known).map(|near| format!("did you mean `{near}`?"))
    } else if message.starts_with("EOF") {
        Some("the line is cut off".to_owned())
    } else if message.starts_with("expected value") || message.starts_with("number out of range") {
        Some("numbers are finite: there is no NaN and no Infinity; leave out what is unknown".to_owned())
    } else {
        None
    };
    (message.to_owned(), help)
}

fn place(source: Source<'_>, line: (u32, &str), task: &TaskLine<'_>, wrong: Wrong) -> ConfigErrors {
    use Step::{At, Key};
    let class = |at: usize| match &task.run {
        RunLine::On(times) => times.get(at).map_or("", |entry| &*entry.0.0),
        RunLine::Same(_) => "",
    };
    let steps: Vec<Step<'_>> = match wrong.field {
        Field::Id => vec![Key("id")],
        Field::At => vec![Key("at")],
        Field::Run => vec![Key("run")],
        Field::RunOn(at) => vec![Key("run"), Key(class(at))],
        Field::Dep(at) => vec![Key("deps"), At(at)],
        Field::DepBytes(at) => vec![Key("dep_bytes"), At(at)],
        Field::Cpus => vec![Key("needs"), Key("cpus")],
        Field::Memory => vec![Key("needs"), Key("memory")],
        Field::Gpus => vec![Key("needs"), Key("gpus")],
        Field::Model => vec![Key("needs"), Key("gpu_model")],
        Field::Read => vec![Key("in")],
        Field::Written => vec![Key("out")],
        Field::Estimate => vec![Key("estimate")],
    };
    source.wrong_at(line, locate(line.1, &steps), wrong.message, wrong.help.as_deref())
}
