//! Raw figures as tables: what a row is of, and beside each column's name what is in it.

use headway_core::units::{Bytes, Nanos};
use headway_measure::sample::SampleFigures;

use super::bench::Samples;

/// Raw figures: a header and lines of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawFigures {
    /// Name of the file, without its ending.
    pub name: String,
    /// Names of the columns, units last.
    pub columns: Vec<&'static str>,
    pub lines: Vec<Vec<String>>,
}

impl RawFigures {
    /// The table in comma-separated values; cells with commas or quotes are quoted.
    #[must_use]
    pub fn csv(&self) -> String {
        self.columns.join(",") + "\n" + &self.csv_lines()
    }

    /// The lines of [`RawFigures::csv`], without the names of the columns.
    pub(super) fn csv_lines(&self) -> String {
        let quoted = |cell: &str| {
            if cell.contains([',', '"', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
        };
        let mut text = String::new();
        for line in &self.lines {
            text.push_str(&line.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(","));
            text.push('\n');
        }
        text
    }

    /// Puts the lines of a table with the same columns behind these. A table without columns becomes the other one.
    pub(super) fn add(&mut self, more: Self) {
        if self.columns.is_empty() {
            *self = more;
        } else {
            assert_eq!(self.columns, more.columns, "lines of one table have the same columns");
            self.lines.extend(more.lines);
        }
    }
}

/// What can stand in a cell: times in nanoseconds, sizes in bytes, nothing where there is no figure.
pub(in crate::reproduce) trait RawCell {
    fn cell(&self) -> String;
}

macro_rules! cells_as_displayed {
    ($($type:ty),*) => { $(impl RawCell for $type {
        fn cell(&self) -> String {
            self.to_string()
        }
    })* };
}
cells_as_displayed!(u32, u64, usize, str, String);

impl RawCell for Nanos {
    fn cell(&self) -> String {
        self.0.to_string()
    }
}

impl RawCell for Bytes {
    fn cell(&self) -> String {
        self.0.to_string()
    }
}

impl<T: RawCell + ?Sized> RawCell for &T {
    fn cell(&self) -> String {
        (*self).cell()
    }
}

impl<T: RawCell> RawCell for Option<T> {
    fn cell(&self) -> String {
        self.as_ref().map_or_else(String::new, RawCell::cell)
    }
}

/// Columns that several tables end with.
pub(in crate::reproduce) trait LastColumns {
    const COLUMNS: &'static [&'static str];

    fn cells(&self) -> Vec<String>;
}

impl LastColumns for Samples {
    const COLUMNS: &'static [&'static str] = &["n", "first_ns", "median_ns", "p99_ns", "max_ns"];

    fn cells(&self) -> Vec<String> {
        let SampleFigures { n, median, max, .. } = self.figures;
        vec![n.cell(), self.first.cell(), median.cell(), self.figures.p99_ns(), max.cell()]
    }
}

/// `raw_figures!("name", items, |item| Columns { name_of_a_column: cell, .. })`: a table with a line for each item. The closure
/// may begin with `let`; `..Type(value)` stands for the columns of a [`LastColumns`].
macro_rules! raw_figures {
    ($name:expr, $items:expr, |$item:pat_param| Columns { $($columns:tt)* }) => {
        raw_figures!($name, $items, |$item| { Columns { $($columns)* } })
    };
    ($name:expr, $items:expr, |$item:pat_param| {
        $(let $known:pat = $value:expr;)*
        Columns { $($column:ident: $cell:expr),* $(, ..$Last:ident($last:expr))? $(,)? }
    }) => {{
        #[allow(unused_mut, reason = "most tables have no further columns")]
        let mut columns = vec![$(stringify!($column)),*];
        $(columns.extend(<$Last as $crate::reproduce::raw::LastColumns>::COLUMNS);)?
        let lines = $items.into_iter().map(|$item| {
            $(let $known = $value;)*
            #[allow(unused_mut, reason = "most tables have no further columns")]
            let mut line = vec![$($crate::reproduce::raw::RawCell::cell(&$cell)),*];
            $(
                use $crate::reproduce::raw::LastColumns as _;
                line.extend($last.cells());
            )?
            line
        });
        $crate::reproduce::raw::RawFigures { name: $name.into(), columns, lines: lines.collect() }
    }};
}
pub(in crate::reproduce) use raw_figures;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_commas_are_quoted() {
        let table = raw_figures!("t", ["say \"x\""], |words| Columns { c: "a,b", d: words });
        assert_eq!(table.csv(), "c,d\n\"a,b\",\"say \"\"x\"\"\"\n");
    }

    #[test]
    fn a_table_without_lines_has_its_columns() {
        let mut table = raw_figures!("t", [Some(Nanos(5)), None], |time| Columns { took_ns: time });
        table.add(raw_figures!("t", [None::<Nanos>; 0], |time| Columns { took_ns: time }));
        assert_eq!(table.csv(), "took_ns\n5\n\n");
    }
}
