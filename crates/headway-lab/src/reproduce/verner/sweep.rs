//! How much the interconnect must carry for the paper's gains.

use crate::simulation::verner::Site;
use crate::simulation::verner::pools::{Reading, SEEDS};
use crate::simulation::verner::{BorderPoint, BorderStudy, GainCurve, with_limit, with_setup};
use headway_core::plan::Strategy;
use headway_core::units::{Nanos, Rate};

use super::aes::{SCALE, borders};
use super::{
    ExperimentResults, ExperimentSetting, PaperRow, PaperVerdict, RawFigures, outcome, raw_figures, said, shipped,
};
use crate::Error;
use headway_measure::plot::{Figure, PlotLine};

/// One GPU's link, bytes per second.
const LINK: u64 = 8_000_000_000;
/// The paper's gains, percent.
const GAINS: [f64; 2] = [74.0, 31.0];
/// Steps from A/b = 1 to 2: all, and quick.
const STEPS: (u64, u64) = (20, 4);
/// Pools of each workload: all, and quick.
const POOLS: (u64, u64) = (5, 1);
const MACHINE: &str = "verner-r2 with an interconnect of A = b to 2 b, b = 8 GB/s";
const OVERHEAD: Nanos = Nanos(10_000);

/// A curve over A/b: the mean gain in percent of every seed.
struct Sweep {
    name: String,
    /// (A/b, gain by seed).
    points: Vec<(f64, Vec<f64>)>,
}

pub(in super::super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let (steps, pools) = if setting.quick { (STEPS.1, POOLS.1) } else { (STEPS.0, POOLS.0) };
    let scale = if setting.quick { 16 } else { SCALE };
    let study = BorderStudy { seeds: SEEDS.take(pools as usize).collect(), scale, ..BorderStudy::full() };
    let mut sweeps = Vec::new();
    let plain = points(&study, steps, Nanos::ZERO, &[Strategy::Combined, Strategy::Partitioned, Strategy::Lockstep]);
    for reading in Reading::ALL {
        for policy in [Strategy::Combined, Strategy::Partitioned, Strategy::Lockstep] {
            sweeps.push(of(&plain, steps, reading, policy, ""));
        }
    }
    setting.keep("verner-sweep", "sim", MACHINE, vec![table(&sweeps)]);
    let study = BorderStudy { readings: vec![Reading::Truncate], ..study };
    let loaded = points(&study, steps, OVERHEAD, &[Strategy::Combined]);
    sweeps.push(of(&loaded, steps, Reading::Truncate, Strategy::Combined, ", 10 us an operation"));
    let rows = GAINS.into_iter().flat_map(|gain| sweeps.iter().map(move |sweep| crossing_row(sweep, gain))).collect();
    let mut outcome = outcome("verner-sweep", MACHINE.to_owned(), setting, rows);
    outcome.tables = vec![table(&sweeps)];
    outcome.figures = vec![("gain".into(), figure(&sweeps))];
    outcome.notes = vec![
        format!(
            "A is what the interconnect carries for both GPUs and directions together, b what one GPU's link carries. {pools} \
             pools a workload, exact borders, node and CPU slower by a factor of {scale}. Closed form: ((1 + gain) 4.25 - 0.25) / 4."
        ),
        "What moves the crossing up: bytes that fill granules of 16 in the short cycles which short deadlines force, longer \
         with overheads; what moves it down: `serial`, the base, suffers from the same."
            .into(),
    ];
    Ok(outcome)
}

/// Serial on the first site, the policies on all.
fn points(study: &BorderStudy, steps: u64, setup: Nanos, policies: &[Strategy]) -> Vec<BorderPoint> {
    let machine = with_setup(&shipped("verner-r2"), setup);
    let node = |step: u64| -> Site {
        let machine = with_limit(&machine, "interconnect", Rate(LINK + LINK * step / steps));
        study.site(&machine.expect("verner-r2 has it")).expect("the shipped machine has GPUs, routes and the kernel")
    };
    let sites: Vec<Site> = (0..=steps).map(node).collect();
    let rates = "every route of the shipped machine has a rate";
    let mut points = borders(study, &sites[..1], &[Strategy::Serial], 0).expect(rates);
    points.extend(borders(study, &sites, policies, 0).expect(rates));
    points
}

