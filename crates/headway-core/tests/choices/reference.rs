//! The decision of a copier as it is put together from selector, learner and watch by `headway-runtime`.

use std::collections::{BTreeMap, BTreeSet};

use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::builtin::NodeClass;
use headway_core::models::transfer::learning::{CopyAdvice, CopyTiming, Learner, LearntKind};
use headway_core::models::transfer::policy::{Bucket, Decision, Watch, WatchEvent};
use headway_core::models::transfer::{
    Available, BackgroundLoad, CurveKey, Direction, HostMemory, Method, MethodRequest, Profile, ResidentShape,
    Selector, Statistic, Tuning, WindowMapping,
};
use headway_core::units::{Bytes, Nanos};

use super::whole::{Fails, Opened, Truth};

const ASK: u64 = 64 << 10;
const LOOK: u64 = 128 << 10;
const FAULTS: u64 = 8 << 10;
const LOOK_ALWAYS: u64 = 2 << 20;
const LOOK_EVERY: u32 = 16;

type Pick = (Method, Option<Tuning>, Option<Nanos>);
const DRIVER: Pick = (Method::Pageable, None, None);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct At {
    direction: Direction,
    memory: HostMemory,
    load: BackgroundLoad,
    active: u32,
    granted: bool,
    window: Option<WindowMapping>,
}

#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pick: Pick,
    at: At,
    bytes: Bytes,
    judged: Option<Bucket>,
    advised: Option<(LearntKind, CopyAdvice, bool)>,
    instead_of: Option<Method>,
}

pub(super) struct Whole {
    profile: Profile,
    gpu: EndpointId,
    opened: Opened,
    stale: Option<String>,
    learner: Option<Learner>,
    watch: Watch,
    demotions: bool,
    short: u32,
    small: u32,
    large: u32,
    were_absent: bool,
    under_way: u32,
    absent: BTreeSet<Method>,
    compiled: BTreeMap<At, Selector>,
}

impl Whole {
    pub(super) fn new(
        profile: Profile,
        gpu: EndpointId,
        opened: Opened,
        stale: Option<String>,
        learner: Option<Learner>,
    ) -> Self {
        Self {
            profile,
            gpu,
            opened,
            stale,
            learner,
            watch: Watch::default(),
            demotions: false,
            short: 0,
            small: 0,
            large: 0,
            were_absent: false,
            under_way: 0,
            absent: BTreeSet::new(),
            compiled: BTreeMap::new(),
        }
    }

    fn pick(&mut self, at: At, bytes: Bytes) -> Pick {
        if !self.compiled.contains_key(&at) {
            let compiled = self.compile(at);
            self.compiled.insert(at, compiled);
        }
        self.compiled[&at].pick(bytes)
    }

    fn compile(&self, at: At) -> Selector {
        let request = MethodRequest {
            load: at.load,
            active: at.active,
            ..MethodRequest::new(self.gpu, at.direction, at.memory, Bytes(0))
        };
        let known = |method| self.profile.curves.keys().any(|key| key.method.any_form() == method);
        let always = [Method::Pageable, Method::Dma, Method::Register, Method::Pinning, Method::Staged, Method::Kernel];
        let mut methods: BTreeSet<Method> =
            always.into_iter().filter(|method| method.abilities().memory.contains(&at.memory)).collect();
        if self.opened.mapped_files {
            methods.remove(&Method::Pinning);
        }
        methods.extend(at.window.map(|mapping| Method::Window(Some(mapping))));
        let threads = at.memory == HostMemory::Pinned || !self.opened.no_threads;
        if self.opened.multipath && self.opened.gpus > 1 && threads {
            methods.insert(Method::Multipath);
        }
        if known(Method::PagedWindow(None)) && at.window.is_none() {
            methods.insert(Method::PagedWindow(Some(WindowMapping::Gdrdrv)));
        }
        if self.opened.resident && !self.opened.no_sm && known(Method::Resident(None)) {
            methods.insert(Method::Resident(Some(ResidentShape::Hub)));
        }
        let available = Available {
            methods: methods.difference(&self.absent).copied().collect(),
            no_sm: self.opened.no_sm,
            no_threads: self.opened.no_threads,
            bounds: self.opened.bounds,
            multipath: self.opened.multipath && at.granted,
            realtime: false,
            stale: self.stale.clone(),
        };
        Selector::new(&self.profile, &request, &available)
    }

