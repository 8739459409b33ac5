//! The strategies. Each is a file of this folder, which says everything that is its own, and a row of [`Strategy::row`].

mod combined;
mod generation;
mod lockstep;
mod partitioned;
mod per_gpu;
mod serial;

use serde::{Deserialize, Serialize};

use super::{Context, Pass};
use crate::files::machine::{EngineId, RouteId};

pub(super) use combined::Domains;

/// How transfers are kept apart (specification of messages, 3.4 and 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Strategy {
    /// One message, or one copy of a stream, at a time in the whole node: Verner's "classic scheduling". The blocks of a message move together.
    Serial,
    /// One job at a time in each domain, with messages combined into batches whose blocks move in parallel (`verner-2014`, IV).
    Combined,
    /// Every engine its own server, costs at the rate it keeps whatever the other engines do.
    Partitioned,
    /// One transfer at a time for each GPU, costs at the rate that it keeps whatever the other GPUs do.
    PerGpu,
    /// All GPUs as one, in cycles of the shortest deadline: one batch in and one batch out per cycle, one after the other,
    /// beside one step of kernels. The authors' earlier framework (`verner-2014`, II-C), a baseline.
    Lockstep,
    /// One generation of blocks at a time: all in, all kernels, all out, and only then the next. No pipeline, a baseline.
    Generation,
}

/// The strategies that are no baselines, for who asked for one where it does not apply.
pub(super) fn or_of_others() -> String {
    let others: Vec<&str> =
        Strategy::ALL.into_iter().filter(|other| other.row().gangs.is_none()).map(Strategy::name).collect();
    or_of_names(&others)
}

fn or_of_names(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => quoted.concat(),
    }
}

impl Strategy {
    /// Every strategy, in the order in which they are tried.
    pub const ALL: [Self; 6] =
        [Self::Serial, Self::Combined, Self::Partitioned, Self::PerGpu, Self::Lockstep, Self::Generation];

    /// What it decides.
    pub(super) const fn row(self) -> &'static StrategyRow {
        match self {
            Self::Serial => &serial::ROW,
            Self::Combined => &combined::ROW,
            Self::Partitioned => &partitioned::ROW,
            Self::PerGpu => &per_gpu::ROW,
            Self::Lockstep => &lockstep::ROW,
            Self::Generation => &generation::ROW,
        }
    }

    /// As files, tables and command lines write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// What it keeps apart, in a few words.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        self.row().summary
    }

    /// Whether transfers of different GPUs run at the same time without being planned as one batch: then each is priced at
    /// the rate that it keeps whatever the others do.
    pub(super) const fn lets_gpus_overlap(self) -> bool {
        self.row().meets.is_some()
    }
}

/// What a strategy decides; the passes of the planner ask for it.
pub(super) struct StrategyRow {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) tried: Tried,
    /// Whether it is somebody else's way, for comparison: its windows are not divided unevenly.
    pub(super) is_baseline: bool,
    /// Whether the pipelines of streams on GPUs advance together, and how.
    pub(super) gangs: Option<GangForm>,
    /// Whether the copies of one step go one after the other.
    pub(super) one_by_one: bool,
    /// Whether copies of streams that are released together may become one batch.
    pub(super) batches_streams: bool,
    /// Adds the pipelines of messages.
    pub(super) messages: Pass,
    /// Sets of engines that are one server each, besides those that one operation or batch holds together.
    pub(super) tied: fn(&Context<'_>, &EnginesInUse) -> Vec<Vec<EngineId>>,
    /// Whether a copy on the second route may run beside one on the first that is not in a batch with it: every route that is left
    /// out here makes worst cases too small. `None` = none ever does.
    pub(super) meets: Option<fn(&Context<'_>, RouteId, RouteId) -> bool>,
    /// The name of a server of these engines, two at least; `None` = what they have in common.
    pub(super) server_name: fn(&Context<'_>, &[EngineId]) -> Option<String>,
}

/// When a strategy is tried without being asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tried {
    Always,
    /// On machines that are calibrated: without, nothing says how far transfers that run together keep to the model.
    WhereCalibrated,
    /// On machines that are calibrated, for workloads with messages or with steps of several operations.
    WhereBatchesAre,
    Never,
}

/// How the pipelines of a gang advance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GangForm {
    /// Every step has a window of its own.
    StepByStep,
    /// All steps follow each other in one window.
    Chained,
}

/// Engines that steps of a plan use.
pub(super) struct EnginesInUse {
    /// Those of steps that copy.
    pub(super) copying: Vec<EngineId>,
    /// Those of GPUs in steps that do not.
    pub(super) computing: Vec<EngineId>,
}

/// No engines are one server but those that one operation or batch holds together.
fn none_tied(_: &Context<'_>, _: &EnginesInUse) -> Vec<Vec<EngineId>> {
    Vec::new()
}

fn copies_tied(_: &Context<'_>, used: &EnginesInUse) -> Vec<Vec<EngineId>> {
    vec![used.copying.clone()]
}

fn unnamed(_: &Context<'_>, _: &[EngineId]) -> Option<String> {
    None
}
