//! Submission: one task, many, an array, a graph; jobs; children of running tasks.

use std::sync::Arc;

use filch_core::map::Map;
use filch_core::{Event, GraphTask, JobId, TaskId, TaskSpec, Time};
use smallvec::SmallVec;

use super::after::After;
use super::state::{Staged, State};
use super::{Balancer, Shared};
use crate::error::Error;
use crate::task::{Dependency, Details, Task, TaskName};

/// Tasks that were submitted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The id of the whole.
    pub id: JobId,
    /// Its tasks, in the order of the submission.
    pub tasks: Vec<TaskId>,
}

/// The tasks of a submission, for those that depend on each other.
struct Positions {
    by_name: Map<Arc<str>, u32>,
    count: usize,
}

impl<T, R> Shared<T, R> {
    /// Everything about a task that can be prepared outside the lock.
    #[inline]
    fn prepare(&self, task: Task<T>, position: u64) -> Result<(TaskSpec, Staged<T>), Error> {
        let Task { payload, mut details } = task;
        let mut spec = match &mut details {
            None => TaskSpec::default(),
            Some(details) => {
                Details::fix_deadline(details, || self.clock.now());
                details.spec(&self.names, &self.retry)?
            }
        };
        spec.payload = position;
        Ok((spec, Staged { payload, details }))
    }
}

