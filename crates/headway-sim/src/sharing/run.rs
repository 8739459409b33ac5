//! The event loop: releases, CPUs under EDF, engines.

use std::collections::VecDeque;

use headway_core::decisions::sharing::{Arbiter, JobId, JobPriority, TaskId};
use headway_core::units::Nanos;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::hardware::Hardware;
use super::job::{Draw, Op, OpKind, SimStep, begin};
use super::model::{Cluster, ClusterSetting};
use super::observe::{Blocked, Finished, SimEvent, SimObserver, SimRecord, SimTotals};
use super::{SimSharingError, arbiter};

/// What a job is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Between two jobs.
    Idle,
    /// Wants a CPU for `left`.
    Ready { left: Nanos },
    /// Has one since `since`, when `left` was left.
    Running { left: Nanos, since: Nanos },
    /// Waits for a token.
    Token,
    /// The notice of a grant is on its way to it.
    Delay { until: Nanos },
    /// Waits for engine locks.
    Lock,
    /// Its operation waits in the driver.
    Queued,
    /// Its operation runs.
    Device { until: Nanos },
}

/// How far the present step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Begin,
    Asked,
    /// Holds the first of two locks.
    First,
    /// Has what it asked for.
    Granted,
    /// Has spent the CPU time of the step.
    Called,
    /// The operation is in the driver.
    Submitted,
}

/// A task and its present job.
pub(super) struct RunningJob {
    pub(super) id: JobId,
    pub(super) key: JobPriority,
    pub(super) effective: JobPriority,
    pub(super) start: Nanos,
    pub(super) draw: Draw,
    pub(super) steps: Vec<SimStep>,
    pub(super) next: usize,
    pub(super) stage: Stage,
    pub(super) phase: Phase,
    pub(super) gpu: u32,
    pub(super) from: Option<u32>,
    pub(super) last: Option<u32>,
    pub(super) holds: bool,
    /// Time that the predictor counts.
    pub(super) own: Nanos,
    in_top: bool,
    mark: Nanos,
    /// Present wait for engines, as far as it is blocking.
    wait: Nanos,
    blocked: Blocked,
    pub(super) random: Pcg64Mcg,
}

pub(super) struct Simulation<'a, O> {
    pub(super) cluster: &'a Cluster,
    pub(super) setting: &'a ClusterSetting,
    pub(super) observer: &'a mut O,
    pub(super) now: Nanos,
    pub(super) jobs: Vec<RunningJob>,
    /// `None` where the driver arbitrates.
    pub(super) arbiter: Option<Arbiter>,
    pub(super) hardware: Hardware,
    /// Jobs whose phase has ended.
    pub(super) ready: VecDeque<usize>,
    /// Jobs on each GPU, for the load balancer.
    pub(super) users: Vec<u32>,
    /// Whether who runs on the CPUs must be decided anew.
    pub(super) cpus_changed: bool,
    order: Vec<(JobPriority, usize)>,
    totals: SimTotals,
}

/// Simulates one cluster; clusters of a node share nothing, so each is a simulation of its own.
///
/// # Errors
/// [`SimSharingError`].
pub fn simulate<O: SimObserver>(
    cluster: &Cluster,
    setting: &ClusterSetting,
    observer: &mut O,
) -> Result<SimTotals, SimSharingError> {
    super::check(cluster)?;
    let mut simulation = Simulation {
        cluster,
        setting,
        observer,
        now: Nanos::ZERO,
        jobs: (0..cluster.tasks.len()).map(|task| RunningJob::first(cluster, setting, task)).collect(),
        arbiter: arbiter::build(cluster, setting)?,
        hardware: Hardware::new(cluster.gpus()),
        ready: VecDeque::new(),
        users: vec![0; cluster.gpus() as usize],
        cpus_changed: false,
        order: Vec::new(),
        totals: SimTotals { jobs: 0, migrations: 0, cpu: Nanos::ZERO, engines: Vec::new(), instants: 0 },
    };
    while simulation.observer.goes_on() && simulation.step()? {}
    simulation.totals.engines = simulation.hardware.busy().to_vec();
    Ok(simulation.totals)
}

