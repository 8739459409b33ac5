//! Flows that join and leave while devices run: the admission and its dispatcher on real copy engines.
//!
//! One thread drives the devices; another computes joins on a copy of the admission, so that no job starts late because
//! somebody asks to join.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use crate::simulation::verner::admission::{Admission, AdmissionRefused, Admitted, FlowPlacement, FlowRequest, LIMITS};
use crate::simulation::verner::running::{BatchJob, RunningDomain};
use headway_core::files::machine::{EngineClass, Machine, RouteId};
use headway_core::interconnect::{BatchBlock, Network};
use headway_core::models::transfer::Method;
use headway_core::units::{Bytes, Nanos};
use headway_device::{Access, Buffer, Completion, DeviceError, Engines, HostKind, Span};
use headway_os::clock;
use headway_runtime::pattern;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{ExperimentSetting, PaperVerdict};
use crate::Error;
use crate::reproduce::site::{Site, with_causes};
use crate::reproduce::{ExperimentResults, PaperRow, raw_figures, silent};
use headway_measure::sample::SampleFigures;

/// Windows are this, times powers of two up to eight, or anything between.
const WINDOW: u64 = 4_000_000;
const WINDOW_MAX: Nanos = Nanos(8 * WINDOW);
/// The least time from the request of a join to its effect.
const LEAD: Nanos = Nanos(20_000_000);
/// Between two changes there is up to twice this.
const PAUSE: u64 = 15_000_000;
/// An operation that does not end for so long ends the run.
const PATIENCE: Nanos = Nanos(30_000_000_000);
/// Bytes at the end of every block out that are compared.
const CHECKED: usize = 4096;

/// A route with its memory.
struct Path {
    gpu: usize,
    class: EngineClass,
    host: Buffer,
    there: Buffer,
}

/// What is counted.
#[derive(Default)]
struct Count {
    joins: [u64; 3],
    beside_leavers: u64,
    refused: u64,
    leaves: u64,
    /// Messages and flows at most at a time.
    flows_max: usize,
    misses: u64,
    /// Misses although no job took longer than its worst case since the server was idle.
    unexplained: u64,
    overruns: u64,
    lost: u64,
    blocks: u64,
    bytes: u64,
    checked: u64,
    responses: Vec<Ended>,
    /// What a join took to compute.
    computed: Vec<Nanos>,
}

/// A job that has ended.
struct Ended {
    message: u64,
    release: Nanos,
    response: Nanos,
    window: Nanos,
    /// From its begin to the notice of its end.
    took: Nanos,
    /// While blocks moved.
    moved: Nanos,
    worst_case: Nanos,
}

/// A join to be computed, and its answer.
type Asked = (Admission, Nanos, FlowRequest);
type Answer = (Nanos, Result<(Admission, Admitted), AdmissionRefused>);

/// The job under way.
struct Running {
    job: BatchJob,
    begun: Nanos,
    outstanding: usize,
    first: Nanos,
    last: Nanos,
}

struct Driver<'a> {
    site: &'a mut Site,
    paths: BTreeMap<RouteId, Path>,
    domain: RunningDomain,
    random: Pcg64Mcg,
    running: Option<Running>,
    /// Whether a job took longer than its worst case since the server was idle.
    disturbed: bool,
    /// A join that is being computed, and since when.
    asked: Option<Nanos>,
    names: u64,
    count: Count,
}

pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let mut site = Site::open(setting)?;
    let duration = site.duration(setting);
    let routes = routes(&site.machine);
    let paths = memory(&mut site, &routes)?;
    let admission = Admission::new(Network::new(&site.machine), site.machine.calibration.clone(), LIMITS);
    let mut driver = Driver {
        site: &mut site,
        paths,
        domain: RunningDomain::new(admission),
        random: Pcg64Mcg::seed_from_u64(setting.seed),
        running: None,
        disturbed: false,
        asked: None,
        names: 0,
        count: Count::default(),
    };
    let (ask, asked) = mpsc::channel::<Asked>();
    let (answer, answers) = mpsc::channel::<Answer>();
    let ended = std::thread::scope(|scope| {
        scope.spawn(move || compute(&asked, &answer));
        let ended = driver.drive(duration, &ask, &answers);
        drop(ask);
        ended
    });
    let count = driver.count;
    Ok(outcome(setting, &site, &count, duration, ended.err().map(|error| with_causes(&error)).as_deref()))
}

/// Answers joins until nobody asks any more.
fn compute(asked: &Receiver<Asked>, answer: &Sender<Answer>) {
    while let Ok((mut admission, now, request)) = asked.recv() {
        let before = clock::now();
        let joined = admission.join(now, &request).map(|admitted| (admission, admitted));
        if answer.send((clock::now() - before, joined)).is_err() {
            return;
        }
    }
}

