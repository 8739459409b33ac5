//! Which Vulkan device and which of its memory types: decided on plain data.

use ash::vk::{MemoryHeap, MemoryPropertyFlags, MemoryType, QueueFamilyProperties, QueueFlags};

use crate::window::Missing;

/// What a window needs of its memory.
const NEEDED: MemoryPropertyFlags = MemoryPropertyFlags::from_raw(
    MemoryPropertyFlags::DEVICE_LOCAL.as_raw()
        | MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);
/// What it must not have: the CPU cannot reach it, or its accesses bypass what orders ours.
const FORBIDDEN: MemoryPropertyFlags = MemoryPropertyFlags::from_raw(
    MemoryPropertyFlags::PROTECTED.as_raw() | MemoryPropertyFlags::LAZILY_ALLOCATED.as_raw(),
);

/// A device that Vulkan shows.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) uuid: [u8; 16],
    /// Its Vulkan version, as (major, minor).
    pub(super) version: (u32, u32),
}

/// The device with `uuid`, by its place among those `seen`.
pub(super) fn device(seen: &[Seen], uuid: [u8; 16]) -> Result<usize, Missing> {
    let Some(at) = seen.iter().position(|device| device.uuid == uuid) else {
        let shown: Vec<String> = seen.iter().map(|one| format!("`{}` {}", one.name, hex(one.uuid))).collect();
        let shown = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
        return Err(Missing {
            word: "NoDeviceMatch",
            detail: format!("no Vulkan device has the GPU's UUID {}; there are: {shown}", hex(uuid)),
            remedy: "check that the driver's Vulkan library has the driver's version, and that the GPU is not divided",
        });
    };
    if seen[at].version < (1, 1) {
        let (major, minor) = seen[at].version;
        return Err(Missing {
            word: "NoDeviceMatch",
            detail: format!("`{}` has Vulkan {major}.{minor}, 1.1 is needed", seen[at].name),
            remedy: "update the NVIDIA driver",
        });
    }
    Ok(at)
}

/// The memory types that can back a window, best first: what Vulkan would take for external buffers (its mask `buffers`), as
/// the nearest it says of external memory without one; write-combined before cached; the larger heap; the lower number.
pub(super) fn memory_types(types: &[MemoryType], heaps: &[MemoryHeap], buffers: u32) -> Result<Vec<u32>, Missing> {
    let heap_bytes = |kind: &MemoryType| heaps.get(kind.heap_index as usize).map_or(0, |heap| heap.size);
    let usable = |kind: &MemoryType| kind.property_flags.contains(NEEDED) && !kind.property_flags.intersects(FORBIDDEN);
    let rank = |at: u32, kind: &MemoryType| {
        let other = buffers.checked_shr(at).is_none_or(|mask| mask & 1 == 0);
        (other, kind.property_flags.contains(MemoryPropertyFlags::HOST_CACHED), !heap_bytes(kind), at)
    };
    let mut found: Vec<_> =
        (0u32..).zip(types).filter(|(_, kind)| usable(kind)).map(|(at, kind)| rank(at, kind)).collect();
    found.sort_unstable();
    if found.is_empty() {
        let listed = (0u32..).zip(types).map(|(at, kind)| describe(at, kind, heap_bytes(kind))).collect::<Vec<_>>();
        return Err(Missing {
            word: "NoMemoryType",
            detail: format!("of the memory types {} none has {}", listed.join(", "), names(NEEDED)),
            remedy: "enable resizable BAR for the GPU in the firmware",
        });
    }
    Ok(found.into_iter().map(|(.., at)| at).collect())
}

/// One memory type for messages.
pub(super) fn describe(at: u32, kind: &MemoryType, heap_bytes: u64) -> String {
    let MemoryType { property_flags, heap_index } = kind;
    format!("{at} ({}; heap {heap_index} of {} MiB)", names(*property_flags), heap_bytes >> 20)
}

fn names(flags: MemoryPropertyFlags) -> String {
    const KNOWN: [(MemoryPropertyFlags, &str); 6] = [
        (MemoryPropertyFlags::DEVICE_LOCAL, "DEVICE_LOCAL"),
        (MemoryPropertyFlags::HOST_VISIBLE, "HOST_VISIBLE"),
        (MemoryPropertyFlags::HOST_COHERENT, "HOST_COHERENT"),
        (MemoryPropertyFlags::HOST_CACHED, "HOST_CACHED"),
        (MemoryPropertyFlags::LAZILY_ALLOCATED, "LAZILY_ALLOCATED"),
        (MemoryPropertyFlags::PROTECTED, "PROTECTED"),
    ];
    let set = KNOWN.iter().filter(|(flag, _)| flags.contains(*flag));
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(" | ")
}

/// The queue family for the one queue that a device must have and we never use: the one that can do least.
pub(super) fn queue_family(families: &[QueueFamilyProperties]) -> u32 {
    let heavy = QueueFlags::GRAPHICS | QueueFlags::COMPUTE;
    let able = |family: &QueueFamilyProperties| family.queue_count > 0;
    let light = |family: &QueueFamilyProperties| able(family) && !family.queue_flags.intersects(heavy);
    let found = families.iter().position(light).or_else(|| families.iter().position(able));
    found.and_then(|at| u32::try_from(at).ok()).unwrap_or(0)
}

