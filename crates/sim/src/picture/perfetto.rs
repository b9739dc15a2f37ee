//! The run in the Chrome trace format, which Perfetto opens: a process for every worker with a thread for every slot, tasks as
//! slices, steals as arrows and instants, tasks that run and wait as counters.

use std::io::{self, Write};

use serde_json::{Value as Json, json};

use super::story::{Ending, Story};
use crate::outcome::Outcome;
use crate::world::World;

/// Slices written at most: beyond it only every so many workers are shown.
const MOST_SLICES: usize = 100_000;
/// The process of what concerns the whole cluster.
const CLUSTER: u32 = 1;

/// Writes the trace of a world that kept its marks.
///
/// # Errors
/// When it cannot be written.
pub fn perfetto(world: &World, outcome: &Outcome, out: &mut dyn Write) -> io::Result<()> {
    let story = Story::of(world);
    let every = story.bars.len().div_ceil(MOST_SLICES).max(1) as u32;
    let shown = |node: u32| node.is_multiple_of(every);
    let mut events = Events { out, first: true };
    let mut about = json!({
        "scenario": outcome.name,
        "seed": outcome.seed,
        "makespan_s": outcome.makespan_s,
        "lower_bound_s": outcome.lower_bound_s,
        "digest": outcome.digest,
    });
    if every > 1 {
        about["sampled"] = json!(format!("every {every}th worker is shown, of {}", outcome.workers));
    }
    events.out.write_all(b"{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    serde_json::to_writer(&mut *events.out, &about)?;
    events.out.write_all(b",\"traceEvents\":[\n")?;
    let sampled = if every > 1 { format!(" (every {every}th worker is shown)") } else { String::new() };
    events.name("process_name", CLUSTER, 0, &format!("cluster{sampled}"))?;
    for (node, deeds) in story.deeds.iter().enumerate() {
        let node = node as u32;
        if !shown(node) {
            continue;
        }
        let class = &world.setting().cluster[story.class_of(node)].name;
        events.name("process_name", pid(node), 0, &format!("worker {node} ({class})"))?;
        events.put(&json!({
            "ph": "M", "name": "process_sort_index", "pid": pid(node), "args": {"sort_index": pid(node)},
        }))?;
        for lane in 0..deeds.lanes.max(1) {
            events.name("thread_name", pid(node), lane + 1, &format!("slot {lane}"))?;
        }
    }
    slices(&story, &mut events, &shown)?;
    for away in story.aways.iter().filter(|away| shown(away.node)) {
        let name = if away.dead { "dead" } else { "stands still" };
        let (ts, dur) = (micros(away.from.0), micros(away.to.since(away.from).0));
        events.put(
            &json!({"ph": "X", "name": name, "cat": "fault", "pid": pid(away.node), "tid": 0, "ts": ts, "dur": dur}),
        )?;
    }
    for (number, &(at, task, from, to)) in story.moves.iter().enumerate().filter(|entry| shown(entry.1.3)) {
        let label = world.workload().label(task);
        events.put(&json!({
            "ph": "i", "s": "t", "name": format!("stole {label} from worker {from}"), "cat": "steal", "pid": pid(to),
            "tid": 1, "ts": micros(at.0), "args": {"task": label, "from": from, "number": number},
        }))?;
    }
    for load in &story.load {
        events.put(&json!({
            "ph": "C", "name": "tasks", "pid": CLUSTER, "ts": micros(load.at.0),
            "args": {"running": load.running.max(0), "waiting": load.waiting.max(0)},
        }))?;
    }
    for sample in world.marks().map(crate::marks::Marks::samples).unwrap_or_default() {
        events.put(&json!({
            "ph": "C", "name": "queued at workers", "pid": CLUSTER, "ts": micros(sample.at.0),
            "args": {"all": sample.queued, "longest": sample.longest},
        }))?;
    }
    events.out.write_all(b"\n]}\n")?;
    events.out.flush()
}

fn slices(story: &Story<'_>, events: &mut Events<'_>, shown: &dyn Fn(u32) -> bool) -> io::Result<()> {
    let workload = story.world.workload();
    for (number, bar) in story.bars.iter().enumerate().filter(|(_, bar)| shown(bar.node)) {
        let kind = workload.names.kinds.name(workload.shape_of(bar.task).kind.0);
        let ending = match bar.ending {
            Ending::Well => "completed",
            Ending::Failed => "failed",
            Ending::Lost => "lost with its worker",
        };
        let mut args = json!({"kind": kind, "end": ending});
        if let Some((from, _)) = bar.stolen {
            args["stolen_from"] = json!(from);
        }
        let (pid_, tid, ts) = (pid(bar.node), bar.lane + 1, micros(bar.from.0));
        events.put(&json!({
            "ph": "X", "name": workload.label(bar.task), "cat": "task", "pid": pid_, "tid": tid, "ts": ts,
            "dur": micros(bar.to.since(bar.from).0), "args": args,
        }))?;
        // From what the victim was doing then to what was stolen.
        if let Some((from, at)) = bar.stolen.filter(|stolen| shown(stolen.0)) {
            events.put(&json!({
                "ph": "s", "name": "steal", "cat": "steal", "id": number, "pid": pid(from), "tid": 1, "ts": micros(at.0),
            }))?;
            events.put(&json!({
                "ph": "f", "bp": "e", "name": "steal", "cat": "steal", "id": number, "pid": pid_, "tid": tid, "ts": ts,
            }))?;
        }
    }
    Ok(())
}

fn pid(node: u32) -> u32 {
    node + CLUSTER + 1
}

/// Microseconds with their parts.
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

struct Events<'o> {
    out: &'o mut dyn Write,
    first: bool,
}

impl Events<'_> {
    fn put(&mut self, event: &Json) -> io::Result<()> {
        if !std::mem::replace(&mut self.first, false) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    fn name(&mut self, what: &str, pid: u32, tid: u32, name: &str) -> io::Result<()> {
        self.put(&json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}))
    }
}
