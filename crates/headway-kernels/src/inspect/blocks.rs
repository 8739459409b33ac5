//! Inspection as steps of a stream: a GPU's images come in one packed block, and leave their synopses for all GPUs to merge.

use std::sync::Arc;

use headway_core::files::workload::Parameters;
use headway_core::plan::block::BlockHeader;
use headway_device::work::{CpuArgument, DeviceCode, Items, LaunchGrid, Portion, Work, WorkError};

use super::cameras::Cameras;
use super::ring::WaferRing;
use super::wafer::Wafer;
use super::{
    CELLS_MAX, INSPECT, Inspect, MAGIC_SYNOPSIS, MERGE, MERGE_THREADS, Merge, SCRATCH, SYNOPSIS_BYTES, THREADS, steps,
};
use crate::portions::bad_block;

/// What is known of a camera: width, height, pitch, threshold, steps of the chain, number, little-endian words.
const CAMERA_BYTES: usize = 32;
const CAMERA_WORDS: usize = 6;
/// Which of them says the steps of a pixel's chain.
const STEPS: usize = 4;

/// The synopsis of every image of a block.
///
/// A portion is an image, the block's cycle its sequence number. The output is no block: the synopsis of portion `i` begins at
/// `i` times [`SYNOPSIS_BYTES`].
#[derive(Clone, Copy, Debug, Default)]
pub struct InspectBlock;

/// The list of defects of a row of images.
///
/// The input is the synopses of cameras 0, 1, 2, ...; the output begins with the list, and scratch memory follows. Synopses of
/// different images, or in another order, give a list of zeros, which [`read_list`](super::read_list) refuses.
#[derive(Clone, Copy, Debug, Default)]
pub struct MergeBlock;

impl MergeBlock {
    /// Bytes of the output for `cameras` images of any size.
    #[must_use]
    pub const fn output(cameras: usize) -> usize {
        SYNOPSIS_BYTES + 4 * SCRATCH * CELLS_MAX * cameras
    }
}

fn camera_words(portion: &Portion) -> Result<[u32; CAMERA_WORDS], WorkError> {
    let missing = || WorkError::MissingParameter {
        work: INSPECT.to_owned(),
        stream: portion.stream.clone(),
        missing: "cameras (`wafer` of the stream)",
    };
    let Cameras { width, height, pitch, operations, .. } = Cameras::of(&portion.parameters).ok_or_else(missing)?;
    Ok([width, height, pitch, Wafer::THRESHOLD as u32, steps(operations), portion.item])
}

