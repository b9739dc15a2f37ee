//! The cluster: coordinator and workers as processes of their own, over sockets, with the durable store.
//!
//! `cargo xtask bench cluster`; see `docs/benchmarks.md` for what is measured and how.

use anyhow::Result;
use clap::Parser;
use filch_bench::cluster::{Arguments, main_with};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    main_with(Arguments::parse())
}
