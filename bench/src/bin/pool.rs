//! The benchmark `pool`: fork-join, spawn, loops and wake-ups of `filch-pool` beside its rivals.
//!
//! All systems take turns, round by round, in one process: on a small machine identical code swings by a third between
//! runs, so only neighbours can be compared. Losses are printed like wins.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::hint::black_box;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use comfy_table::Table;
use filch_bench::clock::process_seconds;
use filch_bench::pool_report::{Row, SERIAL, find, idle, targets, together};
use filch_bench::report::Target;
use filch_bench::uts;
use filch_bench::ways::{Chili, FilchCtx, FilchJoin, Rayon, Serial, Systems, Way, Work};
use filch_bench::works::{Fib, Layout, Node, PlainFib, Queens, Sum};
use rayon::prelude::*;

/// Compares the pool with rayon, chili, tokio and async-executor.
#[derive(Parser)]
struct Arguments {
    /// Print an array of rows instead of tables.
    #[arg(long)]
    json: bool,
    /// How often each system gets its turn.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Only works whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// The full sizes: fib 35, a tree of 2^24 nodes (512 MB of memory), 13 queens.
    #[arg(long)]
    full: bool,
    /// Only this: how much of a core an idle pool takes over ten seconds.
    #[arg(long)]
    idle: bool,
}

/// Does the work once. Returns the time for one operation in nanoseconds if it is not all of the turn that counts.
type Turn = Box<dyn FnMut() -> Option<f64>>;

/// Something to measure, and what was measured.
struct Entry {
    work: &'static str,
    threads: usize,
    system: &'static str,
    operations: f64,
    turn: Turn,
    times: Vec<f64>,
    cpu: f64,
}

/// The entries of one number of threads, as they are collected.
struct List<'a> {
    entries: Vec<Entry>,
    systems: &'a Systems,
}

impl List<'_> {
    fn add(&mut self, work: &'static str, system: &'static str, operations: f64, turn: Turn) {
        let threads = self.systems.threads;
        self.entries.push(Entry { work, threads, system, operations, turn, times: Vec::new(), cpu: 0.0 });
    }

    /// Something whose whole turn counts.
    fn whole(&mut self, work: &'static str, system: &'static str, operations: f64, mut body: impl FnMut() + 'static) {
        let turn = move || {
            body();
            None
        };
        self.add(work, system, operations, Box::new(turn));
    }

    /// One fork-join work in all ways.
    fn forks(&mut self, name: &'static str, operations: f64, times: usize, work: impl Work) {
        self.fork::<Serial>(name, operations, times, work);
        self.fork::<FilchCtx>(name, operations, times, work);
        self.fork::<FilchJoin>(name, operations, times, work);
        self.fork::<Rayon>(name, operations, times, work);
        self.fork::<Chili>(name, operations, times, work);
    }

    fn fork<W: Way>(&mut self, name: &'static str, operations: f64, times: usize, work: impl Work) {
        let systems = self.systems.clone();
        let body = move || _ = black_box(W::run(&systems, work, times));
        self.whole(name, W::NAME, operations * times as f64, body);
    }

    /// Storms from inside and from outside on one system.
    fn storms<S: Spawn>(&mut self, count: usize) {
        let spawn = S::new(self.systems);
        let outside = spawn.clone();
        self.whole("storm_outside", S::NAME, count as f64, move || {
            let end = Tally::start(count);
            (0..count).for_each(|_| outside.submit(Tally::count));
            end.wait();
        });
        self.whole("storm_inside", S::NAME, count as f64, move || {
            let (end, inside) = (Tally::start(count), spawn.clone());
            spawn.submit(move || (0..count).for_each(|_| inside.submit(Tally::count)));
            end.wait();
        });
    }

    /// Entering one system and coming back: back to back, and after a pause in which it falls asleep.
    fn entering(&mut self, system: &'static str, enter: impl Fn() + Clone + 'static) {
        const TRIPS: usize = 2000;
        const WAKE_UPS: usize = 20;
        const PAUSE: Duration = Duration::from_millis(5);
        let body = enter.clone();
        self.whole("round_trip", system, TRIPS as f64, move || (0..TRIPS).for_each(|_| body()));
        let wake = move |_| {
            thread::sleep(PAUSE);
            let began = Instant::now();
            enter();
            began.elapsed().as_nanos() as f64
        };
        let turn = move || Some(median(&mut (0..WAKE_UPS).map(&wake).collect::<Vec<_>>()));
        self.add("wake_up", system, 1.0, Box::new(turn));
    }

    /// Short parallel regions with pauses between them. Who spins in the pauses shows it in the processor time.
    fn bursts<W: Way>(&mut self) {
        const BURSTS: usize = 40;
        const PAUSE: Duration = Duration::from_millis(3);
        let systems = self.systems.clone();
        let burst = move |_| {
            let began = Instant::now();
            black_box(W::run(&systems, Fib(22), 1));
            let time = began.elapsed().as_nanos() as f64;
            thread::sleep(PAUSE);
            time
        };
        let turn = move || Some((0..BURSTS).map(&burst).sum::<f64>() / BURSTS as f64);
        self.add("bursts", W::NAME, 1.0, Box::new(turn));
    }
}

