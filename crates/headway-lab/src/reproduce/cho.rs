//! Cho and Hong 2018 (multithreaded double queuing): breadth-first search and Pathfinder with the driver's copies, with
//! the paper's queues, and with ours.

mod fidelity;
mod programs;
mod queues;

use headway_core::models::transfer::{Direction, Method};
use headway_core::units::Nanos;
use headway_measure::sample::SampleFigures;
use headway_runtime::copy::How;

use self::fidelity::DoubleQueue;
use self::programs::{Costs, Graph, Grid, Kind};
pub(super) use self::queues::queues;
use self::queues::{CLAIM, SLACK};
use super::bench::{Bench, Samples, same};
use super::{
    ExperimentResults, ExperimentSetting, PaperRow, PaperVerdict, RawFigures, Said, raw_figures, said, silent,
};
use crate::Error;
use headway_measure::plot::{Figure, PlotLine};

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

fn outcome(experiment: &'static str, bench: &Bench, setting: &ExperimentSetting) -> ExperimentResults {
    ExperimentResults { notes: vec![
            "Paper: 2 Xeon Silver 4110, Titan V, CUDA 9.0, Rodinia 3.1. The programs here are our own with the same inputs, \
             copies and kernels; results are compared with the CPU's. Gain: time of the driver's copies over ours."
                .into(),
        ], ..ExperimentResults::new(experiment, bench.source, bench.machine.clone(), setting.seed) }
}

/// The repetitions of one program in one mode.
struct Repeated(Vec<Costs>);

impl Repeated {
    fn times(&self, part: impl Fn(&Costs) -> Nanos) -> Vec<Nanos> {
        self.0.iter().map(part).collect()
    }

    fn median(&self, part: impl Fn(&Costs) -> Nanos) -> Nanos {
        SampleFigures::of(&self.times(part)).map_or(Nanos::ZERO, |figures| figures.median)
    }

    /// What the repetitions come to; `None` of none.
    fn samples(&self, part: impl Fn(&Costs) -> Nanos) -> Option<Samples> {
        let times = self.times(part);
        Some(Samples { first: *times.first()?, figures: SampleFigures::of(&times)? })
    }
}

