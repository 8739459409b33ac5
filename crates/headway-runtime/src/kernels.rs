//! The kernels of a plan with the portions they serve.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use headway_core::files::workload::Workload;
use headway_core::plan::{self, Pipeline, PipelineSource, Plan, Sharded, is_first_kernel};
use headway_core::units::Bytes;
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

/// The kernel of one operation of a plan.
#[derive(Clone)]
pub struct OperationKernel {
    pub pipeline: u32,
    pub step: u32,
    /// Which of the step's operations it is.
    pub index: u32,
    /// Which portions of the pipeline it works on.
    portions: Range<usize>,
    pub work: Arc<dyn Work>,
    /// The CPU form that says what it must have made.
    pub reference: Arc<dyn Work>,
}

/// Kernels of all compute operations of a plan.
#[derive(Clone)]
pub struct Kernels {
    /// By pipeline, in the order of their steps.
    kernels: Vec<Vec<OperationKernel>>,
    portions: Vec<Vec<Portion>>,
    /// What the packets consist of, by pipeline whose packets are divided.
    items: BTreeMap<u32, Arc<dyn Items>>,
}

impl Kernels {
    /// Finds the kernels that `plan` names in `library`, and the parameters of its streams in `workload`.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn of(plan: &Plan, workload: &Workload, library: &dyn Library) -> Result<Self, KernelError> {
        let mut all = Self { kernels: Vec::new(), portions: Vec::new(), items: BTreeMap::new() };
        for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
            let kernels = of_pipeline(plan, number, library)?;
            let portion = |stream: u32, item| {
                let stream = &workload.streams[stream as usize];
                Portion { stream: stream.id.clone(), parameters: stream.parameters.clone(), item }
            };
            all.portions.push(match &pipeline.source {
                PipelineSource::Streams(streams) => streams.iter().map(|&stream| portion(stream, 0)).collect(),
                PipelineSource::Packets(planned) => vec![portion(planned.stream, 0)],
                PipelineSource::Sharded(planned) => {
                    all.items.insert(number, divide(pipeline, planned, &kernels)?);
                    let item =
                        |item| Portion { parameters: planned.parameters.clone(), ..portion(planned.stream, item) };
                    (0..planned.sharding.items).map(item).collect()
                }
                PipelineSource::Parts(planned) => {
                    (0..planned.parts.len() as u32).map(|part| portion(planned.stream, part)).collect()
                }
                PipelineSource::Message
                | PipelineSource::Batch(_)
                | PipelineSource::Demand
                | PipelineSource::Bulk(_)
                | PipelineSource::Urgent(_) => Vec::new(),
            });
            all.kernels.push(kernels);
        }
        Ok(all)
    }

    /// The kernels of all pipelines.
    pub fn all(&self) -> impl Iterator<Item = &OperationKernel> {
        self.kernels.iter().flatten()
    }

    /// The kernels of a pipeline, in the order of its steps.
    #[must_use]
    pub fn of_pipeline(&self, pipeline: u32) -> &[OperationKernel] {
        &self.kernels[pipeline as usize]
    }

    /// What packets of a pipeline consist of that are divided.
    pub(crate) fn all_items(&self) -> BTreeMap<u32, Arc<dyn Items>> {
        self.items.clone()
    }

    /// What the packets of a pipeline of the plan consist of, which are divided.
    ///
    /// # Panics
    /// If they are not.
    #[must_use]
    pub fn items(&self, pipeline: u32) -> &Arc<dyn Items> {
        &self.items[&pipeline]
    }

    /// The portions of a pipeline.
    #[must_use]
    pub fn portions(&self, pipeline: u32) -> &[Portion] {
        &self.portions[pipeline as usize]
    }

    /// The portions that `kernel` works on.
    #[must_use]
    pub fn portions_of(&self, kernel: &OperationKernel) -> &[Portion] {
        &self.portions(kernel.pipeline)[kernel.portions.clone()]
    }
}

