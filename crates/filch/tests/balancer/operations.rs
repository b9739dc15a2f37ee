//! Each operation does what it says.

use std::time::Duration;

use filch::{
    Balancer, Cause, Config, Error, LoadReport, ParentFailure, Status, Task, Worker, WorkerState, WorkerUpdate,
};

use crate::{push_bound, status, still, take, with_workers};

#[test]
fn a_task_goes_from_submit_to_its_result() {
    let balancer = Balancer::builder().build().unwrap();
    let worker = balancer.register_worker(Worker::new("w")).unwrap();
    let task = balancer.submit(Task::named("t").payload(20)).unwrap();
    assert_eq!(balancer.status(task).unwrap().status, Status::Queued);
    let assignment = balancer.next(worker).unwrap().unwrap();
    assert_eq!((assignment.id(), assignment.attempt(), assignment.index()), (task, 1, 0));
    assert_eq!((assignment.name().as_deref(), assignment.worker()), (Some("t"), worker));
    assert_eq!(balancer.status("t").unwrap().status, Status::Assigned);
    assignment.start().unwrap();
    assert_eq!(balancer.status("t").unwrap().status, Status::Running);
    let answer = *assignment.payload() + 22;
    assignment.succeed(answer).unwrap();
    let settled = balancer.status(task).unwrap();
    assert_eq!(
        (settled.status, settled.result.as_deref(), settled.name.as_deref()),
        (Status::Completed, Some(&42), Some("t"))
    );
    assert!(balancer.next("w").unwrap().is_none());
}

#[test]
fn priorities_decide_the_order() {
    let balancer = with_workers(&["w"]);
    for (name, priority) in [("low", 1.0), ("high", 4.7), ("middle", 3.0)] {
        balancer.submit(Task::named(name).priority(priority)).unwrap();
    }
    for name in ["high", "middle", "low"] {
        let assignment = take(&balancer, "w");
        assert_eq!(assignment.name().as_deref(), Some(name));
        assignment.succeed(()).unwrap();
    }
}

#[test]
fn capabilities_resources_and_keys_are_respected() {
    let (balancer, _) = still(Config::default());
    balancer.register_worker(Worker::new("plain").slots(4)).unwrap();
    let gpu = Worker::new("gpu").capability("cuda").resource("gpus", 2.0).slots(4);
    balancer.register_worker(gpu).unwrap();
    let train = || Task::new().requires("cuda").resource("gpus", 2.0);
    assert!(!balancer.can_execute("plain", &train()).unwrap());
    assert!(balancer.can_execute("gpu", &train()).unwrap());
    assert_eq!(balancer.suitable_worker(&train()).unwrap().as_deref(), Some("gpu"));
    assert_eq!(balancer.suitable_worker(&train().requires("rocm")).unwrap(), None);
    balancer.submit(train()).unwrap();
    balancer.submit(train()).unwrap();
    assert!(balancer.next("plain").unwrap().is_none());
    let first = take(&balancer, "gpu");
    assert!(balancer.next("gpu").unwrap().is_none(), "both are taken");
    assert_eq!(first.devices(), [0, 1]);
    assert_eq!(balancer.workers()[1].reserved["gpus"], 2.0);
    first.succeed(()).unwrap();
    take(&balancer, "gpu").succeed(()).unwrap();

    for _ in 0..2 {
        balancer.submit(Task::new().key("database")).unwrap();
    }
    let holder = take(&balancer, "plain");
    assert!(balancer.next("gpu").unwrap().is_none(), "one at a time");
    balancer.set_key_limit("database", 2).unwrap();
    let second = take(&balancer, "gpu");
    holder.succeed(()).unwrap();
    second.succeed(()).unwrap();
    balancer.check().unwrap();
}

#[test]
fn a_dropped_assignment_is_given_back_and_a_detached_one_is_not() {
    let balancer = with_workers(&["a", "b"]);
    let task = balancer.submit(Task::named("t")).unwrap();
    drop(take(&balancer, "a"));
    assert_eq!(status(&balancer, task), Status::Queued);
    let again = take(&balancer, "b");
    assert_eq!(again.attempt(), 2);
    again.give_back().unwrap();
    assert_eq!(take(&balancer, "a").detach().task, task);
    assert_eq!(status(&balancer, task), Status::Assigned);
    balancer.complete_task("t", ()).unwrap();
    assert_eq!(status(&balancer, task), Status::Completed);
    assert_eq!(balancer.metrics().failed, 0);
}

