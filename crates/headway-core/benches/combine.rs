//! How long message combining takes on one core.
//!
//! Messages on four H200, both ways: sizes log-uniform from 16 KiB to 16 MiB, over the eight host routes; periods either
//! {1, 2, 5, 10, 20, 50, 100, 200} ms with all starts at 0, or log-uniform from 1 to 256 ms, all distinct, with starts
//! anywhere in 200 ms. Sets of 10,000 are timed once each, and only with `HEADWAY_BENCH_LARGE` set.

mod support;

use std::env;
use std::hint::black_box;
use std::time::Instant;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use headway_core::files::machine::{self, Machine, RouteId};
use headway_core::interconnect::Network;
use headway_core::plan::combine::{CombineEffort, CombineOptions, Counting, Pricer, Transformed, transform};
use headway_core::plan::message::{Elementary, MessageSet};
use headway_core::units::{Bytes, Nanos};

use support::Draw;

const MS: u64 = 1_000_000;

fn host_routes(machine: &Machine) -> Vec<RouteId> {
    let host = machine.memories().next().expect("the shipped node has a memory");
    let routes = machine.gpus().flat_map(|gpu| [machine.route(host, gpu), machine.route(gpu, host)]);
    routes.flatten().collect()
}

fn messages(count: usize, distinct: bool, routes: &[RouteId]) -> MessageSet {
    let mut draw = Draw(1);
    let mut one = |number: usize| {
        let (period, start) = if distinct {
            let octave = draw.below(8);
            ((MS << octave) + draw.below(MS << octave), draw.below(200 * MS))
        } else {
            ([1, 2, 5, 10, 20, 50, 100, 200][draw.below(8) as usize] * MS, 0)
        };
        let octave = draw.below(10);
        let bytes = (16_384 << octave) + draw.below(16_384 << octave);
        let route = routes[draw.below(routes.len() as u64) as usize];
        Elementary::periodic(format!("m{number}"), route, Bytes(bytes), Nanos(period), Nanos(start))
    };
    MessageSet::new((0..count).map(&mut one).collect()).expect("drawn messages are sound")
}

fn transformed(machine: &Machine, set: &MessageSet, mode: CombineEffort, counting: Counting) -> Transformed {
    let network = Network::new(machine);
    let mut pricer = Pricer::new(&network, machine.calibration.as_ref());
    transform(set, &mut pricer, CombineOptions { mode, counting }, &mut |_| true).expect("every route has a rate")
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn once(name: &str, machine: &Machine, set: &MessageSet, mode: CombineEffort, counting: Counting) {
    let start = Instant::now();
    let result = transformed(machine, set, mode, counting);
    let (before, after) = (result.sums[0].ppm() as f64 / 1e6, result.sum().ppm() as f64 / 1e6);
    let count = result.batches.len();
    println!("{name}: {:.2} s, sum of u {before:.3} -> {after:.3} in {count} batches", start.elapsed().as_secs_f64());
}

fn combine(criterion: &mut Criterion) {
    let machine = machine::shipped("h200-x4").expect("shipped");
    let routes = host_routes(&machine);
    let mut group = criterion.benchmark_group("combine");
    group.sample_size(10);
    for (periods, distinct) in [("8 periods", false), ("distinct periods", true)] {
        let set = messages(1_000, distinct, &routes);
        for (mode, name) in [(CombineEffort::Greedy, "greedy"), (CombineEffort::Fast, "fast")] {
            group.bench_function(format!("1000 messages, {periods}, {name}"), |bencher| {
                let run = |set| black_box(transformed(&machine, &set, mode, Counting::PhaseAware));
                bencher.iter_batched(|| set.clone(), run, BatchSize::LargeInput);
            });
        }
    }
    group.finish();
    if env::var_os("HEADWAY_BENCH_LARGE").is_some() {
        for (count, distinct, counting) in [
            (1_000, false, Counting::Paper),
            (1_000, true, Counting::Paper),
            (10_000, false, Counting::PhaseAware),
            (10_000, false, Counting::Paper),
            (10_000, true, Counting::Paper),
            (10_000, true, Counting::PhaseAware),
        ] {
            let set = messages(count, distinct, &routes);
            let periods = if distinct { "distinct periods" } else { "8 periods" };
            for mode in [CombineEffort::Greedy, CombineEffort::Fast, CombineEffort::Search] {
                if mode == CombineEffort::Search && count > 1_000 {
                    continue;
                }
                once(&format!("{count} messages, {periods}, {counting:?}, {mode:?}"), &machine, &set, mode, counting);
            }
        }
    }
}

criterion_group!(benches, combine);
criterion_main!(benches);
