//! How a copy that no plan made is carried out. These rules decide, in this order:
//!
//! 1. What decides and takes time to know is asked for, where the choice hangs on it: forms of windows and resident copiers, whether
//!    memory is pinned, whether its pages are there (`host.rs`). Memory that only the driver can handle goes by the driver's own call.
//! 2. The method with the least cost that the profile says, else the built-in figures ([`Selector`]), of those that are not known to be
//!    absent. For a thread of a real-time class it is the least worst case where anything was measured.
//! 3. Where no profile says what copies cost, copies of ordinary memory from 1 MiB on go by what copies have taught ([`Learner`]).
//! 4. A method of the profile that was slower than the driver several times in a row gives way to the driver's own call ([`Watch`]).
//! 5. After a failure: the next best by rule 2 if the method is absent for good; `staged` in place of `pinning`; else the driver's own
//!    call. Nothing is tried twice for one copy.
//!
//! No clock, no lock and no memory of the caller's is touched here.

mod chunk;
mod host;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use self::host::Pages;
use crate::files::machine::EndpointId;
use crate::models::transfer::builtin::NodeClass;
use crate::models::transfer::learning::{CopyAdvice, CopyTiming, Learner, LearntClass, LearntKind};
use crate::models::transfer::policy::{Bucket, Decision, Watch, WatchEvent};
use crate::models::transfer::price::price;
use crate::models::transfer::{
    Available, BackgroundLoad, Bounds, CurveKey, Direction, HostMemory, Method, MethodRequest, Price, Profile,
    ResidentShape, Selector, Statistic, Tuning, TuningKey, WindowMapping,
};
use crate::units::{Bytes, Nanos};

pub use self::chunk::{PINNED_CUT, STREAM_CHUNK, chunk};
pub use self::host::{CopyQuestion, HostEnd, PagesSeen};

/// Links of one copy at most: its own, and those of three other GPUs. With a fifth, memory was the limit on an H200 node.
pub const LINKS_MAX: u32 = 4;
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
    pub no_sm: bool,
    pub no_threads: bool,
    pub multipath: bool,
    /// Sources may be mapped files.
    pub mapped_files: bool,
    pub resident: bool,
    pub bounds: Bounds,
    /// The largest chunk.
    pub chunk_max: Bytes,
    /// What has changed since the profile was measured: the driver's own methods only.
    pub stale: Option<String>,
}

/// What a copy is to be moved by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodWanted {
    /// The best one as far as known.
    Best,
    /// This one, because the caller named it.
    Named(Method, Option<Tuning>),
}

/// A copy that is about to be made, with all that decides besides what is measured and learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySituation {
    pub direction: Direction,
    pub bytes: Bytes,
    /// What is known of the host end.
    pub host: HostEnd,
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
}

/// A situation in which choices differ by size only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            Self::Slower(method) => write!(f, "`{method}` was slower than the driver the last times"),
            Self::Absent(method) => write!(f, "`{method}` could not be used"),
        }
    }
}

/// How one copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyChoice {
    pub method: Method,
    /// Of methods through pinned buffers; `None` = the default.
    pub tuning: Option<Tuning>,
    /// What an engine gets at once.
    pub chunk: Bytes,
    /// What it keeps busy, of memory that only the driver can handle nothing that is known.
    pub price: Price,
    /// Half of such copies take at most this long, as far as measured.
    pub predicted: Option<Nanos>,
    /// No such copy took longer, as far as measured.
    pub worst_case: Option<Nanos>,
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
    pub fn plain(method: Method) -> Self {
        Self::of(None, Bytes(0), Pick::driver(method, ChoiceReason::Named), Bytes(0))
    }

    fn of(case: Option<Case>, bytes: Bytes, pick: Pick, chunk_max: Bytes) -> Self {
        Self {
            method: pick.method,
            tuning: pick.tuning,
            chunk: chunk(pick.method, bytes, pick.tuning, chunk_max),
            price: Price::default(),
            predicted: pick.predicted,
            worst_case: pick.worst_case,
            reason: pick.reason,
            bytes,
            case,
            judged: None,
            learnt: None,
            instead_of: None,
        }
    }

    /// Whether [`Chooser::ended`] is to be called when the copy has ended well.
    #[must_use]
    pub const fn is_followed(&self) -> bool {
        self.judged.is_some() || self.learnt.is_some()
    }

    /// Whether it is to be called however the copy ends.
    #[must_use]
    pub const fn teaches(&self) -> bool {
        self.learnt.is_some()
    }

    /// The host memory, as far as it was asked for.
    #[must_use]
    pub fn memory(&self) -> HostMemory {
        self.case.map_or(HostMemory::Touched, |case| case.memory)
    }

    /// The method of the profile that was slower than the driver's.
    #[must_use]
    pub const fn slower(&self) -> Option<Method> {
        if let ChoiceReason::Slower(method) = self.reason { Some(method) } else { None }
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

/// What a copy took that ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyTook {
    /// Without waiting for others.
    pub time: Nanos,
    /// CPU time of all threads; `None` = the caller's, for as long as the copy took.
    pub cpu: Option<Nanos>,
}

