//! Tests from the numbers in the documents the rules come from, and by hand.

use super::*;

fn peer(slot: u32, depth: u32, load: f64) -> Peer {
    Peer { worker: WorkerId { slot, generation: 0 }, depth, load }
}

struct List(Vec<Peer>);

impl Peers for List {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn get(&self, position: usize) -> Option<Peer> {
        self.0.get(position).copied()
    }
    fn longest(&self) -> impl Iterator<Item = Peer> {
        let mut sorted = self.0.clone();
        sorted.sort_by_key(|peer| std::cmp::Reverse(peer.depth));
        sorted.into_iter()
    }
    fn shortest(&self, depth: u32) -> impl Iterator<Item = Peer> {
        let mut sorted: Vec<_> = self.0.iter().copied().filter(|peer| peer.depth >= depth).collect();
        sorted.sort_by_key(|peer| peer.depth);
        sorted.into_iter()
    }
}

fn chooser(strategy: VictimStrategy) -> VictimChooser {
    VictimChooser::new(&Stealing { strategy, ..Stealing::default() }, 5)
}

fn choose(strategy: VictimStrategy, peers: &List, tried: &[u32]) -> Option<u32> {
    let tried: Vec<_> = tried.iter().map(|&slot| WorkerId { slot, generation: 0 }).collect();
    let thief = WorkerId { slot: 0, generation: 0 };
    match chooser(strategy).choose(&mut Rng::new(1), peers, thief, &tried)? {
        Choice::Victim(peer) => Some(peer.worker.slot),
        Choice::Refused(_) => None,
    }
}

#[test]
fn the_score_is_depth_times_ten_minus_load_times_five() {
    assert_eq!(steal_score(&peer(1, 7, 0.8)), 66.0);
    assert_eq!(steal_score(&peer(1, 0, 1.0)), -5.0);
}

#[test]
fn most_loaded_asks_the_busiest_above_the_threshold() {
    let peers = List(vec![peer(1, 5, 0.0), peer(2, 9, 0.0), peer(3, 6, 0.0)]);
    assert_eq!(choose(VictimStrategy::MostLoaded, &peers, &[]), Some(2));
    assert_eq!(choose(VictimStrategy::MostLoaded, &peers, &[2]), Some(3));
    assert_eq!(choose(VictimStrategy::MostLoaded, &peers, &[2, 3]), None, "5 is not above the threshold of 5");
}

#[test]
fn power_of_two_refuses_fewer_than_four_items_and_the_thief_itself() {
    assert_eq!(choose(VictimStrategy::PowerOfTwo, &List(vec![peer(1, 3, 0.0)]), &[]), None);
    assert_eq!(choose(VictimStrategy::PowerOfTwo, &List(vec![peer(1, 4, 0.0)]), &[]), Some(1));
    assert_eq!(choose(VictimStrategy::PowerOfTwo, &List(vec![peer(0, 9, 0.0)]), &[]), None);
    assert_eq!(choose(VictimStrategy::PowerOfTwo, &List(vec![]), &[]), None);
    let (short, thief) = (peer(1, 3, 0.0), WorkerId { slot: 0, generation: 0 });
    let chooser = chooser(VictimStrategy::PowerOfTwo);
    let search = |peers: Vec<Peer>, tried: &[WorkerId]| chooser.choose(&mut Rng::new(1), &List(peers), thief, tried);
    assert_eq!(search(vec![short], &[]), Some(Choice::Refused(short)), "which is told, to be counted");
    assert_eq!(search(vec![short], &[short.worker]), None);
    assert_eq!(search(vec![peer(0, 9, 0.0)], &[]), None);
}

#[test]
fn power_of_two_takes_the_better_of_the_two_it_drew() {
    let peers = List(vec![peer(1, 4, 0.0), peer(2, 8, 0.0)]);
    let (mut rng, chooser) = (Rng::new(3), chooser(VictimStrategy::PowerOfTwo));
    let thief = WorkerId { slot: 9, generation: 0 };
    let deepest = Some(Choice::Victim(peer(2, 8, 0.0)));
    let deep = (0..1000).filter(|_| chooser.choose(&mut rng, &peers, thief, &[]) == deepest).count();
    // Both draws hit the shallow one in a quarter of the cases.
    assert!((700..800).contains(&deep), "{deep}");
}

