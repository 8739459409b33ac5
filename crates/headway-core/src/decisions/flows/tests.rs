//! Contracts, refusals, jobs, chunks that shrink and grow, capacity that returns, urgent copies, blame, and histories again.

use super::*;
use crate::files::machine::shipped;
use crate::models::cpu::ChunkWatch;
use crate::units::Rate;

const US: Nanos = Nanos(1_000);
const MS: Nanos = Nanos(1_000_000);
const MIB: u64 = 1 << 20;
const OUT: Direction = Direction::D2h;

/// 10 us and 20.98 us for each MiB.
fn engine(gpu: u32) -> FlowEngine {
    FlowEngine {
        gpu,
        direction: OUT,
        setup: US * 10,
        rate: Rate(50_000_000_000),
        jitter: US * 20,
        late_each: None,
        unpromised_in_flight: 2,
        chunk_max: CHUNK_MAX,
        chunk_min: CHUNK_MIN,
        is_measured: true,
        turn: None,
        others: None,
    }
}

fn book(gpus: u32) -> FlowBook {
    FlowBook::new((0..gpus).map(engine).collect(), LIMITS)
}

fn contract(name: &str, bytes: u64, period: Nanos, deadline: Nanos) -> FlowContract {
    let (name, bytes) = (name.to_owned(), Bytes(bytes));
    FlowContract { name, gpu: 0, direction: OUT, bytes, period, deadline, on_miss: OnMiss::Finish }
}

/// Opens a flow and settles it.
fn settled(book: &mut FlowBook, now: Nanos, contract: FlowContract) -> FlowAdmitted {
    let admitted = book.open(now, contract).unwrap();
    book.drained(now, 0, OUT);
    assert!(book.is_settled(admitted.flow));
    admitted
}

/// A job that asked at its release and did nothing but copy.
fn quick(job: &FlowJob, now: Nanos) -> JobFacts {
    let engine = now.saturating_sub(job.release);
    JobFacts { asked: job.release, engine, chunks: 1, ..JobFacts::default() }
}

#[test]
fn a_flow_is_admitted_with_a_bound_that_contains_all_that_may_be_on_the_engine() {
    let mut book = book(1);
    let asked = contract("camera", MIB, MS * 2, MS);
    let admitted = settled(&mut book, MS, asked);
    let FlowAdmitted { flow, bound, chunk, .. } = admitted;
    // 2 chunks of others and its own bytes, in one chunk or more, with the time of the threads before and behind.
    let (one, own) = (US * 10 + Rate(50_000_000_000).time_for(chunk), Rate(50_000_000_000).time_for(Bytes(MIB)));
    let chunks = MIB.div_ceil(chunk.0);
    let at_most = one * 2 + own + (US * 30) * chunks + US * 20 + Nanos(chunks);
    assert!(bound <= at_most && bound + Nanos(chunks) >= at_most, "{bound} {at_most}");
    assert!(chunk > Bytes(MIB) && bound < MS, "{chunk} {bound}");
    assert_eq!((book.bound(flow), book.chunk(0, OUT)), (Some(bound), Some(chunk)));
    assert_eq!(
        admitted.assumptions,
        [FlowAssumption::OnlyHeadway { turn: None }, FlowAssumption::Threads { jitter: US * 20, each: None }]
    );
    assert!(admitted.assumptions.iter().all(|assumption| !assumption.to_string().is_empty()));
}

#[test]
fn chunks_ahead_of_a_promised_one_and_a_promised_one_with_a_later_deadline_both_block() {
    let mut book = book(1);
    let large = settled(&mut book, MS, contract("large", 64 * MIB, MS * 20, MS * 20));
    let small = settled(&mut book, MS, contract("small", 1, MS, MS));
    let chunk = small.chunk;
    let one = US * 10 + Rate(50_000_000_000).time_for(chunk);
    // Two without a promise, and one of `large` with the time of its thread behind it.
    let blocking = one * 3 + US * 20;
    let own = US * 30 + Rate(50_000_000_000).time_for(Bytes(1));
    assert_eq!(small.bound, blocking + own + US * 20, "in chunks of {chunk}");
    assert!(book.bound(large.flow).unwrap() <= MS * 20);
}

#[test]
fn what_cannot_be_a_flow_is_refused_with_what_to_do() {
    let mut book = book(1);
    settled(&mut book, MS, contract("a", MIB, MS * 10, MS * 10));
    let good = contract("b", MIB, MS * 10, MS * 10);
    let cases = [
        FlowContract { name: String::new(), ..good.clone() },
        FlowContract { name: "a\nb".to_owned(), ..good.clone() },
        FlowContract { name: "a".to_owned(), ..good.clone() },
        FlowContract { bytes: Bytes(0), ..good.clone() },
        FlowContract { bytes: Bytes(u64::MAX), ..good.clone() },
        FlowContract { period: Nanos::ZERO, ..good.clone() },
        FlowContract { period: Nanos::MAX, ..good.clone() },
        FlowContract { deadline: Nanos::ZERO, ..good.clone() },
        FlowContract { deadline: Nanos::MAX, ..good.clone() },
        FlowContract { gpu: 7, ..good.clone() },
        FlowContract { direction: Direction::Peer, ..good.clone() },
    ];
    for case in cases {
        let refused = book.open(MS, case.clone()).unwrap_err();
        assert!(matches!(refused, FlowRefused::Invalid(_)), "{case:?}: {refused}");
        assert!(refused.to_string().contains(';'), "no remedy: {refused}");
        assert_eq!((refused.suffers(), refused.proposals()), (None, [].as_slice()));
    }
    book.limits.flows_max = 1;
    let full = book.open(MS, good).unwrap_err();
    assert!(matches!(full, FlowRefused::Invalid(InvalidContract::Full { limit: 1, .. })));
}

