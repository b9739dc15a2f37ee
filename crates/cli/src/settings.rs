//! The configuration that `run` and `serve` give to their coordinator: a file, and what the command line says above it.

use std::process::ExitCode;

use filch_core::Config;
use filch_core::config::ConfigErrors;
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

impl ConfigArgs {
    /// The configuration; what to exit with if it is wrong, after saying so.
    pub(crate) fn load(&self) -> Result<Config, ExitCode> {
        let mut config = match &self.config {
            None => Config::default(),
            Some(file) => match config_command::load(file, None) {
                Ok(loaded) => loaded.config,
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
