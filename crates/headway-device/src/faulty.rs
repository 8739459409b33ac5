//! A gpu on which things go wrong, for tests of what uses gpus.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use headway_core::models::transfer::{Mapping, Shape};
use headway_core::units::Nanos;
use headway_os::clock;

use crate::buffer::{Buffer, DeviceId, Domain, HostKind, Span, lock};
use crate::gpu::{Caching, CpuArgument, Done, Gpu, Move, Pager, Program, Queue, Reach, Resident, ResidentOptions};
use crate::kernel::Grid;
use crate::{Description, DeviceError};

/// What goes wrong. Submissions are counted over all queues of the gpu, pageable copies apart, the first being 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortFaults {
    /// These submissions are refused with a driver error.
    pub refuse: BTreeSet<u64>,
    /// These moves end with a driver error.
    pub fail: BTreeSet<u64>,
    /// The ends of these moves are kept back for this long, and those of later ones of their queue with them.
    pub delay: BTreeMap<u64, Nanos>,
    /// Instead of these moves, a program that panics is launched: on an emulated gpu in the queue's thread.
    pub panic: BTreeSet<u64>,
    /// At this submission the device is lost: it and every later call is refused, and no more moves end well.
    pub lose: Option<u64>,
    /// These pageable copies, in and out together, fail with a driver error.
    pub fail_pageable: BTreeSet<u64>,
    /// No memory can be pinned: neither allocated nor registered.
    pub refuse_pinning: bool,
    /// Every copy of a resident copier is a timeout.
    pub resident_timeout: bool,
}

/// A gpu with faults over another one.
pub struct FaultyGpu {
    inner: Arc<dyn Gpu>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    faults: Mutex<PortFaults>,
    submitted: AtomicU64,
    pageable: AtomicU64,
    lost: AtomicBool,
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
    #[must_use]
    pub fn new(inner: Arc<dyn Gpu>, faults: PortFaults) -> Self {
        let state = State { faults: Mutex::new(faults), ..State::default() };
        Self { inner, state: Arc::new(state) }
    }

    /// Replaces the faults; positions count on.
    pub fn set(&self, faults: PortFaults) {
        *lock(&self.state.faults) = faults;
    }

    /// Submissions so far, refused ones included: the position of the next.
    #[must_use]
    pub fn submitted(&self) -> u64 {
        self.state.submitted.load(Ordering::Relaxed)
    }

    /// Loses the device now.
    pub fn lose(&self) {
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
    fn domain(&self) -> Domain {
        self.inner.domain()
    }
    fn numa(&self) -> Option<u32> {
        self.inner.numa()
    }
    fn reaches(&self, peer: DeviceId) -> bool {
        self.inner.reaches(peer)
    }
    fn device_buffer(&self, bytes: usize, reach: Reach) -> Result<Buffer, DeviceError> {
        self.state.alive()?;
        self.inner.device_buffer(bytes, reach)
    }
    fn pinned_buffer(&self, bytes: usize, caching: Caching) -> Result<Buffer, DeviceError> {
        self.state.pin()?;
        self.inner.pinned_buffer(bytes, caching)
    }
    fn register(&self, buffer: &Buffer) -> Result<Buffer, DeviceError> {
        self.state.pin()?;
        self.inner.register(buffer)
    }
    fn host_kind(&self, memory: &[u8]) -> Result<HostKind, DeviceError> {
        self.inner.host_kind(memory)
    }
    fn queue(&self, keeps_time: bool) -> Result<Box<dyn Queue>, DeviceError> {
        self.state.alive()?;
        let inner = self.inner.queue(keeps_time)?;
        Ok(Box::new(FaultyQueue { inner, state: Arc::clone(&self.state), fates: VecDeque::new(), held: None }))
    }
    fn copy_in(&self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError> {
        self.state.pageable()?;
        self.inner.copy_in(to, from)
    }
    fn copy_out(&self, to: &mut [u8], from: &Span) -> Result<(), DeviceError> {
        self.state.pageable()?;
        self.inner.copy_out(to, from)
    }
    fn windows(&self) -> Vec<(Mapping, Result<(), DeviceError>)> {
        self.inner.windows()
    }
    fn round_trips(&self, mapping: Mapping, rounds: u32) -> Result<Vec<Nanos>, DeviceError> {
        self.state.alive()?;
        self.inner.round_trips(mapping, rounds)
    }
    fn pager(&self, mapping: Mapping, buffer: &Buffer) -> Result<Box<dyn Pager>, DeviceError> {
        self.state.alive()?;
        self.inner.pager(mapping, buffer)
    }
    fn residents(&self) -> Vec<(Shape, Result<(), DeviceError>)> {
        self.inner.residents()
    }
    fn resident(&self, shape: Shape, options: ResidentOptions) -> Result<Box<dyn Resident>, DeviceError> {
        self.state.alive()?;
        let inner = self.inner.resident(shape, options)?;
        Ok(Box::new(FaultyResident { inner, state: Arc::clone(&self.state), patience: options.patience }))
    }
}

/// What becomes of one move that the inner queue has taken.
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
    held: Option<Done>,
}

impl Queue for FaultyQueue {
    fn submit(&mut self, what: Move, tag: u64) -> Result<(), DeviceError> {
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
            let grid = Grid { blocks: 1, threads: 1, shared_bytes: 0 };
            Move::Launch { program: Arc::new(Panic), grid, arguments: Vec::new() }
        } else {
            what
        };
        self.inner.submit(what, tag)?;
        let due = faults.delay.get(&position).map_or(Nanos::ZERO, |delay| clock::now().saturating_add(*delay));
        self.fates.push_back(Fate { fails: faults.fail.contains(&position), due });
        Ok(())
    }

