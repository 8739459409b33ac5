//! Whatever `plan` accepts runs on every backend, or is refused with its place in the file: generated workloads on emulated GPUs.
//! `PROPTEST_CASES` sets how many.

use std::cell::Cell;
use std::path::Path;

use headway::plan::{Outcome, PlanOptions};
use headway::run::{Backend, RunOptions, RunReport};
use headway::units::Nanos;
use headway::workload::{Loaded, Workload, parse};
use headway::{Error, Failure};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

const MACHINE: &str = "h200-x4";

fn run(workload: &Loaded<Workload>, backend: Backend, duration: Nanos, out: &Path) -> Result<RunReport, Error> {
    let (machine, out) = (Some(MACHINE.to_owned()), Some(out.join(format!("{backend:?}"))));
    let options = RunOptions { backend, machine, out, duration: Some(duration), ..RunOptions::default() };
    headway::run::run(workload, &options, |_| {})
}

/// What a step of a stream takes its data from and leaves it in.
const STEPS: [&str; 4] = [
    r#"{ copy = "host -> gpu" }"#,
    r#"{ compute = "spin" }"#,
    r#"{ compute = "aes128-cbc" }"#,
    r#"{ copy = "gpu -> host" }"#,
];

/// Steps where each takes its data where the one before leaves it, or, seldom, whatever comes.
fn steps() -> impl Strategy<Value = Vec<&'static str>> {
    let any = (any::<bool>(), prop::collection::vec((0..4usize, 0..12u8), 1..=4));
    any.prop_map(|(mut on_gpu, drawn)| {
        let step = |(number, odd): (usize, u8)| {
            let number = match number {
                _ if odd == 0 => number,
                _ if !on_gpu => 0,
                0 => 3,
                other => other,
            };
            on_gpu = number != 3;
            STEPS[number]
        };
        drawn.into_iter().map(step).collect()
    })
}

fn stream() -> impl Strategy<Value = String> {
    let sizes = prop::sample::select(vec!["16 B", "48 B", "1 KiB", "4 KiB", "60 KiB"]);
    let times = (prop::sample::select(vec![1u64, 2, 3, 5, 10]), 1..=30u64, 0..=3u64);
    let places = prop::sample::select(vec!["auto", "gpu0", "gpu1"]);
    (steps(), sizes, times, places).prop_map(|(steps, packet, (period, deadline, start), gpu)| {
        let keys = if steps.contains(&STEPS[2]) {
            "key = \"000102030405060708090a0b0c0d0e0f\"\niv = \"101112131415161718191a1b1c1d1e1f\"\n"
        } else {
            ""
        };
        format!(
            "packet = \"{packet}\"\nperiod = \"{period} ms\"\ndeadline = \"{deadline} ms\"\nstart = \"{start} ms\"\n\
             gpu = \"{gpu}\"\nsteps = [{}]\n{keys}",
            steps.join(", ")
        )
    })
}

