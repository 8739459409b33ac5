//! Every interleaving of jobs on copy engines: no deadlock, and never more blockers than the analysis counts.

use std::collections::BTreeMap;

use super::*;
use crate::analysis::sharing::nested_blockers;
use crate::analysis::sharing::tests::paper;

/// GPUs with one copy engine each, jobs that may ask for any engine or any pair.
#[derive(Clone, Copy, Debug)]
struct Scope {
    peer: PeerLocks,
    order: LockOrder,
    /// Whether the last job becomes the most urgent of all at any time, and again what it was.
    keys_change: bool,
    gpus: u32,
    jobs: u32,
}

/// Locks with the operations that have used up their time and must complete before time goes on.
#[derive(Clone)]
struct State {
    locks: EngineLocks,
    done: Vec<bool>,
}

impl Scope {
    fn start(self) -> State {
        let jobs = vec![(0, None); self.jobs as usize];
        let parameters = EngineParameters { order: self.order, ..parameters(self.peer, 1) };
        State { locks: locks(parameters, self.gpus, &jobs), done: vec![false; self.jobs as usize] }
    }

    /// What a job may ask for: the GPU of its token, and the one it leaves for a peer copy.
    fn requests(self) -> Vec<(u32, Option<u32>)> {
        let singles = (0..self.gpus).map(|gpu| (gpu, None));
        let pairs = (0..self.gpus).flat_map(|a| (a + 1..self.gpus).map(move |b| (b, Some(a))));
        singles.chain(pairs).collect()
    }

    fn acquire(self, state: &State, task: u32, (gpu, from): (u32, Option<u32>)) -> State {
        let mut next = state.clone();
        let known = next.locks.job_mut(TaskId(task));
        (known.gpu, known.from) = (GpuId(gpu), from.map(GpuId));
        let work = if from.is_some() { EngineWork::Peer } else { EngineWork::CopyIn };
        next.locks.handle_acquire(Nanos(0), job(task), operation(work)).unwrap();
        next
    }

    /// All states one input on.
    fn inputs(self, state: &State) -> Vec<State> {
        let mut next = Vec::new();
        for task in 0..self.jobs {
            match state.locks.jobs[&TaskId(task)].state {
                super::super::State::Idle => {
                    next.extend(self.requests().into_iter().map(|request| self.acquire(state, task, request)));
                }
                super::super::State::Obtained { .. } => {
                    let mut after = state.clone();
                    after.locks.handle_next(Nanos(0), job(task)).unwrap();
                    next.push(after);
                }
                super::super::State::Running { .. } => {
                    let mut after = state.clone();
                    after.locks.handle_complete(Nanos(0), job(task)).unwrap();
                    after.done[task as usize] = false;
                    next.push(after);
                }
                super::super::State::Waiting { .. } => {}
            }
        }
        if self.keys_change {
            next.push(self.change_key(state));
        }
        for state in &mut next {
            state.locks.actions.clear();
            state.locks.events.clear();
            state.locks.check().unwrap_or_else(|violation| panic!("{violation} in {self:?}: {:#?}", state.locks));
        }
        next
    }

    fn change_key(self, state: &State) -> State {
        let mut next = state.clone();
        let last = self.jobs - 1;
        let own = key(last, 10 + u64::from(last));
        let other = if state.locks.jobs[&TaskId(last)].base == own { key(last, 1) } else { own };
        next.locks.handle_key(Nanos(0), job(last), other).unwrap();
        next
    }

    /// One tick on: everybody who runs has used its time. `None` while somebody must first complete or ask.
    fn tick(self, state: &State) -> Option<State> {
        let mut after = state.clone();
        for task in 0..self.jobs {
            match state.locks.jobs[&TaskId(task)].state {
                super::super::State::Obtained { .. } => return None,
                super::super::State::Running { .. } if state.done[task as usize] => return None,
                super::super::State::Running { .. } => after.done[task as usize] = true,
                _ => {}
            }
        }
        Some(after)
    }

