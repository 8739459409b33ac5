//! The programs of the papers' experiments: an element-wise step, breadth-first search, the cheapest way down a grid.

use headway_device::DeviceError;
use headway_device::work::{CpuArgument, DeviceCode, LaunchGrid, Work};

/// Threads of one block of [`Elementwise`].
const ELEMENTWISE_THREADS: u32 = 256;
/// Threads of one block of the searches (Rodinia's choice, as cho-2018 ran it).
const BFS_THREADS: u32 = 512;
/// Columns that one block of [`Pathfinder`] works on, its borders included.
pub const PATHFINDER_WIDTH: u32 = 256;

/// `y = 3 x + 1` over 32-bit words in place. Arguments: words (written), count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elementwise;

/// One level of a breadth-first search: marks what the frontier reaches.
///
/// Arguments: nodes (first edge and degree, two 32-bit integers each), edges (32-bit targets), frontier (written), reached
/// (written), visited, cost (32-bit, written), number of nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct BfsExpand;

/// Makes what was reached the next frontier. Arguments: frontier, reached, visited (one byte a node, all written), one byte
/// that becomes 1 if there is a next frontier (written), number of nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct BfsAdvance;

/// Some rows of the cheapest way down a grid.
///
/// Arguments: rows (32-bit), the best so far of each column, the new best (written), columns, first row, rows to do, border
/// height (at least the rows to do). The grid comes from [`Pathfinder::grid`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Pathfinder;

impl Elementwise {
    /// A launch shape for `count` words.
    #[must_use]
    pub fn grid(count: u32) -> LaunchGrid {
        LaunchGrid::line(count.div_ceil(ELEMENTWISE_THREADS).clamp(1, 2048), ELEMENTWISE_THREADS, 0)
    }
}

/// The launch shape of both searches for `nodes` nodes.
#[must_use]
pub fn bfs_grid(nodes: u32) -> LaunchGrid {
    LaunchGrid::line(nodes.div_ceil(BFS_THREADS).max(1), BFS_THREADS, 0)
}

impl Pathfinder {
    /// The launch shape for `columns` columns with borders of `height`, which must be below 128.
    #[must_use]
    pub fn grid(columns: u32, height: u32) -> LaunchGrid {
        let inner = PATHFINDER_WIDTH.saturating_sub(2 * height).max(1);
        LaunchGrid::line(columns.div_ceil(inner).max(1), PATHFINDER_WIDTH, 0)
    }
}

fn misfit(program: &str) -> DeviceError {
    DeviceError::Invalid { what: "launch", reason: format!("the arguments do not fit `{program}`") }
}

fn word(bytes: &[u8], at: usize) -> Option<i32> {
    let bytes = bytes.get(4 * at..4 * at + 4)?;
    Some(i32::from_le_bytes(bytes.try_into().ok()?))
}

fn put(bytes: &mut [u8], at: usize, value: i32) -> Option<()> {
    bytes.get_mut(4 * at..4 * at + 4)?.copy_from_slice(&value.to_le_bytes());
    Some(())
}

impl Work for Elementwise {
    fn id(&self) -> &'static str {
        "elementwise"
    }
    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../ptx/elementwise.ptx"))
    }
    fn entry(&self) -> &'static str {
        "elementwise"
    }
    fn launch(&self, _grid: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        let [CpuArgument::Write(words), CpuArgument::Int(count)] = arguments else { return Err(misfit(self.id())) };
        let count = usize::try_from(*count).map_err(|_| misfit(self.id()))?;
        let words = words.get_mut(..4 * count).ok_or_else(|| misfit(self.id()))?;
        for word in words.as_chunks_mut::<4>().0 {
            *word = u32::from_le_bytes(*word).wrapping_mul(3).wrapping_add(1).to_le_bytes();
        }
        Ok(())
    }
}

impl Work for BfsExpand {
    fn id(&self) -> &'static str {
        "bfs_expand"
    }
    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../ptx/bfs.ptx"))
    }
    fn entry(&self) -> &'static str {
        "bfs_expand"
    }
    fn launch(&self, _grid: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        let [
            CpuArgument::Read(nodes),
            CpuArgument::Read(edges),
            CpuArgument::Write(frontier),
            CpuArgument::Write(reached),
            CpuArgument::Read(visited),
            CpuArgument::Write(cost),
            CpuArgument::Int(count),
        ] = arguments
        else {
            return Err(misfit(self.id()));
        };
        let mut expand = || -> Option<()> {
            for node in 0..usize::try_from(*count).ok()? {
                if std::mem::take(frontier.get_mut(node)?) == 0 {
                    continue;
                }
                let next = word(cost, node)?.wrapping_add(1);
                let first = usize::try_from(word(nodes, 2 * node)?).ok()?;
                let degree = usize::try_from(word(nodes, 2 * node + 1)?).ok()?;
                for at in first..first + degree {
                    let target = usize::try_from(word(edges, at)?).ok()?;
                    if *visited.get(target)? == 0 {
                        put(cost, target, next)?;
                        *reached.get_mut(target)? = 1;
                    }
                }
            }
            Some(())
        };
        expand().ok_or_else(|| misfit(self.id()))
    }
}

