//! The configuration that `run` and `serve` give to their coordinator: a file, and what the command line says above it.

use std::process::ExitCode;

use filch_core::config::{ConfigErrors, Origin};
use filch_core::{Config, Span};
use serde_json::Value;

use crate::{config_command, output};

/// Where the configuration comes from.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file; `filch config show` begins one.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "Scheduling")]
    config: Option<String>,
    /// The placement policy, whatever the file says.
    #[arg(long, value_name = "NAME", help_heading = "Scheduling")]
    policy: Option<String>,
    /// When a task is bound to a worker, whatever the file says: `late` or `push`.
    #[arg(long, value_name = "WHEN", help_heading = "Scheduling")]
    bind: Option<String>,
}

/// Who may still come and run what nobody can run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joining {
    /// Workers come and go: one that is started again must find its tasks.
    AtAnyTime,
    /// All there will ever be are there.
    Nobody,
}

/// How long a coordinator waits before it looks again whether somebody can run a task, unless its file says so.
const LOOK_AGAIN: Span = Span::from_secs(60);

impl ConfigArgs {
    /// The configuration; what to exit with if it is wrong, after saying so.
    pub(crate) fn load(&self, joining: Joining) -> Result<Config, ExitCode> {
        let mut patience = LOOK_AGAIN;
        let mut config = match &self.config {
            None => Config::default(),
            Some(file) => match config_command::load(file, None) {
                Ok(loaded) => {
                    if loaded.origins.of("limits.requeue_interval") != Origin::Default {
                        patience = loaded.config.limits.requeue_interval;
                    }
                    loaded.config
                }
                Err(failure) => {
                    failure.complain();
                    return Err(ExitCode::from(2));
                }
            },
        };
        if let Some(policy) = &self.policy {
            config.scheduling.policy = setting("policy", policy)?.scheduling.policy;
        }
        if let Some(bind) = &self.bind {
            config.scheduling.bind = setting("bind", bind)?.scheduling.bind;
        }
        match joining {
            Joining::AtAnyTime => config.limits.requeue_interval = patience,
            Joining::Nobody => {
                config.limits.max_requeue_attempts = 0;
                config.limits.requeue_interval = Span::from_millis(1);
            }
        }
        Ok(config)
    }
}

/// A configuration with one setting, checked as in a file.
fn setting(key: &str, value: &str) -> Result<Config, ExitCode> {
    let text = format!("scheduling: {{ {key}: {} }}", Value::from(value));
    Config::from_yaml(&text, key).map(|loaded| loaded.config).map_err(|errors: ConfigErrors| {
        for problem in errors.problems() {
            output::error(&format!("--{key}: {}", problem.message), problem.help.as_deref());
        }
        ExitCode::from(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_wait_for_workers_that_may_come_and_not_for_others() {
        let place = tempfile::tempdir().expect("a directory");
        let load = |text: Option<&str>, joining| {
            let file = place.path().join("filch.yaml");
            std::fs::write(&file, text.unwrap_or_default()).expect("written");
            let config = text.map(|_| file.to_string_lossy().into_owned());
            let limits = ConfigArgs { config, ..ConfigArgs::default() }.load(joining).expect("a configuration").limits;
            (limits.requeue_interval, limits.max_requeue_attempts)
        };
        let own = Some("limits: { requeue_interval: 1s }");
        let other = Some("limits: { max_requeue_attempts: 3 }");
        assert_eq!(load(None, Joining::AtAnyTime), (LOOK_AGAIN, 5));
        assert_eq!(load(other, Joining::AtAnyTime), (LOOK_AGAIN, 3));
        assert_eq!(load(own, Joining::AtAnyTime), (Span::from_secs(1), 5));
        assert_eq!(load(own, Joining::Nobody).1, 0);
    }
}
