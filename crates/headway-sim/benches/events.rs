//! How many events a second the simulator handles on one core: inputs fed, actions asked for, events told.
//!
//! The shipped encryption workload on the shipped four-GPU node, without bytes and without a log, so that the figure is
//! the simulator's own.

use std::convert::Infallible;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use headway_core::decisions::dispatch::DispatcherLimits;
use headway_core::files::machine;
use headway_core::plan::payload::{Gathered, Payload, PayloadChunk};
use headway_core::plan::planner::{self, PlanOptions};
use headway_core::plan::{PipelineSource, Plan};
use headway_core::units::{Bytes, Nanos};
use headway_sim::{Run, SimFaults, simulate};

/// Every cycle carries its full reserve, and nothing is moved.
struct Full<'a>(&'a Plan);

impl Payload for Full<'_> {
    type Error = Infallible;

    fn gather(&mut self, pipeline: u32, _cycle: u64) -> Result<Gathered, Infallible> {
        let block = self.0.pipelines[pipeline as usize].reserve;
        Ok(Gathered { block, longest_portion: Bytes(4096) })
    }

    fn execute(&mut self, _chunk: &PayloadChunk) -> Result<(), Infallible> {
        Ok(())
    }

    fn deliver(&mut self, _pipeline: u32, _cycle: u64) -> Result<(), Infallible> {
        Ok(())
    }
}

fn events(criterion: &mut Criterion) {
    let machine = machine::shipped("h200-x4").expect("shipped");
    let text = include_str!("../../../workloads/encrypt.toml");
    let workload = headway_kernels::workload::parse("encrypt.toml", text).expect("shipped").value;
    let plan = planner::plan(&machine, &workload, PlanOptions::default()).expect("the shipped workload fits");
    let seconds = 20;
    let cycles = plan.pipelines.iter().map(|p| match p.source {
        PipelineSource::Streams(_) => seconds * 1_000_000_000 / p.period.0,
        _ => 0,
    });
    let run = Run {
        epoch: Nanos(10_000_000),
        cycles: cycles.collect(),
        packets: plan.streams.iter().map(|s| seconds * 1_000_000_000 / s.period.0).collect(),
        inputs: Vec::new(),
        seed: 1,
        faults: SimFaults::default(),
        limits: DispatcherLimits::default(),
    };
    let count = simulate(&plan, &machine, &run, &mut Full(&plan), |_| {}).expect("it runs");
    let mut group = criterion.benchmark_group("simulator");
    group.throughput(Throughput::Elements(count.inputs + count.actions + count.events));
    group.bench_function("encrypt on h200-x4", |bencher| {
        bencher.iter(|| {
            simulate(&plan, &machine, &run, &mut Full(&plan), |record| {
                black_box(record);
            })
        });
    });
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
