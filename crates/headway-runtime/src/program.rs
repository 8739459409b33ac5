//! Ends of streams that a program holds: it gives their packets, or takes what became of them, by callbacks.
//!
//! Each callback has a thread of its own and packets of its own. Whoever drives devices, packs blocks or writes files never waits for
//! one, but in virtual time, which stands still meanwhile. A thread whose callback never returns is left behind when the run ends.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headway_core::files::machine::EngineClass;
use headway_core::log::StreamEnd;
use headway_core::plan::{OperationWork, PipelineSource, Plan, PlannedStream};
use headway_core::units::Nanos;
use headway_os::{clock, threads};

/// Between two looks whether a callback that is waited for is silent for too long, or somebody asked for the end.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
/// Results wait for their sink for so many cycles at most.
const CYCLES_WAITING: u64 = 4;
/// So long the results that are there wait for their sinks when somebody has asked for the end.
const AFTER_INTERRUPT: Nanos = Nanos(1_000_000_000);

/// What a callback says of its packet. An error ends the run.
pub type CallbackResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;
/// Fills a packet of a stream.
pub type GivePacket = Box<dyn FnMut(&PacketRequest<'_>, &mut [u8]) -> CallbackResult + Send>;
/// Takes what became of a packet of a stream.
pub type TakePacket = Box<dyn FnMut(&PacketResult<'_>, &[u8]) -> CallbackResult + Send>;
/// What to call when packets have come.
pub type Came = Arc<dyn Fn() + Send + Sync>;

/// A packet that a source is asked for. Times count from the run's time zero.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PacketRequest<'a> {
    /// The stream's id.
    pub stream: &'a str,
    /// Counted from 0.
    pub packet: u64,
    /// When the plan counts with its arrival.
    pub arrives: Nanos,
    /// By when its bytes must be there; later, the packet is late.
    pub needed: Nanos,
    epoch: Option<Nanos>,
}

impl PacketRequest<'_> {
    /// What is left until the bytes must be there; zero if that is over, `None` in a simulation, where time stands still.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let until = self.epoch?.saturating_add(self.needed);
        Some(Duration::from_nanos(until.saturating_sub(clock::now()).0))
    }
}

/// What became of a packet. Times count from the run's time zero.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PacketResult<'a> {
    /// The stream's id.
    pub stream: &'a str,
    /// Counted from 0.
    pub packet: u64,
    /// When the plan counts with its arrival.
    pub arrived: Nanos,
    /// When its last step had ended.
    pub delivered: Nanos,
    /// By when that was due.
    pub deadline: Nanos,
}

impl PacketResult<'_> {
    /// From arrival to delivery.
    #[must_use]
    pub fn response(&self) -> Nanos {
        self.delivered.saturating_sub(self.arrived)
    }

    #[must_use]
    pub fn is_late(&self) -> bool {
        self.delivered > self.deadline
    }
}

/// A callback that failed, panicked, or did not return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {end} of stream `{stream}` failed at packet {packet}: {reason}")]
pub struct CallbackFailure {
    pub stream: String,
    pub packet: u64,
    pub end: StreamEnd,
    pub reason: String,
}

/// What a callback did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallbackCount {
    /// Packets that it gave or took.
    pub packets: u64,
    /// Packets that it gave too late, or results that were dropped because it was not ready for them.
    pub late: u64,
    /// The longest time by which it gave a packet too late.
    pub late_max: Nanos,
}

/// Cycles of a pipeline, the newest last, each with the stream whose packets came last.
type Slowest = BTreeMap<u32, VecDeque<(u64, u32)>>;
/// So many cycles of a pipeline are remembered.
const SLOWEST_MAX: usize = 64;

/// What all callbacks of a run share.
pub struct Callbacks {
    /// A callback that does not return for so long has failed; that of a source from when its packet is needed.
    patience: Nanos,
    interrupt: Arc<AtomicBool>,
    /// Time stands still while a callback works.
    is_virtual: bool,
    /// Is told of each result that was dropped: its stream, its packet, and when it was delivered.
    dropped: Box<dyn Fn(u32, u64, Nanos) + Send + Sync>,
    failure: Mutex<Option<CallbackFailure>>,
    counts: Mutex<BTreeMap<(u32, StreamEnd), CallbackCount>>,
    slowest: Mutex<Slowest>,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").field("failure", &self.failure()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Callbacks {
    /// Waits until `interrupt` for callbacks in virtual time, and for each for `patience` at most.
    #[must_use]
    pub fn new(
        patience: Nanos,
        interrupt: Arc<AtomicBool>,
        is_virtual: bool,
        dropped: Box<dyn Fn(u32, u64, Nanos) + Send + Sync>,
    ) -> Self {
        let (failure, counts, slowest) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { patience, interrupt, is_virtual, dropped, failure, counts, slowest }
    }