/// The routes that plans use between memories and GPUs.
fn routes(machine: &Machine) -> Vec<RouteId> {
    let all = (0..machine.routes.len() as u32).map(RouteId);
    let usable = |route: &RouteId| {
        let copies = matches!(machine.class(*route), EngineClass::H2d | EngineClass::D2h);
        let planned = &machine.routes[route.at()];
        copies && planned.from != planned.to && planned.method != Method::Pageable
    };
    all.filter(usable).collect()
}

/// For each route a host buffer and one on the GPU, as large as any block that can be accepted; the sources are filled.
fn memory(site: &mut Site, routes: &[RouteId]) -> Result<BTreeMap<RouteId, Path>, Error> {
    let mut paths = BTreeMap::new();
    for &route in routes {
        let machine = &site.machine;
        let class = machine.class(route);
        let planned = &machine.routes[route.at()];
        let end = if class == EngineClass::H2d { planned.to } else { planned.from };
        let gpu = machine.gpus().position(|gpu| gpu == end).unwrap_or(0);
        let rate = planned.uses.iter().map(|(capacity, _)| machine.capacities[capacity.at()].rate.0).min().unwrap_or(0);
        // A job ends within its window, so that no block is larger than what moves in the longest one.
        let bytes = (u128::from(rate) * u128::from(WINDOW_MAX.0) / 1_000_000_000) as usize + CHECKED;
        let device = &mut site.devices[gpu];
        let host = device.host_buffer(bytes, HostKind::Pinned)?;
        let there = device.device_buffer(bytes)?;
        fill(&host, route)?;
        if class == EngineClass::D2h {
            let from = host.claim(0..bytes, Access::Read)?;
            let to = there.claim(0..bytes, Access::Write)?;
            wait(device, (from, to))?;
            // What is found here later has come from the GPU.
            host.claim(0..bytes, Access::Write)?.bytes_mut()?.fill(0);
        }
        paths.insert(route, Path { gpu, class, host, there });
    }
    Ok(paths)
}

/// What the bytes of a route's source follow from.
fn key(route: RouteId) -> u64 {
    u64::from(route.0) << 40
}

fn fill(buffer: &Buffer, route: RouteId) -> Result<(), DeviceError> {
    let mut span = buffer.claim(0..buffer.len(), Access::Write)?;
    pattern::fill(key(route), 0, span.bytes_mut()?);
    Ok(())
}

fn wait(device: &mut Engines, ends: (Span, Span)) -> Result<(), DeviceError> {
    device.copy(EngineClass::H2d, Method::Dma, ends, u64::MAX)?;
    let until = clock::now().saturating_add(PATIENCE);
    let mut done: Vec<Completion> = Vec::new();
    while done.is_empty() {
        device.poll(&mut done);
        if clock::now() > until {
            return Err(DeviceError::DeviceLost);
        }
        std::thread::yield_now();
    }
    done.remove(0).result
}

impl Driver<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn drive(&mut self, duration: Nanos, ask: &Sender<Asked>, answers: &Receiver<Answer>) -> Result<(), DeviceError> {
        let end = clock::now().saturating_add(duration);
        let mut next_change = clock::now();
        let mut progress = clock::now();
        loop {
            let now = clock::now();
            if self.poll(now)? {
                progress = now;
            }
            match answers.try_recv() {
                Ok((took, joined)) => self.answered(clock::now(), took, joined),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
            if now >= end && self.running.is_none() && self.asked.is_none() {
                return Ok(());
            }
            if now < end && now >= next_change && self.asked.is_none() {
                self.change(now, ask);
                let pause = self.below(2 * PAUSE);
                next_change = now.saturating_add(Nanos(pause));
            }
            if now < end {
                match self.domain.poll_start(clock::now()) {
                    Some(job) => self.begin(job)?,
                    None => self.disturbed &= self.running.is_some(),
                }
            }
            self.count.lost += self.domain.take_lost().len() as u64;
            match self.running {
                None => progress = now,
                Some(_) if now.saturating_sub(progress) > PATIENCE => return Err(DeviceError::DeviceLost),
                Some(_) => {}
            }
            self.rest(next_change);
        }
    }

    /// Waits for the next instant, without sleeping where completions must be polled for.
    fn rest(&self, next_change: Nanos) {
        let now = clock::now();
        let next = self.domain.poll_timeout().unwrap_or(Nanos::MAX).min(next_change);
        if self.site.source == "cuda" || next <= now {
            std::hint::spin_loop();
            return;
        }
        std::thread::sleep(Duration::from_nanos((next - now).0.min(100_000)));
    }

