//! Types that own what the driver hands out and give it back when dropped.
//!
//! Each keeps its context alive, so nothing outlives what it belongs to. A handle that cannot be given back (the context is
//! lost) is left to the driver.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use headway_core::units::Bytes;
use headway_device::buffer::{DeviceId, Memory, Place};
use headway_device::{DeviceError, Grid, Kernel};

use crate::checked::{Driver, call, lock, text};
use crate::table::{self, Address, Handle, Ordinal};

/// Size of the log the driver's compiler may fill.
const LOG_BYTES: usize = 8192;
/// Dynamic shared memory that a kernel gets without asking for more.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// A handle of the driver. The driver API is thread safe: any thread may use any handle while its context is current.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Raw(Handle);
// SAFETY: the CUDA driver API is thread safe for contexts, streams, events, modules and functions.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// The primary context of a device, shared with the CUDA runtime in this process.
pub(crate) struct Context {
    pub(crate) driver: Arc<Driver>,
    pub(crate) ordinal: Ordinal,
    pub(crate) id: DeviceId,
    handle: Raw,
    lost: AtomicBool,
    peers: Mutex<BTreeSet<Ordinal>>,
}

impl Context {
    pub(crate) fn retain(driver: &Arc<Driver>, ordinal: Ordinal) -> Result<Arc<Self>, DeviceError> {
        let mut handle = null_mut();
        // SAFETY: `handle` is valid for the call to write.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&raw mut handle, ordinal)) }?;
        Ok(Arc::new(Self {
            driver: Arc::clone(driver),
            ordinal,
            id: driver.id(ordinal),
            handle: Raw(handle),
            lost: AtomicBool::new(false),
            peers: Mutex::default(),
        }))
    }

    /// Makes this the calling thread's current context; it stays so.
    pub(crate) fn bind(&self) -> Result<(), DeviceError> {
        if self.lost.load(Ordering::Acquire) {
            return Err(DeviceError::DeviceLost);
        }
        // SAFETY: the context is retained while this value lives.
        self.note(unsafe { call!(self.driver, cuCtxSetCurrent(self.handle.0)) })
    }