impl RunningJob {
    fn first(cluster: &Cluster, setting: &ClusterSetting, task: usize) -> Self {
        let id = JobId { task: TaskId(task as u32), job: 0 };
        let start = cluster.tasks[task].start;
        let key = JobPriority { deadline: start, release: start, job: id };
        Self {
            id,
            key,
            effective: key,
            start,
            draw: Draw::new(0, [0; 2]),
            steps: Vec::new(),
            next: 0,
            stage: Stage::Begin,
            phase: Phase::Idle,
            gpu: 0,
            from: None,
            last: None,
            holds: false,
            own: Nanos::ZERO,
            in_top: false,
            mark: Nanos::ZERO,
            wait: Nanos::ZERO,
            blocked: Blocked::default(),
            random: Pcg64Mcg::seed_from_u64(setting.seed.rotate_left(32) ^ task as u64),
        }
    }

    /// The operation of the present step.
    pub(super) fn op(&self) -> Option<Op> {
        match self.steps.get(self.next) {
            Some(SimStep::Op(op)) => Some(*op),
            _ => None,
        }
    }

    /// When the present phase ends by itself.
    fn ends(&self) -> Nanos {
        match self.phase {
            Phase::Running { left, since } => since.saturating_add(left),
            Phase::Delay { until } | Phase::Device { until } => until,
            // The release of the next job, or its predecessor's completion.
            Phase::Idle => self.key.release.max(self.mark),
            Phase::Ready { .. } | Phase::Token | Phase::Lock | Phase::Queued => Nanos::MAX,
        }
    }
}

