//! Runs as such: the same seed gives the same log, faults do what they say, and every run comes to an end.

use crate::support::{Draw, Null, events, is_fault, logged, machine, run_of};
use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput, Dispatcher, DispatcherLimits};
use headway_core::files::machine::Machine;
use headway_core::files::workload;
use headway_core::log::{LogRecord, RecordBody};
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{PipelineSource, Plan};
use headway_core::units::{Bytes, Nanos};
use headway_sim::{Run, SimError, SimFaults};

/// Sixteen streams on four GPUs, a message and a flow.
fn mixed() -> (Machine, Plan) {
    let mut text = "name = \"mixed\"\n".to_owned();
    for (number, deadline) in [16, 24, 40, 80].into_iter().cycle().take(16).enumerate() {
        text += &format!(
            "[[stream]]\nid = \"s{number}\"\npacket = \"4 KiB\"\nperiod = \"{} ms\"\ndeadline = \"{deadline} ms\"\n\
             steps = [{{ copy = \"host -> gpu\" }}, {{ compute = \"spin\" }}, {{ copy = \"gpu -> host\" }}]\n",
            1 + number % 5
        );
    }
    text += "[[message]]\nid = \"m\"\nperiod = \"20 ms\"\nblocks = [{ from = \"host\", to = \"gpu0\", bytes = \"1 MB\" }, \
             { from = \"gpu1\", to = \"host\", bytes = \"2 MB\" }]\n\
             [[demand]]\nid = \"f\"\ncost = \"1 ms\"\nperiod = \"7 ms\"\n";
    let machine = machine("h200-x4");
    let workload = workload::parse("mixed.toml", &text).unwrap().value;
    let plan = plan(&machine, &workload, PlanOptions::default()).unwrap();
    (machine, plan)
}

/// One stream, every packet a job: in, kernel, out.
fn one_stream() -> (Machine, Plan) {
    let text = "name = \"one\"\n[run]\ncycle = \"arrival\"\n[[stream]]\nid = \"s\"\npacket = \"4 KiB\"\nperiod = \"5 ms\"\n\
                deadline = \"12 ms\"\nsteps = [{ copy = \"host -> gpu\" }, { compute = \"spin\" }, { copy = \"gpu -> host\" }]\n";
    let machine = machine("h200-x1");
    let workload = workload::parse("one.toml", text).unwrap().value;
    let plan = plan(&machine, &workload, PlanOptions::default()).unwrap();
    (machine, plan)
}

fn seeded(plan: &Plan, seed: u64, faults: SimFaults) -> Run {
    Run { seed, faults, ..run_of(plan, 12) }
}

fn log_of(machine: &Machine, plan: &Plan, run: &Run) -> Vec<LogRecord> {
    let (outcome, log) = logged(plan, machine, run, &mut Null::partial(plan, 7));
    outcome.unwrap();
    log
}

#[test]
fn the_same_seed_gives_the_same_log_and_another_seed_another_one() {
    let (machine, plan) = mixed();
    let faults = SimFaults { kernel_ppm_min: Some(300_000), data_late_max: Nanos(50_000), ..SimFaults::default() };
    let first = log_of(&machine, &plan, &seeded(&plan, 1, faults));
    assert!(first.len() > 1_000);
    assert_eq!(first, log_of(&machine, &plan, &seeded(&plan, 1, faults)));
    for faults in [SimFaults { data_late_max: Nanos::ZERO, ..faults }, SimFaults { kernel_ppm_min: None, ..faults }] {
        let one = log_of(&machine, &plan, &seeded(&plan, 1, faults));
        assert_ne!(one, log_of(&machine, &plan, &seeded(&plan, 2, faults)), "{faults:?}");
    }
    // Without faults nothing is drawn.
    let none = SimFaults::default();
    assert_eq!(log_of(&machine, &plan, &seeded(&plan, 1, none)), log_of(&machine, &plan, &seeded(&plan, 2, none)));
}

#[test]
fn the_log_replays_record_by_record() {
    let (machine, plan) = mixed();
    let faults = SimFaults { kernel_ppm_min: Some(0), data_late_max: Nanos(3_000_000), ..SimFaults::default() };
    replays(&log_of(&machine, &plan, &seeded(&plan, 3, faults)), plan, DispatcherLimits::default());
}

