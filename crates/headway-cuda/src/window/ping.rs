//! How long a store through a window takes to reach a running kernel, and its answer to come back.

use std::ffi::c_void;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headway_core::models::transfer::WindowMapping;
use headway_core::units::Nanos;
use headway_device::buffer::Memory as _;
use headway_device::gpu::Window as _;
use headway_device::{DeviceError, LaunchGrid};
use headway_os::clock;

use super::{WindowRoute, open};
use crate::abandoned::{await_rest_for, leave};
use crate::driver::Driver;
use crate::owned::{Context, Module, Stream};
use crate::pinned::PinnedMemory;

const PTX: &str = include_str!("../../ptx/ping.ptx");
/// Looks of the kernel at its flag, each about half a microsecond: some seconds.
const LOOKS: u32 = 10_000_000;
/// How long an answer may take.
const PATIENCE: Nanos = Nanos(1_000_000_000);
/// How long the kernel is waited for, which leaves by itself.
const LEAVES_WITHIN: Nanos = Nanos(30_000_000_000);
/// Bytes for the flag, and for the answer: a line each.
const FLAG_BYTES: usize = 64;

/// Times from a store of four bytes through the window of `route` to the answer of a running kernel, as the CPU sees both:
/// `rounds` of them, in order.
///
/// # Errors
/// [`DeviceError::Unavailable`] with the route's reason, [`DeviceError::KernelLoad`], [`DeviceError::Driver`];
/// [`DeviceError::Timeout`] when a round takes more than a second.
pub fn round_trips(
    driver: &Arc<Driver>,
    index: u32,
    route: WindowRoute,
    rounds: u32,
) -> Result<Vec<Nanos>, DeviceError> {
    of_context(&Context::retain(driver, driver.device(index)?)?, route, rounds)
}

/// The same by the first usable route of the form `mapping`.
pub(crate) fn of_form(context: &Arc<Context>, mapping: WindowMapping, rounds: u32) -> Result<Vec<Nanos>, DeviceError> {
    let mut refusal = None;
    for route in WindowRoute::ALL.into_iter().filter(|route| route.mapping() == mapping) {
        match of_context(context, route, rounds) {
            Err(error @ DeviceError::Unavailable { .. }) => refusal = Some(error),
            done => return done,
        }
    }
    Err(refusal.unwrap_or_else(|| DeviceError::Unavailable {
        what: format!("the window {mapping:?}"),
        reason: "no route leads to it".into(),
        remedy: "`headway doctor` lists the windows there are".into(),
    }))
}

fn of_context(context: &Arc<Context>, route: WindowRoute, rounds: u32) -> Result<Vec<Nanos>, DeviceError> {
    let flag = open(context, route, FLAG_BYTES).map_err(|refusal| refusal.error(format!("the route {route}")))?;
    let pinned = PinnedMemory::new(context, FLAG_BYTES)?;
    // SAFETY: fresh pinned memory of at least 4 bytes, aligned to a page; CPU and kernel use it by atomic accesses only.
    let answer = unsafe { AtomicU32::from_ptr(pinned.base().cast()) };
    answer.store(0, Ordering::Release);
    let module = Module::load(context, "ping", PTX.as_bytes(), "ping")?;
    let stream = Arc::new(Stream::new(context)?);
    let (mut from, mut to) = (flag.base(), pinned.base());
    let (mut count, mut looks) = (rounds, LOOKS);
    let mut arguments: [*mut c_void; 4] =
        [(&raw mut from).cast(), (&raw mut to).cast(), (&raw mut count).cast(), (&raw mut looks).cast()];
    let grid = LaunchGrid::line(1, 1, 0);
    // SAFETY: two addresses and two 32-bit numbers, as the entry has them. Flag and answer live until the kernel has ended, or are left behind.
    unsafe { stream.launch(&module, grid, &mut arguments) }?;
    let mut times = Vec::with_capacity(rounds as usize);
    let mut result = Ok(());
    for round in 1..=rounds {
        let start = clock::now();
        // SAFETY: the flag is ours, and the kernel only reads it.
        unsafe { flag.view.store(0, &round.to_ne_bytes()) };
        result = wait(answer, round, start);
        if result.is_err() {
            break;
        }
        times.push(clock::now() - start);
    }
    // The kernel leaves after its last round, or when it has looked often enough.
    let end = await_rest_for(context, &stream, "the kernel of round trips", LEAVES_WITHIN);
    if end.is_err() {
        leave(context, Some(&stream), (flag, pinned, module), Some("the kernel of round trips did not end"));
    }
    result.and(end).map(|()| times)
}

/// Waits until `answer` is `round`.
fn wait(answer: &AtomicU32, round: u32, start: Nanos) -> Result<(), DeviceError> {
    let mut looks = 0u32;
    while answer.load(Ordering::Acquire) != round {
        spin_loop();
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(1 << 16) && clock::now() - start > PATIENCE {
            let what = format!("the kernel's answer number {round} (it last gave {})", answer.load(Ordering::Acquire));
            return Err(DeviceError::Timeout { what, after: PATIENCE });
        }
    }
    Ok(())
}
