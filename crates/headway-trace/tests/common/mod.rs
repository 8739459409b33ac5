//! A small plan and a small driver with fixed durations on virtual time, for tests.
#![allow(dead_code, reason = "every test file uses its part")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use headway_core::decisions::dispatch::{DispatchAction, DispatchInput, Dispatcher, DispatcherLimits};
use headway_core::files::machine::{CapacityId, EngineClass, EngineId, RouteId};
use headway_core::files::workload::OnMiss;
use headway_core::log::{LogHeader, LogRecord, RecordBody, RunSource, SCHEMA, StreamRun};
use headway_core::models::transfer::Method;
use headway_core::plan::block;
use headway_core::plan::{
    self, Named, OperationWork, Outcome, Pipeline, PipelineSource, Plan, PlannedCapacity, PlannedEngine,
    PlannedOperation, PlannedStep, PlannedStream, Server, Strategy, Strength, Verdict,
};
use headway_core::units::{Bytes, Nanos, Rate};
use headway_trace::{LogWriter, RunLog};

pub(crate) const EPOCH: Nanos = Nanos(5_000);

/// Two GPUs with three engines each, `streams` streams in pipelines of their own: copy in, compute, copy out, on the GPU
/// of their parity. Stream 0 is the slow one whose large chunks make the others wait.
pub(crate) fn plan(streams: u32) -> Plan {
    let engine = |gpu: u32, name: &str, class| PlannedEngine {
        name: format!("gpu{gpu}.{name}"),
        gpu: Some(gpu),
        serves: vec![class],
    };
    let engines = (0..2)
        .flat_map(|gpu| {
            [
                engine(gpu, "h2d", EngineClass::H2d),
                engine(gpu, "ee", EngineClass::Ee),
                engine(gpu, "d2h", EngineClass::D2h),
            ]
        })
        .collect::<Vec<_>>();
    let servers = engines
        .iter()
        .enumerate()
        .map(|(at, engine)| Server {
            name: engine.name.clone(),
            engines: vec![EngineId(at as u32)],
            in_flight: if at % 3 == 1 { 1 } else { 2 },
            verdict: verdict(),
        })
        .collect();
    let capacity = |name: &str, rate| PlannedCapacity { name: name.to_owned(), rate: Rate(rate) };
    let (planned, pipelines) = (0..streams).map(|index| stream(index, streams)).unzip();
    Plan {
        schema: plan::SCHEMA,
        workload: Named { name: "fixture".to_owned(), hash: "0123456789abcdef".to_owned() },
        machine: Named { name: "two-gpus".to_owned(), hash: "fedcba9876543210".to_owned() },
        strategy: Strategy::Partitioned,
        jitter: Nanos(1_000),
        others: 0,
        driver: None,
        engines,
        capacities: vec![
            capacity("host -> gpu0", 10_000_000_000),
            capacity("gpu0 -> host", 10_000_000_000),
            capacity("host -> gpu1", 10_000_000_000),
            capacity("gpu1 -> host", 10_000_000_000),
            capacity("host memory", 16_000_000_000),
        ],
        servers,
        streams: planned,
        pipelines,
        announced: vec![],
        batches: vec![],
        division: None,
        verdict: verdict(),
        alternatives: vec![],
    }
}

pub(crate) fn verdict() -> Verdict {
    Verdict {
        outcome: Outcome::Schedulable,
        model: "sporadic".to_owned(),
        strength: Strength::Sufficient,
        utilisation_ppm: 400_000,
        margin_ppm: None,
        violation: None,
        notes: vec![],
    }
}

