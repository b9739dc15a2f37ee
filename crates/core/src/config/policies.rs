//! The placement policies that can be named in configuration, with the options each one takes, listed once.
//!
//! The schema, the checks, the reference and the policy factory all read this list; it decides nothing itself.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

/// One policy as configuration knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// The name users write.
    pub name: &'static str,
    /// The options it takes, by the key names of [`PolicyOptions`](super::PolicyOptions).
    pub options: &'static [&'static str],
    /// What it prefers, in one line.
    pub summary: &'static str,
}

/// Every known policy.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry { name: "fifo", options: &[], summary: "the first idle worker, in the order they joined" },
    PolicyEntry { name: "round_robin", options: &[], summary: "every worker in turn" },
    PolicyEntry { name: "weighted_round_robin", options: &[], summary: "every worker in turn, larger ones more often" },
    PolicyEntry {
        name: "priority_based",
        options: &[],
        summary: "the idle worker with the fewest tasks; urgent tasks choose first",
    },
    PolicyEntry { name: "load_balancing", options: &[], summary: "least running / capacity + queued" },
    PolicyEntry {
        name: "work_stealing",
        options: &["steal_threshold"],
        summary: "any queue; idle workers then take from the longest one above the threshold",
    },
    PolicyEntry {
        name: "best_fit",
        options: &["history_weight"],
        summary: "greatest skill match − queued / 10 + success rate · history weight",
    },
    PolicyEntry {
        name: "performance_based",
        options: &[],
        summary: "the worker that was fastest with this kind of task",
    },
    PolicyEntry { name: "affinity_based", options: &[], summary: "the worker that has the task's data warm" },
    PolicyEntry { name: "cost_based", options: &[], summary: "the least expensive worker for the task" },
    PolicyEntry { name: "deadline", options: &["beta"], summary: "the worker most sure to meet the deadline" },
    PolicyEntry {
        name: "batch",
        options: &["batch_size"],
        summary: "several tasks to one worker before the next, largest workers first",
    },
    PolicyEntry { name: "composite", options: &["algorithms"], summary: "the weighted sum of other policies" },
    PolicyEntry {
        name: "adaptive",
        options: &["model", "alpha"],
        summary: "greatest speed · success rate, learned while running",
    },
    PolicyEntry {
        name: "expected_completion",
        options: &["beta", "lambda_cost", "lambda_deadline", "lambda_fragmentation"],
        summary: "the earliest expected completion, with cost, deadline and fragmentation weighed in",
    },
];

/// The entry of the policy with that name.
#[must_use]
pub fn policy(name: &str) -> Option<&'static PolicyEntry> {
    POLICIES.iter().find(|entry| entry.name == name)
}

/// What somebody who wrote that name may have meant.
pub(crate) fn policy_hint(name: &str) -> String {
    super::nearest::choice_names(name, &names())
}

/// The JSON schema of what [`super::rules`] says of a policy's options: it has only its own, and `composite` needs parts.
pub(super) fn option_rules() -> Json {
    let known: BTreeSet<&str> = POLICIES.iter().flat_map(|entry| entry.options).copied().collect();
    let rule = |entry: &PolicyEntry| {
        // An option that is null, or a list without parts, is not set.
        let unset =
            |option: &str| if option == "algorithms" { json!({ "maxItems": 0 }) } else { json!({ "type": "null" }) };
        let foreign = known.iter().filter(|option| !entry.options.contains(option));
        let mut then =
            json!({ "properties": foreign.map(|&option| (option, unset(option))).collect::<BTreeMap<_, _>>() });
        if entry.name == "composite" {
            let some_weight = json!({ "properties": { "weight": { "exclusiveMinimum": 0 } } });
            then["properties"]["algorithms"] = json!({ "minItems": 1, "contains": some_weight });
            then["required"] = json!(["algorithms"]);
        }
        json!({ "if": { "properties": { "type": { "const": entry.name } } }, "then": then })
    };
    let learned = json!({ "properties": { "model": { "const": "learned" } }, "required": ["model"] });
    let no_alpha = json!({ "if": learned, "then": { "properties": { "alpha": { "type": "null" } } } });
    POLICIES.iter().map(rule).chain([no_alpha]).collect()
}

/// All names, in the order of [`POLICIES`].
pub(super) fn names() -> Vec<&'static str> {
    POLICIES.iter().map(|entry| entry.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PolicyOptions;

    #[test]
    fn every_listed_option_is_a_field_of_the_settings_and_every_field_is_listed() {
        let schema = schemars::schema_for!(PolicyOptions);
        let fields = schema.get("properties").and_then(|p| p.as_object()).expect("an object");
        for entry in POLICIES {
            for option in entry.options {
                assert!(fields.contains_key(*option), "`{}` lists `{option}`", entry.name);
            }
        }
        for field in fields.keys().filter(|field| *field != "type") {
            assert!(POLICIES.iter().any(|entry| entry.options.contains(&field.as_str())), "nobody takes `{field}`");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut sorted = names();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), POLICIES.len());
        assert_eq!(policy("batch").map(|entry| entry.options), Some(&["batch_size"][..]));
        assert_eq!(policy("batches"), None);
    }
}
