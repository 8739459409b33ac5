//! How much of the calling thread's stack is left.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// What a copy by several threads, or the preparation of a context, may need. Without the driver, 22 KiB were seen; the driver compiles a
/// kernel.
const BYTES_MIN: usize = 256 << 10;

/// Where a thread's stack lies; nowhere if that is not known.
#[derive(Clone, Copy)]
struct Stack {
    lowest: usize,
    end: usize,
}

const NOWHERE: Stack = Stack { lowest: 0, end: 0 };

thread_local! {
    static OWN: Cell<Option<Stack>> = const { Cell::new(None) };
}

/// Whether enough of the calling thread's stack is left. The size of another stack, such as that of a signal handler or of a coroutine, is
/// not known, so it does not count as enough; nor does that of a thread that [`ends`].
pub(crate) fn is_enough() -> bool {
    let here = 0u8;
    let here = (&raw const here).addr();
    let Stack { lowest, end } = OWN.get().unwrap_or_else(|| {
        let found = if tells_its_end() { of_this_thread() } else { None };
        let found = found.unwrap_or(NOWHERE);
        OWN.set(Some(found));
        found
    });
    (lowest.saturating_add(BYTES_MIN)..end).contains(&here)
}

/// The calling thread destroys its keys. The standard library does so with what it keeps of the thread, and methods of several threads
/// cannot do without that. It lets a round pass first, so that this comes before.
unsafe extern "C" fn ends(_: *mut c_void) {
    OWN.set(Some(NOWHERE));
}

/// Has [`ends`] called at the end of the calling thread; whether that can be.
fn tells_its_end() -> bool {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let made = || {
        let mut key = 0;
        // SAFETY: `key` is valid for the call to write; this library is never unloaded.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(ends)) } == 0).then_some(key)
    };
    // SAFETY: the key was made; of the value only that it is not null counts.
    KEY.get_or_init(made).is_some_and(|key| unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) } == 0)
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
