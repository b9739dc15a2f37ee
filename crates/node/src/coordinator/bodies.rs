//! What is to be done for each handle. Bodies that come in one turn are one blob of the store; in memory they stay as long
//! as there is room.
//!
//! A handle is the number of the blob and the place in it, so nothing has to be remembered of a body that waits.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use filch_core::wire::talk::{Input, JobCard, Numbers, Parts, Submit};
use prost::Message as _;
use rustc_hash::FxHashMap;

use crate::store::{BlobChange, BlobId, Shard, Store};

/// Bytes of bodies that are kept in memory. Those beyond it are read from the store when they are handed out.
const IN_MEMORY: usize = 64 << 20;
/// Bits of a handle that say the place in its blob.
const PLACE_BITS: u32 = 12;
/// Bodies in one blob.
const MOST: usize = 1 << PLACE_BITS;
/// Bytes of a blob before the next one is begun.
const FULL: usize = 1 << 20;

/// Bodies, and what differs from element to element of arrays.
#[derive(Default)]
pub(super) struct Bodies {
    chunks: FxHashMap<u64, Chunk>,
    /// The one that is being filled.
    open: Option<(u64, Vec<Bytes>, usize)>,
    /// Those in memory, the oldest first, with the turn after which the store has them.
    kept: VecDeque<(u64, u64)>,
    bytes: usize,
    elements: FxHashMap<u64, Elements>,
}

/// Bodies that came together.
#[derive(Default)]
struct Chunk {
    /// How many of them are still needed.
    left: u32,
    bytes: Option<Bytes>,
}

/// What is told of each element of an array besides what all of them share.
pub(super) struct Elements {
    /// Where the store has their inputs.
    submission: u64,
    inputs: Inputs,
    numbers: Arc<Numbers>,
}

enum Inputs {
    None,
    Here(Vec<Bytes>),
    InStore,
}

impl Elements {
    pub(super) fn new(submission: u64, inputs: Option<Vec<Bytes>>, numbers: &Arc<Numbers>) -> Elements {
        let inputs = inputs.map_or(Inputs::None, Inputs::Here);
        Elements { submission, inputs, numbers: Arc::clone(numbers) }
    }

    /// Those of a job of an earlier life.
    pub(super) fn restored(card: &JobCard, numbers: &Arc<Numbers>) -> Elements {
        let inputs = if card.has_inputs { Inputs::InStore } else { Inputs::None };
        Elements { submission: card.submission, inputs, numbers: Arc::clone(numbers) }
    }

    fn input(&mut self, index: u32, store: &dyn Store, shard: Shard) -> Option<Bytes> {
        if matches!(self.inputs, Inputs::InStore) {
            let bytes = store.blob(shard, BlobId(self.submission)).ok()??;
            let parts = Submit::decode(Bytes::from(bytes)).ok()?.parts;
            let Some(Parts::Array(array)) = parts else { return None };
            self.inputs = Inputs::Here(array.inputs);
        }
        match &self.inputs {
            Inputs::Here(each) => each.get(index as usize).cloned(),
            Inputs::None | Inputs::InStore => None,
        }
    }
}

impl Bodies {
    /// Takes a body; `blob` is asked for a number if a new blob must be begun. What is full by then goes to the store.
    pub(super) fn add(
        &mut self,
        work: Bytes,
        turn: u64,
        changes: &mut Vec<BlobChange>,
        blob: impl FnOnce() -> u64,
    ) -> u64 {
        if self.open.as_ref().is_some_and(|(_, works, bytes)| works.len() == MOST || *bytes >= FULL) {
            self.seal(turn, changes);
        }
        let (chunk, works, bytes) = self.open.get_or_insert_with(|| (blob(), Vec::new(), 0));
        let handle = *chunk << PLACE_BITS | works.len() as u64;
        *bytes += work.len();
        works.push(work);
        self.chunks.entry(*chunk).or_default().left += 1;
        handle
    }

    /// What came goes to the store.
    pub(super) fn seal(&mut self, turn: u64, changes: &mut Vec<BlobChange>) {
        let Some((number, works, _)) = self.open.take() else { return };
        let bytes = pack(&works);
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        if chunk.left == 0 {
            self.chunks.remove(&number);
            return;
        }
        changes.push(BlobChange::Put { id: BlobId(number), bytes: bytes.to_vec(), until: None });
        self.bytes += bytes.len();
        chunk.bytes = Some(bytes);
        self.kept.push_back((turn, number));
    }

    /// The store has what it got until `turn`: what there is no room for may leave memory.
    pub(super) fn durable(&mut self, turn: u64) {
        while self.bytes > IN_MEMORY
            && let Some((_, number)) = self.kept.pop_front_if(|entry| entry.0 <= turn)
        {
            if let Some(bytes) = self.chunks.get_mut(&number).and_then(|chunk| chunk.bytes.take()) {
                self.bytes -= bytes.len();
            }
        }
    }

