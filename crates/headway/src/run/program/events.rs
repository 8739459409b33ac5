//! What happens in a run, told to the program while it happens.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use headway_core::decisions::dispatch::{DispatchEvent, DispatchInput, UrgentAnswer};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::plan::{Outcome, PipelineSource, Plan};
use headway_core::units::Nanos;
use headway_runtime::program::Callbacks;

use super::after;
use crate::fork::Home;

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunEvent {
    /// When, after the run's time zero.
    pub at: Nanos,
    pub kind: RunEventKind,
}

/// Packets that were late or lost, and urgent copies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunEventKind {
    /// A source gave packets later than the plan needs them.
    SourceLate {
        stream: String,
        /// The first of them.
        packet: u64,
        /// All that share the cycle.
        packets: u64,
        by: Nanos,
    },
    /// A packet was delivered after its deadline.
    Missed { stream: String, packet: u64, by: Nanos, why: MissReason },
    /// A packet was given up, since it was late and its stream skips.
    GivenUp { stream: String, packet: u64 },
    /// A sink was not ready for a result.
    ResultDropped { stream: String, packet: u64 },
    /// An urgent copy was admitted or refused. Requests are counted from 0 for each name; times of the answer are after the run's time zero.
    UrgentAnswered { name: String, request: u64, answer: UrgentAnswer },
    /// All bytes of an urgent copy are there.
    UrgentDone { name: String, request: u64 },
}

/// Why a packet was late: what delayed its cycle most.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissReason {
    /// The program gave the packets of this stream too late.
    SourceLate { stream: String, by: Nanos },
    /// The thread that drives the devices was woken later than the plan allows.
    DriverLate { by: Nanos },
    /// A step took longer than the plan counts with.
    Overrun { step: String, took: Nanos, cost: Nanos },
    /// The plan said that deadlines can be missed, and the run was forced.
    NotPromised,
    /// The log of the run says more.
    Unknown,
}

impl MissReason {
    fn delay(&self) -> Nanos {
        match self {
            Self::SourceLate { by, .. } | Self::DriverLate { by } => *by,
            Self::Overrun { took, cost, .. } => took.saturating_sub(*cost),
            Self::NotPromised | Self::Unknown => Nanos::ZERO,
        }
    }
}

impl fmt::Display for MissReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SourceLate { stream, by } => write!(f, "the source of stream `{stream}` was {by} late"),
            Self::DriverLate { by } => write!(f, "the thread that drives the devices was woken {by} late"),
            Self::Overrun { step, took, cost } => {
                write!(f, "step `{step}` took {took}, and the plan counts with {cost}")
            }
            Self::NotPromised => f.write_str("the plan had said that deadlines can be missed"),
            Self::Unknown => f.write_str("the log of the run says more"),
        }
    }
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: {}", self.at, self.kind)
    }
}

impl fmt::Display for RunEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SourceLate { stream, packet, packets: 1, by } => {
                write!(f, "the source of stream `{stream}` gave packet {packet} {by} too late")
            }
            Self::SourceLate { stream, packet, packets, by } => {
                write!(f, "the source of stream `{stream}` gave {packets} packets from {packet} on {by} too late")
            }
            Self::Missed { stream, packet, by, why } => {
                write!(f, "packet {packet} of stream `{stream}` missed its deadline by {by}: {why}")
            }
            Self::GivenUp { stream, packet } => write!(f, "packet {packet} of stream `{stream}` was given up"),
            Self::ResultDropped { stream, packet } => {
                write!(f, "the sink of stream `{stream}` was not ready for the result of packet {packet}")
            }
            Self::UrgentAnswered { name, request, answer } => match answer {
                UrgentAnswer::Guaranteed { deadline } => {
                    write!(f, "urgent copy {request} of `{name}` will be there at {deadline}")
                }
                UrgentAnswer::BestEffort(why) => {
                    write!(f, "urgent copy {request} of `{name}` goes without a promise: {why}")
                }
                UrgentAnswer::Refused(why) => write!(f, "urgent copy {request} of `{name}` is refused: {why}"),
            },
            Self::UrgentDone { name, request } => write!(f, "urgent copy {request} of `{name}` is there"),
        }
    }
}

/// The events of a run, in the order of time. They end with the run. In a forked child there are none.
pub struct RunEvents {
    home: Home,
    events: Receiver<RunEvent>,
    lost: Arc<AtomicU64>,
}

impl RunEvents {
    /// The next event, within `limit`; `None` if none comes, or the run is over.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<RunEvent> {
        self.home.is_here().then(|| self.events.recv_timeout(limit).ok())?
    }

    /// Events that nobody took in time, and that are lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Iterator for RunEvents {
    type Item = RunEvent;

    /// Waits for the next event; `None` when the run is over.
    fn next(&mut self) -> Option<RunEvent> {
        self.home.is_here().then(|| self.events.recv().ok())?
    }
}

/// Tells events, and never waits for who takes them.
#[derive(Clone)]
pub(in crate::run) struct EventSender {
    events: SyncSender<RunEvent>,
    lost: Arc<AtomicU64>,
}