/// A stream whose packets have two parts, of which the second may begin or end on a GPU.
fn parted() -> impl Strategy<Value = String> {
    (any::<bool>(), any::<bool>(), 10..=30u64).prop_map(|(brought, taken, deadline)| {
        let copy = |parts: &[&str]| format!("{{ copy = [{}] }}", parts.join(", "));
        let into = [r#"{ part = "a", from = "host", to = "gpu0" }"#, r#"{ part = "b", from = "host", to = "gpu1" }"#];
        let out = [r#"{ part = "a", from = "gpu0", to = "host" }"#, r#"{ part = "b", from = "gpu1", to = "host" }"#];
        let steps = [copy(&into[..1 + usize::from(brought)]), copy(&out[..1 + usize::from(taken)])].join(", ");
        format!(
            "packet = \"3 KiB\"\nperiod = \"10 ms\"\ndeadline = \"{deadline} ms\"\n\
             parts = [{{ id = \"a\", bytes = \"1 KiB\" }}, {{ id = \"b\", bytes = \"2 KiB\" }}]\nsteps = [{steps}]\n"
        )
    })
}

fn message() -> impl Strategy<Value = String> {
    let way = prop::sample::select(vec![("host", "gpu0"), ("gpu1", "host"), ("gpu0", "gpu1")]);
    let block = (way, prop::sample::select(vec!["1 B", "4 KiB", "300 KiB"]));
    let block =
        block.prop_map(|((from, to), bytes)| format!("{{ from = \"{from}\", to = \"{to}\", bytes = \"{bytes}\" }}"));
    let times = (prop::sample::select(vec![2u64, 5, 10]), prop::option::of(1..=1u64));
    (times, prop::collection::vec(block, 1..=2)).prop_map(|((period, late), blocks)| {
        let late = late.map_or_else(String::new, |late| format!("late = \"{late} ms\"\n"));
        format!("period = \"{period} ms\"\n{late}blocks = [{}]\n", blocks.join(", "))
    })
}

fn workload() -> impl Strategy<Value = String> {
    let cycle = prop::sample::select(vec!["auto", "arrival", "paper"]);
    let lists = (
        prop::collection::vec(prop_oneof![6 => stream(), 1 => parted()], 0..=3),
        prop::collection::vec(message(), 0..=2),
    );
    (cycle, lists).prop_map(|(cycle, (streams, messages))| {
        let mut text = format!("name = \"generated\"\n[run]\ncycle = \"{cycle}\"\n");
        for (kind, parts) in [("stream", streams), ("message", messages)] {
            for (number, part) in parts.iter().enumerate() {
                text.push_str(&format!("[[{kind}]]\nid = \"{kind}{number}\"\n{part}"));
            }
        }
        text
    })
}

/// What became of a workload.
enum Ended {
    NotAccepted,
    Refused,
    Equal,
}

fn ended(text: &str) -> Result<Ended, TestCaseError> {
    let Ok(workload) = parse("generated.toml", text) else { return Ok(Ended::NotAccepted) };
    let machine = headway::machine::open(MACHINE).unwrap();
    let accepted = headway::plan::make(&machine, &workload, PlanOptions::default());
    let Some(plan) = accepted.ok().filter(|plan| plan.verdict.outcome == Outcome::Schedulable) else {
        return Ok(Ended::NotAccepted);
    };
    let out = tempfile::tempdir().unwrap();
    match run(&workload, Backend::Emu, Nanos(20_000_000), out.path()) {
        Ok(report) => {
            prop_assert_eq!(report.verified, plan.streams.len());
            prop_assert_eq!(report.messages.moved, report.messages.equal);
            Ok(Ended::Equal)
        }
        Err(error) => match error.place() {
            Some(place) if place.line > 1 && place.message.contains("cannot run on devices") => Ok(Ended::Refused),
            _ => Err(TestCaseError::fail(format!("{error:?}"))),
        },
    }
}

#[test]
fn what_a_plan_accepts_runs_or_is_refused_with_its_place() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(32);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let equal = Cell::new(0);
    let tried = runner.run(&workload(), |text| {
        if matches!(ended(&text)?, Ended::Equal) {
            equal.set(equal.get() + 1);
        }
        Ok(())
    });
    tried.unwrap_or_else(|error| panic!("{error}"));
    assert!(equal.get() * 8 > cases, "{} of {cases} generated workloads ran: too few to say anything", equal.get());
}

/// What `text` becomes on emulated GPUs.
fn of(text: &str) -> Ended {
    ended(text).unwrap_or_else(|error| panic!("{error}"))
}

const ENDS: &str =
    "name = \"ends\"\n[[stream]]\nid = \"frames\"\npacket = \"4 KiB\"\nperiod = \"2 ms\"\ndeadline = \"1 ms\"\n";

#[test]
fn a_pipeline_begins_and_ends_on_the_host_or_on_a_gpu() {
    for steps in [&STEPS[..1], &STEPS[..2], &STEPS[3..], &[STEPS[3], STEPS[0], STEPS[1]]] {
        let text = format!("{ENDS}steps = [{}]\n", steps.join(", "));
        assert!(matches!(of(&text), Ended::Equal), "{text}");
    }
    let parts = r#"
parts = [{ id = "a", bytes = "1 KiB" }, { id = "b", bytes = "3 KiB" }]
steps = [{ copy = "host -> gpu0" }, { copy = [{ part = "a", from = "gpu0", to = "host" }] }]
"#;
    let text = format!("{ENDS}{parts}").replace("\"1 ms\"", "\"9 ms\"");
    assert!(matches!(of(&text), Ended::Refused), "{text}");
}

#[test]
fn blocks_for_which_a_gpu_has_no_room_are_refused_with_the_longest_run() {
    let text = format!("{ENDS}steps = [{}]\n", STEPS[0]).replace("4 KiB", "4 MiB");
    let workload = parse("ends.toml", &text).unwrap();
    let out = tempfile::tempdir().unwrap();
    let error = run(&workload, Backend::Emu, Nanos(1_000_000_000), out.path()).unwrap_err();
    let Some(error) = error.place() else { panic!("{error:?}") };
    assert_eq!((error.line, error.source_line.starts_with("steps")), (7, true), "{error}");
    assert!(error.message.contains("give a `--duration` of at most"), "{error}");
}

#[test]
fn times_alone_are_those_of_a_simulation_with_contents() {
    let workload = headway::workload::open(Path::new("../../workloads/two-gpus.toml")).unwrap();
    let log = |time_only| {
        let out = tempfile::tempdir().unwrap();
        let options = RunOptions {
            backend: Backend::Sim,
            machine: Some(MACHINE.to_owned()),
            out: Some(out.path().join("out")),
            duration: Some(Nanos(50_000_000)),
            time_only,
            ..RunOptions::default()
        };
        let report = headway::run::run(&workload, &options, |_| {}).unwrap();
        assert_eq!(report.verified, if time_only { 0 } else { 2 });
        let written = std::fs::metadata(report.folder.join("streams/chain.bin")).unwrap().len();
        assert_eq!(written > 0, !time_only);
        std::fs::read(report.folder.join("run.jsonl")).unwrap()
    };
    assert!(log(true) == log(false), "the logs differ");
}

#[test]
fn a_run_whose_log_no_memory_holds_is_refused_before_it_begins() {
    let text = "name = \"huge\"\n[[message]]\nid = \"m\"\nperiod = \"2 ms\"\n\
                blocks = [{ from = \"gpu0\", to = \"host\", bytes = \"1 MB\" }]\n";
    let workload = parse("huge.toml", text).unwrap();
    let out = tempfile::tempdir().unwrap();
    let error = run(&workload, Backend::Sim, Nanos(1_000_000 * 1_000_000_000), out.path()).unwrap_err();
    let Failure::TooLong { records, needed, longest, .. } = error.failure() else { panic!("{error:?}") };
    assert!(*records > 1_000_000_000 && needed.0 > 100 << 30 && *longest > Nanos(0), "{records} {needed} {longest}");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn more_than_an_emulated_gpu_holds_is_refused_with_a_remedy() {
    let mut text = String::from("name = \"heavy\"\n");
    for number in 0..8 {
        text.push_str(&format!(
            "[[stream]]\nid = \"cam{number}\"\npacket = \"12 MB\"\nperiod = \"30 ms\"\ndeadline = \"100 ms\"\ngpu = \"gpu0\"\n\
             steps = [{{ copy = \"host -> gpu\" }}, {{ compute = \"spin\" }}, {{ copy = \"gpu -> host\" }}]\n"
        ));
    }
    let workload = parse("heavy.toml", &text).unwrap();
    let out = tempfile::tempdir().unwrap();
    let error = run(&workload, Backend::Emu, Nanos(30_000_000), out.path()).unwrap_err();
    let help = error.help().unwrap_or_else(|| panic!("no remedy: {error:?}"));
    assert!(help.contains("smaller packets") && help.contains("--backend sim"), "{help}");
}
