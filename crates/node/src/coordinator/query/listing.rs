//! The tasks of a job as they stand, for those who list them and for those who play the job again. Reads only.

use bytes::Bytes;
use filch_core::Status;
use filch_core::wire::talk::{Graph, JobCard, Numbers, Part, Parts, Submit};
use prost::Message as _;
use rustc_hash::FxHashMap;

use super::super::Later;
use super::super::desk::Desk;
use super::super::history::History;
use super::super::requests::{No, unknown_job};
use super::{blank_view, ended_with, ending, json, past_view, seconds};
use crate::store::{BlobId, Error, Shard, Store};
use crate::view::{TaskView, TraceView};

/// How many of those that did not end well are listed with their exit codes, and how many bytes are read for it: what each of
/// them left is in one piece with its output.
const LOOKED_UP: usize = 1000;
const READ: usize = 64 << 20;

/// The tasks of a job.
struct Listing {
    card: JobCard,
    numbers: Numbers,
    done: bool,
    /// What is known of them, by position.
    known: FxHashMap<u32, TaskView>,
    /// What those left that did not end well, or whose latest attempt did not.
    endings: FxHashMap<u32, u64>,
    /// Where those stand of which nothing is known.
    rest: &'static str,
}

/// What is known in memory of the tasks of a job.
struct Current {
    /// The job, and whether it is done.
    job: Option<(JobCard, bool)>,
    tasks: FxHashMap<u32, TaskView>,
    endings: FxHashMap<u32, u64>,
    rest: &'static str,
}

impl Listing {
    fn read(number: u64, current: Current, history: &mut History) -> Result<Option<Listing>, Error> {
        let Current { job, tasks, endings, rest } = current;
        let (card, done) = match job {
            Some(known) => known,
            None => match history.job(number)? {
                Some((card, ..)) => (card, true),
                None => return Ok(None),
            },
        };
        let workers = history.workers()?;
        let mut listing = Listing { numbers: card.numbers(), card, done, known: tasks, endings, rest };
        history.tasks(number, 0..=u64::from(u32::MAX), |outcome| {
            let index = outcome.index as u32;
            listing.known.insert(index, past_view((&listing.card, &listing.numbers), &outcome, &workers, None));
            // It has ended since: what an earlier attempt left no longer counts.
            listing.endings.remove(&index);
            if outcome.ending > 0 && outcome.status != Status::Completed {
                listing.endings.insert(index, outcome.ending);
            }
            true
        })?;
        Ok(Some(listing))
    }

    /// Those that are wanted, at most so many.
    fn views(&mut self, wanted: impl Fn(&TaskView) -> bool, limit: usize) -> Vec<TaskView> {
        let mut views = Vec::new();
        let total = self.card.total.min(u64::from(u32::MAX)) as u32;
        for index in 0..total {
            if views.len() >= limit {
                break;
            }
            // What is neither here nor there waits, as elements of an array do.
            let view = self.known.remove(&index);
            let view = if self.done {
                view
            } else {
                Some(view.unwrap_or_else(|| blank_view(&self.card, &self.numbers, index, self.rest)))
            };
            views.extend(view.filter(&wanted));
        }
        views
    }

    /// Adds how those ended that did not end well.
    fn look_up(&self, views: &mut [TaskView], store: &dyn Store, shard: Shard) -> Result<(), Error> {
        let mut read = 0;
        let failed = views.iter_mut().filter_map(|view| Some((*self.endings.get(&view.index)?, view)));
        for (blob, view) in failed.take(LOOKED_UP) {
            if read > READ {
                break;
            }
            if let Some(ending) = ending(store, shard, blob)? {
                read += ending.stdout.len() + ending.stderr.len();
                ended_with(view, &ending);
            }
        }
        Ok(())
    }
}

impl Desk {
    fn current_tasks(&self, number: u64) -> Current {
        let job = self.jobs.get(number);
        let (mut tasks, mut endings) = (FxHashMap::default(), FxHashMap::default());
        if let Some(job) = job {
            for (index, task) in self.jobs.current(number) {
                let (view, left) = self.task_view(job, index, task);
                if left > 0 {
                    endings.insert(index, left);
                }
                tasks.insert(index, view);
            }
        }
        let job = job.map(|job| (job.card.clone(), job.done_at.is_some()));
        Current { job, tasks, endings, rest: self.rest_status(number) }
    }

    pub(super) fn tasks_query(
        &mut self,
        connection: u64,
        id: u64,
        number: u64,
        status: Option<String>,
        limit: usize,
    ) -> Result<(), No> {
        let current = self.current_tasks(number);
        let (store, shard) = (std::sync::Arc::clone(&self.store), self.shard);
        self.ask_history(connection, id, move |history| {
            let Some(mut listing) = Listing::read(number, current, history)? else {
                return Ok(Later::Refused(unknown_job(number)));
            };
            let wanted = |view: &TaskView| status.as_deref().is_none_or(|status| view.status == status);
            let mut views = listing.views(wanted, limit);
            listing.look_up(&mut views, &*store, shard)?;
            Ok(Later::Json(json(&views)))
        });
        Ok(())
    }

    pub(super) fn trace_query(&mut self, connection: u64, id: u64, number: u64) -> Result<(), No> {
        let current = self.current_tasks(number);
        let (store, shard) = (std::sync::Arc::clone(&self.store), self.shard);
        self.ask_history(connection, id, move |history| {
            let Some(mut listing) = Listing::read(number, current, history)? else {
                return Ok(Later::Refused(unknown_job(number)));
            };
            let kept = store.blob(shard, BlobId(listing.card.submission))?;
            let parts = kept.and_then(|bytes| Submit::decode(Bytes::from(bytes)).ok()?.parts);
            let at = seconds(listing.card.at);
            let views = listing.views(|_| true, usize::MAX).into_iter();
            let traced = views.map(|view| traced(view, at, parts.as_ref())).collect::<Vec<_>>();
            Ok(Later::Json(json(&traced)))
        });
        Ok(())
    }
}

/// A task with what was asked for it, as far as that is still kept.
fn traced(task: TaskView, submitted_s: f64, parts: Option<&Parts>) -> TraceView {
    let part: Option<&Part> = match parts {
        Some(Parts::Graph(Graph { parts })) => parts.get(task.index as usize),
        Some(Parts::Array(array)) => array.part.as_ref(),
        Some(Parts::Single(part)) => Some(part),
        None => None,
    };
    let terms = part.and_then(|part| part.terms.as_ref());
    TraceView {
        submitted_s,
        kind: terms.map(|terms| terms.kind.clone()).unwrap_or_default(),
        after: part.map(|part| part.after.clone()).unwrap_or_default(),
        needs: terms
            .map_or_else(Vec::new, |terms| terms.resources.iter().map(|one| (one.name.clone(), one.amount)).collect()),
        estimate_s: terms.and_then(|terms| terms.estimate_nanos).map(seconds),
        task,
    }
}
