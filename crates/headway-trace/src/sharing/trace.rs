//! A trace for `ui.perfetto.dev`: a track for each task with what its jobs do, and one for each engine with who uses it.
//!
//! A wait's slice names the job that it waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};

use headway_core::units::Nanos;

use super::{Doing, GpuEngine, TaskLog, waits};
use crate::perfetto::{Builder, Kind, ROOT, Value};

/// One slice.
struct Slice {
    track: u64,
    begin: Nanos,
    end: Nanos,
    name: String,
    category: &'static str,
    behind: Option<String>,
}

/// Writes the trace of a run.
///
/// # Errors
/// Those of `out`.
pub fn write(log: &TaskLog, out: impl Write) -> io::Result<()> {
    let header = &log.header;
    let mut builder = Builder::new(&format!("{} on {} [{}]", header.workload.name, header.machine.name, header.source));
    // Tasks in the workload's order, then engines.
    let tasks: Vec<u64> = (0..).zip(&header.tasks).map(|(rank, task)| builder.track(ROOT, &task.id, rank)).collect();
    let spans = || log.jobs.iter().flat_map(|job| &job.spans);
    let used: BTreeSet<GpuEngine> = spans().flat_map(|span| span.engines).flatten().collect();
    let ranks = tasks.len() as u64..;
    let track = |(rank, engine): (u64, GpuEngine)| (engine, builder.track(ROOT, &header.engine(engine), rank));
    let engines: BTreeMap<GpuEngine, u64> = ranks.zip(used).map(track).collect();
    let mut slices = slices(log, &tasks, &engines);
    // At one instant, ends come before begins.
    slices.sort_by_key(|slice| (slice.begin, slice.end));
    for Slice { track, begin, end, name, category, behind } in slices {
        let arguments = behind.map(|behind| ("behind", Value::Text(behind))).into_iter().collect();
        builder.event(begin, Kind::Begin, track, &name, category, arguments);
        builder.end(end, track);
    }
    builder.finish(BufWriter::with_capacity(1 << 16, out))
}

fn slices(log: &TaskLog, tasks: &[u64], engines: &BTreeMap<GpuEngine, u64>) -> Vec<Slice> {
    let mut behind: BTreeMap<usize, Vec<super::JobWait>> = BTreeMap::new();
    for wait in waits(log) {
        behind.entry(wait.job).or_default().push(wait);
    }
    let mut slices = Vec::new();
    for (at, job) in log.jobs.iter().enumerate() {
        let name = format!("{} {}", log.header.task(job.task), job.job);
        for span in job.spans.iter().filter(|span| span.end > span.begin) {
            let waited = matches!(span.doing, Doing::TokenWait | Doing::EngineWait);
            let others = behind.get(&at).filter(|_| waited).map(|waits| {
                let same = |wait: &&super::JobWait| match span.doing {
                    Doing::TokenWait => wait.engine.is_none(),
                    _ => span.engines.iter().flatten().any(|engine| Some(*engine) == wait.engine),
                };
                let mut names: Vec<_> = waits.iter().filter(same).map(|wait| wait.behind).collect();
                names.dedup();
                let named = |other: &usize| {
                    let other = &log.jobs[*other];
                    format!("{} {}", log.header.task(other.task), other.job)
                };
                names.iter().map(named).collect::<Vec<_>>().join(", ")
            });
            if let Some(&track) = tasks.get(job.task as usize) {
                slices.push(Slice {
                    track,
                    begin: span.begin,
                    end: span.end,
                    name: span.doing.label().to_owned(),
                    category: "task",
                    behind: others.filter(|names| !names.is_empty()),
                });
            }
            if matches!(span.doing, Doing::Copy | Doing::Execute) {
                for track in span.engines.iter().flatten().filter_map(|engine| engines.get(engine)) {
                    let (begin, end, name) = (span.begin, span.end, name.clone());
                    slices.push(Slice { track: *track, begin, end, name, category: "engine", behind: None });
                }
            }
        }
    }
    slices
}
