//! Every state within a scope, breadth first: invariants 1 to 5 after every input.

use std::collections::BTreeSet;

use super::*;

/// Which removals there are besides releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Removals {
    Releases,
    Aborts,
    AbortsAndOverruns,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Request { rank: usize },
    Release { task: TaskId },
    Abort { task: TaskId },
    Exhaust { task: TaskId },
}

fn steps(allocator: &TokenAllocator, scope: Scope, removals: Removals) -> Vec<Step> {
    let count = allocator.requests.len();
    let mut steps = Vec::new();
    if count < scope.open {
        steps.extend((0..=count).map(|rank| Step::Request { rank }));
    }
    for (task, request) in &allocator.requests {
        let task = *task;
        match request.granted {
            Some(_) => steps.push(Step::Release { task }),
            None if removals >= Removals::Aborts => steps.push(Step::Abort { task }),
            None => {}
        }
        if removals == Removals::AbortsAndOverruns && !request.virtually_released {
            steps.push(Step::Exhaust { task });
        }
    }
    steps
}

fn take(allocator: &mut TokenAllocator, scope: Scope, step: Step) {
    let count = allocator.requests.len();
    let job = |task: TaskId| JobId { task, job: 0 };
    let done = match step {
        Step::Request { rank } => {
            allocator.handle_request(Nanos::ZERO, request(key(2 * rank as u64 + 1, count), scope.k))
        }
        Step::Release { task } => allocator.handle_release(Nanos::ZERO, job(task)),
        Step::Abort { task } => allocator.handle_abort(Nanos::ZERO, job(task)),
        Step::Exhaust { task } => allocator.handle_exhausted(Nanos::ZERO, job(task), Nanos(2 * count as u64 + 4)),
    };
    done.unwrap();
}

/// `F = m`, no abort: donees are exactly the FIFO requests outside `TOP`.
fn donees_are_those_outside_top(allocator: &TokenAllocator) -> bool {
    let full = !allocator.has_slot();
    allocator.requests.values().filter(|request| matches!(request.place, Place::Fifo(_))).all(|request| {
        // A donation starts only when somebody is left without a slot.
        !full || request.donor.is_some() != allocator.in_top(request.key)
    })
}

/// States and steps within the scope; panics with the state and step that break an invariant.
fn explore(scope: Scope, removals: Removals) -> (usize, usize) {
    explore_and(scope, removals, |_| ())
}

/// Explores `scope` and shows every state to `visit`.
fn explore_and(scope: Scope, removals: Removals, mut visit: impl FnMut(&TokenAllocator)) -> (usize, usize) {
    let (start, _) = Snapshot::of(&scope.allocator(), |_| None);
    let mut seen = BTreeSet::from([start.clone()]);
    let mut frontier = vec![start];
    let mut taken = 0;
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for state in frontier {
            let (before, _) = state.rebuild(scope, false);
            visit(&before);
            for step in steps(&before, scope, removals) {
                for forced in 0..scope.k as usize {
                    let mut after = before.clone();
                    after.forced = Some(forced);
                    take(&mut after, scope, step);
                    taken += 1;
                    let context =
                        || format!("{scope:?} {step:?} choosing FIFO {forced} in\n{before:#?}\nleads to\n{after:#?}");
                    if let Err(violation) = after.check() {
                        panic!("{violation}: {}", context());
                    }
                    if let Step::Release { task } = step {
                        let Place::Fifo(x) = before.requests[&task].place else { panic!("{}", context()) };
                        let waiters = after.fifos.iter().any(|fifo| fifo.members.len() > 1);
                        assert!(!(after.fifos[x].members.is_empty() && waiters), "no grant: {}", context());
                    }
                    if scope.queued == scope.m && removals == Removals::Releases {
                        assert!(donees_are_those_outside_top(&after), "donees: {}", context());
                    }
                    let (state, _) = Snapshot::of(&after, |_| None);
                    if seen.insert(state.clone()) {
                        next.push(state);
                    }
                }
            }
        }
        frontier = next;
    }
    (seen.len(), taken)
}

fn explore_all(scopes: &[Scope], removals: Removals) {
    for scope in scopes {
        let (states, steps) = explore(*scope, removals);
        println!("{scope:?} {removals:?}: {states} states, {steps} steps");
        assert!(states > scope.open, "{scope:?} explores nothing");
    }
}

#[test]
fn every_state_of_small_scopes_keeps_the_invariants() {
    let open = if large() { 9 } else { 7 };
    let scopes = [(2, 1, 2, 2), (2, 2, 1, 2), (3, 2, 2, 3), (4, 2, 2, 4), (4, 3, 2, 4), (4, 6, 1, 6), (3, 2, 2, 4)];
    let scopes = scopes.map(|(m, k, length, queued)| Scope::new(m, k, length, queued, open));
    explore_all(&scopes, Removals::Releases);
}

