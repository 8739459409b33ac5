//! Pipelines that advance together: the baselines `lockstep` and `generation`, planned and dispatched.

use crate::bench::Bench;
use crate::case::{self, compute, copy, flow, server, step, stream};
use headway_core::decisions::dispatch::{
    DispatchAction, DispatchEvent, DispatchInput, DispatchRefused, Dispatcher, DispatcherLimits,
};
use headway_core::files::machine::{Machine, shipped};
use headway_core::files::workload::Workload;
use headway_core::interconnect::{BatchBlock, Network};
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Gang, OperationWork, Outcome, Pipeline, PipelineSource, Plan, Strategy};
use headway_core::units::{Bytes, Nanos};
use headway_kernels::workload::parse;

/// Two pipelines of a stream each, with windows of 10 and these steps, in one gang.
fn pair(chained: bool, steps: &[bool]) -> Plan {
    let pipeline = |at: u32| {
        let operation = |&copies: &bool| if copies { copy(8) } else { compute() };
        let steps = steps.iter().map(|copies| step(0, 3, vec![operation(copies)])).collect();
        let gang = Some(Gang { number: 7, chained });
        Pipeline { source: PipelineSource::Streams(vec![at]), gang, ..flow(10, 10, steps) }
    };
    case::plan(vec![server(1)], vec![pipeline(0), pipeline(1)], vec![stream(0, 10, 90), stream(1, 10, 90)])
}

impl Bench {
    /// What is submitted now: (operation, pipeline, cycle, step).
    fn submitted(&mut self) -> Vec<(u64, u32, u64, u32)> {
        let of = |action| match action {
            DispatchAction::Submit { operation, pipeline, cycle, step, .. } => Some((operation, pipeline, cycle, step)),
            DispatchAction::Deliver { .. } | DispatchAction::Drop { .. } => None,
        };
        std::iter::from_fn(|| self.0.poll_action()).filter_map(of).collect()
    }
}

#[test]
fn jobs_of_a_gang_go_at_once_in_the_order_of_their_pipelines_and_end_when_the_last_does() {
    let mut bench = Bench::started(pair(false, &[true, true]), 1);
    bench.data(0, 1, 0);
    bench.data(0, 0, 0);
    assert_eq!(bench.submitted(), [(0, 0, 0, 0), (1, 1, 0, 0)]);
    bench.done(1, 0, 2);
    let complete =
        |events: Vec<DispatchEvent>| events.iter().filter(|e| matches!(e, DispatchEvent::Complete { .. })).count();
    assert_eq!((bench.submitted(), complete(bench.events())), (vec![], 0));
    bench.done(0, 0, 3);
    assert_eq!((bench.submitted(), complete(bench.events())), (vec![], 2));
    bench.0.handle(Nanos(10), &DispatchInput::Timeout).unwrap();
    assert_eq!(bench.submitted(), [(2, 0, 0, 1), (3, 1, 0, 1)]);
}

#[test]
fn steps_of_one_cycle_do_not_mix_with_those_of_another_though_their_windows_close_together() {
    let mut bench = Bench::started(pair(false, &[true, true]), 2);
    for pipeline in [0, 1] {
        bench.data(0, pipeline, 0);
    }
    assert_eq!(bench.submitted().len(), 2);
    bench.done(0, 0, 3);
    bench.done(1, 0, 3);
    for pipeline in [0, 1] {
        bench.data(10, pipeline, 1);
    }
    let first = bench.submitted();
    let step = first[0].3;
    assert!(first.len() == 2 && first.iter().all(|job| job.3 == step), "{first:?}");
    bench.done(2, 10, 13);
    bench.done(3, 10, 13);
    let second = bench.submitted();
    assert!(second.len() == 2 && second.iter().all(|job| job.3 == 1 - step), "{second:?}");
}

#[test]
fn who_comes_late_goes_alone() {
    let mut bench = Bench::started(pair(false, &[true]), 1);
    bench.data(0, 0, 0);
    assert_eq!(bench.submitted(), [(0, 0, 0, 0)]);
    bench.data(1, 1, 0);
    assert_eq!(bench.submitted(), []);
    bench.done(0, 0, 3);
    assert_eq!(bench.submitted(), [(1, 1, 0, 0)]);
}