/// Feeds the inputs of `log` to a new dispatcher, which must do all that the log says, and no more.
#[track_caller]
fn replays(log: &[LogRecord], plan: Plan, limits: DispatcherLimits) {
    let mut dispatcher = Dispatcher::new(plan, limits).unwrap();
    let mut now = Nanos::ZERO;
    for record in log {
        if matches!(record.what, RecordBody::Input(_)) && record.at > now {
            assert_eq!((dispatcher.poll_action(), dispatcher.poll_event()), (None, None), "before {record:?}");
            now = record.at;
        }
        match &record.what {
            RecordBody::Input(input) => dispatcher.handle(record.at, input).unwrap(),
            RecordBody::Action(action) => assert_eq!(dispatcher.poll_action().as_ref(), Some(action)),
            RecordBody::Event(event) => assert_eq!(dispatcher.poll_event().as_ref(), Some(event)),
        }
    }
    assert!(dispatcher.is_finished());
}

#[test]
fn overloaded_runs_whose_data_has_to_wait_replay_record_by_record() {
    let machine = machine("h200-x1");
    let mut draw = Draw(11);
    let mut held = 0;
    for seed in 0..60 {
        let mut text = format!("name = \"w{seed}\"\n[run]\ncycle = \"{}\"\n", draw.pick(&["arrival", "paper"]));
        for stream in 0..draw.within(1, 3) {
            let (kilobytes, period) = (draw.within(100, 4_000), draw.within(50, 500));
            text += &format!(
                "[[stream]]\nid = \"s{stream}\"\npacket = \"{kilobytes} kB\"\nperiod = \"{period} us\"\ndeadline = \"{} us\"\n\
                 steps = [{{ copy = \"host -> gpu\" }}, {{ compute = \"spin\" }}, {{ copy = \"gpu -> host\" }}]\n",
                period * draw.within(1, 4)
            );
        }
        let workload = workload::parse("overloaded.toml", &text).unwrap().value;
        let mut plan = plan(&machine, &workload, PlanOptions::default()).unwrap();
        // Whatever opens late is told.
        plan.jitter = Nanos::ZERO;
        let limits =
            DispatcherLimits { cycles_in_flight_max: draw.within(2, 8) as usize, ..DispatcherLimits::default() };
        let late = if draw.below(2) == 0 { 0 } else { draw.below(100_000) };
        let faults = SimFaults { data_late_max: Nanos(late), ..SimFaults::default() };
        let run = Run { limits, seed, faults, ..run_of(&plan, 100) };
        let log = log_of(&machine, &plan, &run);
        held += events(&log).filter(|event| matches!(event, DispatchEvent::DataLate { .. })).count();
        replays(&log, plan, limits);
    }
    assert!(held > 1_000, "{held} blocks had to wait");
}

#[test]
fn the_outcome_counts_what_the_log_holds_and_the_payload_sees_every_block() {
    let (machine, plan) = mixed();
    let mut null = Null::full(&plan);
    let (outcome, log) = logged(&plan, &machine, &run_of(&plan, 9), &mut null);
    let outcome = outcome.unwrap();
    let count = |kind: fn(&RecordBody) -> bool| log.iter().filter(|record| kind(&record.what)).count() as u64;
    assert_eq!(outcome.inputs, count(|what| matches!(what, RecordBody::Input(_))));
    assert_eq!(outcome.actions, count(|what| matches!(what, RecordBody::Action(_))));
    assert_eq!(outcome.events, count(|what| matches!(what, RecordBody::Event(_))));
    assert_eq!(outcome.end, log.last().unwrap().at);
    assert!(log.is_sorted_by_key(|record| record.at));
    let pipelines = plan.pipelines.len() as u64;
    let fed = plan.pipelines.iter().filter(|p| matches!(p.source, PipelineSource::Streams(_))).count() as u64;
    assert_eq!((null.gathered, null.delivered), (9 * fed, 9 * pipelines));
    assert_eq!(null.executed, count(|what| matches!(what, RecordBody::Action(DispatchAction::Submit { .. }))));
    assert!(!events(&log).any(is_fault));
}

#[test]
fn a_failing_operation_halts_the_run_and_nothing_is_submitted_after_it() {
    let (machine, plan) = mixed();
    for failing in [0, 1, 17, 100] {
        let faults = SimFaults { fail_operation: Some(failing), ..SimFaults::default() };
        let (outcome, log) = logged(&plan, &machine, &seeded(&plan, 1, faults), &mut Null::full(&plan));
        assert!(!outcome.unwrap().finished);
        let failed = RecordBody::Input(DispatchInput::Failed { operation: failing });
        let at = log.iter().position(|record| record.what == failed).unwrap();
        let after = &log[at..];
        assert!(!after.iter().any(|record| matches!(record.what, RecordBody::Action(DispatchAction::Submit { .. }))));
        assert_eq!(events(after).filter(|event| matches!(event, DispatchEvent::Halted { .. })).count(), 1);
    }
}

