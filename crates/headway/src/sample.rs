//! Input for runs that are given none: random bytes from the seed, the same on every machine.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_core::plan::PlannedStream;
use headway_core::units::Nanos;
use headway_runtime::intake::bytes_within;
use headway_runtime::outlet::Outlet;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::Error;

/// Name of the sample inside the results.
pub(crate) const NAME: &str = "sample.bin";

/// Most bytes of a sample: more than any short trial needs, less than what fills a disk by a slip of the unit.
const BYTES_MAX: u64 = 16 << 30;

/// Writes what `streams` take in `duration`.
pub(crate) fn write(
    outlet: &Outlet,
    streams: &[PlannedStream],
    duration: Nanos,
    seed: u64,
    interrupt: &AtomicBool,
) -> Result<PathBuf, Error> {
    let bytes: u128 = streams.iter().map(|stream| u128::from(bytes_within(stream, duration))).sum();
    let Ok(mut left @ 1..=BYTES_MAX) = u64::try_from(bytes) else {
        return Err(Error::Sample { duration, streams: streams.len(), bytes, max: BYTES_MAX });
    };
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut file = outlet.file(NAME)?;
    let mut chunk = vec![0; 1 << 16];
    while left > 0 {
        if interrupt.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let now = left.min(chunk.len() as u64) as usize;
        random.fill_bytes(&mut chunk[..now]);
        file.write(&chunk[..now])?;
        left -= now as u64;
    }
    file.finish()?;
    Ok(outlet.path(NAME))
}
