//! What this machine offers to a worker: what is found, what probes prove, and what the command line says above that.

use filch_core::config::Probe;
use filch_node::detect::{self, Gpu, Machine, PatternError};

use crate::job::Resource;

/// What this machine offers, as far as placing tasks depends on it.
pub(crate) fn look(probes: &[Probe]) -> Result<Machine, PatternError> {
    detect::detect(&detect::Settings { disks: Vec::new(), ..settings(probes) })
}

/// All that can be said of it.
pub(crate) fn look_closely(probes: &[Probe]) -> Result<Machine, PatternError> {
    detect::detect(&settings(probes))
}

fn settings(probes: &[Probe]) -> detect::Settings {
    detect::Settings { probes: probes.to_vec(), ..detect::Settings::default() }
}

/// The capabilities of a worker: what the machine has by itself, and what was said.
pub(crate) fn capabilities(machine: &Machine, said: &[String]) -> Vec<String> {
    let mut all = vec![machine.os.architecture.clone(), std::env::consts::OS.to_owned()];
    all.extend(machine.cpu.features.iter().cloned());
    all.extend(machine.gpus.iter().map(|gpu| format!("gpu:{}", gpu.model)));
    all.extend(machine.software.iter().cloned());
    all.extend(said.iter().cloned());
    all.sort();
    all.dedup();
    all.retain(|name| !name.is_empty());
    all
}

/// The accelerators of one of several workers that share a machine, counted from 1: no two have the same.
pub(crate) fn accelerators(machine: &Machine, workers: u32, number: u32) -> &[Gpu] {
    let (all, workers, before) = (machine.gpus.len(), workers.max(1) as usize, number.saturating_sub(1) as usize);
    let first_of = |worker: usize| worker * (all / workers) + worker.min(all % workers);
    machine.gpus.get(first_of(before)..first_of(before + 1)).unwrap_or_default()
}

/// The resources of a worker: what was said of one counts, whatever was found.
pub(crate) fn resources(found: Vec<(String, f64)>, said: &[Resource]) -> Vec<(String, f64)> {
    let is_said = |name: &str| said.iter().any(|one| one.name == name);
    let found = found.into_iter().filter(|(name, amount)| *amount > 0.0 && !is_said(name));
    found.chain(said.iter().map(|one| (one.name.clone(), one.amount))).collect()
}
