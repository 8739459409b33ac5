//! Streams whose packets have parts that go to several processors (`verner-2014`, III-B): one pipeline, whose steps are sets of
//! copies and kernels.
//!
//! A step is one job: it begins with all of its operations and ends with the last of them, as a batch of the Batch method does that
//! holds kernels as well as copies (`verner-2014`, IV). So all engines that its operations use are one server.

use std::collections::BTreeMap;

use super::strategies::or_of_others;
use super::{Context, Draft, PlanError, Processor, planned_step};
use crate::files::machine::{EndpointId, EngineId};
use crate::files::workload::{PartStep, PartWork, Stream};
use crate::plan::{OperationWork, Parted, Pipeline, PipelineSource, PlannedOperation, PlannedStep};
use crate::units::{Bytes, Nanos};

/// Adds the streams that have parts, with a pipeline of its own each.
pub(super) fn add(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    let engines = context.machine.engines.len();
    let used = draft.pipelines.iter().flat_map(|p| &p.steps).flat_map(|s| &s.operations).flat_map(|o| &o.engines);
    let first = used.map(|engine| (engine.at() + 1).saturating_sub(engines) as u32).max().unwrap_or(0);
    let mut cores = Cores { first, next: 0, count: context.cpu.cores };
    for (index, stream) in context.workload.streams.iter().enumerate().filter(|(index, _)| context.is_parted(*index)) {
        let processor = draft.processors[index];
        let number = draft.pipelines.len() as u32;
        draft.streams[index] = Some(context.planned_stream(index, processor, number, 0));
        draft.pipelines.push(parted_pipeline(context, index as u32, stream, processor, &mut cores)?);
    }
    Ok(draft)
}

fn parted_pipeline(
    context: &Context<'_>,
    index: u32,
    stream: &Stream,
    processor: Processor,
    cores: &mut Cores,
) -> Result<Pipeline, PlanError> {
    let impossible = |key: &str, reason: String| PlanError::Impossible {
        place: format!("stream.{}{key}", stream.id),
        object: format!("stream `{}`", stream.id),
        reason,
    };
    if context.in_gangs() {
        let name = context.strategy.name();
        return Err(impossible(
            ".steps",
            format!("strategy `{name}` knows only streams of one GPU; choose {}", or_of_others()),
        ));
    }
    let (Some((parts, steps)), Processor::Gpu(own)) = (stream.in_parts(), processor) else {
        return Err(impossible(
            ".steps",
            "its steps name several processors: leave `processor` out, and write `on = \"cpu\"` where a core computes"
                .to_owned(),
        ));
    };
    let (gathered, window) = context.window(stream, processor, steps.len() as u64)?;
    let packets = if gathered { window.0.div_ceil(stream.period.0) } else { 1 };
    let planned = Parted {
        stream: index,
        parts: parts.iter().map(|part| part.bytes).collect(),
        reserves: parts.iter().map(|part| Parted::room(part.bytes, packets)).collect(),
        of: steps.iter().map(|set| set.iter().map(|step| step.part).collect()).collect(),
        one_by_one: context.strategy.row().one_by_one,
    };
    let reserve = planned.reserves.iter().fold(0u64, |sum, part| sum.saturating_add(part.0));
    if reserve > u64::from(u32::MAX) {
        let reserve = Bytes(reserve);
        return Err(impossible(
            ".packet",
            format!(
                "one cycle of {window} would carry {reserve}, more than 4 GiB: make packets smaller or the deadline shorter"
            ),
        ));
    }
    let step = |(number, set): (usize, &Vec<PartStep>)| {
        parted_step(context, &StepPlace { stream, number, own }, set, &planned, cores)
    };
    let made = steps.iter().enumerate().map(step).collect::<Result<_, _>>()?;
    let (period, start, gather) =
        if gathered { (window, Nanos::ZERO, window) } else { (stream.period, stream.start, Nanos::ZERO) };
    Ok(Pipeline {
        name: stream.id.clone(),
        source: PipelineSource::Parts(planned),
        gpu: None,
        period,
        start,
        gather,
        window,
        windows: Vec::new(),
        reserve: Bytes(reserve),
        steps: made,
        gang: None,
    })
}

