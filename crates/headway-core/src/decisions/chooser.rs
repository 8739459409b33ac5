//! How a copy that no plan made is carried out. These rules decide, in this order:
//!
//! 1. Some facts take time to find out: which forms of windows and resident copiers there are, whether memory is pinned, whether its pages
//!    are there. The chooser asks for one only if it could change the choice (`host.rs`). Memory that only the driver can handle goes by the
//!    driver's own call.
//! 2. The method with the least cost that the profile says, else the built-in figures, of those that are not known to be absent (`MethodCase`,
//!    which `explain` prints). For a thread of a real-time class it is the least worst case where anything was measured.
//! 3. Memory that was copied before goes by `pinned-once` if it is pinned already, or if keeping it pinned pays ([`Repeats`]).
//! 4. Where no profile says what copies cost, copies of ordinary memory from 1 MiB on go by what copies have taught ([`Learner`]).
//! 5. A method of the profile that was slower than the driver several times in a row gives way to the driver's own call ([`Watch`]).
//! 6. After a failure: the next best by rule 2 if the method is absent for good; `staged` in place of `pinning` and `pinned-once`; else the driver's own
//!    call. Nothing is tried twice for one copy.
//!
//! No clock, no lock and no memory of the caller's is touched here.

mod chunk;
mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use self::host::Pages;
use crate::files::machine::EndpointId;
use crate::models::transfer::builtin::NodeClass;
use crate::models::transfer::learning::{CopyAdvice, Learner, LearntClass, LearntKind};
use crate::models::transfer::policy::{Bucket, Watch, WatchEvent};
use crate::models::transfer::{
    Available, BackgroundLoad, CurveKey, Direction, HostMemory, Method, MethodCase, MethodRequest, Profile, Statistic,
    Tuning, WindowMapping,
};
use crate::units::{Bytes, Nanos};

pub use self::chunk::{PINNED_CUT, STREAM_CHUNK, chunk};
pub use self::host::{CopyQuestion, HostKnown};
pub use crate::models::transfer::learning::CopyTook;

/// What it takes to pin a GiB on small pages, and to release it later (H200, driver 580).
const PIN_PER_GIB: Nanos = Nanos(37_000_000 + 17_000_000);
/// Earlier copies of the same memory from which on it may be pinned: of two it is not known yet that a third follows.
const REPEATED: u32 = 2;
/// Links of one copy at most: its own, and those of three other GPUs. With a fifth, memory was the limit on an H200 node.
pub const LINKS_MAX: u32 = 4;
/// Sizes of one case whose choice is remembered: to choose takes about a microsecond, to remember a twentieth of it.
const SIZES_MAX: usize = 4_096;
/// Copies shorter than this are judged one in [`SAMPLED`].
const SHORT: Nanos = Nanos(50_000);
/// Of short copies, one in this many is judged.
const SAMPLED: u32 = 64;

/// What the copies of one GPU may use.
#[derive(Clone, Debug)]
pub struct ChooserOptions {
    /// GPUs that are used together.
    pub gpus: u32,
    /// CPUs that copies may use.
    pub cpus: u32,
    /// Sources may be mapped files.
    pub mapped_files: bool,
    pub resident: bool,
    /// What is ruled out. Which methods there are and what a copy is granted is found for each case.
    pub available: Available,
}

/// How a caller wants a copy to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodWanted {
    /// The best one as far as known.
    Auto,
    /// This one; an error if it cannot be used.
    By(Method),
    /// `staged` or `multipath` with this tuning, whatever the profile says.
    Tuned(Method, Tuning),
}

/// A copy that is about to be made, with all that decides besides what is measured and learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySituation {
    pub direction: Direction,
    pub bytes: Bytes,
    pub host: HostKnown,
    /// What else the GPU carries.
    pub load: BackgroundLoad,
    /// GPUs that copy the same way, this one included.
    pub active: u32,
    /// Whether links of other GPUs would be granted.
    pub granted: bool,
    /// The device end's window.
    pub window: Option<WindowMapping>,
    /// The thread that makes the copy has a real-time class.
    pub realtime: bool,
    /// What is known of earlier copies of the same memory, where it could be kept pinned.
    pub repeats: Option<Repeats>,
}

/// Earlier copies of memory that can be kept pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeats {
    /// How often these bytes were copied before.
    pub before: u32,
    /// Whether they are pinned.
    pub is_pinned: bool,
}

