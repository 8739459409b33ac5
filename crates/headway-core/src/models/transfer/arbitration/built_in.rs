//! Figures of `headway-lab who-waits`, kept in `bench/runs`, for GPUs of the same class.

use super::{Cut, EngineArbitration, SmallCopyWait};
use crate::models::transfer::Direction;
use crate::units::{Bytes, Nanos};

/// Chunk in bytes, rate of the bulk copy in parts per million, samples, median, 99th percentile and longest wait in ns.
type BuiltInWait = (u64, u64, u32, u64, u64, u64);

/// What is known of a class of GPUs.
struct Class {
    /// What the names of its GPUs begin with.
    name: &'static str,
    /// The kept run.
    run: &'static str,
    whole: BuiltInWait,
    /// What a whole copy takes alone, ns.
    time: u64,
    words: &'static [BuiltInWait],
    streams: &'static [BuiltInWait],
    /// Beside another process's bulk copies: samples, median, 99th percentile, longest.
    process: (u32, u64, u64, u64),
    /// Into the GPU.
    whole_in: BuiltInWait,
    time_in: u64,
}

const CLASSES: &[Class] = &[
    Class {
        name: "NVIDIA H100",
        run: "2026-11-24-h100x1-who-waits",
        whole: (1_073_741_824, 1_001_000, 109, 19_470_785, 19_817_262, 20_276_158),
        time: 19_490_158,
        words: &[
            (1_048_576, 798_100, 55_802, 24_133, 38_050, 179_929),
            (2_097_152, 871_900, 51_660, 43_111, 57_271, 193_764),
            (4_194_304, 932_000, 26_958, 80_844, 95_725, 203_091),
            (8_388_608, 965_200, 13_805, 156_459, 171_799, 259_718),
            (16_777_216, 983_100, 7038, 307_743, 323_355, 356_443),
            (33_554_432, 992_200, 3519, 610_275, 632_391, 683_115),
        ],
        streams: &[(4_194_304, 938_600, 27_115, 80_220, 94_356, 191_050)],
        process: (2000, 1_055_341, 1_066_167, 1_083_865),
        whole_in: (1_073_741_824, 998_700, 161_318, 12_621, 23_812, 144_983),
        time_in: 19_662_980,
    },
    Class {
        name: "NVIDIA H200",
        run: "2026-11-24-h200x1-who-waits",
        whole: (1_073_741_824, 1_000_100, 109, 19_407_391, 19_425_096, 19_427_762),
        time: 19_411_637,
        words: &[
            (1_048_576, 803_600, 55_996, 24_015, 32_337, 1_511_571),
            (2_097_152, 876_800, 52_973, 42_867, 52_907, 75_469),
            (4_194_304, 934_100, 27_333, 80_610, 91_861, 123_994),
            (8_388_608, 965_700, 13_914, 156_148, 167_796, 243_637),
            (16_777_216, 982_200, 7039, 307_217, 320_366, 354_276),
            (33_554_432, 991_600, 3519, 609_098, 623_885, 663_047),
        ],
        streams: &[(4_194_304, 938_000, 27_157, 80_058, 91_479, 119_687)],
        process: (2000, 1_055_181, 1_062_854, 1_080_704),
        whole_in: (1_073_741_824, 999_900, 179_741, 11_491, 16_153, 60_112),
        time_in: 19_341_169,
    },
];

fn cut((chunk, share_ppm, n, median, p99, max): BuiltInWait) -> Cut {
    Cut {
        chunk: Bytes(chunk),
        share_ppm,
        wait: SmallCopyWait { n, median: Nanos(median), p99: Nanos(p99), max: Nanos(max) },
    }
}

/// What is known of a GPU by its driver's name, and the kept run that it is from; `None` = nothing. Copies of less than 1 GiB, other
/// hosts and other drivers may differ: `headway measure` asks this one.
#[must_use]
pub fn built_in(name: &str, direction: Direction) -> Option<(EngineArbitration, &'static str)> {
    let class = CLASSES.iter().find(|class| name.starts_with(class.name))?;
    let known = match direction {
        Direction::D2h => {
            let (n, median, p99, max) = class.process;
            EngineArbitration {
                whole: cut(class.whole),
                time: Nanos(class.time),
                words: class.words.iter().copied().map(cut).collect(),
                streams: class.streams.iter().copied().map(cut).collect(),
                process: Some(SmallCopyWait { n, median: Nanos(median), p99: Nanos(p99), max: Nanos(max) }),
            }
        }
        Direction::H2d => EngineArbitration {
            whole: cut(class.whole_in),
            time: Nanos(class.time_in),
            words: Vec::new(),
            streams: Vec::new(),
            process: None,
        },
        Direction::Peer => return None,
    };
    Some((known, class.run))
}
