//! Long runs: what is kept is bounded, what is left out is said, and no figure depends on it.

use std::fs;
use std::path::Path;

use crate::common::{Answer, headway, place};
use serde_json::Value;

const RUN: [&str; 7] = ["run", "workloads/encrypt.toml", "--backend", "sim", "--duration", "200 ms", "--out"];
const BOUNDS: [&str; 6] = ["--sample-max", "4 KiB", "--log-max", "64 KiB", "--trace-max", "900"];

fn run(place: &Path, out: &str, more: &[&str]) -> Answer {
    headway(place, &[&RUN[..], &[out], more].concat()).exits(0)
}

fn size(path: impl AsRef<Path>) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn bounds_change_what_is_kept_but_no_figure_and_are_said_everywhere() {
    let place = place();
    let text = run(place.path(), "text", &BOUNDS).out;
    let json = run(place.path(), "json", &[&BOUNDS[..], &["--format", "json"]].concat()).json();
    let whole = run(place.path(), "whole", &["--format", "json"]).json();

    // Every figure is that of the whole run.
    let mut bounded: Value = json["summary"].clone();
    let left_out = bounded.as_object_mut().unwrap().remove("left_out").unwrap();
    assert_eq!(bounded, whole["summary"]);
    assert_eq!((&json["verified"], &whole["verified"]), (&64.into(), &64.into()));

    // What is left out stands in the text, in JSON, on the page and in the trace.
    let said: Vec<&str> = left_out.as_array().unwrap().iter().map(|what| what.as_str().unwrap()).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    for (what, option) in said.iter().zip(["`--log-max`", "`--sample-max`", "operations and packets"]) {
        assert!(what.contains(option), "{what}");
    }
    let results = place.path().join("text");
    let page = fs::read_to_string(results.join("page.html")).unwrap();
    for what in &said {
        assert!(text.contains(&format!("left out: {what}")), "{what}\n{text}");
        assert!(page.contains(&what.replace('\'', "&#39;")), "{what}");
    }
    let trace = fs::read(results.join("trace.perfetto-trace")).unwrap();
    assert!(trace.windows(said[2].len()).any(|part| part == said[2].as_bytes()));
    let again = text.lines().find(|line| line.starts_with("again")).unwrap();
    assert!(again.contains("--sample-max '4096 B' --log-max '65536 B' --trace-max 900"), "{again}");

    // And it is left out.
    let sizes = ["text", "whole"].map(|out| size(place.path().join(out).join("trace.perfetto-trace")));
    assert!(sizes[0] * 2 < sizes[1], "{sizes:?}");
    // Two buffers of 64 KiB are written after the bound is met.
    assert!(size(results.join("run.jsonl")) < (64 + 64 + 16) << 10);
    assert!(size(results.join("sample.bin")) <= 64 * 4096);
}

#[test]
fn a_log_that_was_cut_is_replayed_as_far_as_it_goes_and_gives_no_figures() {
    let place = place();
    run(place.path(), "results", &BOUNDS);
    let replayed = headway(place.path(), &["replay", "results"]).exits(0);
    assert!(replayed.out.contains("the same: ") && replayed.out.contains("not compared: the last "), "{replayed:?}");
    let json = headway(place.path(), &["replay", "results", "--format", "json"]).exits(0).json();
    let replayed = &json["replayed"];
    assert!(replayed["omitted"].as_u64().unwrap() > 100 && replayed["inputs"].as_u64().unwrap() > 100, "{json}");
    let answer = headway(place.path(), &["report", "results"]).exits(2);
    for part in ["lacks the", "`summary.json`", "`--log-max`"] {
        assert!(answer.err.contains(part), "{answer:?}");
    }
    // A whole log has nothing to say about it.
    run(place.path(), "whole", &[]);
    assert!(!headway(place.path(), &["replay", "whole"]).exits(0).out.contains("not compared"));
    let report = headway(place.path(), &["report", "whole", "--out", "report", "--trace-max", "900"]).exits(0);
    assert!(report.out.contains("left out: the trace shows"), "{report:?}");
}

#[test]
fn the_kept_outputs_are_those_of_the_sample_and_the_manifest_says_how_many_bytes_they_are() {
    let place = place();
    run(place.path(), "short", &["--sample-max", "4 KiB"]);
    run(place.path(), "whole", &[]);
    let read = |path: &str| fs::read(place.path().join(path)).unwrap();
    let manifest: Value = serde_json::from_slice(&read("short/manifest.json")).unwrap();
    let mut cut = 0;
    for entry in manifest.as_array().unwrap() {
        let segment = &entry["segments"][0];
        let [bytes, padding, kept, part] = [&entry["bytes"], &entry["padding"], &entry["written"], &segment["bytes"]]
            .map(|number| number.as_u64().unwrap());
        let output = read(&format!("short/{}", entry["output"].as_str().unwrap()));
        assert_eq!(output.len() as u64, kept, "{entry}");
        assert_eq!(kept, if part < bytes { part } else { bytes + padding }, "{entry}");
        cut += u32::from(part < bytes);
    }
    assert!(cut > 32, "{cut}");
    let log = read("short/run.jsonl");
    let header: Value = serde_json::from_slice(log.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    // As many packets as without bounds.
    let whole = read("whole/run.jsonl");
    let whole: Value = serde_json::from_slice(whole.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!(header["streams"], whole["streams"]);
}

#[test]
fn long_tables_show_what_is_tightest_and_say_how_much_more_there_is() {
    let place = place();
    // The further down in the file, the less room a server has.
    let flow = |at: u32| {
        let cost = 100 + at;
        format!("[[demand]]\nid = \"f{at}\"\nserver = \"s{at}\"\nperiod = \"1 ms\"\ncost = \"{cost} us\"\n")
    };
    let text = format!("name = \"many\"\n{}", (0..40).map(flow).collect::<String>());
    fs::write(place.path().join("many.toml"), text).unwrap();
    let plan = ["plan", "many.toml", "--machine", "h200-x1"];
    let text = headway(place.path(), &plan).exits(0).out;
    let is_row = |line: &&str| line.starts_with('s') && line.ends_with("  schedulable");
    let rows: Vec<&str> = text.lines().filter(is_row).collect();
    assert_eq!(rows.len(), 16, "{text}");
    assert!(rows[0].starts_with("s39 ") && rows[15].starts_with("s24 "), "{text}");
    assert!(
        text.contains("\nand 24 more servers; above, those with the least margin; `--format json` has all\n"),
        "{text}"
    );
    let json = headway(place.path(), &[&plan[..], &["--format", "json"]].concat()).exits(0).json();
    let named = |name: &str| json["servers"].as_array().unwrap().iter().any(|server| server["name"] == name);
    assert!(named("s0") && named("s39"), "{json}");

    let text = run(place.path(), "text", &[]).out;
    assert!(text.contains(": the 16 of 64 nearest to their deadlines [sim]\n"), "{text}");
    let json = run(place.path(), "json", &["--format", "json"]).json();
    assert_eq!(json["summary"]["streams"].as_array().unwrap().len(), 64);
    assert!(text.lines().count() < 120, "{text}");
}
