//! What is assumed where nothing was measured.
//!
//! The shape is that of an H200 on PCIe 5.0 (single runs of small probes), made slower wherever it competes with the
//! driver's own call: a method is used only where it wins by far. None of it may be quoted.

use std::collections::BTreeMap;

use super::{Curve, Direction, HostMemory, Key, Load, Mapping, Method, Point, Profile, Stores, Tuning};
use crate::files::machine::EndpointId;
use crate::units::{Bytes, Nanos, Rate};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The driver's call on ordinary memory and the copy engine from pinned memory, each way: (bytes, ns).
const PAGEABLE_IN: &[(u64, u64)] = &[
    (16, 5_600),
    (4 * KIB, 6_800),
    (64 * KIB, 22_100),
    (256 * KIB, 23_800),
    (MIB, 71_800),
    (4 * MIB, 251_200),
    (16 * MIB, 942_500),
    (64 * MIB, 4_660_300),
    (256 * MIB, 25_811_000),
    (1024 * MIB, 104_247_000),
];
const PAGEABLE_OUT: &[(u64, u64)] = &[
    (16, 6_000),
    (4 * KIB, 7_100),
    (64 * KIB, 12_600),
    (256 * KIB, 27_000),
    (MIB, 85_900),
    (4 * MIB, 251_200),
    (16 * MIB, 902_000),
    (64 * MIB, 3_513_500),
    (256 * MIB, 13_765_900),
    (1024 * MIB, 55_634_300),
];
const DMA: &[(u64, u64)] =
    &[(16, 5_600), (4 * KIB, 6_500), (64 * KIB, 8_300), (256 * KIB, 11_800), (MIB, 26_000), (64 * MIB, 1_216_000)];
const PEER: &[(u64, u64)] = &[(4 * KIB, 6_700), (MIB, 9_500), (64 * MIB, 180_000)];
/// Window stores until they can be seen, at least twice what was measured; loads likewise.
const WINDOW_IN: &[(u64, u64)] = &[(64, 2_000), (4 * KIB, 2_500), (64 * KIB, 8_000), (256 * KIB, 30_000)];
const WINDOW_OUT: &[(u64, u64)] = &[(64, 2_500), (KIB, 3_500), (4 * KIB, 10_000), (64 * KIB, 150_000)];
/// Staging: a start, then little more than half of the rate measured.
const STAGED_START: Nanos = Nanos(500_000);
const STAGED_RATE: Rate = Rate(30_000_000_000);

/// How `staged` and `multipath` work where no tuning was measured. Of pinned memory only buffer and chunks in flight count.
#[must_use]
pub const fn default_tuning(direction: Direction, memory: HostMemory) -> Tuning {
    let (threads, buffer, stores) = match direction {
        Direction::H2d | Direction::Peer => (8, 4 * MIB, Stores::Plain),
        Direction::D2h => (4, 8 * MIB, Stores::NonTemporal),
    };
    match memory {
        HostMemory::Pinned => Tuning { threads, buffer: Bytes(8 * MIB), stores, in_flight: 4 },
        // It is the first touch of pages that takes long, and threads share it.
        HostMemory::Untouched => Tuning { threads: 12, buffer: Bytes(16 * MIB), stores: Stores::Plain, in_flight: 2 },
        _ => Tuning { threads, buffer: Bytes(buffer), stores, in_flight: 3 },
    }
}

/// The built-in profile: of GPU 0 with pinned and warm memory, and from GPU 0 to GPU 1. No tails, so nothing that needs a
/// bound is admitted on it.
///
/// Ordinary memory: the driver's call, `staged` from above 32 MiB on, window stores up to some 200 KiB and loads to some
/// 2 KiB. Pinned memory: the copy engine, and the window up to some 60 KiB in and 2 KiB out.
#[must_use]
pub fn defaults() -> Profile {
    let mut curves = BTreeMap::new();
    let mut add = |method, direction, memory, peer, points: &[(u64, u64)]| {
        let key = Key { gpu: EndpointId(0), peer, method, direction, memory, load: Load::Alone, active: 1, pieces: 1 };
        curves.insert(key, set(points));
    };
    let staged: Vec<(u64, u64)> = (0..=10)
        .map(|exponent| MIB << exponent)
        .map(|bytes| (bytes, STAGED_START.saturating_add(STAGED_RATE.time_for(Bytes(bytes))).0))
        .collect();
    let methods = [(Direction::H2d, PAGEABLE_IN, WINDOW_IN), (Direction::D2h, PAGEABLE_OUT, WINDOW_OUT)];
    for (direction, pageable, window) in methods {
        add(Method::Pageable, direction, HostMemory::Touched, None, pageable);
        add(Method::Staged, direction, HostMemory::Touched, None, &staged);
        add(Method::Dma, direction, HostMemory::Pinned, None, DMA);
        for mapping in [Mapping::Gdrdrv, Mapping::Vulkan, Mapping::DmaBuf] {
            for memory in [HostMemory::Pinned, HostMemory::Touched] {
                add(Method::Window(Some(mapping)), direction, memory, None, window);
            }
        }
    }
    add(Method::Peer, Direction::Peer, HostMemory::Pinned, Some(EndpointId(1)), PEER);
    Profile { curves, ..Profile::default() }
}

fn set(points: &[(u64, u64)]) -> Curve {
    let point =
        |&(bytes, median)| Point { bytes: Bytes(bytes), n: 0, median: Nanos(median), p99: Nanos::MAX, max: Nanos::MAX };
    Curve::new(points.iter().map(point).collect()).expect("the tables above ascend")
}
