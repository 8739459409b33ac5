//! The same study on a device: every method under every condition, and all pairs.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Barrier;
use std::thread;

use crate::simulation::fujii::{self, Pair, Single, Stat, Stress, TransferClass, TransferStudy, statements};
use headway_core::models::transfer::{Direction, Method};
use headway_core::units::{Bytes, Nanos};
use headway_device::gpu::{CpuReach, Gpu};
use headway_device::{Access, Buffer, DeviceError};
use headway_os::{clock, sched};
use headway_runtime::copy::{At, How};

use super::super::bench::{Bench, random, same};
use super::super::loads::Loads;
use super::super::{ExperimentResults, ExperimentSetting, RawFigures, raw_figures};
use super::{figures, measured, tables};
use crate::Error;

/// What samples of real hardware may blur in a comparison, in percent.
const SLACK_PERCENT: u64 = 5;
/// A thread in `SCHED_DEADLINE` gets this much of every period.
const DEADLINE: (Nanos, Nanos) = (Nanos(90_000_000), Nanos(100_000_000));
/// What the memory eater touches at a time.
const MEMORY: u64 = 4 << 30;
/// Fewest samples of a point.
const LEAST: usize = 5;
/// Most rounds of a pair, and how long those of one size may take.
const ROUNDS: (usize, Nanos) = (100, Nanos(20_000_000));
/// Pairs are measured up to this size.
const PAIR_MAX: u64 = 8 << 20;

/// Which method of this machine stands for each method of the paper, and how much is measured.
struct Setup<'a> {
    bench: &'a Bench,
    /// The paper's method and ours.
    methods: Vec<(Method, Method)>,
    there: Buffer,
    sizes: Vec<Bytes>,
    /// Time for the samples of one point.
    time: Nanos,
    samples: usize,
    /// Larger sizes are left out where one copy took longer than half of this.
    patience: Nanos,
    data: Vec<u8>,
}

enum Refused {
    Class(String),
    Failed(Box<Error>),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(Box::new(error))
    }
}

pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let bench = Bench::open(setting)?;
    let gpu = bench.gpu()?;
    let (methods, mut notes) = available(gpu);
    let most = if setting.quick { 64 << 10 } else { 64 << 20 };
    let window = methods.iter().find(|(paper, _)| *paper == fujii::IORW).and_then(|(_, ours)| ours.mapping());
    let reach = window.map_or(CpuReach::Device, CpuReach::Window);
    let setup = Setup {
        bench: &bench,
        there: gpu.device_buffer(2 * most, reach)?,
        sizes: fujii::grid().filter(|b| b.0 <= most as u64).step_by(if setting.quick { 4 } else { 1 }).collect(),
        time: if setting.quick { Nanos(200_000) } else { Nanos(4_000_000) },
        samples: if setting.quick { LEAST } else { 1_000 },
        patience: if setting.quick { Nanos(20_000_000) } else { Nanos(80_000_000) },
        data: random(setting.seed, most),
        methods,
    };
    let mut study = TransferStudy::default();
    for stress in Stress::ALL {
        let loads = Loads::start(stress, if setting.quick { 1 << 20 } else { MEMORY }, setting.quick)?;
        for class in [TransferClass::RealTime, TransferClass::Normal] {
            let note = match setup.singles(class, stress) {
                Ok((singles, used)) => {
                    study.singles.extend(singles);
                    format!("{}: {used}.", word(class))
                }
                Err(Refused::Class(reason)) => format!("{}: not measured, {reason}.", word(class)),
                Err(Refused::Failed(error)) => return Err(*error),
            };
            if stress == Stress::Alone {
                notes.push(note);
            }
        }
        drop(loads);
        setting.keep("fujii", bench.source, &bench.machine, tables(&study));
    }
    study.pairs = setup.pairs()?;
    notes.push(format!(
        "Every statement of the paper is asked of this machine too; other hardware is expected to differ. Comparisons allow \
         {SLACK_PERCENT} %. Pinned memory on the host. Where a size takes too long for a method, it is not measured."
    ));
    let mut tables = tables(&study);
    tables.push(setup.mapping());
    Ok(ExperimentResults {
        rows: statements(&study, SLACK_PERCENT).into_iter().map(|finding| measured(finding, bench.source)).collect(),
        notes,
        tables,
        figures: figures(&study, bench.source),
        ..ExperimentResults::new("fujii", bench.source, bench.machine.clone(), setting.seed)
    })
}

