//! What a run leaves behind: a file of its own for every stream, inside the folder of the results, and a judgement of every job.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Answer, command, headway, interrupt, place, told_to_end, tree, wait_until};
use serde_json::Value;

/// Two streams of the same bytes under different keys; only `/` and `_` tell their ids apart.
fn alike() -> String {
    let stream = |id: &str, key: &str| {
        format!(
            "[[stream]]\nid = \"{id}\"\npacket = \"4 KiB\"\nperiod = \"2 ms\"\ndeadline = \"20 ms\"\n\
             steps = [{{ copy = \"host -> gpu\" }}, {{ compute = \"aes128-cbc\" }}, {{ copy = \"gpu -> host\" }}]\n\
             key = \"{key}\"\niv = \"101112131415161718191a1b1c1d1e1f\"\n"
        )
    };
    let streams =
        stream("a/b", "000102030405060708090a0b0c0d0e0f") + &stream("a_b", "000102030405060708090a0b0c0d0e0a");
    format!("name = \"alike\"\n[run]\nduration = \"20 ms\"\n{streams}")
}

#[test]
fn streams_whose_ids_look_alike_have_a_file_each() {
    let place = place();
    fs::write(place.path().join("alike.toml"), alike()).unwrap();
    for verify in [&["--no-verify"][..], &[]] {
        let run = [&["run", "alike.toml", "--backend", "sim", "--out", "results"], verify].concat();
        headway(place.path(), &run).exits(0);
        let results = place.path().join("results");
        let manifest: Value = serde_json::from_slice(&fs::read(results.join("manifest.json")).unwrap()).unwrap();
        let output = |at: usize| manifest[at]["output"].as_str().unwrap().to_owned();
        assert_eq!([output(0), output(1)], ["streams/a%2Fb.bin", "streams/a_b.bin"]);
        let bytes: BTreeSet<Vec<u8>> = [0, 1].map(|at| fs::read(results.join(output(at))).unwrap()).into();
        assert!(bytes.len() == 2 && bytes.iter().all(|bytes| bytes.len() == 10 * 4096));
    }
}

#[test]
fn a_report_never_replaces_a_run() {
    let place = place();
    fs::write(place.path().join("alike.toml"), alike()).unwrap();
    for folder in ["one", "two"] {
        headway(place.path(), &["run", "alike.toml", "--backend", "sim", "--out", folder]).exits(0);
    }
    let before = tree(place.path());
    for log in ["one", "one/run.jsonl", "two"] {
        let refused = headway(place.path(), &["report", log, "--out", "one"]).exits(2);
        assert!(refused.err.contains("`one` exists and holds `run.jsonl`, the log of a run"), "{}", refused.err);
    }
    assert_eq!(tree(place.path()), before);
}

#[test]
fn files_of_streams_are_cut_by_what_the_streams_give_and_not_by_what_they_read() {
    let place = place();
    let options = ["--machine", "h200-x1", "--backend", "sim", "--duration", "3 s", "--sample-max", "512 KiB"];
    let run = headway(place.path(), &[&["run", "workloads/lidar.toml"][..], &options].concat()).exits(0);
    assert!(run.out.contains("the first 256 KiB of 3.75 MiB that 1 of 1 streams gave"), "{}", run.out);
}

#[test]
fn streams_for_which_the_input_has_no_packet_are_named() {
    let place = place();
    fs::write(place.path().join("alike.toml"), alike()).unwrap();
    fs::write(place.path().join("input"), [7; 16]).unwrap();
    let run = headway(place.path(), &["run", "alike.toml", "--backend", "sim", "--input", "input"]).exits(0);
    assert!(run.err.contains("warning: 1 of 2 streams had no packet, `a/b` for one"), "{}", run.err);
}

#[test]
fn no_name_leads_out_of_the_folder_of_results() {
    let place = place();
    let text = fs::read_to_string(place.path().join("workloads/encrypt.toml")).unwrap();
    let evil = text.replacen("name = \"encrypt\"", "name = \"../../evil\"", 1);
    assert_ne!(evil, text);
    fs::create_dir_all(place.path().join("deep/below")).unwrap();
    fs::write(place.path().join("deep/below/evil.toml"), evil).unwrap();
    let before = tree(place.path());
    let answer = headway(&place.path().join("deep/below"), &["run", "evil.toml", "--backend", "sim"]).exits(2);
    assert!(answer.err.contains("cannot name the folder of the results"), "{}", answer.err);
    assert_eq!(tree(place.path()), before);
}

