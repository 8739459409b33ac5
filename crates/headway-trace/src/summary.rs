//! The figures of a run: per stream, engine, capacity, server and step, and which job waited for which.

use std::collections::BTreeMap;

use headway_core::decisions::dispatch::DispatchEvent;
use headway_core::log::{Incomplete, OtherCopies, RecordBody, RunSource};
use headway_core::models::cpu::{self, SchedulingClass};
use headway_core::plan::{
    Named, OperationWork, Outcome, Pipeline, PipelineSource, Plan, PlannedCapacity, Server, Strategy,
};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos, PPM, Rate};
use serde::Serialize;

use crate::RunLog;
use crate::due;
use crate::elementary::{self, Jobs};
use crate::response::order_statistics;
use crate::timeline::{StepJob, Timeline};
use crate::unplanned::{self, BulkSummary, UrgentSummary};

pub use crate::elementary::JobsSummary;
pub use crate::response::Response;

/// Version of the JSON form of [`RunSummary`].
pub const SCHEMA: u32 = 1;

/// The figures of a run, all from its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunSummary {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What produced the times.
    pub source: RunSource,
    /// Version of Headway that ran.
    pub version: String,
    /// Commit it was built from.
    pub commit: String,
    /// Seed of the run.
    pub seed: u64,
    /// The devices, as their driver names them.
    pub devices: Vec<String>,
    /// The machine file.
    pub machine: Named,
    /// The workload file.
    pub workload: Named,
    /// How transfers were kept apart.
    pub strategy: Strategy,
    /// What the plan said before the run.
    pub planned: Outcome,
    /// From the epoch to the last record; utilisations refer to it.
    pub span: Nanos,
    /// Whether the run came to its end.
    pub complete: bool,
    /// Why it did not.
    pub incomplete: Option<Incomplete>,
    /// Whether the deadlines held.
    pub verdict: RunVerdict,
    /// Sums over everything.
    pub totals: RunTotals,
    /// The streams, in the plan's order.
    pub streams: Vec<StreamSummary>,
    /// The messages, or blocks of messages, in the plan's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<JobsSummary>,
    /// The demands, in the plan's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub demands: Vec<JobsSummary>,
    /// The engines, in the plan's order.
    pub engines: Vec<EngineSummary>,
    /// The links and limits, in the plan's order.
    pub capacities: Vec<CapacitySummary>,
    /// The servers, in the plan's order.
    pub servers: Vec<ServerSummary>,
    /// The steps of all pipelines, in the plan's order.
    pub steps: Vec<StepSummary>,
    /// How the threads that drove the devices were scheduled; absent in simulations and for older logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuSummary>,
    /// The bulk transfers, in the plan's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bulk: Vec<BulkSummary>,
    /// The urgent requests by what they are for, in the plan's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urgent: Vec<UrgentSummary>,
    /// Who waited for whom, longest total first.
    pub blame: Vec<PipelineBlame>,
    /// Streams whose results nothing is compared with: a kernel of the user's own has no CPU form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_compared: Vec<String>,
    /// What the files of the run lack, one sentence each; the figures above are those of the whole run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// How the threads that drove the devices were scheduled, and how late they ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpuSummary {
    /// Classes and lateness.
    #[serde(flatten)]
    pub used: cpu::Use,
    /// What must be true so that threads of the driver's class run in time.
    pub assumes: String,
    /// How late the plan lets the driver be: opening windows and noticing ends, together.
    pub late_max: Nanos,
}

/// Whether the deadlines held: those of all packets, admitted requests, and jobs of messages and demands. Of a run that ended early
/// what was delivered is judged, and what was due by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunVerdict {
    /// The run came to its end, everything expected was delivered at or before its deadline, and no operation failed.
    pub held: bool,
    /// Deadlines there were: expected packets, admitted requests, and jobs of messages and demands.
    pub deadlines: u64,
    /// Of these, delivered late.
    pub misses: u64,
    /// Of these, never delivered.
    pub lost: u64,
    /// Whether an operation failed.
    pub halted: bool,
    /// The verdict as a sentence.
    pub text: String,
    /// What the plan does not allow for and yet happened: the driver was later, or other programs copied over its engines. Held or missed,
    /// the plan does not promise it then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpromised: Option<String>,
}

