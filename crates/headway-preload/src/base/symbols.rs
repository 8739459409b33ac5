//! The real functions of the guest's driver and of its C library, past this library and others that stand in front.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The linker namespace of the driver; 0 is the program's own, where all but `dlmopen` puts it.
static NAMESPACE: AtomicI32 = AtomicI32::new(UNKNOWN_NAMESPACE);
const UNKNOWN_NAMESPACE: c_int = -1;

/// Whether the driver in `namespace` is the one that serves: the first. A second one in another namespace is left alone.
pub(crate) fn serves(namespace: c_int) -> bool {
    let first = NAMESPACE.compare_exchange(UNKNOWN_NAMESPACE, namespace, Ordering::AcqRel, Ordering::Acquire);
    first.is_ok() || first == Err(namespace)
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The real `dlsym`; null until it was first needed.
pub(crate) static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

pub(crate) extern "C" fn resolve_dlsym() -> *mut c_void {
    let known = REAL_DLSYM.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    for version in [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"] {
        // SAFETY: both texts end in zero. `dlvsym` is not interposed, and RTLD_NEXT begins behind this library, so that
        // other interposers keep their place in the row.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            // Another interposer's has no version of the C library's. The C library's own finds the next one, whatever its version.
            // SAFETY: the address is that of a `dlsym`; the name ends in zero. It sees that this library asks.
            let next = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(found)(libc::RTLD_NEXT, c"dlsym".as_ptr()) };
            // The name `dlsym` means this library's own here, as in the whole program.
            let real = if next.is_null() || next == libc::dlsym as *mut c_void { found } else { next };
            REAL_DLSYM.store(real, Ordering::Relaxed);
            return real;
        }
    }
    // A C library without `dlsym` cannot have loaded us.
    std::process::abort()
}

/// Looks `name` up in `library` by the real `dlsym`.
pub(crate) fn find(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the address is that of the C library's `dlsym`, or of another interposer's.
    let real = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(resolve_dlsym()) };
    // SAFETY: the handle is one of `dlopen`; the name ends in zero.
    unsafe { real(library, name.as_ptr()) }
}

/// The driver's library if the guest has loaded it; it is never loaded by us. From then on it stays loaded, whatever the guest
/// closes, since pointers into it are kept here.
pub(crate) fn library() -> Option<*mut c_void> {
    let (name, flags) = (c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW);
    let namespace = NAMESPACE.load(Ordering::Acquire);
    // SAFETY: the name ends in zero; with RTLD_NOLOAD nothing is loaded.
    let library =
        unsafe { if namespace > 0 { libc::dlmopen(namespace.into(), name, flags) } else { libc::dlopen(name, flags) } };
    (!library.is_null()).then_some(library)
}

/// Whether `found`, which some library has under this name, is the function of the driver that serves. Another library's, or a second driver's,
/// means something else, or passes calls on to the driver.
pub(crate) fn is_drivers(name: &CStr, found: *mut c_void) -> bool {
    let is = library().is_some_and(|driver| find(driver, name) == found);
    if !is {
        // SAFETY: the call takes nothing. The program's look-up was a success, and leaves no error to be told of.
        unsafe { libc::dlerror() };
    }
    is
}
