//! `wafer = { ... }` of a stream: generations of images in place of packets that the user gives.

use super::file::Reader;
use super::{Place, Step, Wafer, Workload};
use crate::files::document::Field;
use crate::files::error::{FileError, Source};
use crate::plan::{INSPECT, MERGE};
use crate::units::Bytes;

pub(super) const WAFER: &[&str] = &["cameras", "width", "height", "pitch", "defects", "operations", "ring"];
/// The steps of such a stream, in this order.
const STEPS: &str = "[{ copy = \"host -> gpu\" }, { compute = \"inspect\" }, { exchange = \"gpus\" }, { compute = \
                     \"inspect-merge\" }, { copy = \"gpu -> host\" }]";
/// Most cameras.
const CAMERAS_MAX: u64 = 4096;
/// Columns of a generation that a list can address.
const COLUMNS_MAX: u64 = 1 << 20;
/// Pixels along a side of an image, so that a list can address them.
const SIDE_MAX: u64 = 65_535;
/// Side of a cell, and cells of an image, that a synopsis is made for.
const CELL: u64 = 20;
const CELLS_MAX: u64 = 500;
/// Defects in a generation: a list has room for 255.
const DEFECTS_MAX: u64 = 200;
/// Generations in the ring.
const RING_MAX: u64 = 64;
/// What the file does not say: the paper's images and operations (Verner 2012), and what is ours.
const DEFAULT: Wafer =
    Wafer { cameras: 1, width: 200, height: 1000, pitch: 100, defects: 12, operations: 1000, ring: 10, seed: 1 };

impl Reader {
    /// Reads the cameras of a stream.
    pub(super) fn wafer(field: Field<'_>, seed: u64) -> Result<Wafer, FileError> {
        let mut table = field.table("a wafer", WAFER)?;
        let cameras = table.require("cameras", "15")?.integer(1, CAMERAS_MAX)?;
        let mut number = |key: &str, usual: u32, least: u64, most: u64| {
            let read = table.take(key).map_or_else(|| Ok(u64::from(usual)), |field| field.integer(least, most));
            read.map(|value| value as u32)
        };
        let wafer = Wafer {
            cameras: cameras as u32,
            width: number("width", DEFAULT.width, 1, SIDE_MAX)?,
            height: number("height", DEFAULT.height, 3, SIDE_MAX)?,
            pitch: number("pitch", DEFAULT.pitch, 1, SIDE_MAX / 3)?,
            defects: number("defects", DEFAULT.defects, 0, DEFECTS_MAX)?,
            operations: number("operations", DEFAULT.operations, 0, 1_000_000)?,
            ring: number("ring", DEFAULT.ring, 1, RING_MAX)?,
            seed,
        };
        let cells = u64::from(wafer.width).div_ceil(CELL) * u64::from(wafer.height).div_ceil(CELL);
        if cells > CELLS_MAX {
            let message = format!(
                "an image of {} x {} pixels has {cells} cells of {CELL} x {CELL}, more than {CELLS_MAX}",
                wafer.width, wafer.height
            );
            return Err(table.error(message, "use smaller images"));
        }
        if u64::from(wafer.pitch) > u64::from(wafer.height) / 3 {
            let message = format!("an image {} pixels high has fewer than three dies of {}", wafer.height, wafer.pitch);
            return Err(table.error(message, "use taller images, or a smaller pitch"));
        }
        if cameras * u64::from(wafer.width) > COLUMNS_MAX {
            let message = format!(
                "{cameras} images of {} columns are {} columns wide, and a list addresses {COLUMNS_MAX}",
                wafer.width,
                cameras * u64::from(wafer.width)
            );
            return Err(table.error(message, "use fewer cameras"));
        }
        Ok(wafer)
    }

    /// Checks that a packet is one generation.
    pub(super) fn generation(field: Option<&Field<'_>>, wafer: &Wafer) -> Result<Bytes, FileError> {
        let generation = Bytes(wafer.image().0 * u64::from(wafer.cameras));
        let Some(field) = field else { return Ok(generation) };
        if field.size_above_zero("6 MB")? == generation {
            return Ok(generation);
        }
        let message = format!("`{}` is not {} images of {}", field.excerpt(), wafer.cameras, wafer.image());
        Err(field.error(message, Some(format!("write `packet = \"{} B\"`, or leave it out", generation.0))))
    }

    /// What is wrong with steps that do not fit a wafer, and with steps that only fit one.
    pub(super) fn misplaced(list: &Field<'_>) -> [FileError; 2] {
        let other = format!("write `steps = {STEPS}`, with a memory of the machine for `host` if it has several");
        let only = "add `wafer = { cameras = 15 }` to the stream, or use other steps".to_owned();
        [
            list.error("these are not the steps of an inspection", Some(other)),
            list.error("only streams of a wafer are inspected and exchanged between GPUs", Some(only)),
        ]
    }

    /// Whether the steps are those of an inspection; of others, that none is a part of one.
    pub(super) fn inspection(
        steps: &[Step],
        wafer: bool,
        [other, only_wafers]: [FileError; 2],
    ) -> Result<(), FileError> {
        let kernel = |step: &Step, name: &str| matches!(step, Step::Compute { kernel } if kernel == name);
        let fits = match steps {
            [
                Step::Copy { to: Place::OwnGpu, .. },
                inspect,
                Step::Exchange,
                merge,
                Step::Copy { from: Place::OwnGpu, .. },
            ] => kernel(inspect, INSPECT) && kernel(merge, MERGE),
            _ => false,
        };
        let only = |step: &Step| *step == Step::Exchange || kernel(step, INSPECT) || kernel(step, MERGE);
        match (wafer, fits) {
            (true, false) => Err(other),
            (false, _) if steps.iter().any(only) => Err(only_wafers),
            _ => Ok(()),
        }
    }
}

/// Refuses what no plan can put beside a wafer's stream, whose steps take all GPUs.
pub(super) fn alone(source: &Source, workload: &Workload) -> Result<(), FileError> {
    let parts = workload.streams.len() + workload.messages.len() + workload.flows.len() + workload.tasks.len();
    if parts > 1 && workload.streams.iter().any(|stream| stream.wafer.is_some()) {
        let help = "put it into a workload file of its own".to_owned();
        return Err(source.error(0..0, "the stream of a wafer uses all GPUs and stands alone", Some(help)));
    }
    Ok(())
}
