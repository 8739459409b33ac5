//! Measures a node and writes its machine file: what it is, what its links carry alone and together, what kernels cost, and
//! what every method takes for every size (specification of transfers, 2.5 and 3.1).
#![forbid(unsafe_code)]

mod arbitration;
#[doc(hidden)]
pub mod batches;
pub mod bench;
pub mod child;
mod chunks;
#[doc(hidden)]
pub mod copy_timer;
#[doc(hidden)]
pub mod cpu;
#[doc(hidden)]
pub mod curves;
mod error;
#[doc(hidden)]
pub mod fit;
#[doc(hidden)]
pub mod folder;
#[doc(hidden)]
pub mod interconnect;
#[doc(hidden)]
pub mod journal;
mod kernels;
#[doc(hidden)]
pub mod links;
#[doc(hidden)]
pub mod load;
#[doc(hidden)]
pub mod node;
mod own_kernels;
#[doc(hidden)]
pub mod place;
#[doc(hidden)]
pub mod plot;
mod report;
#[doc(hidden)]
pub mod rival;
#[doc(hidden)]
pub mod sample;
#[doc(hidden)]
pub mod session;
#[doc(hidden)]
pub mod sets;
#[doc(hidden)]
pub mod small_batches;
mod staging;
#[doc(hidden)]
pub mod timer_threads;
#[doc(hidden)]
pub mod turns;
#[doc(hidden)]
pub mod wafer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use headway_core::files::error::Loaded;
use headway_core::files::machine::{self, EndpointId, KernelCost, Machine};
use headway_core::files::workload::Workload;
use headway_core::models::transfer::price::worth_keeping;
use headway_core::models::transfer::{
    BackgroundLoad, CurveKey, Direction, HostMemory, Method, PricedTuning, Profile, Tuning, TuningKey,
};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos};
use headway_device::gpu::Gpu;
use headway_os::{affinity, copy};
use headway_runtime::copy::{Copier, CopyLimits, CopyOptions, How};
use serde::{Deserialize, Serialize};

use self::arbitration::Asking;
use self::copy_timer::{CopySpec, CopyTimer, TimerOptions};
use self::curves::{CurvePoints, Efforts, Taker};
pub use self::error::Error;
use self::interconnect::{Scope, calibrate};
use self::journal::{Head, Journal};
use self::place::CpuPin;
pub use self::report::{Checked, MeasureReport};
use self::sample::Effort;
use self::session::{Raw, Session};
use self::sets::{SetMemory, SetPace};
use headway::gpus::{self, CopyBackend};
use headway::run::Progress;
use headway::{emulation, stamp};

/// Copies that `staged` is tuned with: so long that starting them counts little.
const STAGED_BYTES: usize = 512 << 20;
const STAGED_BYTES_FRESH: usize = 128 << 20;
/// A tuning whose first two copies take more than this many percent of the least time so far is not timed further.
const BEHIND_PERCENT: u64 = 110;

/// Curves of one GPU with all methods, and settings of `staged` that a search tries: about, for estimates.
const CURVES: usize = 16;
const TUNINGS: usize = 30;

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MeasureStep {
    /// Rates of links, one alone and several at once; set-up times.
    Links,
    /// Costs of kernels; how late the host learns that something is done.
    Kernels,
    /// Costs of the kernels that a workload brings in files of its own.
    Workload,
    /// How `staged` works best.
    Staging,
    /// Every method, direction, memory and size, and many pieces in one request, with nothing else going on.
    Curves,
    /// Small copies while bulk ones run.
    Busy,
    /// Large copies on all GPUs at once.
    AllGpus,
    /// Who waits for whom at the copy engines.
    Arbitration,
}

impl MeasureStep {
    /// Every step with its word, in the order in which they are made.
    pub const WORDS: [(&'static str, Self); 8] = [
        ("links", Self::Links),
        ("kernels", Self::Kernels),
        ("workload", Self::Workload),
        ("staging", Self::Staging),
        ("curves", Self::Curves),
        ("busy", Self::Busy),
        ("all-gpus", Self::AllGpus),
        ("arbitration", Self::Arbitration),
    ];
}

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// Powers of four, of two from 128 KiB to 32 MiB, few samples: about a minute for one GPU.
    Quick,
    /// Powers of two.
    #[default]
    Normal,
    /// Powers of two, at least 1000 samples up to 64 KiB.
    Full,
}