#[test]
fn every_state_with_aborts_keeps_the_invariants() {
    let open = if large() { 8 } else { 6 };
    let scopes = [(3, 2, 2, 3), (4, 2, 2, 4), (4, 3, 2, 4), (4, 6, 1, 6), (3, 2, 2, 4)];
    let scopes = scopes.map(|(m, k, length, queued)| Scope::new(m, k, length, queued, open));
    explore_all(&scopes, Removals::Aborts);
}

#[test]
fn every_state_with_overruns_keeps_the_invariants() {
    let open = if large() { 7 } else { 5 };
    let scopes = [(2, 1, 2, 2), (3, 2, 2, 3), (3, 2, 3, 3), (4, 4, 1, 4), (2, 3, 1, 3)];
    let scopes = scopes.map(|(m, k, length, queued)| Scope::new(m, k, length, queued, open));
    explore_all(&scopes, Removals::AbortsAndOverruns);
}

#[test]
fn every_state_without_donation_keeps_the_invariants() {
    let open = if large() { 7 } else { 5 };
    explore_all(&[Scope::new(4, 2, 1, 2, open), Scope::new(3, 2, 0, 0, open)], Removals::AbortsAndOverruns);
}

/// Loses a GPU: its holders are told and go, everybody else stays and is granted in the end.
fn lose(before: &TokenAllocator, position: usize) {
    let mut after = before.clone();
    while after.poll_action().is_some() {}
    if after.sizes.queued_max.is_some_and(|most| most > after.parameters.cpus) {
        // The mode whose sizes these are.
        after.parameters.mode = TokenMode::WorkConserving;
    }
    let gpu = after.gpus[position];
    let context = || format!("losing GPU {position} of\n{before:#?}");
    after.handle_gpu_lost(Nanos::ZERO, gpu).unwrap();
    after.check().unwrap_or_else(|violation| panic!("{violation}: {}", context()));
    assert_eq!(after.handle_gpu_lost(Nanos::ZERO, gpu), Err(TokenRefused::NoGpu { gpu }));
    let was_there = |request: &&Request| match request.place {
        Place::Fifo(x) => before.fifos[x].position == position && request.granted.is_some(),
        _ => false,
    };
    let mut gone: BTreeSet<JobId> = before.requests.values().filter(was_there).map(|request| request.key.job).collect();
    if after.alive() == 0 {
        gone.extend(before.requests.values().map(|request| request.key.job));
    }
    let mut granted: BTreeSet<JobId> = BTreeSet::new();
    let mut take_actions = |after: &mut TokenAllocator, revoked: &BTreeSet<JobId>| {
        while let Some(action) = after.poll_action() {
            match action {
                TokenAction::Revoke { job, .. } => assert!(revoked.contains(&job), "{job:?} is told, {}", context()),
                TokenAction::Grant { job, gpu: other, .. } => {
                    assert!(other != gpu && granted.insert(job), "{job:?} is granted, {}", context());
                }
                TokenAction::SetBoost { .. } => {}
            }
        }
    };
    take_actions(&mut after, &gone);
    let stay = before.requests.values().filter(|request| !gone.contains(&request.key.job));
    let stay: BTreeSet<JobId> = stay.map(|request| request.key.job).collect();
    assert!(stay.iter().all(|job| after.job(job.task) == Some(*job)), "lost a request: {}", context());
    assert_eq!(after.requests.len(), stay.len(), "{}", context());
    loop {
        let Some((_, job)) = after.holders().next() else { break };
        after.handle_release(Nanos::ZERO, job).unwrap();
        after.check().unwrap_or_else(|violation| panic!("{violation}: {}", context()));
        take_actions(&mut after, &BTreeSet::new());
    }
    assert!(after.requests.is_empty(), "left behind: {}", context());
    let held = |job: &&JobId| before.requests[&job.task].granted.is_none();
    assert!(stay.iter().filter(held).all(|job| granted.contains(job)), "never granted: {}", context());
}

#[test]
fn a_gpu_lost_in_any_state_takes_its_holders_and_nobody_else() {
    let open = if large() { 7 } else { 5 };
    for (m, k, length, queued) in [(2, 1, 2, 2), (3, 2, 2, 3), (4, 3, 2, 4), (4, 6, 1, 6), (3, 2, 2, 4), (3, 2, 0, 0)] {
        let scope = Scope::new(m, k, length, queued, open);
        let mut losses = 0;
        explore_and(scope, Removals::AbortsAndOverruns, |state| {
            for position in 0..k as usize {
                lose(state, position);
                losses += 1;
            }
        });
        println!("{scope:?}: {losses} losses");
        assert!(losses > open);
    }
}
