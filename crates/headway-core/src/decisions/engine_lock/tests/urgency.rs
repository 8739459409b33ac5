//! Queues in the order of urgency: who overtakes whom, what a group keeps, what a changed key moves.

use super::*;

fn by_urgency(copy_engines: u32) -> EngineParameters {
    EngineParameters { order: LockOrder::Urgency, ..parameters(PeerLocks::Group, copy_engines) }
}

fn acquire(locks: &mut EngineLocks, task: u32, work: EngineWork) {
    locks.handle_acquire(Nanos(0), job(task), operation(work)).unwrap();
}

#[test]
fn the_most_urgent_that_waits_goes_first_and_what_runs_ends() {
    let mut locks = locks(by_urgency(1), 1, &[(0, None), (0, None), (0, None), (0, None)]);
    for task in [3, 2, 0, 1] {
        acquire(&mut locks, task, EngineWork::Execute);
    }
    assert_eq!(started(&mut locks), [3], "nobody is interrupted");
    assert_eq!(locks.effective_key(TaskId(3)), Some(key(0, 10)));
    for (done, next) in [(3, vec![0]), (0, vec![1]), (1, vec![2]), (2, vec![])] {
        locks.handle_complete(Nanos(1), job(done)).unwrap();
        assert_eq!(started(&mut locks), next);
    }
}

#[test]
fn whoever_waits_can_be_overtaken_again_and_again() {
    let mut locks = locks(by_urgency(1), 1, &[(0, None), (0, None), (0, None)]);
    acquire(&mut locks, 0, EngineWork::Execute);
    acquire(&mut locks, 2, EngineWork::Execute);
    assert_eq!(started(&mut locks), [0]);
    for round in 0..20 {
        let (now, next) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        acquire(&mut locks, next, EngineWork::Execute);
        locks.handle_complete(Nanos(0), job(now)).unwrap();
        assert_eq!(started(&mut locks), [next]);
    }
}

#[test]
fn a_group_keeps_a_free_lock_from_less_urgent_operations_only() {
    // Tasks 1 and 4 have GPU 0, the others GPU 1; task 1 migrates from GPU 1 to GPU 0.
    let jobs = [(1, None), (0, Some(1)), (1, None), (1, None), (0, None)];
    let mut locks = locks(by_urgency(1), 2, &jobs);
    acquire(&mut locks, 4, EngineWork::CopyIn);
    acquire(&mut locks, 1, EngineWork::Peer);
    acquire(&mut locks, 2, EngineWork::CopyIn);
    assert_eq!(started(&mut locks), [4], "the group waits for GPU 0 and keeps GPU 1 for itself");
    acquire(&mut locks, 0, EngineWork::CopyOut);
    assert_eq!(started(&mut locks), [0], "who is more urgent than the group goes before it");
    locks.handle_complete(Nanos(1), job(4)).unwrap();
    assert_eq!(started(&mut locks), [0u32; 0]);
    locks.handle_complete(Nanos(2), job(0)).unwrap();
    assert_eq!(started(&mut locks), [1]);
    locks.handle_complete(Nanos(3), job(1)).unwrap();
    assert_eq!(started(&mut locks), [2]);
}

#[test]
fn a_key_that_changes_moves_who_waits() {
    let jobs = [(0, None), (0, Some(1)), (1, None), (0, None)];
    let mut locks = locks(by_urgency(1), 2, &jobs);
    acquire(&mut locks, 0, EngineWork::CopyIn);
    acquire(&mut locks, 1, EngineWork::Peer);
    acquire(&mut locks, 3, EngineWork::CopyIn);
    acquire(&mut locks, 2, EngineWork::CopyIn);
    assert_eq!(started(&mut locks), [0]);
    locks.handle_key(Nanos(1), job(3), key(3, 5)).unwrap();
    assert_eq!(started(&mut locks), [0u32; 0]);
    assert_eq!(locks.effective_key(TaskId(0)), Some(key(3, 5)));
    locks.handle_key(Nanos(1), job(1), key(1, 50)).unwrap();
    assert_eq!(started(&mut locks), [2], "a group that is less urgent now no longer keeps the lock");
    locks.handle_complete(Nanos(2), job(0)).unwrap();
    assert_eq!(started(&mut locks), [3]);
}

#[test]
fn two_that_inherit_one_key_stand_in_one_order_in_every_queue() {
    // Both migrate, in opposite directions, at the same inherited key.
    let jobs = [(0, None), (1, None), (0, Some(1)), (1, Some(0))];
    let mut locks = locks(by_urgency(1), 2, &jobs);
    for task in [0, 1] {
        acquire(&mut locks, task, EngineWork::CopyIn);
    }
    for task in [3, 2] {
        acquire(&mut locks, task, EngineWork::Peer);
        locks.handle_key(Nanos(0), job(task), key(9, 4)).unwrap();
    }
    assert_eq!(started(&mut locks), [0, 1]);
    for task in [0, 1] {
        locks.handle_complete(Nanos(1), job(task)).unwrap();
    }
    assert_eq!(started(&mut locks), [2]);
}

#[test]
fn only_groups_are_allowed() {
    for peer in [PeerLocks::Nested, PeerLocks::GroupBackfill] {
        let parameters = EngineParameters { order: LockOrder::Urgency, ..parameters(peer, 2) };
        assert_eq!(EngineLocks::new(parameters, &[GpuId(0)]).err(), Some(EngineLockRefused::Order));
    }
}
