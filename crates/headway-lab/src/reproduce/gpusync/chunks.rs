//! What it takes for chunks to gain (Observation 5): memory rate, length of kernels and the cost of a chunk, one curve each.
//!
//! The paper states none of the three. The curve that the experiment gives either has a place where chunking improves most pairs of
//! scenarios, which is then what the paper's machine must have been like, or refutes the claim for this model.

use std::collections::BTreeMap;

use crate::simulation::klt::Assumptions;
use headway_core::decisions::predictor::Form;
use headway_core::decisions::token::TokenMode;
use headway_core::units::{Nanos, Rate};
use headway_sim::sharing::{ArbitrationScheme, Scenario, SimSharingError};

use super::interval;
use super::shape::chunking_ratios;
use super::study::{Effort, Set, calibrate, run as simulated};
use crate::reproduce::{PaperRow, PaperVerdict, RawFigures, raw_figures, said};
use headway::cores::on_all_cores;

/// Rates of all copies, megabytes per second. The last is a GTX-class node by the numbers there are: PCIe 2.0 x16, as in the machine
/// file `gpusync-8xgtx470`.
const RATES: [u64; 6] = [125, 250, 500, 1_000, 2_000, 8_000];
const GTX_RATE: u64 = 8_000;
/// Kernels of a frame: few long ones and many short ones.
const SEGMENTS: [u32; 2] = [9, 63];
/// Time of a call and of a copy before its first byte.
const CALLS: [Nanos; 2] = [Nanos(0), Nanos(100_000)];

/// One point of the curve.
pub(super) struct Point {
    megabytes: u64,
    segments: u32,
    call: Nanos,
    /// The calibrated CPU and kernel time of a frame.
    work: Nanos,
    /// Response of whole copies over that of chunks, for each pair of scenarios.
    ratios: Vec<f64>,
}

impl Point {
    fn above(&self) -> usize {
        self.ratios.iter().filter(|ratio| **ratio > 1.0).count()
    }

    /// Whether the claim holds: most pairs improve.
    fn holds(&self) -> bool {
        self.above() * 2 > self.ratios.len()
    }

