//! What images cost on the devices at hand, and how many operations a pixel needs to keep the shape of the paper's node.

use std::sync::Arc;

use headway_core::files::machine::{EngineClass, KernelCost, Machine, RATE_MIN};
use headway_core::models::transfer::Method;
use headway_core::plan::block::{BlockHeader, block_bytes, write_header};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos, Rate};
use headway_device::work::{Items, Portion, StepMemory, Work};
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind, Span};
use headway_kernels::find;
use headway_kernels::inspect::blocks::MergeBlock;
use headway_kernels::inspect::cameras::Cameras;
use headway_kernels::inspect::ring::WaferRing;
use headway_kernels::inspect::{INSPECT, MERGE, SYNOPSIS_BYTES};
use headway_os::clock;

use super::sample::{Effort, SampleFigures, series};
use crate::Error;

/// Shares of a period that copies and kernels take on the paper's node at the limit of the pipeline: 15 images of 50 us over
/// one link, 5 of 200 us on each GPU.
pub const SHAPE: (f64, f64) = (0.675, 0.90);
/// Operations for each pixel of the first two probes.
const PROBES: (u32, u32) = (100, 1500);
/// The range in which operations are sought.
const OPERATIONS: (f64, f64) = (16.0, 100_000.0);
/// An operation not complete after this long is given up.
const PATIENCE: Nanos = Nanos(30_000_000_000);
/// Nanoseconds for a byte that count as none.
const FREE: f64 = 1e-6;

/// Columns of [`WaferCalibration::lines`].
pub const COLUMNS: [&str; 7] = ["what", "images", "operations", "n", "median_ns", "p99_ns", "max_ns"];

/// What the cameras see.
#[derive(Clone, Copy, Debug)]
pub struct Images {
    pub width: u32,
    pub height: u32,
    /// Rows after which the pattern repeats.
    pub pitch: u32,
    /// Operations for each pixel.
    pub operations: u32,
    pub seed: u64,
}

impl Images {
    /// Those of Verner, Mendelson, Schuster 2014, V-A, with a thousand operations for each pixel.
    pub const fn of_paper(seed: u64) -> Self {
        Self { width: 200, height: 1000, pitch: 100, operations: 1000, seed }
    }
}

/// How large the probes are.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Images of the smaller probe on each GPU; the larger one has twice as many.
    pub images: u32,
    pub effort: Effort,
    /// Keep the study's operations, because a CPU runs the kernels.
    pub fixed: bool,
}

/// What was measured, and the costs that follow.
#[derive(Debug)]
pub struct WaferCalibration {
    pub operations: u32,
    /// Median time that one more image takes to copy, and to inspect.
    pub copy: Nanos,
    pub inspect: Nanos,
    kernels: [KernelCost; 2],
    /// A line for every probe, with [`COLUMNS`].
    pub lines: Vec<Vec<String>>,
}

impl WaferCalibration {
    /// What the two kernels cost.
    pub fn kernels(self) -> [KernelCost; 2] {
        self.kernels
    }

    /// `machine` with these costs in place of its own.
    pub fn apply(&self, machine: &mut Machine) {
        machine.kernels.retain(|kernel| self.kernels.iter().all(|own| own.id != kernel.id));
        machine.kernels.extend(self.kernels.iter().cloned());
    }
}

/// Buffers and kernels of one device.
struct WaferDevice {
    device: Engines,
    images: Buffer,
    on_device: Buffer,
    small: Buffer,
    cameras: Buffer,
    synopses: Buffer,
    merged: Buffer,
    inspect: Arc<dyn Work>,
    merge: Arc<dyn Work>,
}

/// What every device does at once.
enum Task {
    CopyIn(Span, Span),
    Launch(Arc<dyn Work>, StepMemory, u32),
}

struct WaferBench<'a> {
    study: &'a Images,
    size: Size,
    parts: Vec<WaferDevice>,
    lines: Vec<Vec<String>>,
}

