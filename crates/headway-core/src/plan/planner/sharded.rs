//! Streams whose packets are divided among all GPUs: one pipeline whose steps work on all of them at once.

use std::collections::BTreeMap;

use super::{
    BatchBlock, Bytes, CopyEndpoint, Domains, EndpointId, EngineId, Nanos, OperationWork, Pipeline, PipelineSource,
    PlanError, PlannedOperation, PlannedStep, PlannedStream, Planner, Processor, RouteId, Strategy, Stream, StreamStep,
};
use crate::files::machine::KernelCost;
use crate::plan::{Gang, Shard, Sharded, is_first_kernel};

/// Why no machine can run a stream that is divided, or that exchanges, as this one.
pub(super) fn fault(stream: &Stream) -> Option<String> {
    use StreamStep::{Compute, Copy, Exchange};
    let Some(sharding) = &stream.sharding else {
        let exchanges = stream.steps.contains(&Exchange);
        return exchanges.then(|| "only GPUs that share a packet exchange what they made of it".to_owned());
    };
    match stream.steps.as_slice() {
        [
            Copy { to: CopyEndpoint::OwnGpu, .. },
            Compute { .. },
            Exchange,
            Compute { .. },
            Copy { from: CopyEndpoint::OwnGpu, .. },
        ] => sharding.fault(stream.packet),
        _ => Some(
            "a stream that is divided among GPUs copies in, computes, exchanges, computes and copies out".to_owned(),
        ),
    }
}

