//! The benchmark `pool`: fork-join, spawn, loops and wake-ups of `filch-pool` beside its rivals.
//!
//! All systems take turns, round by round, in one process: on a small machine identical code swings by a third between
//! runs, so only neighbours can be compared. Losses are printed like wins.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use comfy_table::Table;
use filch_bench::clock::process_seconds;
use filch_bench::uts;
use rayon::prelude::*;
use serde::Serialize;

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
    /// The full sizes: fib 35, trees of 2^24 nodes (2 GB of memory), 13 queens.
    #[arg(long)]
    full: bool,
}

/// One line of the result.
#[derive(Serialize)]
struct Row {
    work: &'static str,
    threads: usize,
    system: &'static str,
    ns_per_op: f64,
    best_ns_per_op: f64,
    cpu_s: f64,
}

type Turn = Box<dyn FnMut()>;

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

/// The systems with one number of threads.
#[derive(Clone)]
struct Systems {
    threads: usize,
    filch: Arc<filch_pool::Pool>,
    rayon: Arc<rayon::ThreadPool>,
    chili: Arc<chili::ThreadPool>,
    tokio: Arc<tokio::runtime::Runtime>,
    smol: Arc<async_executor::Executor<'static>>,
}

impl Systems {
    fn new(threads: usize) -> Result<Self> {
        let smol = Arc::new(async_executor::Executor::new());
        for _ in 0..threads {
            let smol = Arc::clone(&smol);
            thread::spawn(move || futures_lite::future::block_on(smol.run(std::future::pending::<()>())));
        }
        Ok(Self {
            threads,
            filch: Arc::new(filch_pool::Pool::builder().threads(threads).stack_size(64 << 20).build()?),
            rayon: Arc::new(rayon::ThreadPoolBuilder::new().num_threads(threads).stack_size(64 << 20).build()?),
            chili: Arc::new(chili::ThreadPool::with_config(chili::Config {
                thread_count: NonZero::new(threads),
                ..chili::Config::default()
            })),
            tokio: Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build()?),
            smol,
        })
    }
}

mod fork {
    //! The fork-join works, once for each way of forking. The order of the arms is the same for all.
    pub(super) use filch_bench::uts::{uts_chili, uts_ctx, uts_join, uts_rayon, uts_serial};
    use filch_pool::Ctx;

    pub(super) fn serial_fib(n: u32) -> u64 {
        if n < 2 { u64::from(n) } else { serial_fib(n - 1) + serial_fib(n - 2) }
    }

    pub(super) struct Node {
        pub(super) value: u64,
        pub(super) arms: Option<(Box<Node>, Box<Node>)>,
    }

    /// A full tree whose nodes are allocated in a random order of arms, so that no traversal is favoured.
    pub(super) fn tree(depth: u32, seed: &mut u64) -> Box<Node> {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        let value = *seed & 0xff;
        let arms = (depth > 1).then(|| {
            if value & 1 == 0 {
                let left = tree(depth - 1, seed);
                (left, tree(depth - 1, seed))
            } else {
                let right = tree(depth - 1, seed);
                (tree(depth - 1, seed), right)
            }
        });
        Box::new(Node { value, arms })
    }

    /// The board of the queens: columns and diagonals taken, the columns still to be tried in this row.
    #[derive(Clone, Copy)]
    pub(super) struct Board {
        full: u32,
        columns: u32,
        left: u32,
        right: u32,
        open: u32,
    }

    impl Board {
        pub(super) fn new(size: u32) -> Self {
            let full = (1 << size) - 1;
            Self { full, columns: 0, left: 0, right: 0, open: full }
        }

        /// The next row after a queen in the lowest open column; `None` if that was the last row.
        fn descend(self) -> Option<Self> {
            let queen = self.open & self.open.wrapping_neg();
            let columns = self.columns | queen;
            let (left, right) = ((self.left | queen) << 1, (self.right | queen) >> 1);
            let open = self.full & !(columns | left | right);
            (columns != self.full).then_some(Self { full: self.full, columns, left, right, open })
        }

        fn rest(self) -> Self {
            Self { open: self.open & (self.open - 1), ..self }
        }
    }

