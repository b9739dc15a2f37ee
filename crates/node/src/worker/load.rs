//! How busy this machine is, for the signs of life of a worker. Asked for at most once a second, however many workers there
//! are in this process.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use filch_core::LoadReport;

/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);

struct Known {
    at: Instant,
    /// Processor time in use and in all, as the system counts.
    times: (u64, u64),
    load: LoadReport,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// The load of this machine.
pub(super) fn load() -> LoadReport {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if let Some(known) = &*known
        && now.duration_since(known.at) < FRESH
    {
        return known.load;
    }
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    let times = processor_times(&text("/proc/stat")).unwrap_or_default();
    let before = known.as_ref().map_or((0, 0), |known| known.times);
    let (busy, all) = (times.0.saturating_sub(before.0), times.1.saturating_sub(before.1));
    let cpu = if all > 0 { busy as f64 / all as f64 } else { 0.0 };
    let load = LoadReport { cpu, memory: memory_in_use(&text("/proc/meminfo")).unwrap_or(0.0) };
    *known = Some(Known { at: now, times, load });
    load
}

/// Busy and all, from the first line of `/proc/stat`.
fn processor_times(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = line.split_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
    let all: u64 = times.iter().sum();
    let idle = times.get(3)? + times.get(4)?;
    Some((all.saturating_sub(idle), all))
}

fn memory_in_use(text: &str) -> Option<f64> {
    let field = |name: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    };
    let total = field("MemTotal").filter(|total| *total > 0.0)?;
    Some((1.0 - field("MemAvailable")? / total).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_figures_are_understood() {
        assert_eq!(processor_times("cpu  10 5 5 70 10 0 0 0 9 9\ncpu0 1 2"), Some((20, 100)));
        assert_eq!(processor_times("what"), None);
        assert_eq!(memory_in_use("MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   25 kB\n"), Some(0.75));
        assert_eq!(memory_in_use(""), None);
        let load = load();
        assert!((0.0..=1.0).contains(&load.cpu) && load.memory > 0.0 && load.memory <= 1.0, "{load:?}");
    }
}
