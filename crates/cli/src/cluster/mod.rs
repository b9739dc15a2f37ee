//! The commands that talk to a running coordinator, and those that run one or its workers.

pub(crate) mod job_command;
pub(crate) mod serve;
mod stall;
pub(crate) mod stats;
pub(crate) mod submit;
mod table;
pub(crate) mod task_command;
pub(crate) mod trace_command;
pub(crate) mod worker_command;

use std::path::PathBuf;

use filch_node::access::{Access, AccessError};
use filch_node::client::Client;
use filch_node::dial::Dial;

use crate::job::Usage;

/// The number of a job, as somebody wrote it.
fn job_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a job has a number, such as 12; `filch job list` shows them".to_owned())
}

/// What is wrong with an access file; most say themselves what to do.
fn unusable(error: &AccessError) -> Usage {
    let usage = Usage::new(error.to_string());
    match error {
        AccessError::System { .. } => usage.help("name a file that you may read with --access or FILCH_ACCESS"),
        _ => usage,
    }
}

/// How the coordinator is found.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Reach {
    /// The access file that `filch serve` wrote; that of $FILCH_ACCESS, $FILCH_DIR or ~/.filch if nothing is said.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, global = true)]
    access: Option<PathBuf>,
}

impl Reach {
    /// Where the access file is.
    pub(crate) fn path(&self) -> PathBuf {
        self.access.clone().unwrap_or_else(Access::usual_place)
    }

    /// Why there is no cluster to reach from here: a task that was told of no access file must not find that of a cluster which
    /// does not know it.
    pub(crate) fn nowhere(&self) -> Option<Usage> {
        let is_empty = std::env::var_os("FILCH_ACCESS").is_some_and(|path| path.is_empty());
        (self.access.is_none() && is_empty && std::env::var_os("FILCH_TASK_ID").is_some()).then(|| {
            Usage::new("this task runs under `filch run`, which has no coordinator that could be reached").help(
                "start a cluster with `filch serve` and `filch worker`, and submit the job with `filch submit`; or name the \
                 access file of another cluster with --access",
            )
        })
    }

    /// How to connect. That the access file cannot be used is wrong [`Usage`].
    pub(crate) fn dial(&self) -> anyhow::Result<Dial> {
        if let Some(usage) = self.nowhere() {
            return Err(usage.into());
        }
        Ok(Dial::Socket(Access::read(&self.path()).map_err(|error| unusable(&error))?))
    }

    /// Connects.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(self.dial()?, "filch").await?)
    }
}
