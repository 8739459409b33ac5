//! The page of a run of tasks that share GPUs: a row for each task and one for each engine.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use headway_core::units::Nanos;
use serde::Serialize;

use super::{CompletedJob, Doing, GpuEngine, JobSpan, JobWait, SharingSummary, TaskLog, Unit, waits};
use crate::page::series::{self, Point, Series};
use crate::page::shell::{self, Shell};
use crate::page::tracks::{self, Item, Kept, Reduced, Row, SINGLY_MAX, Track};

/// Others that a job names as those it waited for, longest first.
const BEHIND_MAX: usize = 4;
/// Windows to keep for each reason.
const WORTH_SEEING: usize = 100;

/// Everything the page draws. Times are nanoseconds after the first release; equal positions in the vectors of a struct
/// belong together.
#[derive(Serialize)]
struct Data<'a> {
    schema: u32,
    kind: &'static str,
    summary: &'a SharingSummary,
    /// Of each task, the longest time from a release to its deadline.
    deadlines: Vec<Nanos>,
    streams: Vec<Series>,
    missed: Vec<Nanos>,
    jobs: Jobs,
    rows: Vec<Row>,
    /// How many rows are tasks; the others are engines.
    task_rows: usize,
    kept: Kept,
}

#[derive(Default, Serialize)]
struct Jobs {
    task: Vec<u32>,
    job: Vec<u64>,
    release: Vec<Nanos>,
    /// The later of its release and its predecessor's end.
    start: Vec<Nanos>,
    deadline: Vec<Nanos>,
    done: Vec<Nanos>,
    gpu: Vec<u32>,
    /// Position of the GPU that its state came from; -1 = it was there.
    from: Vec<i64>,
    /// Waits for the token and for engines.
    blocked: Vec<[Nanos; 2]>,
    /// Whom it waited for: task, job, what (-1 = a token, or the row of the engine), for how long.
    behind: Vec<Vec<(u32, u64, i64, Nanos)>>,
}

/// Writes the page of a run.
///
/// # Errors
/// Those of `out`.
pub fn write(log: &TaskLog, summary: &SharingSummary, out: impl Write) -> io::Result<()> {
    let epoch = log.jobs.iter().map(|job| job.release).min().unwrap_or_default();
    let (tracks, engines) = tracks(log, epoch);
    let points = points(log, epoch);
    let wanted = wanted(log, epoch);
    let mut behind = behind(log);
    let Reduced { mut rows, kept, jobs: drawn } =
        tracks::reduce(&tracks, log.jobs.len(), summary.span, wanted, SINGLY_MAX);
    let positions = tracks::positions(&drawn);
    rows.iter_mut().for_each(|row| row.renumber(&positions));
    let deadlines: Vec<Nanos> = (0..log.header.tasks.len()).map(|task| deadline(log, task)).collect();
    let room = series::room(points.len());
    let data = Data {
        schema: shell::SCHEMA,
        kind: super::KIND,
        summary,
        streams: points
            .iter()
            .zip(&deadlines)
            .map(|(points, deadline)| series::series(points, *deadline, room))
            .collect(),
        missed: series::missed(points.iter().flatten(), summary.span),
        jobs: jobs(log, epoch, &drawn, &engines, &mut behind),
        rows,
        task_rows: log.header.tasks.len(),
        deadlines,
        kept,
    };
    let title = format!("{}: {} [{}]", summary.workload.name, summary.verdict.text, summary.source);
    let plain = summary.table();
    let incomplete = summary.incomplete.as_ref().map(|why| shell::banner(why, summary.span));
    let (incomplete, left_out) = (incomplete.as_deref(), summary.left_out.as_slice());
    Shell { title: &title, incomplete, left_out, not_compared: None, plain: &plain }.write(&data, out)
}

/// From release to deadline; the period where no job says.
fn deadline(log: &TaskLog, task: usize) -> Nanos {
    let of_task = log.jobs.iter().filter(|job| job.task as usize == task);
    let relative = of_task.map(|job| job.deadline.saturating_sub(job.release)).max();
    relative.unwrap_or(log.header.tasks[task].period)
}

/// The responses of each task in the order of completion, counted as in the summary: from the start of a job.
fn points(log: &TaskLog, epoch: Nanos) -> Vec<Vec<Point>> {
    let mut points = vec![Vec::new(); log.header.tasks.len()];
    for job in &log.jobs {
        if let Some(points) = points.get_mut(job.task as usize) {
            points.push(Point {
                at: job.done.saturating_sub(epoch),
                response: job.done.saturating_sub(job.start),
                late: job.done > job.deadline,
            });
        }
    }
    points
}

