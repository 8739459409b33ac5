//! The emulated device: one thread per engine, real memory, throttled rates.
//!
//! It exists so that the runtime's threads, queues and locks run without a GPU. Its figures are labelled `emu` and say
//! nothing about any GPU.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use headway_core::files::machine::{CapacityKind, EndpointId, EngineClass, Machine};
use headway_core::models::transfer::Method;
use headway_core::plan::block;
use headway_core::units::{Bytes, Nanos, Rate};
use headway_os::sched::{Classes, Role};
use headway_os::{clock, sched};

use crate::buffer::{Budget, DeviceId, Domain, HeapMemory, Place, lock};
use crate::{
    Buffer, Completion, Description, Device, DeviceError, HostKind, Kernel, KernelId, Limits, Operation, Source, Span,
    Waker, check, wake,
};

/// Kernels one device holds.
const KERNELS_MAX: usize = 256;
/// The two buffers through which `pageable` copies go have this size each (`cho-2018`, on CUDA's own pinned buffers).
const BOUNCE_BYTES: usize = 1 << 20;

/// What a launch costs beyond its set-up: kernel name, input block, and operations for each pixel where a kernel has such, to a
/// time.
pub type KernelTime = Arc<dyn Fn(&str, &[u8], Option<u32>) -> Nanos + Send + Sync>;

/// What to build.
#[derive(Clone)]
pub struct EmuSpec {
    /// Name for people.
    pub name: String,
    /// The engines; a class is served by the first that lists it.
    pub engines: Vec<EmuEngine>,
    /// What launches cost beyond their set-up; `None` = only what the CPU form takes.
    pub kernel_time: Option<KernelTime>,
    /// Device memory.
    pub memory_bytes: Bytes,
    /// Limits.
    pub limits: Limits,
    /// What goes wrong.
    pub faults: Faults,
}

/// One engine: one operation at a time, first come first served, of the classes it lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmuEngine {
    /// The classes and what they cost.
    pub serves: Vec<Service>,
}

/// What an engine's operations of one class cost: at least `setup + bytes / rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The class.
    pub class: EngineClass,
    /// Time with no byte moving.
    pub setup: Nanos,
    /// Rate; `None` = as fast as the CPU copies. Not used for launches.
    pub rate: Option<Rate>,
}

/// Faults to inject, by the position of an operation in the order of submission, the first being 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// These end with a driver error after their time; their bytes are not moved.
    pub fail: BTreeSet<u64>,
    /// These take longer by this much.
    pub delay: BTreeMap<u64, Nanos>,
    /// The engine thread panics in this one: the device is lost.
    pub panic_at: Option<u64>,
}

impl EmuSpec {
    /// Four unthrottled engines and 1 GiB of memory.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let classes = [EngineClass::H2d, EngineClass::D2h, EngineClass::Peer, EngineClass::Ee];
        let engine = |class| EmuEngine { serves: vec![Service { class, setup: Nanos::ZERO, rate: None }] };
        Self {
            name: name.to_owned(),
            engines: classes.map(engine).into(),
            kernel_time: None,
            memory_bytes: Bytes(1 << 30),
            limits: Limits::default(),
            faults: Faults::default(),
        }
    }

    /// The engines of `gpu` in `machine`, with the set-up and the rate of the fastest route that each serves alone, and the
    /// kernel costs of the file. Sharing of links between engines is not emulated.
    #[must_use]
    pub fn of_machine(machine: &Machine, gpu: EndpointId) -> Self {
        let mut spec = Self::new(&format!("emulated {} of {}", machine.endpoints[gpu.at()].id, machine.name));
        let own = (0..).zip(&machine.engines).filter(|(_, engine)| engine.gpu == gpu);
        spec.engines = own
            .map(|(index, engine)| EmuEngine {
                serves: engine.serves.iter().map(|&class| service(machine, index, class)).collect(),
            })
            .collect();
        let costs = machine.kernels.clone();
        spec.kernel_time = Some(Arc::new(move |kernel, input, operations| {
            let lanes = block::Header::read(input).map_or_else(
                |_| vec![input.len() as u64],
                |header| header.lanes.iter().map(|lane| lane.len() as u64).collect(),
            );
            let (total, chain) = (lanes.iter().sum(), lanes.iter().copied().max().unwrap_or(0));
            let known =
                costs.iter().find(|cost| cost.id == kernel && (cost.gpus.is_empty() || cost.gpus.contains(&gpu)));
            known.map_or(Nanos::ZERO, |cost| cost.launch(Bytes(total), Bytes(chain), operations))
        }));
        spec
    }
}

