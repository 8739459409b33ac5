//! The longest wait while among the `m` most urgent, by search: arrivals, keys, choice of FIFO and early releases are the
//! adversary's, and holders less urgent than the waiter stand still as long as it likes.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Ticks of a token hold time: with two, waits of half a hold time are seen.
const HOLD: u8 = 2;

/// A waiter among the others, with the ticks that each holder still needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Timed {
    snapshot: Snapshot,
    waiter: u8,
    aborts: u8,
}

#[derive(Clone, Copy, Debug)]
struct Search {
    scope: Scope,
    /// Whether the adversary chooses FIFOs; otherwise the shortest.
    adversarial: bool,
    /// Donors that may abort.
    aborts: u8,
    /// Whether holders may be released virtually, any number of them at any time.
    overruns: bool,
}

impl Search {
    fn choices(&self) -> Vec<Option<usize>> {
        if self.adversarial { (0..self.scope.k as usize).map(Some).collect() } else { vec![None] }
    }

    /// What one input leads to, for every choice of FIFO.
    fn after(&self, before: &TokenAllocator, input: impl Fn(&mut TokenAllocator)) -> Vec<TokenAllocator> {
        let choices = self.choices().into_iter();
        choices
            .map(|forced| {
                let mut after = before.clone();
                after.forced = forced;
                input(&mut after);
                after
            })
            .collect()
    }

    /// Each holder that is not yet released virtually may be; its deadline becomes the latest.
    fn overruns(&self, before: &TokenAllocator) -> Vec<TokenAllocator> {
        let holders = before
            .requests
            .values()
            .filter(|request| self.overruns && request.granted.is_some() && !request.virtually_released);
        let late = Nanos(2 * before.requests.len() as u64 + 4);
        let exhaust = |request: &Request| {
            self.after(before, |after| after.handle_exhausted(Nanos::ZERO, request.key.job, late).unwrap())
        };
        holders.flat_map(exhaust).collect()
    }

    fn arrivals(&self, before: &TokenAllocator) -> Vec<(usize, TokenAllocator)> {
        let count = before.requests.len();
        if count >= self.scope.open {
            return Vec::new();
        }
        let ranks = 0..=count;
        let arrive = |rank: usize| {
            let new = request(key(2 * rank as u64 + 1, count), self.scope.k);
            self.after(before, |after| after.handle_request(Nanos::ZERO, new.clone()).unwrap())
        };
        ranks.flat_map(|rank| arrive(rank).into_iter().map(move |after| (rank, after))).collect()
    }

