//! The table of CUDA driver functions, found by name in the driver's library.
//!
//! Names carry the suffix of the ABI version whose signature is written here (`_v2` where one exists), so a newer driver
//! cannot hand out a function with another signature.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

use headway_device::DeviceError;
use libloading::Library;

use crate::driver::structures::{AccessDescription, AllocationProperties, ExternalBuffer, ExternalDescription};

/// `CUresult`.
pub(crate) type Code = c_int;
/// `CUdevice`.
pub(crate) type Ordinal = c_int;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`: opaque to us.
pub type Handle = *mut c_void;
/// `CUdeviceptr`.
pub(crate) type Address = u64;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const STUB_LIBRARY: Code = 34;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub(crate) const TOO_MANY_PEERS: Code = 711;
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Code = 712;
pub(crate) const SYSTEM_DRIVER_MISMATCH: Code = 803;

pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const EVENT_DEFAULT: c_uint = 0;
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const HOST_ALLOC_PORTABLE: c_uint = 1;
pub(crate) const HOST_ALLOC_DEVICE_MAP: c_uint = 2;
pub(crate) const HOST_ALLOC_WRITE_COMBINED: c_uint = 4;
pub(crate) const HOST_REGISTER_PORTABLE: c_uint = 1;
pub(crate) const HOST_REGISTER_DEVICE_MAP: c_uint = 2;
pub(crate) const POINTER_MEMORY_TYPE: c_int = 2;
pub(crate) const POINTER_IS_MANAGED: c_int = 8;
pub(crate) const POINTER_DEVICE: c_int = 9;
pub(crate) const MEMORY_TYPE_HOST: c_uint = 1;
pub(crate) const MEMORY_TYPE_DEVICE: c_uint = 2;
/// The legacy default stream by the handle that names it in every form of a function.
pub(crate) const STREAM_LEGACY: usize = 1;
/// `CU_STREAM_WAIT_VALUE_GEQ`: until the word has come to the value, by the sign of their difference.
pub(crate) const WAIT_GEQ: c_uint = 0;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
pub(crate) const STREAM_WRITE_WITHOUT_BARRIER: c_uint = 1;
/// `CU_STREAM_WAIT_VALUE_EQ`.
pub(crate) const WAIT_EQ: c_uint = 1;
/// The source is read in the order of the stream; the other orders let it be read earlier.
pub(crate) const SOURCE_ORDER_STREAM: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const CAPTURE_RELAXED: c_int = 2;
pub(crate) const FUNCTION_MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
pub(crate) const FUNCTION_NON_PORTABLE_CLUSTERS: c_int = 14;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
pub(crate) const LAUNCH_CLUSTER_DIMENSION: c_uint = 4;
pub(crate) const JIT_ERROR_LOG: c_int = 5;
pub(crate) const JIT_ERROR_LOG_BYTES: c_int = 6;
pub(crate) const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
pub(crate) const ATTRIBUTE_KERNEL_TIME_LIMIT: c_int = 17;
pub(crate) const ATTRIBUTE_ASYNC_ENGINES: c_int = 40;
/// Whether a GPU reaches registered host memory at the addresses that the CPU uses.
pub(crate) const ATTRIBUTE_REGISTERED_POINTERS: c_int = 91;
pub(crate) const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
pub(crate) const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;

/// Codes after which the driver answers every call in the context with an error (`cuda.h`, "the process must be
/// terminated and relaunched", and the device errors of the same kind).
pub(crate) const fn ends_the_context(code: Code) -> bool {
    // DEINITIALIZED, ECC, NVLINK, CONTAINED; ILLEGAL_ADDRESS to LAUNCH_TIMEOUT; CONTEXT_IS_DESTROYED, ASSERT;
    // HARDWARE_STACK to LAUNCH_FAILED; UNKNOWN.
    matches!(code, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 999)
}

/// Present only in the library that the tests build: with it no result can pass for a GPU's.
const FAKE_MARK: &CStr = c"headway_fake_driver";

macro_rules! table {
    (
        required { $($symbol:ident($($argument:ty),*);)* }
        optional { $($newer:ident($($newer_argument:ty),*);)* }
        for_guests { $($guests:ident($($guests_argument:ty),*);)* }
    ) => {
        /// The types of the driver's functions, by their symbols.
        #[allow(non_camel_case_types, private_interfaces, reason = "the driver's own names; structures are this crate's")]
        pub mod functions {
            use super::*;
            $(pub type $symbol = unsafe extern "C" fn($($argument),*) -> Code;)*
            $(pub type $newer = unsafe extern "C" fn($($newer_argument),*) -> Code;)*
            $(pub type $guests = unsafe extern "C" fn($($guests_argument),*) -> Code;)*
        }

        /// The driver's functions.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Table {
            $(pub(crate) $symbol: functions::$symbol,)*
            $(pub(crate) $newer: Option<functions::$newer>,)*
            /// Whether this is the library of the tests.
            pub(crate) fake: bool,
        }

        impl Table {
            /// Finds every function by `find`, which gives null for names that it does not know; `path` is for messages.
            ///
            /// # Safety
            /// What `find` gives for the name of a function of the CUDA driver is that function, of this process's driver, which is
            /// never unloaded.
            pub(crate) unsafe fn find(
                path: &Path,
                find: impl Fn(&CStr) -> *const c_void,
            ) -> Result<Self, DeviceError> {
                Ok(Self {
                    $($symbol: {
                        let name = concat!(stringify!($symbol), "\0");
                        let address = find(CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default());
                        if address.is_null() {
                            return Err(missing(path, stringify!($symbol)));
                        }
                        // SAFETY: the signature is that of `cuda.h` for the symbol of this name and ABI version.
                        unsafe { std::mem::transmute::<*const c_void, functions::$symbol>(address) }
                    },)*
                    $($newer: {
                        let name = concat!(stringify!($newer), "\0");
                        let address = find(CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default());
                        // SAFETY: the signature is that of `cuda.h` for the symbol of this name and ABI version; a
                        // null address is `None`.
                        unsafe { std::mem::transmute::<*const c_void, Option<functions::$newer>>(address) }
                    },)*
                    fake: !find(FAKE_MARK).is_null(),
                })
            }
        }
    };
}

table! {
    required {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuGetErrorName(Code, *mut *const c_char);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut Ordinal, c_int);
        cuDeviceGetName(*mut c_char, c_int, Ordinal);
        cuDeviceGetUuid_v2(*mut [u8; 16], Ordinal);
        cuDeviceTotalMem_v2(*mut usize, Ordinal);
        cuDeviceGetAttribute(*mut c_int, c_int, Ordinal);
        cuDeviceGetPCIBusId(*mut c_char, c_int, Ordinal);
        cuDeviceCanAccessPeer(*mut c_int, Ordinal, Ordinal);
        cuDevicePrimaryCtxRetain(*mut Handle, Ordinal);
        cuDevicePrimaryCtxRelease_v2(Ordinal);
        cuCtxGetCurrent(*mut Handle);
        cuCtxSetCurrent(Handle);
        cuCtxGetDevice(*mut Ordinal);
        cuCtxEnablePeerAccess(Handle, c_uint);
        cuStreamCreate(*mut Handle, c_uint);
        cuStreamDestroy_v2(Handle);
        cuStreamSynchronize(Handle);
        cuStreamQuery(Handle);
        cuStreamIsCapturing(Handle, *mut c_int);
        cuEventCreate(*mut Handle, c_uint);
        cuEventDestroy_v2(Handle);
        cuEventRecord(Handle, Handle);
        cuEventQuery(Handle);
        cuEventElapsedTime(*mut f32, Handle, Handle);
        cuModuleLoadDataEx(*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
        cuModuleUnload(Handle);
        cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        cuFuncSetAttribute(Handle, c_int, c_int);
        cuLaunchKernel(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
        );
        cuMemAlloc_v2(*mut Address, usize);
        cuMemFree_v2(Address);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemsetD8_v2(Address, u8, usize);
        cuMemcpyHtoD_v2(Address, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, Address, usize);
        cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Handle);
        cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, Handle);
        cuMemcpyDtoDAsync_v2(Address, Address, usize, Handle);
        cuMemcpyPeerAsync(Address, Handle, Address, Handle, usize, Handle);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuPointerGetAttributes(c_uint, *mut c_int, *mut *mut c_void, Address);
        cuMemGetAllocationGranularity(*mut usize, *const AllocationProperties, c_int);
        cuMemCreate(*mut u64, usize, *const AllocationProperties, u64);
        cuMemRelease(u64);
        cuMemExportToShareableHandle(*mut c_void, u64, c_int, u64);
        cuMemAddressReserve(*mut Address, usize, usize, Address, u64);
        cuMemAddressFree(Address, usize);
        cuMemMap(Address, usize, usize, u64, u64);
        cuMemUnmap(Address, usize);
        cuMemSetAccess(Address, usize, *const AccessDescription, usize);
        cuImportExternalMemory(*mut Handle, *const ExternalDescription);
        cuDestroyExternalMemory(Handle);
        cuExternalMemoryGetMappedBuffer(*mut Address, Handle, *const ExternalBuffer);
    }
    // What older drivers do not have.
    optional {
        // CUDA 5.5.
        cuStreamCreateWithPriority(*mut Handle, c_uint, c_int);
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        cuStreamWaitEvent(Handle, Handle, c_uint);
        // CUDA 10.1.
        cuThreadExchangeStreamCaptureMode(*mut c_int);
        // CUDA 11.7.
        cuStreamWriteValue32_v2(Handle, Address, u32, c_uint);
        cuStreamWaitValue32_v2(Handle, Address, u32, c_uint);
        cuMemGetHandleForAddressRange(*mut c_void, Address, usize, c_int, u64);
        // CUDA 11.8.
        cuLaunchKernelEx(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
        cuOccupancyMaxActiveClusters(*mut c_int, Handle, *const LaunchConfig);
        // CUDA 12.4.
        cuFuncLoad(Handle);
        // CUDA 12.8; the last but one argument is the index of the copy that failed.
        cuMemcpyBatchAsync(
            *mut Address, *mut Address, *mut usize, usize, *mut CopyAttributes, *mut usize, usize, *mut usize, Handle
        );
        // CUDA 13.
        cuMemcpyBatchAsync_v2(
            *mut Address, *mut Address, *mut usize, usize, *mut CopyAttributes, *mut usize, usize, Handle
        );
    }
    // What only the library in front of unmodified programs calls.
    for_guests {
        cuEventSynchronize(Handle);
        cuMemHostGetDevicePointer_v2(*mut Address, *mut c_void, c_uint);
        cuModuleLoadData(*mut Handle, *const c_void);
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) attribute_count: c_uint,
}

/// `CUlaunchAttribute` with a value of three integers; the union of values has 64 bytes.
#[repr(C, align(8))]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    pub(crate) padding: c_uint,
    pub(crate) value: [c_uint; 16],
}

/// `CUmemcpyAttributes` of CUDA 12.8 and later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyAttributes {
    /// `CUmemcpySrcAccessOrder`.
    pub(crate) source_order: c_uint,
    /// `CUmemLocation` of the source, a hint for managed memory: type and number.
    pub(crate) source_location: [c_int; 2],
    /// As for the source.
    pub(crate) destination_location: [c_int; 2],
    pub(crate) flags: c_uint,
}

impl Table {
    /// Loads the library `path` and finds every function in it.
    pub(crate) fn load(path: &Path) -> Result<Self, DeviceError> {
        let library = open(path)?;
        let find = |name: &CStr| {
            // SAFETY: the symbol is only looked for here.
            let found = unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) };
            found.map_or(std::ptr::null(), |symbol| *symbol)
        };
        // SAFETY: the library is the system's driver or the one that the user names, and is never unloaded: see below.
        let table = unsafe { Self::find(path, find) };
        // The driver has threads and exit handlers of its own.
        std::mem::forget(library);
        table
    }
}

fn open(path: &Path) -> Result<Library, DeviceError> {
    // SAFETY: loading runs the library's initialisers. It is the system's NVIDIA driver or the one that the user names,
    // which is trusted like the program itself.
    unsafe { Library::new(path) }.map_err(|error| DeviceError::Unavailable {
        what: format!("the CUDA driver library `{}`", path.display()),
        reason: loader_text(&error),
        remedy: "install the NVIDIA driver, or name its libcuda.so.1 in $HEADWAY_LIBCUDA".into(),
    })
}

/// What the loader says about a library or symbol that it did not find.
pub(crate) fn loader_text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn missing(path: &Path, symbol: &str) -> DeviceError {
    DeviceError::Unavailable {
        what: format!("the function {symbol} of the CUDA driver"),
        reason: format!("`{}` does not have it", path.display()),
        remedy: "update the NVIDIA driver (11.4 or later is needed)".into(),
    }
}
