//! No plan that the planner accepts ever misses a deadline, whatever arrives and however short kernels run.

use crate::support::{Draw, EPOCH, Null, empty, events, is_fault, logged, machine, run_of};
use headway_core::decisions::dispatch::{DispatchEvent, DispatchInput, UrgentAnswer};
use headway_core::files::machine::Machine;
use headway_core::files::workload::{
    CopyEndpoint, Cycle, Grouping, Message, MessageBlock, OnMiss, Otherwise, PacketPart, Parameters, PartStep,
    PartWork, ServerDemand, Stream, StreamPlacement, StreamStep, Unplanned, UnplannedKind, Urgent, Workload,
};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::models::transfer::Method;
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Outcome, PipelineSource, Plan, ServiceClass, Strategy};
use headway_core::units::{Bytes, Nanos, Rate};
use headway_sim::{Run, SimFaults};

const MS: u64 = 1_000_000;
/// Cycles of all pipelines together in one run.
const CYCLES_MAX: u64 = 400;

/// The same machine measured so well that costs have nothing to spare.
fn exact(mut machine: Machine) -> Machine {
    if let Some(calibration) = &mut machine.calibration {
        calibration.margin_ppm = 0;
        calibration.jitter = Nanos::ZERO;
        calibration.sigma_ppm = 1_000_000;
    }
    machine
}

fn copy(from: CopyEndpoint, to: CopyEndpoint) -> StreamStep {
    StreamStep::Copy { from, to }
}

/// Steps that the machine can do: in, perhaps a kernel, perhaps over another GPU, out.
fn steps(machine: &Machine, draw: &mut Draw, gpu: Option<&str>) -> Vec<StreamStep> {
    let compute = |kernel: &str| StreamStep::Compute { kernel: kernel.to_owned() };
    let mut steps = vec![copy(CopyEndpoint::Host, CopyEndpoint::OwnGpu)];
    if !machine.kernels.is_empty() {
        for _ in 0..draw.below(3) {
            steps.push(compute(&draw.pick(&machine.kernels).id));
        }
    }
    let peer =
        machine.routes.iter().find(|r| r.method == Method::Peer && Some(&*machine.endpoints[r.from.at()].id) == gpu);
    match (draw.below(4), peer) {
        (0, _) => {}
        (1, Some(peer)) => {
            let other = CopyEndpoint::Named(machine.endpoints[peer.to.at()].id.clone());
            steps.push(copy(CopyEndpoint::OwnGpu, other.clone()));
            if draw.below(2) == 0 {
                steps.push(copy(other, CopyEndpoint::Host));
            }
        }
        (_, _) => steps.push(copy(CopyEndpoint::OwnGpu, CopyEndpoint::Host)),
    }
    steps
}

fn stream(machine: &Machine, draw: &mut Draw, number: usize) -> Stream {
    let gpus: Vec<&str> = machine.gpus().map(|gpu| machine.endpoints[gpu.at()].id.as_str()).collect();
    let gpu = (draw.below(2) == 0).then(|| *draw.pick(&gpus));
    let steps = steps(machine, draw, gpu);
    let scale = draw.within(3, 10);
    Stream {
        id: format!("s{number}"),
        packet: Bytes(draw.size(22)),
        period: Nanos(draw.within(MS / 10, scale * 2 * MS)),
        deadline: Nanos(draw.within(MS / 2, scale * 4 * MS)),
        start: Nanos(draw.below(2) * draw.below(5 * MS)),
        gpu: gpu.map_or(StreamPlacement::Auto, |gpu| StreamPlacement::Gpu(gpu.to_owned())),
        steps,
        on_miss: OnMiss::Finish,
        parameters: Parameters::default(),
        sharding: None,
        parts: Vec::new(),
    }
}

fn any_stream(machine: &Machine, draw: &mut Draw, number: usize) -> Stream {
    let stream = stream(machine, draw, number);
    if draw.below(5) == 0 { in_parts(machine, draw, stream) } else { stream }
}