fn stream(index: u32, streams: u32) -> (PlannedStream, Pipeline) {
    let gpu = index % 2;
    let heavy = index == 0;
    let period = if heavy { 1_000_000 } else { 100_000 + 10_000 * u64::from(index % 16) };
    let cycle = period * 2;
    let packet = if heavy { 400_000 } else { 24_000 / u64::from(streams.div_ceil(8)) };
    let lens = [2 * packet];
    let reserve = block::block_bytes(lens);
    let copy = |host_to_gpu: bool| {
        let (engine, capacity) = if host_to_gpu { (3 * gpu, 2 * gpu) } else { (3 * gpu + 2, 2 * gpu + 1) };
        let (host, device) = ("host".to_owned(), format!("gpu{gpu}"));
        let (from, to) = if host_to_gpu { (host, device) } else { (device, host) };
        PlannedStep {
            name: format!("{from} -> {to}"),
            server: engine,
            cost: Rate(10_000_000_000).time_for(reserve).saturating_add(Nanos(8_000)),
            chunk_cost: Rate(10_000_000_000).time_for(reserve).saturating_add(Nanos(8_000)),
            chunk: Bytes(if heavy { 300_000 } else { 0 }),
            hold: None,
            bound: None,
            operations: vec![PlannedOperation {
                engines: vec![EngineId(engine)],
                work: OperationWork::Copy {
                    from,
                    to,
                    class: if host_to_gpu { EngineClass::H2d } else { EngineClass::D2h },
                    route: RouteId(2 * gpu + u32::from(!host_to_gpu)),
                    method: Method::Dma,
                    bytes: reserve,
                    uses: vec![(CapacityId(capacity), 1_000_000), (CapacityId(4), 1_000_000)],
                },
            }],
            batch: None,
        }
    };
    let compute = PlannedStep {
        name: "aes128-cbc".to_owned(),
        server: 3 * gpu + 1,
        cost: Nanos(60_000),
        chunk: Bytes(0),
        chunk_cost: Nanos(60_000),
        hold: None,
        bound: None,
        operations: vec![PlannedOperation {
            engines: vec![EngineId(3 * gpu + 1)],
            work: OperationWork::Compute { kernel: "aes128-cbc".to_owned() },
        }],
        batch: None,
    };
    let pipeline = Pipeline {
        name: if heavy { "bulk".to_owned() } else { format!("voice-{index}") },
        source: PipelineSource::Streams(vec![index]),
        gpu: Some(gpu),
        period: Nanos(cycle),
        start: Nanos::ZERO,
        gather: Nanos(cycle),
        window: Nanos(cycle),
        reserve,
        steps: vec![copy(true), compute, copy(false)],
        windows: Vec::new(),
        gang: None,
    };
    let planned = PlannedStream {
        id: pipeline.name.clone(),
        packet: Bytes(packet),
        period: Nanos(period),
        deadline: Nanos(4 * cycle),
        start: Nanos::ZERO,
        on_miss: OnMiss::Finish,
        gpu: Some(gpu),
        pipeline: index,
        portion: 0,
    };
    (planned, pipeline)
}

/// How the fixed durations are bent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bend {
    /// This operation takes so much longer.
    pub(crate) slow: Option<(u64, Nanos)>,
    /// This operation fails.
    pub(crate) fails: Option<u64>,
    /// The driver wakes so late for every window.
    pub(crate) oversleeps: Nanos,
}

/// Runs `plan` for `cycles` cycles of its first pipeline and returns the log's parts.
pub(crate) fn run(plan: &Plan, cycles: u64, bend: Bend) -> (LogHeader, Vec<LogRecord>) {
    let span = plan.pipelines[0].period * cycles;
    let cycles: Vec<u64> = plan.pipelines.iter().map(|pipeline| (span.0 / pipeline.period.0).max(1)).collect();
    let streams: Vec<StreamRun> = plan
        .streams
        .iter()
        .map(|stream| {
            let pipeline = &plan.pipelines[stream.pipeline as usize];
            let packets = stream.packets_in(pipeline, cycles[stream.pipeline as usize] - 1).end;
            StreamRun { packets, bytes: Bytes(stream.packet.0 * packets) }
        })
        .collect();
    let header = LogHeader {
        schema: SCHEMA,
        source: RunSource::Sim,
        version: "0.1.0".to_owned(),
        commit: "unknown".to_owned(),
        seed: 7,
        devices: vec!["modelled GPU".to_owned(); 2],
        plan: plan.clone(),
        cycles,
        streams,
        cpu: None,
        others: Vec::new(),
    };
    let records = Driver::new(&header, bend).run(&header);
    (header, records)
}

pub(crate) fn log(plan: &Plan, cycles: u64, bend: Bend) -> RunLog {
    let (header, records) = run(plan, cycles, bend);
    RunLog::new(header, records, "fixture").expect("the fixture fits its plan")
}

/// The log as a file.
pub(crate) fn text(log: &RunLog) -> Vec<u8> {
    let mut writer = LogWriter::new(Vec::new(), log.header()).expect("a vector takes everything");
    for record in log.records() {
        writer.record(record).expect("a vector takes everything");
    }
    writer.finish().expect("a vector takes everything")
}

struct Driver {
    dispatcher: Dispatcher,
    now: Nanos,
    bend: Bend,
    data: BinaryHeap<Reverse<(Nanos, u32, u64, u64)>>,
    completions: BinaryHeap<Reverse<(Nanos, u64, Nanos)>>,
    engine_free: BTreeMap<EngineId, Nanos>,
    records: Vec<LogRecord>,
}