/// Sums over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunTotals {
    /// Packets expected.
    pub packets: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Bytes of the packets delivered.
    pub bytes: Bytes,
    /// Jobs of messages expected: one for each block and period, whatever carries them.
    pub message_jobs: u64,
    /// Of these, delivered.
    pub message_jobs_delivered: u64,
    /// Bytes of messages that arrived.
    pub message_bytes: Bytes,
    /// Jobs of demands expected.
    pub demand_jobs: u64,
    /// Of these, done.
    pub demand_jobs_done: u64,
    /// Cycles delivered.
    pub cycles: u64,
    /// Jobs named in the log.
    pub jobs: u64,
    /// Operations submitted.
    pub operations: u64,
    /// Jobs that took longer than planned.
    pub overruns: u64,
    /// Jobs that ended after their windows.
    pub late: u64,
    /// Windows that the driver opened late.
    pub releases_late: u64,
    /// Blocks that came after their windows had opened.
    pub data_late: u64,
    /// Wait of all jobs together.
    pub wait: Nanos,
}

/// What one stream experienced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StreamSummary {
    pub id: String,
    /// Ordinal of its GPU; `None` = it is on the CPU.
    pub gpu: Option<u32>,
    /// Its core of the CPU, counted from 0, if it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Name of its pipeline.
    pub pipeline: String,
    /// Packets expected.
    pub packets: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Packets expected and not delivered; of a run that ended early, those that were due by then.
    pub lost: u64,
    /// Bytes of the packets delivered.
    pub bytes: Bytes,
    /// Relative deadline.
    pub deadline: Nanos,
    /// From arrival to delivery; `None` if no packet was delivered.
    pub response: Option<Response>,
    /// The longest response that the plan allows. `None` if the plan does not prove that packets are in time, or did not
    /// compute it.
    pub bound: Option<Nanos>,
    /// Packets delivered after their deadlines.
    pub misses: u64,
    /// Deadline minus longest response in nanoseconds; negative = missed by that much.
    pub worst_slack_ns: Option<i64>,
}

/// What one engine did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineSummary {
    pub name: String,
    /// Ordinal of its GPU; `None` = it is on the CPU.
    pub gpu: Option<u32>,
    /// Its core of the CPU, counted from 0, if it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Time in which at least one of its operations ran.
    pub busy: Nanos,
    /// That time as a share of the span, parts per million, rounded down.
    pub utilisation_ppm: u64,
    /// Operations that ended.
    pub operations: u64,
    /// Bytes of these operations.
    pub bytes: Bytes,
}

/// What crossed one link or limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CapacitySummary {
    pub name: String,
    /// Typical rate.
    pub rate: Rate,
    /// Bytes of it that were used: each operation's bytes times its use, rounded down.
    pub bytes: Bytes,
    /// Those bytes as a share of what the rate allows in the span, parts per million, rounded down.
    pub utilisation_ppm: u64,
}

/// The queue in front of one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerSummary {
    pub name: String,
    /// Jobs that were submitted to it.
    pub jobs: u64,
    /// Jobs that had to wait.
    pub waited: u64,
    /// Longest wait with its causes; `None` if no job waited.
    pub longest: Option<LongestWait>,
}

/// One job's wait in front of its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LongestWait {
    /// The job that waited.
    pub job: JobName,
    /// When it joined the queue, after the epoch.
    pub ready: Nanos,
    /// How long it waited.
    pub wait: Nanos,
    /// The job that occupied the server for the largest part of it; `None` = nobody: the driver was slow.
    pub cause: Option<JobName>,
    /// That part.
    pub by_cause: Nanos,
}

