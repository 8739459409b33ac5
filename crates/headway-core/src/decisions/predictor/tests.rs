//! What the predictor follows, rejects and forgets.

use proptest::prelude::*;

use super::*;

const PERIOD: Nanos = Nanos(100_000_000);
const FORMS: [Form; 2] = [Form::PI, Form::WINDOW];

fn fed(form: Form, samples: impl IntoIterator<Item = u64>) -> Estimator {
    let mut estimator = Estimator::new(form);
    for sample in samples {
        estimator.handle_sample(Nanos(sample), PERIOD);
    }
    estimator
}

fn estimate(estimator: &Estimator) -> u64 {
    estimator.estimate().unwrap().0
}

fn subject(task: u32) -> Subject {
    Subject { task: TaskId(task), acquisition: 0, model: ModelId(0) }
}

/// A sequence of times within 5 % of a million, the same each time.
fn jitter(count: usize) -> impl Iterator<Item = u64> {
    (0..count as u64).map(|i| 950_000 + i * 7_919 % 100_000)
}

#[test]
fn the_published_window_never_accepts_a_change_after_constant_samples() {
    let mut published = fed(Form::Window { published: true }, [1_000_000; 20]);
    let mut repaired = fed(Form::WINDOW, [1_000_000; 20]);
    for _ in 0..1_000 {
        assert_eq!(published.handle_sample(Nanos(1_000_001), PERIOD), SampleOutcome::Rejected);
    }
    assert_eq!(repaired.handle_sample(Nanos(1_000_001), PERIOD), SampleOutcome::Accepted);
}

#[test]
fn the_published_window_never_follows_a_step_of_15_percent() {
    let steps = std::iter::repeat_n(1_150_000, 1_000);
    assert!(estimate(&fed(Form::Window { published: true }, jitter(20).chain(steps.clone()))) < 1_050_000);
    assert_eq!(estimate(&fed(Form::WINDOW, jitter(20).chain(steps))), 1_150_000);
}

#[test]
fn the_published_window_freezes_under_a_drift_of_a_thousandth() {
    // In small integers the rounded deviation is what rejects: 1000, 1001, 1002, ...
    let drift = || (0..2_000u64).map(|i| (1_000f64 * 1.001f64.powi(i as i32)) as u64);
    let mut published = Estimator::new(Form::Window { published: true });
    let accepted = drift().filter(|s| published.handle_sample(Nanos(*s), PERIOD) == SampleOutcome::Accepted).count();
    assert!(accepted <= 20, "{accepted}");
    let last = drift().next_back().unwrap();
    assert!(estimate(&fed(Form::WINDOW, drift())) > last * 75 / 100);
}

#[test]
fn a_hundredfold_outlier_after_eleven_samples_changes_nothing() {
    let (mut with, without) = (fed(Form::WINDOW, jitter(11)), fed(Form::WINDOW, jitter(11)));
    assert_eq!(with.handle_sample(Nanos(100_000_000), PERIOD), SampleOutcome::Rejected);
    assert_eq!(with.estimate(), without.estimate());
}

#[test]
fn what_exceeds_two_seconds_and_four_periods_is_dropped() {
    for form in FORMS {
        let mut estimator = fed(form, [5]);
        assert_eq!(estimator.handle_sample(Nanos(2_000_000_001), PERIOD), SampleOutcome::OverCap);
        assert_eq!(estimator.handle_sample(Nanos(8_000_000_000), Nanos(2_000_000_000)), SampleOutcome::Accepted);
        assert_eq!(estimator.handle_sample(Nanos(8_000_000_001), Nanos(2_000_000_000)), SampleOutcome::OverCap);
    }
}

#[test]
fn five_outliers_in_a_row_on_one_side_replace_the_window_and_four_do_not() {
    let mut estimator = fed(Form::WINDOW, [1_000; 12]);
    let verdicts: Vec<SampleOutcome> = [5_000, 5_000, 5_000, 5_000, 1, 5_000, 5_000, 5_000, 5_000, 5_100]
        .into_iter()
        .map(|sample| estimator.handle_sample(Nanos(sample), PERIOD))
        .collect();
    assert_eq!(verdicts[..9], [SampleOutcome::Rejected; 9]);
    assert_eq!((verdicts[9], estimate(&estimator)), (SampleOutcome::Replaced, 5_020));
}

#[test]
fn an_unknown_task_costs_its_class_and_one() {
    let predictor = Predictor::new(PredictorParameters::default());
    assert_eq!(predictor.estimate(subject(1), Class(0)), Nanos(1));
    assert_eq!(predictor.estimate(subject(1), Class(7)), Nanos(8));
}