    /// All states that releases and arrivals reach, without time: every holder may have just begun.
    fn untimed(&self) -> BTreeSet<Snapshot> {
        let (start, _) = Snapshot::of(&self.scope.allocator(), |_| None);
        let mut seen = BTreeSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            let (before, _) = state.rebuild(self.scope, false);
            let mut next: Vec<TokenAllocator> = self.arrivals(&before).into_iter().map(|(_, after)| after).collect();
            next.extend(self.overruns(&before));
            for request in before.requests.values().filter(|request| request.granted.is_some()) {
                next.extend(self.after(&before, |after| after.handle_release(Nanos::ZERO, request.key.job).unwrap()));
            }
            for after in next {
                let (state, _) = Snapshot::of(&after, |_| None);
                if seen.insert(state.clone()) {
                    open.push(state);
                }
            }
        }
        seen
    }

    /// The state after an input, holders that are new with the whole hold time before them; `None` once the waiter holds.
    fn timed(&self, after: &TokenAllocator, left: &BTreeMap<TaskId, u8>, waiter: TaskId, aborts: u8) -> Option<Timed> {
        if after.requests[&waiter].granted.is_some() {
            return None;
        }
        let (snapshot, tasks) = Snapshot::of(after, |task| Some(left.get(&task).copied().unwrap_or(HOLD)));
        let waiter = u8::try_from(tasks.iter().position(|task| *task == waiter).unwrap()).unwrap();
        Some(Timed { snapshot, waiter, aborts })
    }

    /// States one step on, with the ticks waited in it.
    fn next(&self, state: &Timed) -> Vec<(Timed, u8)> {
        let (before, marks) = state.snapshot.rebuild(self.scope, true);
        let waiter = TaskId(u32::from(state.waiter));
        let holders = before.fifos.iter().zip(marks).filter_map(|(fifo, mark)| Some((*fifo.members.front()?, mark)));
        let left: BTreeMap<TaskId, u8> = holders.collect();
        let key = before.requests[&waiter].key;
        let moving = |task: &TaskId| before.requests[task].boost <= key;
        let mut next = Vec::new();
        let keep =
            |after: TokenAllocator, aborts: u8| self.timed(&after, &left, waiter, aborts).map(|timed| (timed, 0));
        next.extend(self.arrivals(&before).into_iter().filter_map(|(_, after)| keep(after, state.aborts)));
        next.extend(self.overruns(&before).into_iter().filter_map(|after| keep(after, state.aborts)));
        for task in left.keys() {
            let job = before.requests[task].key.job;
            let after = self.after(&before, |after| after.handle_release(Nanos::ZERO, job).unwrap());
            next.extend(after.into_iter().filter_map(|after| keep(after, state.aborts)));
        }
        if state.aborts > 0 {
            for donor in before.donors.iter().filter(|donor| donor.job.task != waiter) {
                let after = self.after(&before, |after| after.handle_abort(Nanos::ZERO, donor.job).unwrap());
                next.extend(after.into_iter().filter_map(|after| keep(after, state.aborts - 1)));
            }
        }
        // Time passes only while the wait counts; a holder at its end releases first.
        if before.in_top(key) && !left.iter().any(|(task, left)| *left == 0 && moving(task)) {
            let passed = left.iter().map(|(task, left)| (*task, if moving(task) { left - 1 } else { *left })).collect();
            next.extend(self.timed(&before, &passed, waiter, state.aborts).map(|timed| (timed, 1)));
        }
        next
    }

    /// The longest wait in ticks, or the first above `most`; and the number of states.
    fn worst(&self, most: u64) -> (u64, usize) {
        let most = u8::try_from(most).unwrap();
        let mut waited: BTreeMap<Timed, u8> = BTreeMap::new();
        let mut open = Vec::new();
        for state in self.untimed() {
            let (before, _) = state.rebuild(self.scope, false);
            let waiter = TaskId(u32::try_from(before.requests.len()).unwrap());
            for (_, after) in self.arrivals(&before) {
                if let Some(timed) = self.timed(&after, &BTreeMap::new(), waiter, self.aborts)
                    && waited.insert(timed.clone(), 0).is_none()
                {
                    open.push(timed);
                }
            }
        }
        let mut worst = 0;
        while let Some(state) = open.pop() {
            let so_far = waited[&state];
            for (next, ticks) in self.next(&state) {
                let ticks = so_far + ticks;
                worst = worst.max(ticks);
                if worst > most {
                    return (u64::from(worst), waited.len());
                }
                if waited.get(&next).is_none_or(|known| *known < ticks) {
                    waited.insert(next.clone(), ticks);
                    open.push(next);
                }
            }
        }
        (u64::from(worst), waited.len())
    }
}

fn search(scope: Scope) -> Search {
    Search { scope, adversarial: true, aborts: 0, overruns: false }
}

/// The longest wait is exactly the bound of the mode.
fn exactly(search: Search, mode: TokenMode, tasks: u32) {
    let scope = search.scope;
    let beta = mode.longest_wait(scope.m, scope.k, tasks, search.adversarial).unwrap();
    let (worst, states) = search.worst(beta * u64::from(HOLD));
    println!("{mode:?} {scope:?}: {states} states, worst wait {worst}/{HOLD} hold times, bound {beta}");
    assert_eq!(worst, beta * u64::from(HOLD), "{mode:?} {scope:?}");
}

fn optimal(m: u32, k: u32, open: usize) {
    exactly(search(Scope::new(m, k, m.div_ceil(k), m, open)), TokenMode::Optimal, 0);
}

