//! What a transformation may do, and what it gives.

use serde::{Deserialize, Serialize};

use super::{Counting, Utilisation};
use crate::analysis::schedulability::RecurrentTask;
use crate::files::workload::CombineEffort;
use crate::interconnect::Starved;
use crate::plan::message::{Batch, TIME_MAX};
use crate::units::Nanos;

/// What the user may decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CombineOptions {
    /// How hard to look.
    pub mode: CombineEffort,
    /// How slots are counted.
    pub counting: Counting,
}

/// Bounds on the work of one transformation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombineLimits {
    /// Messages of [`CombineEffort::Optimal`].
    pub optimal_max: usize,
    /// Members looked at by [`CombineEffort::Search`], counted once per batch that is priced.
    pub search_max: u64,
    /// Batches and pairs of messages that [`CombineEffort::Search`] looks at, whether they are priced or not.
    pub looks_max: u64,
    /// Batches up to which the greedy algorithm looks at all pairs from the start.
    pub greedy_max: usize,
    /// Sets that are tested.
    pub tests_max: usize,
}

/// The limits that every transformation here uses.
pub const LIMITS: CombineLimits =
    CombineLimits { optimal_max: 16, search_max: 2_000_000, looks_max: 4_000_000, greedy_max: 2_000, tests_max: 4_096 };

/// A batch with its worst-case time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priced {
    pub batch: Batch,
    /// Its worst-case time.
    pub cost: Nanos,
}

impl Priced {
    /// What it takes of the interconnect's time.
    #[must_use]
    pub const fn utilisation(&self) -> Utilisation {
        Utilisation::of(self.cost, self.batch.grid.period)
    }

    /// As the schedulability tests see it.
    #[must_use]
    pub const fn task(&self) -> RecurrentTask {
        RecurrentTask::whole(self.cost, self.batch.grid.period, self.batch.grid.window)
    }
}

/// Which of the sets met on the way was returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptSet {
    /// The greedy algorithm's after this many combinings; 0 = the set that was given.
    Prefix(usize),
    /// After this many combinings of the greedy algorithm that makes no batch which blocks a shorter deadline for too long.
    Guarded(usize),
    /// What the search made of the greedy result.
    Searched,
    /// The optimum.
    Optimal,
}

/// A transformed set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transformed {
    /// The batches, by their first elementary message.
    pub batches: Vec<Priced>,
    /// Which of the sets it is.
    pub kept: KeptSet,
    /// Whether it passes the test. If not, no set that was tried passes, and this is the one after all combinings.
    pub accepted: bool,
    /// The sum of utilisations before the first combining and after each one of the greedy algorithm.
    pub sums: Vec<Utilisation>,
}

impl Transformed {
    /// The sum of utilisations.
    #[must_use]
    pub fn sum(&self) -> Utilisation {
        self.batches.iter().map(Priced::utilisation).sum()
    }
}

/// A set that cannot be transformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CombineError {
    /// A route has no rate.
    #[error("a batch cannot be priced")]
    Price(#[from] Starved),
    /// One job of a message takes too long to count with.
    #[error("one job of message `{name}` takes {cost}, and {TIME_MAX} is the limit; lower its size")]
    Cost {
        /// The first message of the batch.
        name: String,
        /// What a job costs.
        cost: Nanos,
    },
    /// The optimum of so many messages would take too long.
    #[error("the optimum is sought for at most {max} messages, and these are {messages}; use `search`")]
    TooMany {
        messages: usize,
        /// [`LIMITS`]`.optimal_max`.
        max: usize,
    },
}

/// Whether a set of tasks passes; true = every deadline holds.
pub type Accepts<'t> = &'t mut dyn FnMut(&[RecurrentTask]) -> bool;