/// A step with its operations and what its kernels cost.
fn parted_step(
    context: &Context<'_>,
    place: &StepPlace<'_>,
    set: &[PartStep],
    planned: &Parted,
    cores: &mut Cores,
) -> Result<PlannedStep, PlanError> {
    let StepPlace { stream, number, own } = *place;
    let mut operations = Vec::new();
    // Kernels of one engine run one after the other.
    let mut busy: BTreeMap<EngineId, Nanos> = BTreeMap::new();
    for PartStep { part, work } in set {
        let bytes = planned.reserves[*part as usize];
        operations.push(match work {
            PartWork::Copy { from, to } => {
                let key = format!("steps.{number}.copy");
                context.copy(context.route_of(stream, &key, from, to, own)?, bytes)
            }
            PartWork::Compute { kernel, at: here, on_cpu } => {
                let here = context.end(stream, &format!("steps.{number}.compute"), here, own)?;
                let (engine, cost) = if *on_cpu {
                    is_on_host(context, place, *part, here)?;
                    on_a_core(context, stream, number, kernel, bytes, cores)?
                } else {
                    let (engine, cost) = context.kernel_on_gpu(stream, number, kernel, here)?;
                    (engine, cost.cost(bytes, bytes))
                };
                let time = busy.entry(engine).or_default();
                *time = time.saturating_add(context.with_margin(cost));
                PlannedOperation { engines: vec![engine], work: OperationWork::Compute { kernel: kernel.clone() } }
            }
        });
    }
    let cost = busy.values().copied().max().unwrap_or_default();
    if cost == Nanos::MAX {
        return Err(PlanError::Impossible {
            place: format!("stream.{}.steps.{number}", stream.id),
            object: format!("step {number} of stream `{}`", stream.id),
            reason: "the cost of its kernels does not fit 64 bits of nanoseconds".to_owned(),
        });
    }
    Ok(planned_step(name(&operations), cost, operations))
}

/// Refuses a kernel on a core of the CPU whose data is on a GPU.
fn is_on_host(context: &Context<'_>, place: &StepPlace<'_>, part: u32, here: EndpointId) -> Result<(), PlanError> {
    if context.machine.gpus().all(|gpu| gpu != here) {
        return Ok(());
    }
    let gpu = &context.machine.endpoints[here.at()].id;
    let part = place.stream.parts.get(part as usize);
    let what = part.map_or_else(|| "its data".to_owned(), |part| format!("part `{}`", part.id));
    Err(PlanError::Impossible {
        place: format!("stream.{}.steps.{}", place.stream.id, place.number),
        object: format!("stream `{}`", place.stream.id),
        reason: format!("`on = \"cpu\"` computes in host memory, and {what} is on `{gpu}`: copy it to `host` before"),
    })
}

fn on_a_core(
    context: &Context<'_>,
    stream: &Stream,
    number: usize,
    kernel: &str,
    bytes: Bytes,
    cores: &mut Cores,
) -> Result<(EngineId, Nanos), PlanError> {
    if context.cpu.kernel(kernel).is_none() {
        return Err(context.unknown_on_cpu(stream, number, kernel));
    }
    let core = cores.take().ok_or_else(|| PlanError::Impossible {
        place: format!("stream.{}.steps.{number}", stream.id),
        object: format!("stream `{}`", stream.id),
        reason: format!("no core of machine `{}` may serve streams (`cores = 0`)", context.machine.name),
    })?;
    Ok(context.on_core(core, kernel, bytes, 1))
}

/// Where a step is written, and its stream's own GPU.
struct StepPlace<'a> {
    stream: &'a Stream,
    number: usize,
    own: EndpointId,
}

/// Cores of the CPU for kernels of streams in parts: those that serve no whole stream, in turn.
struct Cores {
    /// The first one that serves no whole stream.
    first: u32,
    next: u32,
    count: u32,
}

impl Cores {
    fn take(&mut self) -> Option<u32> {
        let (first, free) = match self.count.checked_sub(self.first) {
            None | Some(0) => (0, self.count),
            Some(free) => (self.first, free),
        };
        let core = first + self.next.checked_rem(free)?;
        self.next += 1;
        Some(core)
    }
}

/// What a step does, in short.
fn name(operations: &[PlannedOperation]) -> String {
    let mut names: Vec<String> = Vec::new();
    for operation in operations {
        let name = match &operation.work {
            OperationWork::Copy { from, to, .. } => format!("{from} -> {to}"),
            OperationWork::Compute { kernel } => kernel.clone(),
            OperationWork::Hold => continue,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.len() > NAMES_MAX { format!("{} operations", operations.len()) } else { names.join(" + ") }
}

/// Names of operations that the name of a step has at most.
const NAMES_MAX: usize = 3;
