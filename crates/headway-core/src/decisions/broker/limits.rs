//! What one user and one client may take of the broker: places, bytes of the log, and how urgent they may be.
//!
//! A job's key is its release plus its relative deadline, both the client's word. So that no job is the most urgent for ever:
//!
//! * no key is before the time of the request: a job that asks when its deadline has passed counts as due now. So at the latest
//!   when its deadline has passed, a waiting job comes before all requests from then on;
//! * the next release of a task that used more than twice the time it declared is postponed as if it had kept to the share
//!   that it declared;
//! * a client that used more than [`BrokerLimits::urgent_ppm`](super::messages::BrokerLimits::urgent_ppm) of a cluster's tokens while
//!   others waited comes after all other clients, until it is back at that share: it gets more only where no other client
//!   wants it.
//!
//! Keys order the jobs of one user; users take [turns](super::turns).
//!
//! A job in time, of a task that keeps to what it declared, of a client that leaves others their share, keeps the key that it
//! gave: nothing changes for the jobs for which the bounds of the analysis hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decisions::sharing::{ClientId, JobSegment};
use crate::units::{Nanos, PPM, Rate};

use super::messages::{ClientProcess, TaskShape};
use super::usage::LimitUse;

/// Rate at which the time of copies is counted: what every link in use today exceeds.
const NOMINAL_RATE: Rate = Rate(10_000_000_000);
/// What a job may use of what it declared before it counts: the factor that the specification of sharing (7.2) calls over budget.
const OVER: u64 = 2;
/// A client that was quiet may use so much at once before its share counts.
const BURST: Nanos = Nanos(1_000_000_000);
/// How much later than it says a job counts as due whose client has used more than its share.
pub(super) const BEHIND: Nanos = Nanos(3_600_000_000_000);
/// The furthest that a release is postponed.
const POSTPONED_MAX: Nanos = Nanos(10_000_000_000);
/// Segments of one user's tasks. Each takes some hundred bytes of the broker's memory, by the name of a kernel.
pub(super) const SEGMENTS_PER_USER: usize = 4_096;
/// Processes without clients whose accounts are kept.
const GONE_MAX: usize = 1_024;
/// Seconds of a user's rate that it may write to the log at once.
const LOG_BURST: u64 = 16;
/// What the entries of one request, its grant and its release take in the log, and those of an engine request.
pub(super) const REQUEST_BYTES: u64 = 1_024;
pub(super) const ACQUIRE_BYTES: u64 = 512;
/// What it takes in addition that leases end for an engine request, and begin again.
pub(super) const LEASES_BYTES: u64 = 256;
/// What a report of the use of a leased engine takes in the log.
pub(super) const USED_BYTES: u64 = 256;

/// Accounts of clients, and of users whose requests go to the log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Accounts {
    /// How far each client has come by what it used: until when that is its share.
    #[serde(with = "crate::decisions::pairs")]
    pub(super) clients: BTreeMap<ClientId, Nanos>,
    /// Until when that is the share of processes whose clients have gone, by account and process: to connect again does not begin anew, and
    /// another user's process that gets the number does.
    #[serde(with = "crate::decisions::pairs")]
    gone: BTreeMap<(u32, u32), Nanos>,
    /// Bytes that each user may still write, and up to when that is counted.
    #[serde(with = "crate::decisions::pairs")]
    log: BTreeMap<u32, (u64, Nanos)>,
}

impl Accounts {
    pub(super) fn forget(&mut self, client: ClientId, process: ClientProcess) {
        let Some(account) = self.clients.remove(&client) else { return };
        if self.gone.len() >= GONE_MAX {
            // Those that are furthest behind say the least.
            let least = self.gone.iter().min_by_key(|(_, account)| **account).map(|(process, _)| *process);
            least.map(|process| self.gone.remove(&process));
        }
        let known = self.gone.entry((process.account, process.pid)).or_insert(Nanos::ZERO);
        *known = account.max(*known);
    }

