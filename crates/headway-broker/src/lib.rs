//! Arbitration of GPUs between processes: who may use which GPU, and when each of its engines (specification of sharing, 7).
//!
//! One **broker** per machine decides, with the state machine of [`headway_core::decisions::sharing`], in one thread and without a GPU
//! context of its own. Processes are its **clients**:
//!
//! * control goes over a Unix socket that the kernel tells the peer of;
//! * requests and answers go through pages that one client and the broker share, with futexes and a bell only where the
//!   other side sleeps;
//! * while one client alone holds tokens of a GPU it is **leased** that GPU's engines: taking and giving back one of them is
//!   a compare-and-swap each, without a system call and without the broker.
//!
//! # What it costs
//! A broker that sleeps must be woken first, which takes longer than all else: a few microseconds on a bare machine, 50 to
//! 600 in virtual ones. So it looks for requests for [`ServerOptions::spin`] before it sleeps, and for at most
//! [`ServerOptions::spin_share_ppm`] of the time. By default, with eight CPUs or more: it stays awake while it is asked every 10 ms,
//! at the price of one CPU; with fewer CPUs: it looks for up to 200 us, at the price of a quarter of one.
//!
//! # What others can do to you
//! No two clients share a page. Everything that the broker reads from a page is copied once and checked; its own book, not
//! the page, says who holds what. So a client that lies harms itself. A client that ends, however it ends, gives back what
//! it held after [`ServerOptions::drain`]; one that hangs with a token after [`ServerOptions::watchdog`], and is cut off. Those two
//! times bound what a client can cost the others beside its regular use. What is in flight on a GPU cannot be recalled, and a
//! process that was stopped for longer than that, between a grant and its use, goes on as if it still held it until it asks or
//! looks ([`client::Token::is_revoked`]): no program outside the kernel can keep it from the GPU.
//!
//! Nobody is the most urgent for ever, whatever it says. A job that asks after its deadline counts as due now. A task that uses
//! more than twice the time that it declared is due later the next time. A client that
//! uses more than [`BrokerLimits::urgent_ppm`] of the tokens while others wait comes after all of them. Jobs in time, of clients
//! that leave others their share, keep the keys that they gave, so that the bounds of the analysis hold for them. Against many
//! processes of the same user that each keep to their share, a job can rely on its own deadline only: when that has passed it
//! goes first.
//!
//! # Several users
//! Keys order the jobs of one user. Where several users ask for tokens of a cluster, they take turns: a token that becomes free
//! goes to the user who has used least lately, however many processes each of them runs and whatever they say, and of that user
//! to the most urgent job. To connect again begins nothing anew, and neither does a start of the broker: use is written down
//! beside the socket. A user one of whose clients was cut off since it hung is passed over for as long as the watchdog, and
//! twice as long each time it happens again, up to eight times.
//!
//! With the watchdog `W`, the drain `D`, `K` tokens a GPU and `T = (K + 1) W + D`, a user who has used less than all others is
//! granted a token within `T`, and each of `U` users within `T (U + log2(6 U) / 8)`; `T` more in modes where requests stand in line for one token, and not
//! counting the time for which it is passed over. These are the only bounds that hold between users: bounds of the analysis are
//! for one user, while nobody else has asked for ten seconds. Then every request goes to the arbiter at once.
//!
//! Engines of a GPU are granted in the order of arrival to those who hold its tokens, so that each waits for one operation of each
//! other holder at most. With `--urgent-first`, no job is held back by more urgent ones of others for longer than `T / 8`.
//!
//! # Priorities of clients' threads
//! With [`ServerOptions::boost`] the thread of a holder gets a real-time priority by its urgency; of another user than the broker's only up to
//! [`ServerOptions::lend_realtime`]. The broker takes it back when the token is given back, the client is cut off, or it ends itself. A
//! guardian, a process of a few pages that the broker starts first, does so if the broker is killed: it knows each thread by its
//! number and the time of its start. A guardian that ends alone is replaced within half a second. What kills both at once, as `SIGKILL` to a
//! whole control group, leaves threads raised until they end or the next broker at the socket starts, which takes back what the record
//! has: so start another one after that.
//!
//! # Where it listens
//! A private broker listens in a folder that must be its user's and in which nobody else may write, below folders of root and of
//! its user only; one for a group gives the socket to the folder's group. A lock beside the socket (`flock`) is held for life, so that there is one broker a socket
//! however many are started at once. What has the socket's name and was not left by a broker is neither replaced nor removed.
//! A client says nothing to a broker that is not its own user's, root's, or the owner's of a folder that only root can have
//! made for him ([`ClientError::Stranger`]).
//!
//! A GPU that the driver or the machine file knows by a UUID has one broker in the whole machine ([`ServerOptions::claims`]): the broker
//! binds a name without a file (`headway-gpu/UUID`, an abstract Unix socket), which the kernel gives to one process of a
//! network namespace at a time and takes back when it ends. The error names the process that has it. It also locks a file, `/dev/shm/headway-gpu-UUID.lock`,
//! which counts for all network namespaces that see the same `/dev/shm`. Containers that share neither with each other do not see each
//! other's brokers: give a GPU to one of them, or have the broker outside. Any user can take such a name or lock such a
//! file. [`ServerOptions::despite_claims`] starts a broker although another user has it; of one user, two brokers never have one GPU. A GPU without a UUID is simulated: it exists in its broker only.
//!
//! # When a GPU is lost
//! The broker believes its [`Probe`] or its owner, no client: what a client meets ([`Client::report_fault`]) has the probe
//! look at once. Who held a token of the GPU, or waited for an engine of it, is told ([`ClientError::GpuLost`]); who waits for
//! a token waits for one of the GPUs that are left; tasks that no longer fit by what they declare are listed in the status.
//!
//! # When the broker ends
//! Clients finish what they hold a lock for and wait, or fail, as they choose ([`OnLoss`]). A broker that is started again
//! at the same socket waits [`ServerOptions::recover`] for them, takes over the tokens and engines that they say they hold, and
//! grants to others only then. A task comes back only with the process that had it. Who does not come back within that time
//! counts as ended.
//! Beside the socket the broker always keeps a record of the tokens and their holders (`.state`, `.held`). It believes a claim
//! only if the record says the same of that process, its start and its user. A damaged record is an error. With a log ([`ServerOptions::log`]) it also remembers what those
//! processes cannot tell: what jobs cost, where state is, which GPUs are lost, what was reconfigured. The broker logs an input
//! and its outcome before it answers. A file of the log that is full ([`ServerOptions::log_bytes`]) is followed by another one,
//! which begins with a snapshot: a start needs no other file.
//!
//! # When a disk is full or broken
//! The broker goes on, says so once ([`ServerOptions::tell`]) and in its status, and tries again every second. When that works it
//! writes a snapshot. With [`ServerOptions::must_remember`] it grants nothing meanwhile.
#![forbid(unsafe_code)]

pub mod client;
mod error;
mod folder;
mod layout;
mod message;
pub mod mps;
pub mod place;
mod protocol;
mod server;
mod status;
mod text;
#[cfg(test)]
mod wakeups;

pub use client::{Client, OnLoss};
pub use error::{ClientError, Reason, ServerError};
pub use layout::{GPUS_MAX, TASKS_MAX};
pub use message::TaskShape;
pub use mps::{MpsError, MpsOptions};
pub use server::{Access, BrokerLimits, Faults, Health, Probe, Server, ServerOptions, Tell};
pub use status::{ClientStatus, Counts, GpuStatus, JobStatus, MemoryStatus, MpsStatus, Phase, Status};
