//! Which method a copy takes: the least measured cost, never worse than the driver's own call (specification of transfers, 3.2).

mod case;

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

pub(crate) use self::case::MethodCase;
use super::{BackgroundLoad, Bounds, Direction, HostMemory, Method, Price, Profile, Statistic, Tuning};
use crate::models::index::EndpointId;
use crate::units::{Bytes, Nanos};

/// A copy for which a method is to be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodRequest {
    /// The GPU; of a peer copy the source.
    pub gpu: EndpointId,
    /// The target of a peer copy.
    pub peer: Option<EndpointId>,
    pub direction: Direction,
    /// Size of all pieces together.
    pub bytes: Bytes,
    /// Pieces, at least 1.
    pub pieces: u32,
    /// The host end.
    pub memory: HostMemory,
    /// Address of the host end modulo 64.
    pub alignment: u8,
    /// What else the GPU carries.
    pub load: BackgroundLoad,
    /// GPUs that copy the same way at the same time, this one included.
    pub active: u32,
    /// What is to be least.
    pub objective: Statistic,
}

impl MethodRequest {
    /// One piece of `bytes` between `gpu` and memory of kind `memory`, aligned, nothing else going on, for the median.
    #[must_use]
    pub const fn new(gpu: EndpointId, direction: Direction, memory: HostMemory, bytes: Bytes) -> Self {
        Self {
            gpu,
            peer: None,
            direction,
            bytes,
            pieces: 1,
            memory,
            alignment: 0,
            load: BackgroundLoad::Alone,
            active: 1,
            objective: Statistic::Median,
        }
    }
}

/// What may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Available {
    /// Methods whose probe succeeded on this GPU. The driver's own call is always there.
    pub methods: BTreeSet<Method>,
    /// No multiprocessor may be used: neither `resident` nor `kernel`.
    pub no_sm: bool,
    /// No threads of our own: no `staged`.
    pub no_threads: bool,
    /// How much of everything a copy may take. With one CPU there is no `staged`, with no multiprocessor no kernel.
    pub bounds: Bounds,
    /// The plan or the broker grants the links and engines of other GPUs.
    pub multipath: bool,
    /// The copy has a deadline that was admitted: only methods with a maximum for its size.
    pub realtime: bool,
    /// How the profile's stamp differs from what is here now ([`super::Stamp::difference`]): the driver only.
    pub stale: Option<String>,
}

/// Why a method was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RejectionReason {
    /// Its probe failed or was not made.
    NotAvailable,
    /// It uses multiprocessors.
    NoSm,
    /// It uses threads of our own.
    NoThreads,
    /// It takes two CPUs at least, or a multiprocessor, and may not.
    Bounded,
    /// The links of other GPUs are not granted.
    NotGranted,
    /// It shortens large copies only, not the worst ones.
    NotForLatency,
    /// The host end is not pinned.
    NotPinned,
    /// It is for other host memory.
    OtherMemory,
    /// Its figures hold from a multiple of 16 bytes.
    Unaligned,
    /// The profile is stale.
    Stale,
    /// The profile has no curve of it for this situation.
    NoCurve,
    /// The objective was not measured at this size.
    NoValue(Statistic),
    /// No maximum at this size.
    NoBound,
    /// Staging must be compared with the driver, whose curve is missing.
    NoComparison,
    /// Staging leads the driver at this size, but by less than 3 %.
    StagingLead(Bytes),
    /// Staging takes as long as the driver at this size, or longer.
    StagingTrails(Bytes),
    /// Staging has a higher p99 than the driver.
    StagingTail,
    /// It leads the driver by less than 3 %.
    WithinMargin,
    /// Another takes less time.
    Slower,
}

