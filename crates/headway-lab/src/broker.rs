//! What arbitration between processes costs: a leased engine lock, a token, an engine handed from one process to another.
//!
//! The broker and the second client are processes of this program that always end. No GPU is involved: times are those of
//! the host, from its monotonic clock, which all processes share. Two readings of it are part of every sample.

mod contend;
mod judge;
mod processes;
mod roles;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::{fs, thread};

use headway_broker::Client;
use headway_broker::client::BrokerTask;
use headway_core::decisions::engine_lock::{EngineWork, LockedOperation};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos};
use headway_os::{affinity, clock, ipc, sched};
use serde::Serialize;

use self::processes::{BrokerProcess, Rest};
use crate::Error;
use headway::COMMIT;
use headway::run::Progress;
use headway_measure::bench::{Target, TargetOutcome};
use headway_measure::folder::{self, Folder};
use headway_measure::sample::{Effort, SampleFigures, series};

pub(crate) use self::roles::take_part;

/// How much to measure and where to write it.
#[derive(Clone, Debug)]
pub struct BrokerBenchOptions {
    /// Folder for figures and summary.
    pub out: PathBuf,
    /// Fewer samples: a few seconds in all, instead of half a minute.
    pub quick: bool,
    /// Ends the benchmark early when it becomes true; what is there is written.
    pub interrupt: Arc<AtomicBool>,
}

impl BrokerBenchOptions {
    /// How long this takes, about.
    #[must_use]
    pub const fn estimate(&self) -> Nanos {
        Nanos(if self.quick { 5 } else { 30 } * NANOS_PER_SECOND)
    }
}

/// The figures of one thing that was timed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimingRow {
    pub what: &'static str,
    pub n: u32,
    /// Of half of them.
    pub median: Nanos,
    /// Of 99 % of them; of fewer than 100 it is left out.
    pub p99: Option<Nanos>,
    /// Of the slowest.
    pub max: Nanos,
}

/// The machine that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeasuredMachine {
    /// Model of its CPUs.
    pub cpu: String,
    /// CPUs allowed to this process.
    pub cpus: usize,
    pub kernel: String,
    /// Whether it runs under a hypervisor, where waking a CPU that idles costs more.
    pub is_virtual: bool,
    /// Whether the kernel permits real-time priorities.
    pub realtime: String,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct BrokerBenchReport {
    /// Version of the JSON form.
    pub schema: u32,
    pub machine: MeasuredMachine,
    /// Commit of the program.
    pub commit: &'static str,
    /// Every row.
    pub rows: Vec<TimingRow>,
    /// Every target.
    pub targets: Vec<Target>,
    /// Whether it was not interrupted.
    pub complete: bool,
    #[serde(serialize_with = "headway::path_text::one")]
    pub folder: PathBuf,
    /// What could not be measured, and why.
    pub warnings: Vec<String>,
}

const TITLE: &str = "Arbitration between processes";

const LEASED: &str = "leased engine lock, acquire and release";
const TOKEN_BUSY: &str = "token, request to grant, one after the other";
const TOKEN_PACED: &str = "token, request to grant, every millisecond";
const SPINS: &str = "engine hand-over, next holder spins";
const SLEEPS: &str = "engine hand-over, next holder sleeps";
const PATIENT: &str = "for comparison: next holder spins for a millisecond";
const TOKEN_SOON: &str = "a broker that sleeps soon: token every millisecond";
const SPINS_SOON: &str = "a broker that sleeps soon: next holder spins";
const SLEEPS_SOON: &str = "a broker that sleeps soon: next holder sleeps";
const TOKEN_NEVER: &str = "a broker that never sleeps: token every millisecond";
const SPINS_NEVER: &str = "a broker that never sleeps: next holder spins";
const SLEEPS_NEVER: &str = "a broker that never sleeps: next holder sleeps";
const WAKE: &str = "for comparison: futex wake-up of a thread that sleeps";
const CLOCK: &str = "for comparison: two readings of the clock";