/// What to measure and where to write it.
#[derive(Clone, Debug)]
pub struct MeasureOptions {
    /// On what.
    pub backend: CopyBackend,
    /// The machine that the emulated backend imitates.
    pub model: Option<String>,
    /// The first so many GPUs only.
    pub gpus: Option<usize>,
    /// The machine file to write.
    pub out: PathBuf,
    /// Name of the machine; `None` = that of the file.
    pub name: Option<String>,
    pub depth: Depth,
    /// Replace a file that exists.
    pub force: bool,
    /// These steps only; the rest is taken from the file that exists. Empty = all.
    pub only: Vec<MeasureStep>,
    /// These sizes instead of the depth's.
    pub sizes: Option<Vec<Bytes>>,
    /// Measure every GPU by itself, not only the first of each model.
    pub each: bool,
    /// How long random batches of copies are run beyond those that check the model, so that margin and jitter cover what
    /// happens now and then.
    pub watch: Nanos,
    /// A workload file whose own kernels are measured, too.
    pub workload: Option<PathBuf>,
    /// File for every sample.
    pub raw: Option<PathBuf>,
    /// Ends the measurement early when it becomes true.
    pub interrupt: Arc<AtomicBool>,
}

/// Makes small copies beside the bulk copies of the parent, until that ends; whether it could.
#[must_use]
pub fn serve_child(order: &str) -> bool {
    rival::serve(order)
}

/// Measures as `options` say and writes the machine file, whole or not at all. After an interruption the same call goes on
/// with what a journal beside the file has kept.
///
/// # Errors
/// [`Error::Exists`], [`headway::ErrorKind::Backend`], [`Error::Paused`], and what devices and files refuse.
pub fn measure(options: &MeasureOptions, mut progress: impl FnMut(Progress)) -> Result<MeasureReport, Error> {
    run(options, &mut progress).map_err(|error| match error {
        Error::Headway(headway::Failure::Interrupted) => Error::Paused { journal: Journal::path_of(&options.out) },
        error => error,
    })
}

