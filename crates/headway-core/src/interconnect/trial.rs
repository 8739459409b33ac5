//! Batches that were run, against what the model says of them.

use serde::{Deserialize, Serialize};

use super::{BatchBlock, Network, Starved, Wcet};
use crate::files::machine::{Calibration, Machine};
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

    /// The error of each block's predicted end.
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

/// What batches that a machine was not fitted to say of its predictions and of its bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialErrors {
    /// Of each batch, `|measured - predicted| / predicted` in parts per million.
    errors: Vec<u64>,
    /// Sum of the bounds without margin and jitter.
    bounds: u128,
    /// Of batches that took longer than that: the bound, and by how much longer the longest repetition took.
    excesses: Vec<(Nanos, Nanos)>,
}

impl TrialErrors {
    /// Takes in a batch that was run.
    ///
    /// # Errors
    /// [`Starved`] when some block would get no rate.
    pub fn add(&mut self, trial: &Trial, network: &Network, calibration: &Calibration) -> Result<(), Starved> {
        let bare = Calibration { margin_ppm: 0, jitter: Nanos::ZERO, ..calibration.clone() };
        let judged = trial.judge(network, Some(&bare))?;
        self.errors.push(judged.error_ppm());
        let bound = judged.wcet.value;
        self.bounds += u128::from(bound.0);
        let longest = judged.took.last().copied().unwrap_or_default();
        if longest > bound {
            self.excesses.push((bound, longest - bound));
        }
        Ok(())
    }

    /// Takes in what another one has seen.
    pub fn join(&mut self, other: Self) {
        self.errors.extend(other.errors);
        self.bounds += other.bounds;
        self.excesses.extend(other.excesses);
    }

    /// Batches seen.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.errors.len()
    }

    /// Whether none was.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Margin (ppm) and jitter, at least `jitter`, that cover every excess: of all such pairs the one that adds least to the
    /// mean batch. A stall of the host costs a short batch as much as a long one, a slower link costs in proportion.
    fn covering(&self, jitter: Nanos) -> (u64, Nanos) {
        let million = i128::from(PPM);
        let needed = |ppm: u64| {
            let beyond =
                |(bound, by): &(Nanos, Nanos)| i128::from(by.0) * million - i128::from(bound.0) * i128::from(ppm);
            self.excesses.iter().map(beyond).max().unwrap_or(0).max(i128::from(jitter.0) * million)
        };
        let mean = i128::try_from(self.bounds / self.errors.len().max(1) as u128).unwrap_or(i128::MAX >> 32);
        let total = |ppm: u64| needed(ppm) + mean * i128::from(ppm);
        // The total is convex: its last minimum is where it begins to rise.
        let (mut low, mut high) = (0, LARGEST_PPM);
        while low < high {
            let middle = low + (high - low) / 2;
            if total(middle + 1) > total(middle) { high = middle } else { low = middle + 1 }
        }
        let jitter = (needed(low) + million - 1) / million;
        (low, Nanos(u64::try_from(jitter).unwrap_or(u64::MAX)))
    }

    /// Puts into the calibration of `machine` how well it predicts, and raises margin and jitter to 1.25 times what covers
    /// every excess over the bound. Nothing changes without batches or without calibration.
    pub fn put(self, machine: &mut Machine) {
        let Some(calibration) = machine.calibration.take_if(|_| !self.is_empty()) else { return };
        let (margin_ppm, jitter) = self.covering(calibration.jitter);
        let more = |least: u64| least.saturating_add(least.div_ceil(4));
        let found = Accuracy::of(self.errors);
        machine.calibration = Some(Calibration {
            batches: u32::try_from(found.n).unwrap_or(u32::MAX),
            margin_ppm: calibration.margin_ppm.max(more(margin_ppm).min(LARGEST_PPM)),
            jitter: if jitter > calibration.jitter { Nanos(more(jitter.0)) } else { calibration.jitter },
            median_ppm: found.median_ppm,
            p95_ppm: found.p95_ppm,
            max_ppm: found.max_ppm,
            ..calibration
        });
    }
}

/// Checks `machine` with `trials`, which it was not fitted to ([`TrialErrors::put`]).
///
/// # Errors
/// [`Starved`] when some block would get no rate.
pub fn validate(machine: &mut Machine, trials: &[Trial]) -> Result<(), Starved> {
    let Some(calibration) = machine.calibration.clone() else { return Ok(()) };
    let (network, mut seen) = (Network::new(machine), TrialErrors::default());
    for trial in trials {
        seen.add(trial, &network, &calibration)?;
    }
    seen.put(machine);
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
    use crate::interconnect::tests::fixtures::{block, figure_ii_1};

    #[test]
    fn a_trial_is_judged_by_the_median_and_each_repetition_against_the_bound() {
        let (machine, order) = figure_ii_1();
        let network = Network::new(&machine);
        let text = include_str!("../../tests/machines/h200-x4.toml");
        let calibration =
            crate::files::machine::parse("h200-x4", text).expect("it parses").calibration.expect("it has one");
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
    fn margin_and_jitter_cover_every_excess_at_least_cost_of_the_mean_batch() {
        let us = |bound: u64, by: u64| (Nanos(bound * 1000), Nanos(by * 1000));
        let seen = |excesses: &[(Nanos, Nanos)], mean: u64| TrialErrors {
            errors: vec![0; 4],
            bounds: 4 * u128::from(mean) * 1000,
            excesses: excesses.to_vec(),
        };
        let jitter = Nanos(100_000);
        assert_eq!(seen(&[us(5000, 100)], 1000).covering(jitter), (0, jitter));
        // Links that are slower by a tenth, and nothing else.
        assert_eq!(seen(&[us(1000, 200), us(5000, 600)], 1000).covering(jitter), (100_000, jitter));
        // A stall of a millisecond in a short batch, and in a long one: no margin would help the short one.
        assert_eq!(seen(&[us(10, 1000), us(5000, 1000)], 1000).covering(jitter), (0, Nanos(1_000_000)));
        // One of each.
        assert_eq!(seen(&[us(10, 500), us(5000, 999)], 1000).covering(jitter), (100_000, Nanos(499_000)));
        assert_eq!(seen(&[], 1000).covering(jitter), (0, jitter));
        assert_eq!(seen(&[(Nanos(3), Nanos(u64::MAX))], 1000).covering(jitter), (0, Nanos(u64::MAX)));
    }

    #[test]
    fn validation_stores_errors_and_raises_the_margin_by_what_exceeds_the_bound() {
        let text = include_str!("../../tests/machines/h200-x1.toml");
        let machine = crate::files::machine::parse("h200-x1", text).expect("it parses");
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