/// A system that takes tasks nobody waits for.
trait Spawn: Clone + Send + 'static {
    const NAME: &'static str;
    fn new(systems: &Systems) -> Self;
    fn submit(&self, body: impl FnOnce() + Send + 'static);
}

impl Spawn for Arc<filch_pool::Pool> {
    const NAME: &'static str = "filch_spawn";

    fn new(systems: &Systems) -> Self {
        Self::clone(&systems.filch)
    }

    fn submit(&self, body: impl FnOnce() + Send + 'static) {
        self.detach(body);
    }
}

impl Spawn for Arc<rayon::ThreadPool> {
    const NAME: &'static str = "rayon";

    fn new(systems: &Systems) -> Self {
        Self::clone(&systems.rayon)
    }

    fn submit(&self, body: impl FnOnce() + Send + 'static) {
        self.spawn(body);
    }
}

impl Spawn for Arc<tokio::runtime::Runtime> {
    const NAME: &'static str = "tokio";

    fn new(systems: &Systems) -> Self {
        Self::clone(&systems.tokio)
    }

    fn submit(&self, body: impl FnOnce() + Send + 'static) {
        drop(self.spawn(async move { body() }));
    }
}

impl Spawn for Arc<async_executor::Executor<'static>> {
    const NAME: &'static str = "async_executor";

    fn new(systems: &Systems) -> Self {
        Self::clone(&systems.smol)
    }

    fn submit(&self, body: impl FnOnce() + Send + 'static) {
        self.spawn(async move { body() }).detach();
    }
}

/// Counts tasks that ended, with a counter for each thread: one counter for all would measure the fight for it.
struct Tally {
    expected: usize,
}

#[repr(align(128))]
struct Lane(AtomicUsize);

static LANES: [Lane; 64] = [const { Lane(AtomicUsize::new(0)) }; 64];
static NEXT_LANE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// One for each thread that ever counts: with too few of them this panics.
    static LANE: &'static Lane = &LANES[NEXT_LANE.fetch_add(1, Ordering::Relaxed)];
}

impl Tally {
    fn start(expected: usize) -> Self {
        LANES.iter().for_each(|lane| lane.0.store(0, Ordering::Release));
        Self { expected }
    }

    /// Without a read-modify-write, which would be a good part of what is measured: each counter has one writer.
    fn count() {
        LANE.with(|lane| lane.0.store(lane.0.load(Ordering::Relaxed) + 1, Ordering::Release));
    }

