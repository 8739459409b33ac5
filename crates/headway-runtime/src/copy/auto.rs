//! The method of `auto`: compiled choices per situation, methods that turned out not to be usable, and events.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::{
    Available, BackgroundLoad, Curve, CurveKey, Direction, HostMemory, Method, MethodRequest, Profile, Selector,
    Statistic, Tuning, WindowMapping,
};
use headway_core::units::{Bytes, Nanos};
use headway_os::clock;

use super::gpu::CopierGpu;
use super::situation::CopySituation;
use super::{CopierEvent, CopyOptions, ManyBy};

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) method: Method,
    pub(super) tuning: Option<Tuning>,
    pub(super) predicted: Option<Nanos>,
}

impl Pick {
    /// The driver's own call, which copies whatever memory.
    pub(super) const DRIVER: Self = Self { method: Method::Pageable, tuning: None, predicted: None };
}

/// Choices of all situations, compiled as they are met.
pub(super) struct Auto {
    profile: Profile,
    plain: Plain,
    options: CopyOptions,
    stale: Option<String>,
    gpus: usize,
    table: RwLock<Table>,
    events: Mutex<Events>,
}

/// What callers wait for each way in the plainest situation, ascending: looked up in every copy by a
/// named method, which may take 2 us altogether.
struct Plain(Vec<(Name, Curve)>);

/// GPU, the other GPU of a peer copy, method, direction and host end of a curve.
type Name = (EndpointId, Option<EndpointId>, Method, Direction, HostMemory);

impl Plain {
    fn new(profile: &Profile) -> Self {
        let plain = |key: &&CurveKey| (key.load, key.active, key.pieces) == (BackgroundLoad::Alone, 1, 1);
        // A posted store returns before it can be seen: what the caller waits for is the other curve.
        let curve = |key: &CurveKey| profile.posted.get(key).or_else(|| profile.curves.get(key)).cloned();
        let names = profile
            .curves
            .keys()
            .filter(plain)
            .filter_map(|key| Some(((key.gpu, key.peer, key.method, key.direction, key.memory), curve(key)?)));
        let mut curves: Vec<_> = names.collect();
        curves.sort_by_key(|(name, _)| *name);
        Self(curves)
    }

    fn get(&self, name: Name) -> Option<&Curve> {
        let at = self.0.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        Some(&self.0[at].1)
    }
}

struct Table {
    /// By GPU: methods that failed as unavailable.
    absent: Vec<BTreeSet<Method>>,
    slots: Vec<OnceLock<Selector>>,
}

#[derive(Default)]
struct Events {
    kept: VecDeque<CopierEvent>,
    dropped: u64,
    /// Methods whose absence was told, by GPU.
    absences: BTreeSet<(usize, Method)>,
    /// Pairs of GPUs of which it was told that they do not reach each other.
    denied: BTreeSet<(EndpointId, EndpointId)>,
}

const WINDOWS: usize = 4;
const MEMORIES: usize = 4;
const LOADS: usize = 4;

impl Auto {
    pub(super) fn new(profile: Profile, options: CopyOptions, stale: Option<String>, gpus: usize) -> Self {
        let slots = gpus * gpus.max(1) * 2 * 2 * WINDOWS * MEMORIES * LOADS;
        let slots = (0..slots).map(|_| OnceLock::new()).collect();
        let table = Table { absent: vec![BTreeSet::new(); gpus], slots };
        let plain = Plain::new(&profile);
        Self { profile, plain, options, stale, gpus, table: RwLock::new(table), events: Mutex::default() }
    }

    fn slot(&self, at: CopySituation) -> usize {
        let window = match at.window {
            None => 0,
            Some(WindowMapping::Gdrdrv) => 1,
            Some(WindowMapping::Vulkan) => 2,
            Some(_) => 3,
        };
        let active = (at.active.max(1) as usize).min(self.gpus) - 1;
        let direction = usize::from(at.direction == Direction::D2h);
        let mut index = at.gpu * self.gpus + active;
        let places = [
            (direction, 2),
            (usize::from(at.granted), 2),
            (window, WINDOWS),
            (at.memory as usize, MEMORIES),
            (at.load as usize, LOADS),
        ];
        for (place, of) in places {
            index = index * of + place;
        }
        index
    }

