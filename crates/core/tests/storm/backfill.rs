//! The promise of reservations in time: what is let past a wide task does not delay it.

use filch_core::{
    Action, Amount, Config, Demand, Event, Reason, ResourceId, Rng, Scheduler, Span, TaskId, TaskSpec, Time, Vector,
    WorkerId, WorkerSpec,
};

/// One worker whose tasks take exactly as long as they were estimated.
struct Shop {
    scheduler: Scheduler,
    worker: WorkerId,
    now: Time,
    /// When the running tasks end.
    ends: Vec<(Time, TaskId)>,
    durations: Vec<Span>,
    actions: Vec<Action>,
    /// From when the wide task should fit, as it was first promised, and when it started.
    promised: Option<Time>,
    started: Option<Time>,
    wide: Option<u64>,
}

impl Shop {
    fn new(slots: u32, cores: u64) -> Shop {
        let mut scheduler = Scheduler::new(&Config::default()).expect("the default policy exists");
        let mut actions = Vec::new();
        let resources = Vector::new([(ResourceId::CPUS, Amount::from_units(cores))]);
        scheduler.step(Time::ZERO, Event::Join(WorkerSpec { slots, resources, ..WorkerSpec::default() }), &mut actions);
        let worker = scheduler.workers().next().expect("it joined");
        let (now, ends, durations) = (Time::ZERO, Vec::new(), Vec::new());
        Shop { scheduler, worker, now, ends, durations, actions, promised: None, started: None, wide: None }
    }

    fn step(&mut self, event: Event) {
        self.actions.clear();
        self.scheduler.step(self.now, event, &mut self.actions);
        for action in &self.actions {
            if let Action::Assign { task, payload, .. } = *action {
                self.ends.push((self.now + self.durations[payload as usize], task));
                if Some(payload) == self.wide {
                    self.started = Some(self.now);
                }
            }
        }
        self.scheduler.check().expect("every invariant holds");
    }

    fn submit(&mut self, cores: u64, seconds: u64) -> TaskId {
        self.durations.push(Span::from_secs(seconds));
        let spec = TaskSpec {
            payload: self.durations.len() as u64 - 1,
            demand: Demand::new([(ResourceId::CPUS, Amount::from_units(cores))]),
            estimate: Some(Span::from_secs(seconds)),
            ..TaskSpec::default()
        };
        self.step(Event::Submit(Box::new(spec)));
        let accepted = self.actions.iter().find_map(|action| match *action {
            Action::Accepted { task, .. } => Some(task),
            _ => None,
        });
        let task = accepted.expect("it was accepted");
        self.step(Event::Pull { worker: self.worker, wait: true });
        task
    }

    /// Lets time pass; whatever ends by then is reported when it ends.
    fn pass(&mut self, pause: Span) {
        let then = self.now + pause;
        loop {
            self.ends.sort_unstable();
            let Some(&(end, task)) = self.ends.first().filter(|entry| entry.0 <= then) else { break };
            self.ends.remove(0);
            self.now = end;
            self.step(Event::Finish { task, attempt: 1 });
            self.step(Event::Pull { worker: self.worker, wait: true });
        }
        self.now = then;
    }
}

#[test]
fn backfilled_tasks_do_not_delay_the_wide_task_beyond_its_reservation() {
    let mut kept = 0;
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let cores = 2 + rng.below(7) as u64;
        let mut shop = Shop::new(2 + rng.below(4) as u32, cores);
        for _ in 0..4 {
            shop.submit(1 + rng.below(cores as usize) as u64, 1 + rng.below(20) as u64);
        }
        shop.wide = Some(shop.durations.len() as u64);
        let wide = shop.submit(cores, 5);
        for _ in 0..60 {
            if shop.promised.is_none() && shop.started.is_none() {
                let reasons = shop.scheduler.explain(wide).expect("it is known").reasons;
                shop.promised = reasons.iter().find_map(|reason| match *reason {
                    Reason::Reserved { from, .. } => Some(from),
                    _ => None,
                });
            }
            // Narrow tasks of all lengths come all the time; without the reservation they would pass it for ever.
            shop.submit(1, 1 + rng.below(30) as u64);
            shop.pass(Span::from_millis(rng.below(2000) as u64));
        }
        shop.pass(Span::from_secs(300));
        if let Some(promised) = shop.promised {
            kept += 1;
            let started = shop.started.expect("the wide task runs in the end");
            assert!(started <= promised, "seed {seed}: promised for {promised:?}, started at {started:?}");
        }
    }
    assert!(kept > 200, "only {kept} wide tasks got a reservation");
}
