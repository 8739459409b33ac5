//! What a measurement says at its end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use headway_core::files::machine::{Calibration, Machine};
use headway_core::models::cpu::{ChunkWatch, DriverWatch};
use headway_core::models::transfer::{
    Direction, HostMemory, Method, MethodChoice, MethodRequest, MethodVerdict, RejectionReason, Tuning, choose,
};
use headway_core::units::{Bytes, Nanos, PPM, Rate};
use serde::Serialize;

use headway::emulation;
use headway::explain::measured_methods;

/// What came of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct MeasureReport {
    /// Version of the JSON form.
    pub schema: u32,
    /// The machine file.
    #[serde(serialize_with = "headway::path_text::one")]
    pub file: PathBuf,
    /// The machine's name.
    pub machine: String,
    /// What the figures stand for: `emu` or `cuda`.
    pub source: String,
    /// With the emulated backend: what it imitates, and what its times do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imitates: Option<String>,
    /// Why plans from the file would be of no use; empty = they can be used for what was measured.
    pub useless: Vec<String>,
    /// Curves and their points.
    pub curves: usize,
    /// Points of all curves.
    pub points: usize,
    /// Links and limits with their rates.
    pub rates: Vec<(String, Rate)>,
    /// How `staged` works best, per situation.
    pub tunings: Vec<(String, Tuning)>,
    /// Which method is used from which size on, per direction and memory of the first GPU.
    pub thresholds: Vec<(String, Vec<(Bytes, String)>)>,
    /// How far the model was from what was measured.
    pub calibration: Option<Checked>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// What checked a machine file.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// Random batches.
    pub batches: u32,
    /// Median of |measured - predicted| / predicted, parts per million.
    pub median_ppm: u64,
    /// Largest of the same.
    pub max_ppm: u64,
    /// What plans add to every worst-case time, parts per million.
    pub margin_ppm: u64,
    /// What they add beside it.
    pub jitter: Nanos,
    /// How late a driver would have run meanwhile.
    pub driver_watch: Option<DriverWatch>,
    /// How late threads were that copied chunk after chunk.
    pub chunk_watch: BTreeMap<Direction, ChunkWatch>,
}

impl Checked {
    fn of(found: &Calibration) -> Self {
        let Calibration { batches, median_ppm, max_ppm, margin_ppm, jitter, ref driver_watch, ref chunk_watch, .. } =
            *found;
        let (driver_watch, chunk_watch) = (driver_watch.clone(), chunk_watch.clone());
        Self { batches, median_ppm, max_ppm, margin_ppm, jitter, driver_watch, chunk_watch }
    }
}

impl MeasureReport {
    /// Sums `machine` up, which was written to `file`; `imitated` is what was emulated.
    pub(super) fn of(machine: &Machine, imitated: Option<&Machine>, file: &Path, warnings: Vec<String>) -> Self {
        let profile = &machine.profile;
        let name = |id: headway_core::files::machine::EndpointId| machine.endpoints[id.at()].id.as_str();
        let tunings = profile.tunings.iter().map(|(key, tuning)| {
            let plural = if key.active == 1 { "GPU" } else { "GPUs" };
            (format!("{} {} {} {} {plural}", name(key.gpu), key.direction, key.memory, key.active), *tuning)
        });
        Self {
            schema: 1,
            file: file.to_owned(),
            machine: machine.name.clone(),
            source: profile.stamp.as_ref().map_or_else(String::new, |stamp| stamp.source.clone()),
            imitates: imitated.map(emulation::imitates),
            useless: emulation::useless(machine, imitated),
            curves: profile.curves.len(),
            points: profile.curves.values().map(|curve| curve.points().len()).sum(),
            rates: machine.capacities.iter().map(|capacity| (capacity.id.clone(), capacity.rate)).collect(),
            tunings: tunings.collect(),
            thresholds: thresholds(machine),
            calibration: machine.calibration.as_ref().map(Checked::of),
            warnings,
        }
    }
}

