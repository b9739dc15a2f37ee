//! Telling the pool's owner when spawned tasks start and stop.
//!
//! Without hooks it costs one look at a word that never changes. It never sees forks: those are too small to be watched.

use crate::registry::{Hook, Registry};
use crate::worker;

/// What is called around every spawned task, with the worker's index.
#[derive(Default)]
pub(crate) struct TaskHooks {
    pub(crate) start: Option<Hook>,
    pub(crate) stop: Option<Hook>,
}

/// A task that is being watched: when this goes, also by a panic, the task has stopped.
pub(crate) struct Watch<'a> {
    registry: &'a Registry,
    hooks: &'a TaskHooks,
}

impl Registry {
    /// Says that a task starts. Called on the worker that runs it.
    #[inline]
    pub(crate) fn watch(&self) -> Option<Watch<'_>> {
        let hooks = self.task_hooks.as_deref()?;
        Some(Watch::start(self, hooks))
    }
}

impl<'a> Watch<'a> {
    #[cold]
    fn start(registry: &'a Registry, hooks: &'a TaskHooks) -> Self {
        let watch = Self { registry, hooks };
        watch.call(hooks.start.as_ref());
        watch
    }

    fn call(&self, hook: Option<&Hook>) {
        if let Some(worker) = worker::current_of(self.registry) {
            worker.call_hook(hook);
        }
    }
}

impl Drop for Watch<'_> {
    #[cold]
    fn drop(&mut self) {
        self.call(self.hooks.stop.as_ref());
    }
}