#[test]
fn a_panic_while_running_gives_the_task_back() {
    let balancer = with_workers(&["w"]);
    let task = balancer.submit(Task::new()).unwrap();
    let inner = balancer.clone();
    let thread = std::thread::spawn(move || {
        let assignment = take(&inner, "w");
        assignment.start().unwrap();
        panic!("the work went wrong (as this test wants)");
    });
    assert!(thread.join().is_err());
    assert_eq!(status(&balancer, task), Status::Queued);
    take(&balancer, "w").succeed(()).unwrap();
}

#[test]
fn reports_by_id_and_by_the_name_of_the_status() {
    let balancer: Balancer<(), u32> = Balancer::builder().build().unwrap();
    balancer.register_worker(Worker::new("w").slots(9)).unwrap();
    for name in ["a", "b", "c"] {
        balancer.submit(Task::named(name)).unwrap();
        balancer.next("w").unwrap().unwrap().detach();
        balancer.update_status(name, "running", None).unwrap();
        assert_eq!(balancer.status(name).unwrap().status, Status::Running);
    }
    balancer.update_status("a", "completed", Some(7)).unwrap();
    assert_eq!(balancer.status("a").unwrap().result.as_deref(), Some(&7));
    balancer.update_status("b", "failed", Some(8)).unwrap();
    let failed = balancer.status("b").unwrap();
    assert_eq!((failed.status, failed.result.as_deref()), (Status::Failed, Some(&8)));
    assert_eq!(failed.error.as_deref(), Some("reported as failed"));
    balancer.fail_task("c", "disk full").unwrap();
    assert_eq!(balancer.status("c").unwrap().error.as_deref(), Some("disk full"));
    let wrong = balancer.update_status("a", "finished", None).unwrap_err();
    assert_eq!(wrong.to_string(), "a task is reported as running, completed or failed, not as finished");
    let late = balancer.start_task("a").unwrap_err();
    assert_eq!(late, Error::NotAssigned { task: "a".to_owned(), status: Status::Completed });
}

#[test]
fn unregistering_returns_what_remains_the_running_one_first_and_it_can_be_submitted_again() {
    let (balancer, _) = still(push_bound());
    balancer.register_worker(Worker::new("a")).unwrap();
    for (name, priority) in [("first", 3), ("second", 2), ("third", 5)] {
        balancer.submit(Task::named(name).priority(priority).kind("work")).unwrap();
    }
    let running = take(&balancer, "a");
    running.start().unwrap();
    assert_eq!(running.name().as_deref(), Some("third"));
    let returned = balancer.unregister_worker("a").unwrap();
    let names: Vec<_> = returned.iter().map(|one| one.task.id().unwrap()).collect();
    assert_eq!(names, ["third", "first", "second"]);
    assert!(running.is_revoked());
    assert!(matches!(running.succeed(()), Err(Error::Stale { .. })));
    assert_eq!(status(&balancer, "first"), Status::Returned);
    assert!(balancer.wait_idle(Duration::ZERO));

    balancer.register_worker(Worker::new("b")).unwrap();
    for one in returned {
        balancer.submit(one.task).unwrap();
    }
    for name in ["third", "first", "second"] {
        let assignment = take(&balancer, "b");
        assert_eq!(assignment.name().as_deref(), Some(name), "the priority came back too");
        assignment.succeed(()).unwrap();
    }
    assert_eq!(balancer.metrics().returned, 3);
}

#[test]
fn unregistering_can_queue_again_instead() {
    let balancer = with_workers(&["a", "b"]);
    let task = balancer.submit(Task::new()).unwrap();
    let held = take(&balancer, "a");
    balancer.unregister_and_requeue("a").unwrap();
    assert_eq!(status(&balancer, task), Status::Queued);
    take(&balancer, "b").succeed(()).unwrap();
    assert!(matches!(held.succeed(()), Err(Error::Stale { .. })));
    assert_eq!(balancer.next("a").unwrap_err(), Error::UnknownWorker("a".to_owned()));
}

