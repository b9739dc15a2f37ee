//! WfCommons instances, schema 1.4 and 1.5: one JSON document with the tasks of a workflow and how long each took.

use std::ops::Range;

use filch_core::config::ConfigErrors;
use filch_core::map::Map;
use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::Imported;
use super::draft::{Draft, Entry, Field, Takes, Wrong};
use super::filch::{column, json_words};
use super::lines::Source;
use super::locate::{Step, locate};
use crate::cluster::Class;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Instance<'a> {
    name: Option<String>,
    schema_version: Option<Json>,
    #[serde(borrow)]
    workflow: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Workflow<'a> {
    #[serde(borrow)]
    specification: Option<Specification<'a>>,
    #[serde(borrow)]
    execution: Option<Execution<'a>>,
    /// Schema 1.4 has all in one place.
    #[serde(borrow)]
    tasks: Option<Vec<&'a RawValue>>,
    machines: Option<Vec<Machine>>,
}

#[derive(Deserialize)]
struct Specification<'a> {
    #[serde(borrow)]
    tasks: Vec<&'a RawValue>,
    #[serde(default)]
    files: Vec<File>,
}

#[derive(Deserialize)]
struct Execution<'a> {
    #[serde(borrow)]
    tasks: Vec<&'a RawValue>,
    machines: Option<Vec<Machine>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Machine {
    #[serde(default)]
    cpu: Processor,
    memory_in_bytes: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Processor {
    core_count: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(alias = "name")]
    id: String,
    #[serde(alias = "size")]
    size_in_bytes: Option<f64>,
    /// `input` or `output`, in schema 1.4.
    link: Option<String>,
}

/// What a task is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    id: Option<String>,
    name: Option<String>,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(default)]
    children: Vec<String>,
    #[serde(default)]
    input_files: Vec<String>,
    #[serde(default)]
    output_files: Vec<String>,
    #[serde(default)]
    files: Vec<File>,
}

/// How it went.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Measured {
    id: Option<String>,
    name: Option<String>,
    runtime_in_seconds: Option<f64>,
    #[serde(alias = "cores")]
    core_count: Option<f64>,
    memory_in_bytes: Option<f64>,
    priority: Option<f64>,
}

/// A part of the text.
struct Text<'s, 't> {
    source: Source<'s>,
    whole: &'t str,
}

impl Text<'_, '_> {
    fn place(&self, bytes: Range<usize>, message: String, help: Option<&str>) -> ConfigErrors {
        let start = self.whole[..bytes.start].rfind('\n').map_or(0, |at| at + 1);
        let end = self.whole[bytes.start..].find('\n').map_or(self.whole.len(), |at| bytes.start + at);
        let line = self.whole[..start].matches('\n').count() as u32 + 1;
        let text = &self.whole[start..end];
        self.source.wrong_at((line, text), bytes.start - start..bytes.end.min(end) - start, message, help)
    }

    fn offset(&self, part: &RawValue) -> usize {
        part.get().as_ptr() as usize - self.whole.as_ptr() as usize
    }

    /// Reads a part; an error in it is an error in the whole.
    fn read<'p, T: Deserialize<'p>>(&self, part: &'p str, offset: usize) -> Result<T, ConfigErrors> {
        serde_json::from_str(part).map_err(|error| {
            let before: usize = part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
            let at = (offset + before + column(&part[before..], error.column())).min(self.whole.len());
            let (message, help) = json_words(&error);
            self.place(at..at, message, help.as_deref())
        })
    }
}

/// A task with where it stands.
struct Known<'a> {
    task: Task,
    id: String,
    at: &'a RawValue,
    measured: Measured,
    measured_at: &'a RawValue,
}