/// Where the names that a task depends on may be found beside the tasks submitted before.
#[derive(Clone, Copy)]
enum Siblings<'a> {
    /// It was submitted alone.
    None,
    /// They were submitted with it, but may not be depended on.
    Others(&'a Positions),
    /// The other tasks of its graph.
    Graph(&'a Positions),
}

/// How a task is called by people: by its name, else by its position among others.
fn label(name: Option<&Arc<str>>, position: Option<usize>) -> String {
    match (name, position) {
        (Some(name), _) => name.to_string(),
        (None, Some(position)) => format!("#{position}"),
        (None, None) => "(unnamed)".to_owned(),
    }
}

impl<T, R> State<T, R> {
    /// Turns the names of other tasks and workers into ids. Parents inside a graph are returned by position.
    fn resolve(
        &self,
        now: Time,
        spec: &mut TaskSpec,
        staged: &Staged<T>,
        position: Option<usize>,
        siblings: Siblings<'_>,
    ) -> Result<SmallVec<[u32; 4]>, Error> {
        let mut parents = SmallVec::new();
        let Some(details) = &staged.details else { return Ok(parents) };
        let task = || label(staged.name(), position);
        let unknown = |parent: String| Error::UnknownParent { task: task(), parent };
        if let Some(worker) = &details.pin {
            spec.pin = Some(self.find_worker(worker)?);
        }
        if let Some(parent) = &details.parent {
            // Its own name can mean no other task, since no two that are not settled share one.
            let itself = matches!(parent, TaskName::Name(name) if staged.name() == Some(name));
            let known = self.find_task(parent).ok().filter(|id| !itself && self.status(*id).is_some());
            let id = known.ok_or_else(|| Error::UnknownSpawner { task: task(), parent: parent.to_string() })?;
            if let Some((status, ago)) = self.settled(id, now) {
                return Err(Error::SettledParent { task: task(), parent: self.task_label(id), status, ago });
            }
            spec.parent = Some(id);
        }
        // What is named twice is waited for once.
        let (mut seen, mut seen_inside) = (Map::default(), Map::default());
        for dependency in &details.after {
            let inside = match (dependency, siblings) {
                (Dependency::Position(at), Siblings::Graph(_)) => {
                    Some(u32::try_from(*at).map_err(|_| unknown(format!("#{at}")))?)
                }
                (Dependency::Position(at), Siblings::Others(all)) if *at < all.count => {
                    return Err(Error::Sibling { task: task(), parent: format!("#{at}") });
                }
                (Dependency::Position(at), _) => return Err(unknown(format!("#{at}"))),
                (Dependency::Task(TaskName::Name(name)), Siblings::Graph(all)) => all.by_name.get(name).copied(),
                // Its own name can mean no other task, since no two that are not settled share one.
                (Dependency::Task(TaskName::Name(name)), _) if staged.name() == Some(name) => {
                    return Err(Error::Cycle(vec![name.to_string(); 2]));
                }
                (Dependency::Task(TaskName::Name(name)), Siblings::Others(all)) if all.by_name.contains_key(name) => {
                    return Err(Error::Sibling { task: task(), parent: name.to_string() });
                }
                _ => None,
            };
            match (inside, dependency) {
                (Some(at), _) => {
                    if seen_inside.insert(at, ()).is_none() {
                        parents.push(at);
                    }
                }
                (None, Dependency::Task(parent)) => {
                    let id = self.find_task(parent).map_err(|_| unknown(parent.to_string()))?;
                    if seen.insert(id, ()).is_none() {
                        spec.after.push(id);
                    }
                }
                (None, Dependency::Position(at)) => return Err(unknown(format!("#{at}"))),
            }
        }
        Ok(parents)
    }

    /// Refuses names that are taken, or given twice in the submission.
    fn check_names(&self, parts: &[Staged<T>]) -> Result<Positions, Error> {
        let mut positions = Positions { by_name: Map::default(), count: parts.len() };
        for (position, part) in (0..).zip(parts) {
            self.check_name(part.name())?;
            if let Some(name) = part.name()
                && let Some(first) = positions.by_name.insert(Arc::clone(name), position)
            {
                let (task, first, second) = (name.to_string(), first as usize, position as usize);
                return Err(Error::NamedTwice { task, first, second });
            }
        }
        Ok(positions)
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// Submits one task.
    ///
    /// # Errors
    /// If its name is taken, something it names is not known, a value makes no sense, the queue is full, its deadline is
    /// hopeless (and such are refused), or the balancer is stopped.
    pub fn submit(&self, task: Task<T>) -> Result<TaskId, Error> {
        let shared = &self.shared;
        shared.run_in_background();
        let (spec, staged) = shared.prepare(task, 0)?;
        let mut spec = Box::new(spec);
        shared.with(|state, now, after| {
            let checked = match (&staged.details, state.stopped) {
                (_, true) => Err(Error::Stopped),
                (None, _) => Ok(()),
                (Some(_), _) => {
                    let resolved = state.resolve(now, &mut spec, &staged, None, Siblings::None);
                    resolved.and_then(|_| state.check_name(staged.name()))
                }
            };
            let name = staged.name().cloned();
            state.stage([staged]);
            let result = checked.and_then(|()| {
                let submitted = state.step(now, Event::Submit(spec), after);
                submitted.map_err(|refusal| shared.error(state, now, refusal, |_| label(name.as_ref(), None)))
            });
            state.unstage(after);
            result?;
            state.answers.accepted.first().copied().ok_or(Error::Stopped)
        })
    }

    /// Submits several tasks as one job: all or none.
    ///
    /// # Errors
    /// As for [`submit`](Balancer::submit); then none is submitted.
    pub fn submit_many(&self, tasks: impl IntoIterator<Item = Task<T>>) -> Result<Job, Error> {
        self.submit_job(tasks, false)
    }

    /// Submits tasks that depend on each other, as one job: all or none. A dependency may be a name or a position in the
    /// submission, or any task submitted before.
    ///
    /// ```
    /// use filch::{Balancer, Error, Task};
    ///
    /// let balancer: Balancer = Balancer::builder().build()?;
    /// let graph = [Task::named("build"), Task::named("test").after(["build"]), Task::named("ship").after(["test"])];
    /// let job = balancer.submit_graph(graph)?;
    /// assert_eq!(job.tasks.len(), 3);
    ///
    /// let circle = [Task::named("hen").after(["egg"]), Task::named("egg").after(["hen"])];
    /// let error = balancer.submit_graph(circle).unwrap_err();
    /// assert!(matches!(error, Error::Cycle(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`submit`](Balancer::submit), and if the tasks wait for each other; then none is submitted.
    pub fn submit_graph(&self, tasks: impl IntoIterator<Item = Task<T>>) -> Result<Job, Error> {
        self.submit_job(tasks, true)
    }

    fn submit_job(&self, tasks: impl IntoIterator<Item = Task<T>>, is_graph: bool) -> Result<Job, Error> {
        let shared = &self.shared;
        shared.run_in_background();
        let (mut specs, mut parts) = (Vec::new(), Vec::new());
        for (position, task) in tasks.into_iter().enumerate() {
            let (spec, staged) = shared.prepare(task, position as u64)?;
            specs.push(spec);
            parts.push(staged);
        }
        shared.with(|state, now, after| {
            let labels: Vec<Option<Arc<str>>> = parts.iter().map(|part| part.name().cloned()).collect();
            let event = state.job_event(now, specs, &parts, is_graph);
            state.stage(parts);
            let result = event.and_then(|event| {
                state.step(now, event, after).map_err(|refusal| {
                    let named = |at: u32| labels.get(at as usize).cloned().flatten();
                    shared
                        .error(state, now, refusal, |at| named(at).map_or_else(|| format!("#{at}"), |n| n.to_string()))
                })
            });
            state.unstage(after);
            result?;
            let id = state.answers.opened.ok_or(Error::Stopped)?;
            Ok(Job { id, tasks: std::mem::take(&mut state.answers.accepted) })
        })
    }

    /// Submits `count` tasks that differ only by their [index](crate::Assignment::index). They cost next to nothing until
    /// they are handed out, and get their ids then.
    ///
    /// # Errors
    /// As for [`submit`](Balancer::submit). The template can have no name, no dependencies, no worker it is pinned to and
    /// no job of its own.
    pub fn submit_array(&self, template: Task<T>, count: u32) -> Result<JobId, Error> {
        let shared = &self.shared;
        shared.run_in_background();
        if let Some(name) = template.id() {
            return Err(Error::Invalid(format!("the template of an array cannot have a name, this has `{name}`")));
        }
        let (mut spec, staged) = shared.prepare(template, 0)?;
        shared.with(|state, now, after| {
            if state.stopped {
                state.stage([staged]);
                state.unstage(after);
                return Err(Error::Stopped);
            }
            let resolved = state.resolve(now, &mut spec, &staged, None, Siblings::None);
            spec.payload = state.stage_array(staged, count);
            let template = Box::new(spec);
            let result = resolved.and_then(|_| {
                state
                    .step(now, Event::SubmitArray { template, count }, after)
                    .map_err(|refusal| shared.error(state, now, refusal, |_| "(array)".to_owned()))
            });
            state.unstage_array(after);
            result?;
            state.answers.opened.ok_or(Error::Stopped)
        })
    }

    /// Opens a job that tasks are added to one by one, with [`Task::job`]. `weight` is its share against other jobs.
    ///
    /// # Errors
    /// If the weight is not above 0, or the balancer is stopped.
    pub fn open_job(&self, weight: f64) -> Result<JobId, Error> {
        self.shared.with(|state, now, after| {
            if state.stopped {
                return Err(Error::Stopped);
            }
            let opened = state.step(now, Event::OpenJob { weight }, after);
            opened.map_err(|refusal| self.shared.error(state, now, refusal, |_| String::new()))?;
            state.answers.opened.ok_or(Error::Stopped)
        })
    }

    /// Nothing more will be added to the job.
    ///
    /// # Errors
    /// If there is no such job, or it is done.
    pub fn close_job(&self, job: JobId) -> Result<(), Error> {
        self.shared.tell(Event::CloseJob { job })
    }

    /// Submits a child of a task that is not settled, usually the one that is running.
    ///
    /// The child stands on its own. It belongs to no job unless it [says so](Task::job), so the job of its parent (an array,
    /// say) may be done while the child runs. It stays when its parent is cancelled; whoever wants it gone cancels it too.
    ///
    /// # Errors
    /// As for [`submit`](Balancer::submit), and if the parent is not known or settled.
    pub fn spawn(&self, parent: impl Into<TaskName>, task: Task<T>) -> Result<TaskId, Error> {
        self.submit(task.parent(parent))
    }
}

impl<T, R> State<T, R> {
    fn job_event(
        &self,
        now: Time,
        mut specs: Vec<TaskSpec>,
        parts: &[Staged<T>],
        is_graph: bool,
    ) -> Result<Event, Error> {
        if self.stopped {
            return Err(Error::Stopped);
        }
        let positions = self.check_names(parts)?;
        if !is_graph {
            for (position, (spec, part)) in specs.iter_mut().zip(parts).enumerate() {
                self.resolve(now, spec, part, Some(position), Siblings::Others(&positions))?;
            }
            return Ok(Event::SubmitMany(specs));
        }
        let mut graph = Vec::with_capacity(specs.len());
        for (position, (mut spec, part)) in specs.into_iter().zip(parts).enumerate() {
            let parents = self.resolve(now, &mut spec, part, Some(position), Siblings::Graph(&positions))?;
            graph.push(GraphTask { spec, parents });
        }
        Ok(Event::SubmitGraph(graph))
    }
}

impl<T, R> Shared<T, R> {
    /// Tells the machine something that has no answer but a refusal.
    pub(super) fn tell(&self, event: Event) -> Result<(), Error> {
        self.with(|state, now, after: &mut After<T, R>| {
            state.step(now, event, after).map_err(|refusal| self.error(state, now, refusal, |at| format!("#{at}")))
        })
    }
}
