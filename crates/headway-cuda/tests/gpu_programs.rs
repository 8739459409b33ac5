//! The tracker and the inspection of wafers on the first GPU give the bytes of their CPU forms; skipped with the reason where
//! there is none.
//!
//! Times are printed, not judged.

use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;

use headway_core::units::Bytes;
use headway_cuda::{CudaGpu, Driver};
use headway_device::conformance::SkipReason;
use headway_device::gpu::{Caching, CpuReach, Gpu, Operation, Queue};
use headway_device::work::{Argument, CpuArgument, Work};
use headway_device::{Access, Buffer, DeviceError, DeviceLimits, LaunchGrid};
use headway_kernels::inspect::wafer::Wafer;
use headway_kernels::inspect::{Inspect, Layout, Merge, SYNOPSIS_BYTES, read_list, steps};
use headway_kernels::klt::{
    CornerCriteria, CpuMachine, FrameReport, GpuMachine, Region, Tracker, TrackerMachine, TrackerShape, Warp,
};
use headway_os::clock;

/// Writes past the test harness, which hides the output of tests that pass.
fn say(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

fn gpu() -> Result<CudaGpu, SkipReason> {
    let driver = Driver::system()?;
    if driver.is_fake() {
        return Err(SkipReason("the driver library is the fake one of the tests".into()));
    }
    if driver.probe()?.devices.is_empty() {
        return Err(SkipReason("the driver reports no GPU".into()));
    }
    Ok(CudaGpu::open(
        &driver,
        0,
        DeviceLimits { buffers_max: 64, host_bytes_max: Bytes(256 << 20), ..DeviceLimits::default() },
    )?)
}

/// Runs `body` on the first GPU, or prints why not.
fn with_gpu(test: &str, body: impl FnOnce(&CudaGpu) -> Result<(), DeviceError>) {
    match gpu() {
        Ok(gpu) => body(&gpu).expect("the GPU does what it is asked"),
        Err(SkipReason(reason)) => say(&format!("skipped {test}: {reason}")),
    }
}

/// A surface with texture at several scales, moved and a little deformed.
fn picture(shape: &TrackerShape, by: f32) -> Vec<f32> {
    let pixels = (0..shape.height()).flat_map(|y| (0..shape.width()).map(move |x| (x as f32, y as f32)));
    let shown = pixels.map(|(x, y)| {
        let (x, y) = (x * (1.0 + 0.002 * by) - by, y - 0.4 * by);
        let waves = [(0.31, 0.17, 22.0), (-0.21, 0.29, 22.0), (0.06, -0.11, 30.0), (0.27, 0.31, 9.0f32)];
        let sum: f32 = waves.iter().map(|(u, v, high)| high * (u * x + v * y + (0.013 * x * v).sin()).sin()).sum();
        120.0 + sum
    });
    shown.collect()
}

/// What a frame showed, and what all regions hold after it.
type Outcome = (FrameReport, Vec<Vec<u8>>);

/// The outcomes of five frames.
fn frames<M: TrackerMachine>(shape: TrackerShape, machine: M) -> Result<Vec<Outcome>, DeviceError> {
    let mut tracker = Tracker::new(shape, machine)?;
    let mut all = Vec::new();
    for (frame, by) in [0.0, 1.3, 4.2, 7.7, 9.0].into_iter().enumerate() {
        let image = picture(&shape, by);
        let report = tracker.track(&image, None)?;
        tracker.refill(&image, &CornerCriteria { distance: 6.0, margin: 2, ..CornerCriteria::default() })?;
        if frame == 2 {
            tracker.renew()?;
        }
        let mut content = Vec::new();
        for region in Region::ALL {
            let mut bytes = vec![0; shape.bytes(region)];
            tracker.machine().take(region, &mut bytes)?;
            content.push(bytes);
        }
        all.push((report, content));
    }
    Ok(all)
}

#[test]
fn the_tracker_leaves_the_same_bits_as_on_the_cpu() {
    with_gpu("the_tracker_leaves_the_same_bits_as_on_the_cpu", |gpu| {
        let sizes = [TrackerShape::default(), TrackerShape::new(131, 99, 96).expect("a shape")];
        for (shape, warp) in sizes.into_iter().flat_map(|shape| {
            [Warp::Translation, Warp::Photometric, Warp::Affine].map(|warp| (shape.with_search(warp, 3), warp))
        }) {
            let expected = frames(shape, CpuMachine::new(&shape))?;
            let found = frames(shape, GpuMachine::open(gpu, &shape)?)?;
            let tracked: usize = expected.iter().map(|(report, _)| report.tracked.len()).sum();
            assert!(tracked > 40, "{tracked} features tracked");
            for (frame, (found, expected)) in found.iter().zip(&expected).enumerate() {
                for ((region, found), expected) in Region::ALL.into_iter().zip(&found.1).zip(&expected.1) {
                    assert!(found == expected, "{warp:?}, frame {frame}: {region:?} differs");
                }
                assert_eq!(found.0, expected.0, "{warp:?}, frame {frame}");
            }
            say(&format!(
                "tracker, {} x {}, {warp:?}: {tracked} tracks, every bit equal",
                shape.width(),
                shape.height()
            ));
        }
        Ok(())
    });
}

#[test]
fn a_frame_takes() {
    with_gpu("a_frame_takes", |gpu| {
        let shape = TrackerShape::default();
        let mut tracker = Tracker::new(shape, GpuMachine::open(gpu, &shape)?)?;
        let images = [picture(&shape, 0.0), picture(&shape, 0.7)];
        tracker.track(&images[0], None)?;
        let features = tracker.refill(&images[0], &CornerCriteria::default())?;
        let mut times = Vec::new();
        for turn in 0..50 {
            let start = clock::now();
            tracker.track(&images[turn % 2], None)?;
            times.push(clock::now() - start);
        }
        times.sort_unstable();
        say(&format!(
            "tracker: {features} features, a frame with its copies: n 50, median {}, max {}",
            times[25], times[49]
        ));
        Ok(())
    });
}

/// A queue that is waited for after each launch.
struct Turns<'a>(&'a CudaGpu, Box<dyn Queue>);