fn run(options: &MeasureOptions, progress: &mut dyn FnMut(Progress)) -> Result<MeasureReport, Error> {
    if options.only.contains(&MeasureStep::Workload) && options.workload.is_none() {
        let fact = "`--only workload` measures the kernels of a workload, and `--workload FILE` is missing";
        return Err(headway::Failure::Options(fact).into());
    }
    let exists = options.out.exists();
    if exists && !options.force {
        return Err(Error::Exists { path: options.out.clone() });
    }
    let workload = options.workload.as_deref().map(own_kernels::open).transpose()?;
    let devices = gpus::open(options.backend, options.model.as_deref(), options.gpus)?;
    let old = if options.only.is_empty() || !exists {
        None
    } else {
        Some(headway::machine::open(&options.out.to_string_lossy())?)
    };
    if let Some(file) = old.as_ref().map(|machine| machine.gpus().count()).filter(|file| *file != devices.len()) {
        return Err(Error::OtherNode { path: options.out.clone(), file, here: devices.len() });
    }
    if old.is_none() && !options.does(MeasureStep::Links) {
        return Err(
            headway::Failure::Options("`--only` without `links` completes a machine file, and there is none").into()
        );
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let stamp = stamp::stamp(&devices, node::date(seconds));
    let head = Head::new(&stamp, request(options));
    let journal = Journal::open(Journal::path_of(&options.out), &head)?;
    let known = journal.count();
    let raw = options.raw.as_deref().map(|path| Raw::open(path, known > 0)).transpose()?;
    let mut session = Session::new(Some(journal), raw, &options.interrupt, progress);
    if known > 0 {
        session.warnings.push(format!("going on: {known} figures were measured before an interruption"));
    }
    let name = options.name.clone().unwrap_or_else(|| {
        options.out.file_stem().map_or_else(|| "node".to_owned(), |stem| stem.to_string_lossy().into_owned())
    });
    let mut machine = match old {
        Some(old) if !options.does(MeasureStep::Links) => old,
        old => {
            let mut device = gpus::device(options.backend, options.model.as_deref())?;
            let scope = options.scope(devices.len());
            let (machine, _) = calibrate(&mut session, &devices, &mut device, &scope, (&name, &stamp))?;
            let (kernels, cpu, profile) = old.map(|old| (old.kernels, old.cpu, old.profile)).unwrap_or_default();
            Machine { kernels, cpu, profile, ..machine }
        }
    };
    machine.profile.stamp = Some(stamp);
    Measurement { options, devices, machine, workload, session }.make()
}

impl MeasureOptions {
    fn does(&self, step: MeasureStep) -> bool {
        self.only.is_empty() || self.only.contains(&step)
    }

    fn by_depth<T>(&self, quick: T, normal: T, full: T) -> T {
        match self.depth {
            Depth::Quick => quick,
            Depth::Normal => normal,
            Depth::Full => full,
        }
    }

    /// Sizes of the curves, ascending.
    fn copy_sizes(&self) -> Vec<u64> {
        let step = self.by_depth(2, 1, 1);
        let mut sizes: Vec<u64> = match &self.sizes {
            Some(sizes) => sizes.iter().map(|bytes| bytes.0.max(1)).collect(),
            // Copies of middle size bend where caches end.
            None => (0..=self.size_exponent_max())
                .filter(|at| at % step == 0 || (17..=25).contains(at))
                .map(|at| 1 << at)
                .collect(),
        };
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Copies of 1 GiB need six buffers of that size, two of them pinned. What copies inside this computer's memory cost for emulated
    /// GPUs says nothing about a GPU, and shorter ones show it as well.
    const fn size_exponent_max(&self) -> u32 {
        if matches!(self.backend, CopyBackend::Emu) { 26 } else { 30 }
    }

    fn size_max(&self) -> usize {
        self.copy_sizes().last().map_or(1, |bytes| *bytes as usize)
    }

    fn efforts(&self) -> Efforts {
        let effort = |warm_up, n_min, n_max, ms: u64| Effort { warm_up, n_min, n_max, time: Nanos(ms * 1_000_000) };
        self.by_depth(
            Efforts {
                small: effort(5, 10, 200, 10),
                middle: effort(5, 5, 100, 15),
                large: effort(2, 3, 40, 20),
                patience: Nanos(60_000_000),
            },
            Efforts {
                small: effort(20, 20, 500, 50),
                middle: effort(5, 10, 200, 50),
                large: effort(2, 5, 40, 100),
                patience: Nanos::MAX,
            },
            Efforts {
                small: effort(50, 100, 1000, 500),
                middle: effort(10, 30, 300, 300),
                large: effort(2, 7, 60, 600),
                patience: Nanos::MAX,
            },
        )
    }

    /// Launches of each probe of a kernel.
    fn kernel_effort(&self) -> Effort {
        let n = self.by_depth(20, 50, 200);
        Effort { warm_up: 2, n_min: 5, n_max: n, time: Nanos(self.by_depth(200, 500, 2_000) * 1_000_000) }
    }

    /// Jobs of each probe on the CPU.
    fn cpu_effort(&self) -> Effort {
        let n = self.by_depth(1_000, 4_000, 20_000);
        Effort { warm_up: 10, n_min: 20, n_max: n, time: Nanos(self.by_depth(100, 400, 2_000) * 1_000_000) }
    }

    /// How long this takes, about, on a quiet host with one GPU: twice what its parts are given at most, or what copies take at 20 GB/s
    /// where a part is given a number instead of a time. The other half sets up and compares.
    #[must_use]
    pub fn estimate(&self) -> Nanos {
        let scope = self.scope(1);
        let times = |time: Nanos, count: usize| time.0.saturating_mul(count as u64);
        let largest = Nanos(self.size_max() as u64 / 20);
        let staged = Nanos(self.size_max().min(STAGED_BYTES) as u64 / 20);
        let efforts = self.efforts();
        let curve = Nanos(self.copy_sizes().iter().map(|bytes| efforts.of(*bytes).time.0).sum());
        let kernels = headway_kernels::ids().count();
        let kernel = self.kernel_effort().time;
        let sets = times(scope.pace.time, 3 * scope.pace.repeats as usize);
        let batches = times(largest.min(Nanos(10_000_000)), 3 * scope.batches);
        let of = |step: MeasureStep| match step {
            MeasureStep::Links => sets + batches + scope.jitter.time.0 + scope.driver.0,
            MeasureStep::Kernels => {
                times(kernel, 3 * kernels) + times(self.cpu_effort().time, kernels * cpu::PROBES.len())
            }
            // A workload seldom has more than three kernels of its own.
            MeasureStep::Workload if self.workload.is_some() => times(kernel, 3),
            MeasureStep::Workload => 0,
            MeasureStep::Staging => times(staged, 3 * TUNINGS * self.by_depth(4, 6, 10)),
            MeasureStep::Curves => times(curve, CURVES),
            MeasureStep::Busy => times(curve, CURVES / 2),
            MeasureStep::AllGpus => 0,
            MeasureStep::Arbitration => times(largest, self.by_depth(80, 400, 800)),
        };
        // The driver's thread and the batches, and the cores of the CPU.
        let watches = |step: MeasureStep| match step {
            MeasureStep::Links => times(self.watch, 2),
            MeasureStep::Kernels => self.watch.0,
            _ => 0,
        };
        let steps = MeasureStep::WORDS.into_iter().map(|(_, step)| step).filter(|step| self.does(*step));
        Nanos(steps.fold(0, |sum: u64, step| sum.saturating_add(2 * of(step)).saturating_add(watches(step))))
    }

    fn scope(&self, gpus: usize) -> Scope {
        let chunk = self.size_max().clamp(4 << 10, 64 << 20);
        // Without large copies to measure, nobody waits for precise rates either.
        let small = chunk < 16 << 20;
        // Nodes with more GPUs have more sets.
        let time = self.by_depth(25, if gpus > 2 { 35 } else { 60 }, 100u64);
        let time = if small { Nanos(1_000_000) } else { Nanos(time * 1_000_000) };
        let repeats = if small { 1 } else { self.by_depth(3, 4, 7) };
        let jitter = Effort {
            warm_up: 10,
            n_min: 50,
            n_max: self.by_depth(1_000, 2_500, 10_000),
            time: Nanos(self.by_depth(200, 500, 2000) * 1_000_000),
        };
        Scope {
            pace: SetPace { chunk, in_flight: 2, time, repeats },
            room: SetMemory::of(self.size_max().clamp(4 << 10, 256 << 20)),
            jitter,
            driver: if small { Nanos(20_000_000) } else { Nanos(self.by_depth(1, 5, 30) * NANOS_PER_SECOND) },
            batches: self.by_depth(30, 60, 300),
            watch: self.watch,
        }
    }
}

/// The options that change what is measured, for the journal.
fn request(options: &MeasureOptions) -> BTreeMap<String, String> {
    let MeasureOptions { gpus, sizes, model, each, watch, only, depth, workload, .. } = options;
    let listed = |texts: Vec<String>| (!texts.is_empty()).then(|| texts.join(","));
    let words = only.iter().collect::<BTreeSet<_>>().into_iter().filter_map(|step| {
        MeasureStep::WORDS.iter().find(|(_, known)| known == step).map(|(word, _)| (*word).to_owned())
    });
    let given = [
        ("--quick", (*depth == Depth::Quick).then(String::new)),
        ("--full", (*depth == Depth::Full).then(String::new)),
        ("--gpus", gpus.map(|gpus| gpus.to_string())),
        (
            "--sizes",
            sizes.as_ref().and_then(|sizes| listed(sizes.iter().map(|bytes| format!("'{} B'", bytes.0)).collect())),
        ),
        ("--model", model.clone()),
        ("--each", each.then(String::new)),
        ("--workload", workload.as_ref().map(|path| path.display().to_string())),
        ("--watch", (*watch > Nanos::ZERO).then(|| format!("'{} ns'", watch.0))),
        ("--only", listed(words.collect())),
    ];
    given.into_iter().filter_map(|(option, value)| Some((option.to_owned(), value?))).collect()
}

/// A measurement under way.
struct Measurement<'a> {
    options: &'a MeasureOptions,
    devices: Vec<Arc<dyn Gpu>>,
    machine: Machine,
    /// The one whose own kernels are measured.
    workload: Option<Loaded<Workload>>,
    session: Session<'a>,
}

impl Measurement<'_> {
    fn make(mut self) -> Result<MeasureReport, Error> {
        let gpus: Vec<EndpointId> = self.machine.gpus().collect();
        self.kernels()?;
        self.own_kernels()?;
        let copier = self.copier(&gpus)?;
        let methods = usable(&copier, gpus.len());
        if self.options.does(MeasureStep::Staging) && methods.iter().any(|methods| methods.contains(&Method::Staged)) {
            self.staging(&copier, &gpus)?;
        }
        drop(copier);
        // From here on `staged` works as it was found to work best, with threads that may run wherever this one may now.
        let copier = self.copier(&gpus)?;
        if methods.iter().any(|methods| methods.contains(&Method::Staged)) {
            copier.prepare()?;
        }
        self.curves(&copier, &gpus, &methods)?;
        if self.options.does(MeasureStep::AllGpus) && gpus.len() > 1 {
            self.concurrent(&copier, &gpus, &methods)?;
        }
        drop(copier);
        self.arbitration(&gpus)?;
        let profile = self.machine.profile.clone();
        links::put_curves(&mut self.machine, &profile);
        self.finish()
    }

    fn copier(&self, gpus: &[EndpointId]) -> Result<Arc<Copier>, Error> {
        let options = CopyOptions { resident: true, multipath: true, ..CopyOptions::default() };
        let ends = gpus.iter().copied().zip(self.devices.iter().cloned()).collect();
        let Profile { tunings, prices, .. } = self.machine.profile.clone();
        let profile = Profile { tunings, prices, ..Profile::default() };
        Ok(Arc::new(Copier::new(ends, profile, options)?))
    }

    fn kernels(&mut self) -> Result<(), Error> {
        if !self.options.does(MeasureStep::Kernels) {
            return Ok(());
        }
        let device = gpus::device(self.options.backend, self.options.model.as_deref())?;
        let effort = self.options.kernel_effort();
        let size = match device.description().source {
            headway_device::DeviceSource::Cuda => kernels::Size::full(effort),
            _ => kernels::Size::small(Effort { warm_up: 1, n_min: 2, n_max: 5, ..effort }),
        };
        let costs = kernels::costs(&mut self.session, device, size)?;
        self.put_kernels(costs);
        let (effort, watch) = (self.options.cpu_effort(), self.options.watch);
        let watch = cpu::Watch { time: watch, interrupt: &self.options.interrupt };
        let costs = self.session.only_step("cores", "cores", |_| cpu::costs(headway_kernels::ids(), effort, &watch))?;
        self.machine.cpu = Some(cpu::of(costs));
        Ok(())
    }

    fn own_kernels(&mut self) -> Result<(), Error> {
        let Some(workload) = self.workload.take().filter(|_| self.options.does(MeasureStep::Workload)) else {
            return Ok(());
        };
        let device = gpus::device(self.options.backend, self.options.model.as_deref())?;
        let costs = own_kernels::costs(&mut self.session, device, &workload, self.options.kernel_effort())?;
        self.put_kernels(costs);
        Ok(())
    }

    /// Puts costs into the machine, each instead of the one that its kernel had.
    fn put_kernels(&mut self, costs: Vec<KernelCost>) {
        let kernels = &mut self.machine.kernels;
        kernels.retain(|known| costs.iter().all(|cost| cost.id != known.id));
        kernels.extend(costs);
        kernels.sort_by(|a, b| a.id.cmp(&b.id));
    }

    fn arbitration(&mut self, gpus: &[EndpointId]) -> Result<(), Error> {
        if !self.options.does(MeasureStep::Arbitration) {
            return Ok(());
        }
        let groups = groups(&self.devices, self.options.each);
        self.session.phase("arbitration", 2 * groups.len());
        let asking = Asking {
            bulk_bytes: self.options.by_depth(128 << 20, 256 << 20, 1 << 30).min(self.options.size_max().max(4 << 20)),
            rounds: self.options.by_depth((2, 20), (5, 100), (10, 200)),
        };
        let (backend, model) = (self.options.backend, self.options.model.as_deref());
        for group in groups {
            let index = group[0] as u32;
            for (direction, found) in arbitration::of_gpu(&mut self.session, backend, model, index, asking)? {
                self.session.warnings.extend(found.left_out);
                for &gpu in &group {
                    let place = &mut self.machine.profile.arbitration;
                    place.extend(found.arbitration.clone().map(|found| ((gpus[gpu], direction), found)));
                }
            }
        }
        Ok(())
    }

    fn staging(&mut self, copier: &Arc<Copier>, gpus: &[EndpointId]) -> Result<(), Error> {
        let bytes_max = self.options.size_max().min(STAGED_BYTES);
        let cpus = affinity::allowed().map_or(2, |cpus| cpus.len()) as u32;
        let mut timers = Vec::new();
        for gpu in 0..gpus.len() {
            timers.push(CopyTimer::new(copier, gpu, TimerOptions { bytes_max, pinned: false, huge_pages: false })?);
        }
        let situations = [
            (Direction::H2d, HostMemory::Touched),
            (Direction::D2h, HostMemory::Touched),
            (Direction::D2h, HostMemory::Untouched),
        ];
        let groups = groups(&self.devices, self.options.each);
        self.session.phase("staging", situations.len() * (groups.len() + usize::from(gpus.len() > 1)));
        let samples = self.options.by_depth(4, 6, 10);
        for (direction, memory) in situations {
            // Pages touched for the first time take so long that shorter copies tell enough.
            let bytes_max = if memory == HostMemory::Untouched { bytes_max.min(STAGED_BYTES_FRESH) } else { bytes_max };
            let space = |active: u32| staging::Space {
                threads_max: (cpus.saturating_sub(1) / active).max(1),
                pinned_max: CopyLimits::default().pinned_max,
                bytes: Bytes(bytes_max as u64),
                demotes: copy::can_demote(),
            };
            for group in &groups {
                let first = group[0];
                let key = format!("staging with prices gpu{first} {direction} {memory} {bytes_max}");
                let found = self.session.step(&key, |session| {
                    search(session, &mut timers[first..=first], (direction, memory), space(1), samples)
                })?;
                for &gpu in group {
                    let key = TuningKey { gpu: gpus[gpu], direction, memory, active: 1 };
                    found.iter().for_each(|found| found.put(&mut self.machine.profile, key));
                }
                self.session.advance()?;
            }
            if gpus.len() > 1 {
                let active = gpus.len() as u32;
                let key = format!("staging with prices all {direction} {memory} {bytes_max}");
                let found = self
                    .session
                    .step(&key, |session| search(session, &mut timers, (direction, memory), space(active), samples))?;
                for &gpu in gpus {
                    let key = TuningKey { gpu, direction, memory, active };
                    found.iter().for_each(|found| found.put(&mut self.machine.profile, key));
                }
                self.session.advance()?;
            }
        }
        Ok(())
    }

    fn curves(&mut self, copier: &Arc<Copier>, gpus: &[EndpointId], methods: &[Vec<Method>]) -> Result<(), Error> {
        let (sizes, efforts, bytes_max) = (self.options.copy_sizes(), self.options.efforts(), self.options.size_max());
        let (does_curves, does_busy) = (self.options.does(MeasureStep::Curves), self.options.does(MeasureStep::Busy));
        if !does_curves && !does_busy {
            return Ok(());
        }
        for group in groups(&self.devices, self.options.each) {
            let first = group[0];
            let mut timer = CopyTimer::new(copier, first, TimerOptions { bytes_max, pinned: true, huge_pages: false })?;
            let session = &mut self.session;
            let mut taker = Taker {
                session,
                gpu: gpus[first],
                sizes: sizes.clone(),
                efforts,
                lines: BTreeMap::new(),
                dropped: Vec::new(),
            };
            if does_curves {
                let place = CpuPin::settle(&mut timer)?;
                taker.alone(&mut timer, &methods[first])?;
                // Threads that gather and copy in bulk may run anywhere.
                drop(place);
                taker.many(&timer, &methods[first])?;
            }
            if does_busy {
                taker.under_load(
                    &mut timer,
                    &methods[first],
                    &[BackgroundLoad::BulkSame, BackgroundLoad::BulkOpposite],
                )?;
            }
            for &gpu in &group {
                // GPUs of one model behind equal links cost the same.
                let lines =
                    taker.lines.iter().map(|(key, line)| (CurveKey { gpu: gpus[gpu], ..key.clone() }, line.clone()));
                curves::keep(&mut self.machine.profile, &lines.collect());
            }
        }
        if does_curves && gpus.len() > 1 {
            self.peers(copier, gpus, (&sizes, efforts))?;
        }
        Ok(())
    }

    /// Curves between GPUs: of every pair with `each`, else of one pair for all.
    fn peers(&mut self, copier: &Arc<Copier>, gpus: &[EndpointId], sizes: (&[u64], Efforts)) -> Result<(), Error> {
        let reaches = |from: usize, to: usize| from != to && self.devices[from].reaches(self.devices[to].id());
        let all = (0..gpus.len()).flat_map(|from| (0..gpus.len()).map(move |to| (from, to)));
        let pairs: Vec<(usize, usize)> = all.filter(|&(from, to)| reaches(from, to)).collect();
        let measured = if self.options.each { pairs.len() } else { pairs.len().min(1) };
        self.session.phase("peers", measured * sizes.0.len());
        let mut found: Option<CurvePoints> = None;
        for (at, &(from, to)) in pairs.iter().enumerate() {
            let line = match &found {
                Some(line) if at >= measured => line.clone(),
                _ => curves::peer(&mut self.session, copier, gpus, (from, to), sizes)?.1,
            };
            let key = curves::peer_key(gpus[from], gpus[to]);
            curves::keep(&mut self.machine.profile, &BTreeMap::from([(key, line.clone())]));
            found = Some(line);
        }
        Ok(())
    }

    fn concurrent(&mut self, copier: &Arc<Copier>, gpus: &[EndpointId], methods: &[Vec<Method>]) -> Result<(), Error> {
        let bytes_max = self.options.size_max().min(256 << 20);
        let mut timers = Vec::new();
        for gpu in 0..gpus.len() {
            timers.push(CopyTimer::new(copier, gpu, TimerOptions { bytes_max, pinned: true, huge_pages: false })?);
        }
        let sizes: Vec<u64> =
            self.options.copy_sizes().into_iter().filter(|size| (1 << 20..=256 << 20).contains(size)).collect();
        let everywhere = |method: Method| methods.iter().all(|methods| methods.contains(&method));
        let mut hows = Vec::new();
        for direction in [Direction::H2d, Direction::D2h] {
            for method in [Method::Dma, Method::Pageable, Method::Staged] {
                if everywhere(method) {
                    hows.extend(
                        curves::memories(method, direction)
                            .into_iter()
                            .map(|m| (method, direction, m, How::By(method))),
                    );
                }
            }
        }
        let efforts = self.options.efforts();
        let lines = curves::concurrent(&mut self.session, gpus, &mut timers, &hows, (&sizes, efforts))?;
        curves::keep(&mut self.machine.profile, &lines);
        Ok(())
    }

    /// Writes the file and says what is in it.
    fn finish(self) -> Result<MeasureReport, Error> {
        let Self { options, machine, session, devices, workload: _ } = self;
        drop(devices);
        let header = header(&machine);
        let (machine, text) = machine::with_file(machine, &header);
        publish(&options.out, &text)?;
        let warnings = session.finish()?;
        let imitated = match options.backend {
            CopyBackend::Emu => Some(emulation::machine(options.model.as_deref(), options.gpus)?),
            CopyBackend::Auto | CopyBackend::Cuda => None,
        };
        Ok(MeasureReport::of(&machine, imitated.as_ref(), &options.out, warnings))
    }
}

