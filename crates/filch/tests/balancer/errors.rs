//! Every way to be refused, and that nothing has changed then.

use std::time::Duration;

use filch::{Balancer, BuildError, Config, Error, PolicySpec, Task, Worker};

use crate::{still, with_workers};

#[test]
fn ids_that_are_taken_are_refused_and_those_of_settled_tasks_are_free() {
    let balancer = with_workers(&["w"]);
    assert_eq!(balancer.register_worker(Worker::new("w")).unwrap_err(), Error::DuplicateWorker("w".to_owned()));
    balancer.submit(Task::named("t")).unwrap();
    assert_eq!(balancer.submit(Task::named("t")).unwrap_err(), Error::DuplicateTask("t".to_owned()));
    let twice = [Task::named("u"), Task::named("u")];
    let twice = balancer.submit_many(twice).unwrap_err();
    assert_eq!(twice.to_string(), "the submission has two tasks `u`, at positions 0 and 1");
    let thrice = [Task::named("x"), Task::named("u"), Task::named("y"), Task::named("u")];
    let error = Error::NamedTwice { task: "u".to_owned(), first: 1, second: 3 };
    assert_eq!(balancer.submit_graph(thrice).unwrap_err(), error);
    let one_taken = [Task::named("v"), Task::named("t")];
    assert_eq!(balancer.submit_graph(one_taken).unwrap_err(), Error::DuplicateTask("t".to_owned()));
    assert_eq!(balancer.metrics().submitted, 1, "all or none");
    balancer.cancel("t").unwrap();
    let again = balancer.submit(Task::named("t")).unwrap();
    assert_eq!(balancer.status("t").unwrap().id, again);
}

#[test]
fn what_is_not_known_is_refused_by_its_name() {
    let balancer = with_workers(&["w"]);
    let unknown = Error::UnknownWorker("nobody".to_owned());
    assert_eq!(balancer.next("nobody").unwrap_err(), unknown);
    assert_eq!(balancer.next_timeout("nobody", Duration::ZERO).unwrap_err(), unknown);
    assert_eq!(balancer.unregister_worker("nobody").unwrap_err(), unknown);
    assert_eq!(balancer.worker_silent("nobody").unwrap_err(), unknown);
    assert_eq!(balancer.report_load("nobody", filch::LoadReport::default()).unwrap_err(), unknown);
    assert_eq!(balancer.update_worker("nobody", filch::WorkerUpdate::new()).unwrap_err(), unknown);
    assert_eq!(balancer.steal("nobody").unwrap_err(), unknown);
    assert_eq!(balancer.can_execute("nobody", &Task::new()).unwrap_err(), unknown);
    assert_eq!(balancer.submit(Task::new().pin("nobody")).unwrap_err(), unknown);
    let unknown = Error::UnknownTask("nothing".to_owned());
    assert_eq!(balancer.cancel("nothing").unwrap_err(), unknown);
    assert_eq!(balancer.status("nothing").unwrap_err(), unknown);
    assert_eq!(balancer.explain("nothing").unwrap_err(), unknown);
    assert_eq!(balancer.start_task("nothing").unwrap_err(), unknown);
    let orphan = balancer.submit(Task::named("t").after(["nothing"])).unwrap_err();
    assert_eq!(orphan.to_string(), "task `t` depends on `nothing`, which is not known");
    let alone = balancer.submit(Task::named("t").after([0])).unwrap_err();
    assert_eq!(alone, Error::UnknownParent { task: "t".to_owned(), parent: "#0".to_owned() });
    let far = balancer.submit_graph([Task::new().after([7])]).unwrap_err();
    assert_eq!(far, Error::UnknownParent { task: "#0".to_owned(), parent: "#7".to_owned() });
    assert_eq!(balancer.metrics().submitted, 0);
}

#[test]
fn a_cycle_is_refused_with_its_path() {
    let balancer = with_workers(&["w"]);
    let circle = [
        Task::named("fine"),
        Task::named("a").after(["c"]),
        Task::named("b").after(["a"]),
        Task::named("c").after(["b"]),
    ];
    let Err(Error::Cycle(path)) = balancer.submit_graph(circle) else { panic!("a cycle") };
    assert_eq!(path.len(), 4);
    assert_eq!(path.first(), path.last());
    for pair in path.windows(2) {
        // "a c": a waits for c.
        assert!(["a c", "b a", "c b"].contains(&format!("{} {}", pair[0], pair[1]).as_str()), "{path:?}");
    }
    assert_eq!(balancer.metrics().submitted, 0);
}

