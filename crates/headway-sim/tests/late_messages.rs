//! Messages whose producers are late: what is late is theirs, and nobody else's, however messages are combined.

use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::support::{Draw, EPOCH, empty, events, machine, run_of};
use headway_core::decisions::dispatch::{DispatchEvent, DispatchInput};
use headway_core::files::machine::Machine;
use headway_core::files::workload::{Message, MessageBlock, Workload};
use headway_core::log::LogRecord;
use headway_core::plan::combine::CombineEffort;
use headway_core::plan::payload::{Gathered, Payload, PayloadChunk};
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Outcome as Answer, PipelineSource, Plan, Strategy};
use headway_core::units::{Bytes, Nanos};
use headway_sim::{Run, simulate};

const MS: u64 = 1_000_000;
const END: u64 = 150 * MS;

/// Bytes of (pipeline, operation, job) that arrived, in the order of arrival.
type Arrived = BTreeMap<(u32, u32, u64), Vec<(u64, u64)>>;

struct Moved<'a> {
    plan: &'a Plan,
    arrived: Arrived,
}

/// The job that a cycle carries something of.
fn job(plan: &Plan, chunk: &PayloadChunk) -> u64 {
    let PipelineSource::Batch(parts) = &plan.pipelines[chunk.pipeline as usize].source else { return chunk.cycle };
    let part = &parts[chunk.index as usize];
    let slot = part.member.levels.last().unwrap().grid.slot(chunk.cycle);
    let planned = part.in_cycle(chunk.cycle).map(|(job, _)| job);
    planned.or_else(|| part.message.grid().last_until(slot.0)).unwrap()
}

impl Payload for Moved<'_> {
    type Error = Infallible;

    fn gather(&mut self, _: u32, _: u64) -> Result<Gathered, Infallible> {
        Ok(Gathered::default())
    }

    fn execute(&mut self, chunk: &PayloadChunk) -> Result<(), Infallible> {
        let key = (chunk.pipeline, chunk.index, job(self.plan, chunk));
        self.arrived.entry(key).or_default().push((chunk.offset.0, chunk.bytes.0));
        Ok(())
    }

    fn deliver(&mut self, _: u32, _: u64) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Messages of which about every third has a producer that speaks.
fn messages(machine: &Machine, draw: &mut Draw) -> Workload {
    let host = machine.endpoints[machine.memories().next().unwrap().at()].id.clone();
    let gpus: Vec<String> = machine.gpus().map(|gpu| machine.endpoints[gpu.at()].id.clone()).collect();
    let block = |draw: &mut Draw| {
        let gpu = draw.pick(&gpus).clone();
        let (from, to) = if draw.below(2) == 0 { (host.clone(), gpu) } else { (gpu, host.clone()) };
        // What costs little more than its set-up is combined, what takes long fills windows.
        let most = *draw.pick(&[3_000, 3_000, 20_000_000]);
        MessageBlock { from, to, bytes: Bytes(draw.within(1, most)) }
    };
    let message = |number: u64, draw: &mut Draw| {
        let period = if draw.below(2) == 0 { *draw.pick(&[5, 10, 20, 40]) * MS } else { draw.within(4 * MS, 60 * MS) };
        Message {
            id: format!("m{number}"),
            period: Nanos(period),
            start: Nanos(draw.below(2) * draw.below(20 * MS)),
            late: (draw.below(3) == 0).then(|| Nanos(draw.below(2) * draw.below(period))),
            blocks: (0..draw.within(1, 2)).map(|_| block(draw)).collect(),
        }
    };
    let messages = (0..draw.within(2, 5)).map(|number| message(number, draw)).collect();
    Workload { messages, transform: CombineEffort::Greedy, ..empty() }
}

/// When each job is there: when the message says at the latest, or later by up to two periods. By (message, job).
fn producers(workload: &Workload, draw: &mut Draw) -> BTreeMap<(u32, u64), u64> {
    let mut there = BTreeMap::new();
    for (number, message) in (0u32..).zip(&workload.messages).filter(|(_, message)| message.late.is_some()) {
        let mut at = 0;
        let latest = message.start.0 + message.late.unwrap_or_default().0;
        for job in 0..END.div_ceil(message.period.0) + 2 {
            let later = if draw.below(3) == 0 { draw.below(2 * message.period.0) } else { 0 };
            at = at.max(latest + job * message.period.0 + later);
            there.insert((number, job), at);
        }
    }
    there
}

#[derive(Debug, Default)]
struct Seen {
    accepted: u64,
    split: u64,
    whole_though_late: u64,
    missed: u64,
    late_alone: u64,
}

