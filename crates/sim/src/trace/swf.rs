//! The Standard Workload Format of the Parallel Workloads Archive: a job on every line, eighteen numbers each, comments
//! after `;`.
//!
//! A job holds its processors together, so the machine is one worker with as many cores.

use std::ops::Range;

use filch_core::config::ConfigErrors;
use filch_core::map::Map;

use super::Imported;
use super::draft::{Draft, Entry, Field, Takes, Wrong};
use super::lines::{Lines, Source};
use crate::cluster::Class;

/// Numbers of a line.
const FIELDS: usize = 18;
/// What they say, where anybody goes by them.
const JOB: usize = 0;
const SUBMIT: usize = 1;
const RUN: usize = 3;
const ALLOCATED: usize = 4;
const USED_MEMORY: usize = 6;
const REQUESTED: usize = 7;
const REQUESTED_TIME: usize = 8;
const REQUESTED_MEMORY: usize = 9;
const USER: usize = 11;
const EXECUTABLE: usize = 13;
const BEFORE: usize = 16;
const THINKING: usize = 17;

/// Whether a first line is that of such a log.
pub(super) fn is_first(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with(';') || line.starts_with(|c: char| c.is_ascii_digit()) && line.split_whitespace().count() > 4
}

/// Reads a file of which the first line was read already.
pub(super) fn read(source: Source<'_>, lines: &mut Lines<'_>, first: &str) -> Result<Imported, ConfigErrors> {
    let name = source.label.rsplit('/').next().unwrap_or(source.label);
    let name = name.trim_end_matches(".gz").trim_end_matches(".swf");
    let mut log = Log { draft: Draft::new(name), ..Log::new(source) };
    log.line((lines.number, first))?;
    while let Some(line) = lines.next()? {
        log.line(line)?;
    }
    log.finish()
}

struct Log<'a> {
    source: Source<'a>,
    draft: Draft,
    /// Processors of the machine, as the comments say.
    processors: Option<f64>,
    widest: f64,
    never_ran: u64,
    thinking: u64,
    /// Jobs that never ran: nobody can wait for them.
    left_out: Map<u64, ()>,
    /// Jobs that waited for one that never ran.
    freed: u64,
}

