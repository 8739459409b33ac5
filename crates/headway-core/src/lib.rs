//! The pure part of Headway: units, machine and workload models, the interconnect model, schedulability, plans, and the
//! sans-IO state machines that the simulator, the emulated device and the GPU all drive.
//!
//! Nothing here reads a clock, a file or an environment variable, starts a thread, or decides by a float. Time is an
//! argument; what must be done next is a return value. See ARCHITECTURE.md for the contract.
#![forbid(unsafe_code)]

pub mod block;
pub mod combine;
pub mod cpu;
pub mod dispatch;
mod document;
pub mod engine_lock;
pub mod error;
pub mod guest;
pub mod interconnect;
pub mod log;
pub mod machine;
pub mod message;
mod pairs;
pub mod payload;
pub mod plan;
pub mod planner;
pub mod predictor;
pub mod schedulability;
pub mod sharing;
pub mod sharing_analysis;
pub mod staging;
pub mod stream;
pub mod token;
pub mod transfer;
pub mod units;
mod wide;
pub mod workload;
