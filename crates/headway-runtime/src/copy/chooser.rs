//! The chooser of one GPU's copies ([`headway_core::decisions::chooser`]), shared by all threads; and what copies taught, kept in the user's
//! cache folder.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use headway_core::decisions::chooser::{
    Chooser, ChooserOptions, CopyAbsence, CopyChoice, CopyQuestion, CopySituation, CopyTook, HostKnown, MethodWanted,
    Repeats,
};
use headway_core::files::copy_cache::NodeKey;
use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::builtin::{Bus, NodeClass};
use headway_core::models::transfer::learning::{Learner, LearnerLimits, Prefer};
use headway_core::models::transfer::policy::WatchEvent;
use headway_core::models::transfer::{Available, BackgroundLoad, Direction, Profile};
use headway_core::units::Bytes;
use headway_os::fork::Home;
use headway_os::sched::{self, SchedClass};
use headway_os::{affinity, copy, memory, topology};

use super::CopyOptions;
use super::cache::Cache;

/// Copies that are timed before what was learnt is kept for the first time; then whenever they have doubled.
const KEPT_FROM: u64 = 64;
/// Most threads of a copy.
const THREADS_MAX: u32 = 16;
/// Of this many copies of a thread, one asks the system for the thread's class, which takes 0.1 us.
const CLASS_EVERY: u32 = 64;

/// The GPU whose copies are learnt from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearningGpu {
    /// As the driver calls it.
    pub name: String,
    pub uuid: Option<String>,
    /// PCI address.
    pub pci: Option<String>,
    /// The newest CUDA version that the driver supports, if it was asked.
    pub cuda: Option<(u32, u32)>,
}

/// What may be learnt and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearningOptions {
    pub prefer: Prefer,
    /// Most threads of a copy; fewer where the process may use fewer CPUs.
    pub threads_max: u32,
    /// Whether a few copies are made by another method to learn what it takes.
    pub learns: bool,
    /// Whether every copy is staged, whatever that costs: for tests.
    pub always: bool,
    /// Whether what is learnt is kept in the user's cache folder, and what was kept is used.
    pub keeps: bool,
}

impl Default for LearningOptions {
    /// Everything, unless `$HEADWAY_CACHE` is `off`.
    fn default() -> Self {
        let keeps = std::env::var_os("HEADWAY_CACHE").is_none_or(|value| value != "off");
        Self { prefer: Prefer::Cheapest, threads_max: THREADS_MAX, learns: true, always: false, keeps }
    }
}

/// One chooser for all threads.
pub struct CopyChooser {
    chooser: Mutex<Chooser>,
    cache: OnceLock<Option<Cache>>,
    basis: OnceLock<String>,
    /// Copies that were timed when it is kept next.
    keep_at: AtomicU64,
    home: Home,
}

/// A copy that is about to be made as chosen. Dropped, it ended badly.
pub struct ChosenCopy<'a> {
    chooser: &'a CopyChooser,
    choice: CopyChoice,
    is_open: bool,
}

/// CPUs that the process may use.
fn cpus() -> Option<u32> {
    affinity::allowed().ok().map(|cpus| u32::try_from(cpus.len()).unwrap_or(u32::MAX))
}

impl CopyChooser {
    /// The chooser of a GPU that `profile` calls `gpu`, one of `gpus` of a copier with `options`. `stale` = what has changed since `profile`
    /// was measured.
    #[must_use]
    pub fn new(
        gpu: EndpointId,
        profile: Arc<Profile>,
        options: &CopyOptions,
        stale: Option<String>,
        gpus: usize,
    ) -> Self {
        let options = options.normal();
        let available = Available {
            no_sm: options.no_sm,
            no_threads: options.no_threads,
            bounds: options.bounds(),
            multipath: options.multipath,
            stale,
            ..Available::default()
        };
        let options = ChooserOptions {
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            cpus: cpus().unwrap_or(u32::MAX),
            mapped_files: options.mapped_files,
            resident: options.resident,
            available,
        };
        Self {
            chooser: Mutex::new(Chooser::new(gpu, profile, options)),
            cache: OnceLock::new(),
            basis: OnceLock::new(),
            keep_at: AtomicU64::new(KEPT_FROM),
            home: Home::here(),
        }
    }

    /// Has copies of ordinary memory go by built-in figures and what earlier processes have learnt on this node, and teach; `false` if they do
    /// already. For choosers without a profile.
    pub fn learn(&self, gpu: &LearningGpu, options: LearningOptions) -> bool {
        let cpus = cpus().unwrap_or(1);
        let quota = affinity::quota(Path::new("/")).map_or(u32::MAX, |thousandths| (thousandths / 1_000) as u32);
        let key = NodeKey {
            gpu: gpu.name.clone(),
            uuid: gpu.uuid.clone(),
            driver: driver(gpu.cuda),
            cpu: topology::cpu_model(Path::new("/")).unwrap_or_else(|| "unknown".into()),
            cpus,
        };
        let limits = LearnerLimits {
            threads_max: cpus.min(quota).saturating_sub(1).min(options.threads_max),
            prefer: options.prefer,
            learns: options.learns && !options.always,
            always: options.always,
        };
        let cache = options.keeps.then(|| Cache::of_user(key)).flatten();
        self.learn_with(class(gpu), limits, cache)
    }

