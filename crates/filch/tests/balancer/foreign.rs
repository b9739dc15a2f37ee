//! Code of somebody else that the balancer runs to decide or to know the time: what it must not do, and that nothing comes
//! of it when it does.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use filch::policy::{TaskView, Terms, WorkerView};
use filch::tracker::{Estimate, Estimator};
use filch::{Balancer, Clock, Config, KindId, Policy, Span, Status, Task, Time, WeakBalancer, Worker};

use crate::{LONG, push_bound, status, take};

/// A clock that panics when it is asked for the time once more so many times; 0 for never.
#[derive(Clone)]
struct Fragile {
    calls_left: Arc<AtomicU64>,
    start: Instant,
    runs_by_itself: bool,
}

impl Fragile {
    fn new(runs_by_itself: bool) -> Fragile {
        Fragile { calls_left: Arc::default(), start: Instant::now(), runs_by_itself }
    }
}

impl Clock for Fragile {
    fn now(&self) -> Time {
        let left = self.calls_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left != Ok(1), "the clock is broken");
        Time(self.start.elapsed().as_nanos() as u64)
    }

    fn runs_by_itself(&self) -> bool {
        self.runs_by_itself
    }
}

#[test]
fn a_clock_that_panics_at_any_call_loses_no_task() {
    for call in 1..=4 {
        let clock = Fragile::new(false);
        let balancer: Balancer = Balancer::builder().config(push_bound()).clock(clock.clone()).build().unwrap();
        balancer.register_worker(Worker::new("a")).unwrap();
        balancer.submit_many((0..20).map(|_| Task::new())).unwrap();
        balancer.register_worker(Worker::new("b")).unwrap();
        clock.calls_left.store(call, Ordering::SeqCst);
        let assignment = balancer.next("b").unwrap().expect("stolen from a");
        assert!(balancer.steal_report().total.successes > 0);
        assert_eq!(balancer.workers().iter().map(|worker| worker.running).sum::<u32>(), 1);
        assignment.succeed(()).unwrap();
        clock.calls_left.store(0, Ordering::SeqCst);
        for worker in ["a", "b"] {
            while let Some(assignment) = balancer.next(worker).unwrap() {
                assignment.succeed(()).unwrap();
            }
        }
        assert_eq!((balancer.metrics().completed, balancer.tasks().len()), (20, 0), "call {call}");
        balancer.check().unwrap();
    }
}

#[test]
fn a_clock_that_panics_does_not_end_the_background_thread() {
    let clock = Fragile::new(true);
    let balancer: Balancer = Balancer::builder().clock(clock.clone()).build().unwrap();
    balancer.register_worker(Worker::new("w").slots(100)).unwrap();
    for call in 1..=10 {
        let task = balancer.submit(Task::new().timeout(Duration::from_millis(2))).unwrap();
        let assignment = take(&balancer, "w");
        clock.calls_left.store(call, Ordering::SeqCst);
        let waited = Instant::now();
        while !assignment.is_revoked() {
            assert!(waited.elapsed() < LONG, "the timeout of the task never came");
            std::thread::yield_now();
        }
        assert_eq!(status(&balancer, task), Status::Failed);
        assert!(balancer.is_running());
    }
}

/// A way to the balancer that a policy or the like has, what it does with it, and what came of that.
#[derive(Clone)]
struct Misuse {
    balancer: Arc<OnceLock<WeakBalancer>>,
    how: fn(&Balancer),
    panics: Arc<Mutex<Vec<String>>>,
}

impl Misuse {
    fn new(how: fn(&Balancer)) -> Misuse {
        Misuse { balancer: Arc::default(), how, panics: Arc::default() }
    }

    fn happen(&self) {
        let Some(balancer) = self.balancer.get().and_then(WeakBalancer::upgrade) else { return };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.how)(&balancer))) {
            self.panics.lock().unwrap().push(text(panic.as_ref()));
            resume_unwind(panic);
        }
    }

    fn messages(&self) -> Vec<String> {
        self.panics.lock().unwrap().clone()
    }
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text").to_owned()
}

const WAYS: [fn(&Balancer); 7] = [
    |balancer| drop(balancer.metrics()),
    |balancer| drop(balancer.tasks()),
    |balancer| drop(balancer.submit(Task::new())),
    |balancer| drop(balancer.next("w")),
    |balancer| drop(balancer.next_timeout("w", LONG)),
    |balancer| {
        balancer.wait_idle(LONG);
    },
    |balancer| balancer.stop(),
];

