//! Scenario files: what happens in, what the scheduler does out, side by side in `scenarios/*.scn`.
//!
//! A file may begin with a configuration between two `---` lines. Then every line at the margin is an event or a question
//! (see [`Play::run`]), and the indented lines below it are what came of it. Run with `FILCH_UPDATE=1` to write them anew,
//! and read the difference: a wrong trace must not be kept. Nothing but this file touches the scheduler's interface.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test reads scenario files and how to run from its surroundings"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use filch_core::config::PolicySpec;
use filch_core::steal::StealOutcome;
use filch_core::{
    Action, Amount, CandidateFate, CapabilitySet, Cause, Config, Decision, Demand, Event, Explanation, GraphTask,
    JobExplanation, JobId, Lack, LoadReport, Names, ParentFailure, Priority, Reason, Refusals, Remaining, ResourceId,
    RetryTerms, Scheduler, Span, Status, TaskId, TaskSpec, Time, Vector, WorkerChange, WorkerId, WorkerSpec,
    WorkerState,
};

/// One scenario while it is played.
struct Play {
    scheduler: Scheduler,
    names: Names,
    now: Time,
    actions: Vec<Action>,
    workers: BTreeMap<String, WorkerId>,
    tasks: BTreeMap<String, TaskId>,
    jobs: BTreeMap<String, JobId>,
    /// Names by the handles that the scheduler passes through.
    payloads: Vec<String>,
    tags: Vec<String>,
    shown: BTreeMap<TaskId, String>,
    worker_names: BTreeMap<WorkerId, String>,
    /// Names for the jobs that open next.
    opening: Vec<String>,
    out: String,
}

/// The words of a line: `key=value` and bare ones.
struct Words<'a> {
    bare: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Words<'a> {
        let (mut bare, mut options) = (Vec::new(), BTreeMap::new());
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => {
                    options.insert(key, value);
                }
                None => bare.push(word),
            }
        }
        Words { bare, options }
    }

    fn has(&self, word: &str) -> bool {
        self.bare.contains(&word)
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.options.get(key).copied()
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.get(key).map(|value| value.parse().unwrap_or_else(|_| panic!("`{key}` should be a number: {value}")))
    }

    fn span(&self, key: &str) -> Option<Span> {
        self.get(key).map(span)
    }
}

fn span(text: &str) -> Span {
    let at = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..at].parse().unwrap_or_else(|_| panic!("not a span: {text}"));
    let unit = match &text[at..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        other => panic!("not a unit of time: {other}"),
    };
    Span::from_nanos((number * unit * 1e9).round() as u64)
}

fn seconds(nanos: u64) -> String {
    if nanos == u64::MAX {
        return "never".to_owned();
    }
    format!("{}s", nanos as f64 / 1e9)
}

fn waits(waiting: Span) -> String {
    if waiting.0 > 0 { format!(", waiting {}", seconds(waiting.0)) } else { String::new() }
}

fn word(value: impl std::fmt::Debug) -> String {
    let mut text = String::new();
    for c in format!("{value:?}").chars() {
        if c.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(c.to_lowercase());
    }
    text
}

