//! Jobs from outside: arrays observed element by element and as a whole, counts that always add up, ends waited for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use filch::{
    Assignment, Balancer, Config, Error, JobId, JobStatus, ManualClock, Reason, Status, StatusChange, Task, Worker,
};
use filch_core::Rng;

use crate::waiting::block_on;
use crate::{LONG, push_bound, still, take, with_workers};

const SECOND: Duration = Duration::from_secs(1);

type Changes = Arc<Mutex<Vec<StatusChange>>>;

fn logged(balancer: &Balancer) -> Changes {
    let log = Changes::default();
    let inner = Arc::clone(&log);
    balancer.on_status(move |change| inner.lock().unwrap().push(change.clone()));
    log
}

fn by_status(status: &JobStatus) -> [(Status, u64); 11] {
    [
        (Status::Blocked, status.blocked),
        (Status::Queued, status.queued),
        (Status::Retrying, status.retrying),
        (Status::Unschedulable, status.unschedulable),
        (Status::Assigned, status.assigned),
        (Status::Running, status.running),
        (Status::Completed, status.completed),
        (Status::Failed, status.failed),
        (Status::Cancelled, status.cancelled),
        (Status::Skipped, status.skipped),
        (Status::Returned, status.returned),
    ]
}

#[test]
fn an_array_larger_than_its_workers_is_told_element_by_element() {
    for config in [Config::default(), push_bound()] {
        let (balancer, _) = still(config);
        for id in ["a", "b"] {
            balancer.register_worker(Worker::new(id)).unwrap();
        }
        let log = logged(&balancer);
        balancer.submit(Task::named("alone")).unwrap();
        take(&balancer, "a").succeed(()).unwrap();
        let job = balancer.submit_array(Task::new(), 20).unwrap();
        for round in 0..20 {
            let worker = if round % 2 == 0 { "a" } else { "b" };
            let assignment = take(&balancer, worker);
            assert_eq!(assignment.job(), Some(job));
            let (id, index) = (assignment.id(), assignment.index());
            let status = balancer.status(id).unwrap();
            assert_eq!((status.job, status.index, status.status), (Some(job), Some(index), Status::Assigned));
            let listed = balancer.tasks();
            assert_eq!(listed.len(), 1);
            assert_eq!((listed[0].id, listed[0].job, listed[0].index), (id, Some(job), Some(index)));
            assignment.succeed(()).unwrap();
            let status = balancer.status(id).unwrap();
            assert_eq!((status.job, status.index, status.status), (Some(job), Some(index), Status::Completed));
        }
        let log = log.lock().unwrap();
        let alone = log.iter().find(|change| change.label() == "alone").unwrap();
        assert_eq!((alone.job, alone.index), (None, None));
        let mut lives: BTreeMap<u32, Vec<Status>> = BTreeMap::new();
        for change in log.iter().filter(|change| change.job == Some(job)) {
            let index = change.index.unwrap();
            assert_eq!(change.label(), format!("{job}[{index}]"));
            lives.entry(index).or_default().push(change.status);
        }
        assert!(lives.keys().copied().eq(0..20));
        for life in lives.values() {
            assert_eq!(*life, [Status::Queued, Status::Assigned, Status::Completed]);
        }
        assert_eq!(balancer.job_status(job).unwrap().to_string(), format!("{job}: 20 of 20 settled (20 completed)"));
    }
}

