//! What staged copies of one GPU share: threads, pinned memory, queues, the lines of the engines.
//!
//! Everything slow (threads, pinning, queues, memory on a relay) is made by a keeper thread, never on a caller's path: a copy
//! that finds too little makes do with what is there, and has the keeper make more.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway_core::decisions::engine_line::{FlowClass, LineEntry, LineParty};
use headway_core::decisions::staging::{SPARE_BUFFERS, StagingDirection};
use headway_core::units::{Bytes, Nanos};
use headway_device::gpu::{Caching, CpuReach, Gpu};
use headway_device::graveyard::{self, Grave};
use headway_device::{Buffer, DeviceError};
use headway_os::fork::Home;
use headway_os::{affinity, event, threads, topology};

use super::StagingError;
use super::engine::{CopyEngine, GpuEngines};
use super::line::Place;
use super::stock::{Retired, Slot, Stock};
use super::worker::{CopyLoop, Work, live};
use super::workers::Workers;

/// Pinned memory is made in pieces of this size; a transfer has whole ones.
const SLAB_BYTES: u64 = 16 << 20;
/// Slabs made at the start.
const SLABS_AT_START: usize = 4;
/// Queues made at the start: one a direction.
const QUEUES_AT_START: usize = 2;
/// Queues kept.
const QUEUES_MAX: usize = 16;
/// Most chunks on the engine that pinned memory is prepared for.
const IN_FLIGHT_MAX: u32 = 4;
/// How long somebody waits for threads and memory: far longer than they take to be made.
const PREPARE_MAX: Nanos = Nanos(10_000_000_000);
/// Chunks that may be on their way through one relay.
const RELAYS_MAX: usize = 16;

/// How much a pool takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Pinned memory.
    pub pinned_max: Bytes,
    /// Threads; never more than the CPUs near the GPU less one, but at least one.
    pub threads_max: u32,
    /// Start `threads_max` threads however few CPUs there are.
    pub oversubscribe: bool,
    /// A copy that makes no progress for this long is given up.
    pub patience: Nanos,
    /// How pinned memory is cached: write-combined as in Cho 2018, or not.
    pub caching: Caching,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            pinned_max: Bytes(128 << 20),
            threads_max: 16,
            oversubscribe: false,
            patience: Nanos(10_000_000_000),
            caching: Caching::Cached,
        }
    }
}

/// Threads, pinned buffers, queues and the lines of the engines of one GPU.
pub struct StagingPool {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) gpu: Arc<dyn Gpu>,
    pub(super) options: PoolOptions,
    pub(super) workers: Workers<Work>,
    pub(super) copy_loop: CopyLoop,
    engines: GpuEngines,
    /// The process that has the threads.
    home: Home,
    /// The device's context is gone; its memory is not used again.
    lost: AtomicBool,
    stock: Mutex<Stock>,
    orders: Mutex<Orders>,
    /// Something in `orders` has changed.
    news: Condvar,
}

/// Copies that a pool gave up; over when it has taken all of them back.
struct Unfinished(Weak<Shared>);

impl Grave for Unfinished {
    fn is_over(&mut self) -> bool {
        let Some(shared) = self.0.upgrade() else { return true };
        // Who has the lock takes them back, or lets the next question do it.
        let Ok(mut stock) = shared.stock.try_lock() else { return false };
        stock.reclaim();
        stock.retired.is_empty()
    }
}

/// What the keeper is to make, and what came of it.
#[derive(Default)]
struct Orders {
    started: bool,
    closed: bool,
    /// Slabs wanted in total.
    slabs: usize,
    /// Places on the GPU wanted in total, and their size.
    relays: (usize, usize),
    /// Threads that there will be; known once started.
    threads: Option<usize>,
    /// Why there is no more pinned memory.
    pinning: Option<DeviceError>,
    /// Why there are no more places on the GPU.
    relaying: Option<DeviceError>,
    keeper: Option<JoinHandle<()>>,
}

