//! Rules by example, those of urgency in `urgency`; all interleavings of small cases and the most blockers they reach (`explore`).

mod explore;
mod urgency;

use super::*;
use crate::units::Bytes;

fn parameters(peer: PeerLocks, copy_engines: u32) -> EngineParameters {
    EngineParameters { copy_engines, peer, chunk_bytes: Some(Bytes(2 << 20)), ..EngineParameters::default() }
}

fn key(task: u32, deadline: u64) -> JobPriority {
    JobPriority { deadline: Nanos(deadline), release: Nanos::ZERO, job: JobId { task: TaskId(task), job: 0 } }
}

fn job(task: u32) -> JobId {
    JobId { task: TaskId(task), job: 0 }
}

fn operation(work: EngineWork) -> LockedOperation {
    LockedOperation { work, bytes: Bytes(1 << 20), predicted: Nanos(10), budget: Nanos::ZERO }
}

/// Locks of `gpus` GPUs; a job `(gpu, from)` for each entry, the first the most urgent.
fn locks(parameters: EngineParameters, gpus: u32, jobs: &[(u32, Option<u32>)]) -> EngineLocks {
    let gpus: Vec<GpuId> = (0..gpus).map(GpuId).collect();
    let mut locks = EngineLocks::new(parameters, &gpus).unwrap();
    for (task, (gpu, from)) in (0..).zip(jobs) {
        locks.handle_token(Nanos(0), key(task, 10 + u64::from(task)), GpuId(*gpu), from.map(GpuId)).unwrap();
    }
    locks
}

/// The tasks that start, in order; other actions are dropped.
fn started(locks: &mut EngineLocks) -> Vec<u32> {
    locks.check().unwrap();
    let actions = std::iter::from_fn(|| locks.poll_action());
    actions
        .filter_map(|action| if let EngineLockAction::Run { job, .. } = action { Some(job.task.0) } else { None })
        .collect()
}

fn boosts(locks: &mut EngineLocks) -> Vec<(u32, u64)> {
    let actions = std::iter::from_fn(|| locks.poll_action());
    actions
        .filter_map(|action| match action {
            EngineLockAction::SetBoost { job, key } => Some((job.task.0, key.deadline.0)),
            _ => None,
        })
        .collect()
}

#[test]
fn an_engine_serves_in_order_of_arrival_whatever_the_priority() {
    let mut locks = locks(parameters(PeerLocks::Group, 2), 1, &[(0, None), (0, None), (0, None)]);
    for task in [2, 1, 0] {
        locks.handle_acquire(Nanos(0), job(task), operation(EngineWork::CopyOut)).unwrap();
    }
    assert_eq!(started(&mut locks), [2]);
    locks.handle_complete(Nanos(1), job(2)).unwrap();
    assert_eq!(started(&mut locks), [1]);
    locks.handle_complete(Nanos(2), job(1)).unwrap();
    assert_eq!(started(&mut locks), [0]);
}

#[test]
fn two_copy_engines_serve_both_ways_at_once_and_one_does_not() {
    for (engines, expected) in [(2, vec![0, 1, 2]), (1, vec![0, 2])] {
        let mut locks = locks(parameters(PeerLocks::Group, engines), 1, &[(0, None), (0, None), (0, None)]);
        for (task, work) in [EngineWork::CopyIn, EngineWork::CopyOut, EngineWork::Execute].into_iter().enumerate() {
            locks.handle_acquire(Nanos(0), job(task as u32), operation(work)).unwrap();
        }
        assert_eq!(started(&mut locks), expected);
    }
}

#[test]
fn a_holder_runs_at_the_most_urgent_key_of_its_waiters_until_it_completes() {
    let mut locks = locks(parameters(PeerLocks::Group, 2), 1, &[(0, None), (0, None), (0, None)]);
    for task in [2, 1] {
        locks.handle_acquire(Nanos(0), job(task), operation(EngineWork::Execute)).unwrap();
    }
    assert_eq!(boosts(&mut locks), [(2, 11)]);
    locks.handle_key(Nanos(0), job(1), key(0, 5)).unwrap();
    assert_eq!(boosts(&mut locks), [(1, 5), (2, 5)], "a key that reaches a waiter goes on to the holder");
    locks.handle_complete(Nanos(1), job(2)).unwrap();
    assert_eq!(boosts(&mut locks), [(2, 12)]);
    locks.check().unwrap();
}