    fn median(&self) -> f64 {
        let mut sorted = self.ratios.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn name(&self) -> String {
        format!("{} MB/s, {} kernels, calls of {}", self.megabytes, self.segments, self.call)
    }
}

/// Every combination; quick: the rates only.
pub(super) fn curve(quick: bool, seed: u64, effort: Effort) -> Result<Vec<Point>, SimSharingError> {
    let (segments, calls) = if quick { (&SEGMENTS[1..2], &CALLS[1..]) } else { (&SEGMENTS[..], &CALLS[..]) };
    let rates = if quick { &RATES[2..4] } else { &RATES[..] };
    let mut all = Vec::new();
    for &megabytes in rates {
        for &segments in segments {
            all.extend(calls.iter().map(|&call| (megabytes, segments, call)));
        }
    }
    let scenarios: Vec<Scenario> =
        Scenario::distinct().into_iter().filter(|scenario| scenario.arbitration != ArbitrationScheme::Driver).collect();
    on_all_cores(all.len(), |at| {
        let (megabytes, segments, call) = all[at];
        let rate = Rate(megabytes * 1_000_000);
        let assumptions = Assumptions { rate, segments, call, copy_setup: call, ..Assumptions::MIDDLE };
        let set = Set { name: "chunks", assumptions, predictor: Form::WINDOW, mode: TokenMode::WorkConserving };
        let work = calibrate(&set, seed, effort)?;
        let mut means = BTreeMap::new();
        for &scenario in &scenarios {
            let runs: Vec<_> = (0..effort.seeds)
                .map(|number| simulated(&set, work, scenario, seed.wrapping_add(number), effort))
                .collect::<Result<_, _>>()?;
            means.insert(scenario.to_string(), interval(&runs).0);
        }
        let ratios = chunking_ratios(&means).into_iter().map(|(_, ratio)| ratio).collect();
        Ok(Point { megabytes, segments, call, work, ratios })
    })
}

pub(super) fn rows(points: &[Point]) -> Vec<PaperRow> {
    let text = |point: &Point| {
        format!(
            "{}: {} of {} pairs above 1, median {:.3}",
            point.name(),
            point.above(),
            point.ratios.len(),
            point.median()
        )
    };
    let mut rows = Vec::new();
    let gtx: Vec<&Point> = points.iter().filter(|point| point.megabytes == GTX_RATE).collect();
    if !gtx.is_empty() {
        let verdict = PaperVerdict::fitted(gtx.iter().any(|point| point.holds()));
        rows.push(PaperRow {
            what: "chunking on a GTX-class node: PCIe 2.0 x16 as in `gpusync-8xgtx470`".to_owned(),
            paper: said("5, Observation 5", "chunking usually improved performance"),
            ours: gtx.iter().map(|point| text(point)).collect::<Vec<_>>().join("; "),
            verdict,
            why: verdict.why(
                "with the rate of the bus most pairs improve for one length of kernels and one cost of a call at least",
                "at the rate of the bus a state of 6.5 MB moves in less than a millisecond, so nobody waits for a copy long enough to gain by \
                 chunks; the paper states no rate",
            ),
        });
    }
    let held: Vec<&Point> = points.iter().filter(|point| point.holds()).collect();
    let best = points.iter().max_by_key(|point| point.above() * 1000 / point.ratios.len().max(1));
    let verdict = PaperVerdict::fitted(!held.is_empty());
    rows.push(PaperRow {
        what: "what it takes for chunking to gain: memory rate, kernels, cost of a call".to_owned(),
        paper: said("5, Observation 5", "chunking usually improved performance"),
        ours: if held.is_empty() {
            format!("in none of {} combinations; nearest {}", points.len(), best.map_or_else(String::new, text))
        } else {
            format!("in {} of {} combinations: {}", held.len(), points.len(), held.iter().map(|p| text(p)).collect::<Vec<_>>().join("; "))
        },
        verdict,
        why: verdict.why(
            "most pairs improve in the combinations named, none of which the paper states",
            "chunks let others in, and cost whoever copies a call and a wait each; in this model the one never outweighs the other for most pairs",
        ),
    });
    rows
}

pub(super) fn table(points: &[Point]) -> RawFigures {
    let text = |ratio: f64| format!("{ratio:.4}");
    raw_figures!("chunking", points, |point| Columns {
        rate_mb_per_s: point.megabytes,
        kernels: point.segments,
        call_ns: point.call,
        work_ns: point.work,
        pairs: point.ratios.len(),
        pairs_above_1: point.above(),
        least_ratio: text(point.ratios.iter().copied().fold(f64::INFINITY, f64::min)),
        median_ratio: text(point.median()),
        most_ratio: text(point.ratios.iter().copied().fold(0.0, f64::max)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(megabytes: u64, ratios: &[f64]) -> Point {
        Point { megabytes, segments: 9, call: Nanos(0), work: Nanos(1), ratios: ratios.to_vec() }
    }

    #[test]
    fn the_claim_holds_where_more_than_half_of_the_pairs_improve() {
        let verdicts = |points: &[Point]| rows(points).into_iter().map(|row| row.verdict).collect::<Vec<_>>();
        let (fails, holds) = ([1.1, 0.9], [1.1, 1.1, 0.9]);
        assert_eq!(verdicts(&[point(8_000, &fails), point(250, &fails)]), [PaperVerdict::NotReproduced; 2]);
        assert_eq!(
            verdicts(&[point(8_000, &fails), point(250, &holds)]),
            [PaperVerdict::NotReproduced, PaperVerdict::Consistent]
        );
        assert_eq!(verdicts(&[point(8_000, &holds)]), [PaperVerdict::Consistent; 2]);
    }

    #[test]
    fn a_point_has_its_least_its_median_and_its_greatest_ratio() {
        let table = table(&[point(250, &[0.9, 1.0, 1.2])]);
        assert_eq!(table.lines[0][4..], ["3", "1", "0.9000", "1.0000", "1.2000"]);
    }
}
