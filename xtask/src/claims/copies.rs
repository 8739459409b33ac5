//! Claims about copies, from the rows of `headway bench transfers`.

use super::runs::{Row, Run};
use super::{Better, Claim, Line, Made, Measure};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// A share of pinned memory that staged copies are to reach.
const OF_PINNED: f64 = 0.94;

const fn more(name: &'static str, target: Option<f64>) -> Measure {
    Measure { name, better: Better::More, target, digits: 2 }
}

const fn less(name: &'static str, target: Option<f64>) -> Measure {
    Measure { name, better: Better::Less, target, digits: 2 }
}

const fn cpus() -> Measure {
    Measure { name: "CPUs busy", better: Better::Less, target: None, digits: 1 }
}

pub(super) fn claims(runs: &[Run]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (direction, word, times) in [("h2d", "into", 4.5), ("d2h", "out of", 2.5)] {
        for (bytes, size) in [(GIB, "1 GiB"), (256 * MIB, "256 MiB")] {
            claims.push(staged(runs, direction, word, bytes, size, (bytes == GIB).then_some(times)));
        }
    }
    claims.push(fresh(runs));
    claims.push(small(runs, "alone", "idle", [Some(3.5), None]));
    claims.push(small(runs, "bulk-same", "beside bulk copies", [Some(5.0), Some(20.0)]));
    claims.push(chosen(runs));
    for (gpus, direction, word) in [(2, "h2d", "into"), (2, "d2h", "out of"), (4, "h2d", "into"), (4, "d2h", "out of")]
    {
        claims.push(concurrent(runs, gpus, direction, word));
    }
    claims
}

const fn made(gpus: usize) -> Option<Made> {
    Some(Made { piece: "transfers", gpus })
}

/// What a row must have, as pairs of column and text.
type Wanted<'a> = &'a [(&'a str, &'a str)];

fn find<'a>(run: &'a Run, wanted: Wanted<'_>) -> Option<&'a Row> {
    run.rows.iter().find(|row| fits(row, wanted))
}

fn fits(row: &Row, wanted: Wanted<'_>) -> bool {
    row.text("source") == "cuda" && wanted.iter().all(|(column, text)| row.text(column) == *text)
}

fn rate(row: &Row) -> Option<f64> {
    row.number("bytes_per_s")
}

fn quotient(one: Option<&Row>, other: Option<&Row>) -> Option<f64> {
    Some(rate(one?)? / rate(other?)?)
}

/// CPU time of the process over elapsed time; rows of early runs have none for some methods.
fn busy(row: &Row) -> Option<f64> {
    Some(row.number("cpu_ns")? / row.number("median_ns")?)
}

fn line(run: &Run, row: &Row, figures: Vec<Option<f64>>) -> Line {
    let samples = row.text("n").to_owned();
    Line { run: run.name.clone(), gpu: run.gpu, gpus: run.gpus, commit: run.commit.clone(), samples, figures }
}

fn staged(runs: &[Run], direction: &str, word: &str, bytes: u64, size: &str, times: Option<f64>) -> Claim {
    let bytes = bytes.to_string();
    let of = |run: &Run| {
        let method = |method, memory| {
            let wanted = [
                ("part", "methods"),
                ("gpus", "1"),
                ("method", method),
                ("direction", direction),
                ("memory", memory),
                ("load", "alone"),
                ("bytes", &bytes),
            ];
            find(run, &wanted)
        };
        let staged = method("staged", "warm")?;
        let of_pinned = quotient(Some(staged), method("dma", "pinned"));
        let of_driver = quotient(Some(staged), method("pageable", "warm"));
        Some(line(run, staged, vec![Some(rate(staged)? / 1e9), of_driver, of_pinned, busy(staged)]))
    };
    Claim {
        title: format!("{size} of ordinary memory {word} one GPU"),
        about: format!(
            "Method `staged`, memory whose pages are present. Times the driver's call: the same copy by `cuMemcpy`, in the same run. \
             Of pinned memory: the rate against a copy of {size} of pinned memory, in the same run. CPUs busy: CPU time of the \
             process over elapsed time, while the copy lasts."
        ),
        measures: vec![
            more("GB/s", None),
            more("times the driver's call", times),
            Measure { digits: 3, ..more("of pinned memory", Some(OF_PINNED)) },
            cpus(),
        ],
        lines: runs.iter().filter_map(of).collect(),
        price: "",
        made: made(1),
    }
}

fn fresh(runs: &[Run]) -> Claim {
    let bytes = GIB.to_string();
    let of = |run: &Run| {
        let method = |method| {
            let wanted = [
                ("part", "methods"),
                ("gpus", "1"),
                ("method", method),
                ("direction", "d2h"),
                ("memory", "fresh"),
                ("load", "alone"),
                ("bytes", &bytes),
            ];
            find(run, &wanted)
        };
        let staged = method("staged")?;
        let figures = vec![Some(rate(staged)? / 1e9), quotient(Some(staged), method("pageable")), busy(staged)];
        Some(line(run, staged, figures))
    };
    Claim {
        title: "1 GiB out of one GPU into fresh pages".to_owned(),
        about: "Method `staged` into memory whose pages appear during the copy, as those of a new tensor do. The driver's call is what \
                `.cpu()` of PyTorch makes."
            .to_owned(),
        measures: vec![more("GB/s", None), more("times the driver's call", Some(5.0)), cpus()],
        lines: runs.iter().filter_map(of).collect(),
        price: "",
        made: made(1),
    }
}

