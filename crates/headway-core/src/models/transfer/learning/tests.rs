//! Copies whose true times are known: what is chosen, how soon, and what finding out costs.

use proptest::prelude::*;

use super::*;
use crate::models::transfer::builtin::Bus;

const NODE: NodeClass = NodeClass { bus: Bus::Pcie5, wide_stores: true };
const LIMITS: LearnerLimits = LearnerLimits { threads_max: 16, prefer: Prefer::Cheapest, learns: true, always: false };
const IN: LearntKind = LearntKind { direction: Direction::H2d, memory: HostMemory::Touched };
const MIB: u64 = 1 << 20;

/// Time and CPU time of a copy by each method.
type Truth<'a> = &'a dyn Fn(Option<Tuning>) -> (u64, u64);

/// Makes `copies` copies; returns what they took altogether, and the tuning of the last that was no trial.
fn make(learner: &mut Learner, kind: LearntKind, bytes: u64, copies: usize, truth: Truth<'_>) -> (u64, Option<Tuning>) {
    let (mut total, mut last) = (0, None);
    for _ in 0..copies {
        let advice = learner.handle_copy(kind, Bytes(bytes));
        if advice.tuning.is_some() {
            learner.started();
        }
        let (time, cpu) = truth(advice.tuning);
        total += time;
        if advice.timed {
            learner.handle_took(kind, Bytes(bytes), advice, CopyTook { time: Nanos(time), cpu: Some(Nanos(cpu)) });
        }
        if !advice.trial {
            last = advice.tuning;
        }
    }
    (total, last)
}

fn started() -> Learner {
    let mut learner = Learner::new(NODE, LIMITS);
    learner.started();
    learner
}

#[test]
fn large_copies_are_staged_at_once_and_tiny_ones_never() {
    let mut learner = Learner::new(NODE, LIMITS);
    for (direction, memory, bytes) in [
        (Direction::H2d, HostMemory::Touched, 4 * MIB),
        (Direction::D2h, HostMemory::Touched, 2 * MIB),
        (Direction::D2h, HostMemory::Untouched, 2 * MIB),
        (Direction::H2d, HostMemory::File, 1 << 30),
    ] {
        assert!(
            learner.handle_copy(LearntKind { direction, memory }, Bytes(bytes)).tuning.is_some(),
            "{direction} {bytes}"
        );
    }
    let tiny = learner.handle_copy(IN, Bytes(MIB - 1));
    assert_eq!(tiny.tuning, None);
}

#[test]
fn small_copies_start_threads_only_when_enough_could_have_been_saved() {
    let mut learner = Learner::new(NODE, LIMITS);
    let out = LearntKind { direction: Direction::D2h, memory: HostMemory::Touched };
    let first = (1..10_000).find(|_| learner.handle_copy(out, Bytes(MIB)).tuning.is_some()).unwrap();
    // 17 us are saved of each by the built-in figures.
    assert!((100..1_000).contains(&first), "{first}");
    // Once they are there, the next copy is staged as well.
    learner.started();
    assert!(learner.handle_copy(out, Bytes(MIB)).tuning.is_some());
}

#[test]
fn without_threads_everything_is_the_drivers() {
    let mut learner = Learner::new(NODE, LearnerLimits { threads_max: 0, ..LIMITS });
    assert_eq!(learner.handle_copy(IN, Bytes(1 << 30)).tuning, None);
}

#[test]
fn who_always_wants_staging_gets_it_with_one_thread_at_least() {
    let mut learner = Learner::new(NODE, LearnerLimits { threads_max: 0, always: true, ..LIMITS });
    assert_eq!(learner.handle_copy(IN, Bytes(MIB)).tuning.map(|tuning| tuning.threads), Some(1));
    assert_eq!(learner.handle_copy(IN, Bytes(MIB - 1)).tuning, None);
}

#[test]
fn who_does_not_learn_makes_no_trials() {
    let mut learner = Learner::new(NODE, LearnerLimits { learns: false, ..LIMITS });
    let advices: Vec<CopyAdvice> = (0..500).map(|_| learner.handle_copy(IN, Bytes(64 * MIB))).collect();
    assert!(advices.iter().all(|advice| !advice.trial && *advice == advices[0]), "{advices:?}");
}

