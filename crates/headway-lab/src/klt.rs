//! A pyramidal Lucas-Kanade tracker whose state lives on a device: the workload of GPUSync's evaluation.
//!
//! A slot holds a template of 11 x 11 pixels, taken from three levels of a picture, with its derivatives and the Cholesky
//! factor of its matrix; each new picture is searched for it by inverse composition (Baker and Matthews, IJCV 2004). The warp
//! has two parameters (translation), four (with gain and bias: Jin, Favaro and Soatto, 2001) or eight (with an affine part:
//! Shi and Tomasi, CVPR 1994). Corners are chosen by the smaller eigenvalue of the gradient matrix (the same paper); the
//! pyramid is that of Bouguet (2001), with Burt and Adelson's filter.
//!
//! Sizes are those of GPUSync's tracker (Elliott, Ward, Anderson, RTSS 2013) where the paper or the public tracker tells them:
//! at 320 x 240 with 1024 slots, 6,856,704 bytes of state and up to 970,788 bytes of input and output a frame. Launches are
//! fewer than that tracker's (about 93), because what belongs to a template is computed once, and pictures are read as
//! plain memory: texture units interpolate with 8 bits, which the CPU form could not repeat.
//!
//! Both forms compute the same bits: every sum has one order, and nothing is fused.

mod forms;
mod machines;
mod select;
mod stage;
mod tracker;

use headway_device::LaunchGrid;

pub use machines::{CpuMachine, TrackerMachine};
pub use select::{CornerCriteria, select};
pub use stage::TrackerStage;
pub use tracker::{Feature, FrameReport, Tracker};

/// Pixels along a side of a template.
pub const SIDE: usize = 11;
const HALF: usize = SIDE / 2;
/// Pixels of a template.
pub const PIXELS: usize = SIDE * SIDE;
/// Levels of the pyramid.
pub const LEVELS: u32 = 3;
/// Parameters of a slot's warp, whether all are searched for or not.
pub const PARAMETERS: usize = 8;
/// Slots are served in groups of this many.
pub const SLOTS_UNIT: usize = 32;
/// Threads of a block.
const THREADS: u32 = 256;
const WORD: usize = 4;

/// What becomes of a slot; tracked ones have their mean difference (zero or more) in the same word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its search goes on.
    Active,
    /// Its search at this level has come to rest.
    Converged,
    /// Nothing is tracked in it.
    Empty,
    /// Its template has too little texture.
    Untrackable,
    /// It left the picture.
    Outside,
    /// What is seen differs too much from the template.
    Changed,
}

impl Fate {
    /// Its number in the status words.
    #[must_use]
    pub const fn code(self) -> f32 {
        match self {
            Self::Active => 0.0,
            Self::Converged => 1.0,
            Self::Empty => -1.0,
            Self::Untrackable => -2.0,
            Self::Outside => -3.0,
            Self::Changed => -4.0,
        }
    }

    /// Why a slot with this status word is not tracked; `None` if it is.
    #[must_use]
    pub fn of_lost(status: f32) -> Option<Self> {
        let all = [Self::Empty, Self::Untrackable, Self::Outside, Self::Changed];
        all.into_iter().find(|fate| fate.code() == status)
    }
}

/// Which of a slot's parameters are searched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Warp {
    /// Where it is: the surest, as a template of this size hardly tells the others apart.
    #[default]
    Translation,
    /// And its gain and bias.
    Photometric,
    /// And its affine deformation.
    Affine,
}

impl Warp {
    /// How many parameters those are.
    #[must_use]
    pub const fn parameters(self) -> usize {
        match self {
            Self::Translation => 2,
            Self::Photometric => 4,
            Self::Affine => 8,
        }
    }
}

/// Sizes that fix all memory, and how the search is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackerShape {
    width: usize,
    height: usize,
    slots: usize,
    warp: Warp,
    iterations: u32,
}

impl Default for TrackerShape {
    /// That of the paper: 320 x 240, 1024 slots, three steps a level.
    fn default() -> Self {
        Self { width: 320, height: 240, slots: 1024, warp: Warp::Translation, iterations: 3 }
    }
}

/// A memory on the device that launches name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// The picture to track in: 32-bit floating-point grey levels.
    Image,
    /// The picture to find corners in.
    CornerImage,
    /// A homography of nine numbers, row by row: how the last frame's positions move, as another sensor tells.
    Prediction,
    /// The slots that get new templates.
    Listed,
    /// And where, in x.
    ListedX,
    /// And in y.
    ListedY,
    /// Levels 1 and 2 of the picture.
    Pyramid(u32),
    /// What stays from frame to frame, for levels 0 to 2.
    State(u32),
    /// x, y, gain - 1, bias, and the affine part of every slot, parameter by parameter.
    Parameters,
    /// The mean difference of every slot, or the code of its [`Fate`].
    Status,
    /// The corner response of every pixel.
    Response,
}