fn hex(uuid: [u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: MemoryPropertyFlags = NEEDED;

    fn kind(property_flags: MemoryPropertyFlags, heap_index: u32) -> MemoryType {
        MemoryType { property_flags, heap_index }
    }

    fn heaps(sizes: &[u64]) -> Vec<MemoryHeap> {
        sizes.iter().map(|&size| MemoryHeap { size, flags: ash::vk::MemoryHeapFlags::empty() }).collect()
    }

    fn seen(name: &str, first: u8, version: (u32, u32)) -> Seen {
        let mut uuid = [0; 16];
        uuid[0] = first;
        Seen { name: name.into(), uuid, version }
    }

    #[test]
    fn the_device_with_the_uuid_is_taken() {
        let devices = [seen("cpu", 9, (1, 3)), seen("first", 1, (1, 3)), seen("second", 2, (1, 3))];
        assert_eq!(device(&devices, devices[2].uuid).unwrap(), 2);
    }

    #[test]
    fn no_device_with_the_uuid_names_those_that_are_there() {
        let missing = device(&[seen("llvmpipe", 0xab, (1, 3))], [0x11; 16]).unwrap_err();
        assert_eq!(missing.word, "NoDeviceMatch");
        assert!(missing.detail.contains("`llvmpipe` ab00"), "{}", missing.detail);
        assert!(missing.detail.contains(&"11".repeat(16)), "{}", missing.detail);
        assert!(device(&[], [0; 16]).unwrap_err().detail.ends_with("there are: none"));
    }

    #[test]
    fn a_device_of_vulkan_1_0_does_not_match() {
        let old = seen("old", 1, (1, 0));
        assert!(device(std::slice::from_ref(&old), old.uuid).unwrap_err().detail.contains("Vulkan 1.0"));
    }

    #[test]
    fn the_mapped_heap_of_all_memory_goes_before_the_small_one() {
        let system = MemoryPropertyFlags::HOST_VISIBLE | MemoryPropertyFlags::HOST_COHERENT;
        let types = [
            kind(MemoryPropertyFlags::DEVICE_LOCAL, 0),
            kind(system, 1),
            kind(PLAIN, 2),
            kind(PLAIN, 0),
            kind(PLAIN, 0),
        ];
        let heaps = heaps(&[141 << 30, 64 << 30, 246 << 20]);
        assert_eq!(memory_types(&types, &heaps, u32::MAX).unwrap(), [3, 4, 2]);
    }

    #[test]
    fn cached_types_come_last_and_protected_ones_never() {
        let types = [
            kind(PLAIN | MemoryPropertyFlags::HOST_CACHED, 0),
            kind(PLAIN | MemoryPropertyFlags::PROTECTED, 0),
            kind(PLAIN, 0),
        ];
        assert_eq!(memory_types(&types, &heaps(&[1 << 30]), u32::MAX).unwrap(), [2, 0]);
    }

    #[test]
    fn types_for_external_buffers_come_first() {
        let types = [kind(PLAIN, 0), kind(PLAIN | MemoryPropertyFlags::HOST_CACHED, 0)];
        assert_eq!(memory_types(&types, &heaps(&[80 << 30]), 0b10).unwrap(), [1, 0]);
    }

    #[test]
    fn a_gpu_whose_memory_the_cpu_cannot_reach_has_its_types_listed() {
        let types = [kind(MemoryPropertyFlags::DEVICE_LOCAL, 0), kind(MemoryPropertyFlags::HOST_VISIBLE, 1)];
        let missing = memory_types(&types, &heaps(&[80 << 30, 1 << 20]), u32::MAX).unwrap_err();
        assert_eq!(missing.word, "NoMemoryType");
        for part in ["0 (DEVICE_LOCAL; heap 0 of 81920 MiB)", "1 (HOST_VISIBLE; heap 1 of 1 MiB)"] {
            assert!(missing.detail.contains(part), "`{part}` is missing in: {}", missing.detail);
        }
    }

    #[test]
    fn a_heap_that_is_not_there_counts_as_empty() {
        assert_eq!(memory_types(&[kind(PLAIN, 7)], &[], u32::MAX).unwrap(), [0]);
    }

    #[test]
    fn the_queue_comes_from_the_family_that_can_do_least() {
        let family =
            |queue_flags, queue_count| QueueFamilyProperties { queue_flags, queue_count, ..Default::default() };
        let all = family(QueueFlags::GRAPHICS | QueueFlags::COMPUTE | QueueFlags::TRANSFER, 16);
        let transfer = family(QueueFlags::TRANSFER, 2);
        assert_eq!(queue_family(&[all, transfer]), 1);
        assert_eq!(queue_family(&[family(QueueFlags::TRANSFER, 0), all]), 1);
        assert_eq!(queue_family(&[]), 0);
    }
}
