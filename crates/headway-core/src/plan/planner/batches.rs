//! Messages: batches whose blocks move in parallel, in the order that ends first.

use std::collections::BTreeMap;

use super::{
    Announced, BatchBlock, Bytes, Message, Nanos, Network, Pipeline, PipelineSource, PlanError, PlannedBatch,
    PlannedStep, Planner,
};
use crate::files::workload::{MessageBlock, ServerDemand};
use crate::models::interconnect::BatchCompletion;
use crate::plan::RateInterval;

/// Batches of at most this many blocks have their order sought; larger ones keep that of their routes.
const ORDERED_MAX: usize = 64;

impl Planner<'_> {
    /// Every message as a batch of its own.
    pub(super) fn messages(
        &self,
        pipelines: &mut Vec<Pipeline>,
        batches: &mut Vec<PlannedBatch>,
    ) -> Result<(), PlanError> {
        for message in &self.workload.messages {
            let names = message.blocks.iter().map(block_name).collect();
            let (pipeline, batch) = self.message(message, &message.id, self.blocks(message)?, names)?;
            pipelines.push(pipeline);
            batches.push(batch);
        }
        Ok(())
    }

    /// Every block of every message by itself.
    pub(super) fn single_blocks(
        &self,
        pipelines: &mut Vec<Pipeline>,
        batches: &mut Vec<PlannedBatch>,
    ) -> Result<(), PlanError> {
        for message in &self.workload.messages {
            for (number, block) in self.blocks(message)?.into_iter().enumerate() {
                let names = vec![block_name(&message.blocks[number])];
                let (pipeline, batch) = self.message(message, &part_name(message, number), vec![block], names)?;
                pipelines.push(pipeline);
                batches.push(batch);
            }
        }
        Ok(())
    }

    /// A message, or a part of it, as a pipeline of one step, with the prediction for its batch.
    fn message(
        &self,
        message: &Message,
        name: &str,
        blocks: Vec<BatchBlock>,
        names: Vec<String>,
    ) -> Result<(Pipeline, PlannedBatch), PlanError> {
        let (order, batch) = self.batch(self.network, name, &blocks, &names)?;
        let step = self.batch_step(name, batch.worst_case, order.iter().map(|&at| blocks[at]));
        let pipeline = Pipeline {
            name: name.to_owned(),
            source: PipelineSource::Message,
            gpu: None,
            period: message.period,
            start: message.start.saturating_add(message.window_after()),
            gather: Nanos::ZERO,
            window: message.period - message.window_after(),
            reserve: total(&blocks),
            steps: vec![step],
            windows: Vec::new(),
            gang: None,
        };
        Ok((pipeline, batch))
    }

    /// The one step of a batch, whose blocks are given in their order.
    pub(super) fn batch_step(&self, name: &str, cost: Nanos, ordered: impl Iterator<Item = BatchBlock>) -> PlannedStep {
        PlannedStep {
            name: name.to_owned(),
            server: 0,
            cost,
            chunk: Bytes(0),
            piece: cost,
            hold: None,
            bound: None,
            operations: ordered.map(|block| self.copy(block.route, block.bytes)).collect(),
            batch: None,
        }
    }

    /// The order in which the blocks of a batch are submitted, and what is known of it then.
    pub(super) fn batch(
        &self,
        network: &Network,
        name: &str,
        blocks: &[BatchBlock],
        names: &[String],
    ) -> Result<(Vec<usize>, PlannedBatch), PlanError> {
        let calibration = self.machine.calibration.as_ref();
        let in_order = |order: &[usize]| order.iter().map(|&at| blocks[at]).collect::<Vec<BatchBlock>>();
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        order.sort_by_key(|&at| (blocks[at], at));
        if blocks.len() <= ORDERED_MAX {
            // The order that ends first by prediction, unless the other one has the lower bound.
            let first = network.best_order(blocks)?;
            let [sorted, best] = [&order, &first].map(|order| network.wcet(&in_order(order), calibration));
            if best?.value <= sorted?.value {
                order = first;
            }
        }
        let ordered = in_order(&order);
        let names: Vec<String> = order.iter().map(|&at| names[at].clone()).collect();
        let completion = network.completion(&ordered)?;
        let wcet = network.wcet(&ordered, calibration)?;
        let bounds = [("serial", Some(wcet.serial)), ("load", wcet.load), ("share", wcet.share), ("twin", wcet.twin)];
        let bounds = bounds.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), bound?))).collect();
        let batch = PlannedBatch {
            name: name.to_owned(),
            predicted: completion.finish,
            worst_case: wcet.value,
            bounds,
            blocks: names.iter().cloned().zip(completion.blocks.iter().copied()).collect(),
            intervals: self.intervals(&names, &completion),
        };
        Ok((order, batch))
    }

    pub(super) fn blocks(&self, message: &Message) -> Result<Vec<BatchBlock>, PlanError> {
        let mut blocks = Vec::new();
        for (number, block) in message.blocks.iter().enumerate() {
            let place = format!("message.{}.blocks.{number}", message.id);
            let object = format!("message `{}`", message.id);
            let [from, to] = ["from", "to"].map(|end| format!("{place}.{end}"));
            let route = self.named_route([&from, &to, &place], &object, &block.from, &block.to)?;
            blocks.push(BatchBlock { route, bytes: block.bytes });
        }
        Ok(blocks)
    }

    /// The route between two endpoints by their names; `places` are the keys of the one, of the other and of both.
    pub(super) fn named_route(
        &self,
        places: [&str; 3],
        object: &str,
        from: &str,
        to: &str,
    ) -> Result<crate::files::machine::RouteId, PlanError> {
        let end = |place: &str, name: &str| {
            self.machine.endpoint(name).ok_or_else(|| {
                let known: Vec<&str> = self.machine.endpoints.iter().map(|e| e.id.as_str()).collect();
                PlanError::UnknownName {
                    place: place.to_owned(),
                    object: object.to_owned(),
                    name: name.to_owned(),
                    machine: self.machine.name.clone(),
                    known: known.join(", "),
                }
            })
        };
        self.route(end(places[0], from)?, end(places[1], to)?).ok_or_else(|| PlanError::NoRoute {
            place: places[2].to_owned(),
            object: object.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            machine: self.machine.name.clone(),
        })
    }

    fn intervals(&self, names: &[String], completion: &BatchCompletion) -> Vec<RateInterval> {
        let capacity = |id: crate::files::machine::CapacityId| self.machine.capacities[id.at()].id.clone();
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

    /// The blocks whose producers say when they are there, in the order of pipelines.
    pub(super) fn announced(&self, pipelines: &[Pipeline]) -> Vec<Announced> {
        let mut late: BTreeMap<String, (u32, Nanos)> = BTreeMap::new();
        for (at, message) in (0u32..).zip(&self.workload.messages) {
            let Some(most) = message.late else { continue };
            late.insert(message.id.clone(), (at, most));
            late.extend((0..message.blocks.len()).map(|block| (part_name(message, block), (at, most))));
        }
        let mut all = Vec::new();
        for (pipeline, of) in (0u32..).zip(pipelines) {
            let names: Vec<&str> = match &of.source {
                PipelineSource::Message => vec![&of.name],
                PipelineSource::Batch(parts) => parts.iter().map(|part| part.message.name.as_str()).collect(),
                _ => continue,
            };
            for (part, name) in (0u32..).zip(names) {
                let Some(&(message, late)) = late.get(name) else { continue };
                all.push(Announced { message, pipeline, part, late });
            }
        }
        all
    }

    /// What is left for the message whose producer may take most of its period.
    pub(super) fn note_on_producers(&self) -> Option<String> {
        let late = self.workload.messages.iter().filter(|message| message.window_after() > Nanos::ZERO);
        let least = late.min_by_key(|message| message.period - message.window_after())?;
        let (id, late) = (&least.id, least.late?);
        Some(if late < least.period {
            let left = least.period - late;
            format!(
                "the blocks of `{id}` may be there {late} after their release (`late`): of its period {left} are left to move them"
            )
        } else {
            format!(
                "the blocks of `{id}` may be there {late} after their release (`late`) and must arrive within {}: its deadlines \
                 cannot be promised",
                least.period
            )
        })
    }

    /// A demand as a pipeline of one step that only holds its server. Its cost has margin and jitter as every other: a job that
    /// is released as late as the jitter allows is within the test as well.
    pub(super) fn demand(&self, demand: &ServerDemand) -> Pipeline {
        let cost = self.with_margin(demand.cost);
        Pipeline {
            name: demand.id.clone(),
            source: PipelineSource::Demand,
            gpu: None,
            period: demand.period,
            start: demand.start,
            gather: Nanos::ZERO,
            window: demand.deadline,
            reserve: Bytes(1),
            steps: vec![PlannedStep {
                name: demand.server.clone(),
                server: 0,
                cost,
                chunk: Bytes(0),
                piece: Nanos::ZERO,
                hold: (cost != demand.cost).then_some(demand.cost),
                bound: None,
                operations: vec![super::PlannedOperation { engines: Vec::new(), work: super::OperationWork::Hold }],
                batch: None,
            }],
            windows: Vec::new(),
            gang: None,
        }
    }
}

/// The bytes of all blocks.
pub(super) fn total(blocks: &[BatchBlock]) -> Bytes {
    Bytes(blocks.iter().fold(0, |sum: u64, block| sum.saturating_add(block.bytes.0)))
}

pub(super) fn block_name(block: &MessageBlock) -> String {
    format!("{} -> {} ({})", block.from, block.to, block.bytes)
}

/// What a block of a message is called where it is by itself.
pub(super) fn part_name(message: &Message, number: usize) -> String {
    if message.blocks.len() == 1 { message.id.clone() } else { format!("{}.{number}", message.id) }
}
