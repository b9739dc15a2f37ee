//! Workloads recorded elsewhere: `filch trace v1`, WfCommons instances and SWF logs, plain or gzipped, and the writer of the
//! first.
//!
//! What is wrong with a file is refused with its line, its column and what to do; nothing in a file makes a reader panic.
//! What a file says and no simulation goes by is listed in [`Workload::notes`]. Never opens a file by itself.

mod draft;
mod filch;
mod lines;
mod locate;
mod swf;
mod wfcommons;
mod write;

use filch_core::ResourceId;
use filch_core::config::{ConfigErrors, nearest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::Class;
use crate::workload::{Run, Workload};
pub use lines::Open;
use lines::Source;
pub use write::write;

/// Workers of a cluster that nobody described, at most.
const MOST_DEFAULT: f64 = 1000.0;
/// Slots of a worker at most.
const MOST_SLOTS: f64 = 4096.0;

/// What a file holds.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// The tasks.
    pub workload: Workload,
    /// The workers the file suggests, or some that suit the tasks.
    pub cluster: Vec<Class>,
    /// Further clusters, by name.
    pub other_clusters: Vec<(String, Vec<Class>)>,
}

/// A recorded workload in a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// The file, seen from that of the scenario.
    pub file: String,
    /// Which of the clusters that the file names; the one it suggests unless told. `cluster` of the scenario counts more.
    #[serde(default)]
    pub cluster: Option<String>,
    /// How often all of it is submitted.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10_000))]
    pub repeat: u32,
    /// Arrivals are multiplied by this: with less than 1 they come more quickly.
    #[serde(default = "as_it_is")]
    #[schemars(range(min = 0, max = 1000))]
    pub arrivals: f64,
}

fn one() -> u32 {
    1
}

fn as_it_is() -> f64 {
    1.0
}

impl Recording {
    /// A file as it is.
    #[must_use]
    pub fn of(file: &str) -> Recording {
        Recording { file: file.to_owned(), cluster: None, repeat: 1, arrivals: 1.0 }
    }
}

/// Whether the start of a file looks like a recorded workload rather than a scenario; `name` decides if its end is known.
#[must_use]
pub fn is_trace(name: &str, start: &[u8]) -> bool {
    let lower = name.to_ascii_lowercase();
    let bare = lower.strip_suffix(".gz").unwrap_or(&lower);
    let ends = |ends: &[&str]| ends.iter().any(|end| bare.ends_with(end));
    if ends(&[".yaml", ".yml"]) && bare == lower {
        return false;
    }
    if bare != lower || ends(&[".jsonl", ".json", ".swf"]) {
        return true;
    }
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    start.starts_with(&[0x1f, 0x8b]) || start.starts_with(b"{") || start.starts_with(b";")
}

/// Reads a file of any of the formats; `label` names it in errors.
///
/// # Errors
/// What is wrong with it, with its place.
pub fn read<'a>(open: &'a Open<'a>, label: &'a str) -> Result<Imported, ConfigErrors> {
    let source = Source { open, label };
    let mut lines = source.lines()?;
    let known =
        "these are read: filch trace v1 (JSON Lines), WfCommons instances (JSON) and SWF logs, plain or gzipped";
    let Some(first) = lines.next()? else {
        return Err(source.wrong("the file is empty".to_owned(), Some(known)));
    };
    let first = first.1.to_owned();
    let mut imported = if first.trim_start().starts_with('{') {
        if filch::is_header(&first) { filch::read(source, &mut lines, &first)? } else { wfcommons::read(source)? }
    } else if swf::is_first(&first) {
        swf::read(source, &mut lines, &first)?
    } else {
        let message = "this is no workload that filch knows".to_owned();
        return Err(source.wrong_at((lines.number, &first), 0..first.len(), message, Some(known)));
    };
    if imported.cluster.is_empty() {
        imported.cluster = default_cluster(&imported.workload);
    }
    let own = std::iter::once((None, &imported.cluster));
    let all = own.chain(imported.other_clusters.iter().map(|(name, cluster)| (Some(name), cluster)));
    for (name, cluster) in all {
        if let Err(misfit) = fits(&imported.workload, cluster) {
            let which = name.map_or_else(String::new, |name| format!(" of the cluster `{name}`"));
            return Err(source.wrong(
                format!("no worker{which} can ever run {misfit}"),
                Some("every task must fit a worker of every cluster that the file lists"),
            ));
        }
    }
    Ok(imported)
}

