//! Arbitration of GPUs between processes: who may use which GPU, and when each of its engines (specification of sharing, 7).
//!
//! One **broker** per machine decides, with the state machine of [`headway_core::sharing`], in one thread and without a GPU
//! context of its own. Processes are its **clients**:
//!
//! * control goes over a Unix socket that the kernel tells the peer of;
//! * requests and answers go through pages that one client and the broker share, with futexes and a bell only where the
//!   other side sleeps;
//! * while one client alone holds tokens of a GPU it is **leased** that GPU's engines: taking and giving back one of them is
//!   a compare-and-swap each, without a system call and without the broker.
//!
//! # What others can do to you
//! No two clients share a page. Everything that the broker reads from a page is copied once and checked; its own book, not
//! the page, says who holds what. So a client that lies harms itself. A client that ends, however it ends, gives back what
//! it held after [`Options::drain`]; one that hangs with a token after [`Options::watchdog`], and is cut off. Those two
//! times bound what a client can cost the others beside its regular use. What is in flight on a GPU cannot be recalled.
//!
//! # When the broker ends
//! Clients finish what they hold a lock for and wait, or fail, as they choose ([`OnLoss`]). A broker that is started again
//! at the same socket waits [`Options::recover`] for them, takes over the tokens and engines that they say they hold, and
//! grants to others only then. Who does not come back within that time counts as ended.
#![forbid(unsafe_code)]

pub mod client;
mod error;
mod layout;
mod message;
pub mod place;
mod protocol;
mod server;
mod status;

pub use client::{Client, OnLoss};
pub use error::{ClientError, Reason, ServerError};
pub use layout::{GPUS_MAX, TASKS_MAX};
pub use message::TaskShape;
pub use server::{Access, BrokerLimits, Health, Options, Probe, Server};
pub use status::{ClientStatus, Counts, GpuStatus, JobStatus, Phase, Status};
