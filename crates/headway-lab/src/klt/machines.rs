//! Where a tracker runs: the memory of its regions, and the CPU.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use headway_device::gpu::Operation;
use headway_device::work::{Argument, CpuArgument, Work};
use headway_device::{Access, Buffer, DeviceError};

use super::{Launch, Operand, Region, TrackerShape};

impl Launch {
    /// The launch over the memory that `buffer` gives for each region, whole regions claimed.
    ///
    /// # Errors
    /// What `buffer` gives; [`DeviceError::Overlap`].
    pub fn over<'b>(
        &self,
        buffer: impl Fn(Region) -> Result<&'b Buffer, DeviceError>,
    ) -> Result<Operation, DeviceError> {
        let claim = |region, access| {
            let buffer = buffer(region)?;
            Ok::<_, DeviceError>(Argument::Memory(buffer.claim(0..buffer.len(), access)?))
        };
        let mut arguments = Vec::with_capacity(self.operands.len());
        for operand in &self.operands {
            arguments.push(match operand {
                Operand::Read(region) => claim(*region, Access::Read)?,
                Operand::Write(region) => claim(*region, Access::Write)?,
                Operand::Int(int) => Argument::Int(*int),
            });
        }
        let program: Arc<dyn Work> = Arc::new(self.stage);
        Ok(Operation::Launch { work: program, grid: self.grid, arguments })
    }
}

/// Memory for every region, and what executes launches on it, in order.
pub trait TrackerMachine {
    /// Writes the start of a region.
    ///
    /// # Errors
    /// [`DeviceError`] of a copy.
    fn put(&mut self, region: Region, from: &[u8]) -> Result<(), DeviceError>;

    /// Reads the start of a region, when the launches before have ended.
    ///
    /// # Errors
    /// [`DeviceError`] of a copy, or of a launch before.
    fn take(&mut self, region: Region, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Executes launches one after another.
    ///
    /// # Errors
    /// [`DeviceError`] of a launch.
    fn launch(&mut self, launches: &[Launch]) -> Result<(), DeviceError>;
}

/// The CPU forms, in the calling thread.
#[derive(Debug)]
pub struct CpuMachine(BTreeMap<Region, Vec<u32>>);

impl CpuMachine {
    /// Zeroed memory for `shape`.
    #[must_use]
    pub fn new(shape: &TrackerShape) -> Self {
        Self(Region::ALL.into_iter().map(|region| (region, vec![0; shape.bytes(region) / 4])).collect())
    }

    fn words(&mut self, region: Region) -> Result<&mut Vec<u32>, DeviceError> {
        self.0.get_mut(&region).ok_or_else(|| no_region(region))
    }
}

fn no_region(region: Region) -> DeviceError {
    DeviceError::Invalid { what: "launch", reason: format!("there is no region {region:?}") }
}

fn too_long(len: usize, max: usize) -> Result<(), DeviceError> {
    if len > max { Err(DeviceError::OutOfRange { range: 0..len, len: max }) } else { Ok(()) }
}

impl TrackerMachine for CpuMachine {
    fn put(&mut self, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        let to = bytemuck::cast_slice_mut(self.words(region)?);
        too_long(from.len(), to.len())?;
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn take(&mut self, region: Region, to: &mut [u8]) -> Result<(), DeviceError> {
        let from = bytemuck::cast_slice(self.words(region)?);
        too_long(to.len(), from.len())?;
        to.copy_from_slice(&from[..to.len()]);
        Ok(())
    }

    fn launch(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        for launch in launches {
            // Out of the map while they are lent; a region that is named twice is empty the second time, and refused.
            let mut lent = Vec::new();
            for operand in &launch.operands {
                lent.push(match operand {
                    Operand::Read(region) | Operand::Write(region) => mem::take(self.words(*region)?),
                    Operand::Int(_) => Vec::new(),
                });
            }
            let operands = launch.operands.iter().zip(&mut lent);
            let mut arguments: Vec<_> = operands
                .map(|(operand, words)| match operand {
                    Operand::Read(_) => CpuArgument::Read(bytemuck::cast_slice(words)),
                    Operand::Write(_) => CpuArgument::Write(bytemuck::cast_slice_mut(words)),
                    Operand::Int(int) => CpuArgument::Int(*int),
                })
                .collect();
            let result = launch.stage.launch(launch.grid, &mut arguments);
            for (operand, words) in launch.operands.iter().zip(lent) {
                if let Operand::Read(region) | Operand::Write(region) = operand {
                    *self.words(*region)? = words;
                }
            }
            result?;
        }
        Ok(())
    }
}
