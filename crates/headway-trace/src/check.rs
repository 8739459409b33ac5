//! Refuses logs whose indices lead nowhere or whose times do not fit, so that the rest of the crate may index and add.

use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput, UrgentAnswer};
use headway_core::log::{LogHeader, LogRecord, RecordBody};
use headway_core::plan::{Carried, OperationWork, Pipeline, PipelineSource, Plan, PlannedStep};
use headway_core::units::Nanos;

/// Times must stay below this, so that a sum of two fits 64 bits.
const LATEST: u128 = 1 << 62;

/// What is wrong with the header, as a phrase.
pub(crate) fn header(header: &LogHeader) -> Result<(), String> {
    let plan = &header.plan;
    if header.cycles.len() != plan.pipelines.len() || header.streams.len() != plan.streams.len() {
        return Err("it counts cycles or packets of other pipelines or streams than those planned".to_owned());
    }
    for (pipeline, &cycles) in plan.pipelines.iter().zip(&header.cycles) {
        for step in &pipeline.steps {
            step_of(plan, pipeline, step)?;
        }
        let known = pipeline.windows.is_empty() || pipeline.windows.len() == pipeline.steps.len();
        if !known || pipeline.windows.iter().any(|window| *window > pipeline.window) {
            return Err(format!("pipeline `{}` has other windows than steps, or one above the longest", pipeline.name));
        }
        let last = u128::from(pipeline.period.0) * u128::from(cycles)
            + u128::from(pipeline.window.0) * (pipeline.steps.len() as u128 + 1)
            + u128::from(pipeline.start.0)
            + u128::from(pipeline.gather.0);
        if pipeline.period == Nanos::ZERO || pipeline.steps.is_empty() || last >= LATEST {
            return Err(format!("pipeline `{}` has no period, no steps or too many cycles", pipeline.name));
        }
        if let PipelineSource::Batch(parts) = &pipeline.source {
            batch(pipeline, parts)?;
        }
        if pipeline.source.streams().iter().any(|&stream| stream as usize >= plan.streams.len()) {
            return Err(format!("pipeline `{}` carries a stream that is not planned", pipeline.name));
        }
    }
    for (stream, run) in plan.streams.iter().zip(&header.streams) {
        let last = u128::from(stream.period.0) * u128::from(run.packets)
            + u128::from(stream.start.0)
            + u128::from(stream.deadline.0);
        if stream.period == Nanos::ZERO || stream.pipeline as usize >= plan.pipelines.len() || last >= LATEST {
            return Err(format!("stream `{}` has no period, no pipeline or too many packets", stream.id));
        }
    }
    if plan.announced.iter().any(|of| of.pipeline as usize >= plan.pipelines.len()) {
        return Err("a producer speaks for a pipeline that is not planned".to_owned());
    }
    if plan.servers.iter().flat_map(|server| &server.engines).any(|engine| engine.at() >= plan.engines.len()) {
        return Err("a server has an engine that is not planned".to_owned());
    }
    Ok(())
}

/// Every part of a batch has an operation, and slots that can be counted.
fn batch(pipeline: &Pipeline, parts: &[Carried]) -> Result<(), String> {
    let counted = |part: &Carried| {
        let slots = part.member.levels.iter().all(|level| level.grid.period > Nanos::ZERO && level.parts > 0);
        slots && !part.member.levels.is_empty() && part.message.check().is_ok()
    };
    let operations = pipeline.steps.first().map_or(0, |step| step.operations.len());
    if pipeline.steps.len() == 1 && operations == parts.len() && parts.iter().all(counted) {
        Ok(())
    } else {
        Err(format!("batch `{}` does not say what its operations carry", pipeline.name))
    }
}

fn step_of(plan: &Plan, pipeline: &Pipeline, step: &PlannedStep) -> Result<(), String> {
    let engines = step.operations.iter().flat_map(|operation| &operation.engines);
    let uses = step.operations.iter().flat_map(|operation| match &operation.work {
        OperationWork::Copy { uses, .. } => uses.as_slice(),
        OperationWork::Compute { .. } | OperationWork::Hold => &[],
    });
    if step.server as usize >= plan.servers.len()
        || engines.clone().any(|engine| engine.at() >= plan.engines.len())
        || uses.clone().any(|(capacity, _)| capacity.at() >= plan.capacities.len())
    {
        return Err(format!("step `{}` of `{}` uses something that is not planned", step.name, pipeline.name));
    }
    Ok(())
}

