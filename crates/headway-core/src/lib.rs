//! The pure part of Headway: units, machine and workload models, the interconnect model, schedulability, plans, and the
//! sans-IO state machines that the simulator, the emulated device and the GPU all drive.
//!
//! Nothing here reads a clock, a file or an environment variable, starts a thread, or decides by a float. Time is an
//! argument; what must be done next is a return value. See ARCHITECTURE.md for the contract.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod decisions;
pub mod files;
pub mod interconnect;
pub mod log;
pub mod models;
pub mod plan;
pub mod units;
