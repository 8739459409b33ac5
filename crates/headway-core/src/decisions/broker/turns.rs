//! Turns between users.
//!
//! Keys order the jobs of one user. They cannot order users: a user with more processes has more keys. So if several users make
//! requests, a request waits here, and not with the arbiter, until a token is free for it. The user with the least recent use is next, and
//! of that user the most urgent job. The arbiter sees requests one by one when their turn comes.
//!
//! With `W` the watchdog, `D` the drain and `K` tokens a GPU, a token is free again `T = (K + 1) W + D` after its grant at the
//! latest: a holder may keep it for `W`, and for up to `K W` more while it waits for engines, each of which the `K - 1` other
//! holders may keep for `W`. With `U` users that compete for the tokens of a cluster:
//!
//! * a user with less use than every other one gets the next free token, so within `T`;
//! * every user gets one within `T (U + log2(6 U) / 8)`. The account of every user decays with a half-life of `T / 8`.
//!   So a user with as much use as the waiting user is passed over until the waiting user has had a token. With `k` tokens, the waiting user
//!   has used at most `k T / (1 - 2^-8)`. The others reach that in `T / 8 log2(6 U)`, since their use during the wait weighs more;
//!   then each of them may hold tokens for another `T`.
//!
//! In modes where a FIFO has more than one place, a request may stand behind the holder of one token: `T` more. A user whose
//! clients hang is passed over for longer ([`Turns::strike`]).
//!
//! While only one user makes requests, and no other one did for [`CALM`], every request goes to the arbiter at once.

use std::collections::BTreeMap;

use crate::decisions::sharing::ClusterId;
use crate::units::Nanos;
use serde::{Deserialize, Serialize};

/// How long a user competes after its last request has ended.
const CALM: Nanos = Nanos(10_000_000_000);
/// Half-life of what a user has used, as a part of the longest time for which a token is kept.
const HALF_LIFE: u64 = 8;
/// How often in a half-life the broker records the use of all users.
const WRITTEN: u64 = 4;
/// How often the time for which a user is passed over is doubled at most.
const DOUBLED_MAX: u32 = 3;
/// After so many watchdogs without another one, a user's clients that hung are forgotten.
const FORGIVEN: u64 = 16;
/// Users whose use is remembered at most, in each cluster.
const USERS_MAX: usize = 1_024;

/// What a user has used of a cluster, as it is written down for the next broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserAccount {
    pub cluster: ClusterId,
    pub uid: u32,
    /// Time for which it held tokens, and how much of it counts now: when that was reckoned.
    used: Nanos,
    counted: Nanos,
    /// Clients that were cut off because they hung, since when none was, and until when the user is passed over.
    hung: u32,
    hung_at: Nanos,
    barred_until: Nanos,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct User {
    account: UserAccount,
    /// When a request of its was last seen open.
    seen: Nanos,
}

/// The users of one cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Ledger {
    #[serde(with = "crate::decisions::pairs")]
    users: BTreeMap<u32, User>,
    /// Whether requests wait for their turn.
    several: bool,
    /// When the broker last determined that, and the next user.
    looked: Nanos,
}

/// The account of each user, and whether users take turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Turns {
    #[serde(with = "crate::decisions::pairs")]
    ledgers: BTreeMap<ClusterId, Ledger>,
    watchdog: Nanos,
    pub(super) half_life: Nanos,
    /// When the accounts were last written down.
    written: Nanos,
}

/// The longest time after which a token is free again.
pub(super) fn longest_hold(tokens_per_gpu: u32, watchdog: Nanos, drain: Nanos) -> Nanos {
    Nanos(watchdog.0.saturating_mul(u64::from(tokens_per_gpu) + 1).saturating_add(drain.0))
}

/// A competing user at one moment: when its oldest request came, and for how long its present holders have had their tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) uid: u32,
    pub(super) since: Nanos,
    pub(super) holding: Nanos,
}

/// 2^(-1/2), 2^(-1/4), 2^(-1/8) and so on, in units of 2^-64.
const ROOTS: [u64; 32] = {
    let (mut roots, mut root, mut at) = ([0; 32], 1u128 << 63, 0);
    while at < roots.len() {
        root = (root << 64).isqrt();
        roots[at] = root as u64;
        at += 1;
    }
    roots
};

