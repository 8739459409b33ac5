//! Wafer inspection: images of a pattern that repeats from die to die are compared with themselves, and what differs is listed.
//!
//! Verner's application (2012): cameras with 200 x 1000 pixels of 16 bits, a synopsis of 4 KiB for each image, one list of
//! defects. [`Inspect`] makes the synopsis, for cells of 20 x 20 pixels; [`Merge`] joins the cells of a row of images, so that a
//! defect across a border between cameras is one defect. [`wafer`] makes images whose defects are known.
//!
//! How much is computed for a pixel can be chosen: [`steps`] of a chain that finds nothing, but whose result is part of the
//! synopsis, follow the comparison. Both forms write the same bytes.

pub mod blocks;
pub mod cameras;
pub mod ring;
pub mod wafer;

use headway_device::work::{CpuArgument, DeviceCode, Work};
use headway_device::{DeviceError, LaunchGrid};

/// The kernel that makes a synopsis of every image.
pub const INSPECT: &str = "inspect";
/// The kernel that makes the list of defects from the synopses of a generation.
pub const MERGE: &str = "inspect-merge";
/// Bytes of a synopsis, and of a list.
pub const SYNOPSIS_BYTES: usize = 4096;
/// Defects that a list has room for.
pub const DEFECTS_MAX: usize = 255;
/// Most pixels between two parts of one defect.
pub const JOIN: u32 = 2;
/// Pixels along a side of a cell.
const CELL: usize = 20;
const CELLS_MAX: usize = 500;
/// Words before the cells.
const HEADER: usize = 24;
const SYNOPSIS: usize = SYNOPSIS_BYTES / 4;
const MAGIC_SYNOPSIS: u32 = u32::from_le_bytes(*b"HWI1");
const MAGIC_LIST: u32 = u32::from_le_bytes(*b"HWL1");
const THREADS: u32 = 128;
const MERGE_THREADS: u32 = 512;
/// Words that merging needs for each cell.
const SCRATCH: usize = 8;
/// Operations of the comparison of one pixel, counted in the source: loads, differences, minima and tests.
const COMPARISON: u32 = 16;
/// Operations of one step of the chain.
const STEP: u32 = 3;

/// Steps that make up, with the comparison, about `operations` operations for a pixel.
#[must_use]
pub const fn steps(operations: u32) -> u32 {
    operations.saturating_sub(COMPARISON) / STEP
}

/// The most operations for a pixel that `steps` steps stand for.
#[must_use]
pub const fn operations(steps: u32) -> u32 {
    steps.saturating_mul(STEP).saturating_add(COMPARISON)
}

/// An image that cannot be inspected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Too many cells for a synopsis.
    #[error(
        "an image of {width} x {height} pixels has {cells} cells of 20 x 20, and a synopsis holds {CELLS_MAX}; use smaller images"
    )]
    Cells {
        /// Width of the image.
        width: usize,
        /// Height of the image.
        height: usize,
        cells: usize,
    },
    /// Too few dies to compare.
    #[error("an image {height} pixels high has fewer than three dies of {pitch}; use taller images")]
    Dies {
        /// Height of the image.
        height: usize,
        /// Height of a die.
        pitch: usize,
    },
}

/// Sizes of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    width: usize,
    height: usize,
    pitch: usize,
}

impl Default for Layout {
    /// The paper's images; that ten dies of 100 pixels follow each other is our choice.
    fn default() -> Self {
        Self { width: 200, height: 1000, pitch: 100 }
    }
}

impl Layout {
    /// Images of `width` x `height` pixels, in which a die is `pitch` pixels high.
    ///
    /// # Errors
    /// [`LayoutError`] for images without three dies, or with more than 500 cells.
    pub fn new(width: usize, height: usize, pitch: usize) -> Result<Self, LayoutError> {
        let cells = width.div_ceil(CELL).saturating_mul(height.div_ceil(CELL));
        if cells == 0 || cells > CELLS_MAX {
            return Err(LayoutError::Cells { width, height, cells });
        }
        if pitch == 0 || pitch > height / 3 {
            return Err(LayoutError::Dies { height, pitch });
        }
        Ok(Self { width, height, pitch })
    }

    /// Width in pixels.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    #[must_use]
    pub const fn height(&self) -> usize {
        self.height
    }

