//! Scenarios: a cluster, a network, a workload, faults and settings in one file.

use std::sync::{Arc, LazyLock};

use filch_core::config::{ConfigErrors, Document, nearest, schema_of};
use filch_core::worker::longest_round_trip;
use filch_core::{Config, Span, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::bound;
use crate::cluster::Class;
use crate::disk::DiskSettings;
use crate::fault::{self, Fault, Happens, Rates};
use crate::generate::Generator;
use crate::network::{Network, Sharing};
use crate::trace::{self, Imported, Recording};
use crate::workload::Workload;
use crate::world::Setting;

/// What a scenario file says, its settings (`config`) apart.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// One line about it.
    pub about: String,
    /// The workers, by class.
    pub cluster: Vec<Class>,
    /// The network between them.
    pub network: Network,
    /// The disk of the coordinator.
    pub disk: DiskSettings,
    /// The work.
    pub workload: Generator,
    /// Recorded work, instead of `workload`.
    pub trace: Option<Recording>,
    /// How often what goes wrong.
    pub faults: Rates,
    /// What goes wrong at a certain moment.
    pub events: Vec<Incident>,
    /// The settings of the machines.
    #[serde(skip)]
    pub config: Config,
    /// What it is called.
    #[serde(skip)]
    pub name: String,
    /// What the file of `trace` holds, once it was read.
    #[serde(skip)]
    recorded: Option<Arc<Imported>>,
}

/// Something that goes wrong at a certain moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Incident {
    /// When, from the start.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub at: Span,
    /// What.
    pub what: Trouble,
    /// Which worker, counted from 0 over all classes; the first of those that are cut off, one way or both.
    #[serde(default)]
    pub worker: u32,
    /// How many workers are cut off, or crash together.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub count: u32,
    /// How long a pause or a partition lasts, or a dead worker is away; how far a clock is ahead. 0 is for ever.
    #[serde(default, with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub span: Span,
    /// By how much a worker becomes slower.
    #[serde(default = "twice")]
    #[schemars(range(min = 1.0))]
    pub factor: f64,
}

/// Why a value was not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unset {
    /// What is wrong with the path or the value.
    pub message: String,
    /// What to do about it, if that is known.
    pub help: Option<String>,
}

/// Tasks of one scenario: some of that many take several GB.
const MOST_TASKS: u64 = 50_000_000;

fn one() -> u32 {
    1
}

fn twice() -> f64 {
    2.0
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// Workers die, and come back as new processes.
    Crash,
    /// A worker becomes slower.
    Slow,
    /// A worker stands still.
    Pause,
    /// Some workers are cut off from the rest.
    Partition,
    /// Nobody hears some workers, which hear everybody.
    Mute,
    /// Some workers hear nobody, and everybody hears them.
    Deafen,
    /// A worker's clock is ahead.
    Skew,
    /// A worker is told to leave.
    Drain,
    /// The coordinator dies, and another begins after `span` with what was durable.
    CoordinatorCrash,
    /// Another coordinator takes over while the old one is cut off for `span`, with `count` workers from `worker` on.
    Takeover,
}

/// Work that spans so many seconds is played with the usual leases and pauses.
const ORDINARY_S: f64 = 5000.0;

static SCHEMA: LazyLock<Json> = LazyLock::new(schema_of::<Scenario>);

/// A scenario that comes with filch.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// What it is called.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! builtins {
    ($($name:literal),+ $(,)?) => {
        &[$(Builtin { name: $name, text: include_str!(concat!("../scenarios/", $name, ".yaml")) }),+]
    };
}

/// The scenarios that come with filch.
pub const BUILTINS: &[Builtin] = builtins![
    "basic",
    "metrics",
    "hot-spot",
    "uniform",
    "bursty",
    "cascading-failure",
    "priority-protection",
    "worker-churn",
    "takeover",
    "resource-contention",
    "spike-recovery",
    "spawning",
    "adaptive-victims",
    "granularity",
    "scaling",
    "quality",
    "queueing",
];