impl Driver {
    fn new(header: &LogHeader, bend: Bend) -> Self {
        let plan = &header.plan;
        let mut data = BinaryHeap::new();
        for (index, pipeline) in (0u32..).zip(&plan.pipelines) {
            let PipelineSource::Streams(streams) = &pipeline.source else { continue };
            for cycle in 0..header.cycles[index as usize] {
                let lens = streams.iter().map(|&stream| {
                    let planned = &plan.streams[stream as usize];
                    let range = planned.packets_in(pipeline, cycle);
                    let end = range.end.min(header.streams[stream as usize].packets);
                    end.saturating_sub(range.start) * planned.packet.0
                });
                let bytes = block::block_bytes(lens);
                data.push(Reverse((EPOCH + pipeline.release(cycle, 0), index, cycle, bytes.0)));
            }
        }
        let dispatcher =
            Dispatcher::new(plan.clone(), DispatcherLimits::default()).expect("the fixture's plan is consistent");
        let (completions, engine_free) = (BinaryHeap::new(), BTreeMap::new());
        Self { dispatcher, now: EPOCH, bend, data, completions, engine_free, records: Vec::new() }
    }

    fn run(mut self, header: &LogHeader) -> Vec<LogRecord> {
        let packets = header.streams.iter().map(|run| run.packets).collect();
        self.feed(DispatchInput::Start { epoch: EPOCH, cycles: header.cycles.clone(), packets });
        self.drain();
        while !self.dispatcher.is_finished() {
            let data = self.data.peek().map(|Reverse(next)| next.0);
            let completion = self.completions.peek().map(|Reverse(next)| next.0);
            let timeout = self.dispatcher.poll_timeout();
            let Some(next) = [data, completion, timeout].into_iter().flatten().min() else { break };
            if self.dispatcher.is_halted() && completion.is_none() {
                break;
            }
            let late = if timeout == Some(next) { self.bend.oversleeps } else { Nanos::ZERO };
            self.now = (next + late).max(self.now);
            self.inputs(timeout);
            self.drain();
        }
        self.records
    }

    fn inputs(&mut self, timeout: Option<Nanos>) {
        while let Some(&Reverse((time, operation, started))) = self.completions.peek() {
            if time > self.now {
                break;
            }
            self.completions.pop();
            let fails = self.bend.fails == Some(operation);
            let done = DispatchInput::Done { operation, started, finished: time };
            self.feed(if fails { DispatchInput::Failed { operation } } else { done });
        }
        while let Some(&Reverse((time, pipeline, cycle, bytes))) = self.data.peek() {
            if time > self.now {
                break;
            }
            self.data.pop();
            self.feed(DispatchInput::Data { pipeline, cycle, bytes: Bytes(bytes) });
        }
        if timeout.is_some_and(|timeout| timeout <= self.now) {
            self.feed(DispatchInput::Timeout);
        }
    }

    fn feed(&mut self, input: DispatchInput) {
        self.dispatcher.handle(self.now, &input).expect("the driver feeds what is expected");
        self.records.push(LogRecord { at: self.now, what: RecordBody::Input(input) });
    }

    fn drain(&mut self) {
        while let Some(action) = self.dispatcher.poll_action() {
            if let DispatchAction::Submit { operation, pipeline, step, index, bytes, .. } = action {
                let plan = self.dispatcher.plan();
                let planned = &plan.pipelines[pipeline as usize].steps[step as usize].operations[index as usize];
                let mut time = match planned.work {
                    OperationWork::Copy { .. } => Nanos(2_000 + bytes.0 / 10),
                    OperationWork::Compute { .. } | OperationWork::Hold => Nanos(8_000 + bytes.0 / 20),
                };
                if let Some((slow, by)) = self.bend.slow
                    && slow == operation
                {
                    time = time + by;
                }
                let free = planned.engines.iter().filter_map(|engine| self.engine_free.get(engine)).max();
                let started = self.now.max(free.copied().unwrap_or_default());
                for engine in &planned.engines {
                    self.engine_free.insert(*engine, started + time);
                }
                self.completions.push(Reverse((started + time, operation, started)));
            }
            self.records.push(LogRecord { at: self.now, what: RecordBody::Action(action) });
        }
        while let Some(event) = self.dispatcher.poll_event() {
            self.records.push(LogRecord { at: self.now, what: RecordBody::Event(event) });
        }
    }
}
