//! Building a balancer: settings, policies, clock and estimator.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use filch_core::policy::{self, Order, OwnPolicy, Policy, TaskView, Terms, WorkerView};
use filch_core::tracker::{Estimate, Estimator, Tracker};
use filch_core::{Event, KindId, Scheduler, Span, TypeId};

use crate::balancer::Balancer;
use crate::calm::calmly;
use crate::clock::{Clock, SystemClock, Timepiece};
use crate::config::{self, Config, PolicySpec};
use crate::error::BuildError;
use crate::names::NameBook;

/// A policy as a caller names it: by name, by name and options, or one of their own.
pub enum PolicyChoice {
    /// One that filch knows.
    Spec(PolicySpec),
    /// One of the caller's own. If it panics, that counts as refusing the worker. Its name, its order and the like are
    /// asked for once; where it panics then, the defaults are taken, and `custom` as its name.
    ///
    /// It scores while the balancer holds its lock, so it must not use the balancer, nor wait for anybody who does; it
    /// decides by what it is given. Where it calls the balancer, that call panics and says so.
    Custom(Box<dyn Policy>),
}

impl From<&str> for PolicyChoice {
    fn from(name: &str) -> Self {
        PolicyChoice::Spec(PolicySpec::Name(name.to_owned()))
    }
}

impl From<PolicySpec> for PolicyChoice {
    fn from(spec: PolicySpec) -> Self {
        PolicyChoice::Spec(spec)
    }
}

impl From<Box<dyn Policy>> for PolicyChoice {
    fn from(policy: Box<dyn Policy>) -> Self {
        PolicyChoice::Custom(policy)
    }
}

/// The configuration with this placement policy, if the policy's options make sense.
fn with_policy(spec: PolicySpec, config: &Config) -> Result<Config, String> {
    let mut config = config.clone();
    config.scheduling.policy = spec;
    match config.validate().first() {
        Some(problem) => Err(crate::error::in_one_line(problem)),
        None => Ok(config),
    }
}

impl PolicyChoice {
    /// The policy itself, if its options make sense.
    pub(crate) fn make(self, config: &Config) -> Result<Box<dyn Policy>, String> {
        match self {
            PolicyChoice::Custom(policy) => Ok(Box::new(Calm::new(policy))),
            PolicyChoice::Spec(spec) => {
                let config = with_policy(spec, config)?;
                policy::create(&config.scheduling.policy, &config).map_err(|error| error.0)
            }
        }
    }
}

impl PolicyChoice {
    /// What tells a running machine to use it, if its options make sense.
    pub(crate) fn event(self, task_type: Option<TypeId>, config: &Config) -> Result<Event, String> {
        match self {
            PolicyChoice::Custom(policy) => {
                Ok(Event::UsePolicy { task_type, policy: OwnPolicy(Arc::new(Calm::new(policy))) })
            }
            // Only judged here: the machine makes it.
            PolicyChoice::Spec(policy) => {
                let policy = with_policy(policy, config)?.scheduling.policy;
                Ok(Event::SetPolicy { task_type, policy })
            }
        }
    }
}

/// A policy of somebody else: it runs under the balancer's lock, so its panics must not get out.
struct Calm {
    policy: Box<dyn Policy>,
    /// What it says of itself is asked for once, before the lock is taken.
    name: String,
    order: Order,
    steals_above: Option<u32>,
    alpha: Option<f64>,
}

impl Calm {
    fn new(policy: Box<dyn Policy>) -> Calm {
        Calm {
            name: calmly(|| policy.name().to_owned()).unwrap_or_else(|| "custom".to_owned()),
            order: calmly(|| policy.order()).unwrap_or_default(),
            steals_above: calmly(|| policy.steals_above()).flatten(),
            alpha: calmly(|| policy.alpha()).flatten().filter(|alpha| *alpha > 0.0 && *alpha <= 1.0),
            policy,
        }
    }
}

impl Policy for Calm {
    fn name(&self) -> &str {
        &self.name
    }

    fn score(&self, task: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        calmly(|| self.policy.score(task, worker, terms)).flatten()
    }

    fn score_all(&self, task: &TaskView<'_>, workers: &[WorkerView<'_>], scores: &mut Vec<Option<f64>>) {
        let before = scores.len();
        if calmly(|| self.policy.score_all(task, workers, scores)).is_none() {
            scores.truncate(before);
        }
        // However many it gave, there is one for each worker.
        scores.resize(before + workers.len(), None);
    }

    fn terms_of(&self, task: &TaskView<'_>, workers: &[WorkerView<'_>], shown: &[usize]) -> Vec<Terms> {
        let mut all = calmly(|| self.policy.terms_of(task, workers, shown)).unwrap_or_default();
        all.resize(shown.len(), Terms::default());
        all
    }

    fn order(&self) -> Order {
        self.order
    }

    fn steals_above(&self) -> Option<u32> {
        self.steals_above
    }

    fn alpha(&self) -> Option<f64> {
        self.alpha
    }
}

/// An estimator of somebody else, called under the lock as well. Where it panics, it is as if nothing had been learned.
struct CalmEstimator {
    estimator: Box<dyn Estimator>,
    unlearned: Tracker,
}