#[test]
fn late_data_is_told_by_how_much() {
    let (machine, plan) = one_stream();
    let late_max = Nanos(400_000);
    let faults = SimFaults { data_late_max: late_max, ..SimFaults::default() };
    let run = Run { faults, ..run_of(&plan, 40) };
    let (outcome, log) = logged(&plan, &machine, &run, &mut Null::full(&plan));
    assert!(outcome.unwrap().finished);
    let mut late = 0;
    for record in &log {
        if let RecordBody::Event(DispatchEvent::DataLate { cycle, by, .. }) = record.what {
            assert_eq!(record.at, run.epoch + plan.pipelines[0].release(cycle, 0) + by);
            assert!(by > Nanos::ZERO && by <= late_max);
            late += 1;
        }
    }
    assert!(late > 30, "{late}");
}

#[test]
fn a_driver_that_wakes_late_begins_late_what_only_data_wakes_it_for() {
    let text = "name = \"one\"\n[[stream]]\nid = \"s\"\npacket = \"4 MB\"\nperiod = \"16 ms\"\ndeadline = \"8 ms\"\n\
                steps = [{ copy = \"host -> gpu\" }]\n";
    let machine = machine("h200-x1");
    let workload = workload::parse("one.toml", text).unwrap().value;
    let plan = plan(&machine, &workload, PlanOptions::default()).unwrap();
    let misses = |late: u64| {
        let faults = SimFaults { wake_late_max: Nanos(late), ..SimFaults::default() };
        let (outcome, log) = logged(&plan, &machine, &Run { faults, ..run_of(&plan, 40) }, &mut Null::full(&plan));
        assert!(outcome.unwrap().finished);
        events(&log).filter(|event| matches!(event, DispatchEvent::Missed { .. })).count()
    };
    assert_eq!((misses(0), misses(1_000_000)), (0, 0));
    assert!(misses(50_000_000) > 20);
}

#[test]
fn data_that_is_later_than_its_window_makes_packets_miss() {
    let (machine, plan) = one_stream();
    let faults = SimFaults { data_late_max: Nanos(20_000_000), ..SimFaults::default() };
    let run = Run { faults, ..run_of(&plan, 40) };
    let (outcome, log) = logged(&plan, &machine, &run, &mut Null::full(&plan));
    assert!(outcome.unwrap().finished);
    assert!(events(&log).any(|event| matches!(event, DispatchEvent::Missed { .. })));
}

#[test]
fn packets_beyond_the_last_one_do_not_miss() {
    let (machine, plan) = one_stream();
    let faults = SimFaults { data_late_max: Nanos(20_000_000), ..SimFaults::default() };
    let run = Run { faults, packets: vec![5], ..run_of(&plan, 40) };
    let (_, log) = logged(&plan, &machine, &run, &mut Null::full(&plan));
    let missed = events(&log).filter_map(|event| match event {
        DispatchEvent::Missed { packet, .. } => Some(*packet),
        _ => None,
    });
    assert!(missed.max().unwrap() < 5);
}

#[test]
fn a_run_of_no_cycles_ends_at_once() {
    let (machine, plan) = mixed();
    let (outcome, log) = logged(&plan, &machine, &run_of(&plan, 0), &mut Null::full(&plan));
    let outcome = outcome.unwrap();
    assert!(outcome.finished);
    assert_eq!((outcome.inputs, outcome.actions, outcome.events, log.len()), (1, 0, 0, 1));
}

#[test]
fn a_run_of_one_cycle_delivers_one() {
    let (machine, plan) = one_stream();
    let (outcome, log) = logged(&plan, &machine, &run_of(&plan, 1), &mut Null::full(&plan));
    assert!(outcome.unwrap().finished);
    let delivered =
        log.iter().filter(|r| r.what == RecordBody::Action(DispatchAction::Deliver { pipeline: 0, cycle: 0 })).count();
    assert_eq!(delivered, 1);
}

/// Nothing arrives.
struct Silent;

impl headway_core::plan::payload::Payload for Silent {
    type Error = std::convert::Infallible;

    fn gather(&mut self, _: u32, _: u64) -> Result<headway_core::plan::payload::Gathered, Self::Error> {
        Ok(headway_core::plan::payload::Gathered { block: Bytes(0), longest_portion: Bytes(0) })
    }

    fn execute(&mut self, _: &headway_core::plan::payload::PayloadChunk) -> Result<(), Self::Error> {
        unreachable!("nothing to execute")
    }

    fn deliver(&mut self, _: u32, _: u64) -> Result<(), Self::Error> {
        unreachable!("nothing to deliver")
    }
}

#[test]
fn empty_cycles_cost_nothing_and_are_told() {
    let (machine, plan) = one_stream();
    let mut log = Vec::new();
    let outcome = headway_sim::simulate(&plan, &machine, &run_of(&plan, 5), &mut Silent, |r| log.push(r.clone()));
    assert!(outcome.unwrap().finished);
    let seen: Vec<DispatchEvent> = events(&log).cloned().collect();
    assert_eq!(seen, (0..5).map(|cycle| DispatchEvent::Empty { pipeline: 0, cycle }).collect::<Vec<_>>());
}

