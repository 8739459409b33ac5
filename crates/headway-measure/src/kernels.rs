//! What kernels cost, and how late the host learns that something is done.

use headway_core::files::machine::{EngineClass, KernelCost, RATE_MIN};
use headway_core::models::cpu::DriverWatch;
use headway_core::models::transfer::Method;
use headway_core::plan::block;
use headway_core::units::{Bytes, Nanos, Rate};
use headway_device::buffer::Access;
use headway_device::gpu::Completion;
use headway_device::work::{Portion, StepMemory};
use headway_device::{DeviceError, DeviceSource, Engines, HostKind, Span};
use headway_kernels::{self as kernels, Cipher};
use headway_os::clock;
use headway_runtime::wall;
use serde::{Deserialize, Serialize};

use super::sample::{Effort, SampleFigures, rate, series};
use super::session::Session;
use super::wafer;
use crate::Error;

/// Portions that fill a GPU: eight for each of the 132 multiprocessors of the largest one known.
const PORTIONS_MANY: u32 = 1_056;
/// An operation not complete after this long is given up.
const PATIENCE: Nanos = Nanos(10_000_000_000);

/// How large the probes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Portions of the probe that fills the device.
    pub portions: u32,
    /// Bytes of each portion.
    pub portion_bytes: u64,
    /// Launches, and copies, that each figure comes from.
    pub effort: Effort,
}

impl Size {
    /// For a GPU.
    pub(crate) const fn full(effort: Effort) -> Self {
        Self { portions: PORTIONS_MANY, portion_bytes: 16 << 10, effort }
    }

    /// For a device whose kernels run on the CPU.
    pub(crate) const fn small(effort: Effort) -> Self {
        Self { portions: 8, portion_bytes: 4 << 10, effort }
    }
}

/// Cost of one kernel as measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cost {
    setup: Nanos,
    rate: u64,
    chain_rate: Option<u64>,
    operation_rate: Option<u64>,
}

impl Cost {
    fn of(self, id: &str) -> KernelCost {
        let Self { setup, rate, chain_rate, operation_rate } = self;
        let [chain_rate, operation_rate] = [chain_rate, operation_rate].map(|rate| rate.map(Rate));
        KernelCost { id: id.to_owned(), gpus: Vec::new(), setup, rate: Rate(rate), chain_rate, operation_rate }
    }
}

/// Costs of every kernel that is shipped, on `device`. Each probe counts with its 99th percentile, since plans rely on them.
pub(crate) fn costs(session: &mut Session<'_>, device: Engines, size: Size) -> Result<Vec<KernelCost>, Error> {
    let mut device = device;
    session.phase("kernels", kernels::ids().count() + 1);
    let mut costs = Vec::new();
    for id in kernels::ids() {
        let cost = session.step(&format!("kernel {id}"), |_| cost(&mut device, id, size))?;
        costs.push(cost.of(id));
        session.advance()?;
    }
    let small = size.portions < PORTIONS_MANY;
    let of_wafers = session.step("kernels of wafers", |_| {
        let found = wafer::costs(device, size.effort, small)?;
        Ok(found.map(|KernelCost { id, setup, rate, operation_rate, .. }| {
            (id, Cost { setup, rate: rate.0, chain_rate: None, operation_rate: operation_rate.map(|rate| rate.0) })
        }))
    })?;
    costs.extend(of_wafers.map(|(id, cost)| cost.of(&id)));
    costs.sort_by(|a, b| a.id.cmp(&b.id));
    session.advance()?;
    Ok(costs)
}

fn cost(device: &mut Engines, id: &str, size: Size) -> Result<Cost, Error> {
    // The shortest portion that every kernel takes: one block of a cipher.
    let short = launches(device, id, 1, 16, size.effort)?;
    let chain = launches(device, id, 1, size.portion_bytes, size.effort)?;
    let filled = launches(device, id, size.portions, size.portion_bytes, size.effort)?;
    let setup = short.p99;
    // What data adds to a launch: less than a nanosecond for each kibibyte cannot be told from nothing.
    let slowest =
        |bytes: u64, with: SampleFigures| rate(Bytes(bytes), with.p99.saturating_sub(setup).max(Nanos(bytes >> 10)));
    let chain_rate = slowest(size.portion_bytes, chain);
    let total = u64::from(size.portions) * size.portion_bytes;
    let rate = slowest(total, filled).max(chain_rate).max(RATE_MIN.0);
    Ok(Cost { setup, rate, chain_rate: Some(chain_rate.max(RATE_MIN.0)), operation_rate: None })
}

