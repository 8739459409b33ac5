//! The route through gdrdrv, a kernel module that an administrator installs, and its user library (GDRCopy).
//!
//! It pins pages of any allocation and maps them for the CPU. The interface is that of `gdrapi.h` 2.x.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulong, c_void};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex};

use headway_device::DeviceError;
use headway_os::Errno;
use libloading::Library;

use super::Missing;
use super::home::{Home, keep_from_children};
use super::pager::{Base, Mover, SPAN_BYTES};
use crate::driver::lock;
use crate::driver::table::loader_text;
use crate::driver::table::{Address, Handle};

/// Pages of a GPU, by which gdrdrv pins.
pub(crate) const GPU_PAGE: usize = 64 << 10;
const NODE: &str = "/dev/gdrdrv";
const LIBRARY: &str = "libgdrapi.so.2";
/// Names another user library than the loader's.
const LIBRARY_VARIABLE: &str = "HEADWAY_LIBGDRAPI";
/// `GDR_PIN_FLAG_DEFAULT`.
const PIN_DEFAULT: u32 = 0;

/// Sessions, by library; for the whole process.
static SESSIONS: Mutex<BTreeMap<PathBuf, Arc<Session>>> = Mutex::new(BTreeMap::new());

/// `gdr_mh_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Pinned(c_ulong);

/// The library's functions; codes are error numbers.
struct Table {
    open: unsafe extern "C" fn() -> Handle,
    pin: Pin,
    unpin: unsafe extern "C" fn(Handle, Pinned) -> c_int,
    map: unsafe extern "C" fn(Handle, Pinned, *mut *mut c_void, usize) -> c_int,
    unmap: unsafe extern "C" fn(Handle, Pinned, *mut c_void, usize) -> c_int,
}

enum Pin {
    /// `gdr_pin_buffer_v2`: the last argument but one is flags. From GDRCopy 2.5.
    V2(unsafe extern "C" fn(Handle, c_ulong, usize, u32, *mut Pinned) -> c_int),
    /// `gdr_pin_buffer`: two arguments, not used any more, must be 0.
    V1(unsafe extern "C" fn(Handle, c_ulong, usize, u64, u32, *mut Pinned) -> c_int),
}

impl Table {
    fn find(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: the signatures are those of `gdrapi.h` 2.x for the symbols of these names.
        unsafe {
            let pin = match library.get(b"gdr_pin_buffer_v2\0") {
                Ok(found) => Pin::V2(*found),
                Err(_) => Pin::V1(*library.get(b"gdr_pin_buffer\0")?),
            };
            Ok(Self {
                open: *library.get(b"gdr_open\0")?,
                pin,
                unpin: *library.get(b"gdr_unpin_buffer\0")?,
                map: *library.get(b"gdr_map\0")?,
                unmap: *library.get(b"gdr_unmap\0")?,
            })
        }
    }
}

/// The open kernel module.
pub(crate) struct Session {
    table: Table,
    // The library keeps its pins in a list without a lock of its own.
    handle: Mutex<SessionHandle>,
    home: Home,
}

struct SessionHandle(Handle);
// SAFETY: the handle is used by one thread at a time, under its mutex; nothing in it depends on the thread.
unsafe impl Send for SessionHandle {}

impl Session {
    /// The session of the system's library.
    pub(crate) fn system() -> Result<Arc<Self>, Missing> {
        let named = headway_os::environment::trusted(LIBRARY_VARIABLE);
        Self::of(Path::new(NODE), Path::new(&named.unwrap_or_else(|| LIBRARY.into())))
    }

    /// The session of `library`, once `node` is seen to open.
    pub(crate) fn of(node: &Path, library: &Path) -> Result<Arc<Self>, Missing> {
        let mut sessions = lock(&SESSIONS);
        if let Some(session) = sessions.get(library).filter(|session| session.home.is_here()) {
            return Ok(Arc::clone(session));
        }
        try_node(node)?;
        let missing = |error: &libloading::Error| Missing {
            word: "LibraryMissing",
            detail: loader_text(error),
            remedy: "install GDRCopy's user library (package libgdrapi), or name it in $HEADWAY_LIBGDRAPI",
        };
        // SAFETY: loading runs the library's initialisers. It is the system's or the one that the user names, which is trusted
        // like the program itself.
        let loaded = unsafe { Library::new(library) }.map_err(|error| missing(&error))?;
        let table = Table::find(&loaded).map_err(|error| missing(&error))?;
        // SAFETY: takes nothing.
        let handle = unsafe { (table.open)() };
        if handle.is_null() {
            return Err(Missing {
                word: "PermissionDenied",
                detail: format!("gdr_open refuses although {} opens", node.display()),
                remedy: "install a kernel module and a user library of GDRCopy that fit each other",
            });
        }
        // Sessions stay open, so their functions stay loaded.
        std::mem::forget(loaded);
        let session = Arc::new(Self { table, handle: Mutex::new(SessionHandle(handle)), home: Home::here() });
        sessions.insert(library.to_owned(), Arc::clone(&session));
        Ok(session)
    }
}

/// Whether the module's device file is there and may be opened.
fn try_node(node: &Path) -> Result<(), Missing> {
    let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open(node) else { return Ok(()) };
    let detail = format!("{}: {error}", node.display());
    Err(match error.kind() {
        ErrorKind::NotFound => Missing {
            word: "NodeMissing",
            detail,
            remedy: "nothing to do unless you want GDRCopy: load its gdrdrv module",
        },
        _ => Missing { word: "PermissionDenied", detail, remedy: "allow this user to read and write the device file" },
    })
}

