//! What was measured of a node's copies, and the situation that each figure is about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::arbitration::Arbitration;
use super::curve::Curve;
use super::method::Method;
use super::price::{Bounds, PricedTuning};
use crate::files::machine::EndpointId;
use crate::units::Bytes;

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Host to GPU.
    H2d,
    /// GPU to host.
    D2h,
    /// GPU to GPU.
    Peer,
}

/// What kind of memory the host end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostMemory {
    /// Pinned for the GPU.
    Pinned,
    /// Ordinary memory whose pages are there.
    #[serde(rename = "warm")]
    Touched,
    /// Ordinary memory never touched: pages appear as they are written.
    #[serde(rename = "fresh")]
    Untouched,
    /// A mapped file.
    File,
}

/// What else the copy's GPU carries meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Nothing.
    Alone,
    /// Bulk copies in the same direction.
    BulkSame,
    /// Bulk copies in the other direction.
    BulkOpposite,
    BulkBoth,
}

/// How a staging thread writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stores {
    /// Through the cache, as `memcpy` does.
    Plain,
    /// Past the cache, 64 bytes at a time.
    NonTemporal,
    /// So that the engine finds pinned memory in the cache that all cores share, not in one core's own: on the way in stored
    /// through the cache and demoted, on the way out past the cache, and what was read is demoted.
    Demoted,
}

/// What one curve is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The GPU; of a peer copy the source.
    pub gpu: EndpointId,
    /// The target of a peer copy.
    pub peer: Option<EndpointId>,
    /// Method and form.
    pub method: Method,
    pub direction: Direction,
    /// The host end; [`HostMemory::Pinned`] for peer copies, where it means nothing.
    pub memory: HostMemory,
    /// What else the GPU carries.
    pub load: Load,
    /// GPUs that copy the same way at the same time, this one included.
    pub active: u32,
    /// Pieces that one request consists of.
    pub pieces: u32,
}

/// How `staged` works in one situation, found by measurement (specification of transfers, 2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Threads that copy between ordinary and pinned memory (Cho 2018: producers).
    pub threads: u32,
    /// Size of one pinned buffer; there are two a thread.
    pub buffer: Bytes,
    /// How the threads write.
    pub stores: Stores,
    /// Chunks on the engine at a time.
    pub in_flight: u32,
}

/// The situation a [`Tuning`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TuningKey {
    pub gpu: EndpointId,
    pub direction: Direction,
    /// Ordinary memory: warm, fresh or file.
    pub memory: HostMemory,
    /// GPUs that copy the same way at the same time, this one included.
    pub active: u32,
}

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
    /// Whether figures measured under this stamp still hold under `now`; commit and date do not count.
    #[must_use]
    pub fn matches(&self, now: &Self) -> bool {
        self.difference(now).is_none()
    }

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
    pub curves: BTreeMap<Key, Curve>,
    /// Of posted window stores, the time until the CPU has handed the data over, by the key of the curve in `curves` that
    /// says when it can be seen. Methods are compared by the latter.
    pub posted: BTreeMap<Key, Curve>,
    /// The tunings of `staged`: the fastest that was found, with threads in reserve.
    pub tunings: BTreeMap<TuningKey, Tuning>,
    /// Who waits for whom at the copy engines; a pair that is missing was not asked.
    pub arbitration: BTreeMap<(EndpointId, Direction), Arbitration>,
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