/// The same packets in parts, each of which goes to a GPU of its own, meets a kernel and comes back, one step or none at a time.
fn in_parts(machine: &Machine, draw: &mut Draw, stream: Stream) -> Stream {
    let gpus: Vec<&str> = machine.gpus().map(|gpu| machine.endpoints[gpu.at()].id.as_str()).collect();
    let count = draw.within(1, 3).min(stream.packet.0);
    let bytes = |part| stream.packet.0 / count + u64::from(part < stream.packet.0 % count);
    let parts = (0..count).map(|part| PacketPart { id: format!("p{part}"), bytes: Bytes(bytes(part)) }).collect();
    let way = |draw: &mut Draw| {
        let gpu = CopyEndpoint::Named((*draw.pick(&gpus)).to_owned());
        let mut way = vec![PartWork::Copy { from: CopyEndpoint::Host, to: gpu.clone() }];
        if !machine.kernels.is_empty() && draw.below(2) == 0 {
            let kernel = draw.pick(&machine.kernels).id.clone();
            way.push(PartWork::Compute { kernel, at: gpu.clone(), on_cpu: false });
        }
        way.push(PartWork::Copy { from: gpu, to: CopyEndpoint::Host });
        way.reverse();
        way
    };
    let mut ways: Vec<Vec<PartWork>> = (0..count).map(|_| way(draw)).collect();
    let mut steps = Vec::new();
    while ways.iter().any(|way| !way.is_empty()) {
        let mut set = Vec::new();
        for (part, way) in (0u32..).zip(&mut ways) {
            let work = if draw.below(4) == 0 { None } else { way.pop() };
            set.extend(work.map(|work| PartStep { part, work }));
        }
        if !set.is_empty() {
            steps.push(StreamStep::Parts(set));
        }
    }
    Stream { steps, parts, ..stream }
}

fn message(machine: &Machine, draw: &mut Draw, number: usize) -> Message {
    let block = |draw: &mut Draw| {
        let usable: Vec<_> = machine.routes.iter().filter(|r| r.method != Method::Pageable).collect();
        let route = draw.pick(&usable);
        let name = |end: headway_core::files::machine::EndpointId| machine.endpoints[end.at()].id.clone();
        MessageBlock { from: name(route.from), to: name(route.to), bytes: Bytes(draw.size(25)) }
    };
    Message {
        id: format!("m{number}"),
        period: Nanos(draw.within(MS, 20 * MS)),
        start: Nanos(draw.below(2) * draw.below(5 * MS)),
        late: None,
        blocks: (0..draw.within(1, 5)).map(|_| block(draw)).collect(),
    }
}

/// A bulk transfer or urgent requests.
fn unplanned(machine: &Machine, draw: &mut Draw, number: usize) -> Unplanned {
    let usable: Vec<_> = machine.routes.iter().filter(|r| r.method != Method::Pageable).collect();
    let route = draw.pick(&usable);
    let name = |end: headway_core::files::machine::EndpointId| machine.endpoints[end.at()].id.clone();
    let bytes = Bytes(draw.size(26));
    let kind = match draw.below(3) {
        0 => UnplannedKind::Bulk(None),
        1 => UnplannedKind::Bulk(Some(bytes)),
        _ => {
            let (deadline, every) = (Nanos(draw.within(MS / 10, 20 * MS)), Some(Nanos(draw.within(MS, 20 * MS))));
            UnplannedKind::Urgent(Urgent { bytes, deadline, every, otherwise: Otherwise::Refuse })
        }
    };
    let start = Nanos(draw.below(2) * draw.below(5 * MS));
    Unplanned { id: format!("u{number}"), from: name(route.from), to: name(route.to), start, kind }
}

/// Requests at any time, of any size.
fn requests(plan: &Plan, draw: &mut Draw, span: u64) -> Vec<(Nanos, DispatchInput)> {
    let mut inputs = Vec::new();
    for (pipeline, of) in (0u32..).zip(&plan.pipelines) {
        let PipelineSource::Urgent(urgent) = of.source else { continue };
        for _ in 0..draw.below(20) {
            let otherwise = *draw.pick(&[Otherwise::Refuse, Otherwise::BestEffort]);
            let bytes = Bytes(draw.within(1, urgent.bytes.0));
            let deadline = Nanos(draw.within(1, 2 * urgent.deadline.0));
            inputs.push((Nanos(draw.below(span)), DispatchInput::Urgent { pipeline, bytes, deadline, otherwise }));
        }
    }
    inputs.sort_by_key(|(at, _)| *at);
    inputs
}

