//! Bulk transfers and urgent requests beside guaranteed work: who goes first, what is admitted, and that nobody who was
//! promised something is late.

use crate::bench::Bench;
use crate::case::{self, copy, flow, hold, server, step};
use headway_core::analysis::schedulability::{RecurrentTask, chunked};
use headway_core::decisions::dispatch::{
    DispatchAction, DispatchEvent, DispatchInput, DispatchRefused, Unfit, UrgentAnswer,
};
use headway_core::files::workload::{Otherwise, Urgent};
use headway_core::plan::{Pipeline, PipelineSource, Plan};
use headway_core::units::{Bytes, Nanos};
use proptest::prelude::*;

/// A flow on server 0.
fn planned(cost: u64, period: u64, deadline: u64) -> Pipeline {
    flow(period, deadline, vec![step(0, cost, vec![hold()])])
}

/// A bulk transfer in pieces of so many bytes and as many ns.
fn bulk(bytes: Option<u64>, piece: u64) -> Pipeline {
    let source = PipelineSource::Bulk(bytes.map(Bytes));
    Pipeline { source, reserve: Bytes(piece), ..flow(1, 0, vec![step(0, piece, vec![copy(piece)])]) }
}

/// Requests of at most so many bytes, a ns each, in pieces.
fn urgent(bytes: u64, piece: u64) -> Pipeline {
    let of = Urgent { bytes: Bytes(bytes), deadline: Nanos(1), every: None, otherwise: Otherwise::Refuse };
    let mut step = step(0, bytes, vec![copy(bytes)]);
    (step.chunk, step.chunk_cost) = (Bytes(piece), Nanos(piece));
    Pipeline { source: PipelineSource::Urgent(of), reserve: Bytes(bytes), ..flow(1, 0, vec![step]) }
}

fn plan(pipelines: Vec<Pipeline>) -> Plan {
    case::plan(vec![server(1)], pipelines, Vec::new())
}

impl Bench {
    /// (pipeline, cycle, bytes) of what was submitted.
    fn submissions(&mut self) -> Vec<(u32, u64, u64)> {
        let actions = std::iter::from_fn(|| self.0.poll_action());
        let submitted = actions.filter_map(|action| match action {
            DispatchAction::Submit { pipeline, cycle, bytes, .. } => Some((pipeline, cycle, bytes.0)),
            DispatchAction::Deliver { .. } | DispatchAction::Drop { .. } => None,
        });
        submitted.collect()
    }

    fn ask(&mut self, now: u64, pipeline: u32, bytes: u64, deadline: u64, otherwise: Otherwise) -> UrgentAnswer {
        let (bytes, deadline) = (Bytes(bytes), Nanos(deadline));
        self.0.handle(Nanos(now), &DispatchInput::Urgent { pipeline, bytes, deadline, otherwise }).unwrap();
        let answer = |event| if let DispatchEvent::Answered { answer, .. } = event { Some(answer) } else { None };
        self.events().into_iter().filter_map(answer).next_back().unwrap()
    }

    fn wake(&mut self, now: u64) {
        self.0.handle(Nanos(now), &DispatchInput::Timeout).unwrap();
    }
}

#[test]
fn guaranteed_goes_before_urgent_and_urgent_before_bulk() {
    let mut bench = Bench::started(plan(vec![planned(4, 20, 20), bulk(None, 3), urgent(6, 3)]), 9);
    assert_eq!(bench.submissions(), [(0, 0, 8)]);
    // Behind what is guaranteed, in pieces; bulk waits all the while. With deadline 1 nothing fits beside a piece of bulk.
    let answer = bench.ask(1, 2, 6, 1, Otherwise::BestEffort);
    assert!(matches!(answer, UrgentAnswer::BestEffort(Unfit::Overload { .. })), "{answer:?}");
    // With the deadline of the next window of the flow, that one goes first.
    assert_eq!(bench.ask(1, 2, 2, 39, Otherwise::Refuse), UrgentAnswer::Guaranteed { deadline: Nanos(40) });
    bench.done(0, 0, 4);
    assert_eq!(bench.submissions(), [(2, 1, 2)]);
    bench.done(1, 4, 6);
    assert_eq!(bench.submissions(), [(2, 0, 3)]);
    bench.done(2, 6, 9);
    assert_eq!(bench.submissions(), [(2, 0, 3)]);
    bench.done(3, 9, 12);
    assert_eq!(bench.submissions(), [(1, 0, 3)]);
    bench.done(4, 12, 15);
    assert_eq!(bench.submissions(), [(1, 1, 3)], "nothing else is there");
    bench.done(5, 15, 18);
    assert_eq!(bench.submissions(), [(1, 2, 3)]);
    bench.wake(20);
    assert_eq!(bench.submissions(), [], "what has begun is not interrupted");
    bench.done(6, 18, 21);
    assert_eq!(bench.submissions(), [(0, 1, 8)]);
}