/// The kernels of pipeline `number`.
fn of_pipeline(plan: &Plan, number: u32, library: &dyn Library) -> Result<Vec<OperationKernel>, KernelError> {
    let pipeline = &plan.pipelines[number as usize];
    let mut kernels = Vec::new();
    for (step, planned) in (0u32..).zip(&pipeline.steps) {
        for (index, operation) in (0u32..).zip(&planned.operations) {
            let plan::OperationWork::Compute { kernel } = &operation.work else { continue };
            let work = find(library, pipeline, kernel)?;
            let portions = match &pipeline.source {
                PipelineSource::Parts(parted) => {
                    let part = parted.of[step as usize][index as usize] as usize;
                    check_block(pipeline, &work, parted.reserves[part], 1)?;
                    part..part + 1
                }
                PipelineSource::Packets(packets) => {
                    let (before, behind) = (packets.bytes(step as usize), packets.bytes(step as usize + 1));
                    check_packet(pipeline, &work, before, behind)?;
                    0..1
                }
                PipelineSource::Sharded(sharded) if is_first_kernel(&pipeline.steps, step as usize) => {
                    let shard = &sharded.shards[index as usize];
                    shard.first as usize..(shard.first + shard.items) as usize
                }
                PipelineSource::Sharded(sharded) => 0..sharded.sharding.items as usize,
                source => {
                    let streams = source.streams().len();
                    check_block(pipeline, &work, pipeline.reserve, streams as u32)?;
                    0..streams
                }
            };
            // What a core has made with a CPU form is checked by another.
            let on_core = operation.engines.first().is_some_and(|engine| plan.core(engine.at()).is_some());
            let other = if on_core { library.reference(kernel) } else { None };
            let reference = other.unwrap_or_else(|| Arc::clone(&work));
            kernels.push(OperationKernel { pipeline: number, step, index, portions, work, reference });
        }
    }
    Ok(kernels)
}

fn find(library: &dyn Library, pipeline: &Pipeline, kernel: &str) -> Result<Arc<dyn Work>, KernelError> {
    library.find(kernel).ok_or_else(|| KernelError::Unknown {
        pipeline: pipeline.name.clone(),
        name: kernel.to_owned(),
        known: library.ids().join(", "),
    })
}

fn unfit(pipeline: &Pipeline, kernel: &Arc<dyn Work>, reason: String) -> KernelError {
    KernelError::Unfit { pipeline: pipeline.name.clone(), kernel: kernel.id().to_owned(), reason }
}

/// Refuses a work that makes another size of a block of `bytes` bytes.
fn check_block(pipeline: &Pipeline, work: &Arc<dyn Work>, bytes: Bytes, portions: u32) -> Result<(), KernelError> {
    let bytes = bytes.0 as usize;
    let made = work.output_bytes(bytes, portions);
    if made == bytes {
        return Ok(());
    }
    let reason = format!(
        "it makes {made} bytes of a block of {bytes}, and a step leaves a block of the same size; correct its `output_bytes`"
    );
    Err(unfit(pipeline, work, reason))
}

/// Refuses a work that makes another size of a packet of `bytes` bytes than the plan has room for.
fn check_packet(pipeline: &Pipeline, work: &Arc<dyn Work>, bytes: Bytes, planned: Bytes) -> Result<(), KernelError> {
    let made = work.output_bytes(bytes.0 as usize, 1);
    if made as u64 == planned.0 {
        return Ok(());
    }
    let reason = format!(
        "it makes {made} bytes of a packet of {}, and the plan has {}; plan the workload again",
        bytes.0, planned.0
    );
    Err(unfit(pipeline, work, reason))
}

/// What the packets of `pipeline` consist of, divided as `planned`, if `kernels` fit them.
fn divide(pipeline: &Pipeline, planned: &Sharded, kernels: &[OperationKernel]) -> Result<Arc<dyn Items>, KernelError> {
    // Every GPU has the kernels of the first one.
    let works: Vec<&Arc<dyn Work>> = kernels.iter().filter(|it| it.index == 0).map(|it| &it.work).collect();
    let [first, second] = works[..] else {
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
    first.items(&planned.parameters).ok_or_else(|| {
        let reason = "it has no items for the stream's keys, and nothing else brings them; give them in its `items`";
        unfit(pipeline, first, reason.to_owned())
    })
}
