//! What the chooser asks, what it chooses, and what it does after failures.

use super::*;
use crate::models::transfer::Stores;
use crate::models::transfer::builtin::Bus;
use crate::models::transfer::learning::{LearnerLimits, Prefer};

const LARGE: Bytes = Bytes(64 << 20);

fn options() -> ChooserOptions {
    ChooserOptions { gpus: 1, cpus: 16, mapped_files: false, resident: false, available: Available::default() }
}

fn chooser() -> Chooser {
    Chooser::new(EndpointId(0), Arc::default(), options())
}

fn learning() -> Chooser {
    let node = NodeClass { bus: Bus::Pcie5, wide_stores: true };
    let limits = LearnerLimits { threads_max: 8, prefer: Prefer::Cheapest, learns: true, always: false };
    let mut chooser = chooser();
    assert!(chooser.learn(Learner::new(node, limits)));
    chooser
}

fn situation(direction: Direction, bytes: Bytes) -> CopySituation {
    CopySituation {
        direction,
        bytes,
        host: HostKnown::PagesPresent,
        load: BackgroundLoad::Alone,
        active: 1,
        granted: false,
        window: None,
        realtime: false,
        repeats: None,
    }
}

fn large_in(chooser: &mut Chooser) -> CopyChoice {
    chooser.choose(MethodWanted::Auto, &situation(Direction::H2d, LARGE)).expect("all is known")
}

#[test]
fn small_copies_are_asked_nothing_and_large_ones_what_they_need() {
    let mut chooser = chooser();
    let mut asks = |direction, bytes, host| {
        let situation = CopySituation { host, ..situation(direction, Bytes(bytes)) };
        chooser.choose(MethodWanted::Auto, &situation).err()
    };
    assert_eq!(asks(Direction::H2d, 4_096, HostKnown::Nothing), None);
    assert_eq!(asks(Direction::H2d, 64 << 10, HostKnown::Nothing), Some(CopyQuestion::IsPinned));
    let unseen = HostKnown::Ordinary;
    assert_eq!(asks(Direction::H2d, 64 << 20, unseen), None, "pages that are read are there");
    assert_eq!(asks(Direction::D2h, 64 << 20, unseen), Some(CopyQuestion::ArePagesThere));
    assert_eq!(asks(Direction::D2h, 64 << 20, HostKnown::Pinned), None);
    let times = (0..160).filter(|_| asks(Direction::D2h, 4_096, unseen).is_some()).count();
    assert_eq!(times, 10, "one small copy in sixteen");
}

#[test]
fn pages_are_looked_at_wherever_copies_teach() {
    let fresh = CopySituation { host: HostKnown::Ordinary, ..situation(Direction::D2h, Bytes(1 << 20)) };
    let times = |chooser: &mut Chooser| (0..32).filter(|_| chooser.choose(MethodWanted::Auto, &fresh).is_err()).count();
    assert_eq!((times(&mut chooser()), times(&mut learning())), (2, 32));
}

#[test]
fn memory_that_only_the_driver_can_handle_is_the_drivers() {
    let mut chooser = learning();
    let strange = CopySituation { host: HostKnown::DriverOnly, ..situation(Direction::H2d, LARGE) };
    let choice = chooser.choose(MethodWanted::Auto, &strange).expect("nothing to ask");
    assert_eq!(
        (choice.method, choice.reason, choice.is_followed()),
        (Method::Pageable, ChoiceReason::DriverOnly, false)
    );
}

#[test]
fn staging_that_is_absent_is_left_alone_for_a_while_and_one_that_starts_is_not() {
    let mut chooser = learning();
    let choice = large_in(&mut chooser);
    assert_eq!((choice.method, choice.reason), (Method::Staged, ChoiceReason::Learnt));
    let next = chooser.failed(&choice, CopyAbsence::Starting).expect("the driver");
    assert_eq!((next.method, next.reason), (Method::Pageable, ChoiceReason::Absent(Method::Staged)));
    chooser.ended(&next, Some(CopyTook { time: Nanos(4_000_000), cpu: None }));
    assert_eq!(chooser.timed(), 0, "another method than the one advised teaches nothing");
    let choice = large_in(&mut chooser);
    assert_eq!(choice.method, Method::Staged);
    let next = chooser.failed(&choice, CopyAbsence::Passing).expect("the driver");
    chooser.ended(&next, None);
    let drivers = (0..100).take_while(|_| {
        let choice = large_in(&mut chooser);
        chooser.ended(&choice, None);
        choice.method == Method::Pageable
    });
    assert_eq!(drivers.count(), 63);
}