    /// Looks twenty thousand times a second: the error is far below what is measured, and no system is woken by it.
    fn wait(&self) {
        while LANES.iter().map(|lane| lane.0.load(Ordering::Acquire)).sum::<usize>() < self.expected {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

/// A million tasks of one scope.
fn scope_storms(list: &mut List, count: usize) {
    let pool = Arc::clone(&list.systems.filch);
    list.whole("storm_scope", "filch_spawn", count as f64, move || {
        pool.scope(|scope| (0..count).for_each(|_| scope.spawn(|_| Tally::count())));
    });
    let pool = Arc::clone(&list.systems.rayon);
    list.whole("storm_scope", "rayon", count as f64, move || {
        pool.scope(|scope| (0..count).for_each(|_| scope.spawn(|_| Tally::count())));
    });
}

fn skynet_filch(from: usize, size: usize) -> usize {
    if size == 1 {
        return from;
    }
    let mut sums = [0; 10];
    filch_pool::scope(|scope| {
        for (arm, sum) in sums.iter_mut().enumerate() {
            scope.spawn(move |_| *sum = skynet_filch(from + arm * size / 10, size / 10));
        }
    });
    sums.iter().sum()
}

fn skynet_rayon(from: usize, size: usize) -> usize {
    if size == 1 {
        return from;
    }
    let mut sums = [0; 10];
    rayon::scope(|scope| {
        for (arm, sum) in sums.iter_mut().enumerate() {
            scope.spawn(move |_| *sum = skynet_rayon(from + arm * size / 10, size / 10));
        }
    });
    sums.iter().sum()
}

fn skynet_tokio(from: usize, size: usize) -> Pin<Box<dyn Future<Output = usize> + Send>> {
    Box::pin(async move {
        if size == 1 {
            return from;
        }
        let arm = |arm| tokio::spawn(skynet_tokio(from + arm * size / 10, size / 10));
        let mut sum = 0;
        for arm in (0..10).map(arm).collect::<Vec<_>>() {
            sum += arm.await.unwrap_or(0);
        }
        sum
    })
}

/// Trees of tasks: each spawns ten and adds up what they bring, down to a million.
fn skynets(list: &mut List, count: usize) {
    let expected = count * (count - 1) / 2;
    let tasks = count as f64 * 10.0 / 9.0;
    let pool = Arc::clone(&list.systems.filch);
    list.whole("skynet", "filch_spawn", tasks, move || {
        assert_eq!(pool.install(|| skynet_filch(0, count)), expected);
    });
    let pool = Arc::clone(&list.systems.rayon);
    list.whole("skynet", "rayon", tasks, move || {
        assert_eq!(pool.install(|| skynet_rayon(0, count)), expected);
    });
    let runtime = Arc::clone(&list.systems.tokio);
    list.whole("skynet", "tokio", tasks, move || {
        let root = runtime.spawn(skynet_tokio(0, count));
        assert_eq!(runtime.block_on(root).unwrap_or(0), expected);
    });
}

/// A loop over a slice, several times in a turn: a single one would measure who left what in the cache before it. Both take
/// the same slice, because two differ in how the system maps their memory.
fn loops(list: &mut List, count: usize) {
    const PASSES: usize = 16;
    let step = |number: &mut u64| *number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) ^ 1;
    let slice = Rc::new(RefCell::new(vec![1u64; count]));
    let operations = (PASSES * count) as f64;
    let (pool, numbers) = (Arc::clone(&list.systems.filch), Rc::clone(&slice));
    list.whole("parallel_for", "filch_join", operations, move || {
        let numbers = &mut *numbers.borrow_mut();
        (0..PASSES).for_each(|_| pool.install(|| filch_pool::for_each(&mut *numbers, step)));
    });
    let (pool, numbers) = (Arc::clone(&list.systems.rayon), slice);
    list.whole("parallel_for", "rayon", operations, move || {
        let numbers = &mut *numbers.borrow_mut();
        (0..PASSES).for_each(|_| pool.install(|| numbers.par_iter_mut().for_each(step)));
    });
}

fn entering(list: &mut List) {
    let pool = Arc::clone(&list.systems.filch);
    list.entering("filch_join", move || pool.install(|| _ = black_box(1)));
    let pool = Arc::clone(&list.systems.rayon);
    list.entering("rayon", move || pool.install(|| _ = black_box(1)));
    let runtime = Arc::clone(&list.systems.tokio);
    list.entering("tokio", move || {
        let task = runtime.spawn(async { _ = black_box(1) });
        _ = futures_lite::future::block_on(task);
    });
}

/// A chain of forks whose second arms take 50 µs each.
fn chain(mut ctx: filch_pool::Ctx<'_>, n: u32) {
    if n > 0 {
        ctx.join(
            move |ctx| chain(ctx, n - 1),
            |_| {
                let end = Instant::now() + Duration::from_micros(50);
                while Instant::now() < end {}
            },
        );
    }
}

/// What only filch can be asked for: the time for sharing deep chains and sleeping arms.
fn sharing(list: &mut List) {
    if list.systems.threads < 2 {
        return;
    }
    let pool = Arc::clone(&list.systems.filch);
    list.whole("chain_400", "filch_ctx", 1.0, move || pool.run(|ctx| chain(ctx, 400)));
    let pool = Arc::clone(&list.systems.filch);
    list.whole("two_sleeps", "filch_join", 1.0, move || {
        let sleep = || thread::sleep(Duration::from_millis(50));
        pool.install(|| _ = filch_pool::join(sleep, sleep));
    });
}

/// The time of one turn.
fn measure(entry: &mut Entry) {
    let (cpu, began) = (process_seconds(), Instant::now());
    let counted = (entry.turn)();
    let time = counted.unwrap_or_else(|| began.elapsed().as_nanos() as f64 / entry.operations);
    entry.cpu += process_seconds() - cpu;
    entry.times.push(time);
}

fn entries(arguments: &Arguments) -> Result<Vec<Entry>> {
    let (fib, depth, queens) = if arguments.full { (35, 24, 13) } else { (32, 20, 12) };
    let large = Sum(Node::tree(depth, Layout::InOrder));
    let shuffled = Sum(Node::tree(20, Layout::Shuffled));
    let small = Sum(Node::tree(10, Layout::InOrder));
    ensure!(Queens::new(8).work::<Serial>(()) == 92, "the queens are wrong");
    for tree in [uts::T1, uts::T3] {
        ensure!(tree.work::<Serial>(()) == tree.nodes, "a tree has not its published size");
    }
    let forks = Fib(fib + 1).work::<Serial>(()) as f64;
    let count = 1_000_000;
    let mut entries = Vec::new();
    for threads in [1, 2] {
        let systems = Systems::new(threads)?;
        let mut list = List { entries: Vec::new(), systems: &systems };
        list.forks("fib", forks, 1, Fib(fib));
        list.forks("plain_fib", forks, 1, PlainFib(fib));
        list.forks("tree_small", 1023.0, 1000, small);
        list.forks("tree_large", f64::from(1 << depth), 1, large);
        list.forks("tree_shuffled", f64::from(1 << 20), 1, shuffled);
        list.forks("queens", 1.0, 1, Queens::new(queens));
        list.forks("uts_t1", uts::T1.nodes as f64, 1, uts::T1);
        list.forks("uts_t3", uts::T3.nodes as f64, 1, uts::T3);
        list.storms::<Arc<filch_pool::Pool>>(count);
        list.storms::<Arc<rayon::ThreadPool>>(count);
        list.storms::<Arc<tokio::runtime::Runtime>>(count);
        list.storms::<Arc<async_executor::Executor<'static>>>(count);
        scope_storms(&mut list, count);
        skynets(&mut list, count);
        loops(&mut list, count);
        entering(&mut list);
        list.bursts::<FilchCtx>();
        list.bursts::<FilchJoin>();
        list.bursts::<Rayon>();
        list.bursts::<Chili>();
        sharing(&mut list);
        entries.append(&mut list.entries);
    }
    if let Some(only) = &arguments.only {
        entries.retain(|entry| only.split(',').any(|part| entry.work.contains(part)));
    }
    Ok(entries)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The part of a core that a pool takes while it has nothing to do, after it did something. No other system is there.
fn idle_share(threads: usize) -> Result<f64> {
    const REST: Duration = Duration::from_secs(10);
    let pool = filch_pool::Pool::builder().threads(threads).build()?;
    pool.install(|| filch_pool::for_each(0..1_000_000usize, |index| _ = black_box(index)));
    let before = process_seconds();
    thread::sleep(REST);
    Ok((process_seconds() - before) / REST.as_secs_f64())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.idle {
        let found: Vec<Target> =
            [1, 2, 8].into_iter().map(|threads| Ok(idle(threads, idle_share(threads)?))).collect::<Result<_>>()?;
        print_targets(&found);
        return Ok(());
    }
    let mut list = entries(&arguments)?;
    list.iter_mut().for_each(|entry| _ = (entry.turn)());
    // Back and forth, so that nobody always comes after the same rival and finds what that one left in the caches.
    for round in 0..arguments.rounds {
        if round.is_multiple_of(2) {
            list.iter_mut().for_each(measure);
        } else {
            list.iter_mut().rev().for_each(measure);
        }
    }
    let row = |entry: &mut Entry| Row {
        work: entry.work,
        threads: entry.threads,
        system: entry.system,
        ns_per_op: median(&mut entry.times),
        cpu_s: entry.cpu / arguments.rounds as f64,
        best: entry.times.first().copied().unwrap_or(f64::NAN),
    };
    let rows: Vec<Row> = list.iter_mut().map(row).collect();
    #[expect(clippy::print_stdout, reason = "the result of the command")]
    if arguments.json {
        // Code that does not fork is no system to compare with.
        let systems: Vec<&Row> = rows.iter().filter(|row| row.system != SERIAL).collect();
        println!("{}", serde_json::to_string_pretty(&systems)?);
    } else {
        println!("{}\n{}\n", table(&rows), summary(&rows));
        print_targets(&targets(&rows));
        let sizes = if arguments.full { "full sizes" } else { "reduced sizes (--full takes the full ones)" };
        println!("\n{} rounds, {sizes}; what an idle pool takes is measured by --idle", arguments.rounds);
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result of the command")]
fn print_targets(targets: &[Target]) {
    for target in targets {
        println!("{}  {}: {}", if target.holds { "holds " } else { "MISSED" }, target.promise, target.found);
    }
}

/// Every row, with its ratio to the rivals in the same work and with the same threads.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["work", "threads", "system", "ns/op", "best", "cpu s", "of rayon", "of chili", "of tokio"]);
    for row in rows {
        let of = |system| {
            find(rows, row, system).map_or_else(String::new, |rival| format!("{:.2}", row.ns_per_op / rival.ns_per_op))
        };
        table.add_row([
            row.work.to_owned(),
            row.threads.to_string(),
            row.system.to_owned(),
            format!("{:.2}", row.ns_per_op),
            format!("{:.2}", row.best),
            format!("{:.4}", row.cpu_s),
            of("rayon"),
            of("chili"),
            of("tokio"),
        ]);
    }
    table
}

/// The fork-join works together: geometric means of the ratios, and the worst of each.
fn summary(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["fork-join", "threads", "geometric mean", "worst", "in", "overhead, worst", "in"]);
    let pairs =
        [("filch_ctx", "rayon"), ("filch_ctx", "chili"), ("filch_join", "rayon"), (SERIAL, "rayon"), (SERIAL, "chili")];
    for (system, rival) in pairs {
        for threads in [1, 2] {
            let Some(found) = together(rows, system, rival, threads) else { continue };
            let (ratio, overhead) = (|ratio: f64| format!("{ratio:.2}"), found.overhead);
            table.add_row([
                format!("{system} / {rival}"),
                threads.to_string(),
                ratio(found.mean),
                ratio(found.worst.0),
                found.worst.1.to_owned(),
                ratio(overhead.0),
                overhead.1.to_owned(),
            ]);
        }
    }
    table
}
