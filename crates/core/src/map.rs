//! The hash map of the core: fast and free of random state. Never iterate it where order could reach a decision.

/// A hash map whose hasher is the same on every run and machine.
pub type Map<K, V> = hashbrown::HashMap<K, V, rustc_hash::FxBuildHasher>;
