//! What a frame does, on any machine: follow the slots, then fill those that are free.

use headway_device::DeviceError;

use super::{CornerCriteria, Fate, PARAMETERS, Region, TrackerMachine, TrackerShape, select};

/// No other sensor: positions stay.
const IDENTITY: [f32; 9] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];

/// A feature that is tracked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feature {
    /// Counts the features of a tracker, so that a slot's next one can be told from it.
    pub id: u64,
    pub slot: usize,
    /// Position x, y in the picture, in pixels from the centre of the first one.
    pub at: [f32; 2],
    /// Gain - 1, bias, then the affine part: xx - 1, xy, yx, yy - 1.
    pub warp: [f32; PARAMETERS - 2],
    /// Mean difference from its template, in grey levels.
    pub difference: f32,
}

/// What a frame showed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrameReport {
    /// Features that were tracked into this frame, by slot.
    pub tracked: Vec<Feature>,
    /// Those that were lost, with the reason.
    pub lost: Vec<(u64, Fate)>,
}

/// A tracker: its slots' features and the machine that holds their state.
#[derive(Debug)]
pub struct Tracker<M> {
    shape: TrackerShape,
    machine: M,
    slots: Vec<Option<u64>>,
    features: u64,
    at: Vec<[f32; 2]>,
}

impl<M> Tracker<M> {
    /// The same features on another machine, which must have the state; and the machine of before.
    pub fn on<N>(self, machine: N) -> (Tracker<N>, M) {
        let Self { shape, machine: before, slots, features, at } = self;
        (Tracker { shape, machine, slots, features, at }, before)
    }

    /// Where its state is.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }
}

impl<M: TrackerMachine> Tracker<M> {
    /// A tracker without features.
    ///
    /// # Errors
    /// [`DeviceError`] of the copy that empties the slots.
    pub fn new(shape: TrackerShape, mut machine: M) -> Result<Self, DeviceError> {
        machine.put(Region::State(0), bytemuck::cast_slice(&shape.empty_state()))?;
        let (slots, at) = (vec![None; shape.slots()], vec![[0.0; 2]; shape.slots()]);
        Ok(Self { shape, machine, slots, features: 0, at })
    }

    /// Finds every feature in `image`, rows of grey levels. `prediction` is the homography that is known to have moved the
    /// picture since the last frame, row by row.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for a picture of another size; those of copies and launches.
    pub fn track(&mut self, image: &[f32], prediction: Option<[f32; 9]>) -> Result<FrameReport, DeviceError> {
        self.put_image(Region::Image, image)?;
        self.machine.put(Region::Prediction, bytemuck::cast_slice(&prediction.unwrap_or(IDENTITY)))?;
        self.machine.launch(&self.shape.track())?;
        let mut parameters = vec![0.0f32; PARAMETERS * self.shape.slots()];
        let mut status = vec![0.0f32; self.shape.slots()];
        self.machine.take(Region::Parameters, bytemuck::cast_slice_mut(&mut parameters))?;
        self.machine.take(Region::Status, bytemuck::cast_slice_mut(&mut status))?;
        let mut report = FrameReport::default();
        for (slot, &difference) in status.iter().enumerate() {
            let Some(id) = self.slots[slot] else { continue };
            if let Some(fate) = Fate::of_lost(difference) {
                report.lost.push((id, fate));
                self.slots[slot] = None;
                continue;
            }
            let parameter = |entry: usize| parameters[entry * status.len() + slot];
            self.at[slot] = [parameter(0), parameter(1)];
            let warp = std::array::from_fn(|entry| parameter(entry + 2));
            report.tracked.push(Feature { id, slot, at: self.at[slot], warp, difference });
        }
        Ok(report)
    }

    /// Fills free slots with corners of `image`, which must be the picture tracked last; returns how many.
    ///
    /// # Errors
    /// Those of [`Tracker::track`].
    pub fn refill(&mut self, image: &[f32], choice: &CornerCriteria) -> Result<usize, DeviceError> {
        self.put_image(Region::CornerImage, image)?;
        self.machine.launch(&self.shape.respond())?;
        let mut response = vec![0.0f32; self.shape.width() * self.shape.height()];
        self.machine.take(Region::Response, bytemuck::cast_slice_mut(&mut response))?;
        let taken: Vec<_> = self.used().map(|slot| self.at[slot]).collect();
        let free = self.shape.slots() - taken.len();
        self.add(&select(&response, self.shape.width(), &taken, choice, free))
    }

    /// Starts features at positions of the picture that was tracked last, as long as slots are free; returns how many.
    ///
    /// # Errors
    /// Those of [`Tracker::track`].
    pub fn add(&mut self, places: &[[f32; 2]]) -> Result<usize, DeviceError> {
        let free: Vec<_> = (0..self.slots.len()).filter(|slot| self.slots[*slot].is_none()).collect();
        let listed: Vec<_> = free.into_iter().zip(places.iter().copied()).collect();
        for &(slot, at) in &listed {
            self.slots[slot] = Some(self.features);
            self.features += 1;
            self.at[slot] = at;
        }
        self.list(&listed)?;
        Ok(listed.len())
    }

    /// Takes every feature's template anew, where it is in the picture that was tracked last: from frame to frame, features
    /// may then change slowly, and drift.
    ///
    /// # Errors
    /// Those of [`Tracker::track`].
    pub fn renew(&mut self) -> Result<(), DeviceError> {
        let listed: Vec<_> = self.used().map(|slot| (slot, self.at[slot])).collect();
        self.list(&listed)
    }

    fn used(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.len()).filter(|slot| self.slots[*slot].is_some())
    }

    fn list(&mut self, listed: &[(usize, [f32; 2])]) -> Result<(), DeviceError> {
        if listed.is_empty() {
            return Ok(());
        }
        let slots: Vec<_> = listed.iter().map(|(slot, _)| *slot as i32).collect();
        self.machine.put(Region::Listed, bytemuck::cast_slice(&slots))?;
        for (axis, region) in [Region::ListedX, Region::ListedY].into_iter().enumerate() {
            let places: Vec<_> = listed.iter().map(|(_, at)| at[axis]).collect();
            self.machine.put(region, bytemuck::cast_slice(&places))?;
        }
        self.machine.launch(&self.shape.list(listed.len()))
    }

    fn put_image(&mut self, region: Region, image: &[f32]) -> Result<(), DeviceError> {
        let pixels = self.shape.width() * self.shape.height();
        if image.len() != pixels {
            let reason = format!("it has {} pixels and the tracker is for {pixels}", image.len());
            return Err(DeviceError::Invalid { what: "picture", reason });
        }
        self.machine.put(region, bytemuck::cast_slice(image))
    }
}