/// A waiter that asked at least this long ago sleeps: several times as long as it spins.
const ASLEEP: Nanos = Nanos(150_000);
/// One that asked at most this long ago looks still.
const AWAKE: Nanos = Nanos(40_000);
/// How long a waiter looks before it sleeps.
const USUAL_LOOK: Nanos = Nanos(50_000);
const LONG_LOOK: Nanos = Nanos(1_000_000);
/// How long an engine is held where the waiter is to spin, and where it is to sleep.
const HOLD_SHORT: Nanos = Nanos(10_000);
const HOLD_LONG: Nanos = Nanos(300_000);
/// Time between two paced requests.
const PACE: Nanos = Nanos(1_000_000);

const EXECUTE: LockedOperation =
    LockedOperation { work: EngineWork::Execute, bytes: Bytes(0), predicted: Nanos(0), budget: Nanos(0) };

/// Measures as `options` say, in at most a minute. A part that fails becomes a warning; the others are written.
///
/// # Errors
/// [`headway::ErrorKind::Io`].
pub fn measure(options: &BrokerBenchOptions, mut progress: impl FnMut(Progress)) -> Result<BrokerBenchReport, Error> {
    folder::check(&options.out, TITLE)?;
    let mut complete = true;
    let mut bench = Bench { options, samples: Vec::new(), warnings: Vec::new() };
    type Part = fn(&mut Bench<'_>, &BrokerProcess) -> Result<(), Error>;
    let parts: [(&'static str, Rest, Part); 12] = [
        ("comparison", Rest::Usual, |bench, _| bench.comparison()),
        ("lease", Rest::Usual, |bench, broker| bench.lease(broker)),
        ("tokens", Rest::Usual, |bench, broker| bench.tokens(broker, [(TOKEN_BUSY, None), (TOKEN_PACED, Some(PACE))])),
        ("spinning", Rest::Usual, |bench, broker| bench.hand_over(broker, SPINS, HOLD_SHORT, USUAL_LOOK)),
        ("sleeping", Rest::Usual, |bench, broker| bench.hand_over(broker, SLEEPS, HOLD_LONG, USUAL_LOOK)),
        ("patient", Rest::Usual, |bench, broker| bench.hand_over(broker, PATIENT, HOLD_LONG, LONG_LOOK)),
        ("sleeps soon", Rest::Soon, |bench, broker| bench.tokens(broker, [(TOKEN_SOON, Some(PACE))])),
        ("sleeps soon", Rest::Soon, |bench, broker| bench.hand_over(broker, SPINS_SOON, HOLD_SHORT, USUAL_LOOK)),
        ("sleeps soon", Rest::Soon, |bench, broker| bench.hand_over(broker, SLEEPS_SOON, HOLD_LONG, USUAL_LOOK)),
        ("never sleeps", Rest::Never, |bench, broker| bench.tokens(broker, [(TOKEN_NEVER, Some(PACE))])),
        ("never sleeps", Rest::Never, |bench, broker| bench.hand_over(broker, SPINS_NEVER, HOLD_SHORT, USUAL_LOOK)),
        ("never sleeps", Rest::Never, |bench, broker| bench.hand_over(broker, SLEEPS_NEVER, HOLD_LONG, USUAL_LOOK)),
    ];
    let total = parts.len() as u64;
    for ((phase, rest, part), done) in parts.into_iter().zip(0..) {
        if options.interrupt.load(Ordering::Relaxed) {
            complete = false;
            bench.warnings.push(folder::ENDED_EARLY.to_owned());
            break;
        }
        progress(Progress { phase, done, total });
        if let Err(error) = BrokerProcess::start(rest).and_then(|broker| part(&mut bench, &broker)) {
            bench.warnings.push(format!("{phase}: {}", chain(&error)));
        }
    }
    let row = |(what, samples): &(&'static str, Vec<Nanos>)| {
        let figures = SampleFigures::of(samples)?;
        Some(TimingRow { what, n: figures.n, median: figures.median, p99: figures.tail(), max: figures.max })
    };
    let rows: Vec<TimingRow> = bench.samples.iter().filter_map(row).collect();
    let mut report = BrokerBenchReport {
        schema: 1,
        machine: machine(),
        commit: COMMIT,
        targets: judge::judge(&rows),
        rows,
        complete,
        folder: options.out.clone(),
        warnings: bench.warnings,
    };
    report.write(&bench.samples)?;
    Ok(report)
}

struct Bench<'a> {
    options: &'a BrokerBenchOptions,
    samples: Vec<(&'static str, Vec<Nanos>)>,
    warnings: Vec<String>,
}

impl Bench<'_> {
    /// At most `n` samples within a time that keeps the whole below a minute.
    fn effort(&self, n: u32) -> Effort {
        let (n_max, time) = if self.options.quick { (n / 10, 500_000_000) } else { (n, 4_000_000_000) };
        Effort { warm_up: 20, n_min: 1, n_max, time: Nanos(time) }
    }

    fn comparison(&mut self) -> Result<(), Error> {
        let clock = series(self.effort(100_000), clock::now, |_| Ok::<_, Error>(timed(|| ())))?;
        self.samples.push((CLOCK, clock));
        let wake = wake(self.effort(2_000))?;
        self.samples.push((WAKE, wake));
        Ok(())
    }

    fn lease(&mut self, broker: &BrokerProcess) -> Result<(), Error> {
        let client = broker.connect()?;
        let mut task = task(&client)?;
        let mut token = task.acquire(clock::now(), 0, Some(processes::PATIENCE)).map_err(headway::Failure::Client)?;
        let until = clock::now().saturating_add(Nanos(1_000_000_000));
        while client.status().map_err(headway::Failure::Client)?.gpus.iter().all(|gpu| gpu.leased_to.is_none()) {
            if clock::now() > until {
                return Err(headway::Failure::Options("no engine was leased within a second").into());
            }
        }
        let samples = series(self.effort(1_000_000), clock::now, |_| {
            let start = clock::now();
            drop(black_box(token.engine(EXECUTE).map_err(headway::Failure::Client)?));
            Ok::<_, Error>(clock::now().saturating_sub(start))
        })?;
        self.samples.push((LEASED, samples));
        Ok(())
    }

    fn tokens<const N: usize>(
        &mut self,
        broker: &BrokerProcess,
        rows: [(&'static str, Option<Nanos>); N],
    ) -> Result<(), Error> {
        let client = broker.connect()?;
        let mut task = task(&client)?;
        for (what, pace) in rows {
            let n = if pace.is_some() { 3_000 } else { 100_000 };
            let samples = series(self.effort(n), clock::now, |_| {
                if let Some(pace) = pace {
                    clock::sleep_until(clock::now().saturating_add(pace));
                }
                let start = clock::now();
                let token = task.acquire(start, 0, Some(processes::PATIENCE)).map_err(headway::Failure::Client)?;
                let time = clock::now().saturating_sub(start);
                token.release(Nanos(1_000));
                Ok::<_, Error>(time)
            })?;
            self.samples.push((what, samples));
        }
        Ok(())
    }

    /// This process and another one take one engine in turns, each as soon as it can.
    fn hand_over(&mut self, broker: &BrokerProcess, what: &'static str, hold: Nanos, look: Nanos) -> Result<(), Error> {
        let effort = self.effort(20_000);
        let waits = contend::both(broker, hold, look, effort)?;
        let fits = |waited: Nanos| if hold == HOLD_LONG { waited >= ASLEEP } else { waited < AWAKE };
        let samples = waits.into_iter().filter(|wait| fits(wait.waited)).map(|wait| wait.handed).collect();
        self.samples.push((what, samples));
        Ok(())
    }
}

/// An error with its causes.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

/// A task that may ask as often as it likes.
fn task(client: &Client) -> Result<BrokerTask<'_>, Error> {
    Ok(client.register(processes::shape()).map_err(headway::Failure::Client)?)
}

fn timed(work: impl FnOnce()) -> Nanos {
    let start = clock::now();
    work();
    clock::now().saturating_sub(start)
}

/// From the call that wakes a thread to its next instruction: what nobody who sleeps can be faster than here.
fn wake(effort: Effort) -> Result<Vec<Nanos>, Error> {
    let (word, woken) = (AtomicU32::new(0), AtomicU32::new(0));
    let at = std::sync::atomic::AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            loop {
                while word.load(Ordering::Acquire) == round {
                    let _ = ipc::wait(&word, round, None);
                }
                at.store(clock::now().0, Ordering::Release);
                round = word.load(Ordering::Acquire);
                woken.store(round, Ordering::Release);
                if round == u32::MAX {
                    return;
                }
            }
        });
        let samples = series(effort, clock::now, |number| {
            clock::sleep_until(clock::now().saturating_add(HOLD_LONG));
            let start = clock::now();
            word.store(number + 1, Ordering::Release);
            ipc::wake(&word, 1);
            while woken.load(Ordering::Acquire) != number + 1 {
                std::hint::spin_loop();
            }
            Ok::<_, Error>(Nanos(at.load(Ordering::Acquire)).saturating_sub(start))
        });
        word.store(u32::MAX, Ordering::Release);
        ipc::wake(&word, 1);
        samples
    })
}

