//! An array of any package as copies see it: where its bytes are, their shape and type, and who must keep them.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::Buffer;
use crate::dlpack::{self, DataType, Device, Managed, Table, Tensor};
use crate::errors::{ArrayFacts, array_error};

/// Codes of element types, as DLPack has them.
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const OPAQUE: u8 = 3;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

/// Which argument of a copy an array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Target,
    Source,
}

impl Role {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Target => "dst",
            Self::Source => "src",
        }
    }
}

/// Type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// As DLPack has it.
    code: u8,
    bytes: usize,
}

impl Element {
    /// Whether an array of this type may be copied to one of the other: the same kind and size. Unsigned integers and what has no kind
    /// stand for bits of any kind.
    fn matches(self, other: Self) -> bool {
        let any = |code| code == UINT || code == OPAQUE;
        self.bytes == other.bytes && (self.code == other.code || any(self.code) || any(other.code))
    }

    pub(crate) fn name(self) -> String {
        let bits = 8 * self.bytes;
        match self.code {
            INT => format!("int{bits}"),
            UINT => format!("uint{bits}"),
            FLOAT => format!("float{bits}"),
            BFLOAT => format!("bfloat{bits}"),
            COMPLEX => format!("complex{bits}"),
            BOOL => "bool".to_owned(),
            OPAQUE => format!("{} bytes", self.bytes),
            code => format!("float{bits} (DLPack type {code})"),
        }
    }

    fn of_dlpack(given: DataType) -> Option<Self> {
        let bits = usize::from(given.bits) * usize::from(given.lanes);
        (bits % 8 == 0 && bits > 0).then_some(Self { code: given.code, bytes: bits / 8 })
    }

    /// By a format of the module `struct`; `None` in the other byte order.
    fn of_format(format: &str, bytes: usize) -> Option<Self> {
        let (order, kind) = match format.as_bytes() {
            [order @ (b'@' | b'=' | b'<' | b'>' | b'!'), kind @ ..] => (*order, kind),
            kind => (b'@', kind),
        };
        let code = match kind {
            [b'b' | b'h' | b'i' | b'l' | b'q' | b'n'] => INT,
            [b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' | b'c'] => UINT,
            [b'e' | b'f' | b'd' | b'g'] => FLOAT,
            [b'Z', b'f' | b'd' | b'g'] => COMPLEX,
            [b'?'] => BOOL,
            _ => OPAQUE,
        };
        is_native(order, bytes).then_some(Self { code, bytes })
    }

    /// By the type of an array interface, as `<f4` or `<M8[s]`.
    fn of_interface(text: &str) -> Option<Self> {
        let [order, kind] = *text.as_bytes().first_chunk()?;
        let bytes = text.get(2..)?.split('[').next()?.parse().ok()?;
        let code = match kind {
            b'i' => INT,
            b'u' => UINT,
            b'f' => FLOAT,
            b'c' => COMPLEX,
            b'b' => BOOL,
            _ => OPAQUE,
        };
        is_native(order, bytes).then_some(Self { code, bytes })
    }
}

/// Whether a format of the buffer protocol has an object of Python, also inside a structure. Between colons it has the names of fields.
fn has_objects(format: &str) -> bool {
    format.split(':').step_by(2).any(|types| types.contains('O'))
}

/// The same of an array with NumPy's interface.
fn is_of_objects(array: &Bound<'_, PyAny>, typestr: &str) -> PyResult<bool> {
    let dtype = array.getattr_opt("dtype")?;
    let asked = dtype.map(|dtype| dtype.getattr_opt("hasobject")).transpose()?.flatten();
    Ok(typestr.as_bytes().get(1) == Some(&b'O') || asked.map(|asked| asked.is_truthy()).transpose()?.unwrap_or(false))
}

fn is_native(order: u8, bytes: usize) -> bool {
    let other = if cfg!(target_endian = "little") { [b'>', b'!'] } else { [b'<', b'<'] };
    bytes < 2 || !other.contains(&order)
}

/// What keeps an array's memory.
pub(crate) enum Keeper {
    #[expect(dead_code, reason = "held, not read")]
    Object(Py<PyAny>),
    #[expect(dead_code, reason = "held, not read")]
    Tensor(Managed),
    #[expect(dead_code, reason = "held, not read")]
    Buffer(Buffer),
}

/// An array as copies see it.
pub(crate) struct Array {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    shape: Vec<i64>,
    element: Element,
    pub(crate) place: Place,
    /// The stream whose work the bytes are behind, or are to be behind, by the package that has the array.
    pub(crate) stream: Option<usize>,
    pub(crate) keeper: Keeper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    /// The GPU's number, where the array says it.
    Gpu(Option<u32>),
}

/// What one protocol says of an array, before it is checked.
struct Said<'a> {
    address: u64,
    shape: Vec<i64>,
    /// `None` = one that cannot be copied; the text names it.
    element: Option<Element>,
    element_text: String,
    /// In units of `stride_unit` bytes; `None` = in rows.
    strides: Option<Vec<i64>>,
    stride_unit: usize,
    place: Place,
    is_read_only: bool,
    /// Elements are addresses of Python's objects, or have such.
    has_objects: bool,
    stream: Option<usize>,
    role: Role,
    py: Python<'a>,
}

