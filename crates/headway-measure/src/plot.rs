//! Line plots as SVG, for screens, for paper, and for readers who do not see all colours.
//!
//! Lines differ in colour (Okabe and Ito's palette), in dashes and in the shape of their points. The legend stands below the
//! plot, where it hides nothing. An axis is logarithmic where a linear one would hide the small values.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::element::{DashedPathElement, Drawable, PointCollection};
use plotters::prelude::*;
use plotters_backend::{BackendCoord, DrawingErrorKind};

/// One plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Above it.
    pub title: String,
    /// Where the values come from: `sim`, `emu` or `cuda`. It stands in the picture.
    pub source: String,
    /// What is along the horizontal axis, with its unit.
    pub x: String,
    /// What is along the vertical axis, with its unit.
    pub y: String,
    /// From where to where error bars reach, in words; empty = there are none.
    pub bars: String,
    pub lines: Vec<PlotLine>,
}

/// One line of a [`Figure`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlotLine {
    /// In the legend.
    pub name: String,
    /// Points in the order in which a line joins them.
    pub points: Vec<(f64, f64)>,
    /// Error bars: where along the horizontal axis, from where, to where.
    pub bars: Vec<(f64, f64, f64)>,
    /// Whether the points stand alone.
    pub scattered: bool,
}

/// A plot that could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plot `{title}` cannot be drawn: {reason}")]
pub struct PlotError {
    /// The plot.
    pub title: String,
    /// What went wrong with it.
    pub reason: String,
}

const WIDTH: u32 = 900;
const HEIGHT: u32 = 560;
/// Room for title and source.
const HEAD: u32 = 54;
/// A row of the legend, and what a character and a sample of the line take in it.
const ROW: u32 = 20;
const CHARACTER: u32 = 7;
const SAMPLE: u32 = 46;
/// Points of a line that get a mark.
const MARKS: usize = 24;
/// Largest over smallest value from which on an axis is logarithmic.
const WIDE: f64 = 50.0;
/// Okabe and Ito, without their yellow, which is too pale for lines on white.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];
/// Lengths of dashes and of the gaps between them; the first is a line without gaps.
const DASHES: [(u32, u32); 4] = [(0, 0), (9, 4), (3, 3), (14, 3)];
const SHAPES: usize = 6;

/// What bars say that reach from the median to the 99th percentile.
pub const TO_P99: &str = "median to 99th percentile (the longest of fewer than 100)";

impl PlotLine {
    /// A line through `points`.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, ..Self::default() }
    }

    /// Adds error bars.
    #[must_use]
    pub fn bars(self, bars: Vec<(f64, f64, f64)>) -> Self {
        Self { bars, ..self }
    }

    /// Leaves the points unjoined.
    #[must_use]
    pub fn scattered(self) -> Self {
        Self { scattered: true, ..self }
    }
}

impl Figure {
    /// A plot with axes that are called so, from this source.
    #[must_use]
    pub fn new(title: impl Into<String>, source: impl Display, [x, y]: [&str; 2], lines: Vec<PlotLine>) -> Self {
        let (source, x, y) = (source.to_string(), x.to_owned(), y.to_owned());
        Self { title: title.into(), source, x, y, bars: String::new(), lines }
    }

    /// Says from where to where error bars reach.
    #[must_use]
    pub fn bars(self, bars: impl Into<String>) -> Self {
        Self { bars: bars.into(), ..self }
    }

    /// Draws it; without any point, a frame that says so.
    ///
    /// # Errors
    /// [`PlotError`] when the library refuses.
    pub fn svg(&self) -> Result<String, PlotError> {
        let mut text = String::new();
        let lines = self.visible();
        let legend = legend(&lines);
        let height = HEIGHT + ROW * legend.last().map_or(0, |entry| entry.row + 2);
        {
            let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
            self.all(&root, &lines, &legend).map_err(|reason| PlotError { title: self.title.clone(), reason })?;
        }
        Ok(text)
    }

