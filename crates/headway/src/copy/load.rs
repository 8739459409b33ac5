//! Parts of files into GPU memory: what the page cache has by the kernel's copy, and the rest past that cache.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headway_core::decisions::engine_line::FlowClass;
use headway_core::models::transfer::Direction;
use headway_core::units::Bytes;
use headway_cuda::{Chunks, EngineTurn, RawPlace, ScatterError, ScatterOptions, scatter};
use headway_device::DeviceError;
use headway_os::file_reader::{FileReader, ReadMethod};
use headway_runtime::copy::EngineTurns;

use super::StreamCopier;
use crate::{Error, Failure};

/// Chunks begin at multiples of this in their file, so that they can be read past the page cache.
const ALIGN: u64 = 4096;
/// What a slot has more than a chunk, so that its bytes can begin where the engine copies them fastest.
const SPARE: u64 = 4096;
/// Engines copy fastest between addresses that are alike below this.
const LINES: u64 = 512;
/// So much that nobody wants is read along, rather than to begin another chunk.
const GAP_MAX: u64 = 64 << 10;
/// After each stretch a load looks again at how large its chunks may be. A flow that is opened waits for one at most: the next one has as many
/// bytes as should take [`STRETCH_TIME`].
const STRETCH_MIN: usize = 64 << 20;
const STRETCH_MAX: usize = 16 << 30;
const STRETCH_TIME: Duration = Duration::from_secs(1);

/// A part of a file, and where it goes: as many bytes as the place has.
#[derive(Clone, Copy, Debug)]
pub struct FilePart {
    /// Position of the file among those that are loaded.
    pub file: usize,
    /// Where it begins in the file.
    pub at: u64,
    /// Where it goes.
    pub place: RawPlace,
}

/// What a load may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Threads that read, each with two slots.
    pub threads: u32,
    /// Bytes of a slot, 64 KiB at least.
    pub slot: Bytes,
}

impl Default for LoadOptions {
    /// Eight threads, 2 MiB (32 MiB of page-locked memory).
    fn default() -> Self {
        Self { threads: 8, slot: Bytes(2 << 20) }
    }
}

/// What a load read, by method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// From the page cache.
    pub cached: Bytes,
    /// From disks, past the page cache.
    pub direct: Bytes,
}

/// Why a load was not made. Nothing is known of the places then.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The file at this position could not be read; `UnexpectedEof` if it has become shorter.
    Read { file: usize, source: io::Error },
    /// The GPU. After `CopyError::Timeout` it may still write the places.
    Copy(Error),
    /// [`Loading::stop`] was called.
    Stopped,
}

/// What other threads see of a load, and how they end it.
#[derive(Debug, Default)]
pub struct Loading {
    moved: AtomicU64,
    stop: AtomicBool,
}

impl Loading {
    /// Bytes that are on their way or in place.
    #[must_use]
    pub fn moved(&self) -> Bytes {
        Bytes(self.moved.load(Ordering::Relaxed))
    }

