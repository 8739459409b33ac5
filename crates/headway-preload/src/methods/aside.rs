//! `--aside`: small copies out of a GPU that a kernel makes in their own stream, past a busy engine.

use headway_core::files::guest_log::{DriverReason, Host};

use crate::base::context::{self, Prepared};
use crate::base::copy::{Copy, Made};
use crate::base::driver::{self, DevicePtr, Driver, KernelCopy, Relaxed, SUCCESS, Status};

/// Up to this size a copy may be made by a kernel. It shares the link with the engine about half and half, so 16 MiB take
/// 0.45 ms next to a bulk copy (H200, 2026-11-23), and the bulk copy loses a fifth of its rate meanwhile.
pub(crate) const BYTES_MAX: usize = 16 << 20;
/// One block is enough up to this size; beyond, sixteen.
const ONE_BLOCK: usize = 64 << 10;
const BLOCKS: u32 = 16;
const THREADS: u32 = 512;

/// Makes a copy by a kernel in its own stream; the call's answer.
///
/// # Errors
/// Why it is left to the driver; nothing has been queued then, or only a copy into a line of ours.
pub(crate) fn copy(driver: &Driver, context: &Prepared, copy: Copy, made: &mut Made) -> Result<Status, DriverReason> {
    let _relaxed = Relaxed::new(driver);
    let (host, bytes) = (copy.host(), copy.bytes);
    // To ask the legacy default stream spoils captures, as a copy in it does; one that the driver refuses does not.
    if !driver::on_device(driver, copy.from, bytes, context.device) {
        return Err(DriverReason::OtherMemory);
    }
    if driver::captures(driver, copy.stream) {
        return Err(DriverReason::Capture);
    }
    if let Some(to) = driver::pinned(driver, host, bytes) {
        made.host = Host::PageLocked;
        launch(driver, context, to, copy)?;
        return Ok(if copy.call.waits() { driver::synchronize(driver, copy.stream) } else { SUCCESS });
    }
    // Ordinary memory: the driver's call would return with the bytes there, too, whatever its name says.
    if bytes > context::LINE_BYTES || !driver::is_ordinary(driver, host, bytes) {
        return Err(DriverReason::OtherMemory);
    }
    made.host = Host::Ordinary;
    let line = context.line().ok_or(DriverReason::NoLine)?;
    launch(driver, context, line.seen_by_device(), copy)?;
    let status = driver::synchronize(driver, copy.stream);
    // The driver reports memory that cannot be written, as the guest expects.
    if status != SUCCESS || line.give(host, bytes) { Ok(status) } else { Err(DriverReason::OtherMemory) }
}

fn launch(driver: &Driver, context: &Prepared, to: DevicePtr, copy: Copy) -> Result<(), DriverReason> {
    let blocks = if copy.bytes <= ONE_BLOCK { 1 } else { BLOCKS };
    let kernel_copy = KernelCopy { to, from: copy.from, bytes: copy.bytes as u64, blocks, threads: THREADS };
    // SAFETY: the kernel is the current context's, the stream the caller's; both ranges were looked up just now and are as long.
    let taken = unsafe { driver::launch(driver, context.kernel, copy.stream, kernel_copy) };
    taken.then_some(()).ok_or(DriverReason::NotLaunched)
}
