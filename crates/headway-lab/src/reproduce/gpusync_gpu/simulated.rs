//! The same cameras in simulation: every scenario of the paper with the load and the phases of the runs on GPUs.

use std::collections::BTreeMap;

use crate::simulation::klt::{INPUTS, OUTPUTS};
use headway_core::decisions::engine_lock::LockOrder;
use headway_core::decisions::predictor::Form;
use headway_core::decisions::sharing::{Distances, JobSegment, TaskDirection};
use headway_core::decisions::token::TokenMode;
use headway_core::units::{Bytes, Nanos, Rate};
use headway_sim::sharing::{
    Cluster, ClusterCosts, ClusterSetting, CopyEngines, Finished, Scenario, SimObserver, SimSharingError, SimTask,
    simulate,
};

use super::setup::Alone;
use crate::trackers::FrameLoad;
use headway::cores::on_all_cores;

/// Rate of copies between GPUs. It is not measured here; the state takes a third of a millisecond at it, one way or another.
const PEER: Rate = Rate(300_000_000_000);
/// From a grant to the job being told, and CPU time to submit an operation: what hand-overs take on such nodes.
const CALL: Nanos = Nanos(10_000);
/// Kernel launches of the tracker itself.
const OWN_SEGMENTS: u64 = 3;
/// Runs are simulated for so many times as long as frames are released, so that late ones end.
const LONGER: u64 = 6;

/// What runs on the GPUs.
pub(super) struct Node<'a> {
    pub(super) gpus: usize,
    pub(super) cpus: u32,
    pub(super) periods: &'a [Nanos],
    /// Frames of each camera.
    pub(super) frames: &'a [u64],
    pub(super) load: FrameLoad,
    pub(super) alone: Alone,
}

/// Responses of the frames that are also released on the GPUs.
struct Means<'a> {
    node: &'a Node<'a>,
    sum: f64,
    count: u64,
    seen: Vec<u64>,
}

impl SimObserver for Means<'_> {
    fn job(&mut self, finished: &Finished) {
        let task = finished.job.task.0 as usize;
        if self.seen[task] >= self.node.frames[task] {
            return;
        }
        self.seen[task] += 1;
        self.sum += finished.response().0 as f64 / self.node.periods[task].0.max(1) as f64 * 100.0;
        self.count += 1;
    }
}

/// Mean response of every distinct scenario, percent of the period, by code; each with all `phases` of the repetitions.
pub(super) fn means(node: &Node<'_>, phases: &[Vec<u64>], seed: u64) -> Result<BTreeMap<String, f64>, SimSharingError> {
    let scenarios = Scenario::distinct();
    let found = on_all_cores(scenarios.len(), |at| {
        let mut means = Means { node, sum: 0.0, count: 0, seen: Vec::new() };
        for phases in phases {
            means.seen = vec![0; node.periods.len()];
            simulate(&node.cluster(phases), &node.setting(scenarios[at], seed), &mut means)?;
        }
        Ok::<_, SimSharingError>((scenarios[at].to_string(), means.sum / means.count.max(1) as f64))
    })?;
    Ok(found.into_iter().collect())
}

