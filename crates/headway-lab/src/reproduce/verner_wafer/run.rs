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
use crate::reproduce::{ExperimentSetting, RawFigures, raw_figures};
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
        let mut chosen = run::choose(&options, &workload.value)?;
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

    /// What came of the run of a plan.
    pub(super) fn run(&self, policy: &str) -> RawFigures {
        let response = self.summary.streams.first().and_then(|stream| stream.response);
        let busy = |engine: &str| format!("{:.4}", self.busy(engine));
        raw_figures!("runs", [self.summary.totals], |totals| Columns {
            source: self.source.to_string(),
            policy: policy,
            cameras: self.cameras,
            generations: totals.packets,
            images: totals.packets * u64::from(self.cameras),
            lists: self.counted.lists,
            misses: self.misses(),
            late_windows: totals.late,
            overruns: totals.overruns,
            late_releases: totals.releases_late,
            planted: self.counted.planted,
            found: self.counted.found,
            false_alarms: self.counted.false_alarms,
            response_median_ns: response.map(|response| response.median),
            response_p99_ns: response.and_then(|response| response.p99),
            response_max_ns: response.map(|response| response.max),
            h2d_busy: busy(".h2d"),
            ee_busy: busy(".ee"),
            d2h_busy: busy(".d2h"),
        })
    }

    /// What each step was planned to cost and took at most.
    pub(super) fn steps(&self, policy: &str) -> RawFigures {
        raw_figures!("steps", &self.summary.steps, |step| Columns {
            source: self.source.to_string(),
            policy: policy,
            step: step.step,
            server: step.server,
            jobs: step.jobs,
            planned_ns: step.cost,
            took_max_ns: step.took_max,
            overruns: step.overruns,
            late: step.late,
        })
    }

    /// Every generation.
    pub(super) fn raw(&self, policy: &str) -> RawFigures {
        let name = format!("generations-{policy}");
        raw_figures!(name, self.generations.iter().enumerate(), |(number, (arrival, delivered))| Columns {
            generation: number,
            arrival_ns: arrival,
            delivered_ns: delivered,
            response_ns: delivered.saturating_sub(*arrival),
        })
    }
}