    /// Height of a die.
    #[must_use]
    pub const fn pitch(&self) -> usize {
        self.pitch
    }

    /// Bytes of an image: little-endian words of 16 bits, row by row.
    #[must_use]
    pub const fn image_bytes(&self) -> usize {
        2 * self.width * self.height
    }

    /// Bytes of scratch memory for [`Merge`] of `images` images.
    #[must_use]
    pub const fn scratch_bytes(&self, images: usize) -> usize {
        4 * SCRATCH * self.cells() * images
    }

    const fn columns(&self) -> usize {
        self.width.div_ceil(CELL)
    }

    const fn cells(&self) -> usize {
        self.columns() * self.height.div_ceil(CELL)
    }
}

/// The synopsis of one image.
///
/// Arguments: image, synopsis (written), width, height, pitch, threshold, [`steps`], camera, sequence number. The grid comes from
/// [`Inspect::grid`]. A pixel belongs to a defect if it is more than the threshold above, or below, the same pixel of the dies on
/// both sides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inspect;

/// The list of defects of a row of images.
///
/// Arguments: their synopses one after another, scratch memory (written; [`Layout::scratch_bytes`]), list (written), number of
/// images, width and height of one, sequence number. The grid comes from [`Merge::grid`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Merge;

impl Inspect {
    /// The launch shape: a block for each cell.
    #[must_use]
    pub const fn grid(layout: &Layout) -> LaunchGrid {
        LaunchGrid::line(layout.cells() as u32, THREADS, 0)
    }
}

impl Merge {
    /// The launch shape: one block, whose threads wait for each other.
    #[must_use]
    pub const fn grid() -> LaunchGrid {
        LaunchGrid::line(1, MERGE_THREADS, 0)
    }
}

/// A defect as listed: a box in the row of images, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Defect {
    /// Left edge.
    pub x: u32,
    /// Upper edge.
    pub y: u32,
    pub width: u32,
    pub height: u32,
    /// Pixels that differ.
    pub pixels: u32,
    /// The largest difference.
    pub largest: u32,
}

/// What a list says: the defects it has room for, and how many there were.
///
/// # Errors
/// [`DeviceError::Invalid`] for bytes that are no list.
pub fn read_list(list: &[u8]) -> Result<(Vec<Defect>, usize), DeviceError> {
    let bad = |reason: &str| DeviceError::Invalid { what: "list of defects", reason: reason.into() };
    let words: Vec<_> = list.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let [MAGIC_LIST, total, listed, _sequence, entries @ ..] = words.as_slice() else {
        return Err(bad("it does not begin with `HWL1`"));
    };
    let entries = entries.as_chunks::<4>().0.get(..*listed as usize).ok_or_else(|| bad("it ends too early"))?;
    let (low, high) = (|word: u32| word & 0xffff, |word: u32| word >> 16);
    let read = |&[place, size, pixels, largest]: &[u32; 4]| Defect {
        x: low(place) | largest & 0xffff_0000,
        y: high(place),
        width: low(size),
        height: high(size),
        pixels,
        largest: low(largest),
    };
    Ok((entries.iter().map(read).collect(), *total as usize))
}

/// A chain of `steps` steps, half of C. Wellons' mixer "lowbias32" each.
fn burn(value: u32, steps: u32) -> u32 {
    (0..steps).fold(value, |value, _| (value ^ value >> 15).wrapping_mul(0x2c1b_3c6d))
}

/// How far the pixel is from both others, if they agree in which direction.
fn deviation(pixel: u16, one: u16, other: u16) -> u32 {
    let apart = |other: u16| i32::from(pixel) - i32::from(other);
    let (least, most) = (apart(one).min(apart(other)), apart(one).max(apart(other)));
    if least > 0 {
        least.cast_unsigned()
    } else if most < 0 {
        most.unsigned_abs()
    } else {
        0
    }
}

