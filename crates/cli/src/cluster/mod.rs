//! The commands that talk to a running coordinator, and those that run one or its workers.

pub(crate) mod job_command;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod submit;
mod table;
pub(crate) mod task_command;
pub(crate) mod trace_command;
pub(crate) mod worker_command;

use std::path::PathBuf;

use filch_node::access::Access;
use filch_node::client::Client;
use filch_node::dial::Dial;

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

    /// How to connect.
    pub(crate) fn dial(&self) -> anyhow::Result<Dial> {
        Ok(Dial::Socket(Access::read(&self.path())?))
    }

    /// Connects.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(self.dial()?, "filch").await?)
    }
}
