//! Structures that the driver's functions take, as `cuda.h` lays them out.

use std::ffi::{c_int, c_uint, c_void};

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: c_int,
    pub(crate) handle_kinds: c_int,
    pub(crate) location: Location,
    pub(crate) windows_metadata: *mut c_void,
    /// Compression, GPUDirect RDMA, usage, reserved.
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: c_int,
}

/// The union in `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`, as large and as aligned as its largest member, two pointers.
#[repr(C, align(8))]
pub(crate) struct ExternalHandle {
    pub(crate) fd: c_int,
    pub(crate) unused: [u32; 3],
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[repr(C)]
pub(crate) struct ExternalDescription {
    pub(crate) kind: c_int,
    pub(crate) handle: ExternalHandle,
    pub(crate) size: u64,
    pub(crate) flags: c_uint,
    pub(crate) reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[repr(C)]
pub(crate) struct ExternalBuffer {
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) flags: c_uint,
    pub(crate) reserved: [c_uint; 16],
}

// Sizes and offsets of `cuda.h` on 64-bit systems.
const _: () = {
    assert!(size_of::<AllocationProperties>() == 32 && std::mem::offset_of!(AllocationProperties, flags) == 24);
    assert!(size_of::<AccessDescription>() == 12);
    assert!(size_of::<ExternalDescription>() == 104 && std::mem::offset_of!(ExternalDescription, handle) == 8);
    assert!(std::mem::offset_of!(ExternalDescription, size) == 24);
    assert!(size_of::<ExternalBuffer>() == 88);
};
