//! The log as a file: what is written is read back; damaged, cut and foreign logs say what is wrong with them.

use std::io::{self, Write};

use crate::common::{Bend, log, plan, run, text};
use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput};
use headway_core::log::RecordBody;
use headway_core::units::Nanos;
use headway_trace::{LogError, LogWriter, RunLog};

fn read(text: &[u8]) -> Result<RunLog, LogError> {
    RunLog::read(text, "run.log")
}

#[test]
fn what_is_written_is_read_back_and_written_the_same_again() {
    let log = log(&plan(3), 4, Bend::default());
    let written = text(&log);
    let back = read(&written).unwrap();
    assert_eq!(back, log);
    assert_eq!(text(&back), written);
    let lines = written.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines, log.records().len() + 2);
}

#[test]
fn a_log_cut_anywhere_is_refused_as_truncated() {
    let whole = text(&log(&plan(3), 1, Bend::default()));
    let lines: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').collect();
    let inside = lines.iter().map(|at| at + 7).filter(|at| *at < whole.len());
    for cut in lines[..lines.len() - 1].iter().map(|at| at + 1).chain(inside).chain([0, 10]) {
        match read(&whole[..cut]) {
            Err(LogError::Truncated { expected: None, .. }) => {}
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
    let error = read(&whole[..lines[3] + 1]).unwrap_err().to_string();
    assert!(
        error.starts_with("log `run.log` is truncated: it ends at line 4 with 3 records and no end line"),
        "{error}"
    );
}

#[test]
fn a_missing_line_shows_in_the_count() {
    let whole = String::from_utf8(text(&log(&plan(3), 1, Bend::default()))).unwrap();
    let mut lines: Vec<&str> = whole.lines().collect();
    lines.remove(5);
    let error = read(lines.join("\n").as_bytes()).unwrap_err();
    let LogError::Truncated { found, expected: Some(expected), .. } = error else { panic!("{error:?}") };
    assert_eq!(expected, found + 1);
}

#[test]
fn another_schema_is_named_even_if_nothing_else_is_known() {
    let error = read(b"{\"schema\":9,\"unheard\":[]}\n").unwrap_err();
    assert!(matches!(error, LogError::Schema { found: 9, .. }), "{error:?}");
    assert!(error.to_string().contains("schema 9, this version reads schema 1"), "{error}");
}

#[test]
fn a_line_that_is_no_json_is_named_with_its_number() {
    let whole = String::from_utf8(text(&log(&plan(3), 1, Bend::default()))).unwrap();
    let mut lines: Vec<&str> = whole.lines().collect();
    lines[7] = "{\"at\":12,\"inpu";
    let error = read(lines.join("\n").as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::Parse { line: 8, .. }), "{error:?}");
}

#[test]
fn a_key_that_no_record_has_is_named_wherever_it_is() {
    let whole = String::from_utf8(text(&log(&plan(3), 1, Bend::default()))).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    for (at, line) in lines.iter().enumerate().take(lines.len() - 1).skip(1) {
        let innermost = line.rfind('{').unwrap() + 1;
        for place in [1, innermost] {
            let added = format!("{}\"sent\":1,{}", &line[..place], &line[place..]).replace(",}", "}");
            let mut edited = lines.clone();
            edited[at] = &added;
            let error = read(edited.join("\n").as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("line {}", at + 1)) && error.contains("`sent`"), "{added}: {error}");
        }
    }
    let spaced = whole.replace("\":", "\" : ");
    assert!(read(spaced.as_bytes()).is_ok(), "spaces are no keys");
}

#[test]
fn records_that_name_what_the_plan_lacks_are_refused_before_anything_indexes() {
    let (header, records) = run(&plan(3), 1, Bend::default());
    let refused = |what: RecordBody| {
        let mut records = records.clone();
        records[4].what = what;
        let error = RunLog::new(header.clone(), records, "run.log").unwrap_err();
        assert!(matches!(error, LogError::Check { line: Some(6), .. }), "{error:?}");
    };
    refused(RecordBody::Action(DispatchAction::Deliver { pipeline: 3, cycle: 0 }));
    refused(RecordBody::Action(DispatchAction::Deliver { pipeline: 0, cycle: 1 }));
    refused(RecordBody::Event(DispatchEvent::Missed { stream: 0, packet: u64::MAX, by: Nanos(1) }));
    refused(RecordBody::Event(DispatchEvent::Complete { pipeline: 0, cycle: 0, step: 3 }));
    refused(RecordBody::Input(DispatchInput::Done { operation: 0, started: Nanos(0), finished: Nanos::MAX }));
    let mut far = header.clone();
    far.plan.pipelines[0].period = Nanos(u64::MAX / 2);
    assert!(matches!(RunLog::new(far, records.clone(), "run.log"), Err(LogError::Check { line: None, .. })));
    let mut lost = header.clone();
    lost.plan.pipelines[0].steps[0].server = 99;
    assert!(matches!(RunLog::new(lost, records, "run.log"), Err(LogError::Check { line: None, .. })));
}

#[test]
fn errors_of_the_output_are_returned() {
    #[derive(Debug)]
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (header, records) = run(&plan(3), 1, Bend::default());
    let mut writer = LogWriter::new(Full, &header).unwrap();
    for record in &records {
        if writer.record(record).is_err() {
            return;
        }
    }
    assert_eq!(writer.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
}
