//! Callbacks: every change, in order, whatever they do.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use filch::policy::{TaskView, Terms, WorkerView};
use std::time::Duration;

use filch::{Balancer, Error, JobId, Policy, Status, Subject, Task, TaskId, WeakBalancer, Worker};

use crate::waiting::block_on;
use crate::{LONG, take, with_workers};

type Log = Arc<Mutex<Vec<(String, Status)>>>;

fn logged(balancer: &Balancer) -> Log {
    let log = Log::default();
    let inner = Arc::clone(&log);
    balancer.on_status(move |change| inner.lock().unwrap().push((change.label(), change.status)));
    log
}

#[test]
fn every_change_is_told_in_order_with_results_and_errors() {
    let balancer: Balancer<(), u32> = Balancer::builder().build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let inner = Arc::clone(&log);
    balancer.on_status(move |change| inner.lock().unwrap().push(change.clone()));
    let good = balancer.submit(Task::named("good")).unwrap();
    let assignment = balancer.next("w").unwrap().unwrap();
    assignment.start().unwrap();
    assignment.succeed(5).unwrap();
    balancer.submit(Task::named("bad")).unwrap();
    balancer.next("w").unwrap().unwrap().fail("oh no").unwrap();
    let log = log.lock().unwrap();
    let of = |name: &str| log.iter().filter(|one| one.name.as_deref() == Some(name)).collect::<Vec<_>>();
    let statuses: Vec<Status> = of("good").iter().map(|one| one.status).collect();
    assert_eq!(statuses, [Status::Queued, Status::Assigned, Status::Running, Status::Completed]);
    let end = of("good")[3].clone();
    assert_eq!((end.task(), end.result.as_deref(), end.worker.as_deref()), (Some(good), Some(&5), Some("w")));
    let end = *of("bad").last().unwrap();
    assert_eq!((end.status, end.error.as_deref()), (Status::Failed, Some("oh no")));
}

#[test]
fn a_panicking_callback_harms_nobody() {
    let balancer = with_workers(&["w"]);
    let before = logged(&balancer);
    let panics = balancer.on_status(|_| panic!("a callback panics (as this test wants)"));
    let after = logged(&balancer);
    balancer.submit(Task::named("t")).unwrap();
    take(&balancer, "w").succeed(()).unwrap();
    let expected = [Status::Queued, Status::Assigned, Status::Completed].map(|status| ("t".to_owned(), status));
    assert_eq!(*before.lock().unwrap(), expected);
    assert_eq!(*after.lock().unwrap(), expected);
    assert!(balancer.remove_callback(panics));
    assert!(!balancer.remove_callback(panics));
    balancer.check().unwrap();
}

#[test]
fn a_callback_may_use_the_balancer_and_its_changes_come_after() {
    let balancer = with_workers(&["w"]);
    let log = logged(&balancer);
    let weak = balancer.downgrade();
    balancer.on_status(move |change| {
        let balancer = weak.upgrade().unwrap();
        if change.status == Status::Completed && change.name.as_deref() == Some("first") {
            balancer.submit(Task::named("second")).unwrap();
            assert_eq!(balancer.metrics().total_queued, 1);
            take(&balancer, "w").succeed(()).unwrap();
            balancer.remove_callback(balancer.on_status(|_| {}));
        }
    });
    balancer.submit(Task::named("first")).unwrap();
    take(&balancer, "w").succeed(()).unwrap();
    let names: Vec<String> =
        log.lock().unwrap().iter().map(|(name, status)| format!("{name} {}", status.name())).collect();
    let lives = ["queued", "assigned", "completed"];
    let expected: Vec<String> =
        ["first", "second"].iter().flat_map(|name| lives.map(|status| format!("{name} {status}"))).collect();
    assert_eq!(names, expected);
}

