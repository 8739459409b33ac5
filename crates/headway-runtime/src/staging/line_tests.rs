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
