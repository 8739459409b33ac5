//! Reads logs again: replays them, sums them up, draws trace and page.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use headway_core::decisions::broker::log::BrokerLogLine;
use headway_os::input::open_again;
use headway_runtime::outlet::{MARK, OutFile, Outlet, OutputError};
use headway_trace::excerpt::Excerpt;
pub use headway_trace::replay::ReplayedRun;
use headway_trace::replay::replay as replay_log;
use headway_trace::summary;
pub use headway_trace::summary::RunSummary;
use headway_trace::timeline::Timeline;
use headway_trace::{RunLog, broker, guest, page, perfetto, sharing};
use serde::Serialize;

/// The log of a broker.
pub use headway_trace::broker::{BrokerLog, ReplayedBroker};
/// The log of a guest.
pub use headway_trace::guest::GuestLog;
/// The log of tasks that share GPUs.
pub use headway_trace::sharing::TaskLog;

use crate::{Error, Failure, logfile};

/// Lines that are looked at for the first with anything in it.
const FIRST_LINES: usize = 4;

/// Names of page and Perfetto trace inside the results.
pub use headway_runtime::outlet::{PAGE, TRACE};

/// Reads a log, or the log of a folder of results.
///
/// # Errors
/// `ErrorKind::Io`, `ErrorKind::Log`.
pub fn open(path: &Path) -> Result<RunLog, Error> {
    let (input, path) = logfile::open(path)?;
    Ok(RunLog::read(input, &path.display().to_string())?)
}

/// Feeds a log to a new dispatcher; it must do the same, byte for byte.
///
/// # Errors
/// `ErrorKind::Replay` at the first difference, and what [`open`] gives.
pub fn replay(path: &Path) -> Result<ReplayedRun, Error> {
    Ok(replay_log(&open(path)?)?)
}

/// Sums a log up; with a folder, writes summary, page and trace there; the trace shows `traced` operations and
/// packets at most.
///
/// # Errors
/// `ErrorKind::Io`, `ErrorKind::Log` for a log that lacks records, and what [`open`] gives.
pub fn report(path: &Path, out: Option<&Path>, traced: u64) -> Result<(RunSummary, Option<PathBuf>), Error> {
    let log = open(path)?;
    if log.omitted() > 0 {
        return Err(
            Failure::CutLog { path: path.to_owned(), records: log.records().len(), omitted: log.omitted() }.into()
        );
    }
    let mut summary = summary::summarize(&log);
    let folder = match out {
        None => None,
        Some(out) => {
            let outlet = Outlet::create_report(out)?;
            summary = draw(&outlet, &log, traced, Vec::new())?;
            outlet.write(MARK, &json(&summary))?;
            Some(outlet.publish()?)
        }
    };
    Ok((summary, folder))
}

/// Writes trace and page. The trace shows `traced` operations and packets at most; the page bounds itself. Returns the summary of
/// the whole log, which says what was `left_out` before and what the trace leaves out.
pub(crate) fn draw(outlet: &Outlet, log: &RunLog, traced: u64, left_out: Vec<String>) -> Result<RunSummary, Error> {
    let timeline = Timeline::new(log);
    let mut summary = summary::summarize_with(log, &timeline);
    let excerpt = Excerpt::new(log, timeline, traced);
    summary.left_out = left_out;
    summary.left_out.extend(excerpt.left_out().map(str::to_owned));
    put(outlet, TRACE, |file| perfetto::write_excerpt(log, &excerpt, file))?;
    put(outlet, PAGE, |file| page::write(log, &summary, file))?;
    Ok(summary)
}

/// Writes trace and page of tasks that share GPUs. The trace shows `traced` jobs and spans at most; the page bounds itself.
/// Returns the summary of the whole log, which says what the trace leaves out.
pub(crate) fn draw_sharing(outlet: &Outlet, log: &TaskLog, traced: u64) -> Result<sharing::SharingSummary, Error> {
    let mut summary = sharing::summarize(log);
    let excerpt = log.excerpt(traced);
    summary.left_out.extend(excerpt.as_ref().map(|(_, left_out)| left_out.clone()));
    let part = excerpt.as_ref().map_or(log, |(part, _)| part);
    put(outlet, TRACE, |file| sharing::write_trace(part, file))?;
    put(outlet, PAGE, |file| sharing::write_page(log, &summary, file))?;
    Ok(summary)
}

