//! From the tasks of a job file to a graph: names become positions, arrays become tasks, circles are refused.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use bytes::Bytes;
use filch_core::config::{Document, nearest};
use filch_core::wire::talk::{InputSort, Work, number_of};

use super::Usage;
use super::args::{Shared, read_stdin, variable};
use super::command::{self, Command, Filling};
use super::file::{JobFile, OnParentFailure, TaskEntry, TextOrList, Usual};
use super::inputs::Range;
use super::plan::Node;
use super::terms::TermArgs;

/// The most tasks that a job file may stand for, arrays counted out.
const MOST_TASKS: u64 = 1_000_000;
/// Names that nobody has which are compared with those that there are: that takes long where there are many.
const GUESSES: u32 = 20;
/// Tasks of a circle that are named.
const NAMED: usize = 12;
/// The most pairs of tasks of which one waits for the other.
const MOST_LINKS: u64 = 10_000_000;

/// A task of a file, checked.
pub(super) struct Entry {
    name: String,
    command: Command,
    /// Entries that it comes after.
    after: Vec<usize>,
    array: Option<Range>,
    on_parent_failure: u32,
    stdin: Option<String>,
    env: Vec<filch_core::wire::talk::Variable>,
    cwd: Option<Bytes>,
    resources: Vec<(String, f64)>,
    terms: TermArgs,
}

/// The names of all tasks.
struct Names<'a> {
    all: Vec<&'a str>,
    /// Where each stands for the first time.
    places: HashMap<&'a str, usize>,
    /// How many that nobody has may still be compared with all of them.
    guesses: Cell<u32>,
}

impl<'a> Names<'a> {
    fn new(file: &'a JobFile) -> Names<'a> {
        let all: Vec<&str> = file.tasks.iter().map(|task| task.name.as_str()).collect();
        let mut places = HashMap::with_capacity(all.len());
        for (at, name) in all.iter().enumerate() {
            places.entry(*name).or_insert(at);
        }
        Names { all, places, guesses: Cell::new(GUESSES) }
    }

    /// The one that was meant, perhaps.
    fn like(&self, name: &str) -> Option<&'a str> {
        let left = self.guesses.get().checked_sub(1)?;
        self.guesses.set(left);
        nearest(name, &self.all)
    }
}

/// The tasks of a file; what is wrong with them goes to the document.
pub(super) fn entries(file: &JobFile, document: &mut Document, given: &TermArgs, shared: &Shared) -> Vec<Entry> {
    let names = Names::new(file);
    let mut entries = Vec::with_capacity(file.tasks.len());
    for (at, task) in file.tasks.iter().enumerate() {
        let path = format!("tasks[{at}]");
        check_name(&names, at, &path, document);
        let usual = merged(&task.usual, &file.defaults, given, shared);
        for (option, why) in task.usual.terms.wrong() {
            document.refuse(&format!("{path}.{option}"), &why, None);
        }
        entries.push(Entry {
            name: task.name.clone(),
            command: command(task, &path, document),
            after: after(task, &names, at, &path, document),
            array: array(task, &path, document),
            on_parent_failure: match task.on_parent_failure {
                OnParentFailure::Fail => 0,
                OnParentFailure::Skip => 1,
                OnParentFailure::Run => 2,
            },
            stdin: task.stdin.clone(),
            ..usual
        });
    }
    refuse_circles(&entries, document);
    refuse_masses(&entries, document);
    entries
}

