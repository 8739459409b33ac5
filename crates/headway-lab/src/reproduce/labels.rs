//! Which rows may be called reproduced: a label cannot become stronger unnoticed.

use super::{EXPERIMENTS, Experiment, ExperimentResults, ExperimentSetting, PaperVerdict, quotes};
use headway::run::Backend;

/// The rows that compare a figure of the paper with a figure of ours without a free parameter, by experiment. A `*` stands for
/// the sizes of a table.
const MAY_BE_REPRODUCED: [(&str, &[&str]); 17] = [
    // Statements with a size in them, on devices; the simulation's constants were chosen.
    ("fujii", &["A1", "A2", "C3", "C4"]),
    // Each size by the paper's figures for it.
    ("patil-table1", &["* MiB h2d", "* MiB d2h", "time with pinned memory, average over the paper's sizes"]),
    // How many CUDA streams and which version the paper used is not stated.
    ("patil-table2", &[]),
    // No figures in the paper.
    ("patil-batch", &[]),
    // The paper does not state how many threads and how large buffers it used.
    ("cho-bfs", &[]),
    ("cho-pathfinder", &[]),
    ("cho-queues", &[]),
    // The papers have the test, not figures for random sets.
    ("np-edf", &[]),
    // The work of a frame was fitted to one published mean, and everything follows from it.
    ("gpusync-sim", &[]),
    // 80 MB become 20 MB every 10 ms.
    ("verner-combine", &["asynchronous combining, IV-D"]),
    // The values that the figure shows are not available.
    ("verner-fig2.1", &[]),
    // Deadline, size of the list, time of an image and jitter are ours.
    ("verner-wafer", &[]),
    // The two nodes are stand-ins of ours; on devices the target is ours.
    ("verner-aes", &[]),
    // What the interconnect carries is swept.
    ("verner-sweep", &[]),
    // Not in a paper.
    ("join-leave", &[]),
    // Other hardware, another load, and targets of ours.
    ("gpusync-gpu", &[]),
    // Not in a paper.
    ("who-waits", &[]),
];

fn may_be_reproduced(experiment: &str, what: &str) -> bool {
    let (_, rows) = MAY_BE_REPRODUCED.iter().find(|(name, _)| *name == experiment).expect("every experiment is listed");
    rows.iter().any(|row| match row.strip_prefix('*') {
        Some(rest) => what.strip_suffix(rest).is_some_and(|size| size.parse::<u32>().is_ok()),
        None => what == *row,
    })
}

pub(super) fn judged(outcome: &ExperimentResults) {
    for row in &outcome.rows {
        assert_eq!(quotes::invented(outcome.experiment, &row.paper), [""; 0], "{}: {row:?}", outcome.experiment);
        assert!(!row.why.is_empty() && !row.paper.text.is_empty(), "{}: {row:?}", outcome.experiment);
        for section in row.paper.section.split("; ").filter(|section| !section.is_empty()) {
            assert!(
                quotes::of(outcome.experiment).iter().any(|(at, _)| *at == section),
                "no quote of {section}: {row:?}"
            );
        }
    }
    for row in outcome.rows.iter().filter(|row| row.verdict == PaperVerdict::Reproduced) {
        assert!(may_be_reproduced(outcome.experiment, &row.what), "{}: {row:?}", outcome.experiment);
    }
}

fn made(experiment: &Experiment, backend: Backend) -> ExperimentResults {
    let setting = ExperimentSetting { backend, quick: true, ..ExperimentSetting::default() };
    let outcome = experiment.run(&setting).unwrap_or_else(|error| panic!("{}: {error}", experiment.name));
    judged(&outcome);
    outcome
}

#[test]
fn every_experiment_is_listed() {
    let listed = MAY_BE_REPRODUCED.map(|(name, _)| name);
    assert_eq!(listed.to_vec(), EXPERIMENTS.iter().map(|experiment| experiment.name).collect::<Vec<_>>());
}

#[test]
fn only_listed_rows_of_simulations_are_called_reproduced() {
    // `gpusync-sim` takes as long as all others: its own test judges its rows.
    let is_simulated = |experiment: &&Experiment| experiment.runs_on(Backend::Sim) && experiment.name != "gpusync-sim";
    for experiment in EXPERIMENTS.iter().filter(is_simulated) {
        let outcome = made(experiment, Backend::Sim);
        let count = outcome.rows.iter().filter(|row| row.verdict == PaperVerdict::Reproduced).count();
        assert_eq!(count, usize::from(experiment.name == "verner-combine"), "{}", experiment.name);
    }
}

#[test]
fn nothing_is_called_reproduced_on_emulated_devices() {
    for experiment in EXPERIMENTS.iter().filter(|experiment| {
        ["fujii", "patil-table1", "patil-table2", "patil-batch", "cho-bfs", "cho-queues", "verner-fig2.1"]
            .contains(&experiment.name)
    }) {
        let outcome = made(experiment, Backend::Emu);
        assert!(outcome.rows.iter().all(|row| row.verdict != PaperVerdict::Reproduced), "{:?}", outcome.rows);
        assert!(!outcome.rows.is_empty());
    }
}
