//! The broker's status.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use headway_core::decisions::broker::{Book, BookTask, EnginePhase, GrantedToken, OpenRequest, ProgramFlow};
use headway_core::decisions::flows::FlowContract;
use headway_core::decisions::sharing::{ClientId, GpuId, TaskId};
use headway_core::units::Nanos;

use super::driver::BookDriver;
use super::session::Session;
use crate::message::BYTES_MAX;
use crate::status::{
    BrokerStatus, ClientStatus, FlowStatus, GpuStatus, JobStatus, LimitUse, Phase, SharedUse, UserStatus,
};

/// Users, and tasks without room, that are listed at most.
const LISTED_MAX: usize = 128;
/// Bytes of a message in addition to the document.
const FRAME_BYTES: usize = 64;

/// Leaves out clients and jobs until the document has at most `most` bytes. Those that hold something are left out last.
fn fit(status: &mut BrokerStatus, most: usize) {
    let length = |status: &BrokerStatus| serde_json::to_vec(status).map_or(usize::MAX, |text| text.len());
    if length(status) <= most {
        return;
    }
    let holders: BTreeSet<ClientId> =
        status.jobs.iter().filter(|job| matches!(job.phase, Phase::Holds { .. })).map(|job| job.client).collect();
    status.jobs.sort_by_key(|job| matches!(job.phase, Phase::WaitsForToken));
    status.clients.sort_by_key(|client| !holders.contains(&client.client));
    loop {
        let counts = [status.jobs.len(), status.clients.len(), status.flows.len()];
        let longest = counts.into_iter().max().unwrap_or(0);
        if length(status) <= most || longest == 0 {
            return;
        }
        // The longest of them loses an eighth.
        let left = longest - longest.div_ceil(8);
        match counts.map(|count| count == longest) {
            [true, ..] => status.jobs.truncate(left),
            [_, true, _] => status.clients.truncate(left),
            _ => status.flows.truncate(left),
        }
        status.omitted += (longest - left) as u64;
    }
}

impl BookDriver {
    /// The state as `client` may see it: the owner all, others their own tasks.
    pub(super) fn status(&self, now: Nanos, client: ClientId) -> BrokerStatus {
        let book = &self.book;
        let peer = self.sessions.get(&client).map(|session| session.peer);
        let uid = peer.map(|peer| peer.uid);
        let owner = uid.is_some_and(|uid| book.is_trusted(uid));
        let sees = |of: ClientId| owner || book.clients().get(&of).map(|known| known.process.uid) == uid;
        let clients = book.clients().iter().filter(|(id, _)| sees(**id)).map(|(id, known)| ClientStatus {
            client: *id,
            name: known.name.clone(),
            pid: known.process.pid,
            uid: known.process.uid,
            tasks: known.tasks.len(),
            draining: known.gone.is_some(),
        });
        let accounts = || self.sessions.values().map(|session| session.peer.account);
        let mine = peer.map_or(u32::MAX, |peer| peer.account);
        let listed: BTreeSet<u32> = accounts().filter(|account| owner || *account == mine).collect();
        let mut users: Vec<UserStatus> = listed
            .into_iter()
            .map(|account| {
                let mut user = book.use_of(now, account);
                let sessions = accounts().filter(|other| *other == account).count() as u64;
                user.unidentified.used = sessions.saturating_sub(user.clients.used);
                user
            })
            .collect();
        users.sort_by_key(|user| Reverse((user.tasks.used, user.clients.used)));
        let unlisted = users.len().saturating_sub(LISTED_MAX);
        users.truncate(LISTED_MAX);
        let sees_task = |id: &TaskId| book.tasks().get(id).is_some_and(|task| sees(task.client));
        let open = book.tasks().iter().filter(|(_, task)| sees(task.client));
        let jobs = open.filter_map(|(id, task)| Some(job_status(now, *id, task, task.open.as_ref()?)));
        let flows = book.flows().filter(|flow| sees(flow.client)).map(|ProgramFlow { client, gpu, contract }| {
            let FlowContract { name, direction, bytes, period, deadline, .. } = contract;
            FlowStatus { client, name, gpu, direction, bytes, period, deadline }
        });
        let mut status = BrokerStatus {
            schema: 1,
            epoch: self.epoch,
            pid: std::process::id(),
            uptime: now.saturating_sub(self.began),
            recovering: book.is_recovering(),
            priority: self.priority.describe(),
            scheduling: self.about.scheduling.clone(),
            gpus: gpu_status(book, &sees),
            shared: SharedUse { tasks: book.shared_tasks(), descriptors: self.shared_descriptors() },
            users,
            clients: clients.collect(),
            jobs: jobs.collect(),
            flows: flows.collect(),
            omitted: unlisted as u64,
            without_room: book.without_room().iter().filter(|id| sees_task(id)).copied().take(LISTED_MAX).collect(),
            memory: self.journal.status(book.withheld()),
            counts: self.counts(),
            // One daemon serves one user.
            mps: self.about.mps.clone().filter(|_| uid == Some(headway_os::ipc::user())),
        };
        fit(&mut status, BYTES_MAX - FRAME_BYTES);
        status
    }

