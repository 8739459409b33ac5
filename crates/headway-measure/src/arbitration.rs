//! Who waits for whom at a GPU's copy engines, by which the machine file's `[[arbitration]]` is made.

use headway::gpus::CopyBackend;
use headway::gpus::arbitration::{self, Ask, BulkCopy, BulkStreamGap, Hand, Small};
use headway_core::models::transfer::Direction;
use headway_core::models::transfer::arbitration::{Cut, DIRECTIONS, EngineArbitration, SmallCopyWait};
use headway_core::units::{Bytes, Nanos, PPM};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::child;
use crate::rival::{Rival, order};
use crate::session::Session;

const MIB: usize = 1 << 20;
/// The small copy: a token, a sum, a flag.
const TOKEN: usize = 64;
/// Lengths of pieces, MiB.
const PIECES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Samples that a 99th percentile needs.
const SAMPLES: usize = 100;

/// How much is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asking {
    /// Length of bulk copies.
    pub(crate) bulk_bytes: usize,
    /// Bulk copies of a case at least, and at most where small ones wait for all of one.
    pub(crate) rounds: (usize, usize),
}

/// What was found of one direction, or why nothing was.
#[derive(Serialize, Deserialize)]
pub(crate) struct DirectionResult {
    pub(crate) arbitration: Option<EngineArbitration>,
    /// What could not be asked, a sentence each.
    pub(crate) left_out: Vec<String>,
}

fn small(direction: Direction) -> Small {
    Small { direction, bytes: TOKEN, hand: Hand::Engine, urgent: false, queued_first: false }
}

/// One case until there are enough samples: the wait of small copies, and the middle of the bulk copies' times.
fn beside(
    gpu: &mut dyn Ask,
    bulk: &BulkCopy,
    (least, most): (usize, usize),
) -> Result<Option<(SmallCopyWait, Nanos)>, Error> {
    let (mut waits, mut times) = (Vec::new(), Vec::new());
    while times.len() < least || (waits.len() < SAMPLES && times.len() < most) {
        let both = gpu.bulk_and_small(bulk, &small(bulk.direction))?;
        times.push(both.bulk);
        waits.extend(both.small);
    }
    waits.sort_unstable();
    times.sort_unstable();
    Ok(SmallCopyWait::of(&waits).map(|wait| (wait, times[times.len() / 2])))
}

/// One direction of the GPU that is asked.
pub(crate) fn direction(gpu: &mut dyn Ask, way: Direction, asking: Asking) -> Result<DirectionResult, Error> {
    let Asking { bulk_bytes, rounds } = asking;
    let whole = BulkCopy { direction: way, piece: bulk_bytes, between: BulkStreamGap::Nothing };
    let mut times = (0..5).map(|_| gpu.bulk(&whole)).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    let alone = times[times.len() / 2];
    let share =
        |took: Nanos| (u128::from(alone.0) * u128::from(PPM) / u128::from(took.0.max(1))).clamp(1, u128::from(2 * PPM));
    let cut = |piece: usize, (wait, took): (SmallCopyWait, Nanos)| Cut {
        piece: Bytes(piece as u64),
        share_ppm: share(took) as u64,
        wait,
    };
    let Some(first) = beside(gpu, &whole, rounds)? else {
        return Ok(DirectionResult {
            arbitration: None,
            left_out: vec![format!("copies {way}: no small copy was made")],
        });
    };
    let (mut words, mut streams, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for (cuts, between, what) in [
        (&mut words, BulkStreamGap::Write { barrier: true }, "a written word behind each"),
        (&mut streams, BulkStreamGap::OtherStream, "two streams by turns"),
    ] {
        for piece in PIECES.map(|mib| mib * MIB).into_iter().filter(|piece| *piece < bulk_bytes) {
            match beside(gpu, &BulkCopy { direction: way, piece, between }, rounds) {
                Ok(found) => cuts.extend(found.map(|found| cut(piece, found))),
                // A driver that does not have it refuses every length.
                Err(error) => {
                    left_out.push(format!("copies {way} in pieces, {what}: {error}"));
                    break;
                }
            }
        }
    }
    let arbitration = EngineArbitration { whole: cut(bulk_bytes, first), time: alone, words, streams, process: None };
    Ok(DirectionResult { arbitration: Some(arbitration), left_out })
}

/// What small copies of another process wait for beside whole copies.
fn process(gpu: &mut dyn Ask, way: Direction, index: u32, bulk_bytes: usize) -> Result<Option<SmallCopyWait>, String> {
    let order = order(&small(way), index, 2 * SAMPLES);
    let command = child::command(&order).map_err(|error| error.to_string())?;
    let mut rival = Rival::start(command).map_err(|error| error.to_string())?;
    let bulk = BulkCopy { direction: way, piece: bulk_bytes, between: BulkStreamGap::Nothing };
    loop {
        gpu.bulk(&bulk).map_err(|error| error.to_string())?;
        if let Some(mut waits) = rival.heard().map_err(|error| error.to_string())? {
            waits.sort_unstable();
            return Ok(SmallCopyWait::of(&waits));
        }
    }
}

/// Both directions of the GPU with the number `index`.
pub(crate) fn of_gpu(
    session: &mut Session<'_>,
    backend: CopyBackend,
    model: Option<&str>,
    index: u32,
    asking: Asking,
) -> Result<Vec<(Direction, DirectionResult)>, Error> {
    let mut all = Vec::new();
    for way in DIRECTIONS {
        let key = format!("arbitration gpu{index} {way} {}", asking.bulk_bytes);
        let found = session.step(&key, |_| {
            let mut gpu = arbitration::ask(backend, model, index, asking.bulk_bytes)?;
            let mut found = direction(gpu.as_mut(), way, asking)?;
            if let (Some(known), false) = (&mut found.arbitration, backend == CopyBackend::Emu) {
                match process(gpu.as_mut(), way, index, asking.bulk_bytes) {
                    Ok(wait) => known.process = wait,
                    Err(error) => found.left_out.push(format!("copies {way} beside another process's: {error}")),
                }
            }
            Ok(found)
        })?;
        all.push((way, found));
        session.advance()?;
    }
    Ok(all)
}
