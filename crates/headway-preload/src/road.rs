//! How a guest's calls get here.
//!
//! CUDA programs reach the driver by three roads: `dlsym` on the driver's library (XLA, Triton), `cuGetProcAddress`, which
//! they fetch by `dlsym` and then often again through itself (cudart 13), and direct links. All three end in a table,
//! [`calls::TABLE`], of the functions that this library replaces.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::driver::Status;
use crate::{calls, decide};

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
    /// The real one's address; null until somebody asked for it.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

/// Set in a forked child: CUDA does not work there, so every call is passed on.
static OFF: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_off() -> bool {
    OFF.load(Ordering::Relaxed)
}

extern "C" fn switch_off() {
    OFF.store(true, Ordering::Relaxed);
    decide::switch_off();
}

/// Called when the first function is replaced. A constructor would run in every program that a guest starts.
fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler only stores to atomics.
        unsafe { libc::pthread_atfork(None, None, Some(switch_off)) };
        decide::begin();
    }
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
            REAL_DLSYM.store(found, Ordering::Relaxed);
            return found;
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

/// The driver's library if the guest has loaded it; it is never loaded by us.
pub(crate) fn library() -> Option<*mut c_void> {
    // SAFETY: the name ends in zero; with RTLD_NOLOAD nothing is loaded.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
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
    calls::TABLE.iter().find(|replaced| replaced.symbol == name).map_or(real, |replaced| replace(replaced, real))
}

/// Remembers the real function and gives ours. `real` is ours already if the guest asked the whole program.
fn replace(replaced: &Replaced, real: *mut c_void) -> *mut c_void {
    let ours = (replaced.ours)();
    if real != ours {
        // Whichever came first serves: the versions of a row have one signature and one meaning.
        let _ = replaced.real.compare_exchange(std::ptr::null_mut(), real, Ordering::AcqRel, Ordering::Acquire);
    }
    begin();
    ours
}

/// The real function behind a row, also for programs that are linked with the driver and never asked for it.
pub(crate) fn real(replaced: &Replaced) -> *mut c_void {
    let known = replaced.real.load(Ordering::Acquire);
    if !known.is_null() {
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
    if status != crate::driver::SUCCESS || name.is_null() || function.is_null() || is_off() || flags > PER_THREAD {
        return;
    }
    // SAFETY: by this function's contract; the real call has read and written the same places.
    let (name, real) = unsafe { (CStr::from_ptr(name), *function) };
    let matches = |row: &&Replaced, per_thread: bool| {
        row.base == name && (row.versions.0..row.versions.1).contains(&version) && row.per_thread == per_thread
    };
    let find = |per_thread| calls::TABLE.iter().find(|row| matches(row, per_thread));
    // A function without a stream has one form only.
    let found = if flags == PER_THREAD {
        find(true).or_else(|| find(false).filter(|row| !has_stream(row)))
    } else {
        find(false)
    };
    if let Some(row) = found
        && !real.is_null()
    {
        // SAFETY: as above.
        unsafe { *function = replace(row, real) };
    }
}

fn has_stream(row: &Replaced) -> bool {
    calls::TABLE.iter().any(|other| other.base == row.base && other.per_thread)
}

/// `dlsym`, for the whole program. It must not have a frame of its own: with `RTLD_NEXT` the real one looks at its return
/// address to know who asks. Names that do not begin with `cu`, `RTLD_NEXT` and `RTLD_DEFAULT` go straight on.
///
/// # Safety
/// As for `dlsym`.
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

/// As above.
///
/// # Safety
/// As for `dlsym`.
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