    /// Remembers an error after which the context answers nothing else.
    pub(crate) fn note<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(DeviceError::Driver { code, .. }) = &result
            && table::ends_the_context(*code)
        {
            self.lose();
        }
        result
    }

    /// Later calls answer [`DeviceError::DeviceLost`].
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Whether it is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Lets this context use the memory of `peer`; asked of the driver once.
    pub(crate) fn enable_peer(&self, peer: &Self) -> Result<(), DeviceError> {
        let mut peers = lock(&self.peers);
        if peer.ordinal == self.ordinal || peers.contains(&peer.ordinal) {
            return Ok(());
        }
        if !self.driver.can_access(self.ordinal, peer.ordinal)? {
            return Err(DeviceError::Unavailable {
                what: format!("peer access from GPU {} to GPU {}", self.ordinal, peer.ordinal),
                reason: "the driver reports no direct way".into(),
                remedy: "copy through host memory (d2h, then h2d)".into(),
            });
        }
        self.bind()?;
        // SAFETY: both contexts are retained, this one is current, and the flags must be 0.
        let enabled = unsafe { call!(self.driver, cuCtxEnablePeerAccess(peer.handle.0, 0)) };
        if !matches!(enabled, Err(DeviceError::Driver { code: table::PEER_ACCESS_ALREADY_ENABLED, .. })) {
            self.note(enabled)?;
        }
        peers.insert(peer.ordinal);
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`; everything made in it keeps an `Arc` to this value, so it is gone.
        let _ = unsafe { call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.ordinal)) };
    }
}

/// A stream that does not wait for the default stream.
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: Raw,
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.bind()?;
        let mut handle = null_mut();
        // SAFETY: `handle` is valid for the call to write; the context is current.
        context.note(unsafe { call!(context.driver, cuStreamCreate(&raw mut handle, table::STREAM_NON_BLOCKING)) })?;
        Ok(Self { context: Arc::clone(context), handle: Raw(handle) })
    }

    /// Waits until everything in it is done.
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the stream lives as long as `self`.
        self.context.note(unsafe { call!(self.context.driver, cuStreamSynchronize(self.handle.0)) })
    }

    /// Queues a copy; the context must be current.
    ///
    /// # Safety
    /// Both ends must stay valid, and the destination unused by others, until the stream has passed this point. `from` is
    /// pinned or device memory as `kind` says, and so is `to`.
    pub(crate) unsafe fn copy(
        &self,
        kind: CopyKind<'_>,
        from: *mut u8,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let (driver, stream) = (&self.context.driver, self.handle.0);
        let (from_device, to_device) = (from.addr() as Address, to.addr() as Address);
        // SAFETY: the caller's promise; the stream lives as long as `self`.
        let queued = unsafe {
            match kind {
                CopyKind::HostToDevice => call!(driver, cuMemcpyHtoDAsync_v2(to_device, from.cast(), bytes, stream)),
                CopyKind::DeviceToHost => call!(driver, cuMemcpyDtoHAsync_v2(to.cast(), from_device, bytes, stream)),
                CopyKind::Within => call!(driver, cuMemcpyDtoDAsync_v2(to_device, from_device, bytes, stream)),
                CopyKind::Between(from_context, to_context) => {
                    let (from_context, to_context) = (from_context.handle.0, to_context.handle.0);
                    call!(driver, cuMemcpyPeerAsync(to_device, to_context, from_device, from_context, bytes, stream))
                }
            }
        };
        self.context.note(queued)
    }

    /// Queues a launch of `function` with the arguments of the kernel interface; the context must be current.
    ///
    /// # Safety
    /// The three addresses must be device memory that the kernel may use, until the stream has passed this point.
    pub(crate) unsafe fn launch(
        &self,
        module: &Module,
        grid: Grid,
        [mut input, mut output, mut state]: [Address; 3],
        mut lanes: c_uint,
    ) -> Result<(), DeviceError> {
        module.allow_shared(grid.shared_bytes)?;
        let mut arguments: [*mut c_void; 4] =
            [(&raw mut input).cast(), (&raw mut output).cast(), (&raw mut state).cast(), (&raw mut lanes).cast()];
        let (function, stream, arguments) = (module.function.0, self.handle.0, arguments.as_mut_ptr());
        let Grid { blocks, threads, shared_bytes } = grid;
        // SAFETY: the kernel's interface has these four parameters, which the driver copies during the call; function and
        // stream belong to this context; the caller's promise covers the memory.
        self.context.note(unsafe {
            call!(
                self.context.driver,
                cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, arguments, null_mut())
            )
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once; the driver finishes what is queued in it.
            let _ = unsafe { call!(self.context.driver, cuStreamDestroy_v2(self.handle.0)) };
        }
    }
}

/// Where a copy goes.
#[derive(Clone, Copy)]
pub(crate) enum CopyKind<'a> {
    HostToDevice,
    DeviceToHost,
    /// Within this device.
    Within,
    /// From the first context's device to the second's.
    Between(&'a Context, &'a Context),
}

/// An event with a time stamp.
pub(crate) struct Event {
    context: Arc<Context>,
    handle: Raw,
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.bind()?;
        let mut handle = null_mut();
        // SAFETY: `handle` is valid for the call to write; the context is current.
        context.note(unsafe { call!(context.driver, cuEventCreate(&raw mut handle, table::EVENT_DEFAULT)) })?;
        Ok(Self { context: Arc::clone(context), handle: Raw(handle) })
    }

    /// Queues the event; the context must be current.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: event and stream live and are of one context.
        self.context.note(unsafe { call!(self.context.driver, cuEventRecord(self.handle.0, stream.handle.0)) })
    }

    /// Whether the stream has passed it; the context must be current.
    pub(crate) fn is_reached(&self) -> Result<bool, DeviceError> {
        // SAFETY: the event lives.
        match unsafe { call!(self.context.driver, cuEventQuery(self.handle.0)) } {
            Ok(()) => Ok(true),
            Err(DeviceError::Driver { code: table::NOT_READY, .. }) => Ok(false),
            Err(error) => self.context.note(Err(error)),
        }
    }

    /// Nanoseconds from `self` to `later`, both reached; negative when `later` was earlier. Resolution about 0.5 us.
    pub(crate) fn nanos_to(&self, later: &Self) -> Result<i64, DeviceError> {
        let mut millis = 0f32;
        let (from, to) = (self.handle.0, later.handle.0);
        // SAFETY: both events live and are of one context; `millis` is valid for the call to write.
        self.context.note(unsafe { call!(self.context.driver, cuEventElapsedTime(&raw mut millis, from, to)) })?;
        // A cast from a float saturates, and takes NaN to 0.
        Ok((f64::from(millis) * 1e6) as i64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once.
            let _ = unsafe { call!(self.context.driver, cuEventDestroy_v2(self.handle.0)) };
        }
    }
}

/// A loaded kernel.
pub(crate) struct Module {
    context: Arc<Context>,
    handle: Raw,
    function: Raw,
    /// Dynamic shared memory that the function may already use.
    shared: Mutex<u32>,
    pub(crate) kernel: Arc<dyn Kernel>,
}

impl Module {
    pub(crate) fn load(context: &Arc<Context>, kernel: Arc<dyn Kernel>) -> Result<Self, DeviceError> {
        context.bind()?;
        let invalid = |_| DeviceError::Invalid { what: "kernel", reason: "its PTX or entry holds a NUL".into() };
        let ptx = CString::new(kernel.ptx()).map_err(invalid)?;
        let entry = CString::new(kernel.entry()).map_err(invalid)?;
        let mut log = vec![0 as c_char; LOG_BYTES];
        let mut options = [table::JIT_ERROR_LOG, table::JIT_ERROR_LOG_BYTES];
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), without_provenance_mut(LOG_BYTES)];
        let (count, options, values) = (options.len() as c_uint, options.as_mut_ptr(), values.as_mut_ptr());
        let mut handle = null_mut();
        // SAFETY: the text ends with NUL; options and values have `count` entries, whose buffer has the stated size; the
        // context is current.
        let loaded = unsafe {
            call!(context.driver, cuModuleLoadDataEx(&raw mut handle, ptx.as_ptr().cast(), count, options, values))
        };
        let failed = |error: DeviceError, log: String| match error {
            DeviceError::Driver { code, .. } if table::ends_the_context(code) => error,
            DeviceError::Driver { call, name, .. } => {
                DeviceError::KernelLoad { kernel: kernel.id().into(), reason: format!("{call}: {name}"), log }
            }
            other => other,
        };
        context.note(loaded.map_err(|error| failed(error, text(&log))))?;
        let mut module = Self {
            context: Arc::clone(context),
            handle: Raw(handle),
            function: Raw(null_mut()),
            shared: Mutex::default(),
            kernel: Arc::clone(&kernel),
        };
        let mut function = null_mut();
        // SAFETY: the module is loaded; the name ends with NUL.
        let found = unsafe { call!(context.driver, cuModuleGetFunction(&raw mut function, handle, entry.as_ptr())) };
        context.note(found.map_err(|error| failed(error, format!("entry `{}`", kernel.entry()))))?;
        module.function = Raw(function);
        Ok(module)
    }

    fn allow_shared(&self, bytes: u32) -> Result<(), DeviceError> {
        let mut allowed = lock(&self.shared);
        if bytes <= SHARED_WITHOUT_ASKING || bytes <= *allowed {
            return Ok(());
        }
        let wanted = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function belongs to the loaded module.
        let set = unsafe {
            let attribute = table::FUNCTION_MAX_DYNAMIC_SHARED_BYTES;
            call!(self.context.driver, cuFuncSetAttribute(self.function.0, attribute, wanted))
        };
        self.context.note(set)?;
        *allowed = bytes;
        Ok(())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded by `load`, unloaded once; the device has finished its launches before it drops its modules.
            let _ = unsafe { call!(self.context.driver, cuModuleUnload(self.handle.0)) };
        }
    }
}

/// Memory of a GPU.
pub(crate) struct DeviceMemory {
    pub(crate) context: Arc<Context>,
    address: Address,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates and zeroes.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        context.bind()?;
        let driver = &context.driver;
        let mut address = 0;
        // SAFETY: `address` is valid for the call to write; the context is current.
        match unsafe { call!(driver, cuMemAlloc_v2(&raw mut address, bytes.max(1))) } {
            Err(DeviceError::Driver { code: table::OUT_OF_MEMORY, .. }) => {
                let (mut free, mut total) = (0, 0);
                // SAFETY: both are valid for the call to write.
                unsafe { call!(driver, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
                let (wanted, available) = (Bytes(bytes as u64), Bytes(free as u64));
                return Err(DeviceError::OutOfMemory { what: "device memory", wanted, available });
            }
            other => context.note(other)?,
        }
        let memory = Self { context: Arc::clone(context), address, bytes };
        // SAFETY: the allocation has this size.
        context.note(unsafe { call!(driver, cuMemsetD8_v2(address, 0, bytes.max(1))) })?;
        // SAFETY: null names the default stream, in which the call above runs; it may return before the memory is set.
        context.note(unsafe { call!(driver, cuStreamSynchronize(null_mut())) })?;
        Ok(memory)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated by `new`, freed once; no operation uses it, as operations own spans of it.
            let _ = unsafe { call!(self.context.driver, cuMemFree_v2(self.address)) };
        }
    }
}

// SAFETY: a fresh allocation of the driver of at least `bytes` bytes, zeroed, freed on drop only; not host memory; the three
// answers come from fields that never change.
unsafe impl Memory for DeviceMemory {
    fn base(&self) -> *mut u8 {
        without_provenance_mut(self.address as usize)
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> Place {
        Place::Device { id: self.context.id, domain: self.context.driver.domain }
    }
}

/// Pinned host memory, reachable by every GPU of the driver.
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    base: Raw,
    pub(crate) bytes: usize,
}

impl PinnedMemory {
    /// Allocates pages and pins them; not zeroed.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        context.bind()?;
        let mut base = null_mut();
        let flags = table::HOST_ALLOC_PORTABLE | table::HOST_ALLOC_DEVICE_MAP;
        // SAFETY: `base` is valid for the call to write; the context is current.
        context.note(unsafe { call!(context.driver, cuMemHostAlloc(&raw mut base, bytes, flags)) })?;
        Ok(Self { context: Arc::clone(context), base: Raw(base), bytes })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.0.cast()
    }

    pub(crate) fn place(&self) -> Place {
        Place::Host { pinned: Some(self.context.driver.domain) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // In a lost context a copy may never have been seen to end: the pages are left to the driver.
        if self.context.bind().is_ok() {
            // SAFETY: allocated by `new`, freed once; no operation uses it, as operations own spans of it.
            let _ = unsafe { call!(self.context.driver, cuMemFreeHost(self.base.0)) };
        }
    }
}

/// The driver's own synchronous copy between ordinary host memory and this device, complete when this returns.
///
/// # Safety
/// Both ends must be valid for `bytes` bytes, the destination unused by others, and `kind` one of the two host directions.
pub(crate) unsafe fn copy_pageable(
    context: &Context,
    kind: CopyKind<'_>,
    from: *mut u8,
    to: *mut u8,
    bytes: usize,
) -> Result<(), DeviceError> {
    context.bind()?;
    if bytes == 0 {
        return Ok(());
    }
    let driver = &context.driver;
    // SAFETY: the caller's promise; the context is current.
    let copied = unsafe {
        if matches!(kind, CopyKind::DeviceToHost) {
            call!(driver, cuMemcpyDtoH_v2(to.cast(), from.addr() as Address, bytes))
        } else {
            call!(driver, cuMemcpyHtoD_v2(to.addr() as Address, from.cast(), bytes))
        }
    };
    context.note(copied)?;
    // SAFETY: null names the default stream, in which the call above runs: towards the device it may return when the bytes
    // are staged only.
    context.note(unsafe { call!(driver, cuStreamSynchronize(null_mut())) })
}