fn workload(machine: &Machine, draw: &mut Draw) -> Workload {
    let (streams, messages, flows) = (draw.within(1, 7), draw.below(3), draw.below(3));
    let flow = |draw: &mut Draw, number: u64| {
        let period = draw.within(MS, 10 * MS);
        let deadline = draw.within(period / 2, 2 * period);
        let (cost, server) = (Nanos(draw.within(1, deadline / 3)), "cpu".to_owned());
        ServerDemand {
            id: format!("f{number}"),
            server,
            start: Nanos::ZERO,
            cost,
            period: Nanos(period),
            deadline: Nanos(deadline),
        }
    };
    Workload {
        cycle: *draw.pick(&[Cycle::Auto, Cycle::Paper, Cycle::Arrival]),
        grouping: *draw.pick(&[Grouping::Class, Grouping::Each, Grouping::Gpu]),
        streams: (0..streams).map(|n| any_stream(machine, draw, n as usize)).collect(),
        messages: (0..messages).map(|n| message(machine, draw, n as usize)).collect(),
        demands: (0..flows).map(|n| flow(draw, n)).collect(),
        unplanned: (0..draw.below(4)).map(|n| unplanned(machine, draw, n as usize)).collect(),
        ..empty()
    }
}

/// A few copies with short windows beside a few large ones, so that whole copies would block too long.
fn contrast(machine: &Machine, draw: &mut Draw) -> Workload {
    let count = draw.within(2, 5);
    let cycle = *draw.pick(&[Cycle::Paper, Cycle::Arrival]);
    let streams = (0..count).map(|number| {
        let mut stream = stream(machine, draw, number as usize);
        stream.steps = vec![copy(CopyEndpoint::Host, CopyEndpoint::OwnGpu)];
        if number % 2 == 0 {
            stream.packet = Bytes(draw.size(14));
            stream.deadline = Nanos(draw.within(MS / 5, MS));
            stream.period = Nanos(draw.within(MS / 5, MS));
        } else {
            stream.packet = Bytes(draw.within(1 << 20, 1 << 24));
            stream.deadline = Nanos(draw.within(10 * MS, 50 * MS));
            stream.period = Nanos(draw.within(10 * MS, 50 * MS));
        }
        stream
    });
    let streams = streams.collect();
    let unplanned = (0..draw.below(3)).map(|n| unplanned(machine, draw, n as usize)).collect();
    Workload { cycle, streams, unplanned, ..empty() }
}

/// The workload with all sizes times `factor` / 8.
fn larger(workload: &Workload, factor: u64) -> Workload {
    let scaled = |bytes: Bytes| Bytes((bytes.0 * factor).div_ceil(8));
    let mut larger = workload.clone();
    for stream in &mut larger.streams {
        stream.parts.iter_mut().for_each(|part| part.bytes = scaled(part.bytes));
        stream.packet = match stream.parts.is_empty() {
            true => scaled(stream.packet),
            false => Bytes(stream.parts.iter().map(|part| part.bytes.0).sum()),
        };
    }
    larger.messages.iter_mut().flat_map(|m| &mut m.blocks).for_each(|b| b.bytes = scaled(b.bytes));
    larger
}

/// The plan with the largest of the sizes tried that is accepted.
fn largest_accepted(machine: &Machine, workload: &Workload, options: PlanOptions) -> Option<Plan> {
    let mut accepted = None;
    let mut factor = 8;
    for _ in 0..14 {
        let Ok(plan) = plan(machine, &larger(workload, factor), options) else { break };
        if plan.verdict.outcome != Outcome::Schedulable {
            break;
        }
        accepted = Some(plan);
        factor += factor / 2;
    }
    accepted
}

/// As many cycles of each pipeline as fit one span of time.
fn run(plan: &Plan, draw: &mut Draw) -> Run {
    let planned = || plan.pipelines.iter().filter(|p| p.source.is_planned());
    let cycles = |span: u64| planned().map(move |p| span / p.period.0 + 1);
    let mut span = 100 * MS;
    while cycles(span).sum::<u64>() > CYCLES_MAX {
        span /= 2;
    }
    let kernel_ppm_min = *draw.pick(&[None, Some(0), Some(500_000), Some(999_000)]);
    let faults = SimFaults { kernel_ppm_min, ..SimFaults::default() };
    let inputs = requests(plan, draw, span);
    let unplanned = std::iter::repeat_n(u64::from(u32::MAX), plan.pipelines.len() - planned().count());
    let cycles = cycles(span).chain(unplanned).collect();
    Run { epoch: EPOCH, cycles, inputs, seed: draw.below(1 << 40), faults, ..run_of(plan, 0) }
}