#[test]
fn tasks_submitted_together_or_added_one_by_one_know_their_job() {
    let balancer = with_workers(&["w"]);
    let log = logged(&balancer);
    let many = balancer.submit_many([Task::new(), Task::named("second")]).unwrap();
    let graph = balancer.submit_graph([Task::new(), Task::new().after([0])]).unwrap();
    let open = balancer.open_job(1.0).unwrap();
    let added = balancer.submit(Task::new().job(open)).unwrap();
    let of = |task| {
        let status = balancer.status(task).unwrap();
        (status.job, status.index)
    };
    assert_eq!(of(many.tasks[1]), (Some(many.id), Some(1)));
    assert_eq!(of(graph.tasks[1]), (Some(graph.id), Some(1)));
    assert_eq!(of(added), (Some(open), None));
    let labels: Vec<String> = log.lock().unwrap().iter().map(StatusChange::label).collect();
    assert_eq!(labels[..2], [many.tasks[0].to_string(), "second".to_owned()]);
    let jobs = balancer.jobs();
    let figures: Vec<_> = jobs.iter().map(|job| (job.id, job.total, job.queued, job.blocked, job.closed)).collect();
    assert_eq!(figures, [(many.id, 2, 2, 0, true), (graph.id, 2, 1, 1, true), (open, 1, 1, 0, false)]);
    // What is not closed is not done, even if nothing is left of it.
    for _ in 0..5 {
        take(&balancer, "w").succeed(()).unwrap();
    }
    assert_eq!(balancer.jobs().len(), 1);
    let status = balancer.job_status(open).unwrap();
    assert_eq!((status.completed, status.closed, status.done), (1, false, false));
    balancer.close_job(open).unwrap();
    let status = balancer.job_status(open).unwrap();
    assert_eq!((status.completed, status.closed, status.done), (1, true, true));
    let returned = balancer.submit_array(Task::new(), 2).unwrap();
    let held = take(&balancer, "w");
    let left = balancer.unregister_worker("w").unwrap();
    assert_eq!((left[0].job, left[0].index), (Some(returned), 0));
    drop(held);
    assert_eq!(balancer.job_status(returned).unwrap().returned, 1);
}

#[test]
fn an_element_that_waits_by_itself_is_known_before_it_is_handed_out() {
    for config in [Config::default(), push_bound()] {
        let (balancer, _) = still(config);
        balancer.register_worker(Worker::new("w").slots(4)).unwrap();
        balancer.set_key_limit("k", 2).unwrap();
        let log = logged(&balancer);
        let job = balancer.submit_array(Task::new().key("k"), 5).unwrap();
        let waiting = balancer.tasks();
        let known: Vec<_> = waiting.iter().map(|task| (task.job, task.index, task.status)).collect();
        assert_eq!(known, [0, 1].map(|index| (Some(job), Some(index), Status::Queued)));
        let told: Vec<_> = log.lock().unwrap().iter().map(|change| (change.label(), change.worker.clone())).collect();
        assert_eq!(told, [0, 1].map(|index| (format!("{job}[{index}]"), None)));
        let status = balancer.job_status(job).unwrap();
        assert_eq!((status.total, status.queued, status.rest), (5, 5, 3));
        let explanation = balancer.explain(waiting[1].id).unwrap();
        assert_eq!(explanation.task, format!("{job}[1]"));
        balancer.cancel_element(job, 1).unwrap();
        balancer.cancel_element(job, 4).unwrap();
        let status = balancer.job_status(job).unwrap();
        assert_eq!((status.queued, status.cancelled), (3, 2));
        assert_eq!(log.lock().unwrap().last().unwrap().label(), format!("1 element of {job}"));
        // A name that looks like an element is not taken for one.
        balancer.submit(Task::named(format!("{job}[0]"))).unwrap();
        assert_eq!(balancer.explain(waiting[0].id).unwrap().task, format!("{job}[0] (by its element)"));
        balancer.check().unwrap();
    }
}

#[test]
fn retrying_elements_are_counted_where_they_are() {
    let (balancer, clock) = still(Config::default());
    balancer.register_worker(Worker::new("w").slots(3)).unwrap();
    let job = balancer.submit_array(Task::new().retries(1).backoff(SECOND, SECOND), 4).unwrap();
    let (first, second) = (take(&balancer, "w"), take(&balancer, "w"));
    second.start().unwrap();
    let id = first.id();
    first.fail("broken").unwrap();
    let status = balancer.job_status(job).unwrap();
    assert_eq!((status.retrying, status.running, status.queued, status.rest), (1, 1, 2, 2));
    assert_eq!((status.waiting(), status.held(), status.settled()), (3, 1, 0));
    assert!(balancer.explain(id).unwrap().to_string().starts_with(&format!("{job}[0] is retrying")));
    clock.advance(10 * SECOND);
    balancer.tick();
    assert_eq!(balancer.job_status(job).unwrap().queued, 3);
    // It has waited and failed before, so it comes when the others have begun.
    let mut held: Vec<Assignment> = std::iter::from_fn(|| balancer.next("w").unwrap()).collect();
    while let Some(assignment) = held.pop() {
        let again = assignment.index() == 0;
        assert_eq!(assignment.attempt(), if again { 2 } else { 1 });
        if again {
            assignment.fail("broken again").unwrap();
        } else {
            assignment.succeed(()).unwrap();
        }
        held.extend(balancer.next("w").unwrap());
    }
    second.succeed(()).unwrap();
    let status = balancer.job_status(job).unwrap();
    assert_eq!((status.completed, status.failed, status.done), (3, 1, true));
    let end = balancer.status(id).unwrap();
    assert_eq!((end.job, end.index, end.error.as_deref()), (Some(job), Some(0), Some("broken again")));
}

