//! What a user and a client may ask for now, and how urgent that counts: the [limits](super::limits), applied.

use headway_core::decisions::sharing::{ClientId, ClusterId, JobId, TaskId};
use headway_core::units::{Nanos, PPM};

use super::limits::{BEHIND, SEGMENTS_PER_USER, advance, declared, is_trusted, postponed, utilisation_ppm};
use super::open::{Open, Task};
use super::places::leaves_room;
use super::session::Session;
use super::state::BrokerState;
use crate::layout::GPUS_MAX;
use crate::message::TaskShape;
use crate::status::{LimitUse, SharedUse, UserStatus};
use crate::text::shown;

impl BrokerState {
    pub(super) fn account_of(&self, client: ClientId) -> u32 {
        self.sessions.get(&client).map_or(u32::MAX, |session| session.account)
    }

    /// Whether a user has room for another client.
    pub(super) fn has_room(&self, account: u32) -> bool {
        self.use_of(Nanos::ZERO, account).clients.has_room_for(1)
    }

    /// How much a user takes of each of its limits.
    pub(super) fn use_of(&self, now: Nanos, account: u32) -> UserStatus {
        let is_theirs = |session: &&Session| session.account == account;
        let is_client = |session: &&Session| session.pages.is_some() || session.gone.is_some();
        let sessions = self.sessions.values().filter(is_theirs).count();
        let clients = self.sessions.values().filter(is_theirs).filter(is_client).count();
        let theirs: Vec<&Task> = self.tasks.values().filter(|task| self.account_of(task.client) == account).collect();
        let segments = theirs.iter().map(|task| task.shape.segments.len()).sum::<usize>();
        let requests = theirs.iter().filter(|task| task.open.is_some()).count();
        let declared = theirs.iter().fold(0u64, |sum, task| sum.saturating_add(utilisation_ppm(&task.shape)));
        let gpus = if self.is_for_group { self.gpus.len() } else { GPUS_MAX };
        let limits = &self.limits;
        let of = |used: usize, most: usize| LimitUse { used: used as u64, most: most as u64 };
        UserStatus {
            uid: account,
            clients: of(clients, limits.clients_per_user),
            unidentified: of(sessions - clients, limits.guests_per_user),
            tasks: of(theirs.len(), limits.tasks_per_user),
            segments: of(segments, SEGMENTS_PER_USER),
            requests: of(requests, limits.requests_per_user),
            utilisation_ppm: LimitUse {
                used: declared,
                most: limits.utilisation_ppm_per_user.unwrap_or(gpus as u64 * PPM),
            },
            log_bytes: self.is_logged.then(|| self.accounts.written(now, account, limits.log_bytes_per_user)),
        }
    }

    /// What all users take of what they share, with the places that a restarted broker keeps for former clients.
    pub(super) fn shared_use(&self) -> SharedUse {
        let recovery = self.recovering.as_ref();
        let kept = recovery.map_or(0, |recovery| recovery.places(|task| self.tasks.contains_key(&task)));
        let descriptors = self.sessions.values().map(Session::descriptors).sum::<usize>();
        SharedUse {
            tasks: LimitUse { used: (self.tasks.len() + kept) as u64, most: self.tasks_max as u64 },
            descriptors: LimitUse {
                used: descriptors as u64,
                most: self.limits.descriptors.unwrap_or(usize::MAX) as u64,
            },
        }
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
        let user = self.use_of(Nanos::ZERO, session.account);
        if !user.tasks.has_room_for(1) {
            return Err(format!("this user has {} tasks, the most allowed", user.tasks.used));
        }
        // Those that were there before the broker was started again have their places.
        let is_back = resumed.is_some_and(|id| self.recovering.as_ref().is_some_and(|recovery| recovery.has(id)));
        let LimitUse { used: taken, most: all } = self.shared_use().tasks;
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
            || self.use_of(Nanos::ZERO, self.account_of(client)).requests.has_room_for(1)
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
        let is_beyond = session.is_some_and(|session| self.accounts.is_beyond(now, task.client, session.peer));
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
