//! What the kernels cost that a workload brings in files of its own.

use std::path::Path;

use headway_core::files::error::Loaded;
use headway_core::files::machine::KernelCost;
use headway_core::files::workload::{Stream, Workload};
use headway_core::units::Nanos;
use headway_device::buffer::Access;
use headway_device::work::{Library, StepMemory};
use headway_device::{Engines, HostKind};
use headway_os::clock;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::kernels;
use super::sample::Effort;
use super::session::Session;
use crate::Error;

/// Before every second launch: in a stream a kernel comes after a pause, and then takes longer than right after another launch.
const PAUSE: Nanos = Nanos(10_000_000);

/// Reads a workload that has kernels of its own.
///
/// # Errors
/// [`Error::NoOwnKernels`], and what is wrong with its files.
pub(crate) fn open(path: &Path) -> Result<Loaded<Workload>, Error> {
    let workload = headway::workload::open(path)?;
    if workload.value.streams.iter().any(Stream::has_modules) {
        Ok(workload)
    } else {
        Err(Error::NoOwnKernels { workload: path.to_owned() })
    }
}

/// The longest launch of each kernel. The first kernel of a stream works on a packet of random bytes, each further one on what the one
/// before it made.
pub(crate) fn costs(
    session: &mut Session<'_>,
    mut device: Engines,
    workload: &Loaded<Workload>,
    effort: Effort,
) -> Result<Vec<KernelCost>, Error> {
    let with_kernels: Vec<&Stream> = workload.value.streams.iter().filter(|stream| stream.has_modules()).collect();
    let library = headway::workload::library(workload)?;
    session.phase("kernels of the workload", with_kernels.iter().map(|stream| stream.module_kernels().count()).sum());
    let mut costs = Vec::new();
    for stream in with_kernels {
        costs.extend(of_stream(session, &mut device, stream, library.as_ref(), effort)?);
    }
    Ok(costs)
}

fn of_stream(
    session: &mut Session<'_>,
    device: &mut Engines,
    stream: &Stream,
    library: &dyn Library,
    effort: Effort,
) -> Result<Vec<KernelCost>, Error> {
    let sizes = stream.sizes();
    let packet = sizes[0].0 as usize;
    let host = device.host_buffer(packet.max(1), HostKind::Pinned)?;
    let mut input = device.device_buffer(packet.max(1))?;
    let mut bytes = host.claim(0..packet, Access::Write)?;
    Pcg64Mcg::seed_from_u64(1).fill_bytes(bytes.bytes_mut()?);
    drop(bytes);
    kernels::copy(device, (host.claim(0..packet, Access::Read)?, input.claim(0..packet, Access::Write)?))?;
    let mut costs = Vec::new();
    for (step, id, _) in stream.module_kernels() {
        let (takes, makes) = (sizes[step].0 as usize, sizes[step + 1].0 as usize);
        let work = library.find(&id).expect("the library has every kernel of the workload");
        device.gpu().load(work.as_ref())?;
        let output = device.device_buffer(makes.max(1))?;
        let what = format!("kernel {id}");
        let figures = session.series(&what, effort, |number| {
            if number % 2 == 1 {
                clock::sleep_until(clock::now().saturating_add(PAUSE));
            }
            let memory = StepMemory {
                input: input.claim(0..takes, Access::Read)?,
                output: output.claim(0..makes, Access::Write)?,
                state: None,
            };
            let done = kernels::wait(device, &what, |device| device.launch(&work, memory, 1, 0))?;
            Ok(done.finished - done.started)
        })?;
        costs.push(KernelCost::of_launch(id, sizes[step], figures.max));
        session.advance()?;
        input = output;
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use headway_device::emu::{EmuGpu, EmuSpec};

    use super::*;

    const PTX: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
        .visible .entry halve(.param .u64 in, .param .u64 out)\n{ ret; }\n.visible .entry sum(.param .u64 in, .param .u64 out)\n{ ret; }\n";

    fn measured(steps: &str) -> Result<Vec<KernelCost>, Error> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("camera.toml");
        fs::write(place.path().join("two.ptx"), PTX).unwrap();
        let text = format!(
            "name = \"w\"\n[[stream]]\nid = \"camera\"\npacket = \"4 KiB\"\nperiod = \"10 ms\"\ndeadline = \"10 ms\"\nsteps = [{{ copy = \"host -> gpu\" }}, {steps}, {{ copy = \"gpu -> host\" }}]\n"
        );
        fs::write(&path, text).unwrap();
        let workload = open(&path)?;
        let device = Engines::open(Arc::new(EmuGpu::open(EmuSpec::new("gpu0")))).unwrap();
        let (stop, mut ignore) = (AtomicBool::new(false), |_| ());
        let mut session = Session::new(None, None, &stop, &mut ignore);
        costs(&mut session, device, &workload, Effort { warm_up: 1, n_min: 2, n_max: 2, time: Nanos(1) })
    }

    #[test]
    fn each_kernel_of_a_stream_has_the_cost_of_its_longest_launch_under_the_name_that_plans_look_for() {
        let module = |entry: &str, more: &str| {
            format!(
                "{{ compute = {{ module = \"two.ptx\", entry = \"{entry}\", grid = [1], block = [32], args = [\"in\", \"out\"]{more} }} }}"
            )
        };
        let steps =
            format!("{}, {}", module("halve", ", out_bytes = \"2 KiB\""), module("sum", ", out_bytes = \"4 B\""));
        let found = measured(&steps).unwrap();
        let ids: Vec<&str> = found.iter().map(|cost| cost.id.as_str()).collect();
        assert_eq!(ids, ["camera:halve", "camera:sum"]);
        assert!(found.iter().all(|cost| cost.setup > Nanos(0) || cost.rate.0 == u64::MAX));
    }

    #[test]
    fn a_workload_without_kernels_of_its_own_is_refused() {
        let error = measured("{ compute = \"spin\" }").unwrap_err();
        assert!(matches!(&error, Error::NoOwnKernels { workload } if workload.ends_with("camera.toml")), "{error:?}");
    }
}