#[test]
fn equal_deadlines_are_ordered_by_class() {
    let mut bench = Bench::started(plan(vec![planned(4, 20, 20), planned(4, 20, 20), urgent(4, 4)]), 9);
    assert_eq!(bench.submissions(), [(0, 0, 8)]);
    assert_eq!(bench.ask(0, 2, 4, 20, Otherwise::Refuse), UrgentAnswer::Guaranteed { deadline: Nanos(20) });
    bench.done(0, 0, 4);
    assert_eq!(bench.submissions(), [(1, 0, 8)], "though it came no earlier");
}

#[test]
fn a_request_that_does_not_fit_is_refused_with_the_interval_that_is_too_full() {
    let mut bench = Bench::started(plan(vec![planned(6, 10, 10), urgent(5, 1)]), 9);
    bench.submissions();
    // 5 of the request behind 6 of the flow, of which a nanosecond has passed.
    let refused = UrgentAnswer::Refused(Unfit::Overload { interval: Nanos(9), demand: Nanos(10) });
    assert_eq!(bench.ask(0, 1, 5, 10, Otherwise::Refuse), refused);
    assert_eq!(bench.ask(0, 1, 4, 10, Otherwise::Refuse), UrgentAnswer::Guaranteed { deadline: Nanos(10) });
    // What was admitted counts until there is nothing to do.
    assert!(matches!(bench.ask(1, 1, 4, 10, Otherwise::Refuse), UrgentAnswer::Refused(_)));
    bench.done(0, 0, 5);
    for (operation, at) in [(1, 6), (2, 7), (3, 8), (4, 9)] {
        assert_eq!(bench.submissions(), [(1, 1, 1)], "refused ones are never submitted");
        bench.done(operation, at - 1, at);
    }
    assert_eq!(bench.submissions(), []);
    assert_eq!(bench.ask(9, 1, 4, 10, Otherwise::Refuse), UrgentAnswer::Guaranteed { deadline: Nanos(19) });
}

#[test]
fn what_is_no_request_or_comes_after_the_end_changes_nothing() {
    let mut bench = Bench::started(plan(vec![planned(6, 10, 10), urgent(5, 1)]), 1);
    let ask = |pipeline, bytes| DispatchInput::Urgent {
        pipeline,
        bytes: Bytes(bytes),
        deadline: Nanos(100),
        otherwise: Otherwise::Refuse,
    };
    for input in [ask(0, 1), ask(1, 0), ask(1, 6), ask(2, 1)] {
        assert!(matches!(bench.0.handle(Nanos(0), &input), Err(DispatchRefused::Unexpected { .. })), "{input:?}");
    }
    bench.0.handle(Nanos(0), &ask(1, 1)).unwrap();
    assert!(
        matches!(bench.0.handle(Nanos(0), &ask(1, 1)), Err(DispatchRefused::TooManyCycles { .. })),
        "one cycle is said"
    );
    assert_eq!(bench.submissions(), [(0, 0, 8)]);
    bench.done(0, 0, 6);
    assert!(!bench.0.is_finished(), "a request is waiting");
    assert_eq!(bench.submissions(), [(1, 0, 1)]);
    bench.done(1, 6, 7);
    assert!(bench.0.is_finished());
    assert_eq!(bench.0.handle(Nanos(7), &ask(1, 1)), Err(DispatchRefused::Order("is over")));
}

