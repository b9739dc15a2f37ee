//! A million tasks through a coordinator and a worker, as processes of their own: neither has more open files afterwards,
//! nor more memory than what it keeps on purpose.

mod common;

use std::time::Duration;

use bytes::Bytes;
use filch_core::wire::talk::{Array, Part, Parts, Program, Said, Submit, Work};
use filch_node::access::Access;
use filch_node::client::Client;
use filch_node::dial::Dial;
use filch_node::view::{Query, StatsView};
use prost::Message as _;

use common::{Cluster, wait_for};

/// The first round fills what is kept on purpose and has an end: the keys of the latest 100,000 submissions, the page
/// caches of the store, and what the allocator does not give back.
const WARM_UP: (u32, u32) = (100_000, 100_000);
/// Those that are looked at: elements of an array, and single submissions.
const ROUND: (u32, u32) = (150_000, 50_000);
const ROUNDS: u32 = 4;
/// Single submissions that are under way at once: enough to be fast, and so few that no queue grows long.
const AT_ONCE: u32 = 5_000;
/// What a process may have grown by after 800,000 tasks, in bytes: 20 for each. Whatever is kept for a task and forgotten
/// has more than that, the smallest entry of a hash table already.
const GROWTH: u64 = 16 << 20;

fn noop(input: &str) -> Part {
    let program = Some(Program::Call("noop".to_owned()));
    let work = Work { program, stdin: Bytes::from(input.to_owned()), ..Work::default() };
    Part { work: work.encode_to_vec().into(), ..Part::default() }
}

async fn play(client: &Client, (elements, singles): (u32, u32)) {
    let array = Array { part: Some(noop("")), count: elements, step: 1, ..Array::default() };
    let submitted =
        client.submit(Submit { parts: Some(Parts::Array(array)), ..Submit::default() }).await.expect("accepted");
    let mut follow = client.watch(submitted.job, false).await.expect("connected");
    while !matches!(follow.next().await.expect("more to say").expect("connected"), Said::JobDone(_)) {}
    for batch in 0..singles / AT_ONCE {
        let submissions = (0..AT_ONCE).map(|number| {
            let (client, part) = (client.clone(), noop(&format!("{batch}-{number}")));
            tokio::spawn(async move {
                client.submit(Submit { parts: Some(Parts::Single(part)), ..Submit::default() }).await.expect("accepted")
            })
        });
        for submission in submissions.collect::<Vec<_>>() {
            submission.await.expect("it ends");
        }
        while client.query::<StatsView>(&Query::Stats).await.expect("figures").unsettled > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Use {
    files: usize,
    bytes: u64,
}

/// What a process has now.
fn used(id: u32) -> Use {
    let files = std::fs::read_dir(format!("/proc/{id}/fd")).expect("it lives").count();
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    Use { files, bytes: kilobytes * 1024 }
}

#[test]
fn a_million_tasks_leave_no_files_open_and_no_memory_behind() {
    let mut cluster = Cluster::start(&["--plain"]);
    let worker = cluster.worker("alpha", &["--slots", "64"]);
    let processes = [("coordinator", cluster.coordinator), ("worker", worker)];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let run = |rounds: &[(u32, u32)]| {
        runtime.block_on(async {
            let access = Access::read(&cluster.place.path().join("access.json")).expect("an access file");
            let client = Client::connect(Dial::Socket(access), "test").await.expect("connected");
            for round in rounds {
                play(&client, *round).await;
            }
        });
    };
    run(&[WARM_UP]);
    let files = |id| used(id).files;
    // The connection that was just closed may still be on its way out; how many there are without it is stable.
    let mut before = processes.map(|(_, id)| used(id));
    wait_for("the connection is closed", || {
        let now = processes.map(|(_, id)| used(id));
        let same = (0..2).all(|at| now[at].files == before[at].files);
        before = now;
        std::thread::sleep(Duration::from_millis(200));
        same
    });
    run(&[ROUND; ROUNDS as usize]);
    for ((name, id), before) in processes.into_iter().zip(before) {
        wait_for(&format!("the {name} has as many open files as before, {}", before.files), || {
            files(id) <= before.files
        });
        wait_for(
            &format!("the {name} has grown by less than {GROWTH} bytes, from {before:?} to {:?}", used(id)),
            || used(id).bytes < before.bytes + GROWTH,
        );
        eprintln!("{name}: {before:?}, then {:?}", used(id));
    }
    let settled = cluster.json(&["stats", "--json"])["settled"].as_u64();
    let all = WARM_UP.0 + WARM_UP.1 + ROUNDS * (ROUND.0 + ROUND.1);
    assert_eq!(settled, Some(u64::from(all)));
    assert_eq!(all, 1_000_000);
}