#[test]
fn a_group_passes_keys_to_both_holders_and_holds_the_lock_it_has_idle() {
    // Task 3 runs on the source, task 2 on the destination; task 0 migrates from GPU 1 to GPU 0, task 1 follows on GPU 1.
    let mut locks = locks(parameters(PeerLocks::Group, 1), 2, &[(0, Some(1)), (1, None), (0, None), (1, None)]);
    let acquire =
        |locks: &mut EngineLocks, task, work| locks.handle_acquire(Nanos(0), job(task), operation(work)).unwrap();
    acquire(&mut locks, 2, EngineWork::CopyIn);
    acquire(&mut locks, 3, EngineWork::CopyIn);
    assert_eq!(started(&mut locks), [2, 3]);
    acquire(&mut locks, 0, EngineWork::Peer);
    assert_eq!(boosts(&mut locks), [(2, 10), (3, 10)]);
    acquire(&mut locks, 1, EngineWork::CopyOut);
    locks.handle_complete(Nanos(5), job(3)).unwrap();
    assert_eq!(started(&mut locks), [0u32; 0], "the source is free, yet kept for the group");
    locks.handle_complete(Nanos(9), job(2)).unwrap();
    assert_eq!(started(&mut locks), [0]);
    let source = LockId { gpu: GpuId(1), engine: EngineRole::In };
    assert_eq!(locks.idle_held(source), Some(Nanos(4)));
    locks.handle_complete(Nanos(10), job(0)).unwrap();
    assert_eq!(started(&mut locks), [1]);
}

#[test]
fn backfill_uses_a_lock_held_idle_for_what_ends_in_time() {
    for (predicted, expected) in [(10, vec![2]), (11, vec![]), (0, vec![])] {
        let jobs = [(0, Some(1)), (0, None), (1, None)];
        let mut locks = locks(parameters(PeerLocks::GroupBackfill, 1), 2, &jobs);
        locks.handle_acquire(Nanos(0), job(1), operation(EngineWork::CopyIn)).unwrap();
        locks.handle_acquire(Nanos(0), job(0), operation(EngineWork::Peer)).unwrap();
        assert_eq!(started(&mut locks), [1]);
        let single = LockedOperation { predicted: Nanos(predicted), ..operation(EngineWork::CopyIn) };
        locks.handle_acquire(Nanos(0), job(2), single).unwrap();
        assert_eq!(started(&mut locks), expected);
        locks.handle_complete(Nanos(10), job(1)).unwrap();
        if expected.is_empty() {
            assert_eq!(started(&mut locks), [0]);
        } else {
            assert_eq!(started(&mut locks), [0u32; 0], "the group waits for the chunk that took its place");
            assert_eq!(locks.effective_key(TaskId(2)), Some(key(0, 10)));
            locks.handle_complete(Nanos(11), job(2)).unwrap();
            assert_eq!(started(&mut locks), [0]);
        }
    }
}

#[test]
fn nested_locks_are_taken_in_order_and_the_second_must_be_asked_for() {
    let mut locks = locks(parameters(PeerLocks::Nested, 1), 2, &[(0, Some(1)), (1, None)]);
    locks.handle_acquire(Nanos(0), job(0), operation(EngineWork::Peer)).unwrap();
    let first = LockId { gpu: GpuId(0), engine: EngineRole::In };
    assert_eq!(locks.poll_action(), Some(EngineLockAction::Obtained { job: job(0), lock: first }));
    // The other lock is still free for who asks first.
    locks.handle_acquire(Nanos(0), job(1), operation(EngineWork::CopyIn)).unwrap();
    assert_eq!(started(&mut locks), [1]);
    locks.handle_next(Nanos(0), job(0)).unwrap();
    assert_eq!(locks.handle_next(Nanos(0), job(0)), Err(EngineLockRefused::NoFirstLock { job: job(0) }));
    assert_eq!(started(&mut locks), [0u32; 0]);
    locks.handle_complete(Nanos(3), job(1)).unwrap();
    assert_eq!(started(&mut locks), [0]);
    assert_eq!(locks.idle_held(first), Some(Nanos(3)));
}

