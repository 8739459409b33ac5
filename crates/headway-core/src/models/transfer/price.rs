//! What copies cost besides time: CPUs, pinned memory, multiprocessors; and which tuning of `staged` is worth its price.

use super::abilities::{CpuUse, Multiprocessors};
use super::learning::Prefer;
use super::{Direction, HostMemory, Method, Tuning};
use crate::units::{Bytes, NANOS_PER_SECOND, Nanos};

/// Buffers beyond those on the engine where workers share each chunk: one is full, one is being filled (or emptied), and one
/// is still with the last of the workers when the others begin the next.
pub const SPARE_BUFFERS: u32 = 3;

/// Thread blocks of a copy kernel: 8 in and 4 out reach what a copy engine does on an H200, 1 in reaches 12 GB/s.
pub const KERNEL_BLOCKS_IN: u32 = 8;
/// Blocks of the copying kernel out of the GPU.
pub const KERNEL_BLOCKS_OUT: u32 = 4;

impl Tuning {
    /// Pinned memory that a copy takes.
    #[must_use]
    pub fn pinned(self) -> Bytes {
        Bytes(u64::from(self.in_flight).saturating_add(u64::from(SPARE_BUFFERS)).saturating_mul(self.buffer.0))
    }

    /// CPUs that a copy keeps busy: its threads, and the one that asked for it, which drives the engine.
    #[must_use]
    pub const fn cpus(self) -> u32 {
        self.threads.saturating_add(1)
    }
}

/// What one tuning was measured to cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PricedTuning {
    pub tuning: Tuning,
    /// Size of the copies that were timed.
    pub bytes: Bytes,
    /// Median of what one took.
    pub time: Nanos,
    /// Median of the CPU time of all threads.
    pub cpu: Nanos,
}

impl PricedTuning {
    /// CPU time of 10^9 bytes, rounded up.
    #[must_use]
    pub fn cpu_of_gb(&self) -> Nanos {
        const GB: u128 = 1_000_000_000;
        let nanos = (u128::from(self.cpu.0) * GB).div_ceil(u128::from(self.bytes.0.max(1)));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Whether `other` costs no more in anything, and less in something; of equals the earlier one stays.
    fn is_beaten_by(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.time, it.cpu, it.tuning.threads, it.tuning.pinned());
        let (ours, theirs) = (of(self), of(other));
        let no_more = theirs.0 <= ours.0 && theirs.1 <= ours.1 && theirs.2 <= ours.2 && theirs.3 <= ours.3;
        no_more && ours != theirs
    }
}

/// Those of `tried` that no other one beats in time, CPU time, threads and pinned memory together, by time.
#[must_use]
pub fn worth_keeping(tried: &[PricedTuning]) -> Vec<PricedTuning> {
    let mut kept: Vec<PricedTuning> = Vec::new();
    for one in tried {
        let same = |known: &PricedTuning| known.tuning == one.tuning;
        if !tried.iter().any(|other| one.is_beaten_by(other)) && !kept.iter().any(same) {
            kept.push(*one);
        }
    }
    kept.sort_by_key(|one| (one.time, one.cpu, one.tuning.threads));
    kept
}

/// How much of everything one copy may take, and what is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// CPUs that a copy keeps busy, that of the caller included.
    pub cpus_max: u32,
    pub pinned_max: Bytes,
    pub multiprocessors_max: u32,
    pub prefer: Prefer,
}

impl Default for Bounds {
    /// No bounds; the cheapest of the nearly equal.
    fn default() -> Self {
        Self {
            cpus_max: u32::MAX,
            pinned_max: Bytes(u64::MAX),
            multiprocessors_max: u32::MAX,
            prefer: Prefer::Cheapest,
        }
    }
}

impl Bounds {
    fn allow(&self, tuning: Tuning) -> bool {
        tuning.cpus() <= self.cpus_max && tuning.pinned() <= self.pinned_max
    }

    /// The tuning to take of those that were priced: of the ones that are allowed the cheapest within 5 % of the fastest, or the
    /// fastest. Without any that is allowed `usual`, with fewer threads and smaller buffers as far as it takes.
    #[must_use]
    pub fn pick(&self, priced: &[PricedTuning], usual: Tuning) -> Tuning {
        let allowed = || priced.iter().filter(|one| self.allow(one.tuning));
        let found = self.prefer.pick(allowed().map(|one| (one.time, one.cpu)));
        match found.and_then(|at| allowed().nth(at)) {
            Some(one) => one.tuning,
            None => self.limit(usual),
        }
    }

