//! What a profile was measured on: driver, GPUs, links, CPUs.

use std::sync::Arc;

use headway_core::models::transfer::Stamp;
use headway_cuda::Nvml;
use headway_device::gpu::Gpu;
use headway_os::affinity;

/// What makes a profile of this node stale when it changes.
pub fn stamp(gpus: &[Arc<dyn Gpu>], date: String) -> Stamp {
    let report = match gpus.first().map(|gpu| gpu.description().source) {
        Some(headway_device::DeviceSource::Cuda) => Nvml::system().and_then(|nvml| nvml.report()).ok(),
        _ => None,
    };
    let unknown = || "unknown".to_owned();
    let pcie = |uuid: &str| {
        let gpu = report.iter().flat_map(|report| &report.gpus).find(|gpu| gpu.uuid == uuid);
        let link = gpu.and_then(|gpu| gpu.pcie_max);
        link.map_or_else(unknown, |link| format!("{}.0 x{}", link.generation, link.width))
    };
    let uuids: Vec<String> = gpus
        .iter()
        .map(|gpu| gpu.description().uuid.clone().unwrap_or_else(|| gpu.description().name.clone()))
        .collect();
    Stamp {
        source: gpus.first().map_or("emu", |gpu| gpu.description().source.label()).to_owned(),
        driver: report.as_ref().map_or_else(unknown, |report| report.driver_version.clone()),
        pcie: uuids.iter().map(|uuid| pcie(uuid)).collect(),
        gpus: uuids,
        cpus: affinity::allowed().map_or_else(|_| unknown(), |cpus| list(&cpus)),
        commit: crate::COMMIT.to_owned(),
        date,
    }
}

/// `[0, 1, 2, 5]` as `0-2,5`.
fn list(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_the_kernels_list() {
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(list(&[]), "");
    }
}