/// Times launches over `portions` portions of `bytes` bytes, from start to end on the device.
fn launches(device: &mut Engines, id: &str, portions: u32, bytes: u64, effort: Effort) -> Result<SampleFigures, Error> {
    let kernel = kernels::find(id).expect("the registry's own id");
    device.gpu().load(kernel.as_ref())?;
    let lens = vec![bytes; portions as usize];
    let size = block::block_bytes(lens.iter().copied()).0 as usize;
    let described: Vec<Portion> = (0..portions)
        .map(|portion| Portion {
            stream: format!("probe {portion}"),
            parameters: Cipher { key: [7; 16], iv: [9; 16] }.parameters(),
            item: 0,
        })
        .collect();
    let state_bytes = kernel.state_bytes(portions as usize);
    let host = device.host_buffer(size.max(state_bytes).max(1), HostKind::Pinned)?;
    let input = device.device_buffer(size)?;
    let output = device.device_buffer(size)?;
    let state = device.device_buffer(state_bytes.max(1))?;
    let send = |device: &mut Engines, len: usize, to: &headway_device::Buffer| -> Result<(), Error> {
        let (from, to) = (host.claim(0..len, Access::Read)?, to.claim(0..len, Access::Write)?);
        copy(device, (from, to)).map(drop)
    };
    let mut packed = host.claim(0..size, Access::Write)?;
    block::write_header(packed.bytes_mut()?, 0, &lens).expect("the buffer has `block_bytes` for these portions");
    drop(packed);
    send(device, size, &input)?;
    if state_bytes > 0 {
        let mut fresh = host.claim(0..state_bytes, Access::Write)?;
        kernel.init_state(&described, fresh.bytes_mut()?)?;
        drop(fresh);
        send(device, state_bytes, &state)?;
    }
    let samples = series(effort, clock::now, |_| {
        let memory = StepMemory {
            input: input.claim(0..size, Access::Read)?,
            output: output.claim(0..size, Access::Write)?,
            state: (state_bytes > 0).then(|| state.claim(0..state_bytes, Access::Write)).transpose()?,
        };
        let done = wait(device, id, |device| device.launch(&kernel, memory, portions, 0))?;
        Ok::<_, Error>(done.finished - done.started)
    })?;
    Ok(SampleFigures::of(&samples).expect("an effort asks for at least one sample"))
}

/// Copies to the device and polls until the copy is complete.
pub(crate) fn copy(device: &mut Engines, ends: (Span, Span)) -> Result<Completion, Error> {
    wait(device, "copy of a probe", |device| device.copy(EngineClass::H2d, Method::Dma, ends, 0))
}

/// Submits an operation, which errors call `what`, and polls until it is complete.
pub(crate) fn wait(
    device: &mut Engines,
    what: &str,
    submit: impl FnOnce(&mut Engines) -> Result<(), DeviceError>,
) -> Result<Completion, Error> {
    let submitted = clock::now();
    submit(device)?;
    let mut done = Vec::new();
    loop {
        device.poll(&mut done);
        if let Some(completion) = done.pop() {
            completion.result.clone()?;
            return Ok(completion);
        }
        if clock::now() > submitted + PATIENCE {
            return Err(DeviceError::Timeout { what: what.to_owned(), after: PATIENCE }.into());
        }
        std::hint::spin_loop();
    }
}

/// The longest time between submission and start plus end and notice of small copies on an idle engine.
pub(crate) fn jitter(session: &mut Session<'_>, device: &mut Engines, effort: Effort) -> Result<Nanos, Error> {
    session.only_step("jitter", "jitter", |session| {
        let host = device.host_buffer(4096, HostKind::Pinned)?;
        let target = device.device_buffer(4096)?;
        let figures = session.series("jitter", effort, |_| {
            let (from, to) = (host.claim(0..4096, Access::Read)?, target.claim(0..4096, Access::Write)?);
            let submitted = clock::now();
            let done = copy(device, (from, to))?;
            Ok(done.started.saturating_sub(submitted) + done.noticed.saturating_sub(done.finished))
        })?;
        Ok(figures.max)
    })
}

/// How late a driver of this host's GPUs would run.
pub(crate) fn driver_watch(session: &mut Session<'_>, source: DeviceSource, time: Nanos) -> Result<DriverWatch, Error> {
    let spin = if source == DeviceSource::Cuda { wall::GPU_SPIN } else { Nanos::ZERO };
    session.only_step("driver", "driver watch", |session| {
        let found = wall::watch(spin, time, session.interrupt());
        session.go_on().map(|()| found)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use headway_device::emu::{EmuGpu, EmuSpec};

    use super::*;

    #[test]
    fn every_kernel_has_a_cost_that_a_machine_file_can_hold() {
        let mut device = Engines::open(Arc::new(EmuGpu::open(EmuSpec::new("gpu0")))).unwrap();
        let (stop, mut ignore) = (AtomicBool::new(false), |_| ());
        let mut session = Session::new(None, None, &stop, &mut ignore);
        let effort = Effort { warm_up: 1, n_min: 2, n_max: 2, time: Nanos(1) };
        assert!(jitter(&mut session, &mut device, effort).unwrap() < PATIENCE);
        let found = costs(&mut session, device, Size::small(effort)).unwrap();
        let ids: Vec<&str> = found.iter().map(|cost| cost.id.as_str()).collect();
        assert_eq!(ids, ["aes128-cbc", "inspect", "inspect-merge", "spin"]);
        for cost in found {
            let chained = cost.chain_rate.is_some_and(|chain| chain <= cost.rate);
            assert_eq!(cost.operation_rate.is_some(), cost.id == "inspect", "{cost:?}");
            assert!(cost.rate >= RATE_MIN && chained != cost.id.starts_with("inspect"), "{cost:?}");
        }
    }
}