    /// Ends the load soon, with [`LoadError::Stopped`].
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl StreamCopier {
    /// Reads parts of `files` into this GPU's memory, by threads of its own; the bytes are there when it returns, whatever the stream of
    /// who uses them then.
    ///
    /// # Errors
    /// [`LoadError`]; for files that were written meanwhile, too.
    pub fn load(
        &self,
        files: Vec<File>,
        parts: Vec<FilePart>,
        options: LoadOptions,
        loading: &Loading,
    ) -> Result<LoadReport, LoadError> {
        let readers = files
            .into_iter()
            .enumerate()
            .map(|(file, opened)| FileReader::new(opened).map_err(|source| LoadError::Read { file, source }));
        let readers = readers.collect::<Result<Vec<_>, _>>()?;
        let read = Default::default();
        let ranges: Vec<_> = parts.iter().map(|part| (part.file, part.at, part.place.bytes())).collect();
        let (mut left, mut bytes) = (in_order(&ranges), STRETCH_MIN);
        loop {
            // A slot is a chunk of the engine's.
            let turns = self.copier().engine_turns(0, Direction::H2d);
            let least = Bytes(SPARE + ALIGN);
            let slot = turns.chunk().map_or(options.slot, |chunk| options.slot.min(chunk).max(least));
            let chunks = chunks(&ranges, take(&mut left, bytes), slot.0.saturating_sub(SPARE));
            let place = |piece: &ChunkPiece| parts[piece.part].place.part(piece.skipped, piece.bytes, piece.from);
            let places = chunks.iter().map(|chunk| chunk.pieces.iter().map(place).collect()).collect();
            let chunks = FileChunks { chunks, places, readers: &readers, read: &read, turns };
            let scattered = ScatterOptions { threads: options.threads, slot, ..ScatterOptions::default() };
            let begun = Instant::now();
            scatter(self.gpu(), &chunks, scattered, &loading.stop, &loading.moved).map_err(|error| match error {
                ScatterError::Read((file, source)) => LoadError::Read { file, source },
                ScatterError::Device(error) => LoadError::Copy(Failure::Copy(error.into()).into()),
                ScatterError::Stopped => LoadError::Stopped,
            })?;
            chunks.turns.copied(FlowClass::Bulk);
            if left.is_empty() {
                break;
            }
            bytes = next_stretch(bytes, begun.elapsed());
        }
        for (file, reader) in readers.iter().enumerate() {
            reader.check_unchanged().map_err(|source| LoadError::Read { file, source })?;
        }
        let [cached, direct] = read.map(|bytes| Bytes(bytes.into_inner()));
        Ok(LoadReport { cached, direct })
    }
}

/// Bytes of one part.
#[derive(Debug, PartialEq, Eq)]
struct PartRange {
    /// Position of the part.
    part: usize,
    skipped: usize,
    bytes: usize,
}

/// All of `parts`, each given by file, start and bytes, in the order of files and starts.
fn in_order(parts: &[(usize, u64, usize)]) -> VecDeque<PartRange> {
    let mut order: Vec<usize> = (0..parts.len()).filter(|part| parts[*part].2 > 0).collect();
    order.sort_by_key(|part| parts[*part]);
    order.into_iter().map(|part| PartRange { part, skipped: 0, bytes: parts[part].2 }).collect()
}

/// Takes the first `bytes` bytes, or what there is.
fn take(ranges: &mut VecDeque<PartRange>, bytes: usize) -> Vec<PartRange> {
    let (mut taken, mut left) = (Vec::new(), bytes);
    while left > 0
        && let Some(range) = ranges.pop_front()
    {
        let PartRange { part, skipped, bytes } = range;
        if bytes > left {
            ranges.push_front(PartRange { part, skipped: skipped + left, bytes: bytes - left });
            taken.push(PartRange { part, skipped, bytes: left });
            break;
        }
        taken.push(range);
        left -= bytes;
    }
    taken
}

/// How many bytes come after so many that took `time`.
fn next_stretch(bytes: usize, time: Duration) -> usize {
    let next = bytes as f64 * STRETCH_TIME.as_secs_f64() / time.as_secs_f64().max(1e-9);
    // The first ones have a page cache that the next may not have.
    (next as usize).clamp(STRETCH_MIN, STRETCH_MAX).min(4 * bytes)
}

/// A range of a file, which is read at once.
#[derive(Debug)]
struct FileChunk {
    file: usize,
    at: u64,
    bytes: usize,
    pieces: Vec<ChunkPiece>,
}

/// What a chunk has of one part.
#[derive(Debug)]
struct ChunkPiece {
    /// Position of the part.
    part: usize,
    /// Bytes of the part that earlier chunks have.
    skipped: usize,
    bytes: usize,
    /// Where it begins in the chunk.
    from: usize,
}

struct FileChunks<'a> {
    chunks: Vec<FileChunk>,
    /// Of each chunk.
    places: Vec<Vec<RawPlace>>,
    readers: &'a [FileReader],
    /// Bytes by method: from the page cache, direct.
    read: &'a [AtomicU64; 2],
    turns: EngineTurns<'a>,
}

impl Chunks for FileChunks<'_> {
    type Error = (usize, io::Error);

    fn count(&self) -> usize {
        self.chunks.len()
    }

    fn places(&self, at: usize) -> &[RawPlace] {
        &self.places[at]
    }

    fn read(&self, at: usize, slot: &mut [u8]) -> Result<usize, Self::Error> {
        let chunk = &self.chunks[at];
        let no_file = || io::Error::other("there is no file of that position");
        let reader = self.readers.get(chunk.file).ok_or_else(|| (chunk.file, no_file()))?;
        let cold = reader.is_cold(chunk.at, chunk.bytes);
        let begins = if cold { 0 } else { begins(&self.places[at], &chunk.pieces) };
        let read = reader.read(chunk.at, chunk.bytes, &mut slot[begins..], cold);
        let method = read.map_err(|error| (chunk.file, error))?;
        let counter = match method {
            ReadMethod::Cached => 0,
            ReadMethod::Direct => 1,
        };
        self.read[counter].fetch_add(chunk.bytes as u64, Ordering::Relaxed);
        let wanted: usize = chunk.pieces.iter().map(|piece| piece.bytes).sum();
        self.turns.moved(FlowClass::Bulk, Bytes(wanted as u64));
        Ok(begins)
    }

    fn turn(&self) -> Result<Option<Box<dyn EngineTurn + '_>>, DeviceError> {
        if self.turns.chunk().is_none() {
            return Ok(None);
        }
        Ok(Some(Box::new(self.turns.take()?)))
    }
}