#[test]
fn a_long_cycle_is_shown_by_its_ends() {
    let balancer = with_workers(&["w"]);
    let ring = |count: usize| (0..count).map(move |at| Task::named(format!("t{at}")).after([(at + 1) % count]));
    let short = balancer.submit_graph(ring(3)).unwrap_err().to_string();
    assert_eq!(short, "the tasks wait for each other, each for the next: t0 -> t1 -> t2 -> t0");
    let Err(long) = balancer.submit_graph(ring(1000)) else { panic!("a cycle") };
    assert!(matches!(&long, Error::Cycle(path) if path.len() == 1001), "all of it is there for programs");
    let text = long.to_string();
    assert!(
        text.starts_with("1000 tasks wait for each other, each for the next: t0 -> t1 -> ")
            && text.contains(" -> … -> "),
        "{text}"
    );
    assert!(text.len() < 150, "{text}");
    let itself = Task::named("narcissus").after(["narcissus"]);
    let expected = "task `narcissus` waits for itself";
    assert_eq!(balancer.submit(itself.clone()).unwrap_err().to_string(), expected);
    assert_eq!(balancer.submit_many([itself.clone()]).unwrap_err().to_string(), expected);
    assert_eq!(balancer.submit_graph([itself]).unwrap_err().to_string(), expected);
}

#[test]
fn what_is_settled_is_said_to_be_and_since_when() {
    let (balancer, clock) = still(Config::default());
    balancer.register_worker(Worker::new("w")).unwrap();
    for name in ["good", "bad", "gone"] {
        balancer.submit(Task::named(name)).unwrap();
    }
    crate::take(&balancer, "w").succeed(()).unwrap();
    crate::take(&balancer, "w").fail_permanently("broken").unwrap();
    balancer.cancel("gone").unwrap();
    clock.advance(Duration::from_secs(3));
    let text = |name: &str| balancer.cancel(name).unwrap_err().to_string();
    assert_eq!(text("good"), "task `good` completed 3.0 s ago");
    assert_eq!(text("bad"), "task `bad` failed 3.0 s ago");
    assert_eq!(text("gone"), "task `gone` was cancelled 3.0 s ago");
    let late = balancer.spawn("good", Task::named("child")).unwrap_err();
    assert_eq!(late.to_string(), "task `child` cannot be spawned by `good`, which completed 3.0 s ago");
    let orphan = balancer.spawn("nothing", Task::new()).unwrap_err();
    assert_eq!(orphan.to_string(), "task `(unnamed)` cannot be spawned by its parent `nothing`, which is not known");
}

#[test]
fn a_dependency_inside_a_list_points_to_graphs() {
    let balancer = with_workers(&["w"]);
    let error = balancer.submit_many([Task::named("a"), Task::named("b").after(["a"])]).unwrap_err();
    let hint = "of the same submission: use `submit_graph` for tasks that do";
    assert_eq!(error.to_string(), format!("task `b` depends on `a` {hint}"));
    let error = balancer.submit_many([Task::new(), Task::new().after([0])]).unwrap_err();
    assert_eq!(error.to_string(), format!("task `#1` depends on `#0` {hint}"));
    let far = balancer.submit_many([Task::new().after([9])]).unwrap_err();
    assert_eq!(far.to_string(), "task `#0` depends on `#9`, which is not known");
    assert_eq!(balancer.metrics().submitted, 0);
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let mut config = Config::default();
    config.limits.max_queued = 2;
    let (balancer, _) = still(config);
    balancer.submit_many([Task::new(), Task::new()]).unwrap();
    let Err(Error::QueueFull { queued, limit, retry_after }) = balancer.submit(Task::new()) else { panic!("full") };
    assert_eq!((queued, limit), (2, 2));
    assert!(retry_after >= Duration::from_millis(10), "{retry_after:?}");
    assert!(matches!(balancer.submit_array(Task::new(), 1), Err(Error::QueueFull { .. })));
}

#[test]
fn hopeless_deadlines_are_refused_where_that_is_wanted() {
    let config = Config::from_yaml("scheduling: { hopeless_deadlines: refuse }", "inline").unwrap().config;
    let (balancer, clock) = still(config);
    clock.advance(Duration::from_secs(100));
    let hurry = Task::named("hurry").estimate(Duration::from_secs(10)).deadline(Duration::from_secs(3));
    let error = balancer.submit(hurry).unwrap_err();
    let expected = Error::HopelessDeadline {
        task: "hurry".to_owned(),
        deadline: Duration::from_secs(3),
        earliest: Duration::from_secs(10),
    };
    assert_eq!(error, expected);
    let words = "task `hurry` takes until 10s from now at the least, its deadline is 3s from now";
    assert_eq!(error.to_string(), words);
    let late = balancer.submit(Task::named("late").deadline(Duration::ZERO)).unwrap_err();
    assert_eq!(late.to_string(), "the deadline of task `late` has passed");
}