    /// Takes completions; whether there were any.
    fn poll(&mut self, now: Nanos) -> Result<bool, DeviceError> {
        let mut done = Vec::new();
        for device in &mut self.site.devices {
            device.poll(&mut done);
        }
        let any = !done.is_empty();
        for completion in done {
            completion.result?;
            let running = self.running.as_mut().expect("only the running job has operations");
            running.outstanding -= 1;
            running.first = running.first.min(completion.started);
            running.last = running.last.max(completion.finished);
            if running.outstanding == 0 {
                let running = self.running.take().expect("it was there above");
                self.end(clock::now().max(now), running)?;
            }
        }
        Ok(any)
    }

    fn begin(&mut self, job: BatchJob) -> Result<(), DeviceError> {
        let (outstanding, begun) = (job.blocks.len(), clock::now());
        for (tag, block) in (0u64..).zip(&job.blocks) {
            let path = &self.paths[&block.route];
            let range = 0..block.bytes.0 as usize;
            let (from, to) =
                if path.class == EngineClass::H2d { (&path.host, &path.there) } else { (&path.there, &path.host) };
            let ends = (from.claim(range.clone(), Access::Read)?, to.claim(range, Access::Write)?);
            self.site.devices[path.gpu].copy(path.class, Method::Dma, ends, tag)?;
        }
        self.running = Some(Running { job, begun, outstanding, first: Nanos::MAX, last: Nanos::ZERO });
        Ok(())
    }

    fn end(&mut self, now: Nanos, running: Running) -> Result<(), DeviceError> {
        let Running { job, begun, first, last, .. } = running;
        self.domain.ended(now);
        let took = now.saturating_sub(begun);
        self.disturbed |= took > job.worst_case;
        self.count.misses += u64::from(now > job.deadline);
        self.count.unexplained += u64::from(now > job.deadline && !self.disturbed);
        self.count.overruns += u64::from(took > job.worst_case);
        for block in &job.blocks {
            self.count.blocks += 1;
            self.count.bytes += block.bytes.0;
            self.check(block)?;
        }
        self.count.responses.push(Ended {
            message: job.message,
            release: job.release,
            response: now.saturating_sub(job.release),
            window: job.deadline - job.release,
            took,
            moved: last.saturating_sub(first),
            worst_case: job.worst_case,
        });
        Ok(())
    }

    /// Compares the end of a block that came from a GPU, and wipes it.
    fn check(&mut self, block: &BatchBlock) -> Result<(), DeviceError> {
        let path = &self.paths[&block.route];
        if path.class != EngineClass::D2h {
            return Ok(());
        }
        let end = block.bytes.0 as usize;
        let from = end.saturating_sub(CHECKED);
        let mut span = path.host.claim(from..end, Access::Write)?;
        let bytes = span.bytes_mut()?;
        if let Some(at) = pattern::first_difference(key(block.route), from, bytes) {
            let reason = format!("byte {at} that came from a GPU is wrong");
            return Err(DeviceError::Invalid { what: "copy", reason });
        }
        bytes.fill(0);
        self.count.checked += bytes.len() as u64;
        Ok(())
    }

    fn change(&mut self, now: Nanos, ask: &Sender<Asked>) {
        let flows = self.domain.admission().flows();
        let staying: Vec<String> = flows.filter(|(_, leaving)| !leaving).map(|(id, _)| id.to_owned()).collect();
        self.count.flows_max = self.count.flows_max.max(staying.len());
        if !staying.is_empty() && self.below(3) == 0 {
            let id = &staying[self.below(staying.len() as u64) as usize];
            if self.domain.leave(now, id).is_ok() {
                self.count.leaves += 1;
            }
            return;
        }
        let request = self.request();
        self.count.beside_leavers += u64::from(self.domain.admission().flows().any(|(_, leaving)| leaving));
        self.asked = Some(now);
        // A thread that has ended has no answer: the run then ends at the patience of its caller, which is the scope's.
        let _ = ask.send((self.domain.suspend(), now.saturating_add(LEAD), request));
    }

    fn answered(&mut self, now: Nanos, took: Nanos, joined: Result<(Admission, Admitted), AdmissionRefused>) {
        self.asked = None;
        self.count.computed.push(took);
        match self.domain.resume(now, joined) {
            Ok(admitted) => {
                let path = match admitted.placement {
                    FlowPlacement::Grown => 0,
                    FlowPlacement::Alone => 1,
                    FlowPlacement::Combined { .. } => 2,
                };
                self.count.joins[path] += 1;
            }
            Err(_) => self.count.refused += 1,
        }
    }