    fn poll(&mut self) -> Option<Done> {
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
        Some(Done { result, ..done })
    }

    fn outstanding(&self) -> usize {
        self.fates.len()
    }
}

/// A program whose CPU form panics; it has no other.
struct Panic;

impl Program for Panic {
    fn id(&self) -> &'static str {
        "injected-panic"
    }
    fn ptx(&self) -> &'static str {
        ""
    }
    fn entry(&self) -> &'static str {
        ""
    }
    fn run(&self, _: Grid, _: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
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
    fn shape(&self) -> Shape {
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
    use crate::Access;
    use crate::emu_port::{EmuGpu, EmuPortSpec};
    use crate::port_conformance::finish;

    struct Bench {
        gpu: FaultyGpu,
        host: Buffer,
        there: Buffer,
    }

    impl Bench {
        fn new(faults: PortFaults) -> Self {
            let gpu = FaultyGpu::new(Arc::new(EmuGpu::open(EmuPortSpec::new("emu0"))), faults);
            let there = gpu.device_buffer(64, Reach::Device).unwrap();
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
                    queue.submit(Move::Copy { from, to }, at as u64)
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
        let bench = Bench::new(PortFaults { refuse: [1].into(), fail: [3].into(), ..PortFaults::default() });
        let [submitted, ended] = bench.copies(5);
        assert_eq!(submitted, [Ok(()), Err(injected("emulated submission")), Ok(()), Ok(()), Ok(())]);
        assert_eq!(ended, [Ok(()), Ok(()), Err(injected("emulated move")), Ok(())]);
        assert_eq!(bench.gpu.submitted(), 5);
    }

    #[test]
    fn a_delayed_end_keeps_later_ends_back() {
        let bench = Bench::new(PortFaults { delay: [(0, Nanos(3_000_000))].into(), ..PortFaults::default() });
        let started = clock::now();
        assert_eq!(bench.copies(2)[1], [Ok(()), Ok(())]);
        assert!(clock::now() >= started.saturating_add(Nanos(3_000_000)));
    }

    #[test]
    fn a_panic_in_a_queue_is_a_lost_device() {
        let bench = Bench::new(PortFaults { panic: [1].into(), ..PortFaults::default() });
        let [_, ended] = bench.copies(2);
        assert_eq!(ended, [Ok(()), Err(DeviceError::DeviceLost)]);
        assert_eq!(bench.gpu.device_buffer(1, Reach::Device).unwrap_err(), DeviceError::DeviceLost);
    }

    #[test]
    fn a_lost_device_refuses_everything_and_releases_all_claims() {
        let bench = Bench::new(PortFaults { lose: Some(2), ..PortFaults::default() });
        let [submitted, ended] = bench.copies(3);
        assert_eq!(submitted[2], Err(DeviceError::DeviceLost));
        assert!(ended.iter().all(|result| *result == Err(DeviceError::DeviceLost)));
        assert!(matches!(bench.gpu.queue(false).err(), Some(DeviceError::DeviceLost)));
        let mut span = bench.there.claim(0..1, Access::Write).unwrap();
        assert_eq!(bench.gpu.copy_in(&mut span, &[1]), Err(DeviceError::DeviceLost));
    }

    #[test]
    fn pinning_pageable_copies_and_resident_copiers_fail_on_demand() {
        let bench = Bench::new(PortFaults {
            refuse_pinning: true,
            fail_pageable: [1].into(),
            resident_timeout: true,
            ..PortFaults::default()
        });
        assert!(bench.gpu.pinned_buffer(1, Caching::Cached).is_err());
        assert!(bench.gpu.register(&bench.host).is_err());
        let mut span = bench.there.claim(0..1, Access::Write).unwrap();
        assert_eq!(bench.gpu.copy_in(&mut span, &[1]), Ok(()));
        assert!(bench.gpu.copy_in(&mut span, &[1]).is_err());
        let day = Nanos(86_400_000_000_000);
        let options = ResidentOptions { piece: 256, lease: day, patience: day };
        let mut resident = bench.gpu.resident(Shape::Hub, options).unwrap();
        assert!(matches!(resident.copy_in(&mut span, &[1]), Err(DeviceError::Timeout { .. })));
        bench.gpu.set(PortFaults::default());
        assert_eq!(resident.copy_in(&mut span, &[1]), Ok(()));
        bench.gpu.pinned_buffer(1, Caching::Cached).unwrap();
    }
}