/// A job by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobName {
    pub pipeline: String,
    pub step: String,
    pub cycle: u64,
}

impl std::fmt::Display for JobName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} #{} ({})", self.pipeline, self.cycle, self.step)
    }
}

/// One step of one pipeline: planned and observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepSummary {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Name of the step.
    pub step: String,
    /// Name of its server.
    pub server: String,
    /// Jobs that completed.
    pub jobs: u64,
    /// Worst-case time of one job in the plan.
    pub cost: Nanos,
    /// Longest time that a completed job took on its engines.
    pub took_max: Nanos,
    /// Jobs that took longer than planned.
    pub overruns: u64,
    /// Jobs that ended after their windows.
    pub late: u64,
}

/// How long the jobs of one pipeline waited for those of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PipelineBlame {
    /// Position of the pipeline that waited.
    pub waiting: u32,
    pub waiting_name: String,
    /// Position of the pipeline that occupied the server; `None` = nobody: the driver was slow.
    pub cause: Option<u32>,
    pub cause_name: Option<String>,
    /// All waits together.
    pub total: Nanos,
    /// Waits of one job for one other.
    pub waits: u64,
    /// The longest time that one job waited for one other.
    pub longest: BlamedWait,
}

/// One job's wait for one other job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlamedWait {
    pub wait: Nanos,
    pub server: String,
    /// The job that waited.
    pub job: JobName,
    /// When it joined the queue, after the epoch.
    pub ready: Nanos,
    /// The job it waited for; `None` = nobody: the driver was slow.
    pub cause: Option<JobName>,
}

/// Sums up `log`.
#[must_use]
pub fn summarize(log: &RunLog) -> RunSummary {
    summarize_with(log, &Timeline::new(log))
}

/// Sums up `log`, whose timeline is known already.
#[must_use]
pub fn summarize_with(log: &RunLog, timeline: &Timeline) -> RunSummary {
    let header = log.header();
    let plan = &header.plan;
    let streams = streams(log, timeline);
    let elementary = elementary::jobs(log, timeline);
    let jobs = [&elementary.messages, &elementary.demands].map(|rows| elementary::sum(rows));
    let totals = totals(log, timeline, &streams, jobs);
    let urgent = unplanned::urgent(log, timeline);
    RunSummary {
        schema: SCHEMA,
        source: header.source,
        version: header.version.clone(),
        commit: header.commit.clone(),
        seed: header.seed,
        devices: header.devices.clone(),
        machine: plan.machine.clone(),
        workload: plan.workload.clone(),
        strategy: plan.strategy,
        planned: plan.verdict.outcome,
        span: timeline.span(),
        complete: log.incomplete().is_none(),
        incomplete: log.incomplete().cloned(),
        verdict: verdict(log, timeline, &streams, jobs, &urgent),
        totals,
        streams,
        messages: elementary::summaries(elementary.messages),
        demands: elementary::summaries(elementary.demands),
        engines: engines(log, timeline),
        capacities: capacities(log, timeline),
        servers: servers(log, timeline),
        steps: steps(log, timeline),
        cpu: header.cpu.as_ref().map(|used| CpuSummary {
            used: used.clone(),
            assumes: used.driver().map_or("", SchedulingClass::assumption).to_owned(),
            late_max: plan.jitter,
        }),
        bulk: unplanned::bulk(log, timeline),
        urgent,
        blame: blame(log, timeline),
        not_compared: not_compared(plan),
        left_out: Vec::new(),
    }
}

/// The streams whose results nothing is compared with.
fn not_compared(plan: &Plan) -> Vec<String> {
    let of = |pipeline: &Pipeline| match &pipeline.source {
        PipelineSource::Packets(packets) if !packets.compared => Some(plan.streams[packets.stream as usize].id.clone()),
        _ => None,
    };
    plan.pipelines.iter().filter_map(of).collect()
}

