//! Who waits for whom at copy engines, as machine files say it, and as the kept runs of the built-in figures found it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use headway_core::files::machine::{EndpointId, Machine, parse, write};
use headway_core::models::transfer::Direction;
use headway_core::models::transfer::arbitration::{
    ArbitrationAdvice, ChunkGap, Cut, EngineArbitration, SmallCopyWait, WAIT_COPIES, WAIT_GUESTS, built_in,
};
use headway_core::units::{Bytes, Nanos};
use proptest::prelude::*;

const BASE: &str = r#"name = "node"
[[memory]]
id = "host"
[[gpu]]
id = "gpu0"
[[gpu]]
id = "gpu1"
[[arbitration]]
direction = "d2h"
time = "19.4 ms"
whole = [1073741824, 1000100, 109, 19407391, 19425096, 19427762]
words = [
  [1048576, 803600, 55996, 24015, 32337, 1511571],
  [4194304, 934100, 27333, 80610, 91861, 123994],
]
streams = [[4194304, 938000, 27157, 80058, 91479, 119687]]
process = [2000, 1055181, 1062854, 1080704]
[[arbitration]]
gpus = ["gpu1"]
direction = "h2d"
time = "19.3 ms"
whole = [1073741824, 999900, 20, 11491]
"#;

fn base() -> Machine {
    parse("node.toml", BASE).unwrap_or_else(|error| panic!("{error}"))
}

fn reread(machine: &Machine) -> Machine {
    let text = write(machine, &[]);
    let read = parse("written", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Machine { hash: machine.hash.clone(), ..read }
}

/// Replaces `old` in the file; the error must stand at `at`.
#[track_caller]
fn check(old: &str, new: &str, at: &str, message: &str) {
    assert!(BASE.contains(old), "{old}");
    let error = parse("node.toml", &BASE.replacen(old, new, 1)).expect_err(new);
    assert_eq!(error.message, message);
    let under: String = error.source_line.chars().skip(error.column - 1).take(error.width).collect();
    assert_eq!(under, at, "{error}");
    assert!(error.help.is_some(), "{error}");
}

#[test]
fn what_a_file_says_holds_for_its_gpus() {
    let machine = base();
    let of = |gpu, direction| machine.profile.arbitration.get(&(EndpointId(gpu), direction));
    let out = of(1, Direction::D2h).unwrap();
    assert_eq!(of(2, Direction::D2h), Some(out), "for both");
    assert_eq!((out.time, out.words.len(), out.streams.len()), (Nanos(19_400_000), 2, 1));
    assert_eq!(out.process.map(|wait| wait.median), Some(Nanos(1_055_181)));
    assert!(of(1, Direction::H2d).is_none(), "gpu0 was not asked");
    let into = of(2, Direction::H2d).unwrap();
    assert_eq!((into.whole.wait.p99, into.advise(Nanos(1))), (Nanos::MAX, ArbitrationAdvice::Whole));
    let written = reread(&machine);
    assert_eq!(written, machine);
    let one = machine.with_gpus(1).unwrap();
    assert_eq!(one.profile.arbitration.len(), 1, "what was measured of a GPU that goes goes with it");
}

#[test]
fn rows_that_mean_nothing_are_refused_with_their_place() {
    check("\"d2h\"", "\"peer\"", "\"peer\"", "only copies to and from the host were asked about");
    check(
        "109, 19407391, 19425096",
        "109, 19425096, 19407391",
        "[1073741824, 1000100, 109, 19425096, 19407391, 19427762]",
        "`whole` has median, p99 and max that fall",
    );
    check(
        "[4194304, 934100",
        "[1048576, 934100",
        "[1048576, 934100, 27333, 80610, 91861, 123994]",
        "the chunk is not longer than the one before it",
    );
    check(
        "[4194304, 938000",
        "[1073741824, 938000",
        "[1073741824, 938000, 27157, 80058, 91479, 119687]",
        "the chunk is no part of the whole copy",
    );
    check("[2000, 1055181, 1062854, 1080704]", "[2000]", "[2000]", "`process = [2000]` is not what stands here");
    check(
        "1080704]",
        "1080704, 7]",
        "[2000, 1055181, 1062854, 1080704, 7]",
        "`process = [2000, 1055181, 1062854, 1080704, 7]` is not what stands here",
    );
    check("[1073741824, 999900, 20, 11491]", "[5]", "[5]", "`whole = [5]` is not what stands here");
    check(
        "gpus = [\"gpu1\"]\ndirection = \"h2d\"",
        "direction = \"d2h\"",
        "[[arbitration]]",
        "`gpu0` has two tables of who waits for copies d2h",
    );
    let unknown = parse("node.toml", &BASE.replacen("words", "word", 1)).unwrap_err();
    assert!(unknown.help.unwrap().contains("words"));
}

/// The rows of a kept run by what they are of.
#[allow(clippy::disallowed_methods, reason = "a test reads kept runs")]
fn kept(run: &str) -> BTreeMap<String, Vec<u64>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/runs").join(run).join("waits.csv");
    let text = fs::read_to_string(path).unwrap();
    let row = |line: &str| {
        // Only names have commas within quotes.
        let (name, rest) = match line.strip_prefix('"') {
            Some(quoted) => quoted.split_once("\",").unwrap(),
            None => line.split_once(',').unwrap(),
        };
        let figures: Vec<&str> = rest.split(',').collect();
        let number = |at: usize| figures[at].parse::<f64>().unwrap();
        let share = (number(9) * 1e6).round();
        let alone = (number(8) * number(9)).round();
        let row = [number(1), share, number(4), number(5), number(6), number(7), alone];
        (name.to_owned(), row.map(|figure| figure as u64).to_vec())
    };
    text.lines().skip(1).map(row).collect()
}