    fn limit(&self, tuning: Tuning) -> Tuning {
        let threads = tuning.threads.min(self.cpus_max.saturating_sub(1)).max(1);
        let buffers = u64::from(tuning.in_flight).saturating_add(u64::from(SPARE_BUFFERS));
        let buffer = tuning.buffer.0.min((self.pinned_max.0 / buffers).max(BUFFER_MIN));
        Tuning { threads, buffer: Bytes(buffer), ..tuning }
    }
}

/// No bound makes buffers smaller.
const BUFFER_MIN: u64 = 64 << 10;

/// What a copy keeps busy from its beginning to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Price {
    /// CPUs, that of the caller included where it works or polls.
    pub cpus: u32,
    /// CPU time of 10^9 bytes, all threads together; `None` = not measured.
    pub cpu_per_gb: Option<Nanos>,
    /// Pinned memory.
    pub pinned: Bytes,
    pub multiprocessors: u32,
}

/// The price of a copy by `method`, with `tuning` where it goes through pinned buffers.
#[must_use]
pub fn price(
    method: Method,
    direction: Direction,
    memory: HostMemory,
    tuning: Option<Tuning>,
    priced: &[PricedTuning],
) -> Price {
    let occupies = method.abilities().occupies;
    let staged = tuning.filter(|_| occupies.staging(memory));
    let cpus = match (occupies.cpu, staged) {
        (_, Some(tuning)) => tuning.cpus(),
        // Who waits for an engine polls it.
        (CpuUse::Idle | CpuUse::Caller | CpuUse::Threads | CpuUse::ThreadsUnlessPinned, None) => 1,
    };
    let multiprocessors = match (occupies.multiprocessors, direction) {
        (Multiprocessors::Free, _) => 0,
        (Multiprocessors::Launch, Direction::D2h) => KERNEL_BLOCKS_OUT,
        (Multiprocessors::Launch, _) => KERNEL_BLOCKS_IN,
        (Multiprocessors::Resident, _) => 1,
    };
    let cpu_per_gb =
        staged.and_then(|tuning| priced.iter().find(|one| one.tuning == tuning)).map(PricedTuning::cpu_of_gb);
    Price { cpus, cpu_per_gb, pinned: staged.map_or(Bytes(0), Tuning::pinned), multiprocessors }
}