/// Runs one accepted plan.
fn check(plan: &Plan, machine: &Machine, there: &BTreeMap<(u32, u64), u64>, seen: &mut Seen, seed: u64) {
    let cycles: Vec<u64> = plan.pipelines.iter().map(|p| END.saturating_sub(p.start.0).div_ceil(p.period.0)).collect();
    let mut inputs = Vec::new();
    for of in &plan.announced {
        let alone = plan.pipelines[of.pipeline as usize].source == PipelineSource::Message;
        for (&(message, job), &at) in there.range((of.message, 0)..=(of.message, u64::MAX)) {
            if message == of.message && (!alone || job < cycles[of.pipeline as usize]) {
                inputs.push((Nanos(at), DispatchInput::Ready { pipeline: of.pipeline, part: of.part, job }));
            }
        }
    }
    inputs.sort_by_key(|(at, _)| *at);
    let run = Run { cycles, inputs, ..run_of(plan, 0) };
    let mut moved = Moved { plan, arrived: Arrived::new() };
    let mut log: Vec<LogRecord> = Vec::new();
    let outcome = simulate(plan, machine, &run, &mut moved, |record| log.push(record.clone()));
    assert!(outcome.unwrap().finished, "seed {seed}");
    let speaks = |pipeline: u32| {
        plan.announced.iter().any(|of| of.pipeline == pipeline)
            && plan.pipelines[pipeline as usize].source == PipelineSource::Message
    };
    let mut given_up = BTreeMap::new();
    for event in events(&log) {
        match *event {
            DispatchEvent::Unready { pipeline, part, job, left } => {
                assert!(given_up.insert((pipeline, part, job), left.0).is_none(), "seed {seed}");
            }
            DispatchEvent::Late { pipeline, .. } | DispatchEvent::DataLate { pipeline, .. } if speaks(pipeline) => {
                seen.late_alone += 1;
            }
            DispatchEvent::Late { .. }
            | DispatchEvent::DataLate { .. }
            | DispatchEvent::Overrun { .. }
            | DispatchEvent::ReleaseLate { .. } => {
                panic!("seed {seed}: {event:?}")
            }
            _ => {}
        }
    }
    for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
        let PipelineSource::Batch(parts) = &pipeline.source else { continue };
        for (index, part) in (0u32..).zip(parts) {
            let of = &part.message;
            seen.split += u64::from(part.member.parts_max() > 1);
            let producer = plan.announced.iter().find(|of| (of.pipeline, of.part) == (number, index));
            for job in (0..).take_while(|&job| of.window(job).1 <= u128::from(END)) {
                let arrived = moved.arrived.remove(&(number, index, job)).unwrap_or_default();
                let mut next = 0;
                for (offset, bytes) in arrived {
                    assert_eq!(offset, next, "seed {seed}: byte by byte, none twice");
                    next += bytes;
                }
                let missed = given_up.remove(&(number, index, job));
                assert_eq!(next + missed.unwrap_or(0), of.bytes.0, "seed {seed}: whole, or the rest is told");
                let late =
                    producer.map(|of| there[&(of.message, job)]).is_some_and(|at| u128::from(at) > of.window(job).0);
                assert!(missed.is_none() || late, "seed {seed}: only who is late misses");
                seen.missed += u64::from(missed.is_some());
                seen.whole_though_late += u64::from(late && missed.is_none());
            }
        }
    }
}

/// A machine whose costs have nothing to spare.
fn tight() -> Machine {
    let mut machine = machine("h200-x1");
    if let Some(calibration) = &mut machine.calibration {
        (calibration.margin_ppm, calibration.jitter, calibration.sigma_ppm) = (0, Nanos::ZERO, 1_000_000);
    }
    machine
}

/// Two messages of which one has 1 ms of its 5 ms left once its block must be there.
fn hurried() -> Workload {
    let message = |id: &str, period: u64, late: u64| Message {
        id: id.into(),
        period: Nanos(period * MS),
        start: Nanos::ZERO,
        late: Some(Nanos(late * MS)),
        blocks: vec![MessageBlock { from: "host".into(), to: "gpu0".into(), bytes: Bytes(100_000) }],
    };
    let messages = vec![message("camera", 5, 4), message("lidar", 10, 1)];
    Workload { messages, ..empty() }
}