/// A method that takes at most 3 % longer than the fastest counts as equally fast.
const TIE_PPM: u64 = 30_000;
/// Powers of two at which methods are compared.
const SIZES_EXPONENT: u32 = 36;

/// Which method the first GPU's copies take from which size on, when every method that was measured may be used. Of methods that are equally
/// fast the simplest is named, so that noise does not make the list flip between them.
fn thresholds(machine: &Machine) -> Vec<(String, Vec<(Bytes, String)>)> {
    let Some(gpu) = machine.gpus().next() else { return Vec::new() };
    let available = measured_methods(&machine.profile);
    let situations = [
        (Direction::H2d, HostMemory::Touched),
        (Direction::D2h, HostMemory::Touched),
        (Direction::D2h, HostMemory::Untouched),
        (Direction::H2d, HostMemory::Pinned),
        (Direction::D2h, HostMemory::Pinned),
    ];
    let rows = situations.into_iter().map(|(direction, memory)| {
        let request = MethodRequest::new(gpu, direction, memory, Bytes(0));
        let method =
            |bytes| simplest(&choose(&machine.profile, &MethodRequest { bytes, ..request.clone() }, &available));
        let mut named = vec![(Bytes(0), method(Bytes(1)))];
        for exponent in 0..SIZES_EXPONENT {
            let (mut same, mut other) = (1_u64 << exponent, 2_u64 << exponent);
            let (before, after) = (named[named.len() - 1].1, method(Bytes(other)));
            if before == after {
                continue;
            }
            while other - same > 1 {
                let middle = same + (other - same) / 2;
                if method(Bytes(middle)) == before { same = middle } else { other = middle }
            }
            named.push((Bytes(other), after));
        }
        (format!("{direction} {memory}"), named.into_iter().map(|(from, method)| (from, method.to_string())).collect())
    });
    rows.collect()
}

/// The first in the order of methods among the chosen method and those that are only slower, by no more than counts as equal.
fn simplest(choice: &MethodChoice) -> Method {
    let Some(best) = choice.predicted else { return choice.method };
    let limit = u128::from(best.0) * u128::from(PPM + TIE_PPM) / u128::from(PPM);
    let equal = choice.candidates.iter().filter(|candidate| {
        let is_open = matches!(
            candidate.verdict,
            MethodVerdict::Chosen | MethodVerdict::Rejected(RejectionReason::Slower | RejectionReason::WithinMargin)
        );
        is_open && candidate.figures.median.is_some_and(|median| u128::from(median.0) <= limit)
    });
    equal.map(|candidate| candidate.method).min().unwrap_or(choice.method)
}

#[cfg(test)]
mod tests {
    use headway_core::models::transfer::{Candidate, CostFigures, Price};

    use super::*;

    #[test]
    fn of_methods_that_are_equally_fast_the_simplest_is_named_whichever_was_chosen() {
        let of = |methods: &[(Method, u64)]| {
            let candidates = methods.iter().enumerate().map(|(at, &(method, median))| Candidate {
                method,
                figures: CostFigures { median: Some(Nanos(median)), ..CostFigures::default() },
                price: Price::default(),
                verdict: if at == 0 { MethodVerdict::Chosen } else { MethodVerdict::Rejected(RejectionReason::Slower) },
            });
            simplest(&MethodChoice {
                method: methods[0].0,
                tuning: None,
                price: Price::default(),
                predicted: Some(Nanos(methods[0].1)),
                runner_up: None,
                why: Vec::new(),
                candidates: candidates.collect(),
            })
        };
        let (dma, window) = (Method::Dma, Method::Window(None));
        assert_eq!([of(&[(window, 1000), (dma, 1030)]), of(&[(dma, 1000), (window, 1010)])], [dma, dma]);
        assert_eq!(of(&[(window, 1000), (dma, 1031)]), window);
    }
}