/// What inspecting the paper's images costs on `device`, and merging their synopses. `small` is for devices whose kernels run on
/// the CPU.
pub fn costs(device: Engines, effort: Effort, small: bool) -> Result<[KernelCost; 2], Error> {
    let of_paper = Images::of_paper(1);
    let (study, images) = if small { (Images { height: 300, ..of_paper }, 1) } else { (of_paper, 40) };
    Ok(calibrate(vec![device], &study, Size { images, effort, fixed: true })?.kernels())
}

/// Measures on all `devices` at once.
pub fn calibrate(devices: Vec<Engines>, study: &Images, size: Size) -> Result<WaferCalibration, Error> {
    let mut bench = WaferBench { study, size, parts: Vec::new(), lines: Vec::new() };
    let all = size.images * 2 * devices.len() as u32;
    for device in devices {
        bench.parts.push(part(device, study, size.images * 2, all)?);
    }
    let (one, two) = (size.images, size.images * 2);
    let mut copies = [Nanos::ZERO; 2];
    for (time, images) in copies.iter_mut().zip([one, two]) {
        bench.load(images)?;
        *time = bench.copies(images)?.median;
    }
    let copy = slope(copies, one);
    let operations = if size.fixed { study.operations } else { bench.operations(copy)? };
    let mut inspections = Vec::new();
    for images in [one, two] {
        bench.load(images)?;
        for operations in [operations, fewer(operations)] {
            bench.describe(0, images, operations)?;
            let figures = bench.inspections(images, operations)?;
            inspections.push(Point { bytes: image_bytes(study, images), operations, figures });
        }
    }
    let inspect = slope([inspections[0].figures.median, inspections[2].figures.median], one);
    bench.all_synopses(two, all)?;
    let mut merges = Vec::new();
    for images in [one.min(all / 2).max(1), all] {
        merges.push((Bytes(synopses(0, images).end as u64), bench.merges(images)?));
    }
    let kernels = [fit_operations(&inspections), fit(MERGE, &merges)];
    Ok(WaferCalibration { operations, copy, inspect, kernels, lines: bench.lines })
}

/// Time of one of `more` further images.
fn slope([few, many]: [Nanos; 2], more: u32) -> Nanos {
    Nanos(many.saturating_sub(few).0 / u64::from(more.max(1)))
}

fn image_bytes(study: &Images, images: u32) -> Bytes {
    Bytes(2 * u64::from(study.width) * u64::from(study.height) * u64::from(images))
}

/// A cost that is not below the 99th percentile of either point.
fn fit(id: &str, points: &[(Bytes, SampleFigures)]) -> KernelCost {
    let rate =
        |bytes: u64, time: u64| (u128::from(bytes) * u128::from(NANOS_PER_SECOND) / u128::from(time.max(1))) as u64;
    let [(few, short), (many, long)] = [points[0], points[points.len() - 1]];
    let grown = long.p99.saturating_sub(short.p99).0;
    let mut cost = rate(many.0.saturating_sub(few.0), grown.max(1)).max(RATE_MIN.0);
    if Rate(cost).time_for(few) > short.p99 {
        cost = rate(few.0, short.p99.0).min(rate(many.0, long.p99.0)).max(RATE_MIN.0);
    }
    let over = |bytes: Bytes, figures: SampleFigures| figures.p99.saturating_sub(Rate(cost).time_for(bytes));
    let setup = over(few, short).max(over(many, long));
    let (chain_rate, operation_rate) = (None, None);
    KernelCost { id: id.to_owned(), gpus: Vec::new(), setup, rate: Rate(cost), chain_rate, operation_rate }
}

/// How long inspecting took.
struct Point {
    bytes: Bytes,
    operations: u32,
    figures: SampleFigures,
}

/// Operations of the probes that tell the part that does not grow with them.
fn fewer(operations: u32) -> u32 {
    (operations / 4).max(OPERATIONS.0 as u32)
}