/// Runs a test that hangs if it fails.
fn within_reason(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if wait.recv_timeout(LONG) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("it hangs");
    }
    if let Err(panic) = thread.join() {
        resume_unwind(panic);
    }
}

impl Policy for Misuse {
    fn name(&self) -> &str {
        "misuse"
    }

    fn score(&self, _: &TaskView<'_>, _: &WorkerView<'_>, _: &mut Terms) -> Option<f64> {
        self.happen();
        Some(1.0)
    }
}

#[test]
fn a_policy_that_calls_its_balancer_is_told_and_refuses_the_worker() {
    for how in WAYS {
        within_reason(move || {
            let misuse = Misuse::new(how);
            let policy: Box<dyn Policy> = Box::new(misuse.clone());
            let balancer: Balancer = Balancer::builder().config(push_bound()).policy(policy).build().unwrap();
            let _ = misuse.balancer.set(balancer.downgrade());
            balancer.register_worker(Worker::new("w")).unwrap();
            let task = balancer.submit(Task::new()).unwrap();
            let messages = misuse.messages();
            assert!(!messages.is_empty(), "the policy was never asked");
            for message in messages {
                assert!(message.contains("custom policy or estimator called the balancer"), "{message}");
            }
            balancer.check().unwrap();
            balancer.set_policy(None, "fifo").unwrap();
            assert_eq!(balancer.metrics().submitted, 1);
            take(&balancer, "w").succeed(()).unwrap();
            assert_eq!(status(&balancer, task), Status::Completed);
        });
    }
}

impl Estimator for Misuse {
    fn estimate(&self, _: KindId, _: usize, _: Option<Span>) -> Estimate {
        self.happen();
        panic!("no idea");
    }
    fn anywhere(&self, _: KindId, _: Option<Span>) -> Span {
        self.happen();
        panic!("no idea");
    }
    fn knows(&self, _: KindId) -> bool {
        self.happen();
        panic!("no idea");
    }
    fn record(&mut self, _: KindId, _: usize, _: Span, _: bool) {
        self.happen();
        panic!("no idea");
    }
    fn load_ahead(&self, _: usize) {
        self.happen();
        panic!("no idea");
    }
    fn forget(&mut self, _: usize) {
        self.happen();
        panic!("no idea");
    }
}

#[test]
fn an_estimator_that_panics_or_calls_its_balancer_has_learned_nothing() {
    for how in WAYS {
        within_reason(move || {
            let misuse = Misuse::new(how);
            let builder = Balancer::builder().config(push_bound()).estimator(Box::new(misuse.clone()));
            let balancer: Balancer = builder.build().unwrap();
            let _ = misuse.balancer.set(balancer.downgrade());
            balancer.register_worker(Worker::new("w")).unwrap();
            let task = balancer.submit(Task::new().estimate(Duration::from_secs(7))).unwrap();
            assert!((balancer.workers()[0].backlog_s - 7.0).abs() < 1e-9, "{}", balancer.workers()[0].backlog_s);
            take(&balancer, "w").succeed(()).unwrap();
            assert_eq!(status(&balancer, task), Status::Completed);
            balancer.unregister_worker("w").unwrap();
            let messages = misuse.messages();
            assert!(!messages.is_empty(), "the estimator was never asked");
            for message in messages {
                assert!(message.contains("custom policy or estimator called the balancer"), "{message}");
            }
            balancer.check().unwrap();
        });
    }
}

impl Clock for Misuse {
    fn now(&self) -> Time {
        self.happen();
        Time(1)
    }
}

#[test]
fn a_clock_that_calls_its_balancer_is_told_and_its_last_time_is_taken() {
    // The first two need no time, so there is nothing to tell.
    for (at, how) in WAYS.into_iter().enumerate() {
        within_reason(move || {
            let misuse = Misuse::new(how);
            let balancer: Balancer =
                Balancer::builder().config(Config::default()).clock(misuse.clone()).build().unwrap();
            balancer.register_worker(Worker::new("w")).unwrap();
            let _ = misuse.balancer.set(balancer.downgrade());
            let task = balancer.submit(Task::new()).unwrap();
            take(&balancer, "w").succeed(()).unwrap();
            assert_eq!((status(&balancer, task), balancer.now()), (Status::Completed, Time(1)));
            let messages = misuse.messages();
            assert_eq!(messages.is_empty(), at < 2, "{messages:?}");
            for message in messages {
                assert!(message.contains("custom clock called the balancer"), "{message}");
            }
            balancer.check().unwrap();
        });
    }
}
