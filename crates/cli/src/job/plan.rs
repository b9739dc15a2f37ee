//! A job that is ready to be submitted, and what is known of each of its tasks here: its number, its name, its command.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use filch_core::wire::talk::{Array, Graph, Part, Parts, Submit, Terms, Work, number_of, place_runs};
use filch_node::client::LARGEST_REQUEST;
use prost::Message as _;

use super::Usage;
use super::command::{Command, Filling};
use super::inputs::Inputs;

/// A submission and its tasks.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What the job is called.
    pub(crate) name: String,
    pub(crate) tasks: Tasks,
}

/// The tasks of a job. Knows those that are left out, so that positions in the submission lead to the tasks they are.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    shape: Shape,
    /// Positions of those that are submitted; all, without.
    left: Option<Vec<u32>>,
}

#[derive(Clone, Debug)]
enum Shape {
    Alike(Box<Alike>),
    Graph(Vec<Node>),
}

/// Tasks that differ by their number and input.
#[derive(Clone, Debug)]
pub(super) struct Alike {
    pub(super) command: Command,
    pub(super) work: Work,
    pub(super) terms: Terms,
    pub(super) first: i64,
    pub(super) step: i64,
    pub(super) count: u32,
    pub(super) inputs: Option<Inputs>,
}

/// A task of a graph.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) command: Command,
    pub(super) work: Work,
    pub(super) terms: Terms,
    pub(super) after: Vec<u32>,
}

impl Alike {
    fn number(&self, position: u32) -> i64 {
        number_of(self.first, self.step, position)
    }

    fn filling(&self, position: u32) -> Filling<'_> {
        let input = self.inputs.as_ref().and_then(|inputs| inputs.each.get(position as usize)).map(|bytes| &bytes[..]);
        Filling::new(self.number(position), position, self.work.input(), input)
    }

    fn command(&self, position: u32) -> Cow<'_, Command> {
        // What does not fit was refused before.
        let filled = self.work.placeholders.then(|| self.command.filled(&self.filling(position)).ok()).flatten();
        filled.map_or(Cow::Borrowed(&self.command), Cow::Owned)
    }

    fn part(&self, work: &Work) -> Part {
        let mut terms = self.terms.clone();
        if terms.kind.is_empty() {
            terms.kind = self.command.kind();
        }
        Part { terms: Some(terms), work: Bytes::from(work.encode_to_vec()), ..Part::default() }
    }

    /// All of them, or those that are left.
    fn array(&self, left: Option<&[u32]>) -> Array {
        let all = Array { part: Some(self.part(&self.work)), first: self.first, step: self.step, ..Array::default() };
        let inputs = self.inputs.as_ref().map_or(&[][..], |inputs| &inputs.each);
        let Some(left) = left else { return Array { count: self.count, inputs: inputs.to_vec(), ..all } };
        let inputs = left.iter().filter_map(|position| inputs.get(*position as usize)).cloned().collect();
        Array { count: left.len() as u32, inputs, places: place_runs(left.iter().copied()), ..all }
    }
}

impl Tasks {
    /// How many there are to be run.
    pub(crate) fn len(&self) -> u32 {
        match (&self.left, &self.shape) {
            (Some(left), _) => left.len() as u32,
            (None, _) => self.all(),
        }
    }

    /// How many there are, those that are left out included.
    pub(crate) fn all(&self) -> u32 {
        match &self.shape {
            Shape::Alike(alike) => alike.count,
            Shape::Graph(nodes) => nodes.len() as u32,
        }
    }

    /// The position among all of what stands at `index` of the submission.
    pub(crate) fn position(&self, index: u32) -> u32 {
        match &self.left {
            Some(left) => left.get(index as usize).copied().unwrap_or(index),
            None => index,
        }
    }

    /// What people call the task at a position: its number in an array, or its place in a graph.
    pub(crate) fn number(&self, position: u32) -> i64 {
        match &self.shape {
            Shape::Alike(alike) => alike.number(position),
            Shape::Graph(_) => i64::from(position) + 1,
        }
    }

    /// The position of the task that people call by this number.
    pub(crate) fn position_of(&self, number: i64) -> Option<u32> {
        let (first, step) = match &self.shape {
            Shape::Alike(alike) => (alike.first, alike.step),
            Shape::Graph(_) => (1, 1),
        };
        let (offset, step) = (i128::from(number) - i128::from(first), i128::from(step.max(1)));
        let position = u32::try_from(offset / step).ok().filter(|_| offset % step == 0)?;
        (position < self.all()).then_some(position)
    }

    /// Whether their numbers were asked for, and do not only count inputs or the tasks of a file.
    pub(crate) fn are_an_array(&self) -> bool {
        matches!(&self.shape, Shape::Alike(alike) if alike.work.placeholders && alike.inputs.is_none())
    }

