//! What the thread that submits operations has to do.

use super::Context;
use crate::plan::{DriverDemand, OperationWork, Outcome, Pipeline, PipelineSource, PlannedStep, Server, Strength};
use crate::plan::{Verdict, Violation};
use crate::units::{NANOS_PER_SECOND, Nanos, PPM, percent};

/// How violations call the thread.
const NAME: &str = "driver";

/// The driver's calls for the operations of `pipelines`; `None` where nobody measured what a call takes. A launch is counted as the
/// longest call for a copy. Calls that look for ends are not counted.
pub(super) fn demand(context: &Context<'_>, pipelines: &[Pipeline], servers: &[Server]) -> Option<DriverDemand> {
    let routes = &context.machine.routes;
    let longest = routes.iter().map(|route| route.submit).max().filter(|longest| *longest > Nanos::ZERO)?;
    let engines = context.machine.engines.len();
    let call = |work: &OperationWork| match work {
        OperationWork::Copy { route, .. } => routes[route.at()].submit,
        OperationWork::Compute { .. } => longest,
        OperationWork::Hold => Nanos::ZERO,
    };
    // Calls and their time: of a whole job, and of what of it can be submitted at once.
    let of_step = |step: &PlannedStep| {
        let (mut calls, mut all, mut at_once) = (0, Nanos::ZERO, Nanos::ZERO);
        let on_device = step.operations.iter().filter(|of| of.engines.iter().all(|engine| engine.at() < engines));
        for operation in on_device {
            let (time, chunks) = (call(&operation.work), chunks(step, &operation.work));
            let in_flight = chunks.min(u64::from(servers[step.server as usize].in_flight));
            calls += chunks * u64::from(time > Nanos::ZERO);
            all = all.saturating_add(Nanos(time.0.saturating_mul(chunks)));
            at_once = at_once.saturating_add(Nanos(time.0.saturating_mul(in_flight)));
        }
        (calls, all, at_once)
    };
    let mut demand = DriverDemand { calls_per_second: 0, busy_ppm: 0, at_once: Nanos::ZERO };
    for pipeline in pipelines {
        for step in &pipeline.steps {
            let (calls, all, at_once) = of_step(step);
            demand.at_once = demand.at_once.saturating_add(at_once);
            // The next chunk of a bulk transfer follows the one before, and an urgent copy comes when it is asked for.
            let every = match pipeline.source {
                PipelineSource::Bulk(_) => step.chunk_cost,
                PipelineSource::Urgent(_) => continue,
                _ => pipeline.period,
            };
            demand.calls_per_second += share(calls, every, NANOS_PER_SECOND);
            demand.busy_ppm += share(all.0, every, PPM);
        }
    }
    Some(demand)
}

/// Calls that submit one operation of a job.
fn chunks(step: &PlannedStep, work: &OperationWork) -> u64 {
    match work {
        OperationWork::Copy { bytes, .. } if step.chunk.0 > 0 => bytes.0.div_ceil(step.chunk.0).max(1),
        _ => 1,
    }
}

/// `part` of `whole`, times `unit`, rounded up.
fn share(part: u64, whole: Nanos, unit: u64) -> u64 {
    let share = (u128::from(part) * u128::from(unit)).div_ceil(u128::from(whole.0.max(1)));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Makes the answer a no where one thread cannot make all calls, and says so where they can make it later than `jitter` allows.
pub(super) fn judge(verdict: &mut Verdict, demand: DriverDemand, jitter: Nanos) {
    let DriverDemand { calls_per_second, busy_ppm, at_once } = demand;
    if busy_ppm > PPM {
        let because = format!(
            "one thread submits all operations, and its {calls_per_second} calls a second take {} of a CPU; fewer and larger copies need \
             fewer calls",
            percent(busy_ppm)
        );
        let violation = Violation {
            server: NAME.to_owned(),
            blocker: None,
            blocking: Nanos::ZERO,
            interval: Nanos::ZERO,
            demand: Nanos::ZERO,
            parts: Vec::new(),
            because: vec![because],
        };
        if verdict.outcome != Outcome::NotSchedulable || busy_ppm > verdict.utilisation_ppm {
            verdict.violation = Some(violation);
        }
        (verdict.outcome, verdict.strength) = (Outcome::NotSchedulable, Strength::Sufficient);
        verdict.utilisation_ppm = verdict.utilisation_ppm.max(busy_ppm);
        verdict.margin_ppm = verdict.margin_ppm.map(|margin| margin.min(share(PPM, Nanos(busy_ppm), PPM)));
    } else if jitter > Nanos::ZERO && at_once > jitter {
        verdict.notes.push(format!(
            "if all steps open at one instant, the calls that submit them take {at_once}, more than the {jitter} that the plan allows the \
             driver: the last of them begin late"
        ));
    }
}