impl Planner<'_> {
    /// Whether stream `index` is divided among all GPUs.
    pub(super) fn is_sharded(&self, index: usize) -> bool {
        self.workload.streams[index].sharding.is_some()
    }

    /// The streams that are divided, with a pipeline of its own each.
    pub(super) fn sharded(
        &self,
        pipelines: &mut Vec<Pipeline>,
        streams: &mut [Option<PlannedStream>],
        notes: &mut Vec<String>,
    ) -> Result<(), PlanError> {
        for (index, stream) in self.workload.streams.iter().enumerate() {
            let Some(sharding) = stream.sharding else { continue };
            let gpus: Vec<EndpointId> = self.machine.gpus().collect();
            let Some(&first) = gpus.first() else {
                return Err(PlanError::NoGpu {
                    place: format!("stream.{}", stream.id),
                    machine: self.machine.name.clone(),
                    object: format!("stream `{}`", stream.id),
                });
            };
            streams[index] = Some(self.planned_stream(index, Processor::Gpu(first), pipelines.len() as u32, 0));
            let planned = Sharded {
                stream: index as u32,
                sharding,
                parameters: stream.parameters.clone(),
                shards: Sharded::deal(sharding.items, gpus.len() as u32),
                one_by_one: self.strategy == Strategy::Serial,
            };
            if planned.shards.len() == 1 {
                notes
                    .push(format!("stream `{}` runs on one GPU: there is nobody to exchange synopses with", stream.id));
            }
            pipelines.push(self.sharded_pipeline(stream, planned, &gpus)?);
        }
        Ok(())
    }

    /// The pipeline of such a stream: a packet is released when it arrives, and every step has a window of one period, or of its
    /// part of the deadline where that is shorter.
    fn sharded_pipeline(&self, stream: &Stream, planned: Sharded, gpus: &[EndpointId]) -> Result<Pipeline, PlanError> {
        let steps = self.sharded_steps(stream, &planned, gpus)?;
        let chained = self.strategy == Strategy::Generation;
        let windows = if chained { 1 } else { steps.len() as u64 };
        let window = Nanos(stream.deadline.0 / windows).min(stream.period);
        let largest = planned.shards.iter().map(|shard| planned.block(shard)).max().unwrap_or_default();
        if largest.0 > u64::from(u32::MAX) || window == Nanos::ZERO {
            let reason = if window == Nanos::ZERO {
                format!("its deadline of {} leaves no time for its steps", stream.deadline)
            } else {
                format!("a GPU's part of a packet has {largest}, more than 4 GiB")
            };
            let object = format!("stream `{}`", stream.id);
            return Err(PlanError::Impossible { place: format!("stream.{}", stream.id), object, reason });
        }
        let reserve = planned.shards.iter().fold(0, |sum: u64, shard| sum.saturating_add(planned.block(shard).0));
        Ok(Pipeline {
            name: stream.id.clone(),
            source: PipelineSource::Sharded(planned),
            gpu: None,
            period: stream.period,
            start: stream.start,
            gather: Nanos::ZERO,
            window,
            reserve: Bytes(reserve),
            steps,
            windows: Vec::new(),
            gang: self.in_gangs().then_some(Gang { number: 0, chained }),
        })
    }

    fn sharded_steps(
        &self,
        stream: &Stream,
        planned: &Sharded,
        gpus: &[EndpointId],
    ) -> Result<Vec<PlannedStep>, PlanError> {
        let mut steps = Vec::new();
        for (number, step) in stream.steps.iter().enumerate() {
            let key = format!("steps.{number}.copy");
            let gpu = |shard: &Shard| gpus[shard.gpu as usize];
            let operations: Vec<PlannedOperation> = match step {
                StreamStep::Copy { from, to } => {
                    let bytes = |shard: &Shard| match to {
                        CopyEndpoint::OwnGpu => planned.block(shard),
                        _ => planned.sharding.summary,
                    };
                    let copies = planned.shards.iter().map(|shard| {
                        let route = self.route_of(stream, &key, (from, to), gpu(shard))?;
                        Ok(self.copy(route, bytes(shard)))
                    });
                    copies.collect::<Result<_, PlanError>>()?
                }
                StreamStep::Exchange => {
                    let copies = planned.peers().map(|(from, to)| {
                        let (from, to) = (&planned.shards[from], &planned.shards[to]);
                        let ends = (gpu(from), gpu(to));
                        let route = self.route(ends.0, ends.1).ok_or_else(|| self.no_route(stream, &key, ends))?;
                        Ok(self.copy(route, planned.sharding.summaries(from.items)))
                    });
                    copies.collect::<Result<_, PlanError>>()?
                }
                StreamStep::Compute { kernel } => {
                    let launches = planned.shards.iter().map(|shard| self.launch(stream, number, kernel, gpu(shard)));
                    launches.collect::<Result<_, PlanError>>()?
                }
                StreamStep::Parts(_) => unreachable!("a stream that is divided has no parts"),
            };
            // One GPU has nobody to exchange with.
            if !operations.is_empty() {
                steps.push(self.spread_step(step, operations, is_first_kernel(&steps, steps.len()), planned, gpus));
            }
        }
        Ok(steps)
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

    fn launch(
        &self,
        stream: &Stream,
        number: usize,
        kernel: &str,
        gpu: EndpointId,
    ) -> Result<PlannedOperation, PlanError> {
        let (engine, _) = self.kernel_on_gpu(stream, number, kernel, gpu)?;
        Ok(PlannedOperation { engines: vec![engine], work: OperationWork::Compute { kernel: kernel.to_owned() } })
    }

    /// A step on all GPUs, with its cost if it computes: that of the GPU that has the most to do.
    fn spread_step(
        &self,
        step: &StreamStep,
        operations: Vec<PlannedOperation>,
        is_first_kernel: bool,
        planned: &Sharded,
        gpus: &[EndpointId],
    ) -> PlannedStep {
        let name = match (step, &operations[0].work) {
            (StreamStep::Exchange, _) => "exchange".to_owned(),
            (_, OperationWork::Compute { kernel }) => kernel.clone(),
            (_, OperationWork::Copy { from, to, .. }) => match operations.len() {
                1 => format!("{from} -> {to}"),
                // The end that is not the same for all.
                _ if *to == self.machine.endpoints[gpus[0].at()].id => format!("{from} -> gpus"),
                _ => format!("gpus -> {to}"),
            },
            (_, OperationWork::Hold) => String::new(),
        };
        let costs = (0..).zip(&operations).zip(&planned.shards).filter_map(|((index, operation), shard)| {
            let OperationWork::Compute { kernel } = &operation.work else { return None };
            let bytes = planned.launch_bytes(is_first_kernel, index);
            let per_element = if is_first_kernel { planned.sharding.operations } else { None };
            let known = self.machine.kernel(kernel, gpus[shard.gpu as usize])?;
            Some(self.with_margin(known.launch(bytes, bytes, per_element)))
        });
        let cost = costs.max().unwrap_or_default();
        PlannedStep {
            name,
            server: 0,
            cost,
            chunk: Bytes(0),
            piece: cost,
            hold: None,
            bound: None,
            batch: None,
            operations,
        }
    }

    pub(super) fn route_of(
        &self,
        stream: &Stream,
        key: &str,
        (from, to): (&CopyEndpoint, &CopyEndpoint),
        gpu: EndpointId,
    ) -> Result<RouteId, PlanError> {
        let ends = (self.end(stream, key, from, gpu)?, self.end(stream, key, to, gpu)?);
        self.route(ends.0, ends.1).ok_or_else(|| self.no_route(stream, key, ends))
    }

    /// Sets cost and longest piece of a copy step on all GPUs.
    pub(super) fn price_spread(
        &self,
        planned: &Sharded,
        step: &mut PlannedStep,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<(), PlanError> {
        if let Some((cost, piece)) = self.batch_of_step(step, planned.one_by_one, used, domains)? {
            (step.cost, step.piece) = (cost, piece);
        } else {
            step.piece = step.cost;
        }
        Ok(())
    }

    /// What the copies of a step cost together, and the longest piece that runs without preemption; `None` = it has none.
    ///
    /// As a batch: its bound holds where nothing else of the domain runs at the same time. Or one by one: the sum.
    pub(super) fn batch_of_step(
        &self,
        step: &PlannedStep,
        one_by_one: bool,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<Option<(Nanos, Nanos)>, PlanError> {
        let blocks = step.operations.iter().filter_map(|operation| match operation.work {
            OperationWork::Copy { route, bytes, .. } => Some(BatchBlock { route, bytes }),
            OperationWork::Compute { .. } | OperationWork::Hold => None,
        });
        let blocks: Vec<BatchBlock> = blocks.collect();
        if blocks.is_empty() {
            return Ok(None);
        }
        let calibration = self.machine.calibration.as_ref();
        if one_by_one {
            let mut cost = Nanos::ZERO;
            let mut piece = Nanos::ZERO;
            for block in &blocks {
                let alone = self.with_margin(self.copy_time(block.route, block.bytes, used, domains)?);
                (cost, piece) = (cost.saturating_add(alone), piece.max(alone));
            }
            return Ok(Some((cost, piece)));
        }
        // What lies in different domains goes side by side.
        let mut parts: BTreeMap<Option<usize>, Vec<BatchBlock>> = BTreeMap::new();
        for block in blocks {
            parts.entry(domains.of(block.route)).or_default().push(block);
        }
        let mut cost = Nanos::ZERO;
        for part in parts.values() {
            cost = cost.max(domains.network(part[0].route).wcet(part, calibration)?.value);
        }
        Ok(Some((cost, cost)))
    }

    pub(super) fn no_route(&self, stream: &Stream, key: &str, (from, to): (EndpointId, EndpointId)) -> PlanError {
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
}