impl Imported {
    /// One of the clusters.
    ///
    /// # Errors
    /// That there is none of this name, and which there are.
    pub fn cluster_named(&self, name: Option<&str>) -> Result<&[Class], String> {
        let Some(name) = name else { return Ok(&self.cluster) };
        let found = self.other_clusters.iter().find(|known| known.0 == name);
        found.map(|known| known.1.as_slice()).ok_or_else(|| {
            let known: Vec<&str> = self.other_clusters.iter().map(|known| known.0.as_str()).collect();
            let help = match (nearest(name, &known), known.as_slice()) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, []) => "the file names none".to_owned(),
                (None, known) => format!("the file names {}", known.join(", ")),
            };
            format!("there is no cluster named `{name}`: {help}")
        })
    }

    /// The workload as a scenario wants it.
    #[must_use]
    pub fn play(&self, how: &Recording) -> Workload {
        let mut workload = self.workload.clone();
        if how.arrivals != 1.0 {
            for task in &mut workload.tasks {
                task.at.0 = (task.at.0 as f64 * how.arrivals + 0.5) as u64;
            }
        }
        if how.repeat > 1 { repeated(&workload, how.repeat) } else { workload }
    }

    /// Gives workers slots for tasks that ask for less than a core.
    fn make_slots(&mut self, least_cpus: f64) {
        if least_cpus >= 1.0 {
            return;
        }
        let least = least_cpus.max(0.01);
        for class in self.cluster.iter_mut().chain(self.other_clusters.iter_mut().flat_map(|entry| &mut entry.1)) {
            class.cores = Some(class.cores());
            class.slots = Some((class.cores() / least + 0.999).clamp(1.0, MOST_SLOTS) as u32);
        }
    }
}

/// The same tasks several times over, each copy after the other where they arrive together.
fn repeated(workload: &Workload, times: u32) -> Workload {
    let mut all = Workload { tasks: Vec::new(), parents: Vec::new(), ids: Vec::new(), ..workload.clone() };
    let count = workload.tasks.len();
    // By arrival, and within one moment copy by copy.
    let mut order: Vec<(u32, u32)> = (0..times).flat_map(|copy| (0..count as u32).map(move |at| (copy, at))).collect();
    order.sort_by_key(|(_, at)| workload.tasks[*at as usize].at);
    let mut place = vec![0u32; order.len()];
    for (new, (copy, at)) in order.iter().enumerate() {
        place[*copy as usize * count + *at as usize] = new as u32;
    }
    let (data, warmth) = (std::mem::take(&mut all.data), std::mem::take(&mut all.warmth));
    all.warmth.saved = warmth.saved;
    all.warmth.kept = warmth.kept;
    for (copy, at) in order {
        let start = all.parents.len() as u32;
        for parent in workload.parents_of(at) {
            let task = place[copy as usize * count + parent.task as usize];
            all.parents.push(crate::workload::Parent { task, ..*parent });
        }
        let parents = (start, all.parents.len() as u32 - start);
        all.tasks.push(crate::workload::Task { parents, ..workload.tasks[at as usize] });
        let label = workload.label(at);
        all.ids.push(if copy == 0 { label } else { format!("{label}#{}", copy + 1) });
        all.data.extend(data.get(at as usize));
        if !warmth.starts.is_empty() {
            all.warmth.starts.push(all.warmth.list.len() as u32);
            all.warmth.list.extend_from_slice(warmth.of(at));
        }
    }
    if !warmth.starts.is_empty() {
        all.warmth.starts.push(all.warmth.list.len() as u32);
    }
    all
}

