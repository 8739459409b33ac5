//! On devices: the costs are measured, the plans are made with them, and the same plans run.

use headway_core::files::machine::{self, Machine};
use headway_core::units::Nanos;

use super::run::{Figures, Site, folder};
use super::{CAMERAS_MAX, GAIN, Most, PERIOD, POLICIES, Study};
use crate::Error;
use crate::reproduce::site::with_causes;
use crate::reproduce::{
    ExperimentResults, ExperimentSetting, PaperRow, PaperVerdict, RawFigures, raw_figures, said, silent,
};
use headway::run::{self, Backend, Chosen, RunOptions};
use headway::workload::Workload;
use headway_measure::sample::Effort;
use headway_measure::wafer::{COLUMNS, SHAPE, Size, WaferCalibration, calibrate};

/// How long each plan runs, and a run of the search for the limit.
const DURATION: Nanos = Nanos(20_000_000_000);
const PROBE: Nanos = Nanos(1_000_000_000);
/// Runs of the search for one limit.
const PROBES_MAX: u32 = 12;
/// Where it begins at the least.
const FIRST_PROBE: u32 = 8;

/// What is different on a device whose kernels run on the CPU.
struct Scale {
    study: Study,
    size: Size,
    duration: Nanos,
    /// Cameras at most.
    limit: u32,
    /// Whether the limits are sought by runs too.
    search: bool,
}

impl Scale {
    fn of(setting: &ExperimentSetting) -> Self {
        let effort = |n, time| Effort { warm_up: 3, n_min: n, n_max: 300, time: Nanos(time) };
        if setting.backend == Backend::Emu {
            let study = Study {
                period: Nanos(40_000_000),
                width: 80,
                height: 60,
                pitch: 20,
                operations: 16,
                ring: 6,
                ..Study::of_paper("host", setting.seed)
            };
            let size = Size { images: 2, effort: effort(3, 1_000_000), fixed: true };
            return Self { study, size, duration: Nanos(400_000_000), limit: 6, search: false };
        }
        let study = Study::of_paper("host", setting.seed);
        let (n, time) = if setting.quick { (30, 20_000_000) } else { (200, 300_000_000) };
        let size = Size { images: 40, effort: effort(n, time), fixed: false };
        let duration = if setting.quick { PROBE } else { DURATION };
        Self { study, size, duration, limit: CAMERAS_MAX, search: !setting.quick }
    }
}

/// What came of one policy.
struct Policy {
    name: &'static str,
    most: Most,
    /// The most cameras if nothing were ever noticed late: what the overlap alone gives. Not run.
    without_jitter: u32,
    figures: Option<Result<Figures, Error>>,
    /// The most cameras without a miss, sought by runs.
    limit: Option<u32>,
}

pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let setting = ExperimentSetting {
        backend: if setting.backend == Backend::Emu { Backend::Emu } else { Backend::Cuda },
        ..setting.clone()
    };
    let Scale { study, size, duration, limit, search } = Scale::of(&setting);
    let duration = setting.duration.unwrap_or(duration);
    // The emulated node needs as many GPUs in its machine file as are asked for.
    let several = setting.backend == Backend::Emu && setting.gpus.is_some_and(|gpus| gpus > 1);
    let named = setting.machine.clone().or_else(|| several.then(|| "h200-x4".to_owned()));
    let options = RunOptions { backend: setting.backend, machine: named, gpus: setting.gpus, ..RunOptions::default() };
    let Chosen { source, machine, devices, mut warnings } = run::choose(&options, &Workload::new("calibration"))?;
    let described = devices.iter().map(|device| device.description().name.clone()).collect::<Vec<_>>().join(", ");
    let calibration = calibrate(devices, &study.images(), size)?;
    let study = Study { operations: calibration.operations, ..study };
    let (kept, file) = (folder()?, "machine.toml");
    let machine = calibrated(machine, &calibration);
    kept.write(file, machine::write(&machine, &["Kernel costs of this run."]).as_bytes())?;
    let path = kept.path(file).display().to_string();
    let site = Site { setting: &setting, gpus: machine.gpus().count(), machine: path };
    let mut punctual = machine.clone();
    if let Some(calibration) = &mut punctual.calibration {
        calibration.jitter = Nanos::ZERO;
    }
    let jitter = jitter_of(&machine);
    warnings.push(match &setting.machine {
        Some(file) => format!("Jitter that each step is planned with: {jitter}, as `{file}` says."),
        None => {
            format!("Jitter that each step is planned with: {jitter}, of a shipped machine file and not of this node.")
        }
    });
    let mut policies = Vec::new();
    for (strategy, name) in POLICIES {
        let without_jitter = study.most(&punctual, strategy, limit)?.cameras();
        let most = study.most(&machine, strategy, limit)?;
        let figures = match most.cameras() {
            0 => None,
            cameras => Some(site.run(&study, strategy, cameras, duration)),
        };
        policies.push(Policy { name, most, without_jitter, figures, limit: None });
        let label = if source == headway_core::log::RunSource::Cuda { "cuda" } else { "emu" };
        setting.keep("verner-wafer", label, &described, ran(&policies));
    }
    if search {
        for (at, (strategy, _)) in POLICIES.into_iter().enumerate() {
            policies[at].limit = limit_by_runs(policies[at].most.cameras().max(FIRST_PROBE), |cameras| {
                site.run(&study, strategy, cameras, PROBE).is_ok_and(|figures| figures.clean())
            });
        }
    }
    warnings.push(format!(
        "Operations for each pixel: {}, so that an image takes {} on a GPU and {} on its way there: the paper's node has {:.3} \
         and {:.2} of a period at the limit of its pipeline.",
        study.operations, calibration.inspect, calibration.copy, SHAPE.0, SHAPE.1
    ));
    Ok(outcome(&setting, source.to_string() == "cuda", &described, &machine, calibration, &policies, warnings))
}