#[test]
fn a_cancelled_job_is_told_of_to_the_end_and_then_no_more() {
    let (balancer, _) = still(Config::default());
    balancer.register_worker(Worker::new("w").slots(2)).unwrap();
    let log = logged(&balancer);
    let job = balancer.submit_array(Task::new(), 10).unwrap();
    take(&balancer, "w").succeed(()).unwrap();
    let (running, assigned) = (take(&balancer, "w"), take(&balancer, "w"));
    running.start().unwrap();
    balancer.cancel_job(job).unwrap();
    let status = balancer.job_status(job).unwrap();
    assert_eq!((status.total, status.completed, status.cancelled, status.rest), (10, 1, 9, 0));
    assert!(status.done && status.cancel_requested && status.closed);
    let told = log.lock().unwrap().len();
    let cancelled: Vec<String> = log.lock().unwrap()[told - 3..].iter().map(StatusChange::label).collect();
    assert_eq!(cancelled, [format!("7 elements of {job}"), format!("{job}[1]"), format!("{job}[2]")]);
    // Late reports change neither the counts nor anybody's mind.
    assert!(matches!(running.succeed(()), Err(Error::Stale { task, .. }) if task == format!("{job}[1]")));
    drop(assigned);
    assert_eq!(balancer.job_status(job).unwrap(), status);
    assert_eq!(log.lock().unwrap().len(), told);
    assert_eq!(balancer.cancel_job(job).unwrap_err(), Error::JobDone(job.to_string()));
    assert!(balancer.next("w").unwrap().is_none());
    balancer.check().unwrap();
}

/// Checks every job against what else can be known of it: the list of tasks, and the changes that were told.
fn verify(balancer: &Balancer, jobs: &[JobId], log: &Changes) {
    let mut listed: BTreeMap<(JobId, Status), u64> = BTreeMap::new();
    for task in balancer.tasks() {
        if let Some(job) = task.job {
            *listed.entry((job, task.status)).or_default() += 1;
        }
    }
    for change in log.lock().unwrap().iter().filter(|change| change.status.is_settled()) {
        let count = match change.subject {
            filch::Subject::Task(_) => 1,
            filch::Subject::Elements { count, .. } => u64::from(count),
        };
        if let Some(job) = change.job {
            *listed.entry((job, change.status)).or_default() += count;
        }
    }
    let going = balancer.jobs();
    for &job in jobs {
        let status = balancer.job_status(job).unwrap();
        assert_eq!(status.waiting() + status.held() + status.settled(), status.total, "{status}");
        let mut rest = status.rest;
        for (which, count) in by_status(&status) {
            let tasks = listed.get(&(job, which)).copied().unwrap_or(0);
            let beyond = count.checked_sub(tasks).unwrap_or_else(|| panic!("{status}: {tasks} {}", which.name()));
            assert!(beyond == 0 || matches!(which, Status::Queued | Status::Unschedulable), "{status}");
            rest -= beyond;
        }
        assert_eq!(rest, 0, "{status}");
        assert_eq!(status.done, status.closed && status.settled() == status.total, "{status}");
        assert_eq!(going.contains(&status), !status.done, "{status}");
        let explanation = balancer.explain_job(job).unwrap();
        assert_eq!(explanation.status, status);
        assert_eq!(explanation.waiting.reasons.is_empty(), status.rest == 0, "{explanation}");
    }
}