#[test]
fn least_loaded_asks_the_shortest_queue_that_has_something_to_give() {
    let peers = List(vec![peer(1, 2, 0.0), peer(2, 9, 0.0), peer(3, 3, 0.0)]);
    assert_eq!(choose(VictimStrategy::LeastLoaded, &peers, &[]), Some(3));
}

#[test]
fn adaptive_turns_to_the_most_loaded_below_thirty_percent_and_back() {
    let mut chooser = chooser(VictimStrategy::Adaptive);
    assert_eq!(chooser.current(), VictimStrategy::PowerOfTwo);
    for attempt in 0..100 {
        assert_eq!(chooser.current(), VictimStrategy::PowerOfTwo, "judged only every 100 attempts");
        chooser.learn(attempt < 29);
    }
    assert_eq!(chooser.current(), VictimStrategy::MostLoaded);
    for attempt in 0..100 {
        chooser.learn(attempt < 30);
    }
    assert_eq!(chooser.current(), VictimStrategy::PowerOfTwo);
}

#[test]
fn guards_keep_what_must_not_or_should_not_move() {
    let guard = Guard::new(&Config::default());
    let second = Span::from_secs(1);
    let loot = Loot {
        priority: 3,
        bound: false,
        thief_can_run: true,
        transfer: Span::ZERO,
        duration_at_thief: second,
        duration_at_victim: second,
    };
    let backlog = second;
    assert_eq!(guard.check(&loot, backlog), Ok(()));
    assert_eq!(guard.check(&Loot { priority: 4, ..loot }, backlog), Err(Kept::Protected));
    assert_eq!(guard.check(&Loot { bound: true, ..loot }, backlog), Err(Kept::Bound));
    assert_eq!(guard.check(&Loot { thief_can_run: false, ..loot }, backlog), Err(Kept::Unfit));
    assert_eq!(guard.check(&Loot { transfer: second, ..loot }, backlog), Err(Kept::NotWorthIt));
    let mut open = Config::default();
    open.load_balancing.priority.preserve_high_priority = false;
    assert_eq!(Guard::new(&open).check(&Loot { priority: 5, ..loot }, backlog), Ok(()));
}

#[test]
fn one_takes_one_and_half_takes_half_of_the_time_but_leaves_the_local_minimum() {
    assert_eq!(haul(Take::One, 9, Span::from_secs(9), 2, NEAR).tasks, 1);
    assert_eq!(haul(Take::One, 2, Span::from_secs(9), 2, NEAR).tasks, 0);
    let half = haul(Take::Half, 6, Span::from_secs(6), 2, NEAR);
    let mut taken = Vec::new();
    let queue = (0..6).map(|task| (task, Span::from_secs(1)));
    assert_eq!(pick(queue, half, |_| Ok(()), &mut taken), None);
    assert_eq!(taken, [0, 1, 2]);
    let mut taken = Vec::new();
    let queue = (0..6).map(|task| (task, Span::from_millis(1)));
    pick(queue, half, |_| Ok(()), &mut taken);
    assert_eq!(taken.len(), 4, "two stay");
}

#[test]
fn enough_is_what_can_begin_at_once_and_more_where_the_way_is_long() {
    let second = Span::from_secs(1);
    let far = |tasks, round_trip| Hunger { tasks, round_trip };
    let taken = |hunger: Hunger, depth: u32| {
        let backlog = Span(second.0 * u64::from(depth));
        let mut taken = Vec::new();
        let haul = haul(Take::Enough, depth, backlog, 0, hunger);
        pick((0..depth).map(|task| (task, second)), haul, |_| Ok(()), &mut taken);
        taken.len()
    };
    assert_eq!(taken(NEAR, 40), 1);
    assert_eq!(taken(far(4, Span::ZERO), 40), 4, "one for every slot that is free");
    assert_eq!(taken(far(4, Span::ZERO), 3), 2, "but not more than half");
    assert_eq!(taken(far(1, Span::from_millis(100)), 40), 7, "the work of 64 round trips");
    assert_eq!(taken(far(1, second), 40), 20, "at most half of the backlog");
    assert_eq!(taken(NEAR, 1), 1, "the last one too");
}