/// A situation in which choices differ by size only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    direction: Direction,
    memory: HostMemory,
    load: BackgroundLoad,
    active: u32,
    granted: bool,
    window: Option<WindowMapping>,
    realtime: bool,
}

/// Which rule decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceReason {
    /// There are no bytes to move.
    Empty,
    /// The caller named the method.
    Named,
    /// Only the driver knows how to handle the memory.
    DriverOnly,
    /// The profile is stale.
    Stale,
    /// It costs least by the profile.
    Measured,
    /// It costs least by built-in figures: this was not measured.
    BuiltIn,
    /// Earlier copies took least by it.
    Learnt,
    /// It is tried, to learn what it takes.
    Trial,
    /// The memory was copied so often that keeping it pinned pays.
    Repeated,
    /// This method was slower than the driver the last times.
    Slower(Method),
    /// This method could not be used.
    Absent(Method),
}

impl fmt::Display for ChoiceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there is nothing to copy"),
            Self::Named => f.write_str("the caller named it"),
            Self::DriverOnly => f.write_str("only the driver knows how to handle this memory"),
            Self::Stale => f.write_str("the profile is stale: the driver's own methods only"),
            Self::Measured => f.write_str("least by the profile"),
            Self::BuiltIn => f.write_str("least by built-in figures"),
            Self::Learnt => f.write_str("least by what copies took"),
            Self::Trial => f.write_str("tried, to learn what it takes"),
            Self::Repeated => f.write_str("the memory is copied again and again"),
            Self::Slower(method) => write!(f, "`{method}` was slower than the driver the last times"),
            Self::Absent(method) => write!(f, "`{method}` could not be used"),
        }
    }
}

/// How one copy is made. [`crate::models::transfer::price::price`] says what it costs besides time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyChoice {
    pub method: Method,
    /// Of methods through pinned buffers; `None` = the default.
    pub tuning: Option<Tuning>,
    /// Half of such copies take at most this long, as far as measured; for a thread of a real-time class, all of them.
    pub predicted: Option<Nanos>,
    pub reason: ChoiceReason,
    bytes: Bytes,
    /// `None` = memory that only the driver can handle.
    case: Option<Case>,
    /// Under which name the copy is compared with the driver's own.
    judged: Option<Bucket>,
    learnt: Option<Lesson>,
    /// The first method that could not be used, or was slower.
    instead_of: Option<Method>,
}

/// A copy that teaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lesson {
    kind: LearntKind,
    advice: CopyAdvice,
    /// No other was under way when it began.
    alone: bool,
}

impl CopyChoice {
    /// `method`, whatever is known of it.
    #[must_use]
    pub const fn plain(method: Method) -> Self {
        Self::of(None, Bytes(0), method, ChoiceReason::Named)
    }

    const fn of(case: Option<Case>, bytes: Bytes, method: Method, reason: ChoiceReason) -> Self {
        let (tuning, predicted, judged, learnt, instead_of) = (None, None, None, None, None);
        Self { method, tuning, predicted, reason, bytes, case, judged, learnt, instead_of }
    }

    /// Whether [`Chooser::ended`] is to be called.
    #[must_use]
    pub const fn is_followed(&self) -> bool {
        self.judged.is_some() || self.learnt.is_some()
    }

    /// The host memory, as far as it was asked for.
    #[must_use]
    pub fn memory(&self) -> HostMemory {
        self.case.map_or(HostMemory::Touched, |case| case.memory)
    }

    /// Whether the time of the copy is asked for even where the driver makes it, so that it is worth waiting for the CUDA stream before the
    /// clock starts.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.learnt.is_some_and(|lesson| lesson.advice.timed)
    }

    /// Whether the copy waits for threads and memory of `staged` that are not there yet, since it gains more than they take.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.reason == ChoiceReason::Named || self.learnt.is_some_and(|lesson| lesson.advice.waits)
    }
}

/// Why a method could not be used for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyAbsence {
    /// It is absent until the copier is opened again.
    Lasting,
    /// The next copy may find it there.
    Passing,
    /// Its threads and memory are being set up.
    Starting,
}

/// A case that was met.
#[derive(Debug)]
struct KnownCase {
    methods: MethodCase,
    /// By size.
    choices: BTreeMap<Bytes, CopyChoice>,
}

