//! The GPUs of a backend, or what stands in for them, opened for transfers and for kernels.

#[doc(hidden)]
pub mod arbitration;

use std::sync::Arc;

use headway_core::files::machine::EndpointId;
use headway_core::units::Bytes;
use headway_cuda::{CudaGpu, Driver};
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::{DeviceLimits, Engines, Gpu};

use crate::{Error, Failure, emulation};

/// What copies are made on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyBackend {
    /// GPUs; an error if there are none.
    #[default]
    Auto,
    /// Threads and real memory, throttled to a machine file.
    Emu,
    Cuda,
}

/// Host memory that one GPU may hold: both ends of the largest copies, and staging.
const HOST_BYTES_MAX: Bytes = Bytes(32 << 30);

/// The first `gpus` GPUs of `backend`, or all of them. The emulated ones are those of `model`, a machine's name or file, by
/// default `h200-x1`, or `h200-x4` for more than one.
///
/// # Errors
/// `ErrorKind::Backend`, `ErrorKind::Machine`, and what reading `model` gives.
pub fn open(backend: CopyBackend, model: Option<&str>, gpus: Option<usize>) -> Result<Vec<Arc<dyn Gpu>>, Error> {
    let limits = DeviceLimits { host_bytes_max: HOST_BYTES_MAX, ..DeviceLimits::default() };
    match backend {
        CopyBackend::Emu => {
            let machine = emulation::machine(model, gpus)?;
            let spec = |gpu: EndpointId| EmuSpec { limits, ..EmuSpec::of_machine(&machine, gpu) };
            Ok(machine.gpus().map(|gpu| Arc::new(EmuGpu::open(spec(gpu))) as Arc<dyn Gpu>).collect())
        }
        CopyBackend::Cuda | CopyBackend::Auto => {
            let failed = |source| Failure::Backend { backend: "cuda", source };
            let devices = Driver::system().and_then(|driver| CudaGpu::open_all(&driver, limits)).map_err(failed)?;
            let there = devices.len();
            let wanted = gpus.unwrap_or(there).max(1);
            if wanted > there {
                return Err(Failure::TooFewGpus { machine: "this one".to_owned(), wanted, available: there }.into());
            }
            Ok(devices.into_iter().take(wanted).map(|device| Arc::new(device) as Arc<dyn Gpu>).collect())
        }
    }
}

/// What the GPUs that [`open`] gives imitate; `None` for real ones.
///
/// # Errors
/// Those of [`open`].
#[doc(hidden)]
pub fn imitates(backend: CopyBackend, model: Option<&str>, gpus: Option<usize>) -> Result<Option<String>, Error> {
    match backend {
        CopyBackend::Emu => emulation::machine(model, gpus).map(|machine| Some(emulation::imitates(&machine))),
        CopyBackend::Auto | CopyBackend::Cuda => Ok(None),
    }
}

/// The engines of the first GPU of `backend`, for kernels.
///
/// # Errors
/// Those of [`open`].
#[doc(hidden)]
pub fn device(backend: CopyBackend, model: Option<&str>) -> Result<Engines, Error> {
    let failed = |backend| move |source| Error::from(Failure::Backend { backend, source });
    match backend {
        CopyBackend::Emu => {
            let machine = emulation::machine(model, Some(1))?;
            let gpu = machine.gpus().next().expect("a machine restricted to one GPU has one");
            Engines::open(Arc::new(EmuGpu::open(EmuSpec::of_machine(&machine, gpu)))).map_err(failed("emu"))
        }
        CopyBackend::Cuda | CopyBackend::Auto => {
            let gpu = Driver::system().and_then(|driver| CudaGpu::open(&driver, 0, DeviceLimits::default()));
            gpu.and_then(|gpu| Engines::open(Arc::new(gpu))).map_err(failed("cuda"))
        }
    }
}

/// How many GPUs the driver reports.
///
/// # Errors
/// `ErrorKind::Backend` where there is no driver, or a broken one.
pub fn there() -> Result<usize, Error> {
    let probe = headway_cuda::probe().map_err(|source| Failure::Backend { backend: "cuda", source })?;
    Ok(probe.devices.len())
}

/// The first `count` GPUs as devices, for kernels.
///
/// # Errors
/// `ErrorKind::Backend`.
#[doc(hidden)]
pub fn devices(count: usize, limits: DeviceLimits) -> Result<Vec<Engines>, Error> {
    let failed = |source| Error::from(Failure::Backend { backend: "cuda", source });
    let driver = Driver::system().map_err(failed)?;
    let open = |index| CudaGpu::open(&driver, index, limits).and_then(|gpu| Engines::open(Arc::new(gpu)));
    (0..count as u32).map(|index| open(index).map_err(failed)).collect()
}
