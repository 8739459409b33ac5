//! Whom a broker that is started again waits for, and whom it believes: the processes that its predecessor served, by the record
//! beside the socket.

use std::collections::BTreeMap;

use headway_core::sharing::{ClusterId, JobId, TaskId, TokenId};
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::{Process, started};

use super::journal::{Known, Roster};
use crate::message::HeldToken;

/// Between two looks at who has ended meanwhile.
const LOOK: Nanos = Nanos(5_000_000);

/// The time in which clients come back.
pub(super) struct Recovery {
    until: Nanos,
    /// Processes that live and have not come back.
    missing: Vec<(Known, Process)>,
    /// Whose each task was: of those that are waited for, whether they have come back or not.
    owners: BTreeMap<TaskId, Known>,
    /// Who held each token; `None` = not all of it could be written.
    held: Option<BTreeMap<(ClusterId, TokenId), JobId>>,
}

impl Recovery {
    /// `None` if nobody is to be waited for.
    pub(super) fn begin(roster: Roster, until: Nanos) -> Option<Self> {
        let (mut missing, mut owners) = (Vec::new(), BTreeMap::new());
        for known in roster.clients {
            // In this order: while the descriptor's process lives, nobody else has its number.
            let Ok(process) = Process::open(known.pid) else { continue };
            if started(known.pid).unwrap_or(0) != known.started || process.has_ended() {
                continue;
            }
            owners.extend(known.tasks.iter().map(|task| (*task, known.clone())));
            missing.push((known, process));
        }
        (!missing.is_empty()).then_some(Self { until, missing, owners, held: roster.held })
    }

    /// Whether a process may come back with a task, and with the token that it says the task holds. A task that is not known
    /// was registered just before the predecessor ended: nothing had been granted to it.
    pub(super) fn may_have(
        &self,
        pid: u32,
        started: u64,
        uid: u32,
        task: TaskId,
        cluster: ClusterId,
        held: Option<&HeldToken>,
    ) -> Result<(), String> {
        let owner = self.owners.get(&task);
        if let Some(owner) = owner
            && (owner.pid, owner.started, owner.uid) != (pid, started, uid)
        {
            return Err(format!("task {} was another process's when the broker before ended", task.0));
        }
        let Some(HeldToken { token, job, .. }) = held else { return Ok(()) };
        // What could not be written is not known: then whoever was served is believed.
        let Some(tokens) = &self.held else { return Ok(()) };
        let holder = tokens.get(&(cluster, *token));
        if owner.is_some() && holder == Some(&JobId { task, job: *job }) {
            return Ok(());
        }
        let who =
            holder.map_or_else(|| "nobody did".to_owned(), |job| format!("job {} of task {} did", job.job, job.task.0));
        Err(format!(
            "job {job} of task {} did not hold token {} when the broker before ended: by its record {who}",
            task.0, token.0
        ))
    }

    /// Whether a task of this number was there.
    pub(super) fn has(&self, task: TaskId) -> bool {
        self.owners.contains_key(&task)
    }

    /// A process has come back with one of its clients.
    pub(super) fn is_back(&mut self, pid: u32) {
        if let Some(at) = self.missing.iter().position(|(missing, _)| missing.pid == pid) {
            self.missing.swap_remove(at);
        }
    }

    /// Processes that are still waited for, with their tasks.
    pub(super) fn missing(&self) -> impl Iterator<Item = Known> {
        self.missing.iter().map(|(known, _)| known.clone())
    }

    pub(super) fn is_over(&self, now: Nanos) -> bool {
        self.until <= now || self.missing.iter().all(|(_, process)| process.has_ended())
    }

    /// When to ask again.
    pub(super) fn next_look(&self, started: Nanos) -> Nanos {
        self.until.min(clock::now().max(started).saturating_add(LOOK))
    }
}