/// What rule 2 says.
#[derive(Clone, Copy, Debug)]
struct Pick {
    method: Method,
    tuning: Option<Tuning>,
    predicted: Option<Nanos>,
    worst_case: Option<Nanos>,
    reason: ChoiceReason,
}

impl Pick {
    const fn driver(method: Method, reason: ChoiceReason) -> Self {
        Self { method, tuning: None, predicted: None, worst_case: None, reason }
    }
}

/// Chooses the methods of one GPU's copies, from any number of threads in turn.
#[derive(Debug)]
pub struct Chooser {
    gpu: EndpointId,
    profile: Arc<Profile>,
    options: ChooserOptions,
    /// Forms that can be used; `None` = they matter, and nobody has asked.
    windows: Option<Vec<WindowMapping>>,
    residents: Option<Vec<ResidentShape>>,
    /// Methods that failed as unavailable.
    absent: BTreeSet<Method>,
    compiled: Vec<Option<Selector>>,
    pages: Pages,
    watch: Watch,
    /// Whether any method was ever demoted: until then nothing is looked up.
    has_demoted: bool,
    short: u32,
    learner: Option<Learner>,
    /// Copies that teach and have not ended.
    under_way: u32,
}

const WINDOWS: usize = 4;
const MEMORIES: usize = 4;
const LOADS: usize = 4;

impl Chooser {
    /// One that knows `profile`, in which the GPU is `gpu`.
    #[must_use]
    pub fn new(gpu: EndpointId, profile: Arc<Profile>, options: ChooserOptions) -> Self {
        let known = |method| profile.curves.keys().any(|key| key.method.any_form() == method);
        let residents = options.resident && !options.no_sm && known(Method::Resident(None));
        let cases = options.gpus.max(1) as usize * 2 * 2 * 2 * WINDOWS * MEMORIES * LOADS;
        Self {
            gpu,
            windows: (!known(Method::PagedWindow(None))).then(Vec::new),
            residents: (!residents).then(Vec::new),
            absent: BTreeSet::new(),
            compiled: (0..cases).map(|_| None).collect(),
            pages: Pages::default(),
            watch: Watch::default(),
            has_demoted: false,
            short: 0,
            learner: None,
            under_way: 0,
            profile,
            options,
        }
    }

    /// Has copies of ordinary memory teach `learner` where no profile says what they cost; `false` if there is one.
    pub fn learn(&mut self, learner: Learner) -> bool {
        let is_first = self.learner.is_none();
        self.learner.get_or_insert(learner);
        is_first
    }

    /// What copies have taught, for a file; and how many copies were timed.
    #[must_use]
    pub fn learnt(&self) -> (Vec<LearntClass>, u64) {
        self.learner.as_ref().map_or_else(Default::default, |learner| (learner.learnt(), learner.timed()))
    }

    /// Copies of this process that were timed.
    #[must_use]
    pub fn timed(&self) -> u64 {
        self.learner.as_ref().map_or(0, Learner::timed)
    }