    /// Descriptors of all connections.
    pub(super) fn shared_descriptors(&self) -> LimitUse {
        let used = self.sessions.values().chain(&self.in_flight).map(Session::descriptors).sum();
        LimitUse::of(used, self.book.parameters().limits.descriptors.unwrap_or(usize::MAX))
    }
}

fn gpu_status(book: &Book, sees: &impl Fn(ClientId) -> bool) -> Vec<GpuStatus> {
    let status = |gpu: &GpuId| {
        let clusters = &book.parameters().arbiter.clusters;
        let cluster = clusters.iter().find(|cluster| cluster.gpus.contains(gpu));
        let holds = |task: &&BookTask| {
            let granted = task.open.as_ref().and_then(|open| open.granted);
            sees(task.client) && granted.is_some_and(|granted| granted.gpu == *gpu)
        };
        GpuStatus {
            gpu: *gpu,
            tokens: cluster.map_or(0, |cluster| cluster.tokens.per_gpu),
            holders: book.tasks().iter().filter(|(_, task)| holds(task)).map(|(id, _)| *id).collect(),
            leased_to: book.leased_to(*gpu).filter(|client| sees(*client)),
            lost: book.lost().contains(gpu),
            faults: book.faults(*gpu),
        }
    };
    book.gpus().iter().map(status).collect()
}

fn job_status(now: Nanos, id: TaskId, task: &BookTask, open: &OpenRequest) -> JobStatus {
    let phase = match open.granted {
        None => Phase::WaitsForToken,
        Some(GrantedToken { gpu, token }) => {
            let locks = open.engines.as_ref().map_or_else(Vec::new, |engines| engines.locks.clone());
            let running = open.engines.as_ref().is_some_and(|engines| engines.phase == EnginePhase::Runs);
            let (waits_for, runs_on) = if running { (Vec::new(), locks) } else { (locks, Vec::new()) };
            Phase::Holds { gpu, token, waits_for, runs_on }
        }
    };
    let slack = i128::from(open.key.deadline.0) - i128::from(now.0);
    JobStatus {
        task: id,
        name: task.name.clone(),
        client: task.client,
        job: open.key.job.job,
        slack_ns: i64::try_from(slack).unwrap_or(i64::MAX),
        since: now.saturating_sub(open.since),
        phase,
    }
}

#[cfg(test)]
mod tests {
    use headway_core::decisions::sharing::TokenId;

    use super::*;

    #[test]
    fn a_status_fits_a_message_and_who_holds_something_is_left_out_last() {
        let name = "\\u{e0001}".repeat(12);
        let job = |id: u32| JobStatus {
            task: TaskId(id),
            name: name.clone(),
            client: ClientId(u64::from(id / 4)),
            job: 1,
            slack_ns: -1,
            since: Nanos(1),
            phase: match id % 100 {
                50 => Phase::Holds { gpu: GpuId(0), token: TokenId(0), waits_for: Vec::new(), runs_on: Vec::new() },
                _ => Phase::WaitsForToken,
            },
        };
        let client = |id: u64| ClientStatus {
            client: ClientId(id),
            name: name.clone(),
            pid: 1,
            uid: 1,
            tasks: 4,
            draining: false,
        };
        let mut status = BrokerStatus {
            schema: 1,
            epoch: 1,
            pid: 1,
            uptime: Nanos(1),
            recovering: false,
            priority: String::new(),
            scheduling: String::new(),
            gpus: Vec::new(),
            shared: SharedUse::default(),
            users: Vec::new(),
            clients: (0..512).map(client).collect(),
            jobs: (0..2_048).map(job).collect(),
            flows: Vec::new(),
            omitted: 0,
            without_room: Vec::new(),
            memory: crate::status::MemoryStatus::default(),
            counts: crate::status::Counts::default(),
            mps: None,
        };
        let whole = status.clone();
        fit(&mut status, 10 << 20);
        assert_eq!(status, whole, "there is room");
        fit(&mut status, 64 << 10);
        let length = serde_json::to_vec(&status).unwrap().len();
        assert!((48 << 10..=64 << 10).contains(&length), "{length}");
        assert_eq!(status.jobs.len() + status.clients.len() + status.omitted as usize, 2_560);
        let holds = |job: &&JobStatus| matches!(job.phase, Phase::Holds { .. });
        assert_eq!(status.jobs.iter().filter(holds).count(), 20, "2,048 jobs, one of a hundred");
        let holders: Vec<_> = status.jobs.iter().filter(holds).map(|job| job.client).collect();
        assert!(holders.iter().all(|holder| status.clients.iter().any(|client| client.client == *holder)));
    }
}
