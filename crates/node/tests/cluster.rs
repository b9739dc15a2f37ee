//! Coordinator, workers and clients together, over real sockets and in one process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Cluster, array_of, call_of, shell};
use filch_core::wire::talk::{Said, Submit};
use filch_node::view::{JobView, Query, TaskView, WorkerView};

/// Follows a job to its end: how many tasks ended in which way.
async fn finish(follow: &mut filch_node::client::Follow) -> (u64, u64, usize) {
    let mut each = 0;
    while let Some(said) = follow.next().await {
        match said.unwrap() {
            Said::Ended(_) => each += 1,
            Said::JobDone(progress) => return (progress.completed, progress.failed, each),
            _ => {}
        }
    }
    panic!("it never ended");
}

#[tokio::test]
async fn an_array_of_functions_runs_to_its_end() {
    for near in [true, false] {
        let cluster = Cluster::start(near, 2).await;
        let client = cluster.client().await;
        let (submitted, mut follow) = client.submit_and_follow(array_of(call_of("noop"), 1000)).await.unwrap();
        assert_eq!(finish(&mut follow).await, (1000, 0, 1000));
        let job: JobView = client.query(&Query::Job { job: submitted.job }).await.unwrap();
        assert_eq!((job.state.as_str(), job.tasks, job.completed), ("completed", 1000, 1000));
        cluster.stop().await;
    }
}

#[tokio::test]
async fn a_call_brings_back_its_bytes() {
    let cluster = Cluster::start(false, 1).await;
    let client = cluster.client().await;
    assert_eq!(client.call("echo", "hello").await.unwrap(), Bytes::from("hello"));
    let error = client.call("nonsense", "").await.unwrap_err();
    assert!(error.to_string().contains("nonsense"), "{error}");
    cluster.stop().await;
}

