//! Logs: of runs, of tasks that share GPUs, of brokers, and of guests.

use std::io;

use headway_core::files::guest_log::GuestLogLine;
use headway_trace::broker::BrokerLog;
use headway_trace::guest::GuestLog;
use headway_trace::sharing::TaskLog;
use headway_trace::{LogError, LogWriter, RunLog, broker, guest, page, perfetto, replay, sharing, summary};

/// Reads one log by the reader of each kind: the first line tells them apart.
pub(crate) fn cross(bytes: &[u8]) {
    match RunLog::read(bytes, "fuzz") {
        Ok(log) => check_run(&log),
        Err(error) => check_error(&error, bytes),
    }
    match TaskLog::read(bytes, "fuzz") {
        Ok(log) => check_tasks(&log),
        Err(error) => check_error(&error, bytes),
    }
    match BrokerLog::read(bytes, "fuzz") {
        Ok(log) => {
            // Whether the decisions are those of the log is another question.
            let _ = broker::replay(&log);
            check_tasks(&broker::jobs(&log));
        }
        Err(error) => check_error(&error, bytes),
    }
}

pub(crate) fn cross_guest(bytes: &[u8]) {
    let log = match GuestLog::read(bytes, "fuzz") {
        Ok(log) => log,
        Err(error) => return check_error(&error, bytes),
    };
    let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
    assert!(log.copies.len() as u64 + log.torn < lines, "{} copies and {} torn of {lines}", log.copies.len(), log.torn);
    let summary = guest::summarize(&log);
    assert!(!summary.table().is_empty());
    guest::write_page(&log, io::sink()).expect("a sink takes everything");
    for copy in &log.copies {
        let line = serde_json::to_string(&GuestLogLine::Copy(*copy)).expect("a line has a form in JSON");
        assert_eq!(serde_json::from_str::<GuestLogLine>(&line).expect("what was written"), GuestLogLine::Copy(*copy));
    }
}

fn check_run(log: &RunLog) {
    let mut writer = LogWriter::new(Vec::new(), log.header()).expect("memory takes everything");
    for record in log.records() {
        writer.record(record).expect("memory takes everything");
    }
    let written = writer.finish_early(log.incomplete().cloned(), log.omitted()).expect("memory takes everything");
    let again = RunLog::read(written.as_slice(), "written").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(&again, log);
    let summary = summary::summarize(log);
    page::write(log, &summary, io::sink()).expect("a sink takes everything");
    let excerpt = headway_trace::excerpt::Excerpt::new(log, headway_trace::timeline::Timeline::new(log), 1_000);
    perfetto::write_excerpt(log, &excerpt, io::sink()).expect("a sink takes everything");
    // Whether the decisions are those of the log is another question.
    let _ = replay::replay(log);
}

fn check_tasks(log: &TaskLog) {
    let mut written = Vec::new();
    log.write(&mut written).expect("memory takes everything");
    let again = TaskLog::read(written.as_slice(), "written").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(&again, log);
    let summary = sharing::summarize(log);
    assert!(!summary.table().is_empty());
    sharing::write_page(log, &summary, io::sink()).expect("a sink takes everything");
    sharing::write_trace(log, io::sink()).expect("a sink takes everything");
}

/// The error names a line of the log.
fn check_error(error: &LogError, bytes: &[u8]) {
    let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
    let line = match error {
        LogError::Read { line, .. } | LogError::Parse { line, .. } => *line,
        LogError::Truncated { line, .. } => (*line).max(1),
        LogError::Check { line, .. } => line.unwrap_or(1),
        _ => 1,
    };
    assert!((1..=lines).contains(&line), "line {line} of {lines}: {error}");
    assert!(!error.to_string().is_empty());
}
