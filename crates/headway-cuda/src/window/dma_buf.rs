//! The route through a dma-buf: the driver exports a range of any allocation as a file, which is mapped.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{NonNull, null_mut};

use headway_device::DeviceError;
use headway_os::Errno;
use headway_os::memory::page_bytes;

use super::home::{Home, keep_from_children};
use super::pager::{Base, Mover};
use super::{Missing, Refusal};
use crate::driver::table::{self, Address};
use crate::owned::Context;

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`: export only.
const ATTRIBUTE_EXPORT: c_int = 124;
/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED`.
const ATTRIBUTE_MMAP: c_int = 152;
/// The first CUDA version whose driver can have the attribute.
const VERSION_MIN: (u32, u32) = (13, 3);
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const RANGE_DMA_BUF: c_int = 1;

/// Whether the driver says that a dma-buf of this GPU can be mapped.
pub(crate) fn allowed(context: &Context) -> Result<(), Refusal> {
    let driver = &context.driver;
    let version = driver.version()?;
    let attribute = |number| match driver.attribute(number, context.ordinal) {
        // A driver that does not know the attribute.
        Err(DeviceError::Driver { code: table::INVALID_VALUE, .. }) => Ok(None),
        other => other.map(Some),
    };
    let (export, mmap) = (attribute(ATTRIBUTE_EXPORT)?, attribute(ATTRIBUTE_MMAP)?);
    Ok(decide(version, export, mmap)?)
}

fn decide(version: (u32, u32), export: Option<u32>, mmap: Option<u32>) -> Result<(), Missing> {
    if version >= VERSION_MIN && mmap == Some(1) {
        return Ok(());
    }
    let shown = |value: Option<u32>| value.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
    Err(Missing {
        word: "AttributeAbsent",
        detail: format!(
            "CUDA {}.{}, attribute 152 (mmap) = {}, attribute 124 (export) = {}; 13.3 or later and 152 = 1 are needed",
            version.0,
            version.1,
            shown(mmap),
            shown(export)
        ),
        remedy: "update the NVIDIA driver",
    })
}

/// A range of device memory as a file.
pub(crate) struct File {
    fd: OwnedFd,
    home: Home,
}

impl File {
    /// Exports `bytes` bytes from `address` on, both multiples of the page size; without the PCIe flag, so that the driver
    /// chooses the way.
    pub(crate) fn export(context: &Context, address: Address, bytes: usize) -> Result<Self, Refusal> {
        context.bind()?;
        let Some(export) = context.driver.table.cuMemGetHandleForAddressRange else {
            return Err(Missing {
                word: "AttributeAbsent",
                detail: "the driver lacks cuMemGetHandleForAddressRange".into(),
                remedy: "update the NVIDIA driver",
            }
            .into());
        };
        let mut fd: c_int = -1;
        // SAFETY: for this kind the driver writes one `int`.
        let code = unsafe { export((&raw mut fd).cast::<c_void>(), address, bytes, RANGE_DMA_BUF, 0) };
        context.note(context.driver.check("cuMemGetHandleForAddressRange", code))?;
        // SAFETY: the driver opened it for us.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, home: Home::here() })
    }

    /// Maps `bytes` bytes from `at` on.
    pub(crate) fn map(&self, at: usize, bytes: usize) -> Result<Mapping, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let offset = libc::off_t::try_from(at).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: a new mapping wherever the system likes it.
        let base = unsafe { libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, self.fd.as_raw_fd(), offset) };
        let failed = || Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
        let base = NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED).ok_or_else(failed)?;
        // SAFETY: a mapping of its own.
        unsafe { keep_from_children(base.as_ptr(), bytes) };
        Ok(Mapping { base: Base(base), bytes, home: self.home })
    }
}

/// What `mmap` refusing means for the route.
pub(crate) fn refused(errno: Errno) -> Missing {
    Missing {
        word: "MmapRefused",
        detail: format!("mmap of the dma-buf failed with {errno}"),
        remedy: "update the NVIDIA driver; until then the kernel does not let a program map its dma-bufs",
    }
}

/// A mapped part.
pub(crate) struct Mapping {
    pub(crate) base: Base,
    bytes: usize,
    home: Home,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.home.is_here() {
            // SAFETY: mapped by `map` with this size, unmapped once; what used it is gone.
            let _ = unsafe { libc::munmap(self.base.0.as_ptr().cast(), self.bytes) };
        }
    }
}

/// The small mapping.
pub(crate) struct DmaBufMapping {
    /// Dropped before the file.
    shown: Option<Mapping>,
    file: File,
}

impl DmaBufMapping {
    pub(crate) fn new(file: File) -> Self {
        Self { shown: None, file }
    }
}

impl Mover for DmaBufMapping {
    fn map(&mut self, at: usize, bytes: usize) -> Result<Base, DeviceError> {
        let failed = |errno: Errno| DeviceError::Driver { call: "mmap", code: errno.0, name: errno.to_string() };
        // The new one is made before the old one is dropped.
        let mapping = self.file.map(at, bytes.next_multiple_of(page_bytes())).map_err(failed)?;
        let base = mapping.base;
        self.shown = Some(mapping);
        Ok(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_and_attribute_are_both_needed() {
        decide((13, 3), Some(1), Some(1)).unwrap();
        decide((14, 0), Some(0), Some(1)).unwrap();
        for (version, export, mmap) in [((13, 2), 1, Some(1)), ((13, 3), 1, Some(0)), ((13, 3), 1, None)] {
            let missing = decide(version, Some(export), mmap).unwrap_err();
            assert_eq!(missing.word, "AttributeAbsent");
        }
        let missing = decide((13, 0), Some(1), None).unwrap_err();
        assert!(missing.detail.starts_with("CUDA 13.0, attribute 152 (mmap) = unknown, attribute 124 (export) = 1;"));
    }

    #[test]
    fn a_refused_mmap_names_the_number() {
        let missing = refused(Errno(524));
        assert_eq!(
            (missing.word, missing.detail.as_str()),
            ("MmapRefused", "mmap of the dma-buf failed with errno 524")
        );
    }
}
