//! The main job from outside: what `headway run` encrypts is what `openssl` makes of the bytes that the manifest names,
//! with the keys read from the workload file by the TOML parser alone.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Answer, headway, place, random, root};
use serde_json::Value;
use toml::de::DeTable;

const ENCRYPT: &str = "workloads/encrypt.toml";

/// Whether there is an `openssl`; says so if not.
fn openssl() -> bool {
    let there = Command::new("openssl").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        eprintln!("skipped: there is no `openssl` to compare with");
    }
    there
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Checks every stream of `results`, a folder inside `place`, against `openssl`, and returns the bytes compared.
fn equals_openssl(place: &Path, results: &str, workload: &str) -> u64 {
    let results = place.join(results);
    let text = fs::read_to_string(place.join(workload)).unwrap();
    let workload = DeTable::parse(&text).unwrap().into_inner();
    let streams = workload.get("stream").and_then(|streams| streams.get_ref().as_array()).unwrap();
    let manifest = json(&results.join("manifest.json"));
    let entries = manifest.as_array().unwrap();
    assert_eq!(entries.len(), streams.len());
    let mut compared = 0;
    for (entry, stream) in entries.iter().zip(streams.iter()) {
        let said = |key: &str| stream.get_ref()[key].get_ref().as_str().unwrap();
        let id = said("id");
        assert_eq!(
            (entry["stream"].as_str(), entry["output"].as_str()),
            (Some(id), Some(&*format!("streams/{id}.bin")))
        );
        let input = bytes_named(place, &results, entry);
        let clear = place.join("clear");
        fs::write(&clear, &input).unwrap();
        let mut openssl = Command::new("openssl");
        openssl.args(["enc", "-aes-128-cbc", "-nopad", "-K", said("key")]);
        openssl.args(["-iv", said("iv"), "-in"]).arg(&clear);
        let expected = openssl.output().unwrap();
        assert!(expected.status.success(), "{expected:?}");
        let found = fs::read(results.join("streams").join(format!("{id}.bin"))).unwrap();
        assert_eq!(found.len(), input.len(), "stream {id}");
        assert!(found == expected.stdout, "stream {id} differs from what openssl makes");
        compared += input.len() as u64;
    }
    fs::remove_file(place.join("clear")).unwrap();
    compared
}

/// The bytes that an entry of the manifest says its stream read, with the zeros behind them.
fn bytes_named(place: &Path, results: &Path, entry: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in entry["segments"].as_array().unwrap() {
        let name = segment["file"].as_str().unwrap();
        // A sample is part of the results; any other file is named as the user named it.
        let file = if name == "sample.bin" { results.join(name) } else { place.join(name) };
        let mut part = vec![0; segment["bytes"].as_u64().unwrap() as usize];
        File::open(file).unwrap().read_exact_at(&mut part, segment["offset"].as_u64().unwrap()).unwrap();
        bytes.extend(part);
    }
    assert_eq!(bytes.len() as u64, entry["bytes"].as_u64().unwrap());
    bytes.resize(bytes.len() + entry["padding"].as_u64().unwrap() as usize, 0);
    bytes
}

/// Checks that nothing was missed or lost and every one of `streams` streams was verified.
#[track_caller]
fn held(answer: &Answer, source: &str, streams: u64) {
    let json = answer.json();
    let (summary, verdict) = (&json["summary"], &json["summary"]["verdict"]);
    assert_eq!(summary["source"].as_str(), Some(source));
    assert_eq!((&verdict["held"], &verdict["misses"], &verdict["lost"]), (&true.into(), &0.into(), &0.into()));
    assert_eq!(json["verified"], streams);
}

