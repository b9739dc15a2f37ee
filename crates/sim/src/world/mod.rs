//! A whole cluster in virtual time: the coordinator and worker machines of the core, a modelled network between them, and
//! whatever goes wrong.
//!
//! Re-implements no decision: it delivers messages, runs tasks as long as they take, and fires timers. What the machines
//! do then is what they do in a real cluster. The same seed gives the same world, event for event; its [`World::digest`]
//! is the proof.

use std::hint::black_box;

use filch_core::coordinator;
use filch_core::map::Map;
use filch_core::policy::PolicyError;
use filch_core::steal::StealStats;
use filch_core::wire::Message;
use filch_core::worker::{self, WorkerMachine};
use filch_core::{Cause, Config, Rng, Span, Status, TaskId, TaskSpec, Time, WorkerId, WorkerSpec};

use smallvec::SmallVec;

use crate::cache::Cache;
use crate::calendar::Calendar;
use crate::cluster::Class;
use crate::disk::{Disk, DiskSettings};
use crate::fault::Fault;
use crate::flows::Flows;
use crate::marks::{Mark, Marks, Sample};
use crate::network::Network;
use crate::watch::Watch;
use crate::workload::{Children, NONE, Workload};

mod clients;
mod faults;
mod fetch;
mod messages;
mod seats;
mod stall;
mod tasks;

use clients::Submission;
use seats::Seat;

/// Everything that makes a world.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The settings of the machines.
    pub config: Config,
    /// The workers.
    pub cluster: Vec<Class>,
    /// The network between them.
    pub network: Network,
    /// The disk of the coordinator.
    pub disk: DiskSettings,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
    /// Seed of everything random in the world.
    pub seed: u64,
    /// Whether what happens is kept, to be shown later.
    pub keep_marks: bool,
    /// Whether every invariant is checked after every event.
    pub watch: bool,
}

/// What is to happen.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A frame arrives.
    Deliver(u32),
    /// A worker hears that nobody is there any more to take a frame of its own.
    Refused(u32),
    /// A task that runs comes to its end.
    RunEnds { node: u32, run: u32, generation: u32 },
    /// A worker's timer.
    Timer(u32),
    /// A coordinator's.
    CoordinatorTimer(u32),
    /// A write of a coordinator is durable, or refused.
    Synced { seat: u32, number: u64 },
    /// A coordinator begins where the last one left off.
    TakeOver,
    /// A transfer comes to its end.
    Fetched { flow: u32, generation: u32 },
    /// A worker connects to the latest coordinator.
    Connect(u32),
    /// Somebody looks whether what was submitted was acknowledged.
    Resubmit(u32),
    /// The workers have had the time to join.
    Open,
    /// The next tasks arrive.
    Arrive,
    /// A running task spawns another, if it still runs.
    Spawn { child: u32, run: u32, generation: u32 },
    /// What a task spawned reaches the coordinator.
    Spawned(u32),
    /// Somebody cancels a task.
    Cancel(u32),
    /// Something goes wrong.
    Fault(u32),
    /// A worker that died, or was paused, is back.
    Back(u32),
    /// A network that was cut is whole again.
    Whole(u32),
}

/// What one step of a machine sends to the same place, on its way: it comes, or is lost, together and in order.
#[derive(Debug)]
struct Frame {
    route: Route,
    /// Empty once it has come.
    messages: Vec<Parcel>,
}

/// From where to where.
#[derive(Clone, Copy, Debug)]
struct Route {
    /// None is the coordinator.
    to: Option<u32>,
    /// Which coordinator it goes to or comes from.
    seat: u32,
    /// The life of the worker it goes to or, if it goes to the coordinator, comes from.
    life: u32,
    from: Sender,
    /// The worker it is meant for, if it is for a peer.
    peer: WorkerId,
}

/// No worker.
const NOBODY: WorkerId = WorkerId::from_bits(u64::MAX);

