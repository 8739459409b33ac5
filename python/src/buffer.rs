//! The buffer protocol. Every CPython has its functions, and those before 3.11 do not promise them to modules for several versions: they
//! are looked up by name.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

/// Shape, strides and format, for reading.
const FLAGS: c_int = 0x10 | 0x8 | 0x4;

/// `Py_buffer`.
#[repr(C)]
struct View {
    data: *mut c_void,
    object: *mut ffi::PyObject,
    bytes: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *const c_char,
    shape: *const isize,
    strides: *const isize,
    suboffsets: *const isize,
    internal: *mut c_void,
}

struct Functions {
    get: unsafe extern "C" fn(*mut ffi::PyObject, *mut View, c_int) -> c_int,
    release: unsafe extern "C" fn(*mut View),
}

fn functions() -> PyResult<&'static Functions> {
    // Nothing gives up the interpreter's lock while it is made: a child that is forked then would wait for ever.
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    let found = FUNCTIONS.get_or_init(|| {
        // SAFETY: names of functions, asked of what is loaded already.
        let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let (get, release) = (find(c"PyObject_GetBuffer"), find(c"PyBuffer_Release"));
        if get.is_null() || release.is_null() {
            return None;
        }
        // SAFETY: these functions have these types in all versions of Python 3.
        unsafe {
            Some(Functions {
                get: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut ffi::PyObject, *mut View, c_int) -> c_int,
                >(get),
                release: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut View)>(release),
            })
        }
    });
    found.as_ref().ok_or_else(|| PyBufferError::new_err("this interpreter has no buffer protocol"))
}

/// A view of an object's memory, which stays where it is until this is dropped.
pub(crate) struct Buffer {
    view: Box<View>,
    release: unsafe extern "C" fn(*mut View),
}

// SAFETY: a view may be given back by any thread that holds the interpreter's lock, as whoever drops it does.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads fields that do not change.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The memory of `object`; `None` if it does not have the protocol.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = object.py();
        let functions = functions()?;
        // SAFETY: every field is a number or a pointer that may be null.
        let mut view: Box<View> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: an object, and a place for the result, which does not move.
        if unsafe { (functions.get)(object.as_ptr(), &raw mut *view, FLAGS) } == 0 {
            return Ok(Some(Self { view, release: functions.release }));
        }
        match PyErr::fetch(py) {
            error if error.is_instance_of::<PyTypeError>(py) => Ok(None),
            error => Err(error),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.view.data.expose_provenance() as u64
    }

    pub(crate) fn itemsize(&self) -> usize {
        self.view.itemsize.unsigned_abs()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.view.readonly != 0
    }

    /// As the module `struct` writes it.
    pub(crate) fn format(&self) -> &str {
        if self.view.format.is_null() {
            return "B";
        }
        // SAFETY: the exporter's promise: a text that lives as long as the view.
        unsafe { CStr::from_ptr(self.view.format) }.to_str().unwrap_or("?")
    }

    pub(crate) fn shape(&self) -> &[isize] {
        self.sizes(self.view.shape)
    }

    /// In bytes.
    pub(crate) fn strides(&self) -> Option<&[isize]> {
        (!self.view.strides.is_null()).then(|| self.sizes(self.view.strides))
    }

    fn sizes(&self, first: *const isize) -> &[isize] {
        match usize::try_from(self.view.ndim) {
            // SAFETY: the exporter's promise: so many numbers, which live as long as the view.
            Ok(count @ 1..) if !first.is_null() => unsafe { std::slice::from_raw_parts(first, count) },
            _ => &[],
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: made by `PyObject_GetBuffer`, and given back once.
        unsafe { (self.release)(&raw mut *self.view) };
    }
}
