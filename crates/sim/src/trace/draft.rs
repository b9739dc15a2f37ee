//! Tasks as they stand in a file, in any order and with names, on their way to a [`Workload`]: checked, numbered and put in
//! an order in which parents come before their children.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher as _;

use filch_core::config::nearest;
use filch_core::map::Map;
use filch_core::{Amount, CapabilitySet, Demand, KindId, ResourceId, Span, Time};
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use crate::cluster::gpu_capability;
use crate::workload::{Group, NONE, Parent, Run, Shape, Task, Workload};

/// Seconds that a file may speak of: thirty years.
const LONGEST_S: f64 = 1e9;
/// Cores a task may ask for.
pub(super) const MOST_CPUS: f64 = 1e6;
/// Bytes of memory that a task or a worker may have.
pub(super) const MOST_BYTES: f64 = 1e14;
/// GPUs a task may ask for.
pub(super) const MOST_GPUS: f64 = 1024.0;
/// Names shown of a cycle.
const SHOWN: usize = 12;
/// Names compared with an unknown one.
const COMPARED: usize = 20_000;

/// What of a task is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Id,
    At,
    Run,
    /// The time on the class of this number.
    RunOn(usize),
    Dep(usize),
    DepBytes(usize),
    Cpus,
    Memory,
    Gpus,
    Model,
    Read,
    Written,
    Estimate,
}

/// What is wrong with a task.
#[derive(Clone, Debug)]
pub(super) struct Wrong {
    pub(super) field: Field,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl Wrong {
    pub(super) fn new(field: Field, message: impl Into<String>, help: &str) -> Wrong {
        let help = (!help.is_empty()).then(|| help.to_owned());
        Wrong { field, message: message.into(), help }
    }
}

/// How long a task takes.
pub(super) enum Takes<'a> {
    Same(f64),
    On(Vec<(&'a str, f64)>),
}

/// A task as a file describes it.
pub(super) struct Entry<'a> {
    /// Where it stands: its line, or its number.
    pub(super) line: u32,
    pub(super) id: &'a str,
    pub(super) kind: &'a str,
    pub(super) at: f64,
    pub(super) run: Takes<'a>,
    pub(super) estimate: f64,
    pub(super) cpus: f64,
    pub(super) memory: f64,
    pub(super) gpus: f64,
    pub(super) models: Vec<&'a str>,
    pub(super) read: f64,
    pub(super) written: f64,
    pub(super) affinity: Vec<&'a str>,
}

impl Entry<'_> {
    /// A task that asks for one core and nothing else.
    pub(super) fn new(line: u32) -> Entry<'static> {
        Entry {
            line,
            id: "",
            kind: "",
            at: 0.0,
            run: Takes::Same(0.0),
            estimate: 0.0,
            cpus: 1.0,
            memory: 0.0,
            gpus: 0.0,
            models: Vec::new(),
            read: 0.0,
            written: 0.0,
            affinity: Vec::new(),
        }
    }
}

struct Row {
    name: u32,
    line: u32,
    at: Time,
    run: Run,
    estimate: Span,
    shape: u32,
    deps: (u32, u32),
}

/// The tasks so far.
pub(super) struct Draft {
    workload: Workload,
    rows: Vec<Row>,
    /// All names that were mentioned, and the row of each.
    names: Vec<String>,
    by_name: HashTable<u32>,
    row_of: Vec<u32>,
    /// The row that mentioned each name last, so that none mentions it twice.
    mentioned_by: Vec<u32>,
    deps: Vec<(u32, u64)>,
    shapes: Map<(KindId, CapabilitySet, Demand), u32>,
    groups: Map<String, ()>,
    /// The least that any task asks of cores: slots are made for it.
    pub(super) least_cpus: f64,
}