fn row(cut: &Cut) -> Vec<u64> {
    let wait = &cut.wait;
    vec![cut.chunk.0, cut.share_ppm, u64::from(wait.n), wait.median.0, wait.p99.0, wait.max.0]
}

#[test]
fn built_in_figures_are_those_of_the_kept_runs() {
    for (name, run) in
        [("NVIDIA H100 80GB HBM3", "2026-11-24-h100x1-who-waits"), ("NVIDIA H200", "2026-11-24-h200x1-who-waits")]
    {
        let rows = kept(run);
        let (out, from) = built_in(name, Direction::D2h).unwrap();
        assert_eq!(from, run);
        let all = |cut: &Cut, what: &str| assert_eq!(row(cut), rows[what][..6], "{name}: {what}");
        all(&out.whole, "whole");
        assert_eq!(out.time.0, rows["whole"][6]);
        let mib = |cut: &Cut| cut.chunk.0 >> 20;
        for cut in &out.words {
            all(cut, &format!("pieces of {} MiB, a word written behind each, with a barrier", mib(cut)));
        }
        assert_eq!(out.words.iter().map(mib).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32]);
        all(&out.streams[0], "pieces on two streams by turns, with events");
        let process = out.process.unwrap();
        let found = [u64::from(process.n), process.median.0, process.p99.0, process.max.0];
        assert_eq!(found, rows["whole, another process"][2..6]);
        let (into, _) = built_in(name, Direction::H2d).unwrap();
        all(&into.whole, "whole, in");
        assert_eq!(into.advise(WAIT_GUESTS), ArbitrationAdvice::Whole);
        let piece = |bound| match out.advise(bound) {
            ArbitrationAdvice::Chunks { between: ChunkGap::Word, cut } => mib(&cut),
            other => panic!("{other:?}"),
        };
        assert_eq!((piece(WAIT_GUESTS), piece(WAIT_COPIES)), (4, 16), "{name}");
        assert!(built_in(name, Direction::Peer).is_none());
    }
    assert!(built_in("NVIDIA A100-SXM4-80GB", Direction::D2h).is_none(), "nobody asked one");
}

fn any_wait() -> impl Strategy<Value = SmallCopyWait> {
    (1..u32::MAX, 0..1_u64 << 40, proptest::option::of((0..1_u64 << 30, proptest::option::of(0..1_u64 << 30))))
        .prop_map(|(n, median, rest)| {
            let p99 = rest.map_or(Nanos::MAX, |(more, _)| Nanos(median + more));
            let max = rest.and_then(|(_, more)| more).map_or(Nanos::MAX, |more| Nanos(p99.0 + more));
            SmallCopyWait { n, median: Nanos(median), p99, max }
        })
}

fn any_cuts() -> impl Strategy<Value = Vec<Cut>> {
    let cut = (1..2_000_000_u64, any_wait());
    proptest::collection::btree_map(1..1_u64 << 30, cut, 0..4).prop_map(|cuts| {
        cuts.into_iter().map(|(chunk, (share_ppm, wait))| Cut { chunk: Bytes(chunk), share_ppm, wait }).collect()
    })
}

proptest! {
    #[test]
    fn any_arbitration_reads_back_as_it_was_written(
        words in any_cuts(), streams in any_cuts(), process in proptest::option::of(any_wait()), whole in any_wait(),
        time in 1_u64..1 << 40, share_ppm in 1_u64..2_000_000, gpu in 1_u32..3, out in any::<bool>(),
    ) {
        let mut machine = base();
        let whole = Cut { chunk: Bytes(1 << 30), share_ppm, wait: whole };
        let found = EngineArbitration { whole, time: Nanos(time), words, streams, process };
        let direction = if out { Direction::D2h } else { Direction::H2d };
        machine.profile.arbitration.insert((EndpointId(gpu), direction), found);
        prop_assert_eq!(reread(&machine), machine);
    }

    #[test]
    fn advice_is_something_that_was_measured(
        words in any_cuts(), streams in any_cuts(), whole in any_wait(), time in 1_u64..1 << 40, bound in 0_u64..1 << 42,
    ) {
        let whole = Cut { chunk: Bytes(1 << 30), share_ppm: 1_000_000, wait: whole };
        let found = EngineArbitration { whole, time: Nanos(time), words, streams, process: None };
        match found.advise(Nanos(bound)) {
            ArbitrationAdvice::Whole => prop_assert!(found.lets_in()),
            ArbitrationAdvice::Nothing => prop_assert!(found.cuts(ChunkGap::Word).chain(found.cuts(ChunkGap::Streams)).next().is_none()),
            ArbitrationAdvice::Chunks { between, cut } => {
                prop_assert!(found.cuts(between).any(|known| known == cut));
                let larger = found.cuts(between).filter(|known| known.chunk > cut.chunk);
                prop_assert!(larger.into_iter().all(|known| known.wait.long() > Nanos(bound)));
            }
        }
    }
}
