//! Why a plan is not accepted, in sentences: whose work is too much, and what would help.

use headway_core::files::machine::{KernelCost, Machine};
use headway_core::plan::{OperationWork, Outcome, Pipeline, Plan, PlannedStep, PlannedStream, Server};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos, PPM, Rate, percent};

/// Steps, streams and parts that sentences name; the others are counted.
const NAMED_MAX: usize = 3;
/// Servers that a sentence names.
const SERVERS_NAMED_MAX: usize = 8;
/// Most parts into which a chain is thought to be cut.
const PARTS_MAX: u64 = 4096;

/// Says in a plan's verdict whose work is more than the time of its server, where that is the reason for a no.
pub(crate) fn explain(plan: &mut Plan, machine: &Machine) {
    let Some(violation) = plan.verdict.violation.as_ref().filter(|violation| violation.interval == Nanos::ZERO) else {
        return;
    };
    let because = overload(plan, machine, &violation.server);
    if let Some(violation) = &mut plan.verdict.violation {
        violation.because.extend(because);
    }
}

/// Which servers fail, the fullest first, where more than one does.
pub(crate) fn failing(plan: &Plan) -> Option<String> {
    let mut failing: Vec<&Server> =
        plan.servers.iter().filter(|server| server.verdict.outcome == Outcome::NotSchedulable).collect();
    if failing.len() < 2 {
        return None;
    }
    failing.sort_by_key(|server| std::cmp::Reverse(server.verdict.utilisation_ppm));
    let named = |server: &&Server| format!("`{}` {}", server.name, percent(server.verdict.utilisation_ppm));
    let names: Vec<String> = failing.iter().take(SERVERS_NAMED_MAX).map(named).collect();
    let more = failing.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (count, all) = (failing.len(), plan.servers.len());
    Some(format!("{count} of {all} servers fail, with a utilisation of: {}{more}", names.join(", ")))
}

/// What the verdict of a plan rests on, a sentence each.
pub(crate) fn reasons(plan: &Plan) -> Vec<String> {
    let mut lines = of_violation(plan);
    lines.extend(failing(plan));
    lines
}

fn of_violation(plan: &Plan) -> Vec<String> {
    let verdict = &plan.verdict;
    let Some(violation) = &verdict.violation else { return verdict.notes.clone() };
    let server = &violation.server;
    if violation.interval == Nanos::ZERO {
        let all = percent(verdict.utilisation_ppm);
        let first = format!("the work on `{server}` is more than its time: utilisation is {all}");
        return std::iter::once(first).chain(violation.because.iter().cloned()).collect();
    }
    let excess = violation.demand.saturating_sub(violation.interval);
    let mut lines = vec![format!(
        "in an interval of {} on `{server}`, {} of work are due, {excess} too much",
        violation.interval, violation.demand
    )];
    if let Some(blocker) = &violation.blocker {
        lines.push(format!(
            "{} of them are of `{blocker}`, begun just before and not to be interrupted",
            violation.blocking
        ));
    }
    for (name, jobs, time) in violation.parts.iter().take(NAMED_MAX) {
        let plural = if *jobs == 1 { "" } else { "s" };
        lines.push(format!("`{name}` has {jobs} job{plural} in it, {time}"));
    }
    if violation.parts.len() > NAMED_MAX {
        let others = violation.parts.len() - NAMED_MAX;
        lines.push(if others == 1 {
            "1 other has the rest".to_owned()
        } else {
            format!("{others} others have the rest")
        });
    }
    lines
}