/// Chooses the methods of one GPU's copies, from any number of threads in turn.
#[derive(Debug)]
pub struct Chooser {
    gpu: EndpointId,
    profile: Arc<Profile>,
    options: ChooserOptions,
    /// Methods whose forms matter, and nobody has asked for them.
    unasked: Vec<Method>,
    /// Forms that can be used.
    forms: Vec<Method>,
    /// Methods that failed as unavailable.
    absent: BTreeSet<Method>,
    cases: BTreeMap<Case, KnownCase>,
    pages: Pages,
    watch: Watch,
    short: u32,
    learner: Option<Learner>,
    /// Copies that teach and have not ended.
    under_way: u32,
}

impl Chooser {
    /// One that knows `profile`, in which the GPU is `gpu`.
    #[must_use]
    pub fn new(gpu: EndpointId, profile: Arc<Profile>, options: ChooserOptions) -> Self {
        let mut unasked = vec![Method::PagedWindow(None), Method::Resident(None)];
        let resident = options.resident && !options.available.no_sm;
        unasked.retain(|method| {
            let known = profile.curves.keys().any(|key| key.method.any_form() == *method);
            known && (resident || *method != Method::Resident(None))
        });
        Self {
            gpu,
            profile,
            options,
            unasked,
            forms: Vec::new(),
            absent: BTreeSet::new(),
            cases: BTreeMap::new(),
            pages: Pages::default(),
            watch: Watch::default(),
            short: 0,
            learner: None,
            under_way: 0,
        }
    }

    /// Has copies of ordinary memory teach `learner` where no profile says what they cost; `false` if there is one.
    pub fn learn(&mut self, learner: Learner) -> bool {
        let is_first = self.learner.is_none();
        self.learner.get_or_insert(learner);
        is_first
    }

    /// What copies have taught, for a file.
    #[must_use]
    pub fn learnt(&self) -> Vec<LearntClass> {
        self.learner.as_ref().map_or_else(Vec::new, Learner::learnt)
    }

    /// Copies of this process that were timed.
    #[must_use]
    pub fn timed(&self) -> u64 {
        self.learner.as_ref().map_or(0, Learner::timed)
    }

    /// Answers [`CopyQuestion::Forms`]: those of `of` that can be used.
    pub fn set_forms(&mut self, of: Method, usable: impl IntoIterator<Item = Method>) {
        self.unasked.retain(|method| *method != of);
        self.forms.extend(usable);
        self.cases.clear();
    }

    /// How the copy in `situation` is made.
    ///
    /// # Errors
    /// A question: who calls answers it and calls again.
    pub fn choose(&mut self, wanted: MethodWanted, situation: &CopySituation) -> Result<CopyChoice, CopyQuestion> {
        if situation.bytes == Bytes(0) {
            let (MethodWanted::By(method) | MethodWanted::Tuned(method, _)) = wanted else {
                return self.choose(MethodWanted::By(Method::Pageable), situation);
            };
            let choice = CopyChoice::of(None, Bytes(0), method, ChoiceReason::Empty);
            return Ok(CopyChoice { predicted: Some(Nanos::ZERO), ..choice });
        }
        match wanted {
            MethodWanted::Auto => self.best(situation),
            MethodWanted::By(method) => self.named(method, None, situation),
            MethodWanted::Tuned(method, tuning) => self.named(method, Some(tuning), situation),
        }
    }

    fn best(&mut self, situation: &CopySituation) -> Result<CopyChoice, CopyQuestion> {
        if let Some(method) = self.unasked.last() {
            return Err(CopyQuestion::Forms(*method));
        }
        let bytes = situation.bytes;
        let Some((memory, is_comparable)) = self.host_memory(situation, false)? else {
            return Ok(CopyChoice::of(None, bytes, Method::Pageable, ChoiceReason::DriverOnly));
        };
        let case = self.case(situation, memory);
        let choice = self.pick(case, bytes);
        if situation.repeats.is_some_and(|repeats| self.pays_to_pin(&choice, repeats, situation.realtime)) {
            return Ok(CopyChoice::of(Some(case), bytes, Method::PinnedOnce, ChoiceReason::Repeated));
        }
        if self.learns(case, bytes, choice.method) {
            return Ok(self.taught(case, bytes));
        }
        let driver = Method::of_driver(case.direction, memory);
        // A choice is judged where the driver's curve can be held against it.
        let is_judged =
            is_comparable && case.is_alone() && self.options.available.stale.is_none() && choice.method != driver;
        let judged = is_judged.then(|| Bucket::of(self.gpu, case.direction, memory, choice.method, bytes));
        if judged.is_some_and(|bucket| self.watch.handle_call(bucket)) {
            let reason = ChoiceReason::Slower(choice.method);
            let by_driver = CopyChoice::of(Some(case), bytes, driver, reason);
            return Ok(CopyChoice { judged, instead_of: Some(choice.method), ..by_driver });
        }
        Ok(CopyChoice { judged, ..choice })
    }

