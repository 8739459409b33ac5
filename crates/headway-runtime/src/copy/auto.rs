//! The way of `auto`: compiled choices per situation, ways that turned out not to be usable, and events.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use headway_core::files::machine::{EndpointId, Method};
use headway_core::models::transfer::{
    Available, Curve, Direction, HostMemory, Key, Load, Profile, Request, Selector, Statistic, Tuning, Via, Way,
};
use headway_core::units::{Bytes, Nanos};
use headway_os::clock;

use super::gpu::CopierGpu;
use super::{CopyOptions, Event, ManyBy};

/// What decides beside the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Situation {
    /// Position of the GPU.
    pub(super) gpu: usize,
    /// Host to GPU or back.
    pub(super) direction: Direction,
    /// The host end.
    pub(super) memory: HostMemory,
    /// What else the GPU carries.
    pub(super) load: Load,
    /// GPUs that copy the same way, this one included.
    pub(super) active: u32,
    /// Whether links of other GPUs would be granted.
    pub(super) granted: bool,
    /// The device end's window.
    pub(super) window: Option<Via>,
}

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) way: Way,
    pub(super) tuning: Option<Tuning>,
    pub(super) predicted: Option<Nanos>,
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

/// What callers wait for each way in the plainest situation, by [`Plain::name`], ascending: looked up in every copy by a
/// named way, which may take 2 us altogether.
struct Plain(Vec<(u128, Curve)>);

impl Plain {
    fn new(profile: &Profile) -> Self {
        let plain = |key: &&Key| (key.load, key.active, key.pieces) == (Load::Alone, 1, 1);
        // A posted store returns before it can be seen: what the caller waits for is the other curve.
        let curve = |key: &Key| profile.posted.get(key).or_else(|| profile.curves.get(key)).cloned();
        let names =
            profile.curves.keys().filter(plain).filter_map(|key| {
                Some((Self::name(key.gpu, key.peer, key.way, key.direction, key.memory), curve(key)?))
            });
        let mut curves: Vec<_> = names.collect();
        curves.sort_by_key(|(name, _)| *name);
        Self(curves)
    }

    /// A number of its own for each key.
    fn name(gpu: EndpointId, peer: Option<EndpointId>, way: Way, direction: Direction, memory: HostMemory) -> u128 {
        let peer = peer.map_or(0, |peer| u64::from(peer.0) + 1);
        let via = way.via.map_or(0, |via| via as u8 + 1);
        let small = u32::from_be_bytes([way.method as u8, via, direction as u8, memory as u8]);
        u128::from(gpu.0) << 96 | u128::from(peer) << 32 | u128::from(small)
    }

    fn get(&self, name: u128) -> Option<&Curve> {
        let at = self.0.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        Some(&self.0[at].1)
    }
}

struct Table {
    /// By GPU: ways that failed as unavailable.
    absent: Vec<BTreeSet<Way>>,
    slots: Vec<OnceLock<Selector>>,
}

#[derive(Default)]
struct Events {
    kept: VecDeque<Event>,
    dropped: u64,
    /// Ways whose absence was told, by GPU.
    absences: BTreeSet<(usize, Way)>,
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

