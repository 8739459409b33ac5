//! Verner, Mendelson, Schuster 2014: two blocks on one interconnect, streams on two nodes, flows that join and leave.

mod aes;
mod curves;
mod joins;
mod streams;
mod sweep;

use crate::simulation::verner::histories::{Tally, history};
use headway_core::files::machine::{self, Machine};
use headway_core::interconnect::{BatchBlock, BatchCompletion, Network};
use headway_core::units::{Bytes, Nanos};

pub(super) use self::sweep::run as sweep;
use super::{ExperimentResults, ExperimentSetting, PaperRow, PaperVerdict, RawFigures, raw_figures, said, silent};
use crate::Error;
use headway::cores::on_all_cores;
use headway::run::Backend;
use headway_measure::plot::{Figure, PlotLine};

/// Application 2: in simulation both stand-ins and twelve workloads, on devices one workload with real bytes.
pub(super) fn aes(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    match setting.backend {
        Backend::Emu | Backend::Cuda => streams::run(setting),
        Backend::Sim | Backend::Auto => aes::run(setting),
    }
}

/// A machine that is part of the program.
fn shipped(name: &str) -> Machine {
    machine::shipped(name).expect("the experiment's machines are shipped")
}

fn outcome(
    experiment: &'static str,
    machine: String,
    setting: &ExperimentSetting,
    rows: Vec<PaperRow>,
) -> ExperimentResults {
    ExperimentResults { rows, ..ExperimentResults::new(experiment, "sim", machine, setting.seed) }
}

/// Figure II.1: 128 MB CPU -> GPU0 and 64 MB CPU0 -> GPU2 at once.
pub(super) fn figure_2_1(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    match setting.backend {
        Backend::Emu | Backend::Cuda => curves::run(setting),
        Backend::Auto | Backend::Sim => figure_2_1_simulated(setting),
    }
}

fn figure_2_1_simulated(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    const NAMES: [&str; 2] = ["128 MB to gpu0", "64 MB to gpu2"];
    let machine = shipped("tyan-ft72b7015");
    let network = Network::new(&machine);
    let block = |to: &str, megabytes: u64| {
        let ends = machine.endpoint("cpu0").zip(machine.endpoint(to));
        let route = ends.and_then(|(from, to)| machine.route(from, to)).expect("the shipped machine has this route");
        BatchBlock { route, bytes: Bytes(megabytes * 1_000_000) }
    };
    let blocks = [block("gpu0", 128), block("gpu2", 64)];
    let moves = "every route of the shipped machine has a rate";
    let concurrent = network.completion(&blocks).expect(moves);
    let serial = network.serial(&blocks).expect(moves);
    let mut lines = NAMES.map(|name| PlotLine::new(name, Vec::new()));
    let mut table = RawFigures::default();
    for interval in &concurrent.intervals {
        for (at, share) in &interval.active {
            let [from, to] = [interval.from, interval.to].map(|time| time.0 as f64 / 1e6);
            let rate = share.rate.0 as f64 / 1e9;
            lines[*at].points.extend([(from, rate), (to, rate)]);
        }
        table.add(raw_figures!("rates", &interval.active, |(at, share)| Columns {
            block: NAMES[*at],
            from_ns: interval.from,
            to_ns: interval.to,
            rate_bytes_per_s: share.rate.0,
            limited_by: machine.capacities[share.limited_by.at()].id,
        }));
    }
    let rows = figure_2_1_rows(&lines, &concurrent, serial);
    let mut outcome = outcome("verner-fig2.1", format!("{} {}", machine.name, machine.hash), setting, rows);
    outcome.tables = vec![table];
    let figure = Figure::new("Figure II.1: rates of two blocks", "sim", ["ms", "GB/s"], lines.to_vec());
    outcome.figures = vec![("rates".into(), figure)];
    outcome.notes = vec!["The values drawn in the figure are not available; Table I gives the rates.".into()];
    Ok(outcome)
}

