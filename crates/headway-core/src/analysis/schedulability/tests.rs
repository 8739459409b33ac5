//! Against goldens, the literal form of the theorem, exhaustive simulation and random cases.

use proptest::prelude::*;

use super::*;
use crate::interconnect::tests::fixtures::Draw;
use crate::units::{Bytes, Rate};

/// Tasks with whole jobs and deadline = period, from (cost, period).
fn implicit(tasks: &[(u64, u64)]) -> Vec<RecurrentTask> {
    tasks.iter().map(|&(c, p)| RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(p))).collect()
}

/// (task, interval, demand) of a demand violation.
fn violation(verdict: &TestVerdict) -> (Option<usize>, u64, u64) {
    match &verdict.outcome {
        TestOutcome::NotSchedulable(TestViolation::Demand { task, interval, demand, blocking, contributions }) => {
            let sum = contributions.iter().map(|c| c.demand.0).sum::<u64>() + blocking.0;
            assert_eq!(sum, demand.0, "the parts make up the demand");
            (*task, interval.0, demand.0)
        }
        other => panic!("no demand violation but {other:?}"),
    }
}

/// Jeffay's conditions, word for word: a second opinion, slow.
///
/// (1) sum of c/p at most 1, and (2) for every i > 1 and every integer L with `p_1 < L < p_i`:
/// `L >= c_i + sum over j < i of floor((L - 1) / p_j) c_j`, with `p_1 <= ... <= p_n`. Tasks of cost zero are left out: the
/// theorem is about positive costs. The violation reported is the one of the least L; of those the one with the largest
/// demand, then the first i. Undecided when `p_n` times the number of tasks is above [`LIMITS`]`.steps_max`.
fn jeffay_reference(tasks: &[RecurrentTask]) -> TestVerdict {
    let verdict = |utilisation_ppm, outcome| TestVerdict {
        outcome,
        utilisation_ppm,
        strength: TestStrength::Exact,
        model: Model::NonPreemptive,
    };
    if let Some(reason) = not_implicit(tasks) {
        return verdict(0, TestOutcome::Undecided(reason));
    }
    let utilisation = Utilisation::of(tasks);
    let ppm = utilisation.ppm;
    if utilisation.is_above_one() {
        return verdict(ppm, TestOutcome::NotSchedulable(TestViolation::Utilisation));
    }
    let mut sorted: Vec<(usize, u64, u64)> =
        (0..).zip(tasks).filter(|(_, t)| t.cost.0 > 0).map(|(n, t)| (n, t.cost.0, t.period.0)).collect();
    sorted.sort_by_key(|&(n, _, p)| (p, n));
    let longest = sorted.last().map_or(0, |t| t.2);
    if longest.saturating_mul((sorted.len() as u64).pow(2)) > LIMITS.steps_max {
        return verdict(ppm, TestOutcome::Undecided(UndecidedReason::Steps { max: LIMITS.steps_max }));
    }
    let mut first: Option<(u64, u64, usize)> = None;
    for i in 1..sorted.len() {
        for l in sorted[0].2 + 1..sorted[i].2 {
            let demand = sorted[i].1 + sorted[..i].iter().map(|&(_, c, p)| (l - 1) / p * c).sum::<u64>();
            if l < demand && first.is_none_or(|(least, most, _)| l < least || l == least && demand > most) {
                first = Some((l, demand, i));
            }
        }
    }
    let Some((l, demand, i)) = first else { return verdict(ppm, TestOutcome::Schedulable) };
    let mut contributions: Vec<_> = sorted[..i]
        .iter()
        .map(|&(task, c, p)| Contribution { task, jobs: (l - 1) / p, demand: Nanos((l - 1) / p * c) })
        .filter(|c| c.jobs > 0)
        .collect();
    contributions.sort_by_key(|c| c.task);
    let (task, blocking) = (Some(sorted[i].0), Nanos(sorted[i].1));
    let (interval, demand) = (Nanos(l), Nanos(demand));
    verdict(ppm, TestOutcome::NotSchedulable(TestViolation::Demand { task, interval, demand, blocking, contributions }))
}

#[test]
fn jeffay_checks_every_task_and_not_only_the_last() {
    let tasks = implicit(&[(1, 2), (3, 8), (1, 9)]);
    for verdict in [jeffay(&tasks), jeffay_reference(&tasks)] {
        assert_eq!(violation(&verdict), (Some(1), 3, 4));
        assert_eq!(verdict.utilisation_ppm, 986_112);
        assert_eq!((verdict.strength, verdict.model), (TestStrength::Exact, Model::NonPreemptive));
    }
}

#[test]
fn combining_can_lose_schedulability_although_utilisation_falls() {
    assert!(jeffay(&implicit(&[(1, 3), (3, 10), (3, 10)])).is_schedulable());
    assert_eq!(violation(&jeffay(&implicit(&[(1, 3), (4, 10)]))), (Some(1), 4, 5));
}

