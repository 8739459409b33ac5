//! Runs a workload that was made in code, in virtual time, and says whether every deadline held.

use headway::run::{Backend, RunOptions, run};
use headway::units::{Bytes, Nanos};
use headway::workload::{Stream, StreamStep, Workload, check};

fn main() -> Result<(), headway::Error> {
    let steps = vec![StreamStep::into_gpu(), StreamStep::compute("spin"), StreamStep::out_of_gpu()];
    let camera = Stream::new("camera", Bytes(1 << 20), Nanos(2_000_000), Nanos(20_000_000), steps);
    let workload = check(&Workload { streams: vec![camera], ..Workload::new("cameras") })?;

    // `Backend::Emu` runs it with threads and real memory, `Backend::Cuda` on GPUs.
    let out = std::env::temp_dir().join(format!("headway-example-{}", std::process::id()));
    let options = RunOptions {
        backend: Backend::Sim,
        duration: Some(Nanos(100_000_000)),
        out: Some(out.clone()),
        ..RunOptions::default()
    };
    let report = run(&workload, &options, |_| ())?;

    println!("{} packets, deadlines held: {}", report.summary.totals.packets, report.summary.verdict.held);
    println!("log and page are in {}", report.folder.display());
    let _ = std::fs::remove_dir_all(out);
    Ok(())
}