    /// Answers [`CopyQuestion::WindowForms`].
    pub fn set_windows(&mut self, usable: Vec<WindowMapping>) {
        self.windows = Some(usable);
    }

    /// Answers [`CopyQuestion::ResidentForms`].
    pub fn set_residents(&mut self, usable: Vec<ResidentShape>) {
        self.residents = Some(usable);
    }

    /// How the copy in `situation` is made.
    ///
    /// # Errors
    /// A question: who calls answers it and calls again.
    pub fn choose(&mut self, wanted: MethodWanted, situation: &CopySituation) -> Result<CopyChoice, CopyQuestion> {
        match wanted {
            _ if situation.bytes == Bytes(0) => {
                let method = if let MethodWanted::Named(method, _) = wanted { method } else { Method::Pageable };
                let pick = Pick { predicted: Some(Nanos::ZERO), ..Pick::driver(method, ChoiceReason::Empty) };
                Ok(CopyChoice::of(None, Bytes(0), pick, self.options.chunk_max))
            }
            MethodWanted::Best => self.best(situation),
            MethodWanted::Named(method, tuning) => self.named(method, tuning, situation),
        }
    }

    fn best(&mut self, situation: &CopySituation) -> Result<CopyChoice, CopyQuestion> {
        if self.windows.is_none() && situation.window.is_none() {
            return Err(CopyQuestion::WindowForms);
        }
        if self.residents.is_none() {
            return Err(CopyQuestion::ResidentForms);
        }
        let bytes = situation.bytes;
        let Some((memory, is_comparable)) = self.host_memory(situation)? else {
            return Ok(self.made_by(None, bytes, Pick::driver(Method::Pageable, ChoiceReason::DriverOnly)));
        };
        let case = self.case(situation, memory);
        let mut pick = self.pick(case, bytes);
        if self.learns(case, bytes, pick.method) {
            return Ok(self.taught(case, bytes));
        }
        let bucket = self.judged(case, pick.method, bytes).filter(|_| is_comparable);
        if let Some(bucket) = bucket.filter(|_| self.has_demoted)
            && self.watch.handle_call(bucket) == Decision::Driver
        {
            pick = Pick::driver(Method::of_driver(case.direction, memory), ChoiceReason::Slower(pick.method));
        }
        let choice = self.made_by(Some(case), bytes, pick);
        Ok(CopyChoice { judged: bucket, instead_of: choice.slower(), ..choice })
    }

    /// By the method that the caller named.
    fn named(
        &mut self,
        method: Method,
        tuning: Option<Tuning>,
        situation: &CopySituation,
    ) -> Result<CopyChoice, CopyQuestion> {
        let tunes = matches!(method, Method::Staged | Method::Multipath);
        let asked = if tunes && tuning.is_none() { self.memory_now(situation)? } else { None };
        let measured = asked.and_then(|memory| {
            let case = self.case(situation, memory);
            match method {
                Method::Multipath => self.tuning_of_links(case),
                _ => self.tuning(case).map(|tuning| self.within(tuning, case.active)),
            }
        });
        let tuning = tuning.filter(|_| tunes).or(measured);
        let memory = if situation.host == HostEnd::Pinned { HostMemory::Pinned } else { HostMemory::Touched };
        let predicted = self.predicted(None, method, situation.direction, memory, situation.bytes);
        let pick = Pick { tuning, predicted, ..Pick::driver(method, ChoiceReason::Named) };
        let price = price(method, situation.direction, memory, tuning, &[]);
        let case = asked.map(|memory| self.case(situation, memory));
        Ok(CopyChoice { price, ..CopyChoice::of(case, situation.bytes, pick, self.options.chunk_max) })
    }

    /// By what copies have taught.
    fn taught(&mut self, case: Case, bytes: Bytes) -> CopyChoice {
        let kind = LearntKind { direction: case.direction, memory: case.memory };
        let alone = self.under_way == 0;
        self.under_way += 1;
        let advice = self.learner.as_mut().expect("rule 3 holds where there is one").handle_copy(kind, bytes);
        let reason = if advice.trial { ChoiceReason::Trial } else { ChoiceReason::Learnt };
        let pick = Pick { tuning: advice.tuning, ..Pick::driver(advice.method(), reason) };
        CopyChoice { learnt: Some(Lesson { kind, advice, alone }), ..self.made_by(Some(case), bytes, pick) }
    }