impl Array {
    /// What `object` is. `stream` is that of the copy, where the caller gave one; `stays` = its memory is used after the call.
    pub(crate) fn of(object: &Bound<'_, PyAny>, role: Role, stream: Option<usize>, stays: bool) -> PyResult<Self> {
        if let Some(table) = Table::of(object)?
            && let Some(array) = Self::by_table(object, table, role, stream, stays)?
        {
            return Ok(array);
        }
        let py = object.py();
        let mut refused = match Buffer::of(object) {
            Ok(Some(buffer)) => return Self::by_buffer(py, buffer, role),
            Ok(None) => None,
            // Arrays of a GPU refuse, and some types have no format.
            Err(error) => Some(error),
        };
        let mut is_shown_as_it_is = true;
        if let Some(device) = dlpack::device(object)? {
            match Self::by_dlpack(object, device, role, stream) {
                Err(error) if error.is_instance_of::<PyBufferError>(py) => {
                    is_shown_as_it_is = false;
                    refused = Some(error);
                }
                answer => return answer,
            }
        }
        for (name, place) in [("__cuda_array_interface__", Place::Gpu(None)), ("__array_interface__", Place::Host)] {
            // PyTorch's interface of a GPU does not say why its DLPack refuses: values that are conjugated when they are read.
            if (place == Place::Host || is_shown_as_it_is)
                && let Some(interface) = object.getattr_opt(name)?
            {
                return Self::by_interface(object, &interface, place, role);
            }
        }
        let (word, kind) = (role.word(), object.get_type().qualname()?);
        let text = match &refused {
            Some(refused) => format!("`{word}` does not give its memory: {}", refused.value(py)),
            None => format!("`{word}` is no array: `{kind}` has no DLPack, CUDA array interface or buffer"),
        };
        let help = "give an array of NumPy, PyTorch, CuPy, JAX or Numba, or bytes, a bytearray or a memoryview";
        let help = refused.is_none().then(|| help.to_owned());
        let made = array_error(py, ArrayFacts { argument: Some(word), help, ..ArrayFacts::of(text) });
        made.set_cause(py, refused);
        Err(made)
    }

    /// `None` where the package must order its own work before the copy's stream, which its table does not do.
    fn by_table(
        object: &Bound<'_, PyAny>,
        table: &Table,
        role: Role,
        stream: Option<usize>,
        stays: bool,
    ) -> PyResult<Option<Self>> {
        let py = object.py();
        let said = |tensor: &Tensor| (Said::of_tensor(py, tensor, false, role), tensor.device, tensor.dtype.code);
        let managed = if stays { table.managed(object)? } else { None };
        let lent = match &managed {
            Some(managed) => Some(said(managed.tensor())),
            None => table.lent(object, said)?,
        };
        let Some((said, device, code)) = lent else { return Ok(None) };
        let mut said = said?;
        check_values(object, code, role)?;
        if device.kind == dlpack::CUDA {
            let current = table.current_stream(py, device)?;
            match (stream, current) {
                (Some(stream), Some(current)) if stream.max(1) != current.max(1) => return Ok(None),
                (_, None) => return Ok(None),
                (_, current) => said.stream = current,
            }
        }
        let read_only = managed.as_ref().is_some_and(Managed::is_read_only);
        said.is_read_only |= read_only;
        let keeper = managed.map_or_else(|| Keeper::Object(object.clone().unbind()), Keeper::Tensor);
        said.array(keeper).map(Some)
    }

