//! What runs on a GPU between copies: one computation with a device form and a CPU form.
//!
//! A work may be launched by itself, with arguments of the caller's choice, or be a step of a stream. As a step it gets the packed
//! block of a cycle ([`headway_core::plan::block`]), an output, and a *state* that stays on the device from cycle to cycle
//! (keys and chaining values, say). Both forms must write the same bytes.
//!
//! The device form of a step finds input, output and state at multiples of [`LAUNCH_ALIGN`](headway_core::plan::block::LAUNCH_ALIGN) bytes. The CPU form gets slices that may start
//! anywhere.

use std::fmt::Debug;
use std::sync::Arc;

use headway_core::files::workload::Parameters;
use headway_core::plan::block::BlockHeader;
use headway_core::units::Bytes;

use crate::buffer::Span;
use crate::error::DeviceError;
pub use crate::error::WorkError;

/// What a work must know of one portion, fixed for a whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Portion {
    /// The stream's name, for messages.
    pub stream: String,
    /// What the stream's keys say, for the works that know them.
    pub parameters: Parameters,
    /// Of a stream whose packets are divided, the item that the portion carries; else 0.
    pub item: u32,
}

/// The items of a stream whose packets are divided, where no input brings them: synthetic, so that the results are known too.
pub trait Items: Debug + Send + Sync {
    /// Writes item `item` of the packet at place `row` of the ring.
    fn fill(&self, item: u32, row: u32, bytes: &mut [u8]);

    /// Refuses a result that is damaged or not of the packet of `cycle`.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&self, result: &[u8], cycle: u64) -> Result<(), String>;

    /// Whether a result is what the packet at place `row` of the ring must give.
    fn is_right(&self, result: &[u8], row: u32) -> bool;
}

/// Device code that a driver loads.
#[derive(Clone, Debug)]
pub enum DeviceCode {
    /// PTX text that is part of the program.
    Ptx(&'static str),
    /// What a file held: PTX text, a cubin or a fatbin.
    File(Arc<[u8]>),
}

impl DeviceCode {
    /// The text or the image, without the zero that may have to stand behind it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Ptx(text) => text.as_bytes(),
            Self::File(bytes) => bytes,
        }
    }
}

/// Launch shape of the device's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchGrid {
    /// Thread blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads in each, in x, y and z.
    pub threads: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
}

impl LaunchGrid {
    /// The most threads of a block on any GPU.
    pub const BLOCK_THREADS_MAX: u64 = 1024;

    /// `blocks` blocks in a line, of `threads` threads each.
    #[must_use]
    pub const fn line(blocks: u32, threads: u32, shared_bytes: u32) -> Self {
        Self { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared_bytes }
    }

    /// All thread blocks.
    #[must_use]
    pub fn all_blocks(&self) -> u64 {
        self.blocks.iter().fold(1, |all: u64, blocks| all.saturating_mul(u64::from(*blocks)))
    }

    /// All threads of a block.
    #[must_use]
    pub fn block_threads(&self) -> u64 {
        self.threads.iter().fold(1, |all: u64, threads| all.saturating_mul(u64::from(*threads)))
    }
}

/// One argument of a launch.
#[derive(Debug)]
pub enum Argument {
    /// Device memory, or pinned host memory; may be written if it was claimed for writing.
    Memory(Span),
    /// No memory: the address 0.
    Null,
    /// A 32-bit integer, or the bits of another value of 32 bits.
    Int(i32),
    /// A 64-bit integer, or the bits of another value of 64 bits.
    Wide(u64),
}

/// One argument as the CPU form sees it.
#[derive(Debug)]
pub enum CpuArgument<'a> {
    /// Memory to be read.
    Read(&'a [u8]),
    /// Memory to be read and written.
    Write(&'a mut [u8]),
    /// No memory.
    Null,
    /// A 32-bit integer, or the bits of another value of 32 bits.
    Int(i32),
    /// A 64-bit integer, or the bits of another value of 64 bits.
    Wide(u64),
}

/// What the cost of a launch depends on, as machine files count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Bytes in all portions.
    pub bytes: Bytes,
    /// Bytes of the longest portion.
    pub chain: Bytes,
    /// Operations for each element of the data, of works that have such.
    pub operations: Option<u32>,
}

/// One computation that GPUs run.
///
/// Its CPU form is what emulated GPUs run. A work that is only launched gives [`Work::launch`]; a step of a stream gives
/// [`Work::run`] with the sizes and the state that it needs.
pub trait Work: Send + Sync {
    /// The name that workloads and messages use.
    fn id(&self) -> &str;

    /// The device's form; as PTX text, of compute capability 7.5 or later.
    fn code(&self) -> DeviceCode;

    /// Entry point in [`Work::code`]; its parameters are the arguments in order: 64-bit addresses, and values of 32 or 64 bits.
    fn entry(&self) -> &str;

