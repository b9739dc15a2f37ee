//! Jobs that are done again: what did not end well of one that is over becomes a new job.

use std::sync::Arc;

use bytes::Bytes;
use filch_core::Status;
use filch_core::wire::talk::{Array, Graph, Part, Parts, Retry, Said, Submit, Work, number_of};
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
        Parts::Array(array) => some_of_array(&array, left)?,
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

fn some_of_array(array: &Array, left: &[u32]) -> Option<Parts> {
    let number = |index: u32| number_of(array.first, array.step, index);
    let (first, last) = (*left.first()?, *left.last()?);
    let part = array.part.as_ref()?;
    let mut work = Work::decode(part.work.clone()).ok()?;
    if (last - first) as usize == left.len() - 1 {
        work.first = number(first);
        let part = Part { work: work.encode_to_vec().into(), ..part.clone() };
        let inputs = array.inputs.get(first as usize..=last as usize).map(<[Bytes]>::to_vec).unwrap_or_default();
        let array =
            Array { part: Some(part), count: left.len() as u32, inputs, first: number(first), step: array.step };
        return Some(Parts::Array(array));
    }
    let each = (0..).zip(left).map(|(position, &index)| {
        let given = array.inputs.get(index as usize).cloned();
        // Whoever runs it counts from its new position.
        let work = Work { first: number(index).wrapping_sub(position), step: 1, given, ..work.clone() };
        let name = number(index).to_string();
        Part { work: work.encode_to_vec().into(), name, after: Vec::new(), ..part.clone() }
    });
    Some(Parts::Graph(Graph { parts: each.collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(inputs: &[&str]) -> Array {
        let work = Work { first: 10, step: 2, ..Work::default() };
        let part = Part { work: work.encode_to_vec().into(), ..Part::default() };
        let inputs = inputs.iter().map(|input| Bytes::from((*input).to_owned())).collect();
        Array { part: Some(part), count: 4, inputs, first: 10, step: 2 }
    }

    fn work(part: &Part) -> Work {
        Work::decode(part.work.clone()).unwrap()
    }

    #[test]
    fn neighbours_stay_an_array_under_their_numbers() {
        let Some(Parts::Array(found)) = some_of_array(&array(&["a", "b", "c", "d"]), &[1, 2]) else {
            panic!("no array")
        };
        assert_eq!((found.first, found.step, found.count), (12, 2, 2));
        assert_eq!(found.inputs, ["b", "c"]);
        assert_eq!(work(found.part.as_ref().unwrap()).first, 12);
    }

    #[test]
    fn others_keep_their_numbers_and_inputs_one_by_one() {
        let Some(Parts::Graph(found)) = some_of_array(&array(&["a", "b", "c", "d"]), &[0, 3]) else {
            panic!("no graph")
        };
        let works: Vec<Work> = found.parts.iter().map(work).collect();
        assert_eq!(works.iter().map(|work| (work.first, work.step)).collect::<Vec<_>>(), [(10, 1), (15, 1)]);
        assert_eq!(works[1].given.as_deref(), Some(&b"d"[..]));
        assert_eq!(found.parts[1].name, "16");
    }

    #[test]
    fn of_a_graph_what_is_done_is_not_waited_for() {
        let part = |after: &[u32]| Part { after: after.to_vec(), ..Part::default() };
        let graph = Graph { parts: vec![part(&[]), part(&[0]), part(&[0, 1])] };
        let found = some_of_graph(graph, &[1, 2]);
        assert_eq!(found.parts.iter().map(|part| part.after.clone()).collect::<Vec<_>>(), [vec![], vec![0]]);
    }
}
