//! A plot of the rows of a results file, drawn when somebody wants to see it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use csv::{ReaderBuilder, StringRecord};
use flate2::bufread::MultiGzDecoder;

use crate::Error;
use headway_measure::plot::{Figure, PlotLine};

/// First bytes of a compressed file (RFC 1952).
const MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The column that says where figures come from: `sim`, `emu` or `cuda`.
const SOURCE: &str = "source";

/// What is drawn of a table with a header line.
#[derive(Clone, Debug, Default)]
pub struct RowsPlot {
    /// The table (CSV), compressed or not.
    pub rows: PathBuf,
    /// The column along the horizontal axis.
    pub x: String,
    /// The columns along the vertical axis.
    pub y: Vec<String>,
    /// Columns whose values tell lines apart.
    pub by: Vec<String>,
    /// Columns with the one value that rows must have.
    pub only: Vec<(String, String)>,
}

/// The plot of a table. Rows without a number in one of the two columns are left out, and those with more or fewer fields than the
/// header.
///
/// # Errors
/// [`headway::ErrorKind::Io`]; [`Error::Rows`] for a column or value that the table does not have, or if nothing is left.
pub fn of_rows(plot: &RowsPlot) -> Result<Figure, Error> {
    let read_error = |source| headway::Failure::Read { path: plot.rows.clone(), source };
    let wrong = |what: String| Error::Rows { path: plot.rows.clone(), what };
    let mut table = ReaderBuilder::new().flexible(true).from_reader(open(&plot.rows).map_err(read_error)?);
    let header = table.headers().map_err(|error| wrong(error.to_string()))?.clone();
    let column = |name: &String| {
        let at = header.iter().position(|known| known == name).or_else(|| {
            // Runs before December 2026 called the method of a copy `way`.
            let earlier = if name == "method" { "way" } else { return None };
            header.iter().position(|known| known == earlier)
        });
        at.ok_or_else(|| wrong(format!("there is no column `{name}`; there are {}", list(header.iter()))))
    };
    let columns = |names: &[String]| names.iter().map(column).collect::<Result<Vec<_>, _>>();
    let (x, y, by) = (column(&plot.x)?, columns(&plot.y)?, columns(&plot.by)?);
    let only: Vec<(usize, &String)> =
        plot.only.iter().map(|(name, value)| Ok((column(name)?, value))).collect::<Result<_, Error>>()?;
    let source = header.iter().position(|name| name == SOURCE);
    let mut all: Vec<StringRecord> =
        table.records().collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    all.retain(|row| row.len() == header.len());
    for (at, value) in &only {
        let known: BTreeSet<&str> = all.iter().filter_map(|row| row.get(*at)).collect();
        if !known.contains(value.as_str()) {
            return Err(wrong(format!("`{}` is never `{value}`; it is {}", &header[*at], list(known))));
        }
    }
    let rows: Vec<&StringRecord> =
        all.iter().filter(|row| only.iter().all(|(at, value)| row.get(*at) == Some(value))).collect();
    let mut lines: Vec<PlotLine> = Vec::new();
    for (row, y) in rows.iter().flat_map(|row| y.iter().map(move |y| (row, *y))) {
        let Some(point) = number(row, x).zip(number(row, y)) else { continue };
        let mut words: Vec<&str> = by.iter().filter_map(|at| row.get(*at)).filter(|word| !word.is_empty()).collect();
        if plot.y.len() > 1 || words.is_empty() {
            words.push(&header[y]);
        }
        let name = words.join(", ");
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(PlotLine::new(name, vec![point])),
        }
    }
    if lines.is_empty() {
        return Err(wrong(format!(
            "no row has numbers in `{}` and {}",
            plot.x,
            list(plot.y.iter().map(String::as_str))
        )));
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let sources: BTreeSet<&str> = rows.iter().filter_map(|row| row.get(source?)).collect();
    let experiment = beside(&plot.rows);
    let source = match (sources.is_empty(), &experiment) {
        (false, _) => Vec::from_iter(sources).join(", "),
        (true, Some(of)) => format!("{}: {}, commit {}", of.source, of.machine, of.commit),
        (true, None) => "not said".to_owned(),
    };
    let mut what: Vec<String> = plot.only.iter().map(|(name, value)| format!("{name} {value}")).collect();
    what.splice(0..0, experiment.map(|of| of.experiment));
    let title = if what.is_empty() { plot.rows.display().to_string() } else { what.join(", ") };
    Ok(Figure::new(title, source, [plot.x.as_str(), &plot.y.join(", ")], lines))
}