    /// The first that failed.
    #[must_use]
    pub fn failure(&self) -> Option<CallbackFailure> {
        lock(&self.failure).clone()
    }

    /// What each callback did, by stream.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<(u32, StreamEnd), CallbackCount> {
        lock(&self.counts).clone()
    }

    /// Counts packets that the source of `stream` gave too late.
    pub fn gave_late(&self, stream: u32, packets: u64, by: Nanos) {
        self.count(stream, StreamEnd::Source, |count| {
            count.late += packets;
            count.late_max = count.late_max.max(by);
        });
    }

    /// The stream of `pipeline` whose source gave the packets of `cycle` last.
    #[must_use]
    pub fn slowest(&self, pipeline: u32, cycle: u64) -> Option<u32> {
        let cycles = lock(&self.slowest);
        cycles.get(&pipeline)?.iter().rev().find(|(of, _)| *of == cycle).map(|(_, stream)| *stream)
    }

    fn note_slowest(&self, pipeline: u32, cycle: u64, stream: u32) {
        let mut cycles = lock(&self.slowest);
        let cycles = cycles.entry(pipeline).or_default();
        if cycles.len() == SLOWEST_MAX {
            cycles.pop_front();
        }
        cycles.push_back((cycle, stream));
    }

    fn count(&self, stream: u32, end: StreamEnd, add: impl FnOnce(&mut CallbackCount)) {
        add(lock(&self.counts).entry((stream, end)).or_default());
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    fn fail(&self, failure: CallbackFailure) -> CallbackFailure {
        lock(&self.failure).get_or_insert(failure).clone()
    }
}

/// The stream at an end that a program holds.
struct Held {
    plan: Arc<Plan>,
    number: u32,
    end: StreamEnd,
    callbacks: Arc<Callbacks>,
}

impl Held {
    fn stream(&self) -> &PlannedStream {
        &self.plan.streams[self.number as usize]
    }

    fn fail(&self, packet: u64, reason: String) -> CallbackFailure {
        let stream = self.stream().id.clone();
        self.callbacks.fail(CallbackFailure { stream, packet, end: self.end, reason })
    }

    fn silent(&self, packet: u64) -> CallbackFailure {
        self.fail(packet, format!("it has not returned for {}", self.callbacks.patience))
    }

    fn start_thread(&self, work: impl FnOnce() + Send + 'static) -> Result<(), CallbackFailure> {
        let started = threads::spawn("headway-program", work);
        let refused =
            |error| self.fail(0, format!("it gets no thread ({error}); raise the limit of processes (`ulimit -u`)"));
        started.map(drop).map_err(refused)
    }

    /// When the packets of the cycle that carries `packet` must be there.
    fn needed(&self, packet: u64) -> Nanos {
        let stream = self.stream();
        let pipeline = &self.plan.pipelines[stream.pipeline as usize];
        pipeline.release(stream.cycle_of(pipeline, packet), 0)
    }

    /// Packets that a cycle carries at most.
    fn packets_a_cycle(&self) -> u64 {
        let stream = self.stream();
        let pipeline = &self.plan.pipelines[stream.pipeline as usize];
        if pipeline.gather == Nanos::ZERO { 1 } else { pipeline.period.0.div_ceil(stream.period.0.max(1)).max(1) }
    }
}

/// Calls a callback; a panic is an error like others.
fn called(callback: impl FnOnce() -> CallbackResult) -> Result<(), String> {
    let error = match catch_unwind(AssertUnwindSafe(callback)) {
        Ok(said) => return said.map_err(|error| error.to_string()),
        Err(panic) => panic,
    };
    let text = error.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| error.downcast_ref::<String>().cloned());
    Err(text.map_or_else(|| "it panicked".to_owned(), |text| format!("it panicked: {text}")))
}

/// Whether the bytes of `stream` are put into host memory cycle by cycle while the plan runs, so that a program can give them; else why not.
///
/// # Errors
/// The reason, as it continues "the packets of stream `x`".
pub fn may_be_given(plan: &Plan, stream: &PlannedStream) -> Result<(), &'static str> {
    let pipeline = &plan.pipelines[stream.pipeline as usize];
    if let PipelineSource::Sharded(_) = pipeline.source {
        return Err("are divided among all GPUs, and made before the run");
    }
    let first = pipeline.steps.first().and_then(|step| step.operations.first());
    let begins_on_host = first.is_none_or(|first| match first.work {
        OperationWork::Copy { class, .. } => class == EngineClass::H2d,
        OperationWork::Compute { .. } | OperationWork::Hold => plan.core_of(pipeline).is_some(),
    });
    let has_parts = matches!(pipeline.source, PipelineSource::Parts(_));
    if begins_on_host || has_parts { Ok(()) } else { Err("lie on a GPU before the run begins") }
}