#[test]
fn a_block_that_is_there_as_late_as_its_message_says_is_carried_in_any_batch() {
    let (machine, workload) = (machine("h200-x4"), hurried());
    let plan = plan(&machine, &workload, PlanOptions { strategy: Some(Strategy::Combined) }).unwrap();
    assert_eq!(plan.verdict.outcome, Answer::Schedulable);
    assert!(plan.pipelines.iter().any(|of| matches!(&of.source, PipelineSource::Batch(parts) if parts.len() == 2)));
    for early in [0, 1, MS] {
        let at = |of: &Message, job: u64| of.late.unwrap().0 - early.min(of.late.unwrap().0) + job * of.period.0;
        let there = (0u32..).zip(&workload.messages);
        let there = there.flat_map(|(number, of)| (0..60).map(move |job| ((number, job), at(of, job)))).collect();
        let mut seen = Seen::default();
        check(&plan, &machine, &there, &mut seen, early);
        assert_eq!(seen.missed, 0);
    }
}

#[test]
fn the_deadlines_of_a_message_that_can_be_later_than_its_period_are_promised_by_no_plan() {
    for late in [5, 8] {
        let (machine, mut workload) = (machine("h200-x4"), hurried());
        workload.messages[0].late = Some(Nanos(late * MS));
        for strategy in [None, Some(Strategy::Serial), Some(Strategy::Combined), Some(Strategy::Partitioned)] {
            let found = plan(&machine, &workload, PlanOptions { strategy }).unwrap().verdict;
            assert_eq!(found.outcome, Answer::NotSchedulable, "{strategy:?}");
            let note = format!("the blocks of `camera` may be there {late} ms after their release");
            assert!(found.notes.iter().any(|said| said.starts_with(&note)), "{:?}", found.notes);
        }
    }
}

#[test]
fn no_deadline_is_missed_where_producers_are_as_late_as_a_plan_allows() {
    let machine = tight();
    let (mut seen, mut seed, mut refused) = (Seen::default(), 0, 0);
    while seen.accepted < 300 {
        seed += 1;
        let draw = &mut Draw(seed);
        let mut workload = messages(&machine, draw);
        for message in workload.messages.iter_mut().filter(|message| message.late.is_some()) {
            // About as much time is left as blocks need.
            message.late = Some(message.period.saturating_sub(Nanos(draw.within(1, 2 * MS))));
        }
        let strategy = *draw.pick(&[Strategy::Combined, Strategy::Serial, Strategy::Partitioned]);
        let plan = plan(&machine, &workload, PlanOptions { strategy: Some(strategy) }).unwrap();
        refused += u64::from(plan.verdict.outcome != Answer::Schedulable);
        if plan.verdict.outcome == Answer::Schedulable && !plan.announced.is_empty() {
            seen.accepted += 1;
            for most in [0, 2] {
                let there = (0u32..).zip(&workload.messages).filter_map(|(number, of)| Some((number, of, of.late?)));
                let at = |of: &Message, late: Nanos, job: u64, draw: &mut Draw| {
                    of.start.0 + job * of.period.0 + if draw.below(3) < most { draw.below(late.0 + 1) } else { late.0 }
                };
                let jobs = |of: &Message| END.div_ceil(of.period.0) + 2;
                let there = there.flat_map(|(number, of, late)| (0..jobs(of)).map(move |job| (number, of, late, job)));
                let there = there.map(|(number, of, late, job)| ((number, job), at(of, late, job, draw))).collect();
                check(&plan, &machine, &there, &mut seen, seed);
            }
            assert_eq!((seen.missed, seen.late_alone), (0, 0), "seed {seed}");
        }
    }
    println!("{seen:?}, {refused} refused");
    assert!(refused > 30);
}

/// More with `HEADWAY_CASES=100000 cargo test --release -p headway-sim --test it late_messages:: -- --nocapture`.
#[test]
fn a_late_producer_of_a_message_makes_nobody_late_but_itself() {
    let machine = tight();
    let cases: u64 = std::env::var("HEADWAY_CASES").map_or(1_000, |text| text.parse().expect("a number"));
    let (mut seen, mut seed) = (Seen::default(), 0);
    while seen.accepted < cases {
        seed += 1;
        let draw = &mut Draw(seed);
        let workload = messages(&machine, draw);
        let there = producers(&workload, draw);
        let strategy = *draw.pick(&[Strategy::Combined, Strategy::Combined, Strategy::Serial, Strategy::Partitioned]);
        let plan = plan(&machine, &workload, PlanOptions { strategy: Some(strategy) }).unwrap();
        if plan.verdict.outcome == Answer::Schedulable && !plan.announced.is_empty() {
            seen.accepted += 1;
            check(&plan, &machine, &there, &mut seen, seed);
        }
    }
    println!("{cases} accepted plans, {seen:?}");
    assert!(EPOCH > Nanos::ZERO && seen.split > cases / 20 && seen.whole_though_late > cases / 50);
    assert!(seen.missed > cases / 4 && seen.late_alone > cases / 4);
}
