//! The CPU forms, operation by operation as in `kernels/klt.cu`: every sum has the same order, so that the bits are equal.

use super::{Fate, HALF, PARAMETERS, PIXELS, SIDE};

/// Rows of the state, each of one word a slot.
const ROW_DX: usize = PIXELS;
const ROW_DY: usize = 2 * PIXELS;
const ROW_DIFFERENCE: usize = 3 * PIXELS;
const ROW_MATRIX: usize = 4 * PIXELS;
const ROW_PARAMETERS: usize = ROW_MATRIX + 64;
/// The centres: x, then y; a value below zero in x is the number of a [`Fate`].
pub(super) const ROW_CENTRE: usize = ROW_PARAMETERS + PARAMETERS;
/// Rows in all: 558.
pub(super) const ROWS: usize = ROW_CENTRE + 2;

/// Least mean eigenvalue of the gradient matrix that is tracked, in grey levels squared per pixel squared: the threshold
/// 1e-4 of Bouguet's tracker as OpenCV scales it (1/1024 of ours).
const EIGENVALUE_MIN: f32 = 0.1;
/// Pivots below this part of their diagonal have no digit left.
const PIVOT_MIN: f32 = 1e-6;
/// Steps that shrink a patch, or its contrast, below this have failed.
const DETERMINANT_MIN: f32 = 0.1;
/// Steps below 0.01 pixel end the iteration (OpenCV's default).
const STEP_SQUARED_MIN: f32 = 1e-4;
/// Mean difference, in grey levels, beyond which the patch is another one.
const DIFFERENCE_MAX: f32 = 20.0;
/// Predictions beyond this many pixels stand for infinity.
const PREDICTED_MAX: f32 = 1e6;

/// A picture: rows of `width` grey levels.
#[derive(Clone, Copy)]
pub(super) struct Image<'a> {
    pub(super) pixels: &'a [f32],
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Image<'_> {
    /// The value between pixels; beyond an edge, that of the edge.
    fn sample(&self, x: f32, y: f32) -> f32 {
        let x = x.max(0.0).min((self.width - 1) as f32);
        let y = y.max(0.0).min((self.height - 1) as f32);
        let (left, top) = (x as usize, y as usize);
        let (right, bottom) = ((left + 1).min(self.width - 1), (top + 1).min(self.height - 1));
        let (fx, fy) = (x - left as f32, y - top as f32);
        let upper = &self.pixels[top * self.width..][..self.width];
        let lower = &self.pixels[bottom * self.width..][..self.width];
        let above = upper[left] + fx * (upper[right] - upper[left]);
        let below = lower[left] + fx * (lower[right] - lower[left]);
        above + fy * (below - above)
    }

    /// The value at the pixel nearest to (x, y).
    fn clamped(&self, x: isize, y: isize) -> f32 {
        let (x, y) = (x.clamp(0, self.width as isize - 1), y.clamp(0, self.height as isize - 1));
        self.pixels[y as usize * self.width + x as usize]
    }
}

/// The positions that a slot can be listed with.
pub(super) struct Listed<'a> {
    pub(super) slots: &'a [i32],
    pub(super) xs: &'a [f32],
    pub(super) ys: &'a [f32],
}

/// Offset of a template's pixel from its centre.
fn offset(pixel: usize) -> (f32, f32) {
    ((pixel % SIDE) as f32 - HALF as f32, (pixel / SIDE) as f32 - HALF as f32)
}

/// How the template's value at (x, y) from its centre answers to parameter `entry`.
fn steepest(entry: usize, value: f32, (dx, dy): (f32, f32), (x, y): (f32, f32)) -> f32 {
    match entry {
        0 => dx,
        1 => dy,
        2 => value,
        3 => 1.0,
        4 => x * dx,
        5 => y * dx,
        6 => x * dy,
        _ => y * dy,
    }
}

/// Index beyond an edge, reflected without repeating the edge.
fn reflected(at: isize, size: usize) -> usize {
    let at = at.unsigned_abs();
    if at >= size { 2 * size - 2 - at } else { at }
}

