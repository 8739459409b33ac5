//! Synthetic wafers: a pattern that repeats from die to die, noise, and defects of known place and size.
//!
//! Everything follows from a seed, whatever is asked for first. The noise is the sum of eight uniform draws, so it is bounded
//! by 4.9 times its standard deviation; with [`Wafer::THRESHOLD`] and [`Wafer::CONTRAST_MIN`] every pixel of a defect is found
//! and no other one: a difference of two pixels has at most 9.8 standard deviations of noise.

use super::{JOIN, Layout};

/// A row of images, one from each camera, for each sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wafer {
    /// Sizes of an image.
    pub layout: Layout,
    /// Images side by side.
    pub cameras: usize,
    /// Defects in a row of images, unless there is too little room for them.
    pub defects: usize,
    /// What everything follows from.
    pub seed: u64,
}

/// A planted defect: a box in the row of images, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted {
    /// Left edge.
    pub x: usize,
    /// Upper edge.
    pub y: usize,
    pub width: usize,
    pub height: usize,
    /// How much brighter it is, in counts; negative: darker.
    pub contrast: i32,
}

impl Wafer {
    /// Standard deviation of the noise, in counts.
    pub const NOISE: i32 = 40;
    /// The threshold that goes with the noise: ten standard deviations.
    pub const THRESHOLD: i32 = 10 * Self::NOISE;
    /// Least contrast of a defect: twenty standard deviations.
    pub const CONTRAST_MIN: i32 = 20 * Self::NOISE;
    /// Greatest contrast of a defect.
    const CONTRAST_MAX: i32 = 4000;
    /// Sides of a defect, in pixels.
    const SIDES: std::ops::RangeInclusive<usize> = 1..=24;
    /// Pixels between defects: as far apart, two never have pixels in one cell.
    const APART: usize = 20;
    /// Draws for one defect.
    const ATTEMPTS: u64 = 64;

    /// What is planted in the row of images of number `sequence`.
    ///
    /// Defects keep 20 pixels from each other. None lies at the same place of its die as another one, because then each would
    /// hide the other.
    #[must_use]
    pub fn planted(&self, sequence: u32) -> Vec<Planted> {
        let mut planted = Vec::new();
        let seed = mix(self.seed ^ 0xDEFE_C700 ^ u64::from(sequence) << 32);
        for defect in 0..self.defects as u64 {
            let draws = (0..Self::ATTEMPTS).map(|attempt| self.draw(mix(seed ^ defect << 16 ^ attempt)));
            let new = draws.flatten().find(|new| planted.iter().all(|old| self.are_apart(new, old)));
            planted.extend(new);
        }
        planted
    }

    /// A defect that does not look at the others; `None` where it would stick out of the images.
    fn draw(&self, seed: u64) -> Option<Planted> {
        let [x, y, width, height, contrast] = [0, 1, 2, 3, 4].map(|what| mix(seed ^ what << 48));
        let below = |draw: u64, end: usize| (draw % end as u64) as usize;
        let side = |draw: u64| Self::SIDES.start() + below(draw, Self::SIDES.end() - Self::SIDES.start() + 1);
        let strength =
            Self::CONTRAST_MIN + below(contrast >> 1, (Self::CONTRAST_MAX - Self::CONTRAST_MIN) as usize) as i32;
        let new = Planted {
            x: below(x, self.layout.width() * self.cameras),
            y: below(y, self.layout.height()),
            width: side(width),
            height: side(height).min(self.layout.pitch() / 2),
            contrast: if contrast & 1 == 0 { strength } else { -strength },
        };
        let fits =
            new.x + new.width <= self.layout.width() * self.cameras && new.y + new.height <= self.layout.height();
        fits.then_some(new)
    }

    fn are_apart(&self, new: &Planted, old: &Planted) -> bool {
        let apart = |new: usize, new_size: usize, old: usize, old_size: usize| {
            new >= old + old_size + Self::APART || old >= new + new_size + Self::APART
        };
        let pitch = self.layout.pitch();
        let overlap_in_x = new.x < old.x + old.width && old.x < new.x + new.width;
        // Where one begins in its die, seen from where the other does.
        let phase = (new.y + pitch * self.layout.height() - old.y) % pitch;
        let overlap_in_die = phase < old.height || phase + new.height > pitch;
        let far = apart(new.x, new.width, old.x, old.width) || apart(new.y, new.height, old.y, old.height);
        far && !(overlap_in_x && overlap_in_die)
    }