/// Where the bytes of a chunk begin in a slot, so that its largest piece lies there as its place does.
fn begins(places: &[RawPlace], pieces: &[ChunkPiece]) -> usize {
    let largest = places.iter().zip(pieces).max_by_key(|(place, _)| place.bytes());
    largest.map_or(0, |(place, piece)| (place.address().wrapping_sub(piece.from as u64) % LINES) as usize)
}

/// What is read at once: at most `slot` bytes each, which together have `ranges` of `parts`, each given by file, start and bytes.
fn chunks(parts: &[(usize, u64, usize)], ranges: Vec<PartRange>, slot: u64) -> Vec<FileChunk> {
    let slot = slot / ALIGN * ALIGN;
    let mut chunks: Vec<FileChunk> = Vec::new();
    for PartRange { part, mut skipped, bytes } in ranges {
        let (file, at, _) = parts[part];
        let end = skipped + bytes;
        while skipped < end {
            let start = at.saturating_add(skipped as u64);
            let fits = |last: &&mut FileChunk| {
                let end = last.at + last.bytes as u64;
                last.file == file && start <= end.saturating_add(GAP_MAX) && start - last.at < slot
            };
            let bytes = match chunks.last_mut().filter(fits) {
                Some(last) => last.add(part, start, skipped, end - skipped, slot),
                None => {
                    let mut new = FileChunk { file, at: start / ALIGN * ALIGN, bytes: 0, pieces: Vec::new() };
                    let bytes = new.add(part, start, skipped, end - skipped, slot);
                    chunks.push(new);
                    bytes
                }
            };
            skipped += bytes;
        }
    }
    chunks
}

impl FileChunk {
    /// Adds what fits of `left` bytes of a part, from `start` of the file on, of which `skipped` are in other chunks; how many fit.
    fn add(&mut self, part: usize, start: u64, skipped: usize, left: usize, slot: u64) -> usize {
        let from = start - self.at;
        let bytes = left.min((slot - from) as usize);
        let from = from as usize;
        self.pieces.push(ChunkPiece { part, skipped, bytes, from });
        self.bytes = self.bytes.max(from + bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_a_chunk_and_long_parts_have_several() {
        let parts = [(1, 5, 10), (0, 100, 20_000), (0, 20_100, 8), (0, 1 << 20, 1)];
        let made = chunks(&parts, in_order(&parts).into(), 8 << 10);
        let shape: Vec<_> = made.iter().map(|chunk| (chunk.file, chunk.at, chunk.bytes, chunk.pieces.len())).collect();
        assert_eq!(
            shape,
            [(0, 0, 8192, 1), (0, 8192, 8192, 1), (0, 16_384, 3724, 2), (0, 1 << 20, 1, 1), (1, 0, 15, 1)]
        );
        for (part, (_, at, bytes)) in parts.iter().enumerate() {
            let mut next = 0;
            for chunk in &made {
                for piece in chunk.pieces.iter().filter(|piece| piece.part == part) {
                    assert_eq!((piece.skipped, chunk.at + piece.from as u64), (next, at + next as u64));
                    next += piece.bytes;
                }
            }
            assert_eq!(next, *bytes);
        }
    }

    #[test]
    fn stretches_together_have_all_and_take_a_second_each() {
        let mut left = in_order(&[(1, 7, 3), (0, 100, 25), (1, 0, 0)]);
        let range = |part, skipped, bytes| PartRange { part, skipped, bytes };
        assert_eq!(take(&mut left, 10), [range(1, 0, 10)]);
        assert_eq!(take(&mut left, 15), [range(1, 10, 15)]);
        assert_eq!(take(&mut left, 10), [range(0, 0, 3)]);
        assert!(left.is_empty() && take(&mut left, 10).is_empty());
        let next = |bytes, ms| next_stretch(bytes, Duration::from_millis(ms));
        assert_eq!(next(1 << 30, 500), 2 << 30);
        assert_eq!(next(64 << 20, 1), 256 << 20, "no more than four times as much");
        assert_eq!(next(1 << 30, 60_000), STRETCH_MIN);
        assert_eq!(next(STRETCH_MAX, 1), STRETCH_MAX);
    }

    #[test]
    fn parts_without_bytes_take_nothing() {
        assert!(chunks(&[(0, 7, 0)], in_order(&[(0, 7, 0)]).into(), 4096).is_empty());
    }
}
