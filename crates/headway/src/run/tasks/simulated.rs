//! Tasks in virtual time: every job takes as long as the workload says, copies go at the rate that routes keep.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_core::decisions::predictor::Form;
use headway_core::decisions::sharing::Distances;
use headway_core::files::error::Loaded;
use headway_core::files::workload::{SharingTable, Workload, WorkloadTask};
use headway_core::units::{Bytes, Nanos};
use headway_sim::sharing::{
    ArbitrationScheme, Cluster, ClusterCosts, ClusterSetting, CopyEngines, Finished, Migration, OpKind, Scenario,
    SimEvent, SimObserver, SimRecord, Taking, simulate,
};
use headway_trace::sharing::{CompletedJob, Doing, GpuEngine, JobBounds, JobSpan, Unit};

use headway_core::decisions::engine_lock::{LockOrder, PeerLocks};

use super::super::{Progress, RunOptions};
use super::Ran;
use crate::share::Model;
use crate::{Error, Failure};

pub(super) fn run(
    model: &Model,
    workload: &Loaded<Workload>,
    sharing: &SharingTable,
    options: &RunOptions,
    seed: u64,
    progress: &mut impl FnMut(Progress),
) -> Result<Ran, Error> {
    let scenario = scenario(model, sharing);
    let gpus = model.report.gpus.len();
    let cluster = Cluster {
        cpus: sharing.cpus,
        copy_engines: if sharing.copy_engines == 1 { CopyEngines::One } else { CopyEngines::Two },
        distances: Distances::uniform(gpus),
        costs: ClusterCosts {
            to_gpu: model.rate,
            from_gpu: model.rate,
            peer: vec![model.rate],
            copy_setup: model.setup,
            call: Nanos::ZERO,
            grant: Nanos::ZERO,
            handover: Nanos::ZERO,
        },
        tasks: workload.value.tasks.iter().map(|task| simulated(task, gpus)).collect(),
    };
    let setting = ClusterSetting {
        scenario,
        tokens_per_gpu: Some(sharing.tokens_per_gpu),
        order: LockOrder::Arrival,
        mode: model.report.mode,
        predictor: Form::WINDOW,
        seed,
        until: options.duration.unwrap_or(workload.value.duration),
    };
    progress(Progress { phase: "simulating", done: 0, total: 1 });
    let tasks = cluster.tasks.len();
    let (two, interrupt) = (sharing.copy_engines == 2, &options.interrupt);
    let mut watch =
        Watch { open: vec![Open::default(); tasks], two, jobs: Vec::new(), interrupt, interrupted: Cell::new(false) };
    simulate(&cluster, &setting, &mut watch).map_err(Failure::Sharing)?;
    let bound = |task: &crate::share::TaskReport| {
        Some(JobBounds { token: task.token_wait, engines: task.engine_wait, blocking: task.blocking })
    };
    let mut bounds: Vec<_> = model.report.tasks.iter().map(bound).collect();
    bounds.resize(tasks, None);
    let notes = vec![
        "simulated: every job takes the longest times that the workload says, and copies the rate that every route keeps"
            .to_owned(),
    ];
    let interrupted = watch.interrupted.get();
    Ok(Ran { jobs: watch.jobs, bounds, verified: 0, notes, interrupted })
}

fn scenario(model: &Model, sharing: &SharingTable) -> Scenario {
    let taking = match sharing.peer_locks {
        PeerLocks::Group => Taking::Group,
        PeerLocks::Nested => Taking::Nested,
        PeerLocks::GroupBackfill => Taking::Backfill,
    };
    Scenario {
        affinity: sharing.affinity,
        arbitration: if sharing.engine_locks { ArbitrationScheme::EngineLocks } else { ArbitrationScheme::TokenOnly },
        taking,
        migration: if model.peer || model.report.gpus.len() == 1 { Migration::Peer } else { Migration::System },
        chunk: sharing.chunk,
    }
}

fn simulated(task: &WorkloadTask, gpus: usize) -> headway_sim::sharing::SimTask {
    headway_sim::sharing::SimTask {
        name: task.id.clone(),
        period: task.period,
        deadline: task.deadline,
        start: task.start,
        state: if gpus > 1 { task.state } else { Bytes(0) },
        before: task.before(),
        segments: task.held().to_vec(),
        after: task.after(),
        jitter_ppm: 0,
    }
}

