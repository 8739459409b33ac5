//! A book's inputs and answers as data: a history that was written down is made again.

use serde::{Deserialize, Serialize};

use super::{
    FlowAdmitted, FlowBook, FlowClosed, FlowContract, FlowFault, FlowId, FlowJob, FlowJobReport, FlowRefused,
    FlowUnknown, JobFacts, SubmitRefused,
};
use crate::models::transfer::Direction;
use crate::units::{Bytes, Nanos};

/// What a book is asked or told; each is the method of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FlowInput {
    Open(FlowContract),
    Drained { gpu: u32, direction: Direction },
    Submit { flow: FlowId, bytes: Bytes },
    Urgent { gpu: u32, direction: Direction, bytes: Bytes, deadline: Nanos },
    Begin { flow: FlowId, sequence: u64 },
    Ended { flow: FlowId, sequence: u64, facts: JobFacts },
    GivenUp { flow: FlowId, sequence: u64, facts: JobFacts },
    Failed { flow: FlowId, sequence: u64 },
    Fault { gpu: u32, direction: Direction, fault: FlowFault },
    Close { flow: FlowId },
    Rest { gpu: u32, direction: Direction },
}

/// What a book answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FlowAnswer {
    Opened(Result<FlowAdmitted, FlowRefused>),
    Submitted(Result<FlowJob, SubmitRefused>),
    Urgent(Result<FlowJob, FlowRefused>),
    Begun(Result<Bytes, FlowUnknown>),
    Ended(Result<FlowJobReport, FlowUnknown>),
    Closed(Result<FlowClosed, FlowUnknown>),
    /// The input has no answer.
    Told,
}

impl FlowBook {
    /// Does what `input` says.
    pub fn handle(&mut self, now: Nanos, input: FlowInput) -> FlowAnswer {
        match input {
            FlowInput::Open(contract) => FlowAnswer::Opened(self.open(now, contract)),
            FlowInput::Submit { flow, bytes } => FlowAnswer::Submitted(self.submit(now, flow, bytes)),
            FlowInput::Urgent { gpu, direction, bytes, deadline } => {
                FlowAnswer::Urgent(self.urgent(now, gpu, direction, bytes, deadline))
            }
            FlowInput::Ended { flow, sequence, facts } => FlowAnswer::Ended(self.ended(now, flow, sequence, facts)),
            FlowInput::GivenUp { flow, sequence, facts } => {
                FlowAnswer::Ended(self.given_up(now, flow, sequence, facts))
            }
            FlowInput::Begin { flow, sequence } => FlowAnswer::Begun(self.begin(now, flow, sequence)),
            FlowInput::Failed { flow, sequence } => FlowAnswer::Ended(self.failed(now, flow, sequence)),
            FlowInput::Close { flow } => FlowAnswer::Closed(self.close(now, flow)),
            FlowInput::Drained { gpu, direction } => {
                self.drained(now, gpu, direction);
                FlowAnswer::Told
            }
            FlowInput::Fault { gpu, direction, fault } => {
                self.fault(now, gpu, direction, fault);
                FlowAnswer::Told
            }
            FlowInput::Rest { gpu, direction } => {
                self.rest(now, gpu, direction);
                FlowAnswer::Told
            }
        }
    }
}
