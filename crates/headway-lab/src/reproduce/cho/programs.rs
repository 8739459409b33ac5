//! The two programs: their inputs, their copies, their kernels, and what the CPU says the result is.

use std::sync::Arc;

use crate::study::{BfsAdvance, BfsExpand, Pathfinder, bfs_grid};
use headway_core::models::transfer::Direction;
use headway_core::units::Nanos;
use headway_device::gpu::{Operation, Queue};
use headway_device::work::Argument;
use headway_device::{Access, Buffer};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::bench::{finish, submit};
use super::Copies;
use crate::Error;

/// Rows that one launch of Pathfinder does (Rodinia's pyramid height).
const HEIGHT: usize = 20;

/// What one run spent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    pub(super) h2d: Nanos,
    pub(super) d2h: Nanos,
    /// Copies of the 1-byte flags, both ways.
    pub(super) flags: Nanos,
    pub(super) kernels: Nanos,
    pub(super) h2d_bytes: u64,
    pub(super) d2h_bytes: u64,
    /// Bytes of the largest copy each way, flags apart.
    pub(super) h2d_largest: u64,
    pub(super) d2h_largest: u64,
}

impl Costs {
    /// All copies.
    pub(super) fn copies(&self) -> Nanos {
        self.h2d + self.d2h + self.flags
    }

    fn push(&mut self, copies: &Copies<'_>, there: &Buffer, host: &mut [u8]) -> Result<(), Error> {
        self.h2d_bytes += host.len() as u64;
        self.h2d_largest = self.h2d_largest.max(host.len() as u64);
        self.h2d = self.h2d + copies.copy(Direction::H2d, there, host)?;
        Ok(())
    }

    fn pull(&mut self, copies: &Copies<'_>, there: &Buffer, host: &mut [u8]) -> Result<(), Error> {
        self.d2h_bytes += host.len() as u64;
        self.d2h_largest = self.d2h_largest.max(host.len() as u64);
        self.d2h = self.d2h + copies.copy(Direction::D2h, there, host)?;
        Ok(())
    }
}

/// How a graph is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As Rodinia's generator does: every node draws two to four edges to uniform targets, and each edge is entered at both ends. That
    /// generator takes its seed from the clock; ours is given.
    Rodinia,
    /// As Graph500's does: 16 edges for each node, each by one draw of a quadrant for every bit of its ends, labels shuffled.
    Kronecker,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Rodinia, Self::Kronecker];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rodinia => "rodinia",
            Self::Kronecker => "kronecker",
        }
    }
}

/// Edges that Graph500 draws for each node.
const EDGE_FACTOR: usize = 16;
/// Graph500's probabilities A, A + B and A + B + C of the quadrants, in parts of 2^32.
const QUADRANTS: [u32; 3] = [2_448_131_358, 3_264_175_145, 4_080_218_931];

/// Ends of the edges of a Kronecker graph of `count` nodes, a power of two.
fn kronecker(random: &mut Pcg64Mcg, count: usize) -> Vec<(u32, u32)> {
    let mut labels: Vec<u32> = (0..count as u32).collect();
    for at in (1..count).rev() {
        labels.swap(at, random.next_u64() as usize % (at + 1));
    }
    let edge = |_| {
        let (mut a, mut b) = (0usize, 0usize);
        for _ in 0..count.trailing_zeros() {
            let draw = random.next_u32();
            let quadrant = QUADRANTS.iter().filter(|limit| draw >= **limit).count();
            (a, b) = (2 * a + quadrant / 2, 2 * b + quadrant % 2);
        }
        (labels[a], labels[b])
    };
    (0..EDGE_FACTOR * count).map(edge).collect()
}

/// A graph as the device gets it.
pub(super) struct Graph {
    count: usize,
    /// Where a search begins: the first node that has an edge.
    source: usize,
    /// First edge and degree of each node.
    nodes: Vec<u8>,
    edges: Vec<u8>,
}