    /// The state up to the names of jobs; those from `fixed` on may be exchanged.
    fn canonical(self, state: &State, fixed: u32) -> Vec<u8> {
        // Jobs are named as they appear in the locks; those that do not appear are idle and alike.
        let locks = state.locks.locks.values();
        let appearing = locks.flat_map(|lock| lock.holder.iter().chain(&lock.waiting)).map(|task| task.0);
        let mut order: Vec<u32> = Vec::new();
        // In the order of urgency no two are alike.
        let appearing = appearing.filter(|_| self.order == LockOrder::Arrival);
        for task in appearing.chain(0..self.jobs) {
            if task >= fixed && !order.contains(&task) {
                order.push(task);
            }
        }
        let name = |task: TaskId| {
            let place = order.iter().position(|other| *other == task.0).map(|place| place as u32 + fixed);
            place.unwrap_or(task.0) as u8 + 1
        };
        let mut bytes = Vec::new();
        for lock in state.locks.locks.values() {
            bytes.push(lock.holder.map_or(0, name));
            bytes.extend(lock.waiting.iter().map(|task| name(*task)));
            bytes.push(255);
        }
        for task in (0..fixed).chain(order.iter().copied()) {
            let (code, locks) = match state.locks.jobs[&TaskId(task)].state {
                super::super::State::Idle => (0, [None, None]),
                super::super::State::Waiting { locks, obtained, .. } => (1 + u8::from(obtained.is_some()), locks),
                super::super::State::Obtained { locks, .. } => (3, locks),
                super::super::State::Running { locks, backfill, .. } => {
                    (4 + u8::from(state.done[task as usize]) + 2 * u8::from(backfill), locks)
                }
            };
            let changed = self.keys_change && state.locks.jobs[&TaskId(task)].base.deadline == Nanos(1);
            bytes.push(code + 16 * u8::from(changed));
            bytes.extend(locks.iter().map(|lock| lock.map_or(9, |lock| lock.gpu.0 as u8)));
        }
        bytes
    }

    /// Every state; each is checked.
    fn explore(self) -> usize {
        let start = self.start();
        let mut seen = BTreeMap::from([(self.canonical(&start, 0), ())]);
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            for next in self.inputs(&state) {
                if seen.insert(self.canonical(&next, 0), ()).is_none() {
                    open.push(next);
                }
            }
        }
        seen.len()
    }

    /// The most ticks that job 0 waits for its locks, one operation of anybody being a tick; and the number of states.
    fn worst(self, most: u8) -> (u8, usize) {
        let start = self.start();
        let mut free = BTreeMap::from([(self.canonical(&start, 1), start.clone())]);
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            let idle = |next: &State| next.locks.jobs[&TaskId(0)].state == super::super::State::Idle;
            for next in self.inputs(&state).into_iter().filter(idle) {
                if free.insert(self.canonical(&next, 1), next.clone()).is_none() {
                    open.push(next);
                }
            }
        }
        let waits = |state: &State| {
            use super::super::State::{Obtained, Waiting};
            matches!(state.locks.jobs[&TaskId(0)].state, Waiting { .. } | Obtained { .. })
        };
        let mut waited: BTreeMap<Vec<u8>, u8> = BTreeMap::new();
        let mut open: Vec<(State, u8)> = Vec::new();
        let asked =
            free.values().flat_map(|state| self.requests().into_iter().map(|request| self.acquire(state, 0, request)));
        for state in asked.filter(waits) {
            if waited.insert(self.canonical(&state, 1), 0).is_none() {
                open.push((state, 0));
            }
        }
        let mut worst = 0;
        while let Some((state, so_far)) = open.pop() {
            if waited[&self.canonical(&state, 1)] > so_far {
                continue;
            }
            let next = self.inputs(&state).into_iter().map(|next| (next, so_far));
            for (next, ticks) in
                next.chain(self.tick(&state).map(|next| (next, so_far + 1))).filter(|(next, _)| waits(next))
            {
                worst = worst.max(ticks);
                if worst > most {
                    return (worst, waited.len());
                }
                let known = waited.entry(self.canonical(&next, 1)).or_insert(u8::MAX);
                if *known == u8::MAX || *known < ticks {
                    *known = ticks;
                    open.push((next, ticks));
                }
            }
        }
        (worst, waited.len())
    }
}

fn scope(peer: PeerLocks, gpus: u32, jobs: u32) -> Scope {
    Scope { peer, order: LockOrder::Arrival, keys_change: false, gpus, jobs }
}

