//! How many streams of a pool a node carries under each policy.

use super::{Border, Site, SiteError, StreamPool, longest_prefix};
use headway_core::files::machine::Machine;
use headway_core::plan::Strategy;
use headway_core::units::{Nanos, Rate};

use super::pools::{KINDS, Reading, SEEDS, StreamKind};

/// What the CPU encrypts per second (`verner-2014`, V-B: "a maximum throughput of 250 MB/sec").
pub const CPU: Rate = Rate(250_000_000);
/// The kernel of the experiment.
pub const KERNEL: &str = "aes128-cbc";
/// More than any node of the sweep carries, bits per second: 8 GB/s on two GPUs, 0.25 GB/s on the CPU, and some.
const POOL: u64 = 68_000_000_000;

/// The machine with `rate` as the capacity of limit `limit`; `None` if it has no such limit.
#[must_use]
pub fn with_limit(machine: &Machine, limit: &str, rate: Rate) -> Option<Machine> {
    let mut machine = machine.clone();
    let capacity = machine.capacities.iter_mut().find(|capacity| capacity.id == limit)?;
    (capacity.rate, capacity.rate_low) = (rate, rate);
    Some(machine)
}

/// The machine with `setup` for every operation, kernels included.
#[must_use]
pub fn with_setup(machine: &Machine, setup: Nanos) -> Machine {
    let mut machine = machine.clone();
    for route in &mut machine.routes {
        (route.setup, route.setup_queued) = (setup, setup);
    }
    machine.kernels.iter_mut().for_each(|kernel| kernel.setup = setup);
    machine
}

/// The machine with links, limits and kernels slower by a factor: it carries so many streams fewer.
#[must_use]
pub fn scaled(machine: &Machine, by: u64) -> Machine {
    let mut machine = machine.clone();
    let by = by.max(1);
    for capacity in &mut machine.capacities {
        (capacity.rate, capacity.rate_low) = (Rate(capacity.rate.0 / by), Rate(capacity.rate_low.0 / by));
    }
    machine.kernels.iter_mut().for_each(|kernel| kernel.rate = Rate(kernel.rate.0 / by));
    machine
}

/// A machine as the experiment's framework sees it, with a CPU of [`CPU`].
///
/// # Errors
/// [`SiteError`].
pub fn site(machine: &Machine) -> Result<Site, SiteError> {
    Site::new(machine, KERNEL, CPU)
}

/// Which pools are looked at, and how closely.
#[derive(Clone, Debug)]
pub struct BorderStudy {
    pub kinds: Vec<StreamKind>,
    /// Readings of the distributions.
    pub readings: Vec<Reading>,
    /// Seeds of the pools; constant workloads use the first only.
    pub seeds: Vec<u64>,
    /// Streams by which a border may be too low: 1 = exact.
    pub step: usize,
    /// Machines and CPU are slower by this factor, so that there are as many streams fewer.
    pub scale: u64,
}

/// How many streams one pool gives one site under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BorderPoint {
    /// Position of the site.
    pub site: usize,
    /// Number of the workload in the paper.
    pub kind: u32,
    /// How draws were read.
    pub reading: Reading,
    /// Seed of the pool.
    pub seed: u64,
    pub policy: Strategy,
    /// Streams of the longest accepted prefix.
    pub streams: usize,
    /// Their rates together, bits per second.
    pub bits_per_second: u64,
}

impl BorderStudy {
    /// All workloads, both readings, all shipped seeds, exact borders.
    #[must_use]
    pub fn full() -> Self {
        Self { kinds: KINDS.to_vec(), readings: Reading::ALL.to_vec(), seeds: SEEDS.collect(), step: 1, scale: 1 }
    }

    /// All workloads and both readings with the first seed, on nodes a sixteenth as fast.
    #[must_use]
    pub fn quick() -> Self {
        Self { seeds: vec![SEEDS.start], scale: 16, ..Self::full() }
    }

    /// A machine as the study sees it.
    ///
    /// # Errors
    /// [`SiteError`].
    pub fn site(&self, machine: &Machine) -> Result<Site, SiteError> {
        Site::new(&scaled(machine, self.scale), KERNEL, Rate(CPU.0 / self.scale.max(1)))
    }

    /// The pool of one workload: more streams than any site of the study carries.
    #[must_use]
    pub fn pool(&self, kind: &StreamKind, reading: Reading, seed: u64) -> StreamPool {
        StreamPool::new(kind.pool(reading, seed, POOL / self.scale.max(1)))
    }

    /// The borders of all pools on all sites under all policies.
    ///
    /// # Errors
    /// [`SiteError::Network`] when a copy would get no rate.
    pub fn run(&self, sites: &[Site], policies: &[Strategy]) -> Result<Vec<BorderPoint>, SiteError> {
        let mut points = Vec::new();
        for kind in &self.kinds {
            for &reading in &self.readings {
                let seeds = if kind.is_constant() { &self.seeds[..self.seeds.len().min(1)] } else { &self.seeds[..] };
                for &seed in seeds {
                    let pool = self.pool(kind, reading, seed);
                    for &policy in policies {
                        for (at, site) in sites.iter().enumerate() {
                            let Border { streams, .. } = longest_prefix(site, policy, &pool, self.step)?;
                            let bits_per_second = pool.bits_per_second(streams);
                            let kind = kind.number;
                            points.push(BorderPoint {
                                site: at,
                                kind,
                                reading,
                                seed,
                                policy,
                                streams,
                                bits_per_second,
                            });
                        }
                    }
                }
            }
        }
        Ok(points)
    }
}

