//! What the programs `headway` and `headway-lab` have in common: results, remarks, progress, errors, and options.
#![forbid(unsafe_code)]

pub mod events;
pub mod failure;
pub mod terminal;
pub mod values;