fn jitter_of(machine: &Machine) -> Nanos {
    machine.calibration.as_ref().map_or(Nanos::ZERO, |calibration| calibration.jitter)
}

fn calibrated(mut machine: Machine, calibration: &WaferCalibration) -> Machine {
    calibration.apply(&mut machine);
    machine
}

/// The most cameras, from `accepted` on, with which a run has no miss: doubling, then halving.
fn limit_by_runs(accepted: u32, clean: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut good, mut bad) = (None, None);
    let mut next = accepted;
    for _ in 0..PROBES_MAX {
        if clean(next) {
            good = Some(next)
        } else {
            bad = Some(next)
        }
        next = match (good, bad) {
            (Some(good), Some(bad)) if bad <= good + (good / 50).max(1) => break,
            (Some(good), Some(bad)) => good + (bad - good) / 2,
            (Some(good), None) if good * 2 <= CAMERAS_MAX => good * 2,
            (None, Some(bad)) if bad > 1 => bad / 2,
            _ => break,
        };
    }
    good
}

fn outcome(
    setting: &ExperimentSetting,
    cuda: bool,
    described: &str,
    machine: &Machine,
    calibration: WaferCalibration,
    policies: &[Policy],
    mut notes: Vec<String>,
) -> ExperimentResults {
    let gpus = machine.gpus().count();
    if gpus == 1 {
        notes.push("One GPU: there is nobody to exchange synopses with, so that step is not there.".into());
    }
    notes.push(
        "The ring of images in pinned memory is filled once and sent again and again, each time with a new number: the writes of a \
         grabber are not there. Every list must carry the number of its generation, and lists of all GPUs must be equal. \
         `misses` counts generations later than five periods after their arrival; `late_windows` counts steps that ended after \
         their window, which a later step can make up for."
            .into(),
    );
    notes.push(
        "Plans count every step with the margin and the jitter of the machine file. One generation at a time pays them in each of \
         its steps within one period, a pipeline in windows of their own: the planned ratio holds both, the ratio without \
         jitter the margin only, and that of the limits found by runs neither."
            .into(),
    );
    for policy in policies {
        match &policy.figures {
            Some(Err(error)) => notes.push(format!("`{}` failed: {}", policy.name, with_causes(error))),
            None => {
                notes.push(format!("`{}` is not accepted with a single camera: {}", policy.name, policy.most.reason()))
            }
            Some(Ok(_)) => {}
        }
    }
    let mut tables =
        vec![RawFigures { name: "calibration".into(), columns: COLUMNS.to_vec(), lines: calibration.lines }];
    tables.extend(ran(policies));
    ExperimentResults {
        rows: rows(policies, &figures_of(policies), cuda),
        notes,
        tables,
        ..ExperimentResults::new(
            "verner-wafer",
            if cuda { "cuda" } else { "emu" },
            format!("{} with {gpus} GPUs and measured kernels ({described})", machine.name),
            setting.seed,
        )
    }
}

/// Plans that were run to their end.
fn figures_of(policies: &[Policy]) -> Vec<(&str, &Figures)> {
    policies.iter().filter_map(|policy| Some((policy.name, policy.figures.as_ref()?.as_ref().ok()?))).collect()
}