#[test]
fn what_is_at_every_limit_is_admitted() {
    let (bytes, time) = (LIMITS.bytes_max.0, LIMITS.time_max);
    let largest = contract(&"a".repeat(LIMITS.name_max), bytes, time, time);
    assert!(book(1).open(MS, largest).is_ok());
}

#[test]
fn a_refusal_names_who_would_suffer_and_every_proposal_would_be_admitted() {
    let mut book = book(3);
    settled(&mut book, MS, contract("control", 4096, MS, US * 400));
    settled(&mut book, MS, contract("camera", 8 * MIB, MS * 2, MS * 2));
    let elsewhere = FlowContract { gpu: 1, ..contract("elsewhere", 60 * MIB, MS * 2, MS * 2) };
    book.open(MS, elsewhere).unwrap();
    let cases = [(64 * MIB, MS * 2, MS * 2), (32 * MIB, MS * 8, MS), (400 * MIB, MS * 10, MS * 10)];
    for (bytes, period, deadline) in cases {
        let asked = contract("lidar", bytes, period, deadline);
        let refused = book.open(MS, asked.clone()).unwrap_err();
        let text = refused.to_string();
        assert!(text.starts_with("`lidar` is refused: with it "), "{text}");
        assert!(["lidar", "camera", "control"].contains(&refused.suffers().unwrap()), "{text}");
        assert!(!refused.proposals().is_empty(), "{text}");
        let has_other = refused.proposals().iter().any(|of| matches!(of, FlowProposal::OtherGpu(2)));
        assert!(has_other || bytes != 400 * MIB, "{text}");
        for proposal in refused.proposals() {
            let changed = match *proposal {
                FlowProposal::FewerBytes(bytes) => FlowContract { bytes, ..asked.clone() },
                FlowProposal::LongerDeadline(deadline) => FlowContract { deadline, ..asked.clone() },
                FlowProposal::LongerPeriod(period) => FlowContract { period, ..asked.clone() },
                FlowProposal::OtherGpu(gpu) => FlowContract { gpu, ..asked.clone() },
            };
            assert!(book.clone().open(MS, changed).is_ok(), "{proposal} of {text}");
        }
    }
}

/// Late by 2 us for each chunk, and by 98 us more once.
fn seldom_late() -> FlowEngine {
    FlowEngine { jitter: US * 100, late_each: Some(US * 2), ..engine(0) }
}

#[test]
fn where_threads_are_late_seldom_more_is_promised_than_where_each_chunk_may_be_late() {
    let often = FlowEngine { late_each: None, ..seldom_late() };
    let promised = |engine: &FlowEngine, mib: u64| {
        let mut book = FlowBook::new(vec![engine.clone()], LIMITS);
        let flow = |name: &str, mib, ms| contract(name, MIB * mib, MS * ms, MS * ms);
        book.open(MS, flow("short", 4, 1)).and_then(|_| book.open(MS, flow("long", mib, 20))).is_ok()
    };
    let most = |engine: &FlowEngine| (1..1_000).take_while(|mib| promised(engine, *mib)).last();
    let (often, seldom) = (most(&often).unwrap_or(0), most(&seldom_late()).unwrap_or(0));
    assert!(2 * seldom > 3 * often, "{often} and {seldom} MiB every 20 ms");
    let one = seldom_late();
    assert_eq!(one.chunk_cost(Bytes(MIB)), FlowEngine { late_each: None, ..one.clone() }.chunk_cost(Bytes(MIB)));
}

#[test]
fn chunks_that_are_late_again_and_again_are_named_although_none_is_too_late_alone() {
    let mut book = FlowBook::new(vec![seldom_late()], LIMITS);
    let flows = ["a", "b"].map(|name| settled(&mut book, MS, contract(name, MIB, MS * 4, MS * 2)).flow);
    let jobs = flows.map(|flow| book.submit(MS * 2, flow, Bytes(MIB)).unwrap());
    // It should take 32,972 ns.
    let facts =
        |took: Nanos| JobFacts { asked: MS * 2, engine: took, chunks: 1, longest_chunk: took, ..JobFacts::default() };
    let first = book.ended(MS * 2 + US * 113, flows[0], jobs[0].sequence, facts(US * 113)).unwrap();
    assert!(!first.blame.iter().any(|blame| matches!(blame, FlowBlame::Fault(_))), "{:?}", first.blame);
    let waited = JobFacts { waited: MS * 2, ..facts(US * 113) };
    let second = book.ended(MS * 4 + US * 113, flows[1], jobs[1].sequence, waited).unwrap();
    let fault = FlowFault::LateTogether { late: Nanos(2 * (113_000 - 32_972)), most: US * 98 };
    assert_eq!(second.blame[0], FlowBlame::Fault(fault), "{:?}", second.blame);
    // Nothing promised is there: all begins anew.
    let job = book.submit(MS * 8, flows[0], Bytes(MIB)).unwrap();
    let facts = JobFacts { asked: MS * 8, waited: MS * 2, ..facts(US * 113) };
    let blame = book.ended(MS * 10 + US * 113, flows[0], job.sequence, facts).unwrap().blame;
    assert!(matches!(blame[0], FlowBlame::Unexplained { .. }), "{blame:?}");
}