#[tokio::test]
async fn programs_run_and_what_they_wrote_is_kept() {
    let cluster = Cluster::start(false, 1).await;
    let client = cluster.client().await;
    let work = shell("echo out $FILCH_TASK; echo err >&2; test $FILCH_TASK != 12");
    let mut submit = array_of(work, 3);
    common::number_from(&mut submit, 11);
    let (submitted, mut follow) = client.submit_and_follow(submit).await.unwrap();
    assert_eq!(finish(&mut follow).await, (2, 1, 3));
    let tasks: Vec<TaskView> =
        client.query(&Query::Tasks { job: submitted.job, status: None, limit: 10 }).await.unwrap();
    let ends: Vec<(i64, &str)> = tasks.iter().map(|task| (task.number, task.status.as_str())).collect();
    assert_eq!(ends, [(11, "completed"), (12, "failed"), (13, "completed")]);
    let task: TaskView = client.query(&Query::Task { job: submitted.job, index: 1 }).await.unwrap();
    assert_eq!((task.exit_code, task.worker.as_deref()), (Some(1), Some("w0")));
    assert_eq!(common::logs(&client, submitted.job, 2).await, ("out 13\n".to_owned(), "err\n".to_owned()));
    let workers: Vec<WorkerView> = client.query(&Query::Workers).await.unwrap();
    assert_eq!(workers.len(), 1);
    assert!(workers[0].connected && workers[0].completed == 2, "{workers:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn what_was_not_finished_goes_on_after_a_restart() {
    let mut cluster = Cluster::start(false, 0).await;
    let client = cluster.client().await;
    let job = client.submit(array_of(call_of("noop"), 500)).await.unwrap();
    for number in 0..50 {
        client.submit(common::single(call_of("echo"), &number.to_string())).await.unwrap();
    }
    drop(client);
    cluster.restart().await;
    cluster.add_worker().await;
    let client = cluster.client().await;
    let mut follow = client.watch(job.job, false).await.unwrap();
    assert_eq!(finish(&mut follow).await.0, 500);
    common::until("all single tasks are done", || async {
        let stats: filch_node::view::StatsView = client.query(&Query::Stats).await.unwrap();
        stats.unsettled == 0
    })
    .await;
    // And once more: nothing is left, and the past is known.
    drop(client);
    cluster.restart().await;
    let client = cluster.client().await;
    let view: JobView = client.query(&Query::Job { job: job.job }).await.unwrap();
    assert_eq!((view.completed, view.state.as_str()), (500, "completed"));
    cluster.stop().await;
}

#[tokio::test]
async fn the_same_submission_twice_is_one() {
    let cluster = Cluster::start(false, 1).await;
    let client = cluster.client().await;
    let submit = Submit { key: Bytes::from("mine"), ..array_of(call_of("noop"), 10) };
    let first = client.submit(submit.clone()).await.unwrap();
    let again = client.submit(submit).await.unwrap();
    assert_eq!(first, again);
    let jobs: Vec<JobView> = client.query(&Query::Jobs { limit: 10 }).await.unwrap();
    assert_eq!(jobs.len(), 1);
    cluster.stop().await;
}

#[tokio::test]
async fn those_who_watch_over_it_get_figures() {
    let cluster = Cluster::start(false, 1).await;
    let client = cluster.client().await;
    let (_, mut follow) = client.submit_and_follow(array_of(call_of("noop"), 30)).await.unwrap();
    assert_eq!(finish(&mut follow).await.0, 30);
    let (address, admin) = filch_node::admin::listen("127.0.0.1:0".parse().unwrap(), cluster.observer()).await.unwrap();
    let figures = common::http_get(address, "/metrics").await;
    for line in ["filch_completed_total 30", "filch_workers_connected 1.0", "filch_tasks_unsettled 0.0", "# EOF"] {
        assert!(figures.lines().any(|found| found == line), "{line} is not in\n{figures}");
    }
    assert!(common::http_get(address, "/health").await.ends_with("ok\n"));
    assert!(common::http_get(address, "/other").await.starts_with("HTTP/1.1 404"));
    admin.abort();
    cluster.stop().await;
}

#[tokio::test]
async fn who_was_cut_off_hears_the_rest_under_the_same_key() {
    let mut cluster = Cluster::start(false, 1).await;
    let client = cluster.client().await;
    // Over before anybody asks again, and after a restart at that.
    let single = Submit { key: Bytes::from("single"), ..common::single(call_of("echo"), "hello") };
    let first = client.submit_and_wait(single.clone()).await.unwrap();
    let job = Submit { key: Bytes::from("job"), ..array_of(call_of("noop"), 10) };
    let (submitted, mut follow) = client.submit_and_follow(job.clone()).await.unwrap();
    assert_eq!(finish(&mut follow).await.0, 10);
    drop((client, follow));
    cluster.restart().await;
    let client = cluster.client().await;
    let again = client.submit_and_wait(single).await.unwrap();
    assert_eq!((again.task, again.ending), (first.task, first.ending));
    let (same, mut follow) = client.submit_and_follow(job).await.unwrap();
    assert_eq!(same, submitted);
    // Of each of them, as this one has heard nothing yet.
    assert_eq!(finish(&mut follow).await, (10, 0, 10));
    cluster.stop().await;
}

#[tokio::test]
async fn a_worker_that_is_drained_is_not_waited_for() {
    let cluster = Cluster::start(false, 2).await;
    let client = cluster.client().await;
    let workers = || async { client.query::<Vec<WorkerView>>(&Query::Workers).await.unwrap() };
    common::until("both are there", || async { workers().await.len() == 2 }).await;
    client.drain("w0").await.unwrap();
    // Well before its lease of two seconds is over.
    let began = std::time::Instant::now();
    common::until("it has gone", || async { workers().await.len() == 1 }).await;
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    cluster.stop().await;
}

#[tokio::test]
async fn a_worker_that_is_killed_loses_nothing() {
    let mut cluster = Cluster::start(false, 2).await;
    let client = cluster.client().await;
    let (_, mut follow) = client.submit_and_follow(array_of(shell("sleep 0.05"), 60)).await.unwrap();
    common::until("the worker runs something", || async {
        let worker = client.query::<WorkerView>(&Query::Worker { name: "w0".to_owned() }).await;
        worker.is_ok_and(|worker| worker.running > 0)
    })
    .await;
    cluster.kill_worker(0);
    assert_eq!(finish(&mut follow).await.0, 60);
    cluster.stop().await;
}

/// More output than waits for anybody, for one who begins to read when the job is over.
#[tokio::test]
async fn whoever_reads_late_hears_of_everything_once() {
    for near in [true, false] {
        let cluster = Cluster::start(near, 1).await;
        let client = cluster.client().await;
        let mut work = shell("head -c 1000000 /dev/zero");
        work.keep = Some(1 << 20);
        let (submitted, mut follow) = client.submit_and_follow(array_of(work, 50)).await.unwrap();
        common::until("the job is over", || async {
            let job: JobView = client.query(&Query::Job { job: submitted.job }).await.unwrap();
            job.completed == 50
        })
        .await;
        assert_eq!(finish(&mut follow).await, (50, 0, 50));
        cluster.stop().await;
    }
}
