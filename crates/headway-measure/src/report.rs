//! What a measurement says at its end.

use std::path::{Path, PathBuf};

use headway_core::files::machine::{Calibration, Machine};
use headway_core::models::transfer::{Direction, HostMemory, Request, Selector, Tuning};
use headway_core::units::{Bytes, Nanos, Rate};
use serde::Serialize;

use headway::emulation;
use headway::explain::measured_ways;

/// What came of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct MeasureReport {
    /// Version of the JSON form.
    pub schema: u32,
    /// The machine file.
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
    /// Which way is used from which size on, per direction and memory of the first GPU.
    pub thresholds: Vec<(String, Vec<(Bytes, String)>)>,
    /// How far the model was from what was measured.
    pub calibration: Option<Checked>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// What checked a machine file.
#[derive(Clone, Copy, Debug, Serialize)]
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
}

impl Checked {
    fn of(found: &Calibration) -> Self {
        let Calibration { batches, median_ppm, max_ppm, margin_ppm, jitter, .. } = *found;
        Self { batches, median_ppm, max_ppm, margin_ppm, jitter }
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

/// Which way the first GPU's copies go from which size on, when every way that was measured may be used.
fn thresholds(machine: &Machine) -> Vec<(String, Vec<(Bytes, String)>)> {
    let Some(gpu) = machine.gpus().next() else { return Vec::new() };
    let available = measured_ways(&machine.profile);
    let situations = [
        (Direction::H2d, HostMemory::Touched),
        (Direction::D2h, HostMemory::Touched),
        (Direction::D2h, HostMemory::Untouched),
        (Direction::H2d, HostMemory::Pinned),
        (Direction::D2h, HostMemory::Pinned),
    ];
    let rows = situations.into_iter().map(|(direction, memory)| {
        let request = Request::new(gpu, direction, memory, Bytes(0));
        let selector = Selector::new(&machine.profile, &request, &available);
        (format!("{direction} {memory}"), selector.thresholds().map(|(from, way)| (from, way.to_string())).collect())
    });
    rows.collect()
}
