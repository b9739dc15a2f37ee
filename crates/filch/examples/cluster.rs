//! A worker with a function of its own, and a client that calls it. Start a coordinator first: `filch serve`.
//!
//! `cargo run --example cluster --features worker`

#![allow(clippy::print_stdout, reason = "an example prints")]

use filch::Worker;
use filch::client::{Client, Event, Job};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let worker = Worker::new("example").slots(2).handle("shout", |call| async move {
        let text = String::from_utf8(call.input.to_vec())?;
        Ok::<_, std::string::FromUtf8Error>(text.to_uppercase())
    });
    let running = worker.run()?;

    let client = Client::connect().await?;
    let answer = client.call("shout", "hello").await?;
    println!("{}", String::from_utf8_lossy(&answer));

    let mut job = client.submit(Job::shell("echo $FILCH_INPUT").each(["one", "two", "three"])).await?;
    while let Some(event) = job.events().next().await {
        match event? {
            Event::Ended(outcome) => print!("{}", String::from_utf8_lossy(&outcome.stdout)),
            Event::Done(summary) => println!("{} of {} done", summary.completed, summary.total),
            _ => {}
        }
    }
    running.drain().await?;
    Ok(())
}