    macro_rules! works {
        ($fib:ident, $sum:ident, $queens:ident, $ctx:ident: $type:ty, $join:expr) => {
            pub(super) fn $fib($ctx: $type, n: u32) -> u64 {
                if n < 2 {
                    return u64::from(n);
                }
                let (a, b) = $join($ctx, move |c| $fib(c, n - 1), move |c| $fib(c, n - 2));
                a + b
            }

            pub(super) fn $sum($ctx: $type, node: &Node) -> u64 {
                let Some((left, right)) = &node.arms else { return node.value };
                let (a, b) = $join($ctx, move |c| $sum(c, left), move |c| $sum(c, right));
                node.value + a + b
            }

            pub(super) fn $queens($ctx: $type, board: Board) -> u64 {
                if board.open == 0 {
                    return 0;
                }
                let down = board.descend();
                let rest = board.rest();
                let Some(down) = down else { return 1 };
                if rest.open == 0 {
                    return $queens($ctx, down);
                }
                let (a, b) = $join($ctx, move |c| $queens(c, down), move |c| $queens(c, rest));
                a + b
            }
        };
    }

    #[inline(always)]
    fn in_turn<A, B>(_: (), a: impl FnOnce(()) -> A, b: impl FnOnce(()) -> B) -> (A, B) {
        (a(()), b(()))
    }
    #[inline(always)]
    fn by_filch<A: Send, B: Send>(
        mut ctx: Ctx<'_>,
        a: impl FnOnce(Ctx<'_>) -> A + Send,
        b: impl FnOnce(Ctx<'_>) -> B + Send,
    ) -> (A, B) {
        ctx.join(a, b)
    }
    #[inline(always)]
    fn by_filch_local<A: Send, B: Send>(
        _: (),
        a: impl FnOnce(()) -> A + Send,
        b: impl FnOnce(()) -> B + Send,
    ) -> (A, B) {
        filch_pool::join(|| a(()), || b(()))
    }
    #[inline(always)]
    fn by_rayon<A: Send, B: Send>(_: (), a: impl FnOnce(()) -> A + Send, b: impl FnOnce(()) -> B + Send) -> (A, B) {
        rayon::join(|| a(()), || b(()))
    }
    #[inline(always)]
    fn by_chili<A: Send, B: Send>(
        scope: &mut chili::Scope<'_>,
        a: impl FnOnce(&mut chili::Scope<'_>) -> A + Send,
        b: impl FnOnce(&mut chili::Scope<'_>) -> B + Send,
    ) -> (A, B) {
        scope.join(a, b)
    }

    works!(fib_serial, sum_serial, queens_serial, ctx: (), in_turn);
    works!(fib_ctx, sum_ctx, queens_ctx, ctx: Ctx<'_>, by_filch);
    works!(fib_join, sum_join, queens_join, ctx: (), by_filch_local);
    works!(fib_rayon, sum_rayon, queens_rayon, ctx: (), by_rayon);
    works!(fib_chili, sum_chili, queens_chili, ctx: &mut chili::Scope<'_>, by_chili);
}

/// The five ways through one fork-join work.
macro_rules! fork_join {
    ($list:ident, $systems:ident, $work:expr, $operations:expr, $repeat:expr, $input:expr,
     $serial:ident, $ctx:ident, $join:ident, $rayon:ident, $chili:ident) => {{
        let (operations, repeat, threads) = ($operations as f64 * $repeat as f64, $repeat, $systems.threads);
        let mut add = |system, turn| $list.push(entry($work, threads, system, operations, turn));
        let input = $input;
        add("serial", turn(repeat, move || fork::$serial((), input())));
        let (input, pool) = ($input, Arc::clone(&$systems.filch));
        add(
            "filch_ctx",
            Box::new(move || pool.run(|mut ctx| again(repeat, || ctx.join(|c| fork::$ctx(c, input()), |_| ()).0))),
        );
        let (input, pool) = ($input, Arc::clone(&$systems.filch));
        add("filch_join", Box::new(move || pool.install(|| again(repeat, || fork::$join((), input())))));
        let (input, pool) = ($input, Arc::clone(&$systems.rayon));
        add("rayon", Box::new(move || pool.install(|| again(repeat, || fork::$rayon((), input())))));
        let (input, pool) = ($input, Arc::clone(&$systems.chili));
        add(
            "chili",
            Box::new(move || {
                let mut scope = pool.scope();
                again(repeat, || fork::$chili(&mut scope, input()));
            }),
        );
    }};
}

fn entry(work: &'static str, threads: usize, system: &'static str, operations: f64, turn: Turn) -> Entry {
    Entry { work, threads, system, operations, turn, times: Vec::new(), cpu: 0.0 }
}

fn again<R>(repeat: usize, mut body: impl FnMut() -> R) {
    for _ in 0..repeat {
        black_box(body());
    }
}

fn turn<R>(repeat: usize, mut body: impl FnMut() -> R + 'static) -> Turn {
    Box::new(move || again(repeat, &mut body))
}

/// Counts down tasks and wakes the main thread after the last.
struct Countdown {
    left: AtomicUsize,
    waiter: Thread,
}

impl Countdown {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(count), waiter: thread::current() })
    }

    fn done(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waiter.unpark();
        }
    }

    fn wait(&self) {
        while self.left.load(Ordering::Acquire) > 0 {
            thread::park();
        }
    }
}

/// A million tasks that only count, from one task inside the pool or from the main thread.
fn storms(list: &mut Vec<Entry>, systems: &Systems, count: usize) {
    let threads = systems.threads;
    let mut add = |work, system, turn: Turn| list.push(entry(work, threads, system, count as f64, turn));
    let pool = Arc::clone(&systems.filch);
    add(
        "storm_outside",
        "filch_spawn",
        Box::new(move || {
            let end = Countdown::new(count);
            for _ in 0..count {
                let end = Arc::clone(&end);
                pool.detach(move || end.done());
            }
            end.wait();
        }),
    );
    let pool = Arc::clone(&systems.filch);
    add(
        "storm_inside",
        "filch_spawn",
        Box::new(move || {
            let end = Countdown::new(count);
            pool.install(|| {
                for _ in 0..count {
                    let end = Arc::clone(&end);
                    pool.detach(move || end.done());
                }
            });
            end.wait();
        }),
    );
    let pool = Arc::clone(&systems.rayon);
    add(
        "storm_outside",
        "rayon",
        Box::new(move || {
            let end = Countdown::new(count);
            for _ in 0..count {
                let end = Arc::clone(&end);
                pool.spawn(move || end.done());
            }
            end.wait();
        }),
    );
    let pool = Arc::clone(&systems.rayon);
    add(
        "storm_inside",
        "rayon",
        Box::new(move || {
            let end = Countdown::new(count);
            pool.install(|| {
                for _ in 0..count {
                    let end = Arc::clone(&end);
                    rayon::spawn(move || end.done());
                }
            });
            end.wait();
        }),
    );
    let runtime = Arc::clone(&systems.tokio);
    add(
        "storm_outside",
        "tokio",
        Box::new(move || {
            let end = Countdown::new(count);
            for _ in 0..count {
                let end = Arc::clone(&end);
                drop(runtime.spawn(async move { end.done() }));
            }
            end.wait();
        }),
    );
    let runtime = Arc::clone(&systems.tokio);
    add(
        "storm_inside",
        "tokio",
        Box::new(move || {
            let end = Countdown::new(count);
            let inner = Arc::clone(&end);
            drop(runtime.spawn(async move {
                for _ in 0..count {
                    let end = Arc::clone(&inner);
                    drop(tokio::spawn(async move { end.done() }));
                }
            }));
            end.wait();
        }),
    );
    let executor = Arc::clone(&systems.smol);
    add(
        "storm_outside",
        "async_executor",
        Box::new(move || {
            let end = Countdown::new(count);
            for _ in 0..count {
                let end = Arc::clone(&end);
                executor.spawn(async move { end.done() }).detach();
            }
            end.wait();
        }),
    );
    let pool = Arc::clone(&systems.filch);
    add(
        "storm_scope",
        "filch_spawn",
        Box::new(move || {
            let sum = AtomicUsize::new(0);
            pool.scope(|scope| (0..count).for_each(|_| scope.spawn(|_| _ = sum.fetch_add(1, Ordering::Relaxed))));
            assert_eq!(sum.into_inner(), count);
        }),
    );
    let pool = Arc::clone(&systems.rayon);
    add(
        "storm_scope",
        "rayon",
        Box::new(move || {
            let sum = AtomicUsize::new(0);
            pool.scope(|scope| (0..count).for_each(|_| scope.spawn(|_| _ = sum.fetch_add(1, Ordering::Relaxed))));
            assert_eq!(sum.into_inner(), count);
        }),
    );
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

/// Trees of tasks, loops, wake-ups and round trips.
fn others(list: &mut Vec<Entry>, systems: &Systems, count: usize) {
    let threads = systems.threads;
    let expected = count * (count - 1) / 2;
    let mut add = |work, system, operations, turn: Turn| list.push(entry(work, threads, system, operations, turn));
    let tasks = count as f64 * 10.0 / 9.0;
    let pool = Arc::clone(&systems.filch);
    add(
        "skynet",
        "filch_spawn",
        tasks,
        Box::new(move || assert_eq!(pool.install(|| skynet_filch(0, count)), expected)),
    );
    let pool = Arc::clone(&systems.rayon);
    add("skynet", "rayon", tasks, Box::new(move || assert_eq!(pool.install(|| skynet_rayon(0, count)), expected)));
    let runtime = Arc::clone(&systems.tokio);
    add(
        "skynet",
        "tokio",
        tasks,
        Box::new(move || {
            let root = runtime.spawn(skynet_tokio(0, count));
            assert_eq!(runtime.block_on(root).unwrap_or(0), expected);
        }),
    );

    let step = |number: &mut u64| *number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) ^ 1;
    let (pool, mut numbers) = (Arc::clone(&systems.filch), vec![1u64; count]);
    add(
        "parallel_for",
        "filch_join",
        count as f64,
        Box::new(move || pool.install(|| filch_pool::for_each_mut(&mut numbers, step))),
    );
    let (pool, mut numbers) = (Arc::clone(&systems.rayon), vec![1u64; count]);
    add(
        "parallel_for",
        "rayon",
        count as f64,
        Box::new(move || pool.install(|| numbers.par_iter_mut().for_each(step))),
    );

    for (work, trips, time) in [("round_trip", 2000, None), ("wake_up", 20, Some(Duration::from_millis(5)))] {
        let each = move |mut enter: Box<dyn FnMut()>| -> Turn {
            Box::new(move || {
                for _ in 0..trips {
                    if let Some(time) = time {
                        pause(time);
                    }
                    enter();
                }
            })
        };
        let pool = Arc::clone(&systems.filch);
        add(work, "filch_join", f64::from(trips), each(Box::new(move || pool.install(|| _ = black_box(1)))));
        let pool = Arc::clone(&systems.rayon);
        add(work, "rayon", f64::from(trips), each(Box::new(move || pool.install(|| _ = black_box(1)))));
        let runtime = Arc::clone(&systems.tokio);
        add(
            work,
            "tokio",
            f64::from(trips),
            each(Box::new(move || {
                let task = runtime.spawn(async { _ = black_box(1) });
                _ = futures_lite::future::block_on(task);
            })),
        );
    }
    bursts(&mut add, systems);
    if threads > 1 {
        let pool = Arc::clone(&systems.filch);
        add("chain_400", "filch_ctx", 400.0, Box::new(move || pool.run(|ctx| chain(ctx, 400))));
    }
}

/// Short parallel regions with pauses between them. What counts is the processor time: who spins in the pauses shows it.
fn bursts(add: &mut impl FnMut(&'static str, &'static str, f64, Turn), systems: &Systems) {
    const BURSTS: u32 = 40;
    const PAUSE: Duration = Duration::from_millis(3);
    const SIZE: u32 = 22;
    let each = |mut burst: Box<dyn FnMut() -> u64>| -> Turn {
        Box::new(move || {
            for _ in 0..BURSTS {
                black_box(burst());
                pause(PAUSE);
            }
        })
    };
    let pool = Arc::clone(&systems.filch);
    let burst = Box::new(move || pool.run(|ctx| fork::fib_ctx(ctx, SIZE)));
    add("bursts", "filch_ctx", f64::from(BURSTS), each(burst));
    let pool = Arc::clone(&systems.filch);
    let burst = Box::new(move || pool.install(|| fork::fib_join((), SIZE)));
    add("bursts", "filch_join", f64::from(BURSTS), each(burst));
    let pool = Arc::clone(&systems.rayon);
    let burst = Box::new(move || pool.install(|| fork::fib_rayon((), SIZE)));
    add("bursts", "rayon", f64::from(BURSTS), each(burst));
    let pool = Arc::clone(&systems.chili);
    let burst = Box::new(move || fork::fib_chili(&mut pool.scope(), SIZE));
    add("bursts", "chili", f64::from(BURSTS), each(burst));
}

/// Sleeps without being measured, except for the processor time.
fn pause(time: Duration) {
    let began = Instant::now();
    thread::sleep(time);
    PAUSED.fetch_add(began.elapsed().as_nanos() as usize, Ordering::Relaxed);
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

/// Nanoseconds slept on purpose.
static PAUSED: AtomicUsize = AtomicUsize::new(0);

/// The time of one turn. The pauses before wake-ups do not count.
fn measure(entry: &mut Entry) {
    PAUSED.store(0, Ordering::Relaxed);
    let (cpu, began) = (process_seconds(), Instant::now());
    (entry.turn)();
    let time = began.elapsed().as_nanos() as f64 - PAUSED.load(Ordering::Relaxed) as f64;
    entry.cpu += process_seconds() - cpu;
    entry.times.push(time / entry.operations);
}

fn entries(arguments: &Arguments) -> Result<Vec<Entry>> {
    let (fib, depth, queens) = if arguments.full { (35, 24, 13) } else { (32, 20, 12) };
    let forks = fork::serial_fib(fib + 1) - 1;
    let mut seed = 0x1234_5678_9ABC_DEF1;
    let (small, large) = (fork::tree(10, &mut seed), fork::tree(depth, &mut seed));
    let (small, large): (&'static fork::Node, &'static fork::Node) = (Box::leak(small), Box::leak(large));
    let board = fork::Board::new(queens);
    ensure!(fork::queens_serial((), fork::Board::new(8)) == 92, "the queens are wrong");
    for tree in [uts::T1, uts::T3] {
        ensure!(fork::uts_serial((), tree.root()) == tree.nodes, "a tree has not its published size");
    }
    let mut list = Vec::new();
    for threads in [1, 2] {
        let systems = Systems::new(threads)?;
        fork_join!(list, systems, "fib", forks, 1, move || fib, fib_serial, fib_ctx, fib_join, fib_rayon, fib_chili);
        fork_join!(
            list,
            systems,
            "tree_small",
            1023,
            1000,
            move || small,
            sum_serial,
            sum_ctx,
            sum_join,
            sum_rayon,
            sum_chili
        );
        fork_join!(
            list,
            systems,
            "tree_large",
            1 << depth,
            1,
            move || large,
            sum_serial,
            sum_ctx,
            sum_join,
            sum_rayon,
            sum_chili
        );
        fork_join!(
            list,
            systems,
            "queens",
            1,
            1,
            move || board,
            queens_serial,
            queens_ctx,
            queens_join,
            queens_rayon,
            queens_chili
        );
        for (work, tree) in [("uts_t1", uts::T1), ("uts_t3", uts::T3)] {
            let root = move || tree.root();
            fork_join!(list, systems, work, tree.nodes, 1, root, uts_serial, uts_ctx, uts_join, uts_rayon, uts_chili);
        }
        let count = 1_000_000;
        storms(&mut list, &systems, count);
        others(&mut list, &systems, count);
    }
    if let Some(only) = &arguments.only {
        list.retain(|entry| entry.work.contains(only.as_str()));
    }
    Ok(list)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut list = entries(&arguments)?;
    list.iter_mut().for_each(|entry| (entry.turn)());
    for _ in 0..arguments.rounds {
        list.iter_mut().for_each(measure);
    }
    let row = |entry: &mut Entry| Row {
        work: entry.work,
        threads: entry.threads,
        system: entry.system,
        ns_per_op: median(&mut entry.times),
        best_ns_per_op: entry.times.first().copied().unwrap_or(f64::NAN),
        cpu_s: entry.cpu / arguments.rounds as f64,
    };
    let rows: Vec<Row> = list.iter_mut().map(row).collect();
    #[expect(clippy::print_stdout, reason = "the result of the command")]
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("{}", table(&rows));
    }
    Ok(())
}

/// Every row, with its ratio to rayon in the same work and with the same threads.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.set_header(["work", "threads", "system", "ns/op", "best", "cpu s", "of rayon", "of chili"]);
    for row in rows {
        let of = |system: &str| {
            let rival =
                rows.iter().find(|other| (other.work, other.threads, other.system) == (row.work, row.threads, system));
            rival.map_or_else(String::new, |rival| format!("{:.2}", row.ns_per_op / rival.ns_per_op))
        };
        table.add_row([
            row.work.to_owned(),
            row.threads.to_string(),
            row.system.to_owned(),
            format!("{:.2}", row.ns_per_op),
            format!("{:.2}", row.best_ns_per_op),
            format!("{:.3}", row.cpu_s),
            of("rayon"),
            of("chili"),
        ]);
    }
    table
}