#[test]
fn what_a_worker_costs_its_speed_and_its_weight_can_change() {
    let config = Config::from_yaml("scheduling: { bind: push, policy: cost_based }", "inline").unwrap().config;
    let (balancer, _) = still(config);
    balancer.register_worker(Worker::new("a").cost_rate(1.0)).unwrap();
    balancer.register_worker(Worker::new("b").cost_rate(2.0)).unwrap();
    let queues = || balancer.workers().iter().map(|worker| worker.queue_length).collect::<Vec<_>>();
    balancer.submit(Task::new()).unwrap();
    assert_eq!(queues(), [1, 0]);
    balancer.update_worker("a", WorkerUpdate::new().cost_rate(9.0)).unwrap();
    balancer.submit(Task::new()).unwrap();
    assert_eq!(queues(), [1, 1]);
    balancer.update_worker("a", WorkerUpdate::new().speed(20.0)).unwrap();
    balancer.submit(Task::new()).unwrap();
    assert_eq!(queues(), [2, 1]);
    balancer.set_policy(None, "weighted_round_robin").unwrap();
    balancer.update_worker("b", WorkerUpdate::new().weight(100.0)).unwrap();
    for _ in 0..10 {
        balancer.submit(Task::new()).unwrap();
    }
    assert_eq!(queues(), [2, 11]);
    for wrong in
        [WorkerUpdate::new().speed(0.0), WorkerUpdate::new().cost_rate(-1.0), WorkerUpdate::new().weight(f64::NAN)]
    {
        assert!(matches!(balancer.update_worker("a", wrong), Err(Error::Invalid(_))));
    }
}

#[test]
fn workers_change_drain_report_and_fall_silent() {
    let balancer = with_workers(&["w", "other"]);
    balancer.submit(Task::named("t").requires("rust")).unwrap();
    assert_eq!(status(&balancer, "t"), Status::Unschedulable);
    balancer
        .update_worker("w", WorkerUpdate::new().capabilities(["rust"]).slots(2).resources([("gpus", 1.0)]))
        .unwrap();
    let info = &balancer.workers()[0];
    assert_eq!((info.capabilities.as_slice(), info.slots, info.resources["gpus"]), (&["rust".to_owned()][..], 2, 1.0));
    let held = take(&balancer, "w");

    balancer.update_worker("w", WorkerUpdate::new().draining(true)).unwrap();
    balancer.submit(Task::named("u").requires("rust")).unwrap();
    assert!(balancer.next("w").unwrap().is_none());
    balancer.update_worker("w", WorkerUpdate::new().draining(false)).unwrap();
    drop(take(&balancer, "w"));

    balancer.worker_silent("w").unwrap();
    assert_eq!(balancer.workers()[0].state, WorkerState::Silent);
    assert!(held.is_revoked());
    balancer.report_load("w", LoadReport { cpu: 0.5, memory: 0.25 }).unwrap();
    let info = &balancer.workers()[0];
    assert_eq!((info.state, info.cpu, info.memory), (WorkerState::Up, 0.5, 0.25));
    drop(held);
    take(&balancer, "w").succeed(()).unwrap();
    balancer.check().unwrap();
}

#[test]
fn arrays_share_a_payload_and_number_their_elements() {
    let balancer: Balancer<String, u32> = Balancer::builder().build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let job = balancer.submit_array(Task::with_payload("shared".to_owned()), 5).unwrap();
    balancer.cancel_element(job, 1).unwrap();
    assert_eq!(balancer.cancel_element(job, 1).unwrap_err(), Error::NotWaiting { job: job.to_string(), index: 1 });
    let mut seen = Vec::new();
    while let Some(assignment) = balancer.next("w").unwrap() {
        assert_eq!(assignment.payload(), "shared");
        let (id, index) = (assignment.id(), assignment.index());
        seen.push(index);
        if index == 3 {
            balancer.cancel_job(job).unwrap();
            assert!(assignment.is_revoked());
            continue;
        }
        assignment.succeed(index * 10).unwrap();
        assert_eq!(balancer.status(id).unwrap().result.as_deref(), Some(&(index * 10)));
    }
    assert_eq!(seen, [0, 2, 3]);
    let metrics = balancer.metrics();
    assert_eq!((metrics.submitted, metrics.completed, metrics.cancelled), (5, 2, 3));
    assert_eq!(balancer.cancel_job(job).unwrap_err(), Error::JobDone(job.to_string()));
    let empty = balancer.submit_array(Task::with_payload(String::new()), 0).unwrap();
    assert!(matches!(balancer.cancel_job(empty), Err(Error::JobDone(_))));
}