#[test]
fn a_thief_waits_longer_where_the_way_is_long() {
    let timeout = Span::from_millis(100);
    assert_eq!(patience(timeout, Span::from_millis(3)), timeout);
    assert_eq!(patience(timeout, Span::from_millis(80)), Span::from_millis(160));
}

#[test]
fn refused_tasks_are_passed_over_and_named() {
    let mut taken = Vec::new();
    let queue = (0..6).map(|task| (task, Span::from_secs(1)));
    let check = |task| if task < 2 { Err(Kept::Protected) } else { Ok(()) };
    let kept = pick(queue, haul(Take::One, 6, Span::from_secs(6), 2, NEAR), check, &mut taken);
    assert_eq!((taken.as_slice(), kept), (&[2][..], Some(Kept::Protected)));
}

#[test]
fn imbalance_counts_an_empty_queue_as_one() {
    assert!(severely_uneven(4.0, 0.0, 1.0, 3.0));
    assert!(!severely_uneven(3.0, 0.0, 1.0, 3.0));
    assert!(!severely_uneven(6.0, 2.0, 1.0, 3.0));
    assert!(severely_uneven(7.0, 2.0, 1.0, 3.0));
}

#[test]
fn backoff_doubles_within_the_jitter_and_never_exceeds_its_cap() {
    let mut rng = Rng::new(5);
    let (base, cap) = (Span::from_millis(10), Span::from_secs(1));
    let at_the_cap = 1000.0 / 1.5;
    for (failures, expected_ms) in [(0, 10.0), (1, 20.0), (6, 640.0), (7, at_the_cap), (200, at_the_cap)] {
        let mut longest = 0.0f64;
        for _ in 0..100 {
            let millis = backoff(&mut rng, base, cap, 0.5, failures).as_secs_f64() * 1e3;
            assert!((0.5 * expected_ms..=1.5 * expected_ms + 1e-3).contains(&millis), "{failures}: {millis}");
            assert!(millis <= 1000.0, "{failures}: {millis}");
            longest = longest.max(millis);
        }
        assert!(longest > 1.3 * expected_ms, "{failures}: {longest}");
    }
}

#[test]
fn the_report_reads_as_documented() {
    let mut telemetry = StealTelemetry::default();
    let victim = WorkerId { slot: 1, generation: 0 };
    let mut add = |count: u32, micros: Option<u64>, outcome| {
        for _ in 0..count {
            telemetry.record(Some(victim), micros.map(Span::from_micros), outcome);
        }
    };
    add(450, Some(50), StealOutcome::Success);
    add(270, Some(200), StealOutcome::Success);
    add(130, Some(200), StealOutcome::Rejection);
    add(70, Some(700), StealOutcome::Rejection);
    add(30, Some(700), StealOutcome::NetworkError);
    add(50, Some(2500), StealOutcome::Timeout);
    let expected = "Steal Statistics:
  Attempts:    1000
  Successes:   720 (72.0%)
  Failures:    280
    Timeouts:  50
    NetErrors: 30
    Rejections:200
  Latency:
    Avg: 0.30 ms
    Min: 0.05 ms
    Max: 2.50 ms
  Latency Distribution:
    <100us:   450 (45.0%)
    <500us:   400 (40.0%)
    <1ms:     100 (10.0%)
    <5ms:      50 (5.0%)
";
    assert_eq!(telemetry.total().to_string(), expected);
    assert_eq!(telemetry.peer(victim), Some(telemetry.total()));
}

#[test]
fn of_very_many_peers_those_asked_last_are_kept_apart_and_all_are_counted() {
    let mut telemetry = StealTelemetry::of_recent(3);
    for peer in [1, 2, 3, 1, 4, 5] {
        telemetry.record(Some(WorkerId::from_bits(peer)), None, StealOutcome::Timeout);
    }
    let kept: Vec<u64> = telemetry.peers().map(|(peer, _)| peer.to_bits()).collect();
    assert_eq!(kept, [1, 4, 5]);
    assert_eq!(
        (telemetry.total().timeouts, telemetry.peer(WorkerId::from_bits(1)).map(|peer| peer.timeouts)),
        (6, Some(2))
    );
    telemetry.forget(WorkerId::from_bits(4));
    assert_eq!(telemetry.peers().count(), 2);
}
