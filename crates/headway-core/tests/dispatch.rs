//! The deadline dispatcher against a second, brute-force one, at its limits, in failure and at the ends of time.

#[path = "dispatch/engines.rs"]
mod engines;
#[path = "dispatch/reference.rs"]
mod reference;

use std::collections::BTreeMap;

use crate::case::{Case, any_case, compute, copy, flow, hold, plan, server, step, stream};
use engines::Engines;
use headway_core::decisions::dispatch::{
    DispatchAction, DispatchEvent, DispatchInput, DispatchRefused, Dispatcher, DispatcherLimits, NAMED_MAX, TIME_MAX,
};
use headway_core::log::RecordBody;
use headway_core::plan::{BatchPlace, Pipeline, PipelineSource, Plan, PlannedStep, PlannedStream};
use headway_core::units::{Bytes, Nanos};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use reference::{Reference, Trace};

const CASES: u32 = 1_500;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// A driver on virtual time that logs everything.
struct Driver<'a> {
    case: &'a Case,
    dispatcher: Dispatcher,
    engines: Engines,
    now: u64,
    log: Vec<(u64, RecordBody)>,
    /// Wake at every instant once more than needed.
    nervous: bool,
}

impl<'a> Driver<'a> {
    fn new(case: &'a Case) -> Self {
        let dispatcher = Dispatcher::new(case.plan.clone(), case.limits).unwrap();
        Self { case, dispatcher, engines: Engines::default(), now: 0, log: Vec::new(), nervous: false }
    }

    fn feed(&mut self, input: DispatchInput) {
        self.dispatcher.handle(Nanos(self.now), &input).unwrap();
        self.log.push((self.now, RecordBody::Input(input)));
    }

    fn drain(&mut self) {
        while let Some(action) = self.dispatcher.poll_action() {
            if let DispatchAction::Submit { operation, pipeline, cycle, step, index, offset, bytes } = action {
                let server = self.case.plan.pipelines[pipeline as usize].steps[step as usize].server;
                let time = self.case.time(pipeline, cycle, step, index, offset.0, bytes.0);
                self.engines.submit(self.now, operation, (server, index), time);
            }
            self.log.push((self.now, RecordBody::Action(action)));
        }
        while let Some(event) = self.dispatcher.poll_event() {
            self.log.push((self.now, RecordBody::Event(event)));
        }
    }

    /// Feeds everything of the next instant; `check` looks at the dispatcher after each.
    fn run(&mut self, mut check: impl FnMut(&mut Dispatcher, Nanos)) {
        let (cycles, packets) = (self.case.cycles.clone(), self.case.packets.clone());
        self.feed(DispatchInput::Start { epoch: Nanos(self.case.epoch), cycles, packets });
        self.drain();
        let mut data = self.case.data.iter().peekable();
        loop {
            check(&mut self.dispatcher, Nanos(self.now));
            let window = self.dispatcher.poll_timeout().map(|at| at.0);
            let next = [window, self.engines.next_end(), data.peek().map(|d| d.at)].into_iter().flatten().min();
            let Some(next) = next else { return };
            if self.nervous && next > self.now + 1 {
                self.now += (next - self.now) / 2;
                self.feed(DispatchInput::Timeout);
                self.drain();
            }
            self.now = next;
            let mut fed = false;
            while let Some((operation, started)) = self.engines.next_ended(self.now) {
                fed = true;
                self.feed(DispatchInput::Done { operation, started: Nanos(started), finished: Nanos(self.now) });
            }
            while let Some(&datum) = data.next_if(|d| d.at <= self.now) {
                fed = true;
                let (pipeline, cycle, bytes) = (datum.pipeline, datum.cycle, Bytes(datum.bytes));
                self.feed(DispatchInput::Data { pipeline, cycle, bytes });
            }
            if !fed || self.nervous {
                self.feed(DispatchInput::Timeout);
            }
            self.drain();
        }
    }

    fn trace(&self) -> Trace {
        let mut trace = Trace::default();
        for (at, what) in &self.log {
            match what {
                RecordBody::Input(_) => {}
                RecordBody::Action(action) => trace.actions.push((*at, action.clone())),
                RecordBody::Event(event) => trace.events.push((*at, event.clone())),
            }
        }
        trace
    }
}