impl Scenario {
    /// Reads a scenario file; `label` names it in errors.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its line and column.
    pub fn from_yaml(text: &str, label: &str) -> Result<Scenario, ConfigErrors> {
        let mut document = Document::parse(text, label)?;
        let config = document.config("config");
        let read: Option<Scenario> = document.read(&SCHEMA);
        if let Some(scenario) = &read {
            let workers = scenario.workers();
            let traced = scenario.trace.is_some();
            if traced && scenario.workload != Generator::default() {
                document.refuse(
                    "workload",
                    "the work comes from `trace` or from `workload`, not from both",
                    Some("take one of the two sections out"),
                );
            }
            if workers == 0 && !traced {
                document.refuse(
                    "cluster",
                    "a scenario needs workers",
                    Some("add a section such as `cluster: [{ count: 10 }]`"),
                );
            }
            for (at, incident) in scenario.events.iter().enumerate() {
                // Whoever has no cluster gets that of the trace, which is not known yet.
                if workers > 0 && incident.worker >= workers {
                    let message =
                        format!("there is no worker {}; there are {workers}, counted from 0", incident.worker);
                    document.refuse(&format!("events[{at}].worker"), &message, None);
                }
            }
            let Generator { exclusive, keyed, .. } = scenario.workload;
            if let Some(config) = &config
                && exclusive + keyed > 0.0
            {
                let lease = config.config.limits.lease;
                let round_trip = Span(scenario.network.latency.0.saturating_mul(2));
                if round_trip >= longest_round_trip(lease) {
                    let message = format!(
                        "a round trip of {round_trip} is too long for a lease of {lease}: workers would stop exclusive and keyed \
                         tasks before they hear that their lease goes on"
                    );
                    let least = Span(round_trip.0.saturating_mul(2));
                    let hint = format!("raise `config.limits.lease` to several round trips, in any case above {least}");
                    document.refuse("network.latency", &message, Some(&hint));
                }
            }
            let Network { bandwidth, coordinator_bandwidth, sharing, .. } = scenario.network;
            if bandwidth == 0.0 && coordinator_bandwidth == 0.0 {
                let hint = Some("set `network.bandwidth`, in bytes a second");
                if scenario.workload.input > 0.0 {
                    document.refuse("workload.input", "links without limit bring any input at once", hint);
                }
                if sharing == Sharing::MaxMin {
                    document.refuse("network.sharing", "there is nothing to share of links without limit", hint);
                }
            }
            if scenario.workload.total(workers) > MOST_TASKS {
                let message = format!("these would be more than {MOST_TASKS} tasks, with all that they spawn");
                let hint = "take fewer tasks, or fewer `children` or less `depth`";
                document.refuse("workload", &message, Some(hint));
            }
            let Generator { duration, least, most, .. } = &scenario.workload;
            if *duration == crate::generate::Duration::Uniform && most < least {
                document.refuse(
                    "workload.most",
                    "the longest duration is shorter than the shortest",
                    Some("set `least` and `most` so that least ≤ most"),
                );
            }
        }
        let name = label.rsplit('/').next().unwrap_or(label).trim_end_matches(".yaml").to_owned();
        let whole = read.zip(config).map(|(read, config)| Scenario { config: config.config, name, ..read });
        document.finish(whole)
    }

    /// One that comes with filch.
    #[must_use]
    pub fn builtin(name: &str) -> Option<Scenario> {
        let found = BUILTINS.iter().find(|builtin| builtin.name == name)?;
        // A test reads every one of them.
        Scenario::from_yaml(found.text, found.name).ok()
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.cluster.iter().map(|class| class.count).sum()
    }

