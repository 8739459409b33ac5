//! Random sets of flows in nanoseconds: one that a plan accepts misses no window, whatever the offsets and whatever its jobs
//! cost, as long as that is no more than planned.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Draw, EPOCH, Null, empty, flows, is_late, machine, run_of};
use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput, Dispatcher, DispatcherLimits};
use headway_core::files::machine::Machine;
use headway_core::files::workload::{
    CopyEndpoint, Cycle, Grouping, OnMiss, Parameters, Stream, StreamPlacement, StreamStep, Workload,
};
use headway_core::log::RecordBody;
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Outcome as Answer, Plan, Strategy};
use headway_core::units::{Bytes, Nanos};
use headway_sim::{Run, SimFaults, simulate};

/// Jobs of one run, about.
const JOBS: u64 = 100;

/// Two to eight flows as (cost, period, deadline): deadlines equal to periods in every other set, else between the cost and
/// twice the period.
fn set(draw: &mut Draw) -> Vec<(u64, u64, u64)> {
    let count = draw.within(2, 8);
    let percent = draw.within(20, 105);
    let spread = draw.within(1, 8);
    let implicit = draw.below(2) == 0;
    let flow = |_| {
        let period = draw.within(100, 200) * draw.within(1, 1 << spread) * 10;
        let cost = (period * percent / 100 / count * draw.within(40, 160) / 100).max(1);
        let deadline = if implicit { period } else { draw.within(cost, 2 * period) };
        (cost, period, deadline)
    };
    (0..count).map(flow).collect()
}

/// When the flows start: together, anywhere, or all others a nanosecond after the one that runs longest.
fn starts(set: &[(u64, u64, u64)], draw: &mut Draw) -> Vec<u64> {
    let longest = (0..set.len()).max_by_key(|&at| set[at].0);
    match draw.below(3) {
        0 => vec![0; set.len()],
        1 => set.iter().map(|&(_, period, _)| draw.below(period)).collect(),
        _ => (0..set.len()).map(|at| u64::from(Some(at) != longest)).collect(),
    }
}

/// Whether a run of `plan` from these starts misses a window, and its jobs.
fn misses(machine: &Machine, plan: &Plan, starts: &[u64], faults: SimFaults, seed: u64) -> (bool, u64) {
    let mut plan = plan.clone();
    for (pipeline, &start) in plan.pipelines.iter_mut().zip(starts) {
        pipeline.start = Nanos(start);
    }
    let each: f64 = plan.pipelines.iter().map(|p| 1.0 / p.period.0 as f64).sum();
    let longest = plan.pipelines.iter().map(|p| p.period.0).max().unwrap_or(1);
    let span = ((JOBS as f64 / each) as u64).max(2 * longest);
    let cycles: Vec<u64> = plan.pipelines.iter().map(|p| span.saturating_sub(p.start.0).div_ceil(p.period.0)).collect();
    let jobs = cycles.iter().sum();
    let run = Run { cycles, faults, seed, ..run_of(&plan, 0) };
    let mut late = false;
    let ended = simulate(&plan, machine, &run, &mut Null::full(&plan), |record| {
        late |= matches!(&record.what, RecordBody::Event(event) if is_late(event));
    });
    assert!(ended.unwrap().finished);
    (late, jobs)
}

/// 100,000 sets: `HEADWAY_CASES=100000 cargo test --release -p headway-sim --test it accepted_sets:: -- --nocapture`.
#[test]
fn no_accepted_set_misses_with_any_offsets_and_any_costs_up_to_the_worst() {
    // Without a calibration nothing is added to costs: those of the sets are the worst.
    let machine = Machine { calibration: None, ..machine("h200-x1") };
    let cases: u64 = std::env::var("HEADWAY_CASES").map_or(400, |text| text.parse().expect("a number"));
    let (mut accepted, mut refused, mut missed, mut jobs, mut seed) = (0, 0, 0, 0, 0);
    while accepted < cases {
        seed += 1;
        let draw = &mut Draw(seed);
        let set = set(draw);
        let plan = plan(&machine, &flows(&set), PlanOptions::default()).unwrap();
        let starts = starts(&set, draw);
        let costs =
            [None, Some(0), Some(900_000)].map(|kernel_ppm_min| SimFaults { kernel_ppm_min, ..SimFaults::default() });
        match plan.verdict.outcome {
            Answer::Schedulable => {
                accepted += 1;
                for faults in costs {
                    let (late, ran) = misses(&machine, &plan, &starts, faults, seed);
                    assert!(!late, "seed {seed}: {set:?} from {starts:?}, {faults:?}");
                    jobs += ran;
                }
            }
            // Some of them must miss, or the runs could not tell.
            Answer::NotSchedulable => {
                refused += 1;
                missed += u64::from(misses(&machine, &plan, &starts, costs[0], seed).0);
            }
            Answer::Undecided => {}
        }
    }
    println!(
        "{accepted} accepted sets, {jobs} jobs in time; {refused} refused, of which {missed} missed in the one run tried"
    );
    assert!(refused * 10 > cases && missed * 4 > refused, "{accepted} {refused} {missed}");
}

