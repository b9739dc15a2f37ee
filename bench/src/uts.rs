//! The Unbalanced Tree Search benchmark: trees that grow out of SHA-1, so that nobody can foresee where the work is.
//!
//! The sizes of the trees T1 and T3 are published; every way of counting must find them. Children are visited by forking
//! their range in halves, the same for all systems.

use std::ops::Range;

use sha1::digest::core_api::Block;
use sha1::{Digest, Sha1, Sha1Core, compress};

use crate::ways::{Way, Work};
use crate::works::combine;

/// How many children a node has.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// A geometric distribution with this mean, down to a depth.
    Geometric { mean: f64, depth: u32 },
    /// The root has many; any other node has `children` with this chance, or none.
    Binomial { root: u32, children: u32, chance: f64 },
}

/// A tree that is nowhere: each node knows how to make its children.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    shape: Shape,
    seed: u32,
    /// How many nodes it has, as published.
    pub nodes: u64,
}

/// 4,130,071 nodes in ten levels.
pub const T1: Tree = Tree { shape: Shape::Geometric { mean: 4.0, depth: 10 }, seed: 19, nodes: 4_130_071 };

/// 4,112,897 nodes, thin and 1,572 deep.
pub const T3: Tree =
    Tree { shape: Shape::Binomial { root: 2000, children: 8, chance: 0.124_875 }, seed: 42, nodes: 4_112_897 };

/// A node: the state its children grow from.
#[derive(Clone, Copy)]
struct Node {
    shape: Shape,
    state: [u8; 20],
    height: u32,
}

impl Tree {
    /// Where counting starts.
    fn root(&self) -> Node {
        let mut seed = [0; 20];
        seed[16..].copy_from_slice(&self.seed.to_be_bytes());
        Node { shape: self.shape, state: Sha1::digest(seed).into(), height: 0 }
    }
}

/// SHA-1 of a node's state and the number of a child. The message fits into one block, so it is padded here: a hasher that
/// takes messages of any length costs a quarter more, and what is to be measured are the forks.
fn grow(state: &[u8; 20], number: u32) -> [u8; 20] {
    const START: [u32; 5] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];
    const BITS: u8 = 24 * 8;
    let mut block = Block::<Sha1Core>::default();
    block[..20].copy_from_slice(state);
    block[20..24].copy_from_slice(&number.to_be_bytes());
    (block[24], block[63]) = (0x80, BITS);
    let mut words = START;
    compress(&mut words, &[block]);
    let mut grown = [0; 20];
    for (bytes, word) in grown.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    grown
}

impl Node {
    fn child(&self, number: u32) -> Self {
        Self { state: grow(&self.state, number), height: self.height + 1, ..*self }
    }

    /// 31 bits of the state, as a number from 0 to 1.
    fn chance(&self) -> f64 {
        let [.., a, b, c, d] = self.state;
        f64::from(u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff) / f64::from(1u32 << 31)
    }

    fn children(&self) -> u32 {
        /// What the benchmark allows a node of a geometric tree.
        const MOST: f64 = 100.0;
        match self.shape {
            Shape::Binomial { root, .. } if self.height == 0 => root,
            Shape::Binomial { children, chance, .. } => {
                if self.chance() < chance {
                    children
                } else {
                    0
                }
            }
            Shape::Geometric { depth, .. } if self.height >= depth => 0,
            Shape::Geometric { mean, .. } => {
                let stop = 1.0 / (1.0 + mean);
                ((1.0 - self.chance()).ln() / (1.0 - stop).ln()).floor().min(MOST) as u32
            }
        }
    }
}

impl Work for Tree {
    #[inline]
    fn work<W: Way>(self, place: W::Place<'_, '_>) -> u64 {
        count::<W>(place, self.root())
    }
}

/// How many nodes there are from here down.
fn count<W: Way>(place: W::Place<'_, '_>, node: Node) -> u64 {
    let children = node.children();
    if children == 0 { 1 } else { 1 + some::<W>(place, &node, 0..children) }
}

fn some<W: Way>(mut place: W::Place<'_, '_>, node: &Node, children: Range<u32>) -> u64 {
    if children.len() == 1 {
        return count::<W>(place, node.child(children.start));
    }
    let middle = children.start + (children.end - children.start) / 2;
    let (left, right) = (children.start..middle, middle..children.end);
    let (a, b) =
        W::join(&mut place, move |place| some::<W>(place, node, left), move |place| some::<W>(place, node, right));
    combine(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ways::{Chili, FilchCtx, FilchJoin, Rayon, Serial, Systems};

    #[test]
    fn a_child_grows_out_of_the_hash_of_its_parent_and_number() {
        let hash = Sha1::new().chain_update([7; 20]).chain_update(3_u32.to_be_bytes()).finalize();
        assert_eq!(grow(&[7; 20], 3), <[u8; 20]>::from(hash));
    }

    #[test]
    fn the_published_sizes_come_out() {
        assert_eq!((T1.work::<Serial>(()), T3.work::<Serial>(())), (4_130_071, 4_112_897));
    }

    #[test]
    fn every_way_counts_the_same() {
        let small = Tree { shape: Shape::Geometric { mean: 4.0, depth: 6 }, seed: 19, nodes: 0 };
        let expected = small.work::<Serial>(());
        assert!(expected > 1000, "{expected} nodes test little");
        let systems = Systems::new(2).unwrap();
        assert_eq!(FilchCtx::run(&systems, small, 1), expected);
        assert_eq!(FilchJoin::run(&systems, small, 1), expected);
        assert_eq!(Rayon::run(&systems, small, 1), expected);
        assert_eq!(Chili::run(&systems, small, 1), expected);
    }
}
