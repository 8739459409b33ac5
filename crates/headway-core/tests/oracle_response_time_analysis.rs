//! Our tests against the response-time bounds of the crate `response-time-analysis` (MPI-SWS, analyses verified in Coq):
//! a set is schedulable exactly if every bound is at most its deadline. Integer time; blocking is the longest piece less 1.

use headway_core::schedulability::{Outcome, Task, Verdict, Violation, chunked, jeffay};
use headway_core::units::Nanos;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use response_time_analysis::arrival::Sporadic;
use response_time_analysis::edf::{fully_nonpreemptive as whole, limited_preemptive as pieces};
use response_time_analysis::time::{Duration, Service};
use response_time_analysis::{demand, wcet};

/// Where the searches for a bound end.
const LIMIT: u64 = 1_000_000;
const CASES: u32 = 3_000;

fn arrivals(tasks: &[Task]) -> Vec<Sporadic> {
    tasks.iter().map(|t| Sporadic::new_zero_jitter(Duration::from(t.period.0))).collect()
}

fn cost(task: &Task) -> wcet::Scalar {
    wcet::Scalar::new(Service::from(task.cost.0))
}

/// Response-time bounds under NP-EDF; `None` where the search finds none.
fn bounds_whole(tasks: &[Task]) -> Vec<Option<u64>> {
    let arrivals = arrivals(tasks);
    let of = |n: usize| whole::Task {
        wcet: cost(&tasks[n]),
        arrivals: &arrivals[n],
        deadline: Duration::from(tasks[n].deadline.0),
    };
    let bound = |n: usize| {
        let others: Vec<_> = (0..tasks.len()).filter(|&m| m != n).map(of).collect();
        whole::dedicated_uniproc_rta(&of(n), &others, Duration::from(LIMIT)).ok().map(u64::from)
    };
    (0..tasks.len()).map(bound).collect()
}

/// The same with jobs cut into chunks, the last one the rest.
fn bounds_in_chunks(tasks: &[Task]) -> Vec<Option<u64>> {
    let arrivals = arrivals(tasks);
    let demands: Vec<_> = tasks.iter().zip(&arrivals).map(|(t, a)| demand::RBF::new(a, cost(t))).collect();
    let bound = |n: usize| {
        let task = &tasks[n];
        let last = (task.cost.0 - 1) % task.chunk.0 + 1;
        let under_analysis = pieces::TaskUnderAnalysis {
            wcet: cost(task),
            arrivals: &arrivals[n],
            deadline: Duration::from(task.deadline.0),
            last_np_segment: Service::from(last),
        };
        let other = |m: usize| pieces::InterferingTask {
            rbf: &demands[m],
            deadline: Duration::from(tasks[m].deadline.0),
            max_np_segment: Service::from(tasks[m].chunk.0),
        };
        let others: Vec<_> = (0..tasks.len()).filter(|&m| m != n).map(other).collect();
        pieces::dedicated_uniproc_rta(&under_analysis, &others, Duration::from(LIMIT)).ok().map(u64::from)
    };
    (0..tasks.len()).map(bound).collect()
}

fn agrees(tasks: &[Task], verdict: &Verdict, bounds: fn(&[Task]) -> Vec<Option<u64>>) -> bool {
    if !fits(tasks) {
        return verdict.outcome == Outcome::NotSchedulable(Violation::Utilisation);
    }
    let all_met = tasks.iter().zip(bounds(tasks)).all(|(t, b)| b.is_some_and(|b| b <= t.deadline.0));
    verdict.is_schedulable() == all_met
}

fn implicit(tasks: &[(u64, u64)]) -> Vec<Task> {
    tasks.iter().map(|&(c, p)| Task::whole(Nanos(c), Nanos(p), Nanos(p))).collect()
}

fn in_chunks_of(chunk: u64, tasks: &[Task]) -> Vec<Task> {
    tasks.iter().map(|t| Task { chunk: t.cost.min(Nanos(chunk)), ..*t }).collect()
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
fn fits(tasks: &[Task]) -> bool {
    let product: u128 = tasks.iter().map(|t| u128::from(t.period.0)).product();
    tasks.iter().map(|t| product / u128::from(t.period.0) * u128::from(t.cost.0)).sum::<u128>() <= product
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
