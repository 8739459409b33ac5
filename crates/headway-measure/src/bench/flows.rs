//! `headway bench flows`: flows beside bulk copies of the same process, each response beside the bound that was promised, and what the
//! driver gives without promises in the same run.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use headway::flow::{FlowContract, FlowCopy, FlowNode, FlowPlace, OnMiss};
use headway::gpus::{self, CopyBackend};
use headway::run::Progress;
use headway::{COMMIT, ErrorKind};
use headway_core::files::machine::Machine;
use headway_core::models::transfer::{Direction, Method};
use headway_core::units::{Bytes, Nanos};
use headway_device::Access;
use headway_device::gpu::{Gpu, Operation, Queue};
use headway_os::{clock, sched};
use headway_runtime::copy::{Copier, CopyOptions, How};
use serde::Serialize;

use super::ids;
use crate::Error;
use crate::folder::{self, ENDED_EARLY, Folder};
use crate::sample::SampleFigures;

/// A set of flows that is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowBenchCase {
    /// 1 MiB out of the GPU every 2 ms within 1 ms, or some times as long, beside bulk copies out: plain, and promised.
    One,
    /// Ten flows in both directions, periods 1 to 200 ms, as large as can be promised together, beside bulk copies both ways.
    Ten,
}

/// What to run, and where to write it.
#[derive(Clone, Debug)]
pub struct FlowBenchOptions {
    /// On what.
    pub backend: CopyBackend,
    /// The machine that the emulated backend imitates.
    pub model: Option<String>,
    /// Machine file that says what copies cost at worst; `None` = the shipped H200.
    pub machine: Option<String>,
    /// The broker that admits the flows beside those of other programs, by its socket; `None` = nobody.
    pub broker: Option<PathBuf>,
    /// `None` = all.
    pub only: Option<FlowBenchCase>,
    /// How long promised flows run.
    pub duration: Nanos,
    /// Folder for figures and summary.
    pub out: PathBuf,
    /// Ends the benchmark early when it becomes true.
    pub interrupt: Arc<AtomicBool>,
}

/// One flow of one case.
#[derive(Clone, Debug, Serialize)]
pub struct FlowRow {
    pub case: &'static str,
    /// `flow`, or `plain`: by the driver, with bulk copies whole.
    pub by: &'static str,
    pub flow: String,
    pub direction: Direction,
    pub bytes: Bytes,
    pub period: Nanos,
    pub deadline: Nanos,
    pub n: u64,
    pub missed: u64,
    /// Copies that took longer than was promised.
    pub beyond_bound: u64,
    /// What was promised; of `plain` the deadline.
    pub bound: Nanos,
    pub median: Nanos,
    pub p99: Nanos,
    pub max: Nanos,
    /// Bulk bytes beside it, of what they are alone, in parts per million; `None` where there were none.
    pub bulk_share_ppm: Option<u64>,
    /// What the slowest copy's time went into.
    pub slowest: String,
}

impl FlowRow {
    /// The bulk bytes beside it, of what they are alone, for people.
    #[must_use]
    pub fn bulk_share(&self) -> String {
        self.bulk_share_ppm.map_or_else(|| "-".to_owned(), |ppm| format!("{:.2}", ppm as f64 / 1e6))
    }
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct FlowBenchReport {
    /// Version of the JSON form.
    pub schema: u32,
    /// What the figures stand for: `emu` or `cuda`.
    pub source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imitates: Option<String>,
    pub gpu: String,
    /// Where costs came from.
    pub machine: String,
    pub commit: &'static str,
    pub rows: Vec<FlowRow>,
    /// Whether it was not interrupted.
    pub complete: bool,
    #[serde(serialize_with = "headway::path_text::one")]
    pub folder: PathBuf,
    pub warnings: Vec<String>,
}

impl FlowBenchReport {
    /// Copies of flows that missed their deadline.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.rows.iter().filter(|row| row.by == FLOW).map(|row| row.missed).sum()
    }
}

const TITLE: &str = "Flows";
const FLOW: &str = "flow";
const SHIPPED: &str = "h200-x1";
const PLAIN: &str = "plain";
/// One bulk copy.
const BULK: usize = 256 << 20;
const BULK_EMULATED: usize = 8 << 20;
const MS: Nanos = Nanos(1_000_000);
/// Where threads are too late for the shortest periods, all are so many times as long.
const LONGER: [u64; 4] = [1, 2, 5, 10];
/// How long the driver is watched without promises, at most.
const PLAIN_MAX: Nanos = Nanos(10_000_000_000);
/// How long bulk copies are alone.
const ALONE: Nanos = Nanos(1_000_000_000);

