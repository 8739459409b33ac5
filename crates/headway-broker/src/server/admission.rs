//! What a user and a client may ask for now, and how urgent that counts: the [limits](super::limits), applied.

use headway_core::decisions::sharing::{ClientId, ClusterId, JobId, TaskId};
use headway_core::units::{Nanos, PPM};

use super::open::{Open, Task};
use super::owners::is_trusted;
use super::session::Session;
use super::state::BrokerState;
use crate::layout::GPUS_MAX;
use crate::message::TaskShape;
use crate::status::{LimitUse, UserStatus};
use crate::text::shown;
use headway_core::decisions::broker::limits::{
    BEHIND, SEGMENTS_PER_USER, advance, declared, postponed, utilisation_ppm,
};
use headway_core::decisions::broker::places::leaves_room;

impl BrokerState {
    pub(super) fn account_of(&self, client: ClientId) -> u32 {
        self.sessions.get(&client).map_or(u32::MAX, |session| session.account)
    }

    /// Whether a user has room for another client.
    pub(super) fn has_room(&self, account: u32) -> bool {
        self.clients_of(account).has_room_for(1)
    }

    fn clients_of(&self, account: u32) -> LimitUse {
        let is_client =
            |session: &&Session| session.account == account && (session.pages.is_some() || session.gone.is_some());
        LimitUse::of(self.sessions.values().filter(is_client).count(), self.limits.clients_per_user)
    }

    fn tasks_of(&self, account: u32) -> impl Iterator<Item = &Task> {
        self.tasks.values().filter(move |task| self.account_of(task.client) == account)
    }

    fn requests_of(&self, account: u32) -> LimitUse {
        let open = self.tasks_of(account).filter(|task| task.open.is_some());
        LimitUse::of(open.count(), self.limits.requests_per_user)
    }

    /// How much a user takes of each of its limits, but for the log.
    pub(super) fn use_of(&self, account: u32) -> UserStatus {
        let clients = self.clients_of(account);
        let sessions = self.sessions.values().filter(|session| session.account == account).count();
        let theirs: Vec<&Task> = self.tasks_of(account).collect();
        let segments = theirs.iter().map(|task| task.shape.segments.len()).sum::<usize>();
        let declared = theirs.iter().fold(0u64, |sum, task| sum.saturating_add(utilisation_ppm(&task.shape)));
        let gpus = if self.is_for_group { self.gpus.len() } else { GPUS_MAX };
        let limits = &self.limits;
        UserStatus {
            uid: account,
            clients,
            unidentified: LimitUse::of(sessions - clients.used as usize, limits.guests_per_user),
            tasks: LimitUse::of(theirs.len(), limits.tasks_per_user),
            segments: LimitUse::of(segments, SEGMENTS_PER_USER),
            requests: self.requests_of(account),
            utilisation_ppm: LimitUse {
                used: declared,
                most: limits.utilisation_ppm_per_user.unwrap_or(gpus as u64 * PPM),
            },
            log_bytes: None,
        }
    }

    /// Bytes of the log that a user has written at once; `None` where there is no log.
    pub(super) fn log_use_of(&self, now: Nanos, account: u32) -> Option<LimitUse> {
        self.is_logged.then(|| self.accounts.written(now, account, self.limits.log_bytes_per_user))
    }

    /// Tasks of all users, with the places that a restarted broker keeps for those of former clients.
    pub(super) fn shared_tasks(&self) -> LimitUse {
        let recovery = self.recovering.as_ref();
        let kept = recovery.map_or(0, |recovery| recovery.places(|task| self.tasks.contains_key(&task)));
        LimitUse::of(self.tasks.len() + kept, self.tasks_max)
    }

    /// Descriptors of all connections.
    pub(super) fn shared_descriptors(&self) -> LimitUse {
        let used = self.sessions.values().map(Session::descriptors).sum();
        LimitUse::of(used, self.limits.descriptors.unwrap_or(usize::MAX))
    }

