//! What the tests of the simulator share: payloads without bytes, runs with a log, plans made by hand.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::convert::Infallible;

use headway_core::decisions::dispatch::{DispatchEvent, DispatcherLimits};
use headway_core::files::machine::{Machine, shipped};
use headway_core::files::workload::{Cycle, Grouping, ServerDemand, Workload};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::plan::combine::CombineEffort;
use headway_core::plan::payload::{Gathered, Payload, PayloadChunk};
use headway_core::plan::{
    Named, Outcome as Answer, Pipeline, PipelineSource, Plan, PlannedEngine, SCHEMA, Server, Strategy, Strength,
    Verdict,
};
use headway_core::units::{Bytes, Nanos};
use headway_sim::{Run, SimError, SimFaults, SimOutcome, simulate};

pub(crate) const EPOCH: Nanos = Nanos(10_000_000);

/// A small generator of its own, so that the draws of a test do not depend on those of the simulator.
#[derive(Clone, Debug)]
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    pub(crate) fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// At least 1, below two to a power below `powers`: small numbers as often as large ones.
    pub(crate) fn size(&mut self, powers: u64) -> u64 {
        let power = self.below(powers);
        self.within(1, 1 << power)
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// Moves nothing. Cycles carry all of their reserve, a part of it or nothing.
pub(crate) struct Null<'a> {
    plan: &'a Plan,
    draw: Option<Draw>,
    pub(crate) gathered: u64,
    pub(crate) executed: u64,
    pub(crate) delivered: u64,
}

impl<'a> Null<'a> {
    pub(crate) fn full(plan: &'a Plan) -> Self {
        Self { plan, draw: None, gathered: 0, executed: 0, delivered: 0 }
    }

    pub(crate) fn partial(plan: &'a Plan, seed: u64) -> Self {
        Self { draw: Some(Draw(seed)), ..Self::full(plan) }
    }

    /// The most bytes a stream can have in a cycle of the pipeline.
    fn portion_max(&self, pipeline: &Pipeline) -> u64 {
        let PipelineSource::Streams(streams) = &pipeline.source else { return 0 };
        let portion = |&stream: &u32| {
            let stream = &self.plan.streams[stream as usize];
            let packets = if pipeline.gather.0 == 0 { 1 } else { pipeline.gather.0.div_ceil(stream.period.0) };
            packets * stream.packet.0
        };
        streams.iter().map(portion).max().unwrap_or(0)
    }
}

impl Payload for Null<'_> {
    type Error = Infallible;

    fn gather(&mut self, pipeline: u32, _: u64) -> Result<Gathered, Infallible> {
        self.gathered += 1;
        let planned = &self.plan.pipelines[pipeline as usize];
        let portion_max = self.portion_max(planned);
        let reserve = planned.reserve.0;
        let (block, portion) = match &mut self.draw {
            None => (reserve, portion_max),
            Some(draw) => match draw.below(4) {
                0 => (0, 0),
                1 => {
                    let block = draw.within(1, reserve);
                    (block, draw.within(0, portion_max.min(block)))
                }
                _ => (reserve, portion_max),
            },
        };
        Ok(Gathered { block: Bytes(block), longest_portion: Bytes(portion) })
    }

    fn execute(&mut self, _: &PayloadChunk) -> Result<(), Infallible> {
        self.executed += 1;
        Ok(())
    }

    fn deliver(&mut self, _: u32, _: u64) -> Result<(), Infallible> {
        self.delivered += 1;
        Ok(())
    }
}

/// A run of `plan` with `cycles` cycles in each pipeline and nothing that goes wrong.
pub(crate) fn run_of(plan: &Plan, cycles: u64) -> Run {
    Run {
        epoch: EPOCH,
        cycles: vec![cycles; plan.pipelines.len()],
        packets: vec![u64::MAX; plan.streams.len()],
        inputs: Vec::new(),
        seed: 1,
        faults: SimFaults::default(),
        limits: DispatcherLimits::default(),
    }
}

