//! The names of one balancer, for all its threads. Which names there may be and how many is the core's to say
//! ([`filch_core::names`]); here is only the lock around them.

use filch_core::names::{NameError, Sort};
use filch_core::policy::PolicyError;
use filch_core::{
    AffinityId, Amount, CapabilityId, CapabilitySet, Demand, KeyId, KindId, Lack, Names, ResourceId, Scheduler, TypeId,
    Vector,
};
use parking_lot::RwLock;

use crate::error::Error;

/// All names in use.
#[derive(Debug, Default)]
pub(crate) struct NameBook {
    names: RwLock<Names>,
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Error {
        match error {
            NameError::TooMany { what, limit } => Error::TooManyNames { what, limit },
            NameError::Invalid(text) => Error::Invalid(text),
        }
    }
}

impl NameBook {
    /// The number of a name. Most are known, and then nobody has to wait for another.
    fn number(&self, sort: Sort, name: &str) -> Result<u32, Error> {
        if let Some(known) = self.names.read().known(sort, name)? {
            return Ok(known);
        }
        Ok(self.names.write().number(sort, name)?)
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
        let pairs = amounts.iter().map(|(name, amount)| (name.as_str(), *amount));
        filch_core::names::amounts(pairs, |sort, name| self.number(sort, name))
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
        self.names.read().lack(lack)
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
