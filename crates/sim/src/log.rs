//! The text trace: one line for everything that happened, as people read it.

use std::fmt::Write as _;

use filch_core::config::printable;

use crate::marks::Mark;
use crate::world::World;

/// Everything that happened in a world that kept it.
#[must_use]
pub fn text(world: &World) -> String {
    let mut text = String::new();
    // Names come from files, and must not command the terminal.
    let label = |task: u32| printable(&world.workload().label(task));
    for (at, mark) in world.marks().into_iter().flat_map(crate::marks::Marks::iter) {
        let line = match mark {
            Mark::Submitted { task } => format!("Submitted {}", label(task)),
            Mark::Spawned { task, node } => format!("Worker {node}: Spawned {}", label(task)),
            Mark::Began { task, node, queued } => {
                format!("Worker {node}: Executing {} (queue size: {queued})", label(task))
            }
            Mark::Ended { task, node, failed: false } => format!("Worker {node}: Completed {}", label(task)),
            Mark::Ended { task, node, failed: true } => format!("Worker {node}: Failed {}", label(task)),
            Mark::Lost { task, node } => format!("Worker {node}: Lost {}", label(task)),
            Mark::Settled { task, status, .. } => format!("{} is {}", label(task), status.name()),
            Mark::Moved { task, from, to } => format!("Worker {to}: Stole {} from Worker {from}", label(task)),
            Mark::Joined { node } => format!("Worker {node}: Joined"),
            Mark::Died { node } => format!("Worker {node}: Died"),
            Mark::Paused { node } => format!("Worker {node}: Stands still"),
            Mark::Back { node } => format!("Worker {node}: Is back"),
            Mark::CoordinatorDied => "Coordinator: Died".to_owned(),
            Mark::TookOver => "Coordinator: Another takes over".to_owned(),
        };
        let _ = writeln!(text, "[{:.6}] {line}", at.as_secs_f64());
    }
    text
}
