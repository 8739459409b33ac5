//! The kernel of the shipped workload `camera` from a PTX file, run by `headway run` on the first GPU, gives the bytes of its CPU form;
//! skipped with the reason where there is no GPU.

#[path = "../../headway-cuda/tests/support/first_gpu.rs"]
mod first_gpu;

use std::fs;

use headway::run::{Backend, RunOptions, run};
use headway::workload;

use self::first_gpu::{say, with_gpu};

const CAMERA: &str = include_str!("../../../workloads/camera.toml");
const PTX: &str = include_str!("../../../workloads/camera/edges.ptx");

const WIDTH: usize = 640;
const HEIGHT: usize = 480;
const PICTURE: usize = WIDTH * HEIGHT;
const PICTURES: usize = 60;

/// The sums of both convolutions of a picture.
fn edges(picture: &[u8]) -> Vec<u8> {
    const ACROSS: [[i32; 3]; 3] = [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]];
    let near = |place: usize, by: usize, most: usize| (place + by).saturating_sub(1).min(most - 1);
    let of = |x: usize, y: usize| {
        let (mut across, mut down) = (0, 0);
        for row in 0..3 {
            for column in 0..3 {
                let pixel = i32::from(picture[near(y, row, HEIGHT) * WIDTH + near(x, column, WIDTH)]);
                across += ACROSS[row][column] * pixel;
                down += ACROSS[column][row] * pixel;
            }
        }
        (across.abs() + down.abs()).min(255) as u8
    };
    (0..PICTURE).map(|at| of(at % WIDTH, at / WIDTH)).collect()
}

#[test]
fn the_kernel_of_a_module_gets_whole_packets_and_leaves_the_bytes_of_its_cpu_form() {
    with_gpu("the_kernel_of_a_module_gets_whole_packets_and_leaves_the_bytes_of_its_cpu_form", |_gpu| {
        let place = tempfile::tempdir().expect("a folder");
        let path = |name: &str| place.path().join(name);
        fs::create_dir(path("camera")).expect("a folder");
        fs::write(path("camera/edges.ptx"), PTX).expect("a file");
        fs::write(path("camera.toml"), CAMERA).expect("a file");
        let input: Vec<u8> =
            (0..PICTURES * PICTURE).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        fs::write(path("input"), &input).expect("a file");
        let options = RunOptions {
            backend: Backend::Cuda,
            machine: Some("h200-x1".to_owned()),
            gpus: Some(1),
            input: Some(path("input")),
            out: Some(path("results")),
            ..RunOptions::default()
        };
        let workload = workload::open(&path("camera.toml")).unwrap_or_else(|error| panic!("{error}"));
        let report = run(&workload, &options, |_| {}).unwrap_or_else(|error| panic!("{error}"));
        let results = fs::read(path("results/streams/camera.bin")).expect("the results");
        assert_eq!(results.len(), input.len());
        for (number, (picture, result)) in input.chunks_exact(PICTURE).zip(results.chunks_exact(PICTURE)).enumerate() {
            assert!(edges(picture) == result, "picture {number} differs");
        }
        let kernel = report.summary.steps.iter().find(|step| step.step == "camera:edges").expect("the kernel's step");
        say(&format!("{}; the kernel took at most {}", report.summary.verdict.text, kernel.took_max));
        Ok(())
    });
}
