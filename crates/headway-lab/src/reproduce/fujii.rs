//! Fujii 2013: which method when, alone, under load, and two at a time.

mod hardware;

use headway_core::models::transfer::Direction;
use headway_core::units::Nanos;
use headway_sim::fujii::{self, Class, Constants, Finding, Stress, Study};

use super::{Outcome, Row, Setting, Table, Verdict};
use crate::Error;
use crate::plot::{Figure, Line};
use headway::run::Backend;

/// Samples of each simulated point.
const SAMPLES: usize = 1_000;
/// What that many draws may blur in a comparison, in percent.
const SLACK_PERCENT: u64 = 5;

pub(super) fn run(setting: &Setting) -> Result<Outcome, Error> {
    match setting.backend {
        Backend::Sim => Ok(simulated(setting)),
        Backend::Emu | Backend::Cuda => hardware::run(setting),
        Backend::Auto => match headway::gpus::there() {
            Ok(1..) => hardware::run(setting),
            _ => Ok(simulated(setting)),
        },
    }
}

fn simulated(setting: &Setting) -> Outcome {
    let study = Constants::TEXT.simulated(setting.seed, SAMPLES);
    // Every constant of the simulation was chosen.
    let simulated = |finding| row(finding, Verdict::fitted);
    let mut rows: Vec<Row> = fujii::statements(&study, SLACK_PERCENT).into_iter().map(simulated).collect();
    rows.push(preemption());
    Outcome {
        rows,
        notes: vec![format!(
            "The values of the paper's figures are not available; the constants were chosen so that the text holds and \
             carry no other authority. {SAMPLES} samples a point; comparisons allow {SLACK_PERCENT} %."
        )],
        tables: tables(&study),
        figures: figures(&study, "sim"),
        ..Outcome::new("fujii", "sim", "fujii-gtx480 (a reconstruction from the paper's text)".to_owned(), setting.seed)
    }
}

/// Statements that name a size or a ratio. The others name an order only, and the paper's plots are not available.
const WITH_FIGURES: [&str; 4] = ["A1", "A2", "C3", "C4"];

/// The label of a statement that was tested on real memory and real engines.
fn measured(finding: Finding) -> Row {
    let label = if WITH_FIGURES.contains(&finding.id) { Verdict::figure } else { Verdict::own };
    row(finding, label)
}

fn row(finding: Finding, label: fn(bool) -> Verdict) -> Row {
    Row {
        what: finding.id.to_owned(),
        paper: finding.claim.to_owned(),
        ours: finding.evidence,
        verdict: match finding.verdict {
            fujii::Verdict::Holds => label(true),
            fujii::Verdict::Fails => label(false),
            fujii::Verdict::NotMeasured => Verdict::NotComparable,
        },
    }
}

/// D1: how long a more urgent transfer waits behind one that has begun.
fn preemption() -> Row {
    let (c, large) = (Constants::TEXT, headway_core::units::Bytes(16 << 20));
    let wait = |method| c.blocking(method, Direction::D2h, large);
    let (dma, iorw, hub) = (wait(fujii::DMA), wait(fujii::IORW), wait(fujii::HUB));
    let held = iorw < hub && hub < dma;
    Row {
        what: "D1".to_owned(),
        paper: "a started DMA is never preempted, IORW anywhere, a microcontroller between pieces of 256 B".to_owned(),
        ours: format!("behind 16 MiB D2H an urgent transfer waits {dma} (DMA), {iorw} (IORW), {hub} (HUB)"),
        verdict: Verdict::fitted(held),
    }
}

fn word(direction: Direction) -> &'static str {
    if direction == Direction::H2d { "h2d" } else { "d2h" }
}

/// Raw figures of a study, simulated or measured.
pub(super) fn tables(study: &Study) -> Vec<Table> {
    let class = |class| if class == Class::RealTime { "real-time" } else { "normal" };
    let stress = |stress| match stress {
        Stress::Alone => "alone",
        Stress::Cpu => "cpu-load",
        Stress::Memory => "memory-pressure",
        Stress::Pipes => "pipes",
    };
    let singles = study.singles.iter().map(|(s, stat)| {
        let situation = [fujii::name(s.method), word(s.direction), class(s.class), stress(s.stress)];
        let figures = [s.bytes.0, stat.mean.0, stat.max.0].map(|figure| figure.to_string());
        situation.map(str::to_owned).into_iter().chain(figures).collect()
    });
    let pairs = study.pairs.iter().map(|(p, stat)| {
        let situation = [fujii::name(p.methods.0), fujii::name(p.methods.1), word(p.direction)];
        let figures = [p.bytes.0, stat.mean.0, stat.max.0].map(|figure| figure.to_string());
        situation.map(str::to_owned).into_iter().chain(figures).collect()
    });
    vec![
        Table {
            name: "single".into(),
            columns: vec!["method", "direction", "class", "stress", "bytes", "mean_ns", "max_ns"],
            lines: singles.collect(),
        },
        Table {
            name: "pairs".into(),
            columns: vec!["first", "second", "direction", "bytes", "makespan_mean_ns", "makespan_max_ns"],
            lines: pairs.collect(),
        },
    ]
}

/// A figure per direction and situation, like the paper's.
pub(super) fn figures(study: &Study, source: &str) -> Vec<(String, Figure)> {
    let situations = [
        (Class::RealTime, Stress::Alone, "alone"),
        (Class::RealTime, Stress::Cpu, "real-time-cpu-load"),
        (Class::Normal, Stress::Cpu, "normal-cpu-load"),
        (Class::RealTime, Stress::Memory, "memory-pressure"),
        (Class::RealTime, Stress::Pipes, "pipes"),
    ];
    let mut figures = Vec::new();
    for direction in fujii::DIRECTIONS {
        for (class, stress, name) in situations {
            let lines = fujii::METHODS.into_iter().map(|method| {
                let own = study.singles.iter().filter(|(single, _)| {
                    (single.method, single.direction, single.class, single.stress) == (method, direction, class, stress)
                });
                let us = |time: Nanos| time.0 as f64 / 1e3;
                let found: Vec<_> =
                    own.map(|(single, stat)| (single.bytes.0 as f64, us(stat.mean), us(stat.max))).collect();
                let points = found.iter().map(|(bytes, mean, _)| (*bytes, *mean)).collect();
                Line::new(fujii::name(method), points).bars(found)
            });
            let title = format!("{} {name}, mean", word(direction));
            let figure = Figure::new(title, source, ["bytes", "us"], lines.collect()).bars("mean to longest");
            figures.push((format!("{}-{name}", word(direction)), figure));
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_of_the_paper_holds_in_simulation() {
        let setting = Setting { backend: Backend::Sim, quick: false, ..Setting::default() };
        let outcome = run(&setting).unwrap();
        assert_eq!(outcome.rows.len(), 21);
        let broken: Vec<_> = outcome.rows.iter().filter(|row| row.verdict != Verdict::Consistent).collect();
        assert!(broken.is_empty(), "{broken:?}");
        let folder = tempfile::tempdir().unwrap();
        outcome.write(folder.path()).unwrap();
        let summary = std::fs::read_to_string(folder.path().join("summary.md")).unwrap();
        assert!(summary.contains("| A1 |") && summary.contains("Source `sim`"), "{summary}");
        let lines = std::fs::read_to_string(folder.path().join("single.csv")).unwrap().lines().count();
        assert_eq!(lines, 1 + 23 * 2 * 6 * 2 * 4);
    }
}