#[test]
fn a_file_of_odd_size_is_encrypted_as_openssl_does_and_no_deadline_is_missed() {
    let place = place();
    fs::write(place.path().join("data.bin"), random(1_000_003, 1)).unwrap();
    let args = ["run", ENCRYPT, "--input", "data.bin", "--backend", "sim", "--out", "results", "--format", "json"];
    let answer = headway(place.path(), &args).exits(0);
    held(&answer, "sim", 64);
    let manifest = json(&place.path().join("results/manifest.json"));
    let sum = |key: &str| manifest.as_array().unwrap().iter().map(|entry| entry[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (sum("bytes"), sum("padding")),
        (1_000_003, 13),
        "every byte goes to one stream, the last block is filled up"
    );
    assert!(answer.err.contains("zeros fill up"), "{}", answer.err);
    if openssl() {
        assert_eq!(equals_openssl(place.path(), "results", ENCRYPT), 1_000_016);
    }
}

#[test]
fn the_files_of_a_folder_are_encrypted_stream_by_stream() {
    let place = place();
    let folder = place.path().join("data");
    fs::create_dir_all(folder.join("below")).unwrap();
    for number in 0..70usize {
        fs::write(folder.join(format!("f{number:02}")), random(number * 37 % 1500, number as u64)).unwrap();
    }
    fs::write(folder.join("below/ignored"), "not of the folder itself").unwrap();
    let args = ["run", ENCRYPT, "--input", "data", "--backend", "sim", "--out", "results", "--format", "json"];
    held(&headway(place.path(), &args).exits(0), "sim", 64);
    let manifest = json(&place.path().join("results/manifest.json"));
    let files: Vec<_> =
        manifest[1]["segments"].as_array().unwrap().iter().map(|s| s["file"].as_str().unwrap()).collect();
    assert_eq!(files, ["data/f01", "data/f65"], "files are dealt in turn");
    if openssl() {
        assert!(equals_openssl(place.path(), "results", ENCRYPT) > 0);
    }
}

#[test]
fn the_emulated_device_encrypts_the_sample_as_openssl_and_the_simulation_do() {
    let place = place();
    fs::copy(root().join("crates/headway-cli/tests/golden/small.toml"), place.path().join("small.toml")).unwrap();
    let run = |backend, out| {
        let args =
            ["run", "small.toml", "--machine", "h200-x1", "--backend", backend, "--out", out, "--format", "json"];
        headway(place.path(), &args)
    };
    let emulated = run("emu", "emu");
    // On a busy machine a deadline may be missed; bytes may never be wrong.
    assert!(matches!(emulated.status, Some(0 | 1)), "{emulated:?}");
    assert_eq!(emulated.json()["verified"], 2);
    assert_eq!(emulated.json()["summary"]["source"], "emu");
    let imitates = emulated.json()["imitates"].as_str().unwrap().to_owned();
    assert!(imitates.contains("no time here says anything about a GPU"), "{imitates}");
    held(&run("sim", "sim").exits(0), "sim", 2);
    for stream in ["a", "b"] {
        let read = |source| fs::read(place.path().join(format!("{source}/streams/{stream}.bin"))).unwrap();
        assert!(read("emu") == read("sim"), "stream {stream}");
    }
    if openssl() {
        assert_eq!(equals_openssl(place.path(), "emu", "small.toml"), 10 * 1024 + 4 * 4112);
    }
    headway(place.path(), &["replay", "emu"]).exits(0);
}

#[test]
fn streams_on_cores_of_the_cpu_are_what_openssl_makes_and_the_plan_says_which_they_are() {
    let place = place();
    let text = fs::read_to_string(place.path().join(ENCRYPT)).unwrap();
    // Two streams of the CPU's own, and as many as the planner likes of the rest.
    let mut number = 0;
    let lines = text.lines().map(|line| {
        if !line.starts_with("steps =") {
            return line.to_owned();
        }
        number += 1;
        format!("processor = \"{}\"\n{line}", if number <= 2 { "cpu" } else { "auto" })
    });
    let divided = lines.collect::<Vec<_>>().join("\n");
    // A deadline too short for the GPU: with three steps, cycles of 50 us.
    let divided = divided.replacen("deadline = \"128 ms\"", "deadline = \"200 us\"", 1);
    fs::write(place.path().join("divided.toml"), divided).unwrap();
    let plan = headway(place.path(), &["plan", "divided.toml", "--format", "json"]).exits(0).json();
    let plan = if plan["plan"].is_object() { &plan["plan"] } else { &plan };
    assert!(plan["division"]["on_cpu"].as_u64().unwrap() >= 1, "{:#}", plan["division"]);
    let text = headway(place.path(), &["plan", "divided.toml"]).exits(0).out;
    assert!(text.contains("division  ") && text.contains("cores of the CPU") && text.contains("assumption"), "{text}");
    for backend in ["sim", "emu"] {
        let args =
            ["run", "divided.toml", "--backend", backend, "--duration", "300 ms", "--out", backend, "--format", "json"];
        let answer = headway(place.path(), &args);
        // On a busy machine a deadline may be missed; bytes may never be wrong.
        assert!(answer.status == Some(0) || backend == "emu" && answer.status == Some(1), "{answer:?}");
        let json = answer.json();
        assert_eq!(json["verified"], 64);
        let served = json["summary"]["streams"].as_array().unwrap();
        assert!(served[..2].iter().all(|stream| stream["gpu"].is_null() && stream["cpu"].is_u64()), "{served:#?}");
        assert!(served.iter().any(|stream| stream["gpu"].is_u64()), "{served:#?}");
        let engines = json["summary"]["engines"].as_array().unwrap();
        let core = engines.iter().find(|engine| engine["name"] == "cpu0").unwrap();
        assert!(core["operations"].as_u64().unwrap() > 0 && core["cpu"] == 0, "{core:#}");
        if openssl() {
            assert!(equals_openssl(place.path(), backend, "divided.toml") > 0);
        }
        headway(place.path(), &["replay", backend]).exits(0);
    }
}

/// A short simulated run in a folder `results`.
fn short_run(place: &Path, out: &str, seed: &str) {
    let args = ["run", ENCRYPT, "--backend", "sim", "--duration", "40 ms", "--seed", seed, "--out", out];
    headway(place, &args).exits(0);
}

#[test]
fn one_seed_gives_one_log_and_one_output_and_another_seed_another_sample() {
    let place = place();
    for (out, seed) in [("one", "7"), ("two", "7"), ("three", "8")] {
        short_run(place.path(), out, seed);
    }
    let read = |name: &str| fs::read(place.path().join(name)).unwrap();
    assert!(read("one/run.jsonl") == read("two/run.jsonl"));
    assert!(read("one/page.html") == read("two/page.html"));
    assert!(read("one/streams/s07.bin") == read("two/streams/s07.bin"));
    assert!(read("one/streams/s07.bin") != read("three/streams/s07.bin"));
}

#[test]
fn the_command_printed_last_repeats_the_run() {
    let place = place();
    fs::write(place.path().join("my data"), random(9001, 3)).unwrap();
    let args = ["run", ENCRYPT, "--backend", "sim", "--input", "my data", "--seed", "5", "--out", "re sults"];
    let said = headway(place.path(), &args).exits(0).out;
    let log = fs::read(place.path().join("re sults/run.jsonl")).unwrap();
    let again = said.lines().last().unwrap().strip_prefix("again     headway ").unwrap().to_owned();
    fs::remove_dir_all(place.path().join("re sults")).unwrap();
    let script = format!("'{}' {again}", crate::PROGRAM);
    let status = Command::new("sh").current_dir(place.path()).args(["-c", &script]).stdout(Stdio::null()).status();
    assert!(status.unwrap().success(), "{script}");
    assert!(fs::read(place.path().join("re sults/run.jsonl")).unwrap() == log);
}

/// Line `number`, from 1, and the one behind it of the first log lines that hold two different submissions.
fn two_submissions(lines: &[&str]) -> usize {
    let submission = |line: &str| line.contains(r#""action":{"submit""#);
    let pair = lines.windows(2).position(|pair| submission(pair[0]) && submission(pair[1]) && pair[0] != pair[1]);
    pair.expect("a run of 64 streams submits two operations at once") + 1
}

#[test]
fn a_log_replays_and_an_edited_one_is_refused_at_the_line_of_the_edit() {
    let place = place();
    short_run(place.path(), "results", "1");
    assert!(headway(place.path(), &["replay", "results"]).exits(0).out.contains("byte for byte"));
    let log = fs::read_to_string(place.path().join("results/run.jsonl")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let at = two_submissions(&lines);

    let mut swapped = lines.clone();
    swapped.swap(at - 1, at);
    let other = lines[at - 1].replace(r#""bytes":"#, r#""bytes":1"#);
    let mut changed = lines.clone();
    changed[at - 1] = &other;
    let mut missing = lines.clone();
    missing.remove(at - 1);
    let count = format!(r#"{{"records":{}}}"#, lines.len() - 3);
    *missing.last_mut().unwrap() = &count;

    for (what, edited) in [("swapped", swapped), ("changed", changed), ("missing", missing)] {
        fs::write(place.path().join("edited.jsonl"), edited.join("\n") + "\n").unwrap();
        let answer = headway(place.path(), &["replay", "edited.jsonl"]).exits(1);
        assert!(answer.err.starts_with("error: the log and its replay part at record"), "{what}: {}", answer.err);
        assert!(answer.err.contains(&format!("(line {at} of the file)")), "{what}, line {at}: {}", answer.err);
        assert_eq!(answer.out, "");
        let json = headway(place.path(), &["replay", "edited.jsonl", "--format", "json"]).exits(1).json();
        assert_eq!((&json["equal"], &json["line"]), (&false.into(), &at.into()), "{what}");
    }
}

#[test]
fn a_truncated_log_is_an_error_that_says_where_it_ends() {
    let place = place();
    short_run(place.path(), "results", "1");
    let log = fs::read_to_string(place.path().join("results/run.jsonl")).unwrap();
    let half = log.len() / 2;
    for cut in [0, 100, half, log.len() - log.lines().last().unwrap().len() - 1] {
        fs::write(place.path().join("cut.jsonl"), &log[..cut]).unwrap();
        for command in ["replay", "report"] {
            let answer = headway(place.path(), &[command, "cut.jsonl"]).exits(2);
            assert!(answer.err.starts_with("error: log `cut.jsonl` is truncated: it ends at line"), "{}", answer.err);
        }
    }
}

#[test]
fn a_report_of_a_log_is_what_the_run_wrote_itself() {
    let place = place();
    short_run(place.path(), "results", "1");
    headway(place.path(), &["report", "results/run.jsonl", "--out", "report"]).exits(0);
    for name in ["summary.json", "page.html", "trace.perfetto-trace"] {
        let read = |folder: &str| fs::read(place.path().join(folder).join(name)).unwrap();
        assert!(read("results") == read("report"), "{name}");
    }
}