    /// Whether a client or an earlier client of its process has used more than its share.
    pub(super) fn is_beyond(&self, now: Nanos, client: ClientId, process: ClientProcess) -> bool {
        let known = [self.clients.get(&client), self.gone.get(&(process.account, process.pid))];
        known.into_iter().flatten().any(|account| *account > now)
    }

    /// Bytes that a user has written and may not yet write again, and the most there may be of them.
    pub(super) fn written(&self, now: Nanos, uid: u32, rate: u64) -> LimitUse {
        let most = rate.saturating_mul(LOG_BURST);
        let left = self
            .log
            .get(&uid)
            .map_or(most, |(left, counted)| left.saturating_add(earned(now.saturating_sub(*counted), rate)).min(most));
        LimitUse { used: most - left, most }
    }

    /// Whether a user may have `bytes` more written, at `rate` a second: then they are counted. A refusal changes nothing.
    pub(super) fn may_write(&mut self, now: Nanos, uid: u32, bytes: u64, rate: u64) -> bool {
        let most = rate.saturating_mul(LOG_BURST);
        let (mut left, mut counted) = self.log.get(&uid).copied().unwrap_or((most, now));
        let earned = earned(now.saturating_sub(counted), rate);
        // What is less than a byte stays to be counted.
        if earned > 0 {
            left = left.saturating_add(earned).min(most);
            counted = now;
        }
        let may = left >= bytes;
        if may {
            self.log.insert(uid, (left - bytes, counted));
        }
        may
    }
}

/// Bytes for a time at `rate` bytes a second.
fn earned(time: Nanos, rate: u64) -> u64 {
    u64::try_from(u128::from(time.0) * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// Moves an account on by what was used at a share of so many tokens.
pub(super) fn advance(account: &mut Nanos, now: Nanos, used: Nanos, tokens: u64, ppm: u64) {
    let share = (u128::from(tokens) * u128::from(ppm)).max(1);
    let step = u128::from(used.0) * u128::from(PPM) / share;
    let from = (*account).max(now.saturating_sub(BURST));
    *account =
        from.saturating_add(Nanos(u64::try_from(step).unwrap_or(u64::MAX))).min(now.saturating_add(POSTPONED_MAX));
}

/// CPU, copy and kernel time of one job, as its task declares it.
pub(super) fn declared(shape: &TaskShape) -> Nanos {
    let time = |segment: &JobSegment| match segment {
        JobSegment::Cpu(time) | JobSegment::Execute { time, .. } => *time,
        JobSegment::Copy { bytes, .. } => NOMINAL_RATE.time_for(*bytes),
    };
    shape.segments.iter().map(time).fold(Nanos::ZERO, Nanos::saturating_add)
}

/// Share of one GPU's time that a task declares.
pub(super) fn utilisation_ppm(declared: Nanos, period: Nanos) -> u64 {
    let ppm = u128::from(declared.0) * u128::from(PPM) / u128::from(period.0.max(1));
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

/// How much later the next release of a task counts that used `used` where it declared `declared` for every `period`.
pub(super) fn postponed(used: Nanos, declared: Nanos, period: Nanos) -> Nanos {
    if declared == Nanos::ZERO || used.0 <= declared.0.saturating_mul(OVER) {
        return Nanos::ZERO;
    }
    let over = u128::from(used.saturating_sub(declared).0) * u128::from(period.0) / u128::from(declared.0);
    Nanos(u64::try_from(over).unwrap_or(u64::MAX)).min(POSTPONED_MAX)
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
    fn what_a_process_used_follows_it_to_its_next_client_and_to_no_other_user() {
        let mut accounts = Accounts::default();
        let process = |account| ClientProcess { pid: 7, uid: account, account, started: 0 };
        accounts.clients.insert(ClientId(1), Nanos(100));
        accounts.forget(ClientId(1), process(11));
        assert!(accounts.is_beyond(Nanos(99), ClientId(2), process(11)));
        assert!(
            !accounts.is_beyond(Nanos(99), ClientId(2), process(12)),
            "the number was given to another user's process"
        );
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