#[test]
fn the_cheapest_of_methods_within_five_percent_is_taken_unless_the_fastest_is_asked_for() {
    // Four threads take 4 % longer than six, eight are the fastest.
    let truth = |tuning: Option<Tuning>| match tuning.map(|tuning| tuning.threads) {
        None => (5_000_000, 5_000_000),
        Some(4) => (1_040_000, 4_200_000),
        Some(6) => (1_000_000, 6_100_000),
        Some(_) => (999_000, 8_100_000),
    };
    for (prefer, threads) in [(Prefer::Cheapest, 4), (Prefer::Fastest, 8)] {
        let mut learner = Learner::new(NODE, LearnerLimits { prefer, ..LIMITS });
        learner.started();
        let (_, last) = make(&mut learner, IN, 32 * MIB, 400, &truth);
        assert_eq!(last.unwrap().threads, threads, "{prefer:?}");
    }
    // More than 5 % is too much.
    let slower = |tuning: Option<Tuning>| match tuning.map(|tuning| tuning.threads) {
        Some(4) => (1_060_000, 4_200_000),
        _ => truth(tuning),
    };
    let (_, last) = make(&mut started(), IN, 32 * MIB, 400, &slower);
    assert_eq!(last.unwrap().threads, 6);
}

#[test]
fn what_is_wrong_in_the_built_in_figures_is_found_out_in_a_few_dozen_copies() {
    // Staging is useless here for large copies, and useful for copies of 1 MiB into the GPU.
    let useless =
        |tuning: Option<Tuning>| if tuning.is_some() { (9_000_000, 40_000_000) } else { (3_000_000, 3_000_000) };
    let (_, last) = make(&mut started(), IN, 32 * MIB, 64, &useless);
    assert_eq!(last, None);
    let useful = |tuning: Option<Tuning>| if tuning.is_some() { (50_000, 200_000) } else { (85_000, 85_000) };
    let (_, last) = make(&mut started(), IN, MIB, 64, &useful);
    assert!(last.is_some());
}

#[test]
fn a_copy_of_a_gigabyte_is_not_made_by_the_driver_to_learn_in_the_first_seconds() {
    let truth =
        |tuning: Option<Tuning>| if tuning.is_some() { (20_000_000, 120_000_000) } else { (110_000_000, 110_000_000) };
    let mut learner = started();
    let mut by_driver = 0;
    for _ in 0..100 {
        let advice = learner.handle_copy(IN, Bytes(1 << 30));
        by_driver += u32::from(advice.tuning.is_none());
        let (time, cpu) = truth(advice.tuning);
        learner.handle_took(IN, Bytes(1 << 30), advice, CopyTook { time: Nanos(time), cpu: Some(Nanos(cpu)) });
    }
    assert_eq!(by_driver, 0);
}

#[test]
fn staging_that_cannot_be_used_is_left_alone_for_a_while() {
    let mut learner = started();
    assert!(learner.handle_copy(IN, Bytes(64 * MIB)).tuning.is_some());
    learner.handle_absent(IN, Bytes(64 * MIB));
    let left = (0..1_000).take_while(|_| learner.handle_copy(IN, Bytes(64 * MIB)).tuning.is_none()).count();
    assert_eq!(left, ABSENT as usize - 1);
}

#[test]
fn what_was_learnt_comes_back_and_own_copies_count_more() {
    let truth =
        |tuning: Option<Tuning>| if tuning.is_some() { (9_000_000, 40_000_000) } else { (3_000_000, 3_000_000) };
    let mut learner = started();
    make(&mut learner, IN, 32 * MIB, 600, &truth);
    let learnt = learner.learnt();
    let text = serde_json::to_string(&learnt).unwrap();
    let read: Vec<LearntClass> = serde_json::from_str(&text).unwrap();
    assert_eq!(read, learnt);
    let mut next = Learner::new(NODE, LIMITS);
    let all = next.recall(&read);
    assert!(all >= 9);
    assert_eq!(next.handle_copy(IN, Bytes(32 * MIB)).tuning, None, "staging was found to be slow");
    // Figures that cannot be are not taken, nor methods that are not known.
    let mut wrong = learnt.clone();
    for class in &mut wrong {
        for method in &mut class.methods {
            method.ns_per_mib = 0;
        }
    }
    assert_eq!(Learner::new(NODE, LIMITS).recall(&wrong), 0);
    assert_eq!(learner.recall(&read), 0, "what this process has learnt itself stays");
    // A node that may use one thread knows other methods.
    assert!(Learner::new(NODE, LearnerLimits { threads_max: 1, ..LIMITS }).recall(&read) < all);
}

#[test]
fn of_two_processes_each_methods_own_figures_are_kept() {
    let method = |threads: Option<u32>, copies| LearntMethod {
        tuning: threads.map(|threads| NODE.tunings(Direction::H2d, HostMemory::Touched, Bytes(1 << 30), threads)[0]),
        copies,
        ns_per_mib: 5,
        cpu_ns_per_mib: 6,
    };
    let class = |exponent, methods: &[LearntMethod]| LearntClass { kind: IN, exponent, methods: methods.to_vec() };
    let ours = [class(20, &[method(None, 4)])];
    let theirs = [class(20, &[method(None, 9), method(Some(6), 7)]), class(22, &[method(None, 3)])];
    let both = merge(&ours, &theirs);
    assert_eq!(both, [class(20, &[method(None, 4), method(Some(6), 7)]), class(22, &[method(None, 3)])]);
    assert_eq!(merge(&[], &theirs), theirs);
}

