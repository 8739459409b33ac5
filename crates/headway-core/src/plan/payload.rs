//! What carries a run's real bytes for a driver that has no devices of its own.

use crate::units::Bytes;

/// What a cycle gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Size of the block; zero = nothing arrived.
    pub block: Bytes,
    /// The longest portion: data that a chained kernel must process one part after the other.
    pub longest_portion: Bytes,
}

/// A chunk of a submitted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadChunk {
    pub pipeline: u32,
    pub cycle: u64,
    pub step: u32,
    /// Which of the step's operations.
    pub index: u32,
    /// First byte.
    pub offset: Bytes,
    /// Number of bytes.
    pub bytes: Bytes,
}

/// Moves and processes bytes when the driver says that it happened.
pub trait Payload {
    /// What goes wrong with files and buffers.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Whether the run should end now. The driver calls it before every instant.
    fn interrupted(&self) -> bool {
        false
    }

    /// Fills the first buffer of a cycle with what arrived.
    ///
    /// # Errors
    /// When the input cannot be read.
    fn gather(&mut self, pipeline: u32, cycle: u64) -> Result<Gathered, Self::Error>;

    /// Does what the operation does: moves the chunk's bytes, or runs the kernel.
    ///
    /// # Errors
    /// When the kernel refuses its block.
    fn execute(&mut self, chunk: &PayloadChunk) -> Result<(), Self::Error>;

    /// Takes the last buffer of a cycle.
    ///
    /// # Errors
    /// When the output cannot be written.
    fn deliver(&mut self, pipeline: u32, cycle: u64) -> Result<(), Self::Error>;

    /// Takes back the buffers of a cycle that is given up. Does nothing unless there is something to take back.
    ///
    /// # Errors
    /// When what stands for the lost bytes cannot be written.
    fn give_up(&mut self, pipeline: u32, cycle: u64) -> Result<(), Self::Error> {
        let _ = (pipeline, cycle);
        Ok(())
    }
}
