//! The wall-clock driver: the dispatcher of `headway-core` on devices.
//!
//! One thread drives: it feeds completions, data and timeouts to the dispatcher, and submits what it asks for. Feeders
//! pack blocks into the first buffers ahead of it, a sink empties the last ones behind it; the three meet only in
//! channels. Every pipeline has a ring of buffer sets, one for each cycle that can be under way, so nothing is allocated
//! after the start.

mod buffers;
mod chunk;
mod cores;
mod feed;
mod job;
mod messages;
mod pace;
mod requests;
mod resident;
mod stage;
mod turns;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use headway_core::decisions::dispatch::{
    DispatchAction, DispatchEvent, DispatchInput, DispatchRefused, Dispatcher, DispatcherLimits,
};
use headway_core::decisions::staging::StagingDirection;
use headway_core::files::workload::OnMiss;
use headway_core::log::{LogRecord, RecordBody};
use headway_core::models::cpu;
use headway_core::plan::{PipelineSource, Plan, PlannedOperation};
use headway_core::units::{Bytes, Nanos};
use headway_device::{Completion, DeviceError, Engines, Waker, WorkError};
use headway_os::sched::{Classes, Held, Role, SchedError};
use headway_os::{clock, event, threads};

use crate::blocks::{Collect, DataError, Supply};
use crate::endpoints::CopyPath;
use crate::kernels::Kernels;
use crate::outlet::OutputError;
use crate::program::Came;
use crate::staging::Place;
use buffers::Buffers;
pub use messages::MessageComparison;
use pace::Pace;
use requests::Asked;
pub use requests::{CopyEnds, NotTaken, RequestOutcome, Requests, UrgentRequest};
use turns::Turns;
pub use watch::watch;

/// A GPU's windows are worth a busy CPU: so long its driver spins before something is due.
pub const GPU_SPIN: Nanos = Nanos(200_000);

/// A run that could not be completed. A log that ends with [`RunError::Stopped`] or [`RunError::Interrupted`] replays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The plan needs something that this driver does not do.
    #[error("{object} cannot run on devices: {reason}")]
    Unsupported {
        /// By position in the plan.
        pipeline: u32,
        /// Where it is one of the pipeline's steps.
        step: Option<u32>,
        object: String,
        reason: String,
    },
    /// The plan has more GPUs than there are devices.
    #[error("the plan uses GPU {gpu}, but only {devices} devices are open")]
    NoDevice {
        /// Ordinal in the plan.
        gpu: u32,
        /// Devices given.
        devices: usize,
    },
    /// Neither knows what the other promises.
    #[error(
        "copies {way} GPU {gpu} are promised by flows or by another plan of this process; close the flows, or run one plan after the other"
    )]
    Promised {
        /// Ordinal in the plan.
        gpu: usize,
        /// "into" or "out of".
        way: &'static str,
    },
    /// Buffers or kernels could not be set up.
    #[error("cannot set up {what}")]
    Prepare { what: String, source: DeviceError },
    /// The system does not let the driver run in the scheduling class that was asked for.
    #[error("the thread that drives the devices cannot run in class `{}`; `auto` takes the strongest that is permitted", wanted.word())]
    Class {
        wanted: cpu::RequestedClass,
        /// Why not.
        source: SchedError,
    },
    /// A kernel lacks a parameter.
    #[error("cannot set up kernel state")]
    State(#[from] WorkError),
    /// The dispatcher did not take an input.
    #[error("the dispatcher refused an input")]
    Dispatch(#[from] DispatchRefused),
    /// A device did not take an operation, or an operation failed.
    #[error("step {step} of cycle {cycle} of pipeline `{pipeline}` failed")]
    Operation {
        /// The pipeline's name.
        pipeline: String,
        cycle: u64,
        step: u32,
        source: DeviceError,
    },
    /// Input or output failed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A stream that must stop at a miss missed.
    #[error("stream `{stream}` missed the deadline of packet {packet} by {by}, and its `on_miss` is `stop`")]
    Stopped {
        stream: String,
        packet: u64,
        /// By how much.
        by: Nanos,
        /// How the threads were scheduled until then; [`run_work`] sets it.
        cpu: Option<Box<cpu::Use>>,
    },
    /// Nothing has moved for too long.
    #[error(
        "no operation ended for {waited} with {outstanding} under way; the device hangs or another program holds it"
    )]
    Stalled {
        waited: Nanos,
        /// Operations under way.
        outstanding: usize,
    },
    /// Somebody asked the run to end.
    #[error("interrupted")]
    Interrupted {
        /// How the threads were scheduled until then; [`run_work`] sets it.
        cpu: Option<Box<cpu::Use>>,
    },
}

