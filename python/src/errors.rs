//! Headway's errors as exceptions of the Python package, with their facts as attributes.

use std::io::ErrorKind;

use headway::{Diagnosis, Failure};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

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
        headway::ErrorKind::Guest => "guest",
        headway::ErrorKind::Defect => "defect",
        _ if is_absent => "not-found",
        _ => "other",
    };
    let facts = Facts { class, kind, text, message, help, causes };
    facts.exception(py, place).unwrap_or_else(|error| error)
}

/// The exception for a word, time or size that cannot be read.
pub(crate) fn options_error(py: Python<'_>, message: &str) -> PyErr {
    let message = message.to_owned();
    let facts =
        Facts { class: "option", kind: "options", text: message.clone(), message, help: None, causes: Vec::new() };
    facts.exception(py, None).unwrap_or_else(|error| error)
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
    fn exception(self, py: Python<'_>, place: Option<&headway::FileError>) -> PyResult<PyErr> {
        let facts = PyDict::new(py);
        facts.set_item("class_", self.class)?;
        facts.set_item("kind", self.kind)?;
        facts.set_item("text", self.text)?;
        facts.set_item("message", self.message)?;
        facts.set_item("help", self.help)?;
        facts.set_item("causes", self.causes)?;
        if let Some(place) = place {
            facts.set_item("file", &place.file)?;
            facts.set_item("line", place.line)?;
            facts.set_item("column", place.column)?;
            facts.set_item("width", place.width)?;
            facts.set_item("source_line", &place.source_line)?;
        }
        Ok(PyErr::from_value(py.import(MODULE)?.getattr("exception")?.call((), Some(&facts))?))
    }
}

/// `value` as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}
