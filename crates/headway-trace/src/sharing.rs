//! What a run of tasks that share GPUs did: its log, which job waited for which, the figures, a trace and a page.
//!
//! A log is lines of JSON: a [`TaskLogHeader`], then one [`CompletedJob`] a line in the order of completion, then their number. A job's
//! [`JobSpan`]s say what it did or waited for, in order and without overlap; culprits are not logged but follow from the spans of
//! the others ([`waits`]).

mod page;
mod summary;
mod table;
mod trace;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufWriter, Write};

use headway_core::log::{Incomplete, RunSource};
use headway_core::plan::Named;
use headway_core::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

pub use self::page::write as write_page;
pub use self::summary::{EngineFigures, SharingSummary, SharingVerdict, TaskFigures, WaitFigures, summarize};
pub use self::trace::write as write_trace;
use crate::LogError;
use crate::excerpt::Weights;

/// Version of the log's and the summary's JSON form.
pub const SCHEMA: u32 = 1;
/// What the header calls such a log.
pub const KIND: &str = "sharing";

/// First line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLogHeader {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Always `sharing`.
    pub kind: String,
    /// What produced the times.
    pub source: RunSource,
    /// Version of Headway.
    pub version: String,
    /// Commit it was built from, or `unknown`.
    pub commit: String,
    /// Seed of the run.
    pub seed: u64,
    /// The workload file.
    pub workload: Named,
    /// The machine file.
    pub machine: Named,
    /// GPUs shared, by name; jobs name them by position.
    pub gpus: Vec<String>,
    /// CPUs that tokens are given for.
    pub cpus: u32,
    pub tokens_per_gpu: u32,
    /// How tokens are given, in words.
    pub mode: String,
    /// Whether each engine has a lock.
    pub engine_locks: bool,
    /// The tasks; jobs name them by position.
    pub tasks: Vec<TaskHead>,
    /// What the bounds rest on.
    pub notes: Vec<String>,
}

/// A task and what its jobs may be kept waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskHead {
    pub id: String,
    pub period: Nanos,
    /// Bounds; `None` where nothing is known.
    pub bound: Option<JobBounds>,
}

/// Longest waits of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobBounds {
    /// For a token.
    pub token: Nanos,
    /// For engines, all together.
    pub engines: Nanos,
    /// For both.
    pub blocking: Nanos,
}

/// A job that is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletedJob {
    /// Position of its task.
    pub task: u32,
    pub job: u64,
    pub release: Nanos,
    /// The later of its release and its predecessor's end.
    pub start: Nanos,
    /// Absolute deadline.
    pub deadline: Nanos,
    pub done: Nanos,
    /// When it had a token, and when it gave it back.
    pub held: [Nanos; 2],
    /// Position of its GPU.
    pub gpu: u32,
    /// Where its state was, if elsewhere.
    pub from: Option<u32>,
    /// Waits that the analysis bounds: for the token, for engines.
    pub blocked: [Nanos; 2],
    /// What it did and waited for.
    pub spans: Vec<JobSpan>,
}

/// What a job does for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doing {
    /// Ready, but others have the CPUs.
    CpuWait,
    /// On a CPU.
    Cpu,
    /// Waits for a token.
    TokenWait,
    /// Waits for an engine.
    EngineWait,
    /// The notice of a grant is on its way to it.
    HandOver,
    /// Its copy runs.
    Copy,
    /// Its kernels run.
    Execute,
}

impl Doing {
    /// As people say it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::CpuWait => "waits for a CPU",
            Self::Cpu => "on a CPU",
            Self::TokenWait => "waits for a token",
            Self::EngineWait => "waits for an engine",
            Self::HandOver => "hand-over",
            Self::Copy => "copies",
            Self::Execute => "executes",
        }
    }
}

/// An engine of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuEngine {
    /// Position of the GPU.
    pub gpu: u32,
    /// Which of its engines.
    pub unit: Unit,
}

/// Engines of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Ee,
    /// Copies in, or all copies where there is one copy engine.
    H2d,
    /// Copies out.
    D2h,
}

