//! How many blocks a resident copier has and where they land, and whether a GPU can hold it.

use std::sync::Arc;

use headway_core::models::transfer::ResidentShape;
use headway_device::{DeviceError, LaunchGrid};

use crate::driver::table;
use crate::owned::{Context, Module};

/// Threads of a block, as in `kernels/resident.cuh`.
const THREADS: u32 = 512;
/// Dynamic shared memory of which no multiprocessor with clusters has room for two (227 KiB).
const WHOLE_MULTIPROCESSOR: u32 = 116 << 10;
/// Blocks of the one cluster of `gpc`, the most that every GPU with clusters allows.
const GPC_BLOCKS: u32 = 8;
/// Sizes of the clusters of `gpc4`, the first that fits: of no GPU with clusters (at most 18 multiprocessors in a GPC) two of
/// them fit into one GPC at one block a multiprocessor.
const GPC4_BLOCKS: [u32; 3] = [16, 12, 10];
/// Blocks of each cluster of `gpc4` that copy.
const GPC4_WORKERS: u32 = 2;
const GPC4_UNITS: u32 = 4;

/// The launch of one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) units: u32,
    /// Blocks of a unit that copy; the others leave when they have begun.
    pub(super) workers: u32,
    /// Blocks of a unit's cluster; none for a single block.
    pub(super) cluster: Option<u32>,
}

impl Launch {
    pub(super) fn grid(self) -> LaunchGrid {
        let shared_bytes = if self.cluster.is_some() { WHOLE_MULTIPROCESSOR } else { 0 };
        LaunchGrid::line(self.units * self.cluster.unwrap_or(1), THREADS, shared_bytes)
    }
}

/// Loads the kernel of the form `shape` and finds how it is launched.
pub(super) fn load(context: &Arc<Context>, shape: ResidentShape) -> Result<(Module, Launch), DeviceError> {
    let missing = |reason: String, remedy: &str| unavailable(context, shape, reason, remedy);
    let (driver, ordinal) = (&context.driver, context.ordinal);
    if driver.attribute(table::ATTRIBUTE_KERNEL_TIME_LIMIT, ordinal)? != 0 {
        let reason = "the driver ends kernels that run for long (a display hangs on this GPU)";
        return Err(missing(reason.into(), "use `window` or `dma`, or a GPU without a display"));
    }
    if shape == ResidentShape::Hub {
        let module = Module::load(context, "resident", include_bytes!("../../ptx/resident.ptx"), "headway_resident")?;
        return Ok((module, Launch { units: 1, workers: 1, cluster: None }));
    }
    let major = driver.attribute(table::ATTRIBUTE_CAPABILITY_MAJOR, ordinal)?;
    let minor = driver.attribute(table::ATTRIBUTE_CAPABILITY_MINOR, ordinal)?;
    if major < 9 {
        let reason = format!("clusters need compute capability 9.0, this GPU has {major}.{minor}");
        return Err(missing(reason, "use `hub`"));
    }
    let ptx = include_str!("../../ptx/resident_cluster_sm90.ptx");
    let module = Module::load(context, "resident_cluster", ptx.as_bytes(), "headway_resident_cluster")?;
    let (sizes, units): (&[u32], u32) =
        if shape == ResidentShape::Gpc { (&[GPC_BLOCKS], 1) } else { (&GPC4_BLOCKS, GPC4_UNITS) };
    let mut tried = Vec::new();
    for &blocks in sizes {
        let workers = if shape == ResidentShape::Gpc { blocks } else { GPC4_WORKERS };
        let launch = Launch { units, workers, cluster: Some(blocks) };
        match module.clusters_max(launch.grid(), blocks) {
            Ok(held) if held >= units => return Ok((module, launch)),
            Ok(held) => tried.push(format!("{held} of {blocks} blocks")),
            Err(DeviceError::Driver { code, name, .. }) if !table::ends_the_context(code) => {
                tried.push(format!("none of {blocks} blocks ({name})"));
            }
            Err(error) => return Err(error),
        }
    }
    let reason = format!("it holds fewer than {units} clusters at once: {}", tried.join(", "));
    Err(missing(reason, if shape == ResidentShape::Gpc { "use `hub`" } else { "use `gpc` or `hub`" }))
}

pub(super) fn unavailable(context: &Context, shape: ResidentShape, reason: String, remedy: &str) -> DeviceError {
    let what = format!("the resident copier `{shape}` on GPU {}", context.ordinal);
    DeviceError::Unavailable { what, reason, remedy: remedy.into() }
}
