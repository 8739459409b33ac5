//! `wafer = { ... }` of a stream: generations of images in place of packets that the user gives.

use std::ops::RangeInclusive;

use headway_core::files::error::FileError;
use headway_core::files::workload::{
    Application, CopyEndpoint, Field, Keys, OnMiss, Own, Parameters, Sharding, Stream, StreamPlacement, StreamStep,
    WorkloadError,
};
use headway_core::units::Bytes;

use super::wafer::Wafer;
use super::{CELL, CELLS_MAX, INSPECT, Layout, LayoutError, MERGE, SYNOPSIS_BYTES};

const WAFER: &str = "wafer";
const KEYS: &[&str] = &["cameras", "width", "height", "pitch", "defects", "operations", "ring"];
/// The steps of such a stream, in this order.
const STEPS: &str = "[{ copy = \"host -> gpu\" }, { compute = \"inspect\" }, { exchange = \"gpus\" }, { compute = \
                     \"inspect-merge\" }, { copy = \"gpu -> host\" }]";
const CAMERAS: RangeInclusive<u64> = 1..=4096;
/// Columns of a generation that a list can address.
const COLUMNS_MAX: u64 = 1 << 20;
/// Pixels along a side of an image, so that a list can address them.
const WIDTH: RangeInclusive<u64> = 1..=65_535;
const HEIGHT: RangeInclusive<u64> = 3..=65_535;
const PITCH: RangeInclusive<u64> = 1..=65_535 / 3;
/// Defects in a generation: a list has room for 255.
const DEFECTS: RangeInclusive<u64> = 0..=200;
const OPERATIONS: RangeInclusive<u64> = 0..=1_000_000;
/// Generations in the ring.
const RING: RangeInclusive<u64> = 1..=64;
/// What the file does not say: the paper's images and operations (Verner 2012), and what is ours.
const DEFAULT: Cameras =
    Cameras { cameras: 1, width: 200, height: 1000, pitch: 100, defects: 12, operations: 1000, ring: 10, seed: 1 };

/// Cameras that see one wafer at the same time (Verner 2012; specification of messages, 7.1): a packet is a generation, one
/// image from each camera, dealt to the GPUs. The wafer is synthetic and its defects are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cameras {
    /// Images of a generation.
    pub cameras: u32,
    /// Pixels of 16 bits in a row of an image.
    pub width: u32,
    /// Rows of pixels in an image.
    pub height: u32,
    /// Rows after which the pattern repeats: the height of a die.
    pub pitch: u32,
    /// Defects in a generation.
    pub defects: u32,
    /// Operations for each pixel.
    pub operations: u32,
    /// Generations after which the images repeat: what the grabber's ring of buffers holds.
    pub ring: u32,
    /// What the images and defects follow from.
    pub seed: u64,
}

impl Cameras {
    /// Bytes of an image.
    #[must_use]
    pub fn image(&self) -> Bytes {
        Bytes(2 * u64::from(self.width) * u64::from(self.height))
    }

    /// How a generation is divided among GPUs.
    #[must_use]
    pub fn sharding(&self) -> Sharding {
        let Self { cameras: items, operations, ring, .. } = *self;
        let summary = Bytes(SYNOPSIS_BYTES as u64);
        Sharding { items, item: self.image(), summary, operations: Some(operations), ring }
    }

    /// Parameters that the `Work` of each step of a stream with these cameras is made with.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        let Self { cameras, width, height, pitch, defects, operations, ring, seed } = *self;
        let names = [
            ("cameras", cameras),
            ("width", width),
            ("height", height),
            ("pitch", pitch),
            ("defects", defects),
            (Sharding::OPERATIONS, operations),
            ("ring", ring),
        ];
        let all = Parameters::default();
        names
            .into_iter()
            .fold(all, |all, (name, number)| all.with_number(name, number.into()))
            .with_number(Sharding::SEED, seed)
    }

    /// The cameras that `parameters` describe.
    #[must_use]
    pub fn of(parameters: &Parameters) -> Option<Self> {
        let number = |name| parameters.number(name).and_then(|number| u32::try_from(number).ok());
        Some(Self {
            cameras: number("cameras")?,
            width: number("width")?,
            height: number("height")?,
            pitch: number("pitch")?,
            defects: number("defects")?,
            operations: number(Sharding::OPERATIONS)?,
            ring: number("ring")?,
            seed: parameters.number(Sharding::SEED)?,
        })
    }

    /// Refuses images that a list cannot address, and wafers without dies.
    fn check(&self, stream: &Stream) -> Result<(), WorkloadError> {
        let Self { cameras, width, height, pitch, defects, operations, ring, seed: _ } = *self;
        for (key, number, range) in [
            ("cameras", cameras, CAMERAS),
            ("width", width, WIDTH),
            ("height", height, HEIGHT),
            ("pitch", pitch, PITCH),
            ("defects", defects, DEFECTS),
            ("operations", operations, OPERATIONS),
            ("ring", ring, RING),
        ] {
            stream.check_integer(&format!("{WAFER}.{key}"), number.into(), &range)?;
        }
        let cells = width.div_ceil(CELL as u32) as usize * height.div_ceil(CELL as u32) as usize;
        if cells > CELLS_MAX {
            let fact = format!(
                "an image of {width} x {height} pixels has {cells} cells of {CELL} x {CELL}, more than {CELLS_MAX}"
            );
            return Err(stream.error(WAFER, fact, "use smaller images"));
        }
        if pitch > height / 3 {
            let fact = format!("an image {height} pixels high has fewer than three dies of {pitch}");
            return Err(stream.error(WAFER, fact, "use taller images, or a smaller pitch"));
        }
        let columns = u64::from(cameras) * u64::from(width);
        if columns > COLUMNS_MAX {
            let fact = format!(
                "{cameras} images of {width} columns are {columns} columns wide, and a list addresses {COLUMNS_MAX}"
            );
            return Err(stream.error(WAFER, fact, "use fewer cameras"));
        }
        Ok(())
    }

    /// Their images.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn wafer(&self) -> Result<Wafer, LayoutError> {
        let layout = Layout::new(self.width as usize, self.height as usize, self.pitch as usize)?;
        Ok(Wafer { layout, cameras: self.cameras as usize, defects: self.defects as usize, seed: self.seed })
    }
}

