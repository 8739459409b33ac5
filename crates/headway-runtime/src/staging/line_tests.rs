//! What a line counts as service. The line's module itself is compiled a second time for its model check.

use headway_core::decisions::engine_line::{FlowClass, LineEntry, LineParty};
use headway_core::units::Nanos;
use headway_os::clock;

use super::line::{Line, Place};
use super::sync::Ordering;

#[test]
fn a_chunk_is_on_the_engine_from_when_its_turn_came_though_its_thread_looks_later() {
    const LATE: Nanos = Nanos(2_000_000);
    let line = Line::new();
    line.service().is_watched.store(true, Ordering::Relaxed);
    let entry = LineEntry { deadline: Some(Nanos(1)), ..LineEntry::new(FlowClass::Urgent, LineParty::Promised, 1) };
    let [mut first, mut second] = [0; 2].map(|_| Place::new(&line, entry));
    assert!(first.take() && !second.take());
    let quick = first.release().expect("it is watched");
    clock::sleep_until(clock::now().saturating_add(LATE));
    assert!(second.take());
    let service = second.release().expect("it is watched");
    assert!(service >= LATE, "{service}");
    assert_eq!(line.service().take_longest_promised(), service.max(quick));
}

#[test]
fn the_time_behind_a_chunk_whose_thread_tells_its_end_late_is_not_that_of_the_promised_chunk() {
    const LATE: Nanos = Nanos(2_000_000);
    let line = Line::new();
    line.service().is_watched.store(true, Ordering::Relaxed);
    let promised = LineEntry { deadline: Some(Nanos(1)), ..LineEntry::new(FlowClass::Urgent, LineParty::Promised, 2) };
    let mut bulk = Place::new(&line, LineEntry::new(FlowClass::Bulk, LineParty::Copies, 1));
    let [mut first, mut second] = [0; 2].map(|_| Place::new(&line, promised));
    let wait = || clock::sleep_until(clock::now().saturating_add(LATE));
    assert!(bulk.take() && first.take() && second.take());
    wait();
    assert_eq!(first.release(), Some(Nanos::ZERO), "how long its own chunk took is not known");
    assert_eq!(line.service().take_longest_promised(), Nanos::ZERO);
    let behind = line.service().take_longest_unpromised();
    assert!(behind >= LATE, "{behind}");
    wait();
    let own = second.release().expect("it is watched");
    assert!(own >= LATE, "the chunk before it was promised, and has ended: {own}");
    assert_eq!(line.service().take_longest_promised(), own);
    assert!(first.take());
    wait();
    assert!(first.release() >= Some(LATE), "the chunk without a promise is over, whoever tells when");
    let late = bulk.release().expect("it is watched");
    assert_eq!(line.service().take_longest_unpromised(), late);
    assert!(first.take(), "the line is idle again");
    wait();
    assert!(first.release() >= Some(LATE));
}
