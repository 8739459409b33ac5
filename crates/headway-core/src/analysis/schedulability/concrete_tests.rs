//! Known offsets: against the goldens, all integer costs and releases of small sets, and the test for any offsets.

use std::collections::BTreeSet;

use super::tests::cases;
use super::*;
use crate::interconnect::tests::fixtures::Draw;

/// Whole jobs with deadline = period, from (period, cost, offset).
fn set(tasks: &[(u64, u64, u64)]) -> Vec<ConcreteTask> {
    let one =
        |&(p, c, a): &(u64, u64, u64)| ConcreteTask::at(Nanos(a), RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(p)));
    tasks.iter().map(one).collect()
}

/// A verdict with its margin.
#[derive(Debug)]
struct Stated {
    /// Outcome, model, strength, evidence.
    verdict: TestVerdict,
    /// The largest factor on all costs with which the answer is "yes", as [`margin_ppm`](super::margin_ppm) gives it;
    /// `None` for exact costs, where lower costs may be worse and no factor means anything.
    margin_ppm: Option<u64>,
}

/// What three models say of one set.
#[derive(Debug)]
struct SideBySide {
    /// Any offsets, sporadic or periodic, costs from zero to the worst case; others may join later.
    sporadic: Stated,
    /// Exactly these offsets and jitters, costs from zero to the worst case, no joins.
    concrete: Stated,
    /// Exactly these offsets, jitters and costs: one run.
    exact: Stated,
}

/// The three verdicts of one set, with their margins: each "yes" implies those after it.
fn side_by_side(tasks: &[ConcreteTask], ties: Ties) -> SideBySide {
    let by = |factor: u64| -> Vec<ConcreteTask> {
        tasks.iter().map(|t| ConcreteTask { task: scaled(&t.task, factor), ..*t }).collect()
    };
    let decided = |verdict: &TestVerdict| !matches!(verdict.outcome, TestOutcome::Undecided(_));
    let stated = |test: &dyn Fn(&[ConcreteTask]) -> TestVerdict| {
        let verdict = test(tasks);
        let margin = decided(&verdict).then(|| largest_factor(|factor| test(&by(factor)).is_schedulable()));
        Stated { verdict, margin_ppm: margin }
    };
    SideBySide {
        sporadic: stated(&sporadic),
        concrete: stated(&|tasks| concrete(tasks, JobCosts::UpToWorst, ties).verdict),
        exact: Stated { verdict: concrete(tasks, JobCosts::Exact, ties).verdict, margin_ppm: None },
    }
}

fn late(exploration: &Exploration) -> (usize, u64, [u64; 3]) {
    match exploration.verdict.outcome {
        TestOutcome::NotSchedulable(TestViolation::Late { task, job, release, deadline, finish }) => {
            (task, job, [release.0, deadline.0, finish.0])
        }
        ref other => panic!("no late job but {other:?}"),
    }
}

#[test]
fn a_job_that_ends_early_makes_another_one_late() {
    // (6,2) ends at 2 instead of 3, (12,4) starts and (3,1), released at 3, ends at 7.
    let tasks = set(&[(3, 1, 0), (6, 2, 0), (12, 4, 0)]);
    let found = concrete(&tasks, JobCosts::UpToWorst, Ties::ByPosition);
    assert_eq!(found.verdict.strength, TestStrength::Exact);
    let (task, job, [release, deadline, finish]) = late(&found);
    assert_eq!((task, job, release, deadline), (0, 1, 3, 6));
    assert_eq!(finish, 7);
    assert!(found.bounds.is_empty());
    let exact = concrete(&tasks, JobCosts::Exact, Ties::ByPosition);
    assert_eq!((exact.verdict.outcome, exact.verdict.strength), (TestOutcome::Schedulable, TestStrength::Necessary));
}

