//! What is assumed of copies of ordinary memory on a node where nothing was measured, by class of node.
//!
//! The figures of PCIe 5 are medians of kept runs, rounded (`bench/runs`: nine runs `*-h200x1-transfers*` of 2026-11-22 and
//! `2026-11-22-h100x1-transfers` for 1 MiB to 1 GiB; `2026-11-23-h200x1-large-copies-words` for fresh memory on huge pages). Those of
//! older buses are **not measured**: the same, but never faster than four fifths of what the bus carries.

use serde::{Deserialize, Serialize};

use super::{Curve, CurvePoint, Direction, HostMemory, Stores, Tuning};
use crate::units::{Bytes, Nanos, Rate};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The bus between host and GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bus {
    /// PCIe 3 with 16 lanes, or less.
    Pcie3,
    /// PCIe 4 with 16 lanes.
    Pcie4,
    /// PCIe 5 with 16 lanes, or more.
    Pcie5,
}

impl Bus {
    /// Of a PCIe generation.
    #[must_use]
    pub const fn of_generation(generation: u32) -> Option<Self> {
        match generation {
            0 => None,
            1..=3 => Some(Self::Pcie3),
            4 => Some(Self::Pcie4),
            _ => Some(Self::Pcie5),
        }
    }

    /// Of what the driver calls the GPU, by the generation that this model has.
    #[must_use]
    pub fn of_gpu(name: &str) -> Option<Self> {
        const FIFTH: &[&str] = &["H100", "H200", "H800", "H20", "B100", "B200", "B300", "RTX 50"];
        const FOURTH: &[&str] = &["A100", "A800", "A10", "A30", "A40", "L40", "L4", "L20", "RTX 30", "RTX 40", "RTX A"];
        const THIRD: &[&str] = &["V100", "T4", "P100", "P40", "TITAN", "RTX 20", "Quadro"];
        let has = |names: &[&str]| names.iter().any(|model| name.contains(model));
        [(FIFTH, Self::Pcie5), (FOURTH, Self::Pcie4), (THIRD, Self::Pcie3)]
            .into_iter()
            .find(|(names, _)| has(names))
            .map(|(_, bus)| bus)
    }

    /// What staged copies reach at most here.
    const fn staged_rate(self) -> Rate {
        match self {
            Self::Pcie3 => Rate(10_000_000_000),
            Self::Pcie4 => Rate(20_000_000_000),
            Self::Pcie5 => Rate(60_000_000_000),
        }
    }

    /// What any copy reaches at most.
    const fn rate(self) -> Rate {
        match self {
            Self::Pcie3 => Rate(12_500_000_000),
            Self::Pcie4 => Rate(25_000_000_000),
            Self::Pcie5 => Rate(60_000_000_000),
        }
    }
}

/// What decides on the built-in figures of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeClass {
    pub bus: Bus,
    /// The CPU stores 64 bytes past the cache at a time (AVX-512).
    pub wide_stores: bool,
}

impl std::fmt::Display for NodeClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bus = match self.bus {
            Bus::Pcie3 => "PCIe 3, not measured",
            Bus::Pcie4 => "PCIe 4, not measured",
            Bus::Pcie5 => "PCIe 5, as H100 and H200",
        };
        write!(f, "{bus}, CPUs with{} AVX-512", if self.wide_stores { "" } else { "out" })
    }
}