/// Runs and keeps the log.
pub(crate) fn logged(
    plan: &Plan,
    machine: &Machine,
    run: &Run,
    payload: &mut Null<'_>,
) -> (Result<SimOutcome, SimError<Infallible>>, Vec<LogRecord>) {
    let mut log = Vec::new();
    let outcome = simulate(plan, machine, run, payload, |record| log.push(record.clone()));
    (outcome, log)
}

pub(crate) fn events(log: &[LogRecord]) -> impl Iterator<Item = &DispatchEvent> {
    log.iter().filter_map(|record| match &record.what {
        RecordBody::Event(event) => Some(event),
        RecordBody::Input(_) | RecordBody::Action(_) => None,
    })
}

/// Whether something happened that a plan which holds rules out.
pub(crate) fn is_fault(event: &DispatchEvent) -> bool {
    match event {
        DispatchEvent::Ready { .. }
        | DispatchEvent::Complete { .. }
        | DispatchEvent::Empty { .. }
        | DispatchEvent::Answered { .. } => false,
        DispatchEvent::DataLate { .. }
        | DispatchEvent::Unready { .. }
        | DispatchEvent::ReleaseLate { .. }
        | DispatchEvent::Late { .. }
        | DispatchEvent::Overrun { .. }
        | DispatchEvent::Missed { .. }
        | DispatchEvent::MissedMore { .. }
        | DispatchEvent::Lost { .. }
        | DispatchEvent::Paused { .. }
        | DispatchEvent::Resumed { .. }
        | DispatchEvent::Halted { .. } => true,
    }
}

pub(crate) fn is_late(event: &DispatchEvent) -> bool {
    matches!(event, DispatchEvent::Late { .. })
}

pub(crate) fn machine(name: &str) -> Machine {
    shipped(name).expect("shipped")
}

/// A workload of flows on one server: (cost, period, deadline) in ns, called `0`, `1`, ...
pub(crate) fn flows(tasks: &[(u64, u64, u64)]) -> Workload {
    let flow = |(number, &(cost, period, deadline)): (usize, &(u64, u64, u64))| ServerDemand {
        id: number.to_string(),
        server: "engine".to_owned(),
        start: Nanos::ZERO,
        cost: Nanos(cost),
        period: Nanos(period),
        deadline: Nanos(deadline),
    };
    Workload { demands: tasks.iter().enumerate().map(flow).collect(), ..empty() }
}

pub(crate) fn empty() -> Workload {
    Workload {
        name: "test".to_owned(),
        description: String::new(),
        duration: Nanos(1_000_000_000),
        seed: 1,
        cycle: Cycle::Auto,
        grouping: Grouping::Class,
        transform: CombineEffort::Search,
        streams: Vec::new(),
        messages: Vec::new(),
        demands: Vec::new(),
        unplanned: Vec::new(),
        tasks: Vec::new(),
        sharing: None,
        hash: "test".to_owned(),
    }
}

pub(crate) fn verdict() -> Verdict {
    Verdict {
        outcome: Answer::Schedulable,
        model: "a test".to_owned(),
        strength: Strength::Exact,
        utilisation_ppm: 0,
        margin_ppm: None,
        violation: None,
        notes: Vec::new(),
    }
}

/// A plan for `machine` with these pipelines, all on one server.
pub(crate) fn by_hand(machine: &Machine, pipelines: Vec<Pipeline>) -> Plan {
    let engine = |e: &headway_core::files::machine::Engine| PlannedEngine {
        name: e.id.clone(),
        gpu: Some(0),
        serves: e.serves.clone(),
    };
    Plan {
        schema: SCHEMA,
        workload: Named { name: "test".to_owned(), hash: String::new() },
        machine: Named { name: machine.name.clone(), hash: machine.hash.clone() },
        strategy: Strategy::Serial,
        jitter: Nanos::ZERO,
        others: 0,
        driver: None,
        engines: machine.engines.iter().map(engine).collect(),
        capacities: Vec::new(),
        servers: vec![Server { name: "all".to_owned(), engines: Vec::new(), in_flight: 1, verdict: verdict() }],
        streams: Vec::new(),
        pipelines,
        announced: Vec::new(),
        batches: Vec::new(),
        division: None,
        verdict: verdict(),
        alternatives: Vec::new(),
    }
}
