//! Fujii, Azumi, Nishio, Kato, Edahiro 2013 ("Data Transfer Matters of Real-Time GPU Computing"): the GeForce GTX 480 under Gdev.
//!
//! **A reconstruction.** The values of the paper's figures are not available. [`Constants::TEXT`] was chosen so that every
//! statement of the text holds ([`statements`]); it carries no other authority. Basis: text.

mod statements;

use std::collections::BTreeMap;

use headway_core::models::transfer::{Direction, Method, ResidentShape, tail};
use headway_core::units::{Bytes, Nanos, PPM, Rate};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

pub use statements::{StatementResult, StatementVerdict, name, statements};

/// Largest piece that a microcontroller moves at a time (III).
pub const PIECE: Bytes = Bytes(256);
/// What MEMWND makes visible at a time (III).
pub const MEMORY_WINDOW: Bytes = Bytes(4 << 20);

/// Standard DMA.
pub const DMA: Method = Method::Dma;
/// Memory-mapped read and write of the whole device memory.
pub const IORW: Method = Method::Window(None);
/// Memory-mapped read and write through a movable range of 4 MB.
pub const MEMWND: Method = Method::PagedWindow(None);
/// The microcontroller of the hub.
pub const HUB: Method = Method::Resident(Some(ResidentShape::Hub));
/// The microcontroller of one graphics processing cluster.
pub const GPC: Method = Method::Resident(Some(ResidentShape::Gpc));
/// Those of four, in parallel.
pub const GPC4: Method = Method::Resident(Some(ResidentShape::Gpc4));
/// All methods of the paper.
pub const METHODS: [Method; 6] = [DMA, IORW, MEMWND, HUB, GPC, GPC4];
/// Both directions.
pub const DIRECTIONS: [Direction; 2] = [Direction::H2d, Direction::D2h];

/// Sizes: powers of two from 16 B (the paper's smallest) to 64 MiB (not stated).
pub fn grid() -> impl Iterator<Item = Bytes> {
    (4..=26).map(|exponent| Bytes(1 << exponent))
}

/// The scheduling class of the task that transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransferClass {
    /// `SCHED_FIFO`.
    RealTime,
    /// `SCHED_OTHER`.
    Normal,
}

/// What else runs on the CPUs (IV-B).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stress {
    /// No other program.
    Alone,
    /// An extremely high CPU load.
    Cpu,
    /// A task that eats host memory.
    Memory,
    /// Many processes that exchange messages through pipes (hackbench).
    Pipes,
    /// All of these at once, which the paper does not have.
    Together,
}

impl Stress {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Alone, Self::Cpu, Self::Memory, Self::Pipes, Self::Together];
}

/// One transfer at a time: the situation of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Single {
    pub method: Method,
    pub direction: Direction,
    pub bytes: Bytes,
    /// Class of the task.
    pub class: TransferClass,
    /// What else runs.
    pub stress: Stress,
}

/// Two transfers of equal size that start together, by real-time tasks alone: their makespan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// The methods, the smaller first.
    pub methods: (Method, Method),
    /// Direction of both.
    pub direction: Direction,
    /// Size of each.
    pub bytes: Bytes,
}

impl Pair {
    /// The pair of `first` and `second`, in either order.
    #[must_use]
    pub fn new(first: Method, second: Method, direction: Direction, bytes: Bytes) -> Self {
        Self { methods: (first.min(second), first.max(second)), direction, bytes }
    }
}

/// What some samples come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Samples; 0 = a model's figures, of which [`Stat::mean`] stands for all but the largest.
    pub n: u32,
    /// The first sample, which most papers report alone.
    pub first: Nanos,
    /// Half of them took at most this long.
    pub median: Nanos,
    /// Mean, rounded up.
    pub mean: Nanos,
    /// 99 % of them took at most this long; `None` = they are too few.
    pub p99: Option<Nanos>,
    pub max: Nanos,
}

impl Stat {
    /// A model's mean and largest.
    #[must_use]
    pub const fn of_model(mean: Nanos, max: Nanos) -> Self {
        Self { n: 0, first: mean, median: mean, mean, p99: None, max }
    }