impl RunSummary {
    /// Which results nothing is compared with, as a sentence.
    pub(crate) fn not_compared_text(&self) -> Option<String> {
        /// Streams that are named.
        const NAMED_MAX: usize = 8;
        let named: Vec<String> = self.not_compared.iter().take(NAMED_MAX).map(|id| format!("`{id}`")).collect();
        let more = self.not_compared.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!named.is_empty()).then(|| format!("results not compared: no CPU form ({}{more})", named.join(", ")))
    }
}

fn verdict(
    log: &RunLog,
    timeline: &Timeline,
    streams: &[StreamSummary],
    jobs: [Jobs; 2],
    urgent: &[UrgentSummary],
) -> RunVerdict {
    let halted =
        log.records().iter().any(|record| matches!(record.what, RecordBody::Event(DispatchEvent::Halted { .. })));
    let judged = |stream: &StreamSummary| stream.delivered.saturating_add(stream.lost);
    let mut deadlines: u64 = streams.iter().fold(0, |sum, stream| sum.saturating_add(judged(stream)));
    let mut misses: u64 = streams.iter().map(|stream| stream.misses).sum();
    for of in urgent {
        deadlines = deadlines.saturating_add(of.guaranteed);
        misses += of.misses;
    }
    let mut lost = streams.iter().fold(0, |sum: u64, stream| sum.saturating_add(stream.lost));
    for of in jobs {
        deadlines = deadlines.saturating_add(of.judged());
        misses = misses.saturating_add(of.misses);
        lost = lost.saturating_add(of.lost);
    }
    let fine = misses == 0 && lost == 0 && !halted;
    let noun = if deadlines == 1 { "deadline" } else { "deadlines" };
    let said = match (fine, deadlines) {
        (true, 0) => "nothing was due".to_owned(),
        (true, _) => format!("all {} {noun} held", grouped(deadlines)),
        (false, _) => {
            let of = grouped(deadlines);
            let missed = (misses > 0).then(|| format!("{} of {of} {noun} missed", grouped(misses)));
            let lost = (lost > 0).then(|| format!("{} of {of} never delivered", grouped(lost)));
            let halted = halted.then(|| "a failed operation ended the run".to_owned());
            [missed, lost, halted].into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
    };
    let text = match log.incomplete() {
        None => said,
        Some(why) => format!("INCOMPLETE, {why} after {}: {said} until then", timeline.span()),
    };
    let held = fine && log.incomplete().is_none();
    RunVerdict { held, deadlines, misses, lost, halted, text, unpromised: unpromised(log) }
}

/// What voided the plan's promise, if anything did. Then the plan is not to blame for misses.
fn unpromised(log: &RunLog) -> Option<String> {
    let all: Vec<String> = [late_driver(log), others_on_engines(log)].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Which other programs copied over the plan's engines, where there were more of them than it allows for.
fn others_on_engines(log: &RunLog) -> Option<String> {
    let (others, allowed) = (&log.header().others, log.header().plan.others);
    let on_one = |of: &OtherCopies| others.iter().filter(|o| (o.gpu, o.direction) == (of.gpu, of.direction)).count();
    if others.iter().all(|of| on_one(of) <= allowed as usize) {
        return None;
    }
    let began = log.records().first().map_or(Nanos::ZERO, |record| record.at);
    let all = others.iter().map(|other| {
        let OtherCopies { pid, command, gpu, direction, since, bytes } = other;
        let towards = direction.preposition();
        format!("`{command}` ({pid}) copied {bytes} {towards} GPU {gpu} from {} on", since.saturating_sub(began))
    });
    let all = all.collect::<Vec<_>>().join(", ");
    let how_many = if allowed == 0 { String::new() } else { format!("more than {allowed} ") };
    Some(format!("the plan does not promise this beside {how_many}other programs on its engines: {all}"))
}

/// Where the driver was later than the plan allows, how late.
fn late_driver(log: &RunLog) -> Option<String> {
    let header = log.header();
    let allowed = header.plan.jitter;
    let opened = log.records().iter().filter_map(|record| match record.what {
        RecordBody::Event(DispatchEvent::ReleaseLate { by, .. }) => Some(by),
        _ => None,
    });
    let longest = [
        ("windows were opened", opened.max()),
        ("the driver was woken", header.cpu.as_ref().map(|used| used.woken.max)),
        ("ends were seen", header.cpu.as_ref().map(|used| used.noticed.max)),
    ];
    let late = longest
        .iter()
        .filter_map(|(what, late)| late.filter(|late| *late > allowed).map(|late| format!("{what} up to {late} late")));
    let late = late.collect::<Vec<_>>().join(", ");
    (!late.is_empty()).then(|| format!("the plan does not promise this on a host where {late}: it allows {allowed}"))
}

/// Digits in groups of three, as in `12 345`; four digits stay together.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn totals(log: &RunLog, timeline: &Timeline, streams: &[StreamSummary], [messages, demands]: [Jobs; 2]) -> RunTotals {
    let mut totals = RunTotals {
        packets: streams.iter().map(|stream| stream.packets).sum(),
        delivered: streams.iter().map(|stream| stream.delivered).sum(),
        bytes: Bytes(streams.iter().fold(0, |sum: u64, stream| sum.saturating_add(stream.bytes.0))),
        message_jobs: messages.expected,
        message_jobs_delivered: messages.delivered,
        message_bytes: messages.bytes,
        demand_jobs: demands.expected,
        demand_jobs_done: demands.delivered,
        cycles: timeline.deliveries.len() as u64,
        jobs: timeline.jobs.len() as u64,
        operations: timeline.operations.len() as u64,
        overruns: timeline.jobs.iter().filter(|job| job.overrun).count() as u64,
        late: timeline.jobs.iter().filter(|job| job.late.is_some()).count() as u64,
        wait: timeline.jobs.iter().fold(Nanos::ZERO, |sum, job| sum.saturating_add(job.wait())),
        ..RunTotals::default()
    };
    for record in log.records() {
        match record.what {
            RecordBody::Event(DispatchEvent::ReleaseLate { .. }) => totals.releases_late += 1,
            RecordBody::Event(DispatchEvent::DataLate { .. }) => totals.data_late += 1,
            _ => {}
        }
    }
    totals
}

fn streams(log: &RunLog, timeline: &Timeline) -> Vec<StreamSummary> {
    let header = log.header();
    let plan = &header.plan;
    let mut responses: Vec<Vec<Nanos>> = vec![Vec::new(); plan.streams.len()];
    let mut bytes = vec![0u64; plan.streams.len()];
    let mut early = vec![0u64; plan.streams.len()];
    for packet in timeline.packets(log) {
        responses[packet.stream as usize].push(packet.response());
        early[packet.stream as usize] += u64::from(packet.deadline > due::until(log, timeline));
        let sum = &mut bytes[packet.stream as usize];
        *sum = sum.saturating_add(packet.bytes.0);
    }
    let of_stream = |(index, responses): (usize, &mut Vec<Nanos>)| {
        let planned = &plan.streams[index];
        let packets = header.streams[index].packets;
        responses.sort_unstable();
        let delivered = responses.len() as u64;
        let due = due::count(log, timeline, packets, planned.start.saturating_add(planned.deadline), planned.period);
        let response = order_statistics(responses);
        StreamSummary {
            id: planned.id.clone(),
            gpu: planned.gpu,
            cpu: plan.core_of(&plan.pipelines[planned.pipeline as usize]),
            pipeline: plan.pipelines[planned.pipeline as usize].name.clone(),
            packets,
            delivered,
            lost: due.saturating_sub(delivered - early[index]),
            bytes: Bytes(bytes[index]),
            deadline: planned.deadline,
            response,
            bound: plan.pipelines[planned.pipeline as usize].bound(),
            misses: responses.iter().filter(|response| **response > planned.deadline).count() as u64,
            worst_slack_ns: response.map(|response| planned.deadline.0.cast_signed() - response.max.0.cast_signed()),
        }
    };
    responses.iter_mut().enumerate().map(of_stream).collect()
}

fn engines(log: &RunLog, timeline: &Timeline) -> Vec<EngineSummary> {
    let plan = &log.header().plan;
    let mut busy: Vec<Vec<(Nanos, Nanos)>> = vec![Vec::new(); plan.engines.len()];
    let mut bytes = vec![0u64; plan.engines.len()];
    for operation in &timeline.operations {
        let Some(ended) = operation.ended else { continue };
        for engine in &timeline.planned(log, operation).engines {
            busy[engine.at()].push((ended.started, ended.finished));
            bytes[engine.at()] = bytes[engine.at()].saturating_add(operation.bytes.0);
        }
    }
    let of_engine = |(index, busy): (usize, &mut Vec<(Nanos, Nanos)>)| {
        let planned = &plan.engines[index];
        let operations = busy.len() as u64;
        let busy = union(busy);
        EngineSummary {
            name: planned.name.clone(),
            gpu: planned.gpu,
            cpu: plan.core(index),
            busy,
            utilisation_ppm: share_ppm(u128::from(busy.0), u128::from(timeline.span().0)),
            operations,
            bytes: Bytes(bytes[index]),
        }
    };
    busy.iter_mut().enumerate().map(of_engine).collect()
}

/// Length of the union of intervals.
fn union(intervals: &mut [(Nanos, Nanos)]) -> Nanos {
    intervals.sort_unstable();
    let mut covered = Nanos::ZERO;
    let mut length = Nanos::ZERO;
    for &mut (from, to) in intervals {
        length = length + to.saturating_sub(from.max(covered));
        covered = covered.max(to);
    }
    length
}

fn share_ppm(part: u128, whole: u128) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(part.saturating_mul(u128::from(PPM)) / whole).unwrap_or(u64::MAX)
}

