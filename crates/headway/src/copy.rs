//! Copies between host and GPU memory: a [`Copier`] over the GPUs of a backend, with the profile of a machine file.

mod load;
mod streams;

use std::sync::Arc;

pub use headway_core::decisions::chooser::ChoiceReason;
use headway_core::files::machine::{EndpointId, Machine};
use headway_core::models::transfer::Stamp;
#[doc(hidden)]
pub use headway_core::models::transfer::builtin::NodeClass;
pub use headway_core::models::transfer::learning::Prefer;
pub use headway_core::models::transfer::{
    Direction, HostMemory, Method, Profile, ResidentShape, Stores, Tuning, WindowMapping,
};
pub use headway_device::gpu::{Caching, CpuReach, Gpu, Piece};
pub use headway_device::{Access, Buffer, DeviceError, DeviceLimits, Span};

#[doc(hidden)]
pub use headway_core::decisions::chooser::{CopyChoice, CopyTook};
/// Whether most pages of a slice were never touched: such memory is slower to copy into.
#[doc(hidden)]
pub use headway_os::memory::mostly_absent;
pub use headway_runtime::copy::{
    At, Copier, CopierEvent, CopyError, CopyLimits, CopyOptions, CopyReport, How, ManyBy, MethodProbe,
};
#[doc(hidden)]
pub use headway_runtime::copy::{ChosenCopy, CopyChooser, LearningGpu, LearningOptions};

/// GPUs of the CUDA driver, for copies of memory that somebody else allocated ([`CudaGpu::lend`]).
#[doc(hidden)]
pub use headway_cuda::{CudaGpu, Driver as CudaDriver, GpuIdentity};

pub use crate::gpus::CopyBackend;

pub use self::load::{FilePart, LoadError, LoadOptions, LoadReport, Loading};
pub use self::streams::{CopyTicket, StreamCopier, StreamOptions, WhichGpu};
pub use headway_cuda::{RawCopy, RawPlace, StreamHandle};

use crate::gpus;
use crate::{Error, Failure, stamp};

/// What to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// On what.
    pub backend: CopyBackend,
    /// Machine by name or file, whose profile says what copies cost; `None` = built-in figures.
    pub machine: Option<String>,
    /// Machine that emulated GPUs are built after.
    pub model: Option<String>,
    /// Use this many GPUs only.
    pub gpus: Option<usize>,
    /// What copies may use.
    pub copies: CopyOptions,
}

/// Every GPU of this computer, with built-in figures of what copies cost.
///
/// # Errors
/// Those of [`open`].
pub fn gpus() -> Result<Copier, Error> {
    open(&OpenOptions::default())
}

/// So many emulated GPUs: threads and memory of this computer that go no faster than an H200 would.
///
/// # Errors
/// Those of [`open`].
pub fn emulated(gpus: usize) -> Result<Copier, Error> {
    open(&OpenOptions { backend: CopyBackend::Emu, gpus: Some(gpus), ..OpenOptions::default() })
}

/// Opens the GPUs of a backend for copies.
///
/// A profile that was measured on something else is stale: only the driver's own methods are chosen then, and one event says
/// so.
///
/// # Errors
/// `ErrorKind::Backend`, `ErrorKind::Machine`, `ErrorKind::Device`, and what reading the machine gives.
pub fn open(options: &OpenOptions) -> Result<Copier, Error> {
    let machine = options.machine.as_deref().map(crate::machine::open).transpose()?;
    let gpus = gpus::open(options.backend, options.model.as_deref(), options.gpus)?;
    let in_order = || (0..gpus.len() as u32).map(EndpointId).collect();
    let ids = machine.as_ref().map_or_else(|| Ok(in_order()), |machine| endpoints(machine, &gpus, 0))?;
    let profile = machine.as_ref().map_or_else(Profile::default, |machine| machine.profile.clone());
    let stale = profile.stamp.as_ref().and_then(|was| difference(was, &stamp::stamp(&gpus, String::new())));
    let learns = machine.is_none();
    let gpus = ids.into_iter().zip(gpus).collect();
    let copier = Copier::with_stale(gpus, profile, options.copies, stale).map_err(Failure::Copy)?;
    if learns {
        learn(&copier, &options.copies);
    }
    Ok(copier)
}

/// Has copies of ordinary memory of real GPUs go by built-in figures and by what they teach.
fn learn(copier: &Copier, options: &CopyOptions) {
    let limits = &options.limits;
    for (at, gpu) in copier.gpus().iter().enumerate() {
        if gpu.description().source == headway_device::DeviceSource::Cuda {
            let threads_max = limits.threads_max.min(limits.cpus_max.saturating_sub(1));
            let options = LearningOptions { threads_max, prefer: options.prefer, ..LearningOptions::default() };
            copier.learn(at, None, options);
        }
    }
}

