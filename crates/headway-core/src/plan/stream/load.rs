//! Streams known by their rate, and the windows of their classes.

use crate::units::Nanos;

/// A stream known by its rate: bytes come evenly, each must be processed within `deadline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fluid {
    /// Rate in bits per second.
    pub bits_per_second: u64,
    /// Relative deadline.
    pub deadline: Nanos,
}

/// The window of the class that `window` falls into: the largest `least * 2^j <= window` with `j < classes`.
///
/// Such windows divide each other, so that blocks of all classes become ready together at the start of the longest one.
///
/// # Panics
/// If `least` is zero or above `window`, or `classes` is zero.
#[must_use]
pub fn class_window(least: Nanos, window: Nanos, classes: u32) -> Nanos {
    assert!(Nanos::ZERO < least && least <= window && classes > 0, "{least} is the least window, {window} is another");
    let class = if classes == 1 { 0 } else { (window.0 / least.0).ilog2().min(classes - 1) };
    Nanos(least.0 << class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_shortest_window_doubled_and_rounded_down() {
        let window = |of| class_window(Nanos(100), Nanos(of), 64).0;
        assert_eq!([100, 199, 200, 399, 400, 1599].map(window), [100, 100, 200, 200, 400, 800]);
        assert_eq!(class_window(Nanos(100), Nanos(1599), 2), Nanos(200));
        assert_eq!(class_window(Nanos(100), Nanos(1599), 1), Nanos(100));
    }
}
