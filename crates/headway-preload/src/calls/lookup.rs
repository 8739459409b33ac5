//! The program's `dlsym`.
//!
//! CUDA programs look driver functions up in three ways: `dlsym` on the driver's library (XLA, Triton), `cuGetProcAddress`, which
//! they fetch by `dlsym` and then often again through itself (cudart 13), and direct links. All three end in [`TABLE`], the functions
//! that this library replaces.

use std::ffi::{CStr, c_char, c_void};

use crate::base::kept::KeptThread;
use crate::base::symbols::{REAL_DLSYM, find, resolve_dlsym};
use crate::calls::table::TABLE;

/// `dlsym` for names that begin with `cu`, in a library that was named.
unsafe extern "C" fn dlsym_cu(library: *mut c_void, name: *const c_char) -> *mut c_void {
    let _kept = KeptThread::now();
    // SAFETY: the caller of `dlsym` gives a text that ends in zero.
    let name = unsafe { CStr::from_ptr(name) };
    TABLE.looked_up(name, find(library, name))
}

/// `dlsym`, for the whole program. It must not have a frame of its own: with `RTLD_NEXT` the real one looks at its return
/// address to identify the caller. Names that do not begin with `cu`, `RTLD_NEXT` and `RTLD_DEFAULT` go straight on.
///
/// The program of the unit tests keeps the C library's: a sanitiser asks it before memory is ready for code with its checks.
///
/// # Safety
/// The caller keeps the promise of `dlsym`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, unsafe(export_name = "headway_dlsym"))]
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
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, unsafe(export_name = "headway_dlsym"))]
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