/// The same trace with the events of each instant in one order.
fn ordered(mut trace: Trace) -> Trace {
    trace.events.sort_by_key(|(at, event)| (*at, format!("{event:?}")));
    trace
}

/// Inputs that are wrong at any time of a run, for the case at hand.
fn wrong_inputs(case: &Case, started: bool) -> Vec<DispatchInput> {
    let (cycles, packets) = (case.cycles.clone(), case.packets.clone());
    let data = |pipeline, cycle, bytes| DispatchInput::Data { pipeline, cycle, bytes: Bytes(bytes) };
    let done = |operation| DispatchInput::Done { operation, started: Nanos(0), finished: Nanos(0) };
    let mut wrong = vec![done(u64::MAX), DispatchInput::Failed { operation: u64::MAX }, data(u32::MAX, 0, 1)];
    for (at, pipeline) in (0u32..).zip(&case.plan.pipelines) {
        wrong.push(data(at, case.cycles[at as usize], 1));
        wrong.push(data(at, u64::MAX, 1));
        wrong.push(data(at, 0, pipeline.reserve.0 + 1));
        if pipeline.source == PipelineSource::Demand {
            wrong.push(data(at, 0, 1));
        }
    }
    if started {
        wrong.push(DispatchInput::Start { epoch: Nanos(0), cycles, packets });
    } else {
        wrong.push(data(0, 0, 1));
        wrong.push(DispatchInput::Start {
            epoch: Nanos(0),
            cycles: vec![1; cycles.len() + 1],
            packets: packets.clone(),
        });
        wrong.push(DispatchInput::Start {
            epoch: Nanos(0),
            cycles: cycles.clone(),
            packets: vec![1; packets.len() + 1],
        });
        wrong.push(DispatchInput::Start { epoch: TIME_MAX, cycles, packets });
    }
    wrong
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn the_dispatcher_does_what_non_preemptive_edf_does(case in any_case()) {
        let mut driver = Driver::new(&case);
        driver.run(|_, _| {});
        prop_assert!(driver.dispatcher.is_finished());
        prop_assert_eq!(driver.dispatcher.outstanding(), 0);
        prop_assert_eq!(ordered(driver.trace()), ordered(Reference::run(&case)));
    }

    #[test]
    fn early_and_repeated_timeouts_change_nothing(case in any_case()) {
        let mut calm = Driver::new(&case);
        calm.run(|_, _| {});
        let mut nervous = Driver { nervous: true, ..Driver::new(&case) };
        nervous.run(|dispatcher, now| {
            let before = format!("{dispatcher:?}");
            dispatcher.handle(now, &DispatchInput::Timeout).unwrap();
            assert_eq!((dispatcher.poll_action(), dispatcher.poll_event()), (None, None));
            assert_eq!(format!("{dispatcher:?}"), before);
        });
        prop_assert_eq!(nervous.trace(), calm.trace());
    }

    #[test]
    fn the_same_inputs_give_the_same_actions_and_events(case in any_case()) {
        let mut first = Driver::new(&case);
        first.run(|_, _| {});
        let mut second = Dispatcher::new(case.plan.clone(), case.limits).unwrap();
        let mut feeding = None;
        for (at, what) in &first.log {
            if feeding.is_some() && feeding != Some(*at) {
                prop_assert_eq!((second.poll_action(), second.poll_event()), (None, None));
            }
            feeding = Some(*at);
            match what {
                RecordBody::Input(input) => second.handle(Nanos(*at), input).unwrap(),
                RecordBody::Action(action) => prop_assert_eq!(second.poll_action(), Some(action.clone())),
                RecordBody::Event(event) => prop_assert_eq!(second.poll_event(), Some(event.clone())),
            }
        }
        prop_assert_eq!((second.poll_action(), second.poll_event()), (None, None));
        prop_assert_eq!(format!("{second:?}"), format!("{:?}", first.dispatcher));
    }

    #[test]
    fn a_refused_input_changes_nothing(case in any_case()) {
        let refuse = |dispatcher: &mut Dispatcher, now: Nanos, started: bool| {
            let before = format!("{dispatcher:?}");
            for input in wrong_inputs(&case, started) {
                assert!(dispatcher.handle(now, &input).is_err(), "{input:?}");
            }
            if now > Nanos::ZERO {
                let earlier = Nanos(now.0 - 1);
                let error = dispatcher.handle(earlier, &DispatchInput::Timeout).unwrap_err();
                assert_eq!(error, DispatchRefused::TimeWentBack { from: now, to: earlier });
            }
            assert_eq!(format!("{dispatcher:?}"), before);
        };
        let mut driver = Driver::new(&case);
        refuse(&mut driver.dispatcher, Nanos::ZERO, false);
        driver.run(|dispatcher, now| refuse(dispatcher, now, true));
    }

    #[test]
    fn a_failure_ends_all_submissions_and_its_cycle_is_never_delivered(case in any_case(), failing in 0..12u64) {
        let mut driver = Driver::new(&case);
        let (cycles, packets) = (case.cycles.clone(), case.packets.clone());
        driver.feed(DispatchInput::Start { epoch: Nanos(case.epoch), cycles, packets });
        for datum in &case.data {
            let (pipeline, cycle, bytes) = (datum.pipeline, datum.cycle, Bytes(datum.bytes));
            driver.feed(DispatchInput::Data { pipeline, cycle, bytes });
        }
        driver.drain();
        let mut failed: Option<(u32, u64)> = None;
        while !driver.dispatcher.is_finished() {
            let next = [driver.dispatcher.poll_timeout().map(|at| at.0), driver.engines.next_end()];
            let Some(next) = next.into_iter().flatten().min() else { break };
            driver.now = driver.now.max(next);
            let ended = driver.engines.next_ended(driver.now);
            match ended {
                Some((operation, _)) if operation == failing => {
                    failed = driver.log.iter().find_map(|(_, what)| match what {
                        RecordBody::Action(DispatchAction::Submit { operation: o, pipeline, cycle, .. }) if *o == operation => {
                            Some((*pipeline, *cycle))
                        }
                        RecordBody::Action(_) | RecordBody::Input(_) | RecordBody::Event(_) => None,
                    });
                    driver.feed(DispatchInput::Failed { operation });
                }
                Some((operation, started)) => {
                    let (started, finished) = (Nanos(started), Nanos(driver.now));
                    driver.feed(DispatchInput::Done { operation, started, finished });
                }
                None => driver.feed(DispatchInput::Timeout),
            }
            driver.drain();
        }
        let Some(failed) = failed else { return Ok(()) };
        prop_assert!(driver.dispatcher.is_halted() && !driver.dispatcher.is_finished());
        prop_assert_eq!(driver.dispatcher.outstanding(), 0);
        let at = driver.log.iter().position(|(_, what)| matches!(what, RecordBody::Input(DispatchInput::Failed { .. }))).unwrap();
        let after = &driver.log[at..];
        let submits = |what: &RecordBody| matches!(what, RecordBody::Action(DispatchAction::Submit { .. }));
        prop_assert!(!after.iter().any(|(_, what)| submits(what)));
        let delivered = RecordBody::Action(DispatchAction::Deliver { pipeline: failed.0, cycle: failed.1 });
        prop_assert!(!driver.log.iter().any(|(_, what)| *what == delivered));
        let halted = |what: &RecordBody| matches!(what, RecordBody::Event(DispatchEvent::Halted { .. }));
        prop_assert_eq!(after.iter().filter(|(_, what)| halted(what)).count(), 1);
    }

    #[test]
    fn extreme_times_are_refused_or_run_without_a_panic(
        times in prop::collection::vec(extreme(), 12),
        cycles in prop::collection::vec(prop_oneof![0..3u64, extreme()], 2),
        nows in prop::collection::vec(extreme(), 6),
        gathered in any::<bool>(),
    ) {
        let [period, window, start, gather, cost, jitter, apart, deadline, from, epoch, fed_period, took] = times[..]
        else { unreachable!() };
        let mut fed = Pipeline { source: PipelineSource::Streams(vec![0]), ..flow(fed_period, window, steps(cost)) };
        fed.start = Nanos(start);
        fed.gather = Nanos(if gathered { gather } else { 0 });
        let mut of = stream(0, apart, deadline);
        of.start = Nanos(from);
        let mut plan = plan(vec![server(1)], vec![fed, flow(period, window, steps(cost))], vec![of]);
        plan.jitter = Nanos(jitter);
        let Ok(mut dispatcher) = Dispatcher::new(plan, DispatcherLimits::default()) else { return Ok(()) };
        // Many short cycles take long to run, but they fit or do not fit all the same.
        let runs = cycles.iter().all(|&cycles| cycles < 3);
        // Every packet that is late is told by an event of its own, so the run has few.
        let start = DispatchInput::Start { epoch: Nanos(epoch), cycles, packets: vec![64] };
        if dispatcher.handle(Nanos::ZERO, &start).is_err() || !runs {
            return Ok(());
        }
        let mut nows = nows;
        nows.sort_unstable();
        for now in nows {
            let now = Nanos(now);
            drop(dispatcher.handle(now, &DispatchInput::Data { pipeline: 0, cycle: 0, bytes: Bytes(1) }));
            let mut submitted = Vec::new();
            while let Some(action) = dispatcher.poll_action() {
                if let DispatchAction::Submit { operation, .. } = action {
                    submitted.push(operation);
                }
            }
            for operation in submitted {
                let done = DispatchInput::Done { operation, started: now, finished: now.saturating_add(Nanos(took)) };
                dispatcher.handle(now, &done).unwrap();
            }
        }
    }
}

