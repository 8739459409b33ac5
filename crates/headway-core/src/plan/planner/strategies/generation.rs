//! One generation of blocks at a time.

use super::{GangForm, StrategyRow, Tried};
use crate::plan::planner::batches;

pub(super) const ROW: StrategyRow = StrategyRow {
    name: "generation",
    summary: "a baseline: one generation of blocks at a time, all in, all kernels, all out",
    tried: Tried::Never,
    is_baseline: true,
    gangs: Some(GangForm::Chained),
    one_by_one: false,
    batches_streams: false,
    // Beside a gang, a message is a batch as any other.
    messages: batches::whole_messages,
    tied: |_, used| vec![[used.copying.as_slice(), used.computing.as_slice()].concat()],
    meets: None,
    server_name: |_, _| Some("node".to_owned()),
};
