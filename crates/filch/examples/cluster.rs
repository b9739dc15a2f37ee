//! A worker with a function of its own, and a client that calls it. Start a coordinator first: `filch serve`.
//!
//! `cargo run --example cluster --features worker [ACCESS_FILE]`

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::path::PathBuf;

use filch::Worker;
use filch::client::{Client, Event, Job};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Takes part in the cluster that an access file describes.
pub(crate) async fn take_part(access_file: PathBuf) -> Outcome {
    let worker = Worker::new("example").slots(2).handle("shout", |call| async move {
        let text = String::from_utf8(call.input.to_vec())?;
        Ok::<_, std::string::FromUtf8Error>(text.to_uppercase())
    });
    let running = worker.run_in(&access_file)?;

    let client = Client::connect_to(&access_file).await?;
    let answer = client.call("shout", "hello").await?;
    assert_eq!(answer, "HELLO");
    println!("{}", String::from_utf8_lossy(&answer));

    let mut job = client.submit(Job::shell("echo $FILCH_INPUT").each(["one", "two", "three"])).await?;
    while let Some(event) = job.events().next().await {
        match event? {
            Event::Ended(outcome) => print!("{}", String::from_utf8_lossy(&outcome.stdout)),
            Event::Done(summary) => {
                assert_eq!(summary.completed, 3);
                println!("{} of {} done", summary.completed, summary.total);
            }
            _ => {}
        }
    }
    running.drain().await?;
    Ok(())
}

#[tokio::main]
pub(crate) async fn main() -> Outcome {
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    take_part(given.unwrap_or_else(filch::client::usual_access_file)).await
}