fn steps(cost: u64) -> Vec<PlannedStep> {
    vec![step(0, cost, vec![copy(1)]), step(0, cost, vec![compute()])]
}

/// Times at which sums and products overflow, and their neighbours.
fn extreme() -> impl Strategy<Value = u64> {
    let edges = [1, 2, 1 << 31, 1 << 32, 1 << 53, 1 << 61, 1 << 62, 1 << 63, u64::MAX];
    (prop::sample::select(edges.to_vec()), 0..3u64).prop_map(|(edge, less)| edge.saturating_sub(less).max(1))
}

fn dispatcher(plan: Plan, limits: DispatcherLimits) -> Dispatcher {
    Dispatcher::new(plan, limits).unwrap()
}

/// A dispatcher for `plan` that has started at time zero with `cycles` cycles in each pipeline and endless packets.
fn started(plan: Plan, limits: DispatcherLimits, cycles: u64) -> Dispatcher {
    let (pipelines, streams) = (plan.pipelines.len(), plan.streams.len());
    let mut dispatcher = dispatcher(plan, limits);
    let (cycles, packets) = (vec![cycles; pipelines], vec![u64::MAX; streams]);
    dispatcher.handle(Nanos(0), &DispatchInput::Start { epoch: Nanos(0), cycles, packets }).unwrap();
    dispatcher
}