#[test]
fn a_deadline_shorter_than_the_lateness_of_the_threads_is_refused_with_one_that_is_long_enough() {
    let mut book = book(1);
    for deadline in [Nanos(1), US * 20, US * 20 + Nanos(1)] {
        let asked = contract("control", 4096, MS, deadline);
        let refused = book.open(MS, asked.clone()).unwrap_err();
        let FlowRefused::Unfit(unfit) = &refused else { panic!("{refused}") };
        assert_eq!(unfit.why, UnfitReason::AsksLate { suffers: "control".to_owned(), jitter: US * 20 });
        let [FlowProposal::LongerDeadline(deadline)] = *refused.proposals() else { panic!("{refused}") };
        assert!(book.clone().open(MS, FlowContract { deadline, ..asked }).is_ok(), "{refused}");
        let urgent = book.urgent(MS, 0, OUT, Bytes(4096), US * 20).unwrap_err();
        assert!(matches!(*urgent.proposals(), [FlowProposal::LongerDeadline(_)]), "{urgent}");
    }
    // The threads of a node that is open turn out to be later.
    settled(&mut book, MS, contract("control", 4096, MS, US * 400));
    let later = FlowEngine { jitter: MS, ..engine(0) };
    let FlowSuffers { suffers, by, .. } = book.change(MS, later, "").unwrap_err();
    assert_eq!((suffers.as_str(), by), ("control", US * 600 + Nanos(1)));
}

#[test]
fn a_job_that_comes_early_is_held_until_the_contract_allows_it_and_too_many_are_refused() {
    let mut book = book(1);
    let flow = settled(&mut book, MS, contract("a", MIB, MS * 2, MS)).flow;
    let first = book.submit(MS * 10, flow, Bytes(MIB)).unwrap();
    assert_eq!(
        (first.release, first.deadline, first.sequence, first.class()),
        (MS * 10, MS * 11, 0, FlowClass::Guaranteed)
    );
    let second = book.submit(MS * 10, flow, Bytes(1)).unwrap();
    assert_eq!((second.release, second.deadline, second.sequence), (MS * 12, MS * 13, 1));
    assert!(matches!(book.submit(MS * 10, flow, Bytes(0)), Err(SubmitRefused::Empty { .. })));
    assert!(matches!(book.submit(MS * 10, flow, Bytes(MIB + 1)), Err(SubmitRefused::TooLarge { .. })));
    for _ in 2..64 {
        book.submit(MS * 10, flow, Bytes(1)).unwrap();
    }
    assert!(matches!(book.submit(MS * 10, flow, Bytes(1)), Err(SubmitRefused::Full { limit: 64, .. })));
    let report = book.ended(MS * 10 + US * 60, flow, 0, quick(&first, MS * 10 + US * 60)).unwrap();
    assert_eq!((report.response, report.held, report.missed), (US * 60, Nanos::ZERO, false));
    let report = book.ended(MS * 12 + US * 50, flow, 1, quick(&second, MS * 12 + US * 50)).unwrap();
    assert_eq!((report.response, report.held, report.end), (US * 50, MS * 2, JobEnd::Done));
    assert_eq!(book.ended(MS * 12, flow, 1, JobFacts::default()), Err(FlowUnknown));
    assert_eq!(book.submit(MS * 12, FlowId(99), Bytes(1)), Err(SubmitRefused::Unknown));
}

#[test]
fn a_flow_that_needs_smaller_chunks_waits_until_larger_ones_have_left_and_nothing_promised_is_there() {
    let mut book = book(1);
    let large = settled(&mut book, MS, contract("large", 64 * MIB, MS * 20, MS * 20));
    let job = book.submit(MS * 2, large.flow, Bytes(64 * MIB)).unwrap();
    let small = book.open(MS * 3, contract("small", 4096, MS, US * 300)).unwrap();
    assert!(!small.is_settled && small.chunk < large.chunk);
    assert_eq!(book.chunk(0, OUT), Some(small.chunk), "copies without a promise have the smaller chunk at once");
    assert_eq!(book.begin(MS * 3, large.flow, job.sequence), Ok(large.chunk), "promised jobs go on as before");
    assert!(matches!(book.submit(MS * 3, small.flow, Bytes(1)), Err(SubmitRefused::NotSettled { .. })));
    book.drained(MS * 4, 0, OUT);
    assert!(!book.is_settled(small.flow), "a job that a large chunk had blocked may be there");
    book.ended(MS * 5, large.flow, job.sequence, quick(&job, MS * 5)).unwrap();
    assert!(book.is_settled(small.flow));
    assert_eq!(book.bound(small.flow), Some(small.bound));
    book.submit(MS * 5, small.flow, Bytes(1)).unwrap();
    assert_eq!(book.begin(MS * 5, small.flow, 0), Ok(small.chunk));
    // As large as before when it has left, but not while its job is there.
    assert!(!book.close(MS * 5, small.flow).unwrap().has_returned);
    assert_eq!(book.chunk(0, OUT), Some(small.chunk));
    book.ended(MS * 6, small.flow, 0, JobFacts::default()).unwrap();
    assert_eq!(book.chunk(0, OUT), Some(large.chunk));
    book.submit(MS * 22, large.flow, Bytes(1)).unwrap();
    assert_eq!(book.begin(MS * 22, large.flow, 1), Ok(large.chunk));
    book.failed(MS * 22, large.flow, 1).unwrap();
    book.close(MS * 22, large.flow).unwrap();
    assert_eq!((book.chunk(0, OUT), book.begin(MS * 22, large.flow, 1)), (None, Err(FlowUnknown)));
}