#[test]
fn goldens_pass_with_exact_costs_and_fail_with_costs_up_to_them() {
    let sets =
        [[(3, 1, 0), (6, 2, 0), (12, 4, 0)], [(10, 4, 0), (6, 1, 2), (3, 1, 0)], [(3, 1, 0), (8, 4, 1), (12, 2, 4)]];
    for golden in sets {
        let tasks = set(&golden);
        let three = side_by_side(&tasks, Ties::ByPosition);
        assert!(!three.sporadic.verdict.is_schedulable(), "{golden:?}");
        assert!(!three.concrete.verdict.is_schedulable(), "{golden:?}");
        assert!(three.exact.verdict.is_schedulable(), "{golden:?}");
        assert_eq!(three.exact.margin_ppm, None);
        assert!(three.concrete.margin_ppm.unwrap() < PPM);
        assert!(three.concrete.margin_ppm >= three.sporadic.margin_ppm, "{three:?}");
    }
}

#[test]
fn offsets_can_save_a_set_that_fails_as_sporadic_tasks() {
    // The long job always starts when the short one has just run.
    let tasks = set(&[(4, 2, 0), (8, 2, 2)]);
    let apart = set(&[(4, 2, 0), (8, 2, 2), (8, 2, 6)]);
    assert!(concrete(&tasks, JobCosts::UpToWorst, Ties::Any).verdict.is_schedulable());
    let found = concrete(&apart, JobCosts::UpToWorst, Ties::Any);
    assert!(found.verdict.is_schedulable());
    assert_eq!(found.bounds, [Nanos(2), Nanos(2), Nanos(2)]);
    let three = side_by_side(&set(&[(4, 2, 0), (8, 4, 2)]), Ties::Any);
    assert!(!three.sporadic.verdict.is_schedulable());
}

#[test]
fn a_synchronous_set_is_explored_for_one_hyperperiod() {
    let found = concrete(&set(&[(4, 1, 0), (6, 1, 0), (10, 2, 0)]), JobCosts::UpToWorst, Ties::Any);
    assert!(found.verdict.is_schedulable());
    assert_eq!((found.window.hyperperiod, found.window.hyperperiods), (Nanos(60), 1));
    assert_eq!(found.window.until, Nanos(57), "the last release is at 56");
}

#[test]
fn the_window_counts_from_the_start_of_a_set_with_offsets() {
    // The second task only begins in the third hyperperiod of the first, and there delays nothing.
    let found = concrete(&set(&[(10, 5, 0), (10, 5, 25)]), JobCosts::UpToWorst, Ties::Any);
    assert!(found.verdict.is_schedulable() && found.window.hyperperiods >= 2, "{found:?}");
    let found = concrete(&set(&[(10, 4, 0), (20, 10, 57)]), JobCosts::UpToWorst, Ties::Any);
    assert_eq!(late(&found), (0, 6, [60, 70, 71]));
}

#[test]
fn sets_that_cannot_be_followed_are_undecided() {
    let reason = |tasks: &[ConcreteTask]| match concrete(tasks, JobCosts::UpToWorst, Ties::Any).verdict.outcome {
        TestOutcome::Undecided(reason) => reason,
        other => panic!("{other:?}"),
    };
    let primes = set(&[((1 << 61) - 1, 1, 0), (1 << 40, 1, 0)]);
    assert_eq!(reason(&primes), UndecidedReason::HyperperiodBound { max: LIMITS.hyperperiod_max });
    let many = set(&[(1 << 60, 1, 0), (2, 1, 0)]);
    assert_eq!(reason(&many), UndecidedReason::Steps { max: LIMITS.steps_max });
    let bulk = [ConcreteTask::at(Nanos(0), RecurrentTask::bulk(Nanos(1)))];
    assert_eq!(reason(&bulk), UndecidedReason::Bulk { task: 0 });
    let jitter = [ConcreteTask { jitter: Nanos(4), ..set(&[(4, 1, 0)])[0] }];
    assert_eq!(reason(&jitter), UndecidedReason::Jitter { task: 0 });
    assert_eq!(reason(&set(&[(0, 1, 0)])), UndecidedReason::PeriodZero { task: 0 });
    assert!(concrete(&[], JobCosts::UpToWorst, Ties::Any).verdict.is_schedulable());
    let overload = concrete(&set(&[(2, 2, 0), (5, 1, 0)]), JobCosts::Exact, Ties::Any);
    assert_eq!(overload.verdict.outcome, TestOutcome::NotSchedulable(TestViolation::Utilisation));
}