/// Reads a whole file.
pub(super) fn read(source: Source<'_>) -> Result<Imported, ConfigErrors> {
    let whole = source.text()?;
    let bom = if whole.starts_with('\u{feff}') { 3 } else { 0 };
    let text = Text { source, whole: &whole };
    let instance: Instance<'_> = text.read(&whole[bom..], bom)?;
    let Some(workflow) = instance.workflow else {
        let message = "this is no workload: it has neither `filch_trace` nor a `workflow`".to_owned();
        return Err(source.wrong(message, Some("JSON is read as filch trace v1 or as a WfCommons instance")));
    };
    check_version(source, instance.schema_version.as_ref())?;
    let workflow_at = text.offset(workflow);
    let workflow: Workflow<'_> = text.read(workflow.get(), workflow_at)?;
    let files: Map<String, f64> = match &workflow.specification {
        Some(specification) => {
            specification.files.iter().filter_map(|file| Some((file.id.clone(), file.size_in_bytes?))).collect()
        }
        None => Map::default(),
    };
    let tasks = tasks(&text, &workflow)?;
    let mut draft = Draft::new(instance.name.as_deref().unwrap_or(source.label));
    let parents = parents(&text, &tasks)?;
    let mut ordered = false;
    for (number, known) in tasks.iter().enumerate() {
        ordered |= known.measured.priority.is_some_and(|priority| priority != 0.0);
        add(&mut draft, number, &tasks, &parents[number], &files).map_err(|wrong| place(&text, known, wrong))?;
    }
    if draft.len() == 0 {
        return Err(source.wrong("there is no task in it".to_owned(), None));
    }
    let least_cpus = draft.least_cpus;
    let mut workload = draft.finish().map_err(|(number, wrong)| place(&text, &tasks[number as usize], wrong))?;
    if workload.parents.iter().any(|parent| parent.bytes > 0) || !workload.data.is_empty() {
        workload.notes.push("sizes of files are read, but moving them takes no time".to_owned());
    }
    if ordered {
        workload.notes.push("`priority` is left out: it is that of another scheduler".to_owned());
    }
    let machines = workflow.execution.and_then(|execution| execution.machines).or(workflow.machines);
    let mut imported =
        Imported { workload, cluster: cluster(source, &machines.unwrap_or_default())?, ..Imported::default() };
    imported.make_slots(least_cpus);
    Ok(imported)
}

fn check_version(source: Source<'_>, version: Option<&Json>) -> Result<(), ConfigErrors> {
    let told = version.map(|version| version.as_str().map_or_else(|| version.to_string(), str::to_owned));
    match told.as_deref() {
        None | Some("1.4" | "1.5") => Ok(()),
        Some(other) => {
            let message = format!("version {} of the WfCommons schema is not known", super::draft::shown(other));
            Err(source.wrong(message, Some("versions 1.4 and 1.5 are; WfCommons has tools that convert older ones")))
        }
    }
}

/// All tasks with how each went.
fn tasks<'a>(text: &Text<'_, '_>, workflow: &Workflow<'a>) -> Result<Vec<Known<'a>>, ConfigErrors> {
    let split = workflow.specification.is_some();
    let listed = match (&workflow.specification, &workflow.tasks) {
        (Some(specification), _) => specification.tasks.as_slice(),
        (None, Some(tasks)) => tasks.as_slice(),
        (None, None) => {
            let message = "the workflow has no `specification` and no `tasks`".to_owned();
            return Err(text.source.wrong(message, None));
        }
    };
    let mut measured: Map<String, (Measured, &RawValue)> = Map::default();
    for raw in workflow.execution.iter().flat_map(|execution| &execution.tasks) {
        let read: Measured = text.read(raw.get(), text.offset(raw))?;
        if let Some(id) = read.id.clone().or(read.name.clone()) {
            measured.insert(id, (read, raw));
        }
    }
    let known = listed.iter().map(|&raw| {
        let offset = text.offset(raw);
        let task: Task = text.read(raw.get(), offset)?;
        let id = task.id.clone().or(task.name.clone()).unwrap_or_default();
        let (measured, measured_at) = if split {
            measured.get(&id).map(|(measured, at)| (measured.clone(), *at)).ok_or_else(|| {
                let message = format!("nothing says how long `{}` took", super::draft::shown(&id));
                let help = "`execution.tasks` has an entry with `runtimeInSeconds` for every task";
                text.place(offset..offset + raw.get().len(), message, Some(help))
            })?
        } else {
            (text.read(raw.get(), offset)?, raw)
        };
        Ok(Known { task, id, at: raw, measured, measured_at })
    });
    known.collect()
}

