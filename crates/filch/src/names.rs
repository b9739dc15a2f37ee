//! Names become numbers here, at the edge of the core, and numbers become names again for people.
//!
//! Numbers are never given back, so the number of different names is bounded; see [`NameBook::LIMITS`].

use filch_core::policy::PolicyError;
use filch_core::{
    AffinityId, Amount, CapabilityId, CapabilitySet, Demand, KeyId, KindId, Lack, Names, ResourceId, Scheduler, Table,
    TypeId, Vector,
};
use parking_lot::RwLock;

use crate::error::Error;

/// What a name is a name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Capability,
    Resource,
    Kind,
    Key,
    TaskType,
    Affinity,
}

/// All names in use.
#[derive(Debug, Default)]
pub(crate) struct NameBook {
    names: RwLock<Names>,
}

/// The largest amount of a resource: sums of a few of them can still be counted exactly.
const MOST: f64 = 1e14;

impl NameBook {
    /// Different names of each sort at the most. Capabilities and resources index vectors, so they get fewer.
    const LIMITS: [(&'static str, u32); 6] = [
        ("capabilities", 4096),
        ("resources", 1024),
        ("kinds", 1 << 20),
        ("concurrency keys", 1 << 20),
        ("task types", 4096),
        ("affinity keys", 1 << 20),
    ];

    fn number(&self, sort: Sort, name: &str) -> Result<u32, Error> {
        let (what, limit) = Self::LIMITS[sort as usize];
        // Without a kind or a type is what most tasks are, so there the empty name means that.
        if name.is_empty() && !matches!(sort, Sort::Kind | Sort::TaskType) {
            return Err(Error::Invalid(format!("there is an empty name among the {what}")));
        }
        if let Some(known) = table(&self.names.read(), sort).get(name) {
            return Ok(known);
        }
        let mut names = self.names.write();
        let table = table_mut(&mut names, sort);
        // Numbers are given in order, so the last one allowed is known if the table is full.
        let full = table.name(limit - 1) != "?" || table.get("?") == Some(limit - 1);
        if full && table.get(name).is_none() {
            return Err(Error::TooManyNames { what, limit });
        }
        Ok(table.intern(name))
    }

    /// Gives a scheduler the policies its configuration names for single task types.
    pub(crate) fn use_policies_per_type(&self, scheduler: &mut Scheduler) -> Result<(), PolicyError> {
        scheduler.use_policies_per_type(&mut self.names.write())
    }

    pub(crate) fn kind(&self, name: &str) -> Result<KindId, Error> {
        self.number(Sort::Kind, name).map(KindId)
    }

    pub(crate) fn key(&self, name: &str) -> Result<KeyId, Error> {
        self.number(Sort::Key, name).map(KeyId)
    }

    pub(crate) fn task_type(&self, name: &str) -> Result<TypeId, Error> {
        self.number(Sort::TaskType, name).map(TypeId)
    }

    pub(crate) fn affinity(&self, name: &str) -> Result<AffinityId, Error> {
        self.number(Sort::Affinity, name).map(AffinityId)
    }

    pub(crate) fn capabilities(&self, names: &[String]) -> Result<CapabilitySet, Error> {
        names.iter().map(|name| self.number(Sort::Capability, name).map(CapabilityId)).collect()
    }

    pub(crate) fn demand(&self, amounts: &[(String, f64)]) -> Result<Demand, Error> {
        Ok(Demand::new(self.amounts(amounts)?))
    }

    pub(crate) fn vector(&self, amounts: &[(String, f64)]) -> Result<Vector, Error> {
        Ok(Vector::new(self.amounts(amounts)?))
    }

    fn amounts(&self, amounts: &[(String, f64)]) -> Result<Vec<(ResourceId, Amount)>, Error> {
        let number = |(name, amount): &(String, f64)| {
            if !amount.is_finite() || *amount < 0.0 {
                return Err(Error::Invalid(format!(
                    "the amount of `{name}` must be a finite number of 0 or more, not {amount}"
                )));
            }
            let exact = Amount::from_f64(*amount);
            if *amount > 0.0 && exact == Amount(0) {
                return Err(Error::Invalid(format!(
                    "the amount of `{name}` must be 0.0001 at the least, not {amount}"
                )));
            }
            let total: f64 = amounts.iter().filter(|other| other.0 == *name).map(|other| other.1).sum();
            if total > MOST {
                let text =
                    format!("the amount of `{name}` must be {MOST:e} at the most, not {total:e}: use a larger unit");
                return Err(Error::Invalid(text));
            }
            Ok((ResourceId(self.number(Sort::Resource, name)?), exact))
        };
        amounts.iter().map(number).collect()
    }

    pub(crate) fn resource_name(&self, id: ResourceId) -> String {
        self.names.read().resources.name(id.0).to_owned()
    }

    pub(crate) fn key_name(&self, id: KeyId) -> String {
        self.names.read().keys.name(id.0).to_owned()
    }

    pub(crate) fn amounts_by_name(&self, vector: &Vector) -> Vec<(String, f64)> {
        vector.iter().map(|(id, amount)| (self.resource_name(id), amount.as_f64())).collect()
    }

    /// What a worker lacks, in words.
    pub(crate) fn lack(&self, lack: Lack) -> String {
        let names = self.names.read();
        match lack {
            Lack::Pinned => "the task is pinned to another worker".to_owned(),
            Lack::Capability(id) => format!("it lacks `{}`", names.capabilities.name(id.0)),
            Lack::Skill(id) => format!("it lacks the skill `{}`", names.capabilities.name(id.0)),
            Lack::FewerSkills { shared, best } => format!("it has {shared} of the skills, others have {best}"),
            Lack::Resource { resource, needs, has } => {
                format!("it has {has} {}, the task needs {needs}", names.resources.name(resource.0))
            }
        }
    }
}

fn table(names: &Names, sort: Sort) -> &Table {
    match sort {
        Sort::Capability => &names.capabilities,
        Sort::Resource => &names.resources,
        Sort::Kind => &names.kinds,
        Sort::Key => &names.keys,
        Sort::TaskType => &names.types,
        Sort::Affinity => &names.affinities,
    }
}

fn table_mut(names: &mut Names, sort: Sort) -> &mut Table {
    match sort {
        Sort::Capability => &mut names.capabilities,
        Sort::Resource => &mut names.resources,
        Sort::Kind => &mut names.kinds,
        Sort::Key => &mut names.keys,
        Sort::TaskType => &mut names.types,
        Sort::Affinity => &mut names.affinities,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_numbers_and_there_is_a_limit() {
        let book = NameBook::default();
        assert_eq!((book.kind("").unwrap(), book.task_type("").unwrap()), (KindId(0), TypeId(0)));
        assert!(matches!(book.key(""), Err(Error::Invalid(_))));
        let render = book.kind("render").unwrap();
        assert_eq!(book.kind("render").unwrap(), render);
        for index in 4..1024 {
            book.vector(&[(format!("r{index}"), 1.0)]).unwrap();
        }
        let full = book.demand(&[("one-too-many".to_owned(), 1.0)]);
        assert_eq!(full, Err(Error::TooManyNames { what: "resources", limit: 1024 }));
        assert!(book.demand(&[("r5".to_owned(), 1.0), ("cpus".to_owned(), 2.0)]).is_ok());
    }

    #[test]
    fn amounts_that_make_no_sense_are_refused() {
        let book = NameBook::default();
        for amount in [-1.0, f64::NAN, f64::INFINITY, 1e300, 1.1e14, 1e-5] {
            assert!(matches!(book.demand(&[("gpus".to_owned(), amount)]), Err(Error::Invalid(_))), "{amount}");
        }
        let twice = [("memory".to_owned(), 9e13), ("memory".to_owned(), 9e13)];
        let error = book.vector(&twice).unwrap_err().to_string();
        assert_eq!(error, "the amount of `memory` must be 1e14 at the most, not 1.8e14: use a larger unit");
        assert!(book.vector(&[("memory".to_owned(), 1e14)]).is_ok());
    }
}
