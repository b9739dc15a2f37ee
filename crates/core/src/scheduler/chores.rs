//! What one event must not finish at once goes on in the following steps, a portion in each.
//!
//! While something is left, `next_timer` asks for another step at once. Never decides anything by itself: it only brings
//! what was decided to everybody it concerns.

use super::{Directory, EWMA_ALPHA, Placement, Scheduler};
use crate::action::Action;
use crate::ids::NONE;
use crate::policy::{Order, Policy};
use crate::steal::VictimChooser;

/// Tasks of a key that one step lets in or out.
pub(crate) const PORTION: usize = 256;
/// Slots of workers that one step enters into directories or takes out of them.
const LISTED_PER_STEP: usize = 1024;
/// Affinity keys that one step looks through for workers that have gone.
const WARM_PER_STEP: usize = 256;

impl Scheduler {
    /// Does a portion of everything that earlier steps have left.
    pub(super) fn go_on(&mut self, actions: &mut Vec<Action>) {
        self.unfinished = false;
        self.list_on();
        self.forget_gone_on();
        self.go_on_with_hosts(actions);
        if let Some(key) = self.keys.first_moving() {
            self.follow_limit(key, actions);
        }
        self.unfinished |= self.keys.first_moving().is_some();
    }

    /// Uses a policy at a place among the policies, or at a new one. Which.
    pub(super) fn set_placement(&mut self, at: Option<usize>, policy: Box<dyn Policy>) -> usize {
        let wanted = self.directory_for(policy.order());
        // Until the directory it wants is whole it chooses from the one that was used so far.
        let directory = self.placements.get(at.unwrap_or(0)).map_or(wanted, |placement| placement.directory);
        self.directories[wanted].users += 1;
        self.directories[directory].users += 1;
        let average = self.average_for(policy.alpha().unwrap_or(EWMA_ALPHA), at.unwrap_or(self.placements.len()));
        let threshold = policy.steals_above();
        let chooser = threshold.map(|threshold| VictimChooser::longest_above(&self.config.stealing, threshold));
        let placement = Placement { policy, directory, wanted, average, chooser };
        let at = match at.and_then(|at| Some((at, self.placements.get_mut(at)?))) {
            Some((at, known)) => {
                let before = std::mem::replace(known, placement);
                self.directories[before.directory].users -= 1;
                self.directories[before.wanted].users -= 1;
                self.replaced = Some(before.policy);
                at
            }
            None => {
                self.placements.push(placement);
                self.placements.len() - 1
            }
        };
        self.list_on();
        at
    }

    /// The directory in that order, perhaps one that nobody stands in yet.
    fn directory_for(&mut self, order: Order) -> usize {
        if let Some(at) = self.orders.iter().position(|known| *known == order) {
            return at;
        }
        let free = |directory: &Directory| directory.users == 0 && directory.covered == 0;
        if let Some(at) = self.directories.iter().position(free) {
            self.orders[at] = order;
            return at;
        }
        self.orders.push(order);
        self.directories.push(Directory::default());
        self.orders.len() - 1
    }

    /// Lists workers in directories that are wanted and takes them out of those that are not, as many as one step may.
    fn list_on(&mut self) {
        let mut left = LISTED_PER_STEP;
        while left > 0
            && let Some(at) = self.directories.iter().position(|directory| !directory.is_settled())
        {
            left = if self.directories[at].users > 0 { self.fill(at, left) } else { self.empty(at, left) };
        }
        self.unfinished |= self.directories.iter().any(|directory| !directory.is_settled());
    }

    /// Lists workers in a directory; how many more slots this step may look at.
    fn fill(&mut self, at: usize, mut left: usize) -> usize {
        let slots = self.worker_generations.len() as u32;
        while left > 0 {
            let slot = self.directories[at].covered;
            if slot >= slots {
                self.directories[at].covered = NONE;
                self.switch_to(at);
                break;
            }
            left -= 1;
            self.looked_at += 1;
            self.directories[at].covered += 1;
            if let Some(worker) = self.workers.get(slot)
                && worker.listed
            {
                let class = worker.class;
                let key = self.directory_key(slot, self.orders[at]);
                self.enter_directory(at, class, key, slot);
            }
        }
        left
    }

    /// Takes workers out of a directory, the last first; how many more slots this step may look at.
    fn empty(&mut self, at: usize, mut left: usize) -> usize {
        let slots = self.worker_generations.len() as u32;
        let directory = &mut self.directories[at];
        directory.covered = directory.covered.min(slots);
        while left > 0 && directory.covered > 0 {
            left -= 1;
            self.looked_at += 1;
            directory.covered -= 1;
            let slot = directory.covered;
            if let Some(worker) = self.workers.get(slot)
                && worker.listed
            {
                directory.remove(worker.class, worker.keys[at], slot);
            }
        }
        left
    }

    /// The policies that waited for a directory choose from it now.
    fn switch_to(&mut self, at: usize) {
        for placement in &mut self.placements {
            if placement.wanted == at && placement.directory != at {
                let before = std::mem::replace(&mut placement.directory, at);
                self.directories[before].users -= 1;
                self.directories[at].users += 1;
            }
        }
    }

    /// Lets the tasks of a key follow a limit that was set for it, as many as one step may.
    pub(super) fn follow_limit(&mut self, key: u32, actions: &mut Vec<Action>) {
        let mut left = self.portion;
        self.keys.apply_limit(key);
        while left > 0
            && let Some(last) = self.keys.retract(key)
        {
            left -= 1;
            self.looked_at += 1;
            self.step_back(last);
        }
        while left > 0
            && let Some(next) = self.keys.offer_next(key)
        {
            left -= self.offer_first(next, left, Vec::new(), actions);
        }
        self.unfinished |= self.keys.settle_limit(key);
    }

    /// A worker has gone: what was warm there is forgotten, in the end.
    pub(super) fn forget_warmth(&mut self) {
        self.warm_again |= self.warm_from.is_some();
        self.warm_from.get_or_insert(0);
        self.forget_gone_on();
    }

    fn forget_gone_on(&mut self) {
        let Some(from) = self.warm_from else { return };
        let workers = &self.workers;
        let mut empty = Vec::new();
        let (mut last, mut looks) = (from, 0);
        for (&key, warm) in self.warm.range_mut(from..).take(WARM_PER_STEP) {
            warm.retain(|id| workers.get(id.slot).is_some_and(|worker| worker.generation == id.generation));
            if warm.is_empty() {
                empty.push(key);
            }
            (last, looks) = (key, looks + 1);
        }
        self.looked_at += looks as u64;
        for key in empty {
            self.warm.remove(&key);
        }
        self.warm_from = if looks == WARM_PER_STEP {
            Some(last.saturating_add(1))
        } else {
            // Who has gone meanwhile may be among those that were passed.
            std::mem::take(&mut self.warm_again).then_some(0)
        };
        self.unfinished |= self.warm_from.is_some();
    }
}
