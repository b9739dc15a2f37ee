//! A client of a cluster: submits jobs, hears how they go, calls functions of workers. Needs the feature `client`.
//!
//! `filch serve` writes an access file; [`Client::connect`] finds it where `filch submit` does. A connection that breaks is
//! made again, and what was submitted is never submitted twice.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use filch::client::{Client, Job};
//!
//! let client = Client::connect().await?;
//! let job = client.submit(Job::command(["gzip", "-k", "{}"]).each(["a.txt", "b.txt"])).await?;
//! let summary = job.wait().await?;
//! println!("{} done, {} failed", summary.completed, summary.failed);
//!
//! let answer = client.call("resize", "image.png").await?;
//! # Ok(()) }
//! ```

pub mod blocking;
mod job;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use filch_core::wire::talk::{Ended, Name, Progress, Said};
use filch_node::access::{Access, AccessError};
use filch_node::client as node;
use filch_node::dial::Dial;
use filch_node::view::Query;

pub use filch_node::client::CallError;
pub use filch_node::view::{JobView, StatsView, TaskView, WorkerView};
pub use job::Job;

/// Why a cluster did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The access file.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The connection or the coordinator.
    #[error(transparent)]
    Client(#[from] node::ClientError),
}

/// A client. Copies share one connection.
#[derive(Clone)]
pub struct Client(node::Client);

impl Client {
    /// Connects to the cluster whose access file is in the usual place: `$FILCH_ACCESS`, else `$FILCH_DIR/access.json`, else
    /// `~/.filch/access.json`.
    ///
    /// # Errors
    /// If there is no access file, or nobody is there, or refuses.
    pub async fn connect() -> Result<Client, ClusterError> {
        Client::connect_to(Access::usual_place()).await
    }

    /// Connects to the cluster that an access file describes.
    ///
    /// # Errors
    /// As [`connect`](Client::connect).
    pub async fn connect_to(access_file: impl AsRef<Path>) -> Result<Client, ClusterError> {
        let access = Access::read(access_file.as_ref())?;
        Ok(Client(node::Client::connect(Dial::Socket(access), NAME).await?))
    }

    /// Submits a job. It is durable when this returns.
    ///
    /// # Errors
    /// If it is refused, or the coordinator cannot be reached for long.
    pub async fn submit(&self, job: Job) -> Result<Submitted, ClusterError> {
        let (submitted, follow) = self.0.submit_and_follow(job.into_submit()).await?;
        Ok(Submitted { number: submitted.job, events: Events { follow, over: false }, client: self.clone() })
    }

    /// Calls a function that workers have registered, and waits for the bytes that it returns.
    ///
    /// # Errors
    /// If it fails, or nobody can be asked.
    pub async fn call(&self, function: &str, input: impl Into<Bytes>) -> Result<Bytes, CallError> {
        self.0.call(function, input).await
    }

    /// The job with a number.
    ///
    /// # Errors
    /// If there is none, or the coordinator cannot be reached.
    pub async fn job(&self, number: u64) -> Result<JobView, ClusterError> {
        Ok(self.0.query(&Query::Job { job: number }).await?)
    }

    /// Tasks of a job, in their order, at most so many.
    ///
    /// # Errors
    /// As [`job`](Client::job).
    pub async fn tasks(&self, job: u64, limit: usize) -> Result<Vec<TaskView>, ClusterError> {
        Ok(self.0.query(&Query::Tasks { job, status: None, limit }).await?)
    }

    /// All workers.
    ///
    /// # Errors
    /// If the coordinator cannot be reached.
    pub async fn workers(&self) -> Result<Vec<WorkerView>, ClusterError> {
        Ok(self.0.query(&Query::Workers).await?)
    }

    /// Figures of the whole.
    ///
    /// # Errors
    /// If the coordinator cannot be reached.
    pub async fn stats(&self) -> Result<StatsView, ClusterError> {
        Ok(self.0.query(&Query::Stats).await?)
    }

    /// Withdraws a job: what waits is not begun, what runs is stopped.
    ///
    /// # Errors
    /// If there is no such job, or the coordinator cannot be reached.
    pub async fn cancel(&self, job: u64) -> Result<(), ClusterError> {
        Ok(self.0.cancel(Name { job, index: None, task: None }).await?)
    }

