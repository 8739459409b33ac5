//! The wall-clock driver, and the files, blocks and buffers that every run uses.
#![forbid(unsafe_code)]

mod at;
pub mod blocks;
pub mod copy;
pub mod cores;
pub mod endpoints;
pub mod host;
pub mod intake;
mod job;
pub mod kernels;
pub mod outlet;
pub mod pattern;
pub mod program;
mod settle;
pub mod shards;
pub mod sharing;
pub mod staging;
pub mod tail;
mod wait;
pub mod wall;
