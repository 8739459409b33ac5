//! The trace, decoded with nothing but the wire format: what is in it, and that slices nest and flows end.

use std::collections::BTreeMap;

use crate::common::{Bend, log, plan, run};
use headway_core::decisions::dispatch::DispatchInput;
use headway_core::log::RecordBody;
use headway_core::units::Nanos;
use headway_trace::excerpt::Excerpt;
use headway_trace::summary::summarize;
use headway_trace::timeline::Timeline;
use headway_trace::{RunLog, perfetto};

/// A field of a message: its number, and its value or bytes.
#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    unreachable!("a varint ends after ten bytes")
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_at(8);
                bytes = rest;
                Field::Number(u64::from_le_bytes(value.try_into().unwrap()))
            }
            2 => {
                let (value, rest) = {
                    let length = varint(&mut bytes) as usize;
                    bytes.split_at(length)
                };
                bytes = rest;
                Field::Bytes(value)
            }
            wire => panic!("wire type {wire}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn number(message: &[u8], field: u64) -> Option<u64> {
    fields(message).into_iter().find_map(|(number, value)| match value {
        Field::Number(value) if number == field => Some(value),
        _ => None,
    })
}

fn messages(message: &[u8], field: u64) -> Vec<&[u8]> {
    let of = |(number, value)| match value {
        Field::Bytes(bytes) if number == field => Some(bytes),
        _ => None,
    };
    fields(message).into_iter().filter_map(of).collect()
}

struct Event {
    at: u64,
    kind: u64,
    track: u64,
    category: String,
    flows: Vec<u64>,
    ends: Vec<u64>,
}

struct Trace {
    tracks: BTreeMap<u64, String>,
    events: Vec<Event>,
}

fn decode(log: &RunLog) -> Trace {
    let mut bytes = Vec::new();
    let whole = Excerpt::new(log, Timeline::new(log), u64::MAX);
    perfetto::write_excerpt(log, &whole, &mut bytes).unwrap();
    let packets = messages(&bytes, 1);
    let interned = messages(packets[0], 12)[0];
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let categories: BTreeMap<u64, String> = messages(interned, 1)
        .into_iter()
        .map(|entry| (number(entry, 1).unwrap(), text(messages(entry, 2)[0])))
        .collect();
    let mut trace = Trace { tracks: BTreeMap::new(), events: Vec::new() };
    for packet in &packets[1..] {
        assert_eq!(number(packet, 10), Some(1));
        if let Some(track) = messages(packet, 60).first() {
            let parent = number(track, 5);
            assert!(parent.is_none_or(|parent| trace.tracks.contains_key(&parent)), "tracks follow their parents");
            trace.tracks.insert(number(track, 1).unwrap(), text(messages(track, 2)[0]));
        }
        for event in messages(packet, 11) {
            let flows = |of: u64| fields(event).into_iter().filter(move |(number, _)| *number == of);
            let ids = |of: u64| flows(of).map(|(_, v)| if let Field::Number(id) = v { id } else { 0 }).collect();
            trace.events.push(Event {
                at: number(packet, 8).unwrap(),
                kind: number(event, 9).unwrap(),
                track: number(event, 11).unwrap(),
                category: number(event, 3).map(|id| categories[&id].clone()).unwrap_or_default(),
                flows: ids(47),
                ends: ids(48),
            });
        }
    }
    trace
}

fn check_slices(trace: &Trace) {
    let mut open: BTreeMap<u64, u64> = BTreeMap::new();
    let mut last = 0;
    for event in &trace.events {
        assert!(event.at >= last && trace.tracks.contains_key(&event.track));
        last = event.at;
        match event.kind {
            1 => assert_eq!(open.insert(event.track, event.at), None, "two slices at {}", event.at),
            2 => assert!(open.remove(&event.track).is_some_and(|from| from <= event.at)),
            _ => {}
        }
    }
    assert!(open.is_empty());
}

#[test]
fn slices_end_before_the_next_one_of_their_track_begins_and_time_never_goes_back() {
    for bend in [Bend::default(), Bend { slow: Some((9, Nanos(12_000_000))), ..Bend::default() }] {
        check_slices(&decode(&log(&plan(5), 10, bend)));
    }
}

#[test]
fn operations_without_length_and_overlapping_ones_are_slices_too() {
    let (header, mut records) = run(&plan(5), 10, Bend::default());
    for record in &mut records {
        if let RecordBody::Input(DispatchInput::Done { operation, started, finished }) = &mut record.what {
            match *operation % 3 {
                0 => *finished = *started,
                1 => *started = Nanos(started.0 - 3_000),
                _ => {}
            }
        }
    }
    check_slices(&decode(&RunLog::new(header, records, "fixture").unwrap()));
}

#[test]
fn every_operation_packet_and_deadline_is_there() {
    let log = log(&plan(5), 10, Bend { slow: Some((9, Nanos(12_000_000))), ..Bend::default() });
    let (trace, summary) = (decode(&log), summarize(&log));
    let count = |category: &str, kind: u64| {
        let of = |event: &&Event| event.category == category && event.kind == kind;
        trace.events.iter().filter(of).count() as u64
    };
    assert_eq!(count("packet", 1), summary.totals.delivered);
    assert_eq!(count("deadline", 3), summary.totals.delivered);
    assert_eq!(count("trouble", 3), summary.totals.overruns + summary.totals.late);
    let operations = count("host -> gpu0", 1) + count("host -> gpu1", 1) + count("aes128-cbc", 1);
    assert_eq!(operations + count("gpu0 -> host", 1) + count("gpu1 -> host", 1), summary.totals.operations);
    assert!(trace.tracks.values().any(|name| name == "fixture on two-gpus [sim]"));
    let waiting = trace.events.iter().filter(|event| event.kind == 4).count();
    assert!(waiting > 0);
}

#[test]
fn every_cycle_is_one_flow_from_gathering_through_its_operations_to_its_delivery() {
    let log = log(&plan(5), 10, Bend::default());
    let (trace, timeline) = (decode(&log), Timeline::new(&log));
    let mut flows: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
    for event in &trace.events {
        for flow in event.flows.iter().chain(&event.ends) {
            flows.entry(*flow).or_default().push(event);
        }
    }
    assert_eq!(flows.len(), timeline.deliveries.len());
    for events in flows.values() {
        let categories: Vec<&str> = events.iter().map(|event| event.category.as_str()).collect();
        assert_eq!((categories[0], categories[categories.len() - 1]), ("pipeline", "pipeline"));
        assert!(categories.contains(&"aes128-cbc"), "{categories:?}");
        let ends = events.iter().filter(|event| !event.ends.is_empty()).count();
        assert_eq!((ends, events.last().unwrap().ends.len()), (1, 1));
    }
}