    /// The way for `bytes` in this situation.
    pub(super) fn pick(&self, gpus: &[CopierGpu], at: CopySituation, bytes: Bytes) -> Pick {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let selector = table.slots[self.slot(at)].get_or_init(|| self.compile(gpus, at, &table.absent[at.gpu]));
        let (method, tuning, predicted) = selector.pick(bytes);
        Pick { method, tuning, predicted }
    }

    fn compile(&self, gpus: &[CopierGpu], at: CopySituation, absent: &BTreeSet<Method>) -> Selector {
        let gpu = &gpus[at.gpu];
        let request = MethodRequest {
            load: at.load,
            active: at.active,
            ..MethodRequest::new(gpu.endpoint, at.direction, at.memory, Bytes(0))
        };
        let available = Available {
            methods: self.methods(gpus, at).difference(absent).copied().collect(),
            no_sm: self.options.no_sm,
            no_threads: self.options.no_threads,
            bounds: self.options.bounds(),
            multipath: self.options.multipath && at.granted,
            realtime: false,
            stale: self.stale.clone(),
        };
        Selector::new(&self.profile, &request, &available)
    }

    /// The methods that may be there; those whose absence shows only in use are found out by using them.
    fn methods(&self, gpus: &[CopierGpu], at: CopySituation) -> BTreeSet<Method> {
        let gpu = &gpus[at.gpu];
        let known = |method| self.profile.curves.keys().any(|key| key.method.any_form() == method);
        let always = [Method::Pageable, Method::Dma, Method::Register, Method::Pinning, Method::Staged, Method::Kernel];
        let mut methods: BTreeSet<Method> =
            always.into_iter().filter(|method| method.abilities().memory.contains(&at.memory)).collect();
        if self.options.mapped_files {
            // A copy out looks at its pages only to see whether there are some, not whose they are.
            methods.remove(&Method::Pinning);
        }
        methods.extend(at.window.map(|mapping| Method::Window(Some(mapping))));
        let threads = at.memory == HostMemory::Pinned || !self.options.no_threads;
        if self.options.multipath && gpus.len() > 1 && threads {
            methods.insert(Method::Multipath);
        }
        // Asking a GPU for its forms takes long: only for what could be chosen.
        // Memory with a window needs no paged one, which costs the same until it has to be moved; of memory without, only
        // `gdrdrv` maps parts.
        if known(Method::PagedWindow(None)) && at.window.is_none() {
            let gdrdrv = |mapping: &WindowMapping| *mapping == WindowMapping::Gdrdrv;
            methods.extend(usable(gpu.windows()).filter(gdrdrv).map(|mapping| Method::PagedWindow(Some(mapping))));
        }
        if self.options.resident && !self.options.no_sm && known(Method::Resident(None)) {
            methods.extend(usable(gpu.resident_forms()).map(|shape| Method::Resident(Some(shape))));
        }
        methods
    }

    /// How a copy in this situation is staged, as far as measured: with as many GPUs active, else fewer, else more; ordinary
    /// memory of other kinds as warm memory.
    pub(super) fn tuning(&self, gpu: EndpointId, at: CopySituation) -> Option<Tuning> {
        let of = |memory| {
            let tunings = self.profile.tunings.iter();
            let mut fitting: Vec<(u32, Tuning)> = tunings
                .filter(|(key, _)| key.gpu == gpu && key.direction == at.direction && key.memory == memory)
                .filter_map(|(key, _)| Some((key.active, self.profile.tuning(key, &self.options.bounds())?)))
                .collect();
            fitting.sort_by_key(|(active, _)| (*active > at.active, active.abs_diff(at.active)));
            fitting.first().map(|(_, tuning)| *tuning)
        };
        of(at.memory).or_else(|| if at.memory == HostMemory::Pinned { None } else { of(HostMemory::Touched) })
    }

