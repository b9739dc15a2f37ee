//! A coordinator whose disk is full, or cannot be written: it says so and what to do, and whatever it has acknowledged is
//! there when there is room again.

mod common;

use std::collections::BTreeSet;
use std::process::Output;

use common::apart::{inside, shell};
use common::{Cluster, ends, filch, wait_for};

const PROBE: &str = "mkdir -p /tmp && mount -t tmpfs -o size=1m tmpfs /tmp && mount -o remount,ro /tmp";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn nothing_acknowledged_is_lost_when_the_disk_is_full() {
    if !inside("nothing_acknowledged_is_lost_when_the_disk_is_full", &["--mount"], PROBE) {
        return;
    }
    let mut cluster = Cluster::prepare("");
    let home = cluster.place.path().to_owned();
    let store = home.join("store");
    std::fs::create_dir(&store).expect("a directory");
    shell(&format!("mount -t tmpfs -o size=3m tmpfs {}", store.display()));
    let options = ["--dir", "store", "--access", "access.json", "--listen", "127.0.0.1:0"];
    let serve = [&["serve"], &options[..]].concat();
    let coordinator = cluster.command(&serve).spawn().expect("the binary runs");
    wait_for("the access file is there", || home.join("access.json").exists());

    // Every submission brings a few kilobytes of its own.
    let ballast = "x".repeat(30_000);
    let submit = |cluster: &Cluster, number: u32| {
        let (number, environment) = (number.to_string(), format!("BALLAST={ballast}"));
        cluster.run(&[
            "submit",
            "--access",
            "access.json",
            "--env",
            &environment,
            "--",
            "sh",
            "-c",
            "echo $0 >> ran",
            &number,
        ])
    };
    let mut acknowledged = BTreeSet::new();
    let refused = (1..1000).find_map(|number| {
        let output = submit(&cluster, number);
        if output.status.success() {
            acknowledged.insert(number);
            return None;
        }
        Some((number, output))
    });
    let (number, refused) = refused.expect("there is room for 1000 of them");
    assert!(acknowledged.len() > 5, "{}", said(&refused));
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("nothing was submitted: no space is left for"), "{}", said(&refused));
    assert!(said(&refused).contains("Make room, then start again"), "{}", said(&refused));
    let output = coordinator.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("what was acknowledged is safe. Make room, then start again"), "{}", said(&output));

    // Before there is room it does not begin, or not for long; and it harms nothing.
    let mut again = cluster.command(&serve).spawn().expect("the binary runs");
    let answers = || cluster.run(&["worker", "list", "--access", "access.json"]).status.success();
    wait_for("it begins or refuses", || again.try_wait().expect("a child").is_some() || answers());
    if submit(&cluster, number + 1).status.success() {
        acknowledged.insert(number + 1);
    }
    // It may have ended by itself.
    let _ = again.kill();
    again.wait().expect("it ended");

    shell(&format!("mount -o remount,size=64m {}", store.display()));
    cluster.coordinator = cluster.spawn(&serve);
    wait_for("it is there again", || cluster.run(&["worker", "list", "--access", "access.json"]).status.success());
    cluster.spawn(&["worker", "--access", "access.json", "--listen", "127.0.0.1:0", "--name", "alpha"]);
    let ran = || -> BTreeSet<u32> {
        let text = std::fs::read_to_string(home.join("ran")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    wait_for("everything that was acknowledged runs", || acknowledged.is_subset(&ran()));
    wait_for("nothing is left", || cluster.json(&["stats", "--access", "access.json", "--json"])["unsettled"] == 0);
    // What was refused was not kept in secret.
    assert_eq!(ran().difference(&acknowledged).collect::<Vec<_>>(), Vec::<&u32>::new());
    // And there is room for more.
    let more = submit(&cluster, 2000);
    assert!(more.status.success(), "{}", said(&more));
    wait_for("it runs as well", || ran().contains(&2000));
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() {
    if !inside("a_directory_that_cannot_be_written_is_refused", &["--mount"], PROBE) {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().to_str().expect("a path");
    shell(&format!("mount -t tmpfs -o size=8m tmpfs {path}"));
    let serve = ["serve", "--dir", path, "--listen", "127.0.0.1:0"];
    let refused = |when: &str| {
        let output = filch(&serve).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(1), "{when}");
        let said = said(&output);
        assert!(said.contains("cannot be written"), "{when}: {said}");
        assert!(said.contains("make it writable for this user, or use another directory"), "{when}: {said}");
    };
    shell(&format!("mount -o remount,ro {path}"));
    refused("nothing is there yet");
    assert_eq!(std::fs::read_dir(path).expect("a directory").count(), 0);

    shell(&format!("mount -o remount,rw {path}"));
    let mut coordinator = filch(&serve).spawn().expect("the binary runs");
    wait_for("it serves", || place.path().join("access.json").exists());
    coordinator.kill().expect("killed");
    assert_eq!(ends(coordinator), None, "it was killed");
    shell(&format!("mount -o remount,ro {path}"));
    refused("there is a store");
}
