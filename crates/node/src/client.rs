//! A client of a coordinator: submits, asks, and hears how things go.
//!
//! One task owns the connection; requests of all who use the client go out together, as many as there are. A connection
//! that breaks is made again, and what was not answered is asked again: a submission has a key, so it happens once however
//! often it is sent. Never decides anything about tasks.

mod clerk;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use filch_core::Status;
use filch_core::wire::talk::{
    Ask, Ended, Logs, Name, Part, Parts, Program, Retry, Said, Submit, Submitted, Watch, Work,
};
use prost::Message as _;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::dial::{Backoff, Dial, DialError};
use crate::link::weight_of_said;
use crate::view::Query;
pub use clerk::LARGEST_REQUEST;
use clerk::{Clerk, FEW_WAITING, Following, Order, Pending};

/// How patient a client is.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Its name, for logs.
    pub name: String,
    /// Pauses between tries to connect again.
    pub backoff: Backoff,
    /// How long it tries to connect for the first time. Zero is one try.
    pub connect_for: Duration,
    /// How long it tries to connect again when the connection was lost.
    pub reconnect_for: Duration,
    /// How long it submits again what is refused because there is too much to do.
    pub resubmit_for: Duration,
}

impl ClientOptions {
    /// The usual.
    #[must_use]
    pub fn new(name: impl Into<String>) -> ClientOptions {
        ClientOptions {
            name: name.into(),
            backoff: Backoff::default(),
            connect_for: Duration::ZERO,
            reconnect_for: Duration::from_secs(120),
            resubmit_for: Duration::from_secs(60),
        }
    }
}

/// Why a client did not get what it asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] DialError),
    /// The coordinator refuses it.
    #[error("{why}")]
    Refused {
        /// Why.
        why: String,
        /// When trying again makes sense, if it does.
        retry_after: Option<Duration>,
    },
    /// The connection was lost and could not be made again.
    #[error("lost the coordinator: {0}")]
    Lost(String),
    /// Larger than what can be sent.
    #[error("the request has about {0} bytes and at most {most} can be sent: submit it in several parts", most = LARGEST_REQUEST)]
    TooLarge(usize),
    /// The answer is none to this question.
    #[error("the coordinator's answer is not understood: {0}; is it of another version?")]
    Unexpected(String),
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It was not called, or nobody knows how it ended.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It did not succeed.
    #[error("{what}")]
    Failed {
        /// What went wrong.
        what: String,
        /// How its task ended: the name of a status.
        status: String,
    },
}

/// A client. Copies share the connection, which is closed when the last of them and of their [`Follow`]s is gone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    orders: UnboundedSender<Order>,
    ids: AtomicU64,
    /// What all keys of this client begin with.
    prefix: u64,
    options: ClientOptions,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nobody listens any more if the connection was given up.
        let _ = self.orders.send(Order::Close);
    }
}

impl Shared {
    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn put(&self, id: u64, pending: Pending) -> Result<(), ClientError> {
        let gone = || ClientError::Lost("the client's runtime has ended".to_owned());
        self.orders.send(Order::Ask { id, pending }).map_err(|_| gone())
    }
}

fn gave_up<E>(_: E) -> ClientError {
    ClientError::Lost("the client's runtime has ended".to_owned())
}

impl Client {
    /// Connects, once.
    ///
    /// # Errors
    /// If nobody is there, or refuses.
    pub async fn connect(dial: Dial, name: &str) -> Result<Client, ClientError> {
        Client::connect_with(dial, ClientOptions::new(name)).await
    }

    /// Connects, with the patience that the options say.
    ///
    /// # Errors
    /// If nobody is there, or refuses.
    pub async fn connect_with(dial: Dial, options: ClientOptions) -> Result<Client, ClientError> {
        let (orders, inbox) = unbounded_channel();
        let clerk = Clerk::connect(dial, options.clone(), orders.clone(), inbox).await?;
        tokio::spawn(clerk.run());
        let prefix = fastrand::u64(..);
        Ok(Client { shared: Arc::new(Shared { orders, ids: AtomicU64::new(1), prefix, options }) })
    }

    async fn ask(&self, ask: Ask) -> Result<Said, ClientError> {
        let (reply, answer) = oneshot::channel();
        self.shared.put(self.shared.next_id(), Pending::Once { ask, reply })?;
        answer.await.map_err(gave_up)?
    }