    fn slot(&self, at: Situation) -> usize {
        let window = match at.window {
            None => 0,
            Some(Via::Gdrdrv) => 1,
            Some(Via::Vulkan) => 2,
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
    pub(super) fn pick(&self, gpus: &[CopierGpu], at: Situation, bytes: Bytes) -> Pick {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let selector = table.slots[self.slot(at)].get_or_init(|| self.compile(gpus, at, &table.absent[at.gpu]));
        let (way, tuning, predicted) = selector.pick(bytes);
        Pick { way, tuning, predicted }
    }

    fn compile(&self, gpus: &[CopierGpu], at: Situation, absent: &BTreeSet<Way>) -> Selector {
        let gpu = &gpus[at.gpu];
        let request = Request {
            load: at.load,
            active: at.active,
            ..Request::new(gpu.endpoint, at.direction, at.memory, Bytes(0))
        };
        let available = Available {
            ways: self.ways(gpus, at).difference(absent).copied().collect(),
            no_sm: self.options.no_sm,
            no_threads: self.options.no_threads,
            multipath: self.options.multipath && at.granted,
            realtime: false,
            stale: self.stale.clone(),
        };
        Selector::new(&self.profile, &request, &available)
    }

    /// The ways that may be there; those whose absence shows only in use are found out by using them.
    fn ways(&self, gpus: &[CopierGpu], at: Situation) -> BTreeSet<Way> {
        let gpu = &gpus[at.gpu];
        let known = |method| self.profile.curves.keys().any(|key| key.way.method == method);
        let mut ways: BTreeSet<Way> = [Method::Pageable, Method::Staged].map(Way::of).into();
        if at.memory == HostMemory::Pinned {
            ways.extend([Method::Dma, Method::Kernel].map(Way::of));
        } else {
            ways.insert(Way::via(Method::Dma, Via::Register));
        }
        ways.extend(at.window.map(|via| Way::via(Method::Window, via)));
        let threads = at.memory == HostMemory::Pinned || !self.options.no_threads;
        if self.options.multipath && gpus.len() > 1 && threads {
            ways.insert(Way::of(Method::Multipath));
        }
        let usable = |forms: &[(Via, Result<(), headway_device::DeviceError>)], method| -> Vec<Way> {
            forms.iter().filter(|(_, usable)| usable.is_ok()).map(|(via, _)| Way::via(method, *via)).collect()
        };
        // Asking a GPU for its forms takes long: only for what could be chosen.
        // Memory with a window needs no paged one, which costs the same until it has to be moved; of memory without, only
        // `gdrdrv` maps parts.
        if known(Method::PagedWindow) && at.window.is_none() {
            let forms = usable(gpu.windows(), Method::PagedWindow).into_iter();
            ways.extend(forms.filter(|way| way.via == Some(Via::Gdrdrv)));
        }
        if self.options.resident && !self.options.no_sm && known(Method::Resident) {
            ways.extend(usable(gpu.resident_forms(), Method::Resident));
        }
        ways
    }

    /// How a copy in this situation is staged, as far as measured: with as many GPUs active, else fewer, else more; ordinary
    /// memory of other kinds as warm memory.
    pub(super) fn tuning(&self, gpu: EndpointId, at: Situation) -> Option<Tuning> {
        let of = |memory| {
            let tunings = self.profile.tunings.iter();
            let mut fitting: Vec<(u32, Tuning)> = tunings
                .filter(|(key, _)| key.gpu == gpu && key.direction == at.direction && key.memory == memory)
                .map(|(key, tuning)| (key.active, *tuning))
                .collect();
            fitting.sort_by_key(|(active, _)| (*active > at.active, active.abs_diff(at.active)));
            fitting.first().map(|(_, tuning)| *tuning)
        };
        of(at.memory).or_else(|| if at.memory == HostMemory::Pinned { None } else { of(HostMemory::Warm) })
    }

    /// Leaves `way` out on `gpu` from now on.
    pub(super) fn leave_out(&self, gpu: usize, way: Way) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.absent[gpu].insert(way) {
            table.forget(gpu, self.gpus);
        }
    }

    /// Whether only the driver's own ways are chosen.
    pub(super) const fn is_stale(&self) -> bool {
        self.stale.is_some()
    }

    /// What the profile says that a caller waits for `way`, in the plainest situation.
    pub(super) fn predicted(
        &self,
        gpu: EndpointId,
        peer: Option<EndpointId>,
        way: Way,
        direction: Direction,
        memory: HostMemory,
        bytes: Bytes,
    ) -> Option<Nanos> {
        let curve = self.plain.get(Plain::name(gpu, peer, way, direction, memory))?;
        Some(curve.at(bytes, Statistic::Median))
    }

    /// The same of a request of many pieces, from the nearest number of pieces that was measured.
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
        let fits = |key: &Key| {
            (key.gpu, key.direction, key.way.method, key.memory) == (gpu, direction, by.way().method, memory)
                && key.pieces > 1
        };
        let curves = self.profile.curves.iter().filter(|(key, _)| fits(key));
        // As many requests of the measured number as it takes, each with its share of the bytes.
        let (key, curve) = curves.min_by_key(|(key, _)| u64::from(key.pieces).abs_diff(pieces))?;
        let requests = pieces.div_ceil(u64::from(key.pieces));
        Some(Nanos(curve.at(Bytes(bytes.0.div_ceil(requests)), Statistic::Median).0.saturating_mul(requests)))
    }

    /// Tells, once for each way of each GPU, that another is used.
    pub(super) fn tell_absence(&self, gpu: usize, name: &str, way: Way, reason: &str, instead: Way) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let new = events.absences.insert((gpu, way));
        drop(events);
        if new {
            self.tell(format!("`{name}`: `{way}` cannot be used, `{instead}` is used instead: {reason}"));
        }
    }

    /// Tells, once for each pair, that a copy between two GPUs goes through the host.
    pub(super) fn tell_denied(&self, from: EndpointId, to: EndpointId, what: &str) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let new = events.denied.insert((from, to));
        drop(events);
        if new {
            self.tell(what.to_owned());
        }
    }

    /// Tells the user.
    pub(super) fn tell(&self, what: String) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.kept.len() >= self.options.limits.events_max {
            events.kept.pop_front();
            events.dropped += 1;
        }
        if self.options.limits.events_max > 0 {
            events.kept.push_back(Event { at: clock::now(), what });
        }
    }

    /// What was told since the last call.
    pub(super) fn told(&self) -> Vec<Event> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = std::mem::take(&mut events.dropped);
        let mut told = Vec::with_capacity(events.kept.len() + 1);
        if dropped > 0 {
            told.push(Event { at: clock::now(), what: format!("{dropped} earlier events were dropped") });
        }
        told.extend(events.kept.drain(..));
        told
    }
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