/// Runs `once` in every mode by turns, `repeats` times.
fn in_every_mode(
    bench: &Bench,
    queue: &DoubleQueue,
    repeats: usize,
    mut once: impl FnMut(&Copies<'_>) -> Result<Costs, Error>,
) -> Result<Vec<Repeated>, Error> {
    let mut all: Vec<Repeated> = MODES.iter().map(|_| Repeated(Vec::new())).collect();
    for _ in 0..repeats {
        for ((mode, _), repeated) in MODES.into_iter().zip(&mut all) {
            repeated.0.push(once(&Copies { bench, queue, mode })?);
        }
    }
    Ok(all)
}

/// Rows of a sweep: size in, and the costs in every mode.
type Sweep = Vec<(u64, Vec<Repeated>)>;

/// What of a program's costs is looked at.
type CostPart = fn(&Costs) -> Nanos;

fn gain(costs: &[Repeated], part: CostPart, mode: usize) -> f64 {
    costs[0].median(part).0 as f64 / costs[mode].median(part).0.max(1) as f64
}

/// First size from which the gain is above 1.5 times for good.
fn threshold(sweep: &Sweep, part: CostPart, mode: usize) -> Option<u64> {
    let from = sweep.iter().rposition(|(_, costs)| gain(costs, part, mode) <= 1.5).map_or(0, |at| at + 1);
    sweep.get(from).map(|(size, _)| *size)
}

/// What the paper says of one direction.
struct Claim {
    said: Said,
    /// From this size on.
    from: u64,
}

/// The mean gain of a mode over all sizes from `from` on; `None` if no size of the sweep is that large.
fn mean_gain(sweep: &Sweep, part: CostPart, mode: usize, from: u64) -> Option<f64> {
    let gains: Vec<f64> =
        sweep.iter().filter(|(size, _)| *size >= from).map(|(_, costs)| gain(costs, part, mode)).collect();
    (!gains.is_empty()).then(|| gains.iter().sum::<f64>() / gains.len() as f64)
}

/// The paper's queues against the paper's figure, and ours against the paper's queues at every size.
fn judged(sweep: &Sweep, name: &str, (direction, part): (&str, CostPart), x: &str, claim: &Claim) -> [PaperRow; 2] {
    let mean = mean_gain(sweep, part, 1, claim.from);
    let most = sweep.iter().map(|(_, costs)| gain(costs, part, 1)).fold(0.0, f64::max);
    let jump = threshold(sweep, part, 1).map_or_else(|| "never".to_owned(), |size| format!("from {x} {size}"));
    let mean_text =
        mean.map_or_else(|| "no size is that large".to_owned(), |mean| format!("{mean:.2} times on average"));
    let verdict = mean.map_or(PaperVerdict::NotComparable, |mean| PaperVerdict::fitted(mean >= CLAIM));
    [
        PaperRow {
            what: format!("{name}: {direction} gain of the paper's queues"),
            paper: claim.said.clone(),
            ours: format!(
                "with N and B of our choice; from {x} {} on: {mean_text}; above 1.5 times {jump}, at most {most:.2} times",
                claim.from
            ),
            verdict,
            why: verdict.why(
                "at least 2.7 times the driver's rate on average, the milder reading, with N and B of our choice, which the paper does not state",
                mean.map_or("the quick form leaves the sizes of the claim out", |_| {
                    "less than 2.7 times, the milder reading: the driver of this machine is faster than the paper's, or the copies smaller"
                }),
            ),
        },
        at_every_size(sweep, name, (direction, part), x),
    ]
}

/// Ours against the paper's queues in the same run, size by size. Sizes whose copies are all below 1 MiB are left out: there both make
/// the driver's own call, and what their times differ by is chance.
fn at_every_size(sweep: &Sweep, name: &str, (direction, part): (&str, CostPart), x: &str) -> PaperRow {
    let largest = |costs: &[Repeated]| {
        let of = |costs: &Costs| if direction == "h2d" { costs.h2d_largest } else { costs.d2h_largest };
        costs.iter().flat_map(|repeated| &repeated.0).map(of).max().unwrap_or(0)
    };
    let mut ratios = Vec::new();
    let mut broken = Vec::new();
    for (size, costs) in sweep.iter().filter(|(_, costs)| largest(costs) >= MIB) {
        let [paper_s, ours] = [1, 2].map(|mode| costs[mode].median(part));
        ratios.push(paper_s.0 as f64 / ours.0.max(1) as f64);
        if ours.0 as f64 > paper_s.0 as f64 * (1.0 + SLACK) {
            broken.push(format!("{x} {size}: {ours} against {paper_s}"));
        }
    }
    let (least, most) = ratios.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), r| (l.min(*r), m.max(*r)));
    let verdict = match (ratios.is_empty(), broken.is_empty()) {
        (true, _) => PaperVerdict::NotComparable,
        (false, holds) => PaperVerdict::own(holds),
    };
    let compared = format!("{} of {} sizes have copies of 1 MiB and more", ratios.len(), sweep.len());
    let ours = match (ratios.is_empty(), broken.is_empty()) {
        (true, _) => compared,
        (false, true) => format!("{compared}: {least:.2} to {most:.2} times as fast"),
        (false, false) => format!(
            "{compared}: {least:.2} to {most:.2} times as fast; slower at {}: {}",
            broken.len(),
            broken.join("; ")
        ),
    };
    PaperRow {
        what: format!("{name}: {direction} by `copy` of ours, at least as fast as the paper's queues at every size"),
        paper: silent("not treated"),
        ours,
        verdict,
        why: verdict.why(
            "medians of the same run, taken by turns; 2 % are allowed",
            if ratios.is_empty() {
                "both make the driver's own call below 1 MiB"
            } else {
                "medians of the same run, taken by turns, differ by more than 2 % in favour of the paper's queues at one size or more"
            },
        ),
    }
}

const PARTS: [(&str, CostPart); 2] = [("h2d", |costs| costs.h2d), ("d2h", |costs| costs.d2h)];

