//! The commands of the laboratory.

mod args;
mod broker;
mod combine;
mod experiments;
mod foreign;
mod interconnect;

pub(crate) use self::args::{Command, Lab};
pub(crate) use self::broker::broker;
pub(crate) use self::combine::combine;
pub(crate) use self::experiments::experiment;
pub(crate) use self::foreign::{export, import, plot};
pub(crate) use self::interconnect::interconnect;
