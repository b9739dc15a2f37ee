//! How a pool shall be, and starting it.
//!
//! It checks what it was told before it starts a thread. Nothing of it is left once the pool runs.

use std::fmt;
use std::io;
use std::sync::mpsc;
use std::thread::available_parallelism;

use crate::pin;
use crate::pool::Pool;
use crate::registry::{Hook, PanicHandler, Registry};
use crate::sync::{Arc, thread};
use crate::topology::{Topology, Victims};
use crate::watch::TaskHooks;
use crate::worker;

/// The most workers one pool can have.
const MAX_THREADS: usize = 1 << 16;

/// With fewer workers than this there is no order of victims to choose, so the system is not asked.
const ORDERED_FROM: usize = 3;

/// The stack of a thread unless told; only the number of slots for forks depends on it.
const DEFAULT_STACK: usize = 2 << 20;

/// How a pool shall be.
///
/// ```
/// use filch_pool::Pool;
///
/// let pool = Pool::builder()
///     .threads(2)
///     .thread_names(|index| format!("crunch-{index}"))
///     .stack_size(8 << 20)
///     .panic_handler(|_| ())
///     .on_start(|_| ())
///     .build()
///     .unwrap();
/// assert_eq!(pool.threads(), 2);
/// ```
#[derive(Default)]
#[must_use = "nothing happens before `build`"]
pub struct Builder {
    threads: Option<usize>,
    name: Option<Box<dyn FnMut(usize) -> String>>,
    stack_size: Option<usize>,
    topology: Option<Topology>,
    pinned: bool,
    panic_handler: Option<PanicHandler>,
    start_hook: Option<Hook>,
    exit_hook: Option<Hook>,
    task_hooks: TaskHooks,
    helps_anyone: bool,
}

impl fmt::Debug for Builder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Builder");
        shown.field("threads", &self.threads).field("stack_size", &self.stack_size);
        shown.field("topology", &self.topology).field("pinned", &self.pinned).finish_non_exhaustive()
    }
}

impl Builder {
    /// How many workers; as many as the machine runs at once unless told.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Names each worker's thread, given its index.
    pub fn thread_names(mut self, name: impl FnMut(usize) -> String + 'static) -> Self {
        self.name = Some(Box::new(name));
        self
    }

    /// The stack of each worker, in bytes.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Ties each worker to one processor: worker 0 to the first of the topology, and so on.
    ///
    /// It takes only processors the process may use. On systems other than Linux building such a pool fails.
    pub fn pin(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// Says where the processors lie, instead of asking the system. It decides whom a worker robs first, and which
    /// processor it is tied to if it is pinned.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Called with the panic of a task nobody waits for. Without it such panics end with their message.
    pub fn panic_handler(mut self, handler: impl Fn(Box<dyn std::any::Any + Send>) + Send + Sync + 'static) -> Self {
        self.panic_handler = Some(Box::new(handler));
        self
    }

    /// Called on each worker before its first task, with its index.
    pub fn on_start(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.start_hook = Some(Box::new(hook));
        self
    }

    /// Called on each worker after its last task, with its index.
    pub fn on_exit(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.exit_hook = Some(Box::new(hook));
        self
    }

    /// Called on the worker right before each spawned task, with the worker's index. Forks are not watched, nor tasks that
    /// are cancelled before they start.
    pub fn on_task_start(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.task_hooks.start = Some(Box::new(hook));
        self
    }

    /// Called on the worker right after each spawned task, also if it panicked, with the worker's index.
    pub fn on_task_stop(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.task_hooks.stop = Some(Box::new(hook));
        self
    }

    /// Lets a worker that waits for a fork, a scope or a handle run whatever there is, once it finds nothing that belongs
    /// to what it waits for.
    ///
    /// That keeps all workers busy, at a price: unrelated tasks run on top of the waiting one. One that wants a lock the
    /// waiting one holds waits for ever, a long one keeps the waiting one from going on, and stacks may grow with the
    /// number of tasks. Without it none of this can happen.
    pub fn help_anyone(mut self, helps: bool) -> Self {
        self.helps_anyone = helps;
        self
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// If no or too many threads were asked for, if a name contains a zero byte, if a worker cannot be pinned where it shall
    /// be, or if the system refuses a thread.
    pub fn build(mut self) -> io::Result<Pool> {
        let available = || available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or_else(available);
        if threads == 0 || threads > MAX_THREADS {
            return Err(refusal(format!("a pool has 1 to {MAX_THREADS} threads, not {threads}")));
        }
        let mut registry = Registry::new(threads, self.stack_size.unwrap_or(DEFAULT_STACK));
        let cpus = self.place(threads, &mut registry)?;
        registry.panic_handler = self.panic_handler.take();
        registry.start_hook = self.start_hook.take();
        registry.exit_hook = self.exit_hook.take();
        if self.task_hooks.start.is_some() || self.task_hooks.stop.is_some() {
            registry.task_hooks = Some(Box::new(self.task_hooks));
        }
        registry.helps_anyone = self.helps_anyone;
        let mut pool = Pool { registry: Arc::new(registry), threads: Vec::with_capacity(threads) };
        let (pinned, pins) = mpsc::channel();
        for index in 0..threads {
            let name = self.name.as_mut().map_or_else(|| format!("filch-{index}"), |name| name(index));
            if name.contains('\0') {
                return Err(refusal(format!("the name of worker {index} contains a zero byte: {name:?}")));
            }
            let mut builder = thread::Builder::new().name(name);
            if let Some(bytes) = self.stack_size {
                builder = builder.stack_size(bytes);
            }
            let registry = Arc::clone(&pool.registry);
            let pin = cpus.get(index).map(|cpu| (*cpu, pinned.clone()));
            pool.registry.count_alive();
            let spawned = builder.spawn(move || {
                if let Some((cpu, pinned)) = pin {
                    // Nobody listens any more only if the pool is already on its way out.
                    let _ = pinned.send(pin::to(cpu));
                }
                worker::run(registry, index);
            });
            // If this fails, dropping the pool ends the threads that were started.
            pool.threads.push(spawned.inspect_err(|_| pool.registry.count_ended())?);
        }
        pins.iter().take(cpus.len()).collect::<io::Result<()>>()?;
        Ok(pool)
    }

    /// Finds out who is whose neighbour, and which processor each worker is tied to: one for each, or none at all.
    fn place(&mut self, threads: usize, registry: &mut Registry) -> io::Result<Vec<usize>> {
        let topology = match self.topology.take() {
            Some(topology) => topology,
            None if self.pinned => Topology::read()?,
            // Without an answer everybody is equally near.
            None if threads >= ORDERED_FROM => Topology::read().unwrap_or_else(|_| Topology::new([])),
            None => Topology::new([]),
        };
        registry.victims = Victims::new(&topology, threads);
        if !self.pinned {
            return Ok(Vec::new());
        }
        let allowed = pin::allowed()?;
        let cpu = |worker| {
            let cpu = topology.cpu_of(worker).ok_or_else(|| refusal("there is no processor to pin to".to_owned()))?;
            let may = allowed.binary_search(&cpu.id).is_ok();
            may.then_some(cpu.id).ok_or_else(|| {
                refusal(format!("worker {worker} cannot be pinned to processor {}: it may use {allowed:?}", cpu.id))
            })
        };
        (0..threads).map(cpu).collect()
    }
}

fn refusal(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