#[test]
fn only_token_holders_with_nothing_else_under_way_get_engines() {
    let mut locks = locks(parameters(PeerLocks::Group, 2), 2, &[(0, None), (0, Some(0))]);
    let now = Nanos(0);
    let copy = operation(EngineWork::CopyIn);
    assert_eq!(locks.handle_acquire(now, job(9), copy), Err(EngineLockRefused::NoToken { job: job(9) }));
    assert_eq!(
        locks.handle_acquire(now, job(0), operation(EngineWork::Peer)),
        Err(EngineLockRefused::NotMigrating { job: job(0) })
    );
    assert_eq!(
        locks.handle_acquire(now, job(1), operation(EngineWork::Peer)),
        Err(EngineLockRefused::NotMigrating { job: job(1) })
    );
    let (bytes, chunk_bytes) = (Bytes(3 << 20), Bytes(2 << 20));
    let large = LockedOperation { bytes, ..copy };
    assert_eq!(locks.handle_acquire(now, job(0), large), Err(EngineLockRefused::ChunkTooLarge { bytes, chunk_bytes }));
    assert_eq!(locks.handle_complete(now, job(0)), Err(EngineLockRefused::NothingHeld { job: job(0) }));
    locks.handle_acquire(now, job(0), copy).unwrap();
    assert_eq!(
        locks.handle_acquire(now, job(0), operation(EngineWork::Execute)),
        Err(EngineLockRefused::Busy { job: job(0) })
    );
    assert_eq!(locks.handle_token_released(now, job(0)), Err(EngineLockRefused::Busy { job: job(0) }));
    assert_eq!(locks.handle_token(now, key(1, 1), GpuId(0), None), Err(EngineLockRefused::TokenTwice { job: job(1) }));
    assert_eq!(locks.handle_token(now, key(5, 1), GpuId(7), None), Err(EngineLockRefused::NoSuchGpu { gpu: GpuId(7) }));
    let three = EngineLocks::new(parameters(PeerLocks::Group, 3), &[]).err();
    assert_eq!(three, Some(EngineLockRefused::CopyEngines { copy_engines: 3 }));
}

#[test]
fn an_operation_is_told_at_twice_and_at_eight_times_its_budget() {
    let watched = EngineParameters { watchdog: Nanos(70), ..parameters(PeerLocks::Group, 2) };
    let mut locks = locks(watched, 1, &[(0, None), (0, None)]);
    let over = LockedOperation { budget: Nanos(5), ..operation(EngineWork::Execute) };
    locks.handle_acquire(Nanos(100), job(0), over).unwrap();
    assert_eq!(locks.poll_timeout(), Some(Nanos(110)));
    locks.handle_timeout(Nanos(109));
    assert_eq!(locks.poll_event(), None);
    locks.handle_timeout(Nanos(110));
    assert_eq!(locks.poll_event(), Some(EngineLockEvent::OverBudget { job: job(0), since: Nanos(100) }));
    assert_eq!(locks.poll_timeout(), Some(Nanos(140)));
    locks.handle_complete(Nanos(140), job(0)).unwrap();
    assert_eq!(
        locks.poll_event(),
        Some(EngineLockEvent::Overrun { job: job(0), since: Nanos(100) }),
        "late without a timeout too"
    );
    locks.handle_acquire(Nanos(200), job(1), operation(EngineWork::Execute)).unwrap();
    assert_eq!(locks.poll_timeout(), Some(Nanos(270)), "the watchdog needs no budget");
}

#[test]
fn a_dead_waiter_leaves_at_once_and_a_dead_holder_after_its_work() {
    let mut locks = locks(parameters(PeerLocks::Group, 1), 2, &[(0, Some(1)), (0, None), (1, None)]);
    locks.handle_acquire(Nanos(0), job(1), operation(EngineWork::CopyIn)).unwrap();
    locks.handle_acquire(Nanos(0), job(0), operation(EngineWork::Peer)).unwrap();
    locks.handle_acquire(Nanos(0), job(2), operation(EngineWork::CopyIn)).unwrap();
    assert_eq!(started(&mut locks), [1]);
    locks.handle_cancel(Nanos(1), job(1));
    assert_eq!(started(&mut locks), [0u32; 0], "what it holds may still be in use");
    locks.handle_cancel(Nanos(1), job(0));
    assert_eq!(started(&mut locks), [2], "half a group no longer keeps the lock");
    locks.handle_gone(Nanos(2), job(1));
    locks.handle_gone(Nanos(2), job(0));
    assert_eq!(locks.effective_key(TaskId(1)), None);
    locks.check().unwrap();
}