/// `0.245` for 245 ms of CPU time a GB.
#[must_use]
pub fn cpu_seconds(per_gb: Nanos) -> String {
    let thousandths = (u128::from(per_gb.0) * 1_000).div_ceil(u128::from(NANOS_PER_SECOND));
    format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::models::transfer::Stores;

    fn priced(threads: u32, mib: u64, time: u64, cpu: u64) -> PricedTuning {
        let tuning = Tuning { threads, buffer: Bytes(mib << 20), stores: Stores::Plain, in_flight: 3 };
        PricedTuning { tuning, bytes: Bytes(1_000_000_000), time: Nanos(time), cpu: Nanos(cpu) }
    }

    fn usual() -> Tuning {
        priced(14, 8, 0, 0).tuning
    }

    #[test]
    fn the_cheapest_within_five_percent_is_taken_unless_the_fastest_is_preferred() {
        // As on one H200 into the GPU: fourteen threads are hardly faster than six, and cost twice as much.
        let all = [
            priced(14, 8, 10_000, 120_000),
            priced(8, 8, 10_050, 80_000),
            priced(6, 8, 10_400, 62_000),
            priced(4, 8, 12_700, 51_000),
        ];
        let pick = |bounds: Bounds| bounds.pick(&all, usual()).threads;
        assert_eq!(pick(Bounds::default()), 6);
        assert_eq!(pick(Bounds { prefer: Prefer::Fastest, ..Bounds::default() }), 14);
        // What is not allowed is not the fastest either.
        assert_eq!(pick(Bounds { cpus_max: 5, ..Bounds::default() }), 4);
        assert_eq!(pick(Bounds { cpus_max: 9, prefer: Prefer::Fastest, ..Bounds::default() }), 8);
        // Exactly 5 % is near enough.
        let edge = [priced(8, 8, 10_000, 9), priced(4, 8, 10_500, 5), priced(2, 8, 10_501, 1)];
        assert_eq!(Bounds::default().pick(&edge, usual()).threads, 4);
    }

    #[test]
    fn where_nothing_priced_is_allowed_the_usual_tuning_is_cut_down() {
        let bounds = Bounds { cpus_max: 3, pinned_max: Bytes(10 << 20), ..Bounds::default() };
        let cut = bounds.pick(&[], usual());
        assert!(cut.threads == 2 && cut.pinned() <= Bytes(10 << 20), "{cut:?}");
        assert_eq!(Bounds { cpus_max: 0, ..Bounds::default() }.pick(&[], usual()).threads, 1);
    }

    #[test]
    fn what_is_beaten_in_everything_is_not_kept() {
        let all = [
            priced(14, 8, 100, 900),
            priced(14, 16, 100, 900),
            priced(6, 8, 105, 600),
            priced(8, 8, 106, 700),
            priced(1, 4, 900, 900),
        ];
        let kept: Vec<u32> = worth_keeping(&all).iter().map(|one| one.tuning.threads).collect();
        assert_eq!(kept, [14, 6, 1]);
    }

    #[test]
    fn prices_are_those_of_what_a_method_occupies() {
        let six = priced(6, 8, 10_000_000, 60_000_000);
        let of = |method, tuning| price(method, Direction::H2d, HostMemory::Touched, tuning, &[six]);
        let staged = of(Method::Staged, Some(six.tuning));
        assert_eq!((staged.cpus, staged.cpu_per_gb), (7, Some(Nanos(60_000_000))));
        assert_eq!(staged.pinned, six.tuning.pinned());
        assert_eq!(of(Method::Staged, Some(usual())).cpu_per_gb, None);
        let pageable = of(Method::Pageable, None);
        assert_eq!((pageable.cpus, pageable.pinned, pageable.multiprocessors), (1, Bytes(0), 0));
        assert_eq!(of(Method::Kernel, None).multiprocessors, 8);
        assert_eq!(cpu_seconds(Nanos(245_000_001)), "0.246");
    }

    proptest! {
        /// Whatever was tried: what is picked is allowed, near the fastest that is, and none near it is cheaper.
        #[test]
        fn no_cheaper_tuning_is_as_near_the_fastest(
            figures in proptest::collection::vec((1u32..20, 1u64..17, 1u64..1_000, 1u64..1_000), 1..30),
            cpus_max in 2u32..22,
            fastest in any::<bool>(),
        ) {
            let mut all: Vec<PricedTuning> = Vec::new();
            for (threads, mib, time, cpu) in figures {
                let one = priced(threads, mib, time, cpu);
                // A tuning has one price: files with a second one are refused.
                if all.iter().all(|other| other.tuning != one.tuning) {
                    all.push(one);
                }
            }
            let prefer = if fastest { Prefer::Fastest } else { Prefer::Cheapest };
            let bounds = Bounds { cpus_max, pinned_max: Bytes(60 << 20), prefer, ..Bounds::default() };
            let allowed: Vec<&PricedTuning> = all.iter().filter(|one| bounds.allow(one.tuning)).collect();
            let picked = bounds.pick(&all, usual());
            prop_assert!(bounds.allow(picked) || allowed.is_empty());
            if let Some(least) = allowed.iter().map(|one| one.time.0).min() {
                let near = |one: &&&PricedTuning| one.time.0 * 100 <= least * 105;
                let cheapest = allowed.iter().filter(near).map(|one| one.cpu).min().unwrap();
                let is_it = |one: &&&PricedTuning| one.tuning == picked && (if fastest { one.time.0 == least } else { one.cpu == cheapest });
                prop_assert!(allowed.iter().filter(near).any(|one| is_it(&one)), "{picked:?}");
            }
            // What is kept loses nothing of it.
            let kept = worth_keeping(&all);
            let unbound = Bounds { prefer, ..Bounds::default() };
            let cost = |of: &[PricedTuning]| {
                let tuning = unbound.pick(of, usual());
                of.iter().filter(|one| one.tuning == tuning).map(|one| if fastest { one.time } else { one.cpu }).min()
            };
            if fastest {
                prop_assert_eq!(cost(&kept), cost(&all));
            }
        }
    }
}
