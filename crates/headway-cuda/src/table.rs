//! The table of CUDA driver functions, found by name in the driver's library.
//!
//! Names carry the suffix of the ABI version whose signature is written here (`_v2` where one exists), so a newer driver
//! cannot hand out a function with another signature.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use headway_device::DeviceError;
use libloading::Library;

use crate::checked::loader_text;

/// `CUresult`.
pub(crate) type Code = c_int;
/// `CUdevice`.
pub(crate) type Ordinal = c_int;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`: opaque to us.
pub(crate) type Handle = *mut c_void;
/// `CUdeviceptr`.
pub(crate) type Address = u64;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const STUB_LIBRARY: Code = 34;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub(crate) const SYSTEM_DRIVER_MISMATCH: Code = 803;

pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const EVENT_DEFAULT: c_uint = 0;
pub(crate) const HOST_ALLOC_PORTABLE: c_uint = 1;
pub(crate) const HOST_ALLOC_DEVICE_MAP: c_uint = 2;
pub(crate) const FUNCTION_MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
pub(crate) const JIT_ERROR_LOG: c_int = 5;
pub(crate) const JIT_ERROR_LOG_BYTES: c_int = 6;
pub(crate) const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
pub(crate) const ATTRIBUTE_KERNEL_TIME_LIMIT: c_int = 17;
pub(crate) const ATTRIBUTE_ASYNC_ENGINES: c_int = 40;
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
const FAKE_MARK: &[u8] = b"headway_fake_driver\0";

macro_rules! table {
    ($($symbol:ident($($argument:ty),*);)*) => {
        /// The driver's functions.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Table {
            $(pub(crate) $symbol: unsafe extern "C" fn($($argument),*) -> Code,)*
            /// Whether this is the library of the tests.
            pub(crate) fake: bool,
        }

        impl Table {
            /// Loads the library and finds every function in it.
            pub(crate) fn load(path: &Path) -> Result<Self, DeviceError> {
                let library = open(path)?;
                let table = Self {
                    $($symbol: {
                        let name = concat!(stringify!($symbol), "\0");
                        // SAFETY: the signature is that of `cuda.h` for the symbol of this name and ABI version.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> Code>(name.as_bytes())
                        };
                        *found.map_err(|_| missing(path, stringify!($symbol)))?
                    },)*
                    // SAFETY: the symbol is only looked for, never used.
                    fake: unsafe { library.get::<*const c_void>(FAKE_MARK) }.is_ok(),
                };
                // The driver has threads and exit handlers of its own: it must never be unloaded.
                std::mem::forget(library);
                Ok(table)
            }
        }
    };
}

table! {
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
    cuCtxSetCurrent(Handle);
    cuCtxEnablePeerAccess(Handle, c_uint);
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamDestroy_v2(Handle);
    cuStreamSynchronize(Handle);
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

fn missing(path: &Path, symbol: &str) -> DeviceError {
    DeviceError::Unavailable {
        what: format!("the function {symbol} of the CUDA driver"),
        reason: format!("`{}` does not have it", path.display()),
        remedy: "update the NVIDIA driver (11.4 or later is needed)".into(),
    }
}