#[test]
fn a_run_that_falls_behind_goes_on_within_the_limit_of_cycles_in_flight() {
    let (machine, plan) = one_stream();
    let mut slow = plan;
    // Three packets arrive in the time that the kernel takes for one.
    slow.streams[0].period = Nanos(10_000);
    slow.pipelines[0].period = Nanos(10_000);
    let limits = DispatcherLimits { cycles_in_flight_max: 4, ..DispatcherLimits::default() };
    let run = Run { limits, ..run_of(&slow, 50) };
    let mut null = Null::full(&slow);
    let (outcome, log) = logged(&slow, &machine, &run, &mut null);
    assert!(outcome.unwrap().finished);
    assert_eq!((null.gathered, null.delivered), (50, 50));
    let (mut open, mut most) = (0i32, 0);
    for record in &log {
        match record.what {
            RecordBody::Input(DispatchInput::Data { .. }) => open += 1,
            RecordBody::Action(DispatchAction::Deliver { .. }) => open -= 1,
            _ => {}
        }
        most = most.max(open);
    }
    // A cycle's delivery is polled after the data that took its place.
    assert!((4..=5).contains(&most), "{most}");
    assert!(events(&log).any(|event| matches!(event, DispatchEvent::DataLate { .. })));
}

#[test]
fn a_plan_for_another_machine_is_refused() {
    let (_, plan) = one_stream();
    let (outcome, log) = logged(&plan, &machine("h200-x4"), &run_of(&plan, 1), &mut Null::full(&plan));
    assert!(matches!(outcome, Err(SimError::OtherMachine { .. })));
    assert!(log.is_empty());
}

#[test]
fn times_that_do_not_fit_are_refused() {
    let (machine, plan) = one_stream();
    let (outcome, _) = logged(&plan, &machine, &run_of(&plan, u64::MAX), &mut Null::full(&plan));
    assert!(matches!(
        outcome,
        Err(SimError::Dispatch(headway_core::decisions::dispatch::DispatchRefused::TooLong { .. }))
    ));
    let (machine, plan) = mixed();
    let run = Run { epoch: Nanos::MAX, ..run_of(&plan, 1) };
    let (outcome, _) = logged(&plan, &machine, &run, &mut Null::full(&plan));
    assert!(matches!(
        outcome,
        Err(SimError::Dispatch(headway_core::decisions::dispatch::DispatchRefused::TooLong { .. }))
    ));
}

#[test]
fn operations_begin_when_submitted_to_idle_engines_and_take_what_the_model_says() {
    let text = "name = \"one\"\n[run]\ncycle = \"arrival\"\n[[stream]]\nid = \"s\"\npacket = \"4 KiB\"\nperiod = \"5 ms\"\n\
                deadline = \"12 ms\"\nsteps = [{ copy = \"host -> gpu\" }, { compute = \"spin\" }, { copy = \"gpu -> host\" }]\n";
    let mut workload = workload::parse("one.toml", text).unwrap().value;
    workload.streams[0].steps[1] = workload::StreamStep::Compute { kernel: "aes128-cbc".to_owned() };
    // A node of round figures.
    let text = include_str!("../../headway-core/tests/machines/h200-x1.toml");
    let machine = headway_core::files::machine::parse("h200-x1", text).unwrap();
    let plan = plan(&machine, &workload, PlanOptions::default()).unwrap();
    let (outcome, log) = logged(&plan, &machine, &run_of(&plan, 3), &mut Null::full(&plan));
    assert!(outcome.unwrap().finished);
    let block = Bytes(32 + 4096);
    let kernel = machine.kernels.iter().find(|kernel| kernel.id == "aes128-cbc").unwrap().cost(block, Bytes(4096));
    // The longest portion is what takes the time, not all the data.
    assert_eq!(kernel, Nanos(12_000 + (4096 * 1_000_u64).div_ceil(38)));
    let copy = |rate: u64| Nanos(7_300 + (block.0 * 1_000).div_ceil(rate));
    let mut submitted = Vec::new();
    let mut took = Vec::new();
    for record in &log {
        match record.what {
            RecordBody::Action(DispatchAction::Submit { .. }) => submitted.push(record.at),
            RecordBody::Input(DispatchInput::Done { operation, started, finished }) => {
                assert_eq!((started, finished), (submitted[operation as usize], record.at));
                took.push(finished - started);
            }
            RecordBody::Input(_) | RecordBody::Action(_) | RecordBody::Event(_) => {}
        }
    }
    assert_eq!(took, [copy(55_500), kernel, copy(55_400)].repeat(3));
}
