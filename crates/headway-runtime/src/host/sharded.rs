//! The payload of a pipeline whose packets are divided: its places are memory of the host for every GPU.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use headway_core::files::machine::EngineClass;
use headway_core::files::workload::Sharding;
use headway_core::plan::payload::{Gathered, PayloadChunk};
use headway_core::plan::{self, Pipeline, Shard, Sharded, is_first_kernel};
use headway_core::units::Bytes;
use headway_device::work::{Items, Portion, Work, WorkError};

use super::HostError;
use crate::blocks::{DataError, Scatterer};
use crate::kernels::{Divided, Kernels};
use crate::shards;

/// What one GPU holds of a packet.
#[derive(Clone)]
struct Held {
    items: Vec<u8>,
    /// What the first kernels made of all items.
    summaries: Vec<u8>,
    /// The result, and scratch memory behind it.
    made: Vec<u8>,
    result: Vec<u8>,
}

/// A pipeline whose packets are divided.
pub(super) struct ShardedHost {
    planned: Sharded,
    items: Arc<dyn Items>,
    /// What works on the items of a GPU.
    first: Arc<dyn Work>,
    /// What works on the summaries of all items.
    second: Arc<dyn Work>,
    /// The state of the first kernel, for every GPU.
    states: Vec<Vec<u8>>,
    /// Items of every place of the ring that was sent before, for every GPU.
    rows: BTreeMap<u32, Vec<Vec<u8>>>,
    open: BTreeMap<u64, Vec<Held>>,
    spare: Vec<Vec<Held>>,
}

impl ShardedHost {
    pub(super) fn new(planned: &Sharded, kernels: &Kernels, number: u32) -> Result<Self, WorkError> {
        let Divided { first, second, items } = kernels.divided(number).clone();
        let mut states = Vec::new();
        for shard in &planned.shards {
            let own = &kernels.portions(number)[shard.first as usize..(shard.first + shard.items) as usize];
            let portions: Vec<Portion> = own.iter().map(without_operations).collect();
            let mut state = vec![0; first.state_bytes(portions.len())];
            first.init_state(&portions, &mut state)?;
            states.push(state);
        }
        let (rows, open, spare) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Ok(Self { planned: planned.clone(), items, first, second, states, rows, open, spare })
    }

    pub(super) fn gather(&mut self, pipeline: &Pipeline, cycle: u64) -> Result<Gathered, HostError> {
        let damaged = |source| DataError::Block { pipeline: pipeline.name.clone(), cycle, source };
        let planned = &self.planned;
        let row = shards::row(planned, cycle);
        let rows = match self.rows.entry(row) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let filled = planned.shards.iter().map(|shard| {
                    let mut items = vec![0; planned.block(shard).0 as usize];
                    shards::fill(self.items.as_ref(), planned, shard, row, &mut items)?;
                    Ok(items)
                });
                entry.insert(filled.collect::<Result<_, _>>().map_err(damaged)?)
            }
        };
        for (shard, items) in planned.shards.iter().zip(rows) {
            shards::number(planned, shard, cycle, items).map_err(damaged)?;
        }
        let second = self.second.as_ref();
        let held = self
            .spare
            .pop()
            .unwrap_or_else(|| planned.shards.iter().map(|shard| held(planned, shard, second)).collect());
        self.open.insert(cycle, held);
        Ok(Gathered { block: pipeline.reserve, longest_portion: planned.sharding.item })
    }

    pub(super) fn execute(&mut self, pipeline: &Pipeline, piece: &PayloadChunk) -> Result<(), HostError> {
        let open = self.open.get_mut(&piece.cycle).expect("a submitted cycle was gathered");
        let at = piece.index as usize;
        match &pipeline.steps[piece.step as usize].operations[at].work {
            plan::OperationWork::Copy { class: EngineClass::Peer, .. } => {
                let (from, to) = self.planned.peers().nth(at).expect("an exchange has a copy for each pair");
                let range = self.planned.summaries_of(&self.planned.shards[from]);
                let sent = open[from].summaries[range.clone()].to_vec();
                open[to].summaries[range].copy_from_slice(&sent);
            }
            plan::OperationWork::Copy { class: EngineClass::D2h, .. } => {
                let Held { made, result, .. } = &mut open[at];
                let bytes = result.len();
                result.copy_from_slice(&made[..bytes]);
            }
            plan::OperationWork::Copy { .. } => {
                let row = &self.rows[&shards::row(&self.planned, piece.cycle)][at];
                open[at].items.copy_from_slice(row);
                // The place in the ring may have been sent again since.
                let shard = &self.planned.shards[at];
                let numbered = shards::number(&self.planned, shard, piece.cycle, &mut open[at].items);
                let name = || pipeline.name.clone();
                numbered.map_err(|source| DataError::Block { pipeline: name(), cycle: piece.cycle, source })?;
            }
            plan::OperationWork::Compute { .. } if is_first_kernel(&pipeline.steps, piece.step as usize) => {
                let Held { items, summaries, .. } = &mut open[at];
                let own = &mut summaries[self.planned.summaries_of(&self.planned.shards[at])];
                self.first.run(items, own, &mut self.states[at])?;
            }
            plan::OperationWork::Compute { .. } => {
                let Held { summaries, made, .. } = &mut open[at];
                self.second.run(summaries, made, &mut [])?;
            }
            plan::OperationWork::Hold => {}
        }
        Ok(())
    }

    pub(super) fn deliver(&mut self, number: u32, cycle: u64, scatterer: &mut Scatterer) -> Result<(), HostError> {
        if let Some(held) = self.open.remove(&cycle) {
            let results: Vec<&[u8]> = held.iter().map(|held| held.result.as_slice()).collect();
            scatterer.scatter_results(number, cycle, &results)?;
            self.spare.push(held);
        }
        Ok(())
    }
}

/// Operations that only take time are left out: time is virtual here.
fn without_operations(portion: &Portion) -> Portion {
    let mut portion = portion.clone();
    if portion.parameters.number(Sharding::OPERATIONS).is_some() {
        portion.parameters = portion.parameters.with_number(Sharding::OPERATIONS, 0);
    }
    portion
}

fn held(planned: &Sharded, shard: &Shard, second: &dyn Work) -> Held {
    let bytes = |size: Bytes| vec![0; size.0 as usize];
    let all = planned.sharding.summaries(planned.sharding.items);
    Held {
        items: bytes(planned.block(shard)),
        summaries: bytes(all),
        made: vec![0; second.output_bytes(all.0 as usize, planned.sharding.items)],
        result: bytes(planned.sharding.summary),
    }
}
