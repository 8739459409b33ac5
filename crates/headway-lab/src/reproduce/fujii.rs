//! Fujii 2013: which method when, alone, under load, and two at a time.

mod hardware;

use crate::simulation::fujii::{self, Constants, Stat, StatementResult, Stress, TransferClass, TransferStudy};
use headway_core::models::transfer::Direction;
use headway_core::units::Nanos;

use super::{
    ExperimentResults, ExperimentSetting, LastColumns, PaperRow, PaperVerdict, RawCell, RawFigures, raw_figures, said,
};
use crate::Error;
use headway::run::Backend;
use headway_measure::plot::{Figure, PlotLine};

/// Samples of each simulated point.
const SAMPLES: usize = 1_000;
/// What that many draws may blur in a comparison, in percent.
const SLACK_PERCENT: u64 = 5;

pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    match setting.backend {
        Backend::Sim => Ok(simulated(setting)),
        Backend::Emu | Backend::Cuda => hardware::run(setting),
        Backend::Auto => match headway::gpus::there() {
            Ok(1..) => hardware::run(setting),
            _ => Ok(simulated(setting)),
        },
    }
}

fn simulated(setting: &ExperimentSetting) -> ExperimentResults {
    let study = Constants::TEXT.simulated(setting.seed, SAMPLES);
    // Every constant of the simulation was chosen.
    let chosen =
        "the paper's plots are not available: every constant of the simulation was chosen so that the text holds";
    let simulated = |finding| row(finding, PaperVerdict::fitted, chosen);
    let mut rows: Vec<PaperRow> = fujii::statements(&study, SLACK_PERCENT).into_iter().map(simulated).collect();
    rows.push(preemption());
    ExperimentResults {
        rows,
        notes: vec![format!(
            "The values of the paper's figures are not available; the constants were chosen so that the text holds and \
             carry no other authority. {SAMPLES} samples a point; comparisons allow {SLACK_PERCENT} %."
        )],
        tables: tables(&study),
        figures: figures(&study, "sim"),
        ..ExperimentResults::new(
            "fujii",
            "sim",
            "fujii-gtx480 (a reconstruction from the paper's text)".to_owned(),
            setting.seed,
        )
    }
}

/// Statements that name a size or a ratio. The others name an order only, and the paper's plots are not available.
const WITH_FIGURES: [&str; 4] = ["A1", "A2", "C3", "C4"];

/// The row of a statement that was asked of real memory and real engines.
fn measured(finding: StatementResult, source: &str) -> PaperRow {
    let (label, held): (fn(bool) -> PaperVerdict, _) = if WITH_FIGURES.contains(&finding.id) {
        (PaperVerdict::figure, "every comparison at the sizes that the paper names holds; 5 % are allowed")
    } else {
        (
            PaperVerdict::own,
            "the paper names an order only, and its plots are not available: every comparison of ours holds; 5 % are allowed",
        )
    };
    let mut row = row(finding, label, held);
    if source == "emu" && row.verdict == PaperVerdict::NotReproduced {
        row.why =
            "the rates of an emulated device were chosen by us: what fails on it says nothing of the paper".to_owned();
    }
    row
}

/// What has changed since the paper, and which statements do not hold where it has: the group, the statements, what changed.
pub(super) const CHANGED: [(&str, &[&str], &str); 4] = [
    (
        "engines",
        &["A4", "C2", "C4"],
        "a GPU has an engine for each direction, both as fast as the link and ready within microseconds; the GTX 480's one synchronous engine was 10 \
         times slower out than in, and what made two methods overlap there, one path each, is no longer what limits them",
    ),
    (
        "mapped windows",
        &["A1", "A2", "A6", "C1", "C3", "C5"],
        "the CPU writes to a window of the device with combined stores and reads it a line at a time: a window wins for small copies both ways, \
         and the engine overtakes it at other sizes than in 2013",
    ),
    (
        "drivers",
        &["A7", "B1", "B2", "B3", "B4", "B5", "C7"],
        "a copy is submitted without a system call, and its end is seen by a thread that polls: no task is woken by an interrupt, so a load \
         neither helps a real-time task nor slows a normal one by orders of magnitude, and samples of microseconds vary by more than 5 % by themselves",
    ),
    (
        "stand-ins",
        &["A3", "A5", "C6", "D2"],
        "today's GPUs let no user program their microcontrollers and have no window of 4 MB: a resident kernel of one, one and four blocks and the \
         same mapped window stand for HUB, GPC, GPC4 and MEMWND, and are as good as the methods themselves",
    ),
];

fn row(finding: StatementResult, label: fn(bool) -> PaperVerdict, held: &str) -> PaperRow {
    let verdict = match finding.verdict {
        fujii::StatementVerdict::Holds => label(true),
        fujii::StatementVerdict::Fails => label(false),
        fujii::StatementVerdict::NotMeasured => PaperVerdict::NotComparable,
    };
    let failed = match finding.verdict {
        fujii::StatementVerdict::NotMeasured => {
            "this machine lacks a method, or a class of threads, that the statement is about".to_owned()
        }
        _ => CHANGED
            .iter()
            .find(|(_, ids, _)| ids.contains(&finding.id))
            .map_or_else(String::new, |(group, _, text)| format!("{group}: {text}")),
    };
    PaperRow {
        what: finding.id.to_owned(),
        paper: said(section(finding.id), finding.claim),
        ours: finding.evidence,
        verdict,
        why: verdict.why(held, failed),
    }
}

