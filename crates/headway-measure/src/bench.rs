//! Benchmarks of copies: every method beside the driver's own call and pinned memory in the same run, `auto` against the best
//! of them, several GPUs, small copies while bulk ones run, and what the profile predicted.

mod crowd;
mod flows;
mod host;
mod methods;
mod predict;
mod results;
mod small;
mod targets;
mod turns;

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headway_core::files::machine::{EndpointId, Machine};
use headway_core::models::transfer::{Direction, HostMemory, Method, Profile};
use headway_core::units::{Bytes, Nanos};
use headway_runtime::copy::{Copier, CopyOptions};
use serde::Serialize;

pub use self::flows::{FlowBenchCase, FlowBenchOptions, FlowBenchReport, FlowRow, flows};
pub use self::predict::{PredictedPoint, Prediction};
pub use self::results::{BenchRow, Target, TargetOutcome};
use crate::Error;
use crate::copy_timer::{CopyTimer, TimerOptions};
pub use crate::folder::ENDED_EARLY;
use crate::folder::{self, Folder};
use crate::place::CpuPin;
use crate::plot::{Figure, PlotLine, TO_P99};
use crate::sample::Effort;
use crate::session::Session;
use headway::COMMIT;
use headway::gpus::{self, CopyBackend};
use headway::run::Progress;

/// What to compare and where to write it.
#[derive(Clone, Debug)]
pub struct TransferBenchOptions {
    /// On what.
    pub backend: CopyBackend,
    /// The machine that the emulated backend imitates.
    pub model: Option<String>,
    /// Machine file with the profile that `auto` uses; `None` = the built-in figures.
    pub machine: Option<String>,
    /// The first so many GPUs only.
    pub gpus: Option<usize>,
    /// Sizes of the table of methods; `None` = 64 B to 1 GiB.
    pub sizes: Option<Vec<Bytes>>,
    /// Methods to look at; empty = all.
    pub methods: Vec<Method>,
    /// Folder for figures, plots and summary.
    pub out: PathBuf,
    /// Fewer and smaller points.
    pub quick: bool,
    /// Ends the benchmark early when it becomes true.
    pub interrupt: Arc<AtomicBool>,
}

impl TransferBenchOptions {
    /// How long this takes, about, on a quiet host with one GPU: what series of copies are given at most.
    #[must_use]
    pub fn estimate(&self) -> Nanos {
        let curve = |sizes: &[u64]| sizes.iter().map(|bytes| self.effort(*bytes).time.0).sum::<u64>();
        let powers: Vec<u64> = (0..=32).step_by(if self.quick { 2 } else { 1 }).map(|exponent| 1 << exponent).collect();
        let automatic = if self.sizes.is_some() { curve(&self.sizes()) } else { curve(&powers) };
        Nanos(curve(&self.sizes()) * crate::CURVES as u64 + automatic * AUTOMATIC)
    }

