//! Random programs: forks, scopes, tasks, loops, broadcasts and pools inside of each other, some of them with panics. Each must
//! end, and with the sum that the same program has without any pool.
//!
//! `FILCH_SEED` replays one of them, which also a failure names; `FILCH_PROGRAMS` says how many there are.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env::var;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use filch_pool::{JoinHandle, Pool, Priority};

/// Far more than a program takes.
const LIMIT: Duration = Duration::from_secs(60);

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn seed(&mut self) -> u64 {
        self.below(u64::MAX >> 11)
    }

    fn seeds(&mut self, most: u64) -> Vec<u64> {
        (0..1 + self.below(most)).map(|_| self.seed()).collect()
    }
}

/// What a part of a program does with its parts.
#[derive(Clone, Copy)]
enum Step {
    Join,
    Run,
    Scope,
    ScopeInScope,
    Tasks,
    Install,
    Broadcast,
    Reduce,
    Map,
    Caught,
}

const STEPS: [Step; 16] = {
    use Step::{Broadcast, Caught, Install, Join, Map, Reduce, Run, Scope, ScopeInScope, Tasks};
    [
        Join,
        Join,
        Join,
        Join,
        Run,
        Scope,
        Scope,
        ScopeInScope,
        Tasks,
        Tasks,
        Install,
        Install,
        Broadcast,
        Reduce,
        Map,
        Caught,
    ]
};

/// What a program runs in. Without pools it runs here, one part after the other.
struct World {
    pools: Vec<Pool>,
    sizes: Vec<usize>,
    panics: bool,
}

/// Runs a part of a program, and returns how many leaves it had. Panics if a leaf did, unless somebody caught it.
fn run(world: &Arc<World>, seed: u64, depth: u32) -> u64 {
    let mut random = Random::new(seed);
    let Some(below) = depth.checked_sub(1) else { return leaf(world, &mut random) };
    let step = STEPS[random.below(STEPS.len() as u64) as usize];
    let place = random.below(world.sizes.len() as u64) as usize;
    let seeds = match step {
        Step::Join | Step::Run | Step::ScopeInScope => vec![random.seed(), random.seed()],
        Step::Install | Step::Caught => vec![random.seed()],
        Step::Broadcast => (0..world.sizes[place]).map(|_| random.seed()).collect(),
        Step::Scope | Step::Tasks => random.seeds(4),
        Step::Reduce | Step::Map => random.seeds(12),
    };
    // Wide ones get less deep, so that programs end.
    let below =
        if matches!(step, Step::Broadcast | Step::Reduce | Step::Map) { below.saturating_sub(2) } else { below };
    let part = |seed: &u64| run(world, *seed, below);
    let Some(pool) = world.pools.get(place) else { return alone(step, &seeds, part) };
    let sum = AtomicU64::new(0);
    let add = |seed: u64| _ = sum.fetch_add(part(&seed), Ordering::Relaxed);
    match step {
        Step::Join => {
            let (a, b) = filch_pool::join(|| part(&seeds[0]), || part(&seeds[1]));
            a + b
        }
        Step::Run => filch_pool::run(|mut ctx| {
            let (a, b) = ctx.join(|_| part(&seeds[0]), |_| part(&seeds[1]));
            a + b
        }),
        Step::Scope => {
            filch_pool::scope(|scope| seeds.iter().for_each(|seed| scope.spawn(|_| add(*seed))));
            sum.into_inner()
        }
        Step::ScopeInScope => {
            filch_pool::scope(|outer| {
                outer.spawn(|outer| {
                    filch_pool::scope(|inner| {
                        inner.spawn(|_| add(seeds[0]));
                        outer.spawn(|_| add(seeds[1]));
                    });
                });
            });
            sum.into_inner()
        }
        Step::Tasks => tasks(world, pool, &mut random, &seeds, below),
        Step::Install => pool.install(|| part(&seeds[0])),
        Step::Broadcast => pool.broadcast(|index| part(&seeds[index])).into_iter().sum(),
        Step::Reduce => filch_pool::reduce(&seeds, || 0, part, |a, b| a + b),
        Step::Map => filch_pool::map(&seeds, part).into_iter().sum(),
        Step::Caught => catch_unwind(AssertUnwindSafe(|| part(&seeds[0]))).unwrap_or(1_000_000),
    }
}

