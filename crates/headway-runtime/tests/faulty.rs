//! A GPU on which things go wrong, for tests of what uses GPUs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headway_core::models::transfer::{ResidentShape, WindowMapping};
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::sched::Classes;

use headway_device::buffer::{Buffer, DeviceId, HostKind, MemoryDomain, Span};
use headway_device::gpu::{Caching, Completion, CpuReach, Gpu, Operation, Pager, Queue, Resident, ResidentOptions};
use headway_device::work::{CpuArgument, DeviceCode, LaunchGrid, Work};
use headway_device::{Description, DeviceError, Waker};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What goes wrong. Submissions are counted over all queues of the GPU, pageable copies apart, the first being 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuFaults {
    /// These submissions are refused with a driver error.
    pub(crate) refuse: BTreeSet<u64>,
    /// These operations end with a driver error.
    pub(crate) fail: BTreeSet<u64>,
    /// The ends of these operations are kept back for this long, and those of later ones of their queue with them.
    pub(crate) delay: BTreeMap<u64, Nanos>,
    /// Instead of these operations, a program that panics is launched: on an emulated GPU in the queue's thread.
    pub(crate) panic: BTreeSet<u64>,
    /// At this submission the device is lost: it and every later call is refused, and no more operations end well.
    pub(crate) lose: Option<u64>,
    /// These pageable copies, in and out together, fail with a driver error.
    pub(crate) fail_pageable: BTreeSet<u64>,
    /// These registrations of memory, counted over the GPU, fail with a driver error.
    pub(crate) refuse_register: BTreeSet<u64>,
    /// No memory can be pinned: neither allocated nor registered.
    pub(crate) refuse_pinning: bool,
    /// Every copy of a resident copier is a timeout.
    pub(crate) resident_timeout: bool,
    /// Queues made from now on call no waker, as those of a real GPU: a thread that waits for an end must poll.
    pub(crate) silent: bool,
}

/// Sees every submission first and says what is to be submitted instead; nothing to be submitted for a tag = it ends at once as if it had
/// been done.
pub(crate) type Tap = Box<dyn FnMut(Operation, u64) -> Vec<(Option<Operation>, u64)> + Send>;

/// A GPU with faults over another one.
pub(crate) struct FaultyGpu {
    inner: Arc<dyn Gpu>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    faults: Mutex<GpuFaults>,
    submitted: AtomicU64,
    pageable: AtomicU64,
    registered: AtomicU64,
    polls: AtomicU64,
    lost: AtomicBool,
    tap: Mutex<Option<Tap>>,
}

fn injected(call: &'static str) -> DeviceError {
    DeviceError::Driver { call, code: -1, name: "INJECTED_FAULT".into() }
}

impl State {
    fn alive(&self) -> Result<(), DeviceError> {
        if self.lost.load(Ordering::Acquire) { Err(DeviceError::DeviceLost) } else { Ok(()) }
    }

    fn pin(&self) -> Result<(), DeviceError> {
        self.alive()?;
        if lock(&self.faults).refuse_pinning { Err(injected("emulated pinning")) } else { Ok(()) }
    }

    fn pageable(&self) -> Result<(), DeviceError> {
        self.alive()?;
        let position = self.pageable.fetch_add(1, Ordering::Relaxed);
        if lock(&self.faults).fail_pageable.contains(&position) {
            Err(injected("emulated pageable copy"))
        } else {
            Ok(())
        }
    }
}

impl FaultyGpu {
    /// `inner` with `faults`.
    pub(crate) fn new(inner: Arc<dyn Gpu>, faults: GpuFaults) -> Self {
        let state = State { faults: Mutex::new(faults), ..State::default() };
        Self { inner, state: Arc::new(state) }
    }

    /// `inner` behind `tap`.
    pub(crate) fn with_tap(inner: Arc<dyn Gpu>, tap: Tap) -> Self {
        let state = State { tap: Mutex::new(Some(tap)), ..State::default() };
        Self { inner, state: Arc::new(state) }
    }

    /// How often its queues were polled.
    pub(crate) fn polls(&self) -> u64 {
        self.state.polls.load(Ordering::Relaxed)
    }

    /// Replaces the faults; positions count on.
    pub(crate) fn set(&self, faults: GpuFaults) {
        *lock(&self.state.faults) = faults;
    }

    /// Submissions so far, refused ones included: the position of the next.
    pub(crate) fn submitted(&self) -> u64 {
        self.state.submitted.load(Ordering::Relaxed)
    }