/// Gains of one policy over another, as plain quotients of stream counts.
#[derive(Clone, Debug, PartialEq)]
pub struct GainCurve {
    /// By workload: the gain of every seed.
    pub gains: Vec<(u32, Vec<f64>)>,
}

impl GainCurve {
    /// The gain of `better` on site `at` over `base` on site `base_at`, in one reading.
    #[must_use]
    pub fn of(
        points: &[BorderPoint],
        reading: Reading,
        (at, better): (usize, Strategy),
        (base_at, base): (usize, Strategy),
    ) -> Self {
        let of = |site, policy| points.iter().filter(move |p| (p.site, p.policy, p.reading) == (site, policy, reading));
        let mut gains: Vec<(u32, Vec<f64>)> = Vec::new();
        for point in of(at, better) {
            let Some(other) = of(base_at, base).find(|p| (p.kind, p.seed) == (point.kind, point.seed)) else {
                continue;
            };
            if other.streams == 0 {
                continue;
            }
            let gain = point.streams as f64 / other.streams as f64 - 1.0;
            match gains.last_mut() {
                Some((kind, of_kind)) if *kind == point.kind => of_kind.push(gain),
                _ => gains.push((point.kind, vec![gain])),
            }
        }
        Self { gains }
    }

    /// The mean over the workloads, each counted once.
    #[must_use]
    pub fn mean(&self) -> f64 {
        mean(self.gains.iter().map(|(_, seeds)| mean(seeds.iter().copied())))
    }

    /// The mean over the workloads when each takes its pool of one seed, by seed; constant workloads have one pool for all.
    #[must_use]
    pub fn by_seed(&self) -> Vec<f64> {
        let most = self.gains.iter().map(|(_, seeds)| seeds.len()).max().unwrap_or(0);
        (0..most).map(|seed| mean(self.gains.iter().map(|(_, seeds)| seeds[seed % seeds.len()]))).collect()
    }

    /// Least and largest of [`GainCurve::by_seed`].
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        let fold = |(low, high): (f64, f64), gain: f64| (low.min(gain), high.max(gain));
        self.by_seed().into_iter().fold((f64::INFINITY, f64::NEG_INFINITY), fold)
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = numbers.fold((0.0, 0.0), |(count, sum), number| (count + 1.0, sum + number));
    if count > 0.0 { sum / count } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use headway_core::files::machine::shipped;

    use super::*;

    fn sites(study: &BorderStudy) -> [Site; 2] {
        ["verner-r1", "verner-r2"].map(|name| study.site(&shipped(name).unwrap()).unwrap())
    }

    /// Without overheads and with equal streams the closed form holds: half of what the copies carry together, both ways,
    /// plus the CPU.
    #[test]
    fn equal_streams_come_within_a_thousandth_of_the_closed_form() {
        let study = BorderStudy { kinds: vec![KINDS[0]], readings: vec![Reading::Truncate], ..BorderStudy::quick() };
        let points = study.run(&sites(&study), &[Strategy::Serial, Strategy::Lockstep, Strategy::Combined]).unwrap();
        for (point, bytes) in points.iter().zip([4e9, 4e9, 8e9, 4.8e9, 8e9, 4.8e9]) {
            let closed = (bytes + 0.25e9) / 16.0 * 8.0 / 3.1e6;
            let found = point.streams as f64;
            assert!(found <= closed + 3.0 && found >= closed * 0.999 - 4.0, "{point:?} {closed}");
        }
    }

    #[test]
    fn no_policy_that_moves_blocks_in_parallel_gains_more_than_the_links_give() {
        let kinds = vec![KINDS[3], KINDS[11]];
        let study = BorderStudy { kinds, readings: vec![Reading::Truncate], ..BorderStudy::quick() };
        let points = study.run(&sites(&study), &crate::simulation::verner::STRATEGIES).unwrap();
        for (at, most) in [(0, 8.25 / 4.25 - 1.0), (1, 5.05 / 4.25 - 1.0)] {
            let gain = |policy| GainCurve::of(&points, Reading::Truncate, (at, policy), (at, Strategy::Serial)).mean();
            assert!(gain(Strategy::Combined) <= most + 0.01, "{}", gain(Strategy::Combined));
            assert!(gain(Strategy::Combined) >= most - 0.06, "{}", gain(Strategy::Combined));
            assert!(gain(Strategy::Lockstep) <= gain(Strategy::Combined));
            assert_eq!(gain(Strategy::Serial), 0.0);
        }
    }

    #[test]
    fn curves_count_every_workload_once_and_spread_over_seeds() {
        let point = |kind, seed, policy, streams| {
            let reading = Reading::Clip;
            BorderPoint { site: 0, kind, reading, seed, policy, streams, bits_per_second: 0 }
        };
        let points: Vec<BorderPoint> = [(1, 0, 100, 200), (2, 0, 100, 110), (2, 1, 100, 130), (2, 2, 0, 130)]
            .into_iter()
            .flat_map(|(kind, seed, base, better)| {
                [point(kind, seed, Strategy::Serial, base), point(kind, seed, Strategy::Combined, better)]
            })
            .collect();
        let curve = GainCurve::of(&points, Reading::Clip, (0, Strategy::Combined), (0, Strategy::Serial));
        assert!((curve.mean() - 0.6).abs() < 1e-9, "{curve:?}");
        let (low, high) = curve.spread();
        assert!((low - 0.55).abs() < 1e-9 && (high - 0.65).abs() < 1e-9, "{low} {high}");
        assert!(
            GainCurve::of(&points, Reading::Truncate, (0, Strategy::Combined), (0, Strategy::Serial)).gains.is_empty()
        );
    }
}
