//! Concurrency keys in the naive scheduler: who is let in, and how the tasks of a key follow its limit.

use filch_core::{Cause, KeyId, Status, TaskId};

use crate::model::{Model, Where};

impl Model {
    /// The first task that waits for a key may queue, if there is a token.
    pub(crate) fn offer_next(&mut self, key: KeyId) {
        if let Some(next) = self.let_next_in(key) {
            self.offer_first(next, self.portion, Vec::new());
        }
    }

    pub(crate) fn let_next_in(&mut self, key: KeyId) -> Option<TaskId> {
        if self.tokens_free(key) == 0 {
            return None;
        }
        let waiting = self.tasks.iter().filter(|task| task.state == Where::ForKey && task.spec.key == Some(key));
        let next = waiting.min_by_key(|task| task.place()).map(|task| task.id)?;
        let task = self.task_mut(next);
        task.offered = true;
        Some(next)
    }

    /// The first task of a key, from this one on, that somebody can run queues; nobody's are parked, those without their
    /// home fail. At most so many of them, then the key keeps to what it has let in.
    pub(crate) fn offer_first(&mut self, mut id: TaskId, most: usize, mut homeless: Vec<TaskId>) -> usize {
        let mut handled = 0;
        loop {
            handled += 1;
            let spec = self.task(id).spec.clone();
            let stays = match spec.pin {
                Some(pin) => self.knows(pin),
                None => self.workers.is_empty() || self.has_host(&spec),
            };
            if stays {
                self.offer(id, None);
                break;
            }
            self.task_mut(id).offered = false;
            self.task_mut(id).state = Where::Nowhere;
            let key = spec.key.expect("only tasks with a key are let in by it");
            let next = if handled < most { self.let_next_in(key) } else { None };
            if handled == most {
                self.settle_limit(key);
            }
            if spec.pin.is_some() {
                homeless.push(id);
            } else {
                self.park(id);
            }
            let Some(next) = next else { break };
            id = next;
        }
        for id in homeless {
            self.settle(id, None, Status::Failed, Cause::NoWorker);
        }
        handled
    }

    /// Tasks of a key are let in or out as its limit wants, a portion of them.
    pub(crate) fn follow_limit(&mut self, key: KeyId) {
        self.in_force.retain(|entry| entry.0 != key);
        let mut left = self.portion;
        while left > 0 && self.promised(key) > self.limit_set(key) {
            let Some(last) = self.offered(key).last().copied() else { break };
            self.step_back(last);
            left -= 1;
        }
        while left > 0 {
            let Some(next) = self.let_next_in(key) else { break };
            left -= self.offer_first(next, left, Vec::new());
        }
        self.settle_limit(key);
    }

    fn promised(&self, key: KeyId) -> u32 {
        self.tokens_held(key) + self.offered(key).len() as u32
    }

    /// If not all tasks have followed, the limit in force is where they are.
    fn settle_limit(&mut self, key: KeyId) {
        self.in_force.retain(|entry| entry.0 != key);
        let (promised, limit) = (self.promised(key), self.limit_set(key));
        let waits = self.tasks.iter().any(|task| task.state == Where::ForKey && task.spec.key == Some(key));
        if (promised > limit && !self.offered(key).is_empty()) || (promised < limit && waits) {
            self.in_force.push((key, promised));
        }
    }
}