/// What became of a packet of `stream`, in bytes.
fn result_bytes(plan: &Plan, stream: &PlannedStream) -> u64 {
    match &plan.pipelines[stream.pipeline as usize].source {
        PipelineSource::Packets(packets) => packets.result().0,
        PipelineSource::Sharded(sharded) => sharded.sharding.summary.0,
        _ => stream.packet.0,
    }
}

/// The packets of a stream whose source a program is.
pub struct ProgramSource(Arc<Source>);

struct Source {
    held: Held,
    packets: u64,
    state: Mutex<SourceState>,
    changed: Condvar,
}

#[derive(Default)]
struct SourceState {
    began: Option<Began>,
    /// Packets that are there and not taken, with when they came.
    there: VecDeque<(Nanos, Vec<u8>)>,
    /// The number of the first of them, or of the next that comes.
    first: u64,
    /// So many may be there.
    room: usize,
    spare: Vec<Vec<u8>>,
    /// Since when the callback works.
    called: Option<Nanos>,
    is_ended: bool,
}

#[derive(Clone)]
struct Began {
    epoch: Option<Nanos>,
    came: Option<Came>,
}

impl fmt::Debug for ProgramSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProgramSource").field(&self.0.held.stream().id).finish()
    }
}

impl Drop for ProgramSource {
    fn drop(&mut self) {
        lock(&self.0.state).is_ended = true;
        self.0.changed.notify_all();
    }
}

impl ProgramSource {
    /// A source of `packets` packets of stream `number`. It is not asked for any before the run begins.
    ///
    /// # Errors
    /// [`CallbackFailure`] if it gets no thread.
    pub fn new(
        plan: &Arc<Plan>,
        number: u32,
        packets: u64,
        mut give: GivePacket,
        callbacks: &Arc<Callbacks>,
    ) -> Result<Self, CallbackFailure> {
        let (plan, callbacks) = (Arc::clone(plan), Arc::clone(callbacks));
        let held = Held { plan, number, end: StreamEnd::Source, callbacks };
        let room = held.packets_a_cycle().saturating_mul(2) as usize;
        let state = Mutex::new(SourceState { room, ..SourceState::default() });
        let source = Arc::new(Source { held, packets, state, changed: Condvar::new() });
        let serving = Arc::clone(&source);
        source.held.start_thread(move || serving.serve(&mut give))?;
        Ok(Self(source))
    }

    /// Lets it be asked. Time zero is at `epoch`, if time goes on at all, and `came` is called for each packet that comes.
    pub(crate) fn begin(&self, epoch: Option<Nanos>, came: Option<Came>) {
        lock(&self.0.state).began = Some(Began { epoch, came });
        self.0.changed.notify_all();
    }

    /// Whether all packets before `until` are there.
    pub(crate) fn is_there(&self, until: u64) -> Result<bool, CallbackFailure> {
        self.0.is_there(&mut lock(&self.0.state), until)
    }

