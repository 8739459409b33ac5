//! The tracker on pictures whose motion is known, on an emulated device, and its CUDA source built for the host.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::gpu_machine::GpuMachine;
use crate::host::host_program;
use headway_device::DeviceError;
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_lab::klt::{
    CornerCriteria, CpuMachine, Fate, FrameReport, Launch, Operand, Region, Tracker, TrackerMachine, TrackerShape, Warp,
};
use tempfile::TempDir;

/// Grey levels of a surface with texture at several scales, the same at every distance from the origin.
fn surface(x: f32, y: f32) -> f32 {
    let (x, y) = (0.7 * f64::from(x), 0.7 * f64::from(y));
    let waves = [(0.31, 0.17, 22.0), (-0.21, 0.29, 22.0), (0.06, -0.11, 30.0), (0.47, 0.41, 9.0), (0.11, 0.52, 10.0)];
    let sum: f64 =
        waves.iter().map(|(u, v, high)| high * (u * x + v * y + (0.013 * x * v + 0.017 * y).sin()).sin()).sum();
    (120.0 + sum) as f32
}

/// A picture in which pixel (x, y) shows the surface at `from(x, y)`.
fn picture(shape: &TrackerShape, from: impl Fn(f32, f32) -> (f32, f32)) -> Vec<f32> {
    let pixels = (0..shape.height()).flat_map(|y| (0..shape.width()).map(move |x| (x as f32, y as f32)));
    let shown = pixels.map(|(x, y)| {
        let (x, y) = from(x, y);
        surface(x, y)
    });
    shown.collect()
}

fn small() -> TrackerShape {
    TrackerShape::new(160, 120, 64).unwrap()
}

/// Finds corners in `first`, and where they are in `second`.
fn follow<M: TrackerMachine>(tracker: &mut Tracker<M>, first: &[f32], second: &[f32]) -> (FrameReport, FrameReport) {
    tracker.track(first, None).unwrap();
    let found = tracker.refill(first, &CornerCriteria { margin: 20, ..CornerCriteria::default() }).unwrap();
    assert!(found > 20, "{found} corners");
    let start = tracker.track(first, None).unwrap();
    (start, tracker.track(second, None).unwrap())
}

fn on_cpu(shape: TrackerShape) -> Tracker<CpuMachine> {
    Tracker::new(shape, CpuMachine::new(&shape)).unwrap()
}

#[test]
fn a_translation_is_found_to_a_tenth_of_a_pixel() {
    let shape = small().with_search(Warp::Translation, 10);
    for (dx, dy) in [(0.0, 0.0), (0.3, -0.7), (-4.6, 2.25), (7.5, 7.5)] {
        let first = picture(&shape, |x, y| (x, y));
        let second = picture(&shape, |x, y| (x - dx, y - dy));
        let (start, end) = follow(&mut on_cpu(shape), &first, &second);
        assert_eq!(end.lost, []);
        for (start, end) in start.tracked.iter().zip(&end.tracked) {
            assert_eq!((start.id, start.slot), (end.id, end.slot));
            let [x, y] = [0, 1].map(|axis| end.at[axis] - start.at[axis]);
            // Interpolation flattens what lies between pixels, which pulls towards them.
            assert!((x - dx).hypot(y - dy) < 0.1, "{start:?} moved by ({x}, {y}), not ({dx}, {dy})");
        }
    }
}

#[test]
fn gain_bias_and_affine_motion_are_recovered() {
    let shape = small().with_search(Warp::Affine, 20);
    // The second picture shows at (x, y) what the first shows at A^-1 (x - 80, y - 60) + (80, 60).
    let [xx, xy, yx, yy] = [1.04f32, 0.03, -0.02, 0.97];
    let determinant = xx * yy - xy * yx;
    let first = picture(&shape, |x, y| (x, y));
    let back = |x: f32, y: f32| {
        let (x, y) = (x - 80.0, y - 60.0);
        ((yy * x - xy * y) / determinant + 80.0, (xx * y - yx * x) / determinant + 60.0)
    };
    let second: Vec<_> = picture(&shape, back).into_iter().map(|grey| 0.8 * grey + 30.0).collect();
    let (start, end) = follow(&mut on_cpu(shape), &first, &second);
    assert!(end.tracked.len() > 20);
    let (mut places, mut warps) = (Vec::new(), Vec::new());
    for end in &end.tracked {
        let start = start.tracked.iter().find(|start| start.id == end.id).unwrap();
        let [x, y] = [start.at[0] - 80.0, start.at[1] - 60.0];
        let expected = [xx * x + xy * y + 80.0, yx * x + yy * y + 60.0];
        places.push((end.at[0] - expected[0]).hypot(end.at[1] - expected[1]));
        // The tracker corrects the picture, so that its gain and bias undo ours.
        let wanted = [1.0 / 0.8 - 1.0, -30.0 / 0.8, xx - 1.0, xy, yx, yy - 1.0];
        let scale = [1.0, 120.0, 1.0, 1.0, 1.0, 1.0];
        let apart = (0..6).map(|i| (end.warp[i] - wanted[i]).abs() / scale[i]);
        warps.push(apart.fold(0.0, f32::max));
    }
    for (values, limit) in [(&mut places, 0.05), (&mut warps, 0.05)] {
        values.sort_unstable_by(f32::total_cmp);
        // Interpolation between pixels blurs some patches more than others.
        assert!(values[values.len() * 9 / 10] < limit, "{values:?}");
    }
}

