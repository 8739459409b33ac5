//! Our tests of non-preemptive EDF beside the response-time bounds of the crate `response-time-analysis`, on the same sets:
//! 100 tasks, periods from 1 to 1000 ms, in nanoseconds.
//!
//! `cargo bench -p headway-core --bench schedulability`. Every set is decided by both before anything is timed, and the
//! verdicts must be equal. The rival stops at the first bound beyond its deadline; ours also finds the interval that fails.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use headway_core::schedulability::{Task, chunked, jeffay};
use headway_core::units::Nanos;

#[path = "../tests/support/rival.rs"]
mod rival;

/// Sets of 100 tasks: periods log-uniform, equal shares of `percent` of the engine, no cost above `cost_max`.
fn sets(count: u64, percent: u64, cost_max: u64, chunk_max: u64) -> Vec<Vec<Task>> {
    let one = |set: u64| {
        let mut draw = rival::Draw(set);
        let task = |_| {
            let period = draw.period(1_000_000, 1_000_000_000);
            let cost = (period * percent / 10_000).min(cost_max);
            Task { chunk: Nanos(cost.min(chunk_max)), ..Task::whole(Nanos(cost), Nanos(period), Nanos(period)) }
        };
        (0..100).map(task).collect()
    };
    (0..count).map(one).collect()
}

fn compare(c: &mut Criterion) {
    let groups: [(&str, Vec<Vec<Task>>, bool); 3] = [
        ("whole jobs", sets(10, 90, 500_000, u64::MAX), true),
        ("whole jobs", sets(10, 90, u64::MAX, u64::MAX), true),
        // The rival needs seconds for each of these.
        ("chunks", sets(2, 90, u64::MAX, 200_000), false),
    ];
    for (name, sets, whole) in groups {
        let ours = |set: &[Task]| if whole { jeffay(set) } else { chunked(set, 1) }.is_schedulable();
        let theirs = |set: &[Task]| if whole { rival::whole(set) } else { rival::in_chunks(set) };
        let yes = sets.iter().filter(|set| ours(set)).count();
        assert!(sets.iter().all(|set| ours(set) == theirs(set)), "{name}: the verdicts differ");
        let mut group = c.benchmark_group(format!("{name}: {yes} of {} sets schedulable", sets.len()));
        group.sample_size(20);
        group.bench_function("headway", |b| b.iter(|| sets.iter().filter(|s| ours(black_box(s))).count()));
        group.sample_size(10);
        group.bench_function("response-time-analysis", |b| {
            b.iter(|| sets.iter().filter(|s| theirs(black_box(s))).count());
        });
        group.finish();
    }
}

criterion_group!(benches, compare);
criterion_main!(benches);