/// The present job of a task.
#[derive(Clone, Debug, Default)]
struct Open {
    spans: Vec<JobSpan>,
    doing: Option<(Doing, Nanos, [Option<GpuEngine>; 2])>,
    held: [Nanos; 2],
    gpu: u32,
    from: Option<u32>,
}

/// Writes down what jobs do.
struct Watch<'a> {
    open: Vec<Open>,
    /// Two copy engines per GPU.
    two: bool,
    jobs: Vec<CompletedJob>,
    interrupt: &'a AtomicBool,
    /// Whether the simulation was told to end.
    interrupted: Cell<bool>,
}

impl Open {
    /// What was done until `at` is over.
    fn turn(&mut self, at: Nanos, next: Option<(Doing, [Option<GpuEngine>; 2])>) {
        if let Some((doing, begin, engines)) = self.doing.take()
            && at > begin
        {
            self.spans.push(JobSpan { doing, begin, end: at, engines, bytes: Bytes(0) });
        }
        self.doing = next.map(|(doing, engines)| (doing, at, engines));
    }

    fn engines(&self, kind: OpKind, two: bool) -> [Option<GpuEngine>; 2] {
        let outbound = if two { Unit::D2h } else { Unit::H2d };
        let here = |unit| Some(GpuEngine { gpu: self.gpu, unit });
        match kind {
            OpKind::Execute => [here(Unit::Ee), None],
            OpKind::Input | OpKind::StateIn => [here(Unit::H2d), None],
            OpKind::Output | OpKind::StateOut => [here(outbound), None],
            OpKind::Peer => [here(Unit::H2d), self.from.map(|gpu| GpuEngine { gpu, unit: outbound })],
        }
    }
}

impl SimObserver for Watch<'_> {
    fn goes_on(&self) -> bool {
        self.interrupted.set(self.interrupt.load(Ordering::Relaxed));
        !self.interrupted.get()
    }

    fn record(&mut self, record: &SimRecord) {
        let (at, two) = (record.at, self.two);
        let Some(open) = self.open.get_mut(record.job.task.0 as usize) else { return };
        let plain = |doing| Some((doing, [None; 2]));
        match record.what {
            SimEvent::Started => {
                *open = Open::default();
                open.turn(at, plain(Doing::CpuWait));
            }
            SimEvent::OnCpu => open.turn(at, plain(Doing::Cpu)),
            SimEvent::Preempted | SimEvent::Ran { .. } => open.turn(at, plain(Doing::CpuWait)),
            SimEvent::Asked => open.turn(at, plain(Doing::TokenWait)),
            SimEvent::Granted { gpu, from } => {
                (open.held[0], open.gpu, open.from) = (at, gpu, from);
                open.turn(at, plain(Doing::HandOver));
            }
            SimEvent::Acquiring { kind } => {
                let engines = open.engines(kind, two);
                open.turn(at, Some((Doing::EngineWait, engines)));
            }
            SimEvent::Obtained { .. } => {}
            SimEvent::Running { kind, .. } => {
                let engines = open.engines(kind, two);
                let doing = if kind == OpKind::Execute { Doing::Execute } else { Doing::Copy };
                open.turn(at, Some((doing, engines)));
            }
            SimEvent::Released => {
                open.held[1] = at;
                open.turn(at, plain(Doing::CpuWait));
            }
            SimEvent::Completed => open.turn(at, None),
        }
    }

    fn job(&mut self, finished: &Finished) {
        let Some(open) = self.open.get_mut(finished.job.task.0 as usize) else { return };
        self.jobs.push(CompletedJob {
            task: finished.job.task.0,
            job: finished.job.job,
            release: finished.release,
            start: finished.start,
            deadline: finished.deadline,
            done: finished.done,
            held: open.held,
            gpu: finished.gpu,
            from: finished.from,
            blocked: [finished.blocked.token, finished.blocked.engines],
            spans: std::mem::take(&mut open.spans),
        });
    }
}
