//! A log replays, and every change to it shows at the record where it was made.

use crate::common;

use crate::common::{Bend, log, plan, run};
use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent};
use headway_core::log::RecordBody;
use headway_core::units::{Bytes, Nanos};
use headway_trace::RunLog;
use headway_trace::replay::replay;

#[test]
fn a_recorded_run_replays_to_the_same_actions_and_events() {
    let log = log(&plan(5), 20, Bend::default());
    let replayed = replay(&log).unwrap();
    assert!(replayed.finished);
    assert_eq!(replayed.inputs + replayed.actions + replayed.events, log.records().len() as u64);
}

#[test]
fn runs_with_late_and_failed_operations_replay_too() {
    let slow = log(&plan(3), 10, Bend { slow: Some((9, Nanos(12_000_000))), ..Bend::default() });
    assert!(slow.records().iter().any(|r| matches!(r.what, RecordBody::Event(DispatchEvent::Missed { .. }))));
    assert!(replay(&slow).unwrap().finished);
    let failed = log(&plan(3), 10, Bend { fails: Some(9), ..Bend::default() });
    assert!(!replay(&failed).unwrap().finished);
}

#[test]
fn a_changed_action_diverges_there() {
    let (header, mut records) = run(&plan(3), 4, Bend::default());
    let at = records.iter().rposition(|r| matches!(r.what, RecordBody::Action(DispatchAction::Submit { .. }))).unwrap();
    if let RecordBody::Action(DispatchAction::Submit { bytes, .. }) = &mut records[at].what {
        *bytes = Bytes(bytes.0 + 1);
    }
    let divergence = replay(&RunLog::new(header, records, "changed").unwrap()).unwrap_err();
    assert_eq!(divergence.record, at as u64);
    assert!(divergence.expected.contains("submit") && divergence.got.contains("submit"), "{divergence}");
}

#[test]
fn a_changed_time_of_a_decision_diverges_there() {
    let (header, records) = run(&plan(3), 4, Bend::default());
    for at in (0..records.len()).filter(|at| !matches!(records[*at].what, RecordBody::Input(_))) {
        let mut changed = records.clone();
        changed[at].at = Nanos(changed[at].at.0 + 1);
        let divergence = replay(&RunLog::new(header.clone(), changed, "changed").unwrap()).unwrap_err();
        assert_eq!(divergence.record, at as u64);
        assert!(divergence.expected.ends_with(&format!("at {} ns", records[at].at.0 + 1)), "{divergence}");
    }
}

#[test]
fn an_event_that_the_log_lacks_diverges_at_the_next_input() {
    let (header, mut records) = run(&plan(3), 4, Bend::default());
    let at = records.iter().position(|r| matches!(r.what, RecordBody::Event(DispatchEvent::Complete { .. }))).unwrap();
    records.remove(at);
    let divergence = replay(&RunLog::new(header, records, "shortened").unwrap()).unwrap_err();
    assert_eq!(divergence.record, at as u64);
    assert!(divergence.got.contains("complete"), "{divergence}");
}

#[test]
fn an_action_that_the_log_lacks_at_its_end_diverges() {
    let (header, mut records) = run(&plan(3), 4, Bend::default());
    let last =
        records.iter().rposition(|r| matches!(r.what, RecordBody::Action(DispatchAction::Deliver { .. }))).unwrap();
    records.truncate(last);
    let divergence = replay(&RunLog::new(header, records, "shortened").unwrap()).unwrap_err();
    assert_eq!(divergence.record, last as u64);
    assert_eq!(divergence.expected, "the end of the log");
}

#[test]
fn an_invented_event_and_a_refused_input_diverge() {
    let (header, records) = run(&plan(3), 2, Bend::default());
    let at = records.iter().position(|r| matches!(r.what, RecordBody::Event(_))).unwrap();
    let mut invented = records.clone();
    invented.insert(at, invented[at].clone());
    assert!(replay(&RunLog::new(header.clone(), invented, "invented").unwrap()).is_err());
    let done = records.iter().position(|r| matches!(r.what, RecordBody::Input(_)) && r.at > common::EPOCH).unwrap();
    let mut doubled = records.clone();
    doubled.insert(0, doubled[done].clone());
    let divergence = replay(&RunLog::new(header, doubled, "doubled").unwrap()).unwrap_err();
    assert!(divergence.got.starts_with("a refusal"), "{divergence}");
}