impl Work for InspectBlock {
    fn id(&self) -> &'static str {
        INSPECT
    }

    fn state_bytes(&self, portions: usize) -> usize {
        portions.saturating_mul(CAMERA_BYTES)
    }

    fn output_bytes(&self, _input: usize, portions: u32) -> usize {
        portions as usize * SYNOPSIS_BYTES
    }

    fn init_state(&self, portions: &[Portion], state: &mut [u8]) -> Result<(), WorkError> {
        assert!(state.len() >= self.state_bytes(portions.len()), "the state has `state_bytes` for these portions");
        for (portion, state) in portions.iter().zip(state.chunks_exact_mut(CAMERA_BYTES)) {
            state.fill(0);
            for (word, bytes) in camera_words(portion)?.iter().zip(state.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        Ok(())
    }

    fn items(&self, parameters: &Parameters) -> Option<Arc<dyn Items>> {
        let ring = WaferRing::new(&Cameras::of(parameters)?).ok()?;
        Some(Arc::new(ring))
    }

    fn operations(&self, state: &[u8]) -> Option<u32> {
        let words = state.chunks_exact(CAMERA_BYTES).map(|camera| camera.as_chunks::<4>().0[STEPS]);
        // All cameras of a wafer have as many.
        words.map(u32::from_le_bytes).max().map(super::operations)
    }

    fn run(&self, input: &[u8], output: &mut [u8], state: &mut [u8]) -> Result<(), WorkError> {
        let header = BlockHeader::read(input).map_err(|error| bad_block(INSPECT, error.to_string()))?;
        let count = header.portions.len();
        if output.len() < count * SYNOPSIS_BYTES || state.len() < self.state_bytes(count) {
            return Err(bad_block(INSPECT, format!("output or state is too small for {count} images")));
        }
        let synopses = output.chunks_exact_mut(SYNOPSIS_BYTES);
        for ((portion, synopsis), camera) in
            header.portions.into_iter().zip(synopses).zip(state.chunks_exact(CAMERA_BYTES))
        {
            let words = camera.as_chunks::<4>().0;
            let numbers = words.iter().take(CAMERA_WORDS).map(|word| u32::from_le_bytes(*word));
            let numbers = numbers
                .chain([header.cycle as u32 & (u32::MAX >> 1)])
                .map(|number| CpuArgument::Int(number.cast_signed()));
            let mut arguments = vec![CpuArgument::Read(&input[portion]), CpuArgument::Write(synopsis)];
            arguments.extend(numbers);
            let grid = self.grid(1);
            Inspect.launch(grid, &mut arguments).map_err(|error| bad_block(INSPECT, error.to_string()))?;
        }
        Ok(())
    }

    fn code(&self) -> DeviceCode {
        Inspect.code()
    }

    fn entry(&self) -> &'static str {
        "inspect_block"
    }

    fn grid(&self, portions: u32) -> LaunchGrid {
        LaunchGrid::line(portions.max(1).saturating_mul(CELLS_MAX as u32), THREADS, 0)
    }
}

impl Work for MergeBlock {
    fn id(&self) -> &'static str {
        MERGE
    }

    fn state_bytes(&self, _portions: usize) -> usize {
        0
    }

    fn output_bytes(&self, _input: usize, portions: u32) -> usize {
        Self::output(portions as usize)
    }

    fn init_state(&self, _portions: &[Portion], _state: &mut [u8]) -> Result<(), WorkError> {
        Ok(())
    }

    fn run(&self, input: &[u8], output: &mut [u8], _state: &mut [u8]) -> Result<(), WorkError> {
        let synopses = input.chunks_exact(SYNOPSIS_BYTES);
        let images = synopses.len();
        if images == 0 || output.len() < Self::output(images) {
            return Err(bad_block(MERGE, format!("there is no room for a list of {images} images")));
        }
        let (list, scratch) = output.split_at_mut(SYNOPSIS_BYTES);
        let heads: Vec<[u32; 5]> = synopses.map(head).collect();
        let [_, _, sequence, width, height] = heads[0];
        let expected = |image: usize| [MAGIC_SYNOPSIS, image as u32, sequence, width, height];
        if heads.iter().enumerate().any(|(image, head)| *head != expected(image)) {
            list.fill(0);
            return Ok(());
        }
        let numbers = [images as u32, width, height, sequence].map(|number| CpuArgument::Int(number.cast_signed()));
        let mut arguments = vec![CpuArgument::Read(input), CpuArgument::Write(scratch), CpuArgument::Write(list)];
        arguments.extend(numbers);
        Merge.launch(Merge::grid(), &mut arguments).map_err(|error| bad_block(MERGE, error.to_string()))
    }

    fn code(&self) -> DeviceCode {
        Merge.code()
    }

    fn entry(&self) -> &'static str {
        "inspect_merge_block"
    }

    fn grid(&self, _portions: u32) -> LaunchGrid {
        LaunchGrid::line(1, MERGE_THREADS, 0)
    }
}

/// Magic number, camera, sequence number, width and height of a synopsis.
fn head(synopsis: &[u8]) -> [u32; 5] {
    let words = synopsis.as_chunks::<4>().0;
    std::array::from_fn(|at| words.get(at).map_or(0, |word| u32::from_le_bytes(*word)))
}
