//! The kernels of the shipped workloads `camera` and `lidar` from PTX files, run by `headway run` on the first GPU, give the bytes of their CPU
//! forms; skipped with the reason where there is no GPU.

#[path = "../../headway-cuda/tests/support/first_gpu.rs"]
mod first_gpu;
#[path = "../../headway/tests/support/lidar.rs"]
mod lidar;

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

/// Runs the workload, with one stream of its own name, on the first GPU: its results, and what is to be said.
fn results(name: &str, text: &str, module: &str, ptx: &str, input: &[u8]) -> (Vec<u8>, String) {
    let place = tempfile::tempdir().expect("a folder");
    let path = |name: &str| place.path().join(name);
    fs::create_dir(path(name)).expect("a folder");
    fs::write(path(module), ptx).expect("a file");
    fs::write(path("workload.toml"), text).expect("a file");
    fs::write(path("input"), input).expect("a file");
    let options = RunOptions {
        backend: Backend::Cuda,
        machine: Some("h200-x1".to_owned()),
        gpus: Some(1),
        input: Some(path("input")),
        out: Some(path("results")),
        ..RunOptions::default()
    };
    let workload = workload::open(&path("workload.toml")).unwrap_or_else(|error| panic!("{error}"));
    let report = run(&workload, &options, |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let results = fs::read(path(&format!("results/streams/{name}.bin"))).expect("the results");
    let kernel = report.summary.steps.iter().find(|step| step.step.contains(':')).expect("the kernel's step");
    (results, format!("{}; the kernel took at most {}", report.summary.verdict.text, kernel.took_max))
}

#[test]
fn the_kernel_of_a_module_gets_whole_packets_and_leaves_the_bytes_of_its_cpu_form() {
    with_gpu("the_kernel_of_a_module_gets_whole_packets_and_leaves_the_bytes_of_its_cpu_form", |_gpu| {
        let input: Vec<u8> =
            (0..PICTURES * PICTURE).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let (results, said) = results("camera", CAMERA, "camera/edges.ptx", PTX, &input);
        assert_eq!(results.len(), input.len());
        for (number, (picture, result)) in input.chunks_exact(PICTURE).zip(results.chunks_exact(PICTURE)).enumerate() {
            assert!(edges(picture) == result, "picture {number} differs");
        }
        say(&said);
        Ok(())
    });
}

#[test]
fn a_kernel_whose_results_are_smaller_than_its_packets_tells_ground_from_obstacles() {
    with_gpu("a_kernel_whose_results_are_smaller_than_its_packets_tells_ground_from_obstacles", |_gpu| {
        let input = lidar::half_turns(40);
        let (results, said) = results("lidar", lidar::LIDAR, "lidar/ground.ptx", lidar::PTX, &input);
        assert!(results == lidar::labels(&input), "labels differ");
        say(&said);
        Ok(())
    });
}
