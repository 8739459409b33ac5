//! What a run tells its dispatcher by itself: urgent requests, and when jobs of messages are there whose producers say so.

use headway_core::decisions::dispatch::DispatchInput;
use headway_core::plan::{PipelineSource, Plan};
use headway_core::units::Nanos;

/// What a run of length `span` with so many `cycles` tells, in the order of time: requests at distances from zero to twice
/// their mean, and jobs from zero to as late as the workload says, all as likely.
pub(super) fn inputs(plan: &Plan, cycles: &[u64], span: Nanos, seed: u64) -> Vec<(Nanos, DispatchInput)> {
    let mut inputs = Vec::new();
    for (pipeline, of) in (0u32..).zip(&plan.pipelines) {
        let PipelineSource::Urgent(urgent) = of.source else { continue };
        let Some(every) = urgent.every else { continue };
        let mut at = of.start;
        for number in 0.. {
            at = at.saturating_add(below(every.saturating_add(every), seed, pipeline, number).max(Nanos(1)));
            if at >= span {
                break;
            }
            let (bytes, deadline, otherwise) = (urgent.bytes, urgent.deadline, urgent.otherwise);
            inputs.push((at, DispatchInput::Urgent { pipeline, bytes, deadline, otherwise }));
        }
    }
    for of in &plan.announced {
        let pipeline = &plan.pipelines[of.pipeline as usize];
        let (start, period, jobs) = match &pipeline.source {
            // Every cycle waits for its job. Plans count a message from its latest time.
            PipelineSource::Message => {
                let start = pipeline.start.saturating_sub(pipeline.period.saturating_sub(pipeline.window));
                (start, pipeline.period, cycles[of.pipeline as usize])
            }
            PipelineSource::Batch(parts) => {
                let message = &parts[of.part as usize].message;
                let start = message.start.saturating_sub(message.period.saturating_sub(message.deadline));
                let jobs = span.saturating_sub(start).0.div_ceil(message.period.0);
                (start, message.period, jobs)
            }
            _ => continue,
        };
        // A producer makes one job after the other; the same one fills all blocks of a message.
        let mut there = Nanos::ZERO;
        for job in 0..jobs {
            let late = below(of.late.saturating_add(Nanos(1)), !seed, of.message, job);
            there = there.max((start + period * job).saturating_add(late));
            inputs.push((there, DispatchInput::Ready { pipeline: of.pipeline, part: of.part, job }));
        }
    }
    inputs.sort_by_key(|(at, _)| *at);
    inputs
}

/// A time below `end` that follows from the other three (SplitMix64).
fn below(end: Nanos, seed: u64, who: u32, number: u64) -> Nanos {
    let mut mixed = seed ^ u64::from(who) << 48 ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = mixed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    Nanos(((u128::from(mixed) * u128::from(end.0)) >> 64) as u64)
}