#[test]
fn a_copy_that_ends_badly_teaches_nothing_and_stands_in_nobodys_way() {
    let mut chooser = learning();
    let cancelled = large_in(&mut chooser);
    chooser.ended(&cancelled, None);
    let choice = large_in(&mut chooser);
    assert_eq!(choice.method, Method::Staged, "a copy that was cancelled says nothing of staging");
    chooser.ended(&choice, Some(CopyTook { time: Nanos(1_500_000), cpu: None }));
    assert_eq!(chooser.timed(), 1);
}

#[test]
fn only_a_copy_that_gains_more_than_starting_takes_waits_for_threads() {
    let waits = |bytes| {
        let mut chooser = learning();
        let choice =
            chooser.choose(MethodWanted::Auto, &situation(Direction::H2d, Bytes(bytes))).expect("all is known");
        (choice.method, choice.waits())
    };
    assert_eq!(waits(16 << 20), (Method::Staged, false));
    assert_eq!(waits(1 << 30), (Method::Staged, true));
}

#[test]
fn a_thread_of_a_real_time_class_takes_only_what_has_a_worst_case() {
    let machine = crate::files::machine::shipped("h200-x1").expect("it ships");
    let gpu = machine.gpus().next().expect("it has one");
    let mut measured = Chooser::new(gpu, Arc::new(machine.profile), options());
    let mut chooser = learning();
    for bytes in [4 << 10, 64 << 10, 1 << 20, 64 << 20] {
        let urgent = CopySituation { realtime: true, ..situation(Direction::H2d, Bytes(bytes)) };
        let ordinary = chooser.choose(MethodWanted::Auto, &CopySituation { realtime: false, ..urgent });
        let built_in = chooser.choose(MethodWanted::Auto, &urgent);
        let method = |choice: Result<CopyChoice, CopyQuestion>| choice.expect("all is known").method;
        assert_eq!(method(built_in), method(ordinary), "built-in figures have no worst case to compare");
        measured.set_forms(Method::PagedWindow(None), []);
        let choice = measured.choose(MethodWanted::Auto, &urgent).expect("all is known");
        assert!(choice.method == Method::Pageable || choice.predicted.is_some(), "{choice:?}");
    }
}

#[test]
fn gpus_that_copy_at_once_share_the_cpus() {
    let tuning = Tuning { threads: 12, buffer: Bytes(1 << 20), stores: Stores::Plain, in_flight: 2 };
    let within = |cpus, parties| {
        let chooser = Chooser::new(EndpointId(0), Arc::default(), ChooserOptions { cpus, ..options() });
        chooser.within(tuning, parties).threads
    };
    assert_eq!([1, 2, 4, 20].map(|parties| within(9, parties)), [8, 4, 2, 1]);
    assert_eq!(within(64, 4), 12);
}

#[test]
fn memory_that_is_copied_a_third_time_is_pinned_where_that_takes_less_than_the_copies_that_are_expected() {
    let choose = |before, is_pinned, bytes, realtime| {
        let repeats = Some(Repeats { before, is_pinned });
        let asked = CopySituation { repeats, realtime, ..situation(Direction::H2d, Bytes(bytes)) };
        learning().choose(MethodWanted::Auto, &asked).unwrap().method
    };
    let methods = |times: [u32; 4]| times.map(|before| choose(before, false, 256 << 20, false) == Method::PinnedOnce);
    assert_eq!(methods([0, 1, 2, 100]), [false, false, true, true]);
    // A thread with deadlines does not wait for pages to be pinned, but takes those that are.
    assert_ne!(choose(100, false, 256 << 20, true), Method::PinnedOnce);
    assert_eq!(choose(100, true, 256 << 20, true), Method::PinnedOnce);
    // What is pinned is used, unless the copy is smaller than any that is looked at.
    assert_eq!(choose(0, true, 1 << 20, false), Method::PinnedOnce);
    assert_ne!(choose(100, true, (1 << 20) - 1, false), Method::PinnedOnce);
}

#[test]
fn what_cannot_be_pinned_once_is_staged() {
    let mut chooser = learning();
    let repeats = Some(Repeats { before: 2, is_pinned: false });
    let asked = CopySituation { repeats, ..situation(Direction::H2d, LARGE) };
    let choice = chooser.choose(MethodWanted::Auto, &asked).unwrap();
    assert_eq!((choice.method, choice.reason), (Method::PinnedOnce, ChoiceReason::Repeated));
    let next = chooser.failed(&choice, CopyAbsence::Passing).unwrap();
    assert_eq!((next.method, next.reason), (Method::Staged, ChoiceReason::Absent(Method::PinnedOnce)));
    assert_eq!(chooser.failed(&next, CopyAbsence::Passing).unwrap().method, Method::Pageable);
}