#[test]
fn capacity_returns_when_no_promised_job_is_left_and_not_before() {
    // No time but for bytes, and nothing without a promise: 1 byte is 1 ns.
    let plain = FlowEngine {
        setup: Nanos::ZERO,
        rate: Rate(1_000_000_000),
        jitter: Nanos::ZERO,
        late_each: None,
        unpromised_in_flight: 0,
        chunk_max: Bytes(1_000),
        chunk_min: Bytes(1_000),
        ..engine(0)
    };
    let mut book = FlowBook::new(vec![plain], LIMITS);
    // A nanosecond more for what starts at the very instant.
    let of = |name: &str, cost, period| contract(name, cost, Nanos(period), Nanos(period + 1));
    let leaver = settled(&mut book, Nanos(0), of("leaver", 15, 30));
    for (name, cost, period) in [("b", 10, 50), ("c", 10, 50), ("long", 11, 1_000)] {
        settled(&mut book, Nanos(0), of(name, cost, period));
    }
    let newcomer = of("newcomer", 10, 20);
    assert!(matches!(book.open(Nanos(0), newcomer.clone()), Err(FlowRefused::Unfit(_))));
    let jobs: Vec<FlowJob> = [3, 0, 1, 2].map(|flow| book.submit(Nanos(1), FlowId(flow), Bytes(10)).unwrap()).to_vec();
    let closed = book.close(Nanos(2), leaver.flow).unwrap();
    assert_eq!(closed, FlowClosed { has_returned: false, returns_from: Nanos(1_002) });
    for job in &jobs {
        assert!(book.open(Nanos(40), newcomer.clone()).is_err(), "others that it delayed are there");
        book.ended(Nanos(40), job.flow, job.sequence, JobFacts::default()).unwrap();
    }
    assert!(book.open(Nanos(40), newcomer).is_ok());
    assert_eq!(book.close(Nanos(41), leaver.flow), Err(FlowUnknown));
    let unused = FlowId(4);
    assert_eq!(book.close(Nanos(41), unused), Ok(FlowClosed { has_returned: true, returns_from: Nanos(41) }));
}

#[test]
fn an_urgent_copy_is_admitted_if_all_deadlines_still_hold_and_counts_until_nothing_promised_is_there() {
    let mut book = book(1);
    let flow = settled(&mut book, MS, contract("a", 8 * MIB, MS, MS)).flow;
    let before = book.bound(flow).unwrap();
    let job = book.urgent(MS * 2, 0, OUT, Bytes(4 * MIB), MS * 2).unwrap();
    assert_eq!((job.release, job.deadline, job.class()), (MS * 2, MS * 4, FlowClass::Urgent));
    assert!(book.bound(flow).unwrap() >= before);
    assert!(book.bound(job.flow).unwrap() <= MS * 2);
    let refused = book.urgent(MS * 2, 0, OUT, Bytes(32 * MIB), MS).unwrap_err();
    assert!(refused.to_string().starts_with("`an urgent copy` is refused"), "{refused}");
    for proposal in refused.proposals() {
        let (bytes, deadline) = match *proposal {
            FlowProposal::FewerBytes(bytes) => (bytes, MS),
            FlowProposal::LongerDeadline(deadline) => (Bytes(32 * MIB), deadline),
            other => panic!("{other}"),
        };
        assert!(book.clone().urgent(MS * 2, 0, OUT, bytes, deadline).is_ok(), "{proposal} of {refused}");
    }
    assert!(!refused.proposals().is_empty(), "{refused}");
    let many = (0..).take_while(|_| book.urgent(MS * 2, 0, OUT, Bytes(4 * MIB), MS * 4).is_ok()).count();
    assert!(many > 0 && many < 64, "{many}");
    assert!(book.submit(MS * 2, job.flow, Bytes(1)).is_err());
    for id in 0..=many as u64 {
        assert!(book.urgent(MS * 3, 0, OUT, Bytes(8 * MIB), MS * 4).is_err(), "{id}");
        book.ended(MS * 3, FlowId(job.flow.0 + id), 0, JobFacts::default()).unwrap();
    }
    assert_eq!(book.bound(flow), Some(before));
    book.urgent(MS * 3, 0, OUT, Bytes(8 * MIB), MS * 4).unwrap();
}

