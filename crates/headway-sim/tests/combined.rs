//! Combined messages in the simulator: every byte of every block arrives once, unchanged and in time.

use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::support::{Draw, EPOCH, empty, is_fault, machine, run_of};
use headway_core::files::machine::Machine;
use headway_core::files::workload::{Message, MessageBlock, Workload};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::plan::payload::{Gathered, Payload, PayloadChunk};
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Outcome as Answer, PipelineSource, Plan, Strategy};
use headway_core::units::{Bytes, Nanos};
use headway_sim::{Run, simulate};

const MS: u64 = 1_000_000;

/// The byte at `at` of block `job` of a message.
fn source(name: &str, job: u64, at: u64) -> u8 {
    let name = name.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut mixed = name ^ job.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^= mixed >> 29;
    mixed as u8
}

/// Destination buffers: what has arrived of every block, and when its last byte came.
struct Moved<'a> {
    plan: &'a Plan,
    blocks: BTreeMap<(String, u64), Vec<Option<u8>>>,
    twice: u64,
}

impl Payload for Moved<'_> {
    type Error = Infallible;

    fn gather(&mut self, _: u32, _: u64) -> Result<Gathered, Infallible> {
        Ok(Gathered::default())
    }

    fn execute(&mut self, chunk: &PayloadChunk) -> Result<(), Infallible> {
        let PipelineSource::Batch(parts) = &self.plan.pipelines[chunk.pipeline as usize].source else { return Ok(()) };
        let part = &parts[chunk.index as usize];
        let (job, _) = part.in_cycle(chunk.cycle).expect("only what a cycle carries is submitted");
        let len = part.message.bytes.0 as usize;
        let block = self.blocks.entry((part.message.name.clone(), job)).or_insert_with(|| vec![None; len]);
        for at in chunk.offset.0..chunk.offset.0 + chunk.bytes.0 {
            let byte = source(&part.message.name, job, at);
            self.twice += u64::from(block[at as usize].replace(byte).is_some());
        }
        Ok(())
    }

    fn deliver(&mut self, _: u32, _: u64) -> Result<(), Infallible> {
        Ok(())
    }
}

fn messages(machine: &Machine, draw: &mut Draw) -> Workload {
    let host = machine.endpoints[machine.memories().next().unwrap().at()].id.clone();
    let gpus: Vec<String> = machine.gpus().map(|gpu| machine.endpoints[gpu.at()].id.clone()).collect();
    let block = |draw: &mut Draw| {
        let gpu = draw.pick(&gpus).clone();
        let (from, to) = if draw.below(2) == 0 { (host.clone(), gpu) } else { (gpu, host.clone()) };
        MessageBlock { from, to, bytes: Bytes(draw.within(1, 3_000)) }
    };
    let message = |number: u64, draw: &mut Draw| {
        let period = if draw.below(2) == 0 { *draw.pick(&[5, 10, 20, 50]) * MS } else { draw.within(4 * MS, 60 * MS) };
        let blocks = (0..draw.within(1, 2)).map(|_| block(draw)).collect();
        Message {
            id: format!("m{number}"),
            period: Nanos(period),
            start: Nanos(draw.below(2) * draw.below(20 * MS)),
            late: None,
            blocks,
        }
    };
    let count = draw.within(2, 8);
    Workload { messages: (0..count).map(|number| message(number, draw)).collect(), ..empty() }
}

fn until(plan: &Plan, end: u64) -> Run {
    let cycles = plan.pipelines.iter().map(|p| end.saturating_sub(p.start.0).div_ceil(p.period.0));
    Run { cycles: cycles.collect(), ..run_of(plan, 0) }
}

#[test]
fn every_byte_of_every_message_arrives_once_and_in_time() {
    let machine = machine("h200-x4");
    let mut draw = Draw(3);
    let (mut ran, mut split, mut batched) = (0, 0, 0);
    for case in 0..60 {
        let workload = messages(&machine, &mut draw);
        let plan = plan(&machine, &workload, PlanOptions { strategy: Some(Strategy::Combined) }).unwrap();
        if plan.verdict.outcome != Answer::Schedulable {
            continue;
        }
        let end = 300 * MS;
        let mut moved = Moved { plan: &plan, blocks: BTreeMap::new(), twice: 0 };
        let mut log: Vec<LogRecord> = Vec::new();
        let run = until(&plan, end);
        let outcome = simulate(&plan, &machine, &run, &mut moved, |record| log.push(record.clone())).unwrap();
        assert!(outcome.finished);
        let fault = log.iter().find(|r| matches!(&r.what, RecordBody::Event(event) if is_fault(event)));
        assert_eq!(fault, None, "case {case}");
        assert_eq!(moved.twice, 0, "case {case}");
        for pipeline in &plan.pipelines {
            let PipelineSource::Batch(parts) = &pipeline.source else { panic!("only messages") };
            batched += usize::from(parts.len() > 1);
            for part in parts {
                split += usize::from(part.member.parts_max() > 1);
                let jobs = (0..).take_while(|&job| part.message.window(job).1 <= u128::from(end));
                for job in jobs {
                    let block = moved.blocks.get(&(part.message.name.clone(), job));
                    let whole = block.is_some_and(|block| {
                        let expected = (0u64..).map(|at| Some(source(&part.message.name, job, at)));
                        block.iter().copied().zip(expected).all(|(found, expected)| found == expected)
                    });
                    assert!(whole, "case {case}: block {job} of {}", part.message.name);
                }
            }
        }
        assert!(log.iter().all(|record| record.at >= EPOCH || matches!(record.what, RecordBody::Input(_))));
        ran += 1;
    }
    assert!(ran > 30 && split > 20 && batched > 30, "{ran} {split} {batched}");
}
