//! Every setting of the scheduler, with its meaning and its default, defined once.
//!
//! The key names and defaults of `load_balancing` and `stealing` are those users already know from the
//! documents filch grew out of, so their files load as they stand. The reference and the JSON schema are made
//! from the doc comments and bounds here. A [`Config`] that was loaded has been checked; one built in code is
//! checked by [`Config::validate`].

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::Span;

/// A complete configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Seed of every random choice; the same seed and the same events give the same decisions.
    pub seed: u64,
    /// A named set of stealing settings, applied before the file's own `stealing` section.
    pub profile: Option<Profile>,
    /// Hybrid balancing: thresholds, rebalancing, capability matching and priorities.
    pub load_balancing: LoadBalancing,
    /// How an idle worker finds and takes work from others.
    pub stealing: Stealing,
    /// How tasks are bound to workers, ordered and placed.
    pub scheduling: Scheduling,
    /// Bounds: queue lengths, requeues, leases, histories.
    pub limits: Limits,
    /// What happens to a task that failed, unless the task says otherwise.
    pub retry: Retry,
    /// What a worker looks for on its machine.
    pub detection: Detection,
}

/// What a worker looks for on its machine. A worker reads it from its own file: what a coordinator's says is about nobody.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Detection {
    /// Commands that show which software is there: a list of `capability`, `command` and `pattern`.
    pub probes: Vec<Probe>,
}

/// A question to a machine: a command is run, and if what it says matches, the machine has a capability.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// The capability that is proved, where `$1` or `${name}` stands for what a group of the pattern matched: `python-$1`.
    pub capability: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// A regular expression that its output or its errors must match, such as `Python (\d+)`; without one its exit code 0 is
    /// enough.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pattern: String,
}

/// A named set of stealing settings for a kind of network or work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Network below 1 ms: shorter timeout and pause, more retries.
    LowLatency,
    /// Network above 10 ms: longer timeout and pause, fewer retries.
    HighLatency,
    /// Tasks that keep a core busy: keep more at home, steal earlier.
    CpuBound,
    /// Tasks that wait for input or output: keep less at home, steal later.
    IoBound,
    /// Tasks below 100 ms.
    ShortTasks,
    /// Tasks above 1 s.
    LongTasks,
}

/// Hybrid balancing: who intervenes, when, and what may be moved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoadBalancing {
    /// Which side starts a move of work.
    pub strategy: Strategy,
    /// When a worker counts as busy or idle, and when the scheduler intervenes.
    pub thresholds: Thresholds,
    /// What may be moved, and how much at once.
    pub work_stealing: WorkStealing,
    /// How a task's skills are matched with a worker's capabilities.
    pub capabilities: Capabilities,
    /// What counts as high priority, and its protection.
    pub priority: PriorityRules,
}

/// Who starts a move of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Idle workers take work from busy ones.
    Pull,
    /// The scheduler moves queued work when load is severely uneven.
    Push,
    /// Both.
    #[default]
    Hybrid,
}

impl Strategy {
    /// Whether workers may steal.
    #[must_use]
    pub fn pulls(self) -> bool {
        self != Strategy::Push
    }

    /// Whether the scheduler rebalances by itself.
    #[must_use]
    pub fn pushes(self) -> bool {
        self != Strategy::Pull
    }
}

/// When a worker counts as busy or idle, and when the scheduler intervenes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// A worker with more queued tasks than this is busy. Must be above `idle_threshold`.
    pub busy_threshold: u32,
    /// A worker with fewer queued tasks than this is idle.
    pub idle_threshold: u32,
    /// Seconds between two looks at the balance; at least 0.001.
    #[schemars(extend("minimum" = 0.001))]
    pub rebalance_interval_sec: f64,
    /// The scheduler intervenes when longest queue / max(shortest queue, 1) is above this. Must be above 1.
    #[schemars(extend("exclusiveMinimum" = 1))]
    pub severe_imbalance_ratio: f64,
    /// What is compared: numbers of queued tasks, or seconds of queued work with hysteresis and a look at cost and benefit.
    pub rebalance_by: RebalanceBy,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            busy_threshold: 5,
            idle_threshold: 2,
            rebalance_interval_sec: 30.0,
            severe_imbalance_ratio: 3.0,
            rebalance_by: RebalanceBy::Count,
        }
    }
}