    /// `pick` with the threads that there are CPUs for.
    fn made_by(&self, case: Option<Case>, bytes: Bytes, pick: Pick) -> CopyChoice {
        let tuning = match (case, pick.method) {
            (Some(case), Method::Multipath) => self.tuning_of_links(case),
            (Some(case), _) => pick.tuning.map(|tuning| self.within(tuning, case.active)),
            (None, _) => pick.tuning,
        };
        let price = case.map(|case| {
            let priced = tuning.and_then(|_| self.tuning_key(case, case.memory));
            let priced = priced.map_or(&[][..], |key| self.profile.prices_of(key));
            price(pick.method, case.direction, case.memory, tuning, priced)
        });
        CopyChoice {
            price: price.unwrap_or_default(),
            ..CopyChoice::of(case, bytes, Pick { tuning, ..pick }, self.options.chunk_max)
        }
    }

    /// Whether rule 3 decides, where rule 2 says `method`.
    fn learns(&self, case: Case, bytes: Bytes, method: Method) -> bool {
        self.learner.is_some()
            && bytes >= NodeClass::LEAST
            && [Method::Pageable, Method::Staged].contains(&method)
            && case.is_alone()
            && case.memory != HostMemory::Pinned
            && !self.options.no_threads
    }

    fn case(&self, situation: &CopySituation, memory: HostMemory) -> Case {
        let CopySituation { direction, load, active, granted, window, .. } = *situation;
        let realtime = situation.realtime && !self.profile.curves.is_empty();
        Case { direction, memory, load, active, granted, window, realtime }
    }

