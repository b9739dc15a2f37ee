//! Functions that a worker offers: registered by name, called with the bytes of a task, and their bytes are its result.

use std::fmt::Display;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use rustc_hash::FxHashMap;

/// One call of a function.
#[derive(Clone, Debug)]
pub struct Call {
    /// What it gets.
    pub input: Bytes,
    /// The number of its task, as its submitter counts.
    pub number: i64,
    /// The position of its task in its job.
    pub index: u32,
    /// The number of its job; 0 for single tasks.
    pub job: u64,
    /// The id of its task.
    pub task: u64,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The positions of the accelerators that are its own while it runs; none if its task asked for none.
    pub gpus: Vec<u16>,
}

/// A function that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallFailure {
    pub(super) error: String,
    /// Whether trying again makes sense.
    pub(super) retry: bool,
}

type Answer = Pin<Box<dyn Future<Output = Result<Bytes, CallFailure>> + Send>>;

/// A registered function.
pub(super) type Handler = Arc<dyn Fn(Call) -> Answer + Send + Sync>;

/// Functions by name. `noop`, `sleep` (seconds as text) and `echo` are always there.
#[derive(Clone, Default)]
pub struct Handlers(FxHashMap<String, Handler>);

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Handlers {
    /// Registers a function. One of the same name is replaced, a built-in one too.
    ///
    /// ```
    /// let mut handlers = filch_node::worker::Handlers::default();
    /// handlers.handle("double", |call| async move {
    ///     let number: i64 = std::str::from_utf8(&call.input)?.trim().parse()?;
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>((number * 2).to_string())
    /// });
    /// ```
    pub fn handle<F, A, R, E>(&mut self, name: impl Into<String>, function: F)
    where
        F: Fn(Call) -> A + Send + Sync + 'static,
        A: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Bytes>,
        E: Display,
    {
        let handler = move |call| -> Answer {
            let answer = function(call);
            Box::pin(async move { answer.await.map(Into::into).map_err(|error| failed(&error)) })
        };
        self.0.insert(name.into(), Arc::new(handler));
    }

    /// Registers a function that computes for long or waits without `await`: it runs on a thread for such.
    pub fn handle_blocking<F, R, E>(&mut self, name: impl Into<String>, function: F)
    where
        F: Fn(Call) -> Result<R, E> + Send + Sync + 'static,
        R: Into<Bytes>,
        E: Display,
    {
        let function = Arc::new(function);
        let handler = move |call| -> Answer {
            let function = Arc::clone(&function);
            let work = move || function(call).map(Into::into).map_err(|error| failed(&error));
            Box::pin(async move {
                let outcome = tokio::task::spawn_blocking(move || caught(work)).await;
                outcome.unwrap_or_else(|error| Err(failed(&error)))
            })
        };
        self.0.insert(name.into(), Arc::new(handler));
    }

    pub(super) fn get(&self, name: &str) -> Option<&Handler> {
        self.0.get(name)
    }

    /// Their names, those of the built-in ones included.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.keys().map(String::as_str).chain(["echo", "noop", "sleep"]).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn failed(error: &dyn Display) -> CallFailure {
    CallFailure { error: error.to_string(), retry: true }
}

/// Calls a function to its end; a panic is a failure.
pub(super) async fn call(handler: Handler, call: Call) -> Result<Bytes, CallFailure> {
    let mut answer = caught(|| Ok(handler(call)))?;
    std::future::poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(panic) => Poll::Ready(Err(panicked(&*panic))),
    })
    .await
}

fn caught<R>(work: impl FnOnce() -> Result<R, CallFailure>) -> Result<R, CallFailure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> CallFailure {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    CallFailure { error: format!("it panicked: {}", text.as_deref().unwrap_or("without words")), retry: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn outcome(handlers: &Handlers, name: &str) -> Result<Bytes, String> {
        let one = Call {
            input: Bytes::from_static(b"ab"),
            number: 1,
            index: 0,
            job: 0,
            task: 1,
            attempt: 1,
            gpus: Vec::new(),
        };
        call(Arc::clone(handlers.get(name).unwrap()), one).await.map_err(|failure| failure.error)
    }

    #[tokio::test]
    async fn functions_answer_fail_and_panic() {
        let mut handlers = Handlers::default();
        handlers.handle("twice", |call| async move { Ok::<_, String>([&call.input[..], &call.input].concat()) });
        handlers.handle("fails", |_| async { Err::<Bytes, _>("no such thing") });
        handlers.handle("panics", |call: Call| async move {
            tokio::task::yield_now().await;
            assert!(call.input.is_empty(), "got {} bytes", call.input.len());
            Ok::<_, String>("")
        });
        handlers.handle_blocking("blocks", |call| Ok::<_, String>(call.input.len().to_string()));
        handlers.handle_blocking("blocks and panics", |_| -> Result<Bytes, String> { panic!("at once") });
        assert_eq!(outcome(&handlers, "twice").await, Ok(Bytes::from_static(b"abab")));
        assert_eq!(outcome(&handlers, "fails").await, Err("no such thing".to_owned()));
        assert_eq!(outcome(&handlers, "panics").await, Err("it panicked: got 2 bytes".to_owned()));
        assert_eq!(outcome(&handlers, "blocks").await, Ok(Bytes::from_static(b"2")));
        assert_eq!(outcome(&handlers, "blocks and panics").await, Err("it panicked: at once".to_owned()));
        assert!(handlers.names().starts_with(&["blocks", "blocks and panics", "echo"]));
    }
}