#[test]
fn whatever_happens_the_counts_add_up_to_the_total() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut config = if seed % 2 == 0 { Config::default() } else { push_bound() };
        config.limits.requeue_interval = filch::Span::from_secs(1);
        config.limits.max_requeue_attempts = 2;
        let clock = ManualClock::default();
        let balancer: Balancer = Balancer::builder().config(config).clock(clock.clone()).build().unwrap();
        let log = logged(&balancer);
        let (mut jobs, mut open, mut held, mut names) = (Vec::new(), Vec::new(), Vec::<Assignment>::new(), Vec::new());
        let task = |rng: &mut Rng| {
            let task =
                Task::new().retries(rng.below(3) as u32).backoff(SECOND, SECOND).priority(1 + rng.below(5) as i32);
            match rng.below(8) {
                0 => task.key("k"),
                1 => task.requires("cuda"),
                2 => task.resource("memory", 4.0),
                3 => task.timeout(2 * SECOND),
                _ => task,
            }
        };
        for step in 0..300 {
            match rng.below(24) {
                0 => jobs.push(balancer.submit_array(task(&mut rng), rng.below(12) as u32).unwrap()),
                1 => {
                    let parts = [task(&mut rng), task(&mut rng).after([0]), task(&mut rng).after([1])];
                    jobs.push(balancer.submit_graph(parts).unwrap().id);
                }
                2 => {
                    let job = balancer.open_job(1.0).unwrap();
                    jobs.push(job);
                    open.push(job);
                }
                3 | 4 if !open.is_empty() => {
                    let job = open[rng.below(open.len())];
                    let added = balancer.submit(task(&mut rng).job(job));
                    assert_eq!(added.is_ok(), !balancer.job_status(job).unwrap().closed);
                }
                5 if !open.is_empty() => {
                    let _ = balancer.close_job(open.swap_remove(rng.below(open.len())));
                }
                6 => {
                    let name = format!("w{step}");
                    let worker = Worker::new(name.clone()).slots(1 + rng.below(3) as u32).resource("memory", 5.0);
                    let able = rng.below(2) == 0;
                    balancer.register_worker(if able { worker.capability("cuda") } else { worker }).unwrap();
                    names.push(name);
                }
                7 if names.len() > 1 => {
                    let name = names.swap_remove(rng.below(names.len()));
                    if rng.below(2) == 0 {
                        balancer.unregister_worker(name).unwrap();
                    } else {
                        balancer.unregister_and_requeue(name).unwrap();
                    }
                }
                8 if !names.is_empty() => {
                    balancer.worker_silent(names[rng.below(names.len())].as_str()).unwrap();
                }
                9..13 if !names.is_empty() => {
                    held.extend(balancer.next(names[rng.below(names.len())].as_str()).unwrap());
                }
                13..19 if !held.is_empty() => {
                    let assignment = held.swap_remove(rng.below(held.len()));
                    let _ = match rng.below(6) {
                        0 => {
                            let started = assignment.start();
                            held.push(assignment);
                            started
                        }
                        1 => assignment.fail("broken"),
                        2 => assignment.fail_permanently("broken"),
                        3 => assignment.give_back(),
                        _ => assignment.succeed(()),
                    };
                }
                19 if !jobs.is_empty() => {
                    let _ = balancer.cancel_element(jobs[rng.below(jobs.len())], rng.below(12) as u32);
                }
                20 if rng.below(4) == 0 && !jobs.is_empty() => {
                    let _ = balancer.cancel_job(jobs[rng.below(jobs.len())]);
                }
                21 => {
                    let tasks = balancer.tasks();
                    if !tasks.is_empty() {
                        balancer.cancel(tasks[rng.below(tasks.len())].id).unwrap();
                    }
                }
                _ => {
                    clock.advance(Duration::from_millis(rng.below(1500) as u64));
                    balancer.tick();
                }
            }
            verify(&balancer, &jobs, &log);
        }
        for &job in &jobs {
            let _ = balancer.cancel_job(job);
        }
        verify(&balancer, &jobs, &log);
        assert!(jobs.iter().all(|job| balancer.job_status(*job).unwrap().done));
        assert!(balancer.jobs().is_empty());
        balancer.check().unwrap();
    }
}