    /// Whether another task of this client stays within its user's limits.
    pub(super) fn admit_user(
        &self,
        client: ClientId,
        shape: &TaskShape,
        resumed: Option<TaskId>,
    ) -> Result<(), String> {
        let session = self.sessions.get(&client).ok_or("the client is gone")?;
        let deadline_min = self.limits.deadline_min;
        if shape.deadline < deadline_min {
            return Err(format!(
                "a deadline of {} is below {deadline_min}, the most urgent that this broker allows",
                shape.deadline
            ));
        }
        let user = self.use_of(session.account);
        if !user.tasks.has_room_for(1) {
            return Err(format!("this user has {} tasks, the most allowed", user.tasks.used));
        }
        // Those that were there before the broker was started again have their places.
        let is_back = resumed.is_some_and(|id| self.recovering.as_ref().is_some_and(|recovery| recovery.has(id)));
        let LimitUse { used: taken, most: all } = self.shared_tasks();
        let own = if is_trusted(session.peer.uid) { 0 } else { user.tasks.used };
        if !is_back && !leaves_room(own as usize, taken as usize, all as usize) {
            return Err(format!(
                "{taken} of the {all} tasks that the broker has room for are there, {} of them this user's, who has to leave \
                 room for others; withdraw tasks, or start the broker with more `--tasks`",
                user.tasks.used
            ));
        }
        let segments = shape.segments.len() as u64;
        if !user.segments.has_room_for(segments) {
            return Err(format!(
                "with `{}` this user's tasks would have {} segments, above the {SEGMENTS_PER_USER} that the broker keeps for a user; \
                 withdraw tasks, or declare the segments of a job together",
                shown(&shape.name),
                user.segments.used + segments
            ));
        }
        let declared = utilisation_ppm(shape);
        if !user.utilisation_ppm.has_room_for(declared) {
            return Err(format!(
                "with `{}` this user's tasks would declare {} ppm of a GPU's time, above the {} ppm that a user may; \
                 declare less, or withdraw tasks",
                shown(&shape.name),
                user.utilisation_ppm.used.saturating_add(declared),
                user.utilisation_ppm.most
            ));
        }
        Ok(())
    }

    /// Whether a client's user may open another request.
    pub(super) fn may_ask(&self, client: ClientId) -> bool {
        // A task has one at most.
        self.limits.requests_per_user >= self.limits.tasks_per_user
            || self.requests_of(self.account_of(client)).has_room_for(1)
    }

    /// Whether what a client asks for may be written to the log.
    pub(super) fn may_write(&mut self, now: Nanos, client: ClientId, bytes: u64) -> bool {
        let account = self.account_of(client);
        !self.is_logged || self.accounts.may_write(now, account, bytes, self.limits.log_bytes_per_user)
    }

    /// What counts for a job that says it was released at `release`: the release from which the next of its task is separated,
    /// the release for its key, and the deadline for its key.
    pub(super) fn key_times(&self, now: Nanos, task: &Task, release: Nanos, acquisition: u32) -> [Nanos; 3] {
        let TaskShape { period, deadline, .. } = task.shape;
        // A task that releases jobs faster than it declared gets the priority that it declared, and none from before it
        // was there.
        let earliest = match (task.last_release, acquisition) {
            (Some(last), 0) => last.saturating_add(period),
            (Some(last), _) => last,
            (None, _) => now.saturating_sub(deadline),
        };
        let separated = release.max(earliest);
        let counted = separated.max(now.saturating_sub(deadline));
        let session = self.sessions.get(&task.client);
        let is_beyond = session.is_some_and(|session| self.accounts.is_beyond(now, task.client, session.peer.pid));
        let due = counted.saturating_add(deadline);
        [separated, counted, if is_beyond { due.saturating_add(BEHIND) } else { due }]
    }

    /// A job gives its token back.
    pub(super) fn charge(&mut self, now: Nanos, job: JobId) {
        let Some(task) = self.tasks.get(&job.task) else { return };
        let Some(&Open { since, waited, .. }) = task.open.as_ref() else { return };
        self.charge_user(now, job);
        let Some(task) = self.tasks.get(&job.task) else { return };
        let (client, cluster) = (task.client, task.shape.cluster);
        let held = now.saturating_sub(since);
        let waits = |other: &Task| {
            other.shape.cluster == cluster && other.open.as_ref().is_some_and(|open| open.granted.is_none())
        };
        let others = self.tasks.values().any(|other| other.client != client && waits(other));
        let (tokens, ppm) = (self.tokens_of(cluster), self.limits.urgent_ppm);
        if others {
            advance(self.accounts.clients.entry(client).or_insert(Nanos::ZERO), now, held, tokens, ppm);
        }
        if let Some(task) = self.tasks.get_mut(&job.task) {
            // Waiting for engines is the others' doing.
            let used = held.saturating_sub(waited);
            let later = postponed(used, declared(&task.shape), task.shape.period);
            task.last_release = task.last_release.map(|last| last.saturating_add(later));
        }
    }

    fn tokens_of(&self, cluster: ClusterId) -> u64 {
        let known = self.clusters.iter().find(|known| known.id == cluster);
        let tokens = known.map_or(1, |known| {
            let left = known.gpus.iter().filter(|gpu| !self.lost.contains(gpu)).count() as u64;
            left * u64::from(known.tokens.per_gpu)
        });
        tokens.max(1)
    }
}