    fn learn_with(&self, node: NodeClass, limits: LearnerLimits, cache: Option<Cache>) -> bool {
        let mut learner = Learner::new(node, limits);
        let mut basis = format!("built-in figures ({node})");
        match cache.as_ref().map(Cache::read) {
            Some(Ok(Some(kept))) => {
                let copies = learner.recall(&kept.classes);
                basis = format!("{basis}; {copies} copies of earlier programs, kept on {}", kept.day());
            }
            Some(Err(word)) => basis = format!("{basis}; {word}"),
            Some(Ok(None)) | None => {}
        }
        let is_first = self.lock().learn(learner);
        if is_first {
            let _ = (self.cache.set(cache), self.basis.set(basis));
        }
        is_first
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Chooser> {
        self.chooser.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What choices began with, for people.
    #[must_use]
    pub fn basis(&self) -> &str {
        self.basis.get().map_or("a profile", String::as_str)
    }

    /// Whether copies teach it.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.basis.get().is_some()
    }

    /// Copies of this process that were timed.
    #[must_use]
    pub fn timed(&self) -> u64 {
        self.lock().timed()
    }

    /// How a copy between the GPU and `host`, which is ordinary memory, is made where nothing else is under way. For choosers without a
    /// profile: no other form of a method is looked for. `repeats`: what is known of earlier copies, where the memory could be kept pinned.
    pub fn choose_ordinary(&self, direction: Direction, host: &[u8], repeats: Option<Repeats>) -> ChosenCopy<'_> {
        let mut situation = CopySituation {
            direction,
            bytes: Bytes(host.len() as u64),
            host: HostKnown::Ordinary,
            load: BackgroundLoad::Alone,
            active: 1,
            granted: false,
            window: None,
            realtime: is_realtime(),
            repeats,
        };
        let mut chooser = self.lock();
        loop {
            match chooser.choose(MethodWanted::Auto, &situation) {
                Ok(choice) => return self.chosen(choice),
                Err(CopyQuestion::ArePagesThere) => situation.host = look(host),
                Err(CopyQuestion::IsPinned) => situation.host = HostKnown::DriverOnly,
                Err(CopyQuestion::Forms(method)) => chooser.set_forms(method, []),
            }
        }
    }

    pub(super) const fn chosen(&self, choice: CopyChoice) -> ChosenCopy<'_> {
        ChosenCopy { chooser: self, choice, is_open: true }
    }

    /// Keeps what was learnt, if anything was. Nothing fails: who cannot keep it learns it again.
    pub fn keep(&self) {
        let Some(Some(cache)) = self.cache.get().filter(|_| self.home.is_here()) else { return };
        let learnt = self.lock().learnt();
        if self.timed() > 0 {
            cache.keep(&learnt);
        }
    }
}

impl Drop for CopyChooser {
    fn drop(&mut self) {
        self.keep();
    }
}

impl ChosenCopy<'_> {
    #[must_use]
    pub const fn choice(&self) -> &CopyChoice {
        &self.choice
    }

    /// The copy is made; what a user should know.
    pub fn ended(mut self, took: CopyTook) -> Vec<WatchEvent> {
        self.is_open = false;
        if !self.choice.is_followed() {
            return Vec::new();
        }
        let shared = self.chooser;
        let mut chooser = shared.lock();
        let events = chooser.ended(&self.choice, Some(took));
        let timed = chooser.timed();
        drop(chooser);
        let keep_at = shared.keep_at.load(Ordering::Relaxed);
        let due = timed >= keep_at && shared.cache.get().is_some_and(Option::is_some);
        // One thread of all that find it due.
        if due && shared.keep_at.compare_exchange(keep_at, timed * 2, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            shared.keep();
        }
        events
    }

    /// The method could not be used; whether another one is to be tried.
    pub fn failed(&mut self, why: CopyAbsence) -> bool {
        let next = self.chooser.lock().failed(&self.choice, why);
        self.choice = next.unwrap_or(self.choice);
        next.is_some()
    }
}

impl Drop for ChosenCopy<'_> {
    fn drop(&mut self) {
        if self.is_open && self.choice.is_followed() {
            self.chooser.lock().ended(&self.choice, None);
        }
    }
}

