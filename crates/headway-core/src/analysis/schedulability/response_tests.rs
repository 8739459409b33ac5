//! Bounds on responses: against all offsets of small sets, and the test for any offsets.

use super::tests::cases;
use super::*;
use crate::interconnect::tests::fixtures::Draw;

const MUCH: u64 = 1 << 40;

/// A small set with whole jobs, or with jobs in chunks where `chunks`.
fn small(draw: &mut Draw, count: u64, chunks: bool) -> Vec<RecurrentTask> {
    let one = |draw: &mut Draw| {
        let period = draw.pick(&[4, 5, 6, 8, 10, 12]);
        let cost = draw.between(1, (3 * period / (2 * count)).max(1));
        let deadline = if draw.chance(50) { period } else { draw.between(cost, period + period / 2) };
        let chunk = if chunks { draw.between(1, cost) } else { cost };
        RecurrentTask { cost: Nanos(cost), period: Nanos(period), deadline: Nanos(deadline), chunk: Nanos(chunk) }
    };
    (0..count).map(|_| one(draw)).collect()
}

/// The longest response of each task over all offsets; `None` if some offsets let a job be late.
fn over_all_offsets(tasks: &[RecurrentTask]) -> Option<Vec<u64>> {
    let mut longest = vec![0; tasks.len()];
    let combinations: u64 = tasks.iter().map(|task| task.period.0).product();
    for mut number in 0..combinations {
        let at = |task: &RecurrentTask| {
            let offset = number % task.period.0;
            number /= task.period.0;
            ConcreteTask::at(Nanos(offset), *task)
        };
        let placed: Vec<ConcreteTask> = tasks.iter().map(at).collect();
        let found = concrete(&placed, JobCosts::UpToWorst, Ties::Any);
        if !found.verdict.is_schedulable() {
            return None;
        }
        longest.iter_mut().zip(found.bounds).for_each(|(longest, bound)| *longest = bound.0.max(*longest));
    }
    Some(longest)
}

#[test]
fn bounds_are_the_longest_responses_over_all_offsets() {
    let mut draw = Draw(31);
    let (mut equal, mut longer, mut late) = (0, 0, 0);
    for case in 0..cases(60) {
        let chunks = case % 3 == 0;
        let count = draw.between(1, 3);
        let tasks = small(&mut draw, count, chunks);
        let found = responses(&tasks, &mut { MUCH });
        match (over_all_offsets(&tasks), found) {
            (None, found) => {
                late += 1;
                let above = |(bound, task): (&Nanos, &RecurrentTask)| *bound > task.deadline;
                assert!(found.is_none_or(|found| found.iter().zip(&tasks).any(above)), "{tasks:?}");
            }
            (Some(longest), Some(bounds)) => {
                for ((&longest, &bound), task) in longest.iter().zip(&bounds).zip(&tasks) {
                    let alike = tasks.iter().filter(|of| (of.period, of.deadline) == (task.period, task.deadline));
                    assert!(longest <= bound.0, "{tasks:?}: {longest} {bound}");
                    assert!(longest == bound.0 || chunks || alike.count() > 1, "{tasks:?}: {longest} {bound}");
                    *(if longest == bound.0 { &mut equal } else { &mut longer }) += 1;
                }
            }
            (Some(_), None) => assert_eq!(Utilisation::of(&tasks).ppm, PPM, "{tasks:?}"),
        }
    }
    println!("{equal} bounds are reached, {longer} are not; {late} sets are late");
    assert!(equal > 10 * longer && late > 5);
}

