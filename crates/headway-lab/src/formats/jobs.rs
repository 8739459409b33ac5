//! Job sets of the schedule-abstraction analysis (Nasri, Brandenburg, RTSS 2017) as comma-separated values.

use std::collections::BTreeMap;

use csv::{ReaderBuilder, StringRecord, Trim};
use headway_core::analysis::schedulability::ConcreteTask;
use headway_core::files::workload::ServerDemand;
use headway_core::units::Nanos;

use super::{Demands, FormatError, JOBS_MAX, excerpt, integer, time};

/// Columns of a job set.
pub(super) const JOBS: &str = "Task ID, Job ID, Arrival min, Arrival max, Cost min, Cost max, Deadline, Priority";
const EDGES: &str = "Pred TID, Pred JID, Succ TID, Succ JID[, dmin, dmax]";
const RESULTS: &str = "Task ID, Job ID, BCCT, WCCT, BCRT, WCRT";

/// One job; times are absolute, in units of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportedJob {
    pub task: u64,
    /// Its number in the task.
    pub job: u64,
    /// Earliest and latest release.
    pub arrival: (u64, u64),
    /// Least and largest cost.
    pub cost: (u64, u64),
    /// Absolute deadline.
    pub deadline: u64,
    /// Smaller goes first; under EDF, the deadline.
    pub priority: u64,
}

/// A job that starts only after another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// (task, job) that must be complete.
    pub from: (u64, u64),
    /// (task, job) that waits.
    pub to: (u64, u64),
    /// Least and largest time between them.
    pub delay: Option<(u64, u64)>,
}

/// Jobs and their precedences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSet {
    pub jobs: Vec<ImportedJob>,
    /// The precedences.
    pub edges: Vec<Edge>,
}

/// Response times that an analysis found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// (task, job) to the least and largest response time.
    pub responses: BTreeMap<(u64, u64), (u64, u64)>,
    /// The first (task, job) in the file that may miss its deadline. An analysis that stops there leaves all later rows
    /// void; they are not in `responses`.
    pub first_miss: Option<(u64, u64)>,
}

/// The rows below the header, each with the number of its line.
fn rows(
    text: &str,
    fits: impl Fn(&StringRecord) -> bool,
    expected: &'static str,
) -> Result<Vec<(u64, Vec<u64>)>, FormatError> {
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(text.as_bytes());
    let header = reader.headers()?;
    if !fits(header) {
        return Err(FormatError::Columns { expected, found: excerpt(&header.iter().collect::<Vec<_>>().join(", ")) });
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let cells: Result<_, _> = record.iter().map(|cell| integer(&format!("line {line}"), cell)).collect();
        rows.push((line, cells?));
    }
    Ok(rows)
}

fn is(header: &StringRecord, names: &str) -> bool {
    header.iter().map(str::to_lowercase).eq(names.split(',').map(|name| name.trim().to_lowercase()))
}

/// Reads a job set.
///
/// # Errors
/// [`FormatError`] for other columns, values that are no integers, jobs that are there twice, and intervals whose end is
/// before their begin.
pub fn read_jobs(text: &str) -> Result<Vec<ImportedJob>, FormatError> {
    let mut jobs = Vec::new();
    for (line, cells) in rows(text, |header| is(header, JOBS), JOBS)? {
        let [task, job, first, last, least, most, deadline, priority] = cells[..] else { continue };
        let job = ImportedJob { task, job, arrival: (first, last), cost: (least, most), deadline, priority };
        jobs.push(checked(job, &format!("line {line}"))?);
    }
    unique(&jobs)?;
    Ok(jobs)
}

pub(super) fn checked(job: ImportedJob, place: &str) -> Result<ImportedJob, FormatError> {
    for (low, high) in [job.arrival, job.cost] {
        if low > high {
            let (value, expected) = (format!("{low} to {high}"), "an interval whose end is not before its begin");
            return Err(FormatError::Value { place: place.to_owned(), value, expected });
        }
    }
    Ok(job)
}