    /// Hears of a job that was submitted before, by whomever.
    ///
    /// # Errors
    /// As [`job`](Client::job).
    pub async fn follow(&self, job: u64) -> Result<Events, ClusterError> {
        Ok(Events { follow: self.0.watch(job, true).await?, over: false })
    }
}

/// Where the access file is if nobody says.
#[must_use]
pub fn usual_access_file() -> std::path::PathBuf {
    Access::usual_place()
}

/// What a program is called in the logs of a coordinator.
const NAME: &str = "library";

/// A job that was submitted. Dropping it changes nothing about the job.
pub struct Submitted {
    number: u64,
    events: Events,
    client: Client,
}

impl Submitted {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until all of its tasks are settled.
    ///
    /// # Errors
    /// If the coordinator cannot be reached for long.
    pub async fn wait(mut self) -> Result<Summary, ClusterError> {
        while let Some(event) = self.events.next().await {
            if let Event::Done(summary) = event? {
                return Ok(summary);
            }
        }
        Err(ClusterError::Client(node::ClientError::Lost("it never said how the job ended".to_owned())))
    }

    /// What there is to hear of it.
    pub fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// Withdraws it.
    ///
    /// # Errors
    /// If the coordinator cannot be reached.
    pub async fn cancel(&self) -> Result<(), ClusterError> {
        self.client.cancel(self.number).await
    }
}

/// What there is to hear of a job, one after the other.
pub struct Events {
    follow: node::Follow,
    over: bool,
}

impl Events {
    /// The next; none when the job is done and there is no more to say.
    pub async fn next(&mut self) -> Option<Result<Event, ClusterError>> {
        while !self.over {
            let event = match self.follow.next().await? {
                Err(error) => {
                    self.over = true;
                    return Some(Err(error.into()));
                }
                Ok(Said::Progress(progress)) => Event::Progress(Summary::of(&progress)),
                Ok(Said::Ended(ended)) => Event::Ended(Outcome::of(*ended)),
                Ok(Said::JobDone(progress)) => {
                    self.over = true;
                    Event::Done(Summary::of(&progress))
                }
                Ok(_) => continue,
            };
            return Some(Ok(event));
        }
        None
    }
}

/// Something happened to a job.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// How it goes, now and then.
    Progress(Summary),
    /// One of its tasks was settled.
    Ended(Outcome),
    /// All of them are.
    Done(Summary),
}

/// How many tasks of a job stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The number of the job.
    pub job: u64,
    /// Tasks in all.
    pub total: u64,
    /// Those that run.
    pub running: u64,
    /// Those that ended well.
    pub completed: u64,
    /// Those that did not.
    pub failed: u64,
    /// Those that were withdrawn.
    pub cancelled: u64,
    /// Those that were not run because another did not end well.
    pub skipped: u64,
    /// Those that were stolen.
    pub stolen: u64,
}

impl Summary {
    fn of(progress: &Progress) -> Summary {
        Summary {
            job: progress.job,
            total: progress.total,
            running: progress.running,
            completed: progress.completed,
            failed: progress.failed,
            cancelled: progress.cancelled,
            skipped: progress.skipped,
            stolen: progress.stolen,
        }
    }
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Its position in its job.
    pub index: u32,
    /// How: `completed`, `failed`, `cancelled` or `skipped`.
    pub status: String,
    /// Why; empty if there is nothing to say.
    pub cause: String,
    /// What went wrong, in words; empty if nothing did.
    pub error: String,
    /// Attempts it took.
    pub attempts: u32,
    /// Who ran it last.
    pub worker: String,
    /// How long its last attempt ran.
    pub ran: Duration,
    /// Its exit code, if it was a program that ended by itself.
    pub exit_code: Option<i32>,
    /// What a function returned.
    pub result: Bytes,
    /// What it wrote to standard output, as far as that is kept.
    pub stdout: Bytes,
    /// What it wrote to standard error, likewise.
    pub stderr: Bytes,
}

impl Outcome {
    fn of(ended: Ended) -> Outcome {
        let ending = ended.ending.map(|ending| *ending).unwrap_or_default();
        // A program of which there is nothing to say ended well.
        Outcome {
            index: ended.index,
            status: ended.status,
            cause: ended.cause,
            error: ending.error,
            attempts: ended.attempts,
            worker: ended.worker,
            ran: Duration::from_nanos(ended.ran_nanos),
            exit_code: ending.exit_code,
            result: ending.result,
            stdout: ending.stdout,
            stderr: ending.stderr,
        }
    }
}