    /// The figures of `samples`, in the order in which they were taken; `None` without any.
    #[must_use]
    pub fn of(samples: &[Nanos]) -> Option<Self> {
        let first = *samples.first()?;
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let max = *sorted.last()?;
        let rank = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
        let total: u128 = samples.iter().map(|sample| u128::from(sample.0)).sum();
        let mean = u64::try_from(total.div_ceil(samples.len() as u128)).unwrap_or(u64::MAX);
        let n = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
        Some(Self { n, first, median: rank(50), mean: Nanos(mean), p99: tail(n.into(), rank(99)), max })
    }
}

/// Everything that the statements of the paper are about, simulated or measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferStudy {
    /// One transfer at a time.
    pub singles: BTreeMap<Single, Stat>,
    /// Two at a time.
    pub pairs: BTreeMap<Pair, Stat>,
}

/// The constants of the reconstruction. Mean cost of `s` bytes: `f + s / r`; of microcontrollers
/// `f + ceil(ceil(s / 256) / u) p`; of MEMWND that of IORW and `w` for every 4 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants {
    /// DMA: set-up `f`, in and out.
    pub dma_setup: [Nanos; 2],
    /// DMA: rate `r`, in and out.
    pub dma_rate: [Rate; 2],
    /// IORW: `f`, in and out.
    pub iorw_setup: [Nanos; 2],
    /// IORW: `r`, in and out.
    pub iorw_rate: [Rate; 2],
    /// HUB and GPC: `f`.
    pub micro_setup: Nanos,
    /// GPC4: `f`.
    pub gpc4_setup: Nanos,
    /// One piece of a microcontroller: `p`.
    pub piece: Nanos,
    /// GPC4: pieces at a time, `u`.
    pub units: u64,
    /// One move of MEMWND: `w`.
    pub window_move: Nanos,
    /// Added to DMA where it is one of two transfers: `q`.
    pub shared_dma: Nanos,
    /// Largest over mean, parts per million.
    pub max_ppm: u64,
    /// Largest over mean of the set-up of DMA in.
    pub dma_in_setup_max_ppm: u64,
    /// Set-up of DMA by a real-time task under CPU load or pipes, over that alone, parts per million.
    pub dma_setup_loaded_ppm: u64,
    /// A normal task under CPU load or pipes waits this long for the CPU.
    pub normal_wait: Nanos,
    /// And its CPU-driven methods take this many times as long.
    pub normal_slowdown: u64,
}

impl Constants {
    /// The constants under which every statement of the text holds.
    pub const TEXT: Self = Self {
        dma_setup: [Nanos(50_000), Nanos(50_000)],
        dma_rate: [Rate(5_000_000_000), Rate(500_000_000)],
        iorw_setup: [Nanos(1_000), Nanos(40_000)],
        iorw_rate: [Rate(4_880_000_000), Rate(64_000_000)],
        micro_setup: Nanos(42_000),
        gpc4_setup: Nanos(50_000),
        piece: Nanos(4_200),
        units: 4,
        window_move: Nanos(2_000),
        shared_dma: Nanos(250_000),
        max_ppm: 1_020_000,
        dma_in_setup_max_ppm: 1_500_000,
        dma_setup_loaded_ppm: 900_000,
        normal_wait: Nanos(10_000_000),
        normal_slowdown: 100,
    };

    /// Mean and worst case of one transfer.
    #[must_use]
    pub fn single(&self, single: Single) -> Stat {
        let Single { method, direction, bytes, class, stress } = single;
        let busy = matches!(stress, Stress::Cpu | Stress::Pipes | Stress::Together);
        let setup_ppm =
            if method == DMA && busy && class == TransferClass::RealTime { self.dma_setup_loaded_ppm } else { PPM };
        let (setup, rest) = self.parts(method, direction, bytes);
        let setup = scaled(setup, setup_ppm);
        let setup_max =
            if method == DMA && direction == Direction::H2d { scaled(setup, self.dma_in_setup_max_ppm) } else { setup };
        let delayed = |cost: Nanos| match (busy && class == TransferClass::Normal, method == DMA) {
            (false, _) => cost,
            (true, true) => self.normal_wait + cost,
            (true, false) => self.normal_wait + cost * self.normal_slowdown,
        };
        Stat::of_model(delayed(setup + rest), scaled(delayed(setup_max + rest), self.max_ppm))
    }

