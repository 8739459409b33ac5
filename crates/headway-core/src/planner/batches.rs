//! Messages: batches whose blocks move in parallel, in the order that ends first.

use super::{BatchBlock, Bytes, Message, Nanos, Pipeline, PlanError, PlannedBatch, PlannedStep, Planner, Source};
use crate::interconnect::Completion;
use crate::plan::RateInterval;
use crate::workload::Flow;

impl Planner<'_> {
    /// A message as a pipeline of one step, with the prediction for its batch.
    pub(super) fn message(&self, message: &Message) -> Result<(Pipeline, PlannedBatch), PlanError> {
        let blocks = self.blocks(message)?;
        let order = self.network.best_order(&blocks)?;
        let ordered: Vec<BatchBlock> = order.iter().map(|&at| blocks[at]).collect();
        let names: Vec<String> = order
            .iter()
            .map(|&at| {
                format!("{} -> {} ({})", message.blocks[at].from, message.blocks[at].to, message.blocks[at].bytes)
            })
            .collect();
        let completion = self.network.completion(&ordered)?;
        let wcet = self.network.wcet(&ordered, self.machine.calibration.as_ref())?;
        let total = Bytes(blocks.iter().fold(0, |sum: u64, block| sum.saturating_add(block.bytes.0)));
        let step = PlannedStep {
            name: message.id.clone(),
            server: 0,
            cost: wcet.value,
            chunk: Bytes(0),
            piece: Nanos::ZERO,
            operations: ordered.iter().map(|block| self.copy(block.route, block.bytes)).collect(),
        };
        let pipeline = Pipeline {
            name: message.id.clone(),
            source: Source::Message,
            gpu: None,
            period: message.period,
            start: message.start,
            gather: Nanos::ZERO,
            window: message.period,
            reserve: total,
            steps: vec![step],
        };
        let bounds = [("serial", Some(wcet.serial)), ("load", wcet.load), ("share", wcet.share), ("twin", wcet.twin)];
        let bounds = bounds.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), bound?))).collect();
        let batch = PlannedBatch {
            name: message.id.clone(),
            predicted: completion.finish,
            worst_case: wcet.value,
            bounds,
            blocks: names.iter().cloned().zip(completion.blocks.iter().copied()).collect(),
            intervals: self.intervals(&names, &completion),
        };
        Ok((pipeline, batch))
    }

    fn blocks(&self, message: &Message) -> Result<Vec<BatchBlock>, PlanError> {
        let mut blocks = Vec::new();
        for (number, block) in message.blocks.iter().enumerate() {
            let place = format!("message.{}.blocks.{number}", message.id);
            let object = format!("message `{}`", message.id);
            let end = |name: &str| {
                self.machine.endpoint(name).ok_or_else(|| {
                    let known: Vec<&str> = self.machine.endpoints.iter().map(|e| e.id.as_str()).collect();
                    PlanError::UnknownName {
                        place: place.clone(),
                        object: object.clone(),
                        name: name.to_owned(),
                        machine: self.machine.name.clone(),
                        known: known.join(", "),
                    }
                })
            };
            let (from, to) = (end(&block.from)?, end(&block.to)?);
            let route = self.route(from, to).ok_or_else(|| PlanError::NoRoute {
                place: place.clone(),
                object: object.clone(),
                from: block.from.clone(),
                to: block.to.clone(),
                machine: self.machine.name.clone(),
            })?;
            blocks.push(BatchBlock { route, bytes: block.bytes });
        }
        Ok(blocks)
    }

    fn intervals(&self, names: &[String], completion: &Completion) -> Vec<RateInterval> {
        let capacity = |id: crate::machine::CapacityId| self.machine.capacities[id.at()].id.clone();
        let intervals = completion.intervals.iter();
        intervals
            .map(|interval| RateInterval {
                from: interval.from,
                to: interval.to,
                rates: interval
                    .active
                    .iter()
                    .map(|(block, share)| (names[*block].clone(), share.rate, capacity(share.limited_by)))
                    .collect(),
            })
            .collect()
    }

    /// A flow as a pipeline of one step that only holds its server.
    pub(super) fn flow(flow: &Flow) -> Pipeline {
        Pipeline {
            name: flow.id.clone(),
            source: Source::Flow,
            gpu: None,
            period: flow.period,
            start: flow.start,
            gather: Nanos::ZERO,
            window: flow.deadline,
            reserve: Bytes(1),
            steps: vec![PlannedStep {
                name: flow.server.clone(),
                server: 0,
                cost: flow.cost,
                chunk: Bytes(0),
                piece: Nanos::ZERO,
                operations: vec![super::PlannedOperation { engines: Vec::new(), work: super::Work::Hold }],
            }],
        }
    }
}