/// The same without a pool: all parts run, and if some panic, then the whole does.
fn alone(step: Step, seeds: &[u64], part: impl Fn(&u64) -> u64) -> u64 {
    let mut sum = 0;
    let mut panic = None;
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| part(seed))) {
            Ok(leaves) => sum += leaves,
            Err(payload) => panic = Some(payload),
        }
    }
    match panic {
        None => sum,
        Some(_) if matches!(step, Step::Caught) => 1_000_000,
        Some(payload) => resume_unwind(payload),
    }
}

fn leaf(world: &World, random: &mut Random) -> u64 {
    match random.below(200) {
        0 if world.panics => resume_unwind(Box::new("leaf")),
        1 => std::thread::yield_now(),
        2 => std::thread::park_timeout(Duration::from_micros(50)),
        3 => {
            let (began, time) = (Instant::now(), Duration::from_micros(random.below(60)));
            while began.elapsed() < time {}
        }
        _ => {}
    }
    1
}

/// Tasks of all priorities, here and there, that are joined, some of them after they were polled.
fn tasks(world: &Arc<World>, pool: &Pool, random: &mut Random, seeds: &[u64], below: u32) -> u64 {
    let mut spawn = |seed: &u64| {
        let (world, seed) = (Arc::clone(world), *seed);
        let task = pool.task().priority([Priority::Low, Priority::Normal, Priority::High][random.below(3) as usize]);
        let task = if random.below(4) == 0 { task.on(random.below(4) as usize) } else { task };
        (task.spawn(move || run(&world, seed, below)), random.below(3) == 0)
    };
    let handles: Vec<_> = seeds.iter().map(&mut spawn).collect();
    let join = |(handle, polled): (JoinHandle<u64>, bool)| {
        let mut handle = handle;
        if polled && let Poll::Ready(result) = Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop())) {
            return result.unwrap();
        }
        handle.join().unwrap()
    };
    let results: Vec<_> = handles.into_iter().map(|handle| catch_unwind(AssertUnwindSafe(|| join(handle)))).collect();
    results.into_iter().map(|result| result.unwrap_or_else(|payload| resume_unwind(payload))).sum()
}

/// One program, from one or more threads at once.
fn program(seed: u64) {
    let mut random = Random::new(seed);
    let sizes: Vec<usize> = (0..1 + random.below(3)).map(|_| 1 + random.below(4) as usize).collect();
    let (panics, depth) = (random.below(2) == 0, if cfg!(miri) { 3 } else { 4 + random.below(6) as u32 });
    let parts = random.seeds(3);
    let none = Arc::new(World { pools: Vec::new(), sizes: sizes.clone(), panics });
    let expected = |seed: u64| catch_unwind(AssertUnwindSafe(|| run(&none, seed, depth))).ok();
    let helps = random.below(4) == 0;
    let pool = |threads: &usize| Pool::builder().threads(*threads).help_anyone(helps).build().unwrap();
    let world = Arc::new(World { pools: sizes.iter().map(pool).collect(), sizes, panics });
    std::thread::scope(|threads| {
        for part in parts {
            let (world, expected) = (&world, &expected);
            threads.spawn(move || {
                let body = || world.pools[0].install(|| run(world, part, depth));
                assert_eq!(catch_unwind(AssertUnwindSafe(body)).ok(), expected(part), "seed {seed}, part {part}");
            });
        }
    });
    for pool in &world.pools {
        pool.wait_idle();
        let stats = pool.stats();
        assert_eq!(stats.spawned, stats.executed, "seed {seed}");
    }
}

#[test]
fn random_programs_end_with_the_sum_they_have_without_a_pool() {
    let given = |name| var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let count = given("FILCH_PROGRAMS").unwrap_or(if cfg!(miri) { 2 } else { 60 });
    let seeds = given("FILCH_SEED").map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        let (send, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            program(seed);
            send.send(()).unwrap();
        });
        let hangs = ended.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout);
        assert!(!hangs, "it hangs: FILCH_SEED={seed}");
        thread.join().unwrap();
    }
}
