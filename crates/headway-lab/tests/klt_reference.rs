//! Our tracks against OpenCV's, an independent implementation of the same algorithm, on frames of a film.
//!
//! `tests/golden/klt/` holds the frames, OpenCV's tracks and the script that made them; no Python is needed here.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::read::GzDecoder;
use headway_lab::klt::{CpuMachine, Region, Tracker, TrackerMachine, TrackerShape, Warp};
use sha2::{Digest as _, Sha256};

const WIDTH: usize = 320;
const HEIGHT: usize = 240;

/// A line of `tracks.csv`.
struct Row {
    kind: String,
    frame: usize,
    at: [f32; 2],
    found: bool,
    /// How far from its start OpenCV's track back leads; for responses, OpenCV's response.
    back: f32,
}

struct Reference {
    frames: Vec<Vec<f32>>,
    rows: Vec<Row>,
}

impl Reference {
    fn read(folder: &Path) -> Self {
        let mut raw = Vec::new();
        GzDecoder::new(fs::File::open(folder.join("frames.gz")).unwrap()).read_to_end(&mut raw).unwrap();
        let text = fs::read_to_string(folder.join("tracks.csv")).unwrap();
        let hash: String = Sha256::digest(&raw).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(text.contains(&hash), "frames and tracks belong together");
        let frames = raw.chunks_exact(WIDTH * HEIGHT).map(|frame| frame.iter().map(|&grey| f32::from(grey)).collect());
        let rows = text.lines().filter(|line| !line.starts_with('#')).skip(1).map(|line| {
            let fields: Vec<_> = line.split(',').collect();
            let number = |at: usize| fields[at].parse::<f32>().unwrap();
            Row {
                kind: fields[0].to_owned(),
                frame: fields[1].parse().unwrap(),
                at: [number(3), number(4)],
                found: fields[5] == "1",
                back: number(6),
            }
        });
        Self { frames: frames.collect(), rows: rows.collect() }
    }

    /// The points of one kind and frame, in order.
    fn points(&self, kind: &str, frame: usize) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.kind == kind && row.frame == frame).collect()
    }
}

/// How far our tracks are from OpenCV's, in pixels, ascending, and how many of those that OpenCV finds sure we lose.
struct Agreement {
    apart: Vec<f32>,
    lost: usize,
}

impl Agreement {
    fn part(&self, part: f64) -> f32 {
        self.apart[((self.apart.len() - 1) as f64 * part) as usize]
    }

    fn within(&self, pixels: f32) -> f64 {
        self.apart.iter().filter(|apart| **apart <= pixels).count() as f64 / (self.apart.len() + self.lost) as f64
    }

    fn say(&self, what: &str) {
        let [median, p95, most] = [0.5, 0.95, 1.0].map(|part| self.part(part));
        let (all, within) = (self.apart.len() + self.lost, 100.0 * self.within(0.1));
        println!(
            "{what}: {all} tracks, median {median:.4}, p95 {p95:.4}, max {most:.3} pixels apart; {within:.1} % within 0.1; {} lost",
            self.lost
        );
    }
}

/// Follows OpenCV's corners through every frame; compares those that OpenCV is sure of: found up to here, and the track
/// back leads to within 0.1 pixel of its start.
fn compare(reference: &Reference, kind: &str, warp: Warp, iterations: u32) -> Agreement {
    let shape = TrackerShape::default().with_search(warp, iterations);
    let mut tracker = Tracker::new(shape, CpuMachine::new(&shape)).unwrap();
    let corners: Vec<_> = reference.points("response", 0).iter().map(|row| row.at).collect();
    tracker.track(&reference.frames[0], None).unwrap();
    assert_eq!(tracker.add(&corners).unwrap(), corners.len());
    let mut agreement = Agreement { apart: Vec::new(), lost: 0 };
    let mut sure = vec![true; corners.len()];
    for frame in 1..reference.frames.len() {
        let report = tracker.track(&reference.frames[frame], None).unwrap();
        if kind == "chain" {
            tracker.renew().unwrap();
        }
        for (point, theirs) in reference.points(kind, frame).into_iter().enumerate() {
            sure[point] &= theirs.found && theirs.back < 0.1;
            if !sure[point] {
                continue;
            }
            match report.tracked.iter().find(|feature| feature.id == point as u64) {
                Some(ours) => agreement.apart.push((ours.at[0] - theirs.at[0]).hypot(ours.at[1] - theirs.at[1])),
                None => agreement.lost += 1,
            }
        }
    }
    agreement.apart.sort_unstable_by(f32::total_cmp);
    agreement
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/klt")
}

#[test]
fn tracks_from_a_kept_template_agree_with_opencv() {
    let agreement = compare(&Reference::read(&golden()), "template", Warp::Translation, 10);
    agreement.say("template");
    assert!(agreement.apart.len() > 500 && agreement.lost == 0);
    assert!(agreement.part(0.95) < 0.005 && agreement.part(1.0) < 0.02);
}

#[test]
fn tracks_from_frame_to_frame_agree_with_opencv() {
    let agreement = compare(&Reference::read(&golden()), "chain", Warp::Translation, 10);
    agreement.say("chain");
    assert!(agreement.apart.len() > 500 && agreement.lost == 0);
    // Errors add up from frame to frame, as OpenCV's templates are rounded to 1/32 of a grey level.
    assert!(agreement.part(0.5) < 0.005 && agreement.part(0.95) < 0.03 && agreement.within(0.1) > 0.98);
}

#[test]
fn corner_responses_are_those_of_opencv() {
    let reference = Reference::read(&golden());
    let shape = TrackerShape::default();
    let mut machine = CpuMachine::new(&shape);
    let bytes: Vec<u8> = reference.frames[0].iter().flat_map(|grey| grey.to_le_bytes()).collect();
    machine.put(Region::CornerImage, &bytes).unwrap();
    machine.launch(&shape.respond()).unwrap();
    let mut response = vec![0; 4 * WIDTH * HEIGHT];
    machine.take(Region::Response, &mut response).unwrap();
    let ratios = reference.points("response", 0).into_iter().map(|row| {
        let at = 4 * (row.at[1] as usize * WIDTH + row.at[0] as usize);
        f32::from_le_bytes(response[at..at + 4].try_into().unwrap()) / row.back
    });
    // OpenCV divides its filter (32 of our slopes) by 4 * 5 * 2 * 255, and sums over the 25 pixels where we take the mean.
    let expected = (10_200.0f32 / 32.0).powi(2) / 25.0;
    for (point, ratio) in ratios.enumerate() {
        assert!((ratio / expected - 1.0).abs() < 1e-5, "point {point}: {ratio}");
    }
}

/// All warps and numbers of steps, on the folder that `HEADWAY_KLT_REFERENCE` names, as `reference.py` writes it:
/// `HEADWAY_KLT_REFERENCE=DIR cargo test -p headway-lab --test it klt_reference:: -- --ignored --nocapture`.
#[test]
#[ignore = "a survey, not a test"]
fn survey_of_a_folder() {
    let folder = env::var_os("HEADWAY_KLT_REFERENCE").map_or_else(golden, PathBuf::from);
    let reference = Reference::read(&folder);
    for kind in ["template", "chain"] {
        for warp in [Warp::Translation, Warp::Photometric, Warp::Affine] {
            for iterations in [3, 10, 30] {
                compare(&reference, kind, warp, iterations)
                    .say(&format!("{kind}, {warp:?}, {iterations} steps a level"));
            }
        }
    }
}