/// A part of a job's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpan {
    pub doing: Doing,
    /// From when.
    pub begin: Nanos,
    pub end: Nanos,
    /// The engines: one, or two for a copy between GPUs.
    #[serde(default, skip_serializing_if = "engineless")]
    pub engines: [Option<GpuEngine>; 2],
    /// Bytes of a copy.
    #[serde(default, skip_serializing_if = "nothing")]
    pub bytes: Bytes,
}

fn engineless(engines: &[Option<GpuEngine>; 2]) -> bool {
    engines.iter().all(Option::is_none)
}

fn nothing(bytes: &Bytes) -> bool {
    bytes.0 == 0
}

impl JobSpan {
    /// How long.
    #[must_use]
    pub fn time(&self) -> Nanos {
        self.end.saturating_sub(self.begin)
    }
}

impl TaskLogHeader {
    /// An engine's name.
    #[must_use]
    pub fn engine(&self, engine: GpuEngine) -> String {
        let unit = match engine.unit {
            Unit::Ee => "ee",
            Unit::H2d => "h2d",
            Unit::D2h => "d2h",
        };
        let gpu = self.gpus.get(engine.gpu as usize).cloned().unwrap_or_else(|| format!("gpu{}", engine.gpu));
        format!("{gpu}.{unit}")
    }

    /// A task's name.
    #[must_use]
    pub fn task(&self, task: u32) -> &str {
        self.tasks.get(task as usize).map_or("?", |task| &task.id)
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskLog {
    /// What was run.
    pub header: TaskLogHeader,
    /// Its jobs, in the order of completion.
    pub jobs: Vec<CompletedJob>,
    /// Why it ended before its last job; `None` = it did not.
    pub incomplete: Option<Incomplete>,
}

/// Last line of a log.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    jobs: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incomplete: Option<Incomplete>,
}

impl TaskLog {
    /// Whether a first line begins such a log.
    #[must_use]
    pub fn begins(line: &str) -> bool {
        #[derive(Deserialize)]
        struct Kind {
            kind: String,
        }
        serde_json::from_str::<Kind>(line).is_ok_and(|header| header.kind == KIND)
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 16, out);
        serde_json::to_writer(&mut out, &self.header)?;
        for job in &self.jobs {
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut out, job)?;
        }
        out.write_all(b"\n")?;
        serde_json::to_writer(&mut out, &End { jobs: self.jobs.len() as u64, incomplete: self.incomplete.clone() })?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// The jobs of the beginning, of the end, and around the least slack, with at most `most` spans together, and what was left
    /// out; `None` if all jobs have no more.
    #[must_use]
    pub fn excerpt(&self, most: u64) -> Option<(Self, String)> {
        let from = self.jobs.iter().map(|job| job.release).min().unwrap_or_default();
        let to = self.jobs.iter().map(|job| job.done).max().unwrap_or_default();
        let mut weights = Weights::new(from, to.saturating_sub(from));
        for job in &self.jobs {
            (0..=job.spans.len()).for_each(|_| weights.add(job.done));
            weights.slack(job.done, job.deadline.0.cast_signed().saturating_sub(job.done.0.cast_signed()));
        }
        let choice = weights.choose(most);
        let left_out = choice.left_out("jobs and their operations and waits")?;
        let jobs = self.jobs.iter().filter(|job| choice.shows(job.done, job.done)).cloned().collect();
        Some((Self { header: self.header.clone(), jobs, incomplete: self.incomplete.clone() }, left_out))
    }

