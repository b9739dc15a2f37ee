//! Tasks go to the least loaded worker: running / size + queued.

#![allow(clippy::print_stdout, reason = "an example prints")]

use filch::{Balancer, Config, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::from_yaml("scheduling: { bind: push, policy: load_balancing }", "inline")?.config;
    let balancer: Balancer = Balancer::builder().config(config).build()?;
    for id in ["w1", "w2"] {
        balancer.register_worker(Worker::new(id).resource("gpus", 2.0).slots(3))?;
    }
    for _ in 0..3 {
        balancer.submit(Task::new().pin("w2"))?;
        balancer.next("w2")?.ok_or("it is pinned there")?.detach();
    }

    let task = balancer.submit(Task::new())?;
    let explanation = balancer.explain(task)?;
    print!("{explanation}");
    assert_eq!(explanation.decision.map(|choice| choice.worker).as_deref(), Some("w1"));
    Ok(())
}