#[test]
fn numbers_at_the_edge_of_their_types_do_not_panic() {
    let m = u64::MAX - 1;
    for (c, p, d, q, a, j) in [(m, m, m, m, m, 0), (1, m, m, 1, m, m - 1), (5, 1 << 62, m, 0, m, 9), (0, 1, 0, 0, 0, 0)]
    {
        let task = RecurrentTask { cost: Nanos(c), period: Nanos(p), deadline: Nanos(d), chunk: Nanos(q) };
        let one = ConcreteTask { task, offset: Nanos(a), jitter: Nanos(j) };
        for costs in [JobCosts::UpToWorst, JobCosts::Exact] {
            let found = concrete(&[one, one], costs, Ties::Any);
            assert!(found.bounds.is_empty() || found.verdict.is_schedulable());
        }
        assert!(sporadic(&[one]).utilisation_ppm <= 1_000_001);
    }
}

#[test]
fn intervals_become_one_only_where_no_integer_lies_between() {
    let mut frees = Vec::new();
    for free in [(10, 12), (2, 4), (20, 20), (14, 15)] {
        concrete::merge(&mut frees, free);
    }
    assert_eq!(frees, [(2, 4), (10, 12), (14, 15), (20, 20)]);
    concrete::merge(&mut frees, (13, 13));
    concrete::merge(&mut frees, (6, 6));
    assert_eq!(frees, [(2, 4), (6, 6), (10, 15), (20, 20)]);
    concrete::merge(&mut frees, (0, 30));
    assert_eq!(frees, [(0, 30)]);
}

/// All integer costs and releases, one job after the other: the longest responses by `until`, or `None` for a miss.
struct Brute<'a> {
    tasks: &'a [ConcreteTask],
    costs: JobCosts,
    ties: Ties,
    lateness: JitterCosts,
    until: u64,
    seen: BTreeSet<(u64, Vec<(u64, u64)>)>,
    responses: Vec<u64>,
}

impl<'a> Brute<'a> {
    fn run(
        tasks: &'a [ConcreteTask],
        costs: JobCosts,
        ties: Ties,
        lateness: JitterCosts,
        until: u64,
    ) -> Option<Vec<u64>> {
        let (seen, responses) = (BTreeSet::new(), vec![0; tasks.len()]);
        let mut brute = Self { tasks, costs, ties, lateness, until, seen, responses };
        let mut waiting = Vec::new();
        brute.releases(&[], &mut waiting);
        let met = waiting.into_iter().all(|next| brute.visit(0, next));
        met.then_some(brute.responses)
    }

    /// Every choice of first releases, as (number of the next chunk, release of its job).
    fn releases(&self, chosen: &[(u64, u64)], all: &mut Vec<Vec<(u64, u64)>>) {
        let Some(of) = self.tasks.get(chosen.len()) else { return all.push(chosen.to_vec()) };
        for late in 0..=of.jitter.0 {
            self.releases(&[chosen, &[(0, of.offset.0 + late)]].concat(), all);
        }
    }

