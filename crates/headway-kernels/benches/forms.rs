//! Times of the CPU forms: `cargo bench -p headway-kernels`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use headway_core::plan::block::{block_bytes, write_header};
use headway_device::work::{CpuArgument, Portion, Work as _};
use headway_kernels::inspect::wafer::Wafer;
use headway_kernels::inspect::{Inspect, Layout, Merge, SYNOPSIS_BYTES, steps};
use headway_kernels::{Aes128Cbc, Cipher};

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

criterion_group!(benches, ciphers, wafers);
criterion_main!(benches);
