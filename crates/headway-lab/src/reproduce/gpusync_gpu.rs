//! GPUSync (Elliott, Ward, Anderson 2013) for real: cameras as processes that share GPUs through a broker, beside the same
//! program without one.
//!
//! Every camera is a process with a context on every GPU, as long as the experiment takes. For each run a broker is started
//! with the run's rules, the cameras connect to it and track the same frames.

mod child;
mod hand_over;
mod results;
mod setup;
mod simulated;
mod verdicts;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use headway_broker::BrokerServer;
use headway_core::units::Nanos;
use headway_os::ipc::Words;
use headway_os::{affinity, clock};
use headway_sim::sharing::Scenario;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

pub(crate) use self::child::serve as camera;

use self::child::{CameraProcesses, How, Open, Order, USERS};
use self::results::{Files, Measured, Run};
use self::setup::{
    Alone, Configuration, Kind, SIMULATED_BUSY_PPM, alone, configurations, frame_kernels, load, periods, state_bytes,
};
use self::simulated::Node;
use self::verdicts::{against_paper, grouped, mean_of, means_of_paper, means_table, rows, table, worst_of};
use super::site::with_causes;
use super::{ExperimentResults, ExperimentSetting};
use crate::Error;
use crate::trackers::{Course, FrameLoad, Tracked};
use headway::gpus;
use headway::jobs::{HAND_OVER, Moving, ObservedMaxima};
use headway::run::Backend;
use headway_measure::folder;
use headway_measure::plot::{Figure, PlotLine};

/// What only this experiment asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingOptions {
    /// GPUs; `None` = all, at most four.
    pub gpus: Option<usize>,
    /// How long each run releases frames.
    pub duration: Nanos,
    /// How often each configuration is run.
    pub repetitions: u32,
    /// Every scenario of the paper instead of a few.
    pub all: bool,
    /// Cameras; `None` = five for each GPU.
    pub cameras: Option<usize>,
    /// CPUs `m` that tokens are given for; `None` = those allowed here, at most one for each camera.
    pub cpus: Option<u32>,
    /// Loads: what kernels take of each GPU's time if nobody is in the way, percent. Empty = as in the calibrated simulation.
    pub busy: Vec<u32>,
    /// Only these configurations, by name or its first word; empty = all that would be run.
    pub only: Vec<String>,
    /// Periods are the paper's divided by this.
    pub speedup: u32,
    /// Kernel segments of a frame beside the tracker's three.
    pub segments: u32,
    /// A video instead of computed pictures: 8-bit grey levels of 320 x 240 pixels, picture after picture.
    pub video: Option<PathBuf>,
}

impl Default for SharingOptions {
    fn default() -> Self {
        Self {
            gpus: None,
            duration: Nanos(2_000_000_000),
            repetitions: 5,
            all: false,
            cameras: None,
            cpus: None,
            busy: Vec::new(),
            only: Vec::new(),
            speedup: 1,
            segments: 9,
            video: None,
        }
    }
}

/// The cameras' processes get ready within this after an order to run.
const LEAD: Nanos = Nanos(250_000_000);
/// Frames of a run that measures what a camera takes alone.
const ALONE_FRAMES: u64 = 14;
/// Passes in those after the first, which are made until passes stand out from what else the host does.
const ALONE_PASSES: [u32; 4] = [9, 36, 144, 576];
/// Times that all of this is measured at most.
const ALONE_TRIES: u32 = 5;
/// Additional state while it is not known how much it should be.
const FIRST_STATE: u64 = 16 << 20;
const FIRST_COPIES: u64 = 8 << 20;
/// How long a camera looks for an engine before it sleeps, where there is a CPU for every camera, the broker and the rest: longer
/// than a kernel segment. Waking takes 50 to 150 us in a virtual machine, a tenth of a segment.
const LOOK: Nanos = Nanos(5_000_000);
const LOOK_SHORT: Nanos = Nanos(50_000);

/// Sizes of a quick run, which a CPU can do too.
struct Scale {
    shape: [usize; 3],
    pictures: usize,
    check: u64,
    first_state: u64,
    first_copies: u64,
}

/// Everything that stays the same from run to run.
struct Bench {
    processes: CameraProcesses,
    gpus: usize,
    cpus: u32,
    /// How long cameras look for an engine before they sleep.
    look: Nanos,
    periods: Vec<Nanos>,
    frames: Vec<u64>,
    scale: Scale,
    busy_ppm: u64,
    load: FrameLoad,
    alone: Alone,
    users: Words,
    folder: PathBuf,
}

pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let cuda = match setting.backend {
        Backend::Emu => false,
        Backend::Cuda | Backend::Auto => true,
        Backend::Sim => {
            return Err(headway::Failure::Options("simulated it is `gpusync-sim`; this runs on `emu` or `cuda`").into());
        }
    };
    let source = if cuda { "cuda" } else { "emu" };
    let (options, quick) = (&setting.sharing, setting.quick);
    let (machine, gpus) = node(cuda, setting)?;
    let mut bench = Bench::open(setting, cuda, gpus)?;
    let folder = setting.folder("gpusync-gpu", source);
    folder::grow(&folder, "gpusync-gpu")?;
    let mut files = Files::create(&folder)?;
    setting.keep("gpusync-gpu", source, &machine, Vec::new());
    let configurations = chosen(options, gpus, quick)?;
    let repetitions = if quick { 1 } else { options.repetitions.max(1) };
    let mut all = Vec::new();
    let mut failed = None;
    'runs: for busy in loads(options, cuda) {
        let loaded = bench.load(busy, options.segments, cuda);
        for repetition in 1..=repetitions {
            for at in 0..configurations.len() {
                // Interleaved, and each repetition begins with another one.
                let configuration = &configurations[(at + repetition as usize - 1) % configurations.len()];
                let measured = if let Err(error) = &loaded {
                    Err(with_causes(error))
                } else {
                    bench.measure(configuration, repetition, setting.seed).map_err(|error| with_causes(&error))
                };
                match measured {
                    Ok((measured, tracked)) => {
                        files.add(&measured, &tracked)?;
                        all.push(measured);
                    }
                    Err(reason) => {
                        let name = configuration.name();
                        failed = Some(format!("{name}, load {} %, repetition {repetition}: {reason}", busy / 10_000));
                        break 'runs;
                    }
                }
            }
        }
    }
    let expected = configurations.len() * repetitions as usize * loads(options, cuda).len();
    drop(files);
    if all.is_empty()
        && let Some(what) = failed
    {
        return Err(Error::Camera { camera: 0, reason: what });
    }
    let mut outcome = outcome(setting, source, machine, &bench, &all, expected, failed);
    if options.all && all.len() == expected {
        let phases: Vec<_> = (1..=repetitions).map(|number| bench.phases(setting.seed, number)).collect();
        let codes = codes(&configurations);
        let complete = codes.len() == Scenario::distinct().len();
        // The load of the last one is the one that is known; others have other means.
        let means = means_of_paper(&all, &codes, bench.busy_ppm / 10_000);
        if complete && source == "cuda" {
            let simulated =
                simulated::means(&bench.node(), &phases, setting.seed).map_err(headway::Failure::Sharing)?;
            outcome.rows.extend(against_paper(&means, &simulated, bench.busy_ppm / 10_000));
            outcome.tables.push(means_table(&means, &simulated, bench.busy_ppm / 10_000));
        }
    }
    Ok(outcome)
}

/// The paper's codes by the names of configurations.
fn codes(configurations: &[Configuration]) -> BTreeMap<String, String> {
    configurations.iter().filter_map(|one| Some((one.name(), one.of_paper()?.to_string()))).collect()
}

/// The configurations that were asked for.
fn chosen(options: &SharingOptions, gpus: usize, quick: bool) -> Result<Vec<Configuration>, Error> {
    let mut configurations = configurations(gpus, options.all, quick);
    if !options.only.is_empty() {
        configurations.retain(|one| options.only.iter().any(|word| one.is_called(word)));
    }
    if configurations.is_empty() {
        return Err(headway::Failure::Options(
            "no configuration is called that; leave `--only` out to see their names in results.csv",
        )
        .into());
    }
    Ok(configurations)
}

/// Loads in parts per million. Emulated GPUs are CPUs, which could not keep up.
fn loads(options: &SharingOptions, cuda: bool) -> Vec<u64> {
    if !cuda {
        return vec![150_000];
    }
    let asked: Vec<u64> = options.busy.iter().map(|percent| u64::from(*percent) * 10_000).collect();
    if asked.is_empty() { vec![SIMULATED_BUSY_PPM] } else { asked }
}

/// What the GPUs are called, and how many are used.
fn node(cuda: bool, setting: &ExperimentSetting) -> Result<(String, usize), Error> {
    let wanted = setting.sharing.gpus;
    if !cuda {
        let gpus = wanted.unwrap_or(2).clamp(1, 4);
        return Ok((format!("{gpus} emulated GPUs of {}", setting.machine.as_deref().unwrap_or("h200-x4")), gpus));
    }
    let devices = gpus::open(gpus::CopyBackend::Cuda, None, wanted)?;
    let gpus = devices.len().min(wanted.unwrap_or(4));
    let name = devices.first().map_or_else(String::new, |gpu| gpu.description().name.clone());
    Ok((format!("{gpus} x {name}"), gpus))
}