    /// Whether no job misses after a state in which the engine is free at `free`.
    fn visit(&mut self, free: u64, next: Vec<(u64, u64)>) -> bool {
        let start = free.max(next.iter().map(|n| n.1).min().unwrap());
        if start > self.until || !self.seen.insert((free, next.clone())) {
            return true;
        }
        let tasks = self.tasks;
        let chunks = |task: usize| tasks[task].task.cost.0.div_ceil(tasks[task].task.chunk.0).max(1);
        let nominal =
            |task: usize, number: u64| tasks[task].offset.0 + number / chunks(task) * tasks[task].task.period.0;
        let deadline = |task: usize| nominal(task, next[task].0) + tasks[task].task.deadline.0;
        let ready: Vec<usize> = (0..next.len()).filter(|&task| next[task].1 <= start).collect();
        let first = ready.iter().map(|&task| deadline(task)).min().unwrap();
        let mut goes: Vec<usize> = ready.into_iter().filter(|&task| deadline(task) == first).collect();
        if self.ties == Ties::ByPosition {
            goes.truncate(1);
        }
        for task in goes {
            let (of, (number, release)) = (tasks[task], next[task]);
            let begin = nominal(task, number);
            let chunk = number % chunks(task);
            let most = (of.task.cost.0 - chunk * of.task.chunk.0).min(of.task.chunk.0);
            let most = match self.lateness {
                JitterCosts::WithinCosts if chunk == 0 => most.saturating_sub(release - begin),
                _ => most,
            };
            let least = if self.costs == JobCosts::Exact { most } else { 0 };
            let is_last = chunk + 1 == chunks(task);
            for cost in least..=most {
                if start + cost > first {
                    return false;
                }
                self.responses[task] = self.responses[task].max(start + cost - begin);
                let later: Vec<u64> = if is_last {
                    (0..=of.jitter.0).map(|late| begin + of.task.period.0 + late).collect()
                } else {
                    vec![release]
                };
                for release in later {
                    let mut after = next.clone();
                    after[task] = (number + 1, release);
                    if !self.visit(start + cost, after) {
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// Two or three tasks with small periods, some with offsets, chunks, jitter, short or long deadlines.
fn small_set(draw: &mut Draw) -> Vec<ConcreteTask> {
    let count = draw.between(2, 3);
    let (jitters, chunks) = (draw.chance(30), draw.chance(30));
    (0..count)
        .map(|_| {
            let period = draw.pick(&[2, 3, 4, 6, 8, 12]);
            let cost = draw.between(1, (3 * period / (2 * count)).clamp(1, period));
            let deadline = if draw.chance(60) { period } else { draw.between(cost, period + period / 2) };
            let chunk = if chunks { draw.between(1, cost) } else { cost };
            let task = RecurrentTask {
                cost: Nanos(cost),
                period: Nanos(period),
                deadline: Nanos(deadline),
                chunk: Nanos(chunk),
            };
            let offset = if draw.chance(60) { draw.between(0, period + 3) } else { 0 };
            let jitter = if jitters && draw.chance(50) { draw.between(0, (period - 1).min(2)) } else { 0 };
            ConcreteTask { task, offset: Nanos(offset), jitter: Nanos(jitter) }
        })
        .collect()
}

#[test]
fn known_offsets_are_exact_against_all_integer_costs_and_releases() {
    let (mut draw, mut yes, mut no) = (Draw(61), 0, 0);
    let cases = cases(600);
    for _ in 0..cases {
        let tasks = small_set(&mut draw);
        for (costs, ties) in [
            (JobCosts::UpToWorst, Ties::Any),
            (JobCosts::UpToWorst, Ties::ByPosition),
            (JobCosts::Exact, Ties::Any),
            (JobCosts::Exact, Ties::ByPosition),
        ] {
            let found = concrete(&tasks, costs, ties);
            if found.verdict.outcome == TestOutcome::NotSchedulable(TestViolation::Utilisation) {
                continue;
            }
            let until = 4 * 24 + 15 + 18;
            let brute = Brute::run(&tasks, costs, ties, JitterCosts::BesideCosts, until);
            let ours = found.verdict.is_schedulable().then(|| found.bounds.iter().map(|b| b.0).collect::<Vec<_>>());
            assert_eq!(ours, brute, "{costs:?} {ties:?} {tasks:?}");
            *(if found.verdict.is_schedulable() { &mut yes } else { &mut no }) += 1;
        }
    }
    assert!(yes > cases / 2 && no > cases / 3, "{yes} schedulable, {no} not: the sets must be mixed");
}

#[test]
fn jitter_that_is_part_of_the_costs_is_counted_once() {
    let (mut draw, mut once, mut twice) = (Draw(65), 0, 0);
    for _ in 0..cases(600) {
        let mut tasks = small_set(&mut draw);
        for of in &mut tasks {
            of.jitter = Nanos(draw.between(0, (of.task.period.0 - 1).min(2)));
        }
        for ties in [Ties::Any, Ties::ByPosition] {
            let [within, beside] = [JitterCosts::WithinCosts, JitterCosts::BesideCosts]
                .map(|lateness| concrete_within(&tasks, JobCosts::UpToWorst, ties, lateness, LIMITS.steps_max));
            if within.verdict.outcome == TestOutcome::NotSchedulable(TestViolation::Utilisation) {
                continue;
            }
            assert!(within.verdict.is_schedulable() || !beside.verdict.is_schedulable(), "{tasks:?}");
            if within.verdict.is_schedulable() {
                let brute = Brute::run(&tasks, JobCosts::UpToWorst, ties, JitterCosts::WithinCosts, 4 * 24 + 15 + 18);
                let brute = brute.unwrap_or_else(|| panic!("a run misses: {ties:?} {tasks:?}"));
                assert!(
                    within.bounds.iter().zip(&brute).all(|(ours, longest)| ours.0 >= *longest),
                    "{ties:?} {tasks:?}"
                );
            }
            once += u32::from(within.verdict.is_schedulable());
            twice += u32::from(beside.verdict.is_schedulable());
        }
    }
    assert!(once > twice + twice / 10, "{once} sets hold where jitter counts once, {twice} where it counts twice");
}

#[test]
fn each_of_the_three_verdicts_implies_the_next() {
    let (mut draw, mut counts) = (Draw(62), [0; 3]);
    for _ in 0..6_000 {
        let tasks = small_set(&mut draw);
        let any = sporadic(&tasks).is_schedulable();
        let known = concrete(&tasks, JobCosts::UpToWorst, Ties::Any).verdict.is_schedulable();
        let exact = concrete(&tasks, JobCosts::Exact, Ties::Any).verdict.is_schedulable();
        assert!((!any || known) && (!known || exact), "{any} {known} {exact} {tasks:?}");
        for (count, yes) in counts.iter_mut().zip([any, known, exact]) {
            *count += u32::from(yes);
        }
    }
    assert!(counts[0] > 500 && counts[0] < counts[1] && counts[1] < counts[2], "{counts:?}");
}

#[test]
fn a_verdict_for_every_tie_is_the_stricter_one() {
    let (mut draw, mut apart) = (Draw(63), 0);
    for _ in 0..4_000 {
        let tasks = small_set(&mut draw);
        let [any, by] = [Ties::Any, Ties::ByPosition].map(|ties| concrete(&tasks, JobCosts::UpToWorst, ties));
        assert!(!any.verdict.is_schedulable() || by.verdict.is_schedulable(), "{tasks:?}");
        for (a, b) in any.bounds.iter().zip(&by.bounds) {
            assert!(a >= b, "{tasks:?}");
            apart += u32::from(a > b);
        }
    }
    assert!(apart > 100, "{apart}");
}

#[test]
fn the_margin_of_known_offsets_passes_and_one_step_more_does_not() {
    let mut draw = Draw(64);
    for _ in 0..60 {
        let mut tasks = small_set(&mut draw);
        for t in &mut tasks {
            // Coarse times would hide the steps.
            for time in [&mut t.task.cost, &mut t.task.period, &mut t.task.deadline, &mut t.task.chunk, &mut t.offset] {
                *time = Nanos(time.0 * 1_000);
            }
        }
        let margin = side_by_side(&tasks, Ties::Any).concrete.margin_ppm.unwrap();
        let at = |factor| {
            let by = |t: &ConcreteTask| ConcreteTask { task: scaled(&t.task, factor), ..*t };
            let tasks: Vec<_> = tasks.iter().map(by).collect();
            concrete(&tasks, JobCosts::UpToWorst, Ties::Any).verdict.is_schedulable()
        };
        assert!(margin == 0 || at(margin), "{margin} {tasks:?}");
        assert!(margin == MARGIN_PPM_MAX || !at(margin + MARGIN_PPM_STEP), "{margin} {tasks:?}");
    }
}

#[test]
fn explorations_keep_their_evidence_through_json() {
    for tasks in [set(&[(3, 1, 0), (6, 2, 0), (12, 4, 0)]), set(&[(4, 1, 1), (6, 1, 0)])] {
        let found = concrete(&tasks, JobCosts::UpToWorst, Ties::Any);
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Exploration>(&text).unwrap(), found, "{text}");
    }
}
