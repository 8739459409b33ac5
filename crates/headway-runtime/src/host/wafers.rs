//! The payload of a wafer's pipeline: its places are memory of the host for every GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use headway_core::files::machine::EngineClass;
use headway_core::files::workload::Wafer;
use headway_core::plan::payload::{Gathered, Piece};
use headway_core::plan::{self, MERGE, Pipeline, PlannedWafer};
use headway_core::units::Bytes;
use headway_device::work::{Camera, Lane, Work, WorkError};
use headway_kernels::inspect::blocks::MergeBlock;

use super::HostError;
use crate::blocks::{DataError, Scatterer};
use crate::kernels::Kernels;
use crate::wafer::{Ring, synopses};

const LIST: usize = Wafer::SYNOPSIS.0 as usize;

/// What one GPU holds of a generation.
#[derive(Clone)]
struct Held {
    images: Vec<u8>,
    synopses: Vec<u8>,
    merged: Vec<u8>,
    list: Vec<u8>,
}

/// A wafer's pipeline.
pub(super) struct WaferHost {
    planned: PlannedWafer,
    ring: Ring,
    inspect: Arc<dyn Work>,
    merge: Arc<dyn Work>,
    /// What the kernel knows of the cameras, for every GPU.
    cameras: Vec<Vec<u8>>,
    /// Images of every place of the ring that was sent before, for every GPU.
    rows: BTreeMap<u32, Vec<Vec<u8>>>,
    open: BTreeMap<u64, Vec<Held>>,
    spare: Vec<Vec<Held>>,
}

impl WaferHost {
    /// `None` for plans that no planner makes: without both kernels, or with images that cannot be inspected.
    pub(super) fn new(planned: &PlannedWafer, kernels: &Kernels, number: u32) -> Result<Option<Self>, WorkError> {
        let stage = |merge| {
            let mut stages = kernels.stages();
            let found = stages.find(|(pipeline, _, kernel)| *pipeline == number && (kernel.id() == MERGE) == merge);
            found.map(|(.., kernel)| Arc::clone(kernel))
        };
        let (Ok(ring), Some(inspect), Some(merge)) = (Ring::new(&planned.wafer), stage(false), stage(true)) else {
            return Ok(None);
        };
        let mut cameras = Vec::new();
        for share in &planned.shares {
            let own = &kernels.lanes(number)[share.first as usize..(share.first + share.cameras) as usize];
            let lanes: Vec<Lane> = own.iter().map(without_chain).collect();
            let mut state = vec![0; inspect.state_bytes(lanes.len())];
            inspect.init_state(&lanes, &mut state)?;
            cameras.push(state);
        }
        let (rows, open, spare) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Ok(Some(Self { planned: planned.clone(), ring, inspect, merge, cameras, rows, open, spare }))
    }

    pub(super) fn gather(&mut self, pipeline: &Pipeline, cycle: u64) -> Result<Gathered, HostError> {
        let damaged = |source| DataError::Block { pipeline: pipeline.name.clone(), cycle, source };
        let (planned, ring) = (&self.planned, &self.ring);
        let row = ring.row(cycle);
        let rows = match self.rows.entry(row) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let filled = planned.shares.iter().map(|share| {
                    let mut images = vec![0; planned.block(share).0 as usize];
                    ring.fill(share, row, &mut images)?;
                    Ok(images)
                });
                entry.insert(filled.collect::<Result<_, _>>().map_err(damaged)?)
            }
        };
        for (share, images) in planned.shares.iter().zip(rows) {
            ring.number(share, cycle, images).map_err(damaged)?;
        }
        let held =
            self.spare.pop().unwrap_or_else(|| planned.shares.iter().map(|share| held(planned, share)).collect());
        self.open.insert(cycle, held);
        Ok(Gathered { block: pipeline.reserve, longest_lane: planned.wafer.image() })
    }

    pub(super) fn execute(&mut self, pipeline: &Pipeline, piece: &Piece) -> Result<(), HostError> {
        let open = self.open.get_mut(&piece.cycle).expect("a submitted cycle was gathered");
        let at = piece.index as usize;
        match &pipeline.steps[piece.step as usize].operations[at].work {
            plan::Work::Copy { class: EngineClass::Peer, .. } => {
                let (from, to) = self.planned.peers().nth(at).expect("an exchange has a copy for each pair");
                let range = synopses(&self.planned.shares[from]);
                let sent = open[from].synopses[range.clone()].to_vec();
                open[to].synopses[range].copy_from_slice(&sent);
            }
            plan::Work::Copy { class: EngineClass::D2h, .. } => {
                let Held { merged, list, .. } = &mut open[at];
                list.copy_from_slice(&merged[..LIST]);
            }
            plan::Work::Copy { .. } => {
                let row = &self.rows[&self.ring.row(piece.cycle)][at];
                open[at].images.copy_from_slice(row);
                // The place in the ring may have been sent again since.
                let share = &self.planned.shares[at];
                let numbered = self.ring.number(share, piece.cycle, &mut open[at].images);
                let name = || pipeline.name.clone();
                numbered.map_err(|source| DataError::Block { pipeline: name(), cycle: piece.cycle, source })?;
            }
            plan::Work::Compute { kernel } if kernel == MERGE => {
                let Held { synopses, merged, .. } = &mut open[at];
                self.merge.run(synopses, merged, &mut [])?;
            }
            plan::Work::Compute { .. } => {
                let Held { images, synopses: all, .. } = &mut open[at];
                let own = &mut all[synopses(&self.planned.shares[at])];
                self.inspect.run(images, own, &mut self.cameras[at])?;
            }
            plan::Work::Hold => {}
        }
        Ok(())
    }

    pub(super) fn deliver(&mut self, number: u32, cycle: u64, scatterer: &mut Scatterer) -> Result<(), HostError> {
        if let Some(held) = self.open.remove(&cycle) {
            let lists: Vec<&[u8]> = held.iter().map(|held| held.list.as_slice()).collect();
            scatterer.scatter_lists(number, cycle, &lists)?;
            self.spare.push(held);
        }
        Ok(())
    }
}

/// The chain of operations finds nothing, and its time is virtual here.
fn without_chain(lane: &Lane) -> Lane {
    let camera = lane.camera.map(|camera| Camera { wafer: Wafer { operations: 0, ..camera.wafer }, ..camera });
    Lane { camera, ..lane.clone() }
}

fn held(planned: &PlannedWafer, share: &plan::Share) -> Held {
    let bytes = |size: Bytes| vec![0; size.0 as usize];
    Held {
        images: bytes(planned.block(share)),
        synopses: bytes(PlannedWafer::synopses(planned.wafer.cameras)),
        merged: vec![0; MergeBlock::output(planned.wafer.cameras as usize)],
        list: vec![0; LIST],
    }
}