    async fn follow(&self, ask: Ask) -> Result<Follow, ClientError> {
        let (stream, events) = unbounded_channel();
        let (id, waiting) = (self.shared.next_id(), Arc::new(AtomicUsize::new(0)));
        self.shared.put(id, Pending::Follow(Following::new(ask, stream, Arc::clone(&waiting))))?;
        Ok(Follow { id, events, waiting, shared: Arc::clone(&self.shared), over: false })
    }

    /// A submission with a key, which is its own if it has one.
    fn keyed(&self, mut submit: Submit) -> Result<Submit, ClientError> {
        clerk::check_size(&submit)?;
        if submit.key.is_empty() {
            submit.key = self.new_key();
        }
        Ok(submit)
    }

    fn new_key(&self) -> Bytes {
        let mut key = BytesMut::with_capacity(16);
        key.put_u64(self.shared.prefix);
        key.put_u64(self.shared.next_id());
        key.freeze()
    }

    /// Submits; the answer comes when it is durable. What is refused for now is submitted again for a while.
    ///
    /// # Errors
    /// If it is refused, or the connection is lost for too long.
    pub async fn submit(&self, submit: Submit) -> Result<Submitted, ClientError> {
        let submit = Submit { watch: false, ..self.keyed(submit)? };
        let mut patience = Patience::new(self.shared.options.resubmit_for);
        loop {
            match self.ask(Ask::Submit(Box::new(submit.clone()))).await {
                Ok(Said::Submitted(submitted)) => return Ok(submitted),
                Ok(other) => return Err(unexpected(&other)),
                Err(error) => patience.bear(error).await?,
            }
        }
    }

    /// Submits, and hears of the end of every task.
    ///
    /// # Errors
    /// If it is refused, or the connection is lost for too long.
    pub async fn submit_and_follow(&self, submit: Submit) -> Result<(Submitted, Follow), ClientError> {
        let submit = Submit { watch: true, ..self.keyed(submit)? };
        let mut patience = Patience::new(self.shared.options.resubmit_for);
        loop {
            let mut follow = self.follow(Ask::Submit(Box::new(submit.clone()))).await?;
            // How it goes may be told before it is durable, which is what the answer waits for.
            let answer = loop {
                match follow.next().await {
                    Some(Ok(Said::Progress(_))) => {}
                    other => break other,
                }
            };
            match answer {
                Some(Ok(Said::Submitted(submitted))) => return Ok((submitted, follow)),
                Some(Ok(other)) => return Err(unexpected(&other)),
                Some(Err(error)) => patience.bear(error).await?,
                None => return Err(gave_up(())),
            }
        }
    }

    /// Submits a single task and waits for its end.
    ///
    /// # Errors
    /// If it is refused, or the connection is lost for too long. That a task fails is no error here.
    pub async fn submit_and_wait(&self, submit: Submit) -> Result<Box<Ended>, ClientError> {
        let submit = Submit { watch: true, ..self.keyed(submit)? };
        let mut patience = Patience::new(self.shared.options.resubmit_for);
        loop {
            let (reply, answer) = oneshot::channel();
            let ask = Ask::Submit(Box::new(submit.clone()));
            self.shared.put(self.shared.next_id(), Pending::Single { ask, reply })?;
            match answer.await.map_err(gave_up)? {
                Ok(ended) => return Ok(ended),
                Err(error) => patience.bear(error).await?,
            }
        }
    }

    /// Calls a function of some worker and waits for its result.
    ///
    /// # Errors
    /// If it is refused or fails.
    pub async fn call(&self, function: &str, input: impl Into<Bytes>) -> Result<Bytes, CallError> {
        let program = Some(Program::Call(function.to_owned()));
        let work = Work { program, stdin: input.into(), ..Work::default() };
        let part = Part { work: work.encode_to_vec().into(), ..Part::default() };
        let submit = Submit { parts: Some(Parts::Single(part)), summary: function.to_owned(), ..Submit::default() };
        result(*self.submit_and_wait(submit).await?)
    }

    /// Hears how a job goes: now and then, of the end of each of its tasks if `each`, also of those that have ended before,
    /// and at its end.
    ///
    /// # Errors
    /// If the client has ended; that there is no such job is the first thing that is heard.
    pub async fn watch(&self, job: u64, each: bool) -> Result<Follow, ClientError> {
        self.follow(Ask::Watch(Watch { job, each, heard: Vec::new() })).await
    }