    fn all(&self, root: &Area<'_>, lines: &[PlotLine], legend: &[Entry]) -> Result<(), String> {
        root.fill(&WHITE).map_err(text_of)?;
        self.head(root)?;
        let xs = || lines.iter().flat_map(|line| line.points.iter().map(|p| p.0));
        let ys = || {
            let bars = |line: &PlotLine| line.bars.iter().flat_map(|bar| [bar.1, bar.2]).collect::<Vec<_>>();
            lines.iter().flat_map(move |line| line.points.iter().map(|p| p.1).chain(bars(line)))
        };
        let (_, rest) = root.split_vertically(HEAD);
        let (plot, below) = rest.split_vertically(HEIGHT - HEAD);
        let (Some(x), Some(y)) = (Axis::of(xs()), Axis::of(ys())) else {
            let style = ("sans-serif", 16).into_font().color(&BLACK);
            return plot.draw(&Text::new("nothing was measured", (40, 30), style)).map_err(text_of);
        };
        let mut builder = ChartBuilder::on(&plot);
        builder.margin_left(14).margin_right(24).margin_top(8).x_label_area_size(48).y_label_area_size(84);
        match (x.log, y.log) {
            (true, true) => self.draw(lines, builder.build_cartesian_2d(x.range().log_scale(), y.range().log_scale())),
            (true, false) => self.draw(lines, builder.build_cartesian_2d(x.range().log_scale(), y.range())),
            (false, true) => self.draw(lines, builder.build_cartesian_2d(x.range(), y.range().log_scale())),
            (false, false) => self.draw(lines, builder.build_cartesian_2d(x.range(), y.range())),
        }?;
        for entry in legend {
            let y = (entry.row * ROW + ROW) as i32;
            let left = entry.left as i32;
            let style = Style::of(entry.line);
            if !lines[entry.line].scattered {
                style.sample(&below, left, y)?;
            }
            below.draw(&Mark { at: (left + 16, y), style }).map_err(text_of)?;
            let font = ("sans-serif", 13).into_font().color(&BLACK);
            below.draw(&Text::new(lines[entry.line].name.clone(), (left + 40, y - 6), font)).map_err(text_of)?;
        }
        root.present().map_err(text_of)
    }

    fn head(&self, root: &Area<'_>) -> Result<(), String> {
        let font = |size: i32| ("sans-serif", size).into_font();
        root.draw(&Text::new(self.title.clone(), (16, 12), font(19).color(&BLACK))).map_err(text_of)?;
        let means = match self.source.as_str() {
            "sim" => ": simulated, virtual time",
            "emu" => ": emulated, not a GPU's figures",
            "cuda" => ": measured on GPUs",
            _ => "",
        };
        let bars = if self.bars.is_empty() { String::new() } else { format!(". Bars: {}", self.bars) };
        let about = format!("source {}{means}{bars}", self.source);
        root.draw(&Text::new(about, (16, 36), font(13).color(&RGBColor(80, 80, 80)))).map_err(text_of)
    }

    /// The lines with the points that can be drawn.
    fn visible(&self) -> Vec<PlotLine> {
        let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
        let keep = |line: &PlotLine| PlotLine {
            points: line.points.iter().copied().filter(|(x, y)| finite(&[*x, *y])).collect(),
            bars: line.bars.iter().copied().filter(|(x, low, high)| finite(&[*x, *low, *high])).collect(),
            ..line.clone()
        };
        self.lines.iter().map(keep).filter(|line| !line.points.is_empty()).collect()
    }

    fn draw<'a, X, Y, E: Display>(
        &self,
        lines: &[PlotLine],
        chart: Result<ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>, E>,
    ) -> Result<(), String>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut chart = chart.map_err(text_of)?;
        let mesh = &mut chart.configure_mesh();
        mesh.x_desc(&self.x).y_desc(&self.y).axis_desc_style(("sans-serif", 14)).label_style(("sans-serif", 12));
        mesh.light_line_style(BLACK.mix(0.05)).bold_line_style(BLACK.mix(0.16)).y_labels(8);
        mesh.x_label_formatter(&|value| short(*value)).y_label_formatter(&|value| short(*value));
        mesh.draw().map_err(text_of)?;
        for (index, line) in lines.iter().enumerate() {
            let style = Style::of(index);
            for (x, low, high) in &line.bars {
                let thin = style.color.mix(0.55).stroke_width(1);
                // The library marks a middle; it disappears under the point's own mark.
                let middle = line.points.iter().find(|point| point.0 == *x).map_or(*low, |point| point.1);
                let bar = ErrorBar::new_vertical(*x, *low, middle, *high, thin, 5);
                chart.draw_series([bar]).map_err(text_of)?;
            }
            let points = line.points.iter().copied();
            let (dash, gap) = style.dash;
            if !line.scattered {
                let stroke = style.stroke();
                let drawn = if gap == 0 {
                    chart.draw_series(LineSeries::new(points, stroke))
                } else {
                    chart.draw_series(DashedLineSeries::new(points, dash, gap, stroke))
                };
                drawn.map(|_| ()).map_err(text_of)?;
            }
            let every = if line.scattered { 1 } else { line.points.len().div_ceil(MARKS).max(1) };
            let marks = line.points.iter().step_by(every).map(|at| Mark { at: *at, style });
            chart.draw_series(marks).map_err(text_of)?;
        }
        Ok(())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn text_of(error: impl Display) -> String {
    error.to_string()
}