    /// Waits until all packets before `until` are there; `false` if somebody asked for the end.
    pub(crate) fn wait(&self, until: u64) -> Result<bool, CallbackFailure> {
        let mut state = lock(&self.0.state);
        while !self.0.is_there(&mut state, until)? {
            if self.0.held.callbacks.is_interrupted() {
                return Ok(false);
            }
            state = self.0.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(true)
    }

    /// When the last packet before `until` came, which is there.
    pub(crate) fn came(&self, until: u64) -> Nanos {
        let state = lock(&self.0.state);
        let last = until.checked_sub(state.first + 1).and_then(|at| state.there.get(at as usize));
        last.map_or(Nanos::ZERO, |(came, _)| *came)
    }

    /// Copies the bytes of the stream from `offset` on, which are there.
    pub(crate) fn read(&self, offset: u64, mut buffer: &mut [u8]) {
        let state = lock(&self.0.state);
        let size = self.0.held.stream().packet.0;
        let mut at = offset;
        while !buffer.is_empty() {
            let (_, packet) = &state.there[(at / size - state.first) as usize];
            let packet = &packet[(at % size) as usize..];
            let (now, later) = buffer.split_at_mut(buffer.len().min(packet.len()));
            now.copy_from_slice(&packet[..now.len()]);
            at += now.len() as u64;
            buffer = later;
        }
    }

    /// Gives up the packets before `until`.
    pub(crate) fn release(&self, until: u64) {
        let mut state = lock(&self.0.state);
        while state.first < until
            && let Some((_, packet)) = state.there.pop_front()
        {
            state.first += 1;
            state.spare.push(packet);
        }
        self.0.changed.notify_all();
    }

    /// Says that the packets of this stream came last of those of `cycle`.
    pub(crate) fn was_slowest(&self, pipeline: u32, cycle: u64) {
        self.0.held.callbacks.note_slowest(pipeline, cycle, self.0.held.number);
    }
}

impl Source {
    /// Asks for one packet after the other.
    fn serve(&self, give: &mut GivePacket) {
        for number in 0..self.packets {
            let Some((mut packet, began)) = self.room() else { return };
            let stream = self.held.stream();
            let request = PacketRequest {
                stream: &stream.id,
                packet: number,
                arrives: stream.arrival(number),
                needed: self.held.needed(number),
                epoch: began.epoch,
            };
            let given = called(|| give(&request, &mut packet));
            let mut state = lock(&self.state);
            state.called = None;
            match given {
                Ok(()) => {
                    state.there.push_back((clock::now(), packet));
                    self.held.callbacks.count(self.held.number, StreamEnd::Source, |count| count.packets += 1);
                }
                Err(reason) => {
                    state.is_ended = true;
                    self.held.fail(number, reason);
                }
            }
            let is_ended = state.is_ended;
            drop(state);
            self.changed.notify_all();
            if let Some(came) = &began.came {
                came();
            }
            if is_ended {
                return;
            }
        }
    }

