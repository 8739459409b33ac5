//! The kernels of a plan with the portions they serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use headway_core::files::workload::Workload;
use headway_core::plan::{self, Parted, Pipeline, PipelineSource, Plan, Sharded};
use headway_device::work::{Items, Library, Portion, Work};

/// A library whose kernels cannot run a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// It does not give a kernel that the plan names.
    #[error(
        "pipeline `{pipeline}` runs kernel `{name}`, which the library does not give; name one that it gives ({known}), or use a \
         library with `{name}`"
    )]
    Unknown {
        /// Whose step names it.
        pipeline: String,
        /// What the plan asks for.
        name: String,
        /// What the library gives.
        known: String,
    },
    /// A pipeline whose packets are divided has other kernels than one for a GPU's own items and one for the summaries of all.
    #[error(
        "pipeline `{pipeline}` is divided among GPUs, which takes two kernels, and its plan has {kernels}; plan the workload again"
    )]
    Count {
        pipeline: String,
        /// How many it has.
        kernels: usize,
    },
    /// A kernel's sizes or answers are not those that its step needs.
    #[error("kernel `{kernel}` cannot serve pipeline `{pipeline}`: {reason}")]
    Unfit {
        /// Whose step it is.
        pipeline: String,
        kernel: String,
        /// What does not fit, and what to change.
        reason: String,
    },
}

/// What serves a pipeline whose packets are divided among GPUs.
#[derive(Clone)]
pub struct Divided {
    /// Works on the items of one GPU.
    pub first: Arc<dyn Work>,
    /// Works on the summaries of all items.
    pub second: Arc<dyn Work>,
    /// What the packets consist of.
    pub items: Arc<dyn Items>,
}

/// A kernel over one part of a packet.
#[derive(Clone)]
pub struct PartKernel {
    pub step: u32,
    /// Which of the step's operations it is.
    pub index: u32,
    pub part: u32,
    pub work: Arc<dyn Work>,
    /// What checks it.
    pub reference: Arc<dyn Work>,
}

/// Kernels of all compute steps of a plan.
#[derive(Clone)]
pub struct Kernels {
    stages: Vec<(u32, u32, Arc<dyn Work>)>,
    /// What checks them.
    references: Vec<(u32, u32, Arc<dyn Work>)>,
    portions: Vec<Vec<Portion>>,
    /// What serves the pipelines whose packets are divided.
    divided: BTreeMap<u32, Divided>,
    /// What serves the pipelines whose packets have parts.
    parted: BTreeMap<u32, Vec<PartKernel>>,
}

impl Kernels {
    /// Finds the kernels that `plan` names in `library`, and the parameters of its streams in `workload`.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn of(plan: &Plan, workload: &Workload, library: &dyn Library) -> Result<Self, KernelError> {
        let (mut stages, mut references) = (Vec::new(), Vec::new());
        let (mut portions, mut divided, mut parted) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
            if let PipelineSource::Parts(planned) = &pipeline.source {
                parted.insert(number, of_parts(plan, pipeline, planned, library)?);
                let stream = &workload.streams[planned.stream as usize];
                let portion = |item| Portion { stream: stream.id.clone(), parameters: stream.parameters.clone(), item };
                portions.push((0..planned.parts.len() as u32).map(portion).collect());
                continue;
            }
            let mut works = Vec::new();
            for (step, planned) in (0u32..).zip(&pipeline.steps) {
                if let plan::OperationWork::Compute { kernel } = &planned.operations[0].work {
                    let found = find(library, pipeline, kernel)?;
                    // What a core has made with a CPU form is checked by another.
                    let other = plan.core_of(pipeline).and_then(|_| library.reference(kernel));
                    references.push((number, step, other.unwrap_or_else(|| Arc::clone(&found))));
                    stages.push((number, step, Arc::clone(&found)));
                    works.push(found);
                }
            }
            portions.push(match &pipeline.source {
                PipelineSource::Streams(streams) => {
                    check_blocks(pipeline, &works, streams.len())?;
                    streams
                        .iter()
                        .map(|&stream| {
                            let stream = &workload.streams[stream as usize];
                            Portion { stream: stream.id.clone(), parameters: stream.parameters.clone(), item: 0 }
                        })
                        .collect()
                }
                PipelineSource::Sharded(planned) => {
                    divided.insert(number, divide(pipeline, planned, &works)?);
                    let stream = &workload.streams[planned.stream as usize].id;
                    let portion =
                        |item| Portion { stream: stream.clone(), parameters: planned.parameters.clone(), item };
                    (0..planned.sharding.items).map(portion).collect()
                }
                PipelineSource::Parts(_) => unreachable!("its portions were pushed above"),
                PipelineSource::Message
                | PipelineSource::Batch(_)
                | PipelineSource::Demand
                | PipelineSource::Bulk(_)
                | PipelineSource::Urgent(_) => Vec::new(),
            });
        }
        Ok(Self { stages, references, portions, divided, parted })
    }

    /// Pipeline, step and kernel of every compute step, but of pipelines whose packets have parts.
    pub fn stages(&self) -> impl Iterator<Item = (u32, u32, &Arc<dyn Work>)> {
        self.stages.iter().map(|(pipeline, step, kernel)| (*pipeline, *step, kernel))
    }

    /// Pipeline, step and kernel of these steps, with the CPU form that says what a step must have made.
    pub fn references(&self) -> impl Iterator<Item = (u32, u32, &Arc<dyn Work>)> {
        self.references.iter().map(|(pipeline, step, kernel)| (*pipeline, *step, kernel))
    }

    pub(crate) fn all_items(&self) -> BTreeMap<u32, Arc<dyn Items>> {
        self.divided.iter().map(|(pipeline, divided)| (*pipeline, Arc::clone(&divided.items))).collect()
    }

    /// What serves a pipeline of the plan whose packets are divided.
    ///
    /// # Panics
    /// If they are not.
    #[must_use]
    pub fn divided(&self, pipeline: u32) -> &Divided {
        &self.divided[&pipeline]
    }

    /// The kernels of a pipeline whose packets have parts, in the order of steps; empty if they have none.
    #[must_use]
    pub fn of_parts(&self, pipeline: u32) -> &[PartKernel] {
        self.parted.get(&pipeline).map_or(&[], Vec::as_slice)
    }

    /// Pipeline and kernels of every pipeline whose packets have parts.
    pub fn parted(&self) -> impl Iterator<Item = (u32, &[PartKernel])> {
        self.parted.iter().map(|(pipeline, kernels)| (*pipeline, kernels.as_slice()))
    }

    /// The portions of a pipeline.
    #[must_use]
    pub fn portions(&self, pipeline: u32) -> &[Portion] {
        &self.portions[pipeline as usize]
    }
}