/// A message in a frame.
#[derive(Clone, Debug)]
struct Parcel {
    message: Message,
    heartbeat: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Coordinator,
    /// A worker that has been welcomed, and where it is.
    Worker(WorkerId, u32),
    /// One that has not.
    Stranger(u32),
}

/// In one line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Running {
    node: u32,
    task: TaskId,
    attempt: u32,
    index: u32,
    generation: u32,
    since: Time,
    /// When it comes to its end.
    until: Time,
    live: bool,
    /// Whether it really executes: not while its worker stands still, and not after it was told to stop.
    executes: bool,
    stopping: Option<Cause>,
    /// The transfer of its input, while that is under way, and how long it takes after that.
    flow: u32,
    takes: Span,
}

impl Running {
    const UNUSED: Running = Running {
        node: NONE,
        task: TaskId::from_bits(0),
        attempt: 0,
        index: NONE,
        generation: 0,
        since: Time::ZERO,
        until: Time::ZERO,
        live: false,
        executes: false,
        stopping: None,
        flow: NONE,
        takes: Span::ZERO,
    };
}

/// What every step looks at comes first, with the machine's own part of that behind it.
#[repr(C)]
struct Node {
    alive: bool,
    /// As in its [`Line`].
    life: u32,
    /// The coordinator it is connected to.
    seat: u32,
    /// Who is in the same part of a network that is cut; 0 is where the coordinator is.
    part: u32,
    class: u32,
    /// When its next timer stands in the calendar.
    timer: Time,
    paused_until: Time,
    /// How far its clock is ahead, and how much faster it goes.
    clock: Clock,
    /// Runs take this much longer.
    slowness: f64,
    busy: Span,
    runs: SmallVec<[u32; 4]>,
    /// When the latest message to and from the coordinator arrives, so that none overtakes another.
    latest: (Time, Time),
    machine: WorkerMachine,
    spec: WorkerSpec,
    paused_at: Time,
    /// What came while it was paused.
    missed: Vec<Happening>,
    /// The cut because of which nobody hears it, or it hears nobody; 0 if there is none.
    mute: u32,
    deaf: u32,
}

/// Where a worker is connected to the network: all of it that a coordinator's step looks at, and so little that it fits into
/// a cache for very many workers.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// How often the worker has died.
    life: u32,
    /// The frame to it that a coordinator is filling.
    open: u32,
}

/// A clock that is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Clock {
    ahead: Span,
    /// Parts in a million that it goes too fast.
    fast_ppm: u32,
}

impl Clock {
    fn shows(self, now: Time) -> Time {
        if self == Clock::default() {
            return now;
        }
        let gained = (u128::from(now.0) * u128::from(self.fast_ppm) / 1_000_000) as u64;
        Time(now.0.saturating_add(gained)) + self.ahead
    }

    /// When it shows at least `shown`.
    fn when(self, shown: Time) -> Time {
        if self == Clock::default() {
            return shown;
        }
        let left = u128::from(shown.0.saturating_sub(self.ahead.0)) * 1_000_000;
        Time(left.div_ceil(1_000_000 + u128::from(self.fast_ppm)) as u64)
    }
}

/// What became of a task.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// When it was submitted.
    pub arrived: Time,
    /// When it first began.
    pub begun: Time,
    /// When it was settled.
    pub ended: Time,
    /// How it ended; none yet.
    pub status: Option<Status>,
    /// How often it began.
    pub runs: u16,
    /// Whether a run of it has ended well.
    pub finished: bool,
    /// The worker of its last run.
    pub node: u32,
}

/// The id of a task that no coordinator has taken in. Nobody else has it.
const UNNAMED: TaskId = TaskId::from_bits(u64::MAX);

const UNBORN: Fate = Fate {
    arrived: Time::NEVER,
    begun: Time::NEVER,
    ended: Time::NEVER,
    status: None,
    runs: 0,
    finished: false,
    node: NONE,
};

