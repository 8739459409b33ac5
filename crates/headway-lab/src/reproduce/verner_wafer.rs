//! Verner, Mendelson, Schuster 2014, V-A: wafers under inspection by several cameras and GPUs, before and after pipelining.
//!
//! Every camera sends an image 900 times per second, all at the same time: a generation. Its way: images to the GPUs, a synopsis
//! of each, the synopses to all other GPUs, the list of defects, the list to the host. The experiment asks the planner for the
//! largest number of cameras under each policy and then runs exactly these plans.

mod device;
mod run;
mod sim;

use headway_core::files::error::Loaded;
use headway_core::files::machine::Machine;
use headway_core::files::workload::Workload;
use headway_core::plan::planner::PlanOptions;
use headway_core::plan::{Outcome as Answer, Plan, Strategy};
use headway_core::units::Nanos;
use headway_kernels::workload;

use super::{ExperimentResults, ExperimentSetting, PaperVerdict};
use crate::Error;
use headway::run::Backend;
use headway_measure::wafer::Images;

/// What is compared, and what tables call it. The first is how wafers were inspected before.
const POLICIES: [(Strategy, &str); 4] = [
    (Strategy::Generation, "generation"),
    (Strategy::Serial, "serial"),
    (Strategy::Combined, "combined"),
    (Strategy::Partitioned, "partitioned"),
];
/// The paper's "67 %": 15 cameras instead of 9.
const GAIN: f64 = 15.0 / 9.0;
/// "900 images per second" of each camera, rounded down.
const PERIOD: Nanos = Nanos(1_111_111);
/// Steps of an image's way.
const STEPS: u64 = 5;
/// More cameras than any node can take.
const CAMERAS_MAX: u32 = 2048;

/// A wafer and how often it is seen.
#[derive(Clone, Copy, Debug)]
struct Study {
    /// The memory that images come from.
    from: &'static str,
    period: Nanos,
    width: u32,
    height: u32,
    pitch: u32,
    operations: u32,
    ring: u32,
    seed: u64,
}

impl Study {
    /// The paper's images.
    const fn of_paper(from: &'static str, seed: u64) -> Self {
        let Images { width, height, pitch, operations, seed } = Images::of_paper(seed);
        Self { from, period: PERIOD, width, height, pitch, operations, ring: 10, seed }
    }

    const fn images(&self) -> Images {
        let Self { width, height, pitch, operations, seed, .. } = *self;
        Images { width, height, pitch, operations, seed }
    }

    /// The workload with so many cameras, as a file would have it.
    fn text(&self, cameras: u32) -> String {
        let Self { from, period, width, height, pitch, operations, ring, seed } = self;
        // Four defects for five cameras: 12 for the paper's 15. A list has room for 255.
        let defects = (cameras * 4 / 5).clamp(4, 200);
        let deadline = Nanos(period.0 * STEPS);
        format!(
            "name = \"verner-wafer\"\n[run]\nseed = {seed}\n[[stream]]\nid = \"wafer\"\nperiod = \"{} ns\"\ndeadline = \"{} ns\"\n\
             wafer = {{ cameras = {cameras}, width = {width}, height = {height}, pitch = {pitch}, defects = {defects}, \
             operations = {operations}, ring = {ring} }}\n\
             steps = [{{ copy = \"{from} -> gpu\" }}, {{ compute = \"inspect\" }}, {{ exchange = \"gpus\" }}, \
             {{ compute = \"inspect-merge\" }}, {{ copy = \"gpu -> host\" }}]\n",
            period.0, deadline.0
        )
    }

    fn workload(&self, cameras: u32) -> Result<Loaded<Workload>, Error> {
        Ok(workload::parse("verner-wafer.toml", &self.text(cameras))?)
    }

    fn plan(&self, machine: &Machine, strategy: Strategy, cameras: u32) -> Result<Plan, Error> {
        Ok(headway::plan::make(machine, &self.workload(cameras)?, PlanOptions { strategy: Some(strategy) })?)
    }

    /// The most cameras that a policy is accepted with.
    fn most(&self, machine: &Machine, strategy: Strategy, limit: u32) -> Result<Most, Error> {
        let mut accepted = None;
        for cameras in 1..=limit {
            let plan = self.plan(machine, strategy, cameras)?;
            if plan.verdict.outcome != Answer::Schedulable {
                return Ok(Most { accepted, refused: Some(plan) });
            }
            accepted = Some((cameras, plan));
        }
        Ok(Most { accepted, refused: None })
    }
}

/// What the planner says of a policy.
struct Most {
    /// The most cameras, and their plan; `None` = not even one.
    accepted: Option<(u32, Plan)>,
    /// The plan with one camera more; `None` = nobody asked.
    refused: Option<Plan>,
}

impl Most {
    fn cameras(&self) -> u32 {
        self.accepted.as_ref().map_or(0, |(cameras, _)| *cameras)
    }