/// The rates of both blocks and the time of all of it.
fn figure_2_1_rows(lines: &[PlotLine; 2], concurrent: &BatchCompletion, serial: Nanos) -> Vec<PaperRow> {
    let rate = |line: usize, point: usize| lines[line].points.get(point).map_or(0.0, |point| point.1);
    let aggregate = (rate(0, 0) + rate(1, 0), rate(0, lines[0].points.len() - 1));
    vec![
        PaperRow {
            what: "both blocks share the processor interconnect".into(),
            paper: said(
                "II-A; Table I",
                "when two GPUs on different PCIe buses are fed, the bottleneck is the processor interconnect, which carries 9.6 GB/s",
            ),
            ours: format!("{:.1} + {:.1} GB/s, limited by its 9.6", rate(0, 0), rate(1, 0)),
            verdict: PaperVerdict::own((rate(0, 0) - 4.8).abs() < 0.01 && (rate(1, 0) - 4.8).abs() < 0.01),
            why: "the rates drawn in the figure are not available; half of 9.6 GB/s each is what equal shares give"
                .into(),
        },
        PaperRow {
            what: "the shorter block ends".into(),
            paper: said("II-A", "the aggregate bandwidth decreases when the shorter transfer completes"),
            ours: format!("{:.1} GB/s together, {:.1} afterwards", aggregate.0, aggregate.1),
            verdict: PaperVerdict::own(aggregate.1 < aggregate.0),
            why: "the statement has no figure; the rate afterwards must be lower".into(),
        },
        PaperRow {
            what: "time of both blocks".into(),
            paper: said(
                "II-A; Table I",
                "128 MB and 64 MB at once over links of 8 GB/s and 9.6 GB/s together; the time is not stated",
            ),
            ours: format!(
                "{} at once ({} for the shorter), {serial} one after the other",
                concurrent.finish, concurrent.blocks[1]
            ),
            verdict: PaperVerdict::own(
                concurrent.finish.0.abs_diff(21_333_334) <= 2 && serial.0.abs_diff(24_000_000) <= 2,
            ),
            why: "by hand from the rates of Table I: 21.33 ms at once and 24 ms one after the other".into(),
        },
    ]
}

/// Histories of the full experiment, and of the quick one.
const HISTORIES: (u64, u64) = (100_000, 500);
const JOIN_MACHINES: &str = "verner-r1, verner-r2";
/// What there is so far is kept each time that so many were made.
const KEPT_EVERY: u64 = 250;
/// Joins and leaves of each.
const CHANGES: u32 = 24;

/// Random joins and leaves: no accepted flow misses.
pub(super) fn join_leave(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    if matches!(setting.backend, Backend::Emu | Backend::Cuda) {
        return joins::run(setting);
    }
    let count = if setting.quick { HISTORIES.1 } else { HISTORIES.0 };
    let machines = [shipped("verner-r1"), shipped("verner-r2")];
    let mut totals = [Tally::default(); 2];
    for from in (0..count).step_by(KEPT_EVERY as usize) {
        let pieces = KEPT_EVERY.min(count - from) as usize;
        let made: Result<Vec<Tally>, Error> = on_all_cores(pieces, |piece| {
            let number = from + piece as u64;
            let seed = setting.seed.wrapping_mul(1 << 32).wrapping_add(number);
            Ok(history(&machines[(number % 2) as usize], seed, CHANGES))
        });
        for (number, tally) in (from..).zip(made?) {
            totals[(number % 2) as usize].add(&tally);
        }
        setting.keep("join-leave", "sim", JOIN_MACHINES, vec![tallies(&machines, &totals)]);
    }
    let mut total = totals[0];
    total.add(&totals[1]);
    let joined: u64 = total.joins.iter().sum();
    let busy = total.busy.0 as f64 / (total.busy.1.max(1)) as f64 * 100.0;
    let rows = vec![PaperRow {
        what: "flows join and leave a running node".into(),
        paper: silent("not treated: streams are known in advance"),
        ours: format!(
            "{} histories of {CHANGES} changes: {joined} joins accepted ({} grew a block, {} alone, {} combined; {} while a \
             leaver's capacity was not back), {} refused, {} leaves; {} jobs, {} misses, least slack {} ns, server busy {busy:.0} %",
            total.histories,
            total.joins[0],
            total.joins[1],
            total.joins[2],
            total.joins_beside_leavers,
            total.refused,
            total.leaves,
            total.jobs,
            total.misses,
            total.slack_min.unwrap_or(0),
        ),
        verdict: PaperVerdict::own(total.misses == 0 && joined > 0),
        why: "beyond the paper: no flow that was let in may miss a deadline in any history".into(),
    }];
    let mut outcome = outcome("join-leave", JOIN_MACHINES.to_owned(), setting, rows);
    outcome.tables = vec![tallies(&machines, &totals)];
    outcome.notes = vec![
        "Costs of jobs are drawn between nothing and the worst case, half of them the worst case; a third of the changes \
         come at once. Capacity of a leaver returns at the first idle instant after its last deadline: returning it at the \
         deadline itself would let others miss."
            .into(),
    ];
    Ok(outcome)
}

