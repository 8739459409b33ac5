//! What `--backend emu` says about itself, and on how many GPUs it runs.

use crate::common::{headway, place};

#[test]
fn an_emulated_run_on_two_gpus_says_what_it_imitates() {
    let place = place();
    let args = ["run", "workloads/encrypt.toml", "--backend", "emu", "--gpus", "2", "--duration", "20 ms"];
    let run = headway(place.path(), &[&args[..], &["--quiet", "--out", "text"]].concat());
    // Whether deadlines hold is a matter of this computer.
    assert!(matches!(run.status, Some(0 | 1)), "{run:?}");
    let line = run.out.lines().find(|line| line.starts_with("emulated")).unwrap_or_else(|| panic!("{run:?}"));
    for part in ["imitate 2 GPUs of machine `h200-x4`", "GB/s in and", "no time here says anything about a GPU"] {
        assert!(line.contains(part), "`{part}` is missing: {line}");
    }
    let json = headway(place.path(), &[&args[..], &["--quiet", "--out", "json", "--format", "json"]].concat()).json();
    assert!(json["imitates"].as_str().unwrap().contains("2 GPUs of machine `h200-x4`"), "{json}");
    let gpus: Vec<_> =
        json["summary"]["devices"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(gpus, ["emulated gpu0 of h200-x4", "emulated gpu1 of h200-x4"]);
}

#[test]
fn more_gpus_than_any_usual_machine_has_are_refused_with_their_number() {
    let place = place();
    let args = ["run", "workloads/encrypt.toml", "--backend", "emu", "--gpus", "5"];
    let answer = headway(place.path(), &args).exits(2);
    assert!(answer.err.contains("h200-x4") && answer.err.contains("--machine"), "{answer:?}");
}

#[test]
fn a_measurement_of_small_copies_only_is_called_useless_for_planning() {
    let place = place();
    let args = ["measure", "--backend", "emu", "--quick", "--sizes", "64 B,4 KiB", "--only", "links", "--quiet"];
    let report = headway(place.path(), &[&args[..], &["--out", "node.toml"]].concat()).exits(0);
    assert!(report.out.contains("emulated  threads and memory of this computer imitate 1 GPU"), "{report:?}");
    // 4 KiB a copy, each of which takes microseconds to start, are far from 55 GB/s on any computer.
    assert!(report.out.contains("useless   for planning: copies into an emulated GPU reach"), "{report:?}");
    let json = headway(place.path(), &[&args[..], &["--out", "two.toml", "--gpus", "2", "--format", "json"]].concat());
    let json = json.exits(0).json();
    assert!(json["imitates"].as_str().unwrap().contains("2 GPUs of machine `h200-x4`"), "{json}");
    assert!(!json["useless"].as_array().unwrap().is_empty(), "{json}");
}
