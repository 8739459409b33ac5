//! Headway's errors as exceptions of the Python package, with their facts as attributes.

use std::io::ErrorKind;
use std::sync::Mutex;

use headway::copy::CopyError;
use headway::flow::{FlowError, FlowRefused};
use headway::{Diagnosis, Failure};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::sync::lock;

/// The Python module that chooses the class of an exception by its kind.
const MODULE: &str = "headway._errors";

/// What an error is about, where its kind does not say it.
#[derive(Clone, Copy)]
pub(crate) enum Subject {
    Machine,
    Other,
}

/// The exception for `error`, which is about `subject`.
pub(crate) fn raised(py: Python<'_>, subject: Subject, error: &headway::Error) -> PyErr {
    let place = error.place();
    let message = place.map_or_else(|| error.to_string(), |place| place.message.clone());
    let help = place.and_then(|place| place.help.clone()).or_else(|| error.help());
    let (kind, text, causes) = (Diagnosis::word(error), error.to_string(), Diagnosis::causes(error));
    let is_absent = matches!(error.failure(), Failure::Read { source, .. } if source.kind() == ErrorKind::NotFound);
    let class = match error.kind() {
        headway::ErrorKind::File if matches!(subject, Subject::Machine) => "machine",
        headway::ErrorKind::File | headway::ErrorKind::Plan => "workload",
        headway::ErrorKind::Machine if matches!(error.failure(), Failure::NoMachine { .. }) => "not-found",
        headway::ErrorKind::Machine => "machine",
        headway::ErrorKind::Options => "option",
        headway::ErrorKind::NotAccepted => "refused",
        headway::ErrorKind::Guest => "guest",
        headway::ErrorKind::Defect => "defect",
        headway::ErrorKind::Backend => "gpu",
        headway::ErrorKind::Device if is_timeout(error) => "timeout",
        headway::ErrorKind::Device => "copy",
        _ if is_absent => "not-found",
        _ => "other",
    };
    let facts = Facts { class, kind, text, message, help, causes };
    let more = PyDict::new(py);
    let told = match error.failure() {
        Failure::Copy(error) => copy_facts(&more, error),
        Failure::Flow(FlowError::Refused(refused)) if error.is_answer() => refusal_facts(&more, refused),
        _ => Ok(()),
    };
    told.and_then(|()| facts.exception(py, place, &more)).unwrap_or_else(|error| error)
}

/// Whether the time was up of something that goes on.
pub(crate) fn is_timeout(error: &headway::Error) -> bool {
    matches!(error.failure(), Failure::Copy(CopyError::Timeout { .. }) | Failure::Flow(FlowError::Late { .. }))
}

/// Who would suffer from a flow that is refused, and what would help.
fn refusal_facts(facts: &Bound<'_, PyDict>, refused: &FlowRefused) -> PyResult<()> {
    facts.set_item("suffers", refused.suffers())?;
    let proposals: Vec<String> = refused.proposals().iter().map(ToString::to_string).collect();
    facts.set_item("proposals", PyTuple::new(facts.py(), proposals)?)
}

/// What is known of a copy that failed.
fn copy_facts(facts: &Bound<'_, PyDict>, error: &CopyError) -> PyResult<()> {
    match error {
        CopyError::Unavailable { method, .. } => facts.set_item("method", method.to_string()),
        CopyError::Refused { limit, max } => {
            facts.set_item("limit", limit)?;
            facts.set_item("limit_max", max)
        }
        CopyError::Timeout { after, completed_prefix, .. } => {
            facts.set_item("after_ns", after.0)?;
            facts.set_item("completed_bytes", completed_prefix)
        }
        CopyError::Failed { completed_prefix, .. } | CopyError::Cancelled { completed_prefix } => {
            facts.set_item("completed_bytes", completed_prefix)
        }
        _ => Ok(()),
    }
}

/// What is wrong with an array that is to be copied.
pub(crate) struct ArrayFacts {
    pub(crate) message: String,
    pub(crate) help: Option<String>,
    /// Which argument it is; `None` = both together.
    pub(crate) argument: Option<&'static str>,
    /// Shape and type of each, where they are known.
    pub(crate) dst: Option<(Vec<i64>, String)>,
    pub(crate) src: Option<(Vec<i64>, String)>,
}