    fn by_dlpack(object: &Bound<'_, PyAny>, device: Device, role: Role, stream: Option<usize>) -> PyResult<Self> {
        let is_gpu = device.kind == dlpack::CUDA;
        // Nothing is exported of a device whose memory cannot be copied.
        place(object.py(), device, role)?;
        let managed = dlpack::export(object, is_gpu.then(|| stream.unwrap_or(1)))?;
        check_values(object, managed.tensor().dtype.code, role)?;
        if role == Role::Target && managed.is_copied() {
            let text = "`dst` gives only a copy of itself by DLPack: what is written there is lost".to_owned();
            return Err(array_error(object.py(), ArrayFacts { argument: Some("dst"), ..ArrayFacts::of(text) }));
        }
        // JAX gives tensors of before version 1, which cannot say that its arrays never change.
        let is_read_only = managed.is_read_only() || object.get_type().module()?.to_str()?.starts_with("jax");
        let said = Said::of_tensor(object.py(), managed.tensor(), is_read_only, role)?;
        said.array(Keeper::Tensor(managed))
    }

    fn by_buffer(py: Python<'_>, buffer: Buffer, role: Role) -> PyResult<Self> {
        let wide = |sizes: &[isize]| sizes.iter().map(|size| *size as i64).collect();
        let said = Said {
            address: buffer.address(),
            shape: wide(buffer.shape()),
            element: Element::of_format(buffer.format(), buffer.itemsize()),
            element_text: format!("the format `{}`", buffer.format()),
            strides: buffer.strides().map(wide),
            stride_unit: 1,
            place: Place::Host,
            is_read_only: buffer.is_read_only(),
            has_objects: has_objects(buffer.format()),
            stream: None,
            role,
            py,
        };
        said.array(Keeper::Buffer(buffer))
    }

    /// By a dictionary of NumPy's or Numba's array interface.
    fn by_interface(
        object: &Bound<'_, PyAny>,
        interface: &Bound<'_, PyAny>,
        place: Place,
        role: Role,
    ) -> PyResult<Self> {
        let py = object.py();
        let interface = interface.cast::<PyDict>()?;
        let entry = |name| Ok::<_, PyErr>(interface.get_item(name)?.filter(|value| !value.is_none()));
        let broken = |what: &str| {
            let text = format!("the array interface of `{}` {what}", role.word());
            array_error(py, ArrayFacts { argument: Some(role.word()), ..ArrayFacts::of(text) })
        };
        if entry("mask")?.is_some() {
            return Err(broken("has a mask"));
        }
        let (address, is_read_only): (u64, bool) = entry("data")?.ok_or_else(|| broken("has no `data`"))?.extract()?;
        let text: String = entry("typestr")?.ok_or_else(|| broken("has no `typestr`"))?.extract()?;
        let stream: Option<usize> = entry("stream")?.map(|stream| stream.extract()).transpose()?;
        let said = Said {
            address,
            shape: entry("shape")?.ok_or_else(|| broken("has no `shape`"))?.extract()?,
            element: Element::of_interface(&text),
            element_text: format!("the type `{text}`"),
            strides: entry("strides")?.map(|strides| strides.extract()).transpose()?,
            stride_unit: 1,
            place,
            is_read_only,
            has_objects: is_of_objects(object, &text)?,
            stream,
            role,
            py,
        };
        said.array(Keeper::Object(object.clone().unbind()))
    }

