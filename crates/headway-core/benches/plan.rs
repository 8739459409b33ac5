//! How long large plans take on one core, everything included that `headway plan` computes.
//!
//! `cargo bench -p headway-core --bench plan [WHAT]` prints seconds: `messages` (1,000 on four H200, `partitioned`), `streams`
//! (10,000), `combine` (10,000 messages combined by the default search).
#![expect(clippy::disallowed_methods, reason = "a benchmark reads its workload and the time of its thread")]

mod support;

use std::env;
use std::fmt::Write as _;

use headway_core::files::machine;
use headway_core::files::workload::{self, Workload};
use headway_core::plan::Strategy;
use headway_core::plan::planner::{PlanOptions, models, plan};

use support::Draw;

/// Of every octave as many.
fn size(draw: &mut Draw, least: u64, octaves: u64) -> u64 {
    let octave = draw.below(octaves);
    (least << octave) + draw.below(least << octave)
}

fn parsed(text: &str) -> Workload {
    workload::parse("large.toml", text).unwrap_or_else(|error| panic!("{error}")).value
}

/// One block each, between the host and one of four GPUs.
fn messages(count: usize, bytes: u64, octaves: u64) -> Workload {
    let mut draw = Draw(3);
    let mut text = "name = \"messages\"\n".to_owned();
    for number in 0..count {
        let period = [1, 2, 5, 10, 20, 50, 100, 200][draw.below(8) as usize];
        let (gpu, bytes) = (format!("gpu{}", draw.below(4)), size(&mut draw, bytes, octaves));
        let (from, to) = if draw.below(2) == 0 { ("host", gpu.as_str()) } else { (gpu.as_str(), "host") };
        writeln!(
            text,
            "[[message]]\nid = \"m{number}\"\nperiod = \"{period} ms\"\n\
             blocks = [{{ from = \"{from}\", to = \"{to}\", bytes = \"{bytes} B\" }}]"
        )
        .expect("a string takes it");
    }
    parsed(&text)
}

fn streams(count: usize, run: &str) -> Workload {
    let mut draw = Draw(5);
    let mut text = format!("name = \"streams\"\n[run]\n{run}\n");
    for number in 0..count {
        let (packet, period, deadline) =
            (size(&mut draw, 1024, 8), 10_000_000 + draw.below(90_000_000), 50_000_000 + draw.below(450_000_000));
        writeln!(
            text,
            "[[stream]]\nid = \"s{number}\"\npacket = \"{packet} B\"\nperiod = \"{period} ns\"\ndeadline = \"{deadline} ns\"\n\
             steps = [{{ copy = \"host -> gpu\" }}, {{ compute = \"spin\" }}, {{ copy = \"gpu -> host\" }}]"
        )
        .expect("a string takes it");
    }
    parsed(&text)
}

/// Seconds that this thread has computed.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts the time of threads");
    let nanos: u64 =
        text.split_whitespace().next().and_then(|first| first.parse().ok()).expect("it begins with the time");
    nanos as f64 / 1e9
}

fn once(title: &str, workload: &Workload, strategy: Option<Strategy>) {
    let machine = machine::shipped("h200-x4").expect("shipped");
    let start = cpu_seconds();
    let found = plan(&machine, workload, PlanOptions { strategy }).expect("it can be planned");
    let planned = cpu_seconds();
    let answers: Vec<_> = models(&found).into_iter().map(|answer| (answer.outcome, answer.margin_ppm)).collect();
    println!(
        "{title}: {:.2} s to plan, {:.2} s for other models; {:?} {:?} by `{}`, {} pipelines; models {answers:?}",
        planned - start,
        cpu_seconds() - planned,
        found.verdict.outcome,
        found.verdict.margin_ppm,
        found.strategy.name(),
        found.pipelines.len(),
    );
}

fn main() {
    let wanted = |name: &str| {
        let mut named = env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
        named.peek().is_none() || named.any(|argument| argument == name)
    };
    if let Some(file) = env::args().skip(1).find(|argument| argument.ends_with(".toml")) {
        let text = std::fs::read_to_string(&file).expect("the workload can be read");
        once(&file, &parsed(&text), Some(Strategy::Partitioned));
    }
    if wanted("messages") {
        once("100 messages", &messages(100, 16 << 10, 10), Some(Strategy::Partitioned));
        once("1,000 messages", &messages(1_000, 4 << 10, 8), Some(Strategy::Partitioned));
    }
    if wanted("streams") {
        for run in ["", "cycle = \"arrival\"", "grouping = \"each\""] {
            once(&format!("1,000 streams {run}"), &streams(1_000, run), None);
            once(&format!("10,000 streams {run}"), &streams(10_000, run), None);
        }
    }
    if wanted("combine") {
        once("1,000 messages combined", &messages(1_000, 4 << 10, 8), Some(Strategy::Combined));
        once("10,000 messages combined", &messages(10_000, 1 << 10, 7), Some(Strategy::Combined));
    }
}