#[test]
fn bulk_ends_with_its_bytes_or_with_the_last_window() {
    let mut bench = Bench::started(plan(vec![planned(1, 100, 100), bulk(Some(8), 3), bulk(None, 2)]), 2);
    bench.submissions();
    bench.done(0, 0, 1);
    // Piece by piece in turn.
    for (operation, piece) in (1..).zip([(1, 0, 3), (2, 0, 2), (1, 1, 3), (2, 1, 2), (1, 2, 2)]) {
        // Only two cycles are said of each.
        let expected = if piece.1 < 2 { vec![piece] } else { vec![] };
        assert_eq!(bench.submissions(), expected);
        if piece.1 < 2 {
            bench.done(operation, 1, 1 + operation);
        }
    }
    bench.wake(100);
    assert_eq!(bench.submissions(), [(0, 1, 8)]);
    bench.done(5, 100, 101);
    assert!(bench.0.is_finished());
}

#[test]
fn no_piece_of_bulk_begins_after_the_last_window() {
    let mut bench = Bench::started(plan(vec![planned(1, 100, 100), bulk(None, 50)]), 1);
    assert_eq!(bench.submissions(), [(0, 0, 8)]);
    bench.done(0, 0, 1);
    assert_eq!(bench.submissions(), []);
    assert!(bench.0.is_finished());
}

#[test]
fn an_overrun_pauses_bulk_until_the_server_was_busy_and_idle_once_more() {
    let mut bench = Bench::started(plan(vec![planned(2, 10, 10), planned(2, 10, 10), bulk(None, 3)]), 9);
    assert_eq!(bench.submissions(), [(0, 0, 8)]);
    bench.done(0, 0, 3);
    // Nobody else is paused: no stream skips.
    assert_eq!(bench.pauses(), [(2, true)]);
    assert_eq!(bench.submissions(), [(1, 0, 8)]);
    bench.done(1, 3, 6);
    assert_eq!((bench.pauses(), bench.submissions()), (vec![], vec![]), "it is idle, and bulk stays paused");
    bench.wake(10);
    assert_eq!(bench.submissions(), [(0, 1, 8)]);
    bench.done(2, 10, 12);
    assert_eq!((bench.pauses(), bench.submissions()), (vec![], vec![(1, 1, 8)]));
    bench.done(3, 12, 14);
    assert_eq!((bench.pauses(), bench.submissions()), (vec![(2, false)], vec![(2, 0, 3)]));
}

/// (cost, period, deadline) of flows; pieces of bulk and requests.
#[derive(Clone, Debug)]
struct Set {
    flows: Vec<(u64, u64, u64)>,
    bulk: u64,
    piece: u64,
    request: u64,
}

fn set() -> impl Strategy<Value = Set> {
    let flow = (1u64..8, 4u64..60).prop_flat_map(|(cost, rest)| (Just(cost), Just(cost + rest), cost..=cost + rest));
    (proptest::collection::vec(flow, 1..5), 1u64..20, 1u64..6, 1u64..20)
        .prop_map(|(flows, bulk, piece, request)| Set { flows, bulk, piece, request })
        .prop_filter("the set passes the test that the planner asks", |set| {
            let tasks = set.flows.iter().map(|&(c, p, d)| RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(d)));
            let pieces = [set.bulk, set.piece.min(set.request)].map(|piece| RecurrentTask::bulk(Nanos(piece)));
            chunked(&tasks.chain(pieces).collect::<Vec<_>>(), 1).is_schedulable()
        })
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    pieces: u64,
    guaranteed: u64,
    best_effort: u64,
    refused: u64,
}