#[test]
fn a_leap_is_found_only_with_a_prediction() {
    let shape = small().with_search(Warp::Translation, 10);
    let first = picture(&shape, |x, y| (x, y));
    let second = picture(&shape, |x, y| (x - 31.0, y - 1.0));
    for prediction in [None, Some([1.0, 0.0, 30.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0])] {
        let mut tracker = on_cpu(shape);
        tracker.track(&first, None).unwrap();
        tracker.refill(&first, &CornerCriteria { margin: 40, ..CornerCriteria::default() }).unwrap();
        let start = tracker.track(&first, None).unwrap();
        let end = tracker.track(&second, prediction).unwrap();
        let right = end.tracked.iter().filter(|end| {
            let start = start.tracked.iter().find(|start| start.id == end.id).unwrap();
            (end.at[0] - start.at[0] - 31.0).abs() < 0.05 && (end.at[1] - start.at[1] - 1.0).abs() < 0.05
        });
        let (right, all) = (right.count(), start.tracked.len());
        assert!(if prediction.is_some() { right == all } else { right < all / 2 }, "{right} of {all}");
    }
}

#[test]
fn what_cannot_be_followed_is_lost_with_its_reason() {
    let shape = small().with_search(Warp::Translation, 10);
    let scene = picture(&shape, |x, y| if x < 80.0 { (x, y) } else { (0.0, 0.0) });
    let mut tracker = on_cpu(shape);
    tracker.track(&scene, None).unwrap();
    assert_eq!(tracker.add(&[[32.0, 60.0], [50.0, 60.0], [120.0, 60.0]]).unwrap(), 3);
    let report = tracker.track(&scene, None).unwrap();
    assert_eq!(report.lost, [(2, Fate::Untrackable)]);
    assert_eq!(report.tracked.len(), 2);
    // The surface goes on to the left; what was at 32 ends 3 pixels outside.
    let mut at = 0.0;
    while at < 35.0 {
        at += 5.0;
        let moved = picture(&shape, |x, y| (x + at, y));
        let report = tracker.track(&moved, None).unwrap();
        if at > 30.0 {
            assert_eq!(report.lost, [(0, Fate::Outside)], "{at}");
        } else {
            assert_eq!(report.lost, [], "{at}");
        }
    }
    // A slot that was lost is free again.
    let kept = tracker.track(&scene, None).unwrap().tracked.len();
    assert!(kept < 2);
    assert_eq!(tracker.add(&[[30.0, 60.0]; 70]).unwrap(), 64 - kept);
}

#[test]
fn a_patch_that_looks_different_is_lost() {
    // Without a step, so that nothing similar is found nearby.
    let shape = small().with_search(Warp::Translation, 0);
    let scene = picture(&shape, |x, y| (x, y));
    for (more, lost) in [(19.0, vec![]), (21.0, vec![(0, Fate::Changed)])] {
        let mut tracker = on_cpu(shape);
        tracker.track(&scene, None).unwrap();
        assert_eq!(tracker.add(&[[50.0, 60.0]]).unwrap(), 1);
        let brighter: Vec<_> = scene.iter().map(|grey| grey + more).collect();
        assert_eq!(tracker.track(&brighter, None).unwrap().lost, lost);
    }
}

#[test]
fn a_picture_of_another_size_is_refused() {
    let error = on_cpu(small()).track(&[0.0; 10], None).unwrap_err();
    assert_eq!(error.to_string(), "invalid picture: it has 10 pixels and the tracker is for 19200");
}

/// Every region but the scratch ones, as bytes.
fn content(machine: &mut impl TrackerMachine, shape: &TrackerShape) -> Vec<Vec<u8>> {
    let read = |region: Region| {
        let mut bytes = vec![0; shape.bytes(region)];
        machine.take(region, &mut bytes).unwrap();
        bytes
    };
    Region::ALL.into_iter().map(read).collect()
}

