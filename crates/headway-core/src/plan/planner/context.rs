//! What passes look up in the machine and the workload.

use super::cores::name;
use super::strategies::GangForm;
use super::{Context, PlanError, Processor, planned_step};
use crate::files::machine::{EndpointId, EngineClass, EngineId, KernelCost, RouteId};
use crate::files::workload::{
    CopyEndpoint, Cycle, Message, Stream, StreamPlacement, StreamStep, Unplanned, UnplannedKind,
};
use crate::interconnect::BatchBlock;
use crate::plan::{OperationWork, Pipeline, PlannedEngine, PlannedOperation, PlannedStep, PlannedStream};
use crate::units::{Bytes, Nanos, PPM};

impl Context<'_> {
    pub(super) fn planned_stream(
        &self,
        index: usize,
        processor: Processor,
        pipeline: u32,
        portion: u32,
    ) -> PlannedStream {
        let stream = &self.workload.streams[index];
        PlannedStream {
            id: stream.id.clone(),
            packet: stream.packet,
            period: stream.period,
            deadline: stream.deadline,
            start: stream.start,
            on_miss: stream.on_miss,
            gpu: self.gpu_of(processor),
            pipeline,
            portion,
        }
    }

    pub(super) fn unknown<'e>(
        &self,
        stream: &Stream,
        key: &str,
        name: &str,
        known: impl Iterator<Item = &'e EndpointId>,
    ) -> PlanError {
        let known: Vec<&str> = known.map(|e| self.machine.endpoints[e.at()].id.as_str()).collect();
        PlanError::UnknownName {
            place: format!("stream.{}.{key}", stream.id),
            object: format!("stream `{}`", stream.id),
            name: name.to_owned(),
            machine: self.machine.name.clone(),
            known: known.join(", "),
        }
    }

    /// Whether the packets of a stream are gathered in cycles, and the window of each of its steps.
    pub(super) fn window(&self, stream: &Stream, processor: Processor, steps: u64) -> Result<(bool, Nanos), PlanError> {
        // A generation makes all steps in one window.
        let chained = self.strategy.row().gangs == Some(GangForm::Chained);
        let generation = chained && matches!(processor, Processor::Gpu(_));
        let steps = if generation { 1 } else { steps };
        let by_arrival = Nanos(stream.deadline.0 / steps);
        if self.cycle == Cycle::Arrival && generation {
            // Done before the next packet comes.
            return Ok((false, by_arrival.min(stream.period)));
        }
        if self.cycle == Cycle::Arrival && stream.period >= by_arrival && by_arrival > Nanos::ZERO {
            return Ok((false, by_arrival));
        }
        let window = Nanos(stream.deadline.0 / (steps + 1));
        if window == Nanos::ZERO {
            return Err(PlanError::Impossible {
                place: format!("stream.{}.deadline", stream.id),
                object: format!("stream `{}`", stream.id),
                reason: format!("its deadline of {} leaves no time for {steps} steps", stream.deadline),
            });
        }
        Ok((true, window))
    }

    pub(super) fn route(&self, from: EndpointId, to: EndpointId) -> Option<RouteId> {
        self.machine.route(from, to)
    }

    pub(super) fn end(
        &self,
        stream: &Stream,
        key: &str,
        place: &CopyEndpoint,
        gpu: EndpointId,
    ) -> Result<EndpointId, PlanError> {
        match place {
            CopyEndpoint::OwnGpu => Ok(gpu),
            CopyEndpoint::Host => {
                let near =
                    |memory: &EndpointId| self.route(*memory, gpu).is_some() && self.route(gpu, *memory).is_some();
                let found = self.machine.memories().find(near);
                found.ok_or_else(|| PlanError::NoRoute {
                    place: format!("stream.{}.{key}", stream.id),
                    object: format!("stream `{}`", stream.id),
                    from: "host".to_owned(),
                    to: self.machine.endpoints[gpu.at()].id.clone(),
                    machine: self.machine.name.clone(),
                })
            }
            CopyEndpoint::Named(name) => {
                let all: Vec<EndpointId> = (0..self.machine.endpoints.len() as u32).map(EndpointId).collect();
                self.machine.endpoint(name).ok_or_else(|| self.unknown(stream, key, name, all.iter()))
            }
        }
    }

    /// A step of one copy, without its server and its cost.
    pub(super) fn copy_step(&self, route: RouteId, bytes: Bytes) -> PlannedStep {
        let operation = self.copy(route, bytes);
        let OperationWork::Copy { from, to, .. } = &operation.work else { unreachable!("copy makes a copy") };
        planned_step(format!("{from} -> {to}"), Nanos::ZERO, vec![operation])
    }

    pub(super) fn copy(&self, route: RouteId, bytes: Bytes) -> PlannedOperation {
        let planned = &self.machine.routes[route.at()];
        let name = |end: EndpointId| self.machine.endpoints[end.at()].id.clone();
        let mut engines = planned.engines.clone();
        engines.sort_by_key(|engine| self.machine.engines[engine.at()].gpu != planned.from);
        PlannedOperation {
            engines,
            work: OperationWork::Copy {
                from: name(planned.from),
                to: name(planned.to),
                class: self.machine.class(route),
                route,
                method: planned.method,
                bytes,
                uses: planned.uses.clone(),
            },
        }
    }

    /// `ceil(time (1 + margin)) + jitter` of the machine's calibration (specification of messages, 1.6).
    pub(super) fn with_margin(&self, time: Nanos) -> Nanos {
        let Some(calibration) = &self.machine.calibration else { return time };
        let scaled =
            (u128::from(time.0) * (u128::from(PPM) + u128::from(calibration.margin_ppm))).div_ceil(u128::from(PPM));
        u64::try_from(scaled).map_or(Nanos::MAX, Nanos).saturating_add(calibration.jitter)
    }

    pub(super) fn unknown_on_cpu(&self, stream: &Stream, number: usize, kernel: &str) -> PlanError {
        let known: Vec<&str> = self.cpu.kernels.iter().map(|kernel| kernel.id.as_str()).collect();
        PlanError::UnknownName {
            place: format!("stream.{}.steps.{number}.compute", stream.id),
            object: format!("stream `{}` on the CPU", stream.id),
            name: kernel.to_owned(),
            machine: self.machine.name.clone(),
            known: known.join(", "),
        }
    }

    /// The engine of a core, and what a job of a kernel costs there.
    pub(super) fn on_core(&self, core: u32, kernel: &str, bytes: Bytes, portions: u64) -> (EngineId, Nanos) {
        let cost = self.cpu.kernel(kernel).expect("resolved kernels have a cost on the CPU");
        (EngineId(self.machine.engines.len() as u32 + core), cost.cost(bytes, portions))
    }

    /// The cores that the pipelines use, and those before them.
    pub(super) fn cores<'p>(&self, pipelines: &'p [Pipeline]) -> impl Iterator<Item = PlannedEngine> + use<'p> {
        let own = self.machine.engines.len();
        let engines = pipelines.iter().flat_map(|p| &p.steps).flat_map(|s| &s.operations).flat_map(|o| &o.engines);
        let used = engines.map(|engine| engine.at() + 1).max().unwrap_or(0).saturating_sub(own) as u32;
        (0..used).map(|core| PlannedEngine { name: name(core), gpu: None, serves: vec![EngineClass::Ee] })
    }

    pub(super) fn engine_name(&self, engine: EngineId) -> String {
        let own = self.machine.engines.get(engine.at());
        own.map_or_else(|| name((engine.at() - self.machine.engines.len()) as u32), |engine| engine.id.clone())
    }

    pub(super) fn blocks(&self, message: &Message) -> Result<Vec<BatchBlock>, PlanError> {
        let mut blocks = Vec::new();
        for (number, block) in message.blocks.iter().enumerate() {
            let place = format!("message.{}.blocks.{number}", message.id);
            let object = format!("message `{}`", message.id);
            let [from, to] = ["from", "to"].map(|end| format!("{place}.{end}"));
            let route = self.named_route([&from, &to, &place], &object, &block.from, &block.to)?;
            blocks.push(BatchBlock { route, bytes: block.bytes });
        }
        Ok(blocks)
    }

    /// The route between two endpoints by their names; `places` are the keys of the one, of the other and of both.
    pub(super) fn named_route(
        &self,
        places: [&str; 3],
        object: &str,
        from: &str,
        to: &str,
    ) -> Result<RouteId, PlanError> {
        let end = |place: &str, name: &str| {
            self.machine.endpoint(name).ok_or_else(|| {
                let known: Vec<&str> = self.machine.endpoints.iter().map(|e| e.id.as_str()).collect();
                PlanError::UnknownName {
                    place: place.to_owned(),
                    object: object.to_owned(),
                    name: name.to_owned(),
                    machine: self.machine.name.clone(),
                    known: known.join(", "),
                }
            })
        };
        self.route(end(places[0], from)?, end(places[1], to)?).ok_or_else(|| PlanError::NoRoute {
            place: places[2].to_owned(),
            object: object.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            machine: self.machine.name.clone(),
        })
    }

    pub(super) fn gpu_of(&self, processor: Processor) -> Option<u32> {
        match processor {
            Processor::Gpu(gpu) => Some(self.ordinal(gpu)),
            Processor::Core(_) => None,
        }
    }

    pub(super) fn ordinal(&self, gpu: EndpointId) -> u32 {
        self.machine.gpus().position(|other| other == gpu).unwrap_or(0) as u32
    }

    /// The route that it takes.
    pub(super) fn method(&self, of: &Unplanned) -> Result<RouteId, PlanError> {
        let (kind, object) = match of.kind {
            UnplannedKind::Bulk(_) => ("bulk", format!("bulk transfer `{}`", of.id)),
            UnplannedKind::Urgent(_) => ("urgent", format!("urgent transfer `{}`", of.id)),
        };
        let place = format!("{kind}.{}", of.id);
        let ends = ["from", "to"].map(|key| format!("{place}.{key}"));
        self.named_route([&ends[0], &ends[1], &place], &object, &of.from, &of.to)
    }

    /// Whether pipelines of streams advance together.
    pub(super) const fn in_gangs(&self) -> bool {
        self.strategy.row().gangs.is_some()
    }

    /// Whether stream `index` is divided among all GPUs.
    pub(super) fn is_sharded(&self, index: usize) -> bool {
        self.workload.streams[index].sharding.is_some()
    }

    /// The engine that runs `kernel` of step `number` on `gpu`, and its cost there.
    pub(super) fn kernel_on_gpu(
        &self,
        stream: &Stream,
        number: usize,
        kernel: &str,
        gpu: EndpointId,
    ) -> Result<(EngineId, &KernelCost), PlanError> {
        let known = self.machine.execution_engine(gpu).zip(self.machine.kernel(kernel, gpu));
        known.ok_or_else(|| self.unknown_kernel(stream, number, kernel))
    }

    pub(super) fn route_of(
        &self,
        stream: &Stream,
        key: &str,
        from: &CopyEndpoint,
        to: &CopyEndpoint,
        gpu: EndpointId,
    ) -> Result<RouteId, PlanError> {
        let from = self.end(stream, key, from, gpu)?;
        let to = self.end(stream, key, to, gpu)?;
        self.route(from, to).ok_or_else(|| self.no_route(stream, key, from, to))
    }

    pub(super) fn no_route(&self, stream: &Stream, key: &str, from: EndpointId, to: EndpointId) -> PlanError {
        PlanError::NoRoute {
            place: format!("stream.{}.{key}", stream.id),
            object: format!("stream `{}`", stream.id),
            from: self.machine.endpoints[from.at()].id.clone(),
            to: self.machine.endpoints[to.at()].id.clone(),
            machine: self.machine.name.clone(),
        }
    }

    pub(super) fn unknown_kernel(&self, stream: &Stream, number: usize, kernel: &str) -> PlanError {
        let known: Vec<&str> = self.machine.kernels.iter().map(|k| k.id.as_str()).collect();
        PlanError::UnknownKernel {
            place: format!("stream.{}.steps.{number}.compute", stream.id),
            object: format!("stream `{}`", stream.id),
            name: kernel.to_owned(),
            machine: self.machine.name.clone(),
            known: known.join(", "),
        }
    }

    /// Whether stream `index` has parts, or a copy from one GPU to another.
    pub(super) fn is_parted(&self, index: usize) -> bool {
        let stream = &self.workload.streams[index];
        let on_a_gpu = matches!(stream.gpu, StreamPlacement::Auto | StreamPlacement::Gpu(_))
            && stream.sharding.is_none()
            && !stream.has_modules();
        stream.steps.iter().any(|step| match step {
            StreamStep::Parts(_) => true,
            StreamStep::Copy { from, to } => on_a_gpu && self.is_gpu(from) && self.is_gpu(to),
            StreamStep::Compute { .. } | StreamStep::Module(_) | StreamStep::Exchange => false,
        })
    }

    pub(super) fn is_gpu(&self, place: &CopyEndpoint) -> bool {
        match place {
            CopyEndpoint::Host => false,
            CopyEndpoint::OwnGpu => true,
            CopyEndpoint::Named(name) => {
                self.machine.endpoint(name).is_some_and(|end| self.machine.gpus().any(|gpu| gpu == end))
            }
        }
    }
}
