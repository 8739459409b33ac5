//! The functions that replace the driver's, each under the driver's name, and the table of them.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use crate::base::context;
use crate::base::driver::{
    Context, DevicePtr, NOT_INITIALIZED, STREAM_LEGACY, STREAM_PER_THREAD, SUCCESS, Status, Stream,
};
use crate::calls::lookup::{self, Replaced};
use crate::calls::shapes::{self, Plane, Space};
use crate::decide::batch::{self, Attributes, Batch};
use crate::decide::{self, In, Out};
use crate::methods::fast;
use crate::observers::passed::{self, Passed};
use crate::observers::stats::Kind;

/// From this version on signatures are not known, and everything is passed on.
pub(crate) const UNKNOWN: c_int = 14_000;

/// A stream by a handle that means the same in every function: 0 is the default stream of the function that was called.
const fn named(stream: Stream, default: Stream) -> Stream {
    if stream == 0 { default } else { stream }
}

/// Drops what Headway keeps for the primary context of a device.
fn forget_device(device: c_int) {
    fast::forget_device(device);
    context::forget_device(device);
}

/// The thread's `errno`, which it has again when this is dropped: waits of Headway's own set it.
struct KeptErrno(c_int);

impl KeptErrno {
    fn now() -> Self {
        // SAFETY: the C library gives each thread a place that lives as long as the thread.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeptErrno {
    fn drop(&mut self) {
        // SAFETY: as in `now`: the place is this thread's.
        unsafe { *libc::__errno_location() = self.0 };
    }
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
                let _errno = KeptErrno::now();
                let address = lookup::real(&TABLE[Row::$name as usize]);
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
        unsafe { lookup::resolved(status, name, function, version, flags) };
        status
    };

