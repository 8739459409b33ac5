//! Task sets of other tools: import to workload files, export from them. What a format cannot say is refused.

mod jobs;
mod tables;
#[cfg(test)]
mod tests;
mod write;
mod xml;
mod yaml;

use std::fs;
use std::path::Path;

use headway_core::analysis::schedulability::UndecidedReason;
use headway_core::files::workload::{ServerDemand, Workload, WorkloadError};
use headway_core::units::{Nanos, UnitError};
use serde::Serialize;

use crate::Error;

/// A format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileFormat {
    /// Job sets of the schedule-abstraction analysis, one job a line.
    Jobs,
    /// Job sets of the schedule-abstraction analysis, in YAML.
    JobsYaml,
    /// Task sets of SchedCAT.
    Schedcat,
    /// Configurations of SimSo.
    Simso,
    /// Lines of `taskid,workload,period,wcet`.
    Tasks,
    /// Latency targets of MLPerf: `model.scenario.key = value`.
    Mlperf,
}

impl FileFormat {
    /// What the command line calls them.
    pub const WORDS: &[(&str, Self)] = &[
        ("jobs", Self::Jobs),
        ("jobs-yaml", Self::JobsYaml),
        ("schedcat", Self::Schedcat),
        ("simso", Self::Simso),
        ("tasks", Self::Tasks),
        ("mlperf", Self::Mlperf),
    ];

    /// Those that can be written.
    pub const EXPORTS: &[(&str, Self)] =
        &[("jobs", Self::Jobs), ("jobs-yaml", Self::JobsYaml), ("schedcat", Self::Schedcat), ("simso", Self::Simso)];
}

/// What a file of another tool leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// Length of one unit of time. Needed by `schedcat` and `tasks`; nanoseconds for `jobs`; the others count in
    /// milliseconds.
    pub unit: Option<Nanos>,
    /// After what time the jobs of a file repeat: the period of tasks with one job.
    pub window: Option<Nanos>,
    /// Cost of a query, which MLPerf does not say.
    pub cost: Option<Nanos>,
    /// The server that all tasks compete for.
    pub server: Option<String>,
    /// Name of the workload.
    pub name: Option<String>,
}

/// A workload made from a file of another tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// Version of the JSON form.
    pub schema: u32,
    /// The workload file.
    pub workload: String,
    /// Demands in it.
    pub demands: usize,
    /// What a reader must know: what was left out since it changes no verdict.
    pub notes: Vec<String>,
}

/// How a workload is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Length of one unit of time; nanoseconds without. SimSo always counts in milliseconds.
    pub unit: Option<Nanos>,
    /// The server whose demands are written, where the workload has several.
    pub server: Option<String>,
}

/// A file for another tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// Version of the JSON form.
    pub schema: u32,
    pub text: String,
    /// What a reader must know: the window, which number stands for which demand.
    pub notes: Vec<String>,
}