    /// Sizes of the table of methods.
    fn sizes(&self) -> Vec<u64> {
        let mut sizes = match &self.sizes {
            Some(sizes) => sizes.iter().map(|bytes| bytes.0.max(1)).collect(),
            None => vec![64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30],
        };
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// How often a copy of `bytes` bytes is made, those in turns a little more often where they take long.
    fn effort(&self, bytes: u64) -> Effort {
        let (n_min, n_max, ms) = match (bytes, self.quick) {
            (..=0x1_0000, true) => (10, 300, 10),
            (..=0x1_0000, false) => (30, 1_000, 40),
            (..=0x100_0000, true) => (5, 50, 15),
            (..=0x100_0000, false) => (10, 200, 60),
            (_, true) => (2, 10, 20),
            (_, false) => (3, 30, 250),
        };
        Effort { warm_up: if bytes <= 1 << 24 { 3 } else { 1 }, n_min, n_max, time: Nanos(ms * 1_000_000) }
    }
}

/// Situations in which `auto` is compared, times the methods in each, by the third of the time that each gets: about.
const AUTOMATIC: u64 = 5 * 6 / 3;

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct TransferBenchReport {
    /// Version of the JSON form.
    pub schema: u32,
    /// What the figures stand for: `emu` or `cuda`.
    pub source: &'static str,
    /// With the emulated backend: what it imitates, and what its times do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imitates: Option<String>,
    pub gpus: Vec<String>,
    /// Where `auto`'s figures came from.
    pub profile: String,
    /// Commit of the program.
    pub commit: &'static str,
    /// Which CPU copies were asked for from, and what others would have cost; `None` where that was left open.
    pub place: Option<String>,
    /// Every row.
    pub rows: Vec<BenchRow>,
    /// Every target.
    pub targets: Vec<Target>,
    /// How far predictions were off.
    pub prediction: Option<Prediction>,
    /// Whether it was not interrupted.
    pub complete: bool,
    #[serde(serialize_with = "headway::path_text::one")]
    pub folder: PathBuf,
    /// What the user should know.
    pub warnings: Vec<String>,
}

const TITLE: &str = "Copies";

/// Most memory that a copy of the benchmark uses at each end, by default and with `quick`.
const BYTES_MAX: usize = 4 << 30;
const BYTES_QUICK: usize = 1 << 30;

/// Compares copies as `options` say. Every copy's bytes are compared at the beginning and the end of its series, small ones
/// every time. What was done before an interruption is written and marked as incomplete.
///
/// # Errors
/// [`headway::ErrorKind::Backend`], [`crate::Error::WrongCopy`], [`headway::ErrorKind::Interrupted`] before the first row, and what devices and
/// files refuse.
pub fn transfers(
    options: &TransferBenchOptions,
    mut progress: impl FnMut(Progress),
) -> Result<TransferBenchReport, Error> {
    folder::check(&options.out, TITLE)?;
    let machine = options.machine.as_deref().map(headway::machine::open).transpose()?;
    let devices = gpus::open(options.backend, options.model.as_deref(), options.gpus)?;
    let source = devices.first().map_or("emu", |gpu| gpu.description().source.label());
    let gpus: Vec<String> = devices.iter().map(|gpu| gpu.description().name.clone()).collect();
    let ids = ids(machine.as_ref(), devices.len())?;
    let profile = machine.as_ref().map(|machine| machine.profile.clone()).unwrap_or_default();
    let copy = CopyOptions { resident: true, multipath: devices.len() > 1, ..CopyOptions::default() };
    let copier = Arc::new(Copier::new(ids.iter().copied().zip(devices).collect(), profile.clone(), copy)?);
    let mut session = Session::new(None, None, &options.interrupt, &mut progress);
    if profile.curves.is_empty() {
        let hint = "no profile: `auto` uses built-in figures; `headway measure` writes a machine file for `--machine`";
        session.warnings.push(hint.to_owned());
    }
    let mut bench = Bench { options, copier, ids, profile, session: &mut session, rows: Vec::new(), place: None };
    let mut prediction = None;
    let made = bench.make(&mut prediction);
    let Bench { rows, place, .. } = bench;
    let complete = match made {
        Err(Error::Headway(headway::Failure::Interrupted)) if !rows.is_empty() => false,
        made => made.map(|()| true)?,
    };
    let mut warnings = session.finish()?;
    warnings.extend((!complete).then(|| ENDED_EARLY.to_owned()));
    let mut report = TransferBenchReport {
        schema: 1,
        source,
        imitates: gpus::imitates(options.backend, options.model.as_deref(), options.gpus)?,
        gpus,
        profile: machine
            .map_or_else(|| "built-in".to_owned(), |machine| format!("{} ({})", machine.name, machine.hash)),
        commit: COMMIT,
        place,
        targets: targets::judge(&rows),
        rows,
        prediction,
        complete,
        folder: options.out.clone(),
        warnings,
    };
    report.write()?;
    Ok(report)
}

/// The names under which the profile knows the GPUs.
fn ids(machine: Option<&Machine>, gpus: usize) -> Result<Vec<EndpointId>, Error> {
    let Some(machine) = machine else { return Ok((0..gpus as u32).map(EndpointId).collect()) };
    let ids: Vec<EndpointId> = machine.gpus().take(gpus).collect();
    if ids.len() < gpus {
        return Err(
            headway::Failure::TooFewGpus { machine: machine.name.clone(), wanted: gpus, available: ids.len() }.into()
        );
    }
    Ok(ids)
}

/// A benchmark under way.
struct Bench<'b, 'a> {
    options: &'b TransferBenchOptions,
    copier: Arc<Copier>,
    ids: Vec<EndpointId>,
    profile: Profile,
    session: &'b mut Session<'a>,
    rows: Vec<BenchRow>,
    place: Option<String>,
}

impl Bench<'_, '_> {
    fn make(&mut self, prediction: &mut Option<Prediction>) -> Result<(), Error> {
        let methods = self.usable();
        let most = self.bytes_max();
        let mut timer =
            CopyTimer::new(&self.copier, 0, TimerOptions { bytes_max: most, pinned: true, huge_pages: false })?;
        let place = CpuPin::settle(&mut timer)?;
        self.place = place.as_ref().map(|place| place.found().to_string());
        // First: what else the host does changes within minutes, and the profile may just have been measured.
        *prediction = self.predict(&mut timer, &methods)?;
        self.table(&mut timer, &methods)?;
        self.automatic(&mut timer, &methods)?;
        // Threads of bulk copies may run anywhere.
        drop(place);
        self.small(&mut timer, &methods)?;
        self.many(&mut timer)?;
        if self.copier.gpus().len() > 1 {
            self.multipath(&mut timer, &methods)?;
            drop(timer);
            self.concurrent()?;
        }
        self.host()
    }

