//! The figures of a run of tasks that share GPUs.

use std::collections::BTreeMap;

use headway_core::log::{Incomplete, RunSource};
use headway_core::models::transfer::tail;
use headway_core::plan::Named;
use headway_core::units::{Nanos, PPM};
use serde::Serialize;

use super::{CompletedJob, Doing, GpuEngine, JobBounds, SCHEMA, TaskLog, waits};

/// Late jobs that are explained one by one.
const LATE_MAX: usize = 20;
/// Largest waits that a sentence names.
const REASONS_MAX: usize = 3;

/// The figures of a run, all from its log. Responses are parts per million of the period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharingSummary {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What such a summary is called.
    pub kind: &'static str,
    /// What produced the times.
    pub source: RunSource,
    /// Version of Headway that ran.
    pub version: String,
    /// Commit it was built from.
    pub commit: String,
    /// Seed of the run.
    pub seed: u64,
    /// The workload file.
    pub workload: Named,
    /// The machine file.
    pub machine: Named,
    /// How tokens are given, in words.
    pub rules: String,
    /// From the first release to the last end.
    pub span: Nanos,
    /// Whether the run came to its end.
    pub complete: bool,
    /// Why it did not.
    pub incomplete: Option<Incomplete>,
    /// Whether all deadlines and bounds held.
    pub verdict: SharingVerdict,
    pub tasks: Vec<TaskFigures>,
    /// The engines that were used.
    pub engines: Vec<EngineFigures>,
    /// Which task waited for which, longest total first.
    pub waits: Vec<WaitFigures>,
    /// Late jobs, the latest first, each with what it waited for.
    pub late: Vec<String>,
    /// What the bounds rest on.
    pub notes: Vec<String>,
    /// What the files of the run lack, one sentence each; the figures above are those of the whole run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// Whether all deadlines and bounds held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharingVerdict {
    /// They did, in a run that came to its end.
    pub held: bool,
    pub jobs: u64,
    /// Of these, late.
    pub misses: u64,
    /// Of these, kept waiting for longer than their bound.
    pub above_bound: u64,
    /// The verdict as a sentence.
    pub text: String,
}

/// One task, by its complete jobs: what the end of the run cuts off counts nowhere, also if it is late by then. A response is from the later of the release and the end of the job before it, as GPUSync measures it (`elliott-2013`, 5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskFigures {
    pub id: String,
    pub period: Nanos,
    pub jobs: u64,
    /// Response: mean.
    pub mean_ppm: u64,
    /// Response: half of the jobs have at most this.
    pub p50_ppm: u64,
    /// Response: 99 of 100 jobs have at most this; of fewer than 100 jobs it is left out.
    pub p99_ppm: Option<u64>,
    /// Response: longest.
    pub max_ppm: u64,
    /// Late jobs.
    pub misses: u64,
    /// By how much the latest job was late.
    pub tardiness_max: Nanos,
    /// Jobs whose state was on another GPU.
    pub migrations: u64,
    /// Longest blocking: for the token, for engines, for both in one job.
    pub blocked_max: [Nanos; 3],
    /// What it may be.
    pub bound: Option<JobBounds>,
}

/// One engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineFigures {
    pub id: String,
    /// Time in use.
    pub busy: Nanos,
    /// Time in use, parts per million of the run.
    pub busy_ppm: u64,
}

/// How long jobs of one task waited for those of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitFigures {
    /// Who waited.
    pub task: String,
    /// Behind whom.
    pub behind: String,
    /// For what: an engine, or a token.
    pub what: String,
    /// How often.
    pub count: u64,
    /// All together.
    pub total: Nanos,
    /// The longest.
    pub max: Nanos,
}

fn ppm(part: Nanos, whole: Nanos) -> u64 {
    u64::try_from(u128::from(part.0) * u128::from(PPM) / u128::from(whole.0.max(1))).unwrap_or(u64::MAX)
}

