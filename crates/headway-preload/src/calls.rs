//! The functions that replace the driver's, each under the driver's name, and the table of them.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::AtomicPtr;

use crate::decide::{self, In, Out};
use crate::driver::{Context, DevicePtr, NOT_INITIALIZED, STREAM_LEGACY, STREAM_PER_THREAD, SUCCESS, Status, Stream};
use crate::road::{self, Replaced};
use crate::stats::Kind;
use crate::{context, fast};

/// Beyond this version signatures are not known, and everything is passed on.
const UNKNOWN: c_int = 14_000;

/// A stream by a handle that means the same in every function: 0 is the default stream of the function that was called.
const fn named(stream: Stream, default: Stream) -> Stream {
    if stream == 0 { default } else { stream }
}

macro_rules! replaced {
    ($(
        $(#[$doc:meta])*
        $name:ident: $symbol:literal is $base:literal from $since:literal until $until:expr, per thread $per_thread:literal;
        fn($($argument:ident: $type:ty),*) |$real:ident| $body:expr;
    )*) => {
        /// Every function that is replaced.
        pub(crate) static TABLE: &[Replaced] = &[$(Replaced {
            base: $base,
            symbol: $symbol,
            versions: ($since, $until),
            per_thread: $per_thread,
            ours: || $name as *const () as *mut c_void,
            real: { static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut()); &REAL },
        },)*];

        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        enum Row { $($name,)* }

        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As for the driver's function of this name.
            #[allow(non_snake_case)]
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> Status {
                let address = road::real(&TABLE[Row::$name as usize]);
                if address.is_null() {
                    return NOT_INITIALIZED;
                }
                // SAFETY: the address is the real function of this row, which has this signature.
                let $real = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Status>(address)
                };
                $body
            }
        )*
    };
}