impl Bench {
    /// Starts the cameras.
    fn open(setting: &ExperimentSetting, cuda: bool, gpus: usize) -> Result<Self, Error> {
        let (options, quick) = (&setting.sharing, setting.quick);
        let cameras = options.cameras.unwrap_or(if quick { 3 } else { 5 * gpus }).clamp(1, 64);
        let allowed = u32::try_from(affinity::allowed().map_or(1, |cpus| cpus.len())).unwrap_or(u32::MAX);
        let cpus = options.cpus.unwrap_or_else(|| allowed.min(cameras as u32)).max(1);
        let look = if allowed as usize >= cameras + 2 { LOOK } else { LOOK_SHORT };
        let periods = periods(cameras, options.speedup);
        let duration = if quick { options.duration.min(Nanos(600_000_000)) } else { options.duration };
        let scale = Scale::of(cuda, quick);
        let mut processes = CameraProcesses::start(cameras)?;
        let open = |camera: usize| Open {
            cuda,
            machine: (!cuda).then(|| setting.machine.clone().unwrap_or_else(|| "h200-x4".to_owned())),
            gpus,
            shape: scale.shape,
            seed: setting.seed.wrapping_add(camera as u64),
            pictures: scale.pictures,
            check: scale.check,
            video: options.video.clone(),
        };
        processes.order(&(0..cameras).map(|camera| (camera, Order::Open(open(camera)))).collect::<Vec<_>>())?;
        let users = Words::create("headway users", 0, USERS)?;
        let frames = periods.iter().map(|period| (duration.0 / period.0).max(2)).collect();
        let folder = std::env::temp_dir().join(format!("headway-gpusync-{}", std::process::id()));
        let (load, alone) = (FrameLoad::default(), Alone::default());
        Ok(Self { processes, gpus, cpus, look, periods, frames, scale, busy_ppm: 0, load, alone, users, folder })
    }

    /// Measures what a camera takes alone, and gives all of them the load at which kernels take so much of each GPU.
    fn load(&mut self, busy_ppm: u64, segments: u32, cuda: bool) -> Result<(), Error> {
        // The rate of copies says how large the state is, and only with that state it is seen what a pass takes.
        let first = measure_alone(&mut self.processes, &self.scale, self.scale.first_state)?;
        let kernels = frame_kernels(&self.periods, self.gpus, busy_ppm);
        let state =
            state_bytes(kernels, first.bytes_per_s).clamp(FrameLoad::UNIT, if cuda { 1 << 30 } else { 1 << 20 });
        self.alone = measure_alone(&mut self.processes, &self.scale, state)?;
        let load = load(&self.periods, self.gpus, busy_ppm, segments, &self.alone, state);
        let most = if cuda { u64::MAX } else { 1 << 20 };
        self.load = FrameLoad { input: load.input.min(most), output: load.output.min(most), ..load };
        self.busy_ppm = busy_ppm;
        let cameras = 0..self.periods.len();
        self.processes.order(&cameras.map(|camera| (camera, Order::Load(self.load))).collect::<Vec<_>>())?;
        Ok(())
    }

    /// When each camera's first frame is released in a repetition.
    fn phases(&self, seed: u64, repetition: u32) -> Vec<u64> {
        phases(&self.periods, seed.wrapping_add(u64::from(repetition)))
    }

