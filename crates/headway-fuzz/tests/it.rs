//! Every border with the inputs that are kept, and with mutations of them.

use std::cell::Cell;
use std::fs;
use std::sync::Once;

use headway_fuzz::{BORDERS, BorderHarness, limit_memory};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};

/// Mutations of a border's inputs; `HEADWAY_MUTATIONS` sets another number.
const MUTATIONS: u32 = 600;
/// Of the broker's, where a client that goes with a token keeps it for a watchdog.
const BROKER_MUTATIONS: u32 = 60;
/// Longer inputs are cut, as libFuzzer cuts them.
const BYTES_MAX: usize = 16 << 10;

/// One change of an input.
#[derive(Clone, Debug)]
enum Edit {
    Replace {
        at: prop::sample::Index,
        bytes: usize,
        by: Vec<u8>,
    },
    /// A part of an input, this one or another, comes again.
    Copy {
        input: prop::sample::Index,
        from: prop::sample::Index,
        bytes: usize,
        at: prop::sample::Index,
    },
    SwapLines {
        one: prop::sample::Index,
        other: prop::sample::Index,
    },
    Cut {
        at: prop::sample::Index,
    },
}

fn any_edit() -> impl Strategy<Value = Edit> {
    let index = any::<prop::sample::Index>;
    let text = "[\\PC\n\"=\\[\\]{}.,:0-9a-z\u{0}-\u{1f}]{0,6}|-?[0-9]{1,20}".prop_map(String::into_bytes);
    let by = prop_oneof![3 => text, 1 => prop::collection::vec(any::<u8>(), 0..6)];
    prop_oneof![
        6 => (index(), 0..12_usize, by).prop_map(|(at, bytes, by)| Edit::Replace { at, bytes, by }),
        3 => (index(), index(), 1..80_usize, index()).prop_map(|(input, from, bytes, at)| Edit::Copy { input, from, bytes, at }),
        2 => (index(), index()).prop_map(|(one, other)| Edit::SwapLines { one, other }),
        1 => index().prop_map(|at| Edit::Cut { at }),
    ]
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        let place = |at: &prop::sample::Index, bytes: &[u8]| at.index(bytes.len() + 1);
        match self {
            Self::Replace { at, bytes: count, by } => {
                let at = place(at, bytes);
                let end = (at + count).min(bytes.len());
                bytes.splice(at..end, by.iter().copied());
            }
            Self::Copy { input, from, bytes: count, at } => {
                let source = input.get(inputs);
                let from = place(from, source);
                let part = source[from..(from + count).min(source.len())].to_vec();
                let at = place(at, bytes);
                bytes.splice(at..at, part);
            }
            Self::SwapLines { one, other } => {
                let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
                let (one, other) = (one.index(lines.len()), other.index(lines.len()));
                lines.swap(one, other);
                *bytes = lines.join(&b'\n');
            }
            Self::Cut { at } => bytes.truncate(place(at, bytes)),
        }
        bytes.truncate(BYTES_MAX);
    }
}

/// The inputs of a border, in the order of their names.
fn inputs(border: BorderHarness) -> Vec<Vec<u8>> {
    let folder = border.corpus();
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn cross(name: &str, mutations: u32) {
    static LIMIT: Once = Once::new();
    LIMIT.call_once(limit_memory);
    let border = BorderHarness::named(name).unwrap();
    let inputs = inputs(border);
    inputs.iter().for_each(|input| (border.cross)(input));
    let cases = std::env::var("HEADWAY_MUTATIONS").map_or(mutations, |text| text.parse().unwrap());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let strategy = (any::<prop::sample::Index>(), prop::collection::vec(any_edit(), 1..5));
    let crossed = Cell::new(0);
    let done = TestRunner::new(config).run(&strategy, |(input, edits)| {
        let mut bytes = input.get(&inputs).clone();
        edits.iter().for_each(|edit| edit.apply(&mut bytes, &inputs));
        crossed.set(crossed.get() + 1);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        std::panic::catch_unwind(|| (border.cross)(&bytes))
            .map_err(|_| TestCaseError::fail(format!("these bytes cross `{name}`:\n{text}\n{bytes:?}")))
    });
    if let Err(error) = done {
        panic!("{error}");
    }
    assert!(crossed.get() >= cases);
}

#[test]
fn a_workload_file_is_read_as_it_is_written_or_refused_at_its_place() {
    cross("workload", MUTATIONS);
}

#[test]
fn a_machine_file_is_read_as_it_is_written_or_refused_at_its_place() {
    cross("machine", MUTATIONS);
}

#[test]
fn a_profile_is_read_as_it_is_written_or_refused_at_its_place() {
    cross("profile", MUTATIONS);
}

#[test]
fn a_log_is_read_as_it_is_written_and_drawn_or_refused_with_its_line() {
    cross("log", MUTATIONS);
}

#[test]
fn the_log_of_a_guest_is_read_and_drawn_or_refused() {
    cross("guest-log", MUTATIONS);
}

#[test]
fn what_the_cache_folder_has_is_used_or_ignored_and_does_not_grow() {
    cross("cache", MUTATIONS);
}

#[test]
fn an_import_is_a_workload_that_reads_or_is_refused() {
    cross("imports", MUTATIONS);
}

#[test]
fn a_client_that_lies_gets_no_token_of_another_and_keeps_nobody_from_one() {
    cross("broker", BROKER_MUTATIONS);
}

#[test]
fn calls_of_c_in_any_order_end_with_a_status_and_a_text() {
    cross("c-abi", MUTATIONS);
}

#[test]
fn every_border_has_a_test() {
    for border in BORDERS {
        assert!(include_str!("it.rs").contains(&format!("cross(\"{}\", ", border.name)), "{}", border.name);
    }
}