/// A cost with a part for each byte and one for each byte and operation, not below the 99th percentile of any point. The points
/// are of few images and of many, each with many operations and with few.
fn fit_operations(points: &[Point]) -> KernelCost {
    let [few, few_less, many, many_less] = points else { unreachable!("four points are measured") };
    let slope = |few: &Point, many: &Point| {
        let grown = many.figures.p99.saturating_sub(few.figures.p99).0.max(1);
        grown as f64 / many.bytes.0.saturating_sub(few.bytes.0).max(1) as f64
    };
    let (steep, flat) = (slope(few, many), slope(few_less, many_less));
    let more = f64::from(many.operations.saturating_sub(many_less.operations).max(1));
    let mut each = (steep - flat) / more;
    let mut fixed = flat - each * f64::from(many_less.operations);
    if each <= 0.0 || fixed <= 0.0 {
        // Noise, or all that takes time are operations: none is free then.
        (each, fixed) = (steep / f64::from(many.operations.max(1)), 0.0);
    }
    let rate = |time: f64| Rate(((NANOS_PER_SECOND as f64 / time.max(FREE)) as u64).max(RATE_MIN.0));
    let mut cost = KernelCost {
        id: INSPECT.to_owned(),
        gpus: Vec::new(),
        setup: Nanos::ZERO,
        rate: rate(fixed),
        chain_rate: None,
        operation_rate: Some(rate(each)),
    };
    let over = |point: &Point| point.figures.p99.saturating_sub(cost.with_operations(point.bytes, point.operations));
    cost.setup = points.iter().map(over).max().unwrap_or_default();
    cost
}

/// Bytes of the synopses of `images` images from `first` on.
fn synopses(first: u32, images: u32) -> std::ops::Range<usize> {
    first as usize * SYNOPSIS_BYTES..(first + images) as usize * SYNOPSIS_BYTES
}

fn part(device: Engines, study: &Images, images: u32, all: u32) -> Result<WaferDevice, Error> {
    let known = |id| find(id).expect("the kernels of a wafer are built");
    let (inspect, merge) = (known(INSPECT), known(MERGE));
    let block = block_bytes((0..images).map(|_| image_bytes(study, 1).0)).0 as usize;
    let state = inspect.state_bytes(images as usize);
    device.gpu().load(inspect.as_ref())?;
    device.gpu().load(merge.as_ref())?;
    let board = synopses(0, all).end;
    Ok(WaferDevice {
        images: device.host_buffer(block, HostKind::Pinned)?,
        on_device: device.device_buffer(block)?,
        small: device.host_buffer(state, HostKind::Pinned)?,
        cameras: device.device_buffer(state)?,
        synopses: device.device_buffer(board)?,
        merged: device.device_buffer(MergeBlock::output(all as usize))?,
        inspect,
        merge,
        device,
    })
}

