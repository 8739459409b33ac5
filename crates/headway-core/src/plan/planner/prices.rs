//! What copies cost.

use std::collections::BTreeMap;

use super::demands::routes_of;
use super::{Context, Domains, Draft, PlanError};
use crate::analysis::schedulability::ChunkFlow;
use crate::files::machine::{EngineId, RouteId};
use crate::interconnect::BatchBlock;
use crate::plan::{OperationWork, PipelineSource, PlannedStep};
use crate::units::{Bytes, Nanos, PPM, Rate};

/// Sets the worst-case cost of every copy step of a stream.
pub(super) fn price(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    let used = routes_of(&draft.pipelines);
    let domains = &draft.domains;
    for pipeline in draft.pipelines.iter_mut().filter(|pipeline| pipeline.source.is_planned()) {
        let batch = matches!(pipeline.source, PipelineSource::Message | PipelineSource::Batch(_));
        if batch && !context.strategy.lets_gpus_overlap() {
            // The batch has all copy engines of its domain to itself: its own bound holds.
            pipeline.steps.iter_mut().for_each(|step| step.chunk_cost = step.cost);
            continue;
        }
        if let Some(one_by_one) = pipeline.source.copies_one_by_one() {
            for step in &mut pipeline.steps {
                context.price_set(step, one_by_one, &used, domains)?;
            }
            continue;
        }
        for step in &mut pipeline.steps {
            let time = |route, bytes| context.copy_time(route, bytes, &used, domains);
            if let Some(cost) = context.side_by_side(step, time)? {
                step.cost = cost;
            }
            step.chunk_cost = step.cost;
        }
    }
    Ok(draft)
}