/// A copy that comes again and again.
#[derive(Clone, Debug)]
struct Load {
    name: String,
    direction: Direction,
    bytes: u64,
    period: Nanos,
    deadline: Nanos,
}

/// One copy of a load.
#[derive(Clone, Debug)]
struct Sample {
    response: Nanos,
    bound: Nanos,
    missed: bool,
    why: String,
}

/// Runs flows beside bulk copies as `options` say.
///
/// # Errors
/// [`headway::ErrorKind::Backend`], [`headway::ErrorKind::NotAccepted`] where nothing can be promised, and what devices and files refuse.
pub fn flows(options: &FlowBenchOptions, mut progress: impl FnMut(Progress)) -> Result<FlowBenchReport, Error> {
    folder::check(&options.out, TITLE)?;
    let machine = headway::machine::open(options.machine.as_deref().unwrap_or(SHIPPED))?;
    let devices = gpus::open(options.backend, options.model.as_deref(), Some(1))?;
    let about = devices[0].description();
    let (source, gpu) = (about.source.label(), about.name.clone());
    let ids = ids(Some(&machine), devices.len())?;
    // What another node taught says nothing of this one.
    let profile = if options.machine.is_some() { machine.profile.clone() } else { Default::default() };
    let copier = Copier::new(ids.into_iter().zip(devices).collect(), profile, CopyOptions::default())?;
    let is_emulated = source == "emu";
    let mut bench = Bench {
        options,
        machine: &machine,
        copier: Arc::new(copier),
        is_emulated,
        bulk: if is_emulated { BULK_EMULATED } else { BULK },
        rows: Vec::new(),
        raw: "case,by,flow,number,response_ns,bound_ns,missed,why\n".to_owned(),
        warnings: Vec::new(),
    };
    // An emulated copy goes no faster than this computer's memory, and an emulated GPU has no more of it.
    let (slower, smaller) = if is_emulated { (20, 100) } else { (1, 1) };
    let runs = |case| options.only.is_none_or(|only| only == case);
    if runs(FlowBenchCase::One) {
        bench.one(slower, &mut progress)?;
    }
    if runs(FlowBenchCase::Ten) {
        bench.ten(slower, smaller, &mut progress)?;
    }
    let Bench { rows, raw, mut warnings, .. } = bench;
    let complete = !options.interrupt.load(Ordering::Relaxed);
    warnings.extend((!complete).then(|| ENDED_EARLY.to_owned()));
    let mut report = FlowBenchReport {
        schema: 1,
        source,
        imitates: gpus::imitates(options.backend, options.model.as_deref(), Some(1))?,
        gpu,
        machine: format!("{} ({})", machine.name, machine.hash),
        commit: COMMIT,
        rows,
        complete,
        folder: options.out.clone(),
        warnings,
    };
    let folder = Folder::open(&options.out, TITLE, complete)?;
    folder.put("responses.csv", raw)?;
    report.folder = folder.summary(&summary(&report))?;
    Ok(report)
}

struct Bench<'a> {
    options: &'a FlowBenchOptions,
    machine: &'a Machine,
    copier: Arc<Copier>,
    is_emulated: bool,
    /// Bytes of one bulk copy.
    bulk: usize,
    rows: Vec<FlowRow>,
    raw: String,
    warnings: Vec<String>,
}