/// Workers that suit the tasks, for a file that says nothing of them: 70% of what work and longest chain could keep busy, so
/// that neither of the two decides alone.
fn default_cluster(workload: &Workload) -> Vec<Class> {
    let names: Vec<String> =
        if workload.classes.is_empty() { vec!["cpu".to_owned()] } else { workload.classes.clone() };
    let most = |resource: ResourceId| {
        let amounts = workload.shapes.iter().flat_map(|shape| shape.demand.amounts());
        amounts.filter(|entry| entry.0 == resource).map(|entry| entry.1.as_f64()).fold(0.0, f64::max)
    };
    let cores = most(ResourceId::CPUS).max(1.0);
    let gpus = most(ResourceId::GPUS);
    let plain: Vec<Class> = names.iter().map(|name| Class { name: name.clone(), ..Class::default() }).collect();
    let mut ends = vec![0.0f64; workload.tasks.len()];
    let (mut work, mut path) = (0.0, 0.0f64);
    for index in 0..workload.tasks.len() {
        let seconds = workload.shortest(index as u32, &plain).as_secs_f64();
        let parents = workload.parents_of(index as u32).iter().map(|parent| ends[parent.task as usize]);
        ends[index] = parents.fold(0.0, f64::max) + seconds;
        work += seconds;
        path = path.max(ends[index]);
    }
    let wanted = if path > 0.0 { 0.7 * work / path } else { 2.0 };
    let count = (wanted.clamp(2.0, MOST_DEFAULT) / names.len() as f64 + 0.5).max(1.0) as u32;
    let models: Vec<String> = workload.groups.iter().flat_map(|group| group.models.clone()).collect();
    let class = |class: Class| Class {
        count,
        cores: Some(cores),
        gpus: (gpus + 0.999) as u32,
        gpu_model: models.first().cloned(),
        ..class
    };
    plain.into_iter().map(class).collect()
}

/// Whether every task can run on a worker of the cluster.
///
/// # Errors
/// The first that cannot, and what each class lacks.
pub fn fits(workload: &Workload, cluster: &[Class]) -> Result<(), String> {
    let mut names = workload.names.clone();
    let specs: Vec<_> =
        cluster.iter().map(|class| class.spec(0, &workload.capabilities_of(class), &mut names)).collect();
    // What is wrong with a shape is wrong with all its tasks.
    let mut known = vec![false; workload.shapes.len()];
    for (index, task) in workload.tasks.iter().enumerate() {
        if std::mem::replace(&mut known[task.shape as usize], true) {
            continue;
        }
        let shape = &workload.shapes[task.shape as usize];
        let lack = |at: usize| -> Option<String> {
            let (spec, class) = (&specs[at], &cluster[at]);
            let missing = shape.requires.ids().iter().find(|id| !spec.capabilities.ids().contains(id));
            if let Some(missing) = missing {
                return Some(format!("`{}` is not {}", class.name, names.capabilities.name(missing.0)));
            }
            let short = shape.demand.amounts().iter().find(|entry| spec.resources.get(entry.0) < entry.1);
            if let Some((resource, needs)) = short {
                let resource_name = names.resources.name(resource.0);
                let has = spec.resources.get(*resource);
                return Some(format!("`{}` has {has} of the {needs} {resource_name}", class.name));
            }
            let timed = matches!(task.run, Run::Same(_)) || workload.duration(index as u32, &class.name).is_some();
            (!timed).then(|| format!("nobody knows how long it takes on `{}`", class.name))
        };
        let lacks: Vec<String> = (0..cluster.len()).map_while(lack).collect();
        if lacks.len() == cluster.len() {
            let label = draft::shown(&workload.label(index as u32));
            let more = if lacks.len() > 3 { ", …" } else { "" };
            return Err(format!("`{label}`: {}{more}", lacks.into_iter().take(3).collect::<Vec<_>>().join(", ")));
        }
    }
    Ok(())
}
