//! Job sets of the schedule-abstraction analysis (Nasri, Brandenburg, RTSS 2017) as comma-separated values.

use std::collections::BTreeMap;

use csv::{ReaderBuilder, Trim};
use headway_core::files::workload::ServerDemand;
use headway_core::units::Nanos;

use super::{Demands, FormatError, JOBS_MAX, excerpt, integer, time};

/// Columns of a job set.
const JOBS: &str = "Task ID, Job ID, Arrival min, Arrival max, Cost min, Cost max, Deadline, Priority";

/// One job; times are absolute, in units of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ImportedJob {
    pub(super) task: u64,
    /// Its number in the task.
    pub(super) job: u64,
    /// Earliest and latest release.
    pub(super) arrival: (u64, u64),
    /// Least and largest cost.
    pub(super) cost: (u64, u64),
    /// Absolute deadline.
    pub(super) deadline: u64,
    /// Smaller goes first; under EDF, the deadline.
    pub(super) priority: u64,
}

/// Reads a job set. Refuses other columns, values that are no integers, jobs that are there twice, and intervals whose end is
/// before their begin.
pub(super) fn read_jobs(text: &str) -> Result<Vec<ImportedJob>, FormatError> {
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(text.as_bytes());
    let header = reader.headers()?;
    if !header.iter().map(str::to_lowercase).eq(JOBS.split(", ").map(str::to_lowercase)) {
        let found = excerpt(&header.iter().collect::<Vec<_>>().join(", "));
        return Err(FormatError::Columns { expected: JOBS, found });
    }
    let mut jobs = Vec::new();
    for record in reader.records() {
        let record = record?;
        let place = format!("line {}", record.position().map_or(0, csv::Position::line));
        let cells: Vec<u64> = record.iter().map(|cell| integer(&place, cell)).collect::<Result<_, _>>()?;
        let [task, job, first, last, least, most, deadline, priority] = cells[..] else { continue };
        let job = ImportedJob { task, job, arrival: (first, last), cost: (least, most), deadline, priority };
        jobs.push(checked(job, &place)?);
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

/// Writes a job set.
pub(super) fn write_jobs(jobs: &[ImportedJob]) -> String {
    let mut text = format!("{JOBS}\n");
    for ImportedJob { task, job, arrival, cost, deadline, priority } in jobs {
        let (arrival, cost) = (format!("{}, {}", arrival.0, arrival.1), format!("{}, {}", cost.0, cost.1));
        text.push_str(&format!("{task}, {job}, {arrival}, {cost}, {deadline}, {priority}\n"));
    }
    text
}

/// All jobs of `demands` with a release before `until`, in nanoseconds, one task after the other.
pub(super) fn unfold(demands: &[&ServerDemand], until: Nanos) -> Result<Vec<ImportedJob>, FormatError> {
    let mut jobs = Vec::new();
    for (task, of) in (1..).zip(demands) {
        let (mut release, mut job) = (of.start.0, 0);
        while release < until.0 {
            if jobs.len() == JOBS_MAX {
                return Err(FormatError::Jobs { max: JOBS_MAX });
            }
            job += 1;
            let deadline = release.saturating_add(of.deadline.0);
            let (arrival, cost) = ((release, release), (0, of.cost.0));
            jobs.push(ImportedJob { task, job, arrival, cost, deadline, priority: deadline });
            let Some(next) = release.checked_add(of.period.0.max(1)) else { break };
            release = next;
        }
    }
    Ok(jobs)
}

/// The demands that release exactly these jobs, again and again.
pub(super) fn demands(set: &[ImportedJob], unit: Nanos, window: Option<Nanos>) -> Result<Demands, FormatError> {
    let mut tasks: BTreeMap<u64, Vec<&ImportedJob>> = BTreeMap::new();
    for job in set {
        tasks.entry(job.task).or_default().push(job);
    }
    let mut demands = Vec::new();
    for (task, jobs) in &mut tasks {
        jobs.sort_by_key(|job| job.arrival);
        demands.push(demand(&format!("task {task}"), *task, jobs, unit, window)?);
    }
    let mut notes = vec![format!("the {} jobs of the file are repeated without end", set.len())];
    if set.iter().any(|job| job.cost.0 > 0) {
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
