//! Streams of one processor: those that may share a pipeline do.

use std::collections::BTreeMap;

use super::{Context, Draft, PlanError, Processor, cores, planned_step};
use crate::files::machine::RouteId;
use crate::files::workload::{Grouping, OnMiss, Stream, StreamStep};
use crate::plan::block::block_bytes;
use crate::plan::{OperationWork, Pipeline, PipelineSource, PlannedOperation, PlannedStep};
use crate::units::{Bytes, Nanos};

/// A copy or compute step with its ends resolved; streams may share a pipeline only if all of these agree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resolved {
    Copy(RouteId),
    Compute(String),
}

/// Streams that will share a pipeline.
#[derive(Debug)]
struct Group {
    processor: Processor,
    steps: Vec<Resolved>,
    gathered: bool,
    /// The window of every step.
    window: Nanos,
    streams: Vec<usize>,
}

/// Adds a pipeline for the streams of every group.
pub(super) fn form(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    for group in &groups(context, &draft.processors)? {
        let number = draft.pipelines.len() as u32;
        for (portion, &stream) in (0u32..).zip(&group.streams) {
            draft.streams[stream] = Some(context.planned_stream(stream, group.processor, number, portion));
        }
        draft.pipelines.push(pipeline(context, group)?);
    }
    Ok(draft)
}

/// The streams that share pipelines, in the order of GPU, form, window and first stream.
fn groups(context: &Context<'_>, processors: &[Processor]) -> Result<Vec<Group>, PlanError> {
    let mut shortest: BTreeMap<Processor, Nanos> = BTreeMap::new();
    let mut formed = Vec::new();
    for (index, (stream, &processor)) in context.workload.streams.iter().zip(processors).enumerate() {
        if context.is_sharded(index) || context.is_parted(index) || stream.has_modules() {
            continue;
        }
        let steps = resolve(context, stream, processor)?;
        let (gathered, window) = context.window(stream, processor, steps.len() as u64)?;
        if gathered {
            let least = shortest.entry(processor).or_insert(window);
            *least = window.min(*least);
        }
        formed.push((index, processor, steps, gathered, window));
    }
    // Cores have the classes of the shortest window on any of them.
    let on_cores =
        shortest.iter().filter(|(processor, _)| matches!(processor, Processor::Core(_))).map(|(_, window)| *window);
    let on_cores = on_cores.min().unwrap_or(Nanos::ZERO);
    let on_gpus = shortest.iter().filter(|(processor, _)| matches!(processor, Processor::Gpu(_)));
    let shortest_of_all = on_gpus.map(|(_, window)| *window).min();
    let mut groups: BTreeMap<_, Group> = BTreeMap::new();
    for (index, processor, steps, gathered, window) in formed {
        let on_core = matches!(processor, Processor::Core(_));
        let shared = gathered && context.workload.grouping != Grouping::Each;
        let window = match context.workload.grouping {
            _ if !gathered => window,
            // One cycle for all GPUs, that of the shortest deadline.
            _ if context.in_gangs() && !on_core => shortest_of_all.unwrap_or(window),
            Grouping::Each => window,
            Grouping::Gpu if !on_core => shortest_of_all.unwrap_or(window),
            // Cores have no copies that could move in one batch.
            Grouping::Gpu | Grouping::Class => {
                // Classes T_min 2^j, rounded down: harmonic, so that all of them start together again and again.
                let least = if on_core { on_cores } else { shortest[&processor] };
                Nanos(least.0 << (window.0 / least.0).ilog2())
            }
        };
        let alone = if shared { None } else { Some(index) };
        // Only whole blocks can be given up: streams that skip share none with others.
        let skips = context.workload.streams[index].on_miss == OnMiss::Skip;
        let key = (processor, !gathered, window, steps.clone(), alone, skips);
        let group = groups.entry(key).or_insert(Group { processor, steps, gathered, window, streams: Vec::new() });
        group.streams.push(index);
    }
    Ok(groups.into_values().collect())
}

fn resolve(context: &Context<'_>, stream: &Stream, processor: Processor) -> Result<Vec<Resolved>, PlanError> {
    let Processor::Gpu(gpu) = processor else { return resolve_on_core(context, stream) };
    let mut steps = Vec::new();
    for (number, step) in stream.steps.iter().enumerate() {
        steps.push(match step {
            StreamStep::Compute { kernel } => {
                context.kernel_on_gpu(stream, number, kernel, gpu)?;
                Resolved::Compute(kernel.clone())
            }
            StreamStep::Copy { from, to } => {
                Resolved::Copy(context.route_of(stream, &format!("steps.{number}.copy"), from, to, gpu)?)
            }
            StreamStep::Module(_) | StreamStep::Exchange | StreamStep::Parts(_) => {
                unreachable!("these streams have pipelines of their own")
            }
        });
    }
    Ok(steps)
}