    /// The bucket in which a choice is judged: those against which the driver's curve can be held.
    fn judged(&self, case: Case, method: Method, bytes: Bytes) -> Option<Bucket> {
        let comparable = case.is_alone() && self.options.stale.is_none();
        (comparable && method != Method::of_driver(case.direction, case.memory))
            .then(|| Bucket::of(self.gpu, case.direction, case.memory, method, bytes))
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
        let driver = Pick::driver(Method::Pageable, ChoiceReason::Absent(tried));
        let next = match (why, choice.case) {
            (CopyAbsence::Lasting, Some(case)) => {
                self.leave_out(tried);
                Pick { reason: ChoiceReason::Absent(tried), ..self.pick(case, choice.bytes) }
            }
            // Staging needs no page of the caller's pinned.
            _ if tried == Method::Pinning && choice.instead_of.is_none() => Pick { method: Method::Staged, ..driver },
            _ => driver,
        };
        // What has failed in this copy would fail again, for ever.
        let next = if next.method == tried || Some(next.method) == choice.instead_of { driver } else { next };
        let next = self.made_by(choice.case, choice.bytes, next);
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
        self.has_demoted |= events.iter().any(|event| matches!(event, WatchEvent::Demoted { .. }));
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
            learner.handle_took(kind, choice.bytes, CopyTiming { advice, time: took.time, cpu: took.cpu });
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
            self.compiled.fill_with(|| None);
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
        let key = CurveKey {
            gpu: self.gpu,
            peer,
            method,
            direction,
            memory,
            load: BackgroundLoad::Alone,
            active: 1,
            pieces: 1,
        };
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

    /// How a copy is staged, as far as measured: with as many GPUs active, else fewer, else more; ordinary memory of other kinds as
    /// warm memory.
    fn tuning(&self, case: Case) -> Option<Tuning> {
        let warm = || (case.memory != HostMemory::Pinned).then(|| self.tuning_key(case, HostMemory::Touched)).flatten();
        let key = self.tuning_key(case, case.memory).or_else(warm)?;
        self.profile.tuning(key, &self.options.bounds)
    }

    fn tuning_key(&self, case: Case, memory: HostMemory) -> Option<&TuningKey> {
        let keys = self.profile.tunings.keys();
        keys.filter(|key| key.gpu == self.gpu && key.direction == case.direction && key.memory == memory)
            .min_by_key(|key| (key.active > case.active, key.active.abs_diff(case.active)))
    }

    /// How a copy over several links is staged: as copies of as many GPUs at once are, for they share the memory and the caches
    /// as its links do. What goes through another GPU takes two steps, so that as many chunks are on their way as of one copy.
    fn tuning_of_links(&self, case: Case) -> Option<Tuning> {
        let alone = self.tuning(case)?;
        let parties = case.active.max(self.options.gpus.min(LINKS_MAX));
        let shared = self.within(self.tuning(Case { active: parties, ..case })?, parties);
        Some(Tuning { in_flight: shared.in_flight.max(alone.in_flight), ..shared })
    }

    /// `tuning` with no more threads than one of so many parties finds CPUs for: what was measured with fewer of them may ask for
    /// more.
    fn within(&self, tuning: Tuning, parties: u32) -> Tuning {
        let cpus = self.options.cpus.min(self.options.bounds.cpus_max);
        let fair = (cpus.saturating_sub(1) / parties.max(1)).max(1);
        Tuning { threads: tuning.threads.min(fair), ..tuning }
    }

    /// The method for `bytes` by rule 2.
    fn pick(&mut self, case: Case, bytes: Bytes) -> Pick {
        let slot = self.slot(case);
        if self.compiled[slot].is_none() {
            self.compiled[slot] = Some(self.compile(case));
        }
        let selector = self.compiled[slot].as_ref().expect("compiled above");
        let reason = match (&self.options.stale, selector.is_built_in()) {
            (Some(_), _) => ChoiceReason::Stale,
            (None, true) => ChoiceReason::BuiltIn,
            (None, false) => ChoiceReason::Measured,
        };
        let step = selector.step(bytes);
        let [predicted, worst_case] = [Statistic::Median, Statistic::Max].map(|figure| step.figure(bytes, figure));
        Pick { method: step.method, tuning: step.tuning, predicted, worst_case, reason }
    }

    fn slot(&self, case: Case) -> usize {
        let window = match case.window {
            None => 0,
            Some(WindowMapping::Gdrdrv) => 1,
            Some(WindowMapping::Vulkan) => 2,
            Some(WindowMapping::DmaBuf) => 3,
        };
        let places = [
            (usize::from(case.direction == Direction::D2h), 2),
            (usize::from(case.granted), 2),
            (usize::from(case.realtime), 2),
            (window, WINDOWS),
            (case.memory as usize, MEMORIES),
            (case.load as usize, LOADS),
        ];
        let active = case.active.clamp(1, self.options.gpus.max(1)) as usize - 1;
        places.into_iter().fold(active, |index, (place, of)| index * of + place)
    }

    fn compile(&self, case: Case) -> Selector {
        let objective = if case.realtime { Statistic::Max } else { Statistic::Median };
        let request = MethodRequest {
            load: case.load,
            active: case.active,
            objective,
            ..MethodRequest::new(self.gpu, case.direction, case.memory, Bytes(0))
        };
        let available = Available {
            methods: self.methods(case).difference(&self.absent).copied().collect(),
            no_sm: self.options.no_sm,
            no_threads: self.options.no_threads,
            bounds: self.options.bounds,
            multipath: self.options.multipath && case.granted,
            realtime: case.realtime,
            stale: self.options.stale.clone(),
        };
        Selector::new(&self.profile, &request, &available)
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
        let threads = case.memory == HostMemory::Pinned || !self.options.no_threads;
        if self.options.multipath && self.options.gpus > 1 && threads {
            methods.insert(Method::Multipath);
        }
        // Memory with a window needs no paged one, which costs the same until it has to be moved; of memory without, only
        // `gdrdrv` maps parts.
        if case.window.is_none() {
            let gdrdrv = self.windows.iter().flatten().filter(|mapping| **mapping == WindowMapping::Gdrdrv);
            methods.extend(gdrdrv.map(|mapping| Method::PagedWindow(Some(*mapping))));
        }
        methods.extend(self.residents.iter().flatten().map(|shape| Method::Resident(Some(*shape))));
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
