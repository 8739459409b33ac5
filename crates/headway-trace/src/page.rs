//! One HTML file that shows a run: no network, no fonts or scripts from elsewhere.
//!
//! The file is the same for streams and for tasks that share GPUs; each gives the tables, rows and jobs of its kind as data.
//! Its size does not grow with the run: `tracks` and `series` say what is kept.

pub(crate) mod series;
pub(crate) mod shell;
pub(crate) mod tracks;

use std::io::{self, Write};

use headway_core::units::{Bytes, Nanos};
use serde::Serialize;

use self::series::{Point, Series};
use self::shell::Shell;
use self::tracks::{Item, Kept, Reduced, Row, SINGLY_MAX, Track};
use crate::RunLog;
use crate::summary::RunSummary;
use crate::timeline::{StepJob, SubmittedOperation, Timeline};

/// Version of the JSON form of the data block `headway-data`.
pub const SCHEMA: u32 = shell::SCHEMA;
/// What the data block calls this kind of page.
const KIND: &str = "streams";
/// Characters per line of the tables shown where scripts are off.
const PLAIN_WIDTH: usize = 120;
/// Pairs of jobs, one waiting for the other, that the page shows; the command's summary has all.
const BLAME_MAX: usize = 1_000;
/// Windows to keep for each reason.
const WORTH_SEEING: usize = 100;

/// Everything the page draws. Times are nanoseconds after the epoch; equal positions in the vectors of a struct belong
/// together.
#[derive(Serialize)]
struct Data<'a> {
    schema: u32,
    kind: &'static str,
    summary: &'a RunSummary,
    /// Pairs of jobs, one waiting for the other, beyond those in the summary.
    more_blame: usize,
    pipelines: Vec<PipelineData<'a>>,
    streams: Vec<Series>,
    missed: Vec<Nanos>,
    jobs: Jobs,
    rows: Vec<Row>,
    kept: Kept,
}

#[derive(Serialize)]
struct PipelineData<'a> {
    name: &'a str,
    steps: Vec<&'a str>,
}

#[derive(Default, Serialize)]
struct Jobs {
    pipeline: Vec<u32>,
    cycle: Vec<u64>,
    step: Vec<u32>,
    /// When the job joined the queue.
    ready: Vec<Nanos>,
    wait: Vec<Nanos>,
    /// Position of the job it waited for longest; -1 = none.
    cause: Vec<i64>,
    by_cause: Vec<Nanos>,
    /// 1 = took longer than planned, 2 = ended after its window, 3 = both.
    flags: Vec<u8>,
}

/// Writes the page of a run.
///
/// # Errors
/// Those of `out`.
pub fn write(log: &RunLog, summary: &RunSummary, out: impl Write) -> io::Result<()> {
    let timeline = Timeline::new(log);
    let points = points(log, &timeline);
    let tracks = tracks(log, &timeline);
    let deadlines: Vec<Nanos> = log.header().plan.streams.iter().map(|stream| stream.deadline).collect();
    let wanted = wanted(&timeline, &points, &deadlines);
    let Reduced { mut rows, kept, jobs: drawn } =
        tracks::reduce(&tracks, timeline.jobs.len(), timeline.span(), wanted, SINGLY_MAX);
    let (jobs, positions) = jobs(&timeline, drawn);
    rows.iter_mut().for_each(|row| row.renumber(&positions));
    let plan = &log.header().plan;
    let pipelines = plan.pipelines.iter().map(|pipeline| PipelineData {
        name: &pipeline.name,
        steps: pipeline.steps.iter().map(|step| step.name.as_str()).collect(),
    });
    let room = series::room(points.len());
    let streams = plan.streams.iter().zip(&points);
    let mut shown = summary.clone();
    shown.blame.truncate(BLAME_MAX);
    let data = Data {
        schema: SCHEMA,
        kind: KIND,
        more_blame: summary.blame.len() - shown.blame.len(),
        summary: &shown,
        pipelines: pipelines.collect(),
        streams: streams.map(|(stream, points)| series::series(points, stream.deadline, room)).collect(),
        missed: series::missed(points.iter().flatten(), timeline.span()),
        jobs,
        rows,
        kept,
    };
    let title = format!("{}: {} [{}]", summary.workload.name, summary.verdict.text, summary.source);
    let plain = summary.table(PLAIN_WIDTH);
    let incomplete = summary.incomplete.as_ref().map(|why| shell::banner(why, summary.span));
    let not_compared = summary.not_compared_text();
    let (incomplete, left_out) = (incomplete.as_deref(), summary.left_out.as_slice());
    Shell { title: &title, incomplete, left_out, not_compared: not_compared.as_deref(), plain: &plain }
        .write(&data, out)
}

/// The responses of each stream in the order of delivery.
fn points(log: &RunLog, timeline: &Timeline) -> Vec<Vec<Point>> {
    let mut points = vec![Vec::new(); log.header().plan.streams.len()];
    for packet in timeline.packets(log) {
        points[packet.stream as usize].push(Point {
            at: packet.delivered.saturating_sub(timeline.epoch),
            response: packet.response(),
            late: packet.missed(),
        });
    }
    points
}