/// Three frames with features that come, go and are renewed; leaves each machine's content in `check`.
fn run<M: TrackerMachine>(tracker: &mut Tracker<M>, shape: &TrackerShape, mut check: impl FnMut(&mut M, FrameReport)) {
    for (frame, (dx, dy)) in [(0.0, 0.0), (1.3, -0.4), (4.0, 1.0), (7.2, 2.9)].into_iter().enumerate() {
        let image = picture(shape, |x, y| (x - dx, y - dy));
        let report = tracker.track(&image, None).unwrap();
        tracker.refill(&image, &CornerCriteria { distance: 6.0, margin: 2, ..CornerCriteria::default() }).unwrap();
        if frame == 1 {
            tracker.renew().unwrap();
        }
        check(tracker.machine(), report);
    }
}

/// The same frames on the CPU and on `machine` give the same bits everywhere.
fn agrees_with_the_cpu(shape: TrackerShape, machine: impl TrackerMachine) {
    let mut expected = Vec::new();
    run(&mut on_cpu(shape), &shape, |machine, report| expected.push((content(machine, &shape), report)));
    assert!(expected.iter().skip(1).all(|(_, report)| report.tracked.len() > 5));
    assert!(expected.iter().any(|(_, report)| !report.lost.is_empty()));
    let mut frames = expected.into_iter();
    run(&mut Tracker::new(shape, machine).unwrap(), &shape, |machine, report| {
        let (expected, expected_report) = frames.next().unwrap();
        for ((region, found), expected) in Region::ALL.into_iter().zip(content(machine, &shape)).zip(expected) {
            assert!(found == expected, "{region:?} differs");
        }
        assert_eq!(report, expected_report);
    });
}

#[test]
fn an_emulated_device_computes_the_same_bits() {
    let gpu = EmuGpu::open(EmuSpec::new("emu0"));
    for warp in [Warp::Translation, Warp::Photometric, Warp::Affine] {
        let shape = small().with_search(warp, 3);
        agrees_with_the_cpu(shape, GpuMachine::open(&gpu, &shape).unwrap());
    }
}

#[test]
fn moving_the_state_to_another_device_changes_no_result() {
    let shape = small();
    let first = picture(&shape, |x, y| (x, y));
    let second = picture(&shape, |x, y| (x - 2.5, y + 1.5));
    let (_, stayed) = follow(&mut on_cpu(shape), &first, &second);
    let mut other = CpuMachine::new(&shape);
    let mut tracker = on_cpu(shape);
    tracker.track(&first, None).unwrap();
    tracker.refill(&first, &CornerCriteria { margin: 20, ..CornerCriteria::default() }).unwrap();
    tracker.track(&first, None).unwrap();
    for level in 0..3 {
        let mut state = vec![0; shape.bytes(Region::State(level))];
        tracker.machine().take(Region::State(level), &mut state).unwrap();
        other.put(Region::State(level), &state).unwrap();
    }
    *tracker.machine() = other;
    assert_eq!(tracker.track(&second, None).unwrap(), stayed);
}

/// The CUDA source, built by the host's compiler.
struct HostMachine {
    folder: TempDir,
    program: PathBuf,
}

impl HostMachine {
    fn build(shape: &TrackerShape) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let program = host_program("klt.cpp", &[], folder.path())?;
        for region in Region::ALL {
            fs::write(folder.path().join(name(region)), vec![0; shape.bytes(region)]).unwrap();
        }
        Some(Self { folder, program })
    }
}

/// A file's name.
fn name(region: Region) -> String {
    format!("{region:?}").replace(['(', ')'], "_")
}

impl TrackerMachine for HostMachine {
    fn put(&mut self, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        let path = self.folder.path().join(name(region));
        let mut bytes = fs::read(&path).unwrap();
        bytes[..from.len()].copy_from_slice(from);
        fs::write(&path, bytes).unwrap();
        Ok(())
    }

    fn take(&mut self, region: Region, to: &mut [u8]) -> Result<(), DeviceError> {
        to.copy_from_slice(&fs::read(self.folder.path().join(name(region))).unwrap()[..to.len()]);
        Ok(())
    }

    fn launch(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        let mut lines = String::new();
        for Launch { stage, grid, operands } in launches {
            let entry = headway_device::Work::entry(stage);
            lines += &format!("{entry} {} {}", grid.all_blocks(), grid.block_threads());
            for operand in operands {
                lines += &match operand {
                    Operand::Read(region) | Operand::Write(region) => format!(" @{}", name(*region)),
                    Operand::Int(int) => format!(" {int}"),
                };
            }
            lines.push('\n');
        }
        fs::write(self.folder.path().join("launches"), lines).unwrap();
        let done = Command::new(&self.program).arg(self.folder.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }
}

#[test]
fn the_cuda_source_computes_the_same_bits_as_the_cpu_forms() {
    // Odd sizes; slots that are no multiple of a block of 256 threads.
    let shape = TrackerShape::new(131, 99, 96).unwrap().with_search(Warp::Affine, 2);
    let Some(machine) = HostMachine::build(&shape) else { return };
    agrees_with_the_cpu(shape, machine);
}
