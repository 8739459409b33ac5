//! What the broker tells about itself.

use headway_core::decisions::sharing::{ClientId, TaskId};
use headway_core::units::Nanos;

use super::state::{BrokerState, Open, Task};
use crate::status::{ClientStatus, GpuStatus, JobStatus, Phase, Status};

/// Jobs listed at most, so that the document fits a message.
const JOBS_MAX: usize = 128;

impl BrokerState {
    /// The state as `client` may see it: the owner all, others their own tasks.
    pub(super) fn status(&self, now: Nanos, client: ClientId) -> Status {
        let uid = self.sessions.get(&client).map(|session| session.peer.uid);
        let owner = self.is_owner(client);
        let sees = |of: ClientId| owner || self.sessions.get(&of).map(|session| session.peer.uid) == uid;
        let clients = self
            .sessions
            .iter()
            .filter(|(id, session)| sees(**id) && (session.pages.is_some() || session.gone.is_some()));
        let clients = clients.map(|(id, session)| ClientStatus {
            client: *id,
            name: session.name.clone(),
            pid: session.peer.pid,
            uid: session.peer.uid,
            tasks: session.tasks.len(),
            draining: session.gone.is_some(),
        });
        let sees_task = |id: &TaskId| self.tasks.get(id).is_some_and(|task| sees(task.client));
        let open = self.tasks.iter().filter(|(_, task)| sees(task.client));
        let jobs = open.filter_map(|(id, task)| Some(self.job_status(now, *id, task, task.open.as_ref()?)));
        Status {
            schema: 1,
            epoch: self.epoch,
            pid: std::process::id(),
            uptime: now.saturating_sub(self.started),
            recovering: self.recovering.is_some(),
            priority: self.priority.describe(),
            scheduling: self.scheduling.clone(),
            gpus: self.gpu_status(&sees),
            clients: clients.collect(),
            jobs: jobs.take(JOBS_MAX).collect(),
            without_room: self.without_room.iter().filter(|id| sees_task(id)).copied().take(JOBS_MAX).collect(),
            memory: self.journal.status(self.withheld.len()),
            counts: self.counts,
        }
    }

    fn gpu_status(&self, sees: &impl Fn(ClientId) -> bool) -> Vec<GpuStatus> {
        let status = |(position, gpu): (usize, &headway_core::decisions::sharing::GpuId)| {
            let cluster = self.clusters.iter().find(|cluster| cluster.gpus.contains(gpu));
            let holds = |task: &&Task| {
                sees(task.client)
                    && task.open.as_ref().and_then(|open| open.granted).is_some_and(|(granted, _)| granted == *gpu)
            };
            GpuStatus {
                gpu: *gpu,
                tokens: cluster.map_or(0, |cluster| cluster.tokens.per_gpu),
                holders: self.tasks.iter().filter(|(_, task)| holds(task)).map(|(id, _)| *id).collect(),
                leased_to: self.leases.client(position).filter(|client| sees(*client)),
                lost: self.lost.contains(gpu),
                faults: self.faults.get(gpu).copied().unwrap_or(0),
            }
        };
        self.gpus.iter().enumerate().map(status).collect()
    }

    fn job_status(&self, now: Nanos, id: TaskId, task: &Task, open: &Open) -> JobStatus {
        let lock = |lock: &usize| self.lock_id(*lock);
        let phase = match open.granted {
            None => Phase::WaitsForToken,
            Some((gpu, token)) => {
                let locks =
                    open.engines.as_ref().map_or_else(Vec::new, |engines| engines.locks.iter().map(lock).collect());
                let running = open.engines.as_ref().is_some_and(|engines| engines.held.is_some());
                let (waits_for, runs_on) = if running { (Vec::new(), locks) } else { (locks, Vec::new()) };
                Phase::Holds { gpu, token, waits_for, runs_on }
            }
        };
        let slack = i128::from(open.key.deadline.0) - i128::from(now.0);
        JobStatus {
            task: id,
            name: task.shape.name.clone(),
            client: task.client,
            job: open.key.job.job,
            slack_ns: i64::try_from(slack).unwrap_or(i64::MAX),
            since: now.saturating_sub(open.since),
            phase,
        }
    }
}