/// The driver's own call, and `staged` with the built-in tuning: (bytes, ns).
const DRIVER_IN: &[(u64, u64)] = &[
    (MIB, 85_000),
    (2 * MIB, 138_000),
    (4 * MIB, 256_000),
    (8 * MIB, 490_000),
    (16 * MIB, 1_000_000),
    (32 * MIB, 2_000_000),
    (64 * MIB, 4_300_000),
    (256 * MIB, 29_000_000),
    (1024 * MIB, 112_000_000),
];
const STAGED_IN: &[(u64, u64)] = &[
    (MIB, 110_000),
    (2 * MIB, 145_000),
    (4 * MIB, 210_000),
    (8 * MIB, 300_000),
    (16 * MIB, 510_000),
    (32 * MIB, 850_000),
    (64 * MIB, 1_420_000),
    (256 * MIB, 5_300_000),
    (1024 * MIB, 20_400_000),
];
const DRIVER_OUT: &[(u64, u64)] = &[
    (MIB, 97_000),
    (2 * MIB, 166_000),
    (4 * MIB, 285_000),
    (8 * MIB, 530_000),
    (16 * MIB, 1_020_000),
    (64 * MIB, 3_900_000),
    (256 * MIB, 15_500_000),
    (1024 * MIB, 62_000_000),
];
const STAGED_OUT: &[(u64, u64)] = &[
    (MIB, 80_000),
    (2 * MIB, 120_000),
    (4 * MIB, 152_000),
    (8 * MIB, 230_000),
    (16 * MIB, 410_000),
    (64 * MIB, 1_430_000),
    (256 * MIB, 5_120_000),
    (1024 * MIB, 20_000_000),
];
const DRIVER_FRESH: &[(u64, u64)] = &[
    (MIB, 610_000),
    (2 * MIB, 1_300_000),
    (4 * MIB, 2_600_000),
    (16 * MIB, 10_000_000),
    (64 * MIB, 41_000_000),
    (256 * MIB, 160_000_000),
    (1024 * MIB, 650_000_000),
];
const STAGED_FRESH: &[(u64, u64)] = &[
    (MIB, 270_000),
    (2 * MIB, 430_000),
    (4 * MIB, 690_000),
    (16 * MIB, 1_400_000),
    (64 * MIB, 3_900_000),
    (256 * MIB, 13_000_000),
    (1024 * MIB, 38_000_000),
];

/// What a copy takes by the driver's own call, and by `staged` with the built-in tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    pub driver: Curve,
    pub staged: Curve,
}

impl NodeClass {
    /// The smallest copy of ordinary memory that is made by another method than the driver's where nothing else is known.
    pub const LEAST: Bytes = Bytes(MIB);

    /// The figures of copies of ordinary memory; of files those of warm memory.
    #[must_use]
    pub fn figures(self, direction: Direction, memory: HostMemory) -> BuiltIn {
        let (driver, staged) = match (direction, memory) {
            (Direction::D2h, HostMemory::Untouched) => (DRIVER_FRESH, STAGED_FRESH),
            (Direction::D2h, _) => (DRIVER_OUT, STAGED_OUT),
            (Direction::H2d | Direction::Peer, _) => (DRIVER_IN, STAGED_IN),
        };
        BuiltIn { driver: curve(driver, self.bus.rate()), staged: curve(staged, self.bus.staged_rate()) }
    }

    /// Tunings of `staged` that are worth trying for copies of `bytes`, no two alike; the first is the one to begin with. At most
    /// `threads_max` threads.
    ///
    /// `bench/runs/2026-11-22-h200x1-transfers-none-behind/tunings.csv` and that of `2026-11-22-h100x1-transfers` (512 MiB): in, 6
    /// threads reach 53.4 and 43.7 GB/s, 8 threads 53.7 and 52.1; out, 3 threads 52.5 and 40.5, 4 threads 54.0 and 49.4, 6 threads
    /// 54.7 and 53.7. A short program makes few copies, all by the first tuning, so the first one must be slow on no node: 64 MiB in
    /// took 2.1 ms with eight threads and 4.6 ms with four on an H100 (`2026-11-25-h100x1-learns-cho-queues`). With one to three threads
    /// stores past the cache are no slower on the way in.
    #[must_use]
    pub fn tunings(self, direction: Direction, memory: HostMemory, bytes: Bytes, threads_max: u32) -> Vec<Tuning> {
        let (threads, buffer, stores): (&[u32], u64, Stores) = match (direction, memory) {
            // It is the first touch of pages that takes long, and threads share it.
            (Direction::D2h, HostMemory::Untouched) if bytes.0 < 4 * MIB => (&[6, 8, 4], 16 * MIB, Stores::Plain),
            (Direction::D2h, HostMemory::Untouched) => (&[12, 8, 14], 16 * MIB, Stores::Plain),
            (Direction::D2h, _) if self.wide_stores => (&[4, 3, 6], 8 * MIB, Stores::NonTemporal),
            (Direction::D2h, _) => (&[6, 4, 8], 4 * MIB, Stores::Plain),
            // A chunk has at most four parts of 128 KiB: more threads would be woken for nothing.
            (Direction::H2d | Direction::Peer, _) if bytes.0 < 4 * MIB => (&[4, 3, 6], 8 * MIB, Stores::Plain),
            (Direction::H2d | Direction::Peer, _) => (&[8, 6, 4], 8 * MIB, Stores::Plain),
        };
        let limit = threads_max.max(1);
        let tuning =
            |threads: u32, stores| Tuning { threads: threads.min(limit), buffer: Bytes(buffer), stores, in_flight: 3 };
        let mut tunings: Vec<Tuning> = Vec::with_capacity(threads.len() + 1);
        let into = direction != Direction::D2h;
        let few = (into && limit < 4).then(|| tuning(limit, Stores::NonTemporal));
        for tuning in threads.iter().map(|threads| tuning(*threads, stores)).chain(few) {
            if !tunings.contains(&tuning) {
                tunings.push(tuning);
            }
        }
        tunings
    }
}