/// What is left of `used` after `passed`: it halves in every half-life.
fn halved(used: Nanos, passed: Nanos, half_life: Nanos) -> Nanos {
    let half_life = half_life.0.max(1);
    let halvings = u32::try_from(passed.0 / half_life).unwrap_or(u32::MAX);
    let fraction = (u128::from(passed.0 % half_life) << ROOTS.len()) / u128::from(half_life);
    // In units of 2^-64.
    let mut factor = 1u128 << 64;
    for (bit, root) in ROOTS.iter().rev().enumerate() {
        if fraction >> bit & 1 == 1 {
            factor = (factor * u128::from(*root)) >> 64;
        }
    }
    let left = (u128::from(used.0) * factor).checked_shr(halvings.saturating_add(64)).unwrap_or(0);
    Nanos(u64::try_from(left).unwrap_or(u64::MAX))
}

impl UserAccount {
    fn decay(&mut self, now: Nanos, half_life: Nanos) {
        self.used = halved(self.used, now.saturating_sub(self.counted), half_life);
        self.counted = now;
    }

    fn is_forgotten(&self, now: Nanos, watchdog: Nanos) -> bool {
        self.used == Nanos::ZERO && self.barred_until <= now && self.has_made_good(now, watchdog)
    }

    fn has_made_good(&self, now: Nanos, watchdog: Nanos) -> bool {
        self.hung == 0 || now.saturating_sub(self.hung_at).0 >= watchdog.0.saturating_mul(FORGIVEN)
    }
}

impl Turns {
    /// Goes on from the accounts that the former broker recorded.
    pub(super) fn new(watchdog: Nanos, longest: Nanos, before: Vec<UserAccount>, now: Nanos) -> Self {
        let half_life = Nanos((longest.0 / HALF_LIFE).max(1));
        let mut this = Self { ledgers: BTreeMap::new(), watchdog, half_life, written: now };
        for account in before.into_iter().filter(|account| account.counted <= now) {
            let ledger = this.ledgers.entry(account.cluster).or_default();
            if ledger.users.len() < USERS_MAX {
                // It does not compete.
                ledger.users.insert(account.uid, User { account, seen: Nanos::ZERO });
            }
        }
        this
    }

    /// Whether users take turns in a cluster.
    pub(super) fn are_taken(&self, cluster: ClusterId) -> bool {
        self.ledgers.get(&cluster).is_some_and(|ledger| ledger.several)
    }

    fn user(&mut self, now: Nanos, cluster: ClusterId, uid: u32) -> &mut User {
        let (half_life, watchdog) = (self.half_life, self.watchdog);
        let ledger = self.ledgers.entry(cluster).or_default();
        if !ledger.users.contains_key(&uid) && ledger.users.len() >= USERS_MAX {
            ledger.users.values_mut().for_each(|user| user.account.decay(now, half_life));
            ledger.users.retain(|_, user| !user.account.is_forgotten(now, watchdog));
            let least = ledger.users.iter().min_by_key(|(_, user)| (user.account.hung, user.account.used));
            if let Some(uid) = least.map(|(uid, _)| *uid).filter(|_| ledger.users.len() >= USERS_MAX) {
                ledger.users.remove(&uid);
            }
        }
        ledger.users.entry(uid).or_insert_with(|| User {
            account: UserAccount {
                cluster,
                uid,
                used: Nanos::ZERO,
                counted: now,
                hung: 0,
                hung_at: Nanos::ZERO,
                barred_until: Nanos::ZERO,
            },
            seen: now,
        })
    }

    /// A user has a request open.
    pub(super) fn see(&mut self, now: Nanos, cluster: ClusterId, uid: u32) {
        self.user(now, cluster, uid).seen = now;
    }

    /// A user has held a token for so long.
    pub(super) fn charge(&mut self, now: Nanos, cluster: ClusterId, uid: u32, held: Nanos) {
        let half_life = self.half_life;
        let user = self.user(now, cluster, uid);
        user.account.decay(now, half_life);
        user.account.used = user.account.used.saturating_add(held);
        user.seen = now;
    }

    /// A client of a user was cut off because it kept a token for too long.
    pub(super) fn strike(&mut self, now: Nanos, cluster: ClusterId, uid: u32) {
        let watchdog = self.watchdog;
        let account = &mut self.user(now, cluster, uid).account;
        if account.has_made_good(now, watchdog) {
            account.hung = 0;
        }
        let passed_over = watchdog.0.saturating_mul(1 << account.hung.min(DOUBLED_MAX));
        account.hung = account.hung.saturating_add(1);
        account.hung_at = now;
        account.barred_until = account.barred_until.max(now.saturating_add(Nanos(passed_over)));
    }

