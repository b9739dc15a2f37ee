//! A large state: thousands of workers, tens of thousands of tasks, checked part by part.

use filch_core::config::{Bind, PolicySpec};
use filch_core::{
    Action, Amount, CapabilityId, Config, Demand, Event, KeyId, KindId, Priority, Remaining, ResourceId, Rng,
    Scheduler, Span, TaskId, TaskSpec, Time, WorkerId, WorkerSpec,
};

use crate::witness::Witness;

fn task(rng: &mut Rng, payload: u64) -> TaskSpec {
    TaskSpec {
        payload,
        kind: KindId(rng.below(20) as u32),
        priority: Priority::from_f64(1.0 + rng.below(5) as f64),
        requires: if rng.below(4) == 0 {
            [CapabilityId(rng.below(30) as u32)].into_iter().collect()
        } else {
            Default::default()
        },
        demand: Demand::new([(ResourceId::CPUS, Amount::from_f64(0.5 * rng.below(5) as f64))]),
        key: (rng.below(20) == 0).then(|| KeyId(rng.below(50) as u32)),
        estimate: (rng.below(2) == 0).then(|| Span::from_millis(rng.below(500) as u64)),
        ..TaskSpec::default()
    }
}

fn judge(witness: &mut Witness, event: &Event, actions: &[Action]) {
    if let Err(violation) = witness.see(event, actions) {
        panic!("{violation}\nafter {event:?}");
    }
}

/// Notes who is there and who holds what.
fn learn(actions: &[Action], hosts: &mut Vec<WorkerId>, held: &mut Vec<(TaskId, u32)>) {
    for action in actions {
        match *action {
            Action::Joined { worker, .. } => hosts.push(worker),
            Action::Assign { task, attempt, .. } => held.push((task, attempt)),
            Action::Revoke { task, attempt, .. } => held.retain(|known| *known != (task, attempt)),
            _ => {}
        }
    }
}

fn play(bind: Bind, seed: u64, workers: usize, steps: u64) {
    let mut rng = Rng::new(seed);
    let mut config = Config { seed, ..Config::default() };
    config.scheduling.bind = bind;
    config.scheduling.policy = PolicySpec::Name("expected_completion".to_owned());
    config.scheduling.aging_interval = Span::from_millis(200);
    config.load_balancing.thresholds.rebalance_interval_sec = 0.01;
    let mut scheduler = Scheduler::new(&config).expect("the policy exists");
    let mut witness = Witness::new(&config);
    let (mut now, mut actions, mut payload) = (Time::ZERO, Vec::new(), 0);
    let (mut hosts, mut held): (Vec<WorkerId>, Vec<(TaskId, u32)>) = (Vec::new(), Vec::new());
    let mut most = 0;
    for round in 0..steps {
        now = now + Span::from_micros(rng.below(40) as u64);
        let worker = hosts.get(rng.below(hosts.len().max(1))).copied();
        let event = match (rng.below(100), worker) {
            (0..=39, Some(_)) => {
                payload += 1;
                Event::Submit(Box::new(task(&mut rng, payload)))
            }
            (40, Some(_)) => {
                payload += 1;
                Event::SubmitArray { template: Box::new(task(&mut rng, payload)), count: rng.below(40) as u32 }
            }
            (41..=65, Some(worker)) => Event::Pull { worker, wait: rng.below(2) == 0 },
            (66..=90, Some(_)) if !held.is_empty() => {
                let (task, attempt) = held.swap_remove(rng.below(held.len()));
                Event::Finish { task, attempt }
            }
            (91, Some(thief)) => Event::Steal { thief },
            (92, Some(worker)) if hosts.len() > workers / 2 => {
                hosts.retain(|known| *known != worker);
                Event::Leave { worker, remaining: Remaining::Requeue }
            }
            _ if hosts.len() < workers => Event::Join(WorkerSpec {
                capabilities: (0..rng.below(4)).map(|_| CapabilityId(rng.below(30) as u32)).collect(),
                slots: 1 + rng.below(4) as u32,
                ..WorkerSpec::default()
            }),
            _ => Event::Tick,
        };
        if scheduler.next_timer().is_some_and(|due| due <= now) {
            actions.clear();
            scheduler.step(now, Event::Tick, &mut actions);
            judge(&mut witness, &Event::Tick, &actions);
            learn(&actions, &mut hosts, &mut held);
        }
        witness.hear(now, &event);
        actions.clear();
        scheduler.step(now, event.clone(), &mut actions);
        judge(&mut witness, &event, &actions);
        learn(&actions, &mut hosts, &mut held);
        if let Err(violation) = scheduler.check_part(round) {
            panic!("{violation}\nafter {event:?}");
        }
        most = most.max(scheduler.unsettled());
    }
    scheduler.check().expect("every invariant holds");
    assert!(most > 10_000, "only {most} tasks were there at once");
}

#[test]
fn a_large_state_holds_its_invariants() {
    play(Bind::Late, 1, 2000, 100_000);
    play(Bind::Push, 2, 2000, 100_000);
}
