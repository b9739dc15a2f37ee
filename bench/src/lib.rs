//! What the benchmarks share: worlds of workers and tasks for the scheduler machine, clocks, and reports.
//!
//! The benchmarks themselves are the binaries of this package. Nothing here is part of the product.
#![forbid(unsafe_code)]

pub mod clock;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod mix;
pub mod pool_report;
pub mod python;
pub mod report;
pub mod uts;
pub mod ways;
pub mod works;
pub mod world;
