//! `--yield`: bulk copies out of a GPU with a written word behind each chunk: there the engine serves other streams, too.

use headway_core::decisions::cut::has_room;

use crate::base::context::{Prepared, WordRoom};
use crate::base::copy::Copy;
use crate::base::driver::{self, Driver, SUCCESS, Status};
use crate::methods::batch::{Batch, Lists, Piece, bytes_of};
use crate::observers::{Event, tell};

/// A copy becomes at most this many chunks, for which there is room where nothing else is under way.
const CHUNKS_MAX: usize = 256;
const _: () = assert!(has_room(CHUNKS_MAX - 1, CHUNKS_MAX - 1));

/// The chunk of a copy of `bytes`: as asked for, or as large as the number of chunks demands.
pub(crate) fn chunk_bytes(asked: usize, bytes: usize) -> usize {
    const STEP: usize = 64 << 10;
    asked.max(bytes.div_ceil(CHUNKS_MAX).next_multiple_of(STEP))
}

/// Bytes were queued: with a word behind them where there is room for it.
fn end_chunk(driver: &Driver, room: Option<WordRoom<'_>>, bytes: usize) {
    tell(if room.is_some() { Event::Chunk } else { Event::NoRoom });
    if let Some(room) = room {
        room.write(driver, bytes);
    }
}

/// Queues a copy in chunks. On a stream that is full of them and does not go on, the rest stays whole.
pub(crate) fn copy(driver: &Driver, context: &Prepared, copy: Copy, chunk: usize) -> Status {
    let mut at = 0;
    while at < copy.bytes {
        let room = context.room(copy.stream);
        let bytes = if room.is_some() { chunk.min(copy.bytes - at) } else { copy.bytes - at };
        let to = copy.host().wrapping_byte_add(at);
        // SAFETY: a part of the caller's copy, in the caller's stream.
        let status =
            unsafe { (driver.cuMemcpyDtoHAsync_v2)(to, copy.from + at as u64, bytes, driver::handle(copy.stream)) };
        if status != SUCCESS {
            return status;
        }
        at += bytes;
        end_chunk(driver, room, bytes);
    }
    if copy.call.waits() { driver::synchronize(driver, copy.stream) } else { SUCCESS }
}

/// Queues bulk copies of a batch, with a word behind every `chunk` bytes, as long as the stream has room for words.
pub(crate) fn batch(
    driver: &Driver,
    context: &Prepared,
    batch: &Batch<impl Fn(&Lists, *mut usize) -> Status>,
    pieces: &[Piece],
    chunk: usize,
) -> Status {
    let _bulk = context.enter(bytes_of(pieces));
    let (mut status, mut rest) = (SUCCESS, pieces);
    while status == SUCCESS && !rest.is_empty() {
        let mut sum = 0usize;
        let fits = |piece: &&Piece| {
            sum = sum.saturating_add(piece.copy.bytes);
            sum <= chunk
        };
        let room = context.room(batch.stream);
        let count = if room.is_some() { rest.iter().take_while(fits).count().max(1) } else { rest.len() };
        let (now, later) = rest.split_at(count);
        rest = later;
        status = if let [alone] = now {
            drop(room);
            batch.ended(*alone, copy(driver, context, alone.copy, chunk))
        } else {
            let status = batch.send(now);
            end_chunk(driver, room, bytes_of(now));
            status
        };
    }
    status
}