#[test]
fn time_that_comes_in_another_order_does_not_go_back_but_a_job_took_what_it_took() {
    let mut book = book(1);
    let flow = settled(&mut book, MS, contract("a", MIB, MS * 2, MS)).flow;
    let other = settled(&mut book, MS, contract("b", MIB, MS * 2, MS)).flow;
    let job = book.submit(MS * 2, flow, Bytes(MIB)).unwrap();
    book.submit(MS * 5, other, Bytes(MIB)).unwrap();
    let report = book.ended(MS * 2 + US * 50, flow, 0, quick(&job, MS * 2 + US * 50)).unwrap();
    assert_eq!((report.response, report.missed), (US * 50, false));
    assert!(!book.close(MS, other).unwrap().has_returned, "its job is there");
}

#[test]
fn a_job_that_has_begun_is_there_also_at_a_time_before_its_release() {
    let mut book = book(1);
    let large = settled(&mut book, MS, contract("large", 64 * MIB, MS * 20, MS * 20));
    book.submit(MS * 2, large.flow, Bytes(MIB)).unwrap();
    let held = book.submit(MS * 2, large.flow, Bytes(64 * MIB)).unwrap();
    let small = book.open(MS * 3, contract("small", 4096, MS, US * 300)).unwrap();
    book.drained(MS * 3, 0, OUT);
    assert_eq!(book.begin(held.release, large.flow, held.sequence), Ok(large.chunk));
    // The first one had ended long ago, but its thread is late to say so.
    book.ended(MS * 4, large.flow, 0, JobFacts::default()).unwrap();
    assert!(!book.is_settled(small.flow), "the other one has a large chunk on the engine");
    book.ended(MS * 25, large.flow, held.sequence, JobFacts::default()).unwrap();
    assert!(book.is_settled(small.flow));
}

#[test]
fn a_job_that_begins_late_is_a_fault_that_others_are_told() {
    let mut book = book(1);
    let flows = ["a", "b"].map(|name| settled(&mut book, MS, contract(name, MIB, MS * 2, MS)).flow);
    for flow in flows {
        book.submit(MS * 2, flow, Bytes(MIB)).unwrap();
    }
    book.begin(MS * 2 + US * 20, flows[1], 0).unwrap();
    book.begin(MS * 3, flows[0], 0).unwrap();
    let waited = JobFacts { asked: MS * 2, waited: MS, engine: US * 50, ..JobFacts::default() };
    let blame = book.ended(MS * 3 + US * 50, flows[1], 0, waited).unwrap().blame;
    let late = FlowFault::AskedLate { owner: ChunkOwner::Flow("a".to_owned()), late: MS, jitter: US * 20 };
    assert_eq!(blame[0], FlowBlame::Fault(late));
    assert!(matches!(blame[1], FlowBlame::Waited(_)), "in time is no fault: {blame:?}");
}

#[test]
fn a_flow_that_stops_on_a_miss_takes_no_more_jobs() {
    let mut book = book(1);
    let asked = FlowContract { on_miss: OnMiss::Stop, ..contract("a", MIB, MS * 2, MS) };
    let flow = settled(&mut book, MS, asked).flow;
    let job = book.submit(MS * 2, flow, Bytes(MIB)).unwrap();
    assert!(!book.ended(MS * 3, flow, 0, quick(&job, MS * 3)).unwrap().missed, "at the deadline is in time");
    book.submit(MS * 4, flow, Bytes(MIB)).unwrap();
    assert!(book.ended(MS * 5 + Nanos(1), flow, 1, JobFacts::default()).unwrap().missed);
    assert!(matches!(book.submit(MS * 9, flow, Bytes(MIB)), Err(SubmitRefused::Stopped { .. })));
    assert!(book.close(MS * 9, flow).unwrap().has_returned);
}

#[test]
fn jobs_that_fail_or_are_given_up_are_missed_and_no_longer_there() {
    let mut book = book(1);
    let flow = settled(&mut book, MS, contract("a", MIB, MS * 2, MS)).flow;
    book.submit(MS * 2, flow, Bytes(MIB)).unwrap();
    book.submit(MS * 4, flow, Bytes(MIB)).unwrap();
    let failed = book.failed(MS * 4, flow, 0).unwrap();
    assert_eq!((failed.end, failed.missed), (JobEnd::Failed, true));
    let facts = JobFacts { asked: MS * 4, waited: MS, ..JobFacts::default() };
    let given_up = book.given_up(MS * 5, flow, 1, facts).unwrap();
    assert_eq!((given_up.end, given_up.missed), (JobEnd::GivenUp, true));
    assert!(book.close(MS * 5, flow).unwrap().has_returned);
}

