//! The combined strategy: per domain one server, with messages combined into batches.

use super::{Context, StrategyRow, Tried, none_tied, unnamed};
use crate::analysis::schedulability::{RecurrentTask, passes};
use crate::files::machine::RouteId;
use crate::interconnect::{BatchBlock, Network};
use crate::plan::combine::{CombineOptions, Pricer, Transformed, transform};
use crate::plan::message::{Batch, Elementary, MessageError, MessageSet};
use crate::plan::planner::batches::{batch_step, block_name, part_name, priced_batch};
use crate::plan::planner::demands::routes_of;
use crate::plan::planner::{Draft, PlanError};
use crate::plan::{Carried, OperationWork, Pipeline, PipelineSource, PlannedBatch};
use crate::units::{Bytes, Nanos, PPM, percent};

pub(super) const ROW: StrategyRow = StrategyRow {
    name: "combined",
    summary: "messages combined into batches, one batch at a time where transfers share something",
    tried: Tried::WhereBatchesAre,
    is_baseline: false,
    gangs: None,
    one_by_one: false,
    batches_streams: true,
    messages: combine,
    // What shares a domain is one server, which the domains say.
    tied: none_tied,
    meets: None,
    server_name: unnamed,
};

/// The transfers of a plan by what they share; each domain has its own combining, test and queue.
pub(in crate::plan::planner) struct Domains {
    /// The routes of each domain and the network as it sees it.
    parts: Vec<(Vec<RouteId>, Network)>,
    whole: Network,
}

impl Domains {
    /// No domains: everything on the node as it is.
    pub(in crate::plan::planner) fn whole(network: &Network) -> Self {
        Self { parts: Vec::new(), whole: network.clone() }
    }

    pub(in crate::plan::planner) fn routes(&self) -> impl Iterator<Item = &[RouteId]> {
        self.parts.iter().map(|(routes, _)| routes.as_slice())
    }

    pub(in crate::plan::planner) fn of(&self, route: RouteId) -> Option<usize> {
        self.parts.iter().position(|(routes, _)| routes.contains(&route))
    }

    /// The network as the domain of `route` sees it: other domains may be busy.
    pub(in crate::plan::planner) fn network(&self, route: RouteId) -> &Network {
        self.of(route).map_or(&self.whole, |at| &self.parts[at].1)
    }
}

/// A block of a message of the workload.
struct DomainBlock {
    message: usize,
    of: Elementary,
    label: String,
}

/// The domains of all transfers of streams, of messages, and without windows.
fn domains(context: &Context<'_>, pipelines: &[Pipeline]) -> Result<Domains, PlanError> {
    let mut routes: Vec<RouteId> = routes_of(pipelines);
    for message in &context.workload.messages {
        routes.extend(context.blocks(message)?.iter().map(|block| block.route));
    }
    for of in &context.workload.unplanned {
        routes.push(context.method(of)?);
    }
    routes.sort_unstable();
    routes.dedup();
    let sigma_ppm = context.machine.calibration.as_ref().map_or(PPM, |c| c.sigma_ppm);
    let domain = context.network.domains(&routes, sigma_ppm);
    let count = domain.iter().max().map_or(0, |last| last + 1);
    let part = |number: usize| {
        let split = |inside: bool| {
            let chosen = routes.iter().zip(&domain).filter(|(_, of)| (**of == number) == inside);
            chosen.map(|(route, _)| *route).collect::<Vec<RouteId>>()
        };
        (split(true), context.network.loaded_by(&split(false)))
    };
    Ok(Domains { parts: (0..count).map(part).collect(), whole: context.network.clone() })
}

/// Combines the messages of every domain and adds a pipeline per batch.
///
/// A message with `late` counts from its latest time, as it does alone: no slot that it needs opens before.
fn combine(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    let domains = domains(context, &draft.pipelines)?;
    let mut parts: Vec<Vec<DomainBlock>> = domains.parts.iter().map(|_| Vec::new()).collect();
    for (number, message) in context.workload.messages.iter().enumerate() {
        for (at, block) in context.blocks(message)?.into_iter().enumerate() {
            let name = part_name(message, at);
            let of = Elementary::periodic(name, block.route, block.bytes, message.period, message.start);
            let of = of.with_jitter(message.window_after()).map_err(|error| senseless(&error))?;
            let label = block_name(&message.blocks[at]);
            let domain = domains.of(block.route).expect("every route of the plan is in a domain");
            parts[domain].push(DomainBlock { message: number, of, label });
        }
    }
    for (domain, parts) in parts.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
        let fixed = fixed(context, &draft.pipelines, domain, &domains)?;
        let elementary: Vec<Elementary> = parts.iter().map(|part| part.of.clone()).collect();
        let groups: Vec<usize> = parts.iter().map(|part| part.message).collect();
        let set = MessageSet::grouped(elementary, &groups).map_err(|error| senseless(&error))?;
        let network = &domains.parts[domain].1;
        let transformed = transformed(context, &set, network, &fixed)?;
        draft.notes.extend(summary(&set, &transformed));
        for priced in &transformed.batches {
            let (pipeline, batch) = batch_pipeline(context, &parts, &priced.batch, network)?;
            draft.pipelines.push(pipeline);
            draft.batches.push(batch);
        }
    }
    Ok(Draft { domains, ..draft })
}

