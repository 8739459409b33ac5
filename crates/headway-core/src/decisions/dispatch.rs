//! The deadline dispatcher: releases the steps of every pipeline and orders them in front of every server.
//!
//! Non-preemptive EDF, work-conserving, in chunks (specification of messages, 5). It is a sans-IO state machine: the
//! simulator, the emulated device and the GPU drive the same object. The driver feeds every input of one instant with
//! [`Dispatcher::handle`], then drains [`Dispatcher::poll_action`], then [`Dispatcher::poll_event`], then sleeps until
//! [`Dispatcher::poll_timeout`] or the next completion. A server decides only when the first action is polled, so all
//! inputs of an instant count; polling when there is nothing to decide changes nothing, and a spurious timeout does nothing.

mod announced;
mod check;
mod chunks;
mod late_releases;
mod load_shedding;
mod messages;
mod missed_packets;
mod order;
mod together;
mod unplanned;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::plan::{PipelineSource, Plan, PlannedStep, ServiceClass};
use crate::units::{Bytes, Nanos};

use announced::{Contents, Producers};
use check::{check, fits};
use chunks::{carried, chunk, whole};
use late_releases::LateReleases;
use load_shedding::LoadShedding;
pub use messages::{
    DispatchAction, DispatchEvent, DispatchInput, DispatchRefused, DispatcherLimits, TIME_MAX, Unfit, UrgentAnswer,
};
pub use missed_packets::NAMED_MAX;
use missed_packets::PacketDeadlines;
use order::Key;
use together::Together;
use unplanned::Requests;

/// A job: one step of one cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepInstance {
    pipeline: u32,
    cycle: u64,
    step: u32,
}

/// A job in front of a server, with what of it has been submitted and completed.
#[derive(Clone, Debug)]
struct WaitingStep {
    job: StepInstance,
    bytes: Bytes,
    next: Bytes,
}

/// A unit of non-preemptive work on a server: a chunk, all blocks of a batch, or jobs of a gang.
#[derive(Clone, Debug)]
struct Unit {
    server: u32,
    jobs: Vec<StepInstance>,
    outstanding: u32,
    /// Whether nothing is guaranteed to it.
    rest: bool,
    first_start: Nanos,
    last_finish: Nanos,
}

/// A cycle whose block is there and that is not delivered.
#[derive(Clone, Debug)]
struct Cycle {
    cycle: u64,
    bytes: Bytes,
    /// Steps whose window has opened.
    released: u32,
    /// Steps that are complete.
    complete: u32,
    /// Steps that have joined a queue.
    queued: u32,
    /// Engine time of the running step, and its units not yet ended.
    took: Nanos,
    units: u32,
    submitted_all: bool,
    /// What it carries of each part of a batch, where that is not as planned.
    contents: Option<Contents>,
}

#[derive(Debug, Default)]
struct ServerQueue {
    waiting: BTreeMap<Key, WaitingStep>,
    in_flight: u32,
    /// Units in flight that nothing is guaranteed.
    in_rest: u32,
}

#[derive(Debug)]
struct Progress {
    cycles: u64,
    finished: u64,
    open: VecDeque<Cycle>,
    /// The window of a message or flow that found no room, and its cycle.
    held: Option<(Nanos, u64)>,
}

/// When the window of a step opens. The order of fields is the order in which windows of one instant open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Timer {
    at: Nanos,
    pipeline: u32,
    step: u32,
    cycle: u64,
}

/// The state machine. See the module's documentation for the order of calls.
#[derive(Debug)]
pub struct Dispatcher {
    plan: Plan,
    limits: DispatcherLimits,
    now: Nanos,
    epoch: Option<Nanos>,
    packets: Vec<u64>,
    /// By pipeline.
    deadlines: Vec<PacketDeadlines>,
    halted: bool,
    timers: BinaryHeap<Reverse<Timer>>,
    pipelines: Vec<Progress>,
    unfinished: usize,
    servers: Vec<ServerQueue>,
    dirty: Vec<bool>,
    units: BTreeMap<u64, Unit>,
    /// Operation number to unit number; a batch has several operations in one unit.
    operations: BTreeMap<u64, u64>,
    operation_count: u64,
    unit_count: u64,
    sequence: u64,
    actions: VecDeque<DispatchAction>,
    events: VecDeque<DispatchEvent>,
    load_shedding: LoadShedding,
    late_releases: LateReleases,
    together: Together,
    requests: Requests,
    producers: Producers,
}

