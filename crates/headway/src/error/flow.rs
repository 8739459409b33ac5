//! Why flows and their copies are not possible.

use std::time::Duration;

use headway_core::decisions::flows::{FlowRefused, SubmitRefused};
use headway_core::units::Nanos;

/// Why a flow or a copy of it is not possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// It cannot be promised. Nothing has changed.
    #[error(transparent)]
    Refused(#[from] FlowRefused),
    /// This copy is not one of the flow's.
    #[error(transparent)]
    Submit(#[from] SubmitRefused),
    /// The buffers are not those of such a copy.
    #[error("a copy of flow `{flow}`: {reason}")]
    Buffers { flow: String, reason: &'static str },
    /// It was admitted, and closed again: other flows never let its chunks become small enough.
    #[error(
        "flow `{flow}` was admitted, but other promised copies kept the engine busy for {}; open it while fewer of them are made", Nanos(after.as_nanos() as u64)
    )]
    Unsettled { flow: String, after: Duration },
    /// The flow was closed while the copy was held.
    #[error("flow `{flow}` was closed while a copy was held until its period allowed it; the copy was not made")]
    Closed { flow: String },
    /// The broker that counted other programs has ended, or has cut this one off. Nothing is promised any more.
    #[error("flow `{flow}` is lost with the connection to the broker that promised it; open it again")]
    BrokerLost { flow: String },
    /// A broker counts the programs of a node from its first flow.
    #[error("the node has flows, or a broker; ask for the broker before the first flow, once")]
    LateBroker,
    /// The copy failed, and a former wait for its ticket has said why.
    #[error("a copy of flow `{flow}` failed, as was told when its ticket was waited for the first time")]
    Told { flow: String },
    /// No thread for copies that are submitted.
    #[error("flow `{flow}` gets no thread ({reason}); raise the limit of processes (`ulimit -u`), or use `copy`")]
    Thread { flow: String, reason: String },
    /// Time is up, and the copy goes on.
    #[error("the copy of flow `{flow}` has not ended after {}; it goes on", Nanos(after.as_nanos() as u64))]
    Late { flow: String, after: Duration },
}

impl FlowError {
    /// Whether this is a negative answer, rather than a failure to find one.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Self::Refused(FlowRefused::Unfit(_)))
    }
}
