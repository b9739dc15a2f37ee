//! Where the processors lie, and from it whom a worker robs first: who shares its core, its cache, its memory node, then
//! the rest.
//!
//! The order is worked out once, when a pool is built. It never pins a thread (see `pin`), and it never changes while the
//! pool lives: for workers that are not pinned it is a guess that costs nothing.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use crate::pin;

/// One processor the system can run a thread on, and what it shares with others.
///
/// The groups are numbers that only have to differ where the groups differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cpu {
    /// The system's number for it, which is what a worker is pinned to.
    pub id: usize,
    /// Processors with the same core share everything but registers.
    pub core: usize,
    /// Processors with the same cache share the last one before memory.
    pub cache: usize,
    /// Processors with the same node are equally far from memory.
    pub node: usize,
}

impl Cpu {
    /// A processor with a core of its own that shares the one cache and the one node with all others made so.
    pub fn new(id: usize) -> Self {
        Self { id, core: id, cache: 0, node: 0 }
    }

    /// The same processor in another cache group.
    #[must_use]
    pub fn cache(self, cache: usize) -> Self {
        Self { cache, ..self }
    }

    /// The same processor on another memory node.
    #[must_use]
    pub fn node(self, node: usize) -> Self {
        Self { node, ..self }
    }

    /// The same processor as a sibling of others with this core.
    #[must_use]
    pub fn core(self, core: usize) -> Self {
        Self { core, ..self }
    }

    /// The groups it belongs to, widest first. A cache counts within its node, a core within its cache, so that groups
    /// are nested whatever the system says.
    fn groups(&self) -> [usize; NESTED] {
        [self.node, self.cache, self.core]
    }
}

/// Groups inside "everybody": node, cache, core.
const NESTED: usize = 3;

/// The processors of a machine, real or made up, in the order in which workers take them.
///
/// ```
/// use filch_pool::{Cpu, Pool, Topology};
///
/// // Two caches: 0 and 2 share one, 1 and 3 the other.
/// let topology = Topology::new((0..4).map(|id| Cpu::new(id).cache(id % 2)));
/// assert_eq!(topology.victims(4, 0), [vec![2], vec![1, 3]]);
/// let pool = Pool::builder().threads(4).topology(topology).build().unwrap();
/// assert_eq!(pool.install(|| 1 + 1), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cpus: Vec<Cpu>,
}

impl Topology {
    /// Says where the processors lie. Worker 0 gets the first, worker 1 the second; after the last it starts again.
    pub fn new(cpus: impl IntoIterator<Item = Cpu>) -> Self {
        Self { cpus: cpus.into_iter().collect() }
    }

    /// The processors this process may use, as the system describes them: one of each core first, neighbours side by
    /// side.
    ///
    /// # Errors
    /// Where the system cannot be asked: on others than Linux.
    pub fn read() -> io::Result<Self> {
        static MACHINE: OnceLock<Vec<Cpu>> = OnceLock::new();
        let allowed = pin::allowed()?;
        let machine = MACHINE.get_or_init(|| describe(|path| std::fs::read_to_string(path).ok()));
        let known = |id: &usize| machine.iter().find(|cpu| cpu.id == *id).copied().unwrap_or_else(|| Cpu::new(*id));
        let mut cpus: Vec<Cpu> = allowed.iter().map(known).collect();
        cpus.sort_by_key(|cpu| (cpu.groups(), cpu.id));
        // The second thread of a core comes after the first threads of all others.
        let rank = |at: usize| cpus[..at].iter().rev().take_while(|other| other.groups() == cpus[at].groups()).count();
        let ranks: Vec<usize> = (0..cpus.len()).map(rank).collect();
        let mut places: Vec<usize> = (0..cpus.len()).collect();
        places.sort_by_key(|at| ranks[*at]);
        Ok(Self::new(places.into_iter().map(|at| cpus[at])))
    }

    /// The processors, in the order in which workers take them.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Whom one of so many workers robs: one list for each distance at which there is somebody, nearest first.
    ///
    /// Within a list a worker starts anywhere; before all of them it tries whoever had something the last time. A worker that
    /// is none of so many robs nobody.
    pub fn victims(&self, workers: usize, worker: usize) -> Vec<Vec<usize>> {
        if worker >= workers {
            return Vec::new();
        }
        let victims = Victims::new(self, workers);
        let list = |level| {
            let mut list: Vec<usize> = victims.at(worker, level, 0).collect();
            list.sort_unstable();
            list
        };
        (0..=NESTED).map(list).filter(|list| !list.is_empty()).collect()
    }

    /// The processor a worker gets.
    pub(crate) fn cpu_of(&self, worker: usize) -> Option<Cpu> {
        self.cpus.get(worker % self.cpus.len().max(1)).copied()
    }
}

