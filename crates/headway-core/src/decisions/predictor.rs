//! How long a job will hold a token: predicted from what its task's jobs took, per distance the state had to travel.
//!
//! Elliott 2013, 4.1, in two forms. An estimate is a prediction, never a bound: placement uses it, admission does not.

mod estimator;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::estimator::{Estimator, SampleOutcome};
use crate::decisions::sharing::{Class, ModelId, TaskId};
use crate::units::Nanos;

/// How an [`Estimator`] follows its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// The paper's feedback controller: `err = observed - est; est = a*err + b*acc; acc += err`.
    Pi {
        /// Proportional gain in units of 2^-16.
        a_q16: u32,
        /// Integral gain in units of 2^-16.
        b_q16: u32,
    },
    /// The mean of the last 20 samples that were not outliers.
    Window {
        /// The published outlier rule, which freezes; without the repair.
        published: bool,
    },
}

impl Form {
    /// The default controller: `a = b = 1/4`.
    pub const PI: Self = Self::Pi { a_q16: 1 << 14, b_q16: 1 << 14 };
    /// The default: a window with the repair.
    pub const WINDOW: Self = Self::Window { published: false };
}

/// What an estimate is about: an acquisition of a task on a model of GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subject {
    pub task: TaskId,
    /// Which of the token requests of a job, from 0.
    pub acquisition: u32,
    /// The model of GPU.
    pub model: ModelId,
}

/// The predictor's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictorParameters {
    /// Form of every estimator.
    pub form: Form,
    /// Declared speed of each model, in any unit they share; empty = all alike.
    pub speeds: Vec<u64>,
    /// Most estimators kept.
    pub estimators_max: usize,
}

impl Default for PredictorParameters {
    fn default() -> Self {
        Self { form: Form::WINDOW, speeds: Vec::new(), estimators_max: 65_536 }
    }
}

/// Estimators of all tasks, by acquisition, model and distance class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predictor {
    parameters: PredictorParameters,
    #[serde(with = "crate::decisions::pairs")]
    estimators: BTreeMap<Subject, BTreeMap<Class, Estimator>>,
    count: usize,
}

impl Predictor {
    /// A predictor that knows nothing.
    #[must_use]
    pub fn new(parameters: PredictorParameters) -> Self {
        Self { parameters, estimators: BTreeMap::new(), count: 0 }
    }

    /// Learns that `subject` held a token for `observed` after its state travelled `class`. `period` is the task's.
    pub fn handle_observation(
        &mut self,
        subject: Subject,
        class: Class,
        observed: Nanos,
        period: Nanos,
    ) -> SampleOutcome {
        let known = self.estimators.get(&subject).is_some_and(|classes| classes.contains_key(&class));
        if !known && self.count >= self.parameters.estimators_max {
            return SampleOutcome::NoRoom;
        }
        self.count += usize::from(!known);
        let form = self.parameters.form;
        let classes = self.estimators.entry(subject).or_default();
        classes.entry(class).or_insert_with(|| Estimator::new(form)).handle_sample(observed, period)
    }

    /// Predicted hold time: the greatest estimate of the classes up to `class`, so that a longer way never looks cheaper.
    /// Without data for the model, that of another model scaled by the declared speeds; without any, `class + 1` ns:
    /// unknown tasks look free, yet prefer near GPUs.
    #[must_use]
    pub fn estimate(&self, subject: Subject, class: Class) -> Nanos {
        if let Some(known) = self.known(subject, class) {
            return known;
        }
        let from = Subject { model: ModelId(0), ..subject };
        let to = Subject { model: ModelId(u32::MAX), ..subject };
        let scaled = self.estimators.range(from..=to).find_map(|(other, _)| {
            let (theirs, ours) = (self.speed(other.model)?, self.speed(subject.model)?);
            let known = u128::from(self.known(*other, class)?.0);
            let scaled = (known * u128::from(theirs)).div_ceil(u128::from(ours));
            Some(Nanos(u64::try_from(scaled).unwrap_or(u64::MAX)))
        });
        scaled.unwrap_or_else(|| Nanos(u64::from(class.0) + 1))
    }

    /// Everything that is known, to be given to [`Predictor::handle_recall`] of another one.
    pub fn estimators(&self) -> impl Iterator<Item = (Subject, Class, &Estimator)> {
        let all = self.estimators.iter();
        all.flat_map(|(subject, classes)| classes.iter().map(|(class, estimator)| (*subject, *class, estimator)))
    }

    /// Takes over what another predictor of the same form knew; what exceeds the room for it is dropped.
    pub fn handle_recall(&mut self, subject: Subject, class: Class, estimator: Estimator) {
        let known = self.estimators.get(&subject).is_some_and(|classes| classes.contains_key(&class));
        if known || self.count >= self.parameters.estimators_max {
            return;
        }
        self.count += 1;
        self.estimators.entry(subject).or_default().insert(class, estimator);
    }

    /// Drops what is known of tasks that `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(TaskId) -> bool) {
        self.estimators.retain(|subject, _| keep(subject.task));
        self.count = self.estimators.values().map(BTreeMap::len).sum();
    }

    /// Drops what is known of a task.
    pub fn forget(&mut self, task: TaskId) {
        let from = Subject { task, acquisition: 0, model: ModelId(0) };
        let to = Subject { task, acquisition: u32::MAX, model: ModelId(u32::MAX) };
        let gone: Vec<Subject> = self.estimators.range(from..=to).map(|(subject, _)| *subject).collect();
        for subject in gone {
            self.count -= self.estimators.remove(&subject).map_or(0, |classes| classes.len());
        }
    }

    fn known(&self, subject: Subject, class: Class) -> Option<Nanos> {
        let classes = self.estimators.get(&subject)?;
        classes.range(..=class).filter_map(|(_, estimator)| estimator.estimate()).max()
    }

    fn speed(&self, model: ModelId) -> Option<u64> {
        self.parameters.speeds.get(model.0 as usize).copied().filter(|speed| *speed > 0)
    }
}

#[cfg(test)]
mod tests;
