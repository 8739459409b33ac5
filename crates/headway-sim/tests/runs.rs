//! Runs are determined by their seed, and what goes wrong in them is told.

use std::convert::Infallible;

use headway_core::dispatch::{Event, Limits};
use headway_core::log::{Record, What};
use headway_core::machine::{self, Machine};
use headway_core::payload::{Gathered, Payload, Piece};
use headway_core::plan::{Outcome, Pipeline, Plan, Source};
use headway_core::planner::{self, Options};
use headway_core::units::{Bytes, Nanos};
use headway_sim::{Faults, Run, simulate};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Blocks of random sizes up to the reserve, some of them empty, with lanes up to the largest planned.
struct Random<'a> {
    plan: &'a Plan,
    random: Pcg64Mcg,
    full: bool,
}

impl Payload for Random<'_> {
    type Error = Infallible;

    fn gather(&mut self, pipeline: u32, _cycle: u64) -> Result<Gathered, Infallible> {
        let planned = &self.plan.pipelines[pipeline as usize];
        let longest_lane = longest_lane(self.plan, planned);
        if self.full {
            return Ok(Gathered { block: planned.reserve, longest_lane });
        }
        let mut draw = |most: u64| Bytes(self.random.next_u64() % (most + 1));
        Ok(Gathered { block: draw(planned.reserve.0), longest_lane: draw(longest_lane.0) })
    }

    fn execute(&mut self, _piece: &Piece) -> Result<(), Infallible> {
        Ok(())
    }

    fn deliver(&mut self, _pipeline: u32, _cycle: u64) -> Result<(), Infallible> {
        Ok(())
    }
}

fn longest_lane(plan: &Plan, pipeline: &Pipeline) -> Bytes {
    let Source::Streams(streams) = &pipeline.source else { return Bytes(0) };
    let lane = |&stream: &u32| {
        let stream = &plan.streams[stream as usize];
        let packets = if pipeline.gather == Nanos::ZERO { 1 } else { pipeline.window.0.div_ceil(stream.period.0) };
        Bytes(packets * stream.packet.0)
    };
    streams.iter().map(lane).max().unwrap_or_default()
}

fn run(plan: &Plan, machine: &Machine, cycles: u64, seed: u64, full: bool) -> Vec<Record> {
    let run = Run {
        epoch: Nanos(10_000_000),
        cycles: vec![cycles; plan.pipelines.len()],
        packets: vec![u64::MAX; plan.streams.len()],
        seed,
        faults: Faults { kernel_ppm_min: if full { None } else { Some(100_000) }, ..Faults::default() },
        limits: Limits::default(),
    };
    let mut payload = Random { plan, random: Pcg64Mcg::seed_from_u64(seed), full };
    let mut records = Vec::new();
    let outcome = simulate(plan, machine, &run, &mut payload, |record| records.push(record.clone())).unwrap();
    assert!(outcome.finished);
    records
}

/// The first event that an accepted plan must never show.
fn broken(records: &[Record]) -> Option<&Record> {
    let bad = |event: &Event| {
        matches!(event, Event::Late { .. } | Event::Missed { .. } | Event::Overrun { .. } | Event::ReleaseLate { .. })
    };
    records.iter().find(|record| matches!(&record.what, What::Event(event) if bad(event)))
}

/// On a node six times slower than its machine file says, an accepted plan misses, and the log says so.
#[test]
fn a_machine_slower_than_planned_is_noticed() {
    let machine = machine::shipped("tyan-ft72b7015").unwrap();
    let text = r#"
        name = "tight"
        [[stream]]
        id = "a"
        packet = "1 MB"
        period = "1 ms"
        deadline = "6 ms"
        steps = [{ copy = "host -> gpu" }, { copy = "gpu -> host" }]
    "#;
    let workload = headway_core::workload::parse("tight.toml", text).unwrap().value;
    let plan = planner::plan(&machine, &workload, Options::default()).unwrap();
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    assert!(broken(&run(&plan, &machine, 12, 1, true)).is_none());
    let mut slow = machine.clone();
    for capacity in &mut slow.capacities {
        capacity.rate.0 /= 6;
        capacity.rate_low.0 /= 6;
    }
    assert!(broken(&run(&plan, &slow, 12, 1, true)).is_some());
}

#[test]
fn the_same_seed_gives_the_same_records_and_another_seed_others() {
    let machine = machine::shipped("h200-x4").unwrap();
    let text = include_str!("../../../workloads/encrypt.toml");
    let workload = headway_core::workload::parse("encrypt.toml", text).unwrap().value;
    let plan = planner::plan(&machine, &workload, Options::default()).unwrap();
    let first = run(&plan, &machine, 8, 7, false);
    assert_eq!(first, run(&plan, &machine, 8, 7, false));
    assert_ne!(first, run(&plan, &machine, 8, 8, false));
}

#[test]
fn a_failing_operation_halts_and_late_data_is_told() {
    let machine = machine::shipped("h200-x1").unwrap();
    let text = include_str!("../../../workloads/encrypt.toml");
    let workload = headway_core::workload::parse("encrypt.toml", text).unwrap().value;
    let plan = planner::plan(&machine, &workload, Options::default()).unwrap();
    let mut run = Run {
        epoch: Nanos(10_000_000),
        cycles: vec![8; plan.pipelines.len()],
        packets: vec![u64::MAX; plan.streams.len()],
        seed: 1,
        faults: Faults { fail_operation: Some(20), ..Faults::default() },
        limits: Limits::default(),
    };
    let records = |run: &Run| {
        let mut payload = Random { plan: &plan, random: Pcg64Mcg::seed_from_u64(1), full: true };
        let mut records = Vec::new();
        let outcome = simulate(&plan, &machine, run, &mut payload, |record| records.push(record.clone())).unwrap();
        (outcome.finished, records)
    };
    let (finished, halted) = records(&run);
    let at = halted.iter().position(|r| matches!(r.what, What::Event(Event::Halted { .. }))).unwrap();
    assert!(!finished && halted[at..].iter().all(|r| !matches!(r.what, What::Action(_))));
    run.faults = Faults { data_late_max: Nanos(1_000_000), ..Faults::default() };
    let (finished, late) = records(&run);
    assert!(finished && late.iter().any(|r| matches!(r.what, What::Event(Event::DataLate { .. }))));
}