/// Whom each worker robs first. Takes memory in proportion to the workers, not to their pairs.
pub(crate) struct Victims {
    /// The workers, neighbours side by side: every group is a stretch of it.
    order: Box<[u32]>,
    /// For each worker its groups as stretches of `order`, from itself to everybody.
    groups: Box<[[Range<u32>; NESTED + 2]]>,
}

impl Victims {
    /// Everybody is equally near.
    pub(crate) fn flat(workers: usize) -> Self {
        Self::new(&Topology::new([Cpu::new(0)]), workers)
    }

    pub(crate) fn new(topology: &Topology, workers: usize) -> Self {
        let groups_of = |worker: u32| topology.cpu_of(worker as usize).map_or([0; NESTED], |cpu| cpu.groups());
        let mut order: Vec<u32> = (0..workers as u32).collect();
        order.sort_by_key(|worker| groups_of(*worker));
        let mut groups = vec![[const { 0..0 }; NESTED + 2]; workers];
        for (place, worker) in order.iter().enumerate() {
            let own = &mut groups[*worker as usize];
            own[0] = place as u32..place as u32 + 1;
            for (level, width) in (0..=NESTED).rev().enumerate() {
                let wanted = groups_of(*worker);
                let start = order.partition_point(|other| groups_of(*other)[..width] < wanted[..width]);
                let end = order.partition_point(|other| groups_of(*other)[..width] <= wanted[..width]);
                own[level + 1] = start as u32..end as u32;
            }
        }
        Self { order: order.into(), groups: groups.into() }
    }

    /// Everybody but the worker itself, nearest first, at each distance from a random one on.
    #[inline]
    pub(crate) fn around(&self, worker: usize, random: u64) -> impl Iterator<Item = usize> + '_ {
        (0..=NESTED).flat_map(move |level| self.at(worker, level, random))
    }

    /// The first one to try when nothing is known yet.
    pub(crate) fn nearest(&self, worker: usize) -> usize {
        self.around(worker, 0).next().unwrap_or(worker)
    }

    /// The workers in one group and not in the next smaller one.
    #[inline]
    fn at(&self, worker: usize, level: usize, random: u64) -> impl Iterator<Item = usize> + '_ {
        let (inner, outer) = (&self.groups[worker][level], &self.groups[worker][level + 1]);
        let (hole, skip) = (inner.start, inner.end - inner.start);
        let (start, count) = (outer.start, outer.end - outer.start - skip);
        let first = (((random >> 32) * u64::from(count)) >> 32) as u32;
        (0..count).map(move |step| {
            let turn = first + step;
            let place = start + if turn >= count { turn - count } else { turn };
            self.order[(if place >= hole { place + skip } else { place }) as usize] as usize
        })
    }
}

/// What Linux tells about its processors. What is not told counts as shared by nobody (cores, caches) or by all (nodes).
fn describe(read: impl Fn(&str) -> Option<String>) -> Vec<Cpu> {
    const CPUS: &str = "/sys/devices/system/cpu";
    const NODES: &str = "/sys/devices/system/node";
    let list = |path: &str| read(path).map(|text| parse_list(&text)).unwrap_or_default();
    let nodes: Vec<(usize, Vec<usize>)> = list(&format!("{NODES}/online"))
        .into_iter()
        .map(|node| (node, list(&format!("{NODES}/node{node}/cpulist"))))
        .collect();
    let describe = |id: usize| {
        // A group is named by its smallest member.
        let first = |path: &str| list(path).into_iter().min();
        let core = first(&format!("{CPUS}/cpu{id}/topology/thread_siblings_list")).unwrap_or(id);
        let caches = (0..).map_while(|index| {
            let cache = format!("{CPUS}/cpu{id}/cache/index{index}");
            let level: usize = read(&format!("{cache}/level"))?.trim().parse().ok()?;
            Some((level, first(&format!("{cache}/shared_cpu_list")).unwrap_or(core)))
        });
        let cache = caches.max_by_key(|(level, _)| *level).map_or(core, |(_, group)| group);
        let node = nodes.iter().find(|(_, cpus)| cpus.contains(&id)).map_or(0, |(node, _)| *node);
        Cpu { id, core, cache, node }
    };
    list(&format!("{CPUS}/online")).into_iter().map(describe).collect()
}