fn of(points: &[BorderPoint], steps: u64, reading: Reading, policy: Strategy, more: &str) -> Sweep {
    let at = |step: u64| {
        let curve = GainCurve::of(points, reading, (step as usize, policy), (0, Strategy::Serial));
        (1.0 + step as f64 / steps as f64, curve.by_seed().into_iter().map(|gain| gain * 100.0).collect())
    };
    let name = format!("{} {}{more}", policy.name(), reading.name());
    Sweep { name, points: (0..=steps).map(at).collect() }
}

/// Where the piecewise linear curve first reaches `gain`.
fn crossing(points: &[(f64, f64)], gain: f64) -> Option<f64> {
    points.windows(2).find_map(|pair| {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        (y0 < gain && gain <= y1).then(|| x0 + (x1 - x0) * (gain - y0) / (y1 - y0))
    })
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len().max(1) as f64
}

fn crossing_row(sweep: &Sweep, gain: f64) -> PaperRow {
    let closed = (1.0 + gain / 100.0).mul_add(4.25, -0.25) / 4.0;
    let means: Vec<(f64, f64)> = sweep.points.iter().map(|(x, gains)| (*x, mean(gains))).collect();
    let seeds = sweep.points.first().map_or(0, |(_, gains)| gains.len());
    let of_seed =
        |seed: usize| -> Vec<(f64, f64)> { sweep.points.iter().map(|(x, gains)| (*x, gains[seed])).collect() };
    let single: Vec<f64> = (0..seeds).filter_map(|seed| crossing(&of_seed(seed), gain)).collect();
    let (low, high) = single.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), &x| (l.min(x), h.max(x)));
    let found = crossing(&means, gain);
    let ours = found.map_or_else(
        || format!("not reached; {:+.1} % at A/b = 2", means.last().map_or(f64::NAN, |last| last.1)),
        |at| {
            let more = at - closed;
            format!("at A/b = {at:.3} ({low:.3} to {high:.3} over seeds), closed form {closed:.3}, moved by {more:+.3}")
        },
    );
    // The paper's policy must be able to gain what the paper gains. At which share of the interconnect is ours to choose.
    let paper_s = sweep.name.starts_with(Strategy::Combined.name());
    let verdict = if paper_s { PaperVerdict::fitted(found.is_some()) } else { PaperVerdict::NotComparable };
    let what = format!("+{gain} % with {}", sweep.name);
    let paper =
        said("V-B", format!("{gain} % more streams on average, on a node whose rates are drawn in Figure V.1 only"));
    let why = if paper_s {
        verdict.why(
            "what the interconnect carries is swept, so that some share of it gives the paper's gain; the share is what is found",
            "no share of the interconnect up to that of free links gives the paper's gain",
        )
    } else {
        "another policy than the paper's: only a figure".to_owned()
    };
    PaperRow { what, paper, ours, verdict, why }
}

fn table(sweeps: &[Sweep]) -> RawFigures {
    let mut table = RawFigures::default();
    for sweep in sweeps {
        let gains = sweep.points.iter().flat_map(|(x, gains)| gains.iter().enumerate().map(move |gain| (x, gain)));
        table.add(raw_figures!("sweep", gains, |(x, (seed, gain))| Columns {
            curve: sweep.name,
            a_over_b: format!("{x:.2}"),
            seed: seed,
            mean_gain_percent: format!("{gain:.3}"),
        }));
    }
    table
}

fn figure(sweeps: &[Sweep]) -> Figure {
    let least = |gains: &[f64]| gains.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |gains: &[f64]| gains.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let line = |sweep: &Sweep| {
        let points = sweep.points.iter().map(|(x, gains)| (*x, mean(gains))).collect();
        PlotLine::new(&sweep.name, points)
            .bars(sweep.points.iter().map(|(x, gains)| (*x, least(gains), most(gains))).collect())
    };
    let level = |gain: f64| PlotLine::new(format!("paper +{gain} %"), vec![(1.0, gain), (2.0, gain)]);
    let lines = sweeps.iter().map(line).chain(GAINS.map(level)).collect();
    Figure::new("streams gained over `serial`, mean of 12 workloads", "sim", ["A/b (ratio)", "gain, %"], lines)
        .bars("least to most of the workloads")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_is_where_the_line_between_two_points_meets_the_level() {
        let points = [(1.0, 0.0), (1.5, 20.0), (2.0, 60.0)];
        assert_eq!(crossing(&points, 40.0), Some(1.75));
        assert_eq!(crossing(&points, 20.0), Some(1.5));
        assert_eq!(crossing(&points, 61.0), None);
    }
}
