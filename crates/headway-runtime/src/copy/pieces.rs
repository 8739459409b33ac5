//! The pieces of one request: checked, in the order of their destinations, merged, cut into blocks.

use headway_device::gpu::Piece;

use super::CopyError;

/// Pieces that go together: those of [`Blocks::pieces`] in `first..last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) first: usize,
    /// Behind the last.
    pub(super) last: usize,
    /// Bytes of all.
    pub(super) bytes: usize,
}

/// A request in blocks whose destinations ascend and do not overlap.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The pieces, by destination.
    pub(super) pieces: Vec<Piece>,
    /// All of them, in order.
    pub(super) blocks: Vec<Block>,
}

fn out_of_range(what: &'static str, piece: &Piece, len: usize) -> CopyError {
    let reason = format!("the piece {piece:?} lies outside the {len} bytes there are");
    CopyError::Invalid { what, reason }
}

/// Checks `pieces` against both ends, orders them by destination and joins those that continue each other at both ends.
pub(super) fn arrange(pieces: &[Piece], from_len: usize, to_len: usize) -> Result<Vec<Piece>, CopyError> {
    let mut ordered: Vec<Piece> = Vec::with_capacity(pieces.len());
    let mut ascending = true;
    for piece in pieces.iter().filter(|piece| piece.len > 0) {
        let inside = |start: usize, len: usize| start.checked_add(piece.len).is_some_and(|end| end <= len);
        if !inside(piece.from, from_len) {
            return Err(out_of_range("source", piece, from_len));
        }
        if !inside(piece.to, to_len) {
            return Err(out_of_range("destination", piece, to_len));
        }
        ascending &= ordered.last().is_none_or(|last| last.to <= piece.to);
        ordered.push(*piece);
    }
    if !ascending {
        ordered.sort_unstable_by_key(|piece| piece.to);
    }
    if let Some(pair) = ordered.windows(2).find(|pair| pair[0].to + pair[0].len > pair[1].to) {
        let reason = format!("{:?} and {:?} of one request", pair[0], pair[1]);
        return Err(CopyError::Overlap { what: "destinations", reason });
    }
    ordered.dedup_by(|next, last| {
        let joined = last.from + last.len == next.from && last.to + last.len == next.to;
        if joined {
            last.len += next.len;
        }
        joined
    });
    Ok(ordered)
}

/// Pieces of one block at most: the list of them takes less than a megabyte, and a queue takes it.
const PIECES_MAX: usize = 1 << 15;

/// Cuts `pieces` into blocks of `size` bytes, those of very short pieces and the last one shorter; a piece that crosses a
/// boundary is cut in two.
pub(super) fn blocks(pieces: &[Piece], size: usize) -> Blocks {
    let mut cut = Vec::with_capacity(pieces.len());
    let mut blocks = Vec::new();
    let mut block = Block { first: 0, last: 0, bytes: 0 };
    for piece in pieces {
        let mut rest = *piece;
        while rest.len > 0 {
            let len = rest.len.min(size - block.bytes);
            cut.push(Piece { len, ..rest });
            rest = Piece { from: rest.from + len, to: rest.to + len, len: rest.len - len };
            block.bytes += len;
            block.last = cut.len();
            if block.bytes == size || block.last - block.first == PIECES_MAX {
                let first = block.last;
                blocks.push(std::mem::replace(&mut block, Block { first, last: first, bytes: 0 }));
            }
        }
    }
    if block.bytes > 0 {
        blocks.push(block);
    }
    Blocks { pieces: cut, blocks }
}

impl Blocks {
    /// The pieces of `block`.
    pub(super) fn of(&self, block: &Block) -> &[Piece] {
        &self.pieces[block.first..block.last]
    }
}

/// The range that covers all destinations of `pieces`, which ascend.
pub(super) fn destinations(pieces: &[Piece]) -> std::ops::Range<usize> {
    match (pieces.first(), pieces.last()) {
        (Some(first), Some(last)) => first.to..last.to + last.len,
        _ => 0..0,
    }
}

/// The range that covers all sources of `pieces`.
pub(super) fn sources(pieces: &[Piece]) -> std::ops::Range<usize> {
    let start = pieces.iter().map(|piece| piece.from).min().unwrap_or(0);
    start..pieces.iter().map(|piece| piece.from + piece.len).max().unwrap_or(0)
}

/// Whether each piece begins at `start` where the one before ended.
pub(super) fn continuous(pieces: &[Piece], start: impl Fn(&Piece) -> usize) -> bool {
    pieces.windows(2).all(|pair| start(&pair[0]) + pair[0].len == start(&pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(from: usize, to: usize, len: usize) -> Piece {
        Piece { from, to, len }
    }

    #[test]
    fn pieces_are_ordered_by_destination_and_joined_where_both_ends_continue() {
        let asked = [piece(50, 10, 5), piece(0, 0, 4), piece(4, 4, 6), piece(90, 99, 0), piece(70, 15, 1)];
        assert_eq!(arrange(&asked, 100, 100).unwrap(), [piece(0, 0, 10), piece(50, 10, 5), piece(70, 15, 1)]);
    }

    #[test]
    fn pieces_outside_and_destinations_named_twice_are_refused() {
        let refused = |pieces: &[Piece]| arrange(pieces, 10, 10).unwrap_err();
        assert!(matches!(refused(&[piece(9, 0, 2)]), CopyError::Invalid { what: "source", .. }));
        assert!(matches!(refused(&[piece(0, usize::MAX, 2)]), CopyError::Invalid { what: "destination", .. }));
        assert!(matches!(refused(&[piece(0, 4, 3), piece(0, 2, 3)]), CopyError::Overlap { .. }));
        assert_eq!(arrange(&[piece(0, 4, 3), piece(0, 1, 3)], 10, 10).unwrap().len(), 2);
    }

    #[test]
    fn blocks_are_full_but_the_last_and_cover_every_piece() {
        let cut = blocks(&[piece(0, 0, 5), piece(20, 7, 10), piece(50, 30, 1)], 4);
        let lens: Vec<usize> = cut.blocks.iter().map(|block| block.bytes).collect();
        assert_eq!(lens, [4, 4, 4, 4]);
        assert_eq!(cut.of(&cut.blocks[1]), [piece(4, 4, 1), piece(20, 7, 3)]);
        assert_eq!(cut.of(&cut.blocks[3]), [piece(27, 14, 3), piece(50, 30, 1)]);
        assert_eq!(blocks(&[], 4).blocks, []);
    }

    #[test]
    fn ranges_cover_all_pieces() {
        let pieces = [piece(30, 0, 5), piece(10, 5, 5)];
        assert_eq!((sources(&pieces), destinations(&pieces)), (10..35, 0..10));
        assert!(continuous(&pieces, |piece| piece.to));
        assert!(!continuous(&pieces, |piece| piece.from));
    }
}