fn capacities(log: &RunLog, timeline: &Timeline) -> Vec<CapacitySummary> {
    let plan = &log.header().plan;
    let mut used = vec![0u128; plan.capacities.len()];
    for operation in timeline.operations.iter().filter(|operation| operation.ended.is_some()) {
        if let OperationWork::Copy { uses, .. } = &timeline.planned(log, operation).work {
            for (capacity, ppm) in uses {
                used[capacity.at()] += u128::from(operation.bytes.0) * u128::from(*ppm) / u128::from(PPM);
            }
        }
    }
    let of_capacity = |(planned, used): (&PlannedCapacity, u128)| CapacitySummary {
        name: planned.name.clone(),
        rate: planned.rate,
        bytes: Bytes(u64::try_from(used).unwrap_or(u64::MAX)),
        utilisation_ppm: share_ppm(
            used.saturating_mul(u128::from(NANOS_PER_SECOND)),
            u128::from(planned.rate.0) * u128::from(timeline.span().0),
        ),
    };
    plan.capacities.iter().zip(used).map(of_capacity).collect()
}

/// `job` by name.
pub(crate) fn name(log: &RunLog, job: &StepJob) -> JobName {
    let pipeline = &log.header().plan.pipelines[job.pipeline as usize];
    let step = pipeline.steps[job.step as usize].name.clone();
    JobName { pipeline: pipeline.name.clone(), step, cycle: job.cycle }
}