    /// Whether a copy goes by `pinned-once` where it would otherwise go by `choice`: as many copies as there were before are expected to follow,
    /// and pinning takes less of the CPUs than these.
    fn pays_to_pin(&self, choice: &CopyChoice, repeats: Repeats, realtime: bool) -> bool {
        let Some(case) = choice.case.filter(|_| !self.absent.contains(&Method::PinnedOnce)) else { return false };
        let abilities = Method::PinnedOnce.abilities();
        if !abilities.memory.contains(&case.memory) || !abilities.measures(case.direction, choice.bytes) {
            return false;
        }
        if repeats.is_pinned {
            return true;
        }
        let Some(each) = choice.predicted.filter(|_| repeats.before >= REPEATED && !realtime) else {
            return false;
        };
        let threads = choice.tuning.map_or(1, |tuning| tuning.threads);
        let saved = u128::from(each.0) * u128::from(threads) * u128::from(repeats.before);
        let pinning = (u128::from(choice.bytes.0) * u128::from(PIN_PER_GIB.0)) >> 30;
        let dma = self.predicted(None, Method::Dma, case.direction, HostMemory::Pinned, choice.bytes);
        pinning <= saved && dma.is_none_or(|dma| dma <= each)
    }

    /// By the method that the caller named.
    fn named(
        &mut self,
        method: Method,
        tuning: Option<Tuning>,
        situation: &CopySituation,
    ) -> Result<CopyChoice, CopyQuestion> {
        let (direction, bytes) = (situation.direction, situation.bytes);
        let mut choice = CopyChoice::of(None, bytes, method, ChoiceReason::Named);
        if matches!(method, Method::Staged | Method::Multipath) {
            choice.tuning = tuning;
            if tuning.is_none()
                && let Some((memory, _)) = self.host_memory(situation, true)?
            {
                let case = self.case(situation, memory);
                choice.case = Some(case);
                choice.tuning = Some(self.tuning(case, method));
            }
        }
        let memory = if situation.host == HostKnown::Pinned { HostMemory::Pinned } else { HostMemory::Touched };
        Ok(CopyChoice { predicted: self.predicted(None, method, direction, memory, bytes), ..choice })
    }

    /// By what copies have taught.
    fn taught(&mut self, case: Case, bytes: Bytes) -> CopyChoice {
        let kind = LearntKind { direction: case.direction, memory: case.memory };
        let alone = self.under_way == 0;
        self.under_way += 1;
        let advice = self.learner.as_mut().expect("rule 4 holds where there is one").handle_copy(kind, bytes);
        let reason = if advice.trial { ChoiceReason::Trial } else { ChoiceReason::Learnt };
        let tuning = advice.tuning.map(|tuning| self.within(tuning, case.active));
        let learnt = Some(Lesson { kind, advice, alone });
        CopyChoice { tuning, learnt, ..CopyChoice::of(Some(case), bytes, advice.method(), reason) }
    }

    /// Whether rule 4 decides, where rule 2 says `method`.
    fn learns(&self, case: Case, bytes: Bytes, method: Method) -> bool {
        self.learner.is_some()
            && bytes >= NodeClass::LEAST
            && [Method::Pageable, Method::Staged].contains(&method)
            && case.is_alone()
            && case.memory != HostMemory::Pinned
            && !self.options.available.no_threads
    }

    fn case(&self, situation: &CopySituation, memory: HostMemory) -> Case {
        let CopySituation { direction, load, active, granted, window, .. } = *situation;
        let realtime = situation.realtime && !self.profile.curves.is_empty();
        Case { direction, memory, load, active, granted, window, realtime }
    }

