//! What a batch costs, from the bytes and blocks of each route.

use std::collections::BTreeMap;

use crate::files::machine::{Calibration, RouteId};
use crate::interconnect::{BatchBlock, BatchShape, Network, Starved, Total};
use crate::units::Nanos;

/// Shapes kept ready; all are forgotten when there are more.
const SHAPES_MAX: usize = 4096;
/// Unions of sets numbered below this are kept in a table, others in a tree.
const TABLE_MAX: u32 = 1024;
const UNKNOWN: u32 = u32::MAX;

/// A set of routes that the pricer has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SetId(u32);

/// Prices batches on one machine, and remembers what depends on their routes only.
#[derive(Clone, Debug)]
pub struct Pricer<'a> {
    network: &'a Network,
    calibration: Option<&'a Calibration>,
    sets: Vec<Box<[RouteId]>>,
    numbers: BTreeMap<Box<[RouteId]>, SetId>,
    table: Vec<Vec<u32>>,
    tree: BTreeMap<(SetId, SetId), SetId>,
    shapes: Vec<Option<Box<BatchShape>>>,
    ready: usize,
    merged: Vec<Total>,
}

impl<'a> Pricer<'a> {
    /// For batches on `network`; without a calibration only the serial bound is used.
    #[must_use]
    pub const fn new(network: &'a Network, calibration: Option<&'a Calibration>) -> Self {
        Self {
            network,
            calibration,
            sets: Vec::new(),
            numbers: BTreeMap::new(),
            table: Vec::new(),
            tree: BTreeMap::new(),
            shapes: Vec::new(),
            ready: 0,
            merged: Vec::new(),
        }
    }

    /// The worst-case time of a batch of these blocks: never below what [`Network::wcet`] gives for them in the order of
    /// their routes.
    ///
    /// # Errors
    /// [`Starved`] when some block would get no rate.
    pub fn price(&mut self, blocks: &[BatchBlock]) -> Result<Nanos, Starved> {
        let (set, totals) = self.totals(blocks);
        self.wcet(set, &totals)
    }

    pub(super) const fn network(&self) -> &'a Network {
        self.network
    }

    pub(super) const fn calibration(&self) -> Option<&'a Calibration> {
        self.calibration
    }

    /// Bytes and blocks by route.
    pub(super) fn totals(&mut self, blocks: &[BatchBlock]) -> (SetId, Vec<Total>) {
        let mut by_route: BTreeMap<RouteId, Total> = BTreeMap::new();
        for block in blocks {
            let total = by_route.entry(block.route).or_default();
            total.bytes = total.bytes.saturating_add(block.bytes.0);
            total.blocks += 1;
        }
        let (routes, totals): (Vec<RouteId>, Vec<Total>) = by_route.into_iter().unzip();
        (self.number(&routes), totals)
    }

    pub(super) fn routes(&self, set: SetId) -> &[RouteId] {
        &self.sets[set.0 as usize]
    }

    fn number(&mut self, routes: &[RouteId]) -> SetId {
        if let Some(&known) = self.numbers.get(routes) {
            return known;
        }
        let number = SetId(self.sets.len() as u32);
        self.sets.push(routes.into());
        self.numbers.insert(routes.into(), number);
        self.shapes.push(None);
        number
    }

    /// The set of the routes of both.
    pub(super) fn union(&mut self, a: SetId, b: SetId) -> SetId {
        if a == b {
            return a;
        }
        let (a, b) = (a.min(b), a.max(b));
        let row = a.0 as usize;
        if b.0 < TABLE_MAX {
            if let Some(&known) = self.table.get(row).and_then(|row| row.get(b.0 as usize))
                && known != UNKNOWN
            {
                return SetId(known);
            }
        } else if let Some(&known) = self.tree.get(&(a, b)) {
            return known;
        }
        let mut routes: Vec<RouteId> = self.routes(a).iter().chain(self.routes(b)).copied().collect();
        routes.sort_unstable();
        routes.dedup();
        let union = self.number(&routes);
        if b.0 < TABLE_MAX {
            if self.table.len() <= row {
                self.table.resize(row + 1, Vec::new());
            }
            if self.table[row].len() <= b.0 as usize {
                self.table[row].resize(b.0 as usize + 1, UNKNOWN);
            }
            self.table[row][b.0 as usize] = union.0;
        } else {
            self.tree.insert((a, b), union);
        }
        union
    }

    /// The totals of two batches together, in the order of the routes of their union.
    pub(super) fn merge(&mut self, a: (SetId, &[Total]), b: (SetId, &[Total])) -> (SetId, Vec<Total>) {
        let union = self.union(a.0, b.0);
        let mut merged = Vec::with_capacity(self.routes(union).len());
        self.merge_into(union, a, b, &mut merged);
        (union, merged)
    }

    fn merge_into(&self, union: SetId, a: (SetId, &[Total]), b: (SetId, &[Total]), into: &mut Vec<Total>) {
        into.clear();
        let mut sides = [a, b].map(|(set, totals)| self.routes(set).iter().zip(totals).peekable());
        for route in self.routes(union) {
            let mut sum = Total::default();
            for side in &mut sides {
                if let Some((_, total)) = side.next_if(|(other, _)| *other == route) {
                    sum.bytes = sum.bytes.saturating_add(total.bytes);
                    sum.blocks += total.blocks;
                }
            }
            into.push(sum);
        }
    }

    /// The worst-case time of two batches together.
    pub(super) fn wcet_of_both(&mut self, a: (SetId, &[Total]), b: (SetId, &[Total])) -> Result<Nanos, Starved> {
        let union = self.union(a.0, b.0);
        let mut merged = std::mem::take(&mut self.merged);
        self.merge_into(union, a, b, &mut merged);
        let cost = self.wcet(union, &merged);
        self.merged = merged;
        cost
    }

    /// The worst-case time of a batch with these totals.
    pub(super) fn wcet(&mut self, set: SetId, totals: &[Total]) -> Result<Nanos, Starved> {
        let at = set.0 as usize;
        if self.shapes[at].is_none() {
            if self.ready >= SHAPES_MAX {
                self.shapes.fill(None);
                self.ready = 0;
            }
            self.shapes[at] = Some(Box::new(self.network.shape(&self.sets[at], self.calibration)?));
            self.ready += 1;
        }
        match &mut self.shapes[at] {
            Some(shape) => shape.wcet(totals),
            None => unreachable!("it was prepared above"),
        }
    }
}
