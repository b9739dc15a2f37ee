//! How a worker waits: what it does meanwhile, and how it sleeps until it is told that there is something to do.
//!
//! It runs only what it waits for consists of, and never picks up unrelated work, with three exceptions: its parts of
//! broadcasts; if it waits for another pool, whoever enters its own from another pool; and anything if it was asked to.

use std::ptr;

use crate::deque::{Header, NOBODY, Slot, Steal};
use crate::latch::Latch;
use crate::listen::News;
use crate::scope::Core;
use crate::sync::{Duration, Ordering, fence, nap, park, park_timeout, spin, yield_now};
use crate::task::{Lane, Task};
use crate::worker::{SEARCH_ROUNDS, Work, Worker, steal_one};

/// How long a worker listens before it looks for the last time: whoever spawns does so without a fence, and may not have seen
/// that it listens; but what that one did is visible after this.
const FIRST_NAP: Duration = Duration::from_micros(50);

/// How often a worker looks whether there is something for it if nobody can tell it.
const NAP: Duration = Duration::from_micros(500);

/// The most rounds in which a scope's owner does not look at others after it found tasks of other scopes there.
const MOST_PATIENCE: u32 = 8;

/// What a worker waits for.
pub(crate) trait Awaited {
    /// Whether it has ended.
    fn is_done(&self) -> bool;
    /// Says that the worker is about to park and wants to be woken at the end; false if there is nothing left to wait for.
    fn announce_sleep(&self) -> bool;
    /// Does something useful; false if there is nothing.
    fn help(&mut self, worker: &Worker) -> bool;
    /// What the worker wants to be told of while it sleeps.
    fn news(&self) -> News;
    /// Whether there was news before it listened. If it is no use to this worker, it has to look now and then.
    fn has_news(&self, worker: &Worker) -> bool;
}

/// A fork that was stolen.
struct StolenJob {
    job: *const Header,
    /// The worker's true tail.
    tail: *const Slot,
}

impl StolenJob {
    fn shared(&self) -> &crate::deque::Shared {
        // SAFETY: stolen means published, and the job lives in a frame of this thread.
        unsafe { (*self.job).shared() }
    }
}

impl Awaited for StolenJob {
    fn is_done(&self) -> bool {
        self.shared().latch.is_done()
    }

    fn announce_sleep(&self) -> bool {
        self.shared().latch.announce_sleep()
    }

    fn help(&mut self, worker: &Worker) -> bool {
        let (runner, floor) = self.shared().runner();
        if runner == NOBODY {
            // Just stolen, or taken by a helper who passed it on.
            let Some((job, owner)) = worker.registry().take_passed_job(self.job) else { return false };
            // SAFETY: it is ours to run now, like any stolen job.
            unsafe { worker.run_job(job, owner, self.tail) };
            return true;
        }
        // SAFETY: whoever made this knows the true tail.
        unsafe { worker.leapfrog(runner, floor, self.tail, || self.shared().latch.is_done()) }
    }

    fn news(&self) -> News {
        match self.shared().runner().0 {
            NOBODY => News::AnyFork,
            runner => News::ForkOf(runner),
        }
    }

    fn has_news(&self, worker: &Worker) -> bool {
        match self.shared().runner().0 {
            NOBODY => true,
            runner => worker.registry().seats[runner as usize].deque.has_public(),
        }
    }
}

/// The tasks of a scope.
struct ScopeTasks<'a> {
    scope: &'a Core,
    /// Where its tasks begin in the worker's ring.
    mark: i64,
    /// For how many rounds not to look at others; and for how many the next time.
    patience: u32,
    next_patience: u32,
}

impl Awaited for ScopeTasks<'_> {
    fn is_done(&self) -> bool {
        self.scope.tally().is_done()
    }

    fn announce_sleep(&self) -> bool {
        self.scope.tally().announce_sleep()
    }

    fn help(&mut self, worker: &Worker) -> bool {
        let ring = &worker.seat().rings[Lane::Awaited as usize];
        let mut helped = false;
        // As long as there are some here, there is no need to look whether the scope has ended.
        // SAFETY: this is the owner's thread.
        while let Some(task) = unsafe { ring.pop_above(self.mark) } {
            worker.run_if_of_scope(task, self.scope);
            helped = true;
        }
        if helped {
            return true;
        }
        // SAFETY: this is the owner's thread.
        let keep = |task| unsafe { ring.push(task) };
        if let Some(task) = worker.registry().take_of_scope(self.scope, keep) {
            return worker.run_if_of_scope(task, self.scope);
        }
        self.steal(worker)
    }

    fn news(&self) -> News {
        // Whoever spawns a task of the scope tells the owner by name.
        News::Nothing
    }

    fn has_news(&self, worker: &Worker) -> bool {
        let registry = worker.registry();
        let rings = || registry.seats.iter().any(|seat| seat.rings[Lane::Awaited as usize].len() > 0);
        registry.injected(Lane::Awaited) > 0 || rings()
    }
}