    pub(crate) fn facts(&self) -> (Vec<i64>, String) {
        (self.shape.clone(), self.element.name())
    }
}

/// Refuses tensors of PyTorch whose bytes are not their values: those that are conjugated or negated when they are read.
fn check_values(object: &Bound<'_, PyAny>, code: u8, role: Role) -> PyResult<()> {
    let possible: &[_] = match code {
        COMPLEX => &[("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")],
        FLOAT => &[("is_neg", "resolve_neg")],
        _ => &[],
    };
    for (asks, resolves) in possible {
        if let Some(asked) = object.getattr_opt(*asks)?
            && asked.call0()?.is_truthy()?
        {
            let word = role.word();
            let text = format!("the bytes of `{word}` are not its values: `{word}.{asks}()`");
            let help = Some(format!("copy `{word}.{resolves}()`"));
            return Err(array_error(object.py(), ArrayFacts { argument: Some(word), help, ..ArrayFacts::of(text) }));
        }
    }
    Ok(())
}

/// Whether `device` has memory that copies reach.
fn place(py: Python<'_>, device: Device, role: Role) -> PyResult<Place> {
    let text = match device.kind {
        dlpack::CPU | dlpack::CUDA_HOST => return Ok(Place::Host),
        dlpack::CUDA => return Ok(Place::Gpu(u32::try_from(device.id).ok())),
        dlpack::CUDA_MANAGED => "is memory that the driver moves by itself; use its own copy".to_owned(),
        other => format!("is on a device of another kind (DLPack's number {other})"),
    };
    let text = format!("`{}` {text}", role.word());
    Err(array_error(py, ArrayFacts { argument: Some(role.word()), ..ArrayFacts::of(text) }))
}

impl<'a> Said<'a> {
    fn of_tensor(py: Python<'a>, tensor: &Tensor, is_read_only: bool, role: Role) -> PyResult<Self> {
        let DataType { code, bits, lanes } = tensor.dtype;
        let element = Element::of_dlpack(tensor.dtype);
        Ok(Self {
            address: tensor.address(),
            shape: tensor.shape().to_vec(),
            element,
            element_text: format!("{lanes} of {bits} bits (DLPack type {code})"),
            strides: tensor.strides().map(<[i64]>::to_vec),
            stride_unit: element.map_or(1, |element| element.bytes),
            place: place(py, tensor.device, role)?,
            is_read_only,
            has_objects: false,
            stream: None,
            role,
            py,
        })
    }

    /// The array, if it can be copied as it is.
    fn array(self, keeper: Keeper) -> PyResult<Array> {
        let word = self.role.word();
        let refused = |text: String, help: Option<&str>| {
            let facts = ArrayFacts { argument: Some(word), help: help.map(str::to_owned), ..ArrayFacts::of(text) };
            let dtype = self.element.map_or_else(|| self.element_text.clone(), Element::name);
            let described = Some((self.shape.clone(), dtype));
            let facts = match self.role {
                Role::Target => ArrayFacts { dst: described, ..facts },
                Role::Source => ArrayFacts { src: described, ..facts },
            };
            array_error(self.py, facts)
        };
        if self.has_objects {
            let text = format!(
                "`{word}` has objects of Python, of which a copy would move the addresses alone: {}",
                self.element_text
            );
            return Err(refused(
                text,
                Some("convert it to a type of numbers: `array.astype(float)`, or a structure without objects"),
            ));
        }
        let Some(element) = self.element else {
            let text = format!("elements of `{word}` cannot be copied: {}", self.element_text);
            return Err(refused(text, Some("elements are whole bytes in this computer's byte order")));
        };
        let bytes =
            self.shape.iter().try_fold(element.bytes, |bytes, size| bytes.checked_mul(usize::try_from(*size).ok()?));
        let Some(bytes) = bytes.filter(|bytes| isize::try_from(*bytes).is_ok()) else {
            return Err(refused(format!("`{word}` has a size that no memory has: {:?}", self.shape), None));
        };
        if let Some(strides) = &self.strides
            && !is_in_rows(&self.shape, strides, element.bytes / self.stride_unit)
        {
            let text = format!("`{word}` does not lie in rows without gaps: its strides are {strides:?}");
            return Err(refused(text, Some("copy `ascontiguousarray(array)`, or `tensor.contiguous()`")));
        }
        if self.is_read_only && self.role == Role::Target {
            return Err(refused("`dst` is read-only".to_owned(), None));
        }
        let Self { address, shape, place, stream, .. } = self;
        Ok(Array { address, bytes, shape, element, place, stream, keeper })
    }
}

