//! Runs a plan with the program's own data: a source gives the frames of a camera, and a sink takes what the plan made of them.

use headway::run::{Backend, Program, RunOptions};
use headway::{Error, workload};

const CAMERA: &str = r#"
name = "camera"
run = { duration = "330 ms" }
[[stream]]
id = "camera"
packet = "300 KiB"
period = "33 ms"
deadline = "10 ms"
steps = [{ copy = "host -> gpu" }, { compute = "spin" }, { copy = "gpu -> host" }]
"#;

fn main() -> Result<(), Error> {
    // `Backend::Emu` runs it with threads and real memory, `Backend::Cuda` on GPUs.
    let out = std::env::temp_dir().join(format!("headway-program-{}", std::process::id()));
    let options = RunOptions { backend: Backend::Sim, out: Some(out.clone()), ..RunOptions::default() };
    let workload = workload::parse("camera.toml", CAMERA)?;
    let mut program = Program::open(&workload, &options)?;
    program.source("camera", |packet, frame| {
        frame.fill(packet.packet as u8);
        Ok(())
    })?;
    program.sink("camera", |result, frame| {
        println!("frame {} is back after {}, {} bytes", result.packet, result.response(), frame.len());
        Ok(())
    })?;
    let events = program.events(1000);
    let report = program.run(|_| ())?;
    events.for_each(|event| println!("{event}"));
    println!("{} frames, deadlines held: {}", report.summary.totals.packets, report.summary.verdict.held);
    let _ = std::fs::remove_dir_all(out);
    Ok(())
}
