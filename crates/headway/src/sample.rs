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

#[cfg(test)]
mod tests {
    use super::*;
    use headway_core::units::Bytes;
    use headway_core::workload::OnMiss;

    fn sample(packet: u64, duration: u64, interrupt: bool) -> Result<u64, Error> {
        let stream = PlannedStream {
            id: "a".to_owned(),
            packet: Bytes(packet),
            period: Nanos(1000),
            deadline: Nanos(10_000),
            start: Nanos(0),
            on_miss: OnMiss::Finish,
            gpu: Some(0),
            pipeline: 0,
            lane: 0,
        };
        let folder = tempfile::tempdir().unwrap();
        let outlet = Outlet::create(&folder.path().join("results")).unwrap();
        let path = write(&outlet, &[stream.clone(), stream], Nanos(duration), 1, &AtomicBool::new(interrupt))?;
        Ok(path.metadata().unwrap().len())
    }

    #[test]
    fn a_sample_has_the_bytes_that_arrive_in_its_duration() {
        assert_eq!(sample(48, 10_000, false).unwrap(), 2 * 10 * 48);
    }

    #[test]
    fn samples_that_are_empty_or_fill_disks_are_refused() {
        assert!(matches!(sample(48, 0, false), Err(Error::Sample { bytes: 0, .. })));
        assert!(matches!(sample(u64::MAX, 2000, false), Err(Error::Sample { bytes, .. }) if bytes > 1 << 64));
    }

    #[test]
    fn an_interrupt_ends_the_writing_of_a_sample() {
        assert!(matches!(sample(48, 10_000, true), Err(Error::Interrupted)));
    }
}