    /// Determines again whether several users compete; `open` are the users with open requests.
    pub(super) fn look(&mut self, now: Nanos, cluster: ClusterId, open: impl Iterator<Item = u32>) -> bool {
        for uid in open {
            self.see(now, cluster, uid);
        }
        let Some(ledger) = self.ledgers.get_mut(&cluster) else { return false };
        let asks = |user: &&User| user.seen > Nanos::ZERO && now.saturating_sub(user.seen) < CALM;
        ledger.looked = now;
        ledger.several = ledger.users.values().filter(asks).count() > 1;
        ledger.several
    }

    /// The next of the competing users: the one with the least use, then the one that has waited longest. `None` if all are passed over.
    pub(super) fn next(&mut self, now: Nanos, cluster: ClusterId, asking: &[Asker]) -> Option<u32> {
        let half_life = self.half_life;
        let mut best = None;
        for asker in asking {
            let account = &mut self.user(now, cluster, asker.uid).account;
            account.decay(now, half_life);
            if account.barred_until > now {
                continue;
            }
            let rank = (account.used.saturating_add(asker.holding), asker.since, asker.uid);
            best = best.into_iter().chain([rank]).min();
        }
        best.map(|(_, _, uid)| uid)
    }

    /// When a user's turn may have come although nothing happens: a user is no longer passed over, or a former user no longer
    /// competes.
    pub(super) fn wake_time(&self) -> Option<Nanos> {
        let ledgers = self.ledgers.values().filter(|ledger| ledger.several);
        let of = |ledger: &Ledger| {
            let times =
                ledger.users.values().flat_map(|user| [user.account.barred_until, user.seen.saturating_add(CALM)]);
            times.filter(|time| *time > ledger.looked).min()
        };
        ledgers.filter_map(of).min()
    }

    /// Whether what users have used since it was last written down could matter to the next broker.
    pub(super) fn are_due_to_be_written(&self, now: Nanos) -> bool {
        let is_counted = self.ledgers.values().any(|ledger| ledger.several);
        is_counted && now.saturating_sub(self.written).0 >= self.half_life.0 / WRITTEN
    }

    /// They are written down now.
    pub(super) fn set_written(&mut self, now: Nanos) {
        self.written = now;
    }

    /// Whether more than one user of a cluster is known.
    pub(super) fn has_several(&self, cluster: ClusterId) -> bool {
        self.ledgers.get(&cluster).is_some_and(|ledger| ledger.users.len() > 1)
    }