impl Region {
    /// Every region.
    pub const ALL: [Self; 14] = [
        Self::Image,
        Self::CornerImage,
        Self::Prediction,
        Self::Listed,
        Self::ListedX,
        Self::ListedY,
        Self::Pyramid(1),
        Self::Pyramid(2),
        Self::State(0),
        Self::State(1),
        Self::State(2),
        Self::Parameters,
        Self::Status,
        Self::Response,
    ];
}

/// One argument of a [`Launch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A region that is read.
    Read(Region),
    /// A region that is read and written.
    Write(Region),
    /// A number.
    Int(i32),
}

/// One launch of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub stage: TrackerStage,
    pub grid: LaunchGrid,
    pub operands: Vec<Operand>,
}

/// A size that the tracker cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    #[error("pictures of {width} x {height} cannot be tracked; use 64 to 4096 pixels along each side")]
    Picture { width: usize, height: usize },
    /// The number of slots.
    #[error("{slots} slots cannot be had; use a multiple of 32 up to 65536")]
    Slots { slots: usize },
}

impl TrackerShape {
    /// Pictures of `width` x `height`, with `slots` slots.
    ///
    /// # Errors
    /// [`ShapeError`] for sizes that are too small or too large.
    pub fn new(width: usize, height: usize, slots: usize) -> Result<Self, ShapeError> {
        if !(64..=4096).contains(&width) || !(64..=4096).contains(&height) {
            return Err(ShapeError::Picture { width, height });
        }
        if slots == 0 || slots > 65536 || !slots.is_multiple_of(SLOTS_UNIT) {
            return Err(ShapeError::Slots { slots });
        }
        Ok(Self { width, height, slots, ..Self::default() })
    }

    /// The same sizes, with a search for `warp` in up to `iterations` steps at each level.
    #[must_use]
    pub const fn with_search(self, warp: Warp, iterations: u32) -> Self {
        Self { warp, iterations, ..self }
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

    /// Slots, used or not.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// Size of a region in bytes.
    #[must_use]
    pub fn bytes(&self, region: Region) -> usize {
        let (width, height) = self.size(0);
        WORD * match region {
            Region::Image | Region::CornerImage | Region::Response => width * height,
            Region::Prediction => 9,
            Region::Listed | Region::ListedX | Region::ListedY | Region::Status => self.slots,
            Region::Pyramid(level) => self.size(level).0 * self.size(level).1,
            Region::State(_) => forms::ROWS * self.slots,
            Region::Parameters => PARAMETERS * self.slots,
        }
    }

    /// Bytes that stay from frame to frame.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        (0..LEVELS).map(|level| self.bytes(Region::State(level))).sum()
    }

    /// The state of level 0 before the first frame: every slot is empty. Other regions begin as zeros.
    #[must_use]
    pub fn empty_state(&self) -> Vec<f32> {
        let mut state = vec![0.0; forms::ROWS * self.slots];
        state[forms::ROW_CENTRE * self.slots..][..self.slots].fill(Fate::Empty.code());
        state
    }

    fn size(&self, level: u32) -> (usize, usize) {
        let shrink = |size: usize| (0..level).fold(size, |size, _| size.div_ceil(2));
        (shrink(self.width), shrink(self.height))
    }

    fn image(level: u32) -> Region {
        if level == 0 { Region::Image } else { Region::Pyramid(level) }
    }

    /// The launches that find every slot in [`Region::Image`]; they need [`Region::Prediction`], and leave
    /// [`Region::Parameters`] and [`Region::Status`].
    #[must_use]
    pub fn track(&self) -> Vec<Launch> {
        let top = LEVELS - 1;
        let mut launches: Vec<_> = (0..top).map(|level| self.halve(level)).collect();
        let begin = [
            Operand::Read(Region::Prediction),
            Operand::Read(Region::State(0)),
            Operand::Write(Region::State(top)),
            Operand::Write(Region::Status),
            Operand::Int(top as i32),
        ];
        launches.push(self.over(TrackerStage::Begin, self.slots, &begin, &[self.slots]));
        for level in (0..LEVELS).rev() {
            for _ in 0..self.iterations {
                launches.extend([self.difference(level, false), self.update(level)]);
            }
            if level > 0 {
                let operands = [
                    Operand::Read(Region::State(level)),
                    Operand::Write(Region::State(level - 1)),
                    Operand::Write(Region::Status),
                ];
                launches.push(self.over(TrackerStage::Descend, self.slots, &operands, &[self.slots]));
            }
        }
        let results = [Region::State(0), Region::Parameters, Region::Status].map(Operand::Write);
        launches.push(self.difference(0, true));
        launches.push(self.over(TrackerStage::Finish, self.slots, &results, &[self.width, self.height, self.slots]));
        launches
    }