impl<'a> Log<'a> {
    fn new(source: Source<'a>) -> Log<'a> {
        Log {
            source,
            draft: Draft::new(""),
            processors: None,
            widest: 1.0,
            never_ran: 0,
            thinking: 0,
            left_out: Map::default(),
            freed: 0,
        }
    }

    fn line(&mut self, line: (u32, &str)) -> Result<(), ConfigErrors> {
        if let Some(comment) = line.1.trim_start().strip_prefix(';') {
            self.comment(comment);
            return Ok(());
        }
        let numbers = self.numbers(line)?;
        if numbers[RUN] < 0.0 || numbers[ALLOCATED].max(numbers[REQUESTED]) <= 0.0 {
            // Cancelled before it began, or nothing is known of it.
            self.never_ran += 1;
            self.left_out.insert(numbers[JOB] as u64, ());
            return Ok(());
        }
        let id = format!("j{}", numbers[JOB]);
        let user = if numbers[USER] >= 0.0 { format!("user{}", numbers[USER]) } else { String::new() };
        let kind = match (numbers[EXECUTABLE] >= 0.0, user.is_empty()) {
            (true, false) => format!("{user}/app{}", numbers[EXECUTABLE]),
            (true, true) => format!("app{}", numbers[EXECUTABLE]),
            (false, _) => user,
        };
        let cpus = if numbers[ALLOCATED] > 0.0 { numbers[ALLOCATED] } else { numbers[REQUESTED] };
        self.widest = self.widest.max(cpus);
        // Kilobytes for each processor.
        let memory =
            numbers[REQUESTED_MEMORY].max(if numbers[REQUESTED_MEMORY] < 0.0 { numbers[USED_MEMORY] } else { 0.0 });
        let before = (numbers[BEFORE] > 0.0).then(|| format!("j{}", numbers[BEFORE]));
        let before = before.filter(|_| {
            let gone = self.left_out.contains_key(&(numbers[BEFORE] as u64));
            self.freed += u64::from(gone);
            !gone
        });
        self.thinking += u64::from(before.is_some() && numbers[THINKING] > 0.0);
        let entry = Entry {
            id: &id,
            kind: &kind,
            at: numbers[SUBMIT],
            run: Takes::Same(numbers[RUN]),
            estimate: numbers[REQUESTED_TIME].max(0.0),
            cpus,
            memory: memory.max(0.0) * 1024.0 * cpus,
            ..Entry::new(line.0)
        };
        let added = self.draft.add(&entry, before.iter().map(|before| (before.as_str(), 0.0)));
        added.map_err(|wrong| place(self.source, line, &wrong))
    }

    fn comment(&mut self, comment: &str) {
        if let Some((key, value)) = comment.split_once(':')
            && let Ok(value) = value.trim().parse::<f64>()
            && value >= 1.0
        {
            match key.trim() {
                "MaxProcs" => self.processors = Some(value),
                // Where nothing else is said a node is a processor.
                "MaxNodes" => self.processors = self.processors.or(Some(value)),
                _ => {}
            }
        }
    }

    fn numbers(&self, line: (u32, &str)) -> Result<[f64; FIELDS], ConfigErrors> {
        let mut numbers = [-1.0; FIELDS];
        let mut count = 0;
        for (at, place) in words(line.1).enumerate() {
            count += 1;
            let Some(known) = numbers.get_mut(at) else { continue };
            let word = &line.1[place.clone()];
            match word.parse::<f64>() {
                Ok(value) if value.is_finite() => *known = value,
                _ => {
                    let message = format!("field {} should be a number and is `{}`", at + 1, super::draft::shown(word));
                    return Err(self.source.wrong_at(line, place, message, Some("what is unknown is -1")));
                }
            }
        }
        if count != FIELDS {
            let message = format!("a job has {FIELDS} fields and this line has {count}");
            let help = Some("fields are divided by blanks, and what is unknown is -1");
            return Err(self.source.wrong_at(line, 0..line.1.len(), message, help));
        }
        for (at, what) in [(JOB, "the number of a job"), (SUBMIT, "the time of submission")] {
            if numbers[at] < 0.0 || at == JOB && (numbers[at] % 1.0 != 0.0 || numbers[at] > 1e15) {
                let place = words(line.1).nth(at).unwrap_or(0..0);
                let message = format!("{} is not {what}", numbers[at]);
                return Err(self.source.wrong_at(line, place, message, Some("it is 0 or more, and always known")));
            }
        }
        Ok(numbers)
    }

    fn finish(self) -> Result<Imported, ConfigErrors> {
        let Log { source, draft, processors, widest, never_ran, thinking, freed, .. } = self;
        if draft.len() == 0 {
            return Err(source.wrong("there is no job in it that ran".to_owned(), None));
        }
        let least_cpus = draft.least_cpus;
        let finished = draft.finish();
        let mut workload = finished.map_err(|(number, wrong)| place(source, (number, &source.line(number)), &wrong))?;
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                workload.notes.push(format!("{count} {what}"));
            }
        };
        note(never_ran, "jobs never ran and are left out");
        note(freed, "jobs waited for one that never ran, and wait for nobody here");
        note(thinking, "jobs begin when the one before has ended: the time somebody thought in between is left out");
        let cores = processors.unwrap_or(widest).max(widest);
        if processors.is_some_and(|processors| processors < widest) {
            note(1, &format!("job asks for {widest} processors, more than the log says there are"));
        }
        let cluster = vec![Class { cores: Some(cores), ..Class::plain(1) }];
        let mut imported = Imported { workload, cluster, ..Imported::default() };
        imported.make_slots(least_cpus);
        Ok(imported)
    }
}

/// The places of the words of a line.
fn words(line: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    line.split_whitespace().map(move |word| {
        let start = word.as_ptr() as usize - line.as_ptr() as usize;
        start..start + word.len()
    })
}

fn place(source: Source<'_>, line: (u32, &str), wrong: &Wrong) -> ConfigErrors {
    let field = match wrong.field {
        Field::At => SUBMIT,
        Field::Run | Field::RunOn(_) => RUN,
        Field::Dep(_) | Field::DepBytes(_) => BEFORE,
        Field::Cpus | Field::Gpus | Field::Model => ALLOCATED,
        Field::Memory => REQUESTED_MEMORY,
        Field::Estimate => REQUESTED_TIME,
        Field::Id | Field::Read | Field::Written => JOB,
    };
    let bytes = words(line.1).nth(field).unwrap_or(0..line.1.len());
    source.wrong_at(line, bytes, wrong.message.clone(), wrong.help.as_deref())
}