/// Streams of such copies, as (bytes, period, deadline) in ns, whose packets are jobs of their own.
fn streams(draw: &mut Draw, copies: &[StreamStep]) -> Workload {
    let count = draw.within(2, 5);
    let percent = draw.within(20, 95);
    let stream = |number| {
        let period = draw.within(1_000_000, 2_000_000) * draw.within(1, 8);
        // About 55 bytes a nanosecond, and what every copy costs besides.
        let share = period * percent / 100 / count / copies.len() as u64;
        let bytes = (share * draw.within(40, 160) / 100).saturating_sub(120_000).max(64) * 50;
        Stream {
            id: format!("s{number}"),
            packet: Bytes(bytes),
            period: Nanos(period),
            deadline: Nanos(draw.within(period / 2, 2 * period)),
            start: Nanos::ZERO,
            gpu: StreamPlacement::Auto,
            steps: copies.to_vec(),
            on_miss: OnMiss::Finish,
            parameters: Parameters::default(),
            sharding: None,
            parts: Vec::new(),
        }
    };
    let streams = (0..count).map(stream).collect();
    Workload { cycle: Cycle::Arrival, grouping: Grouping::Each, streams, ..empty() }
}

/// More with `HEADWAY_CASES=100000 cargo test --release -p headway-sim --test it late_producer -- --nocapture`.
#[test]
fn a_late_producer_makes_nobody_late_but_itself() {
    let copies = [StreamStep::Copy { from: CopyEndpoint::Host, to: CopyEndpoint::OwnGpu }];
    nobody_else_is_late(&copies, Strategy::Partitioned, |plan| plan.verdict.outcome == Answer::Schedulable);
}

#[test]
fn a_late_producer_makes_nobody_late_but_itself_where_plans_rest_on_the_distances_of_steps() {
    let copies = [
        StreamStep::Copy { from: CopyEndpoint::Host, to: CopyEndpoint::OwnGpu },
        StreamStep::Copy { from: CopyEndpoint::OwnGpu, to: CopyEndpoint::Host },
    ];
    nobody_else_is_late(&copies, Strategy::Serial, |plan| {
        let rests = plan.servers.iter().any(|server| server.verdict.model.contains("any start of each stream"));
        rests && plan.verdict.outcome == Answer::Schedulable
    });
}

fn nobody_else_is_late(copies: &[StreamStep], strategy: Strategy, counts: fn(&Plan) -> bool) {
    let machine = machine("h200-x1");
    let cases: u64 = std::env::var("HEADWAY_CASES").map_or(200, |text| text.parse().expect("a number"));
    let (mut accepted, mut seed, mut own, mut harmed) = (0, 0, 0, 0);
    while accepted < cases {
        seed += 1;
        let draw = &mut Draw(seed);
        let workload = streams(draw, copies);
        let mut plan = plan(&machine, &workload, PlanOptions { strategy: Some(strategy) }).unwrap();
        let fits = plan.pipelines.iter().all(|pipeline| pipeline.gather == Nanos::ZERO);
        if !counts(&plan) || !fits {
            continue;
        }
        accepted += 1;
        // Worst cases are used up, so that nothing is left for lateness that the plan allows.
        plan.jitter = Nanos::ZERO;
        // Windows open at any time, and data of the first stream comes up to three periods late.
        for pipeline in &mut plan.pipelines {
            pipeline.start = Nanos(draw.below(pipeline.period.0));
        }
        let late = plan.streams[0].pipeline;
        let most = 3 * plan.pipelines[late as usize].period.0;
        let span = 12 * plan.pipelines.iter().map(|p| p.period.0).max().unwrap();
        let cycles: Vec<u64> = plan.pipelines.iter().map(|p| span.div_ceil(p.period.0)).collect();
        let (others, itself) = with_late_data(&plan, &cycles, late, most, &mut Draw(seed));
        assert_eq!(others, 0, "seed {seed}");
        own += u64::from(itself > 0);
        // Where lateness does not count, late jobs keep their places before all that are in time.
        plan.jitter = Nanos(most);
        harmed += u64::from(with_late_data(&plan, &cycles, late, most, &mut Draw(seed)).0 > 0);
    }
    println!(
        "{accepted} accepted sets of streams, a late producer in each: late itself in {own}, nobody else in any; in {harmed} \
         somebody else would be if late jobs kept their places"
    );
    assert!(own * 2 > cases && harmed > cases / 20, "{own} {harmed}");
}

