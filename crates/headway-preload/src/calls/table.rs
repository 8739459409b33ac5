//! The functions that replace the driver's, each under the driver's name, and the table of them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use headway_core::files::guest_log::Call;

use crate::base::copy::Copy;
use crate::base::driver::{
    Context, DevicePtr, NOT_INITIALIZED, STREAM_LEGACY, STREAM_PER_THREAD, SUCCESS, Status, Stream,
};
use crate::base::kept::KeptThread;
use crate::base::{context, pins};
use crate::calls::begin::UNKNOWN;
use crate::calls::replaced::{Replaced, Table};
use crate::calls::shapes::{self, Plane, Space};
use crate::decide::{self, batch, launches, pass_on};
use crate::methods::batch::{Attributes, Batch, Lists};
use crate::methods::{fast, pinned};
use crate::observers::Passed;

/// A stream by a handle that means the same in every function: 0 is the default stream of the function that was called.
const fn named(stream: Stream, default: Stream) -> Stream {
    if stream == 0 { default } else { stream }
}

/// Makes a call that may destroy something, and drops what Headway keeps for that, also what another thread made meanwhile.
fn destroying(forget: impl Fn(), real: impl FnOnce() -> Status) -> Status {
    pinned::release_all();
    forget();
    let status = real();
    forget();
    status
}

/// Makes a call that allocates memory, as programs do before they launch kernels. What Headway needs comes behind it, so that the program
/// gets all that is free.
fn prepared(real: impl FnOnce() -> Status) -> Status {
    let status = real();
    if status == SUCCESS {
        decide::prepare();
    }
    status
}

/// Makes a call that may see pinned memory, which is ordinary memory then.
fn unpinned(end_pins: impl FnOnce(), real: impl FnOnce() -> Status) -> Status {
    end_pins();
    real()
}

/// A node of a graph, of the kind that `what` begins with: a copy is made when no call tells.
fn pins_and_node(what: *const c_void) {
    /// `CU_GRAPH_NODE_TYPE_MEMCPY`.
    const COPIES: c_int = 1;
    // SAFETY: the driver reads it, too.
    if !what.is_null() && unsafe { what.cast::<c_int>().read_unaligned() } == COPIES {
        pins::stop();
    }
}

/// Drops what Headway keeps for a context.
fn forget(which: Context) {
    context::forget(which);
    launches::forget(which);
}

/// Drops what Headway keeps for any context.
fn forget_all() {
    context::forget_all();
    launches::forget_all();
}

/// Drops what Headway keeps for the primary context of a device.
fn forget_device(device: c_int) {
    fast::forget_device(device);
    context::forget_device(device);
    launches::forget_device(device);
}

/// A launch (`CUlaunchConfig`).
#[repr(C)]
pub(crate) struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Stream,
    attributes: *mut c_void,
    attribute_count: c_uint,
}

const fn text(ends_in_zero: &str) -> &CStr {
    match CStr::from_bytes_with_nul(ends_in_zero.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text has one zero, at its end"),
    }
}

macro_rules! row {
    ($name:ident, $base:literal, $since:literal, $until:expr, $per_thread:literal) => {
        Replaced {
            base: $base,
            symbol: const { text(concat!(stringify!($name), "\0")) },
            versions: ($since, $until),
            per_thread: $per_thread,
            ours: || $name as *const () as *mut c_void,
            real: {
                static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                &REAL
            },
        }
    };
}

macro_rules! function {
    (
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $type:ty),*)
        by($real:ident, $default:ident $(, $function:ident)?), $default_stream:ident, $body:expr
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the driver's function of this name.
        #[allow(non_snake_case, reason = "the driver's own names")]
        #[allow(unused_variables, reason = "some calls have no stream")]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> Status {
            let _kept = KeptThread::now();
            let address = TABLE.real(Row::$name as usize);
            if address.is_null() {
                return NOT_INITIALIZED;
            }
            // SAFETY: the address is the real function of this row, which has this signature.
            let function = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Status>(address)
            };
            // SAFETY: the caller's arguments are passed on as they are.
            let $real = move || unsafe { function($($argument),*) };
            let _call = pins::enter();
            $(let $function = function;)?
            let $default = $default_stream;
            $body
        }
    };
}

