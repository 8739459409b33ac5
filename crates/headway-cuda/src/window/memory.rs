//! Device memory that something else can share: its CUDA side.

use std::ffi::c_int;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use headway_core::units::Bytes;
use headway_device::DeviceError;

use super::home::Home;
use crate::driver::call;
use crate::driver::structures::{
    AccessDescription, AllocationProperties, ExternalBuffer, ExternalDescription, ExternalHandle, Location,
};
use crate::driver::table::{self, Address, Handle};
use crate::owned::Context;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`.
const ALLOCATION_PINNED: c_int = 1;
const LOCATION_DEVICE: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const HANDLE_POSIX_FD: c_int = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const GRANULARITY_MINIMUM: c_int = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const ACCESS_READ_WRITE: c_int = 3;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`.
const EXTERNAL_OPAQUE_FD: c_int = 1;

/// What the driver's answer to an allocation of `bytes` means.
fn allocated(context: &Context, bytes: usize, result: Result<(), DeviceError>) -> Result<(), DeviceError> {
    if !matches!(result, Err(DeviceError::Driver { code: table::OUT_OF_MEMORY, .. })) {
        return context.note(result);
    }
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are valid for the call to write.
    unsafe { call!(context.driver, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
    let (wanted, available) = (Bytes(bytes as u64), Bytes(free as u64));
    Err(DeviceError::OutOfMemory { what: "device memory", wanted, available })
}

/// Imports `fd` by `import`, which owns it if it succeeds.
pub(super) fn consume<T>(fd: OwnedFd, import: impl FnOnce(c_int) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
    let fd = fd.into_raw_fd();
    let imported = import(fd);
    if imported.is_err() {
        // It is still ours, say both interfaces; but there are drivers that have closed it, so this must be allowed to fail,
        // which it is not for an `OwnedFd`.
        // SAFETY: a number; it was ours until the import.
        let _ = unsafe { libc::close(fd) };
    }
    imported
}

/// Whether handles of `context` may be given back: it is this process's and not lost.
fn usable(context: &Context, home: Home) -> bool {
    home.is_here() && context.bind().is_ok()
}

/// An ordinary allocation, with its start and its end on a multiple of `align`; not zeroed.
pub(crate) struct Aligned {
    context: Arc<Context>,
    home: Home,
    allocation: Address,
    address: Address,
}

impl Aligned {
    /// At least `bytes` bytes; `align` is a power of two.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize, align: usize) -> Result<Self, DeviceError> {
        context.bind()?;
        let too_large =
            || DeviceError::Invalid { what: "device buffer", reason: format!("{bytes} bytes are too many") };
        let padded = bytes.max(1).checked_next_multiple_of(align).and_then(|bytes| bytes.checked_add(align));
        let padded = padded.ok_or_else(too_large)?;
        let mut allocation = 0;
        // SAFETY: `allocation` is valid for the call to write; the context is current.
        let result = unsafe { call!(context.driver, cuMemAlloc_v2(&raw mut allocation, padded)) };
        allocated(context, padded, result)?;
        let address = allocation.next_multiple_of(align as u64);
        Ok(Self { context: Arc::clone(context), home: Home::here(), allocation, address })
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        if usable(&self.context, self.home) {
            // SAFETY: allocated by `new`, freed once.
            let _ = unsafe { call!(self.context.driver, cuMemFree_v2(self.allocation)) };
        }
    }
}

/// Memory of a GPU without an address, that can be handed to others as a file descriptor.
pub(crate) struct Physical {
    context: Arc<Context>,
    home: Home,
    handle: u64,
    bytes: usize,
}

impl Physical {
    /// At least `bytes` bytes, rounded up to what the driver can map; not zeroed.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        context.bind()?;
        let properties = AllocationProperties {
            kind: ALLOCATION_PINNED,
            handle_kinds: HANDLE_POSIX_FD,
            location: Location { kind: LOCATION_DEVICE, id: context.ordinal },
            windows_metadata: null_mut(),
            flags: [0; 8],
        };
        let mut granularity = 0usize;
        let (driver, at) = (&context.driver, &raw const properties);
        // SAFETY: `granularity` is valid for the call to write, the properties for it to read.
        let asked =
            unsafe { call!(driver, cuMemGetAllocationGranularity(&raw mut granularity, at, GRANULARITY_MINIMUM)) };
        context.note(asked)?;
        let too_large =
            || DeviceError::Invalid { what: "device buffer", reason: format!("{bytes} bytes are too many") };
        let bytes = bytes.max(1).checked_next_multiple_of(granularity.max(1)).ok_or_else(too_large)?;
        let mut handle = 0;
        // SAFETY: `handle` is valid for the call to write, the properties for it to read; the flags must be 0.
        let result = unsafe { call!(driver, cuMemCreate(&raw mut handle, bytes, at, 0)) };
        allocated(context, bytes, result)?;
        Ok(Self { context: Arc::clone(context), home: Home::here(), handle, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A new file descriptor that stands for the memory.
    pub(crate) fn export(&self) -> Result<OwnedFd, DeviceError> {
        self.context.bind()?;
        let mut fd: c_int = -1;
        // SAFETY: for this kind the driver writes one `int`; the flags must be 0.
        let result = unsafe {
            let to = (&raw mut fd).cast();
            call!(self.context.driver, cuMemExportToShareableHandle(to, self.handle, HANDLE_POSIX_FD, 0))
        };
        self.context.note(result)?;
        // SAFETY: the driver opened it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if usable(&self.context, self.home) {
            // SAFETY: made by `new`, released once. What is mapped or imported keeps the memory itself.
            let _ = unsafe { call!(self.context.driver, cuMemRelease(self.handle)) };
        }
    }
}

/// A range of addresses with [`Physical`] memory behind it, for this GPU and every other that can reach it.
pub(crate) struct Mapped {
    context: Arc<Context>,
    home: Home,
    address: Address,
    bytes: usize,
    /// Whether there is memory behind it yet.
    backed: bool,
}

impl Mapped {
    pub(crate) fn new(context: &Arc<Context>, physical: &Physical) -> Result<Self, DeviceError> {
        context.bind()?;
        let (driver, bytes) = (&context.driver, physical.bytes);
        let mut address = 0;
        // SAFETY: `address` is valid for the call to write; no alignment beyond the driver's, no wish for an address, no flags.
        context.note(unsafe { call!(driver, cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0)) })?;
        let mut range = Self { context: Arc::clone(context), home: Home::here(), address, bytes, backed: false };
        // SAFETY: the range was reserved with this size, which is that of the memory; the flags must be 0.
        context.note(unsafe { call!(driver, cuMemMap(address, bytes, 0, physical.handle, 0)) })?;
        range.backed = true;
        range.allow(context.ordinal)?;
        for ordinal in 0..driver.count()? {
            if ordinal != context.ordinal && driver.can_access(ordinal, context.ordinal)? {
                // A peer that cannot have it copies through the host, as without peer access.
                match range.allow(ordinal) {
                    Err(DeviceError::Driver { code, .. }) if !table::ends_the_context(code) => {}
                    other => other?,
                }
            }
        }
        Ok(range)
    }

    fn allow(&self, ordinal: c_int) -> Result<(), DeviceError> {
        let location = Location { kind: LOCATION_DEVICE, id: ordinal };
        let access = AccessDescription { location, flags: ACCESS_READ_WRITE };
        // SAFETY: the whole range is mapped; one description is given.
        let result =
            unsafe { call!(self.context.driver, cuMemSetAccess(self.address, self.bytes, &raw const access, 1)) };
        self.context.note(result)
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !usable(&self.context, self.home) {
            return;
        }
        if self.backed {
            // SAFETY: mapped by `new` with this size, unmapped once; no operation uses it, as operations own spans of it.
            let _ = unsafe { call!(self.context.driver, cuMemUnmap(self.address, self.bytes)) };
        }
        // SAFETY: reserved by `new` with this size, freed once, after it was unmapped.
        let _ = unsafe { call!(self.context.driver, cuMemAddressFree(self.address, self.bytes)) };
    }
}

/// Memory of another library, given as an opaque file descriptor, with an address for this GPU.
pub(crate) struct External {
    context: Arc<Context>,
    home: Home,
    handle: ExternalMemory,
    /// 0 until there is one.
    address: Address,
}

/// `CUexternalMemory`.
struct ExternalMemory(Handle);
// SAFETY: the CUDA driver API is thread safe; the handle is only passed to it.
unsafe impl Send for ExternalMemory {}
// SAFETY: the CUDA driver API is thread safe; the handle is only passed to it.
unsafe impl Sync for ExternalMemory {}

impl External {
    /// Imports all of an allocation of `bytes` bytes.
    pub(crate) fn new(context: &Arc<Context>, fd: OwnedFd, bytes: usize) -> Result<Self, DeviceError> {
        context.bind()?;
        let (driver, mut handle) = (&context.driver, null_mut());
        consume(fd, |fd| {
            let description = ExternalDescription {
                kind: EXTERNAL_OPAQUE_FD,
                handle: ExternalHandle { fd, unused: [0; 3] },
                size: bytes as u64,
                flags: 0,
                reserved: [0; 16],
            };
            // SAFETY: `handle` is valid for the call to write, the description for it to read.
            context.note(unsafe { call!(driver, cuImportExternalMemory(&raw mut handle, &raw const description)) })
        })?;
        let handle = ExternalMemory(handle);
        let mut external = Self { context: Arc::clone(context), home: Home::here(), handle, address: 0 };
        let buffer = ExternalBuffer { offset: 0, size: bytes as u64, flags: 0, reserved: [0; 16] };
        let mut address = 0;
        // SAFETY: `address` is valid for the call to write, the description for it to read; the range is the allocation's.
        let mapped = unsafe {
            call!(driver, cuExternalMemoryGetMappedBuffer(&raw mut address, external.handle.0, &raw const buffer))
        };
        context.note(mapped)?;
        external.address = address;
        Ok(external)
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

impl Drop for External {
    fn drop(&mut self) {
        if !usable(&self.context, self.home) {
            return;
        }
        if self.address != 0 {
            // SAFETY: mapped by `new`; the driver asks for mapped buffers to be freed so, before the memory object.
            let _ = unsafe { call!(self.context.driver, cuMemFree_v2(self.address)) };
        }
        // SAFETY: imported by `new`, destroyed once, after its buffer.
        let _ = unsafe { call!(self.context.driver, cuDestroyExternalMemory(self.handle.0)) };
    }
}