/// A derivative by Scharr's filter, from three neighbours on either side.
fn scharr(before: [f32; 3], after: [f32; 3]) -> f32 {
    let [first, middle, last] = [0, 1, 2].map(|i| after[i] - before[i]);
    (3.0 * first + 10.0 * middle + 3.0 * last) * 0.03125
}

/// Half the size, by the filter 1 4 6 4 1 in both directions.
pub(super) fn halve(from: Image<'_>, to: &mut [f32]) {
    let (width, height) = (from.width.div_ceil(2), from.height.div_ceil(2));
    let columns = |x: usize| [-2, -1, 1, 2].map(|by| reflected(x as isize + by, from.width));
    for (at, to) in to.iter_mut().enumerate().take(width * height) {
        let (x, y) = (2 * (at % width), 2 * (at / width));
        let [left2, left, right, right2] = columns(x);
        let rows = [-2, -1, 0, 1, 2].map(|by| {
            let row = &from.pixels[reflected(y as isize + by, from.height) * from.width..][..from.width];
            (row[left2] + row[right2]) + 4.0 * (row[left] + row[right]) + 6.0 * row[x]
        });
        *to = ((rows[0] + rows[4]) + 4.0 * (rows[1] + rows[3]) + 6.0 * rows[2]) * (1.0 / 256.0);
    }
}

/// The smaller eigenvalue of the mean gradient matrix of 5 x 5 pixels (Shi and Tomasi, CVPR 1994, section 4).
pub(super) fn response(image: Image<'_>, response: &mut [f32]) {
    let (width, height) = (image.width, image.height);
    let gradient = |at: usize| {
        let near = |by_x, by_y| image.clamped((at % width) as isize + by_x, (at / width) as isize + by_y);
        let dx = scharr([near(-1, -1), near(-1, 0), near(-1, 1)], [near(1, -1), near(1, 0), near(1, 1)]);
        let dy = scharr([near(-1, -1), near(0, -1), near(1, -1)], [near(-1, 1), near(0, 1), near(1, 1)]);
        [dx * dx, dx * dy, dy * dy]
    };
    let products: Vec<_> = (0..width * height).map(gradient).collect();
    for (at, response) in response.iter_mut().enumerate().take(width * height) {
        let (x, y) = ((at % width) as isize, (at / width) as isize);
        let mut sums = [0.0f32; 3];
        for row in -2..=2 {
            let row = (y + row).clamp(0, height as isize - 1) as usize * width;
            for column in -2..=2 {
                let product = products[row + (x + column).clamp(0, width as isize - 1) as usize];
                for (sum, product) in sums.iter_mut().zip(product) {
                    *sum += product;
                }
            }
        }
        *response = least_eigenvalue(sums.map(|sum| sum * 0.04));
    }
}

fn least_eigenvalue([xx, xy, yy]: [f32; 3]) -> f32 {
    0.5 * ((xx + yy) - ((xx - yy) * (xx - yy) + 4.0 * (xy * xy)).sqrt())
}

/// Takes templates of level `level` for the listed slots.
pub(super) fn template(image: Image<'_>, listed: &Listed<'_>, state: &mut [f32], level: u32, slots: usize) {
    let scale = 1.0 / (1u32 << level) as f32;
    for ((&slot, x), y) in listed.slots.iter().zip(listed.xs).zip(listed.ys) {
        let Some(slot) = usize::try_from(slot).ok().filter(|slot| *slot < slots) else { continue };
        let (centre_x, centre_y) = (x * scale, y * scale);
        for pixel in 0..PIXELS {
            let (by_x, by_y) = offset(pixel);
            let (x, y) = (centre_x + by_x, centre_y + by_y);
            let (mut value, mut dx, mut dy) = (0.0, 0.0, 0.0);
            for (row, weight) in [(-1.0, 3.0), (0.0, 10.0), (1.0, 3.0)] {
                let [before, here, after] = [x - 1.0, x, x + 1.0].map(|x| image.sample(x, y + row));
                value = if row == 0.0 { here } else { value };
                dx += weight * (after - before);
                dy += row * (3.0 * (before + after) + 10.0 * here);
            }
            state[pixel * slots + slot] = value;
            state[(ROW_DX + pixel) * slots + slot] = dx * 0.03125;
            state[(ROW_DY + pixel) * slots + slot] = dy * 0.03125;
            state[(ROW_DIFFERENCE + pixel) * slots + slot] = 0.0;
        }
        for entry in 0..PARAMETERS {
            state[(ROW_PARAMETERS + entry) * slots + slot] = 0.0;
        }
        state[ROW_CENTRE * slots + slot] = centre_x;
        state[(ROW_CENTRE + 1) * slots + slot] = centre_y;
    }
}

