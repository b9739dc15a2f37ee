//! Identities: small integers inside the core, names outside it.
//!
//! Tasks, workers and jobs are slot + generation, so a stale id never means somebody else. Capabilities, resources,
//! kinds, keys and types are interned once, at the edge, by [`Names`].

use std::fmt;

use crate::map::Map;

/// Stands for "no slot" in the compact records of the scheduler.
pub(crate) const NONE: u32 = u32::MAX;

macro_rules! generational {
    ($(#[$doc:meta])* $name:ident, $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            pub(crate) slot: u32,
            pub(crate) generation: u32,
        }

        impl $name {
            /// The id as one integer, for storing it elsewhere.
            #[must_use]
            pub const fn to_bits(self) -> u64 {
                (self.generation as u64) << 32 | self.slot as u64
            }

            /// The id that [`to_bits`](Self::to_bits) came from.
            #[must_use]
            pub const fn from_bits(bits: u64) -> Self {
                Self { slot: bits as u32, generation: (bits >> 32) as u32 }
            }

            /// A dense index that no two living ones share; useful for side tables.
            #[must_use]
            pub const fn index(self) -> usize {
                self.slot as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.slot)?;
                if self.generation > 0 { write!(f, ".{}", self.generation) } else { Ok(()) }
            }
        }
    };
}

generational!(
    /// A task of one scheduler.
    TaskId,
    "t"
);
generational!(
    /// A worker registered with one scheduler.
    WorkerId,
    "w"
);
generational!(
    /// Tasks submitted together.
    JobId,
    "j"
);

macro_rules! interned {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);)+
    };
}

interned! {
    /// An interned capability: something a worker can do.
    CapabilityId,
    /// An interned resource: something a worker has an amount of.
    ResourceId,
    /// An interned kind: tasks of one kind tend to take alike time.
    KindId,
    /// An interned concurrency key.
    KeyId,
    /// An interned task type: selects a policy. Type 0 is every task that names none.
    TypeId,
    /// An interned affinity key: something that makes a task cheaper where it is warm.
    AffinityId,
}

impl ResourceId {
    /// Processor cores.
    pub const CPUS: ResourceId = ResourceId(0);
    /// Main memory, in bytes.
    pub const MEMORY: ResourceId = ResourceId(1);
    /// Accelerators of any model.
    pub const GPUS: ResourceId = ResourceId(2);
    /// Accelerator memory, in bytes.
    pub const GPU_MEMORY: ResourceId = ResourceId(3);
}

/// Names of the well-known resources, in the order of their ids.
const WELL_KNOWN_RESOURCES: [&str; 4] = ["cpus", "memory", "gpus", "gpu_memory"];

/// One table of names. The same name always gets the same number.
#[derive(Clone, Debug, Default)]
pub struct Table {
    by_name: Map<String, u32>,
    names: Vec<String>,
}

impl Table {
    /// The number of `name`, new if it was not known.
    pub fn intern(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let id = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.by_name.insert(name.to_owned(), id);
        id
    }

    /// The number of a known name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// All names, in the order of their numbers.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The name behind a number.
    #[must_use]
    pub fn name(&self, id: u32) -> &str {
        self.names.get(id as usize).map_or("?", String::as_str)
    }
}

/// The names a driver has interned. It lives at the edge; the machines see only the numbers.
#[derive(Clone, Debug)]
pub struct Names {
    /// Capabilities and skills.
    pub capabilities: Table,
    /// Resources.
    pub resources: Table,
    /// Kinds.
    pub kinds: Table,
    /// Concurrency keys.
    pub keys: Table,
    /// Task types.
    pub types: Table,
    /// Affinity keys.
    pub affinities: Table,
}

impl Default for Names {
    fn default() -> Self {
        let mut resources = Table::default();
        for name in WELL_KNOWN_RESOURCES {
            resources.intern(name);
        }
        let (mut kinds, mut types) = (Table::default(), Table::default());
        kinds.intern("");
        types.intern("");
        Names {
            capabilities: Table::default(),
            resources,
            kinds,
            keys: Table::default(),
            types,
            affinities: Table::default(),
        }
    }
}

impl Names {
    /// Interns a capability.
    pub fn capability(&mut self, name: &str) -> CapabilityId {
        CapabilityId(self.capabilities.intern(name))
    }

    /// Interns a resource.
    pub fn resource(&mut self, name: &str) -> ResourceId {
        ResourceId(self.resources.intern(name))
    }

    /// Interns a kind; the empty name is kind 0.
    pub fn kind(&mut self, name: &str) -> KindId {
        KindId(self.kinds.intern(name))
    }

    /// Interns a concurrency key.
    pub fn key(&mut self, name: &str) -> KeyId {
        KeyId(self.keys.intern(name))
    }

    /// Interns a task type; the empty name is type 0.
    pub fn task_type(&mut self, name: &str) -> TypeId {
        TypeId(self.types.intern(name))
    }

    /// Interns an affinity key.
    pub fn affinity(&mut self, name: &str) -> AffinityId {
        AffinityId(self.affinities.intern(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_numbers_and_the_well_known_ones_are_fixed() {
        let mut names = Names::default();
        assert_eq!(names.resource("cpus"), ResourceId::CPUS);
        assert_eq!(names.resource("gpu_memory"), ResourceId::GPU_MEMORY);
        assert_eq!(names.kind(""), KindId(0));
        let python = names.capability("python");
        assert_eq!(names.capability("python"), python);
        assert_ne!(names.capability("rust"), python);
        assert_eq!(names.capabilities.name(python.0), "python");
        assert_eq!(names.capabilities.name(99), "?");
    }

    #[test]
    fn ids_survive_the_trip_through_bits() {
        let id = TaskId { slot: 7, generation: 3 };
        assert_eq!(TaskId::from_bits(id.to_bits()), id);
        assert_eq!(id.to_string(), "t7.3");
        assert_eq!(WorkerId { slot: 2, generation: 0 }.to_string(), "w2");
    }
}
