//! Every experiment in its quick form on the emulated backend: the results are whole and the bytes are right.
//!
//! Verdicts depend on how fast things are and are not looked at. An experiment that finds a wrong byte ends with an error,
//! thus with status 2.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::STARTS;
use crate::common::{commands, headway, page, tree};
use headway_lab::reproduce::EXPERIMENTS;
use serde_json::Value;

/// What an experiment leaves.
struct Expected {
    name: &'static str,
    /// Files of raw figures, each with a column and what must be in it.
    tables: &'static [(&'static str, &'static str, &'static [&'static str])],
    /// Plots that have points.
    plots: &'static [&'static str],
    /// Lines of the table of paper and ours.
    rows: usize,
}

const FIGURES: &str = "n,first_ns,median_ns,p99_ns,max_ns";

const EXPECTED: [Expected; 7] = [
    Expected {
        name: "fujii",
        tables: &[
            ("single", "method", &["DMA", "IORW", "MEMWND", "HUB", "GPC", "GPC4"]),
            ("single", "stress", &["alone", "cpu-load", "memory-pressure", "pipes", "together"]),
            ("pairs", "first", &["DMA", "IORW", "HUB"]),
            ("methods", "ours", &["dma", "resident hub", "resident gpc", "resident gpc4"]),
        ],
        // Not every user may have real-time threads.
        plots: &["h2d-normal-cpu-load", "d2h-normal-cpu-load"],
        rows: 20,
    },
    Expected {
        name: "patil-table1",
        tables: &[("table1", "method", &["pageable", "dma", "dma-register", "staged"])],
        plots: &["table1-h2d", "table1-d2h"],
        rows: 9,
    },
    Expected {
        name: "patil-table2",
        tables: &[("table2", "version", &["sequential", "version 1", "version 2", "chunked"])],
        plots: &["table2"],
        rows: 2,
    },
    Expected {
        name: "patil-batch",
        tables: &[("batch", "method", &["loop", "batch", "kernel", "gather"])],
        plots: &["batch-h2d-64", "batch-h2d-4096", "batch-d2h-64", "batch-d2h-4096"],
        rows: 8,
    },
    Expected {
        name: "cho-bfs",
        tables: &[
            ("sweep", "mode", &["pageable", "fidelity", "headway"]),
            ("sweep", "input", &["rodinia", "kronecker"]),
        ],
        plots: &["gain-h2d-rodinia", "gain-d2h-kronecker", "ratio-kronecker"],
        rows: 12,
    },
    Expected {
        name: "cho-pathfinder",
        tables: &[("sweep", "mode", &["pageable", "fidelity", "headway"])],
        plots: &["gain-h2d-pathfinder", "gain-d2h-pathfinder", "ratio-pathfinder"],
        rows: 6,
    },
    Expected {
        name: "cho-queues",
        tables: &[
            ("queues", "mode", &["pageable", "fidelity", "headway", "staged"]),
            ("copies", "direction", &["h2d", "d2h"]),
        ],
        plots: &["queues-h2d-1", "queues-d2h-1"],
        rows: 4,
    },
];

/// An experiment of policies that devices can make too.
const FIGURE_II_1: Expected = Expected {
    name: "verner-fig2.1",
    tables: &[("chunks", "transfer", &["into gpu0", "out of gpu0"])],
    plots: &["in-and-out-of-one-GPU"],
    rows: 2,
};

/// Header and lines of comma-separated values without quotes.
fn table(text: &str) -> (Vec<&str>, Vec<Vec<&str>>) {
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    (lines.next().unwrap(), lines.collect())
}