impl WaferBench<'_> {
    fn wafer(&self, cameras: u32, operations: u32) -> Cameras {
        let Images { width, height, pitch, seed, .. } = *self.study;
        Cameras { cameras, width, height, pitch, defects: (cameras * 4 / 5).clamp(4, 200), operations, ring: 1, seed }
    }

    /// Puts a block of so many images into the memory of every device.
    fn load(&mut self, images: u32) -> Result<(), Error> {
        let wafer = self.wafer(images, 0);
        let ring = WaferRing::new(&wafer).expect("the study's images can be inspected");
        let lens = vec![wafer.image().0; images as usize];
        let block = block_bytes(lens.iter().copied()).0 as usize;
        let mut filled = vec![0; block];
        write_header(&mut filled, 0, &lens).expect("the buffer has the size of the block");
        let portions = BlockHeader::read(&filled).expect("a header just written is whole").portions;
        (0..).zip(portions).for_each(|(camera, portion)| ring.fill(camera, 0, &mut filled[portion]));
        for part in &mut self.parts {
            part.images.claim(0..block, Access::Write)?.bytes_mut()?.copy_from_slice(&filled);
        }
        self.copy(block).map(drop)
    }

    /// Describes to every device the cameras from `first` on.
    fn describe(&mut self, first: u32, images: u32, operations: u32) -> Result<(), Error> {
        let parameters = self.wafer(images, operations).parameters();
        let portion = |item| Portion { parameters: parameters.clone(), item, ..Portion::default() };
        let portions: Vec<Portion> = (first..first + images).map(portion).collect();
        for part in &mut self.parts {
            let bytes = part.inspect.state_bytes(portions.len());
            let mut state = part.small.claim(0..bytes, Access::Write)?;
            part.inspect.init_state(&portions, state.bytes_mut()?)?;
        }
        self.each(|part| {
            let bytes = part.inspect.state_bytes(portions.len());
            let (from, to) = (part.small.claim(0..bytes, Access::Read)?, part.cameras.claim(0..bytes, Access::Write)?);
            Ok(Task::CopyIn(from, to))
        })
        .map(drop)
    }

    fn copy(&mut self, block: usize) -> Result<Nanos, Error> {
        self.each(|part| {
            let (from, to) =
                (part.images.claim(0..block, Access::Read)?, part.on_device.claim(0..block, Access::Write)?);
            Ok(Task::CopyIn(from, to))
        })
    }

    fn copies(&mut self, images: u32) -> Result<SampleFigures, Error> {
        let block = block_bytes((0..images).map(|_| image_bytes(self.study, 1).0)).0 as usize;
        self.series("copy", images, 0, |bench| bench.copy(block))
    }

    /// The cameras that were described to the devices, from `first` on.
    fn inspect(&mut self, first: u32, images: u32) -> Result<Nanos, Error> {
        let block = block_bytes((0..images).map(|_| image_bytes(self.study, 1).0)).0 as usize;
        self.each(|part| {
            let memory = StepMemory {
                input: part.on_device.claim(0..block, Access::Read)?,
                output: part.synopses.claim(synopses(first, images), Access::Write)?,
                state: Some(part.cameras.claim(0..part.cameras.len(), Access::Write)?),
            };
            Ok(Task::Launch(Arc::clone(&part.inspect), memory, images))
        })
    }

    fn inspections(&mut self, images: u32, operations: u32) -> Result<SampleFigures, Error> {
        self.series("inspect", images, operations, |bench| bench.inspect(0, images))
    }

    /// Operations with which an image takes as much longer on a GPU than on its way there as on the paper's node.
    fn operations(&mut self, copy: Nanos) -> Result<u32, Error> {
        let images = self.size.images * 2;
        let mut times = [0.0; 2];
        for (time, operations) in times.iter_mut().zip([PROBES.0, PROBES.1]) {
            self.describe(0, images, operations)?;
            *time = self.inspections(images, operations)?.median.0 as f64 / f64::from(images);
        }
        let wanted = copy.0 as f64 * SHAPE.1 / SHAPE.0;
        let each = (times[1] - times[0]).max(1e-3) / f64::from(PROBES.1 - PROBES.0);
        let operations = f64::from(PROBES.0) + (wanted - times[0]) / each;
        Ok(operations.clamp(OPERATIONS.0, OPERATIONS.1) as u32)
    }

    /// Synopses of `all` cameras on every device, `images` at a time.
    fn all_synopses(&mut self, images: u32, all: u32) -> Result<(), Error> {
        for first in (0..all).step_by(images as usize) {
            self.describe(first, images, 0)?;
            self.inspect(first, images)?;
        }
        Ok(())
    }

    fn merges(&mut self, images: u32) -> Result<SampleFigures, Error> {
        self.series("merge", images, 0, |bench| {
            bench.each(|part| {
                let memory = StepMemory {
                    input: part.synopses.claim(synopses(0, images), Access::Read)?,
                    output: part.merged.claim(0..part.merged.len(), Access::Write)?,
                    state: None,
                };
                Ok(Task::Launch(Arc::clone(&part.merge), memory, images))
            })
        })
    }

    fn series(
        &mut self,
        what: &str,
        images: u32,
        operations: u32,
        mut once: impl FnMut(&mut Self) -> Result<Nanos, Error>,
    ) -> Result<SampleFigures, Error> {
        let samples = series(self.size.effort, clock::now, |_| once(self))?;
        let figures = SampleFigures::of(&samples).expect("an effort asks for at least one sample");
        let numbers = [u64::from(images), u64::from(operations), u64::from(figures.n), figures.median.0];
        let numbers = numbers.map(|number| number.to_string());
        let last = [figures.p99_ns(), figures.max.0.to_string()];
        self.lines.push([what.to_owned()].into_iter().chain(numbers).chain(last).collect());
        Ok(figures)
    }

    /// Does the same on every device at once; returns the time of the slowest.
    fn each(&mut self, task: impl Fn(&WaferDevice) -> Result<Task, DeviceError>) -> Result<Nanos, Error> {
        for part in &mut self.parts {
            match task(part)? {
                Task::CopyIn(from, to) => part.device.copy(EngineClass::H2d, Method::Dma, (from, to), 0)?,
                Task::Launch(work, memory, portions) => part.device.launch(&work, memory, portions, 0)?,
            }
        }
        let (begun, mut slowest, mut done) = (clock::now(), Nanos::ZERO, Vec::new());
        for part in &mut self.parts {
            while done.is_empty() {
                part.device.poll(&mut done);
                if clock::now() > begun + PATIENCE {
                    let what = "an operation of the wafer's calibration".to_owned();
                    return Err(DeviceError::Timeout { what, after: PATIENCE }.into());
                }
                std::thread::yield_now();
            }
            for completion in done.drain(..) {
                completion.result?;
                slowest = slowest.max(completion.finished.saturating_sub(completion.started));
            }
        }
        Ok(slowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(bytes: u64, operations: u32, p99: u64) -> Point {
        let time = Nanos(p99);
        let figures = SampleFigures { n: 1, min: time, p25: time, median: time, p75: time, p99: time, max: time };
        Point { bytes: Bytes(bytes), operations, figures }
    }

    #[test]
    fn a_part_for_each_byte_and_one_for_each_operation_are_told_apart() {
        let time = |bytes: u64, operations: u64| 5_000 + bytes / 100 + bytes * operations / 20_000;
        let of = |bytes, operations| point(bytes, operations, time(bytes, u64::from(operations)));
        let cost = fit_operations(&[of(400_000, 1000), of(400_000, 250), of(800_000, 1000), of(800_000, 250)]);
        let near = |rate: u64, wanted: u64| rate.abs_diff(wanted) <= wanted / 1000;
        assert!(
            near(cost.rate.0, 100_000_000_000) && near(cost.operation_rate.unwrap().0, 20_000_000_000_000),
            "{cost:?}"
        );
        assert!(cost.setup.0.abs_diff(5_000) < 100, "{cost:?}");
        for (bytes, operations) in [(400_000, 100), (1_600_000, 2000), (800_000, 500)] {
            let (found, wanted) =
                (cost.with_operations(Bytes(bytes), operations).0, time(bytes, u64::from(operations)));
            assert!(found.abs_diff(wanted) * 200 < wanted, "{operations}: {found} {wanted}");
        }
    }

    #[test]
    fn no_point_is_above_the_cost_whatever_the_noise() {
        for times in [[9, 9, 9, 9], [100, 200, 300, 400], [500, 400, 90, 700], [50_000, 40_000, 10, 20]] {
            let bytes = [400_000, 400_000, 800_000, 800_000];
            let points: Vec<Point> = (0..4).map(|at| point(bytes[at], [1000, 250][at % 2], times[at] * 1000)).collect();
            let cost = fit_operations(&points);
            for point in &points {
                assert!(cost.with_operations(point.bytes, point.operations) >= point.figures.p99, "{times:?} {cost:?}");
            }
        }
    }
}
