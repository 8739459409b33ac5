//! Our tests against the response-time bounds of the crate `response-time-analysis` (MPI-SWS, analyses verified in Coq):
//! a set is schedulable exactly if every bound is at most its deadline. Integer time; blocking is the longest piece less 1.

#[path = "support/rival.rs"]
mod rival;

use headway_core::analysis::schedulability::{
    ConcreteTask, JobCosts, RecurrentTask, TestOutcome, TestVerdict, TestViolation, Ties, chunked, concrete, jeffay,
};
use headway_core::units::Nanos;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// Where the searches for a bound end.
const LIMIT: u64 = 1_000_000;
const CASES: u32 = 3_000;

/// Response-time bounds under NP-EDF; `None` where the search finds none.
fn bounds_whole(tasks: &[RecurrentTask]) -> Vec<Option<u64>> {
    let mut bounds = Vec::new();
    rival::bounds_whole(tasks, LIMIT, |_, bound| {
        bounds.push(bound);
        true
    });
    bounds
}

/// Bounds of jobs that are cut into chunks, the last one the rest.
fn bounds_in_chunks(tasks: &[RecurrentTask]) -> Vec<Option<u64>> {
    let mut bounds = Vec::new();
    rival::bounds_in_chunks(tasks, LIMIT, |_, bound| {
        bounds.push(bound);
        true
    });
    bounds
}

fn agrees(tasks: &[RecurrentTask], verdict: &TestVerdict, bounds: fn(&[RecurrentTask]) -> Vec<Option<u64>>) -> bool {
    if !fits(tasks) {
        return verdict.outcome == TestOutcome::NotSchedulable(TestViolation::Utilisation);
    }
    let all_met = tasks.iter().zip(bounds(tasks)).all(|(t, b)| b.is_some_and(|b| b <= t.deadline.0));
    verdict.is_schedulable() == all_met
}

fn implicit(tasks: &[(u64, u64)]) -> Vec<RecurrentTask> {
    tasks.iter().map(|&(c, p)| RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(p))).collect()
}

fn in_chunks_of(chunk: u64, tasks: &[RecurrentTask]) -> Vec<RecurrentTask> {
    tasks.iter().map(|t| RecurrentTask { chunk: t.cost.min(Nanos(chunk)), ..*t }).collect()
}

#[test]
fn golden_bounds_are_reproduced() {
    let set = implicit(&[(2, 10), (8, 30), (13, 60)]);
    assert_eq!(bounds_whole(&set), [Some(14), Some(24), Some(25)]);
    assert_eq!(bounds_in_chunks(&in_chunks_of(4, &set)), [Some(5), Some(13), Some(27)]);
    assert!(!jeffay(&set).is_schedulable());
    assert!(chunked(&in_chunks_of(4, &set), 1).is_schedulable());
    let small = implicit(&[(1, 2), (3, 8), (1, 9)]);
    assert_eq!(bounds_whole(&small), [Some(3), Some(5), Some(8)]);
    assert!(!jeffay(&small).is_schedulable());
}

/// (cost, period) with the cost drawn around `1 / count` of the period, so that about half the sets are schedulable.
fn task(count: u64, period_max: u64) -> impl Strategy<Value = (u64, u64)> {
    (2..=period_max, 1..=1_000u64).prop_map(move |(p, share)| ((p * share / 700 / count).clamp(1, p), p))
}

fn set(period_max: u64) -> impl Strategy<Value = Vec<(u64, u64)>> {
    (2..=6u64).prop_flat_map(move |count| prop::collection::vec(task(count, period_max), count as usize))
}

/// Sum of cost / period at most 1, on u128 fractions: beyond it the oracle's search only ends at its limit.
fn fits(tasks: &[RecurrentTask]) -> bool {
    let product: u128 = tasks.iter().map(|t| u128::from(t.period.0)).product();
    tasks.iter().map(|t| product / u128::from(t.period.0) * u128::from(t.cost.0)).sum::<u128>() <= product
}

/// Sets of 2 to 12 tasks with periods from 1 to 1000 ms in nanoseconds.
fn in_nanoseconds(draw: &mut rival::Draw) -> Vec<RecurrentTask> {
    let count = draw.between(2, 12);
    let percent = draw.between(20, 110);
    let chunk_max = if draw.between(0, 1) == 0 { u64::MAX } else { draw.between(100_000, 2_000_000) };
    let cost_max = if draw.between(0, 1) == 0 { u64::MAX } else { draw.between(300_000, 900_000) };
    let task = |_| {
        let period = draw.period(1_000_000, 1_000_000_000);
        let cost = (period / 100 * percent / count * draw.between(500, 1_500) / 1_000).clamp(1, cost_max);
        RecurrentTask {
            chunk: Nanos(cost.min(chunk_max)),
            ..RecurrentTask::whole(Nanos(cost), Nanos(period), Nanos(period))
        }
    };
    (0..count).map(task).collect()
}