/// Plans and runs.
fn ran(policies: &[Policy]) -> Vec<RawFigures> {
    let (mut runs, mut steps, mut raw) = (RawFigures::default(), RawFigures::default(), Vec::new());
    for (name, figures) in figures_of(policies) {
        runs.add(figures.run(name));
        steps.add(figures.steps(name));
        raw.push(figures.raw(name));
    }
    [planned(policies), runs, steps].into_iter().chain(raw).collect()
}

fn planned(policies: &[Policy]) -> RawFigures {
    raw_figures!("policies", policies, |policy| Columns {
        policy: policy.name,
        planned_cameras: policy.most.cameras(),
        planned_without_jitter: policy.without_jitter,
        planned_margin_ppm: policy.most.accepted.as_ref().and_then(|(_, plan)| plan.verdict.margin_ppm),
        cameras_without_miss_by_runs: policy.limit,
        limited_by: policy.most.reason(),
    })
}

/// How many times as many cameras the best pipeline has as one generation at a time; `None` if that takes not even one.
fn ratio(policies: &[Policy], of: impl Fn(&Policy) -> u32) -> Option<f64> {
    let (before, after) = policies.split_at(1);
    let most = after.iter().map(&of).max().unwrap_or(0);
    (of(&before[0]) > 0).then(|| f64::from(most) / f64::from(of(&before[0])))
}

/// The ratio as a line of the table says it, and whether it is the paper's.
fn ratio_text(ratio: Option<f64>) -> (String, Option<bool>) {
    match ratio {
        Some(ratio) => (format!("{ratio:.2}"), Some(ratio >= GAIN - 1e-9)),
        None => ("none: one generation at a time takes not even one camera".to_owned(), None),
    }
}

/// A count of every policy.
fn each(policies: &[Policy], of: impl Fn(&Policy) -> Option<u32>) -> String {
    let named = policies.iter().map(|policy| {
        let count = of(policy).map_or_else(|| "none".to_owned(), |count| count.to_string());
        format!("{} {count}", policy.name)
    });
    named.collect::<Vec<_>>().join(", ")
}

fn rows(policies: &[Policy], ran: &[(&str, &Figures)], cuda: bool) -> Vec<PaperRow> {
    // What depends on how fast things are says nothing on an emulated node.
    let timed = |holds: bool| if cuda { PaperVerdict::own(holds) } else { PaperVerdict::NotComparable };
    // The operations of an image and the jitter that is planned for are ours.
    let fitted = |holds: bool| if cuda { PaperVerdict::fitted(holds) } else { PaperVerdict::NotComparable };
    let compared = |holds: Option<bool>| holds.map_or(PaperVerdict::NotComparable, fitted);
    let planned = |policy: &Policy| policy.most.cameras();
    // What was accepted must have run, and something must have been.
    let all_ran = !ran.is_empty() && policies.iter().all(|policy| !matches!(policy.figures, Some(Err(_))));
    let (planned_ratio, planned_holds) = ratio_text(ratio(policies, planned));
    let (punctual_ratio, punctual_holds) = ratio_text(ratio(policies, |policy| policy.without_jitter));
    let misses = ran.iter().map(|(name, f)| format!("{name} {} of {}", f.misses(), f.summary.totals.packets));
    let mut rows = vec![
        PaperRow {
            what: "cameras planned".into(),
            paper: said("V-A", "up to 15 cameras pipelined, 67 % more than one generation at a time"),
            ours: each(policies, |policy| Some(planned(policy))),
            verdict: timed(all_ran),
            why: "other GPUs: every plan that is accepted must run".into(),
        },
        PaperRow {
            what: "pipelined against one generation at a time, planned".into(),
            paper: said("V-A", "67 % more cameras"),
            ours: planned_ratio,
            verdict: compared(planned_holds),
            why: FITTED.into(),
        },
        PaperRow {
            what: "the same, planned without the jitter of the machine file and not run: what the overlap alone gives"
                .into(),
            paper: said("V-A", "67 % more cameras"),
            ours: format!("{}; {punctual_ratio}", each(policies, |policy| Some(policy.without_jitter))),
            verdict: compared(punctual_holds),
            why: FITTED.into(),
        },
        PaperRow {
            what: "these plans, run: generations later than their deadline".into(),
            paper: said("V-A", "hard deadlines; what ran late is not said"),
            ours: misses.collect::<Vec<_>>().join(", "),
            verdict: timed(all_ran && ran.iter().all(|(_, figures)| figures.misses() == 0)),
            why: "no generation of a plan that was accepted may be late".into(),
        },
    ];
    rows.extend(content(ran, all_ran));
    rows.extend(shape(ran, timed));
    if policies.iter().any(|policy| policy.limit.is_some()) {
        rows.extend(limits(policies, timed, compared));
    }
    rows
}