#[derive(Debug, Default)]
struct Seen {
    accepted: u32,
    busy: u32,
    chunked: u32,
    own_sizes: u32,
    by_arrival: u32,
    serial: u32,
    combined: u32,
    partitioned: u32,
    per_gpu: u32,
    in_gangs: u32,
    in_parts: u32,
    sets: u32,
    pieces_of_bulk: u64,
    /// Steps with a bound, those that took nearly as long, and those whose bound is clearly below the window.
    bounded: u64,
    near: u64,
    below_window: u64,
    admitted: u32,
    best_effort: u32,
    refused: u32,
}

impl Seen {
    fn observe(&mut self, plan: &Plan, event: &DispatchEvent) {
        match event {
            DispatchEvent::Complete { pipeline, .. } => {
                let class = plan.pipelines[*pipeline as usize].source.class();
                self.pieces_of_bulk += u64::from(class == ServiceClass::Bulk);
            }
            DispatchEvent::Answered { answer: UrgentAnswer::Guaranteed { .. }, .. } => self.admitted += 1,
            DispatchEvent::Answered { answer: UrgentAnswer::BestEffort(_), .. } => self.best_effort += 1,
            DispatchEvent::Answered { answer: UrgentAnswer::Refused(_), .. } => self.refused += 1,
            _ => {}
        }
    }

    /// No step takes longer from the opening of its window than its bound.
    fn hold_against_bound(&mut self, plan: &Plan, record: &LogRecord) {
        let RecordBody::Event(DispatchEvent::Complete { pipeline, cycle, step }) = record.what else { return };
        let of = &plan.pipelines[pipeline as usize];
        let Some(bound) = of.steps[step as usize].bound else { return };
        let opens = EPOCH + of.release(cycle, step as usize);
        let took = record.at - opens;
        assert!(took <= bound, "step {step} of cycle {cycle} of {of:?} took {took} in {plan:#?}");
        assert!(bound <= of.window_of(step as usize));
        self.bounded += 1;
        self.near += u64::from(took.0 * 10 > bound.0 * 9);
        self.below_window += u64::from(bound.0 * 10 < of.window_of(step as usize).0 * 9);
    }

    fn count(&mut self, plan: &Plan) {
        self.accepted += 1;
        self.busy += u32::from(plan.verdict.utilisation_ppm > 500_000);
        let steps = || plan.pipelines.iter().flat_map(|p| &p.steps);
        let parted = |p: &&headway_core::plan::Pipeline| matches!(p.source, PipelineSource::Parts(_));
        self.in_parts += u32::from(plan.pipelines.iter().any(|p| parted(&p)));
        let of_parts = plan.pipelines.iter().filter(parted).flat_map(|p| &p.steps);
        self.sets += of_parts.filter(|step| step.operations.len() > 1).count() as u32;
        self.chunked += u32::from(steps().any(|step| step.chunk > Bytes(0)));
        let sizes_differ = |server: usize| {
            let mut chunks: Vec<Bytes> =
                steps().filter(|s| s.server as usize == server && s.chunk > Bytes(0)).map(|s| s.chunk).collect();
            chunks.sort_unstable();
            chunks.dedup();
            chunks.len() > 1
        };
        self.own_sizes += u32::from((0..plan.servers.len()).any(sizes_differ));
        let arrives = |p: &headway_core::plan::Pipeline| {
            matches!(p.source, PipelineSource::Streams(_)) && p.gather == Nanos::ZERO
        };
        self.by_arrival += u32::from(plan.pipelines.iter().any(arrives));
        match plan.strategy {
            Strategy::Serial => self.serial += 1,
            Strategy::Combined => self.combined += 1,
            Strategy::Partitioned => self.partitioned += 1,
            Strategy::PerGpu => self.per_gpu += 1,
            Strategy::Lockstep | Strategy::Generation => self.in_gangs += 1,
        }
    }
}

