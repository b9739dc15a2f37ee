//! A default policy, policies per task type, a composite, and one of our own.

#![allow(clippy::print_stdout, reason = "an example prints")]

use filch::policy::{Policy, TaskView, Terms, WorkerView};
use filch::{Balancer, Config, Task, Worker};

/// Prefers workers that have run little so far.
struct Fresh;

impl Policy for Fresh {
    fn name(&self) -> &str {
        "fresh"
    }
    fn score(&self, _: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        Some(terms.add("fresh", -(worker.assigned as f64)) + terms.add("held", -f64::from(worker.held())))
    }
}

const COMPOSITE: &str = "
load_balancing: {}
scheduling:
  policy:
    type: composite
    algorithms:
      - { type: performance_based, weight: 0.6 }
      - { type: priority_based, weight: 0.3 }
      - { type: affinity_based, weight: 0.1 }
";

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::from_yaml(COMPOSITE, "inline")?.config;
    let fresh: Box<dyn Policy> = Box::new(Fresh);
    let balancer: Balancer = Balancer::builder().config(config).policy_for_type("gentle", fresh).build()?;
    balancer.set_policy("performance", "performance_based")?;
    balancer.set_policy("critical", "priority_based")?;
    for id in ["a", "b"] {
        balancer.register_worker(Worker::new(id))?;
    }
    for task_type in ["", "gentle", "performance", "critical"] {
        let task = balancer.submit(Task::new().task_type(task_type))?;
        match balancer.explain(task)?.decision {
            Some(choice) => println!("type {task_type:?} goes to {} by {}", choice.worker, choice.policy),
            None => println!("type {task_type:?} waits: its policy wants a worker that is idle"),
        }
    }
    // The default can be replaced while running.
    balancer.set_policy(None, "adaptive")?;
    assert_eq!(balancer.metrics().total_queued, 4);
    Ok(())
}
