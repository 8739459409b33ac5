//! Workloads: streams, messages, demands, transfers without windows, and tasks. Read from a *workload file*.

mod application;
mod check;
mod check_steps;
mod fault;
mod file;
mod module_file;
mod module_kernel;
mod parameters;
mod parts;
mod parts_file;
mod processor_file;
mod reader;
mod sharding;
mod task;
mod task_file;
mod texts;
mod unplanned;
mod unplanned_file;
mod write;

use serde::{Deserialize, Serialize};

pub use self::application::{Application, DocumentTable, Field, Keys, Own};
pub use self::fault::WorkloadError;
pub use self::file::{parse, parse_with};
pub use self::module_kernel::{CpuFunction, KernelArgument, ModuleKernel, Number32, Number64, WorkloadModule};
pub use self::parameters::Parameters;
pub use self::parts::{PARTS_MAX, PacketPart, PartStep, PartWork};
pub use self::sharding::{LAUNCH_ALIGN, Sharding};
pub use self::task::{SharingTable, WorkloadTask};
pub use self::unplanned::{Otherwise, Unplanned, UnplannedKind, Urgent};
pub use self::write::{checked, write, write_with};
use crate::units::{Bytes, Nanos};

/// How hard to look for a better set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CombineEffort {
    /// Messages with one period and phase are merged unseen, then the greedy algorithm runs: for thousands of messages.
    Fast,
    /// The paper's greedy algorithm.
    Greedy,
    /// The greedy algorithm, then every message split directly over the slots of its batch, then moves of single messages
    /// and of whole batches as long as they help.
    #[default]
    Search,
    /// The least sum there is, for at most [`LIMITS`](crate::plan::combine::LIMITS)`.optimal_max` messages; it takes `3^n` steps.
    Optimal,
}

/// A whole workload file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Name, quoted in every result.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// How long a run lasts when neither the command line nor the input says.
    pub duration: Nanos,
    /// Seed of everything drawn at random in a run.
    pub seed: u64,
    /// How packets become jobs.
    pub cycle: Cycle,
    /// How streams share pipelines.
    pub grouping: Grouping,
    /// How hard the planner looks for messages to combine.
    pub transform: CombineEffort,
    /// Periodic packets with a deadline and processing steps.
    pub streams: Vec<Stream>,
    /// Periodic sets of blocks (batch messages, `verner-2014` Definitions IV.1 and IV.2).
    pub messages: Vec<Message>,
    /// Abstract demands on a named server, for schedulability questions without a machine.
    pub demands: Vec<ServerDemand>,
    /// Transfers without windows of their own: bulk and urgent ones.
    pub unplanned: Vec<Unplanned>,
    /// Recurrent jobs that share GPUs.
    pub tasks: Vec<WorkloadTask>,
    /// How they do; there if and only if there are tasks.
    pub sharing: Option<SharingTable>,
    /// The first 16 hexadecimal digits of the SHA-256 of the file's text.
    pub hash: String,
}

impl Workload {
    /// A workload without parts: what a file with this name alone would say.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            description: String::new(),
            duration: file::DURATION,
            seed: file::SEED,
            cycle: Cycle::default(),
            grouping: Grouping::default(),
            transform: CombineEffort::default(),
            streams: Vec::new(),
            messages: Vec::new(),
            demands: Vec::new(),
            unplanned: Vec::new(),
            tasks: Vec::new(),
            sharing: None,
            hash: String::new(),
        }
    }
}

/// How the packets of a stream become jobs of its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cycle {
    /// Whichever of the other two is accepted with less utilisation.
    #[default]
    Auto,
    /// The paper's: each step runs once per cycle `T`; packets are gathered for one cycle first.
    Paper,
    /// Each packet is a job of its own, released when it arrives.
    Arrival,
}

/// How streams share pipelines when they run in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grouping {
    /// Streams of a GPU whose cycles fall in the same class `T_min * 2^j` share one pipeline.
    #[default]
    Class,
    /// Every stream has its own pipeline.
    Each,
    /// All streams of a GPU share one pipeline, and all GPUs have the cycles of the shortest stream on the node, so that
    /// their copies can move in one batch.
    Gpu,
}

/// An endless sequence of packets of one size, one every `period`, each to be processed by all steps within `deadline`
/// of its arrival (`verner-2014`, III).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    pub id: String,
    /// Size of a packet.
    pub packet: Bytes,
    /// Time between packets.
    pub period: Nanos,
    /// Relative deadline of a packet.
    pub deadline: Nanos,
    /// Arrival of the first packet, counted from the start of the run.
    pub start: Nanos,
    /// Where it runs.
    pub gpu: StreamPlacement,
    /// Processing steps in order.
    pub steps: Vec<StreamStep>,
    /// What a lateness does to the packet.
    pub on_miss: OnMiss,
    /// Parameters that the `Work` of each step is made with.
    pub parameters: Parameters,
    /// How its packets are divided among all GPUs, if they are.
    pub sharding: Option<Sharding>,
    /// The parts of a packet, if its steps are sets ([`StreamStep::Parts`]) of which each element works on one; else empty.
    pub parts: Vec<PacketPart>,
}

