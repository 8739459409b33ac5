//! What goes into a broker's book and what comes out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::turns::UserAccount;
use crate::decisions::engine_lock::{LockId, LockedOperation};
use crate::decisions::flows::{FlowAdmitted, FlowContract, FlowEngine, FlowId, FlowRefused};
use crate::decisions::sharing::{
    ArbiterParameters, ArbiterRefused, ClientId, ClusterId, GpuId, JobId, JobPriority, JobSegment, TaskId, TokenId,
    TokenOutcome,
};
use crate::decisions::token::{self, TokenParameters};
use crate::units::{Bytes, Nanos};

/// Tasks of one client at most.
pub const TASKS_MAX: usize = 64;

/// Capacities; what exceeds them is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerLimits {
    /// Clients of one user.
    pub clients_per_user: usize,
    /// Connections of one user that have not identified themselves yet; with more, the broker ends the one that is silent for
    /// longest.
    pub guests_per_user: usize,
    /// Tasks of one user.
    pub tasks_per_user: usize,
    /// Requests for tokens of one user that are open at a time.
    pub requests_per_user: usize,
    /// Flows of one user that are open or asked for.
    pub flows_per_user: usize,
    /// How many programs' turns each flow bears from the beginning. So many programs can always open flows on an engine.
    pub flow_programs: u32,
    /// Bytes that the requests of one user add to the log, a second; at once 16 times as much.
    pub log_bytes_per_user: u64,
    /// The shortest relative deadline that a task may have. Short deadlines make a task urgent, so this limits how urgent.
    pub deadline_min: Nanos,
    /// Most of a cluster's tokens that one client gets by its urgency while others wait, in parts per million.
    pub urgent_ppm: u64,
    /// Descriptors for connections, five a client; `None` = nearly all that the system lets the broker have.
    pub descriptors: Option<usize>,
    /// CPU, copy and kernel time of one user's tasks, as they declare it, per unit of time, in parts per million; one GPU
    /// fully used is 1,000,000. `None` = of a private broker what the most GPUs have, of one for a group what its GPUs have.
    pub utilisation_ppm_per_user: Option<u64>,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self {
            clients_per_user: 64,
            guests_per_user: 16,
            tasks_per_user: 256,
            requests_per_user: 256,
            flows_per_user: 64,
            flow_programs: 1,
            log_bytes_per_user: 16 << 20,
            deadline_min: Nanos(100_000),
            urgent_ppm: 900_000,
            descriptors: None,
            utilisation_ppm_per_user: None,
        }
    }
}

/// A task as a client registers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskShape {
    /// Name, for people.
    pub name: String,
    /// Where it runs.
    pub cluster: ClusterId,
    /// Minimum time between two releases.
    pub period: Nanos,
    /// Relative deadline.
    pub deadline: Nanos,
    /// Data that migrates with the task when its GPU changes.
    pub state: Bytes,
    /// Input and output copies, kernels and CPU time while the token is held.
    pub segments: Vec<JobSegment>,
    /// Thread whose priority follows the job's, by its number in the system; `None` = none.
    pub thread: Option<u32>,
}

/// A token that a client holds from before the broker was started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldToken {
    pub job: u64,
    pub release: Nanos,
    pub gpu: GpuId,
    pub token: TokenId,
    pub slot: u32,
    pub generation: u32,
    /// Engines of that GPU in use.
    pub locks: [bool; 3],
}

/// A task that a client had before the broker was started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumedTask {
    pub id: TaskId,
    pub shape: TaskShape,
    pub held: Option<HeldToken>,
}

/// Why a request through the ring was refused; a number in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u64)]
pub enum RefusalReason {
    /// The task is not this client's, or has no such job.
    NotYours = 1,
    /// The task holds or waits already.
    Busy = 2,
    /// A limit of the broker.
    Limit = 3,
    /// The arbiter refuses such an operation: too large, not migrating, no token, no engine locks.
    Operation = 4,
    /// Every GPU of the task's cluster is lost.
    NoGpu = 6,
    /// A reason of a broker newer than this client.
    Other = 5,
}

impl RefusalReason {
    /// The reason of a number.
    #[must_use]
    pub const fn of(number: u64) -> Self {
        match number {
            1 => Self::NotYours,
            2 => Self::Busy,
            3 => Self::Limit,
            4 => Self::Operation,
            6 => Self::NoGpu,
            _ => Self::Other,
        }
    }
}

