//! The fork-join works of the benchmark `pool`, besides UTS: each forks down to its smallest parts, without cut-off.

use crate::ways::{Way, Work};

/// Adds up what the two arms brought.
///
/// Saturating, because compilers turn the last call of `a + b` into a loop where nothing of the fork is left, in the serial
/// code and in chili's. Hardly any work combines its parts so simply that this can be done, so it would tell little.
#[inline(always)]
pub(crate) fn combine(a: u64, b: u64) -> u64 {
    a.saturating_add(b)
}

/// Fibonacci's numbers by the definition.
#[derive(Clone, Copy)]
pub struct Fib(pub u32);

impl Work for Fib {
    #[inline]
    fn work<W: Way>(self, place: W::Place<'_, '_>) -> u64 {
        fib::<W>(place, self.0)
    }
}

fn fib<W: Way>(mut place: W::Place<'_, '_>, n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let (a, b) = W::join(&mut place, move |place| fib::<W>(place, n - 1), move |place| fib::<W>(place, n - 2));
    combine(a, b)
}

/// The same with a plain addition, which lets the compiler make loops of it: see `combine`.
#[derive(Clone, Copy)]
pub struct PlainFib(pub u32);

impl Work for PlainFib {
    #[inline]
    fn work<W: Way>(self, place: W::Place<'_, '_>) -> u64 {
        plain_fib::<W>(place, self.0)
    }
}

fn plain_fib<W: Way>(mut place: W::Place<'_, '_>, n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let (a, b) =
        W::join(&mut place, move |place| plain_fib::<W>(place, n - 1), move |place| plain_fib::<W>(place, n - 2));
    a + b
}

/// A node of a full tree of boxes.
pub struct Node {
    value: u64,
    arms: Option<(Box<Node>, Box<Node>)>,
}

/// How the nodes of a tree lie in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// In the order in which they are visited.
    InOrder,
    /// In an order that is random in every node, and so favours no traversal.
    Shuffled,
}

impl Node {
    /// A full tree with `2^depth - 1` nodes. It is never freed.
    pub fn tree(depth: u32, layout: Layout) -> &'static Self {
        let mut seed = 0x1234_5678_9ABC_DEF1;
        Box::leak(Self::grow(depth, layout, &mut seed))
    }

    fn grow(depth: u32, layout: Layout, seed: &mut u64) -> Box<Self> {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        let value = *seed & 0xff;
        let mut node = Box::new(Self { value, arms: None });
        if depth > 1 {
            let first = Self::grow(depth - 1, layout, seed);
            let second = Self::grow(depth - 1, layout, seed);
            let swapped = layout == Layout::Shuffled && value & 1 == 1;
            node.arms = Some(if swapped { (second, first) } else { (first, second) });
        }
        node
    }
}

/// The sum of a tree's values.
#[derive(Clone, Copy)]
pub struct Sum(pub &'static Node);

impl Work for Sum {
    #[inline]
    fn work<W: Way>(self, place: W::Place<'_, '_>) -> u64 {
        sum::<W>(place, self.0)
    }
}

fn sum<W: Way>(mut place: W::Place<'_, '_>, node: &Node) -> u64 {
    let Some((left, right)) = &node.arms else { return node.value };
    let (a, b) = W::join(&mut place, move |place| sum::<W>(place, left), move |place| sum::<W>(place, right));
    node.value + combine(a, b)
}

/// The board of the queens: columns and diagonals taken, the columns still to be tried in this row.
#[derive(Clone, Copy)]
pub struct Queens {
    full: u32,
    columns: u32,
    left: u32,
    right: u32,
    open: u32,
}

impl Queens {
    /// An empty board.
    pub fn new(size: u32) -> Self {
        let full = (1 << size) - 1;
        Self { full, columns: 0, left: 0, right: 0, open: full }
    }

    /// The next row after a queen in the lowest open column; `None` if that was the last row.
    fn descend(self) -> Option<Self> {
        let queen = self.open & self.open.wrapping_neg();
        let columns = self.columns | queen;
        let (left, right) = ((self.left | queen) << 1, (self.right | queen) >> 1);
        let open = self.full & !(columns | left | right);
        (columns != self.full).then_some(Self { full: self.full, columns, left, right, open })
    }

    fn rest(self) -> Self {
        Self { open: self.open & (self.open - 1), ..self }
    }
}

impl Work for Queens {
    #[inline]
    fn work<W: Way>(self, place: W::Place<'_, '_>) -> u64 {
        queens::<W>(place, self)
    }
}

fn queens<W: Way>(mut place: W::Place<'_, '_>, board: Queens) -> u64 {
    if board.open == 0 {
        return 0;
    }
    let Some(down) = board.descend() else { return 1 };
    let rest = board.rest();
    if rest.open == 0 {
        return queens::<W>(place, down);
    }
    let (a, b) = W::join(&mut place, move |place| queens::<W>(place, down), move |place| queens::<W>(place, rest));
    combine(a, b)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::ways::{Chili, FilchCtx, FilchJoin, Rayon, Serial, Systems};

    fn everywhere(work: impl Work, expected: u64) {
        let systems = Systems::new(2).unwrap();
        assert_eq!(Serial::run(&systems, work, 1), expected);
        assert_eq!(FilchCtx::run(&systems, work, 1), expected);
        assert_eq!(FilchJoin::run(&systems, work, 1), expected);
        assert_eq!(Rayon::run(&systems, work, 1), expected);
        assert_eq!(Chili::run(&systems, work, 1), expected);
    }

    #[test]
    fn every_way_comes_to_the_same_result() {
        everywhere(Fib(15), 610);
        everywhere(PlainFib(15), 610);
        everywhere(Queens::new(8), 92);
        let values = Sum(Node::tree(8, Layout::InOrder)).work::<Serial>(());
        everywhere(Sum(Node::tree(8, Layout::Shuffled)), values);
    }

    /// Notes which arm is where.
    #[derive(Clone, Copy)]
    struct Note(&'static Mutex<Vec<u32>>);

    impl Work for Note {
        fn work<W: Way>(self, mut place: W::Place<'_, '_>) -> u64 {
            let note = |arm| self.0.lock().unwrap().push(arm);
            W::join(&mut place, |_| note(1), |_| note(2));
            0
        }
    }

    /// With one thread there is no parallelism, only an order.
    #[test]
    fn every_way_begins_with_the_first_arm() {
        static SEEN: Mutex<Vec<u32>> = Mutex::new(Vec::new());
        fn check<W: Way>(systems: &Systems) {
            W::run(systems, Note(&SEEN), 1);
            assert_eq!(std::mem::take(&mut *SEEN.lock().unwrap()), [1, 2], "{}", W::NAME);
        }
        let systems = Systems::new(1).unwrap();
        check::<Serial>(&systems);
        check::<FilchCtx>(&systems);
        check::<FilchJoin>(&systems);
        check::<Rayon>(&systems);
        check::<Chili>(&systems);
    }
}
