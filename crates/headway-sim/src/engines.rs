//! The engines of a node as the interconnect model sees them: FIFOs in front of engines, and rates shared max-min.

use std::collections::VecDeque;

use headway_core::files::machine::{CpuCores, KernelCost, Machine, RouteId};
use headway_core::interconnect::{Network, RateCache, Starved};
use headway_core::plan::payload::PayloadChunk;
use headway_core::plan::{OperationWork, PipelineSource, Plan};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos, PPM};

/// Rate times nanoseconds is exactly nano-bytes: no rounding while a transfer runs.
type NanoBytes = u128;

/// Sets of concurrent transfers whose rates are remembered.
const SETS_MAX: usize = 4096;

/// An operation that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) operation: u64,
    pub(crate) chunk: PayloadChunk,
    pub(crate) started: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Time still to pass with no byte moving: set-up of a copy, or all of a kernel.
    Fixed(Nanos),
    /// Bytes still to move, in nano-bytes.
    Moving(NanoBytes),
}

#[derive(Clone, Debug)]
struct Operation {
    number: u64,
    chunk: PayloadChunk,
    engines: Vec<usize>,
    route: Option<RouteId>,
    bytes: Bytes,
    phase: Phase,
    /// When it came to head all its engines.
    started: Option<Nanos>,
}

pub(crate) struct Engines<'a> {
    machine: &'a Machine,
    plan: &'a Plan,
    cpu: CpuCores,
    rates: RateCache,
    /// Operations of each engine in submission order, by position in `slots`.
    queues: Vec<VecDeque<usize>>,
    slots: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Operations that head all their engines, in the order in which they came to.
    active: Vec<usize>,
    /// Bytes per second of each active operation that is past its set-up; zero otherwise.
    current: Vec<u64>,
    stale: bool,
    now: Nanos,
    routes: Vec<RouteId>,
}

impl<'a> Engines<'a> {
    pub(crate) fn new(machine: &'a Machine, plan: &'a Plan) -> Self {
        // Abstract servers of flows have no engine: each gets a queue of its own behind those of the engines.
        let queues = plan.engines.len() + plan.servers.len();
        Self {
            machine,
            plan,
            cpu: machine.cpu_or_assumed(),
            rates: RateCache::new(Network::new(machine), SETS_MAX),
            queues: vec![VecDeque::new(); queues],
            slots: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            current: Vec::new(),
            stale: true,
            now: Nanos::ZERO,
            routes: Vec::new(),
        }
    }

    /// Queues an operation on its engines. `scale` shortens kernels to that share of their cost, parts per million.
    pub(crate) fn submit(
        &mut self,
        now: Nanos,
        number: u64,
        chunk: PayloadChunk,
        longest_portion: Bytes,
        scale: Option<u32>,
    ) {
        let step = &self.plan.pipelines[chunk.pipeline as usize].steps[chunk.step as usize];
        let planned = &step.operations[chunk.index as usize];
        let mut engines: Vec<usize> = planned.engines.iter().map(|engine| engine.at()).collect();
        if engines.is_empty() {
            engines.push(self.plan.engines.len() + step.server as usize);
        }
        let scaled = |time: Nanos| match scale {
            None => time,
            Some(ppm) => Nanos((u128::from(time.0) * u128::from(ppm)).div_ceil(u128::from(PPM)) as u64),
        };
        let (route, phase, bytes) = match &planned.work {
            OperationWork::Copy { route, .. } => {
                let route_of = &self.machine.routes[route.at()];
                let setup = if self.is_behind_its_own(&engines) { route_of.setup_queued } else { route_of.setup };
                (Some(*route), Phase::Fixed(setup), chunk.bytes)
            }
            OperationWork::Compute { kernel } => {
                let pipeline = &self.plan.pipelines[chunk.pipeline as usize];
                let source = &pipeline.source;
                let cost = match self.machine.engines.get(engines[0]).map(|engine| engine.gpu) {
                    Some(gpu) => {
                        let operations = match source {
                            PipelineSource::Sharded(sharded) => {
                                sharded.operations(&pipeline.steps, chunk.step as usize)
                            }
                            _ => None,
                        };
                        // Each part of a packet is one portion.
                        let chain =
                            if matches!(source, PipelineSource::Parts(_)) { chunk.bytes } else { longest_portion };
                        let known = self.machine.kernel(kernel, gpu);
                        known.map(|k: &KernelCost| k.launch(chunk.bytes, chain, operations))
                    }
                    None => {
                        let portions = source.streams().len() as u64;
                        self.cpu.kernel(kernel).map(|k| k.cost(chunk.bytes, portions))
                    }
                };
                (None, Phase::Fixed(scaled(cost.unwrap_or(step.cost))), Bytes(0))
            }
            OperationWork::Hold => (None, Phase::Fixed(scaled(step.holds())), Bytes(0)),
        };
        let operation = Operation { number, chunk, engines, route, bytes, phase, started: None };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        for &engine in &operation.engines {
            self.queues[engine].push_back(slot);
        }
        self.slots[slot] = Some(operation);
        self.activate(now, slot);
    }

