//! `--hook=audit`: the loader reports symbols to this library that `LD_PRELOAD` does not reach (experimental).
//!
//! Libraries that are opened with `RTLD_DEEPBIND` look into themselves first, and a linker namespace (`dlmopen`) has no preloaded
//! libraries. With `LD_AUDIT` the loader loads this library a second time, into a namespace of its own, and asks it at each
//! binding to the driver, also for answers of `dlsym`. That second copy does nothing but ask the preloaded one.
//! Bindings at the start of the program are left to `LD_PRELOAD`, since the preloaded copy is not ready before.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::base::symbols;
use crate::calls::table::TABLE;
use crate::observers;

/// `LA_FLG_BINDTO` and `LA_FLG_BINDFROM`: the loader reports bindings to an object, and from it.
const BIND_TO: c_uint = 1;
const BIND_FROM: c_uint = 2;
/// The namespace of the program.
const LM_ID_BASE: c_long = 0;
const OURS: &str = "libheadway_preload.so";
const DRIVER: &str = "libcuda.so";

/// The meaning of a cookie: this library, or the driver with its namespace above these bits.
const COOKIE_OURS: usize = 1;
const COOKIE_DRIVER: usize = 2;
const COOKIE_BITS: u32 = 2;

type Bound = extern "C" fn(*const c_char, *mut c_void, c_long) -> *mut c_void;

/// The preloaded copy's path in the loader, and its [`headway_preload_bound`]. In that copy itself both stay null.
static PATH: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
static BOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Whether this is the copy that the loader asks, in which no program runs.
pub(crate) fn is_asked() -> bool {
    !PATH.load(Ordering::Acquire).is_null()
}

/// The head of the loader's `struct link_map`.
#[repr(C)]
pub(crate) struct LinkMap {
    address: usize,
    name: *mut c_char,
}

/// The loader asks which version of its interface this library speaks.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn la_version(offered: c_uint) -> c_uint {
    observers::leave_signal();
    // All versions have the functions below with the same meaning.
    offered
}

/// An object was loaded. The cookie remembers what it is.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn la_objopen(map: *const LinkMap, namespace: c_long, cookie: *mut usize) -> c_uint {
    // SAFETY: the loader gives a live object, whose name ends in zero, and a place for the cookie.
    let path = unsafe {
        *cookie = 0;
        (*map).name
    };
    // SAFETY: the loader gives a live object, whose name ends in zero, and a place for the cookie.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if name == OURS.as_bytes() {
        if namespace == LM_ID_BASE {
            PATH.store(path, Ordering::Release);
        }
        // SAFETY: the loader gives a live object, whose name ends in zero, and a place for the cookie.
        unsafe { *cookie = COOKIE_OURS };
        return 0;
    }
    if !name.starts_with(DRIVER.as_bytes()) {
        return BIND_FROM;
    }
    // SAFETY: the loader gives a live object, whose name ends in zero, and a place for the cookie.
    unsafe { *cookie = (namespace as usize) << COOKIE_BITS | COOKIE_DRIVER };
    BIND_TO
}

/// Everything that the program needs is loaded and bound, and nothing has run.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn la_preinit(_cookie: *mut usize) {
    let path = PATH.load(Ordering::Acquire);
    if path.is_null() {
        return;
    }
    // SAFETY: the path ends in zero; with RTLD_NOLOAD nothing is loaded.
    let library = unsafe { libc::dlmopen(LM_ID_BASE, path, libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    if !library.is_null() {
        BOUND.store(symbols::find(library, c"headway_preload_bound"), Ordering::Release);
    }
}

/// A symbol of the driver is bound, at load time or by `dlsym`; the answer is the address that is used.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn la_symbind64(
    symbol: *const [usize; 3],
    _index: c_uint,
    from: *mut usize,
    to: *mut usize,
    _flags: *mut c_uint,
    name: *const c_char,
) -> usize {
    // SAFETY: the loader gives a symbol whose value, the second word, is the address that it found, and both cookies.
    let (address, from, to) = unsafe { ((*symbol)[1], *from, *to) };
    let bound = BOUND.load(Ordering::Acquire);
    // The loader also reports other bindings. Our own look-ups must find the driver's functions.
    if bound.is_null() || from == COOKIE_OURS || to & COOKIE_DRIVER == 0 {
        return address;
    }
    // SAFETY: the address is that of `headway_preload_bound` in a copy of this same library.
    let bound = unsafe { std::mem::transmute::<*mut c_void, Bound>(bound) };
    bound(name, address as *mut c_void, (to >> COOKIE_BITS) as c_long) as usize
}

/// Called in the preloaded copy: what a binding of `name` to `address` in the driver's library becomes.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn headway_preload_bound(
    name: *const c_char,
    address: *mut c_void,
    namespace: c_long,
) -> *mut c_void {
    if name.is_null() {
        return address;
    }
    // SAFETY: the loader's names end in zero.
    TABLE.bound(unsafe { CStr::from_ptr(name) }, address, namespace as c_int)
}