/// The blame of a job of 1 MiB that ended after `response` with these facts.
fn blamed(response: Nanos, facts: JobFacts, faults: &[FlowFault]) -> (Vec<FlowBlame>, Nanos) {
    let mut book = book(1);
    let flow = settled(&mut book, MS, contract("a", MIB, MS * 2, MS)).flow;
    book.submit(MS * 2, flow, Bytes(MIB)).unwrap();
    for fault in faults {
        book.fault(MS * 2, 0, OUT, fault.clone());
    }
    let facts = JobFacts { asked: facts.asked + MS * 2, ..facts };
    let report = book.ended(MS * 2 + response, flow, 0, facts).unwrap();
    assert!(report.blame.iter().all(|blame| !blame.to_string().is_empty()));
    (report.blame, report.bound)
}

#[test]
fn within_the_bound_blame_says_what_the_time_went_to() {
    let ahead = ChunksAhead { owner: ChunkOwner::Unpromised, chunks: 2, time: US * 100, longest: US * 50 };
    let facts =
        JobFacts { waited: US * 100, engine: US * 50, chunks: 1, ahead: vec![ahead.clone()], ..JobFacts::default() };
    let (blame, _) = blamed(US * 150, facts, &[]);
    assert!(matches!(&blame[..], [FlowBlame::Ahead(a), FlowBlame::Waited(w), FlowBlame::Engine { took, worst }]
        if *a == ahead && *w == US * 100 && *took == US * 50 && *worst > US * 50));
}

#[test]
fn beyond_the_bound_blame_names_what_broke() {
    let own = ChunkOwner::Flow("a".to_owned());
    let first = |response: Nanos, facts: JobFacts, faults: &[FlowFault]| match &blamed(response, facts, faults).0[0] {
        FlowBlame::Fault(fault) => fault.clone(),
        other => panic!("{other:?}"),
    };
    let late = JobFacts { asked: MS, engine: US * 50, ..JobFacts::default() };
    assert_eq!(first(MS + US * 50, late, &[]), FlowFault::AskedLate { owner: own.clone(), late: MS, jitter: US * 20 });
    let slow = JobFacts { engine: MS, chunks: 1, longest_chunk: MS, ..JobFacts::default() };
    assert!(matches!(first(MS, slow, &[]), FlowFault::LongChunk { owner, took, .. } if owner == own && took == MS));
    let ahead = |chunks, longest| ChunksAhead { owner: ChunkOwner::Unpromised, chunks, time: MS, longest };
    let behind = |chunks, longest| JobFacts { waited: MS, ahead: vec![ahead(chunks, longest)], ..JobFacts::default() };
    assert!(matches!(first(MS, behind(1, MS), &[]), FlowFault::LongChunk { owner: ChunkOwner::Unpromised, .. }));
    assert!(matches!(first(MS, behind(9, US), &[]), FlowFault::ManyChunks { chunks: 9, most: 2, .. }));
    let gaps = JobFacts { engine: US * 50, ..JobFacts::default() };
    assert_eq!(first(MS, gaps, &[]), FlowFault::Gaps { owner: own, time: MS - US * 50 });
    let told = FlowFault::LargeChunk { owner: ChunkOwner::Unpromised, bytes: Bytes(1 << 30), most: Bytes(MIB) };
    let waited = JobFacts { waited: MS, ..JobFacts::default() };
    assert_eq!(first(MS, waited.clone(), std::slice::from_ref(&told)), told);
    let (blame, bound) = blamed(MS, waited, &[]);
    assert_eq!(blame[0], FlowBlame::Unexplained { by: MS - bound });
}

#[test]
fn blame_names_the_worst_fault_of_each_kind_and_owner() {
    let gap = |time| FlowFault::Gaps { owner: ChunkOwner::Flow("b".to_owned()), time };
    let large = FlowFault::LargeChunk { owner: ChunkOwner::Unpromised, bytes: Bytes(1 << 30), most: Bytes(MIB) };
    let mut told = vec![gap(US), gap(US * 9), gap(US * 3)];
    // More than are remembered, and a fault of another kind behind them.
    told.extend([gap(US * 2), gap(US * 4)].into_iter().cycle().take(2 * LIMITS.faults_max));
    told.push(large.clone());
    // One chunk took too long: as a chunk, and as all that the job has.
    let facts = JobFacts { engine: MS, chunks: 1, longest_chunk: MS, ..JobFacts::default() };
    let (blame, _) = blamed(MS, facts, &told);
    let faults: Vec<&FlowBlame> = blame.iter().filter(|blame| matches!(blame, FlowBlame::Fault(_))).collect();
    assert!(matches!(faults[0], FlowBlame::Fault(FlowFault::LongChunk { took, .. }) if *took == MS), "{blame:?}");
    assert_eq!(faults[1..], [&FlowBlame::Fault(gap(US * 9)), &FlowBlame::Fault(large)]);
}