impl RunError {
    /// Adds what is known of the threads, where the run ended early.
    fn with_use(mut self, used: &cpu::Use) -> Self {
        if let Self::Stopped { cpu, .. } | Self::Interrupted { cpu } = &mut self {
            *cpu = Some(Box::new(used.clone()));
        }
        self
    }
}

/// Bounds and habits of a wall-clock run.
#[derive(Clone, Debug)]
pub struct WallOptions {
    /// Time from the start of the driver to the epoch: threads are up and buffers are full by then.
    pub lead: Nanos,
    /// Bounds of the dispatcher.
    pub limits: DispatcherLimits,
    /// Cycles of a pipeline that can hold buffers at a time, beyond one per step.
    pub spare_cycles: usize,
    /// Busy-wait this long before a window opens instead of trusting the timer; zero = sleep. A driver of a class that the
    /// kernel rations spins for a much shorter time.
    pub spin: Nanos,
    /// The scheduling class of the threads that drive the devices. The calling thread has it until [`run_work`] returns.
    pub class: cpu::RequestedClass,
    /// Give up after this long without a completion while operations are under way.
    pub stall_max: Nanos,
    /// Ends the run early when it becomes true.
    pub interrupt: Arc<AtomicBool>,
}

impl Default for WallOptions {
    fn default() -> Self {
        Self {
            lead: Nanos(50_000_000),
            limits: DispatcherLimits::default(),
            spare_cycles: 4,
            spin: Nanos::ZERO,
            class: cpu::RequestedClass::Ordinary,
            stall_max: Nanos(30_000_000_000),
            interrupt: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// What the other threads tell the driver.
enum Message {
    /// A block is packed.
    Data { pipeline: u32, cycle: u64, slot: usize, block: Bytes },
    /// Packing or unpacking failed.
    Failed(DataError),
    /// A device may have completions.
    Wake,
    /// Somebody asks for one urgent copy.
    Ask(Box<(UrgentRequest, Sender<RequestOutcome>)>),
}

/// A run of a plan with whatever brings and takes the blocks.
pub struct SuppliedRun<'a> {
    pub plan: &'a Arc<Plan>,
    /// The kernels of its compute steps.
    pub kernels: &'a Kernels,
    /// Cycles per pipeline.
    pub cycles: Vec<u64>,
    /// Packets per stream.
    pub packets: Vec<u64>,
    /// What fills the first buffers.
    pub supply: Box<dyn Supply>,
    /// What empties the last ones.
    pub collect: Box<dyn Collect>,
    /// Inputs of the dispatcher by time after the epoch, ascending.
    pub inputs: Vec<(Nanos, DispatchInput)>,
    /// Where other threads ask for urgent copies.
    pub requests: Requests,
}

/// What came of a run.
#[derive(Debug)]
pub struct WallOutcome {
    /// Bytes written per stream.
    pub written: Vec<u64>,
    /// Time zero of the plan on the host's monotonic clock.
    pub epoch: Nanos,
    /// When the last cycle was delivered.
    pub end: Nanos,
    /// What messages moved and what of it was compared.
    pub compared: MessageComparison,
    /// The CPU of each core that served streams, where cores had CPUs of their own.
    pub cpus: Vec<u32>,
    /// The scheduling classes of the threads, and how late the driver was.
    pub cpu: cpu::Use,
}

/// Runs a plan on `devices`, those with ordinal `i` being the plan's GPU `i`.
///
/// `log` gets every record in order and should be quick; `progress` gets the time since the epoch now and then.
///
/// # Errors
/// [`RunError`]. All threads have ended and all operations are complete or discarded by then.
pub fn run_work(
    work: SuppliedRun<'_>,
    devices: &mut [Engines],
    options: &WallOptions,
    mut log: impl FnMut(&LogRecord),
    mut progress: impl FnMut(Nanos),
) -> Result<WallOutcome, RunError> {
    let SuppliedRun { plan, kernels, cycles, packets, mut supply, collect, inputs, requests } = work;
    let turns = Turns::new(plan, devices)?;
    let mut buffers = Buffers::new(plan, devices, kernels, &cycles, options.spare_cycles)?;
    buffers.bring(plan, devices, &cycles, supply.as_mut())?;
    let buffers = Arc::new(buffers);
    prepare(plan, &buffers, supply.as_mut())?;
    let (inbox, messages) = mpsc::channel();
    let classes = Classes::new(options.class);
    introduce(devices, &inbox, &classes);
    event!(INFO, "headway::run", "run begins", gpus = devices.len(), pipelines = plan.pipelines.len());
    let ran = std::thread::scope(|scope| -> Result<_, RunError> {
        let held = enter(&classes)?;
        let (free, told) = mpsc::channel();
        let (deliver, delivered) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        requests.open(inbox.clone());
        // On every way out, also by a panic: else the scope would wait for the feeder.
        let end = RunEnd { stop: &Arc::clone(&stop), requests: &requests };
        // First, so that the other threads keep off the CPUs of cores.
        let awake = options.spin > Nanos::ZERO && !held.class().is_rationed();
        let cores = cores::Cores::start(plan, kernels, &classes, awake, &inbox)?;
        let epoch = clock::now() + options.lead;
        let free_too = free.clone();
        let came: Came = Arc::new(move || drop(free_too.send(feed::Feed::Came)));
        supply.begin(epoch, &came);
        drop(came);
        let feeder = feed::Feeder::new(plan, supply, &buffers, &cycles, inbox.clone(), told, Arc::clone(&stop));
        let feeder = feeder.within(options.limits.cycles_in_flight_max);
        let watch = PanicWatch { work: "fills the first buffers", inbox: inbox.clone() };
        let feed = move || {
            let _watch = watch;
            feeder.run();
        };
        threads::without_signals(|| scope.spawn(in_class(&classes, Role::Feeder, feed)));
        let watch = PanicWatch { work: "empties the last buffers", inbox: inbox.clone() };
        let sink = feed::Sink::new(collect, &buffers, inbox, delivered, free);
        let sink = move || {
            let _watch = watch;
            sink.run()
        };
        let sink = threads::without_signals(|| scope.spawn(in_class(&classes, Role::Sink, sink)));
        let mut driver = Driver {
            plan,
            dispatcher: Dispatcher::new(Plan::clone(plan), options.limits)?,
            devices: &mut *devices,
            buffers: &buffers,
            cores,
            messages,
            deliver,
            options,
            open: BTreeMap::new(),
            under_way: BTreeMap::new(),
            turns,
            holding: BinaryHeap::new(),
            ending: BTreeMap::new(),
            inputs: inputs.into_iter().collect(),
            epoch,
            asked: Asked::default(),
            events: VecDeque::new(),
            done: Vec::new(),
            pace: Pace::new(held.class(), options.spin, plan.jitter),
            last_progress: clock::now(),
            failed: None,
        };
        let driven = driver.drive(cycles.clone(), packets, &mut log, &mut progress);
        if let Err(error) = &driven {
            event!(ERROR, "headway::run", "run ends early", why = error);
            driver.settle();
        }
        drop(end);
        let (cpus, (woken, noticed)) = (driver.cores.cpus.clone(), driver.pace.lateness());
        // Closing the channels ends the sink after what was delivered, and the feeder at its next message.
        drop(driver);
        let sunk = sink.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let written = match (sunk, &driven) {
            (
                Some(feed::Sunk { mut collect, kept }),
                Ok(_)
                | Err(RunError::Interrupted { .. } | RunError::Stopped { .. } | RunError::Data(DataError::Callback(_))),
            ) => {
                buffers.read_back(plan, devices, &kept, collect.as_mut())?;
                collect.finish()?
            }
            _ => Vec::new(),
        };
        let cpu = cpu::Use { asked: classes.requested(), threads: classes.threads(), woken, noticed };
        let times = driven.map_err(|error| error.with_use(&cpu))?;
        Ok((written, times, cpus, cpu))
    });
    devices.iter_mut().for_each(|device| device.set_classes(None));
    let (written, (epoch, end), cpus, cpu) = ran?;
    event!(INFO, "headway::run", "run ends", took = end.saturating_sub(epoch));
    let compared = buffers.compare_rest(devices)?;
    Ok(WallOutcome { written, epoch, end, compared, cpus, cpu })
}

/// Gives `devices` the thread to wake and the scheduling class of their threads.
fn introduce(devices: &mut [Engines], inbox: &Sender<Message>, classes: &Arc<Classes>) {
    for device in devices {
        let inbox = inbox.clone();
        // A driver that has ended no longer listens, and need not.
        let waker: Waker = Arc::new(move || drop(inbox.send(Message::Wake)));
        device.set_waker(&waker);
        device.set_classes(Some(classes));
    }
}

/// Puts the calling thread, the driver, into the class that was asked for.
fn enter(classes: &Classes) -> Result<Held, RunError> {
    let (wanted, held) = (classes.requested(), classes.take(Role::Driver));
    match held.refused().first() {
        Some(refused) if !wanted.is_met_by(held.class()) => Err(RunError::Class { wanted, source: refused.clone() }),
        _ => Ok(held),
    }
}

/// What a thread of `role` does: `work`, in the class that it gets.
fn in_class<T>(classes: &Arc<Classes>, role: Role, work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let classes = Arc::clone(classes);
    move || {
        let _held = classes.take(role);
        work()
    }
}

/// Ends the feeder and refuses urgent copies when dropped.
struct RunEnd<'a> {
    stop: &'a AtomicBool,
    requests: &'a Requests,
}

impl Drop for RunEnd<'_> {
    fn drop(&mut self) {
        self.requests.close();
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Tells the driver of a thread that panics: it would wait for what that thread was to do.
struct PanicWatch {
    work: &'static str,
    inbox: Sender<Message>,
}

impl Drop for PanicWatch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.inbox.send(Message::Failed(DataError::Panicked { work: self.work }));
        }
    }
}