/// What a task says, else the command line, else the file's defaults.
fn merged(own: &Usual, file: &Usual, given: &TermArgs, shared: &Shared) -> Entry {
    let mut env: Vec<_> = file.env.iter().map(|(name, value)| variable(name, value)).collect();
    for one in shared.env.iter().cloned().chain(own.env.iter().map(|(name, value)| variable(name, value))) {
        env.retain(|known| known.name != one.name);
        env.push(one);
    }
    let mut resources: Vec<(String, f64)> =
        file.resources.iter().map(|(name, amount)| (name.clone(), *amount)).collect();
    for one in
        shared.resources.iter().cloned().chain(own.resources.iter().map(|(name, amount)| (name.clone(), *amount)))
    {
        resources.retain(|known| known.0 != one.0);
        resources.push(one);
    }
    let path = |text: &String| Bytes::copy_from_slice(text.as_bytes());
    Entry {
        name: String::new(),
        command: Command::Words(Vec::new()),
        after: Vec::new(),
        array: None,
        on_parent_failure: 0,
        stdin: None,
        env,
        cwd: own.cwd.as_ref().map(path).or_else(|| shared.cwd.clone()).or_else(|| file.cwd.as_ref().map(path)),
        resources,
        terms: own.terms.clone().or(given).or(&file.terms),
    }
}

fn check_name(names: &Names<'_>, at: usize, path: &str, document: &mut Document) {
    let name = names.all[at];
    if name.is_empty() {
        document.refuse(&format!("{path}.name"), "a task needs a name", None);
    } else if names.places.get(name).is_some_and(|first| *first < at) {
        let message = format!("another task is called `{name}` already");
        document.refuse(&format!("{path}.name"), &message, Some("give each task a name of its own"));
    }
}

fn command(task: &TaskEntry, path: &str, document: &mut Document) -> Command {
    let copied = |text: &String| Bytes::copy_from_slice(text.as_bytes());
    let command = match &task.command {
        TextOrList::Text(script) => Command::Script(copied(script)),
        TextOrList::List(words) => Command::Words(words.iter().map(copied).collect()),
    };
    let empty = match &command {
        Command::Script(script) => script.trim_ascii().is_empty(),
        Command::Words(words) => words.first().is_none_or(Bytes::is_empty),
    };
    if empty {
        document.refuse(&format!("{path}.command"), "there is no command to run", None);
    }
    if task.array.is_some()
        && let Err(usage) = command::check(&command, None)
    {
        document.refuse(&format!("{path}.command"), &usage.to_string(), None);
    }
    command
}

fn after(task: &TaskEntry, names: &Names<'_>, at: usize, path: &str, document: &mut Document) -> Vec<usize> {
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    for (place, parent) in task.after.as_ref().map(TextOrList::each).unwrap_or_default() {
        let path = format!("{path}.after{place}");
        match names.places.get(parent).copied() {
            Some(position) if position == at => {
                document.refuse(&path, &format!("the task `{parent}` waits for itself"), None);
            }
            Some(position) if known.insert(position) => found.push(position),
            Some(_) => {}
            None => {
                let help = names.like(parent).map(|name| format!("did you mean `{name}`?"));
                document.refuse(&path, &format!("there is no task `{parent}`"), help.as_deref());
            }
        }
    }
    found
}

fn array(task: &TaskEntry, path: &str, document: &mut Document) -> Option<Range> {
    let parsed = task.array.as_ref()?.parse::<Range>();
    if let Err(why) = &parsed {
        document.refuse(&format!("{path}.array"), why, None);
    }
    parsed.ok()
}

/// Refuses tasks that wait for each other in a circle: takes away what waits for nothing until nothing does.
fn refuse_circles(entries: &[Entry], document: &mut Document) {
    let mut waits: Vec<usize> = entries.iter().map(|entry| entry.after.len()).collect();
    let mut children = vec![Vec::new(); entries.len()];
    for (at, entry) in entries.iter().enumerate() {
        entry.after.iter().for_each(|parent| children[*parent].push(at));
    }
    let mut free: Vec<usize> = (0..entries.len()).filter(|at| waits[*at] == 0).collect();
    while let Some(at) = free.pop() {
        for child in &children[at] {
            waits[*child] -= 1;
            if waits[*child] == 0 {
                free.push(*child);
            }
        }
    }
    let Some(start) = (0..entries.len()).find(|at| waits[*at] > 0) else { return };
    // Everything that is left waits for something that is left, so going on leads around the circle.
    let mut way: Vec<usize> = vec![start];
    let mut seen: HashMap<usize, usize> = HashMap::from([(start, 0)]);
    loop {
        let Some(at) = way.last().copied() else { return };
        let Some(next) = entries[at].after.iter().copied().find(|parent| waits[*parent] > 0) else { return };
        if let Some(first) = seen.insert(next, way.len()) {
            way.drain(..first);
            way.push(next);
            break;
        }
        way.push(next);
    }
    let mut names: Vec<&str> = way.iter().map(|at| entries[*at].name.as_str()).collect();
    if names.len() > NAMED {
        names.splice(NAMED - 1..names.len() - 1, ["…"]);
    }
    let message = format!("these tasks wait for each other: {}", names.join(" after "));
    document.refuse(&format!("tasks[{}].after", way[0]), &message, Some("take one of these names out of its `after`"));
}