fn actions(dispatcher: &mut Dispatcher) -> Vec<DispatchAction> {
    std::iter::from_fn(|| dispatcher.poll_action()).collect()
}

fn events(dispatcher: &mut Dispatcher) -> Vec<DispatchEvent> {
    std::iter::from_fn(|| dispatcher.poll_event()).collect()
}

/// Numbers and pipelines of what is submitted.
fn submitted(dispatcher: &mut Dispatcher) -> Vec<(u64, u32)> {
    let number = |action| match action {
        DispatchAction::Submit { operation, pipeline, .. } => Some((operation, pipeline)),
        DispatchAction::Deliver { .. } | DispatchAction::Drop { .. } => None,
    };
    actions(dispatcher).into_iter().filter_map(number).collect()
}

fn done(operation: u64, started: u64, finished: u64) -> DispatchInput {
    DispatchInput::Done { operation, started: Nanos(started), finished: Nanos(finished) }
}

fn data(cycle: u64) -> DispatchInput {
    DispatchInput::Data { pipeline: 0, cycle, bytes: Bytes(1) }
}

/// One stream whose packets are jobs of one step, one every 10 ns, due 10 ns later.
fn one_stream() -> Plan {
    let fed = Pipeline { source: PipelineSource::Streams(vec![0]), ..flow(10, 10, vec![step(0, 4, vec![copy(0)])]) };
    plan(vec![server(1)], vec![fed], vec![stream(0, 10, 10)])
}

