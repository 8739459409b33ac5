//! Batches that were run, against what the model says of them.

use super::{BatchBlock, Network, Starved, Wcet};
use crate::machine::{Calibration, Machine};
use crate::units::{Nanos, PPM};

/// Errors and excesses are counted up to a hundredfold.
const LARGEST_PPM: u64 = 100 * PPM;

/// A batch that was run once or several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Its blocks in the order of submission.
    pub order: Vec<BatchBlock>,
    /// Per repetition: from the first submission until the end of each block was noticed.
    pub took: Vec<Vec<Nanos>>,
}

/// A trial beside the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The predicted end of each block.
    pub blocks_predicted: Vec<Nanos>,
    /// The median end of each block.
    pub blocks: Vec<Nanos>,
    /// Prediction and bounds for the batch.
    pub wcet: Wcet,
    /// The end of the last block in each repetition, ascending.
    pub took: Vec<Nanos>,
}

/// How far predictions were from what was measured: `|measured - predicted| / predicted` in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accuracy {
    /// Predictions looked at.
    pub n: usize,
    /// Half of them are off by at most this.
    pub median_ppm: u64,
    /// 95 % of them are.
    pub p95_ppm: u64,
    /// All of them are.
    pub max_ppm: u64,
}

impl Trial {
    /// What `network` says of the batch, beside what was measured.
    ///
    /// # Errors
    /// [`Starved`] when some block would get no rate.
    pub fn judge(&self, network: &Network, calibration: Option<&Calibration>) -> Result<Judged, Starved> {
        let mut took: Vec<Nanos> = self.took.iter().filter_map(|ends| ends.iter().copied().max()).collect();
        took.sort_unstable();
        let block = |at: usize| median(self.took.iter().filter_map(|ends| ends.get(at).copied()).collect());
        Ok(Judged {
            blocks_predicted: network.completion(&self.order)?.blocks,
            blocks: (0..self.order.len()).map(block).collect(),
            wcet: network.wcet(&self.order, calibration)?,
            took,
        })
    }
}

impl Judged {
    /// The median of the batch's times.
    #[must_use]
    pub fn measured(&self) -> Nanos {
        median(self.took.clone())
    }

    /// How far the prediction is from the median.
    #[must_use]
    pub fn error_ppm(&self) -> u64 {
        error_ppm(self.measured(), self.wcet.prediction)
    }

    /// The same for each block.
    #[must_use]
    pub fn block_errors_ppm(&self) -> Vec<u64> {
        self.blocks.iter().zip(&self.blocks_predicted).map(|(took, predicted)| error_ppm(*took, *predicted)).collect()
    }

    /// Repetitions that took longer than the worst-case time.
    #[must_use]
    pub fn exceeded(&self) -> usize {
        self.took.iter().filter(|took| **took > self.wcet.value).count()
    }
}