impl ScopeTasks<'_> {
    /// Takes one task from each other worker until one belongs to the scope. Others are taken away from their workers,
    /// which helps nobody: the more of them it found in a row, the longer it looks away.
    fn steal(&mut self, worker: &Worker) -> bool {
        if self.patience > 0 {
            self.patience -= 1;
            return false;
        }
        let (registry, counters) = (worker.registry(), &worker.seat().counters);
        for victim in registry.victims.around(worker.index(), 0) {
            counters.steals_tried.add(1);
            let Some(task) = steal_one(&registry.seats[victim], Lane::Awaited) else { continue };
            counters.steals_won.add(1);
            if worker.run_if_of_scope(task, self.scope) {
                self.next_patience = 1;
                return true;
            }
            self.patience = self.next_patience;
            self.next_patience = (self.next_patience * 2).min(MOST_PATIENCE);
        }
        false
    }
}

/// Something that is no part of any work the worker could help with.
struct Elsewhere<'a> {
    latch: &'a Latch,
    news: News,
}

impl Awaited for Elsewhere<'_> {
    fn is_done(&self) -> bool {
        self.latch.is_done()
    }

    fn announce_sleep(&self) -> bool {
        self.latch.announce_sleep()
    }

    fn help(&mut self, worker: &Worker) -> bool {
        self.news == News::Entries && worker.run_entry()
    }

    fn news(&self) -> News {
        self.news
    }

    fn has_news(&self, worker: &Worker) -> bool {
        self.news == News::Entries && worker.registry().has_passed()
    }
}

impl Worker {
    /// Waits for a job that was stolen from the slot below `tail`, helping its thief with what descends from it.
    ///
    /// # Safety
    /// The job was stolen from this worker and its latch not yet seen set; `tail` is the true tail.
    #[cold]
    pub(crate) unsafe fn wait_for_job(&self, job: *const Header, tail: *const Slot) {
        self.wait(&mut StolenJob { job, tail });
    }

    /// Waits for a scope, running tasks of that scope and of scopes opened by them only. `mark` is where its tasks begin
    /// in the ring.
    pub(crate) fn wait_for_scope(&self, scope: &Core, mark: i64) {
        self.wait(&mut ScopeTasks { scope, mark, patience: 0, next_patience: 1 });
    }

    /// Waits for a part of a broadcast in the worker's own pool.
    pub(crate) fn wait_for_part(&self, latch: &Latch) {
        self.wait(&mut Elsewhere { latch, news: News::Nothing });
    }

    /// Waits for something another pool does. That one may need this one to get on, in a circle: so whoever enters this pool
    /// from another meanwhile is served.
    pub(crate) fn wait_across(&self, latch: &Latch) {
        self.before_blocking();
        self.wait(&mut Elsewhere { latch, news: News::Entries });
    }