    /// Mean and worst case of the makespan of two transfers.
    #[must_use]
    pub fn pair(&self, pair: Pair) -> Stat {
        let Pair { methods: (first, second), direction, bytes } = pair;
        let alone = |method| {
            self.single(Single { method, direction, bytes, class: TransferClass::RealTime, stress: Stress::Alone })
        };
        let (a, b) = (alone(first), alone(second));
        // Once, if both are DMA.
        let [qa, qb] = match (first == DMA, second == DMA) {
            (true, _) => [self.shared_dma, Nanos::ZERO],
            (false, true) => [Nanos::ZERO, self.shared_dma],
            (false, false) => [Nanos::ZERO; 2],
        };
        let micro = |method| matches!(method, Method::Resident(_));
        let overlaps = micro(first) != micro(second);
        let join = |a: Nanos, b: Nanos| if overlaps { a.max(b) } else { a + b };
        let max = |q: Nanos| scaled(q, self.max_ppm);
        Stat::of_model(join(a.mean + qa, b.mean + qb), join(a.max + max(qa), b.max + max(qb)))
    }

    /// The longest that a more urgent transfer waits for one that has begun (III, V): DMA is never preempted,
    /// memory-mapped access anywhere, a microcontroller between two pieces.
    #[must_use]
    pub fn blocking(&self, method: Method, direction: Direction, bytes: Bytes) -> Nanos {
        match method {
            Method::Window(_) | Method::PagedWindow(_) => Nanos::ZERO,
            Method::Resident(_) => self.piece,
            _ => {
                self.single(Single { method, direction, bytes, class: TransferClass::RealTime, stress: Stress::Alone })
                    .max
            }
        }
    }

    /// Set-up and the rest of the mean cost.
    fn parts(&self, method: Method, direction: Direction, bytes: Bytes) -> (Nanos, Nanos) {
        let at = usize::from(direction == Direction::D2h);
        match method {
            DMA => (self.dma_setup[at], self.dma_rate[at].time_for(bytes)),
            GPC4 => (self.gpc4_setup, self.piece * bytes.0.div_ceil(PIECE.0).div_ceil(self.units)),
            MEMWND => {
                let moves = self.window_move * bytes.0.div_ceil(MEMORY_WINDOW.0);
                (self.iorw_setup[at], self.iorw_rate[at].time_for(bytes) + moves)
            }
            Method::Resident(_) => (self.micro_setup, self.piece * bytes.0.div_ceil(PIECE.0)),
            _ => (self.iorw_setup[at], self.iorw_rate[at].time_for(bytes)),
        }
    }

    /// The model itself on the whole grid.
    #[must_use]
    pub fn exact(&self) -> TransferStudy {
        self.study(|stat| stat)
    }

    /// `n` simulated samples of everything, drawn from `seed` uniformly in `[2 mean - max, max]`.
    #[must_use]
    pub fn simulated(&self, seed: u64, n: usize) -> TransferStudy {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        self.study(|stat| {
            let samples = draw(&mut random, stat, n);
            Stat::of(&samples).unwrap_or(stat)
        })
    }

    fn study(&self, mut look: impl FnMut(Stat) -> Stat) -> TransferStudy {
        let mut study = TransferStudy::default();
        for bytes in grid() {
            for direction in DIRECTIONS {
                for (at, method) in METHODS.into_iter().enumerate() {
                    for class in [TransferClass::RealTime, TransferClass::Normal] {
                        for stress in Stress::ALL {
                            let single = Single { method, direction, bytes, class, stress };
                            study.singles.insert(single, look(self.single(single)));
                        }
                    }
                    for other in &METHODS[at..] {
                        let pair = Pair::new(method, *other, direction, bytes);
                        study.pairs.insert(pair, look(self.pair(pair)));
                    }
                }
            }
        }
        study
    }
}

/// `n` draws, uniform in `[2 mean - max, max]`.
fn draw(random: &mut Pcg64Mcg, stat: Stat, n: usize) -> Vec<Nanos> {
    let low = (stat.mean.0 * 2).saturating_sub(stat.max.0);
    let width = u128::from(stat.max.0 - low) + 1;
    (0..n).map(|_| Nanos(low + ((u128::from(random.next_u64()) * width) >> 64) as u64)).collect()
}

