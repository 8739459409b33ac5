//! Asks whether two cameras can be processed in time, and how many of them could.

use headway::units::{Bytes, Nanos};
use headway::workload::{Stream, StreamStep, Workload, check};
use headway::{machine, plan};

/// A frame of 1 MiB every 2 ms, moved in, worked on and moved out within 20 ms.
fn camera(number: usize) -> Stream {
    let steps = vec![StreamStep::into_gpu(), StreamStep::compute("spin"), StreamStep::out_of_gpu()];
    Stream::new(&format!("camera-{number}"), Bytes(1 << 20), Nanos(2_000_000), Nanos(20_000_000), steps)
}

fn plan_for(cameras: usize) -> Result<plan::Plan, headway::Error> {
    let machine = machine::open("h200-x1")?;
    let workload = check(&Workload { streams: (0..cameras).map(camera).collect(), ..Workload::new("cameras") })?;
    plan::make(&machine, &workload, plan::PlanOptions::default())
}

fn main() -> Result<(), headway::Error> {
    let two = plan_for(2)?;
    println!("two cameras: {:?}", two.verdict.outcome);
    for server in &two.servers {
        println!("  {} is used {} %", server.name, server.verdict.utilisation_ppm / 10_000);
    }
    let mut most = 2;
    while plan_for(most + 1)?.verdict.outcome == plan::Outcome::Schedulable {
        most += 1;
    }
    println!("at most: {most}");
    Ok(())
}
