//! Line plots as SVG.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// One plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Above it; says where the figures come from (`sim`, `emu`, `cuda`).
    pub title: String,
    /// What is along the horizontal axis, with its unit.
    pub x: String,
    /// What is along the vertical axis, with its unit.
    pub y: String,
    /// Whether the vertical axis is logarithmic; the horizontal one always is.
    pub log_y: bool,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line of a [`Figure`].
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// In the legend.
    pub name: String,
    /// Points; those that are not above zero are left out on logarithmic axes.
    pub points: Vec<(f64, f64)>,
}

/// A plot that could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plot `{title}` cannot be drawn: {reason}")]
pub struct PlotError {
    /// The plot.
    pub title: String,
    /// Why.
    pub reason: String,
}

const SIZE: (u32, u32) = (900, 560);

impl Figure {
    /// Draws it; without any point, a frame that says so.
    ///
    /// # Errors
    /// [`PlotError`] when the library refuses.
    pub fn svg(&self) -> Result<String, PlotError> {
        let mut text = String::new();
        let failed = |reason: String| PlotError { title: self.title.clone(), reason };
        {
            let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            root.fill(&WHITE).map_err(|error| failed(error.to_string()))?;
            let lines = self.visible();
            let all = || lines.iter().flat_map(|line| &line.points);
            let Some(((left, right), (low, high))) = range(all().map(|p| p.0)).zip(range(all().map(|p| p.1))) else {
                let style = ("sans-serif", 18).into_font();
                root.draw(&Text::new(format!("{}: nothing was measured", self.title), (40, 40), style))
                    .map_err(|error| failed(error.to_string()))?;
                drop(root);
                return Ok(text);
            };
            let mut builder = ChartBuilder::on(&root);
            builder.caption(&self.title, ("sans-serif", 20)).margin(14).x_label_area_size(44).y_label_area_size(84);
            let x = (left..right * 1.0001).log_scale();
            let drawn = if self.log_y {
                let chart = builder.build_cartesian_2d(x, (low..high * 1.2).log_scale());
                chart.map_err(|e| e.to_string()).and_then(|mut chart| self.draw(&lines, &mut chart))
            } else {
                let y: RangedCoordf64 = (0.0..high * 1.08).into();
                let chart = builder.build_cartesian_2d(x, y);
                chart.map_err(|e| e.to_string()).and_then(|mut chart| self.draw(&lines, &mut chart))
            };
            drawn.map_err(failed)?;
            root.present().map_err(|error| failed(error.to_string()))?;
        }
        Ok(text)
    }

    /// The lines with the points that the axes can show.
    fn visible(&self) -> Vec<Line> {
        let shown = |(x, y): &(f64, f64)| *x > 0.0 && x.is_finite() && y.is_finite() && (*y > 0.0 || !self.log_y);
        let keep =
            |line: &Line| Line { name: line.name.clone(), points: line.points.iter().copied().filter(shown).collect() };
        self.lines.iter().map(keep).filter(|line| !line.points.is_empty()).collect()
    }

    fn draw<'a, X, Y>(
        &self,
        lines: &[Line],
        chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    ) -> Result<(), String>
    where
        X: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
    {
        let mesh = &mut chart.configure_mesh();
        mesh.x_desc(&self.x).y_desc(&self.y).x_label_formatter(&|value| short(*value));
        mesh.y_label_formatter(&|value| short(*value)).draw().map_err(|error| error.to_string())?;
        for (index, line) in lines.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let series = LineSeries::new(line.points.iter().copied(), color.stroke_width(2)).point_size(2);
            let drawn = chart.draw_series(series).map_err(|error| error.to_string())?;
            drawn
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], color.stroke_width(3)));
        }
        let labels = &mut chart.configure_series_labels();
        labels.border_style(BLACK.mix(0.4)).background_style(WHITE.mix(0.85)).position(SeriesLabelPosition::UpperLeft);
        labels.draw().map_err(|error| error.to_string())
    }
}

/// Least and largest, apart even if there is one value only.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    let high = if high > low { high } else { low.abs().mul_add(0.5, low) + f64::MIN_POSITIVE };
    low.is_finite().then_some((low, high))
}

/// `1500` as `1.5k`, and so on.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if scaled.fract().abs() < 0.005 { 0 } else { 2 };
    format!("{scaled:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(points: Vec<(f64, f64)>, log_y: bool) -> Figure {
        let lines = vec![Line { name: "a <line>".into(), points }];
        Figure { title: "t (sim)".into(), x: "bytes".into(), y: "us".into(), log_y, lines }
    }

    #[test]
    fn a_plot_carries_its_title_axes_and_legend() {
        for log_y in [false, true] {
            let svg = figure(vec![(1.0, 2.0), (1024.0, 30.0)], log_y).svg().unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            for text in ["t (sim)", "bytes", "us", "a &lt;line&gt;"] {
                assert!(svg.contains(text), "{text}");
            }
        }
    }

    #[test]
    fn a_plot_without_points_or_with_one_is_drawn() {
        assert!(figure(vec![], true).svg().unwrap().contains("nothing was measured"));
        assert!(figure(vec![(0.0, 1.0)], true).svg().unwrap().contains("nothing was measured"));
        figure(vec![(4.0, 4.0)], true).svg().unwrap();
        figure(vec![(4.0, 0.0)], false).svg().unwrap();
    }
}