    /// What is simulated beside it.
    fn node(&self) -> Node<'_> {
        let (load, alone) = (self.load, self.alone);
        Node { gpus: self.gpus, cpus: self.cpus, periods: &self.periods, frames: &self.frames, load, alone }
    }

    /// One run.
    fn measure(
        &mut self,
        configuration: &Configuration,
        repetition: u32,
        seed: u64,
    ) -> Result<(Measured, Vec<Tracked>), Error> {
        let phases = self.phases(seed, repetition);
        let tracked = match configuration.arbiter(self.gpus as u32, self.cpus) {
            Some(arbiter) => self.under_broker(configuration, arbiter, &phases)?,
            None => self.order(configuration, &phases, |camera, this| match configuration.kind {
                Kind::Fixed => How::Fixed((camera % this.gpus) as u32),
                _ => {
                    let file = this.users.as_fd().as_raw_fd();
                    How::Fewest(PathBuf::from(format!("/proc/{}/fd/{file}", std::process::id())))
                }
            })?,
        };
        let mut measured = Measured::of(&Run {
            name: &configuration.name(),
            managed: configuration.is_managed(),
            repetition,
            busy: self.busy_ppm / 10_000,
            gpus: self.gpus,
            expected: self.frames.iter().sum(),
            periods: &self.periods,
            tracked: &tracked,
            copy_engines: configuration.copy_engines(),
        });
        let cameras: Vec<_> = self
            .periods
            .iter()
            .copied()
            .zip(tracked.iter().map(|tracked| ObservedMaxima::of(&tracked.frames)))
            .collect();
        let on_time = measured.misses == 0 && measured.lost == 0;
        if let Some(analysis) = configuration.bounds(self.gpus as u32, self.cpus, &cameras, on_time) {
            let shares = analysis.tasks.iter().zip(&cameras).map(|(bound, (_, seen))| {
                (seen.blocking_max.0 as f64 / bound.blocking.0.max(1) as f64 * 100.0, bound.blocking.0)
            });
            if let Some((share, bound)) = shares.max_by(|a, b| a.0.total_cmp(&b.0)) {
                (measured.of_bound, measured.bound_ns) = (Some(share), Some(bound));
            }
        }
        Ok((measured, tracked))
    }

    fn under_broker(
        &mut self,
        configuration: &Configuration,
        arbiter: headway_core::decisions::sharing::ArbiterParameters,
        phases: &[u64],
    ) -> Result<Vec<Tracked>, Error> {
        let socket = self.folder.join("broker");
        // What an earlier broker of this experiment left would make the next one wait for its clients.
        let _ = std::fs::remove_dir_all(&self.folder);
        let options = headway_broker::ServerOptions {
            boost: false,
            ..headway_broker::ServerOptions::new(socket.clone(), arbiter)
        };
        let mut server = BrokerServer::bind(options).map_err(headway::Failure::Broker)?;
        let stop = AtomicBool::new(false);
        let tracked = thread::scope(|scope| {
            let (sender, receiver) = channel();
            let stop = &stop;
            scope.spawn(move || {
                let ended = server.run(stop);
                drop(server);
                let _ = sender.send(ended);
            });
            let tracked =
                self.order(configuration, phases, |_, this| How::Broker { socket: socket.clone(), look: this.look });
            stop.store(true, Ordering::Relaxed);
            match receiver.recv() {
                Ok(Err(error)) => Err(headway::Failure::Broker(error).into()),
                _ => tracked,
            }
        });
        let _ = std::fs::remove_dir_all(&self.folder);
        tracked
    }

    fn order(
        &mut self,
        configuration: &Configuration,
        phases: &[u64],
        how: impl Fn(usize, &Self) -> How,
    ) -> Result<Vec<Tracked>, Error> {
        (0..self.gpus).for_each(|gpu| self.users.word(gpu).store(0, Ordering::Relaxed));
        let begin = clock::now().saturating_add(LEAD);
        let moving = Moving { chunk: configuration.chunk.map(|chunk| chunk.0), peer: configuration.peer };
        let course = |(camera, period): (usize, &Nanos)| Course {
            begin: begin.0 + phases[camera],
            period: period.0,
            frames: self.frames[camera],
            moving,
        };
        let courses: Vec<_> = self.periods.iter().enumerate().map(course).collect();
        let orders: Vec<_> = courses
            .into_iter()
            .enumerate()
            .map(|(camera, course)| (camera, Order::Run { course, how: how(camera, self) }))
            .collect();
        self.processes.order(&orders)
    }
}

impl Scale {
    fn of(cuda: bool, quick: bool) -> Self {
        if cuda {
            let (pictures, check) = if quick { (12, 4) } else { (40, 24) };
            let (first_state, first_copies) = (FIRST_STATE, FIRST_COPIES);
            return Self { shape: [320, 240, 1024], pictures, check, first_state, first_copies };
        }
        let shape = if quick { [96, 96, 32] } else { [160, 120, 64] };
        Self { shape, pictures: 6, check: 4, first_state: 64 << 10, first_copies: 64 << 10 }
    }
}

/// When each camera's first frame is released: drawn within its period, for each repetition anew, as in the simulation.
fn phases(periods: &[Nanos], seed: u64) -> Vec<u64> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    periods.iter().map(|period| random.next_u64() % period.0.max(1)).collect()
}