    /// Methods of the first GPU that were asked for and can be used.
    fn usable(&mut self) -> Vec<Method> {
        let mut methods = Vec::new();
        let asked = &self.options.methods;
        for probe in self.copier.probe().into_iter().filter(|probe| probe.gpu == 0) {
            // The driver and pinned memory are what all is compared with.
            let reference = probe.method == Method::Pageable || probe.method == Method::Dma;
            if probe.method == Method::Peer
                || !(asked.is_empty() || asked.iter().any(|asked| asked.word() == probe.method.word()) || reference)
            {
                continue;
            }
            match probe.usable {
                Ok(()) => methods.push(probe.method),
                Err(error) => self.session.warnings.push(format!("{} is left out: {error}", probe.method)),
            }
        }
        methods
    }

    /// Largest copy: with sizes asked for, none is larger than those.
    fn bytes_max(&self) -> usize {
        let most = if self.options.quick { BYTES_QUICK } else { BYTES_MAX };
        match &self.options.sizes {
            Some(_) => self.options.sizes().last().map_or(1, |bytes| *bytes as usize).min(most),
            None => most,
        }
    }
}

impl TransferBenchReport {
    /// Everything for people, in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# {TITLE}\n\nSource `{}`, GPUs: {}; profile {}; commit {}. GB = 10^9 bytes; times are until the bytes are in \
             place; random data, compared.\n\n{}## Targets\n\n| target | measured | |\n|---|---|---|\n",
            self.source,
            self.gpus.join(", "),
            self.profile,
            self.commit,
            self.place.as_ref().map_or_else(String::new, |place| format!("{place}\n\n")),
        );
        for Target { target, measured, outcome } in &self.targets {
            let _ = writeln!(text, "| {target} | {measured} | {} |", outcome.label());
        }
        if let Some(prediction) = &self.prediction {
            let _ = writeln!(text, "\n## Predicted and measured\n\n{prediction}");
        }
        let mut parts: Vec<&str> = self.rows.iter().map(|row| row.part).collect();
        parts.dedup();
        for part in parts {
            let _ = writeln!(text, "\n## {part}\n\n{}", results::table(&self.rows, part));
        }
        for (name, figure) in self.figures() {
            let _ = writeln!(text, "\n![{}]({name}.svg)", figure.title);
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "\n{warning}");
        }
        text
    }

    /// Plots, each with the name of its file.
    fn figures(&self) -> Vec<(String, Figure)> {
        let situations = [
            (Direction::H2d, HostMemory::Touched),
            (Direction::D2h, HostMemory::Touched),
            (Direction::D2h, HostMemory::Untouched),
            (Direction::H2d, HostMemory::Pinned),
            (Direction::D2h, HostMemory::Pinned),
        ];
        let mut figures = Vec::new();
        for (direction, memory) in situations {
            let rows = || {
                self.rows
                    .iter()
                    .filter(move |row| row.part == results::AUTO && (row.direction, row.memory) == (direction, memory))
            };
            let mut methods: Vec<&str> = rows().map(|row| row.method.as_str()).collect();
            methods.sort_unstable();
            methods.dedup();
            let lines = |value: fn(&BenchRow, Nanos) -> f64| {
                let line = |method: &&str| {
                    let own = || rows().filter(|row| row.method == *method);
                    let bar = |row: &BenchRow| {
                        let (median, p99) = (value(row, row.median), value(row, row.p99.unwrap_or(row.median)));
                        (row.bytes.0 as f64, median.min(p99), median.max(p99))
                    };
                    PlotLine::new(*method, own().map(|row| (row.bytes.0 as f64, value(row, row.median))).collect())
                        .bars(own().map(bar).collect())
                };
                methods.iter().map(line).collect::<Vec<_>>()
            };
            let figure = |what: &str, y: &str, value| {
                Figure::new(format!("{what}, {direction}, {memory} memory"), self.source, ["bytes", y], lines(value))
                    .bars(TO_P99)
            };
            if methods.is_empty() {
                continue;
            }
            let time = figure("median time", "us", |_, time| time.0 as f64 / 1e3);
            let rate = figure("rate of the median", "GB/s", |row, time| row.bytes.0 as f64 / time.0.max(1) as f64);
            figures.push((format!("time-{direction}-{memory}"), time));
            figures.push((format!("rate-{direction}-{memory}"), rate));
        }
        figures
    }

    fn write(&mut self) -> Result<(), Error> {
        let folder = Folder::open(&self.folder, TITLE, self.complete)?;
        folder.put("rows.csv", results::csv(&self.rows, self.source))?;
        if let Some(prediction) = &self.prediction {
            folder.put("predictions.csv", prediction.csv())?;
        }
        for (name, figure) in self.figures() {
            folder.put(&format!("{name}.svg"), figure.svg()?)?;
        }
        self.folder = folder.summary(&self.markdown())?;
        Ok(())
    }
}
