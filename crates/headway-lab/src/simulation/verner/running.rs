//! The transfers of one domain at run time, with flows that join and leave: admission and non-preemptive EDF as one object.
//!
//! Sans-IO, like the dispatcher of plans, which runs a set that never changes: the driver says what time it is and when a job
//! has ended, and asks what to start. The simulator and real devices run this same object.
//!
//! Accepted flows cannot overload the server while its costs hold. If a deadline has passed when its job is about to begin, the
//! message that came last is paused: its jobs are given up until the server has nothing left to do. So who came first is
//! served in time again, the first message always.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::admission::{Admission, AdmissionRefused, Admitted, FlowRequest};
use headway_core::interconnect::BatchBlock;
use headway_core::units::Nanos;

/// A job that the server begins: all blocks move at once, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchJob {
    /// Number of its message.
    pub message: u64,
    /// When it was released.
    pub release: Nanos,
    /// When its last block must have arrived.
    pub deadline: Nanos,
    /// What the admission test counts with.
    pub worst_case: Nanos,
    /// The blocks, as large as they were at the release.
    pub blocks: Vec<BatchBlock>,
}

/// Deadline and order of release of a waiting job.
type Key = Reverse<(Nanos, u64)>;

/// The flows of one domain with the jobs that carry them.
#[derive(Debug)]
pub struct RunningDomain {
    admission: Admission,
    now: Nanos,
    /// The next release of every message.
    releases: BTreeMap<u64, Nanos>,
    ready: BinaryHeap<Key>,
    waiting: BTreeMap<u64, BatchJob>,
    busy: bool,
    /// When a job was begun last.
    began: Option<Nanos>,
    /// Somebody computes a join on a copy of the admission: it must not change meanwhile.
    held: bool,
    sequence: u64,
    /// Messages whose jobs are given up.
    paused: BTreeSet<u64>,
    /// Jobs given up since they were asked for.
    lost: Vec<BatchJob>,
}

impl RunningDomain {
    /// A domain at rest.
    #[must_use]
    pub fn new(admission: Admission) -> Self {
        Self {
            admission,
            now: Nanos::ZERO,
            releases: BTreeMap::new(),
            ready: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            busy: false,
            began: None,
            held: false,
            sequence: 0,
            paused: BTreeSet::new(),
            lost: Vec::new(),
        }
    }

    /// The flows and messages that are admitted.
    #[must_use]
    pub const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Takes a flow in, with effect after what was begun until now.
    ///
    /// # Errors
    /// [`AdmissionRefused`]; nothing has changed then.
    pub fn join(&mut self, now: Nanos, request: &FlowRequest) -> Result<Admitted, AdmissionRefused> {
        self.advance(now);
        let admitted = self.admission.join(self.undecided(), request)?;
        Ok(self.begin(admitted))
    }

    /// Releases the message of a flow that was admitted, and says which cycle is the first that carries it.
    fn begin(&mut self, admitted: Admitted) -> Admitted {
        // Jobs of this instant may have been released before the flow came, with the blocks of then.
        let released = self.releases.get(&admitted.message).copied().unwrap_or_default();
        let admitted = self.admission.begins_from(self.undecided().max(released), admitted);
        self.releases.entry(admitted.message).or_insert(admitted.effective);
        admitted
    }

    /// Gives out a copy of the admission, on which a join can be computed elsewhere while jobs go on. Until
    /// [`RunningDomain::resume`] no capacity of leavers returns, and nobody else joins or leaves.
    pub fn suspend(&mut self) -> Admission {
        self.held = true;
        self.admission.clone()
    }

    /// Takes back the copy on which a join was computed, with its answer; after a refusal nothing has changed.
    ///
    /// # Errors
    /// The [`AdmissionRefused`] that is handed in.
    pub fn resume(
        &mut self,
        now: Nanos,
        joined: Result<(Admission, Admitted), AdmissionRefused>,
    ) -> Result<Admitted, AdmissionRefused> {
        self.advance(now);
        self.held = false;
        let (admission, admitted) = joined?;
        self.admission = admission;
        Ok(self.begin(admitted))
    }

    /// Lets a flow leave; its last job's deadline.
    ///
    /// # Errors
    /// [`AdmissionRefused::Unknown`].
    pub fn leave(&mut self, now: Nanos, id: &str) -> Result<Nanos, AdmissionRefused> {
        self.advance(now);
        self.admission.leave(self.now, id)
    }

    /// The job that was begun last has ended.
    pub fn ended(&mut self, now: Nanos) {
        self.advance(now);
        self.busy = false;
    }