    /// Why not one camera more.
    fn reason(&self) -> String {
        let Some(plan) = &self.refused else { return "nobody asked for more".to_owned() };
        let worst = plan.servers.iter().max_by_key(|server| server.verdict.utilisation_ppm);
        worst.map_or_else(String::new, |server| {
            format!("{} would be used {:.1} %", server.name, server.verdict.utilisation_ppm as f64 / 1e4)
        })
    }
}

pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let cuda = || headway::gpus::there().is_ok_and(|gpus| gpus > 0);
    match setting.backend {
        Backend::Sim => sim::run(setting),
        Backend::Auto if !cuda() => sim::run(setting),
        Backend::Emu | Backend::Cuda | Backend::Auto => device::run(setting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_core::files::machine;

    #[test]
    fn nine_cameras_before_and_fifteen_after_on_the_papers_node() {
        let node = machine::shipped("wafer-k20m").unwrap();
        let study = Study::of_paper("grabber", 1);
        let most = POLICIES.map(|(strategy, _)| study.most(&node, strategy, 20).unwrap().cameras());
        assert_eq!(most, [9, 15, 15, 15]);
    }

    #[test]
    fn the_simulation_agrees_with_the_paper_and_finds_every_defect() {
        let setting = ExperimentSetting { backend: Backend::Sim, quick: true, seed: 1, ..ExperimentSetting::default() };
        let outcome = run(&setting).unwrap();
        let broken: Vec<_> = outcome
            .rows
            .iter()
            .filter(|row| matches!(row.verdict, PaperVerdict::NotReproduced | PaperVerdict::NotComparable))
            .collect();
        assert!(broken.is_empty(), "{broken:?}");
        assert!(outcome.notes.iter().any(|note| note.contains("overlap")));
        let sweep = outcome.tables.iter().find(|table| table.name == "sweep").unwrap();
        assert_eq!(sweep.lines.len(), 11);
        let column = |at: usize| sweep.lines.iter().map(|line| line[at].parse::<u32>().unwrap()).collect::<Vec<_>>();
        // Longer images, fewer cameras; and the pipeline is never worse.
        assert!(column(1).is_sorted_by(|more, less| more >= less) && column(3).is_sorted_by(|more, less| more >= less));
        assert!(column(1).iter().zip(column(3)).all(|(before, after)| *before < after));
    }

    #[test]
    fn the_shipped_workload_runs_on_the_simulated_node_and_its_lists_are_compared() {
        let text = include_str!("../../../../workloads/wafer.toml");
        let workload = workload::parse("wafer.toml", text).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let options = headway::run::RunOptions {
            backend: Backend::Sim,
            duration: Some(Nanos(15 * PERIOD.0)),
            out: Some(folder.path().join("results")),
            ..headway::run::RunOptions::default()
        };
        let report = headway::run::run(&workload, &options, |_| ()).unwrap();
        assert!(report.summary.verdict.held, "{}", report.summary.verdict.text);
        assert_eq!((report.verified, report.summary.totals.packets), (1, 15));
        let lists = std::fs::metadata(report.folder.join("streams/wafer.bin")).unwrap().len();
        assert_eq!(lists, 15 * 4096);
        // A list that says something else than what was planted is found out.
        let plan: Plan = serde_json::from_slice(&std::fs::read(report.folder.join("plan.json")).unwrap()).unwrap();
        let headway_core::plan::PipelineSource::Sharded(planned) = &plan.pipelines[0].source else {
            panic!("no wafer")
        };
        let path = report.folder.join("streams/wafer.bin");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[3 * 4096 + 16] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let counted = headway::verify::lists(planned, &path, &std::sync::atomic::AtomicBool::new(false)).unwrap();
        assert_eq!((counted.lists, counted.first_wrong, counted.false_alarms), (15, Some(3), 1));
        assert_eq!(counted.found + 1, counted.planted);
    }

    #[test]
    fn the_emulated_node_loses_no_image_and_finds_every_defect() {
        let setting = ExperimentSetting {
            backend: Backend::Emu,
            quick: true,
            seed: 3,
            gpus: Some(2),
            ..ExperimentSetting::default()
        };
        let outcome = run(&setting).unwrap();
        assert_eq!(outcome.source, "emu");
        let runs = outcome.tables.iter().find(|table| table.name == "runs").unwrap();
        assert_eq!(runs.lines.len(), POLICIES.len());
        let column = |name: &str| runs.columns.iter().position(|column| *column == name).unwrap();
        for line in &runs.lines {
            let number = |name: &str| line[column(name)].parse::<u64>().unwrap();
            assert_eq!((number("lists"), number("false_alarms")), (number("generations"), 0), "{line:?}");
            assert!(number("planted") > 0 && number("found") == number("planted"), "{line:?}");
        }
    }
}
