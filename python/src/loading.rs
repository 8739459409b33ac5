//! Loads of parts of files into GPU memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use headway::copy::{FilePart, LoadError, LoadOptions, Loading, RawPlace};
use headway::units::Bytes;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::copies::{copier, failed};
use crate::errors::{file_error, options_error};
use crate::sync::lock;

/// Parts of files that are read into one GPU's memory, once.
#[pyclass(frozen, module = "headway._native")]
pub(crate) struct FileLoad {
    gpu: Option<u32>,
    paths: Vec<String>,
    /// `None` once it was run.
    work: Mutex<Option<(Vec<File>, Vec<FilePart>)>>,
    options: LoadOptions,
    loading: Loading,
}

#[pymethods]
impl FileLoad {
    /// `files` are paths with open descriptors, which stay the caller's. Each of `parts` is a file's position, where the part begins in it,
    /// the address in GPU memory and the number of bytes. Nobody else uses that memory until `run` has returned.
    #[new]
    #[pyo3(signature = (gpu, files, parts, threads, slot_bytes))]
    fn new(
        py: Python<'_>,
        gpu: Option<u32>,
        files: Vec<(String, i32)>,
        parts: Vec<(usize, u64, u64, usize)>,
        threads: u32,
        slot_bytes: u64,
    ) -> PyResult<Self> {
        let mut paths = Vec::with_capacity(files.len());
        let mut opened = Vec::with_capacity(files.len());
        for (path, descriptor) in files {
            if descriptor < 0 {
                return Err(options_error(py, &format!("{descriptor} is no descriptor of a file; open `{path}`")));
            }
            // SAFETY: Python has it open, and keeps it so during this call.
            let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
            opened.push(File::from(borrowed.try_clone_to_owned().map_err(PyOSError::new_err)?));
            paths.push(path);
        }
        let part = |(file, at, address, bytes)| {
            // SAFETY: `headway._load` gives the memory of tensors that it has just made, and keeps them until `run` has returned; if the
            // GPU did not end in time, for ever.
            FilePart { file, at, place: unsafe { RawPlace::new(address, bytes) } }
        };
        let work = Mutex::new(Some((opened, parts.into_iter().map(part).collect())));
        let options = LoadOptions { threads, slot: Bytes(slot_bytes) };
        Ok(Self { gpu, paths, work, options, loading: Loading::default() })
    }

    /// Reads all parts. Other threads run meanwhile. The answer is how many bytes were read from the page cache and past it; `None` if
    /// it was stopped.
    fn run(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        let Some((files, parts)) = lock(&self.work).take() else {
            return Err(options_error(py, "this load was run already; make another one"));
        };
        let copier = copier(py, self.gpu)?;
        match py.detach(|| copier.load(files, parts, self.options, &self.loading)) {
            Ok(report) => Ok(Some((report.cached.0, report.direct.0))),
            Err(LoadError::Stopped) => Ok(None),
            Err(LoadError::Copy(error)) => Err(failed(py, &error)),
            Err(LoadError::Read { file, source }) => {
                let path = self.paths.get(file).map_or("a file", String::as_str);
                let (fact, help) = match source.kind() {
                    ErrorKind::UnexpectedEof => {
                        ("became shorter while it was read".to_owned(), "write it again, and load it then")
                    }
                    ErrorKind::InvalidData => {
                        ("was written while it was read".to_owned(), "load it again when it is complete")
                    }
                    _ => (format!("cannot be read: {source}"), "look at the disk and its file system"),
                };
                Err(file_error(py, path, &fact, help))
            }
            Err(_) => Err(options_error(py, "the load failed")),
        }
    }

    /// Ends it soon: `run` returns `None` then.
    fn stop(&self) {
        self.loading.stop();
    }

    /// Bytes that are on their way or in place.
    #[getter]
    fn moved_bytes(&self) -> u64 {
        self.loading.moved().0
    }
}
