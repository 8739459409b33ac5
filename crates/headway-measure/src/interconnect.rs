//! Links and limits of a node: sets of copies measured, a machine fitted to them, and checked with random batches that it was
//! not fitted to (specification of messages, 1.5).

use std::collections::BTreeMap;
use std::sync::Arc;

use headway_core::files::machine::{Calibration, Machine};
use headway_core::interconnect::fit::FitError;
use headway_core::interconnect::{Network, TrialErrors};
use headway_core::models::transfer::Stamp;
use headway_core::units::{NANOS_PER_SECOND, Nanos};
use headway_device::gpu::Gpu;
use headway_device::{DeviceError, DeviceSource, Engines};
use headway_os::clock;

use super::batches::{BatchDraw, BatchTiming, Lazy, Routes, TrialBlock};
use super::fit::Observed;
use super::sample::Effort;
use super::session::Session;
use super::sets::{Rates, Set, SetMemory, SetPace};
use super::{chunks, kernels, links, sets, small_batches};
use crate::Error;

/// Repetitions of each random batch.
const REPEATS: usize = 3;
/// Repetitions of each small batch whose time gives set-ups.
const SETUP_REPEATS: usize = 15;
/// Seed of the batches that a machine is checked with.
const SEED: u64 = 0x6261_7463_6865_7321;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// How long sets run.
    pub pace: SetPace,
    /// Memory for the copies of one GPU.
    pub room: SetMemory,
    /// How often it is looked how late the host learns of an end.
    pub jitter: Effort,
    /// How long a thread of the driver's class is watched, which sleeps and polls as the driver does.
    pub driver: Nanos,
    /// Random batches that the machine is checked with.
    pub batches: usize,
    /// How long more such batches are run, one after the other, for what happens now and then.
    pub watch: Nanos,
}

/// The machine called `name` that explains what was measured on `gpus`, with what was measured.
pub fn calibrate(
    session: &mut Session<'_>,
    gpus: &[Arc<dyn Gpu>],
    device: &mut Engines,
    scope: &Scope,
    (name, stamp): (&str, &Stamp),
) -> Result<(Machine, Observed), Error> {
    let mut bed = Lazy::new(gpus, scope.room);
    let reaches = |from: usize, to: usize| from != to && gpus[from].reaches(gpus[to].id());
    let sets = sets::sets(gpus.len(), reaches);
    let rates = measure_sets(session, &mut bed, &sets, scope.pace)?;
    let setups = links::setups(session, &mut bed, (&sets, &rates), SETUP_REPEATS)?;
    let jitter = kernels::jitter(session, device, scope.jitter)?;
    let watch_time = scope.driver.saturating_add(scope.watch);
    let driver_watch = kernels::driver_watch(session, device.description().source, watch_time)?;
    // The probe for the jitter spins. A driver that the host wakes late, or stops, is late beyond that.
    let jitter = jitter.saturating_add(driver_watch.worst());
    let (sets, rates) = sets.into_iter().zip(rates).filter(|(_, rates)| !rates.0.is_empty()).unzip();
    let observed = Observed { sets, rates, setups, jitter };
    let mut machine = observed.machine(name, gpus, stamp)?;
    if let Some(calibration) = &mut machine.calibration {
        calibration.driver_watch = Some(driver_watch);
    }
    // The threads of an emulated GPU compete for CPUs with those that are watched.
    let is_cuda = device.description().source == DeviceSource::Cuda;
    let chunk_watch = match gpus.first() {
        Some(gpu) if is_cuda => chunks::watch(session, gpu, &machine, watch_time)?,
        _ => BTreeMap::new(),
    };
    if let Some(calibration) = &mut machine.calibration {
        calibration.chunk_watch = chunk_watch;
    }
    small_batches::put(&mut machine, &small_batches::measure(session, &mut bed, gpus.len(), reaches)?)?;
    session.phase("check", scope.batches);
    let mut draw = BatchDraw::new(SEED, gpus.len(), reaches, scope.room);
    let (model, mut seen) = (Model::of(&machine), TrialErrors::default());
    for number in 0..scope.batches {
        let batch = draw.batch();
        let took = bed.run(session, &format!("batch {number}"), &batch, REPEATS)?;
        model.add(&mut seen, &batch, &took)?;
        session.advance()?;
    }
    if scope.watch > Nanos::ZERO {
        seen.join(session.step("watch", |session| watch(session, &mut bed, &mut draw, &model, scope.watch))?);
    }
    seen.put(&mut machine);
    Ok((machine, observed))
}