impl Accuracy {
    /// What `errors`, in parts per million, come to; ranks are nearest ranks.
    #[must_use]
    pub fn of(mut errors: Vec<u64>) -> Self {
        errors.sort_unstable();
        let rank = |percent: usize| errors.get((errors.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or(0);
        Self { n: errors.len(), median_ppm: rank(50), p95_ppm: rank(95), max_ppm: rank(100) }
    }
}

/// Puts into the calibration of `machine` how well it predicts `trials`, which it was not fitted to, and raises the margin to
/// 1.25 times the largest excess of a measured time over the bound. Nothing changes without trials or without calibration.
///
/// # Errors
/// [`Starved`] when some block would get no rate.
pub fn validate(machine: &mut Machine, trials: &[Trial]) -> Result<(), Starved> {
    let Some(calibration) = machine.calibration.clone().filter(|_| !trials.is_empty()) else { return Ok(()) };
    let network = Network::new(machine);
    let bare = Calibration { margin_ppm: 0, jitter: Nanos::ZERO, ..calibration.clone() };
    let (mut errors, mut excess_ppm) = (Vec::new(), 0);
    for trial in trials {
        let judged = trial.judge(&network, Some(&bare))?;
        errors.push(judged.error_ppm());
        let longest = judged.took.last().copied().unwrap_or_default().saturating_sub(calibration.jitter);
        if longest > judged.wcet.value {
            excess_ppm = excess_ppm.max(error_ppm(longest, judged.wcet.value));
        }
    }
    let found = Accuracy::of(errors);
    machine.calibration = Some(Calibration {
        batches: u32::try_from(found.n).unwrap_or(u32::MAX),
        margin_ppm: calibration.margin_ppm.max(excess_ppm.saturating_add(excess_ppm.div_ceil(4)).min(LARGEST_PPM)),
        median_ppm: found.median_ppm,
        p95_ppm: found.p95_ppm,
        max_ppm: found.max_ppm,
        ..calibration
    });
    Ok(())
}

/// `|measured - predicted| / predicted` in ppm, at most a hundredfold.
fn error_ppm(measured: Nanos, predicted: Nanos) -> u64 {
    let off = u128::from(measured.0.abs_diff(predicted.0)) * u128::from(PPM) / u128::from(predicted.0.max(1));
    u64::try_from(off).unwrap_or(LARGEST_PPM).min(LARGEST_PPM)
}

/// The lower median; zero of nothing.
fn median(mut times: Vec<Nanos>) -> Nanos {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interconnect::fixtures::{block, figure_ii_1};

    #[test]
    fn a_trial_is_judged_by_the_median_and_each_repetition_against_the_bound() {
        let (machine, order) = figure_ii_1();
        let network = Network::new(&machine);
        let text = include_str!("../../tests/machines/h200-x4.toml");
        let calibration = crate::machine::parse("h200-x4", text).expect("it parses").calibration.expect("it has one");
        let ms = |long: u64, short: u64| vec![Nanos(long * 1_000_000), Nanos(short * 1_000_000)];
        let trial = Trial { order: order.to_vec(), took: vec![ms(22, 14), ms(99, 15), ms(21, 13)] };
        let judged = trial.judge(&network, Some(&calibration)).expect("all have rates");
        assert_eq!(judged.blocks_predicted, [Nanos(21_333_334), Nanos(13_333_334)]);
        assert_eq!((judged.measured(), judged.blocks[1]), (Nanos(22_000_000), Nanos(14_000_000)));
        assert_eq!(judged.error_ppm(), 31_249);
        assert_eq!(judged.block_errors_ppm(), [31_249, 49_999]);
        assert_eq!(judged.exceeded(), 1, "99 ms is above the bound, 22 ms is within 5 % and 200 us of 21.3");
    }

    #[test]
    fn accuracies_are_nearest_ranks() {
        let found = Accuracy::of((1..=100).rev().collect());
        assert_eq!(found, Accuracy { n: 100, median_ppm: 50, p95_ppm: 95, max_ppm: 100 });
        assert_eq!(Accuracy::of(Vec::new()), Accuracy::default());
    }

    #[test]
    fn validation_stores_errors_and_raises_the_margin_by_what_exceeds_the_bound() {
        let text = include_str!("../../tests/machines/h200-x1.toml");
        let machine = crate::machine::parse("h200-x1", text).expect("it parses");
        let route = machine.route(machine.memories().next().expect("one"), machine.gpus().next().expect("one"));
        let order = vec![block(route.expect("in"), 1 << 28)];
        let known = machine.calibration.clone().expect("it has one");
        let of = |percent: u64| {
            let mut machine = machine.clone();
            let time = Network::new(&machine).completion(&order).expect("it has a rate").finish;
            let took = vec![vec![Nanos(time.0 / 100 * percent) + known.jitter]];
            validate(&mut machine, &[Trial { order: order.clone(), took }]).expect("it has a rate");
            machine.calibration.expect("it had one")
        };
        let near = of(101);
        assert_eq!((near.batches, near.margin_ppm), (1, known.margin_ppm));
        // A twentieth of a millisecond of jitter on 4.8 ms is 4 %.
        assert!((50_000..53_000).contains(&near.median_ppm) && near.median_ppm == near.max_ppm, "{near:?}");
        let far = of(120);
        assert!((249_000..251_000).contains(&far.margin_ppm), "{far:?}");
        let mut untouched = machine.clone();
        validate(&mut untouched, &[]).expect("nothing to do");
        assert_eq!(untouched, machine);
    }
}