impl Dispatcher {
    /// A dispatcher for `plan`, waiting for [`DispatchInput::Start`].
    ///
    /// # Errors
    /// [`DispatchRefused::Plan`] if an index in the plan leads nowhere; a plan from [`crate::plan::planner`] never does.
    /// [`DispatchRefused::TooLong`], [`DispatchRefused::TooManyCycles`] or [`DispatchRefused::TooManyOperations`] if a step could never run.
    pub fn new(plan: Plan, limits: DispatcherLimits) -> Result<Self, DispatchRefused> {
        check(&plan, &limits)?;
        let servers: Vec<ServerQueue> = plan.servers.iter().map(|_| ServerQueue::default()).collect();
        let pipelines = plan
            .pipelines
            .iter()
            .map(|_| Progress { cycles: 0, finished: 0, open: VecDeque::new(), held: None })
            .collect();
        Ok(Self {
            limits,
            now: Nanos::ZERO,
            epoch: None,
            packets: Vec::new(),
            deadlines: plan.pipelines.iter().map(|pipeline| PacketDeadlines::of(&plan, pipeline)).collect(),
            halted: false,
            timers: BinaryHeap::new(),
            pipelines,
            unfinished: plan.pipelines.iter().filter(|pipeline| pipeline.source.is_planned()).count(),
            dirty: vec![false; servers.len()],
            servers,
            units: BTreeMap::new(),
            operations: BTreeMap::new(),
            operation_count: 0,
            unit_count: 0,
            sequence: 0,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            load_shedding: LoadShedding::of(&plan),
            late_releases: LateReleases::of(&plan),
            together: Together::of(&plan),
            requests: Requests::of(&plan),
            producers: Producers::of(&plan),
            plan,
        })
    }

    /// The plan it runs.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Takes an input at `now`.
    ///
    /// # Errors
    /// [`DispatchRefused`]; nothing has changed then, so that a log need not have the input.
    pub fn handle(&mut self, now: Nanos, input: &DispatchInput) -> Result<(), DispatchRefused> {
        if now < self.now {
            return Err(DispatchRefused::TimeWentBack { from: self.now, to: now });
        }
        // Before anything changes: a refused input is in no log.
        match *input {
            DispatchInput::Start { epoch, ref cycles, ref packets } => self.may_start(epoch, cycles, packets)?,
            DispatchInput::Data { pipeline, cycle, bytes } => self.may_take_data(pipeline, cycle, bytes)?,
            DispatchInput::Done { operation, .. } => self.expects("completion of operation", operation)?,
            DispatchInput::Failed { operation } => self.expects("failure of operation", operation)?,
            DispatchInput::Urgent { pipeline, bytes, .. } => self.may_ask(pipeline, bytes)?,
            DispatchInput::Ready { pipeline, part, job } => self.may_be_ready(pipeline, part, job)?,
            DispatchInput::Timeout => {}
        }
        self.now = now;
        if let DispatchInput::Ready { pipeline, part, .. } = *input {
            // Windows that open now open with the next input, so that they find all there that is ready now.
            self.ready(pipeline, part);
            return Ok(());
        }
        self.open_windows();
        match *input {
            DispatchInput::Start { epoch, ref cycles, ref packets } => self.start(epoch, cycles, packets),
            DispatchInput::Data { pipeline, cycle, bytes } => self.data(pipeline, cycle, bytes),
            DispatchInput::Done { operation, started, finished } => self.done(operation, started, finished),
            DispatchInput::Failed { operation } => self.failed(operation),
            DispatchInput::Urgent { pipeline, bytes, deadline, otherwise } => {
                self.request(pipeline, bytes, deadline, otherwise)
            }
            DispatchInput::Ready { .. } | DispatchInput::Timeout => {}
        }
        // The start may have put the epoch into the past, and a cycle that ended may have made room for a window.
        self.open_windows();
        self.join_together();
        Ok(())
    }