/// Lets `supply` see every buffer once before the run.
fn prepare(plan: &Plan, buffers: &Buffers, supply: &mut dyn Supply) -> Result<(), RunError> {
    for number in 0..plan.pipelines.len() as u32 {
        let buffers::Ends::Job(job) = buffers.first(number) else { continue };
        for slot in 0..job.slots() {
            job.write(slot, 0, |buffers| supply.prepare(number, slot, buffers))?;
        }
    }
    Ok(())
}

/// Buffers of a cycle under way.
#[derive(Clone, Copy, Debug, Default)]
struct OpenCycle {
    slot: usize,
    block: Bytes,
}

/// An operation on a device.
struct UnderWay {
    pipeline: u32,
    cycle: u64,
    step: u32,
    /// Of a copy between host and GPU: its place in the engine's line.
    turn: Option<Place>,
    /// Of a kernel: its GPU.
    kernel: Option<usize>,
}

struct Driver<'a> {
    plan: &'a Plan,
    dispatcher: Dispatcher,
    devices: &'a mut [Engines],
    buffers: &'a Buffers,
    cores: cores::Cores,
    messages: Receiver<Message>,
    deliver: Sender<feed::Delivery>,
    options: &'a WallOptions,
    open: BTreeMap<(u32, u64), OpenCycle>,
    under_way: BTreeMap<u64, UnderWay>,
    turns: Turns,
    /// Flows that hold their servers: until when, since when, and the number of their operation.
    holding: BinaryHeap<Reverse<(Nanos, Nanos, u64)>>,
    /// The blocks of messages in batches whose last bytes are under way: their parts, by pipeline and cycle.
    ending: BTreeMap<(u32, u64), Vec<u32>>,
    /// Inputs still to come, by time after the epoch.
    inputs: VecDeque<(Nanos, DispatchInput)>,
    epoch: Nanos,
    asked: Asked,
    /// Taken from the dispatcher, and not told yet.
    events: VecDeque<DispatchEvent>,
    done: Vec<Completion>,
    pace: Pace,
    last_progress: Nanos,
    /// A program's callback failed: the run ends behind the instant, so that its log replays.
    failed: Option<DataError>,
}