    /// What the next broker is to know.
    pub(super) fn accounts(&self) -> Vec<UserAccount> {
        // Where no second user ever asked, there is nothing to tell.
        let ledgers = self.ledgers.values().filter(|ledger| ledger.users.len() > 1);
        ledgers.flat_map(|ledger| ledger.users.values()).map(|user| user.account).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const CLUSTER: ClusterId = ClusterId(0);
    const WATCHDOG: Nanos = Nanos(500 * MS);
    const LONGEST: Nanos = Nanos(2 * WATCHDOG.0);

    /// A process of a user: it holds a token for `hold`, and asks again `think` after it gave it back.
    #[derive(Clone, Copy)]
    struct Process {
        uid: u32,
        hold: u64,
        think: u64,
        asked: u64,
        /// Until when it holds a token, and since when.
        holds: Option<(u64, u64)>,
    }

    /// Grants, the longest wait and all time with a token, of each user.
    fn share(tokens: usize, users: &[(u32, usize, u64, u64)], until: u64) -> BTreeMap<u32, (u64, u64, u64)> {
        let mut turns = Turns::new(WATCHDOG, LONGEST, Vec::new(), Nanos::ZERO);
        let process =
            |&(uid, _, hold, think): &(u32, usize, u64, u64)| Process { uid, hold, think, asked: 1, holds: None };
        let mut processes: Vec<Process> =
            users.iter().flat_map(|user| std::iter::repeat_n(process(user), user.1)).collect();
        let mut shares: BTreeMap<u32, (u64, u64, u64)> = BTreeMap::new();
        let mut now = 1;
        while now < until {
            for process in processes.iter_mut().filter(|process| process.holds.is_some_and(|(_, end)| end <= now)) {
                let (since, end) = process.holds.take().unwrap();
                turns.charge(Nanos(now), CLUSTER, process.uid, Nanos(end - since));
                shares.entry(process.uid).or_default().2 += end - since;
                process.asked = now + process.think;
            }
            while processes.iter().filter(|process| process.holds.is_some()).count() < tokens {
                let waits = |process: &&Process| process.holds.is_none() && process.asked <= now;
                let mut asking: BTreeMap<u32, Asker> = BTreeMap::new();
                for process in processes.iter().filter(waits) {
                    let since = Nanos(process.asked);
                    let new = Asker { uid: process.uid, since, holding: Nanos::ZERO };
                    let asker = asking.entry(process.uid).or_insert(new);
                    asker.since = asker.since.min(since);
                }
                for process in &processes {
                    if let (Some((since, _)), Some(asker)) = (process.holds, asking.get_mut(&process.uid)) {
                        asker.holding = asker.holding.saturating_add(Nanos(now - since));
                    }
                }
                let asking: Vec<Asker> = asking.into_values().collect();
                let Some(uid) = turns.next(Nanos(now), CLUSTER, &asking) else { break };
                let theirs = processes.iter_mut().filter(|process| process.uid == uid && process.holds.is_none());
                let process =
                    theirs.filter(|process| process.asked <= now).min_by_key(|process| process.asked).unwrap();
                process.holds = Some((now, now + process.hold));
                let share = shares.entry(uid).or_default();
                share.0 += 1;
                share.1 = share.1.max(now - process.asked);
            }
            let ends = processes.iter().filter_map(|process| process.holds.map(|(_, end)| end));
            let asks = processes.iter().filter(|process| process.holds.is_none()).map(|process| process.asked);
            now = ends.chain(asks.filter(|asked| *asked > now)).min().unwrap().max(now + 1);
        }
        shares
    }

    #[test]
    fn sixty_processes_of_one_user_leave_another_one_process_its_turn_after_every_token() {
        let shares = share(1, &[(1, 60, 10 * MS, 0), (2, 1, 10 * MS, 0)], 20_000 * MS);
        assert!(shares[&2].1 <= 10 * MS, "one token of the other user: {shares:?}");
        assert!(shares[&2].2 * 100 >= shares[&1].2 * 95, "half: {shares:?}");
        // A small use now and then, next to a user that keeps its tokens for as long as possible.
        let shares = share(2, &[(1, 60, WATCHDOG.0, 0), (2, 1, MS, 20 * MS)], 60_000 * MS);
        assert!(shares[&2].1 <= WATCHDOG.0, "{shares:?}");
        let shares = share(1, &[(1, 60, WATCHDOG.0, 0), (2, 1, MS, 0)], 60_000 * MS);
        assert!(shares[&2].2 * 4 >= shares[&1].2, "a fifth at least: {shares:?}");
    }

    #[test]
    fn waits_stay_within_the_bound_whatever_the_others_do() {
        let mut random = 12_345_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for round in 0..60 {
            let count = 2 + draw(6) as u32;
            let tokens = 1 + draw(4) as usize;
            let users: Vec<(u32, usize, u64, u64)> = (0..count)
                .map(|uid| {
                    // The first one has one process: of several, one waits for the other.
                    let processes = if uid == 0 { 1 } else { 1 + draw(40) as usize };
                    (uid, processes, 1 + draw(WATCHDOG.0), draw(3) * draw(2 * WATCHDOG.0))
                })
                .collect();
            let shares = share(tokens, &users, 200 * WATCHDOG.0);
            // None of them waits for engines: a token is kept for as long as the watchdog allows.
            let crowd = f64::from(count);
            let bound = (WATCHDOG.0 as f64 * (crowd + (6.0 * crowd).log2() / 4.0)) as u64;
            assert!(shares[&0].1 <= bound, "round {round}: {} of {bound} with {tokens}, {users:?}", shares[&0].1);
        }
    }

    #[test]
    fn who_hangs_is_passed_over_longer_each_time_also_after_it_connected_again_or_the_broker_was_started_again() {
        let asker = |uid| Asker { uid, since: Nanos(1), holding: Nanos::ZERO };
        let mut turns = Turns::new(WATCHDOG, LONGEST, Vec::new(), Nanos::ZERO);
        let mut now = Nanos(1);
        for doubled in [0, 1, 2, 3, 3] {
            turns.see(now, CLUSTER, 2);
            turns.charge(now, CLUSTER, 1, WATCHDOG);
            turns.strike(now, CLUSTER, 1);
            let until = now.saturating_add(Nanos(WATCHDOG.0 << doubled));
            assert_eq!(turns.next(Nanos(until.0 - 1), CLUSTER, &[asker(1)]), None);
            assert_eq!(turns.next(Nanos(until.0 - 1), CLUSTER, &[asker(1), asker(2)]), Some(2));
            // The next broker reads what this one wrote.
            let text = serde_json::to_string(&turns.accounts()).unwrap();
            turns = Turns::new(WATCHDOG, LONGEST, serde_json::from_str(&text).unwrap(), until);
            assert_eq!(turns.next(Nanos(until.0 - 1), CLUSTER, &[asker(1)]), None);
            assert_eq!(turns.next(until, CLUSTER, &[asker(1)]), Some(1));
            now = until;
        }
        now = now.saturating_add(Nanos(WATCHDOG.0 * FORGIVEN));
        turns.strike(now, CLUSTER, 1);
        assert_eq!(turns.next(now.saturating_add(WATCHDOG), CLUSTER, &[asker(1)]), Some(1), "it is forgiven");
    }

    #[test]
    fn users_take_turns_while_two_ask_and_until_one_has_been_quiet_for_a_while() {
        let mut turns = Turns::new(WATCHDOG, LONGEST, Vec::new(), Nanos::ZERO);
        turns.see(Nanos(1), CLUSTER, 1);
        assert!(!turns.look(Nanos(1), CLUSTER, [1].into_iter()));
        assert_eq!((turns.wake_time(), turns.accounts().len()), (None, 0), "nothing of a single user");
        turns.see(Nanos(2), CLUSTER, 2);
        assert!(turns.look(Nanos(2), CLUSTER, [1, 2].into_iter()));
        assert!(!turns.are_taken(ClusterId(1)), "another cluster");
        assert!(turns.look(Nanos(CALM.0), CLUSTER, [1].into_iter()));
        assert_eq!(turns.wake_time(), Some(Nanos(CALM.0 + 2)));
        assert!(!turns.look(Nanos(CALM.0 + 2), CLUSTER, [1].into_iter()));
    }

    #[test]
    fn what_was_used_halves_in_every_half_life() {
        let (used, half_life) = (Nanos(1 << 50), Nanos(1_000_003));
        for passed in [0, 1, 7, 500_000, 1_000_002, 1_000_003, 1_500_004, 20_000_000] {
            let exact = used.0 as f64 * (-(passed as f64) / half_life.0 as f64).exp2();
            let left = halved(used, Nanos(passed), half_life).0 as f64;
            assert!((left - exact).abs() <= 1.0 + exact * 1e-9, "{left} of {exact} after {passed}");
        }
        assert_eq!(halved(used, Nanos(u64::MAX), Nanos(0)), Nanos::ZERO);
    }

    #[test]
    fn what_users_have_used_is_written_down_several_times_in_a_half_life_while_they_share() {
        let mut turns = Turns::new(WATCHDOG, LONGEST, Vec::new(), Nanos(1));
        let due = Nanos(1 + LONGEST.0 / HALF_LIFE / WRITTEN);
        turns.see(Nanos(1), CLUSTER, 1);
        turns.look(Nanos(1), CLUSTER, [1].into_iter());
        assert!(!turns.are_due_to_be_written(due), "nothing of a single user");
        turns.charge(Nanos(1), CLUSTER, 2, Nanos(MS));
        turns.look(Nanos(1), CLUSTER, [1, 2].into_iter());
        assert!(!turns.are_due_to_be_written(Nanos(due.0 - 1)));
        assert!(turns.are_due_to_be_written(due));
        turns.set_written(due);
        assert_eq!(turns.accounts().len(), 2);
        assert!(!turns.are_due_to_be_written(due));
    }

    #[test]
    fn of_users_without_end_few_are_remembered_and_those_who_used_most_stay() {
        let mut turns = Turns::new(WATCHDOG, LONGEST, Vec::new(), Nanos::ZERO);
        turns.charge(Nanos(1), CLUSTER, 0, WATCHDOG);
        for uid in 1..3 * USERS_MAX as u32 {
            turns.charge(Nanos(1), CLUSTER, uid, Nanos(1));
        }
        let accounts = turns.accounts();
        assert!(accounts.len() <= USERS_MAX && accounts.iter().any(|account| account.uid == 0), "{}", accounts.len());
    }
}