/// What this device has of the paper's methods, and notes on what it has not.
fn available(gpu: &dyn Gpu) -> (Vec<(Method, Method)>, Vec<String>) {
    let mut methods = vec![(fujii::DMA, fujii::DMA)];
    let mut notes = Vec::new();
    let (windows, residents) = (gpu.windows(), gpu.residents());
    let mut note = |form: &dyn Display, usable: &Result<(), DeviceError>| {
        notes.extend(usable.as_ref().err().map(|error| format!("{form}: {error}.")));
    };
    windows.iter().for_each(|(mapping, usable)| note(mapping, usable));
    residents.iter().for_each(|(shape, usable)| note(shape, usable));
    if let Some((mapping, _)) = windows.iter().find(|(_, usable)| usable.is_ok()) {
        methods.push((fujii::IORW, Method::Window(Some(*mapping))));
        methods.push((fujii::MEMWND, Method::PagedWindow(Some(*mapping))));
    }
    let present = |method: &Method| {
        residents.iter().any(|(shape, usable)| Method::Resident(Some(*shape)) == *method && usable.is_ok())
    };
    methods.extend([fujii::HUB, fujii::GPC, fujii::GPC4].into_iter().filter(present).map(|method| (method, method)));
    (methods, notes)
}

/// The class in notes.
const fn word(class: TransferClass) -> &'static str {
    match class {
        TransferClass::RealTime => "Real-time",
        TransferClass::Normal => "Normal",
    }
}

/// Puts the calling thread into the class; says which it is.
fn enter(class: TransferClass) -> Result<String, String> {
    if class == TransferClass::Normal {
        return Ok("SCHED_OTHER".to_owned());
    }
    let refused = match sched::request_realtime() {
        Ok(class) => return Ok(class.to_string()),
        Err(error) => error.to_string(),
    };
    let (runtime, period) = DEADLINE;
    match sched::request_deadline(runtime, period) {
        Ok(class) => Ok(format!("{class}, {runtime} of every {period} ({refused})")),
        Err(error) => Err(format!("{refused}; {error}")),
    }
}