impl ArrayFacts {
    pub(crate) fn of(message: String) -> Self {
        Self { message, help: None, argument: None, dst: None, src: None }
    }
}

/// The exception for an array that cannot be copied.
pub(crate) fn array_error(py: Python<'_>, found: ArrayFacts) -> PyErr {
    let ArrayFacts { message, help, argument, dst, src } = found;
    let more = PyDict::new(py);
    let told = || {
        more.set_item("argument", argument)?;
        for (name, array) in [("dst", dst), ("src", src)] {
            if let Some((shape, dtype)) = array {
                more.set_item(format!("{name}_shape"), PyTuple::new(py, shape)?)?;
                more.set_item(format!("{name}_dtype"), dtype)?;
            }
        }
        let facts = Facts { class: "array", kind: "options", text: message.clone(), message, help, causes: Vec::new() };
        facts.exception(py, None, &more)
    };
    told().unwrap_or_else(|error| error)
}

/// The exception for a word, time or size that cannot be read.
pub(crate) fn options_error(py: Python<'_>, message: &str) -> PyErr {
    let message = message.to_owned();
    let facts =
        Facts { class: "option", kind: "options", text: message.clone(), message, help: None, causes: Vec::new() };
    facts.exception(py, None, &PyDict::new(py)).unwrap_or_else(|error| error)
}

/// The exception for a file that cannot be loaded.
pub(crate) fn file_error(py: Python<'_>, path: &str, fact: &str, help: &str) -> PyErr {
    let message = format!("`{path}` {fact}");
    let (text, help) = (message.clone(), Some(help.to_owned()));
    let facts = Facts { class: "file", kind: "file", text, message, help, causes: Vec::new() };
    let more = PyDict::new(py);
    let told = more.set_item("path", path).and_then(|()| facts.exception(py, None, &more));
    told.unwrap_or_else(|error| error)
}

struct Facts {
    /// Of the exception, as `headway._errors` calls them.
    class: &'static str,
    kind: &'static str,
    /// All that is known, with the line of the file and a caret.
    text: String,
    /// The object and the fact.
    message: String,
    help: Option<String>,
    causes: Vec<String>,
}

impl Facts {
    /// The exception, which also has `more` as attributes.
    fn exception(
        self,
        py: Python<'_>,
        place: Option<&headway::FileError>,
        more: &Bound<'_, PyDict>,
    ) -> PyResult<PyErr> {
        let facts = PyDict::new(py);
        facts.set_item("class_", self.class)?;
        facts.set_item("kind", self.kind)?;
        facts.set_item("text", self.text)?;
        facts.set_item("message", self.message)?;
        facts.set_item("help", self.help)?;
        facts.set_item("causes", self.causes)?;
        facts.set_item("facts", more)?;
        if let Some(place) = place {
            facts.set_item("file", &place.file)?;
            facts.set_item("line", place.line)?;
            facts.set_item("column", place.column)?;
            facts.set_item("width", place.width)?;
            facts.set_item("source_line", &place.source_line)?;
        }
        Ok(PyErr::from_value(maker(py)?.call((), Some(&facts))?))
    }
}

/// Python's part of [`Facts::exception`], for when nothing can be imported any more.
static MAKER: Mutex<Option<Py<PyAny>>> = Mutex::new(None);

fn maker(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let found = py.import(MODULE).and_then(|module| module.getattr("exception"));
    found.or_else(|error| lock(&MAKER).as_ref().map(|kept| kept.bind(py).clone()).ok_or(error))
}

/// Keeps what makes exceptions: late in its end the interpreter imports nothing.
pub(crate) fn keep(py: Python<'_>) {
    // Without it each exception is that of the import.
    let found = maker(py).ok().map(Bound::unbind);
    let before = std::mem::replace(&mut *lock(&MAKER), found);
    drop(before);
}

/// `value` as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}