#[test]
fn the_steps_of_a_chained_gang_follow_each_other_in_one_window() {
    let mut bench = Bench::started(pair(true, &[true, false, true]), 2);
    for pipeline in [0, 1] {
        bench.data(0, pipeline, 0);
    }
    for step in 0..3u64 {
        let at = 3 * step;
        let submitted = bench.submitted();
        assert_eq!(submitted, [(2 * step, 0, 0, step as u32), (2 * step + 1, 1, 0, step as u32)]);
        bench.done(2 * step, at, at + 3);
        bench.done(2 * step + 1, at, at + 3);
    }
    let late = |events: Vec<DispatchEvent>| events.iter().filter(|e| matches!(e, DispatchEvent::Late { .. })).count();
    assert_eq!((bench.submitted(), late(bench.events())), (vec![], 0));
    for pipeline in [0, 1] {
        bench.data(10, pipeline, 1);
    }
    let mut at = 10;
    for _ in 0..3 {
        let submitted = bench.submitted();
        submitted.iter().for_each(|job| bench.done(job.0, at, at + 4));
        at += 4;
    }
    assert_eq!(late(bench.events()), 2, "12 is too long for a window of 10, and both last steps end after it");
}

#[test]
fn gangs_that_cannot_advance_together_are_refused() {
    let refused = |plan: Plan, limits| Dispatcher::new(plan, limits).err();
    let mut apart = pair(false, &[true]);
    apart.pipelines[1].start = Nanos(1);
    let message = refused(apart, DispatcherLimits::default()).unwrap().to_string();
    assert!(message.contains("do not advance together"), "{message}");
    let narrow = DispatcherLimits { operations_max: 1, ..DispatcherLimits::default() };
    let refusal = refused(pair(false, &[true]), narrow);
    assert!(matches!(refusal, Some(DispatchRefused::TooManyOperations { operations: 2, limit: 1, .. })), "{refusal:?}");
    let mut cut = pair(false, &[true]);
    cut.pipelines[0].steps[0].chunk = Bytes(4);
    assert!(refused(cut, DispatcherLimits::default()).is_some());
}

const MS: u64 = 1_000_000;

/// A stream each on both GPUs: in, AES, out. Packets come every 2 ms.
fn streams(bytes: u64, deadlines: [u64; 2], run: &str) -> Workload {
    let stream = |(gpu, deadline): (usize, u64)| {
        format!(
            "[[stream]]\nid = \"s{gpu}\"\ngpu = \"gpu{gpu}\"\npacket = \"{bytes} B\"\nperiod = \"2 ms\"\n\
             deadline = \"{deadline} ms\"\nsteps = [{{ copy = \"host -> gpu\" }}, {{ compute = \"aes128-cbc\" }}, \
             {{ copy = \"gpu -> host\" }}]\nkey = \"000102030405060708090a0b0c0d0e{gpu:02x}\"\n\
             iv = \"101112131415161718191a1b1c1d1e1f\"\n"
        )
    };
    let text: String = deadlines.into_iter().enumerate().map(stream).collect();
    parse("w.toml", &format!("name = \"w\"\n{run}{text}")).unwrap_or_else(|error| panic!("{error}")).value
}

fn planned(machine: &Machine, workload: &Workload, strategy: Strategy) -> Plan {
    plan(machine, workload, PlanOptions { strategy: Some(strategy) }).unwrap()
}

/// The bound on the blocks that step `at` of all pipelines moves.
fn batch_of(machine: &Machine, plan: &Plan, at: usize) -> Nanos {
    let block = |pipeline: &Pipeline| match pipeline.steps[at].operations[0].work {
        OperationWork::Copy { route, bytes, .. } => BatchBlock { route, bytes },
        OperationWork::Compute { .. } | OperationWork::Hold => panic!("step {at} is a copy"),
    };
    let blocks: Vec<BatchBlock> = plan.pipelines.iter().map(block).collect();
    Network::new(machine).wcet(&blocks, machine.calibration.as_ref()).unwrap().value
}

#[test]
fn lockstep_moves_the_blocks_of_all_gpus_as_one_batch_per_way_in_cycles_of_the_shortest_deadline() {
    let machine = shipped("verner-r2").unwrap();
    let plan = planned(&machine, &streams(1_000_000, [40, 100], ""), Strategy::Lockstep);
    assert_eq!(plan.pipelines.len(), 2);
    for pipeline in &plan.pipelines {
        assert_eq!(
            (pipeline.window, pipeline.period, pipeline.gather),
            (Nanos(10 * MS), Nanos(10 * MS), Nanos(10 * MS))
        );
        assert_eq!(pipeline.gang, Some(Gang { number: 0, chained: false }));
        assert_eq!(pipeline.steps[0].cost, batch_of(&machine, &plan, 0));
        assert_eq!(pipeline.steps[2].cost, batch_of(&machine, &plan, 2));
    }
    // Both ways one after the other, each once, though two pipelines have them.
    let transfers = plan.servers.iter().find(|server| server.name == "transfers").unwrap();
    let both = u128::from((batch_of(&machine, &plan, 0) + batch_of(&machine, &plan, 2)).0) * 1_000_000;
    assert_eq!(u128::from(transfers.verdict.utilisation_ppm), both.div_ceil(u128::from(10 * MS)));
    assert_eq!(plan.servers.len(), 3, "the kernels of each GPU are a server of their own");
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    // 9.6 GB/s for four times the bytes of a cycle, against one after the other at 8 GB/s.
    let serial = planned(&machine, &streams(1_000_000, [40, 100], ""), Strategy::Serial);
    let used = |plan: &Plan| plan.servers.iter().find(|s| s.name == "transfers").unwrap().verdict.utilisation_ppm;
    assert!(used(&plan) < used(&serial), "{} {}", used(&plan), used(&serial));
}

