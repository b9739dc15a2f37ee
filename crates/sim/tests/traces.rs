//! Workloads from files: what each format says arrives in the workload, whatever is wrong is refused with its place, and
//! nothing in a file makes a reader panic.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "a test, which reads files and says what it skips"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use filch_core::{Amount, ResourceId, Span, Time};
use filch_sim::trace::{self, Imported, Recording};
use filch_sim::workload::{Run, Workload};
use filch_sim::{Outcome, Scenario, World};
use proptest::prelude::*;

const SMALL: &[u8] = include_bytes!("traces/small.jsonl");
const SWF: &[u8] = include_bytes!("traces/small.swf");
const WFCOMMONS: &[u8] = include_bytes!("traces/small-wfcommons.json");

fn read(bytes: &[u8]) -> Result<Imported, String> {
    let open = || Ok(Box::new(bytes) as Box<dyn Read>);
    trace::read(&open, "some.file").map_err(|errors| errors.to_string())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn ids(workload: &Workload) -> Vec<&str> {
    workload.ids.iter().map(String::as_str).collect()
}

fn amount(workload: &Workload, task: u32, resource: ResourceId) -> Amount {
    let demand = &workload.shape_of(task).demand;
    demand.amounts().iter().find(|entry| entry.0 == resource).map_or(Amount(0), |entry| entry.1)
}

#[test]
fn a_filch_trace_says_everything_it_can() {
    for bytes in [SMALL.to_vec(), gzip(SMALL)] {
        let imported = read(&bytes).unwrap();
        let workload = &imported.workload;
        // Parents first, otherwise by arrival; a task is handed in when its parents are.
        assert_eq!(ids(workload), ["a", "b", "last", "c", "d", "<script>alert(1)</script>"]);
        assert_eq!(workload.tasks[2].at, Time::ZERO + Span::from_millis(500));
        let parents: Vec<_> = workload.parents_of(2).iter().map(|parent| (parent.task, parent.bytes)).collect();
        assert_eq!(parents, [(0, 1000), (1, 2000)]);
        assert_eq!(workload.duration(0, "cpu"), Some(Span::from_millis(1500)));
        assert_eq!(workload.duration(0, "gpu"), Some(Span::from_millis(250)));
        assert_eq!(workload.duration(1, "cpu"), None);
        assert_eq!(workload.tasks[2].run, Run::Same(Span::from_secs(2)));
        assert_eq!(workload.tasks[1].estimate, Span::from_millis(300));
        assert_eq!(workload.data[0], (10, 20));
        assert_eq!(amount(workload, 1, ResourceId::CPUS), Amount::from_units(2));
        assert_eq!(amount(workload, 1, ResourceId::GPUS), Amount::from_f64(0.5));
        assert_eq!(amount(workload, 1, ResourceId::MEMORY), Amount::from_units(1_000_000));
        assert_eq!(workload.warmth.of(3).len(), 2);
        assert_eq!(workload.warmth.saved, Span::from_millis(500));
        assert_eq!(imported.cluster.len(), 2);
        assert_eq!(imported.cluster[1].gpu_model.as_deref(), Some("T4"));
        assert_eq!(imported.cluster_named(Some("one")).unwrap().len(), 1);
        assert!(imported.cluster_named(Some("onee")).unwrap_err().contains("did you mean `one`?"));
        assert!(workload.notes.iter().any(|note| note.contains("dep_bytes")), "{:?}", workload.notes);
    }
}

#[test]
fn it_is_played_where_it_can_run_and_what_is_warm_saves_time() {
    let scenario = Scenario::of_trace("small.jsonl", None, read(SMALL).unwrap()).unwrap();
    let (mut setting, workload) = scenario.make(1);
    setting.watch = true;
    let mut world = World::new(setting, workload).unwrap();
    world.run(Time::NEVER).unwrap();
    let fates = world.fates();
    assert!(fates.iter().all(|fate| fate.status == Some(filch_core::Status::Completed)));
    // `b` and `d` need the only GPU worker, the third.
    assert_eq!((fates[1].node, fates[4].node), (2, 2));
    let outcome = Outcome::of(&world, 1.0);
    assert!(outcome.efficiency <= 1.0 && !outcome.notes.is_empty(), "{outcome:?}");
    // On one worker, the second of two alike finds everything warm: nothing is left of its second.
    let scenario = Scenario::of_trace("small.jsonl", Some("one"), read(SMALL).unwrap()).unwrap();
    let (setting, workload) = scenario.make(1);
    let mut world = World::new(setting, workload).unwrap();
    world.run(Time::NEVER).unwrap();
    let took = |task: usize| world.fates()[task].ended.since(world.fates()[task].begun).as_secs_f64();
    assert!((took(3) - 1.0).abs() < 0.1 && took(4) < 0.1, "{} {}", took(3), took(4));
}

#[test]
fn an_swf_log_is_one_machine() {
    let imported = read(SWF).unwrap();
    let workload = &imported.workload;
    assert_eq!(ids(workload), ["j1", "j2", "j4"]);
    assert_eq!(imported.cluster[0].cores, Some(8.0));
    assert_eq!(workload.names.kinds.name(workload.shape_of(0).kind.0), "user1/app7");
    assert_eq!(workload.tasks[0].estimate, Span::from_secs(20));
    // What was not allocated was asked for.
    assert_eq!(amount(workload, 2, ResourceId::CPUS), Amount::from_units(2));
    assert_eq!(amount(workload, 1, ResourceId::MEMORY), Amount::from_units(100 * 1024 * 8));
    assert_eq!(workload.parents_of(2)[0].task, 0);
    assert!(workload.notes.iter().any(|note| note.contains("1 jobs never ran")), "{:?}", workload.notes);
    assert!(workload.notes.iter().any(|note| note.contains("thought")), "{:?}", workload.notes);
}

#[test]
fn a_wfcommons_instance_is_a_graph() {
    let imported = read(WFCOMMONS).unwrap();
    let workload = &imported.workload;
    assert_eq!(ids(workload), ["split_ID001", "work_ID002", "work_ID003", "join_ID004"]);
    assert_eq!(workload.names.kinds.name(workload.shape_of(1).kind.0), "work");
    assert_eq!(workload.tasks[0].run, Run::Same(Span::from_millis(1250)));
    // Children count as much as parents.
    assert_eq!(workload.parents_of(3).iter().map(|parent| parent.task).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(workload.parents_of(2)[0].bytes, 200);
    assert_eq!(amount(workload, 1, ResourceId::CPUS), Amount::from_units(2));
    assert_eq!(workload.data[0], (300, 300));
    assert_eq!(imported.cluster.iter().map(|class| class.count).collect::<Vec<_>>(), [2, 1]);
    // Schema 1.4 has all in one place.
    let flat = br#"{"schemaVersion":"1.4","workflow":{"tasks":[
        {"name":"a","runtimeInSeconds":1,"files":[{"name":"x","sizeInBytes":5,"link":"output"}]},
        {"name":"b","runtimeInSeconds":2,"cores":2,"parents":["a"]}]}}"#;
    let imported = read(flat).unwrap();
    assert_eq!(ids(&imported.workload), ["a", "b"]);
    // Nobody said where it ran.
    assert_eq!((imported.cluster[0].count, imported.cluster[0].cores), (2, Some(2.0)));
}

