//! An in-process work-stealing pool: fork and join, scopes, spawned tasks, parallel loops.
//!
//! A fork costs about as much as a function call: jobs lie on the stack, and nothing is shared with other threads before
//! one of them asks for work. The crate's README explains every protocol and its memory orderings.
//!
//! It is not an async runtime and not the scheduler of the cluster: it shares filch's words and nothing else.
//!
//! ```
//! let (left, right) = filch_pool::join(|| 1, || 2);
//! assert_eq!(left + right, 3);
//! ```

#[cfg(all(doctest, not(loom)))]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(all(doctest, not(loom)))]
mod refusals;

#[cfg(not(loom))]
mod blocks;
#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod context;
#[cfg_attr(loom, allow(dead_code))]
mod deque;
#[cfg(not(loom))]
mod handle;
#[cfg(not(loom))]
mod iter;
#[cfg_attr(loom, allow(dead_code))]
mod latch;
#[cfg_attr(loom, allow(dead_code))]
mod listen;
#[cfg_attr(any(loom, shuttle), allow(dead_code))]
mod live;
#[cfg(not(loom))]
mod pin;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod quiet;
#[cfg(not(loom))]
mod registry;
#[cfg_attr(loom, allow(dead_code))]
mod ring;
#[cfg(not(loom))]
mod scope;
#[cfg_attr(loom, allow(dead_code))]
mod sleep;
#[cfg(not(loom))]
mod stats;
#[cfg_attr(loom, allow(dead_code, unused_imports))]
mod sync;
#[cfg_attr(loom, allow(dead_code))]
mod tally;
#[cfg(not(loom))]
mod task;
#[cfg(not(loom))]
mod topology;
#[cfg(not(loom))]
mod wait;
#[cfg(not(loom))]
mod watch;
#[cfg(not(loom))]
mod worker;

#[cfg(all(test, loom))]
mod models;

#[cfg(not(loom))]
pub use self::{
    builder::Builder,
    context::{Ctx, join, run},
    handle::{CancelToken, Cancelled, JoinHandle},
    iter::{Items, for_each, map, reduce},
    pool::{Pool, TaskBuilder, current_worker, global},
    scope::{Scope, scope},
    stats::{LATENCY_STEPS, Stats},
    task::Priority,
    topology::{Cpu, Topology},
};