    /// Registrations so far, refused ones included: the position of the next.
    pub(crate) fn registered(&self) -> u64 {
        self.state.registered.load(Ordering::Relaxed)
    }

    /// Loses the device now.
    pub(crate) fn lose(&self) {
        self.state.lost.store(true, Ordering::Release);
    }
}

impl Gpu for FaultyGpu {
    fn description(&self) -> &Description {
        self.inner.description()
    }
    fn id(&self) -> DeviceId {
        self.inner.id()
    }
    fn domain(&self) -> MemoryDomain {
        self.inner.domain()
    }
    fn numa(&self) -> Option<u32> {
        self.inner.numa()
    }
    fn reaches(&self, peer: DeviceId) -> bool {
        self.inner.reaches(peer)
    }
    fn device_buffer(&self, bytes: usize, reach: CpuReach) -> Result<Buffer, DeviceError> {
        self.state.alive()?;
        self.inner.device_buffer(bytes, reach)
    }
    fn pinned_buffer(&self, bytes: usize, caching: Caching) -> Result<Buffer, DeviceError> {
        self.state.pin()?;
        self.inner.pinned_buffer(bytes, caching)
    }
    fn register(&self, buffer: &Buffer, range: Range<usize>) -> Result<Buffer, DeviceError> {
        self.state.pin()?;
        let position = self.state.registered.fetch_add(1, Ordering::Relaxed);
        if lock(&self.state.faults).refuse_register.contains(&position) {
            return Err(injected("emulated registration"));
        }
        self.inner.register(buffer, range)
    }
    fn host_kind(&self, memory: &[u8]) -> Result<HostKind, DeviceError> {
        self.inner.host_kind(memory)
    }
    fn pageable_buffer(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.state.alive()?;
        self.inner.pageable_buffer(bytes)
    }
    fn load(&self, work: &dyn Work) -> Result<(), DeviceError> {
        self.state.alive()?;
        self.inner.load(work)
    }
    fn queue(&self, keeps_time: bool) -> Result<Box<dyn Queue>, DeviceError> {
        self.state.alive()?;
        let inner = self.inner.queue(keeps_time)?;
        let (state, silent) = (Arc::clone(&self.state), lock(&self.state.faults).silent);
        let (fates, made_up) = (VecDeque::new(), VecDeque::new());
        Ok(Box::new(FaultyQueue { inner, state, fates, held: None, made_up, silent }))
    }
    fn copy_in(&self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError> {
        self.state.pageable()?;
        self.inner.copy_in(to, from)
    }
    fn copy_out(&self, to: &mut [u8], from: &Span) -> Result<(), DeviceError> {
        self.state.pageable()?;
        self.inner.copy_out(to, from)
    }
    fn windows(&self) -> Vec<(WindowMapping, Result<(), DeviceError>)> {
        self.inner.windows()
    }
    fn round_trips(&self, mapping: WindowMapping, rounds: u32) -> Result<Vec<Nanos>, DeviceError> {
        self.state.alive()?;
        self.inner.round_trips(mapping, rounds)
    }
    fn pager(&self, mapping: WindowMapping, buffer: &Buffer) -> Result<Box<dyn Pager>, DeviceError> {
        self.state.alive()?;
        self.inner.pager(mapping, buffer)
    }
    fn residents(&self) -> Vec<(ResidentShape, Result<(), DeviceError>)> {
        self.inner.residents()
    }
    fn resident(&self, shape: ResidentShape, options: ResidentOptions) -> Result<Box<dyn Resident>, DeviceError> {
        self.state.alive()?;
        let inner = self.inner.resident(shape, options)?;
        Ok(Box::new(FaultyResident { inner, state: Arc::clone(&self.state), patience: options.patience }))
    }
}

/// What becomes of one operation that the inner queue has taken.
struct Fate {
    fails: bool,
    /// When its end may be seen.
    due: Nanos,
}

struct FaultyQueue {
    inner: Box<dyn Queue>,
    state: Arc<State>,
    /// In the order of submission.
    fates: VecDeque<Fate>,
    /// An end that has come and is kept back.
    held: Option<Completion>,
    /// What ends without having been done.
    made_up: VecDeque<u64>,
    silent: bool,
}

impl FaultyQueue {
    fn submit_one(&mut self, what: Operation, tag: u64) -> Result<(), DeviceError> {
        self.state.alive()?;
        let position = self.state.submitted.fetch_add(1, Ordering::Relaxed);
        let faults = lock(&self.state.faults).clone();
        if faults.lose == Some(position) {
            self.state.lost.store(true, Ordering::Release);
            return Err(DeviceError::DeviceLost);
        }
        if faults.refuse.contains(&position) {
            return Err(injected("emulated submission"));
        }
        let what = if faults.panic.contains(&position) {
            let grid = LaunchGrid::line(1, 1, 0);
            Operation::Launch { work: Arc::new(Panic), grid, arguments: Vec::new() }
        } else {
            what
        };
        self.inner.submit(what, tag)?;
        let due = faults.delay.get(&position).map_or(Nanos::ZERO, |delay| clock::now().saturating_add(*delay));
        self.fates.push_back(Fate { fails: faults.fail.contains(&position), due });
        Ok(())
    }
}

impl Queue for FaultyQueue {
    fn submit(&mut self, what: Operation, tag: u64) -> Result<(), DeviceError> {
        let state = Arc::clone(&self.state);
        let mut tap = lock(&state.tap);
        let Some(tap) = tap.as_mut() else { return self.submit_one(what, tag) };
        for (what, tag) in tap(what, tag) {
            match what {
                Some(what) => self.submit_one(what, tag)?,
                None => self.made_up.push_back(tag),
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion> {
        self.state.polls.fetch_add(1, Ordering::Relaxed);
        if let Some(tag) = self.made_up.pop_front() {
            let now = clock::now();
            return Some(Completion { tag, result: Ok(()), started: now, finished: now, noticed: now });
        }
        if self.held.is_none() {
            self.held = self.inner.poll();
        }
        self.held.as_ref()?;
        let lost = self.state.lost.load(Ordering::Acquire);
        if self.fates.front().is_some_and(|fate| !lost && clock::now() < fate.due) {
            return None;
        }
        let (done, fate) = (self.held.take()?, self.fates.pop_front());
        let result = match fate {
            _ if lost => Err(DeviceError::DeviceLost),
            Some(Fate { fails: true, .. }) => Err(injected("emulated move")),
            _ => done.result,
        };
        let kept = fate.is_some_and(|fate| fate.due > done.finished);
        let noticed = clock::now();
        Some(Completion { result, finished: if kept { noticed } else { done.finished }, noticed, ..done })
    }

    fn must_poll(&self) -> bool {
        let late = self.fates.iter().any(|fate| fate.due > Nanos::ZERO);
        late || !self.made_up.is_empty() || self.inner.must_poll() || self.silent && self.outstanding() > 0
    }

    fn set_waker(&mut self, waker: Waker) {
        if !self.silent {
            self.inner.set_waker(waker);
        }
    }

    fn set_classes(&mut self, classes: Option<&Arc<Classes>>) {
        self.inner.set_classes(classes);
    }

    fn outstanding(&self) -> usize {
        self.fates.len() + self.made_up.len()
    }
}

/// A program whose CPU form panics; it has no other.
struct Panic;

impl Work for Panic {
    fn id(&self) -> &'static str {
        "injected-panic"
    }
    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx("")
    }
    fn entry(&self) -> &'static str {
        ""
    }
    fn launch(&self, _: LaunchGrid, _: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        panic!("injected fault: a program panics");
    }
}

struct FaultyResident {
    inner: Box<dyn Resident>,
    state: Arc<State>,
    patience: Nanos,
}

impl FaultyResident {
    fn answer(&mut self) -> Result<(), DeviceError> {
        self.state.alive()?;
        if lock(&self.state.faults).resident_timeout {
            self.inner.park()?;
            return Err(DeviceError::Timeout {
                what: "injected fault: the resident copier".into(),
                after: self.patience,
            });
        }
        Ok(())
    }
}

impl Resident for FaultyResident {
    fn shape(&self) -> ResidentShape {
        self.inner.shape()
    }
    fn copy_in(&mut self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError> {
        self.answer()?;
        self.inner.copy_in(to, from)
    }
    fn copy_out(&mut self, to: &mut [u8], from: &Span) -> Result<(), DeviceError> {
        self.answer()?;
        self.inner.copy_out(to, from)
    }
    fn copy(&mut self, from: &Span, to: &mut Span) -> Result<(), DeviceError> {
        self.answer()?;
        self.inner.copy(from, to)
    }
    fn park(&mut self) -> Result<(), DeviceError> {
        self.state.alive()?;
        self.inner.park()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_device::Access;
    use headway_device::conformance::finish;
    use headway_device::emu::{EmuGpu, EmuSpec};

    struct Bench {
        gpu: FaultyGpu,
        host: Buffer,
        there: Buffer,
    }

    impl Bench {
        fn new(faults: GpuFaults) -> Self {
            let gpu = FaultyGpu::new(Arc::new(EmuGpu::open(EmuSpec::new("emu0"))), faults);
            let there = gpu.device_buffer(64, CpuReach::Device).unwrap();
            let host = gpu.inner.pinned_buffer(64, Caching::Cached).unwrap();
            Self { gpu, host, there }
        }

        /// Submits copies of one byte each; the results of those that were taken.
        fn copies(&self, count: usize) -> [Vec<Result<(), DeviceError>>; 2] {
            let mut queue = self.gpu.queue(false).unwrap();
            let submitted: Vec<_> = (0..count)
                .map(|at| {
                    let from = self.host.claim(at..at + 1, Access::Read).unwrap();
                    let to = self.there.claim(at..at + 1, Access::Write).unwrap();
                    queue.submit(Operation::Copy { from, to }, at as u64)
                })
                .collect();
            let taken = submitted.iter().filter(|result| result.is_ok()).count();
            let ended = finish(queue.as_mut(), taken).into_iter().map(|done| done.result).collect();
            drop(self.there.claim(0..64, Access::Write).expect("all claims are released"));
            [submitted, ended]
        }
    }

    #[test]
    fn the_submission_named_is_refused_and_the_move_named_fails() {
        let bench = Bench::new(GpuFaults { refuse: [1].into(), fail: [3].into(), ..GpuFaults::default() });
        let [submitted, ended] = bench.copies(5);
        assert_eq!(submitted, [Ok(()), Err(injected("emulated submission")), Ok(()), Ok(()), Ok(())]);
        assert_eq!(ended, [Ok(()), Ok(()), Err(injected("emulated move")), Ok(())]);
        assert_eq!(bench.gpu.submitted(), 5);
    }

    #[test]
    fn a_delayed_end_keeps_later_ends_back() {
        let bench = Bench::new(GpuFaults { delay: [(0, Nanos(3_000_000))].into(), ..GpuFaults::default() });
        let started = clock::now();
        assert_eq!(bench.copies(2)[1], [Ok(()), Ok(())]);
        assert!(clock::now() >= started.saturating_add(Nanos(3_000_000)));
    }

    #[test]
    fn a_panic_in_a_queue_is_a_lost_device() {
        let bench = Bench::new(GpuFaults { panic: [1].into(), ..GpuFaults::default() });
        let [_, ended] = bench.copies(2);
        assert_eq!(ended, [Ok(()), Err(DeviceError::DeviceLost)]);
        assert_eq!(bench.gpu.device_buffer(1, CpuReach::Device).unwrap_err(), DeviceError::DeviceLost);
    }

    #[test]
    fn a_lost_device_refuses_everything_and_releases_all_claims() {
        let bench = Bench::new(GpuFaults { lose: Some(2), ..GpuFaults::default() });
        let [submitted, ended] = bench.copies(3);
        assert_eq!(submitted[2], Err(DeviceError::DeviceLost));
        assert!(ended.iter().all(|result| *result == Err(DeviceError::DeviceLost)));
        assert!(matches!(bench.gpu.queue(false).err(), Some(DeviceError::DeviceLost)));
        let mut span = bench.there.claim(0..1, Access::Write).unwrap();
        assert_eq!(bench.gpu.copy_in(&mut span, &[1]), Err(DeviceError::DeviceLost));
    }

    #[test]
    fn pinning_pageable_copies_and_resident_copiers_fail_on_demand() {
        let bench = Bench::new(GpuFaults {
            refuse_pinning: true,
            fail_pageable: [1].into(),
            resident_timeout: true,
            ..GpuFaults::default()
        });
        assert!(bench.gpu.pinned_buffer(1, Caching::Cached).is_err());
        assert!(bench.gpu.register(&bench.host, 0..bench.host.len()).is_err());
        let mut span = bench.there.claim(0..1, Access::Write).unwrap();
        assert_eq!(bench.gpu.copy_in(&mut span, &[1]), Ok(()));
        assert!(bench.gpu.copy_in(&mut span, &[1]).is_err());
        let day = Nanos(86_400_000_000_000);
        let options = ResidentOptions { piece: 256, lease: day, patience: day };
        let mut resident = bench.gpu.resident(ResidentShape::Hub, options).unwrap();
        assert!(matches!(resident.copy_in(&mut span, &[1]), Err(DeviceError::Timeout { .. })));
        bench.gpu.set(GpuFaults::default());
        assert_eq!(resident.copy_in(&mut span, &[1]), Ok(()));
        bench.gpu.pinned_buffer(1, Caching::Cached).unwrap();
    }
}