#[test]
fn what_is_written_is_read_back_as_it_was() {
    for bytes in [SMALL, SWF, WFCOMMONS] {
        let first = read(bytes).unwrap();
        for packed in [false, true] {
            let mut written = Vec::new();
            let left_out = trace::write(&mut written, &first.workload, &first.cluster, packed).unwrap();
            assert!(left_out.is_empty(), "{left_out:?}");
            let again = read(&written).unwrap();
            let (one, other) = (&first.workload, &again.workload);
            assert_eq!(one.ids, other.ids);
            assert_eq!(first.cluster, again.cluster);
            assert_eq!((&one.parents, &one.data), (&other.parents, &other.data));
            assert_eq!((&one.by_class, &one.classes), (&other.by_class, &other.classes));
            assert_eq!(one.warmth, other.warmth);
            for (at, (mine, theirs)) in one.tasks.iter().zip(&other.tasks).enumerate() {
                assert_eq!((mine.at, mine.run, mine.estimate), (theirs.at, theirs.run, theirs.estimate));
                let (mine, theirs) = (one.shape_of(at as u32), other.shape_of(at as u32));
                let names = |workload: &Workload, shape: &filch_sim::workload::Shape| {
                    let requires = shape.requires.ids().iter();
                    let mut all: Vec<_> =
                        requires.map(|id| workload.names.capabilities.name(id.0).to_owned()).collect();
                    all.push(workload.names.kinds.name(shape.kind.0).to_owned());
                    all.sort();
                    all
                };
                assert_eq!((names(one, mine), &mine.demand), (names(other, theirs), &theirs.demand));
            }
        }
    }
    let scenario = Scenario::builtin("priority-protection").unwrap();
    let (setting, workload) = scenario.make(1);
    let left_out = trace::write(std::io::sink(), &workload, &setting.cluster, false).unwrap();
    assert!(left_out.contains(&"priorities"), "{left_out:?}");
}

