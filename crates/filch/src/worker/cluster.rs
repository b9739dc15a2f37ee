//! Workers of a cluster with functions of their own.

use std::fmt::Display;
use std::future::Future;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use filch_node::access::Access;
use filch_node::dial::Dial;
use filch_node::worker::{self as node, WorkerHandle, WorkerOptions};

pub use filch_node::worker::{Call, WorkerFailure};

use super::Worker;
use crate::client::ClusterError;

/// A worker of a cluster that runs. It ends when this is dropped: what it ran goes to others.
pub struct Running {
    handle: WorkerHandle,
    task: Option<tokio::task::JoinHandle<Result<(), WorkerFailure>>>,
}

impl Running {
    /// It finishes what it runs, gives back the rest, and leaves.
    ///
    /// # Errors
    /// If it had ended before for another reason.
    pub async fn drain(mut self) -> Result<(), WorkerFailure> {
        self.handle.drain();
        self.over().await
    }

    /// It stops what it runs and leaves.
    ///
    /// # Errors
    /// If it had ended before for another reason.
    pub async fn stop(mut self) -> Result<(), WorkerFailure> {
        self.handle.stop();
        self.over().await
    }

    /// Waits until it ends by itself, because the coordinator will not have it.
    ///
    /// # Errors
    /// Why.
    pub async fn ended(mut self) -> Result<(), WorkerFailure> {
        self.over().await
    }

    async fn over(&mut self) -> Result<(), WorkerFailure> {
        match self.task.take() {
            Some(task) => task.await.unwrap_or_else(|error| Err(WorkerFailure::System(std::io::Error::other(error)))),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
    }
}

impl Worker {
    /// Registers a function under a name, for a worker of a cluster: tasks and [calls](crate::client::Client::call) of that
    /// name run it. `noop`, `sleep` and `echo` are always there.
    ///
    /// ```
    /// use filch::Worker;
    /// let worker = Worker::new("w1").slots(4).handle("shout", |call| async move {
    ///     let text = String::from_utf8(call.input.to_vec())?;
    ///     Ok::<_, std::string::FromUtf8Error>(text.to_uppercase())
    /// });
    /// ```
    #[must_use]
    pub fn handle<F, A, R, E>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Call) -> A + Send + Sync + 'static,
        A: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Bytes>,
        E: Display,
    {
        self.handlers.handle(name, function);
        self
    }

    /// As [`handle`](Worker::handle), for a function that computes for long or waits without `await`.
    #[must_use]
    pub fn handle_blocking<F, R, E>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Call) -> Result<R, E> + Send + Sync + 'static,
        R: Into<Bytes>,
        E: Display,
    {
        self.handlers.handle_blocking(name, function);
        self
    }

    /// Joins the cluster whose access file is in the usual place, and goes on in the background of the tokio runtime.
    ///
    /// # Errors
    /// If there is no access file. A coordinator that is not there yet is waited for.
    pub fn run(self) -> Result<Running, ClusterError> {
        self.run_in(Access::usual_place())
    }

    /// Joins the cluster that an access file describes.
    ///
    /// # Errors
    /// As [`run`](Worker::run).
    pub fn run_in(self, access_file: impl AsRef<Path>) -> Result<Running, ClusterError> {
        let path: PathBuf = access_file.as_ref().to_owned();
        let access = Access::read(&path)?;
        let mut options = WorkerOptions::new(&*self.name);
        options.slots = self.slots;
        options.capabilities = self.capabilities;
        options.resources = self.resources;
        options.handlers = self.handlers;
        options.listen = Some((std::net::Ipv4Addr::UNSPECIFIED, 0).into());
        options.access_file = Some(path);
        let worker = node::Worker::new(options);
        let handle = worker.handle();
        let task = tokio::spawn(worker.run(Dial::Socket(access)));
        Ok(Running { handle, task: Some(task) })
    }
}