#[test]
fn elements_that_were_never_handed_out_are_told_together() {
    let balancer = with_workers(&["w"]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let inner = Arc::clone(&told);
    balancer.on_status(move |change| inner.lock().unwrap().push((change.subject, change.status, change.label())));
    let job = balancer.submit_array(Task::new(), 10).unwrap();
    balancer.cancel_job(job).unwrap();
    let elements = Subject::Elements { job, count: 10 };
    assert_eq!(*told.lock().unwrap(), [(elements, Status::Cancelled, format!("10 elements of {job}"))]);
}

#[test]
fn changes_of_a_task_keep_their_order_with_many_threads() {
    let balancer: Balancer = Balancer::builder().build().unwrap();
    let log: Arc<Mutex<Vec<(TaskId, Status)>>> = Arc::default();
    let inner = Arc::clone(&log);
    let at_once = Arc::new(AtomicU32::new(0));
    balancer.on_status(move |change| {
        assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
        if let Some(task) = change.task() {
            inner.lock().unwrap().push((task, change.status));
        }
        at_once.fetch_sub(1, Ordering::SeqCst);
    });
    std::thread::scope(|scope| {
        for index in 0..4 {
            let balancer = balancer.clone();
            scope.spawn(move || {
                let worker = balancer.register_worker(Worker::new(format!("w{index}"))).unwrap();
                for _ in 0..500 {
                    balancer.submit(Task::new()).unwrap();
                    let assignment = balancer.next_blocking(worker).unwrap();
                    assignment.start().unwrap();
                    assignment.succeed(()).unwrap();
                }
            });
        }
    });
    // The last to call back may still be at it on another thread when its own operation has returned, but not after
    // all threads have ended.
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 4 * 500 * 4);
    let mut last = std::collections::BTreeMap::new();
    for &(task, status) in log.iter() {
        let before = last.insert(task, status);
        let expected = match status {
            Status::Queued => None,
            Status::Assigned => Some(Status::Queued),
            Status::Running => Some(Status::Assigned),
            _ => Some(Status::Running),
        };
        assert_eq!(before, expected, "{task}");
    }
}

#[test]
fn payloads_and_results_may_use_the_balancer_when_dropped() {
    struct Loud(Option<Balancer<Loud, Loud>>);
    impl Drop for Loud {
        fn drop(&mut self) {
            if let Some(balancer) = &self.0 {
                assert!(balancer.metrics().submitted > 0);
            }
        }
    }
    let mut config = filch::Config::default();
    config.limits.settled_kept = 0;
    let balancer: Balancer<Loud, Loud> = Balancer::builder().config(config).build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    for _ in 0..3 {
        balancer.submit(Task::with_payload(Loud(Some(balancer.clone())))).unwrap();
        balancer.next("w").unwrap().unwrap().succeed(Loud(Some(balancer.clone()))).unwrap();
    }
    let array = balancer.submit_array(Task::with_payload(Loud(Some(balancer.clone()))), 3).unwrap();
    balancer.cancel_job(array).unwrap();
    let refused = Task::with_payload(Loud(Some(balancer.clone()))).after(["nothing"]);
    assert!(balancer.submit(refused).is_err());
    let job = balancer.open_job(1.0).unwrap();
    balancer.close_job(job).unwrap();
    let closed = Task::with_payload(Loud(Some(balancer.clone()))).job(job);
    assert!(balancer.submit(closed).is_err());
    // Make the last result go, which holds the balancer.
    balancer.submit(Task::with_payload(Loud(None))).unwrap();
    balancer.next("w").unwrap().unwrap().succeed(Loud(None)).unwrap();
}

/// Panics when dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a panic panics (as this test wants)");
    }
}

#[test]
fn a_callback_whose_panic_panics_when_dropped_harms_nobody() {
    let balancer = with_workers(&["w"]);
    balancer.on_status(|_| std::panic::panic_any(Bomb));
    let log = logged(&balancer);
    balancer.submit(Task::named("t")).unwrap();
    take(&balancer, "w").succeed(()).unwrap();
    assert_eq!(log.lock().unwrap().len(), 3);
}

/// Asks the balancer something when dropped, which hangs if that happens under its lock.
struct Asks(WeakBalancer<(), Asks>, Arc<AtomicU32>);

impl Drop for Asks {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
        if let Some(balancer) = self.0.upgrade() {
            let _ = balancer.metrics();
        }
    }
}

