//! What a run did, from its event log alone: [`RunLog`] and [`LogWriter`] read and write it, [`summary`] sums it up,
//! [`replay`] feeds it to a new dispatcher, [`perfetto`] and [`page`] draw it.
//!
//! Nothing here reads a clock or opens a file: callers give readers and writers, and every time is one of the log.
#![forbid(unsafe_code)]

pub mod broker;
mod check;
mod due;
mod elementary;
pub mod excerpt;
pub mod guest;
pub mod page;
pub mod perfetto;
mod proto;
pub mod reader;
pub mod replay;
mod response;
pub mod sharing;
pub mod summary;
mod table;
pub mod timeline;
pub mod unplanned;
pub mod writer;

pub use reader::{LogError, RunLog};
pub use writer::LogWriter;
