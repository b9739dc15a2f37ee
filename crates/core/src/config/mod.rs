//! Configuration: settings with their defaults and, from YAML, loading, checking and explaining them.

mod settings;
mod span;

pub use settings::*;
