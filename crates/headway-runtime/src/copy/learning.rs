//! What copies of ordinary memory to and from one GPU are made by where no profile says it, and what they teach: the policy of
//! [`headway_core::models::transfer::learning`], fed from many threads and kept in the user's cache folder.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use headway_core::models::transfer::builtin::{Bus, NodeClass};
use headway_core::models::transfer::learning::{CopyAdvice, CopyTiming, Learner, LearnerLimits, LearntKind, Prefer};
use headway_core::models::transfer::{Direction, HostMemory, Method};
use headway_core::units::{Bytes, Nanos};
use headway_os::fork::Home;
use headway_os::{affinity, copy, memory, topology};

use super::cache::{Cache, NodeKey};
use super::situation::samples;
use super::{CopyReport, How};

/// Copies that are timed before what was learnt is kept for the first time; then whenever they have doubled.
const KEPT_FROM: u64 = 64;
/// Most threads of a copy.
const THREADS_MAX: u32 = 16;

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

/// One policy for all threads.
pub struct Learning {
    learner: Mutex<Learner>,
    cache: Option<Cache>,
    basis: String,
    /// Copies that were timed when it is kept next.
    keep_at: AtomicU64,
    /// Copies under way.
    copies: AtomicU32,
    home: Home,
}

/// A copy that is about to be made.
pub struct Advised<'a> {
    learning: &'a Learning,
    kind: LearntKind,
    bytes: Bytes,
    advice: CopyAdvice,
    alone: bool,
}

impl Learning {
    /// What is known of copies to and from `gpu`: built-in figures, and what earlier processes have learnt on this node.
    #[must_use]
    pub fn open(gpu: &LearningGpu, options: LearningOptions) -> Self {
        let cpus = affinity::allowed().map_or(1, |cpus| cpus.len() as u32);
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
        Self::with(class(gpu), limits, cache)
    }

    fn with(node: NodeClass, limits: LearnerLimits, cache: Option<Cache>) -> Self {
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
        Self {
            learner: Mutex::new(learner),
            cache,
            basis,
            keep_at: AtomicU64::new(KEPT_FROM),
            copies: AtomicU32::new(0),
            home: Home::here(),
        }
    }

    fn learner(&self) -> MutexGuard<'_, Learner> {
        self.learner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What choices began with, for people.
    #[must_use]
    pub fn basis(&self) -> &str {
        &self.basis
    }

    /// Copies of this process that were timed.
    #[must_use]
    pub fn timed(&self) -> u64 {
        self.learner().timed()
    }

    /// How a copy between the GPU and `host`, which is ordinary memory, is made.
    pub fn advise(&self, direction: Direction, host: &[u8]) -> Advised<'_> {
        let fresh = direction == Direction::D2h && memory::mostly_absent(host, samples(host.len()));
        self.advise_kind(
            direction,
            if fresh { HostMemory::Untouched } else { HostMemory::Touched },
            Bytes(host.len() as u64),
        )
    }

    pub(super) fn advise_kind(&self, direction: Direction, memory: HostMemory, bytes: Bytes) -> Advised<'_> {
        let kind = LearntKind { direction, memory };
        let alone = self.copies.fetch_add(1, Ordering::Relaxed) == 0;
        let advice = self.learner().handle_copy(kind, bytes);
        Advised { learning: self, kind, bytes, advice, alone }
    }

    fn started(&self) {
        self.learner().started();
    }

    /// Keeps what was learnt, if anything was. Nothing fails: who cannot keep it learns it again.
    pub fn keep(&self) {
        let Some(cache) = self.cache.as_ref().filter(|_| self.home.is_here()) else { return };
        let learner = self.learner();
        if learner.timed() == 0 {
            return;
        }
        let learnt = learner.learnt();
        drop(learner);
        cache.keep(&learnt);
    }
}

impl Drop for Learning {
    fn drop(&mut self) {
        self.keep();
    }
}