replaced! {
    /// The resolver with which CUDA 11 programs find every function.
    cuGetProcAddress: c"cuGetProcAddress" is c"cuGetProcAddress" from 11_030 until 12_000, per thread false;
    fn(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) |real| {
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(name, function, version, flags) };
        // SAFETY: the real call has just used both pointers.
        unsafe { road::resolved(status, name, function, version, flags) };
        status
    };

    /// The resolver with which later programs find every function.
    cuGetProcAddress_v2: c"cuGetProcAddress_v2" is c"cuGetProcAddress" from 12_000 until UNKNOWN, per thread false;
    fn(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, found: *mut c_int) |real| {
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(name, function, version, flags, found) };
        // SAFETY: the real call has just used both pointers.
        unsafe { road::resolved(status, name, function, version, flags) };
        status
    };

    /// Copies out of a GPU, in the order of a stream.
    cuMemcpyDtoHAsync_v2: c"cuMemcpyDtoHAsync_v2" is c"cuMemcpyDtoHAsync" from 3_020 until UNKNOWN, per thread false;
    fn(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Stream) |real| {
        let out = Out { to, from, bytes, stream: named(stream, STREAM_LEGACY), waits: false };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::OutAsync, || unsafe { real(to, from, bytes, stream) })
    };

    /// The same where stream 0 is the thread's own.
    cuMemcpyDtoHAsync_v2_ptsz: c"cuMemcpyDtoHAsync_v2_ptsz" is c"cuMemcpyDtoHAsync" from 7_000 until UNKNOWN, per thread true;
    fn(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Stream) |real| {
        let out = Out { to, from, bytes, stream: named(stream, STREAM_PER_THREAD), waits: false };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::OutAsync, || unsafe { real(to, from, bytes, stream) })
    };

    /// Copies out of a GPU and waits.
    cuMemcpyDtoH_v2: c"cuMemcpyDtoH_v2" is c"cuMemcpyDtoH" from 3_020 until UNKNOWN, per thread false;
    fn(to: *mut c_void, from: DevicePtr, bytes: usize) |real| {
        let out = Out { to, from, bytes, stream: STREAM_LEGACY, waits: true };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::Out, || unsafe { real(to, from, bytes) })
    };

    /// The same in the thread's own default stream.
    cuMemcpyDtoH_v2_ptds: c"cuMemcpyDtoH_v2_ptds" is c"cuMemcpyDtoH" from 7_000 until UNKNOWN, per thread true;
    fn(to: *mut c_void, from: DevicePtr, bytes: usize) |real| {
        let out = Out { to, from, bytes, stream: STREAM_PER_THREAD, waits: true };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::Out, || unsafe { real(to, from, bytes) })
    };

    /// Copies into a GPU, in the order of a stream.
    cuMemcpyHtoDAsync_v2: c"cuMemcpyHtoDAsync_v2" is c"cuMemcpyHtoDAsync" from 3_020 until UNKNOWN, per thread false;
    fn(to: DevicePtr, from: *const c_void, bytes: usize, stream: Stream) |real| {
        let copy = In { to, from, bytes, stream: named(stream, STREAM_LEGACY) };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::into_gpu(copy, Kind::InAsync, || unsafe { real(to, from, bytes, stream) })
    };

    /// The same where stream 0 is the thread's own.
    cuMemcpyHtoDAsync_v2_ptsz: c"cuMemcpyHtoDAsync_v2_ptsz" is c"cuMemcpyHtoDAsync" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, from: *const c_void, bytes: usize, stream: Stream) |real| {
        let copy = In { to, from, bytes, stream: named(stream, STREAM_PER_THREAD) };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::into_gpu(copy, Kind::InAsync, || unsafe { real(to, from, bytes, stream) })
    };

    /// Copies into a GPU and waits.
    cuMemcpyHtoD_v2: c"cuMemcpyHtoD_v2" is c"cuMemcpyHtoD" from 3_020 until UNKNOWN, per thread false;
    fn(to: DevicePtr, from: *const c_void, bytes: usize) |real| {
        // SAFETY: the caller's arguments are passed on as they are.
        decide::into_gpu(In { to, from, bytes, stream: STREAM_LEGACY }, Kind::In, || unsafe { real(to, from, bytes) })
    };

    /// The same in the thread's own default stream.
    cuMemcpyHtoD_v2_ptds: c"cuMemcpyHtoD_v2_ptds" is c"cuMemcpyHtoD" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, from: *const c_void, bytes: usize) |real| {
        // SAFETY: the caller's arguments are passed on as they are.
        decide::into_gpu(In { to, from, bytes, stream: STREAM_PER_THREAD }, Kind::In, || unsafe { real(to, from, bytes) })
    };

    /// Copies whatever the two addresses say, in the order of a stream.
    cuMemcpyAsync: c"cuMemcpyAsync" is c"cuMemcpyAsync" from 4_000 until UNKNOWN, per thread false;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) |real| {
        let out = Out { to: to as *mut c_void, from, bytes, stream: named(stream, STREAM_LEGACY), waits: false };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::AnyAsync, || unsafe { real(to, from, bytes, stream) })
    };

    /// The same where stream 0 is the thread's own.
    cuMemcpyAsync_ptsz: c"cuMemcpyAsync_ptsz" is c"cuMemcpyAsync" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) |real| {
        let out = Out { to: to as *mut c_void, from, bytes, stream: named(stream, STREAM_PER_THREAD), waits: false };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::AnyAsync, || unsafe { real(to, from, bytes, stream) })
    };

    /// Copies whatever the two addresses say, and waits where the driver does.
    cuMemcpy: c"cuMemcpy" is c"cuMemcpy" from 4_000 until UNKNOWN, per thread false;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize) |real| {
        let out = Out { to: to as *mut c_void, from, bytes, stream: STREAM_LEGACY, waits: true };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::Any, || unsafe { real(to, from, bytes) })
    };

    /// The same in the thread's own default stream.
    cuMemcpy_ptds: c"cuMemcpy_ptds" is c"cuMemcpy" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize) |real| {
        let out = Out { to: to as *mut c_void, from, bytes, stream: STREAM_PER_THREAD, waits: true };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::Any, || unsafe { real(to, from, bytes) })
    };

    /// A program gets hold of a device's primary context: a new one is prepared at its first copy.
    cuDevicePrimaryCtxRetain: c"cuDevicePrimaryCtxRetain" is c"cuDevicePrimaryCtxRetain" from 7_000 until UNKNOWN, per thread false;
    fn(place: *mut Context, device: c_int) |real| {
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(place, device) };
        if status == SUCCESS && !place.is_null() {
            // SAFETY: the real call has just written there.
            context::expect(unsafe { *place });
        }
        status
    };

    /// The context goes, and with it what was kept for it.
    cuCtxDestroy_v2: c"cuCtxDestroy_v2" is c"cuCtxDestroy" from 4_000 until UNKNOWN, per thread false;
    fn(which: Context) |real| {
        context::forget(which);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(which) }
    };

    /// The last release destroys the primary context; after any other, it is prepared anew.
    cuDevicePrimaryCtxRelease_v2: c"cuDevicePrimaryCtxRelease_v2" is c"cuDevicePrimaryCtxRelease" from 11_000 until UNKNOWN, per thread false;
    fn(device: c_int) |real| {
        fast::forget_device(device);
        context::forget_device(device);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(device) }
    };

    /// The primary context is destroyed whoever holds it.
    cuDevicePrimaryCtxReset_v2: c"cuDevicePrimaryCtxReset_v2" is c"cuDevicePrimaryCtxReset" from 11_000 until UNKNOWN, per thread false;
    fn(device: c_int) |real| {
        fast::forget_device(device);
        context::forget_device(device);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(device) }
    };
}