/// Value, derivatives and offset of a template's pixel.
fn pixel_of(state: &[f32], slots: usize, slot: usize, pixel: usize) -> (f32, (f32, f32), (f32, f32)) {
    let row = |row: usize| state[(row + pixel) * slots + slot];
    (row(0), (row(ROW_DX), row(ROW_DY)), offset(pixel))
}

/// The lower half of the matrix of each listed slot.
pub(super) fn matrix(listed: &[i32], state: &mut [f32], slots: usize) {
    for slot in listed.iter().filter_map(|slot| usize::try_from(*slot).ok()).filter(|slot| *slot < slots) {
        let mut sums = [[0.0f32; PARAMETERS]; PARAMETERS];
        for pixel in 0..PIXELS {
            let (value, slopes, at) = pixel_of(state, slots, slot, pixel);
            let steepest: [f32; PARAMETERS] = std::array::from_fn(|entry| steepest(entry, value, slopes, at));
            for row in 0..PARAMETERS {
                for column in 0..=row {
                    sums[row][column] += steepest[row] * steepest[column];
                }
            }
        }
        for row in 0..PARAMETERS {
            for column in 0..=row {
                state[(ROW_MATRIX + row * PARAMETERS + column) * slots + slot] = sums[row][column];
            }
        }
    }
}

/// Judges the matrix of each listed slot, and factors its first `parameters` rows (Cholesky).
pub(super) fn factor(listed: &[i32], state: &mut [f32], slots: usize, parameters: usize) {
    for slot in listed.iter().filter_map(|slot| usize::try_from(*slot).ok()).filter(|slot| *slot < slots) {
        if !factor_one(state, slots, slot, parameters) {
            state[ROW_CENTRE * slots + slot] = Fate::Untrackable.code();
        }
    }
}

fn factor_one(state: &mut [f32], slots: usize, slot: usize, parameters: usize) -> bool {
    let at = |row: usize, column: usize| (ROW_MATRIX + row * PARAMETERS + column) * slots + slot;
    let least = least_eigenvalue([state[at(0, 0)], state[at(1, 0)], state[at(1, 1)]]);
    if least < EIGENVALUE_MIN * PIXELS as f32 || least.is_nan() {
        return false;
    }
    for j in 0..parameters {
        let whole = state[at(j, j)];
        let pivot = (0..j).fold(whole, |pivot, k| pivot - state[at(j, k)] * state[at(j, k)]);
        if pivot <= PIVOT_MIN * whole || pivot.is_nan() {
            return false;
        }
        let root = pivot.sqrt();
        state[at(j, j)] = root;
        for i in j + 1..parameters {
            let entry = (0..j).fold(state[at(i, j)], |entry, k| entry - state[at(i, k)] * state[at(j, k)]);
            state[at(i, j)] = entry / root;
        }
    }
    true
}

