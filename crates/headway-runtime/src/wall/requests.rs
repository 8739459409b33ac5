//! Urgent copies that other threads ask for while a plan runs.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use headway_core::decisions::dispatch::{DispatchEvent, DispatchInput, DispatchRefused, UrgentAnswer};
use headway_core::files::workload::Otherwise;
use headway_core::log::LogRecord;
use headway_core::plan::Plan;
use headway_core::units::{Bytes, Nanos};
use headway_device::{Access, Buffer, DeviceError, Engines};

use super::chunk::StepChunk;
use super::{Driver, Message, RunError};
use crate::endpoints::CopyPath;

/// One end of an urgent copy.
#[derive(Clone, Debug)]
pub struct CopyEnds {
    /// Where it begins.
    pub from: Buffer,
    /// First byte there.
    pub from_offset: usize,
    /// Where it ends.
    pub to: Buffer,
    /// First byte there.
    pub to_offset: usize,
}

/// An urgent copy. Its bytes are claimed chunk by chunk as they move: a buffer that somebody holds then fails the run.
#[derive(Clone, Debug)]
pub struct UrgentRequest {
    /// The plan's pipeline for such requests.
    pub pipeline: u32,
    /// Size, at most the pipeline's reserve.
    pub bytes: Bytes,
    /// Relative deadline, counted from when the driver takes the request.
    pub deadline: Nanos,
    /// What becomes of it if it does not fit.
    pub otherwise: Otherwise,
    /// Where it leads, on the devices of the run; `None` = bytes of the driver's own, which it compares.
    pub ends: Option<CopyEnds>,
}

/// What becomes of a request, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Whether it goes.
    Answer(UrgentAnswer),
    /// It is complete since this time on the host's monotonic clock.
    Arrived(Nanos),
    /// It came too late, asks for too much, or too many are under way: it is as if nobody had asked.
    NotTaken,
}

/// No run takes requests now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no run takes requests now; ask between its start and its end")]
pub struct NotTaken;

/// Where threads ask a run for urgent copies. Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Mutex<Option<Inbox>>>);

#[derive(Clone)]
struct Inbox(Sender<Message>);

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

impl Requests {
    /// Asks for an urgent copy. The channel brings what becomes of it, and ends early only if the run fails.
    ///
    /// # Errors
    /// [`NotTaken`] while no run is under way.
    pub fn ask(&self, request: UrgentRequest) -> Result<Receiver<RequestOutcome>, NotTaken> {
        let (reply, outcomes) = mpsc::channel();
        let inbox = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inbox(inbox) = inbox.as_ref().ok_or(NotTaken)?;
        inbox.send(Message::Ask(Box::new((request, reply)))).map_err(|_| NotTaken)?;
        Ok(outcomes)
    }

    pub(super) fn open(&self, inbox: Sender<Message>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Inbox(inbox));
    }

    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl UrgentRequest {
    /// Submits a chunk to the engine of its path.
    pub(super) fn submit(
        &self,
        plan: &Plan,
        devices: &mut [Engines],
        chunk: &StepChunk,
        operation: u64,
    ) -> Result<(), DeviceError> {
        let planned = &plan.pipelines[chunk.pipeline as usize].steps[chunk.step as usize];
        let unknown = || DeviceError::Invalid { what: "urgent copy", reason: "no engine of a GPU moves it".to_owned() };
        let path = CopyPath::of(plan, &planned.operations[0]).ok_or_else(unknown)?;
        let ends = self.ends.as_ref().ok_or_else(unknown)?;
        let (offset, len) = (chunk.offset.0 as usize, chunk.bytes.0 as usize);
        let (from, to) = (ends.from_offset + offset, ends.to_offset + offset);
        let from = ends.from.claim(from..from + len, Access::Read)?;
        let to = ends.to.claim(to..to + len, Access::Write)?;
        devices[path.device()].copy(path.class, path.method, (from, to), operation)
    }
}

/// The requests of other threads that are under way.
#[derive(Default)]
pub(super) struct Asked(BTreeMap<(u32, u64), (UrgentRequest, Sender<RequestOutcome>)>);

impl Asked {
    /// The request of a cycle, if it has ends of its own.
    pub(super) fn under_way(&self, pipeline: u32, cycle: u64) -> Option<&UrgentRequest> {
        self.0.get(&(pipeline, cycle)).map(|(request, _)| request).filter(|request| request.ends.is_some())
    }

    /// Reports to the requester that all bytes are there. Returns whether the buffers are the requester's; then the run does not compare them.
    pub(super) fn arrived(&mut self, pipeline: u32, cycle: u64, now: Nanos) -> bool {
        let Some((request, reply)) = self.0.remove(&(pipeline, cycle)) else { return false };
        let _ = reply.send(RequestOutcome::Arrived(now));
        request.ends.is_some()
    }
}

impl Driver<'_> {
    /// Feeds the dispatcher the inputs that are due by `now`; whether there were any.
    pub(super) fn feed_due(&mut self, now: Nanos, log: &mut impl FnMut(&LogRecord)) -> Result<bool, RunError> {
        let mut any = false;
        while let Some((at, _)) = self.inputs.front()
            && self.epoch.saturating_add(*at) <= now
        {
            let Some((_, input)) = self.inputs.pop_front() else { break };
            any |= self.offer(now, input, None, log)?;
        }
        Ok(any)
    }

    /// Takes the request of another thread; whether the dispatcher got an input.
    pub(super) fn ask(
        &mut self,
        now: Nanos,
        (request, reply): (UrgentRequest, Sender<RequestOutcome>),
        log: &mut impl FnMut(&LogRecord),
    ) -> Result<bool, RunError> {
        let UrgentRequest { pipeline, bytes, deadline, otherwise, ref ends } = request;
        let fits = |ends: &CopyEnds| {
            let len = bytes.0 as usize;
            let inside =
                |buffer: &Buffer, offset: usize| offset.checked_add(len).is_some_and(|end| end <= buffer.len());
            inside(&ends.from, ends.from_offset) && inside(&ends.to, ends.to_offset)
        };
        if ends.as_ref().is_some_and(|ends| !fits(ends)) {
            let _ = reply.send(RequestOutcome::NotTaken);
            return Ok(false);
        }
        self.offer(now, DispatchInput::Urgent { pipeline, bytes, deadline, otherwise }, Some((request, reply)), log)
    }

    /// Feeds what may be refused without harm.
    fn offer(
        &mut self,
        now: Nanos,
        input: DispatchInput,
        asked: Option<(UrgentRequest, Sender<RequestOutcome>)>,
        log: &mut impl FnMut(&LogRecord),
    ) -> Result<bool, RunError> {
        match self.feed(now, input, log) {
            Ok(()) => {
                // The dispatcher may submit its first chunk before it tells the event of the request.
                while let Some(event) = self.dispatcher.poll_event() {
                    if let (DispatchEvent::Answered { pipeline, cycle, answer, .. }, Some((request, reply))) =
                        (&event, &asked)
                    {
                        // Who asked need not listen.
                        let _ = reply.send(RequestOutcome::Answer(*answer));
                        if !matches!(answer, UrgentAnswer::Refused(_)) {
                            self.asked.0.insert((*pipeline, *cycle), (request.clone(), reply.clone()));
                        }
                    }
                    self.events.push_back(event);
                }
                Ok(true)
            }
            Err(RunError::Dispatch(
                DispatchRefused::TooManyCycles { .. } | DispatchRefused::Order(_) | DispatchRefused::Unexpected { .. },
            )) => {
                if let Some((_, reply)) = asked {
                    let _ = reply.send(RequestOutcome::NotTaken);
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