impl<O: SimObserver> Simulation<'_, O> {
    /// Advances to the next instant at which something happens; `false` when the time is over.
    fn step(&mut self) -> Result<bool, SimSharingError> {
        let Some(next) = self.jobs.iter().map(RunningJob::ends).min() else { return Ok(false) };
        if next > self.setting.until || next == Nanos::MAX {
            return Ok(false);
        }
        self.now = next;
        self.totals.instants += 1;
        // Completions free engines before delays end, CPU time is used up and new jobs start.
        for class in [|p| matches!(p, Phase::Device { .. }), |p| !matches!(p, Phase::Device { .. } | Phase::Idle)] {
            let class: fn(Phase) -> bool = class;
            for task in 0..self.jobs.len() {
                if class(self.jobs[task].phase) && self.jobs[task].ends() == next {
                    self.ready.push_back(task);
                    self.run_ready()?;
                }
            }
        }
        for task in 0..self.jobs.len() {
            if self.jobs[task].phase == Phase::Idle && self.jobs[task].ends() == next {
                self.start(task);
                self.run_ready()?;
            }
        }
        if self.cpus_changed {
            self.dispatch();
        }
        if O::WATCHES_CPUS {
            let count = |of: fn(Phase) -> bool| self.jobs.iter().filter(|job| of(job.phase)).count();
            let running = count(|phase| matches!(phase, Phase::Running { .. }));
            self.observer.cpus(next, running, count(|phase| matches!(phase, Phase::Ready { .. })));
        }
        Ok(true)
    }

    fn run_ready(&mut self) -> Result<(), SimSharingError> {
        while let Some(task) = self.ready.pop_front() {
            self.proceed(task)?;
        }
        Ok(())
    }

    fn start(&mut self, task: usize) {
        let parameters = &self.cluster.tasks[task];
        let now = self.now;
        let job = &mut self.jobs[task];
        let deadline = job.key.release.saturating_add(parameters.deadline);
        job.key = JobPriority { deadline, release: job.key.release, job: job.id };
        job.effective = job.key;
        (job.start, job.mark) = (now, now);
        (job.next, job.stage) = (0, Stage::Begin);
        job.draw = Draw::new(parameters.jitter_ppm, [job.random.next_u64(), job.random.next_u64()]);
        begin(parameters, job.draw, &mut job.steps);
        job.own = Nanos::ZERO;
        job.blocked = Blocked::default();
        job.phase = Phase::Ready { left: Nanos::ZERO };
        self.record(task, SimEvent::Started);
        self.rank();
        self.ready.push_back(task);
    }

    /// The job is complete: tells the observer and gets its successor ready to be released.
    pub(super) fn finish(&mut self, task: usize) {
        self.charge(task);
        self.record(task, SimEvent::Completed);
        let job = &self.jobs[task];
        self.totals.jobs += 1;
        self.totals.migrations += u64::from(job.from.is_some());
        self.observer.job(&Finished {
            job: job.id,
            release: job.key.release,
            start: job.start,
            deadline: job.key.deadline,
            done: self.now,
            gpu: job.gpu,
            from: job.from,
            blocked: job.blocked,
        });
        let period = self.cluster.tasks[task].period;
        let job = &mut self.jobs[task];
        job.id.job += 1;
        job.key.release = job.key.release.saturating_add(period);
        job.mark = self.now;
        // A job that ends with CPU time leaves a CPU to whoever waits for one.
        self.enter(task, Phase::Idle);
        self.rank();
    }

    /// Decides which jobs are among the `m` most urgent: the waits of those are blocking.
    fn rank(&mut self) {
        self.order.clear();
        let active = self.jobs.iter().enumerate().filter(|(_, job)| job.phase != Phase::Idle);
        self.order.extend(active.map(|(task, job)| (job.key, task)));
        self.order.sort_unstable();
        for rank in 0..self.order.len() {
            let (task, in_top) = (self.order[rank].1, rank < self.cluster.cpus as usize);
            if self.jobs[task].in_top != in_top {
                self.charge(task);
                self.jobs[task].in_top = in_top;
            }
        }
    }

    /// Gives the CPUs to the jobs with the most urgent effective keys.
    fn dispatch(&mut self) {
        self.cpus_changed = false;
        self.order.clear();
        let wants = |job: &RunningJob| matches!(job.phase, Phase::Ready { .. } | Phase::Running { .. });
        let wanting = self.jobs.iter().enumerate().filter(|(_, job)| wants(job));
        self.order.extend(wanting.map(|(task, job)| (job.effective, task)));
        let cpus = self.cluster.cpus as usize;
        if self.order.len() > cpus {
            self.order.sort_unstable();
        }
        for place in 0..self.order.len() {
            let task = self.order[place].1;
            match self.jobs[task].phase {
                Phase::Ready { left } if place < cpus => {
                    self.enter(task, Phase::Running { left, since: self.now });
                    self.record(task, SimEvent::OnCpu);
                }
                Phase::Running { left, since } if place >= cpus => {
                    let left = left.saturating_sub(self.now.saturating_sub(since));
                    self.enter(task, Phase::Ready { left });
                    self.record(task, SimEvent::Preempted);
                }
                _ => {}
            }
        }
    }

    /// Accounts the time until now to the present phase and begins another one.
    pub(super) fn enter(&mut self, task: usize, phase: Phase) {
        self.charge(task);
        let cpu = |phase| matches!(phase, Phase::Ready { .. } | Phase::Running { .. });
        self.cpus_changed |= cpu(phase) || cpu(self.jobs[task].phase);
        self.jobs[task].phase = phase;
    }

    /// Accounts the time since the last change to the present phase. Called before anything changes.
    fn charge(&mut self, task: usize) {
        let time = self.now.saturating_sub(self.jobs[task].mark);
        if time == Nanos::ZERO || self.jobs[task].phase == Phase::Idle {
            return;
        }
        let job = &mut self.jobs[task];
        job.mark = self.now;
        match job.phase {
            Phase::Token if job.in_top => job.blocked.token = job.blocked.token + time,
            Phase::Lock | Phase::Queued if job.in_top => job.wait = job.wait + time,
            Phase::Running { .. } => self.totals.cpu = self.totals.cpu + time,
            _ => {}
        }
        let own =
            matches!(job.phase, Phase::Running { .. } | Phase::Delay { .. } | Phase::Queued | Phase::Device { .. });
        if job.holds && own {
            job.own = job.own + time;
        }
    }

    /// A wait for engines is over.
    pub(super) fn end_wait(&mut self, task: usize, kind: OpKind) {
        self.charge(task);
        let job = &mut self.jobs[task];
        let wait = std::mem::take(&mut job.wait);
        let longest = match kind {
            OpKind::Execute => &mut job.blocked.execute_max,
            _ => &mut job.blocked.copy_max,
        };
        *longest = (*longest).max(wait);
        job.blocked.engines = job.blocked.engines + wait;
    }

    /// An operation begins on its engines.
    pub(super) fn begin_operation(&mut self, task: usize, op: &Op) {
        self.end_wait(task, op.kind);
        self.enter(task, Phase::Device { until: self.now.saturating_add(op.time) });
        self.record(task, SimEvent::Running { kind: op.kind, engine: op.engine });
    }

    pub(super) fn record(&mut self, task: usize, what: SimEvent) {
        self.observer.record(&SimRecord { at: self.now, job: self.jobs[task].id, what });
    }
}