    /// The CPU form of one launch; by default that of the step whose arguments these are.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for arguments that do not fit; the step's error.
    fn launch(&self, grid: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        let _ = grid;
        match arguments {
            [CpuArgument::Read(input), CpuArgument::Write(output), CpuArgument::Write(state), CpuArgument::Int(_)] => {
                Ok(self.run(input, output, state)?)
            }
            [CpuArgument::Read(input), CpuArgument::Write(output), CpuArgument::Null, CpuArgument::Int(_)] => {
                Ok(self.run(input, output, &mut [])?)
            }
            _ => Err(DeviceError::Invalid { what: "launch", reason: format!("`{}` takes other arguments", self.id()) }),
        }
    }

    /// The CPU form of a step: writes the output and moves the state on.
    ///
    /// Where the output is a block, both forms write its header, each portion, and zeros from a portion's end to the next multiple of 16.
    /// Other bytes, which belong to no portion, are unspecified. A work that says its own [`Work::output_bytes`] writes what it documents.
    ///
    /// # Errors
    /// [`WorkError::BadBlock`]; `output` and `state` are then unspecified.
    fn run(&self, input: &[u8], output: &mut [u8], state: &mut [u8]) -> Result<(), WorkError> {
        let _ = (input, output, state);
        Err(WorkError::BadBlock { work: self.id().to_owned(), reason: "it is no step of a stream".to_owned() })
    }

    /// The arguments of a step's launch, by default input, output, state (or no memory) and the number of portions. The entry must
    /// treat portions as independent.
    fn arguments(&self, memory: StepMemory, portions: u32) -> Vec<Argument> {
        let StepMemory { input, output, state } = memory;
        let state = state.map_or(Argument::Null, Argument::Memory);
        vec![Argument::Memory(input), Argument::Memory(output), state, Argument::Int(portions.cast_signed())]
    }

    /// Launch shape of a step with `portions` portions.
    fn grid(&self, portions: u32) -> LaunchGrid {
        LaunchGrid::line(portions.max(1), 32, 0)
    }

    /// Whether its input is a packed block, with a header; otherwise the bytes of a packet as they came.
    fn reads_blocks(&self) -> bool {
        true
    }

    /// Whether the CPU form says what the device's form must write.
    fn is_comparable(&self) -> bool {
        true
    }

    /// Size of the state for `portions` portions; may be zero.
    fn state_bytes(&self, portions: usize) -> usize {
        let _ = portions;
        0
    }

    /// The least size of an output for `input` bytes in `portions` portions: the size of the input, unless the output is no block.
    fn output_bytes(&self, input: usize, portions: u32) -> usize {
        let _ = portions;
        input
    }

    /// Fills a state for a new run.
    ///
    /// # Errors
    /// [`WorkError::MissingParameter`].
    fn init_state(&self, portions: &[Portion], state: &mut [u8]) -> Result<(), WorkError> {
        let _ = portions;
        state.fill(0);
        Ok(())
    }

    /// The portion as a new run must begin it to go on where `output`, the portion's last one, ended; `None` for works whose state does
    /// not follow from their output.
    fn resume(&self, portion: &Portion, output: &[u8]) -> Option<Portion> {
        let _ = (portion, output);
        None
    }

    /// The items of a stream with these parameters that is divided and whose first kernel this is; `None` where there are none.
    fn items(&self, parameters: &Parameters) -> Option<Arc<dyn Items>> {
        let _ = parameters;
        None
    }

    /// Operations for each element that `state` asks for; `None` for works that have no such number.
    fn operations(&self, state: &[u8]) -> Option<u32> {
        let _ = state;
        None
    }

    /// What a launch with these arguments costs; `None` where nobody has said. By default a step costs what is in its portions.
    fn demand(&self, arguments: &[CpuArgument<'_>]) -> Option<Demand> {
        let [CpuArgument::Read(input), _, state, CpuArgument::Int(_)] = arguments else { return None };
        let operations = match state {
            CpuArgument::Write(state) => self.operations(state),
            _ => self.operations(&[]),
        };
        let portions = match BlockHeader::read(input) {
            Ok(header) => header.portions.iter().map(|portion| portion.len() as u64).collect(),
            Err(_) => vec![input.len() as u64],
        };
        let chain = portions.iter().copied().max().unwrap_or(0);
        Some(Demand { bytes: Bytes(portions.iter().sum()), chain: Bytes(chain), operations })
    }
}

/// The works that the steps of streams can name.
pub trait Library: Send + Sync {
    /// The work called `id`.
    fn find(&self, id: &str) -> Option<Arc<dyn Work>>;

    /// A second CPU form of the work called `id`, to check what the first has made; `None` where there is none.
    fn reference(&self, id: &str) -> Option<Arc<dyn Work>> {
        let _ = id;
        None
    }

    /// The id of every work that any stream can name, in alphabetical order.
    fn ids(&self) -> Vec<&'static str>;
}

/// The memory of one launch of a step, all of it on one device.
#[derive(Debug)]
pub struct StepMemory {
    /// The packed block to read.
    pub input: Span,
    /// Where the result goes, claimed for writing, at least of [`Work::output_bytes`].
    pub output: Span,
    /// The state, claimed for writing; `None` for works without one.
    pub state: Option<Span>,
}
