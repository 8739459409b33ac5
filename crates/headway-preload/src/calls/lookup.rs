//! How a guest's calls reach this library.
//!
//! CUDA programs look driver functions up in three ways: `dlsym` on the driver's library (XLA, Triton), `cuGetProcAddress`, which
//! they fetch by `dlsym` and then often again through itself (cudart 13), and direct links. All three end in a table,
//! [`table::TABLE`], of the functions that this library replaces.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use headway::guest::Home;

use crate::base::driver::Status;
use crate::calls::table;
use crate::decide;

/// A function of the driver that this library replaces: the names under which programs look it up, and the real one.
pub(crate) struct Replaced {
    /// Its name for `cuGetProcAddress`.
    pub(crate) base: &'static CStr,
    /// Its name in the library, and here.
    pub(crate) symbol: &'static CStr,
    /// Versions for which `base` has the signature of the replacement: from the first to before the second.
    pub(crate) versions: (c_int, c_int),
    /// Whether it is the form for per-thread default streams.
    pub(crate) per_thread: bool,
    /// The replacement's address.
    pub(crate) ours: fn() -> *mut c_void,
    /// The real one's address; null until it was first looked up.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

/// Set for a driver that is newer than the table.
static TOO_NEW: AtomicBool = AtomicBool::new(false);
/// The process in which the first function was replaced.
static HOME: OnceLock<Home> = OnceLock::new();

/// Whether every call is passed on. So it is in a forked child, where CUDA does not work, and where another thread of the parent may have
/// held any lock of this library.
pub(crate) fn is_off() -> bool {
    TOO_NEW.load(Ordering::Relaxed) || HOME.get().is_some_and(|home| !home.is_here())
}

static BEGUN: AtomicBool = AtomicBool::new(false);

/// Whether the guest has got a function of ours.
pub(crate) fn has_begun() -> bool {
    BEGUN.load(Ordering::Acquire)
}

/// Called when the first function is replaced or called. A constructor would run in every program that a guest starts.
#[cold]
fn begin() {
    if BEGUN.swap(true, Ordering::AcqRel) {
        return;
    }
    if let Some(version) = driver_version().filter(|version| *version >= table::UNKNOWN) {
        TOO_NEW.store(true, Ordering::Relaxed);
        decide::say_too_new(version);
        return;
    }
    HOME.get_or_init(Home::here);
    decide::begin();
}

/// The version of the driver that the guest has loaded, which it tells before it is initialised.
pub(crate) fn driver_version() -> Option<c_int> {
    let address = find(library()?, c"cuDriverGetVersion");
    if address.is_null() {
        return None;
    }
    let mut version = 0;
    // SAFETY: every driver exports this name with this signature; `version` is valid for the call to write.
    let status = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> Status>(address)(&raw mut version)
    };
    (status == crate::base::driver::SUCCESS).then_some(version)
}

/// The linker namespace of the driver; 0 is the program's own, where all but `dlmopen` puts it.
static NAMESPACE: AtomicI32 = AtomicI32::new(UNKNOWN_NAMESPACE);
const UNKNOWN_NAMESPACE: c_int = -1;

