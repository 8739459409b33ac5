//! Tasks that share GPUs, run: simulated, and as threads on emulated GPUs.

use std::fs;
use std::path::Path;

use crate::common::headway;
use serde_json::Value;

const TRACKERS: &str = "name = \"two\"\n[run]\nduration = \"400 ms\"\n[sharing]\ncpus = 2\n\
    [[task]]\nid = \"a\"\nperiod = \"100 ms\"\nstate = \"4 MiB\"\n\
    segments = [{ copy = \"host -> gpu\", bytes = \"300 KB\" }, { compute = \"spin\", time = \"2 ms\" }]\n\
    [[task]]\nid = \"b\"\nperiod = \"200 ms\"\nstate = \"4 MiB\"\n\
    segments = [{ copy = \"host -> gpu\", bytes = \"30 KB\" }, { compute = \"spin\", time = \"2 ms\" }, \
    { copy = \"gpu -> host\", bytes = \"30 KB\" }]\n";

fn track() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/track.toml").display().to_string()
}

#[test]
fn simulated_tasks_leave_a_log_that_is_the_same_again_and_sums_up_to_the_same() {
    let place = tempfile::tempdir().unwrap();
    let run = |out: &str| {
        let args = ["run", &track(), "--backend", "sim", "--out", out, "--format", "json"];
        let answer = headway(place.path(), &args).exits(0);
        (answer.json(), fs::read(place.path().join(out).join("run.jsonl")).unwrap())
    };
    let ((first, log), (_, again)) = (run("a"), run("b"));
    assert_eq!(log, again);
    assert_eq!((&first["summary"]["source"], &first["summary"]["verdict"]["held"]), (&"sim".into(), &true.into()));
    assert!(first["summary"]["waits"].as_array().is_some_and(|waits| !waits.is_empty()), "{first:#?}");
    for task in first["summary"]["tasks"].as_array().unwrap() {
        let blocked = task["blocked_max"][2].as_u64().unwrap();
        assert!(blocked <= task["bound"]["blocking"].as_u64().unwrap(), "{task:#?}");
    }
    let report = headway(place.path(), &["report", "a", "--out", "r", "--format", "json"]).exits(0);
    assert_eq!(report.json(), first["summary"]);
    for name in ["page.html", "trace.perfetto-trace"] {
        let [ours, theirs] = ["a", "r"].map(|folder| fs::read(place.path().join(folder).join(name)).unwrap());
        assert!(ours == theirs && !ours.is_empty(), "{name}");
    }
    let text = headway(place.path(), &["run", &track(), "--backend", "sim", "--out", "text"]).exits(0).out;
    assert!(text.contains("\nresults   text\npage      text/page.html\n"), "{text}");
    let page = fs::read_to_string(place.path().join("a/page.html")).unwrap();
    assert!(page.contains("Who waited for whom") && page.contains("waits for an engine"), "no waits on the page");
    let answer = headway(place.path(), &["replay", "a"]).exits(2);
    assert!(answer.err.contains("headway report"), "{answer:#?}");
}

#[test]
fn tasks_on_emulated_gpus_compute_what_the_cpu_computes_and_wait_within_bounds() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("two.toml"), TRACKERS).unwrap();
    let args = ["run", "two.toml", "--backend", "emu", "--machine", "h200-x4", "--gpus", "2", "--format", "json"];
    let answer = headway(place.path(), &args);
    // Whether deadlines hold depends on how fast things are.
    assert!(matches!(answer.status, Some(0 | 1)), "{answer:#?}");
    let json = answer.json();
    let verdict = &json["summary"]["verdict"];
    assert_eq!((&verdict["jobs"], &verdict["above_bound"]), (&Value::from(6), &Value::from(0)), "{json:#?}");
    assert_eq!((&json["verified"], &json["summary"]["source"]), (&Value::from(6), &Value::from("emu")));
}

#[test]
fn what_tasks_cannot_do_is_refused_at_its_place() {
    let place = tempfile::tempdir().unwrap();
    for (from, to, words) in [
        ("spin", "klt", &["`klt`", "there are `aes128-cbc`, `spin`", "--backend sim"][..]),
        ("300 KB", "47 B", &["`spin`", "47 bytes", "copy from 48 bytes"]),
        ("state = \"4 MiB\"", "", &["8 bytes of state", "write `state = \"8 B\"`"]),
    ] {
        fs::write(place.path().join("wrong.toml"), TRACKERS.replacen(from, to, 1)).unwrap();
        let answer = headway(place.path(), &["run", "wrong.toml", "--backend", "emu"]).exits(2);
        assert!(answer.err.contains("task `a`") && words.iter().all(|word| answer.err.contains(word)), "{answer:#?}");
        headway(place.path(), &["run", "wrong.toml", "--backend", "sim"]).exits(0);
    }
    fs::write(place.path().join("two.toml"), TRACKERS).unwrap();
    let answer = headway(place.path(), &["run", "two.toml", "--backend", "sim", "--strategy", "serial"]).exits(2);
    assert!(answer.err.contains("--strategy"), "{answer:#?}");
    fs::write(place.path().join("long.toml"), TRACKERS.replace("\"2 ms\"", "\"300 ms\"")).unwrap();
    let answer = headway(place.path(), &["run", "long.toml", "--backend", "sim"]).exits(1);
    assert!(answer.err.contains("--force"), "{answer:#?}");
    headway(place.path(), &["run", "long.toml", "--backend", "sim", "--force"]).exits(1);
    assert!(!place.path().join("out/two-emu").exists(), "nothing is left behind");
}
