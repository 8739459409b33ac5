//! The worked figures, the printed formulas and where they are exceeded, and the limits of the verdict.

pub(crate) mod paper;

use self::paper::Letters;
use super::*;
use crate::decisions::engine_lock::{EngineLockAction, EngineLocks, EngineWork, LockOrder, LockedOperation};
use crate::decisions::sharing::{ClientId, ClusterId, JobSegment, TaskDirection, TaskParameters};
use crate::decisions::sharing::{GpuId, JobId, JobPriority};
use crate::decisions::token::TokenMode;
use crate::units::Bytes;

const MIB: u64 = 1 << 20;
const US: u64 = 1_000;

/// The worked example of the specification of sharing, 6.4.
fn example(rho: u32, peer: Option<PeerLocks>) -> System {
    let engines = EngineParameters {
        copy_engines: 1,
        peer: peer.unwrap_or(PeerLocks::Group),
        chunk_bytes: Some(Bytes(2 * MIB)),
        ..EngineParameters::default()
    };
    System {
        gpus: 4,
        tokens: TokenParameters { cpus: 6, per_gpu: rho, mode: TokenMode::Optimal, affinity: true },
        engines: Some(engines),
        peer_copies: peer.is_some(),
        longest_copy: Nanos(46 * US),
        longest_execute: Nanos(2_000 * US),
        grant_latency: Nanos::ZERO,
        cpu: CpuGuarantee::Priorities,
    }
}

/// A frame of the feature tracker: nine copies, three kernel segments, 6.5 MB of state.
fn klt(task: u32) -> TaskParameters {
    let copy = |bytes| JobSegment::Copy { direction: TaskDirection::ToGpu, bytes: Bytes(bytes) };
    let kernel = || JobSegment::Execute { kernel: "klt".to_owned(), time: Nanos(2_000 * US) };
    let sizes = [307_200, 307_200, 36, 4_096, 8_192, 8_192, 32_768, 4_096, 307_200];
    let mut segments: Vec<JobSegment> = sizes.into_iter().map(copy).collect();
    segments.extend([kernel(), kernel(), kernel(), JobSegment::Cpu(Nanos(1_500 * US))]);
    TaskParameters {
        id: TaskId(task),
        client: ClientId(0),
        cluster: ClusterId(0),
        period: Nanos(100_000 * US),
        deadline: Nanos(100_000 * US),
        state: Bytes(6_856_704),
        segments,
    }
}

fn demands(system: &System, count: u32) -> Vec<TaskDemand> {
    let chunk = system.engines.and_then(|engines| engines.chunk_bytes);
    let demand = |task| TaskDemand {
        task: TaskId(task),
        period: Nanos(100_000 * US),
        cpu_outside: Nanos::ZERO,
        acquisitions: vec![Acquisition::of(&klt(task), chunk, system.peer_copies, |_| Nanos(46 * US))],
    };
    (0..count).map(demand).collect()
}

/// `(NE, NC, THT, beta, BE, B)` in microseconds.
fn row(system: &System) -> (u64, u64, u64, u64, u64, u64) {
    let analysis = analyse(system, &demands(system, 6));
    let (blockers, bound) = (analysis.blockers.unwrap(), analysis.tasks[0]);
    assert_eq!(analysis.token_hold_max, Some(bound.token_hold));
    let us = |time: Nanos| time.0 / US;
    let (hold, engines, all) = (us(bound.token_hold), us(bound.engine_wait), us(bound.blocking));
    (blockers.execute, blockers.copy, hold, blockers.token, engines, all)
}

#[test]
fn a_tracker_frame_makes_17_copy_requests_through_memory_and_13_between_gpus() {
    let chunk = Some(Bytes(2 * MIB));
    assert_eq!(Acquisition::of(&klt(0), chunk, false, |_| Nanos(1)).copies, 17);
    assert_eq!(Acquisition::of(&klt(0), chunk, true, |_| Nanos(1)).copies, 13);
    assert_eq!(Acquisition::of(&klt(0), None, true, |_| Nanos(1)).copies, 10);
}

#[test]
fn the_worked_example_has_the_figures_of_the_specification() {
    assert_eq!(row(&example(2, None)), (1, 1, 15_064, 1, 6_782, 21_846));
    assert_eq!(row(&example(1, None)), (0, 0, 8_282, 3, 0, 24_846));
    assert_eq!(row(&example(2, Some(PeerLocks::Group))), (1, 5, 17_088, 1, 8_990, 26_078));
    assert_eq!(row(&example(2, Some(PeerLocks::Nested))), (1, 55, 46_988, 1, 38_890, 85_878));
    let group = example(2, Some(PeerLocks::Group));
    let all_tokens = System { tokens: TokenParameters { mode: TokenMode::WorkConserving, ..group.tokens }, ..group };
    assert_eq!(row(&all_tokens), (1, 7, 18_284, 1, 10_186, 28_470));
}