impl Thresholds {
    /// The interval as a span.
    #[must_use]
    pub fn rebalance_interval(&self) -> Span {
        Span::from_secs_f64(self.rebalance_interval_sec)
    }
}

/// What push rebalancing compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebalanceBy {
    /// Numbers of queued tasks.
    #[default]
    Count,
    /// Seconds of queued work.
    Backlog,
}

/// What may be moved, and how much at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkStealing {
    /// Most tasks moved in one rebalancing cycle, in total.
    pub max_steal_per_cycle: u32,
    /// Take the newest queued task first; otherwise the oldest.
    pub prefer_recent_tasks: bool,
    /// Also stop running tasks that are marked idempotent and restart them elsewhere; otherwise only queued tasks move.
    pub allow_task_migration: bool,
}

impl Default for WorkStealing {
    fn default() -> Self {
        WorkStealing { max_steal_per_cycle: 3, prefer_recent_tasks: true, allow_task_migration: false }
    }
}

/// How a task's skills are matched with a worker's capabilities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Capabilities {
    /// How skills are matched; high-priority tasks are always matched `exact`.
    pub matching_strategy: Matching,
    /// Whether a worker's success rate counts in the `best_fit` score.
    pub consider_history: bool,
    /// How much it counts, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub history_weight: f64,
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities { matching_strategy: Matching::BestFit, consider_history: true, history_weight: 0.3 }
    }
}

/// How skills are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Matching {
    /// The worker has all of them.
    Exact,
    /// The worker has all of them; at equal score the one with the fewest spare capabilities.
    #[default]
    BestFit,
    /// As `best_fit`; where nobody has all, those who share the most, at least one.
    Fallback,
}

/// What counts as high priority, and its protection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PriorityRules {
    /// Tasks submitted with this priority or a higher one are high-priority; 6 means none is.
    #[schemars(range(min = 1, max = 6))]
    pub high_priority_threshold: u8,
    /// High-priority tasks are never stolen or rebalanced.
    pub preserve_high_priority: bool,
}

impl Default for PriorityRules {
    fn default() -> Self {
        PriorityRules { high_priority_threshold: 4, preserve_high_priority: true }
    }
}

/// How an idle worker finds and takes work from others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stealing {
    /// Whom to ask. Unless set, a file with a `load_balancing` section means `most_loaded`: the busiest first.
    pub strategy: VictimStrategy,
    /// How long a thief waits for an answer.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::positive_schema")]
    pub steal_timeout: Span,
    /// First pause between two tries of one steal.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::schema")]
    pub retry_backoff: Span,
    /// Victims tried in one steal.
    #[schemars(range(min = 1))]
    pub max_retries: u32,
    /// Under `bind: push` a victim keeps at least this many queued tasks. Under `late` it keeps those that it will itself be
    /// done with sooner.
    pub min_local_queue: u32,
    /// A worker steals only while its own load (queued tasks per slot) is below this.
    #[schemars(range(min = 0.0))]
    pub steal_threshold: f64,
    /// Under `bind: push`, `power_of_two` and `adaptive` refuse victims with fewer queued tasks than this.
    pub min_victim_queue: u32,
    /// How much is taken at once.
    pub take: Take,
    /// First pause after a search that found nothing.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::positive_schema")]
    pub backoff_base: Span,
    /// Longest pause after searches that found nothing.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::schema")]
    pub backoff_max: Span,
    /// Pauses are lengthened or shortened by up to this share.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub backoff_jitter: f64,
    /// How often workers learn of each other.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::positive_schema")]
    pub discovery_interval: Span,
}

impl Default for Stealing {
    fn default() -> Self {
        Stealing {
            strategy: VictimStrategy::PowerOfTwo,
            steal_timeout: Span::from_millis(100),
            retry_backoff: Span::from_millis(50),
            max_retries: 3,
            min_local_queue: 2,
            steal_threshold: 0.5,
            min_victim_queue: 4,
            take: Take::Enough,
            backoff_base: Span::from_millis(10),
            backoff_max: Span::from_secs(1),
            backoff_jitter: 0.5,
            discovery_interval: Span::from_secs(10),
        }
    }
}

