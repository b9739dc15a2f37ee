//! Waiting for tasks: blocking and async, with and without timeouts; nobody loses a task by going away.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use filch::{Balancer, Error, LoadReport, Task, Worker, WorkerUpdate};

use crate::{LONG, with_workers};

/// Wakes a thread, as the simplest runtime does.
struct ThreadWaker(std::thread::Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits until the balancer has seen so many events, however long that takes.
fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "it never happened");
        std::thread::yield_now();
    }
}

fn real(workers: &[&str]) -> Balancer {
    let balancer: Balancer = Balancer::builder().build().unwrap();
    for id in workers {
        balancer.register_worker(Worker::new(*id).slots(4)).unwrap();
    }
    balancer
}

#[test]
fn a_blocked_worker_gets_a_task_submitted_later() {
    let balancer = real(&["w"]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| balancer.next_blocking("w").unwrap().succeed(()));
        let before = balancer.metrics().events;
        until(|| balancer.metrics().events > before || waiter.is_finished());
        balancer.submit(Task::new()).unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(balancer.metrics().completed, 1);
}

#[test]
fn a_timeout_ends_the_waiting_and_withdraws_the_wish() {
    let balancer = real(&["w"]);
    assert!(balancer.next_timeout("w", Duration::from_millis(2)).unwrap().is_none());
    assert!(balancer.next_timeout("w", Duration::ZERO).unwrap().is_none());
    let task = balancer.submit(Task::new()).unwrap();
    assert_eq!(balancer.status(task).unwrap().status, filch::Status::Queued, "nobody waits for it");
    assert_eq!(balancer.next_timeout("w", Duration::MAX).unwrap().unwrap().detach().task, task);
}

#[test]
fn those_who_wait_are_served_in_turn() {
    let balancer = with_workers(&["w"]);
    balancer.update_worker("w", WorkerUpdate::new().slots(4)).unwrap();
    let mut first = balancer.next_async("w");
    let mut second = balancer.next_async("w");
    assert!(poll_once(&mut first).is_pending());
    assert!(poll_once(&mut second).is_pending());
    assert!(balancer.next("w").unwrap().is_none());
    let one = balancer.submit(Task::new()).unwrap();
    assert!(poll_once(&mut second).is_pending());
    let Poll::Ready(Ok(Some(assignment))) = poll_once(&mut first) else { panic!("it was first") };
    assert_eq!(assignment.id(), one);
    let two = balancer.submit(Task::new()).unwrap();
    assert!(balancer.next("w").unwrap().is_none(), "it belongs to the one who waits");
    let Poll::Ready(Ok(Some(other))) = poll_once(&mut second) else { panic!("it was next") };
    assert_eq!(other.id(), two);
    assignment.succeed(()).unwrap();
    other.succeed(()).unwrap();
    balancer.check().unwrap();
}

#[test]
fn a_dropped_future_withdraws_its_wish_or_gives_its_task_back() {
    let balancer = with_workers(&["w"]);
    let mut gone = balancer.next_async("w");
    assert!(poll_once(&mut gone).is_pending());
    drop(gone);
    let task = balancer.submit(Task::new()).unwrap();
    assert_eq!(balancer.status(task).unwrap().status, filch::Status::Queued);
    drop(balancer.next("w").unwrap().unwrap());

    balancer.cancel(task).unwrap();
    let mut late = balancer.next_async("w");
    assert!(poll_once(&mut late).is_pending());
    let task = balancer.submit(Task::new()).unwrap();
    assert_eq!(balancer.status(task).unwrap().status, filch::Status::Assigned, "it is on its way");
    drop(late);
    assert_eq!(balancer.status(task).unwrap().status, filch::Status::Queued);
    let assignment = balancer.next("w").unwrap().unwrap();
    assert_eq!((assignment.id(), assignment.attempt()), (task, 2));
    drop(balancer.next_async("w"));
    assignment.succeed(()).unwrap();
    balancer.check().unwrap();
}

#[test]
fn a_task_of_a_dropped_future_goes_to_the_next_in_line() {
    let balancer = real(&["w"]);
    let mut first = balancer.next_async("w");
    assert!(poll_once(&mut first).is_pending());
    let mut second = balancer.next_async("w");
    assert!(poll_once(&mut second).is_pending());
    let task = balancer.submit(Task::new()).unwrap();
    drop(first);
    let assignment = block_on(second).unwrap().unwrap();
    assert_eq!(assignment.id(), task);
    assignment.succeed(()).unwrap();
}

