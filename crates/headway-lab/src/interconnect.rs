//! Random batches of concurrent copies against the interconnect model: predicted and measured ends, and the worst-case bound
//! (specification of messages, 1.5).

mod results;
mod simulated;
mod variants;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use headway_core::files::machine::{self, Machine};
use headway_core::interconnect::fit::FitError;
use headway_core::interconnect::{Accuracy, Judged, Network};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos};
use headway_device::gpu::Gpu;
use serde::Serialize;

pub use self::results::BatchGroup;
use self::results::Case;
pub use self::variants::Variant;
use headway::gpus;
use headway::run::{Backend, Progress};
use headway::{COMMIT, stamp};
use headway_measure::Error;
use headway_measure::batches::{BatchDraw, BatchTiming, Bed, Mix, Routes, TrialBlock, gpus_of};
use headway_measure::bench::Target;
use headway_measure::fit::Observed;
use headway_measure::folder::{self, Folder};
use headway_measure::interconnect::{Scope, calibrate};
use headway_measure::node;
use headway_measure::session::Session;
use headway_measure::sets::SetMemory;

/// `|measured - predicted| / predicted` in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// Number of predictions.
    pub n: usize,
    /// Half of them are off by at most this.
    pub median_ppm: u64,
    /// 95 % of them are.
    pub p95_ppm: u64,
    /// All of them are.
    pub max_ppm: u64,
}

impl From<Accuracy> for Errors {
    fn from(Accuracy { n, median_ppm, p95_ppm, max_ppm }: Accuracy) -> Self {
        Self { n, median_ppm, p95_ppm, max_ppm }
    }
}

/// What to run and where to write it.
#[derive(Clone, Debug)]
pub struct InterconnectBenchOptions {
    /// On what.
    pub backend: Backend,
    /// The machine that is simulated, or that the emulated backend imitates.
    pub model: Option<String>,
    /// Machine file to predict with; `None` = the node is measured first.
    pub machine: Option<String>,
    /// The first so many GPUs only.
    pub gpus: Option<usize>,
    /// Random batches.
    pub batches: usize,
    /// Repetitions of each.
    pub repeats: usize,
    /// Largest block.
    pub largest: Bytes,
    /// How long more batches are run before, for what disturbs copies now and then: worst cases count with it. `None` = 10 s on
    /// GPUs, else not at all.
    pub watch: Option<Nanos>,
    /// Seed of the batches.
    pub seed: u64,
    /// Folder for figures, plots, machine file and summary.
    pub out: PathBuf,
    /// Ends it early when it becomes true.
    pub interrupt: Arc<AtomicBool>,
}

