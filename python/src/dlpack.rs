//! Arrays of other packages by DLPack: its structures, and both ways to get them, by a C table and by `__dlpack__`.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{LazyLock, Mutex};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// Kinds of devices. Memory of the first two is host memory.
pub(crate) const CPU: i32 = 1;
pub(crate) const CUDA_HOST: i32 = 3;
pub(crate) const CUDA: i32 = 2;
pub(crate) const CUDA_MANAGED: i32 = 13;

/// The version whose structures these are.
const MAJOR: u32 = 1;
const MINOR: u32 = 0;
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

#[derive(Clone, Copy)]
#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
pub(crate) struct Tensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    ndim: i32,
    pub(crate) dtype: DataType,
    shape: *const i64,
    /// In elements; null = in rows.
    strides: *const i64,
    byte_offset: u64,
}

impl Tensor {
    const EMPTY: Self = Self {
        data: std::ptr::null_mut(),
        device: Device { kind: 0, id: 0 },
        ndim: 0,
        dtype: DataType { code: 0, bits: 0, lanes: 0 },
        shape: std::ptr::null(),
        strides: std::ptr::null(),
        byte_offset: 0,
    };

    pub(crate) fn address(&self) -> u64 {
        (self.data.expose_provenance() as u64).wrapping_add(self.byte_offset)
    }

    pub(crate) fn shape(&self) -> &[i64] {
        // SAFETY: the producer's promise: `ndim` sizes.
        unsafe { sizes(self.shape, self.ndim) }
    }

    pub(crate) fn strides(&self) -> Option<&[i64]> {
        // SAFETY: the producer's promise: null, or `ndim` strides.
        (!self.strides.is_null()).then(|| unsafe { sizes(self.strides, self.ndim) })
    }
}

/// # Safety
/// `first` points to `count` numbers that live as long as the result, unless `count` is zero.
unsafe fn sizes<'a>(first: *const i64, count: i32) -> &'a [i64] {
    match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(count @ 1..) if !first.is_null() => unsafe { std::slice::from_raw_parts(first, count) },
        _ => &[],
    }
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: Version,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

/// `DLManagedTensor`, of before version 1.
#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor that its producer keeps until this is dropped.
pub(crate) enum Managed {
    #[expect(private_interfaces, reason = "made and read here only")]
    Versioned(*mut Versioned),
    #[expect(private_interfaces, reason = "made and read here only")]
    Unversioned(*mut Unversioned),
}

// SAFETY: a managed tensor may be given back by any thread; whoever drops it holds the interpreter's lock.
unsafe impl Send for Managed {}
// SAFETY: shared access only reads fields that do not change.
unsafe impl Sync for Managed {}

impl Managed {
    pub(crate) fn tensor(&self) -> &Tensor {
        match self {
            // SAFETY: valid until the deleter is called, by `drop`.
            Self::Versioned(tensor) => unsafe { &(**tensor).tensor },
            // SAFETY: valid until the deleter is called, by `drop`.
            Self::Unversioned(tensor) => unsafe { &(**tensor).tensor },
        }
    }