/// `time` in this many parts per million, rounded up.
fn scaled(time: Nanos, ppm: u64) -> Nanos {
    Nanos(u64::try_from((u128::from(time.0) * u128::from(ppm)).div_ceil(u128::from(PPM))).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_of_the_text_holds_in_the_model() {
        let study = Constants::TEXT.exact();
        let broken: Vec<_> =
            statements(&study, 0).into_iter().filter(|f| f.verdict != StatementVerdict::Holds).collect();
        assert_eq!(broken, []);
    }

    #[test]
    fn every_statement_of_the_text_holds_in_simulated_samples() {
        for seed in 0..5 {
            let broken: Vec<_> = statements(&Constants::TEXT.simulated(seed, 1_000), 5)
                .into_iter()
                .filter(|finding| finding.verdict != StatementVerdict::Holds)
                .collect();
            assert_eq!(broken, [], "seed {seed}");
        }
    }

    #[test]
    fn figures_keep_the_first_sample_and_have_a_99th_percentile_of_a_hundred_only() {
        let samples = |n: u64| -> Vec<Nanos> { (0..n).map(|at| Nanos((at * 37 + 60) % n + 1)).collect() };
        let few = Stat::of(&samples(99)).unwrap();
        assert_eq!((few.n, few.first, few.median, few.p99, few.max), (99, Nanos(61), Nanos(50), None, Nanos(99)));
        let enough = Stat::of(&samples(101)).unwrap();
        assert_eq!((enough.n, enough.median, enough.p99, enough.max), (101, Nanos(51), Some(Nanos(100)), Nanos(101)));
        assert_eq!(Stat::of(&[]), None);
    }

    #[test]
    fn simulated_samples_are_those_of_the_seed() {
        assert_eq!(Constants::TEXT.simulated(7, 3), Constants::TEXT.simulated(7, 3));
        assert_ne!(Constants::TEXT.simulated(7, 3), Constants::TEXT.simulated(8, 3));
    }

    #[test]
    fn some_statement_breaks_when_any_constant_is_moved_far_enough() {
        type Change = (&'static str, fn(&mut Constants));
        let changes: [Change; 22] = [
            ("dma f in", |c| c.dma_setup[0] = Nanos(500)),
            ("dma f out", |c| c.dma_setup[1] = Nanos(10_000)),
            ("dma r in", |c| c.dma_rate[0] = Rate(4_000_000_000)),
            ("dma r out", |c| c.dma_rate[1] = Rate(5_000_000_000)),
            ("iorw f in", |c| c.iorw_setup[0] = Nanos(60_000)),
            ("iorw f out", |c| c.iorw_setup[1] = Nanos(1_000)),
            ("iorw r in", |c| c.iorw_rate[0] = Rate(1_000_000_000)),
            ("iorw r out", |c| c.iorw_rate[1] = Rate(640_000_000)),
            ("micro f low", |c| c.micro_setup = Nanos(100)),
            ("micro f high", |c| c.micro_setup = Nanos(90_000)),
            ("gpc4 f low", |c| c.gpc4_setup = Nanos(42_000)),
            ("gpc4 f high", |c| c.gpc4_setup = Nanos(200_000)),
            ("p low", |c| c.piece = Nanos(42)),
            ("p high", |c| c.piece = Nanos(42_000)),
            ("u", |c| c.units = 1),
            ("q low", |c| c.shared_dma = Nanos::ZERO),
            ("q high", |c| c.shared_dma = Nanos(2_500_000)),
            ("max", |c| c.max_ppm = 1_200_000),
            ("max of dma f in", |c| c.dma_in_setup_max_ppm = PPM),
            ("dma f loaded", |c| c.dma_setup_loaded_ppm = PPM),
            ("wait", |c| c.normal_wait = Nanos(100_000)),
            ("slowdown", |c| c.normal_slowdown = 10),
        ];
        for (name, change) in changes {
            let mut constants = Constants::TEXT;
            change(&mut constants);
            let held =
                statements(&constants.exact(), 0).iter().all(|finding| finding.verdict == StatementVerdict::Holds);
            assert!(!held, "every statement still holds with another {name}");
        }
    }

    #[test]
    fn what_was_not_measured_is_neither_held_nor_broken() {
        assert!(statements(&TransferStudy::default(), 0).iter().all(|f| f.verdict == StatementVerdict::NotMeasured));
    }

    #[test]
    fn an_urgent_transfer_waits_for_a_whole_dma_but_only_for_a_piece_of_a_microcontroller() {
        let c = Constants::TEXT;
        let large = Bytes(16 << 20);
        assert!(c.blocking(DMA, Direction::D2h, large) > Nanos(30_000_000));
        assert_eq!(c.blocking(IORW, Direction::D2h, large), Nanos::ZERO);
        assert_eq!(c.blocking(GPC4, Direction::D2h, large), c.piece);
    }
}