#[test]
fn an_array_whose_rest_nobody_can_run_says_so_while_it_waits_and_when_it_has_failed() {
    let mut config = Config::default();
    config.limits.requeue_interval = filch::Span::from_secs(1);
    config.limits.max_requeue_attempts = 1;
    let (balancer, clock) = still(config);
    balancer.register_worker(Worker::new("gpu").capability("cuda")).unwrap();
    balancer.register_worker(Worker::new("cpu")).unwrap();
    let job = balancer.submit_array(Task::new().requires("cuda"), 3).unwrap();
    take(&balancer, "gpu").succeed(()).unwrap();
    balancer.unregister_worker("gpu").unwrap();
    clock.advance(3 * SECOND);
    balancer.tick();
    let explanation = balancer.explain_job(job).unwrap();
    let status = &explanation.status;
    assert_eq!((status.completed, status.unschedulable, status.rest), (1, 2, 2), "{explanation}");
    assert_eq!(explanation.waiting.rest_status, Some("unschedulable"));
    assert_eq!(explanation.waiting.reasons, [Reason::NobodyCan { requeues: 0, most: 1 }]);
    let text = explanation.to_string();
    assert!(text.starts_with(&format!("{job}: 1 of 3 settled (1 completed, 2 unschedulable)\n2 elements")), "{text}");
    assert!(text.contains("can never run on:\n    cpu: it lacks `cuda`"), "{text}");
    for _ in 0..3 {
        clock.advance(2 * SECOND);
        balancer.tick();
    }
    let explanation = balancer.explain_job(job).unwrap();
    assert_eq!((explanation.status.failed, explanation.status.done), (2, true));
    assert_eq!(explanation.status.error.as_deref(), Some("cpu: it lacks `cuda`"));
    assert!(explanation.waiting.reasons.is_empty() && explanation.waiting.rest_status.is_none());
    assert!(explanation.to_string().ends_with("nobody could run what failed: cpu: it lacks `cuda`\n"));
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["status"]["id"], job.to_string());
    assert_eq!(json["status"]["failed"], 2);
}

#[test]
fn the_rest_of_an_array_is_explained_by_what_keeps_it() {
    let (balancer, clock) = still(Config::default());
    let job = balancer.submit_array(Task::new().resource("memory", 3.0).priority(2), 5).unwrap();
    assert_eq!(balancer.explain_job(job).unwrap().waiting.reasons, [Reason::NoWorkers]);
    balancer.register_worker(Worker::new("w").slots(4).resource("memory", 4.0)).unwrap();
    clock.advance(3 * SECOND);
    let says = |job: JobId, what: &str| {
        let text = balancer.explain_job(job).unwrap().to_string();
        assert!(text.contains(what), "`{what}` is not in\n{text}");
    };
    says(job, "5 elements never handed out are queued (waiting for 3.0 s)");
    says(job, "w: it has room but has not asked for a task");
    let held = take(&balancer, "w");
    says(job, "w: it has 1 memory free, the task needs 3");
    balancer.submit(Task::named("urgent").priority(5).resource("memory", 2.0)).unwrap();
    says(job, "1 task comes first (level 2)");
    held.succeed(()).unwrap();
    balancer.set_key_limit("k", 2).unwrap();
    let keyed = balancer.submit_array(Task::new().key("k"), 5).unwrap();
    says(keyed, "key `k`: 0 of 2 run with it, 2 come first");
    says(keyed, &format!("waiting by themselves: {keyed}[0], {keyed}[1]"));
    // Jobs without an array have no rest; their tasks are asked about one by one.
    let many = balancer.submit_many([Task::new()]).unwrap();
    let explanation = balancer.explain_job(many.id).unwrap();
    assert!(explanation.waiting.reasons.is_empty() && explanation.status.queued == 1);
    assert_eq!(explanation.to_string(), format!("{}: 0 of 1 settled (1 queued)\n", many.id));
}

#[test]
fn jobs_that_are_done_are_forgotten_by_the_same_bound_as_tasks() {
    let builder = Balancer::builder().clock(ManualClock::default()).settled_max(3);
    let balancer: Balancer = builder.build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let going = balancer.submit_array(Task::new(), 100).unwrap();
    let jobs: Vec<JobId> = (0..5).map(|_| balancer.submit_array(Task::new(), 0).unwrap()).collect();
    let known: Vec<bool> = jobs.iter().map(|job| balancer.job_status(*job).is_ok()).collect();
    assert_eq!(known, [false, false, true, true, true]);
    let unknown = Error::UnknownJob(jobs[0].to_string());
    assert_eq!(balancer.job_status(jobs[0]).unwrap_err(), unknown);
    assert_eq!(balancer.explain_job(jobs[0]).unwrap_err(), unknown);
    assert_eq!(balancer.wait_job(jobs[0], LONG).unwrap_err(), unknown);
    assert_eq!(block_on(balancer.wait_job_async(jobs[0])).unwrap_err(), unknown);
    // One that is not done is never forgotten, nor is what has become of its settled elements.
    while let Some(assignment) = balancer.next("w").unwrap() {
        assert_eq!(balancer.job_status(going).unwrap().assigned, 1);
        assignment.succeed(()).unwrap();
    }
    assert_eq!(balancer.job_status(going).unwrap().completed, 100);
    assert_eq!(balancer.jobs().len(), 0);
}