impl Stream {
    /// A stream that starts at once, on whichever GPU the planner chooses, and goes on after a miss.
    #[must_use]
    pub fn new(id: &str, packet: Bytes, period: Nanos, deadline: Nanos, steps: Vec<StreamStep>) -> Self {
        let (start, gpu, on_miss) = (Nanos::ZERO, StreamPlacement::Auto, OnMiss::default());
        Self {
            id: id.to_owned(),
            packet,
            period,
            deadline,
            start,
            gpu,
            steps,
            on_miss,
            parameters: Parameters::default(),
            sharding: None,
            parts: Vec::new(),
        }
    }

    /// The kernels of its steps that the workload names and does not bring, in their order.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(|step| match step {
            StreamStep::Compute { kernel } => vec![kernel.as_str()],
            StreamStep::Copy { .. } | StreamStep::Module(_) | StreamStep::Exchange => Vec::new(),
            StreamStep::Parts(steps) => steps.iter().filter_map(PartStep::kernel).collect(),
        })
    }
}

/// What processes a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamPlacement {
    /// A GPU; the planner balances: largest rate first, onto the least loaded one.
    Auto,
    /// This GPU of the machine file.
    Gpu(String),
    /// A core of the CPU; its copies to and from a GPU are left out.
    Cpu,
    /// A core of the CPU or a GPU: the planner divides.
    Either,
}

/// One step of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamStep {
    /// Moves the data: `"host -> gpu"`.
    Copy { from: CopyEndpoint, to: CopyEndpoint },
    /// Runs a kernel over the data on the stream's GPU.
    Compute {
        /// Kernel name, for example `aes128-cbc`.
        kernel: String,
    },
    /// Runs a kernel of the user's own over each packet on the stream's GPU. All kernels of such a stream come from modules.
    Module(Box<ModuleKernel>),
    /// Moves what every GPU has made of its items to all others. Only for streams with a [`Stream::sharding`].
    Exchange,
    /// Copies and kernels that begin together, at most one for each part; the step ends with the last of them (`verner-2014`, III-B).
    /// All steps of a stream have this form or none has.
    Parts(Vec<PartStep>),
}

impl StreamStep {
    /// The copy from the host to the stream's own GPU.
    #[must_use]
    pub const fn into_gpu() -> Self {
        Self::Copy { from: CopyEndpoint::Host, to: CopyEndpoint::OwnGpu }
    }

    /// The copy from the stream's own GPU to the host.
    #[must_use]
    pub const fn out_of_gpu() -> Self {
        Self::Copy { from: CopyEndpoint::OwnGpu, to: CopyEndpoint::Host }
    }

    /// A kernel on the stream's own GPU.
    #[must_use]
    pub fn compute(kernel: &str) -> Self {
        Self::Compute { kernel: kernel.to_owned() }
    }
}

/// An end of a copy step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEndpoint {
    /// `host`: the memory that the machine's routes connect to the stream's GPU, the first one listed.
    Host,
    /// `gpu`: the stream's own GPU.
    OwnGpu,
    /// A memory or GPU by its name in the machine file.
    Named(String),
}

/// What happens when a deadline passes (specification of messages, 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnMiss {
    /// Complete the packet and count the miss.
    #[default]
    Finish,
    /// Drop what is left of it and count it as lost; the next one starts clean. Under overload such streams are given up
    /// before others are delayed. Not for streams whose kernel carries state from packet to packet.
    Skip,
    /// Stop the run with exit status 1.
    Stop,
}

/// Blocks that become ready together every `period` and must all have arrived before the next ones are ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: String,
    /// Period and implicit deadline.
    pub period: Nanos,
    /// First release.
    pub start: Nanos,
    /// Its producer says when each job is there; where a run stands in for it, up to so much after the release. `None` = every
    /// job is there when it is released.
    pub late: Option<Nanos>,
    pub blocks: Vec<MessageBlock>,
}

impl Workload {
    /// Whether it has nothing but demands, whose servers are on no machine.
    #[must_use]
    pub fn has_only_flows(&self) -> bool {
        let others = self.streams.is_empty() && self.messages.is_empty() && self.unplanned.is_empty();
        !self.demands.is_empty() && others && self.tasks.is_empty() && self.sharing.is_none()
    }
}

impl Message {
    /// How long after its release a plan opens its window: when its blocks are there at the latest. A message that may be
    /// later than its period keeps a window of 1 ns, in which no job can end, so that the plan's answer is no.
    #[must_use]
    pub fn window_after(&self) -> Nanos {
        self.late.unwrap_or(Nanos::ZERO).min(self.period.saturating_sub(Nanos(1)))
    }
}

/// One block of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageBlock {
    /// Endpoint it leaves.
    pub from: String,
    /// Endpoint it must reach.
    pub to: String,
    pub bytes: Bytes,
}

/// A sporadic task `(c, p, d)` on a server of its own choosing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerDemand {
    pub id: String,
    /// Flows with the same server compete; any name.
    pub server: String,
    /// First release, counted from the start of the run. Verdicts for any offsets do not look at it.
    pub start: Nanos,
    /// Worst-case cost.
    pub cost: Nanos,
    /// Period or least distance between releases.
    pub period: Nanos,
    /// Relative deadline.
    pub deadline: Nanos,
}
