//! What the schema cannot say: rules between several settings, and which options a policy has.

use super::check::subject;
use super::policies::policy;
use super::{Config, PolicyOptions, PolicySpec, Probe, key_path};
use crate::time::Span;

/// What comes again and again comes no more often than this.
const SHORTEST_INTERVAL: Span = Span::from_millis(1);

/// A rule that does not hold.
#[derive(Debug)]
pub(super) struct Violation {
    /// The settings concerned, the one to point at first.
    pub(super) keys: Vec<String>,
    /// Point at the key, not at its value.
    pub(super) at_key: bool,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

/// Every rule that `config` breaks.
pub(super) fn violations(config: &Config) -> Vec<Violation> {
    let mut found = Vec::new();
    thresholds(config, &mut found);
    let stealing = &config.stealing;
    ordered(
        ("stealing.backoff_base", stealing.backoff_base),
        ("stealing.backoff_max", stealing.backoff_max),
        &mut found,
    );
    ordered(("retry.backoff", config.retry.backoff), ("retry.backoff_max", config.retry.backoff_max), &mut found);
    if config.limits.quarantine_after > 0 && config.limits.quarantine == Span::ZERO {
        found.push(Violation {
            keys: vec!["limits.quarantine".to_owned(), "limits.quarantine_after".to_owned()],
            at_key: false,
            message: "`limits.quarantine` must be longer than 0s while `limits.quarantine_after` is not 0".to_owned(),
            help: Some("set `quarantine_after: 0` to turn quarantine off".to_owned()),
        });
    }
    let limits = &config.limits;
    for (key, interval) in [
        ("scheduling.aging_interval", config.scheduling.aging_interval),
        ("limits.requeue_interval", limits.requeue_interval),
        ("limits.sample_interval", limits.sample_interval),
    ] {
        if interval > Span::ZERO && interval < SHORTEST_INTERVAL {
            found.push(Violation {
                keys: vec![key.to_owned()],
                at_key: false,
                message: format!("`{key}` ({interval}) must be at least {SHORTEST_INTERVAL}, or 0s"),
                help: Some("anything shorter keeps a processor busy with nothing else".to_owned()),
            });
        }
    }
    let (kept, most) = (config.limits.settled_kept, config.limits.settled_max);
    if kept > most {
        found.push(Violation {
            keys: vec!["limits.settled_kept".to_owned(), "limits.settled_max".to_owned()],
            at_key: false,
            message: format!("`limits.settled_kept` ({kept}) must not be above `limits.settled_max` ({most})"),
            help: Some("raise `settled_max` or lower `settled_kept`".to_owned()),
        });
    }
    policy_spec(&config.scheduling.policy, "scheduling.policy", &mut found);
    for (name, spec) in &config.scheduling.per_type {
        policy_spec(spec, &key_path("scheduling.per_type", name), &mut found);
    }
    for (index, probe) in config.detection.probes.iter().enumerate() {
        judge_probe(probe, &format!("detection.probes[{index}]"), &mut found);
    }
    found
}

fn judge_probe(probe: &Probe, path: &str, found: &mut Vec<Violation>) {
    let mut say = |key: &str, message: String, help: &str| {
        let keys = vec![key_path(path, key)];
        found.push(Violation { keys, at_key: false, message, help: Some(help.to_owned()) });
    };
    if probe.capability.is_empty() {
        say("capability", format!("`{path}.capability` is empty"), "name what the probe proves, such as `python-$1`");
    }
    if probe.command.is_empty() {
        say("command", format!("`{path}.command` is empty"), "for example `command: [python3, --version]`");
    }
    if let Err(error) = regex_lite::Regex::new(&probe.pattern) {
        let message = format!("`{path}.pattern` is no regular expression: {error}");
        say(
            "pattern",
            message,
            "put `\\` before a character that is meant as it stands, and the pattern in single quotes",
        );
    }
}

fn thresholds(config: &Config, found: &mut Vec<Violation>) {
    let thresholds = &config.load_balancing.thresholds;
    let (idle, busy) = (thresholds.idle_threshold, thresholds.busy_threshold);
    if idle >= busy {
        let section = "load_balancing.thresholds";
        found.push(Violation {
            keys: vec![format!("{section}.idle_threshold"), format!("{section}.busy_threshold")],
            at_key: false,
            message: format!("`{section}.idle_threshold` ({idle}) must be below `busy_threshold` ({busy})"),
            help: Some("a worker cannot be idle and busy at once".to_owned()),
        });
    }
}

fn ordered(first: (&str, Span), longest: (&str, Span), found: &mut Vec<Violation>) {
    if first.1 > longest.1 {
        found.push(Violation {
            keys: vec![first.0.to_owned(), longest.0.to_owned()],
            at_key: false,
            message: format!("`{}` ({}) must not be longer than `{}` ({})", first.0, first.1, longest.0, longest.1),
            help: None,
        });
    }
}

fn policy_spec(spec: &PolicySpec, path: &str, found: &mut Vec<Violation>) {
    let (name, options) = spec.parts();
    // A bare name has no options, but some policies cannot do without.
    let option_path = match spec {
        PolicySpec::Name(_) => None,
        PolicySpec::Options(_) => Some(path),
    };
    policy_options(name, &options, path, option_path, found);
}

fn policy_options(name: &str, options: &PolicyOptions, path: &str, inside: Option<&str>, found: &mut Vec<Violation>) {
    // The schema has refused unknown names already.
    let Some(entry) = policy(name) else { return };
    if let Some(inside) = inside {
        for option in given(options).into_iter().filter(|option| !entry.options.contains(option)) {
            found.push(Violation {
                keys: vec![key_path(inside, option)],
                at_key: true,
                message: format!("the policy `{name}` has no option `{option}`"),
                help: Some(match entry.options {
                    [] => format!("`{name}` takes no options"),
                    known => format!("options of `{name}`: {}", known.join(", ")),
                }),
            });
        }
    }
    if options.model == Some(super::AdaptiveModel::Learned) && options.alpha.is_some() {
        found.push(Violation {
            keys: vec![key_path(path, "alpha")],
            at_key: true,
            message: "`alpha` has no meaning with `model: learned`".to_owned(),
            help: Some("remove `alpha`, or use `model: ewma`".to_owned()),
        });
    }
    if name == "composite" {
        composite(options, path, found);
    }
}

fn composite(options: &PolicyOptions, path: &str, found: &mut Vec<Violation>) {
    let parts = &options.algorithms;
    let list = key_path(path, "algorithms");
    if parts.is_empty() {
        found.push(Violation {
            keys: vec![list, path.to_owned()],
            at_key: false,
            message: format!("{} is `composite` and needs at least one part in `algorithms`", subject(path)),
            help: Some("for example `algorithms: [{type: best_fit, weight: 1}]`".to_owned()),
        });
        return;
    }
    let sum: f64 = parts.iter().map(|part| part.weight).sum();
    if !(sum > 0.0 && sum.is_finite()) {
        found.push(Violation {
            keys: vec![list.clone()],
            at_key: true,
            message: format!("the weights of `{list}` sum to {sum}; they must sum to a finite number above 0"),
            help: Some("give at least one part a weight above 0".to_owned()),
        });
    }
    for (index, part) in parts.iter().enumerate() {
        let place = format!("{list}[{index}]");
        policy_options(&part.policy.kind, &part.policy, &place, Some(&place), found);
    }
}

/// The options that are set.
fn given(options: &PolicyOptions) -> Vec<&'static str> {
    let PolicyOptions {
        kind: _,
        algorithms,
        model,
        alpha,
        batch_size,
        steal_threshold,
        history_weight,
        beta,
        lambda_cost,
        lambda_deadline,
        lambda_fragmentation,
    } = options;
    let all = [
        ("algorithms", !algorithms.is_empty()),
        ("model", model.is_some()),
        ("alpha", alpha.is_some()),
        ("batch_size", batch_size.is_some()),
        ("steal_threshold", steal_threshold.is_some()),
        ("history_weight", history_weight.is_some()),
        ("beta", beta.is_some()),
        ("lambda_cost", lambda_cost.is_some()),
        ("lambda_deadline", lambda_deadline.is_some()),
        ("lambda_fragmentation", lambda_fragmentation.is_some()),
    ];
    all.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
}