    /// Its name, if it has one.
    pub(crate) fn name(&self, position: u32) -> Option<&str> {
        match &self.shape {
            Shape::Alike(_) => None,
            Shape::Graph(nodes) => nodes.get(position as usize).map(|node| node.name.as_str()),
        }
    }

    /// Its command on one line.
    pub(crate) fn command(&self, position: u32) -> String {
        match &self.shape {
            Shape::Alike(alike) => alike.command(position).show(),
            Shape::Graph(nodes) => nodes.get(position as usize).map_or_else(String::new, |node| node.command.show()),
        }
    }

    /// The names of those that it waits for.
    pub(crate) fn after(&self, position: u32) -> Vec<&str> {
        match &self.shape {
            Shape::Alike(_) => Vec::new(),
            Shape::Graph(nodes) => {
                let after = nodes.get(position as usize).map_or(&[][..], |node| &node.after);
                after.iter().filter_map(|parent| self.name(*parent)).collect()
            }
        }
    }
}

impl Plan {
    pub(super) fn alike(name: String, alike: Alike) -> Plan {
        Plan { name, tasks: Tasks { shape: Shape::Alike(Box::new(alike)), left: None } }
    }

    pub(super) fn graph(name: String, nodes: Vec<Node>) -> Plan {
        Plan { name, tasks: Tasks { shape: Shape::Graph(nodes), left: None } }
    }

    /// Leaves out what is done.
    pub(crate) fn leave_out(&mut self, done: impl Fn(u32) -> bool) {
        self.tasks.left = Some((0..self.tasks.all()).filter(|position| !done(*position)).collect());
    }

    /// The workers that its tasks name.
    pub(crate) fn workers_named(&self) -> impl Iterator<Item = &str> {
        let terms: Vec<&Terms> = match &self.tasks.shape {
            Shape::Alike(alike) => vec![&alike.terms],
            Shape::Graph(nodes) => nodes.iter().map(|node| &node.terms).collect(),
        };
        terms.into_iter().flat_map(|terms| terms.pin.iter().chain(&terms.to)).map(String::as_str)
    }

    /// What is submitted.
    pub(crate) fn submit(&self) -> Submit {
        let (parts, summary) = match &self.tasks.shape {
            Shape::Alike(alike) => (Parts::Array(alike.array(self.tasks.left.as_deref())), alike.command.show()),
            Shape::Graph(nodes) => {
                (self.graph_parts(nodes), format!("{} tasks that depend on each other", nodes.len()))
            }
        };
        Submit { key: new_key(), name: self.name.clone(), parts: Some(parts), summary, ..Submit::default() }
    }

    fn graph_parts(&self, nodes: &[Node]) -> Parts {
        let all: Vec<u32>;
        let left = match &self.tasks.left {
            Some(left) => left,
            None => {
                all = (0..nodes.len() as u32).collect();
                &all
            }
        };
        let parts = left.iter().filter_map(|position| nodes.get(*position as usize)).map(|node| {
            // What is done need not be waited for.
            let after =
                node.after.iter().filter_map(|parent| left.binary_search(parent).ok()).map(|at| at as u32).collect();
            let work = Bytes::from(node.work.encode_to_vec());
            Part { terms: Some(node.terms.clone()), work, name: node.name.clone(), after }
        });
        Parts::Graph(Graph { parts: parts.collect() })
    }

    /// Refuses what cannot be sent in one piece.
    pub(super) fn check_weight(&self) -> Result<(), Usage> {
        let (weight, most) = (self.submit().encoded_len(), LARGEST_REQUEST);
        if weight > most {
            let message =
                format!("the job weighs {} MiB, and at most {} can be submitted at once", weight >> 20, most >> 20);
            return Err(Usage::new(message)
                .help("split it into several, or give the tasks names of files instead of what is in them"));
        }
        Ok(())
    }
}