/// Two messages in one batch of slots 10 ms apart; one slot has nothing to carry.
const EMPTY_SLOT: &str = r#"name = "empty"
[run]
duration = "100 ms"
[[message]]
id = "slow"
period = "25 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "1 MB" }]
[[message]]
id = "fast"
period = "10 ms"
start = "60 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "1 MB" }]
"#;

#[test]
fn a_slot_that_had_nothing_to_carry_is_no_job() {
    let place = place();
    fs::write(place.path().join("empty.toml"), EMPTY_SLOT).unwrap();
    let run = ["run", "empty.toml", "--machine", "h200-x1", "--backend", "sim", "--out", "results"];
    let answer = headway(place.path(), &run).exits(0);
    assert!(answer.out.starts_with("all 8 deadlines held [sim]"), "{}", answer.out);
    assert!(answer.out.contains("\nsimulated one trace at the machine's typical rates, "), "{}", answer.out);
    assert!(answer.out.contains("\n  8 of 8 jobs of messages, 8 MB, in "), "{}", answer.out);
    let log = fs::read_to_string(place.path().join("results/run.jsonl")).unwrap();
    assert!(log.contains("\"empty\""), "no slot was empty");

    // The last slot, which carries the last job of the fast message and the second half of the last job of the slow one, is
    // delivered late, or not at all.
    let mut lines: Vec<&str> = log.lines().collect();
    let last = lines.iter().rposition(|line| line.contains("\"deliver\"")).unwrap();
    let mut record: Value = serde_json::from_str(lines[last]).unwrap();
    let report = |lines: &[&str]| {
        let end = format!("{{\"records\":{}}}", lines.len() - 2);
        let text = [&lines[..lines.len() - 1], &[end.as_str()]].concat().join("\n") + "\n";
        fs::write(place.path().join("edited.jsonl"), text).unwrap();
        headway(place.path(), &["report", "edited.jsonl"]).exits(1).out
    };
    record["at"] = (record["at"].as_u64().unwrap() + 10_000_000).into();
    let late = record.to_string();
    lines[last] = &late;
    assert!(report(&lines).starts_with("2 of 8 deadlines missed [sim]"));
    lines.remove(last);
    assert!(report(&lines).starts_with("2 of 8 never delivered [sim]"));
}

#[test]
fn jobs_of_messages_are_the_same_however_they_are_carried() {
    let place = place();
    fs::write(place.path().join("empty.toml"), EMPTY_SLOT).unwrap();
    for strategy in ["serial", "combined", "partitioned"] {
        let run = ["run", "empty.toml", "--machine", "h200-x1", "--backend", "sim", "--format", "json"];
        let answer = headway(place.path(), &[&run[..], &["--strategy", strategy]].concat()).exits(0);
        let (totals, verdict) = (&answer.json()["summary"]["totals"], &answer.json()["summary"]["verdict"]);
        assert_eq!((&verdict["deadlines"], &verdict["lost"]), (&8.into(), &0.into()), "{strategy}");
        let jobs = (&totals["message_jobs"], &totals["message_jobs_delivered"], &totals["message_bytes"]);
        assert_eq!(jobs, (&8.into(), &8.into(), &8_000_000.into()), "{strategy}");
    }
}

const SMALL: &str = include_str!("golden/small.toml");

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).unwrap()
}