    /// The next thing the driver must do now.
    pub fn poll_action(&mut self) -> Option<DispatchAction> {
        if self.actions.is_empty() && !self.halted {
            for server in 0..self.servers.len() {
                if std::mem::take(&mut self.dirty[server]) {
                    self.decide(server);
                }
            }
        }
        self.actions.pop_front()
    }

    /// The next event for the user.
    pub fn poll_event(&mut self) -> Option<DispatchEvent> {
        self.events.pop_front()
    }

    /// When to call [`Dispatcher::handle`] with [`DispatchInput::Timeout`] at the latest; `None` = only completions matter.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let window = self.timers.peek().map(|Reverse(timer)| timer.at);
        [window, self.late_releases.poll_timeout(), self.together.poll_timeout()].into_iter().flatten().min()
    }

    /// Whether every cycle that has windows is delivered, and every urgent request; nothing else is under way then.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.epoch.is_some() && self.unfinished == 0 && self.operations.is_empty()
    }

    /// Whether a failure has ended the run early.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// Operations submitted and not ended.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.operations.len()
    }

    fn may_start(&self, epoch: Nanos, cycles: &[u64], packets: &[u64]) -> Result<(), DispatchRefused> {
        if self.epoch.is_some() {
            return Err(DispatchRefused::Order("has begun already"));
        }
        let planned = (self.plan.pipelines.len(), self.plan.streams.len());
        if (cycles.len(), packets.len()) != planned {
            let given = (cycles.len(), packets.len());
            return Err(DispatchRefused::Plan(format!("{given:?} pipelines and streams started, {planned:?} planned")));
        }
        fits(&self.plan, epoch, cycles)
    }

    fn start(&mut self, epoch: Nanos, cycles: &[u64], packets: &[u64]) {
        packets.clone_into(&mut self.packets);
        self.deadlines.iter_mut().for_each(|deadlines| deadlines.begin(packets));
        self.epoch = Some(epoch);
        for (index, &cycles) in (0u32..).zip(cycles) {
            self.pipelines[index as usize].cycles = cycles;
            let pipeline = &self.plan.pipelines[index as usize];
            if !pipeline.source.is_planned() {
                if pipeline.source.class() == ServiceClass::Bulk && cycles > 0 {
                    let at = epoch + pipeline.start;
                    self.timers.push(Reverse(Timer { at, pipeline: index, step: 0, cycle: 0 }));
                }
                continue;
            }
            if cycles == 0 {
                self.unfinished -= 1;
                continue;
            }
            for step in 0..pipeline.steps.len() {
                let at = epoch + pipeline.release(0, step);
                self.timers.push(Reverse(Timer { at, pipeline: index, step: step as u32, cycle: 0 }));
            }
        }
    }

    /// Opens every window whose time has come, in the order of time, pipeline, step, after the jobs that were kept back.
    fn open_windows(&mut self) {
        while let Some((job, release)) = self.late_releases.due(self.now) {
            self.wait(job, release);
        }
        while let Some(&Reverse(timer)) = self.timers.peek() {
            let Timer { at: time, pipeline: index, step, cycle } = timer;
            if time > self.now {
                break;
            }
            self.timers.pop();
            let progress = &mut self.pipelines[index as usize];
            let pipeline = &self.plan.pipelines[index as usize];
            if !pipeline.source.is_planned() {
                self.next_chunk(index, cycle);
                continue;
            }
            let alone = pipeline.source == PipelineSource::Message && self.producers.speak(index);
            let automatic = !pipeline.source.is_fed() && !alone;
            if automatic && step == 0 && progress.open.len() >= self.limits.cycles_in_flight_max {
                progress.held = Some((time, cycle));
                continue;
            }
            if cycle + 1 < progress.cycles {
                let at = time + pipeline.period;
                self.timers.push(Reverse(Timer { at, cycle: cycle + 1, ..timer }));
            }
            if self.now > time + self.plan.jitter {
                self.events.push_back(DispatchEvent::ReleaseLate { pipeline: index, cycle, step, by: self.now - time });
            }
            let at = match progress.open.binary_search_by_key(&cycle, |state| state.cycle) {
                Ok(at) => at,
                Err(_) if automatic && step == 0 => {
                    let contents = self.contents(index, cycle);
                    let bytes = carried(&self.plan.pipelines[index as usize], cycle, contents.as_deref());
                    if bytes == Bytes(0) {
                        self.skip(index, cycle);
                        continue;
                    }
                    let at = self.open_cycle(index, cycle, bytes);
                    self.pipelines[index as usize].open[at].contents = contents;
                    at
                }
                // Its data is not there yet, or it is delivered already.
                Err(_) => continue,
            };
            let state = &mut self.pipelines[index as usize].open[at];
            state.released = state.released.max(step + 1);
            self.enqueue_if_ready(index, at);
        }
    }

    /// Opens `cycle`, whose block has come, and says its position among the open ones.
    fn open_cycle(&mut self, index: u32, cycle: u64, bytes: Bytes) -> usize {
        let epoch = self.epoch.expect("cycles open only after the start");
        let pipeline = &self.plan.pipelines[index as usize];
        let released = (0..pipeline.steps.len()).take_while(|&step| epoch + pipeline.release(cycle, step) <= self.now);
        let state = Cycle {
            cycle,
            bytes,
            released: released.count() as u32,
            complete: 0,
            queued: 0,
            took: Nanos::ZERO,
            units: 0,
            submitted_all: false,
            contents: None,
        };
        let open = &mut self.pipelines[index as usize].open;
        let at = open.partition_point(|other| other.cycle < cycle);
        open.insert(at, state);
        at
    }

    fn may_take_data(&self, pipeline: u32, cycle: u64, bytes: Bytes) -> Result<(), DispatchRefused> {
        if self.epoch.is_none() {
            return Err(DispatchRefused::Order("has not begun"));
        }
        let unexpected = DispatchRefused::Unexpected { what: "data for cycle", number: cycle };
        let Some(progress) = self.pipelines.get(pipeline as usize) else { return Err(unexpected) };
        let planned = &self.plan.pipelines[pipeline as usize];
        let known = progress.open.binary_search_by_key(&cycle, |state| state.cycle).is_ok();
        let alone = planned.source == PipelineSource::Message && self.producers.speak(pipeline);
        let carries = (planned.source.is_fed() || alone) && bytes <= planned.reserve;
        if !carries || known || !(progress.finished..progress.cycles).contains(&cycle) {
            return Err(unexpected);
        }
        if progress.open.len() >= self.limits.cycles_in_flight_max {
            let limit = self.limits.cycles_in_flight_max;
            return Err(DispatchRefused::TooManyCycles { pipeline: planned.name.clone(), limit });
        }
        Ok(())
    }

    /// Takes data that [`Dispatcher::may_take_data`] accepts.
    fn data(&mut self, pipeline: u32, cycle: u64, bytes: Bytes) {
        let epoch = self.epoch.expect("data comes only after the start");
        let due = epoch + self.plan.pipelines[pipeline as usize].release(cycle, 0);
        let at = self.open_cycle(pipeline, cycle, bytes);
        if self.now > due {
            self.events.push_back(DispatchEvent::DataLate { pipeline, cycle, by: self.now - due });
        }
        if bytes == Bytes(0) {
            self.leave_empty(pipeline, at);
        } else {
            self.enqueue_if_ready(pipeline, at);
        }
    }

    /// A cycle that carries nothing: its jobs cost nothing.
    fn skip(&mut self, pipeline: u32, cycle: u64) {
        let at = self.open_cycle(pipeline, cycle, Bytes(0));
        self.leave_empty(pipeline, at);
    }

    fn leave_empty(&mut self, pipeline: u32, at: usize) {
        let steps = planned_steps(&self.plan, pipeline);
        let state = &mut self.pipelines[pipeline as usize].open[at];
        state.complete = steps;
        let cycle = state.cycle;
        self.events.push_back(DispatchEvent::Empty { pipeline, cycle });
        self.retire(pipeline);
    }

    /// Puts the next step of an open cycle in front of its server when its window is open.
    fn enqueue_if_ready(&mut self, pipeline: u32, at: usize) {
        let state = &mut self.pipelines[pipeline as usize].open[at];
        let step = state.complete;
        if step != state.queued || state.released <= step {
            return;
        }
        state.queued = step + 1;
        state.took = Nanos::ZERO;
        state.submitted_all = false;
        let cycle = state.cycle;
        let planned = &self.plan.pipelines[pipeline as usize];
        let epoch = self.epoch.expect("windows open only after the start");
        let deadline = epoch + planned.deadline(cycle, step as usize);
        let job = StepInstance { pipeline, cycle, step };
        let nominal = epoch + planned.release(cycle, step as usize);
        self.events.push_back(DispatchEvent::Ready { pipeline, cycle, step, deadline });
        if self.together.take(job, nominal) {
            return;
        }
        let release = self.late_releases.release(&self.plan, job, nominal, self.now);
        if release <= self.now {
            self.wait(job, release);
        }
    }

    /// Puts a job in front of its server, a window before its place in the queue.
    fn wait(&mut self, job: StepInstance, release: Nanos) {
        let planned = &self.plan.pipelines[job.pipeline as usize];
        let place = release.saturating_add(planned.window_of(job.step as usize));
        self.enqueue(job, place, ServiceClass::Guaranteed);
    }

    /// Puts a job in front of its server, before all that are due later.
    fn enqueue(&mut self, job: StepInstance, place: Nanos, class: ServiceClass) {
        let planned = &self.plan.pipelines[job.pipeline as usize];
        let server = planned.steps[job.step as usize].server as usize;
        let block = self.state(job).expect("a job that is ready keeps its cycle open").bytes;
        let pipeline = &self.plan.pipelines[job.pipeline as usize];
        // What a single operation works on may be a region of the block.
        let single = pipeline.steps[job.step as usize].operations.len() == 1;
        let region = pipeline.source.region(&pipeline.steps, job.step as usize, 0).filter(|_| single);
        let bytes = region.unwrap_or(block);
        self.sequence += 1;
        let key = Key { place, class, sequence: self.sequence };
        if key.is_guaranteed() && self.servers[server].is_idle() {
            self.load_shedding.begin(server);
        }
        self.servers[server].waiting.insert(key, WaitingStep { job, bytes, next: Bytes(0) });
        self.dirty[server] = true;
    }

    /// Submits the most urgent work while the server has room.
    fn decide(&mut self, server: usize) {
        let room = self.plan.servers[server].in_flight;
        if self.servers[server].is_idle() {
            self.requests.rest(server);
            if self.servers[server].in_flight == 0
                && let Some((job, release)) = self.late_releases.rest(server, self.now)
            {
                self.wait(job, release);
            }
        }
        if self.load_shedding.is_possible() && self.servers[server].in_flight < room {
            self.give_up(server);
        }
        while self.servers[server].in_flight < room {
            let keys = self.most_urgent(server);
            let operations = keys.iter().map(|key| self.planned_step(server, key).operations.len()).sum::<usize>();
            if operations == 0 {
                return;
            }
            if self.operations.len() + operations > self.limits.operations_max && !self.operations.is_empty() {
                // Whichever server's operation ends next, this one must be looked at again.
                self.dirty[server] = true;
                return;
            }
            self.servers[server].in_flight += 1;
            self.unit_count += 1;
            let (first_start, last_finish) = (Nanos::MAX, Nanos::ZERO);
            let rest = keys.iter().all(|key| !key.is_guaranteed());
            self.servers[server].in_rest += u32::from(rest);
            let jobs = Vec::new();
            let mut unit = Unit { server: server as u32, jobs, outstanding: 0, rest, first_start, last_finish };
            for key in keys {
                let (job, last_of_job) = self.submit(server, key, &mut unit.outstanding);
                unit.jobs.push(job);
                if let Some(state) = self.state(job) {
                    state.units += 1;
                    state.submitted_all |= last_of_job;
                }
            }
            self.units.insert(self.unit_count, unit);
        }
    }

    /// Submits the next chunk of a waiting job as part of the newest unit; says which job it is and whether that was all.
    fn submit(&mut self, server: usize, key: Key, outstanding: &mut u32) -> (StepInstance, bool) {
        let waiting = self.servers[server].waiting.get_mut(&key).expect("the key was found in the queue");
        let job = waiting.job;
        let pipeline = &self.plan.pipelines[job.pipeline as usize];
        let planned = &pipeline.steps[job.step as usize];
        // Of operations that are submitted one by one, `next` is the number of the next one, and each has a region of its own.
        let only = pipeline.source.one_by_one(planned).then_some(waiting.next.0);
        let (offset, bytes) = if only.is_some() { (Bytes(0), waiting.bytes) } else { chunk(planned, waiting) };
        let count = planned.operations.len() as u64;
        waiting.next = only.map_or(offset + bytes, |only| Bytes(only + 1));
        let last_of_job = only.map_or(count > 1 || waiting.next >= waiting.bytes, |only| only + 1 == count);
        let block = waiting.bytes;
        if last_of_job {
            self.servers[server].waiting.remove(&key);
        }
        let contents = self.state(job).and_then(|state| state.contents.clone());
        let pipeline = &self.plan.pipelines[job.pipeline as usize];
        let planned = &pipeline.steps[job.step as usize];
        for (index, operation) in (0u32..).zip(&planned.operations) {
            if only.is_some_and(|only| only != u64::from(index)) {
                continue;
            }
            let region = pipeline.source.region(&pipeline.steps, job.step as usize, index).filter(|_| count > 1);
            let (offset, bytes) = match (&pipeline.source, region) {
                (_, Some(region)) => (Bytes(0), region),
                (PipelineSource::Batch(parts), None) => {
                    let part = match &contents {
                        Some(contents) => contents[index as usize].clone(),
                        None => parts[index as usize].in_cycle(job.cycle).map(|(_, part)| part),
                    };
                    match part {
                        Some(part) if planned.operations.len() > 1 => (Bytes(part.start), Bytes(part.end - part.start)),
                        Some(part) => (Bytes(part.start + offset.0), bytes),
                        None => continue,
                    }
                }
                _ => whole(planned, operation, offset, bytes, block),
            };
            let number = self.operation_count;
            self.operation_count += 1;
            self.operations.insert(number, self.unit_count);
            *outstanding += 1;
            self.actions.push_back(DispatchAction::Submit {
                operation: number,
                pipeline: job.pipeline,
                cycle: job.cycle,
                step: job.step,
                index,
                offset,
                bytes,
            });
        }
        (job, last_of_job)
    }

    fn state(&mut self, job: StepInstance) -> Option<&mut Cycle> {
        let open = &mut self.pipelines[job.pipeline as usize].open;
        let at = open.binary_search_by_key(&job.cycle, |state| state.cycle).ok()?;
        open.get_mut(at)
    }

    /// Whether an operation is under way that `what` can be told of.
    fn expects(&self, what: &'static str, operation: u64) -> Result<(), DispatchRefused> {
        let is_known = self.operations.contains_key(&operation);
        if is_known { Ok(()) } else { Err(DispatchRefused::Unexpected { what, number: operation }) }
    }

    fn done(&mut self, operation: u64, started: Nanos, finished: Nanos) {
        let number = self.operations.remove(&operation).expect("it is under way");
        let unit = self.units.get_mut(&number).expect("every operation belongs to a unit");
        unit.first_start = unit.first_start.min(started);
        unit.last_finish = unit.last_finish.max(finished);
        unit.outstanding -= 1;
        if unit.outstanding > 0 {
            return;
        }
        let unit = self.units.remove(&number).expect("it was there a line above");
        let server = &mut self.servers[unit.server as usize];
        server.in_flight -= 1;
        server.in_rest -= u32::from(unit.rest);
        self.dirty[unit.server as usize] = true;
        let took = unit.last_finish.saturating_sub(unit.first_start);
        for job in unit.jobs {
            let state = self.state(job).expect("a job under way keeps its cycle open");
            state.took = state.took.saturating_add(took);
            state.units -= 1;
            if state.submitted_all && state.units == 0 {
                self.complete(job);
            }
        }
        if self.load_shedding.is_possible() {
            self.catch_up();
        }
    }

    /// A job's last unit has ended.
    fn complete(&mut self, job: StepInstance) {
        let StepInstance { pipeline, cycle, step } = job;
        let state = self.state(job).expect("a job under way keeps its cycle open");
        state.complete = step + 1;
        let took = state.took;
        let planned = &self.plan.pipelines[pipeline as usize];
        let epoch = self.epoch.expect("jobs exist only after the start");
        let deadline = match planned.source.is_planned() {
            true => epoch + planned.deadline(cycle, step as usize),
            false => self.requests.due(pipeline, cycle),
        };
        let PlannedStep { cost, server, .. } = planned.steps[step as usize];
        let steps = planned.steps.len() as u32;
        self.events.push_back(DispatchEvent::Complete { pipeline, cycle, step });
        if took > cost {
            self.events.push_back(DispatchEvent::Overrun { pipeline, cycle, step, cost, took });
        }
        if self.now > deadline {
            self.events.push_back(DispatchEvent::Late { pipeline, cycle, step, by: self.now - deadline });
        }
        if (took > cost || self.now > deadline)
            && let Some(pipeline) = self.load_shedding.pause(&self.plan, server)
        {
            self.events.push_back(DispatchEvent::Paused { pipeline });
        }
        if step + 1 < steps {
            let open = &self.pipelines[pipeline as usize].open;
            let at = open.binary_search_by_key(&cycle, |state| state.cycle).expect("it was there above");
            self.enqueue_if_ready(pipeline, at);
        } else {
            self.deliver(pipeline, cycle, epoch);
        }
    }

    fn deliver(&mut self, index: u32, cycle: u64, epoch: Nanos) {
        self.actions.push_back(DispatchAction::Deliver { pipeline: index, cycle });
        let events = &mut self.events;
        let tell = |event| events.push_back(event);
        self.deadlines[index as usize].missed(&self.plan, (index, cycle), (epoch, self.now), &self.packets, tell);
        self.retire(index);
        if !self.plan.pipelines[index as usize].source.is_planned() {
            self.goes_on(index, cycle);
        }
    }

    /// Forgets the complete cycles at the front, so that cycles leave in order.
    fn retire(&mut self, pipeline: u32) {
        let steps = planned_steps(&self.plan, pipeline);
        let progress = &mut self.pipelines[pipeline as usize];
        while progress.open.front().is_some_and(|first| first.cycle == progress.finished && first.complete == steps) {
            progress.open.pop_front();
            progress.finished += 1;
            if progress.finished == progress.cycles && self.plan.pipelines[pipeline as usize].source.is_planned() {
                self.unfinished -= 1;
            }
        }
        if progress.open.len() < self.limits.cycles_in_flight_max
            && let Some((time, cycle)) = progress.held.take()
        {
            self.timers.push(Reverse(Timer { at: time, pipeline, step: 0, cycle }));
        }
        if self.producers.speak(pipeline) {
            self.open_ready(pipeline);
        }
    }

    fn failed(&mut self, operation: u64) {
        let number = self.operations.remove(&operation).expect("it is under way");
        // The unit keeps counting it as outstanding: a job of which a part has failed never completes.
        let StepInstance { pipeline, cycle, step } = self.units[&number].jobs[0];
        if !self.halted {
            self.halted = true;
            let operations = &mut self.operations;
            self.actions.retain(|action| match action {
                DispatchAction::Submit { operation, .. } => operations.remove(operation).is_none(),
                DispatchAction::Deliver { .. } | DispatchAction::Drop { .. } => true,
            });
            self.events.push_back(DispatchEvent::Halted { pipeline, cycle, step });
        }
    }
}

fn planned_steps(plan: &Plan, pipeline: u32) -> u32 {
    plan.pipelines[pipeline as usize].steps.len() as u32
}