#[test]
fn graphs_wait_for_their_parents_by_name_position_and_id() {
    let balancer = with_workers(&["w"]);
    let before = balancer.submit(Task::named("before")).unwrap();
    let graph = [
        Task::named("build").after([before]),
        Task::named("test").after(["build"]),
        Task::new().after([0, 1]),
        Task::named("ship").after(["before", "test"]),
    ];
    let job = balancer.submit_graph(graph).unwrap();
    let mut order = Vec::new();
    while let Some(assignment) = balancer.next("w").unwrap() {
        order.push(assignment.id());
        assignment.succeed(()).unwrap();
    }
    assert_eq!(order.len(), 5);
    let place = |id| order.iter().position(|other| *other == id).unwrap();
    assert_eq!((place(before), place(job.tasks[0]), place(job.tasks[1])), (0, 1, 2));
    let late = balancer.submit(Task::named("late").after([job.tasks[3]])).unwrap();
    assert_eq!(status(&balancer, late), Status::Queued, "what it waits for is over");
}

#[test]
fn children_of_a_failed_parent_fail_are_skipped_or_run() {
    let balancer = with_workers(&["w"]);
    let child = |name: &str, choice| Task::named(name).after(["parent"]).on_parent_failure(choice);
    let graph = [
        Task::named("parent"),
        child("fails", ParentFailure::Fail),
        child("skipped", ParentFailure::Skip),
        child("runs", ParentFailure::Run),
    ];
    balancer.submit_graph(graph).unwrap();
    take(&balancer, "w").fail_permanently("broken").unwrap();
    let fails = balancer.status("fails").unwrap();
    assert_eq!((fails.status, fails.cause), (Status::Failed, Cause::ParentFailed));
    assert_eq!(status(&balancer, "skipped"), Status::Skipped);
    assert_eq!(status(&balancer, "runs"), Status::Queued);
}

#[test]
fn jobs_are_opened_filled_closed_and_cancelled() {
    let balancer = with_workers(&["w"]);
    let job = balancer.open_job(2.0).unwrap();
    let first = balancer.submit(Task::new().job(job)).unwrap();
    let second = balancer.submit(Task::new().job(job)).unwrap();
    balancer.close_job(job).unwrap();
    assert!(matches!(balancer.submit(Task::new().job(job)), Err(Error::Invalid(_))));
    let held = take(&balancer, "w");
    balancer.cancel_job(job).unwrap();
    assert_eq!((status(&balancer, first), status(&balancer, second)), (Status::Cancelled, Status::Cancelled));
    assert!(held.is_revoked());
    assert!(matches!(balancer.open_job(0.0), Err(Error::Invalid(_))));
}

#[test]
fn many_tasks_make_one_job() {
    let balancer = with_workers(&["w"]);
    let job = balancer.submit_many((0..3).map(|_| Task::new())).unwrap();
    assert_eq!(job.tasks.len(), 3);
    let assignment = take(&balancer, "w");
    assert_eq!((assignment.id(), assignment.index()), (job.tasks[0], 0));
    drop(assignment);
    balancer.cancel_job(job.id).unwrap();
    assert_eq!(balancer.metrics().cancelled, 3);
}

#[test]
fn running_tasks_spawn_children() {
    let balancer = with_workers(&["w"]);
    balancer.submit(Task::named("parent")).unwrap();
    let parent = take(&balancer, "w");
    parent.start().unwrap();
    let child = balancer.spawn(parent.id(), Task::named("child")).unwrap();
    parent.succeed(()).unwrap();
    let assignment = take(&balancer, "w");
    assert_eq!(assignment.id(), child);
    assignment.succeed(()).unwrap();
    let orphan = balancer.spawn("parent", Task::named("orphan")).unwrap_err();
    assert_eq!(orphan.to_string(), "task `orphan` cannot be spawned by `parent`, which completed just now");
}

#[test]
fn cancelling_works_at_every_stage() {
    let balancer = with_workers(&["w"]);
    for name in ["running", "queued"] {
        balancer.submit(Task::named(name)).unwrap();
    }
    balancer.submit(Task::named("blocked").after(["queued"])).unwrap();
    let held = take(&balancer, "w");
    held.start().unwrap();
    assert!(!held.is_revoked());
    for name in ["blocked", "queued", "running"] {
        balancer.cancel(name).unwrap();
        assert_eq!(status(&balancer, name), Status::Cancelled);
    }
    assert!(held.is_revoked());
    assert_eq!(held.succeed(()).unwrap_err(), Error::Stale { task: "running".to_owned(), attempt: 1 });
    assert_eq!(balancer.cancel("queued").unwrap_err().to_string(), "task `queued` was cancelled just now");
    balancer.check().unwrap();
}