/// The name of each GPU in the machine file: by UUID where the file has them, else in order from number `first` on, or from 0 where the file
/// has too few for that.
pub(crate) fn endpoints(machine: &Machine, gpus: &[Arc<dyn Gpu>], first: usize) -> Result<Vec<EndpointId>, Error> {
    let endpoints: Vec<EndpointId> = machine.gpus().collect();
    let by_uuid = |gpu: &Arc<dyn Gpu>| {
        let uuid = gpu.description().uuid.as_ref()?;
        endpoints.iter().copied().find(|endpoint| machine.endpoints[endpoint.at()].uuid.as_ref() == Some(uuid))
    };
    if let Some(named) = gpus.iter().map(by_uuid).collect() {
        return Ok(named);
    }
    if endpoints.len() < gpus.len() {
        let (machine, wanted) = (machine.name.clone(), gpus.len());
        return Err(Failure::TooFewGpus { machine, wanted, available: endpoints.len() }.into());
    }
    let first = if first + gpus.len() <= endpoints.len() { first } else { 0 };
    Ok(endpoints.into_iter().skip(first).take(gpus.len()).collect())
}

/// What has changed since `was`; GPUs that are not used now do not count.
fn difference(was: &Stamp, now: &Stamp) -> Option<String> {
    let kept: Vec<usize> = (0..was.gpus.len()).filter(|at| now.gpus.contains(&was.gpus[*at])).collect();
    if kept.len() < now.gpus.len() {
        return was.difference(now);
    }
    let of = |list: &[String]| kept.iter().filter_map(|at| list.get(*at).cloned()).collect();
    Stamp { gpus: of(&was.gpus), pcie: of(&was.pcie), ..was.clone() }.difference(now)
}

#[cfg(test)]
mod tests {
    use headway_device::gpu::CpuReach;

    use super::*;

    fn emulated(machine: Option<&str>, gpus: usize) -> OpenOptions {
        let model = Some("h200-x4".to_owned());
        let machine = machine.map(str::to_owned);
        OpenOptions { backend: CopyBackend::Emu, machine, model, gpus: Some(gpus), copies: CopyOptions::default() }
    }

    #[test]
    fn gpus_without_uuid_are_those_of_the_file_from_their_own_number_on() {
        let machine = crate::machine::open("h200-x4").unwrap();
        let all: Vec<EndpointId> = machine.gpus().collect();
        let copier = open(&emulated(None, 2)).unwrap();
        let of = |first| endpoints(&machine, copier.gpus(), first).unwrap();
        assert_eq!([of(0), of(1), of(2)], [&all[0..2], &all[1..3], &all[2..4]]);
        assert_eq!(of(3), all[0..2], "it has too few for that");
    }

    #[test]
    fn an_emulated_gpu_copies_by_the_facade() {
        let copier = open(&emulated(Some("h200-x4"), 2)).unwrap();
        let buffer = copier.gpus()[1].device_buffer(1000, CpuReach::Device).unwrap();
        let at = At { buffer: &buffer, offset: 100 };
        let data: Vec<u8> = (0..900).map(|i| (i % 251) as u8).collect();
        copier.copy_in(at, &data, How::Auto).unwrap();
        let mut back = vec![0; 900];
        let report = copier.copy_out(&mut back, at, How::By(Method::Pageable)).unwrap();
        assert_eq!((back, report.instead_of), (data, None));
    }

    #[test]
    fn a_machine_with_fewer_gpus_than_used_is_refused() {
        let error = open(&emulated(Some("h200-x1"), 2)).err().unwrap();
        assert!(matches!(error.failure(), Failure::TooFewGpus { wanted: 2, available: 1, .. }), "{error:?}");
    }

    #[test]
    fn unused_gpus_do_not_make_a_profile_stale_and_other_ones_do() {
        let stamp = |gpus: &[&str], driver: &str| Stamp {
            driver: driver.to_owned(),
            gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
            pcie: gpus.iter().map(|gpu| format!("5.0 x16 of {gpu}")).collect(),
            ..Stamp::default()
        };
        let was = stamp(&["a", "b", "c"], "1");
        assert_eq!(difference(&was, &stamp(&["a", "c"], "1")), None);
        assert_eq!(difference(&was, &stamp(&["a", "b", "c"], "1")), None);
        assert!(difference(&was, &stamp(&["a", "d"], "1")).unwrap().starts_with("GPUs"));
        assert_eq!(difference(&was, &stamp(&["a"], "2")).unwrap(), "driver 1, now 2");
    }
}