pub(super) fn unique(jobs: &[ImportedJob]) -> Result<(), FormatError> {
    let mut ids: Vec<_> = jobs.iter().map(|job| (job.task, job.job)).collect();
    ids.sort_unstable();
    let twice = ids.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map_or(Ok(()), |pair| Err(FormatError::Twice { what: format!("job {} of task {}", pair[0].1, pair[0].0) }))
}

/// Reads a file with precedences; the header may call its columns as it likes.
///
/// # Errors
/// [`FormatError`] for other than four or six columns, and values that are no integers.
pub fn read_edges(text: &str) -> Result<Vec<Edge>, FormatError> {
    let rows = rows(text, |header| matches!(header.len(), 4 | 6), EDGES)?;
    let edge = |cells: &[u64]| match *cells {
        [a, b, c, d] => Some(Edge { from: (a, b), to: (c, d), delay: None }),
        [a, b, c, d, least, most] => Some(Edge { from: (a, b), to: (c, d), delay: Some((least, most)) }),
        _ => None,
    };
    Ok(rows.iter().filter_map(|(_, cells)| edge(cells)).collect())
}

/// Reads what an analysis found for `jobs`.
///
/// # Errors
/// [`FormatError`] for other columns, values that are no integers, and jobs that are not in `jobs`.
pub fn read_results(text: &str, jobs: &[ImportedJob]) -> Result<Results, FormatError> {
    let known: BTreeMap<_, _> = jobs.iter().map(|job| ((job.task, job.job), job)).collect();
    let mut results = Results::default();
    for (line, cells) in rows(text, |header| is(header, RESULTS), RESULTS)? {
        let [task, job, _, latest, least, most] = cells[..] else { continue };
        let Some(of) = known.get(&(task, job)) else {
            let (value, expected) = (format!("{task}, {job}"), "a job of the job set");
            return Err(FormatError::Value { place: format!("line {line}"), value, expected });
        };
        if latest > of.deadline {
            results.first_miss = Some((task, job));
            break;
        }
        results.responses.insert((task, job), (least, most));
    }
    Ok(results)
}

/// Writes a job set.
#[must_use]
pub fn write_jobs(jobs: &[ImportedJob]) -> String {
    let mut text = format!("{JOBS}\n");
    for ImportedJob { task, job, arrival, cost, deadline, priority } in jobs {
        let (arrival, cost) = (format!("{}, {}", arrival.0, arrival.1), format!("{}, {}", cost.0, cost.1));
        text.push_str(&format!("{task}, {job}, {arrival}, {cost}, {deadline}, {priority}\n"));
    }
    text
}

/// Writes precedences; with delays if one of them has some.
#[must_use]
pub fn write_edges(edges: &[Edge]) -> String {
    let delays = edges.iter().any(|edge| edge.delay.is_some());
    let mut text = format!("Pred TID, Pred JID, Succ TID, Succ JID{}\n", if delays { ", dmin, dmax" } else { "" });
    for Edge { from, to, delay } in edges {
        text.push_str(&format!("{}, {}, {}, {}", from.0, from.1, to.0, to.1));
        if delays {
            let (least, most) = delay.unwrap_or_default();
            text.push_str(&format!(", {least}, {most}"));
        }
        text.push('\n');
    }
    text
}

