//! What is to be done for each handle: in memory while there is room, and otherwise in the store.

use bytes::Bytes;
use filch_core::wire::talk::Array;
use prost::Message as _;
use rustc_hash::FxHashMap;

use crate::store::{BlobId, Shard, Store};

/// Bytes of bodies that are kept in memory. Those beyond it are read from the store when they are handed out.
const IN_MEMORY: usize = 256 << 20;

/// Bodies, and the inputs of arrays that have some.
#[derive(Default)]
pub(super) struct Bodies {
    works: FxHashMap<u64, Bytes>,
    bytes: usize,
    inputs: FxHashMap<u64, Inputs>,
}

struct Inputs {
    /// Where the store has them.
    blob: u64,
    each: Option<Vec<Bytes>>,
}

impl Bodies {
    pub(super) fn keep(&mut self, handle: u64, work: Bytes) {
        if self.bytes + work.len() <= IN_MEMORY {
            self.bytes += work.len();
            self.works.insert(handle, work);
        }
    }

    pub(super) fn keep_inputs(&mut self, handle: u64, blob: u64, each: Option<Vec<Bytes>>) {
        self.inputs.insert(handle, Inputs { blob, each });
    }

    pub(super) fn drop_body(&mut self, handle: u64) {
        if let Some(work) = self.works.remove(&handle) {
            self.bytes -= work.len();
        }
        self.inputs.remove(&handle);
    }

    /// What is to be done; nothing if the store does not know it either.
    pub(super) fn work(&mut self, handle: u64, store: &dyn Store, shard: Shard) -> Option<Bytes> {
        if let Some(work) = self.works.get(&handle) {
            return Some(work.clone());
        }
        let work = Bytes::from(store.blob(shard, BlobId(handle)).ok()??);
        self.keep(handle, work.clone());
        Some(work)
    }

    /// What one element gets, if the elements of its array get something.
    pub(super) fn input(&mut self, handle: u64, index: u32, store: &dyn Store, shard: Shard) -> Option<Bytes> {
        let inputs = self.inputs.get_mut(&handle)?;
        if inputs.each.is_none() {
            let bytes = store.blob(shard, BlobId(inputs.blob)).ok()??;
            inputs.each = Some(Array::decode(Bytes::from(bytes)).ok()?.inputs);
        }
        inputs.each.as_ref()?.get(index as usize).cloned()
    }
}

/// Inputs as the store keeps them.
pub(super) fn encode_inputs(inputs: Vec<Bytes>) -> Vec<u8> {
    Array { inputs, ..Array::default() }.encode_to_vec()
}
