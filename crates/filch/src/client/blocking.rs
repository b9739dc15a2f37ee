//! The client for programs without `async`: every call waits. Must not be used inside of a tokio runtime.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};

use super::{CallError, ClusterError, Event, Job, JobView, Summary};

/// A client whose calls wait.
#[derive(Clone)]
pub struct Client {
    // The connection goes before the runtime that serves it.
    inner: super::Client,
    runtime: Arc<Runtime>,
}

impl Client {
    /// As [`super::Client::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect() -> Result<Client, ClusterError> {
        Client::connect_to(filch_node::access::Access::usual_place())
    }

    /// As [`super::Client::connect_to`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_to(access_file: impl AsRef<Path>) -> Result<Client, ClusterError> {
        let lost = |error: std::io::Error| filch_node::client::ClientError::Lost(error.to_string());
        // One thread serves the connection, also while nobody waits.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(lost)?;
        let inner = runtime.block_on(super::Client::connect_to(access_file))?;
        Ok(Client { inner, runtime: Arc::new(runtime) })
    }

    /// As [`super::Client::submit`].
    ///
    /// # Errors
    /// As there.
    pub fn submit(&self, job: Job) -> Result<Submitted, ClusterError> {
        let inner = self.runtime.block_on(self.inner.submit(job))?;
        Ok(Submitted { inner, runtime: Arc::clone(&self.runtime) })
    }

    /// As [`super::Client::call`].
    ///
    /// # Errors
    /// As there.
    pub fn call(&self, function: &str, input: impl Into<Bytes>) -> Result<Bytes, CallError> {
        self.runtime.block_on(self.inner.call(function, input))
    }

    /// As [`super::Client::job`].
    ///
    /// # Errors
    /// As there.
    pub fn job(&self, number: u64) -> Result<JobView, ClusterError> {
        self.runtime.block_on(self.inner.job(number))
    }

    /// As [`super::Client::cancel`].
    ///
    /// # Errors
    /// As there.
    pub fn cancel(&self, job: u64) -> Result<(), ClusterError> {
        self.runtime.block_on(self.inner.cancel(job))
    }
}

/// A job that was submitted; also what there is to hear of it, one after the other.
pub struct Submitted {
    inner: super::Submitted,
    runtime: Arc<Runtime>,
}

impl Submitted {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.inner.number()
    }

    /// Waits until all of its tasks are settled.
    ///
    /// # Errors
    /// If the coordinator cannot be reached for long.
    pub fn wait(self) -> Result<Summary, ClusterError> {
        self.runtime.block_on(self.inner.wait())
    }
}

impl Iterator for Submitted {
    type Item = Result<Event, ClusterError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.runtime.block_on(self.inner.events().next())
    }
}