impl Policy for Asks {
    fn name(&self) -> &str {
        "asks"
    }
    fn score(&self, _: &TaskView<'_>, _: &WorkerView<'_>, _: &mut Terms) -> Option<f64> {
        Some(1.0)
    }
}

#[test]
fn refused_and_replaced_results_and_policies_may_use_the_balancer_when_dropped() {
    let clock = filch::ManualClock::default();
    let balancer: Balancer<(), Asks> = Balancer::builder().clock(clock.clone()).build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let dropped = Arc::new(AtomicU32::new(0));
    let asks = || Asks(balancer.downgrade(), Arc::clone(&dropped));
    let count = || dropped.load(Ordering::SeqCst);
    assert!(matches!(balancer.complete_task("nobody", asks()), Err(Error::UnknownTask(_))));
    assert!(balancer.update_status("nobody", "failed", Some(asks())).is_err());
    balancer.submit(Task::named("t").retries(3)).unwrap();
    assert!(matches!(balancer.complete_task("t", asks()), Err(Error::NotAssigned { .. })));
    assert_eq!(count(), 3);
    balancer.next("w").unwrap().unwrap().detach();
    balancer.update_status("t", "failed", Some(asks())).unwrap();
    assert_eq!(count(), 3, "the result of the failed attempt is kept");
    clock.advance(Duration::from_secs(3600));
    balancer.tick();
    balancer.next("w").unwrap().unwrap().succeed(asks()).unwrap();
    assert_eq!(count(), 4, "a later result replaces an earlier one");
    balancer.set_policy(None, Box::new(asks()) as Box<dyn Policy>).unwrap();
    balancer.set_policy(None, Box::new(asks()) as Box<dyn Policy>).unwrap();
    balancer.set_policy(None, "round_robin").unwrap();
    assert_eq!(count(), 6);
    balancer.check().unwrap();
}

#[test]
fn a_removed_callback_is_not_called_again_and_a_new_one_hears_only_what_is_new() {
    let balancer = with_workers(&["w"]);
    let (weak, calls) = (balancer.downgrade(), Arc::new(AtomicU32::new(0)));
    let heard: Log = Log::default();
    let (count, inner, own) = (Arc::clone(&calls), Arc::clone(&heard), Arc::new(Mutex::new(None)));
    let id = Arc::clone(&own);
    *own.lock().unwrap() = Some(balancer.on_status(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        let balancer = weak.upgrade().unwrap();
        // The nine others wait to be told when these two come.
        assert!(balancer.remove_callback(id.lock().unwrap().unwrap()));
        balancer.submit(Task::named("before")).unwrap();
        let inner = Arc::clone(&inner);
        balancer.on_status(move |change| inner.lock().unwrap().push((change.label(), change.status)));
        balancer.submit(Task::named("after")).unwrap();
    }));
    let other = logged(&balancer);
    balancer.submit_many((0..10).map(|_| Task::new())).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(other.lock().unwrap().len(), 12);
    assert_eq!(*heard.lock().unwrap(), [("after".to_owned(), Status::Queued)]);
}

#[test]
fn wait_idle_waits_for_callbacks_but_not_inside_of_one() {
    let balancer = with_workers(&["w"]);
    let (told, weak) = (Arc::new(AtomicBool::new(false)), balancer.downgrade());
    let (entered, has_entered) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let (inner, may_leave) = (Arc::clone(&told), Mutex::new(may_leave));
    balancer.on_status(move |change| {
        if change.status == Status::Completed {
            assert!(weak.upgrade().unwrap().wait_idle(LONG), "inside, tasks alone count");
            entered.send(()).unwrap();
            may_leave.lock().unwrap().recv().unwrap();
            inner.store(true, Ordering::SeqCst);
        }
    });
    balancer.submit(Task::new()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| take(&balancer, "w").succeed(()).unwrap());
        has_entered.recv().unwrap();
        assert!(!balancer.wait_idle(Duration::from_millis(1)), "settled, but not told");
        let waiter = scope.spawn(|| balancer.wait_idle(LONG) && told.load(Ordering::SeqCst));
        leave.send(()).unwrap();
        assert!(waiter.join().unwrap());
    });
}

