//! Random clusters, workloads and faults from a seed, with every invariant checked after every event. A case that breaks one
//! is made smaller while it still does.

use filch_core::config::{Bind, Take, VictimStrategy};
use filch_core::{Config, Rng, Span, Time};

use crate::cluster::Class;
use crate::disk::DiskSettings;
use crate::fault::{Fault, Happens};
use crate::generate::{Arrival, Duration, Generator};
use crate::network::{Network, Sharing, Spread};
use crate::world::{Counts, Setting, World};

/// How long a case may go on without any task beginning: far longer than any takes that does not hang.
const LONGEST: Span = Span::from_secs(900);
/// How long it may go on at all.
const LONGEST_IN_ALL: Span = Span::from_secs(12 * 3600);
/// Smaller cases tried at the most.
const SHRINKS: u32 = 400;

/// One random case.
#[derive(Clone, Debug)]
pub struct Case {
    seed: u64,
    config: Config,
    cluster: Vec<Class>,
    network: Network,
    disk: DiskSettings,
    workload: Generator,
    faults: Vec<Fault>,
}

/// What a seed came to.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Everything held.
    Sound {
        /// What happened.
        counts: Counts,
    },
    /// Something did not.
    Broken {
        /// What.
        what: String,
        /// The smallest case found that breaks, in words.
        smallest: String,
    },
}

/// Plays the case of a seed, and makes it smaller if it breaks.
#[must_use]
pub fn try_seed(seed: u64) -> Verdict {
    let case = Case::draw(seed);
    match case.play() {
        Ok(counts) => Verdict::Sound { counts },
        Err(what) => {
            let (smallest, what_then) = case.shrink();
            Verdict::Broken { what, smallest: format!("{smallest:#?}\n{what_then}") }
        }
    }
}

