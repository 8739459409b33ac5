//! Transfers that no window is planned for: bulk ones take what others leave over, a program requests urgent ones while others run.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Nanos};

/// A transfer without windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplanned {
    pub id: String,
    /// Endpoint it leaves.
    pub from: String,
    /// Endpoint it must reach.
    pub to: String,
    /// Nothing of it moves before, counted from the start of the run.
    pub start: Nanos,
    /// Which of the two it is.
    pub kind: UnplannedKind,
}

/// How it stands among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnplannedKind {
    /// Without deadline, behind all others; so many bytes, or as many as move until the last window of the others.
    Bulk(Option<Bytes>),
    /// One copy at a time, asked for at run time.
    Urgent(Urgent),
}

/// Requests for single copies: what they ask for, and when a run makes them by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Urgent {
    /// Size of the largest request.
    pub bytes: Bytes,
    /// Relative deadline of the requests that a run makes.
    pub deadline: Nanos,
    /// Mean distance of the requests that a run makes at random; `None` = only callers of the library make some.
    pub every: Option<Nanos>,
    /// What becomes of these when they do not fit.
    pub otherwise: Otherwise,
}

/// What becomes of an urgent request that would let others miss deadlines, or miss its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Otherwise {
    /// It is refused.
    #[default]
    Refuse,
    /// It goes behind everything that is guaranteed, and before bulk transfers, whenever that may be.
    BestEffort,
}
