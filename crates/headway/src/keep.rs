//! How much of a run is kept on disk, and what is said of the rest.

use headway_core::plan::PlannedStream;
use headway_core::units::{Bytes, Nanos};
use headway_runtime::intake::bytes_within;

use crate::{Error, Failure};

/// Bounds on what a run leaves behind. Verdict, counts and statistics do not depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Random input made for one stream where none is given, and output of it that is kept; `None` = [`SAMPLE`], or less where
    /// there are many streams. A longer run reads its sample again and again.
    pub sample: Option<Bytes>,
    /// Size of the log on disk, about.
    pub log: Bytes,
    /// Operations and packets that the trace shows.
    pub traced: u64,
    /// Records from which on a log is compressed.
    pub packed_from: u64,
}

/// Sample of one stream, and of all together, unless somebody asks for another one.
pub const SAMPLE: Bytes = Bytes(16 << 20);
const SAMPLES: Bytes = Bytes(1 << 30);

/// Most bytes of all samples together: more than any trial needs, less than what fills a disk by a slip of the unit.
const SAMPLES_MAX: u64 = 16 << 30;

/// Most bytes that all streams of one run may read: more than a year of the main job.
const BYTES_MAX: u64 = 1 << 50;

impl Default for Keep {
    /// For a run of an hour: 2 GiB of sample and output, and a trace of about 120 MB. The main
    /// job's log grows by about 65 kB a second.
    fn default() -> Self {
        Self { sample: None, log: Bytes(4_000_000_000), traced: 1_000_000, packed_from: 500_000 }
    }
}

impl Keep {
    /// Keeps all results.
    #[must_use]
    pub fn all() -> Self {
        Self { sample: Some(Bytes(u64::MAX)), log: Bytes(u64::MAX), traced: u64::MAX, packed_from: u64::MAX }
    }

    /// Bytes of results of `size` each that are kept: whole results, at least one.
    pub(crate) fn results(&self, size: Bytes) -> u64 {
        let size = size.0.max(1);
        self.sample.unwrap_or(SAMPLE).0.max(size) / size * size
    }

    /// Bytes of the sample for each of `streams` in a run of `duration`: all that it takes, or as many of its whole granules as
    /// are kept.
    pub(crate) fn parts(
        &self,
        streams: &[PlannedStream],
        duration: Nanos,
        granules: &[u64],
    ) -> Result<Vec<u64>, Error> {
        let all: u128 = streams.iter().map(|stream| u128::from(bytes_within(stream, duration))).sum();
        if !(1..=u128::from(BYTES_MAX)).contains(&all) {
            return Err(Failure::Sample { duration, streams: streams.len(), bytes: all, max: BYTES_MAX }.into());
        }
        let share = SAMPLES.0 / (streams.len() as u64).max(1);
        let usual = SAMPLE.0.min(share);
        let most = |granule: u64| self.sample.map_or(usual, |sample| sample.0).max(granule) / granule * granule;
        let part = |(stream, &granule)| bytes_within(stream, duration).min(most(granule));
        let parts: Vec<u64> = streams.iter().zip(granules).map(part).collect();
        let bytes: u128 = parts.iter().copied().map(u128::from).sum();
        match u64::try_from(bytes) {
            Ok(1..=SAMPLES_MAX) => Ok(parts),
            _ => Err(Failure::Sample { duration, streams: streams.len(), bytes, max: SAMPLES_MAX }.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use headway_kernels::workload;

    use super::*;
    use crate::run as runs;
    use crate::run::{Backend, RunOptions};

    const WORKLOAD: &str = r#"
        name = "two"
        [[stream]]
        id = "a"
        packet = "16 KiB"
        period = "1 ms"
        deadline = "20 ms"
        steps = [{ copy = "host -> gpu" }, { compute = "aes128-cbc" }, { copy = "gpu -> host" }]
        key = "000102030405060708090a0b0c0d0e0f"
        iv = "101112131415161718191a1b1c1d1e1f"
    "#;

    fn options(out: &Path, keep: Keep) -> RunOptions {
        let out = Some(out.to_owned());
        RunOptions { backend: Backend::Sim, duration: Some(Nanos(500_000_000)), out, keep, ..RunOptions::default() }
    }

    #[cfg(feature = "gzip")]
    #[test]
    fn a_long_log_is_compressed_and_replays_and_reports_like_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let workload = workload::parse("two.toml", WORKLOAD).unwrap();
        let of = |name: &str, packed_from| {
            let place = folder.path().join(name);
            let keep = Keep { packed_from, ..Keep::default() };
            let done = runs::run(&workload, &options(&place, keep), |_| ()).unwrap();
            let replayed = crate::report::replay(&place).unwrap();
            let (summary, _) = crate::report::report(&place, None, keep.traced).unwrap();
            assert_eq!(summary, done.summary);
            (done.files[0].clone(), replayed, std::fs::metadata(&done.files[0]).unwrap().len())
        };
        let (plain, packed) = (of("plain", u64::MAX), of("packed", 10));
        assert_eq!(
            (plain.0.file_name(), packed.0.file_name()),
            (Some("run.jsonl".as_ref()), Some("run.jsonl.gz".as_ref()))
        );
        assert_eq!(plain.1, packed.1);
        assert!(packed.2 * 3 < plain.2, "{} {}", packed.2, plain.2);
        // The one replaces the other.
        runs::run(&workload, &options(&folder.path().join("packed"), Keep::default()), |_| ()).unwrap();
        assert!(!folder.path().join("packed/run.jsonl.gz").exists());
    }

    #[test]
    fn bytes_that_are_not_kept_are_compared_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let workload = workload::parse("two.toml", WORKLOAD).unwrap();
        let keep = Keep { sample: Some(Bytes(64 << 10)), ..Keep::default() };
        let options = options(&folder.path().join("results"), keep);
        let mut chosen = runs::choose(&options, &workload.value).unwrap();
        let plan =
            crate::plan::make(&chosen.machine, &workload, headway_core::plan::planner::PlanOptions::default()).unwrap();
        let plan = std::sync::Arc::new(plan);
        let outlet = headway_runtime::outlet::Outlet::create(&folder.path().join("results")).unwrap();
        let ran = runs::execute(&mut chosen, &plan, &workload.value, &options, &outlet, &mut |_| ()).unwrap();
        assert_eq!(ran.kept, [64 << 10]);
        let ends = ran.left.take();
        // 500 packets of 16 KiB less 64 KiB are 7.75 MiB.
        assert_eq!(ends.digests[0].len(), 8);
        let verify = |ends: &headway_runtime::tail::StreamTails| {
            let lost = std::collections::BTreeSet::new();
            let outputs =
                crate::verify::Outputs { folder: &outlet.path(""), lost: &lost, kept: &ran.kept, ends: ends.clone() };
            crate::verify::verify(&plan, &ran.kernels, &ran.intake, &outputs, &options.interrupt, |_| ())
        };
        verify(&ends).unwrap();
        let mut flipped = ends.clone();
        flipped.digests[0][2][7] ^= 1;
        let from = (64 << 10) + (2 << 20);
        assert!(matches!(
            verify(&flipped).map_err(Error::into_failure),
            Err(Failure::WrongTail { first, last, .. }) if (first, last) == (from, from + (1 << 20) - 1)
        ));
        let mut short = ends;
        short.digests[0].pop();
        assert!(
            matches!(verify(&short).map_err(Error::into_failure), Err(Failure::WrongTail { last, .. }) if last == 500 * (16 << 10) - 1)
        );
    }
}