impl Bench<'_> {
    /// [`FlowBenchCase::One`].
    fn one(&mut self, slower: u64, progress: &mut impl FnMut(Progress)) -> Result<(), Error> {
        let load = |longer: u64| Load {
            name: "results".to_owned(),
            direction: Direction::D2h,
            bytes: 1 << 20,
            period: MS * 2 * slower * longer,
            deadline: MS * slower * longer,
        };
        let Some(longer) = self.first_promised(LONGER, |longer| vec![load(*longer)])? else {
            self.warnings.push("1 MiB out every 20 ms could not be promised within 10 ms".to_owned());
            return Ok(());
        };
        let (case, load) = ("1 MiB out of the GPU", load(longer));
        progress(Progress { done: 0, total: 3, phase: "bulk alone" });
        let alone = self.bulk_alone(Direction::D2h)?;
        progress(Progress { done: 1, total: 3, phase: "plain" });
        let (samples, moved) = self.plain(&load)?;
        self.add(case, PLAIN, &load, &samples, share(moved, alone));
        progress(Progress { done: 2, total: 3, phase: "promised" });
        let node = self.node()?;
        let (samples, moved) = self.promised(&node, std::slice::from_ref(&load), &[Direction::D2h])?;
        self.add(case, FLOW, &load, &samples[0], share(moved, alone));
        Ok(())
    }

    /// [`FlowBenchCase::Ten`].
    fn ten(&mut self, slower: u64, smaller: u64, progress: &mut impl FnMut(Progress)) -> Result<(), Error> {
        const PERIODS_MS: [u64; 5] = [1, 5, 20, 50, 200];
        /// Where threads are too late for the shortest period, it is so long, the second one at least twice that, and so on.
        const SHORTEST_MS: [u64; 4] = [1, 2, 4, 8];
        progress(Progress { done: 0, total: 2, phase: "ten flows: admission" });
        let both = [Direction::H2d, Direction::D2h];
        let node = self.node()?;
        let rate =
            |direction| node.engines().iter().find(|engine| engine.direction == direction).map_or(1, |of| of.rate.0);
        let loads = |shortest: u64, percent: u64| -> Vec<Load> {
            let each = |direction: Direction| {
                std::array::from_fn::<_, 5, _>(|at| {
                    let period = MS * PERIODS_MS[at].max(shortest * (at as u64 + 1)) * slower;
                    let bytes = u128::from(rate(direction)) * u128::from(period.0) / 1_000_000_000;
                    let bytes = (bytes * u128::from(percent) / 100 / PERIODS_MS.len() as u128) as u64 / smaller;
                    let name = format!("{direction} {period}");
                    Load { name, direction, bytes: bytes.max(1 << 12), period, deadline: period }
                })
            };
            both.into_iter().flat_map(each).collect()
        };
        let tries = (3..=9).rev().flat_map(|tenths| SHORTEST_MS.map(|shortest| (shortest, tenths * 10)));
        let promised = self.first_promised(tries, |(shortest, percent)| loads(*shortest, *percent))?;
        let Some((shortest, percent)) = promised else {
            self.warnings.push("ten flows could not be promised, even with periods from 8 ms on".to_owned());
            return Ok(());
        };
        progress(Progress { done: 1, total: 2, phase: "ten flows" });
        let loads = loads(shortest, percent);
        let asked = |load: &Load| load.bytes as f64 / load.period.0 as f64 * 1e9 / rate(load.direction) as f64;
        self.warnings.push(format!(
            "ten flows were promised at {:.1} % of each engine's worst-case rate, with periods of {} to {}",
            100.0 * loads.iter().map(asked).sum::<f64>() / both.len() as f64,
            loads[0].period,
            loads[loads.len() - 1].period
        ));
        let (samples, _) = self.promised(&node, &loads, &both)?;
        for (load, samples) in loads.iter().zip(&samples) {
            self.add("ten flows, both directions", FLOW, load, samples, None);
        }
        Ok(())
    }

    /// The first of `tries` whose loads can be promised together.
    fn first_promised<T>(
        &self,
        tries: impl IntoIterator<Item = T>,
        loads: impl Fn(&T) -> Vec<Load>,
    ) -> Result<Option<T>, Error> {
        for one in tries {
            if self.is_promised(&loads(&one))? {
                return Ok(Some(one));
            }
        }
        Ok(None)
    }

    fn is_promised(&self, loads: &[Load]) -> Result<bool, Error> {
        let node = self.node()?;
        let mut flows = Vec::new();
        for load in loads {
            match node.open(contract(load)) {
                Ok(flow) => flows.push(flow),
                Err(refused) if refused.kind() == ErrorKind::NotAccepted => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn node(&self) -> Result<FlowNode, Error> {
        let node = FlowNode::of(Arc::clone(&self.copier), self.machine)?;
        Ok(match &self.options.broker {
            Some(socket) => node.under(Some(socket))?,
            None => node,
        })
    }

    /// Bytes a second of bulk copies that have the engine for themselves.
    fn bulk_alone(&self, direction: Direction) -> Result<u64, Error> {
        let over = AtomicBool::new(false);
        let places = ends(&self.copier, self.bulk)?;
        thread::scope(|scope| {
            let bulk = scope.spawn(|| self.bulk(direction, &places, &over));
            clock::sleep_until(clock::now().saturating_add(ALONE));
            over.store(true, Ordering::Relaxed);
            bulk.join().expect("it does not panic")
        })
    }

    /// Copies in bulk until it is over: bytes a second.
    fn bulk(&self, direction: Direction, places: &[FlowPlace; 2], over: &AtomicBool) -> Result<u64, Error> {
        let [device, host] = places;
        let (start, mut moved) = (clock::now(), 0_u64);
        while !over.load(Ordering::Relaxed) {
            let how = How::By(Method::Dma);
            self.copier.copy_pinned(direction, device.at(), host.at(), self.bulk, how)?;
            moved += self.bulk as u64;
        }
        Ok(rate(moved, clock::now().saturating_sub(start)))
    }

    /// Each load as a flow on a thread of its own, beside bulk copies in `directions`: the samples of each, and bulk bytes a second.
    fn promised(
        &self,
        node: &FlowNode,
        loads: &[Load],
        directions: &[Direction],
    ) -> Result<(Vec<Vec<Sample>>, u64), Error> {
        // To lock memory keeps the driver to itself for longer than a deadline: all is there before the first copy.
        let of = |load: &Load| ends(&self.copier, load.bytes as usize);
        let places = loads.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let bulk_places = directions.iter().map(|_| ends(&self.copier, self.bulk)).collect::<Result<Vec<_>, _>>()?;
        let flows = loads.iter().map(|load| node.open(contract(load))).collect::<Result<Vec<_>, _>>()?;
        let over = AtomicBool::new(false);
        let end = clock::now().saturating_add(self.options.duration);
        thread::scope(|scope| {
            let over = &over;
            let bulk: Vec<_> = directions
                .iter()
                .zip(&bulk_places)
                .map(|(direction, places)| scope.spawn(move || self.bulk(*direction, places, over)))
                .collect();
            let run = |load: &Load, [device, host]: &[FlowPlace; 2], flow: &headway::flow::Flow| {
                let bytes = load.bytes as usize;
                self.again(load, end, || {
                    let copy = FlowCopy::Buffers { device: device.clone(), host: host.clone(), bytes };
                    let job = flow.copy(copy)?.job;
                    let why: Vec<String> = job.blame.iter().map(ToString::to_string).collect();
                    Ok(Sample { response: job.response, bound: job.bound, missed: job.missed, why: why.join("; ") })
                })
            };
            let threads: Vec<_> = loads
                .iter()
                .zip(&places)
                .zip(&flows)
                .map(|((load, places), flow)| scope.spawn(move || run(load, places, flow)))
                .collect();
            let samples: Result<Vec<_>, Error> =
                threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect();
            over.store(true, Ordering::Relaxed);
            let moved =
                bulk.into_iter().map(|thread| thread.join().expect("it does not panic")).sum::<Result<u64, _>>();
            Ok((samples?, moved?))
        })
    }

    /// Calls `copy` once each period until `end`, in a real-time class where that can be had.
    fn again(
        &self,
        load: &Load,
        end: Nanos,
        mut copy: impl FnMut() -> Result<Sample, Error>,
    ) -> Result<Vec<Sample>, Error> {
        // Without the class the figures have the host's wake-ups. The threads of an emulated GPU would get no CPU beside it.
        if !self.is_emulated {
            let _ = sched::request_realtime();
        }
        let mut samples = Vec::new();
        let mut next = clock::now();
        while next < end && !self.options.interrupt.load(Ordering::Relaxed) {
            clock::sleep_until(next);
            samples.push(copy()?);
            next = next.saturating_add(load.period).max(clock::now());
        }
        Ok(samples)
    }

    /// The load on a queue of its own beside whole bulk copies on another, as the driver orders them.
    fn plain(&self, load: &Load) -> Result<(Vec<Sample>, u64), Error> {
        let gpu = Arc::clone(&self.copier.gpus()[0]);
        let before = gpu.set_turn(None);
        let (over, moved) = (AtomicBool::new(false), AtomicU64::new(0));
        let end = clock::now().saturating_add(self.options.duration.min(PLAIN_MAX));
        let start = clock::now();
        let samples = thread::scope(|scope| {
            let bulk = scope.spawn(|| -> Result<(), Error> {
                let mut lane = Lane::new(gpu.as_ref(), self.bulk, &self.copier)?;
                while !over.load(Ordering::Relaxed) {
                    lane.copy()?;
                    moved.fetch_add(self.bulk as u64, Ordering::Relaxed);
                }
                Ok(())
            });
            let mut lane = Lane::new(gpu.as_ref(), load.bytes as usize, &self.copier)?;
            let samples = self.again(load, end, || {
                let released = clock::now();
                lane.copy()?;
                let response = clock::now().saturating_sub(released);
                let (bound, missed) = (load.deadline, response > load.deadline);
                Ok(Sample { response, bound, missed, why: String::new() })
            });
            over.store(true, Ordering::Relaxed);
            bulk.join().expect("it does not panic")?;
            samples
        });
        gpu.set_turn(before);
        Ok((samples?, rate(moved.load(Ordering::Relaxed), clock::now().saturating_sub(start))))
    }

    fn add(
        &mut self,
        case: &'static str,
        by: &'static str,
        load: &Load,
        samples: &[Sample],
        bulk_share_ppm: Option<u64>,
    ) {
        for (number, Sample { response, bound, missed, why }) in samples.iter().enumerate() {
            let name = &load.name;
            let _ = writeln!(self.raw, "\"{case}\",{by},{name},{number},{},{},{missed},\"{why}\"", response.0, bound.0);
        }
        let times: Vec<Nanos> = samples.iter().map(|sample| sample.response).collect();
        let Some(figures) = SampleFigures::of(&times) else {
            self.warnings.push(format!("`{}` made no copy", load.name));
            return;
        };
        let slowest = samples.iter().max_by_key(|sample| sample.response);
        let count = |of: fn(&Sample) -> bool| samples.iter().filter(|sample| of(sample)).count() as u64;
        self.rows.push(FlowRow {
            case,
            by,
            flow: load.name.clone(),
            direction: load.direction,
            bytes: Bytes(load.bytes),
            period: load.period,
            deadline: load.deadline,
            n: samples.len() as u64,
            missed: count(|sample| sample.missed),
            beyond_bound: count(|sample| sample.response > sample.bound),
            bound: samples.iter().map(|sample| sample.bound).max().unwrap_or_default(),
            median: figures.median,
            p99: figures.p99,
            max: figures.max,
            bulk_share_ppm,
            slowest: slowest.map(|sample| sample.why.clone()).unwrap_or_default(),
        });
    }
}

/// New memory of the GPU, and new pinned memory.
fn ends(copier: &Copier, bytes: usize) -> Result<[FlowPlace; 2], Error> {
    Ok([FlowPlace::device(copier, 0, bytes)?, FlowPlace::pinned(copier, 0, bytes)?])
}

fn contract(load: &Load) -> FlowContract {
    let Load { name, direction, bytes, period, deadline } = load.clone();
    FlowContract { name, gpu: 0, direction, bytes: Bytes(bytes), period, deadline, on_miss: OnMiss::Finish }
}

fn rate(bytes: u64, time: Nanos) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(time.0.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn share(now: u64, alone: u64) -> Option<u64> {
    Some(u64::try_from(u128::from(now) * 1_000_000 / u128::from(alone.max(1))).unwrap_or(u64::MAX))
}

/// A queue of its own, with memory at both ends.
struct Lane {
    queue: Box<dyn Queue>,
    device: FlowPlace,
    host: FlowPlace,
    bytes: usize,
}

impl Lane {
    fn new(gpu: &dyn Gpu, bytes: usize, copier: &Copier) -> Result<Self, Error> {
        let queue = gpu.queue(false)?;
        let [device, host] = ends(copier, bytes)?;
        Ok(Self { queue, device, host, bytes })
    }

    /// One whole copy out of the GPU.
    fn copy(&mut self) -> Result<(), Error> {
        let from = self.device.buffer.claim(0..self.bytes, Access::Read)?;
        let to = self.host.buffer.claim(0..self.bytes, Access::Write)?;
        self.queue.submit(Operation::Copy { from, to }, 0)?;
        loop {
            if let Some(done) = self.queue.poll() {
                return Ok(done.result?);
            }
            sched::yield_now();
        }
    }
}

fn summary(report: &FlowBenchReport) -> String {
    let mut text = format!("# {TITLE}\n\n");
    if !report.complete {
        let _ = writeln!(text, "{ENDED_EARLY}.\n");
    }
    let _ = writeln!(
        text,
        "Source `{}`, {}, machine {}, commit {}, seed none.\n\n`headway bench flows`: each response beside the bound that was promised; \
         `plain` has whole bulk copies and no promise.\n",
        report.source, report.gpu, report.machine, report.commit
    );
    text.push_str(
        "| case | by | flow | bytes | deadline | n | missed | beyond bound | median | p99 | max | bound | bulk |\n",
    );
    text.push_str("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for row in &report.rows {
        let bulk = row.bulk_share();
        let FlowRow { case, by, flow, bytes, deadline, n, missed, beyond_bound, median, p99, max, bound, .. } = row;
        let _ = writeln!(
            text,
            "| {case} | {by} | {flow} | {bytes} | {deadline} | {n} | {missed} | {beyond_bound} | {median} | {p99} | {max} | {bound} | {bulk} |"
        );
    }
    for row in report.rows.iter().filter(|row| !row.slowest.is_empty()) {
        let _ = write!(text, "\n- slowest copy of `{}` ({}): {}", row.flow, row.max, row.slowest);
    }
    for warning in &report.warnings {
        let _ = write!(text, "\n- {warning}");
    }
    text.push('\n');
    text
}
