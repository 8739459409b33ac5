//! Kernels that a workload brings in files of its own: opened beside the workload, planned, simulated, and run on emulated GPUs, without a
//! CPU form and with one.

#[path = "support/lidar.rs"]
mod lidar;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use headway::machine;
use headway::plan::{self, Outcome, PlanOptions};
use headway::run::{Backend, RunOptions, RunReport, run};
use headway::units::Nanos;
use headway::workload::{self, Workload};

const CAMERA: &str = include_str!("../../../workloads/camera.toml");
const PTX: &str = include_str!("../../../workloads/camera/edges.ptx");
const C: &str = include_str!("../../../workloads/camera/edges.c");

const WIDTH: usize = 640;
const HEIGHT: usize = 480;
const PICTURE: usize = WIDTH * HEIGHT;

/// A folder with the workload and its module.
struct Place(tempfile::TempDir);

impl Place {
    fn new(text: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("camera")).unwrap();
        fs::write(place.path("camera/edges.ptx"), PTX).unwrap();
        fs::write(place.path("camera.toml"), text).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn refused(&self) -> String {
        workload::open(&self.path("camera.toml")).unwrap_err().to_string()
    }

    fn run(&self, backend: Backend, input: Option<&[u8]>) -> RunReport {
        let input = input.map(|bytes| {
            fs::write(self.path("input"), bytes).unwrap();
            self.path("input")
        });
        let duration = input.is_none().then_some(Nanos(200_000_000));
        let out = Some(self.path("results"));
        let machine = Some("h200-x1".to_owned());
        let options = RunOptions { backend, machine, input, duration, out, ..RunOptions::default() };
        run(&workload::open(&self.path("camera.toml")).unwrap(), &options, |_| {}).unwrap()
    }

    fn results(&self) -> Vec<u8> {
        fs::read(self.path("results/streams/camera.bin")).unwrap()
    }

    fn page(&self) -> String {
        fs::read_to_string(self.path("results/page.html")).unwrap()
    }
}

/// The camera's workload with a CPU form.
fn with_cpu_form() -> String {
    CAMERA.replace("cost = ", "cpu = { library = \"camera/libedges.so\", function = \"edges\" }, cost = ")
}

/// Builds the CPU form; whether there is a compiler.
fn build(place: &Place) -> bool {
    build_of(place, C)
}

fn build_of(place: &Place, source: &str) -> bool {
    if Command::new("cc").arg("--version").output().is_err() {
        return false;
    }
    fs::write(place.path("camera/edges.c"), source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(place.path("camera/libedges.so"));
    assert!(cc.arg(place.path("camera/edges.c")).status().unwrap().success());
    true
}

/// Pictures of noise, shapes and slopes.
fn pictures(count: usize) -> Vec<u8> {
    let byte = |at: usize| {
        let (x, y, picture) = (at % WIDTH, at / WIDTH % HEIGHT, at / PICTURE);
        match picture % 3 {
            0 => (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3],
            1 => {
                if (x / 40 + y / 30) % 2 == 0 {
                    20
                } else {
                    220
                }
            }
            _ => (x / 3 + y / 2) as u8,
        }
    };
    (0..count * PICTURE).map(byte).collect()
}

/// The sums of both convolutions, written another way than the kernel and its CPU form.
fn edges(pictures: &[u8]) -> Vec<u8> {
    const ACROSS: [[i32; 3]; 3] = [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]];
    let of = |picture: &[u8], x: usize, y: usize| {
        let (mut across, mut down) = (0, 0);
        for (row, dy) in (-1i64..=1).enumerate() {
            for (column, dx) in (-1i64..=1).enumerate() {
                let at = |place: usize, by: i64, most: usize| (place as i64 + by).clamp(0, most as i64 - 1) as usize;
                let pixel = i32::from(picture[at(y, dy, HEIGHT) * WIDTH + at(x, dx, WIDTH)]);
                across += ACROSS[row][column] * pixel;
                down += ACROSS[column][row] * pixel;
            }
        }
        (across.abs() + down.abs()).min(255) as u8
    };
    let each = |picture: &[u8]| -> Vec<u8> { (0..PICTURE).map(|at| of(picture, at % WIDTH, at / WIDTH)).collect() };
    pictures.chunks_exact(PICTURE).flat_map(each).collect()
}