    /// Waits for room for a packet.
    fn room(&self) -> Option<(Vec<u8>, Began)> {
        let mut state = lock(&self.state);
        loop {
            if state.is_ended {
                return None;
            }
            if state.there.len() < state.room
                && let Some(began) = state.began.clone()
            {
                state.called = Some(clock::now());
                let mut packet = state.spare.pop().unwrap_or_default();
                packet.resize(self.held.stream().packet.0 as usize, 0);
                return Some((packet, began));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_there(&self, state: &mut SourceState, until: u64) -> Result<bool, CallbackFailure> {
        let until = until.min(self.packets);
        let next = state.first + state.there.len() as u64;
        if next >= until {
            return Ok(true);
        }
        if let Some(failure) = self.held.callbacks.failure() {
            return Err(failure);
        }
        let wanted = (until - state.first) as usize;
        if state.room < wanted {
            state.room = wanted;
            self.changed.notify_all();
        }
        let epoch = state.began.as_ref().and_then(|began| began.epoch);
        let needed = epoch.map_or(Nanos::ZERO, |epoch| epoch.saturating_add(self.held.needed(next)));
        match state.called {
            Some(since) if clock::now() > since.max(needed).saturating_add(self.held.callbacks.patience) => {
                state.is_ended = true;
                Err(self.held.silent(next))
            }
            _ => Ok(false),
        }
    }
}

/// What takes the results of a stream whose sink a program is.
pub struct ProgramSink {
    sink: Arc<Sink>,
    size: usize,
    packets: u64,
    /// Results that may wait.
    room: usize,
    /// The number of the packet of which something may be there.
    next: u64,
    packet: Vec<u8>,
    /// Something of it was given up.
    is_lost: bool,
    /// When the bytes were delivered that came last.
    at: Nanos,
}

struct Sink {
    held: Held,
    state: Mutex<SinkState>,
    changed: Condvar,
}

struct Taken {
    packet: u64,
    at: Nanos,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct SinkState {
    waiting: VecDeque<Taken>,
    spare: Vec<Vec<u8>>,
    /// The packet that the callback has, and since when.
    called: Option<(u64, Nanos)>,
    failure: Option<CallbackFailure>,
    is_ended: bool,
}

impl fmt::Debug for ProgramSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProgramSink").field(&self.sink.held.stream().id).finish()
    }
}

impl Drop for ProgramSink {
    fn drop(&mut self) {
        let mut state = lock(&self.sink.state);
        state.waiting.clear();
        state.is_ended = true;
        drop(state);
        self.sink.changed.notify_all();
    }
}

impl ProgramSink {
    /// A sink of what becomes of `packets` packets of stream `number`.
    ///
    /// # Errors
    /// [`CallbackFailure`] if it gets no thread.
    pub fn new(
        plan: &Arc<Plan>,
        number: u32,
        packets: u64,
        mut take: TakePacket,
        callbacks: &Arc<Callbacks>,
    ) -> Result<Self, CallbackFailure> {
        let size = result_bytes(plan, &plan.streams[number as usize]) as usize;
        let (plan, callbacks) = (Arc::clone(plan), Arc::clone(callbacks));
        let held = Held { plan, number, end: StreamEnd::Sink, callbacks };
        let room = held.packets_a_cycle().saturating_mul(CYCLES_WAITING) as usize;
        let sink = Arc::new(Sink { held, state: Mutex::default(), changed: Condvar::new() });
        let serving = Arc::clone(&sink);
        sink.held.start_thread(move || serving.serve(&mut take))?;
        Ok(Self { sink, size, packets, room, next: 0, packet: Vec::new(), is_lost: false, at: Nanos::ZERO })
    }

    /// Takes the next bytes of the stream, which were delivered at `at`; `None` = they stand for some that were given up.
    pub(crate) fn write(&mut self, at: Option<Nanos>, bytes: &[u8]) -> Result<(), CallbackFailure> {
        let mut rest = bytes;
        // What fills up the last block is no packet.
        while !rest.is_empty() && self.next < self.packets {
            let (now, later) = rest.split_at(rest.len().min(self.size - self.packet.len()));
            self.packet.extend_from_slice(now);
            self.is_lost |= at.is_none();
            self.at = at.unwrap_or(self.at);
            rest = later;
            if self.packet.len() == self.size {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), CallbackFailure> {
        let (packet, at, lost) = (self.next, self.at, std::mem::take(&mut self.is_lost));
        self.next += 1;
        let mut bytes = std::mem::take(&mut self.packet);
        if lost {
            bytes.clear();
            self.packet = bytes;
            return Ok(());
        }
        let Held { callbacks, number, .. } = &self.sink.held;
        let mut state = lock(&self.sink.state);
        while state.waiting.len() >= self.room {
            if callbacks.is_virtual && !callbacks.is_interrupted() {
                self.sink.check(&mut state)?;
                state = self.sink.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(state);
            callbacks.count(*number, StreamEnd::Sink, |count| count.late += 1);
            (callbacks.dropped)(*number, packet, at);
            bytes.clear();
            self.packet = bytes;
            return Ok(());
        }
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        self.packet = state.spare.pop().unwrap_or_default();
        state.waiting.push_back(Taken { packet, at, bytes });
        drop(state);
        self.sink.changed.notify_all();
        Ok(())
    }

    /// Waits until the sink has taken what was delivered.
    pub(crate) fn finish(mut self) -> Result<(), CallbackFailure> {
        // The last packet of a file may be shorter.
        if !self.packet.is_empty() {
            self.hand_over()?;
        }
        let callbacks = &self.sink.held.callbacks;
        let mut state = lock(&self.sink.state);
        state.is_ended = true;
        self.sink.changed.notify_all();
        let since = clock::now();
        while !state.waiting.is_empty() || state.called.is_some() {
            if callbacks.is_interrupted() && clock::now() > since.saturating_add(AFTER_INTERRUPT) {
                return Ok(());
            }
            self.sink.check(&mut state)?;
            state = self.sink.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.failure.clone().map_or(Ok(()), Err)
    }
}

impl Sink {
    /// Takes one result after the other.
    fn serve(&self, take: &mut TakePacket) {
        let mut state = lock(&self.state);
        loop {
            let Some(Taken { packet, at, mut bytes }) = state.waiting.pop_front() else {
                if state.is_ended {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.called = Some((packet, clock::now()));
            drop(state);
            let stream = self.held.stream();
            let arrived = stream.arrival(packet);
            let deadline = arrived.saturating_add(stream.deadline);
            let result = PacketResult { stream: &stream.id, packet, arrived, delivered: at, deadline };
            let taken = called(|| take(&result, &bytes));
            state = lock(&self.state);
            state.called = None;
            if let Err(reason) = taken {
                state.failure = Some(self.held.fail(packet, reason));
                state.waiting.clear();
                self.changed.notify_all();
                return;
            }
            self.held.callbacks.count(self.held.number, StreamEnd::Sink, |count| count.packets += 1);
            bytes.clear();
            state.spare.push(bytes);
            self.changed.notify_all();
        }
    }

    fn check(&self, state: &mut SinkState) -> Result<(), CallbackFailure> {
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let late = |since: Nanos| clock::now() > since.saturating_add(self.held.callbacks.patience);
        match state.called {
            Some((packet, since)) if late(since) => {
                let failure = self.held.silent(packet);
                state.failure = Some(failure.clone());
                Err(failure)
            }
            _ => Ok(()),
        }
    }
}