#[test]
fn futures_are_woken_time_out_and_fail() {
    let balancer = real(&["w"]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| block_on(balancer.next_async("w")).unwrap().unwrap().succeed(()));
        balancer.submit(Task::new()).unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert!(block_on(balancer.next_async_timeout("w", Duration::from_millis(2))).unwrap().is_none());
    let task = balancer.submit(Task::new()).unwrap();
    let assignment = block_on(balancer.next_async_timeout("w", LONG)).unwrap().unwrap();
    assert_eq!(assignment.id(), task);
    assignment.succeed(()).unwrap();
    let nobody = block_on(balancer.next_async("nobody")).unwrap_err();
    assert_eq!(nobody, Error::UnknownWorker("nobody".to_owned()));
}

#[test]
fn an_async_timeout_works_with_a_clock_that_stands_still() {
    let balancer = with_workers(&["w"]);
    assert!(block_on(balancer.next_async_timeout("w", Duration::from_millis(1))).unwrap().is_none());
    let mut pending = balancer.next_async_timeout("w", LONG);
    assert!(poll_once(&mut pending).is_pending());
    balancer.submit(Task::new()).unwrap();
    assert!(matches!(poll_once(&mut pending), Poll::Ready(Ok(Some(_)))));
}

#[test]
fn stopping_and_unregistering_tell_those_who_wait() {
    let balancer = real(&["w", "v"]);
    let mut stays = balancer.next_async("v");
    assert!(poll_once(&mut stays).is_pending());
    let mut future = balancer.next_async("w");
    assert!(poll_once(&mut future).is_pending());
    balancer.unregister_worker("w").unwrap();
    assert!(matches!(poll_once(&mut future), Poll::Ready(Err(Error::UnknownWorker(name))) if name == "w"));
    assert!(poll_once(&mut stays).is_pending());
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| balancer.next_blocking("v"));
        balancer.stop();
        assert!(matches!(blocked.join().unwrap(), Err(Error::Stopped)));
    });
    assert!(matches!(poll_once(&mut stays), Poll::Ready(Err(Error::Stopped))));
    balancer.start();
    let task = balancer.submit(Task::new()).unwrap();
    assert_eq!(balancer.status(task).unwrap().status, filch::Status::Queued, "the old wishes are gone");
    balancer.check().unwrap();
}

#[test]
fn a_wish_outlives_the_silence_of_its_worker() {
    let balancer = real(&["w"]);
    let mut future = balancer.next_async("w");
    assert!(poll_once(&mut future).is_pending());
    balancer.worker_silent("w").unwrap();
    balancer.submit(Task::new()).unwrap();
    assert!(poll_once(&mut future).is_pending());
    balancer.report_load("w", LoadReport::default()).unwrap();
    let Poll::Ready(Ok(Some(assignment))) = poll_once(&mut future) else { panic!("it is heard of again") };
    assignment.succeed(()).unwrap();
    balancer.check().unwrap();
}

#[test]
fn wait_idle_waits_for_the_last_task_and_no_longer() {
    let balancer = real(&["w"]);
    assert!(balancer.wait_idle(Duration::ZERO));
    balancer.submit(Task::new()).unwrap();
    assert!(!balancer.wait_idle(Duration::from_millis(1)));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| balancer.wait_idle(LONG));
        balancer.next("w").unwrap().unwrap().succeed(()).unwrap();
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn dropping_the_last_handle_ends_the_thread_and_drops_what_is_inside() {
    let payload = Arc::new(());
    let balancer: Balancer<Arc<()>> = Balancer::builder().build().unwrap();
    let weak = balancer.downgrade();
    balancer.submit(Task::with_payload(Arc::clone(&payload))).unwrap();
    assert!(balancer.is_running());
    let clone = balancer.clone();
    drop(balancer);
    assert!(clone.is_running());
    drop(clone);
    until(|| weak.upgrade().is_none());
    until(|| Arc::strong_count(&payload) == 1);
}