/// What a world counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tasks that arrived.
    pub submitted: u64,
    /// Tasks that were refused at submission.
    pub refused: u64,
    /// Messages that were sent.
    pub messages: u64,
    /// Steps of the machines and deliveries of messages, heartbeats not counted.
    pub events: u64,
    /// Deliveries and steps that were heartbeats.
    pub heartbeats: u64,
    /// Tasks that changed hands.
    pub moved: u64,
    /// Runs that began.
    pub runs: u64,
    /// Workers that died.
    pub deaths: u64,
    /// Coordinators that took over from another.
    pub takeovers: u64,
}

impl Counts {
    /// The sum of two.
    #[must_use]
    pub fn and(self, other: Counts) -> Counts {
        Counts {
            submitted: self.submitted + other.submitted,
            refused: self.refused + other.refused,
            messages: self.messages + other.messages,
            events: self.events + other.events,
            heartbeats: self.heartbeats + other.heartbeats,
            moved: self.moved + other.moved,
            runs: self.runs + other.runs,
            deaths: self.deaths + other.deaths,
            takeovers: self.takeovers + other.takeovers,
        }
    }
}

/// The simulated cluster.
pub struct World {
    now: Time,
    rng: Rng,
    setting: Setting,
    workload: Workload,
    children: Children,
    /// Coordinators, the latest last; there is one unless some were replaced.
    seats: Vec<Seat>,
    /// What they have written; none if everything is durable at once.
    disk: Option<Disk>,
    /// What was submitted together; kept if there is a disk.
    submissions: Vec<Submission>,
    /// Which tasks were submitted durably; empty without a disk.
    stored: Vec<bool>,
    /// Descriptions of tasks on their way to the disk.
    specs: Map<u32, TaskSpec>,
    /// The worker that a task was pinned to when it was first submitted, if it was.
    pins: Map<u32, Option<WorkerId>>,
    nodes: Vec<Node>,
    /// By worker.
    lines: Vec<Line>,
    /// Whether every frame comes, after the same time: nothing is lost, doubled or cut off, ever.
    steady: bool,
    calendar: Calendar<Happening>,
    frames: Vec<Frame>,
    free_frames: Vec<u32>,
    /// Frames that are being filled, in the order they were begun.
    open: Vec<u32>,
    runs: Vec<Running>,
    free_runs: Vec<u32>,
    /// Transfers that share links, and the run that each is for.
    flows: Option<Flows>,
    flow_runs: Vec<u32>,
    /// When the latest message between two peers arrives.
    latest: Map<(u32, u32), Time>,
    next_arrival: u32,
    /// Arrivals are counted from here: when all workers have joined, or have had the time to.
    opened: Time,
    joined: u32,
    ids: Vec<TaskId>,
    /// The index of a task by its slot.
    index_of: Vec<u32>,
    fates: Vec<Fate>,
    settled: u64,
    counts: Counts,
    /// Messages sent that were heartbeats, and whether one is being answered.
    beats_sent: u64,
    answers_beat: bool,
    digest: u64,
    steals: StealStats,
    marks: Option<Marks>,
    watch: Option<Watch>,
    last_end: Time,
    outputs: Vec<worker::Output>,
    told: Vec<coordinator::Output>,
    /// Tasks that failed because nobody could ever run them, and the first of them.
    hopeless: u64,
    first_hopeless: Option<u32>,
    /// What each worker has warm; empty where nothing makes tasks cheaper.
    caches: Vec<Cache>,
}