/// Checks that `results` in `folder` holds everything of a run that ended early, that each part says so, and that the log can be
/// used; returns its summary.
#[track_caller]
fn is_kept(folder: &Path, results: &str, why: &str) -> Value {
    let place = folder.join(results);
    let summary = json(&place.join("summary.json"));
    assert_eq!((&summary["complete"], &summary["incomplete"]["kind"]), (&Value::Bool(false), &why.into()));
    assert_eq!(summary["verdict"]["held"], Value::Bool(false));
    let text = summary["verdict"]["text"].as_str().unwrap();
    assert!(text.starts_with(&format!("INCOMPLETE, {why}")), "{text}");
    assert!(fs::read_to_string(place.join("INCOMPLETE.txt")).unwrap().contains(why));
    assert!(fs::read_to_string(place.join("page.html")).unwrap().contains(&format!("INCOMPLETE, {why}")));
    assert!(place.join("trace.perfetto-trace").metadata().unwrap().len() > 0);
    let report = headway(folder, &["report", results, "--format", "json"]).exits(1).json();
    assert_eq!(report, summary);
    summary
}

/// Checks the results of a run of streams, messages or demands, whose log replays.
#[track_caller]
fn replays(folder: &Path, results: &str, why: &str) {
    let summary = is_kept(folder, results, why);
    let replayed = headway(folder, &["replay", results]).exits(0).out;
    assert!(replayed.contains("byte for byte; the run ended before its last cycle"), "{replayed}");
    let manifest = json(&folder.join(results).join("manifest.json"));
    let streams = summary["streams"].as_array().unwrap();
    assert_eq!(manifest.as_array().unwrap().len(), streams.len());
    for (entry, stream) in manifest.as_array().unwrap().iter().zip(streams) {
        let output = entry["output"].as_str().unwrap();
        let written = folder.join(results).join(output).metadata().unwrap().len();
        assert!(output.ends_with(".bin.incomplete"), "{output}");
        assert_eq!(
            (&entry["complete"], &entry["written"], &stream["bytes"]),
            (&false.into(), &written.into(), &written.into())
        );
    }
    let whole = |path: &&std::path::PathBuf| {
        path.extension().is_some_and(|end| end == "bin") && path.parent().is_some_and(|p| p.ends_with("streams"))
    };
    assert_eq!(tree(folder).iter().filter(|path| path.starts_with(folder.join(results))).find(whole), None);
}

#[test]
fn an_interrupted_run_keeps_what_it_did_and_says_that_it_is_incomplete() {
    let place = place();
    fs::write(place.path().join("small.toml"), SMALL).unwrap();
    // Each would take much longer than it takes to send a signal, and succeed.
    let emulated = ["run", "small.toml", "--backend", "emu", "--duration", "100 s", "--out", "a/emu"];
    let fig = "workloads/verner-fig2.1.toml";
    let sim =
        ["run", fig, "--machine", "tyan-ft72b7015", "--backend", "sim", "--duration", "40000 s", "--out", "a/sim"];
    for (args, begun) in [(&emulated[..], "streams/b.bin"), (&sim[..], "")] {
        let answer = told_to_end(command(place.path()).args(args), place.path(), &["INT"], begun).exits(130);
        let results = args[args.len() - 1];
        assert!(answer.out.starts_with("INCOMPLETE, interrupted after "), "{answer:#?}");
        assert!(answer.err.contains("warning: the run was interrupted: its results are incomplete"), "{answer:#?}");
        assert!(answer.out.contains(&format!("results   {results}\n")), "{answer:#?}");
        replays(place.path(), results, "interrupted");
        let summary = json(&place.path().join(results).join("summary.json"));
        assert_eq!(summary["cpu"]["threads"].is_array(), results == "a/emu", "{summary}");
    }
}

#[test]
fn an_interrupted_run_of_tasks_keeps_the_jobs_that_were_complete() {
    let place = place();
    for backend in ["sim", "emu"] {
        let run = [
            "run",
            "workloads/track.toml",
            "--backend",
            backend,
            "--duration",
            "1000000 s",
            "--out",
            backend,
            "--force",
        ];
        let answer = told_to_end(command(place.path()).args(run), place.path(), &["TERM"], "").exits(130);
        assert!(answer.out.contains("INCOMPLETE, interrupted after "), "{answer:#?}");
        is_kept(place.path(), backend, "interrupted");
    }
}

