//! Urgent copies that a program asks for while its plan runs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use headway_core::decisions::dispatch::UrgentAnswer;
use headway_core::files::workload::{Otherwise, Urgent};
use headway_core::plan::{PipelineSource, Plan};
use headway_core::units::{Bytes, Nanos};
use headway_device::Engines;
use headway_device::buffer::MemoryPlace;
use headway_device::gpu::{Caching, CpuReach, Gpu};
use headway_os::clock;
use headway_runtime::endpoints::CopyPath;
use headway_runtime::wall::{CopyEnds, RequestOutcome, Requests, UrgentRequest};

use crate::error::ProgramError;
use crate::flow::FlowPlace;
use crate::fork::{Home, at_home};
use crate::{Error, Failure};

/// In errors.
const URGENT: &str = "an urgent copy";

/// Where a program asks for the urgent copies of one name. Clones ask the same run.
#[derive(Clone)]
pub struct UrgentCopies {
    name: String,
    pipeline: u32,
    urgent: Urgent,
    path: CopyPath,
    gpus: Vec<Arc<dyn Gpu>>,
    requests: Requests,
    home: Home,
}

/// An urgent copy between places of a program.
#[derive(Clone)]
pub struct UrgentCopy {
    pub from: FlowPlace,
    pub to: FlowPlace,
    pub bytes: Bytes,
    /// Counted from when the run takes the request; `None` = as the workload says.
    pub deadline: Option<Nanos>,
    /// What becomes of it if nothing can be promised; `None` = as the workload says.
    pub otherwise: Option<Otherwise>,
}

impl UrgentCopy {
    /// A copy of `bytes`, with deadline and fallback as the workload says.
    #[must_use]
    pub fn new(from: &FlowPlace, to: &FlowPlace, bytes: Bytes) -> Self {
        Self { from: from.clone(), to: to.clone(), bytes, deadline: None, otherwise: None }
    }
}

/// How an urgent copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UrgentReport {
    /// Whether it was promised.
    pub is_promised: bool,
    /// From the call until all bytes were there.
    pub response: Nanos,
    /// What was asked for, from when the run took the request.
    pub deadline: Nanos,
}

/// An urgent copy that was asked for. To drop it does not end the copy.
pub struct UrgentTicket {
    home: Home,
    name: String,
    asked: Nanos,
    deadline: Nanos,
    outcomes: Receiver<RequestOutcome>,
}

impl UrgentCopies {
    pub(super) fn new(name: &str, plan: &Plan, devices: &[Engines], requests: &Requests) -> Result<Self, Error> {
        let simulated = || ProgramError::Simulated { name: name.to_owned() };
        let planned = (0u32..).zip(&plan.pipelines).find_map(|(number, of)| match of.source {
            PipelineSource::Urgent(urgent) if of.name == name => Some((number, urgent, of)),
            _ => None,
        });
        let (pipeline, urgent, of) = planned.ok_or_else(simulated)?;
        let path = of.steps.first().and_then(|step| CopyPath::of(plan, step.operations.first()?));
        let path = path.filter(|path| path.last_device() < devices.len()).ok_or_else(simulated)?;
        let gpus = devices.iter().map(|device| Arc::clone(device.gpu())).collect();
        Ok(Self { name: name.to_owned(), pipeline, urgent, path, gpus, requests: requests.clone(), home: Home::here() })
    }

    /// Whether the workload allows one copy of `bytes` bytes, whose ends have room for `room`.
    ///
    /// # Errors
    /// `ErrorKind::Options` if it does not.
    pub fn check_size(&self, bytes: Bytes, room: Bytes) -> Result<(), Error> {
        let max = self.urgent.bytes;
        if bytes > room.min(max) || bytes == Bytes(0) {
            return Err(ProgramError::TooLarge { name: self.name.clone(), asked: bytes, room, max }.into());
        }
        Ok(())
    }

    /// New memory of `bytes` bytes where such copies begin.
    ///
    /// # Errors
    /// `ErrorKind::Device`.
    pub fn from_place(&self, bytes: usize) -> Result<FlowPlace, Error> {
        self.place(self.path.from, bytes)
    }

