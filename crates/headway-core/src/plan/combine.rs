//! Message combining (`verner-2014`, IV): two periodic messages become one whose blocks move in parallel.
//!
//! The slower message's blocks are split over slots of the faster one that lie wholly inside their windows, so that every
//! schedule of the combined message meets the deadlines of both. Combining lowers the time that the interconnect is
//! reserved for; [`transform`] applies it greedily (Algorithm 1), improves the result, and keeps the best set that passes a
//! schedulability test.

mod cost;
mod greedy;
mod item;
mod optimal;
mod outcome;
mod rank;
mod rules;
mod search;
mod stars;
#[cfg(test)]
mod tests;
mod transform;

pub use cost::Pricer;
pub use outcome::{Accepts, CombineError, CombineLimits, CombineOptions, KeptSet, LIMITS, Priced, Transformed};
pub use rank::{Utilisation, gain};
pub use rules::{Counting, combine, parts_max};
pub use transform::transform;

pub use crate::files::workload::CombineEffort;