#[test]
fn the_shipped_workload_is_planned_with_its_module() {
    let workload = workload::open(Path::new("../../workloads/camera.toml")).unwrap();
    let machine = machine::open("h200-x1").unwrap();
    let answer = plan::answer(&machine, &workload, PlanOptions::default()).unwrap();
    assert_eq!(answer.plan.verdict.outcome, Outcome::Schedulable);
    assert!(answer.plan.verdict.notes.iter().all(|note| !note.contains("not in this program")));
    assert!(answer.text("").contains("camera:edges"), "{}", answer.text(""));
}

#[test]
fn files_that_are_not_there_or_hold_something_else_are_refused_at_line_and_column() {
    let line = CAMERA.lines().position(|line| line.contains("module")).unwrap() + 1;
    let check = |text: &str, ptx: Option<&str>, at: &str, parts: &[&str]| {
        let place = Place::new(text);
        match ptx {
            Some(ptx) => fs::write(place.path("camera/edges.ptx"), ptx).unwrap(),
            None => fs::remove_file(place.path("camera/edges.ptx")).unwrap(),
        }
        let said = place.refused();
        assert!(said.contains(&format!("camera.toml:{line}:{at}: ")), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    };
    check(CAMERA, None, "26", &["module `", "camera/edges.ptx` cannot be read", "help: name a file with PTX text"]);
    check(
        &CAMERA.replace("\"edges\"", "\"corners\""),
        Some(PTX),
        "54",
        &["`camera/edges.ptx` has no kernel `corners`", "help: it has `edges`;"],
    );
    check(CAMERA, Some("int main() {}"), "26", &["`camera/edges.ptx` holds neither PTX text nor a cubin nor a fatbin"]);
    check(
        &CAMERA.replace(", { u32 = 480 }", ""),
        Some(PTX),
        "104",
        &[
            "`edges` takes parameters of 8, 8, 4, 4 bytes, and `args` are of 8, 8, 4",
            "help: write an argument for each",
        ],
    );
    check(
        &with_cpu_form(),
        Some(PTX),
        "167",
        &["library `", "camera/libedges.so` is not there: No such file", "help: build it, for example `cc -shared"],
    );
}

#[test]
fn a_module_that_is_a_pipe_is_refused_and_nobody_waits_for_its_writer() {
    let place = Place::new(CAMERA);
    let module = place.path("camera/edges.ptx");
    fs::remove_file(&module).unwrap();
    assert!(Command::new("mkfifo").arg(&module).status().unwrap().success());
    assert!(place.refused().contains("camera/edges.ptx` cannot be read: it is a pipe"), "{}", place.refused());
}

#[test]
fn without_a_cost_the_plan_is_refused_with_the_remedy() {
    let place = Place::new(&CAMERA.replace(", cost = \"200 us\"", ""));
    let workload = workload::open(&place.path("camera.toml")).unwrap();
    let machine = machine::open("h200-x1").unwrap();
    let said = plan::make(&machine, &workload, PlanOptions::default()).unwrap_err().to_string();
    assert!(
        said.contains("stream `camera` runs `edges` of `camera/edges.ptx`, and neither the step nor machine"),
        "{said}"
    );
    assert!(said.contains("`cost = \"1.2 ms\"`") && said.contains("`id = \"camera:edges\"`"), "{said}");
}

#[test]
fn a_workload_whose_files_nobody_read_does_not_run() {
    let loaded = workload::parse("camera.toml", CAMERA).unwrap();
    let out = Some(tempfile::tempdir().unwrap().path().join("results"));
    let options = RunOptions { backend: Backend::Sim, out, ..RunOptions::default() };
    let said = run(&loaded, &options, |_| {}).unwrap_err().to_string();
    assert!(
        said.contains("the files of kernel `edges` were not read") && said.contains("open the workload by the name"),
        "{said}"
    );
}

#[test]
fn a_simulation_takes_the_cost_and_says_that_nothing_was_compared() {
    let place = Place::new(CAMERA);
    let report = place.run(Backend::Sim, None);
    let summary = &report.summary;
    assert!(summary.verdict.held, "{}", summary.verdict.text);
    assert_eq!((report.verified, summary.not_compared.as_slice()), (0, &["camera".to_owned()][..]));
    let kernel = summary.steps.iter().find(|step| step.step == "camera:edges").unwrap();
    assert_eq!(kernel.took_max, Nanos(200_000));
    let said = "results not compared: no CPU form (`camera`)";
    assert!(summary.table(100).contains(said), "{}", summary.table(100));
    assert!(
        place.page().contains("<p class=\"remark\" role=\"note\">results not compared: no CPU form (`camera`).</p>")
    );
    assert_eq!(place.results(), vec![0; 7 * PICTURE]);
    assert!(headway::report::replay(&place.path("results")).unwrap().finished);
}

#[test]
fn an_emulated_gpu_takes_the_cost_and_leaves_zeros() {
    let place = Place::new(CAMERA);
    // Two pictures and a bit: the third is filled up with zeros.
    let report = place.run(Backend::Emu, Some(&pictures(3)[..2 * PICTURE + 1000]));
    assert_eq!((report.verified, report.summary.not_compared.len()), (0, 1));
    let kernel = report.summary.steps.iter().find(|step| step.step == "camera:edges").unwrap();
    assert_eq!(kernel.jobs, 3);
    assert!(kernel.took_max >= Nanos(200_000), "{}", kernel.took_max);
    assert_eq!(place.results(), vec![0; 3 * PICTURE]);
    assert!(report.warnings.iter().any(|warning| warning.contains("zeros fill up")), "{:?}", report.warnings);
}

#[test]
fn with_a_cpu_form_the_results_are_made_and_compared() {
    let place = Place::new(&with_cpu_form());
    if !build(&place) {
        eprintln!("skipped: there is no C compiler");
        return;
    }
    let pictures = pictures(4);
    for backend in [Backend::Sim, Backend::Emu] {
        let report = place.run(backend, Some(&pictures));
        assert_eq!((report.verified, report.summary.not_compared.len()), (1, 0), "{backend:?}");
        assert!(place.results() == edges(&pictures), "{backend:?}");
        assert!(!place.page().contains("not compared"));
    }
}

#[test]
fn the_shipped_lidar_is_planned_and_its_cpu_form_tells_ground_from_obstacles() {
    let machine = machine::open("h200-x1").unwrap();
    let shipped = workload::open(Path::new("../../workloads/lidar.toml")).unwrap();
    assert_eq!(plan::make(&machine, &shipped, PlanOptions::default()).unwrap().verdict.outcome, Outcome::Schedulable);
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let cpu = "cpu = { library = \"lidar/libground.so\", function = \"ground\" }, cost = ";
    fs::create_dir(path("lidar")).unwrap();
    fs::write(path("lidar.toml"), lidar::LIDAR.replace("cost = ", cpu)).unwrap();
    fs::write(path("lidar/ground.ptx"), lidar::PTX).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(path("lidar/libground.so"));
    match cc.arg("../../workloads/lidar/ground.c").status() {
        Ok(status) => assert!(status.success()),
        Err(_) => return eprintln!("skipped: there is no C compiler"),
    }
    let ranges = lidar::half_turns(4);
    let expected = lidar::labels(&ranges);
    let count = |label| expected.iter().filter(|of| **of == label).count();
    assert!(count(0) > 1000 && count(1) > 10_000 && count(2) > 10_000, "all three labels are there");
    fs::write(path("input"), &ranges).unwrap();
    let options = RunOptions {
        backend: Backend::Emu,
        machine: Some("h200-x1".to_owned()),
        input: Some(path("input")),
        out: Some(path("results")),
        ..RunOptions::default()
    };
    let report = run(&workload::open(&path("lidar.toml")).unwrap(), &options, |_| {}).unwrap();
    assert_eq!((report.verified, report.summary.not_compared.len()), (1, 0));
    assert!(fs::read(path("results/streams/lidar.bin")).unwrap() == expected);
}

#[test]
fn a_cpu_form_is_called_by_one_thread_at_a_time_with_aligned_addresses_and_a_result_of_zeros() {
    let line = CAMERA.lines().position(|line| line == "[[stream]]").unwrap();
    let stream = with_cpu_form().lines().skip(line).collect::<Vec<_>>().join("\n");
    let others = (1..4).map(|number| stream.replace("\"camera\"", &format!("\"camera{number}\"")));
    let text = format!("{}\n{}", with_cpu_form(), others.collect::<Vec<_>>().join("\n"));
    let place = Place::new(&text.replace("packet = \"307200 B\"", "packet = \"5001 B\""));
    // Two calls at a time would see each other's number.
    let source = "#include <stdint.h>\n#include <string.h>\n#include <unistd.h>\n\
        static volatile int inside;\n\
        void edges(const void *in, void *out, uint64_t bytes) {\n\
            int alone = ++inside == 1, aligned = ((uintptr_t)in | (uintptr_t)out) % 256 == 0;\n\
            usleep(2000);\n\
            unsigned char *result = out;\n\
            int zeros = result[0] == 0 && result[bytes - 1] == 0;\n\
            memset(out, alone && aligned && zeros ? 7 : 1, bytes);\n\
            inside--;\n\
        }\n";
    if !build_of(&place, source) {
        eprintln!("skipped: there is no C compiler");
        return;
    }
    for backend in [Backend::Sim, Backend::Emu] {
        let options = RunOptions {
            backend,
            machine: Some("h200-x4".to_owned()),
            duration: Some(Nanos(200_000_000)),
            out: Some(place.path("results")),
            ..RunOptions::default()
        };
        let report = run(&workload::open(&place.path("camera.toml")).unwrap(), &options, |_| {}).unwrap();
        assert_eq!(report.verified, 4, "{backend:?}");
        let results = place.results();
        assert!(!results.is_empty() && results.iter().all(|byte| *byte == 7), "{backend:?}");
    }
}

#[test]
fn a_cpu_form_that_writes_behind_its_result_is_named() {
    let place = Place::new(&with_cpu_form());
    let source = "#include <stdint.h>\nvoid edges(const void *in, void *out, uint64_t bytes) {\n\
        (void)in; ((unsigned char *)out)[bytes] = 1; }\n";
    if !build_of(&place, source) {
        eprintln!("skipped: there is no C compiler");
        return;
    }
    let workload = workload::open(&place.path("camera.toml")).unwrap();
    for backend in [Backend::Sim, Backend::Emu] {
        let options = RunOptions {
            backend,
            machine: Some("h200-x1".to_owned()),
            duration: Some(Nanos(100_000_000)),
            out: Some(place.path("results")),
            ..RunOptions::default()
        };
        let error = run(&workload, &options, |_| {}).unwrap_err();
        let said = format!("{error}: {}", error.help().unwrap_or_default());
        let causes: Vec<String> = std::iter::successors(std::error::Error::source(&error), |error| error.source())
            .map(ToString::to_string)
            .collect();
        let said = format!("{said} {}", causes.join(": "));
        assert!(
            said.contains("its CPU form `edges` wrote behind the 307200 bytes of its result"),
            "{backend:?}: {said}"
        );
    }
}

#[test]
fn a_cpu_form_that_cannot_be_loaded_is_refused_at_its_place() {
    let place = Place::new(&with_cpu_form().replace("function = \"edges\"", "function = \"corners\""));
    if !build(&place) {
        eprintln!("skipped: there is no C compiler");
        return;
    }
    let workload = workload::open(&place.path("camera.toml")).unwrap();
    let options = RunOptions { backend: Backend::Sim, out: Some(place.path("results")), ..RunOptions::default() };
    let said = run(&workload, &options, |_| {}).unwrap_err().to_string();
    assert!(said.contains("function `corners` of `camera/libedges.so` cannot be loaded"), "{said}");
    assert!(said.contains("void f(const void *in, void *out, uint64_t bytes)"), "{said}");
}

#[test]
fn results_of_another_size_than_packets_are_kept_whole_and_in_order() {
    let text =
        CAMERA.replace("cost = ", "out_bytes = \"1001 B\", cost = ").replace("33 ms", "4 ms").replace("10 ms", "8 ms");
    let place = Place::new(&text);
    let report = place.run(Backend::Sim, Some(&pictures(5)));
    assert!(report.summary.verdict.held, "{}", report.summary.verdict.text);
    assert_eq!(place.results(), vec![0; 5 * 1001]);
}

#[test]
fn a_workload_with_a_module_is_made_in_code() {
    use headway::units::Bytes;
    use headway::workload::{ModuleKernel, Stream, StreamStep, check};
    let mut kernel = ModuleKernel::new("edges.ptx", "edges", [40, 60, 1], [16, 8, 1]);
    kernel.cost = Some(Nanos(200_000));
    kernel.code = Some(PTX.as_bytes().into());
    let steps = vec![StreamStep::into_gpu(), StreamStep::Module(Box::new(kernel)), StreamStep::out_of_gpu()];
    let stream = Stream::new("camera", Bytes(PICTURE as u64), Nanos(33_000_000), Nanos(10_000_000), steps);
    let workload = check(&Workload { streams: vec![stream], ..Workload::new("camera") }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = Some(folder.path().join("results"));
    let options =
        RunOptions { backend: Backend::Sim, duration: Some(Nanos(100_000_000)), out, ..RunOptions::default() };
    assert!(run(&workload, &options, |_| {}).unwrap().summary.verdict.held);
}