impl World {
    /// A world in which nothing has happened.
    ///
    /// # Errors
    /// If the default policy of the configuration cannot be made.
    pub fn new(setting: Setting, workload: Workload) -> Result<World, PolicyError> {
        let mut config = setting.config.clone();
        config.seed = setting.seed;
        // Nobody in a world asks why a task went where it did.
        config.limits.decisions_kept = 0;
        let stores = setting.disk.sync > Span::ZERO || setting.faults.iter().any(|fault| fault.what.is_takeover());
        let disk = stores.then(Disk::new);
        let first = Seat::new(&config, 1, stores, Time::ZERO)?;
        let mut names = workload.names.clone();
        let mut nodes = Vec::new();
        let mut rng = Rng::new(setting.seed ^ 0x51_7c_c1_b7_27_22_0a_95);
        for (at, class) in setting.cluster.iter().enumerate() {
            let extra = workload.capabilities_of(class);
            for _ in 0..class.count {
                let spec = class.spec(nodes.len() as u64, &extra, &mut names);
                nodes.push(Node {
                    seat: 0,
                    machine: WorkerMachine::new(&config, spec.clone(), rng.next_u64()),
                    spec,
                    class: at as u32,
                    life: 0,
                    alive: true,
                    paused_at: Time::ZERO,
                    paused_until: Time::ZERO,
                    missed: Vec::new(),
                    mute: 0,
                    deaf: 0,
                    slowness: 1.0,
                    part: 0,
                    timer: Time::NEVER,
                    runs: SmallVec::new(),
                    busy: Span::ZERO,
                    clock: Clock::default(),
                    latest: (Time::ZERO, Time::ZERO),
                });
            }
        }
        let tasks = workload.tasks.len();
        let watch = setting.watch.then(|| Watch::new(&setting.config, nodes.len()));
        let mut world = World {
            now: Time::ZERO,
            rng,
            children: workload.children(),
            seats: vec![first],
            disk,
            submissions: Vec::new(),
            stored: vec![false; if stores { tasks } else { 0 }],
            specs: Map::default(),
            pins: Map::default(),
            calendar: Calendar::default(),
            frames: Vec::new(),
            free_frames: Vec::new(),
            open: Vec::new(),
            runs: Vec::new(),
            free_runs: Vec::new(),
            flows: setting.network.links(nodes.len()),
            flow_runs: Vec::new(),
            latest: Map::default(),
            next_arrival: 0,
            opened: Time::NEVER,
            joined: 0,
            ids: vec![UNNAMED; tasks],
            index_of: Vec::new(),
            fates: vec![UNBORN; tasks],
            settled: 0,
            counts: Counts::default(),
            beats_sent: 0,
            answers_beat: false,
            digest: 0xcbf2_9ce4_8422_2325,
            steals: StealStats::default(),
            marks: setting.keep_marks.then(Marks::default),
            watch,
            last_end: Time::ZERO,
            outputs: Vec::new(),
            told: Vec::new(),
            hopeless: 0,
            first_hopeless: None,
            caches: if workload.warmth.list.is_empty() { Vec::new() } else { vec![Cache::default(); nodes.len()] },
            lines: vec![Line { life: 0, open: NONE }; nodes.len()],
            steady: setting.network.is_steady() && setting.faults.is_empty(),
            nodes,
            workload,
            setting: Setting { config, ..setting },
        };
        for (at, fault) in world.setting.faults.iter().enumerate() {
            world.calendar.push(fault.at, Happening::Fault(at as u32));
        }
        for node in 0..world.nodes.len() as u32 {
            world.input(node, worker::Input::Connected);
        }
        world.calendar.push(Time::ZERO + world.setting.config.limits.lease, Happening::Open);
        Ok(world)
    }

    // ---- looking at it ----

    /// The present.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// The workload it plays.
    #[must_use]
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// What makes it.
    #[must_use]
    pub fn setting(&self) -> &Setting {
        &self.setting
    }

    /// What became of each task.
    #[must_use]
    pub fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// What it counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// When the last task that ended did so.
    #[must_use]
    pub fn last_end(&self) -> Time {
        self.last_end
    }

    /// A number made from everything that has happened, in order.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// What happened, if it was kept.
    #[must_use]
    pub fn marks(&self) -> Option<&Marks> {
        self.marks.as_ref()
    }