#[test]
fn a_fault_is_told_to_all_jobs_until_nothing_promised_is_there() {
    let mut book = book(1);
    let flows = ["a", "b"].map(|name| settled(&mut book, MS, contract(name, MIB, MS * 2, MS)).flow);
    let jobs = flows.map(|flow| book.submit(MS * 2, flow, Bytes(MIB)).unwrap());
    let late = JobFacts { asked: MS * 3, engine: US * 50, ..JobFacts::default() };
    book.ended(MS * 3 + US * 50, flows[0], jobs[0].sequence, late).unwrap();
    let waited = JobFacts { asked: MS * 2, waited: MS, engine: US * 50, ..JobFacts::default() };
    let blame = book.ended(MS * 3 + US * 50, flows[1], jobs[1].sequence, waited.clone()).unwrap().blame;
    let name = ChunkOwner::Flow("a".to_owned());
    assert!(matches!(&blame[0], FlowBlame::Fault(FlowFault::AskedLate { owner, .. }) if *owner == name), "{blame:?}");
    let job = book.submit(MS * 6, flows[1], Bytes(MIB)).unwrap();
    let waited = JobFacts { asked: MS * 6, ..waited };
    let blame = book.ended(MS * 7 + US * 50, flows[1], job.sequence, waited).unwrap().blame;
    assert!(matches!(blame[0], FlowBlame::Unexplained { .. }), "{blame:?}");
}

#[test]
fn engines_come_from_a_machine_file_with_its_margin_and_say_so_if_nobody_measured_it() {
    let machine = shipped("h200-x1").unwrap();
    let engines = flow_engines(&machine, 6);
    assert_eq!(engines.iter().map(|of| (of.gpu, of.direction)).collect::<Vec<_>>(), [(0, Direction::H2d), (0, OUT)]);
    for engine in &engines {
        assert!(engine.is_measured && engine.jitter == US * 100 && engine.unpromised_in_flight == 6, "{engine:?}");
        // Beside the other direction, and a hundredth less for the margin.
        assert!((49_000_000_000..51_500_000_000).contains(&engine.rate.0), "{engine:?}");
        assert!(engine.setup > Nanos::ZERO && engine.setup < US * 20, "{engine:?}");
    }
    let assumed = engines.iter().map(|engine| FlowEngine { is_measured: false, ..engine.clone() });
    let mut book = FlowBook::new(assumed.collect(), LIMITS);
    let admitted = book.open(MS, contract("a", MIB, MS * 20, MS * 10)).unwrap();
    assert_eq!(admitted.assumptions[0], FlowAssumption::NotMeasured);
}

#[test]
fn what_a_watch_of_chunks_saw_makes_an_engine_slower_and_rare_delays_count_once() {
    let mut machine = shipped("h200-x1").unwrap();
    let plain = flow_engines(&machine, 6).remove(1);
    let (class, each, together, max) = ("SCHED_OTHER".to_owned(), US * 49, US * 490, US * 400);
    let watch = ChunkWatch { time: MS, class, chunks: 1_000, slower_ppm: 250_000, each, together, max };
    machine.calibration.as_mut().unwrap().chunk_watch = [(OUT, watch)].into();
    let [other, watched] = <[FlowEngine; 2]>::try_from(flow_engines(&machine, 6)).unwrap();
    assert_eq!((other.late_each, other.late_once()), (None, Nanos::ZERO));
    assert_eq!((watched.late_each, watched.late_once(), watched.jitter), (Some(US * 50), US * 500, US * 550));
    let share = watched.rate.0 * 1_000_000 / plain.rate.0;
    assert!((783_999..=784_000).contains(&share), "{share}: 0.98 of four fifths");
    // The file's jitter is more than was seen here.
    machine.calibration.as_mut().unwrap().jitter = MS;
    assert_eq!(flow_engines(&machine, 6)[1].jitter, MS);
    let calibration = machine.calibration.as_mut().unwrap();
    calibration.chunk_watch.get_mut(&OUT).unwrap().each = Nanos::MAX;
    assert_eq!(flow_engines(&machine, 6)[1].jitter, Nanos::MAX, "no large time becomes a small one");
}

#[test]
fn chunks_are_larger_than_usual_only_where_set_ups_cost_too_much() {
    let slow = FlowEngine { setup: US * 200, ..engine(0) };
    let mut book = FlowBook::new(vec![slow], LIMITS);
    // A third of the engine by its bytes, with usual chunks a half.
    let few = settled(&mut book, MS, contract("camera", 32 * MIB, MS * 2, MS * 40));
    assert_eq!(few.chunk, CHUNK_USUAL);
    book.close_all(MS * 2);
    book.drained(MS * 2, 0, OUT);
    // 0.75, with usual chunks 1.2.
    let many = settled(&mut book, MS * 3, contract("camera", 358 * MIB, MS * 10, MS * 40));
    assert!(CHUNK_USUAL < many.chunk && many.chunk <= CHUNK_MAX, "{}", many.chunk);
}

