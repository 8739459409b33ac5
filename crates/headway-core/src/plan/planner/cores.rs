//! Cores of the CPU as processors of streams: each is an engine of its own, behind those of the machine, and a server of its own.

use super::{Bytes, EngineId, Nanos, Pipeline, PlanError, Planner, Processor, Resolved};
use crate::files::machine::EngineClass;
use crate::files::workload::{Stream, StreamPlacement, StreamStep};
use crate::plan::stream::class_window;
use crate::plan::{PipelineSource, PlannedEngine};

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

impl Planner<'_> {
    /// Gives every stream that is to run on the CPU its core: in the order of deadlines, so that streams of one class share a core,
    /// each core taking as many as the least load that all fit in allows. So a job is behind none that is much longer.
    pub(super) fn place_on_cores(&self, placed: &mut [Option<Processor>]) -> Result<(), PlanError> {
        let streams = &self.workload.streams;
        let mut rest: Vec<usize> = (0..placed.len()).filter(|&at| streams[at].gpu == StreamPlacement::Cpu).collect();
        rest.sort_by_key(|&at| (streams[at].deadline, at));
        let Some(&first) = rest.first() else { return Ok(()) };
        if self.cpu.cores == 0 {
            return Err(PlanError::Impossible {
                place: format!("stream.{}.processor", streams[first].id),
                object: format!("stream `{}`", streams[first].id),
                reason: format!("no core of machine `{}` may serve streams (`cores = 0`)", self.machine.name),
            });
        }
        let weights: Vec<Weight> = rest.iter().map(|&at| self.weight(&streams[at], &streams[first])).collect();
        let (mut low, mut high) = (0, weights.iter().map(|weight| weight.own + weight.of_class).sum::<u64>());
        while low < high {
            let middle = low + (high - low) / 2;
            if cut(&weights, middle, self.cpu.cores).is_some() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let cores = cut(&weights, high, self.cpu.cores).expect("one core has room for the sum of all");
        for (at, core) in rest.into_iter().zip(cores) {
            placed[at] = Some(Processor::Core(core));
        }
        Ok(())
    }

    /// The load of a stream, whose class has the cycle that the shortest deadline of any gives it.
    fn weight(&self, stream: &Stream, shortest: &Stream) -> Weight {
        let kernels = |stream: &Stream| -> Vec<_> { stream.kernels().filter_map(|id| self.cpu.kernel(id)).collect() };
        let window = |of: &Stream| Nanos((of.deadline.0 / (kernels(of).len() as u64 + 1)).max(1));
        let cycle = class_window(window(shortest).min(window(stream)), window(stream), u32::MAX);
        let bytes = u128::from(stream.packet.0) * u128::from(cycle.0) / u128::from(stream.period.0);
        let bytes = Bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
        let share = |time: Nanos| (u128::from(time.0) * u128::from(WHOLE) / u128::from(cycle.0)).min(1 << 40) as u64;
        let mut weight = Weight { cycle, own: 0, of_class: 0 };
        for kernel in kernels(stream) {
            weight.own += share(kernel.portion.saturating_add(kernel.rate.time_for(bytes)));
            weight.of_class += share(self.with_margin(kernel.setup));
        }
        weight
    }

    /// The kernels of a stream: what is left of its steps where no GPU has to be reached.
    pub(super) fn resolve_on_core(&self, stream: &Stream) -> Result<Vec<Resolved>, PlanError> {
        let mut steps = Vec::new();
        for (number, step) in stream.steps.iter().enumerate() {
            let StreamStep::Compute { kernel } = step else { continue };
            if self.cpu.kernel(kernel).is_none() {
                return Err(self.unknown_on_cpu(stream, number, kernel));
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

    /// What the answer for the cores rests on.
    pub(super) fn note_on_cores(&self, pipelines: &[Pipeline]) -> Option<String> {
        let cores = self.cores(pipelines).count();
        if cores == 0 {
            return None;
        }
        let served = pipelines.iter().filter_map(|pipeline| match &pipeline.source {
            PipelineSource::Streams(streams) if pipeline.gpu.is_none() => Some(streams.len()),
            PipelineSource::Parts(_) => {
                let mut engines = pipeline.steps.iter().flat_map(|s| &s.operations).flat_map(|o| &o.engines);
                engines.any(|engine| engine.at() >= self.machine.engines.len()).then_some(1)
            }
            _ => None,
        });
        let streams: usize = served.sum();
        let streams = if streams == 1 { "1 stream".to_owned() } else { format!("{streams} streams") };
        let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
        let source = if !self.cpu.assumed {
            format!("`[cpu]` of machine `{}`", self.machine.name)
        } else {
            format!(
                "nothing but an assumption, 125 MB/s on each of {} cores: machine `{}` has no `[cpu]`, which \
                 `headway measure --only kernels` adds",
                self.cpu.cores, self.machine.name
            )
        };
        Some(format!(
            "{streams} on {cores} of the CPU: each core serves one job at a time, the earliest deadline first, none \
             is interrupted, and is tested as any engine; the answer holds while no other thread takes these cores and a job \
             takes no longer than its cost, which rests on {source}"
        ))
    }
}