#[test]
fn the_job_with_the_earlier_deadline_goes_first_and_is_not_interrupted() {
    let late = flow(100, 50, vec![step(0, 10, vec![hold()])]);
    let mut urgent = flow(100, 20, vec![step(0, 10, vec![hold()])]);
    urgent.start = Nanos(1);
    let mut dispatcher =
        started(plan(vec![server(1)], vec![late.clone(), late, urgent], vec![]), DispatcherLimits::default(), 1);
    assert_eq!(submitted(&mut dispatcher), [(0, 0)]);
    dispatcher.handle(Nanos(1), &DispatchInput::Timeout).unwrap();
    assert_eq!(submitted(&mut dispatcher), []);
    dispatcher.handle(Nanos(10), &done(0, 0, 10)).unwrap();
    assert_eq!(submitted(&mut dispatcher), [(1, 2)]);
    dispatcher.handle(Nanos(20), &done(1, 10, 20)).unwrap();
    assert_eq!(submitted(&mut dispatcher), [(2, 1)]);
}

#[test]
fn data_is_taken_up_to_the_limit_of_cycles_in_flight() {
    let limits = DispatcherLimits { cycles_in_flight_max: 2, ..DispatcherLimits::default() };
    let mut dispatcher = started(one_stream(), limits, 9);
    dispatcher.handle(Nanos(0), &data(1)).unwrap();
    dispatcher.handle(Nanos(0), &data(0)).unwrap();
    let refused = DispatchRefused::TooManyCycles { pipeline: "flow".to_owned(), limit: 2 };
    assert_eq!(dispatcher.handle(Nanos(0), &data(2)), Err(refused.clone()));
    // Neither do its windows make room.
    assert_eq!(dispatcher.handle(Nanos(30), &data(2)), Err(refused));
    assert_eq!(submitted(&mut dispatcher), [(0, 0)]);
    dispatcher.handle(Nanos(31), &done(0, 0, 31)).unwrap();
    dispatcher.handle(Nanos(31), &data(2)).unwrap();
    let limits = DispatcherLimits { cycles_in_flight_max: 0, ..DispatcherLimits::default() };
    let refused = DispatchRefused::TooManyCycles { pipeline: "flow".to_owned(), limit: 0 };
    assert_eq!(Dispatcher::new(one_stream(), limits).unwrap_err(), refused);
}

#[test]
fn windows_without_data_hold_no_cycle() {
    let limits = DispatcherLimits { cycles_in_flight_max: 1, ..DispatcherLimits::default() };
    let mut dispatcher = started(one_stream(), limits, 9);
    dispatcher.handle(Nanos(85), &DispatchInput::Timeout).unwrap();
    assert_eq!(actions(&mut dispatcher), []);
    events(&mut dispatcher);
    dispatcher.handle(Nanos(85), &data(8)).unwrap();
    assert_eq!(submitted(&mut dispatcher), [(0, 0)]);
    let ready = DispatchEvent::Ready { pipeline: 0, cycle: 8, step: 0, deadline: Nanos(90) };
    assert_eq!(events(&mut dispatcher), [DispatchEvent::DataLate { pipeline: 0, cycle: 8, by: Nanos(5) }, ready]);
}

#[test]
fn a_flow_that_is_behind_opens_its_next_window_when_there_is_room() {
    let limits = DispatcherLimits { cycles_in_flight_max: 2, ..DispatcherLimits::default() };
    let flows = plan(vec![server(1)], vec![flow(10, 10, vec![step(0, 4, vec![hold()])])], vec![]);
    let mut dispatcher = started(flows, limits, 4);
    assert_eq!(submitted(&mut dispatcher), [(0, 0)]);
    dispatcher.handle(Nanos(10), &DispatchInput::Timeout).unwrap();
    dispatcher.handle(Nanos(20), &DispatchInput::Timeout).unwrap();
    let ready = |cycle, deadline| DispatchEvent::Ready { pipeline: 0, cycle, step: 0, deadline: Nanos(deadline) };
    assert_eq!(events(&mut dispatcher), [ready(0, 10), ready(1, 20)]);
    assert_eq!(dispatcher.poll_timeout(), None);
    dispatcher.handle(Nanos(25), &done(0, 0, 25)).unwrap();
    let late = DispatchEvent::ReleaseLate { pipeline: 0, cycle: 2, step: 0, by: Nanos(5) };
    assert_eq!(events(&mut dispatcher)[3..], [late, ready(2, 30)]);
    assert_eq!(dispatcher.poll_timeout(), Some(Nanos(30)));
    for (at, operation) in [(25, 1), (26, 2)] {
        assert_eq!(submitted(&mut dispatcher), [(operation, 0)]);
        dispatcher.handle(Nanos(at), &done(operation, at, at)).unwrap();
    }
    assert!(!dispatcher.is_finished());
    dispatcher.handle(Nanos(30), &DispatchInput::Timeout).unwrap();
    assert_eq!(submitted(&mut dispatcher), [(3, 0)]);
    dispatcher.handle(Nanos(31), &done(3, 30, 31)).unwrap();
    assert!(dispatcher.is_finished());
}