impl Context<'_> {
    /// Sets cost and longest chunk of a step whose operations run at the same time: those of its kernels are known.
    fn price_set(
        &self,
        step: &mut PlannedStep,
        one_by_one: bool,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<(), PlanError> {
        let copies = if self.strategy.lets_gpus_overlap() {
            // Also the copies of one GPU run at the same time, which otherwise wait for each other.
            let time = |route, bytes| match step.operations.len() {
                1 => self.copy_time(route, bytes, used, domains),
                _ => self.copy_time_beside(route, bytes, used, domains),
            };
            self.side_by_side(step, time)?.map(|cost| (cost, cost))
        } else {
            self.batch_of_step(step, one_by_one && step.only_copies(), used, domains)?
        };
        let (cost, chunk) = copies.unwrap_or_default();
        (step.cost, step.chunk_cost) = (step.cost.max(cost), step.cost.max(chunk));
        Ok(())
    }

    /// What the copies of a step cost together, and the longest chunk that runs without preemption; `None` = it has none.
    ///
    /// As a batch: its bound holds where nothing else of the domain runs at the same time. Or one by one: the sum.
    fn batch_of_step(
        &self,
        step: &PlannedStep,
        one_by_one: bool,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<Option<(Nanos, Nanos)>, PlanError> {
        let blocks = step.operations.iter().filter_map(|operation| match operation.work {
            OperationWork::Copy { route, bytes, .. } => Some(BatchBlock { route, bytes }),
            OperationWork::Compute { .. } | OperationWork::Hold => None,
        });
        let blocks: Vec<BatchBlock> = blocks.collect();
        if blocks.is_empty() {
            return Ok(None);
        }
        let calibration = self.machine.calibration.as_ref();
        if one_by_one {
            let mut cost = Nanos::ZERO;
            let mut chunk = Nanos::ZERO;
            for block in &blocks {
                let alone = self.with_margin(self.copy_time(block.route, block.bytes, used, domains)?);
                (cost, chunk) = (cost.saturating_add(alone), chunk.max(alone));
            }
            return Ok(Some((cost, chunk)));
        }
        // What lies in different domains goes side by side.
        let mut parts: BTreeMap<Option<usize>, Vec<BatchBlock>> = BTreeMap::new();
        for block in blocks {
            parts.entry(domains.of(block.route)).or_default().push(block);
        }
        let mut cost = Nanos::ZERO;
        for part in parts.values() {
            cost = cost.max(domains.network(part[0].route).wcet(part, calibration)?.value);
        }
        Ok(Some((cost, cost)))
    }

    /// What the copies of a step cost where each takes `time` at most whatever the others do; `None` = it has none.
    fn side_by_side(
        &self,
        step: &PlannedStep,
        time: impl Fn(RouteId, Bytes) -> Result<Nanos, PlanError>,
    ) -> Result<Option<Nanos>, PlanError> {
        let mut per_engines: BTreeMap<Vec<EngineId>, Nanos> = BTreeMap::new();
        for operation in &step.operations {
            let OperationWork::Copy { route, bytes, .. } = operation.work else { continue };
            let sum = per_engines.entry(operation.engines.clone()).or_default();
            *sum = sum.saturating_add(time(route, bytes)?);
        }
        Ok(longest(&per_engines).map(|cost| self.with_margin(cost)))
    }

    /// Set-up and bytes at the rate that the route keeps whatever the rest of the plan does.
    pub(super) fn copy_time(
        &self,
        route: RouteId,
        bytes: Bytes,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<Nanos, PlanError> {
        self.copy_time_beside(route, bytes, &self.concurrent(route, used), domains)
    }

    /// Like [`Self::copy_time`] at the rate that the route keeps while all of `used` copy.
    fn copy_time_beside(
        &self,
        route: RouteId,
        bytes: Bytes,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<Nanos, PlanError> {
        let (setup, rate) = self.keeps_beside(route, used, domains)?;
        Ok(setup.saturating_add(rate.time_for(bytes)))
    }

    /// The set-up time and the rate of a route that hold whatever the rest of the plan does.
    fn keeps(&self, route: RouteId, used: &[RouteId], domains: &Domains) -> Result<(Nanos, Rate), PlanError> {
        self.keeps_beside(route, &self.concurrent(route, used), domains)
    }

    /// The routes of `used` whose copies may run beside one on `route`, that route included.
    fn concurrent(&self, route: RouteId, used: &[RouteId]) -> Vec<RouteId> {
        // Without `meets`, no other copy ever runs beside one that is priced here.
        let meets = |other| self.strategy.row().meets.is_some_and(|meets| meets(self, route, other));
        used.iter().copied().filter(|other| *other == route || meets(*other)).collect()
    }

    /// The rate that a route keeps while all of `concurrent`, the route itself included, copy.
    fn keeps_beside(
        &self,
        route: RouteId,
        concurrent: &[RouteId],
        domains: &Domains,
    ) -> Result<(Nanos, Rate), PlanError> {
        let planned = &self.machine.routes[route.at()];
        let rate = domains.network(route).guaranteed_rate(route, concurrent)?;
        Ok((planned.setup.max(planned.setup_queued), rate))
    }

    /// A copy in chunks, without deadline: the margin as a slower rate, the jitter as part of every chunk's set-up, since each
    /// chunk is noticed by itself.
    pub(super) fn in_chunks(
        &self,
        route: RouteId,
        bytes: Bytes,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<ChunkFlow, PlanError> {
        let (setup, rate) = self.keeps(route, used, domains)?;
        let margin = u128::from(PPM) + self.machine.calibration.as_ref().map_or(0, |c| u128::from(c.margin_ppm));
        let rate = Rate((u128::from(rate.0) * u128::from(PPM) / margin) as u64);
        Ok(ChunkFlow { bytes, setup: self.with_margin(setup), rate, period: Nanos::MAX, deadline: Nanos::MAX })
    }
}

/// Operations on different engines run side by side, unless one of them holds several engines.
fn longest(per_engines: &BTreeMap<Vec<EngineId>, Nanos>) -> Option<Nanos> {
    let times = per_engines.values().copied();
    if per_engines.keys().any(|engines| engines.len() > 1) { times.reduce(Nanos::saturating_add) } else { times.max() }
}