/// Numbers and ranges as the kernel writes them: `0-3,8`. Anything else is left out.
fn parse_list(text: &str) -> Vec<usize> {
    const MOST: usize = 1 << 16;
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (last < MOST).then_some(first..=last)
    };
    text.trim().split(',').filter_map(part).flatten().collect()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Two nodes of two caches of two cores of two threads, numbered as Linux does: siblings are eight apart.
    fn big() -> Topology {
        Topology::new((0..16).map(|id| Cpu::new(id).core(id % 8).cache(id % 8 / 2).node(id % 8 / 4)))
    }

    #[test]
    fn sibling_then_cache_then_node_then_the_rest() {
        let near_first = [vec![8], vec![1, 9], vec![2, 3, 10, 11], vec![4, 5, 6, 7, 12, 13, 14, 15]];
        assert_eq!(big().victims(16, 0), near_first);
        assert_eq!(big().victims(16, 13), [vec![5], vec![4, 12], vec![6, 7, 14, 15], vec![0, 1, 2, 3, 8, 9, 10, 11]]);
        assert_eq!(big().victims(3, 2), [vec![0, 1]], "only workers there are; nobody shares more than the node");
        assert_eq!(big().victims(1, 0), Vec::<Vec<usize>>::new());
        assert_eq!(big().victims(0, 16), Vec::<Vec<usize>>::new(), "no such worker");
    }

    #[test]
    fn more_workers_than_processors_share_them() {
        let two = Topology::new([Cpu::new(0), Cpu::new(1).node(1)]);
        assert_eq!(two.victims(4, 1), [vec![3], vec![0, 2]]);
    }

    #[test]
    fn a_cache_that_spans_nodes_counts_within_the_node() {
        let split = Topology::new([Cpu::new(0), Cpu::new(1).node(1), Cpu::new(2)]);
        assert_eq!(split.victims(3, 0), [vec![2], vec![1]]);
    }

    #[test]
    fn every_start_visits_everybody_once_and_near_ones_first() {
        let (topology, victims) = (big(), Victims::new(&big(), 16));
        let mut firsts = Vec::new();
        for worker in [0, 5, 15] {
            let expected = topology.victims(16, worker);
            for random in (0..64).map(|step| step << 58) {
                let seen: Vec<usize> = victims.around(worker, random).collect();
                let mut rest = &seen[..];
                for expected in &expected {
                    let (part, after) = rest.split_at(expected.len());
                    assert!(part.iter().all(|victim| expected.contains(victim)), "{seen:?}");
                    rest = after;
                }
                assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 15);
                firsts.push((worker, seen[7]));
            }
        }
        firsts.sort_unstable();
        firsts.dedup();
        let first_of_0 = firsts.iter().filter(|(worker, _)| *worker == 0).map(|(_, first)| *first);
        assert!(first_of_0.eq([4, 5, 6, 7, 12, 13, 14, 15]), "any of the remote ones can be the first: {firsts:?}");
    }

    #[test]
    fn without_groups_all_are_equally_near() {
        assert_eq!(Victims::flat(4).around(1, 0).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!((Victims::flat(2).nearest(0), Victims::flat(1).nearest(0)), (1, 0));
        assert_eq!(Topology::new([]).victims(3, 1), [vec![0, 2]], "no processors named");
    }

    #[test]
    fn the_kernel_is_understood() {
        let cpu = "/sys/devices/system/cpu";
        let mut files = BTreeMap::from([
            (format!("{cpu}/online"), "0-3\n".to_owned()),
            ("/sys/devices/system/node/online".to_owned(), "0-1\n".to_owned()),
            ("/sys/devices/system/node/node0/cpulist".to_owned(), "0,2\n".to_owned()),
            ("/sys/devices/system/node/node1/cpulist".to_owned(), "1,3\n".to_owned()),
        ]);
        for id in 0..4 {
            let mut cache = |index: usize, level: usize, shared: String| {
                files.insert(format!("{cpu}/cpu{id}/cache/index{index}/level"), format!("{level}\n"));
                files.insert(format!("{cpu}/cpu{id}/cache/index{index}/shared_cpu_list"), shared);
            };
            cache(0, 1, format!("{id}\n"));
            cache(1, 3, format!("{},{}\n", id % 2, id % 2 + 2));
            cache(2, 2, format!("{id}\n"));
            files.insert(format!("{cpu}/cpu{id}/topology/thread_siblings_list"), format!("{id}\n"));
        }
        let described = describe(|path| files.get(path).cloned());
        assert_eq!(described, (0..4).map(|id| Cpu::new(id).cache(id % 2).node(id % 2)).collect::<Vec<_>>());
        let silent = describe(|path| path.ends_with("cpu/online").then(|| "0-1".to_owned()));
        assert_eq!(silent, [Cpu::new(0), Cpu::new(1).cache(1)], "caches unknown: not shared");
        assert_eq!(describe(|_| None), []);
    }

    #[test]
    fn lists_are_read_and_nonsense_is_left_out() {
        assert_eq!(parse_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("x,2-,,-1,0-99999999999,7"), [7]);
        assert_eq!(parse_list(""), []);
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn this_machine_describes_itself() {
        let topology = Topology::read().unwrap();
        let mut ids: Vec<usize> = topology.cpus().iter().map(|cpu| cpu.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, pin::allowed().unwrap());
    }
}
