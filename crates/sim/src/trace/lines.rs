//! A file read line by line, plain or gzipped, and what is wrong with one of them.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::ops::Range;

use filch_core::config::{ConfigErrors, Place, Problem};
use flate2::bufread::MultiGzDecoder;

/// Opens a file from its start. Called again to show a line that turned out to be wrong later.
pub type Open<'a> = dyn Fn() -> io::Result<Box<dyn Read + 'a>> + 'a;

/// Bytes of a line at most: no task is described with more.
const LONGEST: u64 = 64 << 20;
/// Bytes of a file that has to be read at once at most.
const LARGEST: u64 = 1 << 30;

/// A file and its name.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) open: &'a Open<'a>,
    pub(super) label: &'a str,
}

/// The lines of a file.
pub(super) struct Lines<'a> {
    source: Source<'a>,
    input: Box<dyn BufRead + 'a>,
    bytes: Vec<u8>,
    /// The line that was read last, from 1.
    pub(super) number: u32,
}

impl<'a> Source<'a> {
    /// What is wrong with the whole file.
    pub(super) fn wrong(&self, message: String, help: Option<&str>) -> ConfigErrors {
        let problem = Problem { key: String::new(), message, help: help.map(str::to_owned), place: None };
        ConfigErrors::new(self.label, vec![problem])
    }

    /// What is wrong with some bytes of a line.
    pub(super) fn wrong_at(
        &self,
        (line, text): (u32, &str),
        bytes: Range<usize>,
        message: String,
        help: Option<&str>,
    ) -> ConfigErrors {
        let characters = |bytes: Range<usize>| text.get(bytes).map_or(0, |part| part.chars().count());
        let place = Place {
            line: line as usize,
            column: characters(0..bytes.start) + 1,
            length: characters(bytes).max(1),
            text: text.to_owned(),
        };
        let problem = Problem { key: String::new(), message, help: help.map(str::to_owned), place: Some(place) };
        ConfigErrors::new(self.label, vec![problem])
    }

    fn unreadable(&self, error: &io::Error) -> ConfigErrors {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match error.kind() {
            UnexpectedEof => self.wrong(
                "the compressed data end too soon".to_owned(),
                Some("the file was cut off; get it again, and `gzip -t` says whether it is whole"),
            ),
            InvalidData | InvalidInput => self.wrong(
                format!("the compressed data are damaged: {error}"),
                Some("get the file again; `gzip -t` says whether it is whole"),
            ),
            _ => self.wrong(format!("cannot be read: {error}"), None),
        }
    }

    /// Its text, unpacked.
    fn input(&self) -> Result<Box<dyn BufRead + 'a>, ConfigErrors> {
        let mut file = (self.open)().map_err(|error| self.wrong(format!("cannot be read: {error}"), None))?;
        let mut start = [0; 2];
        let mut known = 0;
        while known < 2 {
            match file.read(&mut start[known..]) {
                Ok(0) => break,
                Ok(count) => known += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
        let whole = Cursor::new(start).take(known as u64).chain(file);
        Ok(match start {
            [0x1f, 0x8b] => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(BufReader::new(whole)))),
            _ => Box::new(BufReader::with_capacity(1 << 16, whole)),
        })
    }

    /// Its lines.
    pub(super) fn lines(self) -> Result<Lines<'a>, ConfigErrors> {
        Ok(Lines { source: self, input: self.input()?, bytes: Vec::new(), number: 0 })
    }

    /// One line again; nothing if it is not there any more.
    pub(super) fn line(self, number: u32) -> String {
        let Ok(mut lines) = self.lines() else { return String::new() };
        while let Ok(Some(text)) = lines.next() {
            if text.0 == number {
                return text.1.to_owned();
            }
        }
        String::new()
    }

    /// All of it.
    pub(super) fn text(&self) -> Result<String, ConfigErrors> {
        let mut bytes = Vec::new();
        self.input()?.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| self.unreadable(&error))?;
        if bytes.len() as u64 > LARGEST {
            return Err(self.wrong("is larger than 1 GiB".to_owned(), None));
        }
        String::from_utf8(bytes).map_err(|error| self.wrong(format!("is no UTF-8 text: {}", error.utf8_error()), None))
    }
}

impl Lines<'_> {
    /// The next line that is not blank, with its number.
    pub(super) fn next(&mut self) -> Result<Option<(u32, &str)>, ConfigErrors> {
        loop {
            self.bytes.clear();
            let read = self.input.by_ref().take(LONGEST + 1).read_until(b'\n', &mut self.bytes);
            if read.map_err(|error| self.source.unreadable(&error))? == 0 {
                return Ok(None);
            }
            self.number = self.number.saturating_add(1);
            if self.bytes.len() as u64 > LONGEST {
                let message = format!("line {} is longer than 64 MiB", self.number);
                return Err(self.source.wrong(message, Some("every task is a line of its own")));
            }
            if self.bytes.iter().any(|byte| !byte.is_ascii_whitespace()) {
                break;
            }
        }
        let bytes = match (self.number, self.bytes.as_slice()) {
            (1, [0xef, 0xbb, 0xbf, rest @ ..]) => rest,
            (_, bytes) => bytes,
        };
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some((self.number, text.trim_end_matches(['\n', '\r'])))),
            Err(error) => {
                let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                let end = good.len();
                let message = "this is no UTF-8 text".to_owned();
                Err(self.source.wrong_at((self.number, &good), end..end, message, None))
            }
        }
    }
}