/// Runs random batches for `time`, one after the other.
fn watch(
    session: &mut Session<'_>,
    bed: &mut Lazy<'_>,
    draw: &mut BatchDraw,
    model: &Model<'_>,
    time: Nanos,
) -> Result<TrialErrors, Error> {
    let seconds = |time: Nanos| (time.0 / NANOS_PER_SECOND) as usize;
    session.phase("watch", seconds(time));
    let (mut seen, begun, mut reported) = (TrialErrors::default(), clock::now(), 0);
    loop {
        let passed = clock::now() - begun;
        for _ in reported..seconds(passed) {
            session.advance()?;
        }
        reported = seconds(passed);
        if passed >= time {
            return Ok(seen);
        }
        session.go_on()?;
        let batch = draw.batch();
        let took = bed.get()?.run(&batch)?;
        model.add(&mut seen, &batch, &[took])?;
    }
}

/// What batches are held against.
struct Model<'m> {
    routes: Routes<'m>,
    network: Network,
    calibration: Option<&'m Calibration>,
}

impl<'m> Model<'m> {
    fn of(machine: &'m Machine) -> Self {
        let calibration = machine.calibration.as_ref();
        Self { routes: Routes::of(machine), network: Network::new(machine), calibration }
    }

    /// Adds what a batch took to what was seen.
    fn add(&self, seen: &mut TrialErrors, batch: &[TrialBlock], took: &[BatchTiming]) -> Result<(), Error> {
        let Some(calibration) = self.calibration else { return Ok(()) };
        let trial = self.routes.trial(batch, took)?;
        Ok(seen.add(&trial, &self.network, calibration).map_err(FitError::from)?)
    }
}

/// Measures `sets`, each before it is measured again, so that what changes with time shows as spread. `bed` makes the memory
/// when something is measured, and not what a journal has kept. A set that does not end is left out, with a warning.
fn measure_sets(
    session: &mut Session<'_>,
    bed: &mut Lazy<'_>,
    sets: &[Set],
    pace: SetPace,
) -> Result<Vec<Rates>, Error> {
    session.phase("links", sets.len() * pace.repeats as usize);
    let mut all = vec![Rates(Vec::new()); sets.len()];
    let mut given_up = Vec::new();
    for repeat in 0..pace.repeats {
        for (at, set) in sets.iter().enumerate().filter(|(at, _)| !given_up.contains(at)).collect::<Vec<_>>() {
            let key = format!("set {} {repeat}", set.name);
            match session.step(&key, |_| bed.get().and_then(|bed| sets::run(&bed.gpus, &bed.stock, set, pace))) {
                Ok(found) => all[at].0.push(found),
                Err(Error::Headway(headway::Failure::Device(error @ DeviceError::Timeout { .. })))
                    if set.members.len() > 1 =>
                {
                    session.warnings.push(format!("left out: {error}"));
                    all[at].0.clear();
                    given_up.push(at);
                }
                Err(error) => return Err(error),
            }
            session.advance()?;
        }
    }
    Ok(all)
}

impl Scope {
    /// What a benchmark measures before it predicts: sets of copies of 64 MiB, 60 ms each, 30 ms with many GPUs; `largest`
    /// bounds the copies.
    pub fn brief(gpus: usize, largest: usize, watch: Nanos) -> Self {
        let time = if gpus > 2 { 30 } else { 60 };
        let chunk = largest.min(64 << 20);
        let time = if chunk < 16 << 20 { Nanos(2_000_000) } else { Nanos(time * 1_000_000) };
        let jitter = Effort { warm_up: 10, n_min: 50, n_max: 2_500, time: Nanos(500_000_000) };
        let room = SetMemory::of(largest);
        Self {
            pace: SetPace { chunk, in_flight: 2, time, repeats: 4 },
            room,
            jitter,
            driver: Nanos(2 * NANOS_PER_SECOND),
            batches: 30,
            watch,
        }
    }
}