/// Whether elements lie one after the other, the last index first; `unit` = the distance of two neighbours.
fn is_in_rows(shape: &[i64], strides: &[i64], unit: usize) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = unit as i64;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected = expected.saturating_mul(*size);
            fits
        })
}

/// Whether `from` can be copied to `to`, element by element.
pub(crate) fn check_pair(py: Python<'_>, to: &Array, from: &Array) -> PyResult<()> {
    let refused = |text: String, help: &str| {
        array_error(
            py,
            ArrayFacts {
                argument: None,
                help: Some(help.to_owned()),
                dst: Some(to.facts()),
                src: Some(from.facts()),
                ..ArrayFacts::of(text)
            },
        )
    };
    if to.shape != from.shape {
        let text = format!("`dst` has shape {}, and `src` has {}", tuple(&to.shape), tuple(&from.shape));
        return Err(refused(text, "copies do not broadcast: reshape one of them"));
    }
    if !to.element.matches(from.element) {
        let text = format!("`dst` has {}, and `src` has {}", to.element.name(), from.element.name());
        return Err(refused(
            text,
            "copies do not convert: convert one of them, or view it as unsigned integers of that size",
        ));
    }
    match (to.place, from.place) {
        (Place::Host, Place::Host) => {
            Err(refused("both arrays are in host memory".to_owned(), "one is to be a GPU's; else use `numpy.copyto`"))
        }
        (Place::Gpu(_), Place::Gpu(_)) => Err(refused(
            "both arrays are on GPUs".to_owned(),
            "one is to be in host memory; else use the package's own copy",
        )),
        _ => Ok(()),
    }
}

/// A shape as Python writes it.
fn tuple(shape: &[i64]) -> String {
    match shape {
        [one] => format!("({one},)"),
        sizes => format!("({})", sizes.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// The driver's handle of a stream: a whole number, `__cuda_stream__`, `.cuda_stream`, `.ptr`, or `.handle`.
pub(crate) fn stream_handle(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    let number = |value: &Bound<'_, PyAny>| -> PyResult<usize> {
        // A null handle is `None` of `ctypes`.
        if value.is_none() {
            return Ok(0);
        }
        match value.getattr_opt("value")? {
            Some(inner) if !value.is_instance_of::<pyo3::types::PyInt>() => {
                if inner.is_none() {
                    Ok(0)
                } else {
                    inner.extract()
                }
            }
            _ => value.call_method0("__int__")?.extract(),
        }
    };
    if stream.is_instance_of::<pyo3::types::PyInt>() && !stream.is_instance_of::<pyo3::types::PyBool>() {
        return stream.extract().map_err(|_| no_stream(stream));
    }
    if let Some(protocol) = stream.getattr_opt("__cuda_stream__")? {
        let answer = if protocol.is_callable() { protocol.call0()? } else { protocol };
        let (_version, handle): (c_int, Bound<'_, PyAny>) = answer.extract()?;
        return number(&handle);
    }
    for name in ["cuda_stream", "ptr", "handle"] {
        if let Some(handle) = stream.getattr_opt(name)? {
            return number(&handle);
        }
    }
    Err(no_stream(stream))
}

fn no_stream(stream: &Bound<'_, PyAny>) -> PyErr {
    let shown = stream.repr().map(|text| text.to_string()).unwrap_or_default();
    let text = format!(
        "`stream={shown}` is no CUDA stream; give one of PyTorch, CuPy, Numba or cuda.core, or the driver's handle as a number of 0 or more"
    );
    crate::errors::options_error(stream.py(), &text)
}