#[test]
fn bounds_are_within_the_deadlines_just_where_the_exact_test_accepts() {
    let mut draw = Draw(32);
    let mut seen = [0, 0];
    for _ in 0..cases(20_000) {
        let count = draw.between(2, 7);
        let mut tasks = small(&mut draw, count, false);
        if draw.chance(25) {
            tasks.push(RecurrentTask::bulk(Nanos(draw.between(1, 3))));
        }
        let verdict = chunked(&tasks, 1);
        let Some(bounds) = responses(&tasks, &mut { MUCH }) else {
            assert!(verdict.utilisation_ppm >= PPM, "{tasks:?}");
            continue;
        };
        let within = bounds.iter().zip(&tasks).all(|(bound, task)| *bound <= task.deadline);
        assert_eq!(within, verdict.is_schedulable(), "{tasks:?}: {bounds:?}");
        seen[usize::from(within)] += 1;
    }
    println!("{seen:?} sets refused and accepted");
    assert!(seen.iter().all(|seen| *seen > 100));
}

#[test]
fn a_short_job_waits_for_the_longest_chunk_of_others() {
    let whole = [
        RecurrentTask::whole(Nanos(2), Nanos(10), Nanos(10)),
        RecurrentTask::whole(Nanos(50), Nanos(1_000), Nanos(1_000)),
    ];
    assert_eq!(responses(&whole, &mut { MUCH }).unwrap()[0], Nanos(51));
    let cut = [whole[0], RecurrentTask { chunk: Nanos(5), ..whole[1] }];
    // The long one: 50, and two for each of the seven short jobs until its last instant.
    assert_eq!(responses(&cut, &mut { MUCH }).unwrap(), [Nanos(6), Nanos(64)]);
    let bulk = [whole[0], RecurrentTask::bulk(Nanos(7))];
    assert_eq!(responses(&bulk, &mut { MUCH }).unwrap(), [Nanos(8), Nanos::MAX]);
}

#[test]
fn many_tasks_of_few_kinds_are_bounded_and_too_many_kinds_are_not_computed() {
    let set = |kinds: u64| -> Vec<RecurrentTask> {
        let period = |at: u64| Nanos(1_000_000 + 7_000 * (at % kinds));
        (0..10_000).map(|at| RecurrentTask::whole(Nanos(90), period(at), period(at))).collect()
    };
    let mut left = 1_000_000;
    // It comes 49 x 7 us after one job of all, which take 900 us: any later, and it would be due last.
    assert_eq!(responses(&set(50), &mut left).unwrap()[0], Nanos(900_000 - 343_000));
    assert_eq!(responses(&set(10_000), &mut left), None);
    assert_eq!(responses(&[RecurrentTask::whole(Nanos(3), Nanos(2), Nanos(2))], &mut left), None);
}

#[test]
fn numbers_at_the_edge_of_their_types_do_not_make_bounds_panic() {
    let m = u64::MAX - 1;
    for (c, p, d) in [(m, m, m), (1, m, m), (m, m, 1), (1, 1, m), (0, 1, 0), (0, m, m), (5, 0, 5)] {
        let task = RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(d));
        for others in [
            vec![],
            vec![task],
            vec![RecurrentTask::whole(Nanos(1), Nanos(1 << 20), Nanos(m))],
            vec![RecurrentTask::bulk(Nanos(m))],
        ] {
            let tasks: Vec<RecurrentTask> = others.into_iter().chain([task]).collect();
            let _ = responses(&tasks, &mut 100_000);
        }
    }
}

#[test]
fn jobs_that_are_released_late_come_nearer_to_each_other_than_their_period() {
    // Released 3 late and then in time, jobs of the first task are 7 apart: the second one comes before the other task has ended.
    let tasks = [
        RecurrentTask::whole(Nanos(2), Nanos(10), Nanos(7)),
        RecurrentTask { chunk: Nanos(1), ..RecurrentTask::whole(Nanos(6), Nanos(100), Nanos(97)) },
    ];
    assert_eq!(responses(&tasks, &mut { MUCH }).unwrap()[1], Nanos(8));
    assert_eq!(response_with_jitter(&tasks, 1, Nanos(2), &mut { MUCH }).unwrap(), Nanos(8));
    assert_eq!(response_with_jitter(&tasks, 1, Nanos(3), &mut { MUCH }).unwrap(), Nanos(10));
}