#[test]
fn a_batch_waits_until_all_of_it_fits_the_limit_of_operations() {
    let batch = || flow(100, 50, vec![step(1, 10, vec![copy(1), copy(2), copy(3)])]);
    let flows = || vec![flow(100, 40, vec![step(0, 10, vec![hold()])]), batch()];
    let servers = || vec![server(1), server(1)];
    let limit = |operations_max| DispatcherLimits { operations_max, ..DispatcherLimits::default() };
    let mut roomy = started(plan(servers(), flows(), vec![]), limit(4), 1);
    assert_eq!(submitted(&mut roomy), [(0, 0), (1, 1), (2, 1), (3, 1)]);
    let mut tight = started(plan(servers(), flows(), vec![]), limit(3), 1);
    assert_eq!(submitted(&mut tight), [(0, 0)]);
    tight.handle(Nanos(10), &done(0, 0, 10)).unwrap();
    assert_eq!(submitted(&mut tight), [(1, 1), (2, 1), (3, 1)]);
    let refused = DispatchRefused::TooManyOperations { step: "step".to_owned(), operations: 3, limit: 2 };
    assert_eq!(Dispatcher::new(plan(servers(), flows(), vec![]), limit(2)).unwrap_err(), refused);
}

#[test]
fn jobs_of_one_batch_are_submitted_together_in_their_order_and_keep_their_server_until_all_have_ended() {
    let member = |order| {
        let place = BatchPlace { number: 0, order };
        flow(100, 100, vec![PlannedStep { batch: Some(place), ..step(0, 50, vec![copy(1)]) }])
    };
    let urgent = flow(100, 120, vec![step(0, 9, vec![hold()])]);
    let pipelines = vec![member(1), urgent, member(0)];
    let mut dispatcher = started(plan(vec![server(1)], pipelines, vec![]), DispatcherLimits::default(), 1);
    let pipelines: Vec<u32> = submitted(&mut dispatcher).into_iter().map(|(_, pipeline)| pipeline).collect();
    assert_eq!(pipelines, [2, 0]);
    dispatcher.handle(Nanos(10), &done(0, 0, 10)).unwrap();
    assert_eq!(submitted(&mut dispatcher), []);
    dispatcher.handle(Nanos(20), &done(1, 0, 20)).unwrap();
    assert_eq!(submitted(&mut dispatcher), [(2, 1)]);
}

#[test]
fn a_server_held_back_by_the_limit_of_operations_goes_on_when_another_one_ends() {
    let flows = vec![flow(100, 50, vec![step(0, 10, vec![hold()])]), flow(100, 50, vec![step(1, 10, vec![hold()])])];
    let limits = DispatcherLimits { operations_max: 1, ..DispatcherLimits::default() };
    let mut dispatcher = started(plan(vec![server(1), server(1)], flows, vec![]), limits, 1);
    assert_eq!(submitted(&mut dispatcher), [(0, 0)]);
    dispatcher.handle(Nanos(10), &done(0, 0, 10)).unwrap();
    assert_eq!(submitted(&mut dispatcher), [(1, 1)]);
}

#[test]
fn a_batch_of_which_one_block_failed_never_completes() {
    let batch = flow(100, 50, vec![step(0, 10, vec![copy(1), copy(2)])]);
    let mut dispatcher = started(plan(vec![server(1)], vec![batch], vec![]), DispatcherLimits::default(), 1);
    assert_eq!(submitted(&mut dispatcher).len(), 2);
    dispatcher.handle(Nanos(5), &DispatchInput::Failed { operation: 0 }).unwrap();
    dispatcher.handle(Nanos(6), &done(1, 0, 6)).unwrap();
    assert_eq!(actions(&mut dispatcher), []);
    assert_eq!(events(&mut dispatcher)[1..], [DispatchEvent::Halted { pipeline: 0, cycle: 0, step: 0 }]);
    assert!(!dispatcher.is_finished());
}

