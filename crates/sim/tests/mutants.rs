//! Mistakes that are planted on purpose: random worlds find each of them within 500 seeds.
//!
//! `cargo test --package filch-sim --features planted --test mutants`
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test, which may use threads")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use filch_core::planted::{Mistake, plant};
use filch_sim::fuzz::Case;

/// Every mistake is found within so many seeds.
const SEEDS: u64 = 500;

/// The first seed that shows a mistake, and how.
fn find(mistake: Mistake) -> Option<(u64, String)> {
    (1..=SEEDS).find_map(|seed| {
        plant(Some(mistake));
        // A machine that panics has been caught too.
        let played = catch_unwind(AssertUnwindSafe(|| Case::draw(seed).play()));
        plant(None);
        match played {
            Ok(Ok(_)) => None,
            Ok(Err(what)) => Some((seed, what)),
            Err(_) => Some((seed, "it panicked".to_owned())),
        }
    })
}

#[test]
fn every_planted_mistake_is_found() {
    let open = Mutex::new(Mistake::ALL.to_vec());
    let missed = Mutex::new(Vec::new());
    let search = || {
        // The one that was found is told at once, since the next may take long.
        while let Some(mistake) = open.lock().ok().and_then(|mut open| open.pop()) {
            let found = find(mistake);
            if let Some((seed, what)) = &found {
                let what: String = what.chars().take(110).collect();
                eprintln!("{mistake:?}: seed {seed}: {what}");
                let sound = Case::draw(*seed).play();
                assert!(sound.is_ok(), "seed {seed} breaks without any mistake: {sound:?}");
            } else if let Ok(mut missed) = missed.lock() {
                eprintln!("{mistake:?}: not found");
                missed.push(mistake);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(search);
        search();
    });
    let missed = missed.into_inner().unwrap_or_default();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