/// The two words of a cell.
fn cell(image: &[u16], layout: &Layout, left: usize, top: usize, threshold: u32, steps: u32) -> [u32; 2] {
    let Layout { width, height, pitch } = *layout;
    let (mut count, mut first, mut last, mut largest, mut check) = (0, [CELL; 2], [0; 2], 0, 0);
    for y in top..(top + CELL).min(height) {
        // The dies before and behind; at an end, the two nearest.
        let one = if y >= pitch { y - pitch } else { y + 2 * pitch };
        let other = if y + pitch < height { y + pitch } else { y - 2 * pitch };
        for x in left..(left + CELL).min(width) {
            let pixel = image[y * width + x];
            let by = deviation(pixel, image[one * width + x], image[other * width + x]);
            check ^= burn(u32::from(pixel), steps);
            if by > threshold {
                count += 1;
                let at = [x - left, y - top];
                for axis in 0..2 {
                    (first[axis], last[axis]) = (first[axis].min(at[axis]), last[axis].max(at[axis]));
                }
                largest = by.max(largest);
            }
        }
    }
    let place = first[0] << 9 | first[1] << 14 | last[0] << 19 | last[1] << 24;
    [if count > 0 { count | place as u32 } else { 0 }, largest | (check ^ check >> 16) << 16]
}

fn misfit(program: &str) -> DeviceError {
    DeviceError::Invalid { what: "launch", reason: format!("the arguments do not fit `{program}`") }
}

/// Integers that count something.
fn counts<const N: usize>(arguments: &[CpuArgument<'_>]) -> Option<[usize; N]> {
    let count = |argument: &CpuArgument<'_>| match argument {
        CpuArgument::Int(int) => usize::try_from(*int).ok(),
        _ => None,
    };
    arguments.iter().map(count).collect::<Option<Vec<_>>>()?.try_into().ok()
}

fn inspect(arguments: &mut [CpuArgument<'_>]) -> Option<()> {
    let [CpuArgument::Read(image), CpuArgument::Write(synopsis), numbers @ ..] = arguments else { return None };
    let [width, height, pitch, threshold, steps, camera, sequence] = counts(numbers)?;
    let layout = Layout::new(width, height, pitch).ok()?;
    let image: &[u16] = bytemuck::try_cast_slice(image.get(..layout.image_bytes())?).ok()?;
    let synopsis: &mut [u32] = bytemuck::try_cast_slice_mut(synopsis.get_mut(..SYNOPSIS_BYTES)?).ok()?;
    synopsis.fill(0);
    let header = [width, height, pitch, threshold, steps].map(|number| number as u32);
    synopsis[..3].copy_from_slice(&[MAGIC_SYNOPSIS, camera as u32, sequence as u32]);
    synopsis[3..8].copy_from_slice(&header);
    let cells = synopsis[HEADER..].as_chunks_mut::<2>().0.iter_mut().take(layout.cells());
    for (at, words) in cells.enumerate() {
        let (left, top) = (at % layout.columns() * CELL, at / layout.columns() * CELL);
        *words = cell(image, &layout, left, top, threshold as u32, steps as u32);
    }
    Some(())
}

/// Left, top, right, bottom of a cell's pixels in the row of images.
fn edges(word: u32, column: usize, row: usize, layout: &Layout) -> [i64; 4] {
    let left = column / layout.columns() * layout.width + column % layout.columns() * CELL;
    let within = |shift: u32| i64::from(word >> shift & 31);
    let (left, top) = (left as i64, (row * CELL) as i64);
    [left + within(9), top + within(14), left + within(19), top + within(24)]
}

/// Whether two boxes are parts of one defect.
fn joined(one: &[i64; 4], other: &[i64; 4]) -> bool {
    let gap = i64::from(JOIN) + 1;
    (0..2).all(|axis| other[axis] - one[axis + 2] <= gap && one[axis] - other[axis + 2] <= gap)
}

fn merge(arguments: &mut [CpuArgument<'_>]) -> Option<()> {
    let [CpuArgument::Read(synopses), CpuArgument::Write(_scratch), CpuArgument::Write(list), numbers @ ..] = arguments
    else {
        return None;
    };
    let [images, width, height, sequence] = counts(numbers)?;
    let layout = Layout::new(width, height, 1).ok()?;
    let synopses: &[u32] = bytemuck::try_cast_slice(synopses.get(..images.checked_mul(SYNOPSIS_BYTES)?)?).ok()?;
    let list: &mut [u32] = bytemuck::try_cast_slice_mut(list.get_mut(..SYNOPSIS_BYTES)?).ok()?;
    let (columns, rows) = (images * layout.columns(), height.div_ceil(CELL));
    let cell = |at: usize| {
        let (column, row) = (at % columns, at / columns);
        let first = column / layout.columns() * SYNOPSIS + HEADER;
        let at = first + 2 * (row * layout.columns() + column % layout.columns());
        (synopses[at] & 511 != 0)
            .then(|| (edges(synopses[at], column, row, &layout), synopses[at] & 511, synopses[at + 1] & 0xffff))
    };
    list.fill(0);
    let mut seen = vec![false; columns * rows];
    let mut total = 0;
    for root in 0..columns * rows {
        if seen[root] || cell(root).is_none() {
            continue;
        }
        let (mut edges, mut pixels, mut largest) = ([i64::MAX, i64::MAX, 0, 0], 0, 0);
        let mut open = vec![root];
        seen[root] = true;
        while let Some(at) = open.pop() {
            let Some((own, own_pixels, own_largest)) = cell(at) else { continue };
            for axis in 0..2 {
                edges[axis] = edges[axis].min(own[axis]);
                edges[axis + 2] = edges[axis + 2].max(own[axis + 2]);
            }
            (pixels, largest) = (pixels + own_pixels, own_largest.max(largest));
            let (column, row) = (at % columns, at / columns);
            for y in row.saturating_sub(1)..(row + 2).min(rows) {
                for x in column.saturating_sub(1)..(column + 2).min(columns) {
                    let near = y * columns + x;
                    if !seen[near] && cell(near).is_some_and(|(other, ..)| joined(&own, &other)) {
                        seen[near] = true;
                        open.push(near);
                    }
                }
            }
        }
        if let Some(entry) = list[4..].as_chunks_mut::<4>().0.get_mut(total) {
            let [left, top, right, bottom] = edges.map(|edge| edge as u32);
            let size = (right - left + 1) | (bottom - top + 1) << 16;
            // The upper half of the left edge has its place behind the largest difference.
            *entry = [left & 0xffff | top << 16, size, pixels, largest | left & 0xffff_0000];
        }
        total += 1;
    }
    list[..4].copy_from_slice(&[MAGIC_LIST, total as u32, total.min(DEFECTS_MAX) as u32, sequence as u32]);
    Some(())
}

impl Work for Inspect {
    fn id(&self) -> &'static str {
        "inspect"
    }
    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../ptx/inspect.ptx"))
    }
    fn entry(&self) -> &'static str {
        "inspect"
    }
    fn launch(&self, _grid: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        inspect(arguments).ok_or_else(|| misfit(self.id()))
    }
}