    /// The resolver with which later programs find every function.
    cuGetProcAddress_v2: c"cuGetProcAddress_v2" is c"cuGetProcAddress" from 12_000 until UNKNOWN, per thread false;
    fn(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, found: *mut c_int) |real| {
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(name, function, version, flags, found) };
        // SAFETY: the real call has just used both pointers.
        unsafe { lookup::resolved(status, name, function, version, flags) };
        status
    };

    /// Copies out of a GPU, in the order of a stream.
    cuMemcpyDtoHAsync_v2: c"cuMemcpyDtoHAsync_v2" is c"cuMemcpyDtoHAsync" from 3_020 until UNKNOWN, per thread false;
    fn(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Stream) |real| {
        let out = Out { to, from, bytes, stream: named(stream, STREAM_LEGACY), waits: false };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::OutAsync, || unsafe { real(to, from, bytes, stream) })
    };

    /// `cuMemcpyDtoHAsync` where stream 0 is the thread's own.
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

    /// `cuMemcpyDtoH` in the thread's own default stream.
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

    /// `cuMemcpyHtoDAsync` where stream 0 is the thread's own.
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

    /// `cuMemcpyHtoD` in the thread's own default stream.
    cuMemcpyHtoD_v2_ptds: c"cuMemcpyHtoD_v2_ptds" is c"cuMemcpyHtoD" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, from: *const c_void, bytes: usize) |real| {
        // SAFETY: the caller's arguments are passed on as they are.
        decide::into_gpu(In { to, from, bytes, stream: STREAM_PER_THREAD }, Kind::In, || unsafe { real(to, from, bytes) })
    };

    /// Copies between the two addresses, which tell the direction, in the order of a stream.
    cuMemcpyAsync: c"cuMemcpyAsync" is c"cuMemcpyAsync" from 4_000 until UNKNOWN, per thread false;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) |real| {
        let out = Out { to: to as *mut c_void, from, bytes, stream: named(stream, STREAM_LEGACY), waits: false };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::AnyAsync, || unsafe { real(to, from, bytes, stream) })
    };

    /// `cuMemcpyAsync` where stream 0 is the thread's own.
    cuMemcpyAsync_ptsz: c"cuMemcpyAsync_ptsz" is c"cuMemcpyAsync" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) |real| {
        let out = Out { to: to as *mut c_void, from, bytes, stream: named(stream, STREAM_PER_THREAD), waits: false };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::AnyAsync, || unsafe { real(to, from, bytes, stream) })
    };

    /// Copies between the two addresses, which tell the direction, and waits where the driver does.
    cuMemcpy: c"cuMemcpy" is c"cuMemcpy" from 4_000 until UNKNOWN, per thread false;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize) |real| {
        let out = Out { to: to as *mut c_void, from, bytes, stream: STREAM_LEGACY, waits: true };
        // SAFETY: the caller's arguments are passed on as they are.
        decide::out_of_gpu(out, Kind::Any, || unsafe { real(to, from, bytes) })
    };

    /// `cuMemcpy` in the thread's own default stream.
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

    /// Copies rows, and waits.
    cuMemcpy2D_v2: c"cuMemcpy2D_v2" is c"cuMemcpy2D" from 3_020 until UNKNOWN, per thread false;
    fn(shape: *const Plane) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::plane(shape, STREAM_LEGACY, true, || real(shape)) }
    };

    /// `cuMemcpy2D` in the thread's own default stream.
    cuMemcpy2D_v2_ptds: c"cuMemcpy2D_v2_ptds" is c"cuMemcpy2D" from 7_000 until UNKNOWN, per thread true;
    fn(shape: *const Plane) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::plane(shape, STREAM_PER_THREAD, true, || real(shape)) }
    };

    /// Copies rows of any pitch, and waits.
    cuMemcpy2DUnaligned_v2: c"cuMemcpy2DUnaligned_v2" is c"cuMemcpy2DUnaligned" from 3_020 until UNKNOWN, per thread false;
    fn(shape: *const Plane) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::plane(shape, STREAM_LEGACY, true, || real(shape)) }
    };

    /// `cuMemcpy2DUnaligned` in the thread's own default stream.
    cuMemcpy2DUnaligned_v2_ptds: c"cuMemcpy2DUnaligned_v2_ptds" is c"cuMemcpy2DUnaligned" from 7_000 until UNKNOWN, per thread true;
    fn(shape: *const Plane) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::plane(shape, STREAM_PER_THREAD, true, || real(shape)) }
    };

    /// Copies planes, and waits.
    cuMemcpy3D_v2: c"cuMemcpy3D_v2" is c"cuMemcpy3D" from 3_020 until UNKNOWN, per thread false;
    fn(shape: *const Space) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::space(shape, STREAM_LEGACY, true, || real(shape)) }
    };

    /// `cuMemcpy3D` in the thread's own default stream.
    cuMemcpy3D_v2_ptds: c"cuMemcpy3D_v2_ptds" is c"cuMemcpy3D" from 7_000 until UNKNOWN, per thread true;
    fn(shape: *const Space) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::space(shape, STREAM_PER_THREAD, true, || real(shape)) }
    };

    /// Copies rows, in the order of a stream.
    cuMemcpy2DAsync_v2: c"cuMemcpy2DAsync_v2" is c"cuMemcpy2DAsync" from 3_020 until UNKNOWN, per thread false;
    fn(shape: *const Plane, stream: Stream) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::plane(shape, named(stream, STREAM_LEGACY), false, || real(shape, stream)) }
    };

    /// `cuMemcpy2DAsync` where stream 0 is the thread's own.
    cuMemcpy2DAsync_v2_ptsz: c"cuMemcpy2DAsync_v2_ptsz" is c"cuMemcpy2DAsync" from 7_000 until UNKNOWN, per thread true;
    fn(shape: *const Plane, stream: Stream) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::plane(shape, named(stream, STREAM_PER_THREAD), false, || real(shape, stream)) }
    };

    /// Copies planes, in the order of a stream.
    cuMemcpy3DAsync_v2: c"cuMemcpy3DAsync_v2" is c"cuMemcpy3DAsync" from 3_020 until UNKNOWN, per thread false;
    fn(shape: *const Space, stream: Stream) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::space(shape, named(stream, STREAM_LEGACY), false, || real(shape, stream)) }
    };

    /// `cuMemcpy3DAsync` where stream 0 is the thread's own.
    cuMemcpy3DAsync_v2_ptsz: c"cuMemcpy3DAsync_v2_ptsz" is c"cuMemcpy3DAsync" from 7_000 until UNKNOWN, per thread true;
    fn(shape: *const Space, stream: Stream) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the shape, too.
        unsafe { shapes::space(shape, named(stream, STREAM_PER_THREAD), false, || real(shape, stream)) }
    };

    /// Many copies in one call, as CUDA 12.8 has them.
    cuMemcpyBatchAsync: c"cuMemcpyBatchAsync" is c"cuMemcpyBatchAsync" from 12_080 until 13_000, per thread false;
    fn(to: *const DevicePtr, from: *const DevicePtr, sizes: *const usize, count: usize, attributes: *const Attributes, first: *const usize, kinds: usize, failed: *mut usize, stream: Stream) |real| {
        let batch = Batch { to, from, sizes, count, attributes, first, kinds, stream: named(stream, STREAM_LEGACY) };
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the lists, too.
        unsafe { batch::copy(batch, failed, |some, failed| real(some.to, some.from, some.sizes, some.count, some.attributes, some.first, some.kinds, failed, stream)) }
    };

    /// `cuMemcpyBatchAsync` where stream 0 is the thread's own.
    cuMemcpyBatchAsync_ptsz: c"cuMemcpyBatchAsync_ptsz" is c"cuMemcpyBatchAsync" from 12_080 until 13_000, per thread true;
    fn(to: *const DevicePtr, from: *const DevicePtr, sizes: *const usize, count: usize, attributes: *const Attributes, first: *const usize, kinds: usize, failed: *mut usize, stream: Stream) |real| {
        let batch = Batch { to, from, sizes, count, attributes, first, kinds, stream: named(stream, STREAM_PER_THREAD) };
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the lists, too.
        unsafe { batch::copy(batch, failed, |some, failed| real(some.to, some.from, some.sizes, some.count, some.attributes, some.first, some.kinds, failed, stream)) }
    };

    /// `cuMemcpyBatchAsync` of CUDA 13, which does not tell which copy failed.
    cuMemcpyBatchAsync_v2: c"cuMemcpyBatchAsync_v2" is c"cuMemcpyBatchAsync" from 13_000 until UNKNOWN, per thread false;
    fn(to: *const DevicePtr, from: *const DevicePtr, sizes: *const usize, count: usize, attributes: *const Attributes, first: *const usize, kinds: usize, stream: Stream) |real| {
        let batch = Batch { to, from, sizes, count, attributes, first, kinds, stream: named(stream, STREAM_LEGACY) };
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the lists, too.
        unsafe { batch::copy(batch, null_mut(), |some, _| real(some.to, some.from, some.sizes, some.count, some.attributes, some.first, some.kinds, stream)) }
    };

    /// `cuMemcpyBatchAsync` where stream 0 is the thread's own.
    cuMemcpyBatchAsync_v2_ptsz: c"cuMemcpyBatchAsync_v2_ptsz" is c"cuMemcpyBatchAsync" from 13_000 until UNKNOWN, per thread true;
    fn(to: *const DevicePtr, from: *const DevicePtr, sizes: *const usize, count: usize, attributes: *const Attributes, first: *const usize, kinds: usize, stream: Stream) |real| {
        let batch = Batch { to, from, sizes, count, attributes, first, kinds, stream: named(stream, STREAM_PER_THREAD) };
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the lists, too.
        unsafe { batch::copy(batch, null_mut(), |some, _| real(some.to, some.from, some.sizes, some.count, some.attributes, some.first, some.kinds, stream)) }
    };

    /// Copies within a GPU: counted.
    cuMemcpyDtoD_v2: c"cuMemcpyDtoD_v2" is c"cuMemcpyDtoD" from 3_020 until UNKNOWN, per thread false;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize) |real| {
        passed::count(Passed::Within, bytes);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(to, from, bytes) }
    };

    /// Copies within a GPU: counted.
    cuMemcpyDtoD_v2_ptds: c"cuMemcpyDtoD_v2_ptds" is c"cuMemcpyDtoD" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize) |real| {
        passed::count(Passed::Within, bytes);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(to, from, bytes) }
    };

    /// `cuMemcpyDtoDAsync` in the order of a stream.
    cuMemcpyDtoDAsync_v2: c"cuMemcpyDtoDAsync_v2" is c"cuMemcpyDtoDAsync" from 3_020 until UNKNOWN, per thread false;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) |real| {
        passed::count(Passed::Within, bytes);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(to, from, bytes, stream) }
    };

    /// `cuMemcpyDtoDAsync` in the order of a stream.
    cuMemcpyDtoDAsync_v2_ptsz: c"cuMemcpyDtoDAsync_v2_ptsz" is c"cuMemcpyDtoDAsync" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) |real| {
        passed::count(Passed::Within, bytes);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(to, from, bytes, stream) }
    };

    /// Copies between GPUs: counted.
    cuMemcpyPeer: c"cuMemcpyPeer" is c"cuMemcpyPeer" from 4_000 until UNKNOWN, per thread false;
    fn(to: DevicePtr, there: Context, from: DevicePtr, here: Context, bytes: usize) |real| {
        passed::count(Passed::Peer, bytes);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(to, there, from, here, bytes) }
    };

    /// Copies between GPUs: counted.
    cuMemcpyPeer_ptds: c"cuMemcpyPeer_ptds" is c"cuMemcpyPeer" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, there: Context, from: DevicePtr, here: Context, bytes: usize) |real| {
        passed::count(Passed::Peer, bytes);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(to, there, from, here, bytes) }
    };

    /// `cuMemcpyPeerAsync` in the order of a stream.
    cuMemcpyPeerAsync: c"cuMemcpyPeerAsync" is c"cuMemcpyPeerAsync" from 4_000 until UNKNOWN, per thread false;
    fn(to: DevicePtr, there: Context, from: DevicePtr, here: Context, bytes: usize, stream: Stream) |real| {
        passed::count(Passed::Peer, bytes);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(to, there, from, here, bytes, stream) }
    };

    /// `cuMemcpyPeerAsync` in the order of a stream.
    cuMemcpyPeerAsync_ptsz: c"cuMemcpyPeerAsync_ptsz" is c"cuMemcpyPeerAsync" from 7_000 until UNKNOWN, per thread true;
    fn(to: DevicePtr, there: Context, from: DevicePtr, here: Context, bytes: usize, stream: Stream) |real| {
        passed::count(Passed::Peer, bytes);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(to, there, from, here, bytes, stream) }
    };

    /// A copy with attributes, in the order of a stream.
    cuMemcpyWithAttributesAsync: c"cuMemcpyWithAttributesAsync" is c"cuMemcpyWithAttributesAsync" from 13_020 until UNKNOWN, per thread false;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, attributes: *const Attributes, stream: Stream) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the attributes, too.
        unsafe { batch::copy_one(to, from, bytes, attributes, named(stream, STREAM_LEGACY), |attributes| real(to, from, bytes, attributes, stream)) }
    };

    /// The form for which stream 0 is the thread's own.
    cuMemcpyWithAttributesAsync_ptsz: c"cuMemcpyWithAttributesAsync_ptsz" is c"cuMemcpyWithAttributesAsync" from 13_020 until UNKNOWN, per thread true;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, attributes: *const Attributes, stream: Stream) |real| {
        // SAFETY: the caller's arguments are passed on as they are; the driver reads the attributes, too.
        unsafe { batch::copy_one(to, from, bytes, attributes, named(stream, STREAM_PER_THREAD), |attributes| real(to, from, bytes, attributes, stream)) }
    };

    /// A stream is destroyed, and its handle may be given again.
    cuStreamDestroy_v2: c"cuStreamDestroy_v2" is c"cuStreamDestroy" from 4_000 until UNKNOWN, per thread false;
    fn(stream: Stream) |real| {
        context::forget_stream(stream);
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { real(stream) }
    };

    /// The context is destroyed. Headway drops what it keeps for it, also what another thread made meanwhile.
    cuCtxDestroy_v2: c"cuCtxDestroy_v2" is c"cuCtxDestroy" from 4_000 until UNKNOWN, per thread false;
    fn(which: Context) |real| {
        context::forget(which);
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(which) };
        context::forget(which);
        status
    };

    /// `cuCtxDestroy` of the first drivers.
    cuCtxDestroy: c"cuCtxDestroy" is c"cuCtxDestroy" from 2_000 until 4_000, per thread false;
    fn(which: Context) |real| {
        context::forget(which);
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(which) };
        context::forget(which);
        status
    };

    /// A part of a GPU and its context are destroyed. The call does not name the context, so Headway prepares all of them anew.
    cuGreenCtxDestroy: c"cuGreenCtxDestroy" is c"cuGreenCtxDestroy" from 12_040 until UNKNOWN, per thread false;
    fn(which: usize) |real| {
        context::forget_all();
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(which) };
        context::forget_all();
        status
    };

    /// The last release destroys the primary context; after any other, it is prepared anew.
    cuDevicePrimaryCtxRelease_v2: c"cuDevicePrimaryCtxRelease_v2" is c"cuDevicePrimaryCtxRelease" from 11_000 until UNKNOWN, per thread false;
    fn(device: c_int) |real| {
        forget_device(device);
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(device) };
        forget_device(device);
        status
    };

    /// `cuDevicePrimaryCtxRelease` before CUDA 11.
    cuDevicePrimaryCtxRelease: c"cuDevicePrimaryCtxRelease" is c"cuDevicePrimaryCtxRelease" from 7_000 until 11_000, per thread false;
    fn(device: c_int) |real| {
        forget_device(device);
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(device) };
        forget_device(device);
        status
    };

    /// The primary context is destroyed, whatever parts of the program hold it.
    cuDevicePrimaryCtxReset_v2: c"cuDevicePrimaryCtxReset_v2" is c"cuDevicePrimaryCtxReset" from 11_000 until UNKNOWN, per thread false;
    fn(device: c_int) |real| {
        forget_device(device);
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(device) };
        forget_device(device);
        status
    };

    /// `cuDevicePrimaryCtxReset` before CUDA 11.
    cuDevicePrimaryCtxReset: c"cuDevicePrimaryCtxReset" is c"cuDevicePrimaryCtxReset" from 7_000 until 11_000, per thread false;
    fn(device: c_int) |real| {
        forget_device(device);
        // SAFETY: the caller's arguments are passed on as they are.
        let status = unsafe { real(device) };
        forget_device(device);
        status
    };
}