/// The experiment that a table is of.
#[derive(serde::Deserialize)]
struct Experiment {
    experiment: String,
    source: String,
    machine: String,
    commit: String,
}

/// The experiment whose `outcome.json` lies beside the table.
fn beside(rows: &Path) -> Option<Experiment> {
    serde_json::from_slice(&std::fs::read(rows.with_file_name("outcome.json")).ok()?).ok()
}

fn open(path: &Path) -> std::io::Result<Box<dyn Read>> {
    let mut file = BufReader::new(File::open(path)?);
    let packed = file.fill_buf()?.starts_with(&MAGIC);
    Ok(if packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) })
}

fn number(row: &StringRecord, at: usize) -> Option<f64> {
    row.get(at)?.parse().ok().filter(|number: &f64| number.is_finite())
}

fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    const TABLE: &str = "source,method,direction,bytes,median_ns,p99_ns\n\
        cuda,dma,h2d,64,5,9\ncuda,dma,h2d,16,3,\ncuda,staged,h2d,64,7,8\ncuda,dma,d2h,64,6,6\n";

    fn plot(rows: &Path, y: &[&str], by: &[&str], only: &[(&str, &str)]) -> Result<Figure, Error> {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        let only = only.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        of_rows(&RowsPlot { rows: rows.to_owned(), x: "bytes".into(), y: words(y), by: words(by), only })
    }

    #[test]
    fn a_table_beside_its_outcome_says_which_experiment_it_is_of() {
        let folder = tempfile::tempdir().unwrap();
        let rows = folder.path().join("sweep.csv");
        fs::write(&rows, "nodes,h2d_ns\n1,2\n3,4\n").unwrap();
        let plot = RowsPlot { rows, x: "nodes".into(), y: vec!["h2d_ns".into()], ..RowsPlot::default() };
        assert_eq!(of_rows(&plot).unwrap().source, "not said");
        let outcome = r#"{"experiment": "cho-bfs", "source": "cuda", "machine": "H200", "commit": "abc", "rows": []}"#;
        fs::write(folder.path().join("outcome.json"), outcome).unwrap();
        let figure = of_rows(&plot).unwrap();
        assert_eq!((figure.title.as_str(), figure.source.as_str()), ("cho-bfs", "cuda: H200, commit abc"));
    }

    #[test]
    fn rows_become_lines_by_the_columns_that_tell_them_apart() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, packed) = (folder.path().join("rows.csv"), folder.path().join("rows.csv.gz"));
        fs::write(&plain, TABLE).unwrap();
        let mut encoder = GzEncoder::new(File::create(&packed).unwrap(), Compression::fast());
        encoder.write_all(TABLE.as_bytes()).unwrap();
        encoder.finish().unwrap();
        for rows in [&plain, &packed] {
            let figure = plot(rows, &["median_ns"], &["method"], &[("direction", "h2d")]).unwrap();
            assert_eq!((figure.source.as_str(), figure.title.as_str()), ("cuda", "direction h2d"));
            let lines: Vec<_> = figure.lines.iter().map(|line| (line.name.as_str(), line.points.clone())).collect();
            assert_eq!(lines, [("dma", vec![(16.0, 3.0), (64.0, 5.0)]), ("staged", vec![(64.0, 7.0)])]);
            assert!(figure.svg().unwrap().contains("source cuda"));
        }
        let both = plot(&plain, &["median_ns", "p99_ns"], &["method", "direction"], &[]).unwrap();
        let names: Vec<&str> = both.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names[..2], ["dma, h2d, median_ns", "dma, h2d, p99_ns"]);
        assert_eq!(both.lines[1].points, [(64.0, 9.0)], "an empty field is no point");
    }

    #[test]
    fn what_the_table_lacks_is_named_with_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let rows = folder.path().join("rows.csv");
        fs::write(&rows, TABLE).unwrap();
        let text = |plot: Result<Figure, Error>| plot.unwrap_err().to_string();
        assert!(text(plot(&rows, &["rate"], &[], &[])).contains("no column `rate`; there are `source`, `method`"));
        let never = text(plot(&rows, &["median_ns"], &[], &[("method", "kernel")]));
        assert!(never.contains("never `kernel`; it is `dma`, `staged`"), "{never}");
        assert!(text(plot(&rows, &["method"], &[], &[])).contains("no row has numbers"));
        fs::write(&rows, "bytes,median_ns\n1\n").unwrap();
        assert!(text(plot(&rows, &["median_ns"], &[], &[])).contains("rows.csv"));
        assert!(matches!(plot(&folder.path().join("none"), &["x"], &[], &[]), Err(Error::Headway(_))));
    }
}
