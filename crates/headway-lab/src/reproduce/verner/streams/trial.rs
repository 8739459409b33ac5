//! One run of a plan on devices, and what is kept of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use crate::ring::{BlockRing, Checker, Sampling, VerifiedBlocks};
use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::models::cpu::DelayStatistics;
use headway_core::plan::{Pipeline, Plan};
use headway_core::units::{Bytes, Nanos};
use headway_kernels::Shipped;
use headway_runtime::kernels::Kernels;
use headway_runtime::wall::{self, RunError, SuppliedRun};

use super::cycle_of;
use super::search::Case;
use crate::Error;
use crate::reproduce::site::{Site, with_causes};

/// Streams of each GPU that are compared with the CPU byte by byte, and those that have their turn in each block.
const SAMPLING: Sampling = Sampling { streams: 32, turns: 32, chains: None };
/// Fewer where blocks come within this time of each other: the thread that compares must catch up after the host has stopped it.
const OFTEN: Nanos = Nanos(2_000_000);
const OFTEN_SAMPLED: usize = 8;
/// Cycles that can hold buffers beyond one per step: so many, and as many as begin in this time, since whoever fills and empties
/// them may be late by several short ones.
const SPARE_CYCLES: usize = 2;
const SPARE: Nanos = Nanos(30_000_000);
const SPARE_CYCLES_MAX: usize = 60;
/// A deadline missed in so many blocks ends a run that was to end at a miss.
const MISSES_MAX: u64 = 1;

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// When its time is over and the CPU has encrypted all of it again.
    End,
    /// When its time is over.
    Over,
    /// At the first missed deadline.
    Miss,
}

/// Entries of [`Trial::lates`] that are kept.
pub(super) const LATES_MAX: usize = 2_000;

/// Something that happened late.
#[derive(Clone, Debug)]
pub(super) struct Late {
    /// After the epoch.
    pub(super) at: Nanos,
    /// `window`: it opened late; `data`: the block was not there; `job`: it ended after its window; `overrun`: it took longer
    /// than its worst case; `packets`: they were delivered after their deadlines.
    pub(super) what: &'static str,
    pub(super) pipeline: u32,
    pub(super) cycle: u64,
    /// By how much; for several packets, the longest lateness of those that the event names.
    pub(super) by: Nanos,
    /// Packets of the block; one of everything else.
    pub(super) count: u64,
}

/// What is kept of a run.
#[derive(Default)]
pub(super) struct Trial {
    pub(super) cycles: u64,
    /// From the epoch to the last delivery.
    pub(super) took: Nanos,
    /// Per block delivered: pipeline, cycle, and time from the arrival of its oldest byte.
    pub(super) responses: Vec<(u32, u64, Nanos)>,
    /// Per step's name: cost in the plan, and how long each job's operation took on its engine.
    pub(super) steps: BTreeMap<String, (Nanos, Vec<Nanos>)>,
    /// Packets after their deadline.
    pub(super) misses: u64,
    /// Those of streams on the CPU.
    pub(super) misses_on_cpu: u64,
    /// Jobs after their window.
    pub(super) late: u64,
    /// Jobs longer than the plan's worst case.
    pub(super) overruns: u64,
    /// Blocks not there when their first window opened.
    pub(super) data_late: u64,
    /// Windows opened later than the plan's jitter allows.
    pub(super) release_late: u64,
    /// Packets that were due.
    pub(super) packets: u64,
    /// What was late, in order, the first so many.
    pub(super) lates: Vec<Late>,
    /// How long after the times that it had asked for the driver ran.
    pub(super) woken: DelayStatistics,
    /// CPU time that the host took from this machine's CPUs meanwhile, where it is a virtual machine that says so; to 10 ms.
    pub(super) stolen: Option<Nanos>,
    pub(super) verified: VerifiedBlocks,
    /// The CPUs of the cores that served, where they had CPUs of their own.
    pub(super) cpus: Vec<u32>,
    /// Why it ended before its time.
    pub(super) failure: Option<String>,
}

impl Trial {
    /// Whether it went to its end without a miss.
    pub(super) fn is_clean(&self) -> bool {
        self.misses == 0 && self.failure.is_none()
    }
}

/// Watches a run.
struct Watch<'a> {
    plan: &'a Plan,
    trial: Trial,
    epoch: Nanos,
    /// Pipeline and step of operations under way.
    under_way: BTreeMap<u64, (u32, u32)>,
    until: Until,
    stop: Arc<AtomicBool>,
}