impl Turns<'_> {
    fn memory(&self, bytes: &[u8]) -> Result<Buffer, DeviceError> {
        let buffer = self.0.device_buffer(bytes.len(), CpuReach::Device)?;
        self.0.copy_in(&mut buffer.claim(0..bytes.len(), Access::Write)?, bytes)?;
        Ok(buffer)
    }

    fn content(&self, buffer: &Buffer) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; buffer.len()];
        self.0.copy_out(&mut bytes, &buffer.claim(0..buffer.len(), Access::Read)?)?;
        Ok(bytes)
    }

    fn launch(
        &mut self,
        work: Arc<dyn Work>,
        grid: LaunchGrid,
        regions: &[(&Buffer, Access, Range<usize>)],
        numbers: &[usize],
    ) -> Result<String, DeviceError> {
        let mut arguments = Vec::new();
        for (buffer, access, range) in regions {
            arguments.push(Argument::Memory(buffer.claim(range.clone(), *access)?));
        }
        arguments.extend(numbers.iter().map(|&number| Argument::Int(number as i32)));
        self.1.submit(Operation::Launch { work, grid, arguments }, 0)?;
        loop {
            if let Some(done) = self.1.poll() {
                done.result?;
                return Ok((done.finished - done.started).to_string());
            }
        }
    }
}

/// The numbers that follow the regions of `inspect`.
fn inspect_numbers(wafer: &Wafer, operations: u32, camera: usize) -> [usize; 7] {
    let layout = wafer.layout;
    let (threshold, chain) = (Wafer::THRESHOLD as usize, steps(operations) as usize);
    [layout.width(), layout.height(), layout.pitch(), threshold, chain, camera, 1]
}

/// Pinned memory, aligned for the programs' words, as the CPU forms need it.
fn host(gpu: &CudaGpu, bytes: usize) -> Result<Buffer, DeviceError> {
    gpu.pinned_buffer(bytes, Caching::Cached)
}

#[test]
fn an_inspection_writes_the_same_bytes_as_on_the_cpu() {
    with_gpu("an_inspection_writes_the_same_bytes_as_on_the_cpu", |gpu| {
        let mut turns = Turns(gpu, gpu.queue(true)?);
        let layouts = [Layout::default(), Layout::new(90, 130, 41).expect("a layout")];
        for (layout, operations) in layouts.into_iter().flat_map(|layout| [0, 1000].map(|many| (layout, many))) {
            let wafer = Wafer { layout, cameras: 5, defects: 20, seed: 81 };
            let sizes = [wafer.cameras, layout.width(), layout.height(), 1];
            let all = turns.memory(&vec![7; wafer.cameras * SYNOPSIS_BYTES])?;
            let (scratch, list) =
                (turns.memory(&vec![7; layout.scratch_bytes(wafer.cameras)])?, turns.memory(&[7; SYNOPSIS_BYTES])?);
            let (image, synopses) = (host(gpu, layout.image_bytes())?, host(gpu, all.len())?);
            let mut times = Vec::new();
            for camera in 0..wafer.cameras {
                let mut span = image.claim(0..image.len(), Access::Write)?;
                wafer.fill(camera, 1, span.bytes_mut()?);
                let numbers = inspect_numbers(&wafer, operations, camera);
                let range = camera * SYNOPSIS_BYTES..(camera + 1) * SYNOPSIS_BYTES;
                let there = turns.memory(span.bytes()?)?;
                let regions = [(&there, Access::Read, 0..there.len()), (&all, Access::Write, range.clone())];
                times.push(turns.launch(Arc::new(Inspect), Inspect::grid(&layout), &regions, &numbers)?);
                let mut synopsis = synopses.claim(range, Access::Write)?;
                let mut arguments = vec![CpuArgument::Read(span.bytes()?), CpuArgument::Write(synopsis.bytes_mut()?)];
                arguments.extend(numbers.map(|number| CpuArgument::Int(number as i32)));
                Inspect.launch(Inspect::grid(&layout), &mut arguments)?;
            }
            let regions = [
                (&all, Access::Read, 0..all.len()),
                (&scratch, Access::Write, 0..scratch.len()),
                (&list, Access::Write, 0..list.len()),
            ];
            let merged = turns.launch(Arc::new(Merge), Merge::grid(), &regions, &sizes)?;
            let synopses = synopses.claim(0..all.len(), Access::Read)?;
            assert!(turns.content(&all)? == synopses.bytes()?, "synopses differ");
            let expected = host(gpu, SYNOPSIS_BYTES)?;
            let mut span = expected.claim(0..SYNOPSIS_BYTES, Access::Write)?;
            let (from, to) = (CpuArgument::Read(synopses.bytes()?), CpuArgument::Write(span.bytes_mut()?));
            let mut arguments = vec![from, CpuArgument::Write(&mut []), to];
            arguments.extend(sizes.map(|number| CpuArgument::Int(number as i32)));
            Merge.launch(Merge::grid(), &mut arguments)?;
            let found = turns.content(&list)?;
            assert!(found == span.bytes()?, "lists differ");
            let (defects, total) = read_list(&found)?;
            assert_eq!((defects.len(), total), (wafer.planted(1).len(), wafer.planted(1).len()));
            say(&format!("inspect, {operations} operations a pixel: {times:?}, merge {merged}, {total} defects"));
        }
        Ok(())
    });
}