impl Setup<'_> {
    /// Every method, direction and size by a thread of `class`; and which scheduling class that is here.
    fn singles(&self, class: TransferClass, stress: Stress) -> Result<(BTreeMap<Single, Stat>, String), Refused> {
        let measure = || {
            let used = enter(class).map_err(Refused::Class)?;
            let mut singles = BTreeMap::new();
            for direction in fujii::DIRECTIONS {
                for (paper, ours) in &self.methods {
                    for (bytes, stat) in self.curve(*ours, direction)? {
                        singles.insert(Single { method: *paper, direction, bytes, class, stress }, stat);
                    }
                }
            }
            Ok((singles, used))
        };
        // A thread of its own: the class ends with it.
        thread::scope(|scope| scope.spawn(measure).join())
            .unwrap_or_else(|_| Err(Error::from(headway::Failure::Options("a measuring thread panicked")).into()))
    }

    fn curve(&self, method: Method, direction: Direction) -> Result<Vec<(Bytes, Stat)>, Error> {
        let mut points = Vec::new();
        let host = self.bench.pinned(self.data.len())?;
        for &bytes in &self.sizes {
            let len = bytes.0 as usize;
            self.prepare(&host, direction, len, 0)?;
            // The first brings up what the method needs.
            self.once(method, direction, &host, len, 0)?;
            let until = clock::now().saturating_add(self.time);
            let mut samples: Vec<Nanos> = Vec::new();
            while samples.len() < self.samples && (samples.len() < LEAST || clock::now() < until) {
                samples.push(self.once(method, direction, &host, len, 0)?);
                if samples.len() >= LEAST && samples.last() > Some(&self.patience) {
                    break;
                }
            }
            self.check(&host, direction, len, 0)?;
            let Some(stat) = Stat::of(&samples) else { break };
            points.push((bytes, stat));
            if stat.mean.0 > self.patience.0 / 2 {
                break;
            }
        }
        Ok(points)
    }

    /// Random bytes at the source, none at the destination.
    fn prepare(&self, host: &Buffer, direction: Direction, len: usize, at: usize) -> Result<(), Error> {
        let zeros = vec![0; len];
        let (there, here) = match direction {
            Direction::H2d => (&zeros[..], &self.data[..len]),
            _ => (&self.data[..len], &zeros[..]),
        };
        let device = At { buffer: &self.there, offset: at };
        self.bench.copier.copy_in(device, there, How::By(Method::Pageable))?;
        let mut span = host.claim(0..len, Access::Write)?;
        span.bytes_mut()?.copy_from_slice(here);
        Ok(())
    }

    fn check(&self, host: &Buffer, direction: Direction, len: usize, at: usize) -> Result<(), Error> {
        if direction == Direction::H2d {
            let mut back = vec![0; len];
            let device = At { buffer: &self.there, offset: at };
            self.bench.copier.copy_out(&mut back, device, How::By(Method::Pageable))?;
            return same("fujii", &back, &self.data[..len]);
        }
        let span = host.claim(0..len, Access::Read)?;
        same("fujii", span.bytes()?, &self.data[..len])
    }

    /// One copy from or to pinned memory.
    fn once(&self, method: Method, direction: Direction, host: &Buffer, len: usize, at: usize) -> Result<Nanos, Error> {
        let (device, host) = (At { buffer: &self.there, offset: at }, At { buffer: host, offset: 0 });
        let before = clock::now();
        self.bench.copier.copy_pinned(direction, device, host, len, How::By(method))?;
        Ok(clock::now() - before)
    }

    /// Makespans of all pairs of methods.
    fn pairs(&self) -> Result<BTreeMap<Pair, Stat>, Error> {
        let mut pairs = BTreeMap::new();
        let half = self.data.len();
        for direction in fujii::DIRECTIONS {
            for (at, first) in self.methods.iter().enumerate() {
                for second in &self.methods[at..] {
                    let hosts = [self.bench.pinned(half)?, self.bench.pinned(half)?];
                    for &bytes in self.sizes.iter().filter(|bytes| bytes.0 <= PAIR_MAX) {
                        let len = bytes.0 as usize;
                        self.prepare(&hosts[0], direction, len, 0)?;
                        self.prepare(&hosts[1], direction, len, half)?;
                        let both = [(first.1, &hosts[0]), (second.1, &hosts[1])];
                        let trial = self.race(direction, len, both, 1)?;
                        let each = trial.first().map_or(1, |time| time.0.max(1));
                        let rounds = (ROUNDS.1.0 / each).clamp(LEAST as u64, ROUNDS.0 as u64) as usize;
                        let samples = self.race(direction, len, both, rounds.min(self.samples))?;
                        self.check(&hosts[0], direction, len, 0)?;
                        self.check(&hosts[1], direction, len, half)?;
                        let Some(stat) = Stat::of(&samples) else { break };
                        pairs.insert(Pair::new(first.0, second.0, direction, bytes), stat);
                        if stat.mean.0 > self.patience.0 / 8 {
                            break;
                        }
                    }
                }
            }
        }
        Ok(pairs)
    }

    /// Two threads that start together, `rounds` times; from the start to the later end.
    fn race(
        &self,
        direction: Direction,
        len: usize,
        [(first, one), (second, two)]: [(Method, &Buffer); 2],
        rounds: usize,
    ) -> Result<Vec<Nanos>, Error> {
        // The first round brings up what the methods need.
        let rounds = rounds + 1;
        let barrier = Barrier::new(2);
        let runner = |method, host: &Buffer, at: usize| -> Result<Vec<(Nanos, Nanos)>, Error> {
            let mut failed = None;
            let mut times = Vec::with_capacity(rounds);
            for _ in 0..rounds {
                barrier.wait();
                let begun = clock::now();
                // Both threads meet in every round, whatever happens to one.
                if let Err(error) = self.once(method, direction, host, len, at) {
                    failed = failed.or(Some(error));
                }
                times.push((begun, clock::now()));
            }
            failed.map_or(Ok(times), Err)
        };
        let (a, b) = thread::scope(|scope| {
            let other = scope.spawn(|| runner(second, two, self.data.len()));
            let own = runner(first, one, 0);
            (own, other.join().unwrap_or_else(|_| Err(headway::Failure::Options("a measuring thread panicked").into())))
        });
        let (a, b) = (a?, b?);
        Ok(a.iter().zip(&b).skip(1).map(|(a, b)| a.1.max(b.1) - a.0.min(b.0)).collect())
    }

    fn mapping(&self) -> RawFigures {
        raw_figures!("methods", &self.methods, |(paper, ours)| Columns {
            paper: fujii::name(*paper),
            ours: ours.to_string(),
        })
    }
}