/// Rows and pictures of one sweep.
fn judge(outcome: &mut ExperimentResults, sweep: &Sweep, name: &str, x: &str, claims: [Claim; 2]) {
    for (part, claim) in PARTS.into_iter().zip(&claims) {
        outcome.rows.extend(judged(sweep, name, part, x, claim));
    }
    let ratio =
        |costs: &Repeated| costs.median(Costs::copies).0 as f64 / costs.median(|costs| costs.kernels).0.max(1) as f64;
    let shares = |mode: usize| sweep.iter().map(move |(_, costs)| ratio(&costs[mode]) / ratio(&costs[0]).max(1e-9));
    type Judged = (usize, &'static str, fn(bool) -> PaperVerdict);
    let labels: [Judged; 2] =
        [(1, "the paper's queues", PaperVerdict::fitted), (2, "`copy` of ours", PaperVerdict::own)];
    for (mode, by, label) in labels {
        let least = shares(mode).fold(f64::MAX, f64::min);
        let verdict = label(least < 0.5);
        outcome.rows.push(PaperRow {
            what: format!("{name}: transfer/kernel ratio with {by}"),
            paper: said("Results, ratio", "falls by 50 % and more above a certain size, which is not stated"),
            ours: format!("falls at best to {:.0} % of that with the driver's copies", 100.0 * least),
            verdict,
            why: verdict.why(
                "the ratio must fall below half of that with the driver's copies at one size at least; which sizes is for us to find",
                "at no size it falls below half of that with the driver's copies",
            ),
        });
    }
    for (direction, part) in PARTS {
        let line = |(at, (_, mode)): (usize, &(Mode, &str))| {
            PlotLine::new(*mode, sweep.iter().map(|(size, costs)| (*size as f64, gain(costs, part, at))).collect())
        };
        let lines = MODES.iter().enumerate().skip(1).map(line).collect();
        let title = format!("{name}: {direction} gain over the driver");
        let figure = Figure::new(title, outcome.source, [x, "times as fast"], lines);
        outcome.figures.push((format!("gain-{direction}-{name}"), figure));
    }
    let line = |(at, (_, mode)): (usize, &(Mode, &str))| {
        PlotLine::new(*mode, sweep.iter().map(|(size, costs)| (*size as f64, ratio(&costs[at]))).collect())
    };
    let lines = MODES.iter().enumerate().map(line).collect();
    let figure = Figure::new(format!("{name}: transfer time over kernel time"), outcome.source, [x, "ratio"], lines);
    outcome.figures.push((format!("ratio-{name}"), figure));
}

/// `flags`: whether the program copies flags between its kernels.
fn table(sweeps: &[(&str, &Sweep)], x: &'static str, flags: bool) -> RawFigures {
    let mut table = RawFigures::default();
    for (name, sweep) in sweeps {
        for (size, costs) in *sweep {
            table.add(raw_figures!("sweep", MODES.iter().zip(costs), |((_, mode), repeated)| {
                let first = repeated.0.first();
                let h2d = repeated.samples(|costs| costs.h2d);
                let d2h = repeated.samples(|costs| costs.d2h);
                Columns {
                    input: name,
                    size: size,
                    mode: mode,
                    h2d_bytes: first.map_or(0, |costs| costs.h2d_bytes),
                    d2h_bytes: first.map_or(0, |costs| costs.d2h_bytes),
                    n: h2d.map(|h2d| h2d.figures.n),
                    h2d_first_ns: h2d.map(|h2d| h2d.first),
                    h2d_median_ns: h2d.map(|h2d| h2d.figures.median),
                    h2d_p99_ns: h2d.map(|h2d| h2d.figures.p99_ns()),
                    h2d_max_ns: h2d.map(|h2d| h2d.figures.max),
                    d2h_first_ns: d2h.map(|d2h| d2h.first),
                    d2h_median_ns: d2h.map(|d2h| d2h.figures.median),
                    d2h_p99_ns: d2h.map(|d2h| d2h.figures.p99_ns()),
                    d2h_max_ns: d2h.map(|d2h| d2h.figures.max),
                    kernels_median_ns: repeated.median(|costs| costs.kernels),
                    flags_median_ns: repeated.median(|costs| costs.flags),
                }
            }));
        }
    }
    table.columns[1] = x;
    if !flags {
        table.columns.pop();
        table.lines.iter_mut().for_each(|line| line.truncate(table.columns.len()));
    }
    table
}

/// Repetitions of a program in every mode.
const REPEATS: usize = 5;

/// Breadth-first search over graphs of 1k to 16M nodes.
pub(super) fn bfs(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let bench = Bench::open(setting)?;
    let queue = DoubleQueue::new(bench.gpu()?, THREADS, (if setting.quick { 4096 } else { MIB }) as usize)?;
    let mut sweeps: Vec<(Kind, Sweep)> = Vec::new();
    for kind in Kind::ALL {
        // A Kronecker graph has five times the edges: 4M nodes are 0.5 GiB of them.
        let (from, to) = match (setting.quick, kind) {
            (true, _) => (10, 12),
            (false, Kind::Rodinia) => (10, 24),
            (false, Kind::Kronecker) => (10, 22),
        };
        sweeps.push((kind, Sweep::new()));
        for exponent in from..=to {
            let mut graph = Graph::random(kind, setting.seed, 1 << exponent);
            let expected = graph.distances();
            let costs = in_every_mode(&bench, &queue, REPEATS, |copies| {
                let (costs, distances) = programs::bfs(copies, &mut graph)?;
                same("bfs", &distances, &expected)?;
                Ok(costs)
            })?;
            sweeps.last_mut().expect("one was pushed").1.push((1 << exponent, costs));
            setting.keep("cho-bfs", bench.source, &bench.machine, vec![of_graphs(&sweeps)]);
        }
    }
    let mut outcome = outcome("cho-bfs", &bench, setting);
    outcome.notes.push(format!(
        "Graphs of seed {}. `rodinia`: the rule of Rodinia's generator, whose own seed is the time: a node draws 2 to 4 edges, each entered at \
         both ends. `kronecker`: Graph500's rule, 16 edges a node, quadrants 0.57, 0.19, 0.19, 0.05, labels shuffled. Arrays of 8 N, 4 E, N, N, \
         N, 4 N bytes in, 4 N out; a 1-byte flag each way for every level. Edges of `rodinia` pass 1 MiB between 32k and 64k nodes, the array of \
         nodes at 128k; costs reach it at 256k.",
        setting.seed
    ));
    for (kind, sweep) in &sweeps {
        let claims = [
            Claim { said: said("Results, BFS", "jumps at 128K nodes, then about 270 %"), from: 128 << 10 },
            Claim { said: said("Results, BFS", "jumps at 1M nodes, then about 270 %; unsteady"), from: 1 << 20 },
        ];
        judge(&mut outcome, sweep, kind.name(), "nodes", claims);
    }
    outcome.tables.push(of_graphs(&sweeps));
    Ok(outcome)
}

fn of_graphs(sweeps: &[(Kind, Sweep)]) -> RawFigures {
    table(&sweeps.iter().map(|(kind, sweep)| (kind.name(), sweep)).collect::<Vec<_>>(), "nodes", true)
}

/// Pathfinder over grids of 2048 rows.
pub(super) fn pathfinder(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    const NAME: &str = "pathfinder";
    let bench = Bench::open(setting)?;
    let (rows, columns) =
        if setting.quick { (64, vec![128, 1024]) } else { (2048, (7..=19).map(|e| 1 << e).collect()) };
    let queue = DoubleQueue::new(bench.gpu()?, THREADS, (if setting.quick { 4096 } else { MIB }) as usize)?;
    let mut sweep = Sweep::new();
    for width in columns {
        let mut grid = Grid::random(setting.seed, rows, width);
        let expected = grid.cheapest();
        let costs = in_every_mode(&bench, &queue, REPEATS, |copies| {
            let (costs, best) = programs::pathfinder(copies, &mut grid)?;
            same(NAME, &best, &expected)?;
            Ok(costs)
        })?;
        sweep.push((width as u64, costs));
        setting.keep("cho-pathfinder", bench.source, &bench.machine, vec![table(&[(NAME, &sweep)], "columns", false)]);
    }
    let mut outcome = outcome("cho-pathfinder", &bench, setting);
    outcome.notes.push(format!(
        "{rows} rows, digits of seed {}; the first row and the rest in two copies of 4 W and 4 (R W - W) bytes in, 4 W out.",
        setting.seed
    ));
    // 2048 rows of 128 columns are 1 MiB, of 256K columns 2 GiB.
    let claims = [
        Claim { said: said("Results, Pathfinder", "above 1 MB, about 270 %"), from: 128 },
        Claim { said: said("Results, Pathfinder", "above 2 GB of input, about 270 %; unsteady"), from: 256 << 10 },
    ];
    judge(&mut outcome, &sweep, NAME, "columns", claims);
    outcome.tables.push(table(&[(NAME, &sweep)], "columns", false));
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sweep in which the driver takes 270 us, the paper's queues `paper_s` us, and ours what `ours` says for each size.
    fn sweep(paper_s: u64, ours: [u64; 3]) -> Sweep {
        let costs = |us: u64| Repeated(vec![Costs { h2d: Nanos(us * 1000), h2d_largest: MIB, ..Costs::default() }; 5]);
        [64, 128, 256]
            .into_iter()
            .zip(ours)
            .map(|(size, ours)| (size, vec![costs(270), costs(paper_s), costs(ours)]))
            .collect()
    }

    fn verdicts(sweep: &Sweep, from: u64) -> [PaperVerdict; 2] {
        let claim = Claim { said: said("Results, BFS", "about 270 %"), from };
        judged(sweep, "rodinia", PARTS[0], "columns", &claim).map(|row| row.verdict)
    }

    #[test]
    fn the_paper_s_queues_are_judged_by_its_figure_and_ours_by_the_paper_s_queues() {
        assert_eq!(verdicts(&sweep(100, [90; 3]), 128), [PaperVerdict::Consistent, PaperVerdict::OwnCheck]);
        assert_eq!(verdicts(&sweep(101, [90; 3]), 128), [PaperVerdict::NotReproduced, PaperVerdict::OwnCheck]);
        assert_eq!(verdicts(&sweep(90, [100; 3]), 128), [PaperVerdict::Consistent, PaperVerdict::NotReproduced]);
        assert_eq!(verdicts(&sweep(90, [80; 3]), 512), [PaperVerdict::NotComparable, PaperVerdict::OwnCheck]);
    }

    #[test]
    fn ours_is_behind_if_it_is_slower_at_one_size_however_fast_elsewhere() {
        let found = at_every_size(&sweep(100, [10, 103, 10]), "rodinia", PARTS[0], "nodes");
        assert_eq!(found.verdict, PaperVerdict::NotReproduced);
        assert!(found.ours.contains("slower at 1: nodes 128: 103 us against 100 us"), "{}", found.ours);
        assert_eq!(
            at_every_size(&sweep(100, [10, 102, 10]), "rodinia", PARTS[0], "nodes").verdict,
            PaperVerdict::OwnCheck
        );
    }

    #[test]
    fn sizes_at_which_both_make_the_driver_s_own_call_are_not_compared() {
        let mut small = sweep(100, [103; 3]);
        small
            .iter_mut()
            .flat_map(|(_, costs)| costs)
            .flat_map(|repeated| &mut repeated.0)
            .for_each(|costs| costs.h2d_largest = MIB - 1);
        let found = at_every_size(&small, "rodinia", PARTS[0], "nodes");
        assert_eq!(found.verdict, PaperVerdict::NotComparable);
        assert!(found.ours.starts_with("0 of 3 sizes"), "{}", found.ours);
    }

    #[test]
    fn a_table_has_the_first_and_the_longest_of_all_repetitions() {
        let costs = [5, 1, 2, 3, 4].map(|us| Costs { h2d: Nanos(us * 1000), ..Costs::default() });
        let sweep: Sweep = vec![(8, vec![Repeated(costs.to_vec())])];
        let table = table(&[("rodinia", &sweep)], "nodes", true);
        assert_eq!(table.lines[0][5..10], ["5", "5000", "3000", "", "5000"]);
    }
}