/// Whether the pages of a destination are there.
pub(super) fn look(to: &[u8]) -> HostKnown {
    // Each page takes up to 0.9 us, which is to be little of the copy.
    let samples = match to.len() {
        ..0x20_0000 => 1,
        0x20_0000..0x100_0000 => 3,
        _ => 8,
    };
    if memory::mostly_absent(to, samples) { HostKnown::PagesAbsent } else { HostKnown::PagesPresent }
}

/// Whether the calling thread has a real-time class, or had when it asked last.
pub(super) fn is_realtime() -> bool {
    thread_local!(static SEEN: Cell<(u32, bool)> = const { Cell::new((0, false)) });
    let (left, was) = SEEN.get();
    let is = match left {
        0 => matches!(
            sched::current(),
            Ok(SchedClass::Fifo { .. } | SchedClass::RoundRobin { .. } | SchedClass::Deadline)
        ),
        _ => was,
    };
    SEEN.set((left.checked_sub(1).unwrap_or(CLASS_EVERY), is));
    is
}

/// The class whose built-in figures are used; by the model of the GPU first, for what the system says of links is often wrong in
/// virtual machines.
fn class(gpu: &LearningGpu) -> NodeClass {
    let sysfs = || Bus::of_generation(topology::pci_generation(Path::new(topology::SYSFS), gpu.pci.as_deref()?)?);
    let bus = Bus::of_gpu(&gpu.name).or_else(sysfs).unwrap_or(Bus::Pcie4);
    NodeClass { bus, wide_stores: copy::stores_wide() }
}

/// Which driver it is: its release where the system says, else what it supports.
fn driver(cuda: Option<(u32, u32)>) -> String {
    let release = std::fs::read_to_string("/sys/module/nvidia/version").ok().map(|release| release.trim().to_owned());
    release.or_else(|| cuda.map(|(major, minor)| format!("CUDA {major}.{minor}"))).unwrap_or_else(|| "unknown".into())
}

#[cfg(test)]
mod tests {
    use headway_core::units::Nanos;

    use super::*;

    const NODE: NodeClass = NodeClass { bus: Bus::Pcie5, wide_stores: true };
    const LIMITS: LearnerLimits =
        LearnerLimits { threads_max: 8, prefer: Prefer::Cheapest, learns: true, always: false };

    fn key() -> NodeKey {
        NodeKey { gpu: "G".into(), uuid: None, driver: "1".into(), cpu: "C".into(), cpus: 9 }
    }

    fn chooser(folder: &Path) -> CopyChooser {
        // As many CPUs as it takes, however many this computer has.
        let chooser = CopyChooser::new(EndpointId(0), Arc::default(), &CopyOptions::default(), None, 1);
        assert!(chooser.learn_with(NODE, LIMITS, Some(Cache::at(folder.join("headway"), key()))));
        chooser
    }

    fn choose<'a>(chooser: &'a CopyChooser, host: &[u8]) -> ChosenCopy<'a> {
        chooser.choose_ordinary(Direction::H2d, host, None)
    }

    fn big() -> Vec<u8> {
        vec![0; 64 << 20]
    }

    /// Copies by which staging turns out to be slower than the driver.
    fn teach(chooser: &CopyChooser, copies: usize) {
        let host = big();
        for _ in 0..copies {
            let chosen = choose(chooser, &host);
            let time = Nanos(if chosen.choice().tuning.is_some() { 9_000_000 } else { 3_000_000 });
            chosen.ended(CopyTook { time, cpu: None });
        }
    }

    fn is_staged(chooser: &CopyChooser) -> bool {
        choose(chooser, &big()).choice().tuning.is_some()
    }

    #[test]
    fn what_one_process_has_learnt_the_next_one_knows() {
        let folder = tempfile::tempdir().unwrap();
        let first = chooser(folder.path());
        assert!(is_staged(&first));
        assert!(!first.basis().contains("kept on"), "{}", first.basis());
        teach(&first, 2_000);
        drop(first);
        let second = chooser(folder.path());
        assert!(second.basis().contains("copies of earlier programs, kept on 20"), "{}", second.basis());
        assert!(!is_staged(&second));
    }

    #[test]
    fn much_that_was_learnt_is_kept_before_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let first = chooser(folder.path());
        teach(&first, 2_000);
        assert!(!is_staged(&chooser(folder.path())));
        assert!(first.timed() >= KEPT_FROM);
    }

    #[test]
    fn copies_beside_others_teach_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let chooser = chooser(folder.path());
        let host = big();
        let beside = choose(&chooser, &host);
        teach(&chooser, 10);
        assert_eq!(chooser.timed(), 0);
        drop(beside);
        teach(&chooser, 10);
        assert!(chooser.timed() > 0);
    }

    #[test]
    fn a_forked_child_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let chooser = chooser(folder.path());
        teach(&chooser, 20);
        assert!(headway_os::fork::holds_in_a_child(|| {
            chooser.keep();
            !folder.path().join("headway").exists()
        }));
        chooser.keep();
        assert!(folder.path().join("headway").exists());
    }
}