/// Timeouts and dropped futures race with submissions; every task must end up with somebody who finishes it.
#[test]
fn no_task_is_lost_in_the_race_between_giving_up_and_getting_one() {
    const TASKS: u64 = 20_000;
    let balancer = real(&["a", "b"]);
    let (done, finished) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (index, worker) in ["a", "a", "b", "b"].into_iter().enumerate() {
            let (balancer, done, finished) = (&balancer, &done, &finished);
            scope.spawn(move || {
                let mut round = index as u64;
                while !finished.load(Ordering::SeqCst) {
                    round += 1;
                    let pause = Duration::from_micros(round % 40);
                    let got = match round % 3 {
                        0 => balancer.next_timeout(worker, pause).unwrap(),
                        1 => block_on(balancer.next_async_timeout(worker, pause)).unwrap(),
                        _ => {
                            let mut future = balancer.next_async(worker);
                            let polled = poll_once(&mut future);
                            std::thread::yield_now();
                            match polled {
                                Poll::Ready(got) => got.unwrap(),
                                Poll::Pending => None,
                            }
                        }
                    };
                    if let Some(assignment) = got {
                        assignment.succeed(()).unwrap();
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        for _ in 0..TASKS {
            balancer.submit(Task::new()).unwrap();
        }
        assert!(balancer.wait_idle(LONG));
        finished.store(true, Ordering::SeqCst);
    });
    assert_eq!(done.load(Ordering::SeqCst), TASKS);
    assert_eq!(balancer.metrics().completed, TASKS);
    balancer.check().unwrap();
}

/// A waker that panics, as a broken runtime's does.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics (as this test wants)");
    }
}

#[test]
fn a_waker_that_panics_harms_neither_the_submitter_nor_later_callbacks() {
    let balancer = with_workers(&["w", "v"]);
    let told = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&told);
    balancer.on_status(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let waker = Waker::from(Arc::new(Broken));
    let mut first = balancer.next_async("w");
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
    balancer.submit(Task::new()).unwrap();
    assert!(told.load(Ordering::SeqCst) >= 2, "queued and assigned were told all the same");
    let before = told.load(Ordering::SeqCst);
    balancer.submit(Task::new()).unwrap();
    assert!(told.load(Ordering::SeqCst) > before, "callbacks go on");
    assert!(matches!(poll_once(&mut first), Poll::Ready(Ok(Some(_)))), "the task is there for whoever looks");
    balancer.check().unwrap();
}

#[test]
fn a_result_that_panics_when_dropped_does_not_silence_callbacks() {
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!self.0, "a result panics (as this test wants)");
        }
    }
    let mut config = filch::Config::default();
    config.limits.settled_kept = 0;
    let builder = Balancer::builder().config(config).clock(filch::ManualClock::default());
    let balancer: Balancer<(), Bomb> = builder.build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let (told, weak) = (Arc::new(AtomicU64::new(0)), balancer.downgrade());
    let count = Arc::clone(&told);
    balancer.on_status(move |change| {
        count.fetch_add(1, Ordering::SeqCst);
        // Another takes the place of the settled task, so that the callback holds the result last.
        if change.result.is_some() {
            weak.upgrade().unwrap().submit(Task::new()).unwrap();
        }
    });
    balancer.submit(Task::new()).unwrap();
    balancer.next("w").unwrap().unwrap().succeed(Bomb(true)).unwrap();
    let before = told.load(Ordering::SeqCst);
    balancer.submit(Task::new()).unwrap();
    assert!(told.load(Ordering::SeqCst) > before, "callbacks go on");
}

#[test]
fn a_balancer_stopped_before_its_first_use_starts_no_thread() {
    let balancer: Balancer = Balancer::builder().build().unwrap();
    balancer.stop();
    assert_eq!(balancer.submit(Task::new()).unwrap_err(), Error::Stopped);
    assert_eq!(balancer.register_worker(Worker::new("w")).unwrap_err(), Error::Stopped);
    assert!(!balancer.is_running());
    balancer.start();
    assert!(balancer.is_running());
    balancer.register_worker(Worker::new("w")).unwrap();
    balancer.stop();
    assert!(!balancer.is_running());
}

#[test]
fn a_payload_that_panics_when_dropped_does_not_end_the_timer_thread() {
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!self.0, "a payload panics (as this test wants)");
        }
    }
    let balancer: Balancer<Bomb> = Balancer::builder().build().unwrap();
    balancer.register_worker(Worker::new("w").slots(2)).unwrap();
    let status = |task| balancer.status(task).unwrap().status;
    let pause = Duration::from_millis(5);
    let bomb = balancer.submit(Task::with_payload(Bomb(true)).timeout(pause)).unwrap();
    let attempt = balancer.next("w").unwrap().unwrap();
    attempt.start().unwrap();
    // The payload goes with the task, on the timer thread, and nobody else holds it.
    attempt.detach();
    until(|| status(bomb).is_settled());
    let later = balancer.submit(Task::with_payload(Bomb(false)).timeout(pause)).unwrap();
    let second = balancer.next("w").unwrap().unwrap();
    second.start().unwrap();
    until(|| second.is_revoked());
    assert!(balancer.is_running());
    assert!(status(later).is_settled());
    balancer.check().unwrap();
}

/// A waker that asks the balancer something whenever it is cloned or dropped, which hangs if that happens under the lock.
/// Wakers made of an `Arc` run no code of ours when cloned, so dropping stands for both.
struct Curious(Balancer);