impl Watch<'_> {
    fn see(&mut self, record: &LogRecord) {
        match &record.what {
            RecordBody::Input(DispatchInput::Start { epoch, .. }) => self.epoch = *epoch,
            RecordBody::Action(DispatchAction::Submit { operation, pipeline, step, .. }) => {
                self.under_way.insert(*operation, (*pipeline, *step));
            }
            RecordBody::Input(DispatchInput::Done { operation, started, finished }) => {
                if let Some((pipeline, step)) = self.under_way.remove(operation) {
                    let name = step_name(self.plan, &self.plan.pipelines[pipeline as usize], step as usize);
                    let entry = self.trial.steps.get_mut(&name).expect("steps were entered before the run");
                    entry.1.push(finished.saturating_sub(*started));
                }
            }
            RecordBody::Action(DispatchAction::Deliver { pipeline, cycle }) => {
                let planned = &self.plan.pipelines[*pipeline as usize];
                let arrived = self.epoch + planned.start + planned.period * *cycle;
                self.trial.responses.push((*pipeline, *cycle, record.at.saturating_sub(arrived)));
                self.trial.took = record.at.saturating_sub(self.epoch);
            }
            RecordBody::Event(event) => self.event(record.at.saturating_sub(self.epoch), event),
            RecordBody::Input(_) | RecordBody::Action(DispatchAction::Drop { .. }) => {}
        }
    }

    fn missed(&mut self, packets: u64, on_cpu: bool) {
        self.trial.misses += packets;
        self.trial.misses_on_cpu += packets * u64::from(on_cpu);
        if self.until == Until::Miss && self.trial.misses >= MISSES_MAX {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Keeps what was late; packets of one block are one entry.
    fn late(&mut self, what: &'static str, at: Nanos, pipeline: u32, cycle: u64, by: Nanos, count: u64) {
        let lates = &mut self.trial.lates;
        if let Some(last) =
            lates.last_mut().filter(|last| (last.what, last.pipeline, last.cycle) == (what, pipeline, cycle))
        {
            (last.by, last.count) = (last.by.max(by), last.count + count);
        } else if lates.len() < LATES_MAX {
            lates.push(Late { at, what, pipeline, cycle, by, count });
        }
    }

    fn event(&mut self, at: Nanos, event: &DispatchEvent) {
        match *event {
            DispatchEvent::Missed { stream, packet, by } => {
                let planned = &self.plan.streams[stream as usize];
                self.missed(1, planned.gpu.is_none());
                // Every stream sends one packet in every cycle.
                self.late("packets", at, planned.pipeline, packet, by, 1);
            }
            DispatchEvent::MissedMore { pipeline, cycle, packets } => {
                self.missed(packets, self.plan.core_of(&self.plan.pipelines[pipeline as usize]).is_some());
                self.late("packets", at, pipeline, cycle, Nanos::ZERO, packets);
            }
            DispatchEvent::Late { pipeline, cycle, by, .. } => {
                self.trial.late += 1;
                self.late("job", at, pipeline, cycle, by, 1);
            }
            DispatchEvent::Overrun { pipeline, cycle, cost, took, .. } => {
                self.trial.overruns += 1;
                self.late("overrun", at, pipeline, cycle, took.saturating_sub(cost), 1);
            }
            DispatchEvent::DataLate { pipeline, cycle, by } => {
                self.trial.data_late += 1;
                self.late("data", at, pipeline, cycle, by, 1);
            }
            DispatchEvent::ReleaseLate { pipeline, cycle, by, .. } => {
                self.trial.release_late += 1;
                self.late("window", at, pipeline, cycle, by, 1);
            }
            _ => {}
        }
    }
}

/// An empty vector whose memory is there: the system gives pages when they are first written, which can take longer than a window.
fn room<T: Clone>(count: usize, anything: T) -> Vec<T> {
    let mut room = vec![anything; count];
    room.clear();
    room
}

/// Runs a plan for `duration`. What goes wrong once it runs is part of the trial.
pub(super) fn run(site: &mut Site, case: &Case, duration: Nanos, until: Until) -> Result<Trial, Error> {
    let plan = &case.plan;
    let kernels = Kernels::of(plan, &case.workload, &Shipped)?;
    let cycles_of = |pipeline: &Pipeline| duration.0.div_ceil(pipeline.period.0.max(1)).max(1);
    let cycles: Vec<u64> = plan.pipelines.iter().map(cycles_of).collect();
    let packets = plan.streams.iter().map(|stream| cycles[stream.pipeline as usize]).collect();
    let ring = BlockRing::new(plan, case.workload.seed).expect("every stream sends one packet in every cycle");
    // Encrypting all of it again takes the CPU longer than the run; others ask for misses.
    let often = plan.pipelines.iter().any(|pipeline| pipeline.period < OFTEN);
    let sampled = if often { OFTEN_SAMPLED } else { SAMPLING.streams };
    let sampling = Sampling { streams: sampled, turns: sampled, chains: (until == Until::End).then(|| cycles.clone()) };
    let (checker, found) = Checker::new(&ring, plan, &kernels, sampling).map_err(headway::Failure::Data)?;
    let stop = Arc::new(AtomicBool::new(false));
    // A GPU's windows are worth a busy CPU; the emulated device needs that CPU itself.
    let spin = if site.source == "cuda" { Nanos(200_000) } else { Nanos::ZERO };
    let options = wall::WallOptions {
        spin,
        spare_cycles: spare_cycles(plan),
        interrupt: Arc::clone(&stop),
        class: site.class,
        ..wall::WallOptions::default()
    };
    let work = SuppliedRun {
        plan,
        kernels: &kernels,
        cycles: cycles.clone(),
        packets,
        supply: Box::new(ring),
        collect: Box::new(checker),
        inputs: Vec::new(),
        requests: Default::default(),
    };
    let packets_due = plan.streams.iter().map(|stream| cycles[stream.pipeline as usize]).sum();
    let mut trial =
        Trial { cycles: cycles.iter().copied().max().unwrap_or(0), packets: packets_due, ..Trial::default() };
    trial.responses = room(cycles.iter().sum::<u64>() as usize, (u32::MAX, u64::MAX, Nanos::MAX));
    let nothing =
        Late { at: Nanos::MAX, what: "", pipeline: u32::MAX, cycle: u64::MAX, by: Nanos::MAX, count: u64::MAX };
    trial.lates = room(LATES_MAX, nothing);
    for (pipeline, &cycles) in plan.pipelines.iter().zip(&cycles) {
        for at in 0..pipeline.steps.len() {
            let entry = trial.steps.entry(step_name(plan, pipeline, at)).or_default();
            entry.0 = entry.0.max(pipeline.steps[at].cost);
            entry.1 = room(entry.1.capacity() + cycles as usize, Nanos::MAX);
        }
    }
    let mut watch = Watch { plan, trial, epoch: Nanos::ZERO, under_way: BTreeMap::new(), until, stop };
    let stolen = stolen();
    let outcome = wall::run_work(work, &mut site.devices, &options, |record| watch.see(record), |_| {});
    let mut trial = watch.trial;
    trial.stolen = stolen.zip(self::stolen()).map(|(before, after)| after.saturating_sub(before));
    match outcome {
        Ok(outcome) => (trial.cpus, trial.woken) = (outcome.cpus, outcome.cpu.woken),
        Err(RunError::Interrupted { cpu }) if trial.misses > 0 => {
            trial.woken = cpu.map_or_else(DelayStatistics::default, |cpu| cpu.woken);
        }
        Err(error @ (RunError::Prepare { .. } | RunError::State(_) | RunError::Unsupported { .. })) => {
            return Err(error.into());
        }
        Err(error) => trial.failure = Some(with_causes(&error)),
    }
    trial.verified = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(trial)
}

/// CPU time that the host has taken from this machine since it started, as the kernel counts it; `None` where it does not.
fn stolen() -> Option<Nanos> {
    /// A tick of the kernel's statistics.
    const TICK: u64 = 10_000_000;
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    // "cpu", then user, nice, system, idle, iowait, irq, softirq, steal.
    let ticks: u64 = text.lines().next()?.split_whitespace().nth(8)?.parse().ok()?;
    Some(Nanos(ticks * TICK))
}

fn spare_cycles(plan: &Plan) -> usize {
    ((SPARE.0 / cycle_of(plan).0.max(1)) as usize).clamp(SPARE_CYCLES, SPARE_CYCLES_MAX)
}

/// What a step is called in figures: those on the CPU by their core.
fn step_name(plan: &Plan, pipeline: &Pipeline, step: usize) -> String {
    let name = &pipeline.steps[step].name;
    plan.core_of(pipeline).map_or_else(|| name.clone(), |core| format!("{name} on cpu{core}"))
}

/// Bytes of all portions of one cycle of the GPUs.
pub(super) fn cycle_bytes(plan: &Plan) -> Bytes {
    Bytes(plan.streams.iter().filter(|stream| stream.gpu.is_some()).map(|stream| stream.packet.0).sum())
}
