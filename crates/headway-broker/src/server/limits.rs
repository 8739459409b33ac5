//! What one user and one client may take of the broker: places, bytes of the log, and how urgent they may be.
//!
//! A job's key is its release plus its relative deadline, both the client's word. So that nobody is the most urgent for ever:
//!
//! * no key is before the time of the request: a job that asks when its deadline has passed counts as due now. So at the latest
//!   when its deadline has passed, a waiting job comes before all who ask from then on;
//! * the next release of a task that used more than twice the time it declared is postponed as if it had kept to the share
//!   that it declared;
//! * a client that used more than [`BrokerLimits::urgent_ppm`](super::BrokerLimits::urgent_ppm) of a cluster's tokens while
//!   others waited comes after all who did not, until it is back at that share: what is above it, it gets where nobody else
//!   wants it.
//!
//! Keys order the jobs of one user; users take [turns](super::turns).
//!
//! A job in time, of a task that keeps to what it declared, of a client that leaves others their share, keeps the key that it
//! gave: nothing changes for whom the bounds of the analysis hold.

use std::collections::BTreeMap;

use headway_core::decisions::sharing::{ClientId, ClusterId, JobId, Segment, TaskId};
use headway_core::units::{Nanos, PPM, Rate};
use headway_os::ipc::{Peer, user};

use super::BrokerLimits;
use super::places::leaves_room;
use super::state::{BrokerState, Open, Task};
use crate::layout::GPUS_MAX;
use crate::message::TaskShape;
use crate::text::shown;

/// Rate at which the time of copies is counted: what every link in use today exceeds.
const NOMINAL_RATE: Rate = Rate(10_000_000_000);
/// What a job may use of what it declared before it counts: the factor that the specification of sharing (7.2) calls over budget.
const OVER: u64 = 2;
/// A client that was quiet may use so much at once before its share counts.
const BURST: Nanos = Nanos(1_000_000_000);
/// How much later than it says a job counts as due whose client has used more than its share.
const BEHIND: Nanos = Nanos(3_600_000_000_000);
/// The furthest that a release is postponed.
const POSTPONED_MAX: Nanos = Nanos(10_000_000_000);
/// Segments of one user's tasks. Each takes some hundred bytes of the broker's memory, by the name of a kernel.
const SEGMENTS_PER_USER: usize = 16_384;
/// Processes without clients whose accounts are kept.
const GONE_MAX: usize = 1_024;
/// Seconds of a user's rate that it may write to the log at once.
const LOG_BURST: u64 = 16;
/// What the entries of one request, its grant and its release take in the log, and those of an engine request.
pub(super) const REQUEST_BYTES: u64 = 1_024;
pub(super) const ACQUIRE_BYTES: u64 = 512;

/// What is counted of clients, and of users who write to the log.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// How far each client has come by what it used: until when that is its share.
    clients: BTreeMap<ClientId, Nanos>,
    /// The same of processes whose clients have gone: to connect again does not begin anew.
    gone: BTreeMap<u32, Nanos>,
    /// Bytes that each user may still write, and up to when that is counted.
    log: BTreeMap<u32, (u64, Nanos)>,
}

impl Accounts {
    pub(super) fn forget(&mut self, client: ClientId, pid: u32) {
        let Some(account) = self.clients.remove(&client) else { return };
        if self.gone.len() >= GONE_MAX {
            // Those that are furthest behind say the least.
            let least = self.gone.iter().min_by_key(|(_, account)| **account).map(|(pid, _)| *pid);
            least.map(|pid| self.gone.remove(&pid));
        }
        let known = self.gone.entry(pid).or_insert(Nanos::ZERO);
        *known = account.max(*known);
    }

    /// Whether a client or an earlier client of its process has used more than its share.
    fn is_beyond(&self, now: Nanos, client: ClientId, peer: Peer) -> bool {
        let known = [self.clients.get(&client), self.gone.get(&peer.pid)];
        known.into_iter().flatten().any(|account| *account > now)
    }

    /// Whether a user may have `bytes` more written, at `rate` a second.
    fn may_write(&mut self, now: Nanos, uid: u32, bytes: u64, rate: u64) -> bool {
        let most = rate.saturating_mul(LOG_BURST);
        let (left, counted) = self.log.entry(uid).or_insert((most, now));
        let earned = u128::from(now.saturating_sub(*counted).0) * u128::from(rate) / 1_000_000_000;
        // What is less than a byte stays to be counted.
        if earned > 0 {
            *left = left.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX)).min(most);
            *counted = now;
        }
        let may = *left >= bytes;
        *left = left.saturating_sub(if may { bytes } else { 0 });
        may
    }
}

