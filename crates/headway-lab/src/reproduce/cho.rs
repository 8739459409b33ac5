//! Cho, Kang, Yoon 2018 (multithreaded double queuing): breadth-first search and Pathfinder with the driver's copies, with
//! the paper's queues, and with ours.

mod fidelity;
mod programs;
mod queues;

use headway_core::models::transfer::{Direction, Method};
use headway_core::units::Nanos;
use headway_runtime::copy::How;

use self::fidelity::DoubleQueue;
use self::programs::{Costs, Graph, Grid};
pub(super) use self::queues::queues;
use super::bench::{Bench, same};
use super::{Outcome, Row, Setting, Table, Verdict};
use crate::Error;
use crate::plot::{Figure, Line};

const MIB: u64 = 1 << 20;
/// Threads of the paper's queues in the two programs.
const THREADS: usize = 4;

/// How the large copies of a program are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    /// The driver's own call.
    Pageable,
    /// The queues as the paper describes them.
    Fidelity,
    /// `copy`, by the profile.
    Headway,
}

const MODES: [(Mode, &str); 3] =
    [(Mode::Pageable, "pageable"), (Mode::Fidelity, "fidelity"), (Mode::Headway, "headway")];

/// Copies for the programs in one mode, timed.
struct Copies<'a> {
    bench: &'a Bench,
    queue: &'a DoubleQueue,
    mode: Mode,
}

impl Copies<'_> {
    fn copy(&self, direction: Direction, there: &headway_device::Buffer, host: &mut [u8]) -> Result<Nanos, Error> {
        let how = match self.mode {
            // Flags of one byte are not staged: the paper speaks of copies above 1 MB.
            Mode::Fidelity if host.len() as u64 >= MIB => return self.queue.copy(direction, there, host),
            Mode::Pageable | Mode::Fidelity => How::By(Method::Pageable),
            Mode::Headway => How::Auto,
        };
        self.bench.time(direction, there, host, how)
    }
}

fn outcome(experiment: &'static str, bench: &Bench, setting: &Setting) -> Outcome {
    Outcome { notes: vec![
            "Paper: 2 Xeon Silver 4110, Titan V, CUDA 9.0, Rodinia 3.1. The programs here are our own with the same inputs, \
             copies and kernels; results are compared with the CPU's. Gain: time of the driver's copies over ours."
                .into(),
        ], ..Outcome::new(experiment, bench.source, bench.machine.clone(), setting.seed) }
}

