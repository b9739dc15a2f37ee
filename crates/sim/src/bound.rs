//! How short any schedule must at least be: nothing can end before the longest chain of its parents, and nobody works
//! faster than all workers together.

use filch_core::{ResourceId, Span};

use crate::cluster::Class;
use crate::workload::{NONE, Run, Workload};

/// Seconds from the first arrival that no schedule of the workload on the cluster can go below.
#[must_use]
pub fn lower_bound(workload: &Workload, cluster: &[Class]) -> f64 {
    let first = workload.tasks.iter().filter(|task| task.spawned_by == NONE).map(|task| task.at).min();
    let first_s = first.map_or(0.0, |at| at.as_secs_f64());
    (longest_chain(workload, cluster) - first_s).max(by_work(workload, cluster) - first_s).max(0.0)
}

/// The end of the longest chain, counted from the arrivals of its tasks.
fn longest_chain(workload: &Workload, cluster: &[Class]) -> f64 {
    let mut ends = vec![0.0f64; workload.tasks.len()];
    let mut latest = 0.0f64;
    for (index, task) in workload.tasks.iter().enumerate() {
        let mut start = task.at.as_secs_f64();
        if task.spawned_by != NONE {
            // It arrives so long after its spawner began.
            let spawner = task.spawned_by as usize;
            let began = ends[spawner] - workload.shortest(spawner as u32, cluster).as_secs_f64();
            start += began;
        }
        for parent in workload.parents_of(index as u32) {
            start = start.max(ends[parent.task as usize]);
        }
        ends[index] = start + workload.shortest(index as u32, cluster).as_secs_f64();
        latest = latest.max(ends[index]);
    }
    latest
}

/// What is asked of the cluster's cores, slots and GPUs from some moment on, spread over all of them.
fn by_work(workload: &Workload, cluster: &[Class]) -> f64 {
    let total = |of: fn(&Class) -> f64| cluster.iter().map(|class| of(class) * f64::from(class.count)).sum::<f64>();
    let slots = total(|class| f64::from(class.slots()) * class.speed);
    let cores = total(|class| class.cores() * class.speed);
    let gpus = total(|class| f64::from(class.gpus) * class.speed);
    let fastest = cluster.iter().map(|class| class.speed).fold(0.0, f64::max);
    let mixed = !workload.by_class.is_empty();
    // From the last arrival back: whatever arrives from a moment on must be done after it.
    let mut order: Vec<u32> = (0..workload.tasks.len() as u32).collect();
    order.sort_by_key(|index| std::cmp::Reverse(workload.tasks[*index as usize].at));
    let (mut sums, mut bound) = ([0.0f64; 3], 0.0f64);
    for index in order {
        let task = &workload.tasks[index as usize];
        // At speed 1, so that a slow worker counts as less than a fast one.
        let seconds = match task.run {
            Run::Same(span) if workload.warmth.list.is_empty() && workload.shape_of(index).timeout.is_none() => {
                span.as_secs_f64()
            }
            Run::Same(_) | Run::ByClass(..) => workload.shortest(index, cluster).as_secs_f64() * fastest,
        };
        let demand = &workload.shape_of(index).demand;
        let of = |resource: ResourceId| {
            demand.amounts().iter().find(|entry| entry.0 == resource).map_or(0.0, |entry| entry.1.as_f64())
        };
        sums[0] += seconds;
        sums[1] += seconds * of(ResourceId::CPUS);
        sums[2] += seconds * of(ResourceId::GPUS);
        let from = if task.spawned_by == NONE { task.at.as_secs_f64() } else { 0.0 };
        for (sum, capacity) in sums.iter().zip([slots, cores, gpus]) {
            if capacity > 0.0 {
                bound = bound.max(from + sum / capacity);
            }
        }
    }
    if mixed { bound.max(unrelated(workload, cluster)) } else { bound }
}