    /// Whether an operation on `engines` waits, and only for operations of its own queue: that of its first engine, which of a
    /// peer copy is the source's. Behind another queue it starts on an engine that is idle by then (as `Network::completion`).
    fn is_behind_its_own(&self, engines: &[usize]) -> bool {
        let mut before = engines.iter().filter_map(|&engine| self.queues[engine].back()).peekable();
        let is_own = |slot: &usize| {
            let operation = self.slots[*slot].as_ref();
            engines.len() == 1 || operation.is_some_and(|operation| operation.engines[0] == engines[0])
        };
        before.peek().is_some() && before.all(is_own)
    }

    /// Makes an operation active if it heads all its engines.
    fn activate(&mut self, now: Nanos, slot: usize) {
        let Some(operation) = &mut self.slots[slot] else { return };
        let heads = operation.engines.iter().all(|&engine| self.queues[engine].front() == Some(&slot));
        if heads && operation.started.is_none() {
            operation.started = Some(now);
            if matches!(operation.phase, Phase::Fixed(Nanos::ZERO)) && operation.route.is_some() {
                operation.phase = moving(operation.bytes);
            }
            self.active.push(slot);
            self.current.push(0);
            self.stale = true;
        }
    }

    /// Shares the links among the transfers that are moving now.
    fn refresh(&mut self) -> Result<(), Starved> {
        if !std::mem::take(&mut self.stale) {
            return Ok(());
        }
        self.routes.clear();
        for &slot in &self.active {
            if let Some(Operation { route: Some(route), phase: Phase::Moving(_), .. }) = &self.slots[slot] {
                self.routes.push(*route);
            }
        }
        let shares = if self.routes.is_empty() { &[] } else { self.rates.shares(&self.routes)? };
        let mut shares = shares.iter();
        for (at, &slot) in self.active.iter().enumerate() {
            let moving = matches!(&self.slots[slot], Some(Operation { phase: Phase::Moving(_), .. }));
            self.current[at] = if moving { shares.next().map_or(0, |share| share.rate.0) } else { 0 };
        }
        Ok(())
    }

    /// When the next active operation changes phase or ends.
    pub(crate) fn next_event(&mut self) -> Result<Option<Nanos>, Starved> {
        self.refresh()?;
        let mut next: Option<Nanos> = None;
        for (&slot, &rate) in self.active.iter().zip(&self.current) {
            let Some(operation) = &self.slots[slot] else { continue };
            let left = match operation.phase {
                Phase::Fixed(left) => left,
                Phase::Moving(0) => Nanos::ZERO,
                Phase::Moving(left) => Nanos(u64::try_from(left.div_ceil(u128::from(rate.max(1)))).unwrap_or(u64::MAX)),
            };
            let at = self.now.saturating_add(left);
            next = Some(next.map_or(at, |other| other.min(at)));
        }
        Ok(next)
    }

    /// Lets time pass until `now`, at most to the next event.
    pub(crate) fn advance(&mut self, now: Nanos) {
        let passed = now - self.now;
        self.now = now;
        if passed == Nanos::ZERO {
            return;
        }
        for (&slot, &rate) in self.active.iter().zip(&self.current) {
            let Some(operation) = &mut self.slots[slot] else { continue };
            match &mut operation.phase {
                Phase::Fixed(left) => {
                    *left = left.saturating_sub(passed);
                    if *left == Nanos::ZERO && operation.route.is_some() {
                        operation.phase = moving(operation.bytes);
                        self.stale = true;
                    }
                }
                Phase::Moving(left) => *left = left.saturating_sub(u128::from(rate) * u128::from(passed.0)),
            }
        }
    }

    /// Takes out one operation that has ended by `now`, in the order in which operations became active.
    pub(crate) fn pop_ended(&mut self, now: Nanos) -> Option<Ended> {
        let ended = |slot: &usize| {
            matches!(&self.slots[*slot], Some(o) if matches!(
                (o.phase, o.route), (Phase::Fixed(Nanos::ZERO), None) | (Phase::Moving(0), _)))
        };
        let at = self.active.iter().position(ended)?;
        let slot = self.active.remove(at);
        self.current.remove(at);
        self.stale = true;
        let operation = self.slots[slot].take()?;
        self.free.push(slot);
        for &engine in &operation.engines {
            self.queues[engine].pop_front();
        }
        for &engine in &operation.engines {
            if let Some(&next) = self.queues[engine].front() {
                self.activate(now, next);
            }
        }
        Some(Ended { operation: operation.number, chunk: operation.chunk, started: operation.started.unwrap_or(now) })
    }
}

const fn moving(bytes: Bytes) -> Phase {
    Phase::Moving(bytes.0 as u128 * NANOS_PER_SECOND as u128)
}