/// Why a file was not imported or exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Longer than anything that is read.
    #[error("the file has {bytes} bytes; at most {BYTES_MAX} are read: split it")]
    Size { bytes: usize },
    /// Not comma-separated values of equal width.
    #[error("not a table of comma-separated values")]
    ReadTable(#[from] csv::Error),
    /// Not XML.
    #[error("not XML")]
    ReadXml(#[from] roxmltree::Error),
    /// Not YAML.
    #[error("not YAML")]
    ReadYaml(#[from] saphyr_parser::ScanError),
    /// The columns are others.
    #[error("the columns are `{found}`; write `{expected}`")]
    Columns {
        /// What the format has.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A value is not of its kind.
    #[error("{place}: `{value}` is not {expected}")]
    Value {
        place: String,
        /// What stands there.
        value: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// A time is no whole number of nanoseconds.
    #[error("{place}: the time cannot be read")]
    Time {
        place: String,
        /// What went wrong with it.
        source: UnitError,
    },
    /// Something is not there.
    #[error("{place} has no {what}; add it")]
    Missing { place: String, what: &'static str },
    /// Something is there twice.
    #[error("{what} is there twice; keep one")]
    Twice { what: String },
    /// The target has no words for it.
    #[error("{place}: {what} cannot be said there; {instead}")]
    CannotSay {
        place: String,
        what: &'static str,
        /// What to do about it.
        instead: &'static str,
    },
    /// The format leaves something open.
    #[error("the format does not say {what}; give it with `{flag}`")]
    Open {
        what: &'static str,
        /// The argument of the command line.
        flag: &'static str,
    },
    /// A choice that the format does not have.
    #[error("the format counts in {unit}; leave out `--unit`")]
    Unit { unit: &'static str },
    /// A unit of time that is nothing.
    #[error("`--unit` is zero: say how long one unit of the file is, for example `1 us`")]
    ZeroUnit,
    /// The workload has no demands on the server.
    #[error("there is no server `{server}` with demands; choose one of: {known}")]
    NoServer {
        server: String,
        /// Those that exist.
        known: String,
    },
    /// The workload has several servers.
    #[error("demands of several servers cannot be said in one file; choose one with `--server`: {known}")]
    Servers {
        /// Those that exist.
        known: String,
    },
    /// No finite window stands for the endless schedule.
    #[error("no window stands for all of the schedule")]
    Window(#[source] UndecidedReason),
    /// The tasks demand more than the server gives.
    #[error(
        "the demands ask for more than the whole server: no window stands for all of the schedule; lower their costs"
    )]
    Overload,
    /// Too many jobs.
    #[error("the window has more than {max} jobs; use harmonic periods")]
    Jobs {
        /// The most that is written.
        max: usize,
    },
    /// The demands do not make up a workload.
    #[error("the tasks do not make up a workload that Headway reads")]
    Workload(#[source] WorkloadError),
}

/// The most that is read.
const BYTES_MAX: usize = 64 << 20;
/// The most jobs that are written.
const JOBS_MAX: usize = 1_000_000;

/// Demands and what a reader must know of them.
type Demands = (Vec<ServerDemand>, Vec<String>);

/// Makes a workload from the text of another tool's file.
///
/// # Errors
/// [`FormatError`] where the text is not of the format, and for everything in it that a workload file cannot say and that
/// would change what must be guaranteed.
pub fn import(format: FileFormat, text: &str, options: &Import) -> Result<Imported, FormatError> {
    if text.len() > BYTES_MAX {
        return Err(FormatError::Size { bytes: text.len() });
    }
    if options.unit == Some(Nanos(0)) {
        return Err(FormatError::ZeroUnit);
    }
    let needed = || options.unit.ok_or(FormatError::Open { what: "its unit of time", flag: "--unit" });
    let milliseconds = || match options.unit {
        Some(_) => Err(FormatError::Unit { unit: "milliseconds" }),
        None => Ok(()),
    };
    let (mut demands, notes) = match format {
        FileFormat::Jobs | FileFormat::JobsYaml => {
            let set = if format == FileFormat::Jobs { jobs::read_jobs(text)? } else { yaml::read(text)? };
            jobs::demands(&set, options.unit.unwrap_or(Nanos(1)), options.window)?
        }
        FileFormat::Schedcat => xml::read_schedcat(text, needed()?)?,
        FileFormat::Simso => {
            milliseconds()?;
            xml::read_simso(text)?
        }
        FileFormat::Tasks => tables::read_tasks(text, needed()?)?,
        FileFormat::Mlperf => {
            milliseconds()?;
            tables::read_mlperf(text, options.cost)?
        }
    };
    for demand in &mut demands {
        demand.server = write::name(options.server.as_deref().unwrap_or("engine"));
    }
    let name = write::workload_name(options.name.as_deref().unwrap_or("imported"));
    let text = write::workload(&name, &demands);
    let workload = Workload { demands, ..Workload::new(&name) };
    workload.check().map_err(FormatError::Workload)?;
    Ok(Imported { schema: 1, workload: text, demands: workload.demands.len(), notes })
}

/// Writes the demands of one server for another tool.
///
/// # Errors
/// [`FormatError`] for everything in the workload that the format cannot say.
pub fn export(format: FileFormat, workload: &Workload, options: &Export) -> Result<Exported, FormatError> {
    let (demands, mut notes) = write::chosen(workload, options.server.as_deref())?;
    let unit = options.unit.filter(|unit| unit.0 > 0).unwrap_or(Nanos(1));
    let text = match format {
        FileFormat::Jobs | FileFormat::JobsYaml => {
            let set = write::jobs(&demands, unit, &mut notes)?;
            if format == FileFormat::Jobs { jobs::write_jobs(&set) } else { yaml::write(&set) }
        }
        FileFormat::Schedcat => xml::write_schedcat(&demands, unit)?,
        FileFormat::Simso if options.unit.is_some() => return Err(FormatError::Unit { unit: "milliseconds" }),
        FileFormat::Simso => xml::write_simso(&demands, &mut notes),
        FileFormat::Tasks | FileFormat::Mlperf => {
            let (place, what) = ("the format".to_owned(), "deadlines and costs of demands");
            return Err(FormatError::CannotSay { place, what, instead: "export to `jobs`, `schedcat` or `simso`" });
        }
    };
    Ok(Exported { schema: 1, text, notes })
}

/// [`import`] from a file.
///
/// # Errors
/// [`headway::ErrorKind::Io`], [`Error::Import`].
pub fn import_file(path: &Path, format: FileFormat, options: &Import) -> Result<Imported, Error> {
    let text = fs::read_to_string(path)
        .map_err(|source| headway::Error::from(headway::Failure::Read { path: path.to_owned(), source }))?;
    import(format, &text, options).map_err(|source| Error::Import { path: path.to_owned(), source: Box::new(source) })
}

/// [`export`] of a workload file.
///
/// # Errors
/// [`headway::ErrorKind::Io`], [`headway::ErrorKind::File`], [`Error::Export`].
pub fn export_file(path: &Path, format: FileFormat, options: &Export) -> Result<Exported, Error> {
    let workload = headway::workload::open(path)?.value;
    export(format, &workload, options)
        .map_err(|source| Error::Export { path: path.to_owned(), source: Box::new(source) })
}

/// Writes a result into a new file; one that is there stays unless `force`, and then until the new one is written.
///
/// # Errors
/// [`Error::Exists`], [`headway::ErrorKind::Io`].
pub fn save(path: &Path, text: &str, force: bool) -> Result<(), Error> {
    if path.exists() && !force {
        return Err(Error::Exists { path: path.to_owned() });
    }
    let failed = |source| headway::Failure::Write { path: path.to_owned(), source };
    if !path.metadata().is_ok_and(|about| about.is_file()) {
        // New, or a device such as `/dev/stdout`.
        return Ok(fs::write(path, text).map_err(failed)?);
    }
    // Through a link to the file itself, whose name stays.
    let path = path.canonicalize().map_err(failed)?;
    let mut partial = path.clone().into_os_string();
    partial.push(format!(".partial-{}", std::process::id()));
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, &path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    Ok(written.map_err(failed)?)
}

/// `count` units as nanoseconds.
fn time(place: &str, count: u64, unit: Nanos) -> Result<Nanos, FormatError> {
    let source = || UnitError::TooLarge { text: count.to_string() };
    let nanos = count.checked_mul(unit.0).ok_or_else(source);
    nanos.map(Nanos).map_err(|source| FormatError::Time { place: place.to_owned(), source })
}

/// A decimal number of milliseconds.
fn milliseconds(place: &str, text: &str) -> Result<Nanos, FormatError> {
    format!("{} ms", text.trim()).parse().map_err(|source| FormatError::Time { place: place.to_owned(), source })
}

fn integer(place: &str, text: &str) -> Result<u64, FormatError> {
    text.trim().parse().map_err(|_| FormatError::Value {
        place: place.to_owned(),
        value: excerpt(text),
        expected: "a whole number from 0 to 18446744073709551615",
    })
}

/// The begin of what a file says, short enough for an error.
fn excerpt(text: &str) -> String {
    text.trim().chars().take(60).collect()
}