fn by_urgency(gpus: u32, jobs: u32) -> Scope {
    Scope { order: LockOrder::Urgency, ..scope(PeerLocks::Group, gpus, jobs) }
}

const RULES: [PeerLocks; 3] = [PeerLocks::Group, PeerLocks::Nested, PeerLocks::GroupBackfill];

#[test]
fn no_interleaving_of_four_jobs_on_two_gpus_or_three_on_three_deadlocks() {
    for peer in RULES {
        for (gpus, jobs) in [(2, 4), (3, 3)] {
            println!("{peer:?}, {gpus} GPUs, {jobs} jobs: {} states", scope(peer, gpus, jobs).explore());
        }
    }
}

/// `cargo test --release -p headway-core --lib -- --ignored no_interleaving --nocapture`
#[test]
#[ignore = "minutes in a release build"]
fn no_interleaving_of_up_to_six_jobs_on_three_gpus_deadlocks() {
    for jobs in [4, 5, 6] {
        for peer in RULES {
            println!("{peer:?}, 3 GPUs, {jobs} jobs: {} states", scope(peer, 3, jobs).explore());
        }
    }
}

fn most_blockers(peer: PeerLocks, gpus: u32, jobs: u32) -> u64 {
    let (worst, states) = scope(peer, gpus, jobs).worst(60);
    println!("{peer:?}, {gpus} GPUs, {jobs} jobs: {states} states, at most {worst} blockers");
    u64::from(worst)
}

#[test]
fn only_earlier_requests_block_under_group_locks() {
    for (gpus, jobs) in [(2, 2), (3, 2), (2, 3), (3, 3)] {
        assert_eq!(most_blockers(PeerLocks::Group, gpus, jobs), u64::from(jobs) - 1);
    }
}

#[test]
fn nested_locks_reach_the_recurrence_and_no_more() {
    for (gpus, jobs) in [(2, 2), (3, 2), (2, 3), (3, 3)] {
        let bound = nested_blockers(u64::from(jobs), u64::from(gpus)).unwrap();
        let worst = most_blockers(PeerLocks::Nested, gpus, jobs);
        assert_eq!(worst, bound, "{jobs} jobs, {gpus} locks");
        let printed = paper::nested_blockers(u64::from(jobs), 1).unwrap();
        assert!(worst > printed, "the printed Lemma 4 says {printed}");
    }
}

#[test]
fn backfill_adds_at_most_a_blocker_per_group() {
    for (gpus, jobs) in [(2, 2), (2, 3), (3, 3)] {
        let worst = most_blockers(PeerLocks::GroupBackfill, gpus, jobs);
        assert!(worst < 2 * u64::from(jobs), "{worst}");
    }
}

/// `cargo test --release -p headway-core --lib -- --ignored four_jobs_meet --nocapture`
#[test]
#[ignore = "minutes in a release build"]
fn four_jobs_meet_no_more_blockers_than_the_analysis_counts() {
    for gpus in [2, 3] {
        assert_eq!(most_blockers(PeerLocks::Group, gpus, 4), 3);
        assert_eq!(most_blockers(PeerLocks::Nested, gpus, 4), nested_blockers(4, u64::from(gpus)).unwrap());
        assert!(most_blockers(PeerLocks::GroupBackfill, gpus, 4) < 8);
    }
}

#[test]
fn in_the_order_of_urgency_no_interleaving_deadlocks_even_if_keys_change() {
    for (gpus, jobs) in [(2, 3), (3, 3), (2, 4)] {
        let scope = Scope { keys_change: true, ..by_urgency(gpus, jobs) };
        println!("{gpus} GPUs, {jobs} jobs: {} states", scope.explore());
    }
}

#[test]
fn the_most_urgent_job_waits_for_one_operation_at_most_whatever_its_group() {
    for (gpus, jobs) in [(1, 2), (2, 2), (2, 3), (3, 3)] {
        let (worst, states) = by_urgency(gpus, jobs).worst(60);
        println!("{gpus} GPUs, {jobs} jobs: {states} states, at most {worst} blockers");
        assert_eq!(worst, 1);
    }
}
