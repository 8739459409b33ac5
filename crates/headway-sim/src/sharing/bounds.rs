//! The analysis of a simulated cluster: what no simulated job may exceed.

use headway_core::analysis::sharing::{Acquisition, CpuGuarantee, System, TaskDemand};
use headway_core::decisions::sharing::{JobSegment, TaskId};
use headway_core::units::{Bytes, Nanos, PPM};

use super::arbiter::{engines, registered, tokens};
use super::model::{Cluster, ClusterSetting, SimTask, scaled};
use super::scenario::Migration;

/// What `headway_core::analysis::sharing::analyse` needs to know of a cluster and a setting, with every cost at its longest;
/// `None` where the driver arbitrates.
#[must_use]
pub fn analysis_of(cluster: &Cluster, setting: &ClusterSetting) -> Option<(System, Vec<TaskDemand>)> {
    let tokens = tokens(cluster, setting)?;
    let costs = &cluster.costs;
    let once = costs.call.saturating_add(costs.handover);
    let chunk = setting.scenario.chunk;
    let peer = setting.scenario.migration == Migration::Peer;
    let longest: Vec<SimTask> = cluster.tasks.iter().map(longest).collect();
    let piece = |bytes: Bytes| Bytes(chunk.map_or(bytes.0, |chunk| bytes.0.min(chunk.0)));
    let mut longest_copy = Nanos::ZERO;
    let mut longest_execute = Nanos::ZERO;
    for task in &longest {
        let copies = task.segments.iter().filter_map(|segment| match segment {
            JobSegment::Copy { bytes, .. } => Some(*bytes),
            JobSegment::Cpu(_) | JobSegment::Execute { .. } => None,
        });
        let largest = copies.chain([task.state]).max().unwrap_or_default();
        if largest > Bytes(0) {
            longest_copy = longest_copy.max(costs.longest_copy(piece(largest)).saturating_add(once));
        }
        for segment in &task.segments {
            if let JobSegment::Execute { time, .. } = segment {
                longest_execute = longest_execute.max(time.saturating_add(once));
            }
        }
    }
    let system = System {
        gpus: cluster.gpus(),
        tokens,
        engines: engines(cluster, setting),
        peer_copies: peer,
        longest_copy,
        longest_execute,
        grant_latency: costs.grant,
        cpu: CpuGuarantee::Priorities,
    };
    let demands = (0..).zip(&longest).map(|(number, task)| {
        let time = |bytes| costs.longest_copy(bytes).saturating_add(once);
        let mut held = Acquisition::of(&registered(number, task), chunk, peer, time);
        // A kernel's call and hand-over are part of its time on the engine.
        held.execute_time = held.execute_time.saturating_add(Nanos(once.0.saturating_mul(held.executes)));
        let cpu_outside = task.before.saturating_add(task.after);
        TaskDemand { task: TaskId(number), period: task.period, cpu_outside, acquisitions: vec![held] }
    });
    Some((system, demands.collect()))
}

/// A task whose costs are the longest that its jitter allows.
fn longest(task: &SimTask) -> SimTask {
    let most = PPM + u64::from(task.jitter_ppm).min(PPM);
    let segments = task.segments.iter().map(|segment| match segment {
        JobSegment::Cpu(time) => JobSegment::Cpu(scaled(*time, most)),
        JobSegment::Execute { kernel, time } => {
            JobSegment::Execute { kernel: kernel.clone(), time: scaled(*time, most) }
        }
        JobSegment::Copy { .. } => segment.clone(),
    });
    SimTask {
        before: scaled(task.before, most),
        after: scaled(task.after, most),
        segments: segments.collect(),
        ..task.clone()
    }
}
