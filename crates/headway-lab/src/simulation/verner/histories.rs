//! Random joins and leaves on one node in virtual time: whether any accepted flow misses a deadline.

use super::admission::{Admission, AdmissionRefused, FlowPlacement, FlowRequest, LIMITS};
use super::running::RunningDomain;
use headway_core::files::machine::{Machine, RouteId};
use headway_core::interconnect::{BatchBlock, Network};
use headway_core::units::{Bytes, Nanos};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// What happened in some histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub histories: u64,
    /// Joins accepted: by growing a block, as a message of their own, by combining.
    pub joins: [u64; 3],
    /// Joins refused.
    pub refused: u64,
    pub leaves: u64,
    /// Joins accepted while a leaver's capacity was not yet back.
    pub joins_beside_leavers: u64,
    /// Jobs run.
    pub jobs: u64,
    /// Jobs that ended after their deadline.
    pub misses: u64,
    /// Jobs given up since deadlines had passed.
    pub lost: u64,
    /// Least slack of any job, nanoseconds.
    pub slack_min: Option<i64>,
    /// Time that the server was busy, and time in all.
    pub busy: (u128, u128),
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        for (sum, more) in self.joins.iter_mut().zip(other.joins) {
            *sum += more;
        }
        self.refused += other.refused;
        self.leaves += other.leaves;
        self.joins_beside_leavers += other.joins_beside_leavers;
        self.jobs += other.jobs;
        self.misses += other.misses;
        self.lost += other.lost;
        self.slack_min = [self.slack_min, other.slack_min].into_iter().flatten().min();
        self.busy = (self.busy.0 + other.busy.0, self.busy.1 + other.busy.1);
    }
}

struct History {
    routes: Vec<RouteId>,
    domain: RunningDomain,
    random: Pcg64Mcg,
    now: Nanos,
    /// End and deadline of the job on the server.
    running: Option<(Nanos, Nanos)>,
    names: u64,
    /// What jobs take, in percent of what they may take at most.
    percent: u64,
    tally: Tally,
}

/// One history of `changes` joins and leaves on `machine`, whose transfers form one domain.
#[must_use]
pub fn history(machine: &Machine, seed: u64, changes: u32) -> Tally {
    run(machine, seed, changes).tally
}

/// A history after which jobs take `percent` of what they may for 20 ms, then no more than that again: what happened until
/// 200 ms later, and in the 100 ms that follow.
#[must_use]
pub fn disturbed(machine: &Machine, seed: u64, changes: u32, percent: u64) -> (Tally, Tally) {
    let mut history = run(machine, seed, changes);
    history.percent = percent;
    history.run_until(history.now + Nanos(20_000_000));
    history.percent = 100;
    history.run_until(history.now + Nanos(200_000_000));
    let before = std::mem::take(&mut history.tally);
    history.run_until(history.now + Nanos(100_000_000));
    (before, history.tally)
}

fn run(machine: &Machine, seed: u64, changes: u32) -> History {
    let mut history = History {
        routes: (0..machine.routes.len() as u32).map(RouteId).collect(),
        domain: RunningDomain::new(Admission::new(Network::new(machine), machine.calibration.clone(), LIMITS)),
        random: Pcg64Mcg::seed_from_u64(seed),
        now: Nanos::ZERO,
        running: None,
        names: 0,
        percent: 100,
        tally: Tally { histories: 1, ..Tally::default() },
    };
    for change in 0..changes {
        // The first changes come at once: that is where sets are built up.
        let pause = if change < changes / 3 { 0 } else { history.below(4_000_000) };
        history.run_until(history.now + Nanos(pause));
        history.change();
    }
    history.run_until(history.now + Nanos(40_000_000));
    history
}

impl History {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn change(&mut self) {
        let staying: Vec<String> =
            self.domain.admission().flows().filter(|(_, leaving)| !leaving).map(|(id, _)| id.to_owned()).collect();
        if !staying.is_empty() && self.below(3) == 0 {
            let id = &staying[self.below(staying.len() as u64) as usize];
            self.domain.leave(self.now, id).expect("it is there and stays");
            self.tally.leaves += 1;
            return;
        }
        let request = self.request();
        let some_leave = self.domain.admission().flows().any(|(_, leaving)| leaving);
        match self.domain.join(self.now, &request) {
            Ok(admitted) => {
                let placement = match admitted.placement {
                    FlowPlacement::Grown => 0,
                    FlowPlacement::Alone => 1,
                    FlowPlacement::Combined { .. } => 2,
                };
                self.tally.joins[placement] += 1;
                self.tally.joins_beside_leavers += u64::from(some_leave);
            }
            Err(AdmissionRefused::Overload { .. }) => self.tally.refused += 1,
            Err(error) => unreachable!("requests are well formed: {error}"),
        }
    }

