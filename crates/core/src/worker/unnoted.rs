//! Ends that the coordinator has not noted yet, in the order of what they are of: a short list, which it nearly always is, or
//! a tree while the coordinator is slow or gone and they become many.

use std::collections::BTreeMap;

use crate::event::{End, Held};
use crate::time::Span;

/// Beyond this many the list becomes a tree.
const FEW: usize = 32;

/// What is told of an end.
#[derive(Clone, Copy, Debug)]
struct Told {
    ran: Span,
    end: End,
    /// It was there before the last beat.
    old: bool,
}

/// The ends, by attempt and hop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unnoted {
    few: Vec<(Held, Told)>,
    /// All of them, once they were more than a few; until nothing is left.
    many: Option<BTreeMap<Held, Told>>,
}

impl Unnoted {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.many.as_ref().map_or(self.few.len(), BTreeMap::len)
    }

    /// Adds an end, or changes what is told of one.
    pub(crate) fn set(&mut self, held: Held, ran: Span, end: End) {
        let told = Told { ran, end, old: false };
        if let Some(many) = &mut self.many {
            many.insert(held, told);
            return;
        }
        match self.few.binary_search_by_key(&held, |entry| entry.0) {
            Ok(at) => self.few[at] = (held, told),
            Err(at) if self.few.len() < FEW => self.few.insert(at, (held, told)),
            Err(_) => self.many = Some(self.few.drain(..).chain([(held, told)]).collect()),
        }
    }

    /// The coordinator knows of an end.
    pub(crate) fn remove(&mut self, held: Held) {
        if let Some(many) = &mut self.many {
            many.remove(&held);
            if many.is_empty() {
                self.many = None;
            }
        } else if let Ok(at) = self.few.binary_search_by_key(&held, |entry| entry.0) {
            self.few.remove(at);
        }
    }

    /// Whether the end of an attempt is there, under whatever hop.
    pub(crate) fn has_attempt(&self, held: Held) -> bool {
        let from = Held { hop: 0, ..held };
        let next = match &self.many {
            Some(many) => many.range(from..).next().map(|(told, _)| *told),
            None => self.few.get(self.few.partition_point(|entry| entry.0 < from)).map(|entry| entry.0),
        };
        next.is_some_and(|told| told.task == held.task && told.attempt == held.attempt)
    }

    /// Says again, in order, what was there when this was last asked; all are old then.
    pub(crate) fn grow_old(&mut self, mut say: impl FnMut(Held, Span, End)) {
        let many = self.many.iter_mut().flat_map(|many| many.iter_mut());
        for (held, told) in self.few.iter_mut().map(|(held, told)| (&*held, told)).chain(many) {
            if std::mem::replace(&mut told.old, true) {
                say(*held, told.ran, told.end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TaskId;
    use crate::rng::Rng;

    #[test]
    fn few_or_many_it_behaves_like_a_tree() {
        let (mut rng, mut unnoted, mut tree) = (Rng::new(5), Unnoted::default(), BTreeMap::new());
        let mut most = 0;
        for step in 0..6000_u64 {
            // At times many, at times few, at times nothing.
            let grows = step / 300 % 2 == 0;
            let mut draw = |below| rng.below(below) as u32;
            let task = TaskId::from_bits(u64::from(draw(60)));
            let held = Held { task, attempt: draw(2), hop: draw(2) };
            if (draw(4) == 0) == grows {
                unnoted.remove(held);
                tree.remove(&held);
            } else {
                let end = if step % 2 == 0 { End::Done } else { End::GivenBack };
                unnoted.set(held, Span(step), end);
                tree.insert(held, (Span(step), end));
            }
            most = most.max(tree.len());
            assert_eq!(unnoted.len(), tree.len());
            let asked = tree.keys().any(|known| known.task == held.task && known.attempt == held.attempt);
            assert_eq!(unnoted.has_attempt(held), asked);
            let mut all = Vec::new();
            let mut twice = unnoted.clone();
            twice.grow_old(|_, _, _| ());
            twice.grow_old(|held, ran, end| all.push((held, ran, end)));
            let known = tree.iter().map(|(held, (ran, end))| (*held, *ran, *end));
            assert!(all.into_iter().eq(known), "at step {step}");
        }
        assert!(most > 2 * FEW);
    }
}