#[test]
fn the_end_of_a_job_is_waited_for_by_threads_and_futures() {
    let balancer: Balancer = Balancer::builder().build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let job = balancer.submit_array(Task::new(), 50).unwrap();
    balancer.submit(Task::named("another").priority(1)).unwrap();
    let status = balancer.wait_job(job, Duration::from_millis(2)).unwrap();
    assert_eq!((status.done, status.queued), (false, 50));
    let status = block_on(balancer.wait_job_async(job).timeout(Duration::from_millis(2))).unwrap();
    assert_eq!((status.done, status.queued), (false, 50));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|at| {
                let balancer = &balancer;
                scope.spawn(move || match at % 2 {
                    0 => balancer.wait_job(job, LONG).unwrap(),
                    _ => block_on(balancer.wait_job_async(job)).unwrap(),
                })
            })
            .collect();
        for _ in 0..50 {
            take(&balancer, "w").succeed(()).unwrap();
        }
        for waiter in waiters {
            let status = waiter.join().unwrap();
            assert_eq!((status.done, status.completed, status.total), (true, 50, 50));
        }
    });
    assert_eq!(balancer.metrics().total_queued, 1, "the other task is not waited for");
}

#[test]
fn whoever_waits_learns_how_a_job_ended_even_if_it_is_forgotten_at_once() {
    let builder = Balancer::builder().clock(ManualClock::default()).settled_max(0);
    let balancer: Balancer = builder.build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let job = balancer.submit_array(Task::new(), 2).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut waiting = Box::pin(balancer.wait_job_async(job).timeout(LONG));
    let mut dropped = Box::pin(balancer.wait_job_async(job).timeout(LONG));
    for future in [&mut waiting, &mut dropped] {
        assert!(future.as_mut().poll(&mut context).is_pending());
    }
    take(&balancer, "w").succeed(()).unwrap();
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    drop(dropped);
    take(&balancer, "w").succeed(()).unwrap();
    assert_eq!(balancer.job_status(job).unwrap_err(), Error::UnknownJob(job.to_string()));
    let Poll::Ready(Ok(status)) = waiting.as_mut().poll(&mut context) else { panic!("it is done") };
    assert_eq!((status.completed, status.done), (2, true));
}

#[test]
fn whoever_has_waited_for_a_job_finds_all_of_it_told() {
    let balancer = with_workers(&["w"]);
    let (entered, has_entered) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let (weak, may_leave, told) = (balancer.downgrade(), Mutex::new(may_leave), Arc::new(Mutex::new(false)));
    let inner = Arc::clone(&told);
    balancer.on_status(move |change| {
        if let (Status::Completed, Some(job)) = (change.status, change.job) {
            let balancer = weak.upgrade().unwrap();
            assert!(balancer.wait_job(job, LONG).unwrap().done, "inside, tasks alone count");
            assert!(block_on(balancer.wait_job_async(job)).unwrap().done);
            entered.send(()).unwrap();
            may_leave.lock().unwrap().recv().unwrap();
            *inner.lock().unwrap() = true;
        }
    });
    let job = balancer.submit_array(Task::new(), 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| take(&balancer, "w").succeed(()).unwrap());
        has_entered.recv().unwrap();
        // The job is done, but not everybody has been told.
        assert!(balancer.wait_job(job, Duration::ZERO).unwrap().done);
        let waiter = scope.spawn(|| {
            assert!(balancer.wait_job(job, LONG).unwrap().done);
            assert!(*told.lock().unwrap());
        });
        leave.send(()).unwrap();
        waiter.join().unwrap();
    });
}

#[test]
fn a_balancer_that_is_stopped_keeps_nobody_waiting_for_a_job() {
    let balancer = with_workers(&["w"]);
    let job = balancer.submit_array(Task::new(), 2).unwrap();
    let empty = balancer.submit_array(Task::new(), 0).unwrap();
    let mut waiting = Box::pin(balancer.wait_job_async(job));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    balancer.stop();
    assert_eq!(block_on(waiting).unwrap_err(), Error::Stopped);
    assert_eq!(balancer.wait_job(job, LONG).unwrap_err(), Error::Stopped);
    assert!(balancer.wait_job(empty, LONG).unwrap().done);
    assert_eq!(balancer.job_status(job).unwrap().queued, 2);
}
