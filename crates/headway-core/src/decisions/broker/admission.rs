//! What a user and a client may ask for now, and how urgent that counts: the [limits](super::limits), applied.

use super::limits::{BEHIND, SEGMENTS_PER_USER, advance, declared, postponed, utilisation_ppm};
use super::messages::TaskShape;
use super::places::leaves_room;
use super::recovery::Recovery;
use super::usage::{LimitUse, UserStatus};
use super::{Book, BookTask};
use crate::decisions::sharing::{ClientId, ClusterId, JobId, TaskId};
use crate::units::{Nanos, PPM};

/// What counts for a job that says when it was released.
pub(super) struct KeyTimes {
    /// The release from which the next job of its task is separated.
    pub(super) separated: Nanos,
    /// The release for its key.
    pub(super) counted: Nanos,
    /// The deadline for its key.
    pub(super) deadline: Nanos,
}

impl Book {
    /// Whether a user is the broker's own or root.
    #[must_use]
    pub const fn is_trusted(&self, uid: u32) -> bool {
        uid == self.parameters.owner || uid == 0
    }

    pub(super) fn is_owner(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|known| self.is_trusted(known.process.uid))
    }

    /// The user whose limits count for a client.
    pub(super) fn account_of(&self, client: ClientId) -> u32 {
        self.clients.get(&client).map_or(u32::MAX, |known| known.process.account)
    }

    /// How many clients a user has.
    pub(super) fn clients_of(&self, account: u32) -> LimitUse {
        let theirs = self.clients.values().filter(|known| known.process.account == account);
        LimitUse::of(theirs.count(), self.parameters.limits.clients_per_user)
    }

    fn tasks_of_user(&self, account: u32) -> impl Iterator<Item = &BookTask> {
        self.tasks.values().filter(move |task| self.account_of(task.client) == account)
    }

    fn requests_of(&self, account: u32) -> LimitUse {
        let open = self.tasks_of_user(account).filter(|task| task.open.is_some());
        LimitUse::of(open.count(), self.parameters.limits.requests_per_user)
    }

    /// How much a user takes of each of its limits; of connections that have not said who they are, the server knows.
    #[must_use]
    pub fn use_of(&self, now: Nanos, account: u32) -> UserStatus {
        let limits = &self.parameters.limits;
        let theirs: Vec<&BookTask> = self.tasks_of_user(account).collect();
        let segments = theirs.iter().map(|task| task.segments).sum::<usize>();
        let declared = |task: &&BookTask| utilisation_ppm(task.declared, task.period);
        let log_bytes = || self.accounts.written(now, account, limits.log_bytes_per_user);
        UserStatus {
            uid: account,
            clients: self.clients_of(account),
            unidentified: LimitUse::of(0, limits.guests_per_user),
            tasks: LimitUse::of(theirs.len(), limits.tasks_per_user),
            segments: LimitUse::of(segments, SEGMENTS_PER_USER),
            requests: self.requests_of(account),
            flows: self.flows_of(account),
            utilisation_ppm: LimitUse {
                used: theirs.iter().map(declared).fold(0, u64::saturating_add),
                most: limits.utilisation_ppm_per_user.unwrap_or(self.gpus.len() as u64 * PPM),
            },
            log_bytes: self.parameters.is_logged.then(log_bytes),
        }
    }

    /// Tasks of all users, with the places that a restarted broker keeps for those of former clients.
    #[must_use]
    pub fn shared_tasks(&self) -> LimitUse {
        let places = |recovery: &Recovery| recovery.places(|task| self.tasks.contains_key(&task));
        let kept = self.recovery.as_ref().map_or(0, places);
        LimitUse::of(self.tasks.len() + kept, self.parameters.arbiter.limits.tasks_max)
    }

    /// Whether another task of this client stays within its user's limits.
    pub(super) fn admit(
        &self,
        now: Nanos,
        client: ClientId,
        shape: &TaskShape,
        resumed: Option<TaskId>,
    ) -> Result<(), String> {
        let process = self.clients.get(&client).ok_or("the client is gone")?.process;
        let deadline_min = self.parameters.limits.deadline_min;
        if shape.deadline < deadline_min {
            return Err(format!(
                "a deadline of {} is below {deadline_min}, the most urgent that this broker allows",
                shape.deadline
            ));
        }
        let user = self.use_of(now, process.account);
        if !user.tasks.has_room_for(1) {
            return Err(format!("this user has {} tasks, the most allowed", user.tasks.used));
        }
        // Those that were there before the broker was started again have their places.
        let is_back = resumed.is_some_and(|id| self.recovery.as_ref().is_some_and(|recovery| recovery.has(id)));
        let LimitUse { used: taken, most: all } = self.shared_tasks();
        let own = if self.is_trusted(process.uid) { 0 } else { user.tasks.used };
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
                shape.name,
                user.segments.used + segments
            ));
        }
        let declared = utilisation_ppm(declared(shape), shape.period);
        if !user.utilisation_ppm.has_room_for(declared) {
            return Err(format!(
                "with `{}` this user's tasks would declare {} ppm of a GPU's time, above the {} ppm that a user may; \
                 declare less, or withdraw tasks",
                shape.name,
                user.utilisation_ppm.used.saturating_add(declared),
                user.utilisation_ppm.most
            ));
        }
        Ok(())
    }

    /// Whether a client's user may open another request.
    pub(super) fn may_ask(&self, client: ClientId) -> bool {
        let limits = &self.parameters.limits;
        // A task has one at most.
        limits.requests_per_user >= limits.tasks_per_user || self.requests_of(self.account_of(client)).has_room_for(1)
    }

    /// Whether what a client of this account asks for may be written to the log.
    pub(super) fn may_write(&mut self, now: Nanos, account: u32, bytes: u64) -> bool {
        let rate = self.parameters.limits.log_bytes_per_user;
        !self.parameters.is_logged || self.accounts.may_write(now, account, bytes, rate)
    }

    /// What counts for a job that says it was released at `release`.
    pub(super) fn key_times(&self, now: Nanos, task: &BookTask, release: Nanos, acquisition: u32) -> KeyTimes {
        let (period, deadline) = (task.period, task.deadline);
        // A task that releases jobs faster than it declared gets the priority that it declared, and none from before it
        // was there.
        let earliest = match (task.last_release, acquisition) {
            (Some(last), 0) => last.saturating_add(period),
            (Some(last), _) => last,
            (None, _) => now.saturating_sub(deadline),
        };
        let separated = release.max(earliest);
        let counted = separated.max(now.saturating_sub(deadline));
        let known = self.clients.get(&task.client);
        let is_beyond = known.is_some_and(|known| self.accounts.is_beyond(now, task.client, known.process));
        let due = counted.saturating_add(deadline);
        KeyTimes { separated, counted, deadline: if is_beyond { due.saturating_add(BEHIND) } else { due } }
    }

    /// A job gives its token back.
    pub(super) fn charge(&mut self, now: Nanos, job: JobId) {
        self.charge_user(now, job);
        let Some(task) = self.tasks.get(&job.task) else { return };
        let Some(open) = &task.open else { return };
        let (client, cluster) = (task.client, task.cluster);
        let held = now.saturating_sub(open.since);
        // Waiting for engines is the others' doing.
        let used = held.saturating_sub(open.waited);
        let waits = |other: &BookTask| {
            other.cluster == cluster && other.open.as_ref().is_some_and(|open| open.granted.is_none())
        };
        let others = self.tasks.values().any(|other| other.client != client && waits(other));
        let (tokens, ppm) = (self.tokens_of(cluster), self.parameters.limits.urgent_ppm);
        if others {
            advance(self.accounts.clients.entry(client).or_insert(Nanos::ZERO), now, held, tokens, ppm);
        }
        if let Some(task) = self.tasks.get_mut(&job.task) {
            let later = postponed(used, task.declared, task.period);
            task.last_release = task.last_release.map(|last| last.saturating_add(later));
        }
    }

    fn tokens_of(&self, cluster: ClusterId) -> u64 {
        let known = self.parameters.arbiter.clusters.iter().find(|known| known.id == cluster);
        let tokens = known.map_or(1, |known| {
            let left = known.gpus.iter().filter(|gpu| !self.lost.contains(gpu)).count() as u64;
            left * u64::from(known.tokens.per_gpu)
        });
        tokens.max(1)
    }
}
