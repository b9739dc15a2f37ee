//! The writer of `filch trace v1`. What it writes is read back as the same workload.

use std::fmt::Write as _;
use std::io::{self, Write};

use filch_core::{Amount, Priority, ResourceId, Span};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value as Json, json};

use super::filch::{ClassLine, VERSION};
use crate::cluster::Class;
use crate::workload::{NONE, Run, Workload};

/// Writes a workload with the cluster it suggests, gzipped if told so. What the format has no word for is left out: a list of
/// it is returned.
///
/// # Errors
/// When it cannot be written.
pub fn write(out: impl Write, workload: &Workload, cluster: &[Class], gzip: bool) -> io::Result<Vec<&'static str>> {
    if gzip {
        let mut packed = GzEncoder::new(out, Compression::default());
        lines(&mut packed, workload, cluster)?;
        packed.finish()?.flush()?;
    } else {
        let mut out = out;
        lines(&mut out, workload, cluster)?;
        out.flush()?;
    }
    Ok(left_out(workload, cluster))
}

fn lines(out: &mut impl Write, workload: &Workload, cluster: &[Class]) -> io::Result<()> {
    writeln!(out, "{}", header(workload, cluster))?;
    let mut text = String::new();
    for index in 0..workload.tasks.len() as u32 {
        text.clear();
        task(&mut text, workload, index);
        out.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// What of a workload and a cluster no such file can say.
fn left_out(workload: &Workload, cluster: &[Class]) -> Vec<&'static str> {
    let any = |of: fn(&crate::workload::Shape) -> bool| workload.shapes.iter().any(of);
    let words = |id: &filch_core::CapabilityId| {
        let name = workload.names.capabilities.name(id.0);
        !name.starts_with("gpu:") && !workload.groups.iter().any(|group| group.capability == name)
    };
    let found = [
        (workload.tasks.iter().any(|task| task.spawned_by != NONE), "which task spawns which"),
        (workload.seeded_to.is_some(), "the queues that tasks are pushed to"),
        (any(|shape| shape.priority != Priority::default()), "priorities"),
        (any(|shape| shape.key.is_some()), "keys"),
        (any(|shape| shape.exclusive), "exclusive tasks"),
        (any(|shape| shape.deadline.is_some()), "deadlines"),
        (any(|shape| shape.timeout.is_some()), "timeouts"),
        (any(|shape| shape.fails > 0.0), "failures"),
        (workload.shapes.iter().flat_map(|shape| shape.requires.ids()).any(words), "required capabilities"),
        (cluster.iter().any(|class| class.speed != 1.0), "speeds"),
    ];
    found.into_iter().filter(|entry| entry.0).map(|entry| entry.1).collect()
}

fn header(workload: &Workload, cluster: &[Class]) -> Json {
    let class = |class: &Class| ClassLine {
        class: class.name.clone(),
        count: f64::from(class.count),
        cores: (class.cores() != 1.0).then_some(class.cores()),
        memory: class.memory,
        gpus: (class.gpus > 0).then_some(f64::from(class.gpus)),
        gpu_model: class.gpu_model.clone(),
    };
    let mut header = json!({
        "filch_trace": VERSION,
        "name": workload.name,
        "source": "filch",
        "note": "written by filch",
        "cluster": cluster.iter().map(class).collect::<Vec<_>>(),
    });
    if !workload.warmth.list.is_empty() {
        header["model"] = json!({
            "saved_s_per_cached_prefix_block": workload.warmth.saved.as_secs_f64(),
            "cache_blocks_per_worker": workload.warmth.kept,
        });
    }
    header
}

/// Seconds with every nanosecond and no needless digit.
fn push_seconds(text: &mut String, span: Span) {
    let (whole, nanos) = (span.0 / 1_000_000_000, span.0 % 1_000_000_000);
    let _ = write!(text, "{whole}");
    if nanos > 0 {
        let digits = format!("{nanos:09}");
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
}

fn push_name(text: &mut String, name: &str) {
    // A string is always JSON.
    text.push_str(&serde_json::to_string(name).unwrap_or_default());
}

fn push_names<'a>(text: &mut String, key: &str, names: impl Iterator<Item = std::borrow::Cow<'a, str>>) {
    let _ = write!(text, ",\"{key}\":[");
    for (at, name) in names.enumerate() {
        if at > 0 {
            text.push(',');
        }
        push_name(text, &name);
    }
    text.push(']');
}

fn task(text: &mut String, workload: &Workload, index: u32) {
    let task = &workload.tasks[index as usize];
    let shape = workload.shape_of(index);
    text.push_str("{\"id\":");
    push_name(text, &workload.label(index));
    text.push_str(",\"kind\":");
    push_name(text, workload.names.kinds.name(shape.kind.0));
    text.push_str(",\"at\":");
    push_seconds(text, Span(task.at.0));
    text.push_str(",\"run\":");
    match task.run {
        Run::Same(span) => push_seconds(text, span),
        Run::ByClass(start, count) => {
            for (at, (class, span)) in workload.by_class[start as usize..(start + count) as usize].iter().enumerate() {
                text.push(if at == 0 { '{' } else { ',' });
                push_name(text, &workload.classes[*class as usize]);
                text.push(':');
                push_seconds(text, *span);
            }
            text.push('}');
        }
    }
    let parents = workload.parents_of(index);
    if !parents.is_empty() {
        push_names(text, "deps", parents.iter().map(|parent| workload.label(parent.task).into()));
        if parents.iter().any(|parent| parent.bytes > 0) {
            let sizes: Vec<String> = parents.iter().map(|parent| parent.bytes.to_string()).collect();
            let _ = write!(text, ",\"dep_bytes\":[{}]", sizes.join(","));
        }
    }
    if let Some(needs) = needs(workload, index) {
        let _ = write!(text, ",\"needs\":{needs}");
    }
    if let Some((read, written)) = workload.data.get(index as usize) {
        let _ = write!(text, ",\"in\":{read},\"out\":{written}");
    }
    if task.estimate > Span::ZERO {
        text.push_str(",\"estimate\":");
        push_seconds(text, task.estimate);
    }
    let things = workload.warmth.of(index);
    if !things.is_empty() {
        push_names(text, "affinity", things.iter().map(|thing| workload.names.affinities.name(thing.0).into()));
    }
    text.push_str("}\n");
}

/// What a task asks for beyond one core.
fn needs(workload: &Workload, index: u32) -> Option<Json> {
    let shape = workload.shape_of(index);
    let of = |resource: ResourceId| {
        shape.demand.amounts().iter().find(|entry| entry.0 == resource).map_or(Amount(0), |entry| entry.1)
    };
    // Whole numbers without a point.
    let number = |amount: Amount| -> Json {
        if amount.0.is_multiple_of(Amount::SCALE) { json!(amount.0 / Amount::SCALE) } else { json!(amount.as_f64()) }
    };
    let mut needs = Map::new();
    let (cpus, memory, gpus) = (of(ResourceId::CPUS), of(ResourceId::MEMORY), of(ResourceId::GPUS));
    if cpus != Amount::from_units(1) {
        needs.insert("cpus".to_owned(), number(cpus));
    }
    if memory > Amount(0) {
        needs.insert("memory".to_owned(), number(memory));
    }
    if gpus > Amount(0) {
        needs.insert("gpus".to_owned(), number(gpus));
    }
    let models = shape.requires.ids().iter().find_map(|id| {
        let name = workload.names.capabilities.name(id.0);
        match workload.groups.iter().find(|group| group.capability == name) {
            Some(group) => (!group.models.is_empty()).then(|| group.models.clone()),
            None => name.strip_prefix("gpu:").map(|model| vec![model.to_owned()]),
        }
    });
    if let Some(models) = models {
        needs.insert("gpu_model".to_owned(), json!(models));
    }
    (!needs.is_empty()).then_some(Json::Object(needs))
}
