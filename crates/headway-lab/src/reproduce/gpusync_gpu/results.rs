//! What came of a configuration: response times, waits, how busy the engines were; written as it comes.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use headway_core::models::transfer::tail;
use headway_core::units::Nanos;
use serde::Serialize;

use super::hand_over::hand_overs;
use crate::Error;
use crate::reproduce::{RawFigures, raw_figures};
use crate::trackers::Tracked;
use headway::jobs::{DoneJob, ObservedMaxima};

/// One configuration, one repetition, all its cameras. Responses in percent of the period.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) managed: bool,
    pub(super) repetition: u32,
    /// The load: what kernels would take of each GPU with one camera alone, percent.
    pub(super) busy: u64,
    pub(super) frames: u64,
    pub(super) lost: u64,
    pub(super) mean: f64,
    pub(super) p50: f64,
    /// Left out where there are fewer than 100 frames, as that of hand-overs.
    pub(super) p99: Option<f64>,
    pub(super) max: f64,
    pub(super) misses: u64,
    pub(super) tardiness_max_ns: u64,
    pub(super) migrations: u64,
    /// Time of kernels and of copies as their processes saw it, percent of the GPUs' time.
    pub(super) kernels_busy: f64,
    pub(super) copies_busy: f64,
    pub(super) token_wait_max_ns: u64,
    pub(super) engine_wait_max_ns: u64,
    pub(super) blocking_max_ns: u64,
    /// The bound that came nearest to being reached, and what share of it was; `None` where nothing is bounded.
    pub(super) bound_ns: Option<u64>,
    pub(super) of_bound: Option<f64>,
    /// From an operation's end to the beginning of the one that waited for it: median and 99th percentile, where engines have
    /// locks.
    pub(super) hand_over_p50_ns: Option<u64>,
    pub(super) hand_over_p99_ns: Option<u64>,
    /// Digests of all cameras' last frames.
    pub(super) digest: u64,
}

/// Whose frames, with what they are compared to.
pub(super) struct Run<'a> {
    pub(super) name: &'a str,
    pub(super) managed: bool,
    pub(super) repetition: u32,
    pub(super) busy: u64,
    pub(super) gpus: usize,
    pub(super) expected: u64,
    pub(super) periods: &'a [Nanos],
    pub(super) tracked: &'a [Tracked],
    /// Copy-engine locks of a GPU.
    pub(super) copy_engines: u32,
}

impl Measured {
    /// Sums a run up; bounds are filled in later.
    pub(super) fn of(run: &Run<'_>) -> Self {
        let mut responses = Vec::new();
        let (mut misses, mut tardiness, mut migrations, mut digest) = (0, 0, 0, 0u64);
        let (mut kernels, mut copies, mut first, mut last) = (0, 0, u64::MAX, 0);
        for (tracked, period) in run.tracked.iter().zip(run.periods) {
            for frame in &tracked.frames {
                responses.push(frame.response().0 as f64 / period.0 as f64 * 100.0);
                let late = frame.done.saturating_sub(frame.release + period.0);
                misses += u64::from(late > 0);
                tardiness = tardiness.max(late);
                migrations += u64::from(frame.from.is_some());
                kernels += frame.account.execute;
                copies += frame.account.copy;
                (first, last) = (first.min(frame.release), last.max(frame.done));
            }
            digest = digest.rotate_left(7) ^ tracked.frames.last().map_or(0, |frame| frame.digest);
        }
        responses.sort_by(f64::total_cmp);
        let hand_overs = hand_overs(run.tracked, run.copy_engines);
        let hand_over = |percent: usize| hand_overs.get((hand_overs.len() * percent / 100).saturating_sub(1)).copied();
        let rank = |share: f64| {
            let at = (share * responses.len() as f64).ceil() as usize;
            responses.get(at.saturating_sub(1)).or_else(|| responses.last()).copied().unwrap_or(f64::NAN)
        };
        let mut seen = ObservedMaxima::default();
        for tracked in run.tracked {
            let own = ObservedMaxima::of(&tracked.frames);
            seen.token_wait_max = seen.token_wait_max.max(own.token_wait_max);
            seen.engine_wait_max = seen.engine_wait_max.max(own.engine_wait_max);
            seen.blocking_max = seen.blocking_max.max(own.blocking_max);
        }
        let time = last.saturating_sub(first).max(1) as f64 * run.gpus as f64;
        let frames = responses.len() as u64;
        Self {
            name: run.name.to_owned(),
            managed: run.managed,
            repetition: run.repetition,
            busy: run.busy,
            frames,
            lost: run.expected.saturating_sub(frames),
            mean: responses.iter().sum::<f64>() / responses.len() as f64,
            p50: rank(0.5),
            p99: tail(frames, rank(0.99)),
            max: rank(1.0),
            misses,
            tardiness_max_ns: tardiness,
            migrations,
            kernels_busy: kernels as f64 / time * 100.0,
            copies_busy: copies as f64 / time * 100.0,
            token_wait_max_ns: seen.token_wait_max.0,
            engine_wait_max_ns: seen.engine_wait_max.0,
            blocking_max_ns: seen.blocking_max.0,
            bound_ns: None,
            of_bound: None,
            hand_over_p50_ns: hand_over(50),
            hand_over_p99_ns: tail(hand_overs.len() as u64, hand_over(99)).flatten(),
            digest,
        }
    }
}

