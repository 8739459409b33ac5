//! All GPUs as one, step by step in cycles of the shortest deadline.

use super::{GangForm, StrategyRow, Tried, copies_tied, unnamed};
use crate::plan::planner::batches;

pub(super) const ROW: StrategyRow = StrategyRow {
    name: "lockstep",
    summary: "a baseline: all GPUs as one, one batch in and one batch out per cycle of the shortest deadline",
    tried: Tried::Never,
    is_baseline: true,
    gangs: Some(GangForm::StepByStep),
    one_by_one: false,
    batches_streams: false,
    // Beside a gang, a message is a batch as any other.
    messages: batches::whole_messages,
    tied: copies_tied,
    meets: None,
    server_name: unnamed,
};