/// A number of a file: finite, not negative and not beyond what can be counted.
pub(super) fn number(value: f64, most: f64, field: Field) -> Result<f64, Wrong> {
    if value.is_nan() || value < 0.0 {
        return Err(Wrong::new(field, format!("{value} is negative"), "numbers of a trace are 0 or more"));
    }
    if value > most {
        let help = format!("the most is {most:e}; are the units right?");
        return Err(Wrong::new(field, format!("{value:e} is too large"), &help));
    }
    Ok(value)
}

/// Seconds, to the nearest nanosecond.
pub(super) fn seconds(value: f64, field: Field) -> Result<Span, Wrong> {
    Ok(Span((number(value, LONGEST_S, field)? * 1e9 + 0.5) as u64))
}

fn bytes(value: f64, field: Field) -> Result<u64, Wrong> {
    Ok(number(value, 1e18, field)? as u64)
}

impl Draft {
    pub(super) fn new(name: &str) -> Draft {
        Draft {
            workload: Workload::new(name),
            rows: Vec::new(),
            names: Vec::new(),
            by_name: HashTable::new(),
            row_of: Vec::new(),
            mentioned_by: Vec::new(),
            deps: Vec::new(),
            shapes: Map::default(),
            groups: Map::default(),
            least_cpus: 1.0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// What an affine thing saves, and how many a worker keeps.
    pub(super) fn warmth(&mut self, saved: Span, kept: u32) {
        (self.workload.warmth.saved, self.workload.warmth.kept) = (saved, kept);
    }

    fn name(&mut self, name: &str) -> u32 {
        let hash = |name: &str| FxBuildHasher.hash_one(name);
        if let Some(&found) = self.by_name.find(hash(name), |at| self.names[*at as usize] == name) {
            return found;
        }
        let new = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.row_of.push(NONE);
        self.mentioned_by.push(NONE);
        let names = &self.names;
        self.by_name.insert_unique(hash(name), new, |at| hash(&names[*at as usize]));
        new
    }

    /// Adds a task that waits for those of these names, and receives so many bytes from each.
    pub(super) fn add<'d>(
        &mut self,
        entry: &Entry<'_>,
        deps: impl Iterator<Item = (&'d str, f64)>,
    ) -> Result<(), Wrong> {
        if entry.id.is_empty() {
            return Err(Wrong::new(Field::Id, "a task needs an id", ""));
        }
        let row = self.rows.len() as u32;
        if row >= NONE - 1 || self.deps.len() as u64 >= u64::from(NONE) / 2 {
            return Err(Wrong::new(Field::Id, "these are more tasks than can be played", ""));
        }
        let name = self.name(entry.id);
        if self.row_of[name as usize] != NONE {
            let message = format!("the id `{}` is there twice", shown(entry.id));
            return Err(Wrong::new(Field::Id, message, "every task has an id of its own"));
        }
        let start = self.deps.len() as u32;
        for (at, (parent, size)) in deps.enumerate() {
            let parent_name = self.name(parent);
            if std::mem::replace(&mut self.mentioned_by[parent_name as usize], row) == row {
                let message = format!("`{}` is named twice", shown(parent));
                return Err(Wrong::new(Field::Dep(at), message, "name every parent once"));
            }
            let size = bytes(size, Field::DepBytes(at))?;
            self.deps.push((parent_name, size));
        }
        let at = Time(seconds(entry.at, Field::At)?.0);
        let run = self.run(&entry.run)?;
        let shape = self.shape(entry)?;
        let estimate = seconds(entry.estimate, Field::Estimate)?;
        let data = (bytes(entry.read, Field::Read)?, bytes(entry.written, Field::Written)?);
        if data != (0, 0) || !self.workload.data.is_empty() {
            self.workload.data.resize(row as usize, (0, 0));
            self.workload.data.push(data);
        }
        self.warm(row, &entry.affinity);
        self.row_of[name as usize] = row;
        let deps = (start, self.deps.len() as u32 - start);
        self.rows.push(Row { name, line: entry.line, at, run, estimate, shape, deps });
        Ok(())
    }

    fn warm(&mut self, row: u32, things: &[&str]) {
        let Workload { warmth, names, .. } = &mut self.workload;
        if things.is_empty() && warmth.starts.is_empty() {
            return;
        }
        // Tasks before the first with any have none.
        warmth.starts.resize(row as usize + 1, warmth.list.len() as u32);
        warmth.list.extend(things.iter().map(|thing| names.affinity(thing)));
        warmth.starts.push(warmth.list.len() as u32);
    }

    fn run(&mut self, run: &Takes<'_>) -> Result<Run, Wrong> {
        match run {
            Takes::Same(value) => Ok(Run::Same(seconds(*value, Field::Run)?)),
            Takes::On(times) => {
                if times.is_empty() {
                    let help = "name at least one class with its seconds";
                    return Err(Wrong::new(Field::Run, "no class can run this task", help));
                }
                let start = self.workload.by_class.len() as u32;
                for (at, (class, value)) in times.iter().enumerate() {
                    let span = seconds(*value, Field::RunOn(at))?;
                    let class = self.class(class);
                    if self.workload.by_class[start as usize..].iter().any(|known| known.0 == class) {
                        return Err(Wrong::new(Field::Run, "a class is there twice", ""));
                    }
                    self.workload.by_class.push((class, span));
                }
                Ok(Run::ByClass(start, times.len() as u32))
            }
        }
    }

    fn class(&mut self, name: &str) -> u32 {
        let classes = &mut self.workload.classes;
        match classes.iter().position(|known| known == name) {
            Some(at) => at as u32,
            None => {
                classes.push(name.to_owned());
                classes.len() as u32 - 1
            }
        }
    }

    fn shape(&mut self, entry: &Entry<'_>) -> Result<u32, Wrong> {
        let cpus = number(entry.cpus, MOST_CPUS, Field::Cpus)?;
        let memory = number(entry.memory, MOST_BYTES, Field::Memory)?;
        let gpus = number(entry.gpus, MOST_GPUS, Field::Gpus)?;
        if gpus > 1.0 && gpus % 1.0 != 0.0 {
            let help = "ask for a share below 1, or for whole GPUs";
            return Err(Wrong::new(Field::Gpus, format!("{gpus} GPUs are neither a share of one nor whole"), help));
        }
        self.least_cpus = self.least_cpus.min(cpus);
        let mut requires = Vec::new();
        if let Takes::On(times) = &entry.run {
            let mut classes: Vec<&str> = times.iter().map(|entry| entry.0).collect();
            classes.sort_unstable();
            requires.push(self.group("class", &classes));
        }
        match entry.models.as_slice() {
            [] => {}
            [model] => requires.push(gpu_capability(model)),
            models => {
                let mut models = models.to_vec();
                models.sort_unstable();
                requires.push(self.group("gpu", &models));
            }
        }
        let names = &mut self.workload.names;
        let kind = names.kind(entry.kind);
        let requires: CapabilitySet = requires.iter().map(|name| names.capability(name)).collect();
        let demand = Demand::new([
            (ResourceId::CPUS, Amount::from_f64(cpus)),
            (ResourceId::MEMORY, Amount::from_f64(memory)),
            (ResourceId::GPUS, Amount::from_f64(gpus)),
        ]);
        let shapes = &mut self.workload.shapes;
        Ok(*self.shapes.entry((kind, requires, demand)).or_insert_with_key(|(kind, requires, demand)| {
            let (requires, demand) = (requires.clone(), demand.clone());
            shapes.push(Shape { kind: *kind, requires, demand, ..Shape::default() });
            shapes.len() as u32 - 1
        }))
    }

    /// A capability of all workers that are one of several things.
    fn group(&mut self, sort: &str, members: &[&str]) -> String {
        let capability = format!("{sort}:{}", members.join("|"));
        if self.groups.insert(capability.clone(), ()).is_none() {
            let listed: Vec<String> = members.iter().map(|&member| member.to_owned()).collect();
            let (classes, models) = if sort == "class" { (listed, Vec::new()) } else { (Vec::new(), listed) };
            self.workload.groups.push(Group { capability: capability.clone(), classes, models });
        }
        capability
    }

    // ---- the whole ----

    /// The workload; or what is wrong with it, and with the task of which line.
    pub(super) fn finish(mut self) -> Result<Workload, (u32, Wrong)> {
        self.know_all_parents()?;
        let arrivals = self.arrivals()?;
        let mut order: Vec<u32> = (0..self.rows.len() as u32).collect();
        let in_order = arrivals.windows(2).all(|pair| pair[0] <= pair[1]);
        if !in_order {
            order.sort_by_key(|row| arrivals[*row as usize]);
        }
        self.put_in(&order, &arrivals);
        Ok(self.workload)
    }

    fn deps_of(&self, row: u32) -> &[(u32, u64)] {
        let (start, count) = self.rows[row as usize].deps;
        &self.deps[start as usize..(start + count) as usize]
    }

    fn know_all_parents(&self) -> Result<(), (u32, Wrong)> {
        for row in 0..self.rows.len() as u32 {
            let unknown = self.deps_of(row).iter().position(|dep| self.row_of[dep.0 as usize] == NONE);
            if let Some(at) = unknown {
                let name = &self.names[self.deps_of(row)[at].0 as usize];
                let known: Vec<&str> =
                    self.rows.iter().take(COMPARED).map(|row| self.names[row.name as usize].as_str()).collect();
                let help = match nearest(name, &known) {
                    Some(near) => format!("did you mean `{}`?", shown(near)),
                    None => "every parent is a task of the same file".to_owned(),
                };
                let Row { name: task, line, .. } = self.rows[row as usize];
                let message =
                    format!("`{}` waits for `{}`, which is no task", shown(&self.names[task as usize]), shown(name));
                return Err((line, Wrong::new(Field::Dep(at), message, &help)));
            }
        }
        Ok(())
    }

    /// When each task can be handed in: not before those it waits for. With it a place in an order in which parents come
    /// first, and which is that of the file where that will do.
    fn arrivals(&self) -> Result<Vec<(Time, u32)>, (u32, Wrong)> {
        let count = self.rows.len();
        let row_of = |dep: &(u32, u64)| self.row_of[dep.0 as usize];
        let topological = (0..count as u32).all(|row| self.deps_of(row).iter().all(|dep| row_of(dep) < row));
        let order = if topological { (0..count as u32).collect() } else { self.parents_first()? };
        let mut arrivals = vec![(Time::ZERO, 0); count];
        for (place, &row) in order.iter().enumerate() {
            let parents = self.deps_of(row).iter().map(|dep| arrivals[row_of(dep) as usize].0);
            arrivals[row as usize] =
                (parents.max().unwrap_or(Time::ZERO).max(self.rows[row as usize].at), place as u32);
        }
        Ok(arrivals)
    }

    fn parents_first(&self) -> Result<Vec<u32>, (u32, Wrong)> {
        let count = self.rows.len();
        let row_of = |dep: &(u32, u64)| self.row_of[dep.0 as usize] as usize;
        // The children of each, one after the other.
        let mut starts = vec![0u32; count + 1];
        for dep in &self.deps {
            starts[row_of(dep) + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let (mut next, mut children) = (starts.clone(), vec![0u32; self.deps.len()]);
        for row in 0..count as u32 {
            for dep in self.deps_of(row) {
                children[next[row_of(dep)] as usize] = row;
                next[row_of(dep)] += 1;
            }
        }
        let mut missing: Vec<u32> = self.rows.iter().map(|row| row.deps.1).collect();
        let free = (0..count as u32).filter(|row| missing[*row as usize] == 0);
        let mut ready: BinaryHeap<Reverse<u32>> = free.map(Reverse).collect();
        let mut order = Vec::with_capacity(count);
        while let Some(Reverse(row)) = ready.pop() {
            order.push(row);
            for &child in &children[starts[row as usize] as usize..starts[row as usize + 1] as usize] {
                missing[child as usize] -= 1;
                if missing[child as usize] == 0 {
                    ready.push(Reverse(child));
                }
            }
        }
        if order.len() == count { Ok(order) } else { Err(self.cycle(&missing)) }
    }

    /// The tasks of a cycle, each of which waits for the next.
    fn cycle(&self, missing: &[u32]) -> (u32, Wrong) {
        let blocked = |row: usize| missing[row] > 0;
        let mut row = (0..missing.len()).find(|row| blocked(*row)).unwrap_or(0);
        let mut seen = vec![NONE; missing.len()];
        let mut path = Vec::new();
        // Every task that is left waits for another that is left, so this comes back to where it was.
        while seen[row] == NONE {
            seen[row] = path.len() as u32;
            path.push(row);
            let parents = self.deps_of(row as u32).iter().map(|dep| self.row_of[dep.0 as usize] as usize);
            row = parents.filter(|parent| blocked(*parent)).min().unwrap_or(row);
        }
        let mut cycle = path.split_off(seen[row] as usize);
        let first = cycle.iter().enumerate().min_by_key(|entry| *entry.1).map_or(0, |entry| entry.0);
        cycle.rotate_left(first);
        let name = |row: &usize| shown(&self.names[self.rows[*row].name as usize]);
        let mut told: Vec<String> = cycle.iter().take(SHOWN).map(name).collect();
        if cycle.len() > SHOWN {
            told.push(format!("… {} more …", cycle.len() - SHOWN));
        }
        told.extend(cycle.first().map(name));
        let start = cycle[0];
        let parent = cycle.get(1).copied().unwrap_or(start);
        let at = self.deps_of(start as u32).iter().position(|dep| self.row_of[dep.0 as usize] as usize == parent);
        let message = format!("these tasks wait for each other: {}", told.join(" → "));
        let help = "each waits for the next, so none can ever begin; take out one of the dependencies";
        (self.rows[start].line, Wrong::new(Field::Dep(at.unwrap_or(0)), message, help))
    }

    /// Puts the tasks into the workload in this order.
    fn put_in(&mut self, order: &[u32], arrivals: &[(Time, u32)]) {
        let mut place = vec![0u32; order.len()];
        for (new, &row) in order.iter().enumerate() {
            place[row as usize] = new as u32;
        }
        let (mut tasks, mut parents) = (Vec::with_capacity(order.len()), Vec::with_capacity(self.deps.len()));
        let mut ids = Vec::with_capacity(order.len());
        for &row in order {
            let start = parents.len() as u32;
            for &(name, bytes) in self.deps_of(row) {
                parents.push(Parent { task: place[self.row_of[name as usize] as usize], bytes });
            }
            let Row { name, run, estimate, shape, .. } = self.rows[row as usize];
            let at = arrivals[row as usize].0;
            let parents = (start, parents.len() as u32 - start);
            tasks.push(Task { at, run, estimate, shape, parents, spawned_by: NONE });
            ids.push(std::mem::take(&mut self.names[name as usize]));
        }
        let workload = &mut self.workload;
        if !workload.data.is_empty() {
            workload.data.resize(order.len(), (0, 0));
            workload.data = order.iter().map(|row| workload.data[*row as usize]).collect();
        }
        if !workload.warmth.starts.is_empty() {
            let before = workload.warmth.clone();
            let warmth = &mut workload.warmth;
            (warmth.starts, warmth.list) = (vec![0], Vec::with_capacity(before.list.len()));
            for &row in order {
                warmth.list.extend_from_slice(before.of(row));
                warmth.starts.push(warmth.list.len() as u32);
            }
        }
        (workload.tasks, workload.parents, workload.ids) = (tasks, parents, ids);
    }
}

/// A name of a file, cut where it becomes too long to read.
pub(super) fn shown(name: &str) -> String {
    match name.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
