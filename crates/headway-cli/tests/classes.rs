//! Scheduling classes as `plan`, `run` and `doctor` name them, with permissions and without.

use std::path::Path;
use std::process::Command;

use crate::common::{Answer, command, headway, place};
use serde_json::Value;

const RUN: [&str; 8] =
    ["run", "workloads/encrypt.toml", "--backend", "emu", "--duration", "20 ms", "--no-verify", "--force"];

/// The command as a user without the capability to choose a class; `None` if this user has it and cannot do without.
fn unprivileged(folder: &Path, args: &[&str]) -> Option<Answer> {
    let own = command(folder);
    let mut dropped = Command::new("setpriv");
    dropped.args(["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"]).arg(own.get_program()).args(args);
    dropped.current_dir(folder).env("COLUMNS", "100").env("HEADWAY_LIBCUDA", folder.join("no libcuda.so.1"));
    match dropped.output() {
        Ok(output) => Some(output.into()),
        Err(error) => {
            eprintln!("skipped: setpriv: {error}");
            None
        }
    }
}

fn driver(summary: &Value) -> &Value {
    let threads = summary["cpu"]["threads"].as_array().unwrap_or_else(|| panic!("no threads in {summary}"));
    assert_eq!(threads[0]["role"], "driver");
    &threads[0]
}

#[test]
fn a_plan_says_what_it_assumes_of_the_cpus() {
    let place = place();
    let plan = ["plan", "workloads/encrypt.toml", "--machine", "h200-x1"];
    let text = headway(place.path(), &plan).exits(0).out;
    assert!(text.contains("assumes   ") && text.contains("at most 100 us late"), "{text}");
    let json = headway(place.path(), &[&plan[..], &["--format", "json"]].concat()).exits(0).json();
    assert_eq!(json["assumes"]["late_max"], 100_000);
    assert!(json["assumes"]["text"].as_str().unwrap().contains("scheduling class"), "{json}");
}

#[test]
fn a_run_on_devices_names_its_classes_in_text_json_log_and_report() {
    let place = place();
    let run = [&RUN[..], &["--out", "results"]].concat();
    let text = headway(place.path(), &run).out;
    assert!(text.contains("  threads: driver SCHED_") && text.contains("driver woken late: median"), "{text}");
    let json = headway(place.path(), &[&run[..], &["--format", "json"]].concat()).json();
    let summary = &json["summary"];
    assert!(["deadline", "fifo", "nice", "ordinary"].contains(&driver(summary)["class"].as_str().unwrap()), "{json}");
    assert_eq!(summary["cpu"]["late_max"], 100_000);
    assert!(summary["cpu"]["woken"]["count"].as_u64().unwrap() > 0, "{json}");
    let log = std::fs::read_to_string(place.path().join("results/run.jsonl")).unwrap();
    let header: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(header["cpu"]["asked"], "auto");
    let report = headway(place.path(), &["report", "results", "--format", "json"]).json();
    assert_eq!(report["cpu"], summary["cpu"]);
    headway(place.path(), &["replay", "results"]).exits(0);
}

#[test]
fn a_user_without_permission_runs_as_an_ordinary_thread_and_is_told_why_and_what_to_do() {
    let place = place();
    let run = [&RUN[..], &["--format", "json", "--out", "results"]].concat();
    let Some(auto) = unprivileged(place.path(), &run) else { return };
    let json = auto.json();
    let driver = driver(&json["summary"]);
    let refused = driver["refused"].as_array().unwrap();
    assert!(
        refused[0].as_str().unwrap().contains("SCHED_DEADLINE was refused with EPERM: the capability CAP_SYS_NICE")
    );
    for class in ["deadline", "fifo", "nice"] {
        let args = [&RUN[..], &["--out", class, "--cpu-class", class]].concat();
        let Some(answer) = unprivileged(place.path(), &args) else { return };
        // Limits may allow the weaker ones without the capability.
        if class == "deadline" || answer.status == Some(2) {
            assert_eq!(answer.status, Some(2), "{answer:#?}");
            assert!(answer.err.contains(&format!("cannot run in class `{class}`")), "{answer:#?}");
            assert!(
                answer.err.contains("CAP_SYS_NICE is missing") && answer.err.contains("`auto` takes"),
                "{answer:#?}"
            );
            assert!(!place.path().join(class).exists());
        }
    }
    let Some(doctor) = unprivileged(place.path(), &["doctor"]) else { return };
    assert!(doctor.out.contains("CPU for drivers") && doctor.out.contains("setpriv"), "{}", doctor.out);
}

#[test]
fn doctor_names_the_class_of_drivers_and_what_it_assumes() {
    let place = place();
    let json = headway(place.path(), &["doctor", "--format", "json"]).exits(0).json();
    let checks = json["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["what"] == "CPU for drivers").unwrap();
    let found = check["found"].as_str().unwrap();
    assert!(found.starts_with("SCHED_") && found.contains("deadlines hold as long as"), "{check}");
    assert_eq!(check["state"] == "ok", check["remedy"].is_null(), "{check}");
}

#[test]
fn where_nothing_is_driven_or_tasks_are_the_class_is_not_taken_in_silence() {
    let place = place();
    let sim = ["run", "workloads/encrypt.toml", "--backend", "sim", "--duration", "20 ms", "--cpu-class", "fifo"];
    let simulated = headway(place.path(), &sim);
    assert!(simulated.err.contains("the scheduling class has no effect"), "{simulated:#?}");
    let tasks = ["run", "workloads/track.toml", "--backend", "sim", "--duration", "20 ms", "--cpu-class", "fifo"];
    let refused = headway(place.path(), &tasks).exits(2);
    assert!(refused.err.contains("leave out `--cpu-class`"), "{refused:#?}");
    let unknown = headway(place.path(), &["run", "workloads/encrypt.toml", "--cpu-class", "rt"]).exits(2);
    assert!(unknown.err.contains("deadline, fifo, nice, ordinary"), "{unknown:#?}");
}