/// The steps that load `server` most, and what is known of their cause.
fn overload(plan: &Plan, machine: &Machine, server: &str) -> Vec<String> {
    let Some(number) = plan.servers.iter().position(|of| of.name == server) else { return Vec::new() };
    let steps = plan.pipelines.iter().filter(|pipeline| pipeline.source.is_planned());
    let steps = steps.flat_map(|pipeline| pipeline.steps.iter().map(move |step| (pipeline, step)));
    let mut loads: Vec<(u128, &Pipeline, &PlannedStep)> = steps
        .filter(|(_, step)| step.server as usize == number)
        .map(|(pipeline, step)| (share(step.cost, pipeline.period), pipeline, step))
        .collect();
    // Of equal loads the first of the plan.
    loads.sort_by_key(|(share, ..)| std::cmp::Reverse(*share));
    let all: u128 = loads.iter().map(|(share, ..)| share).sum();
    let mut lines = Vec::new();
    for (share, pipeline, step) in loads.iter().take(NAMED_MAX) {
        let (who, what) = (who(plan, pipeline), &step.name);
        lines.push(format!("{who}: `{what}` takes {} of every {}, {}", step.cost, pipeline.period, percent(*share)));
        lines.extend(chain(plan, machine, pipeline, step, all - share));
    }
    if loads.len() > NAMED_MAX {
        let rest: u128 = loads[NAMED_MAX..].iter().map(|(share, ..)| share).sum();
        let others = loads.len() - NAMED_MAX;
        let steps = if others == 1 { "1 more step takes".to_owned() } else { format!("{others} more steps take") };
        lines.push(format!("{steps} {}", percent(rest)));
    }
    lines
}

/// Parts per million, rounded up.
fn share(cost: Nanos, period: Nanos) -> u128 {
    (u128::from(cost.0) * u128::from(PPM)).div_ceil(u128::from(period.0.max(1)))
}

/// Whose a pipeline is.
fn who(plan: &Plan, pipeline: &Pipeline) -> String {
    let streams = pipeline.source.streams();
    let named: Vec<String> =
        streams.iter().take(NAMED_MAX).map(|&at| format!("`{}`", plan.streams[at as usize].id)).collect();
    match (streams.len(), named.as_slice()) {
        (0, _) => format!("`{}`", pipeline.name),
        (1, [one]) => format!("stream {one}"),
        (count, _) if count > NAMED_MAX => format!("streams {} and {} more", named.join(", "), count - NAMED_MAX),
        _ => format!("streams {}", named.join(", ")),
    }
}

/// What a stream brings in a cycle of its pipeline.
fn portion(stream: &PlannedStream, pipeline: &Pipeline) -> Bytes {
    let gathered = pipeline.gather > Nanos::ZERO;
    let packets = if gathered { pipeline.period.0.div_ceil(stream.period.0.max(1)) } else { 1 };
    Bytes(stream.packet.0.saturating_mul(packets))
}

/// Where data that must be processed in sequence is the cause: the stream, its rate, that of the kernel, and what cutting it up
/// would give. `rest` is what the other steps of the server take.
fn chain(plan: &Plan, machine: &Machine, pipeline: &Pipeline, step: &PlannedStep, rest: u128) -> Option<String> {
    let OperationWork::Compute { kernel } = &step.operations.first()?.work else { return None };
    let gpu = machine.gpus().nth(pipeline.gpu? as usize)?;
    let cost: &KernelCost = machine.kernel(kernel, gpu)?;
    let chain_rate = cost.chain_rate?;
    let streams = pipeline.source.streams().iter().map(|&at| &plan.streams[at as usize]);
    let longest = streams.reduce(|a, b| if portion(b, pipeline) > portion(a, pipeline) { b } else { a })?;
    let bytes = portion(longest, pipeline);
    if chain_rate.time_for(bytes) <= cost.rate.time_for(pipeline.reserve) {
        return None;
    }
    let per_second = u128::from(longest.packet.0) * u128::from(NANOS_PER_SECOND) / u128::from(longest.period.0.max(1));
    let rate = Rate(u64::try_from(per_second).unwrap_or(u64::MAX));
    let with = |parts: u64| {
        let time = cost.cost(pipeline.reserve, Bytes(bytes.0.div_ceil(parts)));
        machine.calibration.as_ref().map_or(time, |calibration| calibration.with_margin(time))
    };
    let fits = |parts: &u64| share(with(*parts), pipeline.period) + rest <= u128::from(PPM);
    let id = &longest.id;
    let fact = format!(
        "`{id}` is one chain of {rate}, and `{kernel}` works a chain off at {chain_rate}, one block after the other"
    );
    let each = if pipeline.source.streams().len() == 1 { format!("`{id}`") } else { "every stream".to_owned() };
    Some(match (2..=PARTS_MAX).find(fits) {
        Some(parts) => format!(
            "{fact}: with {each} cut into {parts} streams, each a chain of its own, the step takes {} of every {}",
            with(parts),
            pipeline.period
        ),
        None => format!(
            "{fact}: cutting {each} into several streams does not suffice, as all chains together get {} of this GPU",
            cost.rate
        ),
    })
}
