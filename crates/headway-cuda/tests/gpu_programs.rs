//! The inspection of wafers on the first GPU gives the bytes of its CPU forms; skipped with the reason where there is none.
//!
//! Times are printed, not judged.

#[path = "support/first_gpu.rs"]
mod first_gpu;

use std::ops::Range;
use std::sync::Arc;

use headway_cuda::CudaGpu;
use headway_device::gpu::{Caching, CpuReach, Gpu, Operation, Queue};
use headway_device::work::{Argument, CpuArgument, Work};
use headway_device::{Access, Buffer, DeviceError, LaunchGrid};
use headway_kernels::inspect::wafer::Wafer;
use headway_kernels::inspect::{Inspect, Layout, Merge, SYNOPSIS_BYTES, read_list, steps};

use self::first_gpu::{say, with_gpu};

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
