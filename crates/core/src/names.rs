//! Names become numbers here, and numbers become names again for people. Numbers are never given back, so the number of
//! different names of each sort is bounded.

use crate::action::Lack;
use crate::ids::{Names, ResourceId, Table};
use crate::resources::Amount;

/// What a name is a name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sort {
    /// A capability or a skill.
    Capability,
    /// A resource.
    Resource,
    /// A kind.
    Kind,
    /// A concurrency key.
    Key,
    /// A task type.
    TaskType,
    /// An affinity key.
    Affinity,
}

impl Sort {
    /// All of them, in the order of their numbers in the store.
    pub const ALL: [Sort; 6] =
        [Sort::Capability, Sort::Resource, Sort::Kind, Sort::Key, Sort::TaskType, Sort::Affinity];

    /// What names of this sort are called, and how many different ones there may be. Capabilities and resources index
    /// vectors, so they get fewer.
    #[must_use]
    pub const fn limit(self) -> (&'static str, u32) {
        match self {
            Sort::Capability => ("capabilities", 4096),
            Sort::Resource => ("resources", 1024),
            Sort::Kind => ("kinds", 1 << 20),
            Sort::Key => ("concurrency keys", 1 << 20),
            Sort::TaskType => ("task types", 4096),
            Sort::Affinity => ("affinity keys", 1 << 20),
        }
    }
}

/// Why a name or an amount cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There are as many different names as there may be.
    #[error("there are {limit} different {what} already, and no more can be told apart")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The most there may be.
        limit: u32,
    },
    /// It makes no sense; the text says what.
    #[error("{0}")]
    Invalid(String),
}

/// The largest amount of a resource: sums of a few of them can still be counted exactly.
const MOST: f64 = 1e14;

impl Names {
    /// The names of one sort.
    #[must_use]
    pub fn table(&self, sort: Sort) -> &Table {
        match sort {
            Sort::Capability => &self.capabilities,
            Sort::Resource => &self.resources,
            Sort::Kind => &self.kinds,
            Sort::Key => &self.keys,
            Sort::TaskType => &self.types,
            Sort::Affinity => &self.affinities,
        }
    }

    /// The names of one sort, to be added to.
    pub fn table_mut(&mut self, sort: Sort) -> &mut Table {
        match sort {
            Sort::Capability => &mut self.capabilities,
            Sort::Resource => &mut self.resources,
            Sort::Kind => &mut self.kinds,
            Sort::Key => &mut self.keys,
            Sort::TaskType => &mut self.types,
            Sort::Affinity => &mut self.affinities,
        }
    }

    /// The number of a name that is known. Whether it may be one at all is looked at too.
    ///
    /// # Errors
    /// If the name is empty and may not be.
    pub fn known(&self, sort: Sort, name: &str) -> Result<Option<u32>, NameError> {
        // Without a kind or a type is what most tasks are, so there the empty name means that.
        if name.is_empty() && !matches!(sort, Sort::Kind | Sort::TaskType) {
            return Err(NameError::Invalid(format!("there is an empty name among the {}", sort.limit().0)));
        }
        Ok(self.table(sort).get(name))
    }

    /// The number of a name, which is given one if it has none.
    ///
    /// # Errors
    /// If it cannot be a name, or there are too many.
    pub fn number(&mut self, sort: Sort, name: &str) -> Result<u32, NameError> {
        if let Some(known) = self.known(sort, name)? {
            return Ok(known);
        }
        let (what, limit) = sort.limit();
        let table = self.table_mut(sort);
        if table.names().len() >= limit as usize {
            return Err(NameError::TooMany { what, limit });
        }
        Ok(table.intern(name))
    }

    /// What a worker lacks, in words.
    #[must_use]
    pub fn lack(&self, lack: Lack) -> String {
        match lack {
            Lack::Pinned => "the task is pinned to another worker".to_owned(),
            Lack::Capability(id) => format!("it lacks `{}`", self.capabilities.name(id.0)),
            Lack::Skill(id) => format!("it lacks the skill `{}`", self.capabilities.name(id.0)),
            Lack::FewerSkills { shared, best } => format!("it has {shared} of the skills, others have {best}"),
            Lack::Resource { resource, needs, has } => {
                format!("it has {has} {}, the task needs {needs}", self.resources.name(resource.0))
            }
        }
    }
}

/// Amounts of resources by name, as exact amounts by number.
///
/// # Errors
/// If an amount makes no sense, or whatever `number` says of a name.
pub fn amounts<'a, E: From<NameError>>(
    amounts: impl Iterator<Item = (&'a str, f64)> + Clone,
    mut number: impl FnMut(Sort, &str) -> Result<u32, E>,
) -> Result<Vec<(ResourceId, Amount)>, E> {
    let invalid = |text| E::from(NameError::Invalid(text));
    let (mut found, all) = (Vec::new(), amounts.clone());
    for (name, amount) in amounts {
        if !amount.is_finite() || amount < 0.0 {
            let text = format!("the amount of `{name}` must be a finite number of 0 or more, not {amount}");
            return Err(invalid(text));
        }
        let exact = Amount::from_f64(amount);
        if amount > 0.0 && exact == Amount(0) {
            return Err(invalid(format!("the amount of `{name}` must be 0.0001 at the least, not {amount}")));
        }
        let total: f64 = all.clone().filter(|other| other.0 == name).map(|other| other.1).sum();
        if total > MOST {
            let text = format!("the amount of `{name}` must be {MOST:e} at the most, not {total:e}: use a larger unit");
            return Err(invalid(text));
        }
        found.push((ResourceId(number(Sort::Resource, name)?), exact));
    }
    Ok(found)
}
