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
pub mod ring;
pub mod rows;
pub mod simulation;
pub mod study;
pub mod trackers;

use child::ChildRole;
pub use error::Error;

/// Takes `part` until the parent ends; whether it could.
#[must_use]
pub fn serve_child(part: ChildRole, order: &str) -> bool {
    match part {
        ChildRole::Load => reproduce::load(order),
        ChildRole::Broker => return broker::take_part(order),
        ChildRole::Camera => reproduce::camera(),
    }
    true
}