impl Case {
    /// The case of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Case {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xf0_22);
        let mut config = Config::default();
        config.scheduling.bind = if rng.below(2) == 0 { Bind::Late } else { Bind::Push };
        config.limits.lease = Span::from_millis(1000 + rng.below(5000) as u64);
        config.stealing.take = [Take::One, Take::Half, Take::Enough][rng.below(3)];
        config.stealing.strategy = [
            VictimStrategy::Random,
            VictimStrategy::LeastLoaded,
            VictimStrategy::MostLoaded,
            VictimStrategy::PowerOfTwo,
            VictimStrategy::Adaptive,
        ][rng.below(5)];
        config.stealing.min_local_queue = rng.below(3) as u32;
        config.stealing.min_victim_queue = 1 + rng.below(4) as u32;
        config.stealing.discovery_interval = Span::from_millis(200 + rng.below(4000) as u64);
        config.retry.max_retries = 10_000;
        // Trouble enough as it is: nobody is set aside for what the network did.
        config.limits.quarantine_after = 0;
        let plain = Class { count: 1 + rng.below(8) as u32, slots: Some(1 + rng.below(3) as u32), ..Class::default() };
        let mut cluster = vec![plain];
        if rng.below(2) == 0 {
            cluster.push(Class {
                name: "large".to_owned(),
                count: 1 + rng.below(3) as u32,
                cores: Some(4.0),
                speed: 0.5 + rng.unit() * 2.0,
                capabilities: vec!["gpu".to_owned()],
                ..Class::default()
            });
        }
        let rough = rng.below(3) > 0;
        let slowest = if rng.below(4) == 0 { 400_000 } else { 20_000 };
        let network = Network {
            latency: Span::from_micros(50 + rng.below(slowest) as u64),
            spread: [Spread::Constant, Spread::Uniform, Spread::LogNormal][rng.below(3)],
            loss: if rough { 0.15 * rng.unit() } else { 0.0 },
            duplication: if rough { 0.15 * rng.unit() } else { 0.0 },
            reordering: rough,
            bandwidth: if rng.below(4) == 0 { 1e6 * (1.0 + rng.unit()) } else { 0.0 },
            coordinator_bandwidth: if rng.below(2) == 0 { 3e6 } else { 0.0 },
            sharing: [Sharing::Simple, Sharing::MaxMin][rng.below(2)],
        };
        // Who is cut off stops in time only where a lease is well above a round trip.
        config.limits.lease = config.limits.lease.max(Span(network.latency.0 * 12));
        let often = |rng: &mut Rng, share: f64| if rng.below(3) == 0 { share * rng.unit() } else { 0.0 };
        let workload = Generator {
            tasks: Some(1 + rng.below(80) as u32),
            duration: [Duration::Constant, Duration::Exponential, Duration::LogNormal, Duration::Pareto][rng.below(4)],
            typical: Span::from_millis(5 + rng.below(3000) as u64),
            most: Span::from_secs(60),
            arrival: [Arrival::AtOnce, Arrival::Poisson, Arrival::Bursts][rng.below(3)],
            rate: 1.0 + rng.unit() * 30.0,
            burst: 10,
            every: Span::from_secs(3),
            input: if rng.below(3) == 0 { 3e6 * rng.unit() } else { 0.0 },
            pushed_to: if rng.below(2) == 0 { 0.3 } else { 0.0 },
            children: if rng.below(4) == 0 { 2 } else { 0 },
            depth: 2,
            kinds: 1 + rng.below(3) as u32,
            cpus: 4,
            wide: if cluster.len() > 1 { often(&mut rng, 0.5) } else { 0.0 },
            urgent: often(&mut rng, 0.5),
            fails: often(&mut rng, 0.2),
            requiring: if cluster.len() > 1 { often(&mut rng, 0.5) } else { 0.0 },
            requires: vec!["gpu".to_owned()],
            exclusive: often(&mut rng, 0.5),
            keyed: often(&mut rng, 0.5),
            keys: 1 + rng.below(4) as u32,
            linked: often(&mut rng, 0.7),
            ..Generator::default()
        };
        let disk = DiskSettings {
            sync: if rng.below(2) == 0 { Span::from_micros(100 + rng.below(100_000) as u64) } else { Span::ZERO },
            spread: [Spread::Constant, Spread::Uniform, Spread::LogNormal][rng.below(3)],
        };
        // The coordinator hears nobody while the disk does not answer; that must not take a large part of a lease.
        config.limits.lease = config.limits.lease.max(Span(disk.sync.0 * 32));
        let mut case = Case { seed, config, cluster, network, disk, workload, faults: Vec::new() };
        case.draw_faults(&mut rng);
        if rng.below(3) == 0 {
            case.draw_storm(&mut rng);
        }
        // Drawn apart: half of the cases are as plain as they would be without.
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0dd5);
        if rng.below(2) == 0 {
            case.draw_wishes(&mut rng);
        }
        case
    }

    /// Adds what submitters may wish besides, and a network that is cut in one direction only.
    fn draw_wishes(&mut self, rng: &mut Rng) {
        let typical = self.workload.typical;
        let workload = &mut self.workload;
        if rng.below(2) == 0 {
            workload.cancelled = 0.6 * rng.unit();
        }
        if rng.below(2) == 0 {
            workload.pinned = 0.6 * rng.unit();
        }
        if rng.below(3) == 0 {
            // Seeded to every worker, and not to some.
            workload.pushed_to = 1.0;
        }
        if rng.below(2) == 0 {
            workload.timeout = typical.mul_f64(0.2 + 3.0 * rng.unit());
            // What takes too long takes too long the next time.
            self.config.retry.max_retries = rng.below(4) as u32;
        }
        if rng.below(2) == 0 {
            let workers = self.workers();
            for _ in 0..1 + rng.below(3) {
                let at = Time::ZERO + Span::from_millis(rng.below(30_000) as u64);
                let (first, count) = (rng.below(workers as usize) as u32, 1 + rng.below(workers as usize) as u32);
                let span = Span::from_millis(rng.below(15_000) as u64);
                let what = match rng.below(2) {
                    0 => Happens::Mute { first, count, span },
                    _ => Happens::Deafen { first, count, span },
                };
                self.faults.push(Fault { at, what });
            }
            self.faults.sort_by_key(|fault| fault.at);
        }
    }

    /// Makes it a case of few workers, much that must not run twice at once, many attempts that fail, and coordinators
    /// that follow each other: where a wrong step has consequences.
    fn draw_storm(&mut self, rng: &mut Rng) {
        self.cluster[0].count = 2 + rng.below(3) as u32;
        self.network.latency = Span::from_micros(100 + rng.below(20_000) as u64);
        self.network.loss = if rng.below(2) == 0 { 0.1 * rng.unit() } else { 0.0 };
        self.config.limits.lease = Span::from_millis(1000 + rng.below(1500) as u64);
        self.disk.sync = Span(self.config.limits.lease.0 / (32 + rng.below(200) as u64));
        self.workload.tasks = Some(5 + rng.below(40) as u32);
        self.workload.typical = Span::from_millis(100 + rng.below(8000) as u64);
        self.workload.most = Span::from_secs(20);
        self.workload.children = 0;
        self.workload.exclusive = 0.2 + 0.6 * rng.unit();
        self.workload.keyed = 0.3 * rng.unit();
        self.workload.fails = if rng.below(2) == 0 { 0.4 * rng.unit() } else { 0.0 };
        for _ in 0..1 + rng.below(5) {
            let at = Time::ZERO + Span::from_millis(rng.below(30_000) as u64);
            let what = if rng.below(2) == 0 {
                Happens::CoordinatorCrash { back_after: Span::from_millis(rng.below(2000) as u64) }
            } else {
                let (first, count) = (rng.below(self.workers() as usize) as u32, 1 + rng.below(2) as u32);
                Happens::Takeover { first, count, span: Span::from_millis(rng.below(15_000) as u64) }
            };
            self.faults.push(Fault { at, what });
        }
        let workers = self.workers();
        self.faults.retain(|fault| fault.what.node().is_none_or(|node| node < workers));
        self.faults.sort_by_key(|fault| fault.at);
    }

    fn workers(&self) -> u32 {
        self.cluster.iter().map(|class| class.count).sum()
    }

    fn draw_faults(&mut self, rng: &mut Rng) {
        let count = if rng.below(4) == 0 { 0 } else { rng.below(12) };
        for _ in 0..count {
            let at = Time::ZERO + Span::from_millis(rng.below(40_000) as u64);
            let node = rng.below(self.workers() as usize) as u32;
            let span = Span::from_millis(rng.below(15_000) as u64);
            let what = match rng.below(9) {
                0 | 1 => Happens::Crash { node, back_after: Some(span) },
                2 => Happens::Pause { node, span },
                3 => {
                    let count = 1 + rng.below(self.workers() as usize) as u32;
                    Happens::Partition { first: node, count, span }
                }
                4 => Happens::Slow { node, factor: 1.0 + 4.0 * rng.unit() },
                5 => Happens::CoordinatorCrash { back_after: Span(span.0 / 4) },
                6 => Happens::Takeover { first: node, count: rng.below(self.workers() as usize + 1) as u32, span },
                7 => {
                    let ahead = Span::from_millis(rng.below(20_000) as u64);
                    Happens::Skew { node, ahead, fast_ppm: rng.below(100_000) as u32 }
                }
                _ => {
                    // It goes when it has finished, and comes back later.
                    let gone = Happens::Crash { node, back_after: Some(Span::from_secs(5)) };
                    self.faults.push(Fault { at: at + span, what: gone });
                    Happens::Drain { node }
                }
            };
            self.faults.push(Fault { at, what });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Plays it to its end. What was wrong, if anything was.
    ///
    /// # Errors
    /// The invariant that was broken.
    pub fn play(&self) -> Result<Counts, String> {
        let setting = Setting {
            config: self.config.clone(),
            cluster: self.cluster.clone(),
            network: self.network.clone(),
            disk: self.disk.clone(),
            faults: self.faults.clone(),
            seed: self.seed,
            keep_marks: false,
            watch: true,
        };
        let workload = self.workload.make("fuzz", self.workers(), self.seed);
        let mut world = World::new(setting, workload).map_err(|error| error.to_string())?;
        let mut until = Time::ZERO;
        while !world.is_done() {
            let runs = world.counts().runs;
            until = until + LONGEST;
            world.run(until)?;
            if until > Time::ZERO + LONGEST_IN_ALL {
                return Err(format!("no end: {}", world.unsettled()));
            }
            if !world.is_done() && world.counts().runs == runs {
                return Err(format!("nothing has begun for a quarter of an hour: {}", world.unsettled()));
            }
        }
        // Whatever is still on its way comes to rest, and nobody holds anything then.
        let calm = world.now() + Span(self.config.limits.lease.0 * 8) + Span::from_secs(15);
        world.rest(calm)?;
        if self.is_gentle() && world.found_missing() > 0 {
            return Err("a task was not with whoever should have had it, and nothing had gone wrong".to_owned());
        }
        world.leftovers().map_or(Ok(world.counts()), Err)
    }

    /// Whether nobody dies and no message is lost, or so late that it may seem so.
    fn is_gentle(&self) -> bool {
        let Network { loss, duplication, spread, .. } = self.network;
        self.faults.is_empty() && loss == 0.0 && duplication == 0.0 && spread != Spread::LogNormal
    }

    /// The smallest case found that still breaks, and how.
    fn shrink(&self) -> (Case, String) {
        let (mut smallest, mut tries) = (self.clone(), 0);
        let mut what = String::new();
        'again: while tries < SHRINKS {
            for candidate in smallest.smaller() {
                tries += 1;
                if let Err(broken) = candidate.play() {
                    (smallest, what) = (candidate, broken);
                    continue 'again;
                }
                if tries >= SHRINKS {
                    break;
                }
            }
            break;
        }
        (smallest, what)
    }

    fn smaller(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |change: &dyn Fn(&mut Case)| {
            let mut case = self.clone();
            change(&mut case);
            cases.push(case);
        };
        for at in 0..self.faults.len() {
            add(&|case| {
                case.faults.remove(at);
            });
        }
        let tasks = self.workload.tasks.unwrap_or(1);
        for fewer in [tasks / 2, tasks.saturating_sub(1)] {
            if fewer >= 1 && fewer < tasks {
                add(&|case| case.workload.tasks = Some(fewer));
            }
        }
        let Network { loss, duplication, .. } = self.network;
        if loss > 0.0 {
            add(&|case| case.network.loss = 0.0);
        }
        if duplication > 0.0 {
            add(&|case| case.network.duplication = 0.0);
        }
        if self.workload.children > 0 {
            add(&|case| case.workload.children = 0);
        }
        if self.workload.timeout > Span::ZERO {
            add(&|case| case.workload.timeout = Span::ZERO);
        }
        type Share = fn(&mut Generator) -> &mut f64;
        let shares: [Share; 9] = [
            |workload| &mut workload.wide,
            |workload| &mut workload.urgent,
            |workload| &mut workload.fails,
            |workload| &mut workload.requiring,
            |workload| &mut workload.exclusive,
            |workload| &mut workload.keyed,
            |workload| &mut workload.linked,
            |workload| &mut workload.pinned,
            |workload| &mut workload.cancelled,
        ];
        for pick in shares {
            if *pick(&mut self.workload.clone()) > 0.0 {
                add(&|case| *pick(&mut case.workload) = 0.0);
            }
        }
        if self.cluster.len() > 1 && self.workload.requiring == 0.0 && self.workload.wide == 0.0 {
            add(&|case| case.cluster.truncate(1));
        }
        if self.cluster[0].count > 1 {
            add(&|case| case.cluster[0].count -= 1);
        }
        cases
    }
}