    /// A body of an earlier life is still needed.
    pub(super) fn restore(&mut self, handle: u64) {
        self.chunks.entry(handle >> PLACE_BITS).or_default().left += 1;
    }

    /// Nobody needs the body any more.
    pub(super) fn forget(&mut self, handle: u64, changes: &mut Vec<BlobChange>) {
        self.elements.remove(&handle);
        let number = handle >> PLACE_BITS;
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        chunk.left -= 1;
        if chunk.left > 0 || self.open.as_ref().is_some_and(|open| open.0 == number) {
            return;
        }
        if let Some(bytes) = chunk.bytes.take() {
            self.bytes -= bytes.len();
        }
        self.chunks.remove(&number);
        changes.push(BlobChange::Remove { id: BlobId(number) });
    }

    /// What is to be done; nothing if the store does not know it either.
    pub(super) fn work(&mut self, handle: u64, store: &dyn Store, shard: Shard) -> Option<Bytes> {
        let (number, place) = (handle >> PLACE_BITS, (handle & (MOST as u64 - 1)) as usize);
        if let Some((open, works, _)) = &self.open
            && *open == number
        {
            return works.get(place).cloned();
        }
        let chunk = self.chunks.get_mut(&number)?;
        if chunk.bytes.is_none() {
            let bytes = Bytes::from(store.blob(shard, BlobId(number)).ok()??);
            self.bytes += bytes.len();
            // It came from there, so it may go at any time.
            self.kept.push_back((0, number));
            chunk.bytes = Some(bytes);
        }
        unpack(chunk.bytes.as_ref()?, place)
    }

    /// Remembers what differs from element to element, if anything does.
    pub(super) fn keep_elements(&mut self, handle: u64, elements: Elements) {
        if !(matches!(elements.inputs, Inputs::None) && elements.numbers.are_in_place()) {
            self.elements.insert(handle, elements);
        }
    }

    /// What one element is told, if there is anything.
    pub(super) fn element(&mut self, handle: u64, index: u32, store: &dyn Store, shard: Shard) -> Option<Input> {
        let elements = self.elements.get_mut(&handle)?;
        let input = elements.input(index, store, shard);
        let place = (!elements.numbers.are_in_place()).then(|| elements.numbers.place(index));
        if input.is_none() && place.is_none() {
            return None;
        }
        Some(Input { handle, index, bare: input.is_none(), bytes: input.unwrap_or_default(), place })
    }
}

/// How many there are, where each ends, and all of them.
fn pack(works: &[Bytes]) -> Bytes {
    let total: usize = works.iter().map(Bytes::len).sum();
    let mut packed = BytesMut::with_capacity(total + 4 * works.len() + 4);
    packed.put_u32_le(works.len() as u32);
    let mut end = 0;
    for work in works {
        end += work.len();
        packed.put_u32_le(end as u32);
    }
    for work in works {
        packed.put_slice(work);
    }
    packed.freeze()
}

fn unpack(packed: &Bytes, place: usize) -> Option<Bytes> {
    let count = packed.get(..4)?.get_u32_le() as usize;
    let end_of = |at: usize| Some(packed.get(4 + 4 * at..)?.get(..4)?.get_u32_le() as usize);
    let from = if place == 0 { 0 } else { end_of(place - 1)? };
    let to = end_of(place).filter(|_| place < count)?;
    let base = 4 + 4 * count;
    (from <= to && base + to <= packed.len()).then(|| packed.slice(base + from..base + to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let works: Vec<Bytes> = ["one", "", "three"].into_iter().map(Bytes::from).collect();
        let packed = pack(&works);
        for (place, work) in works.iter().enumerate() {
            assert_eq!(unpack(&packed, place).as_ref(), Some(work));
        }
        assert_eq!(unpack(&packed, 3), None);
        assert_eq!(unpack(&packed.slice(..packed.len() - 1), 2), None);
        assert_eq!(unpack(&Bytes::new(), 0), None);
    }

    #[test]
    fn a_blob_goes_with_the_last_of_its_bodies() {
        let (mut bodies, mut changes, mut number) = (Bodies::default(), Vec::new(), 0);
        let mut handles = Vec::new();
        for at in 0..MOST + 1 {
            handles.push(bodies.add(Bytes::from(at.to_string()), 1, &mut changes, || {
                number += 1;
                number
            }));
        }
        assert_eq!(changes.len(), 1, "the first blob was full");
        bodies.forget(handles[MOST], &mut changes);
        bodies.seal(1, &mut changes);
        assert_eq!(changes.len(), 1, "nobody needs what is in the second");
        for handle in &handles[1..MOST] {
            bodies.forget(*handle, &mut changes);
        }
        assert_eq!(changes.len(), 1);
        bodies.forget(handles[0], &mut changes);
        assert!(matches!(changes[1], BlobChange::Remove { id: BlobId(1) }));
        assert!(bodies.chunks.is_empty() && bodies.bytes == 0);
    }
}
