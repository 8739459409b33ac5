//! A driver function that this library replaces: the real one behind it, and which programs get ours.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::base::driver::{SUCCESS, Status};
use crate::base::{attention, symbols};
use crate::calls::begin::{UNKNOWN, begin};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

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

impl Replaced {
    /// Whether programs get it: functions that launch are the driver's own where nothing is done about launches.
    fn is_wanted(&self) -> bool {
        let launches = [&b"cuLaunch"[..], b"cuGraphLaunch"].iter().any(|name| self.symbol.to_bytes().starts_with(name));
        !launches || attention::holds_launches()
    }

    /// Keeps the real function's address. Whichever came first serves: the versions of a row have one signature and one meaning.
    fn keep(&self, real: *mut c_void) {
        let _ = self.real.compare_exchange(null_mut(), real, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// All functions that are replaced.
pub(crate) struct Table {
    pub(crate) rows: &'static [Replaced],
}

impl Table {
    fn find(&self, symbol: &CStr) -> Option<&Replaced> {
        self.rows.iter().find(|row| row.symbol == symbol && row.is_wanted())
    }

    /// The functions that copy; any library may hold those for contexts and the resolver.
    pub(crate) fn copies(&self) -> Vec<&'static CStr> {
        let symbols = self.rows.iter().map(|row| row.symbol);
        symbols.filter(|symbol| symbol.to_bytes().starts_with(b"cuMemcpy")).collect()
    }

    /// What a program gets that looks `name` up in a library, where it is at `real`.
    pub(crate) fn looked_up(&self, name: &CStr, real: *mut c_void) -> *mut c_void {
        if real.is_null() || attention::is_off() {
            return real;
        }
        let row = self.find(name).filter(|row| real == (row.ours)() || symbols::is_drivers(name, real));
        row.map_or(real, |row| self.replace(row, real))
    }

    /// What `--hook=audit` binds `name` to, which is at `real` in the driver of a namespace. Nothing but atomics is touched: the loader is
    /// at work.
    pub(crate) fn bound(&self, name: &CStr, real: *mut c_void, namespace: c_int) -> *mut c_void {
        let Some(row) = self.find(name).filter(|_| symbols::serves(namespace) && !attention::is_off()) else {
            return real;
        };
        row.keep(real);
        (row.ours)()
    }

    /// Remembers the real function and gives ours. `real` is ours already if the guest asked the whole program, or the loader
    /// answered by `--hook=audit`.
    fn replace(&self, row: &Replaced, real: *mut c_void) -> *mut c_void {
        let ours = (row.ours)();
        if real != ours {
            row.keep(real);
        }
        if !attention::has_begun() {
            begin(self.copies());
        }
        ours
    }

    /// The real function behind a row; null if there is none.
    #[inline]
    pub(crate) fn real(&self, row: usize) -> *mut c_void {
        let row = &self.rows[row];
        let known = row.real.load(Ordering::Acquire);
        if known.is_null() || !attention::has_begun() { self.first_call(row) } else { known }
    }

    /// Finds the real function also for programs that are linked with the driver and never asked for it.
    #[cold]
    fn first_call(&self, row: &Replaced) -> *mut c_void {
        let mut real = row.real.load(Ordering::Acquire);
        if real.is_null() {
            let Some(library) = symbols::library() else {
                // Another library has a function of this name, and would be called without us.
                return symbols::find(libc::RTLD_NEXT, row.symbol);
            };
            real = symbols::find(library, row.symbol);
            if real.is_null() || real == (row.ours)() {
                return null_mut();
            }
            row.real.store(real, Ordering::Release);
        }
        // The loader may have bound it before anything could begin.
        if !attention::has_begun() {
            begin(self.copies());
        }
        real
    }

    /// What `cuGetProcAddress` gave for `name`: replaced where name, version and flags are known, untouched elsewhere.
    ///
    /// # Safety
    /// `name` ends in zero or is null; `function` may be written or is null.
    pub(crate) unsafe fn resolved(
        &self,
        status: Status,
        name: *const c_char,
        function: *mut *mut c_void,
        version: c_int,
        flags: u64,
    ) {
        if status != SUCCESS || name.is_null() || function.is_null() || attention::is_off() || flags > PER_THREAD {
            return;
        }
        // SAFETY: by this function's contract; the real call has read and written the same places.
        let (name, real) = unsafe { (CStr::from_ptr(name), *function) };
        let matches = |row: &&Replaced, per_thread: bool| {
            // A driver that answers for a full name gives the function of that name.
            (row.base == name && (row.versions.0..row.versions.1).contains(&version) && row.per_thread == per_thread)
                || (row.symbol == name && row.symbol != row.base && version < UNKNOWN)
        };
        let find = |per_thread| self.rows.iter().find(|row| matches(row, per_thread));
        let has_stream = |row: &Replaced| self.rows.iter().any(|other| other.base == row.base && other.per_thread);
        // A function without a stream has one form only.
        let found = if flags == PER_THREAD {
            find(true).or_else(|| find(false).filter(|row| !has_stream(row)))
        } else {
            find(false)
        };
        if let Some(row) = found
            && row.is_wanted()
            && !real.is_null()
        {
            // SAFETY: by this function's contract; the real call has read and written the same places.
            unsafe { *function = self.replace(row, real) };
        }
    }
}
