//! A batch alone on a node takes in the simulator exactly what the interconnect model predicts, block by block.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Draw, EPOCH, Null, by_hand, empty, logged, machine, run_of};
use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput};
use headway_core::files::machine::{
    Capacity, CapacityId, CapacityKind, Endpoint, EndpointId, EndpointKind, Engine, EngineClass, EngineId, Machine,
    Route, RouteId,
};
use headway_core::files::workload::{
    CopyEndpoint, Grouping, OnMiss, Parameters, Stream, StreamPlacement, StreamStep, Workload,
};
use headway_core::interconnect::{BatchBlock, Network};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::models::transfer::Method;
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{OperationWork, Outcome, Pipeline, PipelineSource, PlannedOperation, PlannedStep, Strategy};
use headway_core::units::{Bytes, Nanos, Rate};
use headway_sim::{Run, SimFaults};

/// The batch as a message that is released once.
fn message(machine: &Machine, blocks: &[BatchBlock]) -> Pipeline {
    let operation = |block: &BatchBlock| {
        let route = &machine.routes[block.route.at()];
        let work = OperationWork::Copy {
            from: "a".to_owned(),
            to: "b".to_owned(),
            class: EngineClass::H2d,
            route: block.route,
            method: route.method,
            bytes: block.bytes,
            uses: route.uses.clone(),
        };
        PlannedOperation { engines: route.engines.clone(), work }
    };
    let long = Nanos(1 << 50);
    Pipeline {
        name: "batch".to_owned(),
        source: PipelineSource::Message,
        gpu: None,
        period: long,
        start: Nanos::ZERO,
        gather: Nanos::ZERO,
        window: long,
        reserve: blocks.iter().map(|b| b.bytes).sum(),
        steps: vec![PlannedStep {
            name: "batch".to_owned(),
            server: 0,
            cost: long,
            chunk: Bytes(0),
            chunk_cost: long,
            hold: None,
            bound: None,
            operations: blocks.iter().map(operation).collect(),
            batch: None,
        }],
        windows: Vec::new(),
        gang: None,
    }
}

/// When each block ends after the epoch, in the order of the batch.
fn ends(log: &[LogRecord], blocks: usize) -> Vec<Nanos> {
    let (mut index_of, mut ends) = (vec![0; blocks], vec![Nanos::MAX; blocks]);
    for record in log {
        match record.what {
            RecordBody::Action(DispatchAction::Submit { operation, index, .. }) => {
                index_of[operation as usize] = index as usize
            }
            RecordBody::Input(DispatchInput::Done { operation, finished, .. }) => {
                ends[index_of[operation as usize]] = finished - EPOCH;
            }
            RecordBody::Input(_)
            | RecordBody::Action(DispatchAction::Deliver { .. } | DispatchAction::Drop { .. })
            | RecordBody::Event(_) => {}
        }
    }
    ends
}

fn assert_as_predicted(machine: &Machine, blocks: &[BatchBlock]) {
    let predicted = Network::new(machine).completion(blocks).unwrap();
    let plan = by_hand(machine, vec![message(machine, blocks)]);
    let (outcome, log) = logged(&plan, machine, &run_of(&plan, 1), &mut Null::full(&plan));
    assert!(outcome.unwrap().finished);
    assert_eq!(ends(&log, blocks.len()), predicted.blocks, "{blocks:?}");
}

/// Blocks over the routes that plans use.
fn batch(machine: &Machine, draw: &mut Draw) -> Vec<BatchBlock> {
    let routes: Vec<RouteId> = (0u32..)
        .zip(&machine.routes)
        .filter(|(_, route)| route.method != Method::Pageable)
        .map(|(at, _)| RouteId(at))
        .collect();
    let count = draw.within(1, 10);
    (0..count).map(|_| BatchBlock { route: *draw.pick(&routes), bytes: Bytes(draw.size(27)) }).collect()
}

#[test]
fn random_batches_on_four_h200_end_when_the_model_says() {
    let machine = machine("h200-x4");
    let mut draw = Draw(1);
    for _ in 0..1_500 {
        let blocks = batch(&machine, &mut draw);
        assert_as_predicted(&machine, &blocks);
    }
}

#[test]
fn random_batches_on_the_tyan_end_when_the_model_says() {
    let machine = machine("tyan-ft72b7015");
    let mut draw = Draw(2);
    for _ in 0..500 {
        let blocks = batch(&machine, &mut draw);
        assert_as_predicted(&machine, &blocks);
    }
}