impl Stealing {
    /// The settings as they count for tasks that are bound this way. Numbers of queued tasks mean something where tasks are
    /// pushed into queues; where they are bound late, only what cannot begin soon waits at a worker, and whatever a thief
    /// would be done with sooner may go.
    #[must_use]
    pub fn under(&self, bind: Bind) -> Stealing {
        match bind {
            Bind::Push => self.clone(),
            Bind::Late => Stealing { min_local_queue: 0, min_victim_queue: 1, ..self.clone() },
        }
    }
}

/// Whom a thief asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VictimStrategy {
    /// Anyone.
    Random,
    /// The one with the shortest queue that still has enough to give.
    LeastLoaded,
    /// The one with the longest queue.
    MostLoaded,
    /// The better of two drawn at random, by depth · 10 − load · 5.
    #[default]
    PowerOfTwo,
    /// `most_loaded` while fewer than 30% of steals succeed, else `power_of_two`; judged every 100 attempts.
    Adaptive,
}

/// How much a thief takes at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Take {
    /// One task.
    One,
    /// Half of the victim's backlog, by expected time.
    Half,
    /// What the thief can begin at once, more where the way there and back takes long, and at most half.
    #[default]
    Enough,
}

/// How tasks are bound to workers, ordered and placed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Scheduling {
    /// When a task is bound to a worker.
    /// A file with a `load_balancing` section means `push` unless this is set.
    pub bind: Bind,
    /// The placement policy: a name, or a name with options.
    /// A file with a `load_balancing` section means `best_fit`, the formula those settings were made for, unless this is set.
    pub policy: PolicySpec,
    /// Policies for single task types, by the type's name.
    pub per_type: BTreeMap<String, PolicySpec>,
    /// A task that waited this long in its level rises to the next; `0s` turns aging off.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::schema")]
    pub aging_interval: Span,
    /// Jobs of the same level take turns by the work they have received; otherwise first come, first served.
    pub fair_share: bool,
    /// What happens to a task that cannot meet its deadline even if it started at once.
    pub hopeless_deadlines: Hopeless,
    /// The duration assumed for tasks nobody has an estimate for.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::positive_schema")]
    pub default_estimate: Span,
    /// A task too wide for every worker right now gets a reservation in time once it waited this long.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::schema")]
    pub reserve_after: Span,
    /// The best workers of each class that a policy looks at.
    #[schemars(range(min = 1))]
    pub candidates_per_class: u32,
}

impl Default for Scheduling {
    fn default() -> Self {
        Scheduling {
            bind: Bind::Late,
            policy: PolicySpec::Name("expected_completion".to_owned()),
            per_type: BTreeMap::new(),
            aging_interval: Span::from_secs(60),
            fair_share: true,
            hopeless_deadlines: Hopeless::Flag,
            default_estimate: Span::from_secs(1),
            reserve_after: Span::ZERO,
            candidates_per_class: 8,
        }
    }
}

/// When a task is bound to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bind {
    /// When a worker has room for it; until then it waits centrally.
    #[default]
    Late,
    /// At submission, into the worker's queue.
    Push,
}

/// What happens to a task that cannot meet its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hopeless {
    /// It is refused at submission.
    Refuse,
    /// It is accepted and a notice says so.
    #[default]
    Flag,
}

/// A placement policy by name, with options where it has any.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PolicySpec {
    /// Just the name; `composite` has to name its parts.
    #[schemars(extend("enum" = super::policies::names(), "not" = serde_json::json!({ "const": "composite" })))]
    Name(String),
    /// The name and options.
    Options(PolicyOptions),
}

impl PolicySpec {
    /// The name and the options, whichever form was used.
    #[must_use]
    pub fn parts(&self) -> (&str, PolicyOptions) {
        match self {
            PolicySpec::Name(name) => (name, PolicyOptions { kind: name.clone(), ..PolicyOptions::default() }),
            PolicySpec::Options(options) => (&options.kind, options.clone()),
        }
    }
}