    /// `choice` failed before anything moved; how the copy is made instead. `None` = the driver's own call failed, or a method that the
    /// caller named, which nothing replaces.
    pub fn failed(&mut self, choice: &CopyChoice, why: CopyAbsence) -> Option<CopyChoice> {
        let tried = choice.method;
        if tried == Method::Pageable || choice.reason == ChoiceReason::Named {
            return None;
        }
        if let (Method::Staged, Some(lesson), Some(learner)) = (tried, choice.learnt, &mut self.learner)
            && why != CopyAbsence::Starting
        {
            learner.handle_absent(lesson.kind, choice.bytes);
        }
        let by = |method| CopyChoice::of(choice.case, choice.bytes, method, ChoiceReason::Absent(tried));
        let next = match (why, choice.case) {
            (CopyAbsence::Lasting, Some(case)) => {
                self.leave_out(tried);
                CopyChoice { reason: ChoiceReason::Absent(tried), ..self.pick(case, choice.bytes) }
            }
            // Staging needs no page of the caller's pinned.
            _ if matches!(tried, Method::Pinning | Method::PinnedOnce) && choice.instead_of.is_none() => {
                by(Method::Staged)
            }
            _ => by(Method::Pageable),
        };
        // What has failed in this copy would fail again, for ever.
        let again = next.method == tried || Some(next.method) == choice.instead_of;
        let next = if again { by(Method::Pageable) } else { next };
        let instead_of = choice.instead_of.or(Some(tried));
        Some(CopyChoice { judged: choice.judged, learnt: choice.learnt, instead_of, ..next })
    }

    /// The copy is over; `took` = it ended well. To be called for every choice that is followed. What a user should know.
    pub fn ended(&mut self, choice: &CopyChoice, took: Option<CopyTook>) -> Vec<WatchEvent> {
        let mut events = Vec::new();
        if let Some(took) = took {
            events = self.judge(choice, took.time);
            self.teach(choice, took);
        }
        self.under_way -= u32::from(choice.learnt.is_some());
        events
    }

    /// A copy teaches what it took if it was made as advised, and no other ran beside it.
    fn teach(&mut self, choice: &CopyChoice, took: CopyTook) {
        let (Some(Lesson { kind, advice, alone }), Some(learner)) = (choice.learnt, &mut self.learner) else { return };
        if choice.instead_of.is_some() {
            return;
        }
        if advice.tuning.is_some() {
            learner.started();
        }
        if advice.timed && alone && self.under_way == 1 {
            learner.handle_took(kind, choice.bytes, advice, took);
        }
    }

    /// Compares a copy with the driver's curve, and with its own.
    fn judge(&mut self, choice: &CopyChoice, time: Nanos) -> Vec<WatchEvent> {
        let Some(bucket) = choice.judged else { return Vec::new() };
        if time < SHORT {
            let sampled = self.short.is_multiple_of(SAMPLED);
            self.short = self.short.wrapping_add(1);
            if !sampled {
                return Vec::new();
            }
        }
        let of_driver = Method::of_driver(bucket.direction, bucket.memory);
        let curve = |method| self.predicted(None, method, bucket.direction, bucket.memory, choice.bytes);
        let Some(driver) = curve(of_driver) else { return Vec::new() };
        if choice.method == bucket.method {
            let predicted = curve(bucket.method);
            self.watch.handle_observed(bucket, time, predicted, Some(driver))
        } else if choice.method == of_driver {
            self.watch.handle_instead(bucket, time, driver).into_iter().collect()
        } else {
            Vec::new()
        }
    }

    /// Leaves `method` out from now on.
    pub fn leave_out(&mut self, method: Method) {
        if self.absent.insert(method) {
            self.cases.clear();
        }
    }

    /// What the profile says that a caller waits for `method` where nothing else goes on. A posted store returns before it can be seen: what
    /// the caller waits for is the other curve.
    #[must_use]
    pub fn predicted(
        &self,
        peer: Option<EndpointId>,
        method: Method,
        direction: Direction,
        memory: HostMemory,
        bytes: Bytes,
    ) -> Option<Nanos> {
        let key = CurveKey { peer, ..CurveKey::alone(self.gpu, method, direction, memory) };
        let curve = self.profile.posted.get(&key).or_else(|| self.profile.curves.get(&key))?;
        Some(curve.at(bytes, Statistic::Median))
    }

    /// What a caller waits for a request of many pieces by `method` in any form, from the nearest number of pieces that was measured.
    #[must_use]
    pub fn predicted_many(
        &self,
        method: Method,
        direction: Direction,
        memory: HostMemory,
        pieces: u64,
        bytes: Bytes,
    ) -> Option<Nanos> {
        let pieces = pieces.max(1);
        // Windows and resident copiers have forms; pieces go by the first that can be used, which is the one measured.
        let fits = |key: &CurveKey| {
            (key.gpu, key.direction, key.method.any_form(), key.memory) == (self.gpu, direction, method, memory)
                && key.pieces > 1
        };
        let curves = self.profile.curves.iter().filter(|(key, _)| fits(key));
        // As many requests of the measured number as it takes, each with its share of the bytes.
        let (key, curve) = curves.min_by_key(|(key, _)| u64::from(key.pieces).abs_diff(pieces))?;
        let requests = pieces.div_ceil(u64::from(key.pieces));
        Some(Nanos(curve.at(Bytes(bytes.0.div_ceil(requests)), Statistic::Median).0.saturating_mul(requests)))
    }