impl Advised<'_> {
    #[must_use]
    pub const fn advice(&self) -> CopyAdvice {
        self.advice
    }

    /// How a copier is asked for the copy.
    #[must_use]
    pub fn how(&self) -> How {
        self.advice.tuning.map_or(How::By(Method::Pageable), |tuning| How::Tuned(Method::Staged, tuning))
    }

    /// A copier made the copy. It teaches nothing where another method had to be used.
    pub fn ended(self, report: &CopyReport) {
        if report.method == self.advice.method() && report.instead_of.is_none() {
            self.took(report.observed.saturating_sub(report.waited), report.cpu);
        }
    }

    /// The copy was made as advised and took so long, without any wait for what was queued before.
    pub fn took(self, time: Nanos, cpu: Option<Nanos>) {
        let learning = self.learning;
        if self.advice.tuning.is_some() {
            learning.started();
        }
        if !self.advice.timed || !self.alone || learning.copies.load(Ordering::Relaxed) != 1 {
            return;
        }
        let mut learner = learning.learner();
        learner.handle_took(self.kind, self.bytes, CopyTiming { advice: self.advice, time, cpu });
        let timed = learner.timed();
        drop(learner);
        let keep_at = learning.keep_at.load(Ordering::Relaxed);
        let due = timed >= keep_at && learning.cache.is_some();
        // One thread of all that find it due.
        if due && learning.keep_at.compare_exchange(keep_at, timed * 2, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            learning.keep();
        }
    }

    /// Staging could not be used.
    pub fn absent(self) {
        self.learning.learner().handle_absent(self.kind, self.bytes);
    }
}

impl Drop for Advised<'_> {
    fn drop(&mut self) {
        self.learning.copies.fetch_sub(1, Ordering::Relaxed);
    }
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
    use super::*;

    const NODE: NodeClass = NodeClass { bus: Bus::Pcie5, wide_stores: true };
    const LIMITS: LearnerLimits =
        LearnerLimits { threads_max: 8, prefer: Prefer::Cheapest, learns: true, always: false };
    const BIG: Bytes = Bytes(64 << 20);

    fn key() -> NodeKey {
        NodeKey { gpu: "G".into(), uuid: None, driver: "1".into(), cpu: "C".into(), cpus: 9 }
    }

    fn learning(folder: &Path) -> Learning {
        Learning::with(NODE, LIMITS, Some(Cache::at(folder.join("headway"), key())))
    }

    /// Copies by which staging turns out to be slower than the driver.
    fn teach(learning: &Learning, copies: usize) {
        learning.started();
        for _ in 0..copies {
            let advised = learning.advise_kind(Direction::H2d, HostMemory::Touched, BIG);
            let time = if advised.advice().tuning.is_some() { 9_000_000 } else { 3_000_000 };
            advised.took(Nanos(time), None);
        }
    }

    fn chosen(learning: &Learning) -> Option<u32> {
        learning.advise_kind(Direction::H2d, HostMemory::Touched, BIG).advice().tuning.map(|tuning| tuning.threads)
    }

    #[test]
    fn what_one_process_has_learnt_the_next_one_knows() {
        let folder = tempfile::tempdir().unwrap();
        let first = learning(folder.path());
        assert_eq!(chosen(&first), Some(8));
        assert!(!first.basis().contains("kept on"), "{}", first.basis());
        teach(&first, 2_000);
        drop(first);
        let second = learning(folder.path());
        assert!(second.basis().contains("copies of earlier programs, kept on 20"), "{}", second.basis());
        assert_eq!(chosen(&second), None);
    }

    #[test]
    fn much_that_was_learnt_is_kept_before_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let first = learning(folder.path());
        teach(&first, 2_000);
        assert_eq!(chosen(&learning(folder.path())), None);
        assert!(first.timed() >= KEPT_FROM);
    }

    #[test]
    fn copies_beside_others_teach_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let learning = learning(folder.path());
        learning.started();
        let beside = learning.advise_kind(Direction::D2h, HostMemory::Touched, BIG);
        teach(&learning, 10);
        assert_eq!(learning.timed(), 0);
        drop(beside);
        teach(&learning, 10);
        assert!(learning.timed() > 0);
    }

    #[test]
    fn a_forked_child_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let learning = learning(folder.path());
        teach(&learning, 20);
        assert!(headway_os::fork::holds_in_a_child(|| {
            learning.keep();
            !folder.path().join("headway").exists()
        }));
        learning.keep();
        assert!(folder.path().join("headway").exists());
    }
}
