//! The tracker's programs.

use std::mem;

use headway_device::work::{CpuArgument, DeviceCode, Work};
use headway_device::{DeviceError, LaunchGrid};

use super::forms::{self, Image, Listed};
use super::{LEVELS, PARAMETERS, PIXELS};

/// One of the tracker's programs. [`TrackerShape`](super::TrackerShape) gives them their arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrackerStage {
    /// Half the size of a picture.
    Halve,
    /// Corner response.
    Response,
    /// New templates.
    Template,
    /// Their matrices.
    Matrix,
    /// The factors of these.
    Factor,
    /// Where the slots were, moved by the prediction.
    Begin,
    /// Differences from the templates.
    Difference,
    /// A step of the search.
    Update,
    /// To the next finer level.
    Descend,
    /// Writes the results.
    Finish,
}

impl TrackerStage {
    /// Every program.
    pub const ALL: [Self; 10] = [
        Self::Halve,
        Self::Response,
        Self::Template,
        Self::Matrix,
        Self::Factor,
        Self::Begin,
        Self::Difference,
        Self::Update,
        Self::Descend,
        Self::Finish,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Halve => "klt_halve",
            Self::Response => "klt_response",
            Self::Template => "klt_template",
            Self::Matrix => "klt_matrix",
            Self::Factor => "klt_factor",
            Self::Begin => "klt_begin",
            Self::Difference => "klt_difference",
            Self::Update => "klt_update",
            Self::Descend => "klt_descend",
            Self::Finish => "klt_finish",
        }
    }
}

/// Arguments taken one after another; `None` where they do not fit.
struct Arguments<'a, 'b>(std::slice::IterMut<'b, CpuArgument<'a>>);

impl<'a, 'b> Arguments<'a, 'b> {
    fn bytes(&mut self) -> Option<&'b [u8]> {
        match self.0.next()? {
            CpuArgument::Read(bytes) => Some(bytes),
            CpuArgument::Write(bytes) => Some(bytes),
            CpuArgument::Int(_) | CpuArgument::Wide(_) | CpuArgument::Null => None,
        }
    }

    fn read(&mut self) -> Option<&'b [f32]> {
        bytemuck::try_cast_slice(self.bytes()?).ok()
    }

    fn write(&mut self) -> Option<&'b mut [f32]> {
        match self.0.next()? {
            CpuArgument::Write(bytes) => bytemuck::try_cast_slice_mut(mem::take(bytes)).ok(),
            _ => None,
        }
    }

    fn int(&mut self) -> Option<usize> {
        match self.0.next()? {
            CpuArgument::Int(int) => usize::try_from(*int).ok(),
            _ => None,
        }
    }

    /// Width and height, of `pixels` where a picture belongs to them.
    fn size(&mut self, pixels: Option<&[f32]>) -> Option<(usize, usize)> {
        let (width, height) = (self.int()?, self.int()?);
        let fits = pixels.is_none_or(|pixels| width.checked_mul(height).is_some_and(|all| all <= pixels.len()));
        (width >= 3 && height >= 3 && fits).then_some((width, height))
    }

    fn picture(&mut self, pixels: &'b [f32]) -> Option<Image<'b>> {
        let (width, height) = self.size(Some(pixels))?;
        Some(Image { pixels, width, height })
    }

    fn level(&mut self) -> Option<u32> {
        u32::try_from(self.int()?).ok().filter(|level| *level < LEVELS)
    }

    /// The number of slots, which every one of `states` has room for.
    fn slots(&mut self, states: &[&[f32]], status: Option<&[f32]>) -> Option<usize> {
        let slots = self.int()?;
        let room = |words: &[f32], rows: usize| words.len() / rows >= slots;
        let fits = states.iter().all(|state| room(state, forms::ROWS)) && status.is_none_or(|status| room(status, 1));
        fits.then_some(slots)
    }

    fn parameters(&mut self) -> Option<usize> {
        self.int().filter(|count| (2..=PARAMETERS).contains(count))
    }

    fn end(mut self) -> Option<()> {
        self.0.next().is_none().then_some(())
    }
}

