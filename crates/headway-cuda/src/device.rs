//! A GPU as a [`Device`].

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::units::Nanos;
use headway_device::buffer::{Budget, DeviceId, HeapMemory, Place};
use headway_device::{
    Buffer, Completion, Description, Device, DeviceError, HostKind, Kernel, KernelId, Limits, Operation, Source, Span,
    Waker, check,
};
use headway_os::clock;
use headway_os::sched::Classes;

use crate::abandoned::{abandon, await_rest, told};
use crate::checked::{Driver, lock};
use crate::owned::{Context, CopyKind, DeviceMemory, Event, Module, Stream};
use crate::pageable::{Helper, Job, Shared};
use crate::pool::Pool;
use crate::table::Ordinal;
use crate::timeline::Timeline;

/// Kernels one device holds.
const KERNELS_MAX: usize = 256;
/// The classes a GPU serves, each on a CUDA stream of its own.
const CLASSES: [EngineClass; 4] = [EngineClass::H2d, EngineClass::D2h, EngineClass::Peer, EngineClass::Ee];

/// A GPU.
///
/// `dma`, `peer` and launches are queued on one CUDA stream per class, between two events with time stamps; completions are
/// found by querying the oldest event of each stream. `pageable` is the driver's own call, made by a helper thread per
/// direction. Every call leaves the GPU's primary context current on the calling thread.
///
/// Dropping it waits two seconds for what runs and for what is queued on the streams; the rest keeps its memory until it has ended.
/// After an error that ends the context every call is [`DeviceError::DeviceLost`], and the bytes of unfinished operations stay
/// claimed until nothing can use them.
pub struct CudaDevice {
    description: Description,
    context: Arc<Context>,
    /// This opening of the GPU; kernels belong to it, while memory belongs to the GPU.
    opening: DeviceId,
    budget: Arc<Budget>,
    pool: Pool,
    queues: [Queue; CLASSES.len()],
    spare_events: Vec<Event>,
    /// Shared with launches that were given up.
    modules: Vec<(Arc<Module>, Arc<dyn Kernel>)>,
    timeline: Timeline,
    shared: Arc<Shared>,
    /// The scheduling class of helpers that start from now on.
    classes: Option<Arc<Classes>>,
}

/// One class: its stream, what is queued there, and the helper for pageable copies.
struct Queue {
    class: EngineClass,
    stream: Arc<Stream>,
    pending: VecDeque<Pending>,
    last_finished: Nanos,
    helper: Option<Helper>,
    /// Pageable copies submitted and not yet polled.
    pageable: usize,
}

struct Pending {
    tag: u64,
    operation: Operation,
    start: Event,
    stop: Event,
    submitted: Nanos,
}

/// Opens every GPU of the system's driver, each with `limits`, with peer access wherever the hardware has it.
///
/// # Errors
/// [`DeviceError::Unavailable`], [`DeviceError::Driver`]: the first that fails.
pub fn open_all(limits: Limits) -> Result<Vec<CudaDevice>, DeviceError> {
    CudaDevice::open_all_of(&Driver::system()?, limits)
}

impl CudaDevice {
    /// Opens GPU number `index` of the system's driver with the default limits.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`], [`DeviceError::Driver`].
    pub fn open(index: u32) -> Result<Self, DeviceError> {
        Self::open_with(&Driver::system()?, index, Limits::default())
    }

