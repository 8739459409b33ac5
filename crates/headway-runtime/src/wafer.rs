//! The ring that stands in for a frame grabber, and what lists of defects must say.
//!
//! A grabber writes images into a ring of buffers. Here the ring is filled once, before the run, with generations whose defects
//! are known; in the run each place of it is sent again with the number of a new generation in its block's header.

use headway_core::files::workload::Wafer as Cameras;
use headway_core::plan::block::{self, BlockError};
use headway_core::plan::{PlannedWafer, Share};
use headway_core::units::Bytes;
use headway_device::DeviceError;
use headway_kernels::inspect::wafer::Wafer;
use headway_kernels::inspect::{LayoutError, blocks, read_list};

/// Sequence numbers are those of cycles, modulo one more than this.
pub const SEQUENCE_MAX: u32 = u32::MAX >> 1;

/// What the cameras see, generation by generation.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    wafer: Wafer,
    rows: u32,
}

impl Ring {
    /// The ring of a stream.
    ///
    /// # Errors
    /// [`LayoutError`] for images that cannot be inspected; those of a workload file can.
    pub fn new(cameras: &Cameras) -> Result<Self, LayoutError> {
        Ok(Self { wafer: blocks::wafer(cameras)?, rows: cameras.ring.max(1) })
    }

    /// The place in the ring that `cycle` sends.
    #[must_use]
    pub fn row(&self, cycle: u64) -> u32 {
        (cycle % u64::from(self.rows)) as u32
    }

    /// Fills `buffer` with the images of `share` at place `row`.
    ///
    /// # Errors
    /// [`BlockError`] if the buffer is too small.
    pub fn fill(&self, share: &Share, row: u32, buffer: &mut [u8]) -> Result<(), BlockError> {
        number(share, &self.wafer, u64::from(row), buffer)?;
        let header = block::Header::read(buffer)?;
        for (camera, lane) in (share.first as usize..).zip(header.lanes) {
            self.wafer.fill(camera, row, &mut buffer[lane]);
        }
        Ok(())
    }

    /// Gives the images in `buffer` the number `cycle`.
    ///
    /// # Errors
    /// [`BlockError`] if the buffer is too small.
    pub fn number(&self, share: &Share, cycle: u64, buffer: &mut [u8]) -> Result<Bytes, BlockError> {
        number(share, &self.wafer, cycle, buffer)
    }

    /// Boxes of what is planted in the generation of `cycle`: left, top, width, height, pixels; ascending.
    #[must_use]
    pub fn planted(&self, cycle: u64) -> Vec<[u32; 5]> {
        let planted = self.wafer.planted(self.row(cycle));
        let size = |it: &headway_kernels::inspect::wafer::Planted| {
            [it.x, it.y, it.width, it.height, it.width * it.height].map(|number| number as u32)
        };
        let mut boxes: Vec<[u32; 5]> = planted.iter().map(size).collect();
        boxes.sort_unstable();
        boxes
    }
}

fn number(share: &Share, wafer: &Wafer, cycle: u64, buffer: &mut [u8]) -> Result<Bytes, BlockError> {
    block::write_header(buffer, cycle, &vec![wafer.layout.image_bytes() as u64; share.cameras as usize])
}

/// The number of the generation that `list` is of; `None` if it is no list.
#[must_use]
pub fn sequence(list: &[u8]) -> Option<u32> {
    read_list(list).ok()?;
    Some(u32::from_le_bytes(list.get(12..16)?.try_into().ok()?))
}

/// Boxes of what `list` lists, as [`Ring::planted`] gives them.
///
/// # Errors
/// [`DeviceError::Invalid`] for bytes that are no list.
pub fn listed(list: &[u8]) -> Result<Vec<[u32; 5]>, DeviceError> {
    let (defects, _) = read_list(list)?;
    let mut boxes: Vec<[u32; 5]> = defects.iter().map(|it| [it.x, it.y, it.width, it.height, it.pixels]).collect();
    boxes.sort_unstable();
    Ok(boxes)
}

/// Bytes of the synopses of `share` among those of all cameras.
#[must_use]
pub fn synopses(share: &Share) -> std::ops::Range<usize> {
    let before = |cameras: u32| PlannedWafer::synopses(cameras).0 as usize;
    before(share.first)..before(share.first + share.cameras)
}
