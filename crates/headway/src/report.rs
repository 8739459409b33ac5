//! Reads logs again: replays them, sums them up, draws trace and page.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use headway_core::sharing::log::Line;
use headway_runtime::outlet::{MARK, Outlet, OutputError};
use headway_trace::replay::{Replayed, replay as replay_log};
use headway_trace::summary::{self, Summary};
use headway_trace::{Log, broker, page, perfetto, sharing};
use serde::Serialize;

use crate::Error;

/// Lines that are looked at for the first with anything in it.
const FIRST_LINES: usize = 4;

/// Name of the Perfetto trace inside the results.
pub use headway_runtime::outlet::TRACE;
/// Name of the page inside the results.
pub const PAGE: &str = "page.html";

/// Reads a log, or the log of a folder of results.
///
/// # Errors
/// [`Error::Read`], [`Error::Log`].
pub fn open(path: &Path) -> Result<Log, Error> {
    let path = if path.is_dir() { path.join("run.jsonl") } else { path.to_owned() };
    let file = File::open(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    Ok(Log::read(BufReader::new(file), &path.display().to_string())?)
}

/// Feeds a log to a new dispatcher; it must do the same, byte for byte.
///
/// # Errors
/// [`Error::Replay`] at the first difference, and what [`open`] gives.
pub fn replay(path: &Path) -> Result<Replayed, Error> {
    Ok(replay_log(&open(path)?)?)
}

/// Sums a log up; with a folder, writes summary, trace and page there.
///
/// # Errors
/// [`Error::Output`], and what [`open`] gives.
pub fn report(path: &Path, out: Option<&Path>) -> Result<(Summary, Option<PathBuf>), Error> {
    let log = open(path)?;
    let summary = summary::summarize(&log);
    let folder = match out {
        None => None,
        Some(out) => {
            let outlet = Outlet::create(out)?;
            write(&outlet, &log, &summary)?;
            outlet.write(MARK, &json(&summary))?;
            Some(outlet.publish()?)
        }
    };
    Ok((summary, folder))
}

/// Writes trace and page.
pub(crate) fn write(outlet: &Outlet, log: &Log, summary: &Summary) -> Result<(), Error> {
    for name in [TRACE, PAGE] {
        let path = outlet.place().join(name);
        let mut file = outlet.file(name)?;
        let written =
            if name == TRACE { perfetto::write(log, &mut file) } else { page::write(log, summary, &mut file) };
        written.map_err(|source| OutputError::Write { path, source })?;
        file.finish()?;
    }
    Ok(())
}

/// Writes trace and page of tasks that share GPUs.
pub(crate) fn write_sharing(outlet: &Outlet, log: &sharing::Log, summary: &sharing::Summary) -> Result<(), Error> {
    for name in [TRACE, PAGE] {
        let path = outlet.place().join(name);
        let mut file = outlet.file(name)?;
        let written = if name == TRACE {
            sharing::write_trace(log, &mut file)
        } else {
            sharing::write_page(log, summary, &mut file)
        };
        written.map_err(|source| OutputError::Write { path, source })?;
        file.finish()?;
    }
    Ok(())
}

/// The log of tasks that share GPUs at `path`, or in a folder of results, or what the log of a broker tells of them; `None` if it
/// is another log.
///
/// # Errors
/// [`Error::Read`], [`Error::Log`].
pub fn open_sharing(path: &Path) -> Result<Option<sharing::Log>, Error> {
    if let Some(log) = open_broker(path)? {
        return Ok(Some(broker::jobs(&log)));
    }
    let path = if path.is_dir() { path.join("run.jsonl") } else { path.to_owned() };
    let open = || File::open(&path).map_err(|source| Error::Read { path: path.clone(), source });
    let mut first = String::new();
    let read = BufReader::new(open()?).read_line(&mut first);
    // What is no text is no log of any kind; whoever reads it as one says so.
    if read.is_err() || !sharing::Log::begins(&first) {
        return Ok(None);
    }
    Ok(Some(sharing::Log::read(BufReader::new(open()?), &path.display().to_string())?))
}

/// The log of a broker at `path`; `None` if it is another log.
///
/// # Errors
/// [`Error::Read`], [`Error::Log`].
pub fn open_broker(path: &Path) -> Result<Option<broker::Log>, Error> {
    if path.is_dir() || !begins_broker(path)? {
        return Ok(None);
    }
    let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Ok(Some(broker::Log::read(BufReader::new(file), &path.display().to_string())?))
}

/// Whether the first line with anything in it is one of a broker.
fn begins_broker(path: &Path) -> Result<bool, Error> {
    let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let lines = BufReader::new(file).lines().take(FIRST_LINES);
    // What is no text is no log of any kind; whoever reads it as one says so.
    let first = lines.map_while(Result::ok).find(|line| !line.trim().is_empty());
    Ok(first.is_some_and(|line| Line::begins(&line)))
}

/// Makes the decisions of a broker's log again.
///
/// # Errors
/// [`Error::ReplayBroker`] at the first difference.
pub fn replay_broker(log: &broker::Log) -> Result<broker::Replayed, Error> {
    Ok(broker::replay(log)?)
}

/// Sums a log of tasks up; with a folder, writes summary, trace and page there.
///
/// # Errors
/// [`Error::Output`].
pub fn report_sharing(log: &sharing::Log, out: Option<&Path>) -> Result<(sharing::Summary, Option<PathBuf>), Error> {
    let summary = sharing::summarize(log);
    let folder = match out {
        None => None,
        Some(out) => {
            let outlet = Outlet::create(out)?;
            write_sharing(&outlet, log, &summary)?;
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