/// Late jobs of all other pipelines, and of `late`, when its data comes up to `most` after its windows open.
fn with_late_data(plan: &Plan, cycles: &[u64], late: u32, most: u64, draw: &mut Draw) -> (u64, u64) {
    let mut dispatcher = Dispatcher::new(plan.clone(), DispatcherLimits::default()).unwrap();
    // Data in the order of time, and operations in that of their ends: every job takes its worst case.
    let mut inputs: BTreeMap<(u64, u64), DispatchInput> = BTreeMap::new();
    let mut order = 0;
    let mut push = |inputs: &mut BTreeMap<(u64, u64), DispatchInput>, at: u64, input: DispatchInput| {
        order += 1;
        inputs.insert((at, order), input);
    };
    for (number, (pipeline, &count)) in (0u32..).zip(plan.pipelines.iter().zip(cycles)) {
        let mut last = 0;
        for cycle in 0..count {
            let opens = EPOCH.0 + pipeline.release(cycle, 0).0;
            let at = if number == late { opens + draw.below(most) } else { opens };
            last = last.max(at);
            push(&mut inputs, last, DispatchInput::Data { pipeline: number, cycle, bytes: pipeline.reserve });
        }
    }
    let packets = plan.streams.iter().map(|stream| cycles[stream.pipeline as usize]).collect();
    let start = DispatchInput::Start { epoch: EPOCH, cycles: cycles.to_vec(), packets };
    dispatcher.handle(Nanos::ZERO, &start).unwrap();
    let (mut now, mut counts) = (0, (0, 0));
    while !dispatcher.is_finished() {
        let next = inputs.keys().next().map(|(at, _)| *at);
        now = [next, dispatcher.poll_timeout().map(|at| at.0)].into_iter().flatten().min().unwrap().max(now);
        dispatcher.handle(Nanos(now), &DispatchInput::Timeout).unwrap();
        while let Some(entry) = inputs.first_entry()
            && entry.key().0 <= now
        {
            dispatcher.handle(Nanos(now), &entry.remove()).unwrap();
        }
        while let Some(action) = dispatcher.poll_action() {
            let DispatchAction::Submit { operation, pipeline, step, offset, bytes, .. } = action else { continue };
            let of = &plan.pipelines[pipeline as usize];
            let planned = &of.steps[step as usize];
            // All pieces together take the worst case.
            let before = planned.chunk_cost * offset.0.checked_div(planned.chunk.0).unwrap_or(0);
            let last = offset + bytes == of.reserve;
            let took = if last { planned.cost.saturating_sub(before) } else { planned.chunk_cost };
            let (started, finished) = (Nanos(now), Nanos(now + took.0));
            push(&mut inputs, finished.0, DispatchInput::Done { operation, started, finished });
        }
        while let Some(event) = dispatcher.poll_event() {
            if let DispatchEvent::Late { pipeline, .. } = event {
                *(if pipeline == late { &mut counts.1 } else { &mut counts.0 }) += 1;
            }
        }
    }
    counts
}

/// Two to five flows with periods of some milliseconds, for which a jitter of 100 us is much, as (cost, period, deadline) in ns.
fn slow_set(draw: &mut Draw) -> Vec<(u64, u64, u64)> {
    let count = draw.within(2, 5);
    let percent = draw.within(20, 70);
    let flow = |_| {
        let period = draw.within(5, 20) * draw.within(1, 4) * 100_000;
        let cost = (period * percent / 100 / count).saturating_sub(draw.below(80_000)).max(1_000);
        (cost, period, if draw.below(2) == 0 { period } else { draw.within(period / 2, period) })
    };
    (0..count).map(flow).collect()
}