/// Where to look, what matters most first: the least slack, late jobs, late packets, the longest response of each stream,
/// the longest waits.
fn wanted(timeline: &Timeline, points: &[Vec<Point>], deadlines: &[Nanos]) -> Vec<(Nanos, Nanos)> {
    let window = |point: &Point| (point.at.saturating_sub(point.response), point.at);
    let slack = |deadline: &Nanos, point: &Point| i128::from(deadline.0) - i128::from(point.response.0);
    let least = |(points, deadline): (&Vec<Point>, &Nanos)| {
        points.iter().max_by_key(|point| point.response).map(|point| (slack(deadline, point), *point))
    };
    let mut longest: Vec<(i128, Point)> = points.iter().zip(deadlines).filter_map(least).collect();
    longest.sort_by_key(|(slack, _)| *slack);
    let of_job = |job: &StepJob| {
        let after = |time: Option<Nanos>| time.map(|time| time.saturating_sub(timeline.epoch));
        Some((after(job.ready)?, after(job.completed)?))
    };
    let marked = timeline.jobs.iter().filter(|job| job.overrun || job.late.is_some()).filter_map(of_job);
    let late = points.iter().flatten().filter(|point| point.late).map(window);
    let mut waits: Vec<&StepJob> = timeline.jobs.iter().filter(|job| job.wait() > Nanos::ZERO).collect();
    waits.sort_by_key(|job| std::cmp::Reverse(job.wait()));
    let mut wanted: Vec<_> = longest.iter().take(WORTH_SEEING / 4).map(|(_, point)| window(point)).collect();
    wanted.extend(waits.iter().take(WORTH_SEEING / 4).filter_map(|job| of_job(job)));
    wanted.extend(marked.take(WORTH_SEEING));
    wanted.extend(late.take(WORTH_SEEING));
    wanted.extend(longest.iter().skip(WORTH_SEEING / 4).take(WORTH_SEEING).map(|(_, point)| window(point)));
    wanted
}

/// The jobs that are drawn and those that they waited for, and the new position of each job.
fn jobs(timeline: &Timeline, drawn: Vec<bool>) -> (Jobs, Vec<i64>) {
    let cause = |job: &StepJob| job.longest_wait().and_then(|wait| wait.cause);
    let mut kept = drawn.clone();
    for (job, _) in timeline.jobs.iter().zip(&drawn).filter(|(_, drawn)| **drawn) {
        if let Some(cause) = cause(job) {
            kept[cause] = true;
        }
    }
    let positions = tracks::positions(&kept);
    let mut jobs = Jobs::default();
    let after = |time: Option<Nanos>| time.unwrap_or(timeline.epoch).saturating_sub(timeline.epoch);
    for (job, _) in timeline.jobs.iter().zip(&kept).filter(|(_, kept)| **kept) {
        jobs.pipeline.push(job.pipeline);
        jobs.cycle.push(job.cycle);
        jobs.step.push(job.step);
        jobs.ready.push(after(job.ready));
        jobs.wait.push(job.wait());
        jobs.cause.push(cause(job).map_or(-1, |cause| positions[cause]));
        jobs.by_cause.push(job.longest_wait().map_or(Nanos::ZERO, |wait| wait.time));
        jobs.flags.push(flags(job));
    }
    (jobs, positions)
}

fn flags(job: &StepJob) -> u8 {
    u8::from(job.overrun) | u8::from(job.late.is_some()) << 1
}

/// A track for each engine, and for each server without engines.
fn tracks(log: &RunLog, timeline: &Timeline) -> Vec<Track> {
    let plan = &log.header().plan;
    let mut operations: Vec<Vec<&SubmittedOperation>> = vec![Vec::new(); plan.engines.len() + plan.servers.len()];
    for operation in timeline.operations.iter().filter(|operation| operation.ended.is_some()) {
        let engines = &timeline.planned(log, operation).engines;
        let abstract_row = plan.engines.len() + timeline.step(log, operation.job).server as usize;
        for row in engines.iter().map(|engine| engine.at()).chain(engines.is_empty().then_some(abstract_row)) {
            operations[row].push(operation);
        }
    }
    let engines = plan.engines.iter().map(|engine| (engine.name.as_str(), engine.gpu, true));
    let servers = plan.servers.iter().map(|server| (server.name.as_str(), None, server.engines.is_empty()));
    let named = engines.chain(servers).zip(operations).filter(|((.., shown), _)| *shown);
    named.map(|((name, gpu, _), operations)| track(name, gpu, &operations, timeline)).collect()
}

fn track(name: &str, group: Option<u32>, operations: &[&SubmittedOperation], timeline: &Timeline) -> Track {
    let item = |operation: &&SubmittedOperation| {
        let ended = operation.ended?;
        Some(Item {
            start: ended.started.saturating_sub(timeline.epoch),
            end: ended.finished.max(ended.started).saturating_sub(timeline.epoch),
            job: operation.job,
            bytes: Bytes(operation.bytes.0),
            kind: 0,
            waits: false,
            marked: flags(&timeline.jobs[operation.job]) != 0,
        })
    };
    let mut items: Vec<Item> = operations.iter().filter_map(item).collect();
    items.sort_by_key(|item| item.start);
    Track { name: name.to_owned(), group, items }
}