/// Begins a frame at level `level`: where the finest level's slots are, moved by the homography `prediction`.
pub(super) fn begin(
    prediction: &[f32; 9],
    finest: &[f32],
    state: &mut [f32],
    status: &mut [f32],
    level: u32,
    slots: usize,
) {
    let [a, b, c, d, e, f, g, h, i] = *prediction;
    for (slot, status) in status.iter_mut().enumerate().take(slots) {
        let row = |row: usize| finest[row * slots + slot];
        let (centre_x, centre_y) = (row(ROW_CENTRE), row(ROW_CENTRE + 1));
        if centre_x < 0.0 || centre_x.is_nan() {
            *status = centre_x;
            continue;
        }
        let (x, y) = (centre_x + row(ROW_PARAMETERS), centre_y + row(ROW_PARAMETERS + 1));
        let w = g * x + h * y + i;
        let (moved_x, moved_y) = ((a * x + b * y + c) / w, (d * x + e * y + f) / w);
        let far = |at: f32| at.abs() >= PREDICTED_MAX || at.is_nan();
        if far(moved_x) || far(moved_y) {
            *status = Fate::Outside.code();
            continue;
        }
        let scale = 1.0 / (1u32 << level) as f32;
        state[ROW_PARAMETERS * slots + slot] = (moved_x - centre_x) * scale;
        state[(ROW_PARAMETERS + 1) * slots + slot] = (moved_y - centre_y) * scale;
        for entry in 2..PARAMETERS {
            state[(ROW_PARAMETERS + entry) * slots + slot] = row(ROW_PARAMETERS + entry);
        }
        *status = Fate::Active.code();
    }
}

/// What the image, warped, has more than the template, for active slots; `always`: for those at rest too.
pub(super) fn difference(image: Image<'_>, state: &mut [f32], status: &[f32], slots: usize, always: bool) {
    let converged = Fate::Converged.code();
    for pixel in 0..PIXELS {
        let (x, y) = offset(pixel);
        for (slot, &now) in status.iter().enumerate().take(slots) {
            let word = |row: usize| state[row * slots + slot];
            let centre_x = word(ROW_CENTRE);
            if !(now == Fate::Active.code() || always && now == converged) || centre_x < 0.0 {
                continue;
            }
            let parameter = |entry: usize| word(ROW_PARAMETERS + entry);
            let offset_x = x + (parameter(4) * x + parameter(5) * y);
            let offset_y = y + (parameter(6) * x + parameter(7) * y);
            let warped_x = (centre_x + parameter(0)) + offset_x;
            let warped_y = (word(ROW_CENTRE + 1) + parameter(1)) + offset_y;
            let corrected = (1.0 + parameter(2)) * image.sample(warped_x, warped_y) + parameter(3);
            let difference = corrected - word(pixel);
            state[(ROW_DIFFERENCE + pixel) * slots + slot] = difference;
        }
    }
}

/// One Gauss-Newton step of every active slot.
pub(super) fn update(size: (usize, usize), state: &mut [f32], status: &mut [f32], slots: usize, parameters: usize) {
    for (slot, status) in status.iter_mut().enumerate().take(slots) {
        if *status != Fate::Active.code() || state[ROW_CENTRE * slots + slot] < 0.0 {
            continue;
        }
        let mut step = [0.0f32; PARAMETERS];
        for pixel in 0..PIXELS {
            let (value, slopes, at) = pixel_of(state, slots, slot, pixel);
            let difference = state[(ROW_DIFFERENCE + pixel) * slots + slot];
            for (entry, sum) in step.iter_mut().enumerate().take(parameters) {
                *sum += steepest(entry, value, slopes, at) * difference;
            }
        }
        solve(&mut step, state, slots, slot, parameters);
        *status = compose(&step, size, state, slots, slot).code();
    }
}

/// Solves with the factor of the slot's matrix.
fn solve(step: &mut [f32; PARAMETERS], state: &[f32], slots: usize, slot: usize, parameters: usize) {
    let factor = |row: usize, column: usize| state[(ROW_MATRIX + row * PARAMETERS + column) * slots + slot];
    for i in 0..parameters {
        let sum = (0..i).fold(step[i], |sum, k| sum - factor(i, k) * step[k]);
        step[i] = sum / factor(i, i);
    }
    for i in (0..parameters).rev() {
        let sum = (i + 1..parameters).fold(step[i], |sum, k| sum - factor(k, i) * step[k]);
        step[i] = sum / factor(i, i);
    }
}

