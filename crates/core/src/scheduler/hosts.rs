//! Who could run what: a class for a signature, and under `fallback` the most skills that any class shares with one.
//!
//! For a signature, classes are looked at in the order they appeared, only those with the capabilities in question, and
//! each of them once. If there are very many, later steps go on; until then a task counts as one that somebody can run,
//! and under `fallback` the best match found so far is good enough. Never looks at workers or tasks.

use std::collections::btree_map::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter::Peekable;
use std::ops::Bound::{Excluded, Unbounded};

use smallvec::SmallVec;

use super::ready::{Cursor, Head};
use super::{Scheduler, Signature};
use crate::action::Action;
use crate::capabilities::CapabilitySet;
use crate::ids::NONE;

/// Classes looked at for one signature in one go.
pub(crate) const CLASS_LOOKS: usize = 1024;
/// Classes that one step looks at to go on with searches that were cut off.
const SEARCH_LOOKS: usize = 2048;
/// Signatures that one step shows a new class to, or that it begins to search for anew.
const SIGNATURES_PER_STEP: usize = 1024;

/// Classes by the order they appeared in.
type Births = BTreeMap<u64, u32>;

/// How far the search for the best match of a signature has come.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    /// Classes born up to then have been looked at.
    seen: u64,
    /// The most skills that one of them shares, and when it was born.
    best: u32,
    leader: u64,
}

/// The index behind the questions; see the module.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    classes: Births,
    by_capability: BTreeMap<u32, Births>,
    /// When the latest class appeared.
    latest: u64,
    /// Signatures under `fallback`.
    fallback: BTreeMap<u32, Search>,
    /// For a class, the signatures under `fallback` that know it for one with the best match.
    led_by: BTreeMap<u32, BTreeSet<u32>>,
    /// Those whose class has gone.
    leaderless: Vec<BTreeSet<u32>>,
    /// New classes that not all signatures under `fallback` have been shown, and the next that will be.
    newcomers: VecDeque<(u64, u32)>,
    /// Signatures with a search that was cut off.
    undecided: BTreeSet<u32>,
    /// Signatures that more workers may run than before, and where the search for their lanes goes on.
    widened: BTreeSet<u32>,
    widened_from: Option<Cursor>,
}

impl Hosts {
    /// A class has appeared; when.
    pub(crate) fn class_came(&mut self, class: u32, capabilities: &CapabilitySet) -> u64 {
        self.latest += 1;
        self.classes.insert(self.latest, class);
        for id in capabilities.ids() {
            self.by_capability.entry(id.0).or_default().insert(self.latest, class);
        }
        if !self.fallback.is_empty() {
            self.newcomers.push_back((self.latest, 0));
        }
        self.latest
    }

    pub(crate) fn class_went(&mut self, class: u32, born: u64, capabilities: &CapabilitySet) {
        self.classes.remove(&born);
        for id in capabilities.ids() {
            if let Some(births) = self.by_capability.get_mut(&id.0) {
                births.remove(&born);
                if births.is_empty() {
                    self.by_capability.remove(&id.0);
                }
            }
        }
        self.leaderless.extend(self.led_by.remove(&class));
    }

    /// The classes that might run such tasks, born after that moment, in the order they appeared.
    pub(crate) fn walk<'a>(&'a self, signature: &Signature, after: u64) -> impl Iterator<Item = (u64, u32)> + use<'a> {
        let all_of = |set: &CapabilitySet| -> SmallVec<[Option<&Births>; 4]> {
            set.ids().iter().map(|id| self.by_capability.get(&id.0)).collect()
        };
        let mut needed = all_of(&signature.needs.requires);
        let skills = all_of(&signature.needs.skills);
        let by_skills = signature.is_fallback();
        if !by_skills {
            needed.extend(skills.iter().copied());
        }
        let chosen: SmallVec<[&Births; 4]> = if needed.is_empty() && by_skills {
            skills.into_iter().flatten().collect()
        } else if needed.is_empty() {
            SmallVec::from_iter([&self.classes])
        } else if needed.iter().all(Option::is_some) {
            // One that lacks any of them is out: the rarest leaves the fewest.
            needed.into_iter().flatten().min_by_key(|births| births.len()).into_iter().collect()
        } else {
            SmallVec::new()
        };
        let rest = |births: &&'a Births| births.range((Excluded(after), Unbounded)).peekable();
        let mut lists: SmallVec<[Peekable<Range<'a, u64, u32>>; 2]> = chosen.iter().map(rest).collect();
        std::iter::from_fn(move || {
            let heads = lists.iter_mut().filter_map(|list| list.peek().map(|(birth, class)| (**birth, **class)));
            let next = heads.min()?;
            for list in &mut lists {
                list.next_if(|(birth, _)| **birth == next.0);
            }
            Some(next)
        })
    }

    /// Whether everything asked so far is answered.
    pub(crate) fn is_settled(&self) -> bool {
        self.undecided.is_empty()
            && self.leaderless.is_empty()
            && self.newcomers.is_empty()
            && self.widened_from.is_none()
    }

    /// Whether classes that appeared later may be able to do what those before could not.
    pub(crate) fn has_news_since(&self, seen: u64) -> bool {
        seen < self.latest
    }

    pub(crate) fn forget_signature(&mut self, at: u32, host: u32) {
        self.undecided.remove(&at);
        if self.fallback.remove(&at).is_some() {
            self.leave_leader(at, host);
        }
    }

    fn leave_leader(&mut self, at: u32, leader: u32) {
        if let Some(led) = self.led_by.get_mut(&leader) {
            led.remove(&at);
            if led.is_empty() {
                self.led_by.remove(&leader);
            }
        }
    }
}