/// A number that no other submission has.
fn new_key() -> Bytes {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let key = u128::from(fastrand::u64(..)) << 64 ^ u128::from(std::process::id()) << 96 ^ now;
    Bytes::copy_from_slice(&key.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use filch_core::wire::talk::{InputSort, Program};

    use super::*;
    use crate::job::{JobArgs, Refusal, Surroundings};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        job: JobArgs,
    }

    fn plan(words: &[&str]) -> Result<Plan, String> {
        let line = Line::try_parse_from([&["run"], words].concat()).map_err(|error| error.to_string())?;
        line.job.plan(&Surroundings::default()).map_err(|refusal| match refusal {
            Refusal::Usage(usage) => usage.to_string(),
            Refusal::File(errors) => errors.to_string(),
        })
    }

    fn array(plan: &Plan) -> (Array, Work) {
        let Some(Parts::Array(array)) = plan.submit().parts else { panic!("no array") };
        let work = Work::decode(array.part.as_ref().unwrap().work.clone()).unwrap();
        (array, work)
    }

    fn words(work: &Work) -> Vec<String> {
        match &work.program {
            Some(Program::Argv(words)) => {
                words.words.iter().map(|word| String::from_utf8(word.to_vec()).unwrap()).collect()
            }
            Some(Program::Shell(script)) => vec![String::from_utf8(script.to_vec()).unwrap()],
            other => panic!("{other:?}"),
        }
    }

    fn commands(plan: &Plan) -> Vec<String> {
        (0..plan.tasks.len()).map(|index| plan.tasks.command(plan.tasks.position(index))).collect()
    }

    #[test]
    fn an_array_counts_and_says_what_it_needs() {
        let options = "--array 5-9:2 --cpus 2 --memory 1.5G --resource licence=1 --key db=3 --timeout 2m --retries 4 --exclusive --type build --priority 5 --env A=b";
        let line: Vec<&str> = options.split(' ').chain(["--", "/bin/echo", "{}", "-n"]).collect();
        let plan = plan(&line).unwrap();
        let (array, work) = array(&plan);
        assert_eq!((array.first, array.step, array.count, array.inputs.len()), (5, 2, 3, 0));
        assert_eq!((work.first, work.step, work.placeholders), (5, 2, true));
        assert_eq!(words(&work), ["/bin/echo", "{}", "-n"]);
        let terms = array.part.unwrap().terms.unwrap();
        let amounts: Vec<(&str, f64)> = terms.resources.iter().map(|one| (one.name.as_str(), one.amount)).collect();
        assert_eq!(amounts, [("cpus", 2.0), ("memory", 1.5 * 1024.0 * 1024.0 * 1024.0), ("licence", 1.0)]);
        assert_eq!((terms.kind.as_str(), terms.task_type.as_str(), terms.exclusive), ("echo", "build", true));
        assert_eq!((terms.key.as_deref(), terms.key_limit, terms.retries), (Some("db"), Some(3), Some(4)));
        assert_eq!((terms.timeout_nanos, terms.priority), (Some(120_000_000_000), Some(5)));
        assert_eq!(work.env[0].name, "A");
        assert_eq!(commands(&plan), ["/bin/echo 5 -n", "/bin/echo 7 -n", "/bin/echo 9 -n"]);
    }

    #[test]
    fn inputs_without_a_place_become_the_last_argument() {
        let lines = plan(&["gzip", "-9", ":::", "a b", "c"]).unwrap();
        let (array, work) = array(&lines);
        assert_eq!((array.count, work.input()), (2, InputSort::Line));
        assert_eq!(words(&work), ["gzip", "-9", "{}"]);
        assert_eq!(commands(&lines), ["gzip -9 'a b'", "gzip -9 c"]);
        assert_eq!(commands(&plan(&["echo", "x{}", "{n}", ":::", "a"]).unwrap()), ["echo xa 1"]);
        assert_eq!(commands(&plan(&["--shell", "--", "wc -l", ":::", "a b"]).unwrap()), ["wc -l 'a b'"]);
    }

    #[test]
    fn a_single_command_keeps_its_braces() {
        let plan = plan(&["--", "find", ".", "-exec", "ls", "{}", ";"]).unwrap();
        let (array, work) = array(&plan);
        assert_eq!((array.count, work.placeholders), (1, false));
        assert_eq!(commands(&plan), ["find . -exec ls {} ';'"]);
    }

    #[test]
    fn what_is_done_is_left_out_and_the_rest_keeps_its_numbers() {
        let mut resumed = plan(&["--array", "10-19", "--", "echo", "{n}", "{i}"]).unwrap();
        resumed.leave_out(|position| position % 2 == 0 || position > 6);
        let (rest, work) = array(&resumed);
        assert_eq!((rest.first, rest.count, work.first, &rest.places[..]), (10, 3, 10, &[1, 1, 1, 1, 1, 1][..]));
        assert_eq!(commands(&resumed), ["echo 11 1", "echo 13 3", "echo 15 5"]);
        assert_eq!((resumed.tasks.position(1), resumed.tasks.number(3)), (3, 13));
        let mut some = plan(&["echo", ":::", "a", "b", "c"]).unwrap();
        some.leave_out(|position| position == 1);
        assert_eq!(array(&some).0.inputs, ["a", "c"]);
    }

    #[test]
    fn numbers_lead_to_positions() {
        let positions = |words: &[&str], numbers: [i64; 5]| {
            let plan = plan(words).unwrap();
            numbers.map(|number| plan.tasks.position_of(number))
        };
        let array = ["--array", "-1-8:3", "--", "echo"];
        assert_eq!(positions(&array, [-1, 2, 8, 0, 11]), [Some(0), Some(1), Some(3), None, None]);
        assert_eq!(positions(&array, [-4, -2, i64::MIN, i64::MAX, 5]), [None, None, None, None, Some(2)]);
        let list = ["echo", ":::", "a", "b"];
        assert_eq!(positions(&list, [0, 1, 2, 3, -1]), [None, Some(0), Some(1), None, None]);
        let is_array = |words: &[&str]| plan(words).unwrap().tasks.are_an_array();
        assert!(is_array(&array) && !is_array(&list) && !is_array(&["--", "echo"]));
    }

    #[test]
    fn a_million_with_holes_everywhere_is_a_small_submission() {
        let mut resumed = plan(&["--array", "1-1000000", "--", "true", "{}"]).unwrap();
        resumed.leave_out(|position| position % 5 < 2);
        assert_eq!(array(&resumed).0.count, 600_000);
        assert!(resumed.submit().encoded_len() < 1 << 20);
    }

    #[test]
    fn mistakes_are_told_with_what_was_meant() {
        let cases: [(&[&str], &str); 8] = [
            (&[], "there is no command to run"),
            (&["--array", "3-1", "--", "x"], "write `1-3`"),
            (&["--memory", "lots", "--", "x"], "a size is a number"),
            (&["--arry", "1-3", "--", "x"], "--array"),
            (&["--array", "1-3", "--each-line", "x", "--", "x"], "cannot be used with"),
            (&["x", ":::", "a", ":::", "b"], "`:::` stands twice"),
            (&["--priority", "9", "--", "x"], "from 1 (least) to 5"),
            (&["--pin", "a", "--to", "b", "--", "x"], "not both"),
        ];
        for (words, expected) in cases {
            let wrong = plan(words).unwrap_err();
            assert!(wrong.contains(expected), "{words:?}: {wrong}");
        }
    }

    #[test]
    fn fields_that_an_input_lacks_are_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"[{"name":"a","size":{"x":1}},{"name":"b"}]"#).unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(commands(&plan(&["--each-json", path, "--", "echo", "{name}"]).unwrap()), ["echo a", "echo b"]);
        let wrong = plan(&["--each-json", path, "--", "echo", "{size.x}"]).unwrap_err();
        assert!(wrong.starts_with("input 2: `{size.x}` stands for nothing here"), "{wrong}");
        let wrong = plan(&["--array", "1-3", "--", "echo", "{size}"]).unwrap_err();
        assert!(wrong.starts_with("`{size}` stands for nothing here"), "{wrong}");
    }

    #[test]
    fn job_files_become_graphs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "name: all\ndefaults: { retries: 2, env: { A: x } }\ntasks:\n  - { name: last, command: [cat, a], after: [shard], retries: 0 }\n  - { name: shard, command: 'echo {n}', array: 3-4, after: first }\n  - { name: first, command: 'true', memory: 1024 }\n";
        std::fs::write(file.path(), text).unwrap();
        let plan = plan(&["--file", file.path().to_str().unwrap(), "--priority", "2"]).unwrap();
        assert_eq!(plan.name, "all");
        assert_eq!(commands(&plan), ["cat a", "echo 3", "echo 4", "true"]);
        let Some(Parts::Graph(graph)) = plan.submit().parts else { panic!("no graph") };
        let after: Vec<&[u32]> = graph.parts.iter().map(|part| part.after.as_slice()).collect();
        assert_eq!(after, [&[1u32, 2][..], &[3], &[3], &[]]);
        let names: Vec<&str> = graph.parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["last", "shard[3]", "shard[4]", "first"]);
        let terms: Vec<&Terms> = graph.parts.iter().map(|part| part.terms.as_ref().unwrap()).collect();
        assert_eq!(terms.iter().map(|terms| terms.retries).collect::<Vec<_>>(), [Some(0), Some(2), Some(2), Some(2)]);
        assert!(terms.iter().all(|terms| terms.priority == Some(2)));
        assert_eq!((terms[3].resources[0].name.as_str(), terms[3].resources[0].amount), ("memory", 1024.0));
        // What is done need not be waited for.
        let mut rest = plan;
        rest.leave_out(|position| position == 3 || position == 1);
        let Some(Parts::Graph(graph)) = rest.submit().parts else { panic!("no graph") };
        let after: Vec<&[u32]> = graph.parts.iter().map(|part| part.after.as_slice()).collect();
        assert_eq!(after, [&[1u32][..], &[]]);
    }
}