#[test]
fn operations_that_a_failure_keeps_from_the_driver_are_not_outstanding() {
    let flows = vec![flow(100, 50, vec![step(0, 10, vec![hold()])]); 2];
    let mut dispatcher = started(plan(vec![server(2)], flows, vec![]), DispatcherLimits::default(), 1);
    assert!(matches!(dispatcher.poll_action(), Some(DispatchAction::Submit { operation: 0, .. })));
    assert_eq!(dispatcher.outstanding(), 2);
    dispatcher.handle(Nanos(5), &DispatchInput::Failed { operation: 0 }).unwrap();
    assert_eq!((dispatcher.outstanding(), dispatcher.poll_action()), (0, None));
}

#[test]
fn a_job_that_ends_when_its_window_closes_is_not_late_and_a_nanosecond_later_it_is() {
    for (end, late) in [(10, false), (11, true)] {
        let mut dispatcher = started(one_stream(), DispatcherLimits::default(), 1);
        dispatcher.handle(Nanos(0), &data(0)).unwrap();
        assert_eq!(submitted(&mut dispatcher), [(0, 0)]);
        dispatcher.handle(Nanos(end), &done(0, 7, 11)).unwrap();
        let seen = events(&mut dispatcher);
        let by = Nanos(1);
        assert_eq!(seen.contains(&DispatchEvent::Late { pipeline: 0, cycle: 0, step: 0, by }), late);
        assert_eq!(seen.contains(&DispatchEvent::Missed { stream: 0, packet: 0, by }), late);
        assert!(!seen.iter().any(|event| matches!(event, DispatchEvent::Overrun { .. })));
    }
}

#[test]
fn of_a_late_block_of_many_packets_some_are_named_and_all_are_counted() {
    // Every stream with a deadline and a start of its own; of the last one there are only two packets.
    let streams: Vec<PlannedStream> =
        (0..300).map(|at| PlannedStream { start: Nanos(at % 7), ..stream(0, 1_000, 700 + at * 37 % 300) }).collect();
    let source = PipelineSource::Streams((0..300).collect());
    let fed = Pipeline { source, ..flow(1_000, 1_000, vec![step(0, 4, vec![copy(0)])]) };
    let plan = plan(vec![server(1)], vec![fed], streams.clone());
    let mut dispatcher = dispatcher(plan, DispatcherLimits::default());
    let mut packets = vec![4; 300];
    packets[299] = 2;
    dispatcher
        .handle(Nanos(0), &DispatchInput::Start { epoch: Nanos(0), cycles: vec![4], packets: packets.clone() })
        .unwrap();
    for (cycle, took) in [(0, 990), (1, 720), (2, 990), (3, 800)] {
        let begin = Nanos(1_000 * cycle);
        dispatcher.handle(begin, &data(cycle)).unwrap();
        let (operation, _) = submitted(&mut dispatcher)[0];
        let now = Nanos(1_000 * cycle + took);
        dispatcher.handle(now, &done(operation, begin.0, now.0)).unwrap();
        assert!(actions(&mut dispatcher).contains(&DispatchAction::Deliver { pipeline: 0, cycle }));
        let late: BTreeMap<u32, Nanos> = (0..300)
            .filter(|at| cycle < packets[*at as usize])
            .filter_map(|at| {
                let due = begin + streams[at as usize].start + streams[at as usize].deadline;
                (now > due).then(|| (at, now - due))
            })
            .collect();
        let (mut named, mut more) = (0, 0);
        for event in events(&mut dispatcher) {
            match event {
                DispatchEvent::Missed { stream, packet, by } => {
                    assert_eq!((packet, Some(&by)), (cycle, late.get(&stream)));
                    named += 1;
                }
                DispatchEvent::MissedMore { packets, .. } => more += packets as usize,
                _ => {}
            }
        }
        assert_eq!(named + more, late.len(), "cycle {cycle}");
        // Once a stream has come to its end, each is looked at.
        assert_eq!(more > 0, cycle < 2 && late.len() > NAMED_MAX, "cycle {cycle}");
    }
}