fn find(library: &dyn Library, pipeline: &Pipeline, kernel: &str) -> Result<Arc<dyn Work>, KernelError> {
    library.find(kernel).ok_or_else(|| KernelError::Unknown {
        pipeline: pipeline.name.clone(),
        name: kernel.to_owned(),
        known: library.ids().join(", "),
    })
}

/// The kernels of `pipeline`, whose packets have the parts of `planned`.
fn of_parts(
    plan: &Plan,
    pipeline: &Pipeline,
    planned: &Parted,
    library: &dyn Library,
) -> Result<Vec<PartKernel>, KernelError> {
    let mut kernels = Vec::new();
    for (step, (operations, of)) in (0u32..).zip(pipeline.steps.iter().map(|step| &step.operations).zip(&planned.of)) {
        for (index, (operation, &part)) in (0u32..).zip(operations.iter().zip(of)) {
            let plan::OperationWork::Compute { kernel } = &operation.work else { continue };
            let work = find(library, pipeline, kernel)?;
            check_block(pipeline, &work, planned.reserves[part as usize].0 as usize, 1)?;
            // What a core has made with a CPU form is checked by another.
            let on_core = operation.engines.first().is_some_and(|engine| plan.core(engine.at()).is_some());
            let other = if on_core { library.reference(kernel) } else { None };
            let reference = other.unwrap_or_else(|| Arc::clone(&work));
            kernels.push(PartKernel { step, index, part, work, reference });
        }
    }
    Ok(kernels)
}

fn unfit(pipeline: &Pipeline, kernel: &Arc<dyn Work>, reason: String) -> KernelError {
    KernelError::Unfit { pipeline: pipeline.name.clone(), kernel: kernel.id().to_owned(), reason }
}

/// Refuses works of which one makes no block for the next step of `pipeline`, which serves so many portions.
fn check_blocks(pipeline: &Pipeline, works: &[Arc<dyn Work>], portions: usize) -> Result<(), KernelError> {
    works.iter().try_for_each(|work| check_block(pipeline, work, pipeline.reserve.0 as usize, portions as u32))
}

/// Refuses a work that makes another size of a block of `bytes` bytes.
fn check_block(pipeline: &Pipeline, work: &Arc<dyn Work>, bytes: usize, portions: u32) -> Result<(), KernelError> {
    let made = work.output_bytes(bytes, portions);
    if made == bytes {
        return Ok(());
    }
    let reason = format!(
        "it makes {made} bytes of a block of {bytes}, and a step leaves a block of the same size; correct its `output_bytes`"
    );
    Err(unfit(pipeline, work, reason))
}

/// What serves the packets of `pipeline`, divided as `planned`, if `works` fit them.
fn divide(pipeline: &Pipeline, planned: &Sharded, works: &[Arc<dyn Work>]) -> Result<Divided, KernelError> {
    let [first, second] = works else {
        return Err(KernelError::Count { pipeline: pipeline.name.clone(), kernels: works.len() });
    };
    let sharding = &planned.sharding;
    let all = sharding.summaries(sharding.items).0 as usize;
    for shard in &planned.shards {
        let made = first.output_bytes(planned.block(shard).0 as usize, shard.items);
        let room = sharding.summaries(shard.items).0 as usize;
        if made != room {
            let items = shard.items;
            let reason = format!(
                "it makes {made} bytes of {items} items, whose summaries have {room}; correct its `output_bytes` or the stream's `summary`"
            );
            return Err(unfit(pipeline, first, reason));
        }
    }
    let (made, result) = (second.output_bytes(all, sharding.items), sharding.summary.0 as usize);
    if made < result {
        let reason = format!(
            "it makes {made} bytes, and the result has {result}; correct its `output_bytes` or the stream's `summary`"
        );
        return Err(unfit(pipeline, second, reason));
    }
    if second.state_bytes(sharding.items as usize) > 0 {
        let reason =
            "it has a state, which is kept for the first kernel of a divided stream only; leave it without one";
        return Err(unfit(pipeline, second, reason.to_owned()));
    }
    let items = first.items(&planned.parameters).ok_or_else(|| {
        let reason = "it has no items for the stream's keys, and nothing else brings them; give them in its `items`";
        unfit(pipeline, first, reason.to_owned())
    })?;
    Ok(Divided { first: Arc::clone(first), second: Arc::clone(second), items })
}
