//! The processes for which a broker that is started again waits, and the claims that it believes. Both follow from the record of its
//! predecessor, which names the processes that it served.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::messages::{ClientProcess, HeldToken, KnownProcess, ResumedTask, Roster};
use crate::decisions::engine_lock::LockId;
use crate::decisions::sharing::{ClusterId, JobId, TaskId, TokenId};
use crate::units::Nanos;

/// The time in which clients come back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Recovery {
    until: Nanos,
    /// Processes that live and have not come back.
    missing: Vec<KnownProcess>,
    /// The process of each task, whether that process has come back or not.
    #[serde(with = "crate::decisions::pairs")]
    owners: BTreeMap<TaskId, KnownProcess>,
    /// The holder of each token, as far as it could be written, and whether that is all.
    #[serde(with = "crate::decisions::pairs")]
    held: BTreeMap<(ClusterId, TokenId), JobId>,
    /// The last holder of each engine.
    #[serde(with = "crate::decisions::pairs")]
    engines: BTreeMap<LockId, JobId>,
    is_complete: bool,
}

impl Recovery {
    /// `None` if no process lives that the broker before served.
    pub(super) fn begin(roster: Roster, until: Nanos) -> Option<Self> {
        let Roster { clients, held, engines, is_complete, .. } = roster;
        let owned = clients.iter().flat_map(|known| known.tasks.iter().map(|task| (*task, known.clone())));
        let owners = owned.collect();
        (!clients.is_empty()).then_some(Self { until, missing: clients, owners, held, engines, is_complete })
    }

    /// Whether a process may come back with a task, and with the token that it says the task holds. A task that is not known
    /// was registered just before the predecessor ended: nothing had been granted to it.
    pub(super) fn may_have(
        &self,
        process: ClientProcess,
        task: TaskId,
        cluster: ClusterId,
        held: Option<&HeldToken>,
    ) -> Result<(), String> {
        let owner = self.owners.get(&task);
        if let Some(owner) = owner
            && (owner.pid, owner.started, owner.uid) != (process.pid, process.started, process.uid)
        {
            return Err(format!("task {} was another process's when the broker before ended", task.0));
        }
        let Some(HeldToken { token, job, .. }) = held else { return Ok(()) };
        if owner.is_none() {
            return Err(format!("task {} was nobody's when the broker before ended, and held nothing", task.0));
        }
        let holder = self.held.get(&(cluster, *token));
        if holder == Some(&JobId { task, job: *job }) {
            return Ok(());
        }
        // For what could not be written, every former client is believed.
        if !self.is_complete && holder.is_none() && !self.held.values().any(|held| held.task == task) {
            return Ok(());
        }
        let who =
            holder.map_or_else(|| "nobody did".to_owned(), |job| format!("job {} of task {} did", job.job, job.task.0));
        Err(format!(
            "job {job} of task {} did not hold token {} when the broker before ended: by its record {who}",
            task.0, token.0
        ))
    }

    /// Whether a job may come back with an engine in use. If the record gives the engine to no job, the broker believes any holder of a token of
    /// the GPU, since that job may have used the engine by lease. A job of the client whose job is on record may have done so later, and then
    /// that one, which `comes_too` with what it has in use, does not have it any more.
    pub(super) fn may_use(&self, engine: LockId, job: JobId, comes_too: &[ResumedTask]) -> Result<(), String> {
        let gave_it_back = |user: &JobId| {
            let its = comes_too.iter().find(|other| other.id == user.task);
            its.is_some_and(|other| other.held.is_none_or(|held| !held.locks[engine.engine as usize]))
        };
        let user = self.engines.get(&engine).filter(|user| self.is_complete && **user != job && !gave_it_back(user));
        // An engine that a job gave back stays in its slot until the job also gives its token back. It blocks no other job then.
        match user.filter(|user| self.held.values().any(|holder| holder == *user)) {
            Some(user) => Err(format!(
                "job {} of task {} did not have that engine of GPU {} when the broker before ended: by its record job {} of \
                 task {} did",
                job.job, job.task.0, engine.gpu.0, user.job, user.task.0
            )),
            None => Ok(()),
        }
    }

    /// How many of its tasks have not come back, of which `came` tells.
    pub(super) fn places(&self, came: impl Fn(TaskId) -> bool) -> usize {
        self.owners.keys().filter(|task| !came(**task)).count()
    }

    /// Whether a task of this number was there.
    pub(super) fn has(&self, task: TaskId) -> bool {
        self.owners.contains_key(&task)
    }

    /// A process has come back with one of its clients.
    pub(super) fn is_back(&mut self, pid: u32) {
        if let Some(at) = self.missing.iter().position(|missing| missing.pid == pid) {
            self.missing.swap_remove(at);
        }
    }

    /// A process has ended; whether it was missing.
    pub(super) fn has_ended(&mut self, pid: u32) -> bool {
        let before = self.missing.len();
        self.missing.retain(|missing| missing.pid != pid);
        self.missing.len() < before
    }

    /// Processes for which the broker still waits, with their tasks.
    pub(super) fn missing(&self) -> impl Iterator<Item = &KnownProcess> {
        self.missing.iter()
    }

    pub(super) const fn until(&self) -> Nanos {
        self.until
    }