impl InterconnectBenchOptions {
    /// How long this takes, about, on a quiet host with one GPU. Simulated batches take next to nothing.
    #[must_use]
    pub fn estimate(&self) -> Nanos {
        if self.backend == Backend::Sim {
            return Nanos::ZERO;
        }
        let links = if self.machine.is_some() { Nanos::ZERO } else { Nanos(20 * NANOS_PER_SECOND) };
        let batches = Nanos(10_000_000u64.saturating_mul((self.batches * self.repeats) as u64));
        // The driver's thread is watched as long as the batches.
        let watch = if self.machine.is_some() { Nanos::ZERO } else { self.watch.unwrap_or(WATCH) };
        [links, batches, watch, watch].into_iter().fold(Nanos::ZERO, Nanos::saturating_add)
    }
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct InterconnectBenchReport {
    /// Version of the JSON form.
    pub schema: u32,
    /// What the figures stand for: `sim`, `emu` or `cuda`.
    pub source: &'static str,
    /// With the emulated backend: what it imitates, and what its times do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imitates: Option<String>,
    pub gpus: Vec<String>,
    /// The machine that predicted, and where it comes from.
    pub machine: String,
    /// Commit of the program.
    pub commit: &'static str,
    /// Seed of the batches.
    pub seed: u64,
    /// Repetitions of each batch.
    pub repeats: usize,
    /// All batches, then by number of GPUs, mix and length.
    pub groups: Vec<BatchGroup>,
    /// The same batches predicted with parts of the model left out.
    pub variants: Vec<Variant>,
    /// Every target.
    pub targets: Vec<Target>,
    /// Whether it was not interrupted.
    pub complete: bool,
    #[serde(serialize_with = "headway::path_text::one")]
    pub folder: PathBuf,
    /// What the user should know.
    pub warnings: Vec<String>,
    #[serde(skip)]
    cases: Vec<Case>,
    #[serde(skip)]
    rates: Option<String>,
    #[serde(skip)]
    sets: String,
    #[serde(skip)]
    file: Option<String>,
}

const TITLE: &str = "Interconnect";
/// Smallest and largest block that can be asked for.
const LARGEST: std::ops::RangeInclusive<u64> = 4096..=1 << 30;

/// What happens a few times in a thousand runs is likely to be seen in so long.
const WATCH: Nanos = Nanos(10 * NANOS_PER_SECOND);

/// A machine that predicts, and what it was fitted to in this run.
struct FittedMachine {
    machine: Machine,
    observed: Option<Observed>,
    said: String,
    /// Its file, if it was made in this run.
    file: Option<String>,
}

/// A batch that was run.
struct Ran {
    blocks: Vec<TrialBlock>,
    took: Vec<BatchTiming>,
}

/// Compares predictions with random batches as `options` say; without a machine file the node is measured first.
///
/// # Errors
/// [`headway::ErrorKind::Backend`], [`headway_measure::Error::WrongCopy`], [`headway::ErrorKind::Interrupted`] before the first batch, and what devices and files
/// refuse. After a failure or an interruption the batches that were run until then are in the folder all the same.
pub fn run(
    options: &InterconnectBenchOptions,
    mut progress: impl FnMut(Progress),
) -> Result<InterconnectBenchReport, Error> {
    if !LARGEST.contains(&options.largest.0) {
        return Err(headway::Failure::Options("blocks are between 4 KiB and 1 GiB at most").into());
    }
    if options.batches == 0 || options.repeats == 0 {
        return Err(headway::Failure::Options("at least one batch and one repetition are needed").into());
    }
    folder::check(&options.out, TITLE)?;
    let mut session = Session::new(None, None, &options.interrupt, &mut progress);
    let mut node = match options.backend {
        Backend::Sim => simulated::node(options)?,
        Backend::Auto | Backend::Emu | Backend::Cuda => on_gpus(options, &mut session)?,
    };
    session.phase("batches", options.batches);
    let (mut ran, mut failed, mut saved) = (Vec::new(), None, None);
    for number in 0..options.batches {
        if number % SAVED_EVERY == 0 {
            saved = Some(InterconnectBenchReport::of(options, &node, &ran)?.write()?);
        }
        let done = (node.next)().map(|batch| ran.push(batch)).and_then(|()| session.advance());
        if let Err(error) = done {
            failed = Some(error);
            break;
        }
    }
    let mut report = InterconnectBenchReport::of(options, &node, &ran)?;
    report.warnings.extend(session.finish()?);
    report.complete = failed.is_none();
    let failed = failed.filter(|error| !matches!(error, Error::Headway(headway::Failure::Interrupted)));
    if !report.complete {
        let ended = || folder::ENDED_EARLY.to_owned();
        report.warnings.push(failed.as_ref().map_or_else(ended, |error| format!("ended early: {error}")));
    }
    report.folder = report.write()?;
    if let Some(saved) = saved.filter(|saved| *saved != report.folder) {
        fs::remove_dir_all(&saved).map_err(|source| headway::Failure::Write { path: saved, source })?;
    }
    failed.map_or(Ok(report), Err)
}

/// Results are written down each time that so many batches were run: they stay when somebody ends the program.
const SAVED_EVERY: usize = 50;

/// What runs batches.
struct Node {
    source: &'static str,
    gpus: Vec<String>,
    known: FittedMachine,
    /// Draws a batch and runs it.
    next: Box<dyn FnMut() -> Result<Ran, Error>>,
}

fn on_gpus(options: &InterconnectBenchOptions, session: &mut Session<'_>) -> Result<Node, Error> {
    let backend = if options.backend == Backend::Emu { gpus::CopyBackend::Emu } else { gpus::CopyBackend::Cuda };
    let devices = gpus::open(backend, options.model.as_deref(), options.gpus)?;
    let source = devices.first().map_or("emu", |gpu| gpu.description().source.label());
    let gpus = devices.iter().map(|gpu| gpu.description().name.clone()).collect();
    let room = SetMemory::of(options.largest.0 as usize);
    let known = match &options.machine {
        Some(name) => given(name, devices.len())?,
        None => measured(options, backend, &devices, session)?,
    };
    let reaches = |from: usize, to: usize| devices[from].reaches(devices[to].id());
    let mut draw = BatchDraw::new(options.seed, devices.len(), reaches, room);
    let (mut bed, repeats) = (Bed::new(&devices, room)?, options.repeats);
    let next = move || {
        let blocks = draw.batch();
        let took = bed.repeat(&blocks, repeats)?;
        Ok(Ran { blocks, took })
    };
    Ok(Node { source, gpus, known, next: Box::new(next) })
}

/// The machine of a file.
fn given(name: &str, gpus: usize) -> Result<FittedMachine, Error> {
    let machine = headway::machine::open(name)?;
    let machine = if machine.gpus().count() == gpus { machine } else { headway::machine::restrict(&machine, gpus)? };
    let said = format!("{} ({}), from a file", machine.name, machine.hash);
    Ok(FittedMachine { machine, observed: None, said, file: None })
}

fn measured(
    options: &InterconnectBenchOptions,
    backend: gpus::CopyBackend,
    gpus: &[Arc<dyn Gpu>],
    session: &mut Session<'_>,
) -> Result<FittedMachine, Error> {
    let mut device = gpus::device(backend, options.model.as_deref())?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let stamp = stamp::stamp(gpus, node::date(seconds));
    let watch = options.watch.unwrap_or(if backend == gpus::CopyBackend::Cuda { WATCH } else { Nanos::ZERO });
    let scope = Scope::brief(gpus.len(), options.largest.0 as usize, watch);
    let (machine, observed) = calibrate(session, gpus, &mut device, &scope, ("interconnect", &stamp))?;
    Ok(fresh(machine, observed))
}

/// A machine that was just fitted, with the hash of its file.
fn fresh(machine: Machine, observed: Observed) -> FittedMachine {
    let (machine, file) = machine::with_file(machine, &["Written by `headway-lab interconnect`."]);
    let said = format!("{} ({}), fitted in this run", machine.name, machine.hash);
    FittedMachine { machine, observed: Some(observed), said, file: Some(file) }
}

/// Every batch beside what the machine says of it.
fn judge(machine: &Machine, ran: &[Ran]) -> Result<Vec<Judged>, Error> {
    let (network, routes) = (Network::new(machine), Routes::of(machine));
    let one = |ran: &Ran| {
        let trial = routes.trial(&ran.blocks, &ran.took)?;
        Ok(trial.judge(&network, machine.calibration.as_ref()).map_err(FitError::from)?)
    };
    ran.iter().map(one).collect()
}

impl InterconnectBenchReport {
    fn of(
        options: &InterconnectBenchOptions,
        Node { source, gpus, known, .. }: &Node,
        ran: &[Ran],
    ) -> Result<Self, Error> {
        let judged = judge(&known.machine, ran)?;
        let variants = variants::compare(&known.machine, ran, &judged)?;
        let cases: Vec<Case> = ran
            .iter()
            .zip(judged)
            .map(|(ran, judged)| {
                let (gpus, mix) = (gpus_of(&ran.blocks), Mix::of(&ran.blocks));
                Case { gpus, mix, blocks: ran.blocks.clone(), took: ran.took.clone(), judged }
            })
            .collect();
        let sets = known.observed.as_ref().map(|observed| results::sets(observed, &known.machine)).transpose()?;
        let groups = results::groups(&cases);
        Ok(Self {
            schema: 1,
            source,
            imitates: match options.backend {
                Backend::Emu => gpus::imitates(gpus::CopyBackend::Emu, options.model.as_deref(), options.gpus)?,
                Backend::Auto | Backend::Sim | Backend::Cuda => None,
            },
            gpus: gpus.clone(),
            machine: known.said.clone(),
            commit: COMMIT,
            seed: options.seed,
            repeats: options.repeats,
            targets: results::judge(&groups),
            groups,
            variants,
            // Until the last batch was run.
            complete: false,
            folder: options.out.clone(),
            warnings: results::warnings(&known.machine),
            rates: Some(results::rates(&known.machine, known.observed.as_ref())?),
            cases,
            sets: sets.unwrap_or_default(),
            file: known.file.clone(),
        })
    }