/// What the file says about itself.
fn header(machine: &Machine) -> Vec<&'static str> {
    let mut lines = vec![
        "Written by `headway measure`: rates, set-up times and curves of this node, as far as it was asked to measure them.",
        "GB = 10^9 bytes. `headway measure --force` writes it anew.",
    ];
    if machine.profile.stamp.as_ref().is_some_and(|stamp| stamp.source != "cuda") {
        lines.push("The figures are those of emulated GPUs and say nothing about any other.");
    }
    lines
}

/// Methods that every probe allows, for each GPU; the others become warnings only where they are the usual ones.
fn usable(copier: &Copier, gpus: usize) -> Vec<Vec<Method>> {
    let mut methods = vec![Vec::new(); gpus];
    for probe in copier.probe() {
        if probe.usable.is_ok() && probe.method != Method::Peer {
            methods[probe.gpu].push(probe.method);
        }
    }
    methods
}

/// Positions of GPUs of the same model, which are measured once; with `each`, every one by itself.
fn groups(devices: &[Arc<dyn Gpu>], each: bool) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (gpu, device) in devices.iter().enumerate() {
        let model = |device: &Arc<dyn Gpu>| {
            let description = device.description();
            // Emulated GPUs have names of their own.
            let name = description.uuid.as_ref().map(|_| description.name.clone());
            (name, description.memory_bytes, device.numa())
        };
        match groups.iter_mut().find(|group| !each && model(&devices[group[0]]) == model(device)) {
            Some(group) => group.push(gpu),
            None => groups.push(vec![gpu]),
        }
    }
    groups
}

