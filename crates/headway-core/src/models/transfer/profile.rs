//! Everything measured on the copies of a node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::arbitration::EngineArbitration;
use super::curve::Curve;
use super::key::{CurveKey, Direction, Tuning, TuningKey};
use super::price::{Bounds, PricedTuning};
use crate::models::index::EndpointId;

/// What a profile was measured on, and by what. A profile whose stamp differs is stale; commit and date are only recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// What the figures stand for: `sim`, `emu` or `cuda`.
    pub source: String,
    /// Version of the GPU driver.
    pub driver: String,
    /// UUIDs of the GPUs, in the order of the machine file.
    pub gpus: Vec<String>,
    /// PCIe generation and width of each, for example `5.0 x16`.
    pub pcie: Vec<String>,
    /// CPUs that were allowed, as a list of the kernel's form (`0-15`).
    pub cpus: String,
    /// Commit of the program that measured.
    pub commit: String,
    /// When, as `2026-11-21`.
    pub date: String,
}

impl Stamp {
    /// The first thing in which this stamp differs from `now`, as `driver 580.1, now 590.2`. Commit and date do not count:
    /// they say where figures come from, and a new build leaves the node as it was.
    #[must_use]
    pub fn difference(&self, now: &Self) -> Option<String> {
        let list = |items: &[String]| items.join(", ");
        let parts = [
            ("source", self.source.clone(), now.source.clone()),
            ("driver", self.driver.clone(), now.driver.clone()),
            ("GPUs", list(&self.gpus), list(&now.gpus)),
            ("PCIe", list(&self.pcie), list(&now.pcie)),
            ("CPUs", self.cpus.clone(), now.cpus.clone()),
        ];
        parts.into_iter().find(|(_, was, is)| was != is).map(|(what, was, is)| format!("{what} {was}, now {is}"))
    }
}

/// Everything measured on transfers of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What it was measured on; `None` = built-in defaults, or a reconstruction.
    pub stamp: Option<Stamp>,
    /// The curves, in the order of their keys.
    pub curves: BTreeMap<CurveKey, Curve>,
    /// Of posted window stores, the time until the CPU has handed the data over, by the key of the curve in `curves` that
    /// says when it can be seen. Methods are compared by the latter.
    pub posted: BTreeMap<CurveKey, Curve>,
    /// The tunings of `staged`: the fastest that was found, with threads in reserve.
    pub tunings: BTreeMap<TuningKey, Tuning>,
    /// Who waits for whom at the copy engines; a pair that is missing was not asked.
    pub arbitration: BTreeMap<(EndpointId, Direction), EngineArbitration>,
    /// Of these and other tunings what they cost, where that was measured: by time, none of them worse than another in everything.
    pub prices: BTreeMap<TuningKey, Vec<PricedTuning>>,
}

impl Profile {
    /// The tuning of `key` that `bounds` leave and prefer.
    #[must_use]
    pub fn tuning(&self, key: &TuningKey, bounds: &Bounds) -> Option<Tuning> {
        Some(bounds.pick(self.prices_of(key), *self.tunings.get(key)?))
    }

    /// What tunings of `key` cost, as far as measured.
    #[must_use]
    pub fn prices_of(&self, key: &TuningKey) -> &[PricedTuning] {
        self.prices.get(key).map_or(&[], Vec::as_slice)
    }
}
