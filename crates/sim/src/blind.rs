//! What a scheduler needs that loses no time at all but, like ours, cannot know how long a task will take: every slot that
//! becomes free begins another task at once, whichever. [`lower_bound`](crate::lower_bound) knows all durations
//! beforehand; what lies between the two is not lost by anybody's decisions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use filch_core::{ResourceId, Rng, Span};

use crate::cluster::Class;
use crate::workload::{NONE, Run, Shape, Workload};

/// Orders tried. Nobody knows which task is the long one, so each of them is as likely as any other.
const ORDERS: u32 = 32;
/// Of more tasks than this it is not worked out: it would take longer than playing them.
const MOST: usize = 100_000;

/// Seconds that such a scheduler needs from the first arrival to the last end, on average over many orders of the tasks. Only
/// for work that leaves nothing to decide but the order: tasks that arrive together, ask for nothing but a slot, depend on
/// nothing and take as long on every worker.
#[must_use]
pub fn blind_makespan(workload: &Workload, cluster: &[Class]) -> Option<f64> {
    let slots: u64 = cluster.iter().map(|class| u64::from(class.count) * u64::from(class.slots())).sum();
    if slots == 0 || !leaves_only_the_order(workload, cluster) {
        return None;
    }
    let mut durations = Vec::with_capacity(workload.tasks.len());
    for index in 0..workload.tasks.len() as u32 {
        durations.push(workload.shortest(index, cluster));
    }
    let mut rng = Rng::new(1);
    let mut sum_s = 0.0;
    for _ in 0..ORDERS {
        for at in (1..durations.len()).rev() {
            durations.swap(at, rng.below(at + 1));
        }
        sum_s += in_order(&durations, slots).as_secs_f64();
    }
    Some(sum_s / f64::from(ORDERS))
}

fn leaves_only_the_order(workload: &Workload, cluster: &[Class]) -> bool {
    let same_speed = cluster.iter().all(|class| class.speed.to_bits() == cluster[0].speed.to_bits());
    // As many cores as every slot has anyway leave nothing to decide.
    let cores = cluster.iter().map(|class| class.cores() / f64::from(class.slots())).fold(f64::INFINITY, f64::min);
    let plain = |shape: &Shape| {
        let mut amounts = shape.demand.amounts().iter();
        let only_a_slot = amounts.all(|(resource, amount)| *resource == ResourceId::CPUS && amount.as_f64() <= cores);
        only_a_slot && shape.requires.is_empty() && shape.key.is_none() && shape.fails == 0.0
    };
    let first = workload.tasks.first().map(|task| task.at);
    (1..=MOST).contains(&workload.tasks.len())
        && same_speed
        && workload.warmth.list.is_empty()
        && workload.shapes.iter().all(plain)
        && workload.tasks.iter().all(|task| {
            matches!(task.run, Run::Same(_)) && Some(task.at) == first && task.parents.1 == 0 && task.spawned_by == NONE
        })
}

/// When the last task ends if each begins, in this order, as soon as a slot is free.
fn in_order(durations: &[Span], slots: u64) -> Span {
    let mut free: BinaryHeap<Reverse<u64>> = BinaryHeap::with_capacity(slots as usize);
    let mut last = 0;
    for duration in durations {
        let begins = if (free.len() as u64) < slots { 0 } else { free.pop().map_or(0, |Reverse(at)| at) };
        let ends = begins.saturating_add(duration.0);
        last = last.max(ends);
        free.push(Reverse(ends));
    }
    Span(last)
}

#[cfg(test)]
mod tests {
    use filch_core::Time;

    use super::*;
    use crate::bound::tests::workload;
    use crate::{Scenario, lower_bound};

    #[test]
    fn whoever_is_free_takes_the_next() {
        let spans = |seconds: &[u64]| seconds.iter().map(|&s| Span::from_secs(s)).collect::<Vec<_>>();
        assert_eq!(in_order(&spans(&[1, 1, 1, 5]), 2), Span::from_secs(6));
        assert_eq!(in_order(&spans(&[5, 1, 1, 1]), 2), Span::from_secs(5));
        assert_eq!(in_order(&spans(&[3, 4]), 9), Span::from_secs(4));
    }

    #[test]
    fn a_long_task_begins_first_last_or_in_between() {
        // 1 1 1 5 on two slots: 5 s if the long one is among the first two, else 6 s.
        let found = blind_makespan(&workload(&[1, 1, 1, 5]), &[Class::plain(2)]).unwrap();
        assert!((5.2..5.8).contains(&found), "{found}");
        assert_eq!(blind_makespan(&workload(&[2, 2, 2, 2]), &[Class::plain(2)]), Some(4.0));
        let fast = Class { speed: 2.0, ..Class::plain(1) };
        assert_eq!(blind_makespan(&workload(&[3, 3]), &[fast]), Some(3.0));
    }

    #[test]
    fn log_normal_tasks_leave_a_quarter_that_nobody_can_save() {
        let scenario = Scenario::builtin("quality").unwrap();
        let ratio = |seed| {
            let (setting, workload) = scenario.make(seed);
            blind_makespan(&workload, &setting.cluster).unwrap() / lower_bound(&workload, &setting.cluster)
        };
        let mean = (1..=20).map(ratio).sum::<f64>() / 20.0;
        assert!((1.22..1.32).contains(&mean), "{mean}");
    }

    #[test]
    fn it_is_never_below_the_bound_and_needs_work_that_leaves_only_the_order() {
        let work = workload(&(1..200).map(|at| at * at % 37 + 1).collect::<Vec<_>>());
        let cluster = [Class::plain(7)];
        assert!(blind_makespan(&work, &cluster).unwrap() >= lower_bound(&work, &cluster));
        let mut late = work.clone();
        late.tasks[9].at = Time::ZERO + Span::from_secs(1);
        let mut spawned = work.clone();
        spawned.tasks[9].spawned_by = 3;
        let mut picky = work.clone();
        picky.shapes[0].fails = 0.5;
        for other in [late, spawned, picky, workload(&[])] {
            assert_eq!(blind_makespan(&other, &cluster), None);
        }
        assert_eq!(blind_makespan(&work, &[Class::plain(1), Class { speed: 2.0, ..Class::plain(1) }]), None);
        assert_eq!(blind_makespan(&work, &[]), None);
    }
}
