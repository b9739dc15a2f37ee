//! How groups, chunks and blobs lie in their rows: a checksum over where they belong and what they hold, then the bytes.
//!
//! The checksum covers the place too, so that a row that wandered is noticed as well as one that rotted.

use super::{Epoch, Error, Place, Shard};

/// The bytes of the checksum in front.
const SUM: usize = 4;

/// Numbers that say where bytes belong.
pub(super) type Address = [u64; 3];

fn checksum(address: Address, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for number in address {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(bytes);
    hasher.finalize()
}

/// Bytes with their checksum in front.
pub(super) fn seal(address: Address, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(SUM + bytes.len());
    sealed.extend_from_slice(&checksum(address, bytes).to_le_bytes());
    sealed.extend_from_slice(bytes);
    sealed
}

/// The bytes behind a checksum; nothing if it is not theirs.
pub(super) fn open(address: Address, sealed: &[u8]) -> Option<&[u8]> {
    let (sum, bytes) = sealed.split_first_chunk::<SUM>()?;
    (u32::from_le_bytes(*sum) == checksum(address, bytes)).then_some(bytes)
}

/// What a group's checksum covers besides its bytes.
fn group_address(shard: Shard, place: Place, epoch: Epoch) -> Address {
    [u64::from(shard.0), place.0, epoch.0]
}

/// A group that grows, laid out as its row will be.
#[derive(Debug)]
pub(super) struct Growing {
    bytes: Vec<u8>,
}

impl Growing {
    pub(super) fn new() -> Growing {
        Growing { bytes: vec![0; SUM] }
    }

    /// Adds the records of one append.
    pub(super) fn push(&mut self, records: &[u8]) -> Result<(), Error> {
        let length = u32::try_from(records.len()).map_err(|_| Error::TooMuch {
            what: format!("an entry of {} bytes", records.len()),
            most: u64::from(u32::MAX),
        })?;
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(records);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The row, now that it is known where it goes.
    pub(super) fn finish(mut self, shard: Shard, place: Place, epoch: Epoch) -> Vec<u8> {
        let sum = checksum(group_address(shard, place, epoch), &self.bytes[SUM..]);
        self.bytes[..SUM].copy_from_slice(&sum.to_le_bytes());
        self.bytes
    }
}

/// The entries of a group's row; nothing if it is not what was written.
pub(super) fn entries(shard: Shard, place: Place, epoch: Epoch, row: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut rest = open(group_address(shard, place, epoch), row)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (entry, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        entries.push(entry.to_vec());
        rest = after;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_comes_back_from_its_own_place_only() {
        let mut growing = Growing::new();
        for records in [&b"one"[..], b"", b"three"] {
            growing.push(records).unwrap();
        }
        let row = growing.finish(Shard(2), Place(7), Epoch(3));
        let back = entries(Shard(2), Place(7), Epoch(3), &row).unwrap();
        assert_eq!(back, [b"one".to_vec(), b"".to_vec(), b"three".to_vec()]);
        assert_eq!(entries(Shard(1), Place(7), Epoch(3), &row), None);
        assert_eq!(entries(Shard(2), Place(8), Epoch(3), &row), None);
        assert_eq!(entries(Shard(2), Place(7), Epoch(4), &row), None);
        for position in 0..row.len() {
            let mut changed = row.clone();
            changed[position] ^= 0x10;
            assert_eq!(entries(Shard(2), Place(7), Epoch(3), &changed), None, "byte {position}");
            assert_eq!(entries(Shard(2), Place(7), Epoch(3), &row[..position]), None, "cut at {position}");
        }
    }
}