#[test]
fn a_run_that_the_system_ends_keeps_what_it_did_and_one_under_nohup_outlives_its_terminal() {
    let place = place();
    fs::write(place.path().join("small.toml"), SMALL).unwrap();
    let run = |out| ["run", "small.toml", "--backend", "emu", "--duration", "100 s", "--out", out];
    for (out, nohup, signals) in
        [("term", false, &["TERM"][..]), ("hup", false, &["HUP"]), ("nohup", true, &["HUP", "INT"])]
    {
        // The signals that this test inherits are not known.
        let mut env = Command::new("env");
        env.arg(if nohup { "--ignore-signal=HUP" } else { "--default-signal=HUP" }).arg(crate::PROGRAM);
        let answer = told_to_end(env.args(run(out)), place.path(), signals, "streams/b.bin").exits(130);
        assert!(answer.out.starts_with("INCOMPLETE, interrupted after "), "{answer:#?}");
        replays(place.path(), out, "interrupted");
        let left = tree(place.path()).into_iter().find(|path| path.to_string_lossy().contains(".partial-"));
        assert_eq!(left, None);
    }
}

/// A workload that encrypts 655 MB/s, more than one GPU does, and ends with the first miss.
fn overload() -> String {
    let text = SMALL.replacen("1 KiB", "64 KiB", 1).replacen("20 ms", "100 us", 1);
    text.replacen("deadline = \"200 ms\"", "deadline = \"1 ms\"\non_miss = \"stop\"", 1)
}

#[test]
fn a_miss_that_stops_a_run_keeps_what_led_to_it() {
    let place = place();
    fs::write(place.path().join("overload.toml"), overload()).unwrap();
    for backend in ["sim", "emu"] {
        let run =
            ["run", "overload.toml", "--machine", "h200-x1", "--duration", "10 ms", "--force", "--backend", backend];
        let run = [&run[..], &["--out", backend, "--format", "json"]].concat();
        let answer: Answer = headway(place.path(), &run).exits(1);
        assert!(
            answer.err.contains("the run was stopped by stream `a`, which missed the deadline of packet"),
            "{answer:#?}"
        );
        let summary = &answer.json()["summary"];
        assert_eq!((&summary["complete"], &summary["incomplete"]["stream"]), (&false.into(), &"a".into()));
        assert!(summary["verdict"]["misses"].as_u64() > Some(0), "{summary}");
        assert_eq!(summary["cpu"]["threads"].is_array(), backend == "emu", "{summary}");
        replays(place.path(), backend, "stopped");
    }
}

#[test]
fn an_incomplete_result_replaces_no_whole_one() {
    let place = place();
    fs::write(place.path().join("small.toml"), SMALL).unwrap();
    fs::write(place.path().join("overload.toml"), overload()).unwrap();
    headway(place.path(), &["run", "small.toml", "--backend", "sim", "--out", "results"]).exits(0);
    let before = fs::read(place.path().join("results/run.jsonl")).unwrap();
    let run = ["run", "overload.toml", "--machine", "h200-x1", "--duration", "10 ms", "--force", "--backend", "sim"];
    let answer = headway(place.path(), &[&run[..], &["--out", "results"]].concat()).exits(1);
    assert!(answer.err.contains("they are in `results.incomplete`"), "{answer:#?}");
    replays(place.path(), "results.incomplete", "stopped");
    assert_eq!(fs::read(place.path().join("results/run.jsonl")).unwrap(), before);
}