    /// New memory of `bytes` bytes where such copies end.
    ///
    /// # Errors
    /// `ErrorKind::Device`.
    pub fn to_place(&self, bytes: usize) -> Result<FlowPlace, Error> {
        self.place(self.path.to, bytes)
    }

    fn place(&self, gpu: Option<usize>, bytes: usize) -> Result<FlowPlace, Error> {
        let buffer = match gpu {
            Some(gpu) => self.gpus[gpu].device_buffer(bytes, CpuReach::Device),
            None => self.gpus[self.path.last_device()].pinned_buffer(bytes, Caching::Cached),
        };
        Ok(FlowPlace { buffer: buffer.map_err(Failure::Device)?, offset: 0 })
    }

    /// Asks for a copy, and returns at once. While it is under way its places must not be claimed.
    ///
    /// # Errors
    /// `ErrorKind::Options` for a copy that is none of these, and while no run is under way.
    pub fn ask(&self, copy: UrgentCopy) -> Result<UrgentTicket, Error> {
        at_home(self.home, URGENT)?;
        let UrgentCopy { from, to, bytes, deadline, otherwise } = copy;
        let name = || self.name.clone();
        if !self.is_at(&from, self.path.from) || !self.is_at(&to, self.path.to) {
            let end = |gpu: Option<usize>| {
                gpu.map_or_else(|| "pinned memory of the host".to_owned(), |gpu| format!("GPU {gpu}"))
            };
            let path = format!("{} to {}", end(self.path.from), end(self.path.to));
            return Err(ProgramError::Ends { name: name(), path }.into());
        }
        let room = |place: &FlowPlace| place.buffer.len().saturating_sub(place.offset) as u64;
        self.check_size(bytes, Bytes(room(&from).min(room(&to))))?;
        let deadline = deadline.unwrap_or(self.urgent.deadline);
        let ends = CopyEnds { from: from.buffer, from_offset: from.offset, to: to.buffer, to_offset: to.offset };
        let request = UrgentRequest {
            pipeline: self.pipeline,
            bytes,
            deadline,
            otherwise: otherwise.unwrap_or(self.urgent.otherwise),
            ends: Some(ends),
        };
        let asked = clock::now();
        let outcomes = self.requests.ask(request).map_err(|_| ProgramError::NoRun { name: name() })?;
        Ok(UrgentTicket { home: self.home, name: name(), asked, deadline, outcomes })
    }

    /// Whether a place is on that GPU, or in the host's memory.
    fn is_at(&self, place: &FlowPlace, gpu: Option<usize>) -> bool {
        match (place.buffer.place(), gpu) {
            (MemoryPlace::Device { id, .. }, Some(gpu)) => id == self.gpus[gpu].id(),
            (MemoryPlace::Host { pinned }, None) => pinned.is_some(),
            _ => false,
        }
    }
}

impl UrgentTicket {
    /// Waits for the end of the copy, for `limit` at most.
    ///
    /// # Errors
    /// `ErrorKind::NotAccepted` if it was refused; `ErrorKind::Options` if the run did not take it; `ErrorKind::Device` when time is up or
    /// the run ended before.
    pub fn wait(self, limit: Duration) -> Result<UrgentReport, Error> {
        let Self { home, name, asked, deadline, outcomes } = self;
        at_home(home, URGENT)?;
        let until = Instant::now().checked_add(limit);
        let mut is_promised = false;
        loop {
            let left = until.map_or(limit, |until| until.saturating_duration_since(Instant::now()));
            return Err(match outcomes.recv_timeout(left) {
                Ok(RequestOutcome::Answer(UrgentAnswer::Refused(why))) => ProgramError::Refused { name, why },
                Ok(RequestOutcome::Answer(answer)) => {
                    is_promised = matches!(answer, UrgentAnswer::Guaranteed { .. });
                    continue;
                }
                Ok(RequestOutcome::Arrived(at)) => {
                    return Ok(UrgentReport { is_promised, response: at.saturating_sub(asked), deadline });
                }
                Ok(RequestOutcome::NotTaken) => ProgramError::NotTaken { name },
                Err(RecvTimeoutError::Timeout) => ProgramError::Late { name, after: limit },
                Err(RecvTimeoutError::Disconnected) => ProgramError::Ended { name },
            }
            .into());
        }
    }
}