    /// Sees what a task writes.
    ///
    /// # Errors
    /// If the client has ended; that there is no such task is the first thing that is heard.
    pub async fn logs(&self, logs: Logs) -> Result<Follow, ClientError> {
        self.follow(Ask::Logs(logs)).await
    }

    /// Asks anything about the state.
    ///
    /// # Errors
    /// If it is refused, the answer is not understood, or the connection is lost for too long.
    pub async fn query<T: DeserializeOwned>(&self, query: &Query) -> Result<T, ClientError> {
        let not_understood = |error: serde_json::Error| ClientError::Unexpected(error.to_string());
        let text = serde_json::to_string(query).map_err(not_understood)?;
        match self.ask(Ask::Query(text)).await? {
            Said::Json(json) => serde_json::from_str(&json).map_err(not_understood),
            other => Err(unexpected(&other)),
        }
    }

    /// Has what did not end well of a job that is over done again, as a new job.
    ///
    /// # Errors
    /// If it is refused, or the connection is lost for too long.
    pub async fn retry(&self, job: u64) -> Result<Submitted, ClientError> {
        let key = self.new_key();
        match self.ask(Ask::Retry(Retry { job, key })).await? {
            Said::Submitted(submitted) => Ok(submitted),
            other => Err(unexpected(&other)),
        }
    }

    /// Withdraws a job or a task.
    ///
    /// # Errors
    /// If there is none, or the coordinator cannot be reached.
    pub async fn cancel(&self, name: Name) -> Result<(), ClientError> {
        self.done(Ask::Cancel(name)).await
    }

    /// Has a worker finish what it runs and give back the rest.
    ///
    /// # Errors
    /// If it is refused, or the connection is lost for too long.
    pub async fn drain(&self, worker: &str) -> Result<(), ClientError> {
        self.done(Ask::Drain(worker.to_owned())).await
    }

    async fn done(&self, ask: Ask) -> Result<(), ClientError> {
        match self.ask(ask).await? {
            Said::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// What a function returned, or what went wrong.
fn result(ended: Ended) -> Result<Bytes, CallError> {
    let ending = ended.ending.map(|ending| *ending).unwrap_or_default();
    if ended.status == Status::Completed.name() {
        return Ok(ending.result);
    }
    let what = [ending.error, ended.cause].into_iter().find(|text| !text.is_empty());
    let what = what.unwrap_or_else(|| format!("its task is {}", ended.status));
    Err(CallError::Failed { what, status: ended.status })
}

fn unexpected(said: &Said) -> ClientError {
    ClientError::Unexpected(format!("{said:?}").chars().take(200).collect())
}

/// How long something that is refused for now is tried again.
struct Patience {
    until: Option<Instant>,
}

impl Patience {
    fn new(span: Duration) -> Patience {
        Patience { until: Instant::now().checked_add(span) }
    }

    /// Waits until it makes sense to try again, or gives the error back.
    async fn bear(&mut self, error: ClientError) -> Result<(), ClientError> {
        let ClientError::Refused { retry_after: Some(after), .. } = &error else { return Err(error) };
        let pause = after.mul_f64(1.0 + 0.25 * fastrand::f64());
        if self.until.is_some_and(|until| Instant::now() + pause > until) {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// What there is to hear of a request, until it is over or this is dropped.
///
/// What nobody takes waits here up to some 16 MB; then the coordinator is told to say no more, and asked for the rest when it was
/// taken. Other requests of the client go on meanwhile.
pub struct Follow {
    id: u64,
    events: UnboundedReceiver<Result<Said, ClientError>>,
    /// Bytes that wait.
    waiting: Arc<AtomicUsize>,
    shared: Arc<Shared>,
    over: bool,
}

impl Follow {
    /// The next that is said; nothing when there is no more to say.
    pub async fn next(&mut self) -> Option<Result<Said, ClientError>> {
        let next = self.events.recv().await;
        self.over |= next.is_none();
        if let Some(Ok(said)) = &next {
            let weight = weight_of_said(said);
            let before = self.waiting.fetch_sub(weight, Ordering::Relaxed);
            if before >= FEW_WAITING && before - weight < FEW_WAITING {
                let _ = self.shared.orders.send(Order::Taken(self.id));
            }
        }
        next
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.shared.orders.send(Order::Stop(self.id));
        }
    }
}
