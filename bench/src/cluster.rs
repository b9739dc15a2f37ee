//! The benchmark of the cluster: what is measured, in which processes, and how it is told.

mod cases;
mod command_line;
mod figures;
mod peers;
mod rivals;
mod roles;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

pub use figures::Figure;

/// Measures the cluster: coordinator and workers as processes of their own, over sockets, with the durable store.
#[derive(Parser)]
#[command(version, about)]
pub struct Arguments {
    /// A process of the benchmark itself.
    #[command(subcommand)]
    role: Option<Role>,
    /// Only cases whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// Fewer tasks and rounds.
    #[arg(long)]
    quick: bool,
    /// Also runs the same work on Dask and Ray, which are installed with pip into a folder of their own.
    #[arg(long)]
    rivals: bool,
    /// An array of `{case, tasks_per_s, cpu_us_per_task, p50_us, rss_bytes, efficiency}`.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Role {
    /// A coordinator that lives until its standard input ends.
    #[command(hide = true)]
    Coordinator {
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        tls: bool,
    },
    /// Workers that live until their standard input ends.
    #[command(hide = true)]
    Worker {
        #[arg(long)]
        access: PathBuf,
        #[arg(long)]
        name: String,
        #[arg(long, default_value_t = 1)]
        count: u32,
        #[arg(long, default_value_t = 16)]
        slots: u32,
        #[arg(long)]
        over_network: bool,
    },
    /// Answers every byte that comes to a socket.
    #[command(hide = true)]
    Pong,
    /// Does nothing, with a runtime, until its standard input ends.
    #[command(hide = true)]
    Empty,
}

/// Runs the benchmark, or one of its processes.
///
/// # Errors
/// If something cannot be measured.
pub fn main_with(arguments: Arguments) -> Result<()> {
    match arguments.role {
        Some(Role::Coordinator { dir, tls }) => roles::coordinator(&dir, tls),
        Some(Role::Worker { access, name, count, slots, over_network }) => {
            roles::worker(&access, &name, count, slots, over_network)
        }
        Some(Role::Pong) => roles::pong(),
        Some(Role::Empty) => roles::empty(),
        None => {
            let mut figures = cases::run(arguments.filter.as_deref(), arguments.quick)?;
            // What was found is shown even if a rival cannot be run.
            let mut failed = None;
            match arguments.rivals.then(|| rivals::run(arguments.quick)) {
                Some(Ok(more)) => figures.extend(more),
                Some(Err(error)) => failed = Some(error.context("the rivals could not be run")),
                None => {}
            }
            figures::print(&figures, arguments.json);
            figures::check(&figures)?;
            failed.map_or(Ok(()), Err)
        }
    }
}
