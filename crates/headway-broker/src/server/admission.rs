//! What a user and a client may ask for now, and how urgent that counts: the [limits](super::limits), applied.

use headway_core::decisions::sharing::{ClientId, ClusterId, JobId, TaskId};
use headway_core::units::{Nanos, PPM};

use super::BrokerLimits;
use super::limits::{BEHIND, SEGMENTS_PER_USER, advance, declared, is_trusted, postponed, utilisation_ppm};
use super::open::{Open, Task};
use super::places::leaves_room;
use super::session::Session;
use super::state::BrokerState;
use crate::layout::GPUS_MAX;
use crate::message::TaskShape;
use crate::text::shown;

impl BrokerState {
    pub(super) fn uid_of(&self, client: ClientId) -> u32 {
        self.sessions.get(&client).map_or(u32::MAX, |session| session.peer.uid)
    }

    /// Whether a user has room for another client.
    pub(super) fn has_room(&self, uid: u32) -> bool {
        let is_client =
            |session: &&Session| session.peer.uid == uid && (session.pages.is_some() || session.gone.is_some());
        self.sessions.values().filter(is_client).count() < self.limits.clients_per_user
    }

    /// Whether another task of this user's stays within its limits.
    pub(super) fn admit_user(&self, uid: u32, shape: &TaskShape, resumed: Option<TaskId>) -> Result<(), String> {
        let BrokerLimits { tasks_per_user, utilisation_ppm_per_user: most, deadline_min, .. } = self.limits;
        let gpus = if self.is_for_group { self.gpus.len() } else { GPUS_MAX };
        let most = most.unwrap_or(gpus as u64 * PPM);
        if shape.deadline < deadline_min {
            return Err(format!(
                "a deadline of {} is below {deadline_min}, the most urgent that this broker allows",
                shape.deadline
            ));
        }
        let is_theirs = |task: &&Task| self.sessions.get(&task.client).is_some_and(|session| session.peer.uid == uid);
        let theirs: Vec<&Task> = self.tasks.values().filter(is_theirs).collect();
        if theirs.len() >= tasks_per_user {
            return Err(format!("this user has {} tasks, the most allowed", theirs.len()));
        }
        // Those that were there before the broker was started again have their places.
        let recovery = self.recovering.as_ref();
        let is_back = resumed.is_some_and(|id| recovery.is_some_and(|recovery| recovery.has(id)));
        let kept = recovery.map_or(0, |recovery| recovery.places(|task| self.tasks.contains_key(&task)));
        let (taken, all) = (self.tasks.len() + kept, self.tasks_max);
        let own = if is_trusted(uid) { 0 } else { theirs.len() };
        if !is_back && !leaves_room(own, taken, all) {
            return Err(format!(
                "{taken} of the {all} tasks that the broker has room for are there, {} of them this user's, who has to leave \
                 room for others; withdraw tasks, or start the broker with more `--tasks`",
                theirs.len()
            ));
        }
        let segments = theirs.iter().map(|task| task.shape.segments.len()).sum::<usize>();
        if segments + shape.segments.len() > SEGMENTS_PER_USER {
            return Err(format!(
                "with `{}` this user's tasks would have {} segments, above the {SEGMENTS_PER_USER} that the broker keeps for a user; \
                 withdraw tasks, or declare the segments of a job together",
                shown(&shape.name),
                segments + shape.segments.len()
            ));
        }
        let used =
            theirs.iter().fold(utilisation_ppm(shape), |sum, task| sum.saturating_add(utilisation_ppm(&task.shape)));
        if used > most {
            return Err(format!(
                "with `{}` this user's tasks would declare {used} ppm of a GPU's time, above the {most} ppm that a user may; \
                 declare less, or withdraw tasks",
                shown(&shape.name)
            ));
        }
        Ok(())
    }

    /// Whether a client's user may open another request.
    pub(super) fn may_ask(&self, client: ClientId) -> bool {
        let most = self.limits.requests_per_user;
        // A task has one at most.
        if most >= self.limits.tasks_per_user {
            return true;
        }
        let uid = self.uid_of(client);
        let open = self.tasks.values().filter(|task| task.open.is_some() && self.uid_of(task.client) == uid);
        open.count() < most
    }

    /// Whether what a client asks for may be written to the log.
    pub(super) fn may_write(&mut self, now: Nanos, client: ClientId, bytes: u64) -> bool {
        let uid = self.uid_of(client);
        !self.is_logged || self.accounts.may_write(now, uid, bytes, self.limits.log_bytes_per_user)
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