    fn with_memory(&self, copy: &Truth, asked: &mut Vec<&'static str>, is_absent: impl FnOnce() -> bool) -> At {
        let mut kind = || {
            if !asked.contains(&"pinned") {
                asked.push("pinned");
            }
            copy.pinned
        };
        let written = |absent| if absent { HostMemory::Untouched } else { HostMemory::Touched };
        let memory = match copy.direction {
            _ if copy.held => HostMemory::Pinned,
            Direction::D2h if copy.bytes.0 < ASK => written(is_absent()),
            Direction::D2h if kind() => HostMemory::Pinned,
            Direction::D2h => written(is_absent()),
            _ if copy.bytes.0 < ASK => HostMemory::Touched,
            _ if kind() => HostMemory::Pinned,
            _ if self.opened.mapped_files => HostMemory::File,
            _ => HostMemory::Touched,
        };
        let (active, granted) = if copy.bytes.0 < 1 << 20 { (1, false) } else { (copy.active, copy.granted) };
        At { direction: copy.direction, memory, load: copy.load, active, granted, window: copy.window }
    }

    fn situation(&self, copy: &Truth, asked: &mut Vec<&'static str>) -> At {
        let mut looked = false;
        let at = self.with_memory(copy, asked, || {
            looked = copy.bytes.0 >= LOOK;
            looked && copy.absent
        });
        if looked {
            asked.push("pages");
        }
        at
    }

    fn situation_of_choice(&mut self, copy: &Truth, asked: &mut Vec<&'static str>) -> (At, bool) {
        let len = copy.bytes.0;
        if copy.held || copy.direction != Direction::D2h || len >= LOOK_ALWAYS {
            return (self.situation(copy, asked), true);
        }
        if len < LOOK {
            let due = self.small.is_multiple_of(LOOK_EVERY);
            self.small += 1;
            if due {
                asked.push("pages");
                self.were_absent = copy.absent;
            }
            let absent = self.were_absent;
            return (self.with_memory(copy, asked, || absent), len < FAULTS || (due && !absent));
        }
        let due = self.large.is_multiple_of(LOOK_EVERY);
        self.large += 1;
        if !due {
            let warm = self.with_memory(copy, asked, || false);
            let (there, absent) = (
                self.pick(At { memory: HostMemory::Touched, ..warm }, copy.bytes),
                self.pick(At { memory: HostMemory::Untouched, ..warm }, copy.bytes),
            );
            if warm.memory != HostMemory::Touched || (there.0 == absent.0 && there.1 == absent.1) {
                return (warm, warm.memory != HostMemory::Touched);
            }
        }
        (self.situation(copy, asked), true)
    }

    pub(super) fn choose(&mut self, copy: &Truth) -> (Vec<&'static str>, Chosen) {
        let mut asked = Vec::new();
        let (at, known) = self.situation_of_choice(copy, &mut asked);
        let bytes = copy.bytes;
        let mut pick = self.pick(at, bytes);
        let open = [Method::Pageable, Method::Staged].contains(&pick.0)
            && at.load == BackgroundLoad::Alone
            && at.active == 1
            && at.memory != HostMemory::Pinned
            && bytes >= NodeClass::LEAST
            && !self.opened.no_threads;
        let mut advised = None;
        if let Some(learner) = self.learner.as_mut().filter(|_| open) {
            let kind = LearntKind { direction: at.direction, memory: at.memory };
            let advice = learner.handle_copy(kind, bytes);
            advised = Some((kind, advice, self.under_way == 0));
            self.under_way += 1;
            pick = (advice.method(), advice.tuning, None);
        }
        let comparable = at.load == BackgroundLoad::Alone && at.active == 1 && self.stale.is_none();
        let judged = (advised.is_none() && known && comparable && pick.0 != Method::of_driver(at.direction, at.memory))
            .then(|| Bucket::of(self.gpu, at.direction, at.memory, pick.0, bytes));
        let mut instead_of = None;
        if let Some(bucket) = judged.filter(|_| self.demotions)
            && self.watch.handle_call(bucket) == Decision::Driver
        {
            instead_of = Some(pick.0);
            pick = (Method::of_driver(at.direction, at.memory), None, None);
        }
        (asked, self.picked(Chosen { pick, at, bytes, judged, advised, instead_of }, pick))
    }

    fn picked(&self, chosen: Chosen, pick: Pick) -> Chosen {
        let (method, tuning, predicted) = pick;
        let tuning = match method {
            Method::Multipath => self.tuning_of_links(chosen.at),
            _ => tuning.map(|tuning| self.within(tuning, chosen.at.active)),
        };
        Chosen { pick: (method, tuning, predicted), ..chosen }
    }

    fn within(&self, tuning: Tuning, parties: u32) -> Tuning {
        let cpus = self.opened.cpus.min(self.opened.bounds.cpus_max);
        let fair = (cpus.saturating_sub(1) / parties.max(1)).max(1);
        Tuning { threads: tuning.threads.min(fair), ..tuning }
    }

    fn tuning(&self, at: At) -> Option<Tuning> {
        let of = |memory| {
            let tunings = self.profile.tunings.iter();
            let mut fitting: Vec<(u32, Tuning)> = tunings
                .filter(|(key, _)| key.gpu == self.gpu && key.direction == at.direction && key.memory == memory)
                .filter_map(|(key, _)| Some((key.active, self.profile.tuning(key, &self.opened.bounds)?)))
                .collect();
            fitting.sort_by_key(|(active, _)| (*active > at.active, active.abs_diff(at.active)));
            fitting.first().map(|(_, tuning)| *tuning)
        };
        of(at.memory).or_else(|| if at.memory == HostMemory::Pinned { None } else { of(HostMemory::Touched) })
    }

