//! What the experiments on GPUs share: a copier, random bytes, times, and queues driven to their end.

use headway_core::models::transfer::Direction;
use headway_core::units::{Bytes, Nanos};
use headway_device::Buffer;
use headway_device::gpu::{Caching, Completion, CpuReach, Gpu, Operation, Queue};
use headway_os::clock;
use headway_runtime::copy::{At, Copier, CopyReport, How};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::ExperimentSetting;
use crate::Error;
use headway::copy::OpenOptions;
use headway::gpus;
use headway::run::Backend;
use headway_measure::sample::{Effort, SampleFigures, series};

/// A queue that does not end what it has for this long is given up.
const PATIENCE: Nanos = Nanos(60_000_000_000);

/// A copier on a backend.
pub(super) struct Bench {
    pub(super) copier: Copier,
    pub(super) source: &'static str,
    pub(super) machine: String,
}

/// The first sample, which most papers report alone, and what all samples come to.
#[derive(Clone, Copy)]
pub(super) struct Samples {
    pub(super) first: Nanos,
    pub(super) figures: SampleFigures,
}

impl Bench {
    pub(super) fn open(setting: &ExperimentSetting) -> Result<Self, Error> {
        let (backend, source) = match setting.backend {
            Backend::Emu => (gpus::CopyBackend::Emu, "emu"),
            Backend::Cuda | Backend::Auto => (gpus::CopyBackend::Cuda, "cuda"),
            Backend::Sim => {
                return Err(
                    headway::Failure::Options("this experiment runs with `--backend emu` or `--backend cuda`").into()
                );
            }
        };
        let machine = setting.machine.clone();
        // As a user opens one: without a profile copies begin with built-in figures and learn.
        let copier = headway::copy::open(&OpenOptions {
            backend,
            model: machine.clone(),
            machine,
            gpus: Some(1),
            ..OpenOptions::default()
        })?;
        let described = copier.gpus().first().map_or_else(|| "no GPU".to_owned(), |gpu| gpu.description().name.clone());
        Ok(Self { copier, source, machine: described })
    }

    /// The first GPU.
    pub(super) fn gpu(&self) -> Result<&dyn Gpu, Error> {
        Ok(self
            .copier
            .gpus()
            .first()
            .map(AsRef::as_ref)
            .ok_or(headway::Failure::Options("the experiment needs a GPU"))?)
    }

    pub(super) fn device(&self, bytes: usize) -> Result<Buffer, Error> {
        self.gpu()?.device_buffer(bytes, CpuReach::Device).map_err(Error::from)
    }

    /// Device memory that the CPU maps, or without windows such that it does not.
    pub(super) fn mapped(&self, bytes: usize) -> Result<Buffer, Error> {
        let gpu = self.gpu()?;
        let window = gpu.windows().into_iter().find_map(|(mapping, usable)| usable.ok().map(|()| mapping));
        gpu.device_buffer(bytes, window.map_or(CpuReach::Device, CpuReach::Window)).map_err(Error::from)
    }

    pub(super) fn pinned(&self, bytes: usize) -> Result<Buffer, Error> {
        self.gpu()?.pinned_buffer(bytes, Caching::Cached).map_err(Error::from)
    }

    /// Whether `there` holds `expected`, read by the driver's own call.
    pub(super) fn verify(&self, what: &str, there: &Buffer, expected: &[u8]) -> Result<(), Error> {
        let mut back = vec![0; expected.len()];
        let span = there.claim(0..expected.len(), headway_device::Access::Read)?;
        self.gpu()?.copy_out(&mut back, &span)?;
        same(what, &back, expected)
    }

    /// Times one copy of all of `host` to or from the start of `there`.
    pub(super) fn time(&self, direction: Direction, there: &Buffer, host: &mut [u8], how: How) -> Result<Nanos, Error> {
        self.copy(direction, there, host, how).map(|(time, _)| time)
    }