    /// Seconds each worker ran something, added over its slots, and its class.
    pub fn busy(&self) -> impl Iterator<Item = (u32, Span)> + '_ {
        self.nodes.iter().map(|node| (node.class, node.busy))
    }

    /// How many tasks each worker has queued, and how many it runs.
    pub fn queues(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.nodes.iter().map(|node| (node.machine.depth(), node.machine.running()))
    }

    /// What all workers counted of their steals.
    #[must_use]
    pub fn steals(&self) -> StealStats {
        let mut all = self.steals.clone();
        for node in self.nodes.iter().filter(|node| node.alive) {
            all.add(node.machine.steal_stats());
        }
        all
    }

    /// Whether every task that arrived or will arrive is settled.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.settled + self.counts.refused == self.workload.tasks.len() as u64
    }

    fn first_arrival(&self) -> Time {
        let mut rest = self.workload.tasks[self.next_arrival as usize..].iter();
        rest.find(|task| task.spawned_by == NONE).map_or(Time::NEVER, |task| self.opened + Span(task.at.0))
    }

    // ---- going on ----

    /// Goes on until every task is settled, or nothing happens any more that could change anything, or `until`. In the second
    /// case [`World::stuck`] says what waits and why.
    ///
    /// # Errors
    /// The invariant that was broken.
    pub fn run(&mut self, until: Time) -> Result<(), String> {
        let patience = self.patience();
        let (mut before, mut ask_at) = (self.progress(), self.now + patience);
        while !self.is_done() && self.go_on(until)? {
            if self.now < ask_at {
                continue;
            }
            let now = std::mem::replace(&mut before, self.progress());
            if now == before {
                match self.awaited() {
                    // Nothing can change before that.
                    Some(next) => ask_at = next.max(self.now) + patience,
                    None => break,
                }
            } else {
                ask_at = self.now + patience;
            }
        }
        Ok(())
    }

    /// Goes on until `until`, whether every task is settled or not.
    ///
    /// # Errors
    /// The invariant that was broken.
    pub fn rest(&mut self, until: Time) -> Result<(), String> {
        while self.go_on(until)? {}
        Ok(())
    }

    /// One happening, and whether there was one before `until`.
    fn go_on(&mut self, until: Time) -> Result<bool, String> {
        if self.next(until).is_none() {
            return Ok(false);
        }
        match self.watch.as_mut().and_then(|watch| watch.broken.take()) {
            Some(broken) => Err(format!("at {}: {broken}", Span(self.now.0))),
            None => Ok(true),
        }
    }

    /// Tasks that were not with whoever should have had them. Where no message is lost and nobody dies there are none.
    #[must_use]
    pub fn found_missing(&self) -> u64 {
        self.seats.iter().map(|seat| seat.coordinator.found_missing()).sum()
    }

    /// What somebody still holds although every task is settled; nothing if all is well.
    #[must_use]
    pub fn leftovers(&self) -> Option<String> {
        let running = self.nodes.iter().position(|node| !node.runs.is_empty());
        if let Some(node) = running {
            return Some(format!("worker {node} still runs something although every task is settled"));
        }
        let holding = self.nodes.iter().position(|node| node.alive && node.machine.holds().next().is_some());
        if let Some(node) = holding {
            let held = self.nodes[node].machine.holds().next();
            return Some(format!("worker {node} still holds {held:?} although every task is settled"));
        }
        let scheduler = self.leader().coordinator.scheduler();
        let reserved = scheduler.workers().find(|worker| scheduler.holds(*worker).is_some_and(|(count, _)| count > 0));
        reserved.map(|worker| {
            format!("the scheduler believes that {worker} holds something although every task is settled")
        })
    }

    /// The first tasks that have no outcome, with why.
    #[must_use]
    pub fn unsettled(&self) -> String {
        let scheduler = self.leader().coordinator.scheduler();
        let open = self.fates.iter().enumerate().filter(|(_, fate)| fate.status.is_none()).take(3);
        let told = open.map(|(index, fate)| {
            let label = self.workload.label(index as u32);
            if fate.arrived == Time::NEVER {
                return format!("{label} has not arrived");
            }
            format!("{label}: {:?}", scheduler.explain(self.ids[index]))
        });
        told.collect::<Vec<_>>().join("; ")
    }

    /// One happening. None if there is none before `until`.
    pub fn next(&mut self, until: Time) -> Option<()> {
        let World { calendar, nodes, frames, runs, seats, .. } = self;
        let (at, what) = calendar.pop(|what| load_ahead(what, nodes, frames, runs, seats))?;
        if at > until {
            self.calendar.push(at, what);
            return None;
        }
        if self.marks.as_ref().is_some_and(|marks| marks.wants_sample(at)) {
            self.sample_queues(at);
        }
        self.now = at;
        self.happen(what);
        Some(())
    }

    fn note(&mut self, kind: u64, value: u64) {
        let mixed = (self.digest ^ kind ^ self.now.0.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.digest = (mixed ^ value).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }

    fn mark(&mut self, mark: impl FnOnce() -> Mark) {
        if let Some(marks) = &mut self.marks {
            marks.push(self.now, mark());
        }
    }

    /// Notes what waits at the workers, for pictures.
    fn sample_queues(&mut self, at: Time) {
        let depths = self.nodes.iter().filter(|node| node.alive).map(|node| node.machine.depth());
        let (queued, longest) = depths.fold((0, 0), |(sum, most), depth| (sum + u64::from(depth), depth.max(most)));
        if let Some(marks) = &mut self.marks {
            marks.sample(Sample { at, queued, longest });
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Deliver(at) => self.deliver(at),
            Happening::Refused(at) => self.refused(at),
            Happening::RunEnds { node, run, generation } => self.run_ends(node, run, generation),
            Happening::Timer(node) => self.timer(node),
            Happening::CoordinatorTimer(seat) => {
                let found = &mut self.seats[seat as usize];
                if found.alive && found.timer <= self.now {
                    found.timer = Time::NEVER;
                    if found.coordinator.next_timer().is_some_and(|at| at <= self.now) {
                        self.count_step(1, 0);
                        self.tell(seat, coordinator::Input::Tick);
                    } else {
                        self.set_coordinator_timer(seat);
                    }
                }
            }
            Happening::Synced { seat, number } => self.synced(seat, number),
            Happening::TakeOver => self.take_over(),
            Happening::Fetched { flow, generation } => self.fetched(flow, generation),
            Happening::Connect(node) => self.connect(node),
            Happening::Resubmit(at) => self.resubmit(at),
            Happening::Open => self.open(),
            Happening::Arrive => self.arrive(),
            Happening::Spawn { child, run, generation } => self.spawn(child, run, generation),
            Happening::Spawned(index) => self.submit_spawned(index),
            Happening::Cancel(index) => self.cancel(index),
            Happening::Fault(at) => self.go_wrong(at),
            Happening::Back(node) => self.come_back(node),
            Happening::Whole(part) => self.make_whole(part),
        }
    }
}