    pub(super) fn is_over(&self, now: Nanos) -> bool {
        self.until <= now || self.missing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::TaskShape;
    use super::*;
    use crate::decisions::engine_lock::EngineRole;
    use crate::decisions::sharing::GpuId;
    use crate::units::Bytes;

    const PID: u32 = 70;
    const STARTED: u64 = 8_000;

    /// A process had task 5, whose job 9 held token 1, when the broker before ended.
    fn recovery(is_complete: bool) -> Recovery {
        let known =
            KnownProcess { pid: PID, started: STARTED, uid: 7, tasks: vec![TaskId(5), TaskId(6)], threads: Vec::new() };
        let held = [((ClusterId(0), TokenId(1)), JobId { task: TaskId(5), job: 9 })].into();
        let engine = LockId { gpu: GpuId(0), engine: EngineRole::In };
        let engines = [(engine, JobId { task: TaskId(5), job: 9 })].into();
        let roster = Roster { clients: vec![known], users: Vec::new(), held, engines, is_complete };
        Recovery::begin(roster, Nanos(0)).unwrap()
    }

    fn process(pid: u32, started: u64, uid: u32) -> ClientProcess {
        ClientProcess { pid, uid, account: uid, started }
    }

    fn claim(token: u32, job: u64) -> HeldToken {
        let token = TokenId(token);
        HeldToken { job, release: Nanos(0), gpu: GpuId(0), token, slot: 0, generation: 1, locks: [false; 3] }
    }

    #[test]
    fn a_claim_counts_only_as_the_record_has_it() {
        let cluster = ClusterId(0);
        let all = recovery(true);
        let may = |pid, started, uid, task, held: &HeldToken| {
            all.may_have(process(pid, started, uid), TaskId(task), cluster, Some(held)).is_ok()
        };
        assert!(may(PID, STARTED, 7, 5, &claim(1, 9)));
        assert!(!may(PID + 1, STARTED, 7, 5, &claim(1, 9)), "another process");
        assert!(!may(PID, STARTED + 1, 7, 5, &claim(1, 9)), "a process that has the number now");
        assert!(!may(PID, STARTED, 8, 5, &claim(1, 9)), "another user");
        assert!(!may(PID, STARTED, 7, 6, &claim(1, 9)), "another task");
        assert!(!may(PID, STARTED, 7, 8, &claim(1, 9)), "a task that was not there");
        assert!(!may(PID, STARTED, 7, 5, &claim(2, 9)), "a token that nobody held");
        assert!(!may(PID, STARTED, 7, 5, &claim(1, 8)), "another job");
        let other = all.may_have(process(PID, STARTED, 7), TaskId(5), ClusterId(1), Some(&claim(1, 9)));
        assert!(other.is_err(), "another cluster");
        // A task that was registered just before the end, without a token.
        assert!(all.may_have(process(PID + 1, STARTED, 8), TaskId(77), cluster, None).is_ok());
        assert!(all.may_have(process(PID + 1, STARTED, 8), TaskId(5), cluster, None).is_err());
        assert!(all.has(TaskId(5)) && !all.has(TaskId(77)));
    }

    #[test]
    fn where_not_all_could_be_written_the_process_that_had_the_task_is_believed() {
        let cluster = ClusterId(0);
        let part = recovery(false);
        assert!(part.may_have(process(PID, STARTED, 7), TaskId(6), cluster, Some(&claim(2, 8))).is_ok());
        assert!(part.may_have(process(PID, STARTED, 7), TaskId(5), cluster, Some(&claim(1, 9))).is_ok());
        let others = part.may_have(process(PID, STARTED, 7), TaskId(6), cluster, Some(&claim(1, 8)));
        assert!(others.is_err(), "a token that the record gives to somebody else");
        let second = part.may_have(process(PID, STARTED, 7), TaskId(5), cluster, Some(&claim(2, 9)));
        assert!(second.is_err(), "another token than the record gives to this task");
        assert!(part.may_have(process(PID + 1, STARTED, 7), TaskId(5), cluster, Some(&claim(1, 9))).is_err());
        let stranger = part.may_have(process(PID + 1, STARTED, 7), TaskId(8), cluster, Some(&claim(3, 9)));
        assert!(stranger.is_err(), "a task that nobody knows of holds nothing");
    }

    #[test]
    fn an_engine_is_in_use_by_the_job_of_the_record_so_long_as_that_has_its_token() {
        let engine = |gpu, engine| LockId { gpu: GpuId(gpu), engine };
        let job = |task, job| JobId { task: TaskId(task), job };
        let mut all = recovery(true);
        assert!(all.may_use(engine(0, EngineRole::In), job(5, 9), &[]).is_ok());
        let liar = all.may_use(engine(0, EngineRole::In), job(6, 1), &[]).unwrap_err();
        assert!(liar.contains("job 9 of task 5 did"), "{liar}");
        assert!(all.may_use(engine(0, EngineRole::Out), job(6, 1), &[]).is_ok(), "used by lease, perhaps");
        let comes_too = |locks| {
            let held = Some(HeldToken { locks, ..claim(1, 9) });
            let shape = TaskShape {
                name: "t".to_owned(),
                cluster: ClusterId(0),
                period: Nanos(1),
                deadline: Nanos(1),
                state: Bytes(0),
                segments: Vec::new(),
                thread: None,
            };
            [ResumedTask { id: TaskId(5), shape, held }]
        };
        let later = |locks| all.may_use(engine(0, EngineRole::In), job(6, 1), &comes_too(locks));
        assert!(later([false; 3]).is_ok(), "used by lease after the other job of its client");
        assert!(later([false, true, false]).is_err(), "that one still uses it");
        assert!(recovery(false).may_use(engine(0, EngineRole::In), job(6, 1), &[]).is_ok(), "not all could be written");
        // It has given the engine back, and then its token.
        all.held.clear();
        assert!(all.may_use(engine(0, EngineRole::In), job(6, 1), &[]).is_ok());
    }

    #[test]
    fn places_are_kept_for_tasks_that_have_not_come_back() {
        let all = recovery(true);
        assert_eq!(all.places(|_| false), 2);
        assert_eq!(all.places(|task| task == TaskId(6)), 1);
    }
}