impl std::fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotYours => "the task is not this client's or has no such job",
            Self::Busy => "the task already holds or waits for this; release it first",
            Self::Limit => "a limit of the broker is reached",
            Self::Operation => {
                "the operation is not allowed here: check its size, its token and whether engine locks are on"
            }
            Self::NoGpu => "every GPU of the task's cluster is lost",
            Self::Other => "for a reason that this version does not know",
        })
    }
}

impl From<&ArbiterRefused> for RefusalReason {
    /// A refusal of the arbiter, in the words of the protocol.
    fn from(refused: &ArbiterRefused) -> Self {
        match refused {
            ArbiterRefused::Token(token::TokenRefused::TooManyRequests { .. }) => Self::Limit,
            ArbiterRefused::Token(token::TokenRefused::NoGpu { .. }) => Self::NoGpu,
            ArbiterRefused::Token(_) => Self::Busy,
            ArbiterRefused::UnknownTask { .. } => Self::NotYours,
            _ => Self::Operation,
        }
    }
}

/// What a [`Book`](super::Book) is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookParameters {
    pub arbiter: ArbiterParameters,
    pub limits: BrokerLimits,
    /// The broker's user. It and root end and configure the broker, and need not leave room for others.
    pub owner: u32,
    /// Whether what clients ask for counts as bytes of a log.
    pub is_logged: bool,
    /// Whether the book sends a grant to its client only after [`Input::Written`].
    pub must_remember: bool,
    /// A client that holds a token for longer is cut off.
    pub watchdog: Nanos,
    /// How long a GPU may still work for a process that has ended.
    pub drain: Nanos,
    /// How long clients of the broker before are waited for.
    pub recover: Nanos,
    /// Numbers of tasks begin after this one: those of earlier brokers are not given again soon, since their tasks may come back.
    pub first_task: u32,
}

/// A process with the tasks of one of its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownProcess {
    pub pid: u32,
    /// When it was started, as the kernel counts: with the number, which process it is.
    pub started: u64,
    pub uid: u32,
    pub tasks: Vec<TaskId>,
    /// Threads whose priority may follow the tasks, with the times of their starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<(u32, u64)>,
}

/// What the broker before has left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// The processes that it served and that live.
    pub clients: Vec<KnownProcess>,
    /// What its users had used.
    pub users: Vec<UserAccount>,
    /// The holder of each token, as far as the record could be written.
    pub held: BTreeMap<(ClusterId, TokenId), JobId>,
    /// The last holder of each engine, other than by lease.
    pub engines: BTreeMap<LockId, JobId>,
    /// Whether that is all.
    pub is_complete: bool,
}

/// The process at the other end of a connection, as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientProcess {
    /// 0 where the broker does not see it.
    pub pid: u32,
    pub uid: u32,
    /// The user whose limits and turns count for it: the owner of a subordinate user id, else `uid`.
    pub account: u32,
    /// When it was started; 0 where the system does not say.
    pub started: u64,
}

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    pub number: u32,
    pub generation: u32,
}

/// A leased engine that was in use when its lease ended, and by which task, as its client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInUse {
    pub lock: LockId,
    pub task: TaskId,
}

/// A copy engine as the program says it is that uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramEngine {
    /// The name by which all programs know the GPU, as its UUID.
    pub gpu: String,
    /// Numbered as in the program.
    pub engine: FlowEngine,
}

/// How a program's book must have its engines from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowTerms {
    pub version: u64,
    pub engines: Vec<FlowEngine>,
}

