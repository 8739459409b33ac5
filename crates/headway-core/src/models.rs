//! How hardware behaves: what concurrent transfers give each other, what each method costs, what threads get of the CPUs.

pub mod cpu;
pub mod index;
pub mod sharing;
pub mod transfer;
pub(crate) mod wide;