impl Wake for Curious {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Curious {
    fn drop(&mut self) {
        let _ = self.0.metrics();
    }
}

#[test]
fn wakers_are_dropped_outside_the_lock() {
    let balancer = with_workers(&["w"]);
    let poll = |future: &mut filch::NextAssignment| {
        let waker = Waker::from(Arc::new(Curious(balancer.clone())));
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    };
    assert!(matches!(poll(&mut balancer.next_async("nobody")), Poll::Ready(Err(Error::UnknownWorker(_)))));
    let mut future = balancer.next_async("w");
    assert!(poll(&mut future).is_pending());
    assert!(poll(&mut future).is_pending(), "one waker replaces the other");
    balancer.submit(Task::new()).unwrap();
    assert!(matches!(poll(&mut future), Poll::Ready(Ok(Some(_)))));
    assert!(matches!(poll(&mut balancer.next_async("w")), Poll::Ready(Ok(Some(_)))));
    balancer.stop();
    assert!(matches!(poll(&mut balancer.next_async("w")), Poll::Ready(Err(Error::Stopped))));
}

#[test]
fn futures_end_when_the_last_balancer_is_dropped() {
    let balancer = real(&["w"]);
    let (mut first, mut unpolled) = (balancer.next_async("w"), balancer.next_async("w"));
    assert!(poll_once(&mut first).is_pending());
    let clone = balancer.clone();
    drop(balancer);
    drop(clone.downgrade().upgrade());
    assert!(poll_once(&mut first).is_pending(), "there is one left");
    let waiting = std::thread::spawn(move || block_on(first).map(|_| ()));
    drop(clone);
    assert_eq!(waiting.join().unwrap(), Err(Error::Stopped));
    assert!(matches!(poll_once(&mut unpolled), Poll::Ready(Err(Error::Stopped))));
}

#[test]
fn a_balancer_that_is_stopped_keeps_nobody_waiting_for_everything() {
    let balancer = real(&["w"]);
    balancer.submit(Task::new()).unwrap();
    let running = balancer.next("w").unwrap().unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| balancer.wait_idle(LONG));
        balancer.stop();
        assert!(!waiter.join().unwrap());
    });
    assert!(!balancer.wait_idle(LONG), "nobody can be sure that it will be finished");
    assert!(start.elapsed() < LONG);
    running.succeed(()).unwrap();
    assert!(balancer.wait_idle(Duration::ZERO), "nothing is left");
}

/// Checks that what so many who wait cost altogether grows no faster than their number. Sixteen times a few are compared
/// with all of them at once, so that both take about as long and other programs disturb both; if each looked through all
/// others, the latter would cost sixteen times as much. The best of a few rounds counts.
fn grows_with_the_number(cost: impl Fn(usize) -> Duration) {
    let rounds = (0..5).map(|_| {
        let few: Duration = (0..16).map(|_| cost(2_000)).sum();
        cost(32_000).as_secs_f64() / few.as_secs_f64()
    });
    let ratio = rounds.fold(f64::INFINITY, f64::min);
    assert!(ratio < 6.0, "32,000 at once cost {ratio} times as much as 16 times 2,000");
}

#[test]
fn those_who_give_up_waiting_for_a_task_do_not_look_through_the_others() {
    grows_with_the_number(|waiters| {
        let balancer = with_workers(&["w"]);
        let mut futures: Vec<_> = (0..waiters).map(|_| balancer.next_async("w")).collect();
        assert!(futures.iter_mut().all(|future| poll_once(future).is_pending()));
        let start = Instant::now();
        while let Some(newest) = futures.pop() {
            drop(newest);
        }
        start.elapsed()
    });
}

#[test]
fn those_whose_time_is_up_do_not_look_through_the_others() {
    grows_with_the_number(|waiters| {
        let balancer = with_workers(&["w"]);
        let mut futures: Vec<_> =
            (0..waiters).map(|_| balancer.next_async_timeout("w", Duration::from_millis(1))).collect();
        let start = Instant::now();
        for future in &mut futures {
            let _ = poll_once(future);
        }
        let last = futures.last_mut().expect("there are some");
        while poll_once(last).is_pending() {
            assert!(start.elapsed() < LONG, "its time is never up");
            std::thread::yield_now();
        }
        start.elapsed()
    });
}

#[test]
fn those_who_give_up_waiting_for_a_job_do_not_look_through_the_others() {
    grows_with_the_number(|waiters| {
        let balancer = with_workers(&["w"]);
        let job = balancer.open_job(1.0).unwrap();
        let mut futures: Vec<_> = (0..waiters).map(|_| balancer.wait_job_async(job)).collect();
        assert!(futures.iter_mut().all(|future| poll_once(future).is_pending()));
        let start = Instant::now();
        while let Some(newest) = futures.pop() {
            drop(newest);
        }
        start.elapsed()
    });
}