/// As many as `HEADWAY_CASES` says of all five machines together, else `cases`.
fn accepted_plans_hold(machine: &Machine, seed: u64, cases: u32) -> Seen {
    let asked = std::env::var("HEADWAY_CASES").map(|text| text.parse::<u32>().expect("a number"));
    let cases = asked.map_or(cases, |asked| (asked / 5).max(cases));
    let mut draw = Draw(seed);
    let mut seen = Seen::default();
    for case in 0..cases {
        let workload = if case % 3 == 0 { contrast(machine, &mut draw) } else { workload(machine, &mut draw) };
        let strategy = *draw.pick(&[
            None,
            Some(Strategy::Serial),
            Some(Strategy::Partitioned),
            Some(Strategy::PerGpu),
            Some(Strategy::Combined),
            Some(Strategy::Lockstep),
            Some(Strategy::Generation),
        ]);
        let Some(plan) = largest_accepted(machine, &workload, PlanOptions { strategy }) else { continue };
        seen.count(&plan);
        for partial in [false, true] {
            let mut null = if partial { Null::partial(&plan, draw.below(1 << 40)) } else { Null::full(&plan) };
            let run = run(&plan, &mut draw);
            let (outcome, log) = logged(&plan, machine, &run, &mut null);
            assert!(outcome.unwrap().finished, "seed {seed}, case {case}");
            let fault = events(&log).find(|event| is_fault(event));
            assert_eq!(fault, None, "seed {seed}, case {case}, partial {partial}: {plan:#?}");
            events(&log).for_each(|event| seen.observe(&plan, event));
            log.iter().for_each(|record| seen.hold_against_bound(&plan, record));
        }
    }
    println!("{} {seed}: {cases} cases, {seen:?}", machine.name);
    seen
}

#[test]
fn on_one_h200() {
    let seen = accepted_plans_hold(&machine("h200-x1"), 1, 450);
    assert!(seen.accepted > 80 && seen.partitioned > 20 && seen.in_gangs > 20);
    assert!(seen.pieces_of_bulk > 1_000 && seen.admitted > 100 && seen.best_effort > 20 && seen.refused > 20);
}

#[test]
fn on_one_h200_with_nothing_to_spare() {
    let seen = accepted_plans_hold(&exact(machine("h200-x1")), 2, 600);
    assert!(seen.accepted > 200 && seen.busy > 100 && seen.chunked > 50 && seen.by_arrival > 80);
    assert!(seen.serial > 50 && seen.partitioned > 50);
    assert!(seen.near * 20 > seen.bounded && seen.below_window * 3 > seen.bounded);
    assert!(seen.in_parts > 20 && seen.sets > 50);
}

#[test]
fn on_four_h200() {
    let seen = accepted_plans_hold(&machine("h200-x4"), 3, 450);
    assert!(seen.accepted > 80 && seen.partitioned > 20 && seen.per_gpu > 10 && seen.in_gangs > 20);
}

#[test]
fn on_four_h200_with_nothing_to_spare() {
    let seen = accepted_plans_hold(&exact(machine("h200-x4")), 4, 600);
    assert!(seen.per_gpu > 20);
    assert!(seen.accepted > 200 && seen.busy > 100 && seen.chunked > 50 && seen.by_arrival > 80);
    assert!(seen.serial > 50 && seen.partitioned > 50);
}

#[test]
fn on_the_tyan_without_calibration() {
    let seen = accepted_plans_hold(&machine("tyan-ft72b7015"), 5, 600);
    assert!(seen.accepted > 200 && seen.busy > 100 && seen.chunked > 50 && seen.by_arrival > 80);
}

#[test]
fn the_shipped_encryption_workload_holds_with_a_kernel_that_is_fast_enough() {
    let text = include_str!("../../../workloads/encrypt.toml");
    let workload = headway_kernels::workload::parse("encrypt.toml", text).unwrap().value;
    for name in ["h200-x1", "h200-x4"] {
        let mut machine = machine(name);
        // The shipped costs are provisional; with these, one chain does not block a short cycle for too long.
        let kernel = machine.kernels.iter_mut().find(|kernel| kernel.id == "aes128-cbc").unwrap();
        kernel.chain_rate = Some(Rate(100_000_000));
        let plan = plan(&machine, &workload, PlanOptions::default()).unwrap();
        assert_eq!(plan.verdict.outcome, Outcome::Schedulable, "{:?}", plan.verdict);
        let (outcome, log) = logged(&plan, &machine, &run_of(&plan, 20), &mut Null::partial(&plan, 1));
        assert!(outcome.unwrap().finished);
        assert_eq!(events(&log).find(|event| is_fault(event)), None);
    }
}