    /// Windows harmonic as often as not; up to a third of what the routes carry.
    fn request(&mut self) -> FlowRequest {
        self.names += 1;
        let window = match self.below(2) {
            0 => WINDOW << self.below(4),
            _ => WINDOW + self.below(WINDOW_MAX.0 - WINDOW),
        };
        let routes: Vec<RouteId> = self.paths.keys().copied().collect();
        let mut blocks: Vec<BatchBlock> = Vec::new();
        for _ in 0..=self.below(2) {
            let route = routes[self.below(routes.len() as u64) as usize];
            if blocks.iter().all(|block| block.route != route) {
                let capacity = self.paths[&route].host.len() as u64;
                let share = 1 + self.below(300);
                let bytes =
                    u128::from(capacity) * u128::from(window) * u128::from(share) / u128::from(WINDOW_MAX.0) / 1000;
                blocks.push(BatchBlock { route, bytes: Bytes(bytes.max(1) as u64) });
            }
        }
        FlowRequest { id: format!("f{}", self.names), blocks, period: Nanos(window), window: Nanos(window) }
    }
}

fn outcome(
    setting: &ExperimentSetting,
    site: &Site,
    count: &Count,
    duration: Nanos,
    failure: Option<&str>,
) -> ExperimentResults {
    let joined: u64 = count.joins.iter().sum();
    let [grown, alone, combined] = count.joins;
    let jobs = &count.responses;
    let nearest = jobs.iter().map(|job| job.response.0 as f64 / job.window.0.max(1) as f64).fold(0.0, f64::max);
    let busy: u128 = jobs.iter().map(|job| u128::from(job.moved.0)).sum();
    let failed = failure.map_or_else(String::new, |why| format!("; it failed: {why}"));
    let computed = SampleFigures::of(&count.computed).map_or_else(String::new, |figures| {
        format!("joins took median {}, max {} to compute", figures.median, figures.max)
    });
    let rows = vec![
        PaperRow {
            what: format!("flows join and leave running devices for {duration}"),
            paper: silent("not treated: streams are known in advance"),
            ours: format!(
                "{joined} joins accepted ({grown} grew a block, {alone} alone, {combined} combined), {} refused, {} asked \
                 while a leaver's capacity was not back, {} leaves, up to {} flows; {} jobs, {} misses, {} of them although no job \
                 took longer than its worst case since the server was idle, {} given up, the nearest at {:.0} % of its window, \
                 {} above their worst case, engines busy {:.0} %; {computed}{failed}",
                count.refused,
                count.beside_leavers,
                count.leaves,
                count.flows_max,
                jobs.len(),
                count.misses,
                count.unexplained,
                count.lost,
                nearest * 100.0,
                count.overruns,
                busy as f64 * 100.0 / duration.0.max(1) as f64
            ),
            verdict: PaperVerdict::own(count.misses + count.lost == 0 && joined > 0 && failure.is_none()),
            why: "beyond the paper: no flow that was let in may miss a deadline or lose a job".into(),
        },
        PaperRow {
            what: "bytes that came from the GPUs".into(),
            paper: silent("not treated"),
            ours: format!(
                "{} blocks, {:.2} GB moved; the last {CHECKED} bytes of each block out, {:.1} MB, compared and equal",
                count.blocks,
                count.bytes as f64 / 1e9,
                count.checked as f64 / 1e6
            ),
            // On a busy machine without a GPU the run may be over before a block has come out.
            verdict: if count.checked == 0 && failure.is_none() {
                PaperVerdict::NotComparable
            } else {
                PaperVerdict::own(failure.is_none())
            },
            why: "the ends of all blocks are compared; a wrong byte ends the experiment".into(),
        },
    ];
    let table = raw_figures!("jobs", jobs, |job| Columns {
        message: job.message,
        release_ns: job.release,
        window_ns: job.window,
        response_ns: job.response,
        worst_case_ns: job.worst_case,
        took_ns: job.took,
        moved_ns: job.moved,
    });
    ExperimentResults { rows, notes: vec![
            "All copies of the node are one domain: one batch at a time. A response runs from a job's release to the moment the \
             driver noticed its last block, what a job takes from its begin to that moment. Joins are computed on another thread and take effect at the first cycle that \
             begins 20 ms after they were asked for or later; a leaver's capacity returns at the first idle instant after its \
             last deadline. If a deadline has passed when its job is about to begin, jobs of the message that came last are \
             given up until nothing waits. Jobs that wait when the time is over are not run; nothing else is excluded."
                .into(),
        ], tables: vec![table], ..ExperimentResults::new("join-leave", site.source, site.named(), setting.seed) }
}