fn machine() -> MeasuredMachine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let line = |name: &str| info.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(':').nth(1));
    MeasuredMachine {
        cpu: line("model name").unwrap_or("unknown").trim().to_owned(),
        cpus: affinity::allowed().map_or(0, |cpus| cpus.len()),
        kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        is_virtual: line("flags").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
        realtime: sched::probe_realtime()
            .map_or_else(|error| error.to_string(), |()| "SCHED_FIFO permitted".to_owned()),
    }
}

impl BrokerBenchReport {
    /// Everything for people, in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let MeasuredMachine { cpu, cpus, kernel, is_virtual, realtime } = &self.machine;
        let guest = if *is_virtual { ", under a hypervisor" } else { "" };
        let mut text = format!(
            "# {TITLE}\n\nSource: this host, no GPU involved. {cpu}, {cpus} CPUs{guest}; {kernel}; {realtime}; commit \
             {}. The broker and two clients are processes of their own; times include two readings of the clock.\n\n\
             ## Targets\n\n| target | measured | |\n|---|---|---|\n",
            self.commit
        );
        for Target { target, measured, outcome } in &self.targets {
            let _ = writeln!(text, "| {target} | {measured} | {} |", outcome.label());
        }
        text.push_str("\n## Times\n\n| what | n | median | p99 | max |\n|---|---|---|---|---|\n");
        for TimingRow { what, n, median, p99, max } in &self.rows {
            let _ = writeln!(
                text,
                "| {what} | {n} | {median} | {} | {max} |",
                p99.map_or_else(|| "-".to_owned(), |p99| p99.to_string())
            );
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "\n{warning}");
        }
        text
    }

    fn write(&mut self, samples: &[(&'static str, Vec<Nanos>)]) -> Result<(), Error> {
        let folder = Folder::open(&self.folder, TITLE, self.complete)?;
        let mut rows = String::from("what,n,median_ns,p99_ns,max_ns\n");
        for TimingRow { what, n, median, p99, max } in &self.rows {
            let p99 = p99.map_or_else(String::new, |p99| p99.0.to_string());
            let _ = writeln!(rows, "\"{what}\",{n},{},{p99},{}", median.0, max.0);
        }
        folder.put("rows.csv", rows)?;
        // Every sample: how often each time occurred.
        let mut raw = String::from("what,ns,samples\n");
        for (what, samples) in samples {
            let mut counts = BTreeMap::new();
            samples.iter().for_each(|sample| *counts.entry(sample.0).or_insert(0u32) += 1);
            counts.into_iter().for_each(|(ns, count)| {
                let _ = writeln!(raw, "\"{what}\",{ns},{count}");
            });
        }
        folder.put("samples.csv", raw)?;
        self.folder = folder.summary(&self.markdown())?;
        Ok(())
    }

    /// Whether a target was missed.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.targets.iter().any(|target| target.outcome == TargetOutcome::NotMet)
    }
}