    /// As [`open_all`], for another driver library.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`], [`DeviceError::Driver`]: the first that fails.
    pub fn open_all_of(driver: &Arc<Driver>, limits: Limits) -> Result<Vec<Self>, DeviceError> {
        let count = driver.count()?.unsigned_abs();
        let devices: Vec<Self> =
            (0..count).map(|index| Self::open_with(driver, index, limits)).collect::<Result<_, _>>()?;
        for from in &devices {
            for to in &devices {
                match from.context.enable_peer(&to.context) {
                    Ok(()) | Err(DeviceError::Unavailable { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(devices)
    }

    /// Opens GPU number `index` of `driver` with `limits`.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`], [`DeviceError::Driver`].
    pub fn open_with(driver: &Arc<Driver>, index: u32, limits: Limits) -> Result<Self, DeviceError> {
        let ordinal = driver.device(index)?;
        let description = describe(driver, ordinal, limits)?;
        let context = Context::retain(driver, ordinal)?;
        let budget = Budget::new(&limits, description.memory_bytes);
        let queue = |class| -> Result<Queue, DeviceError> {
            let (stream, last_finished) = (Arc::new(Stream::new(&context)?), Nanos::ZERO);
            Ok(Queue { class, stream, pending: VecDeque::new(), last_finished, helper: None, pageable: 0 })
        };
        let [first, second, third, fourth] = CLASSES.map(queue);
        Ok(Self {
            description,
            opening: DeviceId::new(),
            pool: Pool::new(&context, &budget),
            budget,
            queues: [first?, second?, third?, fourth?],
            spare_events: Vec::new(),
            modules: Vec::new(),
            timeline: Timeline::new(&context)?,
            shared: Arc::default(),
            classes: None,
            context,
        })
    }

    /// Bound on the error of [`Completion::started`] and [`Completion::finished`] of operations completing now, for `dma`,
    /// `peer` and launches: half the time it took to read both clocks, plus drift since, plus the events' resolution.
    #[must_use]
    pub fn clock_error(&self) -> Nanos {
        self.timeline.error(clock::now())
    }

    fn is_idle(&self) -> bool {
        self.queues.iter().all(|queue| queue.pending.is_empty())
    }

    fn event(&mut self) -> Result<Event, DeviceError> {
        self.spare_events.pop().map_or_else(|| Event::new(&self.context), Ok)
    }

    fn submit_pageable(&mut self, class: EngineClass, job: Job) -> Result<(), DeviceError> {
        let (context, shared) = (&self.context, &self.shared);
        let Some(queue) = self.queues.iter_mut().find(|queue| queue.class == class) else {
            return Err(DeviceError::NoEngine { device: self.description.name.clone(), class });
        };
        let helper = match queue.helper.take() {
            Some(helper) => helper,
            None => Helper::start(context, class, shared, self.classes.clone())?,
        };
        let sent = helper.submit(job);
        queue.helper = Some(helper);
        sent?;
        queue.pageable += 1;
        Ok(())
    }

    fn submit_to_stream(&mut self, class: EngineClass, operation: Operation, tag: u64) -> Result<(), DeviceError> {
        let (start, stop) = (self.event()?, self.event()?);
        let Some(at) = self.queues.iter().position(|queue| queue.class == class) else {
            return Err(DeviceError::NoEngine { device: self.description.name.clone(), class });
        };
        let submitted = clock::now();
        let stream = &self.queues[at].stream;
        if let Err(error) = start.record(stream).and_then(|()| self.enqueue(stream, class, &operation)) {
            self.spare_events.extend([start, stop]);
            return Err(error);
        }
        if let Err(error) = stop.record(stream) {
            // The operation runs and its end cannot be seen.
            abandon(&self.context, Some(stream), (operation, start, stop, self.module_handles()), None);
            return Err(error);
        }
        self.queues[at].pending.push_back(Pending { tag, operation, start, stop, submitted });
        Ok(())
    }

    fn enqueue(&self, stream: &Stream, class: EngineClass, operation: &Operation) -> Result<(), DeviceError> {
        match operation {
            Operation::Copy { from, to, .. } => {
                let own = &self.context;
                let (source, target);
                let kind = match class {
                    EngineClass::H2d => CopyKind::HostToDevice,
                    EngineClass::D2h => CopyKind::DeviceToHost,
                    EngineClass::Peer | EngineClass::Ee => {
                        (source, target) = (context_of(&own.driver, from)?, context_of(&own.driver, to)?);
                        own.enable_peer(&source)?;
                        own.enable_peer(&target)?;
                        own.bind()?;
                        let within = source.ordinal == target.ordinal;
                        if within { CopyKind::Within } else { CopyKind::Between(&source, &target) }
                    }
                };
                if from.is_empty() {
                    return Ok(());
                }
                // SAFETY: equal lengths, places, pinning and the claim for writing were checked by `check::operation`; the
                // spans live until the stop event is reached, or for ever.
                unsafe {
                    let (source, target) = (from.as_ptr().expose_provenance(), to.as_ptr().expose_provenance());
                    stream.copy(kind, source as u64, target as u64, from.len())
                }
            }
            Operation::Launch { kernel: id, input, output, state, lanes } => {
                let Some((module, kernel)) = self.modules.get(id.index_on(self.opening)?) else {
                    return Err(DeviceError::Invalid { what: "launch", reason: "no such kernel is loaded".into() });
                };
                check::room(kernel.as_ref(), input, output, *lanes)?;
                let address = |span: &Span| span.as_ptr().addr() as u64;
                let (mut input, mut output) = (address(input), address(output));
                let (mut state, mut count) = (state.as_ref().map_or(0, address), *lanes);
                let mut arguments: [*mut c_void; 4] = [
                    (&raw mut input).cast(),
                    (&raw mut output).cast(),
                    (&raw mut state).cast(),
                    (&raw mut count).cast(),
                ];
                // SAFETY: the spans are memory of this device, claimed as needed (checked by `check::operation`), and live
                // until the stop event is reached, or for ever. That the PTX has these parameters and stays within the memory
                // is the promise of `Kernel`.
                unsafe { stream.launch(module, kernel.grid(*lanes), &mut arguments) }
            }
        }
    }

    /// Completes what `queue` has finished; an error when its state cannot be known any more.
    fn poll_queue(&mut self, at: usize, done: &mut Vec<Completion>) -> Result<(), DeviceError> {
        let queue = &mut self.queues[at];
        while let Some(oldest) = queue.pending.front() {
            if !oldest.stop.is_reached()? {
                break;
            }
            let noticed = clock::now();
            let times =
                self.timeline.time_of(&oldest.start).and_then(|s| Ok((s, self.timeline.time_of(&oldest.stop)?)));
            let Some(Pending { tag, operation, start, stop, submitted }) = queue.pending.pop_front() else { break };
            drop(operation);
            self.spare_events.extend([start, stop]);
            // What is certain narrows what was measured: it ran after its submission and the operation ahead of it, and
            // ended before it was noticed.
            let earliest = submitted.max(queue.last_finished).min(noticed);
            let (started, finished, result) = match times {
                Ok((started, finished)) => (started, finished, Ok(())),
                Err(error) => (earliest, noticed, Err(error)),
            };
            let started = started.clamp(earliest, noticed);
            let finished = finished.clamp(started, noticed);
            queue.last_finished = finished;
            done.push(Completion { tag, result, started, finished, noticed });
        }
        Ok(())
    }

    /// Ends everything that waits on the streams, the oldest operation of queue `first` with `cause`.
    fn abandon(&mut self, mut cause: Option<(usize, DeviceError)>, done: &mut Vec<Completion>) {
        self.context.lose();
        let (noticed, modules) = (clock::now(), self.module_handles());
        for (at, queue) in self.queues.iter_mut().enumerate() {
            for Pending { tag, operation, start, stop, submitted } in queue.pending.drain(..) {
                // Whether the operation still runs is to be found out: its bytes stay claimed until then.
                let held = (operation, start, stop, modules.clone());
                abandon(&self.context, Some(&queue.stream), held, None);
                let own = cause.take_if(|(first, _)| *first == at).map(|(_, error)| error);
                let result = Err(own.unwrap_or(DeviceError::DeviceLost));
                done.push(Completion { tag, result, started: submitted, finished: noticed, noticed });
            }
        }
    }

    /// What launches need that may outlive this device.
    fn module_handles(&self) -> Vec<Arc<Module>> {
        self.modules.iter().map(|(module, _)| Arc::clone(module)).collect()
    }

    fn poll_helpers(&mut self, done: &mut Vec<Completion>) {
        let mut finished = lock(&self.shared.done);
        let noticed = clock::now();
        for (class, completion) in finished.drain(..) {
            if let Some(queue) = self.queues.iter_mut().find(|queue| queue.class == class) {
                queue.pageable -= 1;
            }
            done.push(Completion { noticed, ..completion });
        }
    }
}

/// What the driver says of the GPU `ordinal`.
pub(crate) fn describe(driver: &Driver, ordinal: Ordinal, limits: Limits) -> Result<Description, DeviceError> {
    Ok(Description {
        name: driver.name(ordinal)?,
        uuid: Some(driver.uuid(ordinal)?),
        pci: driver.pci(ordinal)?,
        source: if driver.is_fake() { Source::Fake } else { Source::Cuda },
        engines: CLASSES.into(),
        memory_bytes: driver.memory(ordinal)?,
        limits,
    })
}

/// The context that the memory of `span` belongs to.
fn context_of(driver: &Driver, span: &Span) -> Result<Arc<Context>, DeviceError> {
    let invalid = |reason: &str| DeviceError::Invalid { what: "copy", reason: reason.into() };
    let Place::Device { id, .. } = span.place() else { return Err(invalid("the span is not memory of a GPU")) };
    Context::of(driver, id).ok_or_else(|| invalid("the memory belongs to a device of another driver"))
}

impl Device for CudaDevice {
    fn description(&self) -> &Description {
        &self.description
    }

    fn host_buffer(&mut self, bytes: usize, kind: HostKind) -> Result<Buffer, DeviceError> {
        self.context.bind()?;
        match kind {
            HostKind::Pinned => {
                // The bytes are reserved by the slabs.
                let reservation = self.budget.reserve(1, 0, 0)?;
                Ok(Buffer::new(self.pool.take(bytes)?, reservation))
            }
            HostKind::Pageable => {
                let reservation = self.budget.reserve(1, bytes as u64, 0)?;
                Ok(Buffer::new(HeapMemory::pageable(bytes)?, reservation))
            }
        }
    }

    fn device_buffer(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.context.bind()?;
        let reservation = self.budget.reserve(1, 0, bytes as u64)?;
        Ok(Buffer::new(DeviceMemory::new(&self.context, bytes)?, reservation))
    }

    fn load(&mut self, kernel: Arc<dyn Kernel>) -> Result<KernelId, DeviceError> {
        if self.modules.len() == KERNELS_MAX {
            return Err(DeviceError::Refused { limit: "kernels of one device", max: KERNELS_MAX as u64 });
        }
        let module = Module::load(&self.context, kernel.id(), kernel.ptx(), kernel.entry())?;
        self.modules.push((Arc::new(module), kernel));
        Ok(KernelId::new(self.opening, self.modules.len() - 1))
    }

    fn submit(&mut self, engine: EngineClass, operation: Operation, tag: u64) -> Result<(), DeviceError> {
        self.context.bind()?;
        check::operation(&self.description, (self.context.id, self.context.driver.domain), engine, &operation)?;
        let max = self.description.limits.outstanding_per_engine_max;
        let queue = self.queues.iter().find(|queue| queue.class == engine);
        if queue.is_some_and(|queue| queue.pending.len() + queue.pageable >= max) {
            return Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max: max as u64 });
        }
        self.timeline.maintain(clock::now(), self.is_idle())?;
        match operation {
            Operation::Copy { method: Method::Pageable, from, to } => {
                self.submit_pageable(engine, Job { tag, from, to })
            }
            operation => self.submit_to_stream(engine, operation, tag),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.poll_helpers(done);
        if self.is_idle() {
            return;
        }
        if let Err(error) = self.context.bind().and_then(|()| self.timeline.maintain(clock::now(), false)) {
            let oldest = self.queues.iter().position(|queue| !queue.pending.is_empty());
            self.abandon(oldest.map(|at| (at, error)), done);
            return;
        }
        for at in 0..self.queues.len() {
            if let Err(error) = self.poll_queue(at, done) {
                self.abandon(Some((at, error)), done);
                return;
            }
        }
    }

    fn must_poll(&self) -> bool {
        !self.is_idle()
    }

    fn set_waker(&mut self, waker: Waker) {
        *lock(&self.shared.waker) = Some(waker);
    }

    fn set_classes(&mut self, classes: Option<&Arc<Classes>>) {
        self.classes = classes.cloned();
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        let modules = self.module_handles();
        for queue in &mut self.queues {
            queue.helper = None;
            if queue.pending.is_empty() || await_rest(&self.context, &queue.stream, "operations").is_ok() {
                continue;
            }
            let pending = std::mem::take(&mut queue.pending);
            let told = told(&self.context, pending.len());
            abandon(&self.context, Some(&queue.stream), (pending, modules.clone()), Some(&told));
        }
    }
}