fn service(machine: &Machine, engine: u32, class: EngineClass) -> Service {
    let routes = (0..).zip(&machine.routes).filter(|(id, route)| {
        machine.class(headway_core::files::machine::RouteId(*id)) == class
            && route.method != Method::Pageable
            && route.engines.iter().any(|used| used.0 == engine)
    });
    let rated = routes.filter_map(|(_, route)| {
        let capacities = route.uses.iter().map(|&(id, _)| &machine.capacities[id.at()]);
        let links = capacities.filter(|capacity| matches!(capacity.kind, CapacityKind::Link { .. }));
        links.map(|link| link.rate).min().map(|rate| (rate, route.setup))
    });
    match rated.max_by_key(|&(rate, setup)| (rate, std::cmp::Reverse(setup))) {
        Some((rate, setup)) => Service { class, setup, rate: Some(rate) },
        None => Service { class, setup: Nanos::ZERO, rate: None },
    }
}

/// The emulated device.
pub struct Emulated {
    description: Description,
    id: DeviceId,
    budget: Arc<Budget>,
    kernels: Vec<Arc<dyn Kernel>>,
    engines: Vec<Engine>,
    shared: Arc<Shared>,
    submitted: u64,
    faults: Faults,
}

struct Engine {
    classes: Vec<Service>,
    queue: Arc<Queue>,
    outstanding: usize,
    thread: Option<JoinHandle<()>>,
}

struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    stop: bool,
    /// The scheduling class that the thread is to take, or to give back, next.
    change: Option<Option<Arc<Classes>>>,
}

/// What all engine threads and the device share.
struct Shared {
    /// Completions with the engine they come from; bounded by the limits on outstanding operations.
    done: Mutex<VecDeque<(usize, Completion)>>,
    waker: Mutex<Option<Waker>>,
    lost: AtomicBool,
    kernel_time: Option<KernelTime>,
}

struct Job {
    tag: u64,
    work: Work,
    service: Service,
    fault: Option<Fault>,
    delay: Nanos,
}

#[derive(Clone, Copy)]
enum Fault {
    Fail,
    Panic,
}

enum Work {
    Copy { method: Method, from: Span, to: Span },
    Launch { kernel: Arc<dyn Kernel>, input: Span, output: Span, state: Option<Span> },
}

impl Emulated {
    /// Starts the engine threads.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] when the system gives no thread.
    pub fn open(spec: EmuSpec) -> Result<Self, DeviceError> {
        let shared = Arc::new(Shared {
            done: Mutex::default(),
            waker: Mutex::default(),
            lost: AtomicBool::new(false),
            kernel_time: spec.kernel_time,
        });
        let mut classes: Vec<_> = spec.engines.iter().flat_map(|e| e.serves.iter().map(|s| s.class)).collect();
        classes.sort_unstable();
        classes.dedup();
        let mut device = Self {
            description: Description {
                name: spec.name,
                uuid: None,
                pci: None,
                source: Source::Emu,
                engines: classes,
                memory_bytes: spec.memory_bytes,
                limits: spec.limits,
            },
            id: DeviceId::new(),
            budget: Budget::new(&spec.limits, spec.memory_bytes),
            kernels: Vec::new(),
            engines: Vec::new(),
            shared,
            submitted: 0,
            faults: spec.faults,
        };
        for engine in spec.engines {
            device.start_engine(engine)?;
        }
        Ok(device)
    }

    fn start_engine(&mut self, engine: EmuEngine) -> Result<(), DeviceError> {
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new() });
        let (index, shared, jobs) = (self.engines.len(), Arc::clone(&self.shared), Arc::clone(&queue));
        let thread = std::thread::Builder::new()
            .name(format!("headway-emu-{index}"))
            .spawn(move || serve(index, &shared, &jobs))
            .map_err(|error| DeviceError::Unavailable {
                what: "a thread for an emulated engine".into(),
                reason: error.to_string(),
                remedy: "raise the limit on threads".into(),
            })?;
        self.engines.push(Engine { classes: engine.serves, queue, outstanding: 0, thread: Some(thread) });
        Ok(())
    }

    fn alive(&self) -> Result<(), DeviceError> {
        if self.shared.lost.load(Ordering::Acquire) { Err(DeviceError::DeviceLost) } else { Ok(()) }
    }
}

