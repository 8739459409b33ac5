//! Arbitration of GPUs between processes: which process may use which GPU, and when it may use each engine (specification of sharing, 7).
//!
//! One **broker** per machine decides. It drives the state machine [`headway_core::decisions::broker::Book`], has one thread, and has no
//! GPU context of its own. Processes are its **clients**:
//!
//! * Control messages go over a Unix socket. The kernel identifies the process at the other end.
//! * Requests and answers go through pages that one client and the broker share. Futexes and a bell are used only where the other
//!   side sleeps.
//! * While one client alone holds tokens of a GPU, the broker **leases** that GPU's engines to it. Then taking an engine and giving it
//!   back is a compare-and-swap each, without a system call and without the broker.
//!
//! # What it costs
//! A sleeping broker must be woken first. This takes longer than everything else: a few microseconds on a bare machine, 50 to
//! 600 in virtual machines. So the broker polls for requests for [`ServerOptions::spin`] before it sleeps, and for at most
//! [`ServerOptions::spin_share_ppm`] of the time. The defaults depend on the number of CPUs:
//!
//! * With eight CPUs or more it stays awake while requests are at most 10 ms apart. This costs up to one CPU.
//! * With fewer CPUs it polls for up to 200 us. This costs up to a quarter of a CPU.
//!
//! # What other clients can do
//! No two clients share a page. The broker copies and checks everything that it reads from a page. Its own book, not the page, records
//! the holders of tokens and engines. So a client that lies harms only itself.
//!
//! A client that ends, in whatever way, gives back what it held after [`ServerOptions::drain`]. If a client hangs with a token, the broker
//! cuts it off after [`ServerOptions::watchdog`]. These two times bound what a client can cost the others in addition to its regular use.
//! Work in flight on a GPU cannot be recalled. If a process was stopped for longer than these times between a grant and its use, it goes
//! on as if it still held the token, until it makes a request or checks ([`client::Token::is_revoked`]). No program outside the
//! kernel can prevent that.
//!
//! No client stays the most urgent one for ever, whatever it claims:
//!
//! * A job that asks after its deadline counts as due now.
//! * If a task uses more than twice the time that it declared, its next job counts as due later.
//! * If a client uses more than [`BrokerLimits::urgent_ppm`] of the tokens while others wait, it comes after all of them.
//!
//! Jobs in time, of clients that leave others their share, keep their keys, so that the bounds of the analysis hold for them.
//! Against many processes of the same user that each keep to their share, a job can rely on its own deadline only: after the deadline it
//! goes first.
//!
//! # Several users
//! Keys order the jobs of one user. If several users request tokens of a cluster, they take turns: a free token goes to the user with the
//! least recent use, and of that user's jobs to the most urgent one. The number of a user's processes and their claims do not matter.
//! Neither a new connection nor a restart of the broker resets the use, since the broker records it next to the socket. If one of a
//! user's clients hung and was cut off, the broker passes over that user for the time of the watchdog. This time doubles with
//! each repetition, up to eight times the watchdog.
//!
//! Let `W` be the watchdog, `D` the drain, `K` the tokens of a GPU and `T = (K + 1) W + D`. A user with less use than all others gets a
//! token within `T`. Each of `U` users gets one within `T (U + log2(6 U) / 8)`. It is `T` more in modes where requests stand in line for
//! one token. Time for which a user is passed over is not counted. No other bounds hold between users: the bounds of the
//! analysis are for one user while no other user has made a request for ten seconds. Then every request goes to the arbiter at once.
//!
//! The broker grants the engines of a GPU to the holders of its tokens in the order of arrival. So each holder waits for at most one operation
//! of each other holder. With `--urgent-first`, more urgent jobs of others delay a job by at most `T / 8`.
//!
//! # Flows
//! A program may have copies with promised deadlines admitted beside those of other programs ([`Client::open_flow`]). Each process takes turns at
//! an engine, whatever the others do, so that the bound contains one turn of each other process for each chunk. The broker counts
//! processes, by the kernel's word, and tells each client what its engines cost then ([`Client::terms`]). Flows are lost with the connection.
//!
//! # Priorities of clients' threads
//! With [`ServerOptions::boost`] the thread of a holder gets a real-time priority by its urgency. For threads of other users than the
//! broker's, [`ServerOptions::lend_realtime`] is the limit. The broker restores the priority when the client gives the token back, when
//! it cuts the client off, and when the broker itself ends.
//!
//! If the broker is killed, a guardian restores the priorities. The guardian is a process of a few pages that the broker starts first.
//! It identifies each thread by its number and start time. If a guardian ends alone, the broker replaces it within half a second. If
//! both are killed at once, for example by a `SIGKILL` to a whole control group, threads stay raised until they end or until the next broker at the
//! socket starts. That broker restores what is in the record: so start another one after that.
//!
//! # Where it listens
//! A private broker listens in a folder that belongs to its user and in which no other user may write. All folders above it must belong to
//! root or to its user. A broker for a group gives the socket to the folder's group. The broker holds a lock (`flock`) next to the socket
//! for its whole life. So there is one broker for each socket, however many are started at once. The broker neither replaces nor removes a file
//! with the socket's name that no broker left there. A client sends nothing to a broker of an untrusted user. It trusts its own user, root, and
//! the owner of a folder that only root can have made for that owner ([`ClientError::Stranger`]).
//!
//! A GPU with a UUID from the driver or the machine file has one broker in the whole machine ([`ServerOptions::claims`]):
//!
//! * The broker binds a name without a file (`headway-gpu/UUID`, an abstract Unix socket). The kernel gives this name to one process of a
//!   network namespace at a time, and frees it when that process ends. The error names the process that has it.
//! * It also locks a file, `/dev/shm/headway-gpu-UUID.lock`. This lock holds for all network namespaces with the same `/dev/shm`.
//!
//! Containers that share neither do not see each other's brokers: give a GPU to one of them, or run the broker outside. Any
//! user can take such a name or lock such a file. [`ServerOptions::despite_claims`] starts a broker although another user has the claim; two
//! brokers of one user never have the same GPU. A GPU without a UUID is simulated: it exists in its broker only.
//!
//! # When a GPU is lost
//! The broker believes its [`GpuProbe`] or its owner, and no client. If a client reports an error ([`Client::report_fault`]), the probe examines
//! the GPU at once. When a GPU is lost,
//!
//! * clients that hold a token of it or wait for one of its engines get [`ClientError::GpuLost`];
//! * clients that wait for a token wait for one of the other GPUs;
//! * the status lists the tasks that no longer fit by their declared times.
//!
//! # When the broker ends
//! Clients finish the operation whose lock they hold. Then they wait or fail, as they choose ([`OnLoss`]). A broker that is started again
//! at the same socket waits [`ServerOptions::recover`] for its former clients. It takes over the tokens and engines that they claim to hold, and
//! only then grants to others. A task can come back only with its former process. A client that does not come back within that time
//! counts as ended.
//!
//! Next to the socket the broker always keeps a record of the tokens and their holders (`.state`, `.held`). It believes a claim
//! only if the record agrees about the process, its start time and its user. A damaged record is an error. With a log
//! ([`ServerOptions::log`]) the broker also remembers what those processes cannot report: costs of jobs, where state is, lost GPUs,
//! and changes of the configuration. It logs an input and its outcome before it answers. After a full log file
//! ([`ServerOptions::log_bytes`]) it begins another one with a snapshot, so that a start needs no other file.
//!
//! # When a disk is full or broken
//! The broker goes on, reports it once ([`ServerOptions::tell`]) and in its status, and tries again every second. When that works it
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
mod wakeups_tests;

pub use client::{Client, OnLoss};
pub use error::{ClientError, RefusalReason, ServerError};
pub use layout::{GPUS_MAX, TASKS_MAX};
pub use message::{FlowTerms, ProgramEngine, TaskShape};
pub use mps::{MpsError, MpsOptions};
pub use server::{BrokerLimits, BrokerServer, DiskFaults, GpuProbe, Health, ServerOptions, Tell, UserAccess};
pub use status::{
    BrokerStatus, ClientStatus, Counts, FlowStatus, GpuStatus, JobStatus, LimitUse, MemoryStatus, MpsStatus, Phase,
    SharedUse, UserStatus,
};