fn letters(d: u64, copy_blockers: u64) -> Letters {
    Letters {
        m: 6,
        rho: 2,
        g: 4,
        d: Bytes(d * 2 * MIB),
        c: Bytes(2 * MIB),
        copy_blockers,
        execute_blockers: 1,
        longest_copy: Nanos(46 * US),
        longest_execute: Nanos(2_000 * US),
        cpu: Nanos(1_500 * US),
    }
}

#[test]
fn the_printed_formulas_give_the_printed_figures() {
    let printed = letters(8, 1);
    let hold = paper::token_hold(&printed).unwrap();
    assert_eq!(hold, Nanos(6_236 * US));
    assert_eq!(paper::engine_blocking(&printed, 1), Some(Nanos(2_368 * US)));
    assert_eq!(paper::token_blocking(&printed, hold), Some(hold));
    assert_eq!(paper::blocking(&printed, hold), Some(Nanos(8_604 * US)));
    assert_eq!((paper::group_blockers(2, 4), paper::nested_blockers(2, 4)), (Some(7), Some(21)));
    // Slip 2: with two tokens the other holder can be ahead, yet the formula says nobody.
    assert_eq!(paper::nested_blockers(2, 1), Some(0));
}

#[test]
fn nested_locks_meet_as_many_requests_as_exhaustive_search_found() {
    let found = [(2, [2, 2, 2]), (3, [5, 6, 6]), (4, [9, 13, 14])];
    for (holders, by_locks) in found {
        for (locks, blockers) in (2..).zip(by_locks) {
            assert_eq!(nested_blockers(holders, locks), Some(blockers), "{holders} holders, {locks} locks");
        }
    }
    assert_eq!(nested_blockers(8, 4), Some(161));
    assert_eq!(nested_blockers(6, 4), Some(55));
    assert_eq!(nested_blockers(10, 60), Some((1 << 10) - 2));
    assert_eq!((nested_blockers(1, 4), nested_blockers(5, 1)), (Some(0), Some(4)));
    assert_eq!((nested_blockers(0, 4), nested_blockers(1_000, 100)), (None, None));
}

#[test]
fn bounds_grow_with_every_length_and_count() {
    let base = example(2, Some(PeerLocks::Group));
    let tasks = demands(&base, 6);
    let blocking = |system: &System, tasks: &[TaskDemand]| analyse(system, tasks).tasks[0].blocking;
    let before = blocking(&base, &tasks);
    let longer = [
        System { longest_copy: Nanos(47 * US), ..base },
        System { longest_execute: Nanos(2_001 * US), ..base },
        System { grant_latency: Nanos(1), ..base },
        System { cpu: CpuGuarantee::Reservation { runtime: Nanos(5 * US), period: Nanos(10 * US) }, ..base },
    ];
    for system in longer {
        assert!(blocking(&system, &tasks) > before, "{system:?}");
    }
    let more: [fn(&mut Acquisition); 3] = [|a| a.copies += 1, |a| a.executes += 1, |a| a.cpu.0 += 1];
    for more in more {
        let mut tasks = tasks.clone();
        more(&mut tasks[5].acquisitions[0]);
        assert!(blocking(&base, &tasks) > before);
    }
    let mut twice = tasks.clone();
    let again = twice[0].acquisitions[0];
    twice[0].acquisitions.push(again);
    assert_eq!(blocking(&base, &twice), Nanos(before.0 * 2));
}

#[test]
fn a_reservation_supplies_half_a_cpu_in_twice_the_time_and_the_gaps() {
    let half = CpuGuarantee::Reservation { runtime: Nanos(5), period: Nanos(10) };
    assert_eq!(cpu_time(half, Nanos(7), 1), Some(14 + 10 + 1));
    assert_eq!(cpu_time(half, Nanos(7), 3), Some(14 + 3 * 11));
    assert_eq!(cpu_time(half, Nanos(0), 3), Some(0));
    assert_eq!(cpu_time(CpuGuarantee::Priorities, Nanos(7), 3), Some(7));
    let none = CpuGuarantee::Reservation { runtime: Nanos(0), period: Nanos(10) };
    assert_eq!(cpu_time(none, Nanos(7), 1), None);
}

