//! What the report says of logs of guests.

use headway_core::files::guest_log::{
    Became, Call, Copy, CountedCopies, DriverReason, GuestLogLine, GuestLogStart, Host, KIND, SCHEMA, Towards,
};
use headway_core::units::{Bytes, Nanos};

use super::{GuestLog, summarize};

const SMALL: Copy = Copy {
    at: Nanos(0),
    took: Nanos(10_000),
    thread: 1,
    call: Call::Out,
    direction: Towards::Out,
    bytes: Bytes(4),
    stream: 22,
    host: Host::NotAsked,
    became: Became::PassedOn,
    why: Some(DriverReason::NoOption),
    status: 0,
    of: 1,
};

fn read(lines: &[GuestLogLine], end: &str) -> GuestLog {
    let start = GuestLogStart {
        schema: SCHEMA,
        kind: KIND.to_owned(),
        version: "0".to_owned(),
        pid: 5,
        command: vec!["program".to_owned()],
        options: String::new(),
        began_unix: Nanos(0),
    };
    let lines = lines.iter().map(|line| serde_json::to_string(line).unwrap());
    let text: Vec<String> = std::iter::once(serde_json::to_string(&start).unwrap()).chain(lines).collect();
    GuestLog::read((text.join("\n") + end).as_bytes(), "log").unwrap()
}

fn bulk(at: u64) -> GuestLogLine {
    GuestLogLine::Copy(Copy { at: Nanos(at), call: Call::OutAsync, bytes: Bytes(1 << 30), stream: 21, ..SMALL })
}

/// Twenty small copies without a bulk copy, one every 100 us.
fn alone() -> Vec<GuestLogLine> {
    (0..20).map(|i| GuestLogLine::Copy(Copy { at: Nanos(100_000 * i), ..SMALL })).collect()
}

#[test]
fn small_copies_beside_a_bulk_copy_are_told_from_others() {
    let mut lines = alone();
    // 1 GiB at 20 GB/s counts as under way for 53 ms.
    lines.push(bulk(10_000_000));
    let slow = Copy { at: Nanos(11_000_000), took: Nanos(19_000_000), ..SMALL };
    lines.push(GuestLogLine::Copy(slow));
    lines.push(GuestLogLine::Copy(Copy { at: Nanos(12_000_000), stream: 21, took: Nanos(19_000_000), ..SMALL }));
    lines.push(GuestLogLine::Copy(Copy { at: Nanos(80_000_000), ..SMALL }));
    let summary = summarize(&read(&lines, "\n"));
    let beside = &summary.beside;
    assert_eq!((beside.with.copies, beside.same_stream.copies, beside.without.copies), (1, 1, 21));
    assert_eq!((beside.same_stream.blocked, beside.with_legacy), (Nanos(19_000_000), 0));
    assert_eq!(summary.beside.waited, Some(Nanos(18_990_000)));
    let text = summary.table();
    assert!(text.contains("they wait for the engine") && text.contains("--aside` lets them pass"), "{text}");
    assert!(text.contains("no option changes that, another CUDA stream does"), "{text}");
    assert_eq!(summary.slowest[0], slow);
}

#[test]
fn copies_that_wait_are_under_way_for_the_call_only() {
    let mut lines = alone();
    let waits = Copy { at: Nanos(10_000_000), took: Nanos(1_000_000), bytes: Bytes(1 << 30), stream: 1, ..SMALL };
    lines.push(GuestLogLine::Copy(waits));
    lines.push(GuestLogLine::Copy(Copy { at: Nanos(10_500_000), ..SMALL }));
    lines.push(GuestLogLine::Copy(Copy { at: Nanos(11_500_000), ..SMALL }));
    let summary = summarize(&read(&lines, "\n"));
    assert_eq!((summary.beside.with.copies, summary.beside.without.copies), (1, 21));
    // The bulk copy was in the legacy default stream.
    assert_eq!((summary.beside.waited, summary.beside.with_legacy), (Some(Nanos(0)), 1));
    assert!(summary.table().contains("order of the legacy default stream"));
}

#[test]
fn nothing_is_concluded_from_few_copies() {
    let lines = [bulk(0), GuestLogLine::Copy(Copy { at: Nanos(5), ..SMALL })];
    let summary = summarize(&read(&lines, "\n"));
    assert_eq!((summary.beside.with.copies, summary.beside.waited), (1, None));
    assert!(summary.groups.iter().all(|group| group.p99.is_none()));
}

#[test]
fn samples_count_for_the_copies_that_they_stand_for() {
    let counted = CountedCopies {
        call: Call::Out,
        class: 0,
        became: Became::PassedOn,
        copies: 63,
        bytes: Bytes(252),
        took: Nanos(630_000),
        longest: Nanos(20_000),
    };
    let slow = Copy { took: Nanos(1_000_000), ..SMALL };
    let sample = Copy { of: 64, ..SMALL };
    let lines = [
        GuestLogLine::Counted(counted),
        GuestLogLine::Copy(sample),
        GuestLogLine::Copy(slow),
        GuestLogLine::Copy(slow),
        GuestLogLine::Copy(sample),
    ];
    let [group] = summarize(&read(&lines, "\n")).groups.try_into().unwrap();
    assert_eq!((group.copies, group.bytes), (67, Bytes(268)));
    assert_eq!((group.median, group.p99), (Some(Nanos(10_000)), Some(Nanos(1_000_000))));
    assert_eq!((group.longest, group.blocked), (Nanos(1_000_000), Nanos(2_650_000)));
}

#[test]
fn a_log_that_was_cut_off_is_read_and_said() {
    let log = read(&alone(), "\n{\"copy\":{\"at\":");
    assert_eq!((log.copies.len(), log.torn, log.end), (20, 1, None));
    let text = summarize(&log).table();
    assert!(text.contains("no last line") && text.contains("1 were cut off"), "{text}");
    assert!(GuestLog::read(&b"{\"schema\":1}\n"[..], "log").is_err());
}

#[test]
fn fast_copies_are_compared_with_the_drivers_copies_of_ordinary_memory() {
    let into = Copy { call: Call::InAsync, direction: Towards::In, bytes: Bytes(1 << 28), ..SMALL };
    let fast = Copy { took: Nanos(5_000_000), became: Became::Fast, why: None, ..into };
    // These return before they have ended.
    let pinned = Copy { took: Nanos(8_000), why: Some(DriverReason::NotOrdinary), ..into };
    let mut lines: Vec<_> = [fast, pinned].repeat(20).into_iter().map(GuestLogLine::Copy).collect();
    let of_fast = |lines: &[GuestLogLine]| {
        let summary = summarize(&read(lines, "\n"));
        let group = summary.groups.iter().find(|group| group.became == Became::Fast).unwrap();
        (group.drivers_median, group.is_slower())
    };
    assert_eq!(of_fast(&lines), (None, false));
    let ordinary = Copy { took: Nanos(4_000_000), why: Some(DriverReason::Capture), ..into };
    lines.extend([ordinary].repeat(10).into_iter().map(GuestLogLine::Copy));
    assert_eq!(of_fast(&lines), (Some(Nanos(4_000_000)), true));
}
