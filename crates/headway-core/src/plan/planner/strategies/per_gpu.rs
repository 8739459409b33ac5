//! One transfer at a time for each GPU.

use super::{Context, EnginesInUse, StrategyRow, Tried};
use crate::files::machine::{EngineId, RouteId};
use crate::plan::planner::batches;

pub(super) const ROW: StrategyRow = StrategyRow {
    name: "per-gpu",
    summary: "one transfer at a time for each GPU, at the rate it keeps whatever the other GPUs do",
    tried: Tried::Never,
    is_baseline: false,
    gangs: None,
    one_by_one: false,
    batches_streams: false,
    messages: batches::single_blocks,
    tied: of_each_gpu,
    // A copy that shares an engine's GPU waits for its turn.
    meets: Some(|context, one, other| !share_gpu(context, one, other)),
    server_name: |context, engines| {
        let gpu = context.machine.engines[engines.first()?.at()].gpu;
        Some(format!("{} transfers", context.machine.endpoints[gpu.at()].id))
    },
};

fn of_each_gpu(context: &Context<'_>, used: &EnginesInUse) -> Vec<Vec<EngineId>> {
    let of = |gpu| {
        let own = |engine: &&EngineId| context.machine.engines.get(engine.at()).is_some_and(|of| of.gpu == gpu);
        used.copying.iter().filter(own).copied().collect()
    };
    context.machine.gpus().map(of).collect()
}

fn share_gpu(context: &Context<'_>, one: RouteId, other: RouteId) -> bool {
    let engines = |route: RouteId| &context.machine.routes[route.at()].engines;
    let gpu = |engine: &EngineId| context.machine.engines[engine.at()].gpu;
    engines(one).iter().any(|engine| engines(other).iter().any(|of_other| gpu(engine) == gpu(of_other)))
}
