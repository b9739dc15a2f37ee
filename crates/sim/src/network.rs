//! The modelled network: how long a message takes, whether it arrives, and who can reach whom.

use filch_core::{Rng, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::flows::Flows;

/// Bytes a second of a link without limit: more than anybody could use, and still a number.
const UNLIMITED: f64 = 1e30;

/// How a network behaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// How long a message takes one way.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub latency: Span,
    /// How much that varies: `constant`, `uniform` (from half to one and a half of it) or `log_normal` (its median, sigma 0.5).
    pub spread: Spread,
    /// Share of the frames that never arrive. A frame is what one step of a machine says to the same place.
    #[schemars(range(min = 0, max = 0.9))]
    pub loss: f64,
    /// Share of the frames that arrive twice.
    #[schemars(range(min = 0, max = 0.9))]
    pub duplication: f64,
    /// Whether a frame may overtake another between the same two.
    pub reordering: bool,
    /// Bytes a second that the link of a worker takes; 0 is without limit. Only what tasks read (`workload.input`) is that
    /// large; messages are not counted.
    #[schemars(range(min = 0))]
    pub bandwidth: f64,
    /// Bytes a second of the link at which the coordinator and the data are; 0 is without limit.
    #[schemars(range(min = 0))]
    pub coordinator_bandwidth: f64,
    /// How transfers share links: `simple`, each has the slower of its two links for itself, or `max_min`, they share fairly.
    pub sharing: Sharing,
}

/// How transfers share links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Not at all: each has its links for itself.
    #[default]
    Simple,
    /// Nobody gets more by taking from somebody who has less.
    MaxMin,
}

impl Default for Network {
    fn default() -> Self {
        Network {
            latency: Span::from_millis(1),
            spread: Spread::Constant,
            loss: 0.0,
            duplication: 0.0,
            reordering: false,
            bandwidth: 0.0,
            coordinator_bandwidth: 0.0,
            sharing: Sharing::Simple,
        }
    }
}

/// How latencies vary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// Not at all.
    #[default]
    Constant,
    /// From half to one and a half.
    Uniform,
    /// With a long tail.
    LogNormal,
}

impl Spread {
    /// A draw around a span.
    pub(crate) fn vary(self, span: Span, rng: &mut Rng) -> Span {
        match self {
            Spread::Constant => span,
            Spread::Uniform => span.mul_f64(0.5 + rng.unit()),
            Spread::LogNormal => span.mul_f64(libm::exp(0.5 * normal(rng))),
        }
    }
}

impl Network {
    /// How long one message takes.
    pub fn delay(&self, rng: &mut Rng) -> Span {
        self.spread.vary(self.latency, rng)
    }

    /// How long a transfer takes that has its links for itself.
    #[must_use]
    pub fn transfer(&self, bytes: f64) -> Span {
        let slower = [self.bandwidth, self.coordinator_bandwidth].into_iter().filter(|link| *link > 0.0);
        slower.min_by(f64::total_cmp).map_or(Span::ZERO, |link| Span::from_secs_f64(bytes / link))
    }

    /// The links that transfers share: the coordinator's, then those of so many workers. None if they share nothing.
    pub(crate) fn links(&self, workers: usize) -> Option<Flows> {
        let limited = self.bandwidth > 0.0 || self.coordinator_bandwidth > 0.0;
        let capacity = |link: f64| if link > 0.0 { link } else { UNLIMITED };
        let workers = std::iter::repeat_n(capacity(self.bandwidth), workers);
        let links = std::iter::once(capacity(self.coordinator_bandwidth)).chain(workers);
        (limited && self.sharing == Sharing::MaxMin).then(|| Flows::new(links))
    }

    /// How many copies of one message arrive.
    pub fn copies(&self, rng: &mut Rng) -> u32 {
        if self.loss > 0.0 && rng.unit() < self.loss {
            0
        } else if self.duplication > 0.0 && rng.unit() < self.duplication {
            2
        } else {
            1
        }
    }

    /// Whether every frame comes once, and after the same time as every other.
    pub(crate) fn is_steady(&self) -> bool {
        self.loss <= 0.0 && self.duplication <= 0.0 && !self.varies()
    }

    /// Whether messages between two may come in another order than they were sent unless somebody minds it.
    #[must_use]
    pub fn varies(&self) -> bool {
        self.spread != Spread::Constant
    }
}

/// A draw of the normal distribution with mean 0 and deviation 1.
pub(crate) fn normal(rng: &mut Rng) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - rng.unit()));
    radius * libm::cos(2.0 * std::f64::consts::PI * rng.unit())
}

/// A draw of the exponential distribution.
pub(crate) fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * libm::log(1.0 - rng.unit())
}
