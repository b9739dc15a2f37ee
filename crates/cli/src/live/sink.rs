//! Where the output of tasks goes: to standard output and error, whole tasks at a time and in order if wished, or to files
//! of their own.
//!
//! What waits for its turn is kept in memory up to a bound and in a temporary file beyond it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::job::Usage;
use crate::output::unwritten;

/// Bytes of outputs that wait in memory.
const IN_MEMORY: usize = 32 << 20;

/// Where outputs go.
#[derive(Debug)]
pub(crate) enum Sink {
    /// To nobody: somebody else shows them.
    Nowhere,
    /// To standard output and error, as they come.
    Streams,
    /// The same, in the order of the tasks.
    InOrder(Box<Waiting>),
    /// To files of a directory.
    Files(PathBuf),
}

/// Outputs that wait for those before them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    next: u32,
    held: BTreeMap<u32, Held>,
    in_memory: usize,
    spill: Option<File>,
    spilled: u64,
}

#[derive(Debug)]
enum Held {
    Memory(Bytes, Bytes),
    /// Where it is in the file, and how long its two parts are.
    Spilled(u64, usize, usize),
}

impl Sink {
    /// To files of a directory, which is made if it is not there.
    pub(crate) fn files(directory: &Path) -> Result<Sink, Usage> {
        std::fs::create_dir_all(directory).map_err(|error| {
            Usage::new(format!("cannot make the directory `{}`: {error}", directory.display()))
                .help("--out names a directory that you may write to")
        })?;
        Ok(Sink::Files(directory.to_owned()))
    }

    pub(crate) fn in_order() -> Sink {
        Sink::InOrder(Box::default())
    }

    /// A task ended that wrote this. `index` counts the tasks of the job, `number` is what people call it.
    pub(crate) fn task(
        &mut self,
        index: u32,
        number: i64,
        outputs: (Bytes, Bytes),
        to: &mut Streams<'_>,
    ) -> io::Result<()> {
        match self {
            Sink::Nowhere => Ok(()),
            Sink::Streams => to.write(&outputs.0, &outputs.1),
            Sink::InOrder(waiting) => waiting.task(index, outputs, to),
            Sink::Files(directory) => {
                for (end, output) in [("out", &outputs.0), ("err", &outputs.1)] {
                    let path = directory.join(format!("{number}.{end}"));
                    std::fs::write(&path, output)
                        .map_err(|error| unwritten(&format!("`{}`", path.display()), &error))?;
                }
                Ok(())
            }
        }
    }

    /// Nothing more comes: what waits for something that never came is shown now.
    pub(crate) fn finish(&mut self, to: &mut Streams<'_>) -> io::Result<()> {
        match self {
            Sink::InOrder(waiting) => waiting.finish(to),
            _ => Ok(()),
        }
    }
}

impl Waiting {
    fn task(&mut self, index: u32, outputs: (Bytes, Bytes), to: &mut Streams<'_>) -> io::Result<()> {
        if index == self.next {
            to.write(&outputs.0, &outputs.1)?;
            self.next += 1;
            while let Some(held) = self.held.remove(&self.next) {
                self.show(held, to)?;
                self.next += 1;
            }
            return Ok(());
        }
        let held =
            self.hold(outputs).map_err(|error| unwritten("outputs that wait for their turn to a file", &error))?;
        self.held.insert(index, held);
        Ok(())
    }

    fn hold(&mut self, (out, err): (Bytes, Bytes)) -> io::Result<Held> {
        let size = out.len() + err.len();
        if self.in_memory + size <= IN_MEMORY {
            self.in_memory += size;
            return Ok(Held::Memory(out, err));
        }
        let file = match &mut self.spill {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        let at = self.spilled;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&out)?;
        file.write_all(&err)?;
        self.spilled += size as u64;
        Ok(Held::Spilled(at, out.len(), err.len()))
    }

    fn show(&mut self, held: Held, to: &mut Streams<'_>) -> io::Result<()> {
        match held {
            Held::Memory(out, err) => {
                self.in_memory -= out.len() + err.len();
                to.write(&out, &err)
            }
            Held::Spilled(at, out, err) => {
                let mut bytes = vec![0; out + err];
                if let Some(file) = &mut self.spill {
                    file.seek(SeekFrom::Start(at))?;
                    file.read_exact(&mut bytes)?;
                }
                to.write(&bytes[..out], &bytes[out..])
            }
        }
    }

    fn finish(&mut self, to: &mut Streams<'_>) -> io::Result<()> {
        while let Some((_, held)) = self.held.pop_first() {
            self.show(held, to)?;
        }
        Ok(())
    }
}

/// Standard output and error, or what stands for them.
pub(crate) struct Streams<'a> {
    pub(crate) out: &'a mut dyn Write,
    pub(crate) err: &'a mut dyn Write,
}

impl Streams<'_> {
    fn write(&mut self, out: &[u8], err: &[u8]) -> io::Result<()> {
        if !err.is_empty() {
            let written = self.err.write_all(err).and_then(|()| self.err.flush());
            written.map_err(|error| unwritten("to standard error", &error))?;
        }
        if !out.is_empty() {
            let written = self.out.write_all(out).and_then(|()| self.out.flush());
            written.map_err(|error| unwritten("to standard output", &error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(sink: &mut Sink, tasks: &[(u32, &str)]) -> (String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut to = Streams { out: &mut out, err: &mut err };
        for (index, text) in tasks {
            let outputs = (Bytes::from(text.to_string()), Bytes::from(text.to_uppercase()));
            sink.task(*index, i64::from(*index) + 1, outputs, &mut to).unwrap();
        }
        sink.finish(&mut to).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn outputs_come_as_they_come_or_in_order() {
        let tasks = [(2, "c"), (0, "a"), (3, "d"), (1, "b"), (6, "g"), (5, "f")];
        assert_eq!(play(&mut Sink::Streams, &tasks), ("cadbgf".to_owned(), "CADBGF".to_owned()));
        assert_eq!(play(&mut Sink::in_order(), &tasks), ("abcdfg".to_owned(), "ABCDFG".to_owned()));
        assert_eq!(play(&mut Sink::Nowhere, &tasks).0, "");
    }

    #[test]
    fn what_is_too_much_for_memory_waits_in_a_file() {
        let mut sink = Sink::in_order();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut to = Streams { out: &mut out, err: &mut err };
        let big = |letter: u8| (Bytes::from(vec![letter; IN_MEMORY / 2]), Bytes::from_static(b"e"));
        for (index, letter) in [(3, b'd'), (2, b'c'), (1, b'b'), (0, b'a')] {
            sink.task(index, 0, big(letter), &mut to).unwrap();
        }
        let Sink::InOrder(waiting) = &sink else { unreachable!() };
        assert!(waiting.spilled > 0 && waiting.in_memory == 0 && waiting.held.is_empty());
        out.dedup();
        assert_eq!((out.as_slice(), err.as_slice()), (&b"abcd"[..], &b"eeee"[..]));
    }

    #[test]
    fn files_are_called_by_the_numbers_of_the_tasks() {
        let directory = tempfile::tempdir().unwrap();
        let mut sink = Sink::files(&directory.path().join("new")).unwrap();
        assert_eq!(play(&mut sink, &[(4, "x")]).0, "");
        assert_eq!(std::fs::read(directory.path().join("new/5.out")).unwrap(), b"x");
        assert_eq!(std::fs::read(directory.path().join("new/5.err")).unwrap(), b"X");
    }
}