/// A timeout is told on the timer thread. `wait` is called there and must live to see the retry, which only a timer brings. It
/// says whether it did, or nothing if the machine was too slow to show anything.
fn wait_on_the_timer_thread<W>(others_finish: bool, wait: W)
where
    W: Fn(&Balancer, JobId) -> Option<bool> + Send + Sync + 'static,
{
    let (wait, mut pause) = (Arc::new(wait), Duration::from_millis(20));
    while !waits_on_the_timer_thread(pause, others_finish, Arc::clone(&wait)) {
        pause *= 2;
        assert!(pause < LONG, "no pause is long enough for this machine");
    }
}

/// One try with such a timeout and pause before the retry. False if the machine was too slow to show anything: a thread
/// stood still for so long that the timeout was fired by somebody else, or that the retry ran out of time as well.
fn waits_on_the_timer_thread<W>(pause: Duration, others_finish: bool, wait: Arc<W>) -> bool
where
    W: Fn(&Balancer, JobId) -> Option<bool> + Send + Sync + 'static,
{
    let balancer: Balancer = Balancer::builder().build().unwrap();
    balancer.register_worker(Worker::new("w").slots(2)).unwrap();
    let (answer, answered) = mpsc::channel();
    let weak = balancer.downgrade();
    balancer.on_status(move |change| {
        if change.status == Status::Retrying {
            let on_timer_thread = std::thread::current().name() == Some("filch-timer");
            let waited = on_timer_thread.then(|| wait(&weak.upgrade().unwrap(), change.job.unwrap()));
            answer.send(waited.flatten()).unwrap();
        }
    });
    let task = Task::new().timeout(pause).retries(1).backoff(pause, pause);
    balancer.submit_many([task]).unwrap();
    let first = take(&balancer, "w");
    let mut in_time = true;
    if others_finish {
        in_time = balancer.next_timeout("w", LONG).unwrap().expect("the retry").succeed(()).is_ok();
    }
    let waited = answered.recv_timeout(LONG).unwrap();
    if !in_time || waited.is_none() || balancer.metrics().failed > 0 {
        return false;
    }
    assert_eq!(waited, Some(true), "it waited for itself");
    assert!(first.is_revoked() && balancer.is_running());
    assert_eq!(balancer.metrics().completed, 1);
    // The thread that took over fires timers as the first one did.
    drop(first);
    let late = balancer.submit(Task::new().timeout(pause)).unwrap();
    let _held = take(&balancer, "w");
    assert!(balancer.wait_idle(LONG));
    assert_eq!(crate::status(&balancer, late), Status::Failed);
    balancer.check().unwrap();
    true
}

/// More than the pauses by far, less than what ends a test that hangs.
const ENOUGH: Duration = Duration::from_secs(10);

#[test]
fn a_callback_on_the_timer_thread_may_wait_for_everything() {
    wait_on_the_timer_thread(true, |balancer, _| Some(balancer.wait_idle(ENOUGH)));
}

#[test]
fn a_callback_on_the_timer_thread_may_wait_for_a_job() {
    wait_on_the_timer_thread(true, |balancer, job| Some(balancer.wait_job(job, ENOUGH).unwrap().done));
    wait_on_the_timer_thread(true, |balancer, job| {
        Some(block_on(balancer.wait_job_async(job).timeout(ENOUGH)).unwrap().done)
    });
}

#[test]
fn a_callback_on_the_timer_thread_may_wait_for_a_task() {
    wait_on_the_timer_thread(false, |balancer, _| {
        let retry = balancer.next_timeout("w", ENOUGH).unwrap();
        Some(retry.is_some_and(|retry| retry.succeed(()).is_ok()))
    });
    wait_on_the_timer_thread(false, |balancer, _| {
        // Its time is ended by the timer thread too, unless the retry comes before that.
        if block_on(balancer.next_async_timeout("w", Duration::from_millis(1))).unwrap().is_some() {
            return None;
        }
        let retry = block_on(balancer.next_async("w")).unwrap();
        Some(retry.is_some_and(|retry| retry.succeed(()).is_ok()))
    });
}
