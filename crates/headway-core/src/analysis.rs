//! Whether deadlines hold: tests of one engine's tasks, and bounds on what jobs that share GPUs wait for.

pub mod schedulability;
pub mod sharing;