/// What `--hook=audit` binds `name` to, which is at `real` in the driver of a namespace. The first driver serves; a second one in
/// another namespace is left alone. Nothing but atomics is touched: the loader is at work.
pub(crate) fn bound(name: &CStr, real: *mut c_void, namespace: c_int) -> *mut c_void {
    let Some(row) = table::TABLE.iter().find(|row| row.symbol == name) else { return real };
    let first = NAMESPACE.compare_exchange(UNKNOWN_NAMESPACE, namespace, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err_and(|first| first != namespace) || is_off() {
        return real;
    }
    let _ = row.real.compare_exchange(std::ptr::null_mut(), real, Ordering::AcqRel, Ordering::Acquire);
    (row.ours)()
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The real `dlsym`; null until it was first needed.
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn resolve_dlsym() -> *mut c_void {
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
            let real = if next.is_null() || next == dlsym as *mut c_void { found } else { next };
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

/// `dlsym` for names that begin with `cu`, in a library that was named.
unsafe extern "C" fn dlsym_cu(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller of `dlsym` gives a text that ends in zero.
    let name = unsafe { CStr::from_ptr(name) };
    let real = find(library, name);
    if real.is_null() || is_off() {
        return real;
    }
    table::TABLE.iter().find(|replaced| replaced.symbol == name).map_or(real, |replaced| replace(replaced, real))
}

/// Remembers the real function and gives ours. `real` is ours already if the guest asked the whole program, or the loader
/// answered by `--hook=audit`.
fn replace(replaced: &Replaced, real: *mut c_void) -> *mut c_void {
    let ours = (replaced.ours)();
    if real != ours {
        // Whichever came first serves: the versions of a row have one signature and one meaning.
        let _ = replaced.real.compare_exchange(std::ptr::null_mut(), real, Ordering::AcqRel, Ordering::Acquire);
    }
    if !BEGUN.load(Ordering::Acquire) {
        begin();
    }
    ours
}

/// The real function behind a row, also for programs that are linked with the driver and never asked for it.
pub(crate) fn real(replaced: &Replaced) -> *mut c_void {
    let known = replaced.real.load(Ordering::Acquire);
    if !known.is_null() {
        // The loader may have bound it before anything could begin.
        if !BEGUN.load(Ordering::Relaxed) {
            begin();
        }
        return known;
    }
    let Some(library) = library() else { return std::ptr::null_mut() };
    let found = find(library, replaced.symbol);
    if !found.is_null() && found != (replaced.ours)() {
        replaced.real.store(found, Ordering::Release);
        begin();
        return found;
    }
    std::ptr::null_mut()
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// What `cuGetProcAddress` gave for `name`: replaced where name, version and flags are known, untouched elsewhere.
///
/// # Safety
/// `name` ends in zero or is null; `function` may be written or is null.
pub(crate) unsafe fn resolved(
    status: Status,
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) {
    if status != crate::base::driver::SUCCESS || name.is_null() || function.is_null() || is_off() || flags > PER_THREAD
    {
        return;
    }
    // SAFETY: by this function's contract; the real call has read and written the same places.
    let (name, real) = unsafe { (CStr::from_ptr(name), *function) };
    let matches = |row: &&Replaced, per_thread: bool| {
        // A driver that answers for a full name gives the function of that name.
        (row.base == name && (row.versions.0..row.versions.1).contains(&version) && row.per_thread == per_thread)
            || (row.symbol == name && row.symbol != row.base && version < table::UNKNOWN)
    };
    let find = |per_thread| table::TABLE.iter().find(|row| matches(row, per_thread));
    // A function without a stream has one form only.
    let found = if flags == PER_THREAD {
        find(true).or_else(|| find(false).filter(|row| !has_stream(row)))
    } else {
        find(false)
    };
    if let Some(row) = found
        && !real.is_null()
    {
        // SAFETY: by this function's contract; the real call has read and written the same places.
        unsafe { *function = replace(row, real) };
    }
}

fn has_stream(row: &Replaced) -> bool {
    table::TABLE.iter().any(|other| other.base == row.base && other.per_thread)
}

/// `dlsym`, for the whole program. It must not have a frame of its own: with `RTLD_NEXT` the real one looks at its return
/// address to identify the caller. Names that do not begin with `cu`, `RTLD_NEXT` and `RTLD_DEFAULT` go straight on.
///
/// # Safety
/// The caller keeps the promise of `dlsym`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        // RTLD_DEFAULT is 0, RTLD_NEXT is -1.
        "lea rax, [rdi + 1]",
        "cmp rax, 1",
        "jbe 2f",
        "test rsi, rsi",
        "jz 2f",
        "cmp byte ptr [rsi], 0x63",
        "jne 2f",
        "cmp byte ptr [rsi + 1], 0x75",
        "jne 2f",
        "jmp {cu}",
        "2:",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jz 3f",
        "jmp rax",
        "3:",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {resolve}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        cu = sym dlsym_cu,
        real = sym REAL_DLSYM,
        resolve = sym resolve_dlsym,
    )
}

/// The replaced `dlsym`; the real one reads the caller from its link register.
///
/// # Safety
/// The caller keeps the promise of `dlsym`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "add x9, x0, #1",
        "cmp x9, #1",
        "b.ls 2f",
        "cbz x1, 2f",
        "ldrb w9, [x1]",
        "cmp w9, #0x63",
        "b.ne 2f",
        "ldrb w9, [x1, #1]",
        "cmp w9, #0x75",
        "b.ne 2f",
        "b {cu}",
        "2:",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "cbz x9, 3f",
        "br x9",
        "3:",
        "stp x0, x1, [sp, #-32]!",
        "str x30, [sp, #16]",
        "bl {resolve}",
        "mov x9, x0",
        "ldr x30, [sp, #16]",
        "ldp x0, x1, [sp], #32",
        "br x9",
        cu = sym dlsym_cu,
        real = sym REAL_DLSYM,
        resolve = sym resolve_dlsym,
    )
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("headway-preload knows `dlsym` on x86-64 and aarch64 only; leave the crate out of the build");
