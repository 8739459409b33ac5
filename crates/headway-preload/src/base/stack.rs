//! How much of the calling thread's stack is left.

use std::cell::Cell;
use std::mem::MaybeUninit;

/// What a copy by several threads, or the preparation of a context, may need. Without the driver, 22 KiB were seen; the driver compiles a
/// kernel.
const BYTES_MIN: usize = 256 << 10;

/// Where a thread's stack lies; nowhere if that is not known.
#[derive(Clone, Copy)]
struct Stack {
    lowest: usize,
    end: usize,
}

thread_local! {
    static OWN: Cell<Option<Stack>> = const { Cell::new(None) };
}

/// Whether enough of the calling thread's stack is left. The size of another stack, such as that of a signal handler or of a coroutine, is
/// not known, so it does not count as enough.
pub(crate) fn is_enough() -> bool {
    let here = 0u8;
    let here = (&raw const here).addr();
    let Stack { lowest, end } = OWN.get().unwrap_or_else(|| {
        let found = of_this_thread().unwrap_or(Stack { lowest: 0, end: 0 });
        OWN.set(Some(found));
        found
    });
    (lowest.saturating_add(BYTES_MIN)..end).contains(&here)
}

fn of_this_thread() -> Option<Stack> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut lowest, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the first call initialises the attributes of the calling thread, which the others read and give back.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let known = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut bytes) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        known.then(|| Stack { lowest: lowest.addr(), end: lowest.addr().saturating_add(bytes) })
    }
}