impl StagingPool {
    /// A pool for `gpu`, not started: no thread, no pinned memory.
    #[must_use]
    pub fn new(gpu: Arc<dyn Gpu>, options: PoolOptions) -> Self {
        Self::with_copy_loop(gpu, options, Arc::new(headway_os::copy::copy))
    }

    /// Like [`StagingPool::new`], with another way to copy bytes, for tests of faults. `copy_loop` makes its first argument equal to
    /// its second, visible to every thread and device when it returns.
    #[must_use]
    pub fn with_copy_loop(gpu: Arc<dyn Gpu>, options: PoolOptions, copy_loop: CopyLoop) -> Self {
        let shared = Shared {
            engines: GpuEngines::of(gpu.as_ref()),
            gpu,
            options,
            workers: Workers::new(),
            copy_loop,
            home: Home::here(),
            lost: AtomicBool::new(false),
            stock: Mutex::default(),
            orders: Mutex::default(),
            news: Condvar::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Starts threads and pins memory on a thread of its own; returns at once. A copy that finds the pool not started does
    /// this too, and fails with [`StagingError::NotReady`].
    ///
    /// Threads run on the CPUs near the GPU, in the scheduling class of the thread that starts them.
    pub fn start(&self) {
        if self.shared.is_ours() {
            self.shared.start(&mut self.shared.orders());
        }
    }

    /// Starts, and waits until there are all threads, and all that one copy with buffers of `buffer` bytes may have; `relay`: also what it takes as a relay with that many chunks in flight. For measurements and tests.
    ///
    /// # Errors
    /// [`StagingError::SetUp`], [`StagingError::NotReady`] after the pool's patience, ten seconds at most, [`StagingError::Forked`].
    pub fn prepare(&self, buffer: Bytes, relay: Option<u32>) -> Result<(), StagingError> {
        let shared = &self.shared;
        if !shared.is_ours() {
            return Err(StagingError::Forked);
        }
        let until = Instant::now() + Duration::from_nanos(shared.options.patience.min(PREPARE_MAX).0);
        let mut orders = shared.orders();
        let each = (shared.slab_bytes() / buffer.0.max(1)).max(1);
        let slabs = u64::from(IN_FLIGHT_MAX + SPARE_BUFFERS).div_ceil(each) as usize;
        orders.slabs = orders.slabs.max(slabs.min(shared.slabs_max()));
        if let Some(slots) = relay {
            orders.want_relays(slots as usize, buffer.0 as usize);
        }
        shared.start(&mut orders);
        shared.news.notify_all();
        loop {
            if let Some(source) = shared.failure(&orders) {
                return Err(shared.set_up(source));
            }
            if relay.is_some()
                && let Some(source) = orders.relaying.clone()
            {
                return Err(shared.set_up(source));
            }
            if shared.is_done(&orders) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StagingError::NotReady { gpu: shared.name() });
            }
            orders = shared.news.wait_timeout(orders, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    #[must_use]
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.shared.gpu
    }

    /// The engine for this direction.
    pub(crate) fn engine(&self, direction: StagingDirection) -> &Arc<CopyEngine> {
        self.shared.engines.get(direction)
    }

    /// Threads, once they have been started.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.shared.workers.len()
    }

    /// Takes all idle threads until the value returned is dropped.
    #[cfg(test)]
    pub(crate) fn lend_threads(&self) -> impl Drop {
        struct Lent(Arc<Shared>, Vec<usize>);
        impl Drop for Lent {
            fn drop(&mut self) {
                self.1.drain(..).for_each(|worker| self.0.workers.release(worker));
            }
        }
        Lent(Arc::clone(&self.shared), self.shared.workers.reserve(usize::MAX))
    }

    /// Pinned memory that exists.
    #[must_use]
    pub fn pinned(&self) -> Bytes {
        Bytes(self.shared.stock().slabs_made as u64 * self.shared.slab_bytes())
    }
}

impl Drop for StagingPool {
    fn drop(&mut self) {
        let shared = &self.shared;
        if !shared.is_ours() {
            // Threads, and whoever held a lock, stayed in the parent: nothing here can be taken down.
            std::mem::forget(Arc::clone(shared));
            return;
        }
        let keeper = {
            let mut orders = shared.orders();
            orders.closed = true;
            shared.news.notify_all();
            orders.keeper.take()
        };
        shared.workers.close();
        if let Some(keeper) = keeper {
            // A panic of it has been reported where it happened.
            let _ = keeper.join();
            event!(INFO, "headway::staging", "threads have ended, pinned memory is given back", gpu = shared.name());
        }
    }
}

impl Orders {
    fn want_relays(&mut self, slots: usize, bytes: usize) {
        self.relays = (self.relays.0.max(slots.min(RELAYS_MAX)), self.relays.1.max(bytes));
    }
}

impl Shared {
    pub(super) fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> String {
        self.gpu.description().name.clone()
    }

