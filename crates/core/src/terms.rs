//! What a submitter asks of whoever runs a task, with names: becomes the description that the scheduler knows.

use std::fmt::Display;

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
        let mut spec = TaskSpec {
            exclusive: self.exclusive,
            idempotent: self.idempotent,
            estimate: self.estimate_nanos.map(Span),
            timeout: self.timeout_nanos.map(Span),
            deadline: self.deadline_in_nanos.map(|span| now + Span(span)),
            ..TaskSpec::default()
        };
        if let Some(level) = self.priority {
            spec.priority = priority(level)?;
        }
        spec.on_parent_failure = match self.on_parent_failure {
            0 => ParentFailure::Fail,
            1 => ParentFailure::Skip,
            2 => ParentFailure::Run,
            other => return Err(NameError::Invalid(format!("{other} is nothing to do when a parent fails")).into()),
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
        let pause = |nanos: Option<u64>| nanos.map(Span);
        spec.retry = retry_terms(self.retries, pause(self.backoff_nanos), pause(self.backoff_max_nanos), retry)?;
        for warm in &self.affinity {
            spec.affinity.push((AffinityId(number(Sort::Affinity, &warm.key)?), Span(warm.saves_nanos)));
        }
        Ok(spec)
    }
}

/// A priority as a whole number.
///
/// # Errors
/// If it is none.
pub fn priority(level: i64) -> Result<Priority, NameError> {
    u8::try_from(level).ok().and_then(Priority::new).ok_or_else(|| no_priority(level))
}

/// Says that something is no priority.
pub fn no_priority(value: impl Display) -> NameError {
    NameError::Invalid(format!("a priority is a number from 1 (least) to 5, not {value}"))
}

/// How often a task is tried again and after which pauses, where that is not all left to what is usual.
///
/// # Errors
/// If the first pause is longer than the longest.
pub fn retry_terms(
    retries: Option<u32>,
    first: Option<Span>,
    longest: Option<Span>,
    usual: &Retry,
) -> Result<Option<RetryTerms>, NameError> {
    if retries.is_none() && first.is_none() && longest.is_none() {
        return Ok(None);
    }
    let backoff = first.unwrap_or(usual.backoff);
    let backoff_max = longest.unwrap_or(usual.backoff_max.max(backoff));
    if backoff > backoff_max {
        let text = format!("the first pause before a retry ({backoff}) is longer than the longest ({backoff_max})");
        return Err(NameError::Invalid(text));
    }
    Ok(Some(RetryTerms { max_retries: retries.unwrap_or(usual.max_retries), backoff, backoff_max }))
}

fn capabilities<E>(
    names: &[String],
    number: &mut impl FnMut(Sort, &str) -> Result<u32, E>,
) -> Result<CapabilitySet, E> {
    names.iter().map(|name| number(Sort::Capability, name).map(CapabilityId)).collect()
}