impl Estimator for CalmEstimator {
    fn estimate(&self, kind: KindId, worker: usize, declared: Option<Span>) -> Estimate {
        let estimate = calmly(|| self.estimator.estimate(kind, worker, declared));
        estimate.unwrap_or_else(|| self.unlearned.estimate(kind, worker, declared))
    }

    fn anywhere(&self, kind: KindId, declared: Option<Span>) -> Span {
        let expected = calmly(|| self.estimator.anywhere(kind, declared));
        expected.unwrap_or_else(|| self.unlearned.anywhere(kind, declared))
    }

    fn knows(&self, kind: KindId) -> bool {
        calmly(|| self.estimator.knows(kind)).unwrap_or(false)
    }

    fn record(&mut self, kind: KindId, worker: usize, duration: Span, success: bool) {
        calmly(|| self.estimator.record(kind, worker, duration, success));
    }

    fn load_ahead(&self, worker: usize) {
        calmly(|| self.estimator.load_ahead(worker));
    }

    fn forget(&mut self, worker: usize) {
        calmly(|| self.estimator.forget(worker));
    }
}

/// Makes a [`Balancer`]; see [`Balancer::builder`].
pub struct Builder<T = (), R = ()> {
    config: Result<Config, BuildError>,
    policy: Option<PolicyChoice>,
    per_type: Vec<(String, PolicyChoice)>,
    settled_max: Option<u32>,
    clock: Timepiece,
    estimator: Option<Box<dyn Estimator>>,
    marker: std::marker::PhantomData<fn(T) -> R>,
}

impl<T, R> Default for Builder<T, R> {
    fn default() -> Self {
        Builder {
            config: Ok(Config::default()),
            policy: None,
            per_type: Vec::new(),
            settled_max: None,
            clock: Timepiece::System(SystemClock::default()),
            estimator: None,
            marker: std::marker::PhantomData,
        }
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Builder<T, R> {
    /// Uses these settings.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = Ok(config);
        self
    }

    /// Uses the settings of a YAML file. It is read at once; if that fails, [`build`](Builder::build) says why.
    #[must_use]
    pub fn config_file(mut self, path: impl AsRef<Path>) -> Self {
        self.config = read(path.as_ref());
        self
    }

    /// Places tasks by this policy instead of the configured one. One of your [own](PolicyChoice::Custom) must not use the
    /// balancer.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<PolicyChoice>) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// Places tasks of one type by this policy. One of your [own](PolicyChoice::Custom) must not use the balancer.
    #[must_use]
    pub fn policy_for_type(mut self, task_type: impl Into<String>, policy: impl Into<PolicyChoice>) -> Self {
        self.per_type.push((task_type.into(), policy.into()));
        self
    }

    /// Remembers so many settled tasks at the most, with their names, results and errors; the oldest are forgotten first.
    /// The same as the setting `limits.settled_max`, and wins over it.
    #[must_use]
    pub fn settled_max(mut self, most: u32) -> Self {
        self.settled_max = Some(most);
        self
    }

    /// Takes the time from this clock. It must not use the balancer; see [`Clock`].
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Timepiece::custom(clock);
        self
    }

    /// Takes estimates of durations and success from here. It is called under the balancer's lock, so it must not use the
    /// balancer, nor wait for anybody who does; where it calls it, that call panics and says so. Where it panics, it is as if
    /// nothing had been learned.
    #[must_use]
    pub fn estimator(mut self, estimator: Box<dyn Estimator>) -> Self {
        self.estimator = Some(estimator);
        self
    }

    /// The balancer.
    ///
    /// # Errors
    /// If the settings or a policy make no sense, or the file could not be read.
    pub fn build(self) -> Result<Balancer<T, R>, BuildError> {
        let mut config = self.config?;
        if let Some(most) = self.settled_max {
            config.limits.settled_max = most;
            config.limits.settled_kept = config.limits.settled_kept.min(most);
        }
        let problems = config.validate();
        if !problems.is_empty() {
            return Err(BuildError::Settings(problems));
        }
        let mut scheduler = Scheduler::new(&config).map_err(|error| BuildError::Policy(error.0))?;
        if let Some(estimator) = self.estimator {
            let unlearned = Tracker::new(config.scheduling.default_estimate);
            scheduler = scheduler.with_estimator(Box::new(CalmEstimator { estimator, unlearned }));
        }
        if let Some(choice) = self.policy {
            scheduler.use_policy(None, choice.make(&config).map_err(BuildError::Policy)?);
        }
        let names = NameBook::default();
        names.use_policies_per_type(&mut scheduler).map_err(|error| BuildError::Policy(error.0))?;
        for (name, choice) in self.per_type {
            let task_type = names.task_type(&name).map_err(|error| BuildError::Policy(error.to_string()))?;
            scheduler.use_policy(Some(task_type), choice.make(&config).map_err(BuildError::Policy)?);
        }
        Ok(Balancer::new(scheduler, names, Arc::new(self.clock)))
    }
}

fn read(path: &Path) -> Result<Config, BuildError> {
    let label = path.display().to_string();
    let failed = |source| BuildError::Read { path: label.clone(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to see that it is too much.
    file.take(config::MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    let text = config::decode(&bytes, &label).map_err(BuildError::Config)?;
    Ok(Config::from_yaml(text, &label).map_err(BuildError::Config)?.config)
}
