//! What a submitter asks of whoever runs a task, with names: becomes the description that the scheduler knows.

use crate::capabilities::CapabilitySet;
use crate::config::Retry;
use crate::ids::{AffinityId, CapabilityId, KeyId, KindId, TypeId};
use crate::names::{NameError, Sort, amounts};
use crate::resources::Demand;
use crate::task::{ParentFailure, Priority, RetryTerms, TaskSpec};
use crate::time::{Span, Time};
use crate::wire::talk::Terms;

impl Terms {
    /// The description that the scheduler knows. `number` gives a name its number. Workers, parents and the handle are
    /// for the caller to fill in.
    ///
    /// # Errors
    /// If something in it makes no sense, or whatever `number` says of a name.
    pub fn spec<E: From<NameError>>(
        &self,
        now: Time,
        retry: &Retry,
        mut number: impl FnMut(Sort, &str) -> Result<u32, E>,
    ) -> Result<TaskSpec, E> {
        let invalid = |text| E::from(NameError::Invalid(text));
        let mut spec = TaskSpec {
            exclusive: self.exclusive,
            idempotent: self.idempotent,
            estimate: self.estimate_nanos.map(Span),
            timeout: self.timeout_nanos.map(Span),
            deadline: self.deadline_in_nanos.map(|span| now + Span(span)),
            ..TaskSpec::default()
        };
        if let Some(level) = self.priority {
            let refused = || invalid(format!("a priority is a number from 1 (least) to 5, not {level}"));
            spec.priority = u8::try_from(level).ok().and_then(Priority::new).ok_or_else(refused)?;
        }
        spec.on_parent_failure = match self.on_parent_failure {
            0 => ParentFailure::Fail,
            1 => ParentFailure::Skip,
            2 => ParentFailure::Run,
            other => return Err(invalid(format!("{other} is nothing to do when a parent fails"))),
        };
        spec.kind = KindId(number(Sort::Kind, &self.kind)?);
        spec.task_type = TypeId(number(Sort::TaskType, &self.task_type)?);
        spec.requires = capabilities(&self.requires, &mut number)?;
        spec.skills = capabilities(&self.skills, &mut number)?;
        if !self.resources.is_empty() {
            let pairs = self.resources.iter().map(|one| (one.name.as_str(), one.amount));
            spec.demand = Demand::new(amounts(pairs, &mut number)?);
        }
        if let Some(key) = &self.key {
            spec.key = Some(KeyId(number(Sort::Key, key)?));
        }
        spec.retry = self.retry_terms(retry)?;
        for warm in &self.affinity {
            spec.affinity.push((AffinityId(number(Sort::Affinity, &warm.key)?), Span(warm.saves_nanos)));
        }
        Ok(spec)
    }

    /// How often it is tried again, if that is not left to the configuration.
    fn retry_terms<E: From<NameError>>(&self, usual: &Retry) -> Result<Option<RetryTerms>, E> {
        if self.retries.is_none() && self.backoff_nanos.is_none() && self.backoff_max_nanos.is_none() {
            return Ok(None);
        }
        let backoff = self.backoff_nanos.map_or(usual.backoff, Span);
        let backoff_max = self.backoff_max_nanos.map_or(usual.backoff_max.max(backoff), Span);
        if backoff > backoff_max {
            let text = format!("the first pause before a retry ({backoff}) is longer than the longest ({backoff_max})");
            return Err(E::from(NameError::Invalid(text)));
        }
        Ok(Some(RetryTerms { max_retries: self.retries.unwrap_or(usual.max_retries), backoff, backoff_max }))
    }
}

fn capabilities<E>(
    names: &[String],
    number: &mut impl FnMut(Sort, &str) -> Result<u32, E>,
) -> Result<CapabilitySet, E> {
    names.iter().map(|name| number(Sort::Capability, name).map(CapabilityId)).collect()
}