impl Graph {
    /// `count` nodes, a power of two.
    pub(super) fn random(kind: Kind, seed: u64, count: usize) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        if kind == Kind::Kronecker {
            return Self::of(count, kronecker(&mut random, count));
        }
        let mut pairs = Vec::with_capacity(3 * count);
        for node in 0..count as u32 {
            for _ in 0..2 + random.next_u32() % 3 {
                pairs.push((node, random.next_u32() % count as u32));
            }
        }
        Self::of(count, pairs)
    }

    /// Each edge is entered at both ends.
    fn of(count: usize, pairs: Vec<(u32, u32)>) -> Self {
        let mut degree = vec![0u32; count];
        for (a, b) in &pairs {
            degree[*a as usize] += 1;
            degree[*b as usize] += 1;
        }
        let mut first = Vec::with_capacity(count);
        let mut total = 0u32;
        for degree in &degree {
            first.push(total);
            total += degree;
        }
        let mut filled = first.clone();
        let mut edges = vec![0u8; 4 * total as usize];
        for (a, b) in pairs {
            for (node, target) in [(a, b), (b, a)] {
                let at = 4 * filled[node as usize] as usize;
                edges[at..at + 4].copy_from_slice(&target.to_le_bytes());
                filled[node as usize] += 1;
            }
        }
        let node = |(first, degree): (&u32, &u32)| [first.to_le_bytes(), degree.to_le_bytes()].concat();
        let source = degree.iter().position(|degree| *degree > 0).unwrap_or(0);
        Self { count, source, nodes: first.iter().zip(&degree).flat_map(node).collect(), edges }
    }

    fn edges_of(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let word = |bytes: &[u8], at: usize| {
            u32::from_le_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]]) as usize
        };
        let (first, degree) = (word(&self.nodes, 2 * node), word(&self.nodes, 2 * node + 1));
        (first..first + degree).map(move |at| word(&self.edges, at))
    }

    /// The distance of every node from the source by a queue on the CPU, -1 where there is no way.
    pub(super) fn distances(&self) -> Vec<u8> {
        let mut cost = vec![-1i32; self.count];
        cost[self.source] = 0;
        let mut queue = std::collections::VecDeque::from([self.source]);
        while let Some(node) = queue.pop_front() {
            for target in self.edges_of(node) {
                if cost[target] < 0 {
                    cost[target] = cost[node] + 1;
                    queue.push_back(target);
                }
            }
        }
        cost.iter().flat_map(|cost| cost.to_le_bytes()).collect()
    }
}

fn claim(buffer: &Buffer, access: Access) -> Result<Argument, Error> {
    Ok(Argument::Memory(buffer.claim(0..buffer.len(), access)?))
}

/// What the kernels in `queue`, which keeps time, took on the device.
fn kernel_time(queue: &mut Box<dyn Queue>) -> Result<Nanos, Error> {
    let done = finish(std::slice::from_mut(queue))?;
    Ok(done.iter().fold(Nanos::ZERO, |sum, done| sum + (done.finished - done.started)))
}

/// The search on the device; the distance of every node.
pub(super) fn bfs(copies: &Copies<'_>, graph: &mut Graph) -> Result<(Costs, Vec<u8>), Error> {
    let (bench, count) = (copies.bench, graph.count);
    let mut queue = bench.gpu()?.queue(true)?;
    let mut costs = Costs::default();
    let [mut frontier, mut reached, mut visited] = [vec![0u8; count], vec![0; count], vec![0; count]];
    (frontier[graph.source], visited[graph.source]) = (1, 1);
    let mut cost: Vec<u8> = vec![0xff; 4 * count];
    cost[4 * graph.source..][..4].fill(0);
    let sizes = [graph.nodes.len(), graph.edges.len(), count, count, count, 4 * count];
    let there: Vec<Buffer> = sizes.into_iter().map(|bytes| bench.device(bytes)).collect::<Result<_, _>>()?;
    let host = [&mut graph.nodes, &mut graph.edges, &mut frontier, &mut reached, &mut visited, &mut cost];
    for (there, host) in there.iter().zip(host) {
        costs.push(copies, there, host)?;
    }
    let more = bench.device(1)?;
    let [nodes, edges, frontier, reached, visited, cost_there] = &there[..] else { unreachable!("six arrays") };
    let grid = bfs_grid(count as u32);
    loop {
        let mut flag = [0];
        costs.flags = costs.flags + copies.copy(Direction::H2d, &more, &mut flag)?;
        let expand = [
            (nodes, Access::Read),
            (edges, Access::Read),
            (frontier, Access::Write),
            (reached, Access::Write),
            (visited, Access::Read),
            (cost_there, Access::Write),
        ];
        let mut arguments: Vec<Argument> = expand.into_iter().map(|(b, a)| claim(b, a)).collect::<Result<_, _>>()?;
        arguments.push(Argument::Int(count as i32));
        submit(&mut queue, Operation::Launch { work: Arc::new(BfsExpand), grid, arguments }, 0)?;
        // The second kernel claims what the first has: it is queued when that has ended.
        costs.kernels = costs.kernels + kernel_time(&mut queue)?;
        let advance = [frontier, reached, visited, &more];
        let mut arguments: Vec<Argument> =
            advance.into_iter().map(|buffer| claim(buffer, Access::Write)).collect::<Result<_, _>>()?;
        arguments.push(Argument::Int(count as i32));
        submit(&mut queue, Operation::Launch { work: Arc::new(BfsAdvance), grid, arguments }, 0)?;
        costs.kernels = costs.kernels + kernel_time(&mut queue)?;
        costs.flags = costs.flags + copies.copy(Direction::D2h, &more, &mut flag)?;
        if flag[0] == 0 {
            break;
        }
    }
    let mut distances = vec![0; 4 * count];
    costs.pull(copies, cost_there, &mut distances)?;
    Ok((costs, distances))
}

/// A grid of costs, row by row.
pub(super) struct Grid {
    rows: usize,
    columns: usize,
    cells: Vec<u8>,
}