#[test]
fn turns_of_others_are_borne_at_once_and_given_back_when_nothing_promised_is_there() {
    let plain = FlowEngine { turn: Some(MS), ..engine(0) };
    let beside = |others| plain.beside(others).unwrap();
    assert_eq!(beside(2).setup, plain.setup + MS * 2, "the largest chunk takes no whole turn");
    assert_eq!((beside(2).chunk_max, beside(0).chunk_max), (Bytes(762 * CHUNK_MIN.0), CHUNK_MAX), "50 MB a turn");
    let quick_turns = FlowEngine { turn: Some(US), ..plain.clone() }.beside(1).unwrap();
    assert_eq!(
        (quick_turns.setup, quick_turns.chunk_max),
        (plain.setup + US * 2, CHUNK_MIN),
        "1.3 us are two of them, begun"
    );
    assert_eq!((engine(0).beside(1), engine(0).beside(0).unwrap().setup), (None, plain.setup));

    let mut book = FlowBook::new(vec![beside(1)], LIMITS);
    let flow = settled(&mut book, MS, contract("camera", MIB, MS * 40, MS * 20)).flow;
    let bound = book.bound(flow).unwrap();
    let job = book.submit(MS * 2, flow, Bytes(MIB)).unwrap();
    book.begin(MS * 2, flow, job.sequence).unwrap();
    book.change(MS * 3, beside(0), "").unwrap();
    let cost = |book: &FlowBook| book.chunk_cost(0, OUT, Bytes(MIB)).unwrap();
    assert_eq!((book.is_in_force(0, OUT), cost(&book)), (false, beside(1).chunk_cost(Bytes(MIB))));
    book.ended(MS * 4, flow, job.sequence, JobFacts::default()).unwrap();
    assert_eq!((book.is_in_force(0, OUT), cost(&book)), (true, beside(0).chunk_cost(Bytes(MIB))));
    assert!(book.bound(flow).unwrap() < bound);

    let job = book.submit(MS * 50, flow, Bytes(MIB)).unwrap();
    book.begin(MS * 50, flow, job.sequence).unwrap();
    book.change(MS * 51, beside(1), "").unwrap();
    assert_eq!((book.is_in_force(0, OUT), book.bound(flow)), (true, Some(bound)));
    let before = serde_json::to_string(&book).unwrap();
    let suffers = book.change(MS * 51, beside(9), " of them").unwrap_err();
    assert_eq!((suffers.suffers.as_str(), serde_json::to_string(&book).unwrap()), ("camera of them", before));
    // A smaller chunk, as somebody else has chosen it, once larger ones have left.
    let pinned = FlowEngine { chunk_min: Bytes(MIB), chunk_max: Bytes(MIB), ..beside(1) };
    book.change(MS * 52, pinned, "").unwrap();
    book.ended(MS * 53, flow, job.sequence, JobFacts::default()).unwrap();
    assert!(!book.is_in_force(0, OUT) && book.chunk(0, OUT) == Some(Bytes(MIB)));
    book.drained(MS * 54, 0, OUT);
    assert!(book.is_in_force(0, OUT));
    assert_eq!(book.terms()[0].chunk_max, Bytes(MIB));
    book.close_all(MS * 55);
    assert_eq!(book.flows().count(), 0);
}

/// A small generator of numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn any_input(draw: &mut Draw) -> FlowInput {
    let (gpu, direction, flow, sequence) = (draw.below(2) as u32, OUT, FlowId(draw.below(16)), draw.below(3));
    let facts = JobFacts { asked: Nanos(draw.below(9)), waited: Nanos(draw.below(99)), ..JobFacts::default() };
    match draw.below(16) {
        0 | 1 => {
            let name = format!("flow {}", draw.below(20));
            let (period, deadline) = (US * (100 + draw.below(9_000)), US * (30 + draw.below(9_000)));
            FlowInput::Open(FlowContract { gpu, ..contract(&name, draw.below(MIB), period, deadline) })
        }
        2 => FlowInput::Close { flow },
        3 | 4 => FlowInput::Drained { gpu, direction },
        5 => FlowInput::Urgent { gpu, direction, bytes: Bytes(draw.below(MIB)), deadline: US * draw.below(5_000) },
        6..=9 => FlowInput::Submit { flow, bytes: Bytes(1 + draw.below(MIB / 4)) },
        10 => FlowInput::GivenUp { flow, sequence, facts },
        11 if draw.below(2) == 0 => FlowInput::Begin { flow, sequence },
        11 => FlowInput::Failed { flow, sequence },
        12 => {
            let fault = FlowFault::Gaps { owner: ChunkOwner::Unpromised, time: US };
            FlowInput::Fault { gpu, direction, fault }
        }
        _ => FlowInput::Ended { flow, sequence: sequence % 2, facts },
    }
}

#[test]
fn a_history_that_was_written_down_gives_the_same_answers_again() {
    let mut kinds = [0; 4];
    for seed in 0..10 {
        let (mut draw, mut now) = (Draw(seed), MS);
        let mut first = book(2);
        let mut lines = Vec::new();
        for _ in 0..300 {
            now = now + US * draw.below(200);
            let input = any_input(&mut draw);
            let answer = first.handle(now, input.clone());
            kinds[0] += u32::from(matches!(answer, FlowAnswer::Opened(Ok(_))));
            kinds[1] += u32::from(matches!(answer, FlowAnswer::Submitted(Ok(_))));
            kinds[2] += u32::from(matches!(answer, FlowAnswer::Ended(Ok(_))));
            kinds[3] += u32::from(matches!(answer, FlowAnswer::Urgent(Ok(_))));
            lines.push(serde_json::to_string(&(now, input, answer)).unwrap());
        }
        let mut second = book(2);
        for line in lines {
            let (now, input, answer): (Nanos, FlowInput, FlowAnswer) = serde_json::from_str(&line).unwrap();
            assert_eq!(second.handle(now, input), answer, "{line}");
        }
    }
    assert!(kinds.iter().all(|count| *count > 10), "{kinds:?}");
}