    /// Times a copy like [`Bench::time`], and returns what the copier says of it.
    pub(super) fn copy(
        &self,
        direction: Direction,
        there: &Buffer,
        host: &mut [u8],
        how: How,
    ) -> Result<(Nanos, CopyReport), Error> {
        let device = At { buffer: there, offset: 0 };
        let before = clock::now();
        let report = match direction {
            Direction::H2d => self.copier.copy_in(device, host, how),
            _ => self.copier.copy_out(host, device, how),
        }?;
        Ok((clock::now() - before, report))
    }
}

/// Fails with the first byte that differs.
pub(super) fn same(what: &str, got: &[u8], expected: &[u8]) -> Result<(), Error> {
    if got == expected {
        return Ok(());
    }
    let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or_else(|| got.len().min(expected.len()));
    Err(headway_measure::Error::WrongCopy { copy: what.to_owned(), gpu: 0, at: at as u64 }.into())
}

/// Random bytes of a seed.
pub(super) fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut data);
    data
}

/// Samples within `time`: at least `n_min`, at most 1000, without warm-up, as the first one is reported.
pub(super) fn samples(
    n_min: u32,
    time: Nanos,
    mut once: impl FnMut() -> Result<Nanos, Error>,
) -> Result<Samples, Error> {
    let effort = Effort { warm_up: 0, n_min: n_min.max(1), n_max: 1_000, time };
    let samples = series(effort, clock::now, |_| once())?;
    match (samples.first(), SampleFigures::of(&samples)) {
        (Some(&first), Some(figures)) => Ok(Samples { first, figures }),
        _ => Err(headway::Failure::Options("a series needs at least one sample").into()),
    }
}

/// GB/s (10^9 bytes) of `bytes` in `time`.
pub(super) fn gb_per_s(bytes: Bytes, time: Nanos) -> f64 {
    bytes.0 as f64 / time.0.max(1) as f64
}

/// Waits for everything that `queues` have; the results in the order in which they ended.
pub(super) fn finish(queues: &mut [Box<dyn Queue>]) -> Result<Vec<Completion>, Error> {
    let until = clock::now().saturating_add(PATIENCE);
    let mut all = Vec::new();
    while queues.iter().any(|queue| queue.outstanding() > 0) {
        let before = all.len();
        for queue in queues.iter_mut() {
            while let Some(done) = queue.poll() {
                done.result.clone()?;
                all.push(done);
            }
        }
        if all.len() == before {
            if clock::now() > until {
                return Err(headway::Failure::Options("the device does not end its work; give it up").into());
            }
            headway_os::sched::yield_now();
        }
    }
    Ok(all)
}

/// Submits to a queue.
pub(super) fn submit(queue: &mut Box<dyn Queue>, what: Operation, tag: u64) -> Result<(), Error> {
    queue.submit(what, tag).map_err(Error::from)
}

#[cfg(test)]
mod tests {
    use headway_core::models::transfer::Method;

    use super::*;

    #[test]
    fn a_byte_that_is_wrong_on_the_device_ends_an_experiment_with_its_place() {
        let setting = ExperimentSetting { backend: Backend::Emu, quick: true, ..ExperimentSetting::default() };
        let bench = Bench::open(&setting).unwrap();
        let there = bench.device(1000).unwrap();
        let mut data = random(1, 1000);
        bench.time(Direction::H2d, &there, &mut data, How::By(Method::Pageable)).unwrap();
        bench.verify("copy", &there, &data).unwrap();
        data[700] ^= 1;
        let error = bench.verify("copy", &there, &data).unwrap_err();
        assert!(matches!(error, Error::Measure(headway_measure::Error::WrongCopy { at: 700, .. })), "{error:?}");
    }

    #[test]
    fn bytes_that_are_missing_are_wrong_bytes() {
        assert!(same("copy", b"abc", b"abc").is_ok());
        assert!(matches!(
            same("copy", b"ab", b"abc"),
            Err(Error::Measure(headway_measure::Error::WrongCopy { at: 2, .. }))
        ));
    }
}