    /// Changes the number of workers; the classes keep their shares.
    pub fn set_workers(&mut self, count: u32) {
        let before = f64::from(self.workers().max(1));
        let mut left = count.max(1);
        let classes = self.cluster.len();
        for (at, class) in self.cluster.iter_mut().enumerate() {
            let rest = (classes - at - 1) as u32;
            let share = (f64::from(class.count) / before * f64::from(count) + 0.5) as u32;
            class.count = if rest == 0 { left } else { share.clamp(1, left.saturating_sub(rest).max(1)) };
            left = left.saturating_sub(class.count).max(rest);
        }
    }

    /// Sets one of the settings of the machines.
    ///
    /// # Errors
    /// What is wrong with the value.
    pub fn override_setting(&mut self, section: &str, key: &str, value: &str) -> Result<(), ConfigErrors> {
        // A policy with its options is a section of its own; a word stands for one without.
        let label = format!("{section}.{key}");
        let text = format!("{section}: {{ {key}: {} }}", Json::from(value));
        let loaded = Config::from_yaml(&text, &label)?.config;
        match (section, key) {
            ("scheduling", "policy") => self.config.scheduling.policy = loaded.scheduling.policy,
            _ => self.config.stealing.strategy = loaded.stealing.strategy,
        }
        Ok(())
    }

    /// Sets a value by its path, such as `network.latency` or `config.limits.lease`, and reads the whole again.
    ///
    /// # Errors
    /// What is wrong with the path or the value. Nothing has changed then.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), Unset> {
        match path {
            "config.seed" => return Err(Unset::because("every seed that is played is the machines' seed too")),
            "config.profile" => {
                let message = "a profile is applied before the settings of a scenario, which would hide it";
                return Err(Unset::because(message).with_help("vary a setting such as `config.stealing.take`"));
            }
            _ => {}
        }
        let mut json = self.to_json();
        let Some(known) = json.pointer_mut(&pointer(path)) else {
            let unknown = Unset::because(format!("there is no `{path}` in a scenario"));
            return Err(match near(&json, path) {
                Some(near) => unknown.with_help(format!("did you mean `{near}`?")),
                None => unknown,
            });
        };
        if known.is_object() {
            return Err(Unset::because(format!("`{path}` has no single value")));
        }
        *known = serde_json::from_str(value).unwrap_or_else(|_| Json::from(value));
        // Through the same checks as a file: JSON is YAML too.
        let read = Scenario::from_yaml(&json.to_string(), path).map_err(|errors| match errors.problems().first() {
            Some(problem) => Unset { message: problem.message.clone(), help: problem.help.clone() },
            None => Unset::because(errors.to_string()),
        })?;
        let (name, recorded) = (self.name.clone(), self.recorded.clone());
        *self = Scenario { name, recorded, ..read };
        Ok(())
    }

    /// Whether the value at a path is a whole number, and stays one.
    #[must_use]
    pub fn is_counted(&self, path: &str) -> bool {
        self.to_json().pointer(&pointer(path)).is_some_and(Json::is_u64)
    }

    /// The whole file as it would have to be written.
    fn to_json(&self) -> Json {
        // Nothing in it is a map with keys that are no words, so neither fails.
        let mut json = serde_json::to_value(self).unwrap_or_default();
        json["config"] = serde_json::to_value(&self.config).unwrap_or_default();
        json
    }

    /// Takes the recorded work that `trace` names, and its cluster if the scenario has none.
    ///
    /// # Errors
    /// That there is no cluster of that name, or that a task fits no worker.
    pub fn adopt(&mut self, imported: Imported) -> Result<(), String> {
        if self.cluster.is_empty() {
            let name = self.trace.as_ref().and_then(|trace| trace.cluster.as_deref());
            self.cluster = imported.cluster_named(name)?.to_vec();
        }
        if let Some(incident) = self.events.iter().find(|incident| incident.worker >= self.workers()) {
            return Err(format!(
                "there is no worker {}; there are {}, counted from 0",
                incident.worker,
                self.workers()
            ));
        }
        trace::fits(&imported.workload, &self.cluster)
            .map_err(|misfit| format!("no worker of the cluster can ever run {misfit}"))?;
        let mut imported = imported;
        if self.config == Config::default() {
            self.take_time(&mut imported.workload);
        }
        self.recorded = Some(Arc::new(imported));
        Ok(())
    }

    /// Stretches what happens again and again while nothing else does. A recording of months is otherwise made of heartbeats.
    fn take_time(&mut self, workload: &mut Workload) {
        let span_s = bound::lower_bound(workload, &self.cluster);
        let factor = span_s / ORDINARY_S;
        if factor <= 1.0 {
            return;
        }
        let Config { limits, stealing, .. } = &mut self.config;
        for span in [
            &mut limits.lease,
            &mut limits.sample_interval,
            &mut stealing.backoff_max,
            &mut stealing.discovery_interval,
        ] {
            *span = span.mul_f64(factor);
        }
        let hours = span_s / 3600.0;
        workload.notes.push(format!(
            "the work spans {hours:.0} h: leases, heartbeats and the longest pauses between steals are {factor:.0} times the usual"
        ));
    }

    /// Recorded work as a scenario, on one of the clusters that its file names.
    ///
    /// # Errors
    /// That there is no cluster of that name.
    pub fn of_trace(file: &str, cluster: Option<&str>, imported: Imported) -> Result<Scenario, String> {
        let recording = Recording { cluster: cluster.map(str::to_owned), ..Recording::of(file) };
        let name = imported.workload.name.clone();
        let mut scenario = Scenario { name, trace: Some(recording), ..Scenario::default() };
        scenario.adopt(imported)?;
        Ok(scenario)
    }

    /// Whether the work is recorded.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.trace.is_some()
    }

    /// The world and the work of it for a seed.
    #[must_use]
    pub fn make(&self, seed: u64) -> (Setting, Workload) {
        let workload = match (&self.recorded, &self.trace) {
            (Some(recorded), Some(how)) => recorded.play(how),
            _ => self.workload.make(&self.name, self.workers(), seed),
        };
        (self.setting(seed), workload)
    }

    /// The world of it for a seed, for whatever work.
    #[must_use]
    pub fn setting(&self, seed: u64) -> Setting {
        let mut faults = fault::draw(&self.faults, self.workers(), seed);
        for incident in &self.events {
            faults.extend(incident.faults());
        }
        faults.sort_by_key(|fault| fault.at);
        Setting {
            config: self.config.clone(),
            cluster: self.cluster.clone(),
            network: self.network.clone(),
            disk: self.disk.clone(),
            faults,
            seed,
            keep_marks: false,
            watch: false,
        }
    }
}

