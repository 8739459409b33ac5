//! A job's way through its steps: tokens, locks, calls, operations.

use headway_core::decisions::engine_lock::{EngineWork, LockedOperation};
use headway_core::decisions::sharing::{ArbiterAction, ArbiterInput, JobId, TokenOutcome};
use headway_core::units::Nanos;
use rand_core::Rng;

use super::SimSharingError;
use super::job::{Op, OpKind, SimStep, after_grant, index};
use super::observe::{SimEvent, SimObserver};
use super::run::{Phase, Simulation, Stage};
use super::scenario::ArbitrationScheme;

impl<O: SimObserver> Simulation<'_, O> {
    /// Goes on with a job whose phase has ended, until it must wait for something.
    pub(super) fn proceed(&mut self, task: usize) -> Result<(), SimSharingError> {
        loop {
            let job = &self.jobs[task];
            let Some(&step) = job.steps.get(job.next) else {
                self.finish(task);
                return Ok(());
            };
            match (step, job.stage) {
                (SimStep::Cpu(time), Stage::Begin) if time > Nanos::ZERO => {
                    self.jobs[task].stage = Stage::Called;
                    self.enter(task, Phase::Ready { left: time });
                    return Ok(());
                }
                (SimStep::Cpu(_), _) => self.next_step(task),
                (SimStep::Request, Stage::Begin) => return self.request(task),
                (SimStep::Request, _) => self.next_step(task),
                (SimStep::Op(op), Stage::Begin) if self.has_locks() => return self.acquire(task, &op),
                (SimStep::Op(_), Stage::Begin) => self.jobs[task].stage = Stage::Granted,
                (SimStep::Op(_), Stage::First) => {
                    self.jobs[task].stage = Stage::Asked;
                    self.enter(task, Phase::Lock);
                    let job = self.jobs[task].id;
                    return self.feed(&ArbiterInput::Next { job });
                }
                (SimStep::Op(_), Stage::Granted | Stage::Asked) => {
                    self.jobs[task].stage = Stage::Called;
                    let call = self.cluster.costs.call;
                    if call > Nanos::ZERO {
                        self.enter(task, Phase::Ready { left: call });
                        return Ok(());
                    }
                }
                (SimStep::Op(op), Stage::Called) => {
                    self.submit(task, &op);
                    return Ok(());
                }
                (SimStep::Op(op), Stage::Submitted) => {
                    self.complete(task, &op)?;
                    self.next_step(task);
                }
                (SimStep::Release, _) => {
                    self.release(task)?;
                    self.next_step(task);
                }
            }
        }
    }

    fn has_locks(&self) -> bool {
        self.setting.scenario.arbitration == ArbitrationScheme::EngineLocks
    }

    fn next_step(&mut self, task: usize) {
        let job = &mut self.jobs[task];
        job.next += 1;
        job.stage = Stage::Begin;
    }

    fn request(&mut self, task: usize) -> Result<(), SimSharingError> {
        self.jobs[task].stage = Stage::Asked;
        self.enter(task, Phase::Token);
        self.record(task, SimEvent::Asked);
        if self.arbiter.is_none() {
            let gpu = self.balance(task);
            self.users[gpu as usize] += 1;
            let from = self.jobs[task].last.filter(|last| *last != gpu);
            self.granted(task, gpu, from);
            return Ok(());
        }
        let key = self.jobs[task].key;
        self.feed(&ArbiterInput::Request { key, acquisition: 0 })
    }

    /// The GPU with the fewest users, looking from the task's last one on, or from a random one at first.
    fn balance(&mut self, task: usize) -> u32 {
        let gpus = self.users.len() as u64;
        let first = match self.jobs[task].last {
            Some(last) => u64::from(last),
            None => self.jobs[task].random.next_u64() % gpus,
        };
        let order = (0..gpus).map(|offset| (first + offset) % gpus);
        order.min_by_key(|gpu| self.users[*gpu as usize]).map_or(0, |gpu| gpu as u32)
    }

    /// The job may use `gpu`: writes the rest of its steps and goes on after the hand-over.
    fn granted(&mut self, task: usize, gpu: u32, from: Option<u32>) {
        let parameters = &self.cluster.tasks[task];
        let job = &mut self.jobs[task];
        (job.gpu, job.from, job.holds, job.stage) = (gpu, from, true, Stage::Granted);
        let mut steps = std::mem::take(&mut job.steps);
        after_grant(self.cluster, self.setting.scenario, parameters, job.draw, gpu, from, &mut steps);
        job.steps = steps;
        self.enter(task, Phase::Delay { until: self.now.saturating_add(self.cluster.costs.grant) });
        self.record(task, SimEvent::Granted { gpu, from });
        if self.cluster.costs.grant == Nanos::ZERO {
            self.ready.push_back(task);
        }
    }

    fn release(&mut self, task: usize) -> Result<(), SimSharingError> {
        self.enter(task, Phase::Ready { left: Nanos::ZERO });
        self.record(task, SimEvent::Released);
        let job = &mut self.jobs[task];
        job.last = Some(job.gpu);
        job.holds = false;
        job.effective = job.key;
        let (id, own, gpu) = (job.id, job.own, job.gpu);
        if self.arbiter.is_none() {
            self.users[gpu as usize] -= 1;
            return Ok(());
        }
        self.feed(&ArbiterInput::Release { job: id, outcome: TokenOutcome::Complete(own) })
    }

    fn acquire(&mut self, task: usize, op: &Op) -> Result<(), SimSharingError> {
        self.jobs[task].stage = Stage::Asked;
        self.enter(task, Phase::Lock);
        self.record(task, SimEvent::Acquiring { kind: op.kind });
        let work = match op.kind {
            OpKind::Input | OpKind::StateIn => EngineWork::CopyIn,
            OpKind::Output | OpKind::StateOut => EngineWork::CopyOut,
            OpKind::Peer => EngineWork::Peer,
            OpKind::Execute => EngineWork::Execute,
        };
        let operation = LockedOperation { work, bytes: op.bytes, predicted: op.time, budget: Nanos::ZERO };
        let job = self.jobs[task].id;
        self.feed(&ArbiterInput::Acquire { job, operation })
    }

    fn submit(&mut self, task: usize, op: &Op) {
        self.jobs[task].stage = Stage::Submitted;
        self.enter(task, Phase::Queued);
        if self.has_locks() {
            assert!(self.hardware.is_idle(op), "a job with all locks of an operation found one of its engines busy");
        }
        self.hardware.submit(task, op);
        if self.hardware.is_first(task, op) {
            self.begin_operation(task, op);
        }
    }

    /// An operation has completed: its engines go to the next ones, its locks back.
    fn complete(&mut self, task: usize, op: &Op) -> Result<(), SimSharingError> {
        self.enter(task, Phase::Ready { left: Nanos::ZERO });
        self.record(task, SimEvent::Ran { kind: op.kind });
        self.hardware.complete(task, op);
        for engine in op.engines() {
            let Some(next) = self.hardware.first(index(engine)) else { continue };
            let Some(waiting) = self.jobs[next].op() else { continue };
            if self.jobs[next].phase == Phase::Queued && self.hardware.is_first(next, &waiting) {
                self.begin_operation(next, &waiting);
            }
        }
        if !self.has_locks() {
            return Ok(());
        }
        let job = self.jobs[task].id;
        self.feed(&ArbiterInput::Complete { job })
    }

    /// Gives the arbiter an input and does what it asks for.
    fn feed(&mut self, input: &ArbiterInput) -> Result<(), SimSharingError> {
        let Some(arbiter) = self.arbiter.as_mut() else { return Ok(()) };
        arbiter.handle(self.now, input)?;
        while let Some(action) = self.arbiter.as_mut().and_then(|arbiter| arbiter.poll_action()) {
            self.act(&action)?;
        }
        // The simulation does not use the arbiter's events.
        while self.arbiter.as_mut().and_then(|arbiter| arbiter.poll_event()).is_some() {}
        Ok(())
    }

    fn act(&mut self, action: &ArbiterAction) -> Result<(), SimSharingError> {
        match action {
            ArbiterAction::Grant { job, gpu, from, .. } => {
                let task = self.task(*job)?;
                self.granted(task, gpu.0, from.map(|gpu| gpu.0));
            }
            ArbiterAction::Run { job, .. } => {
                let task = self.task(*job)?;
                self.obtained(task, Stage::Granted);
            }
            ArbiterAction::Obtained { job, lock } => {
                let task = self.task(*job)?;
                self.record(task, SimEvent::Obtained { lock: *lock });
                self.obtained(task, Stage::First);
            }
            ArbiterAction::SetBoost { job, key } => {
                let task = self.task(*job)?;
                self.jobs[task].effective = *key;
                self.cpus_changed = true;
            }
            ArbiterAction::Revoke { .. } => {
                return Err(SimSharingError::Defect { what: "a token was revoked and no GPU is lost" });
            }
        }
        Ok(())
    }

    /// The locks asked for are there: all of them, or the first of two.
    fn obtained(&mut self, task: usize, stage: Stage) {
        self.jobs[task].stage = stage;
        let handover = self.cluster.costs.handover;
        self.enter(task, Phase::Delay { until: self.now.saturating_add(handover) });
        if handover == Nanos::ZERO {
            self.ready.push_back(task);
        }
    }

    fn task(&self, job: JobId) -> Result<usize, SimSharingError> {
        let task = job.task.0 as usize;
        let known = self.jobs.get(task).is_some_and(|own| own.id == job);
        known.then_some(task).ok_or(SimSharingError::Defect { what: "the arbiter named a job that is over" })
    }
}
