//! The tracker on the first GPU gives the bits of its CPU form; skipped with the reason where there is none.
//!
//! Times are printed, not judged.

#[path = "../../headway-cuda/tests/support/first_gpu.rs"]
mod first_gpu;
mod gpu_machine;

use headway_device::DeviceError;
use headway_lab::klt::{CornerCriteria, CpuMachine, FrameReport, Region, Tracker, TrackerMachine, TrackerShape, Warp};
use headway_os::clock;

use self::first_gpu::{say, with_gpu};
use self::gpu_machine::GpuMachine;

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
