//! A job that is followed on a thread of its own: whoever reads the output may take its time, and signals are heard all the
//! same.
//!
//! What waits to be shown is bounded: whoever feeds it asks whether it is full, and waits for room if it is. It never waits for
//! a reader itself.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use filch_core::wire::talk::{Progress, Said};
use filch_node::client::Client;
use filch_node::view::{JobView, Query};
use tokio::sync::{Notify, oneshot};

use super::bar::Herald;
use super::{Finish, Live};

/// Bytes that may wait to be shown.
const WAITING: usize = 8 << 20;
/// What something weighs that has no output.
const WEIGHT: usize = 512;

enum Item {
    Said(Box<Said>),
    Finish(Finish),
}

/// What the thread and whoever feeds it both know.
#[derive(Debug, Default)]
struct Shared {
    /// Bytes that wait to be shown.
    waiting: AtomicUsize,
    reader_gone: AtomicBool,
    /// One of them has changed.
    changed: Notify,
}

/// The way to a job that is shown.
pub(crate) struct Screen {
    to: mpsc::Sender<Item>,
    shared: Arc<Shared>,
    herald: Herald,
    outcome: oneshot::Receiver<io::Result<ExitCode>>,
}

impl Screen {
    /// Begins to show it.
    pub(crate) fn begin(live: Live) -> io::Result<Screen> {
        let (to, from) = mpsc::channel();
        let (tell, outcome) = oneshot::channel();
        let (shared, herald) = (Arc::new(Shared::default()), live.bar.herald());
        let its_own = Arc::clone(&shared);
        std::thread::Builder::new().name("filch-screen".to_owned()).spawn(move || {
            // Whoever has given up no longer wants to hear it.
            let _ = tell.send(show(live, &from, &its_own));
        })?;
        Ok(Screen { to, shared, herald, outcome })
    }

    /// Takes in what the coordinator says. True once the job is over.
    pub(crate) fn said(&self, said: Said) -> bool {
        let is_over = matches!(said, Said::JobDone(_));
        self.shared.waiting.fetch_add(weight(&said), Ordering::Relaxed);
        // If the thread has ended, `changed` tells why.
        let _ = self.to.send(Item::Said(Box::new(said)));
        is_over
    }

    /// Shows how a job goes that was just submitted, if somebody looks on. What was said of it before the submission was
    /// answered went unheard, and nothing more may come for as long as the first tasks run.
    pub(crate) async fn look(&self, client: &Client, job: u64) {
        if !self.herald.has_onlooker() {
            return;
        }
        // Whoever follows the job hears why nothing can be asked.
        if let Ok(view) = client.query::<JobView>(&Query::Job { job }).await {
            self.said(Said::Progress(Progress {
                job,
                total: view.tasks,
                running: view.running,
                completed: view.completed,
                failed: view.failed,
                cancelled: view.cancelled,
                skipped: view.skipped,
                stolen: view.stolen,
            }));
        }
    }

    /// Whether so much waits that nothing more should come.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) >= WAITING
    }

    /// Whether nobody reads the output any more.
    pub(crate) fn has_lost_its_reader(&self) -> bool {
        self.shared.reader_gone.load(Ordering::Relaxed)
    }

    /// Waits until it is worth asking these two again.
    ///
    /// # Errors
    /// Why nothing can be shown any more.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        tokio::select! {
            () = self.shared.changed.notified() => Ok(()),
            outcome = &mut self.outcome => outcome.unwrap_or_else(|_| Err(broken())).and(Err(broken())),
        }
    }

    /// Says something to whoever looks on, at once, without disturbing the bar.
    pub(crate) fn say(&self, text: &str) {
        self.herald.say(text);
    }

    /// Shows what is left and the summary, and tells what to exit with.
    pub(crate) async fn finish(&mut self, how: Finish) -> io::Result<ExitCode> {
        let _ = self.to.send(Item::Finish(how));
        (&mut self.outcome).await.unwrap_or_else(|_| Err(broken()))
    }
}

/// It ends by itself only with an error; a panic has told itself.
fn broken() -> io::Error {
    io::Error::other("what happens can no longer be shown")
}

/// What the thread does.
fn show(mut live: Live, from: &mpsc::Receiver<Item>, shared: &Shared) -> io::Result<ExitCode> {
    let was_full = |before: usize, weight: usize| before >= WAITING && before - weight < WAITING;
    for item in from {
        match item {
            Item::Said(said) => {
                let weight = weight(&said);
                live.said(*said)?;
                let before = shared.waiting.fetch_sub(weight, Ordering::Relaxed);
                let is_news = live.has_lost_its_reader() && !shared.reader_gone.swap(true, Ordering::Relaxed);
                if is_news || was_full(before, weight) {
                    shared.changed.notify_one();
                }
            }
            Item::Finish(how) => return live.finish(how),
        }
    }
    Err(broken())
}

fn weight(said: &Said) -> usize {
    let output = match said {
        Said::Ended(ended) => ended.ending.as_ref().map_or(0, |ending| ending.stdout.len() + ending.stderr.len()),
        _ => 0,
    };
    WEIGHT + output
}