fn read(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Raw figures are whole: lines as long as the header, times above zero, and everything that `column` must hold.
fn check_table(folder: &Path, (name, column, values): (&str, &str, &[&str])) {
    let text = read(folder, &format!("{name}.csv"));
    let (header, lines) = table(&text);
    let at = header.iter().position(|found| *found == column).unwrap_or_else(|| panic!("{name}: {header:?}"));
    assert!(lines.iter().all(|line| line.len() == header.len()), "{name}:\n{text}");
    let found: BTreeSet<&str> = lines.iter().map(|line| line[at]).collect();
    let missing: Vec<_> = values.iter().filter(|value| !found.contains(*value)).collect();
    assert!(missing.is_empty(), "{name}: {missing:?} are missing in {found:?}");
    for (at, column) in header.iter().enumerate().filter(|(_, column)| column.ends_with("median_ns")) {
        assert!(lines.iter().all(|line| line[at].parse::<u64>().is_ok_and(|ns| ns > 0)), "{name} {column}:\n{text}");
    }
    if text.contains(FIGURES) {
        // Samples of one point are in order.
        for line in &lines {
            // A 99th percentile of few samples is left out.
            let given = line[line.len() - 3..].iter().filter(|figure| !figure.is_empty());
            let figures: Vec<u64> = given.map(|figure| figure.parse().unwrap()).collect();
            assert!(figures.len() >= 2, "{name}: {line:?}");
            assert!(figures.is_sorted(), "{name}: {line:?}");
        }
    }
}

fn check(expected: &Expected) {
    let place = tempfile::tempdir().unwrap();
    let args = [expected.name, "--backend", "emu", "--quick", "--out", "results", "--format", "json"];
    let answer = headway(place.path(), &args);
    assert!(matches!(answer.status, Some(0 | 1)), "{answer:#?}");
    let json = answer.json();
    assert_eq!((&json["experiment"], &json["source"]), (&Value::from(expected.name), &Value::from("emu")));
    assert_eq!(json["schema"], 1);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), expected.rows, "{rows:#?}");

    let folder = place.path().join("results");
    for one in expected.tables {
        check_table(&folder, *one);
    }
    let summary = read(&folder, "summary.md");
    for plot in expected.plots {
        let svg = read(&folder, &format!("{plot}.svg"));
        assert!(svg.contains("source emu") && svg.contains("<circle"), "{plot} has no points");
        assert!(summary.contains(&format!("({plot}.svg)")), "{plot} is not in the summary");
    }
    for named in summary.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(name, _)| name) {
        let svg = read(&folder, named);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{named}");
    }
    let labels = [
        "| reproduced |",
        "| consistent, with a fitted parameter |",
        "| own check |",
        "| not reproduced |",
        "| not comparable |",
    ];
    let lines = summary.lines().filter(|line| labels.iter().any(|label| line.contains(label)));
    assert_eq!(lines.count(), expected.rows, "{summary}");
    assert!(summary.contains("Source `emu`"), "{summary}");
}

/// Experiments of policies, which need no device.
const SIMULATED: [&str; 8] = [
    "np-edf",
    "gpusync-sim",
    "verner-combine",
    "verner-fig2.1",
    "verner-wafer",
    "verner-aes",
    "verner-sweep",
    "join-leave",
];

/// Experiments whose work is done by processes of their own.
const WITH_PROCESSES: [&str; 1] = ["gpusync-gpu"];

/// Experiments that ask something of a GPU that nothing else has.
const ON_GPUS: [&str; 1] = ["who-waits"];

#[test]
fn experiments_that_need_a_gpu_say_so() {
    for name in ON_GPUS {
        let place = tempfile::tempdir().unwrap();
        for backend in ["sim", "emu"] {
            let answer = headway(place.path(), &[name, "--backend", backend, "--out", "r"]);
            assert_eq!(answer.status, Some(2), "{answer:#?}");
            assert!(answer.err.contains("--backend cuda"), "{answer:#?}");
        }
        assert!(!place.path().join("r").exists());
    }
}

#[test]
fn every_experiment_is_expected_here() {
    let known: Vec<_> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
    let expected: Vec<_> =
        EXPECTED.iter().map(|expected| expected.name).chain(SIMULATED).chain(WITH_PROCESSES).chain(ON_GPUS).collect();
    assert_eq!(known, expected);
}

#[test]
fn simulated_experiments_leave_whole_results() {
    // `gpusync-sim` takes as long as all others: its own test, in the laboratory, writes its folder.
    for name in SIMULATED.into_iter().filter(|name| *name != "gpusync-sim") {
        let place = tempfile::tempdir().unwrap();
        let answer = headway(place.path(), &[name, "--quick", "--out", "r"]);
        assert!(answer.status.is_some_and(|status| status < 2), "{name}: {answer:#?}");
        let summary = fs::read_to_string(place.path().join("r/summary.md")).unwrap();
        assert!(summary.contains("Source `sim`") && summary.contains("| what | paper | ours | verdict |"), "{summary}");
    }
}