/// Composes the slot's warp with the inverse of `step`, and says what becomes of the slot.
fn compose(step: &[f32; 8], (width, height): (usize, usize), state: &mut [f32], slots: usize, slot: usize) -> Fate {
    let gain = 1.0 + step[2];
    let (xx, xy, yx, yy) = (1.0 + step[4], step[5], step[6], 1.0 + step[7]);
    let determinant = xx * yy - xy * yx;
    if !(determinant > DETERMINANT_MIN && gain > DETERMINANT_MIN) {
        return Fate::Changed;
    }
    let at = |entry: usize| (ROW_PARAMETERS + entry) * slots + slot;
    let (warp_xx, warp_xy) = (1.0 + state[at(4)], state[at(5)]);
    let (warp_yx, warp_yy) = (state[at(6)], 1.0 + state[at(7)]);
    let new_xx = (warp_xx * yy - warp_xy * yx) / determinant;
    let new_xy = (warp_xy * xx - warp_xx * xy) / determinant;
    let new_yx = (warp_yx * yy - warp_yy * yx) / determinant;
    let new_yy = (warp_yy * xx - warp_yx * xy) / determinant;
    let move_x = new_xx * step[0] + new_xy * step[1];
    let move_y = new_yx * step[0] + new_yy * step[1];
    state[at(0)] -= move_x;
    state[at(1)] -= move_y;
    state[at(2)] = (1.0 + state[at(2)]) / gain - 1.0;
    state[at(3)] = (state[at(3)] - step[3]) / gain;
    state[at(4)] = new_xx - 1.0;
    state[at(5)] = new_xy;
    state[at(6)] = new_yx;
    state[at(7)] = new_yy - 1.0;
    let x = state[ROW_CENTRE * slots + slot] + state[at(0)];
    let y = state[(ROW_CENTRE + 1) * slots + slot] + state[at(1)];
    let border = HALF as f32;
    let inside = |at: f32, size: usize| at >= -border && at <= size as f32 + border;
    if !(inside(x, width) && inside(y, height)) {
        Fate::Outside
    } else if move_x * move_x + move_y * move_y < STEP_SQUARED_MIN {
        Fate::Converged
    } else {
        Fate::Active
    }
}

/// Hands the parameters to the next finer level.
pub(super) fn descend(from: &[f32], to: &mut [f32], status: &mut [f32], slots: usize) {
    for (slot, status) in status.iter_mut().enumerate().take(slots) {
        if *status < 0.0 {
            continue;
        }
        for entry in 0..PARAMETERS {
            let value = from[(ROW_PARAMETERS + entry) * slots + slot];
            to[(ROW_PARAMETERS + entry) * slots + slot] = if entry < 2 { 2.0 * value } else { value };
        }
        *status = Fate::Active.code();
    }
}

/// Judges the finest level: positions, the other parameters, and the mean difference or a code.
pub(super) fn finish(
    (width, height): (usize, usize),
    state: &mut [f32],
    parameters: &mut [f32],
    status: &mut [f32],
    slots: usize,
) {
    for (slot, verdict) in status.iter_mut().enumerate().take(slots) {
        let word = |row: usize| state[row * slots + slot];
        let x = word(ROW_CENTRE) + word(ROW_PARAMETERS);
        let y = word(ROW_CENTRE + 1) + word(ROW_PARAMETERS + 1);
        if *verdict >= 0.0 {
            let sum = (0..PIXELS).fold(0.0, |sum, pixel| sum + word(ROW_DIFFERENCE + pixel).abs());
            *verdict = sum / PIXELS as f32;
            if *verdict > DIFFERENCE_MAX || verdict.is_nan() {
                *verdict = Fate::Changed.code();
            }
            let inside = |at: f32, size: usize| at >= 0.0 && at <= (size - 1) as f32;
            if !(inside(x, width) && inside(y, height)) {
                *verdict = Fate::Outside.code();
            }
        }
        parameters[slot] = x;
        parameters[slots + slot] = y;
        for entry in 2..PARAMETERS {
            parameters[entry * slots + slot] = word(ROW_PARAMETERS + entry);
        }
        if *verdict < 0.0 {
            state[ROW_CENTRE * slots + slot] = Fate::Empty.code();
        }
    }
}