    pub(super) fn is_ours(&self) -> bool {
        self.home.is_here()
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn place(
        &self,
        flow: StagingDirection,
        bytes: Bytes,
        limit: u32,
        signal: &Arc<super::workers::Signal>,
    ) -> Place {
        let entry = LineEntry { bytes, ..LineEntry::new(FlowClass::Bulk, LineParty::Staging, limit) };
        Place::new(&self.engines.get(flow).line, entry).with_signal(signal)
    }

    /// Size of a slab.
    pub(super) fn slab_bytes(&self) -> u64 {
        SLAB_BYTES.min(self.options.pinned_max.0)
    }

    fn slabs_max(&self) -> usize {
        self.options.pinned_max.0.checked_div(self.slab_bytes()).unwrap_or(0) as usize
    }

    fn set_up(&self, source: DeviceError) -> StagingError {
        StagingError::SetUp { gpu: self.name(), source }
    }

    /// Why nothing can be staged, ever.
    fn failure(&self, orders: &Orders) -> Option<DeviceError> {
        if self.slabs_max() == 0 {
            return Some(DeviceError::Refused { limit: "pinned_max", max: self.options.pinned_max.0 });
        }
        orders.pinning.clone().filter(|_| self.stock().slabs_made == 0)
    }

    /// Whether the keeper has made everything it can.
    fn is_done(&self, orders: &Orders) -> bool {
        let stock = self.stock();
        let pinned = stock.slabs_made >= orders.slabs || orders.pinning.is_some();
        let relays = stock.relays_made >= orders.relays.0 && stock.relay_bytes >= orders.relays.1;
        pinned && (relays || orders.relaying.is_some()) && orders.threads.is_some_and(|all| self.workers.len() >= all)
    }

    fn start(self: &Arc<Self>, orders: &mut Orders) {
        if orders.started || self.slabs_max() == 0 {
            return;
        }
        orders.started = true;
        orders.slabs = orders.slabs.max(SLABS_AT_START.min(self.slabs_max()));
        let shared = Arc::clone(self);
        match threads::spawn("headway-keeper", move || shared.keep()) {
            Ok(keeper) => {
                event!(INFO, "headway::staging", "threads and pinned memory are being made", gpu = self.name());
                orders.keeper = Some(keeper);
            }
            Err(error) => orders.pinning = Some(no_thread(&error)),
        }
    }

    /// Whether a copy can be staged now; starts the pool if it must.
    pub(super) fn check_ready(self: &Arc<Self>) -> Result<(), StagingError> {
        let mut orders = self.orders();
        self.start(&mut orders);
        if let Some(source) = self.failure(&orders) {
            return Err(self.set_up(source));
        }
        let ready = self.stock().slabs_made > 0 && orders.threads.is_some_and(|all| self.workers.len() >= all.min(1));
        if ready { Ok(()) } else { Err(StagingError::NotReady { gpu: self.name() }) }
    }

    /// Takes `wanted` slabs, or as many as are free; has more made for the next time.
    pub(super) fn take_slabs(&self, wanted: usize) -> Vec<Buffer> {
        let mut stock = self.stock();
        stock.reclaim();
        let at = stock.slabs.len() - wanted.min(stock.slabs.len());
        let taken = stock.slabs.split_off(at);
        let more = stock.slabs_made + (wanted - taken.len());
        drop(stock);
        if taken.len() < wanted {
            let mut orders = self.orders();
            orders.slabs = orders.slabs.max(more.min(self.slabs_max()));
            self.news.notify_all();
        }
        taken
    }

    /// Takes a queue; makes one if there is none.
    pub(super) fn take_queue(&self) -> Result<Slot, DeviceError> {
        if let Some(slot) = self.stock().queues.pop() {
            return Ok(slot);
        }
        Ok(Slot { queue: self.gpu.queue(false)?, through: None, clean: true })
    }

    /// Takes `wanted` places for chunks of `bytes` bytes on this GPU, or as many as are free; has more made for the next time.
    pub(super) fn take_relays(self: &Arc<Self>, wanted: usize, bytes: usize) -> Vec<Slot> {
        let mut stock = self.stock();
        stock.reclaim();
        let fits = stock.relay_bytes >= bytes;
        let at = if fits { stock.relays.len() - wanted.min(stock.relays.len()) } else { stock.relays.len() };
        let taken = stock.relays.split_off(at);
        drop(stock);
        if taken.len() < wanted {
            let mut orders = self.orders();
            orders.want_relays(wanted, bytes);
            self.start(&mut orders);
            self.news.notify_all();
        }
        taken
    }

    /// Takes back what a transfer had; `place` if copies are still on the engine.
    pub(super) fn put(self: &Arc<Self>, slots: Vec<Slot>, slabs: Vec<Buffer>, place: Option<Place>) {
        if self.is_lost() {
            // A queue that is dropped sees to what is still on it; the memory of that stays.
            drop((slots, slabs, place));
            return;
        }
        let mut stock = self.stock();
        if slots.iter().all(|slot| slot.queue.outstanding() == 0) {
            stock.put(slots, slabs);
            stock.queues.truncate(QUEUES_MAX);
        } else {
            stock.retired.push(Retired { slots, slabs, place });
            drop(stock);
            // What is on the queues may be a caller's memory, who waits for it and asks the graveyard.
            graveyard::bury(Box::new(Unfinished(Arc::downgrade(self))), None);
        }
    }

    /// The keeper's life: the workers', and everything slow.
    fn keep(self: &Arc<Self>) {
        let workers = self.start_workers();
        for _ in 0..QUEUES_AT_START {
            if let Ok(queue) = self.gpu.queue(false) {
                self.stock().queues.push(Slot { queue, through: None, clean: true });
            }
        }
        let mut orders = self.orders();
        while !orders.closed {
            let (made, relays, relay_bytes) = {
                let stock = self.stock();
                (stock.slabs_made, stock.relays_made, stock.relay_bytes)
            };
            let (wanted, bytes) = orders.relays;
            if made < orders.slabs && orders.pinning.is_none() {
                drop(orders);
                let slab = self.gpu.pinned_buffer(self.slab_bytes() as usize, self.options.caching);
                orders = self.orders();
                match slab {
                    Ok(slab) => self.stock().add_slab(slab),
                    Err(error) => orders.pinning = Some(error),
                }
            } else if (relays < wanted || relay_bytes < bytes) && orders.relaying.is_none() {
                drop(orders);
                let slot = self.make_relay(bytes);
                // Freed here, where nobody waits for a lock.
                let refused = slot.map(|slot| drop(self.add_relay(slot, bytes))).err();
                orders = self.orders();
                orders.relaying = refused;
            } else {
                self.news.notify_all();
                orders = self.news.wait(orders).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            self.news.notify_all();
        }
        drop(orders);
        // Those without a job have been sent home, the others follow when they have done theirs.
        workers.into_iter().for_each(|worker| drop(worker.join()));
    }

    fn add_relay(&self, slot: Slot, bytes: usize) -> Vec<Slot> {
        self.stock().add_relay(slot, bytes)
    }

    fn make_relay(&self, bytes: usize) -> Result<Slot, DeviceError> {
        let through = self.gpu.device_buffer(bytes, CpuReach::Device)?;
        Ok(Slot { queue: self.gpu.queue(false)?, through: Some(through), clean: true })
    }

    fn start_workers(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let cpus = self.cpus();
        let quota = affinity::quota(Path::new("/")).map(|thousandths| (thousandths / 1000) as usize);
        let usable = cpus.len().min(quota.unwrap_or(usize::MAX)).saturating_sub(1).max(1);
        let limit = self.options.threads_max.max(1) as usize;
        let count = if self.options.oversubscribe { limit } else { limit.min(usable) };
        let mut workers = Vec::with_capacity(count);
        for _ in 0..count {
            let (shared, cpus) = (Arc::clone(self), cpus.clone());
            let spawned = threads::spawn("headway-stage", move || {
                if !cpus.is_empty() {
                    // Refused, it runs where it may: slower across NUMA nodes, and right.
                    let _ = affinity::restrict(&cpus);
                }
                let me = shared.workers.enlist();
                // Under the lock of those who wait for it.
                drop(shared.orders());
                shared.news.notify_all();
                live(&shared.workers, &me);
            });
            match spawned {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    if workers.is_empty() {
                        self.orders().pinning = Some(no_thread(&error));
                    }
                    break;
                }
            }
        }
        self.orders().threads = Some(workers.len());
        workers
    }

    /// The CPUs for workers: those near the GPU, as far as this process may use them; all it may use where none are.
    fn cpus(&self) -> Vec<u32> {
        let allowed = affinity::allowed().unwrap_or_default();
        let near = self.gpu.numa().and_then(|id| {
            let nodes = topology::numa_nodes(Path::new(topology::SYSFS)).ok()?;
            nodes.into_iter().find(|node| node.id == id).map(|node| node.cpus)
        });
        let both: Vec<u32> =
            allowed.iter().copied().filter(|cpu| near.as_ref().is_none_or(|near| near.contains(cpu))).collect();
        if both.is_empty() { allowed } else { both }
    }
}

fn no_thread(error: &std::io::Error) -> DeviceError {
    DeviceError::Unavailable {
        what: "a staging thread".into(),
        reason: error.to_string(),
        remedy: "raise the limit on processes (`ulimit -u`)".into(),
    }
}

#[cfg(test)]
mod tests {
    use headway_core::models::transfer::Tuning;
    use headway_device::emu::{EmuGpu, EmuSpec};

    use super::*;
    use crate::copy::At;
    use crate::staging::{Staged, copy_in, copy_out};

    #[test]
    fn in_a_forked_child_every_call_is_unavailable() {
        let gpu = Arc::new(EmuGpu::open(EmuSpec::new("emu0")));
        let pool = StagingPool::new(gpu.clone(), PoolOptions::default());
        let there = gpu.device_buffer(10, CpuReach::Device).unwrap();
        let at = At { buffer: &there, offset: 0 };
        let tuning = Tuning {
            threads: 1,
            buffer: Bytes(4096),
            stores: headway_core::models::transfer::Stores::Plain,
            in_flight: 1,
        };
        let how = Staged::new(tuning);
        let all_refused = || {
            pool.start();
            pool.prepare(Bytes(1), None) == Err(StagingError::Forked)
                && copy_in(&[&pool], at, &[1; 10], &how) == Err(StagingError::Forked)
                && copy_out(&[&pool], &mut [1; 10], at, &how) == Err(StagingError::Forked)
                && !pool.shared.orders().started
        };
        assert!(headway_os::fork::holds_in_a_child(all_refused));
    }
}