fn score(value: f64) -> String {
    let text = format!("{:.4}", if value == 0.0 { 0.0 } else { value });
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Play {
    fn new(config: &Config) -> Play {
        let mut names = Names::default();
        let mut scheduler = Scheduler::new(config).expect("the policies exist");
        scheduler.use_policies_per_type(&mut names).expect("the policies per type exist");
        Play {
            scheduler,
            names,
            now: Time::ZERO,
            actions: Vec::new(),
            workers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            jobs: BTreeMap::new(),
            payloads: Vec::new(),
            tags: Vec::new(),
            shown: BTreeMap::new(),
            worker_names: BTreeMap::new(),
            opening: Vec::new(),
            out: String::new(),
        }
    }

    // ---- names ----

    fn worker(&self, name: &str) -> WorkerId {
        *self.workers.get(name).unwrap_or_else(|| panic!("no worker is called `{name}`"))
    }

    fn task(&self, name: &str) -> TaskId {
        *self.tasks.get(name).unwrap_or_else(|| panic!("no task is called `{name}`"))
    }

    fn job(&self, name: &str) -> JobId {
        *self.jobs.get(name).unwrap_or_else(|| panic!("no job is called `{name}`"))
    }

    fn attempt(&self, words: &Words<'_>, name: &str) -> (TaskId, u32) {
        let task = self.task(name);
        let named = words.number("attempt").map(|attempt| attempt as u32);
        (task, named.or_else(|| self.scheduler.holder(task).map(|holder| holder.1)).unwrap_or(1))
    }

    fn task_name(&self, id: TaskId) -> String {
        self.shown.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    fn worker_name(&self, id: WorkerId) -> String {
        self.worker_names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    fn job_name(&self, id: JobId) -> String {
        self.jobs.iter().find(|entry| *entry.1 == id).map_or_else(|| id.to_string(), |entry| entry.0.clone())
    }

    /// A sentence of the core with its numbers replaced by names.
    fn named(&self, text: &str) -> String {
        let part = |word: &str| {
            let bare = word.trim_end_matches([',', ';', '.', ':']);
            let tail = &word[bare.len()..];
            let task = self.shown.iter().find(|entry| entry.0.to_string() == bare).map(|entry| entry.1.clone());
            let worker = self.worker_names.iter().find(|entry| entry.0.to_string() == bare);
            let job = self.jobs.iter().find(|entry| entry.1.to_string() == bare);
            let name = task.or(worker.map(|entry| entry.1.clone())).or(job.map(|entry| entry.0.clone()));
            format!("{}{tail}", name.unwrap_or_else(|| bare.to_owned()))
        };
        text.split(' ').map(part).collect::<Vec<_>>().join(" ")
    }

    // ---- descriptions ----

    fn capabilities(&mut self, list: Option<&str>) -> CapabilitySet {
        let list = list.unwrap_or_default().split(',').filter(|name| !name.is_empty());
        list.map(|name| self.names.capability(name)).collect()
    }

    fn amounts(&mut self, words: &Words<'_>) -> Vec<(ResourceId, Amount)> {
        let listed = ["cpus", "memory", "gpus", "gpu_memory", "bandwidth"];
        let found = listed.iter().filter_map(|&name| Some((name, words.number(name)?)));
        found.map(|(name, amount)| (self.names.resource(name), Amount::from_f64(amount))).collect()
    }

    fn worker_spec(&mut self, words: &Words<'_>, name: &str) -> WorkerSpec {
        self.tags.push(name.to_owned());
        let default = WorkerSpec::default();
        WorkerSpec {
            tag: self.tags.len() as u64 - 1,
            capabilities: self.capabilities(words.get("can")),
            resources: Vector::new(self.amounts(words)),
            slots: words.number("slots").map_or(default.slots, |slots| slots as u32),
            speed: words.number("speed").unwrap_or(default.speed),
            cost_rate: words.number("cost").unwrap_or(default.cost_rate),
            weight: words.number("weight").unwrap_or(default.weight),
        }
    }

    fn task_spec(&mut self, words: &Words<'_>, name: &str) -> TaskSpec {
        self.payloads.push(name.to_owned());
        let affinity = words.get("affinity").map(|text| {
            let (key, saved) = text.split_once(':').expect("affinity=KEY:SPAN");
            (self.names.affinity(key), span(saved))
        });
        let retry = words.get("retry").map(|text| {
            let (most, backoff) = text.split_once('x').expect("retry=TIMESxSPAN");
            let backoff_max = Span::from_secs(60);
            RetryTerms { max_retries: most.parse().expect("a number"), backoff: span(backoff), backoff_max }
        });
        TaskSpec {
            payload: self.payloads.len() as u64 - 1,
            kind: self.names.kind(words.get("kind").unwrap_or_default()),
            task_type: self.names.task_type(words.get("type").unwrap_or_default()),
            priority: words.number("priority").map(Priority::from_f64).unwrap_or_default(),
            requires: self.capabilities(words.get("requires")),
            skills: self.capabilities(words.get("skills")),
            demand: Demand::new(self.amounts(words)),
            key: words.get("key").map(|key| self.names.key(key)),
            exclusive: words.has("exclusive"),
            idempotent: words.has("idempotent"),
            estimate: words.span("estimate"),
            deadline: words.span("deadline").map(|after| self.now + after),
            timeout: words.span("timeout"),
            retry,
            affinity: affinity.into_iter().collect(),
            pin: words.get("pin").map(|name| self.worker(name)),
            seeded: words.get("to").map(|name| self.worker(name)),
            parent: words.get("parent").map(|name| self.task(name)),
            after: words
                .get("after")
                .into_iter()
                .flat_map(|list| list.split(','))
                .map(|name| self.task(name))
                .collect(),
            on_parent_failure: match words.get("on_failure") {
                None | Some("fail") => ParentFailure::Fail,
                Some("skip") => ParentFailure::Skip,
                Some("run") => ParentFailure::Run,
                Some(other) => panic!("on_failure={other}"),
            },
            job: words.get("job").map(|name| self.job(name)),
        }
    }

    // ---- commands ----

    /// Runs one line.
    ///
    /// ```text
    /// worker NAME [can=a,b] [slots=2] [cpus= memory= gpus= gpu_memory= bandwidth=] [speed= cost= weight=]
    /// change NAME [can=] [slots=] [cpus= …] [speed= cost= weight=] [drain | resume]
    /// report NAME     silent NAME     leave NAME [requeue]
    /// task NAME [priority= kind= type= requires= skills= cpus= … key= estimate= deadline= timeout= retry=2x1s
    ///            affinity=KEY:SPAN pin= parent= after=a,b on_failure=skip job= exclusive idempotent]
    /// tasks PREFIX COUNT [as task]       many JOB a b c [as task]     graph JOB a b:a c:a,b [as task]
    /// array JOB COUNT [as task]          job NAME [weight=]           close JOB
    /// pull WORKER [wait]   withdraw WORKER   start TASK   finish TASK   fail TASK [final]   give_back TASK   (attempt=N)
    /// cancel TASK | JOB[INDEX]     cancel_job JOB      steal WORKER     rebalance     limit KEY N     policy NAME [type=]
    /// wait SPAN   explain TASK   explain_job JOB   show WORKER      devices TASK      metrics NAME…      health      can WORKER [as task]
    /// ```
    fn run(&mut self, line: &str) {
        let words = Words::new(line);
        let (command, names) = (words.bare[0], &words.bare[1..]);
        let name = names.first().copied().unwrap_or_default();
        let event = match command {
            "worker" => Event::Join(self.worker_spec(&words, name)),
            "change" => {
                let amounts = self.amounts(&words);
                let change = WorkerChange {
                    capabilities: words.get("can").map(|list| self.capabilities(Some(list))),
                    resources: (!amounts.is_empty()).then(|| Vector::new(amounts)),
                    slots: words.number("slots").map(|slots| slots as u32),
                    speed: words.number("speed"),
                    cost_rate: words.number("cost"),
                    weight: words.number("weight"),
                    draining: if words.has("drain") { Some(true) } else { words.has("resume").then_some(false) },
                };
                Event::Change { worker: self.worker(name), change }
            }
            "report" => Event::Report { worker: self.worker(name), load: LoadReport::default() },
            "silent" => Event::Silent { worker: self.worker(name) },
            "leave" => {
                let remaining = if words.has("requeue") { Remaining::Requeue } else { Remaining::Return };
                Event::Leave { worker: self.worker(name), remaining }
            }
            "task" => Event::Submit(Box::new(self.task_spec(&words, name))),
            "tasks" => {
                let (count, before) = (names[1].parse().expect("a count"), self.out.len());
                for at in 1..=count {
                    let spec = self.task_spec(&words, &format!("{name}{at}"));
                    self.step(Event::Submit(Box::new(spec)));
                }
                let said = self.out.split_off(before);
                self.out.push_str(&gather_alike(name, &said));
                return;
            }
            "many" => {
                self.opening.push(name.to_owned());
                Event::SubmitMany(names[1..].iter().map(|name| self.task_spec(&words, name)).collect())
            }
            "graph" => {
                self.opening.push(name.to_owned());
                Event::SubmitGraph(self.graph(&words, &names[1..]))
            }
            "array" => {
                self.opening.push(name.to_owned());
                let template = Box::new(self.task_spec(&words, name));
                Event::SubmitArray { template, count: names[1].parse().expect("a count") }
            }
            "job" => {
                self.opening.push(name.to_owned());
                Event::OpenJob { weight: words.number("weight").unwrap_or(1.0) }
            }
            "close" => Event::CloseJob { job: self.job(name) },
            "pull" => Event::Pull { worker: self.worker(name), wait: words.has("wait") },
            "withdraw" => Event::Withdraw { worker: self.worker(name) },
            "start" | "finish" | "fail" | "give_back" => {
                let (task, attempt) = self.attempt(&words, name);
                match command {
                    "start" => Event::Start { task, attempt },
                    "finish" => Event::Finish { task, attempt },
                    "fail" => Event::Fail { task, attempt, retry: !words.has("final") },
                    _ => Event::GiveBack { task, attempt },
                }
            }
            "cancel" => match name.split_once('[') {
                Some((job, index)) if !self.tasks.contains_key(name) => {
                    let index = index.trim_end_matches(']').parse().expect("an index");
                    Event::CancelElement { job: self.job(job), index }
                }
                _ => Event::Cancel { task: self.task(name) },
            },
            "cancel_job" => Event::CancelJob { job: self.job(name) },
            "steal" => Event::Steal { thief: self.worker(name) },
            "rebalance" => Event::Rebalance,
            "limit" => Event::SetKeyLimit { key: self.names.key(name), limit: names[1].parse().expect("a limit") },
            "policy" => Event::SetPolicy {
                task_type: words.get("type").map(|name| self.names.task_type(name)),
                policy: PolicySpec::Name(name.to_owned()),
            },
            "wait" => {
                self.wait(span(name));
                return;
            }
            question => {
                self.answer(question, &words, name);
                return;
            }
        };
        self.step(event);
    }

    fn graph(&mut self, words: &Words<'_>, nodes: &[&str]) -> Vec<GraphTask> {
        let plain: Vec<&str> = nodes.iter().map(|node| node.split(':').next().unwrap_or(node)).collect();
        let position = |name: &str| plain.iter().position(|node| *node == name).unwrap_or(99) as u32;
        let mut graph = Vec::new();
        for (node, &name) in nodes.iter().zip(&plain) {
            let parents = node.split_once(':').map(|entry| entry.1).into_iter().flat_map(|list| list.split(','));
            let mut spec = self.task_spec(words, name);
            // `NAME@SPAN` is a task of the graph with its own estimate.
            if let Some((_, estimate)) = name.split_once('@') {
                spec.estimate = Some(span(estimate));
            }
            graph.push(GraphTask { spec, parents: parents.map(position).collect() });
        }
        graph
    }

    fn wait(&mut self, pause: Span) {
        let then = self.now + pause;
        while let Some(due) = self.scheduler.next_timer().filter(|due| *due <= then) {
            self.now = self.now.max(due);
            let before = self.out.len();
            self.step(Event::Tick);
            if self.out.len() > before {
                self.out.insert_str(before, &format!("    at {}\n", seconds(self.now.0)));
            }
        }
        self.now = then;
    }

    fn step(&mut self, event: Event) {
        self.actions.clear();
        let mut actions = std::mem::take(&mut self.actions);
        self.scheduler.step(self.now, event, &mut actions);
        let refusal = self.scheduler.take_refusal();
        for action in &actions {
            self.learn(action);
        }
        for action in &actions {
            if *action == Action::Refused {
                let why = refusal.as_ref().map(|refusal| self.named(&refusal.to_string())).unwrap_or_default();
                self.say(&format!("refused: {why}"));
            } else {
                self.show(action);
            }
        }
        for action in &actions {
            if let Action::JobDone { job } = action {
                self.jobs.retain(|_, known| known != job);
            }
        }
        self.actions = actions;
        self.opening.clear();
        if let Err(violation) = self.scheduler.check() {
            panic!("{violation}");
        }
    }

    /// Notes the ids that an action hands out.
    fn learn(&mut self, action: &Action) {
        match *action {
            Action::Joined { tag, worker } => {
                let name = self.tags[tag as usize].clone();
                self.worker_names.insert(worker, name.clone());
                self.workers.insert(name, worker);
            }
            Action::Opened { job } if !self.opening.is_empty() => {
                self.jobs.insert(self.opening.remove(0), job);
            }
            Action::Accepted { task, payload } => {
                let name = self.payloads[payload as usize].clone();
                self.shown.insert(task, name.clone());
                self.tasks.insert(name, task);
            }
            Action::Element { task, payload, index, .. } if !self.shown.contains_key(&task) => {
                let name = format!("{}[{index}]", self.payloads[payload as usize]);
                self.shown.insert(task, name.clone());
                self.tasks.insert(name, task);
            }
            _ => {}
        }
    }

    fn say(&mut self, line: &str) {
        let _ = writeln!(self.out, "    {line}");
    }

    fn show(&mut self, action: &Action) {
        let why = |cause: Cause| if cause == Cause::None { String::new() } else { format!(" ({})", word(cause)) };
        let line = match *action {
            Action::Joined { worker, .. } => format!("{} joined", self.worker_name(worker)),
            Action::Opened { job } => format!("job {} opened", self.job_name(job)),
            Action::JobDone { job } => format!("job {} done", self.job_name(job)),
            Action::Assign { worker, task, attempt, .. } => {
                let again = if attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
                format!("{} -> {}{again}", self.task_name(task), self.worker_name(worker))
            }
            Action::Hand { worker, task, attempt, .. } => {
                let again = if attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
                format!("{} -> the queue of {}{again}", self.task_name(task), self.worker_name(worker))
            }
            Action::Revoke { worker, task, cause, .. } => {
                format!("{} is told to stop {}{}", self.worker_name(worker), self.task_name(task), why(cause))
            }
            Action::Move { task, from, to } => {
                format!("{} moved from {} to {}", self.task_name(task), self.worker_name(from), self.worker_name(to))
            }
            Action::Stole { thief, victim, outcome, tasks } => {
                let thief = self.worker_name(thief);
                match (victim, outcome) {
                    (None, _) => format!("{thief} finds nobody to steal from"),
                    (Some(victim), StealOutcome::Success) => {
                        format!("{thief} steals {tasks} from {}", self.worker_name(victim))
                    }
                    (Some(victim), _) => format!("{thief} gets nothing from {}", self.worker_name(victim)),
                }
            }
            // It follows every assignment and says nothing more.
            Action::Notify { status: Status::Assigned, cause: Cause::None, .. } => return,
            Action::Notify { task, status, worker, cause } => {
                let at = worker.map(|worker| format!(" at {}", self.worker_name(worker))).unwrap_or_default();
                format!("{} {}{at}{}", self.task_name(task), status.name(), why(cause))
            }
            Action::HandedBack { task, .. } => format!("{} handed back", self.task_name(task)),
            Action::ElementsRefused { job, worker, lack } => {
                format!("{}: {} {}", self.job_name(job), self.worker_name(worker), self.lack(lack))
            }
            Action::ElementsSettled { job, count, status, cause } => {
                format!("{count} elements of {} {}{}", self.job_name(job), status.name(), why(cause))
            }
            Action::Accepted { .. }
            | Action::Element { .. }
            | Action::Refused
            | Action::Persist(_)
            | Action::Timer { .. } => return,
        };
        self.say(&line);
    }

    // ---- questions ----

    fn answer(&mut self, question: &str, words: &Words<'_>, name: &str) {
        match question {
            "explain" => {
                let explanation = self.scheduler.explain(self.task(name));
                match explanation {
                    Some(explanation) => self.show_explanation(name, &explanation),
                    None => self.say("unknown"),
                }
            }
            "explain_job" => match self.scheduler.explain_job(self.job(name)) {
                Some(explanation) => self.show_job_explanation(name, &explanation),
                None => self.say("unknown"),
            },
            "show" => self.show_worker(name),
            "devices" => {
                let devices = self.scheduler.devices(self.task(name));
                self.say(&format!("{devices:?}"));
            }
            "metrics" => {
                let metrics = format!("{:?}", self.scheduler.metrics());
                let fields = metrics.trim_start_matches("Metrics { ").trim_end_matches(" }");
                for wanted in &words.bare[1..] {
                    let found = fields.split(", ").find(|field| field.split(':').next() == Some(wanted));
                    self.say(found.unwrap_or_else(|| panic!("there is no metric `{wanted}`")));
                }
            }
            "health" => {
                let health = self.scheduler.health();
                if health.is_good() {
                    self.say("all is well");
                }
                for concern in health.concerns {
                    self.say(&concern.to_string());
                }
            }
            "can" => {
                let spec = self.task_spec(words, "");
                let answer = self.scheduler.can_execute(self.worker(name), &spec).expect("the worker is known");
                let line = answer.map_or_else(|lack| format!("no: {}", self.lack(lack)), |()| "yes".to_owned());
                self.say(&line);
            }
            other => panic!("there is no command `{other}`"),
        }
    }

    fn show_worker(&mut self, name: &str) {
        let status = self.scheduler.worker(self.worker(name)).expect("the worker is known");
        let reserved: Vec<String> = status
            .reserved
            .iter()
            .map(|(what, amount)| {
                format!("{} {amount} of {}", self.names.resources.name(what.0), status.capacity.get(what))
            })
            .collect();
        let reserved = if reserved.is_empty() { "nothing".to_owned() } else { reserved.join(", ") };
        let line = format!(
            "{}: {} queued, {} of {} slots, backlog {}s, reserved {reserved}",
            status.state.name(),
            status.queue_length,
            status.running,
            status.slots,
            score(status.backlog_s)
        );
        self.say(&line);
        let line = format!(
            "{} completed, {} failed, success {}, stole {}, lost {}",
            status.total_completed,
            status.total_failed,
            score(status.success_rate),
            status.stolen,
            status.lost
        );
        self.say(&line);
    }

    fn lack(&self, lack: Lack) -> String {
        match lack {
            Lack::Pinned => "pinned elsewhere".to_owned(),
            Lack::Capability(id) => format!("lacks capability {}", self.names.capabilities.name(id.0)),
            Lack::Skill(id) => format!("lacks skill {}", self.names.capabilities.name(id.0)),
            Lack::FewerSkills { shared, best } => format!("shares {shared} skills, others {best}"),
            Lack::Resource { resource, needs, has } => {
                format!("{needs} {} asked, {has} there", self.names.resources.name(resource.0))
            }
        }
    }

    fn fate(&self, fate: CandidateFate) -> String {
        match fate {
            CandidateFate::Never(lack) => self.lack(lack),
            CandidateFate::NotUp(state) => self.state(state),
            CandidateFate::SetAside { until, failures, times } => {
                format!("set aside until {} (after {failures} failures, time {times})", seconds(until.0))
            }
            CandidateFate::SlotsTaken { used, slots } => format!("{used} of {slots} slots taken"),
            CandidateFate::Short { resource, needs, free } => {
                format!("{needs} {} asked, {free} free", self.names.resources.name(resource.0))
            }
            CandidateFate::KeptFor(task, from) => {
                format!("kept free for {} from {}", self.task_name(task), seconds(from.0))
            }
            CandidateFate::NotAsking => "has not asked".to_owned(),
            CandidateFate::Ready => "ready".to_owned(),
        }
    }

    fn state(&self, state: WorkerState) -> String {
        match state {
            WorkerState::Quarantined(until) => format!("set aside until {}", seconds(until.0)),
            state => state.name().to_owned(),
        }
    }

    fn reason(&self, reason: &Reason) -> Vec<String> {
        let one = match reason {
            Reason::Dependency { parent, status } => {
                format!("after {}, which is {}", self.task_name(*parent), status.name())
            }
            Reason::Key { key, held, limit, ahead } => {
                let key = self.names.keys.name(key.0);
                format!("key {key}: {held} of {limit} tokens held, {ahead} tasks before it")
            }
            Reason::Backoff { until, retries, most } => {
                format!("next attempt at {} (retry {retries} of {most})", seconds(until.0))
            }
            Reason::GivenBack { until, times } => {
                format!("given back {times} times, next attempt at {}", seconds(until.0))
            }
            Reason::Lease { until } => format!("its last holder may be at it until {}", seconds(until.0)),
            Reason::NobodyCan { requeues, most } => format!("nobody can run it (requeued {requeues} of {most} times)"),
            Reason::NoWorkers => "nobody is registered".to_owned(),
            Reason::NoRoom { candidates } => {
                let line = |(worker, fate): &(WorkerId, CandidateFate)| {
                    format!("{}: {}", self.worker_name(*worker), self.fate(*fate))
                };
                return candidates.iter().map(line).collect();
            }
            Reason::Behind { tasks, level } => format!("behind {tasks} tasks in level {level} or above"),
            Reason::AtWorker { worker, ahead, state } => {
                format!("in the queue of {} ({}) behind {ahead}", self.worker_name(*worker), self.state(*state))
            }
            Reason::Reserved { worker, from } => {
                format!("{} is kept free for it from {}", self.worker_name(*worker), seconds(from.0))
            }
        };
        vec![one]
    }

    fn show_explanation(&mut self, name: &str, explanation: &Explanation) {
        let Explanation {
            status, cause, waiting, reasons, refusals, decision, failures, hopeless, failed_parents, ..
        } = explanation;
        let why = if *cause == Cause::None { String::new() } else { format!(" ({})", word(cause)) };
        self.say(&format!("{name} is {}{why}{}", status.name(), waits(*waiting)));
        self.show_reasons(reasons, *hopeless);
        for (parent, status) in failed_parents {
            self.say(&format!("- after {}, which is {}", self.task_name(*parent), status.name()));
        }
        self.show_refusals(refusals);
        for (worker, cause) in failures {
            self.say(&format!("- an attempt at {} ended badly ({})", self.worker_name(*worker), word(cause)));
        }
        if let Some(decision) = decision {
            self.show_decision(decision);
        }
    }

    fn show_job_explanation(&mut self, name: &str, explanation: &JobExplanation) {
        let JobExplanation { rest, status, waiting, reasons, hopeless, refusals, loose, .. } = explanation;
        self.say(&format!("{rest} elements of {name} are {}{}", status.name(), waits(*waiting)));
        self.show_reasons(reasons, *hopeless);
        self.show_refusals(refusals);
        for &element in loose {
            self.say(&format!("- {} waits by itself", self.task_name(element)));
        }
    }

    fn show_reasons(&mut self, reasons: &[Reason], hopeless: Option<(Time, Time)>) {
        for line in reasons.iter().flat_map(|reason| self.reason(reason)).collect::<Vec<_>>() {
            self.say(&format!("- {line}"));
        }
        if let Some((deadline, earliest)) = hopeless {
            self.say(&format!("- due at {}, ends at {} at the earliest", seconds(deadline.0), seconds(earliest.0)));
        }
    }

    fn show_refusals(&mut self, refusals: &Refusals) {
        for (worker, lack) in &refusals.classes {
            self.say(&format!("- {} and its like: {}", self.worker_name(*worker), self.lack(*lack)));
        }
        if refusals.more > 0 {
            self.say(&format!("- and {} classes more", refusals.more));
        }
    }

    fn show_decision(&mut self, decision: &Decision) {
        let worker = self.worker_name(decision.worker);
        if decision.policy.is_empty() {
            self.say(&format!("{worker} asked at {} and it was the first that fitted", seconds(decision.at.0)));
            return;
        }
        self.say(&format!("{} chose {worker} at {}", decision.policy, seconds(decision.at.0)));
        for candidate in &decision.candidates {
            let terms: Vec<String> =
                candidate.terms.iter().map(|(name, value)| format!("{name} {}", score(*value))).collect();
            let total = candidate.score.map_or_else(|| "refused".to_owned(), score);
            let name = self.worker_name(candidate.worker);
            self.say(&format!("  {name}: {total} ({})", terms.join(", ")));
        }
    }
}

/// Plays a file; the same text with what came of every line.
fn play(label: &str, text: &str) -> String {
    let mut rest = text;
    let mut config = Config::default();
    let mut out = String::new();
    // Comments may come before the configuration.
    while let Some(line) = rest.lines().next().filter(|line| line.starts_with('#')) {
        let _ = writeln!(out, "{line}");
        rest = &rest[line.len() + 1..];
    }
    if let Some(body) = rest.strip_prefix("---\n") {
        let (yaml, after) = body.split_once("---\n").expect("the configuration ends with ---");
        config = Config::from_yaml(yaml, label).unwrap_or_else(|errors| panic!("{label}: {errors:?}")).config;
        let _ = write!(out, "---\n{yaml}---\n");
        rest = after;
    }
    let mut play = Play::new(&config);
    for line in rest.lines().filter(|line| !line.starts_with("    ")) {
        let _ = writeln!(out, "{line}");
        if !line.is_empty() && !line.starts_with('#') {
            play.run(line);
            out.push_str(&std::mem::take(&mut play.out));
        }
    }
    out
}

/// Many tasks that were told the same one after another, in one line.
fn gather_alike(name: &str, said: &str) -> String {
    let parse = |line: &str| -> Option<(u32, String)> {
        let (at, tail) = line.strip_prefix(&format!("    {name}"))?.split_once(' ')?;
        Some((at.parse().ok()?, tail.to_owned()))
    };
    let (lines, mut at, mut out) = (said.lines().collect::<Vec<_>>(), 0, String::new());
    while at < lines.len() {
        let tail = parse(lines[at]).map(|first| first.1);
        let alike = |line: &&&str| parse(line).map(|next| next.1) == tail;
        let run = lines[at..].iter().take_while(alike).count();
        match (parse(lines[at]), parse(lines[at + run - 1])) {
            (Some((from, tail)), Some((to, _))) if run > 12 => {
                out.push_str(&format!("    {name}{from} to {name}{to} {tail}\n"));
            }
            _ => lines[at..at + run].iter().for_each(|line| out.push_str(&format!("{line}\n"))),
        }
        at += run;
    }
    out
}

#[test]
fn every_scenario_does_what_its_file_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("the folder is there").map(|e| e.unwrap().path()).collect();
    files.sort();
    let only = std::env::var("FILCH_SCENARIO").ok();
    let mut wrong = String::new();
    for path in &files {
        let label = path.file_name().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        if only.as_ref().is_some_and(|only| !label.contains(only.as_str())) {
            continue;
        }
        let text = std::fs::read_to_string(path).expect("the file can be read");
        let played = std::panic::catch_unwind(|| play(&label, &text));
        let Ok(played) = played else { panic!("{label} could not be played to its end") };
        if played == text {
            continue;
        }
        if std::env::var("FILCH_UPDATE").is_ok() {
            std::fs::write(path, &played).expect("the file can be written");
            continue;
        }
        let differs = played.lines().zip(text.lines().chain(std::iter::repeat(""))).position(|(a, b)| a != b);
        let at = differs.unwrap_or(played.lines().count());
        let show = |text: &str| text.lines().skip(at.saturating_sub(3)).take(8).collect::<Vec<_>>().join("\n");
        let _ = writeln!(wrong, "{label}:{}\n-- expected\n{}\n-- found\n{}\n", at + 1, show(&text), show(&played));
    }
    assert!(wrong.is_empty(), "{wrong}(FILCH_UPDATE=1 writes the files anew; read the difference)");
    assert!(files.len() > 20, "the scenarios are there");
}