/// The most bytes a stream can add to one block.
fn portion_bytes(context: &Context<'_>, group: &Group, stream: usize) -> u64 {
    let stream = &context.workload.streams[stream];
    let packets = if group.gathered { group.window.0.div_ceil(stream.period.0) } else { 1 };
    packets.saturating_mul(stream.packet.0)
}

fn pipeline(context: &Context<'_>, group: &Group) -> Result<Pipeline, PlanError> {
    let first = &context.workload.streams[group.streams[0]];
    let reserve = block_bytes(group.streams.iter().map(|&s| portion_bytes(context, group, s)));
    let on = match group.processor {
        Processor::Gpu(gpu) => context.machine.endpoints[gpu.at()].id.clone(),
        Processor::Core(core) => cores::name(core),
    };
    if reserve.0 > u64::from(u32::MAX) {
        return Err(PlanError::Impossible {
            place: format!("stream.{}.packet", first.id),
            object: format!("the pipeline of stream `{}`", first.id),
            reason: format!("one cycle of {} would carry {reserve}, more than 4 GiB", group.window),
        });
    }
    let steps =
        group.steps.iter().map(|step| resolved_step(context, group, step, reserve)).collect::<Result<_, _>>()?;
    let (name, period, start, gather) = if group.gathered {
        let name = match group.streams.as_slice() {
            [_] if context.workload.grouping == Grouping::Each => first.id.clone(),
            streams => format!("{on} {} x{}", group.window, streams.len()),
        };
        (name, group.window, Nanos::ZERO, group.window)
    } else {
        (first.id.clone(), first.period, first.start, Nanos::ZERO)
    };
    let streams = group.streams.iter().map(|&s| s as u32).collect();
    Ok(Pipeline {
        name,
        source: PipelineSource::Streams(streams),
        gpu: context.gpu_of(group.processor),
        period,
        start,
        gather,
        window: group.window,
        reserve,
        steps,
        windows: Vec::new(),
        gang: None,
    })
}

/// A step without its server and, for a copy, without its cost: both follow when all steps are known.
fn resolved_step(
    context: &Context<'_>,
    group: &Group,
    step: &Resolved,
    reserve: Bytes,
) -> Result<PlannedStep, PlanError> {
    let first = &context.workload.streams[group.streams[0]];
    Ok(match step {
        Resolved::Copy(route) => context.copy_step(*route, reserve),
        Resolved::Compute(kernel) => {
            let (engine, cost) = match group.processor {
                Processor::Gpu(gpu) => {
                    let engine = context.machine.execution_engine(gpu).expect("resolved kernels have an engine");
                    let cost = context.machine.kernel(kernel, gpu).expect("resolved kernels have a cost");
                    let chain = group.streams.iter().map(|&s| portion_bytes(context, group, s)).max().unwrap_or(0);
                    (engine, cost.cost(reserve, Bytes(chain)))
                }
                Processor::Core(core) => context.on_core(core, kernel, reserve, group.streams.len() as u64),
            };
            let cost = context.with_margin(cost);
            if cost == Nanos::MAX {
                return Err(PlanError::Impossible {
                    place: format!("stream.{}", first.id),
                    object: format!("kernel `{kernel}` of stream `{}`", first.id),
                    reason: "its cost does not fit 64 bits of nanoseconds".to_owned(),
                });
            }
            let operation =
                PlannedOperation { engines: vec![engine], work: OperationWork::Compute { kernel: kernel.clone() } };
            planned_step(kernel.clone(), cost, vec![operation])
        }
    })
}

/// The kernels of a stream: what is left of its steps where no GPU has to be reached.
fn resolve_on_core(context: &Context<'_>, stream: &Stream) -> Result<Vec<Resolved>, PlanError> {
    let mut steps = Vec::new();
    for (number, step) in stream.steps.iter().enumerate() {
        let StreamStep::Compute { kernel } = step else { continue };
        if context.cpu.kernel(kernel).is_none() {
            return Err(context.unknown_on_cpu(stream, number, kernel));
        }
        steps.push(Resolved::Compute(kernel.clone()));
    }
    if steps.is_empty() {
        return Err(PlanError::Impossible {
            place: format!("stream.{}.steps", stream.id),
            object: format!("stream `{}`", stream.id),
            reason: "it has no kernel that a core could run".to_owned(),
        });
    }
    Ok(steps)
}
