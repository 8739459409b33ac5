//! What transfers without windows got: the bytes of bulk ones, and what became of urgent requests.

use std::collections::BTreeMap;

use headway_core::decisions::dispatch::{DispatchEvent, UrgentAnswer};
use headway_core::log::RecordBody;
use headway_core::plan::{PipelineSource, ServiceClass};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos, Rate};
use serde::Serialize;

use crate::RunLog;
use crate::due;
use crate::response::{Response, order_statistics};
use crate::timeline::Timeline;

/// What a bulk transfer moved while others had their windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BulkSummary {
    pub id: String,
    /// Bytes of the chunks that arrived.
    pub bytes: Bytes,
    /// Bytes in all; `None` = endless.
    pub of: Option<Bytes>,
    /// Chunks that arrived.
    pub chunks: u64,
    /// From its start to its last byte; to the end of the run if it did not arrive whole.
    pub time: Nanos,
    /// Bytes by that time, rounded down.
    pub rate: Rate,
}

/// What became of urgent requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UrgentSummary {
    pub id: String,
    pub requests: u64,
    /// Of these, admitted.
    pub guaranteed: u64,
    /// Of these, sent behind what is guaranteed.
    pub best_effort: u64,
    /// Of these, refused.
    pub refused: u64,
    /// Of the admitted ones, complete after their deadlines, or never although they were due before the run ended.
    pub misses: u64,
    /// From request to completion, of the admitted ones.
    pub response: Option<Response>,
    /// From request to completion, of those behind.
    pub response_behind: Option<Response>,
}

/// The bulk transfers of a run, in the plan's order.
pub(crate) fn bulk(log: &RunLog, timeline: &Timeline) -> Vec<BulkSummary> {
    let mut all = Vec::new();
    for (number, pipeline) in (0u32..).zip(&log.header().plan.pipelines) {
        let PipelineSource::Bulk(of) = pipeline.source else { continue };
        let arrived = || timeline.jobs.iter().filter(move |job| job.pipeline == number && job.completed.is_some());
        let bytes = Bytes(arrived().fold(0, |sum: u64, job| sum.saturating_add(job.bytes.0)));
        let last = arrived().filter_map(|job| job.completed).max();
        let until = if of == Some(bytes) { last.unwrap_or(timeline.end) } else { timeline.end };
        let time = until.saturating_sub(timeline.epoch).saturating_sub(pipeline.start);
        let rate = u128::from(bytes.0) * u128::from(NANOS_PER_SECOND) / u128::from(time.0.max(1));
        let rate = Rate(u64::try_from(rate).unwrap_or(u64::MAX));
        all.push(BulkSummary { id: pipeline.name.clone(), bytes, of, chunks: arrived().count() as u64, time, rate });
    }
    all
}

/// The urgent requests of a run, by what they are for, in the plan's order.
pub(crate) fn urgent(log: &RunLog, timeline: &Timeline) -> Vec<UrgentSummary> {
    let mut all = Vec::new();
    let until = due::until(log, timeline);
    let is_urgent =
        |pipeline: u32| log.header().plan.pipelines[pipeline as usize].source.class() == ServiceClass::Urgent;
    let ended = timeline.jobs.iter().filter(|job| is_urgent(job.pipeline));
    let ended: BTreeMap<(u32, u64), Nanos> =
        ended.filter_map(|job| Some(((job.pipeline, job.cycle), job.completed?))).collect();
    for (number, pipeline) in (0u32..).zip(&log.header().plan.pipelines) {
        if pipeline.source.class() != ServiceClass::Urgent {
            continue;
        }
        let (mut guaranteed, mut behind) = (Vec::new(), Vec::new());
        let (mut refused, mut misses, mut best_effort, mut admitted) = (0, 0, 0, 0);
        for record in log.records() {
            let RecordBody::Event(DispatchEvent::Answered { pipeline, cycle, answer, .. }) = record.what else {
                continue;
            };
            if pipeline != number {
                continue;
            }
            let completed = ended.get(&(pipeline, cycle)).copied();
            let response = completed.map(|at| at.saturating_sub(record.at));
            match answer {
                UrgentAnswer::Guaranteed { deadline } => {
                    admitted += 1;
                    misses += u64::from(completed.map_or(deadline <= until, |at| at > deadline));
                    guaranteed.extend(response);
                }
                UrgentAnswer::BestEffort(_) => {
                    best_effort += 1;
                    behind.extend(response);
                }
                UrgentAnswer::Refused(_) => refused += 1,
            }
        }
        guaranteed.sort_unstable();
        behind.sort_unstable();
        all.push(UrgentSummary {
            id: pipeline.name.clone(),
            requests: admitted + best_effort + refused,
            guaranteed: admitted,
            best_effort,
            refused,
            misses,
            response: order_statistics(&guaranteed),
            response_behind: order_statistics(&behind),
        });
    }
    all
}
