//! One estimator: a sequence of samples in, a prediction out.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::Form;
use crate::units::Nanos;

/// Samples that a window holds (published implementation).
const WINDOW: usize = 20;
/// Samples before a window looks for outliers (published implementation).
const TRUSTED: usize = 10;
/// Rejections in a row on one side after which the window is replaced by them.
const REPLACED_AFTER: usize = 5;
/// The published cap: what takes longer is dropped.
const CAP: Nanos = Nanos(2_000_000_000);

/// What became of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleOutcome {
    /// It counts.
    Accepted,
    /// It is an outlier.
    Rejected,
    /// It was the fifth outlier in a row on one side: these five are the window now.
    Replaced,
    /// It is longer than the cap.
    OverCap,
    /// There is no room for another estimator.
    NoRoom,
}

/// Follows the samples of one task and distance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimator {
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Pi { a_q16: u32, b_q16: u32, primed: bool, estimate_q16: i128, integral_q32: i128 },
    Window { published: bool, samples: Vec<u64>, oldest: usize, above: Vec<u64>, below: Vec<u64> },
}

impl Estimator {
    /// An estimator without samples.
    #[must_use]
    pub fn new(form: Form) -> Self {
        let state = match form {
            Form::Pi { a_q16, b_q16 } => State::Pi { a_q16, b_q16, primed: false, estimate_q16: 0, integral_q32: 0 },
            Form::Window { published } => {
                State::Window { published, samples: Vec::new(), oldest: 0, above: Vec::new(), below: Vec::new() }
            }
        };
        Self { state }
    }

    /// Takes a sample of a task with this period. Samples above `max(2 s, 4 periods)` are dropped; the published window
    /// drops above 2 s.
    pub fn handle_sample(&mut self, sample: Nanos, period: Nanos) -> SampleOutcome {
        let published = matches!(self.state, State::Window { published: true, .. });
        let cap = if published { CAP } else { CAP.max(Nanos(period.0.saturating_mul(4))) };
        if sample > cap {
            return SampleOutcome::OverCap;
        }
        match &mut self.state {
            State::Pi { a_q16, b_q16, primed, estimate_q16, integral_q32 } => {
                let sample = i128::from(sample.0);
                if !*primed {
                    // The integral starts where it would have settled, so that the first estimate is the first sample.
                    (*primed, *estimate_q16, *integral_q32) = (true, sample << 16, sample << 32);
                    return SampleOutcome::Accepted;
                }
                let error = (sample << 16).saturating_sub(*estimate_q16);
                let step = |gain: u32| i128::from(gain).saturating_mul(error);
                *estimate_q16 = step(*a_q16).saturating_add(*integral_q32) >> 16;
                *integral_q32 = integral_q32.saturating_add(step(*b_q16));
                SampleOutcome::Accepted
            }
            State::Window { published, samples, oldest, above, below } => {
                let side = side(samples, sample.0, *published);
                match side {
                    Ordering::Equal => {
                        above.clear();
                        below.clear();
                        push(samples, oldest, sample.0);
                        return SampleOutcome::Accepted;
                    }
                    Ordering::Greater => {
                        below.clear();
                        above.push(sample.0);
                    }
                    Ordering::Less => {
                        above.clear();
                        below.push(sample.0);
                    }
                }
                let rejected = if side.is_gt() { above } else { below };
                if *published {
                    rejected.clear();
                    return SampleOutcome::Rejected;
                }
                if rejected.len() < REPLACED_AFTER {
                    return SampleOutcome::Rejected;
                }
                *samples = std::mem::take(rejected);
                *oldest = 0;
                SampleOutcome::Replaced
            }
        }
    }

    /// The prediction; `None` without a sample.
    #[must_use]
    pub fn estimate(&self) -> Option<Nanos> {
        match &self.state {
            State::Pi { primed, estimate_q16, .. } => {
                let rounded = estimate_q16.saturating_add(1 << 15) >> 16;
                primed.then(|| Nanos(u64::try_from(rounded.max(0)).unwrap_or(u64::MAX)))
            }
            State::Window { samples, .. } => mean(samples).map(Nanos),
        }
    }
}

fn push(samples: &mut Vec<u64>, oldest: &mut usize, sample: u64) {
    if samples.len() < WINDOW {
        samples.push(sample);
    } else {
        samples[*oldest] = sample;
        *oldest = (*oldest + 1) % WINDOW;
    }
}

fn mean(samples: &[u64]) -> Option<u64> {
    let sum: u128 = samples.iter().map(|s| u128::from(*s)).sum();
    let mean = sum.checked_div(samples.len() as u128)?;
    Some(u64::try_from(mean).unwrap_or(u64::MAX))
}

/// On which side of what the window accepts `sample` lies; equal = inside.
fn side(samples: &[u64], sample: u64, published: bool) -> Ordering {
    if samples.len() <= TRUSTED {
        return Ordering::Equal;
    }
    let average = mean(samples).unwrap_or(0);
    // Samples are below the cap, 4 * 2^64 at most, so that their squares may not fit: distances saturate.
    let squares = samples.iter().fold(0u128, |sum, s| {
        let distance = u128::from(s.abs_diff(average));
        sum.saturating_add(distance.saturating_mul(distance))
    });
    let deviation = (squares / samples.len() as u128).isqrt();
    let spread = deviation.saturating_mul(2);
    let tolerance = if published { spread } else { spread.max(u128::from(average / 8)) };
    if u128::from(sample.abs_diff(average)) <= tolerance { Ordering::Equal } else { sample.cmp(&average) }
}