/// Runs `once` in every mode, `repeats` times; the costs with the median sum of copies.
fn in_every_mode(
    bench: &Bench,
    queue: &DoubleQueue,
    repeats: usize,
    mut once: impl FnMut(&Copies<'_>) -> Result<Costs, Error>,
) -> Result<Vec<Costs>, Error> {
    let mut all = Vec::new();
    for (mode, _) in MODES {
        let copies = Copies { bench, queue, mode };
        let mut costs: Vec<Costs> = (0..repeats).map(|_| once(&copies)).collect::<Result<_, _>>()?;
        costs.sort_by_key(Costs::copies);
        all.push(costs.swap_remove(costs.len() / 2));
    }
    Ok(all)
}

/// Rows of a sweep: size in, and the costs in every mode.
type Sweep = Vec<(u64, Vec<Costs>)>;

fn gain(costs: &[Costs], part: impl Fn(&Costs) -> Nanos, mode: usize) -> f64 {
    part(&costs[0]).0 as f64 / part(&costs[mode]).0.max(1) as f64
}

/// First size from which the gain is above 1.5 times for good.
fn threshold(sweep: &Sweep, part: impl Fn(&Costs) -> Nanos + Copy, mode: usize) -> Option<u64> {
    let from = sweep.iter().rposition(|(_, costs)| gain(costs, part, mode) <= 1.5).map_or(0, |at| at + 1);
    sweep.get(from).map(|(size, _)| *size)
}

/// What the paper says of one direction.
struct Claim {
    text: &'static str,
    /// From this size on.
    from: u64,
    /// The gain is about this. Where the paper can be read in two ways, the lower figure.
    gain: f64,
}

/// The mean gain of a mode over all sizes from `from` on; `None` if no size of the sweep is that large.
fn mean_gain(sweep: &Sweep, part: impl Fn(&Costs) -> Nanos + Copy, mode: usize, from: u64) -> Option<f64> {
    let gains: Vec<f64> =
        sweep.iter().filter(|(size, _)| *size >= from).map(|(_, costs)| gain(costs, part, mode)).collect();
    (!gains.is_empty()).then(|| gains.iter().sum::<f64>() / gains.len() as f64)
}

/// The paper's queues against the paper's figure, and ours against the paper's queues.
fn judged(sweep: &Sweep, (direction, part): (&str, fn(&Costs) -> Nanos), x: &str, claim: &Claim) -> [Row; 2] {
    let [paper_s, ours] = [1, 2].map(|mode| mean_gain(sweep, part, mode, claim.from));
    let gain_text = |mode: usize, mean: Option<f64>| {
        let most = sweep.iter().map(|(_, costs)| gain(costs, part, mode)).fold(0.0, f64::max);
        let from = threshold(sweep, part, mode).map_or_else(|| "never".to_owned(), |size| format!("from {x} {size}"));
        let mean =
            mean.map_or_else(|| "no size is that large".to_owned(), |mean| format!("{mean:.2} times on average"));
        format!("from {x} {} on: {mean}; above 1.5 times {from}, at most {most:.2} times", claim.from)
    };
    [
        Row {
            what: format!("{direction} gain of the paper's queues"),
            paper: claim.text.into(),
            ours: format!("with N and B of our choice; {}", gain_text(1, paper_s)),
            verdict: paper_s.map_or(Verdict::NotComparable, |mean| Verdict::fitted(mean >= claim.gain)),
        },
        Row {
            what: format!("{direction} gain of `copy` of ours, at least that of the paper's queues"),
            paper: "not treated".into(),
            ours: gain_text(2, ours),
            verdict: ours.zip(paper_s).map_or(Verdict::NotComparable, |(ours, paper_s)| Verdict::own(ours >= paper_s)),
        },
    ]
}

/// Which of the two forms is judged, under which name, and by which label.
type Judged = (usize, &'static str, fn(bool) -> Verdict);

fn finished(mut outcome: Outcome, sweep: &Sweep, x: &str, claims: [Claim; 2]) -> Outcome {
    type Part = (&'static str, fn(&Costs) -> Nanos);
    let parts: [Part; 2] = [("h2d", |costs| costs.h2d), ("d2h", |costs| costs.d2h)];
    for (part, claim) in parts.into_iter().zip(&claims) {
        outcome.rows.extend(judged(sweep, part, x, claim));
    }
    let ratio = |costs: &Costs| costs.copies().0 as f64 / costs.kernels.0.max(1) as f64;
    let shares = |mode: usize| sweep.iter().map(move |(_, costs)| ratio(&costs[mode]) / ratio(&costs[0]).max(1e-9));
    let labels: [Judged; 2] = [(1, "the paper's queues", Verdict::fitted), (2, "`copy` of ours", Verdict::own)];
    for (mode, name, label) in labels {
        let least = shares(mode).fold(f64::MAX, f64::min);
        outcome.rows.push(Row {
            what: format!("transfer/kernel ratio with {name}"),
            paper: "falls by more than half above a certain size (not stated)".into(),
            ours: format!("falls at best to {:.0} % of that with the driver's copies", 100.0 * least),
            verdict: label(least < 0.5),
        });
    }
    outcome.tables.push(table(sweep, x));
    for (direction, part) in parts {
        let line = |(at, (_, name)): (usize, &(Mode, &str))| {
            Line::new(*name, sweep.iter().map(|(size, costs)| (*size as f64, gain(costs, part, at))).collect())
        };
        let lines = MODES.iter().enumerate().skip(1).map(line).collect();
        let title = format!("{direction} gain over the driver");
        let figure = Figure::new(title, outcome.source, [x, "times as fast"], lines);
        outcome.figures.push((format!("gain-{direction}"), figure));
    }
    let line = |(at, (_, name)): (usize, &(Mode, &str))| {
        Line::new(*name, sweep.iter().map(|(size, costs)| (*size as f64, ratio(&costs[at]))).collect())
    };
    let lines = MODES.iter().enumerate().map(line).collect();
    let figure = Figure::new("transfer time over kernel time", outcome.source, [x, "ratio"], lines);
    outcome.figures.push(("ratio".into(), figure));
    outcome
}

fn table(sweep: &Sweep, x: &str) -> Table {
    let columns = vec![x_column(x), "mode", "h2d_ns", "d2h_ns", "flags_ns", "kernels_ns", "h2d_bytes", "d2h_bytes"];
    let mut lines = Vec::new();
    for (size, costs) in sweep {
        for ((_, name), c) in MODES.iter().zip(costs) {
            let figures = [c.h2d.0, c.d2h.0, c.flags.0, c.kernels.0, c.h2d_bytes, c.d2h_bytes];
            let figures = figures.map(|figure| figure.to_string());
            lines.push([size.to_string(), (*name).to_owned()].into_iter().chain(figures).collect());
        }
    }
    Table { name: "sweep".into(), columns, lines }
}

fn x_column(x: &str) -> &'static str {
    if x == "nodes" { "nodes" } else { "columns" }
}

/// Breadth-first search over graphs of 1k to 16M nodes.
pub(super) fn bfs(setting: &Setting) -> Result<Outcome, Error> {
    let bench = Bench::open(setting)?;
    let (from, to, repeats) = if setting.quick { (10, 12, 1) } else { (10, 24, 3) };
    let queue = DoubleQueue::new(bench.gpu()?, THREADS, (if setting.quick { 4096 } else { MIB }) as usize)?;
    let mut sweep = Vec::new();
    for exponent in from..=to {
        let mut graph = Graph::random(setting.seed, 1 << exponent);
        let expected = graph.distances();
        let costs = in_every_mode(&bench, &queue, repeats, |copies| {
            let (costs, distances) = programs::bfs(copies, &mut graph)?;
            same("bfs", &distances, &expected)?;
            Ok(costs)
        })?;
        sweep.push((1 << exponent, costs));
        setting.keep("cho-bfs", bench.source, &bench.machine, vec![table(&sweep, "nodes")]);
    }
    let mut outcome = outcome("cho-bfs", &bench, setting);
    outcome.notes.push(
        "A node draws 2 to 4 edges, each entered at both ends: arrays of 8 N, 4 E, N, N, N, 4 N bytes in, 4 N out; a 1-byte flag \
         each way for every level. Edges pass 1 MiB between 32k and 64k nodes, the array of nodes at 128k; costs reach it at 256k."
            .into(),
    );
    Ok(finished(
        outcome,
        &sweep,
        "nodes",
        [
            Claim {
                text: "gain jumps at 128K nodes, about 270 % above: 2.7 times or + 270 %",
                from: 128 << 10,
                gain: 2.7,
            },
            Claim { text: "gain jumps at 1M nodes, unsteady: about twice or more", from: 1 << 20, gain: 2.0 },
        ],
    ))
}

/// Pathfinder over grids of 2048 rows.
pub(super) fn pathfinder(setting: &Setting) -> Result<Outcome, Error> {
    let bench = Bench::open(setting)?;
    let (rows, columns) =
        if setting.quick { (64, vec![128, 1024]) } else { (2048, (7..=19).map(|e| 1 << e).collect()) };
    let queue = DoubleQueue::new(bench.gpu()?, THREADS, (if setting.quick { 4096 } else { MIB }) as usize)?;
    let mut sweep = Vec::new();
    for width in columns {
        let mut grid = Grid::random(setting.seed, rows, width);
        let expected = grid.cheapest();
        let repeats = if grid.bytes() > 1 << 30 { 1 } else { 3 };
        let costs = in_every_mode(&bench, &queue, repeats, |copies| {
            let (costs, best) = programs::pathfinder(copies, &mut grid)?;
            same("pathfinder", &best, &expected)?;
            Ok(costs)
        })?;
        sweep.push((width as u64, costs));
        setting.keep("cho-pathfinder", bench.source, &bench.machine, vec![table(&sweep, "columns")]);
    }
    let mut outcome = outcome("cho-pathfinder", &bench, setting);
    outcome.notes.push(format!(
        "{rows} rows; the first row and the rest in two copies of 4 W and 4 (R W - W) bytes in, 4 W out."
    ));
    Ok(finished(
        outcome,
        &sweep,
        "columns",
        // 2048 rows of 128 columns are 1 MiB, of 256K columns 2 GiB.
        [
            Claim { text: "gain above 1 MB, about 270 %: 2.7 times or + 270 %", from: 128, gain: 2.7 },
            Claim { text: "gain above 2 GB of input (1 MiB out): about twice or more", from: 256 << 10, gain: 2.0 },
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sweep in which the driver takes 270 us, the paper's queues `paper_s` us, and ours `ours` us.
    fn sweep(paper_s: u64, ours: u64) -> Sweep {
        let costs = |us: u64| Costs { h2d: Nanos(us * 1000), ..Costs::default() };
        [64, 128, 256].map(|size| (size, vec![costs(270), costs(paper_s), costs(ours)])).into()
    }

    #[test]
    fn the_paper_s_queues_are_judged_by_its_figure_and_ours_by_the_paper_s_queues() {
        let verdicts = |sweep: &Sweep, from| {
            let claim = Claim { text: "2.7 times", from, gain: 2.7 };
            judged(sweep, ("h2d", |costs| costs.h2d), "columns", &claim).map(|row| row.verdict)
        };
        assert_eq!(verdicts(&sweep(100, 90), 128), [Verdict::Consistent, Verdict::OwnCheck]);
        assert_eq!(verdicts(&sweep(101, 90), 128), [Verdict::NotReproduced, Verdict::OwnCheck]);
        assert_eq!(verdicts(&sweep(90, 100), 128), [Verdict::Consistent, Verdict::NotReproduced]);
        assert_eq!(verdicts(&sweep(90, 100), 512), [Verdict::NotComparable; 2]);
    }
}