/// For two classes on which tasks take unrelated times: work is spread so that both end together, each task where it is
/// relatively best, the last one split between them. No schedule of whole tasks is shorter.
fn unrelated(workload: &Workload, cluster: &[Class]) -> f64 {
    let [one, other] = cluster else { return 0.0 };
    let seconds =
        |index: u32, class: &Class| workload.duration(index, &class.name).map(|span| span.as_secs_f64() / class.speed);
    let capacity = |class: &Class| f64::from(class.slots()) * f64::from(class.count);
    // What must run on one class does; the rest by how much better it is there.
    let (mut first, mut second, mut free) = (0.0, 0.0, Vec::new());
    for index in 0..workload.tasks.len() as u32 {
        match (seconds(index, one), seconds(index, other)) {
            (Some(a), Some(b)) => free.push((a, b)),
            (Some(a), None) => first += a,
            (None, Some(b)) => second += b,
            (None, None) => {}
        }
    }
    free.sort_by(|x, y| (x.0 * y.1).total_cmp(&(y.0 * x.1)));
    second += free.iter().map(|entry| entry.1).sum::<f64>();
    let (one, other) = (capacity(one), capacity(other));
    for (a, b) in free {
        let (after_first, after_second) = ((first + a) / one, (second - b) / other);
        if after_first >= after_second {
            // Split it so that both end together.
            let share = (second / other - first / one) / (a / one + b / other);
            return (first + a * share.clamp(0.0, 1.0)) / one;
        }
        first += a;
        second -= b;
    }
    (first / one).max(second / other)
}

impl Workload {
    /// The shortest time a task takes on any worker of the cluster, with everything warm that it can use.
    #[must_use]
    pub fn shortest(&self, task: u32, cluster: &[Class]) -> Span {
        let warm = Span(self.warmth.saved.0.saturating_mul(self.warmth.of(task).len() as u64));
        let times = cluster.iter().filter_map(|class| {
            let span = self.duration(task, &class.name)? - warm;
            Some(if class.speed == 1.0 { span } else { span.mul_f64(1.0 / class.speed) })
        });
        // Whoever runs longer than it may is stopped then, and may not be tried again.
        let most = self.shape_of(task).timeout.unwrap_or(Span::MAX);
        times.min().unwrap_or(Span::ZERO).min(most)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use filch_core::Time;

    use super::*;
    use crate::workload::{Parent, Shape, Task};

    /// Tasks that arrive together and take so many seconds.
    pub(crate) fn workload(seconds: &[u64]) -> Workload {
        let mut workload = Workload::new("test");
        let shape = workload.shape(Shape::default());
        for &run in seconds {
            workload.push(Time::ZERO, Span::from_secs(run), shape);
        }
        workload
    }

    #[test]
    fn what_is_stopped_counts_until_then() {
        let mut limited = Workload::new("test");
        let shape = limited.shape(Shape { timeout: Some(Span::from_secs(1)), ..Shape::default() });
        for _ in 0..4 {
            limited.push(Time::ZERO, Span::from_secs(10), shape);
        }
        assert_eq!(lower_bound(&limited, &[Class::plain(2)]), 2.0);
    }

    #[test]
    fn work_is_spread_chains_are_not_and_what_comes_late_ends_late() {
        assert_eq!(lower_bound(&workload(&[1, 2, 3]), &[Class::plain(2)]), 3.0);
        assert_eq!(lower_bound(&workload(&[3, 3, 4]), &[Class::plain(2)]), 5.0);
        let mut chain = workload(&[1, 2, 3]);
        for child in [1, 2] {
            chain.parents.push(Parent { task: child - 1, bytes: 0 });
            chain.tasks[child as usize].parents = (child - 1, 1);
        }
        assert_eq!(lower_bound(&chain, &[Class::plain(9)]), 6.0);
        let mut late = workload(&[1, 2]);
        late.tasks[1].at = Time::ZERO + Span::from_secs(10);
        assert_eq!(lower_bound(&late, &[Class::plain(9)]), 12.0);
        let fast = Class { speed: 2.0, ..Class::plain(1) };
        assert_eq!(lower_bound(&workload(&[3, 3]), &[fast]), 3.0);
    }

    #[test]
    fn on_unrelated_classes_each_task_counts_where_it_is_best() {
        let mut workload = workload(&[0, 0]);
        workload.classes = vec!["a".to_owned(), "b".to_owned()];
        workload.by_class = [(0, 2), (1, 9), (0, 9), (1, 4)].map(|(class, s)| (class, Span::from_secs(s))).to_vec();
        for (at, task) in workload.tasks.iter_mut().enumerate() {
            *task = Task { run: Run::ByClass(2 * at as u32, 2), ..*task };
        }
        let class = |name: &str| Class { name: name.to_owned(), ..Class::plain(1) };
        // Each on its own class: 2 and 4 seconds; split further, the second would end a little sooner, but no task is.
        assert_eq!(lower_bound(&workload, &[class("a"), class("b")]), 4.0);
    }
}