/// How a line looks.
#[derive(Clone, Copy)]
struct Style {
    color: RGBColor,
    dash: (u32, u32),
    shape: usize,
}

impl Style {
    fn of(index: usize) -> Self {
        Self { color: COLORS[index % COLORS.len()], dash: DASHES[index % DASHES.len()], shape: index % SHAPES }
    }

    fn stroke(self) -> ShapeStyle {
        self.color.stroke_width(2)
    }

    /// A piece of the line for the legend.
    fn sample(self, area: &Area<'_>, left: i32, y: i32) -> Result<(), String> {
        let points = [(left, y), (left + 32, y)];
        let (dash, gap) = self.dash;
        if gap == 0 {
            area.draw(&PathElement::new(points, self.stroke())).map_err(text_of)
        } else {
            area.draw(&DashedPathElement::new(points, dash, gap, self.stroke())).map_err(text_of)
        }
    }
}

/// A point, told apart by its shape as well.
struct Mark<C> {
    at: C,
    style: Style,
}

impl<'a, C: 'a> PointCollection<'a, C> for &'a Mark<C> {
    type Point = &'a C;
    type IntoIter = std::iter::Once<&'a C>;

    fn point_iter(self) -> Self::IntoIter {
        std::iter::once(&self.at)
    }
}

impl<C, DB: DrawingBackend> Drawable<DB> for Mark<C> {
    fn draw<I: Iterator<Item = BackendCoord>>(
        &self,
        mut at: I,
        backend: &mut DB,
        _: (u32, u32),
    ) -> Result<(), DrawingErrorKind<DB::ErrorType>> {
        let Some((x, y)) = at.next() else { return Ok(()) };
        let (color, line) = (self.style.color, self.style.color.stroke_width(2));
        let (from, to) = ((x - 4, y - 4), (x + 4, y + 4));
        match self.style.shape {
            0 => backend.draw_circle((x, y), 4, &color, true),
            1 => backend.draw_rect(from, to, &color, true),
            2 => backend.fill_polygon([(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], &color),
            3 => {
                backend.draw_circle((x, y), 4, &WHITE, true)?;
                backend.draw_circle((x, y), 4, &line, false)
            }
            4 => {
                backend.draw_line(from, to, &line)?;
                backend.draw_line((x - 4, y + 4), (x + 4, y - 4), &line)
            }
            _ => {
                backend.draw_rect(from, to, &WHITE, true)?;
                backend.draw_rect(from, to, &line, false)
            }
        }
    }
}

/// Where a line's name stands in the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    line: usize,
    row: u32,
    left: u32,
}

/// One entry after the other, in columns as wide as the longest.
fn legend(lines: &[PlotLine]) -> Vec<Entry> {
    let letters = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    let wide = SAMPLE + CHARACTER * u32::try_from(letters).unwrap_or(u32::MAX / 16) + 12;
    let columns = ((WIDTH - 32) / wide).max(1);
    let place = |line: usize| {
        let at = u32::try_from(line).unwrap_or(u32::MAX);
        Entry { line, row: at / columns, left: 24 + at % columns * wide }
    };
    (0..lines.len()).map(place).collect()
}