    /// Waits for something another pool does and of which nobody tells.
    pub(crate) fn look_across(&self, is_done: impl Fn() -> bool) {
        const LONGEST: Duration = Duration::from_millis(2);
        self.before_blocking();
        let mut pause = FIRST_NAP;
        while !is_done() {
            if self.run_entry() || self.run_order() {
                pause = FIRST_NAP;
                continue;
            }
            self.sleep(News::Entries, || {
                if !self.registry().has_passed() && !self.has_order() {
                    park_timeout(pause);
                }
            });
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Waits until it is done.
    pub(crate) fn wait(&self, awaited: &mut impl Awaited) {
        let helps_anyone = self.registry().helps_anyone;
        let mut failures = 0u32;
        while !awaited.is_done() {
            if awaited.help(self) || self.run_order() || (helps_anyone && self.run_anything()) {
                failures = 0;
                continue;
            }
            failures = failures.saturating_add(1);
            if failures < SEARCH_ROUNDS {
                spin(1 << failures.min(5));
            } else if failures < 2 * SEARCH_ROUNDS {
                yield_now();
            } else if awaited.announce_sleep() {
                self.sleep(awaited.news(), || {
                    let has_news = || helps_anyone || awaited.has_news(self);
                    if self.has_order() || awaited.is_done() {
                    } else if has_news() {
                        park_timeout(NAP);
                    } else {
                        let listens = || self.registry().listeners.is_listening(self.index());
                        nap(FIRST_NAP, listens);
                        if listens() && !has_news() {
                            park();
                        }
                    }
                });
            }
        }
    }

    /// Sleeps while somebody else goes on, listening to news.
    fn sleep(&self, news: News, sleep: impl FnOnce()) {
        let listeners = &self.registry().listeners;
        listeners.start(self.index(), news);
        self.park(sleep);
        listeners.stop(self.index());
    }

    /// Takes a fork from `runner`, which runs what we wait for with forks from slot `floor` on; false if there is none.
    ///
    /// # Safety
    /// `tail` is this worker's true tail, and `done` says truly whether what we wait for has ended.
    unsafe fn leapfrog(&self, runner: u32, floor: u32, tail: *const Slot, done: impl FnOnce() -> bool) -> bool {
        let counters = &self.seat().counters;
        counters.steals_tried.add(1);
        let victim = &self.registry().seats[runner as usize].deque;
        match victim.steal(floor) {
            Steal::Job(found) if done() => self.registry().pass_on(found, runner),
            Steal::Job(found) => {
                counters.steals_won.add(1);
                // The runner was still at it when we took this, so it descends from what we wait for.
                // SAFETY: just stolen from `runner`; `tail` is the caller's promise.
                unsafe { self.run_job(found, runner, tail) };
            }
            Steal::Retry => {}
            Steal::Empty => {
                victim.request();
                return false;
            }
        }
        true
    }

    /// Takes a fork of a spawned task that `runner` runs with forks from slot `floor` on.
    pub(crate) fn help_with_task(&self, runner: Option<(u32, u32)>, done: impl FnOnce() -> bool) -> bool {
        let others = runner.filter(|(runner, _)| *runner as usize != self.index());
        // SAFETY: this is the owner's thread, and the tail is looked up.
        others.is_some_and(|(runner, floor)| unsafe { self.leapfrog(runner, floor, self.deque().tail(), done) })
    }

    /// Runs the task if the scope waits for it; otherwise somebody who is free shall have it.
    #[inline]
    fn run_if_of_scope(&self, task: *mut Task, scope: &Core) -> bool {
        // SAFETY: just taken out of a queue, so it is alive and ours, and so is its scope. Only tasks of scopes are here
        // or ones without.
        let ours = unsafe {
            let found = (*task).scope;
            ptr::eq(found, scope) || found.as_ref().is_some_and(|found| found.descends_from(scope))
        };
        if ours {
            // SAFETY: as above.
            unsafe { self.run_scoped(task) };
        } else {
            self.registry().give_back(task);
        }
        ours
    }

    /// Runs whatever there is, on top of what waits here; false if there is nothing.
    fn run_anything(&self) -> bool {
        let work = self.next().or_else(|| self.steal());
        match work {
            // SAFETY: just taken out of its queue; this is the owner's thread.
            Some(Work::Job(job, owner)) => unsafe { self.run_job(job, owner, self.deque().tail()) },
            // SAFETY: just taken out of its queue.
            Some(Work::Task(task)) => unsafe { self.run_task(task) },
            None => {}
        }
        work.is_some()
    }

    /// Runs this worker's part of a broadcast: whoever started it may be what we wait for.
    fn run_order(&self) -> bool {
        let order = self.registry().take_order(self.index());
        if let Some(task) = order {
            // SAFETY: just taken out of the queue.
            unsafe { self.run_task(task) };
        }
        order.is_some()
    }

    fn has_order(&self) -> bool {
        self.registry().has_order(self.index())
    }

    /// Runs what a worker of another pool waits for: that one may be what we wait for.
    pub(crate) fn run_entry(&self) -> bool {
        let entry = self.registry().take_passed_entry();
        if let Some(task) = entry {
            // SAFETY: just taken out of the queue.
            unsafe { self.run_task(task) };
        }
        entry.is_some()
    }

    /// Called before the thread blocks for something this pool cannot help with: others may take its forks.
    pub(crate) fn before_blocking(&self) {
        // SAFETY: this is the owner's thread, and the tail is the true one.
        unsafe { self.deque().publish_all(self.deque().tail()) };
        fence(Ordering::SeqCst);
        self.registry().tell_of_forks(self.index());
        self.registry().sleep.notify();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread::yield_now;
    use std::time::{Duration, Instant};

    use super::steal_one;
    use crate::task::Lane;
    use crate::{Pool, current_worker, join, scope, worker};

    fn until(mut condition: impl FnMut() -> bool) {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < Duration::from_secs(60), "it never comes");
            yield_now();
        }
    }

    /// A thief has a task of a scope in its hands while the scope's owner falls asleep, and then finds out that it is not
    /// for it.
    #[test]
    #[cfg_attr(miri, ignore = "it is about time, which an interpreter has too much of")]
    fn the_owner_of_a_scope_is_told_of_a_task_that_is_given_back() {
        let pool = Pool::builder().threads(2).build().unwrap();
        let (taken, in_hand) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let ran_on = &AtomicUsize::new(usize::MAX);
        pool.install(|| {
            let owner = current_worker().unwrap();
            scope(|scope| {
                scope.spawn(move |scope| {
                    taken.store(true, Ordering::SeqCst);
                    let worker = worker::current().unwrap();
                    scope.spawn(move |_| ran_on.store(current_worker().unwrap(), Ordering::SeqCst));
                    let task = steal_one(worker.seat(), Lane::Awaited).unwrap();
                    let sleep = || worker.registry().seats[owner].counters.read();
                    in_hand.store(true, Ordering::SeqCst);
                    // It sleeps for good: for so long in one sleep.
                    let mut before = sleep();
                    until(|| {
                        let now = sleep();
                        if now.parks != before.parks {
                            before = now.clone();
                        }
                        now.parked > before.parked + Duration::from_millis(20)
                    });
                    worker.registry().give_back(task);
                    until(|| ran_on.load(Ordering::SeqCst) == owner);
                });
                // It begins to wait when there is nothing it could find.
                until(|| taken.load(Ordering::SeqCst) && in_hand.load(Ordering::SeqCst));
            });
        });
    }

    /// Who spawns does not fence before it looks for listeners. So whoever listens does so without a gap from the time before
    /// its last look but one, and there is a while between the two looks.
    #[test]
    #[cfg_attr(miri, ignore = "it is about time, which an interpreter has too much of")]
    fn a_worker_listens_without_a_gap_until_it_sleeps_for_good() {
        let pool = Pool::builder().threads(2).build().unwrap();
        for _ in 0..40 {
            let taken = &AtomicBool::new(false);
            pool.scope(|scope| {
                scope.spawn(move |_| {
                    taken.store(true, Ordering::SeqCst);
                    let listeners = &worker::current().unwrap().registry().listeners;
                    until(|| listeners.count() > 0);
                    let since = Instant::now();
                    while since.elapsed() < 4 * super::FIRST_NAP {
                        assert_eq!(listeners.count(), 1, "it looked away after {:?}", since.elapsed());
                    }
                });
                until(|| taken.load(Ordering::SeqCst));
            });
        }
    }

    /// What a helper finds after the end of what it waited for may be anything: it must not run it.
    #[test]
    fn a_fork_found_too_late_is_passed_on() {
        let pool = Arc::new(Pool::builder().threads(2).build().unwrap());
        let (forking, forked) = mpsc::channel();
        let (ran_on, go_on) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::new(AtomicBool::new(false)));
        let (ran, go) = (Arc::clone(&ran_on), Arc::clone(&go_on));
        let seen = Arc::clone(&ran_on);
        let inner = Arc::clone(&pool);
        let (task, runner) = pool.install(move || {
            let task = inner.spawn(move || {
                let here = current_worker();
                let first = || {
                    forking.send(here).unwrap();
                    while !go.load(Ordering::SeqCst) {
                        yield_now();
                    }
                };
                join(first, || ran.store(current_worker().unwrap(), Ordering::SeqCst));
            });
            // The other worker took the task. Its first fork is published, and nobody else is there to steal it.
            let runner = forked.recv().unwrap().unwrap();
            let worker = worker::current().unwrap();
            let tail = worker.deque().tail();
            // SAFETY: this is the worker's thread; that it is done with what it waited for is what is tried here.
            assert!(unsafe { worker.leapfrog(runner as u32, 0, tail, || true) });
            assert_eq!(seen.load(Ordering::SeqCst), usize::MAX, "it ran here");
            assert!(worker.registry().has_passed());
            go_on.store(true, Ordering::SeqCst);
            while seen.load(Ordering::SeqCst) == usize::MAX {
                yield_now();
            }
            (task, runner)
        });
        task.join().unwrap();
        assert_eq!(ran_on.load(Ordering::SeqCst), runner, "its owner found it");
    }
}
