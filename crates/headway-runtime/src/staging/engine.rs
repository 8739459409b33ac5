//! The copy engines of this process's GPUs. Whoever copies on one, by whichever copier, pool or run of a plan, stands in the same line.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use headway_core::decisions::staging::StagingDirection;
use headway_device::buffer::DeviceId;
use headway_device::gpu::Gpu;
use headway_os::board::EngineActivity;

use super::chunk_limit::ChunkLimit;
use super::line::Line;

/// The engines of GPUs that are in use, by whose memory they serve.
static ENGINES: LazyLock<Mutex<HashMap<EngineName, Weak<CopyEngine>>>> = LazyLock::new(Mutex::default);

type EngineName = (DeviceId, StagingDirection);

/// What all who copy on one engine share.
pub(crate) struct CopyEngine {
    pub(crate) line: Arc<Line>,
    /// How large chunks without a promise may be.
    pub(crate) limit: ChunkLimit,
    /// Long copies under way.
    pub(crate) bulk: AtomicU32,
    /// The number of who promises; 0 = nobody.
    promiser: AtomicU64,
}

/// Both copy engines of one GPU.
pub(crate) struct GpuEngines {
    inward: Arc<CopyEngine>,
    outward: Arc<CopyEngine>,
}

impl GpuEngines {
    pub(crate) fn of(gpu: &dyn Gpu) -> Self {
        let [inward, outward] =
            [StagingDirection::In, StagingDirection::Out].map(|direction| CopyEngine::of(gpu, direction));
        Self { inward, outward }
    }

    pub(crate) const fn get(&self, direction: StagingDirection) -> &Arc<CopyEngine> {
        match direction {
            StagingDirection::In => &self.inward,
            StagingDirection::Out => &self.outward,
        }
    }
}

impl CopyEngine {
    /// The engine of `gpu` for this direction.
    pub(crate) fn of(gpu: &dyn Gpu, direction: StagingDirection) -> Arc<Self> {
        let id = gpu.id();
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = engines.get(&(id, direction)).and_then(Weak::upgrade) {
            return engine;
        }
        engines.retain(|_, engine| engine.strong_count() > 0);
        let engine = Self::behind(&Line::told(EngineActivity::new(gpu.description().board_gpu(), direction)));
        engines.insert((id, direction), Arc::downgrade(&engine));
        engine
    }

    /// An engine that only those know who get it from here.
    pub(crate) fn behind(line: &Arc<Line>) -> Arc<Self> {
        let (bulk, promiser) = (AtomicU32::new(0), AtomicU64::new(0));
        Arc::new(Self { line: Arc::clone(line), limit: ChunkLimit::none(), bulk, promiser })
    }

    /// From now on `who` promises what the engine does; `false` if somebody else does already, whose promises would not know of these.
    pub(crate) fn promise_by(&self, who: Promiser) -> bool {
        let before = self.promiser.compare_exchange(0, who.0, Ordering::AcqRel, Ordering::Acquire);
        before.is_ok() || self.is_promised_by(who)
    }

    pub(crate) fn is_promised_by(&self, who: Promiser) -> bool {
        self.promiser.load(Ordering::Acquire) == who.0
    }

    /// `who` promises nothing any more.
    pub(crate) fn promise_ends(&self, who: Promiser) {
        let _ = self.promiser.compare_exchange(who.0, 0, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// One who promises what engines do, as a node of flows or the run of a plan: an engine has one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promiser(u64);

impl Promiser {
    /// Another one than all before.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each is another")]
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

#[cfg(test)]
mod tests {
    use headway_device::emu::{EmuGpu, EmuSpec};

    use super::*;

    #[test]
    fn an_engine_is_one_while_anybody_has_it_and_one_promises_at_a_time() {
        let [gpu, other] = ["gpu0", "gpu1"].map(|name| EmuGpu::open(EmuSpec::new(name)));
        let (first, again) = (CopyEngine::of(&gpu, StagingDirection::In), CopyEngine::of(&gpu, StagingDirection::In));
        assert!(Arc::ptr_eq(&first, &again));
        assert!(!Arc::ptr_eq(&first, &CopyEngine::of(&gpu, StagingDirection::Out)));
        assert!(!Arc::ptr_eq(&first, &CopyEngine::of(&other, StagingDirection::In)));
        let [one, two, three] = [(); 3].map(|()| Promiser::new());
        assert!(first.promise_by(one) && again.promise_by(one) && !again.promise_by(two));
        again.promise_ends(two);
        assert!(!again.promise_by(two));
        again.promise_ends(one);
        assert!(again.promise_by(two) && first.is_promised_by(two));
        drop((first, again));
        assert!(CopyEngine::of(&gpu, StagingDirection::In).promise_by(three), "a new one");
    }
}
