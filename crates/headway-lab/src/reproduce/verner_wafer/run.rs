//! One plan, run, with what came of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headway_core::log;
use headway_core::plan::{PipelineSource, Strategy};
use headway_core::units::Nanos;
use headway_runtime::blocks::output_name;
use headway_runtime::outlet::Outlet;
use headway_trace::summary::{self, RunSummary};
use headway_trace::timeline::Timeline;

use super::Study;
use crate::Error;
use crate::reproduce::{ExperimentSetting, RawFigures};
use headway::keep::Keep;
use headway::run::{self, Ran, RunOptions};
use headway::verify::{self, WaferCounts};

/// Numbers scratch folders of one process.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// What came of a run.
pub(super) struct Figures {
    pub(super) cameras: u32,
    pub(super) source: log::RunSource,
    pub(super) summary: RunSummary,
    pub(super) counted: WaferCounts,
    /// Arrival and delivery of every generation after the epoch.
    pub(super) generations: Vec<(Nanos, Nanos)>,
}

/// Where the runs of an experiment take place.
pub(super) struct Site<'a> {
    pub(super) setting: &'a ExperimentSetting,
    /// The machine file to plan with and to imitate.
    pub(super) machine: String,
    /// How many of its GPUs.
    pub(super) gpus: usize,
}

impl Site<'_> {
    /// Plans `cameras` by `strategy` and runs the plan, accepted or not.
    pub(super) fn run(
        &self,
        study: &Study,
        strategy: Strategy,
        cameras: u32,
        duration: Nanos,
    ) -> Result<Figures, Error> {
        let options = RunOptions {
            backend: self.setting.backend,
            machine: Some(self.machine.clone()),
            gpus: Some(self.gpus),
            strategy: Some(strategy),
            duration: Some(duration),
            seed: Some(study.seed),
            keep: Keep::all(),
            ..RunOptions::default()
        };
        let workload = study.workload(cameras)?;
        let mut chosen = run::choose(&options)?;
        let plan = headway::plan::make(
            &chosen.machine,
            &workload,
            headway_core::plan::planner::PlanOptions { strategy: Some(strategy) },
        )?;
        let plan = Arc::new(plan);
        let outlet = Outlet::create(&scratch())?;
        let Ran { log, .. } = run::execute(&mut chosen, &plan, &workload.value, &options, &outlet, &mut |_| ())?;
        if let Some(why) = log.incomplete() {
            return Err(why.clone().into());
        }
        let Some(PipelineSource::Sharded(planned)) = plan.pipelines.first().map(|pipeline| &pipeline.source) else {
            return Err(headway::Failure::Options("the experiment's workload has a wafer").into());
        };
        let counted = verify::lists(planned, &outlet.path(&output_name("wafer")), &options.interrupt)?;
        let timeline = Timeline::new(&log);
        let since = |time: Nanos| time.saturating_sub(timeline.epoch);
        let generations = timeline.packets(&log).map(|packet| (since(packet.arrival), since(packet.delivered)));
        Ok(Figures {
            cameras,
            source: chosen.source,
            generations: generations.collect(),
            summary: summary::summarize(&log),
            counted,
        })
    }
}

fn scratch() -> PathBuf {
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("headway-wafer-{}-{number}", std::process::id()))
}

/// A folder for a machine file, removed when it is dropped.
pub(super) fn folder() -> Result<Outlet, Error> {
    Ok(Outlet::create(&scratch())?)
}

impl Figures {
    /// Deadlines that did not hold: late or lost generations.
    pub(super) fn misses(&self) -> u64 {
        self.summary.verdict.misses + self.summary.verdict.lost
    }

    /// Every generation came through in time, every defect was found, and nothing else was listed.
    pub(super) fn clean(&self) -> bool {
        self.misses() == 0 && self.whole()
    }

    /// No image was lost, every defect was found, and nothing else was listed.
    pub(super) fn whole(&self) -> bool {
        let WaferCounts { lists, planted, found, false_alarms, first_wrong } = self.counted;
        lists == self.summary.totals.packets && planted == found && false_alarms == 0 && first_wrong.is_none()
    }

    /// The largest share of the span in which an engine whose name ends like this was busy.
    pub(super) fn busy(&self, suffix: &str) -> f64 {
        let engines = self.summary.engines.iter().filter(|engine| engine.name.ends_with(suffix));
        engines.map(|engine| engine.utilisation_ppm).max().unwrap_or(0) as f64 / 1e6
    }

    /// A line of the table of runs.
    pub(super) fn line(&self, policy: &str) -> Vec<String> {
        let response = self.summary.streams.first().and_then(|stream| stream.response);
        let time = |of: fn(summary::Response) -> Option<Nanos>| {
            response.and_then(of).map_or_else(String::new, |time| time.0.to_string())
        };
        let totals = self.summary.totals;
        let counts = [totals.packets, totals.packets * u64::from(self.cameras), self.counted.lists, self.misses()];
        let others = [totals.late, totals.overruns, totals.releases_late];
        let defects = [self.counted.planted, self.counted.found, self.counted.false_alarms];
        let numbers = |values: &[u64]| values.iter().map(u64::to_string).collect::<Vec<_>>();
        let mut line = vec![self.source.to_string(), policy.to_owned(), self.cameras.to_string()];
        line.extend(numbers(&counts));
        line.extend(numbers(&others));
        line.extend(numbers(&defects));
        line.extend([time(|r| Some(r.median)), time(|r| r.p99), time(|r| Some(r.max))]);
        line.extend([".h2d", ".ee", ".d2h"].map(|engine| format!("{:.4}", self.busy(engine))));
        line
    }

    /// What each step was planned to cost and took at most.
    pub(super) fn steps(&self, policy: &str) -> Vec<Vec<String>> {
        let line = |step: &summary::StepSummary| {
            let numbers = [step.jobs, step.cost.0, step.took_max.0, step.overruns, step.late];
            let names = [self.source.to_string(), policy.to_owned(), step.step.clone(), step.server.clone()];
            names.into_iter().chain(numbers.map(|number| number.to_string())).collect()
        };
        self.summary.steps.iter().map(line).collect()
    }

    /// Every generation: number, arrival, delivery.
    pub(super) fn raw(&self, policy: &str) -> RawFigures {
        let line = |(number, (arrival, delivered)): (usize, &(Nanos, Nanos))| {
            let response = delivered.saturating_sub(*arrival);
            vec![number.to_string(), arrival.0.to_string(), delivered.0.to_string(), response.0.to_string()]
        };
        RawFigures {
            name: format!("generations-{policy}"),
            columns: vec!["generation", "arrival_ns", "delivered_ns", "response_ns"],
            lines: self.generations.iter().enumerate().map(line).collect(),
        }
    }
}

/// Columns of [`Figures::line`].
pub(super) const RUNS_COLUMNS: [&str; 19] = [
    "source",
    "policy",
    "cameras",
    "generations",
    "images",
    "lists",
    "misses",
    "late_windows",
    "overruns",
    "late_releases",
    "planted",
    "found",
    "false_alarms",
    "response_median_ns",
    "response_p99_ns",
    "response_max_ns",
    "h2d_busy",
    "ee_busy",
    "d2h_busy",
];

/// Columns of [`Figures::steps`].
pub(super) const STEPS_COLUMNS: [&str; 9] =
    ["source", "policy", "step", "server", "jobs", "planned_ns", "took_max_ns", "overruns", "late"];
