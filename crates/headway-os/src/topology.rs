//! NUMA nodes and the place of PCI devices, read from sysfs.
//!
//! The root is a parameter (`/sys` on a real machine), so that tests read fixture trees.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use headway_core::units::Bytes;

/// The usual root.
pub const SYSFS: &str = "/sys";
/// Nodes read at most; Linux can be built for 1,024.
const NODES_MAX: usize = 1024;

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number.
    pub id: u32,
    /// Its CPUs, ascending; empty for a node that has only memory.
    pub cpus: Vec<u32>,
    /// Its memory, where the kernel says.
    pub memory: Option<Bytes>,
}

/// Something sysfs does not have or that is not in the form the kernel documents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {}", path.display(), reason)]
    Read {
        /// What was read.
        path: PathBuf,
        /// Why not.
        reason: io::ErrorKind,
    },
    /// A file has an unexpected text.
    #[error("{} holds `{text}`, which is not {expected}", path.display())]
    Parse {
        path: PathBuf,
        text: String,
        /// What was expected.
        expected: &'static str,
    },
}

fn read(path: PathBuf) -> Result<(PathBuf, String), TopologyError> {
    match fs::read_to_string(&path) {
        Ok(text) => Ok((path, text.trim().to_owned())),
        Err(error) => Err(TopologyError::Read { path, reason: error.kind() }),
    }
}

/// The online NUMA nodes under `root`, ascending.
///
/// # Errors
/// [`TopologyError::Read`] where the kernel has no NUMA support (treat the node as one), [`TopologyError::Parse`].
pub fn numa_nodes(root: &Path) -> Result<Vec<NumaNode>, TopologyError> {
    let base = root.join("devices/system/node");
    let (path, text) = read(base.join("online"))?;
    let ids = parse_list(&text).ok_or(TopologyError::Parse { path, text, expected: "a list such as `0-1,4`" })?;
    ids.into_iter().take(NODES_MAX).map(|id| numa_node(&base.join(format!("node{id}")), id)).collect()
}

fn numa_node(folder: &Path, id: u32) -> Result<NumaNode, TopologyError> {
    let (path, text) = read(folder.join("cpulist"))?;
    let cpus = parse_list(&text).ok_or(TopologyError::Parse { path, text, expected: "a list such as `0-15`" })?;
    let memory = read(folder.join("meminfo")).ok().and_then(|(_, text)| {
        let line = text.lines().find(|line| line.contains("MemTotal:"))?;
        let kib: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
        kib.checked_mul(1024).map(Bytes)
    });
    Ok(NumaNode { id, cpus, memory })
}

/// The CPUs that share a core with `cpu`, itself among them, ascending; `None` where the kernel does not say.
#[must_use]
pub fn siblings(root: &Path, cpu: u32) -> Option<Vec<u32>> {
    let (_, text) = read(root.join(format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))).ok()?;
    parse_list(&text).filter(|cpus| cpus.contains(&cpu))
}

/// The NUMA node next to the PCI device `address` (`0000:0f:00.0`); `None` where the firmware does not say (-1).
///
/// # Errors
/// [`TopologyError::Read`] when there is no such device, [`TopologyError::Parse`].
pub fn pci_numa(root: &Path, address: &str) -> Result<Option<u32>, TopologyError> {
    let address = pci_address(address).ok_or_else(|| TopologyError::Parse {
        path: root.join("bus/pci/devices"),
        text: address.to_owned(),
        expected: "a PCI address such as `0000:0f:00.0`",
    })?;
    let (path, text) = read(root.join("bus/pci/devices").join(address).join("numa_node"))?;
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(id) if u32::try_from(id).is_ok() => Ok(Some(id as u32)),
        _ => Err(TopologyError::Parse { path, text, expected: "a NUMA node number or -1" }),
    }
}

/// The PCIe generation that the device `address` can do; `None` where the kernel does not say. Ports are not asked: those of virtual
/// machines say anything.
#[must_use]
pub fn pci_generation(root: &Path, address: &str) -> Option<u32> {
    let device = root.join("bus/pci/devices").join(pci_address(address)?);
    let (_, text) = read(device.join("max_link_speed")).ok()?;
    // `32.0 GT/s PCIe`, in older kernels without the last word.
    match text.split(['.', ' ']).next()? {
        "2" => Some(1),
        "5" => Some(2),
        "8" => Some(3),
        "16" => Some(4),
        "32" => Some(5),
        "64" => Some(6),
        _ => None,
    }
}