impl EventSender {
    pub(in crate::run) fn tell(&self, at: Nanos, kind: RunEventKind) {
        if self.events.try_send(RunEvent { at, kind }).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub(super) fn channel(waiting: usize) -> (EventSender, RunEvents) {
    let (sender, events) = mpsc::sync_channel(waiting.max(1));
    let lost = Arc::<AtomicU64>::default();
    (EventSender { events: sender, lost: Arc::clone(&lost) }, RunEvents { home: Home::here(), events, lost })
}

/// Cycles of a pipeline of which it is remembered what went wrong.
const CYCLES_MAX: usize = 64;

/// Reads the records of a run as they come, and tells the program what concerns it.
pub(in crate::run) struct Observer {
    plan: Arc<Plan>,
    callbacks: Arc<Callbacks>,
    events: Option<EventSender>,
    epoch: Nanos,
    /// What delayed each cycle most, the newest cycle last, by pipeline.
    reasons: BTreeMap<u32, VecDeque<(u64, MissReason)>>,
}

impl Observer {
    pub(in crate::run) fn new(plan: &Arc<Plan>, callbacks: &Arc<Callbacks>, events: Option<EventSender>) -> Self {
        let (plan, callbacks) = (Arc::clone(plan), Arc::clone(callbacks));
        Self { plan, callbacks, events, epoch: Nanos::ZERO, reasons: BTreeMap::new() }
    }

    pub(in crate::run) fn see(&mut self, record: &LogRecord) {
        let event = match &record.what {
            RecordBody::Event(event) => event,
            RecordBody::Input(DispatchInput::Start { epoch, .. }) => {
                self.epoch = *epoch;
                return;
            }
            _ => return,
        };
        if let Some(kind) = self.told(event)
            && let Some(events) = &self.events
        {
            events.tell(record.at.saturating_sub(self.epoch), kind);
        }
    }

    fn told(&mut self, event: &DispatchEvent) -> Option<RunEventKind> {
        match *event {
            DispatchEvent::DataLate { pipeline, cycle, by } => {
                let number = self.callbacks.slowest(pipeline, cycle)?;
                let stream = &self.plan.streams[number as usize];
                let packets = stream.packets_in(&self.plan.pipelines[pipeline as usize], cycle);
                let (packet, count) = (packets.start, packets.end - packets.start);
                let stream = stream.id.clone();
                self.callbacks.gave_late(number, count, by);
                self.remember(pipeline, cycle, MissReason::SourceLate { stream: stream.clone(), by });
                Some(RunEventKind::SourceLate { stream, packet, packets: count, by })
            }
            DispatchEvent::ReleaseLate { pipeline, cycle, by, .. } => {
                self.remember(pipeline, cycle, MissReason::DriverLate { by });
                None
            }
            DispatchEvent::Overrun { pipeline, cycle, step, cost, took } => {
                let step = self.plan.pipelines[pipeline as usize].steps[step as usize].name.clone();
                self.remember(pipeline, cycle, MissReason::Overrun { step, took, cost });
                None
            }
            DispatchEvent::Missed { stream, packet, by } => {
                let why = self.reason(stream, packet);
                let stream = self.plan.streams[stream as usize].id.clone();
                Some(RunEventKind::Missed { stream, packet, by, why })
            }
            DispatchEvent::Lost { stream, packet } => {
                let stream = self.plan.streams[stream as usize].id.clone();
                Some(RunEventKind::GivenUp { stream, packet })
            }
            DispatchEvent::Answered { pipeline, cycle, answer, .. } => {
                let name = self.plan.pipelines[pipeline as usize].name.clone();
                Some(RunEventKind::UrgentAnswered { name, request: cycle, answer: after(self.epoch, answer) })
            }
            DispatchEvent::Complete { pipeline, cycle, .. } => {
                let of = &self.plan.pipelines[pipeline as usize];
                let is_urgent = matches!(of.source, PipelineSource::Urgent(_));
                is_urgent.then(|| RunEventKind::UrgentDone { name: of.name.clone(), request: cycle })
            }
            _ => None,
        }
    }

    fn remember(&mut self, pipeline: u32, cycle: u64, reason: MissReason) {
        let cycles = self.reasons.entry(pipeline).or_default();
        if let Some((_, known)) = cycles.iter_mut().find(|(of, _)| *of == cycle) {
            if reason.delay() > known.delay() {
                *known = reason;
            }
            return;
        }
        if cycles.len() == CYCLES_MAX {
            cycles.pop_front();
        }
        cycles.push_back((cycle, reason));
    }

    fn reason(&self, stream: u32, packet: u64) -> MissReason {
        let stream = &self.plan.streams[stream as usize];
        let cycle = stream.cycle_of(&self.plan.pipelines[stream.pipeline as usize], packet);
        let known = self.reasons.get(&stream.pipeline).and_then(|cycles| cycles.iter().find(|(of, _)| *of == cycle));
        match known {
            Some((_, reason)) => reason.clone(),
            None if self.plan.verdict.outcome != Outcome::Schedulable => MissReason::NotPromised,
            None => MissReason::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_nobody_takes_are_counted_and_never_waited_for() {
        let (sender, mut events) = channel(2);
        for request in 0..5 {
            sender.tell(Nanos(request), RunEventKind::UrgentDone { name: "order".to_owned(), request });
        }
        assert_eq!(events.lost(), 3);
        drop(sender);
        let taken: Vec<String> = events.by_ref().map(|event| event.to_string()).collect();
        assert_eq!(taken.len(), 2);
        assert!(taken[1].contains("urgent copy 1 of `order` is there"), "{taken:?}");
    }
}
