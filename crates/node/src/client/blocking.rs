//! The client for programs without `async`: the same calls, which return when they are answered.
//!
//! The connection is served by a thread of its own, which ends with the last client.

use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use filch_core::wire::talk::{Ended, Logs, Name, Said, Submit, Submitted};
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::{CallError, ClientError, ClientOptions};
use crate::dial::Dial;
use crate::view::Query;

/// The thread that serves the connection.
struct Thread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It does not panic; and if it did, it would have said so.
            let _ = thread.join();
        }
    }
}

/// A client whose calls block. Must not be used inside of a tokio runtime.
#[derive(Clone)]
pub struct Client {
    // The client goes before the thread that serves it.
    inner: super::Client,
    thread: Arc<Thread>,
}

impl Client {
    /// Connects, once.
    ///
    /// # Errors
    /// If nobody is there, or refuses.
    pub fn connect(dial: Dial, name: &str) -> Result<Client, ClientError> {
        Client::connect_with(dial, ClientOptions::new(name))
    }

    /// Connects, with the patience that the options say.
    ///
    /// # Errors
    /// If nobody is there, or refuses.
    pub fn connect_with(dial: Dial, options: ClientOptions) -> Result<Client, ClientError> {
        let failed = |error: std::io::Error| ClientError::Lost(format!("cannot start a thread for it: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || {
            // It ends when the other end is dropped.
            let _ = runtime.block_on(stopped);
            runtime.block_on(tokio::task::yield_now());
        };
        let thread = std::thread::Builder::new().name("filch-client".to_owned()).spawn(serve).map_err(failed)?;
        let thread = Arc::new(Thread { handle, stop: Some(stop), thread: Some(thread) });
        let inner = thread.handle.block_on(super::Client::connect_with(dial, options))?;
        Ok(Client { inner, thread })
    }

    /// See [`super::Client::submit`].
    ///
    /// # Errors
    /// As there.
    pub fn submit(&self, submit: Submit) -> Result<Submitted, ClientError> {
        self.thread.handle.block_on(self.inner.submit(submit))
    }

    /// See [`super::Client::submit_and_follow`].
    ///
    /// # Errors
    /// As there.
    pub fn submit_and_follow(&self, submit: Submit) -> Result<(Submitted, Follow), ClientError> {
        let (submitted, follow) = self.thread.handle.block_on(self.inner.submit_and_follow(submit))?;
        Ok((submitted, self.own(follow)))
    }

    /// See [`super::Client::submit_and_wait`].
    ///
    /// # Errors
    /// As there.
    pub fn submit_and_wait(&self, submit: Submit) -> Result<Box<Ended>, ClientError> {
        self.thread.handle.block_on(self.inner.submit_and_wait(submit))
    }

    /// See [`super::Client::call`].
    ///
    /// # Errors
    /// As there.
    pub fn call(&self, function: &str, input: impl Into<Bytes>) -> Result<Bytes, CallError> {
        self.thread.handle.block_on(self.inner.call(function, input))
    }

    /// See [`super::Client::watch`].
    ///
    /// # Errors
    /// As there.
    pub fn watch(&self, job: u64, each: bool) -> Result<Follow, ClientError> {
        Ok(self.own(self.thread.handle.block_on(self.inner.watch(job, each))?))
    }

    /// See [`super::Client::logs`].
    ///
    /// # Errors
    /// As there.
    pub fn logs(&self, logs: Logs) -> Result<Follow, ClientError> {
        Ok(self.own(self.thread.handle.block_on(self.inner.logs(logs))?))
    }

    /// See [`super::Client::query`].
    ///
    /// # Errors
    /// As there.
    pub fn query<T: DeserializeOwned>(&self, query: &Query) -> Result<T, ClientError> {
        self.thread.handle.block_on(self.inner.query(query))
    }

    /// See [`super::Client::cancel`].
    ///
    /// # Errors
    /// As there.
    pub fn cancel(&self, name: Name) -> Result<(), ClientError> {
        self.thread.handle.block_on(self.inner.cancel(name))
    }

    /// See [`super::Client::drain`].
    ///
    /// # Errors
    /// As there.
    pub fn drain(&self, worker: &str) -> Result<(), ClientError> {
        self.thread.handle.block_on(self.inner.drain(worker))
    }

    fn own(&self, inner: super::Follow) -> Follow {
        Follow { inner, thread: Arc::clone(&self.thread) }
    }
}

/// What there is to hear of a request, one after the other.
pub struct Follow {
    inner: super::Follow,
    thread: Arc<Thread>,
}

impl Iterator for Follow {
    type Item = Result<Said, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.thread.handle.block_on(self.inner.next())
    }
}