/// The table and its functions. A function of the driver has up to two forms: in the second one stream 0 is the thread's own. `real` is the
/// driver's own call with the caller's arguments, `default` what stream 0 means, and `function` the driver's function.
macro_rules! replaced {
    ($(
        $(#[$doc:meta])*
        $name:ident: $base:literal from $since:literal until $until:expr $(, or $per_thread:ident from $also_since:literal)?;
        fn $arguments:tt by $given:tt $body:expr;
    )*) => {
        /// Every function that is replaced.
        pub(crate) static TABLE: Table = Table {
            rows: &[$(
                row!($name, $base, $since, $until, false),
                $(row!($per_thread, $base, $also_since, $until, true),)?
            )*],
        };

        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "the driver's own names")]
        enum Row { $($name, $($per_thread,)?)* }

        $(
            function! { $(#[$doc])* $name $arguments by $given, STREAM_LEGACY, $body }
            $(function! {
                /// The same where stream 0 is the thread's own.
                $per_thread $arguments by $given, STREAM_PER_THREAD, $body
            })?
        )*
    };
}

replaced! {
    /// The resolver with which CUDA 11 programs find every function.
    cuGetProcAddress: c"cuGetProcAddress" from 11_030 until 12_000;
    fn(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) by(real, default) {
        let status = real();
        // SAFETY: the real call has just used both pointers.
        unsafe { TABLE.resolved(status, name, function, version, flags) };
        status
    };

    /// The resolver with which later programs find every function.
    cuGetProcAddress_v2: c"cuGetProcAddress" from 12_000 until UNKNOWN;
    fn(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, found: *mut c_int) by(real, default) {
        let status = real();
        // SAFETY: the real call has just used both pointers.
        unsafe { TABLE.resolved(status, name, function, version, flags) };
        status
    };

    /// Copies out of a GPU, in the order of a stream.
    cuMemcpyDtoHAsync_v2: c"cuMemcpyDtoHAsync" from 3_020 until UNKNOWN, or cuMemcpyDtoHAsync_v2_ptsz from 7_000;
    fn(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Stream) by(real, default)
        decide::copy(Copy::new(Call::OutAsync, to as DevicePtr, from, bytes, named(stream, default)), real);

    /// Copies out of a GPU and waits.
    cuMemcpyDtoH_v2: c"cuMemcpyDtoH" from 3_020 until UNKNOWN, or cuMemcpyDtoH_v2_ptds from 7_000;
    fn(to: *mut c_void, from: DevicePtr, bytes: usize) by(real, default)
        decide::copy(Copy::new(Call::Out, to as DevicePtr, from, bytes, default), real);

    /// Copies into a GPU, in the order of a stream.
    cuMemcpyHtoDAsync_v2: c"cuMemcpyHtoDAsync" from 3_020 until UNKNOWN, or cuMemcpyHtoDAsync_v2_ptsz from 7_000;
    fn(to: DevicePtr, from: *const c_void, bytes: usize, stream: Stream) by(real, default)
        decide::copy(Copy::new(Call::InAsync, to, from as DevicePtr, bytes, named(stream, default)), real);

    /// Copies into a GPU and waits.
    cuMemcpyHtoD_v2: c"cuMemcpyHtoD" from 3_020 until UNKNOWN, or cuMemcpyHtoD_v2_ptds from 7_000;
    fn(to: DevicePtr, from: *const c_void, bytes: usize) by(real, default)
        decide::copy(Copy::new(Call::In, to, from as DevicePtr, bytes, default), real);

    /// Copies between the two addresses, which tell the direction, in the order of a stream.
    cuMemcpyAsync: c"cuMemcpyAsync" from 4_000 until UNKNOWN, or cuMemcpyAsync_ptsz from 7_000;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) by(real, default)
        decide::copy(Copy::new(Call::AnyAsync, to, from, bytes, named(stream, default)), real);

    /// Copies between the two addresses, which tell the direction, and waits where the driver does.
    cuMemcpy: c"cuMemcpy" from 4_000 until UNKNOWN, or cuMemcpy_ptds from 7_000;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize) by(real, default)
        decide::copy(Copy::new(Call::Any, to, from, bytes, default), real);

    /// A program gets hold of a device's primary context: a new one is prepared at its first copy.
    cuDevicePrimaryCtxRetain: c"cuDevicePrimaryCtxRetain" from 7_000 until UNKNOWN;
    fn(place: *mut Context, device: c_int) by(real, default) {
        let status = real();
        if status == SUCCESS && !place.is_null() {
            // SAFETY: the real call has just written there.
            context::expect(unsafe { *place });
            fast::expect(device);
        }
        status
    };

    /// Memory of a GPU is allocated.
    cuMemAlloc_v2: c"cuMemAlloc" from 3_020 until UNKNOWN;
    fn(place: *mut DevicePtr, bytes: usize) by(real, default) prepared(real);

    /// The same for rows.
    cuMemAllocPitch_v2: c"cuMemAllocPitch" from 3_020 until UNKNOWN;
    fn(place: *mut DevicePtr, pitch: *mut usize, width: usize, rows: usize, element: c_uint) by(real, default) prepared(real);

    /// Memory that CPU and GPU share.
    cuMemAllocManaged: c"cuMemAllocManaged" from 6_000 until UNKNOWN;
    fn(place: *mut DevicePtr, bytes: usize, flags: c_uint) by(real, default) prepared(real);

    /// Memory of a GPU, in the order of a stream.
    cuMemAllocAsync: c"cuMemAllocAsync" from 11_020 until UNKNOWN, or cuMemAllocAsync_ptsz from 11_020;
    fn(place: *mut DevicePtr, bytes: usize, stream: Stream) by(real, default) prepared(real);

    /// The same from a pool of the program's.
    cuMemAllocFromPoolAsync: c"cuMemAllocFromPoolAsync" from 11_020 until UNKNOWN, or cuMemAllocFromPoolAsync_ptsz from 11_020;
    fn(place: *mut DevicePtr, bytes: usize, pool: usize, stream: Stream) by(real, default) prepared(real);

    /// Memory of a GPU without an address.
    cuMemCreate: c"cuMemCreate" from 10_020 until UNKNOWN;
    fn(place: *mut usize, bytes: usize, what: *const c_void, flags: u64) by(real, default) prepared(real);

    /// Page-locked memory.
    cuMemHostAlloc: c"cuMemHostAlloc" from 2_020 until UNKNOWN;
    fn(place: *mut *mut c_void, bytes: usize, flags: c_uint) by(real, default) prepared(real);

    /// `cuMemHostAlloc` without flags.
    cuMemAllocHost_v2: c"cuMemAllocHost" from 3_020 until UNKNOWN;
    fn(place: *mut *mut c_void, bytes: usize) by(real, default) prepared(real);

    /// Copies rows, and waits.
    cuMemcpy2D_v2: c"cuMemcpy2D" from 3_020 until UNKNOWN, or cuMemcpy2D_v2_ptds from 7_000;
    fn(shape: *const Plane) by(real, default) {
        // SAFETY: the driver reads the shape, too.
        unsafe { shapes::plane(shape, default, true, real) }
    };

    /// Copies rows of any pitch, and waits.
    cuMemcpy2DUnaligned_v2: c"cuMemcpy2DUnaligned" from 3_020 until UNKNOWN, or cuMemcpy2DUnaligned_v2_ptds from 7_000;
    fn(shape: *const Plane) by(real, default) {
        // SAFETY: the driver reads the shape, too.
        unsafe { shapes::plane(shape, default, true, real) }
    };

    /// Copies planes, and waits.
    cuMemcpy3D_v2: c"cuMemcpy3D" from 3_020 until UNKNOWN, or cuMemcpy3D_v2_ptds from 7_000;
    fn(shape: *const Space) by(real, default) {
        // SAFETY: the driver reads the shape, too.
        unsafe { shapes::space(shape, default, true, real) }
    };

    /// Copies rows, in the order of a stream.
    cuMemcpy2DAsync_v2: c"cuMemcpy2DAsync" from 3_020 until UNKNOWN, or cuMemcpy2DAsync_v2_ptsz from 7_000;
    fn(shape: *const Plane, stream: Stream) by(real, default) {
        // SAFETY: the driver reads the shape, too.
        unsafe { shapes::plane(shape, named(stream, default), false, real) }
    };

    /// Copies planes, in the order of a stream.
    cuMemcpy3DAsync_v2: c"cuMemcpy3DAsync" from 3_020 until UNKNOWN, or cuMemcpy3DAsync_v2_ptsz from 7_000;
    fn(shape: *const Space, stream: Stream) by(real, default) {
        // SAFETY: the driver reads the shape, too.
        unsafe { shapes::space(shape, named(stream, default), false, real) }
    };

    /// Many copies in one call, as CUDA 12.8 has them.
    cuMemcpyBatchAsync: c"cuMemcpyBatchAsync" from 12_080 until 13_000, or cuMemcpyBatchAsync_ptsz from 12_080;
    fn(to: *const DevicePtr, from: *const DevicePtr, sizes: *const usize, count: usize, attributes: *const Attributes, first: *const usize, kinds: usize, failed: *mut usize, stream: Stream) by(real, default, function) {
        let lists = Lists { to, from, sizes, count, attributes, first, kinds };
        // SAFETY: the lists are the caller's, or ours with some of the caller's copies.
        let real = |some: &Lists, failed| unsafe { function(some.to, some.from, some.sizes, some.count, some.attributes, some.first, some.kinds, failed, stream) };
        // SAFETY: the driver reads the lists, too.
        unsafe { batch::copy(&Batch { lists, stream: named(stream, default), failed, real }) }
    };

    /// `cuMemcpyBatchAsync` of CUDA 13, which does not tell which copy failed.
    cuMemcpyBatchAsync_v2: c"cuMemcpyBatchAsync" from 13_000 until UNKNOWN, or cuMemcpyBatchAsync_v2_ptsz from 13_000;
    fn(to: *const DevicePtr, from: *const DevicePtr, sizes: *const usize, count: usize, attributes: *const Attributes, first: *const usize, kinds: usize, stream: Stream) by(real, default, function) {
        let lists = Lists { to, from, sizes, count, attributes, first, kinds };
        // SAFETY: the lists are the caller's, or ours with some of the caller's copies.
        let real = |some: &Lists, _| unsafe { function(some.to, some.from, some.sizes, some.count, some.attributes, some.first, some.kinds, stream) };
        // SAFETY: the driver reads the lists, too.
        unsafe { batch::copy(&Batch { lists, stream: named(stream, default), failed: null_mut(), real }) }
    };

    /// Copies within a GPU: counted.
    cuMemcpyDtoD_v2: c"cuMemcpyDtoD" from 3_020 until UNKNOWN, or cuMemcpyDtoD_v2_ptds from 7_000;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize) by(real, default)
        pass_on(Passed::Within, bytes, real);

    /// `cuMemcpyDtoD` in the order of a stream.
    cuMemcpyDtoDAsync_v2: c"cuMemcpyDtoDAsync" from 3_020 until UNKNOWN, or cuMemcpyDtoDAsync_v2_ptsz from 7_000;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) by(real, default)
        pass_on(Passed::Within, bytes, real);

    /// Copies between GPUs: counted.
    cuMemcpyPeer: c"cuMemcpyPeer" from 4_000 until UNKNOWN, or cuMemcpyPeer_ptds from 7_000;
    fn(to: DevicePtr, there: Context, from: DevicePtr, here: Context, bytes: usize) by(real, default)
        pass_on(Passed::Peer, bytes, real);

    /// `cuMemcpyPeer` in the order of a stream.
    cuMemcpyPeerAsync: c"cuMemcpyPeerAsync" from 4_000 until UNKNOWN, or cuMemcpyPeerAsync_ptsz from 7_000;
    fn(to: DevicePtr, there: Context, from: DevicePtr, here: Context, bytes: usize, stream: Stream) by(real, default)
        pass_on(Passed::Peer, bytes, real);

    /// A copy with attributes, in the order of a stream.
    cuMemcpyWithAttributesAsync: c"cuMemcpyWithAttributesAsync" from 13_020 until UNKNOWN, or cuMemcpyWithAttributesAsync_ptsz from 13_020;
    fn(to: DevicePtr, from: DevicePtr, bytes: usize, attributes: *const Attributes, stream: Stream) by(real, default, function) {
        let copy = Copy::new(Call::Attributes, to, from, bytes, named(stream, default));
        // SAFETY: the attributes are the caller's, or ours for the caller's copy; the driver reads them, too.
        unsafe { batch::copy_one(copy, attributes, |attributes| function(to, from, bytes, attributes, stream)) }
    };

    /// The program asks what an address is: memory that only Headway has page-locked is ordinary.
    cuPointerGetAttribute: c"cuPointerGetAttribute" from 4_000 until UNKNOWN;
    fn(value: *mut c_void, attribute: c_int, address: DevicePtr) by(real, default, function)
        // SAFETY: the caller's arguments, or the address of a byte that is there.
        unsafe { function(value, attribute, pins::ordinary_instead(address)) };

    /// `cuPointerGetAttribute` for several at once.
    cuPointerGetAttributes: c"cuPointerGetAttributes" from 7_000 until UNKNOWN;
    fn(count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: DevicePtr) by(real, default, function)
        // SAFETY: the caller's arguments, or the address of a byte that is there.
        unsafe { function(count, attributes, values, pins::ordinary_instead(address)) };

    /// Sets what an address is.
    cuPointerSetAttribute: c"cuPointerSetAttribute" from 6_000 until UNKNOWN;
    fn(value: *const c_void, attribute: c_int, address: DevicePtr) by(real, default) unpinned(|| pins::asked(address as *const c_void), real);

    /// The program page-locks memory itself.
    cuMemHostRegister_v2: c"cuMemHostRegister" from 6_050 until UNKNOWN;
    fn(start: *mut c_void, bytes: usize, flags: c_uint) by(real, default) unpinned(|| pins::keep_out(start, bytes), real);

    /// `cuMemHostRegister` of the first drivers.
    cuMemHostRegister: c"cuMemHostRegister" from 4_000 until 6_050;
    fn(start: *mut c_void, bytes: usize, flags: c_uint) by(real, default) unpinned(|| pins::keep_out(start, bytes), real);

    /// It releases memory that it has page-locked.
    cuMemHostUnregister: c"cuMemHostUnregister" from 4_000 until UNKNOWN;
    fn(start: *mut c_void) by(real, default) unpinned(|| pins::asked(start), real);

    /// Memory that the driver has allocated is freed.
    cuMemFreeHost: c"cuMemFreeHost" from 2_000 until UNKNOWN;
    fn(start: *mut c_void) by(real, default) unpinned(|| pins::asked(start), real);

    /// Where a GPU sees page-locked memory.
    cuMemHostGetDevicePointer_v2: c"cuMemHostGetDevicePointer" from 3_020 until UNKNOWN;
    fn(place: *mut DevicePtr, start: *mut c_void, flags: c_uint) by(real, default) unpinned(|| pins::asked(start), real);

    /// How memory was page-locked.
    cuMemHostGetFlags: c"cuMemHostGetFlags" from 2_030 until UNKNOWN;
    fn(place: *mut c_uint, start: *mut c_void) by(real, default) unpinned(|| pins::asked(start), real);

    /// The range that an address belongs to.
    cuMemGetAddressRange_v2: c"cuMemGetAddressRange" from 3_020 until UNKNOWN;
    fn(start: *mut DevicePtr, bytes: *mut usize, address: DevicePtr) by(real, default) unpinned(|| pins::asked(address as *const c_void), real);

    /// Copies into an array, and waits.
    cuMemcpyHtoA_v2: c"cuMemcpyHtoA" from 3_020 until UNKNOWN, or cuMemcpyHtoA_v2_ptds from 7_000;
    fn(array: usize, offset: usize, from: *const c_void, bytes: usize) by(real, default) unpinned(|| pins::give_up(from, bytes), real);

    /// `cuMemcpyHtoA` in the order of a stream.
    cuMemcpyHtoAAsync_v2: c"cuMemcpyHtoAAsync" from 3_020 until UNKNOWN, or cuMemcpyHtoAAsync_v2_ptsz from 7_000;
    fn(array: usize, offset: usize, from: *const c_void, bytes: usize, stream: Stream) by(real, default)
        unpinned(|| pins::give_up(from, bytes), real);

    /// Copies out of an array, and waits.
    cuMemcpyAtoH_v2: c"cuMemcpyAtoH" from 3_020 until UNKNOWN, or cuMemcpyAtoH_v2_ptds from 7_000;
    fn(to: *mut c_void, array: usize, offset: usize, bytes: usize) by(real, default) unpinned(|| pins::give_up(to, bytes), real);

    /// `cuMemcpyAtoH` in the order of a stream.
    cuMemcpyAtoHAsync_v2: c"cuMemcpyAtoHAsync" from 3_020 until UNKNOWN, or cuMemcpyAtoHAsync_v2_ptsz from 7_000;
    fn(to: *mut c_void, array: usize, offset: usize, bytes: usize, stream: Stream) by(real, default) unpinned(|| pins::give_up(to, bytes), real);

    /// Copies planes between contexts, and waits.
    cuMemcpy3DPeer: c"cuMemcpy3DPeer" from 4_000 until UNKNOWN, or cuMemcpy3DPeer_ptds from 7_000;
    fn(shape: *const c_void) by(real, default) unpinned(pins::give_up_all, real);

    /// `cuMemcpy3DPeer` in the order of a stream.
    cuMemcpy3DPeerAsync: c"cuMemcpy3DPeerAsync" from 4_000 until UNKNOWN, or cuMemcpy3DPeerAsync_ptsz from 7_000;
    fn(shape: *const c_void, stream: Stream) by(real, default) unpinned(pins::give_up_all, real);

    /// Many copies of planes in one call, as CUDA 12.8 has them.
    cuMemcpy3DBatchAsync: c"cuMemcpy3DBatchAsync" from 12_080 until 13_000, or cuMemcpy3DBatchAsync_ptsz from 12_080;
    fn(count: usize, list: *const c_void, failed: *mut usize, flags: u64, stream: Stream) by(real, default) unpinned(pins::give_up_all, real);

    /// `cuMemcpy3DBatchAsync` of CUDA 13.
    cuMemcpy3DBatchAsync_v2: c"cuMemcpy3DBatchAsync" from 13_000 until UNKNOWN, or cuMemcpy3DBatchAsync_v2_ptsz from 13_000;
    fn(count: usize, list: *const c_void, flags: u64, stream: Stream) by(real, default) unpinned(pins::give_up_all, real);

    /// A copy of planes with attributes.
    cuMemcpy3DWithAttributesAsync: c"cuMemcpy3DWithAttributesAsync" from 13_020 until UNKNOWN, or cuMemcpy3DWithAttributesAsync_ptsz from 13_020;
    fn(list: *const c_void, flags: u64, stream: Stream) by(real, default) unpinned(pins::give_up_all, real);

    /// A graph gets a copy, which is made when no call tells: nothing is pinned any more. Copies that are captured come as copies.
    cuGraphAddMemcpyNode: c"cuGraphAddMemcpyNode" from 10_000 until UNKNOWN;
    fn(node: *mut usize, graph: usize, after: *const usize, count: usize, shape: *const c_void, context: Context) by(real, default)
        unpinned(pins::stop, real);

    /// A copy in a graph is changed.
    cuGraphMemcpyNodeSetParams: c"cuGraphMemcpyNodeSetParams" from 10_000 until UNKNOWN;
    fn(node: usize, shape: *const c_void) by(real, default) unpinned(pins::stop, real);

    /// A copy in a graph that is ready is changed.
    cuGraphExecMemcpyNodeSetParams: c"cuGraphExecMemcpyNodeSetParams" from 10_020 until UNKNOWN;
    fn(graph: usize, node: usize, shape: *const c_void, context: Context) by(real, default) unpinned(pins::stop, real);

    /// A graph gets a node of any kind.
    cuGraphAddNode: c"cuGraphAddNode" from 12_020 until 13_000;
    fn(node: *mut usize, graph: usize, after: *const usize, count: usize, what: *mut c_void) by(real, default) unpinned(|| pins_and_node(what), real);

    /// The same with data of the edges.
    cuGraphAddNode_v2: c"cuGraphAddNode" from 13_000 until UNKNOWN;
    fn(node: *mut usize, graph: usize, after: *const usize, edges: *const c_void, count: usize, what: *mut c_void) by(real, default)
        unpinned(|| pins_and_node(what), real);

    /// A node is changed.
    cuGraphNodeSetParams: c"cuGraphNodeSetParams" from 12_020 until UNKNOWN;
    fn(node: usize, what: *mut c_void) by(real, default) unpinned(|| pins_and_node(what), real);

    /// A node of a graph that is ready is changed.
    cuGraphExecNodeSetParams: c"cuGraphExecNodeSetParams" from 12_020 until UNKNOWN;
    fn(graph: usize, node: usize, what: *mut c_void) by(real, default) unpinned(|| pins_and_node(what), real);

    /// A stream is destroyed, and its handle may be given again.
    cuStreamDestroy_v2: c"cuStreamDestroy" from 4_000 until UNKNOWN;
    fn(stream: Stream) by(real, default) {
        context::forget_stream(stream);
        real()
    };

    /// Launches a kernel.
    cuLaunchKernel: c"cuLaunchKernel" from 4_000 until UNKNOWN, or cuLaunchKernel_ptsz from 7_000;
    fn(kernel: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, arguments: *mut *mut c_void, more: *mut *mut c_void) by(real, default)
        launches::launch(named(stream, default), real);

    /// Launches a kernel whose blocks wait for each other.
    cuLaunchCooperativeKernel: c"cuLaunchCooperativeKernel" from 9_000 until UNKNOWN, or cuLaunchCooperativeKernel_ptsz from 9_000;
    fn(kernel: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, arguments: *mut *mut c_void) by(real, default)
        launches::launch(named(stream, default), real);

    /// Launches a kernel with attributes.
    cuLaunchKernelEx: c"cuLaunchKernelEx" from 11_060 until UNKNOWN, or cuLaunchKernelEx_ptsz from 11_060;
    fn(config: *const LaunchConfig, kernel: usize, arguments: *mut *mut c_void, more: *mut *mut c_void) by(real, default) {
        // SAFETY: the driver reads it, too.
        match unsafe { config.as_ref() } {
            Some(config) => launches::launch(named(config.stream, default), real),
            None => real(),
        }
    };

    /// Launches a graph.
    cuGraphLaunch: c"cuGraphLaunch" from 10_000 until UNKNOWN, or cuGraphLaunch_ptsz from 10_000;
    fn(graph: usize, stream: Stream) by(real, default) launches::launch(named(stream, default), real);

    /// The context is destroyed.
    cuCtxDestroy_v2: c"cuCtxDestroy" from 4_000 until UNKNOWN;
    fn(which: Context) by(real, default) destroying(|| forget(which), real);

    /// `cuCtxDestroy` of the first drivers.
    cuCtxDestroy: c"cuCtxDestroy" from 2_000 until 4_000;
    fn(which: Context) by(real, default) destroying(|| forget(which), real);

    /// A part of a GPU and its context are destroyed. The call does not name the context, so Headway prepares all of them anew.
    cuGreenCtxDestroy: c"cuGreenCtxDestroy" from 12_040 until UNKNOWN;
    fn(which: usize) by(real, default) destroying(forget_all, real);

    /// The last release destroys the primary context; after any other, it is prepared anew.
    cuDevicePrimaryCtxRelease_v2: c"cuDevicePrimaryCtxRelease" from 11_000 until UNKNOWN;
    fn(device: c_int) by(real, default) destroying(|| forget_device(device), real);

    /// `cuDevicePrimaryCtxRelease` before CUDA 11.
    cuDevicePrimaryCtxRelease: c"cuDevicePrimaryCtxRelease" from 7_000 until 11_000;
    fn(device: c_int) by(real, default) destroying(|| forget_device(device), real);

    /// The primary context is destroyed, whatever parts of the program hold it.
    cuDevicePrimaryCtxReset_v2: c"cuDevicePrimaryCtxReset" from 11_000 until UNKNOWN;
    fn(device: c_int) by(real, default) destroying(|| forget_device(device), real);

    /// `cuDevicePrimaryCtxReset` before CUDA 11.
    cuDevicePrimaryCtxReset: c"cuDevicePrimaryCtxReset" from 7_000 until 11_000;
    fn(device: c_int) by(real, default) destroying(|| forget_device(device), real);
}