/// Searches on `timers` at the same time; the slowest of them counts.
fn search(
    session: &mut Session<'_>,
    timers: &mut [CopyTimer],
    (direction, memory): (Direction, HostMemory),
    space: staging::Space,
    samples: u32,
) -> Result<Option<TuningSearch>, Error> {
    let mut tried: Vec<PricedTuning> = Vec::new();
    let method = Method::Staged;
    let effort = Effort { warm_up: 1, n_min: samples, n_max: samples, time: Nanos::ZERO };
    let names: Vec<String> = timers.iter().map(|timer| timer.gpu().to_string()).collect();
    let found = staging::search(space, |tuning, least| {
        let limit = Nanos(least.0.saturating_mul(BEHIND_PERCENT) / 100);
        let how = How::Tuned(method, tuning);
        let spec = CopySpec { how, direction, memory, bytes: space.bytes.0 as usize, window: None };
        let Tuning { threads, buffer, stores, in_flight } = tuning;
        let key =
            format!("tuning gpu{} {direction} {memory} {threads} {} {stores} {in_flight}", names.join("+"), buffer.0);
        let mut cpus: Vec<Nanos> = Vec::new();
        let figures = timer_threads::with(timers, &spec, |threads| {
            session.series_below(&key, effort, limit, |turn| {
                let timings = threads.time(turn)?;
                // The CPU time is that of the whole process, the same for all that copy at once.
                cpus.extend(timings.iter().filter_map(|timing| timing.cpu).max());
                Ok(timings.iter().map(|timing| timing.done).max().unwrap_or_default())
            })
        })?;
        cpus.sort_unstable();
        // Of several GPUs at once each has its part.
        if let Some(cpu) = cpus.get(cpus.len() / 2) {
            let cpu = Nanos(cpu.0.div_ceil(names.len().max(1) as u64)).max(Nanos(1));
            let time = figures.median.max(Nanos(1));
            let priced = PricedTuning { tuning, bytes: space.bytes, time, cpu };
            // Finalists are timed again: the later figures count.
            tried.retain(|known| known.tuning != tuning);
            tried.push(priced);
        }
        Ok::<_, Error>(figures.median)
    })?;
    // Comparing takes several times as long as copying: of a search, only the last copies.
    timers.iter_mut().try_for_each(CopyTimer::compare)?;
    Ok(found.map(|(tuning, _)| TuningSearch { tuning, prices: worth_keeping(&tried) }))
}