    /// Leaves `method` out on `gpu` from now on.
    pub(super) fn leave_out(&self, gpu: usize, method: Method) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.absent[gpu].insert(method) {
            table.forget(gpu, self.gpus);
        }
    }

    /// Whether only the driver's own methods are chosen.
    pub(super) const fn is_stale(&self) -> bool {
        self.stale.is_some()
    }

    /// What the profile says that a caller waits for `method`, in the plainest situation.
    pub(super) fn predicted(
        &self,
        gpu: EndpointId,
        peer: Option<EndpointId>,
        method: Method,
        direction: Direction,
        memory: HostMemory,
        bytes: Bytes,
    ) -> Option<Nanos> {
        let curve = self.plain.get((gpu, peer, method, direction, memory))?;
        Some(curve.at(bytes, Statistic::Median))
    }

    /// What a caller waits for a request of many pieces, from the nearest number of pieces that was measured.
    pub(super) fn predicted_many(
        &self,
        gpu: EndpointId,
        direction: Direction,
        by: ManyBy,
        memory: HostMemory,
        pieces: usize,
        bytes: Bytes,
    ) -> Option<Nanos> {
        let pieces = u64::try_from(pieces).ok()?.max(1);
        // Windows and resident copiers have forms; pieces go by the first that can be used, which is the one measured.
        let fits = |key: &CurveKey| {
            (key.gpu, key.direction, key.method.any_form(), key.memory) == (gpu, direction, by.method(), memory)
                && key.pieces > 1
        };
        let curves = self.profile.curves.iter().filter(|(key, _)| fits(key));
        // As many requests of the measured number as it takes, each with its share of the bytes.
        let (key, curve) = curves.min_by_key(|(key, _)| u64::from(key.pieces).abs_diff(pieces))?;
        let requests = pieces.div_ceil(u64::from(key.pieces));
        Some(Nanos(curve.at(Bytes(bytes.0.div_ceil(requests)), Statistic::Median).0.saturating_mul(requests)))
    }

    /// Tells, once for each method of each GPU, that another is used.
    pub(super) fn report_absence(&self, gpu: usize, name: &str, method: Method, reason: &str, instead: Method) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let new = events.absences.insert((gpu, method));
        drop(events);
        if new {
            self.report(format!("`{name}`: `{method}` cannot be used, `{instead}` is used instead: {reason}"));
        }
    }

    /// Tells, once for each pair, that a copy between two GPUs goes through the host.
    pub(super) fn report_denied(&self, from: EndpointId, to: EndpointId, what: &str) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let new = events.denied.insert((from, to));
        drop(events);
        if new {
            self.report(what.to_owned());
        }
    }

    /// Tells the user.
    pub(super) fn report(&self, what: String) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.kept.len() >= self.options.limits.events_max {
            events.kept.pop_front();
            events.dropped += 1;
        }
        if self.options.limits.events_max > 0 {
            events.kept.push_back(CopierEvent { at: clock::now(), what });
        }
    }

    /// What was told since the last call.
    pub(super) fn take_events(&self) -> Vec<CopierEvent> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = std::mem::take(&mut events.dropped);
        let mut taken = Vec::with_capacity(events.kept.len() + 1);
        if dropped > 0 {
            taken.push(CopierEvent { at: clock::now(), what: format!("{dropped} earlier events were dropped") });
        }
        taken.extend(events.kept.drain(..));
        taken
    }
}

/// The forms that can be used.
fn usable<F: Copy>(forms: &[(F, Result<(), headway_device::DeviceError>)]) -> impl Iterator<Item = F> {
    forms.iter().filter(|(_, usable)| usable.is_ok()).map(|(form, _)| *form)
}

impl Table {
    /// Has the choices of `gpu` compiled anew.
    fn forget(&mut self, gpu: usize, gpus: usize) {
        let each = self.slots.len() / gpus;
        for slot in &mut self.slots[gpu * each..(gpu + 1) * each] {
            slot.take();
        }
    }
}
