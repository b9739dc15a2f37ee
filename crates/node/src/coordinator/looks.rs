//! Those who look on while a task writes: each sees all of it, once and in order, however late it comes and wherever the
//! task goes.
//!
//! What comes from workers says where it stands in its stream; what somebody has seen is left out. What never came this way
//! is told from what the worker says at the end. Keeps no output itself.

use bytes::Bytes;
use filch_core::TaskId;
use filch_core::wire::talk::{Chunk, Ending, Logs, Look, Said};

use super::desk::Desk;
use super::endings::{kept_of, nothing_of};
use super::requests::{No, unknown_task};

/// Said where something was written that could not be shown.
const GAP: &[u8] = b"[filch: some output is not shown here]\n";

/// Somebody who looks on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looker {
    pub(super) request: u64,
    pub(super) task: TaskId,
    seen: Seen,
}

/// How much somebody has seen, of which attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    attempt: u32,
    /// Bytes of standard output and of standard error.
    bytes: [u64; 2],
}

impl Seen {
    pub(super) fn of(logs: &Logs) -> Seen {
        Seen { attempt: logs.attempt, bytes: [logs.seen_stdout, logs.seen_stderr] }
    }

    /// The part of a chunk that is new, which counts as seen from now on; and before it that something is missing, if so.
    fn new_part(&mut self, chunk: &Chunk) -> Vec<Chunk> {
        if chunk.attempt < self.attempt {
            return Vec::new();
        }
        if chunk.attempt > self.attempt {
            *self = Seen { attempt: chunk.attempt, bytes: [0; 2] };
        }
        let seen = &mut self.bytes[usize::from(chunk.stderr)];
        let known = usize::try_from(seen.saturating_sub(chunk.offset)).unwrap_or(usize::MAX);
        if known >= chunk.bytes.len() {
            return Vec::new();
        }
        let notice = Chunk { bytes: Bytes::from_static(GAP), stderr: chunk.stderr, ..Chunk::default() };
        let gap = (chunk.offset > *seen).then_some(notice);
        let bytes = chunk.bytes.slice(known..);
        let offset = chunk.offset + known as u64;
        *seen = offset + bytes.len() as u64;
        gap.into_iter().chain([Chunk { bytes, offset, ..chunk.clone() }]).collect()
    }

    /// What is left of all that an attempt wrote.
    pub(super) fn rest(mut self, ending: &Ending) -> Vec<Chunk> {
        let streams = [(false, &ending.stdout, ending.stdout_left_out), (true, &ending.stderr, ending.stderr_left_out)];
        let mut rest = Vec::new();
        for (stderr, bytes, left_out) in streams {
            let mut chunk = Chunk { task: 0, stderr, bytes: bytes.clone(), offset: 0, attempt: ending.attempt };
            let seen = if ending.attempt > self.attempt { 0 } else { self.bytes[usize::from(stderr)] };
            if left_out > 0 && seen > 0 {
                // Of what was kept nobody can say where it stood.
                if seen < left_out + bytes.len() as u64 {
                    chunk.bytes = Bytes::from_static(b"[filch: `filch task logs` shows what is kept of the rest]\n");
                    rest.push(chunk);
                }
                continue;
            }
            rest.extend(self.new_part(&chunk));
        }
        rest
    }
}

impl Desk {
    pub(super) fn logs(&mut self, connection: u64, id: u64, logs: &Logs) -> Result<(), No> {
        let name = logs.name.clone().unwrap_or_default();
        let index = name.index.unwrap_or(0);
        let task = name.task.map(TaskId::from_bits).or_else(|| self.jobs.at(name.job, index));
        let Some(task) = task.filter(|task| self.jobs.note(*task).is_some()) else {
            if self.jobs.get(name.job).is_some_and(|job| u64::from(index) >= job.card.total) {
                return Err(No::because(unknown_task(name.job, index)));
            }
            self.past_output(connection, id, (name.job, index), Seen::of(logs), logs.only);
            return Ok(());
        };
        if logs.only > 0 {
            if let Some(kept) = kept_of(self.jobs.earlier(task), logs.only) {
                self.kept_output(connection, id, kept);
                return Ok(());
            }
            let made = self.attempts(task);
            if logs.only != made {
                return Err(No::because(nothing_of(logs.only, made)));
            }
        }
        if !logs.follow {
            return Err(No::because("the task has not ended; `filch task logs -f` shows what it writes as it comes"));
        }
        let Some(found) = self.connections.get_mut(&connection) else { return Ok(()) };
        found.looks.push(Looker { request: id, task, seen: Seen::of(logs) });
        self.looked_at.entry(task).or_default().push(connection);
        if let Some(holder) = self.jobs.live(task).and_then(|live| self.seat(live.worker)?.connection) {
            self.ask_to_show(holder, task);
        }
        Ok(())
    }

    /// A task begins with a worker: if somebody looks on, that is to show what it writes.
    pub(super) fn show_begun(&mut self, connection: u64, task: TaskId) {
        if self.looked_at.contains_key(&task) {
            self.ask_to_show(connection, task);
        }
    }