#[test]
fn waits_in_optimal_mode_reach_twice_the_queue_less_one_and_no_more() {
    for (m, k, open) in [(2, 1, 5), (2, 2, 5), (3, 2, 6), (3, 3, 5)] {
        optimal(m, k, open);
    }
}

/// `cargo test --release -p headway-core --lib -- --ignored longest_waits_of_larger_scopes --nocapture`
#[test]
#[ignore = "minutes in a release build"]
fn longest_waits_of_larger_scopes_are_the_bounds_too() {
    let scopes = [(2, 1, 8), (2, 2, 8), (3, 1, 7), (3, 2, 7), (3, 3, 7), (4, 1, 6), (4, 2, 7), (4, 3, 6), (4, 4, 7)];
    for (m, k, open) in scopes {
        optimal(m, k, open);
    }
    for (m, k) in [(2, 3), (2, 4), (3, 4)] {
        exactly(search(Scope::new(m, k, 1, k, 6)), TokenMode::WorkConserving, 0);
    }
    exactly(search(Scope::new(3, 2, 3, 3, 6)), TokenMode::Relaxed(3), 0);
    let aborting = Search { aborts: 1, ..search(Scope::new(3, 2, 2, 3, 6)) };
    let (worst, states) = aborting.worst(200);
    println!("one abort of a donor: {states} states, worst wait {worst}/{HOLD} hold times");
    assert!(worst <= (3 + 2) * u64::from(HOLD), "{worst}");
}

#[test]
fn waits_in_work_conserving_mode_reach_twice_the_queue_less_one_and_no_more() {
    exactly(search(Scope::new(2, 3, 1, 3, 5)), TokenMode::WorkConserving, 0);
}

#[test]
fn waits_in_relaxed_mode_grow_with_the_queue() {
    exactly(search(Scope::new(2, 2, 2, 2, 5)), TokenMode::Relaxed(2), 0);
}

#[test]
fn waits_in_fifo_mode_count_the_requests_ahead() {
    exactly(Search { adversarial: false, ..search(Scope::new(8, 2, 0, 0, 5)) }, TokenMode::Fifo, 5);
    exactly(search(Scope::new(8, 2, 0, 0, 4)), TokenMode::Fifo, 4);
}

#[test]
fn each_abort_of_a_donor_lengthens_a_wait_by_a_queue_at_most() {
    let search = Search { aborts: 1, ..search(Scope::new(2, 1, 2, 2, 5)) };
    let (worst, states) = search.worst(200);
    println!("one abort: {states} states, {worst}/{HOLD} hold times");
    let hold = u64::from(HOLD);
    assert!(worst <= (3 + 2) * hold, "{worst}");
}

/// With virtual releases a FIFO is one longer, and the bound two hold times.
fn overruns_reach_two_more(scopes: &[(u32, u32, u32, u32, usize)]) {
    for (m, k, length, queued, open) in scopes.iter().copied() {
        let search = Search { overruns: true, ..search(Scope::new(m, k, length, queued, open)) };
        let bound = u64::from(2 * length + 1) * u64::from(HOLD);
        let (worst, states) = search.worst(bound);
        println!("overruns, {:?}: {states} states, worst wait {worst}/{HOLD} hold times", search.scope);
        assert_eq!(worst, bound, "{:?}", search.scope);
    }
}

#[test]
fn waits_with_overruns_are_two_hold_times_longer_and_no_more() {
    overruns_reach_two_more(&[(1, 1, 1, 1, 4), (2, 1, 2, 2, 5), (2, 2, 1, 2, 5)]);
}

/// `cargo test -p headway-core --lib -- --ignored waits_with_overruns --nocapture`
#[test]
#[ignore = "a minute"]
fn waits_with_overruns_of_larger_scopes_are_too() {
    overruns_reach_two_more(&[(3, 1, 3, 3, 5), (3, 2, 2, 3, 6), (3, 3, 1, 3, 5), (3, 2, 3, 3, 5)]);
}
