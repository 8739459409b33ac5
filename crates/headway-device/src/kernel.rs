//! What a compute step is: one computation with a CPU form and a PTX form over the same block.
//!
//! Both forms get the packed block of a cycle ([`headway_core::plan::block`]), an output block of the same layout, and a *state*
//! that stays on the device from cycle to cycle (keys and chaining values, say). They must write the same bytes.

use headway_core::files::workload::{Cipher, Wafer};

/// What a kernel must know of one lane, fixed for a whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// The stream's name, for messages.
    pub stream: String,
    /// Key and first IV, for kernels that encrypt.
    pub cipher: Option<Cipher>,
    /// What it sees, for kernels that inspect images.
    pub camera: Option<Camera>,
}

/// One of the cameras that see a wafer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Camera {
    /// All of them.
    pub wafer: Wafer,
    /// Which one: its images are the columns from `number` times the width on.
    pub number: u32,
}

/// Launch shape of the PTX form: a one-dimensional grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Thread blocks.
    pub blocks: u32,
    /// Threads in each.
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
}

/// A state that cannot be made, or a block that a kernel refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A lane lacks what the kernel needs.
    #[error("kernel `{kernel}` needs {missing} for stream `{stream}`")]
    MissingParameter {
        /// The kernel.
        kernel: &'static str,
        /// The stream.
        stream: String,
        /// What is missing, with the workload key that gives it.
        missing: &'static str,
    },
    /// The input block is damaged or has a size the kernel cannot take.
    #[error("kernel `{kernel}` refuses the block: {reason}")]
    BadBlock {
        /// The kernel.
        kernel: &'static str,
        /// Why.
        reason: String,
    },
}

/// One computation with two forms.
///
/// The PTX entry has the signature `(const u8* input, u8* output, u8* state, u32 lanes)`, with 64-bit generic addresses of
/// device memory, each aligned to 256 bytes. It must treat lanes as independent.
///
/// Both forms write the header, each lane, and zeros from a lane's end to the next multiple of 16. Other bytes, which belong
/// to no lane, are unspecified in the output. A kernel that says its own [`Kernel::output_bytes`] writes what it documents.
pub trait Kernel: Send + Sync {
    /// The name workloads use.
    fn id(&self) -> &'static str;

    /// Size of the state for `lanes` lanes; may be zero.
    fn state_bytes(&self, lanes: usize) -> usize;

    /// The least size of an output for `input` bytes in `lanes` lanes: the size of the input, unless the output is no block.
    fn output_bytes(&self, input: usize, lanes: u32) -> usize {
        let _ = lanes;
        input
    }

    /// Fills a state for a new run.
    ///
    /// # Errors
    /// [`KernelError::MissingParameter`].
    fn init_state(&self, lanes: &[Lane], state: &mut [u8]) -> Result<(), KernelError>;

    /// Operations for each pixel that `state` asks for; `None` for kernels that have no such number.
    fn operations(&self, state: &[u8]) -> Option<u32> {
        let _ = state;
        None
    }

    /// Runs the CPU form.
    ///
    /// # Errors
    /// [`KernelError::BadBlock`]; `output` and `state` are then unspecified.
    fn run(&self, input: &[u8], output: &mut [u8], state: &mut [u8]) -> Result<(), KernelError>;

    /// The PTX form as text, for compute capability 7.5 and later.
    fn ptx(&self) -> &'static str;

    /// Entry point in [`Kernel::ptx`].
    fn entry(&self) -> &'static str;

    /// Launch shape for `lanes` lanes.
    fn grid(&self, lanes: u32) -> Grid;
}
