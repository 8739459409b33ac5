//! Input for runs that are given none: random bytes from the seed, the same on every machine.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_runtime::outlet::Outlet;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::{Error, Failure};

/// Name of the sample inside the results.
pub(crate) const NAME: &str = "sample.bin";

/// Writes `bytes` bytes.
pub(crate) fn write(outlet: &Outlet, bytes: u64, seed: u64, interrupt: &AtomicBool) -> Result<PathBuf, Error> {
    let mut left = bytes;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut file = outlet.file(NAME)?;
    let mut chunk = vec![0; 1 << 16];
    while left > 0 {
        if interrupt.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted.into());
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
    use headway_core::files::workload::OnMiss;
    use headway_core::plan::PlannedStream;
    use headway_core::units::{Bytes, Nanos};

    use super::*;
    use crate::keep::Keep;

    fn streams(packet: u64, count: usize) -> Vec<PlannedStream> {
        let stream = PlannedStream {
            id: "a".to_owned(),
            packet: Bytes(packet),
            period: Nanos(1000),
            deadline: Nanos(10_000),
            start: Nanos(0),
            on_miss: OnMiss::Finish,
            gpu: Some(0),
            pipeline: 0,
            portion: 0,
        };
        vec![stream; count]
    }

    fn parts(packet: u64, count: usize, duration: u64, sample: Option<u64>) -> Result<Vec<u64>, Error> {
        let keep = Keep { sample: sample.map(Bytes), ..Keep::default() };
        keep.parts(&streams(packet, count), Nanos(duration), &vec![16; count])
    }

    #[test]
    fn a_short_run_gets_all_it_takes_and_a_long_one_a_part_of_whole_blocks() {
        assert_eq!(parts(48, 2, 10_000, None).unwrap(), [480, 480]);
        assert_eq!(parts(48, 1, 10_000, Some(100)).unwrap(), [96]);
        assert_eq!(parts(48, 1, 10_000, Some(1)).unwrap(), [16]);
        // An hour at 4 KiB each microsecond.
        assert_eq!(parts(4096, 2, 3_600_000_000_000, None).unwrap(), [16 << 20; 2]);
        // Very many streams share a gibibyte.
        let many = parts(4096, 70_000, 1_000_000_000, None).unwrap();
        assert!(many.iter().sum::<u64>() <= 1 << 30 && many[0] == (1 << 30) / 70_000 / 16 * 16, "{}", many[0]);
    }

    #[test]
    fn samples_that_are_empty_or_fill_disks_are_refused() {
        assert!(matches!(parts(48, 1, 0, None).map_err(Error::into_failure), Err(Failure::Sample { bytes: 0, .. })));
        assert!(
            matches!(parts(u64::MAX, 2, 2000, Some(u64::MAX)).map_err(Error::into_failure), Err(Failure::Sample { bytes, .. }) if bytes > 1 << 64)
        );
    }

    #[test]
    fn a_sample_has_the_bytes_asked_for_and_an_interrupt_ends_its_writing() {
        let folder = tempfile::tempdir().unwrap();
        let outlet = Outlet::create(&folder.path().join("results")).unwrap();
        let path = write(&outlet, 100_000, 1, &AtomicBool::new(false)).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 100_000);
        let another = Outlet::create(&folder.path().join("another")).unwrap();
        assert!(matches!(
            write(&another, 100_000, 1, &AtomicBool::new(true)).map_err(Error::into_failure),
            Err(Failure::Interrupted)
        ));
    }
}
