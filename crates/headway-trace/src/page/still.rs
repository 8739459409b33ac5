//! The timeline as a picture, for browsers without scripts: a window of the run, one row under the other.

use std::fmt::Write as _;

use headway_core::units::Nanos;

use super::shell::escape;
use super::tracks::{Item, Track};

/// Width of the picture.
const WIDTH: u64 = 1_200;
/// A row: its name, then its bar.
const NAME: u64 = 16;
const BAR: u64 = 16;
const ROW: u64 = NAME + BAR + 4;
const HEAD: u64 = 26;
/// Rectangles at most.
const ITEMS_MAX: usize = 3_000;
/// Marks of the axis.
const TICKS: u64 = 6;

/// Draws `[from, to)` of the tracks that do something in it. `color` and `tell` say how an item looks and what it is.
pub(crate) fn still(
    tracks: &[Track],
    (from, to): (Nanos, Nanos),
    color: impl Fn(&Item) -> String,
    tell: impl Fn(&Track, &Item) -> String,
) -> String {
    let inside = |item: &&Item| item.end > from && item.start < to && item.end > item.start;
    let shown: Vec<(&Track, Vec<&Item>)> = tracks
        .iter()
        .map(|track| (track, track.items.iter().filter(inside).collect::<Vec<_>>()))
        .filter(|(_, items)| !items.is_empty())
        .collect();
    if shown.is_empty() {
        return String::new();
    }
    let height = HEAD + shown.len() as u64 * ROW + 6;
    let long = u128::from(to.saturating_sub(from).0.max(1));
    let place = |time: Nanos| {
        let part = u128::from(time.clamp(from, to).saturating_sub(from).0) * u128::from(WIDTH) * 100;
        u64::try_from(part / long).unwrap_or(0)
    };
    let text = |hundredths: u64| format!("{}.{:02}", hundredths / 100, hundredths % 100);
    let mut svg = format!(
        "<h2>From {from} to {to}</h2>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Engines from {from} to {to}\" font-size=\"12\" fill=\"currentColor\">\n"
    );
    for tick in 0..TICKS {
        let (at, x) =
            (from.saturating_add(Nanos((long * u128::from(tick) / u128::from(TICKS)) as u64)), tick * WIDTH / TICKS);
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {HEAD}V{height}\" stroke=\"#8888\"/><text x=\"{}\" y=\"16\">{at}</text>",
            x + 3
        );
    }
    let mut left = ITEMS_MAX;
    for ((track, items), row) in shown.iter().zip(0u64..) {
        let y = HEAD + row * ROW;
        let _ = writeln!(svg, "<text x=\"0\" y=\"{}\">{}</text>", y + 13, escape(&track.name));
        for item in items.iter().take(left) {
            let (x, end) = (place(item.start), place(item.end));
            let (top, tall) = if item.waits { (y + NAME + BAR / 3, BAR / 3) } else { (y + NAME, BAR) };
            let _ = writeln!(
                svg,
                "<rect x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{tall}\" fill=\"{}\"><title>{}</title></rect>",
                text(x),
                text(end.saturating_sub(x).max(40)),
                color(item),
                escape(&tell(track, item)),
            );
        }
        left = left.saturating_sub(items.len());
    }
    svg.push_str("</svg>");
    svg
}
