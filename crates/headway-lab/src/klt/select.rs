//! Which corners to track: on the CPU, as sorting and masking are in GPUSync's tracker.

use std::cmp::Reverse;

/// What a good corner is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CornerCriteria {
    /// Least response, as a part of the strongest in the picture.
    pub quality: f32,
    /// Least distance between two, in pixels.
    pub distance: f32,
    /// Least distance from the picture's edge, in pixels.
    pub margin: usize,
}

impl Default for CornerCriteria {
    fn default() -> Self {
        Self { quality: 0.01, distance: 5.0, margin: 8 }
    }
}

/// Up to `max` corners of `response`, the strongest first, away from those that are `taken` already.
///
/// Corners are maxima among their eight neighbours; of equal ones the first in the picture counts first (Shi and Tomasi, CVPR
/// 1994, section 4). `response` has rows of `width`.
///
/// # Panics
/// If `response` has no whole rows.
#[must_use]
pub fn select(
    response: &[f32],
    width: usize,
    taken: &[[f32; 2]],
    choice: &CornerCriteria,
    max: usize,
) -> Vec<[f32; 2]> {
    assert!(width > 0 && response.len().is_multiple_of(width), "a response has whole rows");
    let height = response.len() / width;
    let margin = choice.margin.max(1);
    let least = choice.quality * response.iter().copied().fold(0.0, f32::max);
    let mut corners = Vec::new();
    for y in margin..height.saturating_sub(margin) {
        for x in margin..width.saturating_sub(margin) {
            let at = y * width + x;
            let value = response[at];
            let neighbours = [at - width - 1, at - width, at - width + 1, at - 1, at + 1];
            let below = [at + width - 1, at + width, at + width + 1];
            if value > 0.0 && value >= least && neighbours.iter().chain(&below).all(|&near| response[near] <= value) {
                corners.push((value, Reverse(at)));
            }
        }
    }
    corners.sort_unstable_by(|left, right| right.0.total_cmp(&left.0).then(right.1.cmp(&left.1)));
    let mut mask = Mask::new(width, height, choice.distance);
    taken.iter().for_each(|corner| mask.take(*corner));
    let mut chosen = Vec::new();
    for (_, Reverse(at)) in corners {
        let corner = [(at % width) as f32, (at / width) as f32];
        if chosen.len() == max {
            break;
        }
        if mask.is_free(corner) {
            mask.take(corner);
            chosen.push(corner);
        }
    }
    chosen
}

/// Corners by cells as large as the least distance, so that only neighbouring cells can hold one that is too near.
struct Mask {
    cells: Vec<Vec<[f32; 2]>>,
    columns: usize,
    rows: usize,
    distance: f32,
}

impl Mask {
    fn new(width: usize, height: usize, distance: f32) -> Self {
        let distance = distance.max(1.0);
        let count = |size: usize| (size as f32 / distance) as usize + 1;
        let (columns, rows) = (count(width), count(height));
        Self { cells: vec![Vec::new(); columns * rows], columns, rows, distance }
    }

    fn cell(&self, corner: [f32; 2]) -> (usize, usize) {
        let [x, y] = corner.map(|at| (at / self.distance) as usize);
        (x.min(self.columns - 1), y.min(self.rows - 1))
    }

    fn take(&mut self, corner: [f32; 2]) {
        let (column, row) = self.cell(corner);
        self.cells[row * self.columns + column].push(corner);
    }

    fn is_free(&self, corner: [f32; 2]) -> bool {
        let (column, row) = self.cell(corner);
        let rows = row.saturating_sub(1)..(row + 2).min(self.rows);
        let columns = column.saturating_sub(1)..(column + 2).min(self.columns);
        let near = |other: &[f32; 2]| (other[0] - corner[0]).hypot(other[1] - corner[1]) < self.distance;
        rows.flat_map(|row| columns.clone().map(move |column| (row, column)))
            .all(|(row, column)| !self.cells[row * self.columns + column].iter().any(near))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peaks(of: &[(usize, usize, f32)]) -> Vec<f32> {
        let mut response = vec![0.0; 40 * 30];
        for &(x, y, value) in of {
            response[y * 40 + x] = value;
        }
        response
    }

    #[test]
    fn the_strongest_corners_come_first_and_keep_their_distance() {
        let response = peaks(&[(10, 10, 5.0), (13, 10, 9.0), (30, 20, 7.0), (20, 15, 7.0), (25, 10, 0.05)]);
        let choice = CornerCriteria { quality: 0.01, distance: 4.0, margin: 8 };
        // (10, 10) is 3 pixels from a stronger one, (25, 10) below a hundredth of the strongest.
        assert_eq!(select(&response, 40, &[], &choice, 9), [[13.0, 10.0], [20.0, 15.0], [30.0, 20.0]]);
        assert_eq!(select(&response, 40, &[], &choice, 2), [[13.0, 10.0], [20.0, 15.0]]);
        let taken = [[16.5, 10.0], [28.0, 21.0]];
        assert_eq!(select(&response, 40, &taken, &choice, 9), [[20.0, 15.0], [10.0, 10.0]]);
    }

    #[test]
    fn neither_the_margin_nor_a_flat_picture_has_corners() {
        let choice = CornerCriteria::default();
        assert!(select(&peaks(&[(7, 15, 1.0), (15, 22, 1.0), (32, 15, 1.0)]), 40, &[], &choice, 9).is_empty());
        assert!(select(&peaks(&[]), 40, &[], &choice, 9).is_empty());
    }
}