/// Where the statements stand.
fn section(id: &str) -> &'static str {
    match id.as_bytes().first() {
        Some(b'A') => "IV-A",
        Some(b'B') => "IV-B",
        Some(b'C') => "IV-C",
        _ => "VI",
    }
}

/// D1: how long a more urgent transfer waits behind one that has begun.
fn preemption() -> PaperRow {
    let (c, large) = (Constants::TEXT, headway_core::units::Bytes(16 << 20));
    let wait = |method| c.blocking(method, Direction::D2h, large);
    let (dma, iorw, hub) = (wait(fujii::DMA), wait(fujii::IORW), wait(fujii::HUB));
    let held = iorw < hub && hub < dma;
    PaperRow {
        what: "D1".to_owned(),
        paper: said(
            "III-A; III-B; V",
            "a started DMA is not preempted, IORW fully, a microcontroller partly, between pieces of 256 B",
        ),
        ours: format!("behind 16 MiB D2H an urgent transfer waits {dma} (DMA), {iorw} (IORW), {hub} (HUB)"),
        verdict: PaperVerdict::fitted(held),
        why: "the order of the three follows from the text; how long each takes was chosen".to_owned(),
    }
}

fn word(direction: Direction) -> &'static str {
    if direction == Direction::H2d { "h2d" } else { "d2h" }
}

/// Of pairs they are of makespans.
impl LastColumns for Stat {
    const COLUMNS: &'static [&'static str] = &["mean_ns", "n", "first_ns", "median_ns", "p99_ns", "max_ns"];

    fn cells(&self) -> Vec<String> {
        let Self { n, first, median, mean, p99, max } = self;
        vec![mean.cell(), n.cell(), first.cell(), median.cell(), p99.cell(), max.cell()]
    }
}

/// Raw figures of a study, simulated or measured.
pub(super) fn tables(study: &TransferStudy) -> Vec<RawFigures> {
    let class = |class| if class == TransferClass::RealTime { "real-time" } else { "normal" };
    let stress = |stress| match stress {
        Stress::Alone => "alone",
        Stress::Cpu => "cpu-load",
        Stress::Memory => "memory-pressure",
        Stress::Pipes => "pipes",
        Stress::Together => "together",
    };
    let singles = raw_figures!("single", &study.singles, |(single, stat)| Columns {
        method: fujii::name(single.method),
        direction: word(single.direction),
        class: class(single.class),
        stress: stress(single.stress),
        bytes: single.bytes,
        ..Stat(stat)
    });
    let pairs = raw_figures!("pairs", &study.pairs, |(pair, stat)| Columns {
        first: fujii::name(pair.methods.0),
        second: fujii::name(pair.methods.1),
        direction: word(pair.direction),
        bytes: pair.bytes,
        ..Stat(stat)
    });
    vec![singles, pairs]
}

/// A figure per direction and situation, like the paper's.
pub(super) fn figures(study: &TransferStudy, source: &str) -> Vec<(String, Figure)> {
    let situations = [
        (TransferClass::RealTime, Stress::Alone, "alone"),
        (TransferClass::RealTime, Stress::Cpu, "real-time-cpu-load"),
        (TransferClass::Normal, Stress::Cpu, "normal-cpu-load"),
        (TransferClass::RealTime, Stress::Memory, "memory-pressure"),
        (TransferClass::RealTime, Stress::Pipes, "pipes"),
        (TransferClass::RealTime, Stress::Together, "together"),
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
                PlotLine::new(fujii::name(method), points).bars(found)
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
    fn every_statement_has_one_group_of_what_changed() {
        let study = Constants::TEXT.exact();
        for finding in fujii::statements(&study, 0) {
            let groups = CHANGED.iter().filter(|(_, ids, _)| ids.contains(&finding.id)).count();
            assert_eq!(groups, 1, "{}", finding.id);
            let failed = StatementResult { verdict: fujii::StatementVerdict::Fails, ..finding };
            assert!(measured(failed.clone(), "cuda").why.contains(": "));
            assert!(measured(failed, "emu").why.contains("emulated"));
        }
    }

    #[test]
    fn every_statement_of_the_paper_holds_in_simulation() {
        let setting = ExperimentSetting { backend: Backend::Sim, quick: false, ..ExperimentSetting::default() };
        let outcome = run(&setting).unwrap();
        assert_eq!(outcome.rows.len(), 21);
        let broken: Vec<_> = outcome.rows.iter().filter(|row| row.verdict != PaperVerdict::Consistent).collect();
        assert!(broken.is_empty(), "{broken:?}");
        let folder = tempfile::tempdir().unwrap();
        outcome.write(folder.path()).unwrap();
        let summary = std::fs::read_to_string(folder.path().join("summary.md")).unwrap();
        assert!(summary.contains("| A1 |") && summary.contains("Source `sim`"), "{summary}");
        let lines = std::fs::read_to_string(folder.path().join("single.csv")).unwrap().lines().count();
        assert_eq!(lines, 1 + 23 * 2 * 6 * 2 * 5);
    }
}
