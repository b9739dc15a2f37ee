//! Looks for damage in a write-ahead log that SQLite would pass over in silence.
//!
//! SQLite reads a log up to the first frame whose checksum is wrong and takes the rest for a commit that a crash cut short.
//! That is right for the last commit only: every one before it was written through before the next began. So a commit
//! with frames of the same log behind it that cannot be reached is damage, and what it held was acknowledged. A log
//! whose end is missing cannot be told from a shorter one.
//!
//! Only reads.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::Error;

const HEADER: usize = 32;
const FRAME: usize = 24;

/// Refuses a log with commits that nobody would find.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::system(path, error)),
    };
    let length = file.metadata().map_err(|error| Error::system(path, error))?.len();
    match survey(BufReader::with_capacity(1 << 16, file), length) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(Error::damaged(path, what)),
        Err(error) => Err(Error::system(path, error)),
    }
}

/// What is wrong with a log of this length, if anything is.
fn survey(mut log: impl Read, length: u64) -> io::Result<Option<String>> {
    // The header is written through before the first frame, so without frames it may be anything.
    if length <= HEADER as u64 {
        return Ok(None);
    }
    let mut header = [0; HEADER];
    log.read_exact(&mut header)?;
    let big_endian = match word(&header, 0) {
        0x377f_0682 => false,
        0x377f_0683 => true,
        _ => return Ok(Some("the write-ahead log does not start like one".to_owned())),
    };
    let mut sum = Sum { first: 0, second: 0, big_endian };
    sum.add(&header[..24]);
    let page = word(&header, 8) as usize;
    if !sum.is(word(&header, 24), word(&header, 28)) || !(512..=65536).contains(&page) {
        return Ok(Some("the start of the write-ahead log has a wrong checksum".to_owned()));
    }
    let salts = header[16..24].to_vec();
    let mut frame = vec![0; FRAME + page];
    let (mut broken_at, mut lost_commit) = (None, false);
    for number in 1..=(length - HEADER as u64) / frame.len() as u64 {
        log.read_exact(&mut frame)?;
        if frame[8..16] != salts[..] {
            // Left from before the log was started anew.
            broken_at.get_or_insert(number);
            continue;
        }
        if let (Some(broken), true) = (broken_at, lost_commit) {
            let what = format!("frame {broken} of the write-ahead log is wrong, and commits follow it");
            return Ok(Some(what));
        }
        let commits = word(&frame, 4) != 0;
        if broken_at.is_none() {
            sum.add(&frame[..8]);
            sum.add(&frame[FRAME..]);
            if sum.is(word(&frame, 16), word(&frame, 20)) {
                continue;
            }
            broken_at = Some(number);
        }
        lost_commit |= commits;
    }
    Ok(None)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |chunk| u32::from_be_bytes(*chunk))
}

/// The running checksum of a log.
struct Sum {
    first: u32,
    second: u32,
    big_endian: bool,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        let read = if self.big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
        for pair in bytes.as_chunks::<8>().0 {
            let [a, b, c, d, e, f, g, h] = *pair;
            self.first = self.first.wrapping_add(read([a, b, c, d])).wrapping_add(self.second);
            self.second = self.second.wrapping_add(read([e, f, g, h])).wrapping_add(self.first);
        }
    }

    fn is(&self, first: u32, second: u32) -> bool {
        self.first == first && self.second == second
    }
}