fn servers(log: &RunLog, timeline: &Timeline) -> Vec<ServerSummary> {
    let plan = &log.header().plan;
    let empty = |server: &Server| ServerSummary { name: server.name.clone(), jobs: 0, waited: 0, longest: None };
    let mut servers: Vec<ServerSummary> = plan.servers.iter().map(empty).collect();
    let mut longest: Vec<Option<usize>> = vec![None; servers.len()];
    for (index, job) in timeline.jobs.iter().enumerate().filter(|(_, job)| job.submitted.is_some()) {
        let server = timeline.step(log, index).server as usize;
        servers[server].jobs += 1;
        if job.wait() > Nanos::ZERO {
            servers[server].waited += 1;
            if longest[server].is_none_or(|best| job.wait() > timeline.jobs[best].wait()) {
                longest[server] = Some(index);
            }
        }
    }
    for (server, longest) in servers.iter_mut().zip(longest) {
        let Some(job) = longest.map(|index| &timeline.jobs[index]) else { continue };
        let main = job.longest_wait();
        server.longest = Some(LongestWait {
            job: name(log, job),
            ready: job.ready.unwrap_or_default().saturating_sub(timeline.epoch),
            wait: job.wait(),
            cause: main.and_then(|wait| wait.cause).map(|cause| name(log, &timeline.jobs[cause])),
            by_cause: main.map_or(Nanos::ZERO, |wait| wait.time),
        });
    }
    servers
}