#[test]
fn goldens_whole_and_in_chunks() {
    let set = [(2, 10), (8, 30), (13, 60)];
    assert_eq!(violation(&jeffay(&implicit(&set))), (Some(2), 11, 15));
    let set = set.map(|(c, p)| (c * 1000, p * 1000));
    assert_eq!(violation(&jeffay(&implicit(&set))), (Some(2), 10_001, 15_000));
    let chunks = set.map(|(c, p)| RecurrentTask {
        chunk: Nanos(c.min(4_000)),
        ..RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(p))
    });
    let verdict = chunked(&chunks, 1);
    assert!(verdict.is_schedulable());
    assert_eq!((verdict.strength, verdict.model), (TestStrength::Exact, Model::Chunks { in_flight: 1 }));
    assert!(chunked(&chunks, 2).is_schedulable(), "4 + 4 - 1 + 2 = 9 of 10");
    let three = chunked(&chunks, 3);
    assert_eq!((violation(&three), three.strength), ((Some(1), 10_000, 13_999), TestStrength::Sufficient));
}

#[test]
fn sets_that_pass_with_offsets_and_exact_costs_fail_as_sporadic_ones() {
    for set in [[(1, 3), (2, 6), (4, 12)], [(4, 10), (1, 6), (1, 3)], [(1, 3), (4, 8), (2, 12)]] {
        assert!(!jeffay(&implicit(&set)).is_schedulable(), "{set:?}");
    }
}

#[test]
fn deadlines_are_met_at_the_last_instant() {
    // 10 in D = 12 behind 3 - 1 of blocking just fits; 4 - 1 does not.
    let tight = |chunk| {
        let urgent = RecurrentTask::whole(Nanos(10), Nanos(100), Nanos(12));
        chunked(
            &[urgent, RecurrentTask { chunk: Nanos(chunk), ..RecurrentTask::whole(Nanos(20), Nanos(100), Nanos(100)) }],
            1,
        )
    };
    assert!(tight(3).is_schedulable());
    assert_eq!(violation(&tight(4)), (Some(1), 12, 13));
}

#[test]
fn a_bulk_flow_asks_for_nothing_but_blocks_at_every_length() {
    let tasks = implicit(&[(1, 4), (2, 8)]);
    let with = |chunk| chunked(&[tasks[0], tasks[1], RecurrentTask::bulk(Nanos(chunk))], 1);
    assert!(with(4).is_schedulable());
    assert_eq!(with(4).utilisation_ppm, 500_000);
    assert_eq!(violation(&with(5)), (Some(2), 4, 5));
    // At utilisation 1 nothing is left for it.
    let full = [RecurrentTask::whole(Nanos(2), Nanos(4), Nanos(4)), RecurrentTask::whole(Nanos(4), Nanos(8), Nanos(8))];
    let bulk = |chunk| {
        chunked(
            &[
                RecurrentTask { chunk: Nanos(1), ..full[0] },
                RecurrentTask { chunk: Nanos(1), ..full[1] },
                RecurrentTask::bulk(Nanos(chunk)),
            ],
            1,
        )
    };
    assert!(bulk(1).is_schedulable());
    assert_eq!(violation(&bulk(2)), (Some(2), 8, 9));
}

#[test]
fn full_utilisation_is_decided_by_the_hyperperiod_or_not_at_all() {
    let of = |tasks: &[(u64, u64, u64)]| -> TestVerdict {
        let one = |&(c, p, d)| RecurrentTask { chunk: Nanos(1), ..RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(d)) };
        chunked(&tasks.iter().map(one).collect::<Vec<_>>(), 1)
    };
    assert!(of(&[(1, 2, 1), (2, 4, 4)]).is_schedulable());
    assert_eq!(violation(&of(&[(1, 2, 1), (3, 6, 5)])), (None, 5, 6));
    let long = 1 << 41;
    assert!(of(&[(long / 2, long, long - 1), (1, 2, 2)]).is_schedulable());
    let prime = (1 << 61) - 1;
    let verdict = of(&[(prime, 2 * prime, 2 * prime - 1), (3, 6, 6)]);
    assert_eq!(verdict.utilisation_ppm, 1_000_000);
    let max = LIMITS.hyperperiod_max;
    assert_eq!(verdict.outcome, TestOutcome::Undecided(UndecidedReason::Hyperperiod { max }));
    // One task leaves a billionth, another takes it: the walk from the hyperperiod down would take too long.
    let (short, times) = (1_000_000_000, 1 << 26);
    let verdict = of(&[(short - 1, short, short - 1), (times, short * times, short * times)]);
    assert_eq!(verdict.outcome, TestOutcome::Undecided(UndecidedReason::Steps { max: LIMITS.steps_max }));
}