/// A track for each task and each engine, and the engines' rows. Of the engines that nobody used, those are shown that every
/// GPU has.
fn tracks(log: &TaskLog, epoch: Nanos) -> (Vec<Track>, BTreeMap<GpuEngine, usize>) {
    let header = &log.header;
    let used: BTreeSet<GpuEngine> =
        log.jobs.iter().flat_map(|job| &job.spans).flat_map(|span| span.engines).flatten().collect();
    let both_ways = used.iter().any(|engine| engine.unit == Unit::D2h);
    let units = [Unit::Ee, Unit::H2d].into_iter().chain(both_ways.then_some(Unit::D2h));
    let there = (0..header.gpus.len() as u32).flat_map(|gpu| units.clone().map(move |unit| GpuEngine { gpu, unit }));
    let engines: BTreeSet<GpuEngine> = used.iter().copied().chain(there).collect();
    let task = |head: &super::TaskHead| Track { name: head.id.clone(), ..Track::default() };
    let engine =
        |engine: &GpuEngine| Track { name: header.engine(*engine), group: Some(engine.gpu), items: Vec::new() };
    let mut tracks: Vec<Track> = header.tasks.iter().map(task).chain(engines.iter().map(engine)).collect();
    let rows: BTreeMap<GpuEngine, usize> = engines.into_iter().zip(header.tasks.len()..).collect();
    for (at, job) in log.jobs.iter().enumerate() {
        for span in job.spans.iter().filter(|span| span.end > span.begin) {
            let item = item(at, job, span, epoch);
            if (job.task as usize) < header.tasks.len() {
                tracks[job.task as usize].items.push(item);
            }
            if matches!(span.doing, Doing::Copy | Doing::Execute) {
                for row in span.engines.iter().flatten().filter_map(|engine| rows.get(engine)) {
                    tracks[*row].items.push(item);
                }
            }
        }
    }
    tracks.iter_mut().for_each(|track| track.items.sort_by_key(|item| item.start));
    (tracks, rows)
}

fn item(at: usize, job: &CompletedJob, span: &JobSpan, epoch: Nanos) -> Item {
    Item {
        start: span.begin.saturating_sub(epoch),
        end: span.end.saturating_sub(epoch),
        job: at,
        bytes: span.bytes,
        kind: span.doing as u8,
        waits: matches!(span.doing, Doing::CpuWait | Doing::TokenWait | Doing::EngineWait),
        marked: job.done > job.deadline,
    }
}

/// Where to look, what matters most first: the longest response for its period, late jobs, the longest response of each
/// task, the longest waits.
fn wanted(log: &TaskLog, epoch: Nanos) -> Vec<(Nanos, Nanos)> {
    let period = |job: &CompletedJob| log.header.tasks.get(job.task as usize).map_or(1, |task| task.period.0.max(1));
    let share =
        |job: &CompletedJob| u128::from(job.done.saturating_sub(job.start).0) * 1_000_000 / u128::from(period(job));
    let window = |job: &&CompletedJob| (job.start.saturating_sub(epoch), job.done.saturating_sub(epoch));
    let mut longest: BTreeMap<u32, &CompletedJob> = BTreeMap::new();
    for job in &log.jobs {
        let best = longest.entry(job.task).or_insert(job);
        if share(job) > share(best) {
            *best = job;
        }
    }
    let mut longest: Vec<&CompletedJob> = longest.into_values().collect();
    longest.sort_by_key(|job| std::cmp::Reverse(share(job)));
    let mut late: Vec<&CompletedJob> = log.jobs.iter().filter(|job| job.done > job.deadline).collect();
    late.sort_by_key(|job| std::cmp::Reverse(job.done.saturating_sub(job.deadline)));
    let blocked = |job: &CompletedJob| job.blocked[0].saturating_add(job.blocked[1]);
    let mut waits: Vec<&CompletedJob> = log.jobs.iter().filter(|job| blocked(job) > Nanos::ZERO).collect();
    waits.sort_by_key(|job| std::cmp::Reverse(blocked(job)));
    let first = longest.iter().take(1);
    let lists = [&late, &longest, &waits].map(|jobs| jobs.iter().take(WORTH_SEEING));
    first.chain(lists.into_iter().flatten()).map(window).collect()
}

/// The jobs that are drawn.
fn jobs(
    log: &TaskLog,
    epoch: Nanos,
    drawn: &[bool],
    engines: &BTreeMap<GpuEngine, usize>,
    behind: &mut BTreeMap<usize, Vec<JobWait>>,
) -> Jobs {
    let mut jobs = Jobs::default();
    let after = |time: Nanos| time.saturating_sub(epoch);
    for (at, job) in log.jobs.iter().enumerate().filter(|(at, _)| drawn[*at]) {
        jobs.task.push(job.task);
        jobs.job.push(job.job);
        jobs.release.push(after(job.release));
        jobs.start.push(after(job.start));
        jobs.deadline.push(after(job.deadline));
        jobs.done.push(after(job.done));
        jobs.gpu.push(job.gpu);
        jobs.from.push(job.from.map_or(-1, i64::from));
        jobs.blocked.push(job.blocked);
        let mut waits = behind.remove(&at).unwrap_or_default();
        waits.sort_by_key(|wait| std::cmp::Reverse(wait.time));
        let named = waits.iter().take(BEHIND_MAX).map(|wait| {
            let row = wait.engine.and_then(|engine| engines.get(&engine)).map_or(-1, |row| *row as i64);
            (log.jobs[wait.behind].task, log.jobs[wait.behind].job, row, wait.time)
        });
        jobs.behind.push(named.collect());
    }
    jobs
}

/// The waits of each job.
fn behind(log: &TaskLog) -> BTreeMap<usize, Vec<JobWait>> {
    let mut behind: BTreeMap<usize, Vec<JobWait>> = BTreeMap::new();
    for wait in waits(log) {
        behind.entry(wait.job).or_default().push(wait);
    }
    behind
}