/// Runs a set for `span` with costs from 0 to the worst and requests at random; what was promised is kept.
fn drive(set: &Set, span: u64, seed: u64) -> Counts {
    let mut pipelines: Vec<Pipeline> = set.flows.iter().map(|&(c, p, d)| planned(c, p, d)).collect();
    let flows = pipelines.len() as u32;
    let mut seed = seed;
    let mut below = move |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % end.max(1)
    };
    for pipeline in &mut pipelines {
        pipeline.start = Nanos(below(30));
    }
    pipelines.extend([bulk(None, set.bulk), urgent(set.request, set.piece)]);
    let mut cycles: Vec<u64> = set.flows.iter().map(|(_, p, _)| span / p + 1).collect();
    cycles.extend([u64::from(u32::MAX); 2]);
    let plan = plan(pipelines);
    let mut dispatcher = headway_core::decisions::dispatch::Dispatcher::new(plan, Default::default()).unwrap();
    dispatcher.handle(Nanos(0), &DispatchInput::Start { epoch: Nanos(0), cycles, packets: vec![] }).unwrap();
    let mut counts = Counts::default();
    let (mut now, mut running, mut next_request) = (0, None, below(20));
    while !dispatcher.is_finished() {
        while let Some(action) = dispatcher.poll_action() {
            let DispatchAction::Submit { operation, pipeline, bytes, .. } = action else { continue };
            assert_eq!(running, None, "one at a time");
            counts.pieces += u64::from(pipeline == flows);
            let worst = set.flows.get(pipeline as usize).map_or(bytes.0, |(cost, ..)| *cost);
            let cost = if below(2) == 0 { worst } else { below(worst + 1) };
            running = Some((operation, now, now + cost));
        }
        while let Some(event) = dispatcher.poll_event() {
            match event {
                DispatchEvent::Answered { answer: UrgentAnswer::Guaranteed { .. }, .. } => counts.guaranteed += 1,
                DispatchEvent::Answered { answer: UrgentAnswer::BestEffort(_), .. } => counts.best_effort += 1,
                DispatchEvent::Answered { answer: UrgentAnswer::Refused(_), .. } => counts.refused += 1,
                DispatchEvent::Late { .. } | DispatchEvent::Overrun { .. } | DispatchEvent::Paused { .. } => {
                    panic!("{event:?} at {now}, {set:?}")
                }
                _ => {}
            }
        }
        if dispatcher.is_finished() {
            break;
        }
        let end = running.map(|(.., end)| end);
        let wakes = [end, dispatcher.poll_timeout().map(|at| at.0), Some(next_request)];
        now = wakes.into_iter().flatten().min().unwrap().max(now);
        if let Some((operation, started, finished)) = running
            && finished <= now
        {
            running = None;
            let (started, finished) = (Nanos(started), Nanos(finished));
            dispatcher.handle(Nanos(now), &DispatchInput::Done { operation, started, finished }).unwrap();
        }
        if next_request <= now {
            next_request = now + 1 + below(60);
            let (bytes, deadline) = (Bytes(1 + below(set.request)), Nanos(below(100)));
            let otherwise = if below(2) == 0 { Otherwise::Refuse } else { Otherwise::BestEffort };
            let input = DispatchInput::Urgent { pipeline: flows + 1, bytes, deadline, otherwise };
            match dispatcher.handle(Nanos(now), &input) {
                Ok(()) | Err(DispatchRefused::TooManyCycles { .. } | DispatchRefused::Order(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        dispatcher.handle(Nanos(now), &DispatchInput::Timeout).unwrap();
    }
    counts
}

/// Cases of the property; `HEADWAY_CASES` says how many.
fn cases() -> u32 {
    std::env::var("HEADWAY_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1_500)
}

#[test]
fn nobody_who_was_promised_something_is_late_whatever_bulk_and_requests_there_are() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: cases(),
        max_local_rejects: u32::MAX,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let total = std::cell::RefCell::new(Counts::default());
    let run = runner.run(&(set(), any::<u64>()), |(set, seed)| {
        let found = drive(&set, 600, seed);
        let mut total = total.borrow_mut();
        total.pieces += found.pieces;
        total.guaranteed += found.guaranteed;
        total.best_effort += found.best_effort;
        total.refused += found.refused;
        Ok(())
    });
    run.unwrap();
    let total = *total.borrow();
    println!("{} sets: {total:?}", cases());
    assert!(total.pieces > 10_000 && total.guaranteed > 1_000 && total.best_effort > 500 && total.refused > 500);
}
