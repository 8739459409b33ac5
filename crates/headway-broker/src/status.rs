//! The holders and the waiting jobs: what `headway status` shows.

pub use headway_core::decisions::broker::{Counts, LimitUse, UserStatus};
use headway_core::decisions::engine_lock::LockId;
use headway_core::decisions::sharing::{ClientId, GpuId, TaskId, TokenId};
use headway_core::models::transfer::Direction;
use headway_core::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

use crate::text::readable;

/// A broker at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerStatus {
    /// Format of this document.
    pub schema: u32,
    /// How often the broker of this socket was started.
    pub epoch: u64,
    /// Process of the broker.
    pub pid: u32,
    /// Since when it runs.
    pub uptime: Nanos,
    /// Whether it still waits for the clients of its predecessor; nothing is granted meanwhile.
    pub recovering: bool,
    /// How the priority of holders follows their jobs, and why not where it does not.
    pub priority: String,
    /// How the broker's own thread is scheduled.
    pub scheduling: String,
    /// GPUs, and what is in use of them.
    pub gpus: Vec<GpuStatus>,
    /// What all users take of what they share.
    pub shared: SharedUse,
    /// Users with clients, those with most tasks first, and how much each takes of its limits.
    pub users: Vec<UserStatus>,
    /// Clients, those that are gone and not yet drained too.
    pub clients: Vec<ClientStatus>,
    /// Tasks without an open request are counted only.
    pub jobs: Vec<JobStatus>,
    /// Flows, of which a program that is gone has none.
    pub flows: Vec<FlowStatus>,
    /// Users, clients, jobs and flows that are left out, those that hold nothing first, since a message has no room for more.
    pub omitted: u64,
    /// Tasks for which there is no room on the GPUs that are left, by what they declare.
    pub without_room: Vec<TaskId>,
    /// Whether what happens is written down.
    pub memory: MemoryStatus,
    /// What happened since the start.
    pub counts: Counts,
    /// The MPS daemon that the broker runs, for its own user; `None` = there is none, or another user asks.
    #[serde(default)]
    pub mps: Option<MpsStatus>,
}

/// A daemon of NVIDIA's Multi-Process Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MpsStatus {
    /// Its process.
    pub pid: u32,
    /// Where programs meet it (`CUDA_MPS_PIPE_DIRECTORY`).
    pub folder: String,
    /// Where it logs (`CUDA_MPS_LOG_DIRECTORY`).
    pub log: String,
}

impl BrokerStatus {
    /// This status with every text made safe for terminals, from whatever source: an honest broker has escaped names already, and escaping
    /// twice changes nothing.
    pub(crate) fn readable(mut self) -> Self {
        let memory = &mut self.memory;
        let optional = [&mut memory.log, &mut memory.trouble, &mut memory.obstacle].into_iter().flatten();
        let names = self.clients.iter_mut().map(|client| &mut client.name);
        let texts = [&mut self.priority, &mut self.scheduling].into_iter().chain(optional).chain(names);
        let flows = self.flows.iter_mut().flat_map(|flow| [&mut flow.name, &mut flow.gpu]);
        for text in texts.chain(self.jobs.iter_mut().map(|job| &mut job.name)).chain(flows) {
            *text = readable(text);
        }
        self
    }
}

/// What a broker that is started after this one will know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryStatus {
    /// The log; `None` = there is none, and the broker records only tokens and their holders.
    pub log: Option<String>,
    /// Whether nothing is granted while nothing can be written.
    pub must_remember: bool,
    /// Why nothing can be written now; `None` = all is well.
    pub trouble: Option<String>,
    /// What has the name that a full file of the log would get and is no log; until it is moved away, each full file is dropped.
    pub obstacle: Option<String>,
    /// How often nothing could be written.
    pub gaps: u64,
    /// Lines that the log lacks because of these gaps.
    pub missing: u64,
    /// Grants that wait until they can be written down.
    pub withheld: u64,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuStatus {
    pub gpu: GpuId,
    /// Tokens it has.
    pub tokens: u32,
    /// Tasks that hold one.
    pub holders: Vec<TaskId>,
    /// The client with a lease of its engines, since no other client holds a token of it.
    pub leased_to: Option<ClientId>,
    /// Whether it is lost: no client gets it any more.
    pub lost: bool,
    /// How often clients reported an error that a lost GPU gives.
    pub faults: u64,
}

/// What all users share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedUse {
    pub tasks: LimitUse,
    /// Descriptors of the broker's process for connections.
    pub descriptors: LimitUse,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientStatus {
    pub client: ClientId,
    /// The name it gave.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    pub tasks: usize,
    /// Whether it is gone and its GPU work is waited for.
    pub draining: bool,
}

/// What a job does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Phase {
    /// Waits for a token.
    WaitsForToken,
    /// Holds a token.
    Holds {
        /// On which GPU.
        gpu: GpuId,
        token: TokenId,
        /// Locks it waits for.
        waits_for: Vec<LockId>,
        /// Locks it holds, known to the broker; those it takes by lease are not.
        runs_on: Vec<LockId>,
    },
}

/// One open request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobStatus {
    pub task: TaskId,
    /// Name of the task.
    pub name: String,
    pub client: ClientId,
    /// Its number.
    pub job: u64,
    /// Time to its deadline; negative when it is late.
    pub slack_ns: i64,
    /// How long this phase lasts.
    pub since: Nanos,
    /// What it does.
    pub phase: Phase,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowStatus {
    pub client: ClientId,
    /// The name that its program gave it.
    pub name: String,
    /// The GPU's UUID, or what else its program calls it by.
    pub gpu: String,
    pub direction: Direction,
    /// The most that one copy moves.
    pub bytes: Bytes,
    /// The least time between two copies.
    pub period: Nanos,
    pub deadline: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_broker_moves_the_cursor_or_hides_itself() {
        let evil = "a\u{1b}[2J\u{9b}1m\n\u{202e}".to_owned();
        let client =
            ClientStatus { client: ClientId(1), name: evil.clone(), pid: 1, uid: 1, tasks: 0, draining: false };
        let job = JobStatus {
            task: TaskId(1),
            name: evil.clone(),
            client: ClientId(1),
            job: 1,
            slack_ns: 0,
            since: Nanos(0),
            phase: Phase::WaitsForToken,
        };
        let flow = FlowStatus {
            client: ClientId(1),
            name: evil.clone(),
            gpu: evil.clone(),
            direction: Direction::H2d,
            bytes: Bytes(1),
            period: Nanos(1),
            deadline: Nanos(1),
        };
        let memory = MemoryStatus {
            log: Some(evil.clone()),
            trouble: Some(evil.clone()),
            obstacle: Some(evil.clone()),
            ..MemoryStatus::default()
        };
        let status = BrokerStatus {
            schema: 1,
            epoch: 1,
            pid: 1,
            uptime: Nanos(0),
            recovering: false,
            priority: evil.clone(),
            scheduling: evil,
            gpus: Vec::new(),
            shared: SharedUse::default(),
            users: Vec::new(),
            clients: vec![client],
            jobs: vec![job],
            flows: vec![flow],
            omitted: 0,
            without_room: Vec::new(),
            memory,
            counts: Counts::default(),
            mps: None,
        };
        let shown = status.readable();
        let text = serde_json::to_string(&shown).unwrap();
        assert_eq!(text.matches("a\\\\u{1b}[2J\\\\u{9b}1m\\\\n\\\\u{202e}").count(), 9, "{text}");
        assert_eq!(shown.clone().readable(), shown, "escaping twice changes nothing");
    }
}