impl Device for Emulated {
    fn description(&self) -> &Description {
        &self.description
    }

    fn host_buffer(&mut self, bytes: usize, kind: HostKind) -> Result<Buffer, DeviceError> {
        self.alive()?;
        let reservation = self.budget.reserve(1, bytes as u64, 0)?;
        let pinned = match kind {
            HostKind::Pinned => Some(Domain::EMULATED),
            HostKind::Pageable => None,
        };
        Ok(Buffer::new(HeapMemory::new(bytes, Place::Host { pinned })?, reservation))
    }

    fn device_buffer(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.alive()?;
        let reservation = self.budget.reserve(1, 0, bytes as u64)?;
        let place = Place::Device { id: self.id, domain: Domain::EMULATED };
        Ok(Buffer::new(HeapMemory::new(bytes, place)?, reservation))
    }

    fn load(&mut self, kernel: Arc<dyn Kernel>) -> Result<KernelId, DeviceError> {
        self.alive()?;
        if self.kernels.len() == KERNELS_MAX {
            return Err(DeviceError::Refused { limit: "kernels of one device", max: KERNELS_MAX as u64 });
        }
        self.kernels.push(kernel);
        Ok(KernelId::new(self.id, self.kernels.len() - 1))
    }

    fn submit(&mut self, engine: EngineClass, operation: Operation, tag: u64) -> Result<(), DeviceError> {
        self.alive()?;
        check::operation(&self.description, (self.id, Domain::EMULATED), engine, &operation)?;
        let served = self.engines.iter_mut().find_map(|candidate| {
            let service = candidate.classes.iter().find(|service| service.class == engine).copied();
            service.map(|service| (candidate, service))
        });
        let Some((served, service)) = served else {
            return Err(DeviceError::NoEngine { device: self.description.name.clone(), class: engine });
        };
        let max = self.description.limits.outstanding_per_engine_max;
        if served.outstanding >= max {
            return Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max: max as u64 });
        }
        let work = match operation {
            Operation::Copy { method, from, to } => Work::Copy { method, from, to },
            Operation::Launch { kernel, input, output, state, lanes } => {
                let Some(kernel) = self.kernels.get(kernel.index_on(self.id)?) else {
                    return Err(DeviceError::Invalid { what: "launch", reason: "no such kernel is loaded".into() });
                };
                check::room(kernel.as_ref(), &input, &output, lanes)?;
                Work::Launch { kernel: Arc::clone(kernel), input, output, state }
            }
        };
        let sequence = self.submitted;
        let fault = if self.faults.panic_at == Some(sequence) {
            Some(Fault::Panic)
        } else {
            self.faults.fail.contains(&sequence).then_some(Fault::Fail)
        };
        let delay = self.faults.delay.get(&sequence).copied().unwrap_or(Nanos::ZERO);
        self.submitted += 1;
        served.outstanding += 1;
        lock(&served.queue.state).jobs.push_back(Job { tag, work, service, fault, delay });
        served.queue.changed.notify_one();
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut finished = lock(&self.shared.done);
        let noticed = clock::now();
        for (engine, completion) in finished.drain(..) {
            self.engines[engine].outstanding -= 1;
            done.push(Completion { noticed, ..completion });
        }
    }

    fn must_poll(&self) -> bool {
        false
    }

    fn set_waker(&mut self, waker: Waker) {
        *lock(&self.shared.waker) = Some(waker);
    }

    fn set_classes(&mut self, classes: Option<&Arc<Classes>>) {
        for engine in &self.engines {
            lock(&engine.queue.state).change = Some(classes.cloned());
            engine.queue.changed.notify_one();
        }
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        for engine in &self.engines {
            let mut state = lock(&engine.queue.state);
            state.stop = true;
            let waiting = std::mem::take(&mut state.jobs);
            drop(state);
            engine.queue.changed.notify_one();
            drop(waiting);
        }
        for thread in self.engines.iter_mut().filter_map(|engine| engine.thread.take()) {
            // An engine thread contains the panics of its work; should one escape there is nothing left to save.
            let _ = thread.join();
        }
    }
}

