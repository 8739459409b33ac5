//! The answer for the whole plan, from those of its servers.

use super::holds::Holds;
use super::{Context, Draft, PlanError, batches, cores, driver};
use crate::plan::{Named, Outcome, Plan, PlannedCapacity, PlannedEngine, SCHEMA, Server, Strength, Verdict};
use crate::units::Nanos;

/// Says what the answer rests on.
pub(super) fn notes(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    let holding = draft.servers.iter().filter(|server| server.verdict.outcome == Outcome::Schedulable);
    draft.notes.extend(holding.flat_map(|server| server.verdict.notes.iter().cloned()));
    draft.notes.extend(cores::note(context, &draft.pipelines));
    draft.notes.extend(batches::note_on_producers(context));
    Ok(draft)
}

/// What all passes have made.
pub(super) fn finished(context: &Context<'_>, draft: Draft) -> Plan {
    let machine = context.machine;
    let mut verdict = of_servers(context, &draft.servers);
    verdict.notes.extend(draft.notes);
    let jitter = machine.calibration.as_ref().map_or(Nanos::ZERO, |of| of.jitter);
    let driver = driver::demand(context, &draft.pipelines, &draft.servers);
    if let Some(demand) = driver {
        driver::judge(&mut verdict, demand, jitter);
    }
    let engines = machine.engines.iter().map(|engine| PlannedEngine {
        name: engine.id.clone(),
        gpu: Some(context.ordinal(engine.gpu)),
        serves: engine.serves.clone(),
    });
    // The cores of the CPU that serve streams are behind the machine's engines.
    let engines = engines.chain(context.cores(&draft.pipelines)).collect();
    let capacities = machine.capacities.iter().map(|of| PlannedCapacity { name: of.id.clone(), rate: of.rate });
    Plan {
        schema: SCHEMA,
        workload: Named { name: context.workload.name.clone(), hash: context.workload.hash.clone() },
        machine: Named { name: machine.name.clone(), hash: machine.hash.clone() },
        strategy: context.strategy,
        jitter,
        others: machine.others,
        driver,
        engines,
        capacities: capacities.collect(),
        servers: draft.servers,
        streams: draft.streams.into_iter().map(|of| of.expect("every stream has a pipeline")).collect(),
        announced: batches::announced(context, &draft.pipelines),
        pipelines: draft.pipelines,
        batches: draft.batches,
        division: None,
        verdict,
        alternatives: Vec::new(),
    }
}

fn of_servers(context: &Context<'_>, servers: &[Server]) -> Verdict {
    let mut notes = Vec::new();
    if let Some(calibration) = &context.machine.calibration {
        let while_what = if calibration.is_vouched() {
            format!("transfers keep to the rates that the file of machine `{}` vouches for", context.machine.name)
        } else {
            "the node stays within its calibration".to_owned()
        };
        notes.push(format!(
            "holds while {while_what}: every cost includes {} ppm and {}",
            calibration.margin_ppm, calibration.jitter
        ));
    } else if servers.iter().all(|s| s.engines.is_empty()) {
        notes.push(format!(
            "machine `{}` is not calibrated: costs of demands are as stated, and nothing is released late",
            context.machine.name
        ));
    } else {
        notes.push(format!(
            "machine `{}` is not calibrated: the answer holds for the model, not for a node",
            context.machine.name
        ));
    }
    if context.machine.others > 0 {
        notes.push(format!(
            "holds beside {} other programs that copy over these engines, as long as none of them computes on these GPUs: the cost of each \
             copy has a turn of each of them",
            context.machine.others
        ));
    }
    let worst = servers.iter().max_by_key(|s| (s.verdict.outcome, s.verdict.utilisation_ppm));
    let Some(worst) = worst else {
        unreachable!("a workload without streams, messages and demands is refused at the start")
    };
    let exact = servers.iter().all(|s| s.verdict.strength == Strength::Exact);
    let narrowest = servers.iter().max_by_key(|s| Holds::of(&s.verdict.model)).unwrap_or(worst);
    Verdict {
        outcome: worst.verdict.outcome,
        model: narrowest.verdict.model.clone(),
        strength: if exact { Strength::Exact } else { Strength::Sufficient },
        utilisation_ppm: servers.iter().map(|s| s.verdict.utilisation_ppm).max().unwrap_or(0),
        margin_ppm: servers.iter().map(|s| s.verdict.margin_ppm).min().flatten(),
        violation: worst.verdict.violation.clone(),
        notes,
    }
}
