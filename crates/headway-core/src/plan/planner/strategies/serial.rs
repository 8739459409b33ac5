//! One message, or one copy of a stream, at a time in the whole node. The blocks of a message move together.

use super::{StrategyRow, Tried, copies_tied, unnamed};
use crate::plan::planner::batches;

pub(super) const ROW: StrategyRow = StrategyRow {
    name: "serial",
    summary: "one message, or one copy of a stream, at a time in the whole node",
    tried: Tried::Always,
    is_baseline: false,
    gangs: None,
    one_by_one: true,
    batches_streams: false,
    messages: batches::whole_messages,
    tied: copies_tied,
    meets: None,
    server_name: unnamed,
};
