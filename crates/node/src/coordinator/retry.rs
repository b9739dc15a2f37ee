//! Jobs that are done again: what did not end well of one that is over becomes a new job.

use std::sync::Arc;

use bytes::Bytes;
use filch_core::Status;
use filch_core::wire::talk::{Array, Graph, Numbers, Part, Parts, Places, Retry, Said, Submit, place_runs};
use prost::Message as _;

use super::Later;
use super::desk::Desk;
use super::requests::{No, unknown_job};
use crate::store::BlobId;

impl Desk {
    pub(super) fn retry(&mut self, connection: u64, id: u64, retry: Retry) -> Result<(), No> {
        let Retry { job: number, key } = retry;
        if let Some((first, _)) = self.keys.get(&key) {
            self.reply_when_durable(connection, id, Said::Submitted(first));
            return Ok(());
        }
        if self.jobs.get(number).is_some_and(|job| job.done_at.is_none()) {
            return Err(No::Because(format!("job {number} is not over; wait for it or cancel it first")));
        }
        let (store, shard) = (Arc::clone(&self.store), self.shard);
        self.ask_history(connection, id, move |history| {
            let Some((card, ..)) = history.job(number)? else { return Ok(Later::Refused(unknown_job(number))) };
            let Some(bytes) = store.blob(shard, BlobId(card.submission))? else {
                let why = format!("what job {number} was is not kept any more; submit it again");
                return Ok(Later::Refused(why));
            };
            // Elements that were never handed out have no entry of their own.
            let mut left = vec![true; usize::try_from(card.total).unwrap_or(0)];
            history.tasks(number, 0..=u64::from(u32::MAX), |outcome| {
                if let Some(left) = left.get_mut(outcome.index as usize) {
                    *left = outcome.status != Status::Completed;
                }
                true
            })?;
            let left: Vec<u32> = (0..).zip(&left).filter(|(_, left)| **left).map(|(index, _)| index).collect();
            if left.is_empty() {
                return Ok(Later::Refused(format!("all tasks of job {number} ended well; there is nothing to retry")));
            }
            let again = Submit::decode(Bytes::from(bytes)).ok().and_then(|submit| again(submit, &left));
            Ok(match again {
                Some(submit) => Later::Resubmit(Box::new(Submit { key, watch: false, ..submit })),
                None => Later::Refused(format!("what is kept of job {number} cannot be read; submit it again")),
            })
        });
        Ok(())
    }
}

/// A submission of some tasks of another, under the numbers and with the inputs that they had.
fn again(submit: Submit, left: &[u32]) -> Option<Submit> {
    let parts = match submit.parts? {
        Parts::Graph(graph) => Parts::Graph(some_of_graph(graph, left)),
        Parts::Array(array) => Parts::Array(some_of_array(array, left)?),
        Parts::Single(part) => Parts::Single(part),
    };
    Some(Submit { parts: Some(parts), ..submit })
}

/// What ended well need not be waited for.
fn some_of_graph(graph: Graph, left: &[u32]) -> Graph {
    let place = |of: u32| left.binary_search(&of).ok().map(|at| at as u32);
    let parts = (0..).zip(graph.parts).filter(|(index, _)| place(*index).is_some());
    let parts = parts.map(|(_, part)| Part { after: part.after.iter().filter_map(|of| place(*of)).collect(), ..part });
    Graph { parts: parts.collect() }
}

fn some_of_array(array: Array, left: &[u32]) -> Option<Array> {
    let larger = if array.places.is_empty() { None } else { Some(Places::read(&array.places)?) };
    let numbers = Numbers::new(array.first, array.step, larger);
    let inputs = left.iter().filter_map(|index| array.inputs.get(*index as usize)).cloned().collect();
    let places = place_runs(left.iter().map(|index| numbers.place(*index)));
    Some(Array { count: left.len() as u32, inputs, places, ..array })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_array_those_left_keep_their_numbers_and_inputs() {
        let inputs = ["a", "b", "c", "d"].map(Bytes::from).to_vec();
        let array = Array { part: Some(Part::default()), count: 4, inputs, first: 10, step: 2, ..Array::default() };
        let once = some_of_array(array, &[0, 2, 3]).unwrap();
        assert_eq!((once.first, once.step, once.count), (10, 2, 3));
        assert_eq!((&once.places[..], &once.inputs[..]), (&[0, 1, 1, 2][..], &["a", "c", "d"].map(Bytes::from)[..]));
        // Of these the last two fail again.
        let twice = some_of_array(once, &[1, 2]).unwrap();
        assert_eq!((twice.count, &twice.places[..]), (2, &[2, 2][..]));
        assert_eq!(twice.inputs, ["c", "d"]);
    }

    #[test]
    fn of_a_graph_what_is_done_is_not_waited_for() {
        let part = |after: &[u32]| Part { after: after.to_vec(), ..Part::default() };
        let graph = Graph { parts: vec![part(&[]), part(&[0]), part(&[0, 1])] };
        let found = some_of_graph(graph, &[1, 2]);
        assert_eq!(found.parts.iter().map(|part| part.after.clone()).collect::<Vec<_>>(), [vec![], vec![0]]);
    }
}