    fn write(&self) -> Result<PathBuf, Error> {
        let folder = Folder::open(&self.folder, TITLE, self.complete)?;
        folder.put("batches.csv", results::batches_csv(&self.cases, self.source))?;
        folder.put("blocks.csv", results::blocks_csv(&self.cases, self.source))?;
        if let Some(file) = &self.file {
            folder.put("machine.toml", file)?;
            folder.put("sets.csv", &self.sets)?;
        }
        for (name, figure) in results::figures(&self.cases, &self.variants, self.source) {
            folder.put(&format!("{name}.svg"), &figure.svg()?)?;
        }
        folder.summary(&self.markdown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use headway_measure::bench::TargetOutcome;

    fn options(backend: Backend, out: &Path) -> InterconnectBenchOptions {
        InterconnectBenchOptions {
            backend,
            model: None,
            machine: None,
            gpus: None,
            batches: 120,
            repeats: 3,
            watch: None,
            largest: Bytes(256 << 20),
            seed: 1,
            out: out.to_owned(),
            interrupt: Arc::default(),
        }
    }

    fn read(folder: &Path, name: &str) -> String {
        fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[test]
    fn a_simulated_node_that_was_measured_is_predicted_within_the_targets() {
        let folder = tempfile::tempdir().unwrap();
        let report = run(&options(Backend::Sim, folder.path()), |_| ()).unwrap();
        assert!(report.targets.iter().all(|target| target.outcome == TargetOutcome::Met), "{}", report.markdown());
        assert_eq!((report.source, report.groups[0].runs), ("sim", 360));
        let named = |name: &str| report.groups.iter().any(|group| group.what == name && group.batches.n > 5);
        assert!(["4 GPUs", "in", "between GPUs", "host and peers", "1 ms and more"].into_iter().all(named));
        let error = |name: &str| {
            let found = report.variants.iter().find(|variant| variant.model.starts_with(name));
            found.map(|variant| variant.batches.p95_ppm).unwrap()
        };
        for part in ["no set-up", "of these: no shared limits", "one block after the other"] {
            assert!(error(part) > 2 * error("whole model"), "{part}: {}", report.markdown());
        }
        let machine = machine::parse("machine.toml", &read(folder.path(), "machine.toml")).unwrap();
        assert_eq!(machine.calibration.map(|found| found.batches), Some(30));
        assert_eq!(read(folder.path(), "batches.csv").lines().count(), 121);
        // What was found is the file's: predicting with it gives the same.
        let file = folder.path().join("machine.toml").display().to_string();
        let again =
            InterconnectBenchOptions { machine: Some(file), ..options(Backend::Sim, &folder.path().join("again")) };
        assert_eq!(run(&again, |_| ()).unwrap().groups.len(), report.groups.len());
    }

    #[test]
    fn emulated_gpus_are_measured_and_their_batches_written_down() {
        let folder = tempfile::tempdir().unwrap();
        let model = Some("h200-x4".to_owned());
        let few = InterconnectBenchOptions {
            batches: 8,
            largest: Bytes(128 << 10),
            gpus: Some(2),
            model,
            ..options(Backend::Emu, folder.path())
        };
        let report = run(&few, |_| ()).unwrap();
        assert_eq!((report.source, report.gpus.len(), report.groups[0].batches.n), ("emu", 2, 8));
        for (name, what) in [
            ("blocks.csv", "host -> gpu"),
            ("sets.csv", "ring"),
            ("summary.md", "Source `emu`"),
            ("errors.svg", "source emu"),
        ] {
            assert!(read(folder.path(), name).contains(what), "{name}");
        }
    }

    #[test]
    fn batches_that_were_run_before_an_interruption_are_written_down() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(Backend::Sim, folder.path());
        let stop = |progress: Progress| {
            if progress.phase == "batches" && progress.done == 7 {
                options.interrupt.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        };
        let report = run(&options, stop).unwrap();
        assert!(!report.complete && folder.path().join("INCOMPLETE.txt").is_file());
        assert_eq!(read(folder.path(), "batches.csv").lines().count(), 8);
        assert!(read(folder.path(), "summary.md").contains("INCOMPLETE"));
    }

    #[test]
    fn sizes_and_counts_that_make_no_batch_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let good = options(Backend::Sim, folder.path());
        for wrong in [
            InterconnectBenchOptions { batches: 0, ..good.clone() },
            InterconnectBenchOptions { repeats: 0, ..good.clone() },
            InterconnectBenchOptions { largest: Bytes(100), ..good.clone() },
        ] {
            assert!(matches!(run(&wrong, |_| ()), Err(Error::Headway(headway::Failure::Options(_)))));
        }
    }
}