    fn ask_to_show(&mut self, holder: u64, task: TaskId) {
        if let Some(packet) = self.parcel(holder) {
            packet.looks.push(Look { task: task.to_bits(), stop: false });
        }
    }

    /// A task has ended: those who look on see the rest of it.
    pub(super) fn end_looks(&mut self, task: TaskId, ending: Option<&Ending>) {
        for (connection, looker) in self.lookers(task) {
            if let Some(found) = self.connections.get_mut(&connection) {
                found.looks.retain(|entry| entry.request != looker.request);
            }
            for chunk in ending.map(|ending| looker.seen.rest(ending)).unwrap_or_default() {
                self.reply_when_durable(connection, looker.request, Said::Output(chunk));
            }
            self.reply_when_durable(connection, looker.request, Said::Done(true));
        }
        self.looked_at.remove(&task);
    }

    /// A worker is gone: if it was about to stop a task that is settled, nobody says more of that.
    pub(super) fn end_looks_of_settled(&mut self) {
        let settled: Vec<TaskId> =
            self.looked_at.keys().copied().filter(|task| self.jobs.note(*task).is_none()).collect();
        settled.into_iter().for_each(|task| self.end_looks(task, None));
    }

    /// One of those who look on at a connection does so no longer.
    pub(super) fn look_away(&mut self, task: TaskId, connection: u64) {
        let Some(connections) = self.looked_at.get_mut(&task) else { return };
        if let Some(at) = connections.iter().position(|&known| known == connection) {
            connections.swap_remove(at);
        }
        if connections.is_empty() {
            self.looked_at.remove(&task);
        }
    }

    /// The connections at which somebody looks on, each once.
    fn connections_looking(&self, task: TaskId) -> Vec<u64> {
        let mut connections = self.looked_at.get(&task).cloned().unwrap_or_default();
        connections.sort_unstable();
        connections.dedup();
        connections
    }

    fn lookers(&self, task: TaskId) -> Vec<(u64, Looker)> {
        let mut all = Vec::new();
        for connection in self.connections_looking(task) {
            let looks = self.connections.get(&connection).map_or(&[][..], |found| &found.looks);
            all.extend(looks.iter().filter(|looker| looker.task == task).map(|&looker| (connection, looker)));
        }
        all
    }

    /// What a running task writes goes to those who look on.
    pub(super) fn pass_output(&mut self, chunk: &Chunk) {
        let task = TaskId::from_bits(chunk.task);
        let mut news = Vec::new();
        for connection in self.connections_looking(task) {
            let Some(found) = self.connections.get_mut(&connection) else { continue };
            for looker in found.looks.iter_mut().filter(|looker| looker.task == task) {
                news.extend(looker.seen.new_part(chunk).into_iter().map(|chunk| (connection, looker.request, chunk)));
            }
        }
        for (connection, request, chunk) in news {
            self.reply(connection, request, Said::Output(chunk));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(attempt: u32, offset: u64, text: &'static str) -> Chunk {
        Chunk { task: 1, stderr: false, bytes: Bytes::from_static(text.as_bytes()), offset, attempt }
    }

    fn text(chunks: &[Chunk]) -> String {
        chunks.iter().map(|chunk| String::from_utf8(chunk.bytes.to_vec()).unwrap()).collect()
    }

    #[test]
    fn nothing_is_seen_twice_and_another_attempt_begins_anew() {
        let mut seen = Seen::default();
        assert_eq!(text(&seen.new_part(&chunk(1, 0, "abc"))), "abc");
        assert_eq!(text(&seen.new_part(&chunk(1, 0, "abcdef"))), "def");
        assert_eq!(text(&seen.new_part(&chunk(1, 2, "cdef"))), "");
        assert_eq!(text(&seen.new_part(&chunk(1, 7, "h"))), "[filch: some output is not shown here]\nh");
        assert_eq!(text(&seen.new_part(&chunk(2, 0, "abc"))), "abc");
        assert_eq!(text(&seen.new_part(&chunk(1, 6, "ghi"))), "", "of an attempt that was given up");
    }

    #[test]
    fn at_the_end_the_rest_is_seen() {
        let ending = |left_out| Ending {
            attempt: 2,
            stdout: Bytes::from_static(b"abcdef"),
            stderr: Bytes::from_static(b"xy"),
            stdout_left_out: left_out,
            ..Ending::default()
        };
        let rest = |seen: Seen, left_out| -> Vec<String> {
            seen.rest(&ending(left_out)).into_iter().map(|chunk| text(&[chunk])).collect()
        };
        assert_eq!(rest(Seen { attempt: 2, bytes: [4, 2] }, 0), ["ef"]);
        assert_eq!(rest(Seen { attempt: 1, bytes: [4, 2] }, 0), ["abcdef", "xy"]);
        assert_eq!(rest(Seen { attempt: 2, bytes: [106, 2] }, 100), Vec::<String>::new());
        assert!(rest(Seen { attempt: 2, bytes: [50, 2] }, 100)[0].contains("shows what is kept of the rest"));
    }
}
