//! Times of the CPU forms: `cargo bench -p headway-kernels`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use headway_core::plan::block::{block_bytes, write_header};
use headway_device::work::{CpuArgument, Portion, Work as _};
use headway_kernels::inspect::wafer::Wafer;
use headway_kernels::inspect::{Inspect, Layout, Merge, SYNOPSIS_BYTES, steps};
use headway_kernels::klt::{CornerCriteria, CpuMachine, Tracker, TrackerMachine as _, TrackerShape, Warp, select};
use headway_kernels::{Aes128Cbc, Cipher};

/// A picture with texture at several scales, moved by `by` pixels.
fn picture(shape: &TrackerShape, by: f32) -> Vec<f32> {
    let pixels = (0..shape.height()).flat_map(|y| (0..shape.width()).map(move |x| (x as f32 - by, y as f32)));
    pixels.map(|(x, y)| 128.0 + 50.0 * (0.31 * x + 0.17 * y).sin() + 50.0 * (0.29 * y - 0.21 * x).sin()).collect()
}

/// A frame of the paper's size, with as many features as the picture has corners.
fn frames(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("klt, 320 x 240, 1024 slots");
    group.sample_size(10);
    let shape = TrackerShape::default();
    let images = [picture(&shape, 0.0), picture(&shape, 0.7)];
    for warp in [Warp::Translation, Warp::Affine] {
        let shape = shape.with_search(warp, 3);
        let mut tracker = Tracker::new(shape, CpuMachine::new(&shape)).expect("the CPU refuses nothing");
        tracker.track(&images[0], None).expect("a picture of this size");
        let found = tracker.refill(&images[0], &CornerCriteria::default()).expect("a picture of this size");
        let mut turn = 0;
        group.bench_function(format!("track {found} features, {warp:?}"), |bencher| {
            bencher.iter(|| {
                turn += 1;
                tracker.track(black_box(&images[turn % 2]), None).expect("a picture of this size")
            });
        });
        group.bench_function(format!("renew {found} templates, {warp:?}"), |bencher| {
            bencher.iter(|| tracker.renew().expect("slots of this tracker"));
        });
    }
    let mut machine = CpuMachine::new(&shape);
    group.bench_function("corner response", |bencher| {
        bencher.iter(|| machine.launch(&shape.respond()).expect("launches of this shape"));
    });
    let response: Vec<_> = images[0].iter().map(|grey| (grey - 128.0).abs()).collect();
    group.bench_function("select corners", |bencher| {
        bencher.iter(|| select(black_box(&response), shape.width(), &[], &CornerCriteria::default(), 1024));
    });
    group.finish();
}

/// Launches a program's CPU form on `regions` and `numbers`.
fn inspect_one(image: &[u8], synopsis: &mut [u8], operations: u32) {
    let layout = Layout::default();
    let threshold = Wafer::THRESHOLD as usize;
    let sizes = [layout.width(), layout.height(), layout.pitch(), threshold, steps(operations) as usize, 0, 0];
    let mut arguments = vec![CpuArgument::Read(image), CpuArgument::Write(synopsis)];
    arguments.extend(sizes.map(|number| CpuArgument::Int(number as i32)));
    Inspect.launch(Inspect::grid(&layout), &mut arguments).expect("arguments of this layout");
}

fn wafers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("inspect, 200 x 1000");
    group.sample_size(10);
    let wafer = Wafer { layout: Layout::default(), cameras: 1, defects: 6, seed: 1 };
    // Allocations of this size are aligned for the programs' words.
    let mut image = vec![0; wafer.layout.image_bytes()];
    wafer.fill(0, 0, &mut image);
    let mut synopsis = vec![0; SYNOPSIS_BYTES];
    group.throughput(Throughput::Bytes(image.len() as u64));
    for operations in [0, 100, 1000] {
        group.bench_function(format!("{operations} operations a pixel"), |bencher| {
            bencher.iter(|| inspect_one(black_box(&image), &mut synopsis, operations));
        });
    }
    let mut list = vec![0; SYNOPSIS_BYTES];
    group.bench_function("merge one synopsis", |bencher| {
        bencher.iter(|| {
            let regions = [CpuArgument::Read(&synopsis), CpuArgument::Write(&mut []), CpuArgument::Write(&mut list)];
            let sizes = [1, 200, 1000, 0].map(CpuArgument::Int);
            let mut arguments: Vec<_> = regions.into_iter().chain(sizes).collect();
            Merge.launch(Merge::grid(), &mut arguments).expect("a synopsis of this layout");
        });
    });
    group.bench_function("make an image", |bencher| bencher.iter(|| wafer.fill(0, black_box(1), &mut image)));
    group.finish();
}

/// Packets of 2 KiB of many streams, one after the other and eight at a time.
fn ciphers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("aes128-cbc, portions of 2 KiB");
    group.sample_size(10);
    for count in [1, 8, 32] {
        let lens = vec![2048; count];
        let mut input = vec![0; block_bytes(lens.iter().copied()).0 as usize];
        write_header(&mut input, 0, &lens).expect("the buffer has `block_bytes` for these portions");
        let parameters = Cipher { key: [7; 16], iv: [0; 16] }.parameters();
        let portions = vec![Portion { parameters, ..Portion::default() }; count];
        let (mut output, mut state) = (vec![0; input.len()], vec![0; Aes128Cbc.state_bytes(count)]);
        Aes128Cbc.init_state(&portions, &mut state).expect("every portion has a key");
        group.throughput(Throughput::Bytes(2048 * count as u64));
        group.bench_function(format!("{count} portions"), |bencher| {
            bencher.iter(|| Aes128Cbc.run(black_box(&input), &mut output, &mut state).expect("whole blocks"));
        });
    }
    group.finish();
}

criterion_group!(benches, ciphers, frames, wafers);
criterion_main!(benches);
