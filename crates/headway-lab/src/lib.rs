//! The laboratory: experiments of papers, message combining timed, task sets of other tools, and plots.
#![forbid(unsafe_code)]

pub mod broker;
pub mod child;
pub mod combine;
mod error;
pub mod formats;
pub mod interconnect;
pub mod klt;
pub mod reproduce;
pub mod rows;
pub mod simulation;
pub mod study;
pub mod trackers;

pub use error::Error;