/// Writes one file of the results.
fn put(outlet: &Outlet, name: &str, write: impl FnOnce(&mut OutFile) -> io::Result<()>) -> Result<(), Error> {
    let mut file = outlet.file(name)?;
    write(&mut file).map_err(|source| OutputError::Write { path: outlet.place().join(name), source })?;
    file.finish()?;
    Ok(())
}

/// The log of tasks that share GPUs at `path`, or in a folder of results, or what the log of a broker tells of them; `None` if it
/// is another log.
///
/// # Errors
/// `ErrorKind::Io`, `ErrorKind::Log`.
pub fn open_sharing(path: &Path) -> Result<Option<TaskLog>, Error> {
    if let Some(log) = open_broker(path)? {
        return Ok(Some(broker::jobs(&log)));
    }
    let mut first = String::new();
    let read = logfile::open(path)?.0.read_line(&mut first);
    // What is no text is no log of any kind; whoever reads it as one says so.
    if read.is_err() || !TaskLog::begins(&first) {
        return Ok(None);
    }
    let (input, path) = logfile::open(path)?;
    Ok(Some(TaskLog::read(input, &path.display().to_string())?))
}

/// The log of a guest at `path`; `None` if it is another log.
///
/// # Errors
/// `ErrorKind::Io`, `ErrorKind::Log`.
pub fn open_guest(path: &Path) -> Result<Option<GuestLog>, Error> {
    let mut first = String::new();
    let read = logfile::open(path)?.0.read_line(&mut first);
    // What is no text is no log of any kind; whoever reads it as one says so.
    if read.is_err() || !GuestLog::begins(&first) {
        return Ok(None);
    }
    let (input, path) = logfile::open(path)?;
    Ok(Some(GuestLog::read(input, &path.display().to_string())?))
}

/// Sums a guest's log up.
#[must_use]
pub fn report_guest(log: &GuestLog) -> guest::GuestSummary {
    guest::summarize(log)
}

/// Writes summary and page of a guest's log into a folder.
///
/// # Errors
/// `ErrorKind::Io`.
pub fn draw_guest(log: &GuestLog, out: &Path) -> Result<PathBuf, Error> {
    let outlet = Outlet::create_report(out)?;
    put(&outlet, PAGE, |file| guest::write_page(log, file))?;
    outlet.write(MARK, &json(&guest::summarize(log)))?;
    Ok(outlet.publish()?)
}

/// The log of a broker at `path`; `None` if it is another log.
///
/// # Errors
/// `ErrorKind::Io`, `ErrorKind::Log`.
pub fn open_broker(path: &Path) -> Result<Option<BrokerLog>, Error> {
    if path.is_dir() || !begins_broker(path)? {
        return Ok(None);
    }
    let file = open_again(path).map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    Ok(Some(BrokerLog::read(logfile::Lines::new(BufReader::new(file)), &path.display().to_string())?))
}

/// Whether the first line with anything in it is one of a broker.
fn begins_broker(path: &Path) -> Result<bool, Error> {
    let file = open_again(path).map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    let lines = logfile::Lines::new(BufReader::new(file)).lines().take(FIRST_LINES);
    // What is no text is no log of any kind; whoever reads it as one says so.
    let first = lines.map_while(Result::ok).find(|line| !line.trim().is_empty());
    Ok(first.is_some_and(|line| BrokerLogLine::begins(&line)))
}

/// Makes the decisions of a broker's log again.
///
/// # Errors
/// `ErrorKind::Replay` at the first difference.
pub fn replay_broker(log: &BrokerLog) -> Result<ReplayedBroker, Error> {
    Ok(broker::replay(log)?)
}

/// Sums a log of tasks up; with a folder, writes summary, trace and page there.
///
/// # Errors
/// `ErrorKind::Io`.
pub fn report_sharing(
    log: &TaskLog,
    out: Option<&Path>,
    traced: u64,
) -> Result<(sharing::SharingSummary, Option<PathBuf>), Error> {
    let mut summary = sharing::summarize(log);
    let folder = match out {
        None => None,
        Some(out) => {
            let outlet = Outlet::create_report(out)?;
            summary = draw_sharing(&outlet, log, traced)?;
            outlet.write(MARK, &json(&summary))?;
            Some(outlet.publish()?)
        }
    };
    Ok((summary, folder))
}

/// Pretty JSON with a newline at the end.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("plans and summaries have only string keys");
    text.push(b'\n');
    text
}