/// Sums a run up.
#[must_use]
pub fn summarize(log: &TaskLog) -> SharingSummary {
    let header = &log.header;
    let first = log.jobs.iter().map(|job| job.release).min().unwrap_or_default();
    let span = log.jobs.iter().map(|job| job.done).max().unwrap_or_default().saturating_sub(first);
    let tasks: Vec<_> = (0..header.tasks.len()).map(|task| figures(log, task)).collect();
    let sum = |of: fn(&TaskFigures) -> u64| tasks.iter().map(of).sum::<u64>();
    let (jobs, misses) = (sum(|task| task.jobs), sum(|task| task.misses));
    let exceeds = |job: &&CompletedJob| {
        let bound = header.tasks.get(job.task as usize).and_then(|task| task.bound);
        bound.is_some_and(|bound| job.blocked[0].saturating_add(job.blocked[1]) > bound.blocking)
    };
    let above_bound = log.jobs.iter().filter(exceeds).count() as u64;
    let mut text = match (jobs, misses) {
        (0, _) => "no job was complete".to_owned(),
        (_, 0) => format!("all {jobs} deadlines held"),
        _ => format!("{misses} of {jobs} jobs were late"),
    };
    match above_bound {
        0 if header.tasks.iter().any(|task| task.bound.is_some()) => text.push_str("; no wait exceeded its bound"),
        0 => text.push_str("; waits have no bound here"),
        _ => text.push_str(&format!("; {above_bound} jobs waited longer than their bound")),
    }
    if let Some(why) = &log.incomplete {
        text = format!("INCOMPLETE, {why} after {span}: {text} until then");
    }
    let complete = log.incomplete.is_none();
    SharingSummary {
        schema: SCHEMA,
        kind: super::KIND,
        source: header.source,
        version: header.version.clone(),
        commit: header.commit.clone(),
        seed: header.seed,
        workload: header.workload.clone(),
        machine: header.machine.clone(),
        rules: rules(log),
        span,
        complete,
        incomplete: log.incomplete.clone(),
        verdict: SharingVerdict {
            held: complete && jobs > 0 && misses == 0 && above_bound == 0,
            jobs,
            misses,
            above_bound,
            text,
        },
        tasks,
        engines: engines(log, span),
        waits: wait_figures(log),
        late: late(log),
        notes: header.notes.clone(),
        left_out: Vec::new(),
    }
}

fn rules(log: &TaskLog) -> String {
    let header = &log.header;
    let locks = if header.engine_locks { "a lock for each engine" } else { "a token is the right to every engine" };
    format!(
        "{} GPUs, {} tokens each, {} CPUs, mode {}, {locks}",
        header.gpus.len(),
        header.tokens_per_gpu,
        header.cpus,
        header.mode
    )
}

fn figures(log: &TaskLog, task: usize) -> TaskFigures {
    let head = &log.header.tasks[task];
    let jobs: Vec<&CompletedJob> = log.jobs.iter().filter(|job| job.task as usize == task).collect();
    let mut responses: Vec<u64> = jobs.iter().map(|job| ppm(job.done.saturating_sub(job.start), head.period)).collect();
    responses.sort_unstable();
    let rank = |percent: usize| {
        let at = (responses.len() * percent).div_ceil(100).max(1) - 1;
        responses.get(at).copied().unwrap_or(0)
    };
    let sum: u128 = responses.iter().map(|response| u128::from(*response)).sum();
    let mean = sum.checked_div(responses.len() as u128).unwrap_or(0);
    let late = |job: &&&CompletedJob| job.done > job.deadline;
    let most = |of: &dyn Fn(&CompletedJob) -> Nanos| jobs.iter().map(|job| of(job)).max().unwrap_or_default();
    TaskFigures {
        id: head.id.clone(),
        period: head.period,
        jobs: jobs.len() as u64,
        mean_ppm: u64::try_from(mean).unwrap_or(u64::MAX),
        p50_ppm: rank(50),
        p99_ppm: tail(responses.len() as u64, rank(99)),
        max_ppm: rank(100),
        misses: jobs.iter().filter(late).count() as u64,
        tardiness_max: most(&|job| job.done.saturating_sub(job.deadline)),
        migrations: jobs.iter().filter(|job| job.from.is_some()).count() as u64,
        blocked_max: [
            most(&|job| job.blocked[0]),
            most(&|job| job.blocked[1]),
            most(&|job| job.blocked[0].saturating_add(job.blocked[1])),
        ],
        bound: head.bound,
    }
}

