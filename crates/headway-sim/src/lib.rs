//! Virtual-time driver: the dispatcher of `headway-core` over the interconnect model, with real bytes.
//!
//! Every figure that comes out of here is a figure of the *model* and carries `source = sim`.
#![forbid(unsafe_code)]

mod engines;
pub mod sharing;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use headway_core::decisions::dispatch::{
    DispatchAction, DispatchEvent, DispatchInput, DispatchRefused, Dispatcher, DispatcherLimits,
};
use headway_core::files::machine::Machine;
use headway_core::files::workload::OnMiss;
use headway_core::interconnect::Starved;
use headway_core::log::{LogRecord, RecordBody};
use headway_core::plan::Plan;
use headway_core::plan::payload::{Gathered, Payload};
use headway_core::units::{Bytes, Nanos};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use engines::Engines;

/// What a simulated run needs besides plan and machine.
#[derive(Clone, Debug)]
pub struct Run {
    /// Time zero of the plan; at least the lead that a real start needs, so that logs look alike.
    pub epoch: Nanos,
    /// Cycles per pipeline.
    pub cycles: Vec<u64>,
    /// Packets per stream.
    pub packets: Vec<u64>,
    /// Inputs of the dispatcher by time after the epoch, ascending: urgent requests, and jobs of
    /// messages that are there.
    pub inputs: Vec<(Nanos, DispatchInput)>,
    /// Seed of everything drawn.
    pub seed: u64,
    /// What goes wrong.
    pub faults: SimFaults,
    /// Bounds of the dispatcher.
    pub limits: DispatcherLimits,
}

/// Deviations from the model, drawn from the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimFaults {
    /// Kernels take between this share of their worst case and all of it, parts per million; `None` = all of it.
    pub kernel_ppm_min: Option<u32>,
    /// The operation with this number fails.
    pub fail_operation: Option<u64>,
    /// Data of every cycle comes late by up to this time.
    pub data_late_max: Nanos,
    /// The driver wakes late by up to this time for data and for what the dispatcher waits for, unless something else wakes it before.
    pub wake_late_max: Nanos,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimOutcome {
    /// Virtual time of the last input.
    pub end: Nanos,
    /// Inputs fed to the dispatcher.
    pub inputs: u64,
    /// Actions it asked for.
    pub actions: u64,
    /// Events it told.
    pub events: u64,
    /// Whether every cycle was delivered.
    pub finished: bool,
}

/// A simulation that cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError<E: std::error::Error + 'static> {
    /// The dispatcher did not take an input.
    #[error("the dispatcher refused an input")]
    Dispatch(#[from] DispatchRefused),
    /// A route has no rate.
    #[error("a transfer would never end")]
    Network(#[from] Starved),
    /// The plan was not made for this machine.
    #[error("the plan was made for machine `{planned}`, not for `{given}`")]
    OtherMachine {
        /// Name and hash in the plan.
        planned: String,
        /// Name and hash of the machine given.
        given: String,
    },
    /// Input, output or a kernel failed.
    #[error("{step} failed in pipeline `{pipeline}`, cycle {cycle}")]
    Payload {
        /// What was being done.
        step: &'static str,
        /// The pipeline's name.
        pipeline: String,
        cycle: u64,
        source: E,
    },
    /// A stream that must stop at a miss missed.
    #[error("stream `{stream}` missed the deadline of packet {packet} by {by}, and its `on_miss` is `stop`")]
    Stopped {
        stream: String,
        packet: u64,
        /// By how much.
        by: Nanos,
    },
    /// The payload asked for the end.
    #[error("interrupted")]
    Interrupted,
    /// Nothing is left to happen, and yet cycles are not delivered.
    #[error(
        "the simulation stopped at {at} with unfinished cycles; this is a defect of Headway, please report seed {seed}"
    )]
    Stuck {
        /// Virtual time.
        at: Nanos,
        /// Seed of the run.
        seed: u64,
    },
}

/// Data of a pipeline's next cycle: (when, pipeline, cycle).
type Arrival = Reverse<(Nanos, u32, u64)>;

struct Driver<'a, P, L> {
    plan: &'a Plan,
    run: &'a Run,
    dispatcher: Dispatcher,
    engines: Engines<'a>,
    arrivals: BinaryHeap<Arrival>,
    random: Pcg64Mcg,
    payload: &'a mut P,
    log: L,
    outcome: SimOutcome,
    now: Nanos,
    /// Longest portion of each pipeline's open cycles, by cycle modulo its length.
    longest_portion: Vec<Vec<Bytes>>,
    /// How many of the run's inputs were given.
    inputs_given: usize,
    /// What a pipeline has gathered and the dispatcher had no room for.
    held: Vec<Option<(u64, Gathered)>>,
    /// What the dispatcher waits for next, and when the driver will wake for it.
    wake: (Nanos, Nanos),
}