#[test]
fn a_pinned_task_its_worker_can_never_run_is_refused() {
    let balancer = with_workers(&["w"]);
    let error = balancer.submit(Task::new().pin("w").requires("cuda")).unwrap_err();
    assert_eq!(error.to_string(), "worker `w` can never run the task pinned to it: it lacks `cuda`");
    let error = balancer.submit(Task::new().pin("w").resource("gpus", 0.5)).unwrap_err();
    assert_eq!(error.to_string(), "worker `w` can never run the task pinned to it: it has 0 gpus, the task needs 0.5");
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let balancer = with_workers(&["w"]);
    let text = |task: Task| balancer.submit(task).unwrap_err().to_string();
    assert_eq!(text(Task::new().priority(0)), "a priority is a number from 1 (least) to 5, not 0");
    assert_eq!(text(Task::new().priority(6)), "a priority is a number from 1 (least) to 5, not 6");
    for (amount, words) in [(-1.0, "-1"), (f64::INFINITY, "inf"), (f64::NAN, "NaN")] {
        let expected = format!("the amount of `gpus` must be a finite number of 0 or more, not {words}");
        assert_eq!(text(Task::new().resource("gpus", amount)), expected);
    }
    let long = text(Task::new().backoff(Duration::from_secs(2), Duration::from_secs(1)));
    assert_eq!(long, "the first pause before a retry (2s) is longer than the longest (1s)");
    assert_eq!(text(Task::named("")), "the name of a task must not be empty; leave it out instead");
    assert_eq!(text(Task::new().requires("")), "there is an empty name among the capabilities");
    assert_eq!(text(Task::new().resource("", 1.0)), "there is an empty name among the resources");
    assert_eq!(text(Task::named("t").timeout(Duration::ZERO)), "task `t` has a timeout of zero");
    assert_eq!(
        text(Task::new().resource("gpus", 1.5)),
        "task `(unnamed)` asks for 1.5 GPUs: a share must be below 1, more than one must be whole"
    );
    let graph = [Task::named("a"), Task::named("b").timeout(Duration::ZERO)];
    assert_eq!(balancer.submit_graph(graph).unwrap_err().to_string(), "task `b` has a timeout of zero");
    assert!(matches!(balancer.submit_array(Task::named("n"), 3), Err(Error::Invalid(_))));
    assert!(matches!(balancer.submit_array(Task::new().pin("w"), 3), Err(Error::Invalid(_))));
    assert!(matches!(balancer.set_key_limit("k", 0), Err(Error::Invalid(_))));
    for worker in [
        Worker::new(""),
        Worker::new("v").capability(""),
        Worker::new("v").resource("memory", 1e300),
        Worker::new("v").slots(0),
        Worker::new("v").speed(0.0),
        Worker::new("v").weight(f64::NAN),
        Worker::new("v").cost_rate(-1.0),
        Worker::new("v").resource("memory", f64::INFINITY),
    ] {
        assert!(matches!(balancer.register_worker(worker), Err(Error::Invalid(_))));
    }
    assert_eq!(balancer.workers().len(), 1);
    assert_eq!(balancer.metrics().submitted, 0);
}