impl Work for BfsAdvance {
    fn id(&self) -> &'static str {
        "bfs_advance"
    }
    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../ptx/bfs.ptx"))
    }
    fn entry(&self) -> &'static str {
        "bfs_advance"
    }
    fn launch(&self, _grid: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        let [
            CpuArgument::Write(frontier),
            CpuArgument::Write(reached),
            CpuArgument::Write(visited),
            CpuArgument::Write(more),
            CpuArgument::Int(count),
        ] = arguments
        else {
            return Err(misfit(self.id()));
        };
        let count = usize::try_from(*count).map_err(|_| misfit(self.id()))?;
        if [frontier.len(), reached.len(), visited.len()].iter().any(|len| *len < count) || more.is_empty() {
            return Err(misfit(self.id()));
        }
        for node in 0..count {
            if std::mem::take(&mut reached[node]) != 0 {
                (frontier[node], visited[node], more[0]) = (1, 1, 1);
            }
        }
        Ok(())
    }
}

impl Work for Pathfinder {
    fn id(&self) -> &'static str {
        "pathfinder"
    }
    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../ptx/pathfinder.ptx"))
    }
    fn entry(&self) -> &'static str {
        "pathfinder"
    }
    fn launch(&self, _grid: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        let [
            CpuArgument::Read(rows),
            CpuArgument::Read(before),
            CpuArgument::Write(after),
            CpuArgument::Int(columns),
            CpuArgument::Int(first_row),
            CpuArgument::Int(count),
            CpuArgument::Int(_height),
        ] = arguments
        else {
            return Err(misfit(self.id()));
        };
        let descend = || -> Option<Vec<i32>> {
            let (columns, first) = (usize::try_from(*columns).ok()?, usize::try_from(*first_row).ok()?);
            let mut best: Vec<i32> = (0..columns).map(|column| word(before, column)).collect::<Option<_>>()?;
            for row in first..first + usize::try_from(*count).ok()? {
                let above = |column: usize| {
                    let near = &best[column.saturating_sub(1)..(column + 2).min(columns)];
                    near.iter().copied().min()
                };
                best = (0..columns)
                    .map(|column| Some(above(column)?.wrapping_add(word(rows, row * columns + column)?)))
                    .collect::<Option<_>>()?;
            }
            Some(best)
        };
        let best = descend().ok_or_else(|| misfit(self.id()))?;
        for (column, value) in best.into_iter().enumerate() {
            put(after, column, value).ok_or_else(|| misfit(self.id()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[i32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn every_entry_is_in_its_ptx() {
        let programs: [&dyn Work; 4] = [&Elementwise, &BfsExpand, &BfsAdvance, &Pathfinder];
        for program in programs {
            let code = program.code();
            let text = str::from_utf8(code.bytes()).unwrap();
            assert!(text.contains(&format!(".entry {}(", program.entry())), "{}", program.id());
        }
    }

    #[test]
    fn a_search_finds_the_distance_of_every_node() {
        // 0 - 1 - 2, 0 - 3, and 4 alone.
        let nodes = bytes(&[0, 2, 2, 2, 4, 1, 5, 1, 6, 0]);
        let edges = bytes(&[1, 3, 0, 2, 1, 0]);
        let (mut frontier, mut reached, mut visited) = ([1, 0, 0, 0, 0], [0; 5], [1, 0, 0, 0, 0]);
        let mut cost = bytes(&[0, -1, -1, -1, -1]);
        let mut levels = 0;
        loop {
            let mut more = [0];
            BfsExpand
                .launch(
                    bfs_grid(5),
                    &mut [
                        CpuArgument::Read(&nodes),
                        CpuArgument::Read(&edges),
                        CpuArgument::Write(&mut frontier),
                        CpuArgument::Write(&mut reached),
                        CpuArgument::Read(&visited),
                        CpuArgument::Write(&mut cost),
                        CpuArgument::Int(5),
                    ],
                )
                .unwrap();
            let [a, b, c] = [&mut frontier[..], &mut reached[..], &mut visited[..]].map(CpuArgument::Write);
            BfsAdvance.launch(bfs_grid(5), &mut [a, b, c, CpuArgument::Write(&mut more), CpuArgument::Int(5)]).unwrap();
            levels += 1;
            if more[0] == 0 {
                break;
            }
        }
        assert_eq!(cost, bytes(&[0, 1, 2, 1, -1]));
        assert_eq!(levels, 3);
    }

    #[test]
    fn the_way_down_takes_the_least_of_three_neighbours() {
        let rows = bytes(&[9, 1, 9, 9, 5, 5, 1, 9]);
        let mut after = bytes(&[0; 4]);
        let arguments = &mut [
            CpuArgument::Read(&rows),
            CpuArgument::Read(&bytes(&[4, 8, 2, 7])),
            CpuArgument::Write(&mut after),
            CpuArgument::Int(4),
            CpuArgument::Int(0),
            CpuArgument::Int(2),
            CpuArgument::Int(20),
        ];
        Pathfinder.launch(Pathfinder::grid(4, 20), arguments).unwrap();
        // First row: 13, 3, 11, 11; second: 8, 8, 4, 20.
        assert_eq!(after, bytes(&[8, 8, 4, 20]));
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused() {
        let mut short = [0; 4];
        let arguments = &mut [CpuArgument::Write(&mut short), CpuArgument::Int(2)];
        assert!(Elementwise.launch(Elementwise::grid(2), arguments).is_err());
        assert!(Pathfinder.launch(Pathfinder::grid(1, 20), &mut [CpuArgument::Int(1)]).is_err());
    }
}