/// What a search found, as the journal keeps it: the tuning, and what it and others cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct TuningSearch {
    tuning: Tuning,
    prices: Vec<PricedTuning>,
}

impl TuningSearch {
    fn put(&self, profile: &mut Profile, key: TuningKey) {
        profile.tunings.insert(key, self.tuning);
        if !self.prices.is_empty() {
            profile.prices.insert(key, self.prices.clone());
        }
    }
}

/// Writes `text` to `path`, whole or not at all.
pub fn publish(path: &Path, text: &str) -> Result<(), Error> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    let partial = path.with_file_name(name);
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, path));
    Ok(written.map_err(|source: io::Error| {
        // What is left of it helps nobody; that it cannot be removed either is the smaller problem.
        let _ = fs::remove_file(&partial);
        headway::Failure::Write { path: path.to_owned(), source }
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(depth: Depth) -> MeasureOptions {
        MeasureOptions {
            backend: CopyBackend::Cuda,
            model: None,
            gpus: None,
            out: "node.toml".into(),
            name: None,
            depth,
            force: false,
            only: Vec::new(),
            sizes: None,
            each: false,
            watch: Nanos::ZERO,
            workload: None,
            raw: None,
            interrupt: Arc::default(),
        }
    }

    #[test]
    fn emulated_gpus_are_measured_with_copies_that_need_little_memory_unless_larger_ones_are_asked_for() {
        let of = |backend, sizes| MeasureOptions { backend, sizes, ..options(Depth::Quick) }.size_max();
        assert_eq!((of(CopyBackend::Emu, None), of(CopyBackend::Cuda, None)), (64 << 20, 1 << 30));
        assert_eq!(of(CopyBackend::Emu, Some(vec![Bytes(1 << 28)])), 1 << 28);
    }

    #[test]
    fn an_estimate_grows_with_the_depth_and_with_each_of_three_watches() {
        let seconds = |options: &MeasureOptions| options.estimate().0 / NANOS_PER_SECOND;
        let [quick, normal, full] = [Depth::Quick, Depth::Normal, Depth::Full].map(options);
        // `measure --quick` takes about a minute on an H100.
        assert!((30..120).contains(&seconds(&quick)), "{}", seconds(&quick));
        assert!(seconds(&quick) < seconds(&normal) && seconds(&normal) < seconds(&full));
        let watched = MeasureOptions { watch: Nanos(600 * NANOS_PER_SECOND), ..quick.clone() };
        assert_eq!(seconds(&watched), seconds(&quick) + 3 * 600);
        let little = MeasureOptions { only: vec![MeasureStep::Links], sizes: Some(vec![Bytes(64)]), ..quick };
        assert!(seconds(&little) < 10, "{}", seconds(&little));
        let endless = MeasureOptions { watch: Nanos::MAX, ..options(Depth::Quick) };
        assert_eq!(endless.estimate(), Nanos::MAX);
    }
}
