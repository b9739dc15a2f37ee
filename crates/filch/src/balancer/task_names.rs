//! Which task has which name.
//!
//! Many small tables instead of a large one: a table that grows or shrinks moves its names while everybody waits for the lock,
//! and of ten million names that would be half a second at once. Never decides how long a name is kept.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use filch_core::TaskId;
use filch_core::map::Map;

/// How many tables there are.
const TABLES: usize = 256;
/// A table that had this many names is worth shrinking.
const MANY: usize = 32;

#[derive(Default)]
struct Table {
    tasks: Map<Arc<str>, TaskId>,
    /// The most names there were since it was last made smaller.
    most: usize,
}

/// All names of tasks.
pub(crate) struct TaskNames {
    tables: Vec<Table>,
}

impl Default for TaskNames {
    fn default() -> Self {
        TaskNames { tables: (0..TABLES).map(|_| Table::default()).collect() }
    }
}

impl TaskNames {
    /// The table of a name. The tables themselves look at the lowest and the highest bits of the hash.
    fn table(&self, name: &str) -> usize {
        let hash = self.tables[0].tasks.hasher().hash_one(name);
        (hash >> 40) as usize % TABLES
    }

    pub(crate) fn get(&self, name: &str) -> Option<TaskId> {
        self.tables[self.table(name)].tasks.get(name).copied()
    }

    pub(crate) fn insert(&mut self, name: Arc<str>, task: TaskId) {
        let at = self.table(&name);
        let table = &mut self.tables[at];
        table.tasks.insert(name, task);
        table.most = table.most.max(table.tasks.len());
    }

    /// Forgets a name. Where few are left of many in its table, that is made smaller; what is moved is an eighth of what was
    /// removed at the most, so a removal costs no more than before on average.
    pub(crate) fn remove(&mut self, name: &str) {
        let at = self.table(name);
        let table = &mut self.tables[at];
        table.tasks.remove(name);
        let left = table.tasks.len();
        if table.most >= MANY && left <= table.most / 8 {
            table.tasks.shrink_to(left * 2);
            table.most = left;
        }
    }

    /// Names that memory is held for, for tests of how much that is.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.tables.iter().map(|table| table.tasks.capacity()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_that_comes_or_goes_moves_many_others() {
        let mut names = TaskNames::default();
        let count = 100_000;
        let name = |at: usize| -> Arc<str> { format!("task-{at}").into() };
        let task = |at: usize| TaskId::from_bits(at as u64);
        for at in 0..count {
            names.insert(name(at), task(at));
        }
        let largest = |names: &TaskNames| names.tables.iter().map(|table| table.tasks.len()).max();
        assert!(largest(&names).is_some_and(|most| most < 2 * count / TABLES), "{:?}", largest(&names));
        assert!((0..count).all(|at| names.get(&name(at)) == Some(task(at))));
        for at in 0..count - 1 {
            names.remove(&name(at));
        }
        assert!(names.room() < 16 * TABLES, "{}", names.room());
        assert_eq!((names.get(&name(0)), names.get(&name(count - 1))), (None, Some(task(count - 1))));
        names.insert(name(count - 1), task(7));
        assert_eq!(names.get(&name(count - 1)), Some(task(7)));
    }
}