/// 100,000 sets, in an hour at most:
/// `HEADWAY_CASES=100000 cargo test --release -p headway-core --test it nanoseconds`.
#[test]
fn sets_in_nanoseconds_have_the_verdict_of_the_bounds() {
    // The rival checks itself by brute force in debug builds.
    let usual = if cfg!(debug_assertions) { 60 } else { 3_000 };
    let cases: u64 = std::env::var("HEADWAY_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (mut yes, mut no) = (0, 0);
    for seed in 0..cases {
        let tasks = in_nanoseconds(&mut rival::Draw(seed));
        let whole = tasks.iter().all(|t| t.chunk == t.cost);
        let verdict = if whole { jeffay(&tasks) } else { chunked(&tasks, 1) };
        let utilisation = verdict.outcome == TestOutcome::NotSchedulable(TestViolation::Utilisation);
        let share: f64 = tasks.iter().map(|t| t.cost.0 as f64 / t.period.0 as f64).sum();
        assert_eq!(utilisation, share > 1.0, "seed {seed}: {share}");
        if !utilisation {
            let theirs = if whole { rival::whole(&tasks) } else { rival::in_chunks(&tasks) };
            assert_eq!(verdict.is_schedulable(), theirs, "seed {seed}: {tasks:?}");
            *(if theirs { &mut yes } else { &mut no }) += 1;
        }
    }
    println!("{yes} schedulable, {no} not");
    assert!(yes > cases / 5 && no > cases / 10, "{yes} schedulable, {no} not: the sets must be mixed");
}

/// The longest response of each task in one run with random costs and the rule that the earlier task wins ties.
fn simulated(tasks: &[ConcreteTask], draw: &mut rival::Draw, until: u64) -> Vec<u64> {
    let mut next: Vec<u64> = tasks.iter().map(|t| t.offset.0).collect();
    let (mut free, mut longest) = (0, vec![0; tasks.len()]);
    while free < until {
        let now = free.max(*next.iter().min().unwrap());
        let ready = (0..tasks.len()).filter(|&n| next[n] <= now);
        let first = ready.min_by_key(|&n| (next[n] + tasks[n].task.deadline.0, n)).unwrap();
        let most = tasks[first].task.cost.0;
        free = now + if draw.between(0, 2) == 0 { draw.between(0, most) } else { most };
        longest[first] = longest[first].max(free - next[first]);
        next[first] += tasks[first].task.period.0;
    }
    longest
}

#[test]
fn simulations_stay_within_the_bounds_of_known_offsets_and_those_within_the_bounds_of_any() {
    let (mut compared, mut below, mut attained) = (0, 0, 0);
    for seed in 0..1_500 {
        let draw = &mut rival::Draw(seed);
        let count = draw.between(2, 5);
        let one = |_| {
            let period = [4, 6, 8, 12, 24][draw.between(0, 4) as usize];
            let cost = draw.between(1, (2 * period / count).min(period));
            ConcreteTask::at(
                Nanos(draw.between(0, period)),
                RecurrentTask::whole(Nanos(cost), Nanos(period), Nanos(period)),
            )
        };
        let tasks: Vec<ConcreteTask> = (0..count).map(one).collect();
        let known = concrete(&tasks, JobCosts::UpToWorst, Ties::ByPosition);
        if !known.verdict.is_schedulable() {
            continue;
        }
        let plain: Vec<RecurrentTask> = tasks.iter().map(|t| t.task).collect();
        let any = bounds_whole(&plain);
        let mut longest = vec![0; tasks.len()];
        for _ in 0..20 {
            let run = simulated(&tasks, draw, 24 * 20);
            longest = longest.iter().zip(run).map(|(&a, b)| a.max(b)).collect();
        }
        for ((&run, bound), any) in longest.iter().zip(&known.bounds).zip(any) {
            assert!(run <= bound.0 && any.is_none_or(|any| bound.0 <= any), "seed {seed}: {tasks:?}");
            compared += 1;
            below += u32::from(any.is_none_or(|any| bound.0 < any));
            attained += u32::from(run == bound.0);
        }
    }
    assert!(compared > 1_000 && below > 500 && attained > 500, "{compared}, {below} below, {attained} attained");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn whole_jobs_pass_exactly_if_all_bounds_meet_their_deadlines(set in set(60)) {
        let tasks = implicit(&set);
        prop_assert!(agrees(&tasks, &jeffay(&tasks), bounds_whole));
    }

    #[test]
    fn whole_jobs_with_any_deadline_pass_exactly_if_all_bounds_meet_it(
        set in set(40),
        parts in prop::collection::vec(50..150u64, 6),
    ) {
        let mut tasks = implicit(&set);
        for (task, percent) in tasks.iter_mut().zip(parts) {
            task.deadline = Nanos((task.period.0 * percent / 100).max(task.cost.0));
        }
        prop_assert!(agrees(&tasks, &chunked(&tasks, 1), bounds_whole));
    }

    #[test]
    fn chunks_pass_exactly_if_all_bounds_meet_their_deadlines(
        set in set(60),
        chunks in prop::collection::vec(1..12u64, 6),
        parts in prop::collection::vec(70..110u64, 6),
    ) {
        let mut tasks = implicit(&set);
        for ((task, chunk), percent) in tasks.iter_mut().zip(chunks).zip(parts) {
            task.chunk = task.cost.min(Nanos(chunk));
            task.deadline = Nanos((task.period.0 * percent / 100).max(task.cost.0));
        }
        prop_assert!(agrees(&tasks, &chunked(&tasks, 1), bounds_in_chunks));
    }
}
