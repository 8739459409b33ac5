//! Small random plans for the dispatcher, with the data that arrives and the time that every operation takes.

use headway_core::decisions::dispatch::DispatcherLimits;
use headway_core::files::machine::{EngineClass, EngineId, RouteId};
use headway_core::files::workload::OnMiss;
use headway_core::models::transfer::Method;
use headway_core::plan::{
    Named, OperationWork, Outcome, Pipeline, PipelineSource, Plan, PlannedEngine, PlannedOperation, PlannedStep,
    PlannedStream, SCHEMA, Server, Strategy as Kept, Strength, Verdict,
};
use headway_core::units::{Bytes, Nanos};
use proptest::collection::vec;
use proptest::prelude::*;

/// A block that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Datum {
    pub(crate) at: u64,
    pub(crate) pipeline: u32,
    pub(crate) cycle: u64,
    pub(crate) bytes: u64,
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) plan: Plan,
    pub(crate) limits: DispatcherLimits,
    pub(crate) epoch: u64,
    pub(crate) cycles: Vec<u64>,
    pub(crate) packets: Vec<u64>,
    /// In the order of arrival, then of pipeline and cycle.
    pub(crate) data: Vec<Datum>,
    pub(crate) seed: u64,
}

impl Case {
    /// How long an operation takes on its engine: as long as it has bytes, more or less.
    pub(crate) fn time(&self, pipeline: u32, cycle: u64, step: u32, index: u32, offset: u64, bytes: u64) -> u64 {
        let words = [u64::from(pipeline), cycle, u64::from(step), u64::from(index), offset];
        let mixed = words.iter().fold(self.seed, |mixed, word| (mixed ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        1 + bytes * (1 + (mixed >> 61)) / 4
    }
}

pub(crate) fn verdict() -> Verdict {
    Verdict {
        outcome: Outcome::Schedulable,
        model: "a test".to_owned(),
        strength: Strength::Exact,
        utilisation_ppm: 0,
        margin_ppm: None,
        violation: None,
        notes: Vec::new(),
    }
}

pub(crate) fn server(in_flight: u32) -> Server {
    Server { name: "server".to_owned(), engines: vec![EngineId(0)], in_flight, verdict: verdict() }
}

pub(crate) fn copy(bytes: u64) -> PlannedOperation {
    let work = OperationWork::Copy {
        from: "host".to_owned(),
        to: "gpu0".to_owned(),
        class: EngineClass::H2d,
        route: RouteId(0),
        method: Method::Dma,
        bytes: Bytes(bytes),
        uses: Vec::new(),
    };
    PlannedOperation { engines: vec![EngineId(0)], work }
}

pub(crate) fn hold() -> PlannedOperation {
    PlannedOperation { engines: Vec::new(), work: OperationWork::Hold }
}

pub(crate) fn compute() -> PlannedOperation {
    PlannedOperation { engines: vec![EngineId(0)], work: OperationWork::Compute { kernel: "spin".to_owned() } }
}

pub(crate) fn step(server: u32, cost: u64, operations: Vec<PlannedOperation>) -> PlannedStep {
    let (cost, chunk) = (Nanos(cost), Bytes(0));
    PlannedStep {
        name: "step".to_owned(),
        server,
        cost,
        chunk,
        chunk_cost: cost,
        hold: None,
        bound: None,
        operations,
        batch: None,
    }
}

/// A pipeline that releases its cycles by itself.
pub(crate) fn flow(period: u64, window: u64, steps: Vec<PlannedStep>) -> Pipeline {
    Pipeline {
        name: "flow".to_owned(),
        source: PipelineSource::Demand,
        gpu: None,
        period: Nanos(period),
        start: Nanos::ZERO,
        gather: Nanos::ZERO,
        window: Nanos(window),
        reserve: Bytes(8),
        steps,
        windows: Vec::new(),
        gang: None,
    }
}

/// A stream with a pipeline of its own, to be put at position `at`.
pub(crate) fn stream(at: u32, period: u64, deadline: u64) -> PlannedStream {
    PlannedStream {
        id: format!("s{at}"),
        packet: Bytes(1),
        period: Nanos(period),
        deadline: Nanos(deadline),
        start: Nanos::ZERO,
        on_miss: OnMiss::Finish,
        gpu: Some(0),
        pipeline: at,
        portion: 0,
    }
}

pub(crate) fn plan(servers: Vec<Server>, pipelines: Vec<Pipeline>, streams: Vec<PlannedStream>) -> Plan {
    let named = || Named { name: "test".to_owned(), hash: String::new() };
    Plan {
        schema: SCHEMA,
        workload: named(),
        machine: named(),
        strategy: Kept::Partitioned,
        jitter: Nanos::ZERO,
        others: 0,
        driver: None,
        engines: vec![PlannedEngine { name: "engine".to_owned(), gpu: Some(0), serves: Vec::new() }],
        capacities: Vec::new(),
        servers,
        streams,
        pipelines,
        announced: Vec::new(),
        batches: Vec::new(),
        division: None,
        verdict: verdict(),
        alternatives: Vec::new(),
    }
}

fn any_step(servers: u32) -> impl Strategy<Value = PlannedStep> {
    let operations = prop_oneof![
        4 => Just(vec![copy(0)]),
        1 => Just(vec![compute()]),
        1 => Just(vec![hold()]),
        2 => vec((1..9u64).prop_map(copy), 2..4),
    ];
    (0..servers, 1..10u64, 0..6u64, operations).prop_map(|(server, cost, chunk, operations)| PlannedStep {
        chunk: Bytes(if operations.len() == 1 { chunk } else { 0 }),
        ..step(server, cost, operations)
    })
}

/// A pipeline with its stream, whether it has any, its cycles, and per cycle how early its data is and how much it is.
type Fed = (Pipeline, PlannedStream, u64, u64, Vec<(i64, u64)>);

fn any_pipeline(servers: u32) -> impl Strategy<Value = Fed> {
    let times = (1..13u64, 0..11u64, 0..13u64, any::<bool>(), any::<bool>());
    let stream = (1..9u64, 0..11u64, 1..50u64, 0..12u64);
    let data = vec((-7..8i64, prop_oneof![1 => Just(0), 4 => 1..12u64]), 5);
    (times, stream, vec(any_step(servers), 1..4), 1..12u64, 0..6u64, data).prop_map(
        |((period, start, window, fed, gathered), (apart, from, deadline, packets), steps, reserve, cycles, data)| {
            let mut pipeline = flow(period, window, steps);
            pipeline.start = Nanos(start);
            pipeline.reserve = Bytes(reserve);
            let mut of = stream_at(apart, from, deadline);
            if fed {
                pipeline.source = PipelineSource::Streams(vec![0]);
                pipeline.gather = Nanos(if gathered { period } else { 0 });
                if !gathered {
                    (of.period, of.start) = (pipeline.period, pipeline.start);
                }
            }
            (pipeline, of, packets, cycles, data)
        },
    )
}

fn stream_at(period: u64, start: u64, deadline: u64) -> PlannedStream {
    PlannedStream { start: Nanos(start), ..stream(0, period, deadline) }
}

/// Cases with up to three servers, four pipelines and five cycles each.
pub(crate) fn any_case() -> impl Strategy<Value = Case> {
    let servers = vec(1..4u32, 1..4);
    let sized = servers.prop_flat_map(|servers| {
        let count = servers.len() as u32;
        (Just(servers), vec(any_pipeline(count), 1..5), 0..4u64, 3..9usize, any::<u64>())
    });
    sized.prop_map(|(servers, fed, jitter, operations_max, seed)| {
        let epoch = 20;
        let (mut pipelines, mut streams, mut packets) = (Vec::new(), Vec::new(), Vec::new());
        let (mut cycles, mut data) = (Vec::new(), Vec::new());
        for (at, (mut pipeline, mut stream, of_stream, of_pipeline, blocks)) in (0u32..).zip(fed) {
            if let PipelineSource::Streams(list) = &mut pipeline.source {
                list[0] = streams.len() as u32;
                stream.pipeline = at;
                streams.push(stream);
                packets.push(of_stream);
                for (cycle, &(early, bytes)) in (0..of_pipeline).zip(&blocks) {
                    let due = epoch + pipeline.release(cycle, 0).0;
                    let bytes = bytes.min(pipeline.reserve.0);
                    data.push(Datum { at: due.saturating_add_signed(-early), pipeline: at, cycle, bytes });
                }
            }
            cycles.push(of_pipeline);
            pipelines.push(pipeline);
        }
        data.sort_unstable();
        let mut plan = plan(servers.into_iter().map(server).collect(), pipelines, streams);
        plan.jitter = Nanos(jitter);
        let limits = DispatcherLimits { operations_max, ..DispatcherLimits::default() };
        Case { plan, limits, epoch, cycles, packets, data, seed }
    })
}