    fn tuning_of_links(&self, at: At) -> Option<Tuning> {
        let alone = self.tuning(at)?;
        let parties = at.active.max(self.opened.gpus.min(4));
        let shared = self.within(self.tuning(At { active: parties, ..at })?, parties);
        Some(Tuning { in_flight: shared.in_flight.max(alone.in_flight), ..shared })
    }

    pub(super) fn failed(&mut self, copy: &Truth, chosen: Chosen, why: Fails) -> Option<Chosen> {
        let tried = chosen.pick.0;
        if tried == Method::Pageable || why == Fails::Whole {
            return None;
        }
        let next = match why {
            Fails::Lasting if tried != Method::Pinning => {
                if self.absent.insert(tried) {
                    self.compiled.clear();
                }
                self.pick(chosen.at, copy.bytes)
            }
            _ if tried == Method::Pinning && chosen.instead_of.is_none() => (Method::Staged, None, None),
            _ => DRIVER,
        };
        let next = if next.0 == tried || Some(next.0) == chosen.instead_of { DRIVER } else { next };
        let instead_of = chosen.instead_of.or(Some(tried));
        Some(self.picked(Chosen { instead_of, ..chosen }, next))
    }

    fn predicted(&self, method: Method, at: At, bytes: Bytes) -> Option<Nanos> {
        let key = CurveKey {
            gpu: self.gpu,
            peer: None,
            method,
            direction: at.direction,
            memory: at.memory,
            load: BackgroundLoad::Alone,
            active: 1,
            pieces: 1,
        };
        let curve = self.profile.posted.get(&key).or_else(|| self.profile.curves.get(&key))?;
        Some(curve.at(bytes, Statistic::Median))
    }

    pub(super) fn ended(&mut self, chosen: Chosen, took: Option<(Nanos, Option<Nanos>)>) {
        if let Some((time, cpu)) = took {
            self.judge(&chosen, time);
            if let Some((kind, advice, alone)) = chosen.advised
                && chosen.pick.0 == advice.method()
                && chosen.instead_of.is_none()
            {
                let learner = self.learner.as_mut().expect("it has advised");
                if advice.tuning.is_some() {
                    learner.started();
                }
                if advice.timed && alone && self.under_way == 1 {
                    learner.handle_took(kind, chosen.bytes, CopyTiming { advice, time, cpu });
                }
            }
        }
        if chosen.advised.is_some() {
            self.under_way -= 1;
        }
    }

    fn judge(&mut self, chosen: &Chosen, time: Nanos) {
        let Some(bucket) = chosen.judged else { return };
        if time < Nanos(50_000) {
            self.short += 1;
            if !(self.short - 1).is_multiple_of(64) {
                return;
            }
        }
        let of_driver = Method::of_driver(bucket.direction, bucket.memory);
        if ![bucket.method, of_driver].contains(&chosen.pick.0) {
            return;
        }
        let Some(driver) = self.predicted(of_driver, chosen.at, chosen.bytes) else { return };
        if chosen.pick.0 == bucket.method {
            let predicted = self.predicted(bucket.method, chosen.at, chosen.bytes);
            let _ = self.watch.handle_observed(bucket, time, predicted, Some(driver));
        } else {
            self.watch.handle_instead(bucket, time, driver);
        }
        while let Some(event) = self.watch.poll_event() {
            self.demotions |= matches!(event, WatchEvent::Demoted { .. });
        }
    }

    pub(super) fn shown(&self, chosen: &Chosen) -> (Method, Option<Tuning>, Option<Nanos>, Option<Method>) {
        let (method, tuning, predicted) = chosen.pick;
        (method, tuning, predicted, chosen.instead_of)
    }

    pub(super) fn is_of_driver(&self, chosen: &Chosen) -> bool {
        chosen.pick.0 == Method::of_driver(chosen.at.direction, chosen.at.memory)
    }

    /// What the driver's call is said to take: by the profile, else a round figure.
    pub(super) fn driver_takes(&self, copy: &Truth) -> Nanos {
        let memory = if copy.pinned { HostMemory::Pinned } else { HostMemory::Touched };
        let key = CurveKey {
            gpu: self.gpu,
            peer: None,
            method: Method::of_driver(copy.direction, memory),
            direction: copy.direction,
            memory,
            load: BackgroundLoad::Alone,
            active: 1,
            pieces: 1,
        };
        let measured = self.profile.curves.get(&key).map(|curve| curve.at(copy.bytes, Statistic::Median));
        measured.unwrap_or(Nanos(6_000 + copy.bytes.0 / 10))
    }
}