impl Driver<'_> {
    fn drive(
        &mut self,
        cycles: Vec<u64>,
        packets: Vec<u64>,
        log: &mut impl FnMut(&LogRecord),
        progress: &mut impl FnMut(Nanos),
    ) -> Result<(Nanos, Nanos), RunError> {
        let epoch = self.epoch;
        let mut now = clock::now();
        self.feed(now, DispatchInput::Start { epoch, cycles, packets }, log)?;
        self.drain(now, log)?;
        let mut last_end = now;
        while !self.dispatcher.is_finished() {
            if let Some(error) = self.failed.take() {
                return Err(error.into());
            }
            let message = self.wait();
            if self.options.interrupt.load(Ordering::Relaxed) {
                return Err(RunError::Interrupted { cpu: None });
            }
            for device in self.devices.iter_mut() {
                device.poll(&mut self.done);
            }
            self.cores.poll(&mut self.done);
            now = clock::now().max(now);
            self.pace.woke(now);
            // First, so that windows which open now find what is ready now.
            let mut fed = self.feed_due(now, log)?;
            for completion in std::mem::take(&mut self.done) {
                fed = true;
                last_end = now;
                self.completed(now, completion, log)?;
            }
            fed |= self.release(now, log)?;
            let mut next = message;
            while let Some(message) = next {
                fed |= self.receive(now, message, log)?;
                next = self.messages.try_recv().ok();
            }
            if !fed && self.dispatcher.poll_timeout().is_some_and(|at| at <= now) {
                self.feed(now, DispatchInput::Timeout, log)?;
                fed = true;
            }
            if fed {
                self.drain(now, log)?;
            }
            if self.under_way.is_empty() {
                last_end = now;
            } else if now.saturating_sub(last_end) > self.options.stall_max {
                let waited = now - last_end;
                return Err(RunError::Stalled { waited, outstanding: self.under_way.len() });
            }
            if now.saturating_sub(self.last_progress) > Nanos(100_000_000) {
                self.last_progress = now;
                progress(now.saturating_sub(epoch));
            }
        }
        Ok((epoch, now))
    }

    /// Waits until something may have happened: a message, a window about to open, or a device that must be polled.
    fn wait(&mut self) -> Option<Message> {
        let held = self.holding.peek().map_or(Nanos::MAX, |Reverse((end, ..))| *end);
        let inputs = self.inputs.front().map_or(Nanos::MAX, |(at, _)| self.epoch.saturating_add(*at));
        let next = self.dispatcher.poll_timeout().unwrap_or(Nanos::MAX).min(held).min(inputs);
        let polls = self.cores.must_poll() || self.devices.iter().any(|device| device.must_poll());
        let sleep = self.pace.sleep(next, polls, clock::now);
        if let Ok(message) = self.messages.try_recv() {
            return Some(message);
        }
        if sleep == Nanos::ZERO {
            std::hint::spin_loop();
            return None;
        }
        // The driver's own devices hold senders, so the channel never closes: an error is the timeout.
        self.messages.recv_timeout(Duration::from_nanos(sleep.0)).ok()
    }

    fn feed(&mut self, now: Nanos, input: DispatchInput, log: &mut impl FnMut(&LogRecord)) -> Result<(), RunError> {
        self.dispatcher.handle(now, &input)?;
        log(&LogRecord { at: now, what: RecordBody::Input(input) });
        Ok(())
    }

    fn completed(
        &mut self,
        now: Nanos,
        completion: Completion,
        log: &mut impl FnMut(&LogRecord),
    ) -> Result<(), RunError> {
        let operation = completion.tag;
        // Others are of a run before that was given up while the device did not answer.
        let Some(UnderWay { pipeline, cycle, step, turn, kernel }) = self.under_way.remove(&operation) else {
            return Ok(());
        };
        drop(turn);
        if let Some(gpu) = kernel {
            self.turns.kernel_ended(gpu);
        }
        if let Err(source) = completion.result {
            self.feed(now, DispatchInput::Failed { operation }, log)?;
            return Err(self.failed(pipeline, cycle, step, source));
        }
        // A device's clock may run ahead of the host's by the error of its mapping.
        let finished = completion.finished.min(now);
        self.pace.noticed(now, finished);
        let started = completion.started.min(finished);
        self.feed(now, DispatchInput::Done { operation, started, finished }, log)
    }

    /// Ends the flows whose time is over; whether there were any.
    fn release(&mut self, now: Nanos, log: &mut impl FnMut(&LogRecord)) -> Result<bool, RunError> {
        let mut any = false;
        while let Some(&Reverse((finished, started, operation))) = self.holding.peek()
            && finished <= now
        {
            self.holding.pop();
            self.feed(now, DispatchInput::Done { operation, started, finished }, log)?;
            any = true;
        }
        Ok(any)
    }

    /// Waits for what is under way after the end of a run that failed, so that the devices can be used again.
    fn settle(&mut self) {
        let since = clock::now();
        while !self.under_way.is_empty() && clock::now().saturating_sub(since) <= self.options.stall_max {
            for device in self.devices.iter_mut() {
                device.poll(&mut self.done);
            }
            self.cores.poll(&mut self.done);
            for completion in self.done.drain(..) {
                self.under_way.remove(&completion.tag);
            }
            headway_os::sched::yield_now();
        }
    }

    fn failed(&self, pipeline: u32, cycle: u64, step: u32, source: DeviceError) -> RunError {
        let pipeline = self.plan.pipelines[pipeline as usize].name.clone();
        RunError::Operation { pipeline, cycle, step, source }
    }

    /// Takes a message; whether the dispatcher was told something.
    fn receive(&mut self, now: Nanos, message: Message, log: &mut impl FnMut(&LogRecord)) -> Result<bool, RunError> {
        match message {
            Message::Wake => Ok(false),
            Message::Ask(asked) => self.ask(now, *asked, log),
            Message::Failed(error @ DataError::Callback(_)) => {
                self.failed = Some(error);
                Ok(false)
            }
            Message::Failed(error) => Err(error.into()),
            Message::Data { pipeline, cycle, slot, block } => {
                if block > Bytes(0) {
                    self.open.insert((pipeline, cycle), OpenCycle { slot, block });
                }
                self.feed(now, DispatchInput::Data { pipeline, cycle, bytes: block }, log)?;
                Ok(true)
            }
        }
    }

    fn drain(&mut self, now: Nanos, log: &mut impl FnMut(&LogRecord)) -> Result<(), RunError> {
        while let Some(action) = self.dispatcher.poll_action() {
            log(&LogRecord { at: now, what: RecordBody::Action(action.clone()) });
            event!(TRACE, "headway::dispatch", "decided", at = now, what = format_args!("{action:?}"));
            match action {
                DispatchAction::Submit { operation, pipeline, cycle, step, index, offset, bytes } => {
                    let planned = &self.plan.pipelines[pipeline as usize];
                    if planned.source == PipelineSource::Demand {
                        // No engine has its server: nothing but time passes.
                        let end = now.saturating_add(planned.steps[step as usize].holds());
                        self.holding.push(Reverse((end, now, operation)));
                        continue;
                    }
                    // Messages have their memory elsewhere.
                    let OpenCycle { slot, block } = self.open.get(&(pipeline, cycle)).copied().unwrap_or_default();
                    let chunk = chunk::StepChunk { pipeline, cycle, step, index, slot, block, offset, bytes };
                    let work = &planned.steps[step as usize].operations[index as usize];
                    let kernel = turns::kernel_gpu(self.plan, work);
                    if let Some(gpu) = kernel {
                        self.turns.kernel_begins(gpu, now);
                    }
                    let path = CopyPath::of(self.plan, work);
                    let turn = path.and_then(|path| self.turns.hold(&planned.source, path));
                    let submitted = match self.asked.under_way(pipeline, cycle) {
                        Some(request) => request.submit(self.plan, self.devices, &chunk, operation),
                        None => self.buffers.submit(self.devices, &self.cores, &chunk, operation),
                    };
                    submitted.map_err(|source| self.failed(pipeline, cycle, step, source))?;
                    if let Some(turn) = &turn {
                        turn.moved(bytes.0);
                        turn.copied(Nanos::ZERO);
                    }
                    self.under_way.insert(operation, UnderWay { pipeline, cycle, step, turn, kernel });
                    if let PipelineSource::Batch(parts) = &planned.source
                        && parts[index as usize].message.bytes == offset + bytes
                    {
                        self.ending.entry((pipeline, cycle)).or_default().push(index);
                    }
                }
                DispatchAction::Deliver { pipeline, cycle } | DispatchAction::Drop { pipeline, cycle } => {
                    let OpenCycle { slot, block } = self.open.remove(&(pipeline, cycle)).unwrap_or_default();
                    let lost = matches!(action, DispatchAction::Drop { .. });
                    for part in self.ending.remove(&(pipeline, cycle)).unwrap_or_default() {
                        self.judge_block(now, pipeline, cycle, part);
                    }
                    if self.asked.arrived(pipeline, cycle, now) {
                        continue;
                    }
                    // A sink that has ended, or panicked, has sent its error already; it is in the inbox.
                    let at = now.saturating_sub(self.epoch);
                    let _ = self.deliver.send(feed::Delivery { pipeline, cycle, slot, block, at, lost });
                }
            }
        }
        let mut stopped = None;
        while let Some(event) = self.events.pop_front().or_else(|| self.dispatcher.poll_event()) {
            log(&LogRecord { at: now, what: RecordBody::Event(event.clone()) });
            event!(DEBUG, "headway::dispatch", "told", at = now, what = format_args!("{event:?}"));
            match event {
                DispatchEvent::Late { pipeline, step, .. } => {
                    let planned = &self.plan.pipelines[pipeline as usize];
                    if planned.source == PipelineSource::Message {
                        planned.steps[step as usize].operations.iter().for_each(|block| self.block_missed(block));
                    }
                }
                DispatchEvent::Unready { pipeline, part, .. } => {
                    let step = &self.plan.pipelines[pipeline as usize].steps[0];
                    step.operations.get(part as usize).iter().for_each(|block| self.block_missed(block));
                }
                _ => {}
            }
            if let DispatchEvent::Missed { stream, packet, by } = event {
                let planned = &self.plan.streams[stream as usize];
                planned.gpu.iter().for_each(|gpu| self.turns.missed(*gpu as usize, StagingDirection::Out));
                if planned.on_miss == OnMiss::Stop {
                    let stream = planned.id.clone();
                    stopped = stopped.or(Some(RunError::Stopped { stream, packet, by, cpu: None }));
                }
            }
        }
        stopped.map_or(Ok(()), Err)
    }

    /// A block of a message in a batch arrived with this cycle. Its deadline is the message's, not that of the batch's slot.
    fn judge_block(&self, now: Nanos, pipeline: u32, cycle: u64, part: u32) {
        let planned = &self.plan.pipelines[pipeline as usize];
        let PipelineSource::Batch(parts) = &planned.source else { return };
        let carried = &parts[part as usize];
        let due = carried.job_of(cycle).map(|job| u128::from(self.epoch.0) + carried.message.window(job).1);
        if due.is_some_and(|due| u128::from(now.0) > due) {
            self.block_missed(&planned.steps[0].operations[part as usize]);
        }
    }

    fn block_missed(&self, block: &PlannedOperation) {
        if let Some(path) = CopyPath::of(self.plan, block)
            && let Some(direction) = turns::direction(path)
        {
            self.turns.missed(path.device(), direction);
        }
    }
}

impl From<OutputError> for RunError {
    fn from(error: OutputError) -> Self {
        Self::Data(error.into())
    }
}