/// The parents of each task, by name: those it lists, and those that list it as their child.
fn parents(text: &Text<'_, '_>, tasks: &[Known<'_>]) -> Result<Vec<Vec<String>>, ConfigErrors> {
    let numbers: Map<&str, usize> = tasks.iter().enumerate().map(|(at, known)| (known.id.as_str(), at)).collect();
    let mut parents: Vec<Vec<String>> = tasks.iter().map(|known| known.task.parents.clone()).collect();
    let mut edges: Map<(usize, usize), ()> = Map::default();
    for (child, known) in tasks.iter().enumerate() {
        let listed = known.task.parents.iter().filter_map(|parent| numbers.get(parent.as_str()));
        edges.extend(listed.map(|parent| ((*parent, child), ())));
    }
    for (at, known) in tasks.iter().enumerate() {
        for (position, child) in known.task.children.iter().enumerate() {
            let Some(&child_at) = numbers.get(child.as_str()) else {
                let message = format!("the child `{}` is no task", super::draft::shown(child));
                let found = locate(known.at.get(), &[Step::Key("children"), Step::At(position)]);
                let offset = text.offset(known.at);
                return Err(text.place(offset + found.start..offset + found.end, message, None));
            };
            if edges.insert((at, child_at), ()).is_none() {
                parents[child_at].push(known.id.clone());
            }
        }
    }
    Ok(parents)
}

fn add(
    draft: &mut Draft,
    number: usize,
    tasks: &[Known<'_>],
    parents: &[String],
    files: &Map<String, f64>,
) -> Result<(), Wrong> {
    let Known { task, id, measured, .. } = &tasks[number];
    let Some(run) = measured.runtime_in_seconds else {
        return Err(Wrong::new(Field::Run, "nothing says how long it took", "add `runtimeInSeconds`"));
    };
    let size = |id: &String| files.get(id).copied().unwrap_or(0.0);
    let linked = |link: &str| {
        let of = task.files.iter().filter(|file| file.link.as_deref() == Some(link));
        of.filter_map(|file| file.size_in_bytes).sum::<f64>()
    };
    let kind = task.name.as_deref().unwrap_or(id);
    let entry = Entry {
        id,
        kind: kind_of(kind),
        run: Takes::Same(run),
        cpus: measured.core_count.filter(|cores| *cores != 0.0).unwrap_or(1.0),
        memory: measured.memory_in_bytes.unwrap_or(0.0),
        read: task.input_files.iter().map(size).sum::<f64>() + linked("input"),
        written: task.output_files.iter().map(size).sum::<f64>() + linked("output"),
        ..Entry::new(number as u32)
    };
    // What it reads of what each parent writes.
    let inputs: Map<&str, ()> = task.input_files.iter().map(|file| (file.as_str(), ())).collect();
    let by_id: Map<&str, &Task> = if inputs.is_empty() {
        Map::default()
    } else {
        let wanted: Map<&str, ()> = parents.iter().map(|parent| (parent.as_str(), ())).collect();
        let found = tasks.iter().filter(|known| wanted.contains_key(known.id.as_str()));
        found.map(|known| (known.id.as_str(), &known.task)).collect()
    };
    let received = |parent: &String| {
        let written = by_id.get(parent.as_str()).into_iter().flat_map(|parent| &parent.output_files);
        written.filter(|file| inputs.contains_key(file.as_str())).map(size).sum::<f64>()
    };
    draft.add(&entry, parents.iter().map(|parent| (parent.as_str(), received(parent))))
}

/// The name of a task without what tells it from its like.
fn kind_of(name: &str) -> &str {
    match name.rsplit_once("_ID") {
        Some((kind, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => kind,
        _ => name,
    }
}

/// The machines as workers, equal ones together.
fn cluster(source: Source<'_>, machines: &[Machine]) -> Result<Vec<Class>, ConfigErrors> {
    let mut classes: Vec<Class> = Vec::new();
    for machine in machines {
        let cores = machine.cpu.core_count.unwrap_or(1.0);
        let memory = machine.memory_in_bytes.filter(|memory| *memory > 0.0);
        if !(1.0..=super::draft::MOST_CPUS).contains(&cores)
            || memory.is_some_and(|memory| memory > super::draft::MOST_BYTES)
        {
            return Err(source.wrong(format!("a machine has {cores} cores and {memory:?} bytes of memory"), None));
        }
        match classes.iter_mut().find(|class| class.cores == Some(cores) && class.memory == memory) {
            Some(class) => class.count += 1,
            None => classes.push(Class { cores: Some(cores), memory, ..Class::default() }),
        }
    }
    if classes.len() > 1 {
        for (number, class) in classes.iter_mut().enumerate() {
            class.name = format!("machine{}", number + 1);
        }
    }
    Ok(classes)
}

fn place(text: &Text<'_, '_>, known: &Known<'_>, wrong: Wrong) -> ConfigErrors {
    use Step::{At, Key};
    let (part, steps): (&RawValue, Vec<Step<'_>>) = match wrong.field {
        Field::Id => (known.at, vec![Key("id")]),
        Field::Dep(at) | Field::DepBytes(at) => (known.at, vec![Key("parents"), At(at)]),
        Field::Cpus => (known.measured_at, vec![Key("coreCount")]),
        Field::Memory => (known.measured_at, vec![Key("memoryInBytes")]),
        Field::Run | Field::RunOn(_) => (known.measured_at, vec![Key("runtimeInSeconds")]),
        Field::Read => (known.at, vec![Key("inputFiles")]),
        Field::Written => (known.at, vec![Key("outputFiles")]),
        Field::At | Field::Gpus | Field::Model | Field::Estimate => (known.at, Vec::new()),
    };
    let found = locate(part.get(), &steps);
    let offset = text.offset(part);
    text.place(offset + found.start..offset + found.end, wrong.message, wrong.help.as_deref())
}