#[test]
fn tests_that_do_not_apply_are_undecided() {
    let constrained = [RecurrentTask::whole(Nanos(1), Nanos(4), Nanos(3))];
    assert_eq!(jeffay(&constrained).outcome, TestOutcome::Undecided(UndecidedReason::DeadlineNotPeriod { task: 0 }));
    let no_period = [RecurrentTask::whole(Nanos(1), Nanos(0), Nanos(3))];
    assert_eq!(chunked(&no_period, 1).outcome, TestOutcome::Undecided(UndecidedReason::PeriodZero { task: 0 }));
    assert!(chunked(&[], 1).is_schedulable() && jeffay(&[]).is_schedulable());
    assert!(chunked(&[RecurrentTask::bulk(Nanos(7))], 4).is_schedulable());
    let impossible = [RecurrentTask::whole(Nanos(1), Nanos(9), Nanos(0))];
    assert_eq!(violation(&chunked(&impossible, 1)), (None, 0, 1));
    let free = [RecurrentTask::whole(Nanos(0), Nanos(9), Nanos(0)), RecurrentTask::whole(Nanos(9), Nanos(9), Nanos(9))];
    assert!(chunked(&free, 1).is_schedulable());
}

#[test]
fn numbers_at_the_edge_of_their_types_do_not_panic() {
    let m = u64::MAX - 1;
    let sets = [
        vec![(m, m, m, m), (m, m, m, m)],
        vec![(1, m, m, 1), (m - 1, m, m, m)],
        vec![(1, m, 1, 1), (m / 2, m, m, m), (5, m, u64::MAX, m)],
        vec![(1, 1, m, 1)],
        vec![(1, 2, m, m), (1, 2, 1, 1)],
    ];
    for set in sets {
        let tasks: Vec<_> = set
            .into_iter()
            .map(|(c, p, d, q)| RecurrentTask { cost: Nanos(c), period: Nanos(p), deadline: Nanos(d), chunk: Nanos(q) })
            .collect();
        for in_flight in [0, 1, u32::MAX] {
            assert!(chunked(&tasks, in_flight).utilisation_ppm > 0);
        }
        assert!(jeffay(&tasks).strength == TestStrength::Exact);
        assert!(margin_ppm(&tasks) <= MARGIN_PPM_MAX);
    }
    let flow =
        |x, p, d| ChunkFlow { bytes: Bytes(x), setup: Nanos(m), rate: Rate(1), period: Nanos(p), deadline: Nanos(d) };
    assert!(flow_chunk_sizes(&[flow(m, m, m), flow(u64::MAX, m, u64::MAX)], Bytes(m)).is_err());
}

#[test]
fn the_margin_is_the_largest_factor_that_passes() {
    assert_eq!(margin_ppm(&implicit(&[(1_000_000, 4_000_000)])), 4_000_000);
    assert_eq!(margin_ppm(&implicit(&[(1, 1 << 40)])), MARGIN_PPM_MAX);
    // ceil(2000 f) + ceil(13000 f) <= 10001 holds up to 0.666692.
    let tasks = implicit(&[(2_000, 10_000), (13_000, 60_000)]);
    let margin = margin_ppm(&tasks);
    assert_eq!(margin, 666_600);
    let scaled = |f: u64| -> Vec<RecurrentTask> {
        let by = |n: Nanos| Nanos((n.0 * f).div_ceil(PPM));
        tasks.iter().map(|t| RecurrentTask { cost: by(t.cost), chunk: by(t.chunk), ..*t }).collect()
    };
    assert!(jeffay(&scaled(margin)).is_schedulable() && !jeffay(&scaled(margin + 100)).is_schedulable());
}

#[test]
fn large_sets_are_decided_quickly() {
    let mut draw = Draw(5);
    let tasks: Vec<_> = (0..2_000)
        .map(|_| {
            let period = draw.between(1_000_000, 200_000_000);
            (period / 2_200, period)
        })
        .collect();
    assert!(jeffay(&implicit(&tasks)).is_schedulable());
}