/// Reads a word of each line of memory that what is to happen will look at. With very many workers none of them is in a cache;
/// those of several happenings come at the same time if they are read together, and one after another otherwise.
fn load_ahead(what: &Happening, nodes: &[Node], frames: &[Frame], runs: &[Running], seats: &[Seat]) {
    let node = match *what {
        Happening::Deliver(frame) => {
            let Frame { route, messages } = &frames[frame as usize];
            match (route.to, route.from, messages.first()) {
                (Some(node), ..) => node,
                (None, Sender::Worker(worker, _), Some(first)) => {
                    return seats[route.seat as usize].coordinator.load_ahead(worker, &first.message);
                }
                (None, ..) => return,
            }
        }
        Happening::RunEnds { node, run, .. } => {
            black_box(runs[run as usize].live);
            node
        }
        Happening::Timer(node) => node,
        _ => return,
    };
    let node = &nodes[node as usize];
    black_box(node.paused_until);
    node.machine.load_ahead();
}

impl World {
    /// The books of the scheduler, judged by itself.
    fn watch_coordinator(&mut self, seat: u32) {
        if let Err(violation) = self.seats[seat as usize].coordinator.scheduler().check()
            && let Some(watch) = &mut self.watch
        {
            watch.says(format!("the scheduler's books are wrong: {violation}"));
        }
    }
}