fn steps(log: &RunLog, timeline: &Timeline) -> Vec<StepSummary> {
    let plan = &log.header().plan;
    let mut firsts = Vec::new();
    let mut steps = Vec::new();
    for pipeline in &plan.pipelines {
        firsts.push(steps.len());
        for step in &pipeline.steps {
            steps.push(StepSummary {
                pipeline: pipeline.name.clone(),
                step: step.name.clone(),
                server: plan.servers[step.server as usize].name.clone(),
                jobs: 0,
                cost: step.cost,
                took_max: Nanos::ZERO,
                overruns: 0,
                late: 0,
            });
        }
    }
    for job in timeline.jobs.iter().filter(|job| job.completed.is_some()) {
        let step = &mut steps[firsts[job.pipeline as usize] + job.step as usize];
        step.jobs += 1;
        step.took_max = step.took_max.max(job.took);
        step.overruns += u64::from(job.overrun);
        step.late += u64::from(job.late.is_some());
    }
    steps
}

fn blame(log: &RunLog, timeline: &Timeline) -> Vec<PipelineBlame> {
    let plan = &log.header().plan;
    let pipeline = |index: u32| plan.pipelines[index as usize].name.clone();
    let mut pairs: BTreeMap<(u32, Option<u32>), PipelineBlame> = BTreeMap::new();
    for (index, job) in timeline.jobs.iter().enumerate() {
        for wait in &job.waits {
            let cause = wait.cause.map(|cause| &timeline.jobs[cause]);
            let described = || BlamedWait {
                wait: wait.time,
                server: plan.servers[timeline.step(log, index).server as usize].name.clone(),
                job: name(log, job),
                ready: job.ready.unwrap_or_default().saturating_sub(timeline.epoch),
                cause: cause.map(|cause| name(log, cause)),
            };
            let key = (job.pipeline, cause.map(|cause| cause.pipeline));
            let pair = pairs.entry(key).or_insert_with(|| PipelineBlame {
                waiting: job.pipeline,
                waiting_name: pipeline(job.pipeline),
                cause: key.1,
                cause_name: key.1.map(pipeline),
                total: Nanos::ZERO,
                waits: 0,
                longest: described(),
            });
            pair.total = pair.total.saturating_add(wait.time);
            pair.waits += 1;
            if wait.time > pair.longest.wait {
                pair.longest = described();
            }
        }
    }
    let mut pairs: Vec<PipelineBlame> = pairs.into_values().collect();
    pairs.sort_by_key(|pair| std::cmp::Reverse(pair.total));
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_intervals_count_once() {
        let mut intervals = [(5, 9), (1, 4), (3, 6), (20, 25), (21, 22), (23, 26)].map(|(a, b)| (Nanos(a), Nanos(b)));
        assert_eq!(union(&mut intervals), Nanos(8 + 6));
    }
}