/// What the kernel calls the CPUs; `None` where it does not say. `root` is `/` on a real machine.
#[must_use]
pub fn cpu_model(root: &Path) -> Option<String> {
    let (_, text) = read(root.join("proc/cpuinfo")).ok()?;
    let value = |key: &str| {
        let line = text.lines().find(|line| line.split(':').next().is_some_and(|word| word.trim() == key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    // Arm kernels give numbers only.
    value("model name").or_else(|| Some(format!("{} {}", value("CPU implementer")?, value("CPU part")?)))
}

/// Brings a PCI address into the kernel's form: lower case, a domain of four digits (NVML writes eight).
#[must_use]
pub fn pci_address(text: &str) -> Option<String> {
    let mut parts = text.split(':').collect::<Vec<_>>();
    if parts.len() == 2 {
        parts.insert(0, "0");
    }
    let [domain, bus, rest] = parts[..] else { return None };
    let (device, function) = rest.split_once('.').unwrap_or((rest, "0"));
    let number = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let (bus, device, function) = (number(bus)?, number(device)?, number(function)?);
    (bus < 256 && device < 32 && function < 8)
        .then(|| number(domain).map(|domain| format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")))
        .flatten()
}

/// The CPUs that the kernel uses, ascending; `None` where it does not say. `root` is `/` on a real machine.
#[must_use]
pub fn online(root: &Path) -> Option<Vec<u32>> {
    let (_, text) = read(root.join("sys/devices/system/cpu/online")).ok()?;
    parse_list(&text).filter(|cpus| !cpus.is_empty())
}

/// `0-2,5` as `[0, 1, 2, 5]`; an empty text is an empty list.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut list = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= 1 << 16 {
            return None;
        }
        list.extend(first..=last);
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn cpus_in_use_are_a_list_or_not_known() {
        let root = tree(&[("sys/devices/system/cpu/online", "0-2,6\n")]);
        assert_eq!(online(root.path()), Some(vec![0, 1, 2, 6]));
        assert_eq!(online(&root.path().join("elsewhere")), None);
        assert!(online(Path::new("/")).is_some());
    }

    #[test]
    fn nodes_have_their_cpus_and_memory() {
        let root = tree(&[
            ("devices/system/node/online", "0-1\n"),
            ("devices/system/node/node0/cpulist", "0-2,8\n"),
            ("devices/system/node/node0/meminfo", "Node 0 MemTotal:   1024 kB\nNode 0 MemFree: 5 kB\n"),
            ("devices/system/node/node1/cpulist", "\n"),
        ]);
        assert_eq!(
            numa_nodes(root.path()).unwrap(),
            [
                NumaNode { id: 0, cpus: vec![0, 1, 2, 8], memory: Some(Bytes(1 << 20)) },
                NumaNode { id: 1, cpus: vec![], memory: None },
            ]
        );
    }

    #[test]
    fn a_kernel_without_numa_is_an_error_value() {
        let root = tree(&[]);
        let error = numa_nodes(root.path()).unwrap_err();
        assert!(matches!(error, TopologyError::Read { reason: io::ErrorKind::NotFound, .. }), "{error}");
    }

    #[test]
    fn unexpected_texts_are_reported_with_their_file() {
        for bad in ["0-", "3-1", "x", "0-4294967295"] {
            let root = tree(&[("devices/system/node/online", bad)]);
            let error = numa_nodes(root.path()).unwrap_err();
            assert!(matches!(&error, TopologyError::Parse { text, .. } if text == bad), "{error}");
        }
    }

    #[test]
    fn a_pci_device_names_its_node_or_none() {
        let root = tree(&[
            ("bus/pci/devices/0000:0f:00.0/numa_node", "1\n"),
            ("bus/pci/devices/0000:10:00.0/numa_node", "-1\n"),
            ("bus/pci/devices/0000:11:00.0/numa_node", "-7\n"),
        ]);
        assert_eq!(pci_numa(root.path(), "00000000:0F:00.0"), Ok(Some(1)));
        assert_eq!(pci_numa(root.path(), "0000:10:00.0"), Ok(None));
        assert!(matches!(pci_numa(root.path(), "0000:11:00.0"), Err(TopologyError::Parse { .. })));
        assert!(matches!(pci_numa(root.path(), "0000:12:00.0"), Err(TopologyError::Read { .. })));
        assert!(matches!(pci_numa(root.path(), "../../etc"), Err(TopologyError::Parse { .. })));
    }

    #[test]
    fn the_speed_of_a_device_is_its_generation() {
        let of = |text: &str| {
            let root = tree(&[("bus/pci/devices/0000:0f:00.0/max_link_speed", text)]);
            pci_generation(root.path(), "00000000:0F:00.0")
        };
        assert_eq!(
            ["32.0 GT/s PCIe\n", "16.0 GT/s\n", "8 GT/s\n", "Unknown\n"].map(of),
            [Some(5), Some(4), Some(3), None]
        );
        assert_eq!(pci_generation(Path::new("/nowhere"), "0000:0f:00.0"), None);
    }

    #[test]
    fn the_model_of_the_cpus_is_the_kernels_word_or_arms_numbers() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(cpu_model(root.path()), None);
        fs::create_dir_all(root.path().join("proc")).unwrap();
        let write = |text: &str| fs::write(root.path().join("proc/cpuinfo"), text).unwrap();
        write("processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) 8481C\n");
        assert_eq!(cpu_model(root.path()).unwrap(), "Intel(R) Xeon(R) 8481C");
        write("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n");
        assert_eq!(cpu_model(root.path()).unwrap(), "0x41 0xd4f");
    }
}