impl Scheduler {
    /// Whether any registered worker could ever run such a task, as far as is known. Remembers a class that can.
    pub(super) fn has_host(&mut self, at: u32) -> bool {
        self.has_host_within(at, &mut { CLASS_LOOKS })
    }

    /// The same, looking at no more than so many classes.
    pub(super) fn has_host_within(&mut self, at: u32, looks: &mut usize) -> bool {
        let signature = &self.signatures[at];
        if signature.is_fallback() {
            return signature.best_shared > 0 || self.hosts.undecided.contains(&at);
        }
        if let Some(class) = self.classes.get(signature.host)
            && class.can_ever(signature).is_ok()
        {
            return true;
        }
        self.hosts.has_news_since(signature.seen) && self.find_host(at, looks)
    }

    /// Looks for a class that can run such tasks among those not looked at yet. `looks` falls by those looked at; if there
    /// are more than that, later steps go on, and the answer is yes for now.
    pub(super) fn find_host(&mut self, at: u32, looks: &mut usize) -> bool {
        let signature = &self.signatures[at];
        let (mut seen, mut host, mut cut_off) = (signature.seen, NONE, false);
        for (birth, class) in self.hosts.walk(signature, signature.seen) {
            if *looks == 0 {
                cut_off = true;
                break;
            }
            *looks -= 1;
            self.looked_at += 1;
            seen = birth;
            if self.classes[class].can_ever(signature).is_ok() {
                host = class;
                break;
            }
        }
        if !cut_off && host == NONE {
            seen = self.hosts.latest;
        }
        let signature = &mut self.signatures[at];
        (signature.seen, signature.host) = (seen, host);
        if cut_off {
            self.hosts.undecided.insert(at);
            self.unfinished = true;
        } else {
            self.hosts.undecided.remove(&at);
        }
        cut_off || host != NONE
    }

    /// Goes on with the search for the best match of a signature; whether it has come to its end.
    fn look_for_best(&self, signature: &Signature, search: &mut Search, looks: &mut usize) -> bool {
        for (birth, class) in self.hosts.walk(signature, search.seen) {
            if search.best as usize == signature.needs.skills.len() {
                break;
            }
            if *looks == 0 {
                return false;
            }
            *looks -= 1;
            search.seen = birth;
            let shared = self.classes[class].shared_skills(signature);
            if shared > search.best {
                (search.best, search.leader) = (shared, birth);
            }
        }
        true
    }

    /// The most skills that a class shares with a signature nobody has asked about yet, as far as a bounded look finds it.
    pub(super) fn best_shared(&self, signature: &Signature) -> u32 {
        let mut search = Search::default();
        self.look_for_best(signature, &mut search, &mut { CLASS_LOOKS });
        search.best
    }

    /// Finds the best match of a new signature under `fallback`, and keeps it up to date from now on.
    pub(super) fn watch_skills(&mut self, at: u32) {
        self.hosts.fallback.insert(at, Search::default());
        self.hosts.undecided.insert(at);
        let decided = self.search_on(at, &mut { CLASS_LOOKS });
        self.unfinished |= !decided;
    }

    /// Goes on with a search under `fallback`; whether it has come to its end.
    fn search_on(&mut self, at: u32, looks: &mut usize) -> bool {
        let Some(mut search) = self.hosts.fallback.get(&at).copied() else { return true };
        let before = *looks;
        let done = self.look_for_best(&self.signatures[at], &mut search, looks);
        self.looked_at += (before - *looks) as u64;
        let leader = self.hosts.classes.get(&search.leader).copied();
        if done && (search.best == 0 || leader.is_some()) {
            self.hosts.undecided.remove(&at);
            self.hosts.fallback.insert(at, Search::default());
            self.follow(at, search.best, leader.unwrap_or(NONE));
            return true;
        }
        // The one found may have gone meanwhile.
        let search = if done { Search::default() } else { search };
        self.hosts.fallback.insert(at, search);
        let signature = &mut self.signatures[at];
        if signature.best_shared == 0
            && let Some(leader) = leader
        {
            (signature.best_shared, signature.host) = (search.best, leader);
        }
        false
    }

    /// From now on this class is known for one with the best match.
    fn follow(&mut self, at: u32, best: u32, leader: u32) {
        let signature = &mut self.signatures[at];
        let before = std::mem::replace(&mut signature.host, leader);
        signature.best_shared = best;
        self.hosts.leave_leader(at, before);
        if leader != NONE {
            self.hosts.led_by.entry(leader).or_default().insert(at);
        }
    }

