//! A trace for `ui.perfetto.dev`: a track for each task with what its jobs do, and one for each engine with who uses it.
//!
//! A wait's slice names the job that it waited for (perfetto.dev, "Track events"; names are written where they stand, not interned).

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use headway_core::units::Nanos;

use super::{Doing, GpuEngine, TaskLog, waits};
use crate::proto::Message;

/// Field numbers of `perfetto_trace.proto`.
mod field {
    pub(super) const TRACE_PACKET: u32 = 1;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
    pub(super) const TRACK_UUID: u32 = 1;
    pub(super) const TRACK_NAME: u32 = 2;
    pub(super) const TRACK_PARENT: u32 = 5;
    pub(super) const TRACK_CHILDREN: u32 = 11;
    pub(super) const TRACK_RANK: u32 = 12;
    pub(super) const EVENT_ANNOTATION: u32 = 4;
    pub(super) const EVENT_TYPE: u32 = 9;
    pub(super) const EVENT_TRACK: u32 = 11;
    pub(super) const EVENT_NAME: u32 = 23;
    pub(super) const ANNOTATION_TEXT: u32 = 6;
    pub(super) const ANNOTATION_NAME: u32 = 10;
}

const BEGIN: u64 = 1;
const END: u64 = 2;
const ROOT: u64 = 1;
/// Children stand in the order of their ranks; without this the viewer sorts them by name.
const BY_RANK: u64 = 3;

/// One slice.
struct Slice {
    track: u64,
    begin: Nanos,
    end: Nanos,
    name: String,
    behind: Option<String>,
}

/// Writes the trace of a run.
///
/// # Errors
/// Those of `out`.
pub fn write(log: &TaskLog, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let header = &log.header;
    let root = format!("{} on {} [{}]", header.workload.name, header.machine.name, header.source);
    put(&mut out, |packet| {
        packet.message(field::TRACK_DESCRIPTOR, |track| {
            let track = track.number(field::TRACK_UUID, ROOT).text(field::TRACK_NAME, &root);
            track.number(field::TRACK_CHILDREN, BY_RANK);
        });
    })?;
    let mut child = |uuid: u64, name: &str| {
        put(&mut out, |packet| {
            packet.message(field::TRACK_DESCRIPTOR, |track| {
                let track = track.number(field::TRACK_UUID, uuid).number(field::TRACK_PARENT, ROOT);
                // Tasks in the workload's order, then engines.
                track.text(field::TRACK_NAME, name).number(field::TRACK_RANK, uuid - ROOT);
            });
        })
    };
    let tasks = header.tasks.len() as u64;
    for (number, task) in (0..).zip(&header.tasks) {
        child(ROOT + 1 + number, &task.id)?;
    }
    let spans = || log.jobs.iter().flat_map(|job| &job.spans);
    let used: std::collections::BTreeSet<GpuEngine> = spans().flat_map(|span| span.engines).flatten().collect();
    let tracks: BTreeMap<GpuEngine, u64> = used.into_iter().zip(ROOT + 1 + tasks..).collect();
    for (engine, track) in &tracks {
        child(*track, &header.engine(*engine))?;
    }
    let mut events: Vec<(Nanos, u64, u64, usize)> = Vec::new();
    let slices = slices(log, &tracks);
    for (at, slice) in slices.iter().enumerate() {
        // At one instant, ends come before begins.
        events.push((slice.begin, BEGIN, slice.track, at));
        events.push((slice.end, 0, slice.track, at));
    }
    events.sort_unstable();
    for (time, kind, track, at) in events {
        let slice = &slices[at];
        put(&mut out, |packet| {
            packet.number(field::TIMESTAMP, time.0).number(field::SEQUENCE, 1);
            packet.message(field::TRACK_EVENT, |event| {
                event.number(field::EVENT_TYPE, if kind == BEGIN { BEGIN } else { END });
                event.number(field::EVENT_TRACK, track);
                if kind == BEGIN {
                    event.text(field::EVENT_NAME, &slice.name);
                    if let Some(behind) = &slice.behind {
                        event.message(field::EVENT_ANNOTATION, |annotation| {
                            annotation.text(field::ANNOTATION_NAME, "behind").text(field::ANNOTATION_TEXT, behind);
                        });
                    }
                }
            });
        })?;
    }
    out.flush()
}

fn slices(log: &TaskLog, tracks: &BTreeMap<GpuEngine, u64>) -> Vec<Slice> {
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
            slices.push(Slice {
                track: ROOT + 1 + u64::from(job.task),
                begin: span.begin,
                end: span.end,
                name: span.doing.label().to_owned(),
                behind: others.filter(|names| !names.is_empty()),
            });
            if matches!(span.doing, Doing::Copy | Doing::Execute) {
                for track in span.engines.iter().flatten().filter_map(|engine| tracks.get(engine)) {
                    let (begin, end, name) = (span.begin, span.end, name.clone());
                    slices.push(Slice { track: *track, begin, end, name, behind: None });
                }
            }
        }
    }
    slices
}

fn put(out: &mut impl Write, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
    let mut trace = Message::default();
    trace.message(field::TRACE_PACKET, |packet| {
        fill(packet);
    });
    out.write_all(trace.bytes())
}