#[test]
fn recordings_are_repeated_and_squeezed() {
    let imported = read(SMALL).unwrap();
    let how = Recording { repeat: 2, arrivals: 0.5, ..Recording::of("x") };
    let workload = imported.play(&how);
    assert_eq!(workload.tasks.len(), 12);
    assert_eq!(workload.tasks.last().unwrap().at, Time::ZERO + Span::from_secs(3));
    assert_eq!(workload.ids[1], "a#2");
    let copy = workload.ids.iter().position(|id| id == "last#2").unwrap() as u32;
    let parents: Vec<_> = workload.parents_of(copy).iter().map(|parent| workload.label(parent.task)).collect();
    assert_eq!(parents, ["a#2", "b#2"]);
    let warm = workload.ids.iter().position(|id| id == "d#2").unwrap() as u32;
    assert_eq!(workload.warmth.of(warm).len(), 2);
}

const HEADER: &str = "{\"filch_trace\":1,\"name\":\"x\",\"cluster\":[{\"class\":\"cpu\",\"count\":1}]}\n";

#[test]
fn mistakes_are_refused_with_their_place_and_what_to_do() {
    let tasks = |lines: &str| format!("{HEADER}{lines}");
    let task = |rest: &str| tasks(&format!("{{\"id\":\"a\",\"run\":1{rest}}}"));
    let cases: Vec<(String, &str, &str)> = vec![
        (task(",\"at\":-1"), "some.file:2:24: error: -1 is negative", "0 or more"),
        (task(",\"at\":NaN"), "some.file:2:", "no NaN"),
        (task(",\"at\":1e999"), "some.file:2:", "number out of range"),
        (task(",\"at\":1e300"), "some.file:2:24: error: 1e300 is too large", "units"),
        (task(",\"dep\":[]"), "unknown field `dep`", "did you mean `deps`?"),
        (task(",\"needs\":{\"gpus\":1.5}"), "some.file:2:35", "whole GPUs"),
        (task(",\"needs\":{\"cpus\":4}"), "no worker can ever run `a`", "`cpu` has 1 of the 4 cpus"),
        (task(",\"deps\":[\"a\"]"), "some.file:2:27: error: these tasks wait for each other: a → a", "take out one"),
        (task(",\"deps\":[\"b\"],\"dep_bytes\":[1,2]"), "2 sizes for 1 parents", "a number for each"),
        (
            tasks("{\"id\":\"a\",\"run\":1}\n{\"id\":\"a\",\"run\":1}"),
            "some.file:3:7: error: the id `a` is there twice",
            "",
        ),
        (
            tasks("{\"id\":\"task1\",\"run\":1}\n\n{\"id\":\"task2\",\"run\":1,\"deps\":[\"task\"]}"),
            "some.file:4:31: error: `task2` waits for `task`, which is no task",
            "did you mean `task1`?",
        ),
        (
            tasks(
                "{\"id\":\"a\",\"run\":1,\"deps\":[\"c\"]}\n{\"id\":\"b\",\"run\":1,\"deps\":[\"a\"]}\n{\"id\":\"c\",\"run\":1,\"deps\":[\"b\"]}",
            ),
            "some.file:2:27: error: these tasks wait for each other: a → c → b → a",
            "none can ever begin",
        ),
        (tasks("{\"id\":\"a\"}"), "missing field `run`", ""),
        (tasks("{\"id\":\"a\",\"run\":{}}"), "some.file:2:17: error: no class can run this task", ""),
        (tasks("{\"id\":\"a\",\"run\":{\"fpga\":1}}"), "`cpu` is not class:fpga", "every cluster"),
        (tasks("{\"id\":\"a\",\"ru"), "some.file:2:", "cut off"),
        (tasks(""), "there is no task in it", ""),
        (HEADER.replace(":1,\"name", ":2,\"name"), "some.file:1:16: error: version 2", "a newer one"),
        (HEADER.replace(":1,\"name", ":\"1\",\"name"), "some.file:1:16", "\"filch_trace\":1"),
        (HEADER.replace("\"count\":1", "\"count\":1.5"), "some.file:1:", "1.5 is not a whole number"),
        (HEADER.replace("\"count\":1", "\"count\":0"), "there are none", ""),
        (HEADER.replace("\"name\"", "\"naem\""), "unknown field `naem`", "did you mean `name`?"),
        (String::new(), "the file is empty", "SWF"),
        ("hello\n".to_owned(), "some.file:1:1: error: this is no workload that filch knows", "WfCommons"),
        ("{\"a\":1}".to_owned(), "neither `filch_trace` nor a `workflow`", ""),
        ("1 2 3 4 5 6".to_owned(), "a job has 18 fields and this line has 6", ""),
        ("1 0 -1 ten 4 -1 -1 4 -1 -1 1 1 1 -1 -1 -1 -1 -1".to_owned(), "some.file:1:8: error: field 4", "-1"),
        ("1 0 -1 10 4 -1 -1 4 -1 -1 1 1 1 -1 -1 -1 9 -1".to_owned(), "some.file:1:42: error: `j1` waits for `j9`", ""),
        ("1 0 -1 1e30 4 -1 -1 4 -1 -1 1 1 1 -1 -1 -1 -1 -1".to_owned(), "some.file:1:8: error: 1e30 is too large", ""),
        (
            String::from_utf8_lossy(WFCOMMONS).replace("\"runtimeInSeconds\": 3", "\"runtimeInSeconds\": -3"),
            "some.file:27:51: error: -3 is negative",
            "",
        ),
        (
            String::from_utf8_lossy(WFCOMMONS)
                .replace("\"parents\": [], \"children\": [],", "\"parents\": [\"nobody\"],"),
            "some.file:13:65: error: `join_ID004` waits for `nobody`",
            "",
        ),
        (
            String::from_utf8_lossy(WFCOMMONS).replace("\"id\": \"join_ID004\", \"run", "\"id\": \"x\", \"run"),
            "nothing says how long `join_ID004` took",
            "some.file:13",
        ),
        (String::from_utf8_lossy(WFCOMMONS).replace("1.5", "1.2"), "version 1.2 of the WfCommons schema", "1.4"),
        (
            String::from_utf8_lossy(WFCOMMONS).replace("\"files\": [", "\"files\": [,"),
            "some.file:15:17",
            "expected value",
        ),
    ];
    let mut wrong = Vec::new();
    for (text, said, help) in cases {
        let refused = read(text.as_bytes()).map(|imported| ids(&imported.workload).len()).unwrap_err();
        if !(refused.contains(said) && refused.contains(help)) {
            wrong.push(format!("{said} and {help} are not in:\n{refused}"));
        }
        // The same of a compressed file.
        assert_eq!(read(&gzip(text.as_bytes())).map(|_| ()).unwrap_err(), refused);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn damaged_files_are_told_apart() {
    let packed = gzip(SMALL);
    let cut = read(&packed[..packed.len() / 2]).map(|_| ()).unwrap_err();
    assert!(cut.contains("end too soon") && cut.contains("gzip -t"), "{cut}");
    let mut damaged = packed;
    let end = damaged.len();
    damaged[end - 6] ^= 0x55;
    let said = read(&damaged).map(|_| ()).unwrap_err();
    assert!(said.contains("damaged"), "{said}");
    let said = read(b"{\"filch_trace\":1}\n{\"id\":\"\xff\xfe\",\"run\":1}\n").map(|_| ()).unwrap_err();
    assert!(said.contains("some.file:2:8") && said.contains("no UTF-8"), "{said}");
    let missing = trace::read(&|| Err(std::io::ErrorKind::NotFound.into()), "gone").unwrap_err().to_string();
    assert!(missing.contains("cannot be read"), "{missing}");
}

#[test]
fn a_long_cycle_is_shown_in_part_and_found_quickly() {
    let count = 100_000;
    let mut text = HEADER.to_owned();
    for task in 0..count {
        text.push_str(&format!("{{\"id\":\"t{task}\",\"run\":1,\"deps\":[\"t{}\"]}}\n", (task + 1) % count));
    }
    let refused = read(text.as_bytes()).map(|_| ()).unwrap_err();
    assert!(refused.contains("t0 → t1 → t2") && refused.contains("99988 more"), "{refused}");
}

/// Changes to a file: where, and what then stands there.
fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, Vec<u8>)>> {
    let token = prop::sample::select(vec![
        &b"-1"[..],
        b"1e999",
        b"null",
        b"[]",
        b"{}",
        b"\"",
        b"}",
        b"\n",
        b"NaN",
        b"99999999999999999999",
        b"\"a\"",
        b",",
        b":",
        b"\xff",
        b"\xe2\x82",
        b"0",
        b"1e308",
        b"\\u0000",
        b"\"last\"",
        b"[\"b\"]",
        b";",
        b"\t",
    ]);
    let bytes = prop_oneof![3 => token.prop_map(<[u8]>::to_vec), 1 => prop::collection::vec(any::<u8>(), 0..4)];
    prop::collection::vec((any::<prop::sample::Index>(), 0u8..12, bytes), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn nothing_in_a_file_makes_a_reader_panic(
        which in 0usize..3, packed in any::<bool>(), damage in damage(), after in any::<bool>()
    ) {
        let mut bytes = [SMALL, SWF, WFCOMMONS][which].to_vec();
        if packed && !after {
            bytes = gzip(&bytes);
        }
        for (at, cut, put) in damage {
            let start = at.index(bytes.len().max(1)).min(bytes.len());
            let end = (start + cut as usize).min(bytes.len());
            bytes.splice(start..end, put);
        }
        if packed && after {
            bytes = gzip(&bytes);
        }
        match read(&bytes) {
            Ok(imported) => {
                // What is accepted can be played to its end, or at least begun.
                let scenario = Scenario::of_trace("x", None, imported).unwrap();
                let (setting, workload) = scenario.make(1);
                prop_assert!(workload.tasks.windows(2).all(|pair| pair[0].at <= pair[1].at));
                let mut world = World::new(setting, workload).unwrap();
                world.run(Time::ZERO + Span::from_secs(60)).unwrap();
            }
            Err(said) => prop_assert!(said.starts_with("some.file"), "{}", said),
        }
    }
}

// ---- the workloads that others have recorded ----

/// Where they are: `FILCH_WORKLOADS`, or beside the repository.
fn workloads() -> Option<PathBuf> {
    let named = std::env::var_os("FILCH_WORKLOADS").map(PathBuf::from);
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/workloads");
    let found = named.unwrap_or(beside);
    if !found.join("README.md").is_file() {
        println!("skipped: no workloads at {}; FILCH_WORKLOADS says where they are", found.display());
        return None;
    }
    Some(found)
}

fn read_file(path: &Path) -> Imported {
    let label = path.to_string_lossy();
    let open = || File::open(path).map(|file| Box::new(file) as Box<dyn Read>);
    trace::read(&open, &label).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The files that the list names, with their tasks and the lower bound that it states.
fn listed(folder: &Path) -> Vec<(PathBuf, usize, f64)> {
    let text = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `w"));
    let listed = rows.map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let bound = cells[6].split(' ').next().unwrap().parse().unwrap();
        (folder.join(cells[1].trim_matches('`')), cells[2].parse().unwrap(), bound)
    });
    listed.collect()
}

#[test]
fn every_recorded_workload_is_read_with_its_tasks_and_its_bound() {
    let Some(folder) = workloads() else { return };
    let all = listed(&folder);
    assert!(all.len() > 100, "{}", all.len());
    for (path, tasks, stated) in all {
        let imported = read_file(&path);
        assert_eq!(imported.workload.tasks.len(), tasks, "{}", path.display());
        if !imported.workload.warmth.list.is_empty() {
            // Its stated bound counts everything as cold.
            continue;
        }
        let bound = filch_sim::lower_bound(&imported.workload, &imported.cluster);
        // Never above what others state, and below it only where several classes would need a linear program.
        let few = imported.cluster.len() <= 2;
        let share = bound / stated;
        assert!(share < 1.001 && (share > 0.999 || !few), "{}: {bound} instead of {stated}", path.display());
    }
}

#[test]
fn the_importers_agree_with_the_conversions_of_others() {
    let Some(folder) = workloads() else { return };
    let mut compared = 0;
    for family in ["w1-workflows", "w15-batch"] {
        for entry in std::fs::read_dir(folder.join(family).join("original")).unwrap() {
            let original = entry.unwrap().path();
            let name = original.file_name().unwrap().to_string_lossy().into_owned();
            let converted = match name.strip_suffix(".json") {
                Some(name) => format!("{name}.jsonl.gz"),
                None => "nasa-ipsc-1993.jsonl.gz".to_owned(),
            };
            let (mine, theirs) = (read_file(&original), read_file(&folder.join(family).join(converted)));
            let (mine, theirs) = (mine.workload, theirs.workload);
            assert_eq!(mine.tasks.len(), theirs.tasks.len(), "{name}");
            let place =
                |workload: &Workload, id: &str| workload.ids.iter().position(|known| known == id).unwrap() as u32;
            for task in (0..mine.tasks.len() as u32).step_by(if mine.tasks.len() > 1000 { 97 } else { 1 }) {
                let other = place(&theirs, &mine.ids[task as usize]);
                let facts = |workload: &Workload, task: u32| {
                    let mut parents: Vec<_> = workload
                        .parents_of(task)
                        .iter()
                        .map(|parent| (workload.label(parent.task), parent.bytes))
                        .collect();
                    parents.sort();
                    let Run::Same(run) = workload.tasks[task as usize].run else { panic!("unrelated") };
                    (workload.tasks[task as usize].at, run, parents, amount(workload, task, ResourceId::MEMORY))
                };
                assert_eq!(facts(&mine, task), facts(&theirs, other), "{name}");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 7);
}

/// The shorter ones to their end, with every invariant watched.
#[test]
fn recorded_workloads_are_played_to_their_end() {
    let Some(folder) = workloads() else { return };
    for (path, tasks, _) in listed(&folder).into_iter().filter(|entry| entry.1 <= 400).step_by(5) {
        let scenario = Scenario::of_trace(&path.to_string_lossy(), None, read_file(&path)).unwrap();
        let (mut setting, workload) = scenario.make(1);
        setting.watch = true;
        let mut world = World::new(setting, workload).unwrap();
        world.run(Time::NEVER).unwrap();
        let outcome = Outcome::of(&world, 1.0);
        assert_eq!(outcome.tasks.completed, tasks as u64, "{}", path.display());
        assert!(outcome.efficiency <= 1.0, "{}: {outcome:?}", path.display());
    }
}
