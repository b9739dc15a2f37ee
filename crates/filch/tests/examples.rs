//! Runs every example, so that none goes stale. They check what they show.

#[path = "../examples/array_progress.rs"]
mod array_progress;
#[path = "../examples/basic.rs"]
mod basic;
#[path = "../examples/custom_policies.rs"]
mod custom_policies;
#[path = "../examples/failure_handling.rs"]
mod failure_handling;
#[path = "../examples/hot_spot.rs"]
mod hot_spot;
#[path = "../examples/load_balancing.rs"]
mod load_balancing;
#[path = "../examples/pull_stealing.rs"]
mod pull_stealing;
#[path = "../examples/rebalancing.rs"]
mod rebalancing;
#[path = "../examples/resource_manager.rs"]
mod resource_manager;
#[path = "../examples/status_callback.rs"]
mod status_callback;
#[path = "../examples/worker_loop.rs"]
mod worker_loop;
#[path = "../examples/worker_status.rs"]
mod worker_status;

macro_rules! run {
    ($($name:ident),+ $(,)?) => {
        #[test]
        fn every_example_runs() {
            $($name::main().unwrap_or_else(|error| panic!("{}: {error}", stringify!($name)));)+
        }

        #[test]
        fn no_example_is_forgotten() {
            let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
            let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = files.map(|name| name.into_string().unwrap()).collect();
            // That one needs a coordinator: `tests/cluster.rs` runs it.
            names.retain(|name| name != "cluster.rs");
            names.sort();
            let mut known = [$(concat!(stringify!($name), ".rs")),+];
            known.sort_unstable();
            assert_eq!(names, known);
        }
    };
}

run!(
    array_progress,
    basic,
    pull_stealing,
    rebalancing,
    worker_status,
    hot_spot,
    failure_handling,
    status_callback,
    worker_loop,
    custom_policies,
    load_balancing,
    resource_manager,
);