    /// The launch that turns [`Region::CornerImage`] into [`Region::Response`].
    #[must_use]
    pub fn respond(&self) -> Vec<Launch> {
        let operands = [Operand::Read(Region::CornerImage), Operand::Write(Region::Response)];
        vec![self.over(TrackerStage::Response, self.width * self.height, &operands, &[self.width, self.height])]
    }

    /// The launches that take templates for the first `count` listed slots, from the picture that was tracked last.
    #[must_use]
    pub fn list(&self, count: usize) -> Vec<Launch> {
        let count = count.min(self.slots);
        let mut launches = Vec::new();
        if count == 0 {
            return launches;
        }
        let (listed, warp) = (Operand::Read(Region::Listed), self.warp.parameters());
        for level in 0..LEVELS {
            let state = Operand::Write(Region::State(level));
            let (width, height) = self.size(level);
            let places = [Region::ListedX, Region::ListedY].map(Operand::Read);
            let operands = [Operand::Read(Self::image(level)), listed, places[0], places[1], state];
            let sizes = [width, height, level as usize, self.slots, count];
            launches.push(self.over(TrackerStage::Template, count * PIXELS, &operands, &sizes));
            launches.push(self.over(TrackerStage::Matrix, count * 36, &[listed, state], &[self.slots, count]));
            launches.push(self.over(TrackerStage::Factor, count, &[listed, state], &[self.slots, count, warp]));
        }
        launches
    }

    fn halve(&self, level: u32) -> Launch {
        let ((width, height), next) = (self.size(level), self.size(level + 1));
        let operands = [Operand::Read(Self::image(level)), Operand::Write(Region::Pyramid(level + 1))];
        self.over(TrackerStage::Halve, next.0 * next.1, &operands, &[width, height])
    }

    fn difference(&self, level: u32, always: bool) -> Launch {
        let (width, height) = self.size(level);
        let operands =
            [Operand::Read(Self::image(level)), Operand::Write(Region::State(level)), Operand::Read(Region::Status)];
        let sizes = [width, height, self.slots, usize::from(always)];
        self.over(TrackerStage::Difference, self.slots * PIXELS, &operands, &sizes)
    }

    fn update(&self, level: u32) -> Launch {
        let (width, height) = self.size(level);
        let operands = [Region::State(level), Region::Status].map(Operand::Write);
        let sizes = [width, height, self.slots, self.warp.parameters()];
        // Eight threads serve a slot.
        self.over(TrackerStage::Update, PARAMETERS * self.slots, &operands, &sizes)
    }

    /// A launch with a thread for each of `items`.
    fn over(&self, stage: TrackerStage, items: usize, operands: &[Operand], sizes: &[usize]) -> Launch {
        let number = |size: usize| u32::try_from(size).expect("sizes are limited by `Shape::new`");
        let ints = sizes.iter().map(|&size| Operand::Int(number(size).cast_signed()));
        let grid = LaunchGrid::line(number(items).div_ceil(THREADS), THREADS, 0);
        Launch { stage, grid, operands: operands.iter().copied().chain(ints).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_gpusyncs_tracker() {
        let shape = TrackerShape::default();
        assert_eq!(shape.bytes(Region::State(0)), 4 * 1024 * 121 * 4 + 64 * 4096 + 8 * 4096 + 2 * 4096);
        assert_eq!(shape.state_bytes(), 6_856_704);
        let copied = [
            Region::Image,
            Region::CornerImage,
            Region::Prediction,
            Region::Listed,
            Region::ListedX,
            Region::ListedY,
            Region::Parameters,
            Region::Status,
            Region::Response,
        ];
        assert_eq!(copied.map(|region| shape.bytes(region)).iter().sum::<usize>(), 970_788);
        let launches = shape.track().len() + shape.respond().len() + shape.list(1024).len();
        assert_eq!(launches, 35);
    }

    #[test]
    fn sizes_that_cannot_be_had_are_named() {
        assert_eq!(TrackerShape::new(63, 240, 32), Err(ShapeError::Picture { width: 63, height: 240 }));
        assert_eq!(TrackerShape::new(64, 4097, 32), Err(ShapeError::Picture { width: 64, height: 4097 }));
        for slots in [0, 33, 65568] {
            assert_eq!(TrackerShape::new(320, 240, slots), Err(ShapeError::Slots { slots }));
        }
        // The largest numbers that a launch gets are below 2^31.
        let largest = TrackerShape::new(4096, 4096, 65536).unwrap();
        assert!(largest.list(65536).iter().all(|launch| launch.grid.all_blocks() < 1 << 24));
    }
}
