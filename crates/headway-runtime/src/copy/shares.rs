//! How the GPUs of one copier share their links in long copies: which copies run, and which links are lent to which GPU.

use std::sync::{Mutex, MutexGuard, PoisonError};

use headway_core::models::transfer::Direction;
use headway_core::models::transfer::links::{Borrow, Links};

use super::engine::Bulk;

/// The links of all GPUs, in and out.
pub(super) struct Shares([Mutex<Links>; 2]);

/// A long copy under way; ends when dropped.
pub(super) struct Running<'a> {
    links: &'a Mutex<Links>,
    id: u64,
    /// Positions of the GPUs whose links it has borrowed.
    pub(super) relays: Vec<usize>,
    _bulk: Bulk<'a>,
}

fn lock(links: &Mutex<Links>) -> MutexGuard<'_, Links> {
    links.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shares {
    pub(super) fn new(gpus: usize) -> Self {
        Self([Links::new(gpus), Links::new(gpus)].map(Mutex::new))
    }

    fn of(&self, direction: Direction) -> &Mutex<Links> {
        &self.0[usize::from(direction == Direction::D2h)]
    }

    /// The links of one direction; what is decided while they are held is decided at once.
    pub(super) fn links(&self, direction: Direction) -> MutexGuard<'_, Links> {
        lock(self.of(direction))
    }

    /// Whether a copy of another GPU works with what `gpu` has for its own.
    pub(super) fn is_lent(&self, gpu: usize) -> bool {
        self.0.iter().any(|links| lock(links).is_lent(gpu))
    }

    /// A copy of `gpu` begins, by a decision made with `links`, which are those of `direction`.
    pub(super) fn begin<'a>(
        &'a self,
        links: &mut Links,
        gpu: usize,
        direction: Direction,
        borrow: Borrow,
        reaches: impl Fn(usize) -> bool,
        bulk: Bulk<'a>,
    ) -> Running<'a> {
        let (id, relays) = links.begin(gpu, borrow, reaches);
        Running { links: self.of(direction), id, relays, _bulk: bulk }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(self.links).end(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use headway_core::decisions::engine_line::{FlowClass, LineEntry, LineParty};
    use headway_core::decisions::staging::StagingDirection;
    use headway_core::files::machine::EndpointId;
    use headway_core::models::transfer::{
        BackgroundLoad, Curve, CurveKey, CurvePoint, HostMemory, Method, Profile, Stores, Tuning, TuningKey,
    };
    use headway_core::units::{Bytes, Nanos};
    use headway_device::emu::{EmuGpu, EmuSpec};
    use headway_device::gpu::{CpuReach, Gpu};

    use super::*;
    use crate::copy::{At, Copier, CopierEvent, CopyLimits, CopyOptions, How};
    use crate::staging::Place;

    const LEN: usize = 8 << 20;

    /// Of GPUs 0 and 1: alone over both links is fastest, together `staged` is.
    fn copier() -> Copier {
        let gpus = (0..2).map(|id| {
            let gpu: Arc<dyn Gpu> = Arc::new(EmuGpu::open(EmuSpec::new(&format!("gpu{id}"))));
            (EndpointId(id), gpu)
        });
        let mut profile = Profile::default();
        let costs = [(Method::Pageable, 1, 900), (Method::Staged, 1, 300), (Method::Multipath, 1, 200)];
        let concurrent = [(Method::Pageable, 2, 900), (Method::Staged, 2, 300)];
        for (gpu, (method, active, us)) in (0..2)
            .flat_map(|gpu| costs.map(|cost| (gpu, cost)))
            .chain((0..2).flat_map(|gpu| concurrent.map(|cost| (gpu, cost))))
        {
            let key = CurveKey {
                gpu: EndpointId(gpu),
                peer: None,
                method,
                direction: Direction::H2d,
                memory: HostMemory::Touched,
                load: BackgroundLoad::Alone,
                active,
                pieces: 1,
            };
            let time = Nanos(us * 1_000);
            let point = |bytes| CurvePoint { bytes: Bytes(bytes), n: 1, median: time, p99: time, max: time };
            let curve = Curve::new(vec![point(1), point(1 << 30)]).expect("ascending");
            profile.curves.extend(BTreeMap::from([(key, curve)]));
            let tuning = Tuning { threads: 2, buffer: Bytes(1 << 20), stores: Stores::Plain, in_flight: 2 };
            let at = TuningKey { gpu: EndpointId(gpu), direction: Direction::H2d, memory: HostMemory::Touched, active };
            profile.tunings.insert(at, tuning);
        }
        // However busy this computer is, nobody runs out of patience.
        let limits = CopyLimits { patience: Nanos(u64::MAX), ..CopyLimits::default() };
        let options = CopyOptions { multipath: true, limits, ..CopyOptions::default() };
        let copier = Copier::new(gpus.collect(), profile, options);
        let copier = copier.expect("two GPUs");
        copier.prepare().expect("threads and memory");
        copier
    }

    /// The method of an automatic copy to `gpu`.
    fn method(copier: &Copier, gpu: usize) -> Method {
        let to = copier.gpus()[gpu].device_buffer(LEN, CpuReach::Device).expect("room");
        let from = vec![7; LEN];
        let report = copier.copy_in(At { buffer: &to, offset: 0 }, &from, How::Auto).expect("it copies");
        assert_eq!(report.instead_of, None);
        report.method
    }

    /// A copy of `gpu` that stays under way.
    fn under_way(copier: &Copier, gpu: usize, borrow: Borrow) -> Running<'_> {
        let bulk = copier.gpus[gpu].h2d.bulk();
        let mut links = copier.shares.links(Direction::H2d);
        copier.shares.begin(&mut links, gpu, Direction::H2d, borrow, |_| true, bulk)
    }

    #[test]
    fn a_copy_beside_one_of_another_gpu_borrows_no_link_and_expects_it_the_next_time() {
        let copier = copier();
        assert_eq!(method(&copier, 0), Method::Multipath);
        let other = under_way(&copier, 1, Borrow::Nothing);
        assert_eq!(method(&copier, 0), Method::Staged, "the link is in use");
        drop(other);
        assert_eq!(method(&copier, 0), Method::Staged, "and will be again, as far as known");
        assert_eq!(method(&copier, 0), Method::Multipath, "it was not");
        assert_eq!(copier.events(), Vec::<CopierEvent>::new(), "nothing was replaced");
    }

    #[test]
    fn a_staged_copy_says_how_many_chunks_of_other_methods_were_ahead() {
        let copier = copier();
        let engine = copier.gpus[0].pool.engine(StagingDirection::In);
        let entry = LineEntry::new(FlowClass::Normal, LineParty::Copies, 2);
        let mut other = Place::new(&engine.line, entry);
        assert!(other.take() && other.take() && !other.take());
        let to = copier.gpus()[0].device_buffer(LEN, CpuReach::Device).expect("room");
        let at = At { buffer: &to, offset: 0 };
        let staged = || copier.copy_in(at, &vec![7; LEN], How::By(Method::Staged)).expect("it copies").ahead;
        assert_eq!(staged(), 3, "two on the engine and one that waits; it goes, for staging has room of its own");
        drop(other);
        assert_eq!(staged(), 0);
    }

    #[test]
    fn a_copy_whose_threads_are_lent_waits_for_them() {
        let copier = copier();
        let borrower = under_way(&copier, 0, Borrow::Spare(1));
        assert_eq!(borrower.relays, [1]);
        let lent = copier.gpus[1].pool.lend_threads();
        let taken = std::thread::scope(|scope| {
            let copy = scope.spawn(|| method(&copier, 1));
            while !copier.shares.links(Direction::H2d).is_busy(1) {
                std::thread::yield_now();
            }
            // Long enough for a copy that does not wait to end.
            for _ in 0..3_000 {
                if copy.is_finished() {
                    break;
                }
                std::thread::yield_now();
            }
            drop(lent);
            copy.join().expect("it copies")
        });
        assert_eq!(taken, Method::Staged);
        drop(borrower);
    }
}