/// Two short runs of the first camera on the first GPU, with nobody else there; more if the second says nothing, and all anew if none does:
/// the host may have been stopped during the first.
fn measure_alone(processes: &mut CameraProcesses, scale: &Scale, state: u64) -> Result<Alone, Error> {
    let load = |passes| FrameLoad {
        segments: 3,
        cpu_ns: 0,
        passes,
        input: scale.first_copies,
        output: scale.first_copies,
        state,
    };
    let mut frames = |passes| {
        processes.order(&[(0, Order::Load(load(passes)))])?;
        let moving = Moving { chunk: Some(2 << 20), peer: true };
        let course = Course { begin: clock::now().0, period: 1, frames: ALONE_FRAMES, moving };
        let tracked = processes.order(&[(0, Order::Run { course, how: How::Fixed(0) })])?;
        Ok::<Vec<_>, Error>(tracked.into_iter().flat_map(|tracked| tracked.frames).collect())
    };
    for _ in 0..ALONE_TRIES {
        let one = frames(1)?;
        for passes in ALONE_PASSES {
            if let Some(alone) = alone(&one, &frames(passes)?, passes, &load(1)) {
                return Ok(alone);
            }
        }
    }
    let most = ALONE_PASSES[ALONE_PASSES.len() - 1];
    let reason =
        format!("{most} passes over its state took hardly longer than one; measure again on a quieter machine");
    Err(Error::Camera { camera: 0, reason })
}

fn outcome(
    setting: &ExperimentSetting,
    source: &'static str,
    machine: String,
    bench: &Bench,
    all: &[Measured],
    expected: usize,
    failed: Option<String>,
) -> ExperimentResults {
    let options = &setting.sharing;
    let mut notes = vec![table(all, source), scaling(bench, options, source)];
    notes.push(format!(
        "Response: end minus the later of release and predecessor's end, in percent of the period. Blocking: waits for the \
         token and for engines of one frame together, beside its bound from the longest operations seen in the same run and \
         {} for each hand-over; the bound assumes that holders get a CPU ({} CPUs for {} cameras). Where engines serve the most \
         urgent first (edf), there is one only with a token for every camera, and only for runs in which no frame was late. \
         Hand-over: from an operation's end to the beginning of the one of another camera that waited for its engine. The tracker \
         waits for each of its launches before the next, as the public tracker's host waits several times an iteration; without \
         arbitration each such wait gives the GPU to whoever else is there.",
        HAND_OVER,
        bench.cpus,
        bench.periods.len()
    ));
    if let Some(failed) = failed {
        notes.push(format!("**Ended early**: {failed}."));
    }
    if source == "emu" {
        notes
            .push("Emulated: every process has GPUs of its own, so that these times say nothing about any GPU.".into());
    }
    let mut points: BTreeMap<bool, Vec<(f64, f64)>> = BTreeMap::new();
    for runs in grouped(all) {
        let point = (mean_of(&runs, |run| run.mean), worst_of(&runs));
        points.entry(runs[0].managed).or_default().push(point);
    }
    points.values_mut().for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let name = |managed: bool| if managed { "Headway" } else { "without" }.to_owned();
    let lines = points.into_iter().map(|(managed, points)| PlotLine::new(name(managed), points).scattered()).collect();
    let axes = ["mean response, % of the period", "worst response, % of the period"];
    let figure = Figure::new("worst response over mean response", source, axes, lines);
    ExperimentResults {
        rows: rows(all, expected),
        notes,
        figures: vec![("responses".to_owned(), figure)],
        ..ExperimentResults::new("gpusync-gpu", source, machine, setting.seed)
    }
}

/// How the load was scaled.
fn scaling(bench: &Bench, options: &SharingOptions, source: &str) -> String {
    let load = &bench.load;
    format!(
        "Scaled load ({source}): periods are the paper's divided by {}; work is scaled so that kernels would take the load's \
         share of each GPU if nobody were in the way; 76 % is that of the calibrated simulation. Phases are drawn for each \
         repetition, the same for every configuration. At the last load a frame is the tracker's (its kernels {} alone), {} more kernel segments of {} \
         passes over {} B of state ({} a pass), {} of CPU time, {} B more in and {} B more out: kernels, CPU and copies have \
         the ratios of the calibrated simulation. {} cameras, each a process, on {} GPUs. Kernels of a process that were kept \
         waiting by another one's on the GPU count as busy.",
        options.speedup,
        bench.alone.tracker,
        load.segments,
        load.passes,
        load.state,
        bench.alone.pass,
        Nanos(load.cpu_ns),
        load.input,
        load.output,
        bench.periods.len(),
        bench.gpus,
    )
}
