//! Cores of the CPU as processors of streams: each is an engine of its own, behind those of the machine, and a server of its own.

use super::{Bytes, EngineId, Nanos, Pipeline, PlanError, Planner, Resolved, Seat};
use crate::machine::EngineClass;
use crate::plan::{PlannedEngine, Source};
use crate::workload::{Placement, Step, Stream};

/// As plans call a core.
pub(super) fn name(core: u32) -> String {
    format!("cpu{core}")
}

impl Planner<'_> {
    /// Gives every stream that is to run on the CPU its core: largest rate first, onto the least loaded one.
    pub(super) fn place_on_cores(
        &self,
        placed: &mut [Option<Seat>],
        rate: impl Fn(&Stream) -> u128,
    ) -> Result<(), PlanError> {
        let streams = &self.workload.streams;
        let mut rest: Vec<usize> = (0..placed.len()).filter(|&at| streams[at].gpu == Placement::Cpu).collect();
        rest.sort_by_key(|&at| (std::cmp::Reverse(rate(&streams[at])), at));
        let mut load = vec![0u128; self.cpu.cores as usize];
        for index in rest {
            let stream = &streams[index];
            let Some(core) = (0..load.len()).min_by_key(|&core| (load[core], core)) else {
                return Err(PlanError::Impossible {
                    place: format!("stream.{}.processor", stream.id),
                    object: format!("stream `{}`", stream.id),
                    reason: format!("no core of machine `{}` may serve streams (`cores = 0`)", self.machine.name),
                });
            };
            load[core] += rate(stream);
            placed[index] = Some(Seat::Core(core as u32));
        }
        Ok(())
    }

    /// The kernels of a stream: what is left of its steps where no GPU has to be reached.
    pub(super) fn resolve_on_core(&self, stream: &Stream) -> Result<Vec<Resolved>, PlanError> {
        let mut steps = Vec::new();
        for (number, step) in stream.steps.iter().enumerate() {
            let Step::Compute { kernel } = step else { continue };
            if self.cpu.kernel(kernel).is_none() {
                let known: Vec<&str> = self.cpu.kernels.iter().map(|kernel| kernel.id.as_str()).collect();
                return Err(PlanError::UnknownName {
                    place: format!("stream.{}.steps.{number}", stream.id),
                    object: format!("stream `{}` on the CPU", stream.id),
                    name: kernel.clone(),
                    machine: self.machine.name.clone(),
                    known: known.join(", "),
                });
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

    /// The engine of a core, and what a job of a kernel costs there.
    pub(super) fn on_core(&self, core: u32, kernel: &str, bytes: Bytes, lanes: u64) -> (EngineId, Nanos) {
        let cost = self.cpu.kernel(kernel).expect("resolved kernels have a cost on the CPU");
        (EngineId(self.machine.engines.len() as u32 + core), cost.cost(bytes, lanes))
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
        let own = self.machine.engines.len();
        let first = |pipeline: &Pipeline| pipeline.steps.first()?.operations.first()?.engines.first().copied();
        let on_core = |pipeline: &&Pipeline| first(pipeline).is_some_and(|engine| engine.at() >= own);
        let served: Vec<&Pipeline> = pipelines.iter().filter(on_core).collect();
        if served.is_empty() {
            return None;
        }
        let streams: usize = served
            .iter()
            .map(|pipeline| match &pipeline.source {
                Source::Streams(streams) => streams.len(),
                _ => 0,
            })
            .sum();
        let cores = self.cores(pipelines).count();
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
            "{streams} streams on {cores} cores of the CPU: each core serves one job at a time, the earliest deadline first, none \
             is interrupted, and is tested as any engine; the answer holds while no other thread takes these cores and a job \
             takes no longer than its cost, which rests on {source}"
        ))
    }
}
