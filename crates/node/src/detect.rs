//! Finds out what a machine offers: processors, memory, instruction sets, NUMA nodes, disks, accelerators and software.
//!
//! What it reports is what may be used: processors that this process may run on and a control group's quota allows, and
//! memory up to a control group's limit. Accelerators are asked for through the driver's own tools, so nothing needs to be
//! installed and no driver is loaded into this process. Software is whatever a probe finds: a command whose output
//! matches a pattern proves a capability.
//!
//! Never fails for want of something: what cannot be found out is absent. Only a probe with a wrong pattern is an error.
//! Never changes anything on the machine, and never waits longer for a probe than it may take.

mod gpu;
mod probe;
mod system;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use filch_core::config::Probe;
pub use probe::{Missing, PatternError};

/// What a machine offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name in the network.
    pub hostname: String,
    /// What runs on it.
    pub os: Os,
    /// Its processors.
    pub cpu: Cpu,
    /// Its memory.
    pub memory: Memory,
    /// Groups of processors with memory of their own; empty if the system does not tell.
    pub numa: Vec<Node>,
    /// The file systems that were asked about.
    pub disks: Vec<Disk>,
    /// Accelerators.
    pub gpus: Vec<Gpu>,
    /// The capabilities that probes found.
    pub software: Vec<String>,
    /// The capabilities that probes did not find, and why.
    pub missing: Vec<Missing>,
}

/// An operating system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Os {
    /// As its makers call it, with its version.
    pub name: String,
    /// The release of its kernel.
    pub kernel: String,
    /// The kind of processor that programs are made for.
    pub architecture: String,
}

/// Processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// As its makers call it; empty if the system does not tell.
    pub model: String,
    /// How many threads may run at once here: by affinity, and by a control group's quota, rounded down.
    pub usable: usize,
    /// How many hardware threads the machine has.
    pub threads: usize,
    /// How many cores those share.
    pub cores: usize,
    /// The instruction sets beyond the basic one.
    pub features: Vec<String>,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What may be used here, by the machine and by a control group's limit.
    pub usable: u64,
    /// What the machine has.
    pub total: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// The processors that are near.
    pub cpus: Vec<u32>,
    /// The bytes of memory that are near.
    pub memory: u64,
}

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// What was asked about.
    pub path: PathBuf,
    /// Its bytes.
    pub total: u64,
    /// Those that are free for whoever asks.
    pub free: u64,
}

/// An accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Whose it is: `nvidia` or `amd`.
    pub vendor: String,
    /// What it is called.
    pub model: String,
    /// Its name among its peers, the same after a restart where the driver knows one.
    pub id: String,
    /// Its bytes of memory.
    pub memory: u64,
}

/// What to look for, and where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file systems of interest.
    pub disks: Vec<PathBuf>,
    /// The software of interest.
    pub probes: Vec<Probe>,
    /// The command that knows NVIDIA's accelerators.
    pub nvidia_smi: PathBuf,
    /// Which of them may be used, as in `CUDA_VISIBLE_DEVICES`: indices or ids with commas between. All, if nothing is said.
    pub cuda_visible: Option<String>,
    /// Where the system's files begin.
    pub root: PathBuf,
}

impl Default for Settings {
    /// This machine: the current directory's disk, no probes, and accelerators as the environment allows.
    fn default() -> Settings {
        Settings {
            disks: vec![PathBuf::from(".")],
            probes: Vec::new(),
            nvidia_smi: PathBuf::from("nvidia-smi"),
            cuda_visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            root: PathBuf::from("/"),
        }
    }
}

/// Looks at this machine.
pub fn detect(settings: &Settings) -> Result<Machine, PatternError> {
    let (software, missing) = probe::run(&settings.probes)?;
    let root = &settings.root;
    let mut gpus = gpu::nvidia(&settings.nvidia_smi, settings.cuda_visible.as_deref());
    gpus.extend(gpu::amd(root));
    Ok(Machine {
        hostname: system::hostname(),
        os: system::os(root),
        cpu: system::cpu(root),
        memory: system::memory(root),
        numa: system::numa(root),
        disks: settings.disks.iter().filter_map(|path| system::disk(path)).collect(),
        gpus,
        software,
        missing,
    })
}