proptest! {
    /// Whatever each method takes, trials cost no more than the module says: a 32nd, 0.2 ms, and for each method one trial that nobody could
    /// know the cost of, as long as its times are not believed.
    #[test]
    fn finding_out_costs_no_more_than_was_said(
        times in proptest::collection::vec(50_000u64..20_000_000, 5),
        exponent in 20u32..31,
        copies in 50usize..1500,
        into in any::<bool>(),
    ) {
        let kind = LearntKind { direction: if into { Direction::H2d } else { Direction::D2h }, memory: HostMemory::Touched };
        let known = NODE.tunings(kind.direction, kind.memory, Bytes(1 << exponent), 16);
        let truth = |tuning: Option<Tuning>| {
            let at = tuning.map_or(0, |tuning| 1 + known.iter().position(|known| *known == tuning).expect("advised methods are known"));
            (times[at], times[at] * (at as u64 + 1))
        };
        let mut learner = started();
        let (mut extra, mut total, mut worst) = (0u64, 0u64, 0u64);
        for _ in 0..copies {
            let advice = learner.handle_copy(kind, Bytes(1 << exponent));
            let (time, cpu) = truth(advice.tuning);
            total += time;
            if advice.trial {
                let used = learner.classes[&(kind, exponent)].used(Prefer::Cheapest);
                let cost = truth(learner.classes[&(kind, exponent)].methods[used].tuning).0;
                extra += time.saturating_sub(cost);
                worst = worst.max(time.saturating_sub(cost));
            }
            if advice.timed {
                learner.handle_took(kind, Bytes(1 << exponent), advice, CopyTook { time: Nanos(time), cpu: Some(Nanos(cpu)) });
            }
        }
        let surprises = worst.saturating_mul(BELIEVED * known.len() as u64 + 1);
        prop_assert!(extra <= total / 16 + EXTRA_ANYWAY.0 + surprises, "{extra} of {total}, worst {worst}");
    }

    /// Once every method could be tried, the one in use is within 5 % of the fastest.
    #[test]
    fn the_method_in_use_ends_within_five_percent_of_the_fastest(
        times in proptest::collection::vec(80_000u64..120_000, 5),
        into in any::<bool>(),
    ) {
        let kind = LearntKind { direction: if into { Direction::H2d } else { Direction::D2h }, memory: HostMemory::Touched };
        let known = NODE.tunings(kind.direction, kind.memory, Bytes(MIB), 16);
        let of = |tuning: Option<Tuning>| tuning.map_or(0, |tuning| 1 + known.iter().position(|known| *known == tuning).unwrap());
        let truth = |tuning: Option<Tuning>| (times[of(tuning)], times[of(tuning)]);
        let (_, last) = make(&mut started(), kind, MIB, 1_000, &truth);
        let fastest = times[..=known.len()].iter().min().unwrap();
        prop_assert!(times[of(last)] * 100 <= fastest * 105, "{last:?} of {times:?}");
    }

    /// A damaged or foreign file never makes anything but a decision between methods that are allowed.
    #[test]
    fn nothing_recalled_leads_to_a_method_that_is_not_allowed(
        exponent in any::<u32>(),
        copies in any::<u64>(),
        ns_per_mib in any::<u64>(),
        cpu_ns_per_mib in any::<u64>(),
        threads in any::<u32>(),
        threads_max in 0u32..20,
        bytes in any::<u64>(),
    ) {
        let mut learner = Learner::new(NODE, LearnerLimits { threads_max, ..LIMITS });
        let tuning = Some(Tuning { threads, buffer: Bytes(8 * MIB), stores: crate::models::transfer::Stores::Plain, in_flight: 3 });
        let methods = vec![
            LearntMethod { tuning, copies, ns_per_mib, cpu_ns_per_mib },
            LearntMethod { tuning: None, copies, ns_per_mib, cpu_ns_per_mib },
        ];
        learner.recall(&[LearntClass { kind: IN, exponent, methods }]);
        for _ in 0..40 {
            let advice = learner.handle_copy(IN, Bytes(bytes));
            prop_assert!(advice.tuning.is_none_or(|tuning| tuning.threads <= threads_max), "{advice:?}");
            learner.handle_took(IN, Bytes(bytes), advice, CopyTook { time: Nanos(ns_per_mib), cpu: None });
        }
    }
}