/// A machine with few engines and capacities, any routes over them and any set-up times.
fn small_machine(draw: &mut Draw) -> Machine {
    let endpoint = |id: &str, kind| Endpoint { id: id.to_owned(), kind, numa: None, pci: None, uuid: None };
    let (capacities, engines) = (draw.within(1, 5) as u32, draw.within(1, 4) as u32);
    let mut of = Machine {
        name: "small".to_owned(),
        description: String::new(),
        endpoints: vec![endpoint("host", EndpointKind::Memory), endpoint("gpu0", EndpointKind::Gpu)],
        capacities: Vec::new(),
        engines: Vec::new(),
        routes: Vec::new(),
        sets: Vec::new(),
        kernels: Vec::new(),
        cpu: None,
        calibration: None,
        profile: headway_core::models::transfer::Profile::default(),
        others: 0,
        hash: "small".to_owned(),
    };
    for at in 0..capacities {
        let rate = Rate(draw.within(1_000_000, 60_000_000_000));
        // Neighbours are the two directions of a wire, more often than not.
        let other = CapacityId(at ^ 1);
        let both = Rate(draw.within(1_000_000, rate.0));
        let kind = if other.0 < capacities && draw.below(3) > 0 {
            CapacityKind::Link { from: String::new(), to: String::new(), opposite: Some((other, both)) }
        } else {
            CapacityKind::Limit
        };
        of.capacities.push(Capacity { id: format!("c{at}"), rate, rate_low: rate, kind });
    }
    for at in 0..engines {
        of.engines.push(Engine {
            id: format!("e{at}"),
            gpu: EndpointId(1),
            serves: vec![EngineClass::H2d],
            parallel: 1,
        });
    }
    for _ in 0..draw.within(1, 5) {
        let mut uses = Vec::new();
        while uses.is_empty() {
            for at in 0..capacities {
                if draw.below(2) == 0 {
                    uses.push((CapacityId(at), draw.within(1, 3_000_000) as u32));
                }
            }
        }
        let first = draw.below(u64::from(engines)) as u32;
        let second = draw.below(u64::from(engines)) as u32;
        let held = if first == second || draw.below(2) == 0 { vec![first] } else { vec![first, second] };
        of.routes.push(Route {
            from: EndpointId(0),
            to: EndpointId(1),
            method: Method::Dma,
            engines: held.into_iter().map(EngineId).collect(),
            uses,
            weight: draw.within(1, 1_000) as u32,
            setup: Nanos(draw.below(3) * draw.within(1, 9_000)),
            setup_queued: Nanos(draw.below(3) * draw.within(1, 3_000)),
            submit: Nanos::ZERO,
        });
    }
    of
}

#[test]
fn random_batches_on_small_machines_end_when_the_model_says() {
    let mut draw = Draw(3);
    for _ in 0..4_000 {
        let machine = small_machine(&mut draw);
        for _ in 0..3 {
            let blocks = batch(&machine, &mut draw);
            assert_as_predicted(&machine, &blocks);
        }
    }
}

#[test]
fn verner_figure_2_1_ends_after_13_and_21_ms() {
    let machine = machine("tyan-ft72b7015");
    let text = include_str!("../../../workloads/verner-fig2.1.toml");
    let workload = headway_core::files::workload::parse("verner-fig2.1.toml", text).unwrap().value;
    let plan = plan(&machine, &workload, PlanOptions::default()).unwrap();
    let (outcome, log) = logged(&plan, &machine, &run_of(&plan, 1), &mut Null::full(&plan));
    assert!(outcome.unwrap().finished);
    let mut ends = ends(&log, 2);
    ends.sort_unstable();
    assert_eq!(ends, [Nanos(13_333_334), Nanos(21_333_334)]);
}

/// Four streams on four GPUs, whose copies of one window move as one batch.
#[test]
fn data_that_is_late_within_the_jitter_does_not_split_a_batch() {
    let machine = machine("h200-x4");
    let stream = |number: u32| Stream {
        id: format!("s{number}"),
        packet: Bytes(8_000_000),
        period: Nanos(5_000_000),
        deadline: Nanos(20_000_000),
        start: Nanos::ZERO,
        gpu: StreamPlacement::Auto,
        steps: vec![
            StreamStep::Copy { from: CopyEndpoint::Host, to: CopyEndpoint::OwnGpu },
            StreamStep::Copy { from: CopyEndpoint::OwnGpu, to: CopyEndpoint::Host },
        ],
        on_miss: OnMiss::Finish,
        parameters: Parameters::default(),
        sharding: None,
        parts: Vec::new(),
    };
    let workload = Workload { grouping: Grouping::Gpu, streams: (0..4).map(stream).collect(), ..empty() };
    let plan = plan(&machine, &workload, PlanOptions { strategy: Some(Strategy::Combined) }).unwrap();
    let members = plan.pipelines.iter().flat_map(|of| &of.steps).filter(|step| step.batch.is_some()).count();
    assert!(plan.verdict.outcome == Outcome::Schedulable && plan.jitter > Nanos::ZERO && members == 8);
    let faults = SimFaults { data_late_max: plan.jitter, ..SimFaults::default() };
    let run = Run { faults, ..run_of(&plan, 20) };
    let (outcome, log) = logged(&plan, &machine, &run, &mut Null::full(&plan));
    assert!(outcome.unwrap().finished);
    assert!(log.iter().any(|record| matches!(record.what, RecordBody::Event(DispatchEvent::DataLate { .. }))));
    // By batch and deadline, when its copies are submitted.
    let mut submitted: BTreeMap<(u32, Nanos), BTreeSet<Nanos>> = BTreeMap::new();
    for record in &log {
        let RecordBody::Action(DispatchAction::Submit { pipeline, cycle, step, .. }) = record.what else { continue };
        let of = &plan.pipelines[pipeline as usize];
        let Some(place) = of.steps[step as usize].batch else { continue };
        submitted.entry((place.number, of.deadline(cycle, step as usize))).or_default().insert(record.at);
    }
    assert!(submitted.len() > 20 && submitted.values().all(|times| times.len() == 1), "{submitted:?}");
}