/// Runs `plan` on `machine` in virtual time.
///
/// `log` gets every record in order: all inputs of an instant, then the actions, then the events.
///
/// # Errors
/// [`SimError`]. Whatever was logged until then is right; a log that ends with [`SimError::Stopped`] or
/// [`SimError::Interrupted`] ends with a whole instant, so that it replays.
pub fn simulate<P: Payload, L: FnMut(&LogRecord)>(
    plan: &Plan,
    machine: &Machine,
    run: &Run,
    payload: &mut P,
    log: L,
) -> Result<SimOutcome, SimError<P::Error>> {
    if plan.machine.hash != machine.hash {
        return Err(SimError::OtherMachine {
            planned: format!("{} {}", plan.machine.name, plan.machine.hash),
            given: format!("{} {}", machine.name, machine.hash),
        });
    }
    let mut driver = Driver {
        plan,
        run,
        dispatcher: Dispatcher::new(plan.clone(), run.limits)?,
        engines: Engines::new(machine, plan),
        arrivals: BinaryHeap::new(),
        random: Pcg64Mcg::seed_from_u64(run.seed),
        payload,
        log,
        outcome: SimOutcome { end: Nanos::ZERO, inputs: 0, actions: 0, events: 0, finished: false },
        now: Nanos::ZERO,
        longest_portion: vec![vec![Bytes(0); run.limits.cycles_in_flight_max.max(1)]; plan.pipelines.len()],
        inputs_given: 0,
        held: vec![None; plan.pipelines.len()],
        wake: (Nanos::MAX, Nanos::MAX),
    };
    driver.start()?;
    driver.drain()?;
    while driver.step()? {}
    driver.outcome.end = driver.now;
    driver.outcome.finished = driver.dispatcher.is_finished();
    if !driver.outcome.finished && !driver.dispatcher.is_halted() {
        return Err(SimError::Stuck { at: driver.now, seed: run.seed });
    }
    Ok(driver.outcome)
}