/// Through `points`, but no faster than `rate`; below the first point in proportion, and not below 64 KiB.
fn curve(points: &[(u64, u64)], rate: Rate) -> Curve {
    let (first, time) = points[0];
    let least = (64 * KIB, time * 64 * KIB / first + 10_000);
    let point = |&(bytes, median): &(u64, u64)| {
        let median = Nanos(median).max(rate.time_for(Bytes(bytes)));
        CurvePoint { bytes: Bytes(bytes), n: 0, median, p99: Nanos::MAX, max: Nanos::MAX }
    };
    Curve::new([least].iter().chain(points).map(point).collect()).expect("the tables above ascend")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::transfer::Statistic;

    const CLASSES: [NodeClass; 4] = [
        NodeClass { bus: Bus::Pcie3, wide_stores: false },
        NodeClass { bus: Bus::Pcie4, wide_stores: true },
        NodeClass { bus: Bus::Pcie5, wide_stores: false },
        NodeClass { bus: Bus::Pcie5, wide_stores: true },
    ];
    const KINDS: [(Direction, HostMemory); 3] = [
        (Direction::H2d, HostMemory::Touched),
        (Direction::D2h, HostMemory::Touched),
        (Direction::D2h, HostMemory::Untouched),
    ];

    #[test]
    fn no_copy_is_said_to_be_faster_than_its_bus() {
        for class in CLASSES {
            for (direction, memory) in KINDS {
                let figures = class.figures(direction, memory);
                for exponent in 20..=34 {
                    let bytes = Bytes(1 << exponent);
                    for (curve, rate) in
                        [(&figures.driver, class.bus.rate()), (&figures.staged, class.bus.staged_rate())]
                    {
                        // Beyond the last point each GiB may be rounded down by a nanosecond.
                        let rounded = Nanos(1 + (bytes.0 >> 30));
                        let time = curve.at(bytes, Statistic::Median).saturating_add(rounded);
                        assert!(time >= rate.time_for(bytes), "{class} {bytes}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_tuning_has_more_threads_than_allowed_and_none_comes_twice() {
        for class in CLASSES {
            for (direction, memory) in KINDS {
                for threads_max in 0..20 {
                    for bytes in [MIB, 3 * MIB, 64 * MIB] {
                        let tunings = class.tunings(direction, memory, Bytes(bytes), threads_max);
                        assert!(!tunings.is_empty() && tunings.len() <= 4);
                        assert!(tunings.iter().all(|tuning| tuning.threads <= threads_max.max(1)), "{tunings:?}");
                        assert!((1..tunings.len()).all(|at| !tunings[..at].contains(&tunings[at])), "{tunings:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn on_the_measured_bus_eight_threads_go_in_and_four_out() {
        let class = NodeClass { bus: Bus::Pcie5, wide_stores: true };
        let first = |direction| class.tunings(direction, HostMemory::Touched, Bytes(1 << 30), 16)[0].threads;
        assert_eq!((first(Direction::H2d), first(Direction::D2h)), (8, 4));
    }

    #[test]
    fn gpus_are_known_by_name_or_by_generation() {
        let named =
            ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA Whatever"].map(Bus::of_gpu);
        assert_eq!(named, [Some(Bus::Pcie5), Some(Bus::Pcie4), Some(Bus::Pcie3), None]);
        assert_eq!([0, 2, 4, 6].map(Bus::of_generation), [None, Some(Bus::Pcie3), Some(Bus::Pcie4), Some(Bus::Pcie5)]);
    }
}
