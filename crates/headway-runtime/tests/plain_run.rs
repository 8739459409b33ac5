//! A run of a plan whose streams are read from files and written to files.

use std::sync::Arc;

use headway_core::plan::Plan;
use headway_runtime::blocks::{Gatherer, Scatterer};
use headway_runtime::kernels::Kernels;
use headway_runtime::wall::{Requests, SuppliedRun};

pub(crate) fn plain_run<'a>(
    plan: &'a Arc<Plan>,
    kernels: &'a Kernels,
    gatherer: &Gatherer,
    scatterer: Scatterer,
) -> SuppliedRun<'a> {
    SuppliedRun {
        plan,
        kernels,
        cycles: gatherer.cycles(),
        packets: gatherer.runs().iter().map(|run| run.packets).collect(),
        supply: Box::new(gatherer.clone()),
        collect: Box::new(scatterer),
        inputs: Vec::new(),
        requests: Requests::default(),
    }
}