    /// Reads what [`TaskLog::write`] wrote; `name` is what errors call it.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn read(input: impl BufRead, name: &str) -> Result<Self, LogError> {
        let mut header = None;
        let mut jobs: Vec<CompletedJob> = Vec::new();
        let (name, mut number) = (name.to_owned(), 0);
        for line in input.lines() {
            number += 1;
            let line = line.map_err(|source| LogError::Read { name: name.clone(), line: number, source })?;
            let wrong = |source| LogError::Parse { name: name.clone(), line: number, source };
            match &header {
                None => {
                    let read: TaskLogHeader = serde_json::from_str(&line).map_err(wrong)?;
                    if read.schema != SCHEMA {
                        return Err(LogError::Schema { name, found: read.schema });
                    }
                    header = Some(read);
                }
                Some(header) => match serde_json::from_str::<End>(&line) {
                    Ok(End { jobs: counted, incomplete }) if counted == jobs.len() as u64 => {
                        return Ok(Self { header: header.clone(), jobs, incomplete });
                    }
                    Ok(end) => {
                        let found = jobs.len() as u64;
                        return Err(LogError::Truncated { name, line: number, found, expected: Some(end.jobs) });
                    }
                    Err(_) => jobs.push(serde_json::from_str(&line).map_err(wrong)?),
                },
            }
        }
        Err(LogError::Truncated { name, line: number, found: jobs.len() as u64, expected: None })
    }
}

/// A wait and who was ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobWait {
    /// Position of the job that waited.
    pub job: usize,
    /// Position of the job that had what was waited for.
    pub behind: usize,
    /// The engine; `None` for a token.
    pub engine: Option<GpuEngine>,
    /// For how long.
    pub time: Nanos,
}

/// Every wait for a token or an engine, by who had it meanwhile: an engine's user, or the holders of tokens of the GPU that the
/// job was given in the end. Time in which nobody had it (hand-over, or held idle) is nobody's.
#[must_use]
pub fn waits(log: &TaskLog) -> Vec<JobWait> {
    let mut users: BTreeMap<Option<GpuEngine>, Vec<(Nanos, Nanos, usize)>> = BTreeMap::new();
    let mut holders: BTreeMap<u32, Vec<(Nanos, Nanos, usize)>> = BTreeMap::new();
    for (at, job) in log.jobs.iter().enumerate() {
        holders.entry(job.gpu).or_default().push((job.held[0], job.held[1], at));
        for span in job.spans.iter().filter(|span| matches!(span.doing, Doing::Copy | Doing::Execute)) {
            for engine in span.engines.iter().flatten() {
                users.entry(Some(*engine)).or_default().push((span.begin, span.end, at));
            }
        }
    }
    let sorted = users.values_mut().chain(holders.values_mut());
    sorted.for_each(|list| list.sort_unstable());
    // The longest use says how far back one can begin that still lasts.
    let longest = |list: &[(Nanos, Nanos, usize)]| list.iter().map(|(begin, end, _)| end.saturating_sub(*begin)).max();
    let users: BTreeMap<_, _> = users.into_iter().map(|(key, list)| (key, (longest(&list), list))).collect();
    let holders: BTreeMap<_, _> = holders.into_iter().map(|(key, list)| (key, (longest(&list), list))).collect();
    let mut waits = Vec::new();
    for (at, job) in log.jobs.iter().enumerate() {
        for span in &job.spans {
            let found = match span.doing {
                Doing::EngineWait => {
                    let engines = span.engines.iter().flatten();
                    engines.filter_map(|engine| Some((Some(*engine), users.get(&Some(*engine))?))).collect()
                }
                Doing::TokenWait => holders.get(&job.gpu).map(|list| (None, list)).into_iter().collect(),
                _ => Vec::new(),
            };
            for (engine, (longest, list)) in found {
                ahead(at, span, engine, longest.unwrap_or_default(), list, &mut waits);
            }
        }
    }
    waits
}

fn ahead(
    job: usize,
    span: &JobSpan,
    engine: Option<GpuEngine>,
    longest: Nanos,
    list: &[(Nanos, Nanos, usize)],
    waits: &mut Vec<JobWait>,
) {
    let first = list.partition_point(|(begin, ..)| *begin < span.begin.saturating_sub(longest));
    let others = list[first..].iter().take_while(|(begin, ..)| *begin < span.end);
    for (begin, end, behind) in others.filter(|(_, _, behind)| *behind != job) {
        let time = span.end.min(*end).saturating_sub(span.begin.max(*begin));
        if time > Nanos::ZERO {
            waits.push(JobWait { job, behind: *behind, engine, time });
        }
    }
}

#[cfg(test)]
mod tests;