impl Grid {
    /// Costs from 0 to 9.
    pub(super) fn random(seed: u64, rows: usize, columns: usize) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut cells = Vec::with_capacity(4 * rows * columns);
        while cells.len() < 4 * rows * columns {
            // 16 digits of a draw, uniform to one part in 2^60.
            let mut draw = random.next_u64() >> 4;
            for _ in 0..16 {
                cells.extend_from_slice(&((draw % 10) as u32).to_le_bytes());
                draw /= 10;
            }
        }
        cells.truncate(4 * rows * columns);
        Self { rows, columns, cells }
    }

    /// The cheapest way down to every column, by the CPU.
    pub(super) fn cheapest(&self) -> Vec<u8> {
        let cells = self.cells.as_chunks::<4>().0;
        let mut best: Vec<i32> = cells[..self.columns].iter().map(|cell| i32::from_le_bytes(*cell)).collect();
        let mut next = best.clone();
        for row in cells[self.columns..].chunks(self.columns) {
            for (column, cell) in row.iter().enumerate() {
                let near = &best[column.saturating_sub(1)..(column + 2).min(self.columns)];
                next[column] = near.iter().min().copied().unwrap_or(0) + i32::from_le_bytes(*cell);
            }
            std::mem::swap(&mut best, &mut next);
        }
        best.iter().flat_map(|cost| cost.to_le_bytes()).collect()
    }
}

/// The way down on the device; the cost for every column.
pub(super) fn pathfinder(copies: &Copies<'_>, grid: &mut Grid) -> Result<(Costs, Vec<u8>), Error> {
    let bench = copies.bench;
    let mut queue = bench.gpu()?.queue(true)?;
    let mut costs = Costs::default();
    let row_bytes = 4 * grid.columns;
    let rest = bench.device(grid.cells.len() - row_bytes)?;
    let best = [bench.device(row_bytes)?, bench.device(row_bytes)?];
    let (first, others) = grid.cells.split_at_mut(row_bytes);
    costs.push(copies, &best[0], first)?;
    costs.push(copies, &rest, others)?;
    let (mut row, mut at) = (0, 0);
    while row < grid.rows - 1 {
        let count = HEIGHT.min(grid.rows - 1 - row);
        let mut arguments =
            vec![claim(&rest, Access::Read)?, claim(&best[at], Access::Read)?, claim(&best[1 - at], Access::Write)?];
        arguments.extend([grid.columns, row, count, HEIGHT].map(|value| Argument::Int(value as i32)));
        let shape = Pathfinder::grid(grid.columns as u32, HEIGHT as u32);
        submit(&mut queue, Operation::Launch { work: Arc::new(Pathfinder), grid: shape, arguments }, 0)?;
        costs.kernels = costs.kernels + kernel_time(&mut queue)?;
        (row, at) = (row + count, 1 - at);
    }
    let mut result = vec![0; row_bytes];
    costs.pull(copies, &best[at], &mut result)?;
    Ok((costs, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edge_of_a_graph_is_entered_at_both_ends() {
        for (kind, mean) in [(Kind::Rodinia, 5..=6), (Kind::Kronecker, 32..=32)] {
            let graph = Graph::random(kind, 3, 512);
            for node in 0..512 {
                for target in graph.edges_of(node) {
                    assert!(graph.edges_of(target).any(|back| back == node), "{node} {target}");
                }
            }
            assert!(mean.contains(&(graph.edges.len() / 4 / 512)), "{kind:?}");
            assert!(graph.edges_of(graph.source).count() > 0);
        }
    }

    #[test]
    fn a_kronecker_graph_has_a_few_nodes_with_most_edges_and_many_with_none() {
        let degrees = |kind| {
            let graph = Graph::random(kind, 7, 4096);
            let mut degrees: Vec<usize> = (0..4096).map(|node| graph.edges_of(node).count()).collect();
            degrees.sort_unstable();
            degrees
        };
        let (kronecker, rodinia) = (degrees(Kind::Kronecker), degrees(Kind::Rodinia));
        assert!(kronecker[300] == 0 && kronecker[4095] > 500, "{} {}", kronecker[300], kronecker[4095]);
        assert!(rodinia[0] >= 2 && rodinia[4095] < 20, "{} {}", rodinia[0], rodinia[4095]);
    }

    #[test]
    fn the_quadrants_are_those_of_graph500() {
        let shares = QUADRANTS.map(|limit| (f64::from(limit) / 4_294_967_296.0 * 1000.0).round());
        assert_eq!(shares, [570.0, 760.0, 950.0]);
    }

    #[test]
    fn a_grid_has_digits_and_its_cheapest_way_is_found() {
        let grid = Grid::random(1, 7, 33);
        assert!(grid.cells.as_chunks::<4>().0.iter().all(|cell| u32::from_le_bytes(*cell) < 10));
        let word = |row: usize, column: usize| grid.cells[4 * (row * 33 + column)];
        let small = Grid { rows: 2, columns: 2, cells: [3u32, 1, 5, 7].iter().flat_map(|c| c.to_le_bytes()).collect() };
        assert_eq!(small.cheapest(), [6u32, 8].iter().flat_map(|c| c.to_le_bytes()).collect::<Vec<u8>>());
        assert_ne!(word(0, 0), u8::MAX);
    }
}