impl Work for Merge {
    fn id(&self) -> &'static str {
        "inspect_merge"
    }
    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../ptx/inspect.ptx"))
    }
    fn entry(&self) -> &'static str {
        "inspect_merge"
    }
    fn launch(&self, _grid: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        merge(arguments).ok_or_else(|| misfit(self.id()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_cannot_be_inspected_are_named() {
        let Layout { width, height, pitch } = Layout::default();
        assert_eq!(Layout::new(width, height, pitch), Ok(Layout::default()));
        assert_eq!(Layout::default().image_bytes(), 400_000);
        assert_eq!(Layout::new(201, 1000, 100), Err(LayoutError::Cells { width: 201, height: 1000, cells: 550 }));
        assert_eq!(Layout::new(200, 299, 100), Err(LayoutError::Dies { height: 299, pitch: 100 }));
    }

    #[test]
    fn a_deviation_needs_both_neighbours() {
        assert_eq!([deviation(9, 2, 4), deviation(1, 2, 4), deviation(3, 2, 4), deviation(2, 2, 4)], [5, 1, 0, 0]);
    }

    #[test]
    fn steps_make_up_the_operations() {
        assert_eq!([steps(0), steps(16), steps(1000)], [0, 0, 328]);
        assert_eq!([operations(0), operations(328)], [16, 1000]);
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused() {
        let mut small = [0; 100];
        let arguments = &mut [CpuArgument::Read(&[0; 8]), CpuArgument::Write(&mut small), CpuArgument::Int(1)];
        assert!(Inspect.launch(Inspect::grid(&Layout::default()), arguments).is_err());
        assert!(Merge.launch(Merge::grid(), arguments).is_err());
        assert!(read_list(&[0; 16]).is_err());
    }
}