    fn flags(&self) -> u64 {
        match self {
            // SAFETY: valid until the deleter is called, by `drop`.
            Self::Versioned(tensor) => unsafe { (**tensor).flags },
            Self::Unversioned(_) => 0,
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.flags() & READ_ONLY != 0
    }

    /// Whether the producer copied the bytes, so that they are not the array's.
    pub(crate) fn is_copied(&self) -> bool {
        self.flags() & IS_COPIED != 0
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        match *self {
            Self::Versioned(tensor) => {
                // SAFETY: taken from its capsule or table once, and given back once.
                if let Some(deleter) = unsafe { (*tensor).deleter } {
                    // SAFETY: taken from its capsule or table once, and given back once.
                    unsafe { deleter(tensor) };
                }
            }
            Self::Unversioned(tensor) => {
                // SAFETY: taken from its capsule once, and given back once.
                if let Some(deleter) = unsafe { (*tensor).deleter } {
                    // SAFETY: taken from its capsule once, and given back once.
                    unsafe { deleter(tensor) };
                }
            }
        }
    }
}

/// `DLPackExchangeAPI`, by which an array becomes a tensor without a call of Python.
#[repr(C)]
pub(crate) struct Table {
    version: Version,
    older: *const Self,
    _allocate: *const c_void,
    managed_of: Option<unsafe extern "C" fn(*mut c_void, *mut *mut Versioned) -> c_int>,
    _to_object: *const c_void,
    tensor_of: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

impl Table {
    /// The table of the array's type, if it has one.
    pub(crate) fn of(array: &Bound<'_, PyAny>) -> PyResult<Option<&'static Self>> {
        /// By the address of a type, which is kept.
        type Known = Mutex<HashMap<usize, (Py<PyType>, usize)>>;
        // Nothing gives up the interpreter's lock while it is made: a child that is forked then would wait for ever.
        static KNOWN: LazyLock<Known> = LazyLock::new(Known::default);
        /// Types that are remembered; of more of them each is asked again.
        const KNOWN_MAX: usize = 256;
        let kind = array.get_type();
        let lock = || KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let address = kind.as_ptr().addr();
        let found = lock().get(&address).map(|(_, table)| *table);
        let found = match found {
            Some(found) => found,
            None => {
                let asked = Self::ask(&kind)?;
                let mut known = lock();
                if known.len() < KNOWN_MAX {
                    known.insert(address, (kind.unbind(), asked));
                }
                asked
            }
        };
        // SAFETY: a table lives as long as the process, by its rules.
        Ok(unsafe { std::ptr::with_exposed_provenance::<Self>(found).as_ref() })
    }

    /// The address of the table that `kind` has for this version, or 0.
    fn ask(kind: &Bound<'_, PyType>) -> PyResult<usize> {
        const NAME: &CStr = c"dlpack_exchange_api";
        let Some(given) = kind.getattr_opt("__dlpack_c_exchange_api__")? else { return Ok(0) };
        // SAFETY: `given` is an object, and the name is the one that the pointer is asked by.
        let is_table = unsafe { ffi::PyCapsule_IsValid(given.as_ptr(), NAME.as_ptr()) } == 1;
        if !is_table {
            return Ok(0);
        }
        // SAFETY: a valid capsule of this name.
        let mut table: *const Self = unsafe { ffi::PyCapsule_GetPointer(given.as_ptr(), NAME.as_ptr()) }.cast();
        // SAFETY: null, or a table whose first two fields all versions have.
        while let Some(found) = unsafe { table.as_ref() } {
            if found.version.major == MAJOR {
                return Ok(table.expose_provenance());
            }
            table = found.older;
        }
        Ok(0)
    }

    /// What `body` makes of the array as a tensor, which is lent to it; `None` if the table cannot lend.
    pub(crate) fn lent<R>(&self, array: &Bound<'_, PyAny>, body: impl FnOnce(&Tensor) -> R) -> PyResult<Option<R>> {
        let Some(tensor_of) = self.tensor_of else { return Ok(None) };
        let mut tensor = Tensor::EMPTY;
        // SAFETY: an array of the type that has the table, and a place for the result.
        if unsafe { tensor_of(array.as_ptr().cast(), &raw mut tensor) } != 0 {
            return Err(PyErr::fetch(array.py()));
        }
        Ok(Some(body(&tensor)))
    }

    /// The array as a tensor that stays.
    pub(crate) fn managed(&self, array: &Bound<'_, PyAny>) -> PyResult<Option<Managed>> {
        let Some(managed_of) = self.managed_of else { return Ok(None) };
        let mut tensor = std::ptr::null_mut();
        // SAFETY: an array of the type that has the table, and a place for the result.
        if unsafe { managed_of(array.as_ptr().cast(), &raw mut tensor) } != 0 {
            return Err(PyErr::fetch(array.py()));
        }
        Ok((!tensor.is_null()).then_some(Managed::Versioned(tensor)))
    }

    /// The stream that the package gives work to now.
    pub(crate) fn current_stream(&self, py: Python<'_>, device: Device) -> PyResult<Option<usize>> {
        let Some(current_stream) = self.current_stream else { return Ok(None) };
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the result.
        if unsafe { current_stream(device.kind, device.id, &raw mut stream) } != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(Some(stream.addr()))
    }
}

/// Where an array says that it is; `None` without `__dlpack_device__`.
pub(crate) fn device(array: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    let Some(ask) = array.getattr_opt("__dlpack_device__")? else { return Ok(None) };
    let answer = ask.call0()?;
    // The kind is an enumeration in most packages.
    let (kind, id): (Bound<'_, PyAny>, i32) = answer.extract()?;
    let kind = kind.call_method0("__index__")?.extract()?;
    Ok(Some(Device { kind, id }))
}

/// The tensor that `__dlpack__` gives, ordered on `stream` if the array is on a GPU. Older producers know fewer arguments.
pub(crate) fn export(array: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Managed> {
    let py = array.py();
    let export = array.getattr("__dlpack__")?;
    let arguments = PyDict::new(py);
    if let Some(stream) = stream {
        // 0 is forbidden, as it may mean either default stream. PyTorch refuses 2, the calling thread's, which waits for the legacy one.
        arguments.set_item("stream", if stream <= 2 { 1 } else { stream })?;
    }
    let full = arguments.copy()?;
    full.set_item("max_version", (MAJOR, MINOR))?;
    full.set_item("copy", false)?;
    let is_refused = |error: &PyErr| error.is_instance_of::<PyTypeError>(py);
    let mut given = export.call((), Some(&full));
    if given.as_ref().is_err_and(is_refused) {
        full.del_item("copy")?;
        given = export.call((), Some(&full));
    }
    if given.as_ref().is_err_and(is_refused) {
        given = export.call((), Some(&arguments));
    }
    take(&given?)
}

/// Takes the tensor out of its capsule.
fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Managed> {
    let pointer = |name: &CStr, used: &'static CStr| {
        // SAFETY: an object, and a text.
        if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } != 1 {
            return Ok(None);
        }
        // SAFETY: a valid capsule of this name.
        let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) };
        // SAFETY: a valid capsule, and a text that lives for ever. From now on its destructor leaves the tensor alone.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr().cast::<c_char>()) } != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok(Some(pointer))
    };
    if let Some(found) = pointer(c"dltensor_versioned", c"used_dltensor_versioned")? {
        let managed = Managed::Versioned(found.cast());
        // SAFETY: the version comes first in every version.
        let version = unsafe { *found.cast::<Version>() };
        if version.major != MAJOR {
            let text = format!("the producer gives DLPack {}.{}, and 1.x was asked for", version.major, version.minor);
            return Err(PyBufferError::new_err(text));
        }
        return Ok(managed);
    }
    match pointer(c"dltensor", c"used_dltensor")? {
        Some(found) => Ok(Managed::Unversioned(found.cast())),
        None => Err(PyBufferError::new_err("`__dlpack__` gave no capsule of a tensor, or one that was used before")),
    }
}
