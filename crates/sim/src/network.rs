//! The modelled network: how long a message takes, whether it arrives, and who can reach whom.

use filch_core::{Rng, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Share of the messages that never arrive.
    #[schemars(range(min = 0, max = 0.9))]
    pub loss: f64,
    /// Share of the messages that arrive twice.
    #[schemars(range(min = 0, max = 0.9))]
    pub duplication: f64,
    /// Whether a message may overtake another between the same two.
    pub reordering: bool,
}

impl Default for Network {
    fn default() -> Self {
        Network {
            latency: Span::from_millis(1),
            spread: Spread::Constant,
            loss: 0.0,
            duplication: 0.0,
            reordering: false,
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

impl Network {
    /// How long one message takes.
    pub fn delay(&self, rng: &mut Rng) -> Span {
        match self.spread {
            Spread::Constant => self.latency,
            Spread::Uniform => self.latency.mul_f64(0.5 + rng.unit()),
            Spread::LogNormal => self.latency.mul_f64(libm::exp(0.5 * normal(rng))),
        }
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