    /// The job to begin now, if the server is free and work waits.
    pub fn poll_start(&mut self, now: Nanos) -> Option<BatchJob> {
        self.advance(now);
        if self.busy {
            return None;
        }
        while let Some(&Reverse((deadline, sequence))) = self.ready.peek() {
            if deadline <= self.now && self.waiting.contains_key(&sequence) {
                self.pause();
            }
            self.ready.pop();
            // Nothing is left of it if its message is paused.
            if let Some(job) = self.waiting.remove(&sequence) {
                (self.busy, self.began) = (true, Some(self.now));
                return Some(job);
            }
        }
        self.paused.clear();
        if !self.held && !self.admission.idle(self.now).is_empty() {
            let messages = self.admission.messages();
            self.releases.retain(|number, _| messages.contains_key(number));
        }
        None
    }

    /// Pauses the message that came last of those that are served, never the last one.
    fn pause(&mut self) {
        let mut served = self.releases.keys().rev().filter(|message| !self.paused.contains(message));
        if let (Some(&latest), Some(_)) = (served.next(), served.next()) {
            self.paused.insert(latest);
            self.lost.extend(self.waiting.extract_if(.., |_, job| job.message == latest).map(|(_, job)| job));
        }
    }

    /// Jobs that were given up since the last call: the server had more work than the admission counts with.
    pub fn take_lost(&mut self) -> Vec<BatchJob> {
        std::mem::take(&mut self.lost)
    }