fn engines(log: &TaskLog, span: Nanos) -> Vec<EngineFigures> {
    let mut busy: BTreeMap<GpuEngine, Nanos> = BTreeMap::new();
    let spans = log.jobs.iter().flat_map(|job| &job.spans);
    for span in spans.filter(|span| matches!(span.doing, Doing::Copy | Doing::Execute)) {
        for engine in span.engines.iter().flatten() {
            let sum = busy.entry(*engine).or_default();
            *sum = sum.saturating_add(span.time());
        }
    }
    let figures = |(engine, busy): (GpuEngine, Nanos)| EngineFigures {
        id: log.header.engine(engine),
        busy,
        busy_ppm: ppm(busy, span),
    };
    busy.into_iter().map(figures).collect()
}

fn what(log: &TaskLog, engine: Option<GpuEngine>) -> String {
    engine.map_or_else(|| "a token".to_owned(), |engine| log.header.engine(engine))
}

/// Positions of the task that waited and of the one that was ahead, and the engine.
type Pair = (u32, u32, Option<GpuEngine>);

fn wait_figures(log: &TaskLog) -> Vec<WaitFigures> {
    let mut sums: BTreeMap<Pair, (u64, Nanos, Nanos)> = BTreeMap::new();
    for wait in waits(log) {
        let key = (log.jobs[wait.job].task, log.jobs[wait.behind].task, wait.engine);
        let (count, total, max) = sums.entry(key).or_default();
        *count += 1;
        (*total, *max) = (total.saturating_add(wait.time), (*max).max(wait.time));
    }
    let figures = |((task, behind, engine), (count, total, max))| WaitFigures {
        task: log.header.task(task).to_owned(),
        behind: log.header.task(behind).to_owned(),
        what: what(log, engine),
        count,
        total,
        max,
    };
    let mut all: Vec<_> = sums.into_iter().map(figures).collect();
    all.sort_by_key(|wait| std::cmp::Reverse(wait.total));
    all
}

/// A sentence for each of the latest jobs.
fn late(log: &TaskLog) -> Vec<String> {
    let mut late: Vec<usize> = (0..log.jobs.len()).filter(|at| log.jobs[*at].done > log.jobs[*at].deadline).collect();
    late.sort_by_key(|at| std::cmp::Reverse(log.jobs[*at].done.saturating_sub(log.jobs[*at].deadline)));
    late.truncate(LATE_MAX);
    if late.is_empty() {
        return Vec::new();
    }
    let mut behind: BTreeMap<usize, BTreeMap<(u32, Option<GpuEngine>), Nanos>> = BTreeMap::new();
    for wait in waits(log) {
        if late.contains(&wait.job) {
            let sum = behind.entry(wait.job).or_default().entry((log.jobs[wait.behind].task, wait.engine)).or_default();
            *sum = sum.saturating_add(wait.time);
        }
    }
    late.into_iter().map(|at| sentence(log, &log.jobs[at], behind.remove(&at).unwrap_or_default())).collect()
}

fn sentence(log: &TaskLog, job: &CompletedJob, behind: BTreeMap<(u32, Option<GpuEngine>), Nanos>) -> String {
    let by = job.done.saturating_sub(job.deadline);
    let mut text = format!("job {} of {}: late by {by}", job.job, log.header.task(job.task));
    if job.start > job.release {
        let after = job.start.saturating_sub(job.release);
        text.push_str(&format!(", began {after} late as its predecessor ran"));
    }
    let mut reasons: Vec<_> = behind.into_iter().collect();
    reasons.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    for (at, ((task, engine), time)) in reasons.iter().take(REASONS_MAX).enumerate() {
        let begin = if at == 0 { "; it waited" } else { "," };
        let whom = log.header.task(*task);
        text.push_str(&format!("{begin} {time} for {} behind {whom}", what(log, *engine)));
    }
    if reasons.is_empty() {
        text.push_str("; it waited for nobody, its own work takes that long");
    }
    text
}