impl fmt::Display for RejectionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAvailable => f.write_str("not usable here; `headway doctor` says why"),
            Self::NoSm => f.write_str("excluded: no multiprocessors"),
            Self::NoThreads => f.write_str("excluded: no threads"),
            Self::Bounded => f.write_str("takes more CPUs or multiprocessors than it may"),
            Self::NotGranted => f.write_str("links of other GPUs are not granted"),
            Self::NotForLatency => f.write_str("only for the median"),
            Self::NotPinned => f.write_str("needs pinned memory"),
            Self::OtherMemory => f.write_str("not for this kind of host memory"),
            Self::Unaligned => f.write_str("measured from multiples of 16 bytes only"),
            Self::Stale => f.write_str("the profile is stale"),
            Self::NoCurve => f.write_str("not measured in this situation"),
            Self::NoValue(statistic) => write!(f, "objective {statistic} has no value"),
            Self::NoBound => f.write_str("no maximum, and the copy has a deadline"),
            Self::NoComparison => f.write_str("the driver's call was not measured in the same situation"),
            Self::StagingLead(bytes) => write!(f, "median leads `pageable` by less than 3 % at {bytes}"),
            Self::StagingTrails(bytes) => write!(f, "median no better than that of `pageable` at {bytes}"),
            Self::StagingTail => f.write_str("p99 above that of `pageable`"),
            Self::WithinMargin => f.write_str("leads the driver by less than 3 %"),
            Self::Slower => f.write_str("slower"),
        }
    }
}

/// What became of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MethodVerdict {
    /// It is used.
    Chosen,
    /// It is not.
    Rejected(RejectionReason),
}

/// Predicted cost; `None` = not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CostFigures {
    /// Half of the copies take at most this long.
    pub median: Option<Nanos>,
    /// 99 % take at most this long.
    pub p99: Option<Nanos>,
    /// Upper bound as far as measured.
    pub max: Option<Nanos>,
    /// Samples behind the figures: the smaller number of the two sizes around; 0 = not measured but set.
    pub n: u32,
}

impl CostFigures {
    /// One of them.
    #[must_use]
    pub const fn of(&self, statistic: Statistic) -> Option<Nanos> {
        match statistic {
            Statistic::Median => self.median,
            Statistic::P99 => self.p99,
            Statistic::Max => self.max,
        }
    }
}

/// A method that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    pub method: Method,
    /// Its predicted cost.
    pub figures: CostFigures,
    /// What it keeps busy.
    pub price: Price,
    /// Chosen, or why not.
    pub verdict: MethodVerdict,
}

/// The method that a copy takes, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodChoice {
    pub method: Method,
    /// How, where it goes through pinned buffers from or to ordinary memory.
    pub tuning: Option<Tuning>,
    /// What it keeps busy.
    pub price: Price,
    /// The objective's figure for it; `None` = not known, so nothing may be promised.
    pub predicted: Option<Nanos>,
    /// The best of the methods that could have been chosen and were not.
    pub runner_up: Option<Method>,
    /// What decided, then what was assumed; one line each.
    pub why: Vec<String>,
    /// All methods: the chosen one, then by cost, those without a figure last.
    pub candidates: Vec<Candidate>,
}

/// Chooses the method of `request` among those that `available` allows.
///
/// The least objective wins; a lead below 3 % over the driver's own call goes to that call, as measurements scatter (not for
/// figures that were set or simulated); equal costs go by the order of methods. `staged` needs a median 3 % better than
/// `pageable` at this size and the measured ones around it, and a p99 no worse if both come from 100 copies or more. Where
/// the situation was not measured, the nearest one with figures of the driver's own call is used: fewer or more GPUs active,
/// then nothing else going on, then warm memory, then fewer pieces; without any, built-in figures ([`super::defaults`]). With
/// a stale profile it is the driver. Of the tunings of `staged` whose price was measured it is the cheapest within 5 % of the fastest, as
/// far as `available` allows it ([`Bounds::pick`]).
#[must_use]
pub fn choose(profile: &Profile, request: &MethodRequest, available: &Available) -> MethodChoice {
    MethodCase::new(profile, request, available).choice(request.bytes)
}

#[cfg(test)]
mod tests;