/// An input. Nothing else changes the book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input {
    /// A process says who it is, and with which tasks of the broker before it comes back.
    Greeting {
        client: ClientId,
        process: ClientProcess,
        name: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        resumed: Vec<ResumedTask>,
        /// Of its message.
        bytes: u64,
    },
    /// A client registers a task by a message of so many bytes.
    Register { client: ClientId, shape: TaskShape, bytes: u64 },
    /// A client withdraws a task.
    Withdraw { client: ClientId, task: TaskId, bytes: u64 },
    /// A client has met an error that a lost GPU gives.
    Fault { client: ClientId, gpu: GpuId, bytes: u64 },
    /// A client asks for a flow, and says which engines its program copies on.
    OpenFlow { client: ClientId, engines: Vec<ProgramEngine>, contract: FlowContract, bytes: u64 },
    /// A flow has left its program: none of its jobs, and nothing that it delayed, is there any more.
    CloseFlow { client: ClientId, flow: FlowId, bytes: u64 },
    /// A client's program keeps to the terms of this version.
    TermsTaken { client: ClientId, version: u64 },
    /// A client, who must be the owner, changes how tokens are given.
    Reconfigure { client: ClientId, cluster: ClusterId, tokens: TokenParameters },
    /// A GPU is lost: a client, who must be the owner, says so, or the broker's probe.
    GpuLost { client: Option<ClientId>, gpu: GpuId },
    /// A job wants a token.
    Request {
        client: ClientId,
        slot: Slot,
        job: JobId,
        release: Nanos,
        #[serde(default, skip_serializing_if = "is_zero")]
        acquisition: u32,
    },
    /// A job gives its token back.
    Release { client: ClientId, job: JobId, outcome: TokenOutcome },
    /// A job no longer wants the token.
    Abort { client: ClientId, job: JobId },
    /// A token holder wants engines.
    Acquire { client: ClientId, slot: Slot, job: JobId, operation: LockedOperation },
    /// A client says that it has used a leased engine, and how often before it had no room to say so. No decision depends on its word.
    Used {
        client: ClientId,
        job: JobId,
        lock: LockId,
        begin: Nanos,
        end: Nanos,
        #[serde(default, skip_serializing_if = "is_zero")]
        missing: u64,
    },
    /// A job has given back the engines of [`Action::Run`].
    Returned { job: JobId },
    /// [`Action::EndLeases`] is done: which of those engines are in use until they are [`Input::Returned`].
    LeasesEnded {
        client: ClientId,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        in_use: Vec<LeaseInUse>,
    },
    /// A client has closed its connection.
    Left { client: ClientId },
    /// A client does not keep to the protocol.
    Broke { client: ClientId },
    /// The process of a client has ended.
    ProcessEnded { client: ClientId },
    /// A process of [`Book::missing`](super::Book::missing) has ended.
    FormerProcessEnded { pid: u32 },
    /// The broker was late by so much, and heard nobody meanwhile.
    Late { by: Nanos },
    /// What was decided so far is written down.
    Written,
    /// Time passes.
    Timeout,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// The answer to a message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// It is a client from now on.
    Welcome,
    Registered {
        task: TaskId,
    },
    FlowOpened(FlowAdmitted),
    FlowRefused(FlowRefused),
    Done,
    Refused {
        reason: String,
    },
}

/// What the server must do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Answer the message of a client.
    Reply { client: ClientId, reply: Reply },
    /// Tell a client the terms by which its program has flows from now on: [`Input::TermsTaken`] follows.
    SetTerms { client: ClientId, terms: FlowTerms },
    /// Answer a request: the job holds a token.
    Grant {
        client: ClientId,
        slot: Slot,
        key: JobPriority,
        gpu: GpuId,
        token: TokenId,
        /// Where the task's state is, if it is elsewhere.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<GpuId>,
    },
    /// Give the job these locks; there is a slot if the client waits for an answer.
    Run { client: ClientId, slot: Option<Slot>, job: JobId, locks: Vec<LockId> },
    /// Answer a request: it is refused.
    Refuse { client: ClientId, slot: Slot, reason: RefusalReason },
    /// Answer a request: what was granted or asked for is void, since the GPU is lost.
    Revoke { client: ClientId, slot: Slot, job: JobId, gpu: GpuId },
    /// Take the locks from a task that has not given them back.
    TakeBack { client: ClientId, task: TaskId, locks: Vec<LockId> },
    /// Let a client take these locks without asking.
    Lend { client: ClientId, locks: Vec<LockId> },
    /// End these leases, and say at once which locks are in use: [`Input::LeasesEnded`].
    EndLeases { client: ClientId, locks: Vec<LockId> },
    /// The priority of a client's thread follows the jobs of a task.
    Follow { client: ClientId, task: TaskId, thread: u32 },
    /// The priority of the thread that follows a task follows this key; `None` = an ordinary one.
    Prioritise { task: TaskId, key: Option<JobPriority> },
    /// A task is gone that a thread follows.
    Forget { task: TaskId },
    /// Look at a GPU at once.
    Probe { gpu: GpuId },
    /// A GPU is lost, and by what the tasks declare, this one has no room on those that are left.
    WithoutRoom { task: TaskId },
    /// A client is cut off: it has held something for too long, or broke the protocol. [`Action::Shut`] follows.
    Cut { client: ClientId, pid: u32, hung: bool },
    /// End a client's connection, and serve it no longer.
    Shut { client: ClientId },
    /// All that a client held is free.
    Remove { client: ClientId },
    /// Have the next broker know [`Book::served`](super::Book::served) and [`Book::users`](super::Book::users).
    RecordClients,
    /// Clients of the broker before are back or gone: those that are not back hold nothing.
    Recovered,
}
