//! Every engine by itself.

use super::{StrategyRow, Tried, none_tied, unnamed};
use crate::plan::planner::batches;

pub(super) const ROW: StrategyRow = StrategyRow {
    name: "partitioned",
    summary: "every engine by itself, at the rate it keeps whatever the others do",
    tried: Tried::WhereCalibrated,
    is_baseline: false,
    gangs: None,
    one_by_one: false,
    batches_streams: false,
    messages: batches::single_blocks,
    tied: none_tied,
    meets: Some(|_, _, _| true),
    server_name: unnamed,
};