/// Copies and kernels of the busiest pipelined run, as shares of a period.
fn shape(ran: &[(&str, &Figures)], timed: impl Fn(bool) -> PaperVerdict) -> Option<PaperRow> {
    let pipelined = ran.iter().filter(|(name, _)| *name != "generation");
    let (name, figures) = pipelined.max_by_key(|(_, figures)| figures.cameras)?;
    let (copies, kernels) = (figures.busy(".h2d"), figures.busy(".ee"));
    Some(PaperRow {
        what: "share of a period that copies and kernels take".into(),
        paper: silent("not stated"),
        ours: format!("{copies:.3} : {kernels:.3} with {} cameras ({name}), {:.2}", figures.cameras, copies / kernels),
        verdict: timed((copies / kernels - SHAPE.0 / SHAPE.1).abs() < 0.1),
        why: format!(
            "the operations of an image were set so that copies and kernels keep the shape of our model of the paper's node, {:.3} : \
             {:.2} with 15 cameras",
            SHAPE.0, SHAPE.1
        ),
    })
}

/// What plans promise beside what runs bear.
fn limits(
    policies: &[Policy],
    timed: impl Fn(bool) -> PaperVerdict,
    compared: impl Fn(Option<bool>) -> PaperVerdict,
) -> [PaperRow; 2] {
    let beside = |policy: &Policy| {
        let found = policy.limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        format!("{} {} planned, {found} found", policy.name, policy.most.cameras())
    };
    let kept = policies.iter().all(|policy| policy.limit.is_some_and(|limit| limit >= policy.most.cameras()));
    let (found, holds) = ratio_text(ratio(policies, |policy| policy.limit.unwrap_or(0)));
    [
        PaperRow {
            what: "cameras that plans promise beside those that runs of 1 s bear".into(),
            paper: silent("not stated"),
            ours: policies.iter().map(beside).collect::<Vec<_>>().join("; "),
            verdict: timed(kept),
            why: "a run must bear at least what its plan promises".into(),
        },
        PaperRow {
            what: "most cameras without a miss in runs of 1 s, and their ratio".into(),
            paper: said("V-A", "67 % more cameras"),
            ours: format!("{}; {found}", each(policies, |policy| policy.limit)),
            verdict: compared(holds),
            why: FITTED.into(),
        },
    ]
}

/// Why a ratio of cameras is at most consistent with the paper's.
const FITTED: &str =
    "the operations of an image were set to the shape of the paper's node; the ratio must reach the paper's";

/// Whether every image came through and every defect was found.
fn content(ran: &[(&str, &Figures)], all_ran: bool) -> [PaperRow; 2] {
    let sum = |of: &dyn Fn(&Figures) -> u64| ran.iter().map(|(_, figures)| of(figures)).sum::<u64>();
    [
        PaperRow {
            what: "images".into(),
            paper: said("V-A", "the inspection must keep pace with the production line"),
            ours: format!(
                "{} sent, {} in complete lists",
                sum(&|f| f.summary.totals.packets * u64::from(f.cameras)),
                sum(&|f| f.counted.lists * u64::from(f.cameras))
            ),
            verdict: PaperVerdict::own(all_ran && ran.iter().all(|(_, f)| f.counted.lists == f.summary.totals.packets)),
            why: "every image that was sent must be in a complete list".into(),
        },
        PaperRow {
            what: "defects".into(),
            paper: silent("not stated"),
            ours: format!(
                "{} planted, {} found at their places with their sizes, {} false alarms",
                sum(&|f| f.counted.planted),
                sum(&|f| f.counted.found),
                sum(&|f| f.counted.false_alarms)
            ),
            verdict: PaperVerdict::own(all_ran && ran.iter().all(|(_, figures)| figures.whole())),
            why: "the defects found must be those that were planted".into(),
        },
    ]
}

const _: () = assert!(PERIOD.0 * 900 <= 1_000_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_found_from_below_and_from_above() {
        for (accepted, limit) in [(10, 63), (40, 41), (50, 7), (3, 3)] {
            let found = limit_by_runs(accepted, |cameras| cameras <= limit).unwrap();
            assert!(found <= limit && found + found / 50 + 1 >= limit, "{accepted}: {found} of {limit}");
        }
        assert_eq!(limit_by_runs(4, |_| false), None);
    }
}