#[test]
fn a_near_gpu_never_looks_dearer_than_a_far_one() {
    let mut predictor = Predictor::new(PredictorParameters::default());
    predictor.handle_observation(subject(1), Class(0), Nanos(500), PERIOD);
    predictor.handle_observation(subject(1), Class(2), Nanos(300), PERIOD);
    let estimates: Vec<u64> = (0..4).map(|class| predictor.estimate(subject(1), Class(class)).0).collect();
    assert_eq!(estimates, [500, 500, 500, 500]);
    predictor.forget(TaskId(1));
    assert_eq!(predictor.estimate(subject(1), Class(0)), Nanos(1));
}

#[test]
fn an_unseen_model_is_scaled_by_declared_speed() {
    let parameters = PredictorParameters { speeds: vec![100, 300], ..PredictorParameters::default() };
    let mut predictor = Predictor::new(parameters);
    predictor.handle_observation(subject(1), Class(0), Nanos(1_000), PERIOD);
    let other = Subject { model: ModelId(1), ..subject(1) };
    assert_eq!(predictor.estimate(other, Class(1)), Nanos(334));
    let undeclared = Subject { model: ModelId(2), ..subject(1) };
    assert_eq!(predictor.estimate(undeclared, Class(1)), Nanos(2));
    predictor.handle_observation(other, Class(0), Nanos(900), PERIOD);
    assert_eq!(predictor.estimate(other, Class(1)), Nanos(900));
}

#[test]
fn estimators_beyond_the_limit_are_not_made_and_forgotten_ones_give_room() {
    let parameters = PredictorParameters { estimators_max: 1, ..PredictorParameters::default() };
    let mut predictor = Predictor::new(parameters);
    assert_eq!(predictor.handle_observation(subject(1), Class(0), Nanos(9), PERIOD), SampleOutcome::Accepted);
    assert_eq!(predictor.handle_observation(subject(2), Class(0), Nanos(9), PERIOD), SampleOutcome::NoRoom);
    assert_eq!(predictor.handle_observation(subject(1), Class(0), Nanos(9), PERIOD), SampleOutcome::Accepted);
    predictor.forget(TaskId(1));
    assert_eq!(predictor.handle_observation(subject(2), Class(0), Nanos(9), PERIOD), SampleOutcome::Accepted);
}

proptest! {
    #[test]
    fn constant_samples_are_returned_exactly(sample in 0u64..=2_000_000_000, count in 1usize..60) {
        for form in FORMS {
            prop_assert_eq!(estimate(&fed(form, std::iter::repeat_n(sample, count))), sample);
        }
    }

    #[test]
    fn a_step_is_followed_within_25_samples(
        before in prop::collection::vec(900_000u64..1_100_000, 0..60),
        after in 1_000u64..1_900_000_000,
    ) {
        let samples = before.into_iter().chain(std::iter::repeat_n(after, 25));
        prop_assert_eq!(estimate(&fed(Form::WINDOW, samples.clone())), after);
        // The controller halves its error every 2.4 samples: 0.75^24 of at most the step is left.
        let left = after.abs_diff(1_000_000).max(100_000) / 500;
        prop_assert!(estimate(&fed(Form::PI, samples)).abs_diff(after) <= left);
    }

    #[test]
    fn a_drift_of_a_hundredth_is_followed_within_a_quarter(start in 1_000u64..1_000_000, up: bool, count in 1usize..400) {
        let mut sample = start * 1_000;
        let samples: Vec<u64> = (0..count).map(|_| {
            sample = if up { sample + sample / 100 } else { sample - sample / 100 };
            sample
        }).take_while(|sample| *sample < 2_000_000_000 && *sample > 10_000).collect();
        if let Some(last) = samples.last().copied() {
            for form in FORMS {
                let estimate = estimate(&fed(form, samples.iter().copied()));
                prop_assert!(estimate.abs_diff(last) <= last / 4, "{form:?}: {estimate} for {last}");
            }
        }
    }

    #[test]
    fn nothing_overflows_whatever_the_samples_and_gains(
        samples in prop::collection::vec(any::<u64>(), 0..80), a: u32, b: u32, period: u64, published: bool,
    ) {
        for form in [Form::Pi { a_q16: a, b_q16: b }, Form::Window { published }] {
            let mut estimator = Estimator::new(form);
            for sample in &samples {
                estimator.handle_sample(Nanos(*sample), Nanos(period));
                prop_assert_eq!(estimator.estimate(), estimator.clone().estimate());
            }
        }
    }
}