/// All jobs of `tasks` with a nominal release before `until`, in nanoseconds, by deadline first. Every chunk is a job, the
/// chunks of one job follow each other.
///
/// # Errors
/// [`FormatError::Jobs`] for too many, [`FormatError::Time`] for times beyond 64 bits.
pub fn unfold(tasks: &[ConcreteTask], until: Nanos) -> Result<JobSet, FormatError> {
    let mut set = JobSet::default();
    for (number, of) in (1..).zip(tasks) {
        let (cost, chunk) = (of.task.cost.0, of.task.chunk.0.clamp(1, of.task.cost.0.max(1)));
        let (mut release, mut job) = (of.offset.0, 0);
        while release < until.0 {
            let place = format!("task {number}");
            let deadline = time(&place, 1, Nanos(release)).map(|r| r.saturating_add(of.task.deadline).0)?;
            for start in (0..cost.max(1)).step_by(usize::try_from(chunk).unwrap_or(usize::MAX)) {
                job += 1;
                if set.jobs.len() == JOBS_MAX {
                    return Err(FormatError::Jobs { max: JOBS_MAX });
                }
                if start > 0 {
                    set.edges.push(Edge { from: (number, job - 1), to: (number, job), delay: None });
                }
                let arrival = (release, release.saturating_add(of.jitter.0));
                let cost = (0, chunk.min(cost - start));
                set.jobs.push(ImportedJob { task: number, job, arrival, cost, deadline, priority: deadline });
            }
            let next = release.checked_add(of.task.period.0.max(1));
            let Some(next) = next else { break };
            release = next;
        }
    }
    Ok(set)
}

/// The demands that release exactly these jobs, again and again.
pub(super) fn demands(set: &JobSet, unit: Nanos, window: Option<Nanos>) -> Result<Demands, FormatError> {
    if let Some(edge) = set.edges.first() {
        let place = format!("job {} of task {}", edge.to.1, edge.to.0);
        let instead = "remove the precedence, or write the steps as a stream";
        return Err(FormatError::CannotSay { place, what: "a precedence between jobs", instead });
    }
    let mut tasks: BTreeMap<u64, Vec<&ImportedJob>> = BTreeMap::new();
    for job in &set.jobs {
        tasks.entry(job.task).or_default().push(job);
    }
    let mut demands = Vec::new();
    for (task, jobs) in &mut tasks {
        jobs.sort_by_key(|job| job.arrival);
        demands.push(demand(&format!("task {task}"), *task, jobs, unit, window)?);
    }
    let mut notes = vec![format!("the {} jobs of the file are repeated without end", set.jobs.len())];
    if set.jobs.iter().any(|job| job.cost.0 > 0) {
        notes.push("least costs are left out: deadlines are guaranteed for all costs from zero".to_owned());
    }
    Ok((demands, notes))
}

fn demand(
    place: &str,
    task: u64,
    jobs: &[&ImportedJob],
    unit: Nanos,
    window: Option<Nanos>,
) -> Result<ServerDemand, FormatError> {
    let refused = |what, instead| Err(FormatError::CannotSay { place: place.to_owned(), what, instead });
    if jobs.iter().any(|job| job.arrival.0 != job.arrival.1) {
        return refused("release jitter", "set `Arrival max` to `Arrival min`");
    }
    if jobs.iter().any(|job| job.priority != job.deadline) {
        return refused("a priority other than the deadline", "set `Priority` to `Deadline`: the earliest goes first");
    }
    let first = jobs[0];
    let Some(deadline) = first.deadline.checked_sub(first.arrival.0) else {
        return refused("a deadline before the release", "raise the deadline");
    };
    if jobs.iter().any(|job| job.cost.1 != first.cost.1) {
        return refused("jobs of different costs", "give every kind of job its own task");
    }
    if jobs.iter().any(|job| job.deadline.checked_sub(job.arrival.0) != Some(deadline)) {
        return refused("jobs of different relative deadlines", "give every kind of job its own task");
    }
    let period = match jobs.get(1) {
        Some(second) => time(place, second.arrival.0 - first.arrival.0, unit)?,
        None => {
            window.ok_or(FormatError::Open { what: "after what time a task with one job repeats", flag: "--window" })?
        }
    };
    let apart = |pair: &[&ImportedJob]| time(place, pair[1].arrival.0 - pair[0].arrival.0, unit);
    for pair in jobs.windows(2) {
        if apart(pair)? != period {
            return refused("releases that are not one period apart", "give every period its own task");
        }
    }
    let (start, cost) = (time(place, first.arrival.0, unit)?, time(place, first.cost.1, unit)?);
    let deadline = time(place, deadline, unit)?;
    Ok(ServerDemand { id: format!("task{task}"), server: String::new(), start, cost, period, deadline })
}