/// `results.csv`.
fn results(runs: &[Measured]) -> RawFigures {
    let percent = |share: f64| format!("{share:.3}");
    raw_figures!("results", runs, |run| Columns {
        configuration: run.name,
        repetition: run.repetition,
        load_percent: run.busy,
        frames: run.frames,
        lost: run.lost,
        mean_percent: percent(run.mean),
        p50_percent: percent(run.p50),
        p99_percent: run.p99.map(percent),
        max_percent: percent(run.max),
        misses: run.misses,
        tardiness_max_ns: run.tardiness_max_ns,
        migrations: run.migrations,
        kernels_busy_percent: format!("{:.2}", run.kernels_busy),
        copies_busy_percent: format!("{:.2}", run.copies_busy),
        token_wait_max_ns: run.token_wait_max_ns,
        engine_wait_max_ns: run.engine_wait_max_ns,
        blocking_max_ns: run.blocking_max_ns,
        bound_ns: run.bound_ns,
        of_bound_percent: run.of_bound.map(|share| format!("{share:.1}")),
        hand_over_p50_ns: run.hand_over_p50_ns,
        hand_over_p99_ns: run.hand_over_p99_ns,
        digest: format!("{:016x}", run.digest),
    })
}

/// `frames.csv.gz`: the frames of one camera in one run.
fn frames(run: &Measured, camera: usize, frames: &[DoneJob]) -> RawFigures {
    raw_figures!("frames", frames, |frame| {
        let account = &frame.account;
        Columns {
            configuration: run.name,
            load_percent: run.busy,
            repetition: run.repetition,
            camera: camera,
            frame: frame.job,
            release_ns: frame.release,
            start_ns: frame.start,
            granted_ns: frame.granted,
            done_ns: frame.done,
            gpu: frame.gpu,
            from: frame.from,
            copies: account.copies,
            executes: account.executes,
            copy_ns: account.copy,
            execute_ns: account.execute,
            engine_wait_ns: account.engine_wait,
            copy_held_max_ns: account.copy_held_max,
            execute_held_max_ns: account.execute_held_max,
        }
    })
}

/// Files that grow while the experiment runs: `results.csv`, a line for each run, and `frames.csv.gz`, one for each frame.
pub(super) struct Files {
    folder: PathBuf,
    /// Whether the names of the columns are there.
    has_header: bool,
    results: File,
    frames: GzEncoder<BufWriter<File>>,
}

impl Files {
    pub(super) fn create(folder: &Path) -> Result<Self, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| headway::Failure::Write { path, source }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let path = folder.join("results.csv");
        let results = File::create(&path).map_err(failed(&path))?;
        let path = folder.join("frames.csv.gz");
        let file = File::create(&path).map_err(failed(&path))?;
        let frames = GzEncoder::new(BufWriter::new(file), Compression::fast());
        Ok(Self { folder: folder.to_owned(), has_header: false, results, frames })
    }

    /// Adds a run; on disk when this returns.
    pub(super) fn add(&mut self, measured: &Measured, tracked: &[Tracked]) -> Result<(), Error> {
        let folder = self.folder.clone();
        Ok(self.write(measured, tracked).map_err(|source| headway::Failure::Write { path: folder, source })?)
    }

    fn write(&mut self, measured: &Measured, tracked: &[Tracked]) -> std::io::Result<()> {
        let mut all = RawFigures::default();
        for (camera, tracked) in tracked.iter().enumerate() {
            all.add(frames(measured, camera, &tracked.frames));
        }
        let results = results(std::slice::from_ref(measured));
        let text = |table: &RawFigures| if self.has_header { table.csv_lines() } else { table.csv() };
        self.frames.write_all(text(&all).as_bytes())?;
        self.frames.flush()?;
        self.results.write_all(text(&results).as_bytes())?;
        self.has_header = true;
        self.results.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_summed_up_per_period_and_gpu() {
        let frame = |frame: u64, response: u64| DoneJob {
            job: frame,
            release: frame * 100,
            start: frame * 100,
            granted: frame * 100 + 1,
            released: frame * 100 + response,
            done: frame * 100 + response,
            gpu: 0,
            from: (frame == 1).then_some(1),
            account: serde_json::from_str(
                "{\"copies\":1,\"executes\":1,\"copy\":5,\"execute\":20,\"engine_wait\":2,\"copy_wait_max\":2,\
                 \"execute_wait_max\":0,\"copy_held_max\":5,\"execute_held_max\":20}",
            )
            .unwrap(),
            digest: 7,
        };
        let frames = vec![vec![frame(0, 50), frame(1, 150)], vec![frame(0, 40)]];
        let tracked: Vec<_> = frames.into_iter().map(|frames| Tracked { frames, ..Tracked::default() }).collect();
        let periods = [Nanos(100), Nanos(200)];
        let run = Run {
            name: "x,y",
            managed: true,
            repetition: 1,
            busy: 50,
            gpus: 2,
            expected: 4,
            periods: &periods,
            tracked: &tracked,
            copy_engines: 1,
        };
        let measured = Measured::of(&run);
        assert_eq!((measured.frames, measured.lost, measured.misses, measured.migrations), (3, 1, 1, 1));
        assert_eq!((measured.mean, measured.p50, measured.max), (220.0 / 3.0, 50.0, 150.0));
        assert_eq!((measured.tardiness_max_ns, measured.blocking_max_ns), (50, 3));
        // 60 of 250 ns on two GPUs.
        assert_eq!(measured.kernels_busy, 12.0);
    }
}