#[test]
fn stealing_and_rebalancing_move_queued_tasks() {
    let (balancer, _) = still(push_bound());
    let busy = balancer.register_worker(Worker::new("busy")).unwrap();
    for _ in 0..20 {
        balancer.submit(Task::new()).unwrap();
    }
    balancer.register_worker(Worker::new("idle")).unwrap();
    let stolen = balancer.steal("idle").unwrap();
    assert_eq!(stolen.len(), 1);
    assert_eq!(balancer.workers()[1].queue_length, 1);
    let report = balancer.steal_report();
    assert_eq!((report.total.attempts, report.total.successes), (1, 1));
    assert_eq!(report.by_victim["busy"].successes, 1);
    assert!(report.to_string().contains("From busy: 1 of 1 succeeded (100.0%)"), "{report}");
    // One is there already, so only one more fits below the idle threshold of 2.
    assert_eq!(balancer.rebalance(), 1);
    assert_eq!(balancer.metrics().tasks_migrated, 2);
    assert_eq!(balancer.workers()[0].queue_length, 18);
    assert!(balancer.steal(busy).unwrap().is_empty());
    assert!(balancer.health().concerns.len() == 1, "the queues differ: {:?}", balancer.health());
}

#[test]
fn policies_can_be_replaced_while_running() {
    let (balancer, _) = still(push_bound());
    for id in ["a", "b"] {
        balancer.register_worker(Worker::new(id)).unwrap();
    }
    balancer.set_policy(None, "round_robin").unwrap();
    balancer.set_policy("first_only", "fifo").unwrap();
    for _ in 0..4 {
        balancer.submit(Task::new()).unwrap();
    }
    let lengths = || balancer.workers().iter().map(|worker| worker.queue_length).collect::<Vec<_>>();
    assert_eq!(lengths(), [2, 2]);
    let error = balancer.set_policy("first_only", "fifoo").unwrap_err();
    assert!(error.to_string().contains("fifoo"), "{error}");
}

#[test]
fn stop_refuses_new_things_and_start_goes_on() {
    let balancer: Balancer = Balancer::builder().build().unwrap();
    assert!(!balancer.is_running(), "nothing to do yet");
    let worker = balancer.register_worker(Worker::new("w")).unwrap();
    assert!(balancer.is_running());
    balancer.submit(Task::new()).unwrap();
    let held = balancer.next(worker).unwrap().unwrap();
    balancer.stop();
    assert!(!balancer.is_running());
    assert_eq!(balancer.submit(Task::new()).unwrap_err(), Error::Stopped);
    assert_eq!(balancer.submit_many([Task::new()]).unwrap_err(), Error::Stopped);
    assert_eq!(balancer.submit_array(Task::new(), 1).unwrap_err(), Error::Stopped);
    assert_eq!(balancer.open_job(1.0).unwrap_err(), Error::Stopped);
    assert_eq!(balancer.register_worker(Worker::new("v")).unwrap_err(), Error::Stopped);
    assert_eq!(balancer.next(worker).unwrap_err(), Error::Stopped);
    held.succeed(()).unwrap();
    balancer.stop();
    balancer.start();
    assert!(balancer.is_running());
    balancer.submit(Task::new()).unwrap();
    balancer.next(worker).unwrap().unwrap().succeed(()).unwrap();
}

#[test]
fn a_pinned_task_suits_its_own_worker_only() {
    let balancer = with_workers(&["a", "b"]);
    let task = || Task::new().pin("b");
    assert!(!balancer.can_execute("a", &task()).unwrap());
    assert!(balancer.can_execute("b", &task()).unwrap());
    assert_eq!(balancer.suitable_worker(&task()).unwrap().as_deref(), Some("b"));
    assert_eq!(balancer.suitable_worker(&task().requires("cuda")).unwrap(), None);
    assert!(!balancer.can_execute("b", &task().requires("cuda")).unwrap());
    let nobody = balancer.suitable_worker(&Task::new().pin("c")).unwrap_err();
    assert_eq!(nobody, Error::UnknownWorker("c".to_owned()));
}

#[test]
fn a_load_that_is_no_share_is_refused() {
    let balancer = with_workers(&["w"]);
    for (cpu, memory) in [(1.5, 0.0), (0.0, -0.1), (f64::NAN, 0.0), (0.0, f64::INFINITY)] {
        let error = balancer.report_load("w", LoadReport { cpu, memory }).unwrap_err().to_string();
        assert!(error.starts_with("a load is a share from 0 to 1, `"), "{error}");
    }
    balancer.report_load("w", LoadReport { cpu: 1.0, memory: 0.0 }).unwrap();
    assert_eq!(balancer.workers()[0].cpu, 1.0);
}
