//! Runs seeds of the broker's simulation: `cargo run --release -p headway-sim --example simulate -- 0..1000 [STEPS]`.

use std::process::ExitCode;

use headway_sim::broker::{BrokerRun, simulate};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let seeds = arguments.next().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let (Some(seeds), Ok(steps)) = (seeds, arguments.next().map_or(Ok(20_000), |text| text.parse())) else {
        eprintln!("usage: simulate FROM..TO [STEPS]");
        return ExitCode::from(2);
    };
    let (mut failed, mut all) = (0u64, BrokerRun::default());
    for seed in seeds {
        match simulate(seed, steps) {
            Ok(run) => all.add(&run),
            Err(violation) => {
                failed += 1;
                println!("{violation}");
            }
        }
    }
    println!("{all:?}, {failed} seeds failed");
    ExitCode::from(u8::from(failed > 0))
}
