//! Wafers with planted defects: every one is listed, nothing else is, and the CUDA source writes the same bytes.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use crate::common::{pack, state};
use crate::host::host_program;
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::gpu::{CpuReach, Gpu, Operation};
use headway_device::work::{Argument, CpuArgument, Work};
use headway_device::{Access, Buffer, DeviceError, Portion};
use headway_kernels::inspect::blocks::{InspectBlock, MergeBlock};
use headway_kernels::inspect::cameras::Cameras;
use headway_kernels::inspect::wafer::Wafer;
use headway_kernels::inspect::{Defect, Inspect, Layout, Merge, SYNOPSIS_BYTES, read_list, steps};

/// Memory that the programs' alignment needs.
#[derive(Clone, PartialEq)]
struct Words(Vec<u64>);

impl Words {
    fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(8)])
    }

    fn of(bytes: &[u8]) -> Self {
        let mut words = Self::zeroed(bytes.len());
        words.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        words
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

fn ints(numbers: &[usize]) -> impl Iterator<Item = i32> {
    numbers.iter().map(|&number| i32::try_from(number).unwrap())
}

/// The numbers that follow the regions of the two programs.
fn numbers(wafer: &Wafer, operations: u32, camera: usize, sequence: u32) -> (Vec<i32>, Vec<i32>) {
    let layout = wafer.layout;
    let (width, height) = (layout.width(), layout.height());
    let threshold = Wafer::THRESHOLD as usize;
    let chain = steps(operations) as usize;
    let inspect = [width, height, layout.pitch(), threshold, chain, camera, sequence as usize];
    (ints(&inspect).collect(), ints(&[wafer.cameras, width, height, sequence as usize]).collect())
}

fn images(wafer: &Wafer, sequence: u32) -> Vec<Words> {
    let image = |camera| {
        let mut image = Words::zeroed(wafer.layout.image_bytes());
        wafer.fill(camera, sequence, &mut image.bytes_mut()[..wafer.layout.image_bytes()]);
        image
    };
    (0..wafer.cameras).map(image).collect()
}

/// Synopses and list by the CPU forms.
fn on_cpu(wafer: &Wafer, images: &[Words], operations: u32, sequence: u32) -> (Vec<u8>, Vec<u8>) {
    let mut synopses = Vec::new();
    for (camera, image) in images.iter().enumerate() {
        let mut synopsis = Words(vec![u64::MAX; SYNOPSIS_BYTES / 8]);
        let mut arguments = vec![CpuArgument::Read(image.bytes()), CpuArgument::Write(synopsis.bytes_mut())];
        arguments.extend(numbers(wafer, operations, camera, sequence).0.into_iter().map(CpuArgument::Int));
        Inspect.launch(Inspect::grid(&wafer.layout), &mut arguments).unwrap();
        synopses.extend_from_slice(synopsis.bytes());
    }
    let all = Words::of(&synopses);
    let (mut scratch, mut list) = (Words::zeroed(8), Words(vec![u64::MAX; SYNOPSIS_BYTES / 8]));
    let mut arguments = vec![
        CpuArgument::Read(all.bytes()),
        CpuArgument::Write(scratch.bytes_mut()),
        CpuArgument::Write(list.bytes_mut()),
    ];
    arguments.extend(numbers(wafer, operations, 0, sequence).1.into_iter().map(CpuArgument::Int));
    Merge.launch(Merge::grid(), &mut arguments).unwrap();
    (synopses, list.bytes().to_vec())
}

/// Boxes of what was planted, as a list shows them.
fn expected(wafer: &Wafer, sequence: u32) -> Vec<[u32; 5]> {
    let mut boxes: Vec<_> = wafer
        .planted(sequence)
        .iter()
        .map(|it| [it.x, it.y, it.width, it.height, it.width * it.height].map(|number| number as u32))
        .collect();
    boxes.sort_unstable();
    boxes
}

fn found(list: &[u8]) -> Vec<[u32; 5]> {
    let (defects, total) = read_list(list).unwrap();
    assert_eq!(total, defects.len());
    let mut boxes: Vec<_> = defects.iter().map(|it| [it.x, it.y, it.width, it.height, it.pixels]).collect();
    boxes.sort_unstable();
    boxes
}

#[test]
fn every_planted_defect_is_listed_and_nothing_else() {
    let wafer = Wafer { layout: Layout::default(), cameras: 3, defects: 20, seed: 71 };
    let (mut planted, mut across) = (0, 0);
    for sequence in 0..12 {
        let (_, list) = on_cpu(&wafer, &images(&wafer, sequence), 0, sequence);
        assert_eq!(found(&list), expected(&wafer, sequence), "images {sequence}");
        planted += wafer.planted(sequence).len();
        across += wafer.planted(sequence).iter().filter(|it| it.x / 200 != (it.x + it.width - 1) / 200).count();
    }
    assert!(planted > 200 && across > 2, "{planted} planted, {across} of them seen by two cameras");
}

#[test]
fn a_wafer_without_defects_has_an_empty_list() {
    let wafer = Wafer { layout: Layout::default(), cameras: 4, defects: 0, seed: 72 };
    for sequence in 0..10 {
        let (_, list) = on_cpu(&wafer, &images(&wafer, sequence), 0, sequence);
        assert_eq!(read_list(&list).unwrap(), (vec![], 0));
    }
}

#[test]
fn a_defect_in_the_first_or_last_die_is_found_once() {
    let wafer = Wafer { layout: Layout::default(), cameras: 1, defects: 0, seed: 73 };
    for (y, contrast) in [(3, 900), (150, -900), (990, 900)] {
        let mut image = images(&wafer, 0).remove(0);
        for x in 40..43 {
            let at = 2 * (y * 200 + x);
            let level = i32::from(u16::from_le_bytes(image.bytes()[at..at + 2].try_into().unwrap())) + contrast;
            image.bytes_mut()[at..at + 2].copy_from_slice(&(level as u16).to_le_bytes());
        }
        let (_, list) = on_cpu(&wafer, &[image], 0, 0);
        let [Defect { x: 40, y: there, width: 3, height: 1, pixels: 3, largest }] = read_list(&list).unwrap().0[..]
        else {
            panic!("{:?}", read_list(&list));
        };
        assert_eq!(there as usize, y);
        assert!((510..=1290).contains(&largest), "{largest}");
    }
}

#[test]
fn parts_of_a_defect_may_be_two_pixels_apart() {
    let wafer = Wafer { layout: Layout::default(), cameras: 1, defects: 0, seed: 77 };
    // Cells end at 39 and begin at 40.
    for (second, count) in [(40, 1), (42, 1), (43, 2)] {
        let mut image = images(&wafer, 0).remove(0);
        for x in [39, second] {
            let at = 2 * (305 * 200 + x);
            image.bytes_mut()[at..at + 2].copy_from_slice(&60_000u16.to_le_bytes());
        }
        let (_, list) = on_cpu(&wafer, &[image], 0, 0);
        assert_eq!(read_list(&list).unwrap().1, count, "pixels at 39 and {second}");
    }
}

#[test]
fn more_defects_than_a_list_holds_are_counted() {
    // Single bright pixels, one in every second cell.
    let wafer = Wafer { layout: Layout::default(), cameras: 2, defects: 0, seed: 74 };
    let mut images = images(&wafer, 0);
    for image in &mut images {
        for y in (10..1000).step_by(40) {
            for x in (10 + y / 100..200).step_by(20) {
                let at = 2 * (y * 200 + x);
                image.bytes_mut()[at..at + 2].copy_from_slice(&60_000u16.to_le_bytes());
            }
        }
    }
    let (_, list) = on_cpu(&wafer, &images, 0, 0);
    let (defects, total) = read_list(&list).unwrap();
    assert_eq!((defects.len(), total), (255, 2 * 25 * 10));
}

#[test]
fn the_number_of_operations_shows_in_the_synopsis_and_not_in_the_list() {
    let wafer = Wafer { layout: Layout::default(), cameras: 1, defects: 5, seed: 75 };
    let images = images(&wafer, 0);
    let (few, few_list) = on_cpu(&wafer, &images, 16, 0);
    let (many, many_list) = on_cpu(&wafer, &images, 100, 0);
    assert!(few_list == many_list);
    let checks = |synopsis: &[u8]| synopsis[96..].chunks(8).map(|cell| [cell[6], cell[7]]).collect::<Vec<_>>();
    let same = checks(&few).iter().zip(checks(&many)).filter(|(few, many)| *few == many).count();
    assert!(same < 5, "{same} of 500 checks are equal");
}

fn wafer_for_devices() -> Wafer {
    Wafer { layout: Layout::new(90, 130, 41).unwrap(), cameras: 3, defects: 7, seed: 76 }
}

fn device_memory(gpu: &dyn Gpu, bytes: &[u8]) -> Result<Buffer, DeviceError> {
    let buffer = gpu.device_buffer(bytes.len(), CpuReach::Device)?;
    gpu.copy_in(&mut buffer.claim(0..bytes.len(), Access::Write)?, bytes)?;
    Ok(buffer)
}

#[test]
fn an_emulated_device_writes_the_same_bytes() {
    let wafer = wafer_for_devices();
    let images = images(&wafer, 1);
    let (synopses, list) = on_cpu(&wafer, &images, 100, 1);
    assert!(!found(&list).is_empty());
    let gpu = EmuGpu::open(EmuSpec::new("emu0"));
    let mut queue = gpu.queue(false).unwrap();
    let mut launch =
        |work: Arc<dyn Work>, grid, regions: &[(&Buffer, Access, std::ops::Range<usize>)], ints: Vec<i32>| {
            let spans = regions.iter().map(|(buffer, access, range)| buffer.claim(range.clone(), *access).unwrap());
            let arguments = spans.map(Argument::Memory).chain(ints.into_iter().map(Argument::Int)).collect();
            queue.submit(Operation::Launch { work, grid, arguments }, 0).unwrap();
            while queue.outstanding() > 0 {
                if let Some(done) = queue.poll() {
                    assert_eq!(done.result, Ok(()));
                }
            }
        };
    let all = device_memory(&gpu, &vec![7; 3 * SYNOPSIS_BYTES]).unwrap();
    let (scratch, there) = (
        device_memory(&gpu, &vec![7; wafer.layout.scratch_bytes(3)]).unwrap(),
        device_memory(&gpu, &[7; SYNOPSIS_BYTES]).unwrap(),
    );
    for (camera, image) in images.iter().enumerate() {
        let image = device_memory(&gpu, image.bytes()).unwrap();
        let synopsis = camera * SYNOPSIS_BYTES..(camera + 1) * SYNOPSIS_BYTES;
        let regions = [(&image, Access::Read, 0..image.len()), (&all, Access::Write, synopsis)];
        launch(Arc::new(Inspect), Inspect::grid(&wafer.layout), &regions, numbers(&wafer, 100, camera, 1).0);
    }
    let regions = [
        (&all, Access::Read, 0..all.len()),
        (&scratch, Access::Write, 0..scratch.len()),
        (&there, Access::Write, 0..there.len()),
    ];
    launch(Arc::new(Merge), Merge::grid(), &regions, numbers(&wafer, 100, 0, 1).1);
    for (buffer, expected) in [(all, synopses), (there, list)] {
        let mut bytes = vec![0; buffer.len()];
        gpu.copy_out(&mut bytes, &buffer.claim(0..buffer.len(), Access::Read).unwrap()).unwrap();
        assert!(bytes == expected);
    }
}

#[test]
fn the_cuda_source_writes_the_same_bytes_as_the_cpu_forms() {
    let wafer = wafer_for_devices();
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = host_program("inspect.cpp", &[], folder.path()) else { return };
    let images = images(&wafer, 1);
    let (synopses, list) = on_cpu(&wafer, &images, 100, 1);
    let file = |name: &str| folder.path().join(name);
    let line = |entry: &str, grid: headway_device::LaunchGrid, regions: &str, ints: Vec<i32>| {
        let ints: Vec<_> = ints.iter().map(i32::to_string).collect();
        format!("{entry} {} {} {regions} {}\n", grid.all_blocks(), grid.block_threads(), ints.join(" "))
    };
    let run = |lines: &str| {
        fs::write(file("launches"), lines).unwrap();
        let done = Command::new(&program).arg(folder.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let mut lines = String::new();
    for (camera, image) in images.iter().enumerate() {
        fs::write(file(&format!("image{camera}")), &image.bytes()[..wafer.layout.image_bytes()]).unwrap();
        fs::write(file(&format!("synopsis{camera}")), [7; SYNOPSIS_BYTES]).unwrap();
        let regions = format!("@image{camera} @synopsis{camera}");
        lines += &line("inspect", Inspect::grid(&wafer.layout), &regions, numbers(&wafer, 100, camera, 1).0);
    }
    run(&lines);
    let found: Vec<_> = (0..3).flat_map(|camera| fs::read(file(&format!("synopsis{camera}"))).unwrap()).collect();
    assert!(found == synopses);
    fs::write(file("synopses"), &found).unwrap();
    fs::write(file("scratch"), vec![7; wafer.layout.scratch_bytes(3)]).unwrap();
    fs::write(file("list"), [7; SYNOPSIS_BYTES]).unwrap();
    run(&line("inspect_merge", Merge::grid(), "@synopses @scratch @list", numbers(&wafer, 100, 0, 1).1));
    assert!(fs::read(file("list")).unwrap() == list);
}

/// The images of a row as portions of one block, with what a stream knows of its cameras.
fn as_block(wafer: &Wafer, images: &[Words], operations: u32, sequence: u32) -> (Vec<u8>, Vec<Portion>) {
    let images: Vec<&[u8]> = images.iter().map(|image| &image.bytes()[..wafer.layout.image_bytes()]).collect();
    let (width, height, pitch) = (wafer.layout.width(), wafer.layout.height(), wafer.layout.pitch());
    let cameras = Cameras {
        cameras: wafer.cameras as u32,
        width: width as u32,
        height: height as u32,
        pitch: pitch as u32,
        defects: wafer.defects as u32,
        operations,
        ring: 1,
        seed: wafer.seed,
    };
    assert_eq!(cameras.wafer(), Ok(*wafer));
    let portion = |item| Portion { parameters: cameras.parameters(), item, ..Portion::default() };
    (pack(u64::from(sequence), &images), (0..cameras.cameras).map(portion).collect())
}

#[test]
fn a_block_of_images_gives_the_synopses_and_the_list_of_its_images() {
    let wafer = wafer_for_devices();
    let images = images(&wafer, 1);
    let (synopses, list) = on_cpu(&wafer, &images, 100, 1);
    let (block, portions) = as_block(&wafer, &images, 100, 1);
    let (block, mut state) = (Words::of(&block), state(&InspectBlock, &portions));
    let mut found = Words::zeroed(3 * SYNOPSIS_BYTES);
    InspectBlock.run(block.bytes(), found.bytes_mut(), &mut state).unwrap();
    assert!(found.bytes() == synopses);
    let mut output = Words::zeroed(MergeBlock::output(3));
    MergeBlock.run(found.bytes(), output.bytes_mut(), &mut []).unwrap();
    assert!(output.bytes()[..SYNOPSIS_BYTES] == list);
    // A synopsis that is left from an earlier generation.
    found.bytes_mut()[SYNOPSIS_BYTES + 8] ^= 1;
    MergeBlock.run(found.bytes(), output.bytes_mut(), &mut []).unwrap();
    assert!(read_list(&output.bytes()[..SYNOPSIS_BYTES]).is_err());
}

#[test]
fn the_cuda_source_treats_blocks_as_the_cpu_forms_do() {
    let wafer = wafer_for_devices();
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = host_program("inspect.cpp", &[], folder.path()) else { return };
    let images = images(&wafer, 1);
    let (synopses, list) = on_cpu(&wafer, &images, 100, 1);
    let (block, portions) = as_block(&wafer, &images, 100, 1);
    let file = |name: &str| folder.path().join(name);
    let run = |lines: &str| {
        fs::write(file("launches"), lines).unwrap();
        let done = Command::new(&program).arg(folder.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    fs::write(file("block"), &block).unwrap();
    fs::write(file("state"), state(&InspectBlock, &portions)).unwrap();
    fs::write(file("synopses"), vec![7; 3 * SYNOPSIS_BYTES]).unwrap();
    fs::write(file("output"), vec![7; MergeBlock::output(3)]).unwrap();
    let inspect = InspectBlock.grid(3);
    run(&format!("inspect_block {} {} @block @synopses @state 3\n", inspect.all_blocks(), inspect.block_threads()));
    assert!(fs::read(file("synopses")).unwrap() == synopses);
    let merge = MergeBlock.grid(3);
    let line =
        format!("inspect_merge_block {} {} @synopses @output @state 3\n", merge.all_blocks(), merge.block_threads());
    run(&line);
    assert!(fs::read(file("output")).unwrap()[..SYNOPSIS_BYTES] == list);
    let mut stale = synopses;
    stale[SYNOPSIS_BYTES + 8] ^= 1;
    fs::write(file("synopses"), &stale).unwrap();
    run(&line);
    assert!(fs::read(file("output")).unwrap()[..SYNOPSIS_BYTES] == [0; SYNOPSIS_BYTES]);
}

#[test]
fn the_cuda_source_lists_many_defects_as_the_cpu_form_does() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = host_program("inspect.cpp", &[], folder.path()) else { return };
    let file = |name: &str| folder.path().join(name);
    // Synopses by hand: one pixel in the corner of every second cell of every second row; more than fit a list, and more
    // than are put in order at once.
    for cameras in [3, 10, 400] {
        let mut synopses = Words::zeroed(cameras * SYNOPSIS_BYTES);
        for (camera, synopsis) in synopses.bytes_mut().chunks_exact_mut(SYNOPSIS_BYTES).enumerate() {
            let head = [u32::from_le_bytes(*b"HWI1"), camera as u32, 9, 200, 1000];
            // Of 400, the last ones only, whose columns need more than 16 bits.
            let some = cameras < 400 || camera > 397;
            let cells = (0..500).map(|cell| u32::from(some && cell / 10 % 2 == 0 && cell % 2 == 0));
            let cells = cells.flat_map(|pixels| [pixels, 700 * pixels]);
            for (at, word) in head.into_iter().enumerate().chain((24..).zip(cells)) {
                synopsis[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        let mut output = Words::zeroed(MergeBlock::output(cameras));
        MergeBlock.run(synopses.bytes(), output.bytes_mut(), &mut []).unwrap();
        let list = &output.bytes()[..SYNOPSIS_BYTES];
        let (defects, total) = read_list(list).unwrap();
        let filled = if cameras == 400 { 2 } else { cameras };
        assert_eq!(total, filled * 125);
        assert_eq!(defects[0].x, if cameras == 400 { 398 * 200 } else { 0 });
        fs::write(file("synopses"), synopses.bytes()).unwrap();
        fs::write(file("output"), vec![7; MergeBlock::output(cameras)]).unwrap();
        fs::write(file("launches"), format!("inspect_merge_block 1 512 @synopses @output @synopses {cameras}\n"))
            .unwrap();
        let done = Command::new(&program).arg(folder.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(&fs::read(file("output")).unwrap()[..SYNOPSIS_BYTES] == list, "{cameras} cameras");
    }
}