    /// Large against its window as often as small; windows harmonic as often as not.
    fn request(&mut self) -> FlowRequest {
        self.names += 1;
        let window = match self.below(2) {
            0 => 500_000 << self.below(6),
            _ => 300_000 + self.below(12_000_000),
        };
        let most = if self.below(2) == 0 { 60 } else { 600 };
        let share = 1 + self.below(most);
        let period = if self.below(4) == 0 { window / 3 + 1 } else { window };
        let mut blocks = Vec::new();
        for _ in 0..=self.below(2) {
            let route = self.below(self.routes.len() as u64) as usize;
            let route = self.routes[route];
            if blocks.iter().all(|block: &BatchBlock| block.route != route) {
                blocks.push(BatchBlock { route, bytes: Bytes(period * share / 125) });
            }
        }
        FlowRequest { id: format!("f{}", self.names), blocks, period: Nanos(period), window: Nanos(window) }
    }

    fn run_until(&mut self, end: Nanos) {
        loop {
            if let Some((ends, deadline)) = self.running.filter(|(ends, _)| *ends <= self.now) {
                let slack = deadline.0 as i64 - ends.0 as i64;
                self.tally.slack_min = Some(self.tally.slack_min.map_or(slack, |least| least.min(slack)));
                self.tally.misses += u64::from(slack < 0);
                self.running = None;
                self.domain.ended(self.now);
            }
            if let Some(job) = self.domain.poll_start(self.now) {
                let cost = Nanos(self.cost(job.worst_case).0 * self.percent / 100);
                self.tally.jobs += 1;
                self.tally.busy.0 += u128::from(cost.0);
                self.running = Some((self.now + cost, job.deadline));
                continue;
            }
            self.tally.lost += self.domain.take_lost().len() as u64;
            let next = [self.domain.poll_timeout(), self.running.map(|(ends, _)| ends)].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.tally.busy.1 += u128::from(next.0.saturating_sub(self.now.0));
            self.now = next.max(self.now);
        }
        self.now = end;
    }

    /// Costs lie between nothing and the worst case; the ends are the dangerous ones.
    fn cost(&mut self, worst: Nanos) -> Nanos {
        match self.below(4) {
            0 => Nanos(self.below(worst.0 + 1)),
            1 if self.below(4) == 0 => Nanos::ZERO,
            _ => worst,
        }
    }
}

#[cfg(test)]
mod tests {
    use headway_core::files::machine::shipped;

    use super::*;

    /// More with `HEADWAY_HISTORIES=100000 cargo test --release -p headway-lab --lib histories`.
    #[test]
    fn no_accepted_flow_misses_whatever_joins_and_leaves() {
        let count = std::env::var("HEADWAY_HISTORIES").map_or(300, |text| text.parse().expect("a number"));
        let machines = ["verner-r1", "verner-r2"].map(|name| shipped(name).unwrap());
        let mut total = Tally::default();
        for seed in 0..count {
            let tally = history(&machines[(seed % 2) as usize], seed, 24);
            assert_eq!(
                (tally.misses, tally.lost),
                (0, 0),
                "history(&shipped(\"verner-r{}\"), {seed}, 24): {tally:?}",
                seed % 2 + 1
            );
            total.add(&tally);
        }
        println!("{total:?}");
        assert!(total.joins.iter().all(|joins| *joins * 10 > count), "every way is taken: {total:?}");
        assert!(total.refused > count && total.leaves > count && total.joins_beside_leavers > count, "{total:?}");
        assert!(total.busy.0 * 3 > total.busy.1, "the server has work: {total:?}");
    }

    #[test]
    fn after_a_disturbance_everybody_is_served_in_time_again() {
        let machine = shipped("verner-r2").unwrap();
        let (mut disturbed_by, mut jobs) = (Tally::default(), 0);
        for seed in 0..100 {
            let (before, after) = disturbed(&machine, seed, 12, 220);
            disturbed_by.add(&before);
            jobs += after.jobs;
            assert_eq!((after.misses, after.lost), (0, 0), "seed {seed}: {before:?} {after:?}");
        }
        assert!(disturbed_by.lost > 100 && disturbed_by.misses > 100 && jobs > 1000, "{disturbed_by:?}");
    }
}
