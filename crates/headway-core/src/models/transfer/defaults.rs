//! What is assumed where nothing was measured, as a profile.
//!
//! Ordinary memory from 1 MiB on has the built-in figures of copies that learn ([`super::builtin`]), those of PCIe 5. The rest has the
//! shape of an H200 on PCIe 5 (single runs of small probes), made slower wherever it competes with the driver's own call. None of it may
//! be quoted.

use std::collections::BTreeMap;

use super::builtin::{Bus, NodeClass};
use super::{Curve, CurveKey, CurvePoint, Direction, HostMemory, Method, Profile, Stores, Tuning, WindowMapping};
use crate::models::index::EndpointId;
use crate::units::{Bytes, Nanos};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The node whose figures these are.
const NODE: NodeClass = NodeClass { bus: Bus::Pcie5, wide_stores: true };

/// The driver's call on ordinary memory below 1 MiB, and the copy engine from pinned memory, each way: (bytes, ns).
const PAGEABLE_IN: &[(u64, u64)] = &[(16, 5_600), (4 * KIB, 6_800), (64 * KIB, 22_100), (256 * KIB, 23_800)];
const PAGEABLE_OUT: &[(u64, u64)] = &[(16, 6_000), (4 * KIB, 7_100), (64 * KIB, 12_600), (256 * KIB, 27_000)];
const DMA: &[(u64, u64)] =
    &[(16, 5_600), (4 * KIB, 6_500), (64 * KIB, 8_300), (256 * KIB, 11_800), (MIB, 26_000), (64 * MIB, 1_216_000)];
const PEER: &[(u64, u64)] = &[(4 * KIB, 6_700), (MIB, 9_500), (64 * MIB, 180_000)];
/// Below this size `staged` wins on some nodes and loses on others (H100 and H200, 2026-11-25).
const STAGED_LEAST: u64 = 4 * MIB;
/// Window stores until they can be seen, at least twice what was measured.
const WINDOW_IN: &[(u64, u64)] = &[(64, 2_000), (4 * KIB, 2_500), (64 * KIB, 8_000), (256 * KIB, 30_000)];
const WINDOW_OUT: &[(u64, u64)] = &[(64, 2_500), (KIB, 3_500), (4 * KIB, 10_000), (64 * KIB, 150_000)];

/// How `staged` and `multipath` work where no tuning was measured: as in large copies that begin to learn. Of pinned memory only buffer
/// and chunks in flight count.
#[must_use]
pub fn default_tuning(direction: Direction, memory: HostMemory) -> Tuning {
    match memory {
        HostMemory::Pinned => Tuning { threads: 8, buffer: Bytes(8 * MIB), stores: Stores::Plain, in_flight: 4 },
        _ => NODE.tunings(direction, memory, Bytes(u64::MAX), u32::MAX)[0],
    }
}

/// The built-in profile: of GPU 0 with pinned and ordinary memory, and from GPU 0 to GPU 1. No tails, so nothing that needs a
/// bound is admitted on it.
///
/// Ordinary memory: the driver's call, `staged` from a few MiB on, window stores up to some 200 KiB and loads to some
/// 2 KiB. Pinned memory: the copy engine, and the window up to some 60 KiB in and 2 KiB out.
#[must_use]
pub fn defaults() -> Profile {
    let mut curves = BTreeMap::new();
    let mut add = |method, direction, memory, peer, curve: Curve| {
        let key = CurveKey { peer, ..CurveKey::alone(EndpointId(0), method, direction, memory) };
        curves.insert(key, curve);
    };
    let methods = [(Direction::H2d, PAGEABLE_IN, WINDOW_IN), (Direction::D2h, PAGEABLE_OUT, WINDOW_OUT)];
    for (direction, pageable, window) in methods {
        let figures = NODE.figures(direction, HostMemory::Touched);
        let from = |curve: &Curve, least| -> Vec<CurvePoint> {
            curve.points().iter().filter(|point| point.bytes.0 >= least).copied().collect()
        };
        let driver = pageable.iter().map(point).chain(from(&figures.driver, MIB)).collect();
        add(Method::Pageable, direction, HostMemory::Touched, None, ascending(driver));
        let staged = from(&figures.staged, STAGED_LEAST);
        add(Method::Staged, direction, HostMemory::Touched, None, ascending(staged));
        add(Method::Dma, direction, HostMemory::Pinned, None, set(DMA));
        for mapping in [WindowMapping::Gdrdrv, WindowMapping::Vulkan, WindowMapping::DmaBuf] {
            for memory in [HostMemory::Pinned, HostMemory::Touched] {
                add(Method::Window(Some(mapping)), direction, memory, None, set(window));
            }
        }
    }
    add(Method::Peer, Direction::Peer, HostMemory::Pinned, Some(EndpointId(1)), set(PEER));
    Profile { curves, ..Profile::default() }
}

const fn point(&(bytes, median): &(u64, u64)) -> CurvePoint {
    CurvePoint { bytes: Bytes(bytes), n: 0, median: Nanos(median), p99: Nanos::MAX, max: Nanos::MAX }
}

fn set(points: &[(u64, u64)]) -> Curve {
    ascending(points.iter().map(point).collect())
}

fn ascending(points: Vec<CurvePoint>) -> Curve {
    Curve::new(points).expect("the tables above ascend")
}