/// What is wrong with a record, as a phrase.
pub(crate) fn record(header: &LogHeader, record: &LogRecord) -> Result<(), String> {
    time(record.at)?;
    match &record.what {
        RecordBody::Input(input) => of_input(header, input),
        RecordBody::Action(DispatchAction::Submit { pipeline, cycle, step, index, .. }) => {
            let step = job(header, *pipeline, *cycle, *step)?;
            let known = step.operations.get(*index as usize).is_some();
            if known { Ok(()) } else { Err(format!("step `{}` has no operation {index}", step.name)) }
        }
        RecordBody::Action(DispatchAction::Deliver { pipeline, cycle } | DispatchAction::Drop { pipeline, cycle }) => {
            job(header, *pipeline, *cycle, 0).map(drop)
        }
        RecordBody::Event(event) => of_event(header, event),
    }
}

fn of_input(header: &LogHeader, input: &DispatchInput) -> Result<(), String> {
    match input {
        DispatchInput::Start { epoch, cycles, packets } => {
            let planned = header.streams.iter().map(|stream| stream.packets);
            if *cycles != header.cycles || !packets.iter().copied().eq(planned) {
                return Err("the run starts with other cycles or packets than the first line counts".to_owned());
            }
            time(*epoch)
        }
        DispatchInput::Data { pipeline, cycle, .. } => job(header, *pipeline, *cycle, 0).map(drop),
        DispatchInput::Done { started, finished, .. } => time(*started).and_then(|()| time(*finished)),
        DispatchInput::Ready { pipeline, part, .. } => part_of(header, *pipeline, *part),
        DispatchInput::Urgent { pipeline, deadline, .. } => job(header, *pipeline, 0, 0).and_then(|_| time(*deadline)),
        DispatchInput::Failed { .. } | DispatchInput::Timeout => Ok(()),
    }
}

fn of_event(header: &LogHeader, event: &DispatchEvent) -> Result<(), String> {
    match *event {
        DispatchEvent::Ready { pipeline, cycle, step, deadline } => {
            job(header, pipeline, cycle, step).and_then(|_| time(deadline))
        }
        DispatchEvent::Complete { pipeline, cycle, step }
        | DispatchEvent::ReleaseLate { pipeline, cycle, step, .. }
        | DispatchEvent::Late { pipeline, cycle, step, .. }
        | DispatchEvent::Overrun { pipeline, cycle, step, .. }
        | DispatchEvent::Halted { pipeline, cycle, step } => job(header, pipeline, cycle, step).map(drop),
        DispatchEvent::Answered { pipeline, cycle, answer, .. } => {
            let UrgentAnswer::Guaranteed { deadline } = answer else {
                return job(header, pipeline, cycle, 0).map(drop);
            };
            job(header, pipeline, cycle, 0).and_then(|_| time(deadline))
        }
        DispatchEvent::Unready { pipeline, part, .. } => part_of(header, pipeline, part),
        DispatchEvent::Empty { pipeline, cycle }
        | DispatchEvent::DataLate { pipeline, cycle, .. }
        | DispatchEvent::MissedMore { pipeline, cycle, .. } => job(header, pipeline, cycle, 0).map(drop),
        DispatchEvent::Paused { pipeline } | DispatchEvent::Resumed { pipeline } => {
            match header.plan.pipelines.get(pipeline as usize) {
                Some(_) => Ok(()),
                None => Err(format!("pipeline {pipeline} is not planned")),
            }
        }
        DispatchEvent::Missed { stream, packet, .. } | DispatchEvent::Lost { stream, packet } => {
            match header.streams.get(stream as usize) {
                Some(run) if packet < run.packets => Ok(()),
                _ => Err(format!("packet {packet} of stream {stream} was not expected")),
            }
        }
    }
}

fn part_of(header: &LogHeader, pipeline: u32, part: u32) -> Result<(), String> {
    let announced = header.plan.announced.iter().any(|of| (of.pipeline, of.part) == (pipeline, part));
    let unknown = || format!("nobody speaks for part {part} of pipeline {pipeline}");
    if announced { Ok(()) } else { Err(unknown()) }
}

fn job(header: &LogHeader, pipeline: u32, cycle: u64, step: u32) -> Result<&PlannedStep, String> {
    let steps = header.plan.pipelines.get(pipeline as usize).map(|p| &p.steps);
    match (header.cycles.get(pipeline as usize), steps.and_then(|steps| steps.get(step as usize))) {
        (Some(&cycles), Some(step)) if cycle < cycles => Ok(step),
        _ => Err(format!("pipeline {pipeline}, cycle {cycle}, step {step} is not planned")),
    }
}

fn time(at: Nanos) -> Result<(), String> {
    if u128::from(at.0) < LATEST { Ok(()) } else { Err(format!("the time {} ns is too late", at.0)) }
}