/// Simulated experiments that have a form on devices: what they leave there.
#[test]
fn experiments_on_streams_leave_whole_results_on_emulated_devices() {
    for (name, more, tables) in [
        (
            "verner-aes",
            &["--policies", "serial,combined", "--gpus", "2"][..],
            &["plans", "runs", "cores", "steps", "blocks"][..],
        ),
        ("np-edf", &[], &["flows"]),
        ("join-leave", &[], &["jobs"]),
    ] {
        let place = tempfile::tempdir().unwrap();
        let args = [name, "--backend", "emu", "--quick", "--duration", "200 ms", "--out", "r"];
        let all: Vec<&str> = args.into_iter().chain(more.iter().copied()).chain(["--format", "json"]).collect();
        let answer = headway(place.path(), &all);
        assert!(matches!(answer.status, Some(0 | 1)), "{name}: {answer:#?}");
        let json = answer.json();
        assert_eq!((&json["experiment"], &json["source"]), (&Value::from(name), &Value::from("emu")));
        for row in json["rows"].as_array().unwrap() {
            // Bytes do not depend on how fast anything is, but how many were compared does.
            let what = row["what"].as_str().unwrap();
            if what.contains("ciphertexts") || what.contains("bytes that") {
                assert_ne!(row["verdict"], "not-reproduced", "{name}: {row:#}");
            }
        }
        for table in tables {
            assert!(read(&place.path().join("r"), &format!("{table}.csv")).lines().count() > 1, "{name}: {table}");
        }
        assert!(read(&place.path().join("r"), "summary.md").contains("Source `emu`"));
    }
}

#[test]
fn cameras_that_share_gpus_track_the_same_under_every_rule() {
    let place = tempfile::tempdir().unwrap();
    let args = ["gpusync-gpu", "--backend", "emu", "--quick", "--out", "r", "--format", "json"];
    let answer = headway(place.path(), &args);
    assert!(matches!(answer.status, Some(0 | 1)), "{answer:#?}");
    let json = answer.json();
    let verdict = |what: &str| {
        let rows = json["rows"].as_array().unwrap();
        rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("{rows:#?}"))["verdict"].clone()
    };
    // Everything but response times, which depend on how fast things are.
    for what in ["results", "frames", "blocking"] {
        assert_eq!(verdict(what), "own-check", "{json:#?}");
    }
    let folder = place.path().join("r");
    let results = read(&folder, "results.csv");
    assert_eq!(results.lines().count(), 1 + 8, "{results}");
    let digests: BTreeSet<_> = results.lines().skip(1).filter_map(|line| line.rsplit(',').next()).collect();
    assert_eq!(digests.len(), 1, "{results}");
    assert!(folder.join("frames.csv.gz").is_file() && read(&folder, "summary.md").contains("Source `emu`"));
}

#[test]
fn the_studies_of_fujii_leave_whole_results() {
    check(&EXPECTED[0]);
}

#[test]
fn the_tables_of_patil_leave_whole_results() {
    EXPECTED[1..4].iter().for_each(check);
}

#[test]
fn the_programs_of_cho_leave_whole_results() {
    EXPECTED[4..].iter().for_each(check);
}

#[test]
fn unequal_blocks_at_once_leave_curves() {
    check(&FIGURE_II_1);
}

#[test]
fn an_experiment_that_needs_memory_is_refused_in_virtual_time() {
    let place = tempfile::tempdir().unwrap();
    let answer = headway(place.path(), &["patil-batch", "--backend", "sim"]).exits(2);
    assert!(answer.err.contains("--backend emu"), "{answer:#?}");
}

#[test]
fn every_command_of_the_page_works() {
    let text = page("docs/reproduce.md").unwrap();
    let (place, commands) = (tempfile::tempdir().unwrap(), commands(&text, &STARTS));
    assert_eq!(commands.len(), 2, "{commands:?}");
    for args in commands {
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let answer = headway(place.path(), &words);
        // What an emulated experiment measures depends on this machine: its verdict is a result, whichever it is.
        let judged =
            args.contains(&"emu".to_owned()) && answer.status == Some(1) && answer.out.contains("not reproduced");
        assert!(answer.status == Some(0) || judged, "{args:?}: {answer:#?}");
    }
}

#[test]
fn values_that_mean_nothing_are_refused_before_anything_is_done() {
    let place = tempfile::tempdir().unwrap();
    for (line, word) in [
        ("gpusync-gpu --gpus 0", "from 1 on"),
        ("gpusync-gpu --gpus -1", "from 1 on"),
        ("gpusync-gpu --speedup 0", "0 is not in 1.."),
        ("gpusync-gpu --repetitions 0", "0 is not in 1.."),
        ("gpusinc-gpu", "there are: "),
    ] {
        let answer = headway(place.path(), &line.split(' ').collect::<Vec<_>>()).exits(2);
        assert!(answer.err.contains(word), "{line}: {answer:#?}");
    }
    assert_eq!(tree(place.path()).len(), 0);
}