impl Node<'_> {
    /// As the arbiter of the runs on GPUs chooses the mode.
    fn setting(&self, scenario: Scenario, seed: u64) -> ClusterSetting {
        let tokens = scenario.tokens_per_gpu().unwrap_or(1) * self.gpus as u32;
        let mode = if tokens > self.cpus { TokenMode::WorkConserving } else { TokenMode::Optimal };
        let released = self.periods.iter().zip(self.frames).map(|(period, frames)| period.0 * frames).max();
        ClusterSetting {
            scenario,
            tokens_per_gpu: None,
            order: LockOrder::Arrival,
            mode,
            predictor: Form::WINDOW,
            seed,
            until: Nanos(released.unwrap_or(0) * LONGER),
        }
    }

    fn cluster(&self, phases: &[u64]) -> Cluster {
        let segments = self.frame();
        let task = |(camera, (&period, &phase)): (usize, (&Nanos, &u64))| SimTask {
            name: format!("camera {camera}"),
            period,
            deadline: period,
            start: Nanos(phase),
            state: Bytes(self.load.state),
            before: Nanos::ZERO,
            segments: segments.clone(),
            after: Nanos::ZERO,
            jitter_ppm: 0,
        };
        let rate = Rate(self.alone.bytes_per_s.max(1));
        Cluster {
            cpus: self.cpus,
            copy_engines: CopyEngines::One,
            distances: Distances::switched(self.gpus, self.gpus),
            costs: ClusterCosts {
                to_gpu: rate,
                from_gpu: rate,
                peer: vec![PEER],
                copy_setup: CALL,
                call: CALL,
                grant: CALL,
                handover: CALL,
            },
            tasks: self.periods.iter().zip(phases).enumerate().map(task).collect(),
        }
    }

    /// Copies in, then CPU and kernels in turns, then copies out.
    fn frame(&self) -> Vec<JobSegment> {
        let load = &self.load;
        let added = u64::from(load.segments);
        let count = OWN_SEGMENTS + added;
        let copy = |direction| move |bytes: Bytes| JobSegment::Copy { direction, bytes };
        let inputs = INPUTS.into_iter().chain([Bytes(load.input)]).filter(|bytes| bytes.0 > 0);
        let mut segments: Vec<_> = inputs.map(copy(TaskDirection::ToGpu)).collect();
        for index in 0..count {
            let time = if index < OWN_SEGMENTS {
                Nanos(self.alone.tracker.0 / OWN_SEGMENTS)
            } else {
                Nanos(self.alone.pass.0 * u64::from(load.passes))
            };
            segments.push(JobSegment::Cpu(Nanos(load.cpu_ns / count)));
            segments.push(JobSegment::Execute { kernel: "klt".to_owned(), time });
        }
        let outputs = OUTPUTS.into_iter().chain([Bytes(load.output)]).filter(|bytes| bytes.0 > 0);
        segments.extend(outputs.map(copy(TaskDirection::FromGpu)));
        segments
    }
}

/// Spearman's coefficient of two series of equal length: 1 if they have the same order.
pub(super) fn rank_correlation(one: &[f64], other: &[f64]) -> f64 {
    let ranks = |values: &[f64]| -> Vec<f64> {
        let below = |value: f64| values.iter().filter(|other| **other < value).count();
        let equal = |value: f64| values.iter().filter(|other| **other == value).count();
        values.iter().map(|value| below(*value) as f64 + (equal(*value) as f64 - 1.0) / 2.0).collect()
    };
    let (one, other) = (ranks(one), ranks(other));
    let middle = (one.len() as f64 - 1.0) / 2.0;
    let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum::<f64>();
    sum(&one, &other) / (sum(&one, &one) * sum(&other, &other)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_simulated_and_the_load_is_that_of_the_runs() {
        let periods = [Nanos(50_000_000), Nanos(50_000_000), Nanos(100_000_000), Nanos(100_000_000)];
        let load =
            FrameLoad { segments: 9, cpu_ns: 10_000_000, passes: 10, input: 8 << 20, output: 4 << 20, state: 64 << 20 };
        let alone = Alone { tracker: Nanos(1_200_000), pass: Nanos(100_000), bytes_per_s: 50_000_000_000 };
        let node = Node { gpus: 2, cpus: 4, periods: &periods, frames: &[10, 10, 5, 5], load, alone };
        let kernels: u64 = node
            .frame()
            .iter()
            .map(|segment| if let JobSegment::Execute { time, .. } = segment { time.0 } else { 0 })
            .sum();
        assert_eq!(kernels, 1_200_000 + 9 * 1_000_000);
        let phases = [vec![0, 10, 20, 30], vec![7_000_000, 0, 3_000_000, 1]];
        let means = means(&node, &phases, 1).unwrap();
        assert_eq!(means.len(), 36);
        // Kernels and CPU take 20.2 ms of 50 or 100, with nobody in the way.
        assert!(means.values().all(|mean| (20.0..1_000.0).contains(mean)), "{means:?}");
        assert!(means["aedg,X"] > means["AEdG,2MB"], "{means:?}");
    }

    #[test]
    fn series_of_the_same_order_correlate_fully_and_reversed_ones_not_at_all() {
        assert_eq!(rank_correlation(&[1.0, 2.0, 9.0], &[10.0, 11.0, 12.0]), 1.0);
        assert_eq!(rank_correlation(&[1.0, 2.0, 9.0], &[3.0, 2.0, 1.0]), -1.0);
        assert!(rank_correlation(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 4.0, 3.0]) > 0.7);
    }
}