/// The loop of an engine thread.
fn serve(index: usize, shared: &Shared, queue: &Queue) {
    // Without it, every throttled operation would end up to 50 us late; a refusal only costs that precision.
    let _ = sched::lower_timer_slack();
    let mut bounce = [Vec::new(), Vec::new()];
    let mut held = None;
    loop {
        let mut state = lock(&queue.state);
        while state.jobs.is_empty() && !state.stop && state.change.is_none() {
            state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        if let Some(change) = state.change.take() {
            drop(state);
            // The old class is given back before the new one is taken.
            drop(held.take());
            held = change.map(|classes| classes.take(Role::Helper));
            continue;
        }
        let Some(mut job) = state.jobs.pop_front() else { continue };
        drop(state);
        let started = clock::now();
        let duration = duration(shared, &job);
        let result = run(shared, &mut job, &mut bounce);
        wait_until(queue, started.saturating_add(duration));
        let tag = job.tag;
        drop(job);
        let finished = clock::now();
        let completion = Completion { tag, result, started, finished, noticed: finished };
        lock(&shared.done).push_back((index, completion));
        let waker = lock(&shared.waker).clone();
        if let Some(waker) = waker {
            wake(&waker);
        }
    }
}

/// Waits until `time`, or until the device is dropped.
fn wait_until(queue: &Queue, time: Nanos) {
    let mut state = lock(&queue.state);
    while !state.stop {
        let left = time.saturating_sub(clock::now());
        if left == Nanos::ZERO {
            return;
        }
        let waited = queue.changed.wait_timeout(state, Duration::from_nanos(left.0));
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn duration(shared: &Shared, job: &Job) -> Nanos {
    let moving = match &job.work {
        Work::Copy { from, .. } => job.service.rate.map_or(Nanos::ZERO, |rate| rate.time_for(Bytes(from.len() as u64))),
        Work::Launch { kernel, input, state, .. } => shared.kernel_time.as_ref().map_or(Nanos::ZERO, |time| {
            // A cost function that panics costs nothing rather than the engine.
            let operations = || kernel.operations(state.as_ref().map_or(&[], device_bytes));
            catch_unwind(AssertUnwindSafe(|| time(kernel.id(), device_bytes(input), operations())))
                .unwrap_or(Nanos::ZERO)
        }),
    };
    job.service.setup.saturating_add(moving).saturating_add(job.delay)
}

fn run(shared: &Shared, job: &mut Job, bounce: &mut [Vec<u8>; 2]) -> Result<(), DeviceError> {
    if shared.lost.load(Ordering::Acquire) {
        return Err(DeviceError::DeviceLost);
    }
    let attempt = catch_unwind(AssertUnwindSafe(|| match job.fault {
        Some(Fault::Panic) => panic!("injected fault: an engine thread of the emulated device panics"),
        Some(Fault::Fail) => {
            Err(DeviceError::Driver { call: "emulated operation", code: -1, name: "INJECTED_FAULT".into() })
        }
        None => execute(&mut job.work, bounce),
    }));
    attempt.unwrap_or_else(|_| {
        shared.lost.store(true, Ordering::Release);
        Err(DeviceError::DeviceLost)
    })
}

fn execute(work: &mut Work, bounce: &mut [Vec<u8>; 2]) -> Result<(), DeviceError> {
    match work {
        Work::Copy { method, from, to } => {
            let (from, to) = (device_bytes(from), device_bytes_mut(to));
            if *method != Method::Pageable {
                to.copy_from_slice(from);
                return Ok(());
            }
            for (piece, (from, to)) in from.chunks(BOUNCE_BYTES).zip(to.chunks_mut(BOUNCE_BYTES)).enumerate() {
                let buffer = &mut bounce[piece % 2];
                buffer.resize(buffer.len().max(from.len()), 0);
                buffer[..from.len()].copy_from_slice(from);
                to.copy_from_slice(&buffer[..from.len()]);
            }
            Ok(())
        }
        Work::Launch { kernel, input, output, state } => {
            let state = state.as_mut().map_or(&mut [][..], device_bytes_mut);
            Ok(kernel.run(device_bytes(input), device_bytes_mut(output), state)?)
        }
    }
}

/// The bytes of a span of host or emulated device memory.
pub(crate) fn device_bytes(span: &Span) -> &[u8] {
    // SAFETY: `check::operation` and `check::movement` admit only spans of host memory and of the domain of emulated devices; both are memory of
    // this process, initialised and valid while the span lives. Nobody writes them: other claims on them only read.
    unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len()) }
}

/// The same, to be written.
pub(crate) fn device_bytes_mut(span: &mut Span) -> &mut [u8] {
    // SAFETY: as in `device_bytes`; both checks admit only spans claimed for writing as destination, output and
    // state, so nobody else holds a claim on these bytes.
    unsafe { std::slice::from_raw_parts_mut(span.as_ptr(), span.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;
    use crate::conformance::{self, Xor};

    fn small(faults: Faults) -> Emulated {
        Emulated::open(EmuSpec { faults, ..EmuSpec::new("emu0") }).unwrap()
    }

    fn copies(device: &mut Emulated, count: u64) -> (Buffer, Buffer) {
        let host = device.host_buffer(64 * count as usize, HostKind::Pinned).unwrap();
        let there = device.device_buffer(64 * count as usize).unwrap();
        for tag in 0..count {
            let range = 64 * tag as usize..64 * (tag as usize + 1);
            let operation = Operation::Copy {
                method: Method::Dma,
                from: host.claim(range.clone(), Access::Read).unwrap(),
                to: there.claim(range, Access::Write).unwrap(),
            };
            device.submit(EngineClass::H2d, operation, tag).unwrap();
        }
        (host, there)
    }

    #[test]
    fn an_operation_lasts_at_least_setup_and_bytes_over_rate() {
        let serves = vec![Service { class: EngineClass::H2d, setup: Nanos(300_000), rate: Some(Rate(64_000_000)) }];
        let mut device =
            Emulated::open(EmuSpec { engines: vec![EmuEngine { serves }], ..EmuSpec::new("slow") }).unwrap();
        let _memory = copies(&mut device, 3);
        let done = conformance::wait_for(&mut device, 3);
        for completion in &done {
            assert!(completion.finished - completion.started >= Nanos(301_000), "{completion:?}");
        }
        assert!(done.windows(2).all(|pair| pair[0].finished <= pair[1].started), "one at a time");
    }

    #[test]
    fn one_engine_for_both_directions_serves_them_one_after_the_other() {
        let service = |class| Service { class, setup: Nanos(100_000), rate: None };
        let serves = vec![service(EngineClass::H2d), service(EngineClass::D2h)];
        let mut device =
            Emulated::open(EmuSpec { engines: vec![EmuEngine { serves }], ..EmuSpec::new("half") }).unwrap();
        let _memory = copies(&mut device, 2);
        let (host, there) = (device.host_buffer(8, HostKind::Pinned).unwrap(), device.device_buffer(8).unwrap());
        let operation = Operation::Copy {
            method: Method::Dma,
            from: there.claim(0..8, Access::Read).unwrap(),
            to: host.claim(0..8, Access::Write).unwrap(),
        };
        device.submit(EngineClass::D2h, operation, 2).unwrap();
        let done = conformance::wait_for(&mut device, 3);
        assert_eq!(done.iter().map(|completion| completion.tag).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(done.windows(2).all(|pair| pair[0].finished <= pair[1].started));
    }

    #[test]
    fn an_injected_failure_ends_its_own_operation_only() {
        let mut device = small(Faults { fail: [1].into(), ..Faults::default() });
        let _memory = copies(&mut device, 3);
        let done = conformance::wait_for(&mut device, 3);
        assert!(matches!(&done[1].result, Err(DeviceError::Driver { name, .. }) if name == "INJECTED_FAULT"));
        assert_eq!((&done[0].result, &done[2].result), (&Ok(()), &Ok(())));
    }

    #[test]
    fn an_injected_delay_lengthens_its_own_operation() {
        let mut device = small(Faults { delay: [(1, Nanos(2_000_000))].into(), ..Faults::default() });
        let _memory = copies(&mut device, 2);
        let done = conformance::wait_for(&mut device, 2);
        assert!(done[1].finished - done[1].started >= Nanos(2_000_000));
    }

    #[test]
    fn a_panic_on_an_engine_thread_is_a_lost_device_not_an_abort() {
        let mut device = small(Faults { panic_at: Some(1), ..Faults::default() });
        let (host, _there) = copies(&mut device, 3);
        let done = conformance::wait_for(&mut device, 3);
        assert_eq!(done[0].result, Ok(()));
        assert_eq!(done[1].result, Err(DeviceError::DeviceLost));
        assert_eq!(done[2].result, Err(DeviceError::DeviceLost));
        assert_eq!(device.device_buffer(1).unwrap_err(), DeviceError::DeviceLost);
        host.claim(0..64, Access::Write).expect("spans of failed operations are released");
    }

    #[test]
    fn a_kernel_that_refuses_its_block_fails_the_launch() {
        let mut device = small(Faults::default());
        let kernel = device.load(Arc::new(Xor)).unwrap();
        let (input, output) = (device.device_buffer(256).unwrap(), device.device_buffer(256).unwrap());
        let operation = Operation::Launch {
            kernel,
            input: input.claim(0..256, Access::Read).unwrap(),
            output: output.claim(0..256, Access::Write).unwrap(),
            state: None,
            lanes: 1,
        };
        device.submit(EngineClass::Ee, operation, 9).unwrap();
        let done = conformance::wait_for(&mut device, 1);
        assert!(matches!(done[0].result, Err(DeviceError::Kernel(_))), "{done:?}");
    }

    #[test]
    fn the_engines_of_a_machine_file_keep_their_rates_and_costs() {
        use headway_core::files::machine::{Capacity, CapacityId, Endpoint, EndpointKind, EngineId, KernelCost, Route};
        let endpoint = |id: &str, kind| Endpoint { id: id.into(), kind, numa: None, pci: None, uuid: None };
        let link = |from: &str, to: &str, rate| Capacity {
            id: format!("{from}-{to}"),
            rate: Rate(rate),
            rate_low: Rate(rate),
            kind: CapacityKind::Link { from: from.into(), to: to.into(), opposite: None },
        };
        let route = |uses: &[u32], method| Route {
            from: EndpointId(0),
            to: EndpointId(1),
            method,
            engines: vec![EngineId(0)],
            uses: uses.iter().map(|&id| (CapacityId(id), 1_000_000)).collect(),
            weight: 1,
            setup: Nanos(7),
            setup_queued: Nanos(3),
            submit: Nanos(0),
        };
        let machine = Machine {
            name: "test".into(),
            description: String::new(),
            endpoints: vec![endpoint("host", EndpointKind::Memory), endpoint("gpu0", EndpointKind::Gpu)],
            capacities: vec![link("host", "switch", 8_000), link("switch", "gpu0", 5_000), link("host", "gpu0", 9_000)],
            engines: vec![headway_core::files::machine::Engine {
                id: "gpu0.h2d".into(),
                gpu: EndpointId(1),
                serves: vec![EngineClass::H2d, EngineClass::D2h],
                lanes: 1,
            }],
            routes: vec![route(&[0, 1], Method::Dma), route(&[2], Method::Pageable)],
            sets: vec![],
            kernels: vec![KernelCost {
                id: "k".into(),
                gpus: vec![],
                setup: Nanos(10),
                rate: Rate(1_000_000_000),
                chain_rate: Some(Rate(100_000_000)),
                operation_rate: None,
            }],
            cpu: None,
            calibration: None,
            profile: headway_core::models::transfer::Profile::default(),
            hash: String::new(),
        };
        let spec = EmuSpec::of_machine(&machine, EndpointId(1));
        let service = |class, setup, rate| Service { class, setup: Nanos(setup), rate };
        assert_eq!(
            spec.engines,
            [EmuEngine {
                serves: vec![service(EngineClass::H2d, 7, Some(Rate(5_000))), service(EngineClass::D2h, 0, None)]
            }]
        );
        let port = crate::emu_port::EmuPortSpec::of_machine(&machine, EndpointId(1));
        let pace = crate::emu_port::Pace { setup: Nanos(7), rate: Some(Rate(5_000)) };
        assert_eq!((port.h2d, port.d2h, port.half_duplex), (pace, crate::emu_port::Pace::FREE, true));
        let mut input = vec![0; 112];
        block::write_header(&mut input, 0, &[32, 48]).unwrap();
        let time = spec.kernel_time.unwrap();
        assert_eq!(time("k", &input, None), Nanos(10 + 480), "the longest lane at the chain rate");
        // 80 bytes at 1 GB/s for up to 1000 operations, twice as long for twice as many.
        assert_eq!(time("k", &input, Some(2000)), Nanos(10 + 160));
        assert_eq!(time("unknown", &input, None), Nanos::ZERO);
    }

    #[test]
    fn dropping_a_device_cuts_a_long_operation_short() {
        let mut device = small(Faults { delay: [(0, Nanos(3_600_000_000_000))].into(), ..Faults::default() });
        let (host, there) = copies(&mut device, 3);
        drop(device);
        host.claim(0..host.len(), Access::Write).unwrap();
        there.claim(0..there.len(), Access::Write).unwrap();
    }
}