/// A small set, (cost, period): at least 2 tasks, periods to 24, utilisation around 1/2 and at times above 1.
/// How many random cases: `HEADWAY_CASES=100000` looks at that many instead.
pub(super) fn cases(default: u64) -> u64 {
    std::env::var("HEADWAY_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn small_set(draw: &mut Draw, most: u64) -> Vec<(u64, u64)> {
    let count = draw.between(2, most);
    (0..count)
        .map(|_| {
            let period = draw.between(2, 24);
            (draw.between(1, (2 * period / count).max(1)), period)
        })
        .collect()
}

/// A small set with deadlines around periods, chunks, and at times a bulk flow.
fn small_chunk_set(draw: &mut Draw, most: u64, periods: &[u64]) -> Vec<RecurrentTask> {
    let count = draw.between(2, most);
    let one = |draw: &mut Draw| {
        let period = draw.pick(periods);
        let cost = draw.between(1, (3 * period / (2 * count)).max(1));
        let deadline = if draw.chance(50) { period } else { draw.between(cost, period + period / 2) };
        let chunk = draw.between(1, cost);
        RecurrentTask { cost: Nanos(cost), period: Nanos(period), deadline: Nanos(deadline), chunk: Nanos(chunk) }
    };
    let mut tasks: Vec<_> = (0..count).map(|_| one(draw)).collect();
    if draw.chance(25) {
        tasks.push(RecurrentTask::bulk(Nanos(draw.between(1, 3))));
    }
    tasks
}

fn least_common_multiple(tasks: &[RecurrentTask]) -> u64 {
    let asking = tasks.iter().filter(|t| !t.is_bulk());
    asking.fold(1, |common, t| common / exact::gcd(common, t.period.0) * t.period.0)
}

/// The condition word for word: the first t up to the last deadline plus a hyperperiod that fails.
fn chunked_by_scanning(tasks: &[RecurrentTask], in_flight: u64) -> Option<u64> {
    let asking = || tasks.iter().filter(|t| !t.is_bulk() && t.cost.0 > 0);
    let last = asking().map(|t| t.deadline.0).max().unwrap_or(0) + least_common_multiple(tasks);
    let longest = tasks.iter().map(|t| t.chunk.0).max().unwrap_or(0);
    (0..=last).find(|&t| {
        let due = asking().filter(|task| task.deadline.0 <= t);
        let demand: u64 = due.map(|task| ((t - task.deadline.0) / task.period.0 + 1) * task.cost.0).sum();
        let later = tasks.iter().filter(|task| task.deadline.0 > t).map(|task| task.chunk.0).max();
        let blocking = later.map_or(0, |q| (in_flight - 1) * longest + q - 1);
        demand > 0 && demand + blocking > t
    })
}

/// Runs non-preemptive EDF among chunks, `in_flight` of them handed to the engine at a time, with these offsets for
/// `until` nanoseconds; says whether all jobs due by then meet their deadlines.
fn meets_deadlines(tasks: &[RecurrentTask], offsets: &[u64], in_flight: usize, until: u64) -> bool {
    // (deadline, task, cost left); a bulk flow always has another job.
    let mut jobs: Vec<(u64, usize, u64)> = Vec::new();
    let mut ends = std::collections::VecDeque::new();
    let mut free = 0u64;
    for now in 0..until {
        for (n, task) in tasks.iter().enumerate().filter(|(_, t)| !t.is_bulk()) {
            if now >= offsets[n] && (now - offsets[n]).is_multiple_of(task.period.0) {
                jobs.push((now + task.deadline.0, n, task.cost.0));
            }
        }
        while ends.front().is_some_and(|&end| end <= now) {
            ends.pop_front();
        }
        while ends.len() < in_flight {
            let next = (0..jobs.len()).min_by_key(|&j| (jobs[j].0, jobs[j].1));
            let bulk = tasks.iter().zip(offsets).find(|(t, offset)| t.is_bulk() && **offset <= now);
            let length = match (next, bulk) {
                (Some(j), _) => jobs[j].2.min(tasks[jobs[j].1].chunk.0),
                (None, Some((flow, _))) => flow.chunk.0,
                (None, None) => break,
            };
            free = free.max(now) + length;
            ends.push_back(free);
            if let Some(j) = next {
                jobs[j].2 -= length;
                if jobs[j].2 == 0 {
                    if free > jobs[j].0 {
                        return false;
                    }
                    jobs.swap_remove(j);
                }
            }
        }
    }
    jobs.iter().all(|job| job.0 > until)
}

/// Whether some offsets below the periods make a job miss.
fn some_offsets_miss(tasks: &[RecurrentTask], in_flight: usize) -> bool {
    let ranges: Vec<u64> = tasks.iter().map(|t| if t.is_bulk() { 4 } else { t.period.0 }).collect();
    let until = 3 * least_common_multiple(tasks) + 60;
    let combinations: u64 = ranges.iter().product();
    (0..combinations).any(|mut number| {
        let one = |range: &u64| {
            let offset = number % range;
            number /= range;
            offset
        };
        let offsets: Vec<u64> = ranges.iter().map(one).collect();
        !meets_deadlines(tasks, &offsets, in_flight, until)
    })
}

#[test]
fn the_fast_form_gives_the_verdict_of_the_reference() {
    let mut draw = Draw(41);
    let mut yes = 0;
    let count = cases(25_000);
    for _ in 0..count {
        let tasks = implicit(&small_set(&mut draw, 5));
        let verdict = jeffay(&tasks);
        assert_eq!(verdict, jeffay_reference(&tasks), "{tasks:?}");
        yes += u64::from(verdict.is_schedulable());
    }
    assert!((count / 5..count / 5 * 4).contains(&yes), "{yes} schedulable: the sets must be mixed");
}

#[test]
fn the_chunk_test_gives_the_verdict_of_scanning() {
    let mut draw = Draw(42);
    let mut yes = 0;
    let count = cases(20_000);
    for _ in 0..count {
        let tasks = small_chunk_set(&mut draw, 4, &[2, 3, 4, 5, 6, 8, 10, 12, 15]);
        let verdict = chunked(&tasks, 1);
        if verdict.outcome == TestOutcome::NotSchedulable(TestViolation::Utilisation) {
            continue;
        }
        let first = chunked_by_scanning(&tasks, 1);
        let found = if verdict.is_schedulable() { None } else { Some(violation(&verdict).1) };
        assert_eq!(found, first, "{tasks:?}");
        yes += u64::from(verdict.is_schedulable());
        // With more in flight the walk may stop at the end of the busy period, where scanning goes on.
        for in_flight in [2, 3] {
            match chunked_by_scanning(&tasks, in_flight) {
                None => assert!(chunked(&tasks, in_flight as u32).is_schedulable(), "{tasks:?}"),
                Some(first) => {
                    let verdict = chunked(&tasks, in_flight as u32);
                    assert!(verdict.is_schedulable() || violation(&verdict).1 == first, "{tasks:?}");
                }
            }
        }
    }
    assert!((count / 7..count / 4 * 3).contains(&yes), "{yes} schedulable: the sets must be mixed");
}

#[test]
fn whole_jobs_with_implicit_deadlines_are_a_case_of_chunks() {
    let mut draw = Draw(43);
    for _ in 0..cases(5_000) {
        let tasks = implicit(&small_set(&mut draw, 5));
        assert_eq!(chunked(&tasks, 1).is_schedulable(), jeffay(&tasks).is_schedulable(), "{tasks:?}");
    }
}

#[test]
fn jeffay_is_exact_against_simulation_of_all_offsets() {
    let mut draw = Draw(44);
    let mut yes = 0;
    let sets = cases(400);
    for _ in 0..sets {
        let count = draw.between(2, 3);
        let set: Vec<_> = (0..count)
            .map(|_| {
                let period = draw.pick(&[2, 3, 4, 5, 6, 8, 10, 12]);
                (draw.between(1, (2 * period / count).min(period)), period)
            })
            .collect();
        let tasks = implicit(&set);
        let verdict = jeffay(&tasks);
        assert_eq!(verdict.is_schedulable(), !some_offsets_miss(&tasks, 1), "{set:?}");
        yes += u64::from(verdict.is_schedulable());
    }
    assert!((sets / 5..sets / 5 * 4).contains(&yes), "{yes} schedulable: the sets must be mixed");
}

#[test]
fn one_chunk_in_flight_is_exact_against_simulation_of_all_offsets() {
    let mut draw = Draw(45);
    let mut yes = 0;
    let sets = cases(600);
    for _ in 0..sets {
        let tasks = small_chunk_set(&mut draw, 3, &[2, 3, 4, 5, 6, 8]);
        let verdict = chunked(&tasks, 1);
        assert_eq!(verdict.is_schedulable(), !some_offsets_miss(&tasks, 1), "{tasks:?}");
        yes += u64::from(verdict.is_schedulable());
    }
    assert!((sets / 6..sets / 6 * 5).contains(&yes), "{yes} schedulable: the sets must be mixed");
}

#[test]
fn several_chunks_in_flight_are_safe_against_simulation_of_all_offsets() {
    let mut draw = Draw(46);
    let (mut yes, mut pessimistic) = (0, 0);
    let sets = cases(600);
    for n in 0..sets {
        let tasks = small_chunk_set(&mut draw, 3, &[4, 6, 8, 12]);
        let in_flight = 2 + (n % 2) as usize;
        let verdict = chunked(&tasks, in_flight as u32);
        let misses = some_offsets_miss(&tasks, in_flight);
        assert!(!(verdict.is_schedulable() && misses), "{in_flight}: {tasks:?}");
        yes += u64::from(verdict.is_schedulable());
        pessimistic += u64::from(!verdict.is_schedulable() && !misses);
    }
    assert!(yes >= sets / 10 && pessimistic < sets / 2, "{yes} schedulable, {pessimistic} refused without need");
}

/// Streams whose copies in and out of an engine that does both take turns, in chunks: tasks, and which of them are a stream. The
/// windows are those of a deadline that is divided equally among up to three steps, of which one may be elsewhere.
fn half_duplex_set(draw: &mut Draw, percent: u64, periods: &[u64]) -> (Vec<RecurrentTask>, Vec<PhasedStream>) {
    let count = draw.between(2, 3);
    let (mut tasks, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let period = draw.pick(periods);
        let deadline = period * draw.pick(&[1, 2]);
        let steps = draw.pick(&[2, 3]);
        let window = (deadline / steps).min(period);
        let mut of_stream = Vec::new();
        for step in [0, steps - 1] {
            let cost = (period * percent / 100 / count / 2 * draw.between(60, 140) / 100).clamp(1, window);
            of_stream.push(PhasedStep { task: tasks.len(), release: Nanos(step * window) });
            tasks.push(RecurrentTask {
                chunk: Nanos(draw.between(1, cost)),
                ..RecurrentTask::whole(Nanos(cost), Nanos(period), Nanos(window))
            });
        }
        streams.push(PhasedStream { steps: of_stream });
    }
    (tasks, streams)
}

/// Whether some starts of the streams that are tried, and costs up to the worst case, make a job late.
fn some_starts_miss(tasks: &[RecurrentTask], streams: &[PhasedStream], draw: &mut Draw, tries: u64) -> bool {
    let until = 4 * least_common_multiple(tasks).min(2_000);
    (0..tries).any(|_| {
        let mut offsets = vec![0; tasks.len()];
        for stream in streams {
            let start = draw.between(0, tasks[stream.steps[0].task].period.0 - 1);
            stream.steps.iter().for_each(|step| offsets[step.task] = start + step.release.0);
        }
        let lower = draw.chance(50);
        let cost = |task: &RecurrentTask, draw: &mut Draw| match lower {
            true => Nanos(draw.between(1, task.cost.0)),
            false => task.cost,
        };
        let tried: Vec<RecurrentTask> =
            tasks.iter().map(|task| RecurrentTask { cost: cost(task, draw), ..*task }).collect();
        !meets_deadlines(&tried, &offsets, 1, until)
    })
}

#[test]
fn streams_that_pass_with_their_distances_are_safe_against_simulation_of_their_starts() {
    let mut draw = Draw(48);
    let (mut yes, mut more) = (0, 0);
    let sets = cases(1_500);
    for _ in 0..sets {
        let percent = draw.between(30, 110);
        let (tasks, streams) = half_duplex_set(&mut draw, percent, &[12, 16, 20, 24, 30]);
        let found = chunked_streams(&tasks, &streams);
        let any = chunked(&tasks, 1).is_schedulable();
        assert!(found.is_schedulable() || !any, "distances lose nothing: {tasks:?}");
        if found.is_schedulable() {
            assert!(!some_starts_miss(&tasks, &streams, &mut draw, 40), "{tasks:?} {streams:?}");
            assert!(streams_margin_ppm(&tasks, &streams) >= PPM);
        }
        yes += u64::from(found.is_schedulable());
        more += u64::from(found.is_schedulable() && !any);
    }
    assert!(yes > sets / 4 && more > sets / 20, "{yes} schedulable, {more} of them not with any offsets");
}

/// The figures: `cargo test -p headway-core --lib half_duplex -- --nocapture`.
#[test]
fn streams_on_a_half_duplex_engine_are_accepted_more_often_with_their_distances() {
    let (mut any, mut distances) = (0, 0);
    for percent in [40, 60, 80] {
        let mut draw = Draw(percent);
        let (mut feasible, mut of_any, mut of_distances) = (0, 0, 0);
        for _ in 0..cases(300) {
            let (mut tasks, streams) = half_duplex_set(&mut draw, percent, &[200, 300, 400, 600]);
            tasks.iter_mut().for_each(|task| task.chunk = task.chunk.min(Nanos(5)));
            if some_starts_miss(&tasks, &streams, &mut draw, 20) {
                continue;
            }
            feasible += 1;
            of_any += u64::from(chunked(&tasks, 1).is_schedulable());
            of_distances += u64::from(chunked_streams(&tasks, &streams).is_schedulable());
        }
        println!(
            "{percent} % utilised: of {feasible} sets that never missed, {of_any} with any offsets, {of_distances} with distances"
        );
        (any, distances) = (any + of_any, distances + of_distances);
    }
    assert!(distances * 4 > any * 5, "{any} with any offsets, {distances} with distances");
}

#[test]
fn a_stream_asks_for_the_most_that_an_interval_can_hold_of_it() {
    let steps = [(0, 3, 5), (5, 4, 5)];
    let tasks = steps.map(|(_, cost, window)| RecurrentTask {
        chunk: Nanos(1),
        ..RecurrentTask::whole(Nanos(cost), Nanos(10), Nanos(window))
    });
    let step = |(task, (release, ..)): (usize, &(u64, u64, u64))| PhasedStep { task, release: Nanos(*release) };
    let stream = PhasedStream { steps: steps.iter().enumerate().map(step).collect() };
    let demand = Demand::new(&tasks, &[stream]);
    let asked: Vec<u128> = [4, 5, 9, 10, 14, 15, 20].map(|t| demand.at(t)).to_vec();
    assert_eq!(asked, [0, 4, 4, 7, 7, 11, 14]);
    assert_eq!(demand.jobs_at(15).into_iter().collect::<Vec<_>>(), [(0, 1), (1, 2)]);
    assert!(!chunked(&tasks, 1).is_schedulable());
}

/// The largest common size that passes, by trying all of them.
fn chunk_by_scanning(flows: &[ChunkFlow], granule: u64) -> Option<u64> {
    let most = flows.iter().map(|f| f.bytes.0).max().unwrap_or(0).max(granule);
    let sizes = (1..=most / granule).map(|n| n * granule).chain([most]);
    let passes = |&size: &u64| {
        let tasks: Vec<_> = flows.iter().map(|f| f.task(Bytes(size))).collect();
        chunked(&tasks, 1).is_schedulable()
    };
    sizes.filter(passes).max()
}

/// The sizes of all choices that pass, by trying them all.
fn flow_chunks_by_scanning(flows: &[ChunkFlow], granule: u64) -> Vec<Vec<u64>> {
    let most: Vec<u64> = flows.iter().map(|f| f.bytes.0.div_ceil(granule)).collect();
    let mut passing = Vec::new();
    for mut number in 0..most.iter().product::<u64>() {
        let one = |&most: &u64| {
            let multiples = number % most + 1;
            number /= most;
            multiples * granule
        };
        let sizes: Vec<u64> = most.iter().map(one).collect();
        let tasks: Vec<_> = flows.iter().zip(&sizes).map(|(f, &size)| f.task(Bytes(size))).collect();
        if chunked(&tasks, 1).is_schedulable() {
            passing.push(sizes);
        }
    }
    passing
}

fn chunk_flows(draw: &mut Draw, periods: (u64, u64)) -> Vec<ChunkFlow> {
    let count = draw.between(2, 3);
    let setup = Nanos(draw.between(0, 3));
    let mut flows: Vec<_> = (0..count)
        .map(|_| {
            let period = draw.between(periods.0, periods.1);
            let bytes = Bytes(draw.between(1, (period * 11 / 10 / count).max(1)));
            let deadline = if draw.chance(60) { period } else { draw.between(period / 2, period) };
            let rate = Rate(draw.pick(&[1_000_000_000, 1_500_000_000]));
            ChunkFlow { bytes, setup, rate, period: Nanos(period), deadline: Nanos(deadline) }
        })
        .collect();
    if draw.chance(20) {
        flows[0].deadline = Nanos::MAX;
    }
    flows
}

#[test]
fn chunk_sizes_per_flow_are_the_largest_of_all_choices_that_pass() {
    let mut draw = Draw(49);
    let (mut cut, mut whole, mut refused, mut better) = (0, 0, 0, 0);
    for _ in 0..cases(1_200) {
        let flows = chunk_flows(&mut draw, (8, 60));
        let granule = draw.pick(&[1, 1, 4]);
        let passing = flow_chunks_by_scanning(&flows, granule);
        match flow_chunk_sizes(&flows, Bytes(granule)) {
            Ok(plan) => {
                let found: Vec<u64> = plan.bytes.iter().map(|b| b.0).collect();
                assert!(passing.contains(&found), "{found:?} {flows:?}");
                let exceeds = |other: &Vec<u64>| other.iter().zip(&found).any(|(o, f)| o > f);
                assert!(!passing.iter().any(exceeds), "{found:?} {flows:?}");
                assert_eq!(plan.verdict, chunked(&plan.tasks, 1));
                let is_whole = found.iter().zip(&flows).all(|(size, f)| *size >= f.bytes.0);
                *(if is_whole { &mut whole } else { &mut cut }) += 1;
                let tightest = flows.iter().map(|f| f.deadline).min().unwrap();
                for (size, flow) in found.iter().zip(&flows) {
                    assert!(flow.deadline > tightest || *size >= flow.bytes.0, "{found:?} {flows:?}");
                }
                match chunk_by_scanning(&flows, granule) {
                    Some(one) => assert!(found.iter().zip(&flows).all(|(&size, f)| size >= one.min(f.bytes.0))),
                    None => better += 1,
                }
            }
            Err(refusal) => {
                assert!(passing.is_empty(), "{refusal}: {flows:?}");
                assert!(!matches!(refusal, ChunkRefusal::Undecided(_)));
                assert_eq!(chunk_by_scanning(&flows, granule), None, "{flows:?}");
                refused += 1;
            }
        }
    }
    assert!(cut > 100 && whole > 100 && refused > 100, "{cut} cut, {whole} whole, {refused} refused");
    assert!(better > 5, "{better} sets pass with a size per flow only");
}

#[test]
fn only_flows_due_later_than_the_tightest_are_cut() {
    let flow = |x, p| ChunkFlow {
        bytes: Bytes(x),
        setup: Nanos(2),
        rate: Rate(1_000_000_000),
        period: Nanos(p),
        deadline: Nanos(p),
    };
    // 72 every 100 leave 28: a chunk of 29 - 1, of which 2 are set-up. One size for both would cut the first flow too.
    let flows = [flow(70, 100), flow(200, 2_000)];
    let plan = flow_chunk_sizes(&flows, Bytes(1)).unwrap();
    assert_eq!(plan.bytes, [Bytes(70), Bytes(27)]);
    assert_eq!(plan.tasks[0].cost, Nanos(72));
    assert!(chunk_by_scanning(&flows, 1).unwrap() < 27);
}

#[test]
fn a_refused_chunk_says_whether_the_load_or_the_blocking_is_too_much() {
    let flow = |x, p, d| ChunkFlow {
        bytes: Bytes(x),
        setup: Nanos(5),
        rate: Rate(1_000_000_000),
        period: Nanos(p),
        deadline: Nanos(d),
    };
    let too_much = flow_chunk_sizes(&[flow(60, 100, 100), flow(60, 100, 100)], Bytes(1)).unwrap_err();
    assert!(matches!(too_much, ChunkRefusal::Overload { bytes: Bytes(60), .. }), "{too_much:?}");
    let blocked = flow_chunk_sizes(&[flow(5, 100, 10), flow(60, 1_000, 1_000)], Bytes(8)).unwrap_err();
    assert!(matches!(blocked, ChunkRefusal::Blocking { bytes: Bytes(8), .. }), "{blocked:?}");
}

#[test]
fn smaller_chunks_admit_flows_that_whole_copies_would_block() {
    // Ten flows at U = 0.9 over one 55.5 GB/s engine: whole copies block the shortest deadline.
    let mut draw = Draw(48);
    let mut flows = Vec::new();
    for _ in 0..10 {
        let period = draw.pick(&[1, 2, 5, 10, 20, 50, 100]) * 1_000_000;
        let bytes = Bytes(period * 555 / 10 * 9 / 100);
        let (setup, rate) = (Nanos(2_400), Rate(55_500_000_000));
        flows.push(ChunkFlow { bytes, setup, rate, period: Nanos(period), deadline: Nanos(period) });
    }
    let whole: Vec<_> = flows.iter().map(|f| f.task(Bytes(u64::MAX))).collect();
    assert!(!chunked(&whole, 1).is_schedulable());
    let plan = flow_chunk_sizes(&flows, Bytes(4096)).unwrap();
    assert!(plan.verdict.is_schedulable());
    let cut: Vec<_> = flows.iter().zip(&plan.bytes).filter(|(flow, bytes)| flow.bytes > **bytes).collect();
    assert!(!cut.is_empty() && cut.iter().all(|(_, bytes)| bytes.0.is_multiple_of(4096)), "{:?}", plan.bytes);
}

#[test]
fn verdicts_keep_their_evidence_through_json() {
    for tasks in [implicit(&[(1, 2), (3, 8), (1, 9)]), implicit(&[(3, 2)]), implicit(&[(1, 2)])] {
        let verdict = jeffay(&tasks);
        let text = serde_json::to_string(&verdict).unwrap();
        assert_eq!(serde_json::from_str::<TestVerdict>(&text).unwrap(), verdict, "{text}");
    }
}

proptest! {
    #[test]
    fn lower_costs_and_shorter_chunks_never_lose_a_yes(seed: u64) {
        let draw = &mut Draw(seed);
        let tasks = small_chunk_set(draw, 5, &[4, 6, 10, 15, 24, 40]);
        let in_flight = draw.between(1, 3) as u32;
        if chunked(&tasks, in_flight).is_schedulable() {
            let lower: Vec<_> = tasks
                .iter()
                .map(|t| RecurrentTask {
                    cost: Nanos(draw.between(0, t.cost.0)),
                    chunk: Nanos(draw.between(0, t.chunk.0)),
                    period: t.period.saturating_add(Nanos(draw.between(0, 5))),
                    ..*t
                })
                .collect();
            prop_assert!(chunked(&lower, in_flight).is_schedulable());
        }
    }

    #[test]
    fn the_order_of_the_tasks_does_not_matter(seed: u64) {
        let draw = &mut Draw(seed);
        let mut tasks = small_chunk_set(draw, 5, &[4, 6, 10, 15, 24, 40]);
        let before = chunked(&tasks, 1);
        tasks.reverse();
        let after = chunked(&tasks, 1);
        prop_assert_eq!(before.is_schedulable(), after.is_schedulable());
        prop_assert_eq!(before.utilisation_ppm, after.utilisation_ppm);
    }

    #[test]
    fn the_margin_of_chunks_passes_and_one_step_more_does_not(seed: u64) {
        let draw = &mut Draw(seed);
        let mut tasks = small_chunk_set(draw, 5, &[4, 6, 10, 15, 24, 40]);
        for task in &mut tasks {
            // So large that rounding up does not hide a step, and with a bulk flow now and then.
            *task = if draw.0.is_multiple_of(7) && task.deadline > task.period { RecurrentTask::bulk(task.chunk) } else { *task };
            task.cost = Nanos(task.cost.0 * 100_003);
            task.chunk = Nanos(task.chunk.0 * 100_003);
            if !task.is_bulk() {
                (task.period, task.deadline) = (Nanos(task.period.0 * 100_000), Nanos(task.deadline.0 * 100_000));
            }
        }
        let margin = margin_ppm(&tasks);
        let by = |factor: u64| tasks.iter().map(|task| scaled(task, factor)).collect::<Vec<RecurrentTask>>();
        prop_assert!(margin == 0 || chunked(&by(margin), 1).is_schedulable());
        prop_assert!(margin == MARGIN_PPM_MAX || !chunked(&by(margin + MARGIN_PPM_STEP), 1).is_schedulable());
        prop_assert_eq!(passes(&tasks), chunked(&tasks, 1).is_schedulable());
    }

    #[test]
    fn the_margin_passes_and_one_step_more_does_not(seed: u64) {
        let draw = &mut Draw(seed);
        let tasks: Vec<_> = small_set(draw, 5).iter().map(|&(c, p)| (c * 997, p * 1_000)).collect();
        let tasks = implicit(&tasks);
        let margin = margin_ppm(&tasks);
        let scaled = |f: u64| -> Vec<RecurrentTask> {
            let by = |n: Nanos| Nanos((n.0 * f).div_ceil(PPM));
            tasks.iter().map(|t| RecurrentTask::whole(by(t.cost), t.period, t.deadline)).collect()
        };
        prop_assert!(jeffay(&scaled(margin)).is_schedulable());
        prop_assert!(!jeffay(&scaled(margin + MARGIN_PPM_STEP)).is_schedulable());
        prop_assert_eq!(margin >= PPM, jeffay(&tasks).is_schedulable());
    }
}