/// Whether some job ends after its deadline when every one is ready up to `jitter` after its release and the earliest deadline
/// of those that are ready goes first, none interrupted. No code of the planner or the dispatcher takes part in this.
fn late_jobs_miss(plan: &Plan, starts: &[u64], jitter: u64, draw: &mut Draw) -> bool {
    let longest = plan.pipelines.iter().map(|p| p.period.0).max().unwrap_or(1);
    let mut jobs: Vec<(u64, u64, u64)> = Vec::new();
    // All jobs of most flows are late by the whole jitter in some runs, so that the punctual ones go before them.
    let all = draw.below(3) == 0;
    for (pipeline, &start) in plan.pipelines.iter().zip(starts) {
        let punctual = all || draw.below(4) == 0;
        let mut release = start;
        while release < 3 * longest && jobs.len() < 100_000 {
            let late = if punctual { [0, jitter, draw.below(jitter + 1)][draw.below(3) as usize] } else { jitter };
            jobs.push((release + late, release + pipeline.window.0, pipeline.steps[0].holds().0));
            release += pipeline.period.0;
        }
    }
    jobs.sort_unstable();
    let (mut now, mut next) = (0, 0);
    let mut ready: BTreeSet<(u64, usize)> = BTreeSet::new();
    loop {
        while next < jobs.len() && jobs[next].0 <= now {
            ready.insert((jobs[next].1, next));
            next += 1;
        }
        let Some((deadline, job)) = ready.pop_first() else {
            let Some(&(at, ..)) = jobs.get(next) else { return false };
            now = at;
            continue;
        };
        now += jobs[job].2;
        if now > deadline {
            return true;
        }
    }
}

/// `plan` with jobs that take all of their cost but for the jitter.
fn at_worst(plan: &Plan, jitter: Nanos) -> Plan {
    let mut plan = plan.clone();
    for step in plan.pipelines.iter_mut().flat_map(|pipeline| &mut pipeline.steps) {
        step.hold = Some(step.cost - jitter);
    }
    plan
}

/// More with `HEADWAY_CASES=100000 cargo test --release -p headway-sim --test it within_the_jitter -- --nocapture`.
#[test]
fn no_accepted_set_misses_when_jobs_are_late_within_the_jitter_of_the_machine() {
    let machine = machine("h200-x4");
    let calibration = machine.calibration.clone().unwrap();
    let jitter = calibration.jitter;
    assert!(jitter > Nanos::ZERO && calibration.margin_ppm > 0);
    // What the planner would see if flows had no jitter, as they once had none.
    let mut punctual = machine.clone();
    punctual.calibration.as_mut().unwrap().jitter = Nanos::ZERO;
    let cases: u64 = std::env::var("HEADWAY_CASES").map_or(150, |text| text.parse().expect("a number"));
    let (mut accepted, mut seed, mut harmed, mut without) = (0, 0, 0, 0);
    while accepted < cases {
        seed += 1;
        let draw = &mut Draw(seed);
        let set = slow_set(draw);
        let workload = flows(&set);
        let starts = starts(&set, draw);
        let faults = SimFaults { wake_late_max: jitter, ..SimFaults::default() };
        let planned = plan(&machine, &workload, PlanOptions::default()).unwrap();
        if planned.verdict.outcome == Answer::Schedulable {
            accepted += 1;
            for (step, &(cost, ..)) in planned.pipelines.iter().map(|p| &p.steps[0]).zip(&set) {
                assert_eq!((step.cost, step.hold), (calibration.with_margin(Nanos(cost)), Some(Nanos(cost))));
            }
            let worst = at_worst(&planned, jitter);
            for _ in 0..4 {
                assert!(!late_jobs_miss(&worst, &starts, jitter.0, draw), "seed {seed}: {set:?} from {starts:?}");
            }
            assert!(!misses(&machine, &worst, &starts, faults, seed).0, "seed {seed}: {set:?} from {starts:?}");
        }
        let lean = plan(&punctual, &workload, PlanOptions::default()).unwrap();
        if lean.verdict.outcome == Answer::Schedulable {
            without += 1;
            let worst = at_worst(&lean, Nanos::ZERO);
            harmed += u64::from((0..4).any(|_| late_jobs_miss(&worst, &starts, jitter.0, draw)));
        }
    }
    println!(
        "{accepted} accepted sets, none late; of {without} accepted without the jitter {harmed} are late within it"
    );
    assert!(harmed * 25 > without, "{harmed} of {without}");
}