fn tallies(machines: &[Machine], totals: &[Tally]) -> RawFigures {
    raw_figures!("histories", machines.iter().zip(totals), |(machine, tally)| {
        let [grown, alone, combined] = tally.joins;
        Columns {
            machine: machine.name,
            histories: tally.histories,
            grown: grown,
            alone: alone,
            combined: combined,
            refused: tally.refused,
            leaves: tally.leaves,
            jobs: tally.jobs,
            misses: tally.misses,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{StreamSetting, quotes};
    use headway_core::plan::Strategy;

    fn quick() -> ExperimentSetting {
        ExperimentSetting { backend: Backend::Sim, quick: true, ..ExperimentSetting::default() }
    }

    fn all_but_the_incomparable_hold(outcome: &ExperimentResults) {
        let broken: Vec<_> = outcome.rows.iter().filter(|row| row.verdict == PaperVerdict::NotReproduced).collect();
        assert!(broken.is_empty(), "{broken:?}");
        let folder = tempfile::tempdir().unwrap();
        outcome.write(folder.path()).unwrap();
        assert!(std::fs::read_to_string(folder.path().join("summary.md")).unwrap().contains("Source `sim`"));
    }

    #[test]
    fn figure_2_1_takes_21_33_ms_and_24_one_after_the_other() {
        let outcome = figure_2_1(&quick()).unwrap();
        all_but_the_incomparable_hold(&outcome);
        assert_eq!(outcome.rows.len(), 3);
        assert_eq!(outcome.tables[0].lines.len(), 3);
    }

    #[test]
    fn no_history_of_joins_and_leaves_has_a_miss() {
        all_but_the_incomparable_hold(&join_leave(&quick()).unwrap());
    }

    #[test]
    fn the_paper_s_gains_lie_between_those_of_the_two_stand_ins() {
        let outcome = aes(&quick()).unwrap();
        all_but_the_incomparable_hold(&outcome);
        // Four nodes, both readings; with overheads one reading.
        assert_eq!(outcome.tables[0].lines.len(), (4 * 2 + 4) * 12 * 5);
        // On a node with a limit for each direction the policies are apart, whatever the workload.
        let margins = &outcome.tables[2].lines;
        assert_eq!(margins.len(), 4 * 12);
        for line in margins.iter().filter(|line| line[0].starts_with("verner-two-way")) {
            let [serial, lockstep, combined] = [3, 4, 5].map(|at| line[at].parse::<u64>().unwrap());
            assert!(1_500_000 < serial && serial < lockstep && lockstep < combined, "{line:?}");
        }
    }

    #[test]
    fn several_workloads_are_planned_and_run_one_after_the_other() {
        let (workloads, policies) = (vec![3, 12], vec![Strategy::Partitioned]);
        let streams = StreamSetting { workloads, policies, ..StreamSetting::default() };
        let (gpus, duration) = (Some(2), Some(Nanos(100_000_000)));
        let outcome = aes(&ExperimentSetting { backend: Backend::Emu, gpus, duration, streams, ..quick() }).unwrap();
        let what: Vec<&str> = outcome.rows.iter().map(|row| row.what.as_str()).collect();
        assert_eq!(what.len(), 4, "{what:?}");
        assert!(what[1].starts_with("workload 3 ") && what[2].starts_with("workload 12 "), "{what:?}");
        for row in &outcome.rows {
            assert_eq!(quotes::invented("verner-aes", &row.paper), [""; 0], "{row:?}");
            assert!(!row.ours.contains("did not start") && !row.ours.contains("it failed"), "{row:?}");
        }
        // Bytes do not depend on how fast anything is.
        assert_eq!(outcome.rows[3].verdict, PaperVerdict::OwnCheck, "{:?}", outcome.rows[3]);
        let plans = outcome.tables.iter().find(|table| table.name == "plans").unwrap();
        let workloads: Vec<&str> = plans.lines.iter().map(|line| line[0].as_str()).collect();
        assert_eq!(workloads, ["3", "12"]);
    }

    #[test]
    fn the_sweep_crosses_both_figures_of_the_paper() {
        all_but_the_incomparable_hold(&sweep(&quick()).unwrap());
    }
}