/// A policy's name and options. An option that the named policy does not have is refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyOptions {
    /// The policy's name.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = super::policies::names()))]
    pub kind: String,
    /// `composite`: the parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<WeightedPolicy>,
    /// `adaptive`: `ewma` or `learned`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<AdaptiveModel>,
    /// `adaptive` with `ewma`: weight of the newest observation (0.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    pub alpha: Option<f64>,
    /// `batch`: tasks given to one worker before the next (4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub batch_size: Option<u32>,
    /// `work_stealing`: a victim has more queued tasks than this (2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_threshold: Option<u32>,
    /// `best_fit`: weight of the success rate (`history_weight` of `capabilities`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub history_weight: Option<f64>,
    /// `expected_completion`, `deadline`: standard deviations added to the expected duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub beta: Option<f64>,
    /// `expected_completion`: seconds one unit of cost is worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub lambda_cost: Option<f64>,
    /// `expected_completion`: weight of the seconds a deadline would be missed by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub lambda_deadline: Option<f64>,
    /// `expected_completion`: weight of the fragmentation a placement causes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub lambda_fragmentation: Option<f64>,
}

/// One part of a composite policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct WeightedPolicy {
    /// Its share of the score; the weights of a composite must not sum to 0.
    #[schemars(range(min = 0.0))]
    pub weight: f64,
    /// The policy and its options.
    #[serde(flatten)]
    pub policy: PolicyOptions,
}

/// What the `adaptive` policy learns from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdaptiveModel {
    /// A moving average of completion time and success per worker.
    #[default]
    Ewma,
    /// The estimates per kind and worker that every other policy sees.
    Learned,
}

/// Bounds: queue lengths, requeues, leases, histories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most tasks that may wait, for whatever reason; beyond it submissions are refused with a "retry after".
    #[schemars(range(min = 1))]
    pub max_queued: u64,
    /// A task no registered worker can ever run is requeued this often, each time with lower priority, then fails.
    #[schemars(range(max = 10_000))]
    pub max_requeue_attempts: u32,
    /// Pause between two such tries.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::schema")]
    pub requeue_interval: Span,
    /// How long a silent worker's exclusive tasks wait before they are given to another.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::positive_schema")]
    pub lease: Span,
    /// A worker is set aside after this many failures in a row, at what another worker could do the last time; 0 turns it off.
    pub quarantine_after: u32,
    /// How long it is set aside the first time; doubled each time.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::schema")]
    pub quarantine: Span,
    /// Limit of a concurrency key that was given none.
    #[schemars(range(min = 1))]
    pub key_limit: u32,
    /// Placement decisions remembered for explanations.
    pub decisions_kept: u32,
    /// Settled tasks remembered at the least, so that later tasks may depend on them.
    pub settled_kept: u32,
    /// Settled tasks whose name, result and error are remembered at the most; the oldest are forgotten first.
    pub settled_max: u32,
    /// Utilisation samples kept.
    pub samples_kept: u32,
    /// Pause between two samples; `0s` takes none.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::schema")]
    pub sample_interval: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_queued: 100_000_000,
            max_requeue_attempts: 5,
            requeue_interval: Span::from_secs(1),
            lease: Span::from_secs(15),
            quarantine_after: 10,
            quarantine: Span::from_secs(10),
            key_limit: 1,
            decisions_kept: 256,
            settled_kept: 4096,
            settled_max: 100_000,
            samples_kept: 1000,
            sample_interval: Span::from_secs(1),
        }
    }
}

/// What happens to a task that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// How often a failed task is tried again.
    pub max_retries: u32,
    /// Pause before the first retry; doubled each time.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::schema")]
    pub backoff: Span,
    /// Longest pause.
    #[serde(with = "super::span")]
    #[schemars(schema_with = "super::span::schema")]
    pub backoff_max: Span,
    /// Pauses are lengthened or shortened by up to this share.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { max_retries: 0, backoff: Span::from_millis(100), backoff_max: Span::from_secs(60), jitter: 0.5 }
    }
}
