//! What stands in for a frame grabber, and what lists of defects must say.
//!
//! A grabber writes images into a ring of buffers. Here the ring is filled once, before the run, with generations whose defects
//! are known; in the run each place of it is sent again with the number of a new generation in its block's header.

use headway_device::DeviceError;
use headway_device::work::Items;

use super::cameras::Cameras;
use super::wafer::{Planted, Wafer};
use super::{LayoutError, read_list};

/// Sequence numbers are those of cycles, modulo one more than this.
const SEQUENCE_MAX: u32 = u32::MAX >> 1;

/// What the cameras see, generation by generation.
#[derive(Clone, Copy, Debug)]
pub struct WaferRing {
    wafer: Wafer,
}

impl WaferRing {
    /// The ring of a stream.
    ///
    /// # Errors
    /// [`LayoutError`] for images that cannot be inspected; those of a workload file can.
    pub fn new(cameras: &Cameras) -> Result<Self, LayoutError> {
        Ok(Self { wafer: cameras.wafer()? })
    }

    /// Boxes of what is planted at place `row`: left, top, width, height, pixels; ascending.
    #[must_use]
    pub fn planted(&self, row: u32) -> Vec<[u32; 5]> {
        let planted = self.wafer.planted(row);
        let size = |it: &Planted| [it.x, it.y, it.width, it.height, it.width * it.height].map(|number| number as u32);
        let mut boxes: Vec<[u32; 5]> = planted.iter().map(size).collect();
        boxes.sort_unstable();
        boxes
    }
}

impl Items for WaferRing {
    fn fill(&self, item: u32, row: u32, bytes: &mut [u8]) {
        self.wafer.fill(item as usize, row, bytes);
    }

    fn check(&self, result: &[u8], cycle: u64) -> Result<(), String> {
        match sequence(result) {
            None => Err("synopses of different generations were merged".to_owned()),
            Some(sequence) if u64::from(sequence) != cycle & u64::from(SEQUENCE_MAX) => {
                Err(format!("the list of generation {sequence} came back"))
            }
            Some(_) => Ok(()),
        }
    }

    fn is_right(&self, result: &[u8], row: u32) -> bool {
        listed(result).is_ok_and(|listed| listed == self.planted(row))
    }
}

/// The number of the generation that `list` is of; `None` if it is no list.
fn sequence(list: &[u8]) -> Option<u32> {
    read_list(list).ok()?;
    Some(u32::from_le_bytes(list.get(12..16)?.try_into().ok()?))
}

/// Boxes of what `list` lists, as [`WaferRing::planted`] gives them.
///
/// # Errors
/// [`DeviceError::Invalid`] for bytes that are no list.
pub fn listed(list: &[u8]) -> Result<Vec<[u32; 5]>, DeviceError> {
    let (defects, _) = read_list(list)?;
    let mut boxes: Vec<[u32; 5]> = defects.iter().map(|it| [it.x, it.y, it.width, it.height, it.pixels]).collect();
    boxes.sort_unstable();
    Ok(boxes)
}