fn senseless(error: &MessageError) -> PlanError {
    PlanError::Impossible { place: String::new(), object: "the set of messages".to_owned(), reason: error.to_string() }
}

/// What the streams ask of a domain's server.
fn fixed(
    context: &Context<'_>,
    pipelines: &[Pipeline],
    domain: usize,
    domains: &Domains,
) -> Result<Vec<RecurrentTask>, PlanError> {
    let mut tasks = Vec::new();
    for pipeline in pipelines.iter().filter(|p| p.source.is_fed()) {
        for step in &pipeline.steps {
            let mut cost = Nanos::ZERO;
            for operation in &step.operations {
                let OperationWork::Copy { route, bytes, .. } = operation.work else { continue };
                if domains.of(route) == Some(domain) {
                    cost = cost.saturating_add(context.copy_time(route, bytes, &[route], domains)?);
                }
            }
            if cost > Nanos::ZERO {
                tasks.push(RecurrentTask::whole(context.with_margin(cost), pipeline.period, pipeline.window));
            }
        }
    }
    Ok(tasks)
}

fn transformed(
    context: &Context<'_>,
    set: &MessageSet,
    network: &Network,
    fixed: &[RecurrentTask],
) -> Result<Transformed, PlanError> {
    let mut pricer = Pricer::new(network, context.machine.calibration.as_ref());
    let mut accepts = |batches: &[RecurrentTask]| passes(&[fixed, batches].concat());
    let options = CombineOptions { mode: context.workload.transform, ..CombineOptions::default() };
    Ok(transform(set, &mut pricer, options, &mut accepts)?)
}

fn batch_pipeline(
    context: &Context<'_>,
    parts: &[DomainBlock],
    batch: &Batch,
    network: &Network,
) -> Result<(Pipeline, PlannedBatch), PlanError> {
    let part = |at: usize| &parts[batch.members[at].elementary as usize];
    let blocks: Vec<_> = (0..batch.members.len())
        .map(|at| BatchBlock { route: part(at).of.route, bytes: batch.members[at].reserve })
        .collect();
    let label = |at: usize| {
        let DomainBlock { of, label, .. } = part(at);
        match batch.members[at].parts_max() {
            1 => format!("{}: {label}", of.name),
            parts => format!("{}: {label} in {parts} parts", of.name),
        }
    };
    let names: Vec<String> = (0..batch.members.len()).map(label).collect();
    let name = match batch.members.as_slice() {
        [_] => part(0).of.name.clone(),
        members => format!("{} and {} more", part(0).of.name, members.len() - 1),
    };
    let (order, planned) = priced_batch(context, network, &name, &blocks, &names)?;
    let carried = order.iter().map(|&at| Carried { message: part(at).of.clone(), member: batch.members[at].clone() });
    let pipeline = Pipeline {
        name: name.clone(),
        source: PipelineSource::Batch(carried.collect()),
        gpu: None,
        period: batch.grid.period,
        start: batch.grid.start,
        gather: Nanos::ZERO,
        window: batch.grid.window,
        reserve: Bytes(blocks.iter().fold(0, |sum: u64, block| sum.saturating_add(block.bytes.0))),
        steps: vec![batch_step(context, &name, planned.worst_case, order.iter().map(|&at| blocks[at]))],
        windows: Vec::new(),
        gang: None,
    };
    Ok((pipeline, planned))
}

/// What combining did, in one sentence; nothing where it changed nothing that can be seen.
fn summary(set: &MessageSet, transformed: &Transformed) -> Option<String> {
    let before = transformed.sums.first().map_or(0, |sum| sum.ppm());
    let (blocks, batches) = (set.elementary.len(), transformed.batches.len());
    let (used, without) = (percent(transformed.sum().ppm()), percent(before));
    let differs = used != without;
    if !differs && batches >= blocks && transformed.accepted {
        return None;
    }
    let count = |n: usize, one: &str, more: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {more}") };
    Some(format!(
        "{} of messages in {}{}{}",
        count(blocks, "block", "blocks"),
        count(batches, "batch", "batches"),
        if differs { format!(": utilisation {used} instead of {without}") } else { String::new() },
        if transformed.accepted { "" } else { "; no combination passes the test" },
    ))
}