#[test]
fn few_light_tasks_have_bounded_tardiness_and_a_response_bound() {
    let system = example(2, None);
    let analysis = analyse(&system, &demands(&system, 6));
    assert_eq!(analysis.verdict, TardinessVerdict::Yes);
    let bound = analysis.tasks[0];
    assert_eq!(bound.inflated, Nanos(bound.blocking.0 + (17 * 46 + 3 * 2_000 + 1_500) * US));
    assert_eq!(
        (bound.response, bound.tardiness(Nanos(20_000 * US))),
        (Some(bound.inflated), Some(Nanos(bound.inflated.0 - 20_000 * US)))
    );
    let seven = analyse(&system, &demands(&system, 7));
    assert_eq!((seven.verdict, seven.tasks[0].response), (TardinessVerdict::Yes, None));
}

#[test]
fn the_verdict_knows_its_limits() {
    let base = example(2, None);
    let verdict = |system: &System, tasks: &[TaskDemand]| analyse(system, tasks).verdict;
    let tasks = demands(&base, 6);
    let cases = [
        (System { cpu: CpuGuarantee::Nothing, ..base }, Unknown::CpuNotGuaranteed),
        (System { engines: None, ..base }, Unknown::EnginesUnlocked),
        (System { longest_copy: Nanos(u64::MAX / 2), ..base }, Unknown::Overflow),
        (
            System { tokens: TokenParameters { mode: TokenMode::Priority, cpus: 9, ..base.tokens }, ..base },
            Unknown::Mode,
        ),
        (System { tokens: TokenParameters { per_gpu: 0, ..base.tokens }, ..base }, Unknown::Parameters),
        (System { longest_execute: Nanos(20_000 * US), ..base }, Unknown::LongerThanPeriod(TaskId(0))),
    ];
    for (system, why) in cases {
        assert_eq!(verdict(&system, &tasks), TardinessVerdict::DontKnow(why));
    }
    assert_eq!(verdict(&base, &demands(&base, 60)), TardinessVerdict::DontKnow(Unknown::Overload));
    let by_urgency = base.engines.map(|engines| EngineParameters { order: LockOrder::Urgency, ..engines });
    let late = System { engines: by_urgency, longest_execute: Nanos(20_000 * US), ..base };
    assert_eq!(verdict(&late, &tasks), TardinessVerdict::DontKnow(Unknown::Overtaking));
    let whole = System { engines: None, tokens: TokenParameters { per_gpu: 1, ..base.tokens }, ..base };
    assert_eq!(verdict(&whole, &tasks), TardinessVerdict::Yes);
}

#[test]
fn engines_that_serve_the_most_urgent_first_have_bounds_if_by_them_nobody_is_late() {
    let base = example(2, None);
    let engines = base.engines.map(|engines| EngineParameters { order: LockOrder::Urgency, ..engines });
    let tokens = TokenParameters { per_gpu: 2, mode: TokenMode::Priority, ..base.tokens };
    let system = System { engines, tokens, ..base };
    // 17 copies of 46 us and three kernels of 2 ms: one less urgent operation before each, and five others' operations once.
    let (each, cpu) = ((17 * 46 + 3 * 2_000) * US, 1_500 * US);
    let analysis = analyse(&system, &demands(&system, 6));
    let bound = analysis.tasks[0];
    assert_eq!((analysis.verdict, bound.engine_wait), (TardinessVerdict::Yes, Nanos(6 * each)));
    assert_eq!((bound.token_wait, bound.response), (Nanos::ZERO, Some(Nanos(7 * each + cpu))));
    // A task of half the period is twice in the others' way, and they once in its own.
    let mut two = demands(&system, 2);
    two[1].period = Nanos(50_000 * US);
    let waits =
        |tasks: &[TaskDemand]| timely(&system, tasks).unwrap().iter().map(|b| b.engine_wait.0).collect::<Vec<_>>();
    assert_eq!(waits(&two), [3 * each, 2 * each]);
    // Where jobs may be late by the bound, it holds only as long as they are not.
    let late = |tasks: &mut Vec<TaskDemand>| tasks.iter_mut().for_each(|task| task.period = Nanos(48_000 * US));
    let mut busy = demands(&system, 6);
    late(&mut busy);
    assert_eq!(analyse(&system, &busy).verdict, TardinessVerdict::DontKnow(Unknown::Overtaking));
    assert_eq!(timely(&system, &busy).unwrap()[0].response, None);
    // Peer copies keep an engine idle while one operation ends on the other.
    let peers = System { peer_copies: true, ..system };
    let between = timely(&peers, &demands(&peers, 2)).unwrap()[0].engine_wait;
    let (chunks, all) = (13 * 46 * US, (13 * 46 + 6_000) * US);
    assert_eq!(between, Nanos(2 * all + chunks));
}