#[test]
fn a_generation_fills_one_window_with_all_its_steps() {
    let machine = shipped("verner-r1").unwrap();
    let plan = planned(&machine, &streams(100_000, [40, 100], ""), Strategy::Generation);
    let pipeline = &plan.pipelines[0];
    assert_eq!((pipeline.window, pipeline.gather), (Nanos(20 * MS), Nanos(20 * MS)), "gathering and one window");
    assert!((0..3).all(|step| pipeline.release(3, step) == Nanos(80 * MS)));
    assert_eq!(pipeline.deadline(3, 2), Nanos(100 * MS));
    assert_eq!(plan.servers.len(), 1, "the node has one queue");
    let kernel = plan.pipelines.iter().map(|p| p.steps[1].cost).max().unwrap();
    let all = batch_of(&machine, &plan, 0) + kernel + batch_of(&machine, &plan, 2);
    let costs: Nanos = pipeline.steps.iter().map(|step| step.cost).fold(Nanos::ZERO, |sum, cost| sum + cost);
    assert_eq!(costs, all);
    assert_eq!(plan.verdict.utilisation_ppm, (u128::from(all.0) * 1_000_000).div_ceil(20_000_000) as u64);
    // The window is full when both copies at 8 GB/s and the kernel at 7.5 GB/s take all of it.
    let most = (1..).find(|half_megabytes| {
        let workload = streams(half_megabytes * 500_000, [40, 40], "");
        planned(&machine, &workload, Strategy::Generation).verdict.outcome != Outcome::Schedulable
    });
    let (block, packets) = (20e6 / (2.0 / 8.0 + 1.0 / 7.5), 10.0);
    assert_eq!(most, Some((block / packets / 500_000.0) as u64 + 1));
}

#[test]
fn a_generation_of_packets_that_are_jobs_ends_before_the_next_packets_come() {
    let machine = shipped("verner-r1").unwrap();
    let run = "[run]\ncycle = \"arrival\"\n";
    let plan = planned(&machine, &streams(1_000_000, [40, 1], run), Strategy::Generation);
    let windows: Vec<(Nanos, Nanos)> = plan.pipelines.iter().map(|p| (p.gather, p.window)).collect();
    assert_eq!(windows, [(Nanos::ZERO, Nanos(2 * MS)), (Nanos::ZERO, Nanos(MS))]);
    let gangs: Vec<u32> = plan.pipelines.iter().map(|p| p.gang.unwrap().number).collect();
    assert_ne!(gangs[0], gangs[1], "windows of different lengths do not close together");
}

#[test]
fn messages_and_flows_are_served_beside_a_gang() {
    let machine = shipped("verner-r1").unwrap();
    let mut workload = streams(100_000, [40, 40], "");
    let more = "name = \"m\"\n[[message]]\nid = \"m\"\nperiod = \"20 ms\"\nblocks = [{ from = \"host\", to = \"gpu0\", \
                bytes = \"1 MB\" }]\n[[demand]]\nid = \"f\"\ncost = \"1 ms\"\nperiod = \"20 ms\"\n";
    let more = parse("m.toml", more).unwrap().value;
    (workload.messages, workload.demands) = (more.messages, more.demands);
    for strategy in [Strategy::Lockstep, Strategy::Generation] {
        let plan = planned(&machine, &workload, strategy);
        assert_eq!(plan.verdict.outcome, Outcome::Schedulable, "{strategy:?}");
        let message = plan.pipelines.iter().find(|p| p.source == PipelineSource::Message).unwrap();
        assert_eq!(message.gang, None);
        assert_eq!(message.steps[0].server, plan.pipelines[0].steps[0].server, "copies are made one at a time");
    }
}