impl Unset {
    fn because(message: impl Into<String>) -> Unset {
        Unset { message: message.into(), help: None }
    }

    fn with_help(self, help: impl Into<String>) -> Unset {
        Unset { help: Some(help.into()), ..self }
    }
}

fn pointer(path: &str) -> String {
    format!("/{}", path.replace('.', "/"))
}

/// The path that an unknown one was most likely meant to be: another key of the same section.
fn near(json: &Json, path: &str) -> Option<String> {
    let (section, key) = path.rsplit_once('.').map_or(("", path), |(section, key)| (section, key));
    let known = if section.is_empty() { Some(json) } else { json.pointer(&pointer(section)) };
    let keys: Vec<&str> = known?.as_object()?.keys().map(String::as_str).collect();
    let found = nearest(key, &keys)?;
    Some(if section.is_empty() { found.to_owned() } else { format!("{section}.{found}") })
}

impl Incident {
    fn faults(&self) -> Vec<Fault> {
        let at = Time::ZERO + self.at;
        let Incident { worker: node, count, span, factor, .. } = *self;
        let back_after = (span > Span::ZERO).then_some(span);
        let for_all =
            |make: &dyn Fn(u32) -> Happens| (node..node + count).map(|node| Fault { at, what: make(node) }).collect();
        match self.what {
            Trouble::Crash => for_all(&|node| Happens::Crash { node, back_after }),
            Trouble::Slow => {
                let mut faults: Vec<Fault> = for_all(&|node| Happens::Slow { node, factor });
                if let Some(span) = back_after {
                    let normal = |node| Fault { at: at + span, what: Happens::Slow { node, factor: 1.0 } };
                    faults.extend((node..node + count).map(normal));
                }
                faults
            }
            Trouble::Pause => for_all(&|node| Happens::Pause { node, span }),
            Trouble::Partition => vec![Fault { at, what: Happens::Partition { first: node, count, span } }],
            Trouble::Mute => vec![Fault { at, what: Happens::Mute { first: node, count, span } }],
            Trouble::Deafen => vec![Fault { at, what: Happens::Deafen { first: node, count, span } }],
            Trouble::Skew => for_all(&|node| Happens::Skew { node, ahead: span, fast_ppm: 0 }),
            Trouble::Drain => for_all(&|node| Happens::Drain { node }),
            Trouble::CoordinatorCrash => vec![Fault { at, what: Happens::CoordinatorCrash { back_after: span } }],
            Trouble::Takeover => vec![Fault { at, what: Happens::Takeover { first: node, count, span } }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_builtins_are_sound_and_say_what_they_are() {
        for builtin in BUILTINS {
            let read = Scenario::from_yaml(builtin.text, builtin.name);
            let scenario = read.unwrap_or_else(|errors| panic!("{errors}"));
            assert!(!scenario.about.is_empty() && scenario.name == builtin.name, "{}", builtin.name);
        }
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        let text = "cluster: [{ count: 4 }]\nworkload:\n  durtion: uniform\nevents:\n  - { at: 3s, what: crash, worker: 9 }\nconfig:\n  stealing: { take: most }\n";
        let errors = Scenario::from_yaml(text, "x.yaml").unwrap_err();
        let said = errors.to_string();
        for part in ["x.yaml:3:3", "did you mean `duration`?", "x.yaml:7:21", "half or enough"] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let text = "cluster: [{ count: 4 }]\nevents:\n  - { at: 3s, what: crash, worker: 9 }\n";
        let said = Scenario::from_yaml(text, "x.yaml").unwrap_err().to_string();
        assert!(said.contains("x.yaml:3:36") && said.contains("no worker 9"), "{said}");
        let text = "cluster: [{ count: 4 }]\nnetwork: { latency: 6s }\nworkload: { tasks: 3, keyed: 0.5 }\nconfig: { limits: { lease: 15s } }\n";
        let said = Scenario::from_yaml(text, "x.yaml").unwrap_err().to_string();
        assert!(said.contains("x.yaml:2:21") && said.contains("workers would stop"), "{said}");
        assert!(Scenario::from_yaml(&text.replace("6s", "3s"), "x.yaml").is_ok());
        assert!(Scenario::from_yaml("about: nobody", "x").unwrap_err().to_string().contains("needs workers"));
    }

    #[test]
    fn values_are_set_by_path_and_workers_keep_their_shares() {
        let mut scenario = Scenario::builtin("basic").unwrap();
        scenario.set("network.latency", "7ms").unwrap();
        assert_eq!(scenario.network.latency, Span::from_millis(7));
        for (path, value) in [("network.latncy", "7ms"), ("workload.per_worker", "x"), ("network.loss", "5")] {
            assert!(scenario.set(path, value).is_err(), "{path}={value}");
        }
        scenario.cluster = vec![Class { count: 3, ..Class::default() }, Class { count: 1, ..Class::default() }];
        scenario.set_workers(100);
        assert_eq!(scenario.cluster.iter().map(|class| class.count).collect::<Vec<_>>(), [75, 25]);
        scenario.set_workers(2);
        assert_eq!(scenario.workers(), 2);
    }
}