#[test]
fn a_second_interrupt_ends_a_run_at_once() {
    let place = place();
    // Its JSON is more than a pipe holds: it waits for a reader that does not come.
    let run = ["run", "workloads/encrypt.toml", "--backend", "sim", "--duration", "50 ms", "--out", "results"];
    let mut command = command(place.path());
    let mut child = command.args(run).args(["--format", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let results = place.path().join("results/summary.json");
    wait_until(&mut child, || results.exists());
    // The first one only asks. Signals that come before the last one is seen count as one.
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        interrupt(&child);
        assert!(started.elapsed() < Duration::from_secs(300), "it does not end");
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// One chain of 104.86 MB/s where a GPU works a chain off at 41 MB/s.
fn one_chain() -> String {
    let end = SMALL.match_indices("[[stream]]").nth(1).unwrap().0;
    SMALL[..end].replacen("1 KiB", "1 MiB", 1).replacen("20 ms", "10 ms", 1).replacen("200 ms", "100 ms", 2)
}

#[test]
fn too_much_work_is_laid_to_its_stream_and_what_would_help_helps() {
    let place = place();
    fs::write(place.path().join("chain.toml"), one_chain()).unwrap();
    let plan = headway(place.path(), &["plan", "chain.toml", "--machine", "h200-x1"]).exits(1).out;
    let words =
        ["`a` is one chain of 104.86 MB/s, and `aes128-cbc` works a chain off at 41.02 MB/s", "cut into 4 streams"];
    for word in words {
        assert!(plan.contains(word), "`{word}` is missing\n{plan}");
    }
    // A refused run says the same by itself, as text and as JSON.
    let run = ["run", "chain.toml", "--machine", "h200-x1", "--backend", "sim"];
    let refused = headway(place.path(), &run).exits(1);
    for word in words {
        assert!(refused.err.contains(word), "`{word}` is missing\n{}", refused.err);
    }
    let answer = headway(place.path(), &[&run[..], &["--format", "json"]].concat()).exits(1);
    let refusal = answer.json();
    assert_eq!(
        (&refusal["schema"], &refusal["kind"], &refusal["status"]),
        (&1.into(), &"not-accepted".into(), &1.into())
    );
    let causes = refusal["causes"].as_array().unwrap();
    assert!(causes.iter().any(|cause| cause.as_str().unwrap().contains(words[0])), "{refusal}");
    assert!(answer.err.is_empty() && refusal["help"].as_str().unwrap().contains("--force"), "{answer:#?}");

    // With so many streams as it says, the plan is accepted. With one fewer it is not: whether other cycles would do is not known.
    for (parts, status) in [(4, 0), (3, 3)] {
        let chain = one_chain();
        let (head, stream) = chain.split_at(chain.find("[[stream]]").unwrap());
        let part = |at: usize| {
            let stream = stream.replacen("1 MiB", &format!("{} B", (1 << 20) / parts / 16 * 16), 1);
            stream.replacen("id = \"a\"", &format!("id = \"a{at}\""), 1).replacen("0f\"", &format!("{at:02x}\""), 1)
        };
        let text = head.to_owned() + &(0..parts).map(part).collect::<String>();
        fs::write(place.path().join("parts.toml"), text).unwrap();
        headway(place.path(), &["plan", "parts.toml", "--machine", "h200-x1"]).exits(status);
    }
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    let place = place();
    fs::write(place.path().join("bad.toml"), SMALL.replacen("period = \"20 ms\"", "period = 20", 1)).unwrap();
    let json = |args: &[&str]| {
        let answer = headway(place.path(), args);
        let refusal = answer.json();
        assert_eq!(refusal["status"], answer.status.unwrap(), "{answer:#?}");
        assert!(answer.err.is_empty() && refusal["causes"].is_array() && refusal["message"].is_string(), "{answer:#?}");
        assert_eq!((&refusal["schema"], &refusal["error"]), (&1.into(), &true.into()), "{answer:#?}");
        refusal
    };
    let missing = json(&["plan", "nowhere.toml", "--format", "json"]);
    assert_eq!((&missing["kind"], &missing["message"]), (&"read".into(), &"cannot read `nowhere.toml`".into()));
    assert!(missing["causes"][0].as_str().unwrap().contains("No such file") && missing["help"].is_string());
    let wrong = json(&["run", "bad.toml", "--format=json"]);
    assert_eq!((&wrong["kind"], &wrong["message"]), (&"file".into(), &"`period = 20` has no unit".into()));
    assert_eq!((&wrong["place"]["line"], &wrong["place"]["column"]), (&10.into(), &10.into()));
    let usage = json(&["run", "--format", "json"]);
    assert_eq!((&usage["kind"], &usage["status"]), (&"usage".into(), &2.into()));
    assert!(!usage["message"].as_str().unwrap().contains('\n'));
    json(&["plan", "workloads/encrypt.toml", "--gpus", "99", "--format", "json"]);
    json(&["replay", "nowhere", "--format", "json"]);
    json(&["machines", "nowhere", "--format", "json"]);
}