    /// How a copy by `method` is staged. Over several links it is staged as copies of as many GPUs at once are, for they share the memory and
    /// the caches as its links do. What goes through another GPU takes two steps, so that as many chunks are on their way as of one copy.
    fn tuning(&mut self, case: Case, method: Method) -> Tuning {
        let alone = self.known(case).methods.tuning;
        if method != Method::Multipath {
            return self.within(alone, case.active);
        }
        let active = case.active.max(self.options.gpus.min(LINKS_MAX));
        let shared = self.known(Case { active, ..case }).methods.tuning;
        Tuning { in_flight: shared.in_flight.max(alone.in_flight), ..self.within(shared, active) }
    }

    /// `tuning` with no more threads than each of `parties` finds CPUs for. What was measured with fewer parties may ask for more threads.
    fn within(&self, tuning: Tuning, parties: u32) -> Tuning {
        let cpus = self.options.cpus.min(self.options.available.bounds.cpus_max);
        let fair = (cpus.saturating_sub(1) / parties.max(1)).max(1);
        Tuning { threads: tuning.threads.min(fair), ..tuning }
    }

    /// The choice for `bytes` by rule 2.
    fn pick(&mut self, case: Case, bytes: Bytes) -> CopyChoice {
        let known = self.known(case);
        if let Some(choice) = known.choices.get(&bytes) {
            return *choice;
        }
        let (method, predicted) = known.methods.best(bytes);
        let reason = match (known.methods.built_in, &self.options.available.stale) {
            (_, Some(_)) => ChoiceReason::Stale,
            (true, None) => ChoiceReason::BuiltIn,
            (false, None) => ChoiceReason::Measured,
        };
        let is_staged = method.abilities().occupies.staging(case.memory);
        let tuning = is_staged.then(|| self.tuning(case, method));
        let choice = CopyChoice { tuning, predicted, ..CopyChoice::of(Some(case), bytes, method, reason) };
        let known = self.known(case);
        if known.choices.len() >= SIZES_MAX {
            known.choices.clear();
        }
        known.choices.insert(bytes, choice);
        choice
    }

    fn known(&mut self, case: Case) -> &mut KnownCase {
        if !self.cases.contains_key(&case) {
            let objective = if case.realtime { Statistic::Max } else { Statistic::Median };
            let plain = MethodRequest::new(self.gpu, case.direction, case.memory, Bytes(0));
            let request = MethodRequest { load: case.load, active: case.active, objective, ..plain };
            let usual = &self.options.available;
            let available = Available {
                methods: self.methods(case).difference(&self.absent).copied().collect(),
                multipath: usual.multipath && case.granted,
                realtime: case.realtime,
                ..usual.clone()
            };
            let methods = MethodCase::new(&self.profile, &request, &available);
            self.cases.insert(case, KnownCase { methods, choices: BTreeMap::new() });
        }
        self.cases.get_mut(&case).expect("it was inserted")
    }

    /// The methods that may be there; those whose absence shows only in use are found out by using them.
    fn methods(&self, case: Case) -> BTreeSet<Method> {
        let always = [Method::Pageable, Method::Dma, Method::Register, Method::Pinning, Method::Staged, Method::Kernel];
        let mut methods: BTreeSet<Method> =
            always.into_iter().filter(|method| method.abilities().memory.contains(&case.memory)).collect();
        if self.options.mapped_files {
            // A copy out looks at its pages only to see whether there are some, not whose they are.
            methods.remove(&Method::Pinning);
        }
        methods.extend(case.window.map(|mapping| Method::Window(Some(mapping))));
        let threads = case.memory == HostMemory::Pinned || !self.options.available.no_threads;
        if self.options.available.multipath && self.options.gpus > 1 && threads {
            methods.insert(Method::Multipath);
        }
        // Memory with a window needs no paged one, which costs the same until it has to be moved.
        let fits = |form: &&Method| case.window.is_none() || !matches!(form, Method::PagedWindow(_));
        methods.extend(self.forms.iter().filter(fits));
        methods
    }
}

impl Case {
    /// Nothing else goes on.
    fn is_alone(&self) -> bool {
        self.load == BackgroundLoad::Alone && self.active == 1
    }
}

#[cfg(test)]
mod tests;