#[test]
fn building_fails_with_the_reason() {
    let build = |config| Balancer::<(), ()>::builder().config(config).build().unwrap_err();
    let mut config = Config::default();
    config.load_balancing.thresholds.idle_threshold = 99;
    assert!(matches!(build(config), BuildError::Settings(problems) if problems.len() == 1));
    let mut config = Config::default();
    config.scheduling.policy = PolicySpec::Name("nonsense".to_owned());
    assert!(build(config).to_string().contains("nonsense"));
    let policy = Balancer::<(), ()>::builder().policy("nonsense").build().unwrap_err();
    assert!(matches!(policy, BuildError::Policy(_)), "{policy}");
    let near = Balancer::<(), ()>::builder().policy("adaptiv").build().unwrap_err();
    assert!(near.to_string().contains("did you mean `adaptive`?"), "{near}");
    let near = with_workers(&[]).set_policy(None, "best_fitt").unwrap_err();
    assert!(near.to_string().contains("did you mean `best_fit`?"), "{near}");
    let typed = Balancer::<(), ()>::builder().policy_for_type("t", "nonsense").build().unwrap_err();
    assert!(matches!(typed, BuildError::Policy(_)), "{typed}");
    let missing = Balancer::<(), ()>::builder().config_file("no/such/file.yaml").build().unwrap_err();
    assert!(missing.to_string().starts_with("cannot read no/such/file.yaml: "), "{missing}");
    let directory = std::env::temp_dir().join(format!("filch-config-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("filch.yaml");
    for (text, expected) in [("stealing: { steal_timeot: 1ms }", "steal_timeout"), ("\u{0}", "error")] {
        std::fs::write(&file, text).unwrap();
        let wrong = Balancer::<(), ()>::builder().config_file(&file).build().unwrap_err();
        assert!(matches!(wrong, BuildError::Config(_)), "{wrong}");
        assert!(wrong.to_string().contains(expected), "{wrong}");
    }
    std::fs::write(&file, vec![b'#'; filch::config::MAX_BYTES + 1]).unwrap();
    let large = Balancer::<(), ()>::builder().config_file(&file).build().unwrap_err();
    assert!(large.to_string().contains("at most 1048576 bytes"), "{large}");
    std::fs::remove_dir_all(&directory).unwrap();
    let known = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/config/load-balancing-config.yaml");
    let balancer: Balancer = Balancer::builder().config_file(known).build().unwrap();
    assert!(balancer.workers().is_empty());
}

#[test]
fn a_parent_that_cannot_be_is_called_a_parent() {
    let balancer = with_workers(&[]);
    let error = balancer.spawn("zz", Task::named("t")).unwrap_err().to_string();
    assert_eq!(error, "task `t` cannot be spawned by its parent `zz`, which is not known");
    let error = balancer.submit(Task::named("q").parent("q")).unwrap_err().to_string();
    assert_eq!(error, "task `q` cannot be spawned by its parent `q`, which is itself");
    assert_eq!(balancer.metrics().submitted, 0);
}

#[test]
fn jobs_and_elements_that_are_over_are_told_from_those_that_never_were() {
    let balancer = with_workers(&["w"]);
    let job = balancer.submit_array(Task::new(), 3).unwrap();
    let element = |index| balancer.cancel_element(job, index).unwrap_err().to_string();
    let running = crate::take(&balancer, "w");
    balancer.cancel_element(job, 1).unwrap();
    assert_eq!(element(0), format!("element 0 of job `{job}` was handed out or is settled"));
    assert_eq!(element(1), format!("element 1 of job `{job}` was handed out or is settled"));
    assert_eq!(element(99), format!("job `{job}` has no element 99"));
    let no_array = balancer.open_job(1.0).unwrap();
    let element_of_none = balancer.cancel_element(no_array, 0).unwrap_err().to_string();
    assert_eq!(element_of_none, format!("job `{no_array}` has no element 0"));
    running.succeed(()).unwrap();
    balancer.cancel_element(job, 2).unwrap();
    let done = Error::JobDone(job.to_string());
    assert_eq!(done.to_string(), format!("job `{job}` is done"));
    assert_eq!(balancer.cancel_job(job), Err(done.clone()));
    assert_eq!(balancer.close_job(job), Err(done.clone()));
    assert_eq!(balancer.cancel_element(job, 2), Err(done.clone()));
    assert_eq!(balancer.submit(Task::new().job(job)).unwrap_err(), done);
    let (other, _) = still(Config::default());
    assert_eq!(other.cancel_job(job), Err(Error::UnknownJob(job.to_string())));
}

#[test]
fn a_child_outlives_the_job_and_the_cancelling_of_its_parent() {
    let balancer = with_workers(&["w"]);
    let job = balancer.submit_array(Task::new(), 1).unwrap();
    let element = crate::take(&balancer, "w");
    let child = balancer.spawn(element.id(), Task::new()).unwrap();
    element.succeed(()).unwrap();
    assert!(balancer.job_status(job).unwrap().done);
    let parent = balancer.submit(Task::new()).unwrap();
    let second = balancer.spawn(parent, Task::new()).unwrap();
    balancer.cancel(parent).unwrap();
    for child in [child, second] {
        assert_eq!(crate::status(&balancer, child), filch::Status::Queued);
        assert_eq!(balancer.status(child).unwrap().job, None);
    }
}