fn listed(slots: &[u8], count: usize) -> Option<&[i32]> {
    bytemuck::try_cast_slice(slots).ok()?.get(..count)
}

impl TrackerStage {
    fn compute(self, mut with: Arguments<'_, '_>) -> Option<()> {
        match self {
            Self::Halve => {
                let (from, to) = (with.read()?, with.write()?);
                let from = with.picture(from)?;
                (to.len() >= from.width.div_ceil(2) * from.height.div_ceil(2)).then_some(())?;
                forms::halve(from, to);
            }
            Self::Response => {
                let (image, response) = (with.read()?, with.write()?);
                let image = with.picture(image)?;
                (response.len() >= image.width * image.height).then_some(())?;
                forms::response(image, response);
            }
            Self::Template => {
                let (image, slots_listed) = (with.read()?, with.bytes()?);
                let (xs, ys, state) = (with.read()?, with.read()?, with.write()?);
                let (image, level, slots) = (with.picture(image)?, with.level()?, with.slots(&[state], None)?);
                let count = with.int()?;
                let listed = Listed { slots: listed(slots_listed, count)?, xs: xs.get(..count)?, ys: ys.get(..count)? };
                forms::template(image, &listed, state, level, slots);
            }
            Self::Matrix => {
                let (slots_listed, state) = (with.bytes()?, with.write()?);
                let (slots, count) = (with.slots(&[state], None)?, with.int()?);
                forms::matrix(listed(slots_listed, count)?, state, slots);
            }
            Self::Factor => {
                let (slots_listed, state) = (with.bytes()?, with.write()?);
                let (slots, count) = (with.slots(&[state], None)?, with.int()?);
                forms::factor(listed(slots_listed, count)?, state, slots, with.parameters()?);
            }
            _ => return self.search(with),
        }
        with.end()
    }

    /// Those that serve every slot.
    fn search(self, mut with: Arguments<'_, '_>) -> Option<()> {
        match self {
            Self::Begin => {
                let (prediction, finest) = (with.read()?, with.read()?);
                let (state, status) = (with.write()?, with.write()?);
                let (level, slots) = (with.level()?, with.slots(&[finest, state], Some(status))?);
                forms::begin(prediction.first_chunk()?, finest, state, status, level, slots);
            }
            Self::Difference => {
                let (image, state, status) = (with.read()?, with.write()?, with.read()?);
                let (image, slots) = (with.picture(image)?, with.slots(&[state], Some(status))?);
                forms::difference(image, state, status, slots, with.int()? != 0);
            }
            Self::Update => {
                let (state, status) = (with.write()?, with.write()?);
                let (size, slots) = (with.size(None)?, with.slots(&[state], Some(status))?);
                forms::update(size, state, status, slots, with.parameters()?);
            }
            Self::Descend => {
                let (from, to, status) = (with.read()?, with.write()?, with.write()?);
                let slots = with.slots(&[from, to], Some(status))?;
                forms::descend(from, to, status, slots);
            }
            _ => {
                let (state, parameters, status) = (with.write()?, with.write()?, with.write()?);
                let (size, slots) = (with.size(None)?, with.slots(&[state], Some(status))?);
                (parameters.len() / PARAMETERS >= slots).then_some(())?;
                forms::finish(size, state, parameters, status, slots);
            }
        }
        with.end()
    }
}

impl Work for TrackerStage {
    fn id(&self) -> &'static str {
        self.name()
    }

    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../../ptx/klt.ptx"))
    }

    fn entry(&self) -> &'static str {
        self.name()
    }

    fn launch(&self, _grid: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        self.compute(Arguments(arguments.iter_mut())).ok_or_else(|| DeviceError::Invalid {
            what: "launch",
            reason: format!("the arguments do not fit `{}`", self.name()),
        })
    }
}

const _: () = assert!(PIXELS * 4 + 64 + PARAMETERS + 2 == forms::ROWS);