fn refuse_masses(entries: &[Entry], document: &mut Document) {
    let count = |entry: &Entry| u64::from(entry.array.map_or(1, |range| range.count));
    if entries.iter().map(count).sum::<u64>() > MOST_TASKS {
        let message = format!("the arrays of a job file have at most {MOST_TASKS} tasks together");
        document.refuse("tasks", &message, Some("`filch submit --array` takes more"));
    }
    let links = |entry: &Entry| count(entry) * entry.after.iter().map(|parent| count(&entries[*parent])).sum::<u64>();
    if entries.iter().map(links).sum::<u64>() > MOST_LINKS {
        let help = "put a task between two arrays: the second after it, and it after the first";
        document.refuse("tasks", "too many tasks wait for too many others", Some(help));
    }
}

/// The tasks of the graph. If a file cannot be read, the name of the task that wants it comes along.
pub(super) fn nodes(entries: Vec<Entry>) -> Result<Vec<Node>, (String, Usage)> {
    let mut starts = Vec::with_capacity(entries.len());
    let mut next = 0u32;
    for entry in &entries {
        let count = entry.array.map_or(1, |range| range.count);
        starts.push(next..next + count);
        next += count;
    }
    let mut nodes = Vec::with_capacity(next as usize);
    for entry in entries {
        let after: Vec<u32> = entry.after.iter().flat_map(|parent| starts[*parent].clone()).collect();
        let stdin = match &entry.stdin {
            Some(path) => read_stdin(Path::new(path), "stdin").map_err(|usage| (entry.name.clone(), usage))?,
            None => Bytes::new(),
        };
        let mut work = Work {
            env: entry.env.clone(),
            cwd: entry.cwd.clone(),
            stdin,
            // People count from 1, and whoever runs it counts on from there.
            first: 1,
            step: 1,
            ..Work::default()
        };
        entry.terms.limit(&mut work);
        let mut terms = entry.terms.terms(&entry.command.kind(), &entry.resources);
        terms.on_parent_failure = entry.on_parent_failure;
        let whole = Node { name: entry.name.clone(), command: entry.command.clone(), work, terms, after };
        match entry.array {
            None => nodes.push(finished(whole)),
            Some(range) => nodes.extend((0..range.count).map(|index| finished(element(&whole, range, index)))),
        }
    }
    Ok(nodes)
}

fn element(whole: &Node, range: Range, index: u32) -> Node {
    let number = number_of(range.first, range.step, index);
    let filled = whole.command.filled(&Filling::new(number, index, InputSort::Bytes, None));
    // What does not fit was refused before.
    let command = filled.unwrap_or_else(|_| whole.command.clone());
    let mut work = whole.work.clone();
    // It counts by itself, wherever it is in the graph.
    work.env.push(variable("FILCH_TASK", number.to_string()));
    work.env.push(variable("FILCH_INDEX", index.to_string()));
    Node { name: format!("{}[{number}]", whole.name), command, work, ..whole.clone() }
}

/// With its command and its name in what the worker gets.
fn finished(mut node: Node) -> Node {
    node.work.program = Some(node.command.program());
    node.work.name.clone_from(&node.name);
    node
}