#[test]
fn a_job_that_takes_its_worst_case_is_no_overrun_and_a_nanosecond_more_is() {
    for (started_at, overrun) in [(2, false), (1, true)] {
        let mut dispatcher = started(one_stream(), DispatcherLimits::default(), 1);
        dispatcher.handle(Nanos(0), &data(0)).unwrap();
        assert_eq!(submitted(&mut dispatcher), [(0, 0)]);
        dispatcher.handle(Nanos(6), &done(0, started_at, 6)).unwrap();
        let (cost, took) = (Nanos(4), Nanos(5));
        let event = DispatchEvent::Overrun { pipeline: 0, cycle: 0, step: 0, cost, took };
        assert_eq!(events(&mut dispatcher).contains(&event), overrun);
    }
}

#[test]
fn a_window_that_opens_within_the_jitter_is_not_late_and_a_nanosecond_later_it_is() {
    for (wake, late) in [(13, None), (14, Some(Nanos(4)))] {
        let mut flow = flow(100, 10, vec![step(0, 4, vec![hold()])]);
        flow.start = Nanos(10);
        let mut plan = plan(vec![server(1)], vec![flow], vec![]);
        plan.jitter = Nanos(3);
        let mut dispatcher = started(plan, DispatcherLimits::default(), 1);
        assert_eq!(dispatcher.poll_timeout(), Some(Nanos(10)));
        dispatcher.handle(Nanos(wake), &DispatchInput::Timeout).unwrap();
        let seen = events(&mut dispatcher);
        let by = seen.iter().find_map(|event| match event {
            DispatchEvent::ReleaseLate { by, .. } => Some(*by),
            _ => None,
        });
        assert_eq!(by, late);
        // The deadline stays where the plan has it.
        assert!(seen.contains(&DispatchEvent::Ready { pipeline: 0, cycle: 0, step: 0, deadline: Nanos(20) }));
    }
}

#[test]
fn a_run_may_reach_the_latest_time_and_no_further() {
    let run = |epoch: u64| {
        let input = DispatchInput::Start { epoch: Nanos(epoch), cycles: vec![3], packets: vec![3] };
        dispatcher(one_stream(), DispatcherLimits::default()).handle(Nanos(0), &input)
    };
    // Three cycles and one more of 10 ns, two windows of 10 ns.
    assert_eq!(run(TIME_MAX.0 - 60), Ok(()));
    let refused = DispatchRefused::TooLong { what: "pipeline `flow`".to_owned(), limit: TIME_MAX };
    assert_eq!(run(TIME_MAX.0 - 59), Err(refused));
    let mut plan = one_stream();
    plan.streams[0].deadline = Nanos(TIME_MAX.0 - 10);
    assert!(Dispatcher::new(plan.clone(), DispatcherLimits::default()).is_ok());
    plan.streams[0].deadline = Nanos(TIME_MAX.0 - 9);
    let refused = DispatchRefused::TooLong { what: "stream `s0`".to_owned(), limit: TIME_MAX };
    assert_eq!(Dispatcher::new(plan, DispatcherLimits::default()).unwrap_err(), refused);
}

#[test]
fn plans_that_lead_nowhere_are_refused() {
    let spoils: [fn(&mut Plan); 9] = [
        |plan| plan.pipelines[0].steps.clear(),
        |plan| plan.pipelines[0].period = Nanos::ZERO,
        |plan| plan.pipelines[0].steps[0].server = 1,
        |plan| plan.pipelines[0].steps[0].operations.clear(),
        |plan| plan.pipelines[0].source = PipelineSource::Streams(vec![1]),
        |plan| plan.streams[0].pipeline = 1,
        |plan| plan.streams[0].period = Nanos::ZERO,
        |plan| plan.servers[0].in_flight = 0,
        |plan| plan.engines.clear(),
    ];
    for (number, spoil) in spoils.into_iter().enumerate() {
        let mut plan = one_stream();
        spoil(&mut plan);
        let error = Dispatcher::new(plan, DispatcherLimits::default()).unwrap_err();
        assert!(matches!(error, DispatchRefused::Plan(_)), "{number}: {error}");
    }
}

#[test]
fn a_run_of_no_cycles_is_finished_at_once() {
    let dispatcher = started(one_stream(), DispatcherLimits::default(), 0);
    assert!(dispatcher.is_finished());
    assert_eq!(dispatcher.poll_timeout(), None);
}