    /// Shows new classes to the signatures under `fallback`, as many as one step may.
    pub(super) fn introduce_newcomers(&mut self) {
        let mut left = SIGNATURES_PER_STEP;
        while left > 0
            && let Some(&(birth, from)) = self.hosts.newcomers.front()
        {
            let class = self.hosts.classes.get(&birth).copied();
            let shown: Vec<u32> = match class {
                Some(_) => self.hosts.fallback.range(from..).map(|entry| *entry.0).take(left).collect(),
                None => Vec::new(),
            };
            if shown.len() < left {
                self.hosts.newcomers.pop_front();
            } else if let Some(front) = self.hosts.newcomers.front_mut() {
                front.1 = shown[shown.len() - 1].saturating_add(1);
            }
            left -= shown.len();
            self.looked_at += shown.len() as u64;
            for at in shown {
                let signature = &self.signatures[at];
                // A search under way comes to it by itself.
                if let Some(class) = class
                    && !self.hosts.undecided.contains(&at)
                    && let shared = self.classes[class].shared_skills(signature)
                    && shared > signature.best_shared
                {
                    self.follow(at, shared, class);
                }
            }
        }
        self.unfinished |= !self.hosts.newcomers.is_empty();
    }

    /// Goes on with everything about classes that earlier steps have left, as far as one step may.
    pub(super) fn go_on_with_hosts(&mut self, actions: &mut Vec<Action>) {
        if self.hosts.is_settled() {
            return;
        }
        self.introduce_newcomers();
        for _ in 0..SIGNATURES_PER_STEP {
            let Some(led) = self.hosts.leaderless.last_mut() else { break };
            self.looked_at += 1;
            match led.pop_first() {
                // The slot may be another's by now; a search more does no harm.
                Some(at) => {
                    if let Some(search) = self.hosts.fallback.get_mut(&at) {
                        *search = Search::default();
                        self.hosts.undecided.insert(at);
                    }
                }
                None => {
                    self.hosts.leaderless.pop();
                }
            }
        }
        let mut looks = SEARCH_LOOKS;
        let mut orphans = false;
        while looks > 0
            && let Some(&at) = self.hosts.undecided.first()
        {
            looks -= 1;
            if !self.hosts.fallback.contains_key(&at) {
                orphans |= !self.find_host(at, &mut looks);
                continue;
            }
            let before = self.signatures[at].best_shared;
            if self.search_on(at, &mut looks) {
                let best = self.signatures[at].best_shared;
                orphans |= best == 0;
                if best > 0 && (best < before || before == 0) {
                    self.hosts.widened.insert(at);
                    self.hosts.widened_from = None;
                }
            }
        }
        if orphans && self.counters.queued > 0 {
            self.expect_orphans();
        }
        self.offer_widened(actions);
        self.unfinished |= !self.hosts.is_settled();
    }

    /// More workers may run tasks of some signatures than before: those that wait for work get it.
    fn offer_widened(&mut self, actions: &mut Vec<Action>) {
        if self.hosts.widened.is_empty() {
            return;
        }
        let mut lanes = Vec::new();
        let search = self.ready.find(1, self.hosts.widened_from.as_ref(), |lane| {
            if self.hosts.widened.contains(&lane.signature) {
                lanes.push(*lane);
            }
            false
        });
        self.hosts.widened_from = search.cut_off;
        if search.cut_off.is_none() {
            self.hosts.widened.clear();
        }
        for lane in lanes {
            while let Some(Head::Task(slot)) = self.head(&lane) {
                let Some(worker) = self.who_has_room(slot) else { break };
                self.leave_lane(slot);
                self.give(slot, worker, None, actions);
            }
            if self.head(&lane) == Some(Head::Element) {
                self.serve_waiting_workers(lane.job, actions);
            }
        }
    }

    /// Whether what is remembered about classes and signatures is so, for checks.
    pub(crate) fn verify_hosts(&self) -> Result<(), String> {
        for (at, signature) in self.signatures.iter() {
            if signature.is_fallback() {
                let best = self.classes.iter().map(|(_, class)| class.shared_skills(signature)).max().unwrap_or(0);
                if self.hosts.is_settled() && signature.best_shared != best {
                    return Err(format!("signature {at}: {} skills shared, should be {best}", signature.best_shared));
                }
                let led = self.hosts.led_by.get(&signature.host).is_some_and(|led| led.contains(&at));
                if self.hosts.is_settled() && led != (best > 0) {
                    return Err(format!("signature {at} is not known to its leader"));
                }
                continue;
            }
            let able = |class: u32| self.classes[class].can_ever(signature).is_ok();
            let known = self.classes.get(signature.host).is_some();
            let missed = self.hosts.classes.range(..=signature.seen).find(|entry| able(*entry.1));
            if let Some((_, class)) = missed
                && !(known && able(signature.host))
            {
                return Err(format!("signature {at}: class {class} could run it and was passed over"));
            }
        }
        if self.hosts.classes.len() != self.classes.len() || (!self.hosts.is_settled() && !self.unfinished) {
            return Err("the index of classes is out of date".to_owned());
        }
        Ok(())
    }
}
