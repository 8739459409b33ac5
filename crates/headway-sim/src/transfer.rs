//! Copies in virtual time: the pipeline of `staged` and `multipath` chunk by chunk, and the other methods as what they keep
//! busy, for how long a profile says.
//!
//! Nothing here is a measurement: the first figures are of the model's parameters, the second of the profile's curves.

mod copies;
mod pipeline;

pub use self::copies::{Completed, CopiesError, Requested, simulate_copies};
pub use self::pipeline::{Leg, NoLink, Staged, StagedEvent, StagedLink, StagedRun, simulate_staged};
