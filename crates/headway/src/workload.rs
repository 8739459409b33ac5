//! Workloads: what is to be moved and computed, by when. From a file, from text, or made in code.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use headway_core::units::Bytes;
use headway_device::work::Library;
use headway_kernels::Shipped;
use headway_os::input::open_once;

pub use headway_core::decisions::sharing::{JobSegment, TaskDirection};
pub use headway_core::files::error::Loaded;
pub use headway_core::files::workload::{
    CopyEndpoint, CpuFunction, Cycle, Grouping, KernelArgument, Message, MessageBlock, ModuleKernel, Number32,
    Number64, OnMiss, Otherwise, PacketPart, Parameters, PartStep, PartWork, ServerDemand, Sharding, SharingTable,
    Stream, StreamPlacement, StreamStep, Unplanned, UnplannedKind, Urgent, Workload, WorkloadError, WorkloadTask,
};
pub use headway_kernels::Cipher;
pub use headway_kernels::inspect::cameras::Cameras;
pub use headway_kernels::workload::{parse, write};

use crate::{Error, Failure, modules};

/// Reads a workload file, and the modules that it names.
///
/// # Errors
/// `ErrorKind::Io`, `ErrorKind::File`.
pub fn open(path: &Path) -> Result<Loaded<Workload>, Error> {
    let text = read(path)?;
    let mut workload = parse(&path.display().to_string(), &text)?;
    modules::read(&mut workload, path.parent().unwrap_or_else(|| Path::new("")))?;
    Ok(workload)
}

/// A workload that was made in code, checked by the rules for files; errors name the part, as in `stream.camera.period`.
///
/// ```
/// use headway::units::{Bytes, Nanos};
/// use headway::workload::{Stream, StreamStep, Workload, check};
///
/// let steps = vec![StreamStep::into_gpu(), StreamStep::compute("spin"), StreamStep::out_of_gpu()];
/// let camera = Stream::new("camera", Bytes(64 << 10), Nanos(1_000_000), Nanos(20_000_000), steps);
/// let workload = check(&Workload { streams: vec![camera], ..Workload::new("cameras") })?;
/// assert_eq!(workload.value.streams.len(), 1);
/// # Ok::<(), headway::Error>(())
/// ```
///
/// # Errors
/// `ErrorKind::File` for what no file may say.
pub fn check(workload: &Workload) -> Result<Loaded<Workload>, Error> {
    Ok(headway_kernels::workload::check(workload)?)
}

/// The kernels that ship, and before them those of the modules of `workload`.
///
/// # Errors
/// `ErrorKind::File` for modules that nobody has read, and for CPU forms that cannot be loaded.
#[doc(hidden)]
pub fn library(workload: &Loaded<Workload>) -> Result<Arc<dyn Library>, Error> {
    modules::library(workload, &(Arc::new(Shipped) as Arc<dyn Library>))
}

/// Bytes of a file that is read: about 100,000 streams.
const FILE_MAX: Bytes = Bytes(16 << 20);

pub(crate) fn read(path: &Path) -> Result<String, Error> {
    let error = |source| Failure::Read { path: path.to_owned(), source };
    let mut text = String::new();
    open_once(path).map_err(error)?.take(FILE_MAX.0 + 1).read_to_string(&mut text).map_err(error)?;
    if text.len() as u64 > FILE_MAX.0 {
        return Err(Failure::TooLarge { path: path.to_owned(), max: FILE_MAX }.into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_refused() {
        let error = open(Path::new("/dev/zero")).unwrap_err();
        assert!(matches!(error.failure(), Failure::TooLarge { max: FILE_MAX, .. }), "{error:?}");
    }
}