    /// Fills `image`, of [`Layout::image_bytes`], with what `camera` sees.
    ///
    /// # Panics
    /// If `image` has another size, or there is no such camera.
    pub fn fill(&self, camera: usize, sequence: u32, image: &mut [u8]) {
        assert_eq!(image.len(), self.layout.image_bytes(), "an image has the layout's size");
        assert!(camera < self.cameras, "camera {camera} is one of {}", self.cameras);
        let (width, pitch) = (self.layout.width(), self.layout.pitch());
        let left = camera * width;
        let die: Vec<_> = (0..pitch * width).map(|at| self.pattern(left + at % width, at / width)).collect();
        let noise = mix(self.seed ^ u64::from(sequence) << 32 ^ (camera as u64) << 20);
        for (at, pixel) in image.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let level = die[at / width % pitch * width + at % width] + gauss(mix(noise ^ mix(at as u64)));
            *pixel = (level as u16).to_le_bytes();
        }
        for defect in self.planted(sequence) {
            for y in defect.y..defect.y + defect.height {
                for x in defect.x.max(left)..(defect.x + defect.width).min(left + width) {
                    let pixel = &mut image.as_chunks_mut::<2>().0[y * width + x - left];
                    let level = i32::from(u16::from_le_bytes(*pixel)) + defect.contrast;
                    *pixel = (level as u16).to_le_bytes();
                }
            }
        }
    }

    /// Lines, contacts and a fine texture, between 8000 and 40000 counts.
    fn pattern(&self, x: usize, y: usize) -> i32 {
        let cell = mix(self.seed ^ (x / 8) as u64 ^ ((y / 5) as u64) << 24);
        let metal = if cell.is_multiple_of(3) { 16_000 } else { 0 };
        let contact = if x % 25 < 4 && y % 20 < 4 { 9_000 } else { 0 };
        let texture = (mix(self.seed ^ 1 ^ (x as u64) << 8 ^ (y as u64) << 32) % 6_000) as i32;
        8_000 + metal + contact + texture
    }
}

const _: () = assert!(Wafer::APART > JOIN as usize);

/// A normal draw, nearly: eight bytes of `draw`, scaled to [`Wafer::NOISE`] and at most 4.9 times that.
fn gauss(draw: u64) -> i32 {
    let sum: i32 = draw.to_le_bytes().into_iter().map(i32::from).sum();
    // Eight uniform bytes have a mean of 1020 and a standard deviation of 209.
    (sum - 1020) * Wafer::NOISE / 209
}

/// S. Vigna's "splitmix64".
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_has_its_deviation_and_its_bound() {
        let draws: Vec<_> = (0..100_000).map(|at| f64::from(gauss(mix(at)))).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let deviation = (draws.iter().map(|draw| draw * draw).sum::<f64>() / 1e5).sqrt();
        assert!(mean.abs() < 0.6 && (deviation - 40.0).abs() < 1.0, "{mean} {deviation}");
        assert_eq!([gauss(0), gauss(u64::MAX)], [-195, 195]);
        // Twice the bound is below the threshold, and leaves the least contrast above it.
        const { assert!(2 * 195 < Wafer::THRESHOLD && Wafer::CONTRAST_MIN - 2 * 195 > Wafer::THRESHOLD) };
    }

    #[test]
    fn a_wafer_is_the_same_each_time_and_another_one_with_another_seed() {
        let wafer = Wafer { layout: Layout::default(), cameras: 2, defects: 6, seed: 5 };
        let image = |wafer: &Wafer, camera, sequence| {
            let mut image = vec![0; wafer.layout.image_bytes()];
            wafer.fill(camera, sequence, &mut image);
            image
        };
        let first = image(&wafer, 1, 3);
        assert!(first == image(&wafer, 1, 3));
        for other in [image(&wafer, 0, 3), image(&wafer, 1, 4), image(&Wafer { seed: 6, ..wafer }, 1, 3)] {
            assert!(first != other);
        }
        assert_eq!(wafer.planted(3).len(), 6);
        assert_ne!(wafer.planted(3), wafer.planted(4));
    }
}