/// Streams of wafers.
pub(crate) struct Inspection;

impl Application for Inspection {
    fn keys(&self) -> &'static [&'static str] {
        &[WAFER]
    }

    fn read(&self, keys: &mut Keys<'_, '_>) -> Result<Own, FileError> {
        let Some(field) = keys.take(WAFER) else { return Ok(Own::default()) };
        let cameras = cameras(field, keys.seed())?;
        Ok(Own { parameters: cameras.parameters(), sharding: Some(cameras.sharding()) })
    }

    fn check(&self, stream: &Stream, _twin: Option<&str>) -> Result<(), WorkloadError> {
        let Some(cameras) = Cameras::of(&stream.parameters) else {
            let only =
                |step: &StreamStep| *step == StreamStep::Exchange || computes(step, INSPECT) || computes(step, MERGE);
            if !stream.steps.iter().any(only) {
                return Ok(());
            }
            let fact = "only streams of a wafer are inspected and exchanged between GPUs";
            let help = "add `wafer = { cameras = 15 }` to the stream, or use other steps";
            return Err(stream.error("steps", fact, help));
        };
        cameras.check(stream)?;
        let generation = cameras.sharding().packet();
        if stream.packet != generation {
            let value = format!("\"{} B\"", stream.packet.0);
            let fact = format!("is not {} images of {}", cameras.cameras, cameras.image());
            let help = format!("write `packet = \"{} B\"`, or leave it out", generation.0);
            return Err(stream.value_error("packet", &value, fact, help));
        }
        let key = match stream.gpu {
            StreamPlacement::Auto => None,
            StreamPlacement::Gpu(_) => Some("gpu"),
            StreamPlacement::Cpu | StreamPlacement::Either => Some("processor"),
        };
        if let Some(key) = key {
            let help = format!("leave `{key}` out");
            return Err(stream.error(key, "the images of a wafer are dealt to all GPUs", help).at_key());
        }
        if !is_inspection(&stream.steps) {
            let help = format!("write `steps = {STEPS}`, with a memory of the machine for `host` if it has several");
            return Err(stream.error("steps", "these are not the steps of an inspection", help));
        }
        if stream.on_miss == OnMiss::Skip {
            let help = "write `on_miss = \"finish\"` or `on_miss = \"stop\"`";
            return Err(stream.error("on_miss", "no image of a wafer is left out", help));
        }
        // What follows, no file can say.
        if stream.sharding != Some(cameras.sharding()) {
            let fact = "the stream is not divided as the images of its wafer are";
            return Err(stream.error(WAFER, fact, "divide it by `Cameras::sharding`"));
        }
        Ok(())
    }

    fn write(&self, stream: &Stream) -> Vec<(&'static str, String)> {
        let Some(of) = Cameras::of(&stream.parameters) else { return Vec::new() };
        let value = format!(
            "{{ cameras = {}, width = {}, height = {}, pitch = {}, defects = {}, operations = {}, ring = {} }}",
            of.cameras, of.width, of.height, of.pitch, of.defects, of.operations, of.ring
        );
        vec![(WAFER, value)]
    }
}

fn computes(step: &StreamStep, name: &str) -> bool {
    matches!(step, StreamStep::Compute { kernel } if kernel == name)
}

fn is_inspection(steps: &[StreamStep]) -> bool {
    match steps {
        [
            StreamStep::Copy { to: CopyEndpoint::OwnGpu, .. },
            inspect,
            StreamStep::Exchange,
            merge,
            StreamStep::Copy { from: CopyEndpoint::OwnGpu, .. },
        ] => computes(inspect, INSPECT) && computes(merge, MERGE),
        _ => false,
    }
}

fn cameras(field: Field<'_>, seed: u64) -> Result<Cameras, FileError> {
    let mut table = field.table("a wafer", KEYS)?;
    let cameras = table.require("cameras", "15")?.integer_in(&CAMERAS)?;
    let mut number = |key: &str, usual: u32, range: &RangeInclusive<u64>| {
        let read = table.take(key).map_or_else(|| Ok(u64::from(usual)), |field| field.integer_in(range));
        read.map(|value| value as u32)
    };
    Ok(Cameras {
        cameras: cameras as u32,
        width: number("width", DEFAULT.width, &WIDTH)?,
        height: number("height", DEFAULT.height, &HEIGHT)?,
        pitch: number("pitch", DEFAULT.pitch, &PITCH)?,
        defects: number("defects", DEFAULT.defects, &DEFECTS)?,
        operations: number("operations", DEFAULT.operations, &OPERATIONS)?,
        ring: number("ring", DEFAULT.ring, &RING)?,
        seed,
    })
}