fn check(call: &'static str, code: c_int) -> Result<(), DeviceError> {
    if code == 0 { Ok(()) } else { Err(DeviceError::Driver { call, code, name: Errno(code).to_string() }) }
}

/// Pinned pages, mapped or not.
pub(crate) struct Pages {
    session: Arc<Session>,
    pinned: Pinned,
    bytes: usize,
    mapped: Option<Base>,
}

impl Pages {
    /// Pins `bytes` bytes from `address` on; both are multiples of [`GPU_PAGE`].
    ///
    /// # Safety
    /// The range is memory of a GPU that stays allocated while this value lives.
    pub(crate) unsafe fn pin(session: &Arc<Session>, address: Address, bytes: usize) -> Result<Self, DeviceError> {
        let mut pinned = Pinned(0);
        let handle = lock(&session.handle);
        let start = address as c_ulong;
        // SAFETY: the session is open; `pinned` is valid for the call to write; the caller vouches for the range.
        let (call, code) = unsafe {
            match session.table.pin {
                Pin::V2(pin) => ("gdr_pin_buffer_v2", pin(handle.0, start, bytes, PIN_DEFAULT, &raw mut pinned)),
                Pin::V1(pin) => ("gdr_pin_buffer", pin(handle.0, start, bytes, 0, 0, &raw mut pinned)),
            }
        };
        check(call, code)?;
        Ok(Self { session: Arc::clone(session), pinned, bytes, mapped: None })
    }

    /// Maps all of it; where it is mapped already, that.
    pub(crate) fn map(&mut self) -> Result<Base, DeviceError> {
        if let Some(base) = self.mapped {
            return Ok(base);
        }
        let mut base = null_mut();
        let handle = lock(&self.session.handle);
        // SAFETY: the session is open, the pages are pinned and not mapped; `base` is valid for the call to write.
        let code = unsafe { (self.session.table.map)(handle.0, self.pinned, &raw mut base, self.bytes) };
        check("gdr_map", code)?;
        let no_address = DeviceError::Driver { call: "gdr_map", code: 0, name: "no address".into() };
        let base = Base(NonNull::new(base.cast()).ok_or(no_address)?);
        self.mapped = Some(base);
        // SAFETY: a mapping of its own.
        unsafe { keep_from_children(base.0.as_ptr(), self.bytes) };
        Ok(base)
    }

    pub(crate) fn unmap(&mut self) {
        if let Some(base) = self.mapped.take() {
            let handle = lock(&self.session.handle);
            // SAFETY: mapped by `map` with this size, unmapped once.
            let _ = unsafe { (self.session.table.unmap)(handle.0, self.pinned, base.0.as_ptr().cast(), self.bytes) };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.session.home.is_here() {
            self.unmap();
            let handle = lock(&self.session.handle);
            // SAFETY: pinned by `pin`, unpinned once, not mapped.
            let _ = unsafe { (self.session.table.unpin)(handle.0, self.pinned) };
        }
    }
}

/// The small mapping: one pin for each part that was visited, of which one is mapped.
pub(crate) struct Parts {
    session: Arc<Session>,
    address: Address,
    pinned: BTreeMap<usize, Pages>,
    shown: Option<usize>,
}

impl Parts {
    /// Over the memory from `address` on, a multiple of [`GPU_PAGE`].
    ///
    /// # Safety
    /// The memory stays allocated while this value lives, up to the end of the last page asked for.
    pub(crate) unsafe fn new(session: &Arc<Session>, address: Address) -> Self {
        Self { session: Arc::clone(session), address, pinned: BTreeMap::new(), shown: None }
    }
}

impl Mover for Parts {
    fn map(&mut self, at: usize, bytes: usize) -> Result<Base, DeviceError> {
        const { assert!(SPAN_BYTES.is_multiple_of(GPU_PAGE)) };
        if let Some(pages) = self.shown.take().and_then(|before| self.pinned.get_mut(&before)) {
            pages.unmap();
        }
        if !self.pinned.contains_key(&at) {
            let (address, bytes) = (self.address + at as u64, bytes.next_multiple_of(GPU_PAGE));
            // SAFETY: `new` was promised that the memory stays.
            let pages = unsafe { Pages::pin(&self.session, address, bytes) }?;
            self.pinned.insert(at, pages);
        }
        let Some(pages) = self.pinned.get_mut(&at) else { return Err(DeviceError::DeviceLost) };
        let base = pages.map()?;
        self.shown = Some(at);
        Ok(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_not_loaded_is_node_missing() {
        let missing = Session::of(Path::new("/nonexistent/gdrdrv"), Path::new("a")).err().unwrap();
        assert_eq!(missing.word, "NodeMissing");
        assert!(missing.detail.contains("/nonexistent/gdrdrv"), "{}", missing.detail);
    }

    #[test]
    fn a_node_that_cannot_be_opened_is_permission_denied() {
        // A folder cannot be opened for writing, not even by root.
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(try_node(folder.path()).unwrap_err().word, "PermissionDenied");
    }

    #[test]
    fn a_user_library_that_is_not_there_is_library_missing() {
        let node = tempfile::NamedTempFile::new().unwrap();
        let missing = Session::of(node.path(), Path::new("libno-such-gdrapi.so.2")).err().unwrap();
        assert_eq!(missing.word, "LibraryMissing");
        assert!(missing.detail.contains("libno-such-gdrapi.so.2"), "{}", missing.detail);
    }
}
