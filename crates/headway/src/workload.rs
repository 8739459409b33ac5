//! Workloads: what is to be moved and computed, by when. From a file, from text, or made in code.

use std::fs;
use std::path::Path;

pub use headway_core::decisions::sharing::{Direction, Segment};
pub use headway_core::files::error::Loaded;
pub use headway_core::files::workload::{
    Block, Cycle, Flow, Grouping, Kind, Message, OnMiss, Otherwise, Parameters, Part, PartStep, PartWork, Place,
    Placement, Sharding, Sharing, Step, Stream, Task, Unplanned, Urgent, Workload,
};
pub use headway_kernels::Cipher;
pub use headway_kernels::inspect::cameras::Cameras;
pub use headway_kernels::workload::{parse, write};

use crate::Error;

/// Reads a workload file.
///
/// # Errors
/// [`Error::Read`], [`Error::File`].
pub fn open(path: &Path) -> Result<Loaded<Workload>, Error> {
    let text = read(path)?;
    Ok(parse(&path.display().to_string(), &text)?)
}

/// A workload that was made in code, checked as if a file had said it; errors show the line that the file would have had.
///
/// ```
/// use headway::units::{Bytes, Nanos};
/// use headway::workload::{Step, Stream, Workload, check};
///
/// let steps = vec![Step::into_gpu(), Step::compute("spin"), Step::out_of_gpu()];
/// let camera = Stream::new("camera", Bytes(64 << 10), Nanos(1_000_000), Nanos(20_000_000), steps);
/// let workload = check(&Workload { streams: vec![camera], ..Workload::new("cameras") })?;
/// assert_eq!(workload.value.streams.len(), 1);
/// # Ok::<(), headway::Error>(())
/// ```
///
/// # Errors
/// [`Error::File`] for what no file may say.
pub fn check(workload: &Workload) -> Result<Loaded<Workload>, Error> {
    Ok(parse(&format!("{}.toml", workload.name), &write(workload))?)
}

pub(crate) fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}