    /// When something happens by itself.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let release = self.releases.values().copied().min();
        // A leaver's deadline may pass while the server is idle.
        let leaver = self.admission.poll_timeout().filter(|at| !self.busy && !self.held && *at > self.now);
        [release, leaver].into_iter().flatten().min()
    }

    /// The first instant that nothing was decided at. The test counts with blockers that begin before the jobs that they
    /// block are released: beside one that began at the same instant, a newcomer could be late by a nanosecond.
    fn undecided(&self) -> Nanos {
        self.now.saturating_add(Nanos(u64::from(self.began == Some(self.now))))
    }

    /// Releases every job whose time has come.
    fn advance(&mut self, now: Nanos) {
        self.now = now.max(self.now);
        while let Some((&message, &at)) = self.releases.iter().min_by_key(|(number, at)| (**at, **number))
            && at <= self.now
        {
            let running = &self.admission.messages()[&message];
            let deadline = at + running.period;
            self.sequence += 1;
            let (worst_case, blocks) = (running.cost, running.blocks.clone());
            let job = BatchJob { message, release: at, deadline, worst_case, blocks };
            if self.paused.contains(&message) {
                self.lost.push(job);
            } else {
                self.waiting.insert(self.sequence, job);
                self.ready.push(Reverse((deadline, self.sequence)));
            }
            self.releases.insert(message, deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::verner::admission::{FlowPlacement, LIMITS};
    use headway_core::files::machine::{RouteId, shipped};
    use headway_core::interconnect::Network;
    use headway_core::units::Bytes;

    const MS: u64 = 1_000_000;

    fn domain() -> RunningDomain {
        let machine = shipped("verner-r2").unwrap();
        RunningDomain::new(Admission::new(Network::new(&machine), machine.calibration, LIMITS))
    }

    fn request(id: &str, window: u64, bytes: u64) -> FlowRequest {
        let blocks = vec![BatchBlock { route: RouteId(0), bytes: Bytes(bytes) }];
        FlowRequest { id: id.to_owned(), blocks, period: Nanos(window), window: Nanos(window) }
    }

    #[test]
    fn the_earlier_deadline_goes_first_and_one_job_at_a_time() {
        let mut domain = domain();
        domain.join(Nanos(0), &request("long", 10 * MS, 1_000)).unwrap();
        domain.join(Nanos(0), &request("short", 3 * MS, 1_000_000)).unwrap();
        let first = domain.poll_start(Nanos(0)).unwrap();
        assert_eq!((first.deadline, domain.poll_start(Nanos(0))), (Nanos(3 * MS), None));
        domain.ended(Nanos(MS));
        assert_eq!(domain.poll_start(Nanos(MS)).unwrap().deadline, Nanos(10 * MS));
        assert_eq!(domain.poll_timeout(), Some(Nanos(3 * MS)));
    }

    #[test]
    fn who_joins_when_a_job_has_just_begun_is_released_after_it() {
        let mut domain = domain();
        let first = domain.join(Nanos(0), &request("first", 9 * MS, 1_000_000)).unwrap();
        assert_eq!(domain.join(Nanos(0), &request("same", 7 * MS, 1_000)).unwrap().effective, first.effective);
        domain.poll_start(Nanos(0)).unwrap();
        let late = domain.join(Nanos(0), &request("late", 4 * MS, 1_000)).unwrap();
        assert!(late.effective > Nanos(0), "{late:?}");
    }

    #[test]
    fn the_first_cycle_that_a_joiner_is_told_of_carries_it() {
        for (elsewhere, now) in [(false, 3), (false, 4), (true, 3), (true, 4), (true, 9)] {
            let mut domain = domain();
            domain.join(Nanos(0), &request("first", 3 * MS, 1_000_000)).unwrap();
            // A long job keeps the server busy when the joiner comes.
            domain.poll_start(Nanos(0)).unwrap();
            let (now, asked) = (Nanos(now * MS), request("second", 6 * MS, 1_000));
            let admitted = if elsewhere {
                let mut copy = domain.suspend();
                let joined = copy.join(Nanos(3 * MS), &asked).map(|admitted| (copy, admitted));
                domain.resume(now, joined).unwrap()
            } else {
                domain.join(now, &asked).unwrap()
            };
            assert_ne!(admitted.placement, FlowPlacement::Alone);
            domain.ended(now);
            let mut bytes = BTreeMap::new();
            for at in now.0 / MS..20 {
                while let Some(job) = domain.poll_start(Nanos(at * MS)) {
                    bytes.insert(job.release, job.blocks[0].bytes.0);
                    domain.ended(Nanos(at * MS));
                }
            }
            let first = bytes.iter().find(|(_, bytes)| **bytes > 1_000_000).map(|(at, _)| *at);
            assert_eq!(first, Some(admitted.effective), "{elsewhere} {now}: {bytes:?}");
        }
    }

    #[test]
    fn a_join_computed_elsewhere_begins_with_a_cycle_that_has_not_begun() {
        let mut domain = domain();
        let mut copy = domain.suspend();
        let asked = request("late", 3 * MS, 1_000);
        let joined = copy.join(Nanos(MS), &asked).map(|admitted| (copy, admitted));
        domain.resume(Nanos(2 * MS), joined).unwrap();
        assert_eq!(domain.poll_start(Nanos(2 * MS)), None);
        assert_eq!(domain.poll_timeout(), Some(Nanos(4 * MS)));
        assert_eq!(domain.poll_start(Nanos(4 * MS)).unwrap().release, Nanos(4 * MS));
    }

    #[test]
    fn when_a_deadline_has_passed_the_message_that_came_last_is_given_up_until_all_is_done() {
        let mut domain = domain();
        let first = domain.join(Nanos(0), &request("first", 4 * MS, 1_000_000)).unwrap().message;
        let last = domain.join(Nanos(0), &request("last", 3 * MS, 1_000_000)).unwrap().message;
        assert_eq!(domain.poll_start(Nanos(0)).unwrap().message, last);
        let lost = |domain: &mut RunningDomain| -> Vec<(u64, u64)> {
            domain.take_lost().iter().map(|job| (job.message, job.release.0 / MS)).collect()
        };
        let mut served = Vec::new();
        // The first job takes longer than two windows, all others a millisecond.
        for now in (8..=16).map(|now| Nanos(now * MS)) {
            domain.ended(now);
            served.extend(domain.poll_start(now).map(|job| (job.message, job.release.0 / MS)));
        }
        assert_eq!(lost(&mut domain), [(last, 3), (last, 6), (last, 9)]);
        let late = [(first, 0), (first, 4), (first, 8)];
        assert_eq!(served, [&late[..], &[(last, 12), (first, 12), (last, 15), (first, 16)]].concat());
    }

    #[test]
    fn while_a_join_is_computed_no_capacity_returns() {
        let mut domain = domain();
        domain.join(Nanos(0), &request("a", MS, 1_000)).unwrap();
        let last = domain.leave(Nanos(1), "a").unwrap();
        let mut now = Nanos(0);
        let _copy = domain.suspend();
        while now <= last {
            while domain.poll_start(now).is_some() {
                domain.ended(now);
            }
            now = now + Nanos(MS / 2);
        }
        assert_eq!(domain.admission().flows().count(), 1);
        assert!(domain.resume(now, Err(AdmissionRefused::Unknown { flow: "b".to_owned() })).is_err());
        while domain.poll_start(now).is_some() {
            domain.ended(now);
        }
        assert_eq!(domain.admission().flows().count(), 0);
    }
}