/// Moves an account on by what was used at a share of so many tokens.
fn advance(account: &mut Nanos, now: Nanos, used: Nanos, tokens: u64, ppm: u64) {
    let share = (u128::from(tokens) * u128::from(ppm)).max(1);
    let step = u128::from(used.0) * u128::from(PPM) / share;
    let from = (*account).max(now.saturating_sub(BURST));
    *account =
        from.saturating_add(Nanos(u64::try_from(step).unwrap_or(u64::MAX))).min(now.saturating_add(POSTPONED_MAX));
}

/// CPU, copy and kernel time of one job, as its task declares it.
pub(super) fn declared(shape: &TaskShape) -> Nanos {
    let time = |segment: &Segment| match segment {
        Segment::Cpu(time) | Segment::Execute { time, .. } => *time,
        Segment::Copy { bytes, .. } => NOMINAL_RATE.time_for(*bytes),
    };
    shape.segments.iter().map(time).fold(Nanos::ZERO, Nanos::saturating_add)
}

/// Share of one GPU's time that a task declares.
fn utilisation_ppm(shape: &TaskShape) -> u64 {
    let ppm = u128::from(declared(shape).0) * u128::from(PPM) / u128::from(shape.period.0.max(1));
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

/// How much later the next release of a task counts that used `used` where it declared `declared` for every `period`.
fn postponed(used: Nanos, declared: Nanos, period: Nanos) -> Nanos {
    if declared == Nanos::ZERO || used.0 <= declared.0.saturating_mul(OVER) {
        return Nanos::ZERO;
    }
    let over = u128::from(used.saturating_sub(declared).0) * u128::from(period.0) / u128::from(declared.0);
    Nanos(u64::try_from(over).unwrap_or(u64::MAX)).min(POSTPONED_MAX)
}

/// Whether a user is the broker's own or root: they end and configure it, and need not leave room for others.
pub(super) fn is_trusted(uid: u32) -> bool {
    uid == user() || uid == 0
}

impl BrokerState {
    pub(super) fn uid_of(&self, client: ClientId) -> u32 {
        self.sessions.get(&client).map_or(u32::MAX, |session| session.peer.uid)
    }

    /// Whether a user has room for another client.
    pub(super) fn has_room(&self, uid: u32) -> bool {
        let is_client =
            |session: &&super::Session| session.peer.uid == uid && (session.pages.is_some() || session.gone.is_some());
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn who_uses_twice_what_it_declared_is_not_postponed_and_beyond_that_to_its_share() {
        let period = Nanos(10 * MS);
        assert_eq!(postponed(Nanos(2 * MS), Nanos(MS), period), Nanos::ZERO);
        // Three times the cost: three periods, of which one passes anyway.
        assert_eq!(postponed(Nanos(3 * MS), Nanos(MS), period), Nanos(20 * MS));
        assert_eq!(postponed(Nanos(u64::MAX), Nanos(1), period), POSTPONED_MAX);
        assert_eq!(postponed(Nanos(u64::MAX), Nanos::ZERO, period), Nanos::ZERO, "nothing was declared");
    }

    #[test]
    fn an_account_stays_behind_the_clock_within_the_share_and_runs_ahead_above_it() {
        let run = |busy_ppm: u64| {
            let (mut account, mut now) = (Nanos::ZERO, Nanos(100 * BURST.0));
            for _ in 0..10_000 {
                now = now.saturating_add(Nanos(MS));
                advance(&mut account, now, Nanos(4 * MS * busy_ppm / PPM), 4, 900_000);
            }
            (account, now)
        };
        let (account, now) = run(890_000);
        assert!(account < now, "within its share: {account} of {now}");
        let (account, now) = run(1_000_000);
        assert!(account > now, "all of it: {account} of {now}");
        assert!(account <= now.saturating_add(POSTPONED_MAX));
    }

    #[test]
    fn bytes_of_the_log_are_earned_again_and_nobody_saves_up_more_than_the_burst() {
        let mut accounts = Accounts::default();
        let (rate, mut now) = (1_000, Nanos(BURST.0));
        let mut written = 0;
        while accounts.may_write(now, 1, 100, rate) {
            written += 100;
        }
        assert_eq!(written, rate * LOG_BURST);
        assert!(accounts.may_write(now, 2, 100, rate), "another user");
        now = now.saturating_add(Nanos(BURST.0));
        let again = (0..1_000).take_while(|_| accounts.may_write(now, 1, 100, rate)).count();
        assert_eq!(again, 10);
    }
}
