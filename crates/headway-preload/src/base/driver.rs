//! The driver functions that Headway calls for itself, taken straight from the library that the guest has loaded.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::OnceLock;

use headway::guest::{Handle, functions};

use crate::base::symbols;

/// Result of a driver call; 0 is success.
pub(crate) type Status = c_int;
pub(crate) const SUCCESS: Status = 0;
pub(crate) const NOT_INITIALIZED: Status = 3;
pub(crate) const NOT_READY: Status = 600;

/// A CUDA stream; 0 is the default stream, legacy or per thread by the function that is called.
pub(crate) type Stream = usize;
/// The default streams by their unambiguous handles.
pub(crate) const STREAM_LEGACY: Stream = 1;
pub(crate) const STREAM_PER_THREAD: Stream = 2;
/// A CUDA context; 0 is none.
pub(crate) type Context = usize;
/// An address in the memory of a GPU.
pub(crate) type DevicePtr = u64;

/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_WITHOUT_TIME: c_uint = 2;
/// `CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS`: the GPU uses ordinary memory by itself.
pub(crate) const PAGEABLE_ACCESS: c_int = 88;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

macro_rules! functions {
    ($($symbol:ident,)*) => {
        /// Addresses of driver functions.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Driver {
            $(pub(crate) $symbol: functions::$symbol,)*
        }

        impl Driver {
            /// Looks every function up; `None` if one is missing, as in a driver older than CUDA 11.7.
            fn load(library: *mut c_void) -> Option<Self> {
                Some(Self {
                    $($symbol: {
                        let name = concat!(stringify!($symbol), "\0");
                        let address = symbols::find(library, CStr::from_bytes_with_nul(name.as_bytes()).ok()?);
                        if address.is_null() {
                            return None;
                        }
                        // SAFETY: the driver exports this name with this signature since the version that added it.
                        unsafe { std::mem::transmute::<*mut c_void, functions::$symbol>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    cuCtxGetCurrent,
    cuCtxGetDevice,
    cuCtxSetCurrent,
    cuDeviceGetAttribute,
    cuDeviceGetUuid_v2,
    cuEventCreate,
    cuEventDestroy_v2,
    cuEventQuery,
    cuEventRecord,
    cuEventSynchronize,
    cuLaunchKernel,
    cuMemHostAlloc,
    cuMemHostGetDevicePointer_v2,
    cuMemHostRegister_v2,
    cuMemHostUnregister,
    cuMemcpyDtoHAsync_v2,
    cuMemcpyHtoDAsync_v2,
    cuModuleGetFunction,
    cuModuleLoadData,
    cuPointerGetAttributes,
    cuStreamCreate,
    cuStreamDestroy_v2,
    cuStreamIsCapturing,
    cuStreamQuery,
    cuStreamSynchronize,
    cuStreamWriteValue32_v2,
    cuThreadExchangeStreamCaptureMode,
}

/// A CUDA stream, context or event as the driver's functions take it.
pub(crate) fn handle(number: usize) -> Handle {
    with_exposed_provenance_mut(number)
}

/// The driver that the guest has loaded; `None` as long as it has loaded none, and for good if it lacks a function.
pub(crate) fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    if let Some(known) = DRIVER.get() {
        return known.as_ref();
    }
    let library = symbols::library()?;
    DRIVER.get_or_init(|| Driver::load(library)).as_ref()
}

/// The version of the driver that the guest has loaded, which it tells before it is initialised.
pub(crate) fn driver_version() -> Option<c_int> {
    let address = symbols::find(symbols::library()?, c"cuDriverGetVersion");
    if address.is_null() {
        return None;
    }
    let mut version = 0;
    // SAFETY: every driver exports this name with this signature; `version` is valid for the call to write.
    let status =
        unsafe { std::mem::transmute::<*mut c_void, functions::cuDriverGetVersion>(address)(&raw mut version) };
    (status == SUCCESS).then_some(version)
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Address {
    /// 1 = host, 2 = device, 0 = unknown to the driver.
    kind: c_uint,
    managed: c_uint,
    device: c_int,
    seen_by_device: DevicePtr,
    range_start: DevicePtr,
    range_bytes: usize,
}

const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
/// Physical memory behind a mapped range comes in granules of this size or a multiple of it.
pub(crate) const GRANULE: u64 = 2 << 20;

impl Address {
    fn ask(driver: &Driver, address: DevicePtr) -> Option<Self> {
        let mut known = Self::default();
        // CU_POINTER_ATTRIBUTE_: MEMORY_TYPE, DEVICE_POINTER, IS_MANAGED, DEVICE_ORDINAL, RANGE_START_ADDR, RANGE_SIZE.
        let mut attributes = [2, 3, 8, 9, 11, 12];
        let mut values = [
            (&raw mut known.kind).cast::<c_void>(),
            (&raw mut known.seen_by_device).cast(),
            (&raw mut known.managed).cast(),
            (&raw mut known.device).cast(),
            (&raw mut known.range_start).cast(),
            (&raw mut known.range_bytes).cast(),
        ];
        // SAFETY: six attributes, six places of the sizes that the driver's documentation gives; the address is a number.
        let status = unsafe {
            (driver.cuPointerGetAttributes)(
                values.len() as c_uint,
                attributes.as_mut_ptr(),
                values.as_mut_ptr(),
                address,
            )
        };
        (status == SUCCESS).then_some(known)
    }

    fn covers(&self, address: DevicePtr, bytes: usize) -> bool {
        let before = address.wrapping_sub(self.range_start);
        self.range_bytes as u64 >= bytes as u64 && before <= self.range_bytes as u64 - bytes as u64
    }
}

/// Where device `device` sees `bytes` bytes of page-locked host memory at `address`; `None` if they are anything else.
pub(crate) fn pinned(driver: &Driver, address: *mut c_void, bytes: usize) -> Option<DevicePtr> {
    let start = address as DevicePtr;
    let first = Address::ask(driver, start)?;
    if first.kind != HOST || first.managed != 0 || first.seen_by_device == 0 {
        return None;
    }
    if !first.covers(start, bytes) {
        // The driver does not give the range of every registered block: then both ends must belong together.
        let last = Address::ask(driver, start.wrapping_add(bytes as u64 - 1))?;
        let apart = last.seen_by_device.wrapping_sub(first.seen_by_device);
        if first.range_bytes != 0 || last.kind != HOST || last.managed != 0 || apart != bytes as u64 - 1 {
            return None;
        }
    }
    Some(first.seen_by_device)
}

/// Where a program's memory may lie: not on the page of the null pointer, and within what the C library maps of its own accord.
const PROGRAM: std::ops::Range<DevicePtr> = 4096..1 << if cfg!(target_arch = "aarch64") { 48 } else { 47 };

/// Whether both ends of host memory are unknown to the driver: neither page-locked nor managed. Addresses at which no memory can be are
/// the driver's to refuse.
pub(crate) fn is_ordinary(driver: &Driver, address: *mut c_void, bytes: usize) -> bool {
    let unknown = |at: DevicePtr| Address::ask(driver, at).is_some_and(|known| known.kind == 0);
    let (first, last) = (address as DevicePtr, (address as DevicePtr).checked_add(bytes as u64 - 1));
    let last = last.filter(|last| PROGRAM.contains(&first) && PROGRAM.contains(last));
    last.is_some_and(|last| unknown(first) && unknown(last))
}

/// Whether `bytes` bytes at `address` are plain memory of device `device`, all of them mapped.
pub(crate) fn on_device(driver: &Driver, address: DevicePtr, bytes: usize, device: c_int) -> bool {
    let plain = |known: Address| known.kind == DEVICE && known.managed == 0 && known.device == device;
    let Some(first) = Address::ask(driver, address).filter(|known| plain(*known) && known.covers(address, bytes))
    else {
        return false;
    };
    // A reserved range (`cuMemAddressReserve`) may have holes: every granule of it is looked at.
    let end = address + bytes as u64 - 1;
    let mut at = (address / GRANULE + 1) * GRANULE;
    while first.range_bytes as u64 > GRANULE && at <= end {
        if !Address::ask(driver, at).is_some_and(plain) {
            return false;
        }
        at += GRANULE;
    }
    true
}

/// Whether an address is memory of a GPU, and not managed.
pub(crate) fn is_on_gpu(driver: &Driver, address: DevicePtr) -> bool {
    Address::ask(driver, address).is_some_and(|known| known.kind == DEVICE && known.managed == 0)
}

/// Whether a stream records operations instead of making them, or the driver will not say.
pub(crate) fn captures(driver: &Driver, stream: Stream) -> bool {
    let mut status = 1;
    // SAFETY: `status` is valid for the call to write; a bad handle is refused by the driver.
    let answer = unsafe { (driver.cuStreamIsCapturing)(handle(stream), &raw mut status) };
    answer != SUCCESS || status != 0
}

/// While this lives, calls of this thread may not disturb a capture that any thread has begun.
pub(crate) struct Relaxed<'a>(&'a Driver, c_int);

impl<'a> Relaxed<'a> {
    pub(crate) fn new(driver: &'a Driver) -> Self {
        let mut mode = RELAXED;
        // SAFETY: `mode` is valid for the call to exchange.
        unsafe { (driver.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
        Self(driver, mode)
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        // SAFETY: the mode that the thread had is given back.
        unsafe { (self.0.cuThreadExchangeStreamCaptureMode)(&raw mut self.1) };
    }
}

/// The context that is current on this thread.
pub(crate) fn current_context(driver: &Driver) -> Option<Context> {
    let mut context = null_mut();
    // SAFETY: `context` is valid for the call to write.
    let status = unsafe { (driver.cuCtxGetCurrent)(&raw mut context) };
    (status == SUCCESS && !context.is_null()).then(|| context.expose_provenance())
}

/// The device of the context that is current on this thread.
pub(crate) fn current_device(driver: &Driver) -> Option<c_int> {
    let mut device = 0;
    // SAFETY: `device` is valid for the call to write.
    (unsafe { (driver.cuCtxGetDevice)(&raw mut device) } == SUCCESS).then_some(device)
}

/// The UUID of a device.
pub(crate) fn uuid(driver: &Driver, device: c_int) -> Option<[u8; 16]> {
    let mut uuid = [0; 16];
    // SAFETY: `uuid` is valid for the call to write.
    (unsafe { (driver.cuDeviceGetUuid_v2)(&raw mut uuid, device) } == SUCCESS).then_some(uuid)
}

/// Waits until a stream that the caller uses in its call has passed what was queued.
pub(crate) fn synchronize(driver: &Driver, stream: Stream) -> Status {
    // SAFETY: the stream is the caller's, which uses it in this call.
    unsafe { (driver.cuStreamSynchronize)(handle(stream)) }
}

/// Waits as the driver does before it copies ordinary memory: until the stream has passed what was queued before.
pub(crate) fn wait(driver: &Driver, stream: Stream) -> bool {
    if stream == STREAM_LEGACY {
        // An event in the legacy stream is behind the work of all streams that wait for that stream.
        let mut event = null_mut();
        // SAFETY: `event` is valid for the call to write; event and stream are of the current context.
        unsafe {
            if (driver.cuEventCreate)(&raw mut event, EVENT_WITHOUT_TIME) != SUCCESS {
                return false;
            }
            let recorded = (driver.cuEventRecord)(event, handle(stream)) == SUCCESS;
            let waited = recorded && (driver.cuEventSynchronize)(event) == SUCCESS;
            (driver.cuEventDestroy_v2)(event);
            return waited;
        }
    }
    synchronize(driver, stream) == SUCCESS
}

/// Makes `context` current on this thread again.
pub(crate) fn make_current(driver: &Driver, context: Context) {
    if current_context(driver) != Some(context) {
        // SAFETY: the context was current on this thread a moment ago.
        unsafe { (driver.cuCtxSetCurrent)(handle(context)) };
    }
}

/// An attribute of a device, by its number in `CUdevice_attribute`.
pub(crate) fn attribute(driver: &Driver, device: c_int, number: c_int) -> Option<c_int> {
    let mut value = 0;
    // SAFETY: `value` is valid for the call to write.
    let status = unsafe { (driver.cuDeviceGetAttribute)(&raw mut value, number, device) };
    (status == SUCCESS).then_some(value)
}

/// What the copying kernel is given.
pub(crate) struct KernelCopy {
    pub(crate) to: DevicePtr,
    pub(crate) from: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) blocks: c_uint,
    pub(crate) threads: c_uint,
}

/// Queues the kernel that copies; whether the driver took it.
///
/// # Safety
/// `kernel` is ours and of the current context, `stream` is of that context, and both ranges are as long as the copy for the device
/// until the stream has passed the kernel.
pub(crate) unsafe fn launch(driver: &Driver, kernel: usize, stream: Stream, copy: KernelCopy) -> bool {
    let KernelCopy { mut to, mut from, mut bytes, blocks, threads } = copy;
    let mut arguments = [(&raw mut to).cast::<c_void>(), (&raw mut from).cast(), (&raw mut bytes).cast()];
    // SAFETY: the kernel takes three numbers of eight bytes, which the call copies; the rest by this function's contract.
    let status = unsafe {
        let arguments = arguments.as_mut_ptr();
        (driver.cuLaunchKernel)(handle(kernel), blocks, 1, 1, threads, 1, 1, 0, handle(stream), arguments, null_mut())
    };
    status == SUCCESS
}

/// A module and its one kernel, loaded into the current context.
pub(crate) fn load_kernel(driver: &Driver, ptx: &CStr, name: &CStr) -> Option<usize> {
    let (mut module, mut function) = (null_mut(), null_mut());
    // SAFETY: the text is PTX and ends in zero; `module` is valid for the call to write.
    if unsafe { (driver.cuModuleLoadData)(&raw mut module, ptx.as_ptr().cast()) } != SUCCESS {
        return None;
    }
    // SAFETY: the module was just loaded; the name ends in zero.
    let status = unsafe { (driver.cuModuleGetFunction)(&raw mut function, module, name.as_ptr()) };
    (status == SUCCESS).then(|| function.expose_provenance())
}
