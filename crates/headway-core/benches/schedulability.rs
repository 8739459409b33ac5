//! Our tests of non-preemptive EDF beside the response-time bounds of the crate `response-time-analysis`, on the same sets:
//! 100 tasks, periods from 1 to 1000 ms, in nanoseconds.
//!
//! `cargo bench -p headway-core --bench schedulability`; with `HEADWAY_OUT=DIR` every time is written there too. Every set is decided by both before anything is timed, and the
//! verdicts must be equal. The rival stops at the first bound beyond its deadline; ours also finds the interval that fails.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;
use std::{env, fs, io};

use headway_core::analysis::schedulability::{RecurrentTask, chunked, jeffay};
use headway_core::units::Nanos;

#[path = "../tests/support/rival.rs"]
mod rival;

/// Sets of 100 tasks: periods log-uniform, equal shares of `percent` of the engine, no cost above `cost_max`.
fn sets(count: u64, percent: u64, cost_max: u64, chunk_max: u64) -> Vec<Vec<RecurrentTask>> {
    let one = |set: u64| {
        let mut draw = rival::Draw(set);
        let task = |_| {
            let period = draw.period(1_000_000, 1_000_000_000);
            let cost = (period * percent / 10_000).min(cost_max);
            RecurrentTask {
                chunk: Nanos(cost.min(chunk_max)),
                ..RecurrentTask::whole(Nanos(cost), Nanos(period), Nanos(period))
            }
        };
        (0..100).map(task).collect()
    };
    (0..count).map(one).collect()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark times what it runs")]
/// Nanoseconds that each of `n` calls took, in order of length.
fn times(n: usize, mut call: impl FnMut() -> usize) -> Vec<u128> {
    black_box(call());
    let one = |_| {
        let start = Instant::now();
        black_box(call());
        start.elapsed().as_nanos()
    };
    let mut times: Vec<u128> = (0..n).map(one).collect();
    times.sort_unstable();
    times
}

fn main() -> io::Result<()> {
    let groups: [(&str, Vec<Vec<RecurrentTask>>, bool); 3] = [
        ("whole jobs of at most 0.5 ms", sets(10, 90, 500_000, u64::MAX), true),
        ("whole jobs", sets(10, 90, u64::MAX, u64::MAX), true),
        // The rival needs seconds for each of these.
        ("chunks of 0.2 ms", sets(2, 90, u64::MAX, 200_000), false),
    ];
    let mut rows = String::from("sets,test,run,time_ns\n");
    let mut table = String::from(
        "# schedulability\n\nSets of 100 tasks, periods 1 to 1000 ms, in nanoseconds; times are those of all sets of a row.\n\n\
         | sets | schedulable | headway, median / max (n) | response-time-analysis, median / max (n) | ratio of medians |\n\
         |---|---|---|---|---|\n",
    );
    for (name, sets, whole) in groups {
        let ours = |set: &[RecurrentTask]| if whole { jeffay(set) } else { chunked(set, 1) }.is_schedulable();
        let theirs = |set: &[RecurrentTask]| if whole { rival::whole(set) } else { rival::in_chunks(set) };
        let yes = sets.iter().filter(|set| ours(set)).count();
        assert!(sets.iter().all(|set| ours(set) == theirs(set)), "{name}: the verdicts differ");
        let mut cell = |test: &str, times: &[u128]| {
            times.iter().enumerate().for_each(|(run, ns)| rows += &format!("{name},{test},{run},{ns}\n"));
            let ms = |ns: u128| ns as f64 / 1e6;
            (
                times[times.len() / 2],
                format!("{:.3} / {:.3} ms ({})", ms(times[times.len() / 2]), ms(times[times.len() - 1]), times.len()),
            )
        };
        let (fast, ours) = cell("headway", &times(1_001, || sets.iter().filter(|set| ours(black_box(set))).count()));
        let (slow, theirs) = cell("rival", &times(5, || sets.iter().filter(|set| theirs(black_box(set))).count()));
        table += &format!("| {name} | {yes} of {} | {ours} | {theirs} | {} |\n", sets.len(), slow / fast.max(1));
    }
    println!("{table}");
    if let Some(folder) = env::var_os("HEADWAY_OUT") {
        fs::create_dir_all(&folder)?;
        fs::write(Path::new(&folder).join("rows.csv"), rows)?;
        fs::write(Path::new(&folder).join("summary.md"), table)?;
    }
    Ok(())
}