/// What an axis shows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// The axis for these values; `None` if there are none.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if !low.is_finite() {
            return None;
        }
        if low > 0.0 && high / low >= WIDE {
            return Some(Self { low: low / 1.15, high: high * 1.25, log: true });
        }
        // Zero belongs to an axis unless everything is far from it.
        let (low, high) =
            (low.min(if low < 0.7 * high { 0.0 } else { low }), high.max(if low < 0.0 { 0.0 } else { high }));
        let room = if high > low { (high - low) * 0.06 } else { (high.abs() * 0.5).max(0.5) };
        Some(Self { low: if low == 0.0 { 0.0 } else { low - room }, high: high + room, log: false })
    }

    const fn range(self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

/// `1500` as `1.5k`, and so on; what is small keeps two digits that say something.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v < 1e-9 => return "0".to_owned(),
        v if v < 1.0 => (2.0 - v.log10().floor() - 1.0).clamp(2.0, 9.0) as usize,
        _ => 2,
    };
    let text = format!("{scaled:.digits$}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(lines: Vec<PlotLine>) -> String {
        Figure::new("a <title>", "sim", ["bytes", "us"], lines).svg().unwrap()
    }

    #[test]
    fn a_plot_carries_its_title_source_axes_and_legend() {
        for points in [vec![(1.0, 2.0), (1024.0, 30.0)], vec![(1.0, 2.0), (3.0, 900.0)]] {
            let bars = vec![(1.0, 1.0, 5.0)];
            let lines = vec![PlotLine::new("a <line>", points).bars(bars)];
            let svg = Figure::new("t", "sim", ["bytes", "us"], lines).bars("median to longest").svg().unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            for text in ["source sim: simulated", "bytes", "us", "a &lt;line&gt;", "Bars: median to longest"] {
                assert!(svg.contains(text), "{text}");
            }
        }
    }

    #[test]
    fn a_plot_without_points_or_with_one_is_drawn() {
        assert!(figure(vec![]).contains("nothing was measured"));
        assert!(figure(vec![PlotLine::new("a", vec![(f64::NAN, 1.0)])]).contains("nothing was measured"));
        for point in [(4.0, 4.0), (4.0, 0.0), (0.0, 0.0), (-1.0, -2.0)] {
            assert!(!figure(vec![PlotLine::new("a", vec![point])]).contains("nothing was measured"));
        }
    }

    #[test]
    fn an_axis_is_logarithmic_only_where_a_linear_one_would_hide_the_small() {
        let axis = |values: &[f64]| Axis::of(values.iter().copied()).unwrap();
        assert!(axis(&[1.0, 60.0]).log && axis(&[1e-3, 1.0]).log);
        assert!(!axis(&[1.0, 20.0]).log && !axis(&[0.0, 1e6]).log && !axis(&[-1.0, 1e6]).log);
        assert_eq!(axis(&[2.0, 20.0]).low, 0.0);
        assert!(axis(&[13.0, 15.0]).low > 12.0, "what is close together is not squeezed");
        let wide = axis(&[-5.0, -1.0]);
        assert!(wide.low < -5.0 && wide.high > 0.0);
    }

    #[test]
    fn twelve_lines_differ_without_their_colours_and_the_legend_hides_no_point() {
        let line = |at: usize| PlotLine::new(format!("line {at}"), vec![(1.0, at as f64 + 1.0), (2.0, 5.0)]);
        let looks: std::collections::BTreeSet<_> =
            (0..12).map(|at| (Style::of(at).dash, Style::of(at).shape)).collect();
        assert_eq!(looks.len(), 12);
        let lines: Vec<_> = (0..12).map(line).collect();
        let svg = figure(lines.clone());
        let entries = legend(&lines);
        assert!(entries.iter().all(|entry| entry.left + SAMPLE + 7 * CHARACTER <= WIDTH));
        let height = HEIGHT + ROW * (entries[11].row + 2);
        assert!(svg.contains(&format!("height=\"{height}\"")), "{}", &svg[..120]);
    }

    #[test]
    fn labels_of_axes_keep_what_tells_them_apart() {
        let cases = [
            (0.0, "0"),
            (0.001, "0.001"),
            (0.25, "0.25"),
            (1.0, "1"),
            (1500.0, "1.5k"),
            (2e6, "2M"),
            (100.0, "100"),
            (0.0125, "0.013"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!(short(-0.5), "-0.5");
    }
}
