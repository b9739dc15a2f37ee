//! The workers of a simulated cluster: classes of equal machines.

use filch_core::{Amount, CapabilitySet, Names, ResourceId, Vector, WorkerSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Equal workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Class {
    /// Its name; tasks may take another time on every class.
    pub name: String,
    /// How many there are.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub count: u32,
    /// Tasks a worker runs at once; as many as cores unless told.
    #[schemars(range(min = 1, max = 65_536))]
    pub slots: Option<u32>,
    /// Cores of a worker; as many as slots unless told.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub cores: Option<f64>,
    /// Bytes of memory of a worker; without limit unless told.
    #[schemars(range(min = 0))]
    pub memory: Option<f64>,
    /// GPUs of a worker.
    #[schemars(range(min = 0, max = 1024))]
    pub gpus: u32,
    /// The model of its GPUs.
    pub gpu_model: Option<String>,
    /// Relative speed: durations are divided by it.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub speed: f64,
    /// What its workers can do.
    pub capabilities: Vec<String>,
}

impl Default for Class {
    fn default() -> Self {
        Class {
            name: "cpu".to_owned(),
            count: 1,
            slots: None,
            cores: None,
            memory: None,
            gpus: 0,
            gpu_model: None,
            speed: 1.0,
            capabilities: Vec::new(),
        }
    }
}

/// More memory than any task asks for, in units that still add up.
const UNLIMITED: Amount = Amount(u64::MAX / 4);

/// The capability that workers with GPUs of a model have.
pub(crate) fn gpu_capability(model: &str) -> String {
    format!("gpu:{model}")
}

impl Class {
    /// `count` workers with one slot each.
    #[must_use]
    pub fn plain(count: u32) -> Class {
        Class { count, ..Class::default() }
    }

    /// Tasks a worker runs at once.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots.unwrap_or_else(|| self.cores.map_or(1, |cores| (cores as u32).max(1)))
    }

    /// Cores of a worker.
    #[must_use]
    pub fn cores(&self) -> f64 {
        self.cores.unwrap_or_else(|| f64::from(self.slots()))
    }

    /// What a worker of this class says of itself; `extra` are capabilities the workload defines.
    #[must_use]
    pub fn spec(&self, tag: u64, extra: &[String], names: &mut Names) -> WorkerSpec {
        let mut resources = vec![(ResourceId::CPUS, Amount::from_f64(self.cores()))];
        resources.push((ResourceId::MEMORY, self.memory.map_or(UNLIMITED, Amount::from_f64)));
        if self.gpus > 0 {
            resources.push((ResourceId::GPUS, Amount::from_units(u64::from(self.gpus))));
        }
        let model = self.gpu_model.as_deref().map(gpu_capability);
        let capabilities = self.capabilities.iter().chain(extra).chain(&model);
        WorkerSpec {
            tag,
            capabilities: capabilities.map(|name| names.capability(name)).collect::<CapabilitySet>(),
            resources: Vector::new(resources),
            slots: self.slots(),
            speed: self.speed,
            ..WorkerSpec::default()
        }
    }
}
