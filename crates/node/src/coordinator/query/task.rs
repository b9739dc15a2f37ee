//! One task: where it stands, what it runs, and what it wrote. Reads only.

use std::sync::Arc;

use bytes::Bytes;
use filch_core::wire::talk::{Array, Graph, JobCard, Parts, Submit, Work};
use prost::Message as _;

use super::super::Later;
use super::super::desk::Desk;
use super::super::requests::{No, unknown_job, unknown_task};
use super::{blank_view, ended_with, ending, json, past_view};
use crate::store::{BlobId, Error, Shard, Store};
use crate::template;
use crate::view::TaskView;

impl Desk {
    pub(super) fn task_query(&mut self, connection: u64, id: u64, number: u64, index: u32) -> Result<(), No> {
        let job = self.jobs.get(number);
        if let Some(job) = job {
            if u64::from(index) >= job.card.total {
                return Err(No::Because(unknown_task(number, index)));
            }
            if let Some(task) = self.jobs.at(number, index) {
                let (mut view, left) = self.task_view(job, index, task);
                let card = job.card.clone();
                let (store, shard) = (Arc::clone(&self.store), self.shard);
                self.ask_history(connection, id, move |_| {
                    if let Some(ending) = ending(&*store, shard, left)? {
                        ended_with(&mut view, &ending);
                    }
                    say_what_it_runs(&mut view, &card, &*store, shard)?;
                    Ok(Later::Json(json(&view)))
                });
                return Ok(());
            }
        }
        let card = job.map(|job| job.card.clone());
        let rest = self.rest_status(number);
        let (store, shard) = (Arc::clone(&self.store), self.shard);
        self.ask_history(connection, id, move |history| {
            let card = match card {
                Some(card) => card,
                None => match history.job(number)? {
                    Some((card, ..)) => card,
                    None => return Ok(Later::Refused(unknown_job(number))),
                },
            };
            let mut view = match history.task(number, u64::from(index))? {
                Some(outcome) => {
                    let workers = history.workers()?;
                    let ending = ending(&*store, shard, outcome.ending)?;
                    past_view((&card, &card.numbers()), &outcome, &workers, ending.as_ref())
                }
                None if u64::from(index) >= card.total => return Ok(Later::Refused(unknown_task(number, index))),
                None => blank_view(&card, &card.numbers(), index, rest),
            };
            say_what_it_runs(&mut view, &card, &*store, shard)?;
            Ok(Later::Json(json(&view)))
        });
        Ok(())
    }
}

/// Adds the command and the directory of a task, while the submission is kept.
fn say_what_it_runs(view: &mut TaskView, card: &JobCard, store: &dyn Store, shard: Shard) -> Result<(), Error> {
    let Some(bytes) = store.blob(shard, BlobId(card.submission))? else { return Ok(()) };
    let parts = Submit::decode(Bytes::from(bytes)).ok().and_then(|submit| submit.parts);
    let (part, input, place) = match &parts {
        Some(Parts::Graph(Graph { parts })) => (parts.get(view.index as usize), None, view.index),
        Some(Parts::Array(Array { part, inputs, .. })) => {
            (part.as_ref(), inputs.get(view.index as usize), card.numbers().place(view.index))
        }
        Some(Parts::Single(part)) => (Some(part), None, 0),
        None => (None, None, 0),
    };
    let Some(work) = part.and_then(|part| Work::decode(part.work.clone()).ok()) else { return Ok(()) };
    // What a gap should hold that nothing fills, the task says itself when it fails.
    let program = template::program(&work, place, input.map(|input| &**input)).unwrap_or_else(|_| work.program.clone());
    view.command = program.as_ref().map(template::in_words);
    view.cwd = work.cwd.as_ref().map(|cwd| String::from_utf8_lossy(cwd).into_owned());
    Ok(())
}
