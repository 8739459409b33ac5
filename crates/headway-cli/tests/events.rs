//! What `HEADWAY_LOG` has written on the standard error, and that nothing is written without it.

use std::fs::File;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use crate::common::{command, headway, interrupt, place, wait_until};
use headway::copy::{self, At, CpuReach, How, Method};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const RUN: [&str; 9] =
    ["run", "workloads/encrypt.toml", "--backend", "emu", "--duration", "10 ms", "--no-verify", "--force", "--quiet"];

#[test]
fn events_of_a_run_are_written_where_they_are_asked_for_and_not_by_default() {
    let place = place();
    let silent = headway(place.path(), &RUN);
    assert!(!silent.err.contains("run begins"), "{silent:#?}");
    let told = |value: &str| command(place.path()).args(RUN).env("HEADWAY_LOG", value).output().unwrap();
    let said = |value: &str| String::from_utf8(told(value).stderr).unwrap();
    let text = said("info");
    assert!(text.lines().any(|line| line.contains(" INFO  run: run begins gpus=")), "{text}");
    let text = said("plan=debug,dispatch=debug");
    for told in
        [" DEBUG plan: strategy tried strategy=", " DEBUG plan: server judged server=", " DEBUG dispatch: told at="]
    {
        assert!(text.lines().any(|line| line.contains(told)), "{told}: {text}");
    }
    let text = said("run=warn,copy=trace");
    assert!(!text.contains("run begins"), "{text}");
}

#[test]
fn a_value_that_asks_for_nothing_known_is_an_error() {
    let place = place();
    let output = command(place.path()).arg("machines").env("HEADWAY_LOG", "copy=loud").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(text.starts_with("error: HEADWAY_LOG has `copy=loud`, and `loud` is no level"), "{text}");
}

#[test]
fn a_broker_tells_who_comes() {
    let place = place();
    let path = place.path().join("events");
    let mut broker = command(place.path())
        .args(["broker", "--socket", "broker.socket", "--quiet"])
        .env("HEADWAY_LOG", "broker=debug")
        .stdout(Stdio::null())
        .stderr(File::create(&path).unwrap())
        .spawn()
        .unwrap();
    let status = || headway(place.path(), &["status", "--socket", "broker.socket"]).status == Some(0);
    wait_until(&mut broker, status);
    interrupt(&broker);
    broker.wait().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(" INFO  broker: broker begins start="), "{text}");
    assert!(text.contains(" DEBUG broker: client connected client="), "{text}");
}

/// Keeps events of copies as text.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?};", field.name()));
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "headway::copy"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_program_with_a_subscriber_of_its_own_sees_which_method_was_chosen() {
    let kept = Kept::default();
    tracing::subscriber::with_default(kept.clone(), || {
        let copier = copy::emulated(1).unwrap();
        let on_gpu = copier.gpus()[0].device_buffer(4096, CpuReach::Device).unwrap();
        copier.copy_in(At { buffer: &on_gpu, offset: 0 }, &[7; 4096], How::By(Method::Pageable)).unwrap();
    });
    let events = kept.0.lock().unwrap();
    let has = |parts: [&str; 3]| events.iter().any(|event| parts.iter().all(|part| event.contains(part)));
    assert!(has(["message=method chosen", "method=pageable", "reason=the caller named it"]), "{events:?}");
    assert!(has(["message=copied", "method=pageable", "bytes=4"]), "{events:?}");
}