#[test]
fn nothing_is_bounded_where_jobs_on_time_could_wait_for_tokens_or_cpus() {
    let base = example(2, None);
    let engines = base.engines.map(|engines| EngineParameters { order: LockOrder::Urgency, ..engines });
    let tokens = TokenParameters { mode: TokenMode::Priority, cpus: 9, ..base.tokens };
    let system = System { engines, tokens, ..base };
    let why = |system: &System, count| timely(system, &demands(system, count)).err();
    assert_eq!((why(&system, 8), why(&system, 9)), (None, Some(Unknown::Mode)));
    let few = System { tokens: TokenParameters { cpus: 7, ..tokens }, ..system };
    assert_eq!(why(&few, 8), Some(Unknown::Overload));
    let queues = System { tokens: TokenParameters { mode: TokenMode::Relaxed(2), cpus: 8, ..tokens }, ..system };
    assert_eq!(why(&queues, 8), Some(Unknown::Mode), "with affinity a task may wait for its own GPU");
    let shortest = System { tokens: TokenParameters { affinity: false, ..queues.tokens }, ..queues };
    assert_eq!(why(&shortest, 8), None);
    assert_eq!(why(&base, 6), Some(Unknown::Overtaking), "engines serve in order of arrival");
}

#[test]
fn what_exceeds_the_node_without_any_blocking_is_a_no() {
    let base = example(2, None);
    let verdict = |change: fn(&mut TaskDemand), count| {
        let mut tasks = demands(&base, count);
        tasks.iter_mut().for_each(change);
        analyse(&base, &tasks).verdict
    };
    assert_eq!(verdict(|task| task.period = Nanos(5_000 * US), 1), TardinessVerdict::No(Resource::Sequence(TaskId(0))));
    assert_eq!(
        verdict(|task| task.acquisitions[0].execute_time = Nanos(50_000 * US), 9),
        TardinessVerdict::No(Resource::Execute)
    );
    assert_eq!(
        verdict(|task| task.acquisitions[0].copy_time = Nanos(50_000 * US), 9),
        TardinessVerdict::No(Resource::Copy)
    );
    assert_eq!(verdict(|task| task.cpu_outside = Nanos(80_000 * US), 8), TardinessVerdict::No(Resource::Cpu));
}

/// How long task 0 waits for an engine in all, when task 1 always comes first: each of its `count` operations, and each of
/// the other's, takes `time`.
fn waited(work: EngineWork, count: u64, time: u64) -> u64 {
    let system = example(2, None);
    let mut locks = EngineLocks::new(system.engines.unwrap(), &[GpuId(0)]).unwrap();
    let job = |task| JobId { task: TaskId(task), job: 0 };
    let operation = LockedOperation { work, bytes: Bytes(1), predicted: Nanos::ZERO, budget: Nanos::ZERO };
    for task in [0, 1] {
        let key = JobPriority { deadline: Nanos(1), release: Nanos::ZERO, job: job(task) };
        locks.handle_token(Nanos::ZERO, key, GpuId(0), None).unwrap();
    }
    let (mut now, mut waited) = (0, 0);
    for _ in 0..count {
        let asked = now;
        for task in [1, 0] {
            locks.handle_acquire(Nanos(now), job(task), operation).unwrap();
        }
        for task in [1, 0] {
            let started = std::iter::from_fn(|| locks.poll_action())
                .find(|action| matches!(action, EngineLockAction::Run { .. }));
            assert!(matches!(started, Some(EngineLockAction::Run { job, .. }) if job.task == TaskId(task)));
            waited += if task == 0 { now - asked } else { 0 };
            now += time;
            locks.handle_complete(Nanos(now), job(task)).unwrap();
        }
    }
    waited
}

#[test]
fn two_kernels_wait_longer_than_the_printed_theorem_says() {
    // Slip 1: Theorem 3 counts one wait for a kernel, whatever their number.
    let waits = waited(EngineWork::Execute, 2, 2_000 * US);
    let nothing_copied = Letters { d: Bytes(0), ..letters(0, 1) };
    assert_eq!(paper::blocking(&nothing_copied, Nanos(0)), Some(Nanos(2_000 * US)));
    assert_eq!(waits, 4_000 * US);
    let system = example(2, None);
    let use_ = Acquisition { executes: 2, ..Acquisition::default() };
    assert_eq!(engine_time(&system, &use_, 1, 1), Some(waits));
}

#[test]
fn two_small_copies_wait_longer_than_the_printed_theorem_says() {
    // Slip 4: two bytes are one chunk to the theorem, yet two requests.
    let waits = waited(EngineWork::CopyIn, 2, 46 * US);
    let two_bytes = Letters { d: Bytes(2), ..letters(0, 1) };
    assert_eq!(paper::engine_blocking(&two_bytes, 0), Some(Nanos(46 * US)));
    assert_eq!(waits, 92 * US);
    let use_ = Acquisition { copies: 2, ..Acquisition::default() };
    assert_eq!(engine_time(&example(2, None), &use_, 1, 1), Some(waits));
}