fn small(runs: &[Run], load: &str, word: &str, [median, longest]: [Option<f64>; 2]) -> Claim {
    let of = |run: &Run| {
        let wanted =
            [("part", "resident"), ("direction", "d2h"), ("memory", "pinned"), ("load", load), ("bytes", "4096")];
        let row = run.rows.iter().find(|row| fits(row, &wanted) && row.text("method").starts_with("resident"))?;
        let driver = run.rows.iter().find(|row| fits(row, &wanted) && row.text("method") == "dma");
        let us = |row: &Row, column| Some(row.number(column)? / 1e3);
        // The longest of fewer copies says less.
        let longest = if row.number("n")? >= 10_000.0 { us(row, "max_ns") } else { None };
        let figures =
            vec![us(row, "median_ns"), us(row, "p99_ns"), longest, driver.and_then(|row| us(row, "median_ns"))];
        Some(line(run, row, figures))
    };
    let mut claim = Claim {
        title: format!("4 KiB out of one GPU, {word}"),
        about: "Method `resident`, by the first copier that the run has. A kernel stays on the GPU for it. The longest is of 10,000 copies \
                or more; runs with fewer have none. The driver's copy: the median of `dma` in the same situation; its copies queue \
                behind bulk ones."
            .to_owned(),
        measures: vec![
            less("median, us", median),
            less("p99, us", None),
            less("longest, us", longest),
            less("the driver's copy, us", None),
        ],
        lines: runs.iter().filter_map(of).collect(),
        price: "a kernel stays on the GPU",
        made: made(1),
    };
    if load == "alone" {
        claim.about = claim.about.replace("; its copies queue behind bulk ones", "");
    }
    claim
}

/// From the pages: only the program itself knows which points were within their spread.
fn chosen(runs: &[Run]) -> Claim {
    let of = |run: &Run| {
        let (before, _) = run.page.split_once(" points behind")?;
        let mut words = before.rsplit(' ');
        let (points, behind) = (words.next()?.parse::<f64>().ok()?, words.nth(1)?.parse::<f64>().ok()?);
        Some(Line {
            run: run.name.clone(),
            gpu: run.gpu,
            gpus: run.gpus,
            commit: run.commit.clone(),
            samples: format!("{points} points"),
            figures: vec![Some(behind), Some(behind / points * 100.0)],
        })
    };
    Claim {
        title: "`copy` against the best method".to_owned(),
        about: "A point is a size, direction and kind of memory. `copy` chooses a method by the machine file. It is behind where it takes \
                more than 3 % and more than 0.3 us longer than the best single way in the same run."
            .to_owned(),
        measures: vec![
            Measure { digits: 0, ..less("points behind", Some(0.0)) },
            Measure { digits: 1, ..less("% of the points", None) },
        ],
        lines: runs.iter().filter(|run| !run.rows.is_empty()).filter_map(of).collect(),
        price: "",
        made: made(1),
    }
}

fn concurrent(runs: &[Run], gpus: usize, direction: &str, word: &str) -> Claim {
    let count = gpus.to_string();
    let of = |run: &Run| {
        let of_method = |method, memory| {
            let wanted = [
                ("part", "together"),
                ("gpus", &count),
                ("method", method),
                ("direction", direction),
                ("memory", memory),
            ];
            let rows = run.rows.iter().filter(move |row| fits(row, &wanted));
            rows.max_by(|a, b| a.number("bytes").unwrap_or(0.0).total_cmp(&b.number("bytes").unwrap_or(0.0)))
        };
        let ours = of_method("auto", "warm")?;
        let of_pinned = quotient(Some(ours), of_method("dma", "pinned"));
        Some(line(run, ours, vec![Some(rate(ours)? / 1e9), of_pinned, busy(ours)]))
    };
    let four = match direction {
        "h2d" => 155.0,
        _ => 165.0,
    };
    let (rate, of_pinned) = if gpus == 2 { (None, Some(OF_PINNED)) } else { (Some(four), None) };
    Claim {
        title: format!("Ordinary memory {word} {} GPUs at once", if gpus == 2 { "two" } else { "four" }),
        about: "`copy` on every GPU at the same time, the largest size of the run, sum over the GPUs. Of pinned memory: against copies of \
                pinned memory on the same GPUs at once, in the same run."
            .to_owned(),
        measures: vec![
            more("GB/s", rate),
            Measure { digits: 3, ..more("of pinned memory", of_pinned) },
            cpus(),
        ],
        lines: runs.iter().filter_map(of).collect(),
        price: "",
        made: if gpus == 2 { made(2) } else { None },
    }
}
