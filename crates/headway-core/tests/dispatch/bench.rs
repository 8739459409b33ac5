//! A dispatcher under test, fed by hand.

use headway_core::decisions::dispatch::{DispatchEvent, DispatchInput, Dispatcher, DispatcherLimits};
use headway_core::plan::Plan;
use headway_core::units::{Bytes, Nanos};

pub(crate) struct Bench(pub(crate) Dispatcher);

impl Bench {
    /// Started at 0, with so many cycles of every pipeline and as many packets of every stream.
    pub(crate) fn started(plan: Plan, cycles: u64) -> Self {
        let (pipelines, streams) = (plan.pipelines.len(), plan.streams.len());
        let mut dispatcher = Dispatcher::new(plan, DispatcherLimits::default()).unwrap();
        let (cycles, packets) = (vec![cycles; pipelines], vec![cycles; streams]);
        dispatcher.handle(Nanos(0), &DispatchInput::Start { epoch: Nanos(0), cycles, packets }).unwrap();
        Self(dispatcher)
    }

    pub(crate) fn data(&mut self, now: u64, pipeline: u32, cycle: u64) {
        self.0.handle(Nanos(now), &DispatchInput::Data { pipeline, cycle, bytes: Bytes(8) }).unwrap();
    }

    pub(crate) fn done(&mut self, operation: u64, started: u64, now: u64) {
        let (started, finished) = (Nanos(started), Nanos(now));
        self.0.handle(Nanos(now), &DispatchInput::Done { operation, started, finished }).unwrap();
    }

    pub(crate) fn events(&mut self) -> Vec<DispatchEvent> {
        std::iter::from_fn(|| self.0.poll_event()).collect()
    }

    /// Pipelines that were paused and resumed since the last time: (which, whether paused).
    pub(crate) fn pauses(&mut self) -> Vec<(u32, bool)> {
        let pause = |event| match event {
            DispatchEvent::Paused { pipeline } => Some((pipeline, true)),
            DispatchEvent::Resumed { pipeline } => Some((pipeline, false)),
            _ => None,
        };
        self.events().into_iter().filter_map(pause).collect()
    }
}
