//! Cores of the CPU as processors of streams: each is an engine of its own, behind those of the machine, and a server of its own.

use super::{Context, PlanError, Processor};
use crate::files::workload::{Stream, StreamPlacement};
use crate::plan::stream::class_window;
use crate::plan::{Pipeline, PipelineSource};
use crate::units::{Bytes, Nanos};

/// A core's whole time.
const WHOLE: u64 = 1 << 30;

/// What a stream takes of a core, and what the jobs of its class take besides.
struct Weight {
    cycle: Nanos,
    own: u64,
    of_class: u64,
}

/// The cores of streams, in their order, when no core takes more than `most`; `None` if there are too few.
fn cut(weights: &[Weight], most: u64, cores: u32) -> Option<Vec<u32>> {
    let (mut core, mut load, mut cycle) = (0, 0, None);
    let place = |weight: &Weight| {
        let more = |cycle: Option<Nanos>| weight.own + if cycle == Some(weight.cycle) { 0 } else { weight.of_class };
        if load > 0 && load + more(cycle) > most {
            (core, load, cycle) = (core + 1, 0, None);
        }
        load += more(cycle);
        cycle = Some(weight.cycle);
        (core < cores && load <= most).then_some(core)
    };
    weights.iter().map(place).collect()
}

/// As plans call a core.
pub(super) fn name(core: u32) -> String {
    format!("cpu{core}")
}

/// Gives every stream that is to run on the CPU its core: in the order of deadlines, so that streams of one class share a core,
/// each core taking as many as the least load that all fit in allows. So a job is behind none that is much longer.
pub(super) fn place_on_cores(context: &Context<'_>, placed: &mut [Option<Processor>]) -> Result<(), PlanError> {
    let streams = &context.workload.streams;
    let mut rest: Vec<usize> = (0..placed.len()).filter(|&at| streams[at].gpu == StreamPlacement::Cpu).collect();
    rest.sort_by_key(|&at| (streams[at].deadline, at));
    let Some(&first) = rest.first() else { return Ok(()) };
    if context.cpu.cores == 0 {
        return Err(PlanError::Impossible {
            place: format!("stream.{}.processor", streams[first].id),
            object: format!("stream `{}`", streams[first].id),
            reason: format!("no core of machine `{}` may serve streams (`cores = 0`)", context.machine.name),
        });
    }
    let weights: Vec<Weight> = rest.iter().map(|&at| weight(context, &streams[at], &streams[first])).collect();
    let (mut low, mut high) = (0, weights.iter().map(|weight| weight.own + weight.of_class).sum::<u64>());
    while low < high {
        let middle = low + (high - low) / 2;
        if cut(&weights, middle, context.cpu.cores).is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let cores = cut(&weights, high, context.cpu.cores).expect("one core has room for the sum of all");
    for (at, core) in rest.into_iter().zip(cores) {
        placed[at] = Some(Processor::Core(core));
    }
    Ok(())
}

/// The load of a stream, whose class has the cycle that the shortest deadline of any gives it.
fn weight(context: &Context<'_>, stream: &Stream, shortest: &Stream) -> Weight {
    let kernels = |stream: &Stream| -> Vec<_> { stream.kernels().filter_map(|id| context.cpu.kernel(id)).collect() };
    let window = |of: &Stream| Nanos((of.deadline.0 / (kernels(of).len() as u64 + 1)).max(1));
    let cycle = class_window(window(shortest).min(window(stream)), window(stream), u32::MAX);
    let bytes = u128::from(stream.packet.0) * u128::from(cycle.0) / u128::from(stream.period.0);
    let bytes = Bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
    let share = |time: Nanos| (u128::from(time.0) * u128::from(WHOLE) / u128::from(cycle.0)).min(1 << 40) as u64;
    let mut weight = Weight { cycle, own: 0, of_class: 0 };
    for kernel in kernels(stream) {
        weight.own += share(kernel.portion.saturating_add(kernel.rate.time_for(bytes)));
        weight.of_class += share(context.with_margin(kernel.setup));
    }
    weight
}

/// What the answer for the cores rests on.
pub(super) fn note(context: &Context<'_>, pipelines: &[Pipeline]) -> Option<String> {
    let cores = context.cores(pipelines).count();
    if cores == 0 {
        return None;
    }
    let served = pipelines.iter().filter_map(|pipeline| match &pipeline.source {
        PipelineSource::Streams(streams) if pipeline.gpu.is_none() => Some(streams.len()),
        PipelineSource::Parts(_) => {
            let mut engines = pipeline.steps.iter().flat_map(|s| &s.operations).flat_map(|o| &o.engines);
            engines.any(|engine| engine.at() >= context.machine.engines.len()).then_some(1)
        }
        _ => None,
    });
    let streams: usize = served.sum();
    let streams = if streams == 1 { "1 stream".to_owned() } else { format!("{streams} streams") };
    let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    let source = if !context.cpu.assumed {
        format!("`[cpu]` of machine `{}`", context.machine.name)
    } else {
        format!(
            "nothing but an assumption, 125 MB/s on each of {} cores: machine `{}` has no `[cpu]`, which \
             `headway measure --only kernels` adds",
            context.cpu.cores, context.machine.name
        )
    };
    Some(format!(
        "{streams} on {cores} of the CPU: each core serves one job at a time, the earliest deadline first, none \
         is interrupted, and is tested as any engine; the answer holds while no other thread takes these cores and a job \
         takes no longer than its cost, which rests on {source}"
    ))
}