impl<P: Payload, L: FnMut(&LogRecord)> Driver<'_, P, L> {
    fn start(&mut self) -> Result<(), SimError<P::Error>> {
        let run = self.run;
        let (epoch, cycles, packets) = (run.epoch, run.cycles.clone(), run.packets.clone());
        // Refused if some time of the run would not fit, so that the rest may add.
        self.feed(DispatchInput::Start { epoch, cycles, packets })?;
        for (number, (pipeline, &cycles)) in (0u32..).zip(self.plan.pipelines.iter().zip(&run.cycles)) {
            if pipeline.source.is_fed() && cycles > 0 {
                let at = self.data_at(number, 0);
                self.arrivals.push(Reverse((at, number, 0)));
            }
        }
        Ok(())
    }

    /// When the data of a cycle is there: at the end of its gathering, or later by what the faults draw.
    fn data_at(&mut self, pipeline: u32, cycle: u64) -> Nanos {
        let late = self.run.faults.data_late_max.0;
        let late = if late == 0 { 0 } else { self.random.next_u64() % late.saturating_add(1) };
        let opens = self.run.epoch + self.plan.pipelines[pipeline as usize].release(cycle, 0);
        opens.saturating_add(Nanos(late))
    }

    /// When the driver wakes for what is due at `due`.
    fn wakes(&mut self, due: Nanos) -> Nanos {
        let most = self.run.faults.wake_late_max.0;
        if most == 0 {
            return due;
        }
        if self.wake.0 != due {
            let late = Nanos(self.random.next_u64() % most.saturating_add(1));
            self.wake = (due, due.saturating_add(late));
        }
        self.wake.1
    }

    /// Advances to the next instant, feeds everything that happens then, and does what the dispatcher asks for.
    fn step(&mut self) -> Result<bool, SimError<P::Error>> {
        if self.dispatcher.is_finished() || self.dispatcher.is_halted() {
            return Ok(false);
        }
        if self.payload.interrupted() {
            return Err(SimError::Interrupted);
        }
        let window = self.dispatcher.poll_timeout();
        let data = self.arrivals.peek().map(|Reverse((at, ..))| *at);
        let wake = [window, data].into_iter().flatten().min().map(|due| self.wakes(due));
        let engine = self.engines.next_event()?;
        let input = self.run.inputs.get(self.inputs_given).map(|(at, _)| self.run.epoch.saturating_add(*at));
        let Some(next) = [wake, engine, input].into_iter().flatten().min() else { return Ok(false) };
        self.now = self.now.max(next);
        self.engines.advance(self.now);
        // First, so that windows which open now find what is ready now.
        let mut any = self.feed_due()?;
        while let Some(ended) = self.engines.pop_ended(self.now) {
            any = true;
            if self.run.faults.fail_operation == Some(ended.operation) {
                self.feed(DispatchInput::Failed { operation: ended.operation })?;
                continue;
            }
            self.payload.execute(&ended.chunk).map_err(|source| {
                let pipeline = self.plan.pipelines[ended.chunk.pipeline as usize].name.clone();
                SimError::Payload { step: "an operation", pipeline, cycle: ended.chunk.cycle, source }
            })?;
            self.feed(DispatchInput::Done { operation: ended.operation, started: ended.started, finished: self.now })?;
            let pipeline = ended.chunk.pipeline;
            if let Some((cycle, gathered)) = self.held[pipeline as usize].take() {
                self.offer(pipeline, cycle, gathered)?;
            }
        }
        while let Some(&Reverse((at, pipeline, cycle))) = self.arrivals.peek() {
            if at > self.now {
                break;
            }
            self.arrivals.pop();
            any = true;
            self.gather(pipeline, cycle)?;
        }
        if !any && window.is_some_and(|at| at <= self.now) {
            self.feed(DispatchInput::Timeout)?;
        }
        self.drain()?;
        Ok(true)
    }

    /// Feeds the dispatcher the inputs that are due by now; whether there were any.
    fn feed_due(&mut self) -> Result<bool, SimError<P::Error>> {
        let run = self.run;
        let before = self.inputs_given;
        while let Some((at, input)) = run.inputs.get(self.inputs_given)
            && run.epoch.saturating_add(*at) <= self.now
        {
            self.inputs_given += 1;
            match self.feed(input.clone()) {
                // Who asks too often, or too late, is not served: nothing has changed.
                Err(SimError::Dispatch(DispatchRefused::TooManyCycles { .. } | DispatchRefused::Order(_))) => {}
                fed => fed?,
            }
        }
        Ok(self.inputs_given > before)
    }

    fn gather(&mut self, pipeline: u32, cycle: u64) -> Result<(), SimError<P::Error>> {
        let gathered = self.payload.gather(pipeline, cycle).map_err(|source| {
            let pipeline = self.plan.pipelines[pipeline as usize].name.clone();
            SimError::Payload { step: "gathering", pipeline, cycle, source }
        })?;
        self.offer(pipeline, cycle, gathered)
    }

    /// Feeds a block, or keeps it until the pipeline has fewer unfinished cycles.
    fn offer(&mut self, pipeline: u32, cycle: u64, gathered: Gathered) -> Result<(), SimError<P::Error>> {
        match self.feed(DispatchInput::Data { pipeline, cycle, bytes: gathered.block }) {
            Err(SimError::Dispatch(DispatchRefused::TooManyCycles { .. })) => {
                self.held[pipeline as usize] = Some((cycle, gathered));
                return Ok(());
            }
            fed => fed?,
        }
        let portions = &mut self.longest_portion[pipeline as usize];
        let slot = (cycle % portions.len() as u64) as usize;
        portions[slot] = gathered.longest_portion;
        if cycle + 1 < self.run.cycles[pipeline as usize] {
            let at = self.data_at(pipeline, cycle + 1).max(self.now);
            self.arrivals.push(Reverse((at, pipeline, cycle + 1)));
        }
        Ok(())
    }

    fn feed(&mut self, input: DispatchInput) -> Result<(), SimError<P::Error>> {
        self.dispatcher.handle(self.now, &input)?;
        self.outcome.inputs += 1;
        (self.log)(&LogRecord { at: self.now, what: RecordBody::Input(input) });
        Ok(())
    }

    fn drain(&mut self) -> Result<(), SimError<P::Error>> {
        while let Some(action) = self.dispatcher.poll_action() {
            self.outcome.actions += 1;
            match action {
                DispatchAction::Submit { operation, pipeline, cycle, step, index, offset, bytes } => {
                    let chunk =
                        headway_core::plan::payload::PayloadChunk { pipeline, cycle, step, index, offset, bytes };
                    let portions = &self.longest_portion[pipeline as usize];
                    let portion = portions[(cycle % portions.len() as u64) as usize];
                    let scale = self.run.faults.kernel_ppm_min.map(|least| {
                        let span = 1_000_000 - least.min(1_000_000);
                        least + (self.random.next_u64() % (u64::from(span) + 1)) as u32
                    });
                    self.engines.submit(self.now, operation, chunk, portion, scale);
                }
                DispatchAction::Deliver { pipeline, cycle } => {
                    self.payload.deliver(pipeline, cycle).map_err(|source| {
                        let pipeline = self.plan.pipelines[pipeline as usize].name.clone();
                        SimError::Payload { step: "delivering", pipeline, cycle, source }
                    })?;
                }
                DispatchAction::Drop { pipeline, cycle } => {
                    self.payload.give_up(pipeline, cycle).map_err(|source| {
                        let pipeline = self.plan.pipelines[pipeline as usize].name.clone();
                        SimError::Payload { step: "giving up", pipeline, cycle, source }
                    })?;
                }
            }
            (self.log)(&LogRecord { at: self.now, what: RecordBody::Action(action) });
        }
        let mut stopped = None;
        while let Some(event) = self.dispatcher.poll_event() {
            self.outcome.events += 1;
            (self.log)(&LogRecord { at: self.now, what: RecordBody::Event(event.clone()) });
            if let DispatchEvent::Missed { stream, packet, by } = event {
                let planned = &self.plan.streams[stream as usize];
                if planned.on_miss == OnMiss::Stop {
                    let stream = planned.id.clone();
                    stopped = stopped.or(Some(SimError::Stopped { stream, packet, by }));
                }
            }
        }
        stopped.map_or(Ok(()), Err)
    }
}
