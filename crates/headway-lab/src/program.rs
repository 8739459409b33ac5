//! The commands of the laboratory.

mod args;
mod combine;
mod experiments;
mod foreign;

pub(crate) use self::args::{Command, Lab};
pub(crate) use self::combine::combine;
pub(crate) use self::experiments::experiment;
pub(crate) use self::foreign::{export, import, plot};
